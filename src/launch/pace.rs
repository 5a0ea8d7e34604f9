//! The learned pace: how fast commands start if a server allows less than was asked for. Pure: time is a parameter. One for
//! the run, or one for each key.
//!
//! A refusal slows what starts to nine tenths of the pace that was reached just before. The pace returns to that one within
//! some successes, is held there, and then grows a little with each success. If refusals follow each other closely, the
//! pace may still be far too high, or it may not be their reason. So after some of them a few commands start more slowly
//! than the server has served of late. If none of these is refused, that is the pace to go on from. If one is, the server
//! refuses at any pace: the old one is restored, and for a while refusals slow down nothing.
//!
//! The numbers were chosen by simulations, see `retries/tests/servers.rs`. Additive increase and multiplicative decrease: Chiu and
//! Jain, 1989.

use throttle_limits::clock::Nanos;

/// In so many successes the pace returns to the one that was refused.
const RETURN: u32 = 20;

/// For so many more it is held there.
const HOLD: u32 = 40;

/// It is also held for so many times as long as the pauses took.
const HOLD_TIMES: Nanos = 10;

/// Refusals follow each other closely if fewer succeeded in between.
const CLOSE: u32 = RETURN + HOLD;

/// So many that started more slowly decide whether refusals depend on the pace.
const TRIAL: u32 = 20;

/// For so many successes after that, refusals that do not depend on the pace slow down nothing.
const IMMUNE: u32 = 100;

/// What starts, see [`Pace::started`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// How many pauses there had been.
    episode: u32,
    /// How many had started since the latest one.
    index: u32,
    at: Nanos,
}

