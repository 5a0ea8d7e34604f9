//! The ledger of a shared bucket: the fold of a log of operations. All who read the same log have the same ledger.
//!
//! A grant is committed when its time is by now and the *horizon*, which covers the round trip of the farthest client. A
//! commit is final. Everything later waits uncharged, so a cancelled request leaves no trace, and a settlement, a pause
//! or another policy acts on all who wait. The state depends only on the operations, on their times, and on the time to
//! which the ledger was advanced. It does not depend on when or how often it was read.

mod changes;
mod saved;
mod seen;
mod view;

use super::flows::Learned;
use super::operation::{Ask, Counts, Grant, Operation, Outcome, Owner, PLAIN, Record, Refusal};
use super::requests::{Terms, Ticket};
use super::state::{self, Ledger, Next, Request, Taken};
use crate::clock::{MILLISECOND, Nanos, SECOND};
use crate::limits::{Each, KeyId, NO_KEY, Policy, Thin};
pub use saved::Damaged;
use seen::Seen;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
pub(crate) use view::PRESENCE_TTL;

/// How long a grant that does not settle can be given back.
const RETURN_TIME: Nanos = 2 * SECOND;

/// The most grants that can be given back and do not settle.
pub(crate) const MAX_RETURNABLE: usize = 1024;

/// The most requests. Plain units of an owner are one.
const MAX_REQUESTS: usize = 1 << 14;

/// How long a reported round trip counts.
const REPORT_TTL: Nanos = 60 * SECOND;

/// A longer round trip does not raise the horizon further.
pub const MAX_HORIZON: Nanos = 250 * MILLISECOND;

/// The ledger of a shared bucket, as far as its log was read.
#[derive(Clone)]
pub struct Replica {
    ledger: Ledger,
    policy: Policy,
    /// The least horizon.
    least: Nanos,
    /// The reported round trips that may be the longest at some time: when each expires, and the round trip. Times
    /// ascend, and round trips descend.
    reports: VecDeque<(Nanos, Nanos)>,
    /// The requests, by owner and ticket.
    asked: HashMap<(Owner, u64), Ticket>,
    /// The owner and the ticket of each request, by the slot of the ledger.
    names: Vec<(Owner, u64)>,
    grants: BTreeMap<u64, Committed>,
    /// The grants that are only stored because they can be given back, and until when.
    returnable: VecDeque<(Nanos, u64)>,
    seen: Seen,
    /// The age of the youngest request.
    age: u64,
    counts: Counts,
    /// When the limits were set: new keys have buckets made then.
    made: Nanos,
    /// Counts the changes by which a request may be granted earlier than expected before.
    moves: u64,
    /// Whether this was read from a snapshot, so that earlier outcomes are not known.
    is_loaded: bool,
    outcomes: VecDeque<(Owner, Outcome)>,
    /// Whose outcomes are stored. `None`: everybody's.
    listener: Option<Owner>,
}

/// A grant that may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Committed {
    owner: Owner,
    grant: Grant,
    /// Whether it is stored until its owner reports its end, and whether that is so because of its real costs.
    is_kept: bool,
    settles: bool,
    /// Whether another owner had requested it, so that the ticket is not the owner's.
    is_handed_over: bool,
}

impl Replica {
    /// The ledger of a new bucket with these limits. Grants get numbers after `number`. A grant is committed when it is
    /// due by now and `horizon`, at least.
    #[must_use]
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
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// The next outcome, and its owner.
    pub fn take(&mut self) -> Option<(Owner, Outcome)> {
        self.outcomes.pop_front()
    }

    /// Applies a record of the log, which is not older than the previous one.
    pub fn apply(&mut self, record: &Record) {
        self.advance(record.time);
        let (now, owner) = (self.ledger.now, record.owner);
        if self.seen.is_repeated(owner, record.sequence) {
            return;
        }
        record.operations.iter().for_each(|operation| self.change(now, owner, operation));
        self.seen.note(owner, now);
        self.advance(now);
    }

    /// Commits every grant that is due by `now` and the horizon.
    pub fn advance(&mut self, now: Nanos) {
        while let Some((expiry, _)) = self.reports.front().copied().filter(|(expiry, _)| *expiry <= now) {
            // As if it had been read just before the horizon changes.
            self.commit(expiry - 1);
            self.reports.pop_front();
            self.ledger.horizon = self.horizon();
        }
        self.commit(now);
    }

    /// How long before its time a grant is committed now: the longest round trip that was reported in the last 60 s.
    #[must_use]
    pub fn horizon(&self) -> Nanos {
        let longest = self.reports.front().map_or(0, |(_, round_trip)| *round_trip);
        self.least.max(longest.min(MAX_HORIZON))
    }

    fn commit(&mut self, now: Nanos) {
        while self.commit_one(now) {}
        while let Some((_, number)) = self.returnable.front().copied().filter(|(until, _)| *until <= now) {
            self.end(now, number);
        }
    }

