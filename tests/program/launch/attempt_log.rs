//! `--log FILE`, through the real program: a line of JSON for each attempt that has ended.

use crate::launch::output::with_room_for;
use crate::support::*;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

fn logged(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = throttle([&["-r", "unlimited", "--log", "log"][..], args].concat());
    command.current_dir(folder);
    command
}

/// The lines, in the order of their commands and attempts.
fn lines(folder: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "every line has its end");
    let mut lines = logged_attempts(&text);
    lines.sort_by_key(|line| (line["seq"].as_u64(), line["try"].as_u64()));
    lines
}

fn seconds(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} in {line}"))
}

#[test]
fn each_end_has_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let script = "case $1 in 3) exit 126;; 4) kill -9 $$;; 6) [ $THROTTLE_ATTEMPT -gt 1 ] || { echo 'HTTP/1.1 503 x' > \"$THROTTLE_REPLY\"; exit 1; };; \
          7) [ $THROTTLE_ATTEMPT -gt 1 ];; 8) echo 'throttle-cost: 7' > \"$THROTTLE_REPLY\";; esac";
    let args = ["-q", "--attempts", "2", "--backoff", "40ms", "-c", script];
    let ended = feed(logged(&folder, &args), "1\n\n3\n4\n6\n7\n8\n\\ \"\u{1}\u{e9}\n\u{fffd}\n");
    assert_eq!(ended.code(), Some(125), "{}", ended.err);
    let lines = lines(&folder);
    let short = |line: &Value| {
        ["unit", "try", "exit", "signal", "timed_out", "http", "verdict", "cost"].map(|field| line[field].clone())
    };
    let expected: Value = serde_json::json!([
        ["1", 1, 0, null, false, null, "ok", null],
        ["3", 1, 126, null, false, null, "failed", null],
        ["4", 1, null, 9, false, null, "again", null],
        ["4", 2, null, 9, false, null, "failed", null],
        ["6", 1, 1, null, false, 503, "later", null],
        ["6", 2, 0, null, false, null, "ok", null],
        ["7", 1, 1, null, false, null, "again", null],
        ["7", 2, 0, null, false, null, "ok", null],
        ["8", 1, 0, null, false, null, "ok", 7],
        ["\\ \"\u{1}\u{e9}", 1, 0, null, false, null, "ok", null],
        ["\u{fffd}", 1, 0, null, false, null, "ok", null],
    ]);
    let found: Vec<_> = lines.iter().map(short).collect();
    assert_eq!(serde_json::json!(found), expected);
    for line in &lines {
        let (start, ran) = (seconds(line, "start"), seconds(line, "ran"));
        let is_repeated = ["again", "later"].contains(&line["verdict"].as_str().unwrap());
        assert_eq!(line["until"].is_null(), !is_repeated, "{line}");
        assert!(!is_repeated || seconds(line, "until") >= start + ran + 0.019, "{line}");
        assert!(start > 1.7e9 && seconds(line, "waited") >= 0.0 && line["slot"].is_u64() && line["error"].is_null());
    }
    feed(logged(&folder, &["-q", "--timeout", "200ms", "-c", "exec sleep 40"]), "late\n");
    let late = self::lines(&folder).into_iter().find(|line| line["unit"] == "late").unwrap();
    assert!(late["timed_out"] == true && late["verdict"] == "failed" && seconds(&late, "ran") >= 0.2, "{late}");
}

#[test]
fn units_that_cannot_be_run_have_their_line_too() {
    let folder = tempfile::tempdir().unwrap();
    let (long, longer) = ("x".repeat(190_000), "y".repeat(400_000));
    let input = format!("/no/such\n/etc/passwd\na\0b\n{long}\n{longer}\ntrue\n");
    let ended = feed(logged(&folder, &["-q", "{}"]), input);
    assert_eq!(ended.code(), Some(127), "{}", ended.err);
    let lines = lines(&folder);
    let found: Vec<_> =
        lines.iter().map(|line| (line["verdict"].as_str().unwrap(), line["cut"].as_bool().unwrap())).collect();
    let failed = [("failed", false), ("failed", false), ("failed", false), ("failed", true), ("failed", true)];
    assert_eq!(found, [&failed[..], &[("ok", false)]].concat());
    let words = ["No such file", "Permission denied", "a unit has a NUL byte", "too long for an argument", "too long"];
    for (line, word) in lines.iter().zip(words) {
        assert!(line["error"].as_str().unwrap().contains(word) && line["exit"].is_null(), "{line}");
    }
    assert_eq!(lines[2]["unit"], "a\0b");
}

