//! A flow whose units pass when the limits of their keys allow: strictly in order within a key, by turns between keys.
//! Or, with a longest wait, units that would wait longer are dropped.
//!
//! A unit that may pass at once goes from the buffer to the output. Only those that wait are copied.

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
use throttle_limits::clock::{Clock, Nanos};
use throttle_limits::limits::Refusal;
use throttle_limits::line::{Charged, Costs, Crowd, KeyId, Line, NO_KEY, Next, Unit};

/// Something that is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// So many units wait that no more are read.
    Full(Crowd),
    /// This selector found no key in the first units.
    NoKeys(Selector),
    /// Units were dropped since this was last told.
    Dropped(Dropped),
}

/// Units of one key and of equal costs, one after the other: they are charged together.
#[derive(Debug, Default)]
struct Run {
    key: Option<KeyId>,
    name: Vec<u8>,
    costs: Vec<u64>,
    /// How many more may leave, and how many have left that were not charged.
    left: u64,
    used: u64,
}

impl Run {
    /// Begins with a unit that has left: as many more may leave as conform now.
    fn begin(&mut self, key: KeyId, name: &[u8], costs: &[u64], line: &mut Line<Box<[u8]>>) {
        self.left = line.more(key, costs);
        if self.left > 0 {
            self.key = Some(key);
            name.clone_into(&mut self.name);
            costs.clone_into(&mut self.costs);
        }
    }

    /// Whether the next unit belongs to it and may leave. Then it is counted.
    fn goes_on(&mut self, name: &[u8], costs: &[u64]) -> bool {
        let goes_on = self.left > 0 && self.name == name && self.costs == costs;
        if goes_on {
            (self.left, self.used) = (self.left - 1, self.used + 1);
        }
        goes_on
    }

    /// Charges what has left.
    fn end(&mut self, line: &mut Line<Box<[u8]>>) {
        if let Some(key) = self.key.filter(|_| self.used > 0) {
            line.pass_more(key, &self.costs, self.used);
        }
        (self.left, self.used) = (0, 0);
    }
}

/// A unit that a shared bucket is asked for.
type Asked = (KeyId, Unit<Box<[u8]>>);

/// A flow of units by key.
pub struct Sorted<'a, R, W> {
    source: R,
    sink: W,
    buffer: Buffer,
    look: Look,
    line: RefCell<Line<Box<[u8]>>>,
    ahead: usize,
    is_dry: bool,
    clock: &'a dyn Clock,
    meter: &'a Meter,
    tell: Box<dyn FnMut(News) + 'a>,
    age: u64,
    /// Units of the input so far.
    lines: u64,
    outgoing: Outgoing,
    /// Why the next unit can never leave, if that is known. All that came before it leave first.
    ends: Option<FlowError>,
    /// What is outgoing, if it counts from when it was handed over.
    handed: Vec<(KeyId, Charged, Costs)>,
    costs: Vec<u64>,
    run: Run,
    /// `None`: no unit is dropped.
    dropping: Option<Dropping>,
    keyless: Keyless,
    told_full: bool,
    /// See [`Sorting::shared`].
    shared: Option<usize>,
    /// The units that a shared bucket is asked for, by their numbers, and the latest of these.
    asked: BTreeMap<u64, Asked>,
    ticket: u64,
}

impl<R, W> std::fmt::Debug for Sorted<'_, R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorted").field("line", &self.line).finish_non_exhaustive()
    }
}

impl<'a, R: Source, W: Sink> Sorted<'a, R, W> {
    /// Units from `source` to `sink`, which end as `framing` says. If the clock is `is_dry`, its time is made up: all input is read
    /// before time passes. `tell` is told what the user should know, and `meter` what is dropped.
    pub fn new(
        source: R,
        sink: W,
        framing: Framing,
        sorting: &Sorting,
        (clock, is_dry): (&'a dyn Clock, bool),
        meter: &'a Meter,
        tell: impl FnMut(News) + 'a,
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
            tell: Box::new(tell),
            age: 0,
            lines: 0,
            outgoing: Outgoing::default(),
            ends: None,
            handed: Vec::new(),
            costs: Vec::new(),
            run: Run::default(),
            dropping: sorting.max_wait.map(|max_wait| Dropping::new(max_wait, sorting.look.per.is_some())),
            keyless: Keyless::default(),
            told_full: false,
            shared: sorting.shared,
            asked: BTreeMap::new(),
            ticket: 0,
        }
    }

