//! One bucket that is filled in whole refills, as pure arithmetic.
//!
//! A refill of so many units arrives at every point of a grid of intervals, counted from the start and never moved. A
//! cost that has to wait gathers refills without regard to the size of the bucket until it is paid; what is left over
//! then stays, at most to that size.

use crate::clock::{Nanos, shrink};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// Whole refills on a grid: `refill` units every `interval`, of which at most `max` are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    refill: u64,
    interval: u64,
    max: u64,
    /// The grid's first point, at which nothing arrives yet.
    start: Nanos,
    now: Level,
    /// As it was before the last charge, to take that charge back.
    before: Level,
    /// And before charges that may be taken back after that one, the latest last.
    earlier: VecDeque<Level>,
}

/// `units` at the time `at`, which is the latest grant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    units: u128,
    /// What was used without a grant and is not paid yet; there are no units then.
    debt: u128,
    at: Nanos,
}

impl Level {
    /// Pays debts first.
    fn add(&mut self, units: u128) {
        let paid = units.min(self.debt);
        self.debt -= paid;
        self.units += units - paid;
    }
}

impl Grid {
    /// A bucket of `max` units that holds `initial` (at most `max`) at `now`, where its grid begins.
    #[must_use]
    pub fn new(refill: NonZeroU64, interval: NonZeroU64, max: u64, initial: u64, now: Nanos) -> Self {
        let level = Level { units: initial.min(max).into(), debt: 0, at: now };
        let (refill, interval) = (refill.get(), interval.get());
        Grid { refill, interval, max, start: now, now: level, before: level, earlier: VecDeque::new() }
    }

    /// The most units the bucket keeps.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Time in which an empty bucket fills, in nanoseconds.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        self.max.div_ceil(self.refill).saturating_mul(self.interval)
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` when that lies beyond the end of the clock.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        let start = now.max(self.now.at);
        let level = self.level_at(start);
        let missing = (u128::from(cost) + level.debt).saturating_sub(level.units);
        if missing == 0 {
            return Some(start);
        }
        let refills = u64::try_from(missing.div_ceil(self.refill.into())).ok()?;
        let ticks = self.ticks(start).checked_add(refills)?;
        ticks.checked_mul(self.interval)?.checked_add(self.start)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked, cost)`.
    ///
    /// After that time only as much is gathered as the bucket keeps.
    pub fn charge(&mut self, asked: Nanos, grant: Nanos, cost: u64) {
        let start = asked.max(self.now.at);
        let mut level = self.level_at(start);
        self.before = self.now;
        if grant <= start && level.units >= cost.into() {
            self.now = Level { units: level.units - u128::from(cost), at: start, ..level };
            return;
        }
        let refills = u128::from(self.ticks(grant.max(start)) - self.ticks(start));
        let needed = (u128::from(cost) + level.debt).saturating_sub(level.units).div_ceil(self.refill.into());
        level.add(refills * u128::from(self.refill));
        // What is left over of a refill goes to the next in line, until it overflows.
        let kept = if refills == needed { level.units } else { level.units.min(self.max.into()) };
        self.now = Level { units: kept.saturating_sub(cost.into()), at: grant.max(start), ..level };
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

    /// The first of the charges kept is not taken back any more.
    pub(crate) fn release(&mut self) {
        self.earlier.pop_front();
        shrink(&mut self.earlier);
    }

    /// Credits `units` that were granted at `grant` and not used, less the refills since.
    pub(crate) fn give_back(&mut self, now: Nanos, grant: Nanos, units: u64) {
        let refills = self.ticks(now.max(grant)) - self.ticks(grant);
        self.credit(now, units.saturating_sub(refills.saturating_mul(self.refill)));
    }

    /// Nobody gathers any more: what is above the maximum at `now` is lost.
    pub(crate) fn spill(&mut self, now: Nanos) {
        self.settle(now);
        self.now.units = self.now.units.min(self.max.into());
    }

    /// Adds `units` at `now`, as far as there is room.
    pub(crate) fn credit(&mut self, now: Nanos, units: u64) {
        self.settle(now);
        let max = u128::from(self.max);
        for level in self.levels() {
            let before = level.units;
            level.add(units.into());
            level.units = level.units.min(max.max(before));
        }
    }

    /// Takes `units` at `now`. Those that are not there are a debt, which is paid before anything is granted.
    pub(crate) fn pay(&mut self, now: Nanos, units: u64) {
        self.settle(now);
        for level in self.levels() {
            let paid = level.units.min(units.into());
            level.units -= paid;
            level.debt = level.debt.saturating_add(u128::from(units) - paid);
        }
    }

    /// Has nothing at `time`, and goes on being refilled from then on. What is owed is still owed.
    pub(crate) fn empty(&mut self, time: Nanos) {
        self.settle(time);
        self.levels().filter(|level| level.at <= time).for_each(|level| level.units = 0);
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and gathers up to `cost`.
    pub(crate) fn gather(&mut self, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(self.now.at);
        if now > start {
            let refills = self.ticks(now) - self.ticks(start);
            let mut level = self.level_at(start);
            level.add(u128::from(refills) * u128::from(self.refill));
            self.now = Level { units: level.units.min(self.max.max(cost).into()), at: now, ..level };
        }
    }

    /// Gains `refill` units every `interval` from `now` on, on a grid that begins at `now`. What was saved stays.
    pub(crate) fn set_rate(&mut self, now: Nanos, refill: NonZeroU64, interval: NonZeroU64) {
        self.settle(now);
        (self.refill, self.interval, self.start) = (refill.get(), interval.get(), now.max(self.now.at));
    }

    /// Keeps at most `max` units from `now` on.
    pub(crate) fn set_max(&mut self, now: Nanos, max: u64) {
        self.settle(now);
        self.max = max;
        for level in self.levels() {
            level.units = level.units.min(max.into());
        }
    }

    /// Nobody waits any more for what is left over of a refill.
    pub(crate) fn overflow(&mut self) {
        self.now.units = self.now.units.min(self.max.into());
    }

    /// Whether nothing more would be kept at `time`, or at the last grant where that is later.
    pub(crate) fn is_full(&self, time: Nanos) -> bool {
        let level = self.level_at(time.max(self.now.at));
        level.debt == 0 && level.units >= self.max.into()
    }

    /// Units that could be taken at `now`; nothing while a grant lies ahead.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        if now < self.now.at { 0 } else { u64::try_from(self.level_at(now).units).unwrap_or(u64::MAX) }
    }

    fn settle(&mut self, now: Nanos) {
        if now > self.now.at {
            self.now = Level { at: now, ..self.level_at(now) };
            self.before = self.now;
        }
    }

    /// As it is, and as it was before each charge that can be taken back.
    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        [&mut self.now, &mut self.before].into_iter().chain(&mut self.earlier)
    }

    /// As it will be at `time`, which is not before the last grant.
    fn level_at(&self, time: Nanos) -> Level {
        let mut level = self.now;
        let refills = self.ticks(time) - self.ticks(level.at);
        if time > level.at {
            level.add(u128::from(refills) * u128::from(self.refill));
            level.units = level.units.min(self.max.into());
        }
        level
    }

    /// Points of the grid passed by `time`.
    fn ticks(&self, time: Nanos) -> u64 {
        time.saturating_sub(self.start) / self.interval
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
        grid.give_back(20, 0, 5);
        assert_eq!(grid.available(20), 5);
        grid.pay(20, 7);
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
