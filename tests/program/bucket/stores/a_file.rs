//! A bucket in a file: restarts of the machine, and files that are removed, replaced or locked.

use super::{
    Ask, Duration, FakeClock, File, HOUR, Machine, NanoClock, Nanos, OfKeys, Operation, Policy, Process, Store, ask,
    place, policy, wait_until,
};
use std::path::PathBuf;
use std::sync::Arc;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("b")
    }

    fn store(&self, clock: &FakeClock, boot: u128, wall: Nanos, policy: &Policy) -> File {
        File::open_until(Machine::fake(clock, boot, wall), place(&self.path()), Some(policy), None).unwrap()
    }

    /// A process on the machine with this clock, boot and wall clock.
    fn open(&self, clock: &FakeClock, boot: u128, wall: Nanos, limits: &[&str]) -> Process {
        Process::new(Arc::new(self.store(clock, boot, wall, &policy(limits))))
    }
}

fn at(nanos: Nanos) -> FakeClock {
    FakeClock::at(Duration::from_nanos(nanos))
}

fn wait(process: &Process) -> Nanos {
    process.view().wait.unwrap()
}

/// Half an hour by the wall clock pays for half of what an hour pays.
#[test]
fn a_restart_credits_the_time_that_the_wall_clock_says() {
    let (folder, clock) = (Folder::new(), at(1000 * HOUR));
    folder.open(&clock, 1, HOUR, &["1/h,burst=2,initial=1"]).take(&[1]);
    let clock = at(5);
    let mut after = folder.open(&clock, 2, HOUR + HOUR / 2, &["1/h"]);
    assert_eq!(wait(&after), HOUR / 2);
    clock.advance(Duration::from_nanos(HOUR / 2));
    assert_eq!(after.ask(&[1]), 1);
    let (time, granted) = (after.now(), after.estimate(1));
    assert_eq!(granted, Some(time));
    after.store().clock().sleep_until(time + 9);
    assert_eq!(clock.now(), HOUR / 2 + 5 + 9, "it sleeps on the boot clock");
}

#[test]
fn a_wrong_wall_clock_credits_from_0_to_a_full_bucket() {
    for (wall, left, expected) in [(0, 0, Some(HOUR)), (HOUR - 1, 0, Some(HOUR)), (u64::MAX, 2, None)] {
        let folder = Folder::new();
        folder.open(&at(50), 1, HOUR, &["1/h,burst=2,initial=1", "9/h,window"]).take(&[1]);
        let after = folder.open(&at(3), 2, wall, &["1/h", "9/h"]);
        assert_eq!(after.view().available, left, "{wall}");
        if let Some(expected) = expected {
            assert_eq!(wait(&after), expected, "{wall}");
        }
    }
}

/// Keys got no credit, and at most the credit of the time in which all limits of all are full.
#[test]
fn a_restart_credits_keys_the_time_that_the_wall_clock_says() {
    let each = OfKeys { per: "f1".to_owned(), each: policy(&["1/h,burst=2"]), jobs: None, fails: None };
    for others in [Policy::default(), policy(&["9/s,burst=9"])] {
        let policy = others.with_keys(each.clone());
        for (off, expected) in [(0, HOUR), (HOUR / 4, HOUR - HOUR / 4), (u64::MAX - HOUR, 0)] {
            let (folder, clock) = (Folder::new(), at(50));
            let mut before = Process::new(Arc::new(folder.store(&clock, 1, HOUR, &policy)));
            for key in ["a", "a", "b", "b"] {
                before.request(Ask { key: Some(key.as_bytes().into()), ..ask(&[1]) });
                assert_eq!(before.next().at, 50);
            }
            before.send(Operation::Hold { until: 50 + 2 * HOUR, key: Some(b"b"[..].into()), refused: Vec::new() });
            let after = folder.store(&at(3), 2, HOUR + off, &policy);
            let keys = after.view().unwrap().keys;
            let key = |name: &[u8]| keys.iter().find(|key| *key.name == *name);
            assert_eq!(key(b"a").map_or(0, |key| key.wait.unwrap()), expected, "{policy}, {off}");
            // The end of a pause is shown, and not a wait.
            let paused = key(b"b").and_then(|key| key.paused_until);
            assert_eq!(paused, (expected > 0).then_some(50 + 2 * HOUR), "{policy}, {off}");
        }
    }
}

/// Each process computed from the wall clock how time went on, until one wrote a snapshot. So a window was granted
/// twice.
#[test]
fn after_a_restart_all_have_one_clock() {
    let folder = Folder::new();
    folder.open(&at(1000 * HOUR), 1, HOUR, &["100/h,window,slack=0"]).take(&[1]);
    let clock = at(5);
    let mut first = folder.open(&clock, 2, 2 * HOUR, &["100/h"]);
    assert!(first.take_now(&[1]).is_some());
    clock.advance(Duration::from_nanos(2 * HOUR));
    // The wall clock was set back meanwhile.
    let mut second = folder.open(&clock, 2, 2 * HOUR, &["100/h"]);
    let ticket = second.ask(&[100]);
    assert_eq!(second.estimate(ticket), Some(second.now()));
    first.store().sync().unwrap();
    assert_eq!(second.now(), first.now());
    assert_eq!(first.view().available, 0, "all of the window is used");
}

