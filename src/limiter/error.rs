//! Why nothing was acquired.

use super::queue::Denied;
use super::units::{Units, UnitsError};
use std::time::Duration;
use thiserror::Error;

/// Why nothing was acquired. Nothing was taken, either.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// What was asked for is no amount.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// More than the limiter ever holds at once, and it does not wait for that.
    #[error("{cost} is more than the capacity of {burst}; ask for less, or build with oversize(Oversize::Wait)")]
    AboveBurst {
        /// What was asked for.
        cost: Units,
        /// What there can be at once.
        burst: Units,
    },
    /// More than a window counts, or beyond the end of the clock.
    #[error("{cost} will never be granted: it is more than a window of the limiter counts, or would take 584 years")]
    Never {
        /// What was asked for.
        cost: Units,
    },
    /// It would take longer than was allowed.
    #[error("{cost} would take {wait:?}, which is longer than allowed")]
    TooLong {
        /// What was asked for.
        cost: Units,
        /// How long it would take, if all before it stay.
        wait: Duration,
    },
    /// The time allowed is over.
    #[error("timed out after {after:?} waiting for {cost}")]
    TimedOut {
        /// What was asked for.
        cost: Units,
        /// How long it waited.
        after: Duration,
    },
    /// Others wait, and the limiter is fair.
    #[error("others wait for the limiter; acquire to wait in the queue, or build with fair(false)")]
    OthersWait,
    /// As many wait as may.
    #[error("the queue is full; try later, or build with OnFull::Wait")]
    Full,
    /// The limiter was closed.
    #[error("the limiter is closed")]
    Closed,
    /// Every place of the semaphore is held.
    #[error("all places are held; acquire to wait until one is free")]
    NoPlace,
    /// The future has already given its permit.
    #[error("this acquire has given its permit already; acquire again for another")]
    Finished,
    /// The thread that wakes waiting futures cannot be started: the system allows no more of them.
    #[error(
        "the thread that wakes waiting futures cannot be started; allow more threads (ulimit -u), give a Timer when the limiter is made, or use one of the blocking forms"
    )]
    NoTimer,
}

impl AcquireError {
    pub(crate) fn new(denied: Denied, cost: Units, burst: impl FnOnce() -> Units) -> Self {
        match denied {
            Denied::AboveBurst => AcquireError::AboveBurst { cost, burst: burst() },
            Denied::Never => AcquireError::Never { cost },
            Denied::TooLong { wait } => AcquireError::TooLong { cost, wait: Duration::from_nanos(wait) },
            Denied::TimedOut { after } => AcquireError::TimedOut { cost, after: Duration::from_nanos(after) },
            Denied::OthersWait => AcquireError::OthersWait,
            Denied::Full => AcquireError::Full,
            Denied::Closed => AcquireError::Closed,
            Denied::NoTimer => AcquireError::NoTimer,
        }
    }
}
