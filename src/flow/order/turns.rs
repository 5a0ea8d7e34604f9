//! The units that wait, and how the first unit of each key gets its place.

use super::heads::{Head, Heads, Tag};
use super::in_use::{Busy, InUse};
use super::keyed::KeyId;
use super::unit::Unit;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Each, Thin};

/// Units that wait, by key, and the limits that they wait for.
///
/// A [`KeyId`] is valid while units of its key wait or run. After that, until the next call that may add a key:
/// [`add`](Self::add), [`pass`](Self::pass) or [`next`](Self::next).
#[derive(Debug)]
pub struct Order<T> {
    pub(super) keys: InUse<T>,
    pub(super) all: Each,
    pub(super) thin: Thin,
    /// The limits of all, for the lengths of units.
    pub(super) lengths: Each,
    pub(super) has_windows: bool,
    /// How far a grant may lie in the past when its unit leaves.
    pub(super) allowance: Nanos,
    pub(super) jobs: Option<u32>,
    /// Clock readings before this one arrived out of order.
    pub(super) now: Nanos,
    pub(super) heads: Heads,
    /// How many units have left that had waited.
    pub(super) gone: u64,
    /// How many of these have no answer of the shared bucket that keeps the limits, if one does.
    pub(super) away: usize,
    pub(super) is_shared: bool,
    /// The latest of these, its age, and the tags before it left.
    pub(super) latest: Option<(KeyId, u64, [Tag; 2])>,
}

/// What the calls have in common.
impl<T> Order<T> {
    /// Clamps clock readings that arrive out of order.
    pub(super) fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        if self.keys.len_later() > 0 {
            self.arrive_by(self.now, |_| true);
        }
        self.now
    }

    /// The units of these keys arrive whose time is not after this one.
    pub(super) fn arrive_by(&mut self, time: Nanos, is_one: impl Fn(KeyId) -> bool) {
        for (key, unit, others) in self.keys.take_due(time, is_one) {
            self.arrive(key, unit, others);
        }
    }

    /// A unit waits from now on, behind the older ones of its key, or behind so many others. Then it is as old as the one
    /// before it.
    pub(super) fn arrive(&mut self, key: KeyId, mut unit: Unit<T>, others: usize) {
        let units = &self.keys.busy(key).units;
        let before = others.min(units.len()).checked_sub(1).and_then(|last| units.get(last));
        unit.age = before.map_or(0, |before| before.age).max(unit.age);
        if units.front().is_some_and(|first| first.age <= unit.age) {
            self.keys.push(key, unit);
        } else {
            self.change(key, |order| order.keys.push(key, unit));
        }
    }

    /// The earliest time at which a unit may leave. Nothing is granted before that any more, nor before now.
    pub(super) fn earliest(&mut self) -> Option<Nanos> {
        self.rest();
        self.release_idle();
        while let Some(key) = self.keys.admit(self.now) {
            let now = self.now;
            self.change(key, |order| {
                let busy = order.keys.busy(key);
                (busy.is_outside, busy.since) = (false, now);
            });
        }
        self.close(self.heads.ready_at().min(self.now));
        loop {
            let earliest = self.heads.earliest(|key| {
                let unit = self.keys.get(key)?.units.front()?;
                self.all.has_room_at(&self.thin, unit.arrived, &unit.costs)
            });
            if !self.close(earliest.map_or(self.now, |time| time.min(self.now))) {
                return earliest;
            }
        }
    }

    /// Nothing is granted before this time any more. Returns whether that makes units ready.
    pub(super) fn close(&mut self, time: Nanos) -> bool {
        self.heads.close(time);
        let mut is_any = false;
        while let Some(head) = self.heads.pop_due() {
            self.keys.busy(head.key).head = Some(head);
            is_any = true;
        }
        is_any
    }

    /// The key, if a unit that arrives now would be its first, and no unit that waits should leave before.
    pub(super) fn find_free(&mut self, name: &[u8], now: Nanos) -> Option<KeyId> {
        if self.heads.waits_at(now) {
            return None;
        }
        if let Some(key) = self.keys.table.find(name) {
            let is_free = |busy: &Busy<T>| busy.is_free(now, self.jobs);
            return self.keys.get(key).is_none_or(is_free).then_some(key);
        }
        self.release_idle();
        self.keys.has_room(now).then(|| self.keys.table.add(name, now))
    }

    /// Takes a unit out of its queue, and applies `act` to it before the next unit of its key is considered.
    pub(super) fn take_out(&mut self, key: KeyId, age: u64, act: impl FnOnce(&mut Self, &Unit<T>)) -> Option<Unit<T>> {
        self.change(key, |order| {
            let unit = order.keys.take(key, age)?;
            act(order, &unit);
            Some(unit)
        })
    }

    /// Corrects the limits of a key, and those of all, for a unit that has left.
    pub(super) fn revise(&mut self, key: KeyId, act: impl Fn(&Each, &mut Thin)) {
        act(&self.all, &mut self.thin);
        let (each, thin) = self.keys.table.state_mut(key);
        act(each, thin);
        self.change(key, |_| ());
        self.keys.table.note(key);
    }

    /// Applies `act` to a key, which may change what its first unit is and when it conforms.
    pub(super) fn change<R>(&mut self, key: KeyId, act: impl FnOnce(&mut Self) -> R) -> R {
        self.leave(key);
        let result = act(self);
        self.enter(key);
        self.keys.release(key, self.now, self.heads.time());
        result
    }

    /// Takes the first unit of a key out of those that wait for a time.
    fn leave(&mut self, key: KeyId) {
        let Some(head) = self.keys.busy.get_mut(&key).and_then(|busy| busy.head.take()) else { return };
        if !self.keys.outside.remove(&(head.age, key)) {
            self.heads.remove(head);
        }
    }

    /// The first unit of a key waits for its limits, or for room.
    fn enter(&mut self, key: KeyId) {
        let Some(busy) = self.keys.busy.get_mut(&key) else { return };
        let Some(unit) = busy.units.front() else { return };
        if self.jobs.is_some_and(|jobs| busy.running >= jobs) {
            return;
        }
        let (each, thin) = self.keys.table.state(key);
        let own = each.has_room_at(thin, unit.arrived, &unit.costs).unwrap_or(Nanos::MAX);
        let head = Head { at: own.max(busy.since), tag: busy.finish, age: unit.age, key };
        if busy.is_outside {
            self.keys.outside.insert((head.age, key));
            busy.head = Some(head);
        } else {
            busy.head = Some(self.heads.add(head));
        }
    }

    pub(super) fn rest(&mut self) {
        if self.away > 0 {
            return;
        }
        let came = |key| self.keys.get(key).and_then(|busy| busy.units.front()).map_or(0, |unit| unit.arrived);
        self.heads.rest(came);
    }

    pub(super) fn release_idle(&mut self) {
        self.heads.pass_time(self.keys.least_time());
        self.keys.release_idle(self.now, self.heads.time());
    }
}
