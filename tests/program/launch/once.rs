//! One call: `--once` with attempts, a time limit, or a script.

use crate::support::server::{Answer, Server};
use crate::support::{Ended, Running, THROTTLE, feed, number_in, run, throttle};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ONCE: [&str; 4] = ["--once", "--backoff", "10ms", "--attempts"];

/// Fails at the first two attempts.
const THIRD: &str = "test \"$THROTTLE_ATTEMPT\" = 3";

fn once(attempts: &str, command: &[&str]) -> Command {
    let mut command = throttle([&ONCE[..], &[attempts], command].concat());
    command.stdin(Stdio::null());
    command
}

fn ended(mut command: Command) -> Ended {
    Running::read(command.spawn().unwrap()).finish()
}

#[test]
fn the_exit_code_of_one_call_is_that_of_its_last_attempt() {
    for (command, code, said) in [
        (&["true"][..], Some(0), ""),
        (&["sh", "-c", "exit 7"], Some(7), "throttle: sh exited 7, attempt 2\n"),
        (&["--retry-on", "9", "sh", "-c", "exit 7"], Some(7), ""),
        (&["sh", "-c", "exit 255"], Some(255), "throttle: sh exited 255, attempt 2\n"),
        (&["sh", "-c", "test $THROTTLE_ATTEMPT = 2"], Some(0), ""),
        (&["-q", "false"], Some(1), ""),
        (&["-c", "exit 7"], Some(7), "throttle: the script exited 7, attempt 2\n"),
        (&["no-such-command"], Some(127), "throttle: 'no-such-command': no such command in PATH\n"),
        (&["sh", "-c", "kill $$"], None, "throttle: sh: killed by SIGTERM, attempt 2\n"),
        (&["--timeout", "100ms", "sleep", "20"], Some(124), "throttle: sleep: timed out, attempt 2\n"),
    ] {
        let ended = ended(once("2", command));
        assert_eq!((ended.code(), ended.err.as_str()), (code, said), "{command:?}");
        let signal = if code.is_none() { Some(15) } else { None };
        assert_eq!(ended.signal(), signal, "{command:?}");
    }
    let mut alone = throttle(["--once", "--timeout", "100ms", "sleep", "20"]);
    alone.stdin(Stdio::null());
    assert_eq!(ended(alone).code(), Some(124), "a time limit needs no attempts");
}

#[test]
fn only_the_last_attempt_of_one_call_writes_to_standard_output() {
    let ended = ended(once("3", &["-c", &format!("echo $THROTTLE_ATTEMPT; echo try >&2; {THIRD}")]));
    assert_eq!((ended.text(), ended.err.as_str(), ended.code()), ("3\n", "try\ntry\ntry\n", Some(0)));
    let failed = self::ended(once("2", &["-c", "echo $THROTTLE_ATTEMPT; exit 3"]));
    assert_eq!((failed.text(), failed.code()), ("2\n", Some(3)));
}

#[test]
fn no_word_of_one_call_is_a_placeholder() {
    let ended = ended(once("2", &["printf", "[%s]", "{}", "{1}", "a b"]));
    assert_eq!(ended.text(), "[{}][{1}][a b]");
    let script = self::ended(once("2", &["-c", "printf '[%s]' \"$0\" \"$@\"", "http://a.example/", "b c"]));
    assert_eq!((script.text(), script.err.as_str()), ("[throttle -c][http://a.example/][b c]", ""));
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let args = ["--bucket", bucket.to_str().unwrap(), "-r", "9/s", "--once", "-c", "echo \"$2\"", "a", "b"];
    assert_eq!(run(args, "").text(), "b\n", "without attempts, too");
}

#[test]
fn each_attempt_of_one_call_reads_a_pipe_from_its_beginning() {
    for length in [3, 70_000, 3_000_000] {
        let input: Vec<u8> = (0..length).map(|place| u8::try_from(place % 251).unwrap()).collect();
        let mut command = once("3", &["-c", &format!("cat; {THIRD}")]);
        command.stdin(Stdio::piped());
        let ended = feed(command, &input);
        assert!(ended.out == input && ended.code() == Some(0), "{length}: {} {}", ended.out.len(), ended.err);
    }
}

