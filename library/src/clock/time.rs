//! The unit of time.

use rustix::time::Timespec;
use std::time::Duration;

/// Nanoseconds since the origin of a clock. 64 bits last 584 years.
pub type Nanos = u64;

/// Nanoseconds in a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// Nanoseconds in `time`, or the most there are.
#[must_use]
pub fn in_nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Nanoseconds in `time`, which is not negative.
pub(super) fn nanos(time: &Timespec) -> Nanos {
    let seconds = Nanos::try_from(time.tv_sec).unwrap_or(0);
    let nanos = Nanos::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(nanos)
}
