//! Waiters of a bucket: the announced times, and whether they are kept.

use crate::support::redis::Redis;
use crate::support::terminal::{recorded_terminal, terminal};
use crate::support::{Ended, HANGS, Lines, Running, copy_program, cpu_time, feed, is_right_once, throttle, wait_until};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// A bucket of which nothing is left, and which gives a unit an hour.
struct Bucket {
    address: String,
    /// Until nobody needs it.
    _folder: Option<TempDir>,
}

const AN_HOUR: &str = "1/h,burst=1,initial=0";

impl Bucket {
    fn in_file(limit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Bucket { address: folder.path().join("b").to_str().unwrap().to_owned(), _folder: Some(folder) }.set(limit)
    }

    fn on_server(redis: &Redis, limit: &str) -> Self {
        Bucket { address: redis.bucket("b"), _folder: None }.set(limit)
    }

    fn set(self, limit: &str) -> Self {
        assert!(feed(self.command(&["--set", "-r", limit]), b"").status.success());
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        throttle([&["--bucket", &self.address], args].concat())
    }

    fn shown(&self) -> serde_json::Value {
        serde_json::from_slice(&feed(self.command(&["--show", "json"]), b"").out).unwrap()
    }

    /// The counts of events since the bucket was made.
    fn counts(&self) -> serde_json::Value {
        self.shown()["counts"].take()
    }

    /// The hours that a newcomer would wait, rounded up.
    fn hours(&self) -> u64 {
        self.shown()["wait_ns"].as_u64().unwrap().div_ceil(3_600_000_000_000)
    }
}

const STREAMS: [(&[&str], &str); 5] = [
    (&["--once", "true"], "--once"),
    (&[], "a pipe"),
    (&["-0"], "records"),
    (&["echo"], "commands"),
    (&["-k", "--progress=always", "echo"], "with a bar"),
];

#[test]
fn a_long_wait_is_announced_on_a_terminal_after_a_second() {
    let bucket = Bucket::in_file(AN_HOUR);
    // All at once, so that it takes a second.
    let waiting = STREAMS.map(|(args, what)| {
        let (controller, end) = terminal();
        let said = Lines::of(File::from(controller));
        let mut command = bucket.command(args);
        command.stderr(end);
        let mut running = Running::start(command);
        let stdin = running.stdin();
        (running, stdin, said, what)
    });
    let waiting = waiting.map(|(running, mut stdin, said, what)| {
        stdin.write_all(b"a\n\0").unwrap();
        (running, stdin, said, what)
    });
    wait_until("all to wait", || bucket.hours() == 6);
    let is_it = |line: &str| line.contains("throttle: waiting for its turn: ");
    for (running, stdin, said, what) in waiting {
        let announced = std::iter::repeat_with(|| said.next()).find(|line| is_it(line)).unwrap();
        assert!(announced.ends_with(" (Ctrl-C gives it back)"), "{what}: {announced:?}");
        running.signal(Signal::INT);
        assert_eq!(running.finish().signal(), Some(2), "{what}");
        drop(stdin);
        assert!(!said.rest().iter().any(|line| is_it(line)), "{what}: once");
    }
}

#[test]
fn a_wait_is_announced_on_a_terminal_only_and_if_long() {
    let bucket = Bucket::in_file(AN_HOUR);
    let (terminal, read) = recorded_terminal();
    let mut quiet = bucket.command(&["-q", "--once"]);
    quiet.stderr(terminal.try_clone().unwrap());
    let both = [Running::start(quiet), Running::start(bucket.command(&["--once"]))];
    let short = Bucket::in_file("2/3s,burst=1,initial=0");
    let mut once = short.command(&["--once"]);
    once.stderr(terminal);
    assert!(feed(once, b"").status.success());
    for running in both {
        running.signal(Signal::INT);
        assert_eq!(running.finish().err, "");
    }
    assert_eq!(read.join().unwrap(), "");
}

