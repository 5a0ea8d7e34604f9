//! The queue of waiters in front of the limits, as pure decisions: time is a parameter; nothing here sleeps or wakes.
//!
//! Only the time of the head is calculated. The time of any other waiter is calculated when it becomes the head. So a
//! waiter can leave from anywhere at no cost, and all behind it move up. A reservation is also an entry of the queue,
//! and has a fixed time. Waiters ahead of it may move up; the reservation keeps its time, and nothing behind it is
//! granted before that time. A waiter is charged to the limits only when it is granted. So a waiter that leaves the
//! queue ungranted has no effect on the limits.
//!
//! There are two times. Grants are calculated on the *schedule*: it depends on the times of requests and of the last
//! grant, but not on wake-ups. A waiter leaves on the *real clock*, when that has reached its grant and the waiter was
//! woken. If wake-ups are late, the schedule falls behind the real clock. The bucket stores that delay as credit, up to
//! its size. If the delay is longer, it is stored as the `lag`: the next request counts as made that much earlier, so
//! that late timers do not lower the rate. The lag becomes 0 when the limits come to rest.

use super::fast_path::{FastPath, Seen};
use super::rules::{Oversize, Rules};
use super::serve::Serve;
use super::units::UnitsError;
use super::watch::Watch;
use crate::clock::Nanos;
use crate::limits::{Account, Cost, Grant};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::task::{Poll, Waker};

mod changes;
mod estimates;
mod serving;
mod state;

pub(crate) use super::serve::{Denied, Effects, Key};
pub(crate) use state::{Places, Queue};
use state::{QueueEntry, Status};

/// A new waiter.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) cost: &'a Cost,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) waker: &'a Waker,
    pub(crate) is_thread: bool,
    /// Whether the waiter gets a grant at its next poll, even if it is granted now.
    pub(crate) yields: bool,
}

impl Queue {
    pub(crate) fn new(account: Account, rules: Rules, places: Option<Places>) -> Self {
        Queue {
            places,
            list: BTreeMap::new(),
            answered: BTreeMap::new(),
            queued: 0,
            promises: 0,
            now: 0,
            floor: 0,
            pause: 0,
            empties_at: None,
            lag: 0,
            fill_time: account.limits().fill_time().unwrap_or(0),
            allowance: account.allowance(),
            most: rules.most(account.limits()),
            rules,
            account,
            due: None,
            deadlines: BTreeSet::new(),
            watch: Watch::default(),
            arrivals: 0,
            closed: false,
        }
    }

    /// The account and the time in order, if the account alone decides about a request for these costs: nobody waits,
    /// there is no lag and no pause, and the limiter is neither closed nor a semaphore.
    #[inline]
    pub(crate) fn quiet_account(&mut self, now: Nanos, kinds: usize) -> Option<(&mut Account, Nanos)> {
        self.see(now);
        let is_quiet = self.list.is_empty() && self.lag == 0 && !self.is_paused() && !self.closed;
        (is_quiet && self.places.is_none() && kinds == self.most.len()).then_some((&mut self.account, self.now))
    }

    /// Grants `cost` now, or refuses it.
    pub(crate) fn try_take(&mut self, now: Nanos, cost: &Cost, effects: &mut Effects) -> Result<(), Denied> {
        if self.take_now(now, cost, effects.opens, effects)? {
            return Ok(());
        }
        if !self.rules.unfair && self.waiters() > 0 {
            return Err(Denied::OthersWait);
        }
        let at = self.estimate(cost).ok_or(Denied::Never(0))?;
        let wait = at.saturating_sub(self.now);
        Err(if self.no_place(cost.largest()) { Denied::NoPlace } else { Denied::TooLong { wait } })
    }

    /// Grants now, or adds the waiter to the queue.
    pub(crate) fn join(
        &mut self,
        now: Nanos,
        waiter: &Waiter<'_>,
        effects: &mut Effects,
    ) -> Result<Option<Key>, Denied> {
        if self.take_now(now, waiter.cost, waiter.yields || effects.opens, effects)? {
            let grant = if waiter.yields { effects.granted.take() } else { None };
            return Ok(grant.map(|grant| self.hand_over_later(waiter, grant, effects.opens)));
        }
        self.admit(waiter)?;
        let entry = QueueEntry { asked: self.asks_at(), ..QueueEntry::new(waiter.cost, self.now, Status::Waiting) };
        let entry = QueueEntry { is_thread: waiter.is_thread, opens: effects.opens, ..entry };
        let entry = QueueEntry { deadline: waiter.deadline, waker: Some(waiter.waker.clone()), ..entry };
        let key = self.push(entry);
        self.serve(effects);
        // The thread is added only after `serve`: it is awake, and calls `watch` next. If it is already granted or
        // refused, it must not become the timer.
        if waiter.is_thread && self.list.contains_key(&key) {
            self.watch.add(key);
        }
        Ok(Some(key))
    }

