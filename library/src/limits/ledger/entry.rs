//! The parts of a ledger that can still change: grants whose time has not come, and holds.

use super::operation::{OfKey, Owner};
use crate::clock::Nanos;
use crate::limits::grant::{Grant, LOOK};
use crate::limits::together::Limits;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// A grant whose time has not come, the latest grant, or a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct Entry {
    /// Identifies the grant among all grants of the ledger.
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    /// The time of the request.
    pub(crate) requested: Nanos,
    /// The time between the request and the owner's latest operation.
    pub(crate) seen_after: Nanos,
    /// The time of the grant, or of the last run of a lease.
    pub(crate) at: Nanos,
    pub(crate) charge: Charge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) enum Charge {
    /// One grant.
    One {
        /// One cost for each limit. Further limits are charged the last of these costs.
        costs: Box<[u64]>,
        /// As in [`Take::open`](super::operation::Take::open).
        open: Option<Nanos>,
        /// Whether the owner waits and polls for an earlier time.
        moves: bool,
        /// The charge to its key.
        key: Option<OfKey>,
    },
    /// The consecutive grants of one lease: the time and the units of each run.
    Runs { runs: Vec<(Nanos, u64)> },
    /// A hold. Nothing is granted before its time, and buckets are empty then.
    Hold,
}

impl Entry {
    /// The time of the owner's latest operation.
    pub(crate) fn last_seen(&self) -> Nanos {
        self.requested.saturating_add(self.seen_after)
    }

    /// Whether the grant may get an earlier time.
    pub(crate) fn moves(&self) -> bool {
        matches!(self.charge, Charge::One { moves: true, .. })
    }

    /// Whether the grant will be settled.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.charge, Charge::One { open: Some(_), .. })
    }

    /// The earliest time to which the entry may move up at `now`: its owner reads the new time by then. `None` if the
    /// entry keeps its time.
    pub(crate) fn moves_from(&self, now: Nanos) -> Option<Nanos> {
        let Charge::One { open, moves, .. } = self.charge else { return None };
        let learns = open.into_iter().chain(moves.then_some(LOOK)).min()?;
        Some(now.saturating_add(learns))
    }

    /// The key of the grant.
    pub(crate) fn of_key(&self) -> Option<&OfKey> {
        if let Charge::One { key, .. } = &self.charge { key.as_ref() } else { None }
    }

    /// Whether the owner polls for the grant, or waits for it for at least a second.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.charge, Charge::One { moves, .. } if moves || self.at - self.requested >= LOOK)
    }

    /// The wait of the owner for the grant, or for the first run of the lease.
    pub(crate) fn waited(&self) -> Nanos {
        match &self.charge {
            Charge::One { .. } => self.at.saturating_sub(self.requested),
            Charge::Runs { runs } => runs.first().map_or(0, |(at, _)| at.saturating_sub(self.requested)),
            Charge::Hold => 0,
        }
    }

    pub(crate) fn is_hold(&self) -> bool {
        matches!(self.charge, Charge::Hold)
    }

    /// The largest cost of the grant, or the units of the lease; 0 for a hold.
    pub(crate) fn cost(&self) -> u64 {
        match &self.charge {
            Charge::One { costs, .. } => costs.iter().copied().max().unwrap_or(0),
            Charge::Runs { runs } => runs.iter().fold(0, |sum, (_, units)| sum.saturating_add(*units)),
            Charge::Hold => 0,
        }
    }

    /// Charges the entry to `limits`, to which all earlier entries are charged.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        match &self.charge {
            Charge::One { costs, open, .. } => {
                let grant = limits.charge(self.requested, [self.at; 2], costs);
                if open.is_some() {
                    limits.open(&Grant { number: self.number, ..grant }, costs);
                }
            }
            Charge::Runs { runs } => {
                for (at, units) in runs {
                    let _ = limits.charge(self.requested, [*at; 2], *units);
                }
            }
            Charge::Hold => limits.hold(self.at),
        }
    }

    /// Removes the last `unused` units of a lease, or all units if it has fewer. Returns the number of removed units.
    pub(crate) fn cut(&mut self, unused: u64) -> u64 {
        let before = self.cost();
        let mut remaining = before.saturating_sub(unused);
        let Charge::Runs { runs } = &mut self.charge else { return 0 };
        runs.retain_mut(|(_, units)| {
            *units = remaining.min(*units);
            remaining -= *units;
            *units > 0
        });
        if let Some((at, _)) = runs.last() {
            self.at = *at;
        }
        before - self.cost()
    }

    /// Splits off the past runs of a lease: their times have come by `now`.
    pub(crate) fn split_past(&mut self, now: Nanos) -> Option<Entry> {
        let Charge::Runs { runs } = &mut self.charge else { return None };
        let ahead = runs.split_off(runs.partition_point(|(at, _)| *at <= now));
        let gone = std::mem::replace(runs, ahead);
        let at = gone.last()?.0;
        Some(Entry { at, charge: Charge::Runs { runs: gone }, ..*self })
    }

    pub(super) fn granted(&self) -> Grant {
        Grant { is_entry: self.moves(), ..Grant::computed(self.at, self.cost(), None, self.number) }
    }

    /// Charges the entry and returns whether it conforms at its time.
    pub(super) fn conforms(&self, limits: &mut Limits) -> bool {
        let conforms_by = |time: Nanos, costs: &[u64]| {
            limits.conforms_at(self.requested, costs).is_ok_and(|(earliest, _)| earliest <= time)
        };
        let conforms = match &self.charge {
            Charge::One { costs, .. } => conforms_by(self.at, costs),
            Charge::Runs { runs } => runs.first().is_some_and(|(at, units)| conforms_by(*at, &[*units])),
            Charge::Hold => limits.at <= self.at,
        };
        self.apply(limits);
        conforms
    }
}
