//! A queue behind its lock, with the fast path before it and the timer beside it.

use super::events;
use super::fast_path::{FastPath, Take};
use super::panics::Panics;
use super::queue::{Denied, Effects, Key, Queue, Waiter};
use super::serve::Serve;
use super::time::Time;
use super::timer::{self, TestTimer, Timers};
use crate::clock::sync::{Mutex, MutexGuard, lock};
use crate::clock::timer_thread::TimerThread;
use crate::clock::{Nanos, Unpark};
use crate::limits::{Account, Cost, Grant};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::task::coop;

#[derive(Debug)]
pub(crate) struct Shared<Q: ?Sized = Queue> {
    fast_path: FastPath,
    timers: Mutex<Timers>,
    thread: Arc<TimerThread>,
    /// Serves the queue, on behalf of a timer.
    waker: Waker,
    pub(crate) time: Time,
    /// Whether this is a semaphore.
    has_places: bool,
    queue: Mutex<Locked<Q>>,
}

/// The state that the lock protects.
#[derive(Debug)]
struct Locked<Q: ?Sized> {
    /// When the timers must fire next, and whether there are waiters.
    alarm: (Option<Nanos>, bool),
    queue: Q,
}

/// The actions that follow once no lock is held, because they run the caller's code.
#[must_use]
pub(crate) struct After {
    rearm: bool,
    effects: Effects,
}

impl<Q: Serve + Send + 'static> Shared<Q> {
    pub(crate) fn new(time: Time, queue: Q) -> Arc<Self> {
        let has_places = queue.has_places();
        let queue = Mutex::new(Locked { queue, alarm: (None, false) });
        let shared = |weak: &Weak<Self>| Shared {
            fast_path: FastPath::new(),
            queue,
            timers: Mutex::new(Timers::default()),
            thread: TimerThread::of_process(),
            waker: Waker::from(Arc::new(Fire(weak.clone()))),
            time,
            has_places,
        };
        let shared = Arc::new_cyclic(shared);
        shared.with(Q::advance);
        shared
    }
}

impl<Q: Serve + ?Sized> Shared<Q> {
    /// Runs `action` under the lock, and wakes waiters after it.
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut Q, Nanos, &mut Effects) -> R) -> R {
        let (result, after) = self.change(action);
        self.follow(after);
        result
    }

    /// Like [`with`](Self::with), but the caller passes the returned actions to [`follow`](Self::follow).
    pub(crate) fn change<R>(&self, action: impl FnOnce(&mut Q, Nanos, &mut Effects) -> R) -> (R, After) {
        let (now, locked) = self.lock();
        self.change_at(now, locked, action)
    }

    /// Reads the clock, takes the lock and closes the fast path. The clock is read before the lock is taken, because it
    /// may be the caller's code. If the fast path has granted anything meanwhile, the clock is read again.
    fn lock(&self) -> (Nanos, MutexGuard<'_, Locked<Q>>) {
        loop {
            let seen = self.fast_path.seen();
            let now = self.time.now();
            let mut locked = lock(&self.queue);
            if locked.queue.close_fast_path(&self.fast_path, seen, now) {
                return (self.fast_path.in_order(now), locked);
            }
        }
    }

    fn change_at<R>(
        &self,
        now: Nanos,
        mut locked: MutexGuard<'_, Locked<Q>>,
        action: impl FnOnce(&mut Q, Nanos, &mut Effects) -> R,
    ) -> (R, After) {
        let mut effects = Effects::default();
        locked.queue.close_places(&self.fast_path);
        let result = action(&mut locked.queue, now, &mut effects);
        locked.queue.open_fast_path(&self.fast_path);
        let alarm = (locked.queue.alarm(), locked.queue.waiters() > 0);
        let rearm = std::mem::replace(&mut locked.alarm, alarm) != alarm;
        (result, After { rearm, effects })
    }

    /// Sets the timers and wakes the waiters.
    pub(crate) fn follow(&self, after: After) {
        let mut panics = Panics::default();
        if after.rearm {
            panics.hold(|| _ = self.set_timers());
        }
        after.effects.run();
        panics.resume();
    }

    /// Reads the state as it was left.
    pub(super) fn see<R>(&self, look: impl FnOnce(&Q) -> R) -> R {
        look(&lock(&self.queue).queue)
    }

    /// Like [`with`](Self::with), for requests of the usual case. While nobody waits, `usual` decides, no waker is
    /// woken and no timer is set. If `usual` returns `None`, it has changed nothing, and `action` decides.
    pub(super) fn with_usual<R>(
        &self,
        usual: impl FnOnce(&mut Q, Nanos) -> Option<R>,
        action: impl FnOnce(&mut Q, Nanos, &mut Effects) -> R,
    ) -> R {
        let (now, mut locked) = self.lock();
        if let Some(result) = usual(&mut locked.queue, now) {
            locked.queue.open_fast_path(&self.fast_path);
            return result;
        }
        let (result, after) = self.change_at(now, locked, action);
        self.follow(after);
        result
    }

    /// Settles an open grant of these costs at its real costs.
    pub(super) fn settle(&self, grant: &Grant, costs: [&Cost; 2]) {
        self.with_usual(
            |queue, now| queue.settle_quietly(now, grant, costs).then_some(()),
            |queue, now, effects| queue.settle(now, grant, costs, effects),
        );
    }

    /// Closes an open grant that will not be settled: its charge was its real cost.
    pub(super) fn close_grant(&self, grant: &Grant) {
        let close = |queue: &mut Q, now| {
            queue.close_grant(now, grant);
            Some(())
        };
        self.with_usual(close, |_, _, _| ());
    }
}