#[test]
fn a_pipe_that_grows_reaches_the_command_at_once() {
    let mut command = once("2", &["-c", "read a; echo $a >&2; read b; echo $b >&2; test $THROTTLE_ATTEMPT = 2"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    thread::sleep(Duration::from_millis(200));
    input.write_all(b"two\n").unwrap();
    // It stays open.
    let ended = Running::read(child).finish();
    assert_eq!((ended.err.as_str(), ended.code()), ("one\ntwo\none\ntwo\n", Some(0)));
    drop(input);
}

#[test]
fn a_pipe_loses_no_more_than_the_command_has_read() {
    let program = THROTTLE;
    let script = format!(
        "printf 'a\\nb\\nc\\n' | while read -r x; do {program} --once --attempts 2 -c 'echo \"$1\"' \"$x\"; done
        printf 'a\\nb\\nc\\n' | {{ {program} --once --attempts 2 --backoff 10ms -c 'dd bs=1 count=2 2>&-; test $THROTTLE_ATTEMPT = 2'
            cat; }}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = ended(command);
    assert_eq!(ended.text(), "a\nb\nc\na\nb\nc\n", "{}", ended.err);
}

#[test]
fn each_attempt_of_one_call_reads_a_file_from_where_it_stood() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f"), "first\nsecond\nthird\n").unwrap();
    let program = THROTTLE;
    let script =
        format!("read -r line; {program} --once --attempts 3 --backoff 10ms -c 'read -r a; echo \"$a\"; {THIRD}'; cat");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(fs::File::open(folder.path().join("f")).unwrap());
    let ended = ended({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    assert_eq!((ended.text(), ended.err.as_str()), ("second\nthird\n", ""));
}

#[test]
fn a_pipe_of_more_than_is_kept_is_read_once() {
    let mut command = once("3", &["-c", "wc -c; exit 3"]);
    command.stdin(Stdio::piped());
    let ended = feed(command, vec![b'x'; (64 << 20) + 1]);
    assert_eq!((ended.text(), ended.code()), ("67108865\n", Some(3)));
    assert!(ended.err.contains("more than 64 MiB of a pipe cannot be stored"), "{}", ended.err);
    let later = "cat > /dev/null; printf 'HTTP/1.1 429 x\\r\\n' > \"$THROTTLE_REPLY\"";
    let mut command = once("3", &["-c", later]);
    command.stdin(Stdio::piped());
    let refused = feed(command, vec![b'x'; (64 << 20) + 1]);
    assert_eq!(refused.code(), Some(75), "the server has refused it: {}", refused.err);
}

/// The remark about the bad reply was the only one that a run printed.
#[test]
fn a_bad_reply_hides_no_remark_that_a_pipe_was_too_long() {
    let script = "cat > /dev/null; echo 'retry-after: soon' > \"$THROTTLE_REPLY\"; exit 3";
    let mut command = once("3", &["-c", script]);
    command.stdin(Stdio::piped());
    let ended = feed(command, vec![b'x'; (64 << 20) + 1]);
    for words in ["a reply has 'retry-after: soon'", "not tried again: more than 64 MiB of a pipe cannot be stored"] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
}

/// The script of the whole recipe.
const CALL: &str = "curl -q -fsS -m 1 -D \"$THROTTLE_REPLY\" \"$1\"";

#[test]
#[ignore = "slow: 4 s"]
fn one_call_waits_for_as_long_as_its_server_asks() {
    let server = Server::that_answers()
        .page("/time", [Answer::later("2")])
        .page("/none", [Answer::new(429), Answer::new(429)])
        .page("/busy", [Answer::new(503).with("retry-after: 1")])
        .page("/hang", [Answer::new(200).after(Duration::from_secs(5))])
        .start();
    for (path, least) in [("time", 2), ("none", 0), ("busy", 1), ("hang", 1)] {
        let begun = Instant::now();
        let mut command = once("2", &["-c", CALL, &format!("{}{path}", server.url())]);
        let ended = ended({
            command.env("no_proxy", "*");
            command
        });
        assert_eq!((ended.text(), ended.code()), ("ok", Some(0)), "{path}: {}", ended.err);
        assert!(begun.elapsed() >= Duration::from_secs(least), "{path}");
    }
}

#[test]
#[ignore = "slow: 3 s"]
fn a_server_that_refuses_one_call_pauses_the_bucket_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let bucket = bucket.to_str().unwrap();
    assert_eq!(run(["--bucket", bucket, "--set", "-r", "100/s"], "").code(), Some(0));
    let refused = "printf 'HTTP/1.1 429 x\\r\\nretry-after: 3\\r\\n' > \"$THROTTLE_REPLY\"; echo told >&2";
    let script = format!("test \"$THROTTLE_ATTEMPT\" = 2 || {{ {refused}; exit 1; }}");
    let begun = Instant::now();
    let mut first = throttle(["--bucket", bucket, "--once", "--attempts", "2", "-c", &script]);
    let mut first = first.stdin(Stdio::null()).spawn().unwrap();
    let mut message = [0; 5];
    std::io::Read::read_exact(first.stderr.as_mut().unwrap(), &mut message).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(run(["--bucket", bucket, "--once", "true"], "").code(), Some(0));
    assert!(begun.elapsed() >= Duration::from_secs(3), "another call waits as well");
    assert_eq!(Running::read(first).finish().code(), Some(0));
    let counts = run(["--bucket", bucket, "--show", "json"], "");
    let counts: serde_json::Value = serde_json::from_str(counts.text()).unwrap();
    let [granted, given_back] = ["granted", "given_back"].map(|name| counts["counts"][name].as_u64().unwrap());
    assert_eq!(granted - given_back, 3, "each attempt takes one: {counts}");
}

#[test]
fn one_call_that_is_sent_away_for_too_long_exits_75() {
    let later = "printf 'HTTP/1.1 429 x\\r\\nretry-after: 60\\r\\n' > \"$THROTTLE_REPLY\"";
    let ended = ended(once("2", &["--max-pause", "1s", "-c", &format!("{later}; exit 22")]));
    assert_eq!(ended.code(), Some(75), "{}", ended.err);
    assert!(ended.err.contains("longer than --max-pause") && ended.err.lines().count() == 1, "{}", ended.err);
}

#[test]
fn one_call_has_the_key_and_the_cost_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let with = |args: &[&str]| run([&["--bucket", bucket.to_str().unwrap()], args].concat(), "");
    assert_eq!(
        with(&["--set", "-r", "1/s,burst=9,per=host", "-r", "100/min,burst=100,cost=f2,else=7"]).code(),
        Some(0)
    );
    let missing = with(&["--once", "--attempts", "2", "true"]);
    assert_eq!(missing.code(), Some(125), "{}", missing.err);
    assert!(missing.err.contains("name the key: --key a.example"), "{}", missing.err);
    let ended = with(&["--once", "--key", "a.example", "--attempts", "2", "-c", "echo $THROTTLE_KEY"]);
    assert_eq!((ended.text(), ended.code()), ("a.example\n", Some(0)), "{}", ended.err);
    let shown: serde_json::Value = serde_json::from_str(with(&["--show", "json"]).text()).unwrap();
    let left: Vec<f64> =
        shown["limits"].as_array().unwrap().iter().filter_map(|limit| limit["left"].as_f64()).collect();
    assert!(left.iter().any(|left| (93.0..94.9).contains(left)), "else=7 was charged: {shown}");
}

#[test]
fn signals_reach_the_one_call_and_its_end_is_ours() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let seen = folder.path().join("ready.seen");
    let script = "trap 'echo one; echo 1 > \"$1.seen\"' USR1; trap 'exit 3' TERM QUIT; echo $$ > \"$1\"; \
                  while :; do sleep 0.05; done";
    for end in [Signal::TERM, Signal::QUIT] {
        let child = once("2", &["-c", script, ready.to_str().unwrap()]).spawn().unwrap();
        number_in(&ready);
        let started = Running::read(child);
        started.signal(Signal::USR1);
        // A shell that gets both signals during one sleep handles them by their numbers.
        number_in(&seen);
        started.signal(end);
        let ended = started.finish();
        assert_eq!((ended.text(), ended.code()), ("one\n", Some(3)), "{}", ended.err);
        for file in [&ready, &seen] {
            fs::remove_file(file).unwrap();
        }
    }
    // Between two attempts there is no command: the signal ends the program.
    let mut waits = throttle(["--once", "--attempts", "2", "--backoff", "60s", "-c", "echo tried >&2; exit 1"]);
    let mut child = waits.stdin(Stdio::null()).spawn().unwrap();
    std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut [0; 6]).unwrap();
    thread::sleep(Duration::from_millis(300));
    let started = Running::read(child);
    started.signal(Signal::TERM);
    let ended = started.finish();
    assert_eq!((ended.signal(), ended.err.as_str()), (Some(15), ""));
}

