//! Writes to our own standard output and error, in the order asked for. Only [`output`](super::output) uses it.

use super::event::Success;
use super::spool::Spool;
use super::temporary::Temporary;
use crate::flow::{Descriptor, Sink, write_at_once};
use rustix::fd::BorrowedFd;
use rustix::stdio::{stderr, stdout};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Results that wait for their turn: beyond this launching waits.
const MOST_HELD: usize = 10_000;
const MOST_HELD_BYTES: u64 = 1 << 30;

/// Least number of bytes of the file that is given back at once.
const FREED_AT_ONCE: u64 = 1 << 20;

/// All that one command wrote.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) out: Spool,
    pub(super) err: Spool,
}

impl Collected {
    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.err.is_empty()
    }

    fn copy_to(&self, outlets: &mut Outlets) -> io::Result<()> {
        self.out.copy_to(&mut outlets.stream(true))?;
        self.err.copy_to(&mut outlets.stream(false))
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
    /// Holds the results that wait; `None` until one does.
    file: Option<Temporary>,
    /// Bytes at the beginning of the file that were printed and given back.
    freed: u64,
    /// A result could not be written: nothing more is.
    is_broken: bool,
}

/// A result in the file: standard output up to `middle`, then standard error.
#[derive(Debug)]
struct Held {
    start: u64,
    middle: u64,
    end: u64,
    success: Option<Success>,
}

impl Printer {
    pub(super) fn new(in_input_order: bool) -> Self {
        Printer { order: in_input_order.then(Order::default), outlets: Outlets::new() }
    }

    /// Whether so much is held that nothing more should be launched.
    pub(super) fn is_full(&self) -> bool {
        let is_full = |order: &Order| order.held.len() >= MOST_HELD || order.length() - order.freed >= MOST_HELD_BYTES;
        self.order.as_ref().is_some_and(is_full)
    }

    /// Writes the result of the command `seq` (from 1), now or at its turn. Returns the success if it is written.
    pub(super) fn finish(
        &mut self,
        seq: u64,
        result: &Collected,
        success: Option<Success>,
    ) -> io::Result<Option<Success>> {
        if let Some(order) = self.order.as_mut().filter(|order| order.turn + 1 != seq || order.is_broken) {
            return order.hold(seq, result, success).map(|()| None);
        }
        let written = result.copy_to(&mut self.outlets);
        if let Some(order) = &mut self.order {
            (order.turn, order.is_broken) = (seq, written.is_err());
        }
        written.map(|()| success)
    }

    /// Writes the held results whose turn has come; calls `written` after each.
    pub(super) fn write_held(&mut self, mut written: impl FnMut(Success)) -> io::Result<()> {
        self.order.as_mut().map_or(Ok(()), |order| order.write_held(&mut self.outlets, &mut written))
    }

    /// The same for all held results: nothing that they wait for comes any more. Returns the successes that could not be
    /// written.
    pub(super) fn write_rest(&mut self, mut written: impl FnMut(Success)) -> Vec<Success> {
        let Some(order) = &mut self.order else { return Vec::new() };
        while let Some(first) = order.held.keys().next().filter(|_| !order.is_broken) {
            order.turn = first - 1;
            // An error shows in what is left.
            let _ = order.write_held(&mut self.outlets, &mut written);
        }
        std::mem::take(&mut order.held).into_values().filter_map(|held| held.success).collect()
    }
}

