//! Changes at run time: rates, bursts, pauses, settling, and places.

use super::state::{Places, Queue};
use crate::clock::Nanos;
use crate::limiter::serve::{Effects, Serve};
use crate::limits::{Cost, Limits};
use crate::rate::Rate;
use std::num::NonZeroU64;
use std::sync::Arc;

impl Queue {
    /// Settles a cost that was granted as `granted` and turned out as `used`. Units used beyond the grant become a
    /// debt, which is paid before the next grant. Units not used are given back, up to the burst.
    pub(crate) fn reconcile(&mut self, now: Nanos, [used, granted]: [&Cost; 2], effects: &mut Effects) {
        let at = self.catch_up(now, effects);
        self.account.pay(at, &used.beyond(granted));
        self.account.credit(at, &granted.beyond(used));
        self.serve(effects);
    }

    /// Grants nothing before `until`. The buckets are empty then. Waiters keep their places.
    pub(crate) fn pause_until(&mut self, now: Nanos, until: Nanos, effects: &mut Effects) {
        self.catch_up(now, effects);
        if until > self.now {
            self.empties_at = self.empties_at.max(Some(until));
            self.stop_until(until, effects);
        }
    }

    /// Grants nothing before `until`. The buckets go on filling. Waiters keep their places.
    pub(crate) fn hold_until(&mut self, now: Nanos, until: Nanos, effects: &mut Effects) {
        self.catch_up(now, effects);
        if until > self.now {
            self.stop_until(until, effects);
        }
    }

    fn stop_until(&mut self, until: Nanos, effects: &mut Effects) {
        self.lag = 0;
        self.pause = self.pause.max(until);
        self.serve(effects);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pause > self.now
    }

    /// At the end of a pause the buckets are empty. Reservations for times before that are charged first.
    pub(super) fn end_pause(&mut self) {
        if let Some(until) = self.empties_at.take_if(|until| *until <= self.now) {
            self.serve_promises(until, until);
            self.account.empty(until);
        }
    }

    /// The cost for which the head of the queue gathers units; 0 if the queue is empty.
    fn waiting(&self) -> Cost {
        self.head().map_or(Cost::One(0), |(_, head)| head.cost.clone())
    }

    /// `None` if no rate can be changed.
    pub(crate) fn set_rate(&mut self, now: Nanos, rate: Rate, effects: &mut Effects) -> Option<()> {
        let (place, at) = (self.rules.place?, self.catch_up(now, effects));
        let start = at.max(self.account.latest()).max(self.pause);
        self.account.replace(at, self.account.limits().with_rate(place, rate, start));
        self.limits_changed(effects);
        Some(())
    }

    /// `None` if no burst can be changed.
    pub(crate) fn set_burst(&mut self, now: Nanos, burst: NonZeroU64, effects: &mut Effects) -> Option<()> {
        let (place, at) = (self.rules.place?, self.catch_up(now, effects));
        self.replace(at, self.account.limits().with_burst(place, burst), effects);
        Some(())
    }

    /// Replaces the limits by the limits that `make` returns for the time on the schedule. `place` is the index of the
    /// limit whose rate can be changed.
    pub(crate) fn set_limits<L: Into<Arc<Limits>>, E>(
        &mut self,
        now: Nanos,
        make: impl FnOnce(Nanos) -> Result<L, E>,
        place: Option<usize>,
        effects: &mut Effects,
    ) -> Result<(), E> {
        let at = self.catch_up(now, effects);
        let limits = make(at)?;
        self.rules.place = place;
        self.replace(at, limits, effects);
        Ok(())
    }

    fn replace(&mut self, at: Nanos, limits: impl Into<Arc<Limits>>, effects: &mut Effects) {
        let waiting = self.waiting();
        self.account.replace(at, limits);
        self.account.spill(at, &waiting);
        self.limits_changed(effects);
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
        self.catch_up(now, effects);
        if let Some(places) = &mut self.places {
            places.capacity = capacity;
        }
        self.serve(effects);
    }
}
