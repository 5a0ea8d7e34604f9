//! Wakes the pump's thread, from commands' tasks, while it waits for several things at once.

use crate::flow::poll;
use rustix::event::PollFlags;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Wakes the pump.
#[derive(Debug)]
pub(super) struct Wakes {
    /// A byte in this pipe wakes the pump, now or at its next poll.
    read: PipeReader,
    write: PipeWriter,
}

impl Wakes {
    /// # Errors
    /// The system has no room for two more files.
    pub(super) fn new() -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        for end in [read.as_fd(), write.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Wakes { read, write })
    }

    /// Ends the current [`wait`](Self::wait), or the next one.
    pub(super) fn wake(&self) {
        // A full pipe wakes the pump as well.
        let _ = (&self.write).write(&[0]);
    }

    /// Returns when `source` can be read, when the pump was woken, or after `timeout`.
    pub(super) fn wait(&self, source: Option<BorrowedFd<'_>>, timeout: Duration) -> io::Result<()> {
        poll([(Some(self.read.as_fd()), PollFlags::IN), (source, PollFlags::IN)], Some(timeout))?;
        let mut bytes = [0; 64];
        while matches!((&self.read).read(&mut bytes), Ok(1..)) {}
        Ok(())
    }
}
