//! Limits that change while requests wait.

use super::keys::Table;
use super::rules::Rules;
use super::state::{Ledger, Settings};
use super::turns::FRACTION_BITS;
use crate::clock::Nanos;
use crate::limits::Limits;
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
        let mut each = make(self.keys.each(), now)?;
        each.begin_as(self.keys.each(), now);
        self.settings = Settings::in_parts(&each, &self.all);
        self.keys.change(now, each, &[], self.keys.most());
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
        self.replace_all(all, &[]);
        self.reenter_all();
        Ok(())
    }

    /// Sets the most keys that are stored.
    pub(crate) fn set_most_keys(&mut self, most: usize) {
        self.keys.set_most(most);
    }

    /// Continues with these overall limits. A limit at the same index and of the same kind keeps its credit or count,
    /// unless it is `fresh`.
    pub(super) fn replace_all(&mut self, all: Limits, fresh: &[bool]) {
        let now = self.now;
        self.all.expire(&mut self.levels, now);
        self.all.change(&mut self.levels, now, &all, fresh);
        all.spill(&mut self.levels, now, &[]);
        self.all = all;
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
        Settings {
            lengths: all.lengths(FRACTION_BITS + BITS_OF_PARTS),
            finer: BITS_OF_PARTS,
            has_windows: all.has_windows() || each.has_windows(),
            allowance: [all, each].into_iter().filter_map(Limits::allowance).min().unwrap_or(0),
            quantum: u64::MAX,
            jobs: None,
            jobs_of_all: None,
            is_shared: false,
            max_wait: None,
        }
    }
}
