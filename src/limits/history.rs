//! What is needed to undo grants, apart from the state. Code that only grants need not keep it.
//!
//! A record holds the limits as they were before one grant, or before the grants of one lease. The latest record can be
//! undone while its grant is in the future. After that the record before it can be undone, if it was kept, and so on.

use super::state::State;
use super::terms::{Terms, Undo};
use super::window;
use crate::clock::{Nanos, shrink};
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Counts the grants, so that each has its own number. No number is used twice.
    pub(super) grants: u64,
    /// Oldest first.
    records: VecDeque<Record>,
    /// As many entries for each record as there are limits.
    undos: VecDeque<Undo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The number of its last grant.
    pub(super) number: u64,
    /// The time of that grant.
    pub(super) at: Nanos,
    /// The time of the latest grant before this record.
    pub(super) before: Nanos,
    /// Nothing is granted before this time, if a hold was set after the record.
    pub(super) held: Option<Nanos>,
}

impl History {
    /// An empty history, after so many grants.
    pub(super) fn after(grants: u64) -> Self {
        History { grants, ..History::default() }
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Begins a record: charges from here on can be undone. Grants up to `horizon` no longer can.
    pub(super) fn begin(&mut self, horizon: Nanos, before: Nanos, terms: &[Terms], states: &[State]) {
        while self.records.front().is_some_and(|record| record.at <= horizon) {
            self.records.pop_front();
            self.undos.drain(..terms.len());
            self.shrink();
        }
        self.records.push_back(Record { number: self.grants, at: before, before, held: None });
        self.undos.extend(terms.iter().zip(states).map(|(terms, state)| Undo::new(terms, state)));
    }

    /// The time since which grants can be undone; `None` if none can.
    pub(super) fn since(&self) -> Option<Nanos> {
        self.records.front().map(|record| record.before)
    }

    /// The time since which grants can be undone, and for each of `limits` how to undo the latest record.
    pub(super) fn current(&mut self, limits: usize) -> (Nanos, impl Iterator<Item = &mut Undo>) {
        let since = self.since().unwrap_or(0);
        let first = self.undos.len().saturating_sub(limits);
        (since, self.undos.range_mut(first..))
    }

    /// Counts a grant at `at` in the latest record.
    pub(super) fn count(&mut self, at: Nanos) {
        self.grants += 1;
        if let Some(record) = self.records.back_mut() {
            (record.number, record.at) = (self.grants, at);
        }
    }

    /// Undoes the latest record and removes it. If other changes were made since, its grants are at `from` or later.
    pub(super) fn undo(&mut self, states: &mut [State], from: Nanos) -> Option<Record> {
        let record = self.records.pop_back()?;
        self.grants += 1;
        for state in states.iter_mut().rev() {
            match self.undos.pop_back() {
                Some(Undo::Level(level)) => *state = State::from(level),
                Some(Undo::Change(change)) => window::Terms::undo(state, &change, from),
                Some(Undo::Nothing) | None => {}
            }
        }
        self.shrink();
        Some(record)
    }

    fn shrink(&mut self) {
        shrink(&mut self.records);
        shrink(&mut self.undos);
    }

    /// Removes everything: nothing can be undone any more.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.undos.clear();
    }

    /// Nothing is granted before `until`, whatever is undone later.
    pub(super) fn hold(&mut self, until: Nanos) {
        for record in &mut self.records {
            record.held = record.held.max(Some(until));
        }
    }

    /// Applies `act` to the saved states of the limit at `place`, of so many limits. Windows save none.
    pub(super) fn revise(&mut self, place: usize, limits: usize, act: impl Fn(&mut State)) {
        for undo in self.undos.iter_mut().skip(place).step_by(limits) {
            if let Undo::Level(level) = undo {
                let mut state = State::from(*level);
                act(&mut state);
                *level = state.level;
            }
        }
    }

    /// How many entries fit the allocated memory.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.records.capacity() + self.undos.capacity()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
