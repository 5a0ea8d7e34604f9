//! A flow whose units have keys with limits of their own. Within a key, units pass in input order; keys take turns.
//! With a longest wait, the flow drops units that would wait longer.
//!
//! A unit that conforms at once goes from the buffer to the output. Only waiting units are copied.

use super::contract::{Answer, Filled, Flow, FlowError, Passed, Price, State, Turn};
use super::copy::{Sink, Source, read_into, refused};
use super::dropping::{Dropped, Dropping};
use super::framing::{Buffer, Framing, LARGEST, trimmed};
use super::look::{Keyless, Look, Sorting, TOO_MUCH, bounded};
use super::meter::Meter;
use super::outgoing::Outgoing;
use super::poll::poll;
use super::selector::Selector;
use rustix::event::PollFlags;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::limits::Refusal;
use throttle_limits::line::{Charged, Costs, Crowd, KeyId, Line, NO_KEY, Next, Unit};

/// An event that the flow reports to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The queue is full, so the flow stops reading. Reported once.
    Full(Crowd),
    /// This selector found no key in the first units. Reported once.
    NoKeys(Selector),
    /// Units were dropped since the latest report.
    Dropped(Dropped),
}

/// Consecutive units of one key with equal costs, which are charged together.
#[derive(Debug, Default)]
struct Run {
    key: Option<KeyId>,
    name: Vec<u8>,
    costs: Vec<u64>,
    /// The number of units that may still leave, and the number that have left without being charged yet.
    remaining: u64,
    used: u64,
}

impl Run {
    /// Begins a run after a unit that has left. Each further unit that conforms now may join the run.
    fn begin(&mut self, key: KeyId, name: &[u8], costs: &[u64], line: &mut Line<Box<[u8]>>) {
        self.remaining = line.more(key, costs);
        if self.remaining > 0 {
            self.key = Some(key);
            name.clone_into(&mut self.name);
            costs.clone_into(&mut self.costs);
        }
    }

    /// Whether the next unit belongs to the run and may leave. If so, counts it.
    fn goes_on(&mut self, name: &[u8], costs: &[u64]) -> bool {
        let goes_on = self.remaining > 0 && self.name == name && self.costs == costs;
        if goes_on {
            (self.remaining, self.used) = (self.remaining - 1, self.used + 1);
        }
        goes_on
    }

    /// Charges the units that have left, and ends the run.
    fn end(&mut self, line: &mut Line<Box<[u8]>>) {
        if let Some(key) = self.key.filter(|_| self.used > 0) {
            line.pass_more(key, &self.costs, self.used);
        }
        (self.remaining, self.used) = (0, 0);
    }
}

/// A unit with a request at a shared bucket.
type Requested = (KeyId, Unit<Box<[u8]>>);

/// A flow of units with keys.
pub struct Sorted<'a, R, W> {
    source: R,
    sink: W,
    buffer: Buffer,
    look: Look,
    line: RefCell<Line<Box<[u8]>>>,
    ahead: usize,
    is_dry: bool,
    clock: &'a dyn NanoClock,
    meter: &'a Meter,
    report: Box<dyn FnMut(News) + 'a>,
    /// The number of units read from the input.
    lines: u64,
    outgoing: Outgoing,
    /// Why the next unit can never leave. All earlier units leave first.
    ends: Option<FlowError>,
    /// The units in `outgoing`, if windows count them from the time when they were handed over.
    handed: Vec<(KeyId, Charged, Costs)>,
    costs: Vec<u64>,
    run: Run,
    /// `None`: no unit is dropped.
    dropping: Option<Dropping>,
    keyless: Keyless,
    reported_full: bool,
    /// See [`Sorting::shared`].
    shared: Option<usize>,
    /// The units with a request at a shared bucket, by ticket, and the latest ticket.
    requested: BTreeMap<u64, Requested>,
    ticket: u64,
}

