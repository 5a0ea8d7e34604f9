//! The rules for further attempts, as the flags give them.

use crate::launch::job::Outcome;
use crate::launch::reply::Reply;
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_limits::clock::{Nanos, in_nanos};

/// The exit code with which a command requests to be run again later (`EX_TEMPFAIL`, sysexits.h).
const TEMPORARY_FAILURE: u8 = 75;

/// The shortest pause if the server names no time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The rules for further attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts for each unit, the first one included.
    pub attempts: NonZeroU32,
    /// Waits after failures.
    pub backoff: Backoff,
    /// Failures that are tried again; `None`: all failures except final failures, such as an exit of 127.
    pub retry_on: Option<Vec<Failure>>,
    /// Exit codes and HTTP statuses that also mean a request to wait.
    pub later_on: Vec<Later>,
    /// The longest time from the first refusal to the end of the pause, while no attempt succeeds.
    pub max_pause: Duration,
    /// The most units that wait for another attempt. At this number, no new unit starts.
    pub ahead: usize,
    /// The time that the limits require between two commands; 0: no limit. If limits are kept per key, between two
    /// commands of a key.
    pub interval: Duration,
    /// Whether commands start more slowly if the server allows less than the limits.
    pub learns: bool,
    /// Whether the run has a single command. Then an exit of 255 has no special meaning.
    pub is_once: bool,
}

/// Waits that double. The wait before attempt k + 1 is between half and all of min(longest, first · 2^(k − 1)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An exit with this code.
    Exit(u8),
    /// The command took longer than allowed.
    Timeout,
    /// A signal killed the command.
    Signal,
}

/// A sign of a request to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// An exit with this code.
    Exit(u8),
    /// This HTTP status in the reply.
    Http(u16),
}

/// The decision after the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The unit is done.
    Ok,
    /// Another attempt is due at this time.
    Again(Nanos),
    /// The server refused the unit: another attempt is due at this time.
    Later(Nanos),
    /// The unit has failed.
    Failed,
    /// The run ends.
    Stopped,
}

impl Verdict {
    /// Whether the unit waits for another attempt.
    pub fn is_repeated(self) -> bool {
        self.due().is_some()
    }

    /// When that attempt is due.
    pub fn due(self) -> Option<Nanos> {
        match self {
            Verdict::Again(due) | Verdict::Later(due) => Some(due),
            Verdict::Ok | Verdict::Failed | Verdict::Stopped => None,
        }
    }
}

/// The meaning of an attempt's end, independent of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Ok,
    Again,
    /// A request to wait, with the time that the server named.
    Later(Option<Duration>),
    Failed,
}

impl RetryPolicy {
    /// The pause after `incidents` consecutive incidents, if the server names no time. The first pause is two
    /// intervals, at least [`SHORTEST_PAUSE`]. Each further pause is twice as long, up to the longest backoff.
    pub(super) fn pause(&self, incidents: u32) -> Nanos {
        let first = self.interval.saturating_mul(2).max(SHORTEST_PAUSE);
        in_nanos(first.saturating_mul(2_u32.saturating_pow(incidents.saturating_sub(1))).min(self.backoff.longest))
    }

    pub(super) fn meaning(&self, outcome: &Outcome, reply: &Reply, used: u32) -> Meaning {
        if let Some(later) = self.requested_wait(outcome, reply) {
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

    /// Whether an exit of 255 is an ordinary failure. If not, it ends the run, as in xargs.
    pub fn goes_on_after_255(&self) -> bool {
        self.is_once
            || self.retry_on.iter().flatten().any(|failure| *failure == Failure::Exit(255))
            || self.later_on.contains(&Later::Exit(255))
    }

    /// Returns [`Meaning::Later`] if the attempt was refused, with the time that the server named.
    pub(super) fn requested_wait(&self, outcome: &Outcome, reply: &Reply) -> Option<Meaning> {
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
        let requests_wait = exit == Some(TEMPORARY_FAILURE)
            || is_named
            || is_refused
            || (has_failed && (reply.retry_after.is_some() || reset.is_some()));
        requests_wait.then(|| Meaning::Later(reply.retry_after.flatten().or(reset)))
    }
}

impl Backoff {
    /// The wait after `steps` consecutive failures, at least one.
    pub(super) fn wait(&self, steps: u32, chance: &mut impl FnMut(Nanos) -> Nanos) -> Nanos {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(steps.saturating_sub(1)));
        let longest = in_nanos(doubled.min(self.longest));
        longest - chance(longest / 2)
    }
}
