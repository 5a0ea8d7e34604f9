//! The grants of a run. All units wait in one [`Line`], which decides what goes next, and when. The pump polls it. The
//! tasks of commands report to it what became of a unit.
//!
//! If a shared bucket applies the limits, the line only orders the units, and a [`Bucket`] requests their grants.

use super::bucket::{Bucket, Charge};
use super::contract::FlowError;
use super::copy::Sink;
use super::lock::unpoisoned;
use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, Thread};
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::line::{self, Charged, Costs, KeyId, Line, Unit};
use throttle_limits::store::{StoreError, Supply};

/// The grants of a run with units of the type `T`.
pub struct Grants<T> {
    line: Mutex<Line<T>>,
    clock: Arc<dyn NanoClock + Send + Sync>,
    /// Units that will never be granted.
    refused: Mutex<VecDeque<(T, Refusal)>>,
    /// The costs of the units that were granted with costs of their own, and their number.
    charged: Mutex<(Vec<u64>, u64)>,
    bucket: Option<Bucket<T>>,
    terms: Terms<T>,
    /// The unit of the line that is being handed over. Another thread may report its end before that is done.
    handing: Mutex<Option<Handing>>,
    is_retired: AtomicBool,
    pump: Mutex<Option<Thread>>,
}

/// The reports about a unit that arrived while it was handed over.
struct Handing {
    key: KeyId,
    charged: Charged,
    real: Option<Costs>,
    has_ended: bool,
}

/// What a run asks of its grants.
#[derive(Clone, Copy)]
pub struct Terms<T> {
    /// Whether keys have limits of their own.
    pub has_keys: bool,
    /// Whether a unit runs until [`Grants::ended`].
    pub runs: bool,
    /// Whether the real cost of a unit becomes known after its grant.
    pub settles: fn(&T) -> bool,
}

impl<T> Default for Terms<T> {
    fn default() -> Self {
        Terms { has_keys: false, runs: false, settles: |_| false }
    }
}

/// The next event.
#[derive(Debug)]
pub enum Next<T> {
    /// So many plain units may leave now. `has_waited`: since when they could have left.
    Run(u64, Option<Nanos>, Leaving),
    /// This unit may leave now.
    Go(Granted, T),
    /// This unit never leaves.
    Refused(T, Refusal),
    /// Nothing happens before this time.
    At(Nanos),
    /// Nothing happens before a report or a further unit.
    Nothing,
}

/// Waits for a time, and may tell the user about a long wait.
pub trait Patience: Sync {
    /// Waits from `now` until `until`, by one or several calls of `wait` with a time. Returns `false` as soon as a call
    /// returns `false`: the wait has ended early.
    fn wait(&self, _now: Nanos, until: Nanos, wait: &mut dyn FnMut(Nanos) -> bool) -> bool {
        wait(until)
    }
}

/// Waits without a word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Patience for Silent {}

/// How the pump's thread waits for a shared bucket.
pub struct Waiting<'a> {
    /// Waits.
    pub patience: &'a dyn Patience,
    /// Called at the beginning of a wait, with its end, the index of the limit, and the number of granted units.
    pub begins: &'a dyn Fn(Nanos, Option<usize>, u64),
}

/// Why a unit never leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its key or a cost cannot be read.
    Unread,
    /// A cost is above the most that a limit ever grants.
    TooMuch,
    /// It would wait longer than allowed.
    TooLate,
    /// This many commands of its key have failed in a row.
    KeyFailed(NonZeroU32),
    /// The server of its key asked for a longer pause than allowed.
    SentAway,
}

/// The grant of a unit.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The key of the unit.
    pub key: KeyId,
    /// When it was charged.
    pub charged: Charged,
    /// Its costs.
    pub costs: Costs,
    /// Since when it has waited.
    pub arrived: Nanos,
    /// What a shared bucket was charged for it.
    pub charge: Option<Charge>,
}

/// Units that are about to leave.
#[derive(Debug)]
pub enum Leaving {
    /// Plain units of the line.
    Run(line::Run),
    /// Units of a shared bucket.
    OfBucket,
}

