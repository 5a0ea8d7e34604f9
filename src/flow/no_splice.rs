//! For systems without splice(2) and tee(2): bytes are copied.

use super::contract::{Filled, Flow, FlowError, Passed, Turn};
use super::copy::Descriptor;
use std::convert::Infallible;
use std::marker::PhantomData;
use throttle_limits::clock::Nanos;

/// There is none here.
#[derive(Debug)]
pub struct Splice<R, W> {
    never: Infallible,
    ends: PhantomData<(R, W)>,
}

impl<R, W> Splice<R, W> {
    /// Gives the descriptors back.
    ///
    /// # Errors
    /// Always: the two descriptors, unused.
    pub fn new(source: R, sink: W) -> Result<Self, (R, W)> {
        Err((source, sink))
    }
}

impl<R, W> Flow for Splice<R, W> {
    fn fill(&mut self, _: Nanos) -> Result<Filled, FlowError> {
        match self.never {}
    }

    fn waiting(&self) -> u64 {
        match self.never {}
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        match self.never {}
    }

    fn pass(&mut self, _: Turn<'_>, _: &mut Passed) -> Result<(), FlowError> {
        match self.never {}
    }
}

/// Pipes have the size they have.
pub fn enlarge<F>(_: F, _: usize) {}

/// Gives the descriptors back.
///
/// # Errors
/// Always: the two descriptors, unused.
pub fn tee<R, W>(source: R, sink: W) -> Result<(Descriptor<R>, Descriptor<W>), (R, W)> {
    Err((source, sink))
}
