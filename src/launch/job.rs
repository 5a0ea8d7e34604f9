//! Input cut into jobs: one command's worth of units each.

use super::columns::Columns;
use super::identity::Identity;
use super::names::Names;
use super::spool::Spool;
use super::template::Template;
use super::units::{LONGEST_UNIT, Units, size_of_word};
use crate::flow::framing::{Buffer, trimmed};
use crate::flow::{Filled, FlowError, Look, Passed, Price, Source, read_into};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::num::NonZeroU32;
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

/// The key of a unit, which has limits of its own. `None`: the unit has no key, or limits hold for all units together.
pub type Key = Option<Arc<[u8]>>;

/// One command's worth of units.
#[derive(Debug, Default)]
pub struct Job {
    /// Counted from 1.
    pub seq: u64,
    /// Its units that are at hand: those that the command gets as arguments, or others that are kept ([`Shape::keep`]).
    pub units: Units,
    /// How its units became a job.
    pub shape: Shape,
    /// Its units, by number and beginning.
    pub names: Names,
    /// Whether a unit that was to be kept is not, as it outgrew the buffer or all of them take more than 4 MiB. It cannot
    /// be recorded.
    pub too_long_to_keep: bool,
    /// How many units it has while it is gathered, and what they take of all arguments.
    gathered: u64,
    size: usize,
    /// The units that go to its standard input.
    pub(super) input: Option<Spool>,
    /// Whether a unit is too long to be an argument.
    pub(super) too_long: bool,
    /// The bytes of input that it took, those of blank units before it included.
    pub(super) length: u64,
    /// Whether an earlier run has done a later unit, but not all of these: it has tried them, unless it was stopped then.
    pub(super) is_left_over: bool,
    /// When the last of its units was read.
    pub(super) read: Option<Instant>,
    /// What all of its units belong to, if limits are kept for each key; `None`: they have no key.
    pub key: Key,
    /// What it costs limits of each kind.
    pub costs: Box<[u64]>,
    /// What the log calls that: the part of the first limit with a cost of its own.
    pub charged: u64,
    /// Why it cannot be run: its key or a cost cannot be read, or a limit never grants it.
    unreadable: Option<String>,
}

impl Job {
    /// The beginning of its first unit.
    pub fn name(&self) -> &[u8] {
        self.names.iter().next().map_or(&[], |(_, name)| name)
    }

    /// Whether no unit was too long to be held.
    pub fn is_whole(&self) -> bool {
        !self.too_long && !self.too_long_to_keep
    }

    /// The identity of all its units together, if they are kept.
    pub(super) fn identity(&self) -> Option<Identity> {
        (self.shape.keep && self.is_whole()).then(|| Identity::of_all(self.units.iter()))
    }

    /// Drops the units unless they are kept, but for the first if that is named in full later.
    pub(super) fn forget_units(&mut self, but_the_first: bool) {
        if !self.shape.keep {
            self.units = self.units.first().filter(|_| but_the_first).into_iter().collect();
        }
    }

    fn keep(&mut self, unit: &[u8]) {
        if self.shape.keep && self.units.memory() + unit.len() <= MOST_KEPT {
            self.units.push(unit);
        } else {
            self.too_long_to_keep |= self.shape.keep;
        }
    }

    /// Adds the costs of a unit. Limits without a cost of their own count jobs.
    fn add_costs(&mut self, look: &Look, costs: &[u64]) {
        for ((sum, cost), of_unit) in self.costs.iter_mut().zip(&look.costs).zip(costs) {
            *sum = sum.saturating_add(if cost.is_some() { *of_unit } else { 0 });
        }
    }

    /// What it costs each limit.
    pub(super) fn price(&self) -> Price {
        if self.unreadable.is_some() { Price::Unknown } else { Price::Costs(self.costs.clone()) }
    }

