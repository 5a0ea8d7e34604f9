//! Estimates for a new request, if no waiter leaves: how many units are available, and when there will be more.

use super::state::{Effects, Queue, QueueEntry, Status, Tail};
use crate::clock::Nanos;
use crate::limits::{Cost, Limits};

impl Queue {
    /// Units of a kind that a new request could take now if there were no waiters. 0 during a pause, or if the head of
    /// the queue is a reservation.
    pub(crate) fn level(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> u64 {
        self.advance(now, effects);
        let is_promised = self.head().is_some_and(|(_, head)| matches!(head.status, Status::Promised(_)));
        if self.is_paused() || is_promised { 0 } else { self.limits.available_of(self.now, kind) }
    }

    /// The [level](Self::level); negative if units are owed.
    pub(crate) fn left(&mut self, now: Nanos, kind: usize, effects: &mut Effects) -> i128 {
        i128::from(self.level(now, kind, effects)) - self.limits.owed_of(self.now, kind)
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
        // If waiters ahead of a reservation leave, the reservation is granted later than its earliest possible time.
        // Then the entries behind it lose the fraction of a nanosecond that a bucket otherwise keeps.
        let late = Nanos::from(self.waiters() > 0);
        self.after_queue(late)?.conforms_at(asked, cost).ok().map(|(at, _)| at)
    }

    /// The limits after all in the queue have been served, if no waiter leaves and reservations are granted `late`
    /// nanoseconds after their times.
    fn after_queue(&mut self, late: Nanos) -> Option<&Limits> {
        // Entries with `Status::Late` come first. Their times change as the clock advances.
        let is_late = self.head().is_some_and(|(_, head)| matches!(head.status, Status::Late(_)));
        if is_late || self.tail.as_ref().is_none_or(|tail| tail.late != late) {
            self.tail = Some(self.served(late)?);
        }
        self.tail.as_ref().map(|tail| &tail.limits)
    }

    /// Updates the tail for an entry that is about to join the end of the queue.
    pub(super) fn extend_tail(&mut self, entry: &QueueEntry) {
        let tail = self.tail.take().and_then(|mut tail| {
            self.serve_in(&mut tail, entry, self.floor)?;
            Some(Tail { found: self.now, ..tail })
        });
        self.tail = tail;
    }

    fn served(&self, late: Nanos) -> Option<Tail> {
        let mut tail = Tail { limits: self.limits.without_open(), late, slack: Nanos::MAX, found: self.now };
        let mut floor = self.floor;
        for entry in self.list.values() {
            if self.serve_in(&mut tail, entry, floor)? {
                floor = 0;
            }
        }
        Some(tail)
    }

    /// Serves an entry in the limits of `tail`, after all entries before it. Returns whether the entry was charged
    /// there.
    fn serve_in(&self, tail: &mut Tail, entry: &QueueEntry, floor: Nanos) -> Option<bool> {
        let limits = &mut tail.limits;
        if let Status::Late(grant) = entry.status {
            let at = limits.room_at(self.now, &entry.cost)?;
            let _ = limits.hand_over(grant, &entry.cost, at);
            return Some(false);
        }
        if let Status::Promised(promised) = entry.status
            && self.is_before_pause(promised, limits)
        {
            limits.count_in_windows(promised, &entry.cost);
            return Some(false);
        }
        let asked = entry.asked.max(floor);
        let (at, _) = limits.conforms_at(asked, &entry.cost).ok()?;
        let at =
            if let Status::Promised(promised) = entry.status { at.max(promised).saturating_add(tail.late) } else { at };
        tail.slack = tail.slack.min(limits.slack(at, &entry.cost));
        let _ = limits.charge(asked, [at, at.max(self.now)], &entry.cost);
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::queue::Waiter;
    use crate::limiter::rules::Rules;
    use crate::limits::Policy;
    use proptest::prelude::*;
    use std::task::Waker;

    fn queue(limits: &[&str]) -> Queue {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(&limits, None).unwrap();
        Queue::new(Limits::new(&policy, 0), Rules { place: Some(0), ..Rules::default() }, None)
    }

    proptest! {
        /// What was found for the end of the queue is kept while others join, leave, are granted late, and limits change.
        #[test]
        fn the_stored_end_of_the_queue_equals_a_new_search(
            limits in prop::sample::select(vec![
                vec!["7/s,burst=3"],
                vec!["7/s,burst=3", "20/4s,burst=20"],
                vec!["7/s,burst=3", "20/4s,window"],
                vec!["5/s,window", "20/4s,window,slack=100ms"],
                vec!["7/s,burst=3", "2000/4s,window"],
            ]),
            steps in prop::collection::vec((0_u8..14, 1_u64..4, any::<prop::sample::Index>()), 1..120),
        ) {
            let (mut queue, mut now, mut keys, effects) = (queue(&limits), 0, Vec::new(), &mut Effects::default());
            for (step, cost, index) in steps {
                let cost = Cost::One(cost);
                let joins = Waiter { cost: &cost, deadline: None, waker: Waker::noop(), is_thread: false, yields: false };
                match step {
                    0..=3 => keys.extend(match queue.join(now, &joins, effects) {
                        Ok(Some(key)) => Some(key),
                        _ => None,
                    }),
                    4 => keys.extend(queue.reserve(now, &cost, Nanos::MAX, effects).ok().map(|(key, _)| key)),
                    5 if !keys.is_empty() => queue.leave(now, keys.swap_remove(index.index(keys.len())), effects),
                    6 => queue.pause_until(now, now + 300_000_000, effects),
                    7 => _ = queue.set_rate(now, "11/s".parse().unwrap(), effects),
                    8 => keys.retain(|key| queue.poll(now, *key, Waker::noop(), effects).is_pending()),
                    9 => now += index.index(1_000_000) as u64,
                    10 => now += index.index(2_000_000_000) as u64,
                    _ => now = queue.due.unwrap_or(now).max(now),
                }
                queue.advance(now, effects);
                let costs = [1, 2, 3, 1990].map(Cost::One);
                if let Some(late) = queue.tail.as_ref().map(|tail| tail.late) {
                    let (anew, kept) = (queue.served(late).unwrap().limits, queue.after_queue(late).unwrap().clone());
                    for cost in &costs {
                        let asked = queue.asks_at();
                        prop_assert_eq!(kept.conforms_at(asked, cost), anew.conforms_at(asked, cost), "step {}", step);
                    }
                }
                let _ = queue.estimate(&costs[1]);
            }
        }
    }
}
