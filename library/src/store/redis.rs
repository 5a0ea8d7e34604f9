//! Limits on a Redis or Valkey server, shared by any number of machines.
//!
//! The server keeps the log of a bucket and does not interpret limits. A script stamps each operation with the server's
//! time and appends it, atomically and in one round trip. Every client folds the same log.

use super::supply::RETURN_TIMEOUT;
use super::{Store, StoreError, View, check, random};
use crate::clock::sync::unpoisoned;
use crate::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use crate::limits::{Grant, LOOK, Ledger, Operation, Owner, Policy, Record, Reply, from_bytes, to_bytes};
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

/// The least time that a lease covers.
const MIN_SPAN: Nanos = 10 * MILLISECOND;

/// The most time that a lease covers, even if the network is slow.
const MAX_SPAN: Nanos = SECOND;

/// The least bytes of folded log after which a client writes the next snapshot: about 16 operations. A step takes the
/// server 5 ns more for each byte of the log, and 2 ns for each byte of a snapshot. To write long snapshots less often,
/// the threshold also has one byte for each `SNAPSHOT_PER_LOG` bytes of the snapshot.
const MIN_LOG_BYTES: u64 = 500;
const SNAPSHOT_PER_LOG: u64 = 32;

/// How often a waiting process reports its presence. A process without a report for `PRESENCE_TTL` has ended.
const PRESENCE_INTERVAL: Nanos = 4 * SECOND;
const PRESENCE_TTL: Nanos = 12 * SECOND;

/// The address of a bucket, and its content or the reason why that cannot be read.
type Found = (Address, Result<View, StoreError>);

/// Limits on a server.
pub struct Redis {
    address: Address,
    clock: ServerClock,
    patience: Patience,
    owner: Owner,
    state: Mutex<State>,
}

/// The known state of the bucket, and the requests under way.
struct State {
    link: Link,
    /// The policy for making the bucket.
    policy: Option<Policy>,
    /// Identifies the bucket of the ledger; 0 before the first answer.
    id: u64,
    ledger: Ledger,
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
    /// The operation under way.
    pending: Option<Pending>,
    /// The reply to the operation that was under way, if it has arrived.
    arrived: Option<Reply>,
    round_trip: RoundTrip,
}

