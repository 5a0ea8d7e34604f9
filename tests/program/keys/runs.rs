//! Limits for each key, through the real program: pipes, commands, jobs of a key, pauses of a key, dropping, dry runs.

use crate::rounds::rounds;
use crate::support::nginx::{Nginx, REST};
use crate::support::{
    Ended, HANGS, Lines, Running, feed, found, logged_attempts, numbers, passed, run, shell, skipped, text, throttle,
    wait_until,
};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// `units` of each of the `keys`, one key after the other: `k3 7`.
fn grouped(keys: u32, units: u32) -> String {
    (0..keys).flat_map(|key| (0..units).map(move |unit| format!("k{key} {unit}\n"))).collect()
}

/// The lines of each key, in order.
fn by_key(output: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in output.lines() {
        let (key, rest) = line.split_once(' ').unwrap();
        found.entry(key).or_default().push(rest);
    }
    found
}

fn ok(ended: &Ended) -> &str {
    assert_eq!((ended.code(), &ended.err[..]), (Some(0), ""));
    ended.text()
}

#[test]
fn a_pipe_keeps_each_key_in_order_and_holds_up_no_other() {
    let begun = Instant::now();
    let input = grouped(3, 4);
    let ended = run(["-r", "10/s,per=f1"], &input);
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    let found = by_key(ok(&ended));
    assert_eq!(found.len(), 3);
    assert!(found.values().all(|units| units[..] == ["0", "1", "2", "3"]), "{found:?}");
    let first: Vec<&str> = ended.text().lines().take(3).collect();
    assert_eq!(first, ["k0 0", "k1 0", "k2 0"], "the oldest of each key go first");
}

/// Its line was read and not looked at before the time of the other key, because no further input came.
#[test]
fn a_command_of_another_key_starts_while_one_waits() {
    let mut running = Running::start(throttle(["-r", "1/h,per=f1", "-c", "echo \"$1\""]));
    let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
    stdin.write_all(b"a 1\na 2\n").unwrap();
    assert_eq!(lines.next(), "a 1");
    for line in ["b 1", "c 1", "d 1"] {
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        assert_eq!(lines.next(), line);
    }
    running.signal(Signal::KILL);
    running.end();
}

#[test]
fn a_pipe_passes_every_byte_and_an_unterminated_last_unit_last() {
    for (args, input) in [
        (["-r", "50/s,burst=2,per=f1", "-d", "\\n"], &b"a\0\xff\r\nb\n\n\na 2\na 3\n\nc"[..]),
        (["-r", "50/s,burst=2,per=f1", "-d", "\\0"], b"a\nx\0b\0\0\0a 2\0a 3\0a 4"),
    ] {
        let delimiter = if args[3] == "\\n" { b'\n' } else { 0 };
        let output = passed(&args, input);
        let sorted = |bytes: &[u8]| {
            let mut units: Vec<Vec<u8>> =
                bytes.split_inclusive(|byte| *byte == delimiter).map(<[u8]>::to_vec).collect();
            units.sort();
            units
        };
        assert_eq!(sorted(&output), sorted(input), "{}", text(&output));
        let last = input.rsplit(|byte| *byte == delimiter).next().unwrap();
        assert!(output.ends_with(last), "{}", text(&output));
    }
}

#[test]
fn a_long_unit_is_looked_into_like_any_other_and_ends_nothing() {
    let long = |length: usize| format!("{{\"a\":2,\"b\":\"{}\"}}", "x".repeat(length));
    let input = format!("{{\"a\":1}}\n{}\n{{\"a\":3}}\n{}", long(300_000), long(20_000_000));
    for args in [
        &["-r", "1k/s,per=/a"][..],
        &["-r", "1k/s,cost=/a"],
        &["-r", "1k/s,per=/a", "--drop", "--max-wait", "1h"],
        &["-r", "1k/s,per=/a", "-k", "--stdin", "cat"],
        &["-r", "1k/s,cost=/a+bytes/99999999", "-k", "--stdin", "cat"],
    ] {
        let ended = run(args, &input);
        assert_eq!((ended.code(), ended.err.as_str()), (Some(0), ""), "{args:?}");
        assert!(ended.text() == input, "{args:?}: {} bytes", ended.out.len());
    }
    let ended = run(["--dry-run", "-r", "1/s,cost=/a"], &input);
    let times: Vec<&str> =
        ended.text().lines().filter_map(|line| line.split_once("  # ")).map(|(_, time)| time).collect();
    assert_eq!(times, ["0 s", "2 s", "5 s", "7 s"]);
}

