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
//! While a bucket has open grants, whose costs may change, `Terms::cut` also records what it cuts off: see
//! `reflection.rs`.

use super::reflection::NOTHING;
use super::state::{Gaining, Level, State};
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

    /// The amount after `cost` units at `now`, in the usual case: the bucket holds them, and at most its burst.
    #[inline]
    pub(super) fn after_usual(&self, level: Level, now: Nanos, cost: u64) -> Option<i128> {
        let there = if level.at <= now { self.amount_at(level, now) } else { return None };
        let left = there - self.price(cost);
        (left >= 0 && there <= self.full()).then_some(left)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(requested, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty.
    pub(crate) fn charge(&self, state: &mut State, requested: Nanos, grant: Nanos, cost: u64) {
        self.advance(state, requested);
        let (at, full, price) = (grant.max(state.level.at), self.full(), self.price(cost));
        let gathered = state.level.amount.saturating_add(self.gained(state.level.at, at));
        let left = gathered.saturating_sub(price);
        // If `grant` is the earliest possible time, less than an interval's gain is left, and that is kept.
        let bound = full.max(if left < self.gain.into() { gathered } else { price });
        Terms::cut(state, gathered, bound);
        state.level = Level { amount: state.level.amount.saturating_sub(price), at };
        // A charge before that time leaves the bucket empty, not in debt.
        let least = gathered.min(0);
        if left < least {
            Terms::cut(state, least, least);
        }
    }

    /// Sets the amount, and cuts off what is above `bound`.
    fn cut(state: &mut State, amount: i128, bound: i128) {
        let left = amount.min(bound);
        state.level.amount = left;
        if let Some(open) = state.open_mut() {
            open.note(left, bound, amount.saturating_sub(left));
        }
    }

    /// Opens the latest charge, for a grant of `cost` units at `at`: its cost may change. A bucket that was charged
    /// nothing may not have been brought up to that time, because a waiter may gather more than a full bucket.
    pub(crate) fn open(&self, state: &mut State, number: u64, at: Nanos, cost: u64) {
        let Level { amount, at: latest } = state.level;
        let is_behind = latest < at;
        let free = amount.saturating_add(self.price(cost)).saturating_add(self.gained(latest, at.max(latest)));
        let open = state.open_or_new();
        let excess = free.saturating_add(open.lost()).saturating_sub(self.full());
        open.open(number, if cost > 0 || is_behind { excess } else { NOTHING }, self.burst);
    }

    /// Settles a grant that was charged the first of these costs, and really cost the second. If it is open, the level
    /// is then as if it had cost that from the start.
    ///
    /// If it is not open, a higher cost is owed from `now` on. A lower cost is credited, less the gain since `grant`, the
    /// time of the grant: the bucket could have been full, and would have lost that gain. A cost above the burst left
    /// the bucket empty, not in debt, so at most the burst is credited. Nothing is credited before a later grant.
    pub(crate) fn settle(
        &self,
        state: &mut State,
        now: Nanos,
        (number, grant): (u64, Nanos),
        [charged, real]: [u64; 2],
    ) {
        if real == charged {
            return state.close(number);
        }
        let more = self.price(real).saturating_sub(self.price(charged));
        let gathers = |burst| self.price(real.min(charged).saturating_sub(burst));
        let gathers = (real < charged || charged == 0).then_some(gathers);
        if let Some(falls) = state.open_mut().and_then(|open| open.settle(number, more, gathers)) {
            state.level.amount = state.level.amount.saturating_sub(falls);
            state.close(number);
        } else if real > charged {
            self.pay(state, now, real - charged);
        } else if now >= grant.max(state.level.at) {
            let unused = charged.min(self.burst).saturating_sub(real);
            self.add(state, now, self.price(unused).saturating_sub(self.gained(grant, now)));
        }
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
    pub(crate) fn advance(&self, state: &mut State, now: Nanos) {
        if now > state.level.at {
            self.gain_until(state, now, self.full());
        }
    }

    /// Gains until `now`, which is not before the time of the level, and cuts off what is above `bound`.
    fn gain_until(&self, state: &mut State, now: Nanos, bound: i128) {
        let amount = state.level.amount.saturating_add(self.gained(state.level.at, now));
        state.level.at = now;
        Terms::cut(state, amount, bound);
    }

    /// Brings the state up to `now` for a waiter for `cost` units, whose request was made at `requested`. The waiter
    /// keeps the amount above a full bucket that it gathers.
    pub(crate) fn gather(&self, state: &mut State, now: Nanos, requested: Nanos, cost: u64) {
        if now > requested.max(state.level.at) {
            self.advance(state, requested);
            self.gain_until(state, now, self.full().max(self.price(cost)));
        }
    }

    /// Cuts off the amount above a full bucket at `now`, except the amount that a waiter for `cost` units has gathered.
    pub(crate) fn spill(&self, state: &mut State, now: Nanos, cost: u64) {
        self.advance(state, now);
        Terms::cut(state, state.level.amount, self.full().max(self.price(cost)));
    }

    /// Adds `units` at `now`, up to the size.
    pub(crate) fn credit(&self, state: &mut State, now: Nanos, units: u64) {
        self.add(state, now, self.price(units));
    }

    fn add(&self, state: &mut State, now: Nanos, amount: i128) {
        self.advance(state, now);
        let before = state.level.amount;
        if amount > 0 {
            Terms::cut(state, before.saturating_add(amount), self.full().max(before));
        }
    }

    /// Takes `units` at `now`. Missing units become a debt that is paid before the next grant.
    pub(crate) fn pay(&self, state: &mut State, now: Nanos, units: u64) {
        self.advance(state, now);
        state.level.amount = state.level.amount.saturating_sub(self.price(units));
    }

    /// Empties the bucket at `time`; it fills from then on. A debt stays. If the last grant is after `time`, nothing
    /// changes.
    pub(crate) fn empty(&self, state: &mut State, time: Nanos) {
        self.advance(state, time);
        if state.level.at <= time {
            Terms::cut(state, state.level.amount, 0);
        }
    }

    /// Whether the bucket is full at `time`, or at the last grant if that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.amount_at(level, time.max(level.at)) >= self.full()
    }

    /// Continues with the terms `to` from `now`, or from the last grant if that is later. Saved credit is kept exactly.
    pub(crate) fn change(&self, state: &mut State, now: Nanos, to: &Terms) {
        self.advance(state, now);
        if self.price == to.price {
            return;
        }
        state.level.amount = self.scaled(state.level.amount, to);
        if let Some(open) = state.open_mut() {
            open.convert(|amount| self.scaled(amount, to));
        }
    }

    /// Converts an amount to the credits of `to`.
    fn scaled(&self, amount: i128, to: &Terms) -> i128 {
        let (from, to) = (i128::from(self.price), i128::from(to.price));
        // The fraction of a unit times its new price may need all 128 bits, but is not negative.
        let rest = amount.rem_euclid(from).unsigned_abs() * to.unsigned_abs() / from.unsigned_abs();
        amount.div_euclid(from).saturating_mul(to).saturating_add_unsigned(rest)
    }

    /// Moves the schedule of a request made at `requested` later by `by` nanoseconds, in which nothing is gained. Does
    /// nothing to a bucket on a grid.
    pub(crate) fn delay(&self, state: &mut State, requested: Nanos, by: Nanos) {
        if !self.is_on_grid {
            self.advance(state, requested);
            state.level.at = state.level.at.saturating_add(by);
        }
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
    pub fn new(rate: Rate, burst: NonZeroU64, initial: u64, now: Nanos) -> Self {
        let terms = Terms::new(rate, burst);
        Bucket { terms, level: terms.start(initial, now) }
    }

    /// A bucket on a grid that begins at `now`: `refill` units every `interval` nanoseconds. It keeps at most `burst`
    /// units and holds `initial` units (at most `burst`) at `now`. The first refill arrives after one interval.
    pub fn on_grid(refill: NonZeroU64, interval: NonZeroU64, burst: u64, initial: u64, now: Nanos) -> Self {
        let terms =
            Terms { gain: refill.get(), interval: interval.get(), is_on_grid: true, start: now, price: 1, burst };
        Bucket { terms, level: terms.start(initial, now) }
    }

    /// The most units the bucket holds.
    pub fn burst(&self) -> u64 {
        self.terms.burst
    }

    /// Time in which an empty bucket fills, in nanoseconds, rounded up. A consumer that falls further behind its
    /// schedule than this loses the excess.
    pub fn fill_time(&self) -> Nanos {
        self.terms.fill_time()
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` if that is beyond the end of the clock, 584 years after its origin.
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.terms.conforms_at(self.level, now, cost)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// If `grant` is later than that, the bucket has filled up in between, at most to its burst. A cost above the burst
    /// then leaves it empty. An earlier charge also leaves the bucket empty: it grants more than the rate, and leaves
    /// no debt.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        let mut state = State::from(self.level);
        self.terms.charge(&mut state, asked, grant, cost);
        self.level = state.level;
    }

    /// Whole units that could be taken at `now`; negative if the last grant is in the future.
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
        let mut state = State::from(grid.level);
        grid.terms.settle(&mut state, 20, (1, 0), [5, 0]);
        grid.level = state.level;
        assert_eq!(grid.balance(20), 5);
        grid.terms.pay(&mut state, 20, 7);
        grid.level = state.level;
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
