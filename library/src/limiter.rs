//! The limiter: one queue of waiters in front of any number of limits.
//!
//! [`Limiter`] is the type that most callers want. It works as a token bucket for callers that come in bursts, and as a
//! leaky bucket with a queue for callers that wait in turn. It keeps several limits and windows at once. Futures and
//! threads wait in the same queue, first in, first out.
//!
//! A waiter is woken once, when it is granted. The queue has its own timer, so no waiter depends on the polling of
//! another task or on a running runtime. While a future waits for a time, and for a second after that, one thread wakes
//! the waiters of all limiters of the process. So futures can wait on any executor. If a test has paused tokio's clock,
//! futures follow that clock. A [`Clock`](crate::clock::Clock) replaces the thread and tokio's clock. Trying and
//! blocking need no timer.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

mod acquire;
mod builder;
mod costs;
mod error;
mod events;
pub(crate) mod fast_path;
mod handle;
mod jitter;
mod keyed;
mod panics;
pub(crate) mod queue;
mod reservation;
mod rules;
pub(crate) mod serve;
mod settle;
pub(crate) mod shared;
pub(crate) mod time;
mod timer;
mod units;
mod wait_time;
mod warm_up;
mod watch;

#[cfg(all(test, throttle_loom))]
mod loom_tests;

use acquire::OfLimiter;
pub(crate) use acquire::Request;
pub use acquire::{Acquire, AcquireOwned, Acquiring};
pub(crate) use builder::rate;
pub use builder::{BuildError, Builder, Refill};
pub use costs::{Costs, IntoCosts};
pub use error::AcquireError;
pub use handle::Limiter;
pub use keyed::{AcquireKey, AcquireKeyOwned, AcquireKeyToSettle, Keyed, OfAll};
pub use reservation::Reservation;
pub(crate) use rules::Rules;
pub use rules::{OnFull, Oversize};
pub use settle::{AcquireToSettle, Granted};
pub(crate) use units::PARTS;
pub use units::{Units, UnitsError};
pub use wait_time::WaitTime;

pub use crate::limits::{AsKey, PolicyError};
pub use warm_up::{AcquireWarm, WarmUp};

use fast_path::Take;
use queue::{Effects, Queue};
use serve::Serve;
use shared::Wait;
use time::nanos;

/// Whether an amount is available, see [`Limiter::capacity_info`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CapacityInfo {
    /// Whether the amount is available now.
    pub has_capacity: bool,
    /// The missing units; negative if more than the amount is available.
    pub needed: f64,
}

impl Limiter {
    /// A token bucket: `rate` units a second, at most `capacity` at once. The bucket is full at the start.
    ///
    /// # Errors
    /// A rate or a capacity that is 0 or is not a valid amount.
    pub fn new(rate: impl Into<Units>, capacity: impl Into<Units>) -> Result<Self, BuildError> {
        Limiter::builder().rate(rate, Duration::from_secs(1)).burst(capacity).build()
    }

    /// A leaky bucket with a queue: `capacity` units in every `seconds`, and `capacity` at once at the start.
    ///
    /// # Errors
    /// A capacity below 1, a time of 0, or one of them is not a valid amount.
    pub fn leaky(capacity: impl Into<Units>, seconds: impl Into<Units>) -> Result<Self, BuildError> {
        let capacity = capacity.into();
        if capacity.millionths()? < PARTS.get() {
            return Err(BuildError::CapacityBelowOne);
        }
        let nanos = seconds.into().millionths()?.saturating_mul(1000);
        Limiter::builder().rate(capacity, Duration::from_nanos(nanos)).build()
    }

    /// Joins several limiters into one. A request has a cost on each of them, for example requests and tokens, and
    /// takes all or nothing.
    ///
    /// There is one queue, first in, first out. The first waiter is granted at the earliest time at which every limit
    /// conforms, and is charged on all of them at that time. Until then nothing is taken.
    ///
    /// The rate, burst, limits and [`Oversize`] of each builder apply to its own costs. The queue has the smallest
    /// [`max_waiters`](Builder::max_waiters) of the builders, and the first [`clock`](Builder::clock) given. Each
    /// request gives one cost for each builder.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use throttle_limits::limiter::Limiter;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let minute = Duration::from_secs(60);
    /// let requests = Limiter::builder().rate(60, minute).burst(5);
    /// let tokens = Limiter::builder().rate(200_000, minute);
    /// let model = Limiter::joint([requests, tokens])?;
    ///
    /// let granted = model.acquire_to_settle([1, 4000]).await?; // one request and an estimate of 4000 tokens
    /// assert_eq!([0, 1].map(|kind| model.available_of(kind)), [4, 196_000]);
    /// granted.settle([1, 950])?; // it took 950
    /// assert_eq!([0, 1].map(|kind| model.available_of(kind)), [4, 199_050]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Builder::build`] for each builder; no builder; a builder that is not [fair](Builder::fair).
    pub fn joint(limiters: impl IntoIterator<Item = Builder>) -> Result<Self, BuildError> {
        builder::joint(&limiters.into_iter().collect::<Vec<_>>())
    }