/// It is as long as units may be all in all, so it waits alone.
#[test]
fn a_unit_of_64_mib_waits_without_a_copy_of_it() {
    let input = format!("k {}\nk 2\nk 3", "x".repeat((64 << 20) - 2));
    let began = Instant::now();
    let ended = run(["-r", "5/s,initial=0,per=f1"], &input);
    assert_eq!((ended.code(), ended.err.as_str()), (Some(0), ""));
    assert!(ended.text() == input && began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(ended.peak < (24 + 64) * 1024, "{} KiB", ended.peak);
}

/// Each takes more than half of the memory, so one waits outside until the other has left.
#[test]
fn long_units_beyond_memory_together_wait_for_room() {
    let unit = |key| format!("{key} {}\n", "x".repeat(40 << 20));
    let input = [unit('a'), unit('b'), unit('c')].concat();
    let ended = run(["-r", "5/s,initial=0,per=f1"], &input);
    assert_eq!((ended.code(), ended.err.as_str()), (Some(0), ""));
    assert!(ended.text() == input && ended.peak < (24 + 64) * 1024, "{} KiB", ended.peak);
}

#[test]
fn a_pipe_can_keep_the_order_of_its_input_across_keys() {
    let input = "a 1\na 2\nb 1\na 3\nb 2\nc 1\nlast";
    let begun = Instant::now();
    let ended = run(["-r", "10/s,per=f1", "-k"], input);
    assert_eq!(ok(&ended), input);
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    let ended = run(["--dry-run", "-r", "1/s,per=f1", "-k"], input);
    let times: Vec<&str> =
        ended.text().lines().filter_map(|line| line.split_once("  # ")).map(|(_, time)| time).collect();
    assert_eq!(times, ["0 s", "1 s", "1 s", "2 s", "2 s", "2 s", "2 s"], "{}", ended.text());
    let refused = |args: &[&str], words: &str| {
        let ended = run(args, input);
        assert!(ended.code() == Some(2) && ended.err.contains(words), "{args:?}: {}", ended.err);
    };
    refused(&["-r", "1/s", "-k"], "--keep-order needs a command, or limits for each key");
    refused(&["-r", "1/s,per=f1", "-k", "--ahead", "5"], "like -r 1/s,per=host -k");
    refused(&["-r", "1/s,per=f1", "-k", "--drop"], "cannot be used with");
}

#[test]
fn a_very_long_key_is_known_by_its_hash() {
    let long = |end: &str| format!("{}{end}\n", "k".repeat(100_000));
    let input = [long("1"), long("1"), long("2")].concat();
    let ended = run(["-r", "10/s,per=f1,burst=1", "-n0", "-j1", "-k", "echo", "x"], &input);
    assert_eq!(ended.text(), "x\nx\nx\n");
    let ended = run(["-r", "10/s,per=f1", "-c", "echo \"$THROTTLE_KEY\""], &input);
    let mut keys: Vec<&str> = ok(&ended).lines().collect();
    keys.sort_unstable();
    assert!(keys.iter().all(|key| key.len() == 7 + 64 && key.starts_with("sha256:")), "{keys:?}");
    keys.dedup();
    assert_eq!(keys.len(), 2);
}

/// Pipes and commands, which inspect a unit or use the key of `else=`.
#[test]
fn a_line_of_100_mb_is_not_inspected_and_takes_64_mib() {
    let producer =
        "echo '{\"a\":1}'; printf '{\"a\":\"'; head -c 100000000 /dev/zero | tr '\\0' x; printf '\"}\\n{\"a\":2}\\n'";
    let whole = 100_000_009;
    let cases: [(&[&str], i32, usize, &str); 4] = [
        (&["-r", "1k/s,per=/a"], 1, 8, "'per=/a' can read units of at most 64 MiB; make the units shorter"),
        (&["-r", "1G/s,cost=/a,else=1"], 0, whole + 16, ""),
        (&["-r", "1k/s,per=/a", "--stdin", "cat"], 123, 16, "'per=/a' can read units of at most 64 MiB; make the"),
        (&["-r", "1k/s,cost=/a,else=1", "--stdin", "cat"], 0, whole + 16, ""),
    ];
    for (args, code, bytes, words) in cases {
        let ended = produced(producer, args);
        assert_eq!((ended.code(), ended.out.len()), (Some(code), bytes), "{args:?}: {}", ended.err);
        let peak = ended.peak / 1024;
        assert!(ended.err.contains(words) && peak < 24 + 64, "{args:?}: {peak} MiB: {}", ended.err);
    }
}

/// The run of the program on the output of this script.
fn produced(script: &str, args: &[&str]) -> Ended {
    let mut producer = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let child = throttle(args).stdin(producer.stdout.take().unwrap()).spawn().unwrap();
    let ended = Running::read(child).finish();
    producer.wait().unwrap();
    ended
}

/// Those behind it pay for what it cost: no wait before it, and a wait after it.
#[test]
#[ignore = "slow: 6 s"]
fn bytes_of_a_unit_of_any_length_are_counted_unbuffered() {
    let producer = "head -c 30000000 /dev/zero | tr '\\0' x; echo; sleep 0.1; echo last";
    for (args, least) in [
        (&["-r", "20M/s,cost=bytes"][..], 1200),
        (&["-r", "20M/s,cost=bytes", "-k", "--stdin", "cat"], 1200),
        (&["-r", "10M/s,cost=bytes/2+1"], 1200),
        (&["-r", "1k/s", "-r", "20M/s,window,cost=bytes"], 900),
    ] {
        let began = Instant::now();
        let ended = produced(producer, args);
        assert_eq!((ended.code(), ended.out.len()), (Some(0), 30_000_006), "{args:?}: {}", ended.err);
        assert!(began.elapsed() >= Duration::from_millis(least), "{args:?}: {:?}", began.elapsed());
        assert!(ended.peak < 24 * 1024, "{args:?}: {} KiB", ended.peak);
    }
}

/// A run within a command of another run.
#[test]
fn the_key_of_an_outer_run_is_not_inherited() {
    let key = |args: &[&str]| {
        let mut command = throttle([args, &["-c", "echo ${THROTTLE_KEY-none}"]].concat());
        command.env("THROTTLE_KEY", "outer");
        feed(command, b"x\n").into_text()
    };
    assert_eq!(key(&["-r", "10/s,per=host"]), "none\n");
    assert_eq!(key(&["-r", "10/s"]), "outer\n", "it has no keys");
}

#[test]
fn commands_get_their_key_and_start_at_the_rate_of_their_key() {
    let begun = Instant::now();
    let ended =
        run(["-r", "10/s,per=host", "-c", "echo \"$THROTTLE_KEY $1\""], "http://a.b/1\nhttp://C.d/\nhttp://a.b/2\nx\n");
    assert!(begun.elapsed() >= Duration::from_millis(100));
    let mut lines: Vec<&str> = ok(&ended).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [" x", "a.b http://a.b/1", "a.b http://a.b/2", "c.d http://C.d/"]);
}

