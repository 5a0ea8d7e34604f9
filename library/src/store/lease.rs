//! A lease: consecutive reservations taken in one step, for units that were read. Each unit leaves at its own time.

use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{GiveBack, Grant, Limits, OnlyWindows, Policy, lag_allowance};
use std::collections::VecDeque;

/// How late a run may always leave: a busy machine wakes a process this late.
pub(crate) const LATE: Nanos = 10 * MILLISECOND;

/// Reservations not yet used, in order: the runs of earlier leases, then the runs of the latest lease.
#[derive(Debug, Default)]
pub(super) struct Lease {
    runs: VecDeque<Grant>,
    rules: Rules,
    /// The last run of the latest lease, used or not.
    last: Option<Grant>,
}

/// The properties of limits that matter for their leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// How late a run may leave. This is the lag allowance of the quickest bucket, or the slack of a window.
    allowance: Nanos,
    /// How late a run may leave if its grant took a round trip to arrive: at most the time in which a bucket fills.
    most: Nanos,
    pub(super) only_windows: Option<OnlyWindows>,
}

impl Rules {
    pub(super) fn of(policy: &Policy, limits: &Limits) -> Self {
        let of = |policy: &Policy, fill_time: Nanos| {
            let slack = policy.least_slack().map(|slack| [slack.max(LATE); 2]);
            let of_bucket = Some(fill_time).filter(|time| *time > 0).map(|time| [lag_allowance(time), time]);
            [slack, of_bucket]
        };
        let of_key = policy.of_keys().map(|keys| of(&keys.each, Limits::new(&keys.each, 0).fill_time()));
        let all = of(policy, limits.fill_time()).into_iter().chain(of_key.into_iter().flatten()).flatten();
        let least = all.reduce(|[allowance, most], next| [allowance.min(next[0]), most.min(next[1])]);
        let [allowance, most] = least.unwrap_or([LATE; 2]);
        // Streams need not take turns at windows if a learned pace spaces the grants anyway.
        Rules { allowance, most, only_windows: policy.only_windows().filter(|_| !limits.are_spaced()) }
    }

    /// The rules of limits in their initial state.
    pub(super) fn of_new(policy: &Policy) -> Self {
        Rules::of(policy, &Limits::new(policy, 0))
    }

    /// Whether a run may no longer leave, because later runs would leave together with it. `round_trip` is the time in
    /// which its grant may have arrived.
    pub(super) fn is_too_late(&self, late: Nanos, round_trip: impl FnOnce() -> Nanos) -> bool {
        late > self.allowance && late > self.allowance.saturating_add(round_trip()).min(self.most)
    }
}

impl Lease {
    /// An empty lease, before the first request.
    pub(super) fn none(policy: &Policy) -> Self {
        Lease { rules: Rules::of_new(policy), ..Lease::default() }
    }

    /// Adds a lease after the existing ones. When a window opens, the ledger grants several runs for the same time. They
    /// become one run, so that windows count all of its units from the time when they leave.
    pub(super) fn add(&mut self, rules: Rules, runs: Vec<Grant>) {
        self.rules = rules;
        self.last = runs.last().copied();
        for run in runs {
            match self.runs.back_mut() {
                Some(last) if (last.number(), last.at) == (run.number(), run.at) => {
                    last.units = last.units.saturating_add(run.units); // The units may come from a forged file.
                }
                _ => self.runs.push_back(run),
            }
        }
    }

    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// Takes out the remaining runs, to give them back: the latest lease first.
    pub(super) fn take_rest(&mut self) -> Vec<GiveBack> {
        self.last = None;
        let runs = Vec::from(std::mem::take(&mut self.runs));
        let leases = runs.chunk_by(|run, next| run.number() == next.number()).rev();
        let unused = |runs: &[Grant]| runs.iter().map(|run| (run.at, [run.units].into())).collect();
        leases.map(|runs| GiveBack { number: runs[0].number(), unused: unused(runs), key: None }).collect()
    }

    /// The time of the last run, used or not.
    pub(super) fn latest(&self) -> Nanos {
        self.last.map_or(0, |run| run.at)
    }

    /// The number of the latest lease. If it follows the previous number, nobody else was granted anything in between.
    pub(super) fn number(&self) -> Option<u64> {
        self.last.map(|run| run.number())
    }