/// The next newcomer waits no longer than if nobody had come before.
#[test]
fn an_interrupted_wait_costs_no_other_waiter_a_turn() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        is_given_back(&bucket);
    }
}

fn is_given_back(bucket: &Bucket) {
    // QUIT dumps core.
    let no_core = Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum };
    setrlimit(Resource::Core, no_core).unwrap();
    for (args, what) in STREAMS {
        for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
            let mut running = Running::start(bucket.command(args));
            let mut stdin = running.stdin();
            stdin.write_all(b"a\nb\n\0").unwrap();
            wait_until("it to have its turn", || bucket.hours() > 1);
            running.signal(signal);
            let ended = running.finish();
            // A run of commands only starts nothing more after QUIT.
            let stops = signal == Signal::QUIT && ["commands", "with a bar"].contains(&what);
            let expected = if stops { (Some(75), None) } else { (None, Some(signal.as_raw())) };
            let status = (ended.code(), ended.signal());
            assert_eq!(status, expected, "{what}: {}", ended.err);
            assert_eq!((bucket.hours(), ended.text()), (1, ""), "{what} {signal:?}: {}", ended.err);
        }
    }
}

/// The buckets grant two a second, with half a second of allowance. So four units leave in no less than a second.
#[test]
#[ignore = "slow: 6 s"]
fn waiters_stopped_for_long_do_not_leave_as_a_burst() {
    let redis = Redis::start(&[]);
    let limit = "2/s,burst=1,initial=0";
    let kinds: [&[&str]; 3] = [&["--once", "echo", "it"], &["echo"], &[]];
    let in_files = kinds.iter().map(|args| (Bucket::in_file(limit), args));
    let on_server = redis.iter().flat_map(|redis| {
        let bucket = |place: usize| Bucket { address: redis.bucket(&place.to_string()), _folder: None }.set(limit);
        kinds.iter().enumerate().map(move |(place, args)| (bucket(place), args))
    });
    // All kinds at once, so that it takes no longer.
    let mut waiters = Vec::new();
    let mut kinds = Vec::new();
    for (bucket, args) in in_files.chain(on_server) {
        let (sender, times) = mpsc::channel();
        for _ in 0..6 {
            let mut waiter = Running::start(bucket.command(args));
            waiter.write(b"it\n").join().unwrap();
            let (sender, lines) = (sender.clone(), Lines::of(waiter.stdout()));
            std::thread::spawn(move || lines.times().into_iter().for_each(|time| sender.send(time).unwrap()));
            waiters.push(waiter);
        }
        kinds.push((bucket, args, times));
    }
    std::thread::sleep(Duration::from_millis(300));
    for signal in [Signal::STOP, Signal::CONT] {
        for waiter in &waiters {
            waiter.signal(signal);
        }
        if signal == Signal::STOP {
            std::thread::sleep(Duration::from_millis(2500));
        }
    }
    for (bucket, args, times) in kinds {
        let mut times: Vec<Instant> = times.into_iter().collect();
        times.sort();
        assert_eq!(times.len(), 6, "{args:?}");
        let least = times.windows(4).map(|four| four[3] - four[0]).min().unwrap();
        assert!(least > Duration::from_millis(500), "{args:?}, {}: four in {least:?}", bucket.address);
    }
}

/// A `--once` with `args` whose turn comes after three seconds, and goes by while it is stopped. Meanwhile `act` is done.
fn held_back(bucket: &Bucket, args: &[&str], act: impl FnOnce()) -> Ended {
    assert!(feed(bucket.command(&["--pause", "3s"]), b"").status.success());
    let waiter = Running::start(bucket.command(&[&["--once"], args].concat()));
    wait_until("it to wait", || bucket.shown()["line"].as_array().unwrap().len() == 1);
    waiter.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(3500));
    act();
    waiter.signal(Signal::CONT);
    waiter.finish()
}

