//! Flows: units on their way from a source to a sink.
//!
//! A [`Flow`] is what the pump drives: units that come from a source, wait, and are handed over.

use std::io;
use thiserror::Error;

mod at_once;
mod copy;
pub mod framing;
pub mod meter;
pub mod pump;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "flow/no_splice.rs")]
mod splice;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod tee;

pub use at_once::write_at_once;
pub use copy::{Copying, Descriptor, Sink, Source};
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub use splice::tee;
pub use splice::{Splice, enlarge};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use tee::{TeeSink, TeeSource, tee};

/// Units on their way from a source to a sink.
pub trait Flow {
    /// Reads more input. With `wait`, blocks until there is some or the input ends; otherwise reads only what is there.
    ///
    /// # Errors
    /// If reading fails.
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError>;

    /// Units that were read and not yet passed on.
    fn waiting(&self) -> u64;

    /// How many of them the sink will probably take without a wait.
    fn foreseen(&self) -> u64 {
        self.waiting()
    }

    /// Units that were read and not yet passed on, with their bytes, as far as they are counted.
    fn read_ahead(&self) -> Passed {
        Passed::default()
    }

    /// Waits until the sink can take a unit, and returns how many it can take.
    ///
    /// # Errors
    /// If the sink fails; [`FlowError::Write`] with `BrokenPipe` if its reader is gone.
    fn ready(&mut self) -> Result<u64, FlowError>;

    /// Passes on `units` units together. Adds what left to `passed`, even if an error stops it halfway.
    ///
    /// # Errors
    /// If reading or writing fails.
    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError>;
}

/// What was passed on.
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

/// Why units cannot be passed on.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The source could not be read.
    #[error("read")]
    Read(#[source] io::Error),
    /// The units that were read could not be stored until their time.
    #[error("hold")]
    Hold(#[source] io::Error),
    /// The sink could not be written to.
    #[error("write")]
    Write(#[source] io::Error),
}
