//! The queue of waiters in front of the limits, as pure decisions: time is a parameter; nothing here sleeps or wakes.
//!
//! Only the time of the head is calculated. The time of any other waiter is calculated when it becomes the head. So a
//! waiter can leave from anywhere at no cost, and all behind it move up. A reservation is an entry of the queue, too, and
//! has a fixed time. Waiters before it may move up; the reservation keeps its time, and nothing behind it is granted before
//! that time. Nothing in the queue has been charged to the limits yet, so what leaves it leaves no trace in them.
//!
//! There are two times. Grants are calculated on the *schedule*: it depends on the times of requests and of the last
//! grant, but not on wake-ups. A waiter leaves on the *real clock*, when that has reached its grant and the waiter was
//! woken. If wake-ups are late, the schedule falls behind the real clock. The bucket stores that delay as credit, up to
//! its size. If the delay is longer, it is stored as the `lag`: the next request counts as made that much earlier, so
//! that late timers do not lower the rate. The lag becomes 0 when the limits come to rest.

use super::rules::{Oversize, Rules};
use crate::clock::Nanos;
use crate::limits::{Cost, Limits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::task::{Poll, Waker};

mod changes;
mod estimates;
mod serving;
mod state;

pub(crate) use state::{Denied, Effects, Key, Places, Queue};
use state::{Entry, Turn};

/// A new waiter.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) cost: &'a Cost,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) waker: &'a Waker,
    pub(crate) is_thread: bool,
    /// It must not be granted before it is polled again.
    pub(crate) yields: bool,
}

impl Queue {
    pub(crate) fn new(limits: Limits, rules: Rules, places: Option<Places>) -> Self {
        Queue {
            places,
            list: BTreeMap::new(),
            gone: BTreeMap::new(),
            tail: None,
            queued: 0,
            promises: 0,
            now: 0,
            floor: 0,
            pause: 0,
            lag: 0,
            fill_time: limits.fill_time(),
            allowance: limits.allowance(),
            most: rules.most(&limits),
            rules,
            limits,
            due: None,
            deadlines: BTreeSet::new(),
            threads: BTreeSet::new(),
            arrivals: 0,
            watched: None,
            closed: false,
        }
    }

    /// Grants now, or not at all.
    pub(crate) fn try_take(&mut self, now: Nanos, cost: &Cost, effects: &mut Effects) -> Result<(), Denied> {
        if self.take_now(now, cost, effects)? {
            return Ok(());
        }
        if !self.rules.unfair && self.waiters() > 0 {
            return Err(Denied::OthersWait);
        }
        let at = self.estimate(cost).ok_or(Denied::Never(0))?;
        Err(Denied::TooLong { wait: at.saturating_sub(self.now) })
    }

