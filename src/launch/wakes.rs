//! Wakes the pump's thread, from commands' tasks, while it waits for several things at once.
//!
//! A wait opens no file. Such a file could be the last file that a command needs to start, and the start would then fail
//! although no command runs.

pub(super) use kind::Wakes;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod kind {
    use crate::flow::{Timer, poll_without_timer};
    use rustix::event::PollFlags;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// Wakes the pump. One file is enough: a wake sets the timer of the wait to now.
    #[derive(Debug)]
    pub(in super::super) struct Wakes {
        timer: Timer,
        /// Whether the pump was woken since its latest wait. That wait has set the timer, and the next one sets it again.
        is_woken: AtomicBool,
    }

    impl Wakes {
        /// # Errors
        /// The system has no room for one more file.
        pub(in super::super) fn new() -> io::Result<Self> {
            Ok(Wakes { timer: Timer::new()?, is_woken: AtomicBool::new(false) })
        }

        /// Ends the current [`wait`](Self::wait), or the next one.
        pub(in super::super) fn wake(&self) {
            self.is_woken.store(true, Ordering::SeqCst);
            // Cannot fail: the time is short.
            let _ = self.timer.set(Duration::ZERO);
        }

        /// Returns when `source` can be read, when the pump was woken, or after `timeout`. Time in which this process is
        /// stopped counts.
        pub(in super::super) fn wait(&self, source: Option<BorrowedFd<'_>>, timeout: Duration) -> io::Result<()> {
            self.timer.set(timeout)?;
            // Read after the timer was set: a later wake sets the timer again.
            if !self.is_woken.load(Ordering::SeqCst) {
                poll_without_timer([(Some(self.timer.as_fd()), PollFlags::IN), (source, PollFlags::IN)], None)?;
            }
            self.is_woken.store(false, Ordering::SeqCst);
            Ok(())
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod kind {
    use crate::flow::poll_without_timer;
    use rustix::event::PollFlags;
    use std::io::{self, PipeReader, PipeWriter, Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Duration;

    /// Wakes the pump.
    #[derive(Debug)]
    pub(in super::super) struct Wakes {
        /// A byte in this pipe wakes the pump, now or at its next poll.
        read: PipeReader,
        write: PipeWriter,
    }

    impl Wakes {
        /// # Errors
        /// The system has no room for two more files.
        pub(in super::super) fn new() -> io::Result<Self> {
            let (read, write) = io::pipe()?;
            for end in [read.as_fd(), write.as_fd()] {
                rustix::io::ioctl_fionbio(end, true)?;
            }
            Ok(Wakes { read, write })
        }

        /// Ends the current [`wait`](Self::wait), or the next one.
        pub(in super::super) fn wake(&self) {
            // A full pipe wakes the pump as well.
            let _ = (&self.write).write(&[0]);
        }

        /// Returns when `source` can be read, when the pump was woken, or after `timeout`.
        pub(in super::super) fn wait(&self, source: Option<BorrowedFd<'_>>, timeout: Duration) -> io::Result<()> {
            let wanted = [(Some(self.read.as_fd()), PollFlags::IN), (source, PollFlags::IN)];
            poll_without_timer(wanted, Some(timeout))?;
            let mut bytes = [0; 64];
            while matches!((&self.read).read(&mut bytes), Ok(1..)) {}
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn a_wake_ends_the_current_wait_or_the_next_one() {
        let (wakes, begun) = (Wakes::new().unwrap(), Instant::now());
        wakes.wake();
        wakes.wait(None, LONG).unwrap();
        for pause in [0, 0, 0, 1, 10] {
            thread::scope(|scope| {
                let _ = scope.spawn(|| {
                    thread::sleep(Duration::from_millis(pause));
                    wakes.wake();
                });
                wakes.wait(None, LONG).unwrap();
            });
        }
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_wait_ends_at_its_time_or_with_input() {
        let (wakes, begun) = (Wakes::new().unwrap(), Instant::now());
        wakes.wait(None, Duration::ZERO).unwrap();
        let time = Duration::from_millis(30);
        wakes.wait(None, time).unwrap();
        assert!(begun.elapsed() >= time);
        let (read, mut write) = pipe().unwrap();
        write.write_all(b"x").unwrap();
        wakes.wait(Some(read.as_fd()), LONG).unwrap();
        assert!(begun.elapsed() < LONG);
    }
}
