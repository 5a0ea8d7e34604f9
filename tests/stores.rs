//! One suite for every store: the same questions end on the same integers, wherever the limits live.

use std::path::Path;
use throttle::clock::{Clock, FakeClock, Nanos};
use throttle::limits::Plan;
use throttle::store::{File, Machine, Memory, Place, Store};

const SECOND: u128 = 1_000_000_000;

/// Grants of a schedule: a million in the speed that is released.
const MANY: u32 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

fn plan(limits: &[&str]) -> Plan {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Plan::new(&limits, None).unwrap()
}

fn place(path: &Path) -> Place {
    Place { path: path.to_owned(), own_folder: false }
}

/// Runs `check` on every kind of store with these limits, on a clock that stands at 5 µs.
fn on_every_store(limits: &[&str], check: impl Fn(&str, &FakeClock, &dyn Store)) {
    let plan = plan(limits);
    let clock = FakeClock::at(5_000);
    check("memory", &clock, &Memory::new(&plan, clock.clone()));

    let folder = tempfile::tempdir().unwrap();
    let clock = FakeClock::at(5_000);
    let machine = Machine::fake(&clock, 1, 0);
    let file = File::open_on(machine, place(&folder.path().join("bucket")), Some(&plan)).unwrap();
    check("file", &clock, &file);
}

/// The times of `count` units asked for one by one at once.
fn grants(store: &dyn Store, count: u32) -> impl Iterator<Item = Nanos> {
    (0..count).map(|_| {
        let (grant, _) = store.next_run(1).unwrap();
        assert_eq!(grant.units, 1);
        grant.at
    })
}

/// Of many units asked for at once, the burst goes then and each other one exactly when the rate has paid for it.
#[test]
fn a_saturated_schedule_is_exact_to_the_last_nanosecond() {
    for (limit, units, period) in
        [("1000003/s,burst=1", 1_000_003, SECOND), ("700/min,burst=7", 700, 60 * SECOND), ("3/s,burst=1", 3, SECOND)]
    {
        let burst = if limit.contains("burst=7") { 7 } else { 1 };
        on_every_store(&[limit], |name, _, store| {
            for (place, at) in grants(store, MANY).enumerate() {
                let paid_for = (place as u128 + 1).saturating_sub(burst);
                assert_eq!(u128::from(at), 5_000 + (paid_for * period).div_ceil(units), "{name} {limit}: {place}");
            }
        });
    }
}

/// 10 a second, and 25 in any 10 s: the first 25 at the pace, and so on from 10 s after each.
#[test]
fn two_limits_are_both_kept() {
    on_every_store(&["10/s,burst=1", "25/10s"], |name, _, store| {
        for (place, at) in grants(store, 10_000).enumerate() {
            let (round, rest) = (place as u64 / 25, place as u64 % 25);
            assert_eq!(at, 5_000 + round * 10_000_000_000 + rest * 100_000_000, "{name}: {place}");
        }
    });
}

#[test]
fn a_window_frees_what_is_a_period_old() {
    on_every_store(&["3/min,window"], |name, clock, store| {
        let mut times = Vec::new();
        for second in [0, 10, 20] {
            clock.set(5_000 + second * 1_000_000_000);
            times.extend(grants(store, 2).map(|at| (at - 5_000) / 1_000_000_000));
        }
        assert_eq!(times, [0, 0, 10, 60, 60, 70], "{name}");
    });
}

#[test]
fn what_waits_goes_as_a_run_and_what_does_not_is_not_reserved() {
    on_every_store(&["1000/s,burst=4"], |name, clock, store| {
        let (run, asked) = store.next_run(100).unwrap();
        assert_eq!((run.at, run.units, asked), (5_000, 4, 5_000), "{name}");
        let (run, _) = store.next_run(96).unwrap();
        assert_eq!((run.at, run.units), (1_005_000, 1), "{name}");
        store.clock().sleep_until(3_005_000);
        assert_eq!((clock.now(), store.take_available(95)), (3_005_000, 2), "{name}");
        assert_eq!(store.take_available(93), 0, "{name}");
    });
}

#[test]
fn what_can_never_be_granted_is_refused_and_costs_nothing() {
    on_every_store(&["3/min,window"], |name, _, store| {
        assert_eq!(store.available(), 3, "{name}");
        assert_eq!(store.schedule(4), Some(60_000_005_000), "{name}");
        assert_eq!(store.available(), 3, "{name}");
    });
}
