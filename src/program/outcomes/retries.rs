//! Counts of further attempts and of pauses.

use crate::program::args::MaxFail;
use crate::program::names::shown;
use std::time::Duration;
use throttle_limits::clock::{self, Nanos, SECOND, in_nanos};

/// What further attempts add to the counts.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// How many failed units end the run.
    pub(super) max_fail: Option<MaxFail>,
    /// An exit of 255 does not end it.
    pub(super) goes_on_after_255: bool,
    /// Units that succeeded, but not at the first attempt.
    pub(super) ok: u64,
    /// Attempts after which the server asked to wait.
    pub(super) later: u64,
    /// Units that wait for another attempt, and when the last of them is due.
    pub(super) waiting: u64,
    pub(super) due: Nanos,
    /// Units that wait for another attempt, which will not be made.
    pub(super) given_up: u64,
    /// Units that were read ahead and not tried.
    pub(super) unstarted: u64,
    /// Units that an earlier run has done, and those in the list when it was opened.
    pub(super) done_before: u64,
    pub(super) known: u64,
    /// The end of the latest pause, and the time of all together.
    pub(super) paused_until: Nanos,
    pub(super) paused: Nanos,
    pub(super) long_pause: LongPause,
}

impl Retries {
    /// A unit waits for another attempt, `time` from `now` on. `is_told`: a server asked to wait.
    pub(super) fn wait(&mut self, now: Nanos, time: Duration, is_told: bool) {
        let until = now.saturating_add(in_nanos(time));
        (self.waiting, self.due) = (self.waiting + 1, self.due.max(until));
        if is_told {
            self.later += 1;
            self.paused += until.saturating_sub(self.paused_until.max(now));
            self.paused_until = self.paused_until.max(until);
        }
    }

    /// The run ends: a pause lasts no longer.
    pub(super) fn close(&mut self, now: Nanos) {
        self.paused = self.paused.saturating_sub(self.paused_until.saturating_sub(now));
        self.paused_until = self.paused_until.min(now);
    }
}

/// A shorter pause is not worth a line.
const LONG: Nanos = 60 * SECOND;

/// Announces each pause of a minute or more once.
#[derive(Debug, Default)]
pub(super) struct LongPause {
    /// The end of the latest pause that was announced.
    said_until: Nanos,
}

impl LongPause {
    /// The line about a pause, now, of a key or of the whole run.
    pub(super) fn line(&mut self, now: Nanos, until: Nanos, key: Option<&[u8]>) -> Option<String> {
        if until < now.saturating_add(LONG) || self.said_until > now {
            return None;
        }
        self.said_until = until;
        let wait = clock::shown_wait(until - now);
        Some(match key {
            Some(key) => format!("'{}' asked to wait: nothing of it starts for {wait}", shown(key)),
            None => format!("a server asked to wait: nothing starts for {wait}"),
        })
    }
}
