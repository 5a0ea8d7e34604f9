//! Rate limiting that is exact: integers, monotonic time, several limits at once, windows.

pub mod bucket;
pub mod clock;
pub mod limits;
pub mod rate;
pub mod window;
