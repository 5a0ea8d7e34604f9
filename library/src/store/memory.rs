//! Limits of this process alone.

use super::{Store, StoreError};
use crate::clock::sync::unpoisoned;
use crate::clock::{NanoClock, Nanos};
use crate::limits::{Ledger, Operation, Policy, Record, Reply};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};

/// Limits of this process alone, on its own clock.
#[derive(Debug)]
pub struct Memory<C> {
    ledger: Mutex<Ledger>,
    clock: C,
}

impl<C: NanoClock> Memory<C> {
    /// The limits of `policy` in their initial state, from now on.
    pub fn new(policy: &Policy, clock: C) -> Self {
        Memory { ledger: Mutex::new(Ledger::new(policy, clock.now(), 0)), clock }
    }

    /// A change of the ledger is one step, so a panic elsewhere does not leave it half changed.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        unpoisoned(self.ledger.lock())
    }
}

impl<C: NanoClock + Debug> Store for Memory<C> {
    fn clock(&self) -> &dyn NanoClock {
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
    use crate::limits::{Grant, Limits, Take};
    use proptest::prelude::*;
    use std::time::Duration;

    fn supply(limits: &[&str]) -> (Supply, FakeClock) {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let clock = FakeClock::default();
        (Supply::new(Box::new(Memory::new(&Policy::new(&limits, None).unwrap(), clock.clone()))), clock)
    }

    fn take(supply: &Supply, costs: &[u64]) -> Grant {
        let (grant, _) = supply.take(costs).unwrap();
        supply.open(&grant, costs);
        supply.handed_over(&grant, costs);
        grant
    }

    #[test]
    fn a_settled_grant_equals_a_charge_of_the_real_cost() {
        let (supply, clock) = supply(&["10/s,burst=10", "1000/s,burst=1000"]);
        let first = take(&supply, &[1, 1000]);
        clock.advance(Duration::from_millis(900));
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
    fn a_unit_joins_another_only_if_it_conforms_without_windows() {
        let (buckets, clock) = supply(&["10/s,burst=3"]);
        assert_eq!([2, 2, 1, 1].map(|cost| buckets.take_now(&[cost])), [true, false, true, false]);
        clock.advance(Duration::from_millis(100));
        assert!(buckets.take_now(&[1]) && !buckets.take_now(&[1]));
        let (windows, _) = supply(&["10/s,burst=3", "100/min"]);
        assert!(!windows.take_now(&[1]), "it would count from now on, and not from when it leaves");
    }

    /// A settlement between a request and the sleep was noticed only at the old time.
    #[test]
    fn a_settlement_before_a_sleep_moves_up_the_sleep() {
        let (supply, clock) = supply(&["10/min,burst=10"]);
        supply.settles(true);
        let first = take(&supply, &[10]);
        let (waits, _) = supply.take(&[10]).unwrap();
        clock.advance(Duration::from_secs(20));
        supply.settle(&first, &Take::of(&[10]), &[4]).unwrap();
        assert!(supply.sleep_unless(&clock, waits.at, &|| false).unwrap());
        assert_eq!((clock.now(), supply.woke(waits, &[10]).at), (24 * SECOND, 24 * SECOND));
    }

    /// The estimate of a server's clock can go back. Then a unit that had left was given back.
    #[test]
    fn a_unit_that_left_stays_charged_when_the_clock_goes_back() {
        let (supply, clock) = supply(&["10/h,window"]);
        clock.set(Duration::from_millis(100));
        let _left = take(&supply, &[4]);
        clock.set(Duration::from_millis(99));
        supply.hold(None, 150 * MILLISECOND, Vec::new()).unwrap();
        clock.set(Duration::from_millis(200));
        assert_eq!(supply.store().view().unwrap().left, [6]);
    }

    #[test]
    fn what_ends_before_it_was_handed_over_is_settled_then() {
        let (supply, clock) = supply(&["10/s,window"]);
        supply.settles(true);
        let (grant, _) = supply.take(&[6]).unwrap();
        supply.open(&grant, &[6]);
        clock.advance(Duration::from_millis(100));
        supply.settle(&grant, &Take::of(&[6]), &[2]).unwrap();
        supply.handed_over(&grant, &[6]);
        assert_eq!(supply.store().available(), 8);
        clock.advance(Duration::from_millis(950));
        assert_eq!(supply.store().available(), 8, "it counts from when it was handed over");
    }

    /// Lets the next of the `ready` units leave, as the pump does, with a timer that fires `late` nanoseconds late.
    /// Returns the number of units that left.
    fn release((supply, clock): (&Supply, &FakeClock), ready: u64, late: Nanos) -> u64 {
        let (mut grant, asked) = supply.next_run(ready).unwrap();
        let mut units = grant.units;
        if grant.at > asked {
            clock.set(Duration::from_nanos(grant.at + late));
            grant = supply.woke(grant, &[units]);
            units += supply.take_available(ready - units);
        }
        supply.handed_over(&grant, &[units]);
        units
    }

    /// Units that left together make room together. Nothing is lost if the machine wakes too late for them.
    #[test]
    fn a_busy_machine_loses_no_unit_of_a_window() {
        for late in [0, 9, 11, 100, 300].map(|late| late * MILLISECOND) {
            let (supply, clock) = supply(&["100/10s,window"]);
            let (mut left, mut times) = (500_u64, Vec::new());
            while left > 0 {
                let units = release((&supply, &clock), left.min(5), late);
                times.extend((0..units).map(|_| clock.now()));
                left -= units;
                // The start of a command takes a while.
                clock.advance(Duration::from_millis(1));
                if left > 400 {
                    clock.advance(Duration::from_millis(400));
                }
            }
            let periods: Vec<Nanos> = (100..500).map(|place| times[place] - times[place - 100]).collect();
            assert!(periods.iter().all(|period| *period >= 10 * SECOND), "{late}: {periods:?}");
            // Five units in a row are late.
            let longest = 10 * SECOND + 5 * (late + MILLISECOND);
            assert!(periods.iter().all(|period| *period <= longest), "{late}: {periods:?}");
        }
    }

    /// When each line leaves, if the lines arrive at these times and timers fire `late` nanoseconds late.
    fn passed(limits: &[&str], arrivals: &[Nanos], late: Nanos) -> Vec<Nanos> {
        let (supply, clock) = supply(limits);
        let mut left: Vec<Nanos> = Vec::new();
        while left.len() < arrivals.len() {
            clock.set(Duration::from_nanos(clock.now().max(arrivals[left.len()])));
            let has_come = |now: Nanos| arrivals.iter().filter(|arrival| **arrival <= now).count();
            let ready = (has_come(clock.now()) - left.len()) as u64;
            let units = release((&supply, &clock), ready, late);
            left.extend((0..units).map(|_| clock.now()));
        }
        left
    }

    proptest! {
        /// If several units of a lease left together after a late wake-up, a window counted all but the first twice.
        #[test]
        fn late_timers_lose_no_room_in_a_window_beside_a_bucket(
            (count, period) in (2_u64..15, 50_u64..400),
            (rate, burst) in (5_u64..200, 1_u64..8),
            bursts in prop::collection::vec((1_usize..15, 0_u64..500), 1..6),
        ) {
            let limits = [format!("{count}/{period}ms,window,slack=0ms"), format!("{rate}/s,burst={burst}")];
            let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
            let mut now = 0;
            let arrivals: Vec<Nanos> = bursts.iter().flat_map(|&(lines, pause)| {
                now += pause * MILLISECOND;
                vec![now; lines]
            }).collect();
            let late = MILLISECOND / 20;
            let policy = Policy::new(&limits.iter().map(|limit| limit.parse().unwrap()).collect::<Vec<_>>(), None);
            let mut model = Limits::new(&policy.unwrap(), 0);
            let passed = passed(&limits, &arrivals, late);
            for (place, (left, arrival)) in passed.iter().zip(&arrivals).enumerate() {
                let at = model.take(*arrival, 1_u64).unwrap().at;
                let most = at + late * (place as u64 + 1);
                prop_assert!(*left >= at && *left <= most, "line {place} of {limits:?} leaves at {left}, not at {at}");
            }
            let mut counts = passed.windows(usize::try_from(count).unwrap() + 1);
            prop_assert!(counts.all(|lines| lines[lines.len() - 1] - lines[0] >= period * MILLISECOND));
        }
    }

    #[test]
    fn settling_counts_the_tokens_that_arrived_meanwhile() {
        let (supply, clock) = supply(&["1000/s,burst=1000"]);
        let (grant, _) = supply.take(&[1000]).unwrap();
        clock.advance(Duration::from_millis(300));
        supply.settle(&grant, &Take::of(&[1000]), &[200]).unwrap();
        assert_eq!(supply.store().available(), 800);
        let (grant, _) = supply.take(&[500]).unwrap();
        supply.settle(&grant, &Take::of(&[500]), &[900]).unwrap();
        assert_eq!(supply.store().view().unwrap().left, [-100]);
    }
}
