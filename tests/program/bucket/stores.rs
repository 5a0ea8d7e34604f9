//! One suite for all stores: the same requests get the same integers, wherever the limits are kept.

use crate::rounds::rounds;
use crate::support::wait_until;
use std::path::Path;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, NanoClock, Nanos};
use throttle_limits::limits::{Ask, Grant, OfKey, OfKeys, Operation, Policy, Reply, Take};
use throttle_limits::store::{Claim, File, Machine, Place, Redis, Simulated, Store, Supply};

const SECOND: u128 = 1_000_000_000;

/// Grants of a schedule.
const MANY: u32 = 1_000_000;

/// The same for stores where a grant takes several system calls: fewer, so that the debug build takes seconds.
const MANY_CALLS: u32 = if cfg!(debug_assertions) { 300_000 } else { MANY };

/// The same where a grant that waits long is a round trip.
const MANY_ROUND_TRIPS: u32 = 10_000;

/// A new store with some limits, on a clock that the test sets.
struct Opened {
    name: &'static str,
    clock: FakeClock,
    store: Supply,
    /// The store's times are multiples of this many nanoseconds: the exact times, rounded up.
    /// How long a schedule is worth its time here.
    many: u32,
    /// Units in one request.
    at_once: u32,
    _home: Home,
}

