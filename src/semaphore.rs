//! Rate and concurrency in one: a permit is a place that is held, and starts no faster than a rate.

use crate::clock::Nanos;
use crate::limiter::queue::{Denied, Effects, Places, Queue, Rules};
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::Time;
use crate::limiter::{AcquireError, BuildError, Oversize, PARTS, Timer, Units};
use crate::limits::Limits;
use crate::limits::bucket::Bucket;
use crate::rate::{ParseError, Rate};
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// At most `capacity` places held at once, and after a burst no more than `rate` a second given out.
///
/// Each place needs a token, too. Tokens come at the rate. There are as many at the start, and never more, as there are
/// places, or as the [`burst`](Builder::burst) says. Clones share one state.
///
/// ```
/// use throttle::semaphore::Semaphore;
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
    /// As many tokens are saved up as there are places.
    burst_is_capacity: bool,
}

/// Everything about a [`Semaphore`] that can be chosen.
///
/// ```
/// use std::time::Duration;
/// use throttle::semaphore::Semaphore;
///
/// // 16 at a time, 90 a minute, and no two at the same time.
/// let workers = Semaphore::builder(16, 90, Duration::from_secs(60)).burst(1).build()?;
/// let permit = workers.try_acquire()?;
/// assert!(workers.try_acquire().is_err(), "15 places are free, but no token is there");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is made before build"]
pub struct Builder {
    capacity: usize,
    rate: (Units, Duration),
    burst: Option<usize>,
    timer: Option<Arc<dyn Timer>>,
}

/// Places that are held until this is dropped. It may be moved anywhere.
#[must_use = "the places are free again as soon as this is dropped"]
pub struct Permit {
    semaphore: Semaphore,
    /// 0 once forgotten.
    places: u64,
}

/// Waits for a permit, see [`Semaphore::acquire`]. Dropped unfinished, it holds nothing.
///
/// It gives one permit: polled again after that, it fails with [`AcquireError::Finished`]; after an error, with the same.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquirePermit {
    semaphore: Semaphore,
    places: u64,
    wait: Wait,
    /// The place that was granted is a permit's to free.
    given: bool,
}

impl Semaphore {
    /// `capacity` places (0 blocks until it is raised), and `rate` permits a second after a burst.
    ///
    /// # Errors
    /// A rate that is not above nothing.
    pub fn new(capacity: usize, rate: impl Into<Units>) -> Result<Self, BuildError> {
        Semaphore::builder(capacity, rate, Duration::from_secs(1)).build()
    }

    /// As [`new`](Self::new), with the clock and alarm to use instead of tokio's.
    ///
    /// # Errors
    /// As there.
    pub fn with_timer(capacity: usize, rate: impl Into<Units>, timer: Arc<dyn Timer>) -> Result<Self, BuildError> {
        Semaphore::builder(capacity, rate, Duration::from_secs(1)).timer(timer).build()
    }

    /// Everything that can be chosen. `starts` places are given out in every `period`.
    pub fn builder(capacity: usize, starts: impl Into<Units>, period: Duration) -> Builder {
        Builder { capacity, rate: (starts.into(), period), burst: None, timer: None }
    }

    /// Waits for a place and a token, behind all that came before.
    ///
    /// # Errors
    /// The future's: [`AcquireError::Closed`]; [`AcquireError::NoTimer`] if it has to wait for a token and the thread
    /// that would wake it cannot be started.
    pub fn acquire(&self) -> AcquirePermit {
        self.acquire_many(1)
    }

    /// As [`acquire`](Self::acquire), for so many places and as many tokens, all at once; meanwhile it holds none, and those
    /// behind wait. More places than there are it gets when the capacity is raised; more tokens than the burst it gathers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let connections = throttle::semaphore::Semaphore::new(8, 100)?;
    /// let permit = connections.acquire_many(3).await?;
    /// assert_eq!((permit.places(), connections.available()), (3, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future's, as there.
    pub fn acquire_many(&self, places: usize) -> AcquirePermit {
        AcquirePermit::new(self, places, None)
    }

