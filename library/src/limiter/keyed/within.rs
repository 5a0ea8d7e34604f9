//! Keys within overall limits: a ledger behind a lock, with the futures and threads that wait for its grants.

use crate::clock::Nanos;
use crate::ledger::{self, Ledger, Next, Ticket};
use crate::limiter::builder::{BuildError, Builder};
use crate::limiter::queue::{Denied, Effects, Key, Waiter};
use crate::limiter::rules::Rules;
use crate::limiter::serve::Serve;
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::time::{Time, nanos};
use crate::limiter::units::PARTS;
use crate::limiter::watch::Watch;
use crate::limits::{AsKey, Charged, Cost, Grant, Limits};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The most requests of its key that a request with a deadline counts to find out at once that it is too late.
const MAX_COUNTED: usize = 1000;

/// Keys within overall limits. Clones share one state.
pub(super) struct Within<K> {
    shared: Arc<Shared<Waiters<K>>>,
    /// The same, without the type of the key.
    waitable: Arc<Shared<dyn Serve + Send>>,
}

impl<K> Clone for Within<K> {
    fn clone(&self) -> Self {
        Within { shared: Arc::clone(&self.shared), waitable: Arc::clone(&self.waitable) }
    }
}

/// A ledger and the waiters of its requests.
pub(super) struct Waiters<K> {
    pub(super) ledger: Ledger<K>,
    /// The waiters by age, also after the answer, until they fetch it.
    entries: BTreeMap<Key, Entry>,
    waiting: usize,
    watch: Watch,
    /// The rules of each key, and the rules of all keys together.
    rules: [Rules; 2],
    /// The largest costs, see [`Rules::most_of`].
    most: (u64, u64),
    /// The age of the latest request.
    latest: Key,
    alarm: Option<Nanos>,
    is_closed: bool,
}

struct Entry {
    cost: u64,
    since: Nanos,
    deadline: Option<Nanos>,
    waker: Option<Waker>,
    is_thread: bool,
    /// Whether its grant will be settled.
    settles: bool,
    status: Status,
}

enum Status {
    Waiting(Ticket),
    Granted(Charged),
    Refused(Denied),
}

impl<K: Hash> Within<K> {
    pub(super) fn new(of_key: &Builder, of_all: &Builder, most_keys: usize) -> Result<Self, BuildError>
    where
        K: Send + 'static,
    {
        let (time, rules_of_key) = of_key.parts()?;
        let (_, rules_of_all) = of_all.parts()?;
        let rules = [rules_of_key, rules_of_all];
        if rules.iter().any(|rules| rules.unfair) {
            return Err(BuildError::JointIsFair);
        }
        let now = time.now();
        let ledger = Ledger::in_parts(of_key.limits(now)?, of_all.limits(now)?, now, most_keys);
        let mut waiters = Waiters {
            ledger,
            entries: BTreeMap::new(),
            waiting: 0,
            watch: Watch::default(),
            rules,
            most: (0, 0),
            latest: 0,
            alarm: None,
            is_closed: false,
        };
        waiters.note_most();
        let shared = Shared::new(time, waiters);
        Ok(Within { waitable: shared.clone(), shared })
    }

    pub(super) fn time(&self) -> &Time {
        &self.shared.time
    }

    pub(super) fn waitable(&self) -> &Arc<Shared<dyn Serve + Send>> {
        &self.waitable
    }

    /// Runs `act` under the lock, at the time to which the ledger was advanced. Then grants what is due.
    pub(super) fn change<R>(&self, act: impl FnOnce(&mut Waiters<K>, Nanos) -> R) -> R {
        self.shared.with(|waiters, now, effects| {
            waiters.advance(now, effects);
            let result = act(waiters, now);
            waiters.advance(now, effects);
            result
        })
    }

