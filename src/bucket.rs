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

use crate::clock::{Nanos, shrink};
use crate::rate::Rate;
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// A token bucket: `rate`, `burst`, and how much credit there is when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Credits repaid by one nanosecond.
    units: u64,
    /// Credits that one unit costs.
    period: u64,
    burst: u64,
    now: Level,
    /// As it was before the last charge, to take that charge back.
    before: Level,
    /// And before charges that may be taken back after that one, the latest last.
    earlier: VecDeque<Level>,
}

/// `credit` at the time `at`, which is the latest grant's (in the future where that was reserved ahead).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    credit: u128,
    /// What was used without a grant and is not paid yet; there is no credit then. Only a queue, which is never saved,
    /// has debts.
    debt: u128,
    at: Nanos,
}

impl Level {
    /// Pays debts first.
    fn add(&mut self, credits: u128) {
        let paid = credits.min(self.debt);
        self.debt -= paid;
        self.credit = self.credit.saturating_add(credits - paid);
    }

    /// As far as there is credit, the rest is a debt.
    fn subtract(&mut self, credits: u128) {
        let paid = credits.min(self.credit);
        self.credit -= paid;
        self.debt = self.debt.saturating_add(credits - paid);
    }

    /// As [`add`](Self::add), as far as there is room up to `full`.
    fn fill(&mut self, credits: u128, full: u128) {
        let before = self.credit;
        self.add(credits);
        self.credit = self.credit.min(full.max(before));
    }
}

impl Bucket {
    /// A bucket that holds `initial` units (at most `burst`) at `now`.
    #[must_use]
    pub fn new(rate: Rate, burst: NonZeroU64, initial: u64, now: Nanos) -> Self {
        let period = rate.period();
        let credit = product(initial.min(burst.get()), period);
        let level = Level { credit, debt: 0, at: now };
        Bucket { units: rate.units(), period, burst: burst.get(), now: level, before: level, earlier: VecDeque::new() }
    }

    /// The most units the bucket holds.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The same, as it is set.
    pub(crate) fn size(&self) -> NonZeroU64 {
        NonZeroU64::new(self.burst).unwrap_or(NonZeroU64::MIN)
    }

