//! A dry run: jobs are shown instead of run.

use super::job::{Batches, Job, Known, Shape};
use super::template::Template;
use crate::flow::framing::Buffer;
use crate::flow::{Filled, Flow, FlowError, Passed, Source};
use std::io;

/// Jobs that are shown instead of run.
#[derive(Debug)]
pub struct Preview<R, S> {
    batches: Batches<R>,
    show: S,
}

impl<R: Source, S: FnMut(&Job) -> io::Result<()>> Preview<R, S> {
    /// Gives every job for what `source` holds to `show`, when it would start.
    pub fn new(source: R, buffer: Buffer, shape: Shape, template: &Template, show: S) -> Self {
        Preview { batches: Batches::new(source, buffer, shape, template), show }
    }

    /// Leaves out the units that are known; see [`done_before`](Self::done_before).
    #[must_use]
    pub fn leaving_out(mut self, known: Option<Known>) -> Self {
        self.batches.known = known;
        self
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.batches.skipped()
    }

    /// Known units left out so far.
    pub fn done_before(&self) -> u64 {
        self.batches.done_before()
    }
}

impl<R: Source, S: FnMut(&Job) -> io::Result<()>> Flow for Preview<R, S> {
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        self.batches.fill(wait)
    }

    fn waiting(&self) -> u64 {
        self.batches.waiting()
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        Ok(1)
    }

    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        for _ in 0..units {
            let Some(job) = self.batches.next() else { break };
            (self.show)(&job).map_err(FlowError::Write)?;
            passed.units += 1;
        }
        Ok(())
    }
}
