//! A dry run: jobs are shown instead of run.

use super::job::{Batches, Job, Known, Shape};
use super::template::Template;
use crate::flow::framing::Buffer;
use crate::flow::pricing::Pricing;
use crate::flow::{Filled, Flow, FlowError, Passed, Price, Source, Unpaid};
use std::io;

/// Jobs that are shown instead of run.
#[derive(Debug)]
pub struct Preview<R, S> {
    batches: Batches<R>,
    show: S,
}

impl<R: Source, S: FnMut(&Job, Option<Unpaid>) -> io::Result<()>> Preview<R, S> {
    /// Gives every job for what `source` holds to `show`, when it would start, and why it would not if it gets no grant.
    pub fn new(source: R, buffer: Buffer, shape: Shape, template: &Template, show: S) -> Self {
        Preview { batches: Batches::new(source, buffer, shape, template), show }
    }

    /// Leaves out the units that are known; see [`done_before`](Self::done_before).
    #[must_use]
    pub fn leaving_out(mut self, known: Option<Known>) -> Self {
        self.batches.known = known;
        self
    }

    /// Each unit has a price of its own.
    #[must_use]
    pub fn priced(mut self, pricing: Option<Pricing>) -> Self {
        self.batches.pricing = pricing;
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

    fn show_next(&mut self, unpaid: Option<Unpaid>, passed: &mut Passed) -> Result<(), FlowError> {
        let Some(job) = self.batches.next() else { return Ok(()) };
        passed.units += 1;
        (self.show)(&job, unpaid).map_err(FlowError::Write)
    }
}

impl<R: Source, S: FnMut(&Job, Option<Unpaid>) -> io::Result<()>> Flow for Preview<R, S> {
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
            self.show_next(None, passed)?;
        }
        Ok(())
    }

    fn price(&mut self) -> Price {
        if self.batches.pricing.is_some() { self.batches.price() } else { Price::Usual }
    }

    fn refuse(&mut self, why: Unpaid, passed: &mut Passed) -> Result<(), FlowError> {
        self.show_next(Some(why), passed)
    }
}
