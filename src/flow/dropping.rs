//! Units that are dropped since they would wait for too long: which they are, and how many of each key.

use std::collections::{BTreeMap, HashMap};
use throttle_limits::clock::{Nanos, SECOND};
use throttle_limits::limits::{Each, Thin};
use throttle_limits::line::{KeyId, NO_KEY};

/// Of so many keys it is counted how many units were dropped.
const COUNTED_KEYS: usize = 10_000;

/// How often it is told that units are dropped.
const TELL_EVERY: Nanos = 10 * SECOND;

/// Units that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many.
    pub units: u64,
    /// How many of each key, if there are keys, and not too many.
    pub keys: BTreeMap<Box<[u8]>, u64>,
}

impl Dropped {
    pub(super) fn count(&mut self, key: Option<&[u8]>) {
        self.units += 1;
        let Some(key) = key else { return };
        if let Some(units) = self.keys.get_mut(key) {
            *units += 1;
        } else if self.keys.len() < COUNTED_KEYS {
            self.keys.insert(key.into(), 1);
        }
    }
}

/// Drops units that would wait longer than allowed.
#[derive(Debug)]
pub(super) struct Dropping {
    max_wait: Nanos,
    is_keyed: bool,
    /// Of keys that have units that wait.
    tails: HashMap<KeyId, Tail>,
    /// Units that were dropped since this was last told, and when that was.
    untold: Dropped,
    told: Option<Nanos>,
}

/// The limits as they will be when so many units that wait have left, each as early as it may.
#[derive(Debug)]
struct Tail {
    thin: Thin,
    units: usize,
}

impl Dropping {
    pub(super) fn new(max_wait: Nanos, is_keyed: bool) -> Self {
        Dropping { max_wait, is_keyed, tails: HashMap::new(), untold: Dropped::default(), told: None }
    }

    pub(super) fn untold(&self) -> &Dropped {
        &self.untold
    }

    /// A unit of this key is dropped. Returns the key that it counts for, if there are keys.
    pub(super) fn count<'k>(&mut self, key: Option<&'k [u8]>) -> Option<&'k [u8]> {
        let key = self.is_keyed.then_some(key.unwrap_or(NO_KEY));
        self.untold.count(key);
        key
    }

    /// What is to be told now.
    pub(super) fn news(&mut self, now: Nanos) -> Option<Dropped> {
        let is_due = self.told.is_none_or(|told| now >= told.saturating_add(TELL_EVERY));
        (self.untold.units > 0 && is_due).then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.untold)
        })
    }

    /// Whether it is known that a unit of these costs, which arrives now behind the others of its key, would wait for too
    /// long. If not, it is going to wait. `limits` are those that only this key waits for, with their state.
    pub(super) fn is_late(&mut self, now: Nanos, key: KeyId, (each, thin): (&Each, &Thin), costs: &[u64]) -> bool {
        let last = self.tails.get(&key).map_or(thin, |tail| &tail.thin);
        let leaves = each.conforms_at(last, now, costs).map_or(Nanos::MAX, |(time, _)| time);
        if leaves > now.saturating_add(self.max_wait) {
            return true;
        }
        let tail = self.tails.entry(key).or_insert_with(|| Tail { thin: thin.clone(), units: 0 });
        each.charge(&mut tail.thin, [leaves, now, leaves, leaves], costs);
        tail.units += 1;
        false
    }

    /// A unit of this key has left that waited.
    pub(super) fn has_left(&mut self, key: KeyId) {
        if let Some(tail) = self.tails.get_mut(&key) {
            tail.units = tail.units.saturating_sub(1);
            if tail.units == 0 {
                self.tails.remove(&key);
            }
        }
    }

    /// A unit of this key was dropped that waited, so those behind it may leave earlier than was known.
    pub(super) fn forget(&mut self, key: KeyId) {
        self.tails.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use throttle_limits::limits::Policy;
    use throttle_limits::line::{Line, Next, Rules, Unit};

    /// Which units leave, and when: they arrive at these times. Those that are late by `dropping` are not
    /// even added.
    fn leave(
        policy: &Policy,
        arrivals: &[Nanos],
        max_wait: Nanos,
        mut dropping: Option<Dropping>,
    ) -> Vec<(u64, Nanos)> {
        let rules = Rules { each: &[(policy, 0)], max_wait: Some(max_wait), ..Rules::default() };
        let (mut order, mut left) = (Line::new(&rules, 0), Vec::new());
        let end = arrivals.last().unwrap_or(&0) + max_wait;
        for now in 0..=end {
            for (age, _) in (0..).zip(arrivals).filter(|(_, arrived)| **arrived == now) {
                let unit = Unit { age, costs: [1].into(), size: 1, arrived: now, content: () };
                let id = order.find(None);
                let is_late = |dropping: &mut Dropping| {
                    id.is_some_and(|id| dropping.is_late(now, id, order.limits(Some(id)), &[1]))
                };
                if !dropping.as_mut().is_some_and(is_late) {
                    order.add(now, None, unit).unwrap();
                }
            }
            loop {
                match order.next(now) {
                    Next::Go(key, unit, charged) => {
                        if let Some(dropping) = &mut dropping {
                            dropping.has_left(key);
                        }
                        left.push((unit.age, charged.at));
                    }
                    Next::Drop(key, _) => drop(dropping.as_mut().map(|dropping| dropping.forget(key))),
                    _ => break,
                }
            }
        }
        assert!(dropping.is_none_or(|dropping| dropping.tails.is_empty()), "nothing is kept of keys that do not wait");
        left
    }

    proptest! {
        #[test]
        fn what_is_known_to_be_late_is_what_would_have_been_dropped_at_its_deadline(
            gaps in prop::collection::vec(0_u64..12, 1..30),
            limit in prop::sample::select(vec!["1M/ms,burst=1", "150k/ms,burst=2", "70k/ms,burst=3,initial=0"]),
            max_wait in 0_u64..30,
        ) {
            let policy = Policy::new(&[limit.parse().unwrap()], None).unwrap();
            let arrivals: Vec<Nanos> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let at_deadline = leave(&policy, &arrivals, max_wait, None);
            let at_once = leave(&policy, &arrivals, max_wait, Some(Dropping::new(max_wait, true)));
            prop_assert_eq!(at_deadline, at_once);
        }
    }
}
