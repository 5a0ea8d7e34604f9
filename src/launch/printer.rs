//! Writes to our own standard output and error, in the chosen order. Only [`output`](super::output) uses it.

use super::event::Success;
use super::spool::Spool;
use crate::flow::{Descriptor, Sink};
use rustix::fd::BorrowedFd;
use rustix::stdio::{stderr, stdout};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::ops::Range;

/// The most results that wait for earlier results, and the most bytes of waiting results. Beyond either number,
/// launching waits.
const MAX_HELD: usize = 10_000;
const MAX_HELD_BYTES: u64 = 1 << 30;

/// The output of one command.
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

/// Writes results in the order of their ends, or in input order.
#[derive(Debug)]
pub(super) struct Printer {
    in_input_order: bool,
    /// The number of the latest result that was written, if results are written in input order.
    turn: u64,
    /// Results that wait for earlier results, by job number. Their output is in `bytes`.
    held: BTreeMap<u64, Held>,
    bytes: Spool,
    /// Whether a result could not be written. Then no waiting result is written.
    is_broken: bool,
    pub(super) outlets: Outlets,
}

/// The places of a result's standard output and error in [`Printer::bytes`].
#[derive(Debug)]
struct Held {
    out: Range<u64>,
    err: Range<u64>,
    success: Option<Success>,
}

impl Printer {
    pub(super) fn new(in_input_order: bool) -> Self {
        let (held, bytes, outlets) = (BTreeMap::new(), for_held_results(), Outlets::new());
        Printer { in_input_order, turn: 0, held, bytes, is_broken: false, outlets }
    }

    /// Whether too much output is held, so that no more commands should start.
    pub(super) fn is_full(&self) -> bool {
        self.held.len() >= MAX_HELD || self.bytes.length() >= MAX_HELD_BYTES
    }

    /// Writes the result of the job `seq` (from 1), or stores it until all earlier results are written. Returns
    /// `success` if the result was written.
    pub(super) fn finish(
        &mut self,
        seq: u64,
        result: &Collected,
        success: Option<Success>,
    ) -> io::Result<Option<Success>> {
        if self.in_input_order && (self.turn + 1 != seq || self.is_broken) {
            let (out, err) = (self.hold(&result.out)?, self.hold(&result.err)?);
            self.held.insert(seq, Held { out, err, success });
            return Ok(None);
        }
        let written = result.copy_to(&mut self.outlets);
        (self.turn, self.is_broken) = (seq, written.is_err());
        written.map(|()| success)
    }

    fn hold(&mut self, output: &Spool) -> io::Result<Range<u64>> {
        let start = self.bytes.length();
        output.copy_to(&mut self.bytes)?;
        Ok(start..self.bytes.length())
    }

    /// Writes the held results whose turn has come, and calls `written` after each.
    pub(super) fn write_held(&mut self, written: &mut impl FnMut(Success)) -> io::Result<()> {
        while let Some(Held { out, err, .. }) = self.held.get(&(self.turn + 1)).filter(|_| !self.is_broken) {
            let printed = self.bytes.copy(out.clone(), &mut self.outlets.stream(true));
            let printed = printed.and_then(|()| self.bytes.copy(err.clone(), &mut self.outlets.stream(false)));
            self.is_broken = printed.is_err();
            printed?;
            self.turn += 1;
            let success = self.held.remove(&self.turn).and_then(|held| held.success);
            success.into_iter().for_each(&mut *written);
        }
        if self.held.is_empty() {
            self.bytes = for_held_results();
        }
        Ok(())
    }

    /// Writes all held results in order: the missing results will not come. Returns the successes that could not be
    /// written.
    pub(super) fn write_rest(&mut self, mut written: impl FnMut(Success)) -> Vec<Success> {
        while let Some(first) = self.held.keys().next().filter(|_| !self.is_broken) {
            self.turn = first - 1;
            // After an error, the rest remains in `held`.
            let _ = self.write_held(&mut written);
        }
        std::mem::take(&mut self.held).into_values().filter_map(|held| held.success).collect()
    }
}

/// A spool for results that wait. It cannot wait for a file itself, because it is used under a lock.
fn for_held_results() -> Spool {
    let mut spool = Spool::default();
    spool.use_more_memory();
    spool
}

/// Our standard output and error.
#[derive(Debug)]
pub(super) struct Outlets {
    /// Whether standard error and standard output are terminals, in this order.
    are_terminals: [bool; 2],
    /// Whether a terminal shows an incomplete line.
    line_is_open: bool,
}

fn fd(is_stdout: bool) -> BorrowedFd<'static> {
    if is_stdout { stdout() } else { stderr() }
}

impl Outlets {
    fn new() -> Self {
        Outlets { are_terminals: [false, true].map(|is_stdout| fd(is_stdout).is_terminal()), line_is_open: false }
    }

    pub(super) fn is_terminal(&self, is_stdout: bool) -> bool {
        self.are_terminals[usize::from(is_stdout)]
    }

    /// Returns whether a line on a terminal is incomplete, and resets that state.
    pub(super) fn take_open_line(&mut self) -> bool {
        std::mem::take(&mut self.line_is_open)
    }

    /// Writes to standard output or error, unbuffered. Waits if the descriptor is non-blocking.
    pub(super) fn stream(&mut self, is_stdout: bool) -> impl Write {
        Stream { outlets: self, is_stdout }
    }
}

struct Stream<'a> {
    outlets: &'a mut Outlets,
    is_stdout: bool,
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match Sink::write(&mut Descriptor(fd(self.is_stdout)), bytes) {
            // Standard error may have no reader; that does not end the run.
            Err(error) if !self.is_stdout && error.kind() == ErrorKind::BrokenPipe => return Ok(bytes.len()),
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
