//! The queue of waiters before its limits, as pure decisions: time is a parameter; nothing sleeps or wakes here.
//!
//! Only the head's time is calculated; the others' when they become the head. So a waiter can leave from anywhere at no
//! cost, and all behind it move up. A reservation made behind waiters is in the queue too, with the time it was told:
//! waiters before it may move up, it stays, and nothing behind it is granted before that time.
//!
//! Time runs on two clocks. Grants are calculated on the schedule, which starts from requests and from the last grant and
//! knows nothing of wake-ups; a granted waiter leaves when the real clock has got there and it was woken. How far the
//! schedule is behind, if the bucket is too small to hold that much, is the `lag`: the next request counts that much
//! earlier, so that late timers cost no rate. It is forgotten when the limits come to rest.

use super::Oversize;
use super::list::{Key, List};
use super::panics::Panics;
use crate::clock::Nanos;
use crate::limits::{Grant, Limits, Refusal};
use std::collections::BTreeSet;
use std::task::Waker;

mod changes;
mod estimates;
mod serving;

/// What a queue keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// No request is served while others wait. Which may overtake otherwise, see [`Queue::overtakes`].
    pub(crate) fair: bool,
    pub(crate) oversize: Oversize,
    /// One more than this many waiters is refused.
    pub(crate) most_waiters: Option<usize>,
}

/// Why a queue does not grant. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    AboveBurst,
    Never,
    TooLong { wait: Nanos },
    TimedOut { after: Nanos },
    OthersWait,
    Full,
    Closed,
    NoTimer,
}

/// What to do once the lock is released: wake, and drop what may run foreign code.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    wake: Vec<Waker>,
    dropped: Vec<Waker>,
}

impl Effects {
    pub(crate) fn run(self) {
        let mut panics = Panics::default();
        for waker in self.wake {
            panics.hold(|| waker.wake());
        }
        panics.resume();
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) limits: Limits,
    rules: Rules,
    places: Option<Places>,
    list: List<Entry>,
    /// Units that all in the queue ask for.
    queued: u64,
    /// How many in the queue were told a time.
    promises: usize,
    /// The latest reading of the clock. Earlier ones count as this.
    now: Nanos,
    /// The head's time counts from here at the earliest, on the schedule: since then nothing before it holds it up. During a
    /// pause, its end.
    floor: Nanos,
    lag: Nanos,
    /// Of the limits: the time the first bucket needs to fill, how late a wake-up may be, the most units at once, and
    /// the most in one grant.
    fill_time: Nanos,
    allowance: Nanos,
    burst: u64,
    largest_cost: u64,
    /// When the head will be granted; `None` if nobody waits, or only for a place.
    due: Option<Nanos>,
    deadlines: BTreeSet<(Nanos, Key)>,
    /// Waiting threads in order of arrival. The first is the queue's timer while it waits.
    threads: BTreeSet<(u64, Key)>,
    arrivals: u64,
    /// Until when the first thread sleeps.
    watched: Option<Nanos>,
    closed: bool,
}

/// Places that can be held at the same time, beside the limits: a grant holds as many as it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) capacity: u64,
    pub(crate) held: u64,
}

impl Places {
    pub(crate) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.held)
    }
}

#[derive(Debug)]
struct Entry {
    cost: u64,
    /// On the schedule.
    asked: Nanos,
    /// On the real clock.
    since: Nanos,
    deadline: Option<Nanos>,
    turn: Turn,
    waker: Option<Waker>,
    arrival: u64,
    is_thread: bool,
    /// Its holder has gone.
    abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Waiting,
    /// A reservation that was told this time.
    Promised(Nanos),
    /// Granted, but fetched so late that a window had given its room to others: waits for room, and for nothing else.
    Late(Grant),
    Granted(Grant),
    TimedOut(Nanos),
}

/// A new waiter.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) cost: u64,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) waker: &'a Waker,
    pub(crate) is_thread: bool,
    /// Granted at its next look at the earliest.
    pub(crate) yields: bool,
}

