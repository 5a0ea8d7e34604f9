//! Locks after a panic.

use std::sync::{LockResult, PoisonError};

/// Returns the guard even if the lock is poisoned: a thread that panics leaves no change incomplete.
pub fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
