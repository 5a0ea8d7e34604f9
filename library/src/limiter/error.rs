//! Why nothing was acquired.

use super::events;
use super::queue::Denied;
use super::units::{Units, UnitsError};
use super::wait_time::WaitTime;
use crate::limits::Cost;
use std::time::Duration;

/// Why nothing was acquired. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is not a valid amount.
    Units(UnitsError),
    /// The cost is above the burst, and the limiter was built with [`Oversize::Reject`](super::Oversize::Reject).
    AboveBurst {
        /// The cost of the request.
        cost: Units,
        /// The most units at once.
        burst: Units,
    },
    /// The cost is above a window's count, or the time is beyond the end of the clock.
    Never {
        /// The cost of the request.
        cost: Units,
    },
    /// The wait would be longer than allowed.
    TooLong {
        /// The cost of the request.
        cost: Units,
        /// How long the wait would be, if no waiter leaves.
        wait: WaitTime,
    },
    /// The deadline has passed.
    TimedOut {
        /// The cost of the request.
        cost: Units,
        /// How long the request waited.
        after: Duration,
    },
    /// Others wait, and the limiter is fair.
    OthersWait,
    /// The queue is full, see [`Builder::max_waiters`](super::Builder::max_waiters).
    Full,
    /// The limiter was closed before the request came to it, see [`Limiter::close`](super::Limiter::close).
    Closed,
    /// The key is new, and a [`Keyed`](super::Keyed) limiter keeps as many keys as it may.
    TooManyKeys,
    /// Too few places of the semaphore are free.
    NoPlace,
    /// A reservation of a key [within](super::Builder::keyed_within) other limits, which would have a time of its own in each.
    OfAll,
    /// The future has already returned its permit, or its grant.
    Finished,
    /// The thread that wakes waiting futures cannot be started: the system allows no more threads.
    NoTimer,
}

messages! {
    AcquireError {
        AcquireError::Units(error) => ("{error}"),
        AcquireError::AboveBurst { cost, burst } => (
            "{cost} is more than the capacity of {burst}; ask for less, or build with oversize(Oversize::Wait)"
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
        AcquireError::OfAll => ("keys within the limits of all cannot be reserved; use acquire_by, or reserve of limiter(key)"),
        AcquireError::NoPlace => ("not enough places are free; acquire to wait for them"),
        AcquireError::Finished => ("this acquire has already returned what it acquired; acquire again for more"),
        AcquireError::NoTimer => (
            "the thread that wakes waiting futures cannot be started; allow more threads (ulimit -u), give a Timer when the limiter is made, or use one of the blocking forms"
        ),
    }
}

holds! {
    AcquireError {
        Units(UnitsError),
    }
}

impl AcquireError {
    /// The same as the result of a call. Not inlined, and no closure of `map_err`: callers would build the error elsewhere
    /// and then copy it.
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

    /// Of several costs it names the one that is too large, or else the first.
    pub(crate) fn new(denied: Denied, costs: &Cost) -> Self {
        let of = |kind| Units::from_millionths(costs.of(kind));
        let cost = of(0);
        let error = match denied {
            Denied::AboveBurst(kind, burst) => {
                AcquireError::AboveBurst { cost: of(kind), burst: Units::from_millionths(burst) }
            }
            Denied::Never(kind) => AcquireError::Never { cost: of(kind) },
            Denied::TooLong { wait } => AcquireError::TooLong { cost, wait: WaitTime::from_nanos(wait) },
            Denied::TimedOut { after } => AcquireError::TimedOut { cost, after: Duration::from_nanos(after) },
            Denied::OthersWait => AcquireError::OthersWait,
            Denied::Full => AcquireError::Full,
            Denied::Closed => AcquireError::Closed,
            Denied::TooManyKeys => AcquireError::TooManyKeys,
            Denied::NoTimer => AcquireError::NoTimer,
        };
        events::refused(&error);
        error
    }
}
