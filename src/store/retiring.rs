//! The end of a process that uses a bucket: what it was granted and does not use goes back, and nothing leaves after that.

use crate::clock::{Clock, Nanos};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// How long who leaves waits to give back what he did not use.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// A clock from whose sleep nobody wakes once it is stopped.
///
/// Whoever stops it and then reads a time before that of a grant knows that the grant has not been used and will not be:
/// a sleeper looks whether it is stopped when his time has come, not before.
#[derive(Debug)]
pub(super) struct Stoppable<C> {
    clock: C,
    stopped: AtomicBool,
}

impl<C> Stoppable<C> {
    pub(super) fn new(clock: C) -> Self {
        Stoppable { clock, stopped: AtomicBool::new(false) }
    }

    /// Whether it was stopped before.
    pub(super) fn stop(&self) -> bool {
        self.stopped.swap(true, Ordering::SeqCst)
    }

    /// Does not return once it is stopped: the process is about to end.
    pub(super) fn pass(&self) {
        while self.stopped.load(Ordering::SeqCst) {
            thread::park();
        }
    }
}

impl<C> Deref for Stoppable<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.clock
    }
}

impl<C: Clock> Clock for Stoppable<C> {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn sleep_until(&self, time: Nanos) {
        self.clock.sleep_until(time);
        self.pass();
    }
}

/// Locks it unless somebody holds it longer than a farewell may take, as who waits for a server does.
pub(super) fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let begun = Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) if begun.elapsed() >= FAREWELL => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
