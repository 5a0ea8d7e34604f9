//! The flow of units to commands: reads jobs into the queue, waits for slots, and starts the granted attempts.

use super::attempt::Attempt;
use super::event::Event;
use super::job::Batches;
use super::launcher::Launcher;
use super::queue::Queue;
use super::temporary::is_shortage;
use crate::flow::{Flow, FlowError, Granted, Grants, Keyless, News, Passed, Refusal, Source, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use throttle_limits::clock::{NanoClock, Nanos, SystemClock};

/// The most new units read in one search for units that are not suspects.
const MAX_SOUGHT: usize = 64;

/// A flow from a source of units to commands.
pub struct Launching<R> {
    batches: Batches<R>,
    launcher: Arc<Launcher>,
    /// The number of the latest job that was reported as next.
    reported: u64,
    /// Whether a full queue was reported.
    has_reported_full_queue: bool,
    keyless: Keyless,
}

impl<R: Source> Launching<R> {
    /// Runs commands for the jobs of `batches`, which must use the launcher's template.
    pub fn new(batches: Batches<R>, launcher: Arc<Launcher>) -> Self {
        Launching { batches, launcher, reported: 0, has_reported_full_queue: false, keyless: Keyless::default() }
    }

    /// The source of jobs.
    pub fn batches(&self) -> &Batches<R> {
        &self.batches
    }

    fn queue(&self) -> &Queue {
        &self.launcher.queue
    }

    /// Starts the chosen attempt. Counts a first attempt in `passed`, with its job's bytes in the input.
    fn start(&mut self, passed: &mut Passed) {
        if let Some(job) = self.launcher.start_next() {
            passed.units += 1;
            passed.bytes += job.length;
            self.report_next();
        }
    }

    /// Moves ready jobs into the queue. With limits for each key, all jobs enter it, because any of them may be next.
    /// Otherwise a job enters it only while not enough usual attempts wait. A suspect is not usual: its unit was refused again
    /// and again, perhaps because of the unit itself and not because of the pace. New units go before most suspects.
    fn sort(&mut self) {
        let launcher = Arc::clone(&self.launcher);
        let has_keys = launcher.queue.grants.has_keys();
        let most = if has_keys { usize::MAX } else { MAX_SOUGHT };
        for _ in 0..most {
            if !has_keys && (self.is_full() || launcher.queue.has_enough()) {
                return;
            }
            let Some(job) = self.batches.next() else { return };
            let per = launcher.options.per.as_ref().filter(|_| self.keyless.note(job.key.is_some()));
            if let Some(per) = per {
                launcher.events.send(Event::News(News::NoKeys(per.clone())));
            }
            launcher.queue.add(job);
        }
    }

    /// Whether the queue or the held output is full, so that no new unit is read or started. Units in the queue may
    /// still start, because output in input order may wait for any of them.
    fn is_full(&self) -> bool {
        self.queue().is_full() || self.launcher.is_held_up.load(Ordering::SeqCst)
    }

    fn report_next(&mut self) {
        let oldest = if self.queue().grants.has_keys() { None } else { self.queue().oldest_new() };
        if oldest.is_none() && !self.queue().grants.has_keys() && self.queue().new_units().units > 0 {
            return; // The reported job still waits for its grant.
        }
        let next = oldest.as_deref().or_else(|| self.batches.peek());
        let Some(job) = next.filter(|job| job.seq != self.reported) else { return };
        let first = job.names.iter().next().map(|(number, name)| (number, name.to_vec()));
        self.reported = job.seq;
        let (skipped, done_before) = (self.batches.skipped(), self.batches.done_before());
        self.launcher.events.send(Event::Next { first, skipped, done_before });
    }

    /// Whether the ready jobs stay outside the queue because enough usual attempts wait in it.
    fn waits_in_line(&self) -> bool {
        !self.queue().grants.has_keys() && self.queue().has_enough()
    }

    /// Reads available input, and moves jobs into the queue.
    fn read(&mut self) -> Result<(), FlowError> {
        // A source that never waits is read until a unit is complete.
        while self.read_once()? && self.batches.waiting() == 0 && self.queue().is_empty() {}
        if self.batches.is_over() {
            self.queue().is_all_read.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Reads once, and moves jobs into the queue. Returns whether something was read.
    fn read_once(&mut self) -> Result<bool, FlowError> {
        let is_full = self.is_full();
        if is_full && self.queue().grants.has_keys() {
            // Otherwise jobs that wait for more units of their key would wait for ever.
            self.batches.close_all();
        }
        let mut has_read = Ok(false);
        if self.reads(is_full) {
            has_read = self.batches.fill(false, self.queue().memory());
            // The run may end here, and nobody would report the next job later.
            self.report_next();
        }
        // After an error, too: what was cut before may start.
        self.sort();
        has_read
    }

    /// Whether more input is read. `is_full`: the queue is full.
    fn reads(&self, is_full: bool) -> bool {
        !is_full && (self.queue().grants.has_keys() || self.batches.waiting() == 0)
    }

    /// Whether the run is over. It is not while a running command may need another attempt or a report of its end. The
    /// next attempt enters the queue before the slot of the ended command is freed, so the queue is checked last. Jobs may
    /// be ready and still not start while too much output waits.
    fn has_done_all(&self) -> bool {
        let (queue, slots) = (self.queue(), &self.launcher.slots);
        self.batches.is_over() && (!queue.needs_ends() || slots.count() == 0) && queue.is_empty()
    }

    /// Reports, once, that the queue is full and reading stops.
    fn report_full_queue(&mut self) {
        if !std::mem::replace(&mut self.has_reported_full_queue, true) {
            let queue = self.queue();
            let news = if queue.grants.has_keys() {
                Event::News(News::Full(queue.grants.line().crowd()))
            } else {
                Event::QueueFull
            };
            self.launcher.events.send(news);
        }
    }
}

impl<R: Source> Flow for Launching<R> {
    type Unit = Attempt;

    /// If the system has no room for the units, tries again while a command runs: its end may free room.
    fn fill(&mut self, _: &Grants<Attempt>) -> Result<(), FlowError> {
        match self.read() {
            Err(FlowError::Hold(error)) if is_shortage(&error) && self.launcher.slots.count() > 0 => {
                thread::sleep(Duration::from_millis(10));
                Ok(())
            }
            read => read,
        }
    }

    /// Each job that was read waits in the queue, or may not enter it yet.
    fn has_new(&self, _: &Grants<Attempt>) -> bool {
        false
    }

    /// Waits for a free slot. Nothing is granted meanwhile, and later grants have no time before the end of this wait.
    fn room(&mut self, grants: &Grants<Attempt>) -> Result<u64, FlowError> {
        self.batches.cut_ahead();
        self.report_next();
        let slots = &self.launcher.slots;
        let has_room = slots.free() > 0;
        let room = slots.wait();
        if !has_room {
            grants.line().ready_since(SystemClock.now());
        }
        if let Some(bucket) = grants.shared() {
            bucket.accepts_soon(slots.free());
        }
        Ok(room)
    }

    fn ask(&mut self, _: &Grants<Attempt>) -> Result<(), FlowError> {
        Ok(())
    }

    fn go(
        &mut self,
        _: &Grants<Attempt>,
        granted: Granted,
        unit: Attempt,
        passed: &mut Passed,
    ) -> Result<(), FlowError> {
        self.queue().choose(unit, granted);
        self.start(passed);
        Ok(())
    }

    /// A refused unit fails without a start.
    fn refuse(
        &mut self,
        _: &Grants<Attempt>,
        unit: Attempt,
        why: Refusal,
        passed: &mut Passed,
    ) -> Result<(), FlowError> {
        self.queue().choose_refused(unit, &why);
        self.start(passed);
        Ok(())
    }

    fn is_over(&mut self, _: &Grants<Attempt>) -> Result<bool, FlowError> {
        Ok(self.has_done_all())
    }

    fn wait(&mut self, _: &Grants<Attempt>, until: Option<Nanos>) -> Result<bool, FlowError> {
        self.report_next();
        if self.queue().is_full() {
            self.report_full_queue();
        }
        let (is_full, ready) = (self.is_full(), self.batches.waiting());
        // Input that would not be read ends no wait.
        let may_read = self.reads(is_full) && self.batches.wants_more(self.queue().memory());
        let source = if may_read { self.batches.source_fd() } else { None };
        let is_uncut = self.reads(is_full) && self.batches.has_uncut();
        let is_news = || {
            let is_over = until.is_none() && self.has_done_all();
            is_uncut || is_over || ((is_full || ready > 0) && !self.is_full() && !self.waits_in_line())
        };
        self.queue().wait(source, until, is_news).map_err(FlowError::Read)?;
        Ok(true)
    }

    fn state(&self, _: &Grants<Attempt>) -> State {
        let (ready, queued) = (self.batches.read_ahead(), self.queue().new_units());
        State {
            ahead: Passed { units: ready.units + queued.units, bytes: ready.bytes + queued.bytes },
            waits_for_sink: false,
            reads_no_more: self.batches.has_all() || self.is_full(),
        }
    }
}

#[cfg(test)]
mod tests;
