//! The future of one acquire.

use super::costs::Costs;
use super::error::AcquireError;
use super::handle::Limiter;
use super::shared::Wait;
use super::units::UnitsError;
use crate::clock::Nanos;
use crate::limits::Cost;
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits for units, see [`Limiter::acquire`]. If dropped unfinished, it takes nothing.
pub type Acquire<'a> = AcquireFrom<&'a Limiter>;

/// Like [`Acquire`], but owns a clone of the limiter, so it is `'static`; see [`Limiter::acquire_owned`].
pub type AcquireOwned = AcquireFrom<Limiter>;

/// [`Acquire`] with a borrowed limiter, [`AcquireOwned`] with an owned one.
///
/// If polled again after it finished, it returns the same result and takes nothing more.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireFrom<L: Borrow<Limiter>> {
    limiter: L,
    /// If an amount is not valid, each poll returns the error.
    invalid: Option<UnitsError>,
    pub(super) wait: Wait,
}

impl<L: Borrow<Limiter>> AcquireFrom<L> {
    pub(super) fn new(limiter: L, costs: Costs, wait: impl FnOnce(Cost) -> Wait) -> Self {
        match costs.parts() {
            Ok(cost) => AcquireFrom { limiter, invalid: None, wait: wait(cost) },
            Err(error) => AcquireFrom { limiter, invalid: Some(error), wait: wait(Cost::One(0)) },
        }
    }

    pub(super) fn costs(&self) -> Costs {
        self.invalid.map_or_else(|| Costs::of_parts(self.wait.cost().clone()), Costs::invalid)
    }

    /// Waits at most `limit` from this call, including the time in the queue. If the wait would be longer even though
    /// no waiter before it leaves, it is refused at once. This changes nothing once the future has been polled.
    ///
    /// # Errors
    /// The future's: [`AcquireError::TooLong`] at once, with the wait that would be needed, or
    /// [`AcquireError::TimedOut`] after `limit`. Nothing is taken then.
    pub fn timeout(self, limit: Duration) -> Self {
        let deadline = self.limiter.borrow().shared.time.after(limit);
        self.until(Some(deadline))
    }

    /// Like [`timeout`](Self::timeout), with a deadline instead of a duration.
    ///
    /// # Errors
    /// As for [`timeout`](Self::timeout).
    pub fn by(self, deadline: impl Into<Instant>) -> Self {
        let deadline = self.limiter.borrow().shared.time.at(deadline);
        self.until(Some(deadline))
    }

    /// Blocks the thread instead, until the units are granted or refused.
    ///
    /// # Errors
    /// As the future, except [`AcquireError::NoTimer`].
    pub fn block(mut self) -> Result<(), AcquireError> {
        self.block_on()
    }

    pub(super) fn until(mut self, deadline: Option<Nanos>) -> Self {
        self.wait.set_deadline(deadline);
        self
    }

    pub(super) fn block_on(&mut self) -> Result<(), AcquireError> {
        self.invalid.map_or(Ok(()), Err)?;
        let waited = self.wait.block(&self.limiter.borrow().shared);
        waited.map_err(|denied| AcquireError::new(denied, self.wait.cost()))
    }
}

impl<L: Borrow<Limiter> + Unpin> Future for AcquireFrom<L> {
    type Output = Result<(), AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.invalid.map_or(Ok(()), Err)?;
        let polled = this.wait.poll(&this.limiter.borrow().shared, context);
        polled.map_err(|denied| AcquireError::new(denied, this.wait.cost()))
    }
}

impl<L: Borrow<Limiter>> Drop for AcquireFrom<L> {
    fn drop(&mut self) {
        self.wait.leave(&self.limiter.borrow().shared);
    }
}

impl<L: Borrow<Limiter>> fmt::Debug for AcquireFrom<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("units", &self.costs()).finish_non_exhaustive()
    }
}
