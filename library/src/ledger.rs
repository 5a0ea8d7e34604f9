//! The scheduler: requests go in, and grants come out in fair order. Within a key the order is strict. Between keys it
//! is start-time fair queueing. The keys whose next request conforms to their own limits compete, and the request of
//! one of them is chosen. It is granted before all others, even if another request would conform to the overall limits
//! earlier.
//!
//! Time goes by in events, in their order: a request joins its flow, a request expires, a request is granted. The
//! *front* is the time of the latest event, or of the latest call at which nothing was due. Nothing is granted for a
//! time before it.
//!
//! This is pure. Time is a parameter, and the caller waits, reads and writes. Clock readings that arrive out of order
//! are clamped. A [`Line`](crate::line::Line) stores the units of the requests.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program.

#![allow(clippy::must_use_candidate, reason = "this is no public interface")]

mod advance;
mod asking;
mod changes;
mod flows;
mod grants;
mod heap;
mod holds;
mod keys;
#[cfg(feature = "shared")]
pub mod operation;
mod paces;
#[cfg(feature = "shared")]
mod replica;
mod requests;
mod rules;
mod shared;
mod state;
mod turns;
mod view;

pub use keys::Name;
#[cfg(feature = "shared")]
pub use replica::{Damaged, KeyView, MAX_HORIZON, Replica, View, Waiting};
#[cfg(feature = "shared")]
pub(crate) use replica::{MAX_RETURNABLE, PRESENCE_TTL};
pub use requests::{Costs, Ticket};
pub use rules::{NamedKey, Rules};
pub use state::{Ledger, Next, Refusal, Request, Run, Taken};
