//! Servers that ask to wait: until when, who waits, and what comes first afterwards.

use super::{CURL, asked, asking, summary};
use crate::launching::{Ended, Started, finish, numbers, run, throttle, wait_until};
use crate::support::found;
use crate::support::nginx::Nginx;
use crate::support::redis::Redis;
use crate::support::server::{Answer, Seen, Server};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MILLISECOND: Duration = Duration::from_millis(1);

/// How the first answer asks to wait, and for how long that is: at least, and less than.
type Case = (&'static str, Box<dyn Fn() -> String + Send + Sync>, [u64; 2]);

fn fixed(head: &'static str) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || head.to_owned())
}

fn epoch(more: u64) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + more
}

/// In `Retry-After`, from now on.
fn date(ahead: i64) -> String {
    let seconds = epoch(0).cast_signed() + ahead;
    let mut date = Command::new("date");
    date.args(["-u", "-d", &format!("@{seconds}"), "+Retry-After: %a, %d %b %Y %H:%M:%S GMT"]).env("LC_ALL", "C");
    String::from_utf8(date.output().unwrap().stdout).unwrap()
}

/// The wait between the first answer and the second request, and how it all ended.
fn wait_after(head: impl Fn() -> String + Send + Sync + 'static, status: u16) -> (Duration, Ended) {
    let server = Server::start(move |request| match (&*request.path, request.visit) {
        ("/redirected", 1) => Answer::new(302).with("Location: /unit\nRetry-After: 3600"),
        ("/unit", 1) => Answer::new(status).with(&head()),
        _ => Answer::new(200),
    });
    let ended = asked(&server, &["-r", "unlimited", "--attempts", "1", "--backoff", "400ms"], "unit\n");
    let seen = server.seen();
    assert_eq!(seen.len(), 2, "{}", ended.err);
    (seen[1].arrived.saturating_sub(seen[0].answered), ended)
}

#[test]
fn a_server_is_obeyed_however_it_asks_to_wait() {
    let cases: Vec<(u16, Case)> = vec![
        (429, ("seconds", fixed("Retry-After: 1"), [1000, 9000])),
        (429, ("decimals", fixed("retry-after: 0.5"), [500, 9000])),
        (503, ("a duration", fixed("RETRY-AFTER:  500ms"), [500, 9000])),
        (500, ("a failure with a time", fixed("Retry-After: .5"), [500, 9000])),
        (429, ("a date ahead", Box::new(|| date(2)), [900, 9000])),
        (503, ("a date in the past", Box::new(|| date(-3600)), [0, 9000])),
        (503, ("none", fixed(""), [50, 9000])),
        (429, ("garbage", fixed("Retry-After: soon"), [50, 9000])),
        (429, ("a negative number", fixed("Retry-After: -30"), [50, 9000])),
        (
            403,
            (
                "a reset on the clock",
                Box::new(|| format!("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: {}", epoch(2))),
                [900, 9000],
            ),
        ),
        (429, ("a reset", fixed("ratelimit-remaining: 0\nratelimit-reset: 0.5"), [500, 9000])),
        (
            429,
            (
                "much else",
                Box::new(|| format!("Retry-After: 0.5\n{}", format!("X-Padding: {}\n", "x".repeat(990)).repeat(64))),
                [500, 9000],
            ),
        ),
    ];
    thread::scope(|scope| {
        for (status, (name, head, [least, most])) in cases {
            scope.spawn(move || {
                let (wait, ended) = wait_after(head, status);
                let (wait, hints) = (wait.as_millis(), ended.err.matches("hint: a reply has").count());
                assert!(wait >= least.into() && wait < most.into(), "{name}: {wait} ms");
                let is_odd = name == "garbage" || name.starts_with("a negative");
                assert_eq!((ended.code(), hints), (Some(0), usize::from(is_odd)), "{name}: {}", ended.err);
            });
        }
    });
}

