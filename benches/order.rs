//! The order of units with keys: what a unit costs, in nanoseconds, and a key, in bytes. Prints a table.

use std::hint::black_box;
use std::time::Instant;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Policy;
use throttle_limits::line::{Line, Next, Rules, Unit};

const SECOND: Nanos = 1_000_000_000;

/// The memory of this process, in bytes.
fn memory() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    resident.unwrap_or(0) * 4096
}

fn policy(limit: &str) -> Policy {
    Policy::new(&[limit.parse().expect("a limit")], None).expect("a policy")
}

fn row(name: &str, units: u64, start: Instant) {
    println!("{name:48} {:7} ns", start.elapsed().as_nanos() / u128::from(units));
}

/// Units that all pass at once.
fn pass(name: &str, limit: &str, keys: u64) {
    let each = policy(limit);
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let mut order: Line<()> = Line::new(&rules, 0);
    let (start, units) = (Instant::now(), 4_000_000);
    let mut text = Vec::new();
    for unit in 0..units {
        text.clear();
        text.extend_from_slice(b"key ");
        text.extend_from_slice(format!("{:07}", unit * 7_368_787 % keys).as_bytes());
        black_box(order.pass(unit * 1000, Some(&text), &[1]));
    }
    row(name, units, start);
}

/// As many units of each of so many keys wait, and leave one by one. Unit `age` costs all keys together what `cost` says.
fn wait(name: &str, [units, keys]: [u64; 2], cost: impl Fn(u64) -> u64) {
    let (each, all) = (policy("1/s"), policy("1M/s,burst=10000"));
    let rules = Rules { each: &[(&each, 0)], all: &[(&all, 1)], ..Rules::default() };
    let mut order = Line::new(&rules, 0);
    let start = Instant::now();
    for age in 0..units {
        let unit = Unit { age, costs: [1, cost(age)].into(), size: 100, arrived: 0, settles: false, content: () };
        drop(order.add(0, Some(&(age % keys).to_be_bytes()), unit));
    }
    let mut now = 0;
    loop {
        match order.poll(now, u64::MAX) {
            Next::At(time) => now = time,
            Next::Go(key, ..) => drop(black_box(key)),
            _ => break,
        }
    }
    row(&format!("add and next, {keys} keys wait, {name}"), units, start);
}

/// Far more keys than can be stored, each once a day.
fn many(length: usize) {
    let each = policy("1/d");
    let rules = Rules { each: &[(&each, 0)], ..Rules::default() };
    let before = memory();
    let mut order = Line::new(&rules, 0);
    let (mut now, mut passed, mut age, mut most) = (0, 0_u64, 0_u64, 0);
    let start = Instant::now();
    while passed < 3_000_000 {
        let mut text = age.to_be_bytes().to_vec();
        text.resize(length, 0);
        // No more than 10 000 units are read ahead.
        if age < 3_000_000 && order.len() < 10_000 {
            now += 1000;
            if order.pass(now, Some(&text), &[1]).is_some() {
                passed += 1;
            } else {
                let unit = Unit { age, costs: [1].into(), size: length, arrived: now, settles: false, content: () };
                drop(order.add(now, Some(&text), unit));
            }
            age += 1;
        } else {
            match order.poll(now, u64::MAX) {
                Next::Go(..) => passed += 1,
                Next::At(time) => now = time,
                _ => break,
            }
        }
        if age == 917_600 || age == 1_000_000 || order.keys() > most + 100_000 {
            most = most.max(order.keys());
            let bytes = (memory().saturating_sub(before) / order.keys()).saturating_sub(length);
            if age == 917_600 || age == 1_000_000 {
                println!("{length:3} bytes long, {:7} keys: {bytes:5} bytes a key beyond its own", order.keys());
            }
        }
    }
    let days = now / (86_400 * SECOND);
    println!("3 million keys at 1/d: {passed} passed in {days} days, {} MiB", memory().saturating_sub(before) >> 20);
    row("each", passed, start);
}

fn main() {
    // First, so that what others left to the allocator does not count.
    // Names of 25 bytes waste the most: they are too long to be stored in place, and malloc takes 48 bytes.
    many(25);
    pass("pass, 1 key", "1G/s", 1);
    pass("pass, 1 000 keys", "1G/s", 1000);
    pass("pass, 1 000 000 keys, forgotten at once", "1G/s", 1_000_000);
    pass("pass, 1 000 000 keys, all remembered", "1/h,burst=9", 1_000_000);
    wait("one cost", [200_000, 100], |_| 1);
    wait("one cost", [200_000, 10_000], |_| 1);
    wait("one cost", [40_000, 10_000], |_| 5000);
    wait("all costs different", [40_000, 10_000], |age| 1 + age * 7919 % 10_000);
}
