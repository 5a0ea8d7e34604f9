//! How launch mode ends, through the real program: exit codes, messages, timeouts and signals.

use crate::support::*;
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn each_end_has_its_exit_code_and_the_worst_one_wins() {
    let script =
        "case $1 in ok) ;; fail) exit 7;; stop) sleep 0.3; exit 255;; killed) kill -TERM $$;; late) sleep 30;; esac";
    let late = ["late"];
    for (units, code) in [
        (&["ok"][..], 0),
        (&["ok", "fail"], 123),
        (&late, 123),
        (&["fail", "stop"], 124),
        (&["fail", "stop", "killed"], 125),
        (&["killed", "fail"], 125),
        (&["killed", "nul\0"], 126),
    ] {
        let timeout = if units == late { "300ms" } else { "60s" };
        let ended = run(["-qk", "-r", "unlimited", "--timeout", timeout, "-c", script], units.join("\n"));
        assert_eq!((ended.code(), &*ended.err), (Some(code), ""), "{units:?}");
    }
    for (units, code) in [("false\nno-such-command\n\0\n", 127), ("false\n/dev/null\n", 126)] {
        let command = with_public_path(throttle(["-q", "-r", "unlimited", "{}"]));
        assert_eq!(feed(command, units).code(), Some(code), "{units:?}");
    }
    let own_error = run(["-r", "unlimited", "-a", "/no/such/file", "echo"], "");
    assert_eq!(own_error.code(), Some(1));
    assert!(own_error.err.contains("--arg-file: cannot open /no/such/file"), "{}", own_error.err);
}

#[test]
fn a_failed_unit_is_named_and_the_sum_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let curl = folder.path().join("curl");
    fs::write(&curl, "#!/bin/sh\ncase $1 in *bad) exit 22;; *slow) sleep 30;; *killed) kill -9 $$;; esac\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&curl).status().unwrap().success());
    let input = "https://good\nhttps://bad\n\n\nhttps://slow\nhttps://killed\n\u{1b}[31m\n";
    let ended = run(["-r", "10/s", "-r", "1000/h", "--timeout", "500ms", curl.to_str().unwrap()], input);
    let lines: Vec<&str> = ended.err.lines().collect();
    let (sum, named) = lines.split_last().unwrap();
    for expected in [
        "throttle: line 2 'https://bad': curl exited 22",
        "throttle: line 5 'https://slow': timed out",
        "throttle: line 6 'https://killed': killed by SIGKILL",
    ] {
        assert!(named.contains(&expected), "{}", ended.err);
    }
    assert_eq!(named.len(), 3);
    let (counts, rest) = sum.split_once("; ").unwrap();
    assert_eq!(counts, "throttle: 2 ok, 3 failed (1 timed out), 2 blank lines skipped");
    let time = rest.strip_suffix(" (limit 10/s and 1000/h)").unwrap();
    let (number, unit) = time.split_once(' ').unwrap();
    let number: f64 = number.parse().unwrap();
    assert!(unit == "ms" && number >= 700.0 || unit == "s" && number >= 1.0, "{sum}");
}

#[test]
fn a_command_that_is_the_unit_is_reported_by_its_own_name() {
    for (args, units, name) in [
        (&["{}"][..], "/bin/false\n", "false"),
        (&["/bin/fal{}"], "se\n", "false"),
        (&["-n2", "{}"], "false\nx\n", "false"),
    ] {
        let ended = run([&["-r", "unlimited"], args].concat(), units);
        assert!(ended.err.contains(&format!("': {name} exited 1\n")), "{args:?}: {}", ended.err);
    }
}

#[test]
fn a_script_that_does_not_name_its_interpreter_gets_advice() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "echo\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&script).status().unwrap().success());
    let ended = run(["-r", "9/s", script.to_str().unwrap()], "1\n");
    let words = "Exec format error (os error 8); a script needs a first line like #!/bin/sh, or run it with sh\n";
    assert!(ended.code() == Some(126) && ended.err.contains(words), "{}", ended.err);
}

