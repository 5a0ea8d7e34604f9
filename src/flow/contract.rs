//! The interface between the pump and what it moves.

use std::io;
use thiserror::Error;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Grant;

/// Units on their way from a source to a sink.
pub trait Flow {
    /// Reads more input. With `wait`, blocks until there is some or the input ends.
    ///
    /// # Errors
    /// If reading fails.
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError>;

    /// The number of units that were read and not yet handed over.
    fn waiting(&self) -> u64;

    /// How many of the [`waiting`](Self::waiting) units the sink will accept without a wait, as far as is known.
    fn foreseen(&self) -> u64 {
        self.waiting()
    }

    /// The units that were read and not yet handed over, also one that was read in part, and their bytes, as far as they
    /// are counted.
    fn read_ahead(&self) -> Passed {
        Passed::default()
    }

    /// Units that were dropped.
    fn dropped(&self) -> u64 {
        0
    }

    /// When the next of the units that were read conforms, if limits of the flow's own are what is waited for.
    fn limited_until(&self) -> Option<Nanos> {
        None
    }

    /// Whether more input is waited for, if no unit waits.
    fn may_read(&self) -> bool {
        true
    }

    /// How many keys have units that wait, and how many keys there are.
    fn keys(&self) -> [u64; 2] {
        [0, 0]
    }

    /// How long nothing may be handed over from now on, in nanoseconds, if that is news: a server asked to wait.
    fn take_hold(&mut self) -> Option<Nanos> {
        None
    }

    /// Whether [`take_hold`](Self::take_hold) has news. It unparks the thread of the pump, which may sleep until a grant.
    fn has_hold(&self) -> bool {
        false
    }

    /// Waits until the sink can accept a unit, and returns how many it can accept.
    ///
    /// # Errors
    /// If the sink fails; [`FlowError::Write`] of `BrokenPipe` if its reader is gone.
    fn ready(&mut self) -> Result<u64, FlowError>;

    /// What the next unit costs. If that is not usual, it is granted alone.
    fn price(&mut self) -> Price {
        Price::Usual
    }

    /// How many units after the next one can leave with it: the first that `take` grants their costs, one after the other.
    fn join(&mut self, _take: &mut dyn FnMut(&[u64]) -> bool) -> u64 {
        0
    }

    /// The next unit is handed over with this grant, of these costs. Whether it may be settled.
    fn granted(&mut self, _grant: &Grant, _costs: &[u64]) -> bool {
        false
    }

    /// Decides which units are handed over next, if that takes a while. Waits for nothing.
    fn decide(&mut self) {}

    /// Hands over the first `units` units together, and adds those that left to `passed`, even if it then fails.
    ///
    /// # Errors
    /// If reading or writing fails.
    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError>;

    /// The next unit gets no grant.
    ///
    /// # Errors
    /// If nothing may leave after it.
    fn refuse(&mut self, why: Unpaid, _passed: &mut Passed) -> Result<(), FlowError> {
        Err(FlowError::Read(io::Error::other(format!("{why:?}"))))
    }
}

/// What a unit costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    /// One of each limit.
    Usual,
    /// So much of each limit.
    Costs(Box<[u64]>),
    /// It cannot be read.
    Unknown,
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
    /// There is no more input.
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
