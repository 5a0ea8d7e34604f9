//! What a queue reads the time from, and what rings when its next waiter is due.

use crate::clock::{MILLISECOND, Nanos, SystemClock};
pub(crate) use crate::rate::nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// What a queue asks of a clock, outside a tokio runtime and in tests: the time, and to be woken.
pub use crate::clock::Clock as Timer;

/// No tick is longer, by far: it is one of 100 to 1000 a second.
pub(crate) const LONGEST_TICK: Nanos = 200 * MILLISECOND;

/// The clock of a queue.
#[derive(Clone)]
pub(crate) enum Time {
    /// Tokio's clock, which is the system's monotonic one unless a test has paused it. Where it was that when this was
    /// made, the second is what it read right before the origin and right after it.
    Tokio(Instant, Option<[Nanos; 2]>),
    Custom(Arc<dyn Timer>),
}

/// A stretch of time in which it is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    pub(crate) starts: Nanos,
    /// Or earlier.
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

    /// The tick of the system's coarse clock, which stands still for some milliseconds and is read in no time, if
    /// [`now`](Self::now) reads the system's clock. A test's clock may go on meanwhile, so a runtime's is looked at in each
    /// tick; and a program that is being tested, which may pause it within one, has no ticks.
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

    /// `time` for tokio; far away if tokio's clock ends before.
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

/// Whether what tokio calls now is the system's time. It has no other way to tell.
pub(crate) fn on_usual_clock() -> bool {
    let before = std::time::Instant::now();
    let now = Instant::now().into_std();
    now >= before && now <= std::time::Instant::now()
}

/// As [`on_usual_clock`], in that runtime, looked at once in a tick.
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

    /// The clock was read a second before the origin and a second after it, so it is a second at least since then.
    #[test]
    fn a_tick_begins_and_ends_by_the_reading_that_is_on_the_safe_side() {
        let now = SystemClock.now();
        let (before, after) = (now - 3 * SECOND, now - SECOND);
        let tick = Time::Tokio(Instant::now(), Some([before, after])).tick().unwrap();
        let now = SystemClock.now();
        assert!(tick.starts <= now - after, "{tick:?}");
        assert!(tick.ends >= now - before, "{tick:?}");
    }
}