/// Removed together with the store.
enum Home {
    Nowhere,
    Folder(#[allow(dead_code, reason = "it is removed with this")] tempfile::TempDir),
    Server(#[allow(dead_code, reason = "it ends with this")] crate::support::redis::Redis),
}

impl Opened {
    /// The exact time at which `paid_for` of `units` per `period` after the start are
    /// paid.
    fn after(paid_for: u128, period: u128, units: u128) -> Nanos {
        let exact = u128::from(START) + (paid_for * period).div_ceil(units);
        u64::try_from(exact).unwrap()
    }
}

/// All kinds of stores. Add a new kind here.
const STORES: [fn(&Policy) -> Option<Opened>; 3] =
    [|policy| Some(simulated(policy)), |policy| Some(file(policy)), redis];

/// Where every store's clock stands at first.
const START: Nanos = 5_000;

fn simulated(policy: &Policy) -> Opened {
    let clock = FakeClock::at(Duration::from_nanos(START));
    let store = Supply::new(Box::new(Simulated::new(policy, clock.clone()).with_span(10_000_000)));
    Opened { name: "simulated", clock, store, many: MANY, at_once: 1, _home: Home::Nowhere }
}

fn file(policy: &Policy) -> Opened {
    let (clock, folder) = (FakeClock::at(Duration::from_nanos(START)), tempfile::tempdir().unwrap());
    let machine = Machine::fake(&clock, 1, 0);
    let store = File::open_until(machine, place(&folder.path().join("bucket")), Some(policy), None).unwrap();
    let store = Supply::new(Box::new(store));
    let home = Home::Folder(folder);
    Opened { name: "file", clock, store, many: MANY_CALLS, at_once: 1, _home: home }
}

/// The server computes each of them, too; a round trip for each would only take longer.
fn redis(policy: &Policy) -> Option<Opened> {
    let server = crate::support::redis::Redis::start(&[])?;
    let clock = FakeClock::at(Duration::from_nanos(START));
    let address = server.bucket("bucket").parse().unwrap();
    let store = Supply::new(Box::new(Redis::open_on_fake(address, Some(policy), clock.clone()).unwrap()));
    let home = Home::Server(server);
    Some(Opened { name: "redis", clock, store, many: MANY_ROUND_TRIPS, at_once: 10_000, _home: home })
}

fn policy(limits: &[&str]) -> Policy {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

fn place(path: &Path) -> Place {
    Place { path: path.to_owned(), own_folder: false, group: None }
}

/// Runs `check` on every kind of store with these limits, on all of them side by side.
fn on_every_store(limits: &[&str], check: impl Fn(&Opened) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for open in STORES {
            scope.spawn(move || open(&policy(limits)).iter().for_each(check));
        }
    });
}

/// The times of `count` units, each requested by itself, all at once.
fn grants(opened: &Opened, count: u32) -> impl Iterator<Item = Nanos> {
    let mut left = count;
    std::iter::from_fn(move || {
        let asked = left.min(opened.at_once);
        let (grant, _) = (asked > 0).then(|| opened.store.next_run(asked.into()).unwrap())?;
        let units = u32::try_from(grant.units).unwrap();
        assert!(opened.at_once > 1 || units == 1);
        if count > 1000 {
            // Nobody is so early that the line becomes long.
            opened.clock.set(Duration::from_nanos(opened.clock.now().max(grant.at)));
        }
        left -= units;
        Some(std::iter::repeat_n(grant.at, units as usize))
    })
    .flatten()
}

/// Of many units requested at once, the burst goes immediately, and each later one exactly when the rate has paid for
/// it.
fn assert_exact(limit: &str, burst: u128, units: u128, period: u128) {
    on_every_store(&[limit], |opened| {
        for (place, at) in grants(opened, rounds(opened.many)).enumerate() {
            let paid_for = (place as u128 + 1).saturating_sub(burst);
            assert_eq!(at, Opened::after(paid_for, period, units), "{} {limit}: {place}", opened.name);
        }
    });
}

/// The time of each is that of the limit that it waits for; what costs a limit nothing does not wait for it.
#[test]
fn costs_of_several_kinds_are_granted_together() {
    on_every_store(&["2/s,burst=1", "60/min,burst=10"], |opened| {
        let (store, second) = (opened.store.store(), 1_000_000_000);
        let take = |costs: &[u64]| store.take(costs, Nanos::MAX).unwrap().0;
        let grants: Vec<(Grant, Vec<u64>)> =
            [vec![1, 10], vec![1, 0], vec![1, 5], vec![0, 12], vec![3, 1]].map(|costs| (take(&costs), costs)).into();
        let after = |at: Nanos| (at - START) * 10 / second;
        let times: Vec<u64> = grants.iter().map(|(grant, _)| after(grant.at)).collect();
        assert_eq!(times, [0, 5, 50, 170, 180], "{}", opened.name);
        // The next two move up as if the third had never come, and the last waits for its requests.
        store.give_back(&grants[2].0, &Take::of(&grants[2].1)).unwrap();
        let found = |place: usize| after(store.look(&grants[place].0, &Take::of(&grants[place].1)).unwrap().at);
        assert_eq!([found(3), found(4)], [120, 130], "{}", opened.name);
        for (grant, costs) in grants[3..].iter().rev() {
            store.give_back(&store.look(grant, &Take::of(costs)).unwrap(), &Take::of(costs)).unwrap();
        }
        opened.clock.advance(Duration::from_nanos(10 * second));
        assert_eq!(store.view().unwrap().left, [1, 10], "{}", opened.name);
        assert!(store.take(&[1, 11], START).is_err(), "{}", opened.name);
    });
}

// Three tests, because they take seconds and can run in parallel.

#[test]
fn a_fast_schedule_is_exact_to_the_last_nanosecond() {
    assert_exact("1000003/s,burst=1", 1, 1_000_003, SECOND);
}

#[test]
fn a_schedule_per_minute_is_exact() {
    assert_exact("700/min,burst=7", 7, 700, 60 * SECOND);
}

#[test]
fn a_slow_schedule_is_exact() {
    assert_exact("3/s,burst=1", 1, 3, SECOND);
}

/// 10 per second, and 25 in any 10 s: the first 25 at that pace, the next 25 from 10 s after each.
#[test]
fn two_limits_are_both_kept() {
    on_every_store(&["10/s,burst=1", "25/10s"], |opened| {
        for (place, at) in grants(opened, rounds(10_000).max(2000)).enumerate() {
            let (round, rest) = (place as u128 / 25, place as u128 % 25);
            assert_eq!(at, Opened::after(round * 100 + rest, SECOND, 10), "{}: {place}", opened.name);
        }
    });
}

/// The first grants follow the clock, a third of a second apart. Each later one comes exactly one period after the
/// grant whose place it takes.
#[test]
fn a_window_is_exact() {
    on_every_store(&["3/min,window"], |opened| {
        for (place, at) in (0..3)
            .flat_map(|third| {
                opened.clock.set(Duration::from_nanos(START + third * 333_333_000));
                grants(opened, 1)
            })
            .chain(grants(opened, rounds(10_000).max(2000)))
            .enumerate()
        {
            let (round, third) = (place as u128 / 3, place as u128 % 3);
            assert_eq!(at, Opened::after(round * 60 * SECOND + third * 333_333_000, 1, 1), "{}: {place}", opened.name);
        }
    });
}

#[test]
fn a_window_frees_units_after_one_period() {
    on_every_store(&["3/min,window"], |opened| {
        let mut times = Vec::new();
        // A server takes those who wait and do not look for 9 s for dead.
        for second in [0, 4, 8] {
            opened.clock.set(Duration::from_nanos(START + second * 1_000_000_000));
            times.extend(grants(opened, 2).map(|at| (at - START) / 1_000_000_000));
        }
        assert_eq!(times, [0, 0, 4, 60, 60, 64], "{}", opened.name);
    });
}

#[test]
fn waiting_units_leave_as_a_run_and_no_others_are_reserved() {
    on_every_store(&["1000/s,burst=4"], |opened| {
        let (name, clock, store) = (opened.name, &opened.clock, &opened.store);
        let (run, asked) = store.next_run(100).unwrap();
        assert_eq!((run.at, run.units, asked), (5_000, 4, 5_000), "{name}");
        let (run, _) = store.next_run(96).unwrap();
        assert_eq!((run.at, run.units), (1_005_000, 1), "{name}");
        store.clock().sleep_until(3_005_000);
        assert_eq!((clock.now(), store.take_available(95)), (3_005_000, 2), "{name}");
        assert_eq!(store.take_available(93), 0, "{name}");
    });
}

/// Each look that entered the line anew would move all later grants.
#[test]
fn a_stream_that_waits_long_enters_the_line_once() {
    on_every_store(&["8/min,burst=1"], |opened| {
        let times: Vec<Nanos> = (0..4)
            .map(|_| {
                let (run, _) = opened.store.next_run(1).unwrap();
                opened.store.sleep_unless(&opened.clock, run.at, &|| false).unwrap();
                opened.clock.now()
            })
            .collect();
        let expected = [0, 1, 2, 3].map(|units| Opened::after(units, 60 * SECOND, 8));
        assert_eq!(times, expected, "{}", opened.name);
    });
}

#[test]
fn an_impossible_request_is_refused_and_costs_nothing() {
    on_every_store(&["3/min,window"], |opened| {
        let (name, store) = (opened.name, &opened.store);
        assert_eq!(store.available(), 3, "{name}");
        assert_eq!(store.schedule(4), Some(60_000_005_000), "{name}");
        assert_eq!(store.available(), 3, "{name}");
    });
}

/// The fraction of a unit survives a change of limits, so frequent changes slow nobody down.
#[test]
fn setting_limits_keeps_the_fraction_of_a_unit() {
    on_every_store(&["1/2s,burst=10,initial=0"], |opened| {
        let store = opened.store.store();
        for _ in 0..7 {
            opened.clock.advance(Duration::from_millis(1200));
            store.set(&policy(&["1/2s,burst=10,initial=0"]), &[false]).unwrap();
        }
        assert_eq!(store.view().unwrap().available, 4, "{}: 8.4 s", opened.name);
        store.set(&policy(&["1/3s,burst=10"]), &[false]).unwrap();
        assert_eq!(store.take(&[5], Nanos::MAX).unwrap().0.at - opened.clock.now(), 2_400_000_000, "{}", opened.name);
    });
}

#[test]
fn a_held_store_grants_nothing_until_its_time_and_is_empty_then() {
    on_every_store(&["1/s,burst=5", "100/h"], |opened| {
        let (name, second, store) = (opened.name, 1_000_000_000, opened.store.store());
        let at = |grant: &Grant| (grant.at - START) / second;
        store.hold_until(START + 10 * second).unwrap();
        store.hold_until(START + 4 * second).unwrap();
        assert_eq!(store.view().unwrap().available, 0, "{name}");
        assert!(store.take(&[1], START + 10 * second).is_err(), "{name}: it is empty then");
        let (first, _) = store.take(&[1], Nanos::MAX).unwrap();
        assert_eq!(at(&first), 11, "{name}: a pause is never cut short");
        let (second_grant, _) = store.take(&[2], Nanos::MAX).unwrap();
        assert_eq!(at(&second_grant), 13, "{name}");
        store.hold_until(START + 20 * second).unwrap();
        store.give_back(&second_grant, &Take::of(&[second_grant.units])).unwrap();
        assert_eq!(at(&store.take(&[1], Nanos::MAX).unwrap().0), 21, "{name}: giving back does not end the pause");
        opened.clock.set(Duration::from_nanos(START + 40 * second));
        store.hold_until(START + 39 * second).unwrap();
        assert_eq!(store.view().unwrap().available, 5, "{name}: that has passed");
    });
}

/// A lease that was partly used, and a pause since: the result is as if only the used part had been requested.
#[test]
fn the_rest_of_a_lease_is_given_back_exactly_also_after_a_pause() {
    for limits in [&["1/s,burst=2"][..], &["1/s,burst=2", "3/10s,window"]] {
        on_every_store(limits, |opened| {
            let (name, store, second) = (opened.name, opened.store.store(), 1_000_000_000);
            let ask = Ask { waiting: 3, span: 2 * second, ..Default::default() };
            let Reply::Granted(runs) = store.apply(Operation::Lease(ask)).unwrap().0 else { panic!("{name}") };
            store.hold_until(START + 4 * second).unwrap();
            for run in runs.iter().rev() {
                store.give_back(run, &Take::of(&[run.units])).unwrap();
            }
            let (grant, _) = store.take(&[3], Nanos::MAX).unwrap();
            assert_eq!(grant.at, START + 7 * second, "{name} {limits:?}: nothing of the lease is left");
        });
    }
}

mod a_file {
    use super::*;
    use throttle_limits::limits::Refusal;
    use throttle_limits::store::StoreError;

