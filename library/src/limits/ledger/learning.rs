//! How a bucket's calls are slowed down if a server allows less than the limits.

use super::core::Ledger;
use super::entry::{Charge, Entry};
use super::operation::OfKey;
use crate::clock::Nanos;
use crate::limits::pace::{Pace, Served, Start};

impl Ledger {
    /// Records that a server refused the calls with these starts. `until` is the end of the pause.
    pub(super) fn refused(&mut self, now: Nanos, refused: &[Start], until: Nanos) {
        if !refused.is_empty() {
            self.settle_past(now);
            for start in refused {
                if self.pace.refused(*start, until) {
                    self.outdated = self.number;
                }
            }
            self.space(now);
        }
    }

    /// Records that a server refused the calls of this key with these starts. `until` is the end of the pause.
    pub(super) fn refused_of_key(&mut self, now: Nanos, name: &[u8], refused: &[Start], until: Nanos) {
        if !refused.is_empty() {
            self.settle_past(now);
            self.keys.iter_mut().for_each(|keys| keys.refused(name, refused, until));
            self.recharge(now, true);
        }
    }

    /// Records that calls have succeeded: calls of one key, if calls have keys.
    pub(super) fn served(&mut self, now: Nanos, served: Served, of: Option<&OfKey>) {
        if served == Served::default() {
            return;
        }
        if let (Some(keys), Some(of)) = (&mut self.keys, of) {
            keys.served(now, &of.name, served);
        } else if self.pace.listens() {
            self.pace.succeeded(served, now);
            self.space(now);
        }
    }

    /// Spaces the grants by the learned time between two calls.
    fn space(&mut self, now: Nanos) {
        let every = self.pace.learned().unwrap_or(0);
        if every != self.base.every {
            self.base.every = every;
            self.recharge(now, true);
        }
    }

    /// Resets the learned pace if the limits now require another interval, or if `of_all` is set.
    pub(super) fn learn_anew(&mut self, of_all: bool) {
        let asked = self.policy.interval();
        if of_all || asked != self.pace.asked() {
            (self.pace, self.outdated) = (Pace::new(asked), 0);
            (self.base.every, self.base.next) = (0, 0);
        }
    }

    /// Handles an entry whose time has come: charges it to `base`, and counts its wait and its starts.
    pub(super) fn pass_entry(&mut self, entry: &Entry) {
        entry.apply(&mut self.base);
        if matches!(entry.charge, Charge::One { .. }) {
            self.counts.waited = self.counts.waited.saturating_add(entry.waited());
        }
        if let (Some(keys), Some(of)) = (&mut self.keys, entry.of_key()) {
            let is_of_key = |other: &Entry| other.of_key().is_some_and(|other| other.name == of.name);
            keys.pass(entry, of, self.entries.iter().any(is_of_key));
        }
        if !self.is_outdated(entry.number) {
            entry.starts().for_each(|(at, units)| self.pace.started(at, units));
        }
    }

    /// Whether a server has refused a call since the grant with this number was made. Then the grant is given back,
    /// because its unit would leave in the pause, or too close to other units.
    pub(crate) fn is_outdated(&self, number: u64) -> bool {
        (1..=self.outdated).contains(&number)
    }

    /// Whether a server has refused anything so far.
    pub(crate) fn was_refused(&self) -> bool {
        self.outdated > 0
    }

    /// The learned pace at this time.
    pub(crate) fn pace_at(&self, now: Nanos) -> Pace {
        let mut pace = self.pace.clone();
        let starts = self.entries.iter().filter(|entry| !self.is_outdated(entry.number)).flat_map(Entry::starts);
        starts.take_while(|(at, _)| *at <= now).for_each(|(at, units)| pace.started(at, units));
        pace
    }

    /// The learned pace of this key at this time.
    pub(crate) fn pace_of(&self, name: &[u8], now: Nanos) -> Pace {
        let of_key = |entry: &&Entry| entry.of_key().is_some_and(|of| *of.name == *name);
        let past = self.entries.iter().take_while(|entry| entry.at <= now).filter(of_key);
        self.keys.as_ref().map_or_else(|| self.pace_at(now), |keys| keys.pace_with(name, past))
    }
}

impl Entry {
    /// The times at which calls start, and the number of calls at each time.
    fn starts(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let runs = if let Charge::Runs { runs } = &self.charge { &runs[..] } else { &[] };
        let one = matches!(self.charge, Charge::One { .. }).then_some((self.at, 1));
        one.into_iter().chain(runs.iter().copied())
    }
}
