//! Grants whose real cost becomes known later.

use super::acquire::{Acquiring, OfLimiter, Request};
use super::costs::{Costs, IntoCosts};
use super::error::AcquireError;
use super::handle::Limiter;
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
    shared: Arc<Shared>,
    cost: Cost,
    /// `None` if nothing was charged, or once the grant is settled.
    grant: Option<Grant>,
    /// The grant of another limiter that was given together with this one; both are settled together.
    also: Option<Box<Granted>>,
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
            Ok(grant) => Ok(Granted { shared: Arc::clone(&self.shared), cost, grant, also: None }),
            Err(denied) => Err(AcquireError::new(denied, &cost)),
        }
    }
}

impl Granted {
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
        let grant = self.grant.take();
        match grant {
            Some(grant) => self.shared.settle(&grant, [&self.cost, &real]),
            // Nothing was charged.
            None => self.shared.with(|queue, now, effects| queue.reconcile(now, [&real, &self.cost], effects)),
        }
        self.also.take().map_or(Ok(()), |also| also.settle(Costs::of_parts(real)))
    }

    /// Combines this grant with the grant of another limiter. Both are settled together.
    pub(super) fn with(mut self, also: Granted) -> Self {
        self.also = Some(Box::new(also));
        self
    }

    /// Takes the same units again, because another limiter granted `also` only after a wait. Returns `None` if the
    /// units are no longer available, for example because of a pause. Then nothing is taken from either limiter.
    pub(super) fn taken_again(mut self, also: Granted) -> Option<Self> {
        let late = also.shared.time.now().saturating_sub(also.at());
        let grant = self.grant.take()?;
        self.grant = self.shared.with(|queue, now, effects| queue.charge_again(now, late, &grant, &self.cost, effects));
        if self.grant.is_some() {
            return Some(self.with(also));
        }
        // Cannot fail: 0 is a valid amount.
        let _ = also.settle(0);
        None
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.forget(&grant, self.cost.list().len());
        }
    }
}

impl AcquireToSettle {
    pub(super) fn until(mut self, deadline: Option<Nanos>) -> Self {
        self.0.acquire.wait.set_deadline(deadline);
        self
    }

    /// Marks the request as admitted earlier: it is granted even if the queue is closed meanwhile.
    pub(super) fn admitted(mut self) -> Self {
        self.0.acquire.wait.is_admitted = true;
        self
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
        let shared = Arc::clone(&self.acquire.limiter().shared);
        Ok(Granted { shared, cost, grant: self.acquire.wait.opened(), also: None })
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
