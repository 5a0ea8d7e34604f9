//! The unit of time.

use std::time::Duration;

/// Nanoseconds since the origin of a clock. 64 bits last 584 years.
pub type Nanos = u64;

/// Nanoseconds in a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// Nanoseconds in `time`, or the largest value.
#[must_use]
pub fn in_nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}
