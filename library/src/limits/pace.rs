//! The learned pace: how fast calls start if a server allows less than was asked for. Pure: time is a parameter. One for
//! a bucket, in its ledger, or one for each key.
//!
//! A refusal slows what starts to nine tenths of the pace that was reached just before. The pace returns to that one within
//! some successes, is held there, and then grows a little with each success. A server may always refuse some units, whatever
//! the pace. So a pace is held only once a unit that was refused is served; before that, it returns to the one held before.
//!
//! If refusals follow each other closely, the pace may still be far too high, or it may not be their reason. So after some of
//! them a few commands start at half of the pace, and then more slowly than the server has served of late, pauses included.
//! If none of these is refused, that is the pace to go on from. If two are at each, the server refuses at any pace: the old
//! one is restored, and for a while refusals slow down nothing.
//!
//! A unit that is refused twice, and then again while others are served, is refused at any pace: what its first refusal slowed
//! down is taken back.
//!
//! The numbers were chosen by simulations, see `src/launch/retries/tests/servers.rs` of the program. Additive increase and
//! multiplicative decrease: Chiu and Jain, 1989.

use crate::clock::{Nanos, SECOND};
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// In so many successes the pace returns to the one that was refused.
const RETURN: u32 = 20;

/// For so many more it is held there.
const HOLD: u32 = 40;

/// It is also held for so many times as long as the pauses took.
const HOLD_TIMES: Nanos = 10;

/// Refusals follow each other closely if fewer succeeded in between.
const CLOSE: u32 = RETURN + HOLD;

/// After so many refusals, none of whose units was served, they are taken for ones that depend on the pace: a trial will
/// show whether they do.
const DOUBTED: u32 = 8;

/// So many that started more slowly decide whether refusals depend on the pace.
const TRIAL: u32 = 20;

/// After this time, or after so many times the interval that was refused if that is longer, half of them decide: with fewer, a
/// server that refuses calls at random could slow down a run without end.
const TRIAL_TIME: Nanos = 30 * SECOND;
const TRIAL_INTERVALS: Nanos = 50;

/// For so many successes after that, refusals that do not depend on the pace slow down nothing.
const IMMUNE: u32 = 200;

/// A time in which nothing was served is an outage if it is longer than this, and than four times all others.
const OUTAGE: Nanos = 10 * SECOND;

/// One that starts, see [`Pace::start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Start {
    /// How many pauses there had been.
    episode: u32,
    /// How many had started since the latest one. Those of one run have the same number.
    index: u32,
    at: Nanos,
}

impl Start {
    /// The success of what started then, as a bucket is told of it. `was_refused`: earlier attempts for the same unit were.
    #[must_use]
    pub fn succeeded(self, was_refused: bool) -> Served {
        Served { episode: self.episode, count: 1, again: Some(self.episode).filter(|_| was_refused), alone: 0 }
    }
}

/// Calls that have succeeded, and after how many pauses they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Served {
    episode: u32,
    count: u32,
    /// After how many the latest of those started whose unit was refused before.
    again: Option<u32>,
    /// Units that are refused while others are served.
    alone: u32,
}

impl Served {
    /// A unit is refused while others are served: its first refusal did not depend on the pace.
    #[must_use]
    pub fn but_one(self) -> Served {
        Served { alone: self.alone.saturating_add(1), ..self }
    }

    /// These and others. Only those of the latest episode count.
    #[must_use]
    pub fn and(self, other: Served) -> Served {
        let (newer, older) = if other.episode < self.episode { (self, other) } else { (other, self) };
        let more = if older.episode == newer.episode { older.count } else { 0 };
        let alone = newer.alone.saturating_add(older.alone);
        Served { count: newer.count.saturating_add(more), again: newer.again.max(older.again), alone, ..newer }
    }
}

