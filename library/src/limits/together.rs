//! Several limits used as one, with their state.

use super::costs::CostList;
use super::fixed::Fixed;
use super::grant::{Grant, Refusal};
use super::policy::{Policy, Resolved};
use super::state::{Level, State};
use super::terms::Terms;
use super::{bucket, window};
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::Rate;
use std::num::NonZeroU64;

/// Any number of limits that grant together or not at all. With no limit, everything is granted at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) fixed: Fixed,
    pub(super) states: Vec<State>,
    quantum: u64,
    /// The latest time of a request, return or change. Earlier clock readings arrived out of order, and are clamped to
    /// this time.
    pub(super) asked: Nanos,
    /// The time of the latest grant. Nothing is granted before it.
    pub(super) at: Nanos,
    /// Counts the grants, so that each has its own number. No number is used twice.
    number: u64,
    /// The least time between two grants, whatever the limits allow, and the earliest time of the next grant.
    pub(super) every: Nanos,
    pub(super) next: Nanos,
    /// The debts of buckets that a pause emptied, by the index of the limit.
    debts: Vec<Option<Debt>>,
}

/// The debt of a bucket that is emptied at the end of a pause. It is paid during the pause at the current rate, which
/// may change meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Debt {
    /// The debt, as a level of at most 0.
    level: Level,
    /// The level at the end of the pause. If the bucket has another level now, the debt is unknown.
    emptied: Level,
}

impl Debt {
    /// The debt after the bucket `from` has become `to`.
    fn at_rate(self, from: &bucket::Terms, to: &bucket::Terms) -> Self {
        let mut state = State::from(self.level);
        from.change(&mut state, self.level.at, to);
        let level = state.level;
        to.empty(&mut state, self.emptied.at);
        Debt { level, emptied: state.level }
    }

    /// Pays the debt until `now`.
    fn pay(&mut self, bucket: &bucket::Terms, now: Nanos) {
        let mut state = State::from(self.level);
        bucket.advance(&mut state, now);
        self.level = Level { amount: state.level.amount.min(0), at: state.level.at };
    }
}

impl Limits {
    /// Creates the limits of a [`Policy`] at `now`, in their initial state.
    #[must_use]
    pub fn new(policy: &Policy, now: Nanos) -> Self {
        let (fixed, states) = Fixed::start([(policy, None)], now);
        let in_a_millisecond = |limit: &Resolved| limit.rate().units_in(MILLISECOND).get();
        let quanta = fixed.terms.iter().zip(policy.limits());
        let quanta = quanta.map(|(terms, limit)| in_a_millisecond(limit).min(terms.most()));
        Limits { quantum: quanta.min().unwrap_or(u64::MAX), ..Limits::of(fixed, states, now) }
    }

    /// These limits in these states.
    pub(super) fn of(fixed: Fixed, states: Vec<State>, now: Nanos) -> Self {
        let debts = Vec::new();
        Limits { fixed, states, quantum: u64::MAX, asked: now, at: now, number: 0, every: 0, next: 0, debts }
    }

    /// The number of limits.
    pub(crate) fn len(&self) -> usize {
        self.fixed.terms.len()
    }

    /// The earliest time, not before `now` nor before the last grant, at which every limit conforms to these costs.
    /// Also returns the index of the limit that causes the wait, if there is a wait.
    ///
    /// # Errors
    /// [`Refusal::Never`].
    pub fn conforms_at(&self, now: Nanos, costs: impl CostList) -> Result<(Nanos, Option<usize>), Refusal> {
        let now = self.in_order(now);
        self.fixed.conforms_at(&self.states, now.max(self.at).max(self.next), |_| now, costs).ok_or(Refusal::Never)
    }

