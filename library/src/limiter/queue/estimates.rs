//! Estimates for a new request, if no waiter leaves: how many units are available, and when there will be more.

use super::state::{Effects, Queue, Turn};
use crate::clock::Nanos;
use crate::limits::{Cost, Limits};

impl Queue {
    /// Units of a kind that a new request could take now if there were no waiters; 0 if a reservation is the next.
    pub(crate) fn level(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> u64 {
        self.advance(now, effects);
        let is_promised = self.head().is_some_and(|(_, head)| matches!(head.turn, Turn::Promised(_)));
        if self.is_paused() || is_promised { 0 } else { self.limits.available_of(self.now, kind) }
    }

    /// Units of a kind that a new request could take now; 0 while others wait.
    pub(crate) fn available(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> u64 {
        let level = self.level(now, kind, effects);
        if self.waiters() > 0 { 0 } else { level }
    }

    /// How many kinds of costs there are.
    pub(crate) fn kinds(&self) -> usize {
        self.most.len()
    }

    /// When a new request for `cost` would be granted, if no waiter leaves.
    pub(crate) fn estimate(&mut self, cost: &Cost) -> Option<Nanos> {
        if self.most.iter().enumerate().any(|(kind, most)| cost.of(kind) > most.1) {
            return None;
        }
        let asked = self.asks_at();
        let conforms = |limits: &Limits| limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        let Some((_, head)) = self.head() else { return conforms(&self.limits) };
        if self.overtakes() && conforms(&self.limits).is_some_and(|at| at <= self.now) {
            return Some(self.now);
        }
        // With a single bucket, the costs in the queue take as long as one cost of their sum.
        if self.promises == 0 && self.kinds() == 1 && self.limits.pays_steadily() {
            let all = self.queued.saturating_add(cost.largest());
            return self.limits.schedule(head.asked.max(self.floor), all);
        }
        conforms(self.after_queue(0)?)
    }

    /// The time of a new reservation for `cost`: all before it are served first.
    pub(super) fn promise(&mut self, asked: Nanos, cost: &Cost) -> Option<Nanos> {
        if self.list.is_empty() {
            return self.limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        }
        // If waiters before a reservation leave, it is granted later than its earliest possible time. Then the fraction
        // of a nanosecond that a bucket keeps otherwise is lost to those behind it.
        let late = Nanos::from(self.waiters() > 0);
        self.after_queue(late)?.conforms_at(asked, cost).ok().map(|(at, _)| at)
    }

    /// The limits after all in the queue have been served, if no waiter leaves and reservations are granted `late`
    /// nanoseconds after their times.
    fn after_queue(&mut self, late: Nanos) -> Option<&Limits> {
        if self.tail.is_none() || self.waiters() > 0 {
            self.tail = Some(self.served(late)?);
        }
        self.tail.as_ref()
    }

    fn served(&self, late: Nanos) -> Option<Limits> {
        let mut limits = self.limits.without_open();
        let mut floor = self.floor;
        for entry in self.list.values() {
            if let Turn::Late(grant) = entry.turn {
                let at = limits.room_at(self.now, &entry.cost)?;
                limits.hand_over(&grant, &entry.cost, at);
                continue;
            }
            if let Turn::Promised(promised) = entry.turn
                && self.is_before_pause(promised, &limits)
            {
                limits.count_in_windows(promised, &entry.cost);
                continue;
            }
            let asked = entry.asked.max(floor);
            let (at, _) = limits.conforms_at(asked, &entry.cost).ok()?;
            let at = if let Turn::Promised(promised) = entry.turn { at.max(promised).saturating_add(late) } else { at };
            let _ = limits.charge(asked, [at, at.max(self.now)], &entry.cost);
            floor = 0;
        }
        Some(limits)
    }
}
