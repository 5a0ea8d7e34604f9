//! Which attempts are made again, and when: as pure decisions. Time and chance are parameters.

use super::job::{Key, Outcome};
use super::reply::Reply;
use crate::flow::Answers;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;
use throttle_limits::clock::{Nanos, SECOND, in_nanos};
use throttle_limits::limits::{Pace, Start};

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
    /// The server asked to wait: another attempt is due at this time, and nothing starts before it.
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
enum Meaning {
    Ok,
    Again,
    /// With the time that the server named.
    Later(Option<Duration>),
    Failed,
}

impl RetryPolicy {
    /// The pause of the so many-th incident if the server names no time: two intervals, then twice as much each time, up to
    /// the longest wait.
    fn pause(&self, incidents: u32) -> Nanos {
        let first = self.interval.saturating_mul(2).max(SHORTEST_PAUSE);
        in_nanos(first.saturating_mul(2_u32.saturating_pow(incidents.saturating_sub(1))).min(self.backoff.longest))
    }

    fn meaning(&self, outcome: &Outcome, reply: &Reply, used: u32) -> Meaning {
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
        self.retry_on.iter().flatten().any(|failure| *failure == Failure::Exit(255))
            || self.later_on.contains(&Later::Exit(255))
    }

    /// Whether the server asked to wait, and for how long if it said so.
    fn asked_to_wait(&self, outcome: &Outcome, reply: &Reply) -> Option<Meaning> {
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
    fn wait(&self, steps: u32, chance: &mut impl FnMut(Nanos) -> Nanos) -> Nanos {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(steps.saturating_sub(1)));
        let longest = in_nanos(doubled.min(self.longest));
        longest - chance(longest / 2)
    }
}

/// Decides which attempts are made again, and when.
#[derive(Debug)]
pub(super) struct Retries {
    policy: RetryPolicy,
    /// Of each key, or of all.
    pauses: BTreeMap<Key, Pause>,
    /// None is forgotten before this time.
    sweep_at: Nanos,
    /// What the limits of all have to learn.
    answers: Answers,
    /// How many units wait for which others go first; `None`: no server has asked to wait yet.
    suspects: Option<u32>,
}

/// Pauses that are over are forgotten when there are so many.
const MANY_PAUSES: usize = 10_000;

/// They are looked through at most once in this time.
const SWEEP: Nanos = SECOND;

/// An attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    /// When it started.
    pub(super) started: Nanos,
    /// When it ended.
    pub(super) at: Nanos,
}

/// If the server serves so many for each unit that it asks to wait, it asks only that unit.
const ENOUGH: u32 = 8;

/// Whether a server serves others while it asks a unit to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    Unknown,
    /// At least one of those that started since this one was told so last.
    Some,
    Enough,
}

/// What the attempts for a unit have come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Attempts that are used up: those after which the server asked to wait do not count.
    used: u32,
    /// After how many attempts the server had all wait, and when it last did so.
    told: u32,
    told_at: Nanos,
    /// When it first did so.
    first_told: Nanos,
    /// After how many it asked only this unit to wait, and whether that was ever sure.
    alone: u32,
    is_sure: bool,
    /// Others go first.
    is_suspect: bool,
    /// The start of the latest one.
    start: Start,
}

impl History {
    /// Whether it was told to wait.
    pub(super) fn was_told(self) -> bool {
        self.told > 0
    }
}

/// The pauses that a server asked for.
#[derive(Debug)]
struct Pause {
    pace: Pace,
    /// Whether the limits of all learn it. Then this is how it was when one started last, and what has happened since.
    is_learned_by_all: bool,
    /// If not: nothing starts before this, since it is slowed.
    next: Nanos,
    /// Nothing starts before this.
    until: Nanos,
    /// It is longer than what the pump knows.
    is_news: bool,
    /// Since the last success ended: pauses, when a server first asked to wait, and how many other units it refused since the
    /// latest pause that made no pause.
    incidents: u32,
    since: Option<Nanos>,
    probes: u32,
    /// How many attempts have succeeded that started after the latest pause began, and how long the latest of all took.
    served: u32,
    took: Nanos,
    /// How often a unit was told to wait since then that paused nobody.
    alone: u32,
    /// When a unit was told so for the first time.
    new_at: Nanos,
    /// How many wait for which others go first.
    suspects: u32,
    /// How many attempts for other units run, and when the latest that succeeded started.
    others: u32,
    served_at: Nanos,
    /// Whether only units are left that were told so before.
    is_at_end: bool,
}

