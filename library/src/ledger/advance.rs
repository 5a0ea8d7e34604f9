//! Time goes by: flows become ready, requests join their flows, and the requests that are due are granted.

use super::flows::{Flow, Hold};
use super::grants::Opening;
use super::heap::Item;
use super::requests::{Costs, NONE};
use super::state::{Ledger, Next, Refusal, Run, Taken};
use super::turns::{Decision, FRACTION_BITS, Tag};
use crate::clock::Nanos;
use crate::limits::{AsKey, Charged, KeyId, Levels, Limits, NO_KEY};
use std::borrow::Cow;
use std::hash::Hash;

/// The overall limits, as decisions see them.
pub(super) struct Overall<'a> {
    all: &'a Limits,
    /// Their state, or if they are held, their state at the end of the hold.
    levels: Cow<'a, Levels>,
    /// The end of the hold, or the next start at the learned pace if that is later.
    held_until: Nanos,
    /// If a shared bucket applies the limits: they are at rest after this time.
    busy_until: Option<Nanos>,
    /// The time of the latest grant.
    last: Nanos,
}

impl<'a> Overall<'a> {
    #[inline]
    fn new(
        (all, levels): (&'a Limits, &'a Levels),
        hold: &Hold,
        next: Nanos,
        busy_until: Option<Nanos>,
        last: Nanos,
    ) -> Overall<'a> {
        Overall { all, levels: hold.state_after(all, levels), held_until: hold.until.max(next), busy_until, last }
    }

    /// The earliest time, not before `own`, at which the limits conform to these costs.
    #[inline]
    pub(super) fn conforms_at(&self, own: Nanos, arrived: Nanos, costs: &[u64]) -> Nanos {
        let at = if self.all.is_empty() {
            Some(own)
        } else {
            self.all.has_room_at(&self.levels, [arrived; 2], costs).map(|(at, _)| at)
        };
        at.map_or(Nanos::MAX, |at| at.max(own).max(self.held_until))
    }

    /// Whether all limits are at rest at `time`, which is not before the latest grant. Without limits they are at rest
    /// once time has gone by.
    #[inline]
    fn is_at_rest(&self, time: Nanos) -> bool {
        match self.busy_until {
            Some(until) => time > until,
            None if self.all.is_empty() => time > self.last,
            None => time >= self.held_until && self.all.is_at_rest(&self.levels, time),
        }
    }
}

/// A ledger whose keys have names.
impl Ledger {
    /// [`pass_key`](Self::pass_key) for the key with this name. `None` stands for units without a key.
    pub fn pass(&mut self, now: Nanos, key: Option<&[u8]>, costs: &[u64]) -> Option<KeyId> {
        self.pass_key(now, key.unwrap_or(NO_KEY), costs)
    }
}

impl<N: Hash> Ledger<N> {
    /// Grants the next request if it conforms now, or returns the time of the next call. The caller accepts at most
    /// `room` units. With no room nothing is granted, and later grants are not for a time without room.
    ///
    /// A late call returns the grants that an earlier call would have returned, but with times not longer ago than the
    /// [allowance](crate::limits::Limits::allowance).
    pub fn poll(&mut self, now: Nanos, room: u64) -> Next {
        let now = self.tick(now);
        let limit = now.saturating_add(self.horizon);
        if room > 0 && std::mem::take(&mut self.is_blocked) {
            self.close(now, true);
        }
        self.is_blocked = room == 0;
        if let Some((taken, why)) = self.next_refusal() {
            return Next::Refused(taken, why);
        }
        loop {
            let decision = if room > 0 { self.decide() } else { None };
            if let Some(timer) = self.next_timer(decision, limit) {
                if let Some(expired) = self.fire(timer) {
                    return Next::Refused(expired, Refusal::TooLate);
                }
                continue;
            }
            let Some(due) = decision.filter(|decision| decision.at <= limit) else {
                if room > 0 {
                    self.close(now, true);
                }
                return self.changes_at(decision).map_or(Next::Nothing, Next::At);
            };
            // Nothing is granted for a time before the lag allowance: the rate of that time is lost.
            let oldest = now.saturating_sub(self.settings.allowance);
            if due.at < oldest && !self.settings.is_shared {
                self.close(oldest, true);
                // It was due before it expires.
                let again = self.decide().filter(|again| self.settings.grants_due && again.flow == due.flow);
                let Some(again) = again.filter(|again| again.at <= limit) else { continue };
                return self.grant(again, room);
            }
            return self.grant(due, room);
        }
    }

