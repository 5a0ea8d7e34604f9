//! The future that acquires units.

use super::costs::Costs;
use super::error::AcquireError;
use super::handle::Limiter;
use super::shared::Wait;
use super::units::UnitsError;
use crate::limits::Cost;
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits for units, see [`Limiter::acquire`]. If the future is polled again after it finished, it returns the same
/// result and takes nothing more.
pub type Acquire<'a> = Acquiring<OfLimiter<&'a Limiter>>;

/// Like [`Acquire`], but owns a clone of the limiter, so it is `'static`; see [`Limiter::acquire_owned`].
pub type AcquireOwned = Acquiring<OfLimiter<Limiter>>;

/// The future of every request that may wait: [`Acquire`] of a [`Limiter`], and the futures of keys, semaphores and
/// buckets.
///
/// A future that is dropped unfinished takes nothing.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct Acquiring<R>(pub(crate) R);

/// A request: its costs, and the limits that grant them. Only this crate implements this trait.
pub trait Request: fmt::Debug + Unpin {
    /// The value that a granted request returns.
    type Grant;

    /// Sets the deadline, unless the request has been polled.
    fn end_after(&mut self, limit: Duration);

    /// Polls the request, as [`Future::poll`] does.
    ///
    /// # Errors
    /// The refusal.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Self::Grant, AcquireError>>;

    /// Blocks the thread until the request is granted or refused.
    ///
    /// # Errors
    /// The refusal.
    fn block(&mut self) -> Result<Self::Grant, AcquireError>;
}

impl<R: Request> Acquiring<R> {
    /// Waits at most `limit` from this call, including the time in the queue. If the wait would be longer even though
    /// no earlier waiter leaves, the request is refused at once. After the first poll of the future this call has no
    /// effect.
    ///
    /// Some waits are not known in advance: a wait for a place of a [semaphore](crate::semaphore::Semaphore), and a
    /// wait behind other keys [within](super::Builder::keyed_within) the same overall limits. A request
    /// with such a wait is refused only when its time is over. The answer of a shared bucket may take longer than
    /// `limit`. With a limit of 0 a request for a shared bucket does not wait.
    ///
    /// # Errors
    /// The future returns them: [`AcquireError::TooLong`] at once, with the necessary wait, or
    /// [`AcquireError::TimedOut`] after `limit`. For several places of a semaphore also [`AcquireError::Never`]; for a
    /// shared bucket [`AcquireError::NoPlace`] if its job limit (`jobs=`) stays reached until then. Nothing is taken
    /// then.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.0.end_after(limit);
        self
    }

    /// Like [`timeout`](Self::timeout), with a deadline instead of a duration.
    ///
    /// # Errors
    /// As for [`timeout`](Self::timeout).
    pub fn by(self, deadline: impl Into<Instant>) -> Self {
        self.timeout(deadline.into().saturating_duration_since(tokio::time::Instant::now().into_std()))
    }

    /// Blocks the thread until the request is granted or refused.
    ///
    /// # Errors
    /// As the future, except [`AcquireError::NoTimer`].
    pub fn block(mut self) -> Result<R::Grant, AcquireError> {
        self.0.block()
    }
}

impl<R: Request> Future for Acquiring<R> {
    type Output = Result<R::Grant, AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl<R: Request> fmt::Debug for Acquiring<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request for units of a limiter.
pub struct OfLimiter<L: Borrow<Limiter>> {
    limiter: L,
    /// If an amount is not valid, each poll returns the error.
    invalid: Option<UnitsError>,
    pub(super) wait: Wait,
}

impl<L: Borrow<Limiter>> OfLimiter<L> {
    pub(super) fn new(limiter: L, costs: Costs, wait: impl FnOnce(Cost) -> Wait) -> Self {
        match costs.parts() {
            Ok(cost) => OfLimiter { limiter, invalid: None, wait: wait(cost) },
            Err(error) => OfLimiter { limiter, invalid: Some(error), wait: wait(Cost::One(0)) },
        }
    }

    pub(super) fn costs(&self) -> Costs {
        self.invalid.map_or_else(|| Costs::of_parts(self.wait.cost().clone()), Costs::invalid)
    }

    pub(super) fn limiter(&self) -> &Limiter {
        self.limiter.borrow()
    }
}

impl<L: Borrow<Limiter> + Unpin> Request for OfLimiter<L> {
    type Grant = ();

    fn end_after(&mut self, limit: Duration) {
        let deadline = self.limiter().shared.time.after(limit);
        self.wait.set_deadline(Some(deadline));
    }

    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        self.invalid.map_or(Ok(()), Err)?;
        let polled = self.wait.poll(&self.limiter.borrow().shared, context);
        polled.map_err(|denied| AcquireError::new(denied, self.wait.cost()))
    }

    fn block(&mut self) -> Result<(), AcquireError> {
        self.invalid.map_or(Ok(()), Err)?;
        let waited = self.wait.block(&self.limiter.borrow().shared);
        waited.map_err(|denied| AcquireError::new(denied, self.wait.cost()))
    }
}

impl<L: Borrow<Limiter>> Drop for OfLimiter<L> {
    fn drop(&mut self) {
        self.wait.leave(&self.limiter.borrow().shared);
    }
}

impl<L: Borrow<Limiter>> fmt::Debug for OfLimiter<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("units", &self.costs()).finish_non_exhaustive()
    }
}
