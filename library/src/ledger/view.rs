//! Questions about a ledger, which change nothing but the time.

use super::flows::Hold;
use super::requests::{List, NONE, Ticket};
use super::state::Ledger;
use crate::clock::Nanos;
use crate::limits::{AsKey, KeyId, Levels, Limits, NO_KEY};
use std::hash::Hash;

/// A ledger whose keys have names.
impl Ledger {
    /// The key with this name, if it is stored. `None` stands for units without a key.
    pub fn find(&self, key: Option<&[u8]>) -> Option<KeyId> {
        self.keys.find(key.unwrap_or(NO_KEY))
    }

    /// The name of a key; `(none)` for units without one.
    pub fn name(&self, key: KeyId) -> &[u8] {
        self.keys.name(key)
    }
}

impl<N: Hash> Ledger<N> {
    /// The number of plain units that wait.
    pub fn wanted(&self) -> u64 {
        if self.plain == NONE { 0 } else { self.requests.get(self.plain).units }
    }

    /// The number of usual requests, which are no suspects, that have arrived.
    pub fn usual(&self) -> usize {
        let [_, due_usual] = self.due();
        self.usual + due_usual
    }

    /// Until when all keys are held.
    pub fn held_until(&self) -> Option<Nanos> {
        Some(self.hold.until).filter(|time| *time > self.now)
    }

    /// Whether more plain units should be read before the next wait: fewer wait than are worth a wake-up, and the limits
    /// allow fewer now.
    pub fn wants_more(&mut self, now: Nanos) -> bool {
        let now = self.tick(now);
        self.wanted() < self.settings.quantum && self.all.available(&self.levels, now, &[1]) < self.settings.quantum
    }

    /// Whether units must be reported as [handed over](Self::handed_over).
    pub fn has_windows(&self) -> bool {
        self.settings.has_windows
    }

    /// The number of waiting requests, including later arrivals.
    pub fn len(&self) -> usize {
        self.requests.len
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the next request is granted, if nothing else happens first. Differs from [`ready_at`](Self::ready_at) if a
    /// request joins its flow before it can be granted.
    pub fn grants_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.tick(now);
        let decided = self.decide().map(|decision| decision.at);
        let joins = self.timers.first().filter(|timer| !self.requests.get(timer.id).is_linked).map(|timer| {
            let request = self.requests.get(timer.id);
            let flow = &self.flows[request.flow];
            let own = if flow.is_outside { 0 } else { self.own_time(flow, timer.id) };
            self.overall().conforms_at(own.max(timer.at), request.arrived, &request.costs)
        });
        decided.into_iter().chain(joins).min()
    }

    /// The number of waiting requests that have arrived.
    pub fn arrived(&mut self, now: Nanos) -> usize {
        self.tick(now);
        let [due, _] = self.due();
        self.len() - self.later + due + self.refusals.iter().filter(|(ticket, _)| self.requests.has(*ticket)).count()
    }

    /// The number of requests that have arrived and join their flow at the next poll, and the number of usual requests
    /// among them.
    fn due(&self) -> [usize; 2] {
        let mut due = [0, 0];
        if self.later > 0 {
            self.timers.visit(&mut Vec::new(), |timer| {
                let request = self.requests.get(timer.id);
                let is_due = timer.at <= self.now;
                if is_due && !request.is_linked {
                    due = [due[0] + 1, due[1] + usize::from(request.weight == 0)];
                }
                is_due
            });
        }
        due
    }

    /// The number of keys with waiting requests.
    pub fn keys_waiting(&self) -> usize {
        self.waiting
    }

    /// The number of stored keys: the keys in use, and the keys whose state differs from a new key's.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The most keys that can be stored, if there is no memory for more keys. Otherwise `None`.
    pub fn max_keys_in_memory(&self) -> Option<u64> {
        self.keys.most_in_memory()
    }

    /// Whether there is too little memory for more requests.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// The number of keys with waiting requests, including requests that arrive later, and the key with the most of
    /// them.
    pub fn busiest(&self) -> (usize, Option<KeyId>) {
        let waiting = || self.flows.iter().filter(|flow| flow.waiting + flow.later > 0);
        let most = waiting().max_by_key(|flow| (flow.waiting + flow.later, flow.key));
        (waiting().count(), most.map(|flow| flow.key))
    }

    /// The limits of a key with their state; without a key, the overall limits.
    pub fn limits(&self, key: Option<KeyId>) -> (&Limits, &Levels) {
        key.map_or((&self.all, &self.levels), |key| self.keys.state(key))
    }

    /// For each limit of all: the units that it allows now; negative if units are owed.
    pub fn left(&mut self, now: Nanos) -> Vec<i128> {
        let now = self.tick(now);
        self.all.left(&self.hold.state_after(&self.all, &self.levels), now)
    }

    /// The time by which these further costs will have been granted to all keys together if requests never pause, by each
    /// limit of all for itself. `None` beyond the end of the clock.
    pub fn schedule(&mut self, now: Nanos, costs: &[u64]) -> Option<Nanos> {
        let now = self.tick(now);
        self.all.schedule(&self.hold.state_after(&self.all, &self.levels), now, costs)
    }

