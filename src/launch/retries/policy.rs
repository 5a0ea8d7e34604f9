//! What is tried again, and when, as the flags say it.

use crate::launch::job::Outcome;
use crate::launch::reply::Reply;
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_limits::clock::{Nanos, in_nanos};

/// A command that exits with this code asks to be run again later (`EX_TEMPFAIL`, sysexits.h).
const TEMPORARY_FAILURE: u8 = 75;

/// The least pause if the server names no time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// What is tried again, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts for each unit, the first one included.
    pub attempts: NonZeroU32,
    /// Waits after failures.
    pub backoff: Backoff,
    /// Failures that are tried again; `None`: all that may be.
    pub retry_on: Option<Vec<Failure>>,
    /// What else means that the server asked to wait.
    pub later_on: Vec<Later>,
    /// The longest time from the first answer that asks to wait to the end of the pause, while no attempt succeeds.
    pub max_pause: Duration,
    /// How many units may wait for another attempt before no new ones start.
    pub ahead: usize,
    /// The time between two commands as the limits allow it, of each key if limits are kept for each; 0: no limit.
    pub interval: Duration,
    /// Whether commands start more slowly if the server allows less.
    pub learns: bool,
    /// There is one command: an exit of 255 has no other meaning than to end a run.
    pub is_once: bool,
}

/// Waits that double: before attempt k + 1, between half and all of min(longest, first · 2^(k − 1)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// This exit code.
    Exit(u8),
    /// It took longer than allowed.
    Timeout,
    /// A signal killed it.
    Signal,
}

/// What means that the server asked to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// This exit code.
    Exit(u8),
    /// This HTTP status in the reply.
    Http(u16),
}

/// What follows from the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The unit is done.
    Ok,
    /// Another attempt is due at this time.
    Again(Nanos),
    /// The server asked to wait: another attempt is due at this time.
    Later(Nanos),
    /// The unit has failed.
    Failed,
    /// The run ends.
    Stopped,
}

impl Verdict {
    /// Whether the unit waits for another attempt.
    #[must_use]
    pub fn is_repeated(self) -> bool {
        self.due().is_some()
    }

    /// When that is due.
    #[must_use]
    pub fn due(self) -> Option<Nanos> {
        match self {
            Verdict::Again(due) | Verdict::Later(due) => Some(due),
            Verdict::Ok | Verdict::Failed | Verdict::Stopped => None,
        }
    }
}

/// What an attempt's end means, whatever time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Ok,
    Again,
    /// With the time that the server named.
    Later(Option<Duration>),
    Failed,
}

impl RetryPolicy {
    /// The pause of the so many-th incident if the server names no time: two intervals, then twice as much each time, up to
    /// the longest wait.
    pub(super) fn pause(&self, incidents: u32) -> Nanos {
        let first = self.interval.saturating_mul(2).max(SHORTEST_PAUSE);
        in_nanos(first.saturating_mul(2_u32.saturating_pow(incidents.saturating_sub(1))).min(self.backoff.longest))
    }

    pub(super) fn meaning(&self, outcome: &Outcome, reply: &Reply, used: u32) -> Meaning {
        if let Some(later) = self.asked_to_wait(outcome, reply) {
            return later;
        }
        let failure = match outcome {
            Outcome::Ok => return Meaning::Ok,
            Outcome::Exited(126 | 127) => return Meaning::Failed,
            Outcome::Exited(255) if !self.goes_on_after_255() => return Meaning::Failed,
            Outcome::Exited(code) => u8::try_from(*code).map_or(Failure::Signal, Failure::Exit),
            Outcome::Killed(_) => Failure::Signal,
            Outcome::TimedOut => Failure::Timeout,
            _ => return Meaning::Failed,
        };
        let is_lasting = matches!(reply.status, Some(400..=499)) && !matches!(reply.status, Some(408 | 425 | 429));
        let is_wanted = self.retry_on.as_ref().is_none_or(|wanted| wanted.contains(&failure));
        if is_lasting || !is_wanted || used >= self.attempts.get() { Meaning::Failed } else { Meaning::Again }
    }

    /// Whether an exit of 255 means no more than others: if not, it ends the run, as in xargs.
    #[must_use]
    pub fn goes_on_after_255(&self) -> bool {
        self.is_once
            || self.retry_on.iter().flatten().any(|failure| *failure == Failure::Exit(255))
            || self.later_on.contains(&Later::Exit(255))
    }

    /// Whether the server asked to wait, and for how long if it said so.
    pub(super) fn asked_to_wait(&self, outcome: &Outcome, reply: &Reply) -> Option<Meaning> {
        let exit = if let Outcome::Exited(code) = outcome { u8::try_from(*code).ok() } else { None };
        let named = |later: &Later| match *later {
            Later::Exit(code) => exit == Some(code),
            Later::Http(status) => reply.status == Some(status),
        };
        let is_named = self.later_on.iter().any(named);
        let has_failed = match outcome {
            Outcome::Ok => false,
            Outcome::Exited(255) if !is_named => return None,
            Outcome::Exited(_) | Outcome::Killed(_) | Outcome::TimedOut => true,
            _ => return None,
        };
        let is_refused = matches!(reply.status, Some(429 | 503));
        let reset = reply.reset.filter(|_| is_named || matches!(reply.status, Some(403 | 429)));
        let asks = exit == Some(TEMPORARY_FAILURE)
            || is_named
            || is_refused
            || (has_failed && (reply.retry_after.is_some() || reset.is_some()));
        asks.then(|| Meaning::Later(reply.retry_after.flatten().or(reset)))
    }
}

impl Backoff {
    /// The wait after `steps` failures in a row, at least one.
    pub(super) fn wait(&self, steps: u32, chance: &mut impl FnMut(Nanos) -> Nanos) -> Nanos {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(steps.saturating_sub(1)));
        let longest = in_nanos(doubled.min(self.longest));
        longest - chance(longest / 2)
    }
}
