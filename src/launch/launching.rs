//! The flow of units to commands: which attempt is made next, and what is waited for before it.

use super::attempt::{Attempt, Charge};
use super::by_key::ByKey;
use super::commands::{Launcher, Paid};
use super::event::Event;
use super::job::{Batches, Job, Outcome};
use super::options::NEVER;
use super::shared::Shared;
use super::temporary::is_shortage;
use crate::flow::{Filled, Flow, FlowError, Keyless, Passed, Price, Source, Unpaid};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Grant;

impl Launcher {
    /// So many wait that nothing new is read.
    fn tell_of_full_agenda(&self) {
        if !self.shared.told.full_agenda.swap(true, Ordering::Relaxed) {
            let event = match &self.shared.by_key {
                None => Event::AgendaFull,
                Some(by_key) => Event::AheadFull(by_key.crowd()),
            };
            self.shared.events.send(event);
        }
    }

    /// Has the attempts that are due wait for the limits of their keys: the unit that was sent away goes before those behind.
    fn sort_due(&self, by_key: &ByKey) {
        while let Some(attempt) = self.shared.again.as_ref().and_then(|again| again.take_due()) {
            self.sort(by_key, attempt);
        }
    }

    /// Has an attempt wait for the limits of its key. One that can never be made fails.
    fn sort(&self, by_key: &ByKey, attempt: Attempt) {
        if let Err((attempt, refused)) = by_key.add(attempt) {
            self.start(attempt, Paid::Refused(refused));
        }
    }

    /// The attempt that is due.
    fn due(&self) -> Option<Attempt> {
        self.shared.again.as_ref().and_then(|again| again.next())
    }

    /// Makes the attempt that is due, or the first one at `next`, as soon as it has a slot. Returns the job if it is new.
    fn start_next(&self, next: impl FnOnce() -> Option<Job>) -> Option<Arc<Job>> {
        if let Some(by_key) = &self.shared.by_key {
            self.sort_due(by_key);
            let (attempt, granted) = by_key.next()?;
            return self.start(attempt, Paid::ByKey(granted));
        }
        self.start(self.due().or_else(|| next().map(Attempt::first))?, Paid::Usual)
    }
}

/// Units on their way from a source to commands.
#[derive(Debug)]
pub struct Launching<R> {
    batches: Batches<R>,
    launcher: Launcher,
    /// The job that was last reported as the next.
    told: u64,
    /// The attempt whose price was asked for last; `None`: the first one of the next job.
    priced: Option<Attempt>,
    /// What the next one was charged.
    charge: Option<Charge>,
    keyless: Keyless,
    /// The bytes of the units that wait for the limits of their keys.
    sorted_bytes: u64,
}

impl<R: Source> Launching<R> {
    /// Commands for what `batches` gives, which must be made for the launcher's template. The thread that calls this is
    /// the pump's.
    pub fn new(batches: Batches<R>, launcher: Launcher) -> Self {
        launcher.shared.wakes.iter().for_each(|wakes| wakes.is_used_by_pump());
        Launching {
            batches,
            launcher,
            told: 0,
            priced: None,
            charge: None,
            keyless: Keyless::default(),
            sorted_bytes: 0,
        }
    }

    /// Where the jobs come from.
    pub fn batches(&self) -> &Batches<R> {
        &self.batches
    }

    /// Whether each attempt has a price of its own, and takes its grant here.
    fn has_prices(&self) -> bool {
        self.launcher.shared.by_key.is_none() && self.batches.has_prices()
    }

    /// Makes the next attempt; one that is `refused` fails. The bytes are those of the input. An attempt that is not the
    /// first of its unit passes no unit.
    fn start(&mut self, refused: Option<Outcome>, passed: &mut Passed) {
        let (has_prices, batches) = (self.has_prices(), &mut self.batches);
        let started = if has_prices {
            let attempt = self.priced.take().or_else(|| batches.next().map(Attempt::first));
            let paid = refused.map_or_else(|| Paid::Cost(self.charge.take()), Paid::Refused);
            attempt.and_then(|attempt| self.launcher.start(attempt, paid))
        } else {
            self.launcher.start_next(|| batches.next())
        };
        if let Some(job) = started {
            passed.units += 1;
            passed.bytes += job.length;
            self.sorted_bytes = self.sorted_bytes.saturating_sub(job.length);
            self.tell_next();
        }
    }

