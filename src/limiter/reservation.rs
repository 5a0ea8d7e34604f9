//! A time that was told.

use super::Units;
use super::queue::Reserved;
use super::shared::Shared;
use crate::clock::Nanos;
use crate::limits::Grant;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Units that are granted at a time, for which the holder waits by itself, see [`Limiter::reserve`](super::Limiter::reserve).
///
/// Dropping it changes nothing; [`cancel`](Self::cancel) gives back.
#[must_use = "a reservation is charged whether or not it is used"]
pub struct Reservation {
    shared: Arc<Shared>,
    units: Units,
    at: Nanos,
    held: Held,
}

/// Where a reservation stands.
enum Held {
    Granted(Grant),
    /// Behind waiters, which may still move up.
    InQueue(usize),
    Cancelled,
}

impl Reservation {
    pub(crate) fn new(shared: Arc<Shared>, units: Units, reserved: &Reserved) -> Self {
        let (at, held) = match *reserved {
            Reserved::Granted(grant) => (grant.at, Held::Granted(grant)),
            Reserved::InQueue(key, at) => (at, Held::InQueue(key)),
        };
        Reservation { shared, units, at, held }
    }

    /// How many units.
    #[must_use]
    pub fn units(&self) -> Units {
        self.units
    }

    /// How long from now; nothing once the time has come.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(self.shared.time.now()))
    }

    /// When, since the limiter was made.
    #[must_use]
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// Gives back what it held, while its time lies ahead; once that has come, it was used.
    ///
    /// All of it is given back where it was the latest told, or stands behind waiters; so whoever cancels several, the
    /// last first, gets back all of them. Otherwise a time told to another lies ahead, too, and that is not moved: nothing
    /// is given back, also when that other is cancelled afterwards.
    pub fn cancel(mut self) {
        if self.wait().is_zero() {
            return;
        }
        match std::mem::replace(&mut self.held, Held::Cancelled) {
            Held::Granted(grant) => self.shared.with(|queue, now, effects| queue.cancel(now, &grant, effects)),
            Held::InQueue(key) => self.shared.with(|queue, now, effects| queue.leave(now, key, effects)),
            Held::Cancelled => {}
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("units", &self.units).field("at", &self.at()).finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Held::InQueue(key) = self.held {
            self.shared.with(|queue, _, effects| queue.abandon(key, effects));
        }
    }
}
