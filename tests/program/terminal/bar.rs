//! The bar and other messages on a terminal.

use crate::support::terminal::Terminal;
use crate::support::{THROTTLE, logged_attempts, number_in};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A file of `count` lines.
fn lines(folder: &Path, count: usize) -> PathBuf {
    let file = folder.join("lines");
    let text: Vec<String> = (1..=count).map(|line| format!("line {line}\n")).collect();
    fs::write(&file, text.concat()).unwrap();
    file
}

fn is_bar(row: &str) -> bool {
    row.contains("% ") || row.contains("/s now")
}

/// Whether a run of a good second on a terminal, with this standard output, shows a bar.
fn shows_bar(options: &[&str], stdout: impl FnOnce(&Terminal) -> Stdio) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(80);
    let mut command = terminal.command(THROTTLE);
    command.args(["-r", "20/s", "-b", "1", "-a"]).arg(lines(folder.path(), 28)).args(options);
    let child = command.stdout(stdout(&terminal)).spawn().unwrap();
    drop(command);
    let (seen, status) = terminal.watch(child, is_bar);
    assert!(status.success(), "{:?}", terminal.rows());
    seen
}

/// A pipe, whose reader may write to the terminal, or ask for a password there.
fn pipe() -> Stdio {
    let (mut reader, writer) = std::io::pipe().unwrap();
    thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    writer.into()
}

fn socket() -> Stdio {
    let (mut reader, writer) = UnixStream::pair().unwrap();
    thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    OwnedFd::from(writer).into()
}

#[test]
fn the_automatic_bar_needs_output_to_a_file_or_a_device() {
    thread::scope(|scope| {
        let shown = [
            scope.spawn(|| shows_bar(&[], |_| tempfile::tempfile().unwrap().into())),
            scope.spawn(|| shows_bar(&[], |_| Stdio::null())),
            scope.spawn(|| shows_bar(&["--size", "28"], |_| pipe())),
            scope.spawn(|| shows_bar(&["--progress=always"], |_| pipe())),
        ];
        let hidden = [
            scope.spawn(|| shows_bar(&[], |_| pipe())),
            scope.spawn(|| shows_bar(&[], |_| socket())),
            scope.spawn(|| shows_bar(&["--size", "28"], |terminal| terminal.end().into())),
            scope.spawn(|| shows_bar(&["-q", "--size", "28"], |_| pipe())),
            scope.spawn(|| shows_bar(&[], |terminal| terminal.end().into())),
        ];
        assert_eq!(shown.map(|run| run.join().unwrap()), [true; 4]);
        assert_eq!(hidden.map(|run| run.join().unwrap()), [false; 5]);
    });
}

/// A pipe from which the numbers come at once, and which stays open until the writer is dropped.
fn numbers(last: u32) -> (Stdio, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    (1..=last).for_each(|number| std::io::Write::write_all(&mut writer, format!("{number}\n").as_bytes()).unwrap());
    (reader.into(), writer)
}

#[test]
#[ignore = "slow: 4 s"]
fn with_a_size_the_bar_of_a_pipe_says_how_much_is_left() {
    thread::scope(|scope| {
        for args in
            [&["--size", "40"][..], &["--size", "111B"], &["--size", "40", "true"], &["-n2", "--size", "80", "true"]]
        {
            scope.spawn(move || {
                let (terminal, (input, writer)) = (Terminal::new(160), numbers(80));
                let mut command = Command::new(THROTTLE);
                command.env("TERM", "xterm");
                command.args(["-r", "20/s", "-b", "1"]).args(args).stdin(input).stdout(pipe());
                let mut child = command.stderr(terminal.end()).spawn().unwrap();
                drop(command);
                terminal.wait_for("the share", |row| row.contains("% ") && row.contains(" left"));
                drop(writer);
                assert!(child.wait().unwrap().success(), "{args:?}");
            });
        }
    });
}

/// Commands write to the terminal through us; the reader of a pipe does not.
#[test]
fn a_reader_of_the_commands_output_gets_no_automatic_bar() {
    thread::scope(|scope| {
        let shown = [
            scope.spawn(|| shows_bar(&["true"], |terminal| terminal.end().into())),
            scope.spawn(|| shows_bar(&["true"], |_| Stdio::null())),
        ];
        let hidden = [
            scope.spawn(|| shows_bar(&["true"], |_| pipe())),
            scope.spawn(|| shows_bar(&["-u", "true"], |terminal| terminal.end().into())),
        ];
        assert_eq!(shown.map(|run| run.join().unwrap()), [true; 2]);
        assert_eq!(hidden.map(|run| run.join().unwrap()), [false; 2]);
    });
}

