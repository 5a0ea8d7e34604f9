//! Limits on a Redis or Valkey server, for any number of machines.
//!
//! Every question is one run of one script, `bucket.lua`: it reads the state, decides on the server's clock and keeps the
//! next state, atomically and in one round trip. Its arithmetic is that of the other stores, in whole microseconds.
//!
//! A pipe asks ahead: while one lease is being spent, the next is on its way, so that a slow network costs no rate.

use super::lease::Lease;
use super::retiring::{FAREWELL, Stoppable, lock_soon};
use super::{Shared, Store, StoreError, View};
use crate::clock::{Clock, FakeClock, MILLISECOND, Nanos, SECOND};
use crate::limits::{Grant, Limits, Plan, Refusal, Resolved};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod address;
mod clock;
mod error;
mod link;
mod round_trip;
mod terms;

pub use address::{Address, AddressError};
use clock::ServerClock;
pub use error::RedisError;
use link::{Answer, Link, Question, Said};
use round_trip::RoundTrip;
use terms::Terms;

/// What a lease covers at least.
const SPAN: Nanos = 10 * MILLISECOND;

/// What a lease covers at most, however slow the network.
const LONGEST_SPAN: Nanos = SECOND;

/// Between two tries to reach the server: at first, and at last.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Microseconds are what the server counts in.
const MICROSECOND: Nanos = 1_000;

/// Limits on a server.
#[derive(Debug)]
pub struct Redis {
    address: Address,
    clock: Stoppable<ServerClock>,
    patience: Patience,
    state: Mutex<State>,
    /// What we were granted, for an outlook that asks nobody.
    shadow: Mutex<Limits>,
}

/// How long to go on trying while the server is away, and who is told. Each try is given three seconds for the answer, also
/// the last one: who hangs up sooner may have been granted what he no longer hears of.
pub struct Patience {
    /// `None`: for ever.
    until: Option<Instant>,
    tell: Box<dyn Fn(&Trouble<'_>) + Send + Sync>,
}

/// What happens to the server: told once each.
#[derive(Debug)]
pub enum Trouble<'a> {
    /// It cannot be reached; nothing is granted until it can.
    Away(&'a RedisError),
    /// It can be reached again after so long.
    Back(Duration),
}

impl Patience {
    /// None: the first error is returned.
    #[must_use]
    pub fn none() -> Self {
        Patience::new(Some(Instant::now()), |_| {})
    }

    /// Goes on trying `until` then, ever more slowly, or for ever, and tells `tell`.
    pub fn new(until: Option<Instant>, tell: impl Fn(&Trouble<'_>) + Send + Sync + 'static) -> Self {
        Patience { until, tell: Box::new(tell) }
    }

    fn left(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Does `act` until it succeeds or fails for good.
    fn insist<T>(&self, mut act: impl FnMut() -> Result<T, RedisError>) -> Result<T, RedisError> {
        let (began, mut pause, mut told) = (Instant::now(), PAUSES[0], false);
        loop {
            match act() {
                Err(error) if error.may_pass() && !self.left().is_zero() => {
                    if !told {
                        (self.tell)(&Trouble::Away(&error));
                    }
                    told = true;
                    std::thread::sleep(jittered(pause).min(self.left()));
                    pause = (pause * 2).min(PAUSES[1]);
                }
                result => {
                    if told && result.is_ok() {
                        (self.tell)(&Trouble::Back(began.elapsed()));
                    }
                    return result;
                }
            }
        }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("until", &self.until).finish_non_exhaustive()
    }
}

/// Between half of it and all: those whom one server left do not all come back at once.
fn jittered(pause: Duration) -> Duration {
    // Each state is seeded differently, which is all the chance that is needed.
    let random = u32::from(RandomState::new().build_hasher().finish().to_le_bytes()[0]);
    pause / 2 + pause * random / 512
}

/// What is known of the bucket, and what is being asked.
#[derive(Debug)]
struct State {
    link: Link,
    bucket: Known,
    /// The limits as they were when opened, or set by us: whoever asks counts what these count.
    meant: Option<Plan>,
    lease: Lease,
    /// The lease that was asked for last.
    last: Option<Last>,
    /// One that is on its way.
    pending: Option<Pending>,
    round_trip: RoundTrip,
}

/// The bucket as it was last seen.
#[derive(Debug)]
struct Known {
    /// 0 where it never was.
    id: i64,
    plan: Option<Plan>,
    terms: Terms,
    quantum: u64,
    /// How late a unit may leave without making a burst.
    allowance: Nanos,
    has_window: bool,
    /// Our latest grant.
    latest: Nanos,
}

/// A lease by its number, and the units of it.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: u64,
    units: u64,
}

/// When it was asked for, and for how many units.
#[derive(Clone, Copy, Debug)]
struct Pending {
    asked: Nanos,
    /// The same moment on the server's clock as it was known then.
    asked_there: Nanos,
    units: u64,
}

impl Known {
    fn new(plan: Option<&Plan>) -> Result<Self, RedisError> {
        let mut known = Known {
            id: 0,
            plan: None,
            terms: Terms { text: String::new(), numbers: String::new() },
            quantum: 1,
            allowance: 0,
            has_window: false,
            latest: 0,
        };
        if let Some(plan) = plan {
            known.set_plan(plan)?;
        }
        Ok(known)
    }

