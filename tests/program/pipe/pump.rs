//! The pump on a fake clock. The tests check its transcript: the times and bytes of its writes.

use std::io::{self, Write};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;
use throttle::flow::framing::{Buffer, Framing};
use throttle::flow::meter::Meter;
use throttle::flow::pump;
use throttle::flow::{Copying, Descriptor, First, Flow, Grants, Look, Overview, Silent, Sink, Source};
use throttle_limits::clock::{FakeClock, NanoClock, Nanos, SystemClock};
use throttle_limits::limits::Policy;
use throttle_limits::line::{Line, Rules};
use throttle_limits::store::StoreError;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
const LINES: Framing = Framing::EndedBy(b'\n');

/// Input that arrives at given times; a read returns at most one item.
struct Script {
    clock: FakeClock,
    input: Vec<(Nanos, Vec<u8>)>,
    reads: usize,
}

impl Source for Script {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        let Some((time, bytes)) = self.input.first_mut() else { return Ok(Some(0)) };
        if !wait && *time > self.clock.now() {
            return Ok(None);
        }
        self.reads += 1;
        self.clock.sleep_until(*time);
        let length = bytes.len().min(space.len());
        space[..length].copy_from_slice(&bytes[..length]);
        bytes.drain(..length);
        if bytes.is_empty() {
            self.input.remove(0);
        }
        Ok(Some(length))
    }
}

/// Records what is written when. It may be slow or lose its reader.
#[derive(Default)]
struct Transcript {
    clock: FakeClock,
    writes: Vec<(Nanos, Vec<u8>)>,
    /// The reader accepts nothing before this time.
    blocked_until: Nanos,
    /// How long each write takes.
    slow: Nanos,
    gone_after: Option<usize>,
}