    /// Takes `cost` now, or nothing. Returns the grant if it will be settled.
    pub(super) fn try_take<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        settles: bool,
    ) -> Result<Option<Grant>, Denied> {
        let taken = self.shared.with_usual(
            |waiters, now| waiters.take(now, key, cost, settles),
            |waiters, now, effects| waiters.try_take(now, key, cost, settles, effects),
        );
        taken.map(|charged| charged.filter(|_| settles).map(|charged| Grant::charged_as(charged, cost)))
    }

    /// Grants a request at once, or lets it wait.
    pub(super) fn join<Q: AsKey<K> + ?Sized>(&self, wait: &mut Wait, key: &Q, waiter: &Waiter<'_>, settles: bool) {
        self.shared.with(|waiters, now, effects| {
            effects.opens = settles;
            let joined = waiters.join(now, key, waiter, effects);
            wait.joined(joined, effects);
        });
        wait.announce();
    }

    /// Changes the limits of each key. `make` receives the present limits and the index of the limit whose rate can be
    /// changed, and returns the new ones.
    pub(super) fn set_limits<E>(
        &self,
        make: impl FnOnce(&Limits, Option<usize>, Nanos) -> Result<(Limits, Option<usize>), E>,
    ) -> Result<(), E> {
        self.shared.with(|waiters, now, effects| {
            let mut place = waiters.rules[0].place;
            waiters.advance(now, effects);
            waiters.ledger.change_each(now, |each, now| {
                let (to, new_place) = make(each, place, now)?;
                place = new_place;
                Ok(to)
            })?;
            waiters.rules[0].place = place;
            waiters.limits_changed(now, effects);
            Ok(())
        })
    }
}

impl<K: Hash> Waiters<K> {
    fn note_most(&mut self) {
        let [each, all] = self.ledger.both();
        let (of_key, of_all) = (self.rules[0].most_of(0, each), self.rules[1].most_of(0, all));
        self.most = (of_key.0.min(of_all.0), of_key.1.min(of_all.1));
    }

    fn check(&self, cost: u64) -> Result<(), Denied> {
        let (at_once, ever) = self.most;
        match cost {
            _ if self.is_closed => Err(Denied::Closed),
            _ if cost > at_once => Err(Denied::AboveBurst(0, at_once)),
            _ if cost > ever => Err(Denied::Never(0)),
            _ => Ok(()),
        }
    }

    /// Answers a request that needs no wait: it is refused for its cost, or costs nothing, or is granted before all others.
    /// If it `is_open`, the grant is kept.
    fn take<Q: AsKey<K> + ?Sized>(
        &mut self,
        now: Nanos,
        key: &Q,
        cost: u64,
        is_open: bool,
    ) -> Option<Result<Option<Charged>, Denied>> {
        if let Err(denied) = self.check(cost) {
            return Some(Err(denied));
        }
        match cost {
            0 if !is_open => Some(Ok(None)),
            0 => Some(self.ledger.open_nothing(now, key).map(Some).ok_or(Denied::TooManyKeys)),
            _ if is_open => {
                self.ledger.pass_to_settle(now, key, &ledger::Costs::One(cost)).map(|charged| Ok(Some(charged)))
            }
            _ => self.ledger.pass_key(now, key, &[cost]).map(|_| Ok(None)),
        }
    }

    fn try_take<Q: AsKey<K> + ?Sized>(
        &mut self,
        now: Nanos,
        key: &Q,
        cost: u64,
        settles: bool,
        effects: &mut Effects,
    ) -> Result<Option<Charged>, Denied> {
        self.advance(now, effects);
        if let Some(taken) = self.take(now, key, cost, settles) {
            return taken;
        }
        if !self.ledger.has_room_of(now, key) {
            return Err(Denied::TooManyKeys);
        }
        if self.ledger.others_wait(key) {
            return Err(Denied::OthersWait);
        }
        let at = self.ledger.estimate(now, key, cost, 0).ok_or(Denied::Never(0))?;
        Err(Denied::TooLong { wait: at.saturating_sub(now) })
    }

    fn join<Q: AsKey<K> + ?Sized>(
        &mut self,
        now: Nanos,
        key: &Q,
        waiter: &Waiter<'_>,
        effects: &mut Effects,
    ) -> Result<Option<Key>, Denied> {
        let (cost, settles) = (waiter.cost.of(0), effects.opens);
        self.advance(now, effects);
        if let Some(taken) = self.take(now, key, cost, settles || waiter.yields) {
            let charged = taken?;
            if let Some(charged) = charged.filter(|_| waiter.yields) {
                return Ok(Some(self.insert(now, waiter, settles, Status::Granted(charged))));
            }
            effects.granted = charged.map(|charged| Grant::charged_as(charged, cost));
            return Ok(None);
        }
        self.admit(now, key, waiter)?;
        let latest = waiter.deadline.unwrap_or(Nanos::MAX);
        let ticket = self.ledger.ask_by(now, key, (self.latest + 1, cost), latest).ok_or(Denied::Never(0))?;
        let age = self.insert(now, waiter, settles, Status::Waiting(ticket));
        if waiter.yields {
            self.advance(now, effects);
        } else if let Poll::Ready(done) = self.poll(now, age, waiter.waker, effects) {
            return done.map(|()| None);
        }
        // It is awake, and looks next, so only now it may be the timer.
        if waiter.is_thread {
            self.watch.add(age);
        }
        Ok(Some(age))
    }