/// Before anything has come, somebody may be asked for a password: `ssh host cat | throttle > file`.
#[test]
#[ignore = "slow: 4 s"]
fn the_automatic_bar_waits_for_something_to_come() {
    let terminal = Terminal::new(80);
    let mut command = Command::new(THROTTLE);
    command.env("TERM", "xterm");
    command.args(["-r", "1/s", "-b", "1"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(terminal.end());
    let mut child = command.spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(terminal.rows(), [""; 0]);
    std::io::Write::write_all(&mut &stdin, b"a\nb\nc\n").unwrap();
    terminal.wait_for("the bar", is_bar);
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// The terminal echoes `^C` after the bar. Both are erased.
#[test]
fn after_an_interrupt_nothing_is_left_of_the_bar() {
    for columns in [20, 40, 80, 160] {
        for args in [&["-n0", "sleep", "20"][..], &[]] {
            let folder = tempfile::tempdir().unwrap();
            let mut terminal = Terminal::new(columns);
            let mut command = terminal.command(THROTTLE);
            command
                .args(["--progress=always", "-r", "2/s", "-b", "1", "-a"])
                .arg(lines(folder.path(), 1000))
                .args(args);
            let child = command.stdout(tempfile::tempfile().unwrap()).spawn().unwrap();
            drop(command);
            terminal.wait_for("the bar", |row| row.contains(" left"));
            terminal.press(b"\x03");
            let (_, status) = terminal.watch(child, |_| false);
            assert!(!status.success());
            let rows = terminal.at_rest();
            assert!(!rows.iter().any(|row| is_bar(row) || row.contains(" left") || row.contains('^')), "{rows:#?}");
            assert!(!rows.is_empty(), "{columns}: {rows:#?}");
        }
    }
}

/// The output of commands is above the bar, whole and once. The bar is one row of whole words, and the last one.
#[test]
fn a_bar_beside_output_is_not_torn_doubled_or_left_over() {
    thread::scope(|scope| {
        for columns in [40, 80, 160] {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let terminal = Terminal::new(columns);
                let mut command = terminal.command(THROTTLE);
                // As many jobs as units: at no load are all of them busy, and no sentence says so.
                command.args(["--progress=always", "-k", "-j30", "-r", "20/s", "-b", "1", "-a"]);
                command.arg(lines(folder.path(), 30)).args(["-c", "sleep 0.1; echo \"<$1>\"; test \"$1\" != 'line 7'"]);
                let child = command.spawn().unwrap();
                drop(command);
                let (mut most, mut bars) = (0, Vec::new());
                let begun = std::time::Instant::now();
                let mut child = child;
                while child.try_wait().unwrap().is_none() {
                    assert!(begun.elapsed() < Duration::from_secs(300));
                    let rows = terminal.rows();
                    let (bar, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.contains('%'));
                    most = most.max(bar.len());
                    let is_whole = |row: &String| {
                        row.starts_with('<') && row.ends_with('>') || row.starts_with("throttle: ") || wraps(row)
                    };
                    assert!(others.iter().all(is_whole), "{others:#?}");
                    bars.extend(bar);
                    thread::sleep(Duration::from_millis(7));
                }
                assert_eq!(most, 1, "one bar at most");
                assert!(bars.iter().all(|bar| is_in_whole_words(bar)), "{bars:#?}");
                assert!(bars.iter().any(|bar| bar.contains(" s left")), "{bars:#?}");
                bars.dedup();
                let with_limit = bars.iter().filter(|bar| bar.contains("limit")).count();
                assert!(columns == 80 || with_limit == if columns == 160 { bars.len() } else { 0 }, "{bars:#?}");
                terminal.wait_for("the last line", |row| row == "<line 30>");
                let rows = terminal.at_rest();
                let output: Vec<&String> = rows.iter().filter(|row| row.starts_with('<')).collect();
                let expected: Vec<String> = (1..=30).map(|line| format!("<line {line}>")).collect();
                assert_eq!(output, expected.iter().collect::<Vec<_>>());
                assert!(!rows.iter().any(|row| row.contains('%')), "{rows:#?}");
            });
        }
    });
}

/// The second row of a message that is longer than the narrow terminal is wide.
fn wraps(row: &str) -> bool {
    let message = "throttle: line 7 'line 7': the script exited 1";
    let sum = "throttle: 29 ok, 1 failed; ";
    message.contains(row)
        || row.starts_with("at 20/s")
        || sum.contains(row)
        || row.ends_with("20/s")
        || row.ends_with("20/s)")
}

fn is_in_whole_words(bar: &str) -> bool {
    let (_, text) = bar.split_once("% ").unwrap_or(("", bar.trim_end_matches('%')));
    text.split(", ").filter(|part| !part.is_empty()).all(|part| {
        let ends = [" started", " running", " ok", " failed", "/s now", " left"];
        ends.iter().any(|end| part.ends_with(end)) || part == "limit 20/s"
    })
}

/// A terminal that is made narrower breaks the bar into two rows, or cuts it off.
#[test]
fn a_terminal_made_narrower_keeps_no_piece_of_the_bar() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(160);
    let mut command = terminal.command(THROTTLE);
    command.args(["--progress=always", "-r", "2/s", "-b", "1", "-a"]).arg(lines(folder.path(), 1000)).arg("true");
    let child = command.spawn().unwrap();
    drop(command);
    terminal.wait_for("the bar", |row| row.contains("limit"));
    terminal.resize(40);
    terminal.wait_for("a shorter bar", |row| row.contains(" left") && !row.contains("limit"));
    assert_eq!(terminal.rows().len(), 1, "{:#?}", terminal.rows());
    terminal.press(b"\x03");
    terminal.watch(child, |_| false);
    assert!(!terminal.at_rest().iter().any(|row| row.contains('%')));
}