impl Sink for &mut Transcript {
    fn ready(&mut self) -> io::Result<bool> {
        let waits = self.clock.now() < self.blocked_until;
        self.clock.sleep_until(self.blocked_until);
        match self.gone_after {
            Some(writes) if self.writes.len() >= writes => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(waits),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.clock.advance(Duration::from_nanos(self.slow));
        self.writes.push((self.clock.now(), bytes.to_vec()));
        Ok(bytes.len())
    }
}

fn plan(limits: &[&str]) -> Policy {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

/// The grants of a run with these limits.
fn grants(plan: &Policy, clock: impl NanoClock + 'static) -> Grants<First> {
    let line = Line::new(&Rules { all: &[(plan, 0)], ..Rules::default() }, clock.now());
    Grants::new(line, Arc::new(clock), None, false)
}

struct Run {
    transcript: Transcript,
    result: Result<(), pump::PumpError>,
    reads: usize,
    available: i128,
    units: u64,
    end: Nanos,
}

fn pump(limits: &[&str], framing: Framing, size: usize, input: &[(Nanos, &[u8])], sink: Transcript) -> Run {
    let clock = sink.clock.clone();
    let plan = plan(limits);
    let grants = grants(&plan, clock.clone());
    let meter = Meter::new(clock.now(), plan.len());
    let input = input.iter().map(|(time, bytes)| (*time, bytes.to_vec())).collect();
    let mut source = Script { clock: clock.clone(), input, reads: 0 };
    let mut transcript = sink;
    let mut flow = Copying::new(&mut source, &mut transcript, Buffer::new(framing, size), Look::default(), &meter);
    let result = pump::run(&mut flow, &grants, &Silent, &meter);
    let reads = source.reads;
    Run {
        transcript,
        result,
        reads,
        available: grants.left().unwrap().into_iter().min().unwrap_or(i128::MAX),
        units: meter.read(clock.now()).units,
        end: clock.now(),
    }
}

impl Source for &mut Script {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        Script::read(self, space, wait)
    }
}

fn writes(limits: &[&str], input: &[(Nanos, &[u8])]) -> Vec<(Nanos, String)> {
    let run = pump(limits, LINES, 1 << 20, input, Transcript::default());
    run.result.unwrap();
    run.transcript.writes.into_iter().map(|(time, bytes)| (time, String::from_utf8(bytes).unwrap())).collect()
}

fn at(millis: u64, text: &str) -> (Nanos, String) {
    (millis * MS, text.to_owned())
}

#[test]
fn the_burst_leaves_in_one_write_and_the_rest_one_by_one() {
    let transcript = writes(&["5/s,burst=3"], &[(0, b"a\nb\nc\nd\ne\n")]);
    assert_eq!(transcript, [at(0, "a\nb\nc\n"), at(200, "d\n"), at(400, "e\n")]);
}

#[test]
fn slow_input_leaves_at_once() {
    let transcript = writes(&["5/s"], &[(0, b"a\n"), (SECOND, b"b\n"), (2 * SECOND, b"c\n")]);
    assert_eq!(transcript, [at(0, "a\n"), at(1000, "b\n"), at(2000, "c\n")]);
}

#[test]
fn a_unit_without_its_end_waits_for_it_or_for_the_end_of_input() {
    let transcript = writes(&["unlimited"], &[(0, b"a\nb"), (MS, b"c\nd"), (2 * MS, b"e")]);
    assert_eq!(transcript, [at(0, "a\n"), at(1, "bc\n"), at(2, "de")]);
}

#[test]
fn no_wait_after_the_last_unit() {
    let run = pump(&["1/h"], LINES, 100, &[(0, b"a\n")], Transcript::default());
    assert_eq!((run.end, run.units), (0, 1));
}

#[test]
fn empty_input_takes_nothing() {
    let run = pump(&["1/h"], LINES, 100, &[], Transcript::default());
    assert_eq!((run.available, run.units, run.transcript.writes.len()), (1, 0, 0));
}

/// While the source is silent the bucket fills, but only to the burst; nothing is granted for units not read yet.
#[test]
fn idle_time_saves_up_no_more_than_the_burst() {
    let run =
        pump(&["10/s,burst=4"], LINES, 100, &[(0, b"a\n"), (9 * SECOND, b"b\nc\nd\ne\nf\n")], Transcript::default());
    let times: Vec<(Nanos, usize)> =
        run.transcript.writes.iter().map(|(time, bytes)| (*time, bytes.len() / 2)).collect();
    assert_eq!(times, [(0, 1), (9 * SECOND, 4), (9 * SECOND + 100 * MS, 1)]);
}

/// At 10 000/s a quantum is 1 ms, ten units: no write is smaller while more units wait.
#[test]
fn fast_rates_leave_in_runs_of_a_quantum() {
    let input: Vec<u8> = b"x\n".repeat(1000);
    let run = pump(&["10k/s,burst=50"], LINES, 1 << 20, &[(0, &input)], Transcript::default());
    let writes = &run.transcript.writes;
    assert_eq!(writes[0], (0, b"x\n".repeat(50)));
    assert!(writes[1..].iter().enumerate().all(|(n, (time, bytes))| *time == (n as u64 + 1) * MS && bytes.len() == 20));
    assert_eq!(run.units, 1000);
}

#[test]
fn a_run_includes_units_that_arrived_in_the_meantime() {
    let input: Vec<(Nanos, &[u8])> = (0..40).map(|_| (0, &b"x\n"[..])).collect();
    let run = pump(&["10k/s,burst=10,initial=0"], LINES, 1 << 20, &input, Transcript::default());
    let writes: Vec<(Nanos, usize)> =
        run.transcript.writes.iter().map(|(time, bytes)| (*time, bytes.len() / 2)).collect();
    assert_eq!(writes, [(MS, 10), (2 * MS, 10), (3 * MS, 10), (4 * MS, 10)]);
}

/// Little is left in the bucket, and the few units that were read would fit. Together with newer input they leave as
/// one run.
#[test]
fn the_rest_of_the_bucket_is_not_spent_on_a_short_run() {
    let input: Vec<(Nanos, &[u8])> = (0..7).map(|_| (0, &b"x\nx\nx\nx\n"[..])).collect();
    let run = pump(&["10k/s,burst=14"], LINES, 1 << 20, &input, Transcript::default());
    let writes: Vec<(Nanos, usize)> =
        run.transcript.writes.iter().map(|(time, bytes)| (*time, bytes.len() / 2)).collect();
    assert_eq!(writes, [(0, 4), (0, 4), (400_000, 10), (1_400_000, 10)]);
}

/// The pump asks the sink before it takes a grant, so a reader that stalled gets one burst afterwards, not two.
#[test]
fn a_stalled_reader_gets_one_burst_when_it_comes_back() {
    let sink = Transcript { blocked_until: 5 * SECOND, ..Transcript::default() };
    let run = pump(&["10/s,burst=3"], LINES, 100, &[(0, b"a\nb\nc\nd\ne\n")], sink);
    let times: Vec<(Nanos, usize)> =
        run.transcript.writes.iter().map(|(time, bytes)| (*time, bytes.len() / 2)).collect();
    assert_eq!(times, [(5 * SECOND, 3), (5 * SECOND + 100 * MS, 1), (5 * SECOND + 200 * MS, 1)]);
}

#[test]
fn a_reader_that_is_gone_is_noticed_before_the_next_wait() {
    let sink = Transcript { gone_after: Some(1), ..Transcript::default() };
    let run = pump(&["1/h"], LINES, 100, &[(0, b"a\nb\n")], sink);
    assert!(matches!(run.result, Err(pump::PumpError::Flow(throttle::flow::FlowError::Write(_)))));
    assert_eq!(run.end, 0);
}

/// One grant for the whole unit, then piece after piece.
#[test]
fn a_unit_beyond_the_buffer_is_granted_once_in_pieces() {
    let long = [b"x".repeat(25), b"\n".to_vec()].concat();
    let input = [&b"a\n"[..], &long, b"b\n"].concat();
    let run = pump(&["1/s"], LINES, 10, &[(0, &input)], Transcript::default());
    let writes = run.transcript.writes;
    let by_time = |time: Nanos| {
        writes.iter().filter(|(at, _)| *at == time).flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>()
    };
    assert_eq!((by_time(0), by_time(SECOND), by_time(2 * SECOND)), (b"a\n".to_vec(), long, b"b\n".to_vec()));
    assert!(writes.len() > 3, "it was not passed in pieces");
    assert_eq!(run.units, 3);
}

#[test]
fn a_unit_that_outgrows_the_buffer_may_end_with_the_input() {
    let run = pump(&["1/s"], LINES, 4, &[(0, b"abcdefghij")], Transcript::default());
    let bytes: Vec<u8> = run.transcript.writes.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!((bytes, run.units), (b"abcdefghij".to_vec(), 1));
}

/// A quantum is two bytes, so the byte that could go at once waits for the second.
#[test]
fn bytes_are_units() {
    let run = pump(&["4kB/s,burst=2,initial=1"], Framing::Bytes, 100, &[(0, b"abcdefg")], Transcript::default());
    let writes: Vec<(Nanos, &[u8])> = run.transcript.writes.iter().map(|(time, bytes)| (*time, &bytes[..])).collect();
    assert_eq!(writes, [(250_000, &b"ab"[..]), (750_000, b"cd"), (1_250_000, b"ef"), (1_500_000, b"g")]);
}

#[test]
fn several_limits_are_all_kept() {
    let transcript = writes(&["10/s", "3/min"], &[(0, b"a\nb\nc\nd\n")]);
    assert_eq!(transcript, [at(0, "a\n"), at(100, "b\n"), at(200, "c\n"), at(60_000, "d\n")]);
}

/// The buffer is never filled beyond its size, however much input there is.
#[test]
fn reading_is_bounded() {
    let input = b"x\n".repeat(1000);
    let run = pump(&["1k/s"], LINES, 64, &[(0, &input)], Transcript::default());
    assert_eq!(run.units, 1000);
    assert!(run.reads >= 2000 / 64);
}

/// The window counts what the reader sees: a unit written late leaves its room late.
#[test]
fn a_window_counts_units_when_they_are_written() {
    let input: Vec<u8> = b"x\n".repeat(300);
    let cases: [(&[&str], Nanos); 3] =
        [(&["10/100ms,window"], 7 * MS), (&["100/s", "10/100ms,window"], 3 * MS), (&["10/100ms,window"], 450 * MS)];
    for (limits, slow) in cases {
        let sink = Transcript { slow, ..Transcript::default() };
        let run = pump(limits, LINES, 1 << 20, &[(0, &input)], sink);
        run.result.unwrap();
        assert_eq!(run.units, 300);
        let times: Vec<Nanos> =
            run.transcript.writes.iter().flat_map(|(time, bytes)| vec![*time; bytes.len() / 2]).collect();
        let over = times.windows(11).find(|eleven| eleven[10] - eleven[0] < 100 * MS);
        assert_eq!(over, None, "{limits:?}, {slow} ns a write");
    }
}

#[test]
fn a_unit_joins_another_only_if_it_conforms_without_windows() {
    let clock = FakeClock::default();
    let buckets = grants(&plan(&["10/s,burst=3"]), clock.clone());
    assert_eq!([2, 2, 1, 1].map(|cost| buckets.passes(&[cost])), [true, false, true, false]);
    clock.advance(Duration::from_millis(100));
    assert!(buckets.passes(&[1]) && !buckets.passes(&[1]));
    let windows = grants(&plan(&["10/s,burst=3", "100/min"]), clock);
    assert!(!windows.passes(&[1]), "it would count from now on, and not from when it leaves");
}

/// The clock of a process that is stopped at the first of two times, and goes on at the second.
struct Stopped(FakeClock, [Nanos; 2]);

impl NanoClock for Stopped {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        let slept = self.0.sleep_unless(time, is_over);
        if (self.1[0]..self.1[1]).contains(&self.0.now()) {
            self.0.set(Duration::from_nanos(self.1[1]));
        }
        slept
    }

