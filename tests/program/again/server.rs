//! A server of HTTP that answers as a test says, and notes when.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What a client wants.
pub(super) struct Request {
    pub(super) path: String,
    /// Requests are counted from 1.
    pub(super) number: u64,
    /// Requests for this path, counted from 1.
    pub(super) visit: u64,
    /// Since the server was started.
    pub(super) at: Duration,
    /// Their names in lower case.
    pub(super) headers: BTreeMap<String, String>,
}

/// What it gets.
#[derive(Default)]
pub(super) struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
    delay: Duration,
}

impl Answer {
    pub(super) fn new(status: u16) -> Self {
        Answer { status, ..Answer::default() }
    }

    /// `lines` of the head, each without its end.
    pub(super) fn with(mut self, lines: &str) -> Self {
        self.headers.extend(lines.lines().flat_map(|line| [line, "\r\n"]));
        self
    }

    pub(super) fn body(self, body: &[u8]) -> Self {
        Answer { body: body.to_vec(), ..self }
    }

    pub(super) fn after(self, delay: Duration) -> Self {
        Answer { delay, ..self }
    }
}

/// One request that was answered; times since the server was started.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) status: u16,
    pub(super) arrived: Duration,
    pub(super) answered: Duration,
}

/// A server that lives as long as the test's process.
pub(super) struct Server {
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
    pub(super) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
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
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What was answered so far, in the order of arrival.
    pub(super) fn seen(&self) -> Vec<Seen> {
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
    let field = |line: String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(field).collect();
    let (number, visit) = {
        let mut notes = notes.lock().unwrap();
        notes.count += 1;
        let visit = notes.visits.entry(path.clone()).or_default();
        *visit += 1;
        let visit = *visit;
        (notes.count, visit)
    };
    let Answer { status, headers, body, delay } = answer(&Request { path: path.clone(), number, visit, at, headers });
    thread::sleep(delay);
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
    let answered = begun.elapsed();
    notes.lock().unwrap().seen.push(Seen { path, status, arrived: at, answered });
    client.write_all(&[head.as_bytes(), &body].concat()).ok()
}