/// What is written beside the bar draws it again: as wide as the terminal is by then.
#[test]
fn a_bar_beside_output_is_one_row_while_it_is_resized() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(100);
    let mut command = terminal.command(THROTTLE);
    command.args(["--progress=always", "-r", "200/s", "-b", "1", "-a"]).arg(lines(folder.path(), 9999));
    let child = command.args(["-n0", "echo", "out"]).spawn().unwrap();
    drop(command);
    terminal.wait_for("the bar", |row| row.contains(" left"));
    for columns in [60, 30, 80, 20, 9, 100, 40, 120] {
        terminal.resize(columns);
        thread::sleep(Duration::from_millis(40));
        for _ in 0..10 {
            let bars = terminal.rows().into_iter().filter(|row| row != "out").collect::<Vec<_>>();
            assert!(bars.len() <= 1, "{columns}: {bars:#?}");
            thread::sleep(Duration::from_millis(7));
        }
    }
    terminal.press(b"\x03");
    terminal.watch(child, |_| false);
}

/// The time left, or its number alone; if that does not fit either, the percentage.
#[test]
fn below_ten_columns_the_bar_shows_what_fits() {
    for (columns, expected) in [(9, "59m"), (5, "59m"), (3, "0%")] {
        let folder = tempfile::tempdir().unwrap();
        let terminal = Terminal::new(columns);
        let mut command = terminal.command(THROTTLE);
        command.args(["--progress=always", "-r", "1/s", "-b", "1", "-a"]).arg(lines(folder.path(), 3540));
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        terminal.wait_for(expected, |row| row.starts_with(expected) && row.len() < columns.into());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// No rate, no time left and no limit: none of them is true any more.
#[test]
fn after_the_first_interrupt_the_bar_says_what_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(120);
    let mut command = terminal.command(THROTTLE);
    command.args(["--progress=always", "-r", "1000/s", "-a"]).arg(lines(folder.path(), 30)).current_dir(&folder);
    command.args(["-j3", "-c", r#"trap '' INT; : > "$1"; sleep 100 & while :; do wait; done"#]);
    let child = command.spawn().unwrap();
    drop(command);
    while fs::read_dir(&folder).unwrap().count() < 4 {
        thread::sleep(Duration::from_millis(10));
    }
    terminal.press(b"\x03");
    // A part of a row may be there before the rest.
    terminal.wait_for("all of it", |row| row.ends_with("3 started, 3 running, 0 ok, waiting for 3 commands"));
    terminal.press(b"\x03");
    terminal.watch(child, |_| false);
}

/// The prompt of the shell comes next, and the bar again after `fg`.
#[test]
fn a_suspended_run_leaves_no_bar() {
    for (args, stdout) in [(&["sleep", "0.1"][..], true), (&[], false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut terminal = Terminal::new(80);
        let lines = lines(folder.path(), 9999);
        let mut command = terminal.command("bash");
        let script = r#"set -m; "$@"; echo stopped; read -r _; fg >/dev/null"#;
        command.args(["-c", script, "_", THROTTLE, "--progress=always", "-r", "5/s", "-a"]).arg(lines).args(args);
        let out = if stdout { Stdio::null() } else { Stdio::from(tempfile::tempfile().unwrap()) };
        let mut child = command.stdout(out).spawn().unwrap();
        drop(command);
        terminal.wait_for("the bar", |row| row.contains(" left"));
        terminal.press(b"\x1a");
        let begun = std::time::Instant::now();
        while terminal.rows().iter().any(|row| row.contains(" left")) {
            assert!(begun.elapsed() < Duration::from_secs(300), "{:#?}", terminal.rows());
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!terminal.at_rest().iter().any(|row| row.contains(" left")));
        terminal.press(b"\n");
        terminal.wait_for("the bar again", |row| row.contains(" left"));
        terminal.press(b"\x03");
        child.wait().unwrap();
    }
}

/// 40 lines at 10 a second are 4 s, by whatever lines they are; two jobs of 0.5 s each manage 4 a second.
#[test]
fn the_time_left_of_a_file_is_known_for_lines_and_for_commands() {
    let seconds_left = |options: &'static [&'static str]| {
        move || {
            let folder = tempfile::tempdir().unwrap();
            let terminal = Terminal::new(160);
            let mut command = terminal.command(THROTTLE);
            command
                .args(["--progress=always", "-r", "10/s", "-b", "1", "-a"])
                .arg(lines(folder.path(), 40))
                .args(options);
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            let row = terminal
                .wait_for("a bar", |row| row.contains(" s left") && !row.contains("% 1 ") && !row.contains(" 0 ok"));
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
            child.wait().unwrap();
            let (before, _) = row.split_once(" s left").unwrap();
            before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        }
    };
    thread::scope(|scope| {
        let lines = scope.spawn(seconds_left(&[]));
        let jobs = scope.spawn(seconds_left(&["-j2", "-n0", "sleep", "0.5"]));
        assert!((2..=4).contains(&lines.join().unwrap()));
        assert!((8..=30).contains(&jobs.join().unwrap()));
    });
}

#[test]
fn if_the_next_unit_has_a_long_wait_the_bar_says_when_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(80);
    let mut command = terminal.command(THROTTLE);
    command.args(["--progress=always", "-r", "1/h", "-b", "1", "-a"]).arg(lines(folder.path(), 2));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let row = terminal.wait_for("the bar", |row| row.contains("next in"));
    assert!(row.contains("1 line, 7 B, next in 1h, 1h left, limit 1/h"), "{row}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn on_a_terminal_twenty_failed_units_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(80);
    let mut command = terminal.command(THROTTLE);
    command.args(["-r", "1000/s", "-a"]).arg(lines(folder.path(), 25)).arg("false");
    let child = command.spawn().unwrap();
    drop(command);
    terminal.watch(child, |_| false);
    let rows = terminal.at_rest();
    assert_eq!(rows.iter().filter(|row| row.ends_with("': false exited 1")).count(), 20, "{rows:#?}");
    assert_eq!(rows[20], "throttle: 5 more lines failed; 2> FILE names them all");
    assert!(rows[21].starts_with("throttle: 0 ok, 25 failed; "), "{rows:#?}");
}

/// After the first interrupt nothing seems to happen, so a message names the commands that the run waits for.
#[test]
fn the_first_interrupt_names_commands_that_ignore_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(80);
    let mut command = terminal.command(THROTTLE);
    command.args(["--progress=always", "-r", "1000/s", "-a"]).arg(lines(folder.path(), 30));
    command.args(["-j", "24", "-c", r#"trap '' INT; : > "$1"; sleep 100 & while :; do wait; done"#]);
    command.current_dir(&folder);
    let child = command.spawn().unwrap();
    drop(command);
    terminal.wait_for("24 commands", |row| row.contains("24 started, 24 running"));
    while fs::read_dir(&folder).unwrap().count() < 25 {
        thread::sleep(Duration::from_millis(10));
    }
    terminal.press(b"\x03");
    terminal.wait_for("a word", |row| row == "throttle: waiting for 24 commands; again to kill them");
    terminal.press(b"\x03");
    let (_, status) = terminal.watch(child, |_| false);
    assert!(!status.success());
    let rows = terminal.at_rest();
    assert_eq!(rows.iter().filter(|row| row.ends_with(": stopped")).count(), 20, "{rows:#?}");
    let expected = [
        "throttle: 4 more lines stopped; 2> FILE names them all",
        "throttle: interrupted: 0 ok, 24 stopped, next line not started: 25 'line 25'",
    ];
    assert_eq!(rows[rows.len() - 2..], expected, "{rows:#?}");
    assert!(!rows.iter().any(|row| row.contains('%')), "{rows:#?}");
}

/// A success is reported to a user who watches.
#[test]
fn on_a_terminal_a_success_is_summed_up() {
    let folder = tempfile::tempdir().unwrap();
    let terminal = Terminal::new(80);
    let mut command = terminal.command(THROTTLE);
    let child = command.args(["-r", "1000/s", "-a"]).arg(lines(folder.path(), 2)).arg("true").spawn().unwrap();
    drop(command);
    terminal.watch(child, |_| false);
    let rows = terminal.at_rest();
    assert!(rows.len() == 1 && rows[0].starts_with("throttle: 2 ok, 0 failed; "), "{rows:#?}");
}

/// Waits for the bar with its limit, some time after the keys would have been named. Returns it.
fn bar_of(columns: u16, setup: &str, options: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(columns);
    let mut command = terminal.command("sh");
    command.args(["-c", &format!("{setup} exec \"$@\""), "sh", THROTTLE, "--progress=always", "-r", "1/h", "-a"]);
    command.arg(lines(folder.path(), 9)).args(options).env("THROTTLE_TEST_SHORTER_WAITS", "20");
    let child = command.stdout(tempfile::tempfile().unwrap()).spawn().unwrap();
    drop(command);
    let bar = if options.contains(&"-j2") && setup.is_empty() && columns > 100 {
        terminal.wait_for("the keys", |row| row.contains("Ctrl-C"))
    } else {
        terminal.wait_for("the bar", |row| row.contains("next in"));
        thread::sleep(Duration::from_millis(1500));
        terminal.wait_for("the bar", |row| row.contains("next in"))
    };
    terminal.press(b"\x03");
    terminal.watch(child, |_| false);
    bar
}

/// Not those of a pipe, which both end; nor those that a command on the terminal gets, too, or that are others.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "slow: a release does not shorten waits")]
fn the_bar_names_the_keys_that_end_a_run_if_there_is_room() {
    thread::scope(|scope| {
        let named = scope.spawn(|| bar_of(160, "", &["-j2", "true"]));
        let unnamed = [
            scope.spawn(|| bar_of(100, "", &["-j2", "true"])),
            scope.spawn(|| bar_of(160, "", &["-j1", "true"])),
            scope.spawn(|| bar_of(160, "", &[])),
            scope.spawn(|| bar_of(160, "stty quit ^A;", &["-j2", "true"])),
            scope.spawn(|| bar_of(160, "trap '' QUIT;", &["-j2", "true"])),
        ];
        let bar = named.join().unwrap();
        assert!(bar.ends_with(", limit 1/h, Ctrl-\\ lets commands finish, Ctrl-C ends them"), "{bar}");
        for bar in unnamed {
            let bar = bar.join().unwrap();
            assert!(!bar.contains("Ctrl-"), "{bar}");
        }
    });
}

/// A command with `-j 1` gets the signal from the terminal, and often ends before throttle has read the signal. The log said
/// `failed` or `again`, and the summary "1 stopped" or "not tried again".
#[test]
fn an_interrupt_has_one_word_in_the_summary_and_log() {
    let scripts = ["exec sleep 100", "trap 'exit 3' INT; while :; do sleep 0.01; done"];
    for options in [&["-j1"][..], &["-j1", "--attempts", "2"], &["-j2", "--attempts", "2"]] {
        for script in scripts {
            let folder = tempfile::tempdir().unwrap();
            let mut terminal = Terminal::new(120);
            let mut command = terminal.command(THROTTLE);
            let script = format!("echo $$ > started; {script}");
            command.args(["-q", "-r", "100/s", "-b", "1", "--log", "tries", "--repeat", "1"]).args(options);
            let child = command.args(["--summary=json:sum", "-c", &script]).current_dir(&folder).spawn().unwrap();
            drop(command);
            number_in(&folder.path().join("started"));
            terminal.press(b"\x03");
            terminal.watch(child, |_| false);
            let log = fs::read_to_string(folder.path().join("tries")).unwrap();
            let verdicts: Vec<_> = logged_attempts(&log).iter().map(|line| line["verdict"].clone()).collect();
            assert_eq!(verdicts, ["stopped"], "{options:?} {script}: {log}");
            let sum: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(folder.path().join("sum")).unwrap()).unwrap();
            let counts = ["stopped", "failed", "not_tried_again"].map(|name| sum["commands"][name].as_u64());
            assert_eq!(counts, [Some(1), Some(0), Some(0)], "{options:?} {script}: {sum}");
            let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
            assert_eq!((&last["run"]["stopped"], &last["run"]["failed"]), (&1.into(), &0.into()), "{log}");
        }
    }
}
