//! A limiter that is slow at first and after idle time. It is a wrapper: it acquires each unit at the highest possible
//! price, and settles it at once at its real price.

use super::acquire::{Acquiring, Request};
use super::builder::{BuildError, Builder};
use super::error::AcquireError;
use super::handle::Limiter;
use super::settle::{AcquireToSettle, Granted};
use super::time::nanos;
use super::units::{PARTS, Units};
use crate::clock::Nanos;
use crate::clock::sync::{Mutex, lock};
use crate::rate::Rate;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The price of a cold unit is less than this number of units at the full rate.
const MAX_PRICE: Units = Units::whole(3);

/// A limiter that grants one unit at a time, at a third of the full rate at first. During the warm-up time its rate
/// rises to the full rate. It is for a server that is slow until its caches are filled. Clones share one state.
///
/// Idle time cools the limiter down. It is cold again after an idle time as long as the warm-up time; the first half of
/// that idle time has no effect. Nothing is saved up for a burst.
///
/// The prices are those of `SmoothWarmingUp` in Guava. In a cold limiter, half of the units that the full rate gains in
/// the warm-up time cost more. The first unit costs nearly two intervals more, and the surcharge falls evenly to 0.
/// Prices are rounded up to a millionth of a unit. At the full rate, grants are as exact as those of a [`Limiter`]: by
/// time `t` after a grant, `⌊rate·t⌋` more units have been granted.
///
/// All requests wait in one queue, first in, first out. A future that is dropped unfinished takes nothing, and the
/// waiters behind it move up. If a wake-up comes later than an interval after its grant, the time beyond the interval
/// is lost. So above some thousands of units a second the limiter is slower than its rate.
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
    /// The units gained during the warm-up time.
    most: u64,
    /// The units gained in a nanosecond. The bucket holds these units beyond the highest price, so that a grant keeps
    /// the fraction of a nanosecond.
    spare: u64,
    saved: Arc<Mutex<Saved>>,
}

/// Waits for a unit, see [`WarmUp::acquire`]. If the future is polled again after it returned, it fails with
/// [`AcquireError::Finished`].
pub type AcquireWarm = Acquiring<Warm>;

/// A request for a unit of a limiter that warms up.
pub struct Warm {
    limiter: WarmUp,
    acquire: AcquireToSettle,
}

impl Request for Warm {
    type Grant = ();

    fn end_after(&mut self, limit: Duration) {
        self.acquire.0.end_after(limit);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        self.acquire.0.poll(context).map(|granted| self.limiter.settle(granted))
    }

    fn block(&mut self) -> Result<(), AcquireError> {
        let granted = self.acquire.0.block();
        self.limiter.settle(granted)
    }
}

impl fmt::Debug for Warm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireWarm").finish_non_exhaustive()
    }
}

/// The saved units and the latest grant.
struct Saved {
    /// The units that were gained and not taken.
    units: u64,
    /// The time and the price of the latest grant.
    at: Nanos,
    price: u64,
}

impl Builder {
    /// A limiter of this rate that is slow at first and after idle time, see [`WarmUp`]. It uses the clock and the
    /// bound of the queue of this builder; the burst and the other settings have no effect. With a `time` of 0 it is
    /// always warm.
    ///
    /// # Errors
    /// A rate or a period that is 0 or is not valid; other limits beside the rate.
    pub fn warm_up(self, time: Duration) -> Result<WarmUp, BuildError> {
        let rate = self.own_rate()?;
        let most = if time.is_zero() { 0 } else { rate.units_in(nanos(time)).get() };
        let spare = rate.units_in(1).get().saturating_add(1);
        let burst = Units::from_millionths(MAX_PRICE.millionths()?.saturating_add(spare));
        let limiter = self.plain(burst, MAX_PRICE)?.build()?;
        let saved = Saved { units: most, at: limiter.shared.time.now(), price: 1 };
        Ok(WarmUp { limiter, rate, most, spare, saved: Arc::new(Mutex::new(saved)) })
    }
}

impl WarmUp {
    /// Waits until all earlier waiters have been served and a unit is available, and takes it.
    ///
    /// # Errors
    /// The future returns them: [`AcquireError::Full`], [`AcquireError::Closed`] or [`AcquireError::NoTimer`].
    pub fn acquire(&self) -> AcquireWarm {
        Acquiring(Warm { acquire: self.limiter.acquire_to_settle(MAX_PRICE), limiter: self.clone() })
    }

    /// Takes a unit now, or nothing.
    ///
    /// # Errors
    /// [`AcquireError::TooLong`] with the necessary wait; while others wait, [`AcquireError::OthersWait`] instead;
    /// [`AcquireError::Closed`].
    pub fn try_acquire(&self) -> Result<(), AcquireError> {
        self.settle(self.limiter.try_acquire_to_settle(MAX_PRICE))
    }

    /// Refuses every later request with [`AcquireError::Closed`]. All present waiters are still served.
    pub fn close(&self) {
        self.limiter.close();
    }

    fn settle(&self, granted: Result<Granted, AcquireError>) -> Result<(), AcquireError> {
        let of_one = |error| match error {
            AcquireError::TooLong { wait, .. } => AcquireError::TooLong { cost: Units::whole(1), wait },
            AcquireError::TimedOut { after, .. } => AcquireError::TimedOut { cost: Units::whole(1), after },
            error => error,
        };
        let granted = granted.map_err(of_one)?;
        let at = granted.at();
        let price = {
            let mut saved = lock(&self.saved);
            // A grant that waited has the time of the first nanosecond at which its price was available.
            let came_in = self.rate.units_in(at.saturating_sub(saved.at).saturating_sub(1)).get();
            let idle = came_in.saturating_sub(saved.price);
            saved.at = saved.at.max(at);
            saved.take(idle, self.most).saturating_add(idle.min(self.spare))
        };
        granted.settle(Units::from_millionths(price)).map_err(AcquireError::Units)
    }
}

impl Saved {
    /// The price of the next unit, after `idle` more units were gained and not taken. Above half of `most`, the price
    /// of saved units rises evenly from 1 to 3.
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