    /// Tells it from those that were lost before.
    fn generation(&self) -> u64 {
        self.id.unsigned_abs()
    }

    fn set_plan(&mut self, plan: &Plan) -> Result<(), RedisError> {
        self.terms = Terms::of(plan)?;
        let limits = Limits::new(plan, 0);
        (self.quantum, self.allowance) = (limits.quantum(), Lease::allowance(&limits));
        self.has_window = plan.limits().iter().any(|limit| matches!(limit, Resolved::Window(_)));
        self.plan = Some(plan.clone());
        Ok(())
    }
}

impl Redis {
    /// Whether a server can keep these limits. None is asked.
    ///
    /// # Errors
    /// [`RedisError::Limits`] or [`RedisError::TooLarge`].
    pub fn check(plan: &Plan) -> Result<(), RedisError> {
        Terms::of(plan).map(drop)
    }

    /// The bucket at `address`. Where there is none it is made with `plan`.
    ///
    /// # Errors
    /// [`RedisError`] says what is wrong with it; while the server is away only after `patience` is over.
    pub fn open(address: Address, plan: Option<&Plan>, patience: Patience) -> Result<Self, StoreError> {
        Redis::open_on(address, plan, patience, ServerClock::new())
    }

    /// The same with the server's clock replaced by `clock`, to the microsecond below: for tests.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on_fake(address: Address, plan: Option<&Plan>, clock: FakeClock) -> Result<Self, StoreError> {
        Redis::open_on(address, plan, Patience::none(), ServerClock::Shared(clock))
    }

    fn open_on(
        address: Address,
        plan: Option<&Plan>,
        patience: Patience,
        clock: ServerClock,
    ) -> Result<Self, StoreError> {
        if address.is_encrypted() && !cfg!(feature = "tls") {
            return Err(RedisError::NoTls(address.to_string()).into());
        }
        let link = Link::new(address.clone(), matches!(clock, ServerClock::Shared(_)));
        let (bucket, lease) = (Known::new(plan)?, Lease::default());
        let state =
            State { link, bucket, meant: None, lease, last: None, pending: None, round_trip: RoundTrip::default() };
        let (clock, state, shadow) = (Stoppable::new(clock), Mutex::new(state), Mutex::new(Limits::none(0)));
        let store = Redis { address, clock, patience, state, shadow };
        store.look(&mut store.state())?;
        Ok(store)
    }

    fn look(&self, state: &mut State) -> Result<(), StoreError> {
        self.ask(state, "look", &[])?;
        state.meant.clone_from(&state.bucket.plan);
        Ok(())
    }

    /// Asks and waits for the answer, as long as our patience lasts.
    fn ask(&self, state: &mut State, what: &str, with: &[i64]) -> Result<Answer, StoreError> {
        // It would be taken for the answer.
        self.receive(state);
        let State { link, bucket, round_trip, .. } = state;
        let said = self.patience.insist(|| {
            link.patience = link::ANSWER;
            link.connect()?;
            let asked = self.clock.local();
            let said = link.ask(&self.question(bucket, what, with))?;
            round_trip.took(self.learn(&said, asked));
            Ok(said)
        })?;
        self.answer(state, said)
    }

    /// Learns the server's time from what it said; how long that took.
    fn learn(&self, said: &Said, asked: Nanos) -> Nanos {
        let read = self.clock.local();
        if let Said::Answer(answer) = said {
            self.clock.learn(answer.now.saturating_mul(MICROSECOND), asked, read);
        }
        read.saturating_sub(asked)
    }

