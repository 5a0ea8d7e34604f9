//! The future of one acquire.

use super::shared::Wait;
use super::{AcquireError, Limiter, Units};
use crate::clock::Nanos;
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for units, see [`Limiter::acquire`]. Dropped unfinished, it takes nothing.
pub type Acquire<'a> = AcquireFrom<&'a Limiter>;

/// As [`Acquire`], but keeps the limiter and so outlives every borrow, see [`Limiter::acquire_owned`].
pub type AcquireOwned = AcquireFrom<Limiter>;

/// What [`Acquire`] and [`AcquireOwned`] have in common: all but whether the limiter is borrowed.
///
/// It takes once: polled again after its end, it repeats the answer it gave and takes nothing more.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireFrom<L: Borrow<Limiter>> {
    limiter: L,
    units: Units,
    /// The error is told at the first poll.
    wait: Result<Wait, AcquireError>,
}

impl<L: Borrow<Limiter>> AcquireFrom<L> {
    pub(crate) fn new(limiter: L, units: Units, deadline: Option<Nanos>) -> Self {
        let wait = units.parts().map(|cost| Wait::new(cost, deadline)).map_err(AcquireError::from);
        AcquireFrom { limiter, units, wait }
    }

    /// Waits on this thread.
    pub(crate) fn block(mut self) -> Result<(), AcquireError> {
        let limiter = self.limiter.borrow();
        let wait = self.wait.as_mut().map_err(|error| error.clone())?;
        wait.block(&limiter.shared).map_err(|denied| limiter.error(denied, self.units))
    }
}

impl<L: Borrow<Limiter> + Unpin> Future for AcquireFrom<L> {
    type Output = Result<(), AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let limiter = this.limiter.borrow();
        let wait = match &mut this.wait {
            Ok(wait) => wait,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        wait.poll(&limiter.shared, context).map_err(|denied| limiter.error(denied, this.units))
    }
}

impl<L: Borrow<Limiter>> Drop for AcquireFrom<L> {
    fn drop(&mut self) {
        if let Ok(wait) = &mut self.wait {
            wait.leave(&self.limiter.borrow().shared);
        }
    }
}

impl<L: Borrow<Limiter>> fmt::Debug for AcquireFrom<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("units", &self.units).finish_non_exhaustive()
    }
}
