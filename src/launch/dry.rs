//! A dry run: shows jobs instead of running them.

use super::job::{Batches, Job, Outcome};
use crate::flow::{Flow, FlowError, Granted, Grants, Passed, Refusal, Source, State};
use std::io;
use std::ops::ControlFlow;
use throttle_limits::clock::Nanos;
use throttle_limits::line::Unit;

/// A flow that shows jobs instead of running them. The clock of its grants is simulated.
pub struct DryRun<R, S> {
    /// The source of jobs.
    pub batches: Batches<R>,
    /// Called with each job when it would start, or with the reason why it never would. Returns whether the run goes
    /// on.
    pub show: S,
    /// Whether the run has ended before the end of its input.
    pub is_over: bool,
    /// The most jobs that wait before reading stops.
    pub ahead: usize,
}

impl<R: Source, S: FnMut(&Job, Option<Outcome>) -> io::Result<ControlFlow<()>>> DryRun<R, S> {
    /// Whether to read more before time passes. Without keys, one waiting unit is enough. With keys, all input is read,
    /// or until `ahead` units wait, because any unit may be next.
    fn reads(&self, grants: &Grants<Job>) -> bool {
        let line = grants.line();
        let ahead = if grants.has_keys() { self.ahead } else { 1 };
        !self.batches.is_over() && !self.is_over && !line.is_full(ahead)
    }

    fn show(
        &mut self,
        grants: &Grants<Job>,
        job: &Job,
        refused: Option<Outcome>,
        passed: &mut Passed,
    ) -> Result<(), FlowError> {
        passed.units += 1;
        self.is_over = (self.show)(job, refused).map_err(FlowError::Write)?.is_break();
        if self.is_over {
            drop((grants.line().drain(), grants.take_refused()));
        }
        Ok(())
    }
}

impl<R: Source, S: FnMut(&Job, Option<Outcome>) -> io::Result<ControlFlow<()>>> Flow for DryRun<R, S> {
    type Unit = Job;

    fn fill(&mut self, grants: &Grants<Job>) -> Result<(), FlowError> {
        if grants.line().is_full(self.ahead) {
            self.batches.close_all();
        } else if self.reads(grants) && grants.due_at().is_none_or(|due| due > grants.now()) {
            self.batches.fill(true, 0)?;
        }
        while let Some(job) = self.batches.next().filter(|_| !self.is_over) {
            let (key, size) = (job.key.clone(), job.memory() + size_of::<Job>());
            let unit =
                Unit { age: job.seq, costs: job.costs(), size, arrived: grants.now(), settles: false, content: job };
            grants.ask(key.as_deref(), unit, 0);
        }
        Ok(())
    }

    fn has_new(&self, _: &Grants<Job>) -> bool {
        false
    }

    fn room(&mut self, _: &Grants<Job>) -> Result<u64, FlowError> {
        Ok(u64::MAX)
    }

    fn ask(&mut self, _: &Grants<Job>) -> Result<(), FlowError> {
        Ok(())
    }

    fn go(&mut self, grants: &Grants<Job>, _: Granted, job: Job, passed: &mut Passed) -> Result<(), FlowError> {
        let refused = job.refused();
        self.show(grants, &job, refused, passed)
    }

    fn refuse(&mut self, grants: &Grants<Job>, job: Job, _: Refusal, passed: &mut Passed) -> Result<(), FlowError> {
        let refused = job.refused().or(Some(Outcome::TooCostly));
        self.show(grants, &job, refused, passed)
    }

    fn has_room(&self) -> bool {
        !self.is_over
    }

    fn is_over(&mut self, grants: &Grants<Job>) -> Result<bool, FlowError> {
        Ok(self.is_over || self.batches.is_over() && grants.is_empty())
    }

    /// Lets no time pass while there is more to read.
    fn wait(&mut self, grants: &Grants<Job>, _: Option<Nanos>) -> Result<bool, FlowError> {
        Ok(self.reads(grants))
    }

    fn state(&self, _: &Grants<Job>) -> State {
        State { ahead: self.batches.read_ahead(), ..State::default() }
    }
}
