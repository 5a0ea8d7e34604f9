//! A grant with a time in the future.

use super::queue::Reserved;
use super::shared::Shared;
use super::units::Units;
use crate::clock::Nanos;
use crate::limits::Grant;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Units that are granted at a time, for which the holder waits on its own; see
/// [`Limiter::reserve`](super::Limiter::reserve).
///
/// Dropping it changes nothing; [`cancel`](Self::cancel) gives the units back.
#[must_use = "a reservation is charged whether or not it is used"]
pub struct Reservation {
    shared: Arc<Shared>,
    units: Units,
    at: Nanos,
    stage: Stage,
}

/// The stage of a reservation.
enum Stage {
    Granted(Grant),
    /// In the queue under this key: there are waiters before it.
    InQueue(usize),
    Cancelled,
}

impl Reservation {
    pub(crate) fn new(shared: Arc<Shared>, units: Units, reserved: &Reserved) -> Self {
        let (at, stage) = match *reserved {
            Reserved::Granted(grant) => (grant.at, Stage::Granted(grant)),
            Reserved::InQueue(key, at) => (at, Stage::InQueue(key)),
        };
        Reservation { shared, units, at, stage }
    }

    /// How many units are reserved.
    #[must_use]
    pub fn units(&self) -> Units {
        self.units
    }

    /// The time from now until the units may be used; 0 once that time has come.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(self.shared.time.now()))
    }

    /// When the units may be used, counted from when the limiter was made.
    #[must_use]
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// Gives the units back if the time of the reservation is in the future. After that time they count as used.
    ///
    /// All units are given back if no reservation was made after this one, or if there are waiters before it. So to get
    /// back several reservations, cancel the latest one first. Otherwise nothing is given back, because a later
    /// reservation never changes its time. Cancelling that one afterwards does not change this.
    pub fn cancel(mut self) {
        if self.wait().is_zero() {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Cancelled) {
            Stage::Granted(grant) => self.shared.with(|queue, now, effects| queue.cancel(now, &grant, effects)),
            Stage::InQueue(key) => self.shared.with(|queue, now, effects| queue.leave(now, key, effects)),
            Stage::Cancelled => {}
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
        if let Stage::InQueue(key) = self.stage {
            self.shared.with(|queue, _, effects| queue.abandon(key, effects));
        }
    }
}
