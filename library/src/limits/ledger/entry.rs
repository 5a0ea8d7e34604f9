//! What a ledger can still change: grants whose time has not come, and holds.

use super::operation::Owner;
use crate::clock::Nanos;
use crate::limits::grant::{Grant, LOOK};
use crate::limits::together::Limits;

/// So many grants of a ledger may wait for their real cost. Beyond that, the oldest is settled as law 5 allows.
const OPEN: usize = 1024;

/// A grant whose time has not come, the latest grant, or a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Identifies it among all grants of the ledger.
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    /// When the owner was last seen.
    pub(crate) seen: Nanos,
    pub(crate) asked: Nanos,
    /// Its time; that of its last run.
    pub(crate) at: Nanos,
    pub(crate) charge: Charge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// One grant.
    One {
        /// One for each limit; a limit beyond them costs what the last of them says.
        costs: Box<[u64]>,
        /// It will be settled.
        is_open: bool,
        /// Its owner waits, and looks again and again whether it has moved up.
        moves: bool,
    },
    /// Consecutive grants of one lease: times, and units of each.
    Runs {
        runs: Vec<(Nanos, u64)>,
        /// Units of the lease before these, which can no longer change.
        past: u64,
    },
    /// Nothing is granted before its time, and buckets are empty then.
    Hold,
}

impl Entry {
    /// Whether it may get an earlier time.
    pub(crate) fn moves(&self) -> bool {
        matches!(self.charge, Charge::One { moves: true, .. })
    }

    /// Whether it waits for long.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.charge, Charge::One { moves, .. } if moves || self.at - self.asked >= LOOK)
    }

    pub(crate) fn is_hold(&self) -> bool {
        matches!(self.charge, Charge::Hold)
    }

    /// The largest of its costs; 0 for a hold.
    pub(crate) fn cost(&self) -> u64 {
        match &self.charge {
            Charge::One { costs, .. } => costs.iter().copied().max().unwrap_or(0),
            Charge::Runs { runs, .. } => runs.iter().map(|(_, units)| units).sum(),
            Charge::Hold => 0,
        }
    }

    /// Charges it to `limits`, which have everything before it.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        match &self.charge {
            Charge::One { costs, is_open, .. } => {
                let grant = limits.charge(self.asked, [self.at; 2], costs).numbered(self.number);
                if *is_open {
                    limits.open(&grant, costs);
                    limits.settling.keep(OPEN);
                }
            }
            Charge::Runs { runs, .. } => {
                for (at, units) in runs {
                    let _ = limits.charge(self.asked, [*at; 2], *units);
                }
            }
            Charge::Hold => limits.hold(self.at),
        }
    }

    /// Leaves only the first `used` units of a lease. Returns what is left out.
    pub(crate) fn cut(&mut self, used: u64) -> u64 {
        let Charge::Runs { runs, past } = &mut self.charge else { return 0 };
        let (mut left, before) = (used.saturating_sub(*past), runs.iter().map(|(_, units)| units).sum::<u64>());
        runs.retain_mut(|(_, units)| {
            *units = left.min(*units);
            left -= *units;
            *units > 0
        });
        if let Some((at, _)) = runs.last() {
            self.at = *at;
        }
        before - runs.iter().map(|(_, units)| units).sum::<u64>()
    }

    /// Splits off the runs of a lease whose time has come by `now`.
    pub(crate) fn split_past(&mut self, now: Nanos) -> Option<Entry> {
        let before = self.clone();
        let Charge::Runs { runs, past } = &mut self.charge else { return None };
        let ahead = runs.split_off(runs.partition_point(|(at, _)| *at <= now));
        let gone = std::mem::replace(runs, ahead);
        *past += gone.iter().map(|(_, units)| units).sum::<u64>();
        let at = gone.last()?.0;
        Some(Entry { at, charge: Charge::Runs { runs: gone, past: 0 }, ..before })
    }

    pub(super) fn granted(&self, bound_by: Option<usize>) -> Grant {
        Grant::computed(self.at, self.cost(), bound_by, self.number).entry(self.moves())
    }

    /// Charges it, and tells whether it conforms at its time.
    pub(super) fn conforms(&self, limits: &mut Limits) -> bool {
        let conforms = match &self.charge {
            Charge::One { costs, .. } => limits.conforms_at(self.asked, costs).ok(),
            Charge::Runs { runs, .. } => {
                runs.first().and_then(|(_, units)| limits.conforms_at(self.asked, *units).ok())
            }
            Charge::Hold => Some((limits.at, None)),
        };
        let first = if let Charge::Runs { runs, .. } = &self.charge { runs.first().map(|run| run.0) } else { None };
        self.apply(limits);
        conforms.is_some_and(|(at, _)| at <= first.unwrap_or(self.at))
    }
}
