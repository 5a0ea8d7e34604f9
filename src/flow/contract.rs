//! The interface between the pump and the flows that it drives.

use super::error::FlowError;
use super::grants::Grants;
use super::next::{Granted, Refusal};
use throttle_limits::clock::Nanos;

/// Units on their way from a source, through the [`Grants`] of a run, to a sink. The pump calls [`fill`](Self::fill),
/// [`room`](Self::room) and [`ask`](Self::ask), then passes on the granted units, and calls [`wait`](Self::wait).
pub trait Flow {
    /// A unit that waits for its grant. Plain units are only counted.
    type Unit: Send;

    /// Reads input that is available. A flow that has nothing else to wait for waits here for input.
    ///
    /// # Errors
    /// Reading failed.
    fn fill(&mut self, grants: &Grants<Self::Unit>) -> Result<(), FlowError>;

    /// Whether the pump has something to do before the next grant is due: units that were read may need a request, or
    /// output can be written.
    fn has_new(&self, grants: &Grants<Self::Unit>) -> bool;

    /// Returns how many units the sink accepts. A flow that has nothing else to wait for waits here until the sink
    /// accepts one.
    ///
    /// # Errors
    /// The sink fails. [`FlowError::Write`] with `BrokenPipe`: the reader of the sink is gone.
    fn room(&mut self, grants: &Grants<Self::Unit>) -> Result<u64, FlowError>;

    /// Requests grants for what was read.
    ///
    /// # Errors
    /// A unit was refused and the flow must end there.
    fn ask(&mut self, grants: &Grants<Self::Unit>) -> Result<(), FlowError>;

    /// Passes on plain units. Adds the units that left to `passed`, even if an error follows.
    ///
    /// # Errors
    /// Reading or writing failed.
    fn run(&mut self, _grants: &Grants<Self::Unit>, _units: u64, _passed: &mut Passed) -> Result<(), FlowError> {
        Ok(())
    }

    /// Passes on a unit, now or with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// Reading or writing failed.
    fn go(
        &mut self,
        grants: &Grants<Self::Unit>,
        granted: Granted,
        unit: Self::Unit,
        passed: &mut Passed,
    ) -> Result<(), FlowError>;

    /// Handles a unit that will never be granted.
    ///
    /// # Errors
    /// The flow must end there.
    fn refuse(
        &mut self,
        grants: &Grants<Self::Unit>,
        unit: Self::Unit,
        why: Refusal,
        passed: &mut Passed,
    ) -> Result<(), FlowError>;

    /// Whether the sink accepts more units before the next [`flush`](Self::flush).
    fn has_room(&self) -> bool {
        true
    }

    /// Whether a [`flush`](Self::flush) has something to write.
    fn has_output(&self) -> bool {
        false
    }

    /// Writes what was passed on.
    ///
    /// # Errors
    /// Writing failed.
    fn flush(&mut self, _grants: &Grants<Self::Unit>, _passed: &mut Passed) -> Result<(), FlowError> {
        Ok(())
    }

    /// Whether the input has ended, and nothing is left to do.
    ///
    /// # Errors
    /// The flow ends with this error.
    fn is_over(&mut self, grants: &Grants<Self::Unit>) -> Result<bool, FlowError>;

    /// Waits until input arrives, the sink has room, or something was reported, but at most until this time. Returns
    /// `false` at once if the flow cannot be woken: then the pump sleeps.
    ///
    /// # Errors
    /// Reading or writing failed.
    fn wait(&mut self, _grants: &Grants<Self::Unit>, _until: Option<Nanos>) -> Result<bool, FlowError> {
        Ok(false)
    }

    /// The state of the flow, for the meter.
    fn state(&self, grants: &Grants<Self::Unit>) -> State;
}

/// The state of a flow, for the meter.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The units that were read and not yet handed over, and their bytes as far as they are counted. Includes a unit
    /// that was read in part.
    pub ahead: Passed,
    /// Whether a unit that the limits allow to leave waits for the reader of the output.
    pub waits_for_sink: bool,
    /// Whether the flow reads no more: the input has ended, or the queue is full.
    pub reads_no_more: bool,
}

/// Units and bytes that were handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Whole units.
    pub units: u64,
    /// Bytes, including the written bytes of a unit that an error cut short.
    pub bytes: u64,
}
