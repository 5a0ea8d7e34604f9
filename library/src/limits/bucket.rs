//! One bucket, as pure arithmetic.
//!
//! The generic cell rate algorithm (ITU-T I.371) and the token bucket are the same algorithm in two forms. This is the
//! bucket form. The state is an amount of *credit* at a time. To avoid all rounding, credit has its own unit. At a rate
//! of `units` per `period` nanoseconds (in lowest terms), one unit costs `period` credits, and one nanosecond earns
//! `units` credits. Both fit 64 bits, so every product fits 128.
//!
//! A bucket on a *grid* gains only at the points of a grid of intervals, one whole refill at each point. The grid
//! begins at the start and never moves. One credit of such a bucket is one unit. The arithmetic is the same, because a
//! token bucket has a grid of nanoseconds.
//!
//! While a cost waits, its credit may grow beyond the size of the bucket until the cost is paid. The time of the grant
//! is the end of an interval. The rest of that interval's gain is kept as credit, so the schedule does not drift. The
//! same rule grants a cost above the burst after exactly the time that the excess takes.
//!
//! Settling needs the level that a bucket would have if an earlier grant had cost more or less. So each function that
//! changes a level also returns a `Gap`: the effect of the change on such a difference in the level.

use super::state::{Gaining, Level};
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::Rate;
use std::num::NonZeroU64;

/// How late a busy machine wakes a process.
const USUAL_LATENESS: Nanos = 10 * MILLISECOND;

/// How late a grant may be used without a loss of rate. For a bucket that fills in `fill_time`, it is a tenth of that,
/// but at least 10 ms or that whole time, whichever is less.
pub(crate) fn lag_allowance(fill_time: Nanos) -> Nanos {
    (fill_time / 10).max(fill_time.min(USUAL_LATENESS))
}

/// The effect of a span of time on a difference in the level of a bucket: a credit or a debt at its start, which exists
/// if an earlier grant is settled at another cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Gap {
    /// The highest rise of the level at the start that would not have been cut off; 0 if something was cut off anyway.
    pub(super) room: i128,
    /// The amount that was cut off.
    pub(super) lost: i128,
}

impl Gap {
    pub(crate) const NONE: Gap = Gap { room: i128::MAX, lost: 0 };

    /// This gap and then `next`.
    pub(super) fn then(self, next: Gap) -> Gap {
        let room = if next.lost > 0 { 0 } else { next.room.max(0) };
        Gap { room: self.room.min(room), lost: self.lost.saturating_add(next.lost.max(0)) }
    }
}

impl Level {
    /// Cuts off the amount above `most`.
    fn cut(&mut self, most: i128) -> Gap {
        let before = self.amount;
        self.amount = before.min(most);
        Gap { room: most.saturating_sub(self.amount), lost: before.saturating_sub(self.amount) }
    }
}

/// The fixed numbers of a bucket: the same for every bucket of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Credits gained at the end of each interval.
    gain: u64,
    /// In nanoseconds: 1, unless the bucket is on a grid.
    interval: u64,
    pub(crate) is_on_grid: bool,
    /// The first point of the grid. Nothing is gained there.
    start: Nanos,
    /// Credits that one unit costs.
    price: u64,
    burst: u64,
}

impl Terms {
    pub(crate) fn new(rate: Rate, burst: NonZeroU64) -> Self {
        Terms { gain: rate.units(), interval: 1, is_on_grid: false, start: 0, price: rate.period(), burst: burst.get() }
    }

    /// The same terms at another rate. A grid restarts at `start`.
    pub(crate) fn with_rate(self, rate: Rate, start: Nanos) -> Self {
        let (count, period) = rate.window();
        if self.is_on_grid {
            Terms { gain: count.get(), interval: period.get(), start, ..self }
        } else {
            Terms { gain: rate.units(), price: rate.period(), ..self }
        }
    }

    pub(crate) fn with_burst(self, burst: u64) -> Self {
        Terms { burst, ..self }
    }

    /// A bucket that holds `initial` units (at most the burst) at `now`.
    pub(crate) fn start(&self, initial: u64, now: Nanos) -> Level {
        Level { amount: self.price(initial.min(self.burst)), at: now }
    }

    pub(crate) fn burst(&self) -> u64 {
        self.burst
    }

