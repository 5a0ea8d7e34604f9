//! The end of a process that uses a bucket: what it was granted and does not use goes back, and nothing leaves after that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest a process that ends waits to give back what it did not use.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// Whether the process is about to end.
///
/// Whoever sets it and then reads a time before that of a grant knows that the grant has not been used and will not be:
/// a sleeper looks at it when its time has come, not before.
#[derive(Debug, Default)]
pub(super) struct Stop(AtomicBool);

impl Stop {
    /// Whether it was set before.
    pub(super) fn set(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// Does not return once it is set.
    pub(super) fn pass(&self) {
        while self.0.load(Ordering::SeqCst) {
            thread::park();
        }
    }
}

/// Locks it unless somebody holds it longer than a farewell may take, as a question to a server does that is away.
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
