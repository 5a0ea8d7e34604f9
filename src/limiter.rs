//! The limiter: a queue of waiters before any number of limits.
//!
//! [`Limiter`] is what most callers want. It is a token bucket if calls come in bursts and the rate counts, a leaky
//! bucket with a queue if callers wait in turn, and it keeps several limits and windows at once. Futures and threads wait
//! in the same queue, first in, first out.
//!
//! A waiter is woken once, when granted. The queue has its own timer, so no waiter depends on the task before it being
//! polled, nor on a runtime being driven. While a future waits for a time, and for a second after that, one thread keeps
//! time for all limiters of the process; no task does. So futures wait on any executor. On tokio they keep to the runtime's
//! clock where a test has paused it. A [`Timer`] replaces both; trying and blocking need nothing.

use crate::rate::Rate;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

mod acquire;
mod builder;
mod error;
mod fast_path;
mod joint;
mod list;
mod panics;
pub(crate) mod queue;
mod reservation;
pub(crate) mod shared;
pub(crate) mod time;
mod timer;
mod units;

#[cfg(all(test, throttle_loom))]
mod loom_tests;

pub use acquire::{Acquire, AcquireFrom, AcquireOwned};
pub(crate) use builder::rate;
pub use builder::{BuildError, Builder, Refill};
pub use error::AcquireError;
pub use joint::{AcquireJoint, JointLimiter};
pub use reservation::Reservation;
pub use time::Timer;
pub(crate) use units::PARTS;
pub use units::{Units, UnitsError};

use queue::Denied;
use shared::Shared;
use time::nanos;

/// What happens to a cost that is above the burst, which the bucket never holds at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversize {
    /// It is refused at once.
    #[default]
    Reject,
    /// It waits until enough has been gathered, and holds up those behind it.
    Wait,
}

/// What happens to a new waiter when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It waits for room in the queue, and then in the queue, behind all that came before.
    #[default]
    Wait,
    /// It is refused at once.
    Fail,
}

/// A rate limiter for async and blocking callers. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use throttle::limiter::Limiter;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(5, 2)?; // 5 a second, 2 at once
/// let start = tokio::time::Instant::now();
/// for _ in 0..12 {
///     limiter.acquire(1).await?;
/// }
/// assert_eq!(start.elapsed(), Duration::from_secs(2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
    /// Of the limit whose rate can be changed, if there is one.
    place: Option<usize>,
}

/// How much room there is for an amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityInfo {
    /// Whether the amount is there now.
    pub has_capacity: bool,
    /// How many units more it would take; less than nothing if there is room to spare.
    pub needed: f64,
}

impl Limiter {
    /// A token bucket: `rate` units a second, and at most `capacity` at once, which are there at the start.
    ///
    /// # Errors
    /// A rate or capacity that is not above nothing, or no finite number.
    pub fn new(rate: impl Into<Units>, capacity: impl Into<Units>) -> Result<Self, BuildError> {
        Limiter::builder().rate(rate, Duration::from_secs(1)).burst(capacity).build()
    }

    /// A leaky bucket with a queue: `capacity` units in any `seconds` on the long run, and `capacity` at once at the
    /// start. The builder's defaults are 10 in 1 second.
    ///
    /// # Errors
    /// A capacity below 1, or seconds that are not above nothing.
    pub fn leaky(capacity: impl Into<Units>, seconds: impl Into<Units>) -> Result<Self, BuildError> {
        let capacity = capacity.into();
        if capacity.parts()? < PARTS.get() {
            return Err(BuildError::CapacityBelowOne);
        }
        let nanos = seconds.into().parts()?.saturating_mul(1000);
        Limiter::builder().rate(capacity, Duration::from_nanos(nanos)).build()
    }

