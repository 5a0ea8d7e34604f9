//! What a ledger is asked to do, and what it answers.

use crate::clock::Nanos;
use crate::limits::bytes::{Format, Reader, Writer};
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

impl Operation {
    /// One of each kind, in the order of their numbers in a log, which begin with 1.
    fn kinds() -> [Operation; 11] {
        let (charged, real, back) = (Box::default(), Box::default(), GiveBack::default());
        [
            Operation::Take(Take::default()),
            Operation::Lease(Ask::default()),
            Operation::GiveBack(back.clone()),
            Operation::Settle { number: 0, at: 0, charged, real },
            Operation::Hold { until: 0 },
            Operation::Resume,
            Operation::Set { policy: Policy::default(), fresh: Vec::new() },
            Operation::Clear { anew: None, is_empty: false, number: 0 },
            Operation::Here,
            Operation::Gone { owner: [0; 2], seen: 0 },
            Operation::Late(back),
        ]
    }

    fn format(&self, format: &mut impl Format) -> Option<Self> {
        let kinds = Operation::kinds();
        let is_ours = |kind: &Operation| std::mem::discriminant(kind) == std::mem::discriminant(self);
        let number = format.number(kinds.iter().position(is_ours)? as u64 + 1)?;
        let kind = kinds.get(usize::try_from(number.checked_sub(1)?).ok()?)?;
        Some(match if is_ours(kind) { self } else { kind } {
            Operation::Take(take) => Operation::Take(take.format(format)?),
            Operation::Lease(Ask { waiting, span, from }) => {
                let [waiting, span, from] = format.numbers([*waiting, *span, *from])?;
                Operation::Lease(Ask { waiting, span, from })
            }
            Operation::GiveBack(back) => Operation::GiveBack(back.format(format)?),
            Operation::Late(back) => Operation::Late(back.format(format)?),
            Operation::Settle { number, at, charged, real } => {
                let [number, at] = format.numbers([*number, *at])?;
                Operation::Settle { number, at, charged: format.list(charged)?, real: format.list(real)? }
            }
            Operation::Hold { until } => Operation::Hold { until: format.number(*until)? },
            Operation::Set { policy, fresh } => {
                let policy = policy.format(format)?;
                Operation::Set { policy, fresh: format.each(fresh, &false, |format, fresh| format.flag(*fresh))? }
            }
            Operation::Clear { anew, is_empty, number } => {
                let (is_empty, number) = (format.flag(*is_empty)?, format.number(*number)?);
                let anew = anew.clone().unwrap_or_default().format(format)?;
                Operation::Clear { anew: Some(anew).filter(|anew| !anew.is_empty()), is_empty, number }
            }
            Operation::Gone { owner, seen } => {
                let [first, second, seen] = format.numbers([owner[0], owner[1], *seen])?;
                Operation::Gone { owner: [first, second], seen }
            }
            Operation::Resume | Operation::Here => kind.clone(),
        })
    }
}

impl Take {
    fn format(&self, format: &mut impl Format) -> Option<Self> {
        let (latest, is_open) = (format.number(self.latest)?, format.flag(self.is_open)?);
        Some(Take { promised: format.number(self.promised)?, costs: format.list(&self.costs)?, latest, is_open })
    }
}

impl GiveBack {
    fn format(&self, format: &mut impl Format) -> Option<Self> {
        let [number, used] = format.numbers([self.number, self.used])?;
        let blank = (0, Box::default());
        let unused =
            format.each(&self.unused, &blank, |format, (at, costs)| Some((format.number(*at)?, format.list(costs)?)));
        Some(GiveBack { number, used, unused: unused? })
    }
}

impl Record {
    /// Writes or reads all but the time, which the log's keeper knows.
    fn format(&self, format: &mut impl Format) -> Option<Self> {
        let [first, second, sequence] = format.numbers([self.owner[0], self.owner[1], self.sequence])?;
        let operation = self.operation.format(format)?;
        Some(Record { time: self.time, owner: [first, second], sequence, operation })
    }

    /// Writes all but the time.
    pub(crate) fn write(&self, to: &mut Writer) {
        self.format(to);
    }

    /// Reads what [`write`](Self::write) wrote; `None` for anything else.
    pub(crate) fn read(time: Nanos, bytes: &[u8]) -> Option<Self> {
        let from = &mut Reader::new(bytes);
        let record = Record { time, owner: [0; 2], sequence: 0, operation: Operation::Here }.format(from)?;
        from.rest().is_empty().then_some(record)
    }
}