#[test]
fn the_limits_of_a_bucket_are_reported_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let bucket = bucket.to_str().unwrap();
    assert_eq!(run(["--bucket", bucket, "--set", "-r", "50/s", "-r", "900/h"], "").code(), Some(0));
    let ended = run(["--bucket", bucket, "false"], "1\n");
    assert!(ended.err.ends_with("s (limit 50/s,burst=1 and 900/h,window,slack=250ms)\n"), "{}", ended.err);
}

/// A success prints nothing: cron would mail it.
#[test]
fn a_success_is_silent_unless_a_summary_was_asked_for() {
    for args in [&["true"][..], &["-k", "true"], &["-n2", "true"], &["--summary=json:/dev/null", "true"]] {
        assert_eq!(run([&["-r", "1000/s"], args].concat(), "1\n\n2\n").err, "", "{args:?}");
    }
    let message = run(["-r", "1000/s", "--summary", "true"], numbers(2)).err;
    assert!(message.starts_with("throttle: 2 ok, 0 failed; ") && message.contains("waited "), "{message}");
    let message = run(["-r", "1000/s", "--summary=json", "true"], numbers(2)).err;
    let message: serde_json::Value = serde_json::from_str(&message).expect(&message);
    assert_eq!(message["commands"]["ok"], 2);
}

