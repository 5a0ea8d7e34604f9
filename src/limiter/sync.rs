//! Locks and atomics, which the model checker replaces.

#[cfg(not(throttle_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(throttle_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(throttle_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(throttle_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Nothing here is left half done where a waker panics, so a poisoned lock is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
