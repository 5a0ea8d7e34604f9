//! The learned paces of keys, and the keys that are given up.

use super::flows::{Flow, Learned};
use super::requests::Ticket;
use super::state::{Ledger, Refusal};
use crate::clock::{Nanos, SECOND};
use crate::limits::{KeyId, Pace, Served, Start};
use std::num::NonZeroU32;

/// The most flows with a pace. Beyond that the paces that do not matter are forgotten, and new keys are not slowed.
const MAX_PACES: usize = 10_000;

/// The least time between two searches for paces that do not matter.
const MIN_SWEEP_INTERVAL: Nanos = SECOND;

impl Ledger {
    /// The start of the unit with this grant, as the pace of its key counts it. `None` if no pace is learned, or if the
    /// unit has ended.
    #[must_use]
    pub fn start_of(&self, number: u64) -> Option<Start> {
        self.grants.get(&number)?.start
    }

    /// The learned pace of a key. `None` if no pace is learned, or if no unit of the key has started yet.
    #[must_use]
    pub fn pace_of(&self, key: KeyId) -> Option<&Pace> {
        self.flows[self.keys.flow(key)?].learned.as_ref().map(|learned| &learned.pace)
    }

    /// Reports units that a server has served.
    pub fn served(&mut self, now: Nanos, key: KeyId, served: Served) {
        let now = self.tick(now);
        self.learn(key, |pace| pace.succeeded(served, now));
    }

    /// Reports that a server has refused a unit, which had this start. Nothing will start before `until`; a
    /// [hold](Self::hold_until) is what ensures that.
    pub fn refused(&mut self, now: Nanos, key: KeyId, start: Start, until: Nanos) {
        self.tick(now);
        self.learn(key, |pace| {
            pace.refused(start, until);
        });
    }

    fn learn(&mut self, key: KeyId, act: impl FnOnce(&mut Pace)) {
        let learned = self.keys.flow(key).and_then(|id| self.flows[id].learned.as_mut());
        if let Some(learned) = learned {
            act(&mut learned.pace);
        }
    }

    /// A unit of the flow starts now. Its next unit starts after the learned interval.
    pub(super) fn start(&mut self, id: u32) -> Option<Start> {
        let asked = self.paces.asked?;
        if self.flows[id].learned.is_none() {
            self.forget_paces();
            if self.paces.known >= MAX_PACES {
                return None;
            }
            self.paces.known += 1;
            self.flows[id].learned = Some(Box::new(Learned { pace: Pace::new(asked), next: 0 }));
        }
        let (now, slows) = (self.now, self.paces.slows);
        self.flows[id].learned.as_mut().map(|learned| learned.started(now, slows))
    }

    /// If there are many paces: forgets those of idle flows that do not matter.
    fn forget_paces(&mut self) {
        if self.paces.known < MAX_PACES || self.now < self.paces.swept.saturating_add(MIN_SWEEP_INTERVAL) {
            return;
        }
        self.paces.swept = self.now;
        for id in self.flows.ids() {
            let now = self.now;
            let Flow { learned, .. } = &mut self.flows[id];
            if learned.take_if(|learned| !learned.matters(now)).is_some() {
                self.paces.known -= 1;
                self.release(id);
            }
        }
    }

    /// Reports that a unit of a key has succeeded or failed: see [`Rules::fails`](super::Rules::fails).
    pub fn tried(&mut self, now: Nanos, key: KeyId, has_succeeded: bool) {
        let Some(most) = self.failures.most else { return };
        let name = self.keys.name(key);
        if has_succeeded {
            self.failures.in_a_row.remove(name);
            return;
        }
        let failed = self.failures.in_a_row.entry(name.into()).or_default();
        *failed += 1;
        if *failed == most.get() {
            self.failures.in_a_row.remove(self.keys.name(key));
            self.refuse_key(now, key, Refusal::GivenUp(Some(most)));
        }
    }

    /// Gives up a key: a server asks to wait too long, or a shared bucket has counted this many failures in a row. The
    /// waiting requests of the key and all later ones are refused.
    pub fn give_up(&mut self, now: Nanos, key: KeyId, failed: Option<NonZeroU32>) {
        self.refuse_key(now, key, Refusal::GivenUp(failed));
    }

    fn refuse_key(&mut self, now: Nanos, key: KeyId, why: Refusal) {
        self.tick(now);
        let name: Box<[u8]> = self.keys.name(key).into();
        self.failures.given_up.entry(name).or_insert(why);
        let mut waiting: Vec<Ticket> = self.waiting_of(key).collect();
        waiting.sort_unstable_by_key(|ticket| self.requests.get(ticket.slot).age);
        for ticket in waiting {
            self.refuse(ticket, why);
        }
    }

    /// Refuses a request: it no longer waits, and the next poll returns it.
    pub(super) fn refuse(&mut self, ticket: Ticket, why: Refusal) {
        self.withdraw(ticket.slot);
        self.refusals.push_back((ticket, why));
    }
}