/// The state of the limits of a run, for its report.
pub trait Overview: Debug + Send + Sync {
    /// The clock of the run.
    fn clock(&self) -> &dyn NanoClock;

    /// Ends the run: nothing is granted any more, and unused grants of a bucket are given back.
    fn retire(&self);

    /// For each limit of all units, the units that it allows now. `None` if that needs a request.
    fn left(&self) -> Option<Vec<i128>>;

    /// The time by which so many more units will have been granted. Units with their own costs are expected to have the
    /// mean cost of earlier units.
    fn schedule(&self, units: u64) -> Option<Nanos>;

    /// The end of the pause of all units, if there is one.
    fn paused_until(&self) -> Option<Nanos>;

    /// When the next unit leaves a shared bucket, as far as that is known.
    fn waits_until(&self) -> Nanos;

    /// The shared bucket.
    fn bucket(&self) -> Option<&Arc<Supply>>;
}

impl<T> Debug for Grants<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants").field("bucket", &self.bucket.is_some()).finish_non_exhaustive()
    }
}

impl<T: Send> Grants<T> {
    /// Grants of `line`, on its clock. With a `bucket`, that applies the limits.
    pub fn new(
        line: Line<T>,
        clock: Arc<dyn NanoClock + Send + Sync>,
        bucket: Option<Bucket<T>>,
        terms: Terms<T>,
    ) -> Self {
        Grants {
            line: Mutex::new(line),
            clock,
            refused: Mutex::default(),
            charged: Mutex::default(),
            bucket,
            terms,
            handing: Mutex::default(),
            is_retired: AtomicBool::new(false),
            pump: Mutex::default(),
        }
    }

