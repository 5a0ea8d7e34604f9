//! Launch mode through the real program: the arguments and environment of commands, when they start, and dry runs.

use crate::support::*;
use std::fs;
use std::io::{Read, Write};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Units that spoil quoting, splitting, decoding or replacing.
const AWKWARD: [&[u8]; 10] = [
    b"a b  c",
    b"\xff\xfe\x80",
    b"'\"\\`$(touch /tmp/no)",
    b"two\nlines\n",
    b"-n",
    b"--help",
    b"{}",
    b"*",
    b"",
    b"; exit 7 #",
];

fn ended_by(byte: u8, units: &[&[u8]]) -> Vec<u8> {
    units.iter().flat_map(|unit| [unit, &[byte][..]].concat()).collect()
}

#[test]
fn a_unit_reaches_the_command_as_it_is() {
    let input = ended_by(0, &AWKWARD);
    let around: Vec<Vec<u8>> = AWKWARD.iter().map(|unit| [b"<", *unit, b"|", unit, b">"].concat()).collect();
    let around = around.iter().map(Vec::as_slice).collect::<Vec<_>>();
    for (args, expected) in [
        (&["printf", "%s\\0"][..], ended_by(0, &AWKWARD)),
        (&["printf", "%s\\0", "{}"], ended_by(0, &AWKWARD)),
        (&["printf", "%s\\0", "<{}|{}>"], ended_by(0, &around)),
        (&["-I", "@@", "--", "printf", "%s\\0", "<@@|@@>"], ended_by(0, &around)),
        (&["-c", "printf '%s\\0' \"$1\""], ended_by(0, &AWKWARD)),
        (&["-n", "3", "printf", "%s\\0"], ended_by(0, &AWKWARD)),
        (&["--stdin", "cat"], ended_by(0, &AWKWARD)),
        (&["-n", "4", "--stdin", "cat"], ended_by(0, &AWKWARD)),
    ] {
        let ended = run([&["-0k", "-r", "unlimited"], args].concat(), &input);
        assert_eq!(ended.code(), Some(0), "{args:?} {}", ended.err);
        assert!(ended.out == expected, "{args:?} gave {:?}", String::from_utf8_lossy(&ended.out));
    }
}

#[test]
fn a_command_gets_its_number_of_units_or_what_is_left() {
    for (args, expected) in [
        (&["-n", "2", "echo"][..], "1 2\n3 4\n5\n"),
        (&["-n", "2", "echo", "{}", "end"], "1 2 end\n3 4 end\n5 end\n"),
        (&["-n", "9", "-c", "echo $# $0 $3"], "5 throttle -c 3\n"),
        (&["-n", "0", "echo", "x"], "x\nx\nx\nx\nx\n"),
        (&["-n", "2", "--stdin", "-c", "cat; echo $#"], "1\n2\n0\n3\n4\n0\n5\n0\n"),
    ] {
        let ended = run([&["-k", "-r", "unlimited"], args].concat(), numbers(5));
        assert_eq!((ended.text(), ended.code()), (expected, Some(0)), "{args:?}");
    }
}

/// Their pointers count, too (execve(2)): a million short units in half a megabyte of text are too many.
#[test]
fn what_is_more_than_the_kernel_takes_goes_to_several_commands() {
    let ended = run(["-r", "unlimited", "-n", "1000000", "-c", "echo $#"], "1\n".repeat(300_000));
    let counts: Vec<u64> = ended.text().lines().map(|count| count.parse().unwrap()).collect();
    assert_eq!((counts.iter().sum::<u64>(), ended.code()), (300_000, Some(0)), "{}", ended.err);
    assert!(counts.len() > 1);
}

/// Six times a million units are more than six times too many.
#[test]
fn units_that_a_command_repeats_count_each_time() {
    let repeating = ["sh", "-c", "echo $#", "sh", "{}", "{}", "{}", "{}", "{}", "{}"];
    let args = [&["-r", "unlimited", "-n", "1000000", "--"][..], &repeating].concat();
    let ended = run(args, numbers(300_000));
    let counts: Vec<u64> = ended.text().lines().map(|count| count.parse().unwrap()).collect();
    assert_eq!((counts.iter().sum::<u64>(), ended.code()), (6 * 300_000, Some(0)), "{}", ended.err);
}

