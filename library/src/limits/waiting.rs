//! What a queue of waiters needs from its limits, apart from grants.

use super::bucket::{self, Bucket, Gap};
use super::costs::CostList;
use super::fixed::Fixed;
use super::grant::{Grant, Refusal};
use super::policy::{Policy, Resolved};
use super::state::{Gaining, State};
use super::terms::Terms;
use super::together::Limits;
use super::window;
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::ParseError;
use std::num::NonZeroU64;

/// The least lateness of a waiter before the rest of it is lost: a timer of one millisecond may fire two milliseconds late.
const LEAST_ALLOWANCE: Nanos = 2 * MILLISECOND;

impl Limits {
    /// Like [`new`](Self::new), but every unit of the policy counts as `parts` here, so that fractions can be taken.
    ///
    /// # Errors
    /// If a rate in parts does not fit 64 bits.
    pub(crate) fn in_parts(policy: &Policy, parts: NonZeroU64, now: Nanos) -> Result<Self, ParseError> {
        let (fixed, states) = Fixed::start([(&policy.in_parts(parts)?, Some(0))], now);
        Ok(Limits::of(fixed, states, now))
    }

    /// An empty set of limits.
    pub(crate) fn none(now: Nanos) -> Self {
        Limits::of(Fixed::default(), Vec::new(), now)
    }

    /// Inserts a bucket before the other limits.
    pub(crate) fn with_bucket(mut self, bucket: Bucket) -> Self {
        self.fixed.terms.insert(0, Terms::Bucket(bucket.terms));
        self.fixed.kinds.push(0);
        self.states.insert(0, State::from(bucket.level));
        self
    }

    /// Joins these limits. Each entry counts one kind of cost; all grant together or not at all.
    pub(crate) fn joint(each: Vec<Limits>, now: Nanos) -> Self {
        let mut joint = Limits::none(now);
        for (kind, limits) in each.into_iter().enumerate() {
            joint.fixed.kinds.extend(limits.states.iter().map(|_| kind));
            joint.fixed.terms.extend(limits.fixed.terms);
            joint.states.extend(limits.states);
        }
        joint
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
        match (self.fixed.terms.as_slice(), self.states.as_slice()) {
            ([Terms::Bucket(terms)], [state]) => terms.fast_path(state.level),
            _ => None,
        }
    }

    /// Takes over the state of the only bucket from the fast path: `missing` credits at `at`.
    pub(crate) fn resume(&mut self, missing: u128, at: Nanos) {
        let ([Terms::Bucket(bucket)], [state]) = (&self.fixed.terms[..], &mut self.states[..]) else { return };
        state.level = bucket.resume(missing, at);
        (self.asked, self.at) = (at, at);
    }

    /// The most units of a kind of cost at one instant, and in one grant after any wait: the count of the smallest window.
    pub(crate) fn most(&self, kind: usize) -> (u64, u64) {
        let of_kind = || self.each().filter(|(place, ..)| self.fixed.kinds[*place] == kind).map(|(_, terms, _)| terms);
        let least = |terms: &mut dyn Iterator<Item = &Terms>| terms.map(Terms::most).min().unwrap_or(u64::MAX);
        (least(&mut of_kind()), least(&mut of_kind().filter(|terms| terms.as_window().is_some())))
    }

    /// The same limits, of which no grant is open.
    pub(crate) fn without_open(&self) -> Self {
        let mut limits = Limits::of(self.fixed.clone(), self.states.clone(), self.at);
        limits.asked = self.asked;
        limits
    }

    /// Windows count these costs from `at` on.
    pub(crate) fn count_in_windows(&mut self, at: Nanos, costs: impl CostList) {
        for (place, (terms, state)) in self.fixed.terms.iter().zip(&mut self.states).enumerate() {
            if let Terms::Window(window) = terms {
                window.pay(state, at, self.fixed.cost(place, costs));
            }
        }
    }

    /// Units of a kind that could be taken at `now`; 0 before the time of the latest grant.
    pub(crate) fn available_of(&self, now: Nanos, kind: usize) -> u64 {
        self.available_where(now, |place| self.fixed.kinds[place] == kind)
    }

