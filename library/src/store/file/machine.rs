//! The properties of a machine that a file store needs.

use crate::clock::{BootClock, FakeClock, NanoClock, Nanos};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A machine's clocks; tests use fake ones.
#[derive(Clone)]
pub struct Machine {
    /// Time since the machine was started.
    pub(super) clock: Arc<dyn NanoClock + Send + Sync>,
    /// Identifies the start of the machine.
    pub(super) boot: u128,
    /// A fixed wall clock for tests, in nanoseconds since 1970.
    wall: Option<Nanos>,
    /// Reports damage.
    pub(super) report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let clock = BootClock::new();
        Machine { clock: Arc::new(clock), boot: clock.boot().unwrap_or(0), wall: None, report: Arc::new(|_| {}) }
    }

    /// A fake machine: its boot has the id `boot`, and its wall clock stands still at `wall` nanoseconds since 1970.
    pub fn fake(clock: &FakeClock, boot: u128, wall: Nanos) -> Self {
        Machine { clock: Arc::new(clock.clone()), boot, wall: Some(wall), report: Arc::new(|_| {}) }
    }

    /// The same machine with `report`, which is called once for each damaged file. It receives the damage and the
    /// recovery.
    #[must_use]
    pub fn telling(self, report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Machine { report: Arc::new(report), ..self }
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
