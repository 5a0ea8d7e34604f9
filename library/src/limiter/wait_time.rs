//! How long a refused request would have to wait.

use crate::clock::Nanos;
use std::fmt;
use std::time::Duration;

/// How long a request would have to wait, counted from its refusal. The wait is calculated only when it is read,
/// because the calculation takes longer than the refusal. It compares with a [`Duration`], and converts to and from
/// one.
///
/// ```
/// use std::time::Duration;
/// use throttle_limits::limiter::{AcquireError, Limiter};
///
/// let limiter = Limiter::new(2, 1)?;
/// limiter.try_acquire(1)?;
/// let Err(AcquireError::TooLong { wait, .. }) = limiter.try_acquire(1) else { unreachable!() };
/// assert!(wait.duration() <= Duration::from_millis(500));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct WaitTime {
    /// The credits that must come in, counted from a base time before the refusal.
    credits: u64,
    /// Credits per nanosecond.
    gain: u64,
    /// Nanoseconds from the base time to the refusal.
    passed: Nanos,
}

impl WaitTime {
    #[inline]
    pub(crate) fn until(credits: u64, gain: u64, passed: Nanos) -> Self {
        WaitTime { credits, gain, passed }
    }

    #[inline]
    pub(crate) fn from_nanos(wait: Nanos) -> Self {
        WaitTime { credits: wait, gain: 1, passed: 0 }
    }

    pub(crate) fn nanos(self) -> Nanos {
        self.credits.div_ceil(self.gain.max(1)).saturating_sub(self.passed)
    }

    /// The time, rounded up to whole nanoseconds.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos())
    }
}

impl From<WaitTime> for Duration {
    fn from(wait: WaitTime) -> Self {
        wait.duration()
    }
}

/// At most 584 years.
impl From<Duration> for WaitTime {
    fn from(wait: Duration) -> Self {
        WaitTime::from_nanos(super::time::nanos(wait))
    }
}

impl PartialEq for WaitTime {
    fn eq(&self, other: &Self) -> bool {
        self.nanos() == other.nanos()
    }
}

impl Eq for WaitTime {}

impl PartialEq<Duration> for WaitTime {
    fn eq(&self, other: &Duration) -> bool {
        self.duration() == *other
    }
}

impl PartialOrd<Duration> for WaitTime {
    fn partial_cmp(&self, other: &Duration) -> Option<std::cmp::Ordering> {
        self.duration().partial_cmp(other)
    }
}

impl fmt::Debug for WaitTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.duration().fmt(f)
    }
}
