//! The grants of a run. All units wait in one [`Line`], which decides which unit goes next, and when. The pump polls
//! the line. The tasks of commands report the real cost and the end of each unit to it.
//!
//! If a shared bucket applies the limits, the line only orders the units, and a [`Bucket`] requests their grants.

use super::bucket::Bucket;
use super::lock::unpoisoned;
use super::next::{Granted, Next, Refusal};
use super::units::Units;
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, Thread};
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::ledger::operation::Operation;
use throttle_limits::line::{self, Line, Unit};
use throttle_limits::store::{AnyStore, StoreError, with_replica};

/// The grants of a run with units of the type `T`.
pub struct Grants<T> {
    units: Units<T>,
    /// The units that were granted with costs of their own: the sum of each cost, and the number of these units.
    charged: Mutex<(Vec<u64>, u64)>,
    bucket: Option<Bucket<T>>,
    has_keys: bool,
    /// Whether the run is over: nothing leaves any more.
    is_retired: AtomicBool,
    /// The pump's thread, once it runs.
    pump: Mutex<Option<Thread>>,
}

/// The state of the limits of a run, for its report.
pub trait Overview: Debug + Send + Sync {
    /// The clock of the run.
    fn clock(&self) -> &dyn NanoClock;

    /// Ends the run: nothing is granted any more, and unused grants of a bucket are given back.
    fn retire(&self);

    /// For each limit of all units, the units that it allows now. `None` if that needs a request.
    fn left(&self) -> Option<Vec<i128>>;

    /// The time by which `units` more units will have been granted. Units with their own costs are expected to have the
    /// mean cost of earlier units.
    fn schedule(&self, units: u64) -> Option<Nanos>;

    /// The end of the pause of all units, if there is one.
    fn paused_until(&self) -> Option<Nanos>;

    /// When the next unit leaves a shared bucket, if that is known. 0 without a bucket.
    fn waits_until(&self) -> Nanos;

    /// The shared bucket, if there is one.
    fn bucket(&self) -> Option<&Arc<AnyStore>>;
}

impl<T> Debug for Grants<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grants").field("bucket", &self.bucket.is_some()).finish_non_exhaustive()
    }
}

impl<T: Send> Grants<T> {
    /// The grants of `line`, whose times are those of `clock`. If there is a `bucket`, it applies the limits. `has_keys`:
    /// keys have limits of their own.
    pub fn new(
        line: Line<T>,
        clock: Arc<dyn NanoClock + Send + Sync>,
        bucket: Option<Bucket<T>>,
        has_keys: bool,
    ) -> Self {
        let (charged, is_retired, pump) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Grants { units: Units::new(line, clock), charged, bucket, has_keys, is_retired, pump }
    }

