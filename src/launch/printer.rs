//! Writes to our own standard output and error, in the order asked for. Only [`output`](super::output) uses it.

use super::spool::Spool;
use super::temporary::Temporary;
use crate::flow::{Descriptor, Sink, write_at_once};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};

/// Results that wait for their turn: beyond this launching waits.
const MOST_HELD: usize = 10_000;
const MOST_HELD_BYTES: u64 = 1 << 30;

/// Least number of bytes of the file that is given back at once.
const FREED_AT_ONCE: u64 = 1 << 20;

/// All that one command wrote.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) out: Spool,
    pub(super) err: Spool,
}

impl Collected {
    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.err.is_empty()
    }
}

/// Writes results in the order of finishing, or of input.
#[derive(Debug)]
pub(super) struct Printer {
    /// With output in input order: whose turn it is.
    order: Option<Order>,
    pub(super) outlets: Outlets,
}

#[derive(Debug, Default)]
struct Order {
    /// Results before this are written, counted from 0.
    turn: u64,
    held: BTreeMap<u64, Held>,
    /// Holds what waits; `None` until something does.
    file: Option<Temporary>,
    length: u64,
    /// Bytes at its beginning that were printed and given back.
    freed: u64,
}

/// A result in the file: standard output, then standard error right behind it.
#[derive(Clone, Copy, Debug)]
struct Held {
    start: u64,
    out: u64,
    err: u64,
}

impl Printer {
    pub(super) fn new(in_input_order: bool) -> Self {
        Printer { order: in_input_order.then(Order::default), outlets: Outlets::new() }
    }

    /// Whether so much is held that nothing more should be launched.
    pub(super) fn is_full(&self) -> bool {
        let is_full = |order: &Order| order.held.len() >= MOST_HELD || order.length - order.freed >= MOST_HELD_BYTES;
        self.order.as_ref().is_some_and(is_full)
    }

    /// Writes the result of the command `seq` (from 1), now or at its turn.
    pub(super) fn finish(&mut self, seq: u64, mut result: Collected) -> io::Result<()> {
        match &mut self.order {
            None => self.outlets.write_result(&mut result),
            Some(order) if order.turn + 1 == seq => {
                self.outlets.write_result(&mut result)?;
                order.turn = seq;
                order.write_held(&mut self.outlets)
            }
            Some(order) => order.hold(seq, &mut result),
        }
    }
}

impl Order {
    fn hold(&mut self, seq: u64, result: &mut Collected) -> io::Result<()> {
        let held = Held { start: self.length, out: result.out.length(), err: result.err.length() };
        if !result.is_empty() {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(Temporary::new()?),
            };
            file.seek(SeekFrom::Start(self.length))?;
            result.out.copy_to(file)?;
            result.err.copy_to(file)?;
            self.length += held.out + held.err;
        }
        self.held.insert(seq, held);
        Ok(())
    }

    /// Writes those whose turn has come.
    fn write_held(&mut self, outlets: &mut Outlets) -> io::Result<()> {
        while let Some(held) = self.held.remove(&(self.turn + 1)) {
            self.turn += 1;
            if let Some(file) = self.file.as_mut().filter(|_| held.out + held.err > 0) {
                file.seek(SeekFrom::Start(held.start))?;
                io::copy(&mut Read::take(&mut *file, held.out), &mut outlets.out())?;
                io::copy(&mut Read::take(&mut *file, held.err), &mut outlets.err())?;
            }
        }
        self.free_room()
    }

    /// Gives back the room of what was printed: all of the file, or all before the first result that still waits.
    fn free_room(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.length > 0) else { return Ok(()) };
        if self.held.is_empty() {
            (self.length, self.freed) = (0, 0);
            return file.clear();
        }
        if self.length - self.freed < FREED_AT_ONCE {
            return Ok(());
        }
        let starts = self.held.values().filter(|held| held.out + held.err > 0).map(|held| held.start);
        let first = starts.min().unwrap_or(self.length);
        // If the file system cannot do that, the room counts as used until nothing waits.
        if first - self.freed >= FREED_AT_ONCE && file.free(self.freed, first - self.freed).is_ok() {
            self.freed = first;
        }
        Ok(())
    }
}