    fn wake_at(&self, time: Nanos, waker: &Waker) {
        self.0.wake_at(time, waker);
    }
}

/// When the lines `0` to `last` leave, in milliseconds, if the process is stopped between these times.
fn leave_around_a_stop(limits: &[&str], last: u32, stop: [Nanos; 2]) -> Vec<Nanos> {
    let mut sink = Transcript::default();
    let (clock, plan) = (Stopped(sink.clock.clone(), stop.map(|time| time * MS)), plan(limits));
    let fake = clock.0.clone();
    let grants = grants(&plan, clock);
    let meter = Meter::new(0, plan.len());
    let input: String = (0..=last).flat_map(|line| [line.to_string(), "\n".to_owned()]).collect();
    let mut source = Script { clock: fake, input: vec![(0, input.into_bytes())], reads: 0 };
    let mut flow = Copying::new(&mut source, &mut sink, Buffer::new(LINES, 1 << 20), Look::default(), &meter);
    pump::run(&mut flow, &grants, &Silent, &meter).unwrap();
    let of = |(time, bytes): &(Nanos, Vec<u8>)| vec![time / MS; bytes.split(|byte| *byte == b'\n').count() - 1];
    sink.writes.iter().flat_map(of).collect()
}

/// The third unit was granted for 1 s. It left at 3.7 s together with the fourth, since its bucket had filled meanwhile.
#[test]
fn a_stopped_pump_keeps_no_more_than_its_allowance() {
    let times = |limits: &[&str], last, stop| leave_around_a_stop(limits, last, stop);
    assert_eq!(times(&["2/s"], 5, [700, 3700]), [0, 500, 3700, 4150, 4650, 5150], "50 ms are kept");
    assert_eq!(times(&["2/s"], 4, [700, 1040]), [0, 500, 1040, 1500, 2000], "no rate is lost");
    assert_eq!(times(&["100/s,burst=1"], 3, [5, 500]), [0, 500, 500, 510], "10 ms, the whole time that fills it");
    let left = times(&["10/s,burst=10"], 40, [1050, 20_000]);
    let after = |until: Nanos| left.iter().filter(|time| (20_000..=until).contains(*time)).count();
    assert!(after(20_000) <= 11 && after(21_000) <= 21, "a burst, and a tenth of it: {left:?}");
    assert!(after(20_000) >= 10, "a full bucket: {left:?}");
}