    const HOUR: Nanos = 3_600_000_000_000;

    struct Bucket(tempfile::TempDir);

    impl Bucket {
        fn new() -> Self {
            Bucket(tempfile::tempdir().unwrap())
        }

        fn open(&self, clock: &FakeClock, boot: u128, wall: Nanos, limits: &[&str]) -> File {
            self.open_with(clock, boot, wall, &policy(limits))
        }

        fn open_with(&self, clock: &FakeClock, boot: u128, wall: Nanos, policy: &Policy) -> File {
            let machine = Machine::fake(clock, boot, wall);
            File::open_until(machine, place(&self.0.path().join("b")), Some(policy), None).unwrap()
        }
    }

    fn wait(file: &File) -> Nanos {
        match file.take(&[1], 0) {
            Err(StoreError::Refused(Refusal::TooLong { wait })) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everyone_takes_from_the_same_limits() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(7)));
        let files: Vec<File> = (0..4).map(|_| bucket.open(&clock, 1, 0, &["1/s,burst=1"])).collect();
        let times: Vec<Nanos> = (0..8).map(|place| files[place % 4].take(&[1], Nanos::MAX).unwrap().0.at).collect();
        assert_eq!(times, (0..8).map(|second| 7 + second * 1_000_000_000).collect::<Vec<_>>());
    }

