//! Pipes that end before their input does: the report about units that were read, and when the end is noticed.

use crate::support::{Ended, Lines, Running, THROTTLE, feed, shell, skipped, throttle, wait_until, with_pipes};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

/// A pipe with `args` that has read `input`, whose writer stays, after a signal.
fn interrupted(args: &[&str], input: &[u8]) -> Ended {
    let mut running = Running::start(throttle(args));
    let mut stdin = running.stdin();
    stdin.write_all(input).unwrap();
    running.settle();
    running.signal(Signal::TERM);
    let output = running.finish();
    assert_eq!(output.signal(), Some(Signal::TERM.as_raw()), "{args:?}");
    output
}

/// `k1 1`, `k2 2`, `k1 3` and so on.
fn fifty() -> String {
    (1..=50).map(|n| format!("k{} {n}", n % 2)).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn a_signal_says_how_many_units_were_read_and_not_passed_on() {
    for (args, input, words) in [
        (&["-r", "1/h", "-b", "6"][..], fifty(), "interrupted: 6 lines, 30 B, 44 read and not passed on\n"),
        (&["-q", "-r", "1/h", "-b", "6"], fifty(), "interrupted: 6 lines, 30 B, 44 read and not passed on\n"),
        (
            &["-r", "1/h,burst=3,per=f1"],
            fifty(),
            "interrupted: 6 lines, 30 B, 2 keys wait, 44 read and not passed on\n",
        ),
        (&["-r", "1/h,burst=6", "-r", "1/h,burst=6,cost=f2,else=1"], "x\n".repeat(50), "44 read and not passed on\n"),
        (&["-r", "1/h"], "a\nb\nbegun".to_owned(), "interrupted: 1 line, 2 B, 2 read and not passed on\n"),
        (&["-r", "1/h,burst=6,per=f1", "--drop"], fifty(), "interrupted: 12 lines, 63 B, 38 dropped\n"),
    ] {
        let said = interrupted(args, input.as_bytes()).err;
        assert!(said.ends_with(words), "{args:?}: {said}");
    }
    assert_eq!(interrupted(&["-r", "1/h", "-b", "60"], fifty().as_bytes()).err, "", "nothing was lost");
}

#[test]
fn the_summary_counts_units_that_an_interrupt_kept_back() {
    let said = interrupted(&["-r", "1/h", "-b", "6", "--summary"], fifty().as_bytes()).err;
    assert!(said.contains(", 44 read and not passed on\n") && said.lines().count() == 2, "{said}");
    let output = interrupted(&["-r", "1/h", "-b", "6", "--summary=json"], fifty().as_bytes());
    let summary: serde_json::Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!((&summary["units"], &summary["read_and_not_passed_on"]), (&6.into(), &44.into()));
}

#[test]
fn a_reader_that_leaves_ends_the_wait_and_gives_back() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let bucket = bucket.to_str().unwrap();
    for args in [
        &["-r", "1/h"][..],
        &["-r", "1/h,per=f1"],
        &["-r", "1/h", "-r", "1/h,cost=f2,else=1"],
        &["-r", "1B/h"],
        &["-r", "1/h", "--bucket", bucket],
    ] {
        let mut running = Running::start(throttle(args));
        let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
        stdin.write_all(b"a\na\na\n").unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        running.settle();
        drop(stdout);
        let output = running.finish();
        assert_eq!((output.signal(), output.err), (Some(Signal::PIPE.as_raw()), String::new()), "{args:?}");
    }
    let shown = feed(throttle(["--bucket", bucket, "--show"]), b"");
    let said = shown.text();
    assert!(
        said.contains("1/h,burst=1: 0 left\n") && !said.contains("waiting"),
        "the second unit is given back: {said:?}"
    );
}

/// Ctrl-C goes to all of a pipeline, and the reader dies first. A shell goes on with its loop unless it sees that signal.
#[test]
fn a_signal_to_the_whole_pipeline_ends_the_pipe_as_signal() {
    for args in [&["-r", "1/h"][..], &["-r", "1/h,per=f1"], &["-r", "1B/h"]] {
        for _ in 0..10 {
            let mut running = Running::start(throttle(args));
            let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
            stdin.write_all(b"a\na\na\n").unwrap();
            stdout.read_exact(&mut [0]).unwrap();
            running.settle();
            running.signal(Signal::INT);
            drop(stdout);
            let output = running.finish();
            let said = &output.err;
            assert_eq!(output.signal(), Some(Signal::INT.as_raw()), "{args:?}: {said}");
        }
    }
}

#[test]
fn a_reader_that_left_before_the_end_of_the_input_fails_nothing() {
    let mut running = Running::start(throttle(["-r", "1000/s"]));
    let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
    stdin.write_all(b"a\n").unwrap();
    stdout.read_exact(&mut [0; 2]).unwrap();
    drop(stdout);
    thread::sleep(Duration::from_millis(50));
    drop(stdin);
    assert!(running.end().success(), "as cat does: all that was read was written");
}