    /// Refuses a request that may not wait.
    fn admit<Q: AsKey<K> + ?Sized>(&mut self, now: Nanos, key: &Q, waiter: &Waiter<'_>) -> Result<(), Denied> {
        if !self.ledger.has_room_of(now, key) {
            return Err(Denied::TooManyKeys);
        }
        let waiting = [self.ledger.waiters_of(key), self.waiting];
        if self.rules.iter().zip(waiting).any(|(rules, waiting)| rules.most_waiters.is_some_and(|most| waiting >= most))
        {
            return Err(Denied::Full);
        }
        let Some(deadline) = waiter.deadline else { return Ok(()) };
        let at = self.ledger.estimate(now, key, waiter.cost.of(0), MAX_COUNTED).ok_or(Denied::Never(0))?;
        if at > deadline { Err(Denied::TooLong { wait: at.saturating_sub(now) }) } else { Ok(()) }
    }

    fn insert(&mut self, now: Nanos, waiter: &Waiter<'_>, settles: bool, status: Status) -> Key {
        let Waiter { deadline, waker, is_thread, .. } = *waiter;
        self.latest += 1;
        self.waiting += usize::from(matches!(status, Status::Waiting(_)));
        let waker = waiter.yields.then(|| waker.clone());
        let entry = Entry { cost: waiter.cost.of(0), since: now, deadline, waker, is_thread, settles, status };
        self.entries.insert(self.latest, entry);
        self.latest
    }

    /// A waiter is granted or refused.
    fn answer(&mut self, age: Key, status: Status, effects: &mut Effects) {
        self.watch.remove(age);
        if let Some(entry) = self.entries.get_mut(&age) {
            self.waiting -= 1;
            entry.status = status;
            effects.wake.extend(entry.waker.take());
        }
    }

    /// Refuses the waiters for more units than the new limits ever grant.
    fn limits_changed(&mut self, now: Nanos, effects: &mut Effects) {
        self.note_most();
        let too_large = |(age, entry): (&Key, &Entry)| match entry.status {
            Status::Waiting(ticket) if entry.cost > self.most.1 => Some((*age, ticket)),
            _ => None,
        };
        for (age, ticket) in self.entries.iter().filter_map(too_large).collect::<Vec<_>>() {
            self.ledger.cancel(ticket);
            self.answer(age, Status::Refused(Denied::Never(0)), effects);
        }
        self.advance(now, effects);
    }

    /// A granted waiter takes its grant, and windows count it from now on. If a window has given its room away, the waiter
    /// waits again, ahead of younger requests.
    fn hand_over(&mut self, now: Nanos, age: Key) {
        let Some(entry) = self.entries.get_mut(&age) else { return };
        let Status::Granted(charged) = entry.status else { return };
        if self.ledger.hand_over_open(now, charged.number) {
            return;
        }
        let latest = entry.deadline.unwrap_or(Nanos::MAX);
        let Some(ticket) = self.ledger.ask_again(now, charged.number, age, latest) else { return };
        entry.status = Status::Waiting(ticket);
        self.waiting += 1;
        if entry.is_thread {
            self.watch.add(age);
        }
    }

    pub(super) fn time_until<Q: AsKey<K> + ?Sized>(
        &mut self,
        now: Nanos,
        key: &Q,
        cost: u64,
    ) -> Result<Duration, Denied> {
        self.check(cost)?;
        let at = if cost == 0 { Some(now) } else { self.ledger.estimate(now, key, cost, usize::MAX) };
        let at = at.ok_or(Denied::Never(0))?;
        Ok(Duration::from_nanos(at.saturating_sub(now)))
    }

