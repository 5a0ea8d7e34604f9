//! A limiter with whole refills, with the same names as the crate leaky-bucket 1.1.2.
//!
//! To move a program from that crate to this one, change its import:
//!
//! ```
//! use throttle_limits::leaky_bucket::RateLimiter; // was: use leaky_bucket::RateLimiter;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let limiter = RateLimiter::builder().initial(1).refill(2).interval(Duration::from_millis(100)).build();
//! limiter.acquire_one().await;
//! limiter.acquire(4).await; // after two refills
//! assert_eq!(limiter.balance(), 0);
//! # }
//! ```
//!
//! At the end of each interval, `refill` units arrive at once. Intervals count from the build and never move. At most
//! `max` units are saved. An acquire of more than `max` units completes over several refills. This module has
//! advantages over that crate: waiters do not depend on the polling of others, late wake-ups lose no refill, and
//! intervals may be fractions of a millisecond.
//!
//! Even with `fair(false)`, `try_acquire` fails while others wait, as in that crate: all units belong to the waiters.
//! Only the order of the waiters differs. In that crate, an unfair limiter serves the waiter that holds the timer after
//! all other waiters, even later ones, so it may wait for ever. Here waiters are always served in the order of their
//! arrival. All waiters together take the same time in both crates.

use crate::limiter::queue::{Denied, Queue};
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::{Time, nanos};
use crate::limiter::{Oversize, Rules};
use crate::limits::bucket::Bucket;
use crate::limits::{Account, Cost, Limits};
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The most units that are saved, and the most that arrive at once.
const MAX_UNITS: usize = isize::MAX.unsigned_abs();

/// A limiter that is refilled at intervals.
pub struct RateLimiter {
    shared: Arc<Shared>,
    settings: Builder,
    max: usize,
}

/// Settings of a [`RateLimiter`].
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    max: Option<usize>,
    initial: usize,
    refill: usize,
    interval: Duration,
    fair: bool,
}

/// Waits for units, see [`RateLimiter::acquire`]. A future that is dropped unfinished takes nothing.
pub type Acquire<'a> = AcquireFrom<&'a RateLimiter>;

/// Like [`Acquire`], but keeps the limiter alive, see [`RateLimiter::acquire_owned`].
pub type AcquireOwned = AcquireFrom<Arc<RateLimiter>>;

/// [`Acquire`] with a borrowed limiter, [`AcquireOwned`] with an owned limiter. If the future is polled again after it
/// finished, it takes nothing more.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireFrom<L: Borrow<RateLimiter>> {
    limiter: L,
    wait: Wait,
}

impl RateLimiter {
    /// All settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The units that arrive at the end of each interval, as set.
    #[must_use]
    pub fn refill(&self) -> usize {
        self.settings.refill
    }

    /// The time between two refills, as set.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// The most units saved.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether the limiter is fair, as set; see [`Builder::fair`].
    #[must_use]
    pub fn is_fair(&self) -> bool {
        self.settings.fair
    }

    /// The units that can be taken now without a wait; 0 while others wait.
    #[must_use]
    pub fn balance(&self) -> usize {
        usize::try_from(self.shared.with(|queue, now, effects| queue.available(now, 0, effects))).unwrap_or(usize::MAX)
    }

    /// Waits for one unit.
    ///
    /// # Panics
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_one(&self) -> Acquire<'_> {
        self.acquire(1)
    }

    /// Waits for `permits` units, behind all earlier waiters. It may take several refills. Nothing is taken before the
    /// future is polled. If the future is dropped unfinished, the waiters behind it move up.
    ///
    /// # Panics
    /// The future panics if it has to wait and the thread that wakes it cannot be started.
    pub fn acquire(&self, permits: usize) -> Acquire<'_> {
        AcquireFrom { limiter: self, wait: wait(permits) }
    }

    /// Like [`acquire`](Self::acquire), but the future keeps the limiter alive, so it is `'static`.
    ///
    /// # Panics
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_owned(self: Arc<Self>, permits: usize) -> AcquireOwned {
        AcquireFrom { limiter: self, wait: wait(permits) }
    }

    /// Takes `permits` units now, or nothing, and returns whether it took them. It takes nothing while others wait.
    #[must_use]
    pub fn try_acquire(&self, permits: usize) -> bool {
        self.shared.try_now(&Cost::One(permits as u64))
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("refill", &self.settings.refill)
            .field("interval", &self.settings.interval)
            .field("max", &self.max)
            .field("fair", &self.settings.fair)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder { max: None, initial: 0, refill: 1, interval: Duration::from_millis(100), fair: true }
    }
}

