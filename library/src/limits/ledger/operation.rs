//! What a ledger is asked to do, and what it answers.

use crate::clock::Nanos;
use crate::limits::grant::{Grant, Refusal};
use crate::limits::pace::{Served, Start};
use crate::limits::policy::Policy;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// A process that uses a bucket, in words of the store's own.
pub type Owner = [u64; 2];

/// An operation, when it takes effect, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Record {
    /// On the bucket's clock. Records of one log are stamped in order.
    pub time: Nanos,
    /// Whose it is.
    pub owner: Owner,
    /// Counts the operations of its owner, from 1: an operation that is sent again has the same one.
    pub sequence: u64,
    /// What it does.
    pub operation: Operation,
}

/// A change of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub enum Operation {
    /// Grants these costs.
    Take(Take),
    /// Grants consecutive runs.
    Lease(Ask),
    /// A grant, or the rest of a lease, was not used.
    GiveBack(GiveBack),
    /// The same, of what was not used because its owner woke too late. The time is lost to buckets; windows do not count it.
    Late(GiveBack),
    /// A grant cost something else than it was charged.
    Settle {
        /// Its number.
        number: u64,
        /// Its time.
        at: Nanos,
        /// What it was charged.
        charged: Box<[u64]>,
        /// What it cost.
        real: Box<[u64]>,
    },
    /// Nothing is granted before this time. Buckets are empty then.
    Hold {
        /// The time.
        until: Nanos,
        /// What a server refused: what starts is slowed down.
        refused: Vec<Start>,
    },
    /// No hold is left.
    Resume,
    /// The limits are those of `policy` from now on. A limit at the same index and of the same kind keeps its state,
    /// unless `fresh` is true at its index.
    Set {
        /// The new limits.
        policy: Policy,
        /// Which of them start anew.
        fresh: Vec<bool>,
    },
    /// Those who wait, and holds, are removed. With a policy, everything begins anew with that.
    Clear {
        /// The limits that everything begins anew with.
        anew: Option<Policy>,
        /// Buckets begin empty: one with these limits was lost.
        is_empty: bool,
        /// If they begin anew, grants get numbers after this one, so that none of before is taken for one of these.
        number: u64,
    },
    /// The owner still waits.
    Here,
    /// An owner has ended, unless it was seen after `seen`.
    Gone {
        /// The process.
        owner: Owner,
        /// When it was last seen.
        seen: Nanos,
    },
}

/// A request for one grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Take {
    /// One for each limit; a limit beyond them costs what the last of them says.
    pub costs: Box<[u64]>,
    /// Refused if it could only be granted after this time, and not now.
    pub latest: Nanos,
    /// Whether it will be settled.
    pub is_open: bool,
    /// The time that a bucket promised which has lost its state; 0 if none did.
    pub promised: Nanos,
    /// What has succeeded since the request before this one.
    pub served: Served,
}

/// A request for consecutive grants, for units that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Ask {
    /// Units that were read and wait.
    pub waiting: u64,
    /// All runs are less than this many nanoseconds after the first. 0 means one run.
    pub span: Nanos,
    /// Nothing is granted before this time, not even to others. 0 if it does not matter.
    pub from: Nanos,
    /// What has succeeded since the request before this one.
    pub served: Served,
}

/// What is left of a grant, and was not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct GiveBack {
    /// The number of the grant.
    pub number: u64,
    /// The times and costs of what was not used.
    pub unused: Vec<(Nanos, Box<[u64]>)>,
}

/// What an operation led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// One grant, or the runs of a lease.
    Granted(Vec<Grant>),
    /// Nothing was charged.
    Refused(Refusal),
    /// It took effect.
    Done,
}

/// An operation that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Recent {
    pub(super) owner: Owner,
    pub(super) sequence: u64,
    /// The grant that it led to; 0 if none.
    pub(super) number: u64,
    pub(super) at: Nanos,
}

/// What happened since the bucket was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Counts {
    /// When it was made, on its own clock.
    pub since: Nanos,
    /// Units granted. Of costs that differ by limit: the largest.
    pub granted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Units given back.
    pub given_back: u64,
    /// How long grants had to wait, in all.
    pub waited: Nanos,
}

/// One that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What it costs.
    pub cost: u64,
    /// How long it still has to wait, in nanoseconds.
    pub wait: Nanos,
}
