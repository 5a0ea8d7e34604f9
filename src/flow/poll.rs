//! Waits for descriptors: poll(2).

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::time::Duration;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use timer::Timer;

/// Waits until one of the given descriptors is ready, for at most `timeout`. Waits for ever without a timeout, or with
/// a timeout longer than poll accepts. Ends in time even if the process was stopped meanwhile. Returns the events of
/// each descriptor: none after the timeout or a signal.
///
/// # Errors
/// The system has no room for the wait.
pub fn poll<const N: usize>(
    wanted: [(Option<BorrowedFd<'_>>, PollFlags); N],
    timeout: Option<Duration>,
) -> io::Result<[PollFlags; N]> {
    timer::with(timeout, |timer| poll_with(wanted, timeout.filter(|_| timer.is_none()), timer))
}

/// As [`poll`], without a file for the timeout: a command that is about to start may need that file. If the process was
/// stopped meanwhile, the wait may take twice as long.
///
/// # Errors
/// The system has no room for the wait.
pub fn poll_without_timer<const N: usize>(
    wanted: [(Option<BorrowedFd<'_>>, PollFlags); N],
    timeout: Option<Duration>,
) -> io::Result<[PollFlags; N]> {
    poll_with(wanted, timeout, None)
}

fn poll_with<const N: usize>(
    wanted: [(Option<BorrowedFd<'_>>, PollFlags); N],
    timeout: Option<Duration>,
    timer: Option<BorrowedFd<'_>>,
) -> io::Result<[PollFlags; N]> {
    let there = wanted.iter().filter_map(|(fd, flags)| fd.as_ref().map(|fd| PollFd::new(fd, *flags)));
    let mut fds: Vec<_> = there.chain(timer.as_ref().map(|timer| PollFd::new(timer, PollFlags::IN))).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut found = fds.iter().map(PollFd::revents);
    Ok(wanted.map(|(fd, _)| fd.and_then(|_| found.next()).unwrap_or(PollFlags::empty())))
}

/// A timer for long waits. When a stopped process continues to poll, the kernel restarts the rest of the timeout
/// (ppoll(2), signal(7)). A wait of an hour that was stopped for an hour would take two hours. A timer also counts the
/// time during which the process is stopped, so it is due when the process continues.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod timer {
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use std::io;
    use std::ops::RangeInclusive;
    use std::time::Duration;

    /// The waits that get a timer. Without a timer, a shorter wait may take twice as long. A longer wait has no end.
    const TIMED_WAITS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(30 * 24 * 3600);

    /// Calls `wait` with a descriptor that is readable after `timeout`, if that is a long wait and the system has a
    /// timer.
    pub(super) fn with<T>(timeout: Option<Duration>, wait: impl FnOnce(Option<BorrowedFd<'_>>) -> T) -> T {
        let timer = timeout.filter(|timeout| TIMED_WAITS.contains(timeout)).and_then(timer);
        wait(timer.as_ref().map(AsFd::as_fd))
    }

    fn timer(timeout: Duration) -> Option<Timer> {
        let timer = Timer::new().ok()?;
        timer.set(timeout).ok()?;
        Some(timer)
    }

    /// A timer as a file, which poll(2) reports as readable once its time has come.
    #[derive(Debug)]
    pub(crate) struct Timer(OwnedFd);

    impl Timer {
        /// Makes a timer without a time.
        ///
        /// # Errors
        /// The system has no room for one more file.
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
        }

        /// The timer becomes readable after `time`, and not before.
        ///
        /// # Errors
        /// The time is too long for the system.
        pub(crate) fn set(&self, time: Duration) -> io::Result<()> {
            // A time of zero would stop the timer.
            let time = time.max(Duration::from_nanos(1));
            let it_value = Timespec::try_from(time).map_err(|_| io::ErrorKind::InvalidInput)?;
            let set = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &set)?;
            Ok(())
        }
    }

    impl AsFd for Timer {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod timer {
    use rustix::fd::BorrowedFd;
    use std::time::Duration;

    pub(super) fn with<T>(_: Option<Duration>, wait: impl FnOnce(Option<BorrowedFd<'_>>) -> T) -> T {
        wait(None)
    }
}

/// Whether the descriptor is ready for `wanted`, or is at an error or the end.
pub(super) fn is_ready(fd: impl AsFd, wanted: PollFlags) -> io::Result<bool> {
    poll([(Some(fd.as_fd()), wanted)], Some(Duration::ZERO)).map(|[found]| !found.is_empty())
}

/// Waits until something can be written to the descriptor. Returns whether it had to wait.
pub(super) fn wait_for_reader(fd: impl AsFd) -> io::Result<bool> {
    let [found] = poll([(Some(fd.as_fd()), PollFlags::OUT)], Some(Duration::ZERO))?;
    if found == PollFlags::OUT {
        return Ok(false);
    }
    wait_for(fd, PollFlags::OUT).map(|()| true)
}

/// Waits until the descriptor is ready for `wanted`. Fails with `BrokenPipe` if it waits to write and the reader is
/// gone.
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