impl Shared {
    pub(crate) fn time_until(&self, cost: &Cost) -> Result<Duration, Denied> {
        self.with(|queue, now, effects| {
            queue.advance(now, effects);
            queue.check(cost)?;
            if cost.largest() == 0 {
                return Ok(Duration::ZERO);
            }
            let at = queue.estimate(cost).ok_or(Denied::Never(0))?;
            Ok(Duration::from_nanos(at.saturating_sub(now)))
        })
    }

    /// Takes places of a semaphore and the same number of tokens now, or nothing. If the result is not
    /// [`Take::Granted`], the queue must answer.
    #[inline]
    pub(crate) fn take_place(&self, places: u64) -> Take {
        loop {
            let seen = self.fast_path.seen();
            if self.fast_path.is_closed() {
                return Take::Closed;
            }
            // The clock is read before a place is taken: it may be the caller's code, and panic.
            let now = self.time.now();
            if !self.fast_path.hold_places(places) {
                return Take::Closed;
            }
            let taken = self.fast_path.take_since(seen, now, places);
            if taken != Some(Take::Granted) {
                self.release(places);
            }
            if let Some(taken) = taken {
                return taken;
            }
        }
    }

    /// Frees the places of a permit.
    #[inline]
    pub(crate) fn release(&self, places: u64) {
        if !self.fast_path.free_places(places) {
            self.with(|queue, now, effects| queue.release(now, places, effects));
        }
    }

    pub(crate) fn pause_until(&self, until: Nanos) {
        self.with(|queue, now, effects| queue.pause_until(now, until, effects));
    }

    /// Takes `cost` now, or nothing. After [`Take::Closed`] the caller uses [`try_in_queue`](Self::try_in_queue).
    #[inline]
    pub(crate) fn try_take(&self, cost: &Cost) -> Take {
        if let Cost::One(cost) = cost { self.fast_path.take(|| self.time.now(), *cost) } else { Take::Closed }
    }

    /// Takes `cost` now, or nothing. Returns whether it was taken.
    pub(crate) fn try_now(&self, cost: &Cost) -> bool {
        match self.try_take(cost) {
            Take::Granted => true,
            Take::TooLong(_) => false,
            Take::Closed => self.try_in_queue(cost).is_ok(),
        }
    }

    #[inline(never)]
    pub(crate) fn try_in_queue(&self, cost: &Cost) -> Result<(), Denied> {
        let usual = |queue: &mut Queue, now| {
            let (account, now) = queue.quiet_account(now, cost.list().len())?;
            account.take_usual(now, cost).map(|_| Ok(()))
        };
        self.with_usual(usual, |queue, now, effects| queue.try_take(now, cost, effects))
    }

