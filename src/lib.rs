//! Rate limiting that is exact: integers, monotonic time, several limits at once, windows.

pub mod bucket;
pub mod clock;
pub mod framing;
pub mod grid;
pub mod launch;
pub mod leaky_bucket;
pub mod limiter;
pub mod limits;
pub mod meter;
pub mod pump;
pub mod rate;
pub mod semaphore;
pub mod sink;
pub mod store;
pub mod window;