/// The outcome of joining.
#[derive(Debug)]
pub(crate) enum Joined {
    Granted,
    Waits(Key),
}

/// What a waiter finds when it looks.
#[derive(Debug)]
pub(crate) enum Stand {
    Waits,
    Done(Result<(), Denied>),
}

/// The outcome of reserving.
#[derive(Debug)]
pub(crate) enum Reserved {
    Granted(Grant),
    InQueue(Key, Nanos),
}

impl Queue {
    pub(crate) fn new(limits: Limits, rules: Rules, places: Option<Places>) -> Self {
        Queue {
            rules,
            places,
            list: List::new(),
            queued: 0,
            promises: 0,
            now: 0,
            floor: 0,
            lag: 0,
            fill_time: limits.fill_time(),
            allowance: limits.allowance(),
            burst: limits.burst(),
            largest_cost: limits.largest_cost(),
            limits,
            due: None,
            deadlines: BTreeSet::new(),
            threads: BTreeSet::new(),
            arrivals: 0,
            watched: None,
            closed: false,
        }
    }

    /// Grants at once, or not at all.
    pub(crate) fn try_take(&mut self, now: Nanos, cost: u64, effects: &mut Effects) -> Result<(), Denied> {
        if self.take_now(now, cost, effects)? {
            return Ok(());
        }
        if self.rules.fair && !self.list.is_empty() {
            return Err(Denied::OthersWait);
        }
        let at = self.estimate(cost).ok_or(Denied::Never)?;
        Err(Denied::TooLong { wait: at.saturating_sub(self.now) })
    }