    /// Units that were dropped and not told of.
    pub fn untold(&self) -> Option<&Dropped> {
        self.dropping.as_ref().map(Dropping::untold).filter(|dropped| dropped.units > 0)
    }

    /// Whether so many units wait that no more are read. If units are dropped, the writer never waits.
    fn is_full(&self) -> bool {
        let ahead = self.ahead.saturating_sub(self.asked.len());
        self.line.borrow().is_full(ahead) && self.dropping.is_none()
    }

    /// Whether no unit waits.
    fn is_empty(&self) -> bool {
        self.line.borrow().is_empty() && self.asked.is_empty()
    }

    /// Whether a unit was read that is not sorted yet. Nothing may follow a last unit that has no end, so that one is sorted
    /// when no other waits.
    fn has_new(&self) -> bool {
        let ends = || match self.buffer.waiting() {
            0 => false,
            1 => self.buffer.run(1).ends_with(self.buffer.delimiter().as_slice()) || self.is_empty(),
            _ => true,
        };
        self.ends.is_none() && !self.is_full() && ends()
    }

    /// When something is to be done with the units that wait: one may go, or is dropped.
    fn due_at(&self, now: Nanos) -> Option<Nanos> {
        let mut line = self.line.borrow_mut();
        if self.outgoing.is_stalled { line.deadline() } else { line.ready_at(now) }
    }

    /// Takes out the units that may go now: those that waited, then those that were just read.
    fn sort(&mut self) {
        let now = self.clock.now();
        if self.outgoing.is_stalled {
            self.drop_overdue(now);
        } else {
            self.take_waiting(now);
        }
        while (self.outgoing.has_room() || self.outgoing.is_stalled) && self.has_new() {
            self.ends = self.sort_next(now).err();
        }
        self.run.end(self.line.get_mut());
        if let Some(dropped) = self.dropping.as_mut().and_then(|dropping| dropping.news(now)) {
            (self.tell)(News::Dropped(dropped));
        }
        // A single unit that waits has no others to be shuffled with: in input order, or as it is long.
        if self.is_full() && self.line.get_mut().len() > 1 && !std::mem::replace(&mut self.told_full, true) {
            (self.tell)(News::Full(self.line.borrow().crowd()));
        }
    }

    /// What the unit costs whose turn it is, if a shared bucket keeps the limits.
    fn choose_of_key(&mut self, of_all: usize) -> Price {
        match self.line.get_mut().next(self.clock.now()) {
            Next::Go(key, unit, _) => {
                let take = Sorting::price(of_all, self.line.get_mut().name(key), &unit.costs);
                let waited = self.clock.now().saturating_sub(unit.arrived);
                self.ticket += 1;
                self.asked.insert(self.ticket, (key, unit));
                self.line.get_mut().set_away(self.clock.now(), self.asked.len());
                Price::OfKey { ticket: self.ticket, take, waited }
            }
            // No unit is dropped under the limits of a bucket.
            Next::Drop(..) | Next::At(_) | Next::Nothing => Price::Nothing,
        }
    }

    /// A unit that a shared bucket was asked for has an answer.
    fn answer(&mut self, ticket: u64, answer: &Answer<'_>) -> Result<(), FlowError> {
        let Some((key, unit)) = self.asked.remove(&ticket) else { return Ok(()) };
        let (line, now) = (self.line.get_mut(), self.clock.now());
        line.set_away(now, self.asked.len());
        match answer {
            Answer::Granted(..) => {
                line.ended(now, key);
                self.outgoing.take(unit.content.into());
            }
            // It was in the line before, so it is granted some time.
            Answer::NotYet(wait) => drop(line.put_back(now, key, unit, now.saturating_add(*wait))),
            Answer::Refused(refusal) => {
                let is_given_up = matches!(refusal, Refusal::GivenUp(_));
                let why = if is_given_up { refusal.to_string() } else { TOO_MUCH.to_owned() };
                return Err(refused(&unit.content, self.lines, why));
            }
        }
        Ok(())
    }

    /// Takes out those that waited and may go, and drops those that wait too long.
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

