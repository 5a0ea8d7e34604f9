//! Input cut into jobs: one command's worth of units each.

use super::identity::Identity;
use super::names::Names;
use super::spool::Spool;
use super::template::Template;
use super::units::{LONGEST_UNIT, Units, size_of_word};
use crate::flow::framing::{Buffer, trimmed};
use crate::flow::pricing::Pricing;
use crate::flow::{Filled, FlowError, Passed, Price, Source, Unpaid};
use std::collections::VecDeque;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// How many jobs are cut ahead of their launch.
const AHEAD: usize = 64;

/// Bytes of memory that they may take before no more are cut.
const MEMORY_AHEAD: usize = 128 * 1024;

/// The most bytes of one job's units that are kept beside its input. Arguments take less.
const MOST_KEPT: usize = 4 << 20;

/// One command's worth of units.
#[derive(Debug, Default)]
pub struct Job {
    /// Counted from 1.
    pub seq: u64,
    /// The units that the command gets as arguments.
    pub units: Units,
    /// Its units, by number and beginning.
    pub names: Names,
    /// If units are kept ([`Shape::keep`]): those that it does not get as arguments.
    pub kept: Units,
    /// Whether a unit that was to be kept is not, as it outgrew the buffer or all of them take more than 4 MiB. It cannot
    /// be recorded.
    pub too_long_to_keep: bool,
    /// Whether its units are kept until it has ended.
    keeps: bool,
    /// The units that go to its standard input.
    pub(super) input: Option<Spool>,
    /// Whether a unit is too long to be an argument.
    pub(super) too_long: bool,
    /// The bytes of input that it took, those of blank units before it included.
    pub(super) length: u64,
    /// When the last of its units was read.
    pub(super) read: Option<Instant>,
    /// What it costs.
    pub(super) price: Price,
    /// What the log calls that: the part of the first limit with a cost of its own.
    pub charged: u64,
}

impl Job {
    /// The beginning of its first unit.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.names.iter().next().map_or(&[], |(_, name)| name)
    }

    /// Its units that are at hand: all of them, if they are kept and [`is_whole`](Self::is_whole).
    pub fn units_at_hand(&self) -> impl Iterator<Item = &[u8]> + Clone {
        // A job has only one kind of them.
        self.units.iter().chain(self.kept.iter())
    }

    /// Whether no unit was too long to be held.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.too_long && !self.too_long_to_keep
    }

    /// What all of its units together are known by, if they are kept.
    pub(super) fn identity(&self) -> Option<Identity> {
        (self.keeps && self.is_whole()).then(|| Identity::of_all(self.units_at_hand()))
    }

    /// Drops the units unless they are kept, but for the first if that is named in full later.
    pub(super) fn forget_units(&mut self, but_the_first: bool) {
        if !self.keeps {
            self.units = self.units.first().filter(|_| but_the_first).into_iter().collect();
        }
    }

    fn keep(&mut self, unit: &[u8]) {
        if self.keeps && self.kept.memory() + unit.len() <= MOST_KEPT {
            self.kept.push(unit);
        } else {
            self.too_long_to_keep |= self.keeps;
        }
    }

    /// Why it cannot be run, if that is known beforehand.
    #[must_use]
    pub fn refused(&self) -> Option<Outcome> {
        match self {
            Job { too_long: true, .. } => Some(Outcome::TooLong),
            _ => self.units.has_nul().then_some(Outcome::HasNul),
        }
    }

    /// Whether its input takes an open file.
    pub(super) fn is_in_file(&self) -> bool {
        self.input.as_ref().is_some_and(|input| input.in_memory().is_none())
    }

    pub(super) fn memory(&self) -> usize {
        let input = self.input.as_ref().and_then(Spool::in_memory).map_or(0, <[u8]>::len);
        self.units.memory() + self.kept.memory() + self.names.memory() + input
    }
}

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// It exited 0.
    Ok,
    /// It exited with another code.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It was ended because it took too long.
    TimedOut,
    /// It was stopped because it wanted the terminal, and then ended.
    WantedTerminal,
    /// There is no such command.
    NotFound(io::Error),
    /// It could not be started.
    CannotRun(io::Error),
    /// A unit is too long to be an argument.
    TooLong,
    /// A unit has a NUL byte, which no argument can hold.
    HasNul,
    /// No limit grants what it costs, or that cannot be read.
    Unpaid(Unpaid),
    /// Its standard input could not be held until it started.
    InputLost(io::Error),
    /// It ran, but its output could not be held or passed on.
    OutputLost(io::Error),
}

