//! Limits on a Redis or Valkey server, shared by any number of machines.
//!
//! Every operation is one run of one script, `bucket.lua`. It reads the state, decides by the server's clock and stores
//! the next state, atomically and in one round trip. It computes as the other stores do, in whole microseconds.

use super::lease::Lease;
use super::supply::RETURN_TIMEOUT;
use super::{Found, Store, StoreError, View};
use crate::clock::{Clock, FakeClock, MILLISECOND, Nanos, SECOND};
use crate::limits::{Ask, Grant, Limits, Policy, Refusal, largest};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod address;
mod clock;
mod error;
mod known;
mod link;
mod patience;
mod round_trip;
mod terms;
mod wire;

pub use address::{Address, AddressError};
use clock::ServerClock;
pub use error::RedisError;
use known::{Known, costing, grants, view, whole};
use link::{Answer, Link, Question, Said};
pub use patience::{Patience, Trouble};
use round_trip::RoundTrip;

/// The least time that a lease covers.
const SPAN: Nanos = 10 * MILLISECOND;

/// The most time that a lease covers, even if the network is slow.
const LONGEST_SPAN: Nanos = SECOND;

/// Longer waits hold no connection, so that any number of processes can wait.
const LONGEST_HELD: Nanos = 5 * SECOND;

/// Microseconds are what the server counts in.
const MICROSECOND: Nanos = 1_000;

/// Limits on a server.
#[derive(Debug)]
pub struct Redis {
    address: Address,
    clock: ServerClock,
    patience: Patience,
    state: Mutex<State>,
    /// Our own grants, to estimate the schedule without asking the server.
    estimate: Mutex<Limits>,
}

/// What is known of the bucket, and the requests under way.
#[derive(Debug)]
struct State {
    link: Link,
    bucket: Known,
    /// A lease that is on its way.
    pending: Option<Pending>,
    /// The runs of a lease that has arrived and is not taken yet.
    arrived: Vec<Grant>,
    round_trip: RoundTrip,
}

/// When it was requested, and for how many units.
#[derive(Clone, Copy, Debug)]
struct Pending {
    asked: Nanos,
    /// The same moment on the server's clock, as it was known then.
    asked_there: Nanos,
    units: u64,
}

impl Redis {
    /// Whether a server can keep these limits. None is asked.
    ///
    /// # Errors
    /// [`RedisError::Limits`] or [`RedisError::TooLarge`].
    pub fn check(policy: &Policy) -> Result<(), RedisError> {
        terms::Terms::of(policy).map(drop)
    }

    /// The bucket at `address`. Where there is none it is made with `policy`.
    ///
    /// # Errors
    /// [`RedisError`] says what is wrong. If the server is away, it is returned only after `patience` is over.
    pub fn open(address: Address, policy: Option<&Policy>, patience: Patience) -> Result<Self, StoreError> {
        Redis::unasked(address, policy, patience)?.looked_at()
    }

    /// Like [`open`](Self::open), but asks the server nothing: to take from the bucket in a single round trip. The first
    /// take fails with [`RedisError::OtherLimits`] if the bucket keeps others than `policy`.
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
    pub fn list(address: Address, patience: Patience) -> Result<Vec<Found<Address, StoreError>>, StoreError> {
        let mut redis = Redis::unasked(address, None, patience)?;
        let addresses = redis.state().link.buckets(&redis.patience)?;
        let mut found = Vec::new();
        for address in addresses {
            redis.address = address.clone();
            redis.state().link.turn_to(&address);
            redis.state().bucket = Known::new(None)?;
            match redis.view() {
                Err(StoreError::Redis(RedisError::Unknown(_) | RedisError::Foreign { .. })) => {}
                Err(StoreError::Redis(error)) if !error.is_of_one_bucket() => return Err(error.into()),
                view => found.push((address, view)),
            }
        }
        Ok(found)
    }

    /// Removes the bucket, also one that is damaged. Clients that use it make it again, with the limits that they know.
    ///
    /// # Errors
    /// [`RedisError`]; nothing is removed then.
    pub fn remove(&self) -> Result<(), StoreError> {
        self.ask(&mut self.state(), "remove", &[]).map(drop)
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
        let address = address.with_password()?;
        let link = Link::new(address.clone(), matches!(clock, ServerClock::Shared(_)));
        let (bucket, round_trip) = (Known::new(policy)?, RoundTrip::default());
        let state = Mutex::new(State { link, bucket, pending: None, arrived: Vec::new(), round_trip });
        Ok(Redis { address, clock, patience, state, estimate: Mutex::new(Limits::none(0)) })
    }

    /// Asks the server, which makes the bucket if there is none.
    fn looked_at(self) -> Result<Self, StoreError> {
        self.ask(&mut self.state(), "look", &[])?;
        Ok(self)
    }

