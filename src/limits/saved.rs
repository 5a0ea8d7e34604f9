//! State that outlives the process: limits saved as words, and limits replaced by others with `set`.

use super::history::{History, Record};
use super::policy::Policy;
use super::state::{Entry, Level, State};
use super::terms::{Terms, Undo};
use super::together::Limits;
use super::window::{self, Change};
use crate::clock::Nanos;
use std::collections::VecDeque;

impl Limits {
    /// Appends the state as words, with what is needed to undo the latest record. The policy is saved elsewhere.
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        let last = self.history.last();
        words.extend([self.asked, self.at, last.map_or(self.at, |last| last.before), self.history.grants]);
        for (place, (terms, state)) in self.each().enumerate() {
            let undo = self.history.undo_of(place, self.terms.len());
            match terms {
                Terms::Window(_) => save_window(state, undo, words),
                _ => save_bucket(state.level, undo, words),
            }
        }
        words.push(last.and_then(|last| last.held).unwrap_or(0));
    }

    /// The limits of `policy` in the state that [`save`](Self::save) wrote; `None` if the words are not the state of
    /// such limits.
    pub(crate) fn load(policy: &Policy, words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let mut limits = Limits::new(policy, 0);
        let [asked, at, before, number] = [words.next()?, words.next()?, words.next()?, words.next()?];
        let mut undos = VecDeque::with_capacity(limits.states.len());
        for (terms, state) in limits.terms.iter().zip(&mut limits.states) {
            undos.push_back(match terms {
                Terms::Window(_) => load_window(state, words)?,
                _ => load_bucket(state, words)?,
            });
        }
        let record = Record { number, at, before, held: words.next().filter(|held| *held > 0) };
        (limits.asked, limits.at, limits.history) = (asked, at, History::load(number, record, undos));
        Some(limits)
    }

    /// Replaces the limits by those of `policy` from `now` on. A limit at the same index and of the same kind keeps its
    /// credit or count, unless `fresh` is true at its index: then it starts anew. Grants keep their times.
    pub(crate) fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        let now = self.in_order(now);
        let mut limits = Limits::new(policy, now);
        for (place, (from, old)) in self.terms.iter().zip(&mut self.states).enumerate() {
            let is_fresh = fresh.get(place).copied().unwrap_or(false);
            if let Some(to) = limits.terms.get(place).filter(|to| !is_fresh && to.is_like(from)) {
                from.change(old, now, to);
                if let Ok(bucket) = to.kind() {
                    bucket.spill(&mut old.level, now);
                }
                limits.states[place] = old.clone();
            }
        }
        // No grant has this number: an earlier grant cannot be undone in limits that it was not charged to.
        let history = History::after(self.history.grants + 1);
        *self = Limits { at: self.at, history, ..limits };
    }

    /// Continues as if everything that the limits allow had been taken at `now`: buckets are empty, windows are full.
    pub(crate) fn use_up(&mut self, now: Nanos) {
        let full = self.terms.iter().filter_map(Terms::as_window).map(window::Terms::period).max();
        self.hold_until(now, now.saturating_add(full.unwrap_or(1)));
    }

    /// A time by which every limit is at rest if nothing more is taken: buckets are full, windows are empty.
    #[must_use]
    pub(crate) fn rested_at(&self) -> Nanos {
        self.at.saturating_add(self.terms.iter().map(Terms::rest_time).max().unwrap_or(0))
    }
}

fn save_bucket(level: Level, undo: Undo, words: &mut Vec<u64>) {
    let before = if let Undo::Level(before) = undo { before } else { level };
    for level in [level, before] {
        words.extend(halves(level.amount.cast_unsigned()));
        words.push(level.at);
    }
}

fn load_bucket(state: &mut State, words: &mut impl Iterator<Item = u64>) -> Option<Undo> {
    let mut level = || {
        let amount = u128::from(words.next()?) | u128::from(words.next()?) << 64;
        Some(Level { amount: amount.cast_signed(), at: words.next()? })
    };
    state.level = level()?;
    level().map(Undo::Level)
}

fn save_window(state: &State, undo: Undo, words: &mut Vec<u64>) {
    words.extend([state.level.at, state.log().len() as u64]);
    words.extend(state.log().iter().flat_map(|entry| [entry.at, entry.units]));
    let (can_undo, change) = match undo {
        Undo::Change(change) => (1, change),
        _ => (0, Change::none(0)),
    };
    words.extend([can_undo, change.joined.is_some().into()]);
    words.extend([change.at, change.units, change.joined.unwrap_or(0)]);
}