impl Retries {
    /// Nothing has failed yet.
    #[must_use]
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Retries { policy, pauses: BTreeMap::new(), sweep_at: 0, answers: Answers::default(), suspects: None }
    }

    /// Decides what follows from the end of an attempt for a unit of `key`. `no_others_wait`: only units wait, and will, that
    /// were told to wait before. `chance(n)` is a random number from 0 to n.
    pub(super) fn judge(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (outcome, reply): (&Outcome, &Reply),
        no_others_wait: impl FnOnce() -> bool,
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        let meaning = self.policy.meaning(outcome, reply, history.used + 1);
        if let Some(pause) = self.pauses.get_mut(key) {
            pause.others = pause.others.saturating_sub(u32::from(history.told == 0));
            pause.is_at_end = matches!(meaning, Meaning::Later(_)) && pause.others == 0 && no_others_wait();
        }
        let verdict = self.follows(key, (ended, &mut *history), (meaning, reply), &mut chance);
        let Some(pause) = self.pauses.get_mut(key) else { return verdict };
        let before = pause.suspects;
        let verdict = pause.suspect(history, verdict);
        if history.was_told() {
            self.suspects = Some((self.suspects.unwrap_or(0) + pause.suspects).saturating_sub(before));
        }
        verdict
    }

    fn follows(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (meaning, reply): (Meaning, &Reply),
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        let is_served = meaning == Meaning::Ok || meaning == Meaning::Failed && reply.is_answered();
        match meaning {
            _ if is_served => {
                if let Some(pause) = self.pauses.get_mut(key) {
                    if pause.is_learned_by_all && pause.pace.listens() {
                        self.answers.served = self.answers.served.and(history.start.succeeded());
                    }
                    pause.succeeded(ended, *history);
                }
                if meaning == Meaning::Ok { Verdict::Ok } else { Verdict::Failed }
            }
            Meaning::Again => {
                history.used += 1;
                Verdict::Again(ended.at.saturating_add(self.policy.backoff.wait(history.used, &mut chance)))
            }
            Meaning::Later(asked) => self.later(key, (ended, history), asked, chance),
            Meaning::Failed | Meaning::Ok => Verdict::Failed,
        }
    }

    /// The server asked to wait. All wait, unless it asks only this unit.
    fn later(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        asked: Option<Duration>,
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        self.forget(ended.at);
        let policy = &self.policy;
        let pause = self.pauses.entry(key.clone()).or_insert_with(|| Pause::new(policy));
        let serves = pause.serves_others(*history, ended.at, in_nanos(policy.backoff.longest));
        history.told_at = ended.at;
        if serves == Serves::Unknown {
            let until = pause.later((ended, *history), asked, |incidents| policy.pause(incidents));
            if pause.is_learned_by_all {
                self.answers.refused.push(history.start);
            }
            if history.told == 0 {
                (pause.new_at, history.first_told) = (ended.at, ended.at);
            }
            history.told += 1;
            return Verdict::Later(until);
        }
        pause.alone += 1;
        let is_sure = serves == Serves::Enough;
        // Of units that are tried once only the third such answer counts: the first one paused all.
        history.used += u32::from(is_sure && (policy.attempts.get() > 1 || history.is_sure));
        history.is_sure |= is_sure;
        history.alone += 1;
        let wait = policy.backoff.wait(if is_sure { history.used.max(1) } else { history.alone }, &mut chance);
        let due = ended.at.saturating_add(asked.map_or(wait, |asked| in_nanos(asked).max(wait)));
        let may_wait = asked.is_none_or(|asked| asked <= policy.max_pause);
        match may_wait && history.used < policy.attempts.get() {
            true if is_sure => Verdict::Again(due),
            true => Verdict::Later(due),
            false => Verdict::Failed,
        }
    }

    /// Whether the limits of all should learn the pace.
    pub(super) fn learns(&self) -> bool {
        self.policy.learns
    }

    /// A unit of `key` starts now. Returns before which time the next one does not. If the limits of all learn the pace:
    /// that pace, and the start.
    pub(super) fn started(
        &mut self,
        key: &Key,
        now: Nanos,
        history: &mut History,
        all: Option<(Pace, Start)>,
    ) -> Nanos {
        self.forget(now);
        let has_room = self.pauses.len() < MANY_PAUSES;
        let policy = &self.policy;
        let pause = match self.pauses.get_mut(key) {
            Some(pause) => pause,
            None if has_room => self.pauses.entry(key.clone()).or_insert_with(|| Pause::new(policy)),
            None => return 0,
        };
        pause.is_learned_by_all = all.is_some();
        pause.others += u32::from(history.told == 0);
        let Some((pace, start)) = all else {
            history.start = pause.started(now);
            return if policy.learns { pause.next } else { 0 };
        };
        if self.answers.refused.is_empty() {
            pause.pace = pace;
        }
        history.start = start;
        0
    }

    /// The time between two units of `key`, if the server allows less than was asked for.
    pub(super) fn learned(&self, key: &Key) -> Option<Nanos> {
        self.pauses.get(key).filter(|_| self.policy.learns)?.pace.learned()
    }

    /// If there are many, forgets the pauses that are over and have left nothing behind.
    fn forget(&mut self, now: Nanos) {
        if self.pauses.len() >= MANY_PAUSES && now >= self.sweep_at {
            self.sweep_at = now.saturating_add(SWEEP);
            self.pauses.retain(|_, pause| pause.until > now || pause.pace.learned().is_some());
        }
    }

    /// How long no unit of `key` may start from `now` on, if the pump does not know that yet. A pause that is too long ends
    /// the run; others that use the bucket wait no longer than we would have.
    pub(super) fn take_hold(&mut self, key: &Key, now: Nanos) -> Option<Nanos> {
        let pause = self.pauses.get_mut(key)?;
        let is_news = std::mem::take(&mut pause.is_news);
        let left = pause.until.saturating_sub(now).min(in_nanos(self.policy.max_pause));
        Some(left).filter(|left| is_news && *left > 0)
    }

    /// What the pump has to be told about all units from `now` on.
    pub(super) fn take_answers(&mut self, now: Nanos) -> Answers {
        Answers { hold: self.take_hold(&None, now), ..std::mem::take(&mut self.answers) }
    }

    /// Behind how many others of `key` a unit waits that is tried again, even if they are younger.
    pub(super) fn behind(&self, key: &Key, history: History) -> usize {
        let Some(pause) = self.pauses.get(key) else { return 0 };
        if history.is_suspect { (ENOUGH * pause.suspects) as usize } else { 0 }
    }

    /// How many new units should be known, for others to wait behind them.
    pub(super) fn wanted(&self) -> u64 {
        self.suspects.map_or(0, |suspects| u64::from(ENOUGH * (suspects + 1)))
    }

    /// Whether the pump does not know of a pause of all units.
    #[must_use]
    pub(super) fn has_hold(&self) -> bool {
        self.pauses.get(&None).is_some_and(|pause| pause.is_news)
    }

    /// How long the pause of `key` still lasts, if it is longer than allowed: its units should not be tried any more.
    #[must_use]
    pub(super) fn overlong_pause(&self, key: &Key, now: Nanos) -> Option<Nanos> {
        let pause = self.pauses.get(key)?;
        let length = pause.until.saturating_sub(pause.since?);
        (length > in_nanos(self.policy.max_pause)).then(|| pause.until.saturating_sub(now))
    }
}

