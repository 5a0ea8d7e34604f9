//! The monotonic clock of the system.

use super::contract::{Clock, park_until};
use super::time::{Nanos, in_nanos};
use std::time::Duration;

/// `CLOCK_MONOTONIC`: changes of the wall clock do not move it. On Linux it stops while the machine is suspended, see
/// `clock_gettime(2)`; on macOS it continues.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    #[inline]
    fn nanos(&self) -> Nanos {
        system_nanos()
    }

    fn sleep_unless(&self, time: Duration, is_over: &dyn Fn() -> bool) -> bool {
        park_until(self, in_nanos(time), is_over, Duration::MAX)
    }
}

#[cfg(unix)]
#[inline]
fn system_nanos() -> Nanos {
    super::boot::nanos(&rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

/// Since the first call in this process.
#[cfg(not(unix))]
fn system_nanos() -> Nanos {
    static ORIGIN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    in_nanos(ORIGIN.elapsed())
}
