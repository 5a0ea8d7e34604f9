//! Exact rate limiting: integers, monotonic time, several limits at once, windows.
//!
//! The [`guide`] has twelve programs. It also has pages for users who switch [from governor](guide::from_governor),
//! [from leaky-bucket](guide::from_leaky_bucket) or [from tower](guide::from_tower).
//!
//! # Which limiter to use
//!
//! | you want | use |
//! |---|---|
//! | at most some units per second, with bursts | [`Limiter::new`](limiter::Limiter::new) |
//! | several limits at once, windows such as "5000 in any hour", a bounded queue | [`Limiter::builder`](limiter::Limiter::builder) |
//! | several costs at once, such as requests and tokens | [`Limiter::joint`](limiter::Limiter::joint) |
//! | a cost that is only known afterwards | [`Limiter::acquire_to_settle`](limiter::Limiter::acquire_to_settle) |
//! | limits for each host, user or account, perhaps within limits of all | [`Keyed`](limiter::Keyed) |
//! | a rate of starts *and* a number of jobs at the same time | [`Semaphore`] |
//! | a slow start, and again after idle time | [`Builder::warm_up`](limiter::Builder::warm_up) |
//! | one quota for a service and its scripts | `shared::Shared`, with the feature `shared` |
//! | a service of tower, a `Stream` or a `Sink` | [`adapters`] |
//! | the behaviour of the crate leaky-bucket, with the same names | [`leaky_bucket`] |
//!
//! # What always holds
//!
//! 1. Exact: a rate is a ratio of integers. If requests always wait, exactly the burst plus `⌊rate·t⌋` units have been
//!    granted by time `t`.
//! 2. Never over: in any time `t` the grants cost at most `rate·t` plus the burst or the largest single cost, whichever
//!    is more. No grant is early.
//! 3. Late wake-ups cost no rate: the next grant is computed from the previous grant. They cause no burst either: only
//!    a delay up to an allowance is made up, and the rest of the delay is lost. The allowance is a tenth of the time
//!    that fills the bucket, but at least 10 ms or that whole time, whichever is less. It is always at least 2 ms.
//! 4. First in, first out, for futures and threads in one queue. One wake-up per grant, no polling, no background task.
//! 5. A cancelled waiter takes nothing, and the waiters behind it move up at once. A reservation is never moved.
//! 6. A grant that is settled at its real cost leaves the limits as if it had cost that from the start.
//!
//! # A client that keeps to its server's limits
//!
//! ```
//! use std::time::Duration;
//! use throttle_limits::limiter::{AcquireError, Limiter};
//!
//! struct Client {
//!     limiter: Limiter,
//! }
//!
//! impl Client {
//!     async fn get(&self, url: &str) -> Result<String, AcquireError> {
//!         self.limiter.acquire(1).timeout(Duration::from_secs(30)).await?;
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
//! use throttle_limits::semaphore::Semaphore;
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
//! Write `use throttle_limits::leaky_bucket::RateLimiter;` for `use leaky_bucket::RateLimiter;`. See [`leaky_bucket`].
//!
//! # Features
//!
//! No feature is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `shared` | buckets that processes share, in a file or on a Redis server: `shared` |
//! | `tls` | encrypted connections to Redis |
//! | `tower` | a `Layer` for services, in [`adapters`] |
//! | `stream` | `Stream`s and `Sink`s that keep to a limit, in [`adapters`] |
//! | `serde` | a [`Limit`] and a [`Rate`] in configuration files, as text |
//! | `tracing` | an event for each wait that begins or ends, and for each refusal |
//!
//! # What stays
//!
//! Semantic versions cover the items that these pages show; see the [guide]. The modules `limits` and `store`, and some
//! items of other modules, are hidden. They are public only because the program `throttle` is a separate crate, and any
//! release may change them.
//!
//! # Where futures can wait
//!
//! Futures wait on any executor, and on all kinds of tokio runtimes, with or without a time driver. One thread,
//! `throttle-timer`, wakes the waiting futures of all limiters. It exists while a future waits for a time, and for one
//! second after that. If the system allows no thread, the future fails with
//! [`AcquireError::NoTimer`](limiter::AcquireError::NoTimer). If a test has paused the clock of its tokio runtime, that
//! clock is used. A [`Clock`](clock::Clock), given as `clock` to the builder, replaces the thread and tokio's clock.
//! Trying, reserving and the blocking calls need none of this.
//!
//! Three kinds of calls block the thread: `block` of a future, a sleep on a clock, and opening a `shared::Shared`.
//! Within a task, such a call delays all other tasks that the executor runs on that thread. All other calls return at
//! once; some return a future, which waits.
//!
//! Threads cannot wait under tokio's paused clock. Blocking calls sleep in real time, while the paused clock does not
//! move; tokio does not move it while a `spawn_blocking` runs. Use futures there, or a [`FakeClock`](clock::FakeClock),
//! which is also meant for tests of code that uses a limiter.

#![cfg_attr(
    not(feature = "shared"),
    allow(dead_code, unused_imports, reason = "some of a ledger is for the stores that processes share")
)]

#[macro_use]
mod messages;
#[cfg(test)]
#[path = "../tests/library/rounds.rs"]
mod rounds;

pub mod adapters;
pub mod clock;
#[doc(hidden)]
pub mod fuzzing;
pub mod leaky_bucket;
#[doc(hidden)]
pub mod ledger;
pub mod limiter;
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod line;
pub mod rate;
pub mod semaphore;
#[cfg(feature = "shared")]
pub mod shared;
#[cfg(feature = "shared")]
#[doc(hidden)]
pub mod store;

pub use limiter::Limiter;
#[doc(hidden)]
pub use limits::bucket;
pub use rate::{Limit, Rate};
pub use semaphore::Semaphore;

#[doc = include_str!("../docs/guide.md")]
pub mod guide {
    #[doc = include_str!("../docs/from_governor.md")]
    pub mod from_governor {}
    #[doc = include_str!("../docs/from_leaky_bucket.md")]
    pub mod from_leaky_bucket {}
    #[doc = include_str!("../docs/from_tower.md")]
    pub mod from_tower {}
}

/// Runs the examples of the registry page as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
