//! How keys share the limits of all: start-time fair queueing, on a fake clock and through the real program.

use crate::support::{Ended, Running, run, throttle};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Write;
use std::thread::{self, sleep};
use std::time::Duration;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Policy;
use throttle_limits::line::{Line, Next, Rules, Unit};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;

fn policy(limit: &str) -> Policy {
    Policy::new(&[limit.parse().unwrap()], None).unwrap()
}

/// An order, and what has left: when, of which key, at what cost.
struct Run {
    order: Line<()>,
    now: Nanos,
    age: u64,
    gone: Vec<(Nanos, u64, u64)>,
}

impl Run {
    fn new(each: &str, all: &str) -> Self {
        let (each, all) = (policy(each), policy(all));
        let rules = Rules { each: &[(&each, 1)], all: &[(&all, 0)], ..Rules::default() };
        Run { order: Line::new(&rules, 0), now: 0, age: 0, gone: Vec::new() }
    }

    /// A unit arrives now, with this cost for the limits of all.
    fn add(&mut self, key: u64, cost: u64) {
        self.age += 1;
        let unit =
            Unit { age: self.age, costs: [cost, 1].into(), size: 1, arrived: self.now, settles: false, content: () };
        self.order.add(self.now, Some(&key.to_be_bytes()), unit).unwrap();
    }

    /// The next unit that leaves by `until`: its key.
    fn next(&mut self, until: Nanos) -> Option<u64> {
        loop {
            match self.order.poll(self.now, u64::MAX) {
                Next::Go(key, unit, charged) => {
                    let key = u64::from_be_bytes(self.order.name(key).try_into().unwrap());
                    self.gone.push((charged.at, key, unit.costs[0]));
                    return Some(key);
                }
                Next::At(time) if time <= until => self.now = time,
                _ => {
                    self.now = self.now.max(until);
                    return None;
                }
            }
        }
    }

    /// The cost of all units of a key that have left.
    fn cost_of(&self, key: u64) -> u64 {
        self.gone.iter().filter(|(_, of, _)| *of == key).map(|(.., cost)| cost).sum()
    }

    /// The number of units that left before the only unit of this key, and the time of that unit.
    fn before(&self, key: u64) -> (usize, Nanos) {
        let place = self.gone.iter().position(|(_, of, _)| *of == key).unwrap();
        (place, self.gone[place].0)
    }
}

/// All of them wait, or the next unit of a user comes only when the last has left.
#[test]
fn users_of_large_and_of_small_units_get_half_each() {
    for waits in [1, 100] {
        let mut run = Run::new("1G/s", "200k/min,burst=4000");
        let costs = [4000, 100];
        (0..2 * waits).for_each(|unit| run.add(unit % 2, costs[usize::try_from(unit % 2).unwrap()]));
        while let Some(key) = run.next(600 * SECOND) {
            run.add(key, costs[usize::try_from(key).unwrap()]);
        }
        let [large, small] = [0, 1].map(|key| run.cost_of(key));
        assert!(large + small >= 1_990_000 && large.abs_diff(small) < 20_000, "{waits}: {large} and {small}");
    }
}

#[test]
fn a_costly_unit_leaves_when_its_cost_is_there() {
    let mut run = Run::new("1000/s,burst=1000", "100/s,burst=100,initial=0");
    (0..10).for_each(|key| run.add(key, 1));
    run.add(99, 50);
    // Those of ten keys never end.
    while run.now < 5 * SECOND {
        let Some(key) = run.next(5 * SECOND) else { break };
        if key < 99 {
            run.add(key, 1);
        }
    }
    assert_eq!(run.before(99), (10, 600 * MS));
}

#[test]
fn a_flood_of_one_key_delays_no_other() {
    let mut run = Run::new("1G/s", "50/s,burst=1");
    let mut come = BTreeMap::new();
    for tick in 0..6000 {
        while run.next(tick * MS).is_some() {}
        run.add(0, 1);
        if tick % 103 == 50 {
            run.add(1000 + tick, 1);
            come.insert(1000 + tick, run.gone.len());
        }
    }
    let waited = come.iter().map(|(key, before)| run.before(*key).0 - before);
    assert_eq!((come.len(), waited.max()), (58, Some(0)), "each goes next");
}