/// `curl -L` writes the heads of both.
#[test]
fn what_a_redirect_says_does_not_count() {
    let server = Server::start(|request| match (&*request.path, request.visit) {
        ("/unit", _) => Answer::new(302).with("Location: /other\nRetry-After: 3600"),
        (_, 1) => Answer::new(429).with("Retry-After: 0.3"),
        _ => Answer::new(200),
    });
    let script = CURL.replace("curl", "curl -L");
    let mut command = throttle(["-r", "unlimited", "--attempts", "1", "-c", &script]);
    command.env("URL", server.url()).env("no_proxy", "*");
    let ended = finish(command, "unit\n");
    let seen = server.seen();
    assert_eq!((ended.code(), seen.len()), (Some(0), 4), "{}", ended.err);
    assert!(seen[2].arrived >= seen[1].answered + 300 * MILLISECOND);
}

#[test]
fn a_hint_at_a_reply_without_sense_comes_once() {
    let server = Server::start(|request| match request.visit {
        1 => Answer::new(429).with("Retry-After: soon"),
        _ => Answer::new(200),
    });
    let script = CURL.replace("-fsS", "-fs");
    let mut command = throttle(["-r", "unlimited", "--attempts", "2", "--backoff", "10ms", "-c", &script]);
    command.env("URL", server.url()).env("no_proxy", "*");
    let ended = finish(command, numbers(5));
    let hint =
        "throttle: hint: a reply has 'retry-after: soon', which makes no sense; write for example retry-after: 30\n";
    assert_eq!((ended.code(), &*ended.err), (Some(0), hint));
}

#[test]
fn a_time_beyond_max_pause_is_reported_once_and_alike() {
    for (wait, options) in [
        ("7200", &[][..]),
        ("9223372036854775808", &[]),
        ("99999999999999999999999", &["--max-pause", "1000000h"]),
        ("2", &["--max-pause", "1s"]),
    ] {
        let server = Server::start(move |_| Answer::new(429).with(&format!("Retry-After: {wait}")));
        let options = [&["-r", "5/s", "--attempts", "2"], options].concat();
        let ended = asked(&server, &options, &numbers(9));
        assert_eq!(ended.code(), Some(75), "{wait}: {}", ended.err);
        let said = |start: &str, end: &str| {
            let line = ended.err.lines().find_map(|line| line.strip_prefix(start)?.split_once(end));
            line.unwrap_or_else(|| panic!("{start}: {}", ended.err)).0.to_owned()
        };
        let until = said("throttle: a server asked to wait until ", ", longer than --max-pause; ending");
        assert_eq!(said("throttle: ended by a server that asked to wait until ", ": "), until);
        assert_eq!(ended.err.matches("asked to wait").count(), 2, "{}", ended.err);
        assert!(ended.err.contains("line 1 '1': not tried again\n"), "{}", ended.err);
    }
}

/// It refuses at once, and takes a while to serve: so no success begins after the last refusal.
#[test]
fn a_server_that_serves_slowly_and_refuses_fast_does_not_end_the_run() {
    let (begun, windows) = (Instant::now(), Mutex::new(BTreeMap::<u64, u32>::new()));
    let server = Server::start(move |_| {
        let mut windows = windows.lock().unwrap();
        let calls = windows.entry(begun.elapsed().as_secs()).or_default();
        *calls += 1;
        if *calls > 5 { Answer::new(429) } else { Answer::new(200).after(300 * MILLISECOND) }
    });
    let ended = asked(&server, &["-r", "50/s", "--attempts", "3", "--max-pause", "2500ms"], &numbers(30));
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
}

#[test]
fn without_a_time_the_first_pause_is_two_intervals_of_the_pace() {
    for (limits, least) in [(&["-r", "5/s"][..], 400), (&["-r", "100/s", "-r", "2/s,per=f1"], 1000)] {
        let server = Server::start(|request| Answer::new(if request.visit == 1 { 429 } else { 200 }));
        let ended = asked(&server, &[limits, &["--attempts", "1", "--summary=json"]].concat(), "unit\n");
        let paused = summary(&ended).0["paused_ns"].as_u64().unwrap();
        assert_eq!(paused, least * 1_000_000, "{}", ended.err);
    }
}

