//! A ledger as it is saved: a log that was folded, and is shorter so.

use super::core::{Ledger, MOST, MOVED, RECENT, RUNS};
use super::entry::{Charge, Entry};
use super::jobs::Jobs;
use super::keys::{Kept, Keys};
use super::operation::{Counts, Recent};
use crate::clock::Nanos;
use crate::limits::pace::Pace;
use crate::limits::policy::Policy;
use crate::limits::settling::Settling;
use crate::limits::state::State;
use crate::limits::together::Limits;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;

/// All but the limits with the entries charged: of them, only when they were asked. Lists of times and numbers that grow hold
/// each one's difference from the one before.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    policy: Policy,
    number: u64,
    first: u64,
    counts: Counts,
    asked: Nanos,
    /// When the limits before the first entry were asked, their latest grant, and when the next one may be.
    base: [Nanos; 3],
    states: Vec<State>,
    settling: Settling,
    entries: VecDeque<Entry>,
    moved: VecDeque<(u64, Nanos)>,
    recent: VecDeque<Recent>,
    /// And the latest grant given before a server refused something.
    pace: (Pace, u64),
    keys: Option<Kept>,
    jobs: Jobs,
    replaces: bool,
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Saved::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ledger::try_from(Saved::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl From<Ledger> for Saved {
    fn from(ledger: Ledger) -> Self {
        let Ledger { policy, base, all, entries, number, first, moved, recent, counts, .. } = ledger;
        let Ledger { pace, outdated, keys, jobs, replaces, .. } = ledger;
        let Limits { states, settling, asked, at, next, .. } = base;
        let base = [asked, at, next];
        let asked = all.asked;
        let (pace, keys) = ((pace, outdated), keys.map(|keys| keys.kept));
        let mut saved = Saved {
            policy,
            number,
            first,
            counts,
            asked,
            base,
            states,
            settling,
            entries,
            moved,
            recent,
            pace,
            keys,
            jobs,
            replaces,
        };
        saved.each_list(|list| {
            let mut last = 0;
            list.for_each(|number| (*number, last) = (number.wrapping_sub(last), *number));
        });
        saved
    }
}

impl TryFrom<Saved> for Ledger {
    type Error = &'static str;

    fn try_from(mut saved: Saved) -> Result<Self, Self::Error> {
        saved.each_list(|list| {
            let mut last = 0_u64;
            list.for_each(|number| {
                last = last.wrapping_add(*number);
                *number = last;
            });
        });
        let Saved {
            policy, number, first, counts, asked, base: times, states, settling, entries, moved, recent, ..
        } = saved;
        let ((pace, outdated), jobs, replaces) = (saved.pace, saved.jobs, saved.replaces);
        let keys = saved.keys.and_then(|kept| Keys::of(&policy, kept));
        let mut base = Limits::new(&policy, 0);
        let makes_sense = !policy.is_empty()
            && states.len() == base.states.len()
            && base.fixed.each(&states).all(|(_, terms, state)| terms.has_sense(state))
            && settling.has_sense(states.len())
            && entries.len() <= 2 * MOST
            && entries.iter().is_sorted_by_key(|entry| entry.at)
            && entries.iter().all(Entry::has_sense)
            && keys.is_some() == (policy.of_keys().is_some() || policy.counts_jobs())
            && keys.as_ref().is_none_or(Keys::has_sense)
            && moved.len() <= MOVED
            && recent.len() <= RECENT;
        if !makes_sense {
            return Err("this is no ledger");
        }
        ([base.asked, base.at, base.next], base.states, base.settling) = (times, states, settling);
        base.every = pace.learned().unwrap_or(0);
        let (mut ledger, all) = (Ledger::new(&policy, 0, 0), base.clone());
        (ledger.number, ledger.first, ledger.outdated, ledger.replaces) = (number, first, outdated, replaces);
        ledger = Ledger { policy, base, all, entries, moved, recent, counts, pace, keys, jobs, ..ledger };
        ledger.recharge(asked, false);
        Ok(ledger)
    }
}

impl Saved {
    /// Changes each list of numbers that grow.
    fn each_list(&mut self, change: impl Fn(&mut dyn Iterator<Item = &mut u64>)) {
        change(&mut self.entries.iter_mut().map(|entry| &mut entry.number));
        change(&mut self.entries.iter_mut().map(|entry| &mut entry.asked));
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
        self.asked <= self.at
            && match &self.charge {
                Charge::Runs { runs } => {
                    runs.len() <= RUNS
                        && runs.is_sorted_by_key(|(at, _)| *at)
                        && runs.last().is_some_and(|(time, _)| *time == self.at)
                }
                _ => true,
            }
    }
}
