//! Moves bytes inside the kernel, from a pipe or a file to a pipe or a file: splice(2).

use super::contract::{Flow, Passed, State};
use super::copy::{Descriptor, First, Source, room_of, write_all};
use super::error::FlowError;
use super::grants::Grants;
use super::next::{Granted, Refusal};
use super::poll::{is_ready, wait_for};
use rustix::event::PollFlags;
use rustix::fd::AsFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use std::io;

/// The shortest run that is spliced, in bytes. Copying a shorter run is cheaper than moving pages that are mostly
/// empty.
const MIN_SPLICED_BYTES: u64 = 64 * 1024;

/// The most bytes of a file that count as waiting, so that the meter is never far behind.
const MAX_WAITING_BYTES: u64 = 4 * 1024 * 1024;

/// A flow of bytes that bypass our memory. Short runs are copied. All bytes are copied if the kernel cannot splice
/// these two descriptors.
#[derive(Debug)]
pub struct Splice<R, W> {
    source: Descriptor<R>,
    sink: Descriptor<W>,
    from_file: bool,
    /// The bytes that were counted and have not left, and how many of them were requested.
    waiting: u64,
    asked: u64,
    /// Whether the input has ended.
    has_ended: bool,
    /// The buffer for copied runs.
    buffer: Box<[u8]>,
    /// Whether the kernel has refused to splice.
    refused: bool,
}

impl<R: AsFd, W: AsFd> Splice<R, W> {
    /// Splices from a pipe to a pipe or file, or from a file to a pipe.
    ///
    /// # Errors
    /// Returns the descriptors unused if they are of other kinds.
    pub fn new(source: R, sink: W) -> Result<Self, (R, W)> {
        let from = file_type(&source);
        let to = file_type(&sink);
        let from_file = from == Some(FileType::RegularFile);
        // A file of size 0 may have generated contents, as in /proc.
        let splices = match (from, to) {
            (Some(FileType::Fifo), Some(FileType::Fifo | FileType::RegularFile)) => true,
            (Some(FileType::RegularFile), Some(FileType::Fifo)) => left_in_file(&source).is_ok_and(|bytes| bytes > 0),
            _ => false,
        };
        if !splices {
            return Err((source, sink));
        }
        let buffer = vec![0; usize::try_from(MIN_SPLICED_BYTES).unwrap_or(usize::MAX)].into_boxed_slice();
        let (source, sink) = (Descriptor(source), Descriptor(sink));
        Ok(Splice { source, sink, from_file, waiting: 0, asked: 0, has_ended: false, buffer, refused: false })
    }

    /// Moves up to `bytes`. Moves nothing at the end of the input.
    fn move_some(&mut self, bytes: u64, passed: &mut Passed) -> Result<(), FlowError> {
        if bytes < MIN_SPLICED_BYTES || self.refused {
            return self.copy_some(bytes, passed);
        }
        loop {
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            match splice(&self.source.0, None, &self.sink.0, None, length, SpliceFlags::MOVE) {
                Ok(moved) => {
                    self.count(moved, passed);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_for_both().map_err(FlowError::Write)?,
                // The file is open for appending, or its file system cannot splice.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.refused = true;
                    return self.copy_some(bytes, passed);
                }
                // The kernel does not report which side failed. Reading a pipe never fails, and writing to a pipe fails
                // only without a reader.
                Err(error) if self.from_file && error != Errno::PIPE => return Err(FlowError::Read(error.into())),
                Err(error) => return Err(FlowError::Write(error.into())),
            }
        }
    }

    fn copy_some(&mut self, bytes: u64, passed: &mut Passed) -> Result<(), FlowError> {
        let length = self.buffer.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        let read = self.source.read(&mut self.buffer[..length], true).map_err(FlowError::Read)?.unwrap_or(0);
        let mut written = 0;
        let result = write_all(&mut self.sink, &self.buffer[..read], &mut written);
        self.count(written, passed);
        result
    }

    fn count(&mut self, moved: usize, passed: &mut Passed) {
        let moved = moved as u64;
        self.waiting -= moved;
        passed.units += moved;
        passed.bytes += moved;
    }

