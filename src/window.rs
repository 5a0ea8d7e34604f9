//! One sliding window, as pure arithmetic: never more than COUNT in any PERIOD, as strict servers count.
//!
//! The state is the log of the grants of the last period. Up to 1024 units it is exact; a larger window keeps its grants
//! in groups of ⌈COUNT/1024⌉ units, each counted at its latest grant: that frees them a little late and never early.
//! A period is half-open: a unit granted at `t` makes room again at `t + PERIOD`.

use crate::clock::{Nanos, shrink};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// Windows of up to this many units are exact.
pub(crate) const EXACT: u64 = 1024;

/// A window of `count` units in any `period` nanoseconds, and what was granted in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    count: u64,
    period: Nanos,
    /// Units that share one entry of the log.
    group: u64,
    /// Oldest first; times never fall.
    log: VecDeque<Entry>,
    /// Units in the log, those that have left the period included: up to two full windows, more where the window was larger.
    logged: u128,
    /// The time of the latest grant.
    at: Nanos,
    before: Option<Undo>,
    /// What charges before that did, which may be taken back after it, the latest last; `None` where one cannot be.
    earlier: VecDeque<Option<Undo>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Nanos,
    units: u64,
}

/// What the last charge did to the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Undo {
    at: Nanos,
    /// The last entry as it was, where the charge added to it.
    merged_into: Option<Entry>,
    pushed: bool,
    cost: u64,
}

impl Window {
    /// An empty window at `now`.
    #[must_use]
    pub fn new(count: NonZeroU64, period: NonZeroU64, now: Nanos) -> Self {
        let (count, period) = (count.get(), period.get());
        let group = count.div_ceil(EXACT);
        let (log, earlier) = (VecDeque::new(), VecDeque::new());
        Window { count, period, group, log, logged: 0, at: now, before: None, earlier }
    }