    /// Keeps a grant until the next poll of its future.
    fn hand_over_later(&mut self, waiter: &Waiter<'_>, grant: Grant, opens: bool) -> Key {
        let (key, entry) = (self.next_key(), QueueEntry::new(waiter.cost, self.now, Status::Granted(grant)));
        self.answered.insert(key, Box::new(QueueEntry { opens, ..entry }));
        key
    }

    /// Reserves `cost` at a time behind the whole queue. Returns the entry and the time, which never changes.
    pub(crate) fn reserve(
        &mut self,
        now: Nanos,
        cost: &Cost,
        most_wait: Nanos,
        effects: &mut Effects,
    ) -> Result<(Key, Nanos), Denied> {
        self.check(cost)?;
        self.advance(now, effects);
        let asked = self.asks_at();
        let promised = self.promise(asked, cost).ok_or(Denied::Never(0))?;
        let wait = promised.saturating_sub(self.now);
        if wait > most_wait {
            return Err(Denied::TooLong { wait });
        }
        if cost.largest() == 0 {
            return Ok((0, promised)); // No entry has this number.
        }
        let key = self.push(QueueEntry { asked, ..QueueEntry::new(cost, self.now, Status::Promised(promised)) });
        self.promises += 1;
        self.serve(effects);
        Ok((key, promised))
    }

    /// Whether a later reservation depends on this one: its time lies behind this one, and no waiter that could leave
    /// is ahead of this one. Then this reservation stays charged.
    fn is_between_promises(&self, key: Key) -> bool {
        let is_promised = |entry: &QueueEntry| matches!(entry.status, Status::Promised(_));
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        self.list.range(behind).any(|(_, entry)| is_promised(entry))
            && (self.waiters() == 0 || self.list.range(..key).all(|(_, entry)| is_promised(entry)))
    }

    fn push(&mut self, entry: QueueEntry) -> Key {
        let key = self.next_key();
        self.insert(key, Box::new(entry));
        key
    }

    fn next_key(&mut self) -> Key {
        self.arrivals += 1;
        self.arrivals
    }

    fn insert(&mut self, key: Key, entry: Box<QueueEntry>) {
        self.queued = self.queued.saturating_add(entry.cost.largest());
        self.deadlines.extend(entry.deadline.map(|deadline| (deadline, key)));
        self.list.insert(key, entry);
    }

    /// An entry of the queue, or an entry that has left the queue and is not forgotten yet.
    fn entry(&mut self, key: Key) -> Option<&mut QueueEntry> {
        self.list.get_mut(&key).or_else(|| self.answered.get_mut(&key)).map(Box::as_mut)
    }

    fn head(&self) -> Option<(Key, &QueueEntry)> {
        self.list.first_key_value().map(|(key, entry)| (*key, &**entry))
    }