    /// The units that wait.
    pub fn line(&self) -> MutexGuard<'_, Line<T>> {
        self.units.line()
    }

    /// The time on the clock of the line.
    pub fn now(&self) -> Nanos {
        self.units.now()
    }

    /// Whether keys have limits of their own.
    pub fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// Whether a shared bucket applies the limits.
    pub fn is_shared(&self) -> bool {
        self.bucket.is_some()
    }

    /// The shared bucket, if there is one.
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
        self.units.refused().push_back((unit, why));
    }

    /// Takes out the units that will never leave.
    pub fn take_refused(&self) -> Vec<T> {
        self.units.refused().drain(..).map(|(unit, _)| unit).collect()
    }

    /// Grants one more unit without a key, if it may leave now together with the unit before it. Returns whether it
    /// may. With a window or a shared bucket it may not: there each unit has a request of its own.
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
            Some(bucket) => {
                let wanted = self.line().wanted();
                bucket.wants_more(wanted)
            }
            None => self.line().wants_more(now),
        }
    }

    /// Whether no unit waits.
    pub fn is_empty(&self) -> bool {
        // The line is not locked while the bucket is.
        let is_empty = self.line().is_empty() && self.units.refused().is_empty();
        is_empty && self.bucket.as_ref().is_none_or(Bucket::is_empty)
    }

    /// When a unit may leave, or is refused, if nothing happens before. `None` if no such time is known.
    pub fn due_at(&self) -> Option<Nanos> {
        if !self.units.refused().is_empty() {
            return Some(0);
        }
        let now = self.now();
        let own = self.line().ready_at(now);
        let of_bucket = self.bucket.as_ref().and_then(|bucket| bucket.next_event(now));
        own.into_iter().chain(of_bucket).min()
    }

    /// The index of the limit for which the next unit waits, and when that unit goes, after [`poll`](Self::poll) has
    /// returned `until`. `None` if all units wait for the times of further attempts.
    pub(super) fn waits_for(&self, until: Nanos) -> Option<(usize, Nanos)> {
        let (mut line, now) = (self.line(), self.now());
        let has_arrived = line.arrived(now) > 0;
        let (limit, next) = match &self.bucket {
            None if has_arrived => (line.bound_by(), line.grants_at(now)),
            None => return None,
            Some(bucket) => {
                // The line is not locked while the bucket is.
                drop(line);
                if !has_arrived && bucket.is_empty() {
                    return None;
                }
                (bucket.bound_by(), bucket.leaves_at(now))
            }
        };
        Some((if self.has_keys { 0 } else { limit.unwrap_or(usize::MAX) }, next.unwrap_or(until)))
    }

    /// The next event, for a sink that accepts at most `room` units. Only the pump's thread may call this.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] once the run has [retired](Overview::retire); or the bucket cannot be reached.
    pub fn poll(&self, room: u64) -> Result<Next<T>, StoreError> {
        if self.is_retired() && !self.is_empty() {
            return Err(StoreError::Stopped);
        }
        if let Some((unit, why)) = self.units.refused().pop_front() {
            return Ok(Next::Refused(unit, why));
        }
        if let Some(bucket) = &self.bucket {
            let next = bucket.poll(&self.units, room)?;
            if let Next::Go(granted, _) = &next {
                self.count(&granted.costs);
            }
            return Ok(next);
        }
        let mut line = self.line();
        Ok(match line.poll(self.now(), room) {
            line::Next::Run(run) => Next::Run(run.units, run.has_waited.then_some(run.charged.at), Some(run)),
            line::Next::Go(key, unit, charged) => {
                self.count(&unit.costs);
                Next::Go(Granted::new(key, charged, &unit), unit.content)
            }
            line::Next::Refused(_, unit, why) => Next::Refused(unit.content, why.into()),
            line::Next::At(time) => Next::At(time),
            line::Next::Nothing => Next::Nothing,
        })
    }

    /// Passes the reports of servers on to a shared bucket.
    pub(super) fn pass_on(&self) {
        self.bucket.iter().for_each(|bucket| bucket.pass_on(&self.units));
    }

    /// Passes all reports on, at the end of the run.
    ///
    /// # Errors
    /// The bucket cannot be reached.
    pub(super) fn pass_all_on(&self) -> Result<(), StoreError> {
        self.bucket.as_ref().map_or(Ok(()), |bucket| bucket.pass_all_on(&self.units))
    }

    /// Counts the costs of a unit, for [`schedule`](Overview::schedule).
    fn count(&self, costs: &[u64]) {
        let (sums, count) = &mut *unpoisoned(self.charged.lock());
        sums.resize(costs.len(), 0);
        sums.iter_mut().zip(costs).for_each(|(sum, cost)| *sum = sum.saturating_add(*cost));
        *count += 1;
    }

    /// Reports that plain units have left now: windows count them from now on.
    pub(super) fn run_has_left(&self, run: &line::Run) {
        self.line().run_left(self.now(), run);
    }

    /// Reports that a unit has left now: windows of the line count it from now on.
    pub fn unit_has_left(&self, granted: &Granted) {
        self.line().handed_over(self.now(), granted.key, granted.charged, &granted.costs);
    }

    /// Settles a unit at its real costs.
    pub fn settle(&self, granted: &Granted, real: &[u64]) {
        match (&self.bucket, granted.charge) {
            (Some(bucket), Some(charge)) => {
                bucket.tell(Operation::Settle { number: charge.number, real: real.into() }, true);
            }
            _ => self.line().settle(self.now(), granted.charged.number, real),
        }
    }

    /// Reports that a unit no longer runs: its cost is final, and it takes no job of its key any more.
    pub fn ended(&self, granted: &Granted) {
        match (&self.bucket, granted.charge) {
            (Some(bucket), Some(charge)) if charge.is_kept => {
                bucket.tell(Operation::Ended(vec![charge.number]), bucket.counts_jobs());
            }
            (None, _) => self.line().ended(self.now(), granted.charged.number),
            _ => {}
        }
    }

    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// Sleeps until this time, or until the run has [retired](Overview::retire).
    pub(super) fn sleep_until(&self, time: Nanos) {
        self.units.clock.sleep_unless(time, &|| self.is_retired());
    }

    /// Records that the calling thread is the pump's, for [`retire`](Overview::retire).
    pub(super) fn is_polled_here(&self) {
        *unpoisoned(self.pump.lock()) = Some(thread::current());
    }
}

impl<T: Send> Overview for Grants<T> {
    fn clock(&self) -> &dyn NanoClock {
        &*self.units.clock
    }

    fn retire(&self) {
        if !self.is_retired.swap(true, Ordering::SeqCst) {
            // The pump may sleep.
            unpoisoned(self.pump.lock()).iter().for_each(Thread::unpark);
        }
        if let Some(bucket) = &self.bucket {
            bucket.retire();
        }
    }

    fn left(&self) -> Option<Vec<i128>> {
        (self.bucket.is_none() && !self.has_keys).then(|| self.line().left(self.now()))
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        let now = self.now();
        let (sums, count) = unpoisoned(self.charged.lock()).clone();
        let mean = |sum: &u64| {
            let all = u128::from(*sum) * u128::from(units);
            u64::try_from(all.checked_div(count.into()).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let costs: Vec<u64> = if count == 0 { vec![units] } else { sums.iter().map(mean).collect() };
        match &self.bucket {
            Some(bucket) => {
                let of_bucket = bucket.store().clock().now();
                let at = with_replica(&**bucket.store(), |replica| replica.schedule(of_bucket, &costs));
                Some(bucket.here(now, at?))
            }
            None => self.line().schedule(now, &costs),
        }
    }

    fn paused_until(&self) -> Option<Nanos> {
        let now = self.now();
        match &self.bucket {
            Some(bucket) => {
                let until = with_replica(&**bucket.store(), |replica| replica.paused_until());
                until.map(|time| bucket.here(now, time))
            }
            None => self.line().held_until().filter(|time| *time > now),
        }
    }

    fn waits_until(&self) -> Nanos {
        let now = self.now();
        self.bucket.as_ref().and_then(|bucket| bucket.leaves_at(now)).unwrap_or(0)
    }

    fn bucket(&self) -> Option<&Arc<AnyStore>> {
        self.bucket.as_ref().map(Bucket::store)
    }
}
