//! Costs of several kinds at once, requests and tokens for example: each limit counts one kind.
//!
//! A queue passes a cost on as a number and does not look into it. Where limits count several kinds, that number stands
//! for a list of costs, one of each kind, which is kept here for as long as somebody may come back to it.

use super::{Limits, State};
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
        let least = |states: &mut dyn Iterator<Item = &State>| states.map(State::most).min().unwrap_or(u64::MAX);
        let windows = |state: &&State| matches!(state, State::Window(_));
        (least(&mut self.of_kind(kind)), least(&mut self.of_kind(kind).filter(windows)))
    }

    /// Units of a kind that could be taken at `now`; none while a time given lies ahead.
    pub(crate) fn available_of(&self, now: Nanos, kind: usize) -> u64 {
        let now = self.in_order(now);
        if now < self.at { 0 } else { self.of_kind(kind).map(|state| state.available(now)).min().unwrap_or(u64::MAX) }
    }

    fn of_kind(&self, kind: usize) -> impl Iterator<Item = &State> {
        self.states.iter().zip(&self.kinds.of).filter(move |(_, of)| **of == kind).map(|(state, _)| state)
    }
}