/// Those that were in flight when the first answer came: sixteen are told to wait.
#[test]
fn a_pause_holds_everything_and_then_the_sent_back_go_first_at_the_rate() {
    let arrived = AtomicU64::new(0);
    let server = Server::start(move |request| {
        if request.number > 16 {
            return Answer::new(200);
        }
        arrived.fetch_add(1, Ordering::SeqCst);
        wait_until("all sixteen are there", || arrived.load(Ordering::SeqCst) == 16);
        Answer::new(429).with("Retry-After: 1").after(MILLISECOND * u32::try_from(10 * request.number).unwrap())
    });
    let options = ["-r", "40/s", "-b", "16", "-j", "16", "--attempts", "1", "--summary=json", "-t"];
    let ended = asked(&server, &options, &numbers(30));
    let seen = server.seen();
    let (before, after) = seen.split_at(16);
    assert_eq!((ended.code(), after.len()), (Some(0), 30), "{}", ended.err);
    assert!(before.iter().all(|seen| seen.status == 429));
    let last_answer = before.iter().map(|seen| seen.answered).max().unwrap();
    let soonest = after[0].arrived;
    assert!(soonest >= last_answer + Duration::from_secs(1), "{soonest:?} is too soon after {last_answer:?}");
    let took = after[29].arrived.saturating_sub(soonest);
    assert!(took >= 29 * 25 * MILLISECOND / 2, "30 starts at 40/s without a burst took {took:?}");
    // In the order of their starts; clients may take longer than each other.
    let traced = ended.err.lines().filter(|line| line.contains("'throttle -c' "));
    let order: Vec<u32> = traced.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(
        order,
        (1..=16).chain(1..=30).collect::<Vec<_>>(),
        "those sent back go first, the oldest before the others"
    );
    let (commands, _) = summary(&ended);
    assert_eq!([&commands["told_to_wait"], &commands["ok_after_retry"]], [16, 16]);
    let paused = commands["paused_ns"].as_u64().unwrap();
    assert!((1_000_000_000..2_500_000_000).contains(&paused), "one pause: {paused} ns");
}

#[test]
fn a_run_can_be_interrupted_during_a_pause() {
    let server = Server::start(|_| Answer::new(429).with("Retry-After: 1800"));
    let mut child = asking(&server, &["-r", "5/s", "-j", "1", "--attempts", "1"]).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"1\n2\n3\n").unwrap();
    wait_until("it is told to wait", || !server.seen().is_empty());
    let run = Started::new(child);
    // Until its client has ended.
    thread::sleep(1000 * MILLISECOND);
    run.signal(rustix::process::Signal::INT);
    let ended = run.end();
    assert_eq!((ended.signal(), server.seen().len()), (Some(2), 1), "{}", ended.err);
    assert!(ended.err.contains("line 1 '1': not tried again\n"), "{}", ended.err);
    let sum = "throttle: interrupted: 0 ok, 0 stopped, 1 not tried again, next line not started: 2 '2'\n";
    assert!(ended.err.ends_with(sum), "{}", ended.err);
}

/// Two processes use `bucket`; the server asks one of them to wait.
fn both_wait(bucket: &str) {
    assert_eq!(run(["--bucket", bucket, "--set", "-r", "50/s"], "").code(), Some(0));
    let server = Server::start(|request| match &*request.path {
        "/a/5" if request.visit == 1 => Answer::new(429).with("Retry-After: 2"),
        _ => Answer::new(200),
    });
    let units = |name: &str, last| numbers(last).lines().map(|n| [name, "/", n, "\n"].concat()).collect::<String>();
    let start = |units: String| {
        let mut child = asking(&server, &["--bucket", bucket, "-j", "2", "--attempts", "2"]).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), units.as_bytes()).unwrap();
        Started::new(child)
    };
    let (first, second) = (start(units("a", 20)), start(units("b", 40)));
    wait_until("one is told to wait", || server.seen().iter().any(|seen| seen.status == 429));
    let told = server.seen().into_iter().find(|seen| seen.status == 429).unwrap().answered;
    // It joins during the pause.
    thread::sleep(300 * MILLISECOND);
    let joined = start(units("c", 3));
    let mut once = throttle(["--bucket", bucket, "--once", "curl", "-q", "-fsS", "-o", "/dev/null"]);
    once.arg(server.url() + "d").env("no_proxy", "*");
    for ended in [first.end(), second.end(), joined.end(), finish(once, "")] {
        assert_eq!(ended.code(), Some(0), "{}", ended.err);
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 20 + 1 + 40 + 3 + 1);
    // What started before the answer was read arrives a little later.
    let (from, to) = (told + 500 * MILLISECOND, told + 2000 * MILLISECOND);
    let early: Vec<&Seen> = seen.iter().filter(|seen| seen.arrived > from && seen.arrived < to).collect();
    assert!(early.len() <= 3, "told at {told:?}: {early:?}");
    let before = seen.iter().filter(|seen| seen.arrived <= from && seen.path.starts_with("/b")).count();
    assert!((1..40).contains(&before), "{before} of the other's units came before the pause");
}