    /// As [`acquire`](Self::acquire), within `limit` from now.
    ///
    /// # Errors
    /// The future's, also [`AcquireError::TooLong`] at once and [`AcquireError::TimedOut`] later.
    pub fn acquire_timeout(&self, limit: Duration) -> AcquirePermit {
        let deadline = self.shared.time.now().saturating_add(crate::limiter::time::nanos(limit));
        AcquirePermit::new(self, 1, Some(deadline))
    }

    /// A permit now, or none.
    ///
    /// # Errors
    /// [`AcquireError::OthersWait`], [`AcquireError::NoPlace`], or [`AcquireError::TooLong`] with the time until the next
    /// token.
    pub fn try_acquire(&self) -> Result<Permit, AcquireError> {
        self.try_acquire_many(1)
    }

    /// So many places now, or none.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_many(&self, places: usize) -> Result<Permit, AcquireError> {
        let places = count(places);
        let mut permit = Err(AcquireError::NoPlace);
        // Made under the lock: afterwards wakers run, and should one panic, the permit frees its places.
        self.shared.with(|queue, now, effects| match queue.try_take(now, places, effects) {
            Ok(()) => permit = Ok(self.permit(places)),
            Err(Denied::TooLong { .. }) if queue.places().is_some_and(|own| own.free() < places) => {}
            Err(denied) => permit = Err(error(denied, places)),
        });
        permit
    }

    /// [`acquire`](Self::acquire) for a thread, which sleeps. Under a paused clock of tokio, see the guide of the
    /// [crate].
    ///
    /// # Errors
    /// [`AcquireError::Closed`].
    pub fn blocking_acquire(&self) -> Result<Permit, AcquireError> {
        self.acquire().block()
    }

    /// [`acquire_many`](Self::acquire_many) for a thread, which sleeps.
    ///
    /// # Errors
    /// [`AcquireError::Closed`].
    pub fn blocking_acquire_many(&self, places: usize) -> Result<Permit, AcquireError> {
        self.acquire_many(places).block()
    }

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread, which sleeps.
    ///
    /// # Errors
    /// As there, but for [`AcquireError::NoTimer`].
    pub fn blocking_acquire_timeout(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_timeout(limit).block()
    }

    /// Free places less those that are waited for.
    #[must_use]
    pub fn available(&self) -> usize {
        let free = |queue: &Queue| queue.places().map_or(0, |places| places.free());
        let available = self.look(|queue| free(queue).saturating_sub(queue.queued()));
        usize::try_from(available).unwrap_or(usize::MAX)
    }

    /// Whether a new request has to wait for a place, or behind others.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.available() == 0
    }

    /// How many wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.look(super::limiter::queue::Queue::waiters)
    }

    /// So many places from now on. Permits that are held stay held; tokens for more places come at the rate. A
    /// [`burst`](Builder::burst) that was chosen stays.
    pub fn set_capacity(&self, capacity: usize) {
        self.shared.with(|queue, now, effects| {
            self.follow_capacity(queue, now, count(capacity), effects);
            queue.set_places(now, count(capacity), effects);
        });
    }

    /// As many tokens are saved up as there are places.
    fn follow_capacity(&self, queue: &mut Queue, now: Nanos, capacity: u64, effects: &mut Effects) {
        if self.burst_is_capacity {
            queue.set_burst(now, 0, burst(capacity), effects);
        }
    }

    fn permit(&self, places: u64) -> Permit {
        Permit { semaphore: self.clone(), places }
    }

    /// All waiters are still served; every later request is refused with [`AcquireError::Closed`].
    pub fn close(&self) {
        self.shared.with(|queue, _, _| queue.close());
    }

    fn look<R>(&self, look: impl FnOnce(&Queue) -> R) -> R {
        self.shared.with(|queue, now, effects: &mut Effects| {
            queue.advance(now, effects);
            look(queue)
        })
    }
}

impl Builder {
    /// Most places given out at the same time, however many are free; as many as there are, if this is not given.
    pub fn burst(mut self, starts: usize) -> Self {
        self.burst = Some(starts);
        self
    }

