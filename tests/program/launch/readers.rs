//! A reader that does not read the output of launch mode delays neither timeouts nor signals nor the end.

use crate::support::terminal::terminal;
use crate::support::*;
use rustix::process::{Pid, Signal};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
#[ignore = "slow: 4 s"]
fn a_second_signal_ends_it_though_its_output_is_not_read() {
    let ends_so = |how: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let (reader, writer) = stuck_pipe();
        let script = "echo $$ > leader.$1; seq 70000";
        let args = [how, &["-r", "unlimited", "--repeat", "2", "sh", "-c", script, "sh", "{}"]].concat();
        let mut child = throttle(args).current_dir(&folder).stdout(writer).spawn().unwrap();
        number_in(&folder.path().join("leader.1"));
        // It has written what waits now.
        thread::sleep(Duration::from_millis(700));
        assert_eq!(end_with_two(&mut child), Some(15), "{how:?}");
        drop(reader);
    };
    thread::scope(|scope| {
        for how in [&["-j16"][..], &["-k"], &["--line-buffer"], &["-j1", "--timeout", "1h"]] {
            scope.spawn(move || ends_so(how));
        }
    });
}

/// Failures are reported on standard error. Meanwhile, other commands time out, and signals reach them.
#[test]
#[ignore = "slow: 4 s"]
fn an_unread_standard_error_delays_no_timeout_and_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = stuck_pipe();
    let script = "case $1 in 1) echo $$ > leader.1; exec sleep 100;; *) exit 1;; esac";
    let mut command = throttle(["-r", "unlimited", "--repeat", "6", "--timeout", "2s", "sh", "-c", script, "sh", "{}"]);
    command.current_dir(&folder).stderr(writer);
    let mut child = command.spawn().unwrap();
    let leader = number_in(&folder.path().join("leader.1"));
    wait_until("its time runs out", || !is_alive(leader));
    assert_eq!(end_with_two(&mut child), Some(15));
    drop(reader);
}

/// On a terminal with a bar, while a result waits for its reader.
#[test]
#[ignore = "slow: 5 s"]
fn a_question_for_the_status_keeps_no_signal_from_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let (_master, terminal) = terminal();
    let (reader, writer) = stuck_pipe();
    let script = "case $1 in 1) echo $$ > leader.1; exec sleep 100;; *) seq 70000;; esac";
    let mut command =
        throttle(["-r", "unlimited", "--progress", "always", "--repeat", "3", "sh", "-c", script, "sh", "{}"]);
    command.current_dir(&folder).stdout(writer).stderr(terminal);
    let mut child = command.spawn().unwrap();
    let leader = number_in(&folder.path().join("leader.1"));
    // A result waits, and the bar has been drawn.
    thread::sleep(Duration::from_millis(1500));
    rustix::process::kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    thread::sleep(Duration::from_millis(300));
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait_until("the command is ended", || !is_alive(leader));
    assert_eq!(end_with_two(&mut child), Some(15));
    drop(reader);
}

/// A command whose time runs out, beside many that write 3000 bytes to each of their streams.
fn writes_while_time_runs_out(folder: &Path, out: impl Into<Stdio>, err: impl Into<Stdio>) -> Command {
    let script = "case $1 in 1) echo $$ > leader.1; exec sleep 100;; esac; \
                  head -c 3000 /dev/zero; head -c 3000 /dev/zero >&2";
    let args = ["-q", "-r", "unlimited", "-j4", "--timeout", "2s", "--repeat", "60", "sh", "-c", script, "sh", "{}"];
    let mut command = throttle(args);
    command.current_dir(folder).stdin(Stdio::null()).stdout(out).stderr(err);
    command
}

fn its_time_runs_out_and_two_signals_end_it(folder: &Path, mut command: Command) {
    let mut child = command.spawn().unwrap();
    let leader = number_in(&folder.join("leader.1"));
    wait_until("its time runs out", || !is_alive(leader));
    assert_eq!(end_with_two(&mut child), Some(15));
}

/// Room for one write is none for the second, if both streams are the same pipe.
#[test]
#[ignore = "slow: 4 s"]
fn one_pipe_for_both_streams_that_is_not_read_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    // Each write takes a page of its own: now an odd number of them is left.
    writer.write_all(&[0; 4096]).unwrap();
    let command = writes_while_time_runs_out(folder.path(), writer.try_clone().unwrap(), writer);
    its_time_runs_out_and_two_signals_end_it(folder.path(), command);
    drop(reader);
}

/// As after Ctrl-S.
#[test]
#[ignore = "slow: 4 s"]
fn a_terminal_that_takes_nothing_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (master, terminal) = terminal();
    let command = writes_while_time_runs_out(folder.path(), terminal.try_clone().unwrap(), terminal);
    its_time_runs_out_and_two_signals_end_it(folder.path(), command);
    drop(master);
}

/// Messages about failed commands wait for their reader; the output of other commands does not wait for them.
#[test]
#[ignore = "slow: 4 s"]
fn an_unread_standard_error_keeps_back_no_small_output() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = stuck_pipe();
    let script = "case $1 in 1) echo $$ > leader.1; exec sleep 100;; [2-5]) exit 1;; *) echo $1;; esac";
    let mut command =
        throttle(["-r", "unlimited", "-j9", "--timeout", "2s", "--repeat", "8", "sh", "-c", script, "sh"]);
    command.arg("{}").current_dir(&folder).stdin(Stdio::null()).stderr(writer);
    its_time_runs_out_and_two_signals_end_it(folder.path(), command);
    drop(reader);
}

/// A trace that waits for its reader belongs to a command that has not started.
#[test]
#[ignore = "slow: 4 s"]
fn a_trace_that_is_not_read_keeps_no_signal_from_ending_it() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let script = format!("echo $$ > leader.$1; exec sleep 100; # {}", "x".repeat(3000));
    let mut command =
        throttle(["-t", "-r", "unlimited", "--timeout", "2s", "--repeat", "9", "sh", "-c", &script, "sh"]);
    command.arg("{}").current_dir(&folder).stdin(Stdio::null()).stderr(writer);
    its_time_runs_out_and_two_signals_end_it(folder.path(), command);
    assert!(!folder.path().join("leader.3").exists(), "its trace was not written");
    drop(reader);
}

#[test]
#[ignore = "slow: 5 s"]
fn a_reader_that_leaves_is_named_in_one_line() {
    for how in [&[][..], &["-k"], &["--line-buffer"], &["-u"], &["--attempts", "2"]] {
        let script = "sleep 0.3; echo $1; exec 2> /dev/null; sleep 1; echo $1";
        let mut child = throttle([how, &["-r", "unlimited", "--repeat", "40", "-c", script]].concat()).spawn().unwrap();
        let mut first = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
        drop(child.stdout.take());
        let ended = Running::read(child).finish();
        assert_eq!(ended.signal(), Some(13), "{how:?} {}", ended.err);
        assert_eq!(ended.err.matches("the reader of the output is gone: ").count(), 1, "{how:?} {}", ended.err);
        if how != ["-u"] {
            assert_eq!(ended.err.lines().count(), 1, "{how:?} {}", ended.err);
        }
    }
}
