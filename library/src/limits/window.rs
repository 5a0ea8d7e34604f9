//! One sliding window, as pure arithmetic: never more than COUNT in any PERIOD, as strict servers count.
//!
//! The state is the log of the grants of the last period. Up to 1024 units it is exact. A larger window keeps its
//! grants in groups of ⌈COUNT/1024⌉ units. Each group counts from the time of its latest grant: that frees the units a
//! little late, never early. A period is half-open: a unit granted at `t` makes room again at `t + PERIOD`. Slack, if
//! any, is part of the period here.
//!
//! In the state of a window, the amount of the level is the units in the log. They include units that have left the
//! period: up to two full windows, more if the window was larger before.

use super::state::{Level, LogEntry, State};
use crate::clock::{Nanos, shrink};
use crate::rate::Rate;

/// Windows of up to this many units are exact.
pub(crate) const MAX_EXACT_UNITS: u64 = 1024;

/// The fixed numbers of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    count: u64,
    /// How long a unit counts: the period and the slack.
    period: Nanos,
    /// Units that share one entry of the log.
    group: u64,
}

impl Terms {
    /// A unit counts for `slack` nanoseconds longer than the period of `rate`.
    pub(crate) fn new(rate: Rate, slack: Nanos) -> Self {
        let (count, period) = rate.window();
        let group = count.get().div_ceil(MAX_EXACT_UNITS);
        Terms { count: count.get(), period: period.get().saturating_add(slack), group }
    }