    /// The units that wait. A change of the line is one step, so a panic elsewhere does not leave it half changed.
    pub fn line(&self) -> MutexGuard<'_, Line<T>> {
        unpoisoned(self.line.lock())
    }

    /// The time on the clock of the line.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether keys have limits of their own.
    pub fn has_keys(&self) -> bool {
        self.terms.has_keys
    }

    /// Whether a unit runs until [`ended`](Self::ended).
    pub(super) fn runs(&self) -> bool {
        self.terms.runs
    }

    pub(super) fn settles(&self, unit: &T) -> bool {
        (self.terms.settles)(unit)
    }

    /// Whether a shared bucket applies the limits.
    pub fn is_shared(&self) -> bool {
        self.bucket.is_some()
    }

    /// The shared bucket, for reports.
    pub fn shared(&self) -> Option<&Bucket<T>> {
        self.bucket.as_ref()
    }

    /// Adds plain units.
    pub fn want(&self, units: u64) {
        self.line().want(self.now(), units);
    }

    /// Withdraws all plain units.
    pub fn want_nothing(&self) {
        self.line().want_nothing();
    }

    /// Adds a unit, with the weight of a suspect or 0.
    pub fn ask(&self, key: Option<&[u8]>, unit: Unit<T>, weight: u32) {
        let added = self.line().add_suspect(self.now(), key, unit, weight);
        if let Err(unit) = added {
            self.refuse(unit.content, Refusal::TooMuch);
        }
    }

    /// Adds a unit that will never leave. The pump returns it as soon as possible.
    pub fn refuse(&self, unit: T, why: Refusal) {
        unpoisoned(self.refused.lock()).push_back((unit, why));
    }

    /// Takes out the units that will never leave.
    pub fn take_refused(&self) -> Vec<T> {
        unpoisoned(self.refused.lock()).drain(..).map(|(unit, _)| unit).collect()
    }

    /// Grants one more unit of these costs and without a key, if it may leave now, together with the unit before it.
    pub fn passes(&self, costs: &[u64]) -> bool {
        let mut line = self.line();
        let passes = self.bucket.is_none() && !line.has_windows() && line.pass(self.now(), None, costs).is_some();
        if passes {
            self.count(costs);
        }
        passes
    }

    /// Whether more plain units should be read before the next wait.
    pub fn wants_more(&self) -> bool {
        let now = self.now();
        match &self.bucket {
            Some(bucket) => bucket.wants_more(self.line().wanted()),
            None => self.line().wants_more(now),
        }
    }

    /// Whether no unit waits.
    pub fn is_empty(&self) -> bool {
        self.line().is_empty()
            && unpoisoned(self.refused.lock()).is_empty()
            && self.bucket.as_ref().is_none_or(Bucket::is_empty)
    }

    /// When a unit may leave, or is refused, if nothing happens before. `None` if no such time is known.
    pub fn due_at(&self) -> Option<Nanos> {
        if !unpoisoned(self.refused.lock()).is_empty() {
            return Some(0);
        }
        let now = self.now();
        let own = self.line().ready_at(now);
        let of_bucket = self.bucket.as_ref().and_then(|bucket| bucket.next_event(now));
        own.into_iter().chain(of_bucket).min()
    }

    /// The index of the limit for which the next unit waits.
    pub fn bound_by(&self) -> usize {
        if self.terms.has_keys { 0 } else { self.line().bound_by().unwrap_or(usize::MAX) }
    }

    /// Waits until this sink accepts units. Nothing is granted later for that time.
    ///
    /// # Errors
    /// The sink fails.
    pub(super) fn room_of(&self, sink: &mut impl Sink) -> Result<u64, FlowError> {
        if sink.ready().map_err(FlowError::Write)? {
            self.line().ready_since(self.now());
        }
        Ok(u64::MAX)
    }

    /// The next event, for a sink that accepts at most `room` units. Only the pump's thread may call this. It sleeps only
    /// for a bucket without keys.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] once the run has [retired](Overview::retire); or the bucket cannot be reached.
    pub fn poll(&self, room: u64, waiting: &Waiting<'_>) -> Result<Next<T>, StoreError> {
        if self.is_retired() {
            return Err(StoreError::Stopped);
        }
        if let Some((unit, why)) = unpoisoned(self.refused.lock()).pop_front() {
            return Ok(Next::Refused(unit, why));
        }
        if let Some(bucket) = &self.bucket {
            return bucket.poll(self, room, waiting);
        }
        let mut line = self.line();
        Ok(match line.poll(self.now(), room) {
            line::Next::Run(run) => Next::Run(run.units, run.has_waited.then_some(run.charged.at), Leaving::Run(run)),
            line::Next::Go(key, unit, charged) => {
                let settles = self.settles(&unit.content);
                if settles {
                    line.open(key, charged, &unit.costs);
                }
                let handing = Handing { key, charged, real: None, has_ended: false };
                *unpoisoned(self.handing.lock()) = (settles || self.terms.runs).then_some(handing);
                self.count(&unit.costs);
                Next::Go(Granted::new(key, charged, &unit, None), unit.content)
            }
            line::Next::Drop(_, unit) => Next::Refused(unit.content, Refusal::TooLate),
            line::Next::At(time) => Next::At(time),
            line::Next::Nothing => Next::Nothing,
        })
    }

    /// Counts the costs of a unit, for [`schedule`](Overview::schedule).
    pub(super) fn count(&self, costs: &[u64]) {
        let (sums, count) = &mut *unpoisoned(self.charged.lock());
        sums.resize(costs.len(), 0);
        sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum = sum.saturating_add(*cost));
        *count += 1;
    }

    /// Plain units have left now: windows count them from now on.
    pub fn has_left(&self, leaving: &Leaving) {
        match (leaving, &self.bucket) {
            (Leaving::Run(run), _) => self.line().run_left(self.now(), run),
            (Leaving::OfBucket, Some(bucket)) => bucket.has_left(),
            (Leaving::OfBucket, None) => {}
        }
    }

    /// A unit has left now: windows count it from now on. Applies the reports about it that arrived meanwhile.
    pub fn unit_has_left(&self, granted: &Granted) {
        match (&self.bucket, &granted.charge) {
            (Some(bucket), Some(_)) => bucket.has_left(),
            (Some(_), None) => {}
            (None, _) => {
                self.line().handed_over(self.now(), granted.key, granted.charged, &granted.costs);
                let handed = unpoisoned(self.handing.lock()).take();
                let Some(Handing { real, has_ended, .. }) = handed else { return };
                real.into_iter().for_each(|real| self.settle(granted, &real));
                if has_ended {
                    self.ended(granted);
                }
            }
        }
    }

    /// Keeps a report about a unit that is being handed over. Returns false for any other unit.
    fn kept(&self, granted: &Granted, report: impl FnOnce(&mut Handing)) -> bool {
        let mut handing = unpoisoned(self.handing.lock());
        let is_it = |unit: &&mut Handing| (unit.key, unit.charged) == (granted.key, granted.charged);
        handing.as_mut().filter(is_it).map(report).is_some()
    }

    /// Settles a unit at its real costs. With a shared bucket this may take a while.
    pub fn settle(&self, granted: &Granted, real: &[u64]) {
        match (&self.bucket, &granted.charge) {
            (Some(bucket), Some(charge)) => bucket.settle(charge, real),
            (Some(_), None) => {}
            (None, _) if self.kept(granted, |unit| unit.real = Some(real.into())) => return,
            (None, _) => {
                let costs = [&*granted.costs, real];
                self.line().settle(self.now(), granted.key, granted.charged, costs);
            }
        }
        self.wake();
    }

    /// A unit no longer runs.
    pub fn ended(&self, granted: &Granted) {
        if self.terms.runs && !self.kept(granted, |unit| unit.has_ended = true) {
            self.line().ended(self.now(), granted.key);
        }
    }

    /// Whether the run has [retired](Overview::retire).
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// Sleeps until this time, or until the run has [retired](Overview::retire).
    pub(super) fn sleep_until(&self, time: Nanos) {
        self.clock.sleep_unless(time, &|| self.is_retired());
    }

    /// The calling thread is the pump's.
    pub(super) fn is_polled_here(&self) {
        *unpoisoned(self.pump.lock()) = Some(thread::current());
    }

    /// Wakes the pump if it sleeps, to look at its condition.
    pub fn wake(&self) {
        unpoisoned(self.pump.lock()).iter().for_each(Thread::unpark);
    }
}

