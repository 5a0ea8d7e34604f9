//! A flow whose units pass when the limits of their keys allow: strictly in order within a key, the oldest that may first.
//! Or, with a longest wait, units that would wait longer are dropped.
//!
//! A unit that may pass at once goes from the buffer to the output. Only those that wait are copied.

use super::contract::{Filled, Flow, FlowError, Passed, Price, State, Turn};
use super::copy::{Sink, Source, read_into, refused, write_all};
use super::framing::{Buffer, Framing, LARGEST, trimmed};
use super::look::{Keyless, Look, Sorting, TOO_MUCH, bounded};
use super::order::{Charged, Crowd, KeyId, NO_KEY, Next, Order, Unit};
use super::poll::poll;
use super::selector::Selector;
use rustix::event::PollFlags;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use throttle_limits::clock::{Clock, Nanos};

/// The output of one turn is written when it has so many bytes.
const TURN: usize = 128 * 1024;

/// Of so many keys it is counted how many units were dropped.
const COUNTED_KEYS: usize = 10_000;

/// Units that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many.
    pub units: u64,
    /// How many of each key, if there are keys, and not too many.
    pub keys: BTreeMap<Box<[u8]>, u64>,
}

impl Dropped {
    fn count(&mut self, key: Option<&[u8]>) {
        self.units += 1;
        let Some(key) = key else { return };
        if let Some(units) = self.keys.get_mut(key) {
            *units += 1;
        } else if self.keys.len() < COUNTED_KEYS {
            self.keys.insert(key.into(), 1);
        }
    }
}

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

/// A flow of units by key.
pub struct Sorted<'a, R, W> {
    source: R,
    sink: W,
    buffer: Buffer,
    look: Look,
    order: RefCell<Order<Box<[u8]>>>,
    ahead: usize,
    is_dry: bool,
    clock: &'a dyn Clock,
    tell: Box<dyn FnMut(News) + 'a>,
    age: u64,
    /// Units of the input so far.
    lines: u64,
    output: Vec<u8>,
    /// A long unit that leaves after the output.
    long: Vec<u8>,
    /// How many units are in the output, and why there are no more, once that is decided.
    decided: Option<(u64, Result<(), FlowError>)>,
    /// What is in the output, if it counts from when it was handed over.
    handed: Vec<(KeyId, Charged, Box<[u64]>)>,
    costs: Vec<u64>,
    run: Run,
    dropped: Dropped,
    keyless: Keyless,
    told_full: bool,
    told_dropped: Option<Nanos>,
    /// Units that were dropped and told of.
    told_of: u64,
}

/// How often it is told that units are dropped.
const TELL_EVERY: Nanos = 10 * throttle_limits::clock::SECOND;

impl<R, W> std::fmt::Debug for Sorted<'_, R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorted").field("order", &self.order).finish_non_exhaustive()
    }
}

