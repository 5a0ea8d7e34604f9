//! What a file store asks of the machine it runs on.

use crate::clock::{BootClock, Clock, FakeClock, Nanos};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A machine's clocks; tests have one of their own making.
#[derive(Clone)]
pub struct Machine {
    /// Time since the machine was started.
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    /// Names that start.
    pub(super) boot: u128,
    /// Nanoseconds since 1970; where this stands still, tests say.
    wall: Option<Nanos>,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this() -> Self {
        let clock = BootClock::new();
        Machine { clock: Arc::new(clock), boot: clock.boot().unwrap_or(0), wall: None }
    }

    /// One that was started as the `boot`th, with `wall` nanoseconds since 1970 on a wall clock that stands still.
    #[must_use]
    pub fn fake(clock: &FakeClock, boot: u128, wall: Nanos) -> Self {
        Machine { clock: Arc::new(clock.clone()), boot, wall: Some(wall) }
    }

    /// Nanoseconds since 1970.
    pub(super) fn wall(&self) -> Nanos {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.wall.unwrap_or_else(|| Nanos::try_from(now()).unwrap_or(Nanos::MAX))
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("boot", &self.boot).finish_non_exhaustive()
    }
}
