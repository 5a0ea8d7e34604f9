//! Counts of further attempts and of pauses.

use crate::program::args::MaxFail;
use crate::program::names::shown;
use crate::program::time_of_day::until_if_read_later;
use crate::program::unit_name::shown_pace;
use std::collections::BTreeSet;
use std::time::Duration;
use throttle::launch::{Job, Key};
use throttle_limits::clock::{self, Nanos, SECOND, in_nanos};

/// A shorter pause is not worth a line.
const MIN_ANNOUNCED_PAUSE: Nanos = 60 * SECOND;

/// The counts for further attempts and pauses.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    /// The number or share of failed units that ends the run (`--max-fail`).
    pub(crate) max_fail: Option<MaxFail>,
    /// Whether the run continues after an exit of 255.
    pub(crate) goes_on_after_255: bool,
    /// The learned pace, as the time between two starts. It is the pace of the key that a server has slowed down most,
    /// or of all units.
    pub(crate) learned: Option<(Duration, Key)>,
    /// Units that succeeded, but not at the first attempt.
    pub(crate) ok: u64,
    /// Attempts after which the server requested a wait.
    pub(crate) later: u64,
    /// Commands that wait for another attempt, and their units.
    pub(crate) waiting: u64,
    pub(crate) waiting_units: u64,
    /// The time at which the last waiting attempt is due.
    pub(crate) due: Nanos,
    /// Units that waited for another attempt, which will not be made.
    pub(crate) given_up: u64,
    /// The commands of these units.
    pub(crate) given_up_commands: u64,
    /// The keys that were reported as given up.
    pub(crate) given_up_keys: BTreeSet<Box<[u8]>>,
    /// Units that were read ahead and not started.
    pub(crate) unstarted: u64,
    /// Units that an earlier run has done.
    pub(crate) done_before: u64,
    /// Units in the done list when it was opened.
    pub(crate) known: u64,
    /// The end of the latest pause.
    pub(crate) paused_until: Nanos,
    /// The total time of all pauses.
    pub(crate) paused: Nanos,
    /// The end of the latest pause that was announced.
    pub(crate) announced_until: Nanos,
}

impl Retries {
    /// Records the pace after an attempt for a unit of `key`. `pace` is the time between two starts, if the server
    /// allows less than the limits.
    pub(crate) fn note_pace(&mut self, pace: Option<Duration>, key: &Key) {
        let is_slowest = |(slowest, of): &(Duration, Key)| of == key || pace > Some(*slowest);
        if self.learned.as_ref().is_none_or(is_slowest) {
            self.learned = pace.map(|pace| (pace, key.clone()));
        }
    }

    /// The starts per second of the slowest key.
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
        let calls = if self.later == 1 { "1 call was".to_owned() } else { format!("{} calls were", self.later) };
        Some(format!("slowed down to {}{key}: {calls} told to wait", self.learned_text()?))
    }

    /// Counts a command that waits no more for another attempt.
    pub(crate) fn waits_no_more(&mut self, job: &Job) {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting_units = self.waiting_units.saturating_sub(job.unit_count());
    }

    /// Counts a command that waits for another attempt. It waits for `time`, from `now` on. `paused` is the pause that a
    /// server requested, during which nothing starts.
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

    /// Ends the pause, because the run ends.
    pub(crate) fn close(&mut self, now: Nanos) {
        self.paused = self.paused.saturating_sub(self.paused_until.saturating_sub(now));
        self.paused_until = self.paused_until.min(now);
    }

    /// The line about the current pause of a key or of the whole run. Each pause of a minute or more is announced once.
    /// `is_named`: the server named the end of the pause.
    pub(crate) fn long_pause(&mut self, now: Nanos, key: Option<&[u8]>, is_named: bool) -> Option<String> {
        if self.paused_until < now.saturating_add(MIN_ANNOUNCED_PAUSE) || self.announced_until > now {
            return None;
        }
        self.announced_until = self.paused_until;
        let wait = self.paused_until - now;
        let (wait, until) = (clock::shown_wait(wait), until_if_read_later(wait));
        let request = if is_named { "requested a wait" } else { "still refuses units" };
        Some(match key {
            Some(key) => {
                format!("the server of '{}' {request}: no unit of this key starts for {wait}{until}", shown(key))
            }
            None => format!("a server {request}: nothing starts for {wait}{until}"),
        })
    }
}
