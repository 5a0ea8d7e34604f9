//! What changes a queue at run time, apart from waiters: rates, bursts, pauses, settling, and places.

use super::{Effects, Places, Queue};
use crate::clock::Nanos;
use crate::rate::Rate;
use std::num::NonZeroU64;

impl Queue {
    /// Settles what was granted as `granted` and came out as `used`. What was used beyond that is paid before anything is
    /// granted; what was not used is given back, as far as there is room.
    pub(crate) fn reconcile(&mut self, now: Nanos, used: u64, granted: u64, effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.pay(at, used.saturating_sub(granted));
        if !self.is_paused() {
            self.limits.credit(at, granted.saturating_sub(used));
        }
        self.serve(effects);
    }

    /// Nothing is granted before `until`, and nothing is saved up by then. Waiters keep their places.
    pub(crate) fn pause_until(&mut self, now: Nanos, until: Nanos, effects: &mut Effects) {
        self.settle(now, effects);
        if until > self.now {
            self.lag = 0;
            self.floor = self.floor.max(until);
            self.limits.empty(until);
            self.serve(effects);
        }
    }

    /// Only a pause moves the floor ahead of the clock.
    pub(in crate::limiter) fn is_paused(&self) -> bool {
        self.floor > self.now
    }

    pub(crate) fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate, effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.set_rate(at, place, rate);
        self.limits_changed(effects);
    }

    pub(crate) fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64, effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.set_burst(at, place, burst);
        self.limits_changed(effects);
    }

    /// All in the queue are served; every later request is refused.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn places(&self) -> Option<Places> {
        self.places
    }

    /// A holder has left its places.
    pub(crate) fn release(&mut self, now: Nanos, held: u64, effects: &mut Effects) {
        self.see(now);
        self.free_places(held);
        self.advance(now, effects);
    }

    /// A holder has left and takes its places with it.
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
