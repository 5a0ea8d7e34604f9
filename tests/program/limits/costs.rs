//! `cost=`: units that take more than one, with limits of this run and with buckets.

use crate::support::redis::Redis;
use crate::support::{Ended, Running, assert_fails, feed, logged_attempts, text, throttle, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// Requests, and what the second field counts: ten at first, then one a second.
const TWO_KINDS: [&str; 4] = ["-r", "10/s,burst=1", "-r", "60/min,burst=10,cost=f2"];

fn with(limits: &[&str], args: &[&str], input: &str) -> Ended {
    feed(throttle([limits, args].concat()), input.as_bytes())
}

#[track_caller]
fn plan(limits: &[&str], args: &[&str], input: &str) -> Vec<String> {
    let output = with(limits, &[&["--dry-run"], args].concat(), input);
    assert_eq!(output.err, "");
    output.text().lines().map(str::to_owned).collect()
}

/// Law 2: together or not at all; what is above the burst waits until the rate has paid for it.
#[test]
fn requests_and_tokens_are_granted_together() {
    let lines = plan(&TWO_KINDS, &[], "a 10\nb 0\nc 5\nd 12\ne 1\n");
    let times: Vec<&str> = lines.iter().filter_map(|line| line.split_once("  # ")).map(|(_, time)| time).collect();
    assert_eq!(times, ["0 s", "100 ms", "5 s", "17 s", "18 s"], "{lines:?}");
    let commands = plan(&TWO_KINDS, &["-n", "2", "--", "true"], "a 10\nb 0\nc 5\nd 12\n");
    let times: Vec<&str> = commands.iter().filter_map(|line| line.split_once("  # ")).map(|(_, time)| time).collect();
    assert_eq!(times, ["0 s", "17 s"], "{commands:?}: those of one command add up");
}

/// No further unit has to wait for the bucket of the key.
#[test]
fn units_of_a_key_that_cost_nothing_pass_at_once() {
    let input = "a 1\na 0\na 0\na 0\nb 0\n";
    let ended = with(&["-r", "1/h,per=f1,cost=f2"], &[], input);
    assert_eq!((ended.code(), ended.text(), &*ended.err), (Some(0), input, ""));
}

/// The most in any period is that of the schedule above it: a unit may cost more than the burst.
#[test]
fn a_dry_run_says_the_most_in_a_period_with_costs_too() {
    let lines = plan(&["-r", "5/s,burst=5,cost=f2"], &[], "a 9\nb 4\nc 1\n");
    let more = "at most 9 in any second, plus the part of one unit's cost above the burst";
    assert_eq!(lines[..3], ["a 9  # 800 ms", "b 4  # 1.6 s", "c 1  # 1.8 s"], "14 in a second from 800 ms on");
    assert_eq!(lines.last().unwrap(), &format!("# 5/s,burst=5,cost=f2: {more}"), "{lines:?}");
    let lines = plan(&["-r", "5/s,burst=5,cost=f2,per=f1", "-r", "9/s"], &[], "a 9\n");
    assert_eq!(
        lines[2..4],
        ["# 9/s,burst=1: at most 9 in any second".to_owned(), format!("# 5/s,burst=5,cost=f2 for each f1: {more}")]
    );
}

/// Each write to such a socket is a message.
#[test]
fn units_that_conform_together_leave_in_one_write() {
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let mut command = throttle(["-r", "10/s,burst=1000", "-r", "10/s,burst=9,cost=f2"]);
    let child = command.stdin(Stdio::piped()).stdout(std::os::fd::OwnedFd::from(theirs)).spawn().unwrap();
    drop(command);
    child.stdin.as_ref().unwrap().write_all(b"a 2\nb 0\nc 7\nd 1\ne 0\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let message = || {
        let mut bytes = [0; 64];
        let length = ours.recv(&mut bytes).unwrap();
        text(&bytes[..length])
    };
    assert_eq!((message(), message()), ("a 2\nb 0\nc 7\n".into(), "d 1\ne 0\n".into()));
}

#[test]
fn a_unit_whose_cost_cannot_be_read_ends_a_pipe() {
    let output = with(&["-r", "1000/s,burst=9,cost=f2"], &[], "a 1\nb 2\nc\nd 4\n");
    assert_eq!(output.text(), "a 1\nb 2\n");
    assert_fails(
        &output,
        1,
        &["line 3 'c'", "limit 1000/s,burst=9,cost=f2: the cost cannot be read", "like cost=f2,else=1"],
    );
    assert_fails(&output, 1, &["cannot pass on line 3", "after 2 lines; 2 more had been read"]);
    let output = with(&["-r", "1000/s,burst=9,cost=f2,else=3"], &[], "a 1\nb 2\nc\nd 4\n");
    assert_eq!((output.text(), &*output.err), ("a 1\nb 2\nc\nd 4\n", ""));
    let long = "x".repeat(5 << 20);
    for limit in ["1000/s,burst=9,cost=7", "100M/s,cost=bytes"] {
        let output = with(&["-r", limit], &[], &long);
        assert_eq!((output.out.len(), &*output.err), (long.len(), ""), "{limit}");
    }
}

#[test]
fn a_unit_that_costs_more_than_a_window_holds_ends_a_pipe() {
    let output = with(&["-r", "10/s,window,cost=f1"], &[], "1\n11\n1\n");
    assert_eq!(output.text(), "1\n");
    assert_fails(&output, 1, &["line 2 '11'", ",cost=f1: it costs 11, more than the 10 that the window ever allows"]);
}

#[test]
fn a_unit_that_gets_no_grant_fails_without_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let args = ["-r", "1000/s", "-r", "10/s,window,cost=f1", "--log", log.to_str().unwrap(), "-c", "echo ran $1"];
    let output = feed(throttle(args), b"2\n11\n0\nx\n3\n");
    let said = &output.err;
    assert_eq!(output.sorted(), ["ran 0", "ran 2", "ran 3"]);
    assert_eq!(output.code(), Some(123), "{said}");
    assert!(
        said.contains("'11': not run: limit 10/s,window,slack=50ms,cost=f1: it costs 11, more than")
            && said.contains("'x': not run: limit 10/s,window,slack=50ms,cost=f1: the cost cannot be read; add"),
        "{said}"
    );
    let log = fs::read_to_string(log).unwrap();
    let mut charged: Vec<(u64, u64)> = Vec::new();
    for line in logged_attempts(&log) {
        charged.push((line["seq"].as_u64().unwrap(), line["charged"].as_u64().unwrap()));
    }
    charged.sort_unstable();
    assert_eq!(charged, [(1, 2), (2, 0), (3, 0), (4, 0), (5, 3)]);
    let lines = plan(&["-r", "10/s,window,cost=f1"], &["--", "echo"], "11\nx\n");
    assert!(lines[0].contains("it costs 11, more") && lines[1].contains("cannot be read"), "{lines:?}");
}

