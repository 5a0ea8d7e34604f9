//! The connection to the server: sends requests to the script and parses the answers.

use super::address::{Address, KEYS, Node};
use super::error::RedisError;
use super::patience::Patience;
use super::wire::Wire;
use crate::clock::Nanos;
use crate::ledger::operation::Record;
use crate::limits::{from_bytes, to_bytes};
use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// The most time for a connection and the whole answer together.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Keys examined in one step of a scan: more would block the server for over half a millisecond.
const KEYS_PER_SCAN: u32 = 500;

/// The most redirections in a row that are followed in a cluster.
const MAX_MOVES: usize = 5;

const SCRIPT: &str = include_str!("log.lua");

/// The line of the script that reads the clock.
const READS_CLOCK: &str = "local clock = redis.call('TIME')";

/// For tests: replaces that line, so that the time comes as an argument, in microseconds.
const TIME_FROM_ARGS: &str = "local clock = { 0, ARGV[10] }";

/// The arguments of a request.
pub(super) type Question = Vec<Vec<u8>>;

/// The first argument of a request for the log, and for the snapshot if it is needed.
pub(super) const WHOLE: &[u8] = b"whole";

/// The first argument of a request for the log alone, when the snapshot is read by another command.
const LOG: &[u8] = b"log";

/// The first argument of a request that removes the bucket.
pub(super) const REMOVE: &[u8] = b"remove";

/// The script's answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// Whether the log is everything since the snapshot, rather than everything since the position in the request.
    pub(super) is_anew: bool,
    /// Identifies this bucket among earlier ones at the same key: the time when it was made.
    pub(super) id: u64,
    /// The bucket's time, in microseconds.
    pub(super) now: u64,
    /// The position in the log after the snapshot.
    pub(super) first: u64,
    /// The stamp of the last operation in the snapshot; zeros if there is none.
    pub(super) folded: Stamp,
    /// The snapshot of everything before `first`, if there is one and the client lacks it: see [`is_of`].
    pub(super) snapshot: Vec<u8>,
    /// Operations, each with its stamp: see [`framed`].
    pub(super) log: Vec<u8>,
}

/// Microseconds, the highest byte first.
pub(super) type Stamp = [u8; 8];

/// A record as in the log, but without the stamp behind it, which the script writes.
pub(super) fn framed(record: &Record) -> Vec<u8> {
    to_bytes(&to_bytes(record))
}

/// The first record of a log, its stamp, and the rest of the log; `None` if the log is damaged.
pub(super) fn unframed(log: &[u8]) -> Option<(Record, Stamp, &[u8])> {
    let (record, rest) = from_bytes::<&[u8]>(log)?;
    let (stamp, rest) = rest.split_first_chunk()?;
    let (record, _) = from_bytes::<Record>(record)?;
    let time = u64::from_be_bytes(*stamp).saturating_mul(MICROSECOND);
    Some((Record { time, ..record }, *stamp, rest))
}

/// The server counts in microseconds.
pub(super) const MICROSECOND: Nanos = 1_000;

pub(super) struct Link {
    pub(super) address: Address,
    script: String,
    /// SHA-1 of the script, which identifies it on the server.
    hash: String,
    /// The node to which a cluster redirected us.
    moved_to: Option<Node>,
    connection: Option<Wire>,
    patience: Duration,
    deadline: Instant,
}

impl Link {
    pub(super) fn new(address: Address, tells_time: bool) -> Self {
        let mut script = if tells_time { SCRIPT.replace(READS_CLOCK, TIME_FROM_ARGS) } else { SCRIPT.to_owned() };
        // The script selects the database itself. Otherwise, after a failed SELECT, it would run in another database.
        if address.database > 0 {
            script.insert_str(0, &format!("redis.call('SELECT', '{}')\n", address.database));
        }
        let hash = redis::Script::new(&script).get_hash().to_owned();
        Link {
            address,
            script,
            hash,
            moved_to: None,
            connection: None,
            patience: ANSWER_TIMEOUT,
            deadline: Instant::now(),
        }
    }

    /// Starts the timeout for the next request and its answer.
    pub(super) fn begin(&mut self, patience: Duration) {
        (self.patience, self.deadline) = (patience, Instant::now() + patience);
    }

    /// Connects, unless connected.
    pub(super) fn connect(&mut self) -> Result<(), RedisError> {
        if self.connection.is_none() {
            self.connection = Some(self.connected().map_err(|error| self.failure(&error))?);
        }
        Ok(())
    }

