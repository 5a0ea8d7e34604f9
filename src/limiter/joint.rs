//! Several costs at once on several limits.

use super::builder::{self, BuildError, Builder};
use super::error::AcquireError;
use super::handle::Limiter;
use super::queue::{Denied, Queue};
use super::rules::Oversize;
use super::settle::Open;
use super::shared::{Shared, Wait};
use super::time::nanos;
use super::units::{PARTS, Units, UnitsError};
use crate::clock::Nanos;
use crate::limits::Cost;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// `N` limits with a cost on each, for example requests and tokens. All costs of a request are granted together or not
/// at all.
///
/// There is one queue, first in, first out. The first waiter is granted at the earliest time at which every limit
/// conforms, and is charged on all of them at that time. Until then nothing is taken. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use throttle::limiter::Limiter;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let minute = Duration::from_secs(60);
/// let requests = Limiter::builder().rate(60, minute).burst(5);
/// let tokens = Limiter::builder().rate(200_000, minute);
/// let model = Limiter::joint([requests, tokens])?;
///
/// model.acquire([1, 4000]).await?; // one request and an estimate of 4000 tokens
/// assert_eq!(model.available(), [4, 196_000]);
/// model.reconcile([1, 1000], [1, 4000])?; // it cost 1000
/// assert_eq!(model.available(), [4, 199_000]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct JointLimiter<const N: usize> {
    shared: Arc<Shared>,
    /// What happens to a cost above each limit's burst.
    oversize: [Oversize; N],
}

/// Waits for several costs at once, see [`JointLimiter::acquire`]. If dropped unfinished, it takes nothing.
///
/// If polled again after it finished, it returns the same result and takes nothing more.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireJoint<const N: usize> {
    limiter: JointLimiter<N>,
    costs: [Units; N],
    deadline: Option<Nanos>,
    to_settle: bool,
    /// `None` before the first poll.
    wait: Option<Result<Wait, AcquireError>>,
}

/// Costs that were granted and may have been others; see [`JointLimiter::acquire_to_settle`]. As for
/// [`Granted`](super::Granted), dropping it settles nothing.
#[must_use = "dropping it settles nothing; acquire takes units for good"]
pub struct JointGranted<const N: usize> {
    open: Open,
    costs: [Units; N],
}

/// Waits for costs that will be settled, see [`JointLimiter::acquire_to_settle`]. If dropped unfinished, it takes nothing.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireJointToSettle<const N: usize>(AcquireJoint<N>);

impl Limiter {
    /// Joins several limiters into one. A request has a cost on each of them and takes all costs at once.
    ///
    /// The rate, burst, limits and [`Oversize`] of each builder apply to its own costs. The shared queue has the smallest
    /// [`max_waiters`](Builder::max_waiters) of the builders, and the first [`timer`](Builder::timer) given.
    ///
    /// # Errors
    /// [`BuildError`], as for each builder alone, or if one of them is not [fair](Builder::fair).
    #[allow(clippy::needless_pass_by_value, reason = "building consumes the builders")]
    pub fn joint<const N: usize>(limiters: [Builder; N]) -> Result<JointLimiter<N>, BuildError> {
        let oversize = limiters.each_ref().map(Builder::oversize_rule);
        Ok(JointLimiter { shared: builder::joint(&limiters)?, oversize })
    }
}

impl<const N: usize> JointLimiter<N> {
    /// Waits until all earlier waiters have been served and all `costs` are available, and takes them.
    ///
    /// The future owns a clone of the limiter. Nothing is taken before it is polled. If it is dropped unfinished it takes
    /// nothing, and the waiters behind it move up.
    ///
    /// # Errors
    /// The future's: [`AcquireError`]. The cost in the error is the one that is too large, or else the first one.
    pub fn acquire<C: Into<Units>>(&self, costs: [C; N]) -> AcquireJoint<N> {
        self.acquire_by(costs, None)
    }

    /// Like [`acquire`](Self::acquire), but at most `limit` from now, including the time in the queue. If the wait would
    /// be longer even though no waiter before it leaves, it is refused at once.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and [`AcquireError::TooLong`] at once or [`AcquireError::TimedOut`] later.
    pub fn acquire_timeout<C: Into<Units>>(&self, costs: [C; N], limit: Duration) -> AcquireJoint<N> {
        self.acquire_by(costs, Some(self.shared.time.now().saturating_add(nanos(limit))))
    }

    fn acquire_by<C: Into<Units>>(&self, costs: [C; N], deadline: Option<Nanos>) -> AcquireJoint<N> {
        AcquireJoint { limiter: self.clone(), costs: costs.map(Into::into), deadline, to_settle: false, wait: None }
    }

