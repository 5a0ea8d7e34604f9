//! Serves the queue as time passes: waiters are granted, time out, or are woken because they act as the timer.

use super::state::{Queue, QueueEntry, Status};
use crate::clock::Nanos;
use crate::limiter::serve::{Denied, Effects, Key, Serve};
use crate::limits::{Account, Cost, Grant};
use std::borrow::Cow;

impl Queue {
    /// Grants all entries that are due, from the head on. Then times out the waiters whose deadline has passed.
    pub(super) fn serve(&mut self, effects: &mut Effects) {
        loop {
            self.due = None;
            while let Some((key, _)) = self.head() {
                if !self.serve_head(key, effects) {
                    break;
                }
            }
            let expired = self.deadlines.first().filter(|&&(deadline, _)| deadline <= self.now);
            let Some(&(_, key)) = expired else { break };
            self.time_out(key, effects);
        }
        if self.list.is_empty() {
            self.account.overflow();
        }
        self.wake_watch(effects);
    }

    /// Serves the head if it is due, and returns whether it was. If not, `due` is set to the time at which it will be.
    pub(super) fn serve_head(&mut self, key: Key, effects: &mut Effects) -> bool {
        let Some(entry) = self.list.get(&key) else { return false };
        let (cost, asked) = (entry.cost.clone(), self.asked_at(entry));
        if let Status::Promised(promised) = entry.status {
            if promised > self.now {
                (self.due, self.lag) = (Some(promised), 0);
                return false;
            }
            self.serve_promise((key, asked), &cost, [promised, Nanos::MAX]);
            return true;
        }
        if self.no_place(cost.largest()) {
            return false;
        }
        let Ok((at, _)) = self.after_pause().conforms_at(asked, &cost) else { return false };
        if at > self.now || entry.deadline.is_some_and(|deadline| at > deadline) {
            self.due = Some(at);
            if at > self.now {
                self.lag = 0; // The schedule has caught up with the clock.
            }
            return false;
        }
        let earliest = self.now.saturating_sub(self.allowance);
        let Ok(grant) = self.account.take_not_before(self.now, asked, &cost, earliest) else { return false };
        // Until the waiter has seen the grant, it may be given back.
        self.account.open(&grant, &cost);
        let late = self.now - grant.at;
        self.lag = if late > self.fill_time { late } else { 0 };
        self.hold_places(cost.largest());
        self.grant(key, grant, effects);
        true
    }

    fn grant(&mut self, key: Key, grant: Grant, effects: &mut Effects) {
        self.leave_queue(key);
        if let Some(entry) = self.answered.get_mut(&key) {
            entry.status = Status::Granted(grant);
            effects.wake.extend(entry.waker.take());
        }
    }

    /// A granted waiter fetches its grant, and windows count the grant from now on. If a window has given the room to
    /// other grants meanwhile, the waiter gives the grant back and waits again: ahead of all that came after it, or behind
    /// reservations, which may need the room and keep their times. Returns its number in the queue.
    pub(super) fn fetch(&mut self, key: Key) -> Key {
        let is_promised = self.promises > 0;
        let Some(entry) = self.answered.get_mut(&key) else { return key };
        let Status::Granted(grant) = entry.status else { return key };
        if let Some(counted) = self.account.hand_over(grant, &entry.cost, self.now, is_promised) {
            entry.status = Status::Granted(counted);
            return key;
        }
        let at = self.gather();
        let Some(mut entry) = self.answered.remove(&key) else { return key };
        self.account.settle(at, &grant, [&entry.cost, &Cost::One(0)]);
        (entry.status, entry.asked) = (Status::Waiting, at);
        let key = if is_promised { self.next_key() } else { key };
        if entry.is_thread {
            self.watch.add(key);
        }
        self.insert(key, entry);
        key
    }

