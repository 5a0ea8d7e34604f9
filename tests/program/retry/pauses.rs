//! Servers that request a wait: its end, the runs that wait, and the order of units afterwards.

use crate::rounds::rounds;
use crate::support::nginx::Nginx;
use crate::support::redis::Redis;
use crate::support::retries::{attempts, summary};
use crate::support::server::{Answer, Server, Visit};
use crate::support::{Ended, feed, found, is_right_once, numbers, run, throttle, wait_until};
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
    let ended = attempts(1).backoff("400ms").requests(&server).run("unit\n");
    let visits = server.visits();
    assert_eq!(visits.len(), 2, "{}", ended.err);
    (visits[1].arrived.saturating_sub(visits[0].answered), ended)
}

#[test]
#[ignore = "slow: 2 s"]
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
        (429, ("a reset alone", fixed("ratelimit-reset: 0.5"), [500, 9000])),
        (429, ("a time since 1970", Box::new(|| format!("Retry-After: {}", epoch(2))), [900, 9000])),
        (503, ("milliseconds of a relative", fixed("x-ms-retry-after-ms: 500"), [500, 9000])),
        (429, ("a duration of Python", fixed("x-ratelimit-retry-after: 0.50000000000000004s"), [500, 9000])),
        (429, ("two items", fixed("RateLimit: \"d\";r=0;t=1, \"d\";r=9;t=99"), [1000, 9000])),
        (403, ("a reset without sense", fixed("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: soon"), [50, 9000])),
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
                let is_odd = ["garbage", "a negative number", "a reset without sense"].contains(&name);
                assert_eq!((ended.code(), hints), (Some(0), usize::from(is_odd)), "{name}: {}", ended.err);
            });
        }
    });
}

/// `curl -L` writes the heads of both.
#[test]
fn what_a_redirect_says_does_not_count() {
    let redirect = Answer::new(302).with("Location: /other\nRetry-After: 3600");
    let server = Server::that_answers().always("/unit", redirect).first(Answer::later("0.3")).start();
    let ended = attempts(1).requests(&server).but("curl", "curl -L").run("unit\n");
    let visits = server.visits();
    assert_eq!((ended.code(), visits.len()), (Some(0), 4), "{}", ended.err);
    assert!(visits[2].arrived >= visits[1].answered + 300 * MILLISECOND);
}

#[test]
fn a_hint_at_a_reply_without_sense_comes_once() {
    let server = Server::that_answers().first(Answer::later("soon")).start();
    let ended = attempts(2).backoff("10ms").requests(&server).but("-fsS", "-fs").run(numbers(5));
    let hint =
        "throttle: hint: a reply has 'retry-after: soon', which is not valid; write for example retry-after: 30\n";
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
        let server = Server::that_answers().always("/", Answer::later(wait)).start();
        let ended = attempts(2).rate("5/s").options(options).requests(&server).run(numbers(9));
        assert_eq!(ended.code(), Some(75), "{wait}: {}", ended.err);
        let said = |start: &str, end: &str| {
            let line = ended.err.lines().find_map(|line| line.strip_prefix(start)?.split_once(end));
            line.unwrap_or_else(|| panic!("{start}: {}", ended.err)).0.to_owned()
        };
        let until = said("throttle: a server requested a wait until ", ", longer than --max-pause; the run ends");
        assert_eq!(said("throttle: ended by a server that requested a wait until ", ": "), until);
        assert_eq!(ended.err.matches("requested a wait").count(), 2, "{}", ended.err);
        assert!(ended.err.contains("line 1 '1': not tried again\n"), "{}", ended.err);
    }
}

#[test]
fn a_pause_beyond_max_pause_is_reported_with_its_reason() {
    for (answer, max_pause, words, last) in [
        ("retry-after: 5", "1s", " requested a wait until ", "that requested a wait until "),
        ("retry-after: 0.4", "1s", " requested another wait until ", "whose waits take "),
        // The second pause is longer than the time that the server names, since that was too short.
        (
            "retry-after: 0.01",
            "200ms",
            " still refuses units: with the next pause, until ",
            "that still refuses units: ",
        ),
        ("x: y", "200ms", " still refuses units: with the next pause, until ", "that still refuses units: "),
    ] {
        for limit in ["unlimited", "100/s,per=f1"] {
            let retries = attempts(1).rate(limit).options(&["--max-pause", max_pause]);
            let ended = retries.script(&format!("echo '{answer}' > \"$THROTTLE_REPLY\"; exit 75; : $1")).run("1\n");
            assert_eq!(ended.code(), Some(75), "{answer}: {}", ended.err);
            let lines: Vec<&str> = ended.err.lines().filter(|line| line.contains("longer than --max-pause")).collect();
            assert!(lines.iter().any(|line| line.contains(words)), "{answer}: {}", ended.err);
            let ends = format!("throttle: ended by a server {last}");
            assert!(ended.err.contains(&ends) || limit != "unlimited", "{answer}: {}", ended.err);
        }
    }
}

