//! Servers that allow less than was asked for: the run slows down, and says so.

use super::{CURL, asked, summary};
use crate::common::is_right_once;
use crate::launching::{finish, throttle};
use crate::support::server::{Answer, Request, Server};
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// A server that allows 20 calls a second, two at once, and names no time.
fn strict() -> Server {
    let bucket = Mutex::new((Instant::now(), 2.0));
    Server::start(move |request: &Request| {
        let (seen, level) = &mut *bucket.lock().unwrap();
        *level = f64::min(2.0, *level + 20.0 * seen.elapsed().as_secs_f64());
        *seen = Instant::now();
        let is_free = request.path.contains("free");
        let allows = is_free || *level >= 1.0;
        *level -= if allows && !is_free { 1.0 } else { 0.0 };
        Answer::new(if allows { 200 } else { 429 })
    })
}

fn units(count: usize) -> String {
    (1..=count).fold(String::new(), |units, unit| units + &unit.to_string() + "\n")
}

/// Whether all of 80 units were done, how many calls were refused, the pace in the end, and how many calls the log names a
/// pace for.
fn one_that_learns() -> (bool, u64, Option<f64>, usize) {
    let (server, folder) = (strict(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let log = format!("--log={}", log.display());
    let options = ["-r", "400/s", "-j", "8", "--attempts", "1"];
    let ended = asked(&server, &[&options[..], &["--summary=json", &log]].concat(), &units(80));
    let (commands, _) = summary(&ended);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let paces =
        log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["pace"].as_f64());
    let refused = commands["told_to_wait"].as_u64().unwrap();
    (ended.code() == Some(0), refused, commands["learned"].as_f64(), paces.count())
}

/// On a busy machine calls come late and close together, and the server refuses more of them: then another run shows it.
/// `retries/tests/servers.rs` counts the refusals without a real clock.
#[test]
fn a_run_slows_down_to_what_the_server_allows() {
    is_right_once(one_that_learns, |(is_done, refused, learned, paces)| {
        *is_done && *refused < 60 && learned.is_some_and(|learned| (1.0..200.0).contains(&learned)) && *paces > 10
    });
}

#[test]
fn a_run_that_is_not_to_learn_keeps_the_rate() {
    let server = strict();
    let options = ["-r", "400/s", "-j", "8", "--attempts", "1", "--no-learn", "--summary=json"];
    let ended = asked(&server, &options, &units(40));
    let (commands, _) = summary(&ended);
    assert_eq!((&commands["ok"], &commands["learned"]), (&40.into(), &serde_json::Value::Null), "{}", ended.err);
    assert!(!ended.err.contains("slowed down"), "{}", ended.err);
}

#[test]
fn a_server_that_allows_what_is_asked_for_slows_down_nothing() {
    let server = Server::start(|_: &Request| Answer::new(200));
    let ended = asked(&server, &["-r", "400/s", "-j", "8", "--attempts", "1", "--summary=json"], &units(40));
    let (commands, _) = summary(&ended);
    assert_eq!((&commands["ok"], &commands["learned"]), (&40.into(), &serde_json::Value::Null), "{}", ended.err);
}

/// Runs 40 units of the key `busy` beside 40 of `free`. Returns whether the summary tells that `busy` was slowed down, and of how
/// many that were told to wait; how many calls were refused; and when the last call of each key came.
fn one_slow_key() -> (bool, usize, usize, [Duration; 2]) {
    let server = strict();
    let units = "busy 1\nfree 1\n".repeat(40);
    let script = CURL.replace("$1", "${1% *}/${1#* }");
    let options = ["-r", "400/s,per=f1", "-j", "16", "--attempts", "1", "--summary", "-c", &*script];
    let mut command = throttle(options);
    command.env("URL", server.url()).env("no_proxy", "*");
    let ended = finish(command, units);
    assert!(ended.err.contains("throttle: 80 ok"), "{}", ended.err);
    let line = ended.err.lines().find(|line| line.contains("slowed down")).unwrap_or("");
    let is_told = line.starts_with("throttle: slowed down to about ")
        && line.contains("/s for 'busy': ")
        && line.ends_with("told to wait");
    let told = line.rsplit(": ").next().and_then(|words| words.split(' ').next()?.parse().ok()).unwrap_or(0);
    let refused = server.seen().iter().filter(|seen| seen.status == 429).count();
    let last = |key: &str| server.seen().iter().filter(|seen| seen.path.contains(key)).map(|seen| seen.arrived).max();
    (is_told, told, refused, ["free", "busy"].map(|key| last(key).unwrap()))
}

/// Twenty calls of the key `free` need 50 ms; those of the key `busy` at least 1.9 s. What is refused to one unit alone is a failure
/// of that unit.
#[test]
fn a_key_that_is_slowed_down_holds_up_no_other() {
    is_right_once(one_slow_key, |(is_told, told, refused, [free, busy])| {
        *is_told && (1..=*refused).contains(told) && free < busy && *busy > Duration::from_secs(1)
    });
}

/// Whether two runs of 50 units each have done all, how many calls were refused, and what the bucket tells then.
fn two_that_share(limit: &str) -> (bool, usize, Option<f64>) {
    let (server, folder) = (strict(), tempfile::tempdir().unwrap());
    let bucket = format!("--bucket={}", folder.path().join("bucket").display());
    let learned = || {
        let ended = finish(throttle([&bucket[..], "--show=json"]), "");
        let shown: serde_json::Value = serde_json::from_str(ended.text()).expect(&ended.err);
        if limit.contains("per=") { shown["keys"][0]["learned"].as_f64() } else { shown["learned"].as_f64() }
    };
    assert_eq!(finish(throttle([&bucket[..], "--set", "-r", limit]), "").code(), Some(0));
    let options = [&bucket[..], "-j", "8", "--attempts", "1", "--summary=json"];
    let runs = || asked(&server, &options, &units(50));
    let ended = thread::scope(|scope| [scope.spawn(runs), scope.spawn(runs)].map(|run| run.join().unwrap()));
    let refused = server.seen().iter().filter(|seen| seen.status == 429).count();
    let found = learned();
    let shown = finish(throttle([&bucket[..], "--show"]), "");
    let words = "the server allows about ";
    assert_eq!(shown.text().contains(words), found.is_some(), "{}", shown.text());
    // One that begins now knows it from the first unit on.
    let (commands, _) = summary(&asked(&server, &options, "one\n"));
    assert_eq!(commands["learned"].is_f64(), found.is_some(), "{commands}");
    assert_eq!(finish(throttle([&bucket[..], "--clear"]), "").code(), Some(0));
    assert_eq!(learned(), None, "cleared");
    (ended.iter().all(|ended| ended.code() == Some(0)), refused, found)
}

/// Of 100 units 94 to 135 calls were refused here, and 50 to 171 before a refusal had to be confirmed, when not all runs ended
/// well.
#[test]
fn those_who_share_a_bucket_slow_down_together() {
    // With keys, all units have the same one: none. With jobs, too.
    for limit in ["400/s", "400/s,per=f2", "400/s,jobs=16"] {
        is_right_once(
            || two_that_share(limit),
            |(are_done, refused, learned)| {
                *are_done && *refused < 150 && learned.is_some_and(|learned| (1.0..200.0).contains(&learned))
            },
        );
    }
}