    /// See the head of the script.
    fn question(&self, bucket: &Known, what: &str, with: &[i64]) -> Question {
        let now = self.clock.now();
        let ahead = i128::from(bucket.latest / MICROSECOND) - i128::from(now / MICROSECOND);
        let mut question = vec![what.to_owned(), bucket.id.to_string(), ahead.to_string()];
        question.extend([bucket.terms.text.clone(), bucket.terms.numbers.clone()]);
        question.extend(with.iter().map(i64::to_string));
        if let ServerClock::Shared(clock) = &*self.clock {
            question.push((clock.now() / MICROSECOND).to_string());
        }
        question
    }

    /// What was asked for, once what it tells of the bucket is known.
    fn answer(&self, state: &mut State, said: Said) -> Result<Answer, StoreError> {
        let mut answer = match said {
            Said::Answer(answer) => answer,
            Said::TooLong(wait) => return Err(Refusal::TooLong { wait: wait.saturating_mul(MICROSECOND) }.into()),
            Said::Never => return Err(Refusal::Never.into()),
        };
        let others = answer.limits.take();
        if let Some(limits) = &others {
            let plan = Plan::from_lines(limits).ok_or_else(|| self.damaged())?;
            state.bucket.set_plan(&plan)?;
        }
        if (others.is_some() || answer.id != state.bucket.id)
            && let Some(plan) = &state.bucket.plan
        {
            *self.shadow() = Limits::new(plan, answer.now.saturating_mul(MICROSECOND));
        }
        state.bucket.id = answer.id;
        Ok(answer)
    }

    /// Takes the runs of a lease for `asked` units over.
    fn take_over(&self, state: &mut State, answer: &Answer, asked: u64) -> Result<(), StoreError> {
        let runs = grants(answer, asked).ok_or_else(|| self.damaged())?;
        let units = runs.iter().map(|run| run.units).sum();
        state.last = Some(Last { number: answer.number, units });
        self.remember(state, &runs);
        state.lease.append(runs, state.bucket.allowance);
        Ok(())
    }

    fn remember(&self, state: &mut State, grants: &[Grant]) {
        let mut shadow = self.shadow();
        for grant in grants {
            let _ = shadow.charge_at(grant.at, grant.at, grant.units);
            state.bucket.latest = state.bucket.latest.max(grant.at);
        }
    }

    fn lease(&self, state: &mut State, waiting: u64) -> Result<(), StoreError> {
        let answer = self.ask(state, "lease", &self.lease_terms(state, waiting))?;
        self.take_over(state, &answer, waiting)
    }

    /// What we were granted in limits of another kind goes back when we end.
    fn check_kind(&self, state: &State) -> Result<(), StoreError> {
        match (&state.meant, &state.bucket.plan) {
            (Some(before), Some(now)) => super::check_kind(|| self.place(), before, now),
            _ => Ok(()),
        }
    }

    /// What is so late that with the rest it would be a burst does not leave at its time. In a bucket that time is lost, and
    /// what comes after it stays; in a window it would count for the whole period, so all of it is given back.
    fn forget_late(&self, state: &mut State) {
        let now = self.clock.now();
        if !state.lease.is_stale(now) {
            return;
        }
        if !state.bucket.has_window {
            state.lease.drop_late(now);
        } else if self.return_lease(state).is_err() {
            // The next question says why.
            state.lease = Lease::default();
        }
    }

    /// Asks for the next lease if the rest of this one will not last until that comes, and more units wait than it is for.
    /// Who gets no answer now asks again when it is needed.
    fn look_ahead(&self, state: &mut State, waiting: u64) {
        let left = state.lease.latest().saturating_sub(self.clock.now());
        let more = waiting.saturating_sub(state.lease.units());
        if more == 0 || state.pending.is_some() || left > self.span(state) / 4 * 3 {
            return;
        }
        let question = self.question(&state.bucket, "lease", &self.lease_terms(state, more));
        let (asked, asked_there) = (self.clock.local(), self.clock.now());
        state.link.patience = link::ANSWER;
        state.pending = state.link.send(&question).ok().map(|()| Pending { asked, asked_there, units: more });
    }

    /// The lease that was asked for, if there is one and it comes.
    fn receive(&self, state: &mut State) {
        let Some(Pending { asked, asked_there, units }) = state.pending.take() else { return };
        let needed = self.clock.local();
        let Ok(said) = state.link.receive() else { return };
        let took = self.learn(&said, asked);
        let waited = self.clock.local().saturating_sub(needed);
        state.round_trip.took(if waited > took / 4 { took } else { took.min(on_its_way(&said, asked_there)) });
        if let Ok(answer) = self.answer(state, said) {
            // Where it makes no sense, the next question says so.
            let _ = self.take_over(state, &answer, units);
        }
    }

