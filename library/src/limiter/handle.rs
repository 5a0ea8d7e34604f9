//! The limiter as callers hold it.

use super::shared::Shared;
use std::sync::Arc;

/// A rate limiter for async and blocking callers, with one queue for both. Clones share one state.
///
/// Only futures and blocking calls wait. All other calls return at once; at most a lock is held for a moment. The
/// documentation of the [crate](crate#what-always-holds) lists the guarantees of all calls.
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
    /// The overall limits, if this is the limiter of a key within overall limits.
    pub(super) within: Option<Arc<Within>>,
}

/// The overall limits, and the turn: of all requests of a key, only the request that has the turn waits for the overall
/// limits.
pub(super) struct Within {
    pub(super) turn: Limiter,
    pub(super) all: Limiter,
    /// Whether new requests may overtake the request that has the turn and the requests that wait for the turn.
    pub(super) unfair: bool,
}