/// Without a terminal, standard error may be a file from which the units are run again.
#[test]
fn all_failed_units_are_named_if_standard_error_is_no_terminal() {
    let ended = run(["-r", "unlimited", "-b5", "false"], "");
    assert_eq!(ended.code(), Some(2), "unlimited has no burst");
    let ended = run(["-r", "1000/s", "false"], numbers(25));
    let mut lines: Vec<&str> = ended.err.lines().collect();
    let sum = lines.pop().unwrap();
    lines.sort_unstable();
    let mut expected: Vec<String> = (1..=25).map(|n| format!("throttle: line {n} '{n}': false exited 1")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert!(sum.starts_with("throttle: 0 ok, 25 failed; "), "{sum}");
    assert_eq!(run(["-q", "-r", "1000/s", "false"], numbers(25)).err, "");
}

/// The number is that of the line in the input, whatever is skipped, and all that a command was given are named.
#[test]
fn each_unit_of_a_command_is_named_by_its_line() {
    let ended = run(["-r", "1000/s", "-j1", "-n", "2", "false"], "a\n\nb\n\n\nc\n");
    let lines: Vec<&str> = ended.err.lines().take(3).collect();
    assert_eq!(
        lines,
        ["a", "b", "c"]
            .iter()
            .zip([1, 3, 6])
            .map(|(unit, line)| format!("throttle: line {line} '{unit}': false exited 1"))
            .collect::<Vec<_>>()
    );
    let ended = run(["-r", "1000/s", "-0", "false"], "a\0\0");
    for words in ["record 1 'a': false", "record 2 '': false"] {
        assert!(ended.err.contains(words), "{}", ended.err);
    }
    let ended = run(["-r", "1000/s", "-n2", "echo"], "a\nb\0\n");
    let why = "not run, because a unit of its command has a NUL byte, which no argument can hold; use --stdin";
    assert!(
        ended.err.starts_with(&format!("throttle: line 1 'a': {why}\nthrottle: line 2 'b\\u{{0}}': {why}\n")),
        "{}",
        ended.err
    );
    let ended = run(["-r", "1000/s", "-n", "10000", "--stdin", "false"], numbers(9000));
    assert!(ended.err.starts_with("throttle: line 1 '1': false exited 1\nthrottle: line 2 "), "{}", ended.err);
    let rest = ended.err.lines().rev().nth(1).unwrap();
    let named = ended.err.lines().count() - 2;
    assert_eq!(rest, format!("throttle: lines {} to 9000: false exited 1", named + 1));
}

/// The run waits for running commands. It starts no others, and names the next unit.
#[test]
fn an_exit_of_255_means_stop() {
    let script = "echo $1; case $1 in 1) sleep 1.2; echo 1;; 3) exit 255;; esac";
    let ended = run(["-r", "4/s", "-c", script], numbers(100));
    assert_eq!((ended.sorted(), ended.code()), (vec!["1", "1", "2", "3"], Some(124)));
    let message = "throttle: line 3 '3': the script exited 255, which means stop; to continue after it: \
         --attempts 2 --retry-on 255, or -c '… || exit 1'\n";
    assert!(ended.err.starts_with(message), "{}", ended.err);
    assert!(ended.err.contains("2 ok, 1 failed; "), "{}", ended.err);
    assert!(ended.err.ends_with("s (limit 4/s); next line not started: 4 '4'\n"), "{}", ended.err);
}

/// Units that wait for more to make up a command were read, too.
#[test]
fn what_was_read_for_a_command_that_is_not_full_is_named() {
    let mut child = throttle(["-r", "100/s", "-n", "2", "echo"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"1\n2\nthird\n").unwrap();
    let mut line = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    thread::sleep(Duration::from_millis(300));
    let started = Running::read(child);
    started.signal(Signal::TERM);
    let ended = started.finish();
    let message = "throttle: interrupted: 2 ok, 0 stopped, next line not started: 3 'third'\n";
    assert_eq!((&line, ended.signal(), &*ended.err), (b"1 2\n", Some(15), message));
}

/// Reading the controlling side of a terminal fails once nobody has the other open.
#[test]
fn what_was_read_before_reading_failed_is_named() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    fs::OpenOptions::new().write(true).open(name).unwrap().write_all(b"first;second;").unwrap();
    let mut command = throttle(["-r", "100/s", "-n", "3", "-d", ";", "echo"]);
    let ended = Running::read(command.stdin(terminal).spawn().unwrap()).finish();
    assert_eq!((ended.code(), ended.text()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.contains("next record not started: 1 'first'\n"), "{}", ended.err);
    assert!(ended.err.contains("cannot read standard input"), "{}", ended.err);
}

/// A command that writes the numbers of its processes: `leader`, and `member`, which it waits for and which does `$then`.
fn family(then: &str) -> String {
    format!(
        "(sh -c 'trap \"\" {then}; echo $$ > member.'$1'; while :; do sleep 0.1; done') & echo $$ > leader.$1; wait"
    )
}

fn members(folder: &Path, units: &[u32]) -> Vec<u32> {
    let names = units.iter().flat_map(|unit| [format!("leader.{unit}"), format!("member.{unit}")]);
    names.map(|name| number_in(&folder.join(name))).collect()
}

fn all_are_gone(pids: &[u32]) -> bool {
    pids.iter().all(|pid| !is_alive(*pid))
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "slow: a release does not shorten waits")]
fn a_timeout_ends_the_group_and_kills_after_the_grace_period() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut command = throttle(["-r", "unlimited", "-j2", "--timeout", "500ms", "-c", &family("TERM")]);
    command.current_dir(&folder).env("THROTTLE_TEST_SHORTER_WAITS", "10");
    let ended = feed(command, "1\n");
    assert!(all_are_gone(&members(folder.path(), &[1])));
    assert!(begun.elapsed() >= Duration::from_secs(1), "KILL comes a tenth of 5 s after TERM");
    assert_eq!(ended.code(), Some(123));
    assert!(ended.err.starts_with("throttle: line 1 '1': timed out\n"), "{}", ended.err);
    assert!(ended.err.contains("0 ok, 1 failed (1 timed out); "), "{}", ended.err);
}

#[test]
#[ignore = "slow: 2 s"]
fn a_command_may_end_in_order_when_its_time_is_over() {
    let begun = Instant::now();
    // The shell has two seconds until it has to wait for the signal.
    let script = "trap 'echo ended; exit 0' TERM; while :; do sleep 0.05; done";
    let ended = run(["-r", "unlimited", "--repeat", "1", "--timeout", "2s", "-c", script], "");
    assert_eq!((ended.text(), ended.code()), ("ended\n", Some(123)));
    assert!(begun.elapsed() < Duration::from_secs(7), "KILL would come 5 s after TERM");
}

