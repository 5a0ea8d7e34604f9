//! The clock of a queue.

use crate::clock::{MILLISECOND, Nanos, SystemClock};
pub(crate) use crate::rate::nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// A clock and timer that replaces tokio's: it tells the time and wakes the queue.
pub use crate::clock::Clock as Timer;

/// No tick is longer: the kernel has 100 to 1000 ticks a second.
pub(crate) const LONGEST_TICK: Nanos = 200 * MILLISECOND;

/// The clock of a queue.
#[derive(Clone)]
pub(crate) enum Time {
    /// Tokio's clock, with its origin. It is the system's monotonic clock unless a test has paused it. If it was not
    /// paused at the origin, the second field is the system's time read right before and right after the origin.
    Tokio(Instant, Option<[Nanos; 2]>),
    Custom(Arc<dyn Timer>),
}

/// A stretch of time that contains the present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    pub(crate) starts: Nanos,
    /// At this time at the latest.
    pub(crate) ends: Nanos,
}

impl Time {
    pub(crate) fn tokio() -> Self {
        let (before, origin, after) = (SystemClock.now(), Instant::now(), SystemClock.now());
        Time::Tokio(origin, on_usual_clock().then_some([before, after]))
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Time::Tokio(origin, _) => nanos(origin.elapsed()),
            Time::Custom(timer) => timer.now(),
        }
    }

    #[inline]
    pub(crate) fn has_ticks(&self) -> bool {
        !cfg!(debug_assertions) && matches!(self, Time::Tokio(_, Some(_)))
    }

    /// The tick of the system's coarse clock, which changes only every few milliseconds and is very cheap to read. `None`
    /// if [`now`](Self::now) does not read the system's clock. A test may have paused the clock of a runtime, so that is
    /// checked once in each tick. Debug builds have no ticks, because a test may pause the clock within a tick.
    #[inline]
    pub(crate) fn tick(&self) -> Option<Tick> {
        let Time::Tokio(_, Some([before, after])) = self else { return None };
        let tick: Nanos = crate::clock::coarse().into()?;
        let is_usual = Handle::try_current().map_or(true, |runtime| has_usual_clock(runtime.id(), tick));
        let (starts, ends) = (tick.saturating_sub(*after), tick.saturating_sub(*before).saturating_add(LONGEST_TICK));
        is_usual.then_some(Tick { starts, ends })
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
            Time::Tokio(origin, _) => origin.checked_add(Duration::from_nanos(time)),
            Time::Custom(_) => None,
        }
        .unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }
}

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

/// Like [`on_usual_clock`], for that runtime, checked once in a tick.
#[inline]
fn has_usual_clock(runtime: Id, tick: u64) -> bool {
    thread_local! {
        static LOOKED: Cell<(Option<Id>, u64)> = const { Cell::new((None, 0)) };
    }
    if LOOKED.get() == (Some(runtime), tick) {
        return true;
    }
    let usual = on_usual_clock();
    if usual {
        LOOKED.set((Some(runtime), tick));
    }
    usual
}

#[cfg(all(test, target_os = "linux", not(throttle_loom)))]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    /// The two readings of the system's clock may be far apart. A tick starts by the later one and ends by the earlier
    /// one.
    #[test]
    fn a_tick_never_starts_too_late_nor_ends_too_early() {
        let now = SystemClock.now();
        let (before, after) = (now - 3 * SECOND, now - SECOND);
        let tick = Time::Tokio(Instant::now(), Some([before, after])).tick().unwrap();
        let now = SystemClock.now();
        assert!(tick.starts <= now - after, "{tick:?}");
        assert!(tick.ends >= now - before, "{tick:?}");
    }
}
