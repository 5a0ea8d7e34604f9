//! Requests come in, and leave again without a grant.

use super::flows::Flow;
use super::heap::Item;
use super::requests::{NONE, Terms, Ticket};
use super::state::{Ledger, Request, Taken};
use crate::clock::Nanos;
use crate::limits::{AsKey, KeyId, Limits, NO_KEY};
use std::collections::TryReserveError;
use std::hash::Hash;

/// A ledger whose keys have names.
impl Ledger {
    /// Adds a request behind the older requests of its key.
    ///
    /// `None` if the request can never be granted, because one of its costs is above a window's count.
    pub fn ask(&mut self, now: Nanos, key: Option<&[u8]>, request: &Request<'_>) -> Option<Ticket> {
        let now = self.tick(now);
        let arrived = request.arrived.max(now);
        self.add(now, key.unwrap_or(NO_KEY), &Request { arrived, ..*request }, self.terms(arrived, request.settles))
    }

    /// Adds a request. If its key is given up, the request is refused.
    pub(super) fn add(&mut self, now: Nanos, name: &[u8], request: &Request<'_>, terms: Terms) -> Option<Ticket> {
        let ticket = self.add_for(now, name, request, terms)?;
        if let Some(why) = self.failures.refusal_of(name, now) {
            self.refuse(ticket, why);
        }
        Some(ticket)
    }

    /// Adds plain units, each of cost 1 and without a key. All of them together are one request. They leave in runs.
    pub fn want(&mut self, now: Nanos, units: u64) {
        let now = self.tick(now);
        if self.plain != NONE {
            self.want_more(self.plain, units);
        } else if units > 0 {
            self.plain = self.want_first(now, NO_KEY, 0, units).slot;
        }
    }

    /// Adds a request for plain units.
    pub(super) fn want_first(&mut self, now: Nanos, name: &[u8], age: u64, units: u64) -> Ticket {
        self.forget();
        let key = self.find_or_add(name, now);
        let flow = self.flow(key);
        let ticket = self.requests.add(age, now, &[1], flow, 0);
        let added = self.requests.get_mut(ticket.slot);
        (added.units, added.is_plain, added.terms.learns) = (units, true, true);
        self.join(ticket.slot);
        ticket
    }
}

impl<N: Hash> Ledger<N> {
    /// Adds a request. One that has arrived joins its flow at once.
    pub(super) fn add_for(
        &mut self,
        now: Nanos,
        name: &(impl AsKey<N> + ?Sized),
        request: &Request<'_>,
        terms: Terms,
    ) -> Option<Ticket> {
        let never = |each: &Limits| each.has_windows() && each.never_grants(request.costs);
        if never(self.keys.limits_of(name)) || never(&self.all) {
            return None;
        }
        self.forget();
        let key = self.find_or_add(name, now);
        Some(self.add_to(now, key, request, terms))
    }

    fn add_to(&mut self, now: Nanos, key: KeyId, request: &Request<'_>, terms: Terms) -> Ticket {
        let flow = self.flow(key);
        let ticket = self.requests.add(request.age, request.arrived, request.costs, flow, request.weight);
        self.requests.get_mut(ticket.slot).terms = terms;
        if request.arrived > now {
            self.flows[flow].later += 1;
            self.later += 1;
            self.timers.push(Item { at: request.arrived.min(terms.latest), age: request.age, id: ticket.slot });
        } else {
            self.join(ticket.slot);
        }
        self.is_short = self.try_reserve().is_err();
        ticket
    }

    /// The terms of a request that begins to wait at `arrived`.
    pub(super) fn terms(&self, arrived: Nanos, settles: bool) -> Terms {
        let latest = self.settings.max_wait.map_or(Nanos::MAX, |longest| arrived.saturating_add(longest));
        Terms { latest, settles, learns: self.paces.asked.is_some() }
    }

    /// Adds a request of this cost, which will be settled. It is refused at `latest`. `None` if it can never be granted.
    pub(crate) fn ask_by(
        &mut self,
        now: Nanos,
        key: &(impl AsKey<N> + ?Sized),
        (age, cost): (u64, u64),
        latest: Nanos,
    ) -> Option<Ticket> {
        let arrived = self.tick(now);
        let request = Request { age, costs: &[cost], arrived, weight: 0, settles: true };
        self.add_for(arrived, key, &request, Terms { latest, settles: true, learns: false })
    }

    /// Gives an open grant back, and requests its units again at the age that it had.
    pub(crate) fn ask_again(&mut self, now: Nanos, number: u64, age: u64, latest: Nanos) -> Option<Ticket> {
        let arrived = self.tick(now);
        let open = self.grants.get(&number)?;
        let (key, costs) = (open.key, open.costs.clone());
        let request = Request { age, costs: &costs, arrived, weight: 0, settles: true };
        let ticket = self.add_to(arrived, key, &request, Terms { latest, settles: true, learns: false });
        self.give_back(arrived, number);
        Some(ticket)
    }

