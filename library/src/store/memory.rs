//! Limits of this process alone.

use super::{Store, StoreError};
use crate::clock::sync::unpoisoned;
use crate::clock::{Clock, Nanos};
use crate::limits::{Ledger, Operation, Policy, Record, Reply};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};

/// Limits of this process alone, on its own clock.
#[derive(Debug)]
pub struct Memory<C> {
    ledger: Mutex<Ledger>,
    clock: C,
}

impl<C: Clock> Memory<C> {
    /// The limits of `policy` in their initial state, from now on.
    pub fn new(policy: &Policy, clock: C) -> Self {
        Memory { ledger: Mutex::new(Ledger::new(policy, clock.now(), 0)), clock }
    }

    /// A change of the ledger is one step, so a panic elsewhere does not leave it half changed.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        unpoisoned(self.ledger.lock())
    }
}

impl<C: Clock + Debug> Store for Memory<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn place(&self) -> String {
        "this process".to_owned()
    }

    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError> {
        let mut ledger = self.ledger();
        let time = self.clock.now();
        Ok((ledger.apply(&Record { time, owner: [0; 2], sequence: 0, operation }), time))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let time = self.clock.now();
        self.ledger().pass(time);
        Ok(())
    }

    fn see(&self, look: &mut dyn FnMut(&Ledger)) {
        look(&self.ledger());
    }

    fn own(&self, act: &mut dyn FnMut(&mut Ledger, Nanos)) {
        let mut ledger = self.ledger();
        let now = ledger.pass(self.clock.now());
        act(&mut ledger, now);
    }

    fn span(&self) -> Nanos {
        0
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::Supply;
    use super::*;
    use crate::clock::{FakeClock, MILLISECOND, SECOND};
    use crate::limits::{Grant, Take};

    fn supply(limits: &[&str]) -> (Supply, FakeClock) {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let clock = FakeClock::at(0);
        (Supply::new(Box::new(Memory::new(&Policy::new(&limits, None).unwrap(), clock.clone()))), clock)
    }

    fn take(supply: &Supply, costs: &[u64]) -> Grant {
        let (grant, _) = supply.take(costs).unwrap();
        supply.open(&grant, costs);
        supply.handed_over(&grant, costs);
        grant
    }

    #[test]
    fn a_settled_grant_leaves_the_limits_as_if_it_had_cost_that_from_the_start() {
        let (supply, clock) = supply(&["10/s,burst=10", "1000/s,burst=1000"]);
        let first = take(&supply, &[1, 1000]);
        clock.advance(900 * MILLISECOND);
        let second = take(&supply, &[1, 900]);
        supply.settle(&first, &Take::of(&[1, 1000]), &[1, 0]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [9, 100], "the bucket would have been full");
        supply.settle(&second, &Take::of(&[1, 900]), &[1, 1300]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [9, -300], "the rest is owed");
    }

    #[test]
    fn settling_what_cost_nothing_leaves_the_grant_before_it_alone() {
        let (supply, _) = supply(&["10/s,burst=10"]);
        supply.settles(true);
        let _paid = take(&supply, &[5]);
        let free = take(&supply, &[0]);
        supply.settle(&free, &Take::of(&[0]), &[0]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [5]);
        supply.settle(&free, &Take::of(&[0]), &[7]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [-2]);
    }

    #[test]
    fn a_unit_joins_another_only_if_it_conforms_and_no_window_counts_it() {
        let (buckets, clock) = supply(&["10/s,burst=3"]);
        assert_eq!([2, 2, 1, 1].map(|cost| buckets.take_now(&[cost])), [true, false, true, false]);
        clock.advance(100 * MILLISECOND);
        assert!(buckets.take_now(&[1]) && !buckets.take_now(&[1]));
        let (windows, _) = supply(&["10/s,burst=3", "100/min"]);
        assert!(!windows.take_now(&[1]), "it would count from now on, and not from when it leaves");
    }

    #[test]
    fn those_who_wait_move_up_when_a_grant_is_settled_at_less() {
        let (supply, clock) = supply(&["10/min,burst=10"]);
        supply.settles(true);
        let first = take(&supply, &[10]);
        let (waits, _) = supply.take(&[10]).unwrap();
        assert_eq!(waits.at, 60 * SECOND);
        clock.advance(20 * SECOND);
        supply.settle(&first, &Take::of(&[10]), &[4]).unwrap();
        assert_eq!(
            supply.store().look(&waits, &crate::limits::Take::of(&[10])).unwrap().at,
            24 * SECOND,
            "when it looks again"
        );
    }

    #[test]
    fn what_ends_before_it_was_handed_over_is_settled_then() {
        let (supply, clock) = supply(&["10/s,window"]);
        supply.settles(true);
        let (grant, _) = supply.take(&[6]).unwrap();
        supply.open(&grant, &[6]);
        clock.advance(100 * MILLISECOND);
        supply.settle(&grant, &Take::of(&[6]), &[2]).unwrap();
        supply.handed_over(&grant, &[6]);
        assert_eq!(supply.store().available(), 8);
        clock.advance(950 * MILLISECOND);
        assert_eq!(supply.store().available(), 8, "it counts from when it was handed over");
    }

    /// Units that left together make room together, and are reserved as runs for one time. A machine that is too late for
    /// them uses one; the others are given back and asked for again.
    #[test]
    fn a_busy_machine_loses_no_unit_of_a_window() {
        for late in [0, 9, 11, 100, 300].map(|late| late * MILLISECOND) {
            let (supply, clock) = supply(&["100/10s,window"]);
            let (mut left, mut times) = (500_u64, Vec::new());
            while left > 0 {
                let ready = left.min(5);
                let (mut grant, asked) = supply.next_run(ready).unwrap();
                let mut units = grant.units;
                if grant.at > asked {
                    clock.set(grant.at + late);
                    grant = supply.woke(grant, &[units]);
                    units += supply.take_available(ready - units);
                }
                supply.handed_over(&grant, &[units]);
                times.extend((0..units).map(|_| clock.now()));
                left -= units;
                // To start a command takes a while.
                clock.advance(MILLISECOND);
                if left > 400 {
                    clock.advance(400 * MILLISECOND);
                }
            }
            let periods: Vec<Nanos> = (100..500).map(|place| times[place] - times[place - 100]).collect();
            assert!(periods.iter().all(|period| *period >= 10 * SECOND), "{late}: {periods:?}");
            // Five units are late one after the other.
            let longest = 10 * SECOND + 5 * (late + MILLISECOND);
            assert!(periods.iter().all(|period| *period <= longest), "{late}: {periods:?}");
        }
    }

    #[test]
    fn a_grant_that_was_not_opened_gets_back_less_what_came_in_since() {
        let (supply, clock) = supply(&["1000/s,burst=1000"]);
        let (grant, _) = supply.take(&[1000]).unwrap();
        clock.advance(300 * MILLISECOND);
        supply.settle(&grant, &Take::of(&[1000]), &[200]).unwrap();
        assert_eq!(supply.store().available(), 800);
        let (grant, _) = supply.take(&[500]).unwrap();
        supply.settle(&grant, &Take::of(&[500]), &[900]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [-100]);
    }
}
