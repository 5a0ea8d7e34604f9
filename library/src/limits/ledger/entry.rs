//! What a ledger can still change: grants whose time has not come, and holds.

use super::operation::{OfKey, Owner};
use crate::clock::Nanos;
use crate::limits::grant::{Grant, LOOK};
use crate::limits::together::Limits;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// So many grants of a ledger may wait for their real cost. Beyond that, the oldest is settled as law 5 allows.
const OPEN: usize = 1024;

/// A grant whose time has not come, the latest grant, or a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct Entry {
    /// Identifies it among all grants of the ledger.
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    pub(crate) asked: Nanos,
    /// How long after it asked the owner was last seen.
    pub(crate) seen_after: Nanos,
    /// Its time; that of its last run.
    pub(crate) at: Nanos,
    pub(crate) charge: Charge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) enum Charge {
    /// One grant.
    One {
        /// One for each limit; a limit beyond them costs what the last of them says.
        costs: Box<[u64]>,
        /// It will be settled.
        is_open: bool,
        /// Its owner waits, and looks again and again whether it has moved up.
        moves: bool,
        /// What it costs the limits of its key.
        key: Option<OfKey>,
    },
    /// Consecutive grants of one lease: times, and units of each.
    Runs { runs: Vec<(Nanos, u64)> },
    /// Nothing is granted before its time, and buckets are empty then.
    Hold,
}

impl Entry {
    /// When the owner was last seen.
    pub(crate) fn seen(&self) -> Nanos {
        self.asked.saturating_add(self.seen_after)
    }

    /// Whether it may get an earlier time.
    pub(crate) fn moves(&self) -> bool {
        matches!(self.charge, Charge::One { moves: true, .. })
    }

    /// Its key.
    pub(crate) fn of_key(&self) -> Option<&OfKey> {
        if let Charge::One { key, .. } = &self.charge { key.as_ref() } else { None }
    }

    /// Whether it waits for long.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.charge, Charge::One { moves, .. } if moves || self.at - self.asked >= LOOK)
    }

    /// How long its owner has waited for it, or for the first run of its lease.
    pub(crate) fn waited(&self) -> Nanos {
        match &self.charge {
            Charge::One { .. } => self.at.saturating_sub(self.asked),
            Charge::Runs { runs } => runs.first().map_or(0, |(at, _)| at.saturating_sub(self.asked)),
            Charge::Hold => 0,
        }
    }

    pub(crate) fn is_hold(&self) -> bool {
        matches!(self.charge, Charge::Hold)
    }

    /// The largest of its costs; 0 for a hold.
    pub(crate) fn cost(&self) -> u64 {
        match &self.charge {
            Charge::One { costs, .. } => costs.iter().copied().max().unwrap_or(0),
            Charge::Runs { runs } => runs.iter().fold(0, |sum, (_, units)| sum.saturating_add(*units)),
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
            Charge::Runs { runs } => {
                for (at, units) in runs {
                    let _ = limits.charge(self.asked, [*at; 2], *units);
                }
            }
            Charge::Hold => limits.hold(self.at),
        }
    }

    /// Leaves out the last `unused` units of a lease, if there are so many. Returns how many were left out.
    pub(crate) fn cut(&mut self, unused: u64) -> u64 {
        let before = self.cost();
        let mut left = before.saturating_sub(unused);
        let Charge::Runs { runs } = &mut self.charge else { return 0 };
        runs.retain_mut(|(_, units)| {
            *units = left.min(*units);
            left -= *units;
            *units > 0
        });
        if let Some((at, _)) = runs.last() {
            self.at = *at;
        }
        before - self.cost()
    }

    /// Splits off the runs of a lease whose time has come by `now`.
    pub(crate) fn split_past(&mut self, now: Nanos) -> Option<Entry> {
        let Charge::Runs { runs } = &mut self.charge else { return None };
        let ahead = runs.split_off(runs.partition_point(|(at, _)| *at <= now));
        let gone = std::mem::replace(runs, ahead);
        let at = gone.last()?.0;
        Some(Entry { at, charge: Charge::Runs { runs: gone }, ..*self })
    }

    pub(super) fn granted(&self, bound_by: Option<usize>) -> Grant {
        Grant::computed(self.at, self.cost(), bound_by, self.number).entry(self.moves())
    }

    /// Charges it, and tells whether it conforms at its time.
    pub(super) fn conforms(&self, limits: &mut Limits) -> bool {
        let conforms = match &self.charge {
            Charge::One { costs, .. } => limits.conforms_at(self.asked, costs).ok(),
            Charge::Runs { runs } => runs.first().and_then(|(_, units)| limits.conforms_at(self.asked, *units).ok()),
            Charge::Hold => Some((limits.at, None)),
        };
        let first = if let Charge::Runs { runs } = &self.charge { runs.first().map(|run| run.0) } else { None };
        self.apply(limits);
        conforms.is_some_and(|(at, _)| at <= first.unwrap_or(self.at))
    }
}
