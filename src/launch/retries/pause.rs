//! What a server that asks to wait is known to do: the pauses of a key, or of all.

use super::policy::{RetryPolicy, Verdict};
use std::time::Duration;
use throttle_limits::clock::{Nanos, SECOND, in_nanos};
use throttle_limits::limits::{Pace, Served, Start};

/// An attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// When it started.
    pub(crate) started: Nanos,
    /// When it ended.
    pub(crate) at: Nanos,
}

/// If the server serves so many for each unit that it asks to wait, it asks only that unit.
pub(super) const ENOUGH: u32 = 8;

/// A pause of this length may show that the server is down.
const LONG: Nanos = 10 * SECOND;

/// The weight of a unit that an earlier run has left over.
const LEFT_OVER: u32 = 32;

/// Whether a server serves others while it asks a unit to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// It may serve nobody.
    Unknown,
    /// Since it refused this unit last, it has served one that started after that, and refused no other for the first time;
    /// or it has served many.
    Some,
    /// It has served so many that these are failures of the unit alone.
    Enough,
}

/// What the attempts for a unit have come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Attempts that are used up: those after which the server asked to wait do not count.
    pub(super) used: u32,
    /// After how many attempts the server had all wait, and when it refused the latest one.
    pub(super) told: u32,
    pub(super) told_at: Nanos,
    /// Of these attempts, how many are only assumed, since an earlier run has left it over.
    assumed: u32,
    /// When it refused the first one.
    pub(super) first_told: Nanos,
    /// After how many it asked only this unit to wait, and whether that was ever sure.
    pub(super) alone: u32,
    pub(super) is_sure: bool,
    /// Whether it is known that what its first refusal slowed down was not too fast.
    pub(super) is_bad: bool,
    /// Whether its next attempt is that of a suspect: see [`History::weight`].
    pub(super) is_suspect: bool,
    /// The start of the latest one.
    pub(super) start: Start,
}

impl History {
    /// Of a unit that is left over from now on.
    pub(super) fn left_over(now: Nanos) -> Self {
        History { told: 1, told_at: now, first_told: now, is_suspect: true, assumed: 1, ..History::default() }
    }

    /// Whether an earlier run has left it over, and this one has not tried it.
    pub(super) fn is_left_over(self) -> bool {
        self.assumed > 0 && !self.was_told()
    }

    /// For how many turns of the others the suspects of a key get one turn. Units that are left over get fewer than those that were
    /// refused in this run, since those that always fail should take few calls of each run. 0 for a usual unit.
    pub(crate) fn weight(self) -> u32 {
        match self.is_suspect {
            true if self.is_left_over() => LEFT_OVER,
            true => ENOUGH,
            false => 0,
        }
    }

    /// Whether it was told to wait.
    pub(crate) fn was_told(self) -> bool {
        self.told + self.alone > self.assumed
    }

    /// The success of the latest attempt.
    pub(super) fn succeeded(self) -> Served {
        self.start.succeeded(self.was_told())
    }
}

/// The pauses that a server asked for.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) pace: Pace,
    /// Whether a bucket learns it. Then this is how it was when one started last, and what has happened since.
    pub(super) is_learned_by_bucket: bool,
    /// If not: nothing starts before this, since it is slowed.
    pub(super) next: Nanos,
    /// Nothing starts before this.
    pub(super) until: Nanos,
    /// It is longer than what the pump knows.
    pub(super) is_news: bool,
    /// Since the last success ended: pauses, when a server first asked to wait, and how many other units it refused since the
    /// latest pause that made no pause.
    pub(super) incidents: u32,
    pub(super) since: Option<Nanos>,
    probes: u32,
    /// How many attempts have succeeded that started after the latest pause began, and how long the latest of all took.
    served: u32,
    took: Nanos,
    /// How often a unit was told to wait since then that paused nobody.
    pub(super) alone: u32,
    /// When the latest unit was refused that had not been refused before.
    pub(super) new_at: Nanos,
    /// How many attempts for other units run.
    pub(super) others: u32,
    /// When the latest of those started that have succeeded, in this order.
    recent: [Nanos; ENOUGH as usize],
    /// Whether only units are left that were told so before.
    pub(super) is_at_end: bool,
}

