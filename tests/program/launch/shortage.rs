//! The real program on a system without room for threads, processes or files.

use crate::support::*;
use rustix::process::Signal;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A shell command as a user with nothing else running, who may have at most `processes`; `$0` and what follows is the
/// program with `args`. `None` if that is not possible: the limit does not hold for root (`RLIMIT_NPROC`,
/// getrlimit(2)).
fn with_few_processes(processes: u32, user: u32, args: &[&str]) -> Option<Command> {
    // A different user for each process that runs this test.
    let user = (3_000_000 + 4 * std::process::id() + user).to_string();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    let mut probe = Command::new("setpriv");
    probe.args(["--reuid", &user, "--regid", &user, "--clear-groups", THROTTLE, "-h"]);
    let can = probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !can {
        skipped("only root with setpriv(1) can become a user with nothing else running");
        return None;
    }
    setpriv.args(["bash", "-c", &format!("ulimit -u {processes}; exec \"$0\" \"$@\""), THROTTLE]).args(args);
    setpriv.current_dir("/");
    Some(with_pipes(setpriv))
}

/// Either an error comes before anything runs, or all units run.
#[test]
fn without_room_for_threads_nothing_runs_and_a_hint_helps() {
    let mut refused = 0;
    for processes in 1..16 {
        let Some(command) = with_few_processes(processes, 1, &["-q", "-r", "unlimited", "echo"]) else { return };
        let ended = feed(command, "1\n2\n");
        if ended.code() == Some(0) {
            assert_eq!((ended.sorted(), &*ended.err), (vec!["1", "2"], ""), "{processes}");
            continue;
        }
        refused += 1;
        let message = "cannot start the threads that are needed: Resource temporarily unavailable (os error 11); \
                    ulimit -u allows more processes and threads\n";
        assert_eq!((ended.code(), ended.text()), (Some(1), ""), "{processes}: {}", ended.err);
        assert!(ended.err.starts_with("throttle: ") && ended.err.ends_with(message), "{processes}: {}", ended.err);
    }
    assert!((3..15).contains(&refused), "{refused} of 15");
}

