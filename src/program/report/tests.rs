use super::*;
use crate::program::task::{Pipe, Task};
use std::time::Duration;
use throttle::flow::framing::{Buffer, Framing};
use throttle::flow::pump;
use throttle::flow::{Copying, First, Grants, Look, Silent, Sink, Source};
use throttle_limits::clock::{FakeClock, NanoClock};
use throttle_limits::line::{Line, Next, Rules};

const MS: Nanos = 1_000_000;

/// Input that arrives at given times.
struct Script(FakeClock, Vec<(Nanos, &'static [u8])>);

impl Source for Script {
    fn read(&mut self, space: &mut [u8], wait: bool) -> std::io::Result<Option<usize>> {
        let Some(&(time, bytes)) = self.1.first() else { return Ok(Some(0)) };
        if !wait && time > self.0.now() {
            return Ok(None);
        }
        self.0.sleep_until(time);
        self.1.remove(0);
        space[..bytes.len()].copy_from_slice(bytes);
        Ok(Some(bytes.len()))
    }
}

/// A reader that takes a fixed time for every write.
struct Slow(FakeClock, Nanos);

impl Sink for Slow {
    fn ready(&mut self) -> std::io::Result<bool> {
        Ok(false)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.advance(Duration::from_nanos(self.1));
        Ok(bytes.len())
    }
}

fn report(args: &[&str]) -> (FakeClock, Arc<Grants<First>>, Report) {
    let Task::Pipe(pipe) = Task::from_words(args).unwrap() else { panic!("{args:?}") };
    let Pipe { limits, input, reporting, .. } = *pipe;
    let policy = &limits.policy();
    let unit = UnitName::of(input.framing(policy).unwrap());
    let clock = FakeClock::at(Duration::from_secs(1000));
    let line = Line::new(&Rules { all: &[(policy, 0)], ..Rules::default() }, clock.now());
    let grants = Arc::new(Grants::new(line, Arc::new(clock.clone()), None, false));
    let progress = Progress::new(&reporting, true, None);
    let overview = Arc::clone(&grants) as Arc<dyn Overview>;
    let limits = (policy, limits.written(policy), false);
    (clock, grants, Report::new(unit, None, overview, limits, None, progress))
}

/// So many units leave now.
fn leave(grants: &Grants<First>, units: u64) {
    grants.want(units);
    let next = grants.line().poll(grants.now(), u64::MAX);
    assert!(matches!(next, Next::Run(run) if run.units == units), "{next:?}");
}

/// At 10/s with burst 2, `a` and `b` arrive and leave at 300 ms, and take 5 ms to write. `c` is requested at 305 ms and
/// granted at 400 ms; `d` is granted at 500 ms. Each takes 5 ms, so `d` is requested at 405 ms. The end comes at 505
/// ms.
#[test]
fn every_field_of_the_summary_is_what_one_works_out_by_hand() {
    let (clock, grants, report) = report(&["-r", "10/s", "-b", "2", "-r", "1000/h"]);
    let start = clock.now();
    let input = Script(clock.clone(), vec![(start + 300 * MS, b"a\nb\nc\nd\n")]);
    let buffer = Buffer::new(Framing::EndedBy(b'\n'), 100);
    let mut flow = Copying::new(input, Slow(clock.clone(), 5 * MS), buffer, Look::default(), &report.meter);
    pump::run(&mut flow, &grants, &Silent, &report.meter).unwrap();
    assert_eq!(
        report.summary_json(&report.read()),
        json!({
            "unit": "line",
            "keys": 0,
            "dropped": 0, "read_and_not_passed_on": 0,
            "units": 4,
            "bytes": 8,
            "elapsed_ns": 505 * MS,
            "mean_rate_per_s": 4.0 / 0.505,
            "waited_for_limits_ns": (95 + 95) * MS,
            "waited_for_source_ns": 300 * MS,
            "waited_for_sink_ns": 15 * MS,
            "lateness_p50_ns": 0,
            "lateness_p99_ns": 0,
            "limits": [
                {"limit": "10/s,burst=2", "waited_ns": 190 * MS},
                {"limit": "1000/h,window,slack=250ms", "waited_ns": 0},
            ],
        })
    );
    assert_eq!(
        report.summary_text(&report.read()),
        "throttle: 4 lines, 8 B in 505 ms, 7.92/s\n  \
         waited 190 ms for 10/s,burst=2, 0 s for 1000/h,window,slack=250ms, 300 ms for input, 15 ms for the reader; \
         late by 0 s (median), 0 s (p99)\n"
    );
}

/// With 3 units in a minute and a slack of 250 ms, the third unit waits for the bucket until 1 s. The fourth waits for
/// the window until 60.25 s.
#[test]
fn a_wait_counts_for_the_limit_that_caused_it() {
    let (clock, grants, report) = report(&["-r", "1/s", "-b", "2", "-r", "3/min"]);
    let input = Script(clock.clone(), vec![(0, b"a\nb\nc\nd\n")]);
    let buffer = Buffer::new(Framing::EndedBy(b'\n'), 100);
    let mut flow = Copying::new(input, Slow(clock, 0), buffer, Look::default(), &report.meter);
    pump::run(&mut flow, &grants, &Silent, &report.meter).unwrap();
    assert_eq!(report.read().limits, [SECOND, 59 * SECOND + SECOND / 4]);
}

#[test]
fn the_time_left_comes_from_the_schedule() {
    let (clock, grants, mut report) = report(&["-r", "100B/s", "-b", "50"]);
    report.total = Some(Total::Bytes(1000));
    leave(&grants, 50);
    report.meter.passed(50, 50, clock.now());
    // 950 more units follow at 100/s, from an empty bucket. The limit is shown as it was written.
    let shown = report.shown(&report.read(), 100.0);
    assert_eq!((&*shown.text(), shown.percent), ("50 B, 100 B/s now, 10 s left, limit 100B/s", Some(5)));
    report.meter.passed(950, 950, clock.now());
    let shown = report.shown(&report.read(), 0.0);
    assert_eq!((&*shown.text(), shown.percent), ("1.00 kB, 0 B/s now, limit 100B/s", Some(100)));
}

/// While the second of three units waits, two hours are left, not three.
#[test]
fn a_waiting_unit_does_not_count_twice() {
    let (clock, grants, mut report) = report(&["-r", "1/h", "-b", "1"]);
    report.total = Some(Total::Units(3));
    leave(&grants, 1);
    report.meter.passed(1, 2, clock.now());
    report.meter.enter(throttle::flow::meter::Phase::Limit(0), clock.now());
    report.meter.waits_until(clock.now() + 3600 * SECOND);
    assert_eq!(report.time_left(&report.read()), Some(2 * 3600 * SECOND));
    clock.advance(Duration::from_secs(1800));
    assert_eq!(report.time_left(&report.read()), Some(5400 * SECOND));
    report.total = Some(Total::Units(2));
    assert_eq!(report.time_left(&report.read()), Some(1800 * SECOND));
    assert_eq!(
        [1, SECOND, 59 * SECOND + 1, 3661 * SECOND, Nanos::MAX].map(countdown),
        ["1 s", "1 s", "1m", "1h 2m", "213503d 23h"]
    );
}

#[test]
fn without_a_known_total_no_time_left_is_shown() {
    let (.., report) = report(&["-r", "unlimited"]);
    assert_eq!(report.shown(&report.read(), 12.34).text(), "0 lines, 0 B, 12.3/s now, no limit");
}

/// The file has 10 000 bytes. 20 lines (800 B) have left, and 5 more (200 B) were read. A line has 40 bytes, so there
/// are 250 lines, and 230 of them are left.
#[test]
fn the_lines_of_a_file_are_estimated_from_those_read() {
    let (clock, grants, mut report) = report(&["-r", "2/s", "-b", "1"]);
    report.total = Some(Total::Bytes(10_000));
    assert_eq!(report.time_left(&report.read()), None, "nothing is known yet");
    leave(&grants, 1);
    report.meter.passed(20, 800, clock.now());
    report.meter.read_ahead(5, 200, [0, 0]);
    let shown = report.shown(&report.read(), 2.0);
    assert_eq!((&*shown.text(), shown.percent), ("20 lines, 800 B, 2.00/s now, 1m 55s left, limit 2/s", Some(8)));
    // Now the whole file was read, so the number is exact.
    report.meter.read_ahead(5, 9_200, [0, 0]);
    assert_eq!(report.units_left(&report.read()), Some(5));
}

/// Ten lines took 5 s, which the program spent waiting for the reader.
#[test]
fn if_the_reader_is_slow_the_time_left_is_that_of_the_reader() {
    let (clock, _, mut report) = report(&["-r", "1000/s"]);
    report.total = Some(Total::Bytes(1000));
    report.meter.enter(throttle::flow::meter::Phase::Sink, clock.now());
    clock.advance(Duration::from_secs(5));
    report.meter.passed(10, 100, clock.now());
    assert_eq!(report.time_left(&report.read()), Some(45 * SECOND));
}

#[test]
fn a_slow_bar_shows_the_time_to_the_next_unit() {
    let (clock, _, report) = report(&["-r", "1/h"]);
    report.meter.enter(throttle::flow::meter::Phase::Limit(0), clock.now());
    report.meter.waits_until(clock.now() + 3600 * SECOND);
    clock.advance(Duration::from_secs(125));
    assert_eq!(report.shown(&report.read(), 0.0).text(), "0 lines, 0 B, next in 58m, limit 1/h");
    report.meter.passed(1, 2, clock.now());
    report.meter.enter(throttle::flow::meter::Phase::Limit(0), clock.now());
    report.meter.waits_until(clock.now() + SECOND / 5);
    assert_eq!(report.shown(&report.read(), 5.0).rate, "5.00/s now");
}

#[test]
fn a_countdown_is_no_finer_than_what_matters() {
    let times = [1, 59 * SECOND, 59 * SECOND + 1, 200 * SECOND, 600 * SECOND, 3421 * SECOND, 3599 * SECOND];
    assert_eq!(times.map(countdown), ["1 s", "59 s", "1m", "3m 20s", "10m", "58m", "1h"]);
    let times = [4980 * SECOND, 86_399 * SECOND, 86_401 * SECOND, 180_000 * SECOND];
    assert_eq!(times.map(countdown), ["1h 23m", "1d", "1d 1m", "2d 2h"]);
}

#[test]
fn numbers_are_shown_in_a_handy_unit() {
    assert_eq!(rate(UnitName::Line, 9.987, false), "9.99/s");
    assert_eq!(rate(UnitName::Byte, 1_500_000.4, false), "1.50 MB/s");
    assert_eq!(rate(UnitName::Byte, 8_388_608.4, true), "8.00 MiB/s");
    assert_eq!((UnitName::Line.count(1), UnitName::Record.count(0)), ("1 line".to_owned(), "0 records".to_owned()));
}

#[test]
fn the_rate_now_is_that_of_the_last_two_seconds() {
    let mut recent = Recent::default();
    let samples = [(0, 0), (1, 10), (2, 20), (3, 20), (4, 20)];
    let rates = samples.map(|(second, units)| rate(UnitName::Line, recent.rate(second * SECOND, units), false));
    assert_eq!(rates, ["0.00/s", "10.0/s", "10.0/s", "5.00/s", "0.00/s"]);
}

#[test]
fn the_status_has_the_rest_of_each_limit_and_the_next_unit() {
    let (clock, grants, report) = report(&["-r", "10/s", "-b", "4", "-r", "1000/h"]);
    leave(&grants, 3);
    report.meter.enter(throttle::flow::meter::Phase::Limit(0), clock.now());
    report.meter.waits_until(clock.now() + 100 * MS);
    report.meter.read_ahead(7, 14, [0, 0]);
    let limits = "10/s,burst=4: 1 left, 1000/h,window,slack=250ms: 997 left";
    let state = |report: &Report| report.state_text(&report.read());
    assert_eq!(state(&report), format!("; 7 units read ahead; {limits}, next in 100 ms"));
    grants.line().hold_all_until(clock.now(), clock.now() + 200 * SECOND);
    let paused = state(&report);
    assert!(paused.contains(", paused until ") && paused.ends_with(" (3m 20s)"), "{paused}");
}
