//! Cuts the input into jobs. A job has the units of one command.

use super::columns::Columns;
use super::identity::Identity;
use super::names::Names;
use super::spool::Spool;
use super::template::Template;
use super::units::{LONGEST_UNIT, Units, size_of_word};
use crate::flow::framing::{Buffer, trimmed};
use crate::flow::{FlowError, Look, Passed, Source, read_into};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use throttle_limits::line::Costs;

/// The most jobs that wait for their launch.
const MAX_READY_JOBS: usize = 64;

/// The memory in bytes of the jobs that wait for their launch, at which no more jobs are cut.
const MAX_READY_BYTES: usize = 128 * 1024;

/// The most bytes of one job's units that are stored for [`Shape::keep`]. Arguments take less.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The key of a unit, which has limits of its own. `None`: the unit has no key, or limits hold for all units together.
pub type Key = Option<Arc<[u8]>>;

/// The units of one command.
#[derive(Debug, Default)]
pub struct Job {
    /// The number of the job, from 1.
    pub seq: u64,
    /// Its units that are in memory: the command's arguments, or other stored units ([`Shape::keep`]).
    pub units: Units,
    /// How its units became a job.
    pub shape: Shape,
    /// The numbers and first bytes of its units.
    pub names: Names,
    /// Whether [`Shape::keep`] is set but a unit is not stored: it outgrew the buffer, or the units take more than 4
    /// MiB. The job then cannot be recorded.
    pub too_long_to_keep: bool,
    /// The number of units gathered for the job until now. With [`Shape::max_args`] 0 it is one unit.
    gathered: u64,
    /// The size of these units as arguments, in bytes.
    size: usize,
    /// The units for its standard input.
    pub(super) input: Option<Spool>,
    /// Whether a unit is too long to be an argument.
    pub(super) too_long: bool,
    /// The bytes of input that the job took, including blank units before it.
    pub(super) length: u64,
    /// Whether an earlier run has probably tried this job without success: that run has done a later unit, but not
    /// every unit of this job.
    pub(super) is_left_over: bool,
    /// When the last of its units was read.
    pub(super) read: Option<Instant>,
    /// The key of all its units, if limits are kept per key; `None`: they have no key.
    pub key: Key,
    /// The job's cost for each kind of limit.
    pub costs: Box<[u64]>,
    /// The cost in the log: the cost for the first limit that has a cost of its own.
    pub charged: u64,
    /// Why the job cannot run: its key or a cost cannot be read, or a limit never grants it.
    unreadable: Option<String>,
}

impl Job {
    /// The first bytes of its first unit.
    pub fn name(&self) -> &[u8] {
        self.names.iter().next().map_or(&[], |(_, name)| name)
    }

    /// The number of its units; a command without units of the input counts as one.
    pub fn unit_count(&self) -> u64 {
        self.gathered.max(1)
    }

    /// Sets the number of its units, for tests.
    #[doc(hidden)]
    pub fn set_unit_count(&mut self, units: u64) {
        self.gathered = units;
    }

    /// Whether every unit was short enough to be stored.
    pub fn is_whole(&self) -> bool {
        !self.too_long && !self.too_long_to_keep
    }

    /// The identity of all its units together, if they are stored.
    pub(super) fn identity(&self) -> Option<Identity> {
        (self.shape.keep && self.is_whole()).then(|| Identity::of_all(self.units.iter()))
    }

    /// Drops the units unless [`Shape::keep`] is set. With `but_the_first`, keeps the first unit.
    pub(super) fn forget_units(&mut self, but_the_first: bool) {
        if !self.shape.keep {
            self.units = self.units.first().filter(|_| but_the_first).into_iter().collect();
        }
    }

