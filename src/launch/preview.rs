//! A dry run: jobs are shown instead of run.

use super::job::{Batches, Job};
use crate::flow::{Filled, Flow, FlowError, Passed, Source};
use std::io;

/// Jobs that are shown instead of run.
#[derive(Debug)]
pub struct Preview<R, S> {
    /// Where they come from.
    pub batches: Batches<R>,
    /// Gets each job when it would start.
    pub show: S,
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