/// Each attempt costs as much as the first, also if another one is due while it waits.
#[test]
fn a_further_attempt_costs_what_its_unit_costs() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let rest = ["--attempts", "2", "--backoff", "10ms", "-q", "--log", log.to_str().unwrap(), "-c"];
    let script = "[ $THROTTLE_ATTEMPT = 2 ]";
    let output = with(&["-r", "100/s,burst=1,cost=f1"], &[&rest[..], &[script]].concat(), "1\n5\n9\n2\n");
    assert!(output.status.success(), "{}", output.err);
    let lines = logged_attempts(&fs::read_to_string(log).unwrap());
    assert_eq!(lines.len(), 8);
    for line in lines {
        assert_eq!(line["charged"].as_u64().unwrap().to_string(), line["unit"].as_str().unwrap(), "{line}");
    }
}

/// Runs `check` with the address of a bucket in a file, and of one on a server.
fn with_each_bucket(check: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    check(folder.path().join("bucket").to_str().unwrap());
    if let Some(redis) = Redis::start(&[]) {
        check(&redis.bucket("costs"));
    }
}

fn shown(bucket: &str) -> Value {
    let output = feed(throttle(["--bucket", bucket, "--show", "json"]), b"");
    serde_json::from_slice(&output.out).unwrap_or_else(|_| panic!("{}", output.err))
}

/// The units left of the second limit.
fn tokens(bucket: &str) -> i64 {
    shown(bucket)["limits"][1]["left"].as_i64().unwrap()
}

/// Requests, and what units say: ten at first, then none for a long time.
fn limits(bucket: &str) -> [&str; 6] {
    ["--bucket", bucket, "-r", "1000/s", "-r", "24/d,burst=10,cost=f1"]
}