    /// The sum of all costs in the queue.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) fn is_head(&self, key: Key) -> bool {
        self.head().is_some_and(|(head, _)| head == key)
    }

    /// Whether the [`FastPath`](super::fast_path::FastPath) may grant in place of this queue.
    pub(crate) fn is_plain(&self) -> bool {
        let has_room = |places: Places| places.held <= places.capacity;
        self.is_at_rest() && !self.closed && self.places.is_none_or(has_room)
    }

    fn is_at_rest(&self) -> bool {
        self.list.is_empty()
            && self.lag == 0
            && !self.is_paused()
            && self.account.latest() <= self.now
            && !self.account.has_open()
    }

    /// Whether a new queue with the same limits would continue like this one, provided that it is closed if this one
    /// is.
    pub(crate) fn is_idle(&mut self, now: Nanos, effects: &mut Effects) -> bool {
        self.advance(now, effects);
        if self.asks_at() == self.now {
            self.lag = 0;
        }
        self.is_at_rest()
    }

    fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.end_pause();
    }

    /// Refuses a new request if the queue is closed or the cost is too large.
    pub(crate) fn check(&self, cost: &Cost) -> Result<(), Denied> {
        if self.closed { Err(Denied::Closed) } else { self.check_size(cost) }
    }

    /// Whether there is one cost for each kind.
    pub(crate) fn check_count(&self, cost: &Cost) -> Result<(), UnitsError> {
        let (given, kinds) = (cost.list().len(), self.most.len());
        if given == kinds { Ok(()) } else { Err(UnitsError::WrongCount { given, kinds }) }
    }

    fn check_size(&self, cost: &Cost) -> Result<(), Denied> {
        self.check_count(cost).map_err(Denied::Units)?;
        let mut kinds = self.most.iter().enumerate();
        kinds.try_for_each(|(kind, &(at_once, ever))| match cost.of(kind) {
            cost if cost > at_once => Err(Denied::AboveBurst(kind, at_once)),
            cost if cost > ever => Err(Denied::Never(kind)),
            _ => Ok(()),
        })
    }

    /// Grants `cost` now, if possible. If it `opens` the grant, the grant may be given back or settled.
    fn take_now(&mut self, now: Nanos, cost: &Cost, opens: bool, effects: &mut Effects) -> Result<bool, Denied> {
        self.check(cost)?;
        self.advance(now, effects);
        if cost.largest() == 0 && self.places.is_none() {
            return Ok(true);
        }
        if (!self.list.is_empty() && !self.overtakes()) || self.no_place(cost.largest()) {
            return Ok(false);
        }
        let asked = self.asks_at();
        if asked == self.now {
            self.lag = 0;
        }
        let at = match self.account.conforms_at(asked, cost) {
            Ok((at, _)) => at,
            // The time is beyond the end of the clock. With `Oversize::Wait` the request waits even then, because the
            // rate may be raised.
            Err(_) if self.rules.oversize == Oversize::Wait => return Ok(false),
            Err(_) => return Err(Denied::Never(0)),
        };
        if at > self.now {
            return Ok(false);
        }
        let grant = self.account.charge(asked, [at, at.max(self.now)], cost);
        if opens {
            self.account.open(&grant, cost);
        }
        effects.granted = Some(grant);
        self.hold_places(cost.largest());
        if !self.list.is_empty() {
            self.serve(effects);
        }
        Ok(true)
    }

    /// Refuses a waiter if the queue is full, or if the waiter would miss its deadline.
    fn admit(&mut self, waiter: &Waiter<'_>) -> Result<(), Denied> {
        if self.rules.most_waiters.is_some_and(|most| self.waiters() >= most) {
            return Err(Denied::Full);
        }
        let (Some(deadline), false) = (waiter.deadline, self.no_place(waiter.cost.largest())) else { return Ok(()) };
        let at = self.estimate(waiter.cost).ok_or(Denied::Never(0))?;
        // The estimate is on the schedule, which may be behind the real clock if a waiter wakes late or a timer steps
        // back.
        if at > deadline { Err(Denied::TooLong { wait: at.saturating_sub(self.now) }) } else { Ok(()) }
    }

    /// Whether a new request may be granted before the waiters. Not with [`Oversize::Wait`]: a head with a cost above
    /// the burst would then wait for ever. Not if there are reservations, because their times depend on the units that
    /// are available.
    fn overtakes(&self) -> bool {
        self.rules.unfair && self.rules.oversize == Oversize::Reject && self.promises == 0
    }

    /// Now, on the schedule: the time of a change. It is behind the real clock by the lag, unless the limits are at rest
    /// or the latest grant is in the future.
    fn changes_at(&self) -> Nanos {
        let behind = self.now.saturating_sub(self.lag);
        let caught_up = self.lag == 0 || self.account.is_at_rest(behind) || self.account.latest() > self.now;
        self.floor.max(if caught_up { self.now } else { behind })
    }

    /// The time of a new request on the schedule: now, or the end of a pause.
    fn asks_at(&self) -> Nanos {
        self.changes_at().max(self.pause)
    }

    /// The time of the request of an entry, if nothing is ahead of it. A reservation was made before the pause or for a
    /// time after it.
    fn asked_at(&self, entry: &QueueEntry) -> Nanos {
        let pause = if matches!(entry.status, Status::Promised(_)) { 0 } else { self.pause };
        entry.asked.max(self.floor).max(pause)
    }
}

impl Serve for Queue {
    fn advance(&mut self, now: Nanos, effects: &mut Effects) {
        self.see(now);
        self.serve(effects);
    }

    /// Reservations alone need no such time.
    fn alarm(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        self.due.filter(|_| self.waiters() > 0).into_iter().chain(deadline).min()
    }

    /// Reservations in the queue do not count.
    fn waiters(&self) -> usize {
        self.list.len() - self.promises
    }

    fn wake_all(&mut self, effects: &mut Effects) {
        let all = self.list.values().chain(self.answered.values());
        effects.wake.extend(all.filter_map(|entry| entry.waker.clone()));
    }

