//! What a queue reads the time from, and what rings when its next waiter is due.

use crate::clock::Nanos;
pub(crate) use crate::rate::nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// What a queue asks of a clock, outside a tokio runtime and in tests: the time, and to be woken.
pub use crate::clock::Clock as Timer;

/// The clock of a queue.
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

    /// The system's coarse clock, which stands still for some milliseconds and is read in no time, if
    /// [`now`](Self::now) reads the system's clock. A test's clock may go on meanwhile, so a runtime's is looked at in each
    /// tick; and a program that is being tested, which may pause it within one, has no ticks.
    #[inline]
    pub(crate) fn tick(&self) -> Option<u64> {
        if cfg!(debug_assertions) || matches!(self, Time::Custom(_)) {
            return None;
        }
        let tick = crate::clock::coarse().into()?;
        match Handle::try_current() {
            Err(_) => Some(tick),
            Ok(runtime) => has_usual_clock(runtime.id(), tick).then_some(tick),
        }
    }

    pub(crate) fn timer(&self) -> Option<&Arc<dyn Timer>> {
        match self {
            Time::Tokio(_) => None,
            Time::Custom(timer) => Some(timer),
        }
    }

    /// `time` for tokio; far away if tokio's clock ends before.
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