impl Pause {
    fn new(policy: &RetryPolicy) -> Self {
        Pause {
            pace: Pace::new(in_nanos(policy.interval)),
            is_learned_by_all: false,
            next: 0,
            until: 0,
            is_news: false,
            incidents: 0,
            since: None,
            probes: 0,
            served: 0,
            took: 0,
            alone: 0,
            new_at: 0,
            suspects: 0,
            others: 0,
            served_at: 0,
            is_at_end: false,
        }
    }

    /// One starts now. Those behind it are apart from it as was learned. They do not come closer if it starts late, unless it
    /// is only a little late.
    fn started(&mut self, now: Nanos) -> Start {
        self.pace.started(now, 1);
        let learned = self.pace.learned();
        let from = |interval| self.next.max(now.saturating_sub(interval / 10)).saturating_add(interval);
        self.next = learned.map_or(0, from);
        self.pace.start(now)
    }

    /// An attempt has succeeded, whenever it began: the server serves us. Those that it refuses may be answered much sooner
    /// than those that it serves.
    fn succeeded(&mut self, ended: Judged, history: History) {
        (self.incidents, self.since) = (0, None);
        self.served_at = self.served_at.max(ended.started);
        self.served += u32::from(!self.pace.is_old(history.start));
        self.pace.succeeded(history.start.succeeded(), ended.at);
        self.took = ended.at.saturating_sub(ended.started);
    }

