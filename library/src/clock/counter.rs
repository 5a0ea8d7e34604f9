//! The processor's counter, kept in step with the system's clock.

use super::contract::{Clock, park_until};
use super::system::SystemClock;
use super::time::{MILLISECOND, Nanos, SECOND, in_nanos};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The counter is compared with the system's clock at least this often while it is read.
const MAX_SPAN: Nanos = MILLISECOND;

/// A comparison whose two readings of the counter are further apart than this was interrupted. It is not used.
const MAX_COMPARISON: Nanos = 200;

/// The shortest time from which the speed of the counter is calculated.
const MIN_MEASURED: Nanos = 20 * MILLISECOND;

/// The speed is calculated over at least this time, and over less than twice this time while the clock is read all the
/// time.
const MEASURED: Nanos = SECOND / 2;

/// The clock runs slower than the measured speed by one part in this many, so that it never leads. Time servers change
/// the speed of the system's clock by at most 500 parts in a million (`adjtimex(2)`).
const SLOWER: u64 = 1024;

/// `CLOCK_MONOTONIC` as [`SystemClock`] reads it, but mostly by the processor's counter, which is quicker to read.
///
/// It never leads the system's clock, and is at most 2 µs behind. Every millisecond it is compared with that clock. It
/// reads the system's clock until the speed of the counter is measured, and where the kernel does not use the counter
/// itself (its clock source is neither `tsc` nor `kvm-clock`). A reading may be up to 1 µs less than an earlier
/// reading; a limiter then uses the earlier reading.
///
/// Give it to a [`Limiter`](crate::limiter::Builder::clock) whose `try_acquire` is called millions of times a second.
/// Such a limiter does not follow a paused clock of tokio.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use throttle_limits::clock::CounterClock;
/// use throttle_limits::limiter::Limiter;
///
/// let clock = Arc::new(CounterClock::new());
/// let limiter = Limiter::builder().rate(1_000_000, Duration::from_secs(1)).clock(clock).build()?;
/// assert!(limiter.try_acquire(1).is_ok());
/// # Ok::<(), throttle_limits::limiter::BuildError>(())
/// ```
#[derive(Debug)]
pub struct CounterClock {
    /// `None` where the kernel does not use the counter.
    counter: Option<quanta::Clock>,
    /// Odd while the fields of the latest comparison are being changed.
    version: AtomicU64,
    /// The latest comparison.
    ticks: AtomicU64,
    time: AtomicU64,
    /// Nanoseconds for each tick since the latest comparison, in parts of 2⁻³².
    speed: AtomicU64,
    /// The most ticks after the latest comparison for which it may be used; 0 if it must not be used.
    span: AtomicU64,
    measured: Mutex<Measured>,
}

/// The counter and the time at one instant.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    ticks: u64,
    time: Nanos,
}

/// How the speed of the counter is measured.
#[derive(Debug, Default)]
struct Measured {
    /// The speed is calculated from the older of these. The newer one takes its place later.
    older: Compared,
    newer: Compared,
    /// Nanoseconds for each tick, in parts of 2⁻³².
    speed: Option<u64>,
}

impl CounterClock {
    /// The clock. Making the first one in a process takes about a millisecond.
    #[must_use]
    pub fn new() -> Self {
        CounterClock {
            counter: is_used_by_the_kernel().then(quanta::Clock::new),
            version: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            time: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            span: AtomicU64::new(0),
            measured: Mutex::default(),
        }
    }

    /// The time by the latest comparison, if that may be used for this reading of the counter.
    #[inline]
    fn by_counter(&self, ticks: u64) -> Option<Nanos> {
        let version = self.version.load(Ordering::Acquire);
        let part = |part: &AtomicU64| part.load(Ordering::Relaxed);
        let (base, time, speed, span) = (part(&self.ticks), part(&self.time), part(&self.speed), part(&self.span));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let since = ticks.wrapping_sub(base);
        (is_whole && since <= span && span > 0).then(|| time + ((since * speed) >> 32))
    }

    /// Reads the system's clock, and compares the counter with it, unless another thread does so now.
    #[cold]
    fn compare(&self, counter: &quanta::Clock) -> Nanos {
        let Ok(mut measured) = self.measured.try_lock() else { return SystemClock.nanos() };
        let before = counter.raw();
        let time = SystemClock.nanos();
        let ticks = counter.raw();
        let is_interrupted = counter.delta_as_nanos(before, ticks) > MAX_COMPARISON;
        let speed = if is_interrupted { None } else { measured.add(Compared { ticks, time }) };
        // The new time is not before the time that the previous comparison gives.
        let reached = self.by_counter(ticks).unwrap_or(0);
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        let slower = speed.map_or(0, |speed| speed - speed / SLOWER);
        let set = |part: &AtomicU64, value| part.store(value, Ordering::Relaxed);
        set(&self.ticks, ticks);
        set(&self.time, time.max(reached));
        set(&self.speed, slower);
        set(&self.span, (MAX_SPAN << 32).checked_div(slower).unwrap_or(0));
        self.version.fetch_add(1, Ordering::Release);
        time
    }
}

