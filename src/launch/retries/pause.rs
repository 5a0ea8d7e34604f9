//! The pauses of a key, or of all units, and what is known about a server that sent "later".

use super::policy::Verdict;
use std::time::Duration;
use throttle_limits::clock::{Nanos, SECOND, in_nanos};
use throttle_limits::limits::{Pace, Served, Start};

/// The times of an attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// When it started.
    pub(crate) started: Nanos,
    /// When it ended.
    pub(crate) at: Nanos,
}

/// If the server serves this many units for each refusal, a refusal concerns only the refused unit.
pub(super) const ENOUGH: u32 = 8;

/// If this many units were refused for the first time since the latest success, the pace may be the reason, whichever unit is
/// served next.
const MANY_IN_A_ROW: u32 = 3;

/// A pause of at least this length may mean that the server is down.
const LONG: Nanos = 10 * SECOND;

/// The weight of a unit left over from an earlier run; see [`History::weight`].
const LEFT_OVER: u32 = 32;

/// Whether the server accepts other units while it refuses this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// It may accept no unit.
    Unknown,
    /// It has served a unit that started after this unit's latest refusal, and since then has refused no other unit for
    /// the first time. Or it has served [`ENOUGH`] units that started after that refusal.
    Some,
    /// It has served enough units to show that only this unit is refused.
    Enough,
}

/// The results of a unit's earlier attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// The number of attempts used up. A refused attempt is not counted, unless it is certain that only this unit is
    /// refused.
    pub(super) used: u32,
    /// The number of refusals that paused all units, and the time of the latest refusal.
    pub(super) refusals: u32,
    pub(super) refused_at: Nanos,
    /// The number of refusals in `refusals` that are only assumed, because an earlier run has left the unit over.
    assumed: u32,
    /// The time of the first refusal.
    pub(super) first_refused_at: Nanos,
    /// The number of refusals that paused only this unit, and whether it was ever certain that only this unit is
    /// refused.
    pub(super) alone: u32,
    pub(super) is_sure: bool,
    /// Whether the slowdown after its first refusal was taken back, because the pace was not the cause.
    pub(super) is_bad: bool,
    /// Whether the unit is a suspect at its next attempt: see [`History::weight`].
    pub(super) is_suspect: bool,
    /// The start of the latest attempt.
    pub(super) start: Start,
}

impl History {
    /// The history of a unit that an earlier run has left over.
    pub(super) fn left_over(now: Nanos) -> Self {
        History {
            refusals: 1,
            refused_at: now,
            first_refused_at: now,
            is_suspect: true,
            assumed: 1,
            ..History::default()
        }
    }

    /// Whether an earlier run has left the unit over and no attempt of this run was refused.
    pub(super) fn is_left_over(self) -> bool {
        self.assumed > 0 && !self.was_refused()
    }

    /// The number of turns that usual units of a key get for each turn of its suspects; 0 for a usual unit. A suspect
    /// is a unit that was refused again and again, or that an earlier run has left over. Left-over units get the fewest
    /// turns, because units that always fail should take few calls of each run.
    pub(crate) fn weight(self) -> u32 {
        match self.is_suspect {
            true if self.is_left_over() => LEFT_OVER,
            true => ENOUGH,
            false => 0,
        }
    }

    /// Whether the unit was refused in this run.
    pub(crate) fn was_refused(self) -> bool {
        self.refusals + self.alone > self.assumed
    }
}

/// Why a pause has its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The server named this wait, in nanoseconds.
    Named(Nanos),
    /// The server named no time, or a time that was too short before.
    Own,
}

/// The pauses of a key, or of all units.
#[derive(Debug)]
pub(super) struct Pause {
    /// The end of the pause. Nothing starts before it.
    pub(super) until: Nanos,
    /// Why it ends then.
    pub(super) cause: Cause,
    /// The number of pauses since the end of the latest successful attempt.
    pub(super) incidents: u32,
    /// The number of pauses before that success.
    needed: u32,
    /// The number of units that were refused for the first time since that success.
    in_a_row: u32,
    /// The time of the first refusal since that success.
    pub(super) since: Option<Nanos>,
    /// The number of refusals that caused no pause, since the latest pause.
    probes: u32,
    /// The number of successful attempts that started after the latest pause began.
    served: u32,
    /// How long the latest successful attempt took.
    took: Nanos,
    /// The number of refusals that paused only the refused unit, since the latest pause.
    pub(super) alone: u32,
    /// The latest time of any unit's first refusal.
    pub(super) new_at: Nanos,
    /// The number of running attempts for units that were not refused before.
    pub(super) others: u32,
    /// The start times of the latest successful attempts, in ascending order.
    recent: [Nanos; ENOUGH as usize],
    /// Whether every unit that is left was refused before.
    pub(super) is_at_end: bool,
}

