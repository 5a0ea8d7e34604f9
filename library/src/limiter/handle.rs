//! The limiter as callers hold it.

use super::shared::Shared;
use std::sync::Arc;

/// A rate limiter for async and blocking callers. Clones share one state.
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
    /// The index of the limit whose rate can be changed, if there is one.
    pub(super) place: Option<usize>,
}