    /// Grants at once, or puts the waiter in the queue.
    pub(crate) fn join(&mut self, now: Nanos, waiter: &Waiter<'_>, effects: &mut Effects) -> Result<Joined, Denied> {
        if waiter.yields {
            self.check(waiter.cost)?;
            self.advance(now, effects);
        } else if self.take_now(now, waiter.cost, effects)? {
            return Ok(Joined::Granted);
        }
        self.admit(waiter)?;
        self.arrivals += 1;
        let entry = Entry { asked: self.asks_at(), ..Entry::new(waiter.cost, self.now, Turn::Waiting) };
        let entry = Entry { arrival: self.arrivals, is_thread: waiter.is_thread, ..entry };
        let entry = Entry { deadline: waiter.deadline, waker: Some(waiter.waker.clone()), ..entry };
        self.queued = self.queued.saturating_add(waiter.cost);
        let key = self.list.push_back(entry);
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, key)));
        self.serve(effects);
        // Only now: it is awake, and looks after its own time next. One that is done already is no timer.
        if waiter.is_thread && self.list.get(key).is_some_and(|entry| matches!(entry.turn, Turn::Waiting)) {
            self.threads.insert((self.arrivals, key));
        }
        Ok(Joined::Waits(key))
    }

    /// Whether the waiter is done; then it is forgotten. Otherwise `waker` is the one to wake.
    pub(crate) fn poll(&mut self, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) -> Stand {
        self.see(now);
        self.fetch(key);
        self.serve(effects);
        let Some(entry) = self.list.get_mut(key) else { return Stand::Done(Ok(())) };
        let done = match entry.turn {
            Turn::Granted(_) => Ok(()),
            Turn::TimedOut(after) => Err(Denied::TimedOut { after }),
            Turn::Waiting | Turn::Promised(_) | Turn::Late(_) => {
                if !entry.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
                    effects.dropped.extend(entry.waker.replace(waker.clone()));
                }
                return Stand::Waits;
            }
        };
        self.forget(key, effects);
        Stand::Done(done)
    }

    /// Until when a waiting thread may sleep, if it is the queue's timer; it is woken otherwise.
    pub(crate) fn watch(&mut self, key: Key) -> Option<Nanos> {
        if self.threads.first().is_none_or(|&(_, first)| first != key) {
            return None;
        }
        self.watched = self.alarm();
        self.watched
    }

    /// The waiter goes away. What it was granted and did not see is given back.
    pub(crate) fn leave(&mut self, now: Nanos, key: Key, effects: &mut Effects) {
        self.see(now);
        match self.list.get(key).map(|entry| entry.turn) {
            Some(Turn::Waiting | Turn::Promised(_)) => self.step_out(key),
            Some(Turn::Granted(grant)) => {
                self.give_back(&grant);
                self.free_places(grant.units);
            }
            Some(Turn::Late(grant)) => {
                self.leave_queue(key);
                self.give_back(&grant);
            }
            Some(Turn::TimedOut(_)) | None => {}
        }
        self.forget(key, effects);
        self.advance(now, effects);
    }

    /// A time is told, and kept.
    pub(crate) fn reserve(
        &mut self,
        now: Nanos,
        cost: u64,
        most_wait: Nanos,
        effects: &mut Effects,
    ) -> Result<Reserved, Denied> {
        self.check(cost)?;
        self.advance(now, effects);
        let asked = self.asks_at();
        let alone = self.list.is_empty();
        let promised = self.promise(asked, cost).ok_or(Denied::Never)?;
        let wait = promised.saturating_sub(self.now);
        if wait > most_wait {
            return Err(Denied::TooLong { wait });
        }
        if alone {
            return Ok(Reserved::Granted(self.limits.promise_at(self.now, asked, promised, cost)));
        }
        let waiter = Entry { asked, ..Entry::new(cost, self.now, Turn::Promised(promised)) };
        self.queued = self.queued.saturating_add(cost);
        self.promises += 1;
        Ok(Reserved::InQueue(self.list.push_back(waiter), promised))
    }

    /// Takes back a reservation that was granted.
    pub(crate) fn cancel(&mut self, now: Nanos, grant: &Grant, effects: &mut Effects) {
        self.see(now);
        self.give_back(grant);
        self.advance(now, effects);
    }

    /// The holder of this reservation has gone; its time is kept.
    pub(crate) fn abandon(&mut self, key: Key, effects: &mut Effects) {
        match self.list.get_mut(key) {
            Some(entry) if matches!(entry.turn, Turn::Promised(_)) => entry.abandoned = true,
            _ => self.forget(key, effects),
        }
    }

    /// Futures and threads that wait. Reservations are in the queue too, but do not wait there.
    pub(crate) fn waiters(&self) -> usize {
        self.list.len() - self.promises
    }

    /// Units that all in the queue ask for.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) fn is_head(&self, key: Key) -> bool {
        self.list.front() == Some(key)
    }

    /// When the queue must be looked at next.
    pub(crate) fn alarm(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        self.due.into_iter().chain(deadline).min()
    }

    /// Whether a [`FastPath`](super::fast_path::FastPath) can speak for this queue.
    pub(crate) fn is_plain(&self) -> bool {
        self.list.is_empty()
            && self.lag == 0
            && !self.is_paused()
            && !self.closed
            && self.places.is_none()
            && self.limits.latest() <= self.now
    }

    /// Grants what is due at `now`, and ends the waits whose deadline has passed.
    pub(crate) fn advance(&mut self, now: Nanos, effects: &mut Effects) {
        self.see(now);
        self.serve(effects);
    }

    /// Every waiter is woken, to look after its own timer.
    pub(crate) fn wake_all(&mut self, effects: &mut Effects) {
        effects.wake.extend(self.list.iter().filter_map(|entry| entry.waker.clone()));
    }

    fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    pub(crate) fn check(&self, cost: u64) -> Result<(), Denied> {
        if self.closed {
            return Err(Denied::Closed);
        }
        if self.rules.oversize == Oversize::Reject && cost > self.burst {
            return Err(Denied::AboveBurst);
        }
        if cost > self.largest_cost { Err(Denied::Never) } else { Ok(()) }
    }

    /// Whether it could be granted at once.
    fn take_now(&mut self, now: Nanos, cost: u64, effects: &mut Effects) -> Result<bool, Denied> {
        self.check(cost)?;
        self.advance(now, effects);
        if cost == 0 && self.places.is_none() {
            return Ok(true);
        }
        if (!self.list.is_empty() && !self.overtakes()) || self.no_place(cost) {
            return Ok(false);
        }
        let asked = self.asks_at();
        if asked == self.now {
            self.lag = 0;
        }
        let at = match self.limits.conforms_at(asked, cost) {
            Ok((at, _)) => at,
            // Beyond the end of the clock: a gathering waiter waits for as long as it takes, and the rate may be changed.
            Err(_) if self.rules.oversize == Oversize::Wait => return Ok(false),
            Err(_) => return Err(Denied::Never),
        };
        if at > self.now {
            return Ok(false);
        }
        let _: Grant = self.limits.release_at(self.now, asked, at, cost);
        self.hold_places(cost);
        if !self.list.is_empty() {
            self.serve(effects);
        }
        Ok(true)
    }

    /// Whether a waiter may join at all.
    fn admit(&self, waiter: &Waiter<'_>) -> Result<(), Denied> {
        if self.rules.most_waiters.is_some_and(|most| self.waiters() >= most) {
            return Err(Denied::Full);
        }
        let (Some(deadline), false) = (waiter.deadline, self.no_place(waiter.cost)) else { return Ok(()) };
        let at = self.estimate(waiter.cost).ok_or(Denied::Never)?;
        // The schedule may be behind the clock, if a waiter wakes late or a timer steps back.
        if at > deadline { Err(Denied::TooLong { wait: at.saturating_sub(self.now) }) } else { Ok(()) }
    }

    /// Whether a new request may take what is there before the waiters. Never what the head gathers, if costs above the
    /// burst do that, for it would gather for ever; and never before a promise, which counts on what was there.
    fn overtakes(&self) -> bool {
        !self.rules.fair && self.rules.oversize == Oversize::Reject && self.promises == 0
    }

    /// Now, on the schedule: the time at which a newcomer asks, and from which a change counts. It is behind the clock by
    /// the lag, until the limits come to rest or the next grant lies ahead of the clock.
    fn asks_at(&self) -> Nanos {
        let behind = self.now.saturating_sub(self.lag);
        let caught_up = self.lag == 0 || self.limits.at_rest(behind) || self.limits.latest() > self.now;
        self.floor.max(if caught_up { self.now } else { behind })
    }
}