    /// Units of a kind that are owed at `now`, or after the latest grant if that is later.
    pub(crate) fn owed_of(&self, now: Nanos, kind: usize) -> i128 {
        let of_kind = self.fixed.each(&self.states).filter(|(place, ..)| self.fixed.kinds[*place] == kind);
        let left = of_kind.map(|(_, terms, state)| terms.left(state, now.max(state.level.at)));
        -left.min().unwrap_or(0).min(0)
    }

    /// Time in which the fastest-filling bucket fills.
    pub(crate) fn fill_time(&self) -> Nanos {
        self.fixed.terms.iter().filter_map(Terms::fill_time).min().unwrap_or(0)
    }

    /// How late a grant may be used before the rest of the delay is lost: the least allowance of all buckets, but at least 2 ms.
    /// Grants that are spaced are those of a bucket of one.
    pub(crate) fn allowance(&self) -> Nanos {
        let spaced = self.are_spaced().then(|| bucket::allowance(self.every));
        let least = self.fixed.terms.iter().filter_map(Terms::allowance).chain(spaced).min().unwrap_or(0);
        least.max(LEAST_ALLOWANCE)
    }

    /// Whether costs that wait in a queue are paid at the same time as one cost of their sum: a single bucket does so,
    /// and what a refill leaves over goes to the next cost.
    pub(crate) fn pays_steadily(&self) -> bool {
        matches!(self.fixed.terms.as_slice(), [] | [Terms::Bucket(_)])
    }

    /// Whether no past grant matters at `time`: every bucket is full, every window empty.
    pub(crate) fn at_rest(&self, time: Nanos) -> bool {
        self.each().all(|(_, terms, state)| terms.at_rest(state, time))
    }

    /// Windows count `grant`, of these costs, from `now`, when it is handed over. Returns `false` if its room was given to
    /// others in the meantime. Then nothing has changed, and the grant has to wait until [`room_at`](Self::room_at).
    pub(crate) fn hand_over(&mut self, grant: &Grant, costs: impl CostList, now: Nanos) -> bool {
        if costs.largest() == 0 || !self.has_windows() {
            return true;
        }
        let before = if self.windows().count() > 1 { Some(self.states.clone()) } else { None };
        let mut limits = self.fixed.terms.iter().zip(&mut self.states).enumerate();
        let counts = limits.all(|(place, (terms, state))| {
            let (window, units) = (terms.as_window(), self.fixed.cost(place, costs));
            window.is_none_or(|window| units == 0 || window.hand_over(state, grant.counted, units, now))
        });
        match before {
            Some(states) if !counts => self.states = states,
            // While a grant is in the future, windows go on to count the others from their own times.
            _ if counts && self.at <= now => {
                (0..self.states.len()).for_each(|place| self.settling.counted_from(grant.number(), place, now));
            }
            _ => {}
        }
        counts
    }

    /// The earliest time, not before `now`, at which the windows have room for these costs.
    pub(crate) fn room_at(&self, now: Nanos, costs: impl CostList) -> Option<Nanos> {
        let parts = self.windows().map(|(place, terms, state)| (self.fixed.cost(place, costs), terms, state));
        let mut asked = parts.filter(|(cost, ..)| *cost > 0);
        asked.try_fold(now.max(self.at), |at, (cost, terms, state)| Some(at.max(terms.room_at(state, now, cost)?)))
    }

    /// How much later windows could have counted what came before, and these costs would have been granted at `at` all the
    /// same.
    pub(crate) fn slack(&self, at: Nanos, costs: impl CostList) -> Nanos {
        let of = |(place, window, state): (usize, &window::Terms, &State)| match self.fixed.cost(place, costs) {
            0 => Nanos::MAX,
            // Without the time of a request: what has left the window by then might not have left it.
            cost => match window.room_at(state, 0, cost) {
                Some(0) | None => Nanos::MAX,
                Some(room) => at.saturating_sub(room),
            },
        };
        self.windows().map(of).min().unwrap_or(Nanos::MAX)
    }