    /// Whether so many units wait that no more are read.
    fn is_full(&self) -> bool {
        let Shared { again, by_key, slots, .. } = &*self.launcher.shared;
        let waiting = || again.as_ref().map_or(0, |again| again.len());
        match by_key {
            // Output in input order may wait for any of those that were read, so these may start.
            Some(by_key) => by_key.is_full(waiting()) || slots.is_full(),
            None => again.as_ref().is_some_and(|again| again.is_full()),
        }
    }

    fn tell_next(&mut self) {
        let Some(job) = self.batches.peek().filter(|job| job.seq != self.told) else { return };
        let first = job.names.iter().next().map(|(number, name)| (number, name.to_vec()));
        self.told = job.seq;
        let (skipped, done_before) = (self.batches.skipped(), self.batches.done_before());
        self.launcher.shared.events.send(Event::Next { first, skipped, done_before });
    }

    /// The same for limits of each key: reads until the oldest unit that conforms is known, as far as units are read ahead.
    fn sort_or_wait(&mut self, by_key: &ByKey, wait: bool) -> Result<Filled, FlowError> {
        let shared = Arc::clone(&self.launcher.shared);
        let again = shared.again.as_ref();
        self.launcher.sort_due(by_key);
        let is_full = self.is_full();
        if is_full {
            // Those that wait for more units of their key would wait for ever.
            self.batches.close_all();
        }
        let filled = if is_full { Filled::Nothing } else { self.cut_or_read(false)? };
        while let Some(job) = self.batches.next() {
            self.sorted_bytes += job.length;
            let per = shared.options.by_key.as_ref().and_then(|sorting| sorting.look.per.as_ref());
            if let Some(per) = per.filter(|_| self.keyless.note(job.key.is_some())) {
                shared.events.send(Event::NoKeys(per.clone()));
            }
            self.launcher.sort(by_key, Attempt::first(job));
        }
        if filled == Filled::Some || !wait {
            return Ok(filled);
        }
        let is_over = || {
            let nothing_waits = by_key.is_empty() && again.is_none_or(|again| again.is_empty());
            filled == Filled::End && nothing_waits && (again.is_none() || shared.slots.count() == 0)
        };
        if is_over() {
            return Ok(Filled::End);
        }
        if is_full {
            self.launcher.tell_of_full_agenda();
        }
        let source = if filled == Filled::End || is_full { None } else { self.batches.source_fd() };
        let timeout = || {
            let next = by_key.wait().into_iter().chain(again.and_then(|again| again.next_due())).min();
            next.is_none_or(|next| !next.is_zero()).then(|| next.unwrap_or(NEVER)).filter(|_| !is_over())
        };
        // They are there, as limits are kept for each key.
        shared.wakes.as_ref().map_or(Ok(()), |wakes| wakes.wait(source, timeout)).map_err(FlowError::Read)?;
        Ok(Filled::Nothing)
    }

    /// Reads what there is. With `wait`, and if there is nothing: waits until there is some, an attempt is due, or one has
    /// ended after which the input may be at its end.
    fn cut_or_wait(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if let Some(by_key) = self.launcher.shared.by_key.clone() {
            return self.sort_or_wait(&by_key, wait);
        }
        let Some(again) = &self.launcher.shared.again else { return self.cut_or_read(wait) };
        let (again, is_full) = (Arc::clone(again), self.is_full());
        let filled = if is_full { Filled::Nothing } else { self.cut_or_read(false)? };
        if filled == Filled::Some || !wait {
            return Ok(filled);
        }
        self.tell_next();
        let slots = &self.launcher.shared.slots;
        let is_over = || filled == Filled::End && slots.count() == 0 && again.is_empty();
        if is_over() {
            return Ok(Filled::End);
        }
        if is_full {
            self.launcher.tell_of_full_agenda();
        }
        let source = if filled == Filled::End || is_full { None } else { self.batches.source_fd() };
        again.wait(source, is_over).map_err(FlowError::Read)?;
        Ok(Filled::Nothing)
    }

