//! A dry run: shows jobs instead of running them.

use super::job::{Batches, Job, Outcome};
use crate::flow::{Filled, Flow, FlowError, Passed, Price, Source, Turn, Unpaid};
use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::line::{Costs, Line, Next, Unit};

/// A flow that shows jobs instead of running them.
pub struct Preview<'a, R, S> {
    /// The source of jobs.
    pub batches: Batches<R>,
    /// Called with each job when it would start, or with the reason why it never would. Returns whether the preview goes
    /// on.
    pub show: S,
    /// Whether the preview has ended before the end of its input.
    pub is_over: bool,
    /// For limits kept per key: the line of jobs, its clock, and the most jobs in it.
    pub by_key: Option<(RefCell<Line<Job>>, &'a dyn NanoClock, usize)>,
}

impl<R: Source, S: FnMut(&Job, Option<Outcome>) -> io::Result<ControlFlow<()>>> Preview<'_, R, S> {
    /// Reads input, and moves its jobs to the line unless the line is full. With `wait`, sleeps until the next job may
    /// start.
    fn sort(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if self.is_over {
            return Ok(Filled::End);
        }
        let Some((line, clock, ahead)) = &mut self.by_key else { return self.batches.fill(wait) };
        let (line, now) = (line.get_mut(), clock.now());
        let is_full = line.is_full(*ahead);
        let filled = if is_full {
            self.batches.close_all();
            Filled::Nothing
        } else {
            self.batches.fill(wait)?
        };
        while let Some(job) = self.batches.next() {
            let (key, costs, size) = (job.key.clone(), Costs::from(&job.costs[..]), job.memory() + size_of::<Job>());
            let unit = Unit { age: job.seq, costs, size, arrived: now, settles: false, content: job };
            if let Err(unit) = line.add(now, key.as_deref(), unit) {
                let refused = unit.content.refused().or(Some(Outcome::TooCostly));
                self.is_over |= (self.show)(&unit.content, refused).map_err(FlowError::Write)?.is_break();
            }
        }
        match (filled, line.ready_at(now)) {
            (Filled::Some, _) => Ok(Filled::Some),
            (Filled::End, None) => Ok(Filled::End),
            (_, at) => {
                if let Some(at) = at.filter(|_| wait) {
                    clock.sleep_until(at);
                }
                Ok(Filled::Nothing)
            }
        }
    }

    fn show_next(&mut self, refused: Option<Outcome>, passed: &mut Passed) -> Result<(), FlowError> {
        let Some(job) = self.next().filter(|_| !self.is_over) else { return Ok(()) };
        passed.units += 1;
        self.is_over = (self.show)(&job, refused).map_err(FlowError::Write)?.is_break();
        Ok(())
    }

    fn next(&mut self) -> Option<Job> {
        let Some((line, clock, _)) = &mut self.by_key else { return self.batches.next() };
        let Next::Go(_, unit, _) = line.get_mut().next(clock.now()) else { return None };
        Some(unit.content)
    }
}

impl<R: Source, S: FnMut(&Job, Option<Outcome>) -> io::Result<ControlFlow<()>>> Flow for Preview<'_, R, S> {
    fn fill(&mut self, wait: Nanos) -> Result<Filled, FlowError> {
        self.sort(wait > 0)
    }

    fn waiting(&self) -> u64 {
        if self.is_over {
            return 0;
        }
        let Some((line, clock, _)) = &self.by_key else { return self.batches.waiting() };
        let now = clock.now();
        u64::from(line.borrow_mut().ready_at(now).is_some_and(|at| at <= now))
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        Ok(1)
    }

    fn choose(&mut self) -> Price {
        if self.by_key.is_some() { Price::Usual } else { self.batches.price() }
    }

    fn pass(&mut self, turn: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError> {
        match turn {
            Turn::Usual(units) => (0..units).try_for_each(|_| self.show_next(None, passed)),
            Turn::Costly { .. } | Turn::OfKey(..) => self.show_next(None, passed),
            Turn::Refused(why) => self.show_next((why == Unpaid::TooMuch).then_some(Outcome::TooCostly), passed),
        }
    }
}
