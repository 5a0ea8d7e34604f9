//! What is told of attempts, and of a run that too many failures end.

use super::{CURL, asked, scripted, summary};
use crate::common::{Lines, Running};
use crate::launching::{Ended, finish, numbers, throttle};
use crate::support::server::{Answer, Server};
use crate::support::terminal::Terminal;
use rustix::process::Signal;

#[test]
fn so_many_failures_end_the_run_and_what_runs_is_waited_for() {
    let script = "case $1 in 1) sleep 1; echo slow;; 2) exit 9;; 3|4) sleep 0.2; exit 1;; *) sleep 0.2;; esac; echo $1";
    let options = ["-j", "3", "--max-fail", "2", "--attempts", "2", "--backoff", "1h", "--retry-on", "9"];
    let ended = scripted(&options, script, &numbers(100));
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    let done = ended.sorted();
    assert!(done.ends_with(&["slow"]) && done.len() < 30, "{done:?}");
    for words in [
        "line 3 '3': the script exited 1\n",
        "line 4 '4': ",
        "line 2 '2': not tried again\n",
        "next line not started: ",
    ] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
    assert!(ended.err.contains(" ok, 2 failed, 1 not tried again; "), "{}", ended.err);
}

#[test]
fn a_share_of_failures_ends_the_run_once_twenty_have_ended() {
    for (most, expected) in [("25%", 20), ("100%", 40)] {
        let script = "[ $(($1 % 2)) = 1 ] || exit 1";
        let ended = scripted(&["-j", "1", "--max-fail", most, "--summary=json"], script, &numbers(40));
        let (commands, _) = summary(&ended);
        assert_eq!((ended.code(), &commands["started"]), (Some(123), &expected.into()), "{}", ended.err);
    }
    let few = scripted(&["-j", "1", "--max-fail", "1"], "exit 1", &numbers(9));
    assert!(few.err.contains("0 ok, 1 failed") && few.code() == Some(123), "{}", few.err);
}

#[test]
fn the_summary_counts_retries_waits_and_failures() {
    let server = Server::start(|request| match (&*request.path, request.visit) {
        ("/2", 1) => Answer::new(500),
        ("/3", 1) => Answer::new(429).with("Retry-After: 0.2"),
        ("/4", _) => Answer::new(404),
        _ => Answer::new(200),
    });
    let options = ["-r", "100/s", "-j", "1", "--attempts", "3", "--backoff", "1ms"];
    let ended = asked(&server, &options, &numbers(4));
    assert_eq!(ended.code(), Some(123));
    let sum = ended.err.lines().last().unwrap();
    let start = "throttle: 3 ok (2 after a retry), 1 failed, 1 told to wait (paused 2";
    assert!(sum.starts_with(start) && sum.contains(" ms); "), "{sum}");
    assert!(ended.err.contains("line 4 '4': the script exited 22\n"), "{}", ended.err);
    let json = asked(&server, &[&options[..], &["--summary=json"]].concat(), "5\n6\n");
    let (commands, _) = summary(&json);
    for field in ["ok_after_retry", "told_to_wait", "paused_ns", "to_be_tried_again", "not_tried_again", "done_before"]
    {
        assert_eq!(commands[field], 0, "{field}");
    }
}

/// Fields of the summary, in milliseconds.
fn times(ended: &Ended, fields: [&str; 4]) -> [u64; 4] {
    let json = ended.err.lines().find(|line| line.starts_with('{')).expect(&ended.err);
    let json: serde_json::Value = serde_json::from_str(json).expect(json);
    fields.map(|field| json[field].as_u64().or(json["commands"][field].as_u64()).unwrap() / 1_000_000)
}

const TIMES: [&str; 4] = ["elapsed_ns", "waited_for_source_ns", "waited_for_limits_ns", "paused_ns"];

#[test]
fn the_time_of_a_command_is_no_wait_for_input() {
    let ended = scripted(&["--attempts", "2", "--summary=json"], "sleep 2", "1\n");
    let [elapsed, source, ..] = times(&ended, TIMES);
    assert!(elapsed >= 2000 && source < elapsed / 2, "{}", ended.err);
}

#[test]
fn a_pause_is_no_wait_for_the_limits_and_lasts_no_longer_than_the_run() {
    let ask = "[ $THROTTLE_ATTEMPT$1 != 11 ] || { sleep 0.3; echo retry-after: $AFTER > \"$THROTTLE_REPLY\"; exit 1; }";
    let run = |after: &str, script: String| {
        let mut command = throttle(["-r", "10/s", "-b", "2", "--attempts", "1", "--summary=json", "-c", &*script]);
        finish(std::mem::replace(command.env("AFTER", after), throttle([""; 0])), "1\n2\n")
    };
    let ended = run("2", ask.to_owned());
    let [elapsed, _, limits, paused] = times(&ended, TIMES);
    assert!(elapsed >= 2000 && limits < 1500 && paused == 2000, "{}", ended.err);
    let ended = run("100", format!("{ask}; sleep 1; exit 255"));
    let [elapsed, .., paused] = times(&ended, TIMES);
    assert!(ended.code() == Some(124) && paused > 0 && paused <= elapsed, "{}", ended.err);
}

#[test]
fn the_bar_says_that_a_server_asked_to_wait() {
    let server = Server::start(|request| match request.visit {
        1 => Answer::new(429).with("Retry-After: 3"),
        _ => Answer::new(200),
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("units"), "1\n").unwrap();
    let terminal = Terminal::new(120);
    let mut command = terminal.command(env!("CARGO_BIN_EXE_throttle"));
    command.args(["-r", "5/s", "--attempts", "1", "--progress=always", "-a"]).arg(folder.path().join("units"));
    command.args(["-c", CURL]).env("URL", server.url());
    command.env("no_proxy", "*");
    let mut child = command.spawn().unwrap();
    terminal.wait_for("the pause", |row| row.contains("told to wait, next in "));
    assert!(child.wait().unwrap().success());
    assert!(terminal.at_rest().iter().any(|row| row.contains("1 told to wait (paused 3")), "{:#?}", terminal.rows());
}

#[test]
fn the_pause_of_one_key_is_not_said_to_be_one_of_all() {
    let script = "[ $1 = b ] && exec sleep 60; echo 'retry-after: 3600' >> \"$THROTTLE_REPLY\"; exit 1";
    let args = ["-r", "9/s,per=f1", "--attempts", "2", "--max-pause", "2h", "-c", script];
    let mut running = Running::start(throttle(args));
    let said = Lines::of(running.stderr());
    running.write(b"a\nb\n");
    let told = said.next();
    assert!(told.contains("'a' asked to wait: nothing of it starts for 1h"), "{told}");
    running.signal(Signal::USR1);
    let status = said.next();
    assert!(status.contains(" of 16 slots busy") && !status.contains("paused until"), "{status}");
    running.signal(Signal::TERM);
    running.signal(Signal::TERM);
    assert!(!running.end().success());
}
