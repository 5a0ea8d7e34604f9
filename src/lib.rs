//! Rate limiting that is exact: integers, monotonic time, several limits at once, windows.

pub mod bucket;
pub mod clock;
pub mod grid;
pub mod leaky_bucket;
pub mod limiter;
pub mod limits;
pub mod rate;
pub mod semaphore;
pub mod window;