#[test]
fn units_of_one_command_share_a_key_and_their_costs_add_up() {
    let ended = run(["-r", "unlimited,per=f1,jobs=1", "-n", "2", "-k", "echo"], grouped(2, 3));
    assert_eq!(ok(&ended), "k0 0 k0 1\nk0 2\nk1 0 k1 1\nk1 2\n");
    let begun = Instant::now();
    let args = ["-r", "100/s,burst=10,per=f1,cost=f3", "-n", "2", "-j", "1", "echo"];
    let ended = run(args, "a 1 10\nb 1 10\na 2 10\nb 2 10\na 3 0\n");
    assert!(begun.elapsed() >= Duration::from_millis(100), "20 of which 10 are there: {:?}", begun.elapsed());
    assert_eq!(ok(&ended).lines().count(), 3);
}

/// One slow host would take all slots.
#[test]
fn jobs_of_a_key_keep_the_others_going() {
    let slow = (0..8).map(|unit| format!("slow {unit}"));
    let units: Vec<String> = slow.chain((0..40).map(|unit| format!("fast{unit} 0"))).collect();
    // The slow ones wait until the last fast one has run, or for 10 s.
    let script = "case $1 in slow*) n=0; until [ -e done ] || [ $((n += 1)) = 200 ]; do sleep 0.05; done;; \
                  fast39*) : > done;; esac; echo \"$1\"";
    let folder = tempfile::tempdir().unwrap();
    let mut command = throttle(["-r", "unlimited,per=f1,jobs=2", "-j", "4", "-c", script]);
    command.current_dir(folder.path());
    let ended = feed(command, units.join("\n"));
    let lines: Vec<&str> = ok(&ended).lines().collect();
    assert_eq!(lines.len(), 48);
    let fast = lines.iter().position(|line| *line == "fast30 0");
    let slow = lines.iter().position(|line| line.starts_with("slow"));
    assert!(fast < slow, "all fast ones are done while the slow ones take two slots: {lines:?}");
}

#[test]
fn a_pause_holds_its_key_only() {
    let folder = tempfile::tempdir().unwrap();
    // The first attempt for a's first unit is sent away for a second.
    let script = "case $1:$THROTTLE_ATTEMPT in 'a 0:1') echo 'retry-after: 1' >> \"$THROTTLE_REPLY\"; exit 75;; esac; echo \"$1\"";
    let log = folder.path().join("log");
    let mut command = throttle(["-r", "unlimited,per=f1,jobs=1", "--attempts", "2", "-j", "2", "--log"]);
    command.arg(&log).args(["-c", script]);
    let begun = Instant::now();
    let ended = feed(command, "a 0\na 1\nb 0\nb 1\nb 2\n");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(ok(&ended), "b 0\nb 1\nb 2\na 0\na 1\n", "the unit sent back goes first");
    let log = logged_attempts(&fs::read_to_string(&log).unwrap());
    let keys: Vec<String> = log.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect();
    assert_eq!((keys.len(), keys.iter().filter(|key| *key == "a").count()), (6, 3));
}

