//! Settling: the real cost of a grant becomes known later, and the limits are then as if the grant had cost its real
//! cost from the start. Grants in between keep their times.
//!
//! A grant that may be settled is *open*. Only open grants are stored, not the grants between them. After a grant,
//! every event in a bucket lowers or raises its level, and cuts off the amount above a full bucket. If the grant had
//! cost less or more, the level would differ by a credit or a debt. All later events together act on this difference
//! like one cut, which two numbers describe: the least room of the bucket, and the amount that was cut off. So each
//! open grant has one such [`Gap`] for the time until the next open grant.
//!
//! After a gap, a credit is left up to the room; the rest would have overflowed. A debt is reduced by the amount that
//! was cut off, because that amount would have paid it. A window needs no gap: its entry is corrected.
//!
//! In a few cases there is no exact answer. Then the limits have less than after a complete recalculation, never more:
//! - A grant was charged before its limits conformed, which can happen to a reservation after the rate was lowered. It
//!   left its bucket empty instead of in debt. Credits of earlier grants end there.
//! - The rate was changed: rooms are rounded down to a credit, which is less than a nanosecond's worth.
//! - Something was credited while the bucket held more than a full bucket does, for a waiter or as the rest of a
//!   refill.
//! - A window above 1024 units counts some units longer than needed, and goes on to do so.

use super::bucket::{self, Gap};
use super::state::{Level, State};
use super::terms::Terms;
use crate::clock::{Nanos, shrink};
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most open grants of one set of limits. Beyond this number, the oldest open grant is forgotten. It is then
/// settled like an unused grant: see [`settle_forgotten`].
const MAX_OPEN: usize = 16_384;

/// The open grants of one set of limits, and the effects of later events. The caller passes in the terms and states,
/// always the same ones in the same order. With no open grant, each charge costs one comparison.
///
/// Every change of the limits must be reported: by [`happened`](Self::happened) for each limit after the change, or by
/// [`rate_changed`](Self::rate_changed) before a change of the rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct Settling {
    /// The open grants in the order of their times. Their numbers increase.
    open: VecDeque<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Open {
    number: u64,
    /// One part for each limit.
    parts: Box<[Part]>,
}

/// An open grant in one limit. The fields in credits are used only for buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Part {
    /// The charge, in units.
    charged: u64,
    /// A window counts the grant from this time.
    counted: Nanos,
    /// The level just before the charge. A limit that charged nothing is not brought up to the time of the grant,
    /// because a waiter may gather more than a full bucket. So this level may exceed a full bucket.
    gathered: i128,
    /// The level of a full bucket at the time of the grant. It is `i128::MAX` if this limit was charged nothing and was
    /// up to date.
    full: i128,
    /// The effects from the grant to the next open grant, or until now.
    since: Gap,
}

impl Gap {
    /// Returns the difference at the end of the gap for a difference at its start: a credit, or a debt if it is
    /// negative. Changes the gap as if the difference had existed.
    fn pass(&mut self, difference: i128) -> i128 {
        let passed =
            if difference < 0 { difference.saturating_add(self.lost).min(0) } else { difference.min(self.room) };
        self.lost = self.lost.saturating_add(difference.saturating_sub(passed));
        self.room = self.room.saturating_sub(passed);
        passed
    }
}

impl Settling {
    /// Whether no grant is open. Then nothing needs to be reported.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens the latest grant, which was just charged at `at`, a time when its limits conformed. Numbers must increase.
    /// Windows count it from `counted`; `cost` returns the charge of each limit, in units.
    pub(crate) fn open(
        &mut self,
        number: u64,
        [at, counted]: [Nanos; 2],
        limits: (&[Terms], &[State]),
        cost: impl Fn(usize) -> u64,
    ) {
        let part = |(place, (terms, state)): (usize, (&Terms, &State))| {
            let charged = cost(place);
            let Terms::Bucket(bucket) = terms else {
                return Part { charged, counted, gathered: 0, full: 0, since: Gap::NONE };
            };
            let Level { amount, at: time } = state.level;
            let is_behind = charged == 0 && time < at;
            let gathered = if is_behind { bucket.gained(time, at) } else { bucket.price(charged) };
            let full = if charged == 0 && !is_behind { i128::MAX } else { bucket.full() };
            Part { charged, counted, gathered: amount.saturating_add(gathered), full, since: Gap::NONE }
        };
        let parts = limits.0.iter().zip(limits.1).enumerate().map(part).collect();
        if self.open.len() == MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(Open { number, parts });
    }

    /// Forgets the oldest grants beyond this many.
    pub(crate) fn keep(&mut self, most: usize) {
        while self.open.len() > most {
            self.forget(self.open[0].number);
        }
    }

    /// Records the effect of a charge or change of the limit at `place`.
    #[inline]
    pub(crate) fn happened(&mut self, place: usize, gap: Gap) {
        if let Some(newest) = self.open.back_mut() {
            let since = &mut newest.parts[place].since;
            *since = since.then(gap);
        }
    }

    /// Prepares for another rate of the bucket at `place`, after it was brought up to now.
    pub(crate) fn rate_changed(&mut self, place: usize, from: &bucket::Terms, to: &bucket::Terms) {
        if from.price(1) == to.price(1) {
            return;
        }
        let scaled = |amount| from.scaled(amount, to);
        for part in self.open.iter_mut().filter_map(|open| open.parts.get_mut(place)) {
            let since = Gap { room: scaled(part.since.room), lost: scaled(part.since.lost) };
            let gathered = scaled(part.gathered).saturating_add(1);
            *part = Part { gathered, full: scaled(part.full), since, ..*part };
        }
    }

