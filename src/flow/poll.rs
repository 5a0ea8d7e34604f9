//! Waits for descriptors: poll(2).

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// Waits until one of the descriptors that are there is ready as wanted, or for `timeout`: for ever if there is none, or if
/// it is longer than poll can wait. Returns what each is ready for: nothing after the timeout or a signal.
///
/// # Errors
/// The system has no room for the wait.
pub fn poll<const N: usize>(
    wanted: [(Option<BorrowedFd<'_>>, PollFlags); N],
    timeout: Option<Duration>,
) -> io::Result<[PollFlags; N]> {
    let there = wanted.iter().filter_map(|(fd, flags)| fd.as_ref().map(|fd| PollFd::new(fd, *flags)));
    let mut fds: Vec<_> = there.collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut found = fds.iter().map(PollFd::revents);
    Ok(wanted.map(|(fd, _)| fd.and_then(|_| found.next()).unwrap_or(PollFlags::empty())))
}

/// Whether `wanted` can be done now, or an error or the end was reached.
pub(super) fn is_ready(fd: impl AsFd, wanted: PollFlags) -> io::Result<bool> {
    poll([(Some(fd.as_fd()), wanted)], Some(Duration::ZERO)).map(|[found]| !found.is_empty())
}

/// Waits until `wanted` can be done. `BrokenPipe` if that is to write and the reader is gone.
pub(super) fn wait_for(fd: impl AsFd, wanted: PollFlags) -> io::Result<()> {
    loop {
        match poll([(Some(fd.as_fd()), wanted)], None)? {
            [found] if found.is_empty() => {}
            // poll(2) reports a pipe without readers as writable, with POLLERR: the write would fail.
            [found] if wanted.contains(PollFlags::OUT) && found.contains(PollFlags::ERR) => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            _ => return Ok(()),
        }
    }
}