/// The threads that end commands are started first.
#[test]
fn a_signal_still_ends_commands_that_take_all_processes() {
    let args = ["-q", "-r", "unlimited", "-j64", "--repeat", "64", "sh", "-c", "echo $$ >&2; exec sleep 100"];
    let args = [&args[..], &["sh", "{}"]].concat();
    for ending in [&[Signal::TERM][..], &[Signal::INT, Signal::TERM]] {
        let Some(mut command) = with_few_processes(14, 2, &[&["-u"], &args[..]].concat()) else { return };
        command.stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut pids = Vec::new();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
        while pids.len() < 5 {
            pids.push(lines.next().unwrap().unwrap().trim().parse::<u32>().unwrap());
        }
        let run = Running::read(child);
        for signal in ending {
            run.signal(*signal);
            // Two signals at once may be handled in either order.
            thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(run.finish().signal(), Some(ending[0].as_raw()));
        assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
    }
}

fn with_few_files(files: u32, jobs: &str, repeat: &str) -> Ended {
    with_few_files_under("unlimited", files, jobs, repeat)
}

fn with_few_files_under(limit: &str, files: u32, jobs: &str, repeat: &str) -> Ended {
    let mut shell = shell(&format!("ulimit -n {files}; exec \"$0\" \"$@\""));
    shell.args(["-r", limit, jobs, "--repeat", repeat, "echo"]);
    feed(shell, "")
}

#[test]
fn without_room_for_files_nothing_runs_and_a_hint_helps() {
    let mut refused = 0;
    for files in 9..20 {
        // A command whose cost is settled takes one more, for its reply.
        let kinds = [("unlimited", "-j1"), ("unlimited", "-j2"), ("unlimited", "-j8"), ("1k/s,cost=2", "-j1")];
        for (limit, jobs) in kinds {
            let ended = with_few_files_under(limit, files, jobs, "3");
            if ended.code() == Some(0) {
                assert_eq!((ended.sorted().len(), &*ended.err), (3, ""), "{files} {jobs}");
                continue;
            }
            refused += 1;
            let message = "Too many open files (os error 24); ulimit -n allows more open files\n";
            let words =
                (ended.err.starts_with("throttle: cannot "), ended.err.ends_with(message), ended.err.lines().count());
            assert_eq!((ended.code(), ended.text()), (Some(1), ""), "{files} {jobs}: {}", ended.err);
            assert_eq!(words, (true, true, 1), "{files} {jobs}: {}", ended.err);
        }
    }
    assert!((3..44).contains(&refused), "{refused} of 44");
}

/// Starts at the same time take files from each other that would be enough for one.
#[test]
fn files_for_one_command_are_enough_for_any_number_of_jobs() {
    let mut enough = None;
    for files in 14..22 {
        let run = |jobs: &str, repeat: &str| with_few_files(files, jobs, repeat);
        if enough.is_none() && run("-j2", "1").code() != Some(0) {
            continue;
        }
        enough.get_or_insert(files);
        for _ in 0..4 {
            let ended = run("-j8", "30");
            assert_eq!((ended.code(), ended.sorted().len()), (Some(0), 30), "{files}: {}", ended.err);
        }
    }
    assert!(enough.is_some());
}

/// Starts that waited for room held their input, and so took the room from each other.
#[test]
fn a_start_that_waits_for_room_holds_no_input() {
    let run = |files: u32, jobs: &str, input: &str| {
        let mut shell = shell(&format!("ulimit -n {files}; exec \"$0\" \"$@\""));
        shell.args(["-r", "unlimited", jobs, "--stdin", "wc", "-c"]);
        feed(shell, input)
    };
    // A pipe, a file that is made for the command, and one that is made as the unit is read.
    for size in [10, 5000, 50_000] {
        let unit = format!("{}\n", "x".repeat(size));
        // Two more of the larger files are made before their commands start.
        let waiting = if size > 32_768 { 2 } else { 0 };
        let enough = (14..30).find(|files| run(*files, "-j2", &unit).code() == Some(0)).unwrap();
        let ended = run(enough + waiting, "-j8", &unit.repeat(30));
        assert_eq!((ended.code(), ended.sorted().len()), (Some(0), 30), "{size}: {}", ended.err);
    }
}

/// Commands with much output took the last files from each other, and those without a file failed.
#[test]
fn output_that_finds_no_open_file_waits_for_one() {
    let script = "head -c 400000 /dev/zero; head -c 400000 /dev/zero >&2; sleep 0.1";
    for options in ["-j8", "-j8 -k"] {
        for files in [24, 30] {
            let command = format!("ulimit -n {files}; exec \"$0\" -q -r unlimited {options} -c '{script}'");
            let ended = feed(shell(&command), numbers(12));
            let sizes = (ended.text().len(), ended.err.len());
            assert_eq!((ended.code(), sizes), (Some(0), (4_800_000, 4_800_000)), "{options} {files}");
        }
    }
}

/// The timer of the wait for the next grant, or for the next report, took the last file, and so each command failed.
#[test]
fn a_run_that_waits_leaves_the_last_file_to_a_command() {
    let shell = |files: u32, options: &[&str]| {
        let mut shell = shell(&format!("ulimit -n {files}; exec \"$0\" \"$@\""));
        shell.args(options).args(["--max-fail", "1", "echo"]);
        shell
    };
    for options in [&[][..], &["--attempts", "2"], &["--progress=always"]] {
        let once = [options, &["-r", "unlimited", "--repeat", "1"]].concat();
        let enough = (12..30).find(|files| feed(shell(*files, &once), "").code() == Some(0)).unwrap();
        let twice = [options, &["-r", "1/h", "--repeat", "2"]].concat();
        let mut child = shell(enough, &twice).stdin(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let run = Running::read(child);
        run.signal(Signal::TERM);
        let ended = run.finish();
        assert_eq!(line, "\n", "{options:?}: {}", ended.err);
    }
}

/// Both are looked at side by side: it takes a while until slots were short for long.
#[test]
#[ignore = "slow: 14 s"]
fn a_rate_that_needs_more_jobs_is_told_to_users_not_to_cron() {
    let run = |options: &'static [&'static str]| {
        let mut command = throttle([&["-r", "300/s", "--repeat", "220", "-c", "sleep 1; : $1"], options].concat());
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        thread::spawn(|| Running::read(child).finish())
    };
    let (user, cron) = (run(&["--summary"]), run(&[]));
    let words = "throttle: the limit of 16 jobs at once slows the run, not the rate; 300/s needs about -j ";
    let (user, cron) = (user.join().unwrap(), cron.join().unwrap());
    assert_eq!((user.err.matches(words).count(), &*cron.err), (1, ""), "{}", user.err);
}

#[test]
#[ignore = "slow: 4 s"]
fn without_a_cap_a_shortage_of_files_is_reported() {
    let run = |options: &str| {
        feed(shell(&format!("ulimit -n 30; exec \"$0\" -r unlimited --repeat 9 {options} sleep 0.3")), "")
    };
    let message = "throttle: commands wait until other commands end: Too many open files (os error 24); \
                ulimit -n allows more open files\n";
    let plain = run("-j 0");
    assert_eq!((plain.code(), &*plain.err), (Some(0), message));
    let summed = run("-j 0 --summary");
    assert!(
        summed.err.starts_with(message) && summed.err.contains(" for room for more commands (ulimit -n, -u)\n"),
        "{}",
        summed.err
    );
    assert!(!summed.err.contains("--jobs"), "{}", summed.err);
    assert_eq!((run("-j 0 -q").err.as_str(), run("-j 2").err.as_str()), ("", ""));
}

/// The allocator of glibc reserves 64 MiB for each of some threads, as long as there is so much. The rest was too little for the
/// other stacks.
#[test]
fn threads_fit_into_nearly_any_address_space() {
    let fits = |mib: &u32| {
        let script = format!("ulimit -v {}; exec \"$0\" -q -r unlimited --repeat 3 --attempts 2 true", mib * 1024);
        let shell = shell(&script);
        feed(shell, "").code() == Some(0)
    };
    let failed: Vec<u32> = (60..300).step_by(3).filter(|mib| !fits(mib)).collect();
    // Where the reserved memory ends with the limit to within some kB, nothing fits. Six in a hundred failed.
    assert!(failed.len() < 5, "{failed:?} MiB");
}