impl Measured {
    /// The speed of the counter, once it was measured for long enough. A counter that was stopped or set is measured
    /// again.
    fn add(&mut self, now: Compared) -> Option<u64> {
        let measured = self.older.speed_to(now);
        let is_steady = |new: &u64| self.speed.is_none_or(|known| new.abs_diff(known) <= known / SLOWER);
        let speed = measured.filter(is_steady);
        let is_waiting = self.speed.is_none() && self.older.time > 0 && self.older.is_before(now);
        if speed.is_none() && !(is_waiting && measured.is_none()) {
            (self.older, self.newer) = (now, now);
        } else if now.time.saturating_sub(self.newer.time) >= MEASURED {
            (self.older, self.newer) = (self.newer, now);
        }
        self.speed = speed;
        speed
    }
}

impl Compared {
    fn is_before(self, later: Compared) -> bool {
        self.ticks < later.ticks && self.time <= later.time
    }

    /// `None` if too little time has passed.
    fn speed_to(self, later: Compared) -> Option<u64> {
        let (ticks, time) = (later.ticks.checked_sub(self.ticks)?, later.time.checked_sub(self.time)?);
        let is_long = self.time > 0 && time >= MIN_MEASURED && ticks > 0;
        let speed = (u128::from(time) << 32) / u128::from(ticks.max(1));
        u64::try_from(speed).ok().filter(|_| is_long)
    }
}

impl Default for CounterClock {
    fn default() -> Self {
        CounterClock::new()
    }
}

impl Clock for CounterClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    #[inline]
    fn nanos(&self) -> Nanos {
        let Some(counter) = &self.counter else { return SystemClock.nanos() };
        self.by_counter(counter.raw()).unwrap_or_else(|| self.compare(counter))
    }

    fn sleep_unless(&self, time: Duration, is_over: &dyn Fn() -> bool) -> bool {
        park_until(self, in_nanos(time), is_over, Duration::MAX)
    }
}

/// Whether the kernel trusts the counter, so that it is constant and the same on all processors.
fn is_used_by_the_kernel() -> bool {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| ["tsc", "kvm-clock"].contains(&source.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, time: Nanos) -> Compared {
        Compared { ticks, time }
    }

    /// Two threads read all the time, for a while after the speed is known.
    #[test]
    fn a_reading_never_leads_the_system_and_is_little_behind() {
        let clock = CounterClock::new();
        let end = SystemClock.nanos() + 200 * MILLISECOND;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut latest = 0;
                    while latest < end {
                        let before = SystemClock.nanos();
                        let time = clock.nanos();
                        let after = SystemClock.nanos();
                        assert!(time <= after, "it leads by {} ns", time - after);
                        assert!(before.saturating_sub(time) <= 2_000, "it is {} ns behind", before - time);
                        assert!(latest.saturating_sub(time) <= 1_200, "a step back of {} ns", latest - time);
                        latest = time;
                    }
                });
            }
        });
        let is_measured = clock.measured.lock().unwrap().speed.is_some();
        assert_eq!(is_measured, clock.counter.is_some(), "the counter is used where it can be");
    }

    #[test]
    fn the_speed_is_known_once_it_was_measured_for_a_while() {
        let (mut measured, three) = (Measured::default(), |ticks| at(ticks, SECOND + 3 * ticks));
        assert_eq!(measured.add(three(0)), None);
        assert_eq!(measured.add(three(MILLISECOND)), None);
        assert_eq!(measured.add(three(7 * MILLISECOND)), Some(3 << 32));
        assert_eq!(measured.add(three(2 * SECOND)), Some(3 << 32));
        assert_eq!(measured.older.ticks, 0, "the first one, for the last time");
        assert_eq!(measured.add(three(3 * SECOND)), Some(3 << 32));
        assert_eq!(measured.older.ticks, 2 * SECOND);
    }

    #[test]
    fn a_counter_that_stopped_or_was_set_is_measured_again() {
        for step in [at(30, 10 * SECOND), at(SECOND, SECOND + 10 * MILLISECOND), at(0, 2 * SECOND)] {
            let mut measured = Measured::default();
            measured.add(at(10, 1));
            assert_eq!(measured.add(at(SECOND + 10, SECOND + 1)), Some(1 << 32));
            let next = at(measured.newer.ticks + step.ticks, measured.newer.time + step.time);
            assert_eq!(measured.add(next), None, "{step:?}");
            assert_eq!(measured.add(at(next.ticks + SECOND, next.time + SECOND)), Some(1 << 32), "{step:?}");
        }
    }
}