#[test]
fn several_units_are_a_list_and_other_bytes_are_base64() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(feed(logged(&folder, &["-n", "2", "true"]), b"a\nb\n\xff\nc\nd\n").code(), Some(0));
    assert_eq!(feed(logged(&folder, &["true"]), b"\xff\xfe\n").code(), Some(0));
    let text = fs::read_to_string(folder.path().join("log")).unwrap();
    for units in
        [r#""units":["a","b"]"#, r#""units_base64":["/w==","Yw=="]"#, r#""unit":"d""#, r#""unit_base64":"//4=""#]
    {
        assert!(text.contains(units), "{units} is missing in: {text}");
    }
    assert_eq!(lines(&folder).len(), 4, "runs are added");
}

/// Whatever ends the run: each attempt that started has ended, and what succeeded is in the list of those that did.
#[test]
fn the_files_are_complete_however_the_run_ends() {
    // The third prints only once the reader has left.
    let wait = "case $1 in 3) until [ -e left ]; do sleep 0.05; done;; esac
        case $1 in [123]) echo $1; echo $1 >> ok;; *) echo $$ > leader.$1; exec sleep 40;; esac";
    let stop = "case $1 in 3) sleep 0.2; exit 255;; 4) sleep 0.4; echo $1 >> ok;; *) echo $1; echo $1 >> ok;; esac";
    let fail = "case $1 in 3) sleep 0.2; exit 9;; 4) sleep 0.4; echo $1 >> ok;; *) echo $1; echo $1 >> ok;; esac";
    for (how, script, code) in [
        ("INT", wait, None),
        ("TERM", wait, None),
        ("reader", wait, None),
        ("255", stop, Some(124)),
        ("--max-fail", fail, Some(123)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let args = ["-j", "2", "--max-fail", "1", "--done", "seen", "-c", script];
        let args = if how == "255" { &[&args[..2], &args[4..]].concat()[..] } else { &args };
        let mut child = logged(&folder, args).spawn().unwrap();
        let input = if code.is_some() { numbers(4) + "5\n6\n7\n8\n9\n" } else { numbers(9) };
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        if how == "reader" {
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            drop(child.stdout.take());
        }
        fs::write(folder.path().join("left"), "").unwrap();
        if how != "reader" && code.is_none() {
            number_in(&folder.path().join("leader.5"));
        }
        let started = Running::read(child);
        match how {
            "INT" => started.signal(Signal::INT),
            "TERM" => started.signal(Signal::TERM),
            _ => {}
        }
        let ended = started.finish();
        assert_eq!(ended.code(), code, "{how}: {}", ended.err);
        let sorted = |file: &str| {
            let text = fs::read_to_string(folder.path().join(file)).unwrap_or_default();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let lines = lines(&folder);
        let with = |verdict: &str| {
            let units = lines.iter().filter(|line| line["verdict"] == verdict);
            units.map(|line| line["unit"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (ok, seen) = (with("ok"), sorted("seen"));
        assert_eq!(ok, seen, "{how}");
        assert!(seen.iter().all(|unit| sorted("ok").contains(unit)), "{how}: {seen:?}");
        let seqs: Vec<u64> = lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "{how}: one for each that started");
        let stopped = with("stopped");
        match how {
            // Running commands get TERM.
            "reader" => assert!(stopped.len() <= 2, "{stopped:?}"),
            _ => assert_eq!(stopped.len(), if code.is_some() { 0 } else { 2 }, "{how}: {stopped:?}"),
        }
        if how == "reader" {
            // One line names the reader, and counts what was stopped.
            assert!(
                ended.err.lines().count() == 1 && ended.err.contains("the reader of the output is gone"),
                "{}",
                ended.err
            );
            continue;
        }
        for unit in stopped {
            assert!(ended.err.contains(&format!("line {unit} '{unit}': stopped\n")), "{how}: {}", ended.err);
        }
    }
}

/// A named pipe in which there is no room, and whoever keeps it open.
fn stuck_fifo(folder: &TempDir) -> File {
    let fifo = folder.path().join("log");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut both = File::options().read(true).write(true).open(&fifo).unwrap();
    let flags = rustix::fs::fcntl_getfl(&both).unwrap();
    rustix::fs::fcntl_setfl(&both, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while both.write(&[b'\n'; 4096]).is_ok() {}
    both
}

#[test]
#[ignore = "slow: 4 s"]
fn an_unread_log_delays_no_timeout_output_or_signal() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = stuck_fifo(&folder);
    let script = "case $1 in 1) echo $$ > leader.1; exec sleep 40;; 20) sleep 0.5; echo 20;; *) echo $1;; esac";
    let mut child =
        logged(&folder, &["-j", "20", "--timeout", "2s", "-c", script]).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(numbers(30).as_bytes()).unwrap();
    let leader = number_in(&folder.path().join("leader.1"));
    let mut out = Vec::new();
    // More wait for the log than there are threads that may.
    while !String::from_utf8_lossy(&out).lines().any(|line| line == "20") {
        let mut piece = [0; 100];
        let length = child.stdout.as_mut().unwrap().read(&mut piece).unwrap();
        assert!(length > 0);
        out.extend_from_slice(&piece[..length]);
    }
    wait_until("its time runs out", || !is_alive(leader));
    assert_eq!(end_with_two(&mut child), Some(15));
    drop(fifo);
}

#[test]
fn a_slow_reader_of_the_log_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut fifo = stuck_fifo(&folder);
    let mut child = Running::read(logged(&folder, &["-q", "-j", "4", "-c", "exit $(($1 % 2))"]).spawn().unwrap());
    child.stdin().write_all(numbers(100).as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(300));
    let reader = thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        // Four of them are of the first and the last line.
        while all.split(|byte| *byte == b'}').count() <= 104 {
            match fifo.read(&mut piece) {
                Ok(length) => all.extend_from_slice(&piece[..length]),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
        String::from_utf8(all).unwrap()
    });
    let ended = child.finish();
    assert_eq!((ended.code(), &*ended.err), (Some(123), ""));
    let text = reader.join().unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    assert_eq!(lines.filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 102);
}

#[test]
fn a_log_that_cannot_be_written_stops_launching() {
    let script = "case $1 in 1) sleep 0.3;; *) sleep 0.01;; esac; echo $1";
    for log in ["/dev/full", "log"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(log);
        // Its lines get longer until they do not fit.
        let args = ["-j", "2", "--log", path.to_str().unwrap(), "-c", script];
        let Some(command) = with_room_for(16 * 1024, folder.path(), &args) else { return };
        let ended = feed(command, numbers(1000));
        let words = format!(
            "throttle: --log: cannot write {}: No space left on device (os error 28); no more commands start\n",
            path.display()
        );
        assert!(ended.code() == Some(1) && ended.err.contains(&words), "{}", ended.err);
        assert!(ended.err.matches("cannot write").count() == 1, "said once: {}", ended.err);
        let ran = ended.text().lines().count();
        assert!((2..200).contains(&ran) && ended.text().lines().any(|line| line == "1"), "{ran}: {}", ended.text());
    }
    let nobody = run(["-r", "unlimited", "--log", "/no/log", "echo"], "1\n");
    assert!(nobody.code() == Some(1) && nobody.out.is_empty(), "{}", nobody.err);
    assert!(nobody.err.starts_with("throttle: --log: cannot open /no/log; name a file that can be written: --log"));
}

/// Whoever counts the attempts needs no more. The last line of the run is lost then, and nothing else.
#[test]
fn a_reader_of_the_log_may_leave_after_the_last_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("log");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = Running::read(logged(&folder, &["true"]).spawn().unwrap());
    let mut stdin = child.stdin();
    stdin.write_all(b"1\n").unwrap();
    let mut reader = BufReader::new(File::open(&fifo).unwrap());
    for word in ["\"command\":", "\"verdict\":\"ok\""] {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(word), "{line}");
    }
    drop(reader);
    drop(stdin);
    let ended = child.finish();
    assert_eq!((ended.code(), &*ended.err), (Some(0), ""));
}