    /// Adds plain units to those of a request.
    pub(super) fn want_more(&mut self, slot: u32, units: u64) {
        let wanted = &mut self.requests.get_mut(slot).units;
        let was_short = *wanted < self.settings.quantum;
        *wanted = wanted.saturating_add(units);
        if was_short {
            self.turns.changed();
        }
    }

    /// Cancels the plain units that wait.
    pub fn want_nothing(&mut self) {
        if self.plain != NONE {
            self.remove(self.plain);
        }
    }

    /// Makes room for one more request with a new key.
    fn try_reserve(&mut self) -> Result<(), TryReserveError> {
        let slot = self.requests.try_reserve()?;
        let flow = self.flows.try_reserve()?;
        self.turns.try_reserve(flow)?;
        self.timers.try_reserve(slot)?;
        self.outside.try_reserve(flow)
    }

    /// A request joins its flow. It waits from now on.
    pub(super) fn join(&mut self, slot: u32) {
        let request = self.requests.get(slot);
        let (id, weight, age, latest) = (request.flow, request.weight, request.age, request.terms.latest);
        if latest < Nanos::MAX {
            self.timers.push(Item { at: latest, age, id: slot });
        }
        let first = self.flows[id].first();
        if weight == 0 {
            self.requests.link(&mut self.flows[id].usual, slot);
        } else {
            let first_turn = self.length(&self.requests.get(slot).costs).saturating_mul(weight.into());
            let flow = &mut self.flows[id];
            self.requests.get_mut(slot).pays_at = flow.debt.usual.saturating_add(first_turn);
            // A suspect that is refused again lets the other suspects go first, even younger ones.
            self.requests.append(&mut flow.suspects, slot);
            flow.note_first_suspect(&self.requests);
        }
        let flow = &mut self.flows[id];
        self.waiting += usize::from(flow.waiting == 0);
        self.usual += usize::from(weight == 0);
        flow.waiting += 1;
        if flow.first() != first {
            self.leave(id);
            self.enter(id);
        }
    }