    fn cut_or_read(&mut self, wait: bool) -> Result<Filled, FlowError> {
        let cut = self.batches.cut();
        if wait || cut.is_err() {
            // Nobody will be there to tell it if the run ends while more is waited for.
            self.tell_next();
        }
        if cut? { Ok(Filled::Some) } else { self.batches.read(wait) }
    }
}

impl<R: Source> Flow for Launching<R> {
    /// If the system has no room for the units, waits until a command has ended.
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        match self.cut_or_wait(wait) {
            Err(FlowError::Hold(error)) if is_shortage(&error) => match wait {
                false => Ok(Filled::Nothing),
                true if self.launcher.shared.slots.wait_for_an_end() => Ok(Filled::Some),
                true => Err(FlowError::Hold(error)),
            },
            filled => filled,
        }
    }

    /// Nothing new starts while too many wait for another attempt.
    fn waiting(&self) -> u64 {
        if let Some(by_key) = &self.launcher.shared.by_key {
            return u64::from(by_key.wait().is_some_and(|wait| wait.is_zero()));
        }
        match &self.launcher.shared.again {
            None => self.batches.waiting(),
            Some(again) if again.is_full() => again.due().0,
            Some(again) => again.due().0 + self.batches.waiting(),
        }
    }

    /// A pause of one key holds up no others.
    fn take_hold(&mut self) -> Option<Nanos> {
        let Shared { again, by_key, .. } = &*self.launcher.shared;
        again.as_ref().filter(|_| by_key.is_none())?.take_hold(&None)
    }

    fn has_hold(&self) -> bool {
        let Shared { again, by_key, .. } = &*self.launcher.shared;
        by_key.is_none() && again.as_ref().is_some_and(|again| again.has_hold())
    }

    fn read_ahead(&self) -> Passed {
        let Passed { units, bytes } = self.batches.read_ahead();
        let waiting = self.launcher.shared.by_key.as_ref().map_or(0, |by_key| by_key.len());
        Passed { units: units + waiting, bytes: bytes + self.sorted_bytes }
    }

    fn limited_until(&self) -> Option<Nanos> {
        self.launcher.shared.by_key.as_ref()?.ready_at()
    }

    fn keys(&self) -> [u64; 2] {
        self.launcher.shared.by_key.as_ref().map_or([0, 0], |by_key| by_key.keys())
    }

    fn may_read(&self) -> bool {
        !self.batches.has_all() && !self.is_full()
    }

    /// No command is foreseen for which no slot is free.
    fn foreseen(&self) -> u64 {
        self.waiting().min(self.launcher.shared.slots.free())
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        self.batches.cut_ahead();
        self.tell_next();
        let Shared { slots, again, by_key, .. } = &*self.launcher.shared;
        let Some(by_key) = by_key else {
            return Ok(slots.wait(|| again.as_ref().map_or((0, None), |again| again.due())));
        };
        let has_room = slots.free() > 0;
        let room = slots.wait(|| (u64::MAX, None));
        if !has_room {
            by_key.has_room_now();
        }
        Ok(room)
    }

    fn price(&mut self) -> Price {
        if !self.has_prices() {
            return Price::Usual;
        }
        // When the grant has come, another attempt may be due.
        self.priced = self.launcher.due();
        self.priced.as_ref().map_or_else(|| self.batches.price(), |due| due.job.price())
    }

    fn granted(&mut self, grant: &Grant, costs: &[u64]) -> bool {
        let settles = self.launcher.shared.options.settling.is_any();
        self.charge = settles.then(|| Charge { grant: *grant, costs: costs.into() });
        settles
    }

    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        for _ in 0..units {
            self.start(None, passed);
        }
        Ok(())
    }

    /// It fails without a start.
    fn refuse(&mut self, why: Unpaid, passed: &mut Passed) -> Result<(), FlowError> {
        self.start((why == Unpaid::TooMuch).then_some(Outcome::TooCostly), passed);
        Ok(())
    }
}