/// `None` also if the words contradict each other.
fn load_window(state: &mut State, words: &mut impl Iterator<Item = u64>) -> Option<Undo> {
    state.level.at = words.next()?;
    for _ in 0..words.next()? {
        let entry = Entry { at: words.next()?, units: words.next()? };
        state.level.amount += i128::from(entry.units);
        state.log_mut().push_back(entry);
    }
    let [can_undo, joins] = [words.next()?, words.next()?];
    let [at, units, joined] = [words.next()?, words.next()?, words.next()?];
    let change = Change { at, units, joined: (joins == 1).then_some(joined) };
    let makes_sense = state.log().iter().is_sorted_by_key(|entry| entry.at) && i128::from(units) <= state.level.amount;
    makes_sense.then_some(if can_undo == 1 { Undo::Change(change) } else { Undo::Nothing })
}

/// The lower half comes first.
#[allow(clippy::cast_possible_truncation, reason = "each takes its half")]
fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    fn policy(limits: &[&str]) -> Policy {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Policy::new(&limits, None).unwrap()
    }

    fn saved(limits: &Limits) -> Vec<u64> {
        let mut words = Vec::new();
        limits.save(&mut words);
        words
    }

    #[test]
    fn saved_limits_load_and_continue_as_before() {
        let policy = policy(&["1000003/s,burst=3", "700/min", "5000/h,window"]);
        let mut limits = Limits::new(&policy, 17);
        for step in 0..3000 {
            let mut loaded = Limits::load(&policy, &mut saved(&limits).into_iter()).unwrap();
            assert_eq!(saved(&loaded), saved(&limits));
            let grant = limits.take(step * 1_000_000, 1 + step % 2).unwrap();
            assert_eq!(loaded.take(step * 1_000_000, 1 + step % 2), Ok(grant));
            if step % 7 == 0 {
                limits.give_back(step * 1_000_000, &grant);
            }
        }
    }

    #[test]
    fn missing_or_contradictory_words_are_not_loaded() {
        let policy = policy(&["5/s", "100/min"]);
        let mut limits = Limits::new(&policy, 0);
        for _ in 0..3 {
            let _ = limits.take(0, 1).unwrap();
        }
        let words = saved(&limits);
        // The time of a hold comes last, and none may be missing.
        for length in 0..words.len() - 1 {
            assert_eq!(Limits::load(&policy, &mut words[..length].iter().copied()), None, "{length} words");
        }
        // Before the length of the window's log come four words, six words of the bucket, and the window's latest time.
        let mut endless = words.clone();
        endless[11] = u64::MAX;
        assert_eq!(Limits::load(&policy, &mut endless.into_iter()), None);
    }

    #[test]
    fn set_keeps_counts_unless_a_limit_starts_anew() {
        let mut limits = Limits::new(&policy(&["10/s,burst=10", "20/min"]), 0);
        let _ = limits.take(0, 8).unwrap();
        limits.set(0, &policy(&["1/s,burst=5", "9/min"]), &[false, false]);
        assert_eq!(limits.available(0), 1, "8 of the 9 are counted");
        limits.set(0, &policy(&["1/s,burst=5", "20/min"]), &[false, false]);
        assert_eq!(limits.available(0), 2, "what was left of the first bucket");
        limits.set(0, &policy(&["1/s,burst=5", "20/min"]), &[true, false]);
        assert_eq!(limits.available(0), 5);
        limits.set(0, &policy(&["1/s,burst=5", "3/min"]), &[false, false]);
        assert_eq!(limits.available(0), 0, "the window counts more than its new limit");
        assert_eq!(limits.take(0, 1).unwrap().at, 60 * SECOND);
    }

    #[test]
    fn a_grant_keeps_its_time_when_limits_are_set() {
        let mut limits = Limits::new(&policy(&["1/s"]), 0);
        let _ = limits.take(0, 1).unwrap();
        let last = limits.take(0, 1).unwrap();
        limits.set(0, &policy(&["1000/s"]), &[true]);
        limits.give_back(0, &last);
        assert!(limits.take(0, 1).unwrap().at >= last.at);
    }
}