/// The whole log would be one byte too long.
#[test]
fn a_last_line_of_a_log_that_cannot_be_written_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let run = || {
        let mut command = shell("ulimit -f 8; exec \"$0\" -r unlimited --log log true");
        command.current_dir(&folder);
        feed(command, "1\n")
    };
    assert_eq!(run().code(), Some(0));
    let length = fs::metadata(&log).unwrap().len();
    // `ulimit -f` counts blocks of 512 bytes, or of 1024 in some shells.
    let filled = |room| {
        fs::write(&log, "x".repeat(usize::try_from(room - length).unwrap()) + "\n").unwrap();
        run()
    };
    let ended = [4096, 8192].into_iter().map(filled).find(|ended| ended.code() != Some(0)).expect("it is lost");
    assert!(ended.code() == Some(1) && ended.err.contains("--log: cannot write log: "), "{}", ended.err);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.ends_with("}\n") && !text.contains("\"end\""), "its beginning is cut off again: {text}");
}

/// The manual describes every field.
#[test]
fn the_manual_names_every_field() {
    let folder = tempfile::tempdir().unwrap();
    feed(logged(&folder, &["true"]), "1\n");
    let log = run(["--help", "log"], "").text().to_owned();
    for field in lines(&folder)[0].as_object().unwrap().keys() {
        assert!(log.contains(&format!("\n  {field}\n")), "{field} is missing in: {log}");
    }
}

