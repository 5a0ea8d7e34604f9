//! What each operation changes in a shared ledger.

use super::state::{Committed, Replica};
use crate::clock::{Nanos, SECOND};
use crate::ledger::operation::{Ask, Operation, Owner, PLAIN, Refusal};
use crate::ledger::requests::{Terms, Ticket};
use crate::ledger::state::{Ledger, Request};
use crate::limits::{KeyId, NO_KEY, Policy};

/// The most requests. Plain units of an owner are one.
const MAX_REQUESTS: usize = 1 << 14;

/// How long a reported round trip counts.
const REPORT_TTL: Nanos = 60 * SECOND;

/// The first byte of the flow's name of an owner whose units have no keys.
const STREAM: u8 = 0;

impl Replica {
    pub(super) fn change(&mut self, now: Nanos, owner: Owner, operation: &Operation) {
        self.moves += u64::from(may_move(operation));
        match operation {
            Operation::Ask(asks) => asks.iter().for_each(|ask| self.ask(now, owner, ask)),
            Operation::Want(units) => self.want(now, owner, *units),
            Operation::Cancel(tickets) => self.cancel_all(now, owner, tickets),
            Operation::Deny(tickets) => {
                self.counts.refused = self.counts.refused.saturating_add(tickets.len() as u64);
                self.cancel_all(now, owner, tickets);
            }
            Operation::WantNothing => self.cancel(now, owner, PLAIN),
            Operation::Unused(numbers) => numbers.iter().for_each(|number| self.unused(now, *number)),
            Operation::Settle { number, real } => self.settle(now, *number, real),
            Operation::Ended(numbers) => numbers.iter().for_each(|number| self.end(now, *number)),
            Operation::Served(key, served) => self.ledger.served(now, self.key_of(key.as_deref()), *served),
            Operation::Tried { key, has_succeeded } => self.ledger.tried_name(now, key, *has_succeeded),
            Operation::Hold { key, until, refused } => {
                let of_key = self.key_of(key.as_deref());
                for start in refused {
                    self.ledger.refused(now, of_key, *start, *until);
                }
                match key.as_deref().filter(|_| self.policy.of_keys().is_some()) {
                    Some(name) => _ = self.ledger.hold_key_until(now, name, *until),
                    None => self.ledger.hold_all_until(now, *until),
                }
            }
            Operation::Resume(key) => self.resume(now, key.as_deref()),
            Operation::Set(policy, fresh) => self.set(now, policy, fresh),
            Operation::Clear { key: Some(key), .. } => self.clear_key(now, key),
            Operation::Clear { key: None, anew, is_empty, number } => {
                self.clear(now, anew.as_ref(), *is_empty, *number);
            }
            Operation::HandOver(number, to) => self.hand_over(now, *number, *to),
            Operation::RoundTrip(round_trip) => self.report_round_trip(now, *round_trip),
            Operation::Here => {}
            Operation::Gone { owner, seen } => self.gone(now, *owner, *seen),
        }
    }

    /// The name of the flow of a unit. Without keys, the units of each owner are one flow.
    fn flow_name(&self, owner: Owner, key: Option<&[u8]>) -> Box<[u8]> {
        match (self.policy.of_keys(), key) {
            (Some(_), Some(key)) => key.into(),
            (Some(_), None) => NO_KEY.into(),
            (None, _) => {
                let [high, low] = owner.map(u64::to_be_bytes);
                [&[STREAM][..], &high, &low].concat().into()
            }
        }
    }

    /// The key with this name, if keys have limits and it is stored.
    fn key_of(&self, name: Option<&[u8]>) -> Option<KeyId> {
        self.policy.of_keys().and_then(|_| self.ledger.find(name))
    }

    pub(super) fn ask(&mut self, now: Nanos, owner: Owner, ask: &Ask) {
        if ask.ticket == PLAIN || self.asked.contains_key(&(owner, ask.ticket)) {
            return; // A second request with the same ticket changes nothing.
        }
        let name = self.flow_name(owner, ask.key.as_deref());
        if let Some(until) = self.room_at(now, &name) {
            return self.refuse(owner, ask.ticket, Refusal::NoRoom(until));
        }
        let is_taken =
            |age: u64| age == 0 || age > self.age || self.ledger.requests.all_ages().any(|other| other == age);
        let age = if is_taken(ask.age) { self.next_age() } else { ask.age };
        let request = Request {
            age,
            costs: &ask.costs,
            arrived: ask.not_before.max(now),
            weight: ask.weight,
            settles: ask.settles,
        };
        // A request that is granted at once is in time.
        let terms = Terms { latest: ask.latest.max(now), settles: ask.settles, learns: ask.learns };
        match self.ledger.add(now, &name, &request, terms) {
            Some(ticket) => self.added(now, (owner, ask.ticket), ticket),
            None => self.refuse(owner, ask.ticket, Refusal::Never),
        }
    }

