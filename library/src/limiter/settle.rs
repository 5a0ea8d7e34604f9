//! Grants whose real cost becomes known later.

use super::acquire::{Acquiring, OfLimiter, Request};
use super::costs::{Costs, IntoCosts};
use super::error::AcquireError;
use super::handle::Limiter;
use super::serve::Serve;
use super::shared::{Shared, Wait};
use super::units::UnitsError;
use crate::clock::Nanos;
use crate::limits::{Cost, Grant};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Granted units whose real cost may differ from the acquired cost; see [`Limiter::acquire_to_settle`].
///
/// Dropping it settles nothing: the acquired cost then counts as the real cost. A limiter remembers its 1024 latest
/// grants that are neither settled nor dropped. If an older grant is settled, its unused units are given back, less the
/// units gained since.
#[must_use = "dropping it settles nothing; acquire takes units for good"]
pub struct Granted {
    shared: Arc<Shared<dyn Serve + Send>>,
    cost: Cost,
    /// `None` if nothing was charged, or once the grant is settled.
    grant: Option<Grant>,
}

/// Waits for units that will be settled, see [`Limiter::acquire_to_settle`]. If the future is polled again after it
/// returned a grant, it fails with [`AcquireError::Finished`].
pub type AcquireToSettle = Acquiring<ToSettle>;

/// A request for units of a limiter whose grant will be settled.
pub struct ToSettle {
    acquire: OfLimiter<Limiter>,
    is_given: bool,
}

impl Limiter {
    /// Like [`acquire`](Self::acquire), for a cost that is not known yet: `costs` is an estimate, and
    /// [`settle`](Granted::settle) corrects it later. Everything after that is as if the real cost had been acquired.
    ///
    /// While such grants are neither settled nor dropped, requests to the limiter take its lock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_limits::limiter::Limiter;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // 200 000 tokens a minute; a call takes at most 4000, but most take less
    /// let tokens = Limiter::builder().rate(200_000, Duration::from_secs(60)).build()?;
    /// let granted = tokens.acquire_to_settle(4000).await?;
    /// assert_eq!(tokens.available(), 196_000);
    /// let used = 950; // from the answer's `usage`
    /// granted.settle(used)?;
    /// assert_eq!(tokens.available(), 199_050);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_to_settle(&self, costs: impl IntoCosts) -> AcquireToSettle {
        let acquire = OfLimiter::new(self.clone(), costs.into_costs(), Wait::to_settle);
        Acquiring(ToSettle { acquire, is_given: false })
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but takes `costs` now, or nothing.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_to_settle(&self, costs: impl IntoCosts) -> Result<Granted, AcquireError> {
        let cost = costs.into_costs().parts()?;
        match self.shared.try_to_settle(&cost) {
            Ok(grant) => Ok(Granted::new(self.shared.clone(), cost, grant)),
            Err(denied) => Err(AcquireError::new(denied, &cost)),
        }
    }
}

impl Granted {
    pub(super) fn new(shared: Arc<Shared<dyn Serve + Send>>, cost: Cost, grant: Option<Grant>) -> Self {
        Granted { shared, cost, grant }
    }

    /// The acquired units of each kind.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Costs::of_parts(self.cost.clone())
    }

    /// The time of the grant, on the schedule; 0 if nothing was charged.
    pub(super) fn at(&self) -> Nanos {
        self.grant.map_or(0, |grant| grant.at)
    }

    /// Settles the grant: from now on the limits are as if `real` units had been acquired in the first place. Unused
    /// units are given back, except the part that would have overflowed since the grant. Units used beyond the acquired
    /// cost are owed: later requests wait until the rate has paid them. Windows count the real cost, from the time of
    /// the grant. No grant changes its time.
    ///
    /// # Errors
    /// [`UnitsError`] if `real` is not a valid amount, or the number of costs is wrong; then the acquired cost counts
    /// as the real cost.
    pub fn settle(mut self, real: impl IntoCosts) -> Result<(), UnitsError> {
        let real = real.into_costs().parts()?;
        if real.list().len() != self.cost.list().len() {
            let (given, kinds) = (real.list().len(), self.cost.list().len());
            return Err(UnitsError::WrongCount { given, kinds });
        }
        match self.grant.take() {
            Some(grant) => self.shared.settle(&grant, [&self.cost, &real]),
            // Nothing was charged.
            None => self.shared.with(|queue, now, effects| queue.correct(now, [&real, &self.cost], effects)),
        }
        Ok(())
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.close_grant(&grant);
        }
    }
}

impl ToSettle {
    /// Returns the grant once. Every later call fails.
    fn granted(&mut self, waited: Result<(), AcquireError>) -> Result<Granted, AcquireError> {
        waited?;
        if std::mem::replace(&mut self.is_given, true) {
            return Err(AcquireError::Finished);
        }
        let cost = self.acquire.wait.cost().clone();
        let shared = self.acquire.limiter().shared.clone();
        Ok(Granted::new(shared, cost, self.acquire.wait.opened()))
    }
}

impl Request for ToSettle {
    type Grant = Granted;

    fn end_after(&mut self, limit: Duration) {
        self.acquire.end_after(limit);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Granted, AcquireError>> {
        self.acquire.poll(context).map(|waited| self.granted(waited))
    }

    fn block(&mut self) -> Result<Granted, AcquireError> {
        let waited = self.acquire.block();
        self.granted(waited)
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").field("units", &self.costs()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ToSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireToSettle").field("units", &self.acquire.costs()).finish_non_exhaustive()
    }
}
