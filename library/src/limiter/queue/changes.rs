//! Changes at run time: rates, bursts, pauses, settling, and places.

use super::state::{Effects, Places, Queue};
use crate::clock::Nanos;
use crate::limits::{Cost, Grant, Limits};
use crate::rate::Rate;
use std::num::NonZeroU64;

impl Queue {
    /// Settles a cost that was granted as `granted` and turned out as `used`. Units used beyond the grant become a
    /// debt, which is paid before the next grant. Units not used are given back, up to the burst.
    pub(crate) fn reconcile(&mut self, now: Nanos, [used, granted]: [&Cost; 2], effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.pay(at, &used.beyond(granted));
        if !self.is_paused() {
            self.limits.credit(at, &granted.beyond(used));
        }
        self.serve(effects);
    }

    /// Settles an open grant, see [`Limits::settle`](crate::limits::Limits).
    pub(crate) fn settle_grant(&mut self, now: Nanos, grant: &Grant, costs: [&Cost; 2], effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.settle(at, grant, costs);
        self.serve(effects);
    }

    /// Undoes the charge of an open grant, and charges `cost` again, like a request that was made `late` nanoseconds
    /// ago and is ahead of the whole queue. If the limits no longer hold the units, nothing is charged.
    ///
    /// For a cost above the burst a full bucket is enough, because no bucket holds more now.
    pub(crate) fn charge_again(
        &mut self,
        now: Nanos,
        late: Nanos,
        grant: &Grant,
        cost: &Cost,
        effects: &mut Effects,
    ) -> Option<Grant> {
        let at = self.settle(now, effects);
        self.limits.settle(at, grant, [cost, &Cost::One(0)]);
        let earliest = self.now.saturating_sub(late.min(self.allowance));
        let asked = at.min(earliest).max(self.floor);
        let again = self.holds_at(asked, cost).map(|at| {
            let grant = self.limits.charge(asked, [at, at.max(self.now)], cost);
            self.limits.open(&grant, cost);
            grant
        });
        self.serve(effects);
        again
    }

    /// The time at which the limits hold `cost`, or a full bucket if `cost` is above the burst. `None` if that time is
    /// in the future, if a window has no room, or if the queue has reservations: their times depend on the units that
    /// are there.
    fn holds_at(&self, asked: Nanos, cost: &Cost) -> Option<Nanos> {
        let at_once = match cost {
            Cost::One(units) => Cost::One((*units).min(self.limits.most(0).0)),
            several @ Cost::Several(_) => several.clone(),
        };
        let (at, _) = self.limits.conforms_at(asked, &at_once).ok()?;
        let has_room = self.limits.room_at(self.now, cost).is_some_and(|room| room <= self.now);
        (at <= self.now && has_room && self.promises == 0).then_some(at)
    }

    /// Grants nothing before `until`. The buckets are empty then. Waiters keep their places.
    pub(crate) fn pause_until(&mut self, now: Nanos, until: Nanos, effects: &mut Effects) {
        self.settle(now, effects);
        if until > self.now {
            self.limits.pause(self.now, until);
            self.stop_until(until, effects);
        }
    }

    /// Grants nothing before `until`. The buckets go on filling. Waiters keep their places.
    pub(crate) fn hold_until(&mut self, now: Nanos, until: Nanos, effects: &mut Effects) {
        self.settle(now, effects);
        if until > self.now {
            self.stop_until(until, effects);
        }
    }

    fn stop_until(&mut self, until: Nanos, effects: &mut Effects) {
        self.lag = 0;
        self.floor = self.floor.max(until);
        self.pause = self.pause.max(until);
        self.serve(effects);
    }

    /// Only a pause sets the floor to a time in the future.
    pub(crate) fn is_paused(&self) -> bool {
        self.floor > self.now
    }

    /// The cost for which the head of the queue gathers units; 0 if the queue is empty.
    fn waiting(&self) -> Cost {
        self.head().map_or(Cost::One(0), |(_, head)| head.cost.clone())
    }

    /// `None` if no rate can be changed.
    pub(crate) fn set_rate(&mut self, now: Nanos, rate: Rate, effects: &mut Effects) -> Option<()> {
        let (place, at) = (self.rules.place?, self.settle(now, effects));
        self.limits.pay_debts(self.now);
        self.limits.set_rate(at, place, rate);
        self.limits_changed(effects);
        Some(())
    }

    /// `None` if no burst can be changed.
    pub(crate) fn set_burst(&mut self, now: Nanos, burst: NonZeroU64, effects: &mut Effects) -> Option<()> {
        let (place, at) = (self.rules.place?, self.settle(now, effects));
        self.limits.pay_debts(self.now);
        self.limits.set_burst_for(at, place, burst, &self.waiting());
        self.limits_changed(effects);
        Some(())
    }

    /// Replaces the limits by the limits that `make` returns for the time on the schedule. `place` is the index of the
    /// limit whose rate can be changed.
    pub(crate) fn set_limits<E>(
        &mut self,
        now: Nanos,
        make: impl FnOnce(Nanos) -> Result<Limits, E>,
        place: Option<usize>,
        effects: &mut Effects,
    ) -> Result<(), E> {
        let at = self.settle(now, effects);
        self.limits.pay_debts(self.now);
        self.limits.replace(at, make(at)?, &self.waiting());
        self.rules.place = place;
        self.limits_changed(effects);
        Ok(())
    }

    /// Refuses every later request. All entries of the queue are still served.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn places(&self) -> Option<Places> {
        self.places
    }

    /// Sets the number of free places to the number that the fast path has left.
    pub(crate) fn set_free_places(&mut self, free: u64) {
        if let Some(places) = &mut self.places {
            places.held = places.capacity.saturating_sub(free);
        }
    }

    /// A permit was dropped: its places are free.
    pub(crate) fn release(&mut self, now: Nanos, held: u64, effects: &mut Effects) {
        self.see(now);
        self.free_places(held);
        self.advance(now, effects);
    }

    /// A permit was forgotten: the capacity is lower by its places.
    pub(crate) fn forget_places(&mut self, held: u64) {
        if let Some(places) = &mut self.places {
            places.capacity = places.capacity.saturating_sub(held);
            places.held = places.held.saturating_sub(held);
        }
    }

    pub(crate) fn set_places(&mut self, now: Nanos, capacity: u64, effects: &mut Effects) {
        self.settle(now, effects);
        if let Some(places) = &mut self.places {
            places.capacity = capacity;
        }
        self.serve(effects);
    }
}
