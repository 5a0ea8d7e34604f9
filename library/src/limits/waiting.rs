//! The functions of limits that a queue of waiters needs, except grants.

use super::bucket::{self, Bucket};
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

/// A waiter may always wake this late, in nanoseconds, without a loss of rate: a timer of one millisecond may fire two
/// milliseconds late.
const MIN_ALLOWANCE: Nanos = 2 * MILLISECOND;

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

    /// The index of the fastest bucket of a policy, whose rate can be changed.
    pub(crate) fn pacing_place(policy: &Policy) -> Option<usize> {
        let rate = |limit: &Resolved| match limit {
            Resolved::Bucket { rate, .. } => Some(*rate),
            Resolved::Window { .. } => None,
        };
        let rates = policy.limits().iter().enumerate().filter_map(|(place, limit)| Some((rate(limit)?, place)));
        rates.max_by_key(|&(rate, place)| (rate, std::cmp::Reverse(place))).map(|(_, place)| place)
    }

    /// The state of the only limit, if it is a bucket that holds at most its burst.
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

    /// The most units of a kind of cost at one instant, and in one grant after any wait: the count of the smallest
    /// window.
    pub(crate) fn most(&self, kind: usize) -> (u64, u64) {
        let of_kind = || self.each().filter(|(place, ..)| self.fixed.kinds[*place] == kind).map(|(_, terms, _)| terms);
        let least = |terms: &mut dyn Iterator<Item = &Terms>| terms.map(Terms::most).min().unwrap_or(u64::MAX);
        (least(&mut of_kind()), least(&mut of_kind().filter(|terms| terms.as_window().is_some())))
    }

    /// The same limits without open grants.
    pub(crate) fn without_open(&self) -> Self {
        let mut limits = Limits::of(self.fixed.clone(), self.states.iter().map(State::closed).collect(), self.at);
        limits.asked = self.asked;
        limits
    }

    /// Windows count these costs from `at` on.
    pub(crate) fn count_in_windows(&mut self, at: Nanos, costs: impl CostList) {
        for (place, window, state) in self.fixed.windows_mut(&mut self.states) {
            window.pay(state, at, self.fixed.cost(place, costs));
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

    /// The shortest time in which a bucket fills.
    pub(crate) fn fill_time(&self) -> Nanos {
        self.fixed.terms.iter().filter_map(Terms::fill_time).min().unwrap_or(0)
    }

    /// How late a grant may be used before the rest of the delay is lost. This is the least allowance of all buckets,
    /// but at least 2 ms. Spaced grants have the allowance of a bucket of one.
    pub(crate) fn allowance(&self) -> Nanos {
        let spaced = self.are_spaced().then(|| bucket::lag_allowance(self.every));
        let least = self.fixed.terms.iter().filter_map(Terms::allowance).chain(spaced).min().unwrap_or(0);
        least.max(MIN_ALLOWANCE)
    }

    /// Whether a queue of costs is paid by the same time as a single cost of their sum. A single bucket does that,
    /// because the rest of a refill goes to the next cost.
    pub(crate) fn pays_steadily(&self) -> bool {
        matches!(self.fixed.terms.as_slice(), [] | [Terms::Bucket(_)])
    }

    /// Whether no past grant matters at `time`: every bucket is full, every window empty.
    pub(crate) fn at_rest(&self, time: Nanos) -> bool {
        self.each().all(|(_, terms, state)| terms.at_rest(state, time))
    }

    /// Makes windows count `grant`, which has these costs, from `now`, when it is handed over. Returns the grant as it
    /// counts now: while a later grant is in the future, windows go on counting it from its own time. `None` if other
    /// grants got its room in the meantime. Then nothing has changed, and the grant has to wait until
    /// [`room_at`](Self::room_at).
    pub(crate) fn hand_over(&mut self, grant: Grant, costs: impl CostList, now: Nanos) -> Option<Grant> {
        if costs.largest() == 0 || !self.has_windows() {
            return Some(grant);
        }
        let before = if self.windows().count() > 1 { Some(self.states.clone()) } else { None };
        let counts = self.fixed.windows_mut(&mut self.states).all(|(place, window, state)| {
            let units = self.fixed.cost(place, costs);
            units == 0 || window.hand_over(state, grant.counted, units, now)
        });
        if counts {
            return Some(if self.at <= now { grant.counted_from(now) } else { grant });
        }
        if let Some(states) = before {
            self.states = states;
        }
        None
    }

    /// The earliest time, not before `now`, at which the windows have room for these costs.
    pub(crate) fn room_at(&self, now: Nanos, costs: impl CostList) -> Option<Nanos> {
        let parts = self.windows().map(|(place, terms, state)| (self.fixed.cost(place, costs), terms, state));
        let mut charged = parts.filter(|(cost, ..)| *cost > 0);
        charged.try_fold(now.max(self.at), |at, (cost, terms, state)| Some(at.max(terms.room_at(state, now, cost)?)))
    }

    /// The longest time by which the earlier grants in the windows could be delayed without a change of the time `at`
    /// for these costs.
    pub(crate) fn slack(&self, at: Nanos, costs: impl CostList) -> Nanos {
        let of = |(place, window, state): (usize, &window::Terms, &State)| match self.fixed.cost(place, costs) {
            0 => Nanos::MAX,
            // Without the time of a request: an entry that has left the window by then might otherwise still be in it.
            cost => match window.room_at(state, 0, cost) {
                Some(0) | None => Nanos::MAX,
                Some(room) => at.saturating_sub(room),
            },
        };
        self.windows().map(of).min().unwrap_or(Nanos::MAX)
    }

    /// Windows count these costs from the second time on, and no longer from the first. Returns `false` if the logs do
    /// not identify these units.
    pub(crate) fn count_later(&mut self, times: [Nanos; 2], costs: impl CostList) -> bool {
        self.fixed.windows_mut(&mut self.states).all(|(place, window, state)| {
            let units = self.fixed.cost(place, costs);
            units == 0 || window.count_later(state, times, units)
        })
    }

    pub(crate) fn has_windows(&self) -> bool {
        self.fixed.has_windows()
    }

    /// Like [`take`](Self::take), but the grant is at `earliest` or later, and is handed over at `now`. If the limits
    /// conform before `earliest`, their schedule is delayed until then: the binding limit gains nothing in between.
    pub(crate) fn take_not_before(
        &mut self,
        now: Nanos,
        requested: Nanos,
        costs: impl CostList,
        earliest: Nanos,
    ) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(requested, costs)?;
        let by = earliest.saturating_sub(at);
        if let Some(place) = bound_by.filter(|_| by > 0) {
            self.revise_bucket(place, |bucket, state| bucket.delay(state, requested, by));
        }
        let at = at.max(earliest);
        Ok(self.charge(requested, [at, at.max(now)], costs))
    }

    /// Brings the state up to `now` for a waiter of these costs, whose request was made at `requested`.
    pub(crate) fn gather(&mut self, now: Nanos, requested: Nanos, costs: impl CostList) {
        self.revise(|fixed, place, terms, state| {
            if let Terms::Bucket(bucket) = terms {
                bucket.gather(state, now, requested, fixed.cost(place, costs));
            }
        });
    }

    /// No waiter remains: the rest of a refill is kept up to the size of the bucket.
    pub(crate) fn overflow(&mut self) {
        self.revise(|_, _, terms, state| match terms {
            Terms::Bucket(bucket) if bucket.is_on_grid => bucket.spill(state, 0, 0), // At the time of the level.
            _ => {}
        });
    }

    /// Charges units that were used without a grant. Missing units become a debt.
    pub(crate) fn pay(&mut self, now: Nanos, costs: impl CostList) {
        self.revise(|fixed, place, terms, state| terms.pay(state, now, fixed.cost(place, costs)));
    }

    /// Credits granted units that were not used, up to the burst.
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
        // After a change of the limits, grants still get new numbers.
        let mut limits = limits_of(&["1/s,burst=5"]);
        let first = limits.take(0, 1_u64).unwrap();
        limits.replace(0, limits_of(&["9/s"]), 0_u64);
        let next = limits.charge(0, [SECOND, SECOND + 5], 1_u64);
        assert_eq!((next.number(), next.at, next.counted), (first.number() + 1, SECOND, SECOND + 5));
    }

    fn limits_of(limits: &[&str]) -> Limits {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Limits::new(&Policy::new(&limits, None).unwrap(), 0)
    }

    #[test]
    fn a_grant_without_a_cost_or_a_later_one_gives_nothing_back() {
        let mut limits = limits_of(&["1/s,burst=5,initial=0"]);
        let free = limits.take(0, 0_u64).unwrap();
        let before = limits.clone();
        limits.give_back(SECOND, &free, 0_u64);
        assert_eq!(limits, before, "a waiter goes on to gather");
        let [first, _] = [0; 2].map(|now| limits.take(now, 1_u64).unwrap());
        let before = limits.clone();
        limits.give_back(SECOND, &first, 1_u64);
        assert_eq!(limits, before, "a later grant lies ahead");
    }

    #[test]
    fn what_a_bucket_gains_after_a_pause_is_kept_at_another_rate() {
        let mut limits = limits_of(&["1/s,burst=9,initial=0"]);
        limits.pay(0, 8_u64);
        limits.pause(0, 5 * SECOND);
        limits.pay_debts(10 * SECOND);
        limits.set_rate(10 * SECOND, 0, "2/s".parse().unwrap());
        assert_eq!([10, 12].map(|second| limits.available(second * SECOND)), [2, 6]);
    }

    #[test]
    fn the_fast_path_grants_nothing_earlier_or_above_the_burst() {
        assert_eq!(Limits::none(5).take_usual(4, 1_u64), None);
        let mut limits = limits_of(&["1/s,burst=5,initial=0"]);
        limits.gather(9 * SECOND, 0, 9_u64);
        assert_eq!(limits.take_usual(9 * SECOND, 1_u64), None);
        let _ = limits.take(9 * SECOND, 1_u64).unwrap();
        assert_eq!(limits.available(9 * SECOND), 4, "a waiter had gathered more than the burst");
    }

    /// Law 11. A waiter that also waits for another limit has gathered its 9 units, and loses 3 further ones.
    #[test]
    fn a_higher_cost_is_paid_by_what_a_waiter_loses() {
        let mut limits = limits_of(&["1/s,burst=5"]);
        let grant = limits.take(0, 5_u64).unwrap();
        limits.open(&grant, 5_u64);
        limits.gather(12 * SECOND, 0, 9_u64);
        limits.settle(12 * SECOND, &grant, [5_u64, 8]);
        assert_eq!(limits.available(12 * SECOND), 9);
        // A nanosecond's gain is more than this burst. The higher cost takes it from what the charge left.
        let mut limits = Limits::none(0).with_bucket(Bucket::new("5/2ns".parse().unwrap(), NonZeroU64::MIN, 1, 0));
        let [_, grant] = [0; 2].map(|now| limits.take(now, 1_u64).unwrap());
        limits.open(&grant, 1_u64);
        assert_eq!((grant.at, { limits.states[0].level.amount }), (1, 3));
        limits.settle(1, &grant, [1_u64, 2]);
        assert_eq!({ limits.states[0].level.amount }, 1);
    }

    fn logs(limits: &Limits) -> Vec<Vec<(Nanos, u64)>> {
        let log = |state: &State| state.log().iter().map(|entry| (entry.at, entry.units)).collect();
        limits.states.iter().map(log).collect()
    }

    #[test]
    fn all_windows_count_a_unit_from_when_it_is_handed_over_or_none() {
        let mut limits = limits_of(&["2/10ns,window", "3/20ns,window"]);
        let grant = limits.take(0, 1_u64).unwrap();
        limits.open(&grant, 1_u64);
        let mut with_later = limits.clone();
        let grant_at = |limits: &mut Limits, grant, now| limits.hand_over(grant, 1_u64, now).map(|grant| grant.counted);
        let handed = limits.hand_over(grant, 1_u64, 5).unwrap();
        assert_eq!((handed.counted, logs(&limits)), (5, [[(5, 1)]; 2].map(Vec::from).to_vec()));
        limits.settle(6, &handed, [1_u64, 2]);
        assert_eq!(logs(&limits), [[(5, 2)]; 2]);
        // With a grant in the future, the unit counts from its own time.
        let _ = with_later.charge(0, [8; 2], 1_u64);
        assert_eq!(grant_at(&mut with_later, grant, 5), Some(0));
        with_later.settle(5, &grant, [1_u64, 2]);
        assert_eq!(logs(&with_later), [[(0, 2), (8, 1)]; 2]);
        // The second window has given its room to another unit.
        let mut limits = limits_of(&["2/10ns,window", "1/10ns,window"]);
        let late = limits.take(0, 1_u64).unwrap();
        let _ = limits.take(10, 1_u64).unwrap();
        let before = limits.clone();
        assert_eq!(grant_at(&mut limits, late, 10), None);
        assert_eq!(limits, before);
        // A window in which the unit costs nothing does not change.
        let mut limits = limits_of(&["5/10ns,window", "5/20ns,window"]);
        let _ = limits.charge(0, [0; 2], 1_u64);
        assert!(limits.count_later([0, 4], &[1, 0][..]));
        assert_eq!(logs(&limits), [[(4, 1)], [(0, 1)]]);
        limits.count_in_windows(6, &[0, 2][..]);
        assert_eq!(logs(&limits), [vec![(4, 1)], vec![(0, 1), (6, 2)]]);
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
