//! The operations of a ledger, and its replies.

use crate::clock::Nanos;
use crate::limits::grant::{Grant, Refusal};
use crate::limits::pace::{Served, Start};
use crate::limits::policy::Policy;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// A process that uses a bucket, in a form that the store chooses.
pub type Owner = [u64; 2];

/// The key of units that have no key.
pub const NO_KEY: &[u8] = b"(none)";

/// The most requests in one operation.
pub(crate) const SEVERAL: usize = 64;

/// An operation with its time and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Record {
    /// The time at which it takes effect, on the bucket's clock. Records of one log are stamped in order.
    pub time: Nanos,
    /// The process that sent it.
    pub owner: Owner,
    /// Counts the operations of its owner, from 1. A repeated operation has the number of the original.
    pub sequence: u64,
    /// The change that it makes.
    pub operation: Operation,
}

/// A change of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub enum Operation {
    /// Requests one grant.
    Take(Take),
    /// Requests several grants, at most 64. They are granted one after the other, as if each was requested alone. A
    /// request that has to wait for the overall limits is refused if its time is `span` nanoseconds or more after the
    /// first such grant.
    Several {
        /// The requests.
        takes: Vec<Take>,
        /// In nanoseconds.
        span: Nanos,
    },
    /// Requests consecutive runs.
    Lease(Ask),
    /// Gives back grants, or the rest of a lease, that were not used.
    GiveBack(Vec<GiveBack>),
    /// Gives back grants that were not used because their owner woke too late. Buckets lose that time; windows do not
    /// count these grants.
    Late(Vec<GiveBack>),
    /// Corrects the cost of a grant to its real cost.
    Settle {
        /// The number of the grant.
        number: u64,
        /// The time of the grant. In a private bucket, it is the time from which windows count it.
        at: Nanos,
        /// The costs that were charged.
        charged: Box<[u64]>,
        /// The real costs.
        real: Box<[u64]>,
        /// The costs that were charged to its key, and the real costs for the key.
        key: Option<(OfKey, Box<[u64]>)>,
        /// The delay, in nanoseconds, until the owner receives the new times of its requests.
        round_trip: Nanos,
    },
    /// Grants nothing before a time. Buckets are empty then.
    Hold {
        /// The end of the hold.
        until: Nanos,
        /// The calls that a server refused. Later calls are slowed down.
        refused: Vec<Start>,
        /// The key, if only this key is held.
        key: Option<Box<[u8]>>,
    },
    /// Lifts all holds, or the hold of one key.
    Resume {
        /// The key, if only its hold is lifted.
        key: Option<Box<[u8]>>,
    },
    /// Replaces the limits by those in `policy`. A limit at the same index and of the same kind keeps its state, unless
    /// `fresh` is true at its index.
    Set {
        /// The new limits.
        policy: Policy,
        /// Whether each limit starts in its initial state.
        fresh: Vec<bool>,
    },
    /// Removes all waiters and holds. With a policy, the bucket is replaced by a new one with these limits.
    Clear {
        /// The limits of the new bucket.
        anew: Option<Policy>,
        /// Whether buckets begin empty, because a bucket with these limits was lost.
        is_empty: bool,
        /// Grants of a new bucket get numbers after this number, so none is mistaken for an earlier grant.
        number: u64,
        /// The key, if only its waiters and its hold are removed.
        key: Option<Box<[u8]>>,
    },
    /// Reports that commands of this key have succeeded, or that some have failed since the latest success.
    Tried {
        /// The key.
        key: Box<[u8]>,
        /// Whether a command has succeeded.
        succeeded: bool,
        /// The number of commands that failed after that.
        failed: u32,
    },
    /// Reports that the command with this grant has ended.
    End {
        /// The number of the grant.
        number: u64,
    },
    /// Hands the command with this grant over to a process of its own. The command keeps its job slot while that
    /// process runs, even if the owner ends earlier.
    Start {
        /// The number of the grant.
        number: u64,
        /// The process.
        process: Owner,
    },
    /// Reports that the owner still waits, or that its commands still run.
    Here,
    /// Reports that an owner has ended. It has no effect if the owner sent an operation after `seen`.
    Gone {
        /// The process that has ended.
        owner: Owner,
        /// The time of the latest operation of the owner.
        seen: Nanos,
    },
}

/// A request for one grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Take {
    /// One cost for each limit. Further limits are charged the last of these costs.
    pub costs: Box<[u64]>,
    /// The latest acceptable time of the grant. A request that has to wait longer is refused.
    pub latest: Nanos,
    /// `None` if the grant will not be settled. Otherwise the nanoseconds within which its owner learns that a
    /// settlement by another process has moved the grant up.
    pub open: Option<Nanos>,
    /// The earliest time of the grant; 0 if any time is good. It is the time of an earlier grant of this request, if
    /// the bucket has lost that grant. Or it is the time at which the answer reaches the owner.
    pub from: Nanos,
    /// The successes since the previous request.
    pub served: Served,
    /// The key and its costs, if the bucket keeps keys.
    pub key: Option<OfKey>,
}