#[test]
fn all_attempts_of_a_call_have_one_id_and_the_next_another() {
    let ids = || {
        let ended = ended(once("3", &["-c", &format!("echo \"$THROTTLE_ID\" >&2; {THIRD}")]));
        ended.err.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, other) = (ids(), ids());
    assert!(one.len() == 3 && one.iter().all(|id| id.len() > 8 && *id == one[0]), "{one:?}");
    assert!(other.len() == 3 && other[0] != one[0], "{other:?}");
}

#[test]
fn a_bad_spelling_of_one_call_is_answered_before_anything_runs() {
    for (args, words) in [
        (&["-n", "2", "true"][..], "--once cannot be used with --max-args"),
        (&["-k", "true"], "--once cannot be used with --keep-order"),
        (&["--done", "x", "true"], "--once cannot be used with --done"),
        (&["--repeat", "2", "true"], "--once cannot be used with --repeat"),
        (&["-a", "x", "true"], "--once cannot be used with --arg-file"),
        (&["--columns", "true"], "--once cannot be used with --columns"),
        (&["--size", "5", "true"], "--once cannot be used with --size"),
        (&["--max-wait", "5s", "true"], "--max-wait cannot be used with --attempts or --timeout"),
        (
            &["-r", "5/s", "true"],
            "--rate: one call without a bucket has no limits; name a bucket, like --bucket NAME --once",
        ),
        (&["--key", "a", "true"], "--key: one call without a bucket has no limits"),
        (&[], "--attempts needs a command"),
    ] {
        let ended = ended(once("2", args));
        assert_eq!((ended.code(), ended.text()), (Some(125), ""), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
    }
    let two = run(["-r", "5/s", "-c", "true", "true"], "");
    assert!(two.code() == Some(2) && two.err.contains("the script is one word in single quotes"), "{}", two.err);
    let neither = run(["--once", "true"], "");
    assert!(neither.err.contains("--once takes a unit from a bucket; name the bucket"), "{}", neither.err);
}
