//! The connection to the server: asking the script, and making sense of what comes back.

use super::address::Address;
use super::error::RedisError;
use redis::{Client, Cmd, Connection, ConnectionAddr, ErrorKind, IntoConnectionInfo, ServerErrorKind, Value};
use std::fmt;
use std::time::Duration;

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// How long to wait for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// How often in a row a cluster may send us on.
const MOVES: usize = 5;

const SCRIPT: &str = include_str!("bucket.lua");

/// The line of the script that reads the clock.
const READS_CLOCK: &str = "local clock = redis.call('TIME')";

/// For tests: time is what is asked with, in microseconds.
const TOLD_TIME: &str = "local clock = { 0, ARGV[#ARGV] }";

/// The arguments of a question.
pub(super) type Question = Vec<String>;

/// What the script says.
#[derive(Debug)]
pub(super) enum Said {
    Answer(Answer),
    /// It would take so many microseconds.
    TooLong(u64),
    Never,
}

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The limits, one a line, where they are not those that were named.
    pub(super) limits: Option<String>,
    /// Tells this bucket from those before it.
    pub(super) id: i64,
    /// The time there, in microseconds.
    pub(super) now: u64,
    /// Of the last grant.
    pub(super) number: u64,
    pub(super) numbers: Vec<i64>,
}

pub(super) struct Link {
    address: Address,
    key: String,
    script: String,
    /// SHA-1 of the script, by which the server knows it.
    hash: String,
    /// Where a cluster sent us.
    moved_to: Option<(String, u16)>,
    connection: Option<Connection>,
    pub(super) patience: Duration,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(address: Address, tells_time: bool) -> Self {
        let script = if tells_time { SCRIPT.replace(READS_CLOCK, TOLD_TIME) } else { SCRIPT.to_owned() };
        let hash = redis::Script::new(&script).get_hash().to_owned();
        let key = address.key();
        Link { address, key, script, hash, moved_to: None, connection: None, patience: ANSWER }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects, unless that is done.
    pub(super) fn connect(&mut self) -> Result<(), RedisError> {
        if self.connection.is_none() {
            self.connection = Some(self.connected().map_err(|error| self.told(&error))?);
        }
        Ok(())
    }

    /// Asks and waits for the answer. A connection that was closed meanwhile is opened again.
    pub(super) fn ask(&mut self, question: &Question) -> Result<Said, RedisError> {
        let was_connected = self.is_connected();
        self.connect()?;
        match self.exchange(question) {
            Err(error) if was_connected && error.is_connection_dropped() => {
                self.connect()?;
                self.exchange(question)
            }
            result => result,
        }
        .map_err(|error| self.told(&error))
        .and_then(|value| self.understood(value))
    }

    /// Asks; [`receive`](Self::receive) waits for the answer.
    pub(super) fn send(&mut self, question: &Question) -> Result<(), RedisError> {
        self.connect()?;
        self.send_as("EVALSHA", question).map_err(|error| self.told(&error))
    }

    /// The answer to what was sent. After an error it has to be asked again.
    pub(super) fn receive(&mut self) -> Result<Said, RedisError> {
        let value = self.answer().map_err(|error| self.told(&error))?;
        self.understood(value)
    }

    /// A server that does not know the script, as after a restart, gets it; a cluster's other node is asked instead.
    fn exchange(&mut self, question: &Question) -> Result<Value, redis::RedisError> {
        let mut moves = 0;
        loop {
            let result = self.send_as("EVALSHA", question).and_then(|()| self.answer());
            let Err(error) = result else { return result };
            if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
                return self.send_as("EVAL", question).and_then(|()| self.answer());
            }
            let Some((host, port)) = error.redirect_node().filter(|_| moves < MOVES) else { return Err(error) };
            moves += 1;
            self.moved_to = Some((host.to_owned(), port));
            self.connection = Some(self.connected()?);
        }
    }

    fn send_as(&mut self, name: &str, question: &Question) -> Result<(), redis::RedisError> {
        let script = if name == "EVAL" { &self.script } else { &self.hash };
        let mut command = Cmd::new();
        command.arg(name).arg(script).arg(1).arg(&self.key).arg(question);
        let connection = self.connection.as_mut().ok_or_else(closed)?;
        let sent = connection
            .set_read_timeout(Some(self.patience))
            .and_then(|()| connection.send_packed_command(&command.get_packed_command()));
        self.unless_broken(sent)
    }

    fn answer(&mut self) -> Result<Value, redis::RedisError> {
        let answer = self.connection.as_mut().ok_or_else(closed)?.recv_response();
        let answer = answer.and_then(|value| match value {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        });
        self.unless_broken(answer)
    }

    /// A connection on which anything but the server's own word went wrong is of no more use: what comes next there may
    /// be the answer to something else.
    fn unless_broken<T>(&mut self, result: Result<T, redis::RedisError>) -> Result<T, redis::RedisError> {
        if let Err(error) = &result
            && !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
        {
            self.connection = None;
        }
        result
    }