    /// The clock and alarm to use instead of tokio's.
    pub fn timer(mut self, timer: Arc<dyn Timer>) -> Self {
        self.timer = Some(timer);
        self
    }

    /// Makes the semaphore. Its time begins now.
    ///
    /// # Errors
    /// A rate that is not above nothing, or a burst of nothing.
    pub fn build(self) -> Result<Semaphore, BuildError> {
        let rate = rate(self.rate.0, self.rate.1)?;
        let capacity = count(self.capacity);
        let most = match self.burst {
            Some(starts) => NonZeroU64::new(count(starts)).ok_or(BuildError::ZeroBurst)?,
            None => burst(capacity),
        };
        let rules = Rules { fair: true, oversize: Oversize::Wait, most_waiters: None };
        let shared = Shared::new(self.timer.map_or_else(Time::tokio, Time::Custom), |now| {
            let limits = Limits::none(now).with_bucket(Bucket::new(rate, most, most.get(), now));
            Ok::<_, BuildError>(Queue::new(limits, rules, Some(Places { capacity, held: 0 })))
        })?;
        Ok(Semaphore { shared, burst_is_capacity: self.burst.is_none() })
    }
}

impl Permit {
    /// How many places it holds.
    #[must_use]
    pub fn places(&self) -> usize {
        usize::try_from(self.places).unwrap_or(usize::MAX)
    }

    /// Keeps the places from ever being free again: the capacity is less by them from now on, and so are the tokens that
    /// are saved up, unless a [`burst`](Builder::burst) was chosen.
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
            self.semaphore.shared.with(|queue, now, effects| queue.release(now, self.places, effects));
        }
    }
}

impl AcquirePermit {
    fn new(semaphore: &Semaphore, places: usize, deadline: Option<Nanos>) -> Self {
        let places = count(places);
        AcquirePermit { semaphore: semaphore.clone(), places, wait: Wait::new(places, deadline), given: false }
    }

    /// Waits on this thread.
    fn block(mut self) -> Result<Permit, AcquireError> {
        let waited = self.wait.block(&self.semaphore.shared);
        self.give(waited)
    }

    fn give(&mut self, waited: Result<(), Denied>) -> Result<Permit, AcquireError> {
        waited.map_err(|denied| error(denied, self.places))?;
        if std::mem::replace(&mut self.given, true) {
            return Err(AcquireError::Finished);
        }
        Ok(self.semaphore.permit(self.places))
    }
}

impl Future for AcquirePermit {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.wait.poll(&this.semaphore.shared, context).map(|waited| this.give(waited))
    }
}

impl Drop for AcquirePermit {
    fn drop(&mut self) {
        self.wait.leave(&self.semaphore.shared);
        // A waker of another's that panicked, when this one had been granted.
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

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Builder { capacity, rate, burst, timer: _ } = self;
        let builder = &mut f.debug_struct("Builder");
        builder.field("capacity", capacity).field("rate", rate).field("burst", burst).finish_non_exhaustive()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places).finish_non_exhaustive()
    }
}

impl fmt::Debug for AcquirePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquirePermit").field("places", &self.places).finish_non_exhaustive()
    }
}

fn error(denied: Denied, places: u64) -> AcquireError {
    AcquireError::new(denied, Units::from(places), || Units::from(places))
}

/// A rate of places; a limiter's is one of millionths.
fn rate(starts: Units, period: Duration) -> Result<Rate, BuildError> {
    let parts = crate::limiter::rate(starts, period)?;
    let whole = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
    let places = Rate::new(whole(parts.units()), PARTS);
    let nanos = whole(places.period()).checked_mul(whole(parts.period()));
    let too_slow = || BuildError::Rate(ParseError::TooSlow(format!("{starts} in {period:?}")));
    Ok(Rate::new(whole(places.units()), nanos.ok_or_else(too_slow)?))
}

/// Tokens that may be saved up: as many as there are places, and one if there are none, for the first request.
fn burst(capacity: u64) -> NonZeroU64 {
    NonZeroU64::new(capacity).unwrap_or(NonZeroU64::MIN)
}

fn count(places: usize) -> u64 {
    u64::try_from(places).unwrap_or(u64::MAX)
}