#[test]
fn a_pause_that_is_too_long_ends_its_key_and_no_other() {
    let script =
        "case $1 in a*) echo 'retry-after: 9999' >> \"$THROTTLE_REPLY\"; exit 75;; esac; sleep 0.1; echo \"$1\"";
    let args = ["-r", "unlimited,per=f1,jobs=1", "--attempts", "2", "-j", "2", "-c", script];
    let begun = Instant::now();
    let ended = run(args, "a 0\na 1\nb 0\nb 1\na 2\n");
    assert!(begun.elapsed() < HANGS);
    assert_eq!((ended.code(), ended.text()), (Some(75), "b 0\nb 1\n"));
    assert!(ended.err.contains("'a' requested a wait until") && ended.err.contains("a 2"), "{}", ended.err);
}

#[test]
fn a_key_that_fails_again_and_again_is_given_up_and_no_other() {
    let input = "a 1!\na 2\nb 1!\na 3!\na 4!\nb 2\na 5\na 6!\nc 1!\n";
    let (ended, tried, log) = with_fails(&["-r", "unlimited,per=f1,jobs=1,fails=2"], input);
    for unit in ["line 7 'a 5'", "line 8 'a 6!'"] {
        assert!(
            ended.err.contains(&format!("{unit}: not tried, because other commands of its key have failed")),
            "{}",
            ended.err
        );
    }
    assert_eq!(tried, ["a 1!", "a 2", "a 3!", "a 4!", "b 1!", "b 2", "c 1!"]);
    let last: serde_json::Value =
        serde_json::from_str(log.lines().find(|line| line.contains("a 6!")).unwrap()).unwrap();
    assert_eq!((&last["verdict"], &last["charged"]), (&"failed".into(), &0.into()));
    // With attempts some more may have begun before it is known that two have failed.
    let input: String = (0..40).map(|unit| format!("a {unit}!\n")).chain(["b\n".to_owned()]).collect();
    let args = ["-r", "9k/s,per=f1,jobs=1,fails=2", "--attempts", "2", "--backoff", "1ms"];
    let (ended, tried, _) = with_fails(&args, &input);
    let not_run = "line 40 'a 39!': not tried, because other commands of its key have failed (fails=2)";
    assert!(ended.err.contains(not_run) && tried.contains(&"b".to_owned()), "{} {tried:?}", ended.err);
}

/// How a run with these flags ends whose commands fail for units with `!`; the units that were tried, and the log.
fn with_fails(args: &[&str], input: &str) -> (Ended, Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $1 >> tried; case $1 in *!) false;; esac";
    let mut command = throttle([args, &["--log", "log", "-c", script]].concat());
    command.current_dir(folder.path());
    let ended = feed(command, input);
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
    let mut tried: Vec<String> = read("tried").lines().map(str::to_owned).collect();
    tried.sort_unstable();
    (ended, tried, read("log"))
}

#[test]
#[ignore = "slow: 2 s"]
fn keys_can_have_rates_of_their_own_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let rates = folder.path().join("rates");
    fs::write(&rates, "# tiers\n\n  a \t10/s\nb  2/s,burst=2\r\n(none) 4/s\nnever 1/h\nw 2/s,window,slack=0").unwrap();
    let limit = format!("1/s,per=f1,rates={}", rates.display());
    let input = "a 1\na 2\na 3\nb 1\nb 2\nb 3\nc 1\nc 2\n \n \nw 1\nw 2\nw 3\n";
    let ended = run(["--dry-run", "-r", &limit], input);
    let mut found: Vec<&str> = ended.text().lines().filter(|line| !line.starts_with('#')).collect();
    found.sort_unstable();
    let expected = [
        "   # 0 s",
        "   # 250 ms",
        "a 1  # 0 s",
        "a 2  # 100 ms",
        "a 3  # 200 ms",
        "b 1  # 0 s",
        "b 2  # 0 s",
        "b 3  # 500 ms",
        "c 1  # 0 s",
        "c 2  # 1 s",
        "w 1  # 0 s",
        "w 2  # 0 s",
        "w 3  # 1 s",
    ];
    assert_eq!(found, expected, "{}", ended.err);
    for command in [&[][..], &["-k", "-c", "echo \"$1\""]] {
        let begun = Instant::now();
        let ended = run([&["-r", &limit][..], command].concat(), input.replace(" \n", "x\n"));
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(ok(&ended).lines().count(), 13);
    }
}

#[test]
fn a_mistake_in_a_file_of_rates_is_named_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let rates = folder.path().join("rates");
    let limit = format!("1/s,per=f1,rates={}", rates.display());
    let refused = |limit: &str, words: &str| {
        let ended = run(["-r", limit, "-c", "echo ran"], "a\n");
        assert_eq!((ended.code(), ended.text()), (Some(2), ""), "{}", ended.err);
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    };
    refused(&limit, "cannot read it: No such file");
    for (text, words) in [
        ("a 1/s\nb\n", "line 2: 'b' has no limit; write KEY LIMIT, like a.example 1/10s"),
        ("a 1/s\n\nb 5kib\n", "line 3: "),
        ("a 1/s\nb 2/s\na 3/s", "line 3: 'a' is also named in line 1; leave one of them out"),
        ("a 1MB/s", "line 1: '1MB/s' counts bytes, but per= needs a limit in units; write for example 5/s"),
        ("a 1/s,per=f2", "line 1: "),
    ] {
        fs::write(&rates, text).unwrap();
        refused(&limit, &format!("rates={}: {words}", rates.display()));
    }
    refused("1/s,rates=x", "rates=x needs a key; add per=host");
    refused("1/s,per=f1,rates=", "the name of the file is missing; write per=host,rates=FILE");
    refused("unlimited,per=f1,jobs=1,rates=x", "write for example 1k/s,per=host,rates=FILE");
}