    /// The most units in any period.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The period, in nanoseconds.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// The least time, not before `now` nor before the last grant, at which `cost` units conform.
    ///
    /// `None` for a cost above the window's count, which no time allows, and beyond the end of the clock.
    #[must_use]
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.room_at(now.max(self.at), cost)
    }

    /// The least time, not before `start`, at which there is room for `cost` units. That may be before the last grant, where
    /// units were handed over later than they might have been.
    pub(crate) fn room_at(&self, start: Nanos, cost: u64) -> Option<Nanos> {
        let room = u128::from(self.count.checked_sub(cost)?);
        let mut held = self.logged;
        let mut time = start;
        for entry in &self.log {
            if held <= room && !self.has_left(entry, start) {
                break;
            }
            held -= u128::from(entry.units);
            time = time.max(entry.at.checked_add(self.period)?);
        }
        Some(time)
    }

    /// Takes `cost` units at `grant`, a time not before [`conforms_at`](Self::conforms_at).
    pub fn charge(&mut self, grant: Nanos, cost: u64) {
        // Only what no longer mattered at the *previous* grant is forgotten, so that this one can be undone; nor at any
        // before it that can be undone after it.
        let since = self.earlier.iter().flatten().next().map_or(self.at, |undo| undo.at);
        while let Some(&entry) = self.log.front().filter(|entry| self.has_left(entry, since)) {
            self.logged -= u128::from(entry.units);
            self.log.pop_front();
        }
        shrink(&mut self.log);
        self.log(grant, cost, self.group);
    }

    /// Puts `cost` units at the end of the log, and no more than `group` of them in one entry with earlier ones.
    fn log(&mut self, grant: Nanos, cost: u64, group: u64) {
        let mut undo = Undo { at: self.at, merged_into: None, pushed: false, cost };
        let mut rest = cost;
        // What has left the period must not come back into it with a group.
        let joins = self.log.back().is_some_and(|last| !self.has_left(last, grant));
        if let Some(last) = self.log.back_mut().filter(|_| joins) {
            // At the end of the clock all comes at one time, and may be more than one entry counts.
            let most = if last.at == grant { u64::MAX } else { group };
            let shared = rest.min(most.saturating_sub(last.units));
            if shared > 0 {
                undo.merged_into = Some(*last);
                *last = Entry { at: grant, units: last.units + shared };
                rest -= shared;
            }
        }
        if rest > 0 {
            self.log.push_back(Entry { at: grant, units: rest });
            undo.pushed = true;
        }
        self.logged += u128::from(cost);
        self.at = self.at.max(grant);
        self.before = Some(undo);
    }

    /// Counts `units` that were granted at `counted` from `now` on, when they are handed over. `false` where they no longer
    /// count and their room was given to others: then they have to wait once more.
    pub(crate) fn hand_over(&mut self, counted: Nanos, units: u64, now: Nanos) -> bool {
        let expired = now.saturating_sub(counted) >= self.period;
        if self.at > now {
            return !expired;
        }
        if expired && self.held_at(now).saturating_add(units) > self.count {
            return false;
        }
        if !expired {
            self.remove(counted, units);
        }
        self.log(now, units, self.group);
        self.fix();
        true
    }

    /// Takes `units` that were logged at `since` or later out of the log, the first first.
    fn remove(&mut self, since: Nanos, units: u64) {
        let mut rest = units;
        let mut place = self.log.partition_point(|entry| entry.at < since);
        while let Some(entry) = self.log.get_mut(place).filter(|_| rest > 0) {
            let removed = rest.min(entry.units);
            (rest, entry.units) = (rest - removed, entry.units - removed);
            self.logged -= u128::from(removed);
            if entry.units > 0 {
                place += 1;
            } else {
                self.log.remove(place);
            }
        }
    }

    /// Appends the state as words; count and period stand elsewhere.
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.at, self.log.len() as u64]);
        words.extend(self.log.iter().flat_map(|entry| [entry.at, entry.units]));
        let undo = self.before.unwrap_or(Undo { at: 0, merged_into: None, pushed: false, cost: 0 });
        let merged = undo.merged_into.unwrap_or(Entry { at: 0, units: 0 });
        let flags = [self.before.is_some(), undo.pushed, undo.merged_into.is_some()];
        words.extend(flags.map(u64::from));
        words.extend([undo.at, undo.cost, merged.at, merged.units]);
    }

    /// Takes over the state that [`save`](Self::save) wrote; `None` if words are missing or contradict each other.
    pub(crate) fn load(&mut self, words: &mut impl Iterator<Item = u64>) -> Option<()> {
        self.at = words.next()?;
        self.log.clear();
        self.logged = 0;
        for _ in 0..words.next()? {
            let entry = Entry { at: words.next()?, units: words.next()? };
            self.logged += u128::from(entry.units);
            self.log.push_back(entry);
        }
        let flags = [words.next()?, words.next()?, words.next()?].map(|flag| flag == 1);
        let (at, cost) = (words.next()?, words.next()?);
        let merged = Entry { at: words.next()?, units: words.next()? };
        let undo = Undo { at, cost, pushed: flags[1], merged_into: flags[2].then_some(merged) };
        self.before = flags[0].then_some(undo);
        (self.log.iter().is_sorted_by_key(|entry| entry.at) && u128::from(cost) <= self.logged).then_some(())
    }

    /// Counts what `old` counted.
    pub(crate) fn inherit(&mut self, old: &Window) {
        (self.log, self.logged, self.at) = (old.log.clone(), old.logged, old.at.max(self.at));
    }

    /// The last charge can still be taken back when there has been another.
    pub(crate) fn keep(&mut self) {
        self.earlier.push_back(self.before);
    }

    #[cfg(test)]
    pub(crate) fn history_memory(&self) -> usize {
        self.earlier.capacity() + self.log.capacity()
    }

    /// The first of the charges kept is not taken back any more.
    pub(crate) fn release(&mut self) {
        self.earlier.pop_front();
        shrink(&mut self.earlier);
    }

    /// The log is another one: nothing that was done to it can be taken back.
    fn fix(&mut self) {
        self.before = None;
        self.earlier.iter_mut().for_each(|undo| *undo = None);
    }

    /// Takes back the last charge, as if it had never been made; and after it those before it that are kept.
    pub(crate) fn undo(&mut self) {
        let last = std::mem::replace(&mut self.before, self.earlier.pop_back().flatten());
        shrink(&mut self.earlier);
        let Some(undo) = last else { return };
        if undo.pushed {
            self.log.pop_back();
        }
        if let (Some(entry), Some(last)) = (undo.merged_into, self.log.back_mut()) {
            *last = entry;
        }
        self.logged -= u128::from(undo.cost);
        self.at = undo.at;
    }

    /// Takes `units` that were granted at `grant` and not used out of the log, where they still stand under that time.
    pub(crate) fn give_back(&mut self, grant: Nanos, units: u64) {
        if let Some(entry) = self.log.iter_mut().rev().find(|entry| entry.at <= grant)
            && entry.at == grant
        {
            let returned = units.min(entry.units);
            entry.units -= returned;
            self.logged -= u128::from(returned);
            self.log.retain(|entry| entry.units > 0);
        }
        self.fix();
    }

    /// Takes `units` that still count at `now` out of the log, as far as they are there: the earliest first, for whichever
    /// they were, the rest counts no shorter than it should.
    pub(crate) fn credit(&mut self, now: Nanos, units: u64) {
        let mut rest = units;
        let left = self.log.iter().take_while(|entry| self.has_left(entry, now)).count();
        for entry in self.log.iter_mut().skip(left) {
            let returned = rest.min(entry.units);
            entry.units -= returned;
            self.logged -= u128::from(returned);
            rest -= returned;
        }
        self.fix();
    }

    /// Logs `units` at `now` that were used without a grant, be it more than the window allows: all count for a period.
    pub(crate) fn pay(&mut self, now: Nanos, units: u64) {
        let time = now.max(self.at);
        if units > 0 {
            // Beyond the count they need no times of their own: so the log stays as short as the window is.
            let group = if self.held_at(time) > self.count { u64::MAX } else { self.group };
            self.log(time, units, group);
            self.fix();
        }
    }

    /// Whether nothing counts any more at `time`, or at the last grant where that is later.
    pub(crate) fn is_empty(&self, time: Nanos) -> bool {
        self.held_at(time.max(self.at)) == 0
    }

    /// Whole units that could be taken at `now`; nothing while a grant lies ahead.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        if now < self.at { 0 } else { self.count.saturating_sub(self.held_at(now)) }
    }

    /// The time at which `units` more will all have been granted, were this window the only limit.
    pub(crate) fn schedule(&self, now: Nanos, units: u64) -> Option<Nanos> {
        let start = now.max(self.at);
        let free = self.count.saturating_sub(self.held_at(start));
        let Some(beyond) = units.checked_sub(free).and_then(|beyond| beyond.checked_sub(1)) else { return Some(start) };
        // From here on every unit takes the place of an earlier one, a whole number of periods later.
        let (rounds, mut place) = (beyond / self.count, beyond % self.count);
        let live = self.log.iter().filter(|entry| !self.has_left(entry, start));
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
    fn held_at(&self, time: Nanos) -> u64 {
        let gone = self.log.iter().take_while(|entry| self.has_left(entry, time));
        let held = self.logged - gone.map(|entry| u128::from(entry.units)).sum::<u128>();
        u64::try_from(held).unwrap_or(u64::MAX)
    }

    /// Whether `entry` makes room again at `time`.
    fn has_left(&self, entry: &Entry, time: Nanos) -> bool {
        time.checked_sub(entry.at).is_some_and(|age| age >= self.period)
    }
}
