//! The first waiting unit of each key, ordered by when its own limits conform, and then by age.
//!
//! Units with the same costs conform to the limits of all keys together at the same time. So they form a group, and of
//! each group only one unit needs to be looked at. Usually there is one group.

use super::keyed::KeyId;
use std::collections::{BTreeMap, BTreeSet};
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Each, Thin};

/// The first units of all keys that wait for a time and for nothing else.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// By the costs that the limits of all keys together count; the others are 0.
    groups: BTreeMap<Box<[u64]>, Group>,
    /// The latest grant. Nothing is granted before; units whose own limits conform then are in `ready`.
    frontier: Nanos,
}

/// Where the first unit of a key is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    /// When the limits of its key conform.
    pub(super) at: Nanos,
    pub(super) age: u64,
    pub(super) key: KeyId,
}

#[derive(Debug)]
struct Group {
    /// Since when units of this group wait. Costs above the burst are saved up for from then on.
    since: Nanos,
    /// By time.
    later: BTreeSet<Head>,
    /// By age.
    ready: BTreeMap<(u64, KeyId), Nanos>,
}

impl Heads {
    /// Something was granted at `time`.
    pub(super) fn passed(&mut self, time: Nanos) {
        self.frontier = self.frontier.max(time);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds a unit with these costs that waits since `since`.
    pub(super) fn add(&mut self, costs: &[u64], since: Nanos, head: Head) {
        let group = match self.groups.get_mut(costs) {
            Some(group) => group,
            None => self.groups.entry(costs.into()).or_insert(Group {
                since,
                later: BTreeSet::new(),
                ready: BTreeMap::new(),
            }),
        };
        group.since = group.since.min(since);
        group.later.insert(head);
    }

    pub(super) fn remove(&mut self, costs: &[u64], head: Head) {
        let Some(group) = self.groups.get_mut(costs) else { return };
        if group.ready.remove(&(head.age, head.key)).is_none() {
            group.later.remove(&head);
        }
        if group.ready.is_empty() && group.later.is_empty() {
            self.groups.remove(costs);
        }
    }

    /// The earliest time, not before the last grant, at which the limits of a unit's key and those of `all` conform.
    pub(super) fn earliest(&self, all: (&Each, &Thin)) -> Option<Nanos> {
        let times = self.groups.iter().filter_map(|(costs, group)| {
            let own = if group.ready.is_empty() { group.later.first()?.at } else { 0 };
            group.conforms_at(costs, own.max(self.frontier), all)
        });
        times.min()
    }

    /// The oldest unit that conforms at `time`, not before [the earliest](Self::earliest) time, and since when its group
    /// waits.
    pub(super) fn oldest(&mut self, time: Nanos, all: (&Each, &Thin)) -> Option<(Head, Nanos)> {
        self.passed(time);
        for group in self.groups.values_mut() {
            while let Some(head) = group.later.first().filter(|head| head.at <= time) {
                group.ready.insert((head.age, head.key), head.at);
                group.later.pop_first();
            }
        }
        let conform = self.groups.iter().filter_map(|(costs, group)| {
            let (&(age, key), &at) = group.ready.first_key_value()?;
            (group.conforms_at(costs, time, all)? <= time).then_some((Head { at, age, key }, group.since))
        });
        conform.min_by_key(|(head, _)| head.age)
    }
}

impl Group {
    fn conforms_at(&self, costs: &[u64], from: Nanos, (all, thin): (&Each, &Thin)) -> Option<Nanos> {
        Some(from.max(all.conforms_at(thin, self.since, costs)?.0))
    }
}
