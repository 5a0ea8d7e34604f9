//! A semaphore with a rate: limits how many permits are held at once and how fast they are given out.

use crate::clock::{Clock, Nanos};
use crate::limiter::fast_path::Take;
use crate::limiter::queue::{Denied, Effects, Places, Queue};
use crate::limiter::serve::Serve;
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::Time;
use crate::limiter::{AcquireError, Acquiring, BuildError, Oversize, PARTS, Request, Rules, Units};
use crate::limits::bucket::Bucket;
use crate::limits::{Account, Cost, Limits};
use crate::rate::{ParseError, Rate};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// At most `capacity` places are held at once, and after a burst at most `rate` places a second are given out.
///
/// To take a place, a request also takes a token. Tokens come in at the rate. At the start there are as many tokens as
/// places, or as many as the [`burst`](Builder::burst), and there are never more. Clones share one state.
///
/// Futures and threads wait in one queue, first in, first out. A place is free again when its [`Permit`] is dropped;
/// its token is used up.
///
/// ```
/// use throttle_limits::semaphore::Semaphore;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let workers = Semaphore::new(3, 2)?; // 3 at a time, 2 more a second
/// let permit = workers.acquire().await?;
/// assert_eq!(workers.available(), 2);
/// drop(permit); // frees its place
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    shared: Arc<Shared>,
    /// Whether the burst of tokens follows the number of places.
    burst_is_capacity: bool,
}

/// The settings of a [`Semaphore`].
///
/// ```
/// use std::time::Duration;
/// use throttle_limits::semaphore::Semaphore;
///
/// // 16 at a time, 90 a minute, and no two at the same time.
/// let workers = Semaphore::builder(16, 90, Duration::from_secs(60)).burst(1).build()?;
/// let permit = workers.try_acquire()?;
/// assert!(workers.try_acquire().is_err(), "15 places are free, but there is no token");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build is called"]
pub struct Builder {
    capacity: usize,
    rate: (Units, Duration),
    burst: Option<usize>,
    time: Option<Time>,
}

/// Places that are held until this is dropped. It may be sent to other tasks and threads. Dropping it never waits.
#[must_use = "the places are free again as soon as this is dropped"]
pub struct Permit {
    semaphore: Semaphore,
    /// 0 after [`forget`](Self::forget).
    places: u64,
}

/// Waits for a permit, see [`Semaphore::acquire`]. If the future is polled again after it returned the permit, it fails
/// with [`AcquireError::Finished`].
pub type AcquirePermit = Acquiring<OfSemaphore>;

/// A request for places of a semaphore.
pub struct OfSemaphore {
    semaphore: Semaphore,
    places: u64,
    wait: Wait,
    /// Whether the permit was returned. Then the permit frees the places.
    given: bool,
}

impl Semaphore {
    /// A semaphore with `capacity` places, which gives out `rate` places a second after a burst. If the capacity is 0,
    /// all requests wait until it is raised.
    ///
    /// # Errors
    /// A rate that is 0 or is not a valid amount.
    pub fn new(capacity: usize, rate: impl Into<Units>) -> Result<Self, BuildError> {
        Semaphore::builder(capacity, rate, Duration::from_secs(1)).build()
    }

    /// A builder, for all settings. `starts` places are given out in every `period`. If these values are not valid,
    /// [`build`](Builder::build) returns an error.
    pub fn builder(capacity: usize, starts: impl Into<Units>, period: Duration) -> Builder {
        Builder { capacity, rate: (starts.into(), period), burst: None, time: None }
    }

    /// Waits for a place and a token, behind all earlier waiters. The future owns a clone of the semaphore, so it can
    /// be spawned. Nothing is taken before it is polled. If it is dropped unfinished, the waiters behind it move up.
    ///
    /// # Errors
    /// The future returns them: [`AcquireError::Closed`]; [`AcquireError::NoTimer`] if it has to wait for a token and
    /// the thread that wakes it cannot be started.
    pub fn acquire(&self) -> AcquirePermit {
        self.acquire_many(1)
    }

