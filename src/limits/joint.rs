//! Requests that cost each limit something else; limits joined from several, each with a cost of its own.

use super::state::State;
use super::terms::Terms;
use super::together::Limits;
use crate::clock::Nanos;

/// From here on, costs of a request to shared limits are ids of lists.
const LISTED: u64 = 1 << 63;

/// The largest of the costs of one request; 0 if it costs nothing.
pub(crate) fn largest(costs: &[u64]) -> u64 {
    costs.iter().copied().max().unwrap_or(0)
}

impl Limits {
    /// Joins these limits. Each entry counts one kind; all grant together or not at all.
    pub(crate) fn joint(each: Vec<Limits>, now: Nanos) -> Self {
        let mut joint = Limits::none(now);
        for (kind, limits) in each.into_iter().enumerate() {
            joint.kinds.of.extend(limits.states.iter().map(|_| kind));
            joint.terms.extend(limits.terms);
            joint.states.extend(limits.states);
        }
        joint
    }

    /// Stores these costs, one of each kind, and returns their id. [`forget_costs`](Self::forget_costs) removes them. 0
    /// if all costs are 0.
    pub(crate) fn number_costs(&mut self, costs: &[u64]) -> u64 {
        if costs.iter().all(|cost| *cost == 0) {
            return 0;
        }
        self.kinds.last += 1;
        self.kinds.lists.insert(self.kinds.last, costs.into());
        self.kinds.last
    }

    /// Removes these costs: nothing will ask for them again.
    pub(crate) fn forget_costs(&mut self, number: u64) {
        self.kinds.lists.remove(&number);
    }

    /// Acts with these costs as one number. They are one for each limit, or one for all limits; a limit beyond them costs
    /// what the last of them says.
    pub(crate) fn with_costs<T>(&mut self, costs: &[u64], act: impl FnOnce(&mut Self, u64) -> T) -> T {
        let most = largest(costs);
        if costs.iter().all(|cost| *cost == most) {
            return act(self, most);
        }
        let number = LISTED + self.kinds.lists.len() as u64;
        self.kinds.lists.insert(number, costs.into());
        let result = act(self, number);
        self.forget_costs(number);
        result
    }

    /// The most units of a kind at one instant, and in one grant after any wait.
    pub(crate) fn most_of(&self, kind: usize) -> (u64, u64) {
        let least = |terms: &mut dyn Iterator<Item = &Terms>| terms.map(Terms::most).min().unwrap_or(u64::MAX);
        let of_kind = || self.of_kind(kind).map(|(terms, _)| terms);
        (least(&mut of_kind()), least(&mut of_kind().filter(|terms| terms.as_window().is_some())))
    }

    /// Units of a kind that could be taken at `now`; 0 before the time of the latest grant.
    pub(crate) fn available_of(&self, now: Nanos, kind: usize) -> u64 {
        let now = self.in_order(now);
        let available = self.of_kind(kind).map(|(terms, state)| terms.available(state, now)).min();
        if now < self.at { 0 } else { available.unwrap_or(u64::MAX) }
    }

    fn of_kind(&self, kind: usize) -> impl Iterator<Item = (&Terms, &State)> {
        self.each().zip(&self.kinds.of).filter(move |(_, of)| **of == kind).map(|(limit, _)| limit)
    }
}
