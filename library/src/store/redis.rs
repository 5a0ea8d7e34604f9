//! Limits on a Redis or Valkey server, shared by any number of machines.
//!
//! The server keeps the log of a bucket, and knows nothing of limits: a script stamps each operation with the server's time
//! and appends it, atomically and in one round trip. Every client folds the same log.

use super::supply::RETURN_TIMEOUT;
use super::{Store, StoreError, View, check, random};
use crate::clock::sync::unpoisoned;
use crate::clock::{Clock, FakeClock, MILLISECOND, Nanos, SECOND};
use crate::limits::{Grant, LOOK, Ledger, Operation, Owner, Policy, Record, Reply, from_bytes, to_bytes};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

mod address;
mod clock;
mod error;
mod link;
mod patience;
mod round_trip;
mod wire;

pub use address::{Address, AddressError};
use clock::ServerClock;
pub use error::RedisError;
use link::{Answer, Link, MICROSECOND, Question, Stamp, framed, unframed};
pub use patience::{Patience, Trouble};
use round_trip::RoundTrip;

/// The least time that a lease covers.
const SPAN: Nanos = 10 * MILLISECOND;

/// The most time that a lease covers, even if the network is slow.
const LONGEST_SPAN: Nanos = SECOND;

/// A client that has folded so many bytes of the log since the last snapshot writes the next: about 16 operations. A step takes
/// the server 5 ns more for each byte of the log, and 2 ns for each byte of a snapshot: a long one is written more seldom.
const FOLDED: u64 = 500;
const SELDOM: u64 = 32;

/// A process that waits reports this often that it does. One that was not seen for longer has ended.
const HERE: Nanos = 4 * SECOND;
const GONE: Nanos = 12 * SECOND;

/// A bucket that was found, and what it keeps, or why that cannot be read.
type Found = (Address, Result<View, StoreError>);

/// Limits on a server.
#[derive(Debug)]
pub struct Redis {
    address: Address,
    clock: ServerClock,
    patience: Patience,
    owner: Owner,
    state: Mutex<State>,
}

/// What is known of the bucket, and the requests under way.
#[derive(Debug)]
struct State {
    link: Link,
    /// To make the bucket with.
    policy: Option<Policy>,
    /// Identifies the bucket that the ledger is of; 0 if none was seen.
    id: u64,
    ledger: Ledger,
    /// Where the next operation begins in the log that the ledger has not.
    next: u64,
    /// The stamp of the last operation that the ledger has.
    stamp: Stamp,
    /// Where the log begins that is not in the latest snapshot, as far as is known.
    first: u64,
    /// The length of the latest snapshot that was read or written.
    saved: u64,
    /// The bucket's time in the last answer, in microseconds, and when that was requested, on our clock.
    seen: (u64, Nanos),
    /// Counts our operations.
    sequence: u64,
    /// An operation that was sent, and when.
    pending: Option<Pending>,
    /// The reply to it.
    arrived: Option<Reply>,
    round_trip: RoundTrip,
}

/// When it was sent, on our clock, and on the server's, as that was known then.
#[derive(Debug)]
struct Pending {
    asked: Nanos,
    asked_there: Nanos,
    /// The operation, if its reply is wanted.
    wanted: Option<Record>,
}

impl State {
    /// A ledger before anything is known.
    fn forget(&mut self) {
        self.ledger = Ledger::new(self.policy.as_ref().unwrap_or(&Policy::default()), 0, 0);
        (self.id, self.next, self.first, self.stamp) = (0, 0, 0, [0; 8]);
    }

    /// Whether the log is so long that a snapshot replaces it.
    fn is_due(&self) -> bool {
        self.next.saturating_sub(self.first) >= FOLDED + self.saved / SELDOM
    }
}

impl Redis {
    /// The bucket at `address`. Where there is none it is made with `policy`.
    ///
    /// # Errors
    /// [`RedisError`] says what is wrong. If the server is away, it is returned only after `patience` is over.
    pub fn open(address: Address, policy: Option<&Policy>, patience: Patience) -> Result<Self, StoreError> {
        Redis::unasked(address, policy, patience)?.looked_at()
    }

