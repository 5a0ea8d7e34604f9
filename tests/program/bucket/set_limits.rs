//! `--set`: other limits, no limit, and limits in another order.

use crate::support::redis::Redis;
use crate::support::{Ended, Lines, Running, assert_fails, feed, skipped, throttle};
use serde_json::Value;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// A bucket in a file or on a server.
struct Bucket {
    address: String,
    _folder: Option<tempfile::TempDir>,
}

impl Bucket {
    fn in_file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Bucket { address: folder.path().join("b").to_str().unwrap().to_owned(), _folder: Some(folder) }
    }

    fn command(&self, args: &[&str]) -> Command {
        throttle([&["--bucket", &self.address], args].concat())
    }

    fn run(&self, args: &[&str], input: &str) -> Ended {
        feed(self.command(args), input)
    }

    #[track_caller]
    fn succeeds(&self, args: &[&str], input: &str) -> String {
        let ended = self.run(args, input);
        assert_eq!((ended.code(), &*ended.err), (Some(0), ""), "{args:?}");
        ended.into_text()
    }

    #[track_caller]
    fn set(&self, limits: &[&str]) {
        self.succeeds(&[&["--set"], limits].concat(), "");
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.succeeds(&["--show", "json"], "")).unwrap()
    }

    /// The units left of each limit, sorted by the limit.
    fn left(&self) -> Vec<(String, i64)> {
        let shown = self.shown();
        let limits = shown["limits"].as_array().unwrap().iter();
        let mut left: Vec<_> = limits
            .map(|limit| (limit["limit"].as_str().unwrap().to_owned(), limit["left"].as_i64().unwrap()))
            .collect();
        left.sort();
        left
    }
}

/// A bucket in a file, and one on a server if there is one.
fn each(test: impl Fn(&Bucket)) {
    test(&Bucket::in_file());
    match Redis::start(&[]) {
        Some(redis) => test(&Bucket { address: redis.bucket("b"), _folder: None }),
        None => skipped("no redis-server"),
    }
}

#[test]
fn a_limit_that_counts_another_kind_needs_a_new_start() {
    each(|bucket| {
        for (before, kind, after, right) in [
            ("1kB/s", "bytes", "5/s", "10MiB/s"),
            ("9/s", "units", "1MB/s", "5/s"),
            ("9/s", "units", "unlimited,bytes", "5/s"),
        ] {
            bucket.succeeds(&["--set", "--clear", "-r", before], "");
            let refused = bucket.run(&["--set", "-r", after], "");
            let words = [
                &format!("counts {kind} ({before},burst="),
                "would end the pipes that use it",
                &format!("--set -r {right}, or"),
            ];
            assert_fails(&refused, 1, &words);
            assert!(bucket.shown()["limits"][0]["limit"].as_str().unwrap().starts_with(before));
            bucket.set(&["-r", right]);
            bucket.succeeds(&["--clear", "--set", "-r", after], "");
        }
    });
}

#[test]
fn unlimited_holds_until_the_next_set() {
    each(|bucket| {
        bucket.set(&["-r", "1/h"]);
        let mut pipe = Running::start(bucket.command(&["-q"]));
        let (mut stdin, lines) = (pipe.stdin(), Lines::of(pipe.stdout()));
        stdin.write_all(b"a\nb\n").unwrap();
        assert_eq!(lines.next(), "a");
        bucket.set(&["-r", "unlimited"]);
        assert_eq!(lines.next(), "b", "the waiting unit leaves");
        stdin.write_all("c\n".repeat(1000).as_bytes()).unwrap();
        (0..1000).for_each(|_| assert_eq!(lines.next(), "c"));
        let shown = bucket.succeeds(&["--show"], "");
        assert!(shown.contains("\n  unlimited\n") && shown.contains("next unit: now"), "{shown}");
        assert!(bucket.succeeds(&["--list"], "").contains("b: unlimited\n"));
        assert_eq!(bucket.shown()["limits"].as_array().map(Vec::len), Some(0));
        bucket.succeeds(&["--once", "true"], "");
        bucket.succeeds(&["-r", "unlimited", "--once", "true"], "");
        assert_fails(&bucket.run(&["-r", "5/s"], ""), 1, &["has the limits unlimited, not 5/s"]);
        assert_eq!(bucket.succeeds(&["-j", "1", "echo"], "1\n2\n"), "1\n2\n");
        assert_eq!(bucket.succeeds(&["--dry-run"], "1\n2\n"), "1  # 0 s\n2  # 0 s\n# 2 lines in 0 s\n");
        bucket.set(&["-r", "1/h,burst=2"]);
        stdin.write_all(b"d\ne\nf\n").unwrap();
        assert_eq!([lines.next(), lines.next()], ["d", "e"]);
        assert!(bucket.run(&["--once", "--max-wait", "0"], "").code() == Some(75) && pipe.is_running());
    });
}