#[test]
fn a_bucket_is_charged_the_costs_of_a_pipe_and_of_commands() {
    with_each_bucket(|bucket| {
        let output = with(&limits(bucket), &[], "3\n0\n2\n");
        assert_eq!((output.text(), &*output.err), ("3\n0\n2\n", ""));
        assert_eq!(tokens(bucket), 5);
        // In another order: the limits of the bucket are what they are.
        let other = ["--bucket", bucket, "-r", "24/d,cost=f1", "-r", "1000/s", "echo"];
        let output = with(&other, &[], "1\n3\n");
        assert!(output.status.success(), "{}", output.err);
        assert_eq!(tokens(bucket), 1);
        let once = ["--bucket", bucket, "--once", "--max-wait", "0", "-r", "1000/s", "-r", "24/d,cost=2"];
        assert_eq!(with(&once, &[], "").code(), Some(75));
        let once = once.map(|word| if word == "24/d,cost=2" { "24/d,cost=1" } else { word });
        assert_eq!(with(&once, &[], "").code(), Some(0));
        assert_eq!(tokens(bucket), 0);
    });
}

#[test]
fn whoever_names_only_the_bucket_is_charged_by_its_costs() {
    with_each_bucket(|bucket| {
        let set = |limits: &[&str]| with(&[&["--bucket", bucket, "--set"], limits].concat(), &[], "");
        let output = set(&["-r", "1000/s", "-r", "24/d,burst=10,cost=f1,else=4"]);
        assert_eq!((output.code(), &*output.err), (Some(0), ""));
        let kept = "24/d,burst=10,cost=f1,else=4";
        assert_eq!(shown(bucket)["limits"][1]["limit"], kept);
        let show = with(&["--bucket", bucket, "--show"], &[], "");
        assert!(show.text().contains(&format!("  {kept}: 10 left\n")), "{}", show.text());
        for (args, input, left) in [
            (&[][..], "3\n0\n", 7),
            (&["echo"], "1\n1\n", 5),
            (&["--once", "true"], "", 1),
            (&["--once", "-r", "1000/s", "-r", "24/d,cost=1", "true"], "", 0),
        ] {
            let output = with(&[&["--bucket", bucket], args].concat(), &[], input);
            assert!(output.status.success(), "{args:?}: {}", output.err);
            assert_eq!(tokens(bucket), left, "{args:?}");
        }
        for (limits, agrees) in [
            (&["-r", "1000/s", "-r", "24/d"][..], true),
            (&["-r", "1000/s", "-r", "24/d,cost=f1"], true),
            (&["-r", "1000/s", "-r", "24/d,cost=f2"], false),
            (&["-r", "1000/s,cost=f1", "-r", "24/d"], false),
        ] {
            let output = with(&[&["--bucket", bucket], limits].concat(), &[], "");
            assert_eq!(output.status.success(), agrees, "{limits:?}");
            assert_eq!(output.err.contains(&format!("has the limits 1000/s,burst=10 and {kept}, not ")), !agrees);
        }
        assert!(set(&["-r", "1000/s"]).status.success());
        let output = with(&["--bucket", bucket], &[], "3\n3\n3\n3\n3\n3\n");
        assert!(output.status.success(), "each is one again: {}", output.err);
    });
}

/// As in a run of its own.
#[test]
fn a_missing_cost_ends_a_pipe_and_fails_a_command() {
    with_each_bucket(|bucket| {
        let limits = ["-r", "24/d,burst=10,cost=f2"];
        assert!(with(&[&["--bucket", bucket, "--set"], &limits[..]].concat(), &[], "").status.success());
        for own in [&["--bucket", bucket][..], &limits[..]] {
            let output = with(own, &[], "a 1\nb\nc 1\n");
            let why = "limit 24/d,burst=10,cost=f2: the cost cannot be read; add the cost of such a unit, like \
                 cost=f2,else=1";
            assert_eq!((output.code(), output.text()), (Some(1), "a 1\n"), "{own:?}");
            assert!(output.err.contains(why), "{own:?}: {}", output.err);
            let output = with(&[own, &["echo"]].concat(), &[], "b\nc 1\n");
            assert_eq!((output.code(), output.text()), (Some(123), "c 1\n"), "{own:?}");
        }
        // A call has no unit, and the message shows what to write instead.
        let output = with(&["--bucket", bucket, "--once"], &[], "");
        let said = &output.err;
        let right =
            "the limit 24/d,burst=10,cost=f2 has no cost; write the cost of the call: -r 24/d,burst=10,cost=800";
        assert!(output.code() == Some(125) && said.contains(right), "{said}");
        let before = shown(bucket)["limits"][0]["left"].clone();
        assert_eq!(before, 8, "nothing was taken");
        let right = ["--bucket", bucket, "--once", "-r", "24/d,burst=10,cost=6"];
        assert!(with(&right, &[], "").status.success());
        assert_eq!(shown(bucket)["limits"][0]["left"], 2);
    });
}