    /// Like [`acquire`](Self::acquire), for several places and as many tokens, all at once. While the future waits it
    /// holds no places and no tokens, and the waiters behind it wait as well. If it needs more places than the
    /// capacity, it waits until the capacity is raised. If it needs more tokens than the burst, it waits until they
    /// have come in.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let connections = throttle_limits::semaphore::Semaphore::new(8, 100)?;
    /// let permit = connections.acquire_many(3).await?;
    /// assert_eq!((permit.places(), connections.available()), (3, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_many(&self, places: usize) -> AcquirePermit {
        let places = places as u64;
        Acquiring(OfSemaphore { semaphore: self.clone(), places, wait: Wait::new(Cost::One(places)), given: false })
    }

    /// Takes a place now, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::OthersWait`], [`AcquireError::NoPlace`], [`AcquireError::Closed`], or [`AcquireError::TooLong`]
    /// with the time until there is a token.
    pub fn try_acquire(&self) -> Result<Permit, AcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes several places now, and as many tokens, or nothing.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire); [`AcquireError::Never`] if it would take more than 584 years until
    /// there are enough tokens.
    pub fn try_acquire_many(&self, places: usize) -> Result<Permit, AcquireError> {
        let places = places as u64;
        if self.shared.take_place(places) == Take::Granted {
            return Ok(self.permit(places));
        }
        // The permit is made under the lock. The timer is set after that; if it panics, the permit frees its places.
        let permit = self
            .shared
            .with(|queue, now, effects| queue.try_take(now, &Cost::One(places), effects).map(|()| self.permit(places)));
        permit.map_err(|denied| error(denied, places))
    }

    /// The free places, minus the places that waiters need; 0 if waiters need more. Tokens do not matter here.
    #[must_use]
    pub fn available(&self) -> usize {
        let free = |queue: &Queue| queue.places().map_or(0, |places| places.free());
        let available = self.look(|queue| free(queue).saturating_sub(queue.queued()));
        usize::try_from(available).unwrap_or(usize::MAX)
    }

    /// Whether no place is [available](Self::available). If a place is available, a new request may still have to wait
    /// for a token, or behind requests that wait for a token: see [`time_until`](Self::time_until).
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.available() == 0
    }

    /// How long until a new request for a place gets its token, if no waiter leaves.
    ///
    /// # Errors
    /// [`AcquireError::NoPlace`] if it has to wait for a place; [`AcquireError::Closed`].
    pub fn time_until(&self) -> Result<Duration, AcquireError> {
        if self.is_locked() && !self.is_closed() {
            return Err(AcquireError::NoPlace);
        }
        self.shared.time_until(&Cost::One(1)).map_err(|denied| error(denied, 1))
    }

    /// The number of futures and threads that wait. A waiter for several places counts once.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.look(Queue::waiters)
    }

    /// Changes the number of places from now on. Permits that are held stay valid. If they hold more places than there
    /// are now, no place is given out until enough permits are dropped. Tokens for additional places come in at the
    /// rate. A [`burst`](Builder::burst) that was set stays.
    pub fn set_capacity(&self, capacity: usize) {
        self.shared.with(|queue, now, effects| {
            self.follow_capacity(queue, now, capacity as u64, effects);
            queue.set_places(now, capacity as u64, effects);
        });
    }

    /// Changes the rate to `starts` in every `period` from now on. Saved tokens stay, and waiters get new times.
    ///
    /// # Errors
    /// A rate or a period that is 0 or is not valid, or a rate too slow for its numbers to fit 64 bits. Nothing is
    /// changed then.
    pub fn set_rate(&self, starts: impl Into<Units>, period: Duration) -> Result<(), BuildError> {
        let rate = rate(starts.into(), period)?;
        self.shared.with(|queue, now, effects| queue.set_rate(now, rate, effects)).ok_or(BuildError::NoBucket)
    }

    /// Gives out no place for `time` from now. Waiters keep their places in the queue, and permits that are held stay
    /// valid. At the end of the pause there are no tokens, and new ones begin to come in.
    ///
    /// A later, shorter pause does not end a longer pause.
    pub fn pause_for(&self, time: Duration) {
        self.shared.pause_until(self.shared.time.after(time));
    }

    /// Sets the burst of tokens to `capacity`, if it follows the number of places.
    fn follow_capacity(&self, queue: &mut Queue, now: Nanos, capacity: u64, effects: &mut Effects) {
        if self.burst_is_capacity {
            queue.set_burst(now, burst(capacity), effects);
        }
    }

    fn permit(&self, places: u64) -> Permit {
        Permit { semaphore: self.clone(), places }
    }

    /// Refuses every later request with [`AcquireError::Closed`]. All waiters are still served, and permits stay valid.
    /// This cannot be undone.
    pub fn close(&self) {
        self.shared.with(|queue, _, _| queue.close());
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.look(Queue::is_closed)
    }

    fn look<R>(&self, look: impl FnOnce(&Queue) -> R) -> R {
        self.shared.with(|queue, now, effects: &mut Effects| {
            queue.advance(now, effects);
            look(queue)
        })
    }
}