#[test]
fn a_summary_that_is_also_the_input_or_the_output_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (script, what) in [
        ("exec \"$0\" -r 1k/s --summary=json:f < f", "the input, and would be emptied before it is read"),
        ("exec \"$0\" -r 1k/s --summary=json:f -a f", "the input"),
        ("exec \"$0\" -r 1k/s --summary=json:f -a f echo", "the input"),
        ("exec \"$0\" -r 1k/s --summary=json:f >> f", "the output, and would be written over it"),
        ("exec \"$0\" -r 1k/s --summary=json:f echo 2>> f", "the output"),
    ] {
        fs::write(folder.path().join("f"), "1\n2\n").unwrap();
        let mut command = shell(script);
        command.current_dir(folder.path());
        let output = feed(command, b"");
        let content = fs::read_to_string(folder.path().join("f")).unwrap();
        let said = format!("{}{content}", output.err);
        assert_eq!(output.code(), Some(1), "{script}: {said}");
        assert!(said.contains(&format!("--summary: f is also {what}")), "{script}: {said}");
        assert!(content.starts_with("1\n2\n"), "{script}: {content}");
    }
}

#[test]
fn an_input_that_is_also_the_output_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        fs::write(folder.path().join("f"), "1\n2\n").unwrap();
        let mut command = shell(script);
        command.current_dir(folder.path());
        (feed(command, b""), fs::read_to_string(folder.path().join("f")).unwrap())
    };
    for script in [
        "exec \"$0\" -r 1k/s < f >> f",
        "exec \"$0\" -r 1k/s -a f >> f",
        "exec \"$0\" -r 1MB/s < f >> f",
        "exec \"$0\" -r 1k/s --dry-run < f >> f",
        "exec \"$0\" -r 1k/s echo < f >> f",
        "exec 1<>f; echo 0; exec \"$0\" -r 1k/s < f",
    ] {
        let (output, content) = run(script);
        let said = &output.err;
        assert_eq!(output.code(), Some(1), "{script}: {said}");
        assert!(said.contains(" is also the output") && said.contains("write to another file"), "{script}: {said}");
        assert_eq!(content.len(), 4, "{script}: {content}");
    }
    for (script, content) in [
        ("exec \"$0\" -r 1k/s < f > f", ""),
        ("exec \"$0\" -r 1k/s < f 1<>f", "1\n2\n"),
        ("exec \"$0\" -r 1k/s < f >> g", "1\n2\n"),
    ] {
        let (output, found) = run(script);
        assert_eq!((output.code(), &*output.err, &*found), (Some(0), "", content), "{script}");
    }
}