#[test]
fn what_fails_in_a_row_is_counted_for_keys_and_commands_only() {
    for (args, words) in [
        (&["-r", "1/s,fails=3", "true"][..], "fails=3 needs a key; add per=host, or use --max-fail 3"),
        (
            &["-r", "1/s,per=f1,fails=0", "true"],
            "the number of failures is at least 1; write for example per=host,fails=3",
        ),
        (
            &["-r", "1/s,per=f1,fails=3"],
            "fails=3 counts commands, but no COMMAND was given; write -r 1/s,per=f1,fails=3 COMMAND",
        ),
        (
            &["-r", "1/s,per=f1,fails=3", "-r", "9/m,per=f1,fails=2", "true"],
            "fails= is given in '1/s,per=f1,fails=3' and",
        ),
        (&["-r", "1/s,per=f1,failures=3", "true"], "did you mean 1/s,per=host,fails=3?"),
    ] {
        let ended = run(args, "");
        assert!(ended.code() == Some(2) && ended.err.contains(words), "{args:?}: {}", ended.err);
    }
}

#[test]
fn an_interrupted_run_says_what_was_read_and_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = throttle(["-r", "1/h,per=f1", "-c", ": > \"ran ${1%% *}\""]);
    let mut child = command.current_dir(folder.path()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a 0\na 1\na 2\nb 0\n").unwrap();
    drop(stdin);
    let started = Running::read(child);
    wait_until("both have run", || ["ran a", "ran b"].iter().all(|name| folder.path().join(name).exists()));
    sleep(Duration::from_millis(500));
    started.signal(rustix::process::Signal::INT);
    let ended = started.finish();
    assert_eq!(ended.signal(), Some(2), "{ended:?}");
    assert!(ended.err.contains("2 ok") && ended.err.contains("2 read and not started"), "{}", ended.err);
}

#[test]
fn when_the_units_read_ahead_wait_for_few_keys_it_is_said_once() {
    let begun = Instant::now();
    let ended = run(["-r", "20/s,per=f1", "--ahead", "3"], grouped(1, 8) + "b 0\n");
    assert!(begun.elapsed() >= Duration::from_millis(350));
    assert_eq!((ended.code(), ended.text().lines().count()), (Some(0), 9));
    let said =
        "all 3 units read ahead wait for 1 key, most of them for 'k0'; shuffle the input (shuf) or raise --ahead";
    assert_eq!(ended.err, format!("throttle: {said}\n"));
    let ended = run(["-r", "20/s,per=f1", "--ahead", "3", "--summary", "-c", ": \"$1\""], grouped(1, 8) + "b 0\n");
    let said = "units read ahead wait for 1 key, most of them for 'k0'; shuffle the input (shuf) or raise --ahead\n";
    assert_eq!((ended.code(), ended.err.matches(said).count()), (Some(0), 1), "{}", ended.err);
}

/// The keys of a run, and its waits for the limits and for input, in milliseconds.
fn waits(limit: &str, pieces: &[&str]) -> [u64; 3] {
    let script = "[ \"$1\" != 'a 2' ] || [ $THROTTLE_ATTEMPT -gt 1 ]";
    let args = ["-r", limit, "--summary=json", "--attempts", "2", "--backoff", "300ms", "-c", script];
    let mut run = Running::start(throttle(args));
    let mut stdin = run.stdin();
    for piece in pieces {
        stdin.write_all(piece.as_bytes()).unwrap();
        sleep(Duration::from_millis(600));
    }
    drop(stdin);
    let ended = run.finish();
    let summary: serde_json::Value = serde_json::from_str(&ended.err).expect(&ended.err);
    let number = |field: &str| summary[field].as_u64().unwrap();
    [number("keys"), number("waited_for_limits_ns") / 1_000_000, number("waited_for_source_ns") / 1_000_000]
}

#[test]
fn keyed_commands_wait_for_limits_or_for_input() {
    let [keys, limits, _] = waits("10/s,per=f1", &["a 0\na 1\na 3\na 4\na 5\nb 0\n"]);
    assert!(keys == 2 && limits >= 200, "{keys} {limits}");
    // Neither the silence of the input nor the time before another attempt is a wait for the limits.
    let [keys, limits, source] = waits("1k/s,burst=9,per=f1", &["a 1\n", "a 2\n"]);
    assert!(keys <= 1 && limits == 0 && source >= 300, "{keys} {limits} {source}");
}

