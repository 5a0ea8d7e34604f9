//! Wakes at times of the system's clock, for clocks without a timer of their own: one thread, which is there only while
//! somebody waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

static ALARMS: Mutex<Alarms> = Mutex::new(Alarms { set: Vec::new(), has_thread: false });
static CHANGED: Condvar = Condvar::new();

struct Alarms {
    /// One for each waker: few, so they are searched.
    set: Vec<(Instant, Waker)>,
    has_thread: bool,
}

/// Wakes `waker` at `time` or a little later, on another thread. A later call for the same waker stands in for this one.
pub(super) fn wake_at(time: Instant, waker: &Waker) {
    let alarm = (time, waker.clone());
    let mut alarms = lock();
    let replaced: Vec<_> = alarms.set.extract_if(.., |(_, own)| own.will_wake(waker)).collect();
    alarms.set.push(alarm);
    let has_thread = std::mem::replace(&mut alarms.has_thread, true);
    drop(alarms);
    drop(replaced);
    CHANGED.notify_one();
    let start = || std::thread::Builder::new().name("throttle-alarm".to_owned()).spawn(run);
    if !has_thread && start().is_err() {
        // The system has no thread left. Whoever is woken too early asks again, which tries again.
        let mut alarms = lock();
        alarms.has_thread = false;
        let early = std::mem::take(&mut alarms.set);
        drop(alarms);
        for (_, waker) in early {
            waker.wake();
        }
    }
}

/// Until nobody waits any more.
fn run() {
    let mut alarms = lock();
    while let Some(next) = alarms.set.iter().map(|(time, _)| *time).min() {
        let now = Instant::now();
        if now < next {
            alarms = CHANGED.wait_timeout(alarms, next - now).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let due: Vec<_> = alarms.set.extract_if(.., |(time, _)| *time <= now).collect();
        drop(alarms);
        for (_, waker) in due {
            // Foreign code: its panic, which is told on stderr, must not keep the others from being woken.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
        }
        alarms = lock();
    }
    alarms.has_thread = false;
}

fn lock() -> MutexGuard<'static, Alarms> {
    ALARMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread.
pub(super) struct Unpark(pub(super) Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}