    fn connected(&self) -> Result<Connection, redis::RedisError> {
        let (host, port) = self.moved_to.as_ref().map_or(self.address.node(), |(host, port)| (host, *port));
        let host = host.to_owned();
        let node = if self.address.is_encrypted() {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = node.into_connection_info()?;
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name().set_db(self.address.database());
        if let Some(user) = self.address.user() {
            settings = settings.set_username(user);
        }
        if let Some(password) = self.address.password() {
            settings = settings.set_password(password);
        }
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))?;
        let connection = client.get_connection_with_timeout(CONNECT)?;
        connection.set_write_timeout(Some(CONNECT))?;
        Ok(connection)
    }

    /// What went wrong, and whether it may pass.
    fn told(&mut self, error: &redis::RedisError) -> RedisError {
        if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) {
            // Whoever comes back may be found at the first address again.
            (self.connection, self.moved_to) = (None, None);
        }
        let place = self.address.to_string();
        match error.kind() {
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => RedisError::NotRedis(place),
            ErrorKind::AuthenticationFailed => {
                let reason = "wrong user or password; if it has none, leave them out of the address";
                RedisError::Refused { place, reason: reason.to_owned() }
            }
            _ if may_pass(error) => RedisError::Away { place, reason: reason(error) },
            _ if error.code() == Some("NOAUTH") => {
                let reason = "it wants a password; write redis://:PASSWORD@host/NAME, best in THROTTLE_BUCKET";
                RedisError::Refused { place, reason: reason.to_owned() }
            }
            _ => RedisError::Refused { place, reason: reason(error) },
        }
    }

    fn understood(&self, value: Value) -> Result<Said, RedisError> {
        let (place, key) = (self.address.to_string(), self.key.clone());
        let words = words(value).ok_or_else(|| RedisError::NotRedis(place.clone()))?;
        let number = |at: usize| words.get(at).and_then(Word::number);
        match (words.first().and_then(Word::text), words.get(1)) {
            (Some("ok"), _) => answer(&words).map(Said::Answer).ok_or(RedisError::Damaged { place, key }),
            (Some("late"), _) => Ok(Said::TooLong(number(1).and_then(|wait| wait.try_into().ok()).unwrap_or(0))),
            (Some("never"), _) => Ok(Said::Never),
            (Some("unknown"), _) => Err(RedisError::Unknown(place)),
            (Some("newer"), Some(Word::Text(version))) if version.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(RedisError::Newer { place, version: version.clone() })
            }
            (Some("foreign" | "newer"), _) => Err(RedisError::Foreign { place, key }),
            _ => Err(RedisError::Damaged { place, key }),
        }
    }
}

fn closed() -> redis::RedisError {
    std::io::Error::from(std::io::ErrorKind::NotConnected).into()
}

enum Word {
    Text(String),
    Number(i64),
}

impl Word {
    fn text(&self) -> Option<&str> {
        match self {
            Word::Text(text) => Some(text),
            Word::Number(_) => None,
        }
    }

    fn number(&self) -> Option<i64> {
        match self {
            Word::Text(_) => None,
            Word::Number(number) => Some(*number),
        }
    }
}

fn words(value: Value) -> Option<Vec<Word>> {
    let Value::Array(values) = value else { return None };
    let word = |value| match value {
        Value::Int(number) => Some(Word::Number(number)),
        Value::BulkString(text) => String::from_utf8(text).ok().map(Word::Text),
        _ => None,
    };
    values.into_iter().map(word).collect()
}

/// See the end of the script.
fn answer(words: &[Word]) -> Option<Answer> {
    let limits = words.get(1)?.text()?;
    let number = |at: usize| words.get(at)?.number();
    Some(Answer {
        limits: (!limits.is_empty()).then(|| limits.to_owned()),
        id: number(2)?,
        now: number(3)?.try_into().ok()?,
        number: number(4)?.try_into().ok()?,
        numbers: words[5..].iter().map(Word::number).collect::<Option<_>>()?,
    })
}

/// Whether the server may be there, or ready, later.
fn may_pass(error: &redis::RedisError) -> bool {
    const PASSING: [&str; 9] =
        ["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MISCONF", "OOM", "NOREPLICAS"];
    let is_full = error.detail().is_some_and(|detail| detail.contains("max number of clients"));
    match error.kind() {
        ErrorKind::Io => !error.to_string().contains("certificate"),
        _ => is_full || error.code().is_some_and(|code| PASSING.contains(&code)),
    }
}

/// What the system or the server says. A server's words may repeat what we said to it, but never how we proved who we are.
fn reason(error: &redis::RedisError) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", ANSWER.as_secs());
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_reads_the_clock_in_one_place() {
        assert_eq!(SCRIPT.matches(READS_CLOCK).count(), 1);
        assert_eq!(SCRIPT.matches("'TIME'").count(), 1);
    }

    #[test]
    fn an_answer_has_limits_id_time_number_and_what_was_asked_for() {
        let text = |text: &str| Value::BulkString(text.into());
        let value = |numbers: &[i64]| {
            let numbers = numbers.iter().map(|number| Value::Int(*number));
            Value::Array([text("ok"), text("5/s")].into_iter().chain(numbers).collect())
        };
        let link = Link::new("redis://db/b".parse().unwrap(), false);
        let Ok(Said::Answer(found)) = link.understood(value(&[7, 8, 9, -1, 2])) else { panic!("an answer") };
        assert_eq!(found, Answer { limits: Some("5/s".into()), id: 7, now: 8, number: 9, numbers: vec![-1, 2] });
        assert!(matches!(link.understood(value(&[7, 8])), Err(RedisError::Damaged { .. })));
        assert!(matches!(link.understood(value(&[7, -8, 9])), Err(RedisError::Damaged { .. })));
        assert!(matches!(link.understood(Value::Okay), Err(RedisError::NotRedis(_))));
        let newer = |version| link.understood(Value::Array(vec![text("newer"), text(version)]));
        assert!(matches!(newer("2"), Err(RedisError::Newer { .. })));
        assert!(matches!(newer("mine"), Err(RedisError::Foreign { .. })));
    }
}