    /// Why it cannot be run, if that is known beforehand.
    pub fn refused(&self) -> Option<Outcome> {
        match self {
            Job { unreadable: Some(why), .. } => Some(Outcome::Unreadable(why.clone())),
            Job { too_long: true, .. } => Some(Outcome::TooLong),
            _ => (self.shape.gives_arguments() && self.units.has_nul()).then_some(Outcome::HasNul),
        }
    }

    /// Whether its input takes an open file.
    pub(super) fn is_in_file(&self) -> bool {
        self.input.as_ref().is_some_and(|input| input.in_memory().is_none())
    }

    pub(super) fn memory(&self) -> usize {
        let input = self.input.as_ref().and_then(Spool::in_memory).map_or(0, <[u8]>::len);
        let key = self.key.as_ref().map_or(0, |key| key.len());
        self.units.memory() + self.names.memory() + input + key
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
    /// Its key or a cost cannot be read, or a limit never grants it: why.
    Unreadable(String),
    /// Its cost is more than a window of a bucket that was set lets through.
    TooCostly,
    /// A server asked to wait for too long, and no unit of its key is tried any more.
    SentAway,
    /// So many commands of its key failed in a row, and no unit of the key is tried any more.
    KeyFailed(NonZeroU32),
    /// Its standard input could not be held until it started.
    InputLost(io::Error),
    /// It ran, but its output could not be held or passed on.
    OutputLost(io::Error),
}

/// How units become jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Units for each command; 0 is 1 unit that the command does not get.
    pub max_args: u64,
    /// Whether they go to its standard input, with their delimiters.
    pub to_stdin: bool,
    /// Whether blank units are left out.
    pub skip_blank: bool,
    /// Whether a job keeps the bytes of its units until it has ended.
    pub keep: bool,
}

impl Shape {
    /// Whether commands get their units as arguments.
    pub fn gives_arguments(self) -> bool {
        !self.to_stdin && self.max_args > 0
    }
}

/// Why a unit is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// An earlier run has done it.
    Done,
    /// This run has an equal one.
    Taken,
}

/// Says which units are left out.
pub type Known = Arc<dyn Fn(&[u8]) -> Option<Before> + Send + Sync>;

/// Cuts what a source gives into jobs.
pub struct Batches<R> {
    source: R,
    buffer: Buffer,
    shape: Shape,
    /// The columns that commands have.
    columns: Option<Columns>,
    look: Look,
    /// The costs of one unit.
    costs: Vec<u64>,
    /// What the units of one job may take of all arguments, each with its end and the pointer to it.
    room: usize,
    ready: VecDeque<Job>,
    /// By key.
    open: BTreeMap<Key, Job>,
    /// The number of the latest job.
    seq: u64,
    /// Bytes of units that were left out, and are counted with the next job.
    left_out: u64,
    /// Units so far, blank ones included.
    units: u64,
    /// Whether a unit is passed in pieces.
    in_pieces: bool,
    /// The bytes of its pieces so far.
    pieces: u64,
    skipped: u64,
    /// Units that are left out, and how many were so far.
    known: Option<Known>,
    done_before: u64,
    /// The latest job before a unit that an earlier run has done.
    left_over: u64,
}

impl<R: Source> Batches<R> {
    /// Jobs for what `source` gives, framed by `buffer`, without the units that are `known`. Limits want to know this of units:
    /// those of one job belong to one key, and their costs add up.
    pub fn new(source: R, buffer: Buffer, shape: Shape, template: &Template, known: Option<Known>, look: Look) -> Self {
        Batches {
            source,
            buffer,
            shape,
            columns: template.columns().cloned(),
            look,
            costs: Vec::new(),
            room: template.room_for_units(),
            ready: VecDeque::with_capacity(AHEAD),
            open: BTreeMap::new(),
            seq: 0,
            left_out: 0,
            units: 0,
            in_pieces: false,
            pieces: 0,
            skipped: 0,
            known,
            done_before: 0,
            left_over: 0,
        }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.ready.len() as u64
    }

    pub(super) fn next(&mut self) -> Option<Job> {
        let job = self.ready.pop_front()?;
        Some(Job { is_left_over: job.seq <= self.left_over, ..job })
    }