#[test]
fn all_who_share_a_file_wait() {
    let folder = tempfile::tempdir().unwrap();
    both_wait(folder.path().join("bucket").to_str().unwrap());
}

#[test]
fn all_who_share_a_redis_wait() {
    let Some(redis) = Redis::start(&[]) else { return };
    both_wait(&redis.bucket("again"));
}

/// A real server that asks by its status alone, without a time.
#[test]
fn nginx_is_obeyed_with_either_status() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    let nginx = Nginx::start(|| Command::new(&program)).unwrap();
    for folder in ["503/", "429/"] {
        thread::sleep(crate::support::nginx::REST);
        let options = ["-r", "unlimited", "--attempts", "2", "--backoff", "100ms..1s", "--summary=json", "-c", CURL];
        let mut command = throttle(options);
        command.env("URL", nginx.url() + folder).env("no_proxy", "*");
        let ended = finish(command, numbers(12));
        let (commands, _) = summary(&ended);
        assert_eq!((ended.code(), &commands["ok"]), (Some(0), &12.into()), "{folder}: {}", ended.err);
        assert!(commands["told_to_wait"].as_u64().unwrap() > 0, "it was too fast: {commands}");
    }
}

/// Law 12, as after a restart: the first units are bad, and nothing was served yet. Others are read and go first.
#[test]
fn units_at_the_front_that_are_always_told_to_wait_leave_the_calls_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-r", "200/s", "-j", "4", "--attempts", "3", "--backoff", "20ms..100ms", "--max-pause", "20s"];
    let script = "echo $1 >> tried; case $1 in *!) exit 75;; esac";
    let mut command = throttle([&options[..], &["-c", script]].concat());
    command.current_dir(folder.path());
    let input: String =
        (1..=3).map(|unit| format!("{unit}!\n")).chain((1..=60).map(|unit| format!("{unit}\n"))).collect();
    let ended = finish(command, input);
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    let tried = std::fs::read_to_string(folder.path().join("tried")).unwrap();
    let good = tried.lines().filter(|unit| !unit.ends_with('!')).count();
    let before = tried.lines().position(|unit| unit == "30").unwrap();
    assert!(good == 60 && before < 80, "{before} were tried before unit 30: {tried}");
}

/// Before, it paused the others again and again: 21 of 300 were done when the run ended.
#[test]
fn one_unit_that_is_always_told_to_wait_fails_alone() {
    let bucket = tempfile::tempdir().unwrap();
    let bucket = bucket.path().join("bucket");
    let bucket = bucket.to_str().unwrap();
    let units = (1..=300).map(|unit| format!("a {unit}\n")).collect::<Vec<_>>().concat();
    let limits: [&[&str]; 3] = [&["-r", "200/s"], &["-r", "200/s,per=f1"], &["--bucket", bucket, "-r", "200/s"]];
    for limit in limits {
        for attempts in ["1", "3"] {
            let options = [limit, &["--attempts", attempts, "--backoff", "20ms..200ms"]].concat();
            let script = r#"[ "$1" = "a 20" ] && exit 75; echo "$1""#;
            let ended = run([&options[..], &["-c", script]].concat(), &units);
            assert_eq!(ended.code(), Some(123), "{options:?}: {}", ended.err);
            assert_eq!(ended.out.split(|byte| *byte == b'\n').count(), 300, "299 lines, and what is behind the last");
            assert!(ended.err.contains("'a 20'"), "{}", ended.err);
        }
    }
}
