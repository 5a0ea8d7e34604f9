//! The operations of a shared bucket, and the outcomes of requests.

use crate::clock::Nanos;
use crate::limits::{Policy, Served, Start};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A process that uses a bucket, in a form that the store chooses.
pub type Owner = [u64; 2];

/// The ticket of the plain units of an owner.
pub const PLAIN: u64 = u64::MAX;

/// A request for one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The owner's own name for it, below [`PLAIN`].
    pub ticket: u64,
    /// The key, if the unit has one. Without limits for each key, all units of an owner take one turn.
    pub key: Option<Box<[u8]>>,
    /// 0 for a usual request, or the weight of a [suspect](super::Request::weight).
    pub weight: u32,
    /// One cost for each limit: first for the limits of all keys, then for those of the key. Further limits are charged
    /// the last of these costs.
    pub costs: Box<[u64]>,
    /// It joins its flow at this time, at the place of its age.
    pub not_before: Nanos,
    /// It is refused if it is not granted before this time.
    pub latest: Nanos,
    /// The age of an earlier grant of the same unit; 0 for a new unit, which is the youngest.
    pub age: u64,
    /// Whether the owner will report the real costs or the end of the unit, however late. Otherwise it can do so for 2 s.
    pub settles: bool,
    /// Whether the owner reports the answers of a server, so that a pace is learned.
    pub learns: bool,
}

/// A change of a ledger. Grants have numbers, and requests have the tickets of their owners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Adds requests.
    Ask(Vec<Ask>),
    /// Adds this many plain units of the owner, each of cost 1. They take the turns of one flow.
    Want(u64),
    /// Cancels requests. Those that were granted before are not used.
    Cancel(Vec<u64>),
    /// Cancels requests that their owner refuses, because they would wait too long.
    Deny(Vec<u64>),
    /// Cancels the plain units that wait.
    WantNothing,
    /// Reports grants that are not used: they cost nothing.
    Unused(Vec<u64>),
    /// Reports the real costs of a grant.
    Settle {
        /// The number of the grant.
        number: u64,
        /// The real costs, as in [`Ask::costs`].
        real: Box<[u64]>,
    },
    /// Reports grants whose units no longer run. Their costs are final.
    Ended(Vec<u64>),
    /// Reports units that a server has served: of a key, or of all.
    Served(Option<Box<[u8]>>, Served),
    /// Reports that a unit of this key has succeeded or failed.
    Tried {
        /// The key.
        key: Box<[u8]>,
        /// Whether the unit has succeeded.
        has_succeeded: bool,
    },
    /// Grants nothing for a time before `until`.
    Hold {
        /// The key, if only this key is held.
        key: Option<Box<[u8]>>,
        /// The end of the hold.
        until: Nanos,
        /// The starts of the units that a server refused: the pace is learned from them.
        refused: Vec<Start>,
    },
    /// Lifts the hold of a key, or all holds.
    Resume(Option<Box<[u8]>>),
    /// Replaces the limits. A limit at the same index and of the same kind keeps its state, unless it is `fresh`.
    Set(Policy, Vec<bool>),
    /// Refuses all requests, or those of a key, and lifts the hold. Paces and failures are forgotten. With a policy, the
    /// bucket begins anew.
    Clear {
        /// The key, if only its requests are refused.
        key: Option<Box<[u8]>>,
        /// The limits of the new bucket.
        anew: Option<Policy>,
        /// Whether the buckets of all keys begin empty, because a bucket with these limits was lost.
        is_empty: bool,
        /// Grants of a new bucket get numbers after this one.
        number: u64,
    },
    /// Hands the unit with this grant over to another owner. It runs until that owner ends it or is gone.
    HandOver(u64, Owner),
    /// Reports how long the owner needs to send an operation and to receive an answer, in nanoseconds.
    RoundTrip(Nanos),
    /// Reports that the owner is alive.
    Here,
    /// Reports that an owner has ended. It has no effect if the owner sent an operation after `seen`.
    Gone {
        /// The owner.
        owner: Owner,
        /// The time of its latest operation.
        seen: Nanos,
    },
}

/// Operations with their time and their owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The time at which it takes effect, on the bucket's clock. Records of one log are stamped in order.
    pub time: Nanos,
    /// The process that sent it.
    pub owner: Owner,
    /// Counts the records of its owner, from 1. A repeated record has the number of the original and no effect. 0 if its
    /// owner repeats none.
    pub sequence: u64,
    /// The changes, in their order.
    pub operations: Vec<Operation>,
}

/// A committed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its number. Later grants have higher numbers.
    pub number: u64,
    /// The ticket of its request; [`PLAIN`] for plain units.
    pub ticket: u64,
    /// The age of its request.
    pub age: u64,
    /// The units may leave at this time or later.
    pub at: Nanos,
    /// The number of units: above 1 only for plain units.
    pub units: u64,
    /// Whether they had to wait.
    pub has_waited: bool,
    /// The start as the pace counts it, if a pace is learned.
    pub start: Option<Start>,
}

/// What became of a request, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request was granted.
    Granted(Grant),
    /// The request with this ticket is not granted any more.
    Refused(u64, Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its latest time has come.
    TooLate,
    /// One of its costs is above a window's count.
    Never,
    /// The bucket was cleared. It may be requested again.
    Cleared,
    /// As many units of the key have failed in a row.
    GivenUp(NonZeroU32),
    /// Too many keys or requests are stored. It may be requested again after this time.
    NoRoom(Nanos),
}

/// The counts of a bucket since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The time of its creation, on its own clock.
    pub since: Nanos,
    /// The units of committed grants. If the costs of a grant differ by limit, the largest cost counts.
    pub granted: u64,
    /// The number of refused requests.
    pub refused: u64,
    /// The units of committed grants that were not used.
    pub given_back: u64,
    /// The sum of the waits of all grants, in nanoseconds.
    pub waited: Nanos,
}
