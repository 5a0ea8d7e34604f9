//! Serves the queue as time passes: waiters are granted, time out, or are woken because they act as the timer.

use super::state::{Denied, Effects, Key, Queue, QueueEntry, Status, Tail};
use crate::clock::Nanos;
use crate::limits::{Cost, Grant, Limits};
use std::borrow::Cow;

impl Tail {
    /// Windows count a grant from the second time instead of the first, which was calculated for it. `None` if that may
    /// change another calculated time.
    fn count_later(mut self, times: [Nanos; 2], cost: &Cost) -> Option<Self> {
        if times[0] < times[1] && self.limits.has_windows() {
            self.slack = self.slack.checked_sub(times[1] - times[0])?;
            self.limits.count_later(times, cost).then_some(())?;
        }
        Some(self)
    }
}

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
            self.tail = None;
            self.limits.overflow();
        }
        self.wake_watch(effects);
    }

    /// Serves the head if it is due, and returns whether it was. If not, `due` is set to the time at which it will be.
    pub(super) fn serve_head(&mut self, key: Key, effects: &mut Effects) -> bool {
        let Some(entry) = self.list.get(&key) else { return false };
        let (cost, asked) = (entry.cost.clone(), entry.asked.max(self.floor));
        if let Status::Promised(promised) = entry.status {
            return self.serve_promise(key, asked, &cost, promised);
        }
        if let Status::Late(grant) = entry.status {
            return self.serve_late(key, grant, &cost, effects);
        }
        if self.no_place(cost.largest()) {
            return false;
        }
        let Ok((at, _)) = self.limits.conforms_at(asked, &cost) else { return false };
        if at > self.now || entry.deadline.is_some_and(|deadline| at > deadline) {
            self.due = Some(at);
            if at > self.now {
                self.lag = 0; // The schedule has caught up with the clock.
            }
            return false;
        }
        let earliest = self.now.saturating_sub(self.allowance);
        let Ok(grant) = self.limits.take_not_before(self.now, asked, &cost, earliest) else { return false };
        // Until the waiter has seen the grant, it may be given back.
        self.limits.open(&grant, &cost);
        let late = self.now - grant.at;
        self.lag = if late > self.fill_time { late } else { 0 };
        self.hold_places(cost.largest());
        // The tail stays valid only if the entries behind this one keep the times that were calculated for them.
        let is_as_found = |tail: &Tail| grant.at == at && (at > tail.found || !self.limits.has_windows());
        let tail = self.tail.take().filter(is_as_found);
        let tail = tail.and_then(|tail| tail.count_later([at, grant.counted], &cost));
        self.grant(key, grant, effects);
        self.tail = tail;
        true
    }

    fn grant(&mut self, key: Key, grant: Grant, effects: &mut Effects) {
        self.leave_queue(key);
        if let Some(entry) = self.gone.get_mut(&key) {
            entry.status = Status::Granted(grant);
            effects.wake.extend(entry.waker.take());
        }
    }

    /// A granted waiter fetches its grant, and windows count the grant from now on. If a window has given the room to
    /// other grants meanwhile, the waiter waits again, ahead of all entries that came after it.
    pub(super) fn fetch(&mut self, key: Key) {
        let Some(entry) = self.gone.get(&key) else { return };
        let Status::Granted(grant) = entry.status else { return };
        // While a reservation lies in the future, windows go on to count grants from their own times.
        let tail = self.tail.take().filter(|_| !self.limits.has_windows() || self.limits.latest() <= self.now);
        if let Some(counted) = self.limits.hand_over(grant, &entry.cost, self.now) {
            self.tail = tail.and_then(|tail| tail.count_later([grant.counted, self.now], &entry.cost));
            self.gone.entry(key).and_modify(|entry| entry.status = Status::Granted(counted));
            return;
        }
        let Some(mut entry) = self.gone.remove(&key) else { return };
        entry.status = Status::Late(grant);
        self.queued = self.queued.saturating_add(entry.cost.largest());
        self.deadlines.extend(entry.deadline.map(|deadline| (deadline, key)));
        if entry.is_thread {
            self.threads.insert(key);
        }
        self.list.insert(key, entry);
    }

    /// Like [`serve_head`](Self::serve_head), for a waiter that was already charged.
    fn serve_late(&mut self, key: Key, grant: Grant, cost: &Cost, effects: &mut Effects) -> bool {
        self.serve_promises();
        let at = self.with_promises().room_at(self.now.max(self.floor), cost);
        self.due = at;
        if at.is_none_or(|at| at > self.now) {
            return false;
        }
        let Some(grant) = self.limits.hand_over(grant, cost, self.now) else { return false };
        self.due = None;
        self.grant(key, grant.counted_from(self.now), effects);
        true
    }

    /// The limits, charged with the reservations ahead of the first waiter. Their holders already have the times.
    fn with_promises(&self) -> Cow<'_, Limits> {
        let mut limits = Cow::Borrowed(&self.limits);
        for entry in self.list.values() {
            match entry.status {
                Status::Waiting => break,
                Status::Promised(promised) => {
                    let _ = limits.to_mut().charge(entry.asked.max(self.floor), [promised; 2], &entry.cost);
                }
                _ => {}
            }
        }
        limits
    }

    /// Charges the reservations at the front of the queue whose time has come. No waiter is ahead of them, except
    /// granted waiters that wait again for room in a window.
    pub(super) fn serve_promises(&mut self) {
        let leads = |entry: &QueueEntry| match entry.status {
            Status::Promised(promised) => promised <= self.now,
            status => !matches!(status, Status::Waiting),
        };
        let leading = self.list.iter().take_while(|(_, entry)| leads(entry));
        let due: Vec<Key> =
            leading.filter(|(_, entry)| matches!(entry.status, Status::Promised(_))).map(|(key, _)| *key).collect();
        for key in due {
            self.serve_head(key, &mut Effects::default());
        }
    }

    /// Charges a reservation when its time has come. Its holder uses the units at that time in any case: if the limits
    /// no longer conform, later requests wait until they do.
    fn serve_promise(&mut self, key: Key, asked: Nanos, cost: &Cost, promised: Nanos) -> bool {
        if promised > self.now {
            (self.due, self.lag) = (Some(promised), 0);
            return false;
        }
        let conforms = self.limits.conforms_at(asked, cost).map_or(promised, |(at, _)| at);
        if self.is_before_pause(promised, &self.limits) {
            self.limits.count_in_windows(promised, cost);
        } else {
            let _ = self.limits.charge(asked, [promised.max(conforms); 2], cost);
        }
        let tail = self.tail.take().filter(|tail| conforms <= promised && tail.late == 0);
        self.leave_queue(key);
        self.gone.remove(&key);
        self.tail = tail;
        true
    }

    /// Whether the next reservation to be charged, at `promised`, is before a pause. The pause has emptied the buckets,
    /// so only windows count the reservation.
    pub(super) fn is_before_pause(&self, promised: Nanos, limits: &Limits) -> bool {
        promised < self.pause && limits.latest() < self.pause
    }

    pub(super) fn time_out(&mut self, key: Key, effects: &mut Effects) {
        if let Some((Status::Late(grant), cost)) = self.list.get(&key).map(|entry| (entry.status, entry.cost.clone())) {
            self.give_back(&grant, &cost);
        }
        let since = |entry: &QueueEntry| entry.deadline.unwrap_or(self.now).saturating_sub(entry.since);
        let after = self.list.get(&key).map_or(0, |entry| since(entry));
        self.refuse(key, Denied::TimedOut { after }, effects);
    }

    fn refuse(&mut self, key: Key, denied: Denied, effects: &mut Effects) {
        self.step_out(key);
        if let Some(entry) = self.gone.get_mut(&key) {
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
        let waiting = self.list.iter().filter(|(_, entry)| matches!(entry.status, Status::Waiting));
        let refused: Vec<_> = waiting.filter_map(|(key, entry)| Some((*key, too_large(entry)?))).collect();
        for (key, kind) in refused {
            self.refuse(key, Denied::Never(kind), effects);
        }
    }

    /// Removes an entry from the queue before its turn. If the entry is the head and not yet due, the next request
    /// counts as made now. If the head is due and only its wake-up is late, the next request keeps its time.
    pub(super) fn step_out(&mut self, key: Key) {
        if self.is_head(key) && self.due.is_none_or(|due| due > self.now) {
            self.floor = self.floor.max(self.asks_at());
            self.limits.spill(self.floor);
        }
        self.leave_queue(key);
    }

    pub(super) fn leave_queue(&mut self, key: Key) {
        let Some(entry) = self.list.remove(&key) else { return };
        self.tail = None;
        self.queued = self.queued.saturating_sub(entry.cost.largest());
        if matches!(entry.status, Status::Promised(_)) {
            self.promises = self.promises.saturating_sub(1);
        }
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        if entry.is_thread {
            if self.threads.first() == Some(&key) {
                self.watched = None;
            }
            self.threads.remove(&key);
        }
        self.gone.insert(key, entry);
    }

    pub(super) fn forget(&mut self, key: Key, effects: &mut Effects) {
        if let Some(entry) = self.gone.remove(&key) {
            effects.dropped.extend(entry.waker);
        }
    }

    /// Wakes the thread that is the queue's timer if it would sleep too long.
    pub(super) fn wake_watch(&mut self, effects: &mut Effects) {
        let (Some(key), Some(alarm)) = (self.threads.first(), self.alarm()) else { return };
        if self.watched.is_none_or(|watched| alarm < watched) {
            self.watched = Some(alarm);
            effects.wake.extend(self.list.get(key).and_then(|entry| entry.waker.clone()));
        }
    }

    /// Serves up to `now`, and brings the limits up to now on the schedule. The head keeps the credit it has accrued.
    /// Returns the time on the schedule.
    pub(super) fn settle(&mut self, now: Nanos, effects: &mut Effects) -> Nanos {
        self.advance(now, effects);
        self.gather()
    }

    fn gather(&mut self) -> Nanos {
        let at = self.asks_at();
        self.tail = None;
        if let Some((_, head)) = self.list.first_key_value() {
            self.limits.gather(at, head.asked.max(self.floor), &head.cost);
            self.floor = self.floor.max(at);
        }
        at
    }

    pub(super) fn limits_changed(&mut self, effects: &mut Effects) {
        self.fill_time = self.limits.fill_time();
        self.allowance = self.limits.allowance();
        self.most = self.rules.most(&self.limits);
        self.refuse_too_large(effects);
        self.serve(effects);
    }

    pub(super) fn give_back(&mut self, grant: &Grant, cost: &Cost) {
        self.tail = None;
        if self.is_paused() && self.now >= self.limits.latest() {
            return self.limits.close(grant.number()); // The buckets stay empty until the end of a pause.
        }
        let at = if self.now >= self.limits.latest() {
            self.gather()
        } else {
            // A reservation in the future holds up all requests until its time.
            self.floor = self.floor.max(self.asks_at());
            self.now
        };
        self.limits.give_back(at, grant, cost);
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
            self.floor = self.floor.max(self.asks_at());
        }
        if let Some(places) = &mut self.places {
            places.held = places.held.saturating_sub(held);
        }
    }
}
