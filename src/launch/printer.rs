//! What commands wrote, passed on to our own standard output and error: whole, in the order asked for.

use super::spool::Spool;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};

/// Results that finished before their turn: beyond this launching waits.
const MOST_HELD: usize = 10_000;
const MOST_HELD_BYTES: u64 = 1 << 30;

/// What one command wrote, where it was collected.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) out: Spool,
    pub(super) err: Spool,
}

impl Collected {
    fn is_empty(&self) -> bool {
        self.out.is_empty() && self.err.is_empty()
    }

    /// Whether it can be written without waiting for a pipe that is ready: POSIX promises room for `PIPE_BUF`, at least
    /// 512 bytes, on Linux 4096 (pipe(7)).
    pub(super) fn is_small(&self) -> bool {
        let small = |spool: &Spool| spool.in_memory().is_some_and(|bytes| bytes.len() <= 4096);
        small(&self.out) && small(&self.err)
    }
}

/// Writes results in the order of finishing, or of input.
#[derive(Debug)]
pub(super) struct Printer {
    /// The turn, where the order is that of the input.
    order: Option<Order>,
}

#[derive(Debug, Default)]
struct Order {
    /// Results before this are written, counted from 0.
    turn: u64,
    held: BTreeMap<u64, Held>,
    /// Where what is held stands; `None` until something is.
    file: Option<File>,
    length: u64,
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
        Printer { order: in_input_order.then(Order::default) }
    }

    /// Whether so much is held that nothing more should be launched.
    pub(super) fn is_full(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.held.len() >= MOST_HELD || order.length >= MOST_HELD_BYTES)
    }

    /// Writes the result of the command `seq` (from 1), now or at its turn.
    pub(super) fn finish(&mut self, seq: u64, mut result: Collected) -> io::Result<()> {
        match &mut self.order {
            None => write_result(&mut result),
            Some(order) if order.turn + 1 == seq => {
                write_result(&mut result)?;
                order.turn = seq;
                order.write_held()
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
                none => none.insert(tempfile::tempfile()?),
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
    fn write_held(&mut self) -> io::Result<()> {
        while let Some(held) = self.held.remove(&(self.turn + 1)) {
            self.turn += 1;
            if let Some(file) = self.file.as_mut().filter(|_| held.out + held.err > 0) {
                file.seek(SeekFrom::Start(held.start))?;
                io::copy(&mut Read::take(&mut *file, held.out), &mut StandardOutput)?;
                io::copy(&mut Read::take(&mut *file, held.err), &mut StandardError)?;
            }
        }
        if self.held.is_empty() && self.length > 0 {
            self.length = 0;
            self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))?;
        }
        Ok(())
    }
}

fn write_result(result: &mut Collected) -> io::Result<()> {
    result.out.copy_to(&mut StandardOutput)?;
    // Nobody may be listening there; that does not end the work.
    let _ = result.err.copy_to(&mut StandardError);
    Ok(())
}

/// Our standard output, not buffered a second time, and waited for where it does not block.
#[derive(Debug)]
pub(super) struct StandardOutput;

/// Our standard error, likewise.
#[derive(Debug)]
pub(super) struct StandardError;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        crate::sink::Sink::write(&mut crate::sink::Descriptor(io::stdout()), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match crate::sink::Sink::write(&mut crate::sink::Descriptor(io::stderr()), bytes) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
