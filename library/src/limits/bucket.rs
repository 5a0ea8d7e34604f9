//! One bucket, as pure arithmetic.
//!
//! The generic cell rate algorithm (ITU-T I.371) and the token bucket are the same algorithm in two forms. This is the
//! bucket form. The state is an amount of *credit* at a time. To avoid all rounding, credit has its own unit: with a
//! rate of `units` per `period` nanoseconds (in lowest terms), one unit costs `period` credits, and one nanosecond
//! earns `units` credits. Both fit 64 bits, so every product fits 128.
//!
//! A bucket on a *grid* is filled in whole refills: one arrives at every point of a grid of intervals, which begins at the
//! start and never moves. Its credits are units. It is the same arithmetic: a token bucket has a grid of nanoseconds.
//!
//! While a cost waits, its credit may grow beyond the size of the bucket until the cost is paid. Its time is the end of an
//! interval, and the rest of that interval's gain is kept as credit, so the schedule does not drift. The same rule grants
//! a cost above the burst after exactly the time that the excess takes.
//!
//! Whatever changes a level also returns what that does to a difference in the level: a `Gap`, which settling needs.

use super::state::{Gaining, Level};
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::Rate;
use std::num::NonZeroU64;

/// A busy machine wakes a process this late.
const USUAL_LATENESS: Nanos = 10 * MILLISECOND;

/// How late a grant may be used without a loss of rate, for a bucket that fills in `fill_time`: a tenth of that, but at least
/// 10 ms or that whole time, whichever is less.
pub(super) fn allowance(fill_time: Nanos) -> Nanos {
    (fill_time / 10).max(fill_time.min(USUAL_LATENESS))
}

/// What a time did to a difference in the level of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Gap {
    /// The most that the level could have been higher before something would have been cut off. 0 if something was.
    pub(super) room: i128,
    /// What was cut off.
    pub(super) lost: i128,
}

impl Gap {
    pub(crate) const NONE: Gap = Gap { room: i128::MAX, lost: 0 };

    /// Another cut follows.
    pub(super) fn then(self, next: Gap) -> Gap {
        let room = if next.lost > 0 { 0 } else { next.room.max(0) };
        Gap { room: self.room.min(room), lost: self.lost.saturating_add(next.lost.max(0)) }
    }
}

impl Level {
    /// Cuts off what is above `most`.
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

    /// The same at another rate. A grid begins anew at `start`.
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

    /// How late a grant may be used; what the bucket would gain beyond that is lost. On a grid a full bucket of refills is kept.
    pub(super) fn allowance(&self) -> Nanos {
        let fill_time = self.fill_time();
        if self.is_on_grid { fill_time } else { allowance(fill_time) }
    }

    /// The amount in a full bucket.
    pub(crate) fn full(&self) -> i128 {
        self.price(self.burst)
    }

    /// What `units` cost.
    pub(crate) fn price(&self, units: u64) -> i128 {
        product(units, self.price)
    }

    /// What comes in from `from` to `to`, which is not before `from`.
    pub(crate) fn gained(&self, from: Nanos, to: Nanos) -> i128 {
        product(self.intervals(to) - self.intervals(from), self.gain)
    }

    /// Intervals that have ended at `time`.
    fn intervals(&self, time: Nanos) -> u64 {
        let since = time.saturating_sub(self.start);
        if self.interval == 1 { since } else { since / self.interval }
    }

    /// The amount at `time`, which is not before the last grant. The level may hold more than the size: what an interval
    /// left over for requests at that time. Later the excess is lost.
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

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty.
    pub(crate) fn charge(&self, level: &mut Level, asked: Nanos, grant: Nanos, cost: u64) -> Gap {
        let gap = self.settle(level, asked);
        let (at, full) = (grant.max(level.at), self.full());
        let gathered = level.amount.saturating_add(self.gained(level.at, at));
        let price = self.price(cost);
        let left = gathered.saturating_sub(price);
        // If `grant` is the earliest possible time, less than an interval's gain is left, and that is kept.
        // A charge before that time leaves the bucket empty, not in debt.
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

    /// Brings the state up to `now` for a waiter that asked at `asked` and needs `cost` units. What it gathers above a full
    /// bucket is not lost to anybody.
    pub(crate) fn gather(&self, level: &mut Level, now: Nanos, asked: Nanos, cost: u64) -> Gap {
        if now <= asked.max(level.at) {
            return Gap::NONE;
        }
        let gap = self.settle(level, asked);
        *level = Level { amount: level.amount.saturating_add(self.gained(level.at, now)), at: now };
        gap.then(self.cut_for(level, cost))
    }

    /// At `now`, what is above a full bucket is lost, except what a waiter that needs `cost` units has gathered.
    pub(crate) fn spill(&self, level: &mut Level, now: Nanos, cost: u64) -> Gap {
        self.settle(level, now).then(self.cut_for(level, cost))
    }

    /// Cuts off what is above a full bucket and not needed by a waiter of this cost.
    fn cut_for(&self, level: &mut Level, cost: u64) -> Gap {
        let full = self.full();
        let cut = level.cut(full.max(self.price(cost)));
        if level.amount > full {
            Gap { lost: 0, ..cut }
        } else {
            Gap { room: full.saturating_sub(level.amount), ..cut }
        }
    }

    /// Adds `units` at `now`, up to the size.
    pub(crate) fn credit(&self, level: &mut Level, now: Nanos, units: u64) -> Gap {
        self.add(level, now, self.price(units))
    }

    /// Credits `units` that were granted at `grant` and not used, less what came in since, because the bucket could have
    /// been full. A cost above the burst left it empty, not in debt, so at most the burst is credited.
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

    /// Empties the bucket at `time`; it fills from then on. Debt stays, and so does a grant after `time`.
    pub(crate) fn empty(&self, level: &mut Level, time: Nanos) -> Gap {
        let gap = self.settle(level, time);
        if level.at > time { gap } else { gap.then(level.cut(0)) }
    }

    /// Whether the bucket is full at `time`, or at the last grant if that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.amount_at(level, time.max(level.at)) >= self.full()
    }

