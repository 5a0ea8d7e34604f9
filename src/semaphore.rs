//! Rate and concurrency in one: a permit is a place that is held, and starts no faster than a rate.

use crate::clock::{Nanos, SECOND};
use crate::limiter::queue::{Denied, Effects, Places, Queue, Rules};
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::Time;
use crate::limiter::{AcquireError, BuildError, Oversize, PARTS, Timer, Units};
use crate::limits::Limits;
use crate::limits::bucket::Bucket;
use crate::rate::Rate;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// At most `capacity` permits held at once, and after a burst of that many no more than `rate` a second given out.
///
/// Each permit needs a free place *and* a token. There are `capacity` tokens at the start, as there are places, and they
/// come back at the rate, never more than `capacity` of them. Clones share one state.
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
#[derive(Clone, Debug)]
pub struct Semaphore {
    shared: Arc<Shared>,
}

/// A place that is held until this is dropped. It may be moved anywhere.
#[derive(Debug)]
#[must_use = "the place is free again as soon as this is dropped"]
pub struct Permit {
    /// `None` once forgotten.
    shared: Option<Arc<Shared>>,
}

/// Waits for a permit, see [`Semaphore::acquire`]. Dropped unfinished, it holds nothing.
///
/// It gives one permit: polled again after that, it fails with [`AcquireError::Finished`]; after an error, with the same.
#[derive(Debug)]
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquirePermit {
    shared: Arc<Shared>,
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
        Semaphore::on(Time::tokio(), capacity, rate.into())
    }

    /// As [`new`](Self::new), with the clock and alarm to use instead of tokio's.
    ///
    /// # Errors
    /// As there.
    pub fn with_timer(capacity: usize, rate: impl Into<Units>, timer: Arc<dyn Timer>) -> Result<Self, BuildError> {
        Semaphore::on(Time::Custom(timer), capacity, rate.into())
    }

    fn on(time: Time, capacity: usize, rate: Units) -> Result<Self, BuildError> {
        let parts = NonZeroU64::new(rate.parts()?).ok_or(BuildError::ZeroRate)?;
        let rate = Rate::new(parts, PARTS.saturating_mul(NonZeroU64::MIN.saturating_add(SECOND - 1)))?;
        let rules = Rules { fair: true, oversize: Oversize::Wait, most_waiters: None };
        let shared = Shared::new(time, |now| {
            let bucket = Bucket::new(rate, burst(capacity), burst(capacity).get(), now);
            let limits = Limits::none(now).with_bucket(bucket);
            Ok::<_, BuildError>(Queue::new(limits, rules, Some(Places { capacity, held: 0 })))
        })?;
        Ok(Semaphore { shared })
    }

    /// Waits for a place and a token, behind everybody before.
    ///
    /// # Errors
    /// The future's: [`AcquireError::Closed`]; [`AcquireError::NoTimer`] where it has to wait for a token outside a tokio
    /// runtime. To wait for a place, until a permit is dropped, takes no timer.
    pub fn acquire(&self) -> AcquirePermit {
        AcquirePermit::new(&self.shared, None)
    }

    /// As [`acquire`](Self::acquire), within `limit` from now.
    ///
    /// # Errors
    /// The future's, also [`AcquireError::TooLong`] at once and [`AcquireError::TimedOut`] later.
    pub fn acquire_timeout(&self, limit: Duration) -> AcquirePermit {
        let deadline = self.shared.time.now().saturating_add(crate::limiter::time::nanos(limit));
        AcquirePermit::new(&self.shared, Some(deadline))
    }

    /// A permit now, or none.
    ///
    /// # Errors
    /// [`AcquireError::OthersWait`], [`AcquireError::NoPlace`], or [`AcquireError::TooLong`] with the time until the next
    /// token.
    pub fn try_acquire(&self) -> Result<Permit, AcquireError> {
        let mut permit = Err(AcquireError::NoPlace);
        // Made under the lock: afterwards wakers run, and should one panic, the permit frees its place.
        self.shared.with(|queue, now, effects| match queue.try_take(now, 1, effects) {
            Ok(()) => permit = Ok(Permit::new(&self.shared)),
            Err(Denied::TooLong { .. }) if is_full(queue) => {}
            Err(denied) => permit = Err(error(denied)),
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

    /// [`acquire_timeout`](Self::acquire_timeout) for a thread, which sleeps.
    ///
    /// # Errors
    /// As there, but for [`AcquireError::NoTimer`].
    pub fn blocking_acquire_timeout(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_timeout(limit).block()
    }

    /// Free places less those who wait for one.
    #[must_use]
    pub fn available(&self) -> usize {
        self.look(|queue| {
            let places = queue.places().unwrap_or(Places { capacity: 0, held: 0 });
            places.capacity.saturating_sub(places.held).saturating_sub(queue.waiters())
        })
    }

    /// Whether who comes now has to wait for a place, or behind others.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.available() == 0
    }

    /// How many wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.look(super::limiter::queue::Queue::waiters)
    }

    /// So many places from now on. Permits that are held stay held; tokens for more places come at the rate.
    pub fn set_capacity(&self, capacity: usize) {
        self.shared.with(|queue, now, effects| {
            queue.set_burst(now, 0, burst(capacity), effects);
            queue.set_places(now, capacity, effects);
        });
    }

    /// Whoever waits is still served; whoever comes from now on is refused with [`AcquireError::Closed`].
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

impl Permit {
    fn new(shared: &Arc<Shared>) -> Self {
        Permit { shared: Some(Arc::clone(shared)) }
    }

    /// Keeps the place from ever being free again: the capacity is one less from now on, and so are the tokens that are
    /// saved up.
    pub fn forget(mut self) {
        if let Some(shared) = self.shared.take() {
            shared.with(|queue, now, effects| {
                queue.forget_place();
                let capacity = queue.places().map_or(0, |places| places.capacity);
                queue.set_burst(now, 0, burst(capacity), effects);
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.with(super::limiter::queue::Queue::release);
        }
    }
}

impl AcquirePermit {
    fn new(shared: &Arc<Shared>, deadline: Option<Nanos>) -> Self {
        AcquirePermit { shared: Arc::clone(shared), wait: Wait::new(1, deadline), given: false }
    }

    /// Waits on this thread.
    fn block(mut self) -> Result<Permit, AcquireError> {
        let waited = self.wait.block(&self.shared);
        self.give(waited)
    }

    fn give(&mut self, waited: Result<(), Denied>) -> Result<Permit, AcquireError> {
        waited.map_err(error)?;
        if std::mem::replace(&mut self.given, true) {
            return Err(AcquireError::Finished);
        }
        Ok(Permit::new(&self.shared))
    }
}

impl Future for AcquirePermit {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.wait.poll(&this.shared, context).map(|waited| this.give(waited))
    }
}

impl Drop for AcquirePermit {
    fn drop(&mut self) {
        self.wait.leave(&self.shared);
        // A waker of another's that panicked, when this one had been granted.
        if self.wait.is_granted() && !self.given {
            drop(Permit::new(&self.shared));
        }
    }
}

fn is_full(queue: &Queue) -> bool {
    queue.places().is_some_and(|places| places.held >= places.capacity)
}

fn error(denied: Denied) -> AcquireError {
    AcquireError::new(denied, Units::from(1), || Units::from(1))
}

/// Tokens that may be saved up: as many as there are places, and one where there are none, for the first to come.
fn burst(capacity: usize) -> NonZeroU64 {
    u64::try_from(capacity).ok().and_then(NonZeroU64::new).unwrap_or(NonZeroU64::MIN)
}
