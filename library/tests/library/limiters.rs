//! Shared by the limiter tests: wakers that count, and a clock that tests move.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use throttle_limits::clock::{NanoClock, in_nanos};

/// A waker that counts.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that panics, as foreign code may.
pub(crate) struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        // Panics, but without printing a message.
        std::panic::resume_unwind(Box::new("on purpose"));
    }
}

/// A clock that tests move, with one alarm.
#[derive(Default)]
pub(crate) struct FakeTimer {
    now: AtomicU64,
    alarm: Mutex<Option<(u64, Waker)>>,
}

impl FakeTimer {
    /// Moves the clock without firing the alarm.
    pub(crate) fn set(&self, now: u64) {
        self.now.store(now, Ordering::SeqCst);
    }

    pub(crate) fn to(&self, now: u64) {
        self.now.store(now, Ordering::SeqCst);
        let due = self.alarm.lock().unwrap().take_if(|(time, _)| *time <= now);
        if let Some((_, waker)) = due {
            waker.wake();
        }
    }

    /// When the alarm will fire.
    pub(crate) fn next(&self) -> Option<u64> {
        self.alarm.lock().unwrap().as_ref().map(|(time, _)| *time)
    }

    /// Fires the next alarm. `false` if there is none.
    pub(crate) fn to_next(&self) -> bool {
        self.next().map(|next| self.to(next.max(self.now()))).is_some()
    }
}

impl throttle_limits::clock::Clock for FakeTimer {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn wake_at(&self, time: Duration, waker: &Waker) {
        *self.alarm.lock().unwrap() = Some((in_nanos(time), waker.clone()));
    }
}

pub(crate) fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