    /// Possible buckets on the server, sorted by name. A scan may return a key twice.
    pub(super) fn buckets(&mut self, patience: &Patience) -> Result<Vec<Address>, RedisError> {
        let (mut cursor, mut found) = (0, BTreeMap::new());
        loop {
            let (next, keys) = patience.insist(|| self.scan(cursor))?;
            let addresses = keys.iter().filter_map(|key| self.address.of_key(key));
            found.extend(addresses.map(|address| (address.key(), address)));
            cursor = next;
            if cursor == 0 {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// One step of a scan of all keys. Returns some keys with the prefix of buckets and the cursor of the next step; 0
    /// at the end.
    fn scan(&mut self, cursor: u64) -> Result<(u64, Vec<Vec<u8>>), RedisError> {
        self.begin(ANSWER_TIMEOUT);
        self.connect()?;
        let value = self.scanned(cursor).map_err(|error| self.failure(&error))?;
        redis::from_redis_value(value).map_err(|_| RedisError::NotRedis(self.address.to_string()))
    }

    fn scanned(&mut self, cursor: u64) -> Result<Value, redis::RedisError> {
        if self.address.database > 0 {
            self.send_command(redis::cmd("SELECT").arg(self.address.database))?;
            self.answer()?;
        }
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{KEYS}*")).arg("COUNT").arg(KEYS_PER_SCAN);
        self.send_command(&scan)?;
        self.answer()
    }

    /// Closes the connection. The next request connects again.
    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    /// Sends a request and waits for the answer. Sends it again in three cases:
    ///
    /// - on a new connection, if the old one was closed before
    /// - with the script, if the server does not have it, for example after a restart
    /// - to another node, if a cluster has moved the bucket there; during the move the bucket is away
    pub(super) fn ask(&mut self, question: &Question) -> Result<Answer, RedisError> {
        let (mut name, mut was_connected, mut moves) = ("EVALSHA", self.connection.is_some(), 0);
        loop {
            self.connect()?;
            let error = match self.send_as(name, question).and_then(|()| self.answer()) {
                Ok(value) => match self.complete(value)? {
                    Some(answer) => return Ok(answer),
                    // Another client wrote a snapshot in between. The repeated request returns it.
                    None if moves < MAX_MOVES => {
                        moves += 1;
                        continue;
                    }
                    None => return Err(RedisError::Damaged(self.address.to_string(), self.address.key())),
                },
                Err(error) => error,
            };
            match error.kind() {
                _ if was_connected && error.is_connection_dropped() => was_connected = false,
                ErrorKind::Server(ServerErrorKind::NoScript) if name != "EVAL" => name = "EVAL",
                ErrorKind::Server(ServerErrorKind::Moved) if moves < MAX_MOVES => {
                    self.moved_to = error.redirect_node().and_then(|(node, _)| self.node_at(node));
                    (self.connection, moves) = (None, moves + 1);
                }
                _ => return Err(self.failure(&error)),
            }
        }
    }

    /// Sends a request; [`receive`](Self::receive) waits for the answer.
    pub(super) fn send(&mut self, question: &Question) -> Result<(), RedisError> {
        self.begin(ANSWER_TIMEOUT);
        self.connect()?;
        self.send_as("EVALSHA", question).map_err(|error| self.failure(&error))
    }

    /// The answer to the request that was sent. After an error the request must be sent again.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Answer, RedisError> {
        self.begin(patience);
        let value = self.answer().map_err(|error| self.failure(&error))?;
        self.complete(value)?.ok_or_else(|| self.failure(&closed()))
    }

    /// The answer, completed with the snapshot that was read by the other command. `None` if the log does not continue
    /// that snapshot.
    fn complete(&mut self, value: Value) -> Result<Option<Answer>, RedisError> {
        let mut answer = self.understood(value)?;
        let look_answer = self.connection.as_mut().and_then(Wire::look_answer);
        if answer.is_anew && answer.first > 0 && answer.snapshot.is_empty() {
            let Some(Value::BulkString(snapshot)) = look_answer else { return Ok(None) };
            answer.snapshot = snapshot;
            return Ok(is_of(&answer).then_some(answer));
        }
        Ok(Some(answer))
    }

    fn node(&self) -> &Node {
        self.moved_to.as_ref().unwrap_or(&self.address.node)
    }

    /// Parses `HOST:PORT`; without a host it is the host that sent the redirection.
    fn node_at(&self, node: &str) -> Option<Node> {
        let (host, port) = node.rsplit_once(':')?;
        let host = match self.node() {
            Node::Tcp(here, _) if host.is_empty() => here,
            _ => host.trim_matches(['[', ']']),
        };
        Some(Node::Tcp(host.to_owned(), port.parse().ok()?))
    }

    fn send_as(&mut self, name: &str, question: &Question) -> Result<(), redis::RedisError> {
        let script = if name == "EVAL" { &self.script } else { &self.hash };
        let looks = name == "EVALSHA" && self.connection.as_ref().is_some_and(Wire::looks);
        let what = if looks && question[0] == WHOLE { LOG } else { &question[0] };
        let mut command = Cmd::new();
        command.arg(name).arg(script).arg(1).arg(self.address.key()).arg(what).arg(&question[1..]);
        self.send_command(&command)
    }

    fn send_command(&mut self, command: &Cmd) -> Result<(), redis::RedisError> {
        let sent = self.connection.as_mut().ok_or_else(closed)?.send(command, self.deadline);
        self.unless_broken(sent)
    }

    fn answer(&mut self) -> Result<Value, redis::RedisError> {
        let answer = self.connection.as_mut().ok_or_else(closed)?.answer(self.deadline);
        self.unless_broken(answer)
    }

    /// Drops the connection after any error except the server's own. The next data on it could be the answer to an
    /// earlier request.
    fn unless_broken<T>(&mut self, result: Result<T, redis::RedisError>) -> Result<T, redis::RedisError> {
        if let Err(error) = &result
            && (!matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
                || self.connection.as_ref().is_some_and(Wire::is_logging_in))
        {
            self.connection = None;
        }
        result
    }

    fn connected(&self) -> Result<Wire, redis::RedisError> {
        // A client that connects usually has no ledger, or was away for long. So it reads the snapshot by a separate
        // command. Inside the script, that would take 1.6 ns of the server's time for each byte, because Lua hashes all
        // its strings.
        let mut look = vec![redis::cmd("HGET").arg(self.address.key()).arg("s").clone()];
        if self.address.database > 0 {
            look.insert(0, redis::cmd("SELECT").arg(self.address.database).clone());
        }
        Wire::open(&self.address, self.node(), look, self.deadline)
    }

    /// Converts an error, with its reason and whether it may pass. Drops the connection if the server may have been
    /// replaced.
    pub(super) fn failure(&mut self, error: &redis::RedisError) -> RedisError {
        let passes = may_pass(error);
        if passes || !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) {
            // A replacement server may be at the first address, or behind the same name.
            (self.connection, self.moved_to) = (None, None);
        }
        let place = self.address.to_string();
        let refused = |reason: &str| RedisError::Refused(place.clone(), reason.to_owned());
        match error.kind() {
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => RedisError::NotRedis(place),
            ErrorKind::AuthenticationFailed => {
                refused("wrong user or password; if the server has none, leave them out of the address")
            }
            ErrorKind::Io if passes => RedisError::Away(place, self.reason(error) + &self.address.parts()),
            _ if passes => RedisError::NotReady(place, self.reason(error), advice(error)),
            // A server that needs a password rejects a long request before it parses it.
            _ if error.code() == Some("NOAUTH") || error.to_string().contains("unauthenticated") => refused(
                "it needs a password; write ?password-file=PATH at the end, or redis://:PASSWORD@host/NAME in THROTTLE_BUCKET",
            ),
            _ => refused(&self.reason(error)),
        }
    }

    /// The message of the system or the server. A server may repeat our request, but our password is never shown.
    /// Terminal control characters are escaped.
    fn reason(&self, error: &redis::RedisError) -> String {
        if error.is_timeout() {
            let patience = u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX);
            return format!("no answer within {}", crate::clock::shown(patience));
        }
        let message = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
        };
        let message = match &self.address.password {
            Some(password) if !password.is_empty() => message.replace(password.as_str(), "…"),
            _ => message,
        };
        let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        message.chars().take(500).map(shown).collect()
    }

    pub(super) fn understood(&self, value: Value) -> Result<Answer, RedisError> {
        let (place, key) = (self.address.to_string(), self.address.key());
        let Value::Array(words) = value else { return Err(RedisError::NotRedis(place)) };
        let text = |index| if let Some(Value::BulkString(word)) = words.get(index) { Some(&word[..]) } else { None };
        match (text(0), text(1)) {
            (Some(b"ok" | b"anew"), _) => answer(words).ok_or(RedisError::Damaged(place, key)),
            (Some(b"removed"), _) => Ok(Answer::default()),
            (Some(b"unknown"), _) => Err(RedisError::Unknown(place)),
            (Some(b"format"), Some(version)) if version.len() < 20 && version.iter().all(u8::is_ascii_digit) => {
                Err(RedisError::Format(place, key, String::from_utf8_lossy(version).into_owned()))
            }
            (Some(b"foreign" | b"format"), _) => Err(RedisError::Foreign(place, key)),
            _ => Err(RedisError::Damaged(place, key)),
        }
    }
}