/// Our standard output and error.
#[derive(Debug)]
pub(super) struct Outlets {
    out: Outlet<io::Stdout>,
    err: Outlet<io::Stderr>,
    /// Whether a terminal among them is within a line.
    line_is_open: bool,
}

impl Outlets {
    fn new() -> Self {
        Outlets { out: Outlet::new(io::stdout()), err: Outlet::new(io::stderr()), line_is_open: false }
    }

    fn write_result(&mut self, result: &mut Collected) -> io::Result<()> {
        result.out.copy_to(&mut self.out())?;
        result.err.copy_to(&mut self.err())
    }

    /// Writes lines to standard output or error.
    pub(super) fn write_lines(&mut self, mut lines: Spool, is_stdout: bool) -> io::Result<()> {
        if is_stdout { lines.copy_to(&mut self.out()) } else { lines.copy_to(&mut self.err()) }
    }

    pub(super) fn is_terminal(&self, is_stdout: bool) -> bool {
        if is_stdout { self.out.is_terminal } else { self.err.is_terminal }
    }

    /// Whether a terminal is within a line. Resets that: the caller knows now.
    pub(super) fn take_open_line(&mut self) -> bool {
        std::mem::take(&mut self.line_is_open)
    }

    fn out(&mut self) -> impl Write {
        Watched { outlet: &mut self.out, line_is_open: &mut self.line_is_open }
    }

    /// Writes all of `bytes` to standard output if that needs no wait; otherwise writes nothing and returns `None`.
    pub(super) fn out_at_once(&self, bytes: &[u8]) -> Option<io::Result<()>> {
        write_at_once(&self.out.fd.0, bytes)
    }

    /// The same for standard error; see [`err`](Self::err).
    pub(super) fn err_at_once(&self, bytes: &[u8]) -> Option<io::Result<()>> {
        match write_at_once(&self.err.fd.0, bytes)? {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Some(Ok(())),
            written => Some(written),
        }
    }

    /// Standard error may have no reader; that does not end the run.
    fn err(&mut self) -> impl Write {
        Forgiving(Watched { outlet: &mut self.err, line_is_open: &mut self.line_is_open })
    }
}

/// Unbuffered. Waits if the descriptor is non-blocking.
#[derive(Debug)]
struct Outlet<F> {
    fd: Descriptor<F>,
    is_terminal: bool,
}

impl<F: IsTerminal> Outlet<F> {
    fn new(fd: F) -> Self {
        Outlet { is_terminal: fd.is_terminal(), fd: Descriptor(fd) }
    }
}

/// Notes whether a line on the terminal is left open.
struct Watched<'a, F> {
    outlet: &'a mut Outlet<F>,
    line_is_open: &'a mut bool,
}

impl<F> Write for Watched<'_, F>
where
    Descriptor<F>: Sink,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.outlet.fd.write(bytes)?;
        if let Some(last) = bytes[..written].last().filter(|_| self.outlet.is_terminal) {
            *self.line_is_open = *last != b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Drops what a reader that is gone would have read.
struct Forgiving<W>(W);

impl<W: Write> Write for Forgiving<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spool::Budget;
    use super::*;

    /// Otherwise a steady stream of results that wait a little would fill the disk, and stop launching in the end.
    #[test]
    fn what_was_written_is_not_held_though_something_behind_it_is() {
        let (mut order, budget) = (Order::default(), Budget::new(0));
        let size = FREED_AT_ONCE / 2;
        for seq in [5, 3, 2, 4] {
            let mut result = Collected { out: Spool::new(&budget), err: Spool::new(&budget) };
            result.out.add(&vec![b'x'; usize::try_from(size).unwrap()]).unwrap();
            order.hold(seq, &mut result).unwrap();
        }
        order.held.remove(&5);
        order.free_room().unwrap();
        assert_eq!((order.length, order.freed), (4 * size, 0), "not for so little");
        order.held.remove(&3);
        order.free_room().unwrap();
        assert_eq!((order.length, order.freed), (4 * size, 2 * size));
        order.held.clear();
        order.free_room().unwrap();
        assert_eq!((order.length, order.freed), (0, 0));
    }
}
