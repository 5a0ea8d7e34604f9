//! What is needed to take grants back, apart from the state: nobody who only grants has to keep it.
//!
//! A record holds the limits as they were before one grant, or before the grants of one lease. The latest record can be
//! taken back while the grant lies ahead; after it, if it was kept, the one before, and so on.

use super::state::State;
use super::terms::{Terms, Undo};
use super::window;
use crate::clock::{Nanos, shrink};
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Counts the grants, so that each can be told from the others. Numbers are not used twice.
    pub(super) grants: u64,
    /// The latest last.
    records: VecDeque<Record>,
    /// For each record as many as there are limits.
    undos: VecDeque<Undo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Of its last grant.
    pub(super) number: u64,
    /// The time of that.
    pub(super) at: Nanos,
    /// The latest time given before it.
    pub(super) before: Nanos,
    /// Until when nothing is granted, if that was said since.
    pub(super) held: Option<Nanos>,
}

impl History {
    /// With nothing that can be taken back, after so many grants.
    pub(super) fn after(grants: u64) -> Self {
        History { grants, ..History::default() }
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// From here on what is charged can be taken back. What was granted by `horizon` cannot be any more.
    pub(super) fn begin(&mut self, horizon: Nanos, before: Nanos, terms: &[Terms], states: &[State]) {
        while self.records.front().is_some_and(|record| record.at <= horizon) {
            self.records.pop_front();
            self.undos.drain(..terms.len());
            self.shrink();
        }
        self.records.push_back(Record { number: self.grants, at: before, before, held: None });
        self.undos.extend(terms.iter().zip(states).map(|(terms, state)| Undo::new(terms, state)));
    }

    /// The time since which grants can be taken back, and how each of `limits` does so for the latest record.
    pub(super) fn current(&mut self, limits: usize) -> (Nanos, impl Iterator<Item = &mut Undo>) {
        let since = self.records.front().map_or(0, |record| record.before);
        let first = self.undos.len().saturating_sub(limits);
        (since, self.undos.range_mut(first..))
    }

    /// Counts a grant at `at` into the latest record.
    pub(super) fn count(&mut self, at: Nanos) {
        self.grants += 1;
        if let Some(record) = self.records.back_mut() {
            (record.number, record.at) = (self.grants, at);
        }
    }

    /// Takes back what is in the latest record, which is gone then.
    pub(super) fn undo(&mut self, states: &mut [State]) -> Option<Record> {
        let record = self.records.pop_back()?;
        self.grants += 1;
        for state in states.iter_mut().rev() {
            match self.undos.pop_back() {
                Some(Undo::Level(level)) => *state = State::from(level),
                Some(Undo::Change(change)) => window::Terms::undo(state, &change),
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

    /// Nothing can be taken back any more.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.undos.clear();
    }

    /// Nothing is granted before `until`, whatever is taken back.
    pub(super) fn hold(&mut self, until: Nanos) {
        for record in &mut self.records {
            record.held = record.held.max(Some(until));
        }
    }

    /// Does `act` to the states that the limit at `place` of so many may go back to. The log of a window is another one
    /// after it.
    pub(super) fn revise(&mut self, place: usize, limits: usize, act: impl Fn(&mut State)) {
        for undo in self.undos.iter_mut().skip(place).step_by(limits) {
            *undo = match undo {
                Undo::Level(level) => {
                    let mut state = State::from(*level);
                    act(&mut state);
                    Undo::Level(state.level)
                }
                _ => Undo::Nothing,
            };
        }
    }

    /// The logs of windows are other ones.
    pub(super) fn fix_windows(&mut self) {
        for undo in &mut self.undos {
            if let Undo::Change(_) = undo {
                *undo = Undo::Nothing;
            }
        }
    }

    /// How the limit at `place` takes back what is in the only record that is saved.
    pub(super) fn undo_of(&self, place: usize, limits: usize) -> Undo {
        let first = self.undos.len().saturating_sub(limits);
        self.undos.get(first + place).copied().unwrap_or(Undo::Nothing)
    }

    /// The history that was saved.
    pub(super) fn load(grants: u64, record: Record, undos: VecDeque<Undo>) -> Self {
        History { grants, records: VecDeque::from([record]), undos }
    }

    /// For how many entries there is room.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.records.capacity() + self.undos.capacity()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