/// How fast calls start, as the time from one to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Pace {
    /// What was asked for; 0: no limit.
    asked: Nanos,
    /// What is allowed: longer, if it is slowed.
    interval: Nanos,
    /// The one that was refused last, as far as is known.
    refused: Nanos,
    /// An episode begins at the end of a pause, and ends with the first refusal of what started in it.
    episode: u32,
    /// How many have started in this one, the latest at this time, and the usual time between two.
    started: u32,
    last: Nanos,
    gap: Nanos,
    /// How many had started in the episode before when one was refused, and how many of these were not refused since.
    before: u32,
    allowed: u32,
    /// The interval then, and whether a trial was going on: nothing is learned from calls of which none was allowed.
    undo: (Nanos, bool),
    /// Successes of this episode.
    served: u32,
    /// Of those needed for a large step.
    step: u32,
    /// When the pause ends or has ended, and how long the pauses took since the latest refusal that followed a success.
    resumes: Nanos,
    paused: Nanos,
    streak: Option<Streak>,
    trial: Option<Trial>,
    /// So many successes are left in which refusals slow down nothing.
    immune: u32,
}

/// Refusals that follow each other closely.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Streak {
    /// The interval before the first of them, and when that one started.
    interval: Nanos,
    began: Nanos,
    /// How many are known to depend on the pace, and of how many more no unit was served yet.
    refusals: u32,
    doubted: u32,
    /// Whether a unit was served after it was refused: then none of them is taken back.
    is_confirmed: bool,
    /// The latest one that was refused, and the interval before that.
    latest: Start,
    refused: Nanos,
    /// How many were allowed since the first of them.
    allowed: u32,
    /// The longest two of the times in which nothing was served: the pauses from one of them to the next success.
    closed: [Nanos; 2],
}

impl Streak {
    /// Nothing was served for this long. Returns whether that was an outage.
    fn note_closed(&mut self, time: Nanos) -> bool {
        let [first, second] = self.closed;
        self.closed = [first.max(time), second.max(first.min(time))];
        time == self.closed[0] && self.outage() > 0
    }

    /// How much of the time says nothing about the pace. A window that is closed again and again is no outage.
    fn outage(&self) -> Nanos {
        let [first, second] = self.closed;
        if first > OUTAGE.max(second.saturating_mul(4)) { first - second } else { 0 }
    }

    /// The time for each call that was allowed, but for an outage.
    fn served(&self) -> Nanos {
        let passed = self.latest.at.saturating_sub(self.began).saturating_sub(self.outage());
        passed / Nanos::from(self.allowed)
    }
}

/// Some start more slowly than the server has served of late.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Trial {
    left: u32,
    /// Whether one of it was refused, and it began anew.
    is_second: bool,
    /// What is tried, and what the server has served of late.
    tried: Nanos,
    served: Nanos,
    /// From then on fewer calls decide.
    ends: Nanos,
}

impl Pace {
    /// Nothing was refused yet. `asked`: the time between two calls; 0 if there is no limit.
    #[must_use]
    pub fn new(asked: Nanos) -> Self {
        Pace {
            asked,
            interval: asked,
            refused: asked,
            episode: 0,
            started: 0,
            last: 0,
            gap: 0,
            before: 0,
            allowed: 1,
            undo: (asked, false),
            served: 0,
            step: 0,
            resumes: 0,
            paused: 0,
            streak: None,
            trial: None,
            immune: 0,
        }
    }

    /// What was asked for.
    pub(crate) fn asked(&self) -> Nanos {
        self.asked
    }

    /// The time between two calls, in nanoseconds, if they are slowed.
    #[must_use]
    pub fn learned(&self) -> Option<Nanos> {
        Some(self.interval).filter(|interval| *interval > self.asked)
    }

