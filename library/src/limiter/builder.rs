//! Builds a limiter from its settings.

use super::handle::Limiter;
use super::queue::Queue;
use super::rules::{OnFull, Oversize, Rules};
use super::shared::Shared;
use super::time::{Time, nanos};
use super::units::{PARTS, Units, UnitsError};
use crate::clock::{Clock, Nanos};
use crate::limits::bucket::Bucket;
use crate::limits::{Account, Limits, Policy, PolicyError};
use crate::rate::{Limit, ParseError, Rate};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

/// How a bucket fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refill {
    /// Continuously.
    #[default]
    Continuous,
    /// The whole count of the rate at once, at the end of each period. Periods begin at the creation of the limiter, or
    /// at a change of its [rate](Limiter::set_rate) or [limits](Limiter::set_limits).
    Grid,
}

/// The settings of a [`Limiter`]. It needs a [`rate`](Self::rate) or a [`limit`](Self::limit). By default the bucket of
/// the rate holds the count of the rate and is full at the start. Any number of requests may wait, first in, first out.
///
/// A setting that is not valid is an error of [`build`](Self::build), not of the method that sets it. A period longer
/// than 584 years is treated as 584 years.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until build is called"]
pub struct Builder {
    rate: Option<(Units, Duration)>,
    burst: Option<Units>,
    initial: Option<Units>,
    refill: Refill,
    limits: Vec<Limit>,
    unfair: bool,
    oversize: Oversize,
    most_waiters: Option<usize>,
    time: Option<Time>,
}

/// Why a limiter cannot be built or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A number that is not a valid amount.
    #[doc(hidden)]
    Units(UnitsError),
    /// Neither a rate nor a limit was given, or no limiter to join.
    #[doc(hidden)]
    NoLimit,
    /// A rate of 0.
    #[doc(hidden)]
    ZeroRate,
    /// A period of length 0.
    #[doc(hidden)]
    ZeroPeriod,
    /// A burst of 0.
    #[doc(hidden)]
    ZeroBurst,
    /// A leaky bucket that cannot hold one unit.
    #[doc(hidden)]
    CapacityBelowOne,
    /// More units at the start than the bucket can hold.
    #[doc(hidden)]
    InitialAboveBurst {
        /// Units at the start.
        initial: Units,
        /// The most that the bucket holds.
        burst: Units,
    },
    /// A setting for the bucket of [`Builder::rate`], but only [`Builder::limit`] was called.
    #[doc(hidden)]
    WithoutRate(
        /// The name of the setting.
        &'static str,
    ),
    /// A rate with more than six decimals, like a third.
    #[doc(hidden)]
    FineRate,
    /// A joint limiter with `fair(false)`.
    #[doc(hidden)]
    JointIsFair,
    /// A change of all limits of a joint limiter.
    #[doc(hidden)]
    Joint,
    /// A limiter that warms up, to which other limits were given.
    #[doc(hidden)]
    WarmUp,
    /// A change of the rate or burst of a limiter that has only windows.
    #[doc(hidden)]
    NoBucket,
    /// Limits that contradict each other.
    #[doc(hidden)]
    Policy(PolicyError),
    /// A rate that is out of range.
    #[doc(hidden)]
    Rate(ParseError),
}

messages! {
    BuildError {
        BuildError::Units(error) => ("{error}"),
        BuildError::NoLimit => ("there is no limit; give one, for example rate(10, Duration::from_secs(1))"),
        BuildError::ZeroRate => ("a rate of 0 would let nothing through; it must be above 0"),
        BuildError::ZeroPeriod => ("a rate needs a period; it must be above 0 seconds"),
        BuildError::ZeroBurst => ("a capacity of 0 would let nothing through; it must be above 0"),
        BuildError::CapacityBelowOne => ("a capacity below 1 would let no whole unit through; the least is 1"),
        BuildError::InitialAboveBurst { initial, burst } => (
            "initial {initial} is more than the capacity of {burst}; lower initial, or raise the burst"
        ),
        BuildError::WithoutRate(setting) => (
            "{setting} needs a rate, but only limits are given; give a rate, or write a limit like \
             5/s,burst=10,initial=0"
        ),
        BuildError::FineRate => (
            "a rate has more than six decimals; write it as units in a period: one in 3 seconds is Limiter::builder().rate(1, Duration::from_secs(3)), or the limit 1/3s; or round it with Units::nearest"
        ),
        BuildError::Joint => (
            "the limits of a joint limiter cannot be replaced; build another, or change its first rate with set_rate"
        ),
        BuildError::JointIsFair => ("a joint limiter is always fair; leave out fair(false)"),
        BuildError::WarmUp => (
            "a limiter that warms up has one rate; leave out limit, and acquire from another limiter as well"
        ),
        BuildError::NoBucket => (
            "all limits of this limiter are windows, which cannot be changed; build it with a rate or a bucket"
        ),
        BuildError::Policy(error) => ("{error}"),
        BuildError::Rate(error) => ("{error}"),
    }
}

