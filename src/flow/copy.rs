//! Copies units through a buffer, between any two descriptors.

use super::contract::{Flow, Passed, State};
use super::error::FlowError;
use super::grants::Grants;
use super::look::Look;
use super::next::{Granted, Refusal};
use super::poll::{is_ready, wait_for, wait_for_reader};
use crate::flow::framing::{Buffer, trimmed};
use crate::flow::meter::Meter;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use throttle_limits::line::Unit;

/// The most bytes of a unit in an error that names it.
const MAX_NAME_BYTES: usize = 400;

/// A pipe accepts a write of at most this many bytes either whole or not at all (`PIPE_BUF`, pipe(7)).
const PIPE_BUF: usize = 4096;

/// A source of bytes.
pub trait Source {
    /// Reads into `space`, which is not empty. Returns `None` if nothing is available and `wait` is false, and 0 at the
    /// end of the input.
    ///
    /// # Errors
    /// Reading failed.
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>>;

    /// A descriptor to poll for input; `None` if reading never waits.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        (**self).read(space, wait)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
}

/// Bytes in memory.
impl Source for io::Cursor<Vec<u8>> {
    fn read(&mut self, space: &mut [u8], _: bool) -> io::Result<Option<usize>> {
        io::Read::read(self, space).map(Some)
    }
}

/// A sink of bytes.
pub trait Sink {
    /// Waits until something can be written. Returns whether it had to wait.
    ///
    /// # Errors
    /// `BrokenPipe` if the reader of the output is gone.
    fn ready(&mut self) -> io::Result<bool>;

    /// Waits until the sink accepts some of `bytes` (not empty), writes them, and returns their number.
    ///
    /// # Errors
    /// Writing failed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes some of `bytes` (not empty) without waiting for the reader, and returns their number. `None`: the sink
    /// accepts nothing now.
    ///
    /// # Errors
    /// Writing failed.
    fn write_at_once(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.write(bytes).map(Some)
    }

    /// A descriptor to poll for the departure of the reader; `None` if the sink has no descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Waits until this sink accepts units. After a wait, grants have no time before its end.
pub(super) fn room_of<T: Send>(sink: &mut impl Sink, grants: &Grants<T>) -> Result<u64, FlowError> {
    if sink.ready().map_err(FlowError::Write)? {
        grants.line().ready_since(grants.now());
    }
    Ok(u64::MAX)
}

/// Writes `bytes` completely. On an error, `written` has the number of bytes that were written.
pub(super) fn write_all(sink: &mut impl Sink, bytes: &[u8], written: &mut usize) -> Result<(), FlowError> {
    while *written < bytes.len() {
        match sink.write(&bytes[*written..]).map_err(FlowError::Write)? {
            0 => return Err(FlowError::Write(io::ErrorKind::WriteZero.into())),
            more => *written += more,
        }
    }
    Ok(())
}

/// Reads into `buffer`, and records the end of the input there. Returns whether something was read, or the end.
pub(crate) fn read_into(buffer: &mut Buffer, source: &mut impl Source, wait: bool) -> Result<bool, FlowError> {
    buffer.make_room().map_err(FlowError::Hold)?;
    match source.read(buffer.space(), wait).map_err(FlowError::Read)? {
        None => return Ok(false),
        Some(0) => buffer.input_ended(),
        Some(bytes) => buffer.filled(bytes),
    }
    Ok(true)
}

/// The error for a unit, with its number in the input.
pub(super) fn refused(unit: &[u8], number: u64, why: String) -> FlowError {
    FlowError::Refused(number, unit[..unit.len().min(MAX_NAME_BYTES)].into(), why)
}

/// A flow that copies units through a buffer.
#[derive(Debug)]
pub struct Copying<'a, R, W> {
    source: R,
    sink: W,
    buffer: Buffer,
    meter: &'a Meter,
    /// Finds the costs of a unit. If limits count costs, units leave one by one.
    look: Look,
    /// The number of units that have left.
    passed: u64,
    /// The number of units in the buffer for which a grant was requested.
    asked: u64,
}

/// A unit with costs of its own. Its bytes are at the beginning of the buffer of [`Copying`].
#[derive(Clone, Copy, Debug)]
pub struct First {
    /// Whether the costs are those of the part that was read: the end of the unit was not read yet.
    is_part: bool,
}

impl<'a, R: Source, W: Sink> Copying<'a, R, W> {
    /// Copies units from `source` to `sink`; `buffer` frames them. Charges each unit the costs that `look` finds.
    pub fn new(source: R, sink: W, buffer: Buffer, look: Look, meter: &'a Meter) -> Self {
        Copying { source, sink, buffer, meter, look, passed: 0, asked: 0 }
    }

    /// Passes a unit that is larger than the buffer, piece by piece up to its end, with nothing in between. Returns its
    /// length without its delimiter.
    fn pass_outgrown(&mut self, passed: &mut Passed) -> Result<u64, FlowError> {
        let mut length = 0;
        loop {
            let (piece, last) = self.buffer.piece();
            let mut written = 0;
            let result = write_all(&mut self.sink, piece, &mut written);
            self.meter.passed_piece(written as u64);
            result?;
            length += trimmed(piece, self.buffer.delimiter()).len() as u64;
            self.buffer.release_piece();
            if !last {
                read_into(&mut self.buffer, &mut self.source, true)?;
            }
            if last || self.buffer.is_finished() {
                passed.units += 1;
                return Ok(length);
            }
        }
    }

