//! Locks and atomics, which the model checker replaces.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(not(throttle_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(throttle_loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(throttle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(throttle_loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

/// Locks `mutex` even if it is poisoned: a waker that panics leaves nothing here half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until notified, or for `time`. Under the model checker no time passes: it waits until notified.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(not(throttle_loom))]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

#[cfg(throttle_loom)]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    loom::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