holds! {
    BuildError {
        Units(UnitsError),
        Policy(PolicyError),
        Rate(ParseError),
    }
}

impl Builder {
    /// Adds a bucket that gains `units` in every `period`.
    pub fn rate(mut self, units: impl Into<Units>, period: Duration) -> Self {
        self.rate = Some((units.into(), period));
        self
    }

    /// The most units at once, at least a millionth. The default is the count of the rate. It does not apply to
    /// [limits](Self::limit), which have their own bursts.
    pub fn burst(mut self, units: impl Into<Units>) -> Self {
        self.burst = Some(units.into());
        self
    }

    /// Units at the start, at most the burst. The default is the burst. It does not apply to [limits](Self::limit),
    /// which have their own initial units.
    pub fn initial(mut self, units: impl Into<Units>) -> Self {
        self.initial = Some(units.into());
        self
    }

    /// How the bucket of [`rate`](Self::rate) fills. The default is continuously.
    pub fn refill(mut self, refill: Refill) -> Self {
        self.refill = refill;
        self
    }

    /// Adds a limit. The limiter keeps all limits at once.
    ///
    /// A limit with none of `burst`, `initial` and `window` is usually a window. It is a bucket if there is no
    /// [`rate`](Self::rate) and its period is the shortest. A bucket without `burst` holds 10 ms' worth of the rate, at
    /// least one unit. A window without `slack` has no slack. If a limit is in bytes, all must be: a unit is then a
    /// byte.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Whether new requests have to wait while others wait. The default is true.
    ///
    /// If false, a new request takes the available units even if others wait for more. Those waiters may wait as long
    /// as new requests come. A new request does not take units that a reservation in the queue ([`Limiter::reserve`])
    /// counts on. With [`Oversize::Wait`] it takes nothing while others wait, because all units then belong to the
    /// first waiter. A request that has to wait joins the end of the queue.
    pub fn fair(mut self, fair: bool) -> Self {
        self.unfair = !fair;
        self
    }

    /// The treatment of a cost above the burst. By default such a request is refused. A cost above the count of a
    /// window is always refused, with [`AcquireError::Never`](super::AcquireError::Never).
    pub fn oversize(mut self, oversize: Oversize) -> Self {
        self.oversize = oversize;
        self
    }

