//! The future of one acquire.

use super::error::AcquireError;
use super::handle::Limiter;
use super::shared::Wait;
use super::units::Units;
use crate::clock::Nanos;
use crate::limits::{Cost, Grant};
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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
    /// If this is not a valid amount, the first poll returns the error.
    units: Units,
    wait: Wait,
}

impl<L: Borrow<Limiter>> AcquireFrom<L> {
    pub(crate) fn new(limiter: L, units: Units, deadline: Option<Nanos>) -> Self {
        AcquireFrom::waiting(limiter, units, Wait::new(Cost::One(units.millionths().unwrap_or(0)), deadline))
    }

    pub(super) fn waiting(limiter: L, units: Units, wait: Wait) -> Self {
        AcquireFrom { limiter, units, wait }
    }

    pub(super) fn units(&self) -> Units {
        self.units
    }

    /// See [`Wait::opened`].
    pub(super) fn opened(&mut self) -> Option<Grant> {
        self.wait.opened()
    }

    /// Blocks this thread.
    pub(crate) fn block(mut self) -> Result<(), AcquireError> {
        self.block_on()
    }

    pub(super) fn block_on(&mut self) -> Result<(), AcquireError> {
        self.units.millionths()?;
        let limiter = self.limiter.borrow();
        self.wait.block(&limiter.shared).map_err(|denied| limiter.error(denied, self.units))
    }
}

impl<L: Borrow<Limiter> + Unpin> Future for AcquireFrom<L> {
    type Output = Result<(), AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.units.millionths()?;
        let limiter = this.limiter.borrow();
        this.wait.poll(&limiter.shared, context).map_err(|denied| limiter.error(denied, this.units))
    }
}

impl<L: Borrow<Limiter>> Drop for AcquireFrom<L> {
    fn drop(&mut self) {
        self.wait.leave(&self.limiter.borrow().shared);
    }
}

impl<L: Borrow<Limiter>> fmt::Debug for AcquireFrom<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("units", &self.units).finish_non_exhaustive()
    }
}