    /// Takes out the runs of one lease that are so late that they would leave together with the next ones as a burst.
    pub(super) fn drop_late(&mut self, now: Nanos, round_trip: impl Fn() -> Nanos) -> Option<GiveBack> {
        let number = self.runs.front()?.number();
        let mut late = GiveBack { number, ..GiveBack::default() };
        let is_late =
            |run: &Grant| run.number() == number && self.rules.is_too_late(now.saturating_sub(run.at), &round_trip);
        while let Some(run) = self.runs.front().copied().filter(is_late) {
            self.runs.pop_front();
            late.unused.push((run.at, [run.units].into()));
        }
        Some(late).filter(|late| !late.unused.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Units not yet used.
    pub(super) fn units(&self) -> u64 {
        self.runs.iter().map(|run| run.units).sum()
    }

    /// Whether the next run is too late to leave.
    pub(super) fn is_stale(&self, now: Nanos, round_trip: impl FnOnce() -> Nanos) -> bool {
        self.runs.front().is_some_and(|run| self.rules.is_too_late(now.saturating_sub(run.at), round_trip))
    }

    /// The next run, or `most` units of it.
    pub(super) fn next(&mut self, most: u64) -> Option<Grant> {
        let rest = self.runs.front_mut()?;
        let mut run = *rest;
        run.units = run.units.min(most);
        rest.units -= run.units;
        if rest.units == 0 {
            self.runs.pop_front();
        }
        Some(run)
    }

    /// Puts back a run that was handed out and has not left.
    pub(super) fn put_back(&mut self, run: Grant) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Ask, Ledger};

    fn lease(limit: &str, waiting: u64) -> Lease {
        let (mut lease, runs) = (Lease::default(), runs(limit, 0, waiting));
        lease.add(rules(limit), runs);
        lease
    }

    fn rules(limit: &str) -> Rules {
        Rules::of_new(&Policy::new(&[limit.parse().unwrap()], None).unwrap())
    }

    /// The runs of a lease of a bucket whose latest grant has the number `given`.
    fn runs(limit: &str, given: u64, waiting: u64) -> Vec<Grant> {
        let policy = Policy::new(&[limit.parse().unwrap()], None).unwrap();
        let ask = Ask { waiting, span: 10 * MILLISECOND, ..Ask::default() };
        Ledger::new(&policy, 0, given).lease(0, [0; 2], &ask).unwrap()
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
        assert_eq!(taken.units(), 2);
        taken.put_back(first);
        assert_eq!(times(&mut taken), [(0, 1), (1, 1), (2, 1)]);
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
        assert_eq!(late.drop_late(4 * MILLISECOND, || 0).unwrap().unused, [(0, [3].into())]);
        assert_eq!(late.drop_late(4 * MILLISECOND, || 0), None);
        assert_eq!(times(&mut late), [(1, 1), (2, 1), (3, 1)], "the first three are too late");
    }

    #[test]
    fn runs_are_stale_when_the_bucket_has_filled_since() {
        let mut taken = lease("1000/s,burst=3", 6);
        let _ = taken.next(3).unwrap();
        let _ = taken.next(2).map(|_| taken.next(2));
        let third = taken.latest();
        assert_eq!(third, 3 * MILLISECOND);
        assert!(!taken.is_stale(6 * MILLISECOND, || 0), "the bucket fills in 3 ms");
        assert!(taken.is_stale(6 * MILLISECOND + 1, || 0));
        let mut taken = lease("3/min,window", 3);
        assert_eq!(taken.drop_late(10 * MILLISECOND, || 0), None);
        assert_eq!(taken.drop_late(11 * MILLISECOND, || 0).unwrap().unused, [(0, [3].into())]);
    }

    #[test]
    fn a_run_may_be_late_by_the_lag_allowance_and_a_round_trip() {
        for (limit, round_trip, most) in [
            ("1000/s,burst=3", 0, 3),
            ("1000/s,burst=50", 0, 10),
            ("1000/s,burst=500", 0, 50),
            ("1000/s,burst=500", 20, 70),
            ("1000/s,burst=500", 1000, 500),
            ("100/10s,window,slack=30ms", 0, 30),
            ("100/10s,window,slack=30ms", 20, 30),
        ] {
            let [round_trip, most] = [round_trip, most].map(|time| time * MILLISECOND);
            let is_late = |late| rules(limit).is_too_late(late, || round_trip);
            assert_eq!((is_late(most), is_late(most + 1)), (false, true), "{limit}, {round_trip}");
        }
    }

    #[test]
    fn the_rest_of_two_leases_tells_them_apart() {
        let mut taken = lease("1000/s,burst=1", 3);
        let _ = taken.next(1);
        taken.add(rules("1000/s,burst=1"), runs("1000/s,burst=1", 7, 2));
        let rest = taken.take_rest();
        let found: Vec<_> = rest.iter().map(|back| (back.number, back.unused.len())).collect();
        assert_eq!(found, [(8, 2), (1, 2)], "the latest first");
        assert!(taken.take_rest().is_empty());
    }
}
