//! The learned paces of keys, and the keys that are given up.

use super::flows::{Flow, Learned};
use super::requests::Ticket;
use super::state::{Failures, Ledger, Refusal};
use crate::clock::{Nanos, SECOND};
use crate::limits::{KeyId, Pace, Served, Start};
use std::hash::Hash;
use std::num::NonZeroU32;

/// The most flows with a pace. Beyond that the paces that do not matter are forgotten, and new keys are not slowed.
const MAX_PACES: usize = 10_000;

/// How long the pace and the failures of a key are known in a shared bucket.
const LEARNED_TTL: Nanos = 3_600 * SECOND;

/// The most keys whose failures are known before those that do not count any more are forgotten.
const MAX_FAILED: usize = 10_000;

/// The least time between two searches for paces that do not matter.
const MIN_SWEEP_INTERVAL: Nanos = SECOND;

impl Failures {
    /// Until when a failure that is reported now counts. Forgets failures that count no more, if there are many.
    fn known_until(&mut self, now: Nanos) -> Nanos {
        if self.in_a_row.len() > MAX_FAILED {
            self.in_a_row.retain(|_, (_, until)| *until > now);
        }
        if self.given_up.len() > MAX_FAILED {
            self.given_up.retain(|_, (_, until)| *until > now);
        }
        if self.are_shared { now.saturating_add(LEARNED_TTL) } else { Nanos::MAX }
    }

    /// Counts a success or a failure of the key with this name. Returns the number of failures in a row if the key is
    /// to be given up.
    fn tried(&mut self, name: &[u8], now: Nanos, has_succeeded: bool) -> Option<NonZeroU32> {
        let most = self.most?;
        if has_succeeded {
            self.in_a_row.remove(name);
            return None;
        }
        let until = self.known_until(now);
        let failed = self.in_a_row.entry(name.into()).or_insert((0, until));
        *failed = (if failed.1 > now { failed.0 + 1 } else { 1 }, until);
        let is_last = failed.0 == most.get();
        if is_last {
            self.in_a_row.remove(name);
        }
        is_last.then_some(most)
    }

    /// Gives up the key with this name, unless it is given up already.
    fn give_up(&mut self, name: &[u8], now: Nanos, why: Refusal) {
        let given_up = (why, self.known_until(now));
        let known = self.given_up.entry(name.into()).or_insert(given_up);
        if known.1 <= now {
            *known = given_up;
        }
    }

    /// Why the requests of this key are refused, if they are.
    pub(super) fn refusal_of(&self, name: &[u8], now: Nanos) -> Option<Refusal> {
        if self.given_up.is_empty() {
            return None;
        }
        self.given_up.get(name).filter(|(_, until)| *until > now).map(|(why, _)| *why)
    }
}

impl<N: Hash> Ledger<N> {
    /// The start of the unit with this grant, as the pace of its key counts it. `None` if no pace is learned, or if the
    /// unit has ended.
    pub fn start_of(&self, number: u64) -> Option<Start> {
        self.grants.get(&number)?.start
    }

    /// The learned pace of a key. `None` if no pace is learned, or if no unit of the key has started yet.
    pub fn pace_of(&self, key: KeyId) -> Option<&Pace> {
        self.flows[self.keys.flow(key)?].learned.as_ref().map(|learned| &learned.pace)
    }

    /// Reports units that a server has served: of a key, or of all if a shared bucket has no limits for each key.
    pub fn served(&mut self, now: Nanos, key: Option<KeyId>, served: Served) {
        let now = self.tick(now);
        self.learn(key, |pace| pace.succeeded(served, now));
    }

    /// Reports that a server has refused a unit, of a key or of all, which had this start. Nothing will start before
    /// `until`; a [hold](Self::hold_until) is what ensures that.
    pub fn refused(&mut self, now: Nanos, key: Option<KeyId>, start: Start, until: Nanos) {
        self.tick(now);
        self.learn(key, |pace| {
            pace.refused(start, until);
        });
    }

    fn learn(&mut self, key: Option<KeyId>, act: impl FnOnce(&mut Pace)) {
        let learned = match key {
            Some(key) => self.keys.flow(key).and_then(|id| self.flows[id].learned.as_mut()),
            None => self.learned.as_mut(),
        };
        if let Some(learned) = learned {
            act(&mut learned.pace);
        }
    }

    /// Units of the flow start at `at`. Its next unit starts after the learned interval.
    pub(super) fn start(&mut self, id: u32, at: Nanos, units: u64, learns: bool) -> Option<Start> {
        let (asked, slows) = (self.paces.asked.filter(|_| learns)?, self.paces.slows);
        let until = if self.settings.is_shared { at.saturating_add(LEARNED_TTL) } else { Nanos::MAX };
        let learned = if self.learned.is_some() { &mut self.learned } else { &mut self.flows[id].learned };
        if let Some(learned) = learned {
            if learned.until <= at {
                **learned = Learned::new(asked);
            }
            learned.until = until;
            let start = learned.started(at, units, slows);
            if self.learned.is_some() {
                self.turns.changed();
            }
            return Some(start);
        }
        self.forget_paces();
        if self.paces.known >= MAX_PACES {
            return None;
        }
        self.paces.known += 1;
        let learned = self.flows[id].learned.insert(Box::new(Learned { until, ..Learned::new(asked) }));
        Some(learned.started(at, units, slows))
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

    /// Refuses the waiting requests of a key, as [`give_up`](Self::give_up), but not later ones.
    pub fn refuse_all_of(&mut self, now: Nanos, key: KeyId, failed: Option<NonZeroU32>) {
        self.tick(now);
        self.refuse_waiting(key, Refusal::GivenUp(failed));
    }

    fn refuse_waiting(&mut self, key: KeyId, why: Refusal) {
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

/// A ledger whose keys have names.
impl Ledger {
    /// Reports that a unit of a key has succeeded or failed: see [`Rules::fails`](super::Rules::fails).
    pub fn tried(&mut self, now: Nanos, key: KeyId, has_succeeded: bool) {
        let name: Box<[u8]> = self.keys.name(key).into();
        self.tried_name(now, &name, has_succeeded);
    }

    /// Like [`tried`](Self::tried), for a key that need not be stored.
    pub(super) fn tried_name(&mut self, now: Nanos, name: &[u8], has_succeeded: bool) {
        let now = self.tick(now);
        if let Some(failed) = self.failures.tried(name, now, has_succeeded) {
            let why = Refusal::GivenUp(Some(failed));
            self.failures.give_up(name, now, why);
            if let Some(key) = self.keys.find(name) {
                self.refuse_waiting(key, why);
            }
        }
    }

    /// Gives up a key: a server asks to wait too long, or a shared bucket has counted this many failures in a row. The
    /// waiting requests of the key and all later ones are refused.
    pub fn give_up(&mut self, now: Nanos, key: KeyId, failed: Option<NonZeroU32>) {
        let (now, why) = (self.tick(now), Refusal::GivenUp(failed));
        self.failures.give_up(self.keys.name(key), now, why);
        self.refuse_waiting(key, why);
    }
}