    /// Half an hour by the wall clock pays for half of what an hour pays.
    #[test]
    fn a_restart_credits_the_time_that_the_wall_clock_says() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(1000 * HOUR)));
        let before = bucket.open(&clock, 1, HOUR, &["1/h,burst=2,initial=1"]);
        let _ = before.take(&[1], Nanos::MAX).unwrap();
        let clock = FakeClock::at(Duration::from_nanos(5));
        let after = bucket.open(&clock, 2, HOUR + HOUR / 2, &["1/h"]);
        assert_eq!(wait(&after), HOUR / 2);
        clock.advance(Duration::from_nanos(HOUR / 2));
        let (grant, now) = after.take(&[1], 0).unwrap();
        assert_eq!((grant.at, after.clock().now()), (now, now));
        after.clock().sleep_until(now + 9);
        assert_eq!(clock.now(), HOUR / 2 + 5 + 9, "it is slept on the boot clock");
    }

    #[test]
    fn a_wrong_wall_clock_credits_from_0_to_a_full_bucket() {
        for (wall, left, expected) in [(0, 0, Some(HOUR)), (HOUR - 1, 0, Some(HOUR)), (u64::MAX, 2, None)] {
            let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(50)));
            let before = bucket.open(&clock, 1, HOUR, &["1/h,burst=2,initial=1", "9/h,window"]);
            let _ = before.take(&[1], Nanos::MAX).unwrap();
            let after = bucket.open(&FakeClock::at(Duration::from_nanos(3)), 2, wall, &["1/h", "9/h"]);
            let view = after.view().unwrap();
            assert_eq!(view.available, left, "{wall}");
            if let Some(expected) = expected {
                assert_eq!(wait(&after), expected, "{wall}");
            }
        }
    }

    /// It credited keys nothing, and at most what the limits of all need until they are full.
    #[test]
    fn a_restart_credits_keys_the_time_that_the_wall_clock_says() {
        let each = OfKeys { per: "f1".to_owned(), each: policy(&["1/h,burst=2"]), jobs: None, fails: None };
        for others in [Policy::default(), policy(&["9/s,burst=9"])] {
            let policy = others.with_keys(each.clone());
            for (off, expected) in [(0, HOUR), (HOUR / 4, HOUR - HOUR / 4), (u64::MAX - HOUR, 0)] {
                let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(50)));
                let before = bucket.open_with(&clock, 1, HOUR, &policy);
                for key in ["a", "b"] {
                    let take = || Take { key: Some(OfKey::of(key.as_bytes().into())), ..Take::of(&[1]) };
                    for _ in 0..2 {
                        assert_eq!(before.take_as(take()).unwrap().0.at, 50);
                    }
                }
                let hold = Operation::Hold { until: 50 + 2 * HOUR, key: Some(b"b"[..].into()), refused: Vec::new() };
                before.apply(hold).unwrap();
                let after = bucket.open_with(&FakeClock::at(Duration::from_nanos(3)), 2, HOUR + off, &policy);
                let keys = after.view().unwrap().keys;
                let wait = |name: &[u8]| keys.iter().find(|key| *key.name == *name).map_or(0, |key| key.wait.unwrap());
                let paused = if expected == 0 { 0 } else { 2 * HOUR + expected };
                assert_eq!((wait(b"a"), wait(b"b")), (expected, paused), "{policy}, {off}");
            }
        }
    }

    /// Each worked out from the wall clock how time went on, until somebody wrote a snapshot. A window was granted twice.
    #[test]
    fn after_a_restart_all_have_one_clock() {
        let bucket = Bucket::new();
        let before = bucket.open(&FakeClock::at(Duration::from_nanos(1000 * HOUR)), 1, HOUR, &["100/h,window,slack=0"]);
        let _ = before.take(&[1], Nanos::MAX).unwrap();
        let clock = FakeClock::at(Duration::from_nanos(5));
        let first = bucket.open(&clock, 2, 2 * HOUR, &["100/h"]);
        let _ = first.take(&[1], 0).unwrap();
        clock.advance(Duration::from_nanos(2 * HOUR));
        // The wall clock was set back meanwhile.
        let second = bucket.open(&clock, 2, 2 * HOUR, &["100/h"]);
        let (grant, now) = second.take(&[100], 0).unwrap();
        assert_eq!(grant.at, now);
        assert_eq!(now, first.clock().now());
        assert!(first.take(&[1], 0).is_err(), "all of the window is used");
    }

    /// Others with the old file waited for ever for the lock of one that had found that its file was replaced.
    #[test]
    fn an_unexpected_file_in_place_of_a_bucket_is_not_locked() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(9)));
        let [one, other] = [0, 1].map(|_| bucket.open(&clock, 1, 0, &["9/h,burst=9"]));
        let path = bucket.0.path().join("b");
        let old = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a note").unwrap();
        assert!(one.take(&[1], 0).is_err());
        rustix::fs::flock(&old, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("nobody has it locked");
        drop(old);
        assert!(other.take(&[1], 0).is_err());
    }

    /// One thread of a process sleeps, and wants to know whether its grant has moved up; another one ends the process.
    #[test]
    fn a_process_that_ends_does_not_wait_for_a_locked_file() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(9)));
        let store = bucket.open(&clock, 1, 0, &["9/h,burst=9"]);
        let other = std::fs::File::open(bucket.0.path().join("b")).unwrap();
        let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&other.metadata().unwrap()));
        other.lock().unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| store.sync());
            let is_blocked = |line: &str| line.contains("-> FLOCK") && line.contains(&inode);
            wait_until("it to wait for the lock", || {
                std::fs::read_to_string("/proc/locks").unwrap().lines().any(is_blocked)
            });
            assert!(!store.leave(), "nothing can be given back");
            other.unlock().unwrap();
            sleeper.join().unwrap().unwrap();
        });
        assert!(store.leave());
    }

    /// After a restart a grant keeps its time, and nobody waits longer than needed.
    #[test]
    fn a_restart_never_leaves_anyone_stuck() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(1 << 60)));
        let before = bucket.open(&clock, 1, HOUR, &["1/h"]);
        for _ in 0..3 {
            let _ = before.take(&[1], Nanos::MAX).unwrap();
        }
        let after = bucket.open(&FakeClock::default(), 2, HOUR, &["1/h"]);
        assert_eq!(wait(&after), 3 * HOUR);
        let same_boot_earlier = bucket.open(&FakeClock::default(), 1, 3 * HOUR, &["1/h"]);
        assert_eq!(wait(&same_boot_earlier), HOUR, "as when a snapshot of a machine is restored two hours later");
    }

    #[test]
    fn an_unused_grant_is_given_back() {
        let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(9)));
        let file = bucket.open(&clock, 1, 0, &["1/h"]);
        let _ = file.take(&[1], Nanos::MAX).unwrap();
        let (mine, _) = file.take(&[1], Nanos::MAX).unwrap();
        file.give_back(&mine, &Take::of(&[mine.units])).unwrap();
        assert_eq!(wait(&file), HOUR);
        let (mine, _) = file.take(&[1], Nanos::MAX).unwrap();
        let (theirs, _) = bucket.open(&clock, 1, 0, &["1/h"]).take(&[1], Nanos::MAX).unwrap();
        file.give_back(&mine, &Take::of(&[mine.units])).unwrap();
        assert_eq!((theirs.at, wait(&file)), (9 + 2 * HOUR, 2 * HOUR), "those behind move up at their next look");
    }

    /// A unit that is not late itself leaves behind one of its key that is. How far ahead is asked for, is a matter of chance.
    #[test]
    fn units_of_a_key_are_requested_again_together_if_late() {
        let keys = || OfKeys { per: "f1".to_owned(), each: policy(&["1000/s,burst=1"]), jobs: None, fails: None };
        let keyed = policy(&["1M/s,burst=1"]).with_keys(keys());
        let take = |name: &[u8]| Take { key: Some(OfKey::of(name.into())), ..Take::of(&[1]) };
        let mut behind = 0;
        for _ in 0..20 {
            let (bucket, clock) = (Bucket::new(), FakeClock::default());
            let machine = Machine::fake(&clock, 1, 0);
            let file = File::open_until(machine, place(&bucket.0.path().join("b")), Some(&keyed), None).unwrap();
            let supply = Supply::new(Box::new(file));
            let refused = supply.ask_for((1..7).map(|ticket| (ticket, take(b"a"))).collect()).unwrap();
            let granted = 6 - refused.len();
            // The first are 11 and 12 ms late, which is too much.
            clock.advance(Duration::from_nanos(12_000_001));
            let claims: Vec<Claim> = std::iter::from_fn(|| supply.claim().unwrap()).collect();
            assert_eq!(claims.iter().filter(|claim| claim.granted.is_none()).count(), granted, "{claims:?}");
            behind += granted.saturating_sub(2);
            assert!(supply.ask_for(vec![(7, take(b"a"))]).unwrap().is_empty());
            assert!(supply.claim().unwrap().is_some_and(|claim| claim.granted.is_some()));
        }
        assert!(behind > 0, "some were not late themselves");
    }

    #[test]
    fn giving_back_the_rest_of_a_lease_leaves_no_trace() {
        let (bucket, clock) = (Bucket::new(), FakeClock::default());
        let file = Supply::new(Box::new(bucket.open(&clock, 1, 0, &["1000/s,burst=1"])));
        for _ in 0..3 {
            let _ = file.next_run(100).unwrap();
            file.handed_over();
        }
        let watcher = bucket.open(&clock, 1, 0, &["1000/s"]);
        assert_eq!(wait(&watcher), 10_000_000, "ten milliseconds are reserved");
        drop(file);
        assert_eq!(wait(&watcher), 3_000_000);
    }

    #[test]
    fn a_delayed_client_does_not_spend_its_lease_as_a_burst() {
        let (bucket, clock) = (Bucket::new(), FakeClock::default());
        let file = Supply::new(Box::new(bucket.open(&clock, 1, 0, &["1000/s,burst=1"])));
        assert_eq!(file.next_run(100).unwrap().0.at, 0);
        clock.set(Duration::from_secs(1));
        let times: Vec<Nanos> = (0..3).map(|_| file.next_run(99).unwrap().0.at / 1_000_000).collect();
        assert_eq!(times, [1000, 1001, 1002]);
    }

    #[test]
    fn new_limits_apply_to_everyone_from_their_next_take() {
        let (bucket, clock) = (Bucket::new(), FakeClock::default());
        let (one, other) = (bucket.open(&clock, 1, 0, &["1/h"]), bucket.open(&clock, 1, 0, &["1/h"]));
        let _ = one.take(&[1], Nanos::MAX).unwrap();
        other.set(&policy(&["60/h,burst=1"]), &[false]).unwrap();
        assert_eq!(wait(&one), HOUR / 60);
        assert_eq!(one.policy().to_string(), "60/h,burst=1");
        other.set(&policy(&["60/h,burst=7,initial=7"]), &[true]).unwrap();
        assert_eq!(one.take(&[7], 0).unwrap().0.at, 0);
    }

    #[test]
    fn a_removed_bucket_starts_anew_for_processes_that_use_it() {
        let (bucket, clock) = (Bucket::new(), FakeClock::default());
        let file = bucket.open(&clock, 1, 0, &["1/h"]);
        let _ = file.take(&[1], Nanos::MAX).unwrap();
        std::fs::remove_file(bucket.0.path().join("b")).unwrap();
        assert_eq!(file.take(&[1], Nanos::MAX).unwrap().0.at, 0);
        assert_eq!(wait(&bucket.open(&clock, 1, 0, &["9/s"])), HOUR, "the same limits, and one taken");
    }

    /// Its numbers start again, so the other process's grant has the same number as ours.
    #[test]
    fn a_grant_of_a_removed_file_is_not_given_back_to_the_next_file() {
        for later in [0, 3 * HOUR] {
            let (bucket, clock) = (Bucket::new(), FakeClock::at(Duration::from_nanos(9)));
            let file = bucket.open(&clock, 1, 0, &["1/h,burst=1"]);
            let grants: Vec<_> = (0..2).map(|_| file.take(&[1], Nanos::MAX).unwrap().0).collect();
            std::fs::remove_file(bucket.0.path().join("b")).unwrap();
            let stranger = bucket.open(&clock, 1, 0, &["1/h,burst=1"]);
            clock.advance(Duration::from_nanos(later));
            for _ in 0..2 {
                let _ = stranger.take(&[1], Nanos::MAX).unwrap();
            }
            for grant in &grants {
                file.give_back(grant, &Take::of(&[grant.units])).unwrap();
                assert_eq!(wait(&stranger), 2 * HOUR, "later by {later}");
            }
            let (ours, _) = file.take(&[1], Nanos::MAX).unwrap();
            file.give_back(&grants[1], &Take::of(&[grants[1].units])).unwrap();
            assert_eq!(wait(&stranger), 3 * HOUR, "also once the new file is known");
            file.give_back(&ours, &Take::of(&[ours.units])).unwrap();
            assert_eq!(wait(&stranger), 2 * HOUR, "a grant of this file is given back");
        }
    }

    #[test]
    fn a_lease_of_a_removed_file_is_not_given_back_to_the_next_file() {
        let (bucket, clock) = (Bucket::new(), FakeClock::default());
        let file = Supply::new(Box::new(bucket.open(&clock, 1, 0, &["1000/s,burst=1"])));
        let _ = file.next_run(100).unwrap();
        std::fs::remove_file(bucket.0.path().join("b")).unwrap();
        clock.advance(Duration::from_nanos(HOUR));
        let stranger = bucket.open(&clock, 1, 0, &["1/h,burst=1"]);
        let _ = stranger.take(&[1], Nanos::MAX).unwrap();
        drop(file);
        assert_eq!((wait(&stranger), stranger.policy().to_string()), (HOUR, "1/h,burst=1".to_owned()));
    }
}

