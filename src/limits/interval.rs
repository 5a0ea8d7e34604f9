//! One bucket that is filled in whole refills, as pure arithmetic.
//!
//! A refill of so many units arrives at every point of a grid of intervals, counted from the start and never moved. A
//! cost that has to wait gathers refills without regard to the size of the bucket until it is paid; what is left over
//! then stays, at most to that size. The level's amount is units.

use super::state::Level;
use crate::clock::Nanos;
use std::num::NonZeroU64;

/// What such a bucket keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    refill: u64,
    interval: u64,
    max: u64,
    /// The grid's first point, at which nothing arrives yet.
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

    /// Time in which an empty bucket fills, in nanoseconds.
    pub(crate) fn fill_time(&self) -> Nanos {
        self.max.div_ceil(self.refill).saturating_mul(self.interval)
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform. `None` beyond the end
    /// of the clock.
    pub(crate) fn conforms_at(&self, level: Level, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(level.at);
        let missing = i128::from(cost) - self.units_at(level, start);
        if missing <= 0 {
            return Some(start);
        }
        let refills = u64::try_from(missing.unsigned_abs().div_ceil(self.refill.into())).ok()?;
        let ticks = self.ticks(start).checked_add(refills)?;
        ticks.checked_mul(self.interval)?.checked_add(self.start)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// After that time only as much is gathered as the bucket keeps.
    pub(crate) fn charge(&self, level: &mut Level, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(level.at);
        let there = self.units_at(*level, start);
        if grant <= start && there >= i128::from(cost) {
            *level = Level { amount: there - i128::from(cost), at: start };
            return;
        }
        let refills = self.ticks(grant.max(start)) - self.ticks(start);
        let gathered = there.saturating_add(self.refilled(refills));
        let needed = (i128::from(cost) - there).max(0).unsigned_abs().div_ceil(self.refill.into());
        // What is left over of a refill goes to the next in line, until it overflows.
        let kept = if u128::from(refills) == needed { gathered } else { gathered.min(self.max.into()) };
        // What is charged before there is enough leaves nothing, but no debt.
        let left = (kept - i128::from(cost)).max(gathered.min(0));
        *level = Level { amount: left, at: grant.max(start) };
    }

    /// Credits `units` that were granted at `grant` and not used, less the refills since.
    pub(crate) fn give_back(&self, level: &mut Level, now: Nanos, grant: Nanos, units: u64) {
        let refills = self.ticks(now.max(grant)) - self.ticks(grant);
        self.credit(level, now, units.saturating_sub(refills.saturating_mul(self.refill)));
    }

    /// Nobody gathers any more: what is above the maximum at `now` is lost.
    pub(crate) fn spill(&self, level: &mut Level, now: Nanos) {
        self.settle(level, now);
        level.amount = level.amount.min(self.max.into());
    }

    /// Adds `units` at `now`, as far as there is room.
    pub(crate) fn credit(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        let filled = (level.amount + i128::from(units)).min(self.max.into());
        level.amount = filled.max(level.amount);
    }

    /// Takes `units` at `now`. Those that are not there are a debt, which is paid before anything is granted.
    pub(crate) fn pay(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        level.amount = level.amount.saturating_sub(units.into());
    }

    /// Has nothing at `time`, and goes on being refilled from then on. What is owed is still owed, and a grant beyond is as
    /// it was.
    pub(crate) fn empty(&self, level: &mut Level, time: Nanos) {
        self.settle(level, time);
        if level.at <= time {
            level.amount = level.amount.min(0);
        }
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and gathers up to `cost`.
    pub(crate) fn gather(&self, level: &mut Level, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(level.at);
        if now > start {
            let refills = self.ticks(now) - self.ticks(start);
            let gathered = self.units_at(*level, start).saturating_add(self.refilled(refills));
            *level = Level { amount: gathered.min(self.max.max(cost).into()), at: now };
        }
    }

    /// Nobody waits any more for what is left over of a refill.
    pub(crate) fn overflow(&self, level: &mut Level) {
        level.amount = level.amount.min(self.max.into());
    }

    /// Whether nothing more would be kept at `time`, or at the last grant where that is later.
    pub(crate) fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.units_at(level, time.max(level.at)) >= self.max.into()
    }

    /// Units that could be taken at `now`; nothing while a grant lies ahead.
    pub(crate) fn available(&self, level: Level, now: Nanos) -> u64 {
        if now < level.at { 0 } else { u64::try_from(self.units_at(level, now).max(0)).unwrap_or(u64::MAX) }
    }

    /// Brings what stands in the past up to `now`.
    pub(crate) fn settle(&self, level: &mut Level, now: Nanos) {
        if now > level.at {
            *level = Level { amount: self.units_at(*level, now), at: now };
        }
    }

    /// Units at `time`, which is not before the last grant.
    fn units_at(&self, level: Level, time: Nanos) -> i128 {
        if time == level.at {
            return level.amount;
        }
        let refills = self.ticks(time) - self.ticks(level.at);
        level.amount.saturating_add(self.refilled(refills)).min(self.max.into())
    }

    /// Units of so many refills.
    fn refilled(&self, refills: u64) -> i128 {
        i128::try_from(u128::from(refills) * u128::from(self.refill)).unwrap_or(i128::MAX)
    }

    /// Points of the grid passed by `time`.
    fn ticks(&self, time: Nanos) -> u64 {
        time.saturating_sub(self.start) / self.interval
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

    /// The most units the bucket keeps.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.terms.max
    }

    /// Time in which an empty bucket fills, in nanoseconds.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        self.terms.fill_time()
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` when that lies beyond the end of the clock.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.terms.conforms_at(self.level, now, cost)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// After that time only as much is gathered as the bucket keeps.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        self.terms.charge(&mut self.level, asked, grant, cost);
    }

    /// Units that could be taken at `now`; nothing while a grant lies ahead.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        self.terms.available(self.level, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(refill: u64, interval: u64, max: u64, initial: u64) -> Grid {
        Grid::new(NonZeroU64::new(refill).unwrap(), NonZeroU64::new(interval).unwrap(), max, initial, 0)
    }

    /// Takes `costs` one after another, each asked at the time of the last.
    fn grants(grid: &mut Grid, costs: &[u64]) -> Vec<Nanos> {
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
    fn a_bucket_of_nothing_still_passes_refills_to_who_waits() {
        assert_eq!(grants(&mut grid(2, 10, 0, 0), &[1, 5, 1]), [10, 30, 40]);
    }

    #[test]
    fn a_refill_larger_than_the_bucket_pays_a_waiting_cost_first() {
        assert_eq!(grants(&mut grid(9, 10, 5, 0), &[4, 5, 1]), [10, 10, 20]);
    }

    #[test]
    fn what_is_charged_late_leaves_no_more_than_the_bucket_keeps() {
        let mut grid = grid(1, 10, 2, 0);
        grid.charge(0, 100, 1);
        assert_eq!(grid.available(100), 1);
    }

    #[test]
    fn idle_time_saves_up_to_the_maximum_and_the_grid_stays() {
        let mut grid = grid(1, 10, 5, 5);
        grid.charge(0, 0, 5);
        assert_eq!(grid.available(39), 3);
        assert_eq!(grid.available(1_009), 5);
        assert_eq!(grid.conforms_at(1_009, 6), Some(1_010));
    }

    #[test]
    fn what_is_given_back_is_less_by_the_refills_since() {
        let mut grid = grid(1, 10, 5, 5);
        grid.charge(0, 0, 5);
        grid.terms.give_back(&mut grid.level, 20, 0, 5);
        assert_eq!(grid.available(20), 5);
        grid.terms.pay(&mut grid.level, 20, 7);
        assert_eq!((grid.available(39), grid.available(40), grid.available(50)), (0, 0, 1), "two were owed");
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = u64::MAX;
        let mut grid = grid(most / 2, 100, most / 2, 0);
        assert_eq!(grants(&mut grid, &[most, most / 2 - 1, 1]), [300, 300, 400]);
        assert_eq!(grid.conforms_at(most, most), None);
    }
}