    /// Grants now, or adds the waiter to the queue.
    pub(crate) fn join(
        &mut self,
        now: Nanos,
        waiter: &Waiter<'_>,
        effects: &mut Effects,
    ) -> Result<Option<Key>, Denied> {
        if waiter.yields {
            self.check_entry(waiter.cost, effects)?;
            self.advance(now, effects);
        } else if self.take_now(now, waiter.cost, effects)? {
            return Ok(None);
        }
        self.admit(waiter)?;
        let entry = Entry { asked: self.asks_at(), ..Entry::new(waiter.cost, self.now, Turn::Waiting) };
        let entry = Entry { is_thread: waiter.is_thread, opens: effects.opens, ..entry };
        let entry = Entry { deadline: waiter.deadline, waker: Some(waiter.waker.clone()), ..entry };
        let key = self.push(entry);
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, key)));
        self.serve(effects);
        // Not earlier: this thread is awake, and calls `watch` next. If it is done already, it must not be the timer.
        if waiter.is_thread && self.list.contains_key(&key) {
            self.threads.insert(key);
        }
        Ok(Some(key))
    }

    /// Whether the waiter is done; then its entry is removed. Otherwise `waker` replaces its waker.
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        key: Key,
        waker: &Waker,
        effects: &mut Effects,
    ) -> Poll<Result<(), Denied>> {
        self.see(now);
        self.serve_promises();
        self.fetch(key);
        self.serve(effects);
        let Some(entry) = self.entry(key) else { return Poll::Ready(Ok(())) };
        let done = match entry.turn {
            Turn::Granted(grant) => {
                effects.opened = entry.opens.then_some(grant);
                Ok(())
            }
            Turn::Refused(denied) => Err(denied),
            Turn::Waiting | Turn::Promised(_) | Turn::Late(_) => {
                if !entry.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
                    effects.dropped.extend(entry.waker.replace(waker.clone()));
                }
                return Poll::Pending;
            }
        };
        self.forget(key, effects);
        Poll::Ready(done)
    }

    /// Until when a waiting thread may sleep, if it is the queue's timer. `None` for other threads, which are woken.
    pub(crate) fn watch(&mut self, key: Key) -> Option<Nanos> {
        if self.threads.first() != Some(&key) {
            return None;
        }
        self.watched = self.alarm();
        self.watched
    }

    /// Whether that thread is still the queue's timer, until that time.
    pub(crate) fn is_watched(&self, key: Key, until: Nanos) -> bool {
        self.watched == Some(until) && self.threads.first() == Some(&key)
    }

    /// The waiter was dropped, or the reservation is cancelled. A grant that it has not seen is given back.
    pub(crate) fn leave(&mut self, now: Nanos, key: Key, effects: &mut Effects) {
        self.see(now);
        self.serve_promises();
        match self.entry(key).map(|entry| (entry.turn, entry.cost.clone())) {
            Some((Turn::Promised(_), _)) if self.is_between_promises(key) => return,
            Some((Turn::Waiting | Turn::Promised(_), _)) => self.step_out(key),
            Some((Turn::Granted(grant), cost)) => {
                self.give_back(&grant, &cost);
                self.free_places(grant.units);
            }
            Some((Turn::Late(grant), cost)) => {
                self.leave_queue(key);
                self.give_back(&grant, &cost);
            }
            Some((Turn::Refused(_), _)) | None => {}
        }
        self.forget(key, effects);
        self.advance(now, effects);
    }

    /// Grants at a time behind the whole queue, which never changes. Returns the time.
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
        let key = self.push(Entry { asked, ..Entry::new(cost, self.now, Turn::Promised(promised)) });
        self.promises += 1;
        self.serve(effects);
        Ok((key, promised))
    }

    /// Whether a later reservation counts on this one: it was told a time behind it, and no waiter that could leave is before
    /// it. Then it stays charged.
    fn is_between_promises(&self, key: Key) -> bool {
        let is_promised = |entry: &Entry| matches!(entry.turn, Turn::Promised(_));
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        self.list.range(behind).any(|(_, entry)| is_promised(entry))
            && (self.waiters() == 0 || self.list.range(..key).all(|(_, entry)| is_promised(entry)))
    }

    fn push(&mut self, entry: Entry) -> Key {
        self.extend_tail(&entry);
        self.queued = self.queued.saturating_add(entry.cost.largest());
        self.arrivals += 1;
        self.list.insert(self.arrivals, entry);
        self.arrivals
    }

    /// An entry of the queue, or one that has left it.
    fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.list.get_mut(&key).or_else(|| self.gone.get_mut(&key))
    }

    fn head(&self) -> Option<(Key, &Entry)> {
        self.list.first_key_value().map(|(key, entry)| (*key, entry))
    }

    /// How many futures and threads wait. Reservations in the queue do not count.
    pub(crate) fn waiters(&self) -> usize {
        self.list.len() - self.promises
    }

    /// The sum of all costs in the queue.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) fn is_head(&self, key: Key) -> bool {
        self.head().is_some_and(|(head, _)| head == key)
    }

    /// When the queue must be served next. Reservations alone need not be.
    pub(crate) fn alarm(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        self.due.filter(|_| self.waiters() > 0).into_iter().chain(deadline).min()
    }

    /// Whether the [`FastPath`](super::fast_path::FastPath) may grant in place of this queue.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_at_rest() && !self.closed && self.places.is_none()
    }

    fn is_at_rest(&self) -> bool {
        self.list.is_empty()
            && self.lag == 0
            && !self.is_paused()
            && self.limits.latest() <= self.now
            && !self.limits.has_open()
    }

    /// Whether a new queue with the same limits would go on like this one, if it was closed, too.
    pub(crate) fn is_idle(&mut self, now: Nanos, effects: &mut Effects) -> bool {
        self.advance(now, effects);
        if self.asks_at() == self.now {
            self.lag = 0;
        }
        self.is_at_rest()
    }

    /// Grants what is due at `now`, and times out waiters whose deadline has passed.
    pub(crate) fn advance(&mut self, now: Nanos, effects: &mut Effects) {
        self.see(now);
        self.serve(effects);
    }

    /// Wakes every waiter, so that it sets its timer.
    pub(crate) fn wake_all(&mut self, effects: &mut Effects) {
        let all = self.list.values().chain(self.gone.values());
        effects.wake.extend(all.filter_map(|entry| entry.waker.clone()));
    }

    fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// Whether a new request may ask for this much.
    pub(crate) fn check(&self, cost: &Cost) -> Result<(), Denied> {
        if self.closed { Err(Denied::Closed) } else { self.check_size(cost) }
    }

    /// The same for a request that may have been let in earlier.
    fn check_entry(&self, cost: &Cost, effects: &Effects) -> Result<(), Denied> {
        if effects.is_admitted { self.check_size(cost) } else { self.check(cost) }
    }

    fn check_size(&self, cost: &Cost) -> Result<(), Denied> {
        let mut kinds = self.most.iter().enumerate();
        kinds.try_for_each(|(kind, &(at_once, ever))| match cost.of(kind) {
            cost if cost > at_once => Err(Denied::AboveBurst(kind, at_once)),
            cost if cost > ever => Err(Denied::Never(kind)),
            _ => Ok(()),
        })
    }

    /// Grants `cost` now, if possible.
    fn take_now(&mut self, now: Nanos, cost: &Cost, effects: &mut Effects) -> Result<bool, Denied> {
        self.check_entry(cost, effects)?;
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
        let at = match self.limits.conforms_at(asked, cost) {
            Ok((at, _)) => at,
            // Beyond the end of the clock. With `Oversize::Wait` it waits even then, because the rate may be raised.
            Err(_) if self.rules.oversize == Oversize::Wait => return Ok(false),
            Err(_) => return Err(Denied::Never(0)),
        };
        if at > self.now {
            return Ok(false);
        }
        let grant = self.limits.charge(asked, [at, at.max(self.now)], cost);
        if effects.opens {
            self.limits.open(&grant, cost);
            effects.opened = Some(grant);
        }
        self.hold_places(cost.largest());
        if !self.list.is_empty() {
            self.tail = None;
            self.serve(effects);
        }
        Ok(true)
    }

    /// Refuses a waiter if the queue is full, or if it would miss its deadline.
    fn admit(&mut self, waiter: &Waiter<'_>) -> Result<(), Denied> {
        if self.rules.most_waiters.is_some_and(|most| self.waiters() >= most) {
            return Err(Denied::Full);
        }
        let (Some(deadline), false) = (waiter.deadline, self.no_place(waiter.cost.largest())) else { return Ok(()) };
        let at = self.estimate(waiter.cost).ok_or(Denied::Never(0))?;
        // The schedule may be behind the real clock, if a waiter wakes late or a timer steps back.
        if at > deadline { Err(Denied::TooLong { wait: at.saturating_sub(self.now) }) } else { Ok(()) }
    }

    /// Whether a new request may be granted before the waiters. Not with [`Oversize::Wait`]: a head with a cost above the
    /// burst would then wait for ever. Not if there are reservations, whose times count on the units available.
    fn overtakes(&self) -> bool {
        self.rules.unfair && self.rules.oversize == Oversize::Reject && self.promises == 0
    }

    /// Now, on the schedule: the time of a new request or a change. It is behind the real clock by the lag, unless the
    /// limits are at rest or the latest grant is in the future.
    fn asks_at(&self) -> Nanos {
        let behind = self.now.saturating_sub(self.lag);
        let caught_up = self.lag == 0 || self.limits.at_rest(behind) || self.limits.latest() > self.now;
        self.floor.max(if caught_up { self.now } else { behind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::bucket::Bucket;
    use crate::rate::Rate;
    use std::num::NonZeroU64;

    #[test]
    fn a_thread_that_joins_after_its_deadline_does_not_become_the_timer() {
        let rate = Rate::new(NonZeroU64::MIN, NonZeroU64::MIN);
        let limits = Limits::none(0).with_bucket(Bucket::new(rate, NonZeroU64::MIN, 1, 0));
        let rules = Rules::default();
        let mut queue = Queue::new(limits, rules, Some(Places { capacity: 0, held: 0 }));
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
