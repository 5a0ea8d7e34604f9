//! The queue's own alarm: rings when the next waiter is due, whoever of the waiters is still polled.
//!
//! One tokio timer for every runtime that a waiter was polled in, each with the queue's waker, not a task's. So it
//! takes no task to serve the line: whichever timer fires first serves whoever is due, and all are set to the next.
//! A runtime that is dropped takes its timer with it and nobody else's; one that nobody drives any more rings never,
//! and the others do. When the line is empty the timers are dropped, so that no runtime is kept.
//!
//! Setting a timer may fire it on the spot, and waking runs foreign code, so no lock is held meanwhile: whoever comes
//! in between leaves word, and who is setting looks again.
//!
//! Tokio panics where a runtime has no timers, or its end has begun, and a program may be built to die of that. So no
//! timer is asked for before there is a time to wait for, and one that has fired is not polled but counts as rung. What
//! is left is caught, where panics unwind: a runtime without timers, which tokio has no other way to tell, and one whose
//! end begins while a thread that is none of its own sets its timer, in the nanoseconds between two looks at it.

use super::panics::Panics;
use super::shared::Shared;
use super::sync::{Mutex, lock};
use crate::clock::Nanos;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep};

#[derive(Debug)]
pub(crate) struct Bell {
    alarms: Mutex<Alarms>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Alarms {
    /// Empty while somebody is setting them.
    set: Vec<Alarm>,
    being_set: bool,
    /// Somebody waits who has no timer here, for there was no time to wait for.
    unheard: bool,
    /// They have to be set once more.
    again: bool,
}

/// One runtime's timer.
#[derive(Debug)]
struct Alarm {
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
    armed: Option<Nanos>,
}

/// What wakes the queue. It does not keep it.
struct Rope(Weak<Shared>);

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.ring();
        }
    }
}

/// There is no tokio runtime with timers here.
pub(crate) struct NoRuntime;

impl Bell {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Bell { alarms: Mutex::new(Alarms::default()), waker: Waker::from(Arc::new(Rope(shared))) }
    }

    /// Makes sure that there is an alarm in the runtime this is called in, as soon as there is a time to wait for.
    pub(crate) fn hear(&self, shared: &Shared) -> Result<(), NoRuntime> {
        if shared.time.timer().is_some() || self.is_heard() {
            return Ok(());
        }
        let Some(time) = self.time_to_wait_for(shared) else { return Ok(()) };
        let handle = Handle::try_current().map_err(|_| NoRuntime)?;
        let alarm = Alarm::new(&handle, shared.time.instant(time))?;
        lock(&self.alarms).add(alarm);
        self.set(shared);
        Ok(())
    }

    /// Whether the runtime this is called in has an alarm.
    fn is_heard(&self) -> bool {
        let Ok(handle) = Handle::try_current() else { return false };
        let alarms = lock(&self.alarms);
        !alarms.being_set && alarms.set.iter().any(|alarm| alarm.runtime == handle.id())
    }

    /// The alarm's time. Where there is none, and one comes up later, all are woken to ask again.
    fn time_to_wait_for(&self, shared: &Shared) -> Option<Nanos> {
        let (time, _) = shared.alarm();
        time.or_else(|| {
            lock(&self.alarms).unheard = true;
            // Whoever came up with one before it could be seen that somebody is unheard is seen here.
            shared.alarm().0
        })
    }

    /// Sets every alarm to the time the queue names now.
    pub(crate) fn set(&self, shared: &Shared) {
        let mut panics = Panics::default();
        loop {
            let mut alarms = {
                let mut alarms = lock(&self.alarms);
                if alarms.being_set {
                    alarms.again = true;
                    break;
                }
                (alarms.being_set, alarms.again) = (true, false);
                std::mem::take(&mut alarms.set)
            };
            let deaf = self.set_all(shared, &mut alarms, &mut panics);
            let again = lock(&self.alarms).put_back(alarms);
            drop(deaf);
            if !again {
                break;
            }
        }
        panics.resume();
    }

    /// The alarms that are of no use any more.
    fn set_all(&self, shared: &Shared, alarms: &mut Vec<Alarm>, panics: &mut Panics) -> Vec<Alarm> {
        let time = match shared.alarm() {
            (Some(time), _) => time,
            // They wait for a place, not for a time: there will be one when a place is free.
            (None, true) => return Vec::new(),
            (None, false) => return std::mem::take(alarms),
        };
        if let Some(timer) = shared.time.timer() {
            panics.hold(|| timer.wake_at(time, &self.waker));
        }
        let instant = shared.time.instant(time);
        let mut context = Context::from_waker(&self.waker);
        let mut rings = |alarm: &mut Alarm| {
            let mut rings = true;
            panics.hold(|| rings = alarm.set(time, instant, &mut context));
            rings
        };
        let deaf: Vec<Alarm> = alarms.extract_if(.., |alarm| !rings(alarm)).collect();
        let unheard = std::mem::take(&mut lock(&self.alarms).unheard);
        if unheard || !deaf.is_empty() {
            panics.hold(|| shared.wake_all());
        }
        deaf
    }
}

impl Alarms {
    fn add(&mut self, alarm: Alarm) {
        if self.set.iter().all(|own| own.runtime != alarm.runtime) {
            self.set.push(alarm);
        }
    }

    /// Whether they have to be set once more.
    fn put_back(&mut self, alarms: Vec<Alarm>) -> bool {
        let added = std::mem::replace(&mut self.set, alarms);
        let again = self.again || !added.is_empty();
        for alarm in added {
            self.add(alarm);
        }
        self.being_set = false;
        again
    }
}

impl Alarm {
    fn new(handle: &Handle, instant: Instant) -> Result<Self, NoRuntime> {
        let _context = handle.enter();
        // The only way in which tokio tells that a runtime has no timers.
        let sleep = || Box::pin(tokio::time::sleep_until(instant));
        let mut sleep = catch_unwind(sleep).map_err(|_| NoRuntime)?;
        sleep.as_mut().reset(instant);
        // A runtime that has come to its end fires all its timers, whatever they are set to.
        if sleep.is_elapsed() && Instant::now() < instant {
            Err(NoRuntime)
        } else {
            Ok(Alarm { runtime: handle.id(), sleep, armed: None })
        }
    }

    /// Rings at `time`. `false` where it never will again, its runtime being gone.
    fn set(&mut self, time: Nanos, instant: Instant, context: &mut Context<'_>) -> bool {
        if self.armed == Some(time) && !self.sleep.is_elapsed() {
            return true;
        }
        self.armed = Some(time);
        self.sleep.as_mut().reset(instant);
        if self.sleep.is_elapsed() {
            return is_due(instant, context.waker());
        }
        // The timer is the queue's, and no part of what the task that happens to be polled may do in one go.
        let mut poll = |context: &mut Context<'_>| pin!(tokio::task::unconstrained(self.sleep.as_mut())).poll(context);
        match catch_unwind(AssertUnwindSafe(|| poll(context))) {
            Ok(poll) => {
                if poll.is_ready() {
                    context.waker().wake_by_ref();
                }
                true
            }
            // The runtime has gone this very moment.
            Err(_) => false,
        }
    }
}

/// A timer that has fired is due, or its runtime is gone. Where it is due that is all the same: it rings, and is set to the
/// next time.
fn is_due(instant: Instant, waker: &Waker) -> bool {
    let due = Instant::now() >= instant;
    if due {
        waker.wake_by_ref();
    }
    due
}