    /// The index of the limit of all for which the next request waits. `None` if it waits for none.
    pub fn bound_by(&mut self) -> Option<usize> {
        let id = self.decide()?.flow;
        let first = self.requests.get(self.flows[id].first());
        let plain = [first.units.min(self.settings.quantum)];
        let costs = if first.units == 1 { &*first.costs } else { &plain };
        self.all.conforms_at(&self.hold.state_after(&self.all, &self.levels), first.arrived, costs)?.1
    }

    /// The stored keys.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &N> {
        self.keys.stored()
    }

    pub(crate) fn is_stored(&self, key: &(impl AsKey<N> + ?Sized)) -> bool {
        self.keys.find(key).is_some()
    }

    /// The limits of each key, and the overall limits.
    pub(crate) fn both(&self) -> [&Limits; 2] {
        [self.keys.each(), &self.all]
    }

    /// The number of requests of a key that wait.
    pub(crate) fn waiters_of(&self, key: &(impl AsKey<N> + ?Sized)) -> usize {
        let flow = self.keys.find(key).and_then(|key| self.keys.flow(key));
        flow.map_or(0, |id| self.flows[id].waiting)
    }

    /// The time at which a new request of this cost would be granted, behind at most `behind` requests of its key, if no
    /// other key had requests. `None` beyond the end of the clock.
    pub(crate) fn estimate(
        &mut self,
        now: Nanos,
        key: &(impl AsKey<N> + ?Sized),
        cost: u64,
        behind: usize,
    ) -> Option<Nanos> {
        let now = self.tick(now);
        let key = self.keys.find(key);
        let flow = key.and_then(|key| self.keys.flow(key)).map(|id| &self.flows[id]);
        let ahead =
            || flow.into_iter().flat_map(|flow| self.requests.of(flow.usual)).map(|slot| self.requests.get(slot));
        let sum = ahead().take(behind).fold(cost, |sum, request| sum.saturating_add(request.costs[0]));
        let since = ahead().next().map_or(now, |first| first.arrived);
        let (each, fresh) = (self.keys.each(), self.keys.each().fresh());
        let (hold, ready) = flow.map_or((Hold::default(), 0), |flow| (flow.hold, flow.ready_from()));
        let levels = hold.state_after(each, key.map_or(&fresh, |key| self.keys.state(key).1));
        let all = self.hold.state_after(&self.all, &self.levels);
        let at = |limits: &Limits, levels: &Levels| {
            if sum == cost {
                limits.has_room_at(levels, [since; 2], &[cost]).map(|(at, _)| at)
            } else {
                limits.schedule(levels, since, &[sum])
            }
        };
        Some(at(each, &levels)?.max(at(&self.all, &all)?).max(ready).max(self.hold.until).max(now))
    }

    /// Whether a new request of this key has to wait for others, whatever the limits allow.
    pub(crate) fn others_wait(&self, key: &(impl AsKey<N> + ?Sized)) -> bool {
        self.waiters_of(key) > 0 || self.turns.waits_at(self.now)
    }

    /// The part of a cost that a new request of this key could take now: 0 while others wait.
    pub(crate) fn available_to(&mut self, now: Nanos, key: &(impl AsKey<N> + ?Sized)) -> u64 {
        let now = self.tick(now);
        let key = self.keys.find(key);
        let is_free = |id: u32| self.flows[id].is_free(now);
        if !key.and_then(|key| self.keys.flow(key)).is_none_or(is_free) {
            return 0;
        }
        let (each, fresh) = (self.keys.each(), self.keys.each().fresh());
        let own = each.available(key.map_or(&fresh, |key| self.keys.state(key).1), now, &[1]);
        own.min(self.available_of_all(now))
    }

    /// The part of a cost that the overall limits allow now: 0 while others wait.
    pub(crate) fn available_of_all(&mut self, now: Nanos) -> u64 {
        let now = self.tick(now);
        let is_held = self.hold.until > now || self.turns.waits_at(now);
        if is_held { 0 } else { self.all.available(&self.levels, now, &[1]) }
    }

    /// The waiting requests of one key: first the requests that have arrived, in their order.
    pub fn waiting_of(&self, key: KeyId) -> impl Iterator<Item = Ticket> {
        let flow = self.keys.flow(key);
        let lists = flow.map_or([List::EMPTY; 2], |id| [self.flows[id].usual, self.flows[id].suspects]);
        let later = flow.filter(|id| self.flows[*id].later > 0);
        let is_its = move |slot: &u32| {
            let request = self.requests.get(*slot);
            !request.is_linked && Some(request.flow) == later
        };
        let timers = later.into_iter().flat_map(|_| self.timers.iter());
        let arrived = lists.into_iter().flat_map(|list| self.requests.of(list));
        arrived.chain(timers.map(|timer| timer.id).filter(is_its)).map(|slot| self.requests.ticket(slot))
    }

    /// The key of a waiting request.
    pub fn key_of(&self, ticket: Ticket) -> KeyId {
        self.flows[self.requests.get(ticket.slot).flow].key
    }

    /// All waiting requests, in no order.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.requests.all().map(|slot| self.requests.ticket(slot))
    }
}