/// How units become jobs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Units for each command; 0 as 1, but they go nowhere.
    pub max_args: u64,
    /// Whether they go to its standard input, with their delimiters.
    pub to_stdin: bool,
    /// Whether blank units are left out.
    pub skip_blank: bool,
    /// Whether a job keeps the bytes of its units until it has ended.
    pub keep: bool,
}

type IsKnown = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Says which units are left out, as they were done before.
pub struct Known(pub Arc<IsKnown>);

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Known")
    }
}

/// Cuts what a source gives into jobs.
#[derive(Debug)]
pub(super) struct Batches<R> {
    source: R,
    buffer: Buffer,
    shape: Shape,
    /// What the units of one job may take of all arguments, each with its end and the pointer to it.
    room: usize,
    ready: VecDeque<Job>,
    /// The job being gathered.
    open: Job,
    /// Its units so far, and what they take of all arguments.
    gathered: u64,
    size: usize,
    /// Units so far, blank ones included.
    units: u64,
    /// Whether a unit is passed in pieces.
    in_pieces: bool,
    skipped: u64,
    /// Units that are left out, and how many were so far.
    pub(super) known: Option<Known>,
    done_before: u64,
    /// What units cost, if that differs.
    pub(super) pricing: Option<Pricing>,
}

impl<R: Source> Batches<R> {
    pub(super) fn new(source: R, buffer: Buffer, shape: Shape, template: &Template) -> Self {
        let (room, ready) = (template.room_for_units(), VecDeque::with_capacity(AHEAD));
        let open = Job { seq: 1, keeps: shape.keep, ..Job::default() };
        let (gathered, size, units, in_pieces, skipped, known, done_before) = (0, 0, 0, false, 0, None, 0);
        let pricing = None;
        Batches {
            source,
            buffer,
            shape,
            room,
            ready,
            open,
            gathered,
            size,
            units,
            in_pieces,
            skipped,
            known,
            done_before,
            pricing,
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.ready.len() as u64
    }

    pub(super) fn next(&mut self) -> Option<Job> {
        self.ready.pop_front()
    }

    /// What the next job costs.
    pub(super) fn price(&self) -> Price {
        self.ready.front().map_or(Price::Usual, |job| job.price.clone())
    }

    /// The jobs that are ready.
    pub(super) fn read_ahead(&self) -> Passed {
        Passed { units: self.waiting(), bytes: self.ready.iter().map(|job| job.length).sum() }
    }

    /// The next job: one that is ready, or at least begun.
    pub(super) fn peek(&self) -> Option<&Job> {
        self.ready.front().or_else(|| self.has_begun().then_some(&self.open))
    }

    /// Blank units left out so far.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// What can be polled until more of them can be read.
    pub(super) fn source_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.fd()
    }

    /// Known units left out so far.
    pub(super) fn done_before(&self) -> u64 {
        self.done_before
    }

