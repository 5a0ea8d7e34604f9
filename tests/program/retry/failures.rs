//! Units that fail and are tried again: how often, when, and with what output.

use crate::support::retries::{Retries, attempts, summary};
use crate::support::{Running, cpu_time, feed, is_right_once, number_in, numbers, run, shell, wait_until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

/// A run with a backoff of a millisecond or two.
fn quick(count: u32) -> Retries {
    attempts(count).backoff("1ms..2ms")
}

/// How often each line of the file occurs.
fn count(file: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// How often `script` was run for each of `units`, with the exit code.
fn tries(retries: Retries, script: &str, units: &[&str]) -> (Vec<usize>, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo \"$1\" >> tries; {script}");
    let ended = retries.script(&script).inside(&folder).run(units.join("\n"));
    let counts = count(&folder.path().join("tries"));
    (units.iter().map(|unit| counts.get(*unit).copied().unwrap_or(0)).collect(), ended.code())
}

#[test]
fn a_failure_that_lasts_is_not_tried_again() {
    let script = "case $1 in http*) printf 'HTTP/1.1 %s x\\n' ${1#http} > \"$THROTTLE_REPLY\"; exit 22;; esac; exit $1";
    let units = ["126", "127", "http404", "http400", "http408", "http425", "http500", "1", "0"];
    assert_eq!(tries(quick(3), script, &units), (vec![1, 1, 1, 1, 3, 3, 3, 3, 1], Some(123)));
    assert_eq!(tries(quick(3), script, &["255"]), (vec![1], Some(124)));
    assert_eq!(tries(quick(1), script, &["1", "http500"]), (vec![1, 1], Some(123)));
}

#[test]
#[ignore = "slow: 4 s"]
fn only_the_named_failures_are_tried_again() {
    let script = "case $1 in kill) kill -9 $$;; esac; exit $1";
    let units = ["6", "7", "kill"];
    for (named, expected, late) in [("6", [2, 1, 1], 1), ("6, 7,signal", [2, 2, 2], 1), ("timeout", [1, 1, 1], 2)] {
        let retries = || quick(2).options(&["--retry-on", named]);
        assert_eq!(tries(retries(), script, &units).0, expected, "{named}");
        // Alone: on a busy machine the others would be late as well.
        let retries = retries().options(&["--timeout", "1s"]);
        assert_eq!(tries(retries, "exec sleep 100", &["sleep"]).0, [late], "{named}");
    }
}

/// ssh exits so if it cannot connect.
#[test]
fn an_exit_of_255_that_is_named_is_a_failure_like_others() {
    for named in [&["--retry-on", "255"][..], &["--retry-on", "1,255", "-j", "1"]] {
        assert_eq!(
            tries(quick(3).options(named), "exit $1", &["0", "255", "00"]),
            (vec![1, 3, 1], Some(123)),
            "{named:?}"
        );
    }
    let ended = quick(2).options(&["--retry-on", "255"]).script("exit 255").run("a");
    assert!(ended.err.starts_with("throttle: line 1 'a': the script exited 255, attempt 2\n"), "{}", ended.err);
}

#[test]
fn codes_that_are_named_mean_that_the_server_asked_to_wait() {
    let once = "case $1 in http*) echo \"HTTP/1.1 ${1#http} x\";; *) echo;; esac > \"$THROTTLE_REPLY\"";
    let script = format!("[ -e $1 ] || {{ > $1; {once}; case $1 in http*) exit 22;; esac; exit $1; }}");
    let retries = quick(1).options(&["--later-on", "254,http:403,255"]);
    let units = ["254", "http403", "255", "http404", "9"];
    assert_eq!(tries(retries, &script, &units), (vec![2, 2, 2, 1, 1], Some(123)));
}

#[test]
fn a_mistake_names_the_flag_and_shows_a_spelling_that_works() {
    for (flag, wrong) in [
        ("--attempts", &["0", "-1", "x", "", "1.5", "4294967296"][..]),
        ("--backoff", &["", "x", "1s..", "..1s", "2s..1s", "-1s..2s", "1s-60s", "1s..60s..90s"]),
        ("--retry-on", &["", "0", "126", "256", "-1", "6;7", "6,,7", "sigterm"]),
        ("--later-on", &["", "0", "126", "256", "http:", "http:200", "http:600", "403", "timeout"]),
        ("--max-pause", &["", "x", "-1s"]),
        ("--ahead", &["0", "-1", "x", ""]),
        ("--max-fail", &["0", "0%", "101%", "x", "%", "-1", "5.5%"]),
    ] {
        for value in wrong {
            let more = if flag == "--attempts" { &[][..] } else { &["--attempts", "2"] };
            let written = format!("{flag}={value}");
            let ended = run([&["-r", "1/s", &written][..], more, &["true"]].concat(), "");
            let message = ended.err.lines().next().unwrap_or_default().to_owned();
            assert_eq!(ended.code(), Some(2), "{flag} '{value}': {}", ended.err);
            assert!(message.starts_with("throttle: ") && message.contains(flag), "{flag} '{value}': {message}");
            let shown =
                message.split(["like ", "example ", "write "].into_iter().find(|word| message.contains(word)).unwrap());
            let shown = shown.last().unwrap().trim_start_matches(flag).trim_start();
            let end = if flag == "--retry-on" { &[' ', ';'][..] } else { &[' ', ';', ','] };
            let shown = shown.split(end).next().unwrap();
            let right = run([&["-r", "1/s", flag, shown][..], more, &["true"]].concat(), "");
            assert_eq!(right.code(), Some(0), "{message}: {}", right.err);
        }
    }
    for flag in ["--backoff=1s..2s", "--retry-on=6", "--max-pause=1h", "--ahead=9"] {
        let ended = run(["-r", "1/s", flag, "true"], "");
        assert!(ended.code() == Some(2) && ended.err.contains("needs --attempts"), "{flag}: {}", ended.err);
    }
}

#[test]
fn output_that_cannot_be_taken_back_is_refused_with_attempts() {
    for flag in ["-u", "--line-buffer"] {
        let ended = run(["-r", "1/s", "--attempts", "2", flag, "true"], "");
        assert!(ended.code() == Some(2) && ended.err.contains(&format!("throttle: {flag}: ")), "{}", ended.err);
    }
}

#[test]
fn only_the_last_attempt_is_heard_but_all_of_its_complaints() {
    let script = "echo out $THROTTLE_ATTEMPT; echo err $THROTTLE_ATTEMPT >&2; [ $THROTTLE_ATTEMPT = 3 ]";
    for options in [["-q", "-j1"], ["-q", "-j4"], ["-qk", "-j1"], ["-qk", "-j4"]] {
        let ended = quick(3).options(&options).script(script).run("a\n");
        assert_eq!((ended.text(), &*ended.err), ("out 3\n", "err 1\nerr 2\nerr 3\n"), "{options:?}");
    }
    let lasting = quick(2).options(&["-q"]).script("echo out $THROTTLE_ATTEMPT; exit 1").run("a\n");
    assert_eq!(lasting.text(), "out 2\n", "the last attempt may fail");
}

#[test]
fn output_in_input_order_waits_for_units_that_are_tried_again() {
    let script = "case $1 in 1|2|13) [ $THROTTLE_ATTEMPT = 3 ] || exit 1;; esac; echo $1; head -c 300000 /dev/zero";
    for jobs in [1, 3, 16] {
        let retries = attempts(3).backoff("50ms..100ms").jobs(jobs).options(&["-k"]);
        let ended = retries.script(script).run(numbers(30));
        let text: String = ended.text().chars().filter(|c| *c != '\0').collect();
        assert_eq!((text, ended.code()), (numbers(30), Some(0)), "-j {jobs}: {}", ended.err);
        assert_eq!(ended.out.len() - numbers(30).len(), 30 * 300_000);
    }
}

#[test]
fn each_attempt_reads_the_same_bytes() {
    for size in [10, 4096, 5000, 1_000_000] {
        let folder = tempfile::tempdir().unwrap();
        let unit = |byte: u8| [vec![byte; size - 1], b"\n".to_vec()].concat();
        let retries = quick(3).options(&["--stdin"]).script("cksum >> sums; [ $THROTTLE_ATTEMPT = 3 ]");
        let ended = retries.inside(&folder).run([unit(b'a'), unit(b'b')].concat());
        assert_eq!(ended.code(), Some(0), "{}", ended.err);
        let sums = count(&folder.path().join("sums"));
        assert_eq!(sums.values().collect::<Vec<_>>(), [&3, &3], "{sums:?}");
        assert!(sums.keys().all(|sum| sum.ends_with(&format!(" {size}"))), "{sums:?}");
    }
}

/// A unit too large for memory holds a file while it waits.
#[test]
fn units_that_wait_leave_files_for_those_that_run() {
    let script = "cat > /dev/null; [ $THROTTLE_ATTEMPT = 2 ] && echo ok";
    let options = "-r unlimited -j 2 --attempts 2 --backoff 20ms..50ms --stdin";
    let limited = format!("ulimit -n 44; exec \"$0\" {options} -c '{script}'");
    let unit = format!("{}\n", "x".repeat(50_000));
    let ended = feed(shell(&limited), unit.repeat(50));
    assert_eq!((ended.sorted().len(), ended.code()), (50, Some(0)), "{}", ended.err.get(..300).unwrap_or(&ended.err));
}

#[test]
fn a_command_for_several_units_or_for_numbers_is_tried_again() {
    let script = "[ $THROTTLE_ATTEMPT = 2 ] && echo \"$@\"";
    let several = quick(2).options(&["-n", "2"]).script(script).run("a\nb\nc\n");
    assert_eq!((several.sorted(), several.code()), (vec!["a b", "c"], Some(0)));
    let script = "[ $THROTTLE_ATTEMPT = 2 ] && echo $THROTTLE_SEQ";
    let numbered = quick(2).options(&["--repeat", "3"]).script(script).run("");
    assert_eq!((numbered.sorted(), numbered.code()), (vec!["1", "2", "3"], Some(0)), "{}", numbered.err);
}

#[test]
fn another_attempt_does_not_wait_for_more_input() {
    let script = "[ $THROTTLE_ATTEMPT = 3 ] && echo $1";
    let mut child = quick(3).script(script).command().spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines();
    for unit in ["one", "two"] {
        writeln!(stdin, "{unit}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), unit, "the input has not ended");
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// A report to the bucket that is due at once wakes the run. Here none is due.
#[test]
#[ignore = "slow: a busy machine can spoil it"]
fn a_run_with_attempts_uses_no_cpu_while_it_waits_for_input() {
    let mut run = Running::start(attempts(2).script("true").command());
    let mut stdin = run.stdin();
    stdin.write_all(b"1\n").unwrap();
    let used = || {
        let before = cpu_time(run.pid());
        std::thread::sleep(std::time::Duration::from_secs(1));
        cpu_time(run.pid()) - before
    };
    is_right_once(used, |used| *used < 3);
    drop(stdin);
    assert_eq!(run.finish().code(), Some(0));
}

/// Units that wait for another attempt, which an end of the run comes before.
#[test]
fn waiting_units_are_named_and_counted_after_an_interrupt() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let retries = attempts(3).rate("100/s").backoff("1h").script("echo 1 > tried.$1; exit 1");
        let mut child = retries.inside(&folder).command().spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(numbers(3).as_bytes()).unwrap();
        let stdin = child.stdin.take();
        let run = Running::read(child);
        for unit in 1..=3 {
            number_in(&folder.path().join(format!("tried.{unit}")));
        }
        // Until the last one has ended.
        std::thread::sleep(std::time::Duration::from_millis(300));
        run.signal(signal);
        let ended = run.finish();
        drop(stdin);
        let mut lines: Vec<&str> = ended.err.lines().collect();
        let sum = lines.pop();
        let named: Vec<String> = (1..=3).map(|n| format!("throttle: line {n} '{n}': not tried again")).collect();
        assert_eq!((ended.signal(), lines), (Some(signal.as_raw()), named.iter().map(|line| &**line).collect()));
        assert_eq!(sum, Some("throttle: interrupted: 0 ok, 0 stopped, 3 not tried again"));
    }
}

#[test]
fn units_that_wait_when_the_reader_leaves_are_counted() {
    let retries = attempts(3).backoff("1h").jobs(2).script("[ $1 = 1 ] && exit 1; sleep 0.5; echo $1");
    let mut child = retries.command().spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"1\n2\n").unwrap();
    drop(child.stdout.take());
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(message, "throttle: the reader of the output is gone: 0 ok, 1 stopped, 1 not tried again\n");
}

/// The waits are so short that an attempt may start in the moment in which the one before ends.
#[test]
fn no_unit_is_lost_however_soon_it_is_tried_again() {
    for (units, is_last_at_once) in [(150, true), (150, false)] {
        let retries = attempts(9).backoff("1ns").jobs(32).summary();
        let script = "[ $THROTTLE_ATTEMPT -gt $(($1 % 4)) ] && echo $1";
        let mut child = retries.script(script).command().spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(numbers(units).as_bytes()).unwrap();
        let stdin = (!is_last_at_once).then_some(stdin);
        let feeder = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            drop(stdin);
        });
        let ended = Running::read(child).finish();
        feeder.join().unwrap();
        let mut found: Vec<u32> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!((found, ended.code()), ((1..=units).collect(), Some(0)), "{}", ended.err);
        let commands = summary(&ended);
        let expected = (1..=units).map(|unit| unit % 4 + 1).sum::<u32>();
        for (field, value) in [("started", expected), ("ok", units), ("running", 0), ("to_be_tried_again", 0)] {
            assert_eq!(commands[field], value, "{field}: {commands}");
        }
    }
}

#[test]
fn too_many_units_that_wait_hold_up_new_ones_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ls wait.* 2> /dev/null | wc -l >> most; if [ $THROTTLE_ATTEMPT = 1 ]; then : > wait.$1; exit 1; fi; rm wait.$1; echo $1";
    let retries = attempts(2).backoff("400ms").jobs(1).options(&["--ahead", "3"]);
    let ended = retries.script(script).inside(&folder).run(numbers(8));
    let most = count(&folder.path().join("most")).into_keys().map(|most| most.trim().parse::<u32>().unwrap()).max();
    assert_eq!((ended.sorted().len(), ended.code()), (8, Some(0)), "{}", ended.err);
    assert!(most.is_some_and(|most| (1..=3).contains(&most)), "{most:?} waited");
    wait_until("nothing is left", || fs::read_dir(&folder).unwrap().count() == 1);
}
