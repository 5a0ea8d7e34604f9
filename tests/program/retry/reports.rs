//! Summaries, the status and the bar of runs with attempts; and `--max-fail`.

use crate::support::retries::{CURL, attempts, summary};
use crate::support::server::{Answer, Server};
use crate::support::terminal::Terminal;
use crate::support::{Ended, Lines, Running, THROTTLE, numbers, run};
use rustix::process::Signal;

#[test]
fn max_fail_ends_the_run_and_waits_for_running_commands() {
    let script = "case $1 in 1) sleep 1; echo slow;; 2) exit 9;; 3|4) sleep 0.2; exit 1;; *) sleep 0.2;; esac; echo $1";
    let retries = attempts(2).jobs(3).backoff("1h").options(&["--max-fail", "2", "--retry-on", "9"]);
    let ended = retries.script(script).run(numbers(100));
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
        let ended = run(["-r", "unlimited", "-j1", "--max-fail", most, "--summary=json", "-c", script], numbers(40));
        let commands = summary(&ended);
        assert_eq!((ended.code(), &commands["started"]), (Some(123), &expected.into()), "{}", ended.err);
    }
    let few = run(["-r", "unlimited", "-j1", "--max-fail", "1", "-c", "exit 1"], numbers(9));
    assert!(few.err.contains("0 ok, 1 failed") && few.code() == Some(123), "{}", few.err);
}

#[test]
fn the_summary_counts_retries_waits_and_failures() {
    let server = Server::that_answers()
        .page("/2", [Answer::new(500)])
        .page("/3", [Answer::later("0.2")])
        .always("/4", Answer::new(404))
        .start();
    let retries = || attempts(3).rate("100/s").jobs(1).backoff("1ms").requests(&server);
    let ended = retries().run(numbers(4));
    assert_eq!(ended.code(), Some(123));
    let sum = ended.err.lines().last().unwrap();
    let start = "throttle: 3 ok (2 after a retry), 1 failed, 1 told to wait (paused 2";
    assert!(sum.starts_with(start) && sum.contains(" ms); "), "{sum}");
    assert!(ended.err.contains("line 4 '4': the script exited 22\n"), "{}", ended.err);
    let commands = summary(&retries().summary().run("5\n6\n"));
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
#[ignore = "slow: 2 s"]
fn the_time_of_a_command_is_no_wait_for_input() {
    let ended = attempts(2).summary().script("sleep 2").run("1\n");
    let [elapsed, source, ..] = times(&ended, TIMES);
    assert!(elapsed >= 2000 && source < elapsed / 2, "{}", ended.err);
}

#[test]
#[ignore = "slow: 6 s"]
fn a_pause_is_no_wait_for_limits_and_ends_with_the_run() {
    let ask = "[ $THROTTLE_ATTEMPT$1 != 11 ] || { sleep 0.3; echo retry-after: $AFTER > \"$THROTTLE_REPLY\"; exit 1; }";
    let run = |options: &[&str], after: &str, script: &str| {
        let retries = attempts(1).options(options).options(&["-b", "2"]).summary().variable("AFTER", after);
        retries.script(script).run("1\n2\n")
    };
    // Limits with costs are kept by another part of the program.
    for options in [&["-r", "10/s"][..], &["-r", "10/s,cost=f2,else=1", "-j1"]] {
        let ended = run(options, "2", ask);
        let [elapsed, _, limits, paused] = times(&ended, TIMES);
        assert!(elapsed >= 2000 && limits < 1500 && paused == 2000, "{options:?}: {}", ended.err);
    }
    let ended = run(&["-r", "10/s"], "100", &format!("{ask}; sleep 1; exit 255"));
    let [elapsed, .., paused] = times(&ended, TIMES);
    assert!(ended.code() == Some(124) && paused > 0 && paused <= elapsed, "{}", ended.err);
}

#[test]
#[ignore = "slow: 3 s"]
fn the_bar_says_that_a_server_asked_to_wait() {
    let server = Server::that_answers().first(Answer::later("3")).start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("units"), "1\n").unwrap();
    let terminal = Terminal::new(120);
    let mut command = terminal.command(THROTTLE);
    command.args(["-r", "5/s", "--attempts", "1", "--progress=always", "-a"]).arg(folder.path().join("units"));
    command.args(["-c", CURL]).env("URL", server.url());
    command.env("no_proxy", "*");
    let mut child = command.spawn().unwrap();
    terminal.wait_for("the pause", |row| row.contains("told to wait, next in "));
    assert!(child.wait().unwrap().success());
    assert!(terminal.at_rest().iter().any(|row| row.contains("1 told to wait (paused 3")), "{:#?}", terminal.rows());
}

#[test]
fn the_pause_of_one_key_is_not_reported_for_all() {
    let script = "[ $1 = b ] && exec sleep 60; echo 'retry-after: 3600' >> \"$THROTTLE_REPLY\"; exit 1";
    let retries = attempts(2).rate("9/s,per=f1").options(&["--max-pause", "2h"]).script(script);
    let mut running = Running::start(retries.command());
    let said = Lines::of(running.stderr());
    running.write(b"a\nb\n");
    let message = said.next();
    assert!(message.contains("the server of 'a' requested a wait: no unit of this key starts for 1h"), "{message}");
    running.signal(Signal::USR1);
    let status = said.next();
    assert!(status.contains(" of 16 slots busy") && !status.contains("paused until"), "{status}");
    running.signal(Signal::TERM);
    running.signal(Signal::TERM);
    assert!(!running.end().success());
}