/// Runs `script` for endless units, two at once, with a folder of its own.
fn started(folder: &Path, options: &[&str], script: &str) -> Running {
    let args = [options, &["-r", "100/s", "--repeat", "inf", "--", "sh", "-c", script, "sh", "{}"]].concat();
    // With {} as an argument of the script it is $1, as with -c.
    let mut command = throttle(args);
    command.stdin(Stdio::null()).current_dir(folder);
    Running::read(command.spawn().unwrap())
}

#[test]
fn a_signal_is_passed_on_to_the_groups_waited_for_and_died_of() {
    for (signal, options) in [
        (Signal::INT, &["-j2"][..]),
        (Signal::TERM, &["-j2"]),
        (Signal::HUP, &["-j2", "-u"]),
        (Signal::HUP, &["-j2", "--line-buffer"]),
        (Signal::TERM, &["-j2", "-k"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        // A shell's background command ignores INT and QUIT; this one ends with its leader.
        let script = "trap 'echo got; kill $! 2> /dev/null; exit 0' INT QUIT HUP TERM; sh -c 'echo $$ > member.'$1'; exec sleep 100' & echo $$ > leader.$1; wait";
        let run = started(folder.path(), options, script);
        let pids = members(folder.path(), &[1, 2]);
        run.signal(signal);
        let ended = run.finish();
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{}", ended.err);
        assert!(all_are_gone(&pids));
        assert_eq!(ended.text(), "got\ngot\n", "{signal:?}");
        assert_eq!(ended.err, "throttle: interrupted: 2 ok, 0 stopped, next unit not started: 3 '3'\n");
    }
}

/// Nothing more starts, and what runs finishes: after QUIT, and after --stop-after.
#[test]
#[ignore = "slow: 5 s"]
fn a_run_that_is_to_stop_lets_what_runs_finish() {
    let script = "echo $$ > leader.$1; until [ -e go ]; do sleep 0.01; done; echo $1";
    for options in [&["-j2"][..], &["-j2", "--stop-after", "1s"]] {
        let folder = tempfile::tempdir().unwrap();
        let run = started(folder.path(), options, script);
        for unit in 1..=2 {
            number_in(&folder.path().join(format!("leader.{unit}")));
        }
        if options.len() == 1 {
            run.signal(Signal::QUIT);
        }
        thread::sleep(Duration::from_millis(2500));
        fs::write(folder.path().join("go"), "").unwrap();
        let ended = run.finish();
        let mut lines: Vec<&str> = ended.text().lines().collect();
        lines.sort_unstable();
        assert_eq!((ended.code(), &lines[..]), (Some(75), &["1", "2"][..]), "{}", ended.err);
        assert!(ended.err.contains("waiting for 2 commands; Ctrl-C ends them"), "{}", ended.err);
        assert!(
            ended.err.contains("2 ok, 0 failed") && ended.err.ends_with("next unit not started: 3 '3'\n"),
            "{}",
            ended.err
        );
    }
}

#[test]
#[ignore = "slow: 5 s"]
fn a_run_that_had_nothing_left_to_start_ends_as_its_units_did() {
    let (folder, script) = (tempfile::tempdir().unwrap(), "until [ -e go ]; do sleep 0.01; done; exit $1");
    let again = &["--attempts", "2"][..];
    let of_keys = &["-r", "100/s,per=f1", "--attempts", "2", "--done", "seen"][..];
    let of_a_bucket = &["-r", "100/s,per=f1,fails=3", "--bucket", "./bucket"][..];
    for (options, unit, code) in [
        (&[][..], "0", 0),
        (&[], "3", 123),
        (again, "0", 0),
        // It would have been tried again.
        (again, "3", 75),
        (of_keys, "0", 0),
        (of_a_bucket, "0", 0),
    ] {
        let mut command = throttle([&["-r", "200/s", "-j2"], options, &["-c", script]].concat());
        let mut child = command.current_dir(&folder).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(unit.as_bytes()).unwrap();
        let run = Running::read(child);
        thread::sleep(Duration::from_millis(700));
        run.signal(Signal::QUIT);
        thread::sleep(Duration::from_millis(200));
        fs::write(folder.path().join("go"), "").unwrap();
        let ended = run.finish();
        assert_eq!(ended.code(), Some(code), "{}", ended.err);
        fs::remove_file(folder.path().join("go")).unwrap();
    }
}

/// A later signal ends the commands that were to finish.
#[test]
fn a_run_that_is_to_stop_can_still_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let run = started(folder.path(), &["-j2"], "echo $$ > leader.$1; exec sleep 100");
    for unit in 1..=2 {
        number_in(&folder.path().join(format!("leader.{unit}")));
    }
    run.signal(Signal::QUIT);
    thread::sleep(Duration::from_millis(200));
    run.signal(Signal::INT);
    let ended = run.finish();
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()), "{}", ended.err);
    assert!(ended.err.contains("0 ok, 2 stopped"), "{}", ended.err);
}