/// As cron would mail it: a pause of a minute is reported once, and nothing else if the run succeeds.
#[test]
#[ignore = "slow: 4 s"]
fn without_a_terminal_a_long_pause_is_reported_once() {
    let later = "echo 'retry-after: 3600' >> \"$THROTTLE_REPLY\"; exit 1 # $1";
    for (limit, words) in [
        ("unlimited", "throttle: a server requested a wait: nothing starts for 1h"),
        ("9/s,per=f1", "throttle: the server of 'k1' requested a wait: no unit of this key starts for 1h"),
    ] {
        let mut running = Running::start(throttle(["-r", limit, "--attempts", "2", "--max-pause", "2h", "-c", later]));
        let said = Lines::of(running.stderr());
        running.write(b"k1 1\nk1 2\n");
        let line = said.next();
        let until = line.strip_prefix(words).and_then(|rest| rest.strip_prefix(", until ")).expect(&line);
        assert!(until.len() >= 5 && until.as_bytes()[until.len() - 3] == b':', "{line}");
        thread::sleep(Duration::from_millis(300));
        running.signal(Signal::TERM);
        let more = said.rest();
        assert!(!more.iter().any(|line| line.contains("requested a wait")), "{more:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let paused = folder.path().join("paused");
    let paused = ["--bucket", paused.to_str().unwrap()];
    for args in [&["--set", "-r", "9/s"][..], &["--pause", "90min"]] {
        assert!(feed(throttle([&paused[..], args].concat()), b"").status.success());
    }
    for args in [&["--once"][..], &[], &["true"]] {
        let mut running = Running::start(throttle([&paused[..], args].concat()));
        let said = Lines::of(running.stderr());
        running.write(b"1\n");
        let line = said.next();
        assert!(line.starts_with("throttle: the bucket is paused: nothing is granted for 1h"), "{args:?}: {line}");
        running.signal(Signal::TERM);
        let more = said.rest();
        assert!(!more.iter().any(|line| line.contains("is paused")), "{more:?}");
    }
    let said = |args: &[&str]| feed(throttle(args), b"1\n").err;
    let hint = "hint: ssh gives its command to a shell on the other machine";
    fs::write(folder.path().join("ssh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(folder.path().join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let ssh = folder.path().join("ssh");
    let ssh = ssh.to_str().unwrap();
    assert_eq!(said(&["-r", "5/s", "--summary", ssh, "h", "echo", "{}"]).matches(hint).count(), 1);
    for args in [
        &["-r", "5/s", ssh, "h", "echo", "{}"][..],
        &["-r", "5/s", "-c", "echo"],
        &["-r", "5/s", "-r", "18000/h", "true"],
        &["-r", "5/s", "--attempts", "2", "-c", ": curl --retry 3 $1"],
    ] {
        assert_eq!(said(args), "", "{args:?}");
    }
    let bucket = folder.path().join("bucket");
    let once = ["--bucket", bucket.to_str().unwrap(), "-r", "1/h", "-q", "--once", "--max-wait", "0"];
    let ends = [feed(throttle(once), b""), feed(throttle(once), b"")];
    assert_eq!(ends.map(|end| (end.code(), end.err)), [0, 75].map(|code| (Some(code), String::new())));
}

/// The server of one run requests a wait, and the bucket stores it: each run that has to wait reports it once.
#[test]
#[ignore = "slow: 5 s"]
fn each_run_reports_a_long_pause_of_its_bucket_once() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let bucket = ["--bucket", bucket.to_str().unwrap()];
    let later = "echo 'retry-after: 3600' >> \"$THROTTLE_REPLY\"; exit 1 # $1";
    let first = ["-r", "9/s", "--attempts", "2", "--max-pause", "2h", "-c", later];
    let message = "throttle: a server requested a wait: nothing starts for 1h, until ";
    let paused = "throttle: the bucket is paused: nothing is granted for ";
    let mut runs = Vec::new();
    for (args, words) in [(&first[..], message), (&["--once"], paused), (&["true"], paused), (&[], paused)] {
        let mut run = Running::start(throttle([&bucket[..], args].concat()));
        let said = Lines::of(run.stderr());
        run.write(b"1\n2\n");
        let line = said.next();
        assert!(line.starts_with(words) && line.contains(", until "), "{args:?}: {line}");
        runs.push((run, said));
    }
    thread::sleep(Duration::from_millis(1500));
    for (run, said) in runs {
        run.signal(Signal::TERM);
        let more = said.rest();
        assert!(!more.iter().any(|line| line.contains("paused") || line.contains("requested a wait")), "{more:?}");
    }
}

/// The kernel ignores a signal whose action is the default for process 1, so it cannot die of one.
#[test]
#[ignore = "slow: 3 s"]
fn as_process_1_each_death_is_the_exit_of_its_signal() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let bucket = bucket.to_str().unwrap();
    let unshare = ["-rpf", "--mount-proc", "--kill-child"];
    let mut probe = std::process::Command::new("unshare");
    if !probe.args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        return skipped("nobody may start a process 1 here");
    }
    assert!(feed(throttle(["--bucket", bucket, "--set", "-r", "1/h,initial=0"]), b"").status.success());
    let once: &[&str] = &["-q", "--bucket", bucket, "--once", "true"];
    let pipe: &[&str] = &["-r", "1/h"];
    let commands: &[&str] = &["-r", "unlimited", "-j", "2", "sleep", "100"];
    // Its server does not answer, so the run has not begun.
    let away: &[&str] = &["-r", "5/s", "--bucket", "redis://127.0.0.1:1/x", "--once", "true"];
    for (args, signal) in [
        (pipe, None),
        (pipe, Some(Signal::TERM)),
        (pipe, Some(Signal::HUP)),
        (pipe, Some(Signal::INT)),
        (commands, Some(Signal::TERM)),
        (once, Some(Signal::TERM)),
        (once, Some(Signal::HUP)),
        (&away[..4], Some(Signal::TERM)),
        (away, Some(Signal::INT)),
        (away, Some(Signal::QUIT)),
    ] {
        let mut command = std::process::Command::new("unshare");
        command.args(unshare).arg(THROTTLE).args(args);
        let mut running = Running::start(with_pipes(command));
        let mut stdin = running.stdin();
        stdin.write_all(b"1\n2\n").unwrap();
        if let Some(signal) = signal {
            let inner = child_of(running.pid());
            // Before its handlers stand, the signal is lost.
            let mut handled = || has_handler(inner, signal);
            wait_until("handlers", &mut handled);
            thread::sleep(Duration::from_millis(300));
            kill_process(inner, signal).unwrap();
        } else {
            let mut stdout = running.stdout();
            stdout.read_exact(&mut [0; 2]).unwrap();
        }
        let code = 128 + signal.map_or(13, Signal::as_raw);
        let output = running.finish();
        assert_eq!(output.code(), Some(code), "{args:?} {signal:?} {}", output.err);
    }
}

fn child_of(parent: u32) -> Pid {
    let mut child = None;
    wait_until("a child", || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        child = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().unwrap()));
        child.is_some()
    });
    child.unwrap()
}

fn has_handler(process: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}
