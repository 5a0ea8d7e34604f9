//! A bucket as the fold of a log.
//!
//! A ledger holds the limits with everything granted, the waiters, and the rest of the state. One function,
//! [`apply`](Ledger::apply), takes an operation with its time and returns the reply. It is deterministic: the same
//! operations at the same times give the same state on every machine. So all users of a bucket who read the same log
//! agree.
//!
//! Grants whose time has not come are *entries*, in the order of their times. `base` is the limits before the first
//! entry, and only time changes it; `all` is `base` with every entry charged. When an entry other than the last
//! changes, all entries are charged again from `base`. So a grant that is given back leaves no trace, the entries
//! behind it move up, and a new rate or a settlement applies to the waiters.
//!
//! The ledger wakes nobody. A process that waits for more than a second reads the log every second. So an entry never
//! moves to a time less than a second from now: its owner reads the final time of its grant before that time comes.

mod core;
mod entry;
mod jobs;
mod keys;
mod learning;
mod operation;
mod requests;
mod shares;
#[cfg(feature = "shared")]
mod snapshot;
#[cfg(all(test, feature = "shared"))]
mod tests;

pub use core::Ledger;
pub use keys::KeyView;
pub(crate) use operation::SEVERAL;
pub use operation::{Ask, Counts, GiveBack, NO_KEY, OfKey, Operation, Owner, Record, Reply, Take, Waiting};
