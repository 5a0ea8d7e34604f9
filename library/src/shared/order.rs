//! What the handles of a bucket ask of its thread, and how the thread answers.

use crate::ledger::operation::{Ask, Grant, Operation};
use crate::store::BucketError;
use std::time::Instant;
use tokio::sync::oneshot;

/// What the thread is asked to do.
pub(super) enum Order {
    /// Requests a unit, which is refused if it is not granted in time.
    Ask(Ask, Option<Instant>, oneshot::Sender<Result<Grant, BucketError>>),
    /// A request was dropped: its answer is closed.
    Cancel,
    /// Sends an operation, and reports that it has arrived.
    Report(Operation, Option<oneshot::Sender<Result<(), BucketError>>>),
    /// Reads how many units the overall limits would admit.
    Look(oneshot::Sender<Result<u64, BucketError>>),
}
