//! What the program inherits at its start: ignored signals, closed streams, and a PATH with forbidden folders.

use crate::support::*;
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A shell that does `first` and becomes the program with `args`.
fn after(first: &str, args: &[&str]) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), THROTTLE]).args(args);
    with_pipes(shell)
}

/// It waits to open its input, before it shows or answers anything.
#[test]
fn a_question_for_the_status_at_the_very_start_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let units = folder.path().join("units");
    assert!(Command::new("mkfifo").arg(&units).status().unwrap().success());
    for command in [&[][..], &["echo"]] {
        let run = Running::read(
            throttle([&["-q", "-r", "unlimited", "-a", units.to_str().unwrap()], command].concat()).spawn().unwrap(),
        );
        thread::sleep(Duration::from_millis(200));
        run.signal(Signal::USR1);
        thread::sleep(Duration::from_millis(50));
        fs::OpenOptions::new().write(true).open(&units).unwrap().write_all(b"unit\n").unwrap();
        let ended = run.finish();
        assert_eq!((ended.code(), ended.text()), (Some(0), "unit\n"), "{}", ended.err);
    }
}

#[test]
fn signals_that_end_programs_end_the_commands_too() {
    for signal in [Signal::USR2, Signal::ALARM, Signal::XCPU, Signal::VTALARM, Signal::PROF] {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo $$ > leader.$1; exec sleep 100";
        let mut command = throttle(["-q", "-r", "unlimited", "--repeat", "2", "sh", "-c", script, "sh", "{}"]);
        let run = Running::read(command.current_dir(&folder).stdin(Stdio::null()).spawn().unwrap());
        let pids = [1, 2].map(|unit| number_in(&folder.path().join(format!("leader.{unit}"))));
        run.signal(signal);
        assert_eq!(run.finish().signal(), Some(signal.as_raw()));
        assert!(pids.iter().all(|pid| !is_alive(*pid)), "{signal:?}");
    }
}

/// The limit is on the program itself, and its message names the file that it could not write.
#[test]
fn a_file_that_may_not_grow_ends_the_commands_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "case $1 in 1) echo $$ > leader.1; exec sleep 100;; esac; until [ -e leader.1 ]; do sleep 0.02; done; seq 9000";
    let mut command = after("ulimit -f 1", &["-r", "unlimited", "--repeat", "2", "sh", "-c", script, "sh", "{}"]);
    let out = fs::File::create(folder.path().join("out")).unwrap();
    let ended = Running::read(command.current_dir(&folder).stdout(out).spawn().unwrap()).finish();
    assert!(!is_alive(number_in(&folder.path().join("leader.1"))));
    assert_eq!(ended.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains("cannot write to standard output: File too large"), "{}", ended.err);
}

fn ignores_sigpipe(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 12) != 0
}

#[test]
fn commands_ignore_sigpipe_only_if_it_was_ignored_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let once = ["--bucket", bucket.to_str().unwrap(), "-r", "100/s", "--once", "grep", "SigIgn", "/proc/self/status"];
    let grep = ["-q", "-r", "unlimited", "--repeat", "1", "grep", "SigIgn", "/proc/self/status"];
    let script = ["-q", "-r", "unlimited", "--repeat", "1", "-c", "grep SigIgn /proc/self/status"];
    for args in [&grep[..], &script, &once] {
        for (first, expected) in [("trap '' PIPE", true), (":", false)] {
            let ended = feed(after(first, args), "");
            assert_eq!(ended.code(), Some(0), "{}", ended.err);
            assert_eq!(ignores_sigpipe(ended.text()), expected, "{first} {args:?}");
        }
    }
    let ended =
        feed(after("trap '' PIPE", &["-qk", "-r", "unlimited", "--", "printf", "%s|", "a b", "{}"]), "x  y\n$z\n");
    assert_eq!(ended.text(), "a b|x  y|a b|$z|", "{}", ended.err);
}

#[test]
fn a_reader_that_is_gone_is_an_error_if_sigpipe_was_ignored() {
    for command in [&[][..], &["--timeout", "9s", "echo"]] {
        let mut child = after("trap '' PIPE", &[&["-r", "unlimited"], command].concat()).spawn().unwrap();
        drop(child.stdout.take());
        thread::sleep(Duration::from_millis(200));
        child.stdin.take().unwrap().write_all(b"a\nb\n").unwrap();
        let ended = Running::read(child).finish();
        assert_eq!(ended.code(), Some(1), "{command:?}: {:?} {}", ended.status, ended.err);
        assert!(ended.err.contains("cannot write to standard output: nobody reads it any more"), "{}", ended.err);
    }
}

