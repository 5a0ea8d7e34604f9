//! A lease: consecutive reservations taken in one step, for units that were read. Each leaves at its own time.

use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{Grant, Limits, OnlyWindows, Policy, Rest};
use std::collections::VecDeque;

/// A run may leave this late in any case: a busy machine wakes a process that late.
pub(super) const LATE: Nanos = 10 * MILLISECOND;

/// Reservations not yet used, in order: those of earlier leases, then those of the latest.
#[derive(Debug, Default)]
pub struct Lease {
    runs: VecDeque<Grant>,
    rules: Rules,
    /// The last run of the latest lease, used or not.
    last: Option<Grant>,
    /// Units of the latest lease, used or not.
    units_of_last: u64,
    /// How many runs the latest lease had.
    runs_of_last: u64,
    /// The run that was handed out last.
    handed: Option<Grant>,
}

/// What matters of the limits that granted a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// How late a run may leave without causing a burst.
    allowance: Nanos,
    /// A grant counts for a whole period, used or not.
    has_window: bool,
    pub(super) only_windows: Option<OnlyWindows>,
    pub(super) counts_bytes: bool,
}

impl Rules {
    pub(super) fn of(policy: &Policy, limits: &Limits) -> Self {
        let fill_time = Some(limits.fill_time()).filter(|time| *time > 0);
        let allowance = policy.least_slack().map(|slack| slack.max(LATE)).into_iter().chain(fill_time).min();
        let allowance = allowance.unwrap_or(LATE);
        let has_window = limits.largest_cost() < u64::MAX;
        Rules { allowance, has_window, only_windows: policy.only_windows(), counts_bytes: policy.counts_bytes() }
    }

    /// The same, of limits that have just begun.
    pub(super) fn of_new(policy: &Policy) -> Self {
        Rules::of(policy, &Limits::new(policy, 0))
    }

    pub(super) fn is_too_late(&self, late: Nanos) -> bool {
        late > self.allowance
    }
}

impl Lease {
    /// An empty lease, before the first.
    pub(super) fn none(policy: &Policy) -> Self {
        Lease { rules: Rules::of_new(policy), ..Lease::default() }
    }

    /// Begins another lease: [`push`](Self::push) now adds its runs after those that are there.
    pub(super) fn begin(&mut self, rules: Rules) {
        (self.rules, self.last, self.units_of_last, self.runs_of_last) = (rules, None, 0, 0);
    }

    pub(super) fn push(&mut self, run: Grant) {
        self.runs.push_back(run);
        self.last = Some(run);
        self.units_of_last += run.units;
        self.runs_of_last += 1;
    }

    /// Removes the latest lease, which was not granted after all.
    pub(super) fn cancel(&mut self) {
        while self.units_of_last > 0 {
            let Some(run) = self.runs.pop_back() else { break };
            self.units_of_last = self.units_of_last.saturating_sub(run.units);
        }
    }

    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// The runs that are not used yet, in order.
    #[must_use = "nothing is taken out"]
    pub fn runs(&self) -> impl ExactSizeIterator<Item = &Grant> {
        self.runs.iter()
    }

    /// Takes out what is left, to give it back.
    pub(super) fn take_rest(&mut self) -> Option<Rest> {
        let runs = std::mem::take(&mut self.runs);
        let last = self.last.take().filter(|_| !runs.is_empty())?;
        let left: u64 = runs.iter().map(|run| run.units).sum();
        let of_last = left.min(self.units_of_last);
        // No run belongs to two leases, so the runs of older leases can be counted.
        let (mut older, mut count) = (left - of_last, 0);
        while older > 0 && count < runs.len() {
            older = older.saturating_sub(runs[count].units);
            count += 1;
        }
        Some(Rest { last, spent: self.units_of_last - of_last, older: count, runs })
    }

    /// The time of the last run, used or not.
    pub(super) fn latest(&self) -> Nanos {
        self.last.map_or(0, |run| run.at)
    }

    /// The number of the last grant before the latest lease, if nobody took or changed anything between its requests, and
    /// that of its last grant.
    pub(super) fn numbers(&self) -> Option<(u64, u64)> {
        self.last.map(|run| (run.number().saturating_sub(self.runs_of_last), run.number()))
    }

