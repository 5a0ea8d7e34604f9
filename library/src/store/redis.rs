//! Limits on a Redis or Valkey server, shared by any number of machines.
//!
//! The server keeps the log of a bucket and does not interpret limits. A script stamps each operation with the server's
//! time and appends it, atomically and in one round trip. Every client folds the same log.

use super::{RETURN_TIMEOUT, Store, StoreError, View, check, random};
use crate::clock::sync::unpoisoned;
use crate::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use crate::ledger::operation::{Operation, Owner, Record};
use crate::ledger::{PRESENCE_TTL, Replica};
use crate::limits::{Policy, from_bytes, to_bytes};
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

mod address;
mod clock;
mod error;
mod fuzzing;
mod link;
mod patience;
mod wire;

use crate::store::round_trip::RoundTrip;
pub use address::{Address, AddressError};
use clock::ServerClock;
pub use error::RedisError;
pub use fuzzing::redis_answer;
use link::{Answer, Link, MICROSECOND, Question, Stamp, framed, unframed};
pub use patience::{Patience, Trouble};

/// A grant is committed when it is due by now and this time, at least.
const MIN_HORIZON: Nanos = 10 * MILLISECOND;

/// The least bytes of folded log after which a client writes the next snapshot: about 16 operations. A step takes the
/// server 5 ns more for each byte of the log, and 2 ns for each byte of a snapshot. To write long snapshots less often,
/// the threshold also has one byte for each `SNAPSHOT_PER_LOG` bytes of the snapshot.
const MIN_LOG_BYTES: u64 = 500;
const SNAPSHOT_PER_LOG: u64 = 32;

/// From this round trip on, a process does not wait for an answer: units leave until it arrives.
const MIN_POSTED: Nanos = 2 * MILLISECOND;

/// A process begins to wait for an answer by this time, at most, before it is expected.
const MAX_EARLIER: Nanos = 2 * MILLISECOND;

/// How often a waiting process reports its presence. A process without a report for [`PRESENCE_TTL`] has ended.
const PRESENCE_INTERVAL: Nanos = 4 * SECOND;

/// How often a process reports its round trip, if that is about the same.
const REPORT_INTERVAL: Nanos = 20 * SECOND;

/// The address of a bucket, and its content or the reason why that cannot be read.
type Found = (Address, Result<View, StoreError>);

/// Limits on a server.
pub struct Redis {
    address: Address,
    clock: ServerClock,
    patience: Patience,
    owner: Owner,
    /// Locked while a request is under way, which may take long if the server is away.
    state: Mutex<State>,
    /// The bucket as far as it is known. It is never locked while a request is under way, so everybody can read it.
    ledger: Mutex<Replica>,
    round_trip: Mutex<RoundTrip>,
}

/// The connection, how much of the log was read, and the requests under way.
struct State {
    link: Link,
    /// The policy for making the bucket.
    policy: Option<Policy>,
    /// Identifies the bucket of the ledger; 0 before the first answer.
    id: u64,
    /// The position in the log of the first operation that the ledger does not include.
    next: u64,
    /// The stamp of the last operation in the ledger.
    stamp: Stamp,
    /// The position in the log after the latest known snapshot.
    first: u64,
    /// The length of the latest snapshot that was read or written.
    saved: u64,
    /// The bucket's time in the last answer, in microseconds, and the time of that request on our clock.
    last_answer: (u64, Nanos),
    /// Counts our operations.
    sequence: u64,
    pending: Option<Pending>,
    /// The round trip that was reported last, and when.
    reported: (Nanos, Nanos),
}

/// A request without an answer yet.
struct Pending {
    record: Option<Record>,
    /// When it was sent, on our clock, and when the answer is expected.
    sent_at: Nanos,
    expected: Nanos,
}

impl State {
    /// The next request is for another bucket on the same server. Its first answer replaces the ledger.
    fn turn_to(&mut self, address: &Address) {
        self.link.address = address.clone();
        (self.id, self.next, self.first) = (0, 0, 0);
    }

    /// Whether the log is long enough to be replaced by a snapshot.
    fn is_due(&self) -> bool {
        self.next.saturating_sub(self.first) >= MIN_LOG_BYTES + self.saved / SNAPSHOT_PER_LOG
    }
}

impl Redis {
    /// The bucket at `address`. If it does not exist, it is made with `policy`.
    ///
    /// # Errors
    /// [`RedisError`]. If the server is away, the error is returned only after `patience` is over.
    pub fn open(address: Address, policy: Option<&Policy>, patience: Patience) -> Result<Self, StoreError> {
        Redis::unasked(address, policy, patience)?.requested()
    }