    /// Whether successes change anything.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.learned().is_some() || self.streak.is_some() || self.immune > 0
    }

    /// So many start at this time. What starts before a pause ends was granted before it began.
    pub fn started(&mut self, at: Nanos, count: u64) {
        if at < self.resumes {
            return;
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let passed = at.saturating_sub(self.last) / Nanos::from(count);
        self.gap = match self.gap {
            _ if self.started == 0 => self.interval,
            0 => passed,
            // If nothing starts for long since answers do not come, that says little.
            gap => (gap - gap / 16).saturating_add(passed.min(gap.saturating_mul(4)) / 16),
        };
        self.last = at;
        self.started = self.started.saturating_add(count);
    }

    /// The one that starts at this time, and was the last to be [counted](Self::started).
    #[must_use]
    pub fn start(&self, at: Nanos) -> Start {
        let index = self.started.saturating_sub(1);
        if at < self.resumes {
            Start { episode: self.episode.wrapping_sub(1), index: u32::MAX, at }
        } else {
            Start { episode: self.episode, index, at }
        }
    }

    /// These have succeeded.
    pub fn succeeded(&mut self, served: Served, now: Nanos) {
        if self.streak.as_ref().is_some_and(|streak| served.again > Some(streak.latest.episode)) {
            self.streak.iter_mut().for_each(|streak| streak.is_confirmed = true);
            self.believe();
        }
        (0..served.alone.min(DOUBTED)).for_each(|_| self.retract());
        (0..served.count.min(IMMUNE)).for_each(|_| self.one_succeeded(served.episode, now));
    }

    /// One of the refusals did not depend on the pace.
    fn retract(&mut self) {
        let Some(streak) = self.streak.as_mut().filter(|streak| !streak.is_confirmed) else { return };
        let of_which = if streak.doubted > 0 { &mut streak.doubted } else { &mut streak.refusals };
        *of_which = of_which.saturating_sub(1);
        let (before, is_over) = (streak.interval, streak.doubted == 0 && streak.refusals == 0);
        if self.trial.take().is_some() {
            self.interval = streak.refused;
        }
        if is_over {
            (self.interval, self.refused) = (self.interval.min(before), before);
            (self.trial, self.streak) = (None, None);
        } else {
            self.interval = self.interval.min(slower(self.interval, 9, 10).max(before));
        }
    }

    fn one_succeeded(&mut self, episode: u32, now: Nanos) {
        if self.immune > 0 {
            self.immune -= 1;
            self.quicken(101, 100);
            self.refused = self.interval;
            return;
        }
        if (self.learned().is_none() && self.streak.is_none()) || episode != self.episode {
            return;
        }
        if let Some(trial) = &mut self.trial {
            trial.left = trial.left.saturating_sub(1);
            if trial.left == 0 || trial.left <= TRIAL / 2 && now >= trial.ends {
                self.interval = slower(trial.tried, 10, 9);
                (self.trial, self.streak, self.served, self.step) = (None, None, 0, 0);
            }
            return;
        }
        self.served = self.served.saturating_add(1);
        let near = slower(self.refused, 10, 9);
        if self.interval > near {
            // Far below what was refused: large steps.
            (self.served, self.step) = (0, self.step.saturating_add(1));
            if self.step >= 4 {
                self.step = 0;
                self.quicken(5, 4);
                self.interval = self.interval.max(near);
            }
        } else if self.served <= RETURN {
            let steps = Nanos::from(9 * RETURN + self.served);
            self.interval = self.interval.min(slower(self.refused, 10 * Nanos::from(RETURN), steps)).max(self.asked);
        } else if self.served > CLOSE && now >= self.resumes.saturating_add(self.paused.saturating_mul(HOLD_TIMES)) {
            self.quicken(101, 100);
        }
    }

    /// One was refused, and nothing starts before `until`. Returns whether it is the first one since the latest pause.
    pub fn refused(&mut self, start: Start, now: Nanos, until: Nanos) -> bool {
        let is_first = start.episode == self.episode;
        if is_first {
            self.undo = (self.interval, self.trial.is_some());
            if start.index > 0 {
                self.slow_down(start);
            }
            self.episode = self.episode.wrapping_add(1);
            (self.before, self.allowed, self.started, self.step) = (start.index, start.index, 0, 0);
        } else if start.episode.wrapping_add(1) == self.episode && start.index <= self.before {
            self.allowed = self.allowed.saturating_sub(1);
            self.streak.iter_mut().for_each(|streak| streak.allowed = streak.allowed.saturating_sub(1));
            if self.allowed == 0 {
                let (interval, was_tried) = self.undo;
                self.interval = interval;
                self.trial.take_if(|_| !was_tried);
            }
        }
        if until > self.resumes {
            self.paused = self.paused.saturating_add(until.saturating_sub(now.max(self.resumes)));
            self.resumes = until;
        }
        let ends = self.trial_ends();
        self.trial.iter_mut().filter(|_| is_first).for_each(|trial| trial.ends = ends);
        is_first
    }

    /// Whether this one began before the server asked to wait.
    #[must_use]
    pub fn is_old(&self, start: Start) -> bool {
        start.episode != self.episode
    }

    /// Whether the server has allowed something between the latest two pauses.
    #[must_use]
    pub fn has_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// The first refusal after some were allowed.
    fn slow_down(&mut self, start: Start) {
        let (paused, is_close) = (std::mem::take(&mut self.paused), self.served < CLOSE);
        self.served = 0;
        let was_outage = self.streak.as_mut().is_some_and(|streak| {
            streak.allowed = streak.allowed.saturating_add(start.index);
            streak.note_closed(paused)
        });
        if self.immune > 0 {
            return;
        }
        if let Some(trial) = &mut self.trial
            && (!trial.is_second || was_outage || trial.left == TRIAL && start.index < 2)
        {
            // One may have come too late after the one before it, the one before may be of an outage, or this one is.
            (trial.left, trial.is_second) = (TRIAL, true);
            return;
        }
        if let Some(trial) = self.trial.take() {
            if trial.tried < trial.served {
                return self.try_out(trial.served, trial.served);
            }
            let streak = self.streak.take();
            let quicker =
                streak.iter().flat_map(|streak| 0..streak.refusals.min(64)).fold(self.refused, |n, _| slower(n, 9, 10));
            let before = streak.map_or(self.asked, |streak| streak.interval);
            self.interval = quicker.max(before).max(self.refused / 2);
            (self.refused, self.immune) = (self.interval, IMMUNE);
            return;
        }
        let refused = if start.index < 5 { self.interval } else { self.interval.max(self.gap) };
        self.interval = slower(refused, 10, 9);
        let new = Streak {
            interval: refused,
            began: start.at,
            refusals: 0,
            doubted: 0,
            is_confirmed: false,
            latest: start,
            refused,
            allowed: 0,
            closed: [0; 2],
        };
        let close = self.streak.take().filter(|_| is_close);
        let doubted = close.as_ref().map_or(1, |streak| streak.doubted.saturating_add(1));
        self.streak = Some(Streak { doubted, latest: start, refused, ..close.unwrap_or(new) });
        if doubted >= DOUBTED {
            self.believe();
        }
    }

    /// The latest refusals depend on the pace. After some in a row it finds out whether they really do.
    fn believe(&mut self) {
        let Some(streak) = self.streak.as_mut().filter(|streak| streak.doubted > 0) else { return };
        self.refused = streak.refused;
        streak.refusals = streak.refusals.saturating_add(std::mem::take(&mut streak.doubted));
        if streak.allowed < 10 {
            return;
        }
        let served = streak.served();
        let enough = if served > self.interval.saturating_mul(2) { 2 } else { 3 };
        if streak.refusals >= enough {
            let served = served.max(self.interval);
            self.try_out(served.min(self.interval.saturating_mul(2)), served);
        }
    }

    /// Some start more slowly than this.
    fn try_out(&mut self, tried: Nanos, served: Nanos) {
        self.trial = Some(Trial { left: TRIAL, is_second: false, tried, served, ends: self.trial_ends() });
        self.interval = slower(tried, 5, 4);
    }

    /// When half of a trial is enough, if that begins now.
    fn trial_ends(&self) -> Nanos {
        let longest = TRIAL_TIME.max(self.refused.saturating_mul(TRIAL_INTERVALS));
        self.last.max(self.resumes).saturating_add(longest)
    }

    fn quicken(&mut self, times: Nanos, of: Nanos) {
        self.interval = slower(self.interval, of, times).max(self.asked);
    }
}

/// An interval that is longer in the ratio of `times` to `of`.
fn slower(interval: Nanos, times: Nanos, of: Nanos) -> Nanos {
    interval.saturating_mul(times) / of
}

#[cfg(test)]
mod tests;
