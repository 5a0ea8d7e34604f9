//! What a queue of waiters needs from its limits, apart from grants.

use super::bucket::{self, Bucket};
use super::fill::Fill;
use super::grant::{Grant, Refusal};
use super::history::History;
use super::interval::Grid;
use super::kinds::Kinds;
use super::policy::{Policy, Resolved};
use super::settling::Settling;
use super::state::{Gaining, Level, State};
use super::terms::Terms;
use super::together::Limits;
use super::window;
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::{ParseError, Rate};
use std::num::NonZeroU64;

/// The least delay of a wake-up before the rest of the delay is lost: a timer of one millisecond may fire two
/// milliseconds late.
const LEAST_ALLOWANCE: Nanos = 2 * MILLISECOND;

impl Limits {
    /// Like [`new`](Self::new), but every unit of the policy counts as `parts` here, so that fractions can be taken.
    ///
    /// # Errors
    /// If a rate in parts does not fit 64 bits.
    pub(crate) fn in_parts(policy: &Policy, parts: NonZeroU64, now: Nanos) -> Result<Self, ParseError> {
        let limits: Result<Vec<_>, _> = policy.limits().iter().map(|limit| in_parts(limit, parts, now)).collect();
        let (terms, states) = limits?.into_iter().unzip();
        Ok(Limits { terms, states, ..Limits::none(now) })
    }

    /// An empty set of limits.
    pub(crate) fn none(now: Nanos) -> Self {
        let history = History::default();
        let (terms, states, kinds) = (Vec::new(), Vec::new(), Kinds::default());
        Limits { terms, states, kinds, quantum: u64::MAX, asked: now, at: now, history, settling: Settling::default() }
    }

    /// Inserts a bucket before the other limits.
    pub(crate) fn with_bucket(self, bucket: Bucket) -> Self {
        self.with(Terms::Bucket(bucket.terms), State::from(bucket.level))
    }

    /// Inserts a bucket with whole refills before the other limits.
    pub(crate) fn with_grid(self, grid: Grid) -> Self {
        self.with(Terms::Interval(grid.terms), State::from(grid.level))
    }

    fn with(mut self, terms: Terms, state: State) -> Self {
        self.terms.insert(0, terms);
        self.states.insert(0, state);
        self
    }

    /// The index of the fastest bucket of a policy: the one whose rate can be changed.
    pub(crate) fn pacing_place(policy: &Policy) -> Option<usize> {
        let rate = |limit: &Resolved| match limit {
            Resolved::Bucket { rate, .. } => Some(*rate),
            Resolved::Window { .. } => None,
        };
        let rates = policy.limits().iter().enumerate().filter_map(|(place, limit)| Some((rate(limit)?, place)));
        rates.max_by_key(|&(rate, place)| (rate, std::cmp::Reverse(place))).map(|(_, place)| place)
    }

    /// The bucket, if that is the only limit. `None` also if it holds more than its burst.
    pub(crate) fn fast_path(&self) -> Option<Gaining> {
        match (self.terms.as_slice(), self.states.as_slice()) {
            _ if self.kinds.are_several() => None,
            ([Terms::Bucket(terms)], [state]) => terms.fast_path(state.level),
            ([Terms::Interval(terms)], [state]) => terms.fast_path(state.level),
            _ => None,
        }
    }

    /// Takes over the state of the only bucket from the fast path: `missing` credits at `at`.
    pub(crate) fn resume(&mut self, missing: u128, at: Nanos) {
        let ([terms], [state]) = (self.terms.as_slice(), self.states.as_mut_slice()) else { return };
        let Ok(bucket) = terms.kind() else { return };
        state.level = bucket.resume(missing, at);
        (self.asked, self.at) = (at, at);
        self.history.clear();
    }

    /// The most units at one instant; a larger cost has to wait.
    pub(crate) fn burst(&self) -> u64 {
        let most = self.terms.iter().map(Terms::most).min().filter(|_| !self.kinds.are_several());
        most.unwrap_or(u64::MAX)
    }

    /// The most units in one grant after any wait: the count of the smallest window.
    pub(crate) fn largest_cost(&self) -> u64 {
        let windows = self.windows().map(|(_, terms, _)| terms.count());
        windows.min().filter(|_| !self.kinds.are_several()).unwrap_or(u64::MAX)
    }

    /// Time in which the fastest-filling bucket fills.
    pub(crate) fn fill_time(&self) -> Nanos {
        self.terms.iter().filter_map(Terms::fill_time).min().unwrap_or(0)
    }

    /// How late a waiter may wake before the rest of the delay is lost.
    pub(crate) fn allowance(&self) -> Nanos {
        self.fill_time().max(LEAST_ALLOWANCE)
    }

    /// Whether costs that wait in a queue are paid at the same time as one cost of their sum: a single bucket does so,
    /// and what a refill leaves over goes to the next cost.
    pub(crate) fn pays_steadily(&self) -> bool {
        let is_bucket = matches!(self.terms.as_slice(), [] | [Terms::Bucket(_) | Terms::Interval(_)]);
        is_bucket && !self.kinds.are_several()
    }

