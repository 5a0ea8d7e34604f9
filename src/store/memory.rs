//! Limits of this process alone.

use super::lease::{Lease, Rules};
use super::{Store, StoreError, View};
use crate::clock::{Clock, Nanos};
use crate::limits::{Ask, Grant, Limits, Line, OwnerOf, Policy};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waiters in one process need no name.
const NOBODY: OwnerOf = || [0; 2];

/// Limits of this process alone, on its own clock.
#[derive(Debug)]
pub struct Memory<C> {
    kept: Mutex<Kept>,
    quantum: AtomicU64,
    clock: C,
}

#[derive(Debug)]
struct Kept {
    policy: Policy,
    line: Line,
    rules: Rules,
}

impl<C: Clock> Memory<C> {
    /// The limits of `policy` in their initial state, from now on.
    pub fn new(policy: &Policy, clock: C) -> Self {
        let limits = Limits::new(policy, clock.now());
        let (quantum, rules) = (limits.quantum().into(), Rules::of(policy, &limits));
        Memory { kept: Mutex::new(Kept { policy: policy.clone(), line: limits.into(), rules }), quantum, clock }
    }

    /// Stores a new policy.
    fn learn(&self, kept: &mut Kept, policy: &Policy) {
        (kept.policy, kept.rules) = (policy.clone(), Rules::of(policy, &kept.line.limits));
        self.quantum.store(kept.line.limits.quantum(), Ordering::Relaxed);
    }

    /// The limits, and the time of the request.
    fn step(&self) -> (MutexGuard<'_, Kept>, Nanos) {
        let mut kept = self.kept();
        let now = self.clock.now();
        kept.line.sweep(now, |_| false);
        (kept, now)
    }

    /// A change of the limits is one step, so a panic elsewhere does not leave them half changed.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + Debug> Store for Memory<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn place(&self) -> String {
        "this process".to_owned()
    }

    fn policy(&self) -> Policy {
        self.kept().policy.clone()
    }

    fn take(&self, costs: &[u64], latest: Nanos) -> Result<(Grant, Nanos), StoreError> {
        let (mut kept, now) = self.step();
        Ok((kept.line.take_within(now, costs, latest.saturating_sub(now), NOBODY)?, now))
    }

    fn give_back(&self, grant: &Grant, costs: &[u64]) -> Result<(), StoreError> {
        let (mut kept, now) = self.step();
        kept.line.give_back(now, grant, costs);
        Ok(())
    }

    fn open(&self, grant: &Grant, costs: &[u64]) {
        let (mut kept, now) = self.step();
        kept.line.open(now, grant, costs);
    }

    fn settle(&self, grant: &Grant, costs: [&[u64]; 2]) -> Result<(), StoreError> {
        let (mut kept, now) = self.step();
        if costs[0] == costs[1] {
            kept.line.forget(grant);
        } else {
            kept.line.settle(now, grant, costs);
        }
        Ok(())
    }

    fn hold_until(&self, time: Nanos) -> Result<(), StoreError> {
        let (mut kept, now) = self.step();
        kept.line.hold_until(now, time);
        Ok(())
    }

    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        let (mut kept, now) = self.step();
        kept.line.set(now, policy, fresh);
        self.learn(&mut kept, policy);
        Ok(())
    }

    fn clear(&self, anew: Option<&Policy>) -> Result<(), StoreError> {
        let (mut kept, now) = self.step();
        kept.line.clear(now, anew);
        if let Some(policy) = anew {
            self.learn(&mut kept, policy);
        }
        Ok(())
    }

    fn look(&self, grant: &Grant, costs: &[u64]) -> Result<Grant, StoreError> {
        let (mut kept, now) = self.step();
        Ok(kept.line.look(now, grant, costs, grant.at.saturating_sub(now), NOBODY))
    }

    fn view(&self) -> Result<View, StoreError> {
        let kept = self.kept();
        Ok(View::of(&kept.policy, &kept.line, self.clock.now()))
    }

    fn available(&self) -> u64 {
        self.kept().line.limits.available(self.clock.now())
    }

    fn schedule(&self, costs: &[u64]) -> Option<Nanos> {
        let now = self.clock.now();
        self.kept().line.limits.with_costs(costs, |limits, cost| limits.schedule(now, cost))
    }

    fn quantum(&self) -> u64 {
        self.quantum.load(Ordering::Relaxed)
    }

    fn span(&self) -> Nanos {
        0
    }

    fn lease(&self, ask: &Ask, lease: &mut Lease) -> Result<Nanos, StoreError> {
        let (mut kept, now) = self.step();
        lease.begin(kept.rules);
        kept.line.lease(now, ask, NOBODY, |run| lease.push(run))?;
        Ok(now)
    }

    fn return_lease(&self, lease: &mut Lease) -> Result<(), StoreError> {
        if let Some(rest) = lease.take_rest() {
            let (mut kept, now) = self.step();
            kept.line.return_lease(now, &rest);
        }
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn take_ready(&self, units: u64) -> u64 {
        let (mut kept, now) = self.step();
        let units = kept.line.limits.available(now).min(units);
        kept.line.take_within(now, &[units], 0, NOBODY).map_or(0, |grant| grant.units)
    }

    fn take_now(&self, costs: &[u64]) -> bool {
        let (mut kept, now) = self.step();
        !kept.line.limits.has_windows() && kept.line.take_within(now, costs, 0, NOBODY).is_ok()
    }

    fn handed_over(&self, grant: &Grant, costs: &[u64]) {
        let mut kept = self.kept();
        if kept.line.limits.has_windows() {
            kept.line.limits.with_costs(costs, |limits, cost| limits.hand_over(grant, cost, self.clock.now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Supply;
    use super::*;
    use crate::clock::{FakeClock, MILLISECOND, SECOND};

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
        supply.settle(&first, [&[1, 1000], &[1, 0]]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [9, 100], "the bucket would have been full");
        supply.settle(&second, [&[1, 900], &[1, 1300]]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [9, -300], "the rest is owed");
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
        let first = take(&supply, &[10]);
        let (waits, _) = supply.take(&[10]).unwrap();
        assert_eq!(waits.at, 60 * SECOND);
        clock.advance(20 * SECOND);
        supply.settle(&first, [&[10], &[4]]).unwrap();
        assert_eq!(supply.store().look(&waits, &[10]).unwrap().at, 25 * SECOND, "when it looks again");
    }

    #[test]
    fn what_ends_before_it_was_handed_over_is_settled_then() {
        let (supply, clock) = supply(&["10/s,window"]);
        let (grant, _) = supply.take(&[6]).unwrap();
        supply.open(&grant, &[6]);
        clock.advance(100 * MILLISECOND);
        supply.settle(&grant, [&[6], &[2]]).unwrap();
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
                let (grant, asked) = supply.next_run(ready).unwrap();
                let mut units = grant.units;
                if grant.at > asked {
                    clock.set(grant.at + late);
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
        supply.settle(&grant, [&[1000], &[200]]).unwrap();
        assert_eq!(supply.store().available(), 800);
        let (grant, _) = supply.take(&[500]).unwrap();
        supply.settle(&grant, [&[500], &[900]]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [-100]);
    }
}
