//! Decides which attempts are repeated, and when. Pure: time and chance are parameters.

mod pause;
mod policy;

use super::job::{Key, Outcome};
use super::reply::Reply;
use crate::flow::ServerReport;
use pause::{ENOUGH, Pause, Serves};
pub(crate) use pause::{History, Judged};
use policy::Meaning;
pub use policy::{Backoff, Failure, Later, RetryPolicy, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;
use throttle_limits::clock::{Nanos, SECOND, in_nanos};
use throttle_limits::limits::{Pace, Served, Start};

/// Decides which attempts are made again, and when.
#[derive(Debug)]
pub(super) struct Retries {
    policy: RetryPolicy,
    /// One for each key, or one for all units.
    pauses: BTreeMap<Key, Pause>,
    /// Why the latest pause of a key has its end.
    causes: BTreeMap<Key, Cause>,
    /// No pause is forgotten before this time.
    sweep_at: Nanos,
    /// Reports for the bucket: one for each key, or one for all units.
    reports: BTreeMap<Key, ServerReport>,
}

/// Why a pause has its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The server named this wait, in nanoseconds.
    Named(Nanos),
    /// The server named no time, or a time that was too short before.
    Own,
}

impl Cause {
    /// The cause of a pause that takes `pause` nanoseconds from a refusal with this named time.
    fn of(named: Option<Duration>, pause: Nanos) -> Self {
        match named.map(in_nanos) {
            Some(named) if named >= pause => Cause::Named(named),
            _ => Cause::Own,
        }
    }
}

/// A pause that is longer than `--max-pause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlong {
    /// The rest of the pause.
    pub rest: Duration,
    /// The time from the first refusal after the last success to the end of the pause.
    pub total: Duration,
    /// Why the pause exceeds `--max-pause`.
    pub why: Excess,
}

/// Why a pause is longer than `--max-pause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// The server named a longer time.
    OneWait,
    /// The server named shorter times, but has accepted no unit since the first of them.
    SumOfWaits,
    /// The server has accepted no unit, and named no time, or times that were too short.
    OwnPauses,
}

/// The number of stored pauses at which finished pauses are forgotten.
const MANY_PAUSES: usize = 10_000;

/// The least time between two searches for finished pauses, in nanoseconds.
const SWEEP: Nanos = SECOND;