    /// Gives back what is left of the leases: the last is undone where nothing was given to anybody since, and what else lies
    /// in the past is credited.
    fn return_lease(&self, state: &mut State) -> Result<(), StoreError> {
        self.receive(state);
        let left = std::mem::take(&mut state.lease);
        let Some(last) = state.last.take().filter(|_| !left.is_empty() && state.link.is_connected()) else {
            return Ok(());
        };
        let of_last = left.units().min(last.units);
        let mut older = left.units() - of_last;
        let runs: Vec<Grant> = left.into_runs().collect();
        let mut with = vec![whole(last.number), whole(last.units - of_last), 0];
        for run in &runs {
            // A lease begins with a run of its own.
            if older > 0 {
                older = older.saturating_sub(run.units);
                with[2] += 1;
            }
            with.extend([whole(run.at / MICROSECOND), whole(run.units)]);
        }
        let said = state.link.ask_once(&self.question(&state.bucket, "unlease", &with))?;
        self.answer(state, said).map(drop)
    }

    /// What a lease covers: two round trips, or 10 ms where they are quicker. Where time stands still, all that wait.
    fn span(&self, state: &State) -> Nanos {
        match *self.clock {
            ServerClock::Known { .. } => (2 * state.round_trip.usual()).clamp(SPAN, LONGEST_SPAN),
            ServerClock::Shared(_) => Nanos::MAX,
        }
    }

    /// What the script asks for beside the bucket.
    fn lease_terms(&self, state: &State, waiting: u64) -> [i64; 3] {
        [waiting, self.span(state) / MICROSECOND, state.bucket.latest / MICROSECOND].map(whole)
    }

    fn damaged(&self) -> RedisError {
        RedisError::Damaged { place: self.address.to_string(), key: self.address.key() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shadow(&self) -> MutexGuard<'_, Limits> {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a question that was answered before the answer was needed was on its way there, and the quickest answer back: the
/// server's clock as it is known here is behind by as much as that.
fn on_its_way(said: &Said, asked_there: Nanos) -> Nanos {
    match said {
        Said::Answer(answer) => answer.now.saturating_mul(MICROSECOND).saturating_sub(asked_there),
        Said::TooLong(_) | Said::Never => Nanos::MAX,
    }
}

/// No limit on a server reaches beyond what the script reckons exactly.
fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX).min(1 << 51)
}

/// Time, units and the limit that bound, from 1, of each grant: of some of the units that were asked for, in order.
fn grants(answer: &Answer, asked: u64) -> Option<Vec<Grant>> {
    let number = |number: i64| u64::try_from(number).ok();
    let (mut left, mut latest) = (asked, 0);
    let grant = |run: &[i64]| {
        let (at, units, place) = (number(run[0])?, number(run[1])?, usize::try_from(run[2]).ok()?);
        let is_in_order = std::mem::replace(&mut latest, at) <= at;
        left = left.checked_sub(units)?;
        let makes_sense = is_in_order && at < 1 << 52 && (units > 0 || asked == 0);
        makes_sense.then(|| Grant::told(at.saturating_mul(MICROSECOND), units, place.checked_sub(1), answer.number))
    };
    let runs = answer.numbers.chunks_exact(3);
    if runs.remainder().is_empty() && runs.len() > 0 { runs.map(grant).collect() } else { None }
}

impl Store for Redis {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn quantum(&self) -> u64 {
        self.state().bucket.quantum
    }

    fn available(&self) -> u64 {
        match self.state().lease.units() {
            0 => self.shadow().available(self.clock.now()),
            units => units,
        }
    }

    fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let state = &mut *self.state();
        self.clock.pass();
        self.forget_late(state);
        if state.lease.is_empty() {
            self.receive(state);
            self.forget_late(state);
        }
        if state.lease.is_empty() {
            self.lease(state, waiting)?;
        }
        self.check_kind(state)?;
        let run = state.lease.next(waiting).ok_or(Refusal::Never)?;
        Ok((run, self.clock.now()))
    }

    fn take_available(&self, units: u64) -> u64 {
        let state = &mut *self.state();
        let now = self.clock.now();
        if state.lease.is_stale(now) { 0 } else { state.lease.due(now, units) }
    }

