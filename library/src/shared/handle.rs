//! A bucket and a grant as callers hold them.

use crate::limits::{Grant, Take};
use crate::store::{RedisError, Store};
use std::sync::{Arc, mpsc};
use std::time::Instant;
use tokio::sync::Notify;

pub(super) type AnyStore = dyn Store + Send + Sync;

/// A job of the thread, with the time at which it was sent. The thread calls the job with the bucket, or with an error
/// if the server is away. The job returns an error if it found the server away.
pub(super) type Job = (Instant, Box<dyn FnOnce(Result<&AnyStore, RedisError>) -> Option<RedisError> + Send>);

/// A bucket that other processes also use. Clones share one connection. See the [module](super).
#[derive(Clone)]
pub struct Shared {
    pub(super) store: Arc<AnyStore>,
    pub(super) jobs: mpsc::Sender<Job>,
    /// Notifies the waiters that a grant was settled here.
    pub(super) settled: Arc<Notify>,
    /// The key of its requests.
    pub(super) key: Option<Box<[u8]>>,
}

/// Units that were granted and will be settled, see [`Shared::acquire_to_settle`]. Dropping it settles nothing: the
/// grant then keeps the acquired cost.
#[must_use = "dropping it settles nothing; acquire takes units for good"]
pub struct Granted {
    pub(super) shared: Shared,
    pub(super) grant: Grant,
    pub(super) take: Take,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The time of the grant has not come. If it is dropped, it is given back.
    Waits,
    /// The bucket keeps the grant open until it is settled.
    Open,
    Settled,
}