impl<'a, R: Source, W: Sink> Sorted<'a, R, W> {
    /// Units from `source` to `sink`, which end as `framing` says. If the clock is `is_dry`, its time is made up: all input is read
    /// before time passes. `tell` is told what the user should know.
    pub fn new(
        source: R,
        sink: W,
        framing: Framing,
        sorting: &Sorting,
        (clock, is_dry): (&'a dyn Clock, bool),
        tell: impl FnMut(News) + 'a,
    ) -> Self {
        Sorted {
            source,
            sink,
            buffer: Buffer::new(framing, BUFFER).growing(LARGEST),
            look: sorting.look.clone(),
            order: RefCell::new(sorting.begin(clock.now())),
            ahead: sorting.ahead,
            is_dry,
            clock,
            tell: Box::new(tell),
            age: 0,
            lines: 0,
            output: Vec::new(),
            long: Vec::new(),
            decided: None,
            handed: Vec::new(),
            costs: Vec::new(),
            run: Run::default(),
            dropped: Dropped::default(),
            keyless: Keyless::default(),
            // In input order, one unit waits at a time.
            told_full: sorting.ahead == 1,
            told_dropped: None,
            told_of: 0,
        }
    }

    /// Units that were dropped and not told of.
    pub fn untold(&self) -> &Dropped {
        &self.dropped
    }

    /// Whether so many units wait that no more are read.
    fn is_full(&self) -> bool {
        self.order.borrow().is_full(self.ahead)
    }

    /// Whether more units may leave in this turn.
    fn has_room(&self) -> bool {
        self.output.len() < TURN && self.long.is_empty()
    }

    /// Whether a unit was read that is not sorted yet. Nothing may follow a last unit that has no end, so that one is sorted
    /// when no other waits.
    fn has_new(&self) -> bool {
        let ends = || match self.buffer.waiting() {
            0 => false,
            1 => self.buffer.run(1).ends_with(self.buffer.delimiter().as_slice()) || self.order.borrow().is_empty(),
            _ => true,
        };
        !self.is_full() && ends()
    }

    /// When the oldest unit that waits may go.
    fn ready_at(&self, now: Nanos) -> Option<Nanos> {
        self.order.borrow_mut().ready_at(now)
    }

    /// Fills the output with the units that may go now: those that waited, the oldest first, then those that were just read.
    fn sort(&mut self, passed: &mut Passed) -> Result<(), FlowError> {
        let now = self.clock.now();
        self.take_waiting(now, passed);
        let mut sorted = Ok(());
        while sorted.is_ok() && self.has_room() && self.has_new() {
            sorted = self.sort_next(now, passed);
        }
        end_run(&mut self.run, self.order.get_mut());
        sorted?;
        self.tell_of_dropped(now);
        if self.is_full() && !std::mem::replace(&mut self.told_full, true) {
            (self.tell)(News::Full(self.order.borrow().crowd()));
        }
        Ok(())
    }

    /// Puts those that waited and may go into the output, and drops those that wait too long.
    fn take_waiting(&mut self, now: Nanos, passed: &mut Passed) {
        let counts_later = self.order.get_mut().has_windows();
        while self.has_room() {
            let order = self.order.get_mut();
            match order.next(now) {
                Next::Go(key, unit, charged) => {
                    if unit.content.len() > TURN {
                        self.long = unit.content.into();
                    } else {
                        self.output.extend_from_slice(&unit.content);
                    }
                    passed.units += 1;
                    if counts_later {
                        self.handed.push((key, charged, unit.costs));
                    }
                }
                Next::Drop(key, _) => self.dropped.count(self.look.per.is_some().then(|| order.name(key))),
                Next::At(_) | Next::Blocked | Next::Empty => break,
            }
        }
    }

    /// Sorts the first unit of the buffer: puts it into the output, or has it wait.
    fn sort_next(&mut self, now: Nanos, passed: &mut Passed) -> Result<(), FlowError> {
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
        if self.run.left > 0 && self.run.name == name && self.run.costs == self.costs {
            (self.run.left, self.run.used) = (self.run.left - 1, self.run.used + 1);
        } else {
            let key = key.map(bounded);
            let name = key.as_deref().unwrap_or(NO_KEY);
            let order = self.order.get_mut();
            end_run(&mut self.run, order);
            let Some(id) = order.pass(now, key.as_deref(), &self.costs) else {
                let key = key.map(Cow::into_owned);
                return self.add(now, key.as_deref());
            };
            self.run.left = order.more(id, &self.costs);
            if self.run.left > 0 {
                self.run.key = Some(id);
                name.clone_into(&mut self.run.name);
                self.costs.clone_into(&mut self.run.costs);
            }
            if order.has_windows() {
                self.handed.push((id, Charged { at: now, counted: now, number: 0 }, self.costs.as_slice().into()));
            }
        }
        passed.units += 1;
        self.lines += 1;
        let length = unit.len();
        if length <= TURN {
            self.output.extend_from_slice(unit);
            self.buffer.release_run(1, length);
        } else {
            self.long = self.buffer.take_first();
        }
        Ok(())
    }

    /// Has the first unit of the buffer wait.
    fn add(&mut self, now: Nanos, key: Option<&[u8]>) -> Result<(), FlowError> {
        if let Some(why) = self.look.too_much(&self.costs) {
            return Err(self.in_this_unit(why));
        }
        let content = self.buffer.take_first().into_boxed_slice();
        (self.age, self.lines) = (self.age + 1, self.lines + 1);
        let (costs, size) = (self.costs.as_slice().into(), content.len() + size_of::<Unit<Box<[u8]>>>());
        let unit = Unit { age: self.age, costs, size, arrived: now, content };
        let added = self.order.get_mut().add(now, key, unit);
        added.map(drop).map_err(|unit| refused(&unit.content, self.lines, TOO_MUCH.to_owned()))
    }

    /// Why the first unit of the buffer cannot be sorted.
    fn in_this_unit(&self, why: String) -> FlowError {
        refused(self.buffer.beginning(), self.lines + 1, why)
    }

    /// Tells that units were dropped, now and then.
    fn tell_of_dropped(&mut self, now: Nanos) {
        let is_due = self.told_dropped.is_none_or(|told| now >= told.saturating_add(TELL_EVERY));
        if self.dropped.units > 0 && is_due {
            self.told_dropped = Some(now);
            self.told_of += self.dropped.units;
            (self.tell)(News::Dropped(std::mem::take(&mut self.dropped)));
        }
    }

    /// Waits until there is input, or the oldest unit may go; fails if its reader leaves before that.
    fn wait(&mut self, reads: bool) -> Result<(), FlowError> {
        let now = self.clock.now();
        let at = self.ready_at(now);
        if self.is_dry {
            if let Some(at) = at {
                self.clock.sleep_until(at);
            }
            return Ok(());
        }
        let (source, sink) = (self.source.fd().filter(|_| reads), self.sink.fd().filter(|_| at.is_some()));
        // Of the sink only what is always reported: POLLERR, if it is a pipe without a reader.
        let left = at.map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let [_, reader] = poll([(source, PollFlags::IN), (sink, PollFlags::empty())], left).map_err(FlowError::Read)?;
        if reader.contains(PollFlags::ERR) { Err(FlowError::Write(io::ErrorKind::BrokenPipe.into())) } else { Ok(()) }
    }

    /// The error for a unit that does not fit the buffer.
    fn outgrown(&self) -> FlowError {
        let no_room = || format!("a unit that may have to wait takes at most {} MiB; make it shorter", LARGEST >> 20);
        let words = self.look.too_large().unwrap_or_else(no_room);
        self.in_this_unit(words)
    }
}

/// Charges what has left.
fn end_run(run: &mut Run, order: &mut Order<Box<[u8]>>) {
    if let Some(key) = run.key.filter(|_| run.used > 0) {
        order.pass_more(key, &run.costs, run.used);
    }
    (run.left, run.used) = (0, 0);
}

/// The usual size of the buffer. It grows for a long unit.
pub const BUFFER: usize = 256 * 1024;

impl<R: Source, W: Sink> Flow for Sorted<'_, R, W> {
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if self.buffer.outgrown() {
            return Err(self.outgrown());
        }
        let reads = self.buffer.wants_more(self.order.get_mut().memory()) && !self.is_full();
        if reads && read_into(&mut self.buffer, &mut self.source, wait && self.is_dry)? == Filled::Some {
            return Ok(Filled::Some);
        }
        if self.buffer.is_finished() && self.order.borrow().is_empty() {
            return Ok(Filled::End);
        }
        if wait {
            self.wait(reads)?;
        }
        Ok(Filled::Nothing)
    }

    /// Units that were just read wait until it is known whether they may go.
    fn waiting(&self) -> u64 {
        let now = self.clock.now();
        u64::from(self.has_new() || self.ready_at(now).is_some_and(|at| at <= now))
    }

    fn state(&self) -> State {
        let limited_until = self.ready_at(self.clock.now());
        let order = self.order.borrow();
        State {
            ahead: Passed { units: order.len() as u64 + self.buffer.units(), bytes: order.memory() as u64 },
            dropped: self.told_of + self.dropped.units,
            keys: [order.keys_waiting() as u64, order.keys() as u64],
            limited_until,
            ..State::default()
        }
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        self.sink.ready().map_err(FlowError::Write)?;
        Ok(u64::MAX)
    }

    fn choose(&mut self) -> Price {
        let mut sorted = Passed::default();
        let result = self.sort(&mut sorted);
        self.decided = Some((sorted.units, result));
        Price::Usual
    }

    /// Hands over all units that may go, however many were asked for.
    fn pass(&mut self, _: Turn<'_>, passed: &mut Passed) -> Result<(), FlowError> {
        let (units, result) = self.decided.take().unwrap_or((0, Ok(())));
        let mut written = 0;
        let mut output = write_all(&mut self.sink, &self.output, &mut written);
        passed.bytes += written as u64;
        if output.is_ok() {
            written = 0;
            output = write_all(&mut self.sink, &std::mem::take(&mut self.long), &mut written);
            passed.bytes += written as u64;
        }
        passed.units += if output.is_ok() { units } else { 0 };
        self.output.clear();
        let (order, now) = (self.order.get_mut(), self.clock.now());
        self.handed.drain(..).for_each(|(key, charged, costs)| order.handed_over(now, key, charged, &costs));
        output.and(result)
    }
}