/// The first turn is lost after a tenth of a second.
#[test]
#[ignore = "slow: 4 s"]
fn a_late_waiter_waits_again_for_max_wait_at_most() {
    let bucket = Bucket::in_file("10/s,burst=1");
    let pause = || assert!(feed(bucket.command(&["--pause", "1h"]), b"").status.success());
    let ended = held_back(&bucket, &["--max-wait", "20s", "echo", "it runs"], pause);
    assert_eq!((ended.code(), ended.text()), (Some(75), ""));
    assert!(ended.err.starts_with("throttle: would have to wait "), "{}", ended.err);
    assert_eq!(bucket.counts()["granted"], 1, "nothing more was taken");
}

#[test]
#[ignore = "slow: 7 s"]
fn a_late_waiter_gives_its_first_turn_back_to_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    copy_program("/bin/true", &broken);
    // It cannot run while it is being written.
    let _writer = std::fs::OpenOptions::new().append(true).open(&broken).unwrap();
    for (command, code, left) in [("true", 0, 99), (broken.to_str().unwrap(), 126, 100)] {
        let bucket = Bucket::in_file("100/h,window");
        let limits = ["--set", "-r", "10/s,burst=1", "-r", "100/h,window"];
        assert!(feed(bucket.command(&limits), b"").status.success());
        assert_eq!(held_back(&bucket, &[command], || ()).code(), Some(code));
        assert_eq!(bucket.shown()["limits"][0]["left"], left, "{command}: the window keeps its place");
    }
}

/// Each look is a process of its own, which takes as long as a waiter to start.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waiters of a bucket, once all of them wait.
fn waiters_of(bucket: &Bucket, count: u64) -> Vec<Running> {
    let waiters = (0..count).map(|_| Running::start(bucket.command(&["--once", "true"]))).collect();
    wait_until("all to wait", || {
        std::thread::sleep(LOOK_AGAIN);
        bucket.hours() == count + 1
    });
    waiters
}

#[test]
fn waiters_that_end_in_any_order_cost_a_newcomer_nothing() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        let mut waiters = waiters_of(&bucket, 5);
        std::thread::sleep(Duration::from_millis(100));
        for waiter in &mut waiters {
            waiter.signal(Signal::TERM);
            waiter.end();
        }
        assert_eq!(bucket.hours(), 1);
    }
}

/// Killed waiters give nothing back themselves. The next newcomer finds that they are gone.
#[test]
#[ignore = "slow: 13 s"]
fn waiters_that_were_killed_cost_a_newcomer_nothing() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        drop(waiters_of(&bucket, 5));
        wait_until("the dead to be noticed", || {
            std::thread::sleep(LOOK_AGAIN);
            let refused = feed(bucket.command(&["--once", "--max-wait", "0"]), b"");
            let said = &refused.err;
            said.contains("wait 1h") || said.contains("wait 59m")
        });
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn a_newcomer_is_served_at_the_new_rate_at_once() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        let waiters = waiters_of(&bucket, 3);
        let bucket = bucket.set("100/s");
        let newcomer = Running::start(bucket.command(&["--once", "true"]));
        for waiter in waiters.into_iter().chain([newcomer]) {
            assert!(waiter.finish().status.success());
        }
    }
}

/// It was charged, and counted as granted, beside its next turn.
#[test]
#[ignore = "slow: 7 s"]
fn a_late_turn_counts_as_given_back() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, "10/s,burst=1"));
    for bucket in [Some(Bucket::in_file("10/s,burst=1")), on_server].into_iter().flatten() {
        assert_eq!(held_back(&bucket, &["true"], || ()).code(), Some(0));
        let counts = bucket.counts();
        assert_eq!((&counts["granted"], &counts["given_back"]), (&2.into(), &1.into()), "{counts}");
    }
}

/// Each looked at the processes of all the others, a second apart.
#[test]
#[ignore = "slow: 4 s"]
fn many_idle_waiters_use_hardly_any_cpu() {
    let bucket = Bucket::in_file(AN_HOUR);
    let waiters = waiters_of(&bucket, 200);
    let used = || waiters.iter().map(|waiter| cpu_time(waiter.pid())).sum::<u64>();
    is_right_once(
        || {
            let before = used();
            std::thread::sleep(Duration::from_secs(3));
            used() - before
        },
        // Of a hundred ticks a second of one core; what starts a process takes one or two.
        |used| *used < 30,
    );
}

