//! A flow whose units have keys with limits of their own. Within a key, units pass in input order; keys take turns.
//! With a longest wait, the flow drops units that would wait longer.
//!
//! A unit that conforms at once goes from the buffer to the output. Only a unit that has to wait is moved to the line.

use super::bucket::Bucket;
use super::contract::{Flow, Passed, State};
use super::copy::{Sink, Source, read_into, refused, room_of};
use super::dropping::{Dropped, Dropping};
use super::error::FlowError;
use super::framing::{Buffer, Framing, LARGEST, trimmed};
use super::grants::Grants;
use super::look::{Keyless, Look, Sorting, TOO_MUCH, bounded};
use super::meter::Meter;
use super::next::{Granted, Refusal};
use super::outgoing::Outgoing;
use super::poll::poll;
use super::selector::Selector;
use rustix::event::PollFlags;
use std::borrow::Cow;
use std::io;
use std::time::Duration;
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::line::{Charged, Costs, Crowd, KeyId, Line, NO_KEY, Unit};

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

/// A flow of units with keys.
pub struct Sorted<'a, R, W> {
    source: R,
    sink: W,
    buffer: Buffer,
    look: Look,
    ahead: usize,
    is_dry: bool,
    clock: &'a dyn NanoClock,
    meter: &'a Meter,
    report: Box<dyn FnMut(News) + 'a>,
    /// The number of units read from the input.
    lines: u64,
    outgoing: Outgoing,
    /// The error that ends the flow: the next unit can never leave. All earlier units leave first.
    ends: Option<FlowError>,
    /// The units in `outgoing` that windows count. They count a unit from the time when it was written.
    handed: Vec<(KeyId, Charged, Costs)>,
    costs: Vec<u64>,
    run: Run,
    /// `None`: no unit is dropped.
    dropping: Option<Dropping>,
    keyless: Keyless,
    reported_full: bool,
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
        }
    }

    /// The dropped units that were not reported yet.
    pub fn unreported(&self) -> Option<&Dropped> {
        self.dropping.as_ref().map(Dropping::unreported).filter(|dropped| dropped.units > 0)
    }

    /// Whether reading stops because the queue is full. A flow that drops units never stops, so the writer never waits.
    /// `away` units have left the line and wait for a bucket.
    fn is_full(&self, line: &Line<Box<[u8]>>, away: usize) -> bool {
        self.dropping.is_none() && line.is_full(self.ahead.saturating_sub(away))
    }

    /// Whether the buffer has a unit that is not sorted yet. A last unit without a delimiter must leave after all
    /// others, so it is sorted only when no other unit waits.
    fn has_unsorted(&self, line: &Line<Box<[u8]>>, away: usize) -> bool {
        let ends = || match self.buffer.waiting() {
            0 => false,
            1 => {
                let ends = self.buffer.run(1).ends_with(self.buffer.delimiter().as_slice());
                ends || line.is_empty() && away == 0
            }
            _ => true,
        };
        self.ends.is_none() && !self.is_full(line, away) && ends()
    }

    /// Whether the input has ended, and nothing is left to sort.
    fn reads_no_more(&self) -> bool {
        self.ends.is_some() || self.buffer.is_finished()
    }

    /// Sorts the first unit of the buffer: it leaves, or it waits.
    fn sort_next(&mut self, line: &mut Line<Box<[u8]>>, is_shared: bool, now: Nanos) -> Result<(), FlowError> {
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
            self.run.end(line);
            let has_to_wait = self.outgoing.is_stalled || is_shared;
            let passed = if has_to_wait { None } else { line.pass(now, key.as_deref(), &self.costs) };
            let Some(id) = passed else {
                let key = key.map(Cow::into_owned);
                return self.add(line, now, key.as_deref());
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
    fn add(&mut self, line: &mut Line<Box<[u8]>>, now: Nanos, key: Option<&[u8]>) -> Result<(), FlowError> {
        if let Some(why) = self.look.too_much(&self.costs) {
            return Err(self.in_this_unit(why));
        }
        self.lines += 1;
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
        let unit = Unit { age: self.lines, costs, size, arrived: now, settles: false, content };
        let added = line.add(now, key, unit);
        added.map(drop).map_err(|unit| refused(&unit.content, self.lines, TOO_MUCH.to_owned()))
    }

    /// An error about the first unit of the buffer.
    fn in_this_unit(&self, why: String) -> FlowError {
        refused(self.buffer.beginning(), self.lines + 1, why)
    }

    /// Waits until input arrives or this time has come. Fails if the reader of the output leaves.
    fn wait_until(&mut self, grants: &Grants<Box<[u8]>>, until: Option<Nanos>) -> Result<(), FlowError> {
        if self.is_dry && self.reads(grants) {
            return Ok(());
        }
        if self.is_dry {
            if let Some(until) = until {
                self.clock.sleep_until(until);
            }
            return Ok(());
        }
        let timeout = until.map(|until| Duration::from_nanos(until.saturating_sub(self.clock.now())));
        let source = self.source.fd().filter(|_| self.reads(grants));
        let sink = self.sink.fd().filter(|_| until.is_some() || self.outgoing.is_stalled);
        // With nothing to write, poll reports only POLLERR: the output is a pipe without a reader.
        let wanted = if self.outgoing.is_stalled { PollFlags::OUT } else { PollFlags::empty() };
        let [_, reader] = poll([(source, PollFlags::IN), (sink, wanted)], timeout).map_err(FlowError::Read)?;
        self.note(reader)
    }

    /// Whether input is read.
    fn reads(&self, grants: &Grants<Box<[u8]>>) -> bool {
        let (away, line) = (away(grants), grants.line());
        let taken = if self.dropping.is_some() { 0 } else { line.memory() };
        self.ends.is_none() && self.buffer.wants_more(taken) && !self.is_full(&line, away)
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

/// The number of units that have left the line and wait for a bucket.
fn away(grants: &Grants<Box<[u8]>>) -> usize {
    grants.shared().map_or(0, Bucket::units)
}

/// The usual size of the buffer in bytes. It grows for a long unit.
pub const BUFFER: usize = 256 * 1024;

impl<R: Source, W: Sink> Flow for Sorted<'_, R, W> {
    type Unit = Box<[u8]>;

    fn fill(&mut self, grants: &Grants<Box<[u8]>>) -> Result<(), FlowError> {
        // A dry run reads all input before time passes.
        while self.reads(grants) && read_into(&mut self.buffer, &mut self.source, self.is_dry)? {
            if self.has_new(grants) {
                break;
            }
        }
        if self.buffer.outgrown() && self.ends.is_none() {
            self.ends = Some(self.outgrown());
        }
        Ok(())
    }

    fn has_new(&self, grants: &Grants<Box<[u8]>>) -> bool {
        let away = away(grants);
        self.outgoing.can_write || self.has_unsorted(&grants.line(), away)
    }

    fn room(&mut self, grants: &Grants<Box<[u8]>>) -> Result<u64, FlowError> {
        if self.dropping.is_none() {
            return room_of(&mut self.sink, grants);
        }
        let [reader] = poll([(self.sink.fd(), PollFlags::OUT)], Some(Duration::ZERO)).map_err(FlowError::Write)?;
        self.note(reader)?;
        Ok(if self.outgoing.is_stalled { 0 } else { u64::MAX })
    }

    /// Sorts the units that were read: each leaves at once, or waits.
    fn ask(&mut self, grants: &Grants<Box<[u8]>>) -> Result<(), FlowError> {
        let (now, away) = (self.clock.now(), away(grants));
        let line = &mut *grants.line();
        while (self.outgoing.has_room() || self.outgoing.is_stalled) && self.has_unsorted(line, away) {
            self.ends = self.sort_next(line, grants.is_shared(), now).err();
        }
        self.run.end(line);
        if let Some(dropped) = self.dropping.as_mut().and_then(|dropping| dropping.news(now)) {
            (self.report)(News::Dropped(dropped));
        }
        // With a single waiting unit, a full queue is not worth a message: units pass in input order, or that unit is
        // long.
        if self.is_full(line, away) && line.len() > 1 && !std::mem::replace(&mut self.reported_full, true) {
            (self.report)(News::Full(line.crowd()));
        }
        Ok(())
    }

    fn go(
        &mut self,
        grants: &Grants<Box<[u8]>>,
        granted: Granted,
        unit: Box<[u8]>,
        _: &mut Passed,
    ) -> Result<(), FlowError> {
        self.outgoing.take(unit.into());
        self.dropping.iter_mut().for_each(|dropping| dropping.has_left(granted.key));
        if grants.line().has_windows() {
            self.handed.push((granted.key, granted.charged, granted.costs));
        }
        Ok(())
    }

    fn refuse(
        &mut self,
        grants: &Grants<Box<[u8]>>,
        unit: Box<[u8]>,
        why: Refusal,
        _: &mut Passed,
    ) -> Result<(), FlowError> {
        match (why, &mut self.dropping) {
            (Refusal::TooLate, Some(dropping)) => {
                let text = trimmed(&unit, self.buffer.delimiter());
                let key = self.look.per.as_ref().and_then(|per| per.key(text)).map(bounded);
                self.meter.dropped(dropping.count(key.as_deref()));
                grants.line().find(key.as_deref()).into_iter().for_each(|key| dropping.forget(key));
                Ok(())
            }
            (Refusal::KeyFailed(failed), _) => {
                let why = throttle_limits::limits::Refusal::GivenUp(failed).to_string();
                Err(refused(&unit, self.lines, why))
            }
            _ => Err(refused(&unit, self.lines, TOO_MUCH.to_owned())),
        }
    }

    fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    fn has_output(&self) -> bool {
        self.outgoing.units() > 0
    }

    fn flush(&mut self, grants: &Grants<Box<[u8]>>, passed: &mut Passed) -> Result<(), FlowError> {
        self.outgoing.write(&mut self.sink, self.dropping.is_some(), passed)?;
        if !self.outgoing.is_stalled && !self.handed.is_empty() {
            let (mut line, now) = (grants.line(), self.clock.now());
            self.handed.drain(..).for_each(|(key, charged, costs)| line.handed_over(now, key, charged, &costs));
        }
        Ok(())
    }

    fn is_over(&mut self, grants: &Grants<Box<[u8]>>) -> Result<bool, FlowError> {
        let is_over = self.reads_no_more() && grants.is_empty() && !self.outgoing.is_stalled;
        match self.ends.take_if(|_| is_over) {
            Some(error) => Err(error),
            None => Ok(is_over),
        }
    }

    fn wait(&mut self, grants: &Grants<Box<[u8]>>, until: Option<Nanos>) -> Result<bool, FlowError> {
        self.wait_until(grants, until).map(|()| true)
    }

    fn state(&self, grants: &Grants<Box<[u8]>>) -> State {
        let (away, line) = (away(grants), grants.line());
        State {
            ahead: Passed {
                units: (line.len() + away) as u64 + self.buffer.units() + self.outgoing.units(),
                bytes: line.memory() as u64,
            },
            waits_for_sink: self.outgoing.is_stalled,
            reads_no_more: false,
        }
    }
}
