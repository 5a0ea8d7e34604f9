//! Leases: consecutive grants in one go, for units that were read, each to leave at its own time.

use super::{Grant, Limits, Refusal};
use crate::clock::Nanos;
use std::collections::VecDeque;

/// No lease is of more runs.
const RUNS: usize = 1024;

/// What a lease is to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units that were read and wait.
    pub waiting: u64,
    /// It ends with the first run so much later, in nanoseconds, than it was asked for, or than `latest`.
    pub span: Nanos,
    /// The latest time of what the same stream was granted before, if it is still to be used.
    pub latest: Nanos,
}

/// What is left of leases.
#[derive(Debug)]
pub(crate) struct Rest {
    /// The last run of the latest lease.
    pub(crate) last: Grant,
    /// Units of that lease that were used.
    pub(crate) spent: u64,
    /// How many of the runs are of leases before the latest.
    pub(crate) older: usize,
    /// Runs that were not used, in order.
    pub(crate) runs: VecDeque<Grant>,
}

impl Limits {
    /// Grants runs for as many of the waiting units as leave within the span, each as by [`take_run`](Self::take_run).
    ///
    /// # Errors
    /// The first run is refused; nothing is charged then.
    pub(crate) fn lease(&mut self, now: Nanos, ask: &Ask, mut each: impl FnMut(Grant)) -> Result<(), Refusal> {
        let end = self.in_order(now).max(ask.latest.min(self.at)).saturating_add(ask.span);
        let first = self.take_run(now, ask.waiting)?;
        each(first);
        let mut left = ask.waiting.saturating_sub(first.units);
        for _ in 1..RUNS {
            if left == 0 || self.at >= end {
                break;
            }
            let units = self.run(now, left);
            let Ok((at, bound_by)) = self.conforms_at(now, units) else { break };
            self.charge(now, at, at, units);
            each(Grant::told(at, units, bound_by, self.history.grants));
            left -= units;
        }
        Ok(())
    }

    /// Gives back the rest of leases. If nothing was granted to anybody since, the latest is undone, as if it had been for
    /// nothing but what was spent of it. What else lies in the past is credited, as by [`give_back`](Self::give_back).
    pub(crate) fn return_lease(&mut self, now: Nanos, rest: &Rest) {
        let now = self.in_order(now);
        let is_last = self.history.last().is_some_and(|last| last.number == rest.last.number);
        if is_last {
            let (held, asked, mut spent) = (self.undo(), self.asked, rest.spent);
            while spent > 0 {
                let Ok(run) = self.take_run(asked, spent) else { break };
                spent -= run.units;
            }
            self.hold(held);
        }
        for run in rest.runs.iter().take(if is_last { rest.older } else { rest.runs.len() }) {
            self.credit_back(now, run);
        }
    }
}