/// The bucket knew the times of the latest 64 only: the others asked again for the hours of their first turns, and all
/// behind them waited for days.
#[test]
#[ignore = "slow: 13 s"]
fn many_waiters_go_when_their_rate_is_raised_however_late() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        let waiters = waiters_of(&bucket, 150);
        let bucket = bucket.set("100/s,burst=1");
        // Nobody needs the file meanwhile, which one that is stopped may have locked.
        for waiter in &waiters {
            waiter.signal(Signal::STOP);
        }
        // They are to leave one to three seconds after the limit was set.
        std::thread::sleep(Duration::from_secs(4));
        for waiter in &waiters {
            waiter.signal(Signal::CONT);
        }
        assert!(feed(bucket.command(&["--once", "--max-wait", "60s"]), b"").status.success(), "a newcomer goes, too");
        for waiter in waiters {
            assert!(waiter.finish().status.success());
        }
    }
}

/// Requests of the bucket before are not charged to the new one.
#[test]
#[ignore = "slow: 2 s"]
fn a_bucket_that_begins_anew_owes_nothing_to_old_waiters() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        let waiters = waiters_of(&bucket, 3);
        assert!(feed(bucket.command(&["--clear", "--set", "-r", "1000/s"]), b"").status.success());
        for waiter in waiters {
            assert!(waiter.finish().status.success());
        }
        let newcomer = feed(bucket.command(&["--once", "--max-wait", "10s", "true"]), b"");
        assert!(newcomer.status.success(), "{}", newcomer.err);
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn a_line_is_emptied_a_bucket_starts_anew_and_is_paused() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, AN_HOUR));
    for bucket in [Some(Bucket::in_file(AN_HOUR)), on_server].into_iter().flatten() {
        let done = |args: &[&str]| assert!(feed(bucket.command(args), b"").status.success(), "{args:?}");
        let waiters = waiters_of(&bucket, 3);
        // Those who still wait may enter again before the bucket is read.
        wait_until("the line to be empty", || {
            done(&["--clear"]);
            bucket.hours() == 1
        });
        wait_until("those who still wait to enter again", || bucket.hours() == 4);
        // One that still waits could enter the new bucket again, before a newcomer.
        drop(waiters);
        done(&["--clear", "--set", "-r", "1/h,burst=2"]);
        done(&["--once"]);
        done(&["--pause", "2h"]);
        done(&["--pause", "1s"]);
        assert_eq!(bucket.hours(), 3, "it is empty after the pause");
    }
}

