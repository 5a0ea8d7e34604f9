//! Time: what reads it and what sleeps on it.
//!
//! Everything that decides takes the time as a parameter; only the pump and the queues hold a [`Clock`].

mod boot;

pub use boot::BootClock;

use rustix::time::Timespec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds since the origin of a clock. 64 bits last 584 years.
pub type Nanos = u64;

/// Nanoseconds in a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// A monotonic clock on which one can also sleep.
pub trait Clock {
    /// The time now, in nanoseconds since the clock's origin.
    fn now(&self) -> Nanos;

    /// Returns at `time` or a little later, never before it.
    fn sleep_until(&self, time: Nanos);
}

/// Gives memory back that a history of past times no longer needs.
pub(crate) fn shrink<T>(history: &mut VecDeque<T>) {
    if history.capacity() > 64 && history.len() < history.capacity() / 4 {
        history.shrink_to(history.len() * 2);
    }
}

/// `CLOCK_MONOTONIC`: no wall-clock step moves it, and it stands still while the machine is suspended.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        nanos(&rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
    }

    fn sleep_until(&self, time: Nanos) {
        precise::sleep_until(*self, time);
    }
}

/// `CLOCK_MONOTONIC` at its latest tick, which takes no time to read. Ticks are some milliseconds apart.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
pub(crate) fn coarse() -> impl Into<Option<Nanos>> {
    nanos(&rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse))
}

/// There is no such clock.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn coarse() -> impl Into<Option<Nanos>> {
    None
}

/// Nanoseconds in `time`, which is not negative.
fn nanos(time: &Timespec) -> Nanos {
    let seconds = Nanos::try_from(time.tv_sec).unwrap_or(0);
    let nanos = Nanos::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(nanos)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn timespec(time: Nanos) -> Timespec {
    let seconds = i64::try_from(time / SECOND).unwrap_or(i64::MAX);
    let nanos = i32::try_from(time % SECOND).unwrap_or(0);
    Timespec { tv_sec: seconds, tv_nsec: nanos.into() }
}

/// A clock that only moves when told to, or when somebody sleeps on it. Its clones share one time.
#[derive(Clone, Debug, Default)]
pub struct FakeClock {
    now: Arc<AtomicU64>,
}

impl FakeClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn at(now: Nanos) -> Self {
        FakeClock { now: Arc::new(AtomicU64::new(now)) }
    }

    /// Moves the clock forward by `nanos`.
    pub fn advance(&self, nanos: Nanos) {
        self.now.fetch_add(nanos, Ordering::SeqCst);
    }

    /// Moves the clock to `now`, forward or back.
    pub fn set(&self, now: Nanos) {
        self.now.store(now, Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Nanos {
        self.now.load(Ordering::SeqCst)
    }

    fn sleep_until(&self, time: Nanos) {
        self.now.fetch_max(time, Ordering::SeqCst);
    }
}

/// Runs `act` with this thread's timers as they are by default: a process started meanwhile does not inherit the sharpness.
pub fn with_usual_slack<T>(act: impl FnOnce() -> T) -> T {
    precise::restore_slack();
    let result = act();
    precise::sharpen_this_thread();
    result
}

/// Lets this thread's sleeps end within a few microseconds of their time instead of the usual fifty.
///
/// Linux may delay a timer by the thread's slack, 50 µs by default, to wake less often (`PR_SET_TIMERSLACK` in prctl(2)).
/// A child started by this thread would inherit the slack: see [`with_usual_slack`].
/// Where there is no such setting this does nothing.
pub fn sharpen_this_thread() {
    precise::sharpen_this_thread();
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod precise {
    use super::{Clock, Nanos, SystemClock, timespec};
    use rustix::io::Errno;
    use rustix::thread::{ClockId, clock_nanosleep_absolute};

    /// Sleeps with `clock_nanosleep(TIMER_ABSTIME)`: being stopped or interrupted does not move the end.
    pub(super) fn sleep_until(clock: SystemClock, time: Nanos) {
        let request = timespec(time);
        while clock.now() < time {
            match clock_nanosleep_absolute(ClockId::Monotonic, &request) {
                Ok(()) | Err(Errno::INTR) => {}
                // Only an unsupported clock or an invalid time could get here; then sleep plainly.
                Err(_) => std::thread::sleep(std::time::Duration::from_nanos(time - clock.now().min(time))),
            }
        }
    }

    /// 0 stands for the thread's default, which it was born with.
    pub(super) fn restore_slack() {
        let _ = rustix::thread::set_current_timer_slack(None);
    }

    pub(super) fn sharpen_this_thread() {
        // Refused by some sandboxes; then the sleeps are 50 µs late, which no law forbids.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod precise {
    use super::{Clock, Nanos, SystemClock};
    use std::time::Duration;

    pub(super) fn sleep_until(clock: SystemClock, time: Nanos) {
        loop {
            let now = clock.now();
            if now >= time {
                return;
            }
            std::thread::sleep(Duration::from_nanos(time - now));
        }
    }

    pub(super) fn restore_slack() {}

    pub(super) fn sharpen_this_thread() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_never_ends_early() {
        let clock = SystemClock;
        for nanos in [0, 1, 1_000, 100_000, 3_000_000] {
            let end = clock.now() + nanos;
            clock.sleep_until(end);
            assert!(clock.now() >= end);
        }
    }

    #[test]
    fn clones_of_a_fake_clock_share_its_time() {
        let clock = FakeClock::at(5);
        let other = clock.clone();
        other.sleep_until(9);
        assert_eq!(clock.now(), 9);
        clock.sleep_until(3);
        assert_eq!(other.now(), 9, "sleeping until the past does not turn the clock back");
    }
}
