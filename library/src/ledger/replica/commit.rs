//! Folds a log: applies its records in their order, and commits the grants that are due.

use super::state::{Committed, RETURN_TIME, Replica};
use crate::clock::{MILLISECOND, Nanos};
use crate::ledger::operation::{Grant, Outcome, Owner, PLAIN, Record, Refusal};
use crate::ledger::requests::Ticket;
use crate::ledger::state::{self, Next, Taken};

/// The most grants that can be given back and do not settle.
pub(crate) const MAX_RETURNABLE: usize = 256;

/// The most refusals that are stored for those who read a snapshot.
const MAX_REFUSALS: usize = 64;

/// A longer round trip does not raise the horizon further.
pub const MAX_HORIZON: Nanos = 250 * MILLISECOND;

impl Replica {
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
            self.commit(expiry.saturating_sub(1));
            self.reports.pop_front();
            self.ledger.horizon = self.horizon();
        }
        self.commit(now);
    }

    /// How long before its time a grant is committed now: the longest round trip that was reported in the last 60 s.
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
    pub(super) fn commit_one(&mut self, now: Nanos) -> bool {
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

    pub(super) fn refuse(&mut self, owner: Owner, ticket: u64, why: Refusal) {
        // A request that is made again is not counted.
        let is_final = !matches!(why, Refusal::Cleared | Refusal::NoRoom(_));
        self.counts.refused = self.counts.refused.saturating_add(is_final.into());
        // A request that is gone for no reason was cleared.
        if why != Refusal::Cleared {
            self.refusals.push_back(((owner, ticket), why));
            if self.refusals.len() > MAX_REFUSALS {
                self.refusals.pop_front();
            }
        }
        self.report(owner, Outcome::Refused(ticket, why));
    }

    fn report(&mut self, owner: Owner, outcome: Outcome) {
        if self.listener.is_none_or(|listener| listener == owner) {
            self.outcomes.push_back((owner, outcome));
        }
    }

    /// A request no longer waits. Returns its owner and ticket.
    pub(super) fn no_longer_waits(&mut self, ticket: Ticket) -> (Owner, u64) {
        let name = self.names[ticket.slot()];
        self.asked.remove(&name);
        self.seen.uses_less(name.0);
        name
    }

    /// The grant with this number can no longer change.
    pub(super) fn end(&mut self, now: Nanos, number: u64) {
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
}
