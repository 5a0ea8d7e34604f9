//! Attempts that are made again: what the pump's thread and the commands' tasks share of them.

use super::attempt::Attempt;
use super::job::Outcome;
use super::reply::Reply;
use super::retries::{Judged, MEMORY, Retries, RetryPolicy, Verdict};
use crate::clock::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Attempts that are made again, and how the pump learns of them.
#[derive(Debug)]
pub(super) struct Again {
    retries: Mutex<Retries<Attempt>>,
    begun: Instant,
    /// What a file counts as, in bytes.
    file_size: usize,
    pump: OnceLock<Thread>,
    is_polling: AtomicBool,
    /// Whatever is written there wakes the pump while it polls.
    wakes: File,
    waker: File,
}

/// How many files attempts may hold that wait: a quarter of those that this process may open.
fn most_files() -> usize {
    let open_files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    (open_files / 4).clamp(1, MEMORY)
}

impl Again {
    /// # Errors
    /// The system has no room for two more files.
    pub(super) fn new(policy: RetryPolicy) -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        for end in [read.as_fd(), write.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Again {
            retries: Mutex::new(Retries::new(policy)),
            begun: Instant::now(),
            file_size: MEMORY / most_files(),
            pump: OnceLock::new(),
            is_polling: AtomicBool::new(false),
            wakes: OwnedFd::from(read).into(),
            waker: OwnedFd::from(write).into(),
        })
    }

    fn at(&self, time: Instant) -> Nanos {
        u64::try_from(time.saturating_duration_since(self.begun).as_nanos()).unwrap_or(Nanos::MAX)
    }

    fn now(&self) -> Nanos {
        self.at(Instant::now())
    }

    fn retries(&self) -> MutexGuard<'_, Retries<Attempt>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what follows from the end of an attempt. The pump learns of a pause at once.
    pub(super) fn judge(&self, attempt: &Attempt, times: [Instant; 2], outcome: &Outcome, reply: &Reply) -> Verdict {
        let [started, at] = times.map(|time| self.at(time));
        let judged = Judged { started, at, used: attempt.used + 1 };
        let verdict = self.retries().judge(judged, outcome, reply, |most| fastrand::u64(..=most));
        if matches!(verdict, Verdict::Later(_)) {
            self.wake_pump();
        }
        verdict
    }

    /// The time at which an attempt is due.
    pub(super) fn instant(&self, due: Nanos) -> Instant {
        let longest = Instant::now() + super::options::NEVER;
        self.begun.checked_add(Duration::from_nanos(due)).map_or(longest, |due| due.min(longest))
    }

    pub(super) fn add(&self, due: Nanos, attempt: Attempt) {
        let file = if attempt.job.is_in_file() { self.file_size } else { 0 };
        let size = attempt.job.memory() + size_of::<Attempt>() + file;
        self.retries().add(due, attempt.job.seq, size, attempt);
    }

    /// An attempt has ended, and all that follows from it was noted.
    pub(super) fn wake_pump(&self) {
        if self.is_polling.load(Ordering::SeqCst) {
            // If the pipe is full, the pump wakes as well.
            let _ = (&self.waker).write(&[0]);
        }
        if self.has_hold() {
            self.pump.get().into_iter().for_each(Thread::unpark);
        }
    }

    /// How many attempts are due, and when the next one is.
    pub(super) fn due(&self) -> (u64, Option<Duration>) {
        let (mut retries, now) = (self.retries(), self.now());
        let due = retries.agenda().due(now) as u64;
        let next = retries.agenda().next_due().map(|next| Duration::from_nanos(next.saturating_sub(now)));
        (due, next)
    }

    /// The attempt to be made next, which stays where it is.
    pub(super) fn next(&self) -> Option<Attempt> {
        let now = self.now();
        self.retries().agenda().oldest_due(now).cloned()
    }

    /// It starts now.
    pub(super) fn remove(&self, attempt: &Attempt) {
        drop(self.retries().agenda().remove_due(attempt.job.seq));
    }

    pub(super) fn is_full(&self) -> bool {
        self.retries().is_full()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.retries().agenda().is_empty()
    }

    pub(super) fn has_hold(&self) -> bool {
        self.retries().has_hold()
    }

    pub(super) fn take_hold(&self) -> Option<Nanos> {
        let now = self.now();
        self.retries().take_hold(now)
    }

    /// How long the pause still lasts, if it is longer than allowed.
    pub(super) fn overlong_pause(&self) -> Option<Nanos> {
        self.retries().overlong_pause(self.now())
    }

    /// Takes out the attempts that will not be made any more.
    pub(super) fn drain(&self) -> Vec<Attempt> {
        self.retries().agenda().drain().collect()
    }

    /// Returns when `source` can be read, an attempt is due, or the pump was woken; at once if `is_news`.
    pub(super) fn wait(&self, source: Option<BorrowedFd<'_>>, is_news: impl Fn() -> bool) -> io::Result<()> {
        self.is_polling.store(true, Ordering::SeqCst);
        let (due, next) = self.due();
        let polled = if due > 0 || self.has_hold() || is_news() { Ok(()) } else { self.poll(source, next) };
        self.is_polling.store(false, Ordering::SeqCst);
        polled
    }

    fn poll(&self, source: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.wakes, PollFlags::IN)];
        fds.extend(source.as_ref().map(|source| PollFd::new(source, PollFlags::IN)));
        // Longer than poll can wait is as good as for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        while matches!((&self.wakes).read(&mut bytes), Ok(1..)) {}
        Ok(())
    }

    /// The thread that calls this is the pump's.
    pub(super) fn is_used_by_pump(&self) {
        let _ = self.pump.set(thread::current());
    }
}