/// The lines about a run, through the real program: its command, without what may be a password, and its totals.
#[test]
fn a_run_begins_and_ends_with_a_line_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let script = "case $2 in *2) exit 3;; esac; : --url=redis://me:secret@host/b";
    let mut command =
        throttle(["-q", "-r", "500/s,per=f1", "-r", "200/s,burst=7", "-j", "3", "--attempts", "2", "--backoff", "1ms"]);
    command
        .args(["--log=log", "sh", "-c", script, "https://host/y", "redis://:pass@host/x"])
        .current_dir(&folder)
        .env("TZ", "UTC-2");
    feed(command, "a 1\na 2\nb 1\n");
    let text = fs::read_to_string(folder.path().join("log")).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), 1 + 4 + 1, "{text}");
    let (first, last) = (&all[0]["run"], &all[5]["run"]);
    assert_eq!((first["jobs"].as_u64(), first["utc_offset"].as_i64()), (Some(3), Some(7200)), "{text}");
    assert_eq!(first["limits"], serde_json::json!(["500/s,per=f1", "200/s,burst=7"]));
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
    let command = first["command"].as_str().unwrap();
    assert!(command.starts_with("throttle -q -r '500/s,per=f1' ") && command.contains(" '--log=log' "), "{command}");
    assert!(!command.contains("pass") && !command.contains("secret"), "{command}");
    assert!(
        command.contains("case $2 in *2) exit 3;; esac; : …") && command.ends_with("https://host/y 'redis…'"),
        "{command}"
    );
    let totals = ["units", "attempts", "ok", "failed", "stopped", "refused"].map(|field| last[field].as_u64().unwrap());
    assert_eq!(totals, [3, 4, 2, 1, 0, 0], "{text}");
    assert!(last["end"].as_f64() >= first["start"].as_f64() && last["id"] == first["id"]);
    assert!(all[1..5].iter().all(|line| line["run"] == first["id"]), "{text}");
}

#[test]
fn the_last_line_of_a_log_counts_refused_and_stopped_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let script = "case $1:$THROTTLE_ATTEMPT in 1:1) echo 'HTTP/1.1 503 x' > \"$THROTTLE_REPLY\"; exit 1;; \
                  2:*) kill -INT $PPID; exec sleep 40;; esac";
    let ended = feed(logged(&folder, &["-j1", "--attempts", "2", "--backoff", "1ms", "-c", script]), "1\n2\n");
    assert_eq!(ended.signal(), Some(2), "{}", ended.err);
    let text = fs::read_to_string(folder.path().join("log")).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let totals = ["units", "attempts", "ok", "failed", "stopped", "refused"].map(|field| &last["run"][field]);
    assert_eq!(serde_json::json!(totals), serde_json::json!([2, 3, 1, 0, 1, 1]), "{text}");
}
