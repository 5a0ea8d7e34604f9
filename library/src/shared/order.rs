//! What the handles of a bucket ask of its thread, and how the thread answers.

use crate::clock::Nanos;
use crate::ledger::operation::{Ask, Operation};
use crate::store::{BucketError, View};
use std::time::Instant;
use tokio::sync::oneshot;

/// What the thread is asked to do.
pub(super) enum Order {
    /// Requests a unit, which is refused if it is not granted in time. The number names the request until it is answered.
    Ask(u64, Ask, Option<Instant>, oneshot::Sender<Result<Asked, BucketError>>),
    /// The request with this number is dropped.
    Cancel(u64),
    /// Sends an operation, and reports that it has arrived.
    Report(Operation, Option<oneshot::Sender<Result<(), BucketError>>>),
    /// Reads the state of the bucket.
    Look(Box<dyn FnOnce(Result<View, BucketError>) + Send>),
}

/// A grant, as the thread passes it on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) at: Nanos,
    pub(super) age: u64,
}
