//! The rules for further attempts, as the flags give them.

use crate::launch::job::Outcome;
use crate::launch::reply::{Answer, Reply, Wait};
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_limits::clock::{Nanos, in_nanos};

/// The exit code with which a command requests to be run again later (`EX_TEMPFAIL`, sysexits.h).
const TEMPORARY_FAILURE: u8 = 75;

/// The exit codes of wget and `curl -f` after a status of 400 or more.
const HTTP_FAILURES: [u8; 2] = [8, 22];

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
        let is_lasting =
            matches!(reply.last.status, Some(400..=499)) && !matches!(reply.last.status, Some(408 | 425 | 429));
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
        let has_failed = match outcome {
            Outcome::Ok => false,
            Outcome::Exited(255) if !self.is_named(exit, &reply.last) => return None,
            Outcome::Exited(_) | Outcome::Killed(_) | Outcome::TimedOut => true,
            _ => return None,
        };
        let of_last = self.wait_of(&reply.last, exit, has_failed);
        of_last.or_else(|| self.wait_of_earlier(reply, exit)).map(Meaning::Later)
    }

    /// Whether `--later-on` names the exit code or the status.
    fn is_named(&self, exit: Option<u8>, answer: &Answer) -> bool {
        self.later_on.iter().any(|later| match *later {
            Later::Exit(code) => exit == Some(code),
            Later::Http(status) => answer.status == Some(status),
        })
    }

    /// Whether `--later-on` names this HTTP status.
    pub(crate) fn names_status(&self, status: u16) -> bool {
        self.later_on.contains(&Later::Http(status))
    }

    /// The wait that a response, or an exit code, requests.
    fn wait_of(&self, answer: &Answer, exit: Option<u8>, has_failed: bool) -> Option<Wait> {
        let is_named = self.is_named(exit, answer);
        let is_used_up = answer.reset.is_some() && matches!(answer.status, Some(403 | 429 | 503));
        let is_refused = is_named || answer.is_refusal();
        let requests_wait = exit == Some(TEMPORARY_FAILURE)
            || is_refused
            || (has_failed && (answer.retry_after.is_some() || is_used_up));
        // If the server refuses a call without a report of what remains, the call was perhaps above its quota.
        let unpaired = answer.unpaired_reset.filter(|_| is_refused).flatten();
        requests_wait.then(|| answer.retry_after.flatten().or(answer.reset.flatten()).or(unpaired))
    }

    /// The longest wait that the responses before the last one request, if one of them is the last response to its
    /// request. A command repeats some requests itself, as `curl --retry` does. If there are more refusals than
    /// repeated requests, a refusal was not repeated. The same holds if curl or wget reports a failure, but the last
    /// response is none.
    fn wait_of_earlier(&self, reply: &Reply, exit: Option<u8>) -> Option<Wait> {
        let refusals: Vec<Wait> =
            reply.earlier.iter().filter_map(|answer| self.wait_of(answer, None, answer.is_error())).collect();
        let is_cause = exit.is_some_and(|exit| HTTP_FAILURES.contains(&exit)) && !reply.last.is_error();
        let is_last_of_request = is_cause || reply.repeated.is_some_and(|repeated| refusals.len() > repeated);
        refusals.into_iter().max().filter(|_| is_last_of_request)
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