/// 126 as of shells and xargs: something is there, but it cannot be run.
#[test]
fn a_command_that_cannot_be_reached_is_not_called_missing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("file"), "").unwrap();
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    for (command, words) in [("file/x", "Not a directory"), ("loop", "Too many levels of symbolic links")] {
        let ended = run(["-r", "unlimited", &at(command)], "1\n");
        assert_eq!((ended.code(), ended.text()), (Some(126), ""), "{}", ended.err);
        assert!(ended.err.contains(&format!("{command}' cannot be run: {words}")), "{}", ended.err);
    }
    assert_eq!(run(["-r", "unlimited", &at("none")], "1\n").code(), Some(127));
    let mut in_path = throttle(["-r", "unlimited", "no-such-command"]);
    in_path.env("PATH", format!("{}:{}", at("file"), at("none")));
    assert_eq!(feed(in_path, "1\n").code(), Some(127), "what stands in PATH may be no folder");
}

/// The program as another user than root, for whom `closed` cannot be searched.
fn before_a_closed_folder(closed: &Path, args: &[&str]) -> Ended {
    fs::create_dir(closed).unwrap();
    fs::write(closed.join("x"), "").unwrap();
    fs::set_permissions(closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Root may search it all the same.
    let user = ["--reuid", "3000003", "--regid", "3000003", "--clear-groups"];
    let is_root = rustix::process::geteuid().is_root();
    let mut command = if is_root { Command::new("setpriv") } else { Command::new("env") };
    if is_root {
        command.args(user);
    }
    let path = format!("{}:{}", closed.display(), std::env::var("PATH").unwrap());
    command.arg(THROTTLE).args(["-r", "unlimited"]).args(args).current_dir("/").env("PATH", path);
    let ended = feed(with_pipes(command), "1\n");
    fs::set_permissions(closed, fs::Permissions::from_mode(0o755)).unwrap();
    ended
}

fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn a_command_in_a_forbidden_folder_is_not_called_missing() {
    let folder = open_folder();
    let closed = folder.path().join("closed");
    let ended = before_a_closed_folder(&closed, &[closed.join("x").to_str().unwrap()]);
    assert_eq!(ended.code(), Some(126), "{}", ended.err);
    assert!(ended.err.contains("cannot be run: Permission denied"), "{}", ended.err);
}

/// As with the PATH of root after su.
#[test]
fn a_folder_in_path_that_may_not_be_searched_is_passed_over() {
    let folder = open_folder();
    let ended = before_a_closed_folder(&folder.path().join("closed"), &["me:SECRET@example.org"]);
    assert_eq!(ended.code(), Some(127), "{}", ended.err);
    assert!(ended.err.contains("no such command in PATH") && !ended.err.contains("SECRET"), "{}", ended.err);
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for args in [["--help"], ["-h"], ["--version"]] {
        for (first, message) in
            [("exec >&-", "it is closed"), ("exec >/dev/full", "No space left on device (os error 28)")]
        {
            let ended = feed(after(first, &args), "");
            let message = format!("throttle: cannot write to standard output: {message}\n");
            assert_eq!((ended.code(), &*ended.err), (Some(1), &*message), "{args:?}");
        }
    }
}

/// Rust opens /dev/null in its place, and all would be lost without a word.
#[test]
fn a_closed_standard_output_is_an_error_and_dev_null_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let bucket = bucket.to_str().unwrap();
    let message = "throttle: cannot write to standard output: it is closed\n";
    let modes: [(&[&str], i32); 6] = [
        (&["-r", "9/s"], 1),
        (&["-r", "9MB/s"], 1),
        (&["-r", "9/s", "echo"], 1),
        (&["-r", "9/s", "--dry-run", "echo"], 1),
        (&["--bucket", bucket, "--show"], 1),
        (&["--bucket", bucket, "--once", "echo"], 125),
    ];
    assert_eq!(feed(after("exec >&-", &["--bucket", bucket, "--set", "-r", "9/s"]), "").code(), Some(0));
    assert_eq!(feed(after("exec >&-", &["--bucket", bucket, "--once"]), "").code(), Some(0));
    for (args, code) in modes {
        let ended = feed(after("exec >&-", args), "1\n");
        assert_eq!((ended.code(), &*ended.err), (Some(code), message), "{args:?}");
        // Read and write, as daemons have it, and as Rust opens it.
        assert_eq!(feed(after("exec 1<>/dev/null", args), "1\n").code(), Some(0), "{args:?}");
    }
}
