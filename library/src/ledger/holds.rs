//! Holds: nothing is granted before their end.

use super::flows::Flow;
use super::heap::Item;
use super::state::Ledger;
use crate::clock::Nanos;
use crate::limits::KeyId;
use std::hash::Hash;

impl<N: Hash> Ledger<N> {
    /// Holds a key: nothing is granted to it before `until`. At that time its buckets are emptied, unless the hold is
    /// [lifted](Self::lift) before. A shorter hold than the present one changes nothing.
    pub fn hold_until(&mut self, now: Nanos, key: KeyId, until: Nanos) {
        let now = self.tick(now);
        if until <= now {
            return;
        }
        let id = self.flow(key);
        if self.flows[id].hold.extend(now, until) {
            self.flows.holds.remove(id);
            self.flows.holds.push(Item { at: until, age: 0, id });
            self.leave(id);
            self.enter(id);
        }
        self.release(id);
    }

    /// Holds all keys: nothing is granted before `until`. At that time the buckets of the overall limits are emptied,
    /// unless the hold is [lifted](Self::lift) before. A shorter hold than the present one changes nothing.
    pub fn hold_all_until(&mut self, now: Nanos, until: Nanos) {
        let now = self.tick(now);
        if self.hold.extend(now, until) {
            self.turns.changed();
        }
    }

    /// Lifts the hold of a key, or without a key the hold of all keys. The limits are then as if it had not been, but
    /// nothing is granted for a time before `now`.
    pub fn lift(&mut self, now: Nanos, key: Option<KeyId>) {
        let now = self.tick(now);
        let Some(key) = key else {
            if self.hold.lift() {
                self.turns.changed();
                self.close(now, true);
            }
            return;
        };
        let Some(id) = self.keys.flow(key) else { return };
        if self.flows[id].hold.lift() {
            self.flows.holds.remove(id);
            self.change(key, |flow| flow.since = flow.since.max(now));
        }
    }

    /// Ends the holds that are over by now.
    #[inline]
    pub(super) fn end_holds(&mut self) {
        if self.hold.is_pending() && self.hold.until <= self.now {
            self.end_hold_of_all();
        }
        while let Some(hold) = self.flows.holds.first().filter(|hold| hold.at <= self.now) {
            self.end_hold(hold.id);
            self.release(hold.id);
        }
    }

    /// The hold of all keys has ended.
    #[inline]
    pub(super) fn end_hold_of_all(&mut self) {
        self.hold.end(&self.all, &mut self.levels);
    }

    /// The hold of a flow has ended.
    #[inline]
    pub(super) fn end_hold(&mut self, id: u32) {
        if !self.flows.holds.is_empty() && self.flows.holds.remove(id).is_some() {
            let Flow { key, hold, .. } = &mut self.flows[id];
            let (each, levels) = self.keys.state_mut(*key);
            hold.end(each, levels);
        }
    }
}
