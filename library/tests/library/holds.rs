//! Holds of a line: nothing leaves before their end, and what they do to the limits.

use std::num::NonZeroU32;
use throttle_limits::clock::{MILLISECOND as MS, Nanos, SECOND};
use throttle_limits::limits::Policy;
use throttle_limits::line::{Charged, KeyId, Line, Next, Rules, Unit};

fn policy(limits: &[&str]) -> Policy {
    Policy::new(&limits.iter().map(|limit| limit.parse().unwrap()).collect::<Vec<_>>(), None).unwrap()
}

fn unit(age: u64, arrived: Nanos) -> Unit<()> {
    Unit { age, costs: [1].into(), size: 1, arrived, settles: true, content: () }
}

/// A line whose limits are those of all, or of each key.
fn line(limits: &Policy, is_all: bool) -> Line<()> {
    let limits = [(limits, 0)];
    let [each, all] = if is_all { [&[][..], &limits] } else { [&limits[..], &[]] };
    Line::new(&Rules { each, all, jobs: Some(NonZeroU32::MAX), ..Rules::default() }, 0)
}

fn hold(line: &mut Line<()>, now: Nanos, key: Option<KeyId>, until: Nanos) {
    match key {
        Some(key) => line.hold_until(now, key, until),
        None => line.hold_all_until(now, until),
    }
}

fn add(line: &mut Line<()>, now: Nanos, ages: std::ops::Range<u64>) {
    for age in ages {
        line.add(now, Some(b"k"), unit(age, now)).unwrap();
    }
}

/// The units that leave until `until`, if the caller always comes in time: their grants, and times in milliseconds.
fn left(line: &mut Line<()>, mut now: Nanos, until: Nanos) -> (Vec<(KeyId, Charged)>, Vec<u64>) {
    let (mut grants, mut times) = (Vec::new(), Vec::new());
    loop {
        match line.poll(now, u64::MAX) {
            Next::Go(key, _, charged) => {
                grants.push((key, charged));
                times.push(charged.at / MS);
            }
            Next::At(time) if time <= until => now = time.max(now),
            _ => return (grants, times),
        }
    }
}

#[test]
fn a_hold_that_ends_by_itself_leaves_empty_buckets() {
    let limits = policy(&["10/s,burst=5", "8/10s,window"]);
    for is_all in [true, false] {
        let mut line = line(&limits, is_all);
        add(&mut line, 0, 0..3);
        let (grants, _) = left(&mut line, 0, 0);
        let of_key = (!is_all).then_some(grants[0].0);
        hold(&mut line, 0, of_key, 2 * SECOND);
        add(&mut line, 0, 10..11);
        hold(&mut line, 0, of_key, SECOND);
        let settle = |line: &mut Line<()>, now, grant: usize, real: u64| {
            line.settle(now, grants[grant].1.number, &[real]);
        };
        // A settlement in the hold changes the buckets, but they are emptied nevertheless.
        settle(&mut line, SECOND, 0, 0);
        add(&mut line, SECOND, 11..20);
        let (_, first) = left(&mut line, SECOND, 2600 * MS);
        // A grant from before the hold no longer changes the bucket.
        settle(&mut line, 2600 * MS, 1, 0);
        let (_, second) = left(&mut line, 2600 * MS, 4 * SECOND);
        assert_eq!(first, [2100, 2200, 2300, 2400, 2500, 2600]);
        // The window allows 8 units in 10 s: two of the first three were settled at 0.
        assert_eq!(second, [2700], "{is_all}");
    }
}

#[test]
fn a_debt_is_paid_in_a_hold_and_the_rest_of_it_stays() {
    let limits = policy(&["10/s,burst=5"]);
    for is_all in [true, false] {
        for (until, first) in [(3, 3100), (1, 1600)] {
            let mut line = line(&limits, is_all);
            add(&mut line, 0, 0..1);
            let (grants, _) = left(&mut line, 0, 0);
            line.settle(0, grants[0].1.number, &[20]);
            hold(&mut line, 0, (!is_all).then_some(grants[0].0), until * SECOND);
            add(&mut line, 0, 1..2);
            assert_eq!(left(&mut line, 0, 9 * SECOND).1, [first], "{is_all}");
        }
    }
}

#[test]
fn a_lifted_hold_leaves_the_levels_as_if_it_had_not_been() {
    let limits = policy(&["10/s,burst=5"]);
    for is_all in [true, false] {
        let mut line = line(&limits, is_all);
        add(&mut line, 0, 0..20);
        let (grants, times) = left(&mut line, 0, 100 * MS);
        assert_eq!(times, [0, 0, 0, 0, 0, 100]);
        let of_key = (!is_all).then_some(grants[0].0);
        hold(&mut line, 100 * MS, of_key, 100 * SECOND);
        assert_eq!(line.ready_at(100 * MS), Some(100_100 * MS));
        assert!(left(&mut line, 100 * MS, 310 * MS).1.is_empty());
        line.lift(350 * MS, of_key);
        // Two units and a half were gained meanwhile. Nothing is granted for a time before the hold was lifted.
        assert_eq!(left(&mut line, 350 * MS, 500 * MS).1, [350, 350, 400, 500], "{is_all}");
        // A hold that has ended by itself cannot be lifted any more.
        hold(&mut line, 500 * MS, of_key, 600 * MS);
        line.lift(650 * MS, of_key);
        assert_eq!(left(&mut line, 650 * MS, 800 * MS).1, [700, 800], "{is_all}");
    }
}

#[test]
fn a_held_key_holds_up_no_other_and_is_forgotten_later() {
    let limits = policy(&["10/s,burst=5"]);
    let mut line = line(&limits, false);
    add(&mut line, 0, 0..2);
    line.add(0, Some(b"other"), unit(2, 0)).unwrap();
    let key = line.find(Some(b"k")).unwrap();
    line.hold_until(0, key, SECOND);
    assert_eq!(left(&mut line, 0, SECOND).1, [0]);
    assert_eq!(line.pass(SECOND, Some(b"k"), &[1]), None);
    assert_eq!(left(&mut line, SECOND, 9 * SECOND).1, [1100, 1200]);
}