/// Each of these units takes an open file while it waits.
#[test]
fn units_read_ahead_leave_open_files_for_the_commands() {
    let units: Vec<String> = (0..80).map(|unit| format!("a {unit} {}", "x".repeat(40_000))).collect();
    let mut shell = shell("ulimit -n 60; exec \"$0\" \"$@\"");
    shell.args(["-q", "-r", "200/s,burst=1,per=f1", "--stdin", "-c", "wc -c"]);
    let ended = feed(shell, units.join("\n"));
    assert_eq!((ended.code(), ended.text().lines().count()), (Some(0), 80), "{}", ended.err);
}

/// The first command can start only when somebody reads what it is traced to. Its window counts from then.
#[test]
#[ignore = "slow: 3 s"]
fn windows_count_commands_from_their_start() {
    let (mut read, write) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while (&write).write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).unwrap();
    let mut command = throttle(["-t", "-r", "1/2s,window,per=f1", "-c", ": \"$1\"; date +%s%N"]);
    let mut child = command.stderr(write).spawn().unwrap();
    drop(command);
    child.stdin.take().unwrap().write_all(b"a 1\na 2\n").unwrap();
    let run = Running::read(child);
    sleep(Duration::from_secs(1));
    let reader = std::thread::spawn(move || std::io::copy(&mut read, &mut std::io::sink()));
    let ended = run.finish();
    reader.join().unwrap().unwrap();
    let starts: Vec<u64> = ok(&ended).lines().map(|time| time.parse().unwrap()).collect();
    assert!(starts[1] - starts[0] > 1_500_000_000, "{starts:?}");
}

/// While the only slot is taken, the bucket of the key fills. It holds no more than its burst afterwards.
#[test]
#[ignore = "slow: 2 s"]
fn after_a_wait_for_a_slot_a_key_gets_its_burst_and_no_more() {
    let script = "[ \"$1\" != 'k0 0' ] || sleep 1.2; date +%s%N";
    let ended = run(["-r", "10/s,burst=10,per=f1", "-j", "1", "-c", script], grouped(1, 23));
    let starts: Vec<u64> = ok(&ended).lines().map(|time| time.parse().unwrap()).collect();
    assert_eq!(starts.len(), 23);
    // Ten of 22 at once; the others take 1.2 s.
    assert!(starts[22] - starts[1] > 600_000_000, "{starts:?}");
}

#[test]
fn units_without_a_key_are_worth_a_hint() {
    let hint = |per: &str| format!("hint: per={per} finds no key in the first 10 units, so they share one limit");
    let names = |units| (0..units).map(|unit| format!("h{unit}.example\n")).collect::<Vec<_>>().concat();
    let limit = "unlimited,per=host,jobs=2";
    let runs: [(&[&str], String, String); 6] = [
        (&["-r", "1k/s,per=host"], names(12), String::new()), // cron would mail it
        (&["-r", "1k/s,per=host", "--summary"], names(12), hint("host") + "; for names without http:// write per=f1"),
        (&["-r", "1k/s,per=f2", "--summary"], names(10), hint("f2")),
        (&["-r", "1k/s,per=host", "--summary"], names(9), String::new()),
        (&["-r", "1k/s,per=host", "--summary"], "http://a.example\n".to_owned() + &names(12), String::new()),
        (
            &["-r", limit, "--summary", "-c", ": \"$1\""],
            names(12),
            hint("host") + "; for names without http:// write per=f1",
        ),
    ];
    for (args, input, said) in runs {
        let ended = run(args, input);
        assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.err);
        let first = ended.err.lines().find(|line| line.contains("hint")).unwrap_or_default();
        assert_eq!(first.strip_prefix("throttle: ").unwrap_or_default(), said, "{args:?}: {}", ended.err);
    }
}

#[test]
fn what_would_wait_is_dropped_and_counted() {
    let ended = run(["-r", "1/h,burst=2,per=f1", "--drop", "--summary=json"], grouped(3, 4));
    let (said, summary) = ended.err.split_once('\n').unwrap();
    assert_eq!(
        (ended.code(), by_key(ended.text()).values().map(Vec::len).collect::<Vec<_>>()),
        (Some(0), vec![2, 2, 2])
    );
    assert!(said.starts_with("throttle: dropped 6 units (3 keys, most from 'k"), "{said}");
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    assert_eq!((&summary["units"], &summary["dropped"]), (&6.into(), &6.into()), "in = out + dropped");
    assert_eq!(summary["dropped_by_key"], serde_json::json!({"k0": 2, "k1": 2, "k2": 2}));
}

