//! Passes units from a pipe to a pipe: counts them in a copy of the bytes, and moves the original pages. Uses tee(2),
//! then splice(2).
//!
//! Input is first duplicated into a pipe of our own, without copying bytes. Output is moved from that pipe, again
//! without a copy. The only copy of the bytes is made for counting. Both ends share our pipe, whose first bytes are the
//! oldest. So the sink must get exactly the bytes that the source has read, in order.

use super::copy::{Descriptor, Sink, Source};
use super::poll::{is_ready, wait_for};
use super::splice::{self, enlarge};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The size of our own pipe, in bytes. It has to hold the content of a buffer even if its pages are only partly filled.
const PIPE_BYTES: usize = 1024 * 1024;

/// The reading end; see [`tee`].
#[derive(Debug)]
pub struct TeeSource<R> {
    source: Descriptor<R>,
    side: Rc<Side>,
}

/// The writing end; see [`tee`].
#[derive(Debug)]
pub struct TeeSink<W> {
    sink: Descriptor<W>,
    side: Rc<Side>,
}

#[derive(Debug)]
struct Side {
    read: OwnedFd,
    write: OwnedFd,
    /// The number of bytes in our pipe: they were read from the source and not yet written to the sink.
    held: Cell<usize>,
    /// Whether bytes are copied from now on.
    given_up: Cell<bool>,
}

/// Makes the two ends of a [`Copying`](super::Copying) from the pipe `source` to the pipe `sink`.
///
/// # Errors
/// Returns the descriptors unused if they are not pipes, or if the system has no room for our own pipe.
pub fn tee<R: AsFd, W: AsFd>(source: R, sink: W) -> Result<(TeeSource<R>, TeeSink<W>), (R, W)> {
    let side = if splice::is_pipe(&source) && splice::is_pipe(&sink) { Side::new().ok() } else { None };
    let Some(side) = side.map(Rc::new) else { return Err((source, sink)) };
    let source = TeeSource { source: Descriptor(source), side: Rc::clone(&side) };
    Ok((source, TeeSink { sink: Descriptor(sink), side }))
}

impl Side {
    fn new() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        enlarge(&write, PIPE_BYTES);
        Ok(Side { read, write, held: Cell::new(0), given_up: Cell::new(false) })
    }

    /// Copies bytes from now on. The bytes in our pipe are dropped: the buffer has them as well.
    fn give_up(&self) -> io::Result<()> {
        self.given_up.set(true);
        let mut scratch = [0; 4096];
        while self.held.get() > 0 {
            let length = self.held.get().min(scratch.len());
            match rustix::io::read(&self.read, &mut scratch[..length]) {
                Ok(0) => break,
                Ok(bytes) => self.held.set(self.held.get() - bytes),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl<R: AsFd> TeeSource<R> {
    /// Reads the bytes that were just duplicated, which are available.
    fn read_all(&mut self, space: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < space.len() {
            match self.source.read(&mut space[filled..], true)? {
                Some(0) | None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(bytes) => filled += bytes,
            }
        }
        Ok(())
    }
}

impl<R: AsFd> Source for TeeSource<R> {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        while !self.side.given_up.get() {
            match rustix::pipe::tee(&self.source.0, &self.side.write, space.len(), SpliceFlags::NONBLOCK) {
                Ok(0) => return Ok(Some(0)),
                Ok(bytes) => {
                    self.side.held.set(self.side.held.get() + bytes);
                    self.read_all(&mut space[..bytes])?;
                    return Ok(Some(bytes));
                }
                Err(Errno::INTR) => {}
                // Our own pipe is full, because its pages are only partly filled.
                Err(Errno::AGAIN) if is_ready(&self.source.0, PollFlags::IN)? => self.side.give_up()?,
                Err(Errno::AGAIN) if wait => wait_for(&self.source.0, PollFlags::IN)?,
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => self.side.give_up()?,
            }
        }
        self.source.read(space, wait)
    }
}

impl<W: AsFd> Sink for TeeSink<W> {
    fn ready(&mut self) -> io::Result<bool> {
        self.sink.ready()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while !self.side.given_up.get() {
            match rustix::pipe::splice(&self.side.read, None, &self.sink.0, None, bytes.len(), SpliceFlags::MOVE) {
                Ok(moved) => {
                    self.side.held.set(self.side.held.get() - moved);
                    return Ok(moved);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(&self.sink.0, PollFlags::OUT)?,
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.side.give_up()?,
                Err(error) => return Err(error.into()),
            }
        }
        self.sink.write(bytes)
    }
}