/// Six of five left in no time: the one that was granted before the stop no longer counted, and five others joined it.
#[test]
fn a_window_lets_no_more_through_after_a_stop() {
    for (limits, stop) in [
        (&["5/2s,window,slack=0"][..], [1500, 4500]),
        (&["5/2s,window,slack=0"], [1500, 2300]),
        (&["5/2s,window,slack=0", "20/s"], [1500, 4500]),
        (&["5/2s,window,slack=0", "1/s,burst=10"], [1500, 4010]),
    ] {
        let left = leave_around_a_stop(limits, 30, stop);
        assert_eq!(left.len(), 31, "{limits:?}");
        let over = left.windows(6).find(|six| six[5] - six[0] < 2000);
        assert_eq!(over, None, "{limits:?}: {left:?}");
    }
}

/// Both use the same clock: the pump's sleeps move it, and wake the limiter's waiters at their own times.
#[test]
fn a_pump_and_a_limiter_share_one_fake_clock() {
    use std::task::{Context, Wake, Waker};
    use throttle_limits::limiter::Limiter;

    #[derive(Default)]
    struct Woken(FakeClock, std::sync::Mutex<Vec<Nanos>>);
    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.1.lock().unwrap().push(self.0.now() / MS);
        }
    }
    let clock = FakeClock::default();
    let second = std::time::Duration::from_secs(1);
    let timer = std::sync::Arc::new(clock.clone());
    let limiter = Limiter::builder().rate(4, second).burst(1).clock(timer).build().unwrap();
    let woken = std::sync::Arc::new(Woken(clock.clone(), std::sync::Mutex::default()));
    let waker = Waker::from(std::sync::Arc::clone(&woken));
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire(1))).collect();
    let context = &mut Context::from_waker(&waker);
    let ready: Vec<_> = line.iter_mut().map(|waiter| waiter.as_mut().poll(context).is_ready()).collect();
    assert_eq!(ready, [true, false, false, false]);
    let sink = Transcript { clock, ..Transcript::default() };
    let run = pump(&["5/s,burst=1"], LINES, 1 << 10, &[(0, b"a\nb\nc\nd\n")], sink);
    assert_eq!(run.transcript.writes.iter().map(|(time, _)| time / MS).collect::<Vec<_>>(), [0, 200, 400, 600]);
    assert_eq!(*woken.1.lock().unwrap(), [250, 500]);
}