impl<T: Send> Overview for Grants<T> {
    fn clock(&self) -> &dyn NanoClock {
        &*self.clock
    }

    fn retire(&self) {
        if !self.is_retired.swap(true, Ordering::SeqCst) {
            self.wake();
        }
        if let Some(bucket) = &self.bucket {
            bucket.supply().retire();
        }
    }

    fn left(&self) -> Option<Vec<i128>> {
        (self.bucket.is_none() && !self.terms.has_keys).then(|| self.line().left(self.now()))
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        let now = self.now();
        if let Some(bucket) = &self.bucket {
            return Some(bucket.here(now, bucket.supply().schedule(units)?));
        }
        let (sums, count) = unpoisoned(self.charged.lock()).clone();
        let mean = |sum: &u64| {
            let all = u128::from(*sum) * u128::from(units);
            u64::try_from(all.checked_div(count.into()).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let costs: Vec<u64> = if count == 0 { vec![units] } else { sums.iter().map(mean).collect() };
        self.line().schedule(now, &costs)
    }

    fn paused_until(&self) -> Option<Nanos> {
        let now = self.now();
        match &self.bucket {
            Some(bucket) => bucket.supply().store().paused_until().map(|time| bucket.here(now, time)),
            None => self.line().held_until().filter(|time| *time > now),
        }
    }

    fn waits_until(&self) -> Nanos {
        let now = self.now();
        self.bucket.as_ref().map_or(0, |bucket| bucket.here(now, bucket.supply().waits_until()))
    }

    fn bucket(&self) -> Option<&Arc<Supply>> {
        self.bucket.as_ref().map(Bucket::supply)
    }
}

impl Granted {
    /// The grant of this unit.
    pub(super) fn new<T>(key: KeyId, charged: Charged, unit: &Unit<T>, charge: Option<Charge>) -> Self {
        Granted { key, charged, costs: unit.costs.clone(), arrived: unit.arrived, charge }
    }
}