    /// Like [`open`](Self::open), but asks the server nothing: to take from the bucket in a single round trip. Then the bucket
    /// may turn out to keep others limits than `policy`.
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
        Redis::new(address, policy, Patience::none(), ServerClock::Shared(clock))?.looked_at()
    }

    /// All buckets on the server of `address`, whichever of them it names, by name. Of a cluster, those of that node.
    ///
    /// # Errors
    /// [`RedisError`], if the server cannot be used.
    pub fn list(address: Address, patience: Patience) -> Result<Vec<Found>, StoreError> {
        let mut redis = Redis::unasked(address, None, patience)?;
        let addresses = redis.state().link.buckets(&redis.patience)?;
        let mut found = Vec::new();
        for address in addresses {
            redis.address = address.clone();
            redis.state().link.turn_to(&address);
            redis.state().forget();
            match redis.view() {
                Err(StoreError::Redis(RedisError::Unknown(_) | RedisError::Foreign(..))) => {}
                Err(StoreError::Redis(error)) if !error.is_of_one_bucket() => return Err(error.into()),
                looked => found.push((address, looked)),
            }
        }
        Ok(found)
    }

    /// Removes the bucket, also one that is damaged. Clients that use it make it again, with the limits that they know.
    ///
    /// # Errors
    /// [`RedisError`]; nothing is removed then.
    pub fn remove(&self) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let mut question = self.question(state, None);
        question[0] = link::REMOVE.to_vec();
        self.patience.insist(|| {
            state.link.begin(link::ANSWER);
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
        if address.is_encrypted() && !cfg!(feature = "tls") {
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
            seen: (0, 0),
            sequence: 0,
            pending: None,
            arrived: None,
            round_trip: RoundTrip::default(),
        };
        let owner = [random(), 0];
        Ok(Redis { address, clock, patience, owner, state: Mutex::new(state) })
    }

    /// Asks the server, which makes the bucket if there is none.
    fn looked_at(self) -> Result<Self, StoreError> {
        self.ask(&mut self.state(), None, false)?;
        Ok(self)
    }

    /// Sends an operation, or nothing, to learn what others did, and waits for the answer as long as `patience` allows.
    /// An operation that is sent again, because its answer was lost, is the same one. What `is_short` is asked once, and not for
    /// long.
    fn ask(
        &self,
        state: &mut State,
        operation: Option<Operation>,
        is_short: bool,
    ) -> Result<Option<Reply>, StoreError> {
        let patience = if is_short || self.patience.is_over() { RETURN_TIMEOUT } else { link::ANSWER };
        // An answer still under way would be taken for this one's.
        self.await_pending(state, patience);
        let record = operation.map(|operation| self.record(state, operation));
        self.ask_record(state, record.as_ref(), patience)
    }

    /// The same for an operation that has its number.
    fn ask_record(
        &self,
        state: &mut State,
        record: Option<&Record>,
        patience: Duration,
    ) -> Result<Option<Reply>, StoreError> {
        let answer = |state: &mut State| {
            state.link.begin(patience);
            state.link.connect()?;
            let asked = self.clock.local();
            let question = self.question(state, record);
            let answer = state.link.ask(&question)?;
            let took = self.learn(state, &answer, asked);
            state.round_trip.took(took);
            Ok(answer)
        };
        let is_short = patience < link::ANSWER;
        let answer = if is_short { answer(state) } else { self.patience.insist(|| answer(state)) }?;
        self.fold(state, &answer).map_err(StoreError::from)
    }

    /// Our next operation.
    fn record(&self, state: &mut State, operation: Operation) -> Record {
        state.sequence += 1;
        Record { time: 0, owner: self.owner, sequence: state.sequence, operation }
    }

    /// Learns the bucket's time from an answer, and how long the round trip took.
    fn learn(&self, state: &mut State, answer: &Answer, asked: Nanos) -> Nanos {
        let read = self.clock.local();
        self.clock.learn(answer.now.saturating_mul(MICROSECOND), asked, read);
        state.seen = (answer.now, asked);
        read.saturating_sub(asked)
    }

    /// See the comment at the head of the script.
    fn question(&self, state: &mut State, record: Option<&Record>) -> Question {
        // By no clock can more time have passed there than here since the request before.
        let (there, here) = state.seen;
        let expected = if there == 0 { 0 } else { there + self.clock.local().saturating_sub(here) / MICROSECOND + 1 };
        // A server that has lost the bucket makes it again: one burst was granted before.
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
            // Only a test's script reads this.
            (self.clock.now() / MICROSECOND).to_string().into_bytes(),
        ]
    }

    /// Folds what is new. Returns the reply to our latest operation, if that is there.
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
        let (asked, asked_there) = (self.clock.local(), self.clock.now());
        let sent = state.link.send(&question).is_ok();
        if sent {
            state.pending = Some(Pending { asked, asked_there, wanted: None });
        }
        sent
    }

    /// Receives the answer to the operation that was sent, if there is one and it arrives.
    fn await_pending(&self, state: &mut State, patience: Duration) {
        let Some(Pending { asked, asked_there, wanted }) = state.pending.take() else { return };
        let needed = self.clock.local();
        let Ok(answer) = state.link.receive(patience) else {
            if let Some(record) = wanted {
                // The same operation: if it had arrived, its answer is repeated.
                state.arrived = self.ask_record(state, Some(&record), patience).ok().flatten();
            }
            return;
        };
        let took = self.learn(state, &answer, asked);
        let waited = self.clock.local().saturating_sub(needed);
        // How long it took to get there, if the answer was not waited for. That includes the time of the quickest answer
        // back, because the server's clock as known here is behind by that much.
        let on_its_way = answer.now.saturating_mul(MICROSECOND).saturating_sub(asked_there);
        state.round_trip.took(if waited > took / 4 { took } else { took.min(on_its_way) });
        // If the answer makes no sense, the next request reports that.
        let reply = self.fold(state, &answer).ok().flatten();
        if wanted.is_some() {
            state.arrived = reply;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

/// How long a bucket is kept after the last operation, in milliseconds: 30 days, or until nothing of it counts any more.
fn life(ledger: &Ledger) -> u64 {
    let rests = ledger.rested_at().saturating_sub(ledger.in_order(0));
    (30 * 24 * 3600 * SECOND).max(rests) / MILLISECOND
}

impl Store for Redis {
    fn clock(&self) -> &dyn Clock {
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
            // A long first lease would make others wait for as long.
            while state.round_trip.is_uncertain() && ask.span.min(2 * state.round_trip.usual()) > SPAN {
                self.ask(state, None, false)?;
            }
        }
        let is_short = matches!(operation, Operation::GiveBack(_) | Operation::Late(_) | Operation::Settle { .. });
        let reply = self.ask(state, Some(operation), is_short)?.unwrap_or(Reply::Done);
        let now = self.clock.now();
        // A process that asks only once leaves the snapshot behind, too, and whom it missed.
        let silent = state.ledger.owners().find(|(_, seen)| now.saturating_sub(*seen) >= GONE);
        if let Some((owner, seen)) = silent {
            let gone = self.record(state, Operation::Gone { owner, seen });
            self.post(state, Some(&gone));
        } else if state.sequence == 1 && state.is_due() {
            self.post(state, None);
        }
        // Any number of processes can wait, so they hold no connections.
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
        let here = ours.filter(|(_, seen)| waits(*seen) >= HERE - LOOK / 2).map(|_| Operation::Here);
        // Meanwhile the time told before is still good.
        let is_waiting = state.ledger.waits(self.owner, now);
        self.ask(state, here, is_waiting)?;
        let gone = state.ledger.owners().find(|(_, seen)| waits(*seen) >= GONE);
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

    /// Two round trips, at least 10 ms. If the server's clock is a fake, all that wait.
    fn span(&self) -> Nanos {
        match self.clock {
            ServerClock::Known { .. } => (2 * self.state().round_trip.usual()).clamp(SPAN, LONGEST_SPAN),
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
        let patience = if self.patience.is_over() { RETURN_TIMEOUT } else { link::ANSWER };
        self.await_pending(state, patience);
        state.arrived.take()
    }
}