/// An operation under way: when it was sent, on our clock and on the server's clock as known then.
struct Pending {
    sent_at: Nanos,
    sent_at_server: Nanos,
    /// The operation, if its reply is wanted.
    wanted: Option<Record>,
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
        let ledger = Ledger::new(policy.unwrap_or(&Policy::default()), 0, 0);
        let state = State {
            link,
            policy: policy.cloned(),
            id: 0,
            ledger,
            next: 0,
            stamp: [0; 8],
            first: 0,
            saved: 0,
            last_answer: (0, 0),
            sequence: 0,
            pending: None,
            arrived: None,
            round_trip: RoundTrip::default(),
        };
        let owner = [random(), 0];
        Ok(Redis { address, clock, patience, owner, state: Mutex::new(state) })
    }

    /// Requests the bucket from the server, which makes it if it does not exist.
    fn requested(self) -> Result<Self, StoreError> {
        self.ask(&mut self.state(), None, false)?;
        Ok(self)
    }

    /// Sends an operation, or only reads the log if there is none. Waits for the answer as long as `patience` allows.
    /// If the answer was lost, the same operation is sent again. If `is_short`, the request is sent once with a short
    /// timeout.
    fn ask(
        &self,
        state: &mut State,
        operation: Option<Operation>,
        is_short: bool,
    ) -> Result<Option<Reply>, StoreError> {
        let patience = if is_short || self.patience.is_over() { RETURN_TIMEOUT } else { link::ANSWER_TIMEOUT };
        // Otherwise the answer under way would be taken for the answer to this request.
        self.await_pending(state, patience);
        let record = operation.map(|operation| self.record(state, operation));
        self.ask_record(state, record.as_ref(), patience)
    }

    /// Sends a numbered operation, or only reads the log, and waits for the answer.
    fn ask_record(
        &self,
        state: &mut State,
        record: Option<&Record>,
        patience: Duration,
    ) -> Result<Option<Reply>, StoreError> {
        let answer = |state: &mut State| {
            state.link.begin(patience);
            state.link.connect()?;
            let sent_at = self.clock.local();
            let question = self.question(state, record);
            let answer = state.link.ask(&question)?;
            let took = self.learn(state, &answer, sent_at);
            state.round_trip.took(took);
            Ok(answer)
        };
        let is_short = patience < link::ANSWER_TIMEOUT;
        let answer = if is_short { answer(state) } else { self.patience.insist(|| answer(state)) }?;
        self.fold(state, &answer).map_err(StoreError::from)
    }

    /// Makes the record of our next operation.
    fn record(&self, state: &mut State, operation: Operation) -> Record {
        state.sequence += 1;
        Record { time: 0, owner: self.owner, sequence: state.sequence, operation }
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
        // Since the previous request, the server's clock cannot have advanced more than ours.
        let (there, here) = state.last_answer;
        let expected = if there == 0 { 0 } else { there + self.clock.local().saturating_sub(here) / MICROSECOND + 1 };
        // A server that has lost the bucket makes it again with empty buckets, because the initial burst was granted
        // before.
        let make = |policy: &Policy| {
            let operation =
                Operation::Clear { anew: Some(policy.clone()), is_empty: state.id > 0, number: random(), key: None };
            framed(&Record { time: 0, owner: self.owner, sequence: 0, operation })
        };
        let policy = if state.id == 0 { state.policy.as_ref() } else { Some(state.ledger.policy()) };
        let mut snapshot = Vec::new();
        if state.is_due() {
            snapshot = to_bytes(&(state.id, state.next, &state.ledger));
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
            life(&state.ledger).to_string().into_bytes(),
            // Only a test's script reads this argument.
            (self.clock.now() / MICROSECOND).to_string().into_bytes(),
        ]
    }

    /// Folds the new operations. Returns the reply to our latest operation, if it is among them.
    fn fold(&self, state: &mut State, answer: &Answer) -> Result<Option<Reply>, RedisError> {
        let damaged = || RedisError::Damaged(self.address.to_string(), self.address.key());
        if answer.is_anew {
            state.ledger = match from_bytes(&answer.snapshot) {
                _ if answer.first == 0 => Ledger::new(&Policy::default(), 0, 0),
                Some(((id, first, ledger), _)) if (id, first) == (answer.id, answer.first) => ledger,
                _ => return Err(damaged()),
            };
            (state.id, state.next, state.stamp) = (answer.id, answer.first, answer.folded);
            state.saved = answer.snapshot.len() as u64;
        }
        let (mut reply, mut log) = (None, &answer.log[..]);
        while !log.is_empty() {
            let (record, stamp, rest) = unframed(log).ok_or_else(damaged)?;
            let applied = state.ledger.apply(&record);
            (state.next, state.stamp) = (state.next + (log.len() - rest.len()) as u64, stamp);
            log = rest;
            if record.owner == self.owner && record.sequence == state.sequence && reply.is_none() {
                reply = Some(applied);
            }
        }
        state.first = answer.first;
        state.ledger.pass(answer.now.saturating_mul(MICROSECOND));
        Ok(reply)
    }

    /// Sends an operation, or a snapshot, without waiting for the answer.
    fn post(&self, state: &mut State, record: Option<&Record>) -> bool {
        let question = self.question(state, record);
        let (sent_at, sent_at_server) = (self.clock.local(), self.clock.now());
        let sent = state.link.send(&question).is_ok();
        if sent {
            state.pending = Some(Pending { sent_at, sent_at_server, wanted: None });
        }
        sent
    }

    /// Receives the answer to the pending operation, if there is one and it arrives.
    fn await_pending(&self, state: &mut State, patience: Duration) {
        let Some(Pending { sent_at, sent_at_server, wanted }) = state.pending.take() else { return };
        let needed = self.clock.local();
        let Ok(answer) = state.link.receive(patience) else {
            if let Some(record) = wanted {
                // Sends the same operation again. If it had arrived, the server repeats its answer.
                state.arrived = self.ask_record(state, Some(&record), patience).ok().flatten();
            }
            return;
        };
        let took = self.learn(state, &answer, sent_at);
        let waited = self.clock.local().saturating_sub(needed);
        // The time to the server, if the answer was already there. It includes the time of the quickest answer back,
        // because the server's clock as known here is behind by that much.
        let on_its_way = answer.now.saturating_mul(MICROSECOND).saturating_sub(sent_at_server);
        state.round_trip.took(if waited > took / 4 { took } else { took.min(on_its_way) });
        // If the answer is damaged, the next request reports it.
        let reply = self.fold(state, &answer).ok().flatten();
        if wanted.is_some() {
            state.arrived = reply;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &self.address).finish_non_exhaustive()
    }
}

