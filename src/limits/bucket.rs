//! One token bucket, as pure arithmetic.
//!
//! The generic cell rate algorithm (ITU-T I.371) and the token bucket are the same thing seen from two sides; this is the
//! bucket's side. State is a level of *credit* at a time. So that nothing is ever rounded, credit is counted in a unit of
//! its own: with a rate of `units` per `period` nanoseconds (reduced to lowest terms), one unit costs `period` credits and
//! one nanosecond repays `units` credits. Both fit 64 bits, so every product fits 128.
//!
//! A cost that has to wait gathers credit without regard to the size of the bucket until it is paid, so the fraction of a
//! nanosecond by which its time was rounded up is kept, and the schedule does not drift; the same rule lets a cost above
//! the burst through after exactly the time the excess takes.

use super::state::Level;
use crate::clock::Nanos;
use crate::rate::Rate;
use std::num::NonZeroU64;

/// What a bucket keeps to: the same for every bucket of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Credits repaid by one nanosecond.
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

    /// A bucket that holds `initial` units, at most the burst, at `now`.
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

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the end
    /// of the clock.
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
    /// Later than that, the bucket has filled up meanwhile, at most to its burst; a cost above the burst leaves it empty.
    pub(crate) fn charge(&self, level: &mut Level, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(level.at);
        let gathered = self.credit_at(*level, start).saturating_add(product(grant - start.min(grant), self.units));
        let price = product(cost, self.period);
        let left = gathered.saturating_sub(price);
        // Less than a nanosecond's worth is left exactly when `grant` is the least time: that fraction is kept. What is
        // charged before that leaves the bucket empty, not in debt.
        let kept = if left < self.units.into() { left } else { gathered.min(self.full()).saturating_sub(price) };
        let amount = kept.max(gathered.min(0));
        *level = Level { amount, at: grant.max(start) };
    }

    /// Credits `units` that were granted at `grant` and not used, less what the bucket has gained since, as it could
    /// have been full. Of a cost above the burst no more than the burst: it left the bucket empty, not in debt.
    pub(crate) fn give_back(&self, level: &mut Level, now: Nanos, grant: Nanos, units: u64) {
        let gained = product(now.saturating_sub(grant), self.units);
        let refund = product(units.min(self.burst), self.period).saturating_sub(gained).max(0);
        self.settle(level, now);
        self.fill(level, refund);
    }

    /// Whole units that could be taken at `now`; less than nothing while a grant lies ahead.
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

    /// Goes on by `to` from `now`, or from the last grant if that lies ahead. What was saved stays, to the fraction.
    pub(crate) fn change(&self, level: &mut Level, now: Nanos, to: &Terms) {
        self.settle(level, now);
        let (from, to) = (i128::from(self.period), i128::from(to.period));
        // The rest of a unit times its new price may take all of 128 bits, but is not negative.
        let rest = level.amount.rem_euclid(from).unsigned_abs() * to.unsigned_abs() / from.unsigned_abs();
        let whole = level.amount.div_euclid(from).saturating_mul(to);
        level.amount = whole.saturating_add(i128::try_from(rest).unwrap_or(i128::MAX));
    }

    /// Moves the schedule of who asked at `asked` later by `by` nanoseconds, in which nothing is gained.
    pub(crate) fn delay(&self, level: &mut Level, asked: Nanos, by: Nanos) {
        let start = asked.max(level.at);
        *level = Level { amount: self.credit_at(*level, start), at: start.saturating_add(by) };
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and gathers up to `cost` units.
    pub(crate) fn gather(&self, level: &mut Level, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(level.at);
        if now > start {
            let gathered = self.credit_at(*level, start).saturating_add(product(now - start, self.units));
            *level = Level { amount: gathered.min(self.full().max(product(cost, self.period))), at: now };
        }
    }

    /// Nobody gathers any more: what is above the burst at `now` is lost.
    pub(crate) fn spill(&self, level: &mut Level, now: Nanos) {
        self.settle(level, now);
        level.amount = level.amount.min(self.full());
    }

    /// Adds `units` at `now`, as far as there is room.
    pub(crate) fn credit(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        self.fill(level, product(units, self.period));
    }

    /// Takes `units` at `now`. Those that are not there are a debt, which is paid before anything is granted.
    pub(crate) fn pay(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        level.amount = level.amount.saturating_sub(product(units, self.period));
    }

    /// Has nothing at `time`, and gains from then on. What is owed is still owed, and a grant beyond is as it was.
    pub(crate) fn empty(&self, level: &mut Level, time: Nanos) {
        self.settle(level, time);
        if level.at <= time {
            level.amount = level.amount.min(0);
        }
    }

    /// Whether nothing more would be kept at `time`, or at the last grant where that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.credit_at(level, time.max(level.at)) >= self.full()
    }

    /// The state in credits, for the fast path: what a nanosecond repays, what a unit costs, what the bucket holds, what is
    /// missing to that, and since when. `None` where it is fuller than full.
    pub(crate) fn fast_path(&self, level: Level) -> Option<(u64, u64, u128, u128, Nanos)> {
        let missing = u128::try_from(self.full().saturating_sub(level.amount)).ok()?;
        Some((self.units, self.period, self.full().unsigned_abs(), missing, level.at))
    }

    /// The state in which `missing` credits are missing at `at`.
    pub(crate) fn resume(&self, missing: u128, at: Nanos) -> Level {
        Level { amount: self.full().saturating_sub_unsigned(missing), at }
    }

    /// Brings what stands in the past up to `now`.
    fn settle(&self, level: &mut Level, now: Nanos) {
        if now > level.at {
            *level = Level { amount: self.credit_at(*level, now), at: now };
        }
    }

    /// Adds `credit` as far as there is room.
    fn fill(&self, level: &mut Level, credit: i128) {
        let filled = level.amount.saturating_add(credit).min(self.full());
        level.amount = filled.max(level.amount);
    }

    /// Credit at `time`, which is not before the last grant. Within one nanosecond a rate above 1 GHz may leave more than a
    /// small burst holds; that is owed to who asks in the same nanosecond, and to nobody later.
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