    /// Time in which an empty bucket fills, in nanoseconds, rounded up.
    pub(crate) fn fill_time(&self) -> Nanos {
        let intervals = self.full().unsigned_abs().div_ceil(self.gain.into());
        u64::try_from(intervals).unwrap_or(u64::MAX).saturating_mul(self.interval)
    }

    /// How late a grant may be used; the gain beyond that is lost. On a grid, this is the time in which the bucket
    /// fills.
    pub(super) fn allowance(&self) -> Nanos {
        let fill_time = self.fill_time();
        if self.is_on_grid { fill_time } else { lag_allowance(fill_time) }
    }

    /// The amount in a full bucket.
    pub(crate) fn full(&self) -> i128 {
        self.price(self.burst)
    }

    /// The price of `units`, in credits.
    pub(crate) fn price(&self, units: u64) -> i128 {
        product(units, self.price)
    }

    /// The gain from `from` to `to`, which is not before `from`.
    pub(crate) fn gained(&self, from: Nanos, to: Nanos) -> i128 {
        product(self.intervals(to) - self.intervals(from), self.gain)
    }

    /// Intervals that have ended at `time`.
    fn intervals(&self, time: Nanos) -> u64 {
        let since = time.saturating_sub(self.start);
        if self.interval == 1 { since } else { since / self.interval }
    }

