//! The limiter as callers hold it.

use super::shared::Shared;
use std::sync::Arc;

/// A rate limiter for async and blocking callers, with one queue for both. Clones share one state.
///
/// Only futures wait, and the calls that block the thread. All others return at once; at most a lock is held for a
/// moment. What holds for all of them is in the documentation of the [crate](crate#what-always-holds).
///
/// ```
/// use std::time::Duration;
/// use throttle_limits::limiter::Limiter;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(5, 2)?; // 5 a second, 2 at once
/// let start = tokio::time::Instant::now();
/// for _ in 0..12 {
///     limiter.acquire(1).await?;
/// }
/// assert_eq!(start.elapsed(), Duration::from_secs(2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(super) shared: Arc<Shared>,
    /// If this is the limiter of a key, and others limit all keys.
    pub(super) within: Option<Arc<Within>>,
}

/// The limits of all keys, and the turn of the one request of a key that asks them.
pub(super) struct Within {
    pub(super) turn: Limiter,
    pub(super) all: Limiter,
    /// New requests need not wait for those that have the turn or wait for it.
    pub(super) unfair: bool,
}