/// Two can leave in time after the first. The others need not wait for their time to be dropped.
#[test]
#[ignore = "slow: 2 s"]
fn a_unit_known_to_wait_too_long_is_dropped_when_read() {
    for rate in ["1/m,burst=1", "1/m,burst=1,per=f1"] {
        let mut child = throttle(["-r", rate, "--drop", "--max-wait", "150s", "-q", "--summary=json"]).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(grouped(1, 2000).as_bytes()).unwrap();
        let child = Running::read(child);
        sleep(Duration::from_secs(1));
        child.signal(rustix::process::Signal::INT);
        let ended = child.finish();
        let summary: serde_json::Value = serde_json::from_str(&ended.err).expect(&ended.err);
        let counts = ["units", "read_and_not_passed_on", "dropped"].map(|field| summary[field].as_u64().unwrap());
        assert_eq!(counts, [1, 2, 1997], "{rate}");
        drop(stdin);
    }
}

/// More than any pipe holds, and more than may wait at once.
#[test]
fn with_drop_the_writer_never_waits_for_a_stalled_reader() {
    let line = format!("k {}\n", "x".repeat(1000));
    for wait in ["0", "1h"] {
        let mut child =
            throttle(["-r", "1M/s,per=f1", "--drop", "--max-wait", wait, "-q", "--summary=json"]).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        (0..80_000).for_each(|_| stdin.write_all(line.as_bytes()).unwrap());
        drop(stdin);
        let ended = Running::read(child).finish();
        let summary: serde_json::Value = serde_json::from_str(&ended.err).expect(&ended.err);
        let [units, dropped] = ["units", "dropped"].map(|field| summary[field].as_u64().unwrap());
        assert_eq!((ended.code(), units + dropped), (Some(0), 80_000), "in = out + dropped");
        assert!(ended.text() == line.repeat(usize::try_from(units).unwrap()) && dropped > 50_000, "{dropped}");
    }
}

#[test]
fn messages_about_dropped_units_name_keys_if_there_are_any() {
    for (args, said) in [
        (["-r", "1/h", "--drop"], "throttle: dropped 3 units\n"),
        (["-r", "1/h,per=f1", "--drop"], "throttle: dropped 3 units (all of 'k0')\n"),
        (["-r", "1/h,per=f9", "--drop"], "throttle: dropped 3 units (all of '(none)')\n"),
    ] {
        let ended = run(args, grouped(1, 4));
        assert_eq!((ended.code(), ended.err.as_str()), (Some(0), said), "{args:?}");
    }
}

#[test]
fn a_cost_that_ends_a_keyed_pipe_is_named_with_all_read() {
    let ended = run(["-r", "9/s,per=f1,cost=f3"], "k 1 1\nk 1\nk 1 3\nk 1 4\n");
    assert_eq!((ended.code(), ended.text()), (Some(1), "k 1 1\n"), "{}", ended.err);
    let said = "cannot pass on line 2 'k 1', after 1 line; 3 more had been read: limit 9/s,burst=1,cost=f3: the cost cannot be read";
    assert!(ended.err.contains(said), "{}", ended.err);
    let ended = run(["-r", "9/s,window,per=f1,cost=f2"], "k 10\n");
    assert!(ended.err.contains("line 1 'k 10'") && ended.err.contains("cost=f2: it costs 10, more"), "{}", ended.err);
}

/// Most of the time goes into deciding, and the output is a file.
#[test]
fn time_in_which_units_are_sorted_is_no_wait_for_the_reader() {
    let mut command = throttle(["-r", "1/s,per=f1", "--drop", "-q", "--summary=json"]);
    command.stdout(tempfile::tempfile().unwrap());
    let input: String = (0..200_000).flat_map(|n| [(n % 5000).to_string(), "\n".to_owned()]).collect();
    let ended = feed(command, input);
    let summary: serde_json::Value = serde_json::from_str(&ended.err).expect(&ended.err);
    let [elapsed, sink] = ["elapsed_ns", "waited_for_sink_ns"].map(|field| summary[field].as_u64().unwrap());
    assert!(sink < elapsed / 5, "{sink} of {elapsed}");
}