    /// Like [`try_in_queue`](Self::try_in_queue), for a grant that will be settled. `None` if it cost nothing.
    pub(crate) fn try_to_settle(&self, cost: &Cost) -> Result<Option<Grant>, Denied> {
        self.with_usual(
            |queue, now| {
                let (account, now) = queue.quiet_account(now, cost.list().len())?;
                account.open_usual(now, cost).map(|grant| Ok(Some(grant)))
            },
            |queue, now, effects| {
                effects.opens = true;
                queue.try_take(now, cost, effects).map(|()| effects.granted.take())
            },
        )
    }
}

/// The timers of the queue.
impl<Q: Serve + ?Sized> Shared<Q> {
    /// Makes sure that a timer will wake the future that is being polled.
    ///
    /// # Errors
    /// [`Denied::NoTimer`]
    pub(super) fn want_timer(&self) -> Result<(), Denied> {
        let is_set = self.time.timer().is_some() || {
            let mut timers = lock(&self.timers);
            let (alarm, _) = lock(&self.queue).alarm;
            timers.want(&self.time, alarm)
        };
        if is_set { Ok(()) } else { self.set_timers() }
    }

    /// Sets all timers to the queue's next time. If the thread cannot be started, the waiters are woken; they
    /// [want](Self::want_timer) a timer again and get the error.
    fn set_timers(&self) -> Result<(), Denied> {
        let (mut panics, mut result) = (Panics::default(), Ok(()));
        loop {
            let taken = lock(&self.timers).take();
            let Some(mut of_tests) = taken else { break };
            panics.hold(|| result = self.set_timers_once(&mut of_tests));
            if !lock(&self.timers).put_back(of_tests) {
                break;
            }
        }
        panics.resume();
        result
    }

    fn set_timers_once(&self, of_tests: &mut Vec<TestTimer>) -> Result<(), Denied> {
        let (alarm, [was_wanted, wanted]) = {
            let mut timers = lock(&self.timers);
            let (alarm, has_waiters) = lock(&self.queue).alarm;
            if !has_waiters {
                of_tests.clear(); // So that they keep no runtime alive.
            }
            (alarm, timers.wanted(has_waiters))
        };
        if let (Some(timer), Some(alarm)) = (self.time.timer(), alarm) {
            timer.wake_at(Duration::from_nanos(alarm), &self.waker);
            return Ok(());
        }
        let at = alarm.filter(|_| wanted).map(|alarm| self.time.instant(alarm).into_std());
        let is_set = !was_wanted || self.thread.set(at, &self.waker).is_ok();
        let all_set = alarm.is_none_or(|alarm| timer::set_all(of_tests, &self.time, alarm, &self.waker));
        if !is_set {
            lock(&self.timers).wanted(false);
        }
        if !is_set || !all_set {
            self.with(|queue, _, effects| queue.wake_all(effects));
        }
        if is_set { Ok(()) } else { Err(Denied::NoTimer) }
    }
}

impl<Q: ?Sized> Drop for Shared<Q> {
    fn drop(&mut self) {
        let _ = self.thread.set(None, &self.waker);
    }
}

struct Fire<Q>(Weak<Shared<Q>>);

impl<Q: Serve + Send + 'static> Wake for Fire<Q> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            let ((), mut after) = shared.change(Q::advance);
            after.rearm = true; // The timer has fired.
            shared.follow(after);
        }
    }
}

/// One wait, by a future or a thread. Its owner must call [`leave`](Self::leave) when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    cost: Cost,
    deadline: Option<Nanos>,
    stage: Stage,
    /// Stores a grant that will be settled; `None` for any other request. The fast path does not serve a request with
    /// this field.
    opened: Option<Box<Option<Grant>>>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Fresh,
    InQueue(Key),
    Done(Result<(), Denied>),
}

impl Wait {
    pub(crate) fn new(cost: Cost) -> Self {
        Wait { cost, deadline: None, stage: Stage::Fresh, opened: None }
    }

    /// A wait for a grant that will be settled.
    pub(crate) fn to_settle(cost: Cost) -> Self {
        Wait { opened: Some(Box::default()), ..Wait::new(cost) }
    }

