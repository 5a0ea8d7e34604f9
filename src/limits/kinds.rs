//! Costs of several kinds at once, requests and tokens for example: each limit counts one kind.
//!
//! A queue passes a cost on as a number and does not look into it. Where limits count several kinds, that number stands
//! for a list of costs, one of each kind, which is kept here for as long as somebody may come back to it.

use super::Limits;
use super::state::State;
use super::terms::Terms;
use crate::clock::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which limit counts what. By default each counts the one cost there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    /// The kind of each limit, by its place; none where there is only one kind.
    of: Vec<usize>,
    lists: BTreeMap<u64, Arc<[u64]>>,
    last: u64,
}

impl Kinds {
    /// What the limit at `place` counts of `cost`.
    #[inline]
    pub(super) fn part(&self, place: usize, cost: u64) -> u64 {
        match self.of.get(place) {
            Some(&kind) => self.lists.get(&cost).map_or(0, |list| list[kind]),
            None => cost,
        }
    }

    /// Whether a cost is the number of a list, and says nothing as an amount.
    pub(super) fn are_several(&self) -> bool {
        !self.of.is_empty()
    }
}

impl Limits {
    /// All of these limits, which count a kind each and grant together or not at all.
    pub(crate) fn joint(each: Vec<Limits>, now: Nanos) -> Self {
        let mut joint = Limits::none(now);
        for (kind, limits) in each.into_iter().enumerate() {
            joint.kinds.of.extend(limits.states.iter().map(|_| kind));
            joint.terms.extend(limits.terms);
            joint.states.extend(limits.states);
        }
        joint
    }

    /// The number of these costs, one of each kind, until it is [given back](Self::forget_costs); 0 if nothing is asked.
    pub(crate) fn number_costs(&mut self, costs: &[u64]) -> u64 {
        if costs.iter().all(|cost| *cost == 0) {
            return 0;
        }
        self.kinds.last += 1;
        self.kinds.lists.insert(self.kinds.last, costs.into());
        self.kinds.last
    }

    /// Nobody comes back to these costs.
    pub(crate) fn forget_costs(&mut self, number: u64) {
        self.kinds.lists.remove(&number);
    }

    /// The most of a kind at one instant, and in one grant, however long it waits.
    pub(crate) fn most_of(&self, kind: usize) -> (u64, u64) {
        let least = |terms: &mut dyn Iterator<Item = &Terms>| terms.map(Terms::most).min().unwrap_or(u64::MAX);
        let of_kind = || self.of_kind(kind).map(|(terms, _)| terms);
        (least(&mut of_kind()), least(&mut of_kind().filter(|terms| terms.as_window().is_some())))
    }

    /// Units of a kind that could be taken at `now`; none while a time given lies ahead.
    pub(crate) fn available_of(&self, now: Nanos, kind: usize) -> u64 {
        let now = self.in_order(now);
        let available = self.of_kind(kind).map(|(terms, state)| terms.available(state, now)).min();
        if now < self.at { 0 } else { available.unwrap_or(u64::MAX) }
    }

    fn of_kind(&self, kind: usize) -> impl Iterator<Item = (&Terms, &State)> {
        self.each().zip(&self.kinds.of).filter(move |(_, of)| **of == kind).map(|(limit, _)| limit)
    }
}