impl<'a, R: Source, W: Sink> Sorted<'a, R, W> {
    /// Moves units from `source` to `sink`; `framing` delimits them. With `is_dry`, the clock is simulated, and the
    /// flow reads all input before time passes. Calls `report` with events for the user, and counts dropped units in
    /// `meter`.
    pub fn new(
        source: R,
        sink: W,
        framing: Framing,
        sorting: &Sorting,
        (clock, is_dry): (&'a dyn NanoClock, bool),
        meter: &'a Meter,
        report: impl FnMut(News) + 'a,
    ) -> Self {
        Sorted {
            source,
            sink,
            buffer: Buffer::new(framing, BUFFER).growing(LARGEST),
            look: sorting.look.clone(),
            line: RefCell::new(sorting.begin(clock.now())),
            ahead: sorting.ahead,
            is_dry,
            clock,
            meter,
            report: Box::new(report),
            lines: 0,
            outgoing: Outgoing::default(),
            ends: None,
            handed: Vec::new(),
            costs: Vec::new(),
            run: Run::default(),
            dropping: sorting.max_wait.map(|max_wait| Dropping::new(max_wait, sorting.look.per.is_some())),
            keyless: Keyless::default(),
            reported_full: false,
            shared: sorting.shared,
            requested: BTreeMap::new(),
            ticket: 0,
        }
    }

    /// The dropped units that were not reported yet.
    pub fn unreported(&self) -> Option<&Dropped> {
        self.dropping.as_ref().map(Dropping::unreported).filter(|dropped| dropped.units > 0)
    }

    /// Whether reading stops because the queue is full. A flow that drops units never stops, so the writer never waits.
    fn is_full(&self) -> bool {
        let ahead = self.ahead.saturating_sub(self.requested.len());
        self.line.borrow().is_full(ahead) && self.dropping.is_none()
    }

    /// Whether no unit waits.
    fn is_empty(&self) -> bool {
        self.line.borrow().is_empty() && self.requested.is_empty()
    }

    /// Whether the buffer has a unit that is not sorted yet. A last unit without a delimiter must leave after all
    /// others, so it is sorted only when no other unit waits.
    fn has_new(&self) -> bool {
        let ends = || match self.buffer.waiting() {
            0 => false,
            1 => self.buffer.run(1).ends_with(self.buffer.delimiter().as_slice()) || self.is_empty(),
            _ => true,
        };
        self.ends.is_none() && !self.is_full() && ends()
    }

    /// When a waiting unit may go or is dropped.
    fn due_at(&self, now: Nanos) -> Option<Nanos> {
        let mut line = self.line.borrow_mut();
        if self.outgoing.is_stalled { line.deadline() } else { line.ready_at(now) }
    }

    /// Takes out the units that may go now: first waiting units, then units that were just read.
    fn sort(&mut self) {
        let now = self.clock.now();
        if self.outgoing.is_stalled {
            while let Some((key, _)) = self.line.get_mut().take_overdue(now) {
                self.drop_waiting(key);
            }
        } else {
            self.take_waiting(now);
        }
        while (self.outgoing.has_room() || self.outgoing.is_stalled) && self.has_new() {
            self.ends = self.sort_next(now).err();
        }
        self.run.end(self.line.get_mut());
        if let Some(dropped) = self.dropping.as_mut().and_then(|dropping| dropping.news(now)) {
            (self.report)(News::Dropped(dropped));
        }
        // With a single waiting unit, a full queue is not worth a message: units pass in input order, or that unit is
        // long.
        if self.is_full() && self.line.get_mut().len() > 1 && !std::mem::replace(&mut self.reported_full, true) {
            (self.report)(News::Full(self.line.borrow().crowd()));
        }
    }

    /// The price of the next unit, if a shared bucket keeps the limits.
    fn choose_of_key(&mut self, of_all: usize) -> Price {
        match self.line.get_mut().next(self.clock.now()) {
            Next::Go(key, unit, _) => {
                let take = Sorting::price(of_all, self.line.get_mut().name(key), &unit.costs);
                let waited = self.clock.now().saturating_sub(unit.arrived);
                self.ticket += 1;
                self.requested.insert(self.ticket, (key, unit));
                self.line.get_mut().set_away(self.clock.now(), self.requested.len());
                Price::OfKey { ticket: self.ticket, take, waited }
            }
            // Units under the limits of a shared bucket are not dropped.
            Next::Drop(..) | Next::At(_) | Next::Nothing => Price::Nothing,
        }
    }

    /// Applies a shared bucket's answer to the unit that was requested with this ticket.
    fn answer(&mut self, ticket: u64, answer: &Answer<'_>) -> Result<(), FlowError> {
        let Some((key, unit)) = self.requested.remove(&ticket) else { return Ok(()) };
        let (line, now) = (self.line.get_mut(), self.clock.now());
        line.set_away(now, self.requested.len());
        match answer {
            Answer::Granted(..) => {
                line.ended(now, key);
                self.outgoing.take(unit.content.into());
            }
            // The line accepted this unit before, so it accepts the unit again.
            Answer::NotYet(wait) => drop(line.put_back(now, key, unit, now.saturating_add(*wait))),
            Answer::Refused(refusal) => {
                let is_given_up = matches!(refusal, Refusal::GivenUp(_));
                let why = if is_given_up { refusal.to_string() } else { TOO_MUCH.to_owned() };
                return Err(refused(&unit.content, self.lines, why));
            }
        }
        Ok(())
    }

    /// Takes out the waiting units that may go, and drops the units that wait too long.
    fn take_waiting(&mut self, now: Nanos) {
        if self.shared.is_some() {
            return;
        }
        let counts_later = self.line.get_mut().has_windows();
        while self.outgoing.has_room() {
            let line = self.line.get_mut();
            match line.next(now) {
                Next::Go(key, unit, charged) => {
                    self.outgoing.take(unit.content.into());
                    self.dropping.iter_mut().for_each(|dropping| dropping.has_left(key));
                    if counts_later {
                        self.handed.push((key, charged, unit.costs));
                    }
                }
                Next::Drop(key, _) => self.drop_waiting(key),
                Next::At(_) | Next::Nothing => break,
            }
        }
    }

    /// Counts a waiting unit of this key as dropped.
    fn drop_waiting(&mut self, key: KeyId) {
        if let Some(dropping) = &mut self.dropping {
            self.meter.dropped(dropping.count(Some(self.line.get_mut().name(key))));
            dropping.forget(key);
        }
    }

    /// Sorts the first unit of the buffer: it leaves, or it waits.
    fn sort_next(&mut self, now: Nanos) -> Result<(), FlowError> {
        let unit = self.buffer.run(1);
        let text = trimmed(unit, self.buffer.delimiter());
        if let Err(why) = self.look.costs(text, &mut self.costs) {
            return Err(self.in_this_unit(why));
        }
        let key = self.look.per.as_ref().and_then(|per| per.key(text));
        if let Some(per) = self.look.per.as_ref().filter(|_| self.keyless.note(key.is_some())) {
            (self.report)(News::NoKeys(per.clone()));
        }
        let name = key.as_deref().unwrap_or(NO_KEY);
        if !self.run.goes_on(name, &self.costs) {
            let key = key.map(bounded);
            let name = key.as_deref().unwrap_or(NO_KEY);
            let line = self.line.get_mut();
            self.run.end(line);
            let has_to_wait = self.outgoing.is_stalled || self.shared.is_some();
            let passed = if has_to_wait { None } else { line.pass(now, key.as_deref(), &self.costs) };
            let Some(id) = passed else {
                let key = key.map(Cow::into_owned);
                return self.add(now, key.as_deref());
            };
            self.run.begin(id, name, &self.costs, line);
            if line.has_windows() {
                self.handed.push((id, Charged { at: now, counted: now, number: 0 }, self.costs.as_slice().into()));
            }
        }
        self.lines += 1;
        let length = unit.len();
        if Outgoing::is_long(length) {
            self.outgoing.take(self.buffer.take_first());
        } else {
            self.outgoing.add(unit);
            self.buffer.release_run(1, length);
        }
        Ok(())
    }

    /// Moves the first unit of the buffer to the line, or drops it.
    fn add(&mut self, now: Nanos, key: Option<&[u8]>) -> Result<(), FlowError> {
        if let Some(why) = self.look.too_much(&self.costs) {
            return Err(self.in_this_unit(why));
        }
        self.lines += 1;
        let line = self.line.get_mut();
        if let Some(dropping) = &mut self.dropping {
            let limits = |id| line.limits(self.look.per.is_some().then_some(id));
            let is_late = |id| dropping.is_late(now, id, limits(id), &self.costs);
            if line.is_full(self.ahead) || line.find(key).is_some_and(is_late) {
                self.meter.dropped(dropping.count(key));
                self.buffer.release(1);
                return Ok(());
            }
        }
        let content = self.buffer.take_first().into_boxed_slice();
        let (costs, size) = (self.costs.as_slice().into(), content.len() + size_of::<Unit<Box<[u8]>>>());
        let unit = Unit { age: self.lines, costs, size, arrived: now, content };
        let added = line.add(now, key, unit);
        added.map(drop).map_err(|unit| refused(&unit.content, self.lines, TOO_MUCH.to_owned()))
    }

    /// An error about the first unit of the buffer.
    fn in_this_unit(&self, why: String) -> FlowError {
        refused(self.buffer.beginning(), self.lines + 1, why)
    }

    /// Waits until input arrives or a unit may go, for at most `most` nanoseconds. Fails if the reader of the output
    /// leaves.
    fn wait(&mut self, reads: bool, most: Nanos) -> Result<(), FlowError> {
        let now = self.clock.now();
        let at = self.due_at(now).into_iter().chain(now.checked_add(most)).min();
        if self.is_dry {
            if let Some(at) = at {
                self.clock.sleep_until(at);
            }
            return Ok(());
        }
        let timeout = at.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let source = self.source.fd().filter(|_| reads);
        let sink = self.sink.fd().filter(|_| at.is_some() || self.outgoing.is_stalled);
        // With nothing to write, poll reports only POLLERR: the output is a pipe without a reader.
        let wanted = if self.outgoing.is_stalled { PollFlags::OUT } else { PollFlags::empty() };
        let [_, reader] = poll([(source, PollFlags::IN), (sink, wanted)], timeout).map_err(FlowError::Read)?;
        self.note(reader)
    }

    /// Records what poll reported about the sink.
    fn note(&mut self, reader: PollFlags) -> Result<(), FlowError> {
        self.outgoing.can_write = self.outgoing.is_stalled && reader.contains(PollFlags::OUT);
        if reader.contains(PollFlags::ERR) { Err(FlowError::Write(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) }
    }

    /// The error for a unit that does not fit into the buffer.
    fn outgrown(&self) -> FlowError {
        let no_room = || format!("a unit that may have to wait must fit into {} MiB; make it shorter", LARGEST >> 20);
        let words = self.look.too_large().unwrap_or_else(no_room);
        self.in_this_unit(words)
    }
}

/// The usual size of the buffer in bytes. It grows for a long unit.
pub const BUFFER: usize = 256 * 1024;

impl<R: Source, W: Sink> Flow for Sorted<'_, R, W> {
    fn fill(&mut self, wait: Nanos) -> Result<Filled, FlowError> {
        if self.buffer.outgrown() && self.ends.is_none() {
            self.ends = Some(self.outgrown());
        }
        let taken = if self.dropping.is_some() { 0 } else { self.line.get_mut().memory() };
        let reads = self.ends.is_none() && self.buffer.wants_more(taken) && !self.is_full();
        if reads && read_into(&mut self.buffer, &mut self.source, wait > 0 && self.is_dry)? == Filled::Some {
            return Ok(Filled::Some);
        }
        if (self.ends.is_some() || self.buffer.is_finished()) && self.is_empty() && !self.outgoing.is_stalled {
            return self.ends.take().map_or(Ok(Filled::End), Err);
        }
        if wait > 0 {
            self.wait(reads, wait)?;
        }
        Ok(Filled::Nothing)
    }

    /// 1 if the flow has something to do now: units to sort, output to write, or a waiting unit whose time has come.
    fn waiting(&self) -> u64 {
        let now = self.clock.now();
        u64::from(self.has_new() || self.outgoing.can_write || self.due_at(now).is_some_and(|at| at <= now))
    }

    fn state(&self) -> State {
        let limited_until = self.due_at(self.clock.now()).filter(|_| !self.outgoing.is_stalled);
        let line = self.line.borrow();
        State {
            ahead: Passed {
                units: (line.len() + self.requested.len()) as u64 + self.buffer.units() + self.outgoing.units(),
                bytes: line.memory() as u64,
            },
            keys: [line.keys_waiting() as u64, line.keys() as u64],
            limited_until,
            waits_for_sink: self.outgoing.is_stalled,
            ..State::default()
        }
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        if self.dropping.is_some() {
            let [reader] = poll([(self.sink.fd(), PollFlags::OUT)], Some(Duration::ZERO)).map_err(FlowError::Write)?;
            self.note(reader)?;
        } else {
            self.sink.ready().map_err(FlowError::Write)?;
        }
        Ok(u64::MAX)
    }

    fn choose(&mut self) -> Price {
        self.sort();
        match self.shared {
            None => Price::Usual,
            Some(of_all) => self.choose_of_key(of_all),
        }
    }

    /// Hands over all units that may go, whatever number the pump requested.
    fn pass(&mut self, turn: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError> {
        if let Turn::OfKey(ticket, answer) = turn {
            self.answer(ticket, &answer)?;
            if !matches!(answer, Answer::Granted(..)) {
                return Ok(());
            }
        }
        self.outgoing.write(&mut self.sink, self.dropping.is_some(), passed)?;
        if !self.outgoing.is_stalled {
            let (line, now) = (self.line.get_mut(), self.clock.now());
            for (key, charged, costs) in self.handed.drain(..) {
                line.handed_over(now, key, charged, &costs);
            }
        }
        Ok(())
    }
}
