//! Errors of requests to a limiter.

use super::events;
use super::queue::Denied;
use super::units::{Units, UnitsError};
use super::wait_time::WaitTime;
use crate::limits::Cost;
#[cfg(feature = "shared")]
use crate::store::BucketError;
use std::time::Duration;

/// The reason why a request was refused or failed. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is not a valid amount, or the number of costs is wrong.
    Units(UnitsError),
    /// The cost is above the burst, and the limiter was built with [`Oversize::Reject`](super::Oversize::Reject).
    AboveBurst {
        /// The cost of the request.
        cost: Units,
        /// The most units at once.
        burst: Units,
    },
    /// The cost is above a window's count, or the time of the grant would be beyond the end of the clock.
    Never {
        /// The cost of the request.
        cost: Units,
    },
    /// The wait would be longer than allowed.
    TooLong {
        /// The cost of the request.
        cost: Units,
        /// The wait that would be necessary, if no waiter leaves.
        wait: WaitTime,
    },
    /// The deadline has passed.
    TimedOut {
        /// The cost of the request.
        cost: Units,
        /// The time that the request waited.
        after: Duration,
    },
    /// Others wait, and the limiter is fair.
    OthersWait,
    /// The queue is full, see [`Builder::max_waiters`](super::Builder::max_waiters).
    Full,
    /// The limiter was closed before the request arrived, see [`Limiter::close`](super::Limiter::close).
    Closed,
    /// The key is new, and a [`Keyed`](super::Keyed) limiter has no room for another key.
    TooManyKeys,
    /// Too few places of the semaphore are free.
    NoPlace,
    /// A key [within](super::Builder::keyed_within) overall limits has neither reservations nor a limiter of its own.
    OfAll,
    /// A bucket that processes share cannot be used.
    #[cfg(feature = "shared")]
    Bucket(BucketError),
    /// The future has already returned its permit, or its grant.
    Finished,
    /// The thread that wakes waiting futures cannot be started: the system allows no more threads.
    NoTimer,
}

messages! {
    AcquireError {
        AcquireError::Units(error) => ("{error}"),
        AcquireError::AboveBurst { cost, burst } => (
            "{cost} is more than the capacity of {burst}; request less, or build with oversize(Oversize::Wait)"
        ),
        AcquireError::Never { cost } => (
            "{cost} is never granted: it is more than a window allows, or the wait would be over 584 years"
        ),
        AcquireError::TooLong { cost, wait } => ("{cost} would have to wait {wait:?}, which is longer than allowed"),
        AcquireError::TimedOut { cost, after } => ("timed out after {after:?} waiting for {cost}"),
        AcquireError::OthersWait => (
            "others wait for the limiter; acquire to wait in the queue, or build with fair(false)"
        ),
        AcquireError::Full => ("the queue is full; try later, or build with OnFull::Wait"),
        AcquireError::Closed => ("the limiter is closed"),
        AcquireError::TooManyKeys => ("no room for another key; try later, or allow more with set_most_keys"),
        AcquireError::OfAll => ("a key within overall limits has neither reservations nor a limiter of its own; use acquire(…).by(deadline)"),
        AcquireError::NoPlace => ("not enough places are free; acquire to wait for them"),
        AcquireError::Finished => ("this acquire has already returned its grant; acquire again for more"),
        #[cfg(feature = "shared")]
        AcquireError::Bucket(error) => ("{error}"),
        AcquireError::NoTimer => (
            "the thread that wakes waiting futures cannot be started; allow more threads (ulimit -u), give the builder a clock, or block the thread"
        ),
    }
}

holds! {
    AcquireError {
        Units(UnitsError),
    }
}

impl AcquireError {
    /// The time to wait before the request is made again, if the limiter can compute it: after
    /// [`TooLong`](Self::TooLong).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            AcquireError::TooLong { wait, .. } => Some(wait.duration()),
            _ => None,
        }
    }

    /// [`retry_after`](Self::retry_after) in whole seconds, rounded up, for the header `Retry-After` of an HTTP
    /// response.
    ///
    /// ```
    /// let limiter = throttle_limits::Limiter::new(0.4, 1)?; // one unit in 2.5 s
    /// limiter.try_acquire(1)?;
    /// let refused = limiter.try_acquire(1).unwrap_err();
    /// assert_eq!(refused.retry_after_secs(), Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(|wait| wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)))
    }

    /// Returns the error as the result of a call. It is not inlined and not a closure of `map_err`: otherwise callers
    /// would build the error elsewhere and then copy it.
    #[inline(never)]
    pub(crate) fn refuse(denied: Denied, costs: &Cost) -> Result<(), Self> {
        Err(AcquireError::new(denied, costs))
    }

    #[inline]
    pub(crate) fn too_long(costs: &Cost, wait: WaitTime) -> Self {
        let error = AcquireError::TooLong { cost: Units::from_millionths(costs.of(0)), wait };
        events::refused(&error);
        error
    }

    /// With several costs, the error names the cost that is too large, or else the first cost.
    pub(crate) fn new(denied: Denied, costs: &Cost) -> Self {
        let of = |kind| Units::from_millionths(costs.of(kind));
        let cost = of(0);
        let error = match denied {
            Denied::Units(error) => AcquireError::Units(error),
            Denied::AboveBurst(kind, burst) => {
                AcquireError::AboveBurst { cost: of(kind), burst: Units::from_millionths(burst) }
            }
            Denied::Never(kind) => AcquireError::Never { cost: of(kind) },
            Denied::TooLong { wait } => AcquireError::TooLong { cost, wait: WaitTime::from_nanos(wait) },
            Denied::TimedOut { after } => AcquireError::TimedOut { cost, after: Duration::from_nanos(after) },
            Denied::OthersWait => AcquireError::OthersWait,
            Denied::NoPlace => AcquireError::NoPlace,
            Denied::Full => AcquireError::Full,
            Denied::Closed => AcquireError::Closed,
            Denied::TooManyKeys => AcquireError::TooManyKeys,
            Denied::NoTimer => AcquireError::NoTimer,
        };
        events::refused(&error);
        error
    }
}