    /// Commits one grant, or refuses one request. Returns `false` if nothing is due.
    fn commit_one(&mut self, now: Nanos) -> bool {
        match self.ledger.poll(now, u64::MAX) {
            Next::Granted(taken, charged) => {
                let (owner, ticket) = self.names[taken.ticket.slot()];
                let cost = taken.costs.iter().copied().max().unwrap_or(0);
                let (settles, is_kept) = (taken.settles, taken.settles || self.ledger.settings.jobs.is_some());
                let (age, at, has_waited) = (taken.age, charged.at, charged.at > taken.arrived);
                let start = self.ledger.start_of(charged.number);
                let grant = Grant { number: charged.number, ticket, age, at, units: 1, has_waited, start };
                self.count(cost, at - taken.arrived);
                // The owner is known without a break.
                self.keep(Committed { owner, grant, is_kept, settles, is_handed_over: false });
                self.no_longer_waits(taken.ticket);
            }
            Next::Run(run) => {
                let owner = self.names[run.ticket.slot()].0;
                let (number, at) = (run.charged.number, run.charged.at);
                let (units, has_waited, start) = (run.units, run.has_waited, self.ledger.start_of(number));
                let grant = Grant { number, ticket: PLAIN, age: 0, at, units, has_waited, start };
                let is_kept = self.ledger.settings.jobs.is_some();
                self.count(units, 0);
                self.keep(Committed { owner, grant, is_kept, settles: false, is_handed_over: false });
                if !self.ledger.requests.has(run.ticket) {
                    self.no_longer_waits(run.ticket);
                }
            }
            Next::Refused(taken, why) => self.refused(&taken, why),
            Next::At(_) | Next::Nothing => return false,
        }
        true
    }

    fn count(&mut self, units: u64, waited: Nanos) {
        self.counts.granted = self.counts.granted.saturating_add(units);
        self.counts.waited = self.counts.waited.saturating_add(waited);
    }

    /// Stores a grant that was just committed.
    fn keep(&mut self, committed: Committed) {
        let Committed { owner, grant, is_kept, .. } = committed;
        self.grants.insert(grant.number, committed);
        if is_kept {
            self.seen.uses(owner, self.ledger.now);
        } else {
            self.returnable.push_back((grant.at.saturating_add(RETURN_TIME), grant.number));
            if self.returnable.len() > MAX_RETURNABLE
                && let Some((_, number)) = self.returnable.front().copied()
            {
                self.end(self.ledger.now, number);
            }
        }
        self.report(owner, Outcome::Granted(grant));
    }

    fn refused(&mut self, taken: &Taken, why: state::Refusal) {
        let (owner, ticket) = self.no_longer_waits(taken.ticket);
        let why = match why {
            state::Refusal::TooLate => Refusal::TooLate,
            state::Refusal::GivenUp(Some(failed)) => Refusal::GivenUp(failed),
            state::Refusal::GivenUp(None) => Refusal::Cleared,
        };
        self.refuse(owner, ticket, why);
    }

    fn refuse(&mut self, owner: Owner, ticket: u64, why: Refusal) {
        // A request that is made again is not counted.
        let is_final = !matches!(why, Refusal::Cleared | Refusal::NoRoom(_));
        self.counts.refused = self.counts.refused.saturating_add(is_final.into());
        self.report(owner, Outcome::Refused(ticket, why));
    }

    fn report(&mut self, owner: Owner, outcome: Outcome) {
        if self.listener.is_none_or(|listener| listener == owner) {
            self.outcomes.push_back((owner, outcome));
        }
    }

    /// A request no longer waits. Returns its owner and ticket.
    fn no_longer_waits(&mut self, ticket: Ticket) -> (Owner, u64) {
        let name = self.names[ticket.slot()];
        self.asked.remove(&name);
        self.seen.uses_less(name.0);
        name
    }

    /// The grant with this number can no longer change.
    fn end(&mut self, now: Nanos, number: u64) {
        let Some(committed) = self.grants.remove(&number) else { return };
        self.ledger.ended(now, number);
        if committed.is_kept {
            self.seen.uses_less(committed.owner);
        } else if let Ok(place) = self.returnable.binary_search_by_key(&number, |(_, number)| *number) {
            self.returnable.remove(place);
        }
    }

    /// When the ledger should be read again, if no operation follows: a grant will be committed then, or a request will
    /// be refused.
    pub fn next_event(&mut self) -> Option<Nanos> {
        match self.ledger.poll(self.ledger.now, u64::MAX) {
            Next::At(time) => Some(time),
            _ => None,
        }
    }

    /// Whether a request waits.
    #[must_use]
    pub fn waits(&self, owner: Owner, ticket: u64) -> bool {
        self.asked.contains_key(&(owner, ticket))
    }

    /// The grants of an owner that may still change.
    pub fn grants_of(&self, owner: Owner) -> impl Iterator<Item = Grant> {
        self.grants.values().filter(move |committed| committed.owner == owner).map(|committed| committed.grant)
    }

    /// The latest time to which this was advanced.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.ledger.now
    }

    /// How far a grant may lie in the past when its unit leaves.
    #[must_use]
    pub fn allowance(&self) -> Nanos {
        self.ledger.settings.allowance
    }

    /// The limits.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The limits of a key with their state; without a key, the limits of all keys.
    #[must_use]
    pub fn limits(&self, key: Option<&[u8]>) -> Option<(&Each, &Thin)> {
        match key {
            Some(key) => self.ledger.find(Some(key)).map(|key| self.ledger.limits(Some(key))),
            None => Some(self.ledger.limits(None)),
        }
    }

    /// The number of requests that wait. The plain units of an owner are one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Owners with requests or units that run, and the time of the latest operation of each.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.seen.in_use()
    }
}
