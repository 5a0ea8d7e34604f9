//! The line of a run without keys, on a fake clock: plain units under late timers, and units that are settled.

use crate::limiters::ms;
use proptest::prelude::*;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use throttle_limits::limits::{Account, Policy};
use throttle_limits::line::{Charged, KeyId, Line, Next, Rules, Unit};

fn policy(limits: &[&str]) -> Policy {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

/// A line under these limits; the one at each index counts the cost at that index.
fn line(limits: &[&str]) -> (Line<()>, FakeClock) {
    let policies: Vec<Policy> = limits.iter().map(|limit| policy(&[limit])).collect();
    let all: Vec<(&Policy, usize)> = policies.iter().zip(0..).collect();
    (Line::new(&Rules { all: &all, ..Rules::default() }, 0), FakeClock::default())
}

/// A granted unit, and its costs.
type Went = (KeyId, Charged, Vec<u64>);

fn ask(line: &mut Line<()>, now: Nanos, costs: &[u64]) {
    line.add(now, None, Unit { age: 0, costs: costs.into(), size: 0, arrived: now, settles: true, content: () })
        .unwrap();
}

/// Takes out a unit that may leave now.
fn goes(line: &mut Line<()>, now: Nanos) -> Went {
    let next = line.poll(now, 1);
    let Next::Go(key, unit, charged) = next else { panic!("{next:?}") };
    (key, charged, unit.costs.to_vec())
}

/// A unit that leaves as soon as it is asked for.
fn take(line: &mut Line<()>, now: Nanos, costs: &[u64]) -> Went {
    ask(line, now, costs);
    let went = goes(line, now);
    line.handed_over(now, went.0, went.1, costs);
    went
}

fn settle(line: &mut Line<()>, now: Nanos, (_, charged, _): Went, real: &[u64]) {
    line.settle(now, charged.number, real);
}

#[test]
fn a_settled_grant_equals_a_charge_of_the_real_cost() {
    let (mut line, now) = (line(&["10/s,burst=10", "1000/s,burst=1000"]).0, 900 * MILLISECOND);
    let first = take(&mut line, 0, &[1, 1000]);
    let second = take(&mut line, now, &[1, 900]);
    settle(&mut line, now, first, &[1, 0]);
    assert_eq!(line.left(now), [9, 100], "the bucket would have been full");
    settle(&mut line, now, second, &[1, 1300]);
    assert_eq!(line.left(now), [9, -300], "the rest is owed");
}

#[test]
fn settling_what_cost_nothing_leaves_the_grant_before_it_alone() {
    let (mut line, _) = line(&["10/s,burst=10"]);
    let _paid = take(&mut line, 0, &[5]);
    let [free, other] = [0; 2].map(|now| take(&mut line, now, &[0]));
    settle(&mut line, 0, free, &[0]);
    assert_eq!(line.left(0), [5]);
    settle(&mut line, 0, other, &[7]);
    assert_eq!(line.left(0), [-2]);
}

#[test]
fn settling_counts_the_tokens_that_arrived_meanwhile() {
    let (mut line, now) = (line(&["1000/s,burst=1000"]).0, 300 * MILLISECOND);
    let first = take(&mut line, 0, &[1000]);
    settle(&mut line, now, first, &[800]);
    assert_eq!(line.left(now), [500]);
    let second = take(&mut line, now, &[500]);
    settle(&mut line, now, second, &[900]);
    assert_eq!(line.left(now), [-400]);
}

#[test]
fn a_settlement_moves_up_the_unit_that_waits() {
    let (mut line, _) = line(&["10/min,burst=10"]);
    let first = take(&mut line, 0, &[10]);
    ask(&mut line, 0, &[10]);
    assert_eq!(line.poll(20 * SECOND, 1), Next::At(60 * SECOND));
    settle(&mut line, 20 * SECOND, first, &[4]);
    assert_eq!(line.poll(20 * SECOND, 1), Next::At(24 * SECOND));
    assert_eq!(goes(&mut line, 24 * SECOND).1.at, 24 * SECOND);
}

/// Lets the next of the `ready` units leave, as the pump does, with a timer that fires `late` nanoseconds late. Returns
/// the number of units that left.
fn release((line, clock): (&mut Line<()>, &FakeClock), ready: u64, late: Nanos) -> u64 {
    let more = ready - line.wanted();
    line.want(clock.now(), more);
    loop {
        match line.poll(clock.now(), u64::MAX) {
            Next::Run(run) => {
                line.run_left(clock.now(), &run);
                return run.units;
            }
            Next::At(time) => clock.set(Duration::from_nanos(time + late)),
            next => panic!("{next:?}"),
        }
    }
}

/// Units that left together make room together. Nothing is lost if the machine wakes too late for them.
#[test]
fn a_busy_machine_loses_no_unit_of_a_window() {
    for late in [0, 9, 11, 100, 300].map(|late| late * MILLISECOND) {
        let (mut line, clock) = line(&["100/10s,window"]);
        let (mut left, mut times) = (500_u64, Vec::new());
        while left > 0 {
            let units = release((&mut line, &clock), left.min(5), late);
            times.extend((0..units).map(|_| clock.now()));
            left -= units;
            // The start of a command takes a while.
            clock.advance(ms(1));
            if left > 400 {
                clock.advance(ms(400));
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
fn passed(policy: &Policy, arrivals: &[Nanos], late: Nanos) -> Vec<Nanos> {
    let mut line = Line::new(&Rules { all: &[(policy, 0)], ..Rules::default() }, 0);
    let (clock, mut left) = (FakeClock::default(), Vec::<Nanos>::new());
    while left.len() < arrivals.len() {
        clock.set(Duration::from_nanos(clock.now().max(arrivals[left.len()])));
        let has_come = |now: Nanos| arrivals.iter().filter(|arrival| **arrival <= now).count();
        let ready = (has_come(clock.now()) - left.len()) as u64;
        let units = release((&mut line, &clock), ready, late);
        left.extend((0..units).map(|_| clock.now()));
    }
    left
}

proptest! {
    /// If several units left together after a late wake-up, a window counted all but the first twice.
    #[test]
    fn late_timers_lose_no_room_in_a_window_beside_a_bucket(
        (count, period) in (2_u64..15, 50_u64..400),
        (rate, burst) in (5_u64..200, 1_u64..8),
        bursts in prop::collection::vec((1_usize..15, 0_u64..500), 1..6),
    ) {
        let limits = [format!("{count}/{period}ms,window,slack=0ms"), format!("{rate}/s,burst={burst}")];
        let policy = policy(&limits.each_ref().map(String::as_str));
        let mut now = 0;
        let arrivals: Vec<Nanos> = bursts.iter().flat_map(|&(lines, pause)| {
            now += pause * MILLISECOND;
            vec![now; lines]
        }).collect();
        let late = MILLISECOND / 20;
        let mut model = Account::new(&policy, 0);
        let passed = passed(&policy, &arrivals, late);
        for (place, (left, arrival)) in passed.iter().zip(&arrivals).enumerate() {
            let at = model.take(*arrival, 1_u64).unwrap().at;
            let most = at + late * (place as u64 + 1);
            prop_assert!(*left >= at && *left <= most, "line {place} of {limits:?} leaves at {left}, not at {at}");
        }
        let mut counts = passed.windows(usize::try_from(count).unwrap() + 1);
        prop_assert!(counts.all(|lines| lines[lines.len() - 1] - lines[0] >= period * MILLISECOND));
    }
}