impl Pause {
    pub(super) fn new() -> Self {
        Pause {
            until: 0,
            cause: Cause::Own,
            incidents: 0,
            needed: 0,
            in_a_row: 0,
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

    /// Records a success, even if its attempt started before the latest pause: a refusal may come much sooner than a
    /// success.
    pub(super) fn succeeded(&mut self, ended: Judged, history: History, pace: &Pace) {
        if self.incidents > 0 {
            self.needed = self.incidents;
        }
        (self.incidents, self.since) = (0, None);
        self.recent[0] = self.recent[0].max(ended.started);
        self.recent.sort_unstable();
        self.served += u32::from(!pace.is_old(history.start));
        self.in_a_row = 0;
        self.took = ended.at.saturating_sub(ended.started);
    }

    /// The success of a unit's latest attempt, as the learned pace records it. After refusals of several units in a row it
    /// counts as the success of a refused unit: a server that always refuses some units rarely refuses that many in a row.
    pub(super) fn success(&self, history: History) -> Served {
        let are_many = self.in_a_row >= MANY_IN_A_ROW && self.has_served(1, 0);
        history.start.succeeded(history.was_refused() || are_many)
    }

    /// The number of pauses with which a pause without a named time begins, if calls have started since the pause before.
    /// After a ban that ended with a single success, it is half as long as the last pause that was needed.
    fn first_incident(&self) -> u32 {
        match (self.incidents, self.served) {
            (0, ..=1) => self.needed.saturating_sub(1).max(1),
            (0, _) => 1,
            (incidents, 0) => incidents,
            _ => 1,
        }
    }

    /// Whether the server accepts other units when it refuses a unit again. `long` is the longest backoff in
    /// nanoseconds.
    pub(super) fn serves_others(&self, history: History, now: Nanos, long: Nanos) -> Serves {
        let serves_nothing = self.since.is_some_and(|since| now.saturating_sub(since) >= long);
        let is_sure = self.served / ENOUGH > self.alone
            || history.is_sure && (self.incidents == 0 || self.is_at_end)
            || self.is_at_end && serves_nothing && self.has_served(1, history.first_refused_at);
        // First refusals of other units may mean that calls are too fast. Then a single success proves little.
        let enough = if self.new_at <= history.refused_at { 1 } else { ENOUGH };
        match history.refusals {
            0 => Serves::Unknown,
            _ if is_sure && history.was_refused() => Serves::Enough,
            _ if self.has_served(enough, history.refused_at) => Serves::Some,
            _ => Serves::Unknown,
        }
    }

    /// Whether the server has served at least `count` units that started after `since`. `count` is at most [`ENOUGH`].
    pub(super) fn has_served(&self, count: u32, since: Nanos) -> bool {
        self.recent[(ENOUGH - count) as usize] > since
    }

    /// Marks a unit as a suspect if it will be tried again and was refused more than once. One refusal is enough if
    /// nothing was served since. Other units go before suspects, to show whether the server accepts other units. A
    /// suspect's next attempt waits long enough for those units to end.
    pub(super) fn suspect(&self, history: &mut History, verdict: Verdict) -> Verdict {
        let is_one = history.refusals + history.alone > 1 || history.refusals > 0 && self.incidents > 1;
        history.is_suspect = verdict.is_repeated() && is_one;
        match verdict {
            Verdict::Later(due) if history.is_suspect && !self.is_at_end => {
                Verdict::Later(due.max(history.refused_at.saturating_add(self.took.saturating_mul(2))))
            }
            other => other,
        }
    }

    /// Whether another unit is tried before the next pause, although the server may accept no unit. That pause takes
    /// `next` nanoseconds.
    fn is_probe(&self, next: Nanos) -> bool {
        if self.others > 0 {
            // A running attempt may have been served before this refusal. Before a long pause, its result is awaited
            // once.
            return self.probes == 0 && next >= LONG;
        }
        // A server may always refuse some units, such as the first units after a restart. The longer the refusals last,
        // the more other units are tried between two pauses.
        let most = if self.has_served(1, 0) {
            self.incidents.saturating_sub(ENOUGH)
        } else {
            2_u32.saturating_pow(self.incidents).min(2 * ENOUGH) / 2
        };
        self.probes + 1 < most
    }

    /// Records a refusal, and returns whether it makes the pause longer. `unnamed(incidents)` returns the length of a
    /// pause for which the server named no time.
    pub(super) fn later(
        &mut self,
        (ended, history): (Judged, History),
        (named, pace): (Option<Duration>, &Pace),
        unnamed: impl Fn(u32) -> Nanos,
    ) -> bool {
        let is_known = pace.is_old(history.start);
        self.since.get_or_insert(ended.at);
        let first = self.first_incident();
        self.in_a_row = self.in_a_row.saturating_add(u32::from(history.refusals == 0));
        (self.served, self.alone) = (0, 0);
        // Running attempts without an answer count as allowed: their answers may take longer than refusals.
        let serves_nothing = !is_known && !pace.has_allowed();
        let may_probe = serves_nothing && named.is_none() && !self.is_at_end;
        let is_probe = may_probe && self.is_probe(unnamed(self.incidents.saturating_add(1)));
        self.probes = if is_probe { self.probes + 1 } else { 0 };
        if !is_known && !is_probe {
            // A refusal with a named time is a further incident only if its unit was refused before: then the earlier
            // named time, such as 0, was too short.
            let is_one = named.is_none() || history.was_refused();
            self.incidents =
                if serves_nothing { self.incidents.saturating_add(u32::from(is_one)).max(first) } else { first };
        }
        let wait = match named {
            None if is_probe && self.others > 0 => self.took.saturating_mul(2),
            None if is_probe => 0,
            // The time named before was too short.
            Some(named) if !is_known && self.incidents > 1 && history.was_refused() => {
                in_nanos(named).max(unnamed(self.incidents))
            }
            Some(named) => in_nanos(named),
            None if is_known => 0,
            None => unnamed(self.incidents),
        };
        let until = ended.at.saturating_add(wait);
        let is_longer = until > self.until;
        if is_longer {
            let named = named.map(in_nanos).filter(|named| *named >= wait);
            (self.until, self.cause) = (until, named.map_or(Cause::Own, Cause::Named));
        }
        is_longer
    }
}