impl Pause {
    pub(super) fn new(policy: &RetryPolicy) -> Self {
        Pause {
            pace: Pace::new(in_nanos(policy.interval)),
            is_learned_by_bucket: false,
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
            others: 0,
            recent: [0; ENOUGH as usize],
            is_at_end: false,
        }
    }

    /// One starts now. Those behind it are apart from it as was learned. They do not come closer if it starts late, unless it
    /// is only a little late.
    pub(super) fn started(&mut self, now: Nanos) -> Start {
        self.pace.started(now, 1);
        let learned = self.pace.learned();
        let from = |interval| self.next.max(now.saturating_sub(interval / 10)).saturating_add(interval);
        self.next = learned.map_or(0, from);
        self.pace.start(now)
    }

    /// An attempt has succeeded, whenever it began: the server serves us. Those that it refuses may be answered much sooner
    /// than those that it serves.
    pub(super) fn succeeded(&mut self, ended: Judged, history: History) {
        (self.incidents, self.since) = (0, None);
        self.recent[0] = self.recent[0].max(ended.started);
        self.recent.sort_unstable();
        self.served += u32::from(!self.pace.is_old(history.start));
        self.pace.succeeded(history.succeeded(), ended.at);
        self.took = ended.at.saturating_sub(ended.started);
    }

    /// What is known of others when the server asks a unit to wait again.
    pub(super) fn serves_others(&self, history: History, now: Nanos, long: Nanos) -> Serves {
        let serves_nothing = self.since.is_some_and(|since| now.saturating_sub(since) >= long);
        let is_sure = self.served / ENOUGH > self.alone
            || history.is_sure && (self.incidents == 0 || self.is_at_end)
            || self.is_at_end && serves_nothing && self.has_served(1, history.first_told);
        // If it refuses others for the first time, too, calls may be too fast for it: one that was served shows little.
        let enough = if self.new_at <= history.told_at { 1 } else { ENOUGH };
        match history.told {
            0 => Serves::Unknown,
            _ if is_sure && history.was_told() => Serves::Enough,
            _ if self.has_served(enough, history.told_at) => Serves::Some,
            _ => Serves::Unknown,
        }
    }

    /// Whether it has served so many, at most [`ENOUGH`], that started after this time.
    pub(super) fn has_served(&self, count: u32, since: Nanos) -> bool {
        self.recent[(ENOUGH - count) as usize] > since
    }

    /// Others go before a unit that was told so more than once, and before all that were if nothing was served since: that
    /// shows whether the server serves others. They have ended when it is tried again.
    pub(super) fn suspect(&self, history: &mut History, verdict: Verdict) -> Verdict {
        let is_one = history.told + history.alone > 1 || history.told > 0 && self.incidents > 1;
        history.is_suspect = verdict.is_repeated() && is_one;
        match verdict {
            Verdict::Later(due) if history.is_suspect && !self.is_at_end => {
                Verdict::Later(due.max(history.told_at.saturating_add(self.took.saturating_mul(2))))
            }
            other => other,
        }
    }

    /// Whether a server that may serve nothing is tried again before the `next` pause, which would be so long.
    fn is_probe(&self, next: Nanos) -> bool {
        if self.others > 0 {
            // An attempt that runs may have been served before this one was refused. Before a long pause its answer is waited
            // for, once.
            return self.probes == 0 && next >= LONG;
        }
        // Some units may be refused always, the first ones after a restart. The longer it lasts, the more different ones are
        // tried between two pauses.
        let most = if self.has_served(1, 0) {
            self.incidents.saturating_sub(ENOUGH)
        } else {
            2_u32.saturating_pow(self.incidents).min(2 * ENOUGH) / 2
        };
        self.probes + 1 < most
    }

    /// The server asked to wait. Returns until when.
    pub(super) fn later(
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
        let may_probe = serves_nothing && asked.is_none() && !self.is_at_end;
        let is_probe = may_probe && self.is_probe(unnamed(self.incidents.saturating_add(1)));
        self.probes = if is_probe { self.probes + 1 } else { 0 };
        if !is_known && !is_probe {
            // A time that is named, such as 0, was too short only if one that has waited for it is refused again.
            let is_one = asked.is_none() || history.was_told();
            self.incidents = if serves_nothing { self.incidents.saturating_add(u32::from(is_one)).max(1) } else { 1 };
        }
        let wait = match asked {
            None if is_probe && self.others > 0 => self.took.saturating_mul(2),
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