    fn keep(&mut self, unit: &[u8]) {
        if self.shape.keep && self.units.memory() + unit.len() <= MAX_KEPT_BYTES {
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

    /// The job's cost for each limit; one cost for all if each limit counts jobs. A job that cannot be read costs nothing.
    pub(super) fn costs(&self) -> Costs {
        match &self.costs[..] {
            _ if self.unreadable.is_some() => [0].into(),
            [] => [1].into(),
            costs => costs.into(),
        }
    }

    /// Why the job cannot run, if that is known before its start.
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
    /// It exited with 0.
    Ok,
    /// It exited with another code.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It was ended because it took too long.
    TimedOut,
    /// It was stopped because it wanted the terminal, and was then ended.
    WantedTerminal,
    /// There is no such command.
    NotFound(io::Error),
    /// It could not be started.
    CannotRun(io::Error),
    /// A unit is too long to be an argument.
    TooLong,
    /// A unit has a NUL byte, which no argument can hold.
    HasNul,
    /// Its key or a cost cannot be read, or a limit never grants it; the text is the reason.
    Unreadable(String),
    /// Its cost is above the most that a window of a bucket allows, after the bucket was set.
    TooCostly,
    /// A server requested a longer pause than allowed, so the command's key was abandoned.
    SentAway,
    /// This many consecutive commands of its key failed, so the key was abandoned.
    KeyFailed(NonZeroU32),
    /// Its standard input could not be stored until the start.
    InputLost(io::Error),
    /// It ran, but its output could not be stored or passed on.
    OutputLost(io::Error),
}

/// How units become jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Units for each command; 0: one unit, which the command does not get.
    pub max_args: u64,
    /// Whether commands get the units on standard input, with their delimiters.
    pub to_stdin: bool,
    /// Whether blank units are skipped.
    pub skip_blank: bool,
    /// Whether a job stores the bytes of its units until its end.
    pub keep: bool,
}

impl Shape {
    /// Whether commands get their units as arguments.
    pub fn gives_arguments(self) -> bool {
        !self.to_stdin && self.max_args > 0
    }
}

/// Why a unit is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// An earlier run has done it.
    Done,
    /// An equal unit came earlier in this run.
    Taken,
}

/// Returns why a unit is skipped, if it is.
pub type Known = Arc<dyn Fn(&[u8]) -> Option<Before> + Send + Sync>;

/// Cuts the input of a source into jobs.
pub struct Batches<R> {
    source: R,
    buffer: Buffer,
    shape: Shape,
    /// The columns that the command uses.
    columns: Option<Columns>,
    look: Look,
    /// The costs of one unit.
    costs: Vec<u64>,
    /// The most bytes that the units of one job may take as arguments, each with its NUL and its pointer.
    room: usize,
    ready: VecDeque<Job>,
    /// The jobs that are being gathered, by key.
    open: BTreeMap<Key, Job>,
    /// The number of the latest job.
    seq: u64,
    /// The bytes of skipped units, which are counted with the next job.
    left_out: u64,
    /// The number of units read, including blank units.
    units: u64,
    /// While a unit is passed in pieces: the bytes of its pieces that were read.
    in_pieces: Option<u64>,
    skipped: u64,
    /// Finds units to skip.
    known: Option<Known>,
    /// The number of units skipped because of `known`.
    done_before: u64,
    /// The number of the latest job that was begun before a unit that an earlier run has done.
    left_over: u64,
}