impl Retries {
    /// Begins without failures.
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Retries { policy, pauses: BTreeMap::new(), causes: BTreeMap::new(), sweep_at: 0, reports: BTreeMap::new() }
    }

    /// Decides what follows from the end of an attempt for a unit of `key`. `no_others_wait` returns whether every unit
    /// that waits, or will wait, was refused before. `pace` is the learned pace of the key. `chance(n)` returns a random number from 0 to n.
    pub(super) fn judge(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (outcome, reply, pace): (&Outcome, &Reply, &Pace),
        no_others_wait: impl FnOnce() -> bool,
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        let meaning = self.policy.meaning(outcome, reply, history.used + 1);
        if let Some(pause) = self.pauses.get_mut(key) {
            pause.others = pause.others.saturating_sub(u32::from(!history.was_refused()));
            pause.is_at_end = matches!(meaning, Meaning::Later(_)) && pause.others == 0 && no_others_wait();
        }
        let verdict = self.follows(key, (ended, &mut *history), (meaning, reply, pace), &mut chance);
        self.pauses.get(key).map_or(verdict, |pause| pause.suspect(history, verdict))
    }

    fn follows(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (meaning, reply, pace): (Meaning, &Reply, &Pace),
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        let is_served = meaning == Meaning::Ok || meaning == Meaning::Failed && reply.is_answered();
        match meaning {
            _ if is_served => {
                if let Some(pause) = self.pauses.get_mut(key) {
                    if pace.listens() {
                        let report = self.reports.entry(key.clone()).or_default();
                        report.served = report.served.and(pause.success(*history));
                    }
                    pause.succeeded(ended, *history, pace);
                }
                if meaning == Meaning::Ok { Verdict::Ok } else { Verdict::Failed }
            }
            Meaning::Again => {
                history.used += 1;
                Verdict::Again(ended.at.saturating_add(self.policy.backoff.wait(history.used, &mut chance)))
            }
            Meaning::Later(named) => self.later(key, (ended, history), (named, pace), chance),
            Meaning::Failed | Meaning::Ok => Verdict::Failed,
        }
    }

    /// Handles a server's request to wait. All units of the key wait, unless the request concerns only this unit.
    fn later(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (named, pace): (Option<Duration>, &Pace),
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> Verdict {
        self.forget(ended.at);
        let policy = &self.policy;
        let pause = self.pauses.entry(key.clone()).or_insert_with(Pause::new);
        let serves = pause.serves_others(*history, ended.at, in_nanos(policy.backoff.longest));
        let is_bad = history.refusals > 1 && !history.is_bad && pause.has_served(ENOUGH, history.refused_at);
        history.refused_at = ended.at;
        if serves == Serves::Unknown {
            let before = pause.until;
            let until = pause.later((ended, *history), (named, pace), |incidents| policy.pause(incidents));
            if until > before {
                self.causes.insert(key.clone(), Cause::of(named, until.saturating_sub(ended.at)));
            }
            self.reports.entry(key.clone()).or_default().refused.push(history.start);
            if history.refusals == 0 {
                (pause.new_at, history.first_refused_at) = (ended.at, ended.at);
            }
            history.refusals += 1;
            return Verdict::Later(until);
        }
        pause.alone += 1;
        if is_bad {
            history.is_bad = true;
            let report = self.reports.entry(key.clone()).or_default();
            report.served = report.served.and(Served::default().but_one());
        }
        let is_sure = serves == Serves::Enough;
        // With one attempt for each unit, the first refusal that certainly concerns only the unit is forgiven. The
        // refusal before it paused all units.
        history.used += u32::from(is_sure && (policy.attempts.get() > 1 || history.is_sure));
        history.is_sure |= is_sure;
        history.alone += 1;
        let wait = policy.backoff.wait(if is_sure { history.used.max(1) } else { history.alone }, &mut chance);
        let due = ended.at.saturating_add(named.map_or(wait, |named| in_nanos(named).max(wait)));
        let may_wait = named.is_none_or(|named| named <= policy.max_pause);
        match may_wait && history.used < policy.attempts.get() {
            true if is_sure => Verdict::Again(due),
            true => Verdict::Later(due),
            false => Verdict::Failed,
        }
    }

    /// Whether a pace is learned: see [`RetryPolicy::learns`].
    pub(super) fn learns(&self) -> bool {
        self.policy.learns
    }

    /// Records the start of a unit of `key`, as the learned pace counts it.
    pub(super) fn started(&mut self, key: &Key, now: Nanos, history: &mut History, start: Start) {
        self.forget(now);
        history.start = start;
        if let Some(pause) = self.pause(key) {
            pause.others += u32::from(!history.was_refused());
        }
    }

    /// Returns the pauses of this key; `None` if too many keys are stored.
    fn pause(&mut self, key: &Key) -> Option<&mut Pause> {
        if self.pauses.len() < MANY_PAUSES && !self.pauses.contains_key(key) {
            self.pauses.insert(key.clone(), Pause::new());
        }
        self.pauses.get_mut(key)
    }

    /// The history of a unit that an earlier run has left over. Perhaps the server always refuses this unit. So it
    /// counts as refused once even before its first attempt.
    pub(super) fn left_over(&mut self, key: &Key, now: Nanos) -> History {
        self.pause(key).map_or_else(History::default, |_| History::left_over(now))
    }

    /// How long the pause of `key` lasts after `at`, in nanoseconds.
    pub(super) fn pause_left(&self, key: &Key, at: Nanos) -> Nanos {
        self.pauses.get(key).map_or(0, |pause| pause.until.saturating_sub(at))
    }

    /// If many pauses are stored, forgets the finished pauses that left no other state behind.
    fn forget(&mut self, now: Nanos) {
        if self.pauses.len() >= MANY_PAUSES && now >= self.sweep_at {
            self.sweep_at = now.saturating_add(SWEEP);
            let is_left = |pause: &Pause| pause.until > now || pause.alone > 0;
            self.pauses.retain(|_, pause| is_left(pause));
            self.causes.retain(|key, _| self.pauses.contains_key(key));
        }
    }

    /// Returns how long no unit of `key` may start from `now` on, unless this pause was returned before. The result is
    /// at most `max_pause`: a longer pause ends this run, and other users of the bucket should wait no longer than this
    /// run would.
    pub(super) fn take_hold(&mut self, key: &Key, now: Nanos) -> Option<Nanos> {
        let pause = self.pauses.get_mut(key)?;
        let is_news = std::mem::take(&mut pause.is_news);
        let hold = pause.until.saturating_sub(now).min(in_nanos(self.policy.max_pause));
        Some(hold).filter(|hold| is_news && *hold > 0)
    }

    /// Takes the reports for the learned paces: one for each key, or one for all units.
    pub(super) fn take_reports(&mut self) -> BTreeMap<Key, ServerReport> {
        std::mem::take(&mut self.reports)
    }

    /// The rest of the pause of `key`, if the pause is longer than allowed. Its units should then be abandoned.
    pub(super) fn overlong_pause(&self, key: &Key, now: Nanos) -> Option<Overlong> {
        let pause = self.pauses.get(key)?;
        let (since, max_pause) = (pause.since?, self.policy.max_pause);
        let why = match self.cause(key) {
            Cause::Named(wait) if wait > in_nanos(max_pause) => Excess::OneWait,
            Cause::Named(_) => Excess::SumOfWaits,
            Cause::Own => Excess::OwnPauses,
        };
        let [rest, total] = [now, since].map(|from| Duration::from_nanos(pause.until.saturating_sub(from)));
        (total > max_pause).then_some(Overlong { rest, total, why })
    }

    /// Whether the server named the end of the pause of `key`.
    pub(super) fn is_named(&self, key: &Key) -> bool {
        self.cause(key) != Cause::Own
    }

    fn cause(&self, key: &Key) -> Cause {
        self.causes.get(key).copied().unwrap_or(Cause::Own)
    }

    /// Whether `--later-on` names this HTTP status.
    pub(super) fn names_status(&self, status: u16) -> bool {
        self.policy.names_status(status)
    }
}

#[cfg(test)]
mod tests;