    fn next_age(&mut self) -> u64 {
        self.age += 1;
        self.age
    }

    pub(super) fn added(&mut self, now: Nanos, name: (Owner, u64), ticket: Ticket) {
        if self.names.len() <= ticket.slot() {
            self.names.resize(ticket.slot() + 1, ([0; 2], 0));
        }
        self.names[ticket.slot()] = name;
        self.asked.insert(name, ticket);
        self.seen.uses(name.0, now);
    }

    fn want(&mut self, now: Nanos, owner: Owner, units: u64) {
        if let Some(ticket) = self.asked.get(&(owner, PLAIN)) {
            self.ledger.want_more(ticket.slot, units);
        } else if units > 0 {
            let name = self.flow_name(owner, None);
            if let Some(until) = self.room_at(now, &name) {
                return self.refuse(owner, PLAIN, Refusal::NoRoom(until));
            }
            let age = self.next_age();
            let ticket = self.ledger.want_first(now, &name, age, units);
            self.added(now, (owner, PLAIN), ticket);
        }
    }

    /// Without room for another request, or for another key: the earliest time at which there may be room.
    fn room_at(&mut self, now: Nanos, name: &[u8]) -> Option<Nanos> {
        if self.asked.len() >= MAX_REQUESTS {
            return Some(now.saturating_add(SECOND));
        }
        let has_room = self.ledger.has_room_of(now, name);
        // If all keys are used, that time is not known.
        let at = Some(self.ledger.keys.room_at()).filter(|at| *at < Nanos::MAX);
        (!has_room).then(|| at.unwrap_or(now.saturating_add(SECOND)).max(now.saturating_add(1)))
    }

    fn cancel_all(&mut self, now: Nanos, owner: Owner, tickets: &[u64]) {
        for ticket in tickets {
            self.cancel(now, owner, *ticket);
        }
    }

    /// A request is gone. If it was granted already, its grant is not used.
    fn cancel(&mut self, now: Nanos, owner: Owner, ticket: u64) {
        if let Some(waiting) = self.asked.get(&(owner, ticket)).copied() {
            self.ledger.cancel(waiting);
            self.no_longer_waits(waiting);
            return;
        }
        let is_it = |one: &&Committed| one.owner == owner && one.grant.ticket == ticket && !one.is_handed_over;
        if ticket != PLAIN
            && let Some(number) = self.grants.values().rev().find(is_it).map(|one| one.grant.number)
        {
            self.unused(now, number);
        }
    }

    fn unused(&mut self, now: Nanos, number: u64) {
        if let Some(committed) = self.grants.get(&number) {
            self.counts.given_back = self.counts.given_back.saturating_add(committed.grant.units);
            self.ledger.unused(now, number);
            self.end(now, number);
        }
    }

    fn settle(&mut self, now: Nanos, number: u64, real: &[u64]) {
        let Some(committed) = self.grants.get(&number).copied() else { return };
        self.ledger.settle(now, number, real);
        // Without a report of its end, nothing more can change.
        if !self.ledger.grants.contains_key(&number) {
            self.end(now, committed.grant.number);
        }
    }

    fn resume(&mut self, now: Nanos, name: Option<&[u8]>) {
        if name.is_some() && self.policy.of_keys().is_some() {
            if let Some(key) = self.key_of(name) {
                self.ledger.lift(now, Some(key));
            }
            return;
        }
        self.ledger.lift(now, None);
        for key in self.ledger.flows.held() {
            self.ledger.lift(now, Some(key));
        }
    }

    fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        let (before, of_all) = (self.policy.len(), policy.len());
        (self.policy, self.made) = (policy.clone(), now);
        let never = self.ledger.set(now, policy, fresh, |costs| aligned(costs, before, of_all));
        self.drop_all(never.into_iter().map(|slot| self.ledger.requests.ticket(slot)).collect(), Some(Refusal::Never));
        if !policy.counts_jobs() {
            // The ends of units are no longer reported.
            let is_running = |one: &&Committed| one.is_kept && !one.settles;
            let running: Vec<u64> = self.grants.values().filter(is_running).map(|one| one.grant.number).collect();
            for number in running {
                self.end(now, number);
            }
        }
    }

    fn clear(&mut self, now: Nanos, anew: Option<&Policy>, is_empty: bool, number: u64) {
        self.drop_all(self.asked.values().copied().collect(), Some(Refusal::Cleared));
        let Some(policy) = anew else {
            self.resume(now, None);
            return self.ledger.learn_anew();
        };
        let new = Replica::new(policy, now, number.min(u64::MAX / 2), self.least);
        let Replica { age, moves, outcomes, listener, reports, seen, .. } = std::mem::replace(self, new);
        (self.age, self.moves, self.outcomes, self.listener) = (age, moves, outcomes, listener);
        (self.seen, self.reports) = (seen.without_uses(), reports);
        self.ledger.now = now;
        self.ledger.horizon = self.horizon();
        if is_empty {
            let Ledger { all, levels, .. } = &mut self.ledger;
            all.empty(levels, now);
        }
    }

    fn clear_key(&mut self, now: Nanos, name: &[u8]) {
        let Some(key) = self.key_of(Some(name)) else { return };
        self.drop_all(self.ledger.waiting_of(key).collect(), Some(Refusal::Cleared));
        self.ledger.lift(now, Some(key));
        self.ledger.forget_failures_of(name);
    }

    /// These requests are gone, in the order of their owners and tickets. The owners may be told why.
    fn drop_all(&mut self, mut tickets: Vec<Ticket>, why: Option<Refusal>) {
        tickets.sort_unstable_by_key(|ticket| self.names[ticket.slot()]);
        for ticket in tickets {
            self.ledger.cancel(ticket);
            let (owner, name) = self.no_longer_waits(ticket);
            if let Some(why) = why {
                self.refuse(owner, name, why);
            }
        }
    }

    fn hand_over(&mut self, now: Nanos, number: u64, to: Owner) {
        let Some(committed) = self.grants.get_mut(&number).filter(|one| one.is_kept && one.owner != to) else { return };
        let from = std::mem::replace(&mut committed.owner, to);
        committed.is_handed_over = true;
        self.seen.uses(to, now);
        self.seen.uses_less(from);
    }

    fn report_round_trip(&mut self, now: Nanos, round_trip: Nanos) {
        while self.reports.back().is_some_and(|(_, other)| *other <= round_trip) {
            self.reports.pop_back();
        }
        self.reports.push_back((now.saturating_add(REPORT_TTL), round_trip));
        self.ledger.horizon = self.horizon();
    }

    fn gone(&mut self, now: Nanos, owner: Owner, seen: Nanos) {
        if self.seen.at(owner).is_none_or(|at| at > seen) {
            return;
        }
        let of_owner = self.asked.iter().filter(|((of, _), _)| *of == owner);
        self.drop_all(of_owner.map(|(_, ticket)| *ticket).collect(), None);
        let kept = self.grants.values().filter(|one| one.owner == owner && one.is_kept);
        let kept: Vec<u64> = kept.map(|one| one.grant.number).collect();
        for number in kept {
            self.end(now, number);
        }
    }
}

/// Whether requests may be granted earlier after this operation.
fn may_move(operation: &Operation) -> bool {
    use Operation::{Ask, HandOver, Here, Hold, RoundTrip, Served, Want};
    !matches!(operation, Ask(_) | HandOver(..) | Here | Hold { .. } | RoundTrip(_) | Served(..) | Want(_))
}

/// The same costs for other limits: those of a key follow those of all keys.
fn aligned(costs: &[u64], before: usize, of_all: usize) -> Vec<u64> {
    if costs.len() <= 1 {
        return costs.to_vec();
    }
    let (all, each) = costs.split_at(before.min(costs.len()));
    let last = all.last().or(costs.last()).copied().unwrap_or(1);
    (0..of_all).map(|place| all.get(place).copied().unwrap_or(last)).chain(each.iter().copied()).collect()
}