    /// Grants these costs at the earliest time at which every limit conforms. If that time is in the future, the grant
    /// is a reservation.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take(&mut self, now: Nanos, costs: impl CostList) -> Result<Grant, Refusal> {
        self.take_within(now, costs, Nanos::MAX)
    }

    /// Like [`take`](Self::take), but only if the wait is at most `max_wait` nanoseconds. 0 means: now or not at all.
    ///
    /// # Errors
    /// [`Refusal::TooLong`] with the wait that would be needed; nothing is charged then.
    pub fn take_within(&mut self, now: Nanos, costs: impl CostList, max_wait: Nanos) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(now, costs)?;
        let wait = at - self.in_order(now);
        if wait > max_wait {
            return Err(Refusal::TooLong { wait });
        }
        Ok(Grant { bound_by, ..self.charge(now, [at; 2], costs) })
    }

    /// A fast path: grants these costs at `now`, as [`take_within`](Self::take_within) without a wait does. It serves
    /// only the usual case, in which all limits are buckets that hold enough and at most their bursts. Otherwise
    /// returns `None`.
    #[inline]
    pub(crate) fn take_usual(&mut self, now: Nanos, costs: impl CostList) -> Option<Grant> {
        let units = costs.largest();
        if units == 0 || self.are_spaced() || now < self.asked.max(self.at) {
            return None;
        }
        let fixed = &self.fixed;
        let amount = |place: usize, level: Level| {
            let bucket = fixed.terms[place].as_usual_bucket().filter(|_| level.at <= now)?;
            let left = bucket.amount_at(level, now).checked_sub(bucket.price(fixed.cost(place, costs)))?;
            (left >= 0 && level.amount <= bucket.full()).then_some(left)
        };
        self.states.iter().enumerate().try_for_each(|(place, state)| amount(place, state.level).map(drop))?;
        for (place, state) in self.states.iter_mut().enumerate() {
            match amount(place, state.level) {
                Some(left) if state.is_level() => state.level = Level { amount: left, at: now },
                _ => fixed.terms[place].charge(state, [now; 4], fixed.cost(place, costs)),
            }
        }
        (self.asked, self.at, self.number) = (now, now, self.number + 1);
        Some(Grant::computed(now, units, None, self.number))
    }

    /// Like [`take_usual`](Self::take_usual); the grant is [open](Self::open).
    pub(crate) fn open_usual(&mut self, now: Nanos, costs: impl CostList) -> Option<Grant> {
        let grant = self.take_usual(now, costs)?;
        self.open(&grant, costs);
        Some(grant)
    }

    /// Whether all limits are buckets without a grid.
    pub(crate) fn are_usual(&self) -> bool {
        self.fixed.terms.iter().all(|terms| terms.as_usual_bucket().is_some())
    }

    /// The smallest run that is worth a wake-up: 1 ms' worth of the slowest rate, and at most the smallest burst or
    /// window.
    #[must_use]
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// Whole units that could be taken at `now`; 0 before the time of the latest grant.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        self.available_where(now, |_| true)
    }

    /// Whole units that could be taken at `now` in the limits whose index is wanted.
    pub(super) fn available_where(&self, now: Nanos, is_wanted: impl Fn(usize) -> bool) -> u64 {
        let now = self.in_order(now);
        if now < self.at.max(self.next) {
            return 0;
        }
        let wanted = self.each().filter(|(place, ..)| is_wanted(*place));
        wanted.map(|(_, terms, state)| terms.available(state, now)).min().unwrap_or(u64::MAX).min(self.at_once())
    }

    /// Whether there is a least time between two grants.
    pub(crate) fn are_spaced(&self) -> bool {
        self.every > 0
    }

    /// The most units of one grant.
    fn at_once(&self) -> u64 {
        if self.are_spaced() { 1 } else { u64::MAX }
    }

    /// The time of the latest grant.
    #[must_use]
    pub fn latest(&self) -> Nanos {
        self.at
    }

    /// The time by which these further costs will have been granted if requests never pause: the latest of the times of
    /// the single limits. `None` beyond the end of the clock.
    #[must_use]
    pub fn schedule(&self, now: Nanos, costs: impl CostList) -> Option<Nanos> {
        self.fixed.schedule(&self.states, self.in_order(now).max(self.at), costs)
    }

    /// Gives back an unused grant of these costs. They are credited, less the gain of the limits since. If the time of
    /// a grant is in the future, nothing is given back, because later grants are never moved.
    ///
    /// A grant may be given back only once. The caller must ensure that: grants are not stored.
    pub fn give_back(&mut self, now: Nanos, grant: &Grant, costs: impl CostList) {
        let now = self.in_order(now);
        if costs.largest() > 0 && now >= self.at.max(grant.at) {
            (self.asked, self.at) = (now, now);
            let known = (grant.number, [grant.at, grant.counted]);
            self.revise(|fixed, place, terms, state| terms.give_back(state, now, known, fixed.cost(place, costs)));
        }
        self.close(grant.number);
    }

    /// Opens the latest grant, which has these costs, so that it can be [settled](Self::settle). Until it is settled,
    /// every further grant takes slightly longer. If it will not be settled, [close](Self::close) it. The number of open
    /// grants is limited. Above that number, the oldest is closed.
    pub(crate) fn open(&mut self, grant: &Grant, costs: impl CostList) {
        if costs.largest() > 0 {
            self.fixed.open(&mut self.states, grant.number, grant.at, costs);
        }
    }

    /// Whether a bucket has an open grant.
    pub(crate) fn has_open(&self) -> bool {
        self.states.iter().any(|state| state.open().is_some())
    }

    /// Closes a grant that will not be settled: its charge was its real cost.
    pub(crate) fn close(&mut self, number: u64) {
        self.states.iter_mut().for_each(|state| state.close(number));
    }

    /// Settles a grant at its real costs: `costs` are the charged costs and the real costs. If the grant is
    /// [open](Self::open), the limits are then as if it had cost its real costs from the start. A credit is lost if it
    /// would have overflowed the bucket meanwhile. Later requests owe the excess of a higher cost. All other grants
    /// keep their times. If the grant is not open, a lower cost is credited less the gain of the limits since.
    ///
    /// A grant may be settled only once, and not given back as well.
    pub(crate) fn settle(&mut self, now: Nanos, grant: &Grant, costs: [impl CostList; 2]) {
        let now = self.in_order(now);
        let (times, known) = ([now, now.max(self.at)], (grant.number, [grant.at, grant.counted]));
        self.fixed.settle(&mut self.states, times, known, costs);
    }

    /// Empties the buckets at `time`; they gain from then on.
    pub(crate) fn empty(&mut self, time: Nanos) {
        self.revise(|_, _, terms, state| terms.empty(state, time));
    }

    /// Empties the buckets at `until`: nothing is granted between `now` and that time. Debts are paid meanwhile.
    pub(crate) fn pause(&mut self, now: Nanos, until: Nanos) {
        self.pay_debts(now);
        let known: Vec<_> = (0..self.len()).map(|place| self.debt(place)).collect();
        let before: Vec<_> = self.states.iter().map(|state| state.level).collect();
        self.empty(until);
        let debt = |place: usize, terms: &Terms| {
            let (Terms::Bucket(bucket), emptied) = (terms, self.states[place].level) else { return None };
            let mut debt = Debt { level: known[place].map_or(before[place], |debt| debt.level), emptied };
            debt.pay(bucket, now);
            // A bucket that was charged for a later time is not emptied.
            (emptied.at == until).then_some(debt)
        };
        self.debts = self.fixed.terms.iter().enumerate().map(|(place, terms)| debt(place, terms)).collect();
    }

    /// Pays debts at the current rates until `now`, and forgets them once the pause is over.
    pub(crate) fn pay_debts(&mut self, now: Nanos) {
        for (slot, terms) in self.debts.iter_mut().zip(&self.fixed.terms) {
            match (slot.as_mut(), terms) {
                (Some(debt), Terms::Bucket(bucket)) if now < debt.emptied.at => debt.pay(bucket, now),
                _ => *slot = None,
            }
        }
    }

    /// The debt of the bucket at `place`, if it is to be emptied and nothing else has changed it.
    fn debt(&self, place: usize) -> Option<Debt> {
        let level = self.states.get(place)?.level;
        self.debts.get(place).copied().flatten().filter(|debt| debt.emptied == level)
    }

    /// Changes the rate of the bucket at `place` from `now` on. Grants keep their times; saved credit is kept.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate) {
        self.asked = self.asked.max(now);
        if let (Some(Terms::Bucket(from)), Some(state)) = (self.fixed.terms.get(place), self.states.get(place)) {
            self.change(place, *from, from.with_rate(rate, self.asked.max(state.level.at)));
        }
    }

    /// Changes the size of the bucket at `place` from `now` on, without filling it.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64) {
        self.set_burst_for(now, place, burst, 0);
    }

    /// Changes the size of a bucket while a waiter of these costs waits: the waiter keeps the amount that it has
    /// gathered.
    pub(crate) fn set_burst_for(&mut self, now: Nanos, place: usize, burst: NonZeroU64, waiting: impl CostList) {
        self.asked = self.asked.max(now);
        if let Some(Terms::Bucket(from)) = self.fixed.terms.get(place) {
            self.change(place, *from, from.with_burst(burst.get()));
            let (requested, cost) = (self.asked, self.fixed.cost(place, waiting));
            self.revise_bucket(place, |bucket, state| bucket.spill(state, requested, cost));
        }
    }

    /// Replaces the bucket at `place` by `to`.
    fn change(&mut self, place: usize, from: bucket::Terms, to: bucket::Terms) {
        let (requested, debt) = (self.asked, self.debt(place));
        from.change(&mut self.states[place], requested, &to);
        self.fixed.terms[place] = Terms::Bucket(to);
        if let Some(debt) = debt {
            let debt = debt.at_rate(&from, &to);
            (self.debts[place], self.states[place].level) = (Some(debt), debt.emptied);
        }
    }

    /// Replaces the limits by `limits`, which are in their initial state, from `now` on. A limit at the same index and of
    /// the same kind keeps its credit or count. Grants keep their times. A waiter of the costs `waiting` keeps the amount
    /// that it has gathered.
    pub(crate) fn replace(&mut self, now: Nanos, mut limits: Limits, waiting: impl CostList) {
        let now = self.in_order(now);
        let mut debts: Vec<_> = (0..self.len()).map(|place| self.debt(place)).collect();
        for (place, (from, old)) in self.fixed.terms.iter().zip(&mut self.states).enumerate() {
            match (from, limits.fixed.terms.get(place)) {
                (Terms::Bucket(from), Some(Terms::Bucket(to))) => {
                    from.change(old, now, to);
                    if let Some(debt) = &mut debts[place] {
                        *debt = debt.at_rate(from, to);
                        old.level = debt.emptied;
                    }
                    to.spill(old, now, limits.fixed.cost(place, waiting));
                }
                (Terms::Window(_), Some(Terms::Window(_))) => {}
                _ => continue,
            }
            limits.states[place] = old.clone();
        }
        limits.debts = debts;
        *self = Limits { at: self.at, number: self.number, every: self.every, next: self.next, ..limits };
    }

    /// Drops credit above the burst at `now`.
    pub(crate) fn spill(&mut self, now: Nanos) {
        self.revise(|_, _, terms, state| {
            if let Terms::Bucket(bucket) = terms {
                bucket.spill(state, now, 0);
            }
        });
    }

    /// Charges a request that was made at `requested` and is granted at `at`, which may be in the future. Windows count
    /// it from `counted`, which is not before `at`.
    pub(crate) fn charge(&mut self, requested: Nanos, [at, counted]: [Nanos; 2], costs: impl CostList) -> Grant {
        let units = costs.largest();
        if units == 0 {
            return Grant::computed(at, 0, None, 0);
        }
        self.asked = self.in_order(requested);
        let times = [self.at, self.asked, at, counted];
        // Limits in which the cost is 0 are also charged: later requests begin to gather after this one.
        self.revise(|fixed, place, terms, state| terms.charge(state, times, fixed.cost(place, costs)));
        (self.at, self.number) = (at, self.number + 1);
        self.next = if self.are_spaced() { at.saturating_add(self.every) } else { 0 };
        Grant { counted, ..Grant::computed(at, units, None, self.number) }
    }

    /// Changes each limit by `act`, which also gets its index.
    pub(super) fn revise(&mut self, act: impl Fn(&Fixed, usize, &Terms, &mut State)) {
        let fixed = &self.fixed;
        fixed.revise(&mut self.states, |place, terms, state| act(fixed, place, terms, state));
    }

    /// Changes the bucket at `place`, if there is one.
    pub(super) fn revise_bucket(&mut self, place: usize, act: impl FnOnce(&bucket::Terms, &mut State)) {
        if let (Some(Terms::Bucket(bucket)), Some(state)) = (self.fixed.terms.get(place), self.states.get_mut(place)) {
            act(bucket, state);
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &Terms, &State)> {
        self.fixed.each(&self.states)
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = (usize, &window::Terms, &State)> {
        self.fixed.windows(&self.states)
    }

    /// Clamps clock readings that arrive out of order.
    pub(super) fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.asked)
    }
}
