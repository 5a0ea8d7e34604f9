//! What the pump drives, and what it is told.

use std::io;
use thiserror::Error;

/// Units on their way from a source to a sink.
pub trait Flow {
    /// Reads more input. With `wait`, until there is something or the end; without, what is there.
    ///
    /// # Errors
    /// What reading says.
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError>;

    /// Units that were read and not yet handed over.
    fn waiting(&self) -> u64;

    /// Those of them that the sink will take without having to be waited for, as far as one can tell.
    fn foreseen(&self) -> u64 {
        self.waiting()
    }

    /// Units that were read and not yet handed over, with their bytes, as far as they are counted.
    fn read_ahead(&self) -> Passed {
        Passed::default()
    }

    /// Returns once the sink can take a unit, and says how many it can take.
    ///
    /// # Errors
    /// What the sink says; [`FlowError::Write`] of `BrokenPipe` where its reader is gone.
    fn ready(&mut self) -> Result<u64, FlowError>;

    /// Hands `units` units over, together, and adds what left to `passed`, also where not all of them do.
    ///
    /// # Errors
    /// What reading or writing says.
    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError>;
}

/// What was handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Whole units.
    pub units: u64,
    /// Bytes, those of a unit that was cut short by an error included.
    pub bytes: u64,
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Something was read.
    Some,
    /// Nothing is there now, or there is no room for it.
    Nothing,
    /// There is no more input.
    End,
}

/// Why units cannot move on.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The source could not be read.
    #[error("read")]
    Read(#[source] io::Error),
    /// What was read could not be held until its time.
    #[error("hold")]
    Hold(#[source] io::Error),
    /// The sink could not be written.
    #[error("write")]
    Write(#[source] io::Error),
}
