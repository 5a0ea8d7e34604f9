//! Attempts that are made again: what the pump's thread and the commands' tasks share of them.

use super::attempt::Attempt;
use super::job::{Key, Outcome};
use super::reply::Reply;
use super::retries::{Judged, Retries, RetryPolicy, Verdict};
use super::wakes::Wakes;
use crate::flow::unpoisoned;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use throttle_limits::clock::{Nanos, in_nanos};

/// Attempts that are made again, and how the pump learns of them.
#[derive(Debug)]
pub(super) struct Again {
    retries: Mutex<Retries<Attempt>>,
    begun: Instant,
    wakes: Arc<Wakes>,
}

impl Again {
    pub(super) fn new(policy: RetryPolicy, wakes: Arc<Wakes>) -> Self {
        let (retries, begun) = (Mutex::new(Retries::new(policy)), Instant::now());
        Again { retries, begun, wakes }
    }

    fn at(&self, time: Instant) -> Nanos {
        in_nanos(time.saturating_duration_since(self.begun))
    }

    fn now(&self) -> Nanos {
        self.at(Instant::now())
    }

    fn retries(&self) -> MutexGuard<'_, Retries<Attempt>> {
        unpoisoned(self.retries.lock())
    }

    /// Decides what follows from the end of an attempt. The pump learns of a pause at once.
    pub(super) fn judge(&self, attempt: &Attempt, times: [Instant; 2], outcome: &Outcome, reply: &Reply) -> Verdict {
        let [started, at] = times.map(|time| self.at(time));
        let judged = Judged { started, at, used: attempt.used + 1 };
        let verdict = self.retries().judge(&attempt.job.key, judged, outcome, reply, |most| fastrand::u64(..=most));
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
        let size = attempt.size();
        self.retries().add(due, attempt.job.seq, size, attempt);
    }

    /// An attempt has ended, and all that follows from it was noted.
    pub(super) fn wake_pump(&self) {
        self.wakes.wake();
        if self.has_hold() {
            self.wakes.unpark();
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

    /// Takes out the attempt to be made next, if one is due.
    pub(super) fn take_due(&self) -> Option<Attempt> {
        let (mut retries, now) = (self.retries(), self.now());
        let age = retries.agenda().oldest_due(now)?.job.seq;
        retries.agenda().remove_due(age)
    }

    /// It starts now.
    pub(super) fn remove(&self, attempt: &Attempt) {
        drop(self.retries().agenda().remove_due(attempt.job.seq));
    }

    /// How long until the next attempt is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let (due, next) = self.due();
        if due > 0 { Some(Duration::ZERO) } else { next }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.retries().agenda().len()
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

    /// How long no unit of `key` may start from now on, if that is news.
    pub(super) fn take_hold(&self, key: &Key) -> Option<Nanos> {
        let now = self.now();
        self.retries().take_hold(key, now)
    }

    /// How long the pause of `key` still lasts, if it is longer than allowed.
    pub(super) fn overlong_pause(&self, key: &Key) -> Option<Nanos> {
        self.retries().overlong_pause(key, self.now())
    }

    /// Takes out the attempts for units of this key, which will not be made any more.
    pub(super) fn give_up(&self, key: &Key) -> Vec<Attempt> {
        self.retries().agenda().remove_those(|attempt| attempt.job.key == *key)
    }

    /// Takes out the attempts that will not be made any more.
    pub(super) fn drain(&self) -> Vec<Attempt> {
        self.retries().agenda().drain().collect()
    }

    /// Returns when `source` can be read, an attempt is due, or the pump was woken; at once if `is_news`.
    pub(super) fn wait(&self, source: Option<BorrowedFd<'_>>, is_news: impl Fn() -> bool) -> io::Result<()> {
        self.wakes.wait(source, || {
            let (due, next) = self.due();
            (due == 0 && !self.has_hold() && !is_news()).then(|| next.unwrap_or(Duration::MAX))
        })
    }
}
