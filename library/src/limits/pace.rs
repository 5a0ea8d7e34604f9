//! The learned pace: how fast calls start if a server allows less than the limits. Pure: time is a parameter. A bucket has one
//! pace in its ledger, or one for each key.
//!
//! 1. The first refusal after a pause is a cut. If the very first call after the pause was refused, as in an outage, nothing changes.
//! 2. A cut compares two paces: the pace reached eight successes before the refusal, and the served pace since the
//!    previous cut, pauses included. If the served pace between the two previous cuts was higher, that pace counts
//!    instead, so that a single outage does not count.
//!    If calls started at less than half of the reached pace, something else limited them: slots, or the machine. Then
//!    the pace of the latest starts is the reached pace, but at least a quarter of the learned pace.
//! 3. The new limit is the geometric mean of the two, but at least half of the reached pace.
//! 4. Calls go on at nine tenths of the limit, and return to it within ten successes.
//! 5. The pace is held at the limit for ten more successes. This hold doubles, up to 80, if the limit has changed by
//!    less than a quarter. It also lasts at least ten times the pause (counted as at most 1 s). Then the pace grows
//!    with the cube of the successes, unless something else limits the starts.
//! 6. A server may refuse some units at any pace. So until a refused unit has been served, a cut lowers the pace by at
//!    most a tenth, and all cuts together lower it by at most half.
//! 7. If a unit is refused while many others are served, half of the cuts is undone.
//! 8. A cut is early if fewer than 30 calls have succeeded since the previous cut, and if the served pace was about the
//!    reached pace.
//! 9. After five early cuts in a row, perhaps the pace is not the reason for the refusals. So a test begins: calls
//!    start at half the limit until 14 have succeeded.
//! 10. If a call of the test is refused, the limit returns to its value before the five cuts. Then there is no cut
//!     until 200 calls have succeeded.
//!
//! The numbers were chosen by simulations, see `src/launch/retries/tests/servers.rs` of the program. Starts that something
//! else limits: a congestion window that is not used is not validated (RFC 7661). Growth: CUBIC, in successes (Ha,
//! Rhee and Xu, 2008; RFC 9438). Calls that probe after a pause: the half-open circuit breaker (Nygard, Release It!, 2007).

use crate::clock::{Nanos, SECOND};
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// The number of successes after a cut until the pace returns to the limit.
const RETURN: u32 = 10;

/// The number of further successes for which the pace is held at the limit: at first, and at most.
const HOLD: [u32; 2] = [10, 80];

/// The pace is also held for this many times the length of the pause, which counts as at most [`LONGEST_PAUSE`].
const HOLD_TIMES: Nanos = 10;
const LONGEST_PAUSE: Nanos = SECOND;

/// The reached pace is the pace this many successes before the refusal: a server with a burst refuses late.
const LAG: u32 = 8;

/// The number of starts whose mean gap is the pace of the latest starts. A longer gap than [`LONGEST_GAP`] counts as that:
/// idle time is no pace.
const GAPS: u32 = 16;
const LONGEST_GAP: Nanos = SECOND;

/// Something else than the pace limits the starts if their gap is more than this many intervals. A cut then counts at most
/// `MOST_UNUSED` intervals.
const UNUSED: Nanos = 2;
const MOST_UNUSED: Nanos = 4;

/// A cut is early after fewer successes than this. This many early cuts in a row begin a test.
const EARLY: u32 = 30;
const DOUBTED: u32 = 5;

/// The successes that end a test, and the successes without cuts after a refusal within a test.
const TEST: u32 = 14;
const IMMUNE: u32 = 200;

/// The start of a call, see [`Pace::start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Start {
    /// The number of pauses before it.
    episode: u32,
    /// The number of starts since the latest pause. The calls of one run have the same number.
    index: u32,
    at: Nanos,
}

impl Start {
    /// The success of this call, as it is reported to a bucket. `was_refused`: an earlier attempt for the same unit was refused.
    pub fn succeeded(self, was_refused: bool) -> Served {
        Served { episode: self.episode, count: 1, again: was_refused, alone: 0 }
    }
}

/// Calls that have succeeded, and the number of pauses before their starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Served {
    episode: u32,
    count: u32,
    /// Whether a unit of these calls was refused before.
    again: bool,
    /// The number of units that are refused while others are served.
    alone: u32,
}

impl Served {
    /// Adds a unit that is refused while others are served: its first refusal did not depend on the pace.
    #[must_use]
    pub fn but_one(self) -> Served {
        Served { alone: self.alone.saturating_add(1), ..self }
    }

