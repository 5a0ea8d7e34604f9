//! A random wait after a grant, so that programs that received the same time do not all start at that time.

use super::costs::IntoCosts;
use super::error::AcquireError;
use super::handle::Limiter;
use super::queue::Queue;
use super::rules::Rules;
use super::shared::Shared;
use crate::limits::{Account, Limits};
use std::time::Duration;

impl Limiter {
    /// Like [`acquire`](Self::acquire), and then waits for the time that `jitter` returns, on the same clock. `jitter`
    /// is called once the units are granted. It uses its own random numbers.
    ///
    /// The grant is as exact as any other, and no waiter behind it waits for the jitter. So requests may leave in
    /// another order, and in a short time a few more requests may leave than were granted in that time. A future that
    /// is dropped before the grant takes nothing. If it is dropped after the grant, its units stay taken. If `jitter`
    /// panics, the caller's poll panics, and the units stay taken.
    ///
    /// ```
    /// use std::hash::{BuildHasher, RandomState};
    /// use std::time::Duration;
    /// use throttle_limits::Limiter;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(5, 2)?;
    /// // Up to 50 ms. In tests, the crate rand can give numbers from a seed.
    /// let jitter = || Duration::from_millis(RandomState::new().hash_one(0) % 50);
    /// limiter.acquire_with_jitter(1, jitter).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire). Nothing is taken then, except by [`AcquireError::NoTimer`] during the jitter.
    pub async fn acquire_with_jitter(
        &self,
        costs: impl IntoCosts,
        jitter: impl FnOnce() -> Duration,
    ) -> Result<(), AcquireError> {
        self.acquire(costs).await?;
        self.sleep(jitter()).await
    }

    /// Waits for `time`, in a separate queue that has no limits and is paused.
    async fn sleep(&self, time: Duration) -> Result<(), AcquireError> {
        let timer = self.shared.time.clone();
        let queue = Queue::new(Account::of(Limits::none(), timer.now()), Rules::default(), None);
        let shared = Shared::new(timer, queue);
        shared.pause_until(shared.time.after(time));
        Limiter { shared }.acquire_owned(1).await
    }
}
