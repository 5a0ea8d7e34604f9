//! Units that fail and are tried again: how often, when, and with what output.

use super::{scripted, summary};
use crate::launching::{Started, finish, number_in, numbers, run, throttle, wait_until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

const QUICK: [&str; 4] = ["-r", "unlimited", "--backoff", "1ms..2ms"];

/// How often each line stands in the file.
fn count(file: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// How often `script` was run for each of `units`, with the exit code.
fn tries(options: &[&str], script: &str, units: &[&str]) -> (Vec<usize>, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo \"$1\" >> tries; {script}");
    let mut command = throttle([&QUICK, options, &["-c", &script]].concat());
    let ended = finish(std::mem::replace(command.current_dir(&folder), throttle([""; 0])), units.join("\n"));
    let counts = count(&folder.path().join("tries"));
    (units.iter().map(|unit| counts.get(*unit).copied().unwrap_or(0)).collect(), ended.code())
}

#[test]
fn a_failure_that_lasts_is_not_tried_again() {
    let script = "case $1 in http*) printf 'HTTP/1.1 %s x\\n' ${1#http} > \"$THROTTLE_REPLY\"; exit 22;; esac; exit $1";
    let units = ["126", "127", "http404", "http400", "http408", "http425", "http500", "1", "0"];
    assert_eq!(tries(&["--attempts", "3"], script, &units), (vec![1, 1, 1, 1, 3, 3, 3, 3, 1], Some(123)));
    assert_eq!(tries(&["--attempts", "3"], script, &["255"]), (vec![1], Some(124)));
    assert_eq!(tries(&["--attempts", "1"], script, &["1", "http500"]), (vec![1, 1], Some(123)));
}

#[test]
fn only_the_named_failures_are_tried_again() {
    let script = "case $1 in kill) kill -9 $$;; esac; exit $1";
    let units = ["6", "7", "kill"];
    for (named, expected, late) in [("6", [2, 1, 1], 1), ("6, 7,signal", [2, 2, 2], 1), ("timeout", [1, 1, 1], 2)] {
        let options = ["--attempts", "2", "--retry-on", named];
        assert_eq!(tries(&options, script, &units).0, expected, "{named}");
        // Alone: on a busy machine the others would be late as well.
        let options = [&options[..], &["--timeout", "1s"]].concat();
        assert_eq!(tries(&options, "exec sleep 100", &["sleep"]).0, [late], "{named}");
    }
}

/// ssh exits so if it cannot connect.
#[test]
fn an_exit_of_255_that_is_named_is_a_failure_like_others() {
    for named in [&["--retry-on", "255"][..], &["--retry-on", "1,255", "-j", "1"]] {
        let options = [&["--attempts", "3"], named].concat();
        assert_eq!(tries(&options, "exit $1", &["0", "255", "00"]), (vec![1, 3, 1], Some(123)), "{named:?}");
    }
    let ended = scripted(&["--attempts", "2", "--retry-on", "255", "--backoff", "1ms"], "exit 255", "a");
    assert!(ended.err.starts_with("throttle: line 1 'a': the script exited 255, attempt 2\n"), "{}", ended.err);
}

#[test]
fn codes_that_are_named_mean_that_the_server_asked_to_wait() {
    let once = "case $1 in http*) echo \"HTTP/1.1 ${1#http} x\";; *) echo;; esac > \"$THROTTLE_REPLY\"";
    let script = format!("[ -e $1 ] || {{ > $1; {once}; case $1 in http*) exit 22;; esac; exit $1; }}");
    let options = ["--attempts", "1", "--later-on", "254,http:403,255"];
    let units = ["254", "http403", "255", "http404", "9"];
    assert_eq!(tries(&options, &script, &units), (vec![2, 2, 2, 1, 1], Some(123)));
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
            let told = ended.err.lines().next().unwrap_or_default().to_owned();
            assert_eq!(ended.code(), Some(2), "{flag} '{value}': {}", ended.err);
            assert!(told.starts_with("throttle: ") && told.contains(flag), "{flag} '{value}': {told}");
            let shown =
                told.split(["like ", "example ", "write "].into_iter().find(|word| told.contains(word)).unwrap());
            let shown = shown.last().unwrap().trim_start_matches(flag).trim_start();
            let end = if flag == "--retry-on" { &[' ', ';'][..] } else { &[' ', ';', ','] };
            let shown = shown.split(end).next().unwrap();
            let right = run([&["-r", "1/s", flag, shown][..], more, &["true"]].concat(), "");
            assert_eq!(right.code(), Some(0), "{told}: {}", right.err);
        }
    }
    for flag in ["--backoff=1s..2s", "--retry-on=6", "--max-pause=1h", "--ahead=9"] {
        let ended = run(["-r", "1/s", flag, "true"], "");
        assert!(ended.code() == Some(2) && ended.err.contains("belongs to --attempts"), "{flag}: {}", ended.err);
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
    for jobs in ["1", "4"] {
        for options in [&[][..], &["-k"]] {
            let options = [&QUICK, &["-q", "--attempts", "3", "-j", jobs][..], options, &["-c", script]].concat();
            let ended = run(&options, "a\n");
            assert_eq!((ended.text(), &*ended.err), ("out 3\n", "err 1\nerr 2\nerr 3\n"), "{options:?}");
        }
    }
    let lasting = scripted(&["-q", "--attempts", "2", "--backoff", "1ms"], "echo out $THROTTLE_ATTEMPT; exit 1", "a\n");
    assert_eq!(lasting.text(), "out 2\n", "the last attempt may fail");
}