    /// Returns a builder for all settings, with the defaults that it describes.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Waits until all earlier waiters have been served and these costs are available, and takes them. Examples are
    /// `acquire(3)`, or `acquire([1, 4000])` from a [joint](Self::joint) limiter.
    ///
    /// Nothing is taken before the future is polled. A future that is dropped unfinished takes nothing, and the waiters
    /// behind it move up. A cost of 0 is granted at once.
    ///
    /// In a task of tokio a grant without a wait counts against the task's cooperative budget. Once that is used up, such
    /// a grant is made at the first poll too, but the future is ready at its next poll, after other tasks have run.
    ///
    /// # Errors
    /// The future returns them. At its first poll: [`AcquireError::Units`], [`AcquireError::AboveBurst`],
    /// [`AcquireError::Never`], [`AcquireError::Closed`]; [`AcquireError::Full`] if the queue is
    /// [bounded](Builder::max_waiters). At any poll: [`AcquireError::NoTimer`]. Nothing is taken then.
    pub fn acquire(&self, costs: impl IntoCosts) -> Acquire<'_> {
        Acquiring(OfLimiter::new(self, costs.into_costs(), Wait::new))
    }

    /// Like [`acquire`](Self::acquire), but the future owns a clone of the limiter. So it is `'static`: a caller can
    /// spawn it, store it or return it without a box.
    ///
    /// ```
    /// use throttle_limits::limiter::{AcquireOwned, Limiter};
    ///
    /// struct Service {
    ///     limiter: Limiter,
    ///     /// The acquire of the call being prepared.
    ///     next: Option<AcquireOwned>,
    /// }
    ///
    /// impl Service {
    ///     fn prepare(&mut self) -> &mut AcquireOwned {
    ///         self.next.get_or_insert_with(|| self.limiter.acquire_owned(1))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut service = Service { limiter: Limiter::new(5, 2)?, next: None };
    /// service.prepare().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_owned(&self, costs: impl IntoCosts) -> AcquireOwned {
        Acquiring(OfLimiter::new(self.clone(), costs.into_costs(), Wait::new))
    }

    /// Takes these costs now, or nothing. A cost of 0 is always granted, unless the limiter is closed.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] with the necessary wait. While others wait, it is [`AcquireError::OthersWait`]
    /// instead, unless the limiter is [unfair](Builder::fair). [`AcquireError::Units`], [`AcquireError::AboveBurst`],
    /// [`AcquireError::Never`], [`AcquireError::Closed`].
    #[inline]
    pub fn try_acquire(&self, costs: impl IntoCosts) -> Result<(), AcquireError> {
        let cost = costs.into_costs().parts()?;
        match self.shared.try_take(&cost) {
            Take::Granted => Ok(()),
            Take::TooLong(wait) => Err(AcquireError::too_long(&cost, wait)),
            Take::Closed => self.shared.try_in_queue(&cost).or_else(|denied| AcquireError::refuse(denied, &cost)),
        }
    }

    /// Takes these costs at the earliest time behind the whole queue, and returns that time, which never changes. The
    /// caller must wait for it. To give the units back, see [`Reservation::cancel`].
    ///
    /// # Errors
    /// [`AcquireError::Units`], [`AcquireError::AboveBurst`], [`AcquireError::Never`], [`AcquireError::Closed`];
    /// nothing is taken then.
    pub fn reserve(&self, costs: impl IntoCosts) -> Result<Reservation, AcquireError> {
        self.reserve_within(costs, Duration::MAX)
    }

    /// Like [`reserve`](Self::reserve), but only if the wait is at most `limit`.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve), and [`AcquireError::TooLong`] with the necessary wait. Nothing is taken then.
    pub fn reserve_within(&self, costs: impl IntoCosts, limit: Duration) -> Result<Reservation, AcquireError> {
        let cost = costs.into_costs().parts()?;
        let reserved = self.shared.with(|queue, now, effects| queue.reserve(now, &cost, nanos(limit), effects));
        let reserved = reserved.map_err(|denied| AcquireError::new(denied, &cost))?;
        Ok(Reservation::new(Arc::clone(&self.shared), Costs::of_parts(cost), reserved))
    }

    /// The whole units that could be taken now, rounded down. It is 0 while others wait, during a pause, or while a
    /// reservation lies in the future. With several kinds of costs, it is the smallest number of all kinds. A closed
    /// limiter returns the same number as an open one.
    #[must_use]
    pub fn available(&self) -> u64 {
        let least = |queue: &mut Queue, now, effects: &mut Effects| {
            (0..queue.kinds()).map(|kind| queue.available(now, kind, effects)).min()
        };
        self.shared.with(least).unwrap_or(u64::MAX) / PARTS
    }

    /// The whole units of one kind of costs that could be taken now; the first kind is 0. A kind that the limiter does
    /// not count has no limit.
    #[must_use]
    pub fn available_of(&self, kind: usize) -> u64 {
        self.shared.with(|queue, now, effects| queue.available(now, kind, effects)) / PARTS
    }

    /// Whether these costs are available, even if others wait, and how many units are missing or left over. With
    /// several kinds of costs, the kind with the most missing units counts. A debt counts as missing units, see
    /// [`reconcile`](Self::reconcile). During a pause, or if the next in the queue is a reservation, nothing is
    /// available.
    ///
    /// # Errors
    /// [`UnitsError`] if an amount is not valid, or the number of costs is wrong.
    pub fn capacity_info(&self, costs: impl IntoCosts) -> Result<CapacityInfo, UnitsError> {
        let cost = costs.into_costs().parts()?;
        let missing = |queue: &mut Queue, now, effects: &mut Effects| {
            queue.check_count(&cost)?;
            let kinds = 0..queue.kinds();
            let missing = |kind| i128::from(cost.of(kind)).saturating_sub(queue.left(now, kind, effects));
            Ok(kinds.map(missing).max().unwrap_or(0))
        };
        let missing = self.shared.with(missing)?;
        Ok(CapacityInfo { has_capacity: missing <= 0, needed: in_units(missing) })
    }

    /// The time that a request for these costs would wait now, if no waiter leaves. It is exact, to the nanosecond. A
    /// cost of 0 never waits.
    ///
    /// With windows, several limits, or reservations in the queue, a call takes about 0.1 µs for each waiter, as does
    /// [`reserve`](Self::reserve) or a [timeout](Acquiring::timeout).
    ///
    /// # Errors
    /// [`AcquireError::Units`], [`AcquireError::AboveBurst`], [`AcquireError::Never`], [`AcquireError::Closed`].
    pub fn time_until(&self, costs: impl IntoCosts) -> Result<Duration, AcquireError> {
        let cost = costs.into_costs().parts()?;
        self.shared.time_until(&cost).map_err(|denied| AcquireError::new(denied, &cost))
    }

    /// Changes the rate to `units` per `period` from now on. Saved credit stays, reservations keep their times, and
    /// waiters get new times.
    ///
    /// With a slower rate, a waiter may get a new time just before the time of a reservation behind it, because the
    /// reservation keeps its time. Together they may then exceed, once, the burst or the count of a window. Both are
    /// charged in full, and later requests wait until the debt is paid.
    ///
    /// With several limits this changes the limit given by [`Builder::rate`], or else the fastest bucket. With several
    /// kinds of costs, it is a limit of the first kind. A window cannot be changed. With [`Refill::Grid`] a new grid
    /// begins: now, or at the end of a pause.
    ///
    /// # Errors
    /// A rate or a period that is 0 or is not valid; all limits are windows. Nothing is changed then.
    pub fn set_rate(&self, units: impl Into<Units>, period: Duration) -> Result<(), BuildError> {
        let rate = builder::rate(units.into(), period)?;
        self.shared.with(|queue, now, effects| queue.set_rate(now, rate, effects)).ok_or(BuildError::NoBucket)
    }

    /// Changes the size of the bucket to `units` from now on. It changes the same bucket as
    /// [`set_rate`](Self::set_rate). A larger bucket is not filled by this; a smaller bucket loses the excess.
    /// Reservations keep their times, as for `set_rate`. Waiters for more units than the new size are still served.
    ///
    /// # Errors
    /// A burst that is 0 or is not a valid amount; all limits are windows. Nothing is changed then.
    pub fn set_burst(&self, units: impl Into<Units>) -> Result<(), BuildError> {
        let burst = NonZeroU64::new(units.into().millionths()?).ok_or(BuildError::ZeroBurst)?;
        self.shared.with(|queue, now, effects| queue.set_burst(now, burst, effects)).ok_or(BuildError::NoBucket)
    }

    /// Replaces all limits by the rate, burst and limits of `to`, from now on. The other settings of `to` have no
    /// effect. A limit at the same place and of the same kind keeps its credit or its count; any other limit starts in
    /// its initial state. At the end of a pause all buckets are empty. Reservations keep their times, as for
    /// [`set_rate`](Self::set_rate). If an earlier grant is
    /// [settled](Granted::settle) after this, its unused units are given back, less the units gained since.
    ///
    /// A request that already waits for more than the count of a new window is refused with [`AcquireError::Never`].
    ///
    /// ```
    /// use throttle_limits::limiter::Limiter;
    ///
    /// let limiter = Limiter::builder().limit("2/min,window".parse()?).build()?;
    /// limiter.try_acquire(2)?;
    /// limiter.set_limits(&Limiter::builder().limit("5/min,window".parse()?))?;
    /// assert_eq!(limiter.available(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Builder::build`]; also for every [joint](Self::joint) limiter. Nothing is changed then.
    pub fn set_limits(&self, to: &Builder) -> Result<(), BuildError> {
        let place = to.place()?;
        self.shared.with(|queue, now, effects| match queue.kinds() {
            1 => queue.set_limits(now, |at| to.limits(at), place, effects),
            _ => Err(BuildError::Joint),
        })
    }

    /// Settles a cost that was acquired as `estimated` and turned out as `actual`. Units used beyond the estimate
    /// become a debt: later requests wait until the rate has paid it, and windows count them. Unused units are given
    /// back, up to the burst; at the end of a pause the buckets are empty all the same.
    /// [`acquire_to_settle`](Self::acquire_to_settle) is exact, because it also records the units that have overflowed
    /// since the grant.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = throttle_limits::limiter::Limiter::new(1000, 1000)?;
    /// tokens.acquire(400).await?;
    /// tokens.reconcile(3000, 400)?; // the answer was longer than expected
    /// assert_eq!(tokens.time_until(1)?, std::time::Duration::from_millis(2001));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`UnitsError`] if an amount is not valid, or the number of costs is wrong. Nothing is settled then.
    pub fn reconcile(&self, actual: impl IntoCosts, estimated: impl IntoCosts) -> Result<(), UnitsError> {
        let (actual, estimated) = (actual.into_costs().parts()?, estimated.into_costs().parts()?);
        self.shared.with(|queue, now, effects| {
            queue.check_count(&actual)?;
            queue.check_count(&estimated)?;
            queue.reconcile(now, [&actual, &estimated], effects);
            Ok(())
        })
    }

    /// Grants nothing for `time` from now, for example after a server answered with Retry-After. Waiters keep their
    /// places and their deadlines. At the end of the pause the buckets are empty and begin to fill: their saved units
    /// are lost, since the server may have counted them. To keep them, use [`hold_for`](Self::hold_for). Windows keep
    /// their counts. This call does not wait.
    ///
    /// A shorter pause does not end a longer pause that began earlier. Reservations keep their times.
    pub fn pause_for(&self, time: Duration) {
        self.shared.pause_until(self.shared.time.after(time));
    }

    /// Like [`pause_for`](Self::pause_for), but the buckets keep their units and continue to fill, up to the burst.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use throttle_limits::clock::FakeClock;
    /// use throttle_limits::Limiter;
    ///
    /// let clock = FakeClock::default();
    /// let builder = Limiter::builder().rate(1, Duration::from_secs(1)).burst(10).initial(4);
    /// let limiter = builder.clock(Arc::new(clock.clone())).build()?;
    /// limiter.hold_for(Duration::from_secs(3));
    /// assert!(limiter.try_acquire(1).is_err());
    /// clock.advance(Duration::from_secs(3));
    /// assert_eq!(limiter.available(), 7);
    /// # Ok::<(), throttle_limits::limiter::BuildError>(())
    /// ```
    pub fn hold_for(&self, time: Duration) {
        let until = self.shared.time.after(time);
        self.shared.with(|queue, now, effects| queue.hold_until(now, until, effects));
    }

    /// Refuses every later request with [`AcquireError::Closed`], including requests of futures that were not polled
    /// yet. All waiters in the queue are still served, and grants can be settled. A closed limiter stays closed.
    pub fn close(&self) {
        self.shared.with(|queue, _, _| queue.close());
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.with(|queue, _, _| queue.is_closed())
    }

    /// The number of futures and threads that wait. Reservations do not count, neither here nor for
    /// [`max_waiters`](Builder::max_waiters): their holders wait on their own.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.waiters()
        })
    }

    /// For tests. The time of the latest grant since the creation of the limiter, or of its [`Keyed`]. With a
    /// [`clock`](Builder::clock) it is counted from the origin of that clock. For a grant that waited it is exact to
    /// the nanosecond; the wake-up may be later.
    ///
    /// If a bucket is the only limit, the time of a grant that did not wait is not kept. The result is then a time
    /// between that grant and this call. Without any grant it is the creation time of the limiter.
    #[doc(hidden)]
    #[must_use]
    pub fn last_grant(&self) -> Duration {
        Duration::from_nanos(self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.account.latest()
        }))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("available", &self.available())
            .field("waiters", &self.waiters())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// Converts parts to units, as exactly as a float can.
#[allow(clippy::cast_precision_loss, reason = "shown, not calculated with")]
fn in_units(parts: i128) -> f64 {
    parts as f64 / PARTS.get() as f64
}