    fn foresee(&self, units: u64) {
        self.look_ahead(&mut self.state(), units);
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        self.shadow().schedule(self.clock.now(), units)
    }

    fn retire(&self) {
        if self.clock.stop() {
            return;
        }
        let Some(mut state) = lock_soon(&self.state) else { return };
        state.lease.take_back(self.clock.now());
        state.link.patience = FAREWELL;
        let _ = self.return_lease(&mut state);
    }
}

impl Shared for Redis {
    fn place(&self) -> String {
        self.address.to_string()
    }

    fn plan(&self) -> Plan {
        // Whoever has opened it has seen it.
        self.state().bucket.plan.clone().unwrap_or_default()
    }

    fn set(&self, plan: &Plan, fresh: &[bool]) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let named = Known { id: state.bucket.id, latest: state.bucket.latest, ..Known::new(Some(plan))? };
        let before = std::mem::replace(&mut state.bucket, named);
        let fresh: Vec<i64> = (0..plan.len()).map(|place| fresh.get(place).copied().unwrap_or(false).into()).collect();
        let set = self.ask(state, "set", &fresh);
        match set {
            Ok(_) => {
                *self.shadow() = Limits::new(plan, self.clock.now());
                state.meant = Some(plan.clone());
                Ok(())
            }
            Err(error) => {
                state.bucket = before;
                Err(error)
            }
        }
    }

    fn view(&self) -> Result<View, StoreError> {
        let state = &mut *self.state();
        let mut numbers = self.ask(state, "look", &[])?.numbers;
        let plan = state.bucket.plan.clone().ok_or_else(|| self.damaged())?;
        let (wait, available) = (numbers.pop(), numbers.pop());
        Ok(View {
            plan,
            left: numbers.into_iter().map(i128::from).collect(),
            available: available.and_then(|units| u64::try_from(units).ok()).unwrap_or(0),
            wait: wait.and_then(|wait| u64::try_from(wait).ok()).map(|wait| wait.saturating_mul(MICROSECOND)),
        })
    }

    fn take(&self, units: u64, max_wait: Option<Nanos>) -> Result<(Grant, Nanos), StoreError> {
        let state = &mut *self.state();
        let max_wait = max_wait.map_or(-1, |wait| whole(wait / MICROSECOND));
        let units = i64::try_from(units).ok().filter(|units| *units <= 1 << 51).ok_or(Refusal::Never)?;
        let answer = self.ask(state, "take", &[units, max_wait])?;
        let grant = grants(&answer, units.unsigned_abs())
            .and_then(|grants| grants.first().copied())
            .ok_or_else(|| self.damaged())?;
        self.remember(state, &[grant]);
        Ok((grant.of(state.bucket.generation()), self.clock.now()))
    }

    fn give_back(&self, grant: &Grant) -> Result<(), StoreError> {
        let state = &mut *self.state();
        state.link.patience = FAREWELL;
        self.receive(state);
        if grant.generation() != state.bucket.generation() {
            return Ok(());
        }
        let with = [whole(grant.number()), whole(grant.at / MICROSECOND), whole(grant.units)];
        let said = state.link.ask_once(&self.question(&state.bucket, "give", &with))?;
        self.answer(state, said).map(drop)
    }
}

/// What was reserved for units that will not come after all is given back, as far as that can be.
impl Drop for Redis {
    fn drop(&mut self) {
        let state = &mut *self.state();
        state.link.patience = FAREWELL;
        // Where it cannot be given back, at most a lease is lost, as when we are killed.
        let _ = self.return_lease(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_that_make_no_sense_are_none() {
        let told = |numbers: &[i64]| {
            let answer = Answer { numbers: numbers.to_vec(), number: 7, ..Answer::default() };
            grants(&answer, 5).map(|grants| grants.iter().map(|grant| (grant.at, grant.units)).collect::<Vec<_>>())
        };
        assert_eq!(told(&[1, 2, 0, 1, 3, 1]), Some(vec![(1_000, 2), (1_000, 3)]));
        for wrong in [
            &[][..],
            &[1, 2],
            &[1, 0, 0],
            &[1, 6, 0],
            &[1, i64::MAX, 0, 1, i64::MAX, 0, 1, i64::MAX, 0],
            &[1, -1, 0],
            &[-1, 1, 0],
            &[i64::MAX, 1, 0],
            &[2, 1, 0, 1, 1, 0],
            &[1, 1, -1],
        ] {
            assert_eq!(told(wrong), None, "{wrong:?}");
        }
    }
}
