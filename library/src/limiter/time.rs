//! The clock of a queue.

use crate::clock::{Clock, Nanos};
pub(crate) use crate::rate::nanos;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The clock of a queue.
#[derive(Clone)]
pub(crate) enum Time {
    /// Tokio's clock, with its origin. It is the system's monotonic clock unless a test has paused it.
    Tokio(Instant),
    Custom(Arc<dyn Clock>),
}

impl Time {
    pub(crate) fn tokio() -> Self {
        Time::Tokio(Instant::now())
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Time::Tokio(origin) => nanos(origin.elapsed()),
            Time::Custom(timer) => timer.nanos(),
        }
    }

    /// The time after `wait` from now.
    pub(crate) fn after(&self, wait: Duration) -> Nanos {
        self.now().saturating_add(nanos(wait))
    }

    pub(crate) fn timer(&self) -> Option<&Arc<dyn Clock>> {
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
    // A paused clock stands still, so the system's clock lies between two readings of it only if all three are equal.
    // And if the thread is held up, a clock that was paused for less than that may seem to be the usual one. In both
    // cases the readings are repeated.
    for _ in 0..3 {
        let (first, between, second) = (Instant::now(), std::time::Instant::now(), Instant::now());
        if between < first.into_std() || between > second.into_std() {
            return false;
        }
        if first < second && second - first < Duration::from_micros(2) {
            break;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the system's clock just reached the time of a clock that a test had paused, the paused clock was taken for
    /// the usual one.
    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_not_the_usual_one_when_that_passes_it() {
        for _ in 0..100 {
            let ahead = std::time::Instant::now() + Duration::from_millis(1);
            tokio::time::advance(ahead.saturating_duration_since(Instant::now().into_std())).await;
            while std::time::Instant::now() < ahead + Duration::from_millis(1) {
                assert!(!on_usual_clock());
            }
        }
    }

    #[test]
    fn the_clock_outside_a_test_is_the_usual_one() {
        assert!((0..1_000_000).all(|_| on_usual_clock()));
    }
}