    /// Continues as `to` from `now`, or from the last grant if that is later. Saved credit is kept exactly.
    pub(crate) fn change(&self, level: &mut Level, now: Nanos, to: &Terms) {
        self.settle(level, now);
        level.amount = self.scaled(level.amount, to);
    }

    /// The amount in the credits of `to`.
    pub(crate) fn scaled(&self, amount: i128, to: &Terms) -> i128 {
        let (from, to) = (i128::from(self.price), i128::from(to.price));
        // The fraction of a unit times its new price may need all 128 bits, but is not negative.
        let rest = amount.rem_euclid(from).unsigned_abs() * to.unsigned_abs() / from.unsigned_abs();
        amount.div_euclid(from).saturating_mul(to).saturating_add_unsigned(rest)
    }

    /// Moves the schedule of a request made at `asked` later by `by` nanoseconds, in which nothing is gained.
    /// A grid stays.
    pub(crate) fn delay(&self, level: &mut Level, asked: Nanos, by: Nanos) -> Gap {
        if self.is_on_grid {
            return Gap::NONE;
        }
        let gap = self.settle(level, asked);
        level.at = level.at.saturating_add(by);
        gap
    }

    /// The state for the fast path. `None` if the bucket holds more than its burst.
    pub(crate) fn fast_path(&self, level: Level) -> Option<Gaining> {
        let &Terms { gain, interval, start, price, .. } = self;
        let missing = u128::try_from(self.full().saturating_sub(level.amount)).ok()?;
        Some(Gaining { gain, interval, start, price, full: self.full().unsigned_abs(), missing, at: level.at })
    }

    /// The state at `at` in which `missing` credits are missing to a full bucket.
    pub(crate) fn resume(&self, missing: u128, at: Nanos) -> Level {
        Level { amount: self.full().saturating_sub_unsigned(missing), at }
    }
}

/// A product of two 64-bit numbers never overflows 128 bits. The top bit is for the sign; no real burst or wait needs
/// it.
fn product(a: u64, b: u64) -> i128 {
    i128::try_from(u128::from(a) * u128::from(b)).unwrap_or(i128::MAX)
}

/// One bucket: its rate, its burst and its credit at a time. It has no clock and never waits: the caller says what time
/// it is, in nanoseconds since an origin of the caller's choice, and waits until the time of a grant. Amounts are whole
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

    /// A bucket on a grid that begins at `now`: `refill` units every `interval` nanoseconds, of which at most `burst`
    /// are kept. It holds `initial` (at most `burst`). The first refill arrives after one interval.
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
    /// then leaves it empty. So does a charge that is earlier: it grants more than the rate, and leaves no debt.
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

    /// Takes `costs` one after another, each at the time of the grant before it.
    fn grants(grid: &mut Bucket, costs: &[u64]) -> Vec<Nanos> {
        let mut now = 0;
        let mut take = |cost| {
            let grant = grid.conforms_at(now, cost).unwrap();
            grid.charge(now, grant, cost);
            now = grant;
            grant
        };
        costs.iter().map(|&cost| take(cost)).collect()
    }

    #[test]
    fn refills_arrive_whole_and_on_the_grid() {
        assert_eq!(grants(&mut grid(2, 10, 4, 1), &[1, 1, 1, 3, 1, 1]), [0, 10, 10, 30, 30, 40]);
    }

    #[test]
    fn a_bucket_of_size_0_still_passes_refills_to_waiters() {
        assert_eq!(grants(&mut grid(2, 10, 0, 0), &[1, 5, 1]), [10, 30, 40]);
    }

    #[test]
    fn a_refill_larger_than_the_bucket_pays_a_waiting_cost_first() {
        assert_eq!(grants(&mut grid(9, 10, 5, 0), &[4, 5, 1]), [10, 10, 20]);
    }

    #[test]
    fn a_late_charge_leaves_at_most_the_size_of_the_bucket() {
        let mut grid = grid(1, 10, 2, 0);
        grid.charge(0, 100, 1);
        assert_eq!(grid.balance(100), 1);
    }

    #[test]
    fn idle_time_saves_up_to_the_maximum_and_the_grid_stays() {
        let mut grid = grid(1, 10, 5, 5);
        grid.charge(0, 0, 5);
        assert_eq!(grid.balance(39), 3);
        assert_eq!(grid.balance(1_009), 5);
        assert_eq!(grid.conforms_at(1_009, 6), Some(1_010));
    }

    #[test]
    fn refills_since_the_grant_are_deducted_from_what_is_given_back() {
        let mut grid = grid(1, 10, 5, 5);
        grid.charge(0, 0, 5);
        grid.terms.give_back(&mut grid.level, 20, 0, 5);
        assert_eq!(grid.balance(20), 5);
        grid.terms.pay(&mut grid.level, 20, 7);
        assert_eq!((grid.balance(39), grid.balance(40), grid.balance(50)), (-1, 0, 1), "two were owed");
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = u64::MAX;
        let mut grid = grid(most / 2, 100, most / 2, 0);
        assert_eq!(grants(&mut grid, &[most, most / 2 - 1, 1]), [300, 300, 400]);
        assert_eq!(grid.conforms_at(most, most), None);
    }
}