    /// Cancels a request. `None` if it no longer waits.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Taken> {
        self.requests.has(ticket).then(|| self.remove(ticket.slot))
    }

    /// Removes a request that has not been granted.
    pub(super) fn remove(&mut self, slot: u32) -> Taken {
        let id = self.requests.get(slot).flow;
        self.withdraw(slot);
        self.flows[id].later -= 1;
        self.later -= 1;
        let taken = self.free(slot);
        self.release(id);
        taken
    }

    /// A request waits no longer. It is as one that joins its flow later, but without a timer.
    pub(super) fn withdraw(&mut self, slot: u32) {
        let (id, is_linked) = (self.requests.get(slot).flow, self.requests.get(slot).is_linked);
        if !is_linked {
            self.timers.remove(slot);
            return;
        }
        if slot == self.plain {
            self.plain = NONE;
        }
        let first = self.flows[id].first();
        self.unlink(slot);
        self.flows[id].later += 1;
        self.later += 1;
        if self.flows[id].first() != first {
            self.leave(id);
            self.enter(id);
        }
    }

    /// Takes a request out of the list of its flow.
    pub(super) fn unlink(&mut self, slot: u32) {
        let (id, weight) = (self.requests.get(slot).flow, self.requests.get(slot).weight);
        let flow = &mut self.flows[id];
        self.requests.unlink(flow.list(weight), slot);
        if weight > 0 {
            flow.note_first_suspect(&self.requests);
        }
        self.usual -= usize::from(weight == 0);
        flow.waiting -= 1;
        self.waiting -= usize::from(flow.waiting == 0);
        if self.requests.get(slot).terms.latest < Nanos::MAX {
            self.timers.remove(slot);
        }
    }

    pub(super) fn free(&mut self, slot: u32) -> Taken {
        let (ticket, key) = (self.requests.ticket(slot), self.flows[self.requests.get(slot).flow].key);
        let gone = self.requests.free(slot);
        Taken { ticket, key, age: gone.age, costs: gone.costs, arrived: gone.arrived, settles: gone.terms.settles }
    }

    /// The flow of a key, which may be idle or new.
    pub(super) fn flow(&mut self, key: KeyId) -> u32 {
        if let Some(id) = self.keys.flow(key) {
            self.flows.wake(id);
            return id;
        }
        let id = self.flows.add(key);
        self.keys.set_flow(key, id);
        id
    }

    /// The key with this name. If the key is new and the table has no room for it, its flow is outside.
    pub(super) fn find_or_add(&mut self, name: &(impl AsKey<N> + ?Sized), now: Nanos) -> KeyId {
        if let Some(key) = self.keys.find(name) {
            return key;
        }
        let has_room = self.has_room(now);
        let key = self.keys.add(name, now);
        if !has_room {
            let id = self.flow(key);
            self.flows[id].is_outside = true;
            self.outsiders += 1;
        }
        key
    }

    /// Whether there is room for a key that is new now.
    pub(super) fn has_room(&mut self, now: Nanos) -> bool {
        self.outside.is_empty() && self.keys.has_room(self.outsiders, now)
    }

    /// The first request of a flow stops competing.
    pub(super) fn leave(&mut self, id: u32) {
        if self.flows[id].is_outside {
            self.outside.remove(id);
        } else {
            self.turns.leave(id);
        }
    }

    /// The first request of a flow begins to wait for its limits, or for room.
    pub(super) fn enter(&mut self, id: u32) {
        let flow = &self.flows[id];
        let first = flow.first();
        if first == NONE || self.settings.jobs.is_some_and(|jobs| flow.running >= jobs) {
            return;
        }
        let age = self.requests.get(first).age;
        if flow.is_outside {
            return self.outside.push(Item { at: age, age, id });
        }
        let own = self.own_time(flow, first);
        self.turns.enter(id, own, self.tag_of(id, own), age);
    }

    /// Sets how many units of one key may run from now on.
    pub fn set_jobs(&mut self, now: Nanos, jobs: u32) {
        let now = self.tick(now);
        let before = self.settings.jobs.replace(jobs).unwrap_or(u32::MAX);
        for id in self.flows.ids() {
            let running = self.flows[id].running;
            if (running >= before) != (running >= jobs) {
                self.flows[id].since = self.flows[id].since.max(now);
                self.leave(id);
                self.enter(id);
            }
        }
    }

    /// When a request conforms to the limits of its key.
    pub(super) fn own_time(&self, flow: &Flow, slot: u32) -> Nanos {
        let request = self.requests.get(slot);
        let (each, levels) = self.keys.state(flow.key);
        let levels = flow.hold.state_after(each, levels);
        let own = each.has_room_at(&levels, [request.arrived; 2], &request.costs).map_or(Nanos::MAX, |(at, _)| at);
        own.max(flow.ready_from())
    }

    /// Stores a flow that is idle for as long as it is needed, or frees it.
    pub(super) fn release(&mut self, id: u32) {
        if !self.flows[id].is_idle() {
            return;
        }
        let (key, now) = (self.flows[id].key, self.now);
        if self.flows[id].learned.take_if(|learned| learned.until <= now).is_some() {
            self.paces.known -= 1;
        }
        if self.flows.rest(id, self.least_tag(), now) {
            self.keys.set_idle(key);
        }
    }

    /// Forgets a key with everything that it used, unless its requests wait or its grants may still change. Returns whether
    /// it was stored.
    pub(crate) fn remove_key(&mut self, key: &(impl AsKey<N> + ?Sized)) -> bool {
        let Some(key) = self.keys.find(key) else { return false };
        if let Some(id) = self.keys.flow(key) {
            if !self.flows[id].is_idle() {
                return false;
            }
            self.flows.wake(id);
            self.flows.holds.remove(id);
            self.flows.free(id);
            self.keys.set_idle(key);
        }
        self.keys.forget(key);
        true
    }

    /// Forgets all keys whose state equals the state of a new key.
    pub(crate) fn forget_idle(&mut self, now: Nanos) {
        let now = self.tick(now);
        self.forget();
        self.keys.sweep(now);
    }

    /// Holds a key: see [`hold_until`](Self::hold_until). Returns whether there is room for the key.
    pub(crate) fn hold_key_until(&mut self, now: Nanos, key: &(impl AsKey<N> + ?Sized), until: Nanos) -> bool {
        let now = self.tick(now);
        let has_room = self.has_room_of(now, key);
        if has_room {
            let key = self.find_or_add(key, now);
            self.hold_until(now, key, until);
        }
        has_room
    }

    /// Whether this key is stored, or there is room for it.
    pub(crate) fn has_room_of(&mut self, now: Nanos, key: &(impl AsKey<N> + ?Sized)) -> bool {
        self.forget();
        if self.settings.is_shared && self.keys.has_too_many() {
            // Forgets the keys that are as new, as a snapshot does.
            self.has_room(now);
        }
        self.keys.find(key).is_some() || self.has_room(now)
    }

    /// Frees idle flows that are no longer needed.
    #[inline]
    pub(super) fn forget(&mut self) {
        if self.flows.has_ahead() {
            self.forget_passed();
        }
        while let Some(id) = self.flows.pop_rested(self.now) {
            let flow = &self.flows[id];
            let key = flow.key;
            if flow.is_outside {
                self.outsiders -= 1;
                self.flows.free(id);
                self.keys.set_idle(key);
                self.keys.forget(key);
            } else {
                self.release(id);
            }
        }
    }

    /// Frees idle flows whose tags the virtual time has passed.
    fn forget_passed(&mut self) {
        let least = self.least_tag();
        while let Some(id) = self.flows.pop_passed(least) {
            self.release(id);
        }
    }

    /// If too many idle flows keep their tags, the virtual time passes the least of these tags.
    pub(super) fn forget_too_many(&mut self) {
        while self.flows.has_too_many() {
            self.forget_passed();
            if let Some(least) = self.flows.least_of_too_many() {
                self.turns.raise(least);
            }
        }
    }
}
