//! The interface between the pump and what it moves.

use std::collections::BTreeMap;
use std::io;
use thiserror::Error;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Grant, Refusal, Served, Start, Take};

/// Units on their way from a source to a sink.
pub trait Flow {
    /// Reads more input. If there is none, waits until there is some or the input ends, but not longer than so many
    /// nanoseconds; only a flow whose units have keys has to come back in time.
    ///
    /// # Errors
    /// If reading fails.
    fn fill(&mut self, wait: Nanos) -> Result<Filled, FlowError>;

    /// The number of units that were read and not yet handed over.
    fn waiting(&self) -> u64;

    /// What else there is to know of it.
    fn state(&self) -> State {
        State { foreseen: self.waiting(), ..State::default() }
    }

    /// Waits until the sink can accept a unit, and returns how many it can accept.
    ///
    /// # Errors
    /// If the sink fails; [`FlowError::Write`] of `BrokenPipe` if its reader is gone.
    fn ready(&mut self) -> Result<u64, FlowError>;

    /// Chooses what is handed over next, and returns what it costs. If that is not usual, it is granted alone. One with a
    /// key of a shared bucket is out of the flow until [`Turn::OfKey`] gives the answer; meanwhile others are chosen.
    /// Waits for nothing.
    fn choose(&mut self) -> Price {
        Price::Usual
    }

    /// What a server has told since the last call. If it asked to wait, the flow unparks the thread of the pump, which may
    /// sleep until a grant.
    fn take_answers(&self) -> Answers {
        Answers::default()
    }

    /// Hands over units together, and adds those that left to `passed`, even if it then fails.
    ///
    /// # Errors
    /// If reading or writing fails, or nothing may leave after a unit that gets no grant.
    fn pass(&mut self, turn: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError>;
}

/// What a server has told about units that were handed over: of each key of a shared bucket, or of all.
pub type Answers = BTreeMap<Option<Box<[u8]>>, Told>;

/// What a server has told about units of a key, or about all.
#[derive(Debug, Default)]
pub struct Told {
    /// How long nothing may be handed over from now on, in nanoseconds.
    pub hold: Option<Nanos>,
    /// The starts of those that it refused.
    pub refused: Vec<Start>,
    /// Those that it served.
    pub served: Served,
    /// Whether one has succeeded, if a bucket has to know.
    pub succeeded: bool,
    /// How many have failed since.
    pub failed: u32,
}

impl Told {
    /// This, and then what is told `later`.
    pub(crate) fn add(&mut self, later: Told) {
        self.hold = self.hold.max(later.hold);
        self.refused.extend(later.refused);
        self.served = self.served.and(later.served);
        self.tried(later.succeeded, later.failed);
    }

    /// One has succeeded, or so many have failed.
    pub(crate) fn tried(&mut self, succeeded: bool, failed: u32) {
        self.failed = if succeeded { 0 } else { self.failed }.saturating_add(failed);
        self.succeeded |= succeeded;
    }

    /// Whether it cannot wait: otherwise other processes would keep sending.
    pub(crate) fn is_urgent(&self) -> bool {
        self.hold.is_some() || self.failed > 0
    }
}

/// What is handed over together.
pub enum Turn<'a> {
    /// So many units of the usual price.
    Usual(u64),
    /// The unit that was chosen, with this grant of these costs, and those behind it for which `joins` is true when it is
    /// called with their costs, one after the other.
    Costly {
        /// The grant of the first of them.
        grant: Grant,
        /// What it was charged.
        costs: &'a [u64],
        /// Whether a unit of these costs may leave with it.
        joins: &'a mut dyn FnMut(&[u64]) -> bool,
        /// Tells what the unit really cost, if its price was [`Price::AtLeast`].
        settle: &'a dyn Fn(&[u64]),
    },
    /// The unit with a key that has this number.
    OfKey(u64, Answer<'a>),
    /// The unit that was chosen gets no grant.
    Refused(Unpaid),
}

/// What becomes of a unit with a key of a shared bucket.
pub enum Answer<'a> {
    /// It leaves, with this grant for what it asked.
    Granted(Grant, &'a Take),
    /// Its key has to wait for so many nanoseconds: it waits again, and another unit may go first.
    NotYet(Nanos),
    /// It is never granted: it costs too much, or its key is not tried any more.
    Refused(Refusal),
}

impl Turn<'_> {
    /// How many units there are at least.
    pub(super) fn units(&self) -> u64 {
        if let Turn::Usual(units) = self { *units } else { 1 }
    }
}

/// What the pump and its meter want to know of a flow.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The units that were read and not yet handed over, also one that was read in part, and their bytes, as far as they
    /// are counted.
    pub ahead: Passed,
    /// How many of the [`waiting`](Flow::waiting) units the sink will accept without a wait, as far as is known.
    pub foreseen: u64,
    /// How many keys have units that wait, and how many keys there are.
    pub keys: [u64; 2],
    /// When the next of the units that were read conforms, if limits of the flow's own are what is waited for.
    pub limited_until: Option<Nanos>,
    /// Until when a server asked all to wait last, if the pump does not know it.
    pub paused_until: Option<Nanos>,
    /// What may leave waits for the reader of the output.
    pub waits_for_sink: bool,
    /// No more input is waited for: all was read, or too much of it waits.
    pub reads_no_more: bool,
}

/// What a unit costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    /// One of each limit.
    Usual,
    /// So much of each limit.
    Costs(Box<[u64]>),
    /// What is asked of a shared bucket, which keeps the limits of the unit's key and those of all.
    OfKey {
        /// The number of the unit.
        ticket: u64,
        /// What it costs.
        take: Take,
        /// How long it has waited, in nanoseconds.
        waited: Nanos,
    },
    /// At least so much of each limit. Its end was not read yet: what it costs is settled when it is.
    AtLeast(Box<[u64]>),
    /// It cannot be read.
    Unknown,
    /// No unit may be handed over after all.
    Nothing,
}

/// Why a unit gets no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaid {
    /// What it costs cannot be read.
    Unread,
    /// It costs more than a limit ever grants.
    TooMuch,
}

/// What was handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Whole units.
    pub units: u64,
    /// Bytes, including those of a unit that an error cut short.
    pub bytes: u64,
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Something was read.
    Some,
    /// Nothing is available now, or there is no room for it.
    Nothing,
    /// There is no more input, and no unit of it is left but those that [wait](Flow::waiting).
    End,
}

/// Why units cannot be moved.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The source could not be read.
    #[error("read")]
    Read(#[source] io::Error),
    /// Units that were read could not be kept until they may leave.
    #[error("hold")]
    Hold(#[source] io::Error),
    /// This unit can never leave: its number in the input, its beginning, and why.
    #[error("unit {0}: {2}")]
    Refused(u64, Box<[u8]>, String),
    /// The sink could not be written.
    #[error("write")]
    Write(#[source] io::Error),
}
