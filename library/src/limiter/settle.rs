//! Grants whose real cost becomes known later.

use super::acquire::AcquireOwned;
use super::costs::{Costs, IntoCosts};
use super::error::AcquireError;
use super::handle::Limiter;
use super::queue::{Effects, Queue};
use super::shared::{Shared, Wait};
use super::units::{Units, UnitsError};
use crate::clock::Nanos;
use crate::limits::{Cost, Grant};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Units that were granted and may have cost something else; see [`Limiter::acquire_to_settle`].
///
/// Dropping it settles nothing: the grant then cost what was acquired. A limiter remembers its 16 384 latest grants that
/// are neither settled nor dropped. When an older one is settled, units not used are given back less what came in since.
#[must_use = "dropping it settles nothing; acquire takes units for good"]
pub struct Granted {
    shared: Arc<Shared>,
    cost: Cost,
    /// `None` if nothing was charged, or once it is settled.
    grant: Option<Grant>,
    /// What another limiter granted with it, and is settled with it.
    also: Option<Box<Granted>>,
}

/// Waits for units that will be settled, see [`Limiter::acquire_to_settle`]. If dropped unfinished, it takes nothing.
///
/// If polled or blocked on again after it returned a grant, it fails with [`AcquireError::Finished`].
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireToSettle {
    acquire: AcquireOwned,
    shared: Arc<Shared>,
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
        let acquire = AcquireOwned::new(self.clone(), costs.into_costs(), Wait::to_settle);
        AcquireToSettle { acquire, shared: Arc::clone(&self.shared), is_given: false }
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but blocks the thread.
    ///
    /// # Errors
    /// As for [`blocking_acquire`](Self::blocking_acquire).
    pub fn blocking_acquire_to_settle(&self, costs: impl IntoCosts) -> Result<Granted, AcquireError> {
        self.acquire_to_settle(costs).block()
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but takes `costs` now, or nothing.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_to_settle(&self, costs: impl IntoCosts) -> Result<Granted, AcquireError> {
        let cost = costs.into_costs().parts()?;
        let taken = self.shared.with(|queue, now, effects| {
            effects.opens = true;
            queue.try_take(now, &cost, effects).map(|()| effects.opened.take())
        });
        match taken {
            Ok(grant) => Ok(Granted { shared: Arc::clone(&self.shared), cost, grant, also: None }),
            Err(denied) => Err(AcquireError::new(denied, &cost)),
        }
    }
}

impl Granted {
    /// The units that were acquired; of several kinds the first.
    #[must_use]
    pub fn units(&self) -> Units {
        self.costs().of(0)
    }

    /// What was acquired of each kind.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Costs::of_parts(self.cost.clone())
    }

    /// When it was granted, on the schedule; 0 if nothing was charged.
    pub(super) fn at(&self) -> Nanos {
        self.grant.map_or(0, |grant| grant.at)
    }

    /// Settles it: from now on the limits are as if `real` units had been acquired in the first place. Of what it cost
    /// less, the part that would have overflowed since is lost. What it cost more is owed: later requests wait until the
    /// rate has paid it. Windows count the real cost, from the time of the grant. No grant changes its time.
    ///
    /// # Errors
    /// [`UnitsError`] if `real` is not a valid amount; then it cost what was acquired.
    pub fn settle(mut self, real: impl IntoCosts) -> Result<(), UnitsError> {
        let (real, grant) = (real.into_costs().parts()?, self.grant.take());
        self.shared.with(|queue: &mut Queue, now: Nanos, effects: &mut Effects| match grant {
            Some(grant) => queue.settle_grant(now, &grant, [&self.cost, &real], effects),
            // It cost nothing.
            None => queue.reconcile(now, [&real, &self.cost], effects),
        });
        self.also.take().map_or(Ok(()), |also| also.settle(Costs::of_parts(real)))
    }

    /// Settled together with what another limiter granted.
    pub(super) fn with(mut self, also: Granted) -> Self {
        self.also = Some(Box::new(also));
        self
    }

    /// The same units, but taken only when another limiter granted them after a wait. `None` if they are not there any more,
    /// for example because of a pause: then nothing is taken from either.
    pub(super) fn taken_again(mut self, also: Granted) -> Option<Self> {
        let late = also.shared.time.now().saturating_sub(also.at());
        let grant = self.grant.take()?;
        self.grant = self.shared.with(|queue, now, effects| queue.charge_again(now, late, &grant, &self.cost, effects));
        if self.grant.is_some() {
            return Some(self.with(also));
        }
        // 0 is a valid amount.
        let _ = also.settle(0);
        None
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.with(|queue, _, _| queue.limits.forget(&grant));
        }
    }
}

impl AcquireToSettle {
    pub(super) fn until(self, deadline: Option<Nanos>) -> Self {
        AcquireToSettle { acquire: self.acquire.until(deadline), ..self }
    }

    /// It was let in earlier, and is granted even if the queue is closed meanwhile.
    pub(super) fn admitted(mut self) -> Self {
        self.acquire.wait.is_admitted = true;
        self
    }

    /// Waits at most `limit` from this call; see [`AcquireFrom::timeout`](super::AcquireFrom::timeout), also for the
    /// errors.
    pub fn timeout(self, limit: Duration) -> Self {
        AcquireToSettle { acquire: self.acquire.timeout(limit), ..self }
    }

    /// Waits until `deadline` at most; see [`AcquireFrom::by`](super::AcquireFrom::by), also for the errors.
    pub fn by(self, deadline: impl Into<Instant>) -> Self {
        AcquireToSettle { acquire: self.acquire.by(deadline), ..self }
    }

    /// Blocks the thread instead, until the units are granted or refused.
    ///
    /// # Errors
    /// As the future, except [`AcquireError::NoTimer`].
    pub fn block(mut self) -> Result<Granted, AcquireError> {
        let waited = self.acquire.block_on();
        self.granted(waited)
    }

    /// The grant, once.
    fn granted(&mut self, waited: Result<(), AcquireError>) -> Result<Granted, AcquireError> {
        waited?;
        if std::mem::replace(&mut self.is_given, true) {
            return Err(AcquireError::Finished);
        }
        let cost = self.acquire.costs().parts()?;
        Ok(Granted { shared: Arc::clone(&self.shared), cost, grant: self.acquire.wait.opened(), also: None })
    }
}

impl Future for AcquireToSettle {
    type Output = Result<Granted, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.acquire).poll(context).map(|waited| self.granted(waited))
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").field("units", &self.costs()).finish_non_exhaustive()
    }
}

impl fmt::Debug for AcquireToSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireToSettle").field("units", &self.acquire.costs()).finish_non_exhaustive()
    }
}