impl Take {
    /// A request for these costs that accepts any time.
    #[must_use]
    pub fn of(costs: &[u64]) -> Self {
        Take { costs: costs.into(), latest: Nanos::MAX, ..Take::default() }
    }

    /// The operation data that gives back `grant`, which this request led to.
    pub(crate) fn unused(&self, grant: &Grant) -> GiveBack {
        GiveBack { number: grant.number(), unused: vec![(grant.at, self.costs.clone())], key: self.key.clone() }
    }

    /// The name of the key; empty without a key.
    pub(crate) fn name(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |of| &of.name)
    }
}

/// A key, and the costs of a unit for its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct OfKey {
    /// The name of the key.
    pub name: Box<[u8]>,
    /// One cost for each limit of the key. Further limits are charged the last of these costs.
    pub costs: Box<[u64]>,
    /// The latest acceptable time by the limits of the key alone. A request that has to wait longer is refused.
    pub latest: Nanos,
    /// The time, on the bucket's clock, at which the unit began to wait, if that is before the request. The gain since
    /// then pays for a cost above the burst.
    pub since: Nanos,
    /// Whether the caller reports the replies of a server, so that the pace of the key is learned.
    pub learns: bool,
}

/// A request for consecutive grants, for units that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Ask {
    /// The number of units that were read and wait.
    pub waiting: u64,
    /// All runs are less than this many nanoseconds after the first. 0 means one run.
    pub span: Nanos,
    /// The earliest time of the grants, and so of the grants of later requests; 0 if any time is good.
    pub from: Nanos,
    /// The successes since the previous request.
    pub served: Served,
}

impl OfKey {
    /// One unit of this key, at any time.
    #[must_use]
    pub fn of(name: Box<[u8]>) -> Self {
        OfKey { name, costs: [1].into(), latest: Nanos::MAX, since: Nanos::MAX, learns: false }
    }
}

/// The unused rest of a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct GiveBack {
    /// The number of the grant.
    pub number: u64,
    /// The times and costs of the unused units.
    pub unused: Vec<(Nanos, Box<[u64]>)>,
    /// The charge to its key.
    pub key: Option<OfKey>,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// One grant, or the runs of a lease.
    Granted(Vec<Grant>),
    /// One answer for each request. The reply to a repeated operation ends with the last request that was granted.
    Each(Vec<Result<Grant, Refusal>>),
    /// Nothing was charged.
    Refused(Refusal),
    /// The operation took effect.
    Done,
}

impl Reply {
    /// The number and the time of the first grant that has a number, and a bit for each of several requests that was
    /// granted.
    pub(super) fn summary(&self) -> ((u64, Nanos), u64) {
        let number_and_time = |grant: &Grant| (grant.number(), grant.at);
        let counts = |answer: &Result<Grant, Refusal>| answer.is_ok_and(|grant| grant.number() > 0);
        match self {
            Reply::Granted(grants) => (grants.first().map_or((0, 0), number_and_time), 0),
            Reply::Each(each) => {
                let first = each.iter().filter(|answer| counts(answer)).find_map(|answer| answer.as_ref().ok());
                let granted =
                    each.iter().take(SEVERAL).rev().fold(0, |bits, answer| bits << 1 | u64::from(counts(answer)));
                (first.map_or((0, 0), number_and_time), granted)
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
    /// The number of the first grant that it led to; 0 if there was none.
    pub(super) number: u64,
    /// The requests of [several](Operation::Several) that were granted: a bit for each. 0 if only one was requested.
    pub(super) granted: u64,
    pub(super) at: Nanos,
}

/// The counts of a bucket since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Counts {
    /// The time of its creation, on its own clock.
    pub since: Nanos,
    /// The units granted. If the costs of a grant differ by limit, the largest cost counts.
    pub granted: u64,
    /// The number of refused requests.
    pub refused: u64,
    /// The units given back.
    pub given_back: u64,
    /// The sum of the waits of all grants whose time has come, in nanoseconds.
    pub waited: Nanos,
}

impl Counts {
    /// Counts a refusal, unless its caller requests again.
    pub(super) fn refuse(&mut self, is_final: bool) {
        self.refused = self.refused.saturating_add(is_final.into());
    }
}

/// A waiter of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The cost that it waits for.
    pub cost: u64,
    /// The remaining wait, in nanoseconds.
    pub wait: Nanos,
}
