//! The future of one acquire.

use super::shared::Wait;
use super::{AcquireError, Limiter, Units};
use crate::clock::Nanos;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for units, see [`Limiter::acquire`]. Dropped unfinished, it takes nothing.
///
/// It takes once: polled again after its end, it repeats the answer it gave and takes nothing more.
#[derive(Debug)]
#[must_use = "nothing is acquired unless this is awaited"]
pub struct Acquire<'a> {
    limiter: &'a Limiter,
    units: Units,
    /// The error is told at the first poll.
    wait: Result<Wait, AcquireError>,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(limiter: &'a Limiter, units: Units, deadline: Option<Nanos>) -> Self {
        Acquire {
            limiter,
            units,
            wait: units.parts().map(|cost| Wait::new(cost, deadline)).map_err(AcquireError::from),
        }
    }

    /// Waits on this thread.
    pub(crate) fn block(mut self) -> Result<(), AcquireError> {
        let wait = self.wait.as_mut().map_err(|error| error.clone())?;
        wait.block(&self.limiter.shared).map_err(|denied| self.limiter.error(denied, self.units))
    }
}

impl Future for Acquire<'_> {
    type Output = Result<(), AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let wait = match &mut this.wait {
            Ok(wait) => wait,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        wait.poll(&this.limiter.shared, context).map_err(|denied| this.limiter.error(denied, this.units))
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Ok(wait) = &mut self.wait {
            wait.leave(&self.limiter.shared);
        }
    }
}
