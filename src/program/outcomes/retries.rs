//! Counts of further attempts and of pauses.

use crate::program::args::MaxFail;
use crate::program::names::shown;
use crate::program::time_of_day::until_unless_seen;
use crate::program::unit_name::shown_pace;
use std::collections::BTreeSet;
use std::time::Duration;
use throttle::launch::Key;
use throttle_limits::clock::{self, Nanos, SECOND, in_nanos};

/// A shorter pause is not worth a line.
const LONG: Nanos = 60 * SECOND;

/// What further attempts add to the counts.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    /// How many failed units end the run.
    pub(crate) max_fail: Option<MaxFail>,
    /// An exit of 255 does not end it.
    pub(crate) goes_on_after_255: bool,
    /// The time from one command to the next of the key that a server has slowed down most, or of all.
    pub(crate) learned: Option<(Duration, Key)>,
    /// Units that succeeded, but not at the first attempt.
    pub(crate) ok: u64,
    /// Attempts after which the server asked to wait.
    pub(crate) later: u64,
    /// Units that wait for another attempt, and when the last of them is due.
    pub(crate) waiting: u64,
    pub(crate) due: Nanos,
    /// Units that wait for another attempt, which will not be made.
    pub(crate) given_up: u64,
    /// The keys of which this was said.
    pub(crate) given_up_keys: BTreeSet<Box<[u8]>>,
    /// Units that were read ahead and not tried.
    pub(crate) unstarted: u64,
    /// Units that an earlier run has done, and those in the list when it was opened.
    pub(crate) done_before: u64,
    pub(crate) known: u64,
    /// The end of the latest pause, and the time of all together.
    pub(crate) paused_until: Nanos,
    pub(crate) paused: Nanos,
    /// The end of the latest pause that was announced.
    pub(crate) announced_until: Nanos,
}

impl Retries {
    /// After an attempt for a unit of `key`: commands start so far apart, since the server allows less than the limits.
    pub(crate) fn note_pace(&mut self, pace: Option<Duration>, key: &Key) {
        let is_slowest = |(slowest, of): &(Duration, Key)| of == key || pace > Some(*slowest);
        if self.learned.as_ref().is_none_or(is_slowest) {
            self.learned = pace.map(|pace| (pace, key.clone()));
        }
    }

    /// How many units of the slowest key start in a second.
    pub(crate) fn learned_per_second(&self) -> Option<f64> {
        self.learned.as_ref().map(|(pace, _)| 1.0 / pace.as_secs_f64())
    }

    /// `about 38/s`, `about 5.4/min`
    pub(super) fn learned_text(&self) -> Option<String> {
        self.learned_per_second().map(shown_pace)
    }

    /// `server allows about 38/s`
    pub(crate) fn allowed(&self) -> Option<String> {
        let key = self.learned.as_ref()?.1.as_ref().map(|key| format!("'{}'", shown(key)));
        Some(format!("{} allows {}", key.as_deref().unwrap_or("server"), self.learned_text()?))
    }

    /// `slowed down to about 38/s: 31 calls were told to wait`
    pub(crate) fn slowed_down(&self) -> Option<String> {
        let key = self.learned.as_ref()?.1.as_ref().map_or_else(String::new, |key| format!(" for '{}'", shown(key)));
        let told = if self.later == 1 { "1 call was".to_owned() } else { format!("{} calls were", self.later) };
        Some(format!("slowed down to {}{key}: {told} told to wait", self.learned_text()?))
    }

    /// A unit waits for another attempt, `time` from `now` on. `paused`: a server asked to wait, and so long nothing starts.
    pub(crate) fn wait(&mut self, now: Nanos, time: Duration, paused: Option<Duration>) {
        let until = |time| now.saturating_add(in_nanos(time));
        (self.waiting, self.due) = (self.waiting + 1, self.due.max(until(time)));
        if let Some(paused) = paused {
            let until = until(paused);
            self.later += 1;
            self.paused += until.saturating_sub(self.paused_until.max(now));
            self.paused_until = self.paused_until.max(until);
        }
    }

    /// The run ends: a pause lasts no longer.
    pub(crate) fn close(&mut self, now: Nanos) {
        self.paused = self.paused.saturating_sub(self.paused_until.saturating_sub(now));
        self.paused_until = self.paused_until.min(now);
    }

    /// The line about the pause, now, of a key or of the whole run. Announces each pause of a minute or more once.
    pub(crate) fn long_pause(&mut self, now: Nanos, key: Option<&[u8]>) -> Option<String> {
        if self.paused_until < now.saturating_add(LONG) || self.announced_until > now {
            return None;
        }
        self.announced_until = self.paused_until;
        let wait = self.paused_until - now;
        let (wait, until) = (clock::shown_wait(wait), until_unless_seen(wait));
        Some(match key {
            Some(key) => format!("'{}' asked to wait: nothing of it starts for {wait}{until}", shown(key)),
            None => format!("a server asked to wait: nothing starts for {wait}{until}"),
        })
    }
}
