//! What a ledger is asked to do, and what it answers.

use crate::clock::Nanos;
use crate::limits::grant::{Grant, Refusal};
use crate::limits::pace::{Served, Start};
use crate::limits::policy::Policy;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// A process that uses a bucket, in words of the store's own.
pub type Owner = [u64; 2];

/// The key of units that have none.
pub const NO_KEY: &[u8] = b"(none)";

/// The most that one operation asks for.
pub(crate) const SEVERAL: usize = 64;

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
    /// Grants these one after the other, as if each was asked for alone. Of those that wait for the limits of all, only those
    /// that are granted less than `span` nanoseconds after the first of them. At most 64.
    Several {
        /// What is asked for.
        takes: Vec<Take>,
        /// In nanoseconds.
        span: Nanos,
    },
    /// Grants consecutive runs.
    Lease(Ask),
    /// Grants, or the rest of a lease, were not used.
    GiveBack(Vec<GiveBack>),
    /// The same, of what was not used because its owner woke too late. The time is lost to buckets; windows do not count it.
    Late(Vec<GiveBack>),
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
        /// What it was charged to its key, and what it cost there.
        key: Option<(OfKey, Box<[u64]>)>,
    },
    /// Nothing is granted before this time. Buckets are empty then.
    Hold {
        /// The time.
        until: Nanos,
        /// What a server refused: what starts is slowed down.
        refused: Vec<Start>,
        /// Only of this key.
        key: Option<Box<[u8]>>,
    },
    /// No hold is left, or none of this key.
    Resume {
        /// Only of this key.
        key: Option<Box<[u8]>>,
    },
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
        /// Only those of this key.
        key: Option<Box<[u8]>>,
    },
    /// Commands of this key have succeeded, or so many have failed since one did.
    Tried {
        /// The key.
        key: Box<[u8]>,
        /// Whether one has succeeded.
        succeeded: bool,
        /// How many have failed after that.
        failed: u32,
    },
    /// The command with the grant of this number has ended.
    End {
        /// The number.
        number: u64,
    },
    /// The command with the grant of this number is this process: it keeps its place for as long as it runs, also if the
    /// owner ends before.
    Start {
        /// The number.
        number: u64,
        /// The process.
        process: Owner,
    },
    /// The owner still waits, or its commands still run.
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
    /// Not granted before this time, as a bucket promised which has lost its state, or because it takes so long to learn of the
    /// grant; 0 if it does not matter.
    pub from: Nanos,
    /// What has succeeded since the request before this one.
    pub served: Served,
    /// What it costs the limits of its key, if the bucket keeps any.
    pub key: Option<OfKey>,
}

impl Take {
    /// A request for these costs, whenever they are granted.
    #[must_use]
    pub fn of(costs: &[u64]) -> Self {
        Take { costs: costs.into(), latest: Nanos::MAX, ..Take::default() }
    }

    /// What is given back if the grant that it led to is not used.
    pub(crate) fn unused(&self, grant: &Grant) -> GiveBack {
        GiveBack { number: grant.number(), unused: vec![(grant.at, self.costs.clone())], key: self.key.clone() }
    }

    /// The name of the key; empty without one.
    pub(crate) fn name(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |of| &of.name)
    }
}

/// A key, and what a unit costs its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct OfKey {
    /// The key.
    pub name: Box<[u8]>,
    /// One cost for each limit of the key; a limit beyond them costs what the last of them says.
    pub costs: Box<[u64]>,
    /// Refused if the limits of the key alone conform only after this time, and not now.
    pub latest: Nanos,
    /// It has waited since this time of the bucket, if that is before the request: since then the rate has paid what it costs
    /// beyond the burst.
    pub since: Nanos,
    /// Whether the caller tells what a server answers, so that the pace of the key is learned.
    pub learns: bool,
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

impl OfKey {
    /// One of each limit of this key, whenever they are granted.
    #[must_use]
    pub fn of(name: Box<[u8]>) -> Self {
        OfKey { name, costs: [1].into(), latest: Nanos::MAX, since: Nanos::MAX, learns: false }
    }
}

/// What is left of a grant, and was not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct GiveBack {
    /// The number of the grant.
    pub number: u64,
    /// The times and costs of what was not used.
    pub unused: Vec<(Nanos, Box<[u64]>)>,
    /// What it was charged to its key.
    pub key: Option<OfKey>,
}

/// What an operation led to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// One grant, or the runs of a lease.
    Granted(Vec<Grant>),
    /// One answer for each that was asked for. If the operation was sent again: for none behind the last that was granted.
    Each(Vec<Result<Grant, Refusal>>),
    /// Nothing was charged.
    Refused(Refusal),
    /// It took effect.
    Done,
}

impl Reply {
    /// The number and the time of the first grant that has a number, and which of several were granted.
    pub(super) fn summary(&self) -> ((u64, Nanos), u64) {
        let seen = |grant: &Grant| (grant.number(), grant.at);
        let counts = |answer: &Result<Grant, Refusal>| answer.is_ok_and(|grant| grant.number() > 0);
        match self {
            Reply::Granted(grants) => (grants.first().map_or((0, 0), seen), 0),
            Reply::Each(each) => {
                let first = each.iter().filter(|answer| counts(answer)).find_map(|answer| answer.as_ref().ok());
                let granted =
                    each.iter().take(SEVERAL).rev().fold(0, |bits, answer| bits << 1 | u64::from(counts(answer)));
                (first.map_or((0, 0), seen), granted)
            }
            _ => ((0, 0), 0),
        }
    }
}

impl From<Result<Vec<Grant>, Refusal>> for Reply {
    fn from(result: Result<Vec<Grant>, Refusal>) -> Self {
        result.map_or_else(Reply::Refused, Reply::Granted)
    }
}

/// An operation that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Recent {
    pub(super) owner: Owner,
    pub(super) sequence: u64,
    /// The first grant that it led to; 0 if none.
    pub(super) number: u64,
    /// Which of [several](Operation::Several) were granted: a bit for each. 0 if only one was asked for.
    pub(super) granted: u64,
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
    /// How long grants had to wait, in all: those whose time has come.
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
