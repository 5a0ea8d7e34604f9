//! Which attempts are made again, and when: as pure decisions. Time and chance are parameters.

mod pause;
mod policy;

use super::job::{Key, Outcome};
use super::reply::Reply;
use crate::flow::Told;
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
    /// Of each key, or of all.
    pauses: BTreeMap<Key, Pause>,
    /// None is forgotten before this time.
    sweep_at: Nanos,
    /// What the bucket has to learn of each key, or of all.
    told: BTreeMap<Key, Told>,
}

/// Pauses that are over are forgotten when there are so many.
const MANY_PAUSES: usize = 10_000;

/// They are looked through at most once in this time.
const SWEEP: Nanos = SECOND;

impl Retries {
    /// Nothing has failed yet.
    #[must_use]
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Retries { policy, pauses: BTreeMap::new(), sweep_at: 0, told: BTreeMap::new() }
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
            pause.others = pause.others.saturating_sub(u32::from(!history.was_told()));
            pause.is_at_end = matches!(meaning, Meaning::Later(_)) && pause.others == 0 && no_others_wait();
        }
        let verdict = self.follows(key, (ended, &mut *history), (meaning, reply), &mut chance);
        self.pauses.get(key).map_or(verdict, |pause| pause.suspect(history, verdict))
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
                    if pause.is_learned_by_bucket && pause.pace.listens() {
                        let told = self.told.entry(key.clone()).or_default();
                        told.served = told.served.and(history.succeeded());
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
        let is_bad = history.told > 1 && !history.is_bad && pause.has_served(ENOUGH, history.told_at);
        history.told_at = ended.at;
        if serves == Serves::Unknown {
            let until = pause.later((ended, *history), asked, |incidents| policy.pause(incidents));
            if pause.is_learned_by_bucket {
                self.told.entry(key.clone()).or_default().refused.push(history.start);
            }
            if history.told == 0 {
                (pause.new_at, history.first_told) = (ended.at, ended.at);
            }
            history.told += 1;
            return Verdict::Later(until);
        }
        pause.alone += 1;
        if is_bad {
            history.is_bad = true;
            let one = Served::default().but_one();
            pause.pace.succeeded(one, ended.at);
            if pause.is_learned_by_bucket {
                let told = self.told.entry(key.clone()).or_default();
                told.served = told.served.and(one);
            }
        }
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

    /// Whether the bucket should learn the pace.
    pub(super) fn learns(&self) -> bool {
        self.policy.learns
    }

    /// A unit of `key` starts now. Returns before which time the next one does not. `learned`: if the bucket learns the pace, that
    /// pace, and the start.
    pub(super) fn started(
        &mut self,
        key: &Key,
        now: Nanos,
        history: &mut History,
        learned: Option<(Pace, Start)>,
    ) -> Nanos {
        self.forget(now);
        let Some(pause) = self.pause(key) else { return 0 };
        pause.is_learned_by_bucket = learned.is_some();
        pause.others += u32::from(!history.was_told());
        let Some((pace, start)) = learned else {
            history.start = pause.started(now);
            let next = pause.next;
            return if self.policy.learns { next } else { 0 };
        };
        history.start = start;
        if self.told.get(key).is_none_or(|told| told.refused.is_empty())
            && let Some(pause) = self.pauses.get_mut(key)
        {
            pause.pace = pace;
        }
        0
    }

    /// What is known of this key; `None` if there are too many of them.
    fn pause(&mut self, key: &Key) -> Option<&mut Pause> {
        if self.pauses.len() < MANY_PAUSES && !self.pauses.contains_key(key) {
            self.pauses.insert(key.clone(), Pause::new(&self.policy));
        }
        self.pauses.get_mut(key)
    }

    /// An earlier run has left this unit over: perhaps its server always refuses it. So it is taken for one that it has
    /// refused once, before any other starts.
    pub(super) fn left_over(&mut self, key: &Key, now: Nanos) -> History {
        self.pause(key).map_or_else(History::default, |_| History::left_over(now))
    }

    /// The time between two units of `key`, if the server allows less than was asked for.
    pub(super) fn learned(&self, key: &Key) -> Option<Nanos> {
        self.pauses.get(key).filter(|_| self.policy.learns)?.pace.learned()
    }

    /// How long after `at` the pause of `key` lasts.
    pub(super) fn pause_left(&self, key: &Key, at: Nanos) -> Nanos {
        self.pauses.get(key).map_or(0, |pause| pause.until.saturating_sub(at))
    }

    /// If there are many, forgets the pauses that are over and have left nothing behind.
    fn forget(&mut self, now: Nanos) {
        if self.pauses.len() >= MANY_PAUSES && now >= self.sweep_at {
            self.sweep_at = now.saturating_add(SWEEP);
            let is_left = |pause: &Pause| pause.until > now || pause.alone > 0 || pause.pace.learned().is_some();
            self.pauses.retain(|_, pause| is_left(pause));
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

    /// What the bucket has to be told from `now` on of each key, or of all.
    pub(super) fn take_told(&mut self, now: Nanos) -> BTreeMap<Key, Told> {
        let mut all = std::mem::take(&mut self.told);
        if let Some(hold) = self.take_hold(&None, now) {
            all.entry(None).or_default().hold = Some(hold);
        }
        all
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

#[cfg(test)]
mod tests;
