//! Units that were granted: they leave, end, and are settled at their real costs.
//!
//! A grant is stored while it may change: while its unit runs, or until it is settled.

use super::requests::Costs;
use super::state::{Ledger, Open, Run};
use crate::clock::Nanos;
use crate::limits::{Charged, KeyId, Levels, Limits};
use std::hash::Hash;

/// A grant that was just charged.
pub(super) struct Opening<'a> {
    pub(super) costs: &'a Costs,
    pub(super) charged: Charged,
    /// Whether its costs may change.
    pub(super) settles: bool,
    /// Whether servers report on its units.
    pub(super) learns: bool,
    pub(super) units: u64,
}

impl<N: Hash> Ledger<N> {
    /// Stores a grant that runs or will be settled.
    pub(super) fn open(&mut self, id: u32, opening: &Opening<'_>) {
        let Opening { costs, charged, learns, units, .. } = *opening;
        let (runs, is_shared) = (self.settings.jobs.is_some(), self.settings.is_shared);
        let start = self.start(id, if is_shared { charged.at } else { self.now }, units, learns);
        let settles = opening.settles || is_shared;
        if !runs && !settles {
            return;
        }
        let key = self.flows[id].key;
        if settles {
            let (each, levels) = self.keys.state_mut(key);
            each.open(levels, charged, costs);
            self.all.open(&mut self.levels, charged, costs);
        }
        let (flow, running) = (&mut self.flows[id], u32::from(runs));
        (flow.open, flow.running, self.running) = (flow.open + 1, flow.running + running, self.running + running);
        self.grants.insert(charged.number, Open { key, costs: costs.clone(), charged, start, runs, settles });
    }

    /// Reports the real costs of a unit, once for each grant whose [request](super::Request) settles. The limits are
    /// then as if the unit had cost that from the start. A credit is lost if it would have overflowed the bucket
    /// meanwhile. Later units owe the excess of a higher cost. The turns of the key change in the same way.
    pub fn settle(&mut self, now: Nanos, number: u64, real: &[u64]) {
        let latest = now.max(self.now).max(self.turns.last());
        self.correct(now, number, real, |limits, levels, charged, costs| {
            limits.settle(levels, [latest; 2], charged, [costs, real]);
        });
    }

    /// Reports that an open grant was not used, and closes it. Windows may have been replaced since, and then do not know it.
    pub(crate) fn give_back(&mut self, now: Nanos, number: u64) {
        let latest = now.max(self.now).max(self.turns.last());
        self.correct(now, number, &[0], |limits, levels, charged, costs| {
            limits.give_back(levels, latest, charged, costs);
        });
    }

    /// Corrects a grant whose real costs are these, the limits by `act`.
    fn correct(&mut self, now: Nanos, number: u64, real: &[u64], act: impl Fn(&Limits, &mut Levels, Charged, &[u64])) {
        let now = self.tick(now);
        let Some(open) = self.grants.get_mut(&number).filter(|open| open.settles) else { return };
        open.settles = false;
        let (key, charged, costs, runs) = (open.key, open.charged, open.costs.clone(), open.runs);
        self.close_before_change();
        if let Some(id) = self.keys.flow(key) {
            let [was, is] = [&*costs, real].map(|costs| self.length(costs));
            let finish = &mut self.flows[id].finish;
            *finish = finish.saturating_sub(was).saturating_add(is);
            self.turns.finished(*finish);
        }
        self.revise(key, |limits, levels| act(limits, levels, charged, &costs));
        if !runs {
            self.drop_grant(now, number);
        }
    }

    /// Reports the end of a unit. It no longer takes a job, and its cost is final: it can no longer be settled.
    pub fn ended(&mut self, now: Nanos, number: u64) {
        let now = self.tick(now);
        let Some(open) = self.grants.get_mut(&number) else { return };
        if std::mem::take(&mut open.settles) {
            // That changes no level, so nobody's turn changes.
            let (key, charged, costs) = (open.key, open.charged, &open.costs);
            self.all.settle(&mut self.levels, [now; 2], charged, [costs, costs]);
            let (each, levels) = self.keys.state_mut(key);
            each.settle(levels, [now; 2], charged, [costs, costs]);
        }
        self.drop_grant(now, number);
    }

    /// Reports that a granted unit is not used. It has ended. If its request settles, its cost is 0.
    pub fn unused(&mut self, now: Nanos, number: u64) {
        if let Some(open) = self.grants.get(&number) {
            let nothing: Costs = open.costs.iter().map(|_| 0).collect::<Vec<_>>()[..].into();
            self.settle(now, number, &nothing);
        }
        self.ended(now, number);
    }

    /// Reports that a granted unit was handed over just now: windows count it from `now` on.
    pub fn handed_over(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: &[u64]) {
        if self.settings.has_windows {
            let now = self.tick(now);
            let mut counted = now;
            self.revise(key, |limits, levels| {
                counted = counted.min(limits.hand_over(levels, charged, costs, now).counted);
            });
            if let Some(open) = self.grants.get_mut(&charged.number) {
                open.charged.counted = counted;
            }
        }
    }

    /// Reports that the unit of an open grant is handed over now. Returns `false`, and changes nothing, if a window has
    /// given its room to other grants since.
    pub(crate) fn hand_over_open(&mut self, now: Nanos, number: u64) -> bool {
        let Some(open) = self.grants.get(&number).filter(|_| self.settings.has_windows) else { return true };
        let (key, charged, costs, now) = (open.key, open.charged, open.costs.clone(), self.now.max(now));
        let (each, levels) = self.keys.state(key);
        let keeps = |limits: &Limits, levels: &Levels| limits.keeps_room(levels, charged, &costs, now, false);
        let is_kept = keeps(each, levels) && keeps(&self.all, &self.levels);
        if is_kept {
            self.handed_over(now, key, charged, &costs);
        }
        is_kept
    }

    /// Like [`handed_over`](Self::handed_over), for plain units.
    pub fn run_left(&mut self, now: Nanos, run: &Run) {
        self.handed_over(now, run.key, run.charged, &[run.units]);
    }

    fn drop_grant(&mut self, now: Nanos, number: u64) {
        let Some(open) = self.grants.remove(&number) else { return };
        if open.runs {
            if self.busy_until.is_some() {
                // The limits were busy until now, so the flows that are ready keep the tags from before.
                self.close(now, true);
                self.turns.changed();
            }
            if self.are_all_jobs_taken() {
                self.turns.changed();
            }
            self.running -= 1;
        }
        let (Some(id), jobs) = (self.keys.flow(open.key), self.settings.jobs) else { return };
        let flow = &mut self.flows[id];
        flow.open -= 1;
        if open.runs {
            let was_full = Some(flow.running) == jobs;
            flow.running -= 1;
            if was_full {
                // Nothing was granted while all jobs were taken.
                flow.since = flow.since.max(now);
                self.leave(id);
                self.enter(id);
            }
        }
        self.release(id);
        self.forget_too_many();
    }

    /// Corrects the overall limits and the limits of a key for a unit that has left.
    fn revise(&mut self, key: KeyId, mut act: impl FnMut(&Limits, &mut Levels)) {
        act(&self.all, &mut self.levels);
        let (each, levels) = self.keys.state_mut(key);
        act(each, levels);
        self.turns.changed();
        if let Some(id) = self.keys.flow(key) {
            self.leave(id);
            self.enter(id);
        }
        self.keys.note(key);
    }
}