impl Entry {
    fn new(cost: u64, since: Nanos, turn: Turn) -> Self {
        let (deadline, waker) = (None, None);
        Entry { cost, asked: since, since, deadline, turn, waker, arrival: 0, is_thread: false, abandoned: false }
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLong { wait } => Denied::TooLong { wait },
            Refusal::Never => Denied::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::bucket::Bucket;
    use crate::rate::Rate;
    use std::num::NonZeroU64;

    #[test]
    fn a_thread_whose_time_is_over_when_it_joins_is_not_the_timer() {
        let rate = Rate::new(NonZeroU64::MIN, NonZeroU64::MIN);
        let limits = Limits::none(0).with_bucket(Bucket::new(rate, NonZeroU64::MIN, 1, 0));
        let rules = Rules { fair: true, oversize: Oversize::Reject, most_waiters: None };
        let mut queue = Queue::new(limits, rules, Some(Places { capacity: 0, held: 0 }));
        let effects = &mut Effects::default();
        let mut join = |deadline| {
            let waiter = Waiter { cost: 1, deadline, waker: Waker::noop(), is_thread: true, yields: false };
            match queue.join(7, &waiter, effects) {
                Ok(Joined::Waits(key)) => key,
                other => panic!("it waits for a place: {other:?}"),
            }
        };
        let (over, waits) = (join(Some(7)), join(Some(20)));
        assert_eq!(queue.watch(over), None);
        assert_eq!(queue.watch(waits), Some(20), "otherwise nothing looks when its time is over");
        assert!(matches!(queue.poll(7, over, Waker::noop(), effects), Stand::Done(Err(Denied::TimedOut { after: 0 }))));
    }
}