/// Retires the run when the clock wakes it.
struct Retire(Arc<Grants<First>>);

impl Wake for Retire {
    fn wake(self: Arc<Self>) {
        self.0.retire();
    }
}

#[test]
fn a_pump_that_sleeps_is_stopped_and_charged_nothing() {
    let mut sink = Transcript::default();
    let (clock, plan) = (sink.clock.clone(), plan(&["1/h"]));
    let grants = Arc::new(grants(&plan, clock.clone()));
    clock.wake_at(7 * SECOND, &Waker::from(Arc::new(Retire(Arc::clone(&grants)))));
    let meter = Meter::new(0, plan.len());
    let mut source = Script { clock: clock.clone(), input: vec![(0, b"a\nb\n".to_vec())], reads: 0 };
    let mut flow = Copying::new(&mut source, &mut sink, Buffer::new(LINES, 100), Look::default(), &meter);
    let result = pump::run(&mut flow, &grants, &Silent, &meter);
    assert!(matches!(result, Err(pump::PumpError::Store(StoreError::Stopped))), "{result:?}");
    assert_eq!(flow.state(&grants).ahead.units, 1);
    assert_eq!((clock.now(), sink.writes), (7 * SECOND, vec![(0, b"a\n".to_vec())]));
    assert_eq!(grants.schedule(1), Some(3600 * SECOND), "the second line was charged nothing");
}

#[test]
fn a_pump_that_sleeps_in_real_time_is_stopped() {
    let plan = plan(&["1/h"]);
    let grants = grants(&plan, SystemClock);
    let meter = Meter::new(SystemClock.now(), plan.len());
    let (input, mut writer) = io::pipe().unwrap();
    writer.write_all(b"a\nb\n").unwrap();
    let result = thread::scope(|scope| {
        let pump = scope.spawn(|| {
            let sink = Descriptor(std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap());
            let mut flow = Copying::new(Descriptor(input), sink, Buffer::new(LINES, 100), Look::default(), &meter);
            pump::run(&mut flow, &grants, &Silent, &meter)
        });
        while meter.read(SystemClock.now()).wait.is_none() {
            thread::yield_now();
        }
        grants.retire();
        pump.join().unwrap()
    });
    assert!(matches!(result, Err(pump::PumpError::Store(StoreError::Stopped))), "{result:?}");
}
