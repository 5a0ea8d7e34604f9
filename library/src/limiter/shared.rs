//! A queue behind its lock, with the fast path before it and the timer beside it.

use super::events;
use super::fast_path::{FastPath, Take};
use super::panics::Panics;
use super::queue::{Denied, Effects, Key, Queue, Waiter};
use super::time::Time;
use super::timer::{self, TestTimer, Timers};
use crate::clock::sync::{Mutex, lock};
use crate::clock::timer_thread::TimerThread;
use crate::clock::{Nanos, Unpark};
use crate::limits::{Cost, Grant};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::task::coop;

#[derive(Debug)]
pub(crate) struct Shared {
    fast_path: FastPath,
    queue: Mutex<Locked>,
    timers: Mutex<Timers>,
    thread: Arc<TimerThread>,
    /// Serves the queue, on behalf of a timer.
    waker: Waker,
    pub(crate) time: Time,
}

/// What the lock protects.
#[derive(Debug)]
struct Locked {
    queue: Queue,
    /// When the timers must fire next, and whether there are waiters.
    alarm: (Option<Nanos>, bool),
}

/// What follows once no lock is held: it runs the caller's code.
#[must_use]
pub(crate) struct After {
    rearm: bool,
    effects: Effects,
}

impl Shared {
    pub(crate) fn new(time: Time, queue: Queue) -> Arc<Self> {
        let queue = Mutex::new(Locked { queue, alarm: (None, false) });
        let shared = |weak: &Weak<Self>| Shared {
            fast_path: FastPath::new(),
            queue,
            timers: Mutex::new(Timers::default()),
            thread: TimerThread::of_process(),
            waker: Waker::from(Arc::new(Fire(weak.clone()))),
            time,
        };
        let shared = Arc::new_cyclic(shared);
        shared.with(Queue::advance);
        shared
    }

    /// Runs `action` under the lock, and wakes waiters after it. The time is read before the lock is taken; if that is
    /// too early, the queue uses the latest time it has seen.
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut Queue, Nanos, &mut Effects) -> R) -> R {
        self.with_timer(false, action)
    }

    /// Like [`with`](Self::with). If the timer has `fired`, it has to be set again in any case.
    fn with_timer<R>(&self, fired: bool, action: impl FnOnce(&mut Queue, Nanos, &mut Effects) -> R) -> R {
        let (result, mut after) = self.change(action);
        after.rearm |= fired;
        self.follow(after);
        result
    }

    /// Like [`with`](Self::with), but leaves to the caller what [follows](Self::follow).
    pub(crate) fn change<R>(&self, action: impl FnOnce(&mut Queue, Nanos, &mut Effects) -> R) -> (R, After) {
        let now = self.time.now();
        let mut effects = Effects::default();
        let mut locked = lock(&self.queue);
        self.fast_path.close(&mut locked.queue.limits, now);
        let now = self.fast_path.in_order(now);
        let result = action(&mut locked.queue, now, &mut effects);
        if locked.queue.is_plain() {
            self.fast_path.open(&locked.queue.limits);
        }
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

    pub(crate) fn pause_until(&self, until: Nanos) {
        self.with(|queue, now, effects| queue.pause_until(now, until, effects));
    }

    /// Takes `cost` now, or nothing. If the queue must answer, that is [`try_in_queue`](Self::try_in_queue).
    #[inline]
    pub(crate) fn try_take(&self, cost: &Cost) -> Take {
        if let Cost::One(cost) = cost { self.fast_path.take(|| self.time.now(), *cost) } else { Take::Closed }
    }

    /// Takes `cost` now, or nothing, and returns which.
    pub(crate) fn try_now(&self, cost: &Cost) -> bool {
        match self.try_take(cost) {
            Take::Granted => true,
            Take::TooLong(_) => false,
            Take::Closed => self.try_in_queue(cost).is_ok(),
        }
    }

    #[inline(never)]
    pub(crate) fn try_in_queue(&self, cost: &Cost) -> Result<(), Denied> {
        self.with(|queue, now, effects| queue.try_take(now, cost, effects))
    }
}

/// Its timers.
impl Shared {
    /// Makes sure that a timer will wake the future that is being polled.
    ///
    /// # Errors
    /// [`Denied::NoTimer`]
    fn want_timer(&self) -> Result<(), Denied> {
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
            timer.wake_at(alarm, &self.waker);
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

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.thread.set(None, &self.waker);
    }
}

struct Fire(Weak<Shared>);

impl Wake for Fire {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.with_timer(true, Queue::advance);
        }
    }
}

