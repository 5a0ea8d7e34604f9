//! A limiter with whole refills, name for name that of the crate leaky-bucket 1.1.2.
//!
//! A program written for that crate comes here by changing its import:
//!
//! ```
//! use throttle::leaky_bucket::RateLimiter; // was: use leaky_bucket::RateLimiter;
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
//! Units arrive whole, `refill` at each end of an interval, on a grid that is counted from the build and never moves.
//! Idle time saves up at most `max`. An acquire that is larger than `max` completes over several refills. What is better
//! here: waiters do not depend on the polling of others, late wake-ups lose no refill, and intervals may be fractions of
//! a millisecond.
//!
//! With `fair(false)`, too, nothing can be tried while others wait: there as here, they gather what is there and what
//! comes. What differs is the order. That crate serves the waiter that holds its timer after all the others, those
//! included that come later, so that it may wait for ever; the others are served in the order in which they came. Here
//! everybody is, fair or not. All of them together take as long there as here.

use crate::limiter::Oversize;
use crate::limiter::queue::{Denied, Queue, Rules};
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::{Time, nanos};
use crate::limits::Limits;
use crate::limits::interval::Grid;
use std::borrow::Borrow;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The most a limiter keeps, and the most that arrives at once.
const MOST: usize = isize::MAX.unsigned_abs();

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

/// Waits for units, see [`RateLimiter::acquire`]. Dropped unfinished, it takes nothing.
pub type Acquire<'a> = AcquireFrom<&'a RateLimiter>;

/// As [`Acquire`], but keeps the limiter, see [`RateLimiter::acquire_owned`].
pub type AcquireOwned = AcquireFrom<Arc<RateLimiter>>;

/// What [`Acquire`] and [`AcquireOwned`] have in common: all but whether the limiter is borrowed.
#[must_use = "nothing is acquired unless this is awaited"]
pub struct AcquireFrom<L: Borrow<RateLimiter>> {
    limiter: L,
    wait: Wait,
}

impl RateLimiter {
    /// Settings to choose from.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Units that arrive at each interval, as set.
    #[must_use]
    pub fn refill(&self) -> usize {
        self.settings.refill
    }

    /// The time between two refills, as set.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// The most units kept.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether this is fair, as set; see [`Builder::fair`].
    #[must_use]
    pub fn is_fair(&self) -> bool {
        self.settings.fair
    }

    /// Units that can be had now without waiting: none while others wait, for what is there is theirs.
    #[must_use]
    pub fn balance(&self) -> usize {
        let level = self.shared.with(|queue, now, effects| match queue.level(now, effects) {
            _ if queue.waiters() > 0 => 0,
            level => level,
        });
        usize::try_from(level).unwrap_or(usize::MAX)
    }

    /// Waits for one unit.
    pub fn acquire_one(&self) -> Acquire<'_> {
        self.acquire(1)
    }

    /// Waits for `permits` units, which may take several refills: as many as it takes, be it for longer than clocks go.
    ///
    /// # Panics
    /// The future does, if it has to wait and the thread that would wake it cannot be started.
    pub fn acquire(&self, permits: usize) -> Acquire<'_> {
        AcquireFrom { limiter: self, wait: wait(permits) }
    }

    /// As [`acquire`](Self::acquire), for a future that outlives the borrow.
    pub fn acquire_owned(self: Arc<Self>, permits: usize) -> AcquireOwned {
        AcquireFrom { limiter: self, wait: wait(permits) }
    }

    /// Takes `permits` units now, or nothing; nothing, too, while others wait, for what is there is theirs.
    #[must_use]
    pub fn try_acquire(&self, permits: usize) -> bool {
        self.shared.try_take(units(permits)).is_ok()
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
    /// The most units kept, at most `isize::MAX`. Ten times the larger of refill and initial, if this is not given.
    pub fn max(&mut self, max: usize) -> &mut Self {
        self.max = Some(max);
        self
    }

    /// Units at the start, at most `max`. Without this, 0.
    pub fn initial(&mut self, initial: usize) -> &mut Self {
        self.initial = initial;
        self
    }

    /// The time between two refills. Without this, 100 ms.
    ///
    /// # Panics
    /// If it is zero.
    pub fn interval(&mut self, interval: Duration) -> &mut Self {
        assert!(!interval.is_zero(), "interval must be non-zero");
        self.interval = interval;
        self
    }

    /// Units that arrive at each interval, at most `isize::MAX`. Without this, 1.
    ///
    /// # Panics
    /// If it is zero.
    pub fn refill(&mut self, refill: usize) -> &mut Self {
        assert!(refill > 0, "refill amount cannot be zero");
        self.refill = refill;
        self
    }

    /// Whether waiters are served in the order in which they came. Without this, yes; and here they are in any case, see
    /// the [module](self).
    pub fn fair(&mut self, fair: bool) -> &mut Self {
        self.fair = fair;
        self
    }

    /// Makes a limiter, whose intervals are counted from now.
    #[must_use]
    pub fn build(&self) -> RateLimiter {
        let (initial, refill) = (self.initial.min(MOST), self.refill.min(MOST));
        let max = self.max.unwrap_or_else(|| refill.max(initial).saturating_mul(10)).min(MOST);
        let whole = |value: u64| NonZeroU64::new(value).unwrap_or(NonZeroU64::MIN);
        let rules = Rules { fair: self.fair, oversize: Oversize::Wait, most_waiters: None };
        let shared = Shared::new(Time::tokio(), |now| {
            let (refill, interval) = (whole(units(refill)), whole(nanos(self.interval)));
            let grid = Grid::new(refill, interval, units(max), units(initial), now);
            Ok::<_, Infallible>(Queue::new(Limits::none(now).with_grid(grid), rules, None))
        });
        let shared = shared.unwrap_or_else(|never| match never {});
        RateLimiter { shared, settings: Builder { refill, ..*self }, max }
    }
}

impl<L: Borrow<RateLimiter>> AcquireFrom<L> {
    /// Whether this waiter is the one the limiter's timer is set for: the first in the queue. If that one is dropped, the
    /// next is it at once; in that crate it is the one that is polled first after that.
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
    Wait::new(units(permits), None)
}

fn units(permits: usize) -> u64 {
    u64::try_from(permits).unwrap_or(u64::MAX)
}

/// That crate's futures have no error to return, and panic if there are no timers.
fn expect_granted(granted: Result<(), Denied>) {
    assert!(
        granted != Err(Denied::NoTimer),
        "the thread that wakes waiting futures cannot be started; allow more threads (ulimit -u)"
    );
    // No other refusal can happen in this limiter: no queue is closed, no waiter has a deadline, and a cost
    // that gathers waits beyond the end of the clock.
    assert!(granted.is_ok(), "a waiter without a deadline was refused: {granted:?}");
}
