//! The timer of a queue: it fires when the next waiter is due, no matter which waiters are polled.
//!
//! On the system's clock it is an alarm of the process's [`TimerThread`], which runs while there are waiters. It does
//! not matter which runtimes the waiters belong to, or whether those are driven, blocked or shutting down.
//!
//! If a test has paused or moved the clock of a runtime, that clock advances only for the runtime's own timers. So each
//! such runtime gets a timer when a waiter is polled in it. Only code in that runtime uses this timer, because tokio
//! panics if another thread uses the timer of a runtime that is shutting down. Other code that has to change the timer
//! wakes the waiters, which then set it.
//!
//! A limiter with its own [`Timer`](super::Timer) uses that instead.
//!
//! A timer may fire while it is being set, and that runs the caller's code. So no lock is held then. A second caller
//! only sets a flag that the timer must be set again; the first caller checks that flag.

use super::panics::Panics;
use super::time::{Time, on_usual_clock};
use crate::clock::Nanos;
use crate::clock::sync::{Mutex, lock};
use crate::clock::timer_thread::TimerThread;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep};

/// What a timer needs of the queue that it belongs to.
pub(crate) trait Timed: Send + Sync {
    fn time(&self) -> &Time;

    /// When the timer must fire next, and whether there are waiters.
    fn alarm(&self) -> (Option<Nanos>, bool);

    /// The timer has fired: serves the queue.
    fn fire(&self);

    fn wake_all(&self);
}

#[derive(Debug)]
pub(crate) struct QueueTimer {
    state: Mutex<State>,
    thread: Arc<TimerThread>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a future waits on the system's clock.
    wanted: bool,
    /// Empty while a thread is setting them.
    test_timers: Vec<TestTimer>,
    being_set: bool,
    /// Whether the timers must be set again.
    again: bool,
}

/// The timer of a runtime whose clock a test has paused.
#[derive(Debug)]
struct TestTimer {
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
    /// `None` if the waiters of its runtime were woken to set it.
    fires_at: Option<Nanos>,
}

/// The waker that serves the queue.
struct Fire<T>(Weak<T>);

impl<T: Timed + 'static> Wake for Fire<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            queue.fire();
        }
    }
}

/// The timer thread cannot be started.
#[derive(Debug)]
pub(crate) struct NoTimer;

impl QueueTimer {
    pub(crate) fn new(queue: Weak<impl Timed + 'static>) -> Self {
        let (thread, waker) = (TimerThread::of_process(), Waker::from(Arc::new(Fire(queue))));
        QueueTimer { state: Mutex::new(State::default()), thread, waker }
    }

    /// Makes sure that a timer will wake the future that is being polled.
    pub(crate) fn want(&self, queue: &impl Timed) -> Result<(), NoTimer> {
        if queue.time().timer().is_some() {
            return Ok(());
        }
        {
            let mut state = lock(&self.state);
            let is_set = match test_runtime() {
                Some(runtime) => state.add_test_timer(queue, &runtime),
                None => std::mem::replace(&mut state.wanted, true),
            };
            if is_set {
                return Ok(());
            }
        }
        self.set(queue)
    }

    /// Sets all timers to the queue's next time. If the thread cannot be started, the waiters are woken; they call
    /// [`want`](Self::want) again and get the error.
    pub(crate) fn set(&self, queue: &impl Timed) -> Result<(), NoTimer> {
        let (mut panics, mut result) = (Panics::default(), Ok(()));
        loop {
            let mut test_timers = {
                let mut state = lock(&self.state);
                if state.being_set {
                    state.again = true;
                    break;
                }
                (state.being_set, state.again) = (true, false);
                std::mem::take(&mut state.test_timers)
            };
            panics.hold(|| result = self.set_once(queue, &mut test_timers));
            if !lock(&self.state).put_back(test_timers) {
                break;
            }
        }
        panics.resume();
        result
    }

