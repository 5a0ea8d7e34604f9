//! The data of a shared ledger, and what is read from it.

use super::seen::Seen;
use crate::clock::{Nanos, SECOND};
use crate::ledger::operation::{Counts, Grant, Outcome, Owner, Refusal};
use crate::ledger::requests::Ticket;
use crate::ledger::state::Ledger;
use crate::limits::{Levels, Limits, Policy};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// How long a grant that does not settle can be given back.
pub(super) const RETURN_TIME: Nanos = 2 * SECOND;

/// The ledger of a shared bucket, as far as its log was read.
#[derive(Clone)]
pub struct Replica {
    pub(super) ledger: Ledger,
    pub(super) policy: Policy,
    /// The least horizon.
    pub(super) least: Nanos,
    /// The reported round trips that may be the longest at some time: when each expires, and the round trip. Times
    /// ascend, and round trips descend.
    pub(super) reports: VecDeque<(Nanos, Nanos)>,
    /// The requests, by owner and ticket.
    pub(super) asked: HashMap<(Owner, u64), Ticket>,
    /// The owner and the ticket of each request, by the slot of the ledger.
    pub(super) names: Vec<(Owner, u64)>,
    pub(super) grants: BTreeMap<u64, Committed>,
    /// The grants that are only stored because they can be given back, and until when.
    pub(super) returnable: VecDeque<(Nanos, u64)>,
    /// The latest refusals: whoever reads a snapshot learns of them.
    pub(super) refusals: VecDeque<((Owner, u64), Refusal)>,
    pub(super) seen: Seen,
    /// The age of the youngest request.
    pub(super) age: u64,
    pub(super) counts: Counts,
    /// When the limits were set: new keys have buckets made then.
    pub(super) made: Nanos,
    /// Counts the changes by which a request may be granted earlier than expected before.
    pub(super) moves: u64,
    /// Whether this was read from a snapshot, so that earlier outcomes are not known.
    pub(super) is_loaded: bool,
    pub(super) outcomes: VecDeque<(Owner, Outcome)>,
    /// Whose outcomes are stored. `None`: everybody's.
    pub(super) listener: Option<Owner>,
}

/// A grant that may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Committed {
    pub(super) owner: Owner,
    pub(super) grant: Grant,
    /// Whether it is stored until its owner reports its end, and whether that is so because of its real costs.
    pub(super) is_kept: bool,
    pub(super) settles: bool,
    /// Whether another owner had requested it, so that the ticket is not the owner's.
    pub(super) is_handed_over: bool,
}

impl Replica {
    /// The ledger of a new bucket with these limits. Grants get numbers after `number`. A grant is committed when it is
    /// due by now and `horizon`, at least.
    pub fn new(policy: &Policy, now: Nanos, number: u64, horizon: Nanos) -> Self {
        let mut ledger = Ledger::of_policy(policy, now);
        (ledger.granted, ledger.horizon) = (number, horizon);
        Replica {
            ledger,
            policy: policy.clone(),
            least: horizon,
            reports: VecDeque::new(),
            asked: HashMap::new(),
            names: Vec::new(),
            grants: BTreeMap::new(),
            returnable: VecDeque::new(),
            refusals: VecDeque::new(),
            seen: Seen::default(),
            age: 0,
            counts: Counts { since: now, ..Counts::default() },
            made: now,
            moves: 0,
            is_loaded: false,
            outcomes: VecDeque::new(),
            listener: None,
        }
    }

    /// From now on, only outcomes for this owner are stored.
    pub fn listen(&mut self, owner: Owner) {
        self.listener = Some(owner);
        self.outcomes.retain(|(of, _)| *of == owner);
    }

    /// Whether this was read from a snapshot since the latest call. Then grants may be known only by
    /// [`grants_of`](Self::grants_of).
    pub fn take_is_loaded(&mut self) -> bool {
        std::mem::take(&mut self.is_loaded)
    }

    /// While this number is the same, no request is granted earlier than expected before.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// The next outcome, and its owner.
    pub fn take(&mut self) -> Option<(Owner, Outcome)> {
        self.outcomes.pop_front()
    }

    /// Whether a request waits.
    pub fn waits(&self, owner: Owner, ticket: u64) -> bool {
        self.asked.contains_key(&(owner, ticket))
    }

    /// The grants of an owner that may still change.
    pub fn grants_of(&self, owner: Owner) -> impl Iterator<Item = Grant> {
        self.grants.values().filter(move |committed| committed.owner == owner).map(|committed| committed.grant)
    }

    /// The latest time to which this was advanced.
    pub fn now(&self) -> Nanos {
        self.ledger.now
    }

    /// How far a grant may lie in the past when its unit leaves: it took a round trip to arrive. What a usual round trip
    /// takes beyond the least one counts up to the time in which a bucket fills.
    pub fn allowance(&self, usual: Nanos, least: Nanos) -> Nanos {
        let own = self.ledger.settings.allowance;
        let fill_time = [&self.ledger.all, self.ledger.keys.each()].into_iter().filter_map(Limits::fill_time).min();
        own.saturating_add(usual).min(fill_time.unwrap_or(Nanos::MAX)).max(own.saturating_add(least))
    }

    /// Why a request of an owner was refused last, if that was lately.
    pub(crate) fn refusal_of(&self, owner: Owner, ticket: u64) -> Option<Refusal> {
        self.refusals.iter().rev().find(|(name, _)| *name == (owner, ticket)).map(|(_, why)| *why)
    }

    /// The limits.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The limits of a key with their state; without a key, the limits of all keys.
    pub fn limits(&self, key: Option<&[u8]>) -> Option<(&Limits, &Levels)> {
        match key {
            Some(key) => self.ledger.find(Some(key)).map(|key| self.ledger.limits(Some(key))),
            None => Some(self.ledger.limits(None)),
        }
    }

    /// The number of requests that wait. The plain units of an owner are one.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Owners with requests or units that run, and the time of the latest operation of each.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.seen.in_use()
    }
}
