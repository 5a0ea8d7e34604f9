//! Units that were granted: they leave, end, and are settled at their real costs.

use super::state::{Ledger, Run};
use crate::clock::Nanos;
use crate::limits::{Charged, Each, KeyId, Thin};

impl Ledger {
    /// Reports the end of a running unit of this key: see [`Rules::jobs`](super::Rules::jobs).
    pub fn ended(&mut self, now: Nanos, key: KeyId) {
        let (now, jobs) = (self.tick(now), self.jobs);
        self.change(key, |flow| {
            if Some(flow.running) == jobs {
                flow.since = flow.since.max(now);
            }
            flow.running = flow.running.saturating_sub(1);
        });
    }

    /// Reports that a granted unit was handed over just now: windows count it from `now` on.
    pub fn handed_over(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: &[u64]) {
        if self.has_windows {
            let now = self.tick(now);
            self.revise(key, |limits, thin, _| limits.hand_over(thin, charged, costs, now));
        }
    }

    /// Like [`handed_over`](Self::handed_over), for plain units.
    pub fn run_left(&mut self, now: Nanos, run: &Run) {
        self.handed_over(now, run.key, run.charged, &[run.units]);
    }

    /// Opens the latest grant, which will be [settled](Self::settle) before its unit has [ended](Self::ended).
    pub fn open(&mut self, key: KeyId, charged: Charged, costs: &[u64]) {
        let (each, thin) = self.keys.state_mut(key);
        each.open(thin, charged, costs);
        self.all.open(&mut self.thin, charged, costs);
    }

    /// Settles a unit at its real cost: `costs` are the charged costs and the real costs. The limits are then as if the
    /// unit had cost its real costs from the start. A credit is lost if it would have overflowed the bucket meanwhile.
    /// Later units owe the excess of a higher cost. The grant must be [open](Self::open).
    pub fn settle(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: [&[u64]; 2]) {
        let now = self.tick(now);
        self.close_before_change();
        let of_key = self.keys.flow(key).map(|id| self.flows[id].hold).unwrap_or_default();
        let are_emptied = [self.hold, of_key].map(|hold| hold.has_closed(charged.number));
        self.revise(key, |limits, thin, place| match are_emptied[place] {
            true => limits.settle_windows(thin, now, charged, costs),
            false => limits.settle(thin, now, charged, costs),
        });
    }

    /// Corrects the overall limits (place 0) and the limits of a key (place 1) for a unit that has left. `act` gets the
    /// limits, their state and the place.
    fn revise(&mut self, key: KeyId, act: impl Fn(&Each, &mut Thin, usize)) {
        act(&self.all, &mut self.thin, 0);
        let (each, thin) = self.keys.state_mut(key);
        act(each, thin, 1);
        self.turns.changed();
        if let Some(id) = self.keys.flow(key) {
            self.leave(id);
            self.enter(id);
        }
        self.keys.note(key);
    }
}