    /// A window in which `used` units count as granted at `now`.
    pub(crate) fn start(&self, used: u64, now: Nanos) -> State {
        let mut state = State::from(Level { amount: 0, at: now });
        if used > 0 {
            self.add(&mut state, now, used, u64::MAX);
        }
        state
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn period(&self) -> Nanos {
        self.period
    }

    /// The earliest time, not before `start`, at which there is room for `cost` units. That may be before the last
    /// grant, if units were handed over later than possible.
    ///
    /// `None` if the cost is above the window's count and so is never granted, or if the time is beyond the end of the
    /// clock.
    pub(crate) fn room_at(&self, state: &State, start: Nanos, cost: u64) -> Option<Nanos> {
        let room = i128::from(self.count.checked_sub(cost)?);
        let mut held = state.level.amount;
        let mut time = start;
        for entry in state.log() {
            if held <= room && !self.has_left(entry, start) {
                break;
            }
            held -= i128::from(entry.units);
            time = time.max(entry.at.checked_add(self.period)?);
        }
        Some(time)
    }

    /// Takes `cost` units at `grant`, a time at which [there is room](Self::room_at). Entries that no longer count at
    /// `since` are dropped.
    pub(crate) fn charge(&self, state: &mut State, since: Nanos, grant: Nanos, cost: u64) {
        while let Some(&entry) = state.log().front().filter(|entry| self.has_left(entry, since)) {
            state.level.amount -= i128::from(entry.units);
            state.log_mut().pop_front();
        }
        shrink(state.log_mut());
        self.add(state, grant, cost, self.group);
    }

    /// Adds `cost` units to the log, in the order of its times. At most `group` units share one entry.
    fn add(&self, state: &mut State, grant: Nanos, cost: u64, group: u64) {
        let mut rest = cost;
        let log = state.log_mut();
        // Charges go to the end of the log. Corrections of earlier grants may go to its middle.
        let is_last = log.back().is_none_or(|last| last.at <= grant);
        let place = if is_last { log.len() } else { log.partition_point(|entry| entry.at <= grant) };
        if let Some(last) = place.checked_sub(1).and_then(|before| log.get_mut(before))
            // An entry that has left the period must not count again because units join it.
            && !self.has_left(last, grant)
        {
            // Grants at the same time share an entry, even above `group` units. At the end of the clock, all grants
            // have the same time.
            let most = if last.at == grant { u64::MAX } else { group };
            let shared = rest.min(most.saturating_sub(last.units));
            if shared > 0 {
                *last = LogEntry { at: grant, units: last.units + shared };
                rest -= shared;
            }
        }
        if rest > 0 {
            if log.len() == log.capacity() {
                // Many keys may have a window. So the log takes little more than 16 bytes an entry, not up to twice as
                // much.
                log.reserve_exact(log.len() / 8 + 1);
            }
            log.insert(place, LogEntry { at: grant, units: rest });
        }
        state.level.amount += i128::from(cost);
        state.level.at = state.level.at.max(grant);
    }

    /// Whether units that count from `counted` may be handed over at `now`: they still count, or there is room for them.
    pub(crate) fn keeps_room(&self, state: &State, counted: Nanos, units: u64, now: Nanos) -> bool {
        let has_room = || state.level.at <= now && self.held_at(state, now).saturating_add(units) <= self.count;
        self.counts(counted, now) || has_room()
    }

    /// Whether units that count from `counted` still count at `now`.
    pub(crate) fn counts(&self, counted: Nanos, now: Nanos) -> bool {
        now.saturating_sub(counted) < self.period
    }

    /// Counts `units` from `now`, when they are handed over, and no longer from `counted`. Returns `false` if they no
    /// longer count and others got their room: then they have to wait again. Units with later grants behind them count
    /// from their own time.
    pub(crate) fn hand_over(&self, state: &mut State, counted: Nanos, units: u64, now: Nanos) -> bool {
        let keeps_room = self.keeps_room(state, counted, units, now);
        if keeps_room && state.level.at <= now {
            if self.counts(counted, now) {
                Terms::remove(state, [counted, Nanos::MAX], units);
            }
            self.add(state, now, units, self.group);
        }
        keeps_room
    }

    /// Removes up to `units` with times in this range, the earliest first.
    fn remove(state: &mut State, [since, until]: [Nanos; 2], units: u64) {
        let mut rest = units;
        let log = state.log_mut();
        let first = log.partition_point(|entry| entry.at < since);
        while let Some(entry) = log.get_mut(first).filter(|entry| rest > 0 && entry.at <= until) {
            let removed = rest.min(entry.units);
            (rest, entry.units) = (rest - removed, entry.units - removed);
            if entry.units == 0 {
                log.remove(first);
            }
        }
        state.level.amount -= i128::from(units - rest);
    }

    /// Removes `units` of a grant that was not used and counts from `counted`, if the log still has them at that time.
    pub(crate) fn give_back(state: &mut State, counted: Nanos, units: u64) {
        Terms::remove(state, [counted; 2], units);
    }

    /// Removes up to `units` that still count at `now`, the earliest first. Even if the caller meant later units, the
    /// remaining units count long enough.
    pub(crate) fn credit(&self, state: &mut State, now: Nanos, units: u64) {
        let since = now.checked_sub(self.period).map_or(0, |gone| gone.saturating_add(1));
        Terms::remove(state, [since, Nanos::MAX], units);
    }

    /// Logs `units` that were used at `now` without a grant, even beyond the window's count. All of them count for a
    /// period.
    pub(crate) fn pay(&self, state: &mut State, now: Nanos, units: u64) {
        if units > 0 {
            let counts = |entry: &&LogEntry| entry.at <= now && !self.has_left(entry, now);
            let counted = state.log().iter().filter(counts).fold(0_u64, |sum, entry| sum.saturating_add(entry.units));
            // Units beyond the count need no exact times, so they share an entry and the log stays short.
            let group = if counted > self.count { u64::MAX } else { self.group };
            self.add(state, now, units, group);
        }
    }

    /// Corrects a grant that counts from `counted`: the first cost was charged, the second is real. Does nothing if it
    /// no longer counts at `since`, because its entry may have been dropped.
    pub(crate) fn correct(&self, state: &mut State, since: Nanos, counted: Nanos, [charged, real]: [u64; 2]) {
        if !self.counts(counted, since) {
            return;
        }
        match real.checked_sub(charged) {
            Some(more) => self.add(state, counted, more, self.group),
            None => Terms::remove(state, [counted, Nanos::MAX], charged - real),
        }
    }

    /// Whether nothing counts at `time`, or at the last grant if that is later.
    pub(crate) fn is_empty(&self, state: &State, time: Nanos) -> bool {
        self.held_at(state, time.max(state.level.at)) == 0
    }

    /// Whole units that could be taken at `now`; 0 if the last grant is in the future.
    pub(crate) fn available(&self, state: &State, now: Nanos) -> u64 {
        if now < state.level.at { 0 } else { self.count.saturating_sub(self.held_at(state, now)) }
    }

    /// The time at which `units` more will all have been granted if this window were the only limit.
    pub(crate) fn schedule(&self, state: &State, now: Nanos, units: u64) -> Option<Nanos> {
        let start = now.max(state.level.at);
        let free = self.count.saturating_sub(self.held_at(state, start));
        let Some(beyond) = units.checked_sub(free).and_then(|beyond| beyond.checked_sub(1)) else { return Some(start) };
        // From here on every unit takes the room of an earlier one, a whole number of periods later.
        let (rounds, mut place) = (beyond / self.count, beyond % self.count);
        let live = state.log().iter().filter(|entry| !self.has_left(entry, start));
        let freed = live.map(|entry| (entry.at, entry.units)).chain([(start, free)]);
        for (at, room) in freed {
            match place.checked_sub(room) {
                Some(further) => place = further,
                None => return self.period.checked_mul(rounds + 1)?.checked_add(at),
            }
        }
        None
    }

    /// Units that count at `time`, which is not before the last grant.
    fn held_at(&self, state: &State, time: Nanos) -> u64 {
        let gone = state.log().iter().take_while(|entry| self.has_left(entry, time));
        let held = state.level.amount - gone.map(|entry| i128::from(entry.units)).sum::<i128>();
        u64::try_from(held).unwrap_or(u64::MAX)
    }

    /// Whether `entry` no longer counts at `time`.
    fn has_left(&self, entry: &LogEntry, time: Nanos) -> bool {
        time.checked_sub(entry.at).is_some_and(|age| age >= self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_takes_little_more_than_16_bytes_an_entry() {
        let window = Terms::new("1000/ms".parse().unwrap(), 0);
        let mut state = State::from(Level { amount: 0, at: 0 });
        for time in 0..1000 {
            window.charge(&mut state, time, time, 1);
            let (entries, room) = (state.log().len(), state.log().capacity());
            assert!(room <= entries + entries / 8 + 1, "room for {room} of {entries}");
        }
        assert_eq!((state.log().len(), size_of::<LogEntry>()), (1000, 16));
    }

    /// A state with these times and units in its log.
    fn logged(log: &[(Nanos, u64)]) -> State {
        let units = log.iter().map(|(_, units)| i128::from(*units)).sum();
        let mut state = State::from(Level { amount: units, at: log.last().map_or(0, |(at, _)| *at) });
        state.log_mut().extend(log.iter().map(|(at, units)| LogEntry { at: *at, units: *units }));
        state
    }

    /// The log, whose units are the amount.
    fn shown(state: &State) -> Vec<(Nanos, u64)> {
        let log: Vec<_> = state.log().iter().map(|entry| (entry.at, entry.units)).collect();
        assert_eq!({ state.level.amount }, log.iter().map(|(_, units)| i128::from(*units)).sum());
        log
    }

    #[test]
    fn units_count_from_when_they_are_handed_over() {
        let window = Terms::new("5/us".parse().unwrap(), 0);
        for (log, now, expected) in [
            (&[(10, 2)][..], 500, Some(&[(500, 2)][..])),
            (&[(10, 2), (20, 1)], 500, Some(&[(20, 1), (500, 2)])),
            // With a grant in the future, those before it count from their own times.
            (&[(10, 2), (900, 1)], 500, Some(&[(10, 2), (900, 1)])),
            (&[(10, 2), (2000, 1)], 1009, Some(&[(10, 2), (2000, 1)])),
            (&[(10, 2), (2000, 1)], 1010, None),
            // They no longer count, and others may have their room.
            (&[(10, 2), (1200, 3)], 1500, Some(&[(10, 2), (1200, 3), (1500, 2)])),
            (&[(10, 2), (1200, 4)], 1500, None),
        ] {
            let mut state = logged(log);
            let have_room = window.hand_over(&mut state, 10, 2, now);
            assert_eq!((have_room, &*shown(&state)), (expected.is_some(), expected.unwrap_or(log)), "{log:?} {now}");
        }
    }

    #[test]
    fn what_is_paid_beyond_the_count_takes_no_more_entries() {
        let window = Terms::new("5/us".parse().unwrap(), 0);
        let mut state = logged(&[]);
        window.pay(&mut state, 7, 0);
        assert_eq!(state, logged(&[]));
        (0..100).for_each(|time| window.pay(&mut state, time, 1));
        assert_eq!(shown(&state), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (99, 95)]);
        window.pay(&mut state, 2000, 2);
        assert_eq!(shown(&state).last(), Some(&(2000, 2)), "those have left");
        let mut state = logged(&[(0, 5), (1500, 1)]);
        window.pay(&mut state, 2000, 1);
        assert_eq!(shown(&state), [(0, 5), (1500, 1), (2000, 1)]);
    }
}