#[test]
#[ignore = "slow: 2 s"]
fn units_wait_as_long_as_allowed_before_they_are_dropped() {
    let begun = Instant::now();
    // The third waits for 2 s, and may be half a second late.
    let ended = run(["-r", "1/s", "-b", "1", "--drop", "--max-wait", "2500ms", "-q"], grouped(1, 20));
    assert_eq!((ended.code(), ended.text()), (Some(0), "k0 0\nk0 1\nk0 2\n"), "{}", ended.err);
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

/// Twenty server names, each of which answers five requests a second and five more at once. Without limits, each of them would
/// refuse most of the twenty requests of a quick run.
#[test]
#[ignore = "slow: 5 s"]
fn twenty_strict_servers_refuse_nothing_at_full_speed() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    let nginx = Nginx::start(|| Command::new(&program)).unwrap();
    let port = nginx.url().trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let each = rounds(100).max(20);
    let count = 20 * each;
    // Each host gets two requests at once, then five a second.
    let ideal = Duration::from_millis(200) * (each - 2);
    let units: Vec<String> = (0..count).map(|unit| format!("http://h{}.test/{}", unit % 20, unit + 1)).collect();
    let script = "curl -q -sS -o /dev/null --connect-to ::127.0.0.1:$PORT \"$1\" -w '%{http_code}\\n'";
    for attempt in 1.. {
        sleep(REST * 2);
        nginx.arrivals();
        let mut command = throttle(["-r", "5/s,burst=2,per=host", "-j", "64", "-c", script]);
        command.env("PORT", &port).env("no_proxy", "*");
        let begun = Instant::now();
        let ended = feed(command, units.join("\n"));
        let ratio = begun.elapsed().as_secs_f64() / ideal.as_secs_f64();
        let answers: Vec<&str> = ok(&ended).lines().collect();
        let refused = answers.iter().filter(|answer| **answer != "200").count();
        println!("attempt {attempt}: {refused} of {count} refused, {ratio:.3} × the ideal");
        let mut seen: Vec<usize> = nginx.arrivals().into_iter().map(|(.., unit)| unit).collect();
        seen.sort_unstable();
        let count = count as usize;
        assert_eq!((answers.len(), seen), (count, (1..=count).collect()), "each is asked for once");
        assert!(ratio > 0.99, "{ratio}");
        assert!(ratio < 4.0, "{ratio}: a busy machine may be late, but not by so much");
        // It also starts clients late, and then several may arrive together.
        assert!(refused < count / 20, "{refused} refused, {ratio:.3} × the ideal");
        if refused == 0 {
            return;
        }
        if attempt == 2 {
            return skipped("clients of twenty servers do not arrive in time here");
        }
    }
}

#[test]
fn a_dry_run_shows_the_keys() {
    for command in [&[][..], &["echo"]] {
        let args = [&["-r", "1/min,per=f1", "--dry-run"], command].concat();
        let ended = run(args, grouped(1, 3) + "b 0\n");
        let text = ok(&ended);
        assert!(text.contains("# 1/min,burst=1 for each f1: at most 1 in any minute\n"), "{text}");
        assert!(text.ends_with("# 2 keys; longest: 'k0', 3 units, 2m\n"), "{text}");
        assert!(text.find("b 0").unwrap() < text.find("k0 1").unwrap(), "{text}");
    }
}

/// The key of the last unit is behind all that is shown of it.
#[test]
fn a_dry_run_finds_the_key_of_a_long_last_unit_without_its_end() {
    let long = format!("{} k", "x".repeat(2000));
    for input in [format!("{long}\n{long}"), format!("{long}\n{long}\n"), format!("{long} {long}\n{long} {long}")] {
        let ended = run(["-r", "1/min,per=f2", "--dry-run"], &input);
        let text = ok(&ended);
        assert!(text.ends_with("# 1 key; longest: 'k', 2 units, 1m\n"), "{text}");
    }
}

#[test]
fn a_key_that_is_given_up_is_named_once() {
    let script = "sleep 0.3; echo 'retry-after: 7200' >> \"$THROTTLE_REPLY\"; exit 1";
    let args = ["-r", "1k/s,burst=9,per=f1", "-j", "2", "--attempts", "2", "--max-pause", "1h", "-c", script];
    let said = run(args, "a 1\na 2\na 3\n").err;
    assert_eq!(said.matches("'a' requested a wait until").count(), 1, "{said}");
}

/// No variable can hold a NUL byte, so the key is given without it; it is still a key of its own.
#[test]
fn commands_get_a_key_without_its_nul_bytes() {
    for (limit, input) in
        [("100/s,per=f1", &b"x\0y 1\nz 2\n"[..]), ("100/s,per=/k", b"{\"k\":\"x\\u0000y\"}\n{\"k\":\"z\"}\n")]
    {
        let ended = run(["-r", limit, "-k", "--stdin", "-c", "cat > /dev/null; echo \"$THROTTLE_KEY\""], input);
        assert_eq!(ok(&ended), "xy\nz\n", "{limit}: {}", ended.err);
    }
}

/// Their table cannot grow, so units of new keys wait until others are as new.
#[test]
#[ignore = "slow: 18 s"]
fn without_memory_for_more_keys_all_units_still_pass() {
    let runs_in = |kib: &u32| {
        let output = feed(shell(&format!("ulimit -v {kib}; exec \"$0\" -q -r 1/s,per=f1")), b"unit\n");
        output.status.success()
    };
    // The program itself takes more in an unoptimised build.
    let least = (16_000..200_000).step_by(1000).find(runs_in).expect("it runs in 200 MB");
    let said = "throttle: there is no memory for the limits of more than ";
    for (kib, units) in [(least + 5000, 60_000), (least + 9000, 150_000)] {
        let input = numbers(units);
        let output = feed(shell(&format!("ulimit -v {kib}; exec \"$0\" -r 1/s,per=f1")), input.as_bytes());
        assert!(output.code() == Some(0) && output.err.lines().all(|line| line.starts_with(said)), "{}", output.err);
        let mut lines: Vec<u32> = output.text().lines().map(|line| line.parse().unwrap()).collect();
        lines.sort_unstable();
        assert!(lines.into_iter().eq(1..=units), "{kib}");
    }
}