#[test]
fn a_key_saves_up_nothing_while_others_use_the_limits() {
    let mut run = Run::new("1G/s", "100/s,burst=1");
    for _ in 0..2000 {
        run.add(0, 1);
    }
    run.add(1, 1);
    while run.now < 10 * SECOND {
        run.next(10 * SECOND);
    }
    let before = [0, 1].map(|key| run.cost_of(key));
    assert_eq!(before[1], 1);
    (0..500).for_each(|_| run.add(1, 1));
    while run.next(15 * SECOND).is_some() {}
    let after = [0, 1].map(|key| run.cost_of(key) - before[usize::try_from(key).unwrap()]);
    assert!(after[0].abs_diff(after[1]) <= 1, "{after:?}");
}

/// Each has one unit, and more come than may leave. Nothing is kept of most of those that have left.
#[test]
fn endless_new_keys_hold_up_no_old_one_and_take_no_memory() {
    let mut run = Run::new("1G/s", "1k/s,burst=1");
    (0..2).for_each(|_| run.add(0, 1));
    for key in 1..40_000 {
        run.add(key, 1);
        if key > 50 {
            run.next(Nanos::MAX);
        }
        assert!(run.order.keys() < 20_000, "{} keys after {key}", run.order.keys());
    }
    assert_eq!(run.cost_of(0), 2);
}

proptest! {
    /// The bound of Goyal, Vin and Cheng (theorem 1). Of some keys all units wait; those of others come one by one, each when
    /// the last has left.
    #[test]
    fn shares_of_keys_differ_by_no_more_than_a_unit_of_each(
        keys in prop::collection::vec((prop::collection::vec(1..60_u64, 1..5), 1..9_u64), 2..6),
    ) {
        let mut run = Run::new("1G/s", "100/s,burst=60,initial=0");
        let costs = |key: u64, unit: usize| { let of = &keys[usize::try_from(key).unwrap()].0; of[unit % of.len()] };
        let mut added = vec![0; keys.len()];
        let mut add = |run: &mut Run, key: u64| {
            let count = &mut added[usize::try_from(key).unwrap()];
            run.add(key, costs(key, *count));
            *count += 1;
        };
        for (key, (_, waits)) in (0..).zip(&keys) {
            (0..*waits).for_each(|_| add(&mut run, key));
        }
        for _ in 0..200 {
            let key = run.next(Nanos::MAX).unwrap();
            add(&mut run, key);
            for (one, other) in (0..).zip(&keys).flat_map(|one| (0..).zip(&keys).map(move |other| (one, other))) {
                let most = one.1.0.iter().max().unwrap() + other.1.0.iter().max().unwrap();
                let [got, had] = [one.0, other.0].map(|key: u64| run.cost_of(key));
                prop_assert!(got.abs_diff(had) <= most, "{got} and {had}");
            }
        }
    }

    /// Law 3: a caller that asks late gets the grants that it would have had in time.
    #[test]
    fn a_late_caller_gets_the_grants_that_it_would_have_had_in_time(
        units in prop::collection::vec((0..400 * MS, 0..4_u64, 0..20_u64), 1..60),
        // Not later than the allowance, a tenth of the second in which the first bucket fills: longer ago, the rate is lost.
        calls in prop::collection::vec(1..90 * MS, 1..60),
    ) {
        let [mut in_time, mut late] = [0; 2].map(|_| Run::new("3/s,burst=3", "10/s,burst=20"));
        let mut calls = calls.into_iter().cycle();
        let mut call = calls.next().unwrap();
        for (wait, key, cost) in units.into_iter().chain([(200 * SECOND, 9, 0)]) {
            let arrives = in_time.now + wait;
            while in_time.next(arrives).is_some() {}
            while call <= arrives {
                late.now = call;
                while late.next(call).is_some() {}
                call += calls.next().unwrap();
            }
            late.now = arrives;
            in_time.add(key, cost);
            late.add(key, cost);
        }
        prop_assert_eq!(&in_time.gone, &late.gone);
    }
}

