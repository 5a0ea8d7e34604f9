//! A grant with a time in the future.

use super::costs::Costs;
use super::queue::Key;
use super::serve::Serve;
use super::shared::Shared;
use crate::clock::Nanos;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Units that are granted for a time, which the holder waits for by its own means; see
/// [`Limiter::reserve`](super::Limiter::reserve).
///
/// Dropping it changes nothing; [`cancel`](Self::cancel) gives the units back.
#[must_use = "a reservation is charged whether or not it is used"]
pub struct Reservation {
    shared: Arc<Shared>,
    costs: Costs,
    at: Nanos,
    key: Key,
}

impl Reservation {
    pub(crate) fn new(shared: Arc<Shared>, costs: Costs, (key, at): (Key, Nanos)) -> Self {
        Reservation { shared, costs, at, key }
    }

    /// The reserved units of each kind.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The time from now until the units may be used; 0 once that time has come. This call does not wait for it.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.at.saturating_sub(self.shared.time.now()))
    }

    /// The time at which the units may be used, on the system's monotonic clock, or on tokio's clock if that is paused.
    /// With a [`clock`](super::Builder::clock) it is [`wait`](Self::wait) from now, as if that clock kept real time.
    #[must_use]
    pub fn instant(&self) -> Instant {
        tokio::time::Instant::now().into_std() + self.wait()
    }

    /// For tests. The time at which the units may be used, since the creation of the limiter or of its
    /// [`Keyed`](super::Keyed). With a [`clock`](super::Builder::clock) it is counted from the origin of that clock.
    #[doc(hidden)]
    #[must_use]
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// Gives the units back if the time of the reservation is in the future. After that time they count as used.
    ///
    /// All units are given back if no reservation was made after this one, or if waiters are ahead of this one.
    /// Otherwise nothing is given back, because a later reservation never changes its time. Cancelling the later
    /// reservation afterwards does not change this. So to get back several reservations, cancel the latest one first.
    pub fn cancel(self) {
        if !self.wait().is_zero() {
            self.shared.with(|queue, now, effects| queue.leave(now, self.key, effects));
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("units", &self.costs).field("at", &self.at()).finish_non_exhaustive()
    }
}