    /// The account at the end of the pause, if the buckets are emptied then.
    pub(super) fn after_pause(&self) -> Cow<'_, Account> {
        let mut account = Cow::Borrowed(&self.account);
        if let Some(until) = self.empties_at {
            account.to_mut().empty(until);
        }
        account
    }

    /// Charges the reservations at the front of the queue whose time has come at `now`; see
    /// [`charge_promise`](Self::charge_promise).
    pub(super) fn serve_promises(&mut self, now: Nanos, until: Nanos) {
        while let Some((key, entry)) = self.list.first_key_value()
            && let Status::Promised(promised) = entry.status
            && promised <= now
        {
            let (key, asked, cost) = (*key, self.asked_at(entry), entry.cost.clone());
            self.serve_promise((key, asked), &cost, [promised, until]);
        }
    }

    fn serve_promise(&mut self, (key, asked): (Key, Nanos), cost: &Cost, times: [Nanos; 2]) {
        Queue::charge_promise(&mut self.account, asked, cost, times, 0);
        self.leave_queue(key);
        self.answered.remove(&key);
    }

    /// Charges a reservation at its time, or `late` nanoseconds later. Its holder uses the units at that time in any case.
    /// If the limits do not conform by then, the charge is at the time when they do, and later requests wait; if that is
    /// after `until`, the units are owed.
    pub(super) fn charge_promise(
        account: &mut Account,
        asked: Nanos,
        cost: &Cost,
        [promised, until]: [Nanos; 2],
        late: Nanos,
    ) {
        match account.conforms_at(asked, cost).map_or(promised, |(at, _)| at.max(promised)).saturating_add(late) {
            at if at <= until => _ = account.charge(asked, [at; 2], cost),
            _ => account.pay(promised, cost),
        }
    }

    pub(super) fn time_out(&mut self, key: Key, effects: &mut Effects) {
        let since = |entry: &QueueEntry| entry.deadline.unwrap_or(self.now).saturating_sub(entry.since);
        let after = self.list.get(&key).map_or(0, |entry| since(entry));
        self.refuse(key, Denied::TimedOut { after }, effects);
    }

    fn refuse(&mut self, key: Key, denied: Denied, effects: &mut Effects) {
        self.step_out(key);
        if let Some(entry) = self.answered.get_mut(&key) {
            entry.status = Status::Refused(denied);
            effects.wake.extend(entry.waker.take());
        }
    }

    /// Refuses the waiters for more units than a new window ever grants.
    fn refuse_too_large(&mut self, effects: &mut Effects) {
        let too_large = |entry: &QueueEntry| {
            let mut kinds = self.most.iter().enumerate();
            kinds.find(|(kind, (_, ever))| entry.cost.of(*kind) > *ever).map(|(kind, _)| kind)
        };
        let waiting = self.list.iter().filter(|(_, entry)| !matches!(entry.status, Status::Promised(_)));
        let refused: Vec<_> = waiting.filter_map(|(key, entry)| Some((*key, too_large(entry)?))).collect();
        for (key, kind) in refused {
            self.refuse(key, Denied::Never(kind), effects);
        }
    }

    /// Removes an entry from the queue before its turn. If the entry is the head and not yet due, the next request
    /// counts as made now. If the head is due and only its wake-up is late, the next request keeps its time.
    pub(super) fn step_out(&mut self, key: Key) {
        if self.is_head(key) && self.due.is_none_or(|due| due > self.now) {
            self.floor = self.floor.max(self.changes_at());
            self.account.spill(self.floor, 0_u64);
        }
        self.leave_queue(key);
    }

    pub(super) fn leave_queue(&mut self, key: Key) {
        let Some(entry) = self.list.remove(&key) else { return };
        self.queued = self.queued.saturating_sub(entry.cost.largest());
        if matches!(entry.status, Status::Promised(_)) {
            self.promises = self.promises.saturating_sub(1);
        }
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        if entry.is_thread {
            self.watch.remove(key);
        }
        self.answered.insert(key, entry);
    }

    pub(super) fn forget(&mut self, key: Key, effects: &mut Effects) {
        if let Some(entry) = self.answered.remove(&key) {
            effects.dropped.extend(entry.waker);
        }
    }

    /// Wakes the thread that is the queue's timer if it would sleep too long.
    pub(super) fn wake_watch(&mut self, effects: &mut Effects) {
        if let Some(key) = self.watch.oversleeps(self.alarm()) {
            effects.wake.extend(self.list.get(&key).and_then(|entry| entry.waker.clone()));
        }
    }

    /// Serves up to `now`, and brings the limits up to now on the schedule. The head keeps the credit it has accrued.
    /// Returns the time on the schedule.
    pub(super) fn catch_up(&mut self, now: Nanos, effects: &mut Effects) -> Nanos {
        self.advance(now, effects);
        self.gather()
    }

    fn gather(&mut self) -> Nanos {
        let at = self.changes_at();
        if let Some((_, head)) = self.list.first_key_value() {
            self.account.gather(at, self.asked_at(head), &head.cost);
            self.floor = self.floor.max(at);
        }
        at
    }

    pub(super) fn limits_changed(&mut self, effects: &mut Effects) {
        self.fill_time = self.account.limits().fill_time().unwrap_or(0);
        self.allowance = self.account.allowance();
        self.most = self.rules.most(self.account.limits());
        self.refuse_too_large(effects);
        self.serve(effects);
    }

    pub(super) fn give_back(&mut self, grant: &Grant, cost: &Cost) {
        let at = if self.now >= self.account.latest() {
            self.gather()
        } else {
            // A reservation in the future holds up all requests until its time.
            self.floor = self.floor.max(self.changes_at());
            self.now
        };
        self.account.give_back(at, grant, cost);
    }

    pub(super) fn no_place(&self, cost: u64) -> bool {
        self.places.is_some_and(|places| places.free() < cost)
    }

    pub(super) fn hold_places(&mut self, cost: u64) {
        if let Some(places) = &mut self.places {
            places.held += cost;
        }
    }

    /// If the head was waiting for a place, its request counts as made now on the schedule.
    pub(super) fn free_places(&mut self, held: u64) {
        let next = self.head().map_or(1, |(_, next)| next.cost.largest());
        if self.no_place(next) {
            self.floor = self.floor.max(self.changes_at());
        }
        if let Some(places) = &mut self.places {
            places.held = places.held.saturating_sub(held);
        }
    }
}
