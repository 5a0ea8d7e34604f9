//! A server of HTTP that follows a test's script and records the requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A request of a client.
pub(crate) struct Request {
    pub(crate) path: String,
    /// Requests are counted from 1.
    pub(crate) number: u64,
    /// Requests for this path, counted from 1.
    pub(crate) visit: u64,
}

/// The answer to a request.
#[derive(Clone, Default)]
pub(crate) struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
    delay: Duration,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Answer { status, ..Answer::default() }
    }

    /// 429 with a `Retry-After`.
    pub(crate) fn later(retry_after: &str) -> Self {
        Answer::new(429).with(&format!("Retry-After: {retry_after}"))
    }

    /// `lines` of the head, each without its end.
    pub(crate) fn with(mut self, lines: &str) -> Self {
        self.headers.extend(lines.lines().flat_map(|line| [line, "\r\n"]));
        self
    }

    pub(crate) fn body(self, body: &[u8]) -> Self {
        Answer { body: body.to_vec(), ..self }
    }

    pub(crate) fn after(self, delay: Duration) -> Self {
        Answer { delay, ..self }
    }
}

/// One request that was answered; times since the server was started.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) arrived: Duration,
    pub(crate) answered: Duration,
}

/// The script of a server, which answers 200 and `ok` to every other request.
#[derive(Default)]
pub(crate) struct Script {
    first: Option<Answer>,
    pages: BTreeMap<String, Vec<Answer>>,
    always: Vec<(String, Answer)>,
}

impl Script {
    /// The answer to the first request for each page that the script does not name.
    pub(crate) fn first(self, answer: Answer) -> Self {
        Script { first: Some(answer), ..self }
    }

    /// The answers to the first requests for `path`, in turn.
    pub(crate) fn page(mut self, path: &str, answers: impl Into<Vec<Answer>>) -> Self {
        self.pages.insert(path.to_owned(), answers.into());
        self
    }

    /// The answer to every request whose path begins with `start`.
    pub(crate) fn always(mut self, start: &str, answer: Answer) -> Self {
        self.always.push((start.to_owned(), answer));
        self
    }

    fn answer(&self, request: &Request) -> Option<&Answer> {
        let visit = usize::try_from(request.visit).unwrap();
        if let Some(answers) = self.pages.get(&request.path) {
            return answers.get(visit - 1);
        }
        let always = self.always.iter().find(|(start, _)| request.path.starts_with(start));
        always.map(|(_, answer)| answer).or(self.first.as_ref().filter(|_| visit == 1))
    }

    pub(crate) fn start(self) -> Server {
        Server::start(move |request| self.answer(request).cloned().unwrap_or(Answer::new(200).body(b"ok")))
    }
}

/// A server that lives as long as the test's process.
pub(crate) struct Server {
    port: u16,
    begun: Instant,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    count: u64,
    visits: BTreeMap<String, u64>,
    served: Vec<Visit>,
}

impl Server {
    pub(crate) fn that_answers() -> Script {
        Script::default()
    }

    pub(crate) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (port, notes) = (listener.local_addr().unwrap().port(), Arc::default());
        let server = Server { port, begun: Instant::now(), notes };
        let (begun, notes, answer) = (server.begun, Arc::clone(&server.notes), Arc::new(answer));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (notes, answer) = (Arc::clone(&notes), Arc::clone(&answer));
                // A client that leaves early is none of its business.
                thread::spawn(move || serve(&client, begun, &notes, &*answer));
            }
        });
        server
    }

    /// Its address, which ends with a slash.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The requests that were answered so far, in the order of arrival.
    pub(crate) fn visits(&self) -> Vec<Visit> {
        let mut visits = self.notes.lock().unwrap().served.clone();
        visits.sort_by_key(|visit| visit.arrived);
        visits
    }
}

fn serve(
    mut client: &TcpStream,
    begun: Instant,
    notes: &Mutex<Notes>,
    answer: &(impl Fn(&Request) -> Answer + ?Sized),
) -> Option<()> {
    let mut lines = BufReader::new(client).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let at = begun.elapsed();
    lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
    let (number, visit) = {
        let mut notes = notes.lock().unwrap();
        notes.count += 1;
        let visit = notes.visits.entry(path.clone()).or_default();
        *visit += 1;
        let visit = *visit;
        (notes.count, visit)
    };
    let Answer { status, headers, body, delay } = answer(&Request { path: path.clone(), number, visit });
    thread::sleep(delay);
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
    let answered = begun.elapsed();
    notes.lock().unwrap().served.push(Visit { path, status, arrived: at, answered });
    client.write_all(&[head.as_bytes(), &body].concat()).ok()
}