/// How fast commands start, as the time from one to the next.
#[derive(Debug)]
pub(super) struct Pace {
    /// What was asked for; 0: no limit.
    asked: Nanos,
    interval: Nanos,
    /// The one that was refused last.
    refused: Nanos,
    is_slowed: bool,
    /// Nothing starts before this time.
    next: Nanos,
    /// An episode begins at the end of a pause, and ends with the first refusal of what started in it.
    episode: u32,
    /// How many have started in this one, the latest at this time, and the usual time between two.
    started: u32,
    last: Nanos,
    gap: Nanos,
    /// How many had started in the episode before when one was refused, and how many of these were not refused since.
    before: u32,
    allowed: u32,
    /// The interval then, and whether it was slowed: nothing is learned from calls of which none was allowed.
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
#[derive(Debug)]
struct Streak {
    /// The interval before the first of them, and when that one started.
    interval: Nanos,
    began: Nanos,
    refusals: u32,
    /// How many were allowed since.
    allowed: u32,
}

/// Some start more slowly than the server has served of late.
#[derive(Debug)]
struct Trial {
    left: u32,
    /// What the server has served of late.
    served: Nanos,
}

impl Pace {
    /// Nothing was refused yet. `asked`: the time between two commands; 0 if there is no limit.
    pub(super) fn new(asked: Nanos) -> Self {
        Pace {
            asked,
            interval: asked,
            refused: asked,
            is_slowed: false,
            next: 0,
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

    /// The time between two commands, if they are slowed.
    pub(super) fn learned(&self) -> Option<Nanos> {
        Some(self.interval).filter(|_| self.is_slowed)
    }

    /// Nothing starts before this time.
    pub(super) fn next(&self) -> Nanos {
        if self.is_slowed { self.next } else { 0 }
    }

    /// A command starts now.
    pub(super) fn started(&mut self, now: Nanos) -> Start {
        // A late start delays those behind it, so that they do not come too close, unless it was only a little late.
        self.next = self.next.max(now.saturating_sub(self.interval / 10)).saturating_add(self.interval);
        let passed = now.saturating_sub(self.last);
        self.gap = match self.gap {
            _ if self.started == 0 => self.interval,
            0 => passed,
            gap => gap - gap / 16 + passed / 16,
        };
        self.last = now;
        let index = self.started;
        self.started = self.started.saturating_add(1);
        Start { episode: self.episode, index, at: now }
    }

    /// One has succeeded.
    pub(super) fn succeeded(&mut self, start: Start, now: Nanos) {
        if self.immune > 0 {
            self.immune -= 1;
            self.quicken(101, 100);
            self.refused = self.interval;
            return;
        }
        if (!self.is_slowed && self.streak.is_none()) || start.episode != self.episode {
            return;
        }
        if let Some(trial) = &mut self.trial {
            trial.left -= 1;
            if trial.left == 0 {
                self.interval = slower(trial.served, 10, 9);
                (self.trial, self.streak, self.served, self.step) = (None, None, 0, 0);
            }
            return;
        }
        self.served = self.served.saturating_add(1);
        let near = slower(self.refused, 10, 9);
        if self.interval > near {
            // Far below what was refused: large steps.
            (self.served, self.step) = (0, self.step + 1);
            if self.step == 4 {
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

    /// One was refused, and nothing starts before `until`.
    pub(super) fn refused(&mut self, start: Start, now: Nanos, until: Nanos) {
        if start.episode == self.episode {
            self.undo = (self.interval, self.is_slowed);
            if start.index > 0 {
                self.slow_down(start);
            }
            self.episode += 1;
            (self.before, self.allowed, self.started, self.step) = (start.index, start.index, 0, 0);
        } else if start.episode.saturating_add(1) == self.episode && start.index < self.before {
            self.allowed = self.allowed.saturating_sub(1);
            self.streak.iter_mut().for_each(|streak| streak.allowed = streak.allowed.saturating_sub(1));
            if self.allowed == 0 {
                (self.interval, self.is_slowed) = self.undo;
            }
        }
        if until > self.resumes {
            self.paused = self.paused.saturating_add(until - now.max(self.resumes));
            self.resumes = until;
            self.next = self.next.max(until);
        }
    }

    /// Whether this one began before the server asked to wait.
    pub(super) fn is_old(&self, start: Start) -> bool {
        start.episode != self.episode
    }

    /// Whether the server has allowed something between the latest two pauses.
    pub(super) fn has_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// The first refusal after some were allowed.
    fn slow_down(&mut self, start: Start) {
        self.paused = 0;
        let is_close = self.served < CLOSE;
        self.served = 0;
        self.streak.iter_mut().for_each(|streak| streak.allowed = streak.allowed.saturating_add(start.index));
        if self.immune > 0 {
            return;
        }
        if self.trial.take().is_some() {
            let streak = self.streak.take();
            let quicker =
                streak.iter().flat_map(|streak| 0..streak.refusals).fold(self.refused, |n, _| slower(n, 9, 10));
            let before = streak.map_or(self.asked, |streak| streak.interval);
            self.interval = quicker.max(before).max(self.refused / 2);
            (self.refused, self.immune) = (self.interval, IMMUNE);
            return;
        }
        self.refused = if start.index < 5 { self.interval } else { self.interval.max(self.gap) };
        self.interval = slower(self.refused, 10, 9);
        self.is_slowed = self.interval > 0;
        match &mut self.streak {
            Some(streak) if is_close => streak.refusals += 1,
            streak => *streak = Some(Streak { interval: self.refused, began: start.at, refusals: 1, allowed: 0 }),
        }
        self.try_less(start);
    }

    /// After some refusals in a row: finds out whether they depend on the pace.
    fn try_less(&mut self, start: Start) {
        let Some(streak) = self.streak.as_ref().filter(|streak| streak.allowed >= 10) else { return };
        let served = start.at.saturating_sub(streak.began) / Nanos::from(streak.allowed);
        let enough = if served > self.interval.saturating_mul(2) { 2 } else { 3 };
        if streak.refusals >= enough {
            let served = served.max(self.interval);
            self.trial = Some(Trial { left: TRIAL, served });
            self.interval = slower(served, 5, 4);
            self.is_slowed = true;
        }
    }

    fn quicken(&mut self, times: Nanos, of: Nanos) {
        self.interval = slower(self.interval, of, times).max(self.asked);
        self.is_slowed = self.interval > self.asked;
    }
}

/// An interval that is longer in the ratio of `times` to `of`.
fn slower(interval: Nanos, times: Nanos, of: Nanos) -> Nanos {
    interval.saturating_mul(times) / of
}