/// Processes with the old file waited for ever for the lock of a process that had found that its file was replaced.
#[test]
fn an_unexpected_file_in_place_of_a_bucket_is_not_locked() {
    let (folder, clock) = (Folder::new(), at(9));
    let [one, other] = [0, 1].map(|_| folder.store(&clock, 1, 0, &policy(&["9/h,burst=9"])));
    let old = std::fs::File::open(folder.path()).unwrap();
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::write(folder.path(), "a note").unwrap();
    assert!(one.send(vec![Operation::Want(1)]).is_err());
    rustix::fs::flock(&old, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("nobody has it locked");
    drop(old);
    assert!(other.sync().is_err());
}

/// One thread of a process sleeps and wants to read the bucket; another one ends the process.
#[test]
fn a_process_that_ends_does_not_wait_for_a_locked_file() {
    let (folder, clock) = (Folder::new(), at(9));
    let store = folder.store(&clock, 1, 0, &policy(&["9/h,burst=9"]));
    let other = std::fs::File::open(folder.path()).unwrap();
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

/// There are no grants for times far ahead. Only a debt outlasts a restart.
#[test]
fn a_restart_never_leaves_anyone_stuck() {
    let (folder, clock) = (Folder::new(), at(1 << 60));
    let mut before = folder.open(&clock, 1, HOUR, &["1/h"]);
    let grant = before.take(&[1]);
    before.settle(&grant, &[3]);
    let after = folder.open(&FakeClock::default(), 2, HOUR, &["1/h"]);
    assert_eq!(wait(&after), 3 * HOUR);
    let same_boot_earlier = folder.open(&FakeClock::default(), 1, 3 * HOUR, &["1/h"]);
    assert_eq!(wait(&same_boot_earlier), HOUR, "as when a snapshot of a machine is restored two hours later");
}

#[test]
fn a_removed_bucket_starts_anew_for_processes_that_use_it() {
    for _ in 0..8 {
        let (folder, clock) = (Folder::new(), FakeClock::default());
        let mut file = folder.open(&clock, 1, 0, &["1/h"]);
        file.take(&[1]);
        let waits = file.ask(&[1]);
        std::fs::remove_file(folder.path()).unwrap();
        file.client.exchange().unwrap();
        let grant = file.next();
        assert_eq!((grant.ticket, grant.at, clock.now()), (waits, 0, 0));
        assert_eq!(wait(&folder.open(&clock, 1, 0, &["9/s"])), HOUR, "the same limits, and one taken");
    }
}

/// The number of a grant in the new file is unlike any in the old file.
#[test]
fn a_grant_of_a_removed_file_is_not_given_back_to_the_next_file() {
    for later in [0, 3 * HOUR] {
        let (folder, clock) = (Folder::new(), at(9));
        let mut file = folder.open(&clock, 1, 0, &["2/h,burst=2"]);
        let grants = [file.take(&[1]), file.take(&[1])];
        std::fs::remove_file(folder.path()).unwrap();
        let mut stranger = folder.open(&clock, 1, 0, &["2/h,burst=2"]);
        clock.advance(Duration::from_nanos(later));
        for _ in 0..2 {
            assert_eq!(stranger.take(&[1]).at, 9 + later);
        }
        for grant in &grants {
            file.give_back(grant);
            file.settle(grant, &[0]);
            assert_eq!(stranger.view().left, [0], "{later} ns later");
        }
        let ours = file.ask(&[1]);
        file.client.cancel(ours);
        file.give_back(&grants[1]);
        assert_eq!(stranger.view().left, [0], "even after the process has read the new file");
    }
}

/// A process that ends gives back what it had in the old file. The new file is another bucket.
#[test]
fn what_waits_in_a_removed_file_changes_nothing_in_the_next() {
    let (folder, clock) = (Folder::new(), FakeClock::default());
    let mut file = folder.open(&clock, 1, 0, &["1000/s,burst=1"]);
    file.client.want(100);
    file.next();
    std::fs::remove_file(folder.path()).unwrap();
    clock.advance(Duration::from_nanos(HOUR));
    let mut stranger = folder.open(&clock, 1, 0, &["1/h,burst=1"]);
    stranger.take(&[1]);
    file.withdraw().unwrap();
    assert_eq!((wait(&stranger), stranger.store().policy().to_string()), (HOUR, "1/h,burst=1".to_owned()));
}