/// It refuses at once, and takes a while to serve: so no success begins after the last refusal.
#[test]
#[ignore = "slow: 6 s"]
fn slow_answers_and_fast_refusals_do_not_end_the_run() {
    let (begun, windows) = (Instant::now(), Mutex::new(BTreeMap::<u64, u32>::new()));
    let server = Server::start(move |_| {
        let mut windows = windows.lock().unwrap();
        let calls = windows.entry(begun.elapsed().as_secs()).or_default();
        *calls += 1;
        if *calls > 5 { Answer::new(429) } else { Answer::new(200).after(300 * MILLISECOND) }
    });
    let retries = attempts(3).rate("50/s").options(&["--max-pause", "2500ms"]);
    let ended = retries.requests(&server).run(numbers(30));
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
}

#[test]
#[ignore = "slow: 2 s"]
fn without_a_time_the_first_pause_is_two_intervals_of_the_pace() {
    for (limits, least) in [(&["-r", "5/s"][..], 400), (&["-r", "100/s", "-r", "2/s,per=f1"], 1000)] {
        let server = Server::that_answers().first(Answer::new(429)).start();
        let ended = attempts(1).options(limits).summary().requests(&server).run("unit\n");
        let paused = summary(&ended)["paused_ns"].as_u64().unwrap();
        assert_eq!(paused, least * 1_000_000, "{}", ended.err);
    }
}

/// Sixteen requests are in flight at the first refusal, and all are refused.
#[test]
#[ignore = "slow: 2 s"]
fn after_a_pause_refused_units_go_first_and_at_the_rate() {
    let arrived = AtomicU64::new(0);
    let server = Server::start(move |request| {
        if request.number > 16 {
            return Answer::new(200);
        }
        arrived.fetch_add(1, Ordering::SeqCst);
        wait_until("all sixteen are there", || arrived.load(Ordering::SeqCst) == 16);
        Answer::new(429).with("Retry-After: 1").after(MILLISECOND * u32::try_from(10 * request.number).unwrap())
    });
    let retries = attempts(1).rate("40/s").options(&["-b", "16", "-t"]).jobs(16).summary();
    let ended = retries.requests(&server).run(numbers(30));
    let visits = server.visits();
    let (before, after) = visits.split_at(16);
    assert_eq!((ended.code(), after.len()), (Some(0), 30), "{}", ended.err);
    assert!(before.iter().all(|visit| visit.status == 429));
    let last_answer = before.iter().map(|visit| visit.answered).max().unwrap();
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
    let commands = summary(&ended);
    assert_eq!([&commands["told_to_wait"], &commands["ok_after_retry"]], [16, 16]);
    let paused = commands["paused_ns"].as_u64().unwrap();
    assert!((1_000_000_000..2_500_000_000).contains(&paused), "one pause: {paused} ns");
}

#[test]
fn a_run_can_be_interrupted_during_a_pause() {
    let server = Server::that_answers().always("/", Answer::later("1800")).start();
    let run = attempts(1).rate("5/s").jobs(1).requests(&server).start("1\n2\n3\n");
    wait_until("a request to wait", || !server.visits().is_empty());
    // Until its client has ended.
    thread::sleep(1000 * MILLISECOND);
    run.signal(rustix::process::Signal::INT);
    let ended = run.finish();
    assert_eq!((ended.signal(), server.visits().len()), (Some(2), 1), "{}", ended.err);
    assert!(ended.err.contains("line 1 '1': not tried again\n"), "{}", ended.err);
    let sum = "throttle: interrupted: 0 ok, 0 stopped, 1 not tried again, next line not started: 2 '2'\n";
    assert!(ended.err.ends_with(sum), "{}", ended.err);
}

