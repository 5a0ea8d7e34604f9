//! Signals in launch mode, through the real program: a run that is stopped and continued, and timeouts in that time.

use crate::support::*;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Whether a shell that waits for `pid` learns that it was stopped.
fn is_seen_stopped(pid: Pid) -> bool {
    let look = || waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).unwrap();
    (0..600).any(|_| {
        thread::sleep(Duration::from_millis(5));
        look().is_some()
    })
}

/// Ctrl-Z also reaches a command that is just starting and has no group of its own yet, while the thread that starts it is
/// blocked.
#[test]
fn a_stop_of_the_group_while_commands_start_loses_nothing() {
    for how in [&["-r", "unlimited"][..], &["-r", "unlimited", "-j1"]] {
        let mut command = throttle([how, &["-q", "--repeat", "inf", "true"]].concat());
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn().unwrap();
        let pid = Pid::from_child(&child);
        // Before its handlers stand, it stops as any program does; commands do not run yet.
        thread::sleep(Duration::from_millis(100));
        for round in 0..20 {
            kill_process_group(pid, Signal::TSTP).unwrap();
            assert!(is_seen_stopped(pid), "{how:?}: round {round}");
            kill_process_group(pid, Signal::CONT).unwrap();
            thread::sleep(Duration::from_millis(3 + round % 7));
        }
        kill_process(pid, Signal::TERM).unwrap();
        wait_until("it ends", || child.try_wait().unwrap().is_some());
    }
}

/// Runs `args` in `folder` on nothing.
fn started(folder: &std::path::Path, args: &[&str]) -> Running {
    let mut command = throttle(args);
    Running::read(command.current_dir(folder).stdin(Stdio::null()).spawn().unwrap())
}

/// The numbers that 16 commands have written.
fn all_16(folder: &std::path::Path, who: &str) -> Vec<u32> {
    (1..=16).map(|unit| number_in(&folder.join(format!("{who}.{unit}")))).collect()
}

fn kill_all(pids: &[u32]) {
    for &pid in pids {
        kill(pid, Signal::KILL);
    }
}

/// Its command has ended, and the second that is waited for it may be over when all go on.
#[test]
#[ignore = "slow: 2 s"]
fn a_process_left_behind_goes_on_when_all_others_do() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 100 & echo $! > member.$1; echo $$ > leader.$1";
    let args = ["-q", "-r", "unlimited", "-j16", "--repeat", "16", "sh", "-c", script, "sh", "{}"];
    let run = started(folder.path(), &args);
    let [leaders, members] = ["leader", "member"].map(|who| all_16(folder.path(), who));
    wait_until("the commands have ended", || leaders.iter().all(|leader| state_of(*leader).is_none()));
    run.signal(Signal::TSTP);
    wait_until("all are stopped", || members.iter().chain([&run.pid()]).all(|member| state_of(*member) == Some('T')));
    thread::sleep(Duration::from_millis(1200));
    run.signal(Signal::CONT);
    let ended = run.finish();
    let stopped = members.iter().filter(|member| state_of(**member) == Some('T')).count();
    kill_all(&members);
    assert_eq!((stopped, ended.code()), (0, Some(0)));
}

/// We learn of the end and that the time is over at once: it ended first.
#[test]
fn a_command_that_ends_during_a_stop_is_not_timed_out() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ > leader.$1; exec sleep 0.4";
    let args = ["-r", "unlimited", "-j16", "--timeout", "1s", "--repeat", "16", "sh", "-c", script, "sh", "{}"];
    let run = started(folder.path(), &args);
    all_16(folder.path(), "leader");
    run.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(1500));
    run.signal(Signal::CONT);
    let ended = run.finish();
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
}

#[test]
#[ignore = "slow: 4 s"]
fn time_in_which_we_had_the_commands_stopped_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ > leader.$1; i=0; while [ $i -lt 8 ]; do sleep 0.1; i=$((i + 1)); done; echo done";
    let args = ["-q", "-r", "unlimited", "--timeout", "3s", "--repeat", "16", "sh", "-c", script, "sh", "{}"];
    let run = started(folder.path(), &args);
    all_16(folder.path(), "leader");
    run.signal(Signal::TSTP);
    wait_until("it is stopped", || state_of(run.pid()) == Some('T'));
    thread::sleep(Duration::from_millis(3200));
    run.signal(Signal::CONT);
    let ended = run.finish();
    assert_eq!((ended.code(), ended.text()), (Some(0), "done\n".repeat(16).as_str()), "{}", ended.err);
}

/// Output is printed if a process that was left behind writes it within a second.
#[test]
fn late_output_is_printed_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let script = "(sleep 0.5; echo late; exec sleep 100) & echo $! > member.$1; echo $$ > leader.$1";
    let args = ["-q", "-r", "unlimited", "-j16", "--repeat", "16", "sh", "-c", script, "sh", "{}"];
    let run = started(folder.path(), &args);
    let [leaders, members] = ["leader", "member"].map(|who| all_16(folder.path(), who));
    wait_until("the commands have ended", || leaders.iter().all(|leader| state_of(*leader).is_none()));
    run.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(1500));
    run.signal(Signal::CONT);
    let ended = run.finish();
    kill_all(&members);
    assert_eq!(ended.text(), "late\n".repeat(16), "{}", ended.err);
}

