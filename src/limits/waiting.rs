//! What a queue of waiters asks of its limits, beside grants.

use super::plan::{Plan, Resolved};
use super::{Earlier, Grant, Kinds, Limits, Refusal, State};
use crate::bucket::Bucket;
use crate::clock::shrink;
use crate::clock::{MILLISECOND, Nanos};
use crate::grid::Grid;
use crate::rate::{ParseError, Rate};
use crate::window::Window;
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// A wake-up may be this late at least before any of its delay is lost: timers of a millisecond fire up to two late.
const LEAST_ALLOWANCE: Nanos = 2 * MILLISECOND;

impl Limits {
    /// As [`new`](Self::new), but every unit of the plan counts as `parts` here, so that fractions can be taken.
    ///
    /// # Errors
    /// Where a rate in parts does not fit 64 bits.
    pub(crate) fn in_parts(plan: &Plan, parts: NonZeroU64, now: Nanos) -> Result<Self, ParseError> {
        let states = plan.limits().iter().map(|limit| in_parts(limit, parts, now));
        Ok(Limits { states: states.collect::<Result<_, _>>()?, ..Limits::none(now) })
    }

    /// No limit yet.
    pub(crate) fn none(now: Nanos) -> Self {
        let (grants, last, earlier) = (0, 0, Some(VecDeque::new()));
        Limits {
            states: Vec::new(),
            kinds: Kinds::default(),
            quantum: u64::MAX,
            asked: now,
            at: now,
            before: now,
            grants,
            last,
            earlier,
        }
    }

    /// Puts a bucket before the other limits.
    pub(crate) fn with_bucket(mut self, bucket: Bucket) -> Self {
        self.states.insert(0, State::Bucket(bucket));
        self
    }

    /// Puts a bucket that is filled in whole refills before the other limits.
    pub(crate) fn with_grid(mut self, grid: Grid) -> Self {
        self.states.insert(0, State::Grid(grid));
        self
    }

    /// The place of the fastest bucket of a plan: the one whose rate can be changed.
    pub(crate) fn pacing_place(plan: &Plan) -> Option<usize> {
        let rate = |limit: &Resolved| match limit {
            Resolved::Bucket { rate, .. } => Some(*rate),
            Resolved::Window(_) => None,
        };
        let rates = plan.limits().iter().enumerate().filter_map(|(place, limit)| Some((rate(limit)?, place)));
        rates.max_by_key(|&(rate, place)| (rate, std::cmp::Reverse(place))).map(|(_, place)| place)
    }