    fn poll(&mut self, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) -> Poll<Result<(), Denied>> {
        self.see(now);
        self.serve_promises(self.now, Nanos::MAX);
        let key = self.fetch(key);
        effects.key = Some(key);
        self.serve(effects);
        let Some(entry) = self.entry(key) else { return Poll::Ready(Ok(())) };
        let done = match entry.status {
            Status::Granted(grant) => {
                effects.granted = entry.opens.then_some(grant);
                if !entry.opens {
                    self.account.close(grant.number());
                }
                Ok(())
            }
            Status::Refused(denied) => Err(denied),
            Status::Waiting | Status::Promised(_) => {
                if !entry.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
                    effects.dropped.extend(entry.waker.replace(waker.clone()));
                }
                return Poll::Pending;
            }
        };
        self.forget(key, effects);
        Poll::Ready(done)
    }

    fn watch(&mut self, key: Key) -> Option<Nanos> {
        let alarm = self.alarm();
        self.watch.begin(key, alarm)
    }

    fn is_watched(&self, key: Key, until: Nanos) -> bool {
        self.watch.is_until(key, until)
    }

    /// Also for a reservation that is cancelled.
    fn leave(&mut self, now: Nanos, key: Key, effects: &mut Effects) {
        self.see(now);
        self.serve_promises(self.now, Nanos::MAX);
        match self.entry(key).map(|entry| (entry.status, entry.cost.clone())) {
            Some((Status::Promised(_), _)) if self.is_between_promises(key) => return,
            Some((Status::Waiting | Status::Promised(_), _)) => self.step_out(key),
            Some((Status::Granted(grant), cost)) => {
                self.give_back(&grant, &cost);
                self.free_places(grant.units);
            }
            Some((Status::Refused(_), _)) | None => {}
        }
        self.forget(key, effects);
        self.advance(now, effects);
    }

    fn close_fast_path(&mut self, fast_path: &FastPath, seen: Seen, now: Nanos) -> bool {
        fast_path.close(seen, &mut self.account, now)
    }

    fn settle(&mut self, now: Nanos, grant: &Grant, costs: [&Cost; 2], effects: &mut Effects) {
        let at = self.catch_up(now, effects);
        self.account.settle(at, grant, costs);
        self.serve(effects);
    }

    fn settle_quietly(&mut self, now: Nanos, grant: &Grant, costs: [&Cost; 2]) -> bool {
        let quiet = self.quiet_account(now, costs[0].list().len());
        let usual = quiet.filter(|(account, _)| account.limits().are_usual());
        usual.map(|(account, now)| account.settle(now, grant, costs)).is_some()
    }

    fn close_grant(&mut self, _: Nanos, grant: &Grant) {
        self.account.close(grant.number());
    }

    fn correct(&mut self, now: Nanos, costs: [&Cost; 2], effects: &mut Effects) {
        self.reconcile(now, costs, effects);
    }

    fn has_places(&self) -> bool {
        self.places.is_some()
    }

    fn close_places(&mut self, fast_path: &FastPath) {
        if let (Some(places), Some(free)) = (&mut self.places, fast_path.close_places()) {
            places.held = places.capacity.saturating_sub(free);
        }
    }

    fn open_fast_path(&self, fast_path: &FastPath) {
        let is_open = self.is_plain() && fast_path.open(&self.account, self.now);
        // The largest number of free places would look as if they were closed.
        if let Some(places) = self.places.filter(|places| is_open && places.capacity < u64::MAX) {
            fast_path.open_places(places.free());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::limits::bucket::Bucket;
    use crate::rate::Rate;
    use std::num::NonZeroU64;

    #[test]
    fn a_thread_past_its_deadline_does_not_become_the_timer() {
        let rate = Rate::new(NonZeroU64::MIN, NonZeroU64::MIN);
        let limits = Limits::none().with_bucket(Bucket::new(rate, NonZeroU64::MIN, 1, 0));
        let rules = Rules::default();
        let mut queue = Queue::new(Account::of(limits, 0), rules, Some(Places { capacity: 0, held: 0 }));
        let effects = &mut Effects::default();
        let mut join = |deadline| {
            let waiter = Waiter { cost: &Cost::One(1), deadline, waker: Waker::noop(), is_thread: true, yields: false };
            match queue.join(7, &waiter, effects) {
                Ok(Some(key)) => key,
                other => panic!("it waits for a place: {other:?}"),
            }
        };
        let (late, waits) = (join(Some(7)), join(Some(20)));
        assert_eq!(queue.watch(late), None);
        assert_eq!(queue.watch(waits), Some(20), "otherwise nothing times it out");
        assert!(matches!(queue.poll(7, late, Waker::noop(), effects), Poll::Ready(Err(Denied::TimedOut { after: 0 }))));
    }
}
