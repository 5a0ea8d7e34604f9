//! A limiter that is slow at first and after idle time. It is a wrapper: a limiter acquires each unit at the highest price
//! there is, and settles it at once at its real one.

use super::builder::{BuildError, Builder};
use super::error::AcquireError;
use super::handle::Limiter;
use super::settle::Granted;
use super::time::nanos;
use super::units::{PARTS, Units};
use crate::clock::Nanos;
use crate::clock::sync::{Mutex, lock};
use crate::rate::Rate;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A cold unit takes less time than this many at the full rate.
const COLD: Units = Units::whole(3);

/// One unit at a time, at a third of the full rate at first. In the warm-up time the rate rises to the full one. For a
/// server that is slow until its caches are filled. Clones share one state.
///
/// Idle time cools it down: as much of it as the warm-up time makes it cold again, half of that has no effect yet. Nothing
/// is saved up for a burst. The prices are those of `SmoothWarmingUp` in Guava: of a limiter that is cold, half of the units
/// that come in during the warm-up time at the full rate are dearer, the first by nearly two intervals, each next one by
/// equally less. Prices are rounded up to a millionth of a unit. At the full rate, grants are as exact as those of a
/// [`Limiter`]: by time `t` after a grant, `⌊rate·t⌋` others.
///
/// All wait in one queue, first in, first out. A future that is dropped unfinished takes nothing, and those behind it move
/// up. If a wake-up comes later than an interval after its grant, the time beyond the interval is lost, so above some thousands
/// a second this is slower than its rate.
///
/// ```
/// use std::time::Duration;
/// use throttle_limits::limiter::Limiter;
/// use tokio::time::Instant;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let second = Duration::from_secs(1);
/// let limiter = Limiter::builder().rate(2, second).warm_up(4 * second)?;
/// let start = Instant::now();
/// for at in [0, 1375, 2500, 3375, 4000, 4500, 5000] {
///     limiter.acquire().await?;
///     assert_eq!(start.elapsed(), Duration::from_millis(at));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WarmUp {
    limiter: Limiter,
    /// In millionths of units, like all amounts here.
    rate: Rate,
    /// What comes in during the warm-up.
    most: u64,
    /// The bucket is larger than the highest price by what comes in during a nanosecond: a grant keeps the fraction of one.
    spare: u64,
    saved: Arc<Mutex<Saved>>,
}

/// After the latest grant.
struct Saved {
    /// What came in while nobody took it.
    units: u64,
    /// The time of the grant, and its price.
    at: Nanos,
    price: u64,
}

impl Builder {
    /// A limiter of this rate that is slow at first and after idle time, see [`WarmUp`]. The clock and the bound of the queue
    /// are those of this builder; its burst and its other settings have no effect. With a `time` of 0 it is always warm.
    ///
    /// # Errors
    /// [`BuildError::ZeroRate`], [`BuildError::ZeroPeriod`], [`BuildError::FineRate`] or [`BuildError::Units`];
    /// [`BuildError::WarmUp`] if there are other limits.
    pub fn warm_up(self, time: Duration) -> Result<WarmUp, BuildError> {
        let rate = self.own_rate()?;
        let most = if time.is_zero() { 0 } else { rate.units_in(nanos(time)).get() };
        let spare = rate.units_in(1).get().saturating_add(1);
        let burst = Units::from_millionths(COLD.millionths()?.saturating_add(spare));
        let limiter = self.plain(burst, COLD)?.build()?;
        let saved = Saved { units: most, at: limiter.shared.time.now(), price: 1 };
        Ok(WarmUp { limiter, rate, most, spare, saved: Arc::new(Mutex::new(saved)) })
    }
}

impl WarmUp {
    /// Waits until all earlier waiters have been served and a unit is there, and takes it. To bound the wait, drop the
    /// future: unfinished, it takes nothing.
    ///
    /// # Errors
    /// The future's: [`AcquireError::Full`], [`AcquireError::Closed`] or [`AcquireError::NoTimer`].
    pub async fn acquire(&self) -> Result<(), AcquireError> {
        let granted = self.limiter.acquire_to_settle(COLD).await?;
        self.settle(granted)
    }

    /// Like [`acquire`](Self::acquire), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire(&self) -> Result<(), AcquireError> {
        self.settle(self.limiter.blocking_acquire_to_settle(COLD)?)
    }

    /// Takes a unit now, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] with the wait that would be needed; [`AcquireError::OthersWait`] in its place while
    /// others wait; [`AcquireError::Closed`].
    pub fn try_acquire(&self) -> Result<(), AcquireError> {
        let of_one = |error| match error {
            AcquireError::TooLong { wait, .. } => AcquireError::TooLong { cost: Units::whole(1), wait },
            error => error,
        };
        self.settle(self.limiter.try_acquire_to_settle(COLD).map_err(of_one)?)
    }

    /// Refuses every later request with [`AcquireError::Closed`]. All that wait are still served.
    pub fn close(&self) {
        self.limiter.close();
    }

    fn settle(&self, granted: Granted) -> Result<(), AcquireError> {
        let at = granted.at();
        let price = {
            let mut saved = lock(&self.saved);
            // A grant that waited is in the first nanosecond in which its price is there.
            let came_in = self.rate.units_in(at.saturating_sub(saved.at).saturating_sub(1)).get();
            let idle = came_in.saturating_sub(saved.price);
            saved.at = saved.at.max(at);
            saved.take(idle, self.most).saturating_add(idle.min(self.spare))
        };
        granted.settle(Units::from_millionths(price)).map_err(AcquireError::Units)
    }
}

impl Saved {
    /// The price of the next unit, when so much came in that nobody took. Above half of `most`, the price of what is saved
    /// rises evenly from 1 to 3.
    fn take(&mut self, idle: u64, most: u64) -> u64 {
        let saved = self.units.saturating_add(idle).min(most);
        let dear = saved.saturating_sub(most / 2);
        let rest = dear.saturating_sub(PARTS.get());
        let more = 2 * u128::from(dear - rest) * (u128::from(dear) + u128::from(rest));
        let more = u64::try_from(more.div_ceil(u128::from(most.max(1)))).unwrap_or(u64::MAX);
        self.units = saved.saturating_sub(PARTS.get());
        self.price = PARTS.get().saturating_add(more);
        self.price
    }
}

impl fmt::Debug for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmUp").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
