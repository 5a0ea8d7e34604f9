//! A lease: consecutive reservations taken in one go, for units that were read, each to leave at its own time.

use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{Grant, Limits, Refusal};
use std::collections::VecDeque;

/// A lease covers at least so much time, where so many units wait.
const SPAN: Nanos = 10 * MILLISECOND;

/// Where only windows limit, what is later than this is asked for anew.
const LATE: Nanos = 10 * MILLISECOND;

/// Reservations not yet used, in order.
#[derive(Debug, Default)]
pub(super) struct Lease {
    runs: VecDeque<Grant>,
    /// How late a run may leave without making a burst.
    allowance: Nanos,
    spent: u64,
    /// The last run that was handed out.
    last: Option<Grant>,
}

impl Lease {
    /// Reserves runs for `waiting` units from `now` on, or for as many of them as leave within 10 ms.
    ///
    /// # Errors
    /// The first run is refused; nothing is charged then.
    pub(super) fn take(limits: &mut Limits, now: Nanos, waiting: u64) -> Result<Self, Refusal> {
        let allowance = Lease::allowance(limits);
        let first = limits.take_run(now, waiting)?;
        let mut left = waiting - first.units;
        let mut runs = VecDeque::from([first]);
        while left > 0 && limits.latest() < now.saturating_add(SPAN) {
            let Ok(run) = limits.take_run(now, left) else { break };
            left -= run.units;
            runs.push_back(run);
        }
        Ok(Lease { runs, allowance, ..Lease::default() })
    }

    /// How late a run may leave without making a burst.
    pub(super) fn allowance(limits: &Limits) -> Nanos {
        match limits.fill_time() {
            0 => LATE,
            time => time,
        }
    }

    /// Adds `runs`, which come after those that are there.
    pub(super) fn append(&mut self, runs: Vec<Grant>, allowance: Nanos) {
        self.runs.extend(runs);
        self.allowance = allowance;
    }

    /// What is left.
    pub(super) fn into_runs(self) -> impl Iterator<Item = Grant> {
        self.runs.into_iter()
    }

    /// The time of the last run, be it handed out already; 0 where there is none.
    pub(super) fn latest(&self) -> Nanos {
        self.runs.back().or(self.last.as_ref()).map_or(0, |run| run.at)
    }

    /// Leaves out what is so late that with the rest it would be a burst: its time is lost, its units wait for another.
    pub(super) fn drop_late(&mut self, now: Nanos) {
        while self.is_stale(now) {
            self.runs.pop_front();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Units not yet used.
    pub(super) fn units(&self) -> u64 {
        self.runs.iter().map(|run| run.units).sum()
    }

    /// Units used.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// Whether what comes next is so late that with the rest it would be a burst.
    pub(super) fn is_stale(&self, now: Nanos) -> bool {
        self.runs.front().is_some_and(|run| now.saturating_sub(run.at) > self.allowance)
    }

    /// The next run, or what of it `most` units are.
    pub(super) fn next(&mut self, most: u64) -> Option<Grant> {
        let mut run = *self.runs.front()?;
        run.units = run.units.min(most);
        self.spend(run.units);
        self.last = Some(run);
        Some(run)
    }

    /// Puts the run handed out last back if its time has not come by `now`: it has not left.
    pub(super) fn take_back(&mut self, now: Nanos) {
        let Some(run) = self.last.take().filter(|run| run.at > now) else { return };
        self.spent -= run.units;
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
        self.spent += units;
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
    use crate::limits::Plan;

    fn limits(limit: &str) -> Limits {
        Limits::new(&Plan::new(&[limit.parse().unwrap()], None).unwrap(), 0)
    }

    fn times(lease: &mut Lease) -> Vec<(Nanos, u64)> {
        std::iter::from_fn(|| lease.next(u64::MAX)).map(|run| (run.at / MILLISECOND, run.units)).collect()
    }

    #[test]
    fn a_lease_is_for_units_that_wait_and_no_longer_than_it_must_be() {
        let lease = |waiting| times(&mut Lease::take(&mut limits("1000/s,burst=1"), 0, waiting).unwrap());
        assert_eq!(lease(1), [(0, 1)]);
        assert_eq!(lease(3), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(lease(1_000_000).last(), Some(&(10, 1)));
        let slow = times(&mut Lease::take(&mut limits("5/s"), 0, 100).unwrap());
        assert_eq!(slow, [(0, 1), (200, 1)]);
    }

    #[test]
    fn what_was_handed_out_and_has_not_left_is_put_back() {
        let mut lease = Lease::take(&mut limits("1000/s,burst=1"), 0, 3).unwrap();
        let first = lease.next(9).unwrap();
        lease.take_back(first.at);
        assert_eq!((lease.units(), lease.spent()), (2, 1), "its time has come");
        let second = lease.next(9).unwrap();
        lease.take_back(second.at - 1);
        assert_eq!((lease.units(), lease.spent()), (2, 1));
        lease.take_back(0);
        assert_eq!((lease.units(), lease.spent()), (2, 1), "once");
        let mut whole = Lease::take(&mut limits("1000/s,burst=3,initial=0"), 0, 3).unwrap();
        let before = whole.units();
        let _ = whole.next(1).unwrap();
        whole.take_back(0);
        assert_eq!((whole.units(), whole.spent()), (before, 0));
    }

    #[test]
    fn each_unit_has_its_own_time() {
        let mut lease = Lease::take(&mut limits("1000/s,burst=3"), 0, 6).unwrap();
        let first = lease.next(2).unwrap();
        assert_eq!((first.at, first.units, lease.units(), lease.spent()), (0, 2, 4, 2));
        assert_eq!(lease.due(0, 9), 1);
        assert_eq!(lease.due(2 * MILLISECOND, 9), 2);
        assert_eq!((lease.due(2 * MILLISECOND, 9), lease.units()), (0, 1));
        let mut late = Lease::take(&mut limits("1000/s,burst=3"), 0, 6).unwrap();
        late.drop_late(4 * MILLISECOND);
        assert_eq!(times(&mut late), [(1, 1), (2, 1), (3, 1)], "the first three are too late");
        assert!(!lease.is_stale(6 * MILLISECOND), "the bucket fills in 3 ms");
        assert!(lease.is_stale(6 * MILLISECOND + 1));
    }
}