    /// Sends a request and waits for the answer, as long as `patience` allows.
    fn ask(&self, state: &mut State, what: &str, with: &[i64]) -> Result<Answer, StoreError> {
        // An answer still under way would be taken for this one's.
        self.receive(state);
        let State { link, bucket, round_trip, .. } = state;
        let said = self.patience.insist(|| {
            link.patience = link::ANSWER;
            link.begin();
            link.connect()?;
            let asked = self.clock.local();
            let said = link.ask(&self.question(bucket, what, with))?;
            round_trip.took(self.learn(bucket, &said, asked));
            Ok(said)
        })?;
        self.answer(state, said)
    }

    /// Sends a request once, with a short time limit: to give something back.
    fn tell(&self, state: &mut State, what: &str, with: &[i64]) -> Result<Answer, StoreError> {
        let asked = self.clock.local();
        let said = state.link.ask_once(&self.question(&state.bucket, what, with))?;
        self.learn(&mut state.bucket, &said, asked);
        self.answer(state, said)
    }

    /// Gives back a grant of this bucket, of these costs.
    fn give(&self, state: &mut State, grant: &Grant, costs: &[u64]) -> Result<(), StoreError> {
        let with = costing(&[grant.number(), grant.at / MICROSECOND], costs);
        self.tell(state, "give", &with).map(drop)
    }

