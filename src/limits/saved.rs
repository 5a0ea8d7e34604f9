//! Limits replaced by others with `set`.

use super::history::History;
use super::policy::Policy;
use super::terms::Terms;
use super::together::Limits;
use super::window;
use crate::clock::Nanos;

impl Limits {
    /// Replaces the limits by those of `policy` from `now` on. A limit at the same index and of the same kind keeps its
    /// credit or count, unless `fresh` is true at its index: then it starts anew. Grants keep their times.
    pub(crate) fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        let now = self.in_order(now);
        let mut limits = Limits::new(policy, now);
        for (place, (from, old)) in self.terms.iter().zip(&mut self.states).enumerate() {
            let is_fresh = fresh.get(place).copied().unwrap_or(false);
            if let Some(to) = limits.terms.get(place).filter(|to| !is_fresh && to.is_like(from)) {
                from.change(old, now, to);
                if let Ok(bucket) = to.kind() {
                    bucket.spill(&mut old.level, now);
                }
                limits.states[place] = old.clone();
            }
        }
        // No grant has this number: an earlier grant cannot be undone in limits that it was not charged to.
        let history = History::after(self.history.grants + 1);
        *self = Limits { at: self.at, history, ..limits };
    }

    /// Continues as if everything that the limits allow had been taken at `now`: buckets are empty, windows are full.
    pub(crate) fn use_up(&mut self, now: Nanos) {
        let full = self.terms.iter().filter_map(Terms::as_window).map(window::Terms::period).max();
        self.hold_until(now, now.saturating_add(full.unwrap_or(1)));
    }

    /// A time by which every limit is at rest if nothing more is taken: buckets are full, windows are empty.
    #[must_use]
    pub(crate) fn rested_at(&self) -> Nanos {
        self.at.saturating_add(self.terms.iter().map(Terms::rest_time).max().unwrap_or(0))
    }
}