/// A quarter of the stack is for arguments and the environment: execve(2).
#[test]
fn a_small_stack_leaves_a_command_fewer_units() {
    // Not optimised, the program itself takes more than 500 KiB of stack.
    let mut shell = shell("ulimit -s 800; exec \"$0\" \"$@\"");
    shell.args(["-r", "unlimited", "-n", "1000000", "-c", "echo $#"]).env("LARGE", "x".repeat(110_000));
    let ended = feed(shell, numbers(30_000));
    let counts: Vec<u64> = ended.text().lines().map(|count| count.parse().unwrap()).collect();
    assert_eq!((counts.iter().sum::<u64>(), ended.code()), (30_000, Some(0)), "{}", ended.err);
}

#[test]
fn what_would_surprise_is_refused() {
    for (args, words) in [
        (&["sh", "-c", "rm '{}'"][..], "-c 'rm \"$1\"'"),
        (&["/bin/bash", "-ec", "rm {}"], "would run the unit as code"),
        (&["bash", "-ce", "rm {}"], "-c 'rm \"$1\"'"),
        (&["bash", "-c", "-e", "rm {}"], "would run the unit as code"),
        (&["bash", "-o", "pipefail", "-c", "rm {}"], "would run the unit as code"),
        (&["timeout", "5", "bash", "-c", "rm {}"], "write … bash -c 'rm \"$1\"' bash {}, where"),
        (&["echo", "{.}"], "-c '… \"${1%.*}\"'"),
        (&["echo", "{/}"], "${1##*/}"),
        (&["echo", "{//}"], "dirname"),
        (&["echo", "{#}"], "$THROTTLE_SEQ"),
        (&["echo", "{%}"], "$THROTTLE_SLOT"),
        (&["-n", "2", "echo", "x{}"], "with -n 2, {} must be a word of its own"),
        (&["--stdin", "echo", "{}"], "{} cannot be used with --stdin"),
        (&["-n", "0", "echo", "{}"], "{} cannot be used with -n 0"),
        (&["-I", "", "echo"], "-I {}"),
        (&["-I", "%", "echo", "{}"], "write '%' where the unit goes"),
        (&["--stdin"], "--stdin needs a command"),
        (&["--bytes", "echo"], "commands are not counted in bytes"),
        (&["echo", ":::", "a"], "printf '%s\\n' A B"),
        (&["--frobnicate", "echo"], "--frobnicate"),
    ] {
        let ended = run([&["-r", "5/s"], args].concat(), "a\n");
        assert_eq!((ended.code(), ended.text()), (Some(2), ""), "{args:?}");
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
    }
    let meant = run(["-r", "5/s", "-I", "{}", "--", "sh", "-c", "echo {}"], "a\n");
    assert_eq!(meant.text(), "a\n", "with -I the unit is code on purpose");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.sh");
    fs::write(&script, "echo \"$@\"").unwrap();
    let other = run(["-q", "-r", "5/s", "bash", script.to_str().unwrap(), "-c", "{}"], "a\n");
    assert_eq!((other.text(), &*other.err), ("-c a\n", ""), "the -c is the script's");
}

#[test]
fn a_unit_that_cannot_be_an_argument_fails_alone() {
    let long = b"x".repeat(200_000);
    let longer = b"y".repeat(3_000_000);
    let input = [b"a\nnul\0byte\n", &long[..], b"\nb\n", &longer, b"\nc\n"].concat();
    let ended = run(["-k", "-r", "unlimited", "echo"], &input);
    assert_eq!((ended.text(), ended.code()), ("a\nb\nc\n", Some(126)), "{}", ended.err);
    assert!(ended.err.contains("line 2 'nul\\u{0}byte': has a NUL byte"), "{}", ended.err);
    assert!(ended.err.contains("line 3 'xxx") && ended.err.contains("too long for an argument"), "{}", ended.err);
    assert!(ended.err.contains("3 ok, 3 failed"), "{}", ended.err);
    let ended = run(["-k", "-r", "unlimited", "--stdin", "wc", "-c"], &input);
    assert_eq!((ended.text(), ended.code()), ("2\n9\n200001\n2\n3000001\n2\n", Some(0)), "{}", ended.err);
}

#[test]
fn a_huge_unit_goes_through_standard_input_in_little_memory() {
    let length = if cfg!(debug_assertions) { 20 << 20 } else { 100 << 20 };
    let input = [&b"x".repeat(length)[..], b"\n"].concat();
    let ended = run(["-r", "unlimited", "--stdin", "wc", "-c"], &input);
    assert_eq!((ended.text().trim(), ended.code()), (&*(length + 1).to_string(), Some(0)), "{}", ended.err);
    assert!(ended.peak < most_memory(), "{} KiB", ended.peak);
    let ended = run(["-r", "unlimited", "--stdin", "true"], &input);
    assert_eq!((ended.code(), &*ended.err), (Some(0), ""));
}

