//! What limits want to know of a unit: its key, and its costs; and how units are sorted by that.

use super::cost::Cost;
use super::order::{Order, Rules};
use super::selector::Selector;
use crate::clock::Nanos;
use crate::limits::Policy;
use std::num::NonZeroU32;

/// What limits want to know of a unit.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Finds its key; `None`: no limits are kept for each key.
    pub per: Option<Selector>,
    /// What it costs limits of each kind; `None`: one.
    pub costs: Vec<Option<Cost>>,
}

impl Look {
    /// Puts the costs of `unit`, which is given without its delimiter, into `costs`.
    ///
    /// # Errors
    /// The cost that cannot be read.
    pub fn costs(&self, unit: &[u8], costs: &mut Vec<u64>) -> Result<(), &Cost> {
        costs.clear();
        for cost in &self.costs {
            costs.push(cost.as_ref().map_or(Ok(1), |cost| cost.of(unit).ok_or(cost))?);
        }
        Ok(())
    }

    /// Why a unit that no buffer of `most` bytes holds cannot be looked into; `None` if nothing has to.
    #[must_use]
    pub fn too_large(&self, most: usize) -> Option<String> {
        let by_key = self.per.as_ref().map(|per| per.too_large(most));
        let cost = || self.costs.iter().flatten().find(|cost| cost.unread().is_none()).map(|cost| cost.too_large(most));
        by_key.or_else(cost).map(|error| error.to_string())
    }
}

/// How units are sorted.
#[derive(Clone, Debug, Default)]
pub struct Sorting {
    /// What their limits want to know of them.
    pub look: Look,
    /// The limits of each key, and which of the costs each counts.
    pub each: Vec<(Policy, usize)>,
    /// The limits of all together.
    pub all: Vec<(Policy, usize)>,
    /// The most commands of one key that run at once; `None`: nothing runs.
    pub jobs: Option<NonZeroU32>,
    /// Units that would wait longer are dropped, in nanoseconds.
    pub max_wait: Option<Nanos>,
    /// The most units that are read while others wait.
    pub ahead: usize,
}

impl Sorting {
    /// Nothing waits; the buckets of all keys are made at `now`.
    #[must_use]
    pub fn begin<T>(&self, now: Nanos) -> Order<T> {
        let each: Vec<_> = self.each.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let all: Vec<_> = self.all.iter().map(|(policy, kind)| (policy, *kind)).collect();
        Order::new(&Rules { each: &each, all: &all, jobs: self.jobs, max_wait: self.max_wait }, now)
    }
}
