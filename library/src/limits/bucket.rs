//! One token bucket, as pure arithmetic.
//!
//! The generic cell rate algorithm (ITU-T I.371) and the token bucket are the same algorithm in two forms. This is the
//! bucket form. The state is an amount of *credit* at a time. To avoid all rounding, credit has its own unit: with a
//! rate of `units` per `period` nanoseconds (in lowest terms), one unit costs `period` credits, and one nanosecond
//! earns `units` credits. Both fit 64 bits, so every product fits 128.
//!
//! While a cost waits, its credit may grow beyond the size of the bucket until the cost is paid. Its time is rounded up
//! to a whole nanosecond, and the rest of that nanosecond is kept as credit, so the schedule does not drift. The same
//! rule grants a cost above the burst after exactly the time that the excess takes.

use super::fill::Fill;
use super::state::{Gaining, Level};
use crate::clock::Nanos;
use crate::rate::Rate;
use std::num::NonZeroU64;

/// The fixed numbers of a bucket: the same for every bucket of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Credits earned in one nanosecond.
    units: u64,
    /// Credits that one unit costs.
    period: u64,
    burst: u64,
}

impl Terms {
    pub(crate) fn new(rate: Rate, burst: NonZeroU64) -> Self {
        Terms { units: rate.units(), period: rate.period(), burst: burst.get() }
    }

    pub(crate) fn with_rate(self, rate: Rate) -> Self {
        Terms { units: rate.units(), period: rate.period(), ..self }
    }

    pub(crate) fn with_burst(self, burst: u64) -> Self {
        Terms { burst, ..self }
    }

    /// A bucket that holds `initial` units (at most the burst) at `now`.
    pub(crate) fn start(&self, initial: u64, now: Nanos) -> Level {
        Level { amount: product(initial.min(self.burst), self.period), at: now }
    }

    pub(crate) fn burst(&self) -> u64 {
        self.burst
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the
    /// end of the clock.
    pub(crate) fn conforms_at(&self, level: Level, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(level.at);
        let missing = self.price(cost).saturating_sub(self.amount_at(level, start));
        if missing <= 0 {
            return Some(start);
        }
        let wait = u64::try_from(missing.unsigned_abs().div_ceil(self.units.into())).ok()?;
        start.checked_add(wait)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty.
    pub(crate) fn charge(&self, level: &mut Level, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(level.at);
        let gathered = self.amount_at(*level, start).saturating_add(product(grant - start.min(grant), self.units));
        let price = self.price(cost);
        let left = gathered.saturating_sub(price);
        // If `grant` is the earliest possible time, less than a nanosecond's worth is left, and that fraction is kept.
        // A charge before that time leaves the bucket empty, not in debt.
        let kept = if left < self.units.into() { left } else { gathered.min(self.full()).saturating_sub(price) };
        let amount = kept.max(gathered.min(0));
        *level = Level { amount, at: grant.max(start) };
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
    pub(crate) fn balance(&self, level: Level, now: Nanos) -> i128 {
        let credit = self.amount_at(level, now.max(level.at));
        let ahead = u128::from(level.at.saturating_sub(now)) * u128::from(self.units);
        let (there, owed) = (credit.max(0).unsigned_abs(), ahead.saturating_add(credit.min(0).unsigned_abs()));
        let whole = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        match owed.checked_sub(there) {
            Some(missing) => -whole(missing.div_ceil(self.period.into())),
            None => whole((there - owed) / u128::from(self.period)),
        }
    }

    /// Continues as `to` from `now`, or from the last grant if that is later. Saved credit is kept exactly.
    pub(crate) fn change(&self, level: &mut Level, now: Nanos, to: &Terms) {
        self.settle(level, now);
        let (from, to) = (i128::from(self.period), i128::from(to.period));
        // The fraction of a unit times its new price may need all 128 bits, but is not negative.
        let rest = level.amount.rem_euclid(from).unsigned_abs() * to.unsigned_abs() / from.unsigned_abs();
        let whole = level.amount.div_euclid(from).saturating_mul(to);
        level.amount = whole.saturating_add(i128::try_from(rest).unwrap_or(i128::MAX));
    }

    /// Moves the schedule of a request made at `asked` later by `by` nanoseconds, in which nothing is gained.
    pub(crate) fn delay(&self, level: &mut Level, asked: Nanos, by: Nanos) {
        let start = asked.max(level.at);
        *level = Level { amount: self.amount_at(*level, start), at: start.saturating_add(by) };
    }

    /// The state for the fast path. `None` if the bucket holds more than its burst.
    pub(crate) fn fast_path(&self, level: Level) -> Option<Gaining> {
        let missing = u128::try_from(self.full().saturating_sub(level.amount)).ok()?;
        let (gain, price, full) = (self.units, self.period, self.full().unsigned_abs());
        Some(Gaining { gain, interval: 1, start: 0, price, full, missing, at: level.at })
    }
}

impl Fill for Terms {
    fn fill_time(&self) -> Nanos {
        Nanos::try_from(self.full().unsigned_abs().div_ceil(self.units.into())).unwrap_or(Nanos::MAX)
    }

    fn full(&self) -> i128 {
        product(self.burst, self.period)
    }

    fn price(&self, units: u64) -> i128 {
        product(units, self.period)
    }

    fn gained(&self, from: Nanos, to: Nanos) -> i128 {
        product(to - from, self.units)
    }
}

/// A product of two 64-bit numbers never overflows 128 bits. The top bit is for the sign; no real burst or wait needs
/// it.
fn product(a: u64, b: u64) -> i128 {
    i128::try_from(u128::from(a) * u128::from(b)).unwrap_or(i128::MAX)
}

/// One token bucket: its rate, its burst and its credit at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub(super) terms: Terms,
    pub(super) level: Level,
}

impl Bucket {
    /// A bucket that holds `initial` units (at most `burst`) at `now`.
    #[must_use]
    pub fn new(rate: Rate, burst: NonZeroU64, initial: u64, now: Nanos) -> Self {
        let terms = Terms::new(rate, burst);
        Bucket { terms, level: terms.start(initial, now) }
    }

    /// The most units the bucket holds.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.terms.burst
    }

    /// Time in which an empty bucket fills, in nanoseconds, rounded up. A consumer may fall this far behind its
    /// schedule before it loses the rest of the delay.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        self.terms.fill_time()
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` if that is beyond the end of the clock, 584 years after its origin.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.terms.conforms_at(self.level, now, cost)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        self.terms.charge(&mut self.level, asked, grant, cost);
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> i128 {
        self.terms.balance(self.level, now)
    }

    /// Changes the rate from `now` on, or from the last grant if that is later. Saved credit is kept.
    pub fn set_rate(&mut self, now: Nanos, rate: Rate) {
        let to = self.terms.with_rate(rate);
        self.terms.change(&mut self.level, now, &to);
        self.terms = to;
    }

    /// Changes the size to `burst` from `now` on. A larger bucket is not filled by that; a smaller one loses the
    /// excess.
    pub fn set_burst(&mut self, now: Nanos, burst: NonZeroU64) {
        self.terms.settle(&mut self.level, now);
        self.terms.burst = burst.get();
        self.terms.spill(&mut self.level, now);
    }
}