    /// These calls and `other`. Only the calls of the latest episode count.
    #[must_use]
    pub fn and(self, other: Served) -> Served {
        let (newer, older) = if other.episode < self.episode { (self, other) } else { (other, self) };
        let more = if older.episode == newer.episode { older.count } else { 0 };
        let alone = newer.alone.saturating_add(older.alone);
        Served { count: newer.count.saturating_add(more), again: newer.again || older.again, alone, ..newer }
    }
}

/// The starts of an episode. An episode begins at the end of a pause, and ends with the first refusal of a call that started
/// in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Starts {
    /// The number of earlier episodes.
    episode: u32,
    count: u32,
    /// The time of the latest start; 0 before the first one.
    last: Nanos,
    /// The mean time between the latest [`GAPS`] starts, with less weight for earlier ones; 0 before the second start.
    gap: Nanos,
}

impl Starts {
    /// Counts calls that start at this time.
    fn add(&mut self, at: Nanos, count: u32) {
        if self.last > 0 {
            let known = self.count.saturating_sub(1).min(GAPS);
            let gap = at.saturating_sub(self.last).min(LONGEST_GAP);
            let total = u128::from(self.gap) * u128::from(known) + u128::from(gap);
            self.gap = nanos(total / (u128::from(known) + u128::from(count.max(1))));
        }
        self.last = self.last.max(at);
        self.count = self.count.saturating_add(count);
    }

    /// The starts of the next episode, which has none yet.
    fn next(self) -> Self {
        Starts { episode: self.episode.wrapping_add(1), ..Starts::default() }
    }
}

/// How fast calls start, as the time from one start to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub struct Pace {
    /// The time between two starts that the limits require; 0 without a limit.
    asked: Nanos,
    /// The time between two starts that the server seems to require, and the successes since that time was found.
    limit: Nanos,
    grown: u32,
    /// The successes for which the limit is held. 0: no refused unit has been served so far.
    hold: u32,
    /// The number of early cuts in a row, and the limit before them.
    early: u32,
    before: Nanos,
    /// The mean time from one start to the next between the latest two cuts.
    served: Nanos,
    /// The starts since the latest pause.
    starts: Starts,
    /// The start of the call that was refused first, the calls before it that were not refused so far, and the end of the pause.
    at: Nanos,
    allowed: u32,
    resumes: Nanos,
}

impl Pace {
    /// The pace before any refusal. `asked` is the time between two calls; 0 if there is no limit.
    pub fn new(asked: Nanos) -> Self {
        Pace {
            asked,
            limit: asked,
            grown: IMMUNE,
            hold: 0,
            early: 0,
            before: asked,
            served: Nanos::MAX,
            starts: Starts::default(),
            at: 0,
            allowed: 1,
            resumes: 0,
        }
    }

    /// The time between two calls after `grown` successes.
    fn interval(&self, grown: u32) -> Nanos {
        let more = grown.saturating_sub(RETURN).saturating_sub(self.hold).min(1000);
        let [left, more] = [RETURN.saturating_sub(grown), more].map(u128::from);
        let thousandths =
            if self.early == DOUBTED { 500 } else { 1000 - left.pow(3) / 10 + 5 * more + more.pow(3) / 8 };
        nanos(u128::from(self.limit) * 1000 / thousandths).max(self.asked)
    }

    /// The time between two calls before the latest `successes`.
    fn before(&self, successes: u32) -> Nanos {
        self.interval(self.grown.saturating_sub(successes).max(self.grown.min(RETURN)))
    }

    /// The mean gap of the latest starts, if something else than this time between two calls limited them.
    fn unused(&self, interval: Nanos) -> Option<Nanos> {
        Some(self.starts.gap).filter(|gap| *gap > interval.saturating_mul(UNUSED))
    }

    /// The time between two calls, in nanoseconds, if they are slowed.
    pub fn learned(&self) -> Option<Nanos> {
        Some(self.interval(self.grown)).filter(|interval| *interval > self.asked)
    }

    /// Whether successes change anything.
    pub fn listens(&self) -> bool {
        self.grown < IMMUNE || self.learned().is_some()
    }

    /// Counts calls that start at this time. A call that starts before the end of a pause was granted before the pause,
    /// and is not counted.
    pub fn started(&mut self, at: Nanos, count: u64) {
        if at < self.resumes {
            return;
        }
        self.at = if self.at == 0 { at } else { self.at };
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        self.starts.add(at, count);
    }