fn closed() -> redis::RedisError {
    io::Error::from(io::ErrorKind::NotConnected).into()
}

/// See the end of the script.
fn answer(words: Vec<Value>) -> Option<Answer> {
    use Value::{BulkString, Int};
    let words = <[Value; 7]>::try_from(words).ok()?;
    let [BulkString(kind), Int(id), Int(now), Int(first), BulkString(folded), BulkString(snapshot), BulkString(log)] =
        words
    else {
        return None;
    };
    let [id, now, first] = [u64::try_from(id).ok()?, u64::try_from(now).ok()?, u64::try_from(first).ok()?];
    Some(Answer { is_anew: kind == b"anew", id, now, first, folded: folded.try_into().ok()?, snapshot, log })
}

/// Whether the snapshot belongs to this bucket and covers everything before the log of this answer.
fn is_of(answer: &Answer) -> bool {
    from_bytes(&answer.snapshot).is_some_and(|(head, _)| (answer.id, answer.first) == head)
}

/// Whether the server may come back, or become ready, later.
fn may_pass(error: &redis::RedisError) -> bool {
    const PASSING: &str = " ASK BUSY CLUSTERDOWN LOADING MASTERDOWN MISCONF MOVED NOREPLICAS OOM READONLY TRYAGAIN ";
    let is_full = error.detail().is_some_and(|detail| detail.contains("max number of clients"));
    match error.kind() {
        ErrorKind::Io => !error.to_string().contains("certificate"),
        _ => is_full || error.code().is_some_and(|code| PASSING.contains(&format!(" {code} "))),
    }
}