    /// The bucket, where that is all there is.
    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self.states.as_slice() {
            [State::Bucket(bucket)] if !self.kinds.are_several() => Some(bucket),
            _ => None,
        }
    }

    /// Goes on from what the fast path told of the only bucket: `missing` credits at `at`.
    pub(crate) fn resume(&mut self, missing: u128, at: Nanos) {
        if let [State::Bucket(bucket)] = self.states.as_mut_slice() {
            bucket.resume(missing, at);
            (self.asked, self.at, self.before) = (at, at, at);
        }
    }

    /// The most units at one instant; more has to be gathered.
    pub(crate) fn burst(&self) -> u64 {
        let most = self.states.iter().map(State::most).min().filter(|_| !self.kinds.are_several());
        most.unwrap_or(u64::MAX)
    }

    /// The most units in one grant, however long it waits: what the smallest window counts.
    pub(crate) fn largest_cost(&self) -> u64 {
        let windows = self.states.iter().filter(|state| matches!(state, State::Window(_)));
        windows.map(State::most).min().filter(|_| !self.kinds.are_several()).unwrap_or(u64::MAX)
    }

    /// Time in which the first of the buckets fills.
    pub(crate) fn fill_time(&self) -> Nanos {
        self.states.iter().filter_map(State::fill_time).min().unwrap_or(0)
    }

    /// How far behind the schedule who wakes late may be, before the rest of the delay is lost.
    pub(crate) fn allowance(&self) -> Nanos {
        self.fill_time().max(LEAST_ALLOWANCE)
    }

    /// Whether costs that wait one behind another are paid at the time at which their sum would be: one bucket pays, and
    /// what a refill leaves over of one cost is there for the next.
    pub(crate) fn pays_steadily(&self) -> bool {
        !self.kinds.are_several() && matches!(self.states.as_slice(), [] | [State::Bucket(_) | State::Grid(_)])
    }

    /// Whether nothing granted matters any more at `time`: every bucket is full, every window empty.
    pub(crate) fn at_rest(&self, time: Nanos) -> bool {
        self.states.iter().all(|state| match state {
            State::Bucket(bucket) => bucket.is_full(time),
            State::Window(window) => window.is_empty(time),
            State::Grid(grid) => grid.is_full(time),
        })
    }

    /// Charges what was asked at `asked` at a time not before it [conforms](Self::conforms_at), and not ahead of now.
    pub(crate) fn charge_at(&mut self, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.release(at);
        self.charge(asked, at, cost, None)
    }

    /// As [`charge_at`](Self::charge_at), for units that are handed over at `now`: windows count them from then on.
    pub(crate) fn release_at(&mut self, now: Nanos, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.release(at);
        self.charge_and_count(asked, at, at.max(now), cost, None)
    }

    /// Windows count `grant` from `now` on, when it is handed over. `false` where its room was given to others meanwhile:
    /// nothing has changed then, and it has to wait until [`room_at`](Self::room_at).
    pub(crate) fn hand_over(&mut self, grant: &Grant, units: u64, now: Nanos) -> bool {
        if units == 0 {
            return true;
        }
        let before = if self.windows().count() > 1 { Some(self.states.clone()) } else { None };
        let states = self.states.iter_mut().enumerate();
        let mut windows = states.filter_map(|(place, state)| Some((self.kinds.part(place, units), state.as_window()?)));
        let counts = windows.all(|(units, window)| units == 0 || window.hand_over(grant.counted, units, now));
        if let Some(states) = before.filter(|_| !counts) {
            self.states = states;
        }
        counts
    }

    /// The least time, not before `now`, at which the windows have room for `cost` units.
    pub(crate) fn room_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        let parts = self.windows().map(|(place, window)| (self.kinds.part(place, cost), window));
        let mut asked = parts.filter(|(cost, _)| *cost > 0);
        asked.try_fold(now.max(self.at), |at, (cost, window)| Some(at.max(window.room_at(now, cost)?)))
    }

    pub(crate) fn has_windows(&self) -> bool {
        self.windows().next().is_some()
    }

    fn windows(&self) -> impl Iterator<Item = (usize, &Window)> {
        let states = self.states.iter().enumerate();
        states.filter_map(|(place, state)| if let State::Window(window) = state { Some((place, window)) } else { None })
    }

    /// As [`charge_at`](Self::charge_at), at a time that may lie ahead of `now`. What was given before and lies ahead, too,
    /// can still be taken back once this has been.
    pub(crate) fn promise_at(&mut self, now: Nanos, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.release(now);
        if let Some(earlier) = self.earlier.as_mut().filter(|_| cost > 0 && self.at > now) {
            earlier.push_back(Earlier { number: self.last, at: self.at, before: self.before });
            self.states.iter_mut().for_each(State::keep);
        }
        self.charge(asked, at, cost, None)
    }

    /// Of the grants that could be taken back, those whose time has come at `now` cannot be any more.
    fn release(&mut self, now: Nanos) {
        let Some(earlier) = &mut self.earlier else { return };
        while earlier.front().is_some_and(|grant| grant.at <= now) {
            earlier.pop_front();
            shrink(earlier);
            self.states.iter_mut().for_each(State::release);
        }
    }

    /// As [`take`](Self::take), at `earliest` or later, handed over at `now`: where the schedule is behind `earliest`, it is
    /// moved up to it. What the limit that binds would have gained meanwhile is lost.
    pub(crate) fn take_not_before(
        &mut self,
        now: Nanos,
        asked: Nanos,
        cost: u64,
        earliest: Nanos,
    ) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(asked, cost)?;
        if let Some(State::Bucket(bucket)) = bound_by.and_then(|place| self.states.get_mut(place)) {
            bucket.delay(asked, earliest.saturating_sub(at));
        }
        let at = at.max(earliest);
        self.release(at);
        Ok(self.charge_and_count(asked, at, at.max(now), cost, bound_by))
    }

    /// Brings the state up to `now` for a waiter of `cost` units that asked at `asked` and goes on waiting.
    pub(crate) fn gather(&mut self, now: Nanos, asked: Nanos, cost: u64) {
        for (place, state) in self.states.iter_mut().enumerate() {
            let cost = self.kinds.part(place, cost);
            match state {
                State::Bucket(bucket) => bucket.gather(now, asked, cost),
                State::Grid(grid) => grid.gather(now, asked, cost),
                State::Window(_) => {}
            }
        }
    }

    /// Who gathered has gone: what is above the bursts at `now` is lost.
    pub(crate) fn spill(&mut self, now: Nanos) {
        for state in &mut self.states {
            match state {
                State::Bucket(bucket) => bucket.spill(now),
                State::Grid(grid) => grid.spill(now),
                State::Window(_) => {}
            }
        }
    }

    /// Nobody waits any more: what is left over of refills is kept as far as there is room.
    pub(crate) fn overflow(&mut self) {
        for state in &mut self.states {
            if let State::Grid(grid) = state {
                grid.overflow();
            }
        }
    }

    /// Takes `units` that were used without a grant. Those that are not there are a debt.
    pub(crate) fn pay(&mut self, now: Nanos, units: u64) {
        for (place, state) in self.states.iter_mut().enumerate() {
            let units = self.kinds.part(place, units);
            match state {
                State::Bucket(bucket) => bucket.pay(now, units),
                State::Grid(grid) => grid.pay(now, units),
                State::Window(window) => window.pay(now, units),
            }
        }
    }

    /// Empties the buckets at `time`, which gain from then on.
    pub(crate) fn empty(&mut self, time: Nanos) {
        for state in &mut self.states {
            match state {
                State::Bucket(bucket) => bucket.empty(time),
                State::Grid(grid) => grid.empty(time),
                State::Window(_) => {}
            }
        }
    }

    /// Adds `units` that were granted and not used, as far as there is room.
    pub(crate) fn credit(&mut self, now: Nanos, units: u64) {
        for (place, state) in self.states.iter_mut().enumerate() {
            let units = self.kinds.part(place, units);
            match state {
                State::Bucket(bucket) => bucket.credit(now, units),
                State::Grid(grid) => grid.credit(now, units),
                State::Window(window) => window.credit(now, units),
            }
        }
    }
}

