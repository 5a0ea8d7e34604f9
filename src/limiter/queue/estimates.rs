//! Estimates for a new request, if no waiter leaves: how many units are available, and when there will be more.

use super::state::{Effects, Queue, Turn};
use crate::clock::Nanos;
use crate::limits::{Grant, Limits};

impl Queue {
    /// Units that a new request could take now if there were no waiters.
    pub(crate) fn level(&mut self, now: Nanos, effects: &mut Effects) -> u64 {
        self.advance(now, effects);
        if self.is_paused() { 0 } else { self.limits.available(self.now) }
    }

    /// Units that a new request could take now; 0 while others wait.
    pub(crate) fn available(&mut self, now: Nanos, effects: &mut Effects) -> u64 {
        let level = self.level(now, effects);
        if self.waiters() > 0 { 0 } else { level }
    }

    /// When a new request for `cost` would be granted, if no waiter leaves.
    pub(crate) fn estimate(&self, cost: u64) -> Option<Nanos> {
        if cost > self.largest_cost {
            return None;
        }
        let asked = self.asks_at();
        let conforms = |limits: &Limits| limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        let Some(head) = self.list.front().and_then(|key| self.list.get(key)) else { return conforms(&self.limits) };
        if self.overtakes() && conforms(&self.limits).is_some_and(|at| at <= self.now) {
            return Some(self.now);
        }
        // With a single bucket, the costs in the queue take as long as one cost of their sum.
        if self.promises == 0 && self.limits.pays_steadily() {
            return self.limits.schedule(head.asked.max(self.floor), self.queued.saturating_add(cost));
        }
        conforms(&self.after_queue(0)?)
    }

    /// The time of a new reservation for `cost`: all before it are served first.
    pub(super) fn promise(&self, asked: Nanos, cost: u64) -> Option<Nanos> {
        if self.list.is_empty() {
            return self.limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        }
        // If waiters before a reservation leave, it is granted later than its earliest possible time. Then the fraction
        // of a nanosecond that a bucket keeps otherwise is lost to those behind it.
        self.after_queue(1)?.conforms_at(asked, cost).ok().map(|(at, _)| at)
    }

    /// The limits after all in the queue have been served, if no waiter leaves and reservations are granted `late`
    /// nanoseconds after their times.
    pub(super) fn after_queue(&self, late: Nanos) -> Option<Limits> {
        let mut limits = self.limits.clone();
        let mut floor = self.floor;
        for entry in self.list.iter() {
            if let Turn::Late(grant) = entry.turn {
                let at = limits.room_at(self.now, entry.cost)?;
                limits.hand_over(&grant, entry.cost, at);
                continue;
            }
            let (at, _) = limits.conforms_at(entry.asked.max(floor), entry.cost).ok()?;
            let at = if let Turn::Promised(promised) = entry.turn { at.max(promised).saturating_add(late) } else { at };
            let _: Grant = limits.release_at(self.now, entry.asked.max(floor), at, entry.cost);
            floor = 0;
        }
        Some(limits)
    }
}