    /// Everything that can be chosen.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Waits until `units` are there and all before have been served, and takes them.
    ///
    /// Nothing is taken before the future is polled, nor when it is dropped unfinished; those behind move up then.
    ///
    /// # Errors
    /// The future's: [`AcquireError`].
    pub fn acquire(&self, units: impl Into<Units>) -> Acquire<'_> {
        AcquireFrom::new(self, units.into(), None)
    }

    /// As [`acquire`](Self::acquire), for a future that keeps the limiter and so can be spawned, stored or returned: it
    /// is `'static` and needs no box.
    ///
    /// ```
    /// use throttle::limiter::{AcquireOwned, Limiter};
    ///
    /// struct Service {
    ///     limiter: Limiter,
    ///     /// The acquire of the call that is being prepared.
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
    /// The future's: [`AcquireError`].
    pub fn acquire_owned(&self, units: impl Into<Units>) -> AcquireOwned {
        AcquireFrom::new(self.clone(), units.into(), None)
    }

    /// As [`acquire`](Self::acquire), within `limit` from now, the time in the queue included. What cannot be met, if
    /// all before it stay, is refused at once.
    ///
    /// # Errors
    /// The future's: [`AcquireError::TooLong`] says at once how long it would take, [`AcquireError::TimedOut`] after the
    /// time. Nothing was taken then.
    pub fn acquire_timeout(&self, units: impl Into<Units>, limit: Duration) -> Acquire<'_> {
        let deadline = self.shared.time.now().saturating_add(nanos(limit));
        AcquireFrom::new(self, units.into(), Some(deadline))
    }

    /// As [`acquire_timeout`](Self::acquire_timeout), with the moment by which it must be.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_by(&self, units: impl Into<Units>, deadline: tokio::time::Instant) -> Acquire<'_> {
        self.acquire_timeout(units, deadline.saturating_duration_since(tokio::time::Instant::now()))
    }

    /// Takes `units` now, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] says how long it would take, a wait above 200 ms perhaps some milliseconds too long, but never too
    /// short; [`AcquireError::OthersWait`], unless the limiter is unfair.
    #[inline]
    pub fn try_acquire(&self, units: impl Into<Units>) -> Result<(), AcquireError> {
        let units = units.into();
        self.shared.try_take(units.parts()?).map_err(|denied| self.error(denied, units))
    }

    /// [`acquire`](Self::acquire) for a thread, which sleeps. Under a paused clock of tokio, see the guide of the
    /// [crate].
    ///
    /// # Errors
    /// As there, but for [`AcquireError::NoTimer`].
    pub fn blocking_acquire(&self, units: impl Into<Units>) -> Result<(), AcquireError> {
        self.acquire(units).block()
    }

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread, which sleeps.
    ///
    /// # Errors
    /// As there, but for [`AcquireError::NoTimer`].
    pub fn blocking_acquire_timeout(&self, units: impl Into<Units>, limit: Duration) -> Result<(), AcquireError> {
        self.acquire_timeout(units, limit).block()
    }

    /// Takes `units` at the time that is theirs, behind the whole queue, and tells it. The holder of the reservation
    /// waits for that time by itself. The time is a promise: it is not moved any more, neither earlier nor later.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is taken then.
    pub fn reserve(&self, units: impl Into<Units>) -> Result<Reservation, AcquireError> {
        self.reserve_within(units, Duration::MAX)
    }

    /// As [`reserve`](Self::reserve), if that means waiting no longer than `limit`.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] says how long it would take; nothing is taken then.
    pub fn reserve_within(&self, units: impl Into<Units>, limit: Duration) -> Result<Reservation, AcquireError> {
        let units = units.into();
        let cost = units.parts()?;
        let reserved = self.shared.with(|queue, now, effects| queue.reserve(now, cost, nanos(limit), effects));
        match reserved {
            Ok(reserved) => Ok(Reservation::new(Arc::clone(&self.shared), units, &reserved)),
            Err(denied) => Err(self.error(denied, units)),
        }
    }

    /// Whole units that could be taken now; nothing while others wait or a time told lies ahead.
    #[must_use]
    pub fn available(&self) -> u64 {
        let level = self.shared.with(|queue, now, effects| match queue.level(now, effects) {
            _ if queue.waiters() > 0 => 0,
            level => level,
        });
        level / PARTS
    }

    /// Whether `units` are there, and how many are missing or to spare, even if others wait.
    ///
    /// # Errors
    /// If `units` is no amount.
    pub fn capacity_info(&self, units: impl Into<Units>) -> Result<CapacityInfo, UnitsError> {
        let cost = units.into().parts()?;
        let level = self.shared.with(queue::Queue::level);
        Ok(CapacityInfo { has_capacity: level >= cost, needed: difference(cost, level) })
    }

    /// How long `units` would take now, if all before it stay. Exact; with windows, several limits or times told in
    /// the queue, this goes through the whole queue, as it does for [`reserve`](Self::reserve) and
    /// [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Errors
    /// If they would never be granted, or `units` is no amount.
    pub fn time_until(&self, units: impl Into<Units>) -> Result<Duration, AcquireError> {
        let units = units.into();
        let cost = units.parts()?;
        let wait = self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.check(cost)?;
            queue.estimate(cost).map(|at| at.saturating_sub(now)).ok_or(Denied::Never)
        });
        wait.map(Duration::from_nanos).map_err(|denied| self.error(denied, units))
    }

    /// Goes on at `units` per `period`. What was saved or gathered stays, times told stay, waiters are re-timed.
    ///
    /// A slower rate may let a waiter's new time come close before one that was told behind it. Then this once more goes
    /// out than the burst or a window allows, for a time told is never moved: its holder sleeps by itself. All of it
    /// is charged, and later requests wait until it is paid.
    ///
    /// With several limits this is the one given by [`Builder::rate`], or the fastest bucket of those written; a window
    /// cannot be changed.
    ///
    /// # Errors
    /// A rate that is not above nothing, or too large; [`BuildError::NoBucket`] if there are windows only.
    pub fn set_rate(&self, units: impl Into<Units>, period: Duration) -> Result<(), BuildError> {
        let rate = builder::rate(units.into(), period)?;
        let place = self.place.ok_or(BuildError::NoBucket)?;
        self.set_rate_in_parts(place, rate);
        Ok(())
    }

    fn set_rate_in_parts(&self, place: usize, rate: Rate) {
        self.shared.with(|queue, now, effects| queue.set_rate(now, place, rate, effects));
    }

    /// Holds at most `units` from now on. A larger bucket is not filled by that; a smaller one spills. If that delays
    /// a waiter before a time that was told, the time stays, as for [`set_rate`](Self::set_rate).
    ///
    /// # Errors
    /// Nothing, or no amount; [`BuildError::NoBucket`] if there are windows only.
    pub fn set_burst(&self, units: impl Into<Units>) -> Result<(), BuildError> {
        let burst = NonZeroU64::new(units.into().parts()?).ok_or(BuildError::ZeroBurst)?;
        let place = self.place.ok_or(BuildError::NoBucket)?;
        self.shared.with(|queue, now, effects| queue.set_burst(now, place, burst, effects));
        Ok(())
    }

    /// Settles what was acquired as `estimated` and came out as `actual`. What was used beyond the estimate is owed: those
    /// behind wait until the rate has paid it, and in a window it counts like all else. What was not used is given back, as
    /// far as there is room.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = throttle::limiter::Limiter::new(1000, 1000)?;
    /// tokens.acquire(400).await?;
    /// tokens.reconcile(3000, 400)?; // the answer was longer than expected
    /// assert_eq!(tokens.time_until(1)?, std::time::Duration::from_millis(2001));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If one is no amount.
    pub fn reconcile(&self, actual: impl Into<Units>, estimated: impl Into<Units>) -> Result<(), UnitsError> {
        let (actual, estimated) = (actual.into().parts()?, estimated.into().parts()?);
        self.shared.with(|queue, now, effects| queue.reconcile(now, actual, estimated, effects));
        Ok(())
    }

    /// Nothing is granted for `time` from now, as a server asks that answers with Retry-After. Waiters keep their
    /// places. At the end of the pause the buckets are empty and begin to fill; windows go on counting what they counted.
    ///
    /// The longest pause holds: a shorter one does not end it. Reservations keep the times they were told.
    pub fn pause_for(&self, time: Duration) {
        self.shared.with(|queue, now, effects| queue.pause_until(now, now.saturating_add(nanos(time)), effects));
    }

    /// As [`pause_for`](Self::pause_for), until `time`.
    pub fn pause_until(&self, time: tokio::time::Instant) {
        self.pause_for(time.saturating_duration_since(tokio::time::Instant::now()));
    }

    /// All in the queue are still served; every later request is refused with [`AcquireError::Closed`].
    pub fn close(&self) {
        self.shared.with(|queue, _, _| queue.close());
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.with(|queue, _, _| queue.is_closed())
    }

    /// How many futures and threads wait. Reservations do not count, neither here nor for
    /// [`max_waiters`](Builder::max_waiters): the holder of one waits elsewhere, for a time that is certain.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.shared.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.waiters()
        })
    }

    /// The latest time granted, since the limiter was made: exact to the nanosecond, though the wake-up may be later.
    #[must_use]
    pub fn last_grant(&self) -> Duration {
        Duration::from_nanos(self.shared.with(|queue, _, _| queue.limits.latest()))
    }

    fn from_shared(shared: Arc<Shared>, place: Option<usize>) -> Self {
        Limiter { shared, place }
    }

    /// Apart from its callers, in which the error would be put together elsewhere and then copied.
    #[inline(never)]
    fn error(&self, denied: Denied, cost: Units) -> AcquireError {
        let burst = || Units::from_parts(self.shared.with(|queue, _, _| queue.limits.burst()));
        AcquireError::new(denied, cost, burst)
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

/// In units, exact as far as a float is.
#[allow(clippy::cast_precision_loss, reason = "shown, not calculated with")]
fn difference(a: u64, b: u64) -> f64 {
    let parts = i128::from(a) - i128::from(b);
    parts as f64 / PARTS.get() as f64
}
