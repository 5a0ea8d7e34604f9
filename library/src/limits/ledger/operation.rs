//! What a ledger is asked to do, and what it answers.

use crate::clock::Nanos;
use crate::limits::bytes::{Reader, Writer};
use crate::limits::grant::{Grant, Refusal};
use crate::limits::policy::Policy;

/// A process that uses a bucket, in words of the store's own.
pub type Owner = [u64; 2];

/// An operation, when it takes effect, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
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
pub struct Take {
    /// One for each limit; a limit beyond them costs what the last of them says.
    pub costs: Box<[u64]>,
    /// Refused if it could only be granted after this time, and not now.
    pub latest: Nanos,
    /// Whether it will be settled.
    pub is_open: bool,
    /// The time that a bucket promised which has lost its state; 0 if none did.
    pub promised: Nanos,
}

/// A request for consecutive grants, for units that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Units that were read and wait.
    pub waiting: u64,
    /// All runs are less than this many nanoseconds after the first. 0 means one run.
    pub span: Nanos,
    /// Nothing is granted before this time, not even to others. 0 if it does not matter.
    pub from: Nanos,
}

/// What is left of a grant, and was not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GiveBack {
    /// The number of the grant.
    pub number: u64,
    /// The units that were used, of a lease.
    pub used: u64,
    /// The times and costs of what was not used, if the ledger does not remember the grant any more.
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
pub(super) struct Recent {
    pub(super) owner: Owner,
    pub(super) sequence: u64,
    /// The grant that it led to; 0 if none.
    pub(super) number: u64,
    pub(super) at: Nanos,
}

/// What happened since the bucket was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

const TAKE: u64 = 1;
const LEASE: u64 = 2;
const GIVE_BACK: u64 = 3;
const SETTLE: u64 = 4;
const HOLD: u64 = 5;
const RESUME: u64 = 6;
const SET: u64 = 7;
const CLEAR: u64 = 8;
const HERE: u64 = 9;
const GONE: u64 = 10;
const LATE: u64 = 11;

impl Operation {
    /// Writes all but the time, the owner and the sequence.
    pub(crate) fn write(&self, to: &mut Writer) {
        match self {
            Operation::Take(take) => {
                to.numbers(&[TAKE, take.latest, take.is_open.into(), take.promised]);
                to.list(&take.costs);
            }
            Operation::Lease(lease) => to.numbers(&[LEASE, lease.waiting, lease.span, lease.from]),
            Operation::GiveBack(back) => back.write(GIVE_BACK, to),
            Operation::Late(back) => back.write(LATE, to),
            Operation::Settle { number, at, charged, real } => {
                to.numbers(&[SETTLE, *number, *at]);
                to.list(charged);
                to.list(real);
            }
            Operation::Hold { until } => to.numbers(&[HOLD, *until]),
            Operation::Resume => to.number(RESUME),
            Operation::Set { policy, fresh } => {
                to.number(SET);
                to.text(&policy.to_lines());
                to.list(&fresh.iter().map(|fresh| u64::from(*fresh)).collect::<Vec<_>>());
            }
            Operation::Clear { anew, is_empty, number } => {
                to.numbers(&[CLEAR, (*is_empty).into(), *number]);
                to.text(&anew.as_ref().map(Policy::to_lines).unwrap_or_default());
            }
            Operation::Here => to.number(HERE),
            Operation::Gone { owner, seen } => to.numbers(&[GONE, owner[0], owner[1], *seen]),
        }
    }

    /// Reads what [`write`](Self::write) wrote; `None` for anything else.
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.number()? {
            TAKE => {
                let (latest, is_open, promised) = (from.number()?, from.number()? == 1, from.number()?);
                Operation::Take(Take { costs: from.list()?, latest, is_open, promised })
            }
            LEASE => Operation::Lease(Ask { waiting: from.number()?, span: from.number()?, from: from.number()? }),
            GIVE_BACK => Operation::GiveBack(GiveBack::read(from)?),
            LATE => Operation::Late(GiveBack::read(from)?),
            SETTLE => {
                let (number, at) = (from.number()?, from.number()?);
                Operation::Settle { number, at, charged: from.list()?, real: from.list()? }
            }
            HOLD => Operation::Hold { until: from.number()? },
            RESUME => Operation::Resume,
            SET => {
                let policy = Policy::from_lines(&from.text()?)?;
                Operation::Set { policy, fresh: from.list()?.iter().map(|fresh| *fresh == 1).collect() }
            }
            CLEAR => {
                let (is_empty, number, text) = (from.number()? == 1, from.number()?, from.text()?);
                let anew = if text.is_empty() { None } else { Some(Policy::from_lines(&text)?) };
                Operation::Clear { anew, is_empty, number }
            }
            HERE => Operation::Here,
            GONE => Operation::Gone { owner: [from.number()?, from.number()?], seen: from.number()? },
            _ => return None,
        })
    }
}

impl GiveBack {
    fn write(&self, code: u64, to: &mut Writer) {
        to.numbers(&[code, self.number, self.used, self.unused.len() as u64]);
        for (at, costs) in &self.unused {
            to.number(*at);
            to.list(costs);
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (number, used, count) = (from.number()?, from.number()?, from.number()?);
        let unused = (0..count).map(|_| Some((from.number()?, from.list()?))).collect::<Option<_>>()?;
        Some(GiveBack { number, used, unused })
    }
}

impl Record {
    /// Writes all but the time, which the log's keeper knows.
    pub(crate) fn write(&self, to: &mut Writer) {
        to.numbers(&[self.owner[0], self.owner[1], self.sequence]);
        self.operation.write(to);
    }

    /// Reads what [`write`](Self::write) wrote; `None` for anything else.
    pub(crate) fn read(time: Nanos, bytes: &[u8]) -> Option<Self> {
        let from = &mut Reader::new(bytes);
        let (owner, sequence) = ([from.number()?, from.number()?], from.number()?);
        let operation = Operation::read(from)?;
        from.is_at_end().then_some(Record { time, owner, sequence, operation })
    }
}