/// Two processes use `bucket`; the server asks one of them to wait.
fn both_wait(bucket: &str) {
    assert_eq!(run(["--bucket", bucket, "--set", "-r", "50/s"], "").code(), Some(0));
    let server = Server::that_answers().page("/a/5", [Answer::later("2")]).start();
    let units = |name: &str, last| numbers(last).lines().map(|n| [name, "/", n, "\n"].concat()).collect::<String>();
    let retries = || attempts(2).options(&["--bucket", bucket]).jobs(2).requests(&server);
    let (first, second) = (retries().start(&units("a", 20)), retries().start(&units("b", 40)));
    wait_until("a request to wait", || server.visits().iter().any(|visit| visit.status == 429));
    let refused_at = server.visits().into_iter().find(|visit| visit.status == 429).unwrap().answered;
    // It joins during the pause.
    thread::sleep(300 * MILLISECOND);
    let joined = retries().start(&units("c", 3));
    let mut once = throttle(["--bucket", bucket, "--once", "curl", "-q", "-fsS", "-o", "/dev/null"]);
    once.arg(server.url() + "d").env("no_proxy", "*");
    for ended in [first.finish(), second.finish(), joined.finish(), feed(once, "")] {
        assert_eq!(ended.code(), Some(0), "{}", ended.err);
    }
    let visits = server.visits();
    assert_eq!(visits.len(), 20 + 1 + 40 + 3 + 1);
    // Clients that started before the answer was read arrive a little later.
    let (from, to) = (refused_at + 500 * MILLISECOND, refused_at + 2000 * MILLISECOND);
    let early: Vec<&Visit> = visits.iter().filter(|visit| visit.arrived > from && visit.arrived < to).collect();
    assert!(early.len() <= 3, "refused at {refused_at:?}: {early:?}");
    let before = visits.iter().filter(|visit| visit.arrived <= from && visit.path.starts_with("/b")).count();
    assert!((1..40).contains(&before), "{before} of the other's units came before the pause");
}

#[test]
#[ignore = "slow: 3 s"]
fn all_who_share_a_file_wait() {
    let folder = tempfile::tempdir().unwrap();
    both_wait(folder.path().join("bucket").to_str().unwrap());
}

#[test]
#[ignore = "slow: 3 s"]
fn all_who_share_a_redis_wait() {
    let Some(redis) = Redis::start(&[]) else { return };
    both_wait(&redis.bucket("again"));
}

/// A real server that asks by its status alone, without a time.
#[test]
#[ignore = "slow: 4 s"]
fn nginx_is_obeyed_with_either_status() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    let nginx = Nginx::start(|| Command::new(&program)).unwrap();
    for folder in ["503/", "429/"] {
        // On a busy machine the requests may come so slowly that none is refused.
        let told_to_wait = || {
            thread::sleep(crate::support::nginx::REST);
            let retries = attempts(2).backoff("100ms..1s").summary().requests_at(&(nginx.url() + folder));
            let ended = retries.run(numbers(12));
            let commands = summary(&ended);
            assert_eq!((ended.code(), &commands["ok"]), (Some(0), &12.into()), "{folder}: {}", ended.err);
            commands["told_to_wait"].as_u64().unwrap()
        };
        is_right_once(told_to_wait, |told| *told > 0);
    }
}

/// As after a restart: the first units are bad, and nothing was served yet. Others are read and go first.
#[test]
fn refused_units_at_the_front_let_others_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let retries = attempts(3).rate("200/s").jobs(4).backoff("20ms..100ms").options(&["--max-pause", "20s"]);
    let script = "echo $1 >> tried; case $1 in *!) exit 75;; esac";
    let input: String =
        (1..=3).map(|unit| format!("{unit}!\n")).chain((1..=60).map(|unit| format!("{unit}\n"))).collect();
    let ended = retries.script(script).inside(&folder).run(input);
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    let tried = std::fs::read_to_string(folder.path().join("tried")).unwrap();
    let good = tried.lines().filter(|unit| !unit.ends_with('!')).count();
    let before = tried.lines().position(|unit| unit == "30").unwrap();
    assert!(good == 60 && before < 80, "{before} were tried before unit 30: {tried}");
}

/// Before, it paused the others again and again: 21 of 300 were done when the run ended.
#[test]
#[ignore = "slow: 3 s"]
fn one_unit_that_is_always_refused_fails_alone() {
    let bucket = tempfile::tempdir().unwrap();
    let bucket = bucket.path().join("bucket");
    let bucket = bucket.to_str().unwrap();
    let last = rounds(300).max(60);
    let units = (1..=last).map(|unit| format!("a {unit}\n")).collect::<Vec<_>>().concat();
    let limits: [&[&str]; 3] = [&["-r", "200/s"], &["-r", "200/s,per=f1"], &["--bucket", bucket, "-r", "200/s"]];
    for limit in limits {
        for count in [1, 3] {
            let script = r#"[ "$1" = "a 20" ] && exit 75; echo "$1""#;
            let ended = attempts(count).options(limit).backoff("20ms..200ms").script(script).run(&units);
            assert_eq!(ended.code(), Some(123), "{limit:?}, {count} attempts: {}", ended.err);
            assert_eq!(
                ended.out.split(|byte| *byte == b'\n').count(),
                last as usize,
                "all but one, and the rest behind the last end of a line"
            );
            assert!(ended.err.contains("'a 20'"), "{}", ended.err);
        }
    }
}