    /// Whether no past grant matters at `time`: every bucket is full, every window empty.
    pub(crate) fn at_rest(&self, time: Nanos) -> bool {
        self.each().all(|(terms, state)| terms.at_rest(state, time))
    }

    /// Charges a request made at `asked`, at a time when it [conforms](Self::conforms_at) and that is not in the
    /// future.
    pub(crate) fn charge_at(&mut self, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.grant(at, asked, [at; 2], cost, None)
    }

    /// Like [`charge_at`](Self::charge_at), for units that are handed over at `now`: windows count them from then on.
    pub(crate) fn release_at(&mut self, now: Nanos, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.grant(at, asked, [at, at.max(now)], cost, None)
    }

    /// Windows count `grant` from `now`, when it is handed over. Returns `false` if its room was given to others in the
    /// meantime. Then nothing has changed, and the grant has to wait until [`room_at`](Self::room_at).
    pub(crate) fn hand_over(&mut self, grant: &Grant, units: u64, now: Nanos) -> bool {
        if units == 0 {
            return true;
        }
        let before = if self.windows().count() > 1 { Some(self.states.clone()) } else { None };
        let limits = self.terms.iter().zip(&mut self.states).enumerate();
        let mut windows = limits
            .filter_map(|(place, (terms, state))| Some((self.kinds.part(place, units), terms.as_window()?, state)));
        let counts =
            windows.all(|(units, terms, state)| units == 0 || terms.hand_over(state, grant.counted, units, now));
        if let Some(states) = before.filter(|_| !counts) {
            self.states = states;
        } else {
            if self.windows().all(|(_, _, state)| state.level.at <= now) {
                // None of the earlier grants is in the future any more, so none can be undone.
                self.history.clear();
            }
            // While a grant is in the future, windows go on to count the others from their own times.
            if counts && self.at <= now {
                (0..self.terms.len()).for_each(|place| self.settling.counted_from(grant.number, place, now));
            }
        }
        counts
    }

    /// Windows no longer count these units, which they count from `counted`.
    pub(crate) fn forget_in_windows(&mut self, now: Nanos, counted: Nanos, units: u64) {
        self.revise_all(|kinds, place, terms, state| {
            if let Some(window) = terms.as_window() {
                window.correct(state, now, counted, [kinds.part(place, units), 0]);
            }
        });
    }

    /// The earliest time, not before `now`, at which the windows have room for `cost` units.
    pub(crate) fn room_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        let parts = self.windows().map(|(place, terms, state)| (self.kinds.part(place, cost), terms, state));
        let mut asked = parts.filter(|(cost, ..)| *cost > 0);
        asked.try_fold(now.max(self.at), |at, (cost, terms, state)| Some(at.max(terms.room_at(state, now, cost)?)))
    }

    pub(crate) fn has_windows(&self) -> bool {
        self.windows().next().is_some()
    }

    fn windows(&self) -> impl Iterator<Item = (usize, &window::Terms, &State)> {
        let limits = self.each().enumerate();
        limits.filter_map(|(place, (terms, state))| Some((place, terms.as_window()?, state)))
    }

    /// Like [`charge_at`](Self::charge_at), at a time that may be after `now`. Earlier grants that are in the future
    /// can still be undone once this one has been undone.
    pub(crate) fn promise_at(&mut self, now: Nanos, asked: Nanos, at: Nanos, cost: u64) -> Grant {
        self.grant(now, asked, [at; 2], cost, None)
    }

    /// Like [`take`](Self::take), at `earliest` or later, handed over at `now`. If the schedule is behind `earliest`,
    /// it is moved up to it. What the binding limit would have gained in between is lost.
    pub(crate) fn take_not_before(
        &mut self,
        now: Nanos,
        asked: Nanos,
        cost: u64,
        earliest: Nanos,
    ) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(asked, cost)?;
        let by = earliest.saturating_sub(at);
        if let Some(place) = bound_by
            && let Terms::Bucket(terms) = self.terms[place]
        {
            let act = |at, _: &Terms, state: &mut State| {
                if at == place {
                    terms.delay(&mut state.level, asked, by);
                }
            };
            self.settling.changing((&self.terms, &self.states), act);
            terms.delay(&mut self.states[place].level, asked, by);
        }
        let at = at.max(earliest);
        Ok(self.grant(at, asked, [at, at.max(now)], cost, bound_by))
    }

    /// Brings the state up to `now` for a waiter of `cost` units that asked at `asked` and still waits.
    pub(crate) fn gather(&mut self, now: Nanos, asked: Nanos, cost: u64) {
        let kinds = &self.kinds;
        let act = |place, terms: &Terms, state: &mut State| {
            if let Ok(bucket) = terms.kind() {
                bucket.gather(&mut state.level, now, asked, kinds.part(place, cost));
            }
        };
        self.settling.changing((&self.terms, &self.states), act);
        for (place, (terms, state)) in self.terms.iter().zip(&mut self.states).enumerate() {
            act(place, terms, state);
        }
    }

    /// The waiter that was accruing credit left: drop credit above the burst at `now`.
    pub(crate) fn spill(&mut self, now: Nanos) {
        self.revise_buckets(|bucket, level| bucket.spill(level, now));
    }

    /// No waiter is left: what refills left over is kept up to the size of the bucket.
    pub(crate) fn overflow(&mut self) {
        self.settling.changing((&self.terms, &self.states), |_, terms, state| terms.overflow(state));
        for (terms, state) in self.terms.iter().zip(&mut self.states) {
            terms.overflow(state);
        }
    }

    /// Empties the buckets at `time`; they gain from then on.
    pub(crate) fn empty(&mut self, time: Nanos) {
        self.revise_buckets(|bucket, level| bucket.empty(level, time));
    }

    /// Takes `units` that were used without a grant. Missing units become a debt.
    pub(crate) fn pay(&mut self, now: Nanos, units: u64) {
        self.revise_all(|kinds, place, terms, state| terms.pay(state, now, kinds.part(place, units)));
    }

    /// Adds `units` that were granted and not used, up to the burst.
    pub(crate) fn credit(&mut self, now: Nanos, units: u64) {
        self.revise_all(|kinds, place, terms, state| terms.credit(state, now, kinds.part(place, units)));
    }

    fn revise_buckets(&mut self, act: impl Fn(&dyn Fill, &mut Level)) {
        for place in 0..self.terms.len() {
            let terms = self.terms[place];
            if let Ok(bucket) = terms.kind() {
                self.revise(place, |state| act(bucket, &mut state.level));
            }
        }
    }

    /// Applies `act` to every limit, and to the saved states that an undo would restore.
    pub(super) fn revise_all(&mut self, act: impl Fn(&Kinds, usize, &Terms, &mut State)) {
        let (limits, kinds) = (self.terms.len(), &self.kinds);
        let act = |place, terms: &Terms, state: &mut State| act(kinds, place, terms, state);
        self.settling.changing((&self.terms, &self.states), act);
        for (place, (terms, state)) in self.terms.iter().zip(&mut self.states).enumerate() {
            act(place, terms, state);
            self.history.revise(place, limits, |state| act(place, terms, state));
        }
    }
}

