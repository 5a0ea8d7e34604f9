//! One connection to a server. Each read or write has one deadline, however slowly the bytes arrive.

use super::address::{Address, Node};
use redis::{Cmd, ErrorKind, Parser, RedisError, Value, cmd};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes of an answer: a snapshot with the most keys, and its log.
const MAX_ANSWER_BYTES: usize = 1 << 24;

/// Errors about the key. After any other error, the server may send no more answers.
const OF_THE_KEY: [&str; 4] = ["ASK", "MOVED", "NOPERM", "WRONGTYPE"];

/// A connection. Nothing is sent when it is opened. The login and a command that reads the snapshot (the look) are sent
/// with the first request.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    parser: Parser,
    /// Whether the first answer is the answer to the login.
    is_logging_in: bool,
    /// Commands sent before the first request: the login, and the look.
    before: Vec<Cmd>,
    /// The number of unread answers to these commands.
    unread: usize,
    /// The answer to the look, unless it is an error.
    look_answer: Option<Value>,
}

/// A plain or an encrypted socket.
trait Stream: Read + Write + Send {
    fn timed(&mut self) -> &mut Timed;
}

/// A socket whose reads and writes end at a deadline.
struct Timed {
    socket: Socket,
    deadline: Instant,
    /// The most bytes of the answer that may still be read.
    bytes_left: usize,
}

impl Wire {
    pub(super) fn open(address: &Address, node: &Node, look: Vec<Cmd>, deadline: Instant) -> Result<Self, RedisError> {
        let timed = Timed { socket: connected(node, deadline)?, deadline, bytes_left: MAX_ANSWER_BYTES };
        let stream = match node {
            Node::Tcp(host, _) if address.tls => encrypted(host, timed)?,
            _ => Box::new(timed),
        };
        let login = address.password.as_ref().map(|password| cmd("AUTH").arg(&address.user).arg(password).clone());
        let (is_logging_in, before) = (login.is_some(), login.into_iter().chain(look).collect());
        Ok(Wire { stream, parser: Parser::new(), is_logging_in, before, unread: 0, look_answer: None })
    }

    pub(super) fn send(&mut self, command: &Cmd, deadline: Instant) -> Result<(), RedisError> {
        self.stream.timed().deadline = deadline;
        let before = std::mem::take(&mut self.before);
        self.unread += before.len();
        let commands = before.iter().chain([command]);
        self.stream.write_all(&commands.flat_map(Cmd::get_packed_command).collect::<Vec<u8>>())?;
        Ok(self.stream.flush()?)
    }

    /// Whether the login is unanswered or refused.
    pub(super) fn is_logging_in(&self) -> bool {
        self.is_logging_in
    }

    /// Whether the next request is the first, so that the look is sent with it.
    pub(super) fn looks(&self) -> bool {
        !self.before.is_empty()
    }

    /// The answer to the look; it is returned once.
    pub(super) fn look_answer(&mut self) -> Option<Value> {
        self.look_answer.take()
    }

    /// The whole answer to the previous request.
    pub(super) fn answer(&mut self, deadline: Instant) -> Result<Value, RedisError> {
        let timed = self.stream.timed();
        (timed.deadline, timed.bytes_left) = (deadline, MAX_ANSWER_BYTES);
        while self.unread > 0 {
            let answer = self.value()?.extract_error();
            self.unread -= 1;
            self.look_answer = match answer {
                Err(error) if self.is_logging_in => return Err(refused(error)),
                // The request gets the same error, or a better answer.
                Err(error) if error.code().is_some_and(|code| OF_THE_KEY.contains(&code)) => None,
                Err(error) => {
                    self.unread += 1; // The answer to the request is left out, if it comes at all.
                    return Err(error);
                }
                Ok(value @ (Value::BulkString(_) | Value::Nil | Value::Okay)) => Some(value),
                Ok(_) => return Err((ErrorKind::Parse, "this is not an answer").into()),
            };
            self.is_logging_in = false;
        }
        self.value()?.extract_error()
    }