#[test]
fn a_pause_is_shown_until_it_is_lifted() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, "1/s,burst=5"));
    for bucket in [Some(Bucket::in_file("1/s,burst=5")), on_server].into_iter().flatten() {
        let out = |args: &[&str]| {
            let output = feed(bucket.command(args), b"");
            assert!(output.status.success(), "{args:?}: {}", output.err);
            output.into_text()
        };
        for lifts in [&["--pause", "0"], &["--pause", "0s"], &["--clear"][..]] {
            out(&["--pause", "3h"]);
            let shown = out(&["--show"]);
            assert!(shown.contains("  1/s,burst=5: 0 left\n"), "nothing is owed: {shown}");
            let paused = shown.lines().find_map(|line| line.strip_prefix("  paused until ")).expect(&shown);
            assert!(paused.ends_with(" (3h)") || paused.ends_with(" (2h 59m)"), "{shown}");
            let time = paused.rsplit_once(" (").unwrap().0;
            assert_eq!(
                time.rsplit(' ').next().unwrap().split(':').map(str::len).collect::<Vec<_>>(),
                [2, 2],
                "{shown}"
            );
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let json: serde_json::Value = serde_json::from_str(&out(&["--show", "json"])).unwrap();
            let (left, until) = (json["paused_ns"].as_u64().unwrap(), json["paused_until"].as_u64().unwrap());
            assert!(left <= 10_800_000_000_000 && left > 10_000_000_000_000, "{json}");
            assert!((now + 10_000..now + 11_000).contains(&until), "{json}");
            out(lifts);
            assert!(!out(&["--show"]).contains("paused"), "{lifts:?}");
            let json: serde_json::Value = serde_json::from_str(&out(&["--show", "json"])).unwrap();
            assert!(json["paused_ns"] == 0 && json["paused_until"].is_null(), "{json}");
            // The next unit waits for no longer than if nobody had paused.
            assert!(json["wait_ns"].as_u64().unwrap() <= 1_000_000_000, "{json}");
        }
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn a_lifted_pause_frees_the_processes_that_waited_for_its_end() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, "100/s"));
    for bucket in [Some(Bucket::in_file("100/s")), on_server].into_iter().flatten() {
        assert!(feed(bucket.command(&["--pause", "5h"]), b"").status.success());
        let waiters = [&["--once", "true"][..], &["echo"], &[]].map(|args| {
            let mut waiter = Running::start(bucket.command(args));
            waiter.write(b"a\n").join().unwrap();
            waiter
        });
        wait_until("all to wait", || {
            let shown = feed(bucket.command(&["--show", "json"]), b"");
            let shown: serde_json::Value = serde_json::from_slice(&shown.out).unwrap();
            shown["line"].as_array().unwrap().len() == 3
        });
        assert!(feed(bucket.command(&["--pause", "0"]), b"").status.success());
        for waiter in waiters {
            assert!(waiter.finish().status.success());
        }
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn who_waits_is_not_counted_as_refused() {
    let redis = Redis::start(&[]);
    let on_server = |limit: &str| redis.as_ref().map(|redis| Bucket::on_server(redis, limit));
    let refused = |bucket: &Bucket| {
        let shown = feed(bucket.command(&["--show", "json"]), b"").out;
        serde_json::from_slice::<serde_json::Value>(&shown).unwrap()["counts"]["denied"].as_u64()
    };
    for bucket in [Some(Bucket::in_file("10/s")), on_server("10/s")].into_iter().flatten() {
        for _ in 0..4 {
            assert!(feed(bucket.command(&["--once", "--max-wait", "10s", "true"]), b"").status.success());
        }
        assert_eq!(refused(&bucket), Some(0));
    }
    for bucket in [Some(Bucket::in_file("100/s,jobs=1")), on_server("100/s,jobs=1")].into_iter().flatten() {
        let both = [(); 2].map(|()| Running::start(bucket.command(&["--once", "sleep", "0.3"])));
        for one in both {
            assert!(one.finish().status.success());
        }
        assert_eq!(refused(&bucket), Some(0));
    }
}

#[test]
fn it_is_counted_what_happened_since_a_bucket_was_made() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, "1/h,burst=5"));
    for bucket in [Some(Bucket::in_file("1/h,burst=5")), on_server].into_iter().flatten() {
        let json = || -> serde_json::Value {
            serde_json::from_slice(&feed(bucket.command(&["--show", "json"]), b"").out).unwrap()
        };
        let of = |json: &serde_json::Value| {
            ["granted", "denied", "given_back", "waited_ns"].map(|name| json["counts"][name].as_u64().unwrap())
        };
        let new = json();
        assert_eq!(of(&new), [0; 4]);
        assert!(feed(bucket.command(&[]), b"a\nb\nc\n").status.success());
        assert!(feed(bucket.command(&["--once", "true"]), b"").status.success());
        assert_eq!(feed(bucket.command(&["--once", "--", "false"]), b"").code(), Some(1));
        assert_eq!(feed(bucket.command(&["--once", "--max-wait", "0", "true"]), b"").code(), Some(75));
        assert_eq!(of(&json()), [5, 1, 0, 0]);
        let leaves = Running::start(bucket.command(&["--once", "true"]));
        wait_until("it to wait", || json()["line"].as_array().unwrap().len() == 1);
        std::thread::sleep(Duration::from_millis(50));
        leaves.signal(Signal::TERM);
        leaves.finish();
        let then = json();
        let [granted, refused, given_back, waited] = of(&then);
        assert_eq!([granted, refused, given_back], [5, 1, 0], "a waiter is charged nothing: {then}");
        assert_eq!(waited, 0, "its wait of an hour never happened: {then}");
        assert!(then["counts"]["since"].as_u64().unwrap().abs_diff(new["counts"]["since"].as_u64().unwrap()) <= 1);
        let shown = feed(bucket.command(&["--show"]), b"").into_text();
        let counts = shown.lines().find(|line| line.starts_with("  since ")).expect(&shown);
        assert!(counts.contains("): 5 granted, 1 denied, 0 given back; waited "), "{shown}");
    }
}

