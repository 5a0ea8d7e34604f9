//! The line of waiters before its limits, as pure decisions: time is a parameter, nobody sleeps, nobody is woken here.
//!
//! Only the head's time is reckoned; those behind are when they get there. So leaving costs nothing, wherever one
//! stands, and everybody behind moves up by it. A reservation made behind waiters stands in the line too, with the time
//! it was told: whoever is before it may move up, it stays, and what comes after it is not granted before that time.
//!
//! Time runs on two clocks. Grants are reckoned on the schedule, which starts from requests and from the last grant and
//! knows nothing of wake-ups; who is granted leaves when the real clock has got there and somebody looked. How far the
//! schedule is behind, where the bucket is too small to hold that much, is the `lag`: who asks next asks that much
//! earlier, so that late timers cost no rate. It is forgotten when the limits come to rest.

use super::Oversize;
use super::line::{Key, Line};
use super::panics::Panics;
use crate::clock::Nanos;
use crate::limits::{Grant, Limits, Refusal};
use crate::rate::Rate;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::task::Waker;

mod serving;

/// What a queue keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Nobody is served while others wait. Who may overtake otherwise, see [`Queue::overtakes`].
    pub(crate) fair: bool,
    pub(crate) oversize: Oversize,
    /// Who would be one more than this many waiters is refused.
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
    line: Line<Entry>,
    /// Units that those in line ask for.
    queued: u64,
    /// How many in line were told a time.
    promises: usize,
    /// The latest reading of the clock. Earlier ones count as this.
    now: Nanos,
    /// The head is reckoned from here at the earliest, on the schedule: since then nobody before it holds it up. During a
    /// pause, its end.
    floor: Nanos,
    lag: Nanos,
    /// Of the limits: the time the first bucket needs to fill, how late a wake-up may be, the most units at once, and
    /// the most in one grant.
    fill_time: Nanos,
    allowance: Nanos,
    burst: u64,
    largest_cost: u64,
    /// When the head will be granted; `None` where nobody waits, or only for a place.
    due: Option<Nanos>,
    deadlines: BTreeSet<(Nanos, Key)>,
    /// Waiting threads in order of arrival. The first keeps time for the line while it waits.
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
    /// Nobody will come for this one.
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

/// Who waits, and how.
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

/// Where a waiter stands.
#[derive(Debug)]
pub(crate) enum Stand {
    Waits,
    Done(Result<(), Denied>),
}

/// The outcome of reserving.
#[derive(Debug)]
pub(crate) enum Reserved {
    Granted(Grant),
    InLine(Key, Nanos),
}

impl Queue {
    pub(crate) fn new(limits: Limits, rules: Rules, places: Option<Places>) -> Self {
        Queue {
            rules,
            places,
            line: Line::new(),
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
        if self.rules.fair && !self.line.is_empty() {
            return Err(Denied::OthersWait);
        }
        let at = self.estimate(cost).ok_or(Denied::Never)?;
        Err(Denied::TooLong { wait: at.saturating_sub(self.now) })
    }

    /// Grants at once, or puts the waiter in line.
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
        let key = self.line.push_back(entry);
        self.deadlines.extend(waiter.deadline.map(|deadline| (deadline, key)));
        self.serve(effects);
        // Only now: it is awake, and looks after its own time next. One that is done already keeps time for nobody.
        if waiter.is_thread && self.line.get(key).is_some_and(|entry| matches!(entry.turn, Turn::Waiting)) {
            self.threads.insert((self.arrivals, key));
        }
        Ok(Joined::Waits(key))
    }