    /// Like [`acquire`](Self::acquire), for costs that are not known yet; see [`Limiter::acquire_to_settle`].
    ///
    /// ```
    /// # use {std::time::Duration, throttle::limiter::Limiter};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let minute = Duration::from_secs(60);
    /// # let requests = Limiter::builder().rate(60, minute).burst(5);
    /// # let tokens = Limiter::builder().rate(200_000, minute);
    /// let model = Limiter::joint([requests, tokens])?;
    /// let granted = model.acquire_to_settle([1, 4000]).await?;
    /// granted.settle([1, 950])?; // it took 950 tokens
    /// assert_eq!(model.available(), [4, 199_050]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_to_settle<C: Into<Units>>(&self, costs: [C; N]) -> AcquireJointToSettle<N> {
        let mut acquire = self.acquire(costs);
        acquire.to_settle = true;
        AcquireJointToSettle(acquire)
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but blocks the thread.
    ///
    /// # Errors
    /// As for [`blocking_acquire`](Self::blocking_acquire).
    pub fn blocking_acquire_to_settle<C: Into<Units>>(&self, costs: [C; N]) -> Result<JointGranted<N>, AcquireError> {
        let AcquireJointToSettle(mut acquire) = self.acquire_to_settle(costs);
        acquire.block()?;
        Ok(acquire.granted())
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but takes all `costs` now, or nothing.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_to_settle<C: Into<Units>>(&self, costs: [C; N]) -> Result<JointGranted<N>, AcquireError> {
        let costs = costs.map(Into::into);
        let open = Open::try_take(&self.shared, self.cost(costs)?).map_err(|denied| error(denied, costs))?;
        Ok(JointGranted { open, costs })
    }

    /// Takes all `costs` now, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] with the wait that would be needed; [`AcquireError::OthersWait`].
    pub fn try_acquire<C: Into<Units>>(&self, costs: [C; N]) -> Result<(), AcquireError> {
        let costs = costs.map(Into::into);
        let cost = self.cost(costs)?;
        let taken = self.shared.with(|queue, now, effects| queue.try_take(now, &cost, effects));
        taken.map_err(|denied| error(denied, costs))
    }

    /// Like [`acquire`](Self::acquire), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire<C: Into<Units>>(&self, costs: [C; N]) -> Result<(), AcquireError> {
        self.acquire(costs).block()
    }

    /// Like [`acquire_timeout`](Self::acquire_timeout), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire_timeout<C: Into<Units>>(&self, costs: [C; N], limit: Duration) -> Result<(), AcquireError> {
        self.acquire_timeout(costs, limit).block()
    }

    /// Settles costs that were acquired as `estimated` and turned out as `actual`, on each limit; see
    /// [`Limiter::reconcile`].
    ///
    /// # Errors
    /// If one of them is not a valid amount.
    pub fn reconcile<C: Into<Units>>(&self, actual: [C; N], estimated: [C; N]) -> Result<(), UnitsError> {
        let costs = [parts(actual.map(Into::into))?, parts(estimated.map(Into::into))?].map(several);
        self.shared.with(|queue, now, effects| queue.reconcile(now, [&costs[0], &costs[1]], effects));
        Ok(())
    }

    /// Grants nothing for `time` from now; see [`Limiter::pause_for`].
    pub fn pause_for(&self, time: Duration) {
        self.shared.with(|queue, now, effects| queue.pause_until(now, now.saturating_add(nanos(time)), effects));
    }

    /// Whole units of each kind that could be taken now; 0 while others wait.
    #[must_use]
    pub fn available(&self) -> [u64; N] {
        let levels = self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            let must_wait = queue.is_paused() || queue.waiters() > 0;
            std::array::from_fn(|kind| if must_wait { 0 } else { queue.limits.available_of(now, kind) })
        });
        levels.map(|level: u64| level / PARTS)
    }

    /// How many futures and threads wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.waiters()
        })
    }

    /// Refuses every later request with [`AcquireError::Closed`]. All in the queue are still served.
    pub fn close(&self) {
        self.shared.with(|queue, _, _| queue.close());
    }

    /// The time of the latest grant, counted from when the limiter was made.
    #[must_use]
    pub fn last_grant(&self) -> Duration {
        Duration::from_nanos(self.shared.with(|queue, _, _| queue.limits.latest()))
    }

    /// `costs`, if they can be granted at all.
    fn cost(&self, costs: [Units; N]) -> Result<Cost, AcquireError> {
        let parts = parts(costs)?;
        let check = |queue: &mut Queue, _, _: &mut _| {
            (0..N).try_for_each(|kind| self.check(queue, kind, costs[kind], parts[kind]))
        };
        self.shared.with(check).map(|()| several(parts))
    }

    fn check(&self, queue: &Queue, kind: usize, cost: Units, parts: u64) -> Result<(), AcquireError> {
        let (burst, largest) = queue.limits.most(kind);
        if self.oversize[kind] == Oversize::Reject && parts > burst {
            return Err(AcquireError::AboveBurst { cost, burst: Units::from_millionths(burst) });
        }
        if parts > largest { Err(AcquireError::Never { cost }) } else { Ok(()) }
    }
}

