//! How commands' tasks wake the thread of the pump while it waits for several things at once.

use crate::flow::poll;
use rustix::event::PollFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::Duration;

/// Wakes the pump.
#[derive(Debug)]
pub(super) struct Wakes {
    pump: OnceLock<Thread>,
    /// Whatever is written there wakes the pump, now or when it polls next.
    read: File,
    write: File,
}

impl Wakes {
    /// # Errors
    /// The system has no room for two more files.
    pub(super) fn new() -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        for end in [read.as_fd(), write.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let (read, write) = (OwnedFd::from(read).into(), OwnedFd::from(write).into());
        Ok(Wakes { pump: OnceLock::new(), read, write })
    }

    /// The thread that calls this is the pump's.
    pub(super) fn is_used_by_pump(&self) {
        let _ = self.pump.set(thread::current());
    }

    /// Ends a [`wait`](Self::wait), this one or the next.
    pub(super) fn wake(&self) {
        // If the pipe is full, the pump wakes as well.
        let _ = (&self.write).write(&[0]);
    }

    /// Ends a sleep until a grant, if its condition says so.
    pub(super) fn unpark(&self) {
        self.pump.get().into_iter().for_each(Thread::unpark);
    }

    /// Returns when `source` can be read, the pump was woken, or after the time that `timeout` returns: `None` if there is
    /// nothing to wait for.
    pub(super) fn wait(
        &self,
        source: Option<BorrowedFd<'_>>,
        timeout: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<()> {
        let Some(timeout) = timeout() else { return Ok(()) };
        poll([(Some(self.read.as_fd()), PollFlags::IN), (source, PollFlags::IN)], Some(timeout))?;
        let mut bytes = [0; 64];
        while matches!((&self.read).read(&mut bytes), Ok(1..)) {}
        Ok(())
    }
}