#[test]
fn unlimited_counts_what_the_bucket_counts() {
    each(|bucket| {
        bucket.set(&["-r", "1MB/s"]);
        bucket.set(&["-r", "unlimited"]);
        assert!(bucket.succeeds(&["--show"], "").contains("\n  unlimited,bytes\n"));
        let large = "x".repeat(5_000_000);
        let begun = Instant::now();
        assert_eq!(bucket.succeeds(&[], &large).len(), large.len());
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(bucket.succeeds(&["-r", "unlimited,bytes"], "a\n"), "a\n");
        assert_fails(&bucket.run(&["true"], "a\n"), 1, &["not counted in bytes", "has the limits unlimited,bytes"]);
        bucket.set(&["-r", "2MB/s"]);
        let fresh = Bucket::in_file();
        fresh.set(&["-r", "unlimited,bytes"]);
        fresh.set(&["-r", "1kB/s"]);
    });
}

#[test]
fn a_pipe_with_costs_goes_on_while_nothing_is_limited() {
    each(|bucket| {
        let limits = ["-r", "1000/s", "-r", "24/d,burst=3,cost=f1"];
        bucket.set(&limits);
        let mut pipe = Running::start(bucket.command(&["-q"]));
        let (mut stdin, lines) = (pipe.stdin(), Lines::of(pipe.stdout()));
        stdin.write_all(b"3\n4\n").unwrap();
        assert_eq!(lines.next(), "3");
        bucket.set(&["-r", "unlimited"]);
        stdin.write_all(b"5\n").unwrap();
        assert_eq!([lines.next(), lines.next()], ["4", "5"]);
        bucket.set(&limits);
        stdin.write_all(b"2\n").unwrap();
        assert_eq!(lines.next(), "2");
        assert_eq!(bucket.left()[1], ("24/d,burst=3,cost=f1".to_owned(), 1));
    });
}

#[test]
fn the_order_of_limits_never_matters() {
    each(|bucket| {
        bucket.set(&["-r", "24/d,burst=10,cost=f1", "-r", "24/d,burst=10"]);
        let [plain, priced] = [&["-r", "24/d"][..], &["-r", "24/d,cost=f1"]];
        for limits in [[plain, priced].concat(), [priced, plain].concat()] {
            bucket.succeeds(&limits, "2\n");
        }
        let left = |units, costs| [("24/d,burst=10".to_owned(), units), ("24/d,burst=10,cost=f1".to_owned(), costs)];
        assert_eq!(bucket.left(), left(8, 6));
        // A call names its cost beside the limit that counts it.
        let priced = &["-r", "24/d,cost=2"][..];
        for limits in [[plain, priced].concat(), [priced, plain].concat()] {
            bucket.succeeds(&[&limits[..], &["--once", "true"]].concat(), "");
        }
        assert_eq!(bucket.left(), left(6, 2));
        bucket.set(&["-r", "24/d,burst=10", "-r", "24/d,burst=10,cost=f1"]);
        assert_eq!(bucket.left(), left(6, 2), "each keeps its units");
    });
}

#[test]
fn a_cost_above_a_window_is_refused_with_both_numbers() {
    each(|bucket| {
        let limit = ["-r", "100/s,window,cost=200"];
        let words =
            ["the call costs 200, but the limit 100/s,window,slack=50ms never grants more than 100", "like cost=100"];
        assert_fails(&bucket.run(&[&["--once"], &limit[..]].concat(), ""), 125, &words);
        bucket.set(&["-r", "100/s,window,cost=f1,else=200"]);
        let words = ["costs 200, but the limit 100/s,window,slack=50ms,cost=f1,else=200 never grants more than 100"];
        assert_fails(&bucket.run(&["--once", "true"], ""), 125, &words);
        bucket.succeeds(&["--once", "-r", "100/s,window,cost=100"], "");
    });
}

#[test]
fn advice_about_a_bucket_of_bytes_names_no_rate_of_units() {
    let bucket = Bucket::in_file();
    bucket.set(&["-r", "1kB/s"]);
    for (args, code, words) in [
        (&["--once", "true"][..], 125, "name a bucket that counts units, like --bucket NAME"),
        (&["true"], 1, "commands are not counted in bytes; name a bucket that counts units"),
        (&["-0"], 1, "-0: the bucket counts bytes, but -0 cuts records; leave -0 out"),
        (&["-r", "5/s"], 1, "leave -r out, or name another bucket"),
    ] {
        let ended = bucket.run(args, "a\n");
        assert_fails(&ended, code, &[words]);
        assert!(!ended.err.contains("write -r 5/s") && !ended.err.contains("write for example -r"), "{}", ended.err);
    }
    let said = bucket.run(&["--set"], "").err;
    assert!(said.contains("--set -r 5000/h, --set -r 10MiB/s or --set -r unlimited"), "{said}");
    assert!(bucket.run(&["--set", "-r", "0/s"], "").err.contains("for no limit write unlimited"));
}

/// The recipe for a quota that begins anew each midnight: waiters go first, and a job of cron refills the window.
#[test]
fn set_with_initial_refills_a_window_for_those_who_wait() {
    let bucket = Bucket::in_file();
    let refill = ["-r", "3/d,window,initial=3"];
    bucket.set(&refill);
    (0..3).for_each(|_| drop(bucket.succeeds(&["--once"], "")));
    let waiter = Running::start(bucket.command(&["-q", "--once"]));
    crate::support::wait_until("it to wait", || bucket.shown()["line"].as_array().is_some_and(|line| line.len() == 1));
    bucket.set(&refill);
    assert_eq!(waiter.finish().code(), Some(0));
    assert_eq!(bucket.left()[0].1, 2);
}