    /// What the next job costs.
    pub(super) fn price(&self) -> Price {
        let front = self.ready.front().filter(|_| self.has_prices());
        front.map_or(Price::Usual, Job::price)
    }

    /// Whether each job has a price of its own.
    pub(super) fn has_prices(&self) -> bool {
        !self.look.costs.is_empty()
    }

    /// The jobs that are ready.
    pub(super) fn read_ahead(&self) -> Passed {
        Passed { units: self.waiting(), bytes: self.ready.iter().map(|job| job.length).sum() }
    }

    /// The next job: one that is ready, or at least begun.
    pub(super) fn peek(&self) -> Option<&Job> {
        let begun = || self.open.values().min_by_key(|job| job.seq);
        self.ready.front().or_else(begun)
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// What can be polled until more of them can be read.
    pub(super) fn source_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.fd()
    }

    /// Known units left out so far. One that outgrows the buffer never is.
    pub fn done_before(&self) -> u64 {
        self.done_before
    }

    /// Whether all of the input is read.
    pub(super) fn has_all(&self) -> bool {
        self.buffer.is_finished()
    }

    pub(super) fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        if self.cut()? { Ok(Filled::Some) } else { self.read(wait, 0) }
    }

    /// Reads more input. A long unit waits while jobs that were taken out hold `taken` bytes of its memory.
    pub(super) fn read(&mut self, wait: bool, taken: usize) -> Result<Filled, FlowError> {
        if !self.may_cut() {
            return Ok(Filled::Nothing);
        }
        if self.buffer.is_finished() {
            return Ok(if self.close_all() { Filled::Some } else { Filled::End });
        }
        if !self.buffer.wants_more(taken) {
            return Ok(Filled::Nothing);
        }
        read_into(&mut self.buffer, &mut self.source, wait)
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
            if self.buffer.outgrown() || (self.in_pieces && self.buffer.units() > 0) {
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

    fn take_unit(&mut self) -> io::Result<()> {
        let (unit, delimiter) = (self.buffer.run(1), self.buffer.delimiter());
        let (text, length) = (trimmed(unit, delimiter), unit.len());
        let (size, is_blank) = (size_of_word(text.len()), text.is_empty() && self.shape.skip_blank);
        let known = self.known.as_ref().filter(|_| !is_blank).and_then(|known| known(text));
        if is_blank || known.is_some() {
            self.skipped += u64::from(is_blank);
            self.done_before += u64::from(known.is_some());
            if known == Some(Before::Done) {
                self.left_over = self.seq;
            }
            self.left_out += length as u64;
            self.units += 1;
        } else {
            let key: Key = self.look.key(text).map(|key| key.as_ref().into());
            if !self.shape.to_stdin && self.open.get(&key).is_some_and(|job| job.size + size > self.room) {
                self.close(&key);
            }
            let (number, shape) = (self.units + 1, self.shape);
            self.open(&key);
            let (Some(job), unit) = (self.open.get_mut(&key), self.buffer.run(1)) else { return Ok(()) };
            let text = trimmed(unit, delimiter);
            job.names.push(number, text);
            if shape.to_stdin {
                job.input.get_or_insert_default().write_all(unit)?;
                job.keep(text);
            } else if text.len() > LONGEST_UNIT {
                job.too_long = true;
            } else if job.shape.gives_arguments() {
                job.units.push(text);
            } else {
                job.keep(text);
            }
            job.size += size;
            match self.look.costs(text, &mut self.costs) {
                Ok(()) => job.add_costs(&self.look, &self.costs),
                Err(why) => drop(job.unreadable.get_or_insert(why)),
            }
            if let Some(why) = self.columns.as_ref().and_then(|columns| columns.lacking(text)) {
                job.unreadable.get_or_insert(why);
            }
            self.count(&key, length, true);
        }
        self.buffer.release_run(1, length);
        Ok(())
    }

    /// Takes a piece of a unit that outgrew the buffer. Standard input gets it; as an argument it is too long.
    fn take_piece(&mut self) -> io::Result<()> {
        let number = self.units + 1;
        self.open(&None);
        let (piece, last) = self.buffer.piece();
        let (Some(job), length) = (self.open.get_mut(&None), piece.len()) else { return Ok(()) };
        job.names.push(number, piece);
        if self.shape.to_stdin {
            job.unreadable = job.unreadable.take().or_else(|| self.look.too_large());
            job.too_long_to_keep |= self.shape.keep;
        } else {
            job.too_long = true;
        }
        if self.shape.to_stdin && job.unreadable.is_none() {
            job.input.get_or_insert_default().write_all(piece)?;
        }
        self.pieces += trimmed(piece, self.buffer.delimiter()).len() as u64;
        self.buffer.release_piece();
        self.in_pieces = true;
        if last {
            self.end_pieces();
        }
        self.count(&None, length, last);
        Ok(())
    }

    /// All of a unit was taken that is passed in pieces, if one is: now it is known what it costs.
    fn end_pieces(&mut self) {
        let (was_in_pieces, bytes) = (std::mem::take(&mut self.in_pieces), std::mem::take(&mut self.pieces));
        let job = self.open.get_mut(&None).filter(|job| was_in_pieces && !job.too_long);
        if let (Some(job), Some(costs)) = (job, self.look.costs_of_length(bytes)) {
            job.add_costs(&self.look, &costs);
        }
    }

    /// Begins a job of this key, unless one is being gathered.
    fn open(&mut self, key: &Key) {
        if !self.open.contains_key(key) {
            self.seq += 1;
            let costs = self.look.costs.iter().map(|cost| u64::from(cost.is_none())).collect();
            let job = Job { seq: self.seq, shape: self.shape, key: key.clone(), costs, ..Job::default() };
            self.open.insert(key.clone(), job);
        }
    }

    /// Counts bytes that the job of this key took, and whether they end a unit.
    fn count(&mut self, key: &Key, bytes: usize, ends_unit: bool) {
        self.units += u64::from(ends_unit);
        let Some(job) = self.open.get_mut(key) else { return };
        job.length += bytes as u64;
        job.gathered += u64::from(ends_unit);
        if job.gathered >= self.shape.max_args.max(1) {
            self.close(key);
        }
    }

    /// Makes the job of this key ready, if one is being gathered.
    fn close(&mut self, key: &Key) {
        if let Some(mut job) = self.open.remove(key) {
            job.length += std::mem::take(&mut self.left_out);
            job.read = Some(Instant::now());
            job.charged = self.look.charged(&job.costs);
            job.unreadable = job.unreadable.or_else(|| self.look.too_much(&job.costs));
            self.ready.push_back(job);
        }
    }

    /// Makes all jobs ready that are being gathered, the oldest first. Returns whether there was one.
    pub(super) fn close_all(&mut self) -> bool {
        self.end_pieces();
        let mut open: Vec<_> = self.open.values().map(|job| (job.seq, job.key.clone())).collect();
        open.sort_unstable();
        for (_, key) in &open {
            self.close(key);
        }
        !open.is_empty()
    }
}

/// The numbers from 1 to N, as lines.
#[derive(Debug)]
pub struct Numbers(RangeInclusive<u64>);

impl Numbers {
    /// From 1 to `last`, or without end.
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

/// One unit that is like no other in any run: a random line.
#[derive(Debug, Default)]
pub struct One {
    has_ended: bool,
}

impl Source for One {
    fn read(&mut self, space: &mut [u8], _: bool) -> io::Result<Option<usize>> {
        let line = format!("{:032x}\n", fastrand::u128(..));
        match space.get_mut(..line.len()).filter(|_| !self.has_ended) {
            Some(room) => room.copy_from_slice(line.as_bytes()),
            None => return Ok(Some(0)),
        }
        self.has_ended = true;
        Ok(Some(line.len()))
    }
}

#[cfg(test)]
mod tests;
