//! The timers of a queue: they fire when the next waiter is due, no matter which waiters are polled.
//!
//! On the system's clock the timer is an alarm of the process's
//! [`TimerThread`](crate::clock::timer_thread::TimerThread), which runs while there are waiters. It does not matter
//! which runtimes the waiters belong to, or whether those are driven, blocked or shutting down.
//!
//! If a test has paused or moved the clock of a runtime, that clock advances only for the runtime's own timers. So each
//! such runtime gets a timer when a waiter is polled in it. Only code in that runtime uses this timer, because tokio
//! panics if another thread uses the timer of a runtime that is shutting down. Other code that has to change the timer
//! wakes the waiters, which then set it.
//!
//! A limiter with its own [`Clock`](crate::clock::Clock) uses that clock instead.
//!
//! A timer may fire while it is being set, and firing runs the caller's code. So no lock is held while a timer is set.
//! A second thread that wants to set it only sets a flag; the first thread checks the flag and sets the timer again.

use super::time::{Time, on_usual_clock};
use crate::clock::Nanos;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep};

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Whether a future waits on the system's clock.
    wanted: bool,
    /// The timers of tests. The list is empty while a thread is setting them.
    of_tests: Vec<TestTimer>,
    being_set: bool,
    /// Whether the timers must be set again.
    again: bool,
}

/// The timer of a runtime whose clock a test has paused.
#[derive(Debug)]
pub(super) struct TestTimer {
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
    /// `None` if the waiters of its runtime were woken to set it.
    fires_at: Option<Nanos>,
}

impl Timers {
    /// Adds a timer for the future that is being polled, if there is none. Returns whether there was one and it was set
    /// to `alarm`, the queue's next time.
    pub(super) fn want(&mut self, time: &Time, alarm: Option<Nanos>) -> bool {
        // The current runtime, if its clock is not the system's.
        let test_runtime = Handle::try_current().ok().filter(|_| !on_usual_clock());
        let Some(runtime) = test_runtime.map(|runtime| runtime.id()) else {
            return std::mem::replace(&mut self.wanted, true);
        };
        if let Some(timer) = self.of_tests.iter().find(|timer| timer.runtime == runtime) {
            return alarm.is_none_or(|alarm| timer.fires_at == Some(alarm));
        }
        let sleep = Box::pin(tokio::time::sleep_until(time.instant(Nanos::MAX)));
        self.of_tests.push(TestTimer { runtime, sleep, fires_at: Some(Nanos::MAX) });
        false
    }

    /// Whether the timer on the system's clock was wanted before, and whether it is still wanted: without waiters it is
    /// not.
    pub(super) fn wanted(&mut self, has_waiters: bool) -> [bool; 2] {
        let was_wanted = self.wanted;
        self.wanted &= has_waiters;
        [was_wanted, self.wanted]
    }

    /// Takes the timers of tests out, to be set now and [put back](Self::put_back). `None` if another thread is setting
    /// them; that thread will then set them again.
    pub(super) fn take(&mut self) -> Option<Vec<TestTimer>> {
        self.again = self.being_set;
        (!std::mem::replace(&mut self.being_set, true)).then(|| std::mem::take(&mut self.of_tests))
    }

    /// Puts the timers back after they were set. Returns whether they must be set again.
    pub(super) fn put_back(&mut self, timers: Vec<TestTimer>) -> bool {
        let added = std::mem::replace(&mut self.of_tests, timers);
        let again = self.again || !added.is_empty();
        for timer in added {
            if self.of_tests.iter().all(|own| own.runtime != timer.runtime) {
                self.of_tests.push(timer);
            }
        }
        self.being_set = false;
        again
    }
}

/// Sets the timers of tests to `alarm`. Returns `false` if a timer of another runtime would fire too late, because that
/// timer cannot be set from here.
pub(super) fn set_all(timers: &mut [TestTimer], time: &Time, alarm: Nanos, waker: &Waker) -> bool {
    let here = Handle::try_current().ok().map(|runtime| runtime.id());
    let mut all_set = true;
    for timer in timers {
        if Some(timer.runtime) == here {
            timer.set(alarm, time.instant(alarm), waker);
        } else if timer.fires_at.is_some_and(|at| alarm < at) {
            (timer.fires_at, all_set) = (None, false);
        }
    }
    all_set
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
