//! The owners of a shared ledger: when each was heard of, and which of its operations are known.

use crate::clock::Nanos;
use crate::ledger::operation::Owner;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The most owners whose latest operation is known, to detect a repeated one.
const MAX_RECENT: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// For each owner with requests or units that run: the time of its latest operation, and the number of these.
    owners: BTreeMap<Owner, (Nanos, u64)>,
    /// The latest operation of each recent owner, oldest first.
    recent: VecDeque<(Owner, u64)>,
}

impl Seen {
    /// Whether the operation with this number was applied before. Records it.
    pub(super) fn is_repeated(&mut self, owner: Owner, sequence: u64) -> bool {
        if sequence == 0 {
            return false;
        }
        let known = self.recent.iter().rposition(|(of, _)| *of == owner);
        if known.is_some_and(|place| self.recent[place].1 >= sequence) {
            return true;
        }
        known.map(|place| self.recent.remove(place));
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((owner, sequence));
        false
    }

    /// Records an operation of an owner.
    pub(super) fn note(&mut self, owner: Owner, now: Nanos) {
        if let Some((at, _)) = self.owners.get_mut(&owner) {
            *at = now;
        }
    }

    /// The owner has one more request, or one more unit that runs.
    pub(super) fn uses(&mut self, owner: Owner, now: Nanos) {
        self.owners.entry(owner).or_insert((now, 0)).1 += 1;
    }

    pub(super) fn uses_less(&mut self, owner: Owner) {
        if let Some((_, uses)) = self.owners.get_mut(&owner) {
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    pub(super) fn in_use(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.owners.iter().map(|(owner, (at, _))| (*owner, *at))
    }

    /// The same owners, but none has requests or units that run.
    pub(super) fn without_uses(self) -> Seen {
        Seen { owners: BTreeMap::new(), ..self }
    }

    /// Whether the numbers of requests and units that run are those of `other`.
    pub(super) fn has_uses_of(&self, other: &Seen) -> bool {
        self.owners.values().map(|(_, uses)| uses).eq(other.owners.values().map(|(_, uses)| uses))
    }

    /// The time of the latest operation of an owner, if it has requests or units that run.
    pub(super) fn at(&self, owner: Owner) -> Option<Nanos> {
        self.owners.get(&owner).map(|(at, _)| *at)
    }
}