    /// The most waiters, and the treatment of further waiters. With `None`, the default, any number may wait. Futures
    /// and threads count, reservations do not, as in [`Limiter::waiters`].
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use throttle_limits::limiter::{Limiter, OnFull};
    /// let hundred = NonZeroUsize::new(100);
    /// let limiter = Limiter::builder().limit("10/s".parse()?).max_waiters(hundred, OnFull::Fail).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_waiters(mut self, most: Option<NonZeroUsize>, on_full: OnFull) -> Self {
        self.most_waiters = most.filter(|_| on_full == OnFull::Fail).map(NonZeroUsize::get);
        self
    }

    /// The clock to use instead of tokio's. It wakes the futures, and blocked threads sleep on it.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.time = Some(Time::Custom(clock));
        self
    }

    /// Builds the limiter. Its time starts now.
    ///
    /// # Errors
    /// - Neither a rate nor a limit was given.
    /// - The rate, its period or its burst is 0 or is not valid; the initial units are more than the burst.
    /// - A setting for the bucket of [`rate`](Self::rate) was given without a rate.
    /// - The limits contradict each other.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let (time, rules) = self.parts()?;
        let now = time.now();
        let account = Account::of(self.limits(now)?, now);
        Ok(Limiter { shared: Shared::new(time, Queue::new(account, rules, None)) })
    }

    /// The rate of the builder's own bucket.
    pub(super) fn own_rate(&self) -> Result<Rate, BuildError> {
        let (units, period) = self.rate.ok_or(BuildError::NoLimit)?;
        rate(units, period)
    }

    /// Returns a builder that keeps only the rate, the clock and the bound of the queue. Its bucket has the size
    /// `burst` and begins with `initial` units.
    pub(super) fn plain(self, burst: Units, initial: Units) -> Result<Self, BuildError> {
        if !self.limits.is_empty() {
            return Err(BuildError::WarmUp);
        }
        let Builder { rate, most_waiters, time, .. } = self;
        let plain = Builder { rate, most_waiters, time, ..Builder::default() };
        Ok(plain.burst(burst).initial(initial))
    }

    /// The clock and the rules of the limiter.
    pub(super) fn parts(&self) -> Result<(Time, Rules), BuildError> {
        let time = self.time.clone().unwrap_or_else(Time::tokio);
        let Builder { unfair, oversize, most_waiters, .. } = *self;
        Ok((time, Rules { unfair, oversize, refused: None, most_waiters, place: self.place()? }))
    }

    /// Refuses settings that would have no effect.
    fn check_settings(&self) -> Result<(), BuildError> {
        let settings = [
            (self.burst.is_some(), "burst"),
            (self.initial.is_some(), "initial"),
            (self.refill == Refill::Grid, "refill"),
        ];
        let without_effect = settings.iter().find(|(is_set, _)| *is_set && !self.has_own_bucket());
        without_effect.map_or(Ok(()), |(_, setting)| Err(BuildError::WithoutRate(setting)))
    }

    /// The index of the limit whose rate can be changed, if there is one. Refuses settings that would have no effect.
    pub(super) fn place(&self) -> Result<Option<usize>, BuildError> {
        self.check_settings()?;
        if self.has_own_bucket() {
            return Ok(Some(0));
        }
        Ok(Limits::pacing_place(&Policy::new(&self.limits, None)?))
    }

    fn has_own_bucket(&self) -> bool {
        self.rate.is_some() || self.limits.is_empty()
    }

    /// The limits, which begin at `now`.
    pub(super) fn limits(&self, now: Nanos) -> Result<Limits, BuildError> {
        if !self.has_own_bucket() {
            return Ok(Limits::in_parts(&Policy::new(&self.limits, None)?, PARTS, now)?);
        }
        let beside: Vec<Limit> = self.limits.iter().copied().map(as_window).collect();
        let limits = if beside.is_empty() {
            Limits::none()
        } else {
            Limits::in_parts(&Policy::new(&beside, None)?, PARTS, now)?
        };
        self.with_own_bucket(&limits, now)
    }

    fn with_own_bucket(&self, limits: &Limits, now: Nanos) -> Result<Limits, BuildError> {
        let rate = self.own_rate()?;
        let burst = self.burst.or(self.rate.map(|(units, _)| units)).ok_or(BuildError::NoLimit)?;
        let most = NonZeroU64::new(burst.millionths()?).ok_or(BuildError::ZeroBurst)?;
        let initial = self.initial.unwrap_or(burst);
        if initial.millionths()? > most.get() {
            return Err(BuildError::InitialAboveBurst { initial, burst });
        }
        let (refill, interval) = rate.window();
        Ok(match self.refill {
            Refill::Continuous => limits.with_bucket(Bucket::new(rate, most, initial.millionths()?, now)),
            Refill::Grid => {
                limits.with_bucket(Bucket::on_grid(refill, interval, most.get(), initial.millionths()?, now))
            }
        })
    }
}

/// One queue for the limits of all these builders.
pub(super) fn joint(limiters: &[Builder]) -> Result<Limiter, BuildError> {
    if limiters.is_empty() {
        return Err(BuildError::NoLimit);
    }
    for limiter in limiters {
        limiter.check_settings()?;
        if limiter.unfair {
            return Err(BuildError::JointIsFair);
        }
    }
    let time = limiters.iter().find_map(|limiter| limiter.time.clone()).unwrap_or_else(Time::tokio);
    let most_waiters = limiters.iter().filter_map(|limiter| limiter.most_waiters).min();
    let refused = limiters.iter().map(|limiter| limiter.oversize == Oversize::Reject).collect();
    let place = limiters.first().map_or(Ok(None), Builder::place)?;
    let rules = Rules { unfair: false, oversize: Oversize::Wait, refused: Some(refused), most_waiters, place };
    let now = time.now();
    let each: Result<Vec<_>, BuildError> = limiters.iter().map(|limiter| limiter.limits(now)).collect();
    let queue = Queue::new(Account::of(Limits::joined(&each?), now), rules, None);
    Ok(Limiter { shared: Shared::new(time, queue) })
}

/// The rate in millionths of units.
pub(crate) fn rate(units: Units, period: Duration) -> Result<Rate, BuildError> {
    let parts = match units.millionths() {
        Err(UnitsError::TooFine) => return Err(BuildError::FineRate),
        parts => parts?,
    };
    let units = NonZeroU64::new(parts).ok_or(BuildError::ZeroRate)?;
    let period = NonZeroU64::new(nanos(period)).ok_or(BuildError::ZeroPeriod)?;
    Ok(Rate::new(units, period))
}

fn as_window(limit: Limit) -> Limit {
    match limit {
        Limit::Bucket { rate, burst: None, initial: None } => Limit::Window { rate, initial: None, slack: None },
        limit => limit,
    }
}