impl Builder {
    /// The most units saved, at most `isize::MAX`. The default is ten times the larger of refill and initial.
    pub fn max(&mut self, max: usize) -> &mut Self {
        self.max = Some(max);
        self
    }

    /// The units at the start. The default is 0. More than `max` count as `max`.
    pub fn initial(&mut self, initial: usize) -> &mut Self {
        self.initial = initial;
        self
    }

    /// The time between two refills. The default is 100 ms.
    ///
    /// # Panics
    /// If it is zero.
    pub fn interval(&mut self, interval: Duration) -> &mut Self {
        assert!(!interval.is_zero(), "interval must be non-zero");
        self.interval = interval;
        self
    }

    /// The units that arrive at the end of each interval, at most `isize::MAX`. The default is 1.
    ///
    /// # Panics
    /// If it is zero.
    pub fn refill(&mut self, refill: usize) -> &mut Self {
        assert!(refill > 0, "refill amount cannot be zero");
        self.refill = refill;
        self
    }

    /// Whether waiters are served in the order of their arrival. The default is true. Here false has no effect, see the
    /// [module](self).
    pub fn fair(&mut self, fair: bool) -> &mut Self {
        self.fair = fair;
        self
    }

    /// Builds the limiter. Its intervals count from now.
    #[must_use]
    pub fn build(&self) -> RateLimiter {
        let (initial, refill) = (self.initial.min(MAX_UNITS), self.refill.min(MAX_UNITS));
        let max = self.max.unwrap_or_else(|| refill.max(initial).saturating_mul(10)).min(MAX_UNITS);
        let whole = |value: u64| NonZeroU64::new(value).unwrap_or(NonZeroU64::MIN);
        let rules = Rules { unfair: !self.fair, oversize: Oversize::Wait, ..Rules::default() };
        let time = Time::tokio();
        let (now, interval) = (time.now(), whole(nanos(self.interval)));
        let grid = Bucket::on_grid(whole(refill as u64), interval, max as u64, initial as u64, now);
        let shared = Shared::new(time, Queue::new(Account::of(Limits::none().with_bucket(grid), now), rules, None));
        RateLimiter { shared, settings: Builder { refill, ..*self }, max }
    }
}

impl<L: Borrow<RateLimiter>> AcquireFrom<L> {
    /// Whether this future is the first waiter in the queue, for which the timer is set. If the first waiter is
    /// dropped, the second becomes the first at once. In the crate leaky-bucket, the next future that is polled becomes
    /// the first.
    #[must_use]
    pub fn is_core(&self) -> bool {
        self.wait.is_head(&self.limiter.borrow().shared)
    }
}

impl<L: Borrow<RateLimiter> + Unpin> Future for AcquireFrom<L> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.wait.poll(&this.limiter.borrow().shared, context).map(expect_granted)
    }
}

impl<L: Borrow<RateLimiter>> Drop for AcquireFrom<L> {
    fn drop(&mut self) {
        self.wait.leave(&self.limiter.borrow().shared);
    }
}

impl<L: Borrow<RateLimiter>> fmt::Debug for AcquireFrom<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("limiter", self.limiter.borrow()).finish_non_exhaustive()
    }
}

fn wait(permits: usize) -> Wait {
    Wait::new(Cost::One(permits as u64))
}

/// The futures of the crate leaky-bucket return no error; they panic if there is no timer.
fn expect_granted(granted: Result<(), Denied>) {
    assert!(
        granted != Err(Denied::NoTimer),
        "the thread that wakes waiting futures cannot be started; allow more threads (ulimit -u)"
    );
    // This limiter has no other refusal. It is never closed, and no waiter has a deadline. With `Oversize::Wait` a cost
    // waits even beyond the end of the clock.
    assert!(granted.is_ok(), "a waiter without a deadline was refused: {granted:?}");
}