    fn value(&mut self) -> Result<Value, RedisError> {
        let value = self.parser.parse_value(&mut self.stream);
        if self.stream.timed().bytes_left == 0 {
            Err((ErrorKind::Parse, "the answer is too long").into())
        } else {
            value
        }
    }
}

/// The tested servers answer a failed login with `WRONGPASS`, or with an error that AUTH was not needed.
fn refused(error: RedisError) -> RedisError {
    let is_about_login = error.code() == Some("WRONGPASS") || error.detail().is_some_and(|text| text.contains("AUTH"));
    if is_about_login { (ErrorKind::AuthenticationFailed, "the login failed").into() } else { error }
}

/// Connects to the first address that accepts. Each address of the host gets an equal part of the remaining time.
fn connected(node: &Node, deadline: Instant) -> io::Result<Socket> {
    let (domain_of, addresses): (fn(&SockAddr) -> Domain, Vec<SockAddr>) = match node {
        Node::Tcp(host, port) => (SockAddr::domain, looked_up(host, *port, deadline)?),
        Node::Unix(path) => (|_| Domain::UNIX, vec![SockAddr::unix(path)?]),
    };
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for (remaining, address) in (1..=u32::try_from(addresses.len()).unwrap_or(u32::MAX)).rev().zip(&addresses) {
        let socket = Socket::new(domain_of(address), Type::STREAM, None)?;
        result =
            time_left(deadline).and_then(|time| socket.connect_timeout(address, time / remaining)).map(|()| socket);
        if result.is_ok() {
            break;
        }
    }
    if let (Ok(socket), Node::Tcp(..)) = (&result, node) {
        socket.set_tcp_nodelay(true)?;
    }
    result
}

/// The addresses of a host. A lookup by the system cannot be cancelled: a thread that takes too long is left behind.
fn looked_up(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SockAddr>> {
    let place = (host.to_owned(), port);
    let look_up = move || Ok(place.to_socket_addrs()?.map(SockAddr::from).collect());
    if host.parse::<IpAddr>().is_ok() {
        return look_up();
    }
    let (sender, found) = mpsc::channel();
    // The receiver may be gone.
    let thread = thread::Builder::new().name("lookup".to_owned());
    thread.spawn(move || drop(sender.send(look_up()))).map_err(io::Error::other)?;
    found.recv_timeout(time_left(deadline)?).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The remaining time. It is never zero, because zero would mean no timeout.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let time = deadline.saturating_duration_since(Instant::now());
    if time < Duration::from_micros(1) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(time) }
}

/// A signal ends a read or write that has a timeout (signal(7)). Such a read or write is repeated until the deadline.
fn again<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        again(|| {
            self.socket.set_read_timeout(Some(time_left(self.deadline)?))?;
            let most = into.len().min(self.bytes_left);
            let length = self.socket.read(&mut into[..most])?;
            self.bytes_left -= length;
            Ok(length)
        })
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| {
            self.socket.set_write_timeout(Some(time_left(self.deadline)?))?;
            self.socket.write(bytes)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Timed {
    fn timed(&mut self) -> &mut Timed {
        self
    }
}

#[cfg(feature = "tls")]
impl Stream for rustls::StreamOwned<rustls::ClientConnection, Timed> {
    fn timed(&mut self) -> &mut Timed {
        &mut self.sock
    }
}

/// Encrypts. The certificate is checked against the roots that the system trusts.
#[cfg(feature = "tls")]
fn encrypted(host: &str, timed: Timed) -> Result<Box<dyn Stream>, RedisError> {
    let mut trusted = rustls::RootCertStore::empty();
    trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let session = rustls::ClientConnection::new(config.into(), name).map_err(io::Error::other)?;
    Ok(Box::new(rustls::StreamOwned::new(session, timed)))
}

/// [`Redis::open`](super::Redis::open) refuses such an address.
#[cfg(not(feature = "tls"))]
fn encrypted(_: &str, _: Timed) -> Result<Box<dyn Stream>, RedisError> {
    Err(io::Error::from(io::ErrorKind::Unsupported).into())
}