#[test]
fn those_that_a_signal_ends_are_named_and_counted_as_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let run = started(folder.path(), &["-j3"], "if [ $1 = 1 ]; then exit 3; fi; echo $$ > leader.$1; exec sleep 100");
    for unit in 2..=4 {
        number_in(&folder.path().join(format!("leader.{unit}")));
    }
    run.signal(Signal::TERM);
    let ended = run.finish();
    assert_eq!(ended.signal(), Some(15));
    let mut lines: Vec<&str> = ended.err.lines().collect();
    lines[1..4].sort_unstable();
    let expected = [
        "throttle: unit 1 '1': sh exited 3",
        "throttle: unit 2 '2': stopped",
        "throttle: unit 3 '3': stopped",
        "throttle: unit 4 '4': stopped",
        "throttle: interrupted: 0 ok, 1 failed, 3 stopped, next unit not started: 5 '5'",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_second_signal_kills_commands_that_ignore_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("trap '' TERM; {}", family("TERM"));
    let mut run = started(folder.path(), &["-j2"], &script);
    let pids = members(folder.path(), &[1, 2]);
    run.signal(Signal::TERM);
    thread::sleep(Duration::from_millis(1700));
    assert!(run.is_running() && pids.iter().all(|pid| is_alive(*pid)), "they are waited for");
    assert!(!folder.path().join("leader.3").exists(), "nothing more is launched");
    run.signal(Signal::TERM);
    let ended = run.finish();
    assert_eq!(ended.signal(), Some(15), "{}", ended.err);
    assert!(ended.err.starts_with("throttle: waiting for 2 commands; again to kill them\n"), "{}", ended.err);
    assert!(all_are_gone(&pids));
}

/// A leader that obeys does not leave the rest of its group behind.
#[test]
fn an_orphan_that_ignores_a_signal_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = started(folder.path(), &["-j1", "--timeout", "1h"], &family("TERM"));
    let pids = members(folder.path(), &[1]);
    run.signal(Signal::TERM);
    wait_until("the leader is gone", || !is_alive(pids[0]));
    thread::sleep(Duration::from_millis(1500));
    assert!(run.is_running() && is_alive(pids[1]));
    run.signal(Signal::TERM);
    assert_eq!(run.finish().signal(), Some(15));
    assert!(all_are_gone(&pids));
}

#[test]
fn a_timeout_beyond_the_range_of_the_clock_is_none() {
    let ended = run(["-r", "unlimited", "--timeout", "9223372036854775807", "echo"], "a\n");
    assert_eq!((ended.code(), ended.text()), (Some(0), "a\n"), "{}", ended.err);
}

/// Some daemons start programs with SIGCHLD ignored.
#[test]
fn started_with_the_ends_of_children_ignored_it_learns_of_them() {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", THROTTLE, "-r", "unlimited", "-k", "echo"]);
    let ended = feed(with_pipes(command), numbers(3));
    assert_eq!((ended.code(), ended.text()), (Some(0), "1\n2\n3\n"), "{}", ended.err);
}

#[test]
fn the_first_signal_after_an_exit_of_255_does_not_kill() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $1 = 2 ]; then until [ -e leader.1 ]; do sleep 0.02; done; exit 255; fi; \
                  trap 'echo ended; kill $! 2> /dev/null; exit 0' TERM; sh -c 'echo $$ > member.'$1'; exec sleep 100' & echo $$ > leader.1; wait";
    let mut run = started(folder.path(), &["-j2"], script);
    members(folder.path(), &[1]);
    thread::sleep(Duration::from_millis(500));
    assert!(run.is_running());
    run.signal(Signal::TERM);
    let ended = run.finish();
    assert_eq!((ended.signal(), ended.text()), (Some(15), "ended\n"), "{}", ended.err);
}