    /// Sets the time at which the wait ends. A wait that has begun keeps its deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Nanos>) {
        if matches!(self.stage, Stage::Fresh) {
            self.deadline = deadline;
        }
    }

    pub(super) fn cost(&self) -> &Cost {
        &self.cost
    }

    /// The grant to be settled, once.
    pub(crate) fn opened(&mut self) -> Option<Grant> {
        self.opened.as_mut()?.take()
    }

    /// Once the result is ready, every later call returns the same result.
    #[inline]
    pub(crate) fn poll(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        match self.stage {
            Stage::Fresh => self.poll_fresh(shared, context),
            Stage::InQueue(_) => self.poll_queued(shared, context),
            Stage::Done(done) => Poll::Ready(done),
        }
    }

    /// A grant without a wait counts against the cooperative budget of a tokio task.
    #[inline]
    fn poll_fresh(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        let Poll::Ready(budget) = coop::poll_proceed(context) else { return self.yield_in_queue(shared, context) };
        let polled = if self.takes_fast(shared) {
            self.stage = Stage::Done(Ok(()));
            Poll::Ready(Ok(()))
        } else {
            self.poll_queued(shared, context)
        };
        if polled.is_ready() {
            budget.made_progress();
        }
        polled
    }

    #[inline]
    fn takes_fast(&self, shared: &Shared) -> bool {
        match self.cost {
            Cost::One(places) if shared.has_places => shared.take_place(places) == Take::Granted,
            Cost::One(cost) if self.opened.is_none() && !shared.fast_path.is_closed() => {
                matches!(shared.fast_path.take(|| shared.time.now(), cost), Take::Granted)
            }
            _ => false,
        }
    }

    /// Grants what can be granted now, but lets other tasks run before the future is ready: the cooperative budget of the
    /// tokio task is used up. The task will be polled again soon.
    #[cold]
    fn yield_in_queue(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        self.join(shared, context.waker(), false, true);
        self.stand(shared)
    }

    fn poll_queued(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        if let Stage::InQueue(_) = self.stage {
            return self.poll_joined(shared, context);
        }
        self.join(shared, context.waker(), false, false);
        self.stand(shared)
    }

    /// Like [`poll`](Self::poll), for a request that has joined.
    pub(super) fn poll_joined(
        &mut self,
        shared: &Shared<impl Serve + ?Sized>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Denied>> {
        if let Stage::InQueue(key) = self.stage {
            self.look(shared, key, context.waker());
        }
        self.stand(shared)
    }

    pub(super) fn stand(&mut self, shared: &Shared<impl Serve + ?Sized>) -> Poll<Result<(), Denied>> {
        match self.stage {
            Stage::Done(done) => Poll::Ready(done),
            _ if shared.want_timer().is_err() => {
                self.leave(shared);
                Poll::Ready(Err(Denied::NoTimer))
            }
            _ => Poll::Pending,
        }
    }

    /// Blocks this thread.
    pub(crate) fn block(&mut self, shared: &Shared) -> Result<(), Denied> {
        if matches!(self.stage, Stage::Fresh) && self.takes_fast(shared) {
            self.stage = Stage::Done(Ok(()));
            return Ok(());
        }
        let waker = Unpark::this_thread();
        if matches!(self.stage, Stage::Fresh) {
            self.join(shared, &waker, true, false);
        }
        self.block_joined(shared, &waker)
    }

    /// Like [`block`](Self::block), for a request that has joined with this waker.
    pub(super) fn block_joined(&mut self, shared: &Shared<impl Serve + ?Sized>, waker: &Waker) -> Result<(), Denied> {
        loop {
            match self.stage {
                Stage::InQueue(key) => self.nap(shared, key, waker),
                Stage::Done(done) => return done,
                Stage::Fresh => return Err(Denied::Closed),
            }
        }
    }

    /// Sleeps, unless the wait is over.
    fn nap(&mut self, shared: &Shared<impl Serve + ?Sized>, key: Key, waker: &Waker) {
        let until = self.look(shared, key, waker);
        match (until, shared.time.timer()) {
            _ if matches!(self.stage, Stage::Done(_)) => {}
            (Some((until, _)), Some(timer)) => {
                timer.sleep_unless(Duration::from_nanos(until), &|| !shared.see(|queue| queue.is_watched(key, until)));
            }
            (Some((_, wait)), None) => std::thread::park_timeout(Duration::from_nanos(wait)),
            (None, _) => std::thread::park(),
        }
    }

    /// Joins the queue, unless the request is answered at once. The result is stored under the lock, because the timer
    /// is set after that and may panic.
    fn join(&mut self, shared: &Shared, waker: &Waker, is_thread: bool, yields: bool) {
        let cost = self.cost.clone();
        let waiter = Waiter { cost: &cost, deadline: self.deadline, waker, is_thread, yields };
        let opens = self.opened.is_some();
        let usual = |queue: &mut Queue, now| {
            let (account, now) = queue.quiet_account(now, cost.list().len()).filter(|_| !yields)?;
            let take = if opens { Account::open_usual } else { Account::take_usual };
            take(account, now, &cost).map(Some)
        };
        let granted = shared.with_usual(usual, |queue, now, effects| {
            effects.opens = opens;
            let joined = queue.join(now, &waiter, effects);
            self.joined(joined, effects);
            None
        });
        match (granted, &mut self.opened) {
            (Some(grant), Some(opened)) => (self.stage, **opened) = (Stage::Done(Ok(())), Some(grant)),
            (Some(_), None) => self.stage = Stage::Done(Ok(())),
            (None, _) => self.announce(),
        }
    }

    /// Reports that the wait begins, if the request has to wait. No lock is held meanwhile.
    pub(super) fn announce(&self) {
        if matches!(self.stage, Stage::InQueue(_)) {
            events::waits(true);
        }
    }

    /// The request has joined what it waits for, or was answered at once.
    pub(super) fn joined(&mut self, joined: Result<Option<Key>, Denied>, effects: &mut Effects) {
        if let Some(opened) = &mut self.opened {
            **opened = effects.granted.take();
        }
        self.stage = match joined {
            Ok(None) => Stage::Done(Ok(())),
            Ok(Some(key)) => Stage::InQueue(key),
            Err(denied) => Stage::Done(Err(denied)),
        };
    }

    /// Like [`join`](Self::join), for a waiter that is in the queue. Returns the time until which its thread may sleep
    /// if it is the queue's timer, and how long that is.
    fn look(&mut self, shared: &Shared<impl Serve + ?Sized>, key: Key, waker: &Waker) -> Option<(Nanos, Nanos)> {
        let until = shared.with(|queue, now, effects| {
            let polled = queue.poll(now, key, waker, effects);
            let key = effects.key.unwrap_or(key);
            self.stage = Stage::InQueue(key);
            if let Poll::Ready(done) = polled {
                self.joined(done.map(|()| None), effects);
            }
            queue.watch(key).map(|until| (until, until.saturating_sub(now)))
        });
        if matches!(self.stage, Stage::Done(_)) {
            events::waits(false);
        }
        until
    }

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.stage, Stage::Done(Ok(())))
    }

    /// Whether this waiter is the next to be granted.
    pub(crate) fn is_head(&self, shared: &Shared) -> bool {
        match self.stage {
            Stage::InQueue(key) => shared.see(|queue| queue.is_head(key)),
            _ => false,
        }
    }

    /// Leaves the queue, if it is there. A grant that the waiter has not seen is given back. If the timer panicked while
    /// the waiter fetched its grant, the units stay taken and the grant is not settled.
    #[inline]
    pub(crate) fn leave(&mut self, shared: &Shared<impl Serve + ?Sized>) {
        if let Stage::InQueue(key) = self.stage {
            self.leave_queue(shared, key);
        } else if let Some(grant) = self.opened() {
            shared.close_grant(&grant);
        }
    }

    #[cold]
    fn leave_queue(&mut self, shared: &Shared<impl Serve + ?Sized>, key: Key) {
        events::waits(false);
        // Only a waiter without a timer can be polled after this.
        self.stage = Stage::Done(Err(Denied::NoTimer));
        shared.with(|queue, now, effects| queue.leave(now, key, effects));
    }
}
