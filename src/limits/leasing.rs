//! Leases: consecutive grants taken in one step, for units that were read. Each leaves at its own time.

use super::grant::{Grant, Refusal};
use super::line::LONG;
use super::together::Limits;
use crate::clock::Nanos;
use std::collections::VecDeque;

/// The most runs in one lease.
const RUNS: usize = 1024;

/// What a lease should cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units that were read and wait.
    pub waiting: u64,
    /// All runs of the lease are less than this many nanoseconds after its first one. 0 means one run.
    pub span: Nanos,
    /// Nothing is granted before this time, not even to others. 0 if it does not matter.
    pub from: Nanos,
}

/// The unused rest of leases, and what is needed to give it back.
#[derive(Debug)]
pub(crate) struct Rest {
    /// The last run of the latest lease.
    pub(crate) last: Grant,
    /// How many units of that lease were used.
    pub(crate) spent: u64,
    /// How many of the runs belong to leases before the latest.
    pub(crate) older: usize,
    /// The unused runs, in order.
    pub(crate) runs: VecDeque<Grant>,
}

impl Limits {
    /// Grants runs for as many of the waiting units as leave within the span, each like [`take_run`](Self::take_run).
    ///
    /// The span counts from the first run, however far ahead that is: so all streams that wait get equal leases in turn.
    ///
    /// # Errors
    /// If the first run is refused; nothing is charged then.
    pub(crate) fn lease(&mut self, now: Nanos, ask: &Ask, each: impl FnMut(Grant)) -> Result<(), Refusal> {
        self.take_runs(now, ask.waiting, ask.span, RUNS, each)
    }

    /// Grants at most `most` runs of the waiting units. They are undone together. A run that waits long is the only one.
    fn take_runs(
        &mut self,
        now: Nanos,
        waiting: u64,
        span: Nanos,
        most: usize,
        mut each: impl FnMut(Grant),
    ) -> Result<(), Refusal> {
        let first = self.take_run(now, waiting)?;
        each(first);
        let end = first.at.saturating_add(span);
        let mut left = waiting.saturating_sub(first.units);
        for _ in 1..most {
            let units = self.run(now, left);
            let Ok((at, bound_by)) = self.conforms_at(now, units) else { break };
            if left == 0 || at >= end || at - self.in_order(now) >= LONG {
                break;
            }
            self.charge(now, at, at, units);
            each(Grant::computed(at, units, bound_by, self.history.grants));
            left -= units;
        }
        Ok(())
    }

    /// Gives back the rest of leases. If nothing else was granted since, the latest lease is undone as if only its used
    /// units had been taken. Other runs in the past are credited, like [`give_back`](Self::give_back).
    pub(crate) fn return_lease(&mut self, now: Nanos, rest: &Rest) {
        let now = self.in_order(now);
        let is_last = self.history.last().is_some_and(|last| last.number == rest.last.number);
        if is_last {
            let held = self.undo(0);
            // Together, as before: separate grants would make windows forget the earlier ones.
            let _ = self.take_runs(self.asked, rest.spent, Nanos::MAX, usize::MAX, |_| {});
            self.hold(held);
        }
        for run in rest.runs.iter().take(if is_last { rest.older } else { rest.runs.len() }) {
            self.credit_back(now, run);
        }
    }
}