    fn set_once(&self, queue: &impl Timed, test_timers: &mut Vec<TestTimer>) -> Result<(), NoTimer> {
        let (time, was_wanted, wanted) = {
            let mut state = lock(&self.state);
            let (was_wanted, (time, has_waiters)) = (state.wanted, queue.alarm());
            state.wanted &= has_waiters;
            if !has_waiters {
                test_timers.clear(); // So that they keep no runtime alive.
            }
            (time, was_wanted, state.wanted)
        };
        if let (Some(timer), Some(time)) = (queue.time().timer(), time) {
            timer.wake_at(time, &self.waker);
            return Ok(());
        }
        let at = time.filter(|_| wanted).map(|time| queue.time().instant(time));
        let set = || self.thread.set(at.map(Instant::into_std), &self.waker);
        let is_set = if was_wanted { set() } else { Ok(()) };
        let all_set = self.set_test_timers(queue, time, test_timers);
        if is_set.is_err() {
            lock(&self.state).wanted = false;
        }
        if is_set.is_err() || !all_set {
            queue.wake_all();
        }
        is_set.map_err(|_| NoTimer)
    }

    /// `false` if a timer of another runtime would fire too late: it cannot be set from here.
    fn set_test_timers(&self, queue: &impl Timed, time: Option<Nanos>, timers: &mut [TestTimer]) -> bool {
        let Some(time) = time.filter(|_| !timers.is_empty()) else { return true };
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut all_set = true;
        for timer in timers {
            if Some(timer.runtime) == here {
                timer.set(time, queue.time().instant(time), &self.waker);
            } else if timer.fires_at.is_some_and(|at| time < at) {
                (timer.fires_at, all_set) = (None, false);
            }
        }
        all_set
    }
}

impl Drop for QueueTimer {
    fn drop(&mut self) {
        let _ = self.thread.set(None, &self.waker);
    }
}

/// The current runtime, if its clock is not the system's.
fn test_runtime() -> Option<Handle> {
    Handle::try_current().ok().filter(|_| !on_usual_clock())
}

impl State {
    /// Adds a timer for `runtime` if there is none. Returns whether there was one, set to the queue's next time.
    fn add_test_timer(&mut self, queue: &impl Timed, runtime: &Handle) -> bool {
        let time = queue.alarm().0;
        if let Some(timer) = self.test_timers.iter().find(|timer| timer.runtime == runtime.id()) {
            return time.is_none_or(|time| timer.fires_at == Some(time));
        }
        let sleep = Box::pin(tokio::time::sleep_until(queue.time().instant(Nanos::MAX)));
        self.test_timers.push(TestTimer { runtime: runtime.id(), sleep, fires_at: Some(Nanos::MAX) });
        false
    }

    /// Puts the timers back after they were set. Returns whether they must be set again.
    fn put_back(&mut self, timers: Vec<TestTimer>) -> bool {
        let added = std::mem::replace(&mut self.test_timers, timers);
        let again = self.again || !added.is_empty();
        for timer in added {
            if self.test_timers.iter().all(|own| own.runtime != timer.runtime) {
                self.test_timers.push(timer);
            }
        }
        self.being_set = false;
        again
    }
}

impl TestTimer {
    /// Makes it fire at `time`.
    fn set(&mut self, time: Nanos, instant: Instant, waker: &Waker) {
        self.fires_at = Some(time);
        self.sleep.as_mut().reset(instant);
        // A timer that has fired is not polled. A runtime that shuts down fires all timers, and then tokio panics if one
        // is polled.
        let is_due = if self.sleep.is_elapsed() {
            Instant::now() >= instant
        } else {
            // Polling the queue's timer must not use the cooperative budget of the current task.
            let sleep = pin!(tokio::task::unconstrained(self.sleep.as_mut()));
            sleep.poll(&mut Context::from_waker(waker)).is_ready()
        };
        if is_due {
            waker.wake_by_ref();
        }
    }
}