    /// Drops those that wait too long, while none may go.
    fn drop_overdue(&mut self, now: Nanos) {
        while let Some((key, _)) = self.line.get_mut().take_overdue(now) {
            self.drop_waiting(key);
        }
    }

    /// A unit of this key that waited is dropped.
    fn drop_waiting(&mut self, key: KeyId) {
        if let Some(dropping) = &mut self.dropping {
            self.meter.dropped(dropping.count(Some(self.line.get_mut().name(key))));
            dropping.forget(key);
        }
    }

    /// Sorts the first unit of the buffer: it leaves, or waits.
    fn sort_next(&mut self, now: Nanos) -> Result<(), FlowError> {
        let unit = self.buffer.run(1);
        let text = trimmed(unit, self.buffer.delimiter());
        if let Err(why) = self.look.costs(text, &mut self.costs) {
            return Err(self.in_this_unit(why));
        }
        let key = self.look.per.as_ref().and_then(|per| per.key(text));
        if let Some(per) = self.look.per.as_ref().filter(|_| self.keyless.note(key.is_some())) {
            (self.tell)(News::NoKeys(per.clone()));
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

    /// Has the first unit of the buffer wait, or drops it.
    fn add(&mut self, now: Nanos, key: Option<&[u8]>) -> Result<(), FlowError> {
        if let Some(why) = self.look.too_much(&self.costs) {
            return Err(self.in_this_unit(why));
        }
        (self.age, self.lines) = (self.age + 1, self.lines + 1);
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
        let unit = Unit { age: self.age, costs, size, arrived: now, content };
        let added = line.add(now, key, unit);
        added.map(drop).map_err(|unit| refused(&unit.content, self.lines, TOO_MUCH.to_owned()))
    }

    /// Why the first unit of the buffer cannot be sorted.
    fn in_this_unit(&self, why: String) -> FlowError {
        refused(self.buffer.beginning(), self.lines + 1, why)
    }

    /// Waits until there is input, or a unit may go, at most so many nanoseconds; fails if its reader leaves before that.
    fn wait(&mut self, reads: bool, most: Nanos) -> Result<(), FlowError> {
        let now = self.clock.now();
        let at = self.due_at(now).into_iter().chain(now.checked_add(most)).min();
        if self.is_dry {
            if let Some(at) = at {
                self.clock.sleep_until(at);
            }
            return Ok(());
        }
        let left = at.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let source = self.source.fd().filter(|_| reads);
        let sink = self.sink.fd().filter(|_| at.is_some() || self.outgoing.is_stalled);
        // If nothing is to be written, only what is always reported: POLLERR, if it is a pipe without a reader.
        let wanted = if self.outgoing.is_stalled { PollFlags::OUT } else { PollFlags::empty() };
        let [_, reader] = poll([(source, PollFlags::IN), (sink, wanted)], left).map_err(FlowError::Read)?;
        self.note(reader)
    }

    /// What was polled of the sink.
    fn note(&mut self, reader: PollFlags) -> Result<(), FlowError> {
        self.outgoing.can_write = self.outgoing.is_stalled && reader.contains(PollFlags::OUT);
        if reader.contains(PollFlags::ERR) { Err(FlowError::Write(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) }
    }

    /// The error for a unit that does not fit the buffer.
    fn outgrown(&self) -> FlowError {
        let no_room = || format!("a unit that may have to wait takes at most {} MiB; make it shorter", LARGEST >> 20);
        let words = self.look.too_large().unwrap_or_else(no_room);
        self.in_this_unit(words)
    }
}

/// The usual size of the buffer. It grows for a long unit.
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

    /// Units that were just read wait until it is known whether they may go.
    fn waiting(&self) -> u64 {
        let now = self.clock.now();
        u64::from(self.has_new() || self.outgoing.can_write || self.due_at(now).is_some_and(|at| at <= now))
    }

    fn state(&self) -> State {
        let limited_until = self.due_at(self.clock.now()).filter(|_| !self.outgoing.is_stalled);
        let line = self.line.borrow();
        State {
            ahead: Passed {
                units: (line.len() + self.asked.len()) as u64 + self.buffer.units() + self.outgoing.units(),
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

    /// Hands over all units that may go, however many were asked for.
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
            self.handed.drain(..).for_each(|(key, charged, costs)| line.handed_over(now, key, charged, &costs));
        }
        Ok(())
    }
}