    pub(super) fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if self.cut()? { Ok(Filled::Some) } else { self.read(wait) }
    }

    /// Reads more input.
    pub(super) fn read(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if !self.may_cut() {
            return Ok(Filled::Nothing);
        }
        if self.buffer.is_finished() {
            return Ok(if self.close() { Filled::Some } else { Filled::End });
        }
        match self.source.read(self.buffer.space(), wait).map_err(FlowError::Read)? {
            None => return Ok(Filled::Nothing),
            Some(0) => self.buffer.input_ended(),
            Some(bytes) => self.buffer.filled(bytes),
        }
        Ok(Filled::Some)
    }

    /// Cuts what has been read, so that it can be seen how many jobs there are. Units for standard input are cut when they
    /// are needed: they may take a file each.
    pub(super) fn cut_ahead(&mut self) {
        if !self.shape.to_stdin && self.ready.len() < AHEAD / 2 {
            // An error comes again when the unit is needed.
            let _ = self.cut();
        }
    }

    /// Moves units from the buffer into jobs. Returns whether a job is ready.
    pub(super) fn cut(&mut self) -> Result<bool, FlowError> {
        let before = self.ready.len();
        while self.may_cut() {
            if self.buffer.outgrown() || (self.in_pieces && !self.buffer.is_finished() && self.holds_something()) {
                self.take_piece().map_err(FlowError::Hold)?;
            } else if self.buffer.waiting() > 0 {
                self.take_unit().map_err(FlowError::Hold)?;
            } else {
                break;
            }
        }
        Ok(self.ready.len() > before)
    }

    /// A job too large for memory is enough ahead: more would only take more disk, and a file each.
    fn may_cut(&self) -> bool {
        let memory: usize = self.ready.iter().map(Job::memory).sum();
        self.ready.len() < AHEAD && memory < MEMORY_AHEAD && !self.ready.back().is_some_and(Job::is_in_file)
    }

    fn holds_something(&self) -> bool {
        !self.buffer.piece().0.is_empty()
    }

    fn take_unit(&mut self) -> io::Result<()> {
        let (unit, delimiter) = (self.buffer.run(1), self.buffer.delimiter());
        let (text, length) = (trimmed(unit, delimiter), unit.len());
        let (size, is_blank) = (size_of_word(text.len()), text.is_empty() && self.shape.skip_blank);
        let is_known = !is_blank && self.known.as_ref().is_some_and(|known| known.0(text));
        let is_left_out = is_blank || is_known;
        if !is_left_out && !self.shape.to_stdin && self.size + size > self.room {
            self.close();
        }
        if is_left_out {
            self.skipped += u64::from(is_blank);
            self.done_before += u64::from(is_known);
        } else {
            let unit = self.buffer.run(1);
            let text = trimmed(unit, delimiter);
            self.open.names.push(self.units + 1, text);
            self.pricing.iter().for_each(|pricing| pricing.add(&mut self.open.price, Some(text)));
            self.size += size;
            if self.shape.to_stdin {
                self.open.input.get_or_insert_default().add(unit)?;
                self.open.keep(text);
            } else if text.len() > LONGEST_UNIT {
                self.open.too_long = true;
            } else if self.shape.max_args > 0 {
                self.open.units.push(text);
            } else {
                self.open.keep(text);
            }
        }
        self.buffer.release_run(1, length);
        self.count(length, true, !is_left_out);
        Ok(())
    }

    /// Takes a piece of a unit that outgrew the buffer. Standard input gets it; as an argument it is too long.
    fn take_piece(&mut self) -> io::Result<()> {
        let (piece, last) = self.buffer.piece();
        self.open.names.push(self.units + 1, piece);
        if self.shape.to_stdin {
            self.open.input.get_or_insert_default().add(piece)?;
            self.open.too_long_to_keep |= self.shape.keep;
        } else {
            self.open.too_long = true;
        }
        let length = piece.len();
        self.buffer.release_piece();
        self.in_pieces = !last;
        self.pricing.iter().filter(|_| last).for_each(|pricing| pricing.add(&mut self.open.price, None));
        self.count(length, last, last);
        Ok(())
    }

    /// Counts bytes that were taken, and whether they end a unit, and one of the open job.
    fn count(&mut self, bytes: usize, ends_unit: bool, is_gathered: bool) {
        self.open.length += bytes as u64;
        self.units += u64::from(ends_unit);
        self.gathered += u64::from(is_gathered);
        if self.gathered >= self.shape.max_args.max(1) {
            self.close();
        }
    }

    fn has_begun(&self) -> bool {
        self.open.names.last().is_some()
    }

    /// Makes the job being gathered ready. Returns whether there was one.
    fn close(&mut self) -> bool {
        (self.gathered, self.size, self.in_pieces) = (0, 0, false);
        let has_begun = self.has_begun();
        if has_begun {
            let next = Job { seq: self.open.seq + 1, keeps: self.shape.keep, ..Job::default() };
            self.open.read = Some(Instant::now());
            self.open.charged = self.pricing.as_ref().map_or(1, |pricing| pricing.charged(&self.open.price));
            self.ready.push_back(std::mem::replace(&mut self.open, next));
        }
        has_begun
    }
}

/// The numbers from 1 to N, as lines.
#[derive(Debug)]
pub struct Numbers(RangeInclusive<u64>);

impl Numbers {
    /// From 1 to `last`, or without end.
    #[must_use]
    pub fn to(last: Option<u64>) -> Self {
        Numbers(1..=last.unwrap_or(u64::MAX))
    }
}

impl Source for Numbers {
    fn read(&mut self, space: &mut [u8], _: bool) -> io::Result<Option<usize>> {
        let mut length = 0;
        while !self.0.is_empty() && length <= 4096 {
            let line = format!("{}\n", self.0.start());
            let Some(room) = space.get_mut(length..length + line.len()) else { break };
            room.copy_from_slice(line.as_bytes());
            length += line.len();
            self.0.next();
        }
        Ok(Some(length))
    }
}

#[cfg(test)]
mod tests;