    /// Holds a key.
    pub(super) fn pause<Q: AsKey<K> + ?Sized>(&mut self, now: Nanos, key: &Q, until: Nanos) -> Result<(), Denied> {
        if self.is_closed && !self.ledger.is_stored(key) {
            return Err(Denied::Closed);
        }
        if self.ledger.hold_key_until(now, key, until) { Ok(()) } else { Err(Denied::TooManyKeys) }
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl<K: Hash> Serve for Waiters<K> {
    fn advance(&mut self, now: Nanos, effects: &mut Effects) {
        self.alarm = loop {
            match self.ledger.poll(now, u64::MAX) {
                Next::Granted(taken, charged) => self.answer(taken.age, Status::Granted(charged), effects),
                Next::Refused(taken, _) => {
                    let waited = |entry: &Entry| entry.deadline.unwrap_or(now).saturating_sub(entry.since);
                    let after = self.entries.get(&taken.age).map_or(0, waited);
                    self.answer(taken.age, Status::Refused(Denied::TimedOut { after }), effects);
                }
                Next::At(time) => break Some(time),
                Next::Run(_) | Next::Nothing => break None,
            }
        };
        if let Some(age) = self.watch.oversleeps(self.alarm) {
            effects.wake.extend(self.entries.get(&age).and_then(|entry| entry.waker.clone()));
        }
    }

    fn alarm(&self) -> Option<Nanos> {
        self.alarm
    }

    fn waiters(&self) -> usize {
        self.waiting
    }

    fn wake_all(&mut self, effects: &mut Effects) {
        effects.wake.extend(self.entries.values().filter_map(|entry| entry.waker.clone()));
    }

    fn poll(&mut self, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) -> Poll<Result<(), Denied>> {
        self.hand_over(now, key);
        self.advance(now, effects);
        let Some(entry) = self.entries.get_mut(&key) else { return Poll::Ready(Ok(())) };
        let done = match entry.status {
            Status::Waiting(_) => {
                if !entry.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
                    effects.dropped.extend(entry.waker.replace(waker.clone()));
                }
                return Poll::Pending;
            }
            Status::Granted(charged) => {
                if entry.settles {
                    effects.granted = Some(Grant::charged_as(charged, entry.cost));
                } else {
                    self.ledger.ended(now, charged.number);
                }
                Ok(())
            }
            Status::Refused(denied) => Err(denied),
        };
        effects.dropped.extend(self.entries.remove(&key).and_then(|entry| entry.waker));
        Poll::Ready(done)
    }

    fn watch(&mut self, key: Key) -> Option<Nanos> {
        self.watch.begin(key, self.alarm)
    }

    fn is_watched(&self, key: Key, until: Nanos) -> bool {
        self.watch.is_until(key, until)
    }

    fn leave(&mut self, now: Nanos, key: Key, effects: &mut Effects) {
        // Until now it held up those behind it.
        self.advance(now, effects);
        let Some(entry) = self.entries.remove(&key) else { return };
        match entry.status {
            Status::Waiting(ticket) => {
                self.watch.remove(key);
                self.waiting -= 1;
                self.ledger.cancel(ticket);
            }
            Status::Granted(charged) => self.ledger.give_back(now, charged.number),
            Status::Refused(_) => {}
        }
        effects.dropped.extend(entry.waker);
        self.advance(now, effects);
    }

    fn settle(&mut self, now: Nanos, grant: &Grant, [_, real]: [&Cost; 2], effects: &mut Effects) {
        self.advance(now, effects);
        self.ledger.settle(now, grant.number(), real.list());
        self.advance(now, effects);
    }

    fn close_grant(&mut self, now: Nanos, grant: &Grant) {
        self.ledger.ended(now, grant.number());
    }
}

impl<K> fmt::Debug for Waiters<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// The overall limits of a [`Keyed`](super::Keyed), see [`Keyed::of_all`](super::Keyed::of_all).
pub struct OfAll<'a, K>(pub(super) &'a Within<K>);

impl<K: Hash> OfAll<'_, K> {
    /// Grants nothing to any key for `time` from now, for example because the server asked for that. At the end of the
    /// pause the overall limits are empty. Waiters keep their places.
    pub fn pause_for(&self, time: Duration) {
        self.0.change(|waiters, now| waiters.ledger.hold_all_until(now, now.saturating_add(nanos(time))));
    }

    /// Replaces the overall limits; see [`Limiter::set_limits`](crate::limiter::Limiter::set_limits).
    ///
    /// # Errors
    /// As for [`Builder::build`]. Nothing is changed then.
    pub fn set_limits(&self, to: &Builder) -> Result<(), BuildError> {
        let place = to.place()?;
        self.0.shared.with(|waiters, now, effects| {
            waiters.advance(now, effects);
            waiters.ledger.change_all(now, |_, now| to.limits(now))?;
            waiters.rules[1].place = place;
            waiters.limits_changed(now, effects);
            Ok(())
        })
    }

    /// The whole units that could be taken now by a key that has used nothing. It is 0 while requests wait for the overall
    /// limits.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.0.change(|waiters, now| waiters.ledger.available_of_all(now) / PARTS)
    }
}
