//! The flow of units to commands: chooses the next attempt, and waits for what it needs.

use super::attempt::Charge;
use super::commands::Launcher;
use super::event::Event;
use super::job::{Batches, Outcome};
use super::queue::Queue;
use super::temporary::is_shortage;
use crate::flow::{
    Answer, Answers, Filled, Flow, FlowError, Keyless, News, Passed, Price, Source, State, Turn, Unpaid,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Refusal, Take};

/// The most new units read in one search for units that are not suspects.
const MAX_SOUGHT: usize = 64;

/// A flow from a source of units to commands.
pub struct Launching<R> {
    batches: Batches<R>,
    launcher: Launcher,
    /// The number of the latest job that was reported as next.
    reported: u64,
    /// Whether a full queue was reported.
    has_reported_full_queue: bool,
    keyless: Keyless,
}

impl<R: Source> Launching<R> {
    /// Runs commands for the jobs of `batches`, which must use the launcher's template. The calling thread must be the
    /// thread that runs the pump.
    pub fn new(batches: Batches<R>, launcher: Launcher) -> Self {
        launcher.shared.queue.wakes.is_used_by_pump();
        Launching { batches, launcher, reported: 0, has_reported_full_queue: false, keyless: Keyless::default() }
    }

    /// The source of jobs.
    pub fn batches(&self) -> &Batches<R> {
        &self.batches
    }

    fn queue(&self) -> &Queue {
        &self.launcher.shared.queue
    }

    /// Starts the next attempt. `charge` is its charge, if it has a price of its own. A `refused` attempt fails without
    /// a start. Counts a first attempt in `passed`, with its job's bytes in the input.
    fn start(&mut self, charge: Option<Charge>, refused: Option<Outcome>, passed: &mut Passed) {
        self.expect_one();
        if let Some(job) = self.launcher.start_next(charge, refused) {
            passed.units += 1;
            passed.bytes += job.length;
            self.report_next();
        }
    }

    /// If limits are not kept per key, adds the next new job to the queue unless an attempt in the queue is ready. New
    /// jobs enter the queue no earlier, except in a search for jobs that are not suspects.
    fn expect_one(&mut self) {
        if self.queue().is_keyed {
            return;
        }
        if self.queue().ready() == 0
            && let Some(job) = self.batches.next()
        {
            self.queue().add(job);
        }
        self.seek_others();
    }

    /// Adds new jobs to the queue while only suspects wait: units that were refused again and again, perhaps because of
    /// the unit itself and not because of the pace. New units get their turns before suspects.
    fn seek_others(&mut self) {
        for _ in 0..MAX_SOUGHT {
            if self.is_full() || !self.queue().has_only_suspects() {
                return;
            }
            match self.batches.next() {
                Some(job) => self.queue().add(job),
                None => return,
            }
        }
    }

    /// Whether the queue or the held output is full, so that no new unit is read or started. Units in the queue may
    /// still start, because output in input order may wait for any of them.
    fn is_full(&self) -> bool {
        self.queue().is_full() || self.launcher.shared.is_held_up.load(Ordering::SeqCst)
    }

    fn report_next(&mut self) {
        if !self.queue().is_keyed && self.queue().new_units().units > 0 {
            return; // The reported job still waits for its grant.
        }
        let Some(job) = self.batches.peek().filter(|job| job.seq != self.reported) else { return };
        let first = job.names.iter().next().map(|(number, name)| (number, name.to_vec()));
        self.reported = job.seq;
        let (skipped, done_before) = (self.batches.skipped(), self.batches.done_before());
        self.launcher.shared.events.send(Event::Next { first, skipped, done_before });
    }

    /// If limits are kept per key, moves all ready jobs into the queue, which chooses the oldest job that conforms.
    fn sort(&mut self) {
        let shared = Arc::clone(&self.launcher.shared);
        let Some(sorting) = &shared.options.by_key else { return };
        let (batches, keyless) = (&mut self.batches, &mut self.keyless);
        let jobs = std::iter::from_fn(|| batches.next()).inspect(|job| {
            if let Some(per) = sorting.look.per.as_ref().filter(|_| keyless.note(job.key.is_some())) {
                shared.events.send(Event::News(News::NoKeys(per.clone())));
            }
        });
        jobs.for_each(|job| shared.queue.add(job));
    }

    /// Reads available input. If there is none and `wait` is above 0, waits for input or for an attempt that may start.
    /// Also returns when the end of a command may end the run.
    fn read_or_wait(&mut self, wait: Nanos) -> Result<Filled, FlowError> {
        let is_full = self.is_full();
        if is_full && self.queue().is_keyed {
            // Otherwise jobs that wait for more units of their key would wait for ever.
            self.batches.close_all();
        }
        let filled = if is_full { Filled::Nothing } else { self.cut_or_read(wait > 0)? };
        self.sort();
        if filled == Filled::End && self.batches.waiting() == 0 {
            self.queue().has_all();
        }
        if filled == Filled::Some {
            return Ok(filled);
        }
        if wait > 0 && self.queue().is_full() {
            self.report_full_queue();
        }
        let (queue, slots, ready) = (self.queue(), &self.launcher.shared.slots, self.batches.waiting());
        let repeats = queue.needs_ends();
        // The run is not over while a running command may need another attempt or a report of its end. The next attempt
        // enters the queue before the slot of the ended command is freed, so the queue is checked last. Jobs may be
        // ready and still not start while too much output waits.
        let is_over = || filled == Filled::End && ready == 0 && (!repeats || slots.count() == 0) && queue.is_empty();
        if is_over() {
            return Ok(Filled::End);
        }
        if wait == 0 {
            return Ok(Filled::Nothing);
        }
        let source = if filled == Filled::End || is_full { None } else { self.batches.source_fd() };
        let is_news = || is_over() || ((is_full || ready > 0) && !self.is_full());
        queue.wait(source, wait, is_news).map_err(FlowError::Read)?;
        Ok(Filled::Nothing)
    }