/// A reader that is gone is noticed at the next write; then running commands are ended.
#[test]
fn when_the_reader_is_gone_what_runs_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $1 = 2 ]; then until [ -e gone ]; do sleep 0.02; done; echo; exit; fi; \
                  sh -c 'echo $$ > member.'$1'; exec sleep 100' & echo $$ > leader.1; wait";
    let mut command = throttle(["-j2", "-r", "100/s", "--repeat", "9", "sh", "-c", script, "sh"]);
    command.arg("{}").current_dir(&folder);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let pids = members(folder.path(), &[1]);
    fs::write(folder.path().join("gone"), "").unwrap();
    let ended = Running::read(child).finish();
    assert_eq!(ended.signal(), Some(13));
    assert!(all_are_gone(&pids));
    let message = "throttle: the reader of the output is gone: 0 ok, 2 stopped, next unit not started: 3 '3'\n";
    assert_eq!(ended.err, message);
}

/// At 20/s two seconds are forty units; they are not made up for.
#[test]
#[ignore = "slow: 3 s"]
fn stopped_time_stops_the_commands_and_makes_no_burst() {
    let folder = tempfile::tempdir().unwrap();
    // The command looked at starts nothing itself: a process that waits for the start of a stopped one has no state T.
    let script = "if [ $1 = 1 ]; then echo $$ > leader.1; read go < go; else date +%s%N; fi; \
                  if [ $1 = 30 ]; then exit 255; fi";
    assert!(Command::new("mkfifo").arg(folder.path().join("go")).status().unwrap().success());
    let args = ["-q", "-r", "20/s", "--repeat", "inf", "sh", "-c", script, "sh", "{}"];
    let mut command = throttle(args);
    command.current_dir(&folder).stdin(Stdio::null());
    let run = Running::read(command.spawn().unwrap());
    let leader = number_in(&folder.path().join("leader.1"));
    // It may run before we know that it does.
    thread::sleep(Duration::from_millis(300));
    run.signal(Signal::TSTP);
    let (own, stopped) = (run.pid(), Some('T'));
    wait_until("both are stopped", || state_of(own) == stopped && state_of(leader) == stopped);
    thread::sleep(Duration::from_secs(2));
    run.signal(Signal::CONT);
    wait_until("both go on", || state_of(own) != stopped && state_of(leader) != stopped);
    fs::write(folder.path().join("go"), "go\n").unwrap();
    let ended = run.finish();
    assert_eq!(ended.code(), Some(124), "{}", ended.err);
    let starts: Vec<u64> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
    assert!(starts.len() >= 29);
    assert_spaced(&starts, Duration::from_millis(50), Duration::from_millis(300));
}

#[test]
fn usr1_writes_the_status_line_and_nothing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $1 = 2 ]; then echo $$ > leader.2; until [ -e go ]; do sleep 0.02; done; exit 255; fi";
    let run = started(folder.path(), &["-q", "-j1"], script);
    number_in(&folder.path().join("leader.2"));
    run.signal(Signal::USR1);
    thread::sleep(Duration::from_millis(300));
    fs::write(folder.path().join("go"), "").unwrap();
    let ended = run.finish();
    assert_eq!(ended.code(), Some(124));
    assert!(ended.err.starts_with("throttle: 2 started, 1 running, 1 ok in "), "{}", ended.err);
    assert!(ended.err.contains("/s; 1 of 1 slot busy"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1);
}

