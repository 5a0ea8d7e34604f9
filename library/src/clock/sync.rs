//! Locks and atomics, which the model checker replaces.

use std::sync::{LockResult, PoisonError};
use std::time::Duration;

#[cfg(not(throttle_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(throttle_loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(throttle_loom))]
use std::thread::Builder;

#[cfg(throttle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(throttle_loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(throttle_loom)]
use loom::thread::Builder;

/// Returns the guard even if the lock is poisoned: a thread that panics leaves no change half done.
pub(crate) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` even if it is poisoned.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Waits until notified, or for `time`. Under the model checker no time passes: it waits until notified.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    unpoisoned(condvar.wait_timeout(guard, time)).0
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
