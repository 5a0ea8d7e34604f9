//! A Redis server on a free port of the loopback, and networks that delay or lose its messages.

#![allow(dead_code, reason = "each file of tests uses some of this")]

use super::tools::skipped;
use redis::Connection;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server; it ends with this value.
pub(crate) struct Redis {
    process: Option<Child>,
    pub(crate) port: u16,
    folder: TempDir,
    args: Vec<String>,
}

impl Redis {
    /// Starts one with `args`, in which PORT is its port and FREE another; `None`, with a visible word, where none is
    /// installed. Where CI is to have installed it, that is an error.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        let Some(program) = program() else {
            assert!(std::env::var_os("CI").is_none(), "redis-server is not installed");
            skipped("no redis-server here");
            return None;
        };
        // Somebody else may take a port between our finding it free and the server's using it.
        for _ in 0..5 {
            let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
            let filled = |arg: &&str| match *arg {
                "PORT" => port.to_string(),
                "FREE" => free_port().to_string(),
                arg => arg.to_owned(),
            };
            let args = args.iter().map(filled).collect();
            let mut redis = Redis { process: None, port, folder, args };
            if redis.start_again_with(&program).is_ok() {
                return Some(redis);
            }
        }
        panic!("redis-server does not start");
    }

    /// After [`kill`](Self::kill): the same server, which has forgotten everything.
    pub(crate) fn start_again(&mut self) {
        self.start_again_with(&program().unwrap()).unwrap();
    }

    fn start_again_with(&mut self, program: &Path) -> io::Result<()> {
        let process = Command::new(program)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(&self.args)
            .arg("--dir")
            .arg(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.process = Some(process);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if self.process.as_mut().unwrap().try_wait()?.is_some() {
                return Err(io::Error::other("redis-server ended at once"));
            }
            // A connection to a port that nobody listens on yet may reach itself (simultaneous open, RFC 9293): that echoes.
            if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
                stream.set_read_timeout(Some(Duration::from_secs(1)))?;
                let mut answer = [0; 1];
                let _ = stream.write_all(b"PING\r\n").and_then(|()| stream.read(&mut answer));
                // Another server may have taken the port, and ours may not have ended yet. Redis says +PONG, or an error.
                let is_encrypted = self.args.iter().any(|arg| arg == "--tls-port");
                let is_redis = matches!(answer, [b'+' | b'-']) || is_encrypted && answer != *b"P";
                if is_redis && self.process.as_mut().unwrap().try_wait()?.is_none() {
                    return Ok(());
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The address of a bucket.
    pub(crate) fn bucket(&self, name: &str) -> String {
        bucket_at(self.port, name)
    }

    pub(crate) fn connect(&self) -> Connection {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap().get_connection().unwrap()
    }

    /// Has the server do something, like `FLUSHALL`.
    pub(crate) fn tell<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connect()).unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn bucket_at(port: u16, name: &str) -> String {
    format!("redis://127.0.0.1:{port}/{name}")
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    folders.find_map(|folder| {
        ["redis-server", "valkey-server"].map(|name| folder.join(name)).into_iter().find(|file| file.is_file())
    })
}

/// Never the same twice: two servers would both seem to answer there.
pub(crate) fn free_port() -> u16 {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        if TAKEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return port;
        }
    }
}

/// Hands everything on to `port`, each way `delay` later: a slow network. Where it can be reached.
pub(crate) fn slow_network(port: u16, delay: Duration) -> u16 {
    network(Arc::new(AtomicU16::new(port)), delay)
}

/// The same, to whatever `port` is when somebody connects.
pub(crate) fn network(port: Arc<AtomicU16>, delay: Duration) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let reachable = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port.load(Ordering::SeqCst))) else { return };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            hand_on(client.try_clone().unwrap(), server.try_clone().unwrap(), delay);
            hand_on(server, client, delay);
        }
    });
    reachable
}

/// Hands everything on to `port`, but not the first answer to a request with `word` in it: that connection ends. Where it can
/// be reached.
pub(crate) fn lossy_network(port: u16, word: &'static str) -> u16 {
    let (is_seen, is_lost) = (AtomicBool::new(false), AtomicBool::new(false));
    network_that_loses(port, move |is_server, part| {
        let has_word = part.windows(word.len()).any(|part| part == word.as_bytes());
        is_seen.fetch_or(!is_server && has_word, Ordering::SeqCst);
        is_server && is_seen.load(Ordering::SeqCst) && !is_lost.swap(true, Ordering::SeqCst)
    })
}

/// Hands everything on to `port`, but not the answer with this number, from 0: that connection ends. Where it can be
/// reached.
pub(crate) fn network_without_answer(port: u16, number: usize) -> u16 {
    let answers = AtomicUsize::new(0);
    network_that_loses(port, move |is_server, _| is_server && answers.fetch_add(1, Ordering::SeqCst) == number)
}

/// A connection ends instead of the message for which `loses` returns `true`. `loses` gets whether the server sent it.
fn network_that_loses(port: u16, loses: impl Fn(bool, &[u8]) -> bool + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let reachable = listener.local_addr().unwrap().port();
    let loses = Arc::new(loses);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)];
            for (mut from, mut to, is_server) in ways {
                let loses = Arc::clone(&loses);
                thread::spawn(move || {
                    let mut space = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from.read(&mut space) {
                        if loses(is_server, &space[..length]) || to.write_all(&space[..length]).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    reachable
}

/// Hands everything on to `port`, and counts how often a client speaks after the server has. Where it can be reached.
pub(crate) fn counted_network(port: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let reachable = listener.local_addr().unwrap().port();
    let turns = Arc::new(AtomicUsize::new(0));
    let (count, server_spoke) = (Arc::clone(&turns), Arc::new(AtomicBool::new(true)));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let ways = [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)];
            for (mut from, mut to, is_server) in ways {
                let (count, server_spoke) = (Arc::clone(&count), Arc::clone(&server_spoke));
                thread::spawn(move || {
                    let mut space = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from.read(&mut space) {
                        if server_spoke.swap(is_server, Ordering::SeqCst) && !is_server {
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        if to.write_all(&space[..length]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (reachable, turns)
}

/// Sends all that it reads on, `delay` later.
fn hand_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut space = vec![0; 1 << 16];
        while let Ok(length) = from.read(&mut space) {
            if length == 0 || send.send((Instant::now() + delay, space[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (time, bytes) in receive {
            thread::sleep(time.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
