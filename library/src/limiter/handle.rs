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
}