/// What a run with these limits let through, in order: of a pipe, of commands, and of a dry run of both.
fn runs(limits: [&str; 2], input: &str) -> Vec<(&'static str, Vec<String>)> {
    let limits = limits.map(|limit| ["-r", limit]).concat();
    let first_words = |ended: Ended| {
        assert_eq!((ended.code(), &ended.err[..]), (Some(0), ""));
        let lines = ended.text().lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.trim_start_matches("echo ").trim_matches('\'').to_owned()).collect()
    };
    let ways: [(&str, &[&str]); 4] = [
        ("pipe", &[]),
        ("launch", &["-j", "1", "echo"]),
        ("dry pipe", &["--dry-run"]),
        ("dry launch", &["--dry-run", "echo"]),
    ];
    ways.map(|(name, way)| (name, first_words(run([&limits[..], way].concat(), input)))).into()
}

#[test]
fn two_users_get_half_of_the_tokens_each_in_every_way_to_run() {
    let large = (0..15).map(|unit| format!("large 400 {unit}\n"));
    let input: String = large.chain((0..60).map(|unit| format!("small 100 {unit}\n"))).collect();
    for (name, lines) in runs(["1k/s,per=f1", "12k/s,burst=400,cost=f2"], &input) {
        let cost_of = |user: &str| -> u64 {
            let lines = lines.iter().take(lines.len() / 2).filter(|line| line.starts_with(user));
            lines.map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap()).sum()
        };
        let [large, small] = ["large", "small"].map(cost_of);
        assert_eq!(lines.len(), 75, "{name}");
        assert!(large.abs_diff(small) <= 1000 && small > 2000, "{name}: {large} and {small}: {lines:?}");
    }
}

#[test]
#[ignore = "slow: 3 s"]
fn a_costly_unit_passes_cheap_ones_in_every_way_to_run() {
    let cheap = |from: u32| (from..from + 60).map(|unit| format!("k{} 1 {unit}\n", unit % 5));
    let input: String = cheap(0).chain(["costly 50 0\n".to_owned()]).chain(cheap(60)).collect();
    for (name, lines) in runs(["1k/s,burst=1000,per=f1", "100/s,burst=100,initial=0,cost=f2"], &input) {
        let place = lines.iter().position(|line| line.starts_with("costly")).unwrap();
        // It is read when the first of those before may already have left.
        assert!(lines.len() == 121 && place <= 30, "{name}: at place {place}");
    }
}

/// A thousand lines a second of one key, and ten of others; fifty may leave.
#[test]
#[ignore = "slow: 7 s"]
fn lines_of_quiet_keys_leave_at_their_turn_beside_a_flood() {
    for way in [&[][..], &["-j", "2", "echo"]] {
        let mut child = throttle([&["-r", "1M/s,per=f1", "-r", "50/s"][..], way].concat()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = thread::spawn(move || {
            for tick in 0..300 {
                let flood = (0..10).map(|unit| format!("flood {tick} {unit}\n")).collect::<Vec<_>>().concat();
                let quiet = if tick % 10 == 5 { format!("quiet{} {tick}\n", tick % 7) } else { String::new() };
                stdin.write_all((flood + &quiet).as_bytes()).unwrap();
                sleep(Duration::from_millis(10));
            }
            stdin
        });
        let run = Running::read(child);
        let stdin = writer.join().unwrap();
        sleep(Duration::from_millis(500));
        run.signal(rustix::process::Signal::TERM);
        let ended = run.finish();
        drop(stdin);
        let quiet = ended.text().lines().filter(|line| line.starts_with("quiet")).count();
        assert!(quiet >= 20, "{way:?}: {quiet} of {} lines", ended.text().lines().count());
    }
}
