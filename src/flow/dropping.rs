//! Drops units that would wait longer than the longest wait, and counts them for each key.

use std::collections::{BTreeMap, HashMap};
use throttle_limits::clock::{Nanos, SECOND};
use throttle_limits::limits::{Levels, Limits};
use throttle_limits::line::{KeyId, NO_KEY};

/// The most keys whose dropped units are counted.
const MAX_COUNTED_KEYS: usize = 10_000;

/// The time between two reports of dropped units.
const REPORT_INTERVAL: Nanos = 10 * SECOND;

/// Units that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Their number.
    pub units: u64,
    /// The number of dropped units for each key, for at most 10 000 keys. Empty if units have no keys.
    pub keys: BTreeMap<Box<[u8]>, u64>,
}

impl Dropped {
    pub(super) fn count(&mut self, key: Option<&[u8]>) {
        self.units += 1;
        let Some(key) = key else { return };
        if let Some(units) = self.keys.get_mut(key) {
            *units += 1;
        } else if self.keys.len() < MAX_COUNTED_KEYS {
            self.keys.insert(key.into(), 1);
        }
    }
}

/// Drops units that would wait longer than allowed.
#[derive(Debug)]
pub(super) struct Dropping {
    max_wait: Nanos,
    is_keyed: bool,
    /// One for each key with waiting units.
    tails: HashMap<KeyId, Tail>,
    /// The units dropped since the latest report, and the time of that report.
    unreported: Dropped,
    reported_at: Option<Nanos>,
}

/// The state of the limits after `units` waiting units have left, each at its earliest time.
#[derive(Debug)]
struct Tail {
    levels: Levels,
    units: usize,
}

impl Dropping {
    pub(super) fn new(max_wait: Nanos, is_keyed: bool) -> Self {
        Dropping { max_wait, is_keyed, tails: HashMap::new(), unreported: Dropped::default(), reported_at: None }
    }

    pub(super) fn unreported(&self) -> &Dropped {
        &self.unreported
    }

    /// Counts a dropped unit of this key. Returns the key that it is counted for, if units have keys.
    pub(super) fn count<'k>(&mut self, key: Option<&'k [u8]>) -> Option<&'k [u8]> {
        let key = self.is_keyed.then_some(key.unwrap_or(NO_KEY));
        self.unreported.count(key);
        key
    }

    /// Returns a report that is due now, and begins the next one.
    pub(super) fn news(&mut self, now: Nanos) -> Option<Dropped> {
        let is_due = self.reported_at.is_none_or(|reported_at| now >= reported_at.saturating_add(REPORT_INTERVAL));
        (self.unreported.units > 0 && is_due).then(|| {
            self.reported_at = Some(now);
            std::mem::take(&mut self.unreported)
        })
    }

    /// Whether a unit with these costs, which arrives now behind the other units of its key, would certainly wait too
    /// long. If not, adds the unit to the tail of its key. `limits` are the limits of this key alone, with their state.
    pub(super) fn is_late(
        &mut self,
        now: Nanos,
        key: KeyId,
        (each, levels): (&Limits, &Levels),
        costs: &[u64],
    ) -> bool {
        let last = self.tails.get(&key).map_or(levels, |tail| &tail.levels);
        let leaves = each.conforms_at(last, now, costs).map_or(Nanos::MAX, |(time, _)| time);
        if leaves > now.saturating_add(self.max_wait) {
            return true;
        }
        let tail = self.tails.entry(key).or_insert_with(|| Tail { levels: levels.clone(), units: 0 });
        each.charge(&mut tail.levels, [leaves, now, leaves, leaves], costs);
        tail.units += 1;
        false
    }

    /// Records that a waiting unit of this key has left.
    pub(super) fn has_left(&mut self, key: KeyId) {
        if let Some(tail) = self.tails.get_mut(&key) {
            tail.units = tail.units.saturating_sub(1);
            if tail.units == 0 {
                self.tails.remove(&key);
            }
        }
    }

    /// Forgets the tail of a key: a waiting unit was dropped, so the units behind it may leave earlier.
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

    /// Returns the units that leave, and when, if units arrive at these times. Units that `dropping` finds late are not
    /// added.
    fn leave(
        policy: &Policy,
        arrivals: &[Nanos],
        max_wait: Nanos,
        mut dropping: Option<Dropping>,
    ) -> Vec<(u64, Nanos)> {
        let rules = Rules { each: &[(policy, 0)], max_wait: Some(max_wait), ..Rules::default() };
        let (mut order, mut departures) = (Line::new(&rules, 0), Vec::new());
        let end = arrivals.last().unwrap_or(&0) + max_wait;
        for now in 0..=end {
            for (age, _) in (0..).zip(arrivals).filter(|(_, arrived)| **arrived == now) {
                let unit = Unit { age, costs: [1].into(), size: 1, arrived: now, settles: false, content: () };
                let id = order.find(None);
                let is_late = |dropping: &mut Dropping| {
                    id.is_some_and(|id| dropping.is_late(now, id, order.limits(Some(id)), &[1]))
                };
                if !dropping.as_mut().is_some_and(is_late) {
                    order.add(now, None, unit).unwrap();
                }
            }
            loop {
                match order.poll(now, u64::MAX) {
                    Next::Go(key, unit, charged) => {
                        if let Some(dropping) = &mut dropping {
                            dropping.has_left(key);
                        }
                        departures.push((unit.age, charged.at));
                    }
                    Next::Refused(key, ..) => drop(dropping.as_mut().map(|dropping| dropping.forget(key))),
                    _ => break,
                }
            }
        }
        assert!(
            dropping.is_none_or(|dropping| dropping.tails.is_empty()),
            "no tail is kept for a key without waiting units"
        );
        departures
    }

    proptest! {
        #[test]
        fn late_units_are_those_that_a_deadline_would_drop(
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