mod a_server {
    use super::*;
    use throttle_limits::store::StoreError;

    fn open(server: &crate::support::redis::Redis, clock: &FakeClock, limits: &[&str]) -> Redis {
        Redis::open_on_fake(server.bucket("bucket").parse().unwrap(), Some(&policy(limits)), clock.clone()).unwrap()
    }

    fn at(result: Result<(Grant, Nanos), StoreError>) -> Nanos {
        result.unwrap().0.at
    }

    /// These windows count more than 1024 units.
    const LARGE: [&str; 2] = ["3000/min,window", "10000/h,window"];

    /// The same requests at the same times, some of them random, get the same answers from a server as from a file, if
    /// every time is a whole number of microseconds.
    #[test]
    fn a_server_and_a_file_answer_alike() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        // The second limit replaces the first. It is half as fast, so that saved fractions of a unit are whole
        // microseconds there, too.
        let limits: [[&[&str]; 2]; 6] = [
            [&["8/s,burst=3"], &["4/s,burst=5"]],
            [&["5/min,window"], &["4/min,window"]],
            [&["2000/s,burst=5", "40/s,window"], &["1000/s,burst=2", "30/s,window"]],
            [&["50/s,burst=1", "3000/min,window"], &["25/s,burst=3", "2000/min,window"]],
            [
                &["1000/s,burst=7,initial=0", "100/s,burst=20", "10000/h,window"],
                &["500/s,burst=7,initial=0", "50/s,burst=9", "9000/h,window"],
            ],
            [&["500000/s,burst=2"], &["250000/s,burst=2"]],
        ];
        for [limits, slower] in limits {
            let () = server.tell(&["FLUSHALL"]);
            let (clock, folder) = (FakeClock::at(Duration::from_nanos(START)), tempfile::tempdir().unwrap());
            let machine = Machine::fake(&clock, 1, 0);
            let file =
                File::open_until(machine, place(&folder.path().join("bucket")), Some(&policy(limits)), None).unwrap();
            let redis = open(&server, &clock, limits);
            let mut random = Random(7);
            let (mut held, mut is_slow): (Vec<[Grant; 2]>, bool) = (Vec::new(), false);
            for step in 0..rounds(1_000).max(300) {
                let what = format!("{limits:?}, step {step}");
                if step % 20 == 0 {
                    for [by_file, by_redis] in &mut held {
                        look_once(&file, by_file);
                        look_once(&redis, by_redis);
                        assert_eq!(by_file.at, by_redis.at, "{what}");
                    }
                }
                clock.advance(Duration::from_nanos(random.below(4) * random.below(300) * random.below(300) * 1_000));
                match random.below(13) {
                    0 => {
                        is_slow = !is_slow;
                        let to = policy(if is_slow { slower } else { limits });
                        let fresh = [random.below(3) == 0, random.below(2) == 0, false].map(|fresh| fresh || !is_slow);
                        // Nobody stays behind who would not look.
                        for [by_file, by_redis] in held.drain(..).filter(|grants| grants[0].at > clock.now()) {
                            file.give_back(&by_file, &Take::of(&[by_file.units])).unwrap();
                            redis.give_back(&by_redis, &Take::of(&[by_redis.units])).unwrap();
                        }
                        file.set(&to, &fresh).unwrap();
                        redis.set(&to, &fresh).unwrap();
                    }
                    10 => {
                        let until = clock.now() + random.below(3) * random.below(2_000) * 1_000_000;
                        file.hold_until(until).unwrap();
                        redis.hold_until(until).unwrap();
                    }
                    // In larger windows several grants share an entry, and which ones do depends on the store.
                    11 | 12 if !held.is_empty() && !LARGE.iter().any(|large| limits.contains(large)) => {
                        let place = usize::try_from(random.below(held.len() as u64)).unwrap();
                        if held[place][0].at <= clock.now() {
                            let [by_file, by_redis] = held.swap_remove(place);
                            let (take, real) = (Take::of(&[by_file.units]), [random.below(9)]);
                            file.settle(&by_file, &take, &real).unwrap();
                            redis.settle(&by_redis, &take, &real).unwrap();
                        }
                    }
                    1 | 2 if !held.is_empty() => {
                        let grants = held.swap_remove(usize::try_from(random.below(held.len() as u64)).unwrap());
                        file.give_back(&grants[0], &Take::of(&[grants[0].units])).unwrap();
                        redis.give_back(&grants[1], &Take::of(&[grants[1].units])).unwrap();
                    }
                    _ => {
                        let is_bounded = random.below(3) == 0;
                        let wait = if is_bounded { clock.now() + random.below(500) * 1_000_000 } else { Nanos::MAX };
                        let units = 1 + random.below(2);
                        match (file.take(&[units], wait), redis.take(&[units], wait)) {
                            (Ok((by_file, _)), Ok((by_redis, _))) => {
                                assert_eq!((by_file.at, by_file.units), (by_redis.at, by_redis.units), "{what}");
                                assert_eq!(by_file.bound_by, by_redis.bound_by, "{what}");
                                held.push([by_file, by_redis]);
                            }
                            (Err(by_file), Err(by_redis)) => {
                                assert_eq!(by_file.to_string(), by_redis.to_string(), "{what}");
                            }
                            other => panic!("{what}: {other:?}"),
                        }
                    }
                }
                assert_eq!(file.view().unwrap(), redis.view().unwrap(), "{what}");
            }
        }
    }

    /// As one who waits for long does every 5 s.
    fn look_once(store: &dyn Store, grant: &mut Grant) {
        let mut may_look = true;
        let take = Take::of(&[grant.units]);
        throttle_limits::store::wait_for(
            store,
            *grant,
            &take,
            |_, _| std::mem::take(&mut may_look),
            |moved| *grant = *moved,
        );
    }

    struct Random(u64);

    impl Random {
        /// Marsaglia's xorshift.
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % bound
        }
    }

    /// Grants keep their times, nothing is credited, and nobody waits until the clock has caught up.
    #[test]
    fn a_clock_that_is_set_back_credits_nothing_and_stalls_nothing() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_secs(3600));
        let store = open(&server, &clock, &["10/s,burst=2"]);
        let first = at(store.take(&[2], Nanos::MAX));
        clock.set(Duration::from_micros(5));
        assert_eq!(at(store.take(&[1], Nanos::MAX)), first + 100_000_000, "as if no time had passed");
        clock.advance(Duration::from_millis(150));
        assert_eq!(at(store.take(&[1], Nanos::MAX)), first + 200_000_000);
        clock.advance(Duration::from_millis(50));
        assert_eq!(at(store.take(&[1], Nanos::MAX)), first + 300_000_000, "it goes on from there");
    }

    /// This also holds for clients that only view or are refused, which store nothing else.
    #[test]
    fn after_a_clock_was_set_back_time_goes_on_despite_refusals() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        for limits in [&["1/10s,burst=1"][..], &["1/10s,window"]] {
            let () = server.tell(&["FLUSHALL"]);
            let clock = FakeClock::at(Duration::from_secs(3600));
            let store = open(&server, &clock, limits);
            let first = at(store.take(&[1], Nanos::MAX));
            clock.set(Duration::from_micros(5));
            assert_eq!(store.view().unwrap().wait, Some(10_000_000_000), "as if no time had passed");
            clock.advance(Duration::from_secs(4));
            assert_eq!(store.view().unwrap().wait, Some(6_000_000_000));
            clock.set(Duration::from_micros(6));
            for second in 0..6 {
                assert!(store.take(&[1], 0).is_err(), "{limits:?}: {second} s after another step back");
                clock.advance(Duration::from_secs(1));
            }
            assert_eq!(at(store.take(&[1], Nanos::MAX)), first + 10_000_000_000, "{limits:?}");
        }
    }

    #[test]
    fn a_replica_whose_clock_is_behind_can_be_looked_at() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_secs(3600));
        let store = open(&server, &clock, &["1/10s,burst=1"]);
        let _ = at(store.take(&[1], Nanos::MAX));
        let () = server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        clock.set(Duration::from_micros(5));
        assert_eq!(store.view().unwrap().wait, Some(10_000_000_000));
        assert!(store.take(&[1], Nanos::MAX).unwrap_err().to_string().contains("READONLY"));
    }

    /// If a server loses its state and one that knew it comes first, there is no second burst.
    #[test]
    fn clients_restore_what_a_server_has_lost() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_secs(1));
        let (mine, other) = (open(&server, &clock, &["10/s,burst=5"]), open(&server, &clock, &["10/s,burst=5"]));
        let times: Vec<Nanos> = (0..10).map(|_| at(mine.take(&[1], Nanos::MAX))).collect();
        assert_eq!(times[9], 1_500_000_000);
        let last = at(other.take(&[1], Nanos::MAX));
        assert_eq!(last, 1_600_000_000);
        let () = server.tell(&["FLUSHALL"]);
        clock.advance(Duration::from_millis(50));
        assert_eq!(at(mine.take(&[1], Nanos::MAX)), clock.now() + 100_000_000, "it begins empty");
        assert_eq!(at(other.take(&[1], Nanos::MAX)), clock.now() + 200_000_000);
        assert_eq!(at(open(&server, &clock, &["10/s,burst=5"]).take(&[1], Nanos::MAX)), clock.now() + 300_000_000);
    }

    #[test]
    fn a_grant_from_before_a_lost_state_is_not_given_back() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_nanos(START));
        let mine = open(&server, &clock, &["1/h,burst=1"]);
        let grants: Vec<Grant> = (0..2).map(|_| mine.take(&[1], Nanos::MAX).unwrap().0).collect();
        let () = server.tell(&["DEL", "throttle:bucket"]);
        clock.advance(Duration::from_millis(1));
        let stranger = open(&server, &clock, &["1/h,burst=1"]);
        let theirs: Vec<Nanos> = (0..2).map(|_| at(stranger.take(&[1], Nanos::MAX))).collect();
        mine.give_back(&grants[1], &Take::of(&[grants[1].units])).unwrap();
        let _ = mine.view().unwrap();
        mine.give_back(&grants[1], &Take::of(&[grants[1].units])).unwrap();
        assert!(at(stranger.take(&[1], Nanos::MAX)) > theirs[1], "nobody is moved");
    }

    /// A restart empties the script cache, and the state may be gone, too.
    #[test]
    fn a_script_that_was_forgotten_is_sent_again() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_nanos(START));
        let store = open(&server, &clock, &["10/s,burst=1"]);
        for place in 0..3 {
            let () = server.tell(&["SCRIPT", "FLUSH"]);
            assert_eq!(at(store.take(&[1], Nanos::MAX)), START + place * 100_000_000);
        }
        let supply = Supply::new(Box::new(store));
        assert_eq!(supply.next_run(5).unwrap().0.at, START + 300_000_000);
    }

    #[test]
    fn a_reservation_is_one_round_trip() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let store = open(&server, &FakeClock::at(Duration::from_nanos(START)), &["10/s,burst=1", "100/min"]);
        let before = questions(&server);
        for place in 0..20 {
            assert_eq!(at(store.take(&[1], Nanos::MAX)), START + place * 100_000_000);
        }
        assert_eq!(questions(&server) - before, 20);
    }

    /// One that stays connected falls behind the snapshot; one that connects reads the snapshot beside the script.
    #[test]
    fn who_was_away_goes_on_from_the_snapshot() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let clock = FakeClock::at(Duration::from_nanos(START));
        for name in ["bucket", "2/bucket"] {
            let open = |policy: Option<&Policy>| {
                Redis::open_on_fake(server.bucket(name).parse().unwrap(), policy, clock.clone())
            };
            let stays = open(Some(&policy(&["10/s,burst=1"]))).unwrap();
            for place in 0..240 {
                let newcomer = (place % 80 > 0).then(|| open(None).unwrap());
                let at = at(newcomer.as_ref().unwrap_or(&stays).take(&[1], Nanos::MAX));
                assert_eq!(at, START + place * 100_000_000, "{name}");
            }
        }
        // Without a snapshot, the client repeated its request, and reported in the end that the server was away.
        for damage in [&["HSET", "throttle:bucket", "s", "nonsense"][..], &["HDEL", "throttle:bucket", "s"]] {
            let () = server.tell(damage);
            let open = Redis::open_on_fake(server.bucket("bucket").parse().unwrap(), None, clock.clone());
            let damaged = open.unwrap_err().to_string();
            assert!(damaged.contains("damaged"), "{damaged}");
        }
    }

    /// Those who were told a time have their ledgers at that time, and an operation before it would lead to another
    /// ledger.
    #[test]
    fn no_operation_is_before_a_time_that_was_announced() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        let (later, earlier) =
            (FakeClock::at(Duration::from_nanos(START + 10_000_000_000)), FakeClock::at(Duration::from_nanos(START)));
        let other = open(&server, &earlier, &["10/s,burst=1"]);
        open(&server, &later, &["10/s,burst=1"]).view().unwrap();
        assert_eq!(at(other.take(&[1], Nanos::MAX)), later.now());
    }

    /// The number of requests to the server so far.
    fn questions(server: &crate::support::redis::Redis) -> u32 {
        let counts: String = server.tell(&["INFO", "commandstats"]);
        let calls = |name| {
            let counted = counts.split(name).nth(1).and_then(|rest| rest.strip_prefix(":calls=")?.split(',').next());
            counted.map_or(0, |calls| calls.parse().unwrap())
        };
        calls("cmdstat_evalsha") + calls("cmdstat_eval")
    }

    /// When a pipe ends, the rest of its lease is given back as if it had never been requested.
    #[test]
    fn a_lease_that_is_not_used_up_is_given_back() {
        let Some(server) = crate::support::redis::Redis::start(&[]) else { return };
        for limits in [&["10/s,burst=2"][..], &["10/s,burst=2", "15/s,window"], &["6/s,window"]] {
            let () = server.tell(&["FLUSHALL"]);
            let clock = FakeClock::at(Duration::from_nanos(START));
            let used: Vec<Nanos> = {
                let store = Supply::new(Box::new(open(&server, &clock, limits)));
                // Of twelve units three leave, or more if they leave together.
                let leaves = |waiting| {
                    let (run, _) = store.next_run(waiting).unwrap();
                    store.handed_over();
                    run
                };
                let first = leaves(12);
                let more: Vec<Grant> = (first.units..3).map(|_| leaves(1)).collect();
                let grants = [first].into_iter().chain(more);
                grants.flat_map(|grant| std::iter::repeat_n(grant.at, usize::try_from(grant.units).unwrap())).collect()
            };
            let mut expected = throttle_limits::limits::Limits::new(&policy(limits), START);
            for used in &used {
                assert_eq!(expected.take(START, 1).unwrap().at, *used, "{limits:?}");
            }
            let next = open(&server, &clock, limits);
            let (view, after) = (next.view().unwrap(), at(next.take(&[1], Nanos::MAX)));
            assert_eq!(view.wait, Some(after - START), "{limits:?}");
            assert_eq!(after, expected.take(START, 1).unwrap().at, "{limits:?}");
        }
    }

    /// Without an end to its patience: the server never comes back.
    #[test]
    fn a_process_that_ends_does_not_wait_for_a_server_that_is_away() {
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = format!("redis://127.0.0.1:{}/b", silent.local_addr().unwrap().port());
        drop(silent);
        let (away, is_away) = std::sync::mpsc::channel();
        let patience = throttle_limits::store::Patience::new(None, move |_| away.send(()).unwrap());
        let store = Redis::unasked(address.parse().unwrap(), Some(&policy(&["5/s"])), patience).unwrap();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| store.sync());
            is_away.recv().unwrap();
            assert!(store.leave());
            assert!(asks.join().unwrap().is_err());
        });
    }

    #[test]
    fn debug_output_shows_no_password() {
        let Some(server) = crate::support::redis::Redis::start(&["--requirepass", "s3cret"]) else { return };
        let address = format!("redis://:s3cret@127.0.0.1:{}/b", server.port).parse().unwrap();
        let store = Redis::open(address, Some(&policy(&["5/s"])), throttle_limits::store::Patience::none()).unwrap();
        assert!(!format!("{store:?}").contains("s3cret"), "{store:?}");
    }
}