#[test]
fn otherwise_standard_input_is_empty() {
    assert_eq!(run(["-r", "unlimited", "-c", "cat; echo $1"], "a\nb\n").sorted(), ["a", "b"]);
}

#[test]
fn a_command_is_looked_up_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    for (command, code, words) in [
        ("no-such-command", 127, "'no-such-command': no such command in PATH"),
        ("./no-such-command", 127, "'./no-such-command': no such command"),
        (plain.to_str().unwrap(), 126, "is not executable"),
    ] {
        let mut child = throttle(["-r", "5/s", command]).spawn().unwrap();
        let open = child.stdin.take();
        let ended = Running::read(child).finish();
        assert_eq!((ended.code(), ended.err.contains(words)), (Some(code), true), "{}", ended.err);
        drop(open);
    }
    let command = with_public_path(throttle(["-k", "-r", "unlimited", "--", "{}"]));
    let ended = feed(command, "no-such-command\ntrue\n");
    assert_eq!((ended.code(), ended.err.contains("1 ok, 1 failed")), (Some(127), true), "{}", ended.err);
}

#[test]
#[ignore = "slow: 3 s"]
fn no_more_run_at_once_than_jobs() {
    for (jobs, most) in [("3", 3), ("-P 2", 2), ("0", 12)] {
        let jobs = if jobs.starts_with('-') { jobs.replace(' ', "") } else { format!("-j{jobs}") };
        let ended = run([&jobs, "-u", "-r", "unlimited", "-c", "echo +; sleep 0.3; echo -"], numbers(12));
        let mut running = 0;
        let peak = ended.text().lines().map(|line| {
            running += if line == "+" { 1 } else { -1 };
            running
        });
        assert_eq!((peak.max(), ended.code()), (Some(most), Some(0)), "{jobs}");
    }
}

#[test]
fn commands_know_their_number_and_their_slot() {
    let ended = run(["-j2", "-k", "-r", "unlimited", "-c", "echo $THROTTLE_SEQ $THROTTLE_SLOT $1"], numbers(6));
    for (line, number) in ended.text().lines().zip(1..) {
        let slot = line.strip_prefix(&format!("{number} ")).and_then(|rest| rest.strip_suffix(&format!(" {number}")));
        assert!(["0", "1"].contains(&slot.unwrap()), "{line}");
    }
}

/// Four commands hold the four slots for a second, in which twenty units would have gone.
#[test]
#[ignore = "slow: 2 s"]
fn slots_that_free_up_together_make_no_burst() {
    let script = "date +%s%N; if [ $1 -le 4 ]; then sleep 1.2; fi";
    let ended = run(["-j4", "-r", "20/s", "-c", script], numbers(24));
    let starts: Vec<u64> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!((starts.len(), ended.code()), (24, Some(0)));
    assert_spaced(&starts, Duration::from_millis(50), Duration::from_millis(300));
}

#[test]
fn a_unit_runs_while_the_input_is_open_and_silent() {
    let mut child = throttle(["-r", "100/s", "echo"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"first\nunended").unwrap();
    let mut line = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"first\n");
    drop(stdin);
    assert_eq!(Running::read(child).finish().text(), "unended\n");
}