    /// The call that starts at this time, and was the last to be [counted](Self::started).
    pub fn start(&self, at: Nanos) -> Start {
        let index = self.starts.count.saturating_sub(1);
        if at < self.resumes {
            Start { episode: self.starts.episode.wrapping_sub(1), index: u32::MAX, at }
        } else {
            Start { episode: self.starts.episode, index, at }
        }
    }

    /// Counts successes.
    pub fn succeeded(&mut self, served: Served, now: Nanos) {
        if served.again {
            self.hold = self.hold.max(HOLD[0]);
        }
        (0..served.alone.min(DOUBTED)).for_each(|_| self.take_back());
        if served.episode != self.starts.episode || !self.listens() {
            return;
        }
        let pause = self.resumes.saturating_sub(self.at).min(LONGEST_PAUSE);
        let is_held = self.early < DOUBTED && now < self.resumes.saturating_add(pause * HOLD_TIMES);
        let is_held = is_held || self.early < DOUBTED && self.unused(self.before(GAPS)).is_some();
        let most = if is_held { RETURN.saturating_add(self.hold) } else { u32::MAX };
        self.grown = self.grown.saturating_add(served.count).min(most).max(self.grown);
        if self.early == DOUBTED && self.grown >= TEST {
            (self.early, self.grown) = (0, RETURN);
        } else if self.early > DOUBTED && self.grown >= IMMUNE {
            (self.limit, self.grown, self.early) = (self.interval(self.grown), RETURN, DOUBTED - 1);
        }
    }

    /// Undoes half of the cuts: one of the refusals did not depend on the pace.
    fn take_back(&mut self) {
        if self.early <= DOUBTED && self.before < self.limit {
            self.limit = mean(self.limit, self.before);
            self.early = self.early.saturating_sub(1);
            if self.early == 0 {
                self.grown = self.grown.max(RETURN);
            }
        }
    }

    /// A call was refused, and nothing starts before `until`. Returns whether it is the first refusal since the latest pause.
    pub fn refused(&mut self, start: Start, until: Nanos) -> bool {
        let is_first = start.episode == self.starts.episode;
        if is_first {
            let began = std::mem::replace(&mut self.at, start.at);
            if start.index > 0 && self.early <= DOUBTED {
                self.cut(start, began);
            }
            (self.allowed, self.starts) = (start.index, self.starts.next());
        } else if start.episode.wrapping_add(1) == self.starts.episode && start.at <= self.at {
            self.allowed = self.allowed.saturating_sub(1);
        }
        self.resumes = self.resumes.max(until);
        is_first
    }

    /// Whether this call started before the server requested a wait.
    pub fn is_old(&self, start: Start) -> bool {
        start.episode != self.starts.episode
    }

    /// Whether the server has accepted a call between the latest two pauses.
    pub fn has_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// Handles the first refusal after a pause, if other calls have started before the refused one.
    fn cut(&mut self, start: Start, began: Nanos) {
        let is_early = self.grown < EARLY;
        let each = |since: Nanos| start.at.saturating_sub(since) / Nanos::from(start.index);
        let paced = self.before(LAG);
        let most = if paced == 0 { Nanos::MAX } else { paced.saturating_mul(MOST_UNUSED) };
        let reached = if paced == 0 { each(self.resumes.max(began)) } else { paced };
        let reached = reached.max(self.unused(paced).map_or(0, |gap| gap.min(most)));
        if !is_early {
            (self.early, self.before) = (0, self.limit.max(reached));
        }
        let served = each(began).min(std::mem::replace(&mut self.served, each(began)));
        let served = served.clamp(reached, reached.saturating_mul(4));
        if self.early == DOUBTED {
            (self.early, self.limit, self.grown) = (DOUBTED + 1, self.before, RETURN);
            return;
        }
        let was = self.limit;
        self.limit = mean(served, reached);
        if self.hold == 0 {
            let most = self.before.saturating_mul(2).max(was);
            self.limit = self.limit.min(reached.saturating_mul(10) / 9).min(most);
        }
        let expected = if paced == 0 { reached } else { paced };
        self.early += u32::from(is_early && served / 3 < expected / 2);
        let is_near = self.grown >= RETURN && was.abs_diff(self.limit) < was / 4;
        self.hold = if is_near { self.hold.saturating_mul(2).min(HOLD[1]) } else { self.hold.min(HOLD[0]) };
        self.grown = 0;
    }
}

/// The geometric mean.
fn mean(one: Nanos, other: Nanos) -> Nanos {
    nanos((u128::from(one) * u128::from(other)).isqrt())
}

fn nanos(number: u128) -> Nanos {
    Nanos::try_from(number).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests;