    /// Counts the waiting bytes. With `wait`, blocks until there are some or the input ends.
    fn look(&mut self, wait: bool) -> io::Result<()> {
        if self.from_file {
            self.waiting = left_in_file(&self.source.0)?.min(MAX_WAITING_BYTES);
            return Ok(());
        }
        if wait {
            wait_for(&self.source.0, PollFlags::IN)?;
        }
        self.waiting = rustix::io::ioctl_fionread(&self.source.0)?;
        Ok(())
    }

    /// Whether the pipe is empty and has lost its last writer. Such a pipe is readable without having bytes. The bytes
    /// are counted after the poll, so no byte of the last writer is missed.
    fn hung_up(&mut self) -> io::Result<bool> {
        let readable = is_ready(&self.source.0, PollFlags::IN)?;
        self.waiting = rustix::io::ioctl_fionread(&self.source.0)?;
        Ok(readable && self.waiting == 0)
    }

    fn wait_for_both(&self) -> io::Result<()> {
        wait_for(&self.source.0, PollFlags::IN)?;
        wait_for(&self.sink.0, PollFlags::OUT)
    }
}

impl<R: AsFd, W: AsFd> Flow for Splice<R, W> {
    type Unit = First;

    /// Waits for input if no byte waits. Counts more if fewer bytes wait than are worth a wake-up.
    fn fill(&mut self, grants: &Grants<First>) -> Result<(), FlowError> {
        let before = self.waiting;
        if self.has_ended || before > 0 && !grants.wants_more() {
            return Ok(());
        }
        self.look(before == 0).map_err(FlowError::Read)?;
        self.has_ended = self.waiting == 0 && (self.from_file || self.hung_up().map_err(FlowError::Read)?);
        self.ask(grants)
    }

    fn has_new(&self, _: &Grants<First>) -> bool {
        self.waiting > 0
    }

    fn room(&mut self, grants: &Grants<First>) -> Result<u64, FlowError> {
        room_of(&mut self.sink, grants)
    }

    fn ask(&mut self, grants: &Grants<First>) -> Result<(), FlowError> {
        if self.waiting > self.asked {
            grants.want(self.waiting - self.asked);
            self.asked = self.waiting;
        }
        Ok(())
    }

    fn run(&mut self, grants: &Grants<First>, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        let waiting_after = self.waiting.saturating_sub(units);
        self.asked = self.asked.saturating_sub(units);
        while self.waiting > waiting_after {
            let before = self.waiting;
            self.move_some(before - waiting_after, passed)?;
            if self.waiting == before {
                // The file has become shorter.
                (self.waiting, self.asked) = (0, 0);
                grants.want_nothing();
                break;
            }
        }
        Ok(())
    }

    fn go(&mut self, _: &Grants<First>, _: Granted, _: First, _: &mut Passed) -> Result<(), FlowError> {
        Ok(())
    }

    fn refuse(&mut self, _: &Grants<First>, _: First, _: Refusal, _: &mut Passed) -> Result<(), FlowError> {
        Ok(())
    }

    fn is_over(&mut self, _: &Grants<First>) -> Result<bool, FlowError> {
        Ok(self.has_ended)
    }

    fn state(&self, _: &Grants<First>) -> State {
        State { ahead: Passed { units: self.waiting, bytes: self.waiting }, ..State::default() }
    }
}

/// Widens a pipe to `bytes`, so that its two ends wake each other less often. Does nothing for other files. An ordinary
/// user may set 1 MiB (`/proc/sys/fs/pipe-max-size`).
pub fn enlarge(pipe: impl AsFd, bytes: usize) {
    if is_pipe(&pipe) && rustix::pipe::fcntl_getpipe_size(&pipe).is_ok_and(|size| size < bytes) {
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, bytes);
    }
}

pub(super) fn is_pipe(fd: impl AsFd) -> bool {
    file_type(fd) == Some(FileType::Fifo)
}

fn file_type(fd: impl AsFd) -> Option<FileType> {
    rustix::fs::fstat(fd).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

fn left_in_file(fd: impl AsFd) -> io::Result<u64> {
    let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
    Ok(size.saturating_sub(rustix::fs::tell(&fd)?))
}