    /// When [`poll`](Self::poll) grants or expires a request, if nothing else happens first. `None` if no such time is
    /// known. If it is already due, the returned time is at most `now`.
    pub fn ready_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.tick(now);
        loop {
            let decision = self.decide();
            let timer = self.next_timer(decision, self.now);
            match timer.filter(|timer| !self.requests.get(timer.id).is_linked) {
                Some(timer) => drop(self.fire(timer)),
                None => return self.changes_at(decision),
            }
        }
    }

    /// The caller had no room for a grant until `time`, so later grants get no earlier time.
    pub fn ready_since(&mut self, time: Nanos) {
        let now = self.tick(time);
        self.close(now, true);
    }

    /// Charges a request that has just arrived and is younger than all waiting requests. It must conform now, and no
    /// other request may go first. Otherwise returns `None`: the request has to [wait](Self::ask). With a rule about
    /// jobs, every request has to wait, because its end must be reported.
    pub fn pass_key(&mut self, now: Nanos, key: &(impl AsKey<N> + ?Sized), costs: &[u64]) -> Option<KeyId> {
        let now = self.tick(now);
        if self.settings.jobs.is_some()
            || self.hold.until > now
            || self.timers.first().is_some_and(|timer| timer.at <= now)
        {
            return None;
        }
        let (key, is_new) = self.find_free(key, now)?;
        let (each, levels) = self.keys.state_mut(key);
        let all_conform =
            self.all.is_empty() || self.all.conforms_at(&self.levels, now, costs).is_some_and(|(at, _)| at <= now);
        if !all_conform || each.take(levels, now, costs).is_err() {
            if is_new {
                self.keys.forget(key);
            }
            return None;
        }
        let virtual_time = self.turns.virtual_time(now, |time| self.is_at_rest(time));
        if !self.all.is_empty() {
            self.all.charge(&mut self.levels, [now; 4], costs);
        }
        self.turns.pass(now, virtual_time);
        Some(key)
    }

    /// Like [`pass_key`](Self::pass_key), for a grant that will be settled, or reported as [ended](Self::ended). It takes a
    /// turn, which the real cost corrects.
    pub(crate) fn pass_to_settle(
        &mut self,
        now: Nanos,
        key: &(impl AsKey<N> + ?Sized),
        costs: &Costs,
    ) -> Option<Charged> {
        let key = self.pass_key(now, key, costs)?;
        let id = self.flow(key);
        let finish = self.tag_of(id, self.now).saturating_add(self.length(costs));
        self.flows[id].finish = finish;
        self.turns.finished(finish);
        Some(self.open_now(id, costs))
    }

    /// A grant that costs nothing until it is settled, whatever waits. `None` without room for its key.
    pub(crate) fn open_nothing(&mut self, now: Nanos, key: &(impl AsKey<N> + ?Sized)) -> Option<Charged> {
        let now = self.tick(now);
        if !self.has_room_of(now, key) {
            return None;
        }
        let key = self.find_or_add(key, now);
        let id = self.flow(key);
        Some(self.open_now(id, &Costs::One(0)))
    }

    fn open_now(&mut self, id: u32, costs: &Costs) -> Charged {
        self.granted += 1;
        let charged = Charged { at: self.now, counted: self.now, number: self.granted };
        self.open(id, &Opening { costs, charged, settles: true, learns: false, units: 1 });
        charged
    }

    /// A request of this key has just [passed](Self::pass). Returns the number of further requests with these costs
    /// that may be granted at once. 0 if that number is unknown.
    pub fn more(&self, key: KeyId, costs: &[u64]) -> u64 {
        if self.settings.jobs.is_some() || self.settings.has_windows {
            return 0;
        }
        let (each, levels) = self.keys.state(key);
        each.available(levels, self.now, costs).min(self.all.available(&self.levels, self.now, costs))
    }

    /// Charges `units` further requests with these costs, which have left: at most the number that [`more`](Self::more)
    /// returned.
    pub fn pass_more(&mut self, key: KeyId, costs: &[u64], units: u64) {
        let costs: Box<[u64]> = costs.iter().map(|cost| cost.saturating_mul(units)).collect();
        let times = [self.now; 4];
        let (each, levels) = self.keys.state_mut(key);
        each.charge(levels, times, &costs);
        self.all.charge(&mut self.levels, times, &costs);
        self.turns.changed();
    }

    /// Clamps a clock reading that arrives out of order, and ends the holds that are over.
    #[inline]
    pub(super) fn tick(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.end_holds();
        self.now
    }

    /// The start tag of a flow that becomes ready at `own`.
    #[inline]
    pub(super) fn tag_of(&self, id: u32, own: Nanos) -> Tag {
        self.turns.virtual_time(own, |time| self.is_at_rest(time)).max(self.flows[id].finish)
    }

    /// The least start tag that any flow may get from now on.
    pub(super) fn least_tag(&self) -> Tag {
        // A timer that is due may fire for a time before the front.
        let next = self.timers.first().map_or(Nanos::MAX, |timer| timer.at);
        self.turns.least_tag(next, |time| self.is_at_rest(time))
    }

    fn is_at_rest(&self, time: Nanos) -> bool {
        !self.are_all_jobs_taken() && self.overall().is_at_rest(time)
    }

    pub(super) fn overall(&self) -> Overall<'_> {
        let Ledger { turns, all, levels, hold, learned, .. } = self;
        let next = learned.as_ref().map_or(0, |learned| learned.next);
        Overall::new((all, levels), hold, next, self.busy_until(), turns.last())
    }

    /// If a shared bucket applies the limits: until when they may be busy, as far as is known here. They may be busy
    /// while a granted request waits for the answer of the bucket.
    fn busy_until(&self) -> Option<Nanos> {
        self.busy_until.map(|until| if self.running > 0 { Nanos::MAX } else { until })
    }

    pub(super) fn are_all_jobs_taken(&self) -> bool {
        self.settings.jobs_of_all.is_some_and(|most| self.running >= most)
    }

    /// The next request that was refused, and was not cancelled since.
    fn next_refusal(&mut self) -> Option<(Taken, Refusal)> {
        while let Some((ticket, why)) = self.refusals.pop_front() {
            if self.requests.has(ticket) {
                return Some((self.remove(ticket.slot), why));
            }
        }
        None
    }

    /// The timer that fires next: it is due before the decision if that is due by `limit`, and else it is due by now.
    fn next_timer(&self, decision: Option<Decision>, limit: Nanos) -> Option<Item> {
        let is_first = |timer: &Item| match decision.filter(|decision| decision.at <= limit) {
            Some(due) => timer.at < due.at,
            None => timer.at <= self.now,
        };
        self.timers.first().filter(is_first)
    }

    /// A request joins its flow, or expires and is returned.
    fn fire(&mut self, timer: Item) -> Option<Taken> {
        // Nothing is due before, and what the request held up is not granted for an earlier time.
        self.close(timer.at, true);
        self.timers.remove(timer.id);
        if self.requests.get(timer.id).is_linked || timer.at >= self.requests.get(timer.id).terms.latest {
            return Some(self.remove(timer.id));
        }
        let id = self.requests.get(timer.id).flow;
        self.flows[id].later -= 1;
        self.later -= 1;
        self.join(timer.id);
        None
    }

    /// The key with this name, if a request of it that arrives now need not wait for another request, for the end of a
    /// hold, or for room in the table. Also returns whether the key was added.
    #[inline]
    fn find_free(&mut self, name: &(impl AsKey<N> + ?Sized), now: Nanos) -> Option<(KeyId, bool)> {
        if self.turns.waits_at(now) {
            return None;
        }
        if let Some(key) = self.keys.find(name) {
            let is_free = |id: u32| self.flows[id].is_free(now);
            return self.keys.flow(key).is_none_or(is_free).then_some((key, false));
        }
        self.forget();
        self.has_room(now).then(|| (self.keys.add(name, now), true))
    }

    /// Decides which flow is granted next, and when.
    pub(super) fn decide(&mut self) -> Option<Decision> {
        self.forget();
        self.admit();
        if self.are_all_jobs_taken() {
            return None;
        }
        let busy_until = self.busy_until();
        let Ledger { turns, flows, requests, all, levels, settings, hold, learned, .. } = self;
        let next = learned.as_ref().map_or(0, |learned| learned.next);
        let overall = Overall::new((all, levels), hold, next, busy_until, turns.last());
        let time_of = |id: u32, own: Nanos| {
            let first = requests.get(flows[id].first());
            match first.units {
                1 => overall.conforms_at(own, first.arrived, &first.costs),
                units => overall.conforms_at(own, first.arrived, &[units.min(settings.quantum)]),
            }
        };
        turns.decide(time_of, |id| flows[id].finish, |time| overall.is_at_rest(time))
    }

    /// Flows outside enter if the table of keys has room.
    #[inline]
    fn admit(&mut self) {
        while let Some(first) = self.outside.first()
            && self.keys.has_room(self.outsiders, self.now)
        {
            let id = first.id;
            self.outside.remove(id);
            self.outsiders -= 1;
            (self.flows[id].is_outside, self.flows[id].since) = (false, self.now);
            self.enter(id);
        }
    }

    /// From now on, grants nothing for a time before `time`. The flows that are ready before it, or by it, get their
    /// tags.
    pub(super) fn close(&mut self, time: Nanos, is_inclusive: bool) {
        while let Some((id, own)) = self.turns.next_ready(time, is_inclusive) {
            let tag = self.tag_of(id, own);
            self.turns.make_ready(tag);
        }
        self.turns.close(time);
    }

    /// The limits change now, and not as of an earlier time: a request that waits may be granted now.
    pub(super) fn close_before_change(&mut self) {
        let now = self.now;
        match self.decide().filter(|decision| decision.at <= now) {
            Some(decision) => self.close(decision.at, false),
            None => self.close(now, true),
        }
    }

    /// Grants the request of a decision, or as many of its plain units as conform, up to `room`.
    fn grant(&mut self, decision: Decision, room: u64) -> Next {
        let (at, id) = (decision.at, decision.flow);
        // The flows that are ready before this grant compete with tags from before it.
        self.close(at, false);
        // The time of the grant is after their ends.
        self.end_hold_of_all();
        self.end_hold(id);
        self.granted += 1;
        let slot = self.flows[id].first();
        let (at, next) = if self.requests.get(slot).is_plain {
            let run = self.grant_run(decision, room);
            (run.charged.at, Next::Run(run))
        } else {
            (at, self.grant_one(decision, slot))
        };
        self.close(at, true);
        self.enter(id);
        self.release(id);
        self.forget_too_many();
        next
    }

    fn grant_one(&mut self, decision: Decision, slot: u32) -> Next {
        let Decision { at, flow: id, .. } = decision;
        let request = self.requests.get(slot);
        let (length, weight, learns) = (self.length(&request.costs), request.weight, request.terms.learns);
        let finish = self.turns.serve(decision, at, length);
        self.unlink(slot);
        let taken = self.free(slot);
        let charged = self.charge(taken.key, [at, taken.arrived], &taken.costs);
        let Flow { debt, finish: of_flow, .. } = &mut self.flows[id];
        *of_flow = finish;
        debt.granted(length, weight);
        if let Some(until) = &mut self.busy_until {
            *until = at.saturating_add(length >> FRACTION_BITS);
        }
        self.open(id, &Opening { costs: &taken.costs, charged, settles: taken.settles, learns, units: 1 });
        Next::Granted(taken, charged)
    }

    /// Charges these costs at `at`, for a request that began to wait at `arrived`.
    fn charge(&mut self, key: KeyId, [at, arrived]: [Nanos; 2], costs: &[u64]) -> Charged {
        // In a shared bucket the units leave later, and somewhere else.
        let counted = if self.settings.is_shared { at } else { self.now };
        let times = [at, arrived, at, counted];
        let (each, levels) = self.keys.state_mut(key);
        each.charge(levels, times, costs);
        self.all.charge(&mut self.levels, times, costs);
        Charged { at, counted, number: self.granted }
    }

    /// Grants plain units. If no other flow waits, these are all that conform now.
    fn grant_run(&mut self, decision: Decision, room: u64) -> Run {
        let Decision { at, flow: id, .. } = decision;
        let slot = self.flows[id].first();
        let request = self.requests.get(slot);
        let (wanted, arrived, ticket) = (request.units, request.arrived, self.requests.ticket(slot));
        let most = wanted.min(room);
        let least = most.min(self.settings.quantum);
        let has_timer = self.timers.first().is_some_and(|timer| timer.at <= self.now);
        // In a shared bucket, each reader must find the same grants.
        let is_alone = self.turns.is_alone() && !has_timer && !self.settings.is_shared;
        let conform = if is_alone { self.all.available(&self.levels, self.now, &[1]) } else { 0 };
        let units = conform.clamp(least, most);
        let at = self.all.has_room_at(&self.levels, [arrived; 2], &[units]).map_or(at, |(time, _)| time.max(at));
        let length = self.length(&[units]);
        let key = self.flows[id].key;
        self.flows[id].finish = self.turns.serve(decision, at, length);
        self.flows[id].debt.granted(length, 0);
        let charged = self.charge(key, [at, arrived], &[units]);
        if units < wanted {
            self.requests.get_mut(slot).units = wanted - units;
        } else {
            if slot == self.plain {
                self.plain = NONE;
            }
            self.unlink(slot);
            self.free(slot);
        }
        if self.settings.is_shared {
            self.open(id, &Opening { costs: &[units].into(), charged, settles: true, learns: true, units });
        }
        Run { units, ticket, has_waited: at > arrived, charged, key }
    }

    fn changes_at(&self, decision: Option<Decision>) -> Option<Nanos> {
        let decided = decision.map(|decision| decision.at.saturating_sub(self.horizon));
        let timer = self.timers.first().map(|timer| timer.at);
        let room = (!self.outside.is_empty()).then(|| self.keys.room_at()).filter(|time| *time < Nanos::MAX);
        let refused = (!self.refusals.is_empty()).then_some(self.now);
        [decided, timer, room, refused].into_iter().flatten().min()
    }
}