/// One wait, by a future or a thread. Its owner must call [`leave`](Self::leave) when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    cost: Cost,
    deadline: Option<Nanos>,
    stage: Stage,
    /// It was let in before the queue was closed.
    pub(super) is_admitted: bool,
    /// For a grant that is [opened](crate::limits::Limits): where it is stored. That is not for the fast path.
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
        Wait { cost, deadline: None, stage: Stage::Fresh, is_admitted: false, opened: None }
    }

    /// A wait for a grant that will be settled.
    pub(crate) fn to_settle(cost: Cost) -> Self {
        Wait { opened: Some(Box::default()), ..Wait::new(cost) }
    }

    /// It ends at this time. A wait that has begun keeps the deadline it has.
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

    /// Once it is ready, it always returns the same result.
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
            Cost::One(cost) if self.opened.is_none() => {
                matches!(shared.fast_path.take(|| shared.time.now(), cost), Take::Granted)
            }
            _ => false,
        }
    }

    /// The cooperative budget of the tokio task is used up. It will be polled again soon; until then it waits in the
    /// queue.
    #[cold]
    fn yield_in_queue(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        self.join(shared, context.waker(), false, true);
        self.stand(shared)
    }

    fn poll_queued(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<Result<(), Denied>> {
        match self.stage {
            Stage::InQueue(key) => {
                shared.with(|queue, now, effects| self.look(queue, now, key, context.waker(), effects));
                self.say_if_done();
            }
            _ => self.join(shared, context.waker(), false, false),
        }
        self.stand(shared)
    }

    fn stand(&mut self, shared: &Shared) -> Poll<Result<(), Denied>> {
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
        loop {
            match self.stage {
                Stage::Fresh => self.join(shared, &waker, true, false),
                Stage::InQueue(key) => self.nap(shared, key, &waker),
                Stage::Done(done) => return done,
            }
        }
    }

    /// Sleeps, unless the wait is over.
    fn nap(&mut self, shared: &Shared, key: Key, waker: &Waker) {
        let until = shared.with(|queue, now, effects| {
            self.look(queue, now, key, waker, effects);
            queue.watch(key).map(|until| (until, until.saturating_sub(now)))
        });
        self.say_if_done();
        match (until, shared.time.timer()) {
            _ if matches!(self.stage, Stage::Done(_)) => {}
            (Some((until, _)), Some(timer)) => {
                timer.sleep_unless(until, &|| !lock(&shared.queue).queue.is_watched(key, until));
            }
            (Some((_, wait)), None) => std::thread::park_timeout(Duration::from_nanos(wait)),
            (None, _) => std::thread::park(),
        }
    }

    /// The result is stored under the lock, because the timer is set after that, and may panic.
    fn join(&mut self, shared: &Shared, waker: &Waker, is_thread: bool, yields: bool) {
        let cost = self.cost.clone();
        let waiter = Waiter { cost: &cost, deadline: self.deadline, waker, is_thread, yields };
        shared.with(|queue, now, effects| {
            effects.opens = self.opened.is_some();
            effects.is_admitted = self.is_admitted;
            self.stage = match queue.join(now, &waiter, effects) {
                Ok(None) => Stage::Done(Ok(())),
                Ok(Some(key)) => Stage::InQueue(key),
                Err(denied) => Stage::Done(Err(denied)),
            };
            self.keep(effects);
        });
        if matches!(self.stage, Stage::InQueue(_)) {
            events::waits(true);
        }
    }

    /// Like [`join`](Self::join), for a waiter that is in the queue.
    fn look(&mut self, queue: &mut Queue, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) {
        if let Poll::Ready(done) = queue.poll(now, key, waker, effects) {
            self.stage = Stage::Done(done);
            self.keep(effects);
        }
    }

    fn say_if_done(&self) {
        if matches!(self.stage, Stage::Done(_)) {
            events::waits(false);
        }
    }

    fn keep(&mut self, effects: &mut Effects) {
        if let Some(opened) = &mut self.opened {
            **opened = effects.opened.take();
        }
    }

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.stage, Stage::Done(Ok(())))
    }

    /// Whether this waiter is the next to be granted.
    pub(crate) fn is_head(&self, shared: &Shared) -> bool {
        match self.stage {
            Stage::InQueue(key) => lock(&shared.queue).queue.is_head(key),
            _ => false,
        }
    }

    /// Leaves the queue, if it is there. A grant that the waiter has not seen is given back.
    #[inline]
    pub(crate) fn leave(&mut self, shared: &Shared) {
        if let Stage::InQueue(key) = self.stage {
            self.leave_queue(shared, key);
        }
    }

    #[cold]
    fn leave_queue(&mut self, shared: &Shared, key: Key) {
        events::waits(false);
        // Only a waiter without a timer can be polled after this.
        self.stage = Stage::Done(Err(Denied::NoTimer));
        shared.with(|queue, now, effects| queue.leave(now, key, effects));
    }
}
