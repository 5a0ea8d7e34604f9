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

    /// Time in which an empty bucket fills, in nanoseconds, rounded up.
    pub(crate) fn fill_time(&self) -> Nanos {
        Nanos::try_from(self.full().unsigned_abs().div_ceil(self.units.into())).unwrap_or(Nanos::MAX)
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the
    /// end of the clock.
    pub(crate) fn conforms_at(&self, level: Level, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(level.at);
        let missing = product(cost, self.period).saturating_sub(self.credit_at(level, start));
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
        let gathered = self.credit_at(*level, start).saturating_add(product(grant - start.min(grant), self.units));
        let price = product(cost, self.period);
        let left = gathered.saturating_sub(price);
        // If `grant` is the earliest possible time, less than a nanosecond's worth is left, and that fraction is kept.
        // A charge before that time leaves the bucket empty, not in debt.
        let kept = if left < self.units.into() { left } else { gathered.min(self.full()).saturating_sub(price) };
        let amount = kept.max(gathered.min(0));
        *level = Level { amount, at: grant.max(start) };
    }

    /// Credits `units` that were granted at `grant` and not used, less what the bucket gained since, because it could
    /// have been full. Of a cost above the burst at most the burst is credited: the cost left the bucket empty, not in
    /// debt.
    pub(crate) fn give_back(&self, level: &mut Level, now: Nanos, grant: Nanos, units: u64) {
        let gained = product(now.saturating_sub(grant), self.units);
        let refund = product(units.min(self.burst), self.period).saturating_sub(gained).max(0);
        self.settle(level, now);
        self.fill(level, refund);
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
    pub(crate) fn balance(&self, level: Level, now: Nanos) -> i128 {
        let credit = self.credit_at(level, now.max(level.at));
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
        *level = Level { amount: self.credit_at(*level, start), at: start.saturating_add(by) };
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and needs `cost` units.
    pub(crate) fn gather(&self, level: &mut Level, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(level.at);
        if now > start {
            let gathered = self.credit_at(*level, start).saturating_add(product(now - start, self.units));
            *level = Level { amount: gathered.min(self.full().max(product(cost, self.period))), at: now };
        }
    }

    /// No waiter needs credit above the burst any more: at `now`, that credit is lost.
    pub(crate) fn spill(&self, level: &mut Level, now: Nanos) {
        self.settle(level, now);
        level.amount = level.amount.min(self.full());
    }

    /// Adds `units` at `now`, up to the burst.
    pub(crate) fn credit(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        self.fill(level, product(units, self.period));
    }

    /// Takes `units` at `now`. Missing units become a debt that is paid before the next grant.
    pub(crate) fn pay(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        level.amount = level.amount.saturating_sub(product(units, self.period));
    }

    /// Empties the bucket at `time`; it gains from then on. Debt stays, and so does a grant after `time`.
    pub(crate) fn empty(&self, level: &mut Level, time: Nanos) {
        self.settle(level, time);
        if level.at <= time {
            level.amount = level.amount.min(0);
        }
    }

    /// Whether the bucket is full at `time`, or at the last grant if that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.credit_at(level, time.max(level.at)) >= self.full()
    }

    /// The state for the fast path. `None` if the bucket holds more than its burst.
    pub(crate) fn fast_path(&self, level: Level) -> Option<Gaining> {
        let missing = u128::try_from(self.full().saturating_sub(level.amount)).ok()?;
        let (gain, price, full) = (self.units, self.period, self.full().unsigned_abs());
        Some(Gaining { gain, interval: 1, start: 0, price, full, missing, at: level.at })
    }

    /// The state at `at` in which `missing` credits are missing to a full bucket.
    pub(crate) fn resume(&self, missing: u128, at: Nanos) -> Level {
        Level { amount: self.full().saturating_sub_unsigned(missing), at }
    }

    /// Brings a state from the past up to `now`.
    fn settle(&self, level: &mut Level, now: Nanos) {
        if now > level.at {
            *level = Level { amount: self.credit_at(*level, now), at: now };
        }
    }

    /// Adds `credit`, up to the burst.
    fn fill(&self, level: &mut Level, credit: i128) {
        let filled = level.amount.saturating_add(credit).min(self.full());
        level.amount = filled.max(level.amount);
    }

    /// Credit at `time`, which is not before the last grant. At a rate above 1 GHz, what one nanosecond leaves over may
    /// be more than a small burst. That excess is kept for requests in the same nanosecond, and for no later one.
    fn credit_at(&self, level: Level, time: Nanos) -> i128 {
        match time - level.at {
            0 => level.amount,
            elapsed => level.amount.saturating_add(product(elapsed, self.units)).min(self.full()),
        }
    }

    fn full(&self) -> i128 {
        product(self.burst, self.period)
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