    /// Windows count these costs from the second time on; before, they counted from the first. Returns `false` if the logs
    /// do not say which units these are.
    pub(crate) fn count_later(&mut self, times: [Nanos; 2], costs: impl CostList) -> bool {
        self.fixed.terms.iter().zip(&mut self.states).enumerate().all(|(place, (terms, state))| {
            let (window, units) = (terms.as_window(), self.fixed.cost(place, costs));
            window.is_none_or(|window| units == 0 || window.count_later(state, times, units))
        })
    }

    pub(crate) fn has_windows(&self) -> bool {
        self.fixed.has_windows()
    }

    /// Like [`take`](Self::take), at `earliest` or later, handed over at `now`. If the schedule is behind `earliest`,
    /// it is moved up to it. What the binding limit would have gained in between is lost.
    pub(crate) fn take_not_before(
        &mut self,
        now: Nanos,
        asked: Nanos,
        costs: impl CostList,
        earliest: Nanos,
    ) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(asked, costs)?;
        let by = earliest.saturating_sub(at);
        if let Some(place) = bound_by.filter(|_| by > 0) {
            self.revise_bucket(place, |bucket, level| bucket.delay(level, asked, by));
        }
        let at = at.max(earliest);
        Ok(self.charge(asked, [at, at.max(now)], costs))
    }

    /// Brings the state up to `now` for a waiter of these costs that asked at `asked` and still waits.
    pub(crate) fn gather(&mut self, now: Nanos, asked: Nanos, costs: impl CostList) {
        self.revise(|fixed, place, terms, state| match terms {
            Terms::Bucket(bucket) => bucket.gather(&mut state.level, now, asked, fixed.cost(place, costs)),
            Terms::Window(_) => Gap::NONE,
        });
    }

    /// No waiter is left: what refills left over is kept up to the size of the bucket.
    pub(crate) fn overflow(&mut self) {
        self.revise(|_, _, terms, state| match terms {
            Terms::Bucket(bucket) if bucket.is_on_grid => bucket.spill(&mut state.level, 0, 0), // At the time of the level.
            _ => Gap::NONE,
        });
    }

    /// Takes what was used without a grant. Missing units become a debt.
    pub(crate) fn pay(&mut self, now: Nanos, costs: impl CostList) {
        self.revise(|fixed, place, terms, state| terms.pay(state, now, fixed.cost(place, costs)));
    }

    /// Adds what was granted and not used, up to the burst.
    pub(crate) fn credit(&mut self, now: Nanos, costs: impl CostList) {
        self.revise(|fixed, place, terms, state| terms.credit(state, now, fixed.cost(place, costs)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    #[test]
    fn a_grant_that_is_given_back_is_not_open_any_more() {
        let mut limits = Limits::new(&Policy::new(&["1/s,burst=1".parse().unwrap()], None).unwrap(), 0);
        let grant = limits.take(0, 1_u64).unwrap();
        limits.open(&grant, 1_u64);
        let _ = limits.take(0, 1_u64).unwrap();
        limits.give_back(0, &grant, 1_u64);
        assert!(!limits.has_open(), "though a later grant lies ahead");
    }

    /// Law 10: the log of a window is freed once its entries no longer count.
    #[test]
    fn memory_of_past_grants_is_freed() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let mut limits = Limits::new(&Policy::new(&limits, None).unwrap(), 0);
        let memory = |limits: &Limits| limits.states.iter().map(|state| state.log().capacity()).sum::<usize>();
        let charge = |limits: &mut Limits, at: Nanos| {
            let _: Grant = limits.charge(at, [at; 2], 1_u64);
        };
        (0..3000).for_each(|nanos| charge(&mut limits, nanos));
        assert!(memory(&limits) >= 3000);
        (2..5).for_each(|times| charge(&mut limits, times * 100_000 * SECOND));
        assert!(memory(&limits) < 400, "room for {} entries", memory(&limits));
    }
}