/// How long a bucket is kept after the last operation, in milliseconds: 30 days, or until all its limits are full
/// again.
fn life(ledger: &Ledger) -> u64 {
    let rests = ledger.rested_at().saturating_sub(ledger.in_order(0));
    (30 * 24 * 3600 * SECOND).max(rests) / MILLISECOND
}

impl Store for Redis {
    fn clock(&self) -> &dyn NanoClock {
        &self.clock
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError> {
        match &operation {
            Operation::Set { policy, .. } | Operation::Clear { anew: Some(policy), .. } => check(policy)?,
            _ => {}
        }
        let state = &mut *self.state();
        if let Operation::Lease(ask) = &operation {
            // A long first lease would make others wait equally long.
            while state.round_trip.is_uncertain() && ask.span.min(2 * state.round_trip.usual()) > MIN_SPAN {
                self.ask(state, None, false)?;
            }
        }
        let is_short = matches!(operation, Operation::GiveBack(_) | Operation::Late(_) | Operation::Settle { .. });
        let reply = self.ask(state, Some(operation), is_short)?.unwrap_or(Reply::Done);
        let now = self.clock.now();
        // Even a process with a single request writes the snapshot, and reports a process that is gone.
        let silent = state.ledger.owners().find(|(_, seen)| now.saturating_sub(*seen) >= PRESENCE_TTL);
        if let Some((owner, seen)) = silent {
            let gone = self.record(state, Operation::Gone { owner, seen });
            self.post(state, Some(&gone));
        } else if state.sequence == 1 && state.is_due() {
            self.post(state, None);
        }
        // Any number of processes can wait, so a waiting process holds no connection.
        let waits = |grant: &Grant| grant.is_entry() && grant.at.saturating_sub(now) > LOOK;
        let has_to_wait = match &reply {
            Reply::Granted(grants) => grants.iter().any(waits),
            Reply::Each(answers) => answers.iter().flatten().any(waits),
            Reply::Refused(_) | Reply::Done => false,
        };
        if has_to_wait {
            state.link.close();
        }
        Ok((reply, now))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let now = self.clock.now();
        let waits = |seen: Nanos| now.saturating_sub(seen);
        let ours = state.ledger.owners().find(|(owner, _)| *owner == self.owner);
        let here = ours.filter(|(_, seen)| waits(*seen) >= PRESENCE_INTERVAL - LOOK / 2).map(|_| Operation::Here);
        // A waiter uses a short timeout: without an answer, the known time of its grant is still good.
        let is_waiting = state.ledger.waits(self.owner, now);
        self.ask(state, here, is_waiting)?;
        let gone = state.ledger.owners().find(|(_, seen)| waits(*seen) >= PRESENCE_TTL);
        if let Some((owner, seen)) = gone {
            self.ask(state, Some(Operation::Gone { owner, seen }), false)?;
        }
        if is_waiting {
            state.link.close();
        }
        Ok(())
    }

    fn see(&self, look: &mut dyn FnMut(&Ledger)) {
        look(&self.state().ledger);
    }

    /// A lease covers two round trips, and at least 10 ms. With a fake clock of the server it covers all waiting units.
    fn span(&self) -> Nanos {
        match self.clock {
            ServerClock::Known { .. } => (2 * self.state().round_trip.usual()).clamp(MIN_SPAN, MAX_SPAN),
            ServerClock::Shared(_) => Nanos::MAX,
        }
    }

    fn leave(&self) -> bool {
        self.patience.end();
        true
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn one_way(&self) -> Nanos {
        self.state().round_trip.usual() / 2
    }

    fn send(&self, operation: Operation) -> bool {
        let state = &mut *self.state();
        if state.pending.is_some() {
            return false;
        }
        let record = self.record(state, operation);
        let is_sent = self.post(state, Some(&record));
        state.arrived = None;
        if let Some(pending) = state.pending.as_mut().filter(|_| is_sent) {
            pending.wanted = Some(record);
        }
        is_sent
    }

    fn receive(&self) -> Option<Reply> {
        let state = &mut *self.state();
        let patience = if self.patience.is_over() { RETURN_TIMEOUT } else { link::ANSWER_TIMEOUT };
        self.await_pending(state, patience);
        state.arrived.take()
    }
}