impl<const N: usize> AcquireJoint<N> {
    /// Blocks this thread.
    fn block(&mut self) -> Result<(), AcquireError> {
        let (limiter, costs) = (self.limiter.clone(), self.costs);
        let wait = self.wait().as_mut().map_err(|error| error.clone())?;
        wait.block(&limiter.shared).map_err(|denied| error(denied, costs))
    }

    fn wait(&mut self) -> &mut Result<Wait, AcquireError> {
        let (limiter, costs, deadline, to_settle) = (&self.limiter, self.costs, self.deadline, self.to_settle);
        let wait = |cost| if to_settle { Wait::to_settle(cost) } else { Wait::new(cost, deadline) };
        self.wait.get_or_insert_with(|| limiter.cost(costs).map(wait))
    }

    /// What was granted, to be settled. A later poll fails: it must not acquire again.
    fn granted(&mut self) -> JointGranted<N> {
        let wait = self.wait.replace(Err(AcquireError::Closed));
        let opened = wait.and_then(Result::ok).and_then(|mut wait| wait.opened());
        let cost = several(parts(self.costs).unwrap_or([0; N]));
        JointGranted { open: Open::new(&self.limiter.shared, cost, opened), costs: self.costs }
    }
}

impl<const N: usize> Future for AcquireJoint<N> {
    type Output = Result<(), AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (costs, shared) = (self.costs, Arc::clone(&self.limiter.shared));
        match self.wait() {
            Ok(wait) => wait.poll(&shared, context).map_err(|denied| error(denied, costs)),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

impl<const N: usize> JointGranted<N> {
    /// The costs that were acquired.
    #[must_use]
    pub fn costs(&self) -> [Units; N] {
        self.costs
    }

    /// Settles it on each limit: see [`Granted::settle`](super::Granted::settle).
    ///
    /// # Errors
    /// If one of `real` is not a valid amount; nothing is settled then.
    pub fn settle<C: Into<Units>>(mut self, real: [C; N]) -> Result<(), UnitsError> {
        self.open.settle(&several(parts(real.map(Into::into))?));
        Ok(())
    }
}

impl<const N: usize> Future for AcquireJointToSettle<N> {
    type Output = Result<JointGranted<N>, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(context);
        polled.map_ok(|()| self.0.granted())
    }
}

impl<const N: usize> Drop for AcquireJoint<N> {
    fn drop(&mut self) {
        if let Some(Ok(wait)) = &mut self.wait {
            wait.leave(&self.limiter.shared);
        }
    }
}

impl<const N: usize> fmt::Debug for JointLimiter<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (available, waiters) = (self.available(), self.waiters());
        f.debug_struct("JointLimiter").field("available", &available).field("waiters", &waiters).finish()
    }
}

impl<const N: usize> fmt::Debug for JointGranted<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointGranted").field("costs", &self.costs).finish_non_exhaustive()
    }
}

impl<const N: usize> fmt::Debug for AcquireJointToSettle<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireJointToSettle").field("costs", &self.0.costs).finish_non_exhaustive()
    }
}

impl<const N: usize> fmt::Debug for AcquireJoint<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireJoint").field("costs", &self.costs).finish_non_exhaustive()
    }
}

fn several<const N: usize>(parts: [u64; N]) -> Cost {
    Cost::Several(parts.into())
}

fn parts<const N: usize>(costs: [Units; N]) -> Result<[u64; N], UnitsError> {
    let mut parts = [0; N];
    for (part, cost) in parts.iter_mut().zip(costs) {
        *part = cost.millionths()?;
    }
    Ok(parts)
}

fn error<const N: usize>(denied: Denied, costs: [Units; N]) -> AcquireError {
    let first = costs.first().copied().unwrap_or(Units::ZERO);
    AcquireError::new(denied, first, || first)
}