    /// Like [`open`](Self::open), but sends no request yet, so that a unit can be taken in a single round trip. The
    /// bucket may turn out to keep other limits than `policy`.
    ///
    /// # Errors
    /// [`RedisError`]
    pub fn unasked(address: Address, policy: Option<&Policy>, patience: Patience) -> Result<Self, StoreError> {
        Redis::new(address, policy, patience, ServerClock::new())
    }

    /// Like [`open`](Self::open), but `clock` replaces the server's clock, rounded down to microseconds: for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on_fake(address: Address, policy: Option<&Policy>, clock: FakeClock) -> Result<Self, StoreError> {
        Redis::new(address, policy, Patience::none(), ServerClock::Shared(clock))?.requested()
    }

    /// All buckets on the server of `address`, sorted by name, whatever bucket the address names. In a cluster, the
    /// buckets of that node.
    ///
    /// # Errors
    /// [`RedisError`], if the server cannot be used.
    pub fn list(address: Address, patience: Patience) -> Result<Vec<Found>, StoreError> {
        let mut redis = Redis::unasked(address, None, patience)?;
        let addresses = redis.state().link.buckets(&redis.patience)?;
        let mut found = Vec::new();
        for address in addresses {
            redis.address = address.clone();
            redis.state().turn_to(&address);
            match redis.view() {
                Err(StoreError::Redis(RedisError::Unknown(_) | RedisError::Foreign(..))) => {}
                // Such an error concerns one bucket, on a server that can be used.
                view @ (Ok(_) | Err(StoreError::Redis(RedisError::Damaged(..) | RedisError::Format(..)))) => {
                    found.push((address, view));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Removes the bucket, even a damaged one. Clients that use it make it again with the limits that they know.
    ///
    /// # Errors
    /// [`RedisError`]; nothing is removed then.
    pub fn remove(&self) -> Result<(), StoreError> {
        let state = &mut *self.state();
        self.finish(state, link::ANSWER_TIMEOUT)?;
        let mut question = self.question(state, None);
        question[0] = link::REMOVE.to_vec();
        self.patience.insist(|| {
            state.link.begin(link::ANSWER_TIMEOUT);
            state.link.ask(&question)
        })?;
        Ok(())
    }

    fn new(
        address: Address,
        policy: Option<&Policy>,
        patience: Patience,
        clock: ServerClock,
    ) -> Result<Self, StoreError> {
        if address.tls && !cfg!(feature = "tls") {
            return Err(RedisError::NoTls(address.to_string()).into());
        }
        policy.map_or(Ok(()), check)?;
        let address = address.with_password()?;
        let link = Link::new(address.clone(), matches!(clock, ServerClock::Shared(_)));
        let ledger = Replica::new(policy.unwrap_or(&Policy::default()), 0, 0, MIN_HORIZON);
        let state = State {
            link,
            policy: policy.cloned(),
            id: 0,
            next: 0,
            stamp: [0; 8],
            first: 0,
            saved: 0,
            last_answer: (0, 0),
            sequence: 0,
            pending: None,
            reported: (0, 0),
        };
        let owner = [random(), 0];
        let (state, ledger, round_trip) = (Mutex::new(state), Mutex::new(ledger), Mutex::default());
        Ok(Redis { address, clock, patience, owner, state, ledger, round_trip })
    }

    /// Requests the bucket from the server, which makes it if it does not exist.
    fn requested(self) -> Result<Self, StoreError> {
        self.ask(&mut self.state(), Vec::new())?;
        Ok(self)
    }

    /// Sends operations, or only reads the log if there are none. Waits for the answer as long as `patience` allows. If the
    /// answer was lost, the same record is sent again. Returns the time of the server.
    fn ask(&self, state: &mut State, operations: Vec<Operation>) -> Result<Nanos, StoreError> {
        let patience = if self.patience.is_over() { RETURN_TIMEOUT } else { link::ANSWER_TIMEOUT };
        // Otherwise the answer under way would be taken for the answer to this request.
        self.finish(state, patience)?;
        let record = (!operations.is_empty()).then(|| self.record(state, operations));
        self.ask_now(state, record.as_ref(), patience)
    }

    /// Sends a record, or only reads the log, and waits for the answer. Returns the time of the server.
    fn ask_now(&self, state: &mut State, record: Option<&Record>, patience: Duration) -> Result<Nanos, StoreError> {
        let answer = |state: &mut State| {
            state.link.begin(patience);
            state.link.connect()?;
            let sent_at = self.clock.local();
            let question = self.question(state, record);
            let answer = state.link.ask(&question)?;
            let took = self.learn(state, &answer, sent_at);
            unpoisoned(self.round_trip.lock()).took(took);
            Ok(answer)
        };
        let is_short = patience < link::ANSWER_TIMEOUT;
        let answer = if is_short { answer(state) } else { self.patience.insist(|| answer(state)) }?;
        self.fold(state, &answer)?;
        Ok(answer.now.saturating_mul(MICROSECOND))
    }

    /// Makes our next record.
    fn record(&self, state: &mut State, operations: Vec<Operation>) -> Record {
        state.sequence += 1;
        Record { time: 0, owner: self.owner, sequence: state.sequence, operations }
    }

    /// Updates the clock from the bucket's time in an answer. Returns how long the round trip took.
    fn learn(&self, state: &mut State, answer: &Answer, sent_at: Nanos) -> Nanos {
        let read = self.clock.local();
        self.clock.learn(answer.now.saturating_mul(MICROSECOND), sent_at, read);
        state.last_answer = (answer.now, sent_at);
        read.saturating_sub(sent_at)
    }

    /// See the comment at the head of the script.
    fn question(&self, state: &mut State, record: Option<&Record>) -> Question {
        let ledger = self.ledger();
        // Since the previous request, the server's clock cannot have advanced more than ours.
        let (there, here) = state.last_answer;
        let expected = if there == 0 { 0 } else { there + self.clock.local().saturating_sub(here) / MICROSECOND + 1 };
        // A server that has lost the bucket makes it again with empty buckets, because the initial burst was granted
        // before.
        let make = |policy: &Policy| {
            let anew =
                Operation::Clear { anew: Some(policy.clone()), is_empty: state.id > 0, number: random(), key: None };
            framed(&Record { time: 0, owner: self.owner, sequence: 0, operations: vec![anew] })
        };
        let policy = if state.id == 0 { state.policy.as_ref() } else { Some(ledger.policy()) };
        let mut snapshot = Vec::new();
        if state.is_due() {
            snapshot = to_bytes(&(state.id, state.next, &*ledger));
            state.saved = snapshot.len() as u64;
        }
        vec![
            link::WHOLE.to_vec(),
            state.id.to_string().into_bytes(),
            state.next.to_string().into_bytes(),
            state.stamp.to_vec(),
            record.map(framed).unwrap_or_default(),
            policy.map(make).unwrap_or_default(),
            expected.to_string().into_bytes(),
            snapshot,
            life(&ledger).to_string().into_bytes(),
            // Only a test's script reads this argument.
            (self.clock.now() / MICROSECOND).to_string().into_bytes(),
        ]
    }

    /// Folds the new records.
    fn fold(&self, state: &mut State, answer: &Answer) -> Result<(), RedisError> {
        let damaged = || RedisError::Damaged(self.address.to_string(), self.address.key());
        let mut ledger = self.ledger();
        if answer.is_anew {
            *ledger = match from_bytes(&answer.snapshot) {
                _ if answer.first == 0 => Replica::new(&Policy::default(), 0, 0, MIN_HORIZON),
                Some(((id, first, saved), _)) if (id, first) == (answer.id, answer.first) => saved,
                _ => return Err(damaged()),
            };
            (state.id, state.next, state.stamp) = (answer.id, answer.first, answer.folded);
            state.saved = answer.snapshot.len() as u64;
        }
        let mut log = &answer.log[..];
        while !log.is_empty() {
            let (record, stamp, rest) = unframed(log).ok_or_else(damaged)?;
            ledger.apply(&record);
            (state.next, state.stamp) = (state.next + (log.len() - rest.len()) as u64, stamp);
            log = rest;
        }
        state.first = answer.first;
        ledger.advance(answer.now.saturating_mul(MICROSECOND));
        Ok(())
    }

    /// Sends a record, or a snapshot, without waiting for the answer. Returns when the answer is expected, on our clock.
    fn begin(&self, state: &mut State, record: Option<Record>) -> Nanos {
        let question = self.question(state, record.as_ref());
        let (sent_at, usual) = (self.clock.local(), self.round_trip());
        // A little earlier, to notice a shorter round trip.
        let expected = sent_at.saturating_add(usual - (usual / 16).min(MAX_EARLIER));
        // After an error, the request is sent again when its answer is to be received.
        let _ = state.link.send(&question);
        state.pending = Some(Pending { record, sent_at, expected });
        expected
    }

    /// Receives the answer to the pending request. If the answer was lost, the same record is sent again.
    fn finish(&self, state: &mut State, patience: Duration) -> Result<(), StoreError> {
        let Some(pending) = state.pending.take() else { return Ok(()) };
        // An answer that nobody has awaited says nothing about the round trip.
        let is_awaited = self.clock.local() <= pending.expected.saturating_add(MAX_EARLIER);
        if let Ok(answer) = state.link.receive(patience) {
            let took = self.learn(state, &answer, pending.sent_at);
            if is_awaited {
                unpoisoned(self.round_trip.lock()).took(took);
            }
            return Ok(self.fold(state, &answer)?);
        }
        let result = self.ask_now(state, pending.record.as_ref(), patience).map(drop);
        if result.is_err() {
            state.pending = Some(pending);
        }
        result
    }

    /// What the server must be told beside `operations`: that this process is alive, its round trip, and who is gone.
    fn with_news(&self, state: &mut State, mut operations: Vec<Operation>) -> Vec<Operation> {
        let (now, ledger) = (self.clock.now(), self.ledger());
        let ours = ledger.owners().find(|(owner, _)| *owner == self.owner).map(|(_, seen)| seen);
        let waits =
            ours.is_some() || operations.iter().any(|one| matches!(one, Operation::Ask(_) | Operation::Want(_)));
        let round_trip = self.round_trip();
        let ((known, at), least) = (state.reported, MIN_HORIZON);
        let is_other = known.abs_diff(round_trip) > known / 4 && known.max(round_trip) > least;
        let is_old = round_trip > least && now >= at.saturating_add(REPORT_INTERVAL);
        if waits && (is_other || is_old) {
            state.reported = (round_trip, now);
            operations.push(Operation::RoundTrip(round_trip));
        }
        let silent = ledger.owners().filter(|(_, seen)| now.saturating_sub(*seen) >= PRESENCE_TTL);
        let gone = silent.filter(|(owner, _)| *owner != self.owner);
        operations.extend(gone.map(|(owner, seen)| Operation::Gone { owner, seen }));
        if operations.is_empty() && ours.is_some_and(|seen| now.saturating_sub(seen) >= PRESENCE_INTERVAL) {
            operations.push(Operation::Here);
        }
        operations
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    fn ledger(&self) -> MutexGuard<'_, Replica> {
        unpoisoned(self.ledger.lock())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &self.address).finish_non_exhaustive()
    }
}

/// How long a bucket is kept after the last operation, in milliseconds: 30 days, or until all its limits are full
/// again.
fn life(ledger: &Replica) -> u64 {
    let rests = ledger.rested_at().saturating_sub(ledger.now());
    (30 * 24 * 3600 * SECOND).max(rests) / MILLISECOND
}

impl Store for Redis {
    fn clock(&self) -> &dyn NanoClock {
        &self.clock
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn owner(&self) -> Owner {
        self.owner
    }

    fn send(&self, operations: Vec<Operation>) -> Result<Nanos, StoreError> {
        for operation in &operations {
            match operation {
                Operation::Set(policy, _) | Operation::Clear { anew: Some(policy), .. } => check(policy)?,
                _ => {}
            }
        }
        let state = &mut *self.state();
        let is_first = state.sequence == 0;
        let operations = self.with_news(state, operations);
        let now = self.ask(state, operations).inspect_err(|_| state.reported = (0, 0))?;
        if is_first && state.is_due() {
            // Even a process with a single request writes the snapshot.
            self.begin(state, None);
        }
        Ok(now)
    }

    fn post(&self, operations: &[Operation]) -> Option<Nanos> {
        let state = &mut *self.state();
        if self.round_trip() < MIN_POSTED || state.pending.is_some() {
            return None;
        }
        let operations = self.with_news(state, operations.to_vec());
        let record = (!operations.is_empty()).then(|| self.record(state, operations));
        let expected = self.begin(state, record);
        Some(self.clock.now().saturating_add(expected.saturating_sub(self.clock.local())))
    }

    fn collect(&self) -> Result<Nanos, StoreError> {
        let state = &mut *self.state();
        let is_over = self.patience.is_over();
        self.finish(state, if is_over { RETURN_TIMEOUT } else { link::ANSWER_TIMEOUT })?;
        Ok(self.ledger().now())
    }

    fn see(&self, look: &mut dyn FnMut(&mut Replica)) {
        look(&mut self.ledger());
    }

    fn round_trip(&self) -> Nanos {
        unpoisoned(self.round_trip.lock()).usual()
    }

    fn leave(&self) -> bool {
        self.patience.end();
        true
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn rest(&self) {
        let state = &mut *self.state();
        if state.pending.is_none() {
            state.link.close();
        }
    }
}
