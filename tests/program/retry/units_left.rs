//! The report of a run that ends with 75: why it ended, how many units are left, and how to continue.

use crate::support::retries::attempts;
use crate::support::server::{Answer, Server};
use crate::support::{Ended, Running, number_in, numbers, run, throttle};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// The line about what is left, which is the last but one.
#[track_caller]
fn units_left(ended: &Ended) -> &str {
    assert_eq!(ended.code(), Some(75), "{}", ended.err);
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.contains(" are left; ")).collect();
    assert_eq!((lines.len(), ended.err.lines().rev().nth(1)), (1, lines.first().copied()), "{}", ended.err);
    lines[0]
}

/// Two commands run until there is a file `go`. The second of them fails then.
const SCRIPT: &str = "echo $$ > leader.$1; until [ -e go ]; do sleep 0.01; done; [ $1 != 2 ]";

/// Runs [`SCRIPT`] for `units`, two at once, until `stop` has done its work.
fn stopped(folder: &Path, options: &[&str], stop: impl FnOnce(&Running)) -> Ended {
    let retries = attempts(2).rate("100/s").backoff("1h").jobs(2).options(options).script(SCRIPT);
    let run = retries.inside(folder).start("");
    for unit in 1..=2 {
        number_in(&folder.join(format!("leader.{unit}")));
    }
    stop(&run);
    // It is noticed before the commands may end.
    thread::sleep(Duration::from_millis(300));
    fs::write(folder.join("go"), "").unwrap();
    run.finish()
}

/// The unit whose grant the run awaits was taken out of the queue, and nothing was said about it.
#[test]
fn an_attempt_that_waits_for_a_shared_grant_is_named_later() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let bucket = ["--bucket", bucket.to_str().unwrap(), "--stop-after", "1s"];
    let ended = attempts(2).rate("2/h,burst=2").backoff("1ms").options(&bucket).script("exit 1").run("a\nb\n");
    for line in ["throttle: line 1 'a': not tried again", "throttle: line 2 'b': not tried again"] {
        assert!(ended.err.lines().any(|found| found == line), "{line}: {}", ended.err);
    }
}

/// The first of ten units is done, the second waits for another attempt.
#[test]
#[ignore = "slow: 3 s"]
fn a_stopped_run_reports_why_what_is_left_and_how_to_go_on() {
    let go_on = "run the same command again to continue (1 unit done)";
    let no_list = "with --done FILE a run can continue where it stopped";
    for (options, count_left) in [
        (&["--repeat", "10", "--done", "seen"][..], format!("9 units are left; {go_on}")),
        (&["--repeat", "10"], format!("9 units are left; {no_list}")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ended = stopped(folder.path(), options, |run| run.signal(Signal::QUIT));
        assert_eq!(units_left(&ended), format!("throttle: stopped by QUIT (Ctrl-\\): {count_left}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let ended = stopped(folder.path(), &["--repeat", "inf"], |run| run.signal(Signal::QUIT));
    let words = units_left(&ended);
    assert!(words.contains("(Ctrl-\\): at least ") && words.ends_with(no_list), "{words}");
    let of_file = |last| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("units"), numbers(last)).unwrap();
        let options = ["--stop-after", "1500ms", "-a", "units", "--done", "seen"];
        let ended = stopped(folder.path(), &options, |_| thread::sleep(Duration::from_secs(2)));
        units_left(&ended).strip_prefix("throttle: stopped by --stop-after 1s 500ms: ").unwrap().to_owned()
    };
    assert_eq!(of_file(10), format!("9 units are left; {go_on}"));
}

/// The first units are shorter than the others, and blank lines are no units.
#[test]
fn units_of_a_file_that_are_left_are_counted() {
    for (units, options, count_left) in [
        (numbers(100_000), &["--done", "seen"][..], "99999 units are left; run the same command again"),
        (numbers(400).replace("0\n", "0\n\n"), &[], "399 units are left; "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("units"), units).unwrap();
        let ended = stopped(folder.path(), &[&["-a", "units"], options].concat(), |run| run.signal(Signal::QUIT));
        let start = "throttle: stopped by QUIT (Ctrl-\\): ";
        assert!(units_left(&ended).strip_prefix(start).unwrap().starts_with(count_left), "{}", ended.err);
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
        Running::read(command.stdin(Stdio::null()).current_dir(&folder).spawn().unwrap()).finish()
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
fn a_run_that_a_server_ends_reports_the_units_left() {
    let server = Server::that_answers().always("/3", Answer::later("7200")).start();
    let folder = tempfile::tempdir().unwrap();
    let retries = attempts(1).rate("5/s").jobs(1).options(&["--done", "seen"]);
    let ended = retries.requests(&server).inside(&folder).run(numbers(9));
    let line = units_left(&ended);
    let start = "throttle: ended by a server that requested a wait until ";
    let end = "units are left; run the same command again to continue (2 units done)";
    assert!(line.starts_with(start) && line.contains(": at least ") && line.ends_with(end), "{line}");
}

#[test]
fn a_run_that_gives_up_a_key_reports_the_units_left() {
    let later = Answer::later("7200").after(Duration::from_millis(500));
    let server = Server::that_answers().always("/a", later).start();
    let retries = attempts(1).rate("9/s,per=re:^.").jobs(2).requests(&server);
    let ended = retries.run("a1\nb1\na2\nb2\na3\n");
    let words = "throttle: the server of a key requested a wait longer than --max-pause: 3 units are left; \
                 with --done FILE a run can continue where it stopped";
    assert_eq!(units_left(&ended), words);
}

/// The number of units of commands that were not started is unknown: the last command may have fewer.
#[test]
#[ignore = "slow: 6 s"]
fn units_left_for_commands_of_several_are_an_upper_bound() {
    let count_left = |options: &[&str], input: &str| {
        let ended = run([&["-r", "1/h", "--stop-after", "2s"], options, &["true"]].concat(), input);
        let left = units_left(&ended).splitn(3, ": ").nth(2).unwrap();
        left.split_once("; ").unwrap().0.to_owned()
    };
    assert_eq!(count_left(&["--repeat", "100", "-n", "30"], ""), "at most 90 units are left");
    let most = u64::MAX.to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, numbers(100_000)).unwrap();
    assert_eq!(count_left(&["-a", file.path().to_str().unwrap(), "-n", &most], ""), "units are left");
    assert_eq!(count_left(&["-n", "2"], "1\n2\n3\n4\n5\n6\n"), "at least 2 units are left");
}