/// Runs `command` on a terminal of its own with script(1); returns what was shown there. `None` if script is missing.
fn on_a_terminal(command: &str, folder: &Path) -> Option<String> {
    let mut script = Command::new("script");
    script.args(["-qec", command, "/dev/null"]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    script.env("TERM", "xterm");
    let Ok(mut child) = script.stderr(Stdio::piped()).spawn() else {
        skipped("no script(1) of bsdutils here");
        return None;
    };
    let stdin = child.stdin.take();
    let ended = Running::read(child).finish();
    drop(stdin);
    Some(String::from_utf8_lossy(&ended.out).into_owned())
}

#[test]
fn a_command_that_wants_the_terminal_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = THROTTLE;
    let wanting =
        format!("{throttle} -j2 -r 20/s --repeat 3 -- sh -c 'if [ $1 = 2 ]; then read x < /dev/tty; fi' sh {{}}");
    let Some(seen) = on_a_terminal(&wanting, folder.path()) else { return };
    assert!(seen.contains("unit 2 '2': wanted the terminal; to let it use the terminal, write -j 1"), "{seen}");
    assert!(seen.contains("2 ok, 1 failed; "), "{seen}");
}

/// With -j 1 given already, the message does not suggest it.
#[test]
fn the_message_says_how_a_command_gets_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    for (how, words) in [
        ("-j1 --timeout 9", "wanted the terminal; to let it use the terminal leave --timeout out"),
        ("--timeout 9", "wanted the terminal; to let it use the terminal, write -j 1 and leave --timeout out"),
    ] {
        let run = format!("{THROTTLE} {how} -r 20/s --repeat 1 -c 'cat /dev/tty'");
        let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
        assert!(seen.contains(words), "{seen}");
    }
}

#[test]
fn alone_a_command_may_use_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = THROTTLE;
    let asking =
        format!("{throttle} -j1 -r 20/s --repeat 2 -c 'stty -a < /dev/tty > /dev/null && echo it works > /dev/tty'");
    let Some(seen) = on_a_terminal(&asking, folder.path()) else { return };
    assert!(seen.matches("it works").count() == 2 && seen.contains("2 ok, 0 failed; "), "{seen}");
}

/// There it is in our own group, which is not ours to end.
#[test]
fn alone_on_a_terminal_a_command_is_ended_with_all_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = THROTTLE;
    let command = "sh -c '\\''trap \"\" HUP; echo $$ > member.1; exec sleep 100'\\''; echo on";
    let run = format!("echo $$ > own; exec {throttle} -j1 -r 20/s --repeat 1 -c '{command}'");
    let at = folder.path().to_owned();
    let killer = thread::spawn(move || {
        let member = number_in(&at.join("member.1"));
        kill(number_in(&at.join("own")), Signal::TERM);
        member
    });
    let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
    let member = killer.join().unwrap();
    wait_until("it is gone", || !is_alive(member));
    assert!(seen.contains("interrupted: 0 ok, 1 stopped"), "{seen}");
}

/// There the command is in our own group. A process that ignores the signal is found as a child of the command.
#[test]
fn alone_on_a_terminal_the_second_signal_kills_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = THROTTLE;
    // The terminal's end is no end for it.
    fs::write(folder.path().join("command"), family("TERM HUP")).unwrap();
    let run = format!("echo $$ > own; exec {throttle} -q -j1 -r 20/s --repeat 1 -- sh ./command {{}}");
    let at = folder.path().to_owned();
    let killer = thread::spawn(move || {
        let pids = members(&at, &[1]);
        let own = number_in(&at.join("own"));
        kill(own, Signal::TERM);
        wait_until("the leader is gone", || !is_alive(pids[0]));
        thread::sleep(Duration::from_millis(500));
        let is_waited_for = is_alive(pids[1]) && is_alive(own);
        kill(own, Signal::TERM);
        (is_waited_for, pids)
    });
    let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
    let (is_waited_for, pids) = killer.join().unwrap();
    assert!(is_waited_for, "{seen}");
    wait_until("they are gone", || all_are_gone(&pids));
}