    /// Appends the state as words; rate and burst stand elsewhere.
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        for level in [self.now, self.before] {
            words.extend(halves(level.credit));
            words.push(level.at);
        }
    }

    /// Takes over the state that [`save`](Self::save) wrote; `None` if words are missing.
    pub(crate) fn load(&mut self, words: &mut impl Iterator<Item = u64>) -> Option<()> {
        for level in [&mut self.now, &mut self.before] {
            let credit = u128::from(words.next()?) | u128::from(words.next()?) << 64;
            *level = Level { credit, debt: 0, at: words.next()? };
        }
        Some(())
    }

    /// Time in which an empty bucket fills, in nanoseconds, rounded up: how far behind its schedule a consumer may fall
    /// before the rest of the delay is lost.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        clamped(self.full().div_ceil(self.units.into()))
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` when that lies beyond the end of the clock, 584 years from its origin.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(self.now.at);
        let level = self.level_at(start);
        let missing = product(cost, self.period).saturating_add(level.debt).saturating_sub(level.credit);
        if missing == 0 {
            return Some(start);
        }
        let wait = u64::try_from(missing.div_ceil(self.units.into())).ok()?;
        start.checked_add(wait)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// Later than that, the bucket has filled up meanwhile, at most to its burst; a cost above the burst leaves it empty.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(self.now.at);
        let mut level = self.level_at(start);
        level.add(product(grant - start.min(grant), self.units));
        let (gathered, price) = (level.credit, product(cost, self.period));
        let left = gathered.saturating_sub(price);
        // Less than a nanosecond's worth is left exactly when `grant` is the least time: that fraction is kept.
        let credit = if left < self.units.into() { left } else { gathered.min(self.full()).saturating_sub(price) };
        self.before = self.now;
        self.now = Level { credit, at: grant.max(start), ..level };
    }

    /// Takes back the last charge, as if it had never been made; and after it those before it that are kept.
    pub(crate) fn undo(&mut self) {
        self.now = self.before;
        self.before = self.earlier.pop_back().unwrap_or(self.now);
        shrink(&mut self.earlier);
    }

    /// The last charge can still be taken back when there has been another.
    pub(crate) fn keep(&mut self) {
        self.earlier.push_back(self.before);
    }

    #[cfg(test)]
    pub(crate) fn history_memory(&self) -> usize {
        self.earlier.capacity()
    }

    /// The first of the charges kept is not taken back any more.
    pub(crate) fn release(&mut self) {
        self.earlier.pop_front();
        shrink(&mut self.earlier);
    }

    /// Credits `units` that were granted at `grant` and not used, less what the bucket has gained since, as it could
    /// have been full. Of a cost above the burst no more than the burst: it left the bucket empty, not in debt.
    pub(crate) fn give_back(&mut self, now: Nanos, grant: Nanos, units: u64) {
        let gained = product(now.saturating_sub(grant), self.units);
        let refund = product(units.min(self.burst), self.period).saturating_sub(gained);
        self.settle(now);
        self.now.fill(refund, self.full());
    }

    /// Whole units that could be taken at `now`; less than nothing while a grant lies ahead.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> i128 {
        let Level { credit, debt, .. } = self.level_at(now.max(self.now.at));
        let ahead = product(self.now.at.saturating_sub(now), self.units).saturating_add(debt);
        let period = u128::from(self.period);
        let whole = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        if ahead > credit { -whole((ahead - credit).div_ceil(period)) } else { whole((credit - ahead) / period) }
    }

    /// Goes on at another rate from `now`, or from the last grant where that lies ahead. What was saved stays.
    pub fn set_rate(&mut self, now: Nanos, rate: Rate) {
        self.settle(now);
        let (from, to) = (u128::from(self.period), u128::from(rate.period()));
        for level in self.levels() {
            level.credit = level.credit / from * to + level.credit % from * to / from;
            level.debt = (level.debt / from).saturating_mul(to).saturating_add((level.debt % from * to).div_ceil(from));
        }
        (self.units, self.period) = (rate.units(), rate.period());
    }

    /// Holds at most `burst` units from `now` on. A larger bucket is not filled by that; a smaller one spills.
    pub fn set_burst(&mut self, now: Nanos, burst: NonZeroU64) {
        self.settle(now);
        self.burst = burst.get();
        let full = self.full();
        for level in self.levels() {
            level.credit = level.credit.min(full);
        }
    }

    /// Moves the schedule of who asked at `asked` later by `by` nanoseconds, in which nothing is gained.
    pub(crate) fn delay(&mut self, asked: Nanos, by: Nanos) {
        let start = asked.max(self.now.at);
        self.now = Level { at: start.saturating_add(by), ..self.level_at(start) };
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and gathers up to `cost` units.
    pub(crate) fn gather(&mut self, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(self.now.at);
        if now > start {
            let mut level = self.level_at(start);
            level.add(product(now - start, self.units));
            let most = self.full().max(product(cost, self.period));
            self.now = Level { credit: level.credit.min(most), at: now, ..level };
        }
    }

    /// Nobody gathers any more: what is above the burst at `now` is lost.
    pub(crate) fn spill(&mut self, now: Nanos) {
        self.settle(now);
        self.now.credit = self.now.credit.min(self.full());
    }

    /// Adds `units` at `now`, as far as there is room.
    pub(crate) fn credit(&mut self, now: Nanos, units: u64) {
        self.settle(now);
        let full = self.full();
        let more = product(units, self.period);
        self.levels().for_each(|level| level.fill(more, full));
    }

    /// Takes `units` at `now`. Those that are not there are a debt, which is paid before anything is granted.
    pub(crate) fn pay(&mut self, now: Nanos, units: u64) {
        self.settle(now);
        let price = product(units, self.period);
        self.levels().for_each(|level| level.subtract(price));
    }

    /// Has nothing at `time`, and gains from then on. What is owed is still owed.
    pub(crate) fn empty(&mut self, time: Nanos) {
        self.settle(time);
        self.levels().filter(|level| level.at <= time).for_each(|level| level.credit = 0);
    }

    /// Whether nothing more would be kept at `time`, or at the last grant where that is later.
    pub(crate) fn is_full(&self, time: Nanos) -> bool {
        self.level_at(time.max(self.now.at)).credit >= self.full()
    }

    /// The state in credits, for the fast path: what a nanosecond repays, what a unit costs, what the bucket holds, what is
    /// missing to that, and since when. `None` where it is fuller than full.
    pub(crate) fn fast_path(&self) -> Option<(u64, u64, u128, u128, Nanos)> {
        let missing = self.full().checked_sub(self.now.credit)?.checked_add(self.now.debt)?;
        Some((self.units, self.period, self.full(), missing, self.now.at))
    }

    /// The state as the fast path told it: `missing` credits at `at`.
    pub(crate) fn resume(&mut self, missing: u128, at: Nanos) {
        let full = self.full();
        self.now = Level { credit: full.saturating_sub(missing), debt: missing.saturating_sub(full), at };
        self.before = self.now;
    }

    /// Brings what stands in the past up to `now`.
    fn settle(&mut self, now: Nanos) {
        let (units, full) = (self.units, self.full());
        for level in self.levels() {
            if let Some(elapsed) = now.checked_sub(level.at) {
                *level = Level { at: now, ..grown(*level, elapsed, units, full) };
            }
        }
    }

    /// As it is, and as it was before each charge that can be taken back.
    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        [&mut self.now, &mut self.before].into_iter().chain(&mut self.earlier)
    }

    /// As it will be at `time`, which is not before the last grant.
    fn level_at(&self, time: Nanos) -> Level {
        grown(self.now, time - self.now.at, self.units, self.full())
    }

    fn full(&self) -> u128 {
        product(self.burst, self.period)
    }
}

/// What `level` has become after `elapsed`. Within one nanosecond a rate above 1 GHz may leave more than a small burst
/// holds; that is owed to who asks in the same nanosecond, and to nobody later.
fn grown(mut level: Level, elapsed: Nanos, units: u64, full: u128) -> Level {
    if elapsed > 0 {
        level.add(product(elapsed, units));
        level.credit = level.credit.min(full);
    }
    level
}

/// 64 × 64 bits never overflow 128.
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// The lower half first.
#[allow(clippy::cast_possible_truncation, reason = "each takes its half")]
fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn clamped(nanos: u128) -> Nanos {
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX)
}
