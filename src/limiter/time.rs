//! What a queue reads the time from, and what rings when its next waiter is due.

use crate::clock::Nanos;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What a queue asks of a clock, outside a tokio runtime and in tests: the time, and to be woken.
pub use crate::clock::Clock as Timer;

/// Where a queue has its time from.
#[derive(Clone)]
pub(crate) enum Time {
    /// Tokio's clock, which is the system's monotonic one unless a test has paused it.
    Tokio(Instant),
    Custom(Arc<dyn Timer>),
}

impl Time {
    pub(crate) fn tokio() -> Self {
        Time::Tokio(Instant::now())
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Time::Tokio(origin) => nanos(origin.elapsed()),
            Time::Custom(timer) => timer.now(),
        }
    }

    pub(crate) fn timer(&self) -> Option<&Arc<dyn Timer>> {
        match self {
            Time::Tokio(_) => None,
            Time::Custom(timer) => Some(timer),
        }
    }

    /// `time` for tokio; far away where tokio cannot reckon so far.
    pub(crate) fn instant(&self, time: Nanos) -> Instant {
        match self {
            Time::Tokio(origin) => origin.checked_add(Duration::from_nanos(time)),
            Time::Custom(_) => None,
        }
        .unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Time::Tokio(_) => "Tokio",
            Time::Custom(_) => "Custom",
        })
    }
}

/// A duration in nanoseconds, at most 584 years.
#[inline]
pub(crate) fn nanos(duration: Duration) -> Nanos {
    duration.as_secs().saturating_mul(crate::clock::SECOND).saturating_add(duration.subsec_nanos().into())
}
