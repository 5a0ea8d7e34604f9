//! Runs with limits of their own that are stopped by SIGSTOP and continued do not exceed them. Times are lower bounds.

use crate::support::{Lines, Running, throttle};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// The lines that came out of a run, and when each left: it was read, or its command began.
type Seen = Vec<(Duration, String)>;

/// A command that prints its unit and when it began.
const DATE: [&str; 4] = ["-j", "16", "date", "+{} %s%N"];

/// Starts a run for each of `kinds`, which are arguments and the input, stops all of them 0.7 s after their first lines, and lets
/// them go on 3 s later.
fn stopped(kinds: &[(&[&str], String)]) -> Vec<Seen> {
    let (begun, mut runs) = (Instant::now(), Vec::new());
    for (args, input) in kinds {
        let mut run = Running::start(throttle(*args));
        let writer = run.write(input.as_bytes());
        let lines = Lines::of(run.stdout());
        runs.push((run, writer, lines.next_with_time(), lines));
    }
    thread::sleep(Duration::from_millis(700));
    for signal in [Signal::STOP, Signal::CONT] {
        for (run, ..) in &runs {
            run.signal(signal);
        }
        if signal == Signal::STOP {
            thread::sleep(Duration::from_secs(3));
        }
    }
    let seen = runs.into_iter().map(|(mut run, writer, first, lines)| {
        let seen =
            [first].into_iter().chain(lines.with_times()).map(|(read, line)| departure(read - begun, line)).collect();
        writer.join().unwrap();
        assert!(run.end().success());
        seen
    });
    seen.collect()
}

/// The time at which a line left: a command prints when it began, and a pipe's line is read at `read`.
fn departure(read: Duration, line: String) -> (Duration, String) {
    let began = line.rsplit(' ').next().and_then(|word| word.parse().ok()).filter(|nanos| *nanos > 1_000_000_000_000);
    (began.map_or(read, Duration::from_nanos), line)
}

/// The shortest time in which this number of lines left.
fn least(times: &[Duration], count: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.windows(count).map(|some| some[count - 1].saturating_sub(some[0])).min().unwrap()
}

fn times(seen: &Seen) -> Vec<Duration> {
    seen.iter().map(|(time, _)| *time).collect()
}

/// The times of each key.
fn by_key(seen: &Seen) -> BTreeMap<&str, Vec<Duration>> {
    let mut keys: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for (time, line) in seen {
        keys.entry(line.split(' ').next().unwrap()).or_default().push(*time);
    }
    keys
}

/// Units 3 and 4 left together, six of a window of five, and two units of each key.
#[test]
#[ignore = "slow: 8 s"]
fn a_run_that_was_stopped_lets_no_unit_too_many_leave() {
    let lines = |count: u32| (0..count).map(|line| format!("{line}\n")).collect::<Vec<_>>().concat();
    let keyed = |keys: u32| (0..4 * keys).map(|line| format!("k{} {line}\n", line % keys)).collect::<Vec<_>>().concat();
    let bucket = ["-r", "2/s"];
    let window = ["-r", "5/2s,window,slack=0"];
    let each = ["-r", "1/s,per=f1"];
    let kinds: [(&[&str], String); 6] = [
        (&bucket, lines(6)),
        (&[&bucket[..], &DATE].concat(), lines(6)),
        (&window, lines(16)),
        (&[&window[..], &DATE].concat(), lines(16)),
        (&each, keyed(50)),
        (&[&each[..], &DATE].concat(), keyed(10)),
    ];
    let seen = stopped(&kinds);
    for (kind, seen) in kinds.iter().zip(&seen) {
        assert_eq!(seen.len(), kind.1.lines().count(), "{:?}", kind.0);
    }
    for pair in [0, 1] {
        let [two, three] = [2, 3].map(|count| least(&times(&seen[pair]), count));
        assert!(two > Duration::from_millis(50), "{:?}: two in {two:?}", kinds[pair].0);
        assert!(three > Duration::from_millis(500), "{:?}: three in {three:?}", kinds[pair].0);
    }
    for place in [2, 3] {
        let six = least(&times(&seen[place]), 6);
        assert!(six > Duration::from_secs(1), "{:?}: six in {six:?}", kinds[place].0);
    }
    for place in [4, 5] {
        for (key, times) in by_key(&seen[place]) {
            let two = least(&times, 2);
            assert!(two > Duration::from_millis(300), "{:?}: two of {key} in {two:?}", kinds[place].0);
        }
    }
}

/// The kernel waited for what was left of the interval when the run was stopped, from when it went on: 6.2 s.
#[test]
#[ignore = "slow: 7 s"]
fn a_wait_for_a_key_that_was_stopped_ends_at_its_time() {
    for args in [&["-q", "-r", "20/min,per=f1"][..], &["-q", "-r", "20/min,per=f1", "echo", "{}"]] {
        let mut run = Running::start(throttle(args));
        let lines = Lines::of(run.stdout());
        run.write(b"a 1\na 2\n").join().unwrap();
        let (first, _) = lines.next_with_time();
        thread::sleep(Duration::from_millis(200));
        run.signal(Signal::STOP);
        thread::sleep(Duration::from_millis(3200));
        run.signal(Signal::CONT);
        let (second, _) = lines.next_with_time();
        let waited = second - first;
        assert!(waited >= Duration::from_secs(3) && waited < Duration::from_millis(5500), "{args:?}: {waited:?}");
        assert!(run.end().success());
    }
}