impl State {
    fn as_window(&mut self) -> Option<&mut Window> {
        if let State::Window(window) = self { Some(window) } else { None }
    }

    /// `None` for a window, which does not fill.
    fn fill_time(&self) -> Option<Nanos> {
        match self {
            State::Bucket(bucket) => Some(bucket.fill_time()),
            State::Grid(grid) => Some(grid.fill_time()),
            State::Window(_) => None,
        }
    }
}

fn in_parts(limit: &Resolved, parts: NonZeroU64, now: Nanos) -> Result<State, ParseError> {
    let too_large = || ParseError::TooLarge(limit.to_string());
    let scaled = |units: u64| units.checked_mul(parts.get()).ok_or_else(too_large);
    match *limit {
        Resolved::Bucket { rate, burst, initial } => {
            let burst = burst.checked_mul(parts).ok_or_else(too_large)?;
            Ok(State::Bucket(Bucket::new(rate_in_parts(rate, parts)?, burst, scaled(initial)?, now)))
        }
        Resolved::Window(rate) => {
            let (count, period) = rate.window();
            Ok(State::Window(Window::new(count.checked_mul(parts).ok_or_else(too_large)?, period, now)))
        }
    }
}

/// `rate` where every unit counts as `parts`.
fn rate_in_parts(rate: Rate, parts: NonZeroU64) -> Result<Rate, ParseError> {
    let (units, period) = rate.window();
    let units = units.checked_mul(parts).ok_or_else(|| ParseError::TooLarge(rate.to_string()))?;
    Ok(Rate::new(units, period))
}

#[cfg(test)]
impl Limits {
    /// For how many entries the histories have room.
    fn history_memory(&self) -> usize {
        let states = self.states.iter().map(|state| match state {
            State::Bucket(bucket) => bucket.history_memory(),
            State::Window(window) => window.history_memory(),
            State::Grid(_) => 0,
        });
        states.sum::<usize>() + self.earlier.as_ref().map_or(0, VecDeque::capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    /// Law 10: what is kept to take reservations back goes when their times have come, and the log of a window with it.
    #[test]
    fn reservations_without_end_do_not_pile_up() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let plan = Plan::new(&limits, None).unwrap();
        let mut limits = Limits::in_parts(&plan, NonZeroU64::MIN, 0).unwrap();
        let mut words = Vec::new();
        for second in 0..1000 {
            let now = second * SECOND;
            let (at, _) = limits.conforms_at(now, 1).unwrap();
            // A promise behind another for ever.
            let _: Grant = limits.promise_at(now, now, at.max(now + 3 * SECOND), 1);
            words.clear();
            limits.save(&mut words);
            assert!(limits.earlier.as_ref().is_some_and(|earlier| earlier.len() <= 4), "{:?}", limits.earlier);
            assert!(words.len() < 50, "{} words", words.len());
        }
        let _: Grant = limits.charge_at(2000 * SECOND, 2000 * SECOND, 1);
        assert!(limits.earlier.is_some_and(|earlier| earlier.is_empty()));
    }

    #[test]
    fn reservations_that_have_passed_leave_no_memory_behind() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let plan = Plan::new(&limits, None).unwrap();
        let mut limits = Limits::in_parts(&plan, NonZeroU64::MIN, 0).unwrap();
        for _ in 0..3000 {
            let (at, _) = limits.conforms_at(0, 1).unwrap();
            let _: Grant = limits.promise_at(0, 0, at, 1);
        }
        assert!(limits.history_memory() > 3000);
        for time in [200_000 * SECOND, 300_000 * SECOND] {
            let _: Grant = limits.charge_at(time, time, 1);
        }
        assert!(limits.history_memory() < 400, "room for {} entries", limits.history_memory());
    }
}
