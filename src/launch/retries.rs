//! Decides which attempts are repeated, and when. Pure: time and chance are parameters.

mod pause;
mod policy;

use super::job::{Key, Outcome};
use super::reply::Reply;
use crate::flow::ServerReport;
use pause::{Cause, ENOUGH, Pause, Serves};
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
    /// No pause is forgotten before this time.
    sweep_at: Nanos,
}

/// The decision after the end of an attempt.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    /// The facts about the server that the attempt shows. A hold begins at the end of the attempt.
    pub(super) report: ServerReport,
    /// The end of the pause. Nothing of the key starts before it.
    pub(super) until: Nanos,
}

/// A requested pause of all commands, or of the commands of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// The rest of the pause, from now.
    pub rest: Duration,
    /// Whether the server named its end.
    pub is_named: bool,
    /// Whether the pause is longer than allowed. Then [`SentAway`](super::Event::SentAway) or
    /// [`KeySentAway`](super::Event::KeySentAway) reports it.
    pub is_overlong: bool,
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
        Retries { policy, pauses: BTreeMap::new(), sweep_at: 0 }
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
    ) -> Judgement {
        let meaning = self.policy.meaning(outcome, reply, history.used + 1);
        if let Some(pause) = self.pauses.get_mut(key) {
            pause.others = pause.others.saturating_sub(u32::from(!history.was_refused()));
            pause.is_at_end = matches!(meaning, Meaning::Later(_)) && pause.others == 0 && no_others_wait();
        }
        let (verdict, report) = self.follows(key, (ended, &mut *history), (meaning, reply, pace), &mut chance);
        let Some(pause) = self.pauses.get(key) else { return Judgement { verdict, report, until: 0 } };
        Judgement { verdict: pause.suspect(history, verdict), report, until: pause.until }
    }

    fn follows(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (meaning, reply, pace): (Meaning, &Reply, &Pace),
        mut chance: impl FnMut(Nanos) -> Nanos,
    ) -> (Verdict, ServerReport) {
        let mut report = ServerReport::default();
        let is_served = meaning == Meaning::Ok || meaning == Meaning::Failed && reply.is_answered();
        if let Some(pause) = self.pauses.get_mut(key).filter(|_| is_served) {
            if pace.listens() {
                report.served = pause.success(*history);
            }
            pause.succeeded(ended, *history, pace);
        }
        let verdict = match meaning {
            Meaning::Ok => Verdict::Ok,
            Meaning::Failed => Verdict::Failed,
            Meaning::Again => {
                history.used += 1;
                Verdict::Again(ended.at.saturating_add(self.policy.backoff.wait(history.used, &mut chance)))
            }
            Meaning::Later(named) => self.later(key, (ended, history), (named, pace), (&mut report, chance)),
        };
        (verdict, report)
    }

    /// Handles a server's request to wait. All units of the key wait, unless the request concerns only this unit.
    fn later(
        &mut self,
        key: &Key,
        (ended, history): (Judged, &mut History),
        (named, pace): (Option<Duration>, &Pace),
        (report, mut chance): (&mut ServerReport, impl FnMut(Nanos) -> Nanos),
    ) -> Verdict {
        self.forget(ended.at);
        let policy = &self.policy;
        let pause = self.pauses.entry(key.clone()).or_insert_with(Pause::new);
        let serves = pause.serves_others(*history, ended.at, in_nanos(policy.backoff.longest));
        let is_bad = history.refusals > 1 && !history.is_bad && pause.has_served(ENOUGH, history.refused_at);
        history.refused_at = ended.at;
        if serves == Serves::Unknown {
            let is_longer = pause.later((ended, *history), (named, pace), |incidents| policy.pause(incidents));
            // A longer pause ends this run, and other users of the bucket should wait no longer than this run would.
            let hold = pause.until.saturating_sub(ended.at).min(in_nanos(policy.max_pause));
            report.hold = Some(hold).filter(|hold| is_longer && *hold > 0);
            report.refused.push(history.start);
            if history.refusals == 0 {
                (pause.new_at, history.first_refused_at) = (ended.at, ended.at);
            }
            history.refusals += 1;
            return Verdict::Later(pause.until);
        }
        pause.alone += 1;
        if is_bad {
            history.is_bad = true;
            report.served = Served::default().but_one();
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

    /// If many pauses are stored, forgets the finished pauses that left no other state behind.
    fn forget(&mut self, now: Nanos) {
        if self.pauses.len() >= MANY_PAUSES && now >= self.sweep_at {
            self.sweep_at = now.saturating_add(SWEEP);
            let is_left = |pause: &Pause| pause.until > now || pause.alone > 0;
            self.pauses.retain(|_, pause| is_left(pause));
        }
    }

    /// The pause of `key` at `at`. Also returns its rest at `now`, if the pause is longer than allowed. The units of the
    /// key should then be abandoned.
    pub(super) fn standing(&self, key: &Key, at: Nanos, now: Nanos) -> (Paused, Option<Overlong>) {
        let Some(pause) = self.pauses.get(key) else { return (Paused::default(), None) };
        let max_pause = self.policy.max_pause;
        let why = match pause.cause {
            Cause::Named(wait) if wait > in_nanos(max_pause) => Excess::OneWait,
            Cause::Named(_) => Excess::SumOfWaits,
            Cause::Own => Excess::OwnPauses,
        };
        let after = |time| Duration::from_nanos(pause.until.saturating_sub(time));
        let overlong = pause.since.map(|since| Overlong { rest: after(now), total: after(since), why });
        let overlong = overlong.filter(|overlong| overlong.total > max_pause);
        let paused = Paused { rest: after(at), is_named: pause.cause != Cause::Own, is_overlong: overlong.is_some() };
        (paused, overlong)
    }
}

#[cfg(test)]
mod tests;
