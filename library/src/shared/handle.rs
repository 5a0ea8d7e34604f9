//! A bucket and a grant as callers hold them.

use super::order::Order;
use crate::store::AnyStore;
use std::sync::{Arc, mpsc};

/// A bucket that other processes also use. Clones share one connection. See the [module](super).
#[derive(Clone)]
pub struct Shared {
    pub(super) store: Arc<AnyStore>,
    pub(super) orders: mpsc::Sender<Order>,
    /// The key of its requests.
    pub(super) key: Option<Box<[u8]>>,
}

/// Units that were granted and will be settled, see [`Shared::acquire_to_settle`]. Dropping it settles nothing: the
/// grant then keeps the acquired cost.
#[must_use = "dropping it settles nothing; acquire takes units for good"]
pub struct Granted {
    pub(super) shared: Shared,
    pub(super) number: u64,
    pub(super) costs: Box<[u64]>,
    /// Whether the bucket waits for a report of its end.
    pub(super) is_open: bool,
}