/// 64 × 64 bits never overflow 128; the last bit, which no burst and no wait of this world takes, is for the sign.
fn product(a: u64, b: u64) -> i128 {
    i128::try_from(u128::from(a) * u128::from(b)).unwrap_or(i128::MAX)
}

/// One token bucket: `rate`, `burst`, and how much credit there is when.
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

    /// Time in which an empty bucket fills, in nanoseconds, rounded up: how far behind its schedule a consumer may fall
    /// before the rest of the delay is lost.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        self.terms.fill_time()
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` when that lies beyond the end of the clock, 584 years from its origin.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.terms.conforms_at(self.level, now, cost)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// Later than that, the bucket has filled up meanwhile, at most to its burst; a cost above the burst leaves it empty.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        self.terms.charge(&mut self.level, asked, grant, cost);
    }

    /// Whole units that could be taken at `now`; less than nothing while a grant lies ahead.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> i128 {
        self.terms.balance(self.level, now)
    }

    /// Goes on at another rate from `now`, or from the last grant where that lies ahead. What was saved stays.
    pub fn set_rate(&mut self, now: Nanos, rate: Rate) {
        let to = self.terms.with_rate(rate);
        self.terms.change(&mut self.level, now, &to);
        self.terms = to;
    }

    /// Holds at most `burst` units from `now` on. A larger bucket is not filled by that; a smaller one spills.
    pub fn set_burst(&mut self, now: Nanos, burst: NonZeroU64) {
        self.terms.settle(&mut self.level, now);
        self.terms.burst = burst.get();
        self.terms.spill(&mut self.level, now);
    }
}
