//! Rate limiting that is exact: integers, monotonic time, several limits at once, windows.
//!
//! # Which limiter for what
//!
//! | you want | take |
//! |---|---|
//! | no more than so many a second, with bursts | [`Limiter::new`](limiter::Limiter::new) |
//! | callers that line up, with timeouts, a bounded line and closing | [`Limiter::leaky`](limiter::Limiter::leaky) |
//! | several limits at once, also "5000 in any hour" | [`Limiter::builder`](limiter::Limiter::builder) with [`limit`](limiter::Builder::limit) |
//! | several costs at once, requests and tokens | [`Limiter::joint`](limiter::Limiter::joint) |
//! | a rate of starts *and* a number at work at the same time | [`Semaphore`](semaphore::Semaphore) |
//! | what the crate leaky-bucket does, under the same names | [`leaky_bucket`] |
//! | to do the waiting yourself | [`Limiter::reserve`](limiter::Limiter::reserve), or [`limits`] and [`bucket`], which are pure arithmetic |
//!
//! # What always holds
//!
//! 1. Exact: a rate is a ratio of integers, and by time `t` exactly `⌊rate·t⌋` and the burst have been granted.
//! 2. Never over: in any time `t` grants cost at most the burst (or the largest single cost) and `rate·t`; and never early.
//! 3. Late wake-ups cost no rate, for the next grant is reckoned from the last; and make no burst, for who is more than a
//!    full bucket late, or 2 ms, loses the rest.
//! 4. First in, first out, for futures and threads in one line; one wake-up a grant, no polling, no task or thread behind.
//! 5. Who cancels takes nothing, and those behind move up at once. A reservation is a promise that is never moved.
//!
//! # A client that keeps to its server's limits
//!
//! ```
//! use std::time::Duration;
//! use throttle::limiter::{AcquireError, Limiter};
//!
//! struct Client {
//!     limiter: Limiter,
//! }
//!
//! impl Client {
//!     async fn get(&self, url: &str) -> Result<String, AcquireError> {
//!         self.limiter.acquire_timeout(1, Duration::from_secs(30)).await?;
//!         Ok(format!("the page at {url}"))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder().rate(5, Duration::from_secs(1)).burst(2).limit("5000/h,window".parse()?).build()?;
//! let client = Client { limiter };
//! assert_eq!(client.get("https://example.com").await?, "the page at https://example.com");
//! # Ok(())
//! # }
//! ```
//!
//! # Workers with a rate and a concurrency
//!
//! ```
//! use throttle::semaphore::Semaphore;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let workers = Semaphore::new(16, 2.5)?; // 16 at a time; after the first 16, five in two seconds
//! let permit = workers.acquire().await?;
//! tokio::spawn(async move {
//!     // … work …
//!     drop(permit);
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Coming from leaky-bucket
//!
//! Write `use throttle::leaky_bucket::RateLimiter;` for `use leaky_bucket::RateLimiter;`. See [`leaky_bucket`].
//!
//! # Where futures can wait
//!
//! On any executor, and on tokio runtimes of all kinds, with or without a time driver. One thread, `throttle-timer`, wakes
//! the waiting futures of all limiters. It exists while one waits for a time, and for a second after that; should the
//! system allow no thread, the future fails with [`AcquireError::NoTimer`](limiter::AcquireError::NoTimer). On a tokio
//! runtime whose clock a test has paused, that clock is honoured. A [`Clock`](clock::Clock), given as `timer` to the
//! builder, takes the place of both. Trying, reserving and the blocking forms need nothing.
//!
//! Under tokio's paused clock threads cannot wait: the blocking forms sleep in real time, in which a paused clock stands
//! still, and tokio does not move it while a `spawn_blocking` runs. Use the futures there, or a
//! [`FakeClock`](clock::FakeClock), which is there for the tests of whoever uses a limiter, too.

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "saving and leasing are for the stores of the program")
)]

pub mod clock;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod flow;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod launch;
pub mod leaky_bucket;
pub mod limiter;
pub mod limits;
pub mod rate;
pub mod semaphore;
pub mod store;

pub use limiter::Limiter;
pub use limits::{bucket, interval as grid, window};
pub use rate::{Limit, Rate};
pub use semaphore::Semaphore;
