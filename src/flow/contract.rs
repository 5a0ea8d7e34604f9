//! The interface between the pump and the flows that it drives.

use std::collections::BTreeMap;
use std::io;
use thiserror::Error;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Grant, Refusal, Served, Start, Take};

/// Units on their way from a source to a sink.
pub trait Flow {
    /// Reads more input. If there is none, waits until input arrives or ends, for at most `wait` nanoseconds. Only a
    /// flow whose units have keys must return after that time.
    ///
    /// # Errors
    /// Reading failed.
    fn fill(&mut self, wait: Nanos) -> Result<Filled, FlowError>;

    /// The number of units that were read and not yet handed over.
    fn waiting(&self) -> u64;

    /// Further facts for the pump and its meter.
    fn state(&self) -> State {
        State { foreseen: self.waiting(), ..State::default() }
    }

    /// Waits until the sink can accept a unit, and returns how many units it can accept.
    ///
    /// # Errors
    /// The sink fails. [`FlowError::Write`] with `BrokenPipe`: the reader of the sink is gone.
    fn ready(&mut self) -> Result<u64, FlowError>;

    /// Chooses the next unit to hand over, and returns its price. A unit with an unusual price is granted alone. A unit
    /// with a key of a shared bucket leaves the flow until [`Turn::OfKey`] brings its answer; meanwhile the flow
    /// chooses other units. Does not block.
    fn choose(&mut self) -> Price {
        Price::Usual
    }

    /// Returns and clears the reports of servers since the last call. When a server requests a pause, the flow unparks
    /// the pump's thread, which may sleep until a grant.
    fn take_answers(&self) -> Answers {
        Answers::default()
    }

    /// Hands over units together. Adds the units that left to `passed`, even if an error follows.
    ///
    /// # Errors
    /// Reading or writing failed, or a unit was refused and the flow must end there.
    fn pass(&mut self, turn: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError>;
}

/// Reports of servers about units that were handed over: one for each key of a shared bucket, or a single report under
/// `None` for all units.
pub type Answers = BTreeMap<Option<Box<[u8]>>, ServerReport>;

/// A report of servers about the units of one key, or about all units.
#[derive(Debug, Default)]
pub struct ServerReport {
    /// How long no further unit may be handed over, in nanoseconds from now.
    pub hold: Option<Nanos>,
    /// The starts of the units that servers refused.
    pub refused: Vec<Start>,
    /// The units that servers served.
    pub served: Served,
    /// Whether a unit has succeeded. Recorded only for a bucket that counts failures.
    pub succeeded: bool,
    /// The number of failed units since the last success.
    pub failed: u32,
}

impl ServerReport {
    /// Appends a later report.
    pub(crate) fn add(&mut self, later: ServerReport) {
        self.hold = self.hold.max(later.hold);
        self.refused.extend(later.refused);
        self.served = self.served.and(later.served);
        self.tried(later.succeeded, later.failed);
    }

    /// Records a success if `succeeded`, and then `failed` failures.
    pub(crate) fn tried(&mut self, succeeded: bool, failed: u32) {
        self.failed = if succeeded { 0 } else { self.failed }.saturating_add(failed);
        self.succeeded |= succeeded;
    }

    /// Whether the report must be sent at once: otherwise other processes would keep sending units.
    pub(crate) fn is_urgent(&self) -> bool {
        self.hold.is_some() || self.failed > 0
    }
}

/// The units of one call of [`Flow::pass`].
pub enum Turn<'a> {
    /// This number of units of the usual price.
    Usual(u64),
    /// The chosen unit, and the units behind it that join it. `pass` calls `joins` with the costs of one unit after the
    /// other, until it returns false.
    Costly {
        /// The grant of the chosen unit.
        grant: Grant,
        /// The costs that were charged for the chosen unit.
        costs: &'a [u64],
        /// Whether a unit of these costs may leave at the same time.
        joins: &'a mut dyn FnMut(&[u64]) -> bool,
        /// Settles the real cost of the unit if its price was [`Price::AtLeast`].
        settle: &'a dyn Fn(&[u64]),
    },
    /// The answer to the request with this ticket ([`Price::OfKey`]).
    OfKey(u64, Answer<'a>),
    /// The chosen unit gets no grant.
    Refused(Unpaid),
}

/// The answer to a request for a unit with a key of a shared bucket.
pub enum Answer<'a> {
    /// The unit leaves with this grant for this request.
    Granted(Grant, &'a Take),
    /// The key has to wait for this many nanoseconds. The unit returns to the line, and another unit may go first.
    NotYet(Nanos),
    /// The unit is never granted: it costs too much, or its key was abandoned.
    Refused(Refusal),
}

/// The state of a flow, for the pump and its meter.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The units that were read and not yet handed over, and their bytes as far as they are counted. Includes a unit
    /// that was read in part.
    pub ahead: Passed,
    /// The number of [`waiting`](Flow::waiting) units that the sink is expected to accept without a wait.
    pub foreseen: u64,
    /// The number of keys with waiting units, and the number of all keys.
    pub keys: [u64; 2],
    /// The time at which the next unit conforms, if the flow waits for limits of its own.
    pub limited_until: Option<Nanos>,
    /// The end of the latest pause of all units, if the flow applies that pause itself.
    pub paused_until: Option<Nanos>,
    /// Whether a unit that the limits allow to leave waits for the reader of the output.
    pub waits_for_sink: bool,
    /// Whether the flow reads no more: the input has ended, or the queue is full.
    pub reads_no_more: bool,
}

/// The price of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    /// A cost of one for each limit.
    Usual,
    /// These costs, one for each limit.
    Costs(Box<[u64]>),
    /// A request to a shared bucket, which keeps the limits of the unit's key and the limits of all keys.
    OfKey {
        /// Identifies the unit in the answer.
        ticket: u64,
        /// The costs of the unit.
        take: Take,
        /// How long the unit has waited, in nanoseconds.
        waited: Nanos,
    },
    /// At least these costs. The end of the unit was not read yet; its real cost is settled at its end.
    AtLeast(Box<[u64]>),
    /// The cost cannot be read.
    Unknown,
    /// No unit can be handed over now.
    Nothing,
}

/// Why a unit gets no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaid {
    /// Its cost cannot be read.
    Unread,
    /// Its cost is above the most that a limit ever grants.
    TooMuch,
}

/// Units and bytes that were handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Whole units.
    pub units: u64,
    /// Bytes, including the written bytes of a unit that an error cut short.
    pub bytes: u64,
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Something was read.
    Some,
    /// Nothing is available now, or the buffer has no room.
    Nothing,
    /// The input has ended, and no units remain but the [waiting](Flow::waiting) ones.
    End,
}

/// Why units cannot be moved.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The source could not be read.
    #[error("read")]
    Read(#[source] io::Error),
    /// Units could not be stored until they may leave.
    #[error("hold")]
    Hold(#[source] io::Error),
    /// A unit can never leave: its number in the input, its first bytes, and the reason.
    #[error("unit {0}: {2}")]
    Refused(u64, Box<[u8]>, String),
    /// The sink could not be written.
    #[error("write")]
    Write(#[source] io::Error),
}