    /// The number of units that leave together with the first unit of the buffer, not counting that unit.
    fn count_joining(&self, grants: &Grants<First>) -> u64 {
        let (Copying { buffer, look, .. }, mut costs) = (self, Vec::new());
        let delimiter = buffer.delimiter();
        let ends = |byte: &u8| Some(*byte) == delimiter;
        let units = buffer.run(buffer.waiting()).split_inclusive(ends).skip(1);
        let joins = |unit: &&[u8]| look.costs(trimmed(unit, delimiter), &mut costs).is_ok() && grants.passes(&costs);
        units.take_while(joins).count() as u64
    }

    /// The number of units that were read and have not left. A unit that does not fit into the buffer counts as one.
    fn waiting(&self) -> u64 {
        if self.buffer.outgrown() { 1 } else { self.buffer.waiting() }
    }

    /// Passes on units from the beginning of the buffer.
    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        self.passed += units;
        self.asked = self.asked.saturating_sub(units);
        if self.buffer.outgrown() {
            return self.pass_outgrown(passed).map(drop);
        }
        let mut written = 0;
        let result = write_all(&mut self.sink, self.buffer.run(units), &mut written);
        let units = if result.is_ok() { units } else { self.buffer.units_within(written) };
        self.buffer.release_run(units, written);
        passed.units += units;
        passed.bytes += written as u64;
        result
    }

    /// Requests grants for the plain units that were read.
    fn request(&mut self, grants: &Grants<First>) {
        let waiting = self.waiting();
        if self.look.costs.is_empty() && waiting > self.asked {
            grants.want(waiting - self.asked);
            self.asked = waiting;
        }
    }

    /// The error for the first unit of the buffer.
    fn refused(&self, why: &Refusal) -> FlowError {
        refused(self.buffer.beginning(), self.passed + 1, self.look.why(self.buffer.first(), why))
    }
}

impl<R: Source, W: Sink> Flow for Copying<'_, R, W> {
    type Unit = First;

    /// Waits for input if no unit waits. Reads more if fewer units wait than are worth a wake-up, and the limits will soon
    /// require a wait. Then one long run leaves, not a short run before the wait and another run after it.
    fn fill(&mut self, grants: &Grants<First>) -> Result<(), FlowError> {
        while self.buffer.wants_more(0) {
            let waiting = self.waiting();
            if waiting > 0 && !(self.look.costs.is_empty() && grants.wants_more()) {
                break;
            }
            if !read_into(&mut self.buffer, &mut self.source, waiting == 0)? {
                break;
            }
            self.request(grants);
        }
        Ok(())
    }

    fn has_new(&self, _: &Grants<First>) -> bool {
        self.waiting() > 0
    }

    fn room(&mut self, grants: &Grants<First>) -> Result<u64, FlowError> {
        room_of(&mut self.sink, grants)
    }

    fn ask(&mut self, grants: &Grants<First>) -> Result<(), FlowError> {
        self.request(grants);
        if self.look.costs.is_empty() || self.asked > 0 || self.waiting() == 0 {
            return Ok(());
        }
        let (costs, is_part) = match self.buffer.first() {
            Some(unit) => (self.look.costs_of(unit), false),
            None => (self.look.costs_of_length(self.buffer.piece().0.len() as u64), true),
        };
        let Some(costs) = costs else { return Err(self.refused(&Refusal::Unread)) };
        self.asked = 1;
        let (costs, arrived, content) = (costs[..].into(), grants.now(), First { is_part });
        grants.ask(None, Unit { age: 0, costs, size: 0, arrived, settles: is_part, content }, 0);
        Ok(())
    }

    fn run(&mut self, _: &Grants<First>, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        self.pass(units, passed)
    }

    fn go(
        &mut self,
        grants: &Grants<First>,
        granted: Granted,
        unit: First,
        passed: &mut Passed,
    ) -> Result<(), FlowError> {
        if !unit.is_part {
            let units = 1 + self.count_joining(grants);
            let result = self.pass(units, passed);
            grants.unit_has_left(&granted);
            return result;
        }
        self.passed += 1;
        self.asked = 0;
        let length = self.pass_outgrown(passed);
        grants.unit_has_left(&granted);
        grants.settle(&granted, &self.look.settled_by_length(length?));
        Ok(())
    }

    fn refuse(&mut self, _: &Grants<First>, _: First, why: Refusal, _: &mut Passed) -> Result<(), FlowError> {
        Err(self.refused(&why))
    }

    fn is_over(&mut self, _: &Grants<First>) -> Result<bool, FlowError> {
        Ok(self.buffer.is_finished() && self.waiting() == 0)
    }

    fn state(&self, _: &Grants<First>) -> State {
        let bytes = self.buffer.run(self.buffer.waiting()).len() as u64;
        State { ahead: Passed { units: self.buffer.units(), bytes }, ..State::default() }
    }
}

/// A file descriptor as a source or a sink. Waits with poll if the descriptor is in non-blocking mode.
#[derive(Debug)]
pub struct Descriptor<F>(pub F);

impl<F: AsFd> Source for Descriptor<F> {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        loop {
            if !wait && !is_ready(&self.0, PollFlags::IN)? {
                return Ok(None);
            }
            match rustix::io::read(&self.0, &mut *space) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(&self.0, PollFlags::IN)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

impl<F: AsFd> Sink for Descriptor<F> {
    fn ready(&mut self) -> io::Result<bool> {
        wait_for_reader(&self.0)
    }

    fn write_at_once(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        // A pipe that poll(2) reports as writable accepts a whole page.
        let page = &bytes[..bytes.len().min(PIPE_BUF)];
        if is_ready(&self.0, PollFlags::OUT)? { self.write(page).map(Some) } else { Ok(None) }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.0, bytes) {
                Ok(written) => return Ok(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(&self.0, PollFlags::OUT)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