/// With attempts, the bucket that a call made had the cost of the call, and refused a call with another cost.
#[test]
fn a_bucket_has_no_cost_of_one_call() {
    with_each_bucket(|bucket| {
        let script = "echo throttle-cost: 1 > \"$THROTTLE_REPLY\"";
        for (cost, args, left) in [
            ("5", &["--attempts", "2", "true"][..], 15),
            ("4", &["true"], 11),
            ("3", &["--attempts", "2", "true"], 8),
            ("6", &["--attempts", "2", "-c", script], 7),
        ] {
            let limit = format!("24/d,burst=20,cost={cost}");
            let call = ["--bucket", bucket, "--once", "-r", "1000/s", "-r", &limit];
            let output = with(&[&call, args].concat(), &[], "");
            assert!(output.status.success(), "{limit} {args:?}: {}", output.err);
            assert_eq!((shown(bucket)["limits"][1]["limit"].as_str(), tokens(bucket)), (Some("24/d,burst=20"), left));
        }
    });
}

#[test]
fn a_stream_ends_when_units_cost_something_else() {
    with_each_bucket(|bucket| {
        for (before, after) in [("1000/s", "1000/s,cost=f1"), ("1000/s,cost=f1", "1000/s,cost=f1,else=1")] {
            let set = |limit| with(&["--bucket", bucket, "--set", "-r", limit], &[], "");
            assert!(set(before).status.success());
            let mut running = Running::start(throttle(["--bucket", bucket]));
            let mut stdin = running.stdin();
            stdin.write_all(b"1\n").unwrap();
            wait_until("it to begin", || shown(bucket)["counts"]["granted"] != 0);
            assert!(set(after).status.success());
            stdin.write_all(b"1\n2\n").unwrap();
            let output = running.finish();
            let said = &output.err;
            assert!(!output.status.success() && said.contains("the costs of a unit changed; start again"), "{said}");
            assert!(with(&["--bucket", bucket, "--remove"], &[], "").status.success());
        }
    });
}

/// Law 5: whatever ends a wait cancels its request; the requests behind it are granted earlier.
#[test]
fn a_waiter_that_leaves_a_bucket_gives_back_each_cost() {
    with_each_bucket(|bucket| {
        let output = with(&limits(bucket), &[], "4\n");
        assert!(output.status.success(), "{}", output.err);
        let mut waiting: Vec<Running> = Vec::new();
        for (unit, count) in [("8\n", 1), ("7\n", 2)] {
            let mut running = Running::start(throttle(limits(bucket)));
            running.write(unit.as_bytes()).join().unwrap();
            wait_until("it to wait", || shown(bucket)["line"].as_array().is_some_and(|line| line.len() == count));
            waiting.push(running);
        }
        let line = shown(bucket)["line"].clone();
        assert_eq!([&line[0]["cost"], &line[1]["cost"]], [8, 7], "{line}");
        let hours = |nanos: &Value| nanos.as_u64().unwrap().div_ceil(3_600_000_000_000);
        assert_eq!([hours(&line[0]["wait_ns"]), hours(&line[1]["wait_ns"])], [2, 9], "{line}");
        let first = waiting.remove(0);
        first.signal(Signal::INT);
        let _ = first.finish();
        let line = shown(bucket)["line"].clone();
        assert_eq!((hours(&line[0]["wait_ns"]), line.as_array().map(Vec::len)), (1, Some(1)), "{line}");
        let second = waiting.remove(0);
        second.signal(Signal::INT);
        let _ = second.finish();
        assert_eq!(tokens(bucket), 6);
    });
}