/// Each stream is asked for itself whether it is a terminal.
#[test]
fn a_tag_on_a_terminal_has_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("units"), "\u{1b}[31mred\n").unwrap();
    let tagged = format!("{THROTTLE} -q -r 20/s --tag -a units -c");
    let run = |rest: &str| on_a_terminal(&format!("{tagged} {rest}"), folder.path());
    let Some(seen) = run("'echo x'") else { return };
    assert!(seen.starts_with("\\u{1b}[31mred\tx"), "{seen:?}");
    let seen = run("'echo x; echo y >&2' > out").unwrap();
    assert!(seen.starts_with("\\u{1b}[31mred\ty"), "{seen:?}");
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "\u{1b}[31mred\tx\n");
    let seen = run("'echo x; echo y >&2' 2> err").unwrap();
    assert!(seen.starts_with("\\u{1b}[31mred\tx"), "{seen:?}");
    assert_eq!(fs::read_to_string(folder.path().join("err")).unwrap(), "\u{1b}[31mred\ty\n");
}

#[test]
fn a_long_tag_is_whole_on_a_terminal_too() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("https://example.org/{}", "long/".repeat(30));
    fs::write(folder.path().join("units"), format!("{address}1\n{address}2\n")).unwrap();
    let run = format!("{THROTTLE} -qk -r 20/s --tag -a units -c 'echo x'");
    let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
    assert_eq!(seen, format!("{address}1\tx\r\n{address}2\tx\r\n"));
}

#[test]
fn a_dry_run_on_a_terminal_has_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("units"), "\u{1b}[31mred\n").unwrap();
    let throttle = THROTTLE;
    let Some(seen) = on_a_terminal(&format!("{throttle} -r 20/s --dry-run -a units echo"), folder.path()) else {
        return;
    };
    assert!(seen.starts_with("echo $'\\033[31mred'  # 0 s"), "{seen:?}");
}

#[test]
fn a_trace_on_a_terminal_does_nothing_to_it_and_can_be_pasted() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("units"), "\u{1b}[31m it's\t\n").unwrap();
    let run = format!("{THROTTLE} -qt -r 20/s -a units printf %s > out");
    let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
    assert_eq!(seen, "printf '%s' $'\\033[31m it\\'s\\t'\r\n");
    let pasted = Command::new("bash").args(["-c", &seen.replace('\r', "")]).output().unwrap();
    assert_eq!(pasted.stdout, fs::read(folder.path().join("out")).unwrap());
}

/// Erasing the bar erases its whole row.
#[test]
fn beside_a_bar_output_without_a_last_end_of_line_stays() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = THROTTLE;
    let run = format!("{throttle} -q --progress always -r 8/s --repeat 5 printf 'abc%s' {{}}");
    let Some(seen) = on_a_terminal(&run, folder.path()) else { return };
    assert!(seen.contains("abc4\r\n") && seen.contains("abc5\r\n"), "{seen:?}");
    on_a_terminal(&format!("{} > out", run.replace("-q", "-qk")), folder.path());
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "abc1abc2abc3abc4abc5");
}

/// 50 units had failed. The last line of the log counted units, and everything else commands.
#[test]
fn several_units_of_a_command_count_as_units_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-r", "unlimited", "-j1", "-n", "10", "--max-fail", "5", "--log", "tries"];
    let script = "case $1 in 1) ;; *) exit 1;; esac";
    let mut command = throttle(options.iter().chain(&["--summary=json:sum", "-c", script]));
    command.current_dir(&folder);
    let ended = feed(command, numbers(100));
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    assert!(ended.err.contains("throttle: 10 ok, 10 failed; "), "{}", ended.err);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let sum: serde_json::Value = serde_json::from_str(&read("sum")).unwrap();
    let counts = ["started", "ok", "failed"].map(|name| sum["commands"][name].as_u64());
    assert_eq!(counts, [Some(2), Some(10), Some(10)]);
    let last: serde_json::Value = serde_json::from_str(read("tries").lines().last().unwrap()).unwrap();
    let totals = ["units", "attempts", "ok", "failed"].map(|name| last["run"][name].as_u64());
    assert_eq!(totals, [Some(20), Some(2), Some(10), Some(10)]);
    let mut command = throttle(["--plot", "tries"]);
    command.current_dir(&folder);
    let page = feed(command, "").into_text();
    for tile in ["<dt>units</dt><dd>20<", "<dt>ok</dt><dd>10<", "<dt>failed</dt><dd>10<", "<dt>attempts</dt><dd>2<"] {
        assert!(page.contains(tile), "{tile}");
    }
}
