//! One bucket that is filled in whole refills, as pure arithmetic.
//!
//! A refill arrives at every point of a grid of intervals. The grid begins at the start and never moves. A waiting cost
//! collects refills, even beyond the size of the bucket, until it is paid. What is left then stays, up to that size.
//! The level's amount is in units.

use super::fill::Fill;
use super::state::{Gaining, Level};
use crate::clock::Nanos;
use std::num::NonZeroU64;

/// The fixed numbers of such a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    refill: u64,
    interval: u64,
    max: u64,
    /// The first point of the grid. No refill arrives at it.
    start: Nanos,
}

impl Terms {
    /// `refill` units in every `interval` nanoseconds from `start` on.
    pub(crate) fn with_rate(self, refill: NonZeroU64, interval: NonZeroU64, start: Nanos) -> Self {
        Terms { refill: refill.get(), interval: interval.get(), start, ..self }
    }

    pub(crate) fn with_max(self, max: u64) -> Self {
        Terms { max, ..self }
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The earliest time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the
    /// end of the clock.
    pub(crate) fn conforms_at(&self, level: Level, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(level.at);
        let missing = i128::from(cost) - self.amount_at(level, start);
        if missing <= 0 {
            return Some(start);
        }
        let refills = u64::try_from(missing.unsigned_abs().div_ceil(self.refill.into())).ok()?;
        let ticks = self.ticks(start).checked_add(refills)?;
        ticks.checked_mul(self.interval)?.checked_add(self.start)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// Later refills count only as far as the bucket has room.
    pub(crate) fn charge(&self, level: &mut Level, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(level.at);
        let there = self.amount_at(*level, start);
        if grant <= start && there >= i128::from(cost) {
            *level = Level { amount: there - i128::from(cost), at: start };
            return;
        }
        let refills = self.ticks(grant.max(start)) - self.ticks(start);
        let gathered = there.saturating_add(self.refilled(refills));
        let needed = (i128::from(cost) - there).max(0).unsigned_abs().div_ceil(self.refill.into());
        // The rest of a refill goes to the next waiter, until it overflows.
        let kept = if u128::from(refills) == needed { gathered } else { gathered.min(self.max.into()) };
        // A charge before there is enough leaves the bucket empty, not in debt.
        let left = (kept - i128::from(cost)).max(gathered.min(0));
        *level = Level { amount: left, at: grant.max(start) };
    }

    /// Units that could be taken at `now`; 0 if the last grant is in the future.
    pub(crate) fn available(&self, level: Level, now: Nanos) -> u64 {
        if now < level.at { 0 } else { u64::try_from(self.amount_at(level, now).max(0)).unwrap_or(u64::MAX) }
    }

    /// The state for the fast path. `None` if the bucket holds more than it keeps.
    pub(crate) fn fast_path(&self, level: Level) -> Option<Gaining> {
        let (max, interval, start) = (i128::from(self.max), self.interval, self.start);
        let missing = u128::try_from(max.saturating_sub(level.amount)).ok()?;
        Some(Gaining { gain: self.refill, interval, start, price: 1, full: self.max.into(), missing, at: level.at })
    }

    /// Units of so many refills.
    fn refilled(&self, refills: u64) -> i128 {
        i128::try_from(u128::from(refills) * u128::from(self.refill)).unwrap_or(i128::MAX)
    }

    /// The number of grid points up to `time`.
    fn ticks(&self, time: Nanos) -> u64 {
        time.saturating_sub(self.start) / self.interval
    }
}

impl Fill for Terms {
    fn fill_time(&self) -> Nanos {
        self.max.div_ceil(self.refill).saturating_mul(self.interval)
    }

    fn full(&self) -> i128 {
        self.max.into()
    }

    fn price(&self, units: u64) -> i128 {
        units.into()
    }

    fn gained(&self, from: Nanos, to: Nanos) -> i128 {
        self.refilled(self.ticks(to) - self.ticks(from))
    }
}

/// Whole refills on a grid: `refill` units every `interval`, of which at most `max` are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub(super) terms: Terms,
    pub(super) level: Level,
}

impl Grid {
    /// A bucket of `max` units that holds `initial` (at most `max`) at `now`, where its grid begins.
    #[must_use]
    pub fn new(refill: NonZeroU64, interval: NonZeroU64, max: u64, initial: u64, now: Nanos) -> Self {
        let terms = Terms { refill: refill.get(), interval: interval.get(), max, start: now };
        Grid { terms, level: Level { amount: initial.min(max).into(), at: now } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(refill: u64, interval: u64, max: u64, initial: u64) -> Grid {
        Grid::new(NonZeroU64::new(refill).unwrap(), NonZeroU64::new(interval).unwrap(), max, initial, 0)
    }

    fn conforms_at(grid: &Grid, now: Nanos, cost: u64) -> Option<Nanos> {
        grid.terms.conforms_at(grid.level, now, cost)
    }

    fn charge(grid: &mut Grid, asked: Nanos, grant: Nanos, cost: u64) {
        grid.terms.charge(&mut grid.level, asked, grant, cost);
    }

    fn available(grid: &Grid, now: Nanos) -> u64 {
        grid.terms.available(grid.level, now)
    }

    /// Takes `costs` one after another, each at the time of the grant before it.
    fn grants(grid: &mut Grid, costs: &[u64]) -> Vec<Nanos> {
        let mut now = 0;
        let mut take = |cost| {
            let grant = conforms_at(grid, now, cost).unwrap();
            charge(grid, now, grant, cost);
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
        charge(&mut grid, 0, 100, 1);
        assert_eq!(available(&grid, 100), 1);
    }

    #[test]
    fn idle_time_saves_up_to_the_maximum_and_the_grid_stays() {
        let mut grid = grid(1, 10, 5, 5);
        charge(&mut grid, 0, 0, 5);
        assert_eq!(available(&grid, 39), 3);
        assert_eq!(available(&grid, 1_009), 5);
        assert_eq!(conforms_at(&grid, 1_009, 6), Some(1_010));
    }

    #[test]
    fn refills_since_the_grant_are_deducted_from_what_is_given_back() {
        let mut grid = grid(1, 10, 5, 5);
        charge(&mut grid, 0, 0, 5);
        grid.terms.give_back(&mut grid.level, 20, 0, 5);
        assert_eq!(available(&grid, 20), 5);
        grid.terms.pay(&mut grid.level, 20, 7);
        assert_eq!((available(&grid, 39), available(&grid, 40), available(&grid, 50)), (0, 0, 1), "two were owed");
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = u64::MAX;
        let mut grid = grid(most / 2, 100, most / 2, 0);
        assert_eq!(grants(&mut grid, &[most, most / 2 - 1, 1]), [300, 300, 400]);
        assert_eq!(conforms_at(&grid, most, most), None);
    }
}