    /// Has the script set the limits of `policy`, or leave them as they are if that is `None`.
    fn set_by(&self, what: &str, policy: Option<&Policy>, with: &[i64]) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let before = state.bucket.clone();
        policy.map_or(Ok(()), |policy| state.bucket.set_policy(policy))?;
        match self.ask(state, what, with) {
            Ok(_) => {
                if let Some(policy) = policy {
                    *self.estimate() = Limits::new(policy, self.clock.now());
                }
                Ok(())
            }
            Err(error) => {
                state.bucket = before;
                Err(error)
            }
        }
    }

    /// Learns the server's time from its answer, and how long the round trip took.
    fn learn(&self, bucket: &mut Known, said: &Said, asked: Nanos) -> Nanos {
        let read = self.clock.local();
        if let Said::Answer(answer) = said {
            self.clock.learn(answer.now.saturating_mul(MICROSECOND), asked, read);
            bucket.seen = (answer.now, asked);
        }
        read.saturating_sub(asked)
    }

    /// See the comment at the head of the script.
    fn question(&self, bucket: &Known, what: &str, with: &[i64]) -> Question {
        // By no clock can more time have passed there than here since the request before.
        let (there, here) = bucket.seen;
        let expected = if there == 0 { 0 } else { there + self.clock.local().saturating_sub(here) / MICROSECOND + 1 };
        let mut question = vec![what.to_owned(), bucket.id.to_string(), whole(expected).to_string()];
        question.extend([bucket.terms.text.clone(), bucket.terms.numbers.clone()]);
        question.extend(with.iter().map(i64::to_string));
        if let ServerClock::Shared(clock) = &self.clock {
            question.push((clock.now() / MICROSECOND).to_string());
        }
        question
    }

    /// Takes what the answer says of the bucket, and returns what was requested.
    fn answer(&self, state: &mut State, said: Said) -> Result<Answer, StoreError> {
        let mut answer = match said {
            Said::Answer(answer) => answer,
            Said::TooLong(wait) => return Err(Refusal::TooLong { wait: wait.saturating_mul(MICROSECOND) }.into()),
            Said::Never => return Err(Refusal::Never.into()),
        };
        let others = answer.limits.take();
        if let Some(limits) = &others {
            let policy = Policy::from_lines(limits).ok_or_else(|| self.damaged())?;
            state.bucket.set_policy(&policy)?;
        }
        if (others.is_some() || answer.id != state.bucket.id)
            && let Some(policy) = &state.bucket.policy
        {
            *self.estimate() = Limits::new(policy, answer.now.saturating_mul(MICROSECOND));
        }
        state.bucket.id = answer.id;
        Ok(answer)
    }

    /// The grants in an answer to a request for so many units. If they are one grant of `costs`: their largest.
    fn granted(&self, state: &mut State, answer: &Answer, units: u64, costs: &[u64]) -> Result<Vec<Grant>, StoreError> {
        let mut grants = grants(answer, units).ok_or_else(|| self.damaged())?;
        let mut estimate = self.estimate();
        for grant in &mut grants {
            *grant = grant.of(state.bucket.generation());
            let costs = if costs.is_empty() { std::slice::from_ref(&grant.units) } else { costs };
            let _ = estimate.with_costs(costs, |limits, cost| limits.charge_at(grant.at, grant.at, cost));
            state.bucket.latest = state.bucket.latest.max(grant.at);
        }
        Ok(grants)
    }

    /// Receives the lease that was requested, if there is one and it arrives.
    fn receive(&self, state: &mut State) {
        let Some(Pending { asked, asked_there, units }) = state.pending.take() else { return };
        let needed = self.clock.local();
        let Ok(said) = state.link.receive() else { return };
        let took = self.learn(&mut state.bucket, &said, asked);
        let waited = self.clock.local().saturating_sub(needed);
        state.round_trip.took(if waited > took / 4 { took } else { took.min(on_its_way(&said, asked_there)) });
        if let Ok(answer) = self.answer(state, said) {
            // If the answer makes no sense, the next request reports that.
            state.arrived = self.granted(state, &answer, units, &[]).unwrap_or_default();
        }
    }

    /// Hands over the lease that was requested.
    fn hand_over(&self, state: &mut State, lease: &mut Lease) {
        self.receive(state);
        if !state.arrived.is_empty() {
            add(lease, state);
        }
    }

    /// Two round trips, at least 10 ms. If the server's clock is a fake, all that wait.
    fn span_of(&self, state: &State) -> Nanos {
        match self.clock {
            ServerClock::Known { .. } => (2 * state.round_trip.usual()).clamp(SPAN, LONGEST_SPAN),
            ServerClock::Shared(_) => Nanos::MAX,
        }
    }

    fn damaged(&self) -> RedisError {
        RedisError::Damaged { place: self.address.to_string(), key: self.address.key() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn estimate(&self) -> MutexGuard<'_, Limits> {
        self.estimate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The arguments of the script for a lease.
fn lease_terms(ask: &Ask) -> [i64; 3] {
    [ask.waiting, ask.span / MICROSECOND, ask.from / MICROSECOND].map(whole)
}

/// Adds what has arrived to `lease`.
fn add(lease: &mut Lease, state: &mut State) {
    lease.begin(state.bucket.rules);
    state.arrived.drain(..).for_each(|run| lease.push(run));
}

/// How long a request took to get there, if its answer was not waited for. That includes the time of the quickest answer
/// back, because the server's clock as known here is behind by that much.
fn on_its_way(said: &Said, asked_there: Nanos) -> Nanos {
    match said {
        Said::Answer(answer) => answer.now.saturating_mul(MICROSECOND).saturating_sub(asked_there),
        Said::TooLong(_) | Said::Never => Nanos::MAX,
    }
}

impl Store for Redis {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn policy(&self) -> Policy {
        // Opening the bucket has read its policy.
        self.state().bucket.policy.clone().unwrap_or_default()
    }

    fn take(&self, costs: &[u64], latest: Nanos) -> Result<(Grant, Nanos), StoreError> {
        let state = &mut *self.state();
        let longest = match latest {
            Nanos::MAX => -1,
            latest => whole(latest.saturating_sub(self.clock.now()) / MICROSECOND),
        };
        let most = largest(costs);
        if most > 1 << 51 {
            return Err(Refusal::Never.into());
        }
        let mut with = costing(&[], costs);
        with.insert(0, longest);
        let answer = self.ask(state, "take", &with)?;
        if answer.numbers.is_empty() {
            return Err(RedisError::OtherLimits(self.address.to_string()).into());
        }
        let grant = *self.granted(state, &answer, most, costs)?.first().ok_or_else(|| self.damaged())?;
        let now = self.clock.now();
        if grant.at.saturating_sub(now) > LONGEST_HELD {
            state.link.close();
        }
        Ok((grant, now))
    }

    fn give_back(&self, grant: &Grant, costs: &[u64]) -> Result<(), StoreError> {
        let state = &mut *self.state();
        state.link.patience = RETURN_TIMEOUT;
        self.receive(state);
        if grant.generation() != state.bucket.generation() {
            return Ok(());
        }
        self.give(state, grant, costs)
    }

    /// What is given back must not be given back twice; what is owed may be, if the server's answer is lost.
    fn settle(&self, grant: &Grant, [charged, real]: [&[u64]; 2]) -> Result<(), StoreError> {
        let state = &mut *self.state();
        state.link.patience = RETURN_TIMEOUT;
        self.receive(state);
        if grant.generation() != state.bucket.generation() {
            return Ok(());
        }
        let mut with = costing(&[grant.at / MICROSECOND], charged);
        with.extend(costing(&[], real));
        let is_owed = charged.iter().zip(real).all(|(charged, real)| real >= charged);
        let ask = if is_owed { Redis::ask } else { Redis::tell };
        ask(self, state, "settle", &with).map(drop)
    }

    fn hold_until(&self, time: Nanos) -> Result<(), StoreError> {
        self.ask(&mut self.state(), "hold", &[whole(time.div_ceil(MICROSECOND))])?;
        let now = self.clock.now();
        self.estimate().hold_until(now, time);
        Ok(())
    }

    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        let fresh: Vec<i64> =
            (0..policy.len()).map(|place| fresh.get(place).copied().unwrap_or(false).into()).collect();
        self.set_by("set", Some(policy), &fresh)
    }

    /// Asks once and not for long: meanwhile the time told before is still good.
    fn look(&self, grant: &Grant, costs: &[u64]) -> Result<Grant, StoreError> {
        let state = &mut *self.state();
        self.receive(state);
        let number = if grant.generation() == state.bucket.generation() { grant.number() } else { 0 };
        let left = grant.at.saturating_sub(self.clock.now()) / MICROSECOND;
        state.link.patience = RETURN_TIMEOUT;
        state.link.begin();
        state.link.connect()?;
        let answer = self.tell(state, "stay", &costing(&[number, left], costs))?;
        let [at, number] = answer.numbers[..] else { return Err(self.damaged().into()) };
        if at.unsigned_abs().saturating_mul(MICROSECOND).saturating_sub(self.clock.now()) > LONGEST_HELD {
            state.link.close();
        }
        let found = grant.moved_to(at.unsigned_abs().saturating_mul(MICROSECOND)).numbered(number.unsigned_abs());
        Ok(found.entry(number > 0).of(state.bucket.generation()))
    }

    fn clear(&self, anew: Option<&Policy>) -> Result<(), StoreError> {
        self.set_by("clear", anew, &[anew.is_some().into()])
    }

    fn view(&self) -> Result<View, StoreError> {
        let state = &mut *self.state();
        let numbers = self.ask(state, "look", &[])?.numbers;
        Ok(view(state.bucket.policy.clone().ok_or_else(|| self.damaged())?, numbers))
    }

    fn available(&self) -> u64 {
        self.estimate().available(self.clock.now())
    }

    fn schedule(&self, costs: &[u64]) -> Option<Nanos> {
        let now = self.clock.now();
        self.estimate().with_costs(costs, |limits, cost| limits.schedule(now, cost))
    }

    fn quantum(&self) -> u64 {
        self.state().bucket.quantum
    }

    fn span(&self) -> Nanos {
        self.span_of(&self.state())
    }

    fn lease(&self, ask: &Ask, lease: &mut Lease) -> Result<Nanos, StoreError> {
        let state = &mut *self.state();
        // A long first lease would make others wait for as long.
        while state.round_trip.is_uncertain() && ask.span.min(2 * state.round_trip.usual()) > SPAN {
            self.ask(state, "look", &[])?;
        }
        let ask = &Ask { span: ask.span.min(self.span_of(state)), ..*ask };
        let answer = self.ask(state, "lease", &lease_terms(ask))?;
        if !state.arrived.is_empty() {
            add(lease, state);
        }
        state.arrived = self.granted(state, &answer, ask.waiting, &[])?;
        add(lease, state);
        Ok(self.clock.now())
    }

    fn return_lease(&self, lease: &mut Lease) -> Result<(), StoreError> {
        let state = &mut *self.state();
        state.link.patience = RETURN_TIMEOUT;
        self.hand_over(state, lease);
        let Some(mut rest) = lease.take_rest() else { return Ok(()) };
        // Nobody waits for a server that is away; but one who waits in the line has closed the connection.
        if !state.link.is_connected() && !rest.runs.iter().any(Grant::is_entry) {
            return Ok(());
        }
        let older = rest.runs.iter().take(rest.older).filter(|run| !run.is_entry()).count();
        let (entries, runs): (VecDeque<Grant>, _) = rest.runs.into_iter().partition(Grant::is_entry);
        (rest.older, rest.runs) = (older, runs);
        for run in entries.iter().rev() {
            self.give(state, run, &[run.units])?;
        }
        if rest.runs.is_empty() {
            return Ok(());
        }
        let mut with = vec![whole(rest.last.number()), whole(rest.spent), whole(rest.older as u64)];
        with.extend(rest.runs.iter().flat_map(|run| [run.at / MICROSECOND, run.units].map(whole)));
        self.tell(state, "unlease", &with).map(drop)
    }

    fn leave(&self) {
        self.state().link.patience = RETURN_TIMEOUT;
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn send_for_lease(&self, ask: &Ask) -> bool {
        let state = &mut *self.state();
        let question = self.question(&state.bucket, "lease", &lease_terms(ask));
        let (asked, asked_there) = (self.clock.local(), self.clock.now());
        state.link.patience = link::ANSWER;
        let sent = state.pending.is_none() && state.link.send(&question).is_ok();
        if sent {
            state.pending = Some(Pending { asked, asked_there, units: ask.waiting });
        }
        sent
    }

    fn receive_lease(&self, lease: &mut Lease) {
        self.hand_over(&mut self.state(), lease);
    }
}
