//! Limits that change while requests wait.

use super::keys::Table;
use super::requests::NONE;
use super::rules::Rules;
use super::state::{Ledger, Settings};
use crate::clock::Nanos;
use crate::limits::{Levels, Limits, MIN_ALLOWANCE};
use std::hash::Hash;

/// Costs in millionths of a unit need lengths that are this much finer: 2<sup>20</sup> is about a million.
const BITS_OF_PARTS: u32 = 20;

impl<N: Hash> Ledger<N> {
    /// A ledger of one process, whose costs are in millionths of a unit. It stores at most `most` keys.
    pub(crate) fn in_parts(each: Limits, all: Limits, now: Nanos, most: usize) -> Self {
        let settings = Settings::in_parts(&each, &all);
        Ledger::with_settings(settings, Table::new(each, most), all, now, &Rules::default())
    }

    /// Continues with other limits of each key from `now` on, made from the present ones.
    pub(crate) fn change_each<E>(
        &mut self,
        now: Nanos,
        make: impl FnOnce(&Limits, Nanos) -> Result<Limits, E>,
    ) -> Result<(), E> {
        let now = self.tick(now);
        let old = self.keys.each().clone();
        let mut each = make(&old, now)?;
        each.begin_as(&old, now);
        self.settings = Settings::in_parts(&each, &self.all);
        let in_use: Vec<_> = self.flows.in_use().into_iter().map(|id| (id, self.flows[id].key)).collect();
        let before: Vec<Levels> = in_use.iter().map(|(_, key)| self.keys.state(*key).1.clone()).collect();
        self.keys.change(now, each, &[], self.keys.most());
        for ((id, key), mut levels) in in_use.into_iter().zip(before) {
            old.continue_as(self.keys.each(), &mut levels, now, &[], self.first_of(Some(id)));
            *self.keys.state_mut(key).1 = levels;
        }
        self.reenter_all();
        Ok(())
    }

    /// Continues with other overall limits from `now` on, made from the present ones.
    pub(crate) fn change_all<E>(
        &mut self,
        now: Nanos,
        make: impl FnOnce(&Limits, Nanos) -> Result<Limits, E>,
    ) -> Result<(), E> {
        let now = self.tick(now);
        let all = make(&self.all, now)?;
        self.settings = Settings::in_parts(self.keys.each(), &all);
        let next = self.decide().map(|next| next.flow);
        let mut levels = std::mem::take(&mut self.levels);
        self.all.continue_as(&all, &mut levels, now, &[], self.first_of(next));
        (self.all, self.levels) = (all, levels);
        self.reenter_all();
        Ok(())
    }

    /// When the first request of a flow began to wait, and its costs.
    fn first_of(&self, flow: Option<u32>) -> Option<(Nanos, &[u64])> {
        let first = flow.map(|id| self.flows[id].first()).filter(|first| *first != NONE)?;
        let request = self.requests.get(first);
        Some((request.arrived, &request.costs))
    }

    /// Sets the most keys that are stored.
    pub(crate) fn set_most_keys(&mut self, most: usize) {
        self.keys.set_most(most);
    }

    /// Everything that decides about turns may have changed.
    pub(super) fn reenter_all(&mut self) {
        let flows = self.flows.in_use();
        for id in &flows {
            self.leave(*id);
        }
        for id in flows {
            self.enter(id);
            self.release(id);
        }
        self.turns.changed();
    }
}

impl Settings {
    fn in_parts(each: &Limits, all: &Limits) -> Settings {
        let new = Settings::new(all, [each].into_iter(), BITS_OF_PARTS);
        Settings { allowance: new.allowance.max(MIN_ALLOWANCE), grants_due: true, ..new }
    }
}
