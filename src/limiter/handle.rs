//! The limiter as callers hold it.

use super::error::AcquireError;
use super::queue::Denied;
use super::shared::Shared;
use super::units::Units;
use std::sync::Arc;

/// A rate limiter for async and blocking callers. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use throttle::limiter::Limiter;
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

impl Limiter {
    /// Not inlined, because the callers would build the error elsewhere and then copy it.
    #[inline(never)]
    pub(super) fn error(&self, denied: Denied, cost: Units) -> AcquireError {
        let burst = || Units::from_millionths(self.shared.with(|queue, _, _| queue.limits.most_of_all().0));
        AcquireError::new(denied, cost, burst)
    }
}
