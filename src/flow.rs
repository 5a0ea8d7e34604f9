//! Moves units from a source to a sink.
//!
//! The pump drives a [`Flow`]: units are read from a source, wait, and are handed over to a sink.

mod bucket;
mod contract;
mod copy;
pub mod cost;
mod dropping;
mod error;
pub mod framing;
mod grants;
mod lock;
pub(crate) mod look;
mod mark;
pub mod meter;
mod next;
mod outgoing;
mod poll;
pub mod pump;
pub mod selector;
mod sorted;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "flow/no_splice.rs")]
mod splice;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod tee;
mod threads;
mod units;

pub use bucket::{Bucket, ServerReport, once_if_equal};
pub use contract::{Flow, Passed, State};
pub(crate) use copy::read_into;
pub use copy::{Copying, Descriptor, First, Sink, Source};
pub use dropping::Dropped;
pub use error::FlowError;
pub use grants::{Grants, Overview};
pub use lock::unpoisoned;
pub(crate) use look::Keyless;
pub use look::{FIRST_UNITS, Look, Sorting, TOO_MUCH, short};
pub use mark::{BYTE_ORDER_MARK, without_mark};
pub use next::{Charge, Granted, Next, Patience, Refusal, Silent};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use poll::Timer;
pub use poll::{poll, poll_without_timer};
pub use sorted::{BUFFER as SORTED_BUFFER, News, Sorted};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use splice::Splice;
pub use splice::enlarge;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use tee::{TeeSink, TeeSource, tee};
pub(crate) use threads::room;
pub use threads::{STACK, start_thread};
