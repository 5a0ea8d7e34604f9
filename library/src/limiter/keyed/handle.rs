//! The limits of keys as callers hold them.

use super::table::Table;
use super::within::Within;
use std::sync::Arc;

/// Limits for each key, for example for each host, user or account. Clones share one state.
///
/// Each key is limited exactly like a [`Limiter`](crate::limiter::Limiter) with these settings that was created
/// together with this `Keyed`. Within a key, requests are first in, first out, and a cancelled waiter takes nothing.
/// Keys do not wait for each other. Deadlines count from the call, as the deadlines of a
/// [`Limiter`](crate::limiter::Limiter) do.
///
/// ```
/// use throttle_limits::limiter::{Keyed, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hosts: Keyed<String> = Keyed::new(2, 1)?; // each host 2 a second, 1 at once
/// assert!(hosts.try_acquire("a.example", 1).is_ok());
/// assert!(hosts.try_acquire("a.example", 1).is_err());
/// assert!(hosts.try_acquire("b.example", 1).is_ok());
/// hosts.acquire("a.example", 1).await?; // half a second later
///
/// let users: Keyed<u64> = Limiter::builder().limit("5/s,burst=20".parse()?).limit("1000/h".parse()?).keyed()?;
/// users.acquire(&4711, 1).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Keys that are kept
///
/// A key is forgotten only if its state equals the state of an unused key. So nobody gets more by coming back later, or
/// by using many keys. There is no background task: for each new key, two stored keys are checked. To check all keys,
/// call [`forget_idle`](Keyed::forget_idle).
///
/// A key takes less than 100 bytes in addition to its name if the limits are a single bucket and the key type has at
/// most 24 bytes, as `String` has. A key of a larger type may take 20 bytes more. Each further limit takes 32 bytes,
/// and a window takes the times of its grants. A key with a waiter takes about 1.4 kilobytes; within overall limits 0.9.
///
/// There is room for a million keys, or for the number that [`set_most_keys`](Keyed::set_most_keys) sets. If all of
/// them are in use, a new key is refused with [`AcquireError::TooManyKeys`](crate::limiter::AcquireError::TooManyKeys),
/// even by a call that could wait. No other key is forgotten to make room for it.
///
/// # Other limits
///
/// All keys have the same limits. To give a key another rate, use [`limiter`](Keyed::limiter). For limits on all keys
/// together see [`Builder::keyed_within`](crate::limiter::Builder::keyed_within).
pub struct Keyed<K>(pub(super) Of<K>);

/// How keys are limited.
pub(super) enum Of<K> {
    /// Each key alone.
    Alone(Arc<Table<K>>),
    /// Within overall limits.
    Within(Within<K>),
}

impl<K> Clone for Keyed<K> {
    fn clone(&self) -> Self {
        Keyed(match &self.0 {
            Of::Alone(table) => Of::Alone(Arc::clone(table)),
            Of::Within(within) => Of::Within(within.clone()),
        })
    }
}