#[test]
fn a_name_may_have_colons() {
    let redis = Redis::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let on_server = redis.as_ref().map(|redis| redis.bucket("api:v1:me"));
    for address in [Some("api:v1:me".to_owned()), on_server].into_iter().flatten() {
        let out = |args: &[&str]| {
            let mut command = throttle([&["--bucket", &address], args].concat());
            command.env("XDG_STATE_HOME", folder.path());
            let output = feed(command, b"a\n");
            assert!(output.status.success(), "{args:?}: {}", output.err);
            output.into_text()
        };
        out(&["--set", "-r", "5/h,burst=5"]);
        assert_eq!(out(&["echo"]), "a\n");
        out(&["--once", "true"]);
        assert!(out(&["--show"]).contains("5/h,burst=5: 3 left"));
        assert_eq!(out(&["--list"]), "api:v1:me: 5/h,burst=5\n");
        out(&["--remove"]);
        assert_eq!(out(&["--list"]), "");
    }
}

#[test]
fn it_is_shown_how_many_wait() {
    let bucket = Bucket::in_file(AN_HOUR);
    let _waiters = waiters_of(&bucket, 2);
    let shown = feed(bucket.command(&["--show"]), b"").into_text();
    assert!(shown.contains("\n  2 waiting, the last for 2h\n") || shown.contains("the last for 1h 59m\n"), "{shown}");
    let shown = feed(bucket.command(&["--show", "json"]), b"");
    let shown: serde_json::Value = serde_json::from_slice(&shown.out).unwrap();
    assert_eq!(shown["line"][1]["cost"], 1, "{shown}");
}

/// Each unit leaves with a grant of its own. Only that of the unit that could not be written is used.
#[test]
fn a_stream_that_fails_gives_back_what_it_has_not_used() {
    let redis = Redis::start(&[]);
    let on_server = redis.as_ref().map(|redis| Bucket::on_server(redis, "1/h,burst=2"));
    for bucket in [Some(Bucket::in_file("1/h,burst=2")), on_server].into_iter().flatten() {
        let mut command = bucket.command(&[]);
        command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        assert_eq!(feed(command, b"a\n".repeat(1000)).code(), Some(1));
        assert_eq!((bucket.hours(), &bucket.shown()["available"]), (0, &1.into()));
    }
}

/// Somebody else holds the file.
#[test]
#[ignore = "slow: 2 s"]
fn an_interrupted_wait_does_not_wait_for_a_locked_file() {
    for args in [&["--once", "true"][..], &[]] {
        let bucket = Bucket::in_file(AN_HOUR);
        let mut running = Running::start(bucket.command(args));
        let mut stdin = running.stdin();
        stdin.write_all(b"a\n").unwrap();
        wait_until("it to have its turn", || bucket.hours() > 1);
        std::thread::sleep(Duration::from_millis(100));
        let file = std::fs::File::open(&bucket.address).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let begun = Instant::now();
        running.signal(Signal::INT);
        assert_eq!(running.end().signal(), Some(2));
        assert!(begun.elapsed() < HANGS);
    }
}
