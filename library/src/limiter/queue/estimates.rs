//! Estimates for a new request, if no waiter leaves: how many units are available, and when there will be more.

use super::state::{Queue, Status};
use crate::clock::Nanos;
use crate::limiter::serve::{Effects, Serve};
use crate::limits::{Account, Cost};
use std::borrow::Cow;

impl Queue {
    /// Units of a kind that a new request could take now if there were no waiters. 0 during a pause, or if the head of
    /// the queue is a reservation.
    pub(crate) fn level(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> u64 {
        self.advance(now, effects);
        let is_promised = self.head().is_some_and(|(_, head)| matches!(head.status, Status::Promised(_)));
        if self.is_paused() || is_promised { 0 } else { self.account.available_of(self.now, kind) }
    }

    /// The [level](Self::level); negative if units are owed.
    pub(crate) fn left(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> i128 {
        i128::from(self.level(now, kind, effects))
            - self.after_pause().owed_of(self.now.max(self.empties_at.unwrap_or(0)), kind)
    }

    /// Units of a kind that a new request could take now; 0 while others wait.
    pub(crate) fn available(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> u64 {
        let level = self.level(now, kind, effects);
        if self.waiters() > 0 { 0 } else { level }
    }

    /// The number of kinds of costs.
    pub(crate) fn kinds(&self) -> usize {
        self.most.len()
    }

    /// When a new request for `cost` would be granted, if no waiter leaves.
    pub(crate) fn estimate(&self, cost: &Cost) -> Option<Nanos> {
        if self.most.iter().enumerate().any(|(kind, most)| cost.of(kind) > most.1) {
            return None;
        }
        let asked = self.asks_at();
        let conforms = |account: &Account| account.conforms_at(asked, cost).ok().map(|(at, _)| at);
        if self.overtakes() && conforms(&self.account).is_some_and(|at| at <= self.now) {
            return Some(self.now);
        }
        // With a single bucket, the costs in the queue take as long as one cost of their sum.
        let is_steady = self.promises == 0 && self.kinds() == 1 && self.account.limits().pays_steadily();
        if let Some((_, head)) = self.head().filter(|_| is_steady) {
            return self.after_pause().schedule(self.asked_at(head), self.queued.saturating_add(cost.largest()));
        }
        conforms(&*self.after_queue(0)?)
    }

    /// The time of a new reservation for `cost`: all before it are served first.
    pub(super) fn promise(&self, asked: Nanos, cost: &Cost) -> Option<Nanos> {
        // If waiters ahead of a reservation leave, the reservation is granted later than its earliest possible time.
        // Then the entries behind it lose the fraction of a nanosecond that a bucket otherwise keeps.
        let late = Nanos::from(self.waiters() > 0);
        self.after_queue(late)?.conforms_at(asked, cost).ok().map(|(at, _)| at)
    }

    /// The account after all in the queue have been served and the pause is over, if no waiter leaves and reservations are
    /// granted `late` nanoseconds after their times.
    fn after_queue(&self, late: Nanos) -> Option<Cow<'_, Account>> {
        if self.list.is_empty() {
            return Some(self.after_pause());
        }
        let (mut account, mut empties_at) = (self.account.without_open(), self.empties_at);
        for entry in self.list.values() {
            let is_before = |until: &mut Nanos| matches!(entry.status, Status::Promised(time) if time <= *until);
            if let Some(until) = empties_at.take_if(|until| !is_before(until)) {
                account.empty(until);
            }
            let asked = self.asked_at(entry);
            if let Status::Promised(promised) = entry.status {
                let until = empties_at.unwrap_or(Nanos::MAX);
                Queue::charge_promise(&mut account, asked, &entry.cost, [promised, until], late);
                continue;
            }
            let (at, _) = account.conforms_at(asked, &entry.cost).ok()?;
            let _ = account.charge(asked, [at, at.max(self.now)], &entry.cost);
        }
        if let Some(until) = empties_at {
            account.empty(until);
        }
        Some(Cow::Owned(account))
    }
}