fn in_parts(limit: &Resolved, parts: NonZeroU64, now: Nanos) -> Result<(Terms, State), ParseError> {
    let too_large = || ParseError::TooLarge(limit.to_string());
    match *limit {
        Resolved::Bucket { rate, burst, initial } => {
            let burst = burst.checked_mul(parts).ok_or_else(too_large)?;
            let initial = initial.checked_mul(parts.get()).ok_or_else(too_large)?;
            let terms = bucket::Terms::new(rate_in_parts(rate, parts)?, burst);
            Ok((Terms::Bucket(terms), State::from(terms.start(initial, now))))
        }
        Resolved::Window { rate, slack } => {
            let rate = rate_in_parts(rate, parts)?;
            Ok((Terms::Window(window::Terms::of(rate, slack)), State::new(0, now)))
        }
    }
}

/// `rate` if every unit counts as `parts`.
fn rate_in_parts(rate: Rate, parts: NonZeroU64) -> Result<Rate, ParseError> {
    let (units, period) = rate.window();
    let units = units.checked_mul(parts).ok_or_else(|| ParseError::TooLarge(rate.to_string()))?;
    Ok(Rate::new(units, period))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    /// Law 10: the records for undoing reservations are dropped once those are in the past, and so is the log of a
    /// window.
    #[test]
    fn records_of_past_reservations_are_dropped() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let policy = Policy::new(&limits, None).unwrap();
        let mut limits = Limits::in_parts(&policy, NonZeroU64::MIN, 0).unwrap();
        for second in 0..1000 {
            let now = second * SECOND;
            let (at, _) = limits.conforms_at(now, 1).unwrap();
            // There is always one reservation in the future.
            let _: Grant = limits.promise_at(now, now, at.max(now + 3 * SECOND), 1);
            assert!(limits.history.len() <= 5, "{:?}", limits.history);
        }
        let _: Grant = limits.charge_at(2000 * SECOND, 2000 * SECOND, 1);
        assert_eq!(limits.history.len(), 1);
    }

    /// How many entries fit the memory of the history and the logs.
    fn history_memory(limits: &Limits) -> usize {
        let logs = limits.states.iter().map(|state| state.log().capacity());
        limits.history.memory() + logs.sum::<usize>()
    }

    #[test]
    fn memory_of_past_reservations_is_freed() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let policy = Policy::new(&limits, None).unwrap();
        let mut limits = Limits::in_parts(&policy, NonZeroU64::MIN, 0).unwrap();
        for _ in 0..3000 {
            let (at, _) = limits.conforms_at(0, 1).unwrap();
            let _: Grant = limits.promise_at(0, 0, at, 1);
        }
        assert!(history_memory(&limits) > 3000);
        for time in [200_000 * SECOND, 300_000 * SECOND] {
            let _: Grant = limits.charge_at(time, time, 1);
        }
        assert!(history_memory(&limits) < 400, "room for {} entries", history_memory(&limits));
    }
}