    /// Drops runs that are so late that they would leave together with the next ones as a burst. In a bucket their time
    /// is lost and the later runs stay. In a window they would count for a whole period, so everything should be given
    /// back: then this returns `true`.
    pub(super) fn drop_late(&mut self, now: Nanos) -> bool {
        while self.is_stale(now) && !self.rules.has_window {
            self.runs.pop_front();
        }
        self.is_stale(now)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Units not yet used.
    pub(super) fn units(&self) -> u64 {
        self.runs.iter().map(|run| run.units).sum()
    }

    /// Whether the next run is so late that it would cause a burst.
    pub(super) fn is_stale(&self, now: Nanos) -> bool {
        self.runs.front().is_some_and(|run| self.rules.is_too_late(now.saturating_sub(run.at)))
    }

    /// The next run, or `most` units of it.
    pub fn next(&mut self, most: u64) -> Option<Grant> {
        let mut run = *self.runs.front()?;
        run.units = run.units.min(most);
        self.spend(run.units);
        self.handed = Some(run);
        Some(run)
    }

    /// The run that was handed out last, if it has to wait until `time`.
    pub(super) fn handed(&self, time: Nanos) -> Option<Grant> {
        self.handed.filter(|run| run.at == time)
    }

    /// The time of the run that was handed out last.
    pub(super) fn waits_until(&self) -> Nanos {
        self.handed.map_or(0, |run| run.at)
    }

    /// The run that was handed out last has another time now.
    pub(super) fn moved(&mut self, run: &Grant) {
        self.handed = Some(*run);
    }

    /// Puts the run handed out last back if its time has not come by `now`: it has not left.
    pub(super) fn take_back(&mut self, now: Nanos) {
        let Some(run) = self.handed.take().filter(|run| run.at > now) else { return };
        match self.runs.front_mut() {
            // The rest of the same run.
            Some(rest) if rest.at == run.at => rest.units += run.units,
            _ => self.runs.push_front(run),
        }
    }

    /// Units, at most `most`, whose time has come.
    pub(super) fn due(&mut self, now: Nanos, most: u64) -> u64 {
        let mut units = 0;
        while units < most && self.runs.front().is_some_and(|run| run.at <= now) {
            units += self.next(most - units).map_or(0, |run| run.units);
        }
        units
    }

    fn spend(&mut self, units: u64) {
        let Some(run) = self.runs.front_mut() else { return };
        run.units -= units;
        if run.units == 0 {
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Ask;

    fn lease(limit: &str, waiting: u64) -> Lease {
        let policy = Policy::new(&[limit.parse().unwrap()], None).unwrap();
        let (mut limits, mut lease) = (Limits::new(&policy, 0), Lease::default());
        lease.begin(Rules::of(&policy, &limits));
        let ask = Ask { waiting, span: 10 * MILLISECOND, from: 0 };
        limits.lease(0, &ask, |run| lease.push(run)).unwrap();
        lease
    }

    fn times(lease: &mut Lease) -> Vec<(Nanos, u64)> {
        std::iter::from_fn(|| lease.next(u64::MAX)).map(|run| (run.at / MILLISECOND, run.units)).collect()
    }

    #[test]
    fn a_lease_covers_waiting_units_and_ends_after_its_span() {
        let fast = |waiting| times(&mut lease("1000/s,burst=1", waiting));
        assert_eq!(fast(1), [(0, 1)]);
        assert_eq!(fast(3), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(fast(1_000_000).last(), Some(&(9, 1)));
        assert_eq!(times(&mut lease("5/s", 100)), [(0, 1)], "the next leaves much later");
    }

    #[test]
    fn a_run_that_was_handed_out_and_has_not_left_is_put_back() {
        let mut taken = lease("1000/s,burst=1", 3);
        let first = taken.next(9).unwrap();
        taken.take_back(first.at);
        assert_eq!(taken.units(), 2, "its time has come");
        let second = taken.next(9).unwrap();
        taken.take_back(second.at - 1);
        assert_eq!(taken.units(), 2);
        taken.take_back(0);
        assert_eq!(taken.units(), 2, "once");
    }

    #[test]
    fn each_unit_has_its_own_time() {
        let mut taken = lease("1000/s,burst=3", 6);
        let first = taken.next(2).unwrap();
        assert_eq!((first.at, first.units, taken.units()), (0, 2, 4));
        assert_eq!(taken.due(0, 9), 1);
        assert_eq!(taken.due(2 * MILLISECOND, 9), 2);
        assert_eq!((taken.due(2 * MILLISECOND, 9), taken.units()), (0, 1));
        let mut late = lease("1000/s,burst=3", 6);
        assert!(!late.drop_late(4 * MILLISECOND));
        assert_eq!(times(&mut late), [(1, 1), (2, 1), (3, 1)], "the first three are too late");
    }

    #[test]
    fn runs_are_stale_when_the_bucket_has_filled_since() {
        let mut taken = lease("1000/s,burst=3", 6);
        let _ = taken.next(3).unwrap();
        let _ = taken.next(2).map(|_| taken.next(2));
        let third = taken.latest();
        assert_eq!(third, 3 * MILLISECOND);
        assert!(!taken.is_stale(6 * MILLISECOND), "the bucket fills in 3 ms");
        assert!(taken.is_stale(6 * MILLISECOND + 1));
        assert!(lease("3/min,window", 3).drop_late(11 * MILLISECOND), "a window counts it all the same");
    }

    #[test]
    fn the_rest_of_two_leases_tells_them_apart() {
        let mut taken = lease("1000/s,burst=1", 3);
        let mut second = lease("1000/s,burst=1", 2);
        let _ = taken.next(1);
        taken.begin(second.rules());
        while let Some(run) = second.next(1) {
            taken.push(run);
        }
        let rest = taken.take_rest().unwrap();
        assert_eq!((rest.spent, rest.older, rest.runs.len()), (0, 2, 4));
        assert!(taken.take_rest().is_none());
    }
}