    /// The window at `place` counts the grant with this number from `counted` on.
    pub(crate) fn counted_from(&mut self, number: u64, place: usize, counted: Nanos) {
        if let Some(index) = self.find(number) {
            self.open[index].parts[place].counted = counted;
        }
    }

    /// Closes the grant with this number: its charge was its real cost, or it was given back.
    pub(crate) fn forget(&mut self, number: u64) {
        let Some(removed) = self.find(number).and_then(|place| Some((place, self.open.remove(place)?))) else { return };
        let (place, removed) = removed;
        if let Some(before) = place.checked_sub(1).and_then(|before| self.open.get_mut(before)) {
            for (part, removed) in before.parts.iter_mut().zip(&removed.parts) {
                part.since = part.since.then(removed.since);
            }
        }
        shrink(&mut self.open);
    }

    /// Settles and closes the grant with this number: the limits are as if it had cost `real` in each of them, in
    /// units. Returns `false` if it is not open: then see [`settle_forgotten`].
    pub(crate) fn settle(
        &mut self,
        now: Nanos,
        number: u64,
        limits: (&[Terms], &mut [State]),
        real: impl Fn(usize) -> u64,
    ) -> bool {
        let Some(index) = self.find(number) else { return false };
        for (place, (terms, state)) in limits.0.iter().zip(limits.1).enumerate() {
            let (part, real) = (&self.open[index].parts[place], real(place));
            if real == part.charged {
                continue;
            }
            match terms {
                Terms::Bucket(bucket) => {
                    let own = self.own_difference(index, place, bucket, real);
                    let passed = self.pass(index, place, own);
                    state.level.amount = state.level.amount.saturating_add(passed);
                }
                Terms::Window(window) => window.correct(state, now, part.counted, [part.charged, real]),
            }
        }
        self.forget(number);
        true
    }

    /// The rise of the level just after the grant, if the grant had cost `real`. This is less than the difference in
    /// cost if the bucket had gathered more than a full bucket for the charged cost. With a lower cost, or for a unit
    /// of cost 0, that excess would have been cut off.
    fn own_difference(&mut self, index: usize, place: usize, bucket: &bucket::Terms, real: u64) -> i128 {
        let part = &self.open[index].parts[place];
        let difference = bucket.price(part.charged).saturating_sub(bucket.price(real));
        if difference < 0 && part.charged > 0 {
            return difference;
        }
        let most = if part.charged > 0 { part.full.max(bucket.price(real)) } else { part.full };
        let room = most.saturating_sub(part.gathered);
        if let Some(before) = index.checked_sub(1) {
            let since = &mut self.open[before].parts[place].since;
            *since = since.then(Gap { room, lost: room.saturating_neg() });
        }
        difference.saturating_add(room.min(0))
    }

    /// Takes a difference in the level just after a grant, and returns the part of it that remains now.
    fn pass(&mut self, index: usize, place: usize, mut difference: i128) -> i128 {
        for (further, open) in self.open.range_mut(index..).enumerate() {
            let Some(part) = open.parts.get_mut(place).filter(|_| difference != 0) else { break };
            if further > 0 {
                part.gathered = part.gathered.saturating_add(difference);
            }
            difference = part.since.pass(difference);
        }
        difference
    }

    /// Whether these can be the open grants of `limits` limits.
    #[cfg(feature = "shared")]
    pub(super) fn has_sense(&self, limits: usize) -> bool {
        let are_whole = self.open.iter().all(|open| open.parts.len() == limits);
        are_whole && self.open.len() <= MAX_OPEN
    }

    /// Whether the grant with this number is open.
    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.find(number).is_some()
    }

    /// Finds an open grant. Numbers increase, except where a bucket of many keys has granted something ahead of time.
    fn find(&self, number: u64) -> Option<usize> {
        let in_order = self.open.binary_search_by_key(&number, |open| open.number).ok();
        in_order.or_else(|| self.open.iter().position(|open| open.number == number))
    }
}

/// Settles a grant that is not open, in one limit. `times` are the time of the grant, and the time from which windows
/// count it. `costs` are its charge and its real cost. If the real cost is lower, the difference is credited, less the
/// gain since the grant, and only if no later grant is in the future. If it is higher, the difference is owed.
pub(crate) fn settle_forgotten(
    terms: &Terms,
    state: &mut State,
    now: Nanos,
    times: [Nanos; 2],
    costs: [u64; 2],
) -> Gap {
    match terms {
        Terms::Bucket(bucket) if costs[1] > costs[0] => bucket.pay(&mut state.level, now, costs[1] - costs[0]),
        Terms::Bucket(bucket) if now >= state.level.at && now >= times[0] => {
            let [charged, real] = costs.map(|cost| cost.min(terms.most()));
            bucket.give_back(&mut state.level, now, times[0], charged - real)
        }
        Terms::Bucket(_) => Gap::NONE,
        Terms::Window(window) => {
            window.correct(state, now.max(state.level.at), times[1], costs);
            Gap::NONE
        }
    }
}

#[cfg(test)]
mod tests;