#[test]
fn reading_does_not_run_ahead_of_the_commands() {
    let script = "if [ $THROTTLE_SEQ = 200 ]; then exit 255; fi";
    let mut child = throttle(["-q", "-r", "unlimited", "-c", script]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let endless = thread::spawn(move || {
        let lines = "https://example.org/a/rather/long/address\n".repeat(1000);
        let mut written = 0;
        while stdin.write_all(lines.as_bytes()).is_ok() {
            written += lines.len();
        }
        written
    });
    let ended = Running::read(child).finish();
    assert_eq!(ended.code(), Some(124), "{}", ended.err);
    assert!(ended.peak < most_memory(), "{} KiB", ended.peak);
    assert!(endless.join().unwrap() < 2 << 20);
}

/// A line without an end is no reason to keep it.
#[test]
fn what_is_too_long_is_not_held() {
    let ended = run(["-r", "unlimited", "echo"], b"x".repeat(30 << 20));
    assert_eq!(ended.code(), Some(126));
    assert!(ended.peak < most_memory(), "{} KiB", ended.peak);
}

/// Short units in one command, each of which took an allocation of its own, and long ones in many at once.
#[test]
fn many_units_or_much_of_them_take_little_memory() {
    let many = if cfg!(debug_assertions) { 300_000 } else { 2_000_000 };
    let long = format!("{}\n", "x".repeat(130_000)).repeat(100);
    for (how, input) in [
        (&["-n", "50000"][..], numbers(many)),
        (&["-n", "5000"], numbers(many / 2)),
        (&["-n", "1000000", "-r", "1M/s"], "a\n".repeat(2 * many as usize)),
        (&["-j", "64"], long),
    ] {
        let rate = &["-r", "unlimited"][..];
        let rate = if how.contains(&"-r") { &[] } else { rate };
        let ended = run([&["-q"], rate, how, &["true"]].concat(), input);
        assert_eq!((ended.code(), &*ended.err), (Some(0), ""), "{how:?}");
        assert!(ended.peak < most_memory(), "{how:?}: {} KiB", ended.peak);
    }
}

/// Each command takes three descriptors or more, and what goes to its standard input another; there are forty.
#[test]
#[ignore = "slow: 3 s"]
fn if_the_system_has_no_room_the_next_command_waits() {
    let long = format!("{}\n", "x".repeat(30_000)).repeat(60);
    for (how, input) in [("echo $1", numbers(60)), ("wc -c", numbers(60)), ("wc -c", long)] {
        let mut shell = shell("ulimit -n 40; exec \"$0\" \"$@\"");
        shell.args(["-j0", "-r", "unlimited"]).args((how == "wc -c").then_some("--stdin"));
        shell.arg("-c").arg(format!("sleep 0.1; {how}"));
        let ended = feed(shell, &input);
        assert_eq!((ended.sorted().len(), ended.code()), (60, Some(0)), "{how}: {}", ended.err);
    }
}

/// tokio panics if it cannot open the files it needs. With any number of files, the message says what helps.
#[test]
fn too_few_files_at_the_start_are_reported() {
    for files in 6..16 {
        let mut shell = shell(&format!("ulimit -n {files}; exec \"$0\" \"$@\""));
        shell.args(["-r", "unlimited", "echo"]);
        let ended = feed(shell, "a\n");
        let (first, own_error) = (ended.err.lines().next().unwrap_or_default(), ended.code() == Some(1));
        let words = "Too many open files (os error 24); ulimit -n allows more open files";
        assert!(first.starts_with("throttle: ") && first.ends_with(words), "{files}: {}", ended.err);
        assert!(own_error || ended.code() == Some(126), "{files}: {:?}", ended.status);
    }
}

/// The file of the first reply has a high number. The kernel makes a table for so many, and waits some milliseconds if there are
/// several threads: with `cost=` the first command of a run started 6 to 20 ms after its grant.
#[test]
#[cfg(target_os = "linux")]
fn there_is_room_for_replies_before_the_first_command() {
    let mut running = Running::start(throttle(["-r", "1/s,cost=f1", "true"]));
    running.settle();
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim();
    assert!(size.parse::<u32>().unwrap() >= 512, "{size}");
    drop(running.stdin());
    assert!(running.end().success());
}

#[test]
fn commands_inherit_nothing_of_how_we_wait() {
    let slack = run(["-r", "unlimited", "--repeat", "1", "cat", "/proc/self/timerslack_ns"], "");
    let usual = Command::new("cat").arg("/proc/self/timerslack_ns").output().unwrap();
    assert_eq!(slack.out, usual.stdout);
    for jobs in ["-j1", "-j2"] {
        let ours = run([jobs, "-r", "unlimited", "--repeat", "1", "grep", "^Sig[BIC]", "/proc/self/status"], "");
        let usual = Command::new("grep").args(["^Sig[BIC]", "/proc/self/status"]).output().unwrap();
        assert_eq!(ours.text(), String::from_utf8(usual.stdout).unwrap());
    }
}

#[test]
fn signals_ignored_at_the_start_stay_ignored_for_commands_too() {
    let throttle = THROTTLE;
    let script = format!("trap '' HUP INT; exec {throttle} -r unlimited --repeat 1 grep SigIgn /proc/self/status");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let ignored = String::from_utf8(output.stdout).unwrap();
    let mask = u64::from_str_radix(ignored.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & 0b11, 0b11, "{ignored}");
}

#[test]
fn units_may_come_from_nowhere() {
    assert_eq!(run(["-k", "-r", "unlimited", "--repeat", "3", "echo", "x"], "unread").text(), "x\nx\nx\n");
    assert_eq!(run(["-k", "-r", "unlimited", "--repeat", "3", "echo", "<{}>"], "").text(), "<1>\n<2>\n<3>\n");
    assert_eq!(run(["-k", "-r", "unlimited", "--repeat", "0", "echo"], "").text(), "");
    let ended = run(["-q", "-r", "unlimited", "--repeat", "inf", "--", "sh", "-c", "exit $1", "x", "255"], "");
    assert_eq!(ended.code(), Some(124));
}

#[test]
fn a_trace_can_be_pasted() {
    let ended = run(["-qt", "-r", "unlimited", "-j1", "echo", "it's", "{}"], "a b\n$HOME\n");
    let pasted = Command::new("sh").args(["-c", &ended.err]).output().unwrap();
    assert_eq!((ended.text(), &ended.out), ("it's a b\nit's $HOME\n", &pasted.stdout), "{}", ended.err);
}

#[test]
fn a_dry_run_can_be_pasted_and_shows_times_total_and_the_most() {
    let args = ["--dry-run", "-r", "2/s", "-b", "2", "-r", "100/h", "printf", "%s.", "x {}"];
    let units = ended_by(b'\n', &[b"a b", b"", b"'\"", b"\xff", b"{} #"]);
    let ended = run(args, &units);
    let text = String::from_utf8_lossy(&ended.out).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let times: Vec<&str> = lines.iter().filter_map(|line| line.split("  # ").nth(1)).collect();
    assert_eq!(times, ["0 s", "0 s", "500 ms", "1 s"], "{text}");
    let expected = [
        "# 4 commands in 1 s, 1 blank line skipped",
        "# 2/s,burst=2: at most 3 in any second",
        "# 100/h,window,slack=250ms: at most 100 in any hour",
    ];
    assert_eq!(lines[4..], expected);
    let shell = with_pipes(Command::new("sh"));
    assert_eq!(feed(shell, &ended.out).out, b"x a b.x '\".x \xff.x {} #.");
}

#[test]
fn a_dry_run_stops_when_the_run_would() {
    let ended = run(["-r", "5/s", "-b", "1", "--stop-after", "1s", "--dry-run", "echo"], numbers(40));
    let lines: Vec<&str> = ended.text().lines().collect();
    assert_eq!(
        (lines.len(), lines.last().copied()),
        (6 + 2, Some("# 5/s,burst=1: at most 5 in any second")),
        "{lines:?}"
    );
    assert!(lines[6].starts_with("# 6 commands in 1 s"), "{lines:?}");
}

/// Before, a unit that would fail was shown without its content, or changed, as if it ran.
#[test]
fn a_dry_run_says_what_cannot_be_run() {
    let long = "x".repeat(200_000);
    let input = format!("a\0b\nok\n{long}\n{}\n", long.repeat(3));
    let ended = run(["-r", "5/s", "-b", "1", "--dry-run", "echo"], &input);
    let shown = format!("{}…", "x".repeat(60));
    let lines = [
        "# line 1 'a\\u{0}b': has a NUL byte, which no argument can hold; use --stdin  # 0 s".to_owned(),
        "echo ok  # 200 ms".to_owned(),
        format!("# line 3 '{shown}': is too long for an argument; use --stdin, which has no limit  # 400 ms"),
        format!("# line 4 '{shown}': is too long for an argument; use --stdin, which has no limit  # 600 ms"),
        "# 1 command in 600 ms, 3 that cannot be run".to_owned(),
    ];
    assert_eq!(
        (ended.text().lines().take(5).collect::<Vec<_>>(), ended.code()),
        (lines.iter().map(|line| &**line).collect(), Some(0))
    );
    // Around what is short enough by itself there is more; and one that fits alone does not fit a hundred times.
    let unit = format!("{}\n", "y".repeat(131_000));
    let around = "{}".to_owned() + &"z".repeat(100);
    let often = vec!["{}"; 100];
    for command in [&[&*around][..], &often] {
        let command = [&["echo"], command].concat();
        let shown = run([&["-r", "5/s", "--dry-run"], &command[..]].concat(), &unit);
        assert!(shown.text().starts_with("# line 1 'yyy") && shown.text().contains("too long"), "{}", shown.text());
        assert_eq!(run([&["-q", "-r", "5/s"], &command[..]].concat(), &unit).code(), Some(126), "as it is when run");
    }
    assert_eq!(
        run(["-r", "5/s", "--dry-run", "--stdin", "cat"], &unit).text().lines().next().map(|line| &line[..10]),
        Some("cat  # 0 s")
    );
}

#[test]
fn ten_years_are_shown_at_once() {
    let ended = run(["--repeat", "3650", "-r", "1/d", "--dry-run", "echo", "{}"], "");
    assert!(ended.text().contains("echo 3650  # 3649d\n# 3650 commands in 3649d\n"));
}

#[test]
fn a_dry_run_shows_each_unit_as_it_is_read_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = throttle(["-r", "1/h", "--dry-run", "touch", "{}"]);
    let mut child = command.current_dir(&folder).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for (unit, expected) in [("a\n", "touch a  # 0 s\n"), ("b\n", "touch b  # 1h\n")] {
        stdin.write_all(unit.as_bytes()).unwrap();
        let mut line = vec![0; expected.len()];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(line, expected.as_bytes());
    }
    drop(stdin);
    assert_eq!(Running::read(child).finish().code(), Some(0));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_dry_run_of_a_pipe_shows_when_each_unit_would_leave() {
    let long = "x".repeat(300_000);
    let ended = run(["--dry-run", "-r", "2/s", "-b", "2"], format!("a b\n\n{long}\n\x1b[1m\nlast"));
    let lines = [
        "a b  # 0 s",
        "  # 0 s",
        &format!("{}…  # 500 ms", "x".repeat(60)),
        "\\u{1b}[1m  # 1 s",
        "last  # 1.5 s",
        "# 5 lines in 1.5 s",
        "# 2/s,burst=2: at most 3 in any second",
    ];
    assert_eq!((ended.text().lines().collect::<Vec<_>>(), ended.code()), (lines.to_vec(), Some(0)));
    let records = run(["--dry-run", "-r", "3/h", "-0"], "a\nb\0\0");
    assert_eq!(records.text(), "a\\nb  # 0 s\n  # 20m\n# 2 records in 20m\n# 3/h,burst=1: at most 3 in any hour\n");
    let bytes = run(["--dry-run", "-r", "10B/s", "-b", "10"], "x".repeat(30));
    assert_eq!(bytes.text(), "# 30 bytes in 2 s\n# 10B/s,burst=10: at most 19 B in any second\n");
    let bytes = run(["--dry-run", "-r", "5MiB/s"], "");
    assert!(bytes.text().ends_with(": at most 5.05 MiB in any second\n"), "{}", bytes.text());
}

#[test]
fn the_summary_counts_commands() {
    let script = "case $1 in 2) exit 3;; 3) kill -9 $$;; 4) sleep 20;; esac";
    let ended = run(["-q", "-r", "100/s", "--timeout", "1s", "--summary=json", "-c", script], "1\n2\n\n3\n4\n");
    let summary: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    let commands = serde_json::json!({
        "started": 4, "running": 0, "ok": 1, "failed": 3, "timed_out": 1, "killed": 1, "stopped": 0, "blank_skipped": 1,
        "ok_after_retry": 0, "told_to_wait": 0, "paused_ns": 0, "to_be_tried_again": 0, "not_tried_again": 0,
            "read_and_not_started": 0,
        "done_before": 0, "learned": null, "jobs_needed": null
    });
    assert_eq!((&summary["commands"], &summary["unit"], &summary["units"]), (&commands, &"command".into(), &4.into()));
    for field in ["elapsed_ns", "waited_for_limits_ns", "waited_for_source_ns", "waited_for_sink_ns"] {
        assert!(summary[field].is_u64(), "{field}");
    }
    assert_eq!(summary["limits"][0]["limit"], "100/s,burst=1");
}

/// The input can be read all the time, so the wait for the next grant ended at once, again and again.
#[test]
fn a_run_whose_next_unit_waits_uses_no_cpu() {
    for attempts in ["1", "2"] {
        let mut run = Running::start(throttle(["-r", "1/h", "--attempts", attempts, "true"]));
        run.stdin().write_all(numbers(100).as_bytes()).unwrap();
        let used = || {
            let before = cpu_time(run.pid());
            thread::sleep(Duration::from_millis(500));
            cpu_time(run.pid()) - before
        };
        is_right_once(used, |used| *used < 10);
        run.signal(rustix::process::Signal::INT);
        run.finish();
    }
}
