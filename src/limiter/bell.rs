//! The queue's own alarm: rings when the next waiter is due, whoever of the waiters is still polled.
//!
//! One tokio timer for every runtime that a waiter was polled in, each with the queue's waker, not a task's. So it
//! takes no task to serve the line: whichever timer fires first serves whoever is due, and all are set to the next.
//! A runtime that is dropped takes its timer with it and nobody else's; one that nobody drives any more rings never,
//! and the others do. When the line is empty the timers are dropped, so that no runtime is kept.
//!
//! Setting a timer may fire it on the spot, and waking runs foreign code, so no lock is held meanwhile: whoever comes
//! in between leaves word, and who is setting looks again.

use super::shared::Shared;
use super::sync::{Mutex, lock};
use crate::clock::Nanos;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
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

    /// Makes sure that there is an alarm in the runtime this is called in.
    pub(crate) fn hear(&self, shared: &Shared) -> Result<(), NoRuntime> {
        if shared.time.timer().is_some() {
            return Ok(());
        }
        let handle = Handle::try_current().map_err(|_| NoRuntime)?;
        {
            let alarms = lock(&self.alarms);
            if !alarms.being_set && alarms.set.iter().any(|alarm| alarm.runtime == handle.id()) {
                return Ok(());
            }
        }
        let alarm = Alarm::new(&handle)?;
        lock(&self.alarms).add(alarm);
        self.set(shared);
        Ok(())
    }

    /// Sets every alarm to the time the queue names now.
    pub(crate) fn set(&self, shared: &Shared) {
        loop {
            let mut alarms = {
                let mut alarms = lock(&self.alarms);
                if alarms.being_set {
                    alarms.again = true;
                    return;
                }
                (alarms.being_set, alarms.again) = (true, false);
                std::mem::take(&mut alarms.set)
            };
            let deaf = self.set_all(shared, &mut alarms);
            let again = lock(&self.alarms).put_back(alarms);
            drop(deaf);
            if !again {
                return;
            }
        }
    }

    /// The alarms that are of no use any more.
    fn set_all(&self, shared: &Shared, alarms: &mut Vec<Alarm>) -> Vec<Alarm> {
        let time = match shared.alarm() {
            (Some(time), _) => time,
            // They wait for a place, not for a time: there will be one when a place is free.
            (None, true) => return Vec::new(),
            (None, false) => return std::mem::take(alarms),
        };
        if let Some(timer) = shared.time.timer() {
            timer.wake_at(time, &self.waker);
        }
        let instant = shared.time.instant(time);
        let mut context = Context::from_waker(&self.waker);
        let deaf: Vec<Alarm> = alarms.extract_if(.., |alarm| !alarm.set(time, instant, &mut context)).collect();
        if !deaf.is_empty() {
            shared.wake_all();
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
    fn new(handle: &Handle) -> Result<Self, NoRuntime> {
        let _context = handle.enter();
        // The only way in which tokio tells that a runtime has no timers.
        let sleep = || Box::pin(tokio::time::sleep(Duration::from_secs(86_400)));
        let sleep = catch_unwind(sleep).map_err(|_| NoRuntime)?;
        Ok(Alarm { runtime: handle.id(), sleep, armed: None })
    }

    /// Rings at `time`. `false` where it never will again, its runtime being gone.
    fn set(&mut self, time: Nanos, instant: Instant, context: &mut Context<'_>) -> bool {
        if self.armed == Some(time) && !self.sleep.is_elapsed() {
            return true;
        }
        self.armed = Some(time);
        self.sleep.as_mut().reset(instant);
        if self.sleep.is_elapsed() && Instant::now() < instant {
            return false;
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