    /// Whether the waiter is done; then it is forgotten. Otherwise `waker` is the one to wake.
    pub(crate) fn poll(&mut self, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) -> Stand {
        self.see(now);
        self.fetch(key);
        self.serve(effects);
        let Some(entry) = self.line.get_mut(key) else { return Stand::Done(Ok(())) };
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

    /// Until when a waiting thread may sleep, where it keeps time for the line; it is woken otherwise.
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
        match self.line.get(key).map(|entry| entry.turn) {
            Some(Turn::Waiting | Turn::Promised(_)) => self.step_out(key),
            Some(Turn::Granted(grant)) => {
                self.give_back(&grant);
                self.free_places(grant.units);
            }
            Some(Turn::Late(grant)) => {
                self.leave_line(key);
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
        let alone = self.line.is_empty();
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
        Ok(Reserved::InLine(self.line.push_back(waiter), promised))
    }

    /// Takes back a reservation that was granted.
    pub(crate) fn cancel(&mut self, now: Nanos, grant: &Grant, effects: &mut Effects) {
        self.see(now);
        self.give_back(grant);
        self.advance(now, effects);
    }

    /// Nobody will come for this reservation any more; its time is kept.
    pub(crate) fn abandon(&mut self, key: Key, effects: &mut Effects) {
        match self.line.get_mut(key) {
            Some(entry) if matches!(entry.turn, Turn::Promised(_)) => entry.abandoned = true,
            _ => self.forget(key, effects),
        }
    }

    /// Settles what was granted as `granted` and came out as `used`. What was used beyond that is paid before anybody is
    /// granted anything; what was not used is given back, as far as there is room.
    pub(crate) fn reconcile(&mut self, now: Nanos, used: u64, granted: u64, effects: &mut Effects) {
        let at = self.settle(now, effects);
        self.limits.pay(at, used.saturating_sub(granted));
        if !self.is_paused() {
            self.limits.credit(at, granted.saturating_sub(used));
        }
        self.serve(effects);
    }

    /// Nobody is granted anything before `until`, and nothing is saved up by then. Waiters keep their places.
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
    pub(super) fn is_paused(&self) -> bool {
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

    /// Whoever is in line is served; whoever comes is refused.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Futures and threads that wait. Reservations stand in line too, but nobody waits there.
    pub(crate) fn waiters(&self) -> usize {
        self.line.len() - self.promises
    }

    /// Units that all in line ask for.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) fn is_head(&self, key: Key) -> bool {
        self.line.front() == Some(key)
    }

    /// Units that could be had now by who comes now, whoever waits.
    pub(crate) fn level(&mut self, now: Nanos, effects: &mut Effects) -> u64 {
        self.advance(now, effects);
        if self.is_paused() { 0 } else { self.limits.available(self.now) }
    }

    /// When who comes now would be granted `cost`, if everybody before stays.
    pub(crate) fn estimate(&self, cost: u64) -> Option<Nanos> {
        if cost > self.largest_cost {
            return None;
        }
        let asked = self.asks_at();
        let conforms = |limits: &Limits| limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        let Some(head) = self.line.front().and_then(|key| self.line.get(key)) else { return conforms(&self.limits) };
        if self.overtakes() && conforms(&self.limits).is_some_and(|at| at <= self.now) {
            return Some(self.now);
        }
        // As long as the line may be, where all of it is paid by one bucket it takes as long as one cost of that size.
        if self.promises == 0 && self.limits.pays_steadily() {
            return self.limits.schedule(head.asked.max(self.floor), self.queued.saturating_add(cost));
        }
        conforms(&self.after_line(0)?)
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

    /// When the queue must be looked at next.
    pub(crate) fn alarm(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        self.due.into_iter().chain(deadline).min()
    }

    /// Whether a [`FastPath`](super::fast_path::FastPath) can speak for this queue.
    pub(crate) fn is_plain(&self) -> bool {
        self.line.is_empty()
            && self.lag == 0
            && !self.is_paused()
            && !self.closed
            && self.places.is_none()
            && self.limits.latest() <= self.now
    }

    /// Grants what is due at `now`, and lets go whose deadline has passed.
    pub(crate) fn advance(&mut self, now: Nanos, effects: &mut Effects) {
        self.see(now);
        self.serve(effects);
    }

    /// Every waiter is woken, to look after its own timer.
    pub(crate) fn wake_all(&mut self, effects: &mut Effects) {
        effects.wake.extend(self.line.iter().filter_map(|entry| entry.waker.clone()));
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
        if (!self.line.is_empty() && !self.overtakes()) || self.no_place(cost) {
            return Ok(false);
        }
        let asked = self.asks_at();
        if asked == self.now {
            self.lag = 0;
        }
        let at = match self.limits.conforms_at(asked, cost) {
            Ok((at, _)) => at,
            // Beyond the end of the clock: who gathers does so for as long as it takes, and the rate may be changed.
            Err(_) if self.rules.oversize == Oversize::Wait => return Ok(false),
            Err(_) => return Err(Denied::Never),
        };
        if at > self.now {
            return Ok(false);
        }
        let _: Grant = self.limits.release_at(self.now, asked, at, cost);
        self.hold_places(cost);
        if !self.line.is_empty() {
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
        // The schedule may be behind the clock, where somebody wakes late or a timer steps back.
        if at > deadline { Err(Denied::TooLong { wait: at.saturating_sub(self.now) }) } else { Ok(()) }
    }

    /// Whether who comes may take what is there before those who wait. Never what the head gathers, where a cost above
    /// the burst does that, for it would gather for ever; and never before a promise, which reckons with what was there.
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

    /// The time a reservation for `cost` would be told: everybody before it is served first.
    fn promise(&self, asked: Nanos, cost: u64) -> Option<Nanos> {
        if self.line.is_empty() {
            return self.limits.conforms_at(asked, cost).ok().map(|(at, _)| at);
        }
        // Should those before it move up, a promise comes later than its least time, and the fraction of a nanosecond
        // that is kept otherwise is lost to those behind it.
        self.after_line(1)?.conforms_at(asked, cost).ok().map(|(at, _)| at)
    }

    /// The limits as everybody in line will leave them, if all stay, and promises are granted `late`.
    fn after_line(&self, late: Nanos) -> Option<Limits> {
        let mut limits = self.limits.clone();
        let mut floor = self.floor;
        for entry in self.line.iter() {
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

    #[test]
    fn a_thread_whose_time_is_over_when_it_joins_keeps_time_for_nobody() {
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
        assert_eq!(queue.watch(waits), Some(20), "nobody would look when its time is over");
        assert!(matches!(queue.poll(7, over, Waker::noop(), effects), Stand::Done(Err(Denied::TimedOut { after: 0 }))));
    }
}