/// The advice for an error that may pass.
fn advice(error: &redis::RedisError) -> &'static str {
    match error.code().unwrap_or_default() {
        "READONLY" => "it is a replica: name the primary server in the address",
        "OOM" => "its memory is full: raise its maxmemory, or remove other data from it",
        "MISCONF" => "it cannot save its data: see its log",
        "NOREPLICAS" => "too few replicas are connected: connect them, or lower its min-replicas-to-write",
        "BUSY" => "a script blocks it: to end that script, redis-cli SCRIPT KILL",
        "LOADING" => "it is still starting: wait until it has loaded its data",
        "ERR" => "raise its maxclients, or close other connections",
        _ => "its cluster is changing: to see the state, redis-cli CLUSTER INFO",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::operation::Operation;

    #[test]
    fn the_script_reads_the_clock_in_one_place() {
        assert_eq!(SCRIPT.matches(READS_CLOCK).count(), 1);
        assert_eq!(SCRIPT.matches("'TIME'").count(), 1);
        let lines = SCRIPT.lines().filter(|line| !line.is_empty() && !line.trim_start().starts_with("--"));
        assert!(lines.count() <= 60, "the script does not interpret limits");
    }

    #[test]
    fn an_answer_has_id_time_places_snapshot_and_log() {
        let word = |word: &&str| word.parse().map_or_else(|_| Value::BulkString((*word).into()), Value::Int);
        let value = |words: &[&str]| Value::Array(words.iter().map(word).collect());
        let link = Link::new("redis://db/b".parse().unwrap(), false);
        let found = link.understood(value(&["anew", "7", "8", "6", "stamped.", "", "a b"])).unwrap();
        let (folded, log) = (*b"stamped.", b"a b".to_vec());
        assert_eq!(found, Answer { is_anew: true, id: 7, now: 8, first: 6, folded, snapshot: vec![], log });
        for wrong in [&["ok", "7"][..], &["ok", "7", "-8", "6", "stamped.", "", ""], &["damaged"]] {
            assert!(matches!(link.understood(value(wrong)), Err(RedisError::Damaged(..))), "{wrong:?}");
        }
        assert!(matches!(link.understood(Value::Okay), Err(RedisError::NotRedis(_))));
        assert!(matches!(
            link.understood(Value::Array(vec![Value::BulkString(b"format".into()), Value::BulkString(b"12".into())])),
            Err(RedisError::Format(..))
        ));
        assert!(matches!(link.understood(value(&["format", "mine"])), Err(RedisError::Foreign(..))));
    }

    #[test]
    fn a_record_is_read_back_and_a_torn_one_is_refused() {
        let record =
            Record { time: 7 * MICROSECOND, owner: [1, u64::MAX], sequence: 3, operations: vec![Operation::Here] };
        let log = [&framed(&record)[..], &7_u64.to_be_bytes(), b"more"].concat();
        assert_eq!(unframed(&log), Some((record, 7_u64.to_be_bytes(), &b"more"[..])));
        for length in 0..log.len() - 4 {
            assert_eq!(unframed(&log[..length]), None, "{length} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_answer_of_a_server_is_understood_or_refused(
            resp in "([*$:+-][0-9]{1,2}\r\n|\\*(3|5|7|8)\r\n|:-?[0-9]{1,19}\r\n|\\$2\r\nok\r\n|\\$3\r\n5/s\r\n|[ -~]){0,12}",
            log: Vec<u8>, kind in 0_u8..4, length: u16,
        ) {
            crate::fuzzing::redis_answer(resp.as_bytes());
            crate::fuzzing::redis_answer(&[&[kind], &length.to_le_bytes()[..], &log].concat());
        }
    }
}
