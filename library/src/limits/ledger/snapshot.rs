//! The saved form of a ledger: a log that was folded and became shorter.

use super::core::{Ledger, MAX_ENTRIES, MAX_MOVED, MAX_RECENT, MAX_RUNS};
use super::entry::{Charge, Entry};
use super::jobs::Jobs;
use super::keys::{Kept, Keys};
use super::operation::{Counts, Recent};
use super::shares::Shares;
use crate::clock::Nanos;
use crate::limits::pace::Pace;
use crate::limits::policy::Policy;
use crate::limits::state::State;
use crate::limits::together::Limits;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;

/// The whole ledger. Only the limits with all entries charged are left out, except for the time of the latest request.
/// Lists of growing times and numbers store each element as the difference from the previous one.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    policy: Policy,
    number: u64,
    first: u64,
    counts: Counts,
    asked: Nanos,
    /// Three times of the limits before the first entry: the latest request, the latest grant, and the earliest next
    /// grant.
    base: [Nanos; 3],
    states: Vec<State>,
    entries: VecDeque<Entry>,
    moved: VecDeque<(u64, Nanos)>,
    recent: VecDeque<Recent>,
    /// The learned pace, and the number of the latest grant before a server refused something.
    pace: (Pace, u64),
    keys: Option<Kept>,
    jobs: Jobs,
    shares: Shares,
    replaces: bool,
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Limits { states, asked, at, next, .. } = self.base.clone();
        let mut saved = Saved {
            policy: self.policy.clone(),
            number: self.number,
            first: self.first,
            counts: self.counts,
            asked: self.all.asked,
            base: [asked, at, next],
            states,
            entries: self.entries.clone(),
            moved: self.moved.clone(),
            recent: self.recent.clone(),
            pace: (self.pace.clone(), self.outdated),
            keys: self.keys.as_ref().map(|keys| keys.kept.clone()),
            jobs: self.jobs.clone(),
            shares: self.shares.clone(),
            replaces: self.replaces,
        };
        saved.each_list(|list| {
            let mut last = 0;
            list.for_each(|number| (*number, last) = (number.wrapping_sub(last), *number));
        });
        saved.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut saved = Saved::deserialize(deserializer)?;
        saved.each_list(|list| {
            let mut last = 0_u64;
            list.for_each(|number| {
                last = last.wrapping_add(*number);
                *number = last;
            });
        });
        let Saved { policy, number, first, counts, states, entries, moved, recent, jobs, shares, .. } = saved;
        let (pace, outdated) = saved.pace;
        let keys = saved.keys.and_then(|kept| Keys::of(&policy, kept));
        let mut base = Limits::new(&policy, 0);
        let makes_sense = !policy.is_empty()
            && states.len() == base.states.len()
            && base.fixed.each(&states).all(|(_, terms, state)| terms.has_sense(state))
            && entries.len() <= 2 * MAX_ENTRIES
            && entries.iter().is_sorted_by_key(|entry| entry.at)
            && entries.iter().all(Entry::has_sense)
            && keys.is_some() == (policy.of_keys().is_some() || policy.counts_jobs())
            && keys.as_ref().is_none_or(Keys::has_sense)
            && moved.len() <= MAX_MOVED
            && shares.has_sense()
            && recent.len() <= MAX_RECENT;
        if !makes_sense {
            return Err(D::Error::custom("this is not a ledger"));
        }
        ([base.asked, base.at, base.next], base.states) = (saved.base, states);
        base.every = pace.learned().unwrap_or(0);
        let mut ledger = Ledger {
            policy,
            all: base.clone(),
            base,
            entries,
            number,
            first,
            moved,
            recent,
            counts,
            pace,
            outdated,
            keys,
            jobs,
            shares,
            replaces: saved.replaces,
        };
        ledger.recharge(saved.asked, false);
        Ok(ledger)
    }
}

impl Saved {
    /// Applies `change` to each list of growing numbers.
    fn each_list(&mut self, change: impl Fn(&mut dyn Iterator<Item = &mut u64>)) {
        change(&mut self.entries.iter_mut().map(|entry| &mut entry.number));
        change(&mut self.entries.iter_mut().map(|entry| &mut entry.requested));
        change(&mut self.entries.iter_mut().map(|entry| &mut entry.at));
        change(&mut self.moved.iter_mut().map(|(number, _)| number));
        change(&mut self.moved.iter_mut().map(|(_, at)| at));
        for entry in &mut self.entries {
            if let Charge::Runs { runs } = &mut entry.charge {
                change(&mut runs.iter_mut().map(|(at, _)| at));
            }
        }
        for state in &mut self.states {
            change(&mut state.times_mut());
        }
    }
}

impl Entry {
    fn has_sense(&self) -> bool {
        self.requested <= self.at
            && match &self.charge {
                Charge::Runs { runs } => {
                    runs.len() <= MAX_RUNS
                        && runs.is_sorted_by_key(|(at, _)| *at)
                        && runs.last().is_some_and(|(time, _)| *time == self.at)
                }
                _ => true,
            }
    }
}
