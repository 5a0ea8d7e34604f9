//! What a run says that ends with 75: why, how many units are left, and how to go on.

use super::asked;
use crate::launching::{Ended, Started, finish, number_in, numbers, throttle};
use crate::support::server::{Answer, Server};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// The line about what is left, which is the last but one.
#[track_caller]
fn told(ended: &Ended) -> &str {
    assert_eq!(ended.code(), Some(75), "{}", ended.err);
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.contains(" are left; ")).collect();
    assert_eq!((lines.len(), ended.err.lines().rev().nth(1)), (1, lines.first().copied()), "{}", ended.err);
    lines[0]
}

/// Two commands run until there is a file `go`. The second of them fails then.
const SCRIPT: &str = "echo $$ > leader.$1; until [ -e go ]; do sleep 0.01; done; [ $1 != 2 ]";

/// Runs [`SCRIPT`] for `units`, two at once, until `stop` has done its work.
fn stopped(folder: &Path, options: &[&str], stop: impl FnOnce(&Started)) -> Ended {
    let again = ["-r", "100/s", "-j2", "--attempts", "2", "--backoff", "1h"];
    let mut command = throttle([&again[..], options, &["-c", SCRIPT]].concat());
    let run = Started::new(command.stdin(Stdio::null()).current_dir(folder).spawn().unwrap());
    for unit in 1..=2 {
        number_in(&folder.join(format!("leader.{unit}")));
    }
    stop(&run);
    // It is noticed before the commands may end.
    thread::sleep(Duration::from_millis(300));
    fs::write(folder.join("go"), "").unwrap();
    run.end()
}

/// The first of ten units is done, the second waits for another attempt.
#[test]
fn a_run_that_was_stopped_says_why_and_how_many_units_are_left_and_how_to_go_on() {
    let go_on = "run the same command again to go on (1 unit done)";
    let no_list = "with --done FILE a run can go on where it stopped";
    for (options, left) in [
        (&["--repeat", "10", "--done", "seen"][..], format!("9 units are left; {go_on}")),
        (&["--repeat", "10"], format!("9 units are left; {no_list}")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ended = stopped(folder.path(), options, |run| run.signal(Signal::QUIT));
        assert_eq!(told(&ended), format!("throttle: stopped by QUIT (Ctrl-\\): {left}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let ended = stopped(folder.path(), &["--repeat", "inf"], |run| run.signal(Signal::QUIT));
    let words = told(&ended);
    assert!(words.contains("(Ctrl-\\): at least ") && words.ends_with(no_list), "{words}");
    let of_file = |last| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("units"), numbers(last)).unwrap();
        let options = ["--stop-after", "1500ms", "-a", "units", "--done", "seen"];
        let ended = stopped(folder.path(), &options, |_| thread::sleep(Duration::from_secs(2)));
        told(&ended).strip_prefix("throttle: stopped by --stop-after 1s 500ms: ").unwrap().to_owned()
    };
    assert_eq!(of_file(10), format!("9 units are left; {go_on}"));
}

/// The first units are shorter than the others, and blank lines are no units.
#[test]
fn units_of_a_file_that_are_left_are_counted() {
    for (units, options, left) in [
        (numbers(100_000), &["--done", "seen"][..], "99999 units are left; run the same command again"),
        (numbers(400).replace("0\n", "0\n\n"), &[], "399 units are left; "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("units"), units).unwrap();
        let ended = stopped(folder.path(), &[&["-a", "units"], options].concat(), |run| run.signal(Signal::QUIT));
        let start = "throttle: stopped by QUIT (Ctrl-\\): ";
        assert!(told(&ended).strip_prefix(start).unwrap().starts_with(left), "{}", ended.err);
    }
}

/// The units 1 and 2 of one command count as two.
#[test]
fn the_same_command_goes_on_with_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let run = |stop: &str| {
        let script = "echo $1; [ $# = 2 ] && sleep 0.1";
        let options = ["-r", "100/s", "-j1", "-n2", "--done", "seen", "--repeat", "20", "-q", "-c", script];
        let mut command = throttle([&["--stop-after", stop], &options[..]].concat());
        Started::new(command.stdin(Stdio::null()).current_dir(&folder).spawn().unwrap()).end()
    };
    let mut out = Vec::new();
    let mut runs = 0;
    loop {
        let ended = run("350ms");
        assert_eq!(ended.err, "", "--quiet");
        out.extend(ended.text().lines().map(str::to_owned));
        runs += 1;
        if ended.code() != Some(75) {
            assert_eq!(ended.code(), Some(0));
            break;
        }
    }
    let all: Vec<String> = (0..10).map(|command| (2 * command + 1).to_string()).collect();
    assert!(runs > 1 && out == all, "{runs}: {out:?}");
}

#[test]
fn a_run_that_is_sent_away_says_what_is_left() {
    let server = Server::start(|request| match &*request.path {
        "/3" => Answer::new(429).with("Retry-After: 7200"),
        _ => Answer::new(200),
    });
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("seen");
    let options = ["-r", "5/s", "-j1", "--attempts", "1", "--done", list.to_str().unwrap()];
    let ended = asked(&server, &options, &numbers(9));
    let told = told(&ended);
    let start = "throttle: ended by a server that asked to wait until ";
    let end = "units are left; run the same command again to go on (2 units done)";
    assert!(told.starts_with(start) && told.contains(": at least ") && told.ends_with(end), "{told}");
}

#[test]
fn a_run_that_gives_a_key_up_says_what_is_left() {
    let server = Server::start(|request| match &*request.path {
        path if path.starts_with("/a") => Answer::new(429).with("Retry-After: 7200").after(Duration::from_millis(500)),
        _ => Answer::new(200),
    });
    let options = ["-r", "9/s,per=re:^.", "-j2", "--attempts", "1"];
    let ended = asked(&server, &options, "a1\nb1\na2\nb2\na3\n");
    let words = "throttle: a key asked to wait for longer than --max-pause: 3 units are left; \
                 with --done FILE a run can go on where it stopped";
    assert_eq!(told(&ended), words);
}

/// How many units the commands that were not started are for is not known: the last of them may be for fewer.
#[test]
fn units_that_share_a_command_are_at_most_as_many_as_its_most() {
    let left = |options: &[&str], input: &str| {
        let mut command = throttle([&["-r", "1/h", "--stop-after", "500ms"], options, &["true"]].concat());
        command.env_remove("THROTTLE_BUCKET");
        let ended = finish(command, input);
        told(&ended).split_once(": ").unwrap().1.split_once("; ").unwrap().0.split_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(left(&["--repeat", "100", "-n", "30"], ""), "at most 90 units are left");
    let most = u64::MAX.to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, numbers(100_000)).unwrap();
    assert_eq!(left(&["-a", file.path().to_str().unwrap(), "-n", &most], ""), "units are left");
    assert_eq!(left(&["-n", "2"], "1\n2\n3\n4\n5\n6\n"), "at least 2 units are left");
}
