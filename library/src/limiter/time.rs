//! The clock of a queue.

use crate::clock::Nanos;
pub(crate) use crate::rate::nanos;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A clock and timer that replaces tokio's: it tells the time and wakes the queue.
pub use crate::clock::Clock as Timer;

/// The clock of a queue.
#[derive(Clone)]
pub(crate) enum Time {
    /// Tokio's clock, with its origin. It is the system's monotonic clock unless a test has paused it.
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

    /// The time after `wait` from now.
    pub(crate) fn after(&self, wait: Duration) -> Nanos {
        self.now().saturating_add(nanos(wait))
    }

    /// The time at this instant, or now if it has passed.
    pub(crate) fn at(&self, instant: impl Into<std::time::Instant>) -> Nanos {
        self.after(instant.into().saturating_duration_since(Instant::now().into_std()))
    }

    pub(crate) fn timer(&self) -> Option<&Arc<dyn Timer>> {
        match self {
            Time::Tokio(..) => None,
            Time::Custom(timer) => Some(timer),
        }
    }

    /// `time` on tokio's clock, or a time in the far future if tokio's clock cannot represent it.
    pub(crate) fn instant(&self, time: Nanos) -> Instant {
        match self {
            Time::Tokio(origin) => origin.checked_add(Duration::from_nanos(time)),
            Time::Custom(_) => None,
        }
        .unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }
}

/// No panic leaves a clock half set: a [`Clock`](crate::clock::Clock) is shared by threads, so it guards its own state.
impl std::panic::UnwindSafe for Time {}
impl std::panic::RefUnwindSafe for Time {}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Time::Tokio(..) => "Tokio",
            Time::Custom(_) => "Custom",
        })
    }
}

/// Whether tokio's clock is the system's clock. Tokio offers no other way to find out.
pub(crate) fn on_usual_clock() -> bool {
    let before = std::time::Instant::now();
    let now = Instant::now().into_std();
    now >= before && now <= std::time::Instant::now()
}