impl Order {
    /// Of the file.
    fn length(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.length)
    }

    fn hold(&mut self, seq: u64, result: &Collected, success: Option<Success>) -> io::Result<()> {
        let start = self.length();
        let middle = start + result.out.length();
        if !result.is_empty() {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(Temporary::new()?),
            };
            result.out.copy_to(file)?;
            result.err.copy_to(file)?;
        }
        self.held.insert(seq, Held { start, middle, end: self.length(), success });
        Ok(())
    }

    fn write_held(&mut self, outlets: &mut Outlets, written: &mut impl FnMut(Success)) -> io::Result<()> {
        while let Some(held) = self.held.get_mut(&(self.turn + 1)).filter(|_| !self.is_broken) {
            if let Some(file) = &self.file {
                let printed = file.copy(held.start..held.middle, &mut outlets.stream(true));
                let printed = printed.and_then(|()| file.copy(held.middle..held.end, &mut outlets.stream(false)));
                self.is_broken = printed.is_err();
                printed?;
            }
            held.success.take().into_iter().for_each(&mut *written);
            self.turn += 1;
            self.held.remove(&self.turn);
        }
        self.free_room()
    }

    /// Frees the room of printed results: all of the file, or all before the first result that still waits.
    fn free_room(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_mut().filter(|file| file.length > 0) else { return Ok(()) };
        if self.held.is_empty() {
            self.freed = 0;
            return file.clear();
        }
        let starts = self.held.values().filter(|held| held.start < held.end).map(|held| held.start);
        let first = starts.min().unwrap_or(file.length);
        // If the file system cannot do that, the room counts as used until nothing waits.
        if first - self.freed >= FREED_AT_ONCE && file.free(self.freed..first).is_ok() {
            self.freed = first;
        }
        Ok(())
    }
}

/// Our standard output and error.
#[derive(Debug)]
pub(super) struct Outlets {
    /// Whether standard error is one, and standard output.
    are_terminals: [bool; 2],
    /// Whether a terminal among them is within a line.
    line_is_open: bool,
}

fn fd(is_stdout: bool) -> BorrowedFd<'static> {
    if is_stdout { stdout() } else { stderr() }
}

/// Standard error may have no reader; that does not end the run.
fn is_forgiven(error: &io::Error, is_stdout: bool) -> bool {
    !is_stdout && error.kind() == ErrorKind::BrokenPipe
}

impl Outlets {
    fn new() -> Self {
        Outlets { are_terminals: [false, true].map(|is_stdout| fd(is_stdout).is_terminal()), line_is_open: false }
    }

    pub(super) fn is_terminal(&self, is_stdout: bool) -> bool {
        self.are_terminals[usize::from(is_stdout)]
    }

    /// Whether a terminal is within a line. Resets that: the caller knows now.
    pub(super) fn take_open_line(&mut self) -> bool {
        std::mem::take(&mut self.line_is_open)
    }

    /// Writes to standard output or error, unbuffered. Waits if the descriptor is non-blocking.
    pub(super) fn stream(&mut self, is_stdout: bool) -> impl Write {
        Stream { outlets: self, is_stdout }
    }

    /// Writes all of `bytes` if that needs no wait; otherwise writes nothing and returns `None`.
    pub(super) fn write_at_once(is_stdout: bool, bytes: &[u8]) -> Option<io::Result<()>> {
        match write_at_once(fd(is_stdout), bytes)? {
            Err(error) if is_forgiven(&error, is_stdout) => Some(Ok(())),
            written => Some(written),
        }
    }
}

struct Stream<'a> {
    outlets: &'a mut Outlets,
    is_stdout: bool,
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match Sink::write(&mut Descriptor(fd(self.is_stdout)), bytes) {
            Err(error) if is_forgiven(&error, self.is_stdout) => return Ok(bytes.len()),
            written => written?,
        };
        if let Some(last) = bytes[..written].last().filter(|_| self.outlets.is_terminal(self.is_stdout)) {
            self.outlets.line_is_open = *last != b'\n';
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a steady stream of results that wait a little would fill the disk, and stop launching in the end.
    #[test]
    fn room_of_printed_results_is_freed_while_later_ones_wait() {
        let mut order = Order::default();
        let size = FREED_AT_ONCE / 2;
        for seq in [5, 3, 2, 4] {
            let mut result = Collected::default();
            result.out.add(&vec![b'x'; usize::try_from(size).unwrap()]).unwrap();
            order.hold(seq, &result, None).unwrap();
        }
        order.held.remove(&5);
        order.free_room().unwrap();
        assert_eq!((order.length(), order.freed), (4 * size, 0), "not for so little");
        order.held.remove(&3);
        order.free_room().unwrap();
        assert_eq!((order.length(), order.freed), (4 * size, 2 * size));
        order.held.clear();
        order.free_room().unwrap();
        assert_eq!((order.length(), order.freed), (0, 0));
    }
}