    /// The amount at `time`, which is not before the last grant. At the time of the level itself, the amount may exceed
    /// a full bucket by the rest of an interval's gain. Later this excess is lost.
    pub(crate) fn amount_at(&self, level: Level, time: Nanos) -> i128 {
        if time == level.at {
            return level.amount;
        }
        level.amount.saturating_add(self.gained(level.at, time)).min(self.full())
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the
    /// end of the clock.
    pub(crate) fn conforms_at(&self, level: Level, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(level.at);
        let missing = self.price(cost).saturating_sub(self.amount_at(level, start));
        if missing <= 0 {
            return Some(start);
        }
        let needed = u64::try_from(missing.unsigned_abs().div_ceil(self.gain.into())).ok()?;
        self.intervals(start).checked_add(needed)?.checked_mul(self.interval)?.checked_add(self.start)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(requested, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty.
    pub(crate) fn charge(&self, level: &mut Level, requested: Nanos, grant: Nanos, cost: u64) -> Gap {
        let gap = self.settle(level, requested);
        let (at, full) = (grant.max(level.at), self.full());
        let gathered = level.amount.saturating_add(self.gained(level.at, at));
        let price = self.price(cost);
        let left = gathered.saturating_sub(price);
        // If `grant` is the earliest possible time, less than an interval's gain is left, and that is kept. A charge
        // before that time leaves the bucket empty, not in debt.
        let kept = if left < self.gain.into() { left } else { gathered.min(full).saturating_sub(price) };
        *level = Level { amount: kept.max(gathered.min(0)), at };
        let lost = left.saturating_sub(level.amount);
        gap.then(Gap { room: if lost < 0 { 0 } else { full.saturating_sub(gathered) }, lost })
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
    pub(crate) fn balance(&self, level: Level, now: Nanos) -> i128 {
        let time = now.max(level.at);
        let credit = self.amount_at(level, time);
        let ahead = u128::from(self.intervals(time) - self.intervals(now)) * u128::from(self.gain);
        let (there, owed) = (credit.max(0).unsigned_abs(), ahead.saturating_add(credit.min(0).unsigned_abs()));
        let whole = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        match owed.checked_sub(there) {
            Some(missing) => -whole(missing.div_ceil(self.price.into())),
            None => whole((there - owed) / u128::from(self.price)),
        }
    }

    /// Brings a state from the past up to `now`.
    pub(crate) fn settle(&self, level: &mut Level, now: Nanos) -> Gap {
        if now <= level.at {
            return Gap::NONE;
        }
        *level = Level { amount: level.amount.saturating_add(self.gained(level.at, now)), at: now };
        level.cut(self.full())
    }

    /// Brings the state up to `now` for a waiter for `cost` units, whose request was made at `requested`. The waiter
    /// keeps the amount above a full bucket that it gathers.
    pub(crate) fn gather(&self, level: &mut Level, now: Nanos, requested: Nanos, cost: u64) -> Gap {
        if now <= requested.max(level.at) {
            return Gap::NONE;
        }
        let gap = self.settle(level, requested);
        *level = Level { amount: level.amount.saturating_add(self.gained(level.at, now)), at: now };
        gap.then(self.cut_for(level, cost))
    }

    /// Cuts off the amount above a full bucket at `now`, except the amount that a waiter for `cost` units has gathered.
    pub(crate) fn spill(&self, level: &mut Level, now: Nanos, cost: u64) -> Gap {
        self.settle(level, now).then(self.cut_for(level, cost))
    }

    /// Cuts off the amount above a full bucket that a waiter of this cost does not need.
    fn cut_for(&self, level: &mut Level, cost: u64) -> Gap {
        let full = self.full();
        let gap = level.cut(full.max(self.price(cost)));
        if level.amount > full { gap } else { Gap { room: full.saturating_sub(level.amount), ..gap } }
    }

    /// Adds `units` at `now`, up to the size.
    pub(crate) fn credit(&self, level: &mut Level, now: Nanos, units: u64) -> Gap {
        self.add(level, now, self.price(units))
    }

    /// Credits `units` that were granted at `grant` and not used, less the gain since then: without the grant, the
    /// bucket could have been full, and would have lost that gain. A cost above the burst left the bucket empty, not in
    /// debt, so at most the burst is credited.
    pub(crate) fn give_back(&self, level: &mut Level, now: Nanos, grant: Nanos, units: u64) -> Gap {
        let refund = self.price(units.min(self.burst)).saturating_sub(self.gained(grant, now.max(grant)));
        self.add(level, now, refund)
    }

    fn add(&self, level: &mut Level, now: Nanos, amount: i128) -> Gap {
        let gap = self.settle(level, now);
        if amount <= 0 || level.amount > self.full() {
            return gap;
        }
        level.amount = level.amount.saturating_add(amount);
        gap.then(level.cut(self.full()))
    }

    /// Takes `units` at `now`. Missing units become a debt that is paid before the next grant.
    pub(crate) fn pay(&self, level: &mut Level, now: Nanos, units: u64) -> Gap {
        let gap = self.settle(level, now);
        level.amount = level.amount.saturating_sub(self.price(units));
        gap
    }

    /// Empties the bucket at `time`; it fills from then on. A debt stays. If the last grant is after `time`, nothing
    /// changes.
    pub(crate) fn empty(&self, level: &mut Level, time: Nanos) -> Gap {
        let gap = self.settle(level, time);
        if level.at > time { gap } else { gap.then(level.cut(0)) }
    }

    /// Whether the bucket is full at `time`, or at the last grant if that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.amount_at(level, time.max(level.at)) >= self.full()
    }

    /// Continues with the terms `to` from `now`, or from the last grant if that is later. Saved credit is kept exactly.
    pub(crate) fn change(&self, level: &mut Level, now: Nanos, to: &Terms) {
        self.settle(level, now);
        level.amount = self.scaled(level.amount, to);
    }

    /// Converts an amount to the credits of `to`.
    pub(crate) fn scaled(&self, amount: i128, to: &Terms) -> i128 {
        let (from, to) = (i128::from(self.price), i128::from(to.price));
        // The fraction of a unit times its new price may need all 128 bits, but is not negative.
        let rest = amount.rem_euclid(from).unsigned_abs() * to.unsigned_abs() / from.unsigned_abs();
        amount.div_euclid(from).saturating_mul(to).saturating_add_unsigned(rest)
    }

    /// Moves the schedule of a request made at `requested` later by `by` nanoseconds, in which nothing is gained. Does
    /// nothing to a bucket on a grid.
    pub(crate) fn delay(&self, level: &mut Level, requested: Nanos, by: Nanos) -> Gap {
        if self.is_on_grid {
            return Gap::NONE;
        }
        let gap = self.settle(level, requested);
        level.at = level.at.saturating_add(by);
        gap
    }

    /// The state for the fast path. `None` if the bucket holds more than its burst.
    pub(crate) fn fast_path(&self, level: Level) -> Option<Gaining> {
        let &Terms { gain, interval, start, price, .. } = self;
        let missing = u128::try_from(self.full().saturating_sub(level.amount)).ok()?;
        Some(Gaining { gain, interval, start, price, full: self.full().unsigned_abs(), missing, at: level.at })
    }

    /// The state at `at`, `missing` credits below a full bucket.
    pub(crate) fn resume(&self, missing: u128, at: Nanos) -> Level {
        Level { amount: self.full().saturating_sub_unsigned(missing), at }
    }
}

/// The product of two 64-bit numbers, which never overflows 128 bits. The top bit is for the sign; no real burst or
/// wait needs it.
fn product(a: u64, b: u64) -> i128 {
    i128::try_from(u128::from(a) * u128::from(b)).unwrap_or(i128::MAX)
}

/// One bucket: its rate, its burst and its credit at a time. It has no clock and never waits. The caller passes the
/// time, in nanoseconds since an origin of the caller's choice, and waits until the time of a grant. Amounts are whole
/// units.
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

    /// A bucket on a grid that begins at `now`: `refill` units every `interval` nanoseconds. It keeps at most `burst`
    /// units and holds `initial` units (at most `burst`) at `now`. The first refill arrives after one interval.
    #[must_use]
    pub fn on_grid(refill: NonZeroU64, interval: NonZeroU64, burst: u64, initial: u64, now: Nanos) -> Self {
        let terms =
            Terms { gain: refill.get(), interval: interval.get(), is_on_grid: true, start: now, price: 1, burst };
        Bucket { terms, level: terms.start(initial, now) }
    }

    /// The most units the bucket holds.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.terms.burst
    }

    /// Time in which an empty bucket fills, in nanoseconds, rounded up. A consumer that falls further behind its
    /// schedule than this loses the excess.
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
    /// then leaves it empty. An earlier charge also leaves the bucket empty: it grants more than the rate, and leaves
    /// no debt.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        self.terms.charge(&mut self.level, asked, grant, cost);
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> i128 {
        self.terms.balance(self.level, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(refill: u64, interval: u64, max: u64, initial: u64) -> Bucket {
        Bucket::on_grid(NonZeroU64::new(refill).unwrap(), NonZeroU64::new(interval).unwrap(), max, initial, 0)
    }

    /// A bucket of 5 that holds `amount`; one credit is one unit.
    fn holding(amount: i128) -> (Terms, Level) {
        (Terms::new(Rate::new(NonZeroU64::MIN, NonZeroU64::MIN), NonZeroU64::new(5).unwrap()), Level { amount, at: 0 })
    }

    /// Settling needs to know how much more the bucket could have held, and how much was cut off.
    #[test]
    fn what_overflows_is_recorded_unless_a_waiter_needs_it() {
        let spilled = |amount, cost| {
            let (terms, mut level) = holding(amount);
            let gap = terms.spill(&mut level, 0, cost);
            ({ level.amount }, gap.room, gap.lost)
        };
        assert_eq!([spilled(3, 0), spilled(3, 9), spilled(7, 0)], [(3, 2, 0), (3, 2, 0), (5, 0, 2)]);
        assert_eq!([spilled(7, 9), spilled(12, 9)], [(7, 2, 0), (9, 0, 3)]);
        let credited = |amount, units| {
            let (terms, mut level) = holding(amount);
            let gap = terms.credit(&mut level, 0, units);
            ({ level.amount }, gap.room, gap.lost)
        };
        assert_eq!([credited(3, 1), credited(3, 4), credited(5, 4)], [(4, 1, 0), (5, 0, 2), (5, 0, 4)]);
    }

    #[test]
    fn a_late_charge_leaves_at_most_the_size_of_the_bucket() {
        let mut grid = grid(1, 10, 2, 0);
        assert_eq!(grid.burst(), 2);
        grid.charge(0, 100, 1);
        assert_eq!(grid.balance(100), 1);
    }

    #[test]
    fn refills_since_the_grant_are_deducted_from_what_is_given_back() {
        let mut grid = grid(1, 10, 5, 5);
        grid.charge(0, 0, 5);
        grid.terms.give_back(&mut grid.level, 20, 0, 5);
        assert_eq!(grid.balance(20), 5);
        grid.terms.pay(&mut grid.level, 20, 7);
        assert_eq!((grid.balance(39), grid.balance(40), grid.balance(50)), (-1, 0, 1), "two were owed");
        // Another rate begins another grid.
        let terms = grid.terms.with_rate("3/20ns".parse().unwrap(), 5);
        assert_eq!(terms, Terms { gain: 3, interval: 20, is_on_grid: true, start: 5, price: 1, burst: 5 });
    }

    #[test]
    fn a_balance_before_the_last_charge_counts_what_comes() {
        let mut grid = grid(1, 10, 9, 9);
        grid.charge(0, 30, 4);
        assert_eq!([0, 15, 30].map(|now| grid.balance(now)), [2, 3, 5]);
    }
}