impl Builder {
    /// The most places given out at the same time, even if more are free. The default is the capacity.
    pub fn burst(mut self, starts: usize) -> Self {
        self.burst = Some(starts);
        self
    }

    /// The clock to use instead of tokio's. It wakes the futures, and blocked threads sleep on it.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.time = Some(Time::Custom(clock));
        self
    }

    /// Builds the semaphore. Its time starts now.
    ///
    /// # Errors
    /// As for [`Semaphore::set_rate`]; a burst of 0.
    pub fn build(self) -> Result<Semaphore, BuildError> {
        let rate = rate(self.rate.0, self.rate.1)?;
        let capacity = self.capacity as u64;
        let most = match self.burst {
            Some(starts) => NonZeroU64::new(starts as u64).ok_or(BuildError::ZeroBurst)?,
            None => burst(capacity),
        };
        let rules = Rules { oversize: Oversize::Wait, place: Some(0), ..Rules::default() };
        let time = self.time.unwrap_or_else(Time::tokio);
        let now = time.now();
        let limits = Limits::none().with_bucket(Bucket::new(rate, most, most.get(), now));
        let shared = Shared::new(time, Queue::new(Account::of(limits, now), rules, Some(Places { capacity, held: 0 })));
        Ok(Semaphore { shared, burst_is_capacity: self.burst.is_none() })
    }
}

impl Permit {
    /// The number of places that the permit holds.
    #[must_use]
    pub fn places(&self) -> usize {
        usize::try_from(self.places).unwrap_or(usize::MAX)
    }

    /// Drops the permit without freeing its places. From now on the capacity is lower by these places. So is the
    /// largest number of tokens, unless a [`burst`](Builder::burst) was set.
    pub fn forget(mut self) {
        let places = std::mem::take(&mut self.places);
        self.semaphore.shared.with(|queue, now, effects| {
            queue.forget_places(places);
            let capacity = queue.places().map_or(0, |places| places.capacity);
            self.semaphore.follow_capacity(queue, now, capacity, effects);
        });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.places > 0 {
            self.semaphore.shared.release(self.places);
        }
    }
}

impl OfSemaphore {
    fn give(&mut self, waited: Result<(), Denied>) -> Result<Permit, AcquireError> {
        waited.map_err(|denied| error(denied, self.places))?;
        if std::mem::replace(&mut self.given, true) {
            return Err(AcquireError::Finished);
        }
        Ok(self.semaphore.permit(self.places))
    }
}

impl Request for OfSemaphore {
    type Grant = Permit;

    fn end_after(&mut self, limit: Duration) {
        self.wait.set_deadline(Some(self.semaphore.shared.time.after(limit)));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        self.wait.poll(&self.semaphore.shared, context).map(|waited| self.give(waited))
    }

    fn block(&mut self) -> Result<Permit, AcquireError> {
        let waited = self.wait.block(&self.semaphore.shared);
        self.give(waited)
    }
}

impl Drop for OfSemaphore {
    fn drop(&mut self) {
        self.wait.leave(&self.semaphore.shared);
        // The request was granted, but the timer panicked before the permit was returned.
        if self.wait.is_granted() && !self.given {
            drop(self.semaphore.permit(self.places));
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (available, waiters) = (self.available(), self.waiters());
        f.debug_struct("Semaphore").field("available", &available).field("waiters", &waiters).finish()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places).finish_non_exhaustive()
    }
}

impl fmt::Debug for OfSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquirePermit").field("places", &self.places).finish_non_exhaustive()
    }
}

fn error(denied: Denied, places: u64) -> AcquireError {
    AcquireError::new(denied, &Cost::One(places.saturating_mul(PARTS.get())))
}

/// The rate in places. The limiter's rate is in millionths.
fn rate(starts: Units, period: Duration) -> Result<Rate, BuildError> {
    let parts = crate::limiter::rate(starts, period)?;
    let whole = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
    let places = Rate::new(whole(parts.units()), PARTS);
    let nanos = whole(places.period()).checked_mul(whole(parts.period()));
    let too_slow = || BuildError::Rate(ParseError::TooSlow(format!("{starts} in {period:?}")));
    Ok(Rate::new(whole(places.units()), nanos.ok_or_else(too_slow)?))
}

/// The burst of tokens for `capacity` places. It is 1 for no places, so that there is a token for the first request.
fn burst(capacity: u64) -> NonZeroU64 {
    NonZeroU64::new(capacity).unwrap_or(NonZeroU64::MIN)
}