#[test]
fn output_in_input_order_waits_for_units_that_are_tried_again() {
    let script = "case $1 in 1|2|13) [ $THROTTLE_ATTEMPT = 3 ] || exit 1;; esac; echo $1; head -c 300000 /dev/zero";
    for jobs in ["1", "3", "16"] {
        let options = ["-k", "-j", jobs, "--attempts", "3", "--backoff", "50ms..100ms"];
        let ended = scripted(&options, script, &numbers(30));
        let text: String = ended.text().chars().filter(|c| *c != '\0').collect();
        assert_eq!((text, ended.code()), (numbers(30), Some(0)), "-j {jobs}: {}", ended.err);
        assert_eq!(ended.out.len() - numbers(30).len(), 30 * 300_000);
    }
}

#[test]
fn each_attempt_reads_the_same_bytes() {
    for size in [10, 4096, 5000, 1_000_000] {
        let folder = tempfile::tempdir().unwrap();
        let script = "cksum >> sums; [ $THROTTLE_ATTEMPT = 3 ]";
        let mut command = throttle([&QUICK, &["--stdin", "--attempts", "3", "-c", script][..]].concat());
        command.current_dir(&folder);
        let unit = |byte: u8| [vec![byte; size - 1], b"\n".to_vec()].concat();
        let ended = finish(command, [unit(b'a'), unit(b'b')].concat());
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
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_throttle")]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let unit = format!("{}\n", "x".repeat(50_000));
    let ended = finish(command, unit.repeat(50));
    assert_eq!((ended.sorted().len(), ended.code()), (50, Some(0)), "{}", ended.err.get(..300).unwrap_or(&ended.err));
}

#[test]
fn a_command_for_several_units_or_for_numbers_is_tried_again() {
    let script = "[ $THROTTLE_ATTEMPT = 2 ] && echo \"$@\"";
    let several = run([&QUICK, &["-n", "2", "--attempts", "2", "-c", script][..]].concat(), "a\nb\nc\n");
    assert_eq!((several.sorted(), several.code()), (vec!["a b", "c"], Some(0)));
    let script = "[ $THROTTLE_ATTEMPT = 2 ] && echo $THROTTLE_SEQ";
    let numbered = run([&QUICK, &["--repeat", "3", "--attempts", "2", "-c", script][..]].concat(), "");
    assert_eq!((numbered.sorted(), numbered.code()), (vec!["1", "2", "3"], Some(0)), "{}", numbered.err);
}

#[test]
fn another_attempt_does_not_wait_for_more_input() {
    let script = "[ $THROTTLE_ATTEMPT = 3 ] && echo $1";
    let mut child = throttle([&QUICK, &["--attempts", "3", "-c", script][..]].concat()).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines();
    for unit in ["one", "two"] {
        writeln!(stdin, "{unit}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), unit, "the input has not ended");
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Units that wait for another attempt, which an end of the run comes before.
#[test]
fn units_that_wait_when_the_run_is_interrupted_are_named_and_counted() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo 1 > tried.$1; exit 1";
        let mut command = throttle(["-r", "100/s", "--attempts", "3", "--backoff", "1h", "-c", script]);
        let mut child = command.current_dir(&folder).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(numbers(3).as_bytes()).unwrap();
        let stdin = child.stdin.take();
        let run = Started::new(child);
        for unit in 1..=3 {
            number_in(&folder.path().join(format!("tried.{unit}")));
        }
        // Until the last one has ended.
        std::thread::sleep(std::time::Duration::from_millis(300));
        run.signal(signal);
        let ended = run.end();
        drop(stdin);
        let mut told: Vec<&str> = ended.err.lines().collect();
        let sum = told.pop();
        let named: Vec<String> = (1..=3).map(|n| format!("throttle: line {n} '{n}': not tried again")).collect();
        assert_eq!((ended.signal(), told), (Some(signal.as_raw()), named.iter().map(|line| &**line).collect()));
        assert_eq!(sum, Some("throttle: interrupted: 0 ok, 0 stopped, 3 not tried again"));
    }
}

#[test]
fn units_that_wait_when_the_reader_leaves_are_counted() {
    let script = "[ $1 = 1 ] && exit 1; sleep 0.5; echo $1";
    let options = ["-r", "unlimited", "-j", "2", "--attempts", "3", "--backoff", "1h", "-c", script];
    let mut child = throttle(options).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"1\n2\n").unwrap();
    drop(child.stdout.take());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(told, "throttle: the reader is gone: 0 ok, 1 stopped, 1 not tried again\n");
}

/// The waits are so short that an attempt may start in the moment in which the one before ends.
#[test]
fn no_unit_is_lost_however_soon_it_is_tried_again() {
    for (units, is_last_at_once) in [(150, true), (150, false)] {
        let options = ["-r", "unlimited", "-j", "32", "--attempts", "9", "--backoff", "1ns", "--summary=json"];
        let script = "[ $THROTTLE_ATTEMPT -gt $(($1 % 4)) ] && echo $1";
        let mut child = throttle([&options[..], &["-c", script]].concat()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(numbers(units).as_bytes()).unwrap();
        let stdin = (!is_last_at_once).then_some(stdin);
        let feeder = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            drop(stdin);
        });
        let ended = Started::new(child).end();
        feeder.join().unwrap();
        let mut found: Vec<u32> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!((found, ended.code()), ((1..=units).collect(), Some(0)), "{}", ended.err);
        let (commands, _) = summary(&ended);
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
    let options = ["-r", "unlimited", "-j", "1", "--ahead", "3", "--attempts", "2", "--backoff", "400ms"];
    let mut command = throttle([&options[..], &["-c", script]].concat());
    command.current_dir(&folder);
    let ended = finish(command, numbers(8));
    let most = count(&folder.path().join("most")).into_keys().map(|most| most.trim().parse::<u32>().unwrap()).max();
    assert_eq!((ended.sorted().len(), ended.code()), (8, Some(0)), "{}", ended.err);
    assert!(most.is_some_and(|most| (1..=3).contains(&most)), "{most:?} waited");
    wait_until("nothing is left", || fs::read_dir(&folder).unwrap().count() == 1);
}