    /// What is known of others when the server asks a unit to wait again.
    fn serves_others(&self, history: History, now: Nanos, long: Nanos) -> Serves {
        let serves_nothing = self.since.is_some_and(|since| now.saturating_sub(since) >= long);
        let is_sure = self.served / ENOUGH > self.alone
            || history.is_sure && (self.incidents == 0 || self.is_at_end)
            || self.is_at_end && serves_nothing && self.served_at > history.first_told;
        match history.told {
            0 => Serves::Unknown,
            _ if is_sure => Serves::Enough,
            _ if self.served_at > history.told_at && self.new_at <= history.told_at => Serves::Some,
            _ => Serves::Unknown,
        }
    }

    /// Others go before a unit that was told so more than once, and before all that were if nothing was served since: that
    /// shows whether the server serves others. They have ended when it is tried again.
    fn suspect(&mut self, history: &mut History, verdict: Verdict) -> Verdict {
        let is_one = history.told + history.alone > 1 || history.told > 0 && self.incidents > 1;
        let is_suspect = verdict.is_repeated() && is_one;
        let was_suspect = std::mem::replace(&mut history.is_suspect, is_suspect);
        self.suspects = (self.suspects + u32::from(is_suspect)).saturating_sub(u32::from(was_suspect));
        match verdict {
            Verdict::Later(due) if is_suspect && !self.is_at_end => {
                Verdict::Later(due.max(history.told_at.saturating_add(self.took.saturating_mul(2))))
            }
            other => other,
        }
    }

    /// The server asked to wait. Returns until when.
    fn later(
        &mut self,
        (ended, history): (Judged, History),
        asked: Option<Duration>,
        unnamed: impl Fn(u32) -> Nanos,
    ) -> Nanos {
        let is_known = self.pace.is_old(history.start);
        self.since.get_or_insert(ended.at);
        (self.served, self.alone) = (0, 0);
        // Those that run and were not refused so far were allowed: their answers may take longer.
        let serves_nothing = !is_known && !self.pace.has_allowed();
        // Some units may be refused always, the first ones after a restart. The longer it lasts, the more different ones are
        // tried between two pauses.
        let most = match self.served_at {
            0 => 2_u32.saturating_pow(self.incidents).min(2 * ENOUGH) / 2,
            _ => self.incidents.saturating_sub(ENOUGH),
        };
        let may_probe = serves_nothing && asked.is_none() && self.others == 0 && !self.is_at_end;
        let is_probe = may_probe && self.probes + 1 < most;
        self.probes = if is_probe { self.probes + 1 } else { 0 };
        if !is_known && !is_probe {
            self.incidents = if serves_nothing { self.incidents.saturating_add(1) } else { 1 };
        }
        let wait = match asked {
            None if is_probe => 0,
            // The time that it named before was too short.
            Some(asked) if !is_known && self.incidents > 1 && history.was_told() => {
                in_nanos(asked).max(unnamed(self.incidents))
            }
            Some(asked) => in_nanos(asked),
            None if is_known => 0,
            None => unnamed(self.incidents),
        };
        let until = ended.at.saturating_add(wait);
        if until > self.until {
            self.until = until;
            self.is_news = true;
        }
        self.pace.refused(history.start, ended.at, self.until);
        self.until
    }
}

#[cfg(test)]
mod tests;
