//! The queue's own timer: rings when the next waiter is due, whichever waiters are still polled.
//!
//! On the system's clock it is an alarm of the process's [`TimerThread`], which exists while somebody waits: whichever
//! runtimes the waiters belong to, and whether those are driven, blocked or at their end, is nothing to it.
//!
//! A runtime whose clock a test has paused, or moved, moves on only for timers of its own. So each such runtime that a
//! waiter was polled in gets one. It is touched in that runtime alone, for tokio panics if another thread touches
//! the timer of a runtime that ends at that moment. What changes it from elsewhere wakes the waiters, who set it.
//!
//! A limiter with a [`Timer`](super::Timer) of its own asks that.
//!
//! Setting a timer may ring it on the spot, and that runs foreign code, so no lock is held meanwhile: another caller
//! notes that it must be set again, and the one that is setting it looks for that note.

use super::panics::Panics;
use super::shared::Shared;
use super::time::on_usual_clock;
use crate::clock::Nanos;
use crate::clock::sync::{Mutex, lock};
use crate::clock::timer_thread::{Alarm, TimerThread};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep};

#[derive(Debug)]
pub(crate) struct QueueTimer {
    state: Mutex<State>,
    alarm: Mutex<Alarm>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct State {
    /// A future waits on the system's clock.
    wanted: bool,
    /// Empty while a thread is setting them.
    test_timers: Vec<TestTimer>,
    being_set: bool,
    /// They have to be set once more.
    again: bool,
}

/// The timer of a runtime with a test's clock.
#[derive(Debug)]
struct TestTimer {
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
    /// `None` if its runtime's waiters were woken to set it.
    rings_at: Option<Nanos>,
}

/// What wakes the queue. It does not keep it.
struct Ring(Weak<Shared>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.ring();
        }
    }
}

/// The thread that keeps time cannot be started.
#[derive(Debug)]
pub(crate) struct NoTimer;

impl QueueTimer {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        let alarm = Mutex::new(Alarm::of(TimerThread::of_process()));
        QueueTimer { state: Mutex::new(State::default()), alarm, waker: Waker::from(Arc::new(Ring(shared))) }
    }

    /// Makes sure that there is a timer for the future that is being polled here, as soon as there is a time to wait for.
    pub(crate) fn want(&self, shared: &Shared) -> Result<(), NoTimer> {
        if shared.time.timer().is_some() {
            return Ok(());
        }
        {
            let mut state = lock(&self.state);
            let there = match test_runtime() {
                Some(runtime) => state.add_test_timer(shared, &runtime),
                None => std::mem::replace(&mut state.wanted, true),
            };
            if there {
                return Ok(());
            }
        }
        self.set(shared)
    }

    /// Sets all timers to the time the queue names now. If the thread cannot be started the waiters are woken, try
    /// once more and get the error.
    pub(crate) fn set(&self, shared: &Shared) -> Result<(), NoTimer> {
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
            panics.hold(|| result = self.set_once(shared, &mut test_timers));
            if !lock(&self.state).put_back(test_timers) {
                break;
            }
        }
        panics.resume();
        result
    }

    fn set_once(&self, shared: &Shared, test_timers: &mut Vec<TestTimer>) -> Result<(), NoTimer> {
        let (time, wanted) = {
            let mut state = lock(&self.state);
            let (time, waits) = shared.alarm();
            state.wanted &= waits;
            if !waits {
                test_timers.clear(); // So that no runtime is kept.
            }
            (time, state.wanted)
        };
        if let (Some(timer), Some(time)) = (shared.time.timer(), time) {
            timer.wake_at(time, &self.waker);
            return Ok(());
        }
        let at = time.filter(|_| wanted).map(|time| shared.time.instant(time));
        let is_set = lock(&self.alarm).set(at.map(Instant::into_std), &self.waker);
        let is_heard = self.set_test_timers(shared, time, test_timers);
        if is_set.is_err() {
            lock(&self.state).wanted = false;
        }
        if is_set.is_err() || !is_heard {
            shared.wake_all();
        }
        is_set.map_err(|_| NoTimer)
    }

    /// `false` if one would ring too late, and is not to be set from here.
    fn set_test_timers(&self, shared: &Shared, time: Option<Nanos>, timers: &mut [TestTimer]) -> bool {
        let Some(time) = time.filter(|_| !timers.is_empty()) else { return true };
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut is_heard = true;
        for timer in timers {
            if Some(timer.runtime) == here {
                timer.set(time, shared.time.instant(time), &self.waker);
            } else if timer.rings_at.is_some_and(|at| time < at) {
                (timer.rings_at, is_heard) = (None, false);
            }
        }
        is_heard
    }
}

/// The runtime this is called in, if its clock is not the system's.
fn test_runtime() -> Option<Handle> {
    Handle::try_current().ok().filter(|_| !on_usual_clock())
}

impl State {
    /// Whether there was one for `runtime`, set to the queue's time.
    fn add_test_timer(&mut self, shared: &Shared, runtime: &Handle) -> bool {
        let time = shared.alarm().0;
        if let Some(timer) = self.test_timers.iter().find(|timer| timer.runtime == runtime.id()) {
            return time.is_none_or(|time| timer.rings_at == Some(time));
        }
        let sleep = Box::pin(tokio::time::sleep_until(shared.time.instant(Nanos::MAX)));
        self.test_timers.push(TestTimer { runtime: runtime.id(), sleep, rings_at: Some(Nanos::MAX) });
        false
    }

    /// Whether they have to be set once more.
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
    /// Rings at `time`.
    fn set(&mut self, time: Nanos, instant: Instant, waker: &Waker) {
        self.rings_at = Some(time);
        self.sleep.as_mut().reset(instant);
        // One that has rung is not polled: tokio panics if its runtime is at its end, which rings all timers.
        let is_due = if self.sleep.is_elapsed() {
            Instant::now() >= instant
        } else {
            // The timer is the queue's, and no part of what the task that happens to be polled may do in one go.
            let sleep = pin!(tokio::task::unconstrained(self.sleep.as_mut()));
            sleep.poll(&mut Context::from_waker(waker)).is_ready()
        };
        if is_due {
            waker.wake_by_ref();
        }
    }
}
