//! A bucket as the fold of a log.
//!
//! A ledger is the limits with everything granted, those who wait, and what is needed to change that: one function,
//! [`apply`](Ledger::apply), takes an operation at a time and answers it. It is deterministic: the same operations at the
//! same times give the same state on every machine. So all users of a bucket who read the same log agree.
//!
//! Grants whose time has not come are *entries*, in the order of their times. `base` is the limits before the first
//! entry, and nothing changes it but time; `all` is `base` with every entry charged. Whatever changes an entry that is not
//! the last one, charges all of them again from `base`. So a grant that is given back leaves no trace, those behind it
//! move up, and a new rate or a settlement counts for those who wait.
//!
//! Nobody is woken. A process that waits for more than a second reads the log every second, so an entry moves to no
//! earlier time than that from now. Then every owner knows the time that it is charged at.

mod core;
mod entry;
mod jobs;
mod keys;
mod learning;
mod operation;
mod requests;
#[cfg(feature = "shared")]
mod snapshot;
#[cfg(all(test, feature = "shared"))]
mod tests;

pub use core::Ledger;
pub use keys::KeyView;
pub(crate) use operation::SEVERAL;
pub use operation::{Ask, Counts, GiveBack, NO_KEY, OfKey, Operation, Owner, Record, Reply, Take, Waiting};