/// In a PID namespace of its own, where a new process gets the number of a command that has ended and whose output still
/// waits for the reader.
#[test]
fn a_process_that_reuses_a_commands_number_gets_no_signal() {
    let elsewhere = ["unshare", "-rpf", "--mount-proc", "--kill-child"];
    if !can(&elsewhere) {
        return;
    }
    let script = r#"
        cd "$1" && mkfifo out && true >> /proc/sys/kernel/ns_last_pid || exit 9
        sleep 100 < out &
        "$0" -r unlimited -j2 --repeat 1 -c 'echo $$ > pid; head -c 1000000 /dev/zero; : $1' > out &
        throttle=$!
        until [ -s pid ]; do sleep 0.01; done
        read -r pid < pid
        while kill -0 $pid 2> /dev/null; do sleep 0.01; done
        sleep 0.2
        until [ "$stranger" = $pid ]; do
            echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid
            setsid sleep 100 > /dev/null &
            stranger=$!
        done
        until [ "$(cut -d' ' -f2 /proc/$pid/stat)" = "(sleep)" ]; do :; done
        kill -TERM $throttle
        sleep 0.5
        kill -0 $pid && echo it lives"#;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(elsewhere[0]);
    command.args(&elsewhere[1..]).args(["sh", "-c", script, THROTTLE]).arg(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = Running::read(command.spawn().unwrap()).finish();
    if ended.code() == Some(9) {
        return skipped("nobody may choose the next process number here");
    }
    assert_eq!((ended.code(), ended.text()), (Some(0), "it lives\n"), "{}", ended.err);
}

/// QUIT killed the program while it waited for the server of its bucket, and `--stop-after` had no effect.
#[test]
fn before_its_server_answers_a_run_can_be_ended_with_75() {
    let away = ["-r", "5/s", "--bucket", "redis://127.0.0.1:1/x"];
    let mut quits = Running::start(with_pipes(throttle(away.iter().chain(&["true"]))));
    let is_handled = |signal: Signal| signal_masks(quits.pid(), &["SigCgt:"]) >> (signal.as_raw() - 1) & 1 == 1;
    wait_until("its handler", || is_handled(Signal::QUIT));
    thread::sleep(Duration::from_millis(300));
    assert!(quits.is_running());
    quits.signal(Signal::QUIT);
    assert_eq!(quits.end().code(), Some(75));
    let ended = feed(throttle(away.iter().chain(&["--stop-after", "1500ms", "touch", "/none/x"])), b"1\n");
    let expected = "stopped by --stop-after 1s 500ms: nothing was started; run the same command again";
    assert_eq!(ended.code(), Some(75));
    assert!(ended.err.ends_with(&format!("throttle: {expected}\n")), "{}", ended.err);
}

/// The open of the named pipe waited forever, before any signal was handled. Process 1 could not be ended then.
#[test]
fn a_signal_ends_a_run_that_opens_a_named_pipe_of_rates() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("rates")).status().unwrap().success());
    let run = started(folder.path(), &["-r", "1/s,per=f1,rates=rates", "--", "true"]);
    let handles_quit = || signal_masks(run.pid(), &["SigCgt:"]) & (1 << (Signal::QUIT.as_raw() - 1)) != 0;
    wait_until("a handler of QUIT, which a run of commands has", handles_quit);
    thread::sleep(Duration::from_millis(100));
    run.signal(Signal::QUIT);
    assert_eq!(run.finish().code(), Some(75));
}

/// A pipe that nobody reads, and that has no room for another byte.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::io::Write;
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    (reader, writer)
}

/// The thread of signals waited for standard error, and answered nothing more.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "slow: a release does not shorten waits")]
fn two_signals_end_a_run_whose_standard_error_is_full() {
    for args in [
        &["-r", "1/h", "-b", "1", "--summary"][..],
        &["-r", "1/h", "-b", "1", "--progress=always"],
        &["-r", "1/h,per=f2", "-b", "1"],
        &["-r", "unlimited", "sleep", "100"],
        &["-r", "unlimited", "-j1", "--summary", "sleep", "100"],
        &["-t", "-r", "unlimited", "-j2", "--", "sh", "-c", "echo error >&2; exec sleep 100"],
        &["-r", "unlimited", "-u", "-j2", "--", "sh", "-c", "echo error >&2; exec sleep 100"],
    ] {
        let (_reader, writer) = full_pipe();
        let mut command = throttle(args);
        let mut run = Running::start({
            command.stderr(writer).env("THROTTLE_TEST_SHORTER_WAITS", "20");
            command
        });
        drop(run.write(b"1\n2\n3\n"));
        run.settle();
        for _ in 0..2 {
            run.signal(Signal::INT);
            thread::sleep(Duration::from_millis(100));
        }
        let status = run.end();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{args:?}: {status}");
    }
}

/// The run hung until somebody read its standard error.
#[test]
#[ignore = "slow: 5 s"]
fn one_signal_ends_a_pipe_whose_standard_error_is_full() {
    let (_reader, writer) = full_pipe();
    let mut command = throttle(["-r", "1/h", "-b", "1", "--summary"]);
    let mut run = Running::start({
        command.stderr(writer);
        command
    });
    drop(run.write(b"1\n2\n3\n"));
    run.settle();
    run.signal(Signal::INT);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&run.end()), Some(2));
}