    fn cut_or_read(&mut self, wait: bool) -> Result<Filled, FlowError> {
        let cut = self.batches.cut();
        if wait || cut.is_err() {
            // The next job is reported now: the run may end during the wait, and nobody would report the job later.
            self.report_next();
        }
        if cut? { Ok(Filled::Some) } else { self.batches.read(false, self.queue().memory()) }
    }

    /// Reports, once, that the queue is full and reading stops.
    fn report_full_queue(&mut self) {
        if !std::mem::replace(&mut self.has_reported_full_queue, true) {
            let queue = self.queue();
            match (queue.has_keys, queue.is_keyed) {
                (true, _) => self.launcher.shared.events.send(Event::News(News::Full(queue.crowd()))),
                (_, false) => self.launcher.shared.events.send(Event::QueueFull),
                // If keys have no limits of their own, units pass in input order, so a full queue is not worth a
                // message.
                (false, true) => {}
            }
        }
    }

    /// Whether each attempt has a price and a grant of its own.
    fn has_prices(&self) -> bool {
        self.queue().is_shared() || !self.queue().is_keyed && self.batches.has_prices()
    }
}

impl<R: Source> Flow for Launching<R> {
    /// If the system has no room for the units, tries again while a command runs: its end may free room.
    fn fill(&mut self, wait: Nanos) -> Result<Filled, FlowError> {
        match self.read_or_wait(wait) {
            Err(FlowError::Hold(error))
                if is_shortage(&error) && (wait == 0 || self.launcher.shared.slots.count() > 0) =>
            {
                thread::sleep(Duration::from_millis(if wait > 0 { 10 } else { 0 }));
                Ok(Filled::Nothing)
            }
            filled => filled,
        }
    }

    fn waiting(&self) -> u64 {
        let queue = self.queue();
        let new = if queue.is_keyed || self.is_full() { 0 } else { self.batches.waiting() };
        queue.ready() + new
    }

    /// A pause of one key does not delay other keys.
    fn take_answers(&self) -> Answers {
        self.queue().take_answers()
    }

    fn state(&self) -> State {
        let (ready, queued) = (self.batches.read_ahead(), self.queue().new_units());
        State {
            ahead: Passed { units: ready.units + queued.units, bytes: ready.bytes + queued.bytes },
            // A unit is foreseen only if a slot is free for its command.
            foreseen: self.waiting().min(self.launcher.shared.slots.free()),
            keys: self.queue().keys(),
            limited_until: self.queue().limited_until(),
            paused_until: self.queue().paused_until(),
            reads_no_more: self.batches.has_all() || self.is_full(),
            ..State::default()
        }
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        self.batches.cut_ahead();
        if !self.queue().is_keyed && self.queue().has_only_suspects() && self.batches.waiting() == 0 {
            self.fill(0)?;
        }
        self.seek_others();
        self.report_next();
        let slots = &self.launcher.shared.slots;
        let has_room = slots.free() > 0;
        let room = slots.wait();
        if !has_room {
            self.queue().has_room_now();
        }
        Ok(room)
    }

    fn choose(&mut self) -> Price {
        if !self.has_prices() {
            return Price::Usual;
        }
        self.expect_one();
        self.queue().price()
    }

    /// A refused unit fails without a start.
    fn pass(&mut self, turn: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError> {
        match turn {
            Turn::Usual(units) => (0..units).for_each(|_| self.start(None, None, passed)),
            Turn::Costly { grant, costs, .. } => {
                let settles = self.launcher.shared.options.settling.is_any();
                let charge = || Charge { grant, take: Take::of(costs) };
                self.start(settles.then(charge), None, passed);
            }
            Turn::OfKey(ticket, Answer::Granted(grant, take)) => {
                self.queue().granted(ticket, None);
                self.start(Some(Charge { grant, take: take.clone() }), None, passed);
            }
            Turn::OfKey(ticket, Answer::NotYet(wait)) => self.queue().put_back(ticket, wait),
            Turn::OfKey(ticket, Answer::Refused(refusal)) => {
                let why = if let Refusal::GivenUp(failed) = refusal {
                    Outcome::KeyFailed(failed)
                } else {
                    Outcome::TooCostly
                };
                self.queue().granted(ticket, Some(why));
                self.start(None, None, passed);
            }
            Turn::Refused(why) => {
                self.start(None, (why == Unpaid::TooMuch).then_some(Outcome::TooCostly), passed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
