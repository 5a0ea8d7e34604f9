//! Costs of several kinds at once, for example requests and tokens. Each limit counts one kind.
//!
//! Limits handle a cost as one number. If it differs by limit, that number is the id of a list of costs: one of each kind
//! in a queue, which stores the list here as long as a waiter may need it; one for each limit elsewhere, and only during
//! one request.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Which kind each limit counts. By default there is one kind, and every limit counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    /// The kind of each limit, by index; empty if there is only one kind.
    pub(super) of: Vec<usize>,
    pub(super) lists: BTreeMap<u64, Arc<[u64]>>,
    pub(super) last: u64,
}

impl Kinds {
    /// The part of `cost` that the limit at `place` counts.
    #[inline]
    pub(super) fn part(&self, place: usize, cost: u64) -> u64 {
        if self.of.is_empty() && self.lists.is_empty() {
            return cost;
        }
        match (self.of.get(place), self.lists.get(&cost)) {
            (Some(&kind), list) => list.map_or(0, |list| list[kind]),
            (None, Some(list)) => list.get(place).or(list.last()).copied().unwrap_or(0),
            (None, None) => cost,
        }
    }

    /// Whether a cost is the id of a list, and not an amount.
    pub(super) fn are_several(&self) -> bool {
        !self.of.is_empty()
    }
}