impl<R: Source> Batches<R> {
    /// Makes jobs from the input of `source`, framed by `buffer`. Skips units that are `known`. `look` finds keys and
    /// costs: the units of a job have one key, and their costs add up.
    pub fn new(source: R, buffer: Buffer, shape: Shape, template: &Template, known: Option<Known>, look: Look) -> Self {
        Batches {
            source,
            buffer,
            shape,
            columns: template.columns().cloned(),
            look,
            costs: Vec::new(),
            room: template.room_for_units(),
            ready: VecDeque::with_capacity(MAX_READY_JOBS),
            open: BTreeMap::new(),
            seq: 0,
            left_out: 0,
            units: 0,
            in_pieces: None,
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

    /// The jobs that are ready, and their bytes in the input.
    pub(super) fn read_ahead(&self) -> Passed {
        Passed { units: self.waiting(), bytes: self.ready.iter().map(|job| job.length).sum() }
    }

    /// The next job: the first job that is ready, or else the first job that was begun.
    pub(super) fn peek(&self) -> Option<&Job> {
        let begun = || self.open.values().min_by_key(|job| job.seq);
        self.ready.front().or_else(begun)
    }

    /// The number of skipped blank units.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A descriptor to poll for more input.
    pub(super) fn source_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.fd()
    }

    /// The number of skipped known units. A unit that outgrows the buffer is never skipped.
    pub fn done_before(&self) -> u64 {
        self.done_before
    }

    /// Whether all input was read.
    pub(super) fn has_all(&self) -> bool {
        self.buffer.is_finished()
    }

    /// Whether all input was read, and every job was taken out.
    pub(super) fn is_over(&self) -> bool {
        self.buffer.is_finished() && self.open.is_empty() && self.ready.is_empty()
    }

    /// Cuts what was read, or else reads more. Returns whether there was anything. Jobs that were taken out still hold
    /// `taken` bytes of memory. A long unit is not read while they leave too little memory for it.
    pub(super) fn fill(&mut self, wait: bool, taken: usize) -> Result<bool, FlowError> {
        if self.cut()? {
            return Ok(true);
        }
        if !self.wants_more(taken) {
            return Ok(false);
        }
        if self.buffer.is_finished() {
            Ok(self.close_all())
        } else {
            read_into(&mut self.buffer, &mut self.source, wait)
        }
    }

    /// Cuts the input that was read, so that the number of jobs is known. Units for standard input are cut only when
    /// they are needed, because each may need a temporary file.
    pub(super) fn cut_ahead(&mut self) {
        if !self.shape.to_stdin && self.ready.len() < MAX_READY_JOBS / 2 {
            // The error occurs again when the unit is needed.
            let _ = self.cut();
        }
    }

    /// Moves units from the buffer into jobs. Returns whether a job is ready.
    pub(super) fn cut(&mut self) -> Result<bool, FlowError> {
        let before = self.ready.len();
        while self.has_uncut() {
            if self.is_piece_next() {
                self.take_piece().map_err(FlowError::Hold)?;
            } else {
                self.take_unit().map_err(FlowError::Hold)?;
            }
        }
        Ok(self.ready.len() > before)
    }

    /// Whether more input would be read, if it is there, or the last jobs are still gathered. Jobs that were taken out
    /// still hold `taken` bytes of memory.
    pub(super) fn wants_more(&self, taken: usize) -> bool {
        let is_gathering = self.buffer.is_finished() && !self.open.is_empty();
        self.may_cut() && (is_gathering || self.buffer.wants_more(taken))
    }

    /// Whether input was read that can be cut now.
    pub(super) fn has_uncut(&self) -> bool {
        self.may_cut() && (self.is_piece_next() || self.buffer.waiting() > 0)
    }

    fn is_piece_next(&self) -> bool {
        self.buffer.outgrown() || (self.in_pieces.is_some() && self.buffer.units() > 0)
    }

    /// Whether to cut more jobs. After a job whose input is in a file, no more jobs are cut: each would only take more
    /// disk and another open file.
    fn may_cut(&self) -> bool {
        let memory: usize = self.ready.iter().map(Job::memory).sum();
        self.ready.len() < MAX_READY_JOBS && memory < MAX_READY_BYTES && !self.ready.back().is_some_and(Job::is_in_file)
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

    /// Takes a piece of a unit that outgrew the buffer. The piece goes to the command's standard input; as an argument
    /// the unit is too long.
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
        *self.in_pieces.get_or_insert(0) += trimmed(piece, self.buffer.delimiter()).len() as u64;
        self.buffer.release_piece();
        if last {
            self.end_pieces();
        }
        self.count(&None, length, last);
        Ok(())
    }

    /// Ends a unit that was passed in pieces, if there is one, and adds its costs.
    fn end_pieces(&mut self) {
        let costs = self.in_pieces.take().and_then(|bytes| self.look.costs_of_length(bytes));
        if let (Some(job), Some(costs)) = (self.open.get_mut(&None).filter(|job| !job.too_long), costs) {
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

    /// Adds these bytes to the job of this key. With `ends_unit`, the bytes end a unit, which is counted.
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

    /// Makes all gathered jobs ready, the oldest first. Returns whether there was one.
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

/// A source of the numbers from 1 to N, as lines.
#[derive(Debug)]
pub struct Numbers(RangeInclusive<u64>);

impl Numbers {
    /// The numbers from 1 to `last`, or without end.
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
