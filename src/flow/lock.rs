//! Locks after a panic.

use std::sync::{LockResult, PoisonError};

/// What a lock guards even if it is poisoned: a thread that panics leaves nothing half done.
pub fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
