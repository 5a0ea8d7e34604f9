//! The order of units with keys, on a fake clock: transcripts, and a slow model of the same rules.

use crate::rounds::rounds;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use throttle_limits::clock::Nanos;
use throttle_limits::ledger::{self, Ledger, Request, Taken};
use throttle_limits::limits::Policy;
use throttle_limits::line::{Crowd, Line, NamedKey, Next, Rules, Unit};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;

fn policy(limits: &[&str]) -> Policy {
    if limits.is_empty() {
        return Policy::default();
    }
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

fn unit(age: u64, arrived: Nanos, cost: u64) -> Unit<()> {
    Unit { age, costs: [cost].into(), size: 1, arrived, settles: false, content: () }
}

/// An order of units that cost 1 and wait since 0; each key is one letter of `keys`.
fn order_of(rules: &Rules<'_>, keys: &str) -> Line<()> {
    let mut order = Line::new(rules, 0);
    for (age, key) in (0..).zip(keys.bytes()) {
        order.add(0, Some(&[key]), unit(age, 0, 1)).unwrap();
    }
    order
}

/// The units that leave if the caller always comes in time: `100a0` is unit 0, of key a, at 100 ms.
fn transcript(order: &mut Line<()>, ends_after: Option<Nanos>) -> String {
    let (mut now, mut running, mut text) = (0, Vec::new(), Vec::new());
    loop {
        match order.poll(now, u64::MAX) {
            Next::Go(key, unit, charged) => {
                assert_eq!(charged.at, now);
                text.push(format!("{}{}{}", now / MS, String::from_utf8_lossy(order.name(key)), unit.age));
                running.extend(ends_after.map(|time| (now + time, charged.number)));
            }
            Next::Refused(key, unit, _) => {
                text.push(format!("{}-{}{}", now / MS, String::from_utf8_lossy(order.name(key)), unit.age));
            }
            Next::Run(run) => panic!("{run:?}"),
            Next::Nothing if running.is_empty() => break,
            next @ (Next::At(_) | Next::Nothing) => {
                let until = if let Next::At(time) = next { time } else { Nanos::MAX };
                assert!(until > now, "{next:?} at {now}");
                now = running.iter().map(|(end, _)| *end).chain([until]).min().unwrap();
            }
        }
        running.retain(|(end, number)| {
            if *end <= now {
                order.ended(*end, *number);
            }
            *end > now
        });
    }
    text.join(" ")
}

#[test]
fn each_key_has_a_limit_and_the_oldest_ready_unit_goes_first() {
    let each = policy(&["10/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "aaabbc");
    assert_eq!(order.crowd(), Crowd { units: 6, keys: 3, most: b"a"[..].into(), most_in_memory: None });
    assert_eq!(order.memory(), 6);
    assert_eq!(transcript(&mut order, None), "0a0 0b3 0c5 100a1 100b4 200a2");
    assert_eq!((order.len(), order.memory(), order.keys_waiting()), (0, 0, 0));
}

#[test]
fn a_crowd_counts_only_keys_with_units_that_wait_or_will_arrive() {
    let each = policy(&["10/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "aabbc");
    assert_eq!(transcript(&mut order, None), "0a0 0b2 0c4 100a1 100b3");
    order.add(SECOND, Some(b"c"), unit(5, 2 * SECOND, 1)).unwrap();
    assert_eq!(order.crowd(), Crowd { units: 1, keys: 1, most: b"c"[..].into(), most_in_memory: None });
}

#[test]
fn a_request_that_has_left_or_was_cancelled_is_not_cancelled() {
    let mut ledger = Ledger::new(&Rules::default(), 0);
    let request = |age| Request { age, costs: &[1], arrived: 0, weight: 0, settles: false };
    let [first, second] = [0, 1].map(|age| ledger.ask(0, Some(b"a"), &request(age)).unwrap());
    assert!(matches!(ledger.poll(0, u64::MAX), ledger::Next::Granted(Taken { age: 0, .. }, _)));
    assert!(ledger.cancel(first).is_none() && ledger.cancel(second).is_some() && ledger.cancel(second).is_none());
    // Its slot is used again.
    let third = ledger.ask(0, Some(b"a"), &request(2)).unwrap();
    assert!(ledger.cancel(first).is_none() && ledger.cancel(second).is_none());
    assert_eq!((third.slot() < 2, ledger.len()), (true, 1));
}

#[test]
fn a_limit_of_all_keys_holds_beside_those_of_each() {
    let (each, all) = (policy(&["10/s"]), policy(&["50/s"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 0)], ..Rules::default() };
    assert_eq!(transcript(&mut order_of(&rules, "aaabbc"), None), "0a0 20b3 40c5 100a1 120b4 200a2");
}

#[test]
fn a_key_runs_no_more_jobs_than_it_may() {
    let jobs = NonZeroU32::new(2);
    let rules = Rules { jobs, ..Rules::default() };
    assert_eq!(transcript(&mut order_of(&rules, "aaaabb"), Some(30 * MS)), "0a0 0b4 0a1 0b5 30a2 30a3");
    let each = policy(&["50/s"]);
    let rules = Rules { each: &[(&each, 0)], jobs: NonZeroU32::new(1), ..Rules::default() };
    assert_eq!(transcript(&mut order_of(&rules, "aaab"), Some(30 * MS)), "0a0 0b3 30a1 60a2");
}

#[test]
fn what_would_wait_longer_than_the_longest_wait_is_dropped() {
    let each = policy(&["10/s,burst=2"]);
    let rules = Rules { each: &[(&each, 0)], max_wait: Some(100 * MS), ..Rules::default() };
    assert_eq!(transcript(&mut order_of(&rules, "aaaaab"), None), "0a0 0b5 0a1 100a2 100-a3 100-a4");
    let rules = Rules { max_wait: Some(0), ..rules };
    assert_eq!(transcript(&mut order_of(&rules, "aaaaab"), None), "0a0 0b5 0a1 0-a2 0-a3 0-a4");
}

#[test]
fn a_unit_passes_at_once_only_if_no_other_should_leave_before() {
    let (each, all) = (policy(&["10/s"]), policy(&["1000/s,burst=2"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 0)], ..Rules::default() };
    let mut order: Line<()> = Line::new(&rules, 0);
    let key = order.pass(0, Some(b"a"), &[1]).unwrap();
    assert_eq!(order.name(key), b"a");
    assert_eq!(order.pass(0, Some(b"a"), &[1]), None);
    order.add(0, Some(b"a"), unit(1, 0, 1)).unwrap();
    let key = order.pass(0, None, &[1]).unwrap();
    assert_eq!(order.name(key), b"(none)");
    assert_eq!(order.pass(0, Some(b"c"), &[1]), None, "all keys together have no more");
    assert_eq!(order.pass(100 * MS, Some(b"c"), &[1]), None, "an older unit may leave now");
    assert!(matches!(order.poll(100 * MS, u64::MAX), Next::Go(_, Unit { age: 1, .. }, _)));
    assert!(order.pass(100 * MS, Some(b"c"), &[1]).is_some());
}

#[test]
fn no_unit_passes_one_that_waits_for_the_limits_of_all() {
    let all = policy(&["10/s,burst=10"]);
    let rules = Rules { all: &[(&all, 0)], ..Rules::default() };
    let mut order = Line::new(&rules, 0);
    for (age, cost) in [(0, 9), (1, 5), (2, 1), (3, 1)] {
        order.add(0, Some(age.to_string().as_bytes()), unit(age, 0, cost)).unwrap();
    }
    assert_eq!(transcript(&mut order, None), "000 40011 50022 60033");
}

#[test]
fn a_held_key_starts_with_an_empty_bucket_and_others_go_on() {
    let each = policy(&["10/s,burst=2"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "abaaa");
    let Next::Go(key, ..) = order.poll(0, u64::MAX) else { panic!() };
    order.hold_until(0, key, SECOND);
    assert_eq!(transcript(&mut order, None), "0b1 1100a2 1200a3 1300a4");
    let rules = Rules { each: &[], jobs: NonZeroU32::new(9), ..rules };
    let mut order = order_of(&rules, "abaa");
    let Next::Go(key, ..) = order.poll(0, u64::MAX) else { panic!() };
    order.hold_until(0, key, SECOND);
    assert_eq!(transcript(&mut order, Some(MS)), "0b1 1000a2 1000a3");
}

#[test]
fn a_unit_sent_back_goes_before_younger_ones_of_its_key() {
    let each = policy(&["10/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "aaa");
    let Next::Go(_, unit, _) = order.poll(0, u64::MAX) else { panic!() };
    order.add(50 * MS, Some(b"a"), Unit { arrived: 50 * MS, ..unit }).unwrap();
    assert_eq!(transcript(&mut order, None), "100a0 200a1 300a2");
}

#[test]
fn a_late_caller_loses_no_rate_and_makes_no_burst() {
    let each = policy(&["10/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    // Its bucket fills in 100 ms. The allowance was that whole time, and is 10 ms now.
    for (late, expected) in [(0, 100), (10, 100), (99, 189), (150, 240), (1000, 1090)] {
        let mut order = order_of(&rules, "aaaaa");
        assert!(matches!(order.poll(0, u64::MAX), Next::Go(..)));
        assert_eq!(order.poll(0, u64::MAX), Next::At(100 * MS));
        let now = (100 + late) * MS;
        let next = order.poll(now, u64::MAX);
        assert!(matches!(&next, Next::Go(_, _, charged) if charged.at == expected * MS), "{late} late: {next:?}");
        assert_eq!(order.poll(now, u64::MAX), Next::At((expected + 100) * MS), "{late} late");
    }
}

/// Two units of each key left at once when a process was stopped for longer than a bucket takes to fill.
#[test]
fn one_unit_of_each_key_leaves_after_a_stop() {
    let each = policy(&["1/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, &"abcdefghij".repeat(5));
    let mut gone =
        |now: Nanos| std::iter::from_fn(|| matches!(order.poll(now, u64::MAX), Next::Go(..)).then_some(())).count();
    assert_eq!([0, 700, 3700, 4599, 4600, 5599, 5600].map(|now| gone(now * MS)), [10, 0, 10, 0, 10, 0, 10]);
}

/// Otherwise the key that has just had a long unit would go first again.
#[test]
fn turns_go_on_while_a_unit_is_away_at_a_shared_bucket() {
    let all = policy(&["10/s"]);
    let rules = Rules { all: &[(&all, 0)], is_shared: true, ..Rules::default() };
    for (is_away, first) in [(true, b"b"), (false, b"a")] {
        let mut order = Line::new(&rules, 0);
        order.add(0, Some(b"a"), unit(0, 0, 10)).unwrap();
        let Next::Go(.., charged) = order.poll(0, u64::MAX) else { panic!("none goes") };
        if !is_away {
            order.ended(0, charged.number);
        }
        let now = 60 * SECOND;
        order.add(now, Some(b"a"), unit(1, now, 1)).unwrap();
        order.add(now, Some(b"b"), unit(2, now, 1)).unwrap();
        // Nothing could leave meanwhile, so both are ready before one of them goes.
        assert_eq!(order.poll(now, 0), Next::Nothing);
        let Next::Go(key, ..) = order.poll(now + 1, u64::MAX) else { panic!("none goes") };
        assert_eq!(order.name(key), first, "is away: {is_away}");
    }
}

/// Otherwise a tenth of the burst more would leave: units that conformed while there was no slot.
#[test]
fn after_a_wait_for_a_slot_units_are_granted_as_of_its_end() {
    let each = policy(&["100/s,burst=100"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, &"a".repeat(300));
    let gone = |order: &mut Line<()>, now: Nanos| {
        std::iter::from_fn(|| matches!(order.poll(now, u64::MAX), Next::Go(..)).then_some(())).count()
    };
    assert_eq!((gone(&mut order, 0), order.arrived(2 * SECOND)), (100, 200));
    order.ready_since(2 * SECOND);
    assert_eq!(gone(&mut order, 2 * SECOND), 100);
}

/// As many keys as a run may store, a thousandth of that: the first ones pass, the others wait for room.
#[test]
fn at_the_most_keys_new_ones_wait_and_none_is_over_its_limit() {
    let (most, day) = (1000, 86_400 * SECOND);
    let each = policy(&["1/d"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = Line::from(Ledger::with_max_keys(&rules, 0, most));
    let (mut now, mut gone, mut ahead) = (0, vec![0_u64; 3000], 0);
    for age in 0..6000_u64 {
        let key = age % 3000;
        now += MS;
        if order.pass(now, Some(&key.to_be_bytes()), &[1]).is_some() {
            gone[usize::try_from(key).unwrap()] += 1;
            assert!(age < 1000, "unit {age} passed at {now}");
        } else {
            order.add(now, Some(&key.to_be_bytes()), unit(age, now, 1)).unwrap();
            ahead += 1;
        }
        assert!(order.keys() <= most + order.keys_waiting());
    }
    assert_eq!((gone.iter().sum::<u64>(), ahead, order.len()), (1000, 5000, 5000));
    let (mut asked, mut last) = (0, BTreeMap::new());
    while !order.is_empty() {
        asked += 1;
        match order.poll(now, u64::MAX) {
            Next::Go(key, unit, charged) => {
                let name = order.name(key).to_vec();
                assert_eq!(name, (unit.age % 3000).to_be_bytes());
                let before = last.insert(name, charged.at);
                assert!(before.is_none_or(|before| charged.at >= before + day));
                assert!(unit.age >= 2000 || charged.at >= day);
            }
            Next::At(time) => {
                assert!(time > now);
                now = time;
            }
            next => panic!("{next:?}"),
        }
        assert!(order.keys() <= most + order.keys_waiting());
    }
    assert!(now < 7 * day && asked < 20_000, "{asked} questions in {now}");
}

/// The key is not stored any more, and takes no room from later keys.
#[test]
fn a_new_key_without_room_is_forgotten_with_its_dropped_unit() {
    let each = policy(&["1/s"]);
    let rules = Rules { each: &[(&each, 0)], max_wait: Some(100 * MS), ..Rules::default() };
    let mut order = Line::from(Ledger::with_max_keys(&rules, 0, 2));
    assert!([b"a", b"b"].iter().all(|key| order.pass(0, Some(*key), &[1]).is_some()));
    order.add(0, Some(b"c"), unit(0, 0, 1)).unwrap();
    assert_eq!(transcript(&mut order, None), "100-c0");
    assert_eq!((order.poll(200 * MS, u64::MAX), order.keys()), (Next::Nothing, 2));
    assert_eq!(order.pass(200 * MS, Some(b"d"), &[1]), None, "a and b are not as new");
    assert!(order.pass(SECOND, Some(b"d"), &[1]).is_some());
}

#[test]
fn keys_are_forgotten_once_they_are_as_new() {
    let each = policy(&["10/s,burst=3"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order: Line<()> = Line::new(&rules, 0);
    for age in 0..100_000_u64 {
        assert!(order.pass(age * MS, Some(&age.to_be_bytes()), &[1]).is_some());
        // The first 4096 are kept in any case.
        assert!(order.keys() < 5000, "{} keys after {age}, of which 100 are not as new", order.keys());
    }
    assert!(order.keys() >= 100);
}

#[test]
fn a_cost_that_no_window_ever_has_room_for_is_refused() {
    let (each, all) = (policy(&["5/s,window"]), policy(&["7/s,window"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 1)], ..Rules::default() };
    let mut order = Line::new(&rules, 0);
    let unit =
        |age, costs: [u64; 2]| Unit { age, costs: costs.into(), size: 1, arrived: 0, settles: false, content: () };
    assert!(order.add(0, None, unit(0, [6, 1])).is_err());
    assert!(order.add(0, None, unit(1, [5, 8])).is_err());
    assert_eq!(order.pass(0, None, &[6, 1]), None);
    assert!(order.add(0, None, unit(2, [5, 7])).is_ok());
    assert_eq!(order.len(), 1);
}

#[test]
fn windows_count_from_the_time_of_handing_over() {
    let each = policy(&["1/s,window"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "aa");
    assert!(order.has_windows());
    let Next::Go(key, unit, charged) = order.poll(0, u64::MAX) else { panic!() };
    assert_eq!(order.poll(0, u64::MAX), Next::At(SECOND));
    order.handed_over(40 * MS, key, charged, &unit.costs);
    assert_eq!(order.poll(40 * MS, u64::MAX), Next::At(SECOND + 40 * MS));
}

/// The number of the grant of the unit that goes at `now`.
fn number_of_next(order: &mut Line<()>, now: Nanos) -> u64 {
    let next = order.poll(now, u64::MAX);
    let Next::Go(_, _, charged) = next else { panic!("{next:?} at {now}") };
    charged.number
}

#[test]
fn a_unit_that_cost_nothing_lets_the_next_go_at_once() {
    let (each, all) = (policy(&["1/s"]), policy(&["2/s,burst=1"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 0)], jobs: NonZeroU32::new(9), ..Rules::default() };
    let mut order = Line::new(&rules, 0);
    (0..2).for_each(|age| drop(order.add(0, Some(b"a"), Unit { settles: true, ..unit(age, 0, 1) })));
    let number = number_of_next(&mut order, 0);
    assert_eq!(order.poll(MS, u64::MAX), Next::At(SECOND));
    order.settle(MS, number, &[0]);
    assert!(matches!(order.poll(MS, u64::MAX), Next::Go(_, _, charged) if charged.at == MS));
}

/// What a later unit took would have overflowed before, and what a later one costs more would have been paid by that.
#[test]
fn overflow_is_lost_to_a_key_and_to_all_together() {
    let (each, all) = (policy(&["10/s,burst=10"]), policy(&["1000/s,burst=1000"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 1)], jobs: NonZeroU32::new(9), ..Rules::default() };
    let mut order = Line::new(&rules, 0);
    let add = |order: &mut Line<()>, age, now, key: &[u8], costs: [u64; 2]| {
        order.add(now, Some(key), Unit { settles: true, costs: costs.into(), ..unit(age, now, 1) }).unwrap();
    };
    add(&mut order, 0, 0, b"a", [10, 1000]);
    let first = number_of_next(&mut order, 0);
    add(&mut order, 1, 900 * MS, b"a", [9, 900]);
    let second = number_of_next(&mut order, 900 * MS);
    order.settle(900 * MS, first, &[0, 0]);
    add(&mut order, 2, 900 * MS, b"a", [2, 1]);
    assert_eq!(order.poll(900 * MS, u64::MAX), Next::At(SECOND), "the key's was full");
    order.drain();
    add(&mut order, 3, 900 * MS, b"b", [1, 101]);
    assert_eq!(order.poll(900 * MS, u64::MAX), Next::At(901 * MS), "that of all was full");
    order.settle(900 * MS, second, &[12, 1300]);
    assert_eq!(order.poll(900 * MS, u64::MAX), Next::At(1301 * MS), "300 are owed");
    order.drain();
    add(&mut order, 4, 900 * MS, b"a", [1, 0]);
    assert_eq!(order.poll(900 * MS, u64::MAX), Next::At(1200 * MS), "2 are owed");
}

#[test]
fn many_overcharged_commands_use_most_of_the_limit() {
    let (each, all) = (policy(&["100000/min,burst=100000"]), policy(&["200000/min,burst=200000"]));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 0)], jobs: NonZeroU32::new(32), ..Rules::default() };
    let (mut order, mut running, mut used) = (Line::new(&rules, 0), VecDeque::new(), [0; 6]);
    let add = |order: &mut Line<()>, age: u64, now| {
        let key = [b"a", b"b", b"c"][usize::try_from(age % 3).unwrap()];
        order.add(now, Some(key), Unit { settles: true, ..unit(age, now, 4000) }).unwrap();
    };
    (0..12).for_each(|age| add(&mut order, age, 0));
    let mut age = 12;
    for now in (0..36_000).map(|tick| tick * 10 * MS) {
        while let Some((ends, number)) = running.pop_front_if(|(ends, _): &mut (Nanos, _)| *ends <= now) {
            order.settle(ends, number, &[1000]);
            order.ended(ends, number);
        }
        while running.len() < 64 && order.ready_at(now).is_some_and(|at| at <= now) {
            running.push_back((now + 20 * SECOND, number_of_next(&mut order, now)));
            used[usize::try_from(now / (60 * SECOND)).unwrap()] += 1000;
            add(&mut order, age, now);
            age += 1;
        }
    }
    assert!(used[1..].iter().all(|used| (160_000..=400_000).contains(used)), "{used:?}");
    assert!(used.iter().sum::<u64>() <= 200_000 * 7, "{used:?}");
}

/// What each key and all together let through, of a unit with these costs: from when on.
fn answers(order: &mut Line<()>, now: Nanos) -> Vec<Option<Nanos>> {
    let mut found = Vec::new();
    for (key, costs) in
        [b"a", b"b", b"c"].into_iter().flat_map(|key| [[1, 0], [7, 0], [0, 1], [2, 9]].map(|costs| (key, costs)))
    {
        let unit = Unit { age: u64::MAX, costs: costs.into(), size: 1, arrived: now, settles: false, content: () };
        order.add(now, Some(key), unit).unwrap();
        found.push(order.ready_at(now));
        order.drain();
    }
    found
}

fn settled_cases() -> ProptestConfig {
    ProptestConfig::with_cases(rounds(300))
}

proptest! {
    #![proptest_config(settled_cases())]

    /// Law 11: an order that is charged estimates and settled equals one that knew the real costs.
    #[test]
    fn settled_units_leave_limits_as_if_costs_had_been_known(
        bursts in (7_u64..14, 9_u64..20),
        windows in any::<[bool; 2]>(),
        steps in prop::collection::vec(
            (0_u8..3, [0_u64..7, 0_u64..9], [0_u64..7, 0_u64..9], 0_u64..1500, 0_u64..40, 0_usize..3),
            1..40,
        ),
    ) {
        let each = policy(&[&format!("3/s,burst={}", bursts.0)]);
        let all = policy(&[&format!("7/s,burst={}", bursts.1)]);
        let [few, many] = ["20/5s,window", "40/5s,window"].map(|limit| policy(&[limit]));
        let (mut own, mut together) = (vec![(&each, 0)], vec![(&all, 1)]);
        own.extend(windows[0].then_some((&few, 1)));
        together.extend(windows[1].then_some((&many, 0)));
        let rules = Rules { each: &own, all: &together, jobs: Some(NonZeroU32::MAX), ..Rules::default() };
        let [mut estimates, mut knows] = [0; 2].map(|now| Line::new(&rules, now));
        let (mut open, mut now) = (Vec::new(), 0);
        for (age, (key, one, other, pause, started, settled)) in (0..).zip(steps) {
            now += pause * MS;
            let key = &[b'a' + key];
            let costs = |pick: fn(u64, u64) -> u64| [0, 1].map(|kind| pick(one[kind], other[kind]));
            let (charged, real) = (costs(u64::max), costs(u64::min));
            let unit = |costs: [u64; 2]| Unit { settles: true, costs: costs.into(), ..unit(age, now, 1) };
            estimates.add(now, Some(key), unit(charged)).unwrap();
            if estimates.ready_at(now) == Some(now) {
                knows.add(now, Some(key), unit(real)).unwrap();
                let Next::Go(known, _, known_grant) = knows.poll(now, u64::MAX) else { panic!("its costs are less") };
                let Next::Go(key, _, grant) = estimates.poll(now, u64::MAX) else { panic!("it is ready") };
                now += started * MS;
                estimates.handed_over(now, key, grant, &charged);
                knows.handed_over(now, known, known_grant, &real);
                open.push((grant.number, known_grant.number, real));
            }
            estimates.drain();
            for _ in 0..settled.min(open.len()) {
                let (number, known, real) = open.swap_remove(settled % open.len());
                estimates.settle(now, number, &real);
                estimates.ended(now, number);
                knows.ended(now, known);
            }
        }
        for (number, _, real) in open {
            estimates.settle(now, number, &real);
        }
        prop_assert_eq!(answers(&mut estimates, now), answers(&mut knows, now));
    }
}

/// Units 0 to 99 are usual, and those from 1000 on are suspects. All wait from the start.
fn with_suspects(limit: &str, weights: &[u32]) -> Line<u64> {
    let all = policy(&[limit]);
    let rules = Rules { all: &[(&all, 0)], jobs: Some(NonZeroU32::MAX), ..Rules::default() };
    let mut line = Line::new(&rules, 0);
    let unit = |content| Unit { age: content, costs: [1].into(), size: 1, arrived: 0, settles: false, content };
    for (content, weight) in (1000..).zip(weights) {
        line.add_suspect(0, None, unit(content), *weight).unwrap();
    }
    for content in 0..100 {
        line.add(0, None, unit(content)).unwrap();
    }
    line
}

/// In which order units leave.
fn contents(line: &mut Line<u64>) -> Vec<u64> {
    let (mut now, mut left) = (0, Vec::new());
    loop {
        match line.poll(now, u64::MAX) {
            Next::Go(_, unit, _) => left.push(unit.content),
            Next::At(time) => now = time,
            _ => return left,
        }
    }
}

/// Before, a unit that was refused twice waited behind a count of others. Now a weight sets the turns of the others.
#[test]
fn suspects_get_one_turn_for_each_eight_of_the_others() {
    for limit in ["1k/s,burst=200", "100/s,burst=1"] {
        let left = contents(&mut with_suspects(limit, &[8; 20]));
        let places: Vec<_> = left.iter().enumerate().filter(|(_, unit)| **unit >= 1000).map(|(at, _)| at).collect();
        let expected: Vec<_> = (0..12).map(|turn| 8 + 9 * turn).chain(112..120).collect();
        assert_eq!(places, expected, "{limit}: those that are left go when no other waits");
        let usual: Vec<_> = left.iter().copied().filter(|unit| *unit < 1000).collect();
        assert!(usual.is_sorted(), "{limit}");
        let left = contents(&mut with_suspects(limit, &[32; 3]));
        assert_eq!(left.iter().position(|unit| *unit == 1001), Some(65), "{limit}");
    }
}

/// Before, a suspect that joined behind another one waited for the turns of that one only.
#[test]
fn each_suspect_waits_for_its_own_first_turn() {
    let mut line = with_suspects("100/s,burst=1", &[8, 32, 8]);
    let left = contents(&mut line);
    let places = |left: &[u64]| [1000, 1001, 1002].map(|unit| left.iter().position(|left| *left == unit));
    assert_eq!(places(&left), [Some(8), Some(33), Some(66)], "in the order in which they came");
    let mut line = with_suspects("100/s,burst=1", &[32, 8]);
    let first = line.waiting_of(line.find(None).unwrap()).find(|ticket| ticket.slot() == 0).unwrap();
    assert!(line.cancel(first).is_some());
    assert_eq!(places(&contents(&mut line)), [None, Some(8), None]);
}

/// By age, units that are always refused stayed in front of the other suspects, some of which were lost.
#[test]
fn a_suspect_that_is_refused_again_lets_younger_ones_go_first() {
    let mut line = Line::new(&Rules { jobs: Some(NonZeroU32::MAX), ..Rules::default() }, 0);
    let unit = |content| Unit { age: content, costs: [].into(), size: 1, arrived: 0, settles: false, content };
    (1..=3).for_each(|content| assert!(line.add_suspect(0, None, unit(content), 8).is_ok()));
    let Next::Go(_, first, _) = line.poll(0, u64::MAX) else { panic!() };
    assert_eq!(first.content, 1);
    line.add_suspect(0, None, first, 8).unwrap();
    assert_eq!(contents(&mut line), [2, 3, 1]);
}

#[test]
fn all_are_held_and_start_with_an_empty_bucket() {
    let all = policy(&["10/s,burst=2"]);
    let rules = Rules { all: &[(&all, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "abcd");
    assert!(matches!(order.poll(0, u64::MAX), Next::Go(..)));
    order.hold_all_until(0, SECOND);
    assert_eq!(transcript(&mut order, None), "1100b1 1200c2 1300d3");
    order.hold_all_until(1300 * MS, 3 * SECOND);
    assert_eq!(order.pass(2 * SECOND, Some(b"e"), &[0]), None, "not even what costs nothing");
    assert!(order.pass(3100 * MS, Some(b"e"), &[1]).is_some());
}

#[test]
fn a_suspect_alone_goes_at_once_and_the_next_one_behind_eight() {
    let rules = Rules { jobs: Some(NonZeroU32::MAX), ..Rules::default() };
    let mut line = Line::new(&rules, 0);
    let unit = |content| Unit { age: content, costs: [].into(), size: 1, arrived: 0, settles: false, content };
    line.add_suspect(0, None, unit(1), 8).unwrap();
    assert!(line.usual() == 0);
    assert_eq!(contents(&mut line), [1]);
    line.add_suspect(0, None, unit(2), 8).unwrap();
    for content in 10..30 {
        line.add(0, None, unit(content)).unwrap();
    }
    assert!(line.usual() > 0);
    let left = contents(&mut line);
    assert_eq!(left.iter().position(|unit| *unit == 2), Some(8), "{left:?}");
    assert_eq!((line.len(), line.memory()), (0, 0));
}

#[test]
fn all_waiting_units_come_out_in_the_order_of_their_age() {
    let each = policy(&["1/s"]);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order = order_of(&rules, "abcabcab");
    assert!(matches!(order.poll(0, u64::MAX), Next::Go(..)));
    let ages: Vec<u64> = order.drain().into_iter().map(|unit| unit.age).collect();
    assert_eq!(ages, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((order.len(), order.memory(), order.keys_waiting()), (0, 0, 0));
    assert_eq!(order.poll(9 * SECOND, u64::MAX), Next::Nothing);
}

/// Windows count units when they are handed over, and the end of a job must be reported.
#[test]
fn no_further_units_pass_at_once_with_windows_or_jobs() {
    let (bucket, window) = (policy(&["9/s,burst=9"]), policy(&["9/s,window"]));
    for (each, jobs, more) in [(&bucket, None, Some(8)), (&window, None, Some(0)), (&bucket, NonZeroU32::new(2), None)]
    {
        let mut order: Line<()> = Line::new(&Rules { each: &[(each, 0)], jobs, ..Rules::default() }, 0);
        let key = order.pass(0, Some(b"a"), &[1]);
        assert_eq!(key.map(|key| order.more(key, &[1])), more);
    }
}

#[test]
fn units_that_arrive_later_wait_with_their_key() {
    let mut order = order_of(&Rules::default(), "ab");
    for (age, key) in (2..).zip(*b"abb") {
        order.add(0, Some(&[key]), unit(age, SECOND, 1)).unwrap();
    }
    let key = order.find(Some(b"a")).unwrap();
    assert_eq!((order.units_of(key).count(), order.find(Some(b"c"))), (2, None));
    let ages: Vec<u64> = order.drain_key(key).into_iter().map(|unit| unit.age).collect();
    assert_eq!((ages, order.len()), (vec![0, 2], 3));
    assert_eq!(transcript(&mut order, None), "0b1 1000b3 1000b4");
    assert_eq!(order.crowd(), Crowd::default());
    assert!(order.usual() == 0);
}

/// A name has its own memory from 23 bytes on. A key with its own limits is stored for ever.
#[test]
fn a_key_is_found_again_whatever_the_length_of_its_name() {
    let each = policy(&["1/s"]);
    let key = Box::from(&[b'x'; 23][..]);
    let named = [NamedKey { key, each: vec![(policy(&["1/s,burst=2"]), 0)].into() }];
    let rules = Rules { each: &[(&each, 0)], named: &named, ..Rules::default() };
    let mut order: Line<()> = Line::new(&rules, 0);
    for length in [0, 1, 22, 23, 24, 255, 256, 1000] {
        let name = vec![b'x'; length];
        let passed = [0; 3].map(|now| order.pass(now, Some(&name), &[1]).is_some());
        assert_eq!(passed, [true, length == 23, false], "{length}");
        assert!(order.find(Some(&name)).is_some_and(|key| order.name(key) == name));
    }
}

/// The second suspect comes when four units have left.
#[test]
fn a_suspect_that_comes_later_delays_no_other() {
    let mut line = with_suspects("1k/s,burst=200", &[8]);
    for content in 0..4 {
        assert!(matches!(line.poll(0, u64::MAX), Next::Go(_, unit, _) if unit.content == content));
    }
    line.add_suspect(
        0,
        None,
        Unit { age: 2000, costs: [1].into(), size: 1, arrived: 0, settles: false, content: 2000 },
        8,
    )
    .unwrap();
    let left = contents(&mut line);
    assert_eq!([1000, 2000].map(|unit| left.iter().position(|left| *left == unit)), [Some(4), Some(13)]);
}
