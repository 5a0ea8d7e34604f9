//! A server of HTTP that answers as a test says, and notes when.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What a client wants.
pub(crate) struct Request {
    pub(crate) path: String,
    /// Requests are counted from 1.
    pub(crate) number: u64,
    /// Requests for this path, counted from 1.
    pub(crate) visit: u64,
}

/// What it gets.
#[derive(Default)]
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
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) arrived: Duration,
    pub(crate) answered: Duration,
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
    seen: Vec<Seen>,
}

impl Server {
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

    /// What was answered so far, in the order of arrival.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let mut seen = self.notes.lock().unwrap().seen.clone();
        seen.sort_by_key(|seen| seen.arrived);
        seen
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
    notes.lock().unwrap().seen.push(Seen { path, status, arrived: at, answered });
    client.write_all(&[head.as_bytes(), &body].concat()).ok()
}
