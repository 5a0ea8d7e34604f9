//! Shared limits, and the line of those who wait for them.
//!
//! A long wait is an entry. If an entry goes, those behind it move up. For that the line keeps the limits as they were
//! before the first entry, and charges the others again from there. So leaving costs as much as there are entries, and
//! joining does not.
//!
//! Nobody is woken: who waits looks every [`LOOK`]. So an entry moves to no earlier time than that from now, and one
//! that is due before stays where it is. Then nobody leaves at another time than was charged.

use super::{Ask, Grant, Limits, Policy, Refusal, Rest, largest};
use crate::clock::{Nanos, SECOND};

/// Who waits longer than this looks this often whether its time is nearer.
pub(crate) const LOOK: Nanos = 5 * SECOND;

/// A wait of this length is an entry. A shorter one is too, while there are others.
pub(super) const LONG: Nanos = SECOND;

/// The most entries. Beyond that, grants are reservations that nobody can move.
const MOST: usize = 1024;

/// So many entries whose time has come are forgotten together.
const PAST: usize = 64;

/// The process of an entry, in words of the store's own.
pub(crate) type Owner = [u64; 2];

/// Who asks; called only if that matters.
pub(crate) type OwnerOf = fn() -> Owner;

/// Limits, and those who wait for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The limits with everything charged.
    pub(crate) limits: Limits,
    /// The limits as they were before the first entry.
    base: Option<Box<Limits>>,
    /// In the order of their times.
    entries: Vec<Entry>,
    /// When it was last looked for owners that are gone.
    swept: Nanos,
    /// Some entered again since the state was lost, and nobody has moved up since.
    is_lost: bool,
    /// The least number of a grant that can be given back: those before were in the line when that was emptied.
    first: u64,
}

/// One that waits. Without a number it is a reservation that nobody can move, and without a cost a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// The number of its grant.
    number: u64,
    owner: Owner,
    cost: u64,
    /// What it costs each limit, if that differs; then `cost` is the largest.
    costs: Box<[u64]>,
    asked: Nanos,
    /// The time that its owner knows of.
    told: Nanos,
    /// The time that it is charged at, not after `told`.
    at: Nanos,
}

/// One that waits for shared limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What it costs.
    pub cost: u64,
    /// How long it still has to wait, in nanoseconds.
    pub wait: Nanos,
}

impl Entry {
    fn new(number: u64, owner: Owner, costs: &[u64], [asked, at]: [Nanos; 2]) -> Self {
        let cost = largest(costs);
        let differ = costs.iter().any(|other| *other != cost);
        Entry { number, owner, cost, costs: if differ { costs.into() } else { Box::default() }, asked, told: at, at }
    }

    /// What it costs each limit, or all.
    fn costs(&self) -> &[u64] {
        if self.costs.is_empty() { std::slice::from_ref(&self.cost) } else { &self.costs }
    }

    /// Another reservation that nobody can move.
    fn join(&mut self, costs: &[u64], at: Nanos) {
        let of = |costs: &[u64], place: usize| costs.get(place).or(costs.last()).copied().unwrap_or(0);
        let sum = |place| of(self.costs(), place).saturating_add(of(costs, place));
        let costs: Vec<u64> = (0..self.costs().len().max(costs.len())).map(sum).collect();
        *self = Entry::new(self.number, self.owner, &costs, [self.asked, at]);
    }
}

impl From<Limits> for Line {
    fn from(limits: Limits) -> Self {
        Line { limits, base: None, entries: Vec::new(), swept: 0, is_lost: false, first: 0 }
    }
}

impl Line {
    /// Like [`Limits::take_within`], for an entry of `owner` if the wait is long. See [`Limits::with_costs`] for `costs`.
    pub(crate) fn take_within(
        &mut self,
        now: Nanos,
        costs: &[u64],
        max: Nanos,
        owner: OwnerOf,
    ) -> Result<Grant, Refusal> {
        let grant = self.limits.with_costs(costs, |limits, cost| limits.take_within(now, cost, max))?;
        Ok(self.enter(now, grant.costing(largest(costs)), costs, owner))
    }

    /// Like [`Limits::lease`]. A run that waits long is an entry and comes alone.
    pub(crate) fn lease(
        &mut self,
        now: Nanos,
        ask: &Ask,
        owner: OwnerOf,
        mut each: impl FnMut(Grant),
    ) -> Result<(), Refusal> {
        if !self.entries.is_empty() {
            let grant = self.limits.take_run(now, ask.waiting)?;
            each(self.enter(now, grant, &[grant.units], owner));
            return Ok(());
        }
        self.limits.hold_until(now, ask.from);
        let long = self.limits.in_order(now).saturating_add(LONG);
        let mut entry = None;
        self.limits.lease(now, ask, |run| if run.at < long { each(run) } else { entry = Some(run) })?;
        if let Some(run) = entry {
            each(self.enter(now, run, &[run.units], owner));
        }
        Ok(())
    }

    /// Makes an entry of the grant just made, if it has to wait long.
    fn enter(&mut self, now: Nanos, grant: Grant, costs: &[u64], owner: OwnerOf) -> Grant {
        let asked = self.limits.in_order(now);
        if grant.units == 0 || self.entries.is_empty() && grant.at - asked < LONG {
            return grant;
        }
        if self.entries.is_empty() {
            let mut base = Box::new(self.limits.clone());
            base.undo(0);
            (self.base, self.swept) = (Some(base), now);
        }
        let number = if self.entries.len() < MOST { grant.number } else { 0 };
        match self.entries.last_mut().filter(|last| number == 0 && last.number == 0 && last.cost > 0) {
            Some(last) => last.join(costs, grant.at),
            None => self.entries.push(Entry::new(number, owner(), costs, [asked, grant.at])),
        }
        grant.numbered(number).entry(number > 0)
    }

    /// The grant at its time now. If its entry is not known, because the state was lost or the line was emptied, it
    /// enters again, before those with a later time. Its time, `left` from now, was told by the state before.
    pub(crate) fn look(&mut self, now: Nanos, grant: &Grant, costs: &[u64], left: Nanos, owner: OwnerOf) -> Grant {
        let (now, mut number) = (self.limits.in_order(now), grant.number);
        let is_new = number == 0 || !self.entries.iter().any(|entry| entry.number == number);
        if is_new && self.entries.len() >= MOST {
            let at = now.saturating_add(left);
            return grant.moved_to(at).numbered(0).entry(false);
        }
        if is_new {
            if self.entries.is_empty() {
                (self.base, self.swept) = (Some(Box::new(self.limits.clone())), now);
            }
            self.limits.history.grants += 1;
            number = self.limits.history.grants;
            let told = now.saturating_add(left.max(1));
            let entry = Entry::new(number, owner(), costs, [now, told]);
            // If that leaves no room for those who will not look again, it enters behind them.
            for until in [told, told.max(now.saturating_add(LOOK))] {
                self.entries.retain(|entry| entry.number != number);
                let place = self.entries.iter().take_while(|entry| entry.at <= until).count();
                self.entries.insert(place, entry.clone());
                if self.retime(now, Some(number), |_| {}) {
                    break;
                }
            }
        }
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) else { return *grant };
        entry.told = entry.at;
        grant.moved_to(entry.at).numbered(number)
    }

    /// Like [`Limits::give_back`]. An entry is removed as if it had never been made, and those behind move up.
    pub(crate) fn give_back(&mut self, now: Nanos, grant: &Grant, costs: &[u64]) {
        // A grant of 0 units has the number of the one before. While others wait, nothing else is given back.
        if grant.units > 0 && grant.number >= self.first && !self.remove(now, grant.number) && self.base.is_none() {
            self.limits.with_costs(costs, |limits, cost| limits.give_back(now, &grant.costing(cost)));
        }
    }

    /// A grant whose time has come may be settled: see [`Limits::open`]. Only the latest one, if nobody waits.
    pub(crate) fn open(&mut self, now: Nanos, grant: &Grant, costs: &[u64]) {
        if self.base.is_none() && grant.at == self.limits.latest() && grant.at <= now {
            self.limits.with_costs(costs, |limits, cost| limits.open(grant, cost));
        }
    }

    /// See [`Limits::settle`]. Entries move up, or are charged later.
    pub(crate) fn settle(&mut self, now: Nanos, grant: &Grant, [charged, real]: [&[u64]; 2]) {
        let settle = |limits: &mut Limits| {
            limits.with_costs(charged, |limits, charged| {
                limits.with_costs(real, |limits, real| limits.settle(now, grant, [charged, real]));
            });
        };
        self.retime(now, None, settle);
    }

    /// The grant will not be settled.
    pub(crate) fn forget(&mut self, grant: &Grant) {
        self.limits.forget(grant);
        self.base.iter_mut().for_each(|base| base.forget(grant));
    }

    /// Like [`Limits::return_lease`].
    pub(crate) fn return_lease(&mut self, now: Nanos, rest: &Rest) {
        if rest.last.number < self.first {
            return;
        }
        let (entries, runs): (Vec<&Grant>, Vec<&Grant>) = rest.runs.iter().partition(|run| run.is_entry);
        if entries.is_empty() && self.base.is_none() {
            return self.limits.return_lease(now, rest);
        }
        for run in entries.into_iter().rev().chain(runs) {
            self.give_back(now, run, &[run.units]);
        }
    }

    /// Removes an entry whose time has not come.
    fn remove(&mut self, now: Nanos, number: u64) -> bool {
        let now = self.limits.in_order(now);
        let is_it = |entry: &Entry| number > 0 && entry.number == number && entry.told > now;
        let Some(place) = self.entries.iter().position(is_it) else { return false };
        self.entries.remove(place);
        self.retime(now, None, |_| {});
        true
    }

    /// Forgets entries whose time has come, and every [`LOOK`] those whose owner is gone.
    pub(crate) fn sweep(&mut self, now: Nanos, is_gone: impl Fn(Owner) -> bool) {
        let now = self.limits.in_order(now);
        if now >= self.limits.at && self.entries.iter().all(|entry| entry.told <= now) {
            (self.base, self.entries) = (None, Vec::new());
        }
        let are_past = self.entries.get(PAST - 1).is_some_and(|entry| entry.told <= now);
        let is_due = now >= self.swept.saturating_add(LOOK) || are_past && self.entries.len() >= MOST;
        if self.base.is_some() && is_due {
            let before = self.entries.len();
            self.swept = now;
            self.entries.retain(|entry| entry.number == 0 || entry.told <= now || !is_gone(entry.owner));
            // Without a reason, nobody would move.
            if are_past || self.is_lost || self.entries.len() < before {
                self.retime(now, None, |_| {});
            }
        }
    }

    /// Charges all entries again, each at the least time that its owner learns of before, and not later than it was
    /// told. If this is for the entry that is `back`, since the state was lost, none moves up, because others may come
    /// back, too; and that entry and all who will look before their time may have to wait longer.
    /// `change` is made before those that still wait are charged. Returns whether all conform.
    fn retime(&mut self, now: Nanos, back: Option<u64>, change: impl FnOnce(&mut Limits)) -> bool {
        let Some(base) = self.base.take() else {
            change(&mut self.limits);
            return true;
        };
        let (asked, grants) = (self.limits.asked, self.limits.history.grants);
        self.limits = *base;
        // No number is used twice.
        self.limits.history.grants = grants + 1;
        let (past, ahead): (Vec<_>, Vec<_>) = self.entries.drain(..).partition(|entry| entry.told <= now);
        for entry in &past {
            self.limits.charge_entry(entry);
        }
        change(&mut self.limits);
        if !ahead.is_empty() {
            self.base = Some(Box::new(self.limits.clone()));
        }
        let (soon, mut all_conform) = (now.saturating_add(LOOK), true);
        let held = ahead.iter().rposition(|entry| entry.cost == 0).unwrap_or(0);
        for (place, mut entry) in ahead.into_iter().enumerate() {
            let conforms = |limits: &mut Limits, cost| limits.conforms_at(entry.asked, cost);
            entry.at = match self.limits.with_costs(entry.costs(), conforms) {
                // Nobody moves into a hold.
                _ if entry.number == 0 || back.is_none() && place < held => entry.at,
                Ok((at, _)) if back.is_none() => at.max(entry.at.min(soon)).min(entry.told),
                Ok((at, _)) if back == Some(entry.number) || entry.at > soon => at.max(entry.at),
                conforms => {
                    all_conform &= conforms.is_ok_and(|(at, _)| at <= entry.at);
                    entry.at
                }
            };
            entry.told = entry.told.max(entry.at);
            self.limits.charge_entry(&entry);
            self.entries.push(entry);
        }
        self.limits.asked = asked.max(self.limits.asked);
        self.is_lost = back.is_some();
        all_conform
    }

    /// See [`Limits::hold_until`].
    pub(crate) fn hold_until(&mut self, now: Nanos, until: Nanos) {
        if until <= self.limits.in_order(now) {
            return;
        }
        if self.entries.is_empty() {
            return self.limits.hold_until(now, until);
        }
        let holds = self.entries.extract_if(.., |entry| entry.cost == 0);
        let until = holds.fold(until, |until, hold| until.max(hold.told));
        let place = self.entries.iter().take_while(|entry| entry.at <= until).count();
        let hold = Entry::new(0, [0; 2], &[0], [now, until]);
        self.entries.insert(place, hold);
        self.retime(now, None, |_| {});
    }

    /// Replaces the limits by those of `policy`, as [`Limits::set`] does. Those who wait are charged by them.
    pub(crate) fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        let now = self.limits.in_order(now);
        self.retime(now, None, |limits| limits.set(now, policy, fresh));
    }

    /// Forgets all entries whose time has not come, but no hold. With a policy, everything begins anew with that.
    pub(crate) fn clear(&mut self, now: Nanos, anew: Option<&Policy>) {
        let (now, grants) = (self.limits.in_order(now), self.limits.history.grants);
        if self.base.is_some() || anew.is_some() {
            self.first = grants + 1;
        }
        self.entries.retain(|entry| entry.cost == 0 || entry.told <= now);
        self.retime(now, None, |_| {});
        if let Some(policy) = anew {
            *self = Line { first: self.first, ..Limits::new(policy, now).into() };
            self.limits.history.grants = grants + 1;
        }
    }

    /// Those who wait, in order.
    pub(crate) fn waiting(&self, now: Nanos) -> Vec<Waiting> {
        let ahead = self.entries.iter().filter(|entry| entry.cost > 0 && entry.told > now);
        ahead.map(|entry| Waiting { cost: entry.cost, wait: entry.at.saturating_sub(now) }).collect()
    }

    /// Appends the state as words; see [`Limits::save`].
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        self.limits.save(words);
        words.extend([self.entries.len() as u64, self.swept, self.is_lost.into(), self.first]);
        for entry in &self.entries {
            let [owner, since] = entry.owner;
            words.extend([entry.number, owner, since, entry.cost, entry.asked, entry.told, entry.at]);
        }
        if let Some(base) = &self.base {
            base.save(words);
        }
        // Last, so that who does not know of them reads the rest.
        let lists = self.entries.iter().enumerate().filter(|(_, entry)| !entry.costs.is_empty());
        for (place, entry) in lists {
            words.extend([place as u64 + 1, entry.costs.len() as u64]);
            words.extend(&entry.costs);
        }
    }

    /// The line in the state that [`save`](Self::save) wrote.
    pub(crate) fn load(policy: &Policy, words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let mut line = Line::from(Limits::load(policy, words)?);
        // A bucket of an earlier version has no line.
        let entries = words.next().unwrap_or(0);
        line.swept = words.next().unwrap_or(0);
        line.is_lost = words.next() == Some(1);
        line.first = words.next().unwrap_or(0);
        for _ in 0..entries {
            let mut word = || words.next();
            let (number, owner) = (word()?, [word()?, word()?]);
            let (cost, asked, told, at) = (word()?, word()?, word()?, word()?);
            line.entries.push(Entry { number, owner, cost, costs: Box::default(), asked, told, at });
        }
        if entries > 0 {
            line.base = Some(Box::new(Limits::load(policy, words)?));
        }
        while let Some(place) = words.next() {
            let entry = line.entries.get_mut(usize::try_from(place).ok()?.checked_sub(1)?)?;
            let length = usize::try_from(words.next()?).ok()?;
            entry.costs = words.take(length).collect();
            (entry.costs.len() == length).then_some(())?;
        }
        Some(line)
    }
}

impl Limits {
    fn charge_entry(&mut self, entry: &Entry) {
        if entry.cost == 0 {
            return self.hold(Some(entry.at));
        }
        let at = entry.at.max(self.at);
        let _: Grant =
            self.with_costs(entry.costs(), |limits, cost| limits.grant(Nanos::MAX, entry.asked, [at; 2], cost, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_that_differ_are_saved_with_their_entries_and_others_as_before() {
        let policy = Policy::new(&["1/min,burst=1", "1/s,burst=1"].map(|limit| limit.parse().unwrap()), None).unwrap();
        let saved = |costs: &[&[u64]]| {
            let mut line = Line::from(Limits::new(&policy, 0));
            for costs in costs {
                let _: Grant = line.take_within(0, costs, Nanos::MAX, || [3, 4]).unwrap();
            }
            let mut words = Vec::new();
            line.save(&mut words);
            let mut again = Vec::new();
            Line::load(&policy, &mut words.iter().copied()).unwrap().save(&mut again);
            assert_eq!(words, again);
            words
        };
        let (same, differ) = (saved(&[&[5], &[2, 2], &[3]]), saved(&[&[5], &[2, 3], &[3]]));
        assert_eq!(same.len() + 4, differ.len(), "place, length, and the costs");
        for length in differ.len() - 3..differ.len() {
            assert_eq!(Line::load(&policy, &mut differ[..length].iter().copied()), None, "cut off after {length}");
        }
    }

    #[test]
    fn a_reading_from_before_the_latest_request_counts_as_that_also_after_all_have_left() {
        let policy = Policy::new(&["1/min".parse().unwrap()], None).unwrap();
        let mut line = Line::from(Limits::new(&policy, 0));
        let mut take = |now, cost| line.take_within(now, &[cost], Nanos::MAX, || [0; 2]).unwrap();
        let _: Grant = take(0, 1);
        let waiters = [take(0, 1), take(10 * SECOND, 1)];
        waiters.iter().rev().for_each(|waiter| line.give_back(11 * SECOND, waiter, &[1]));
        assert_eq!(line.waiting(0).len(), 0);
        assert_eq!(line.take_within(5 * SECOND, &[0], 0, || [0; 2]).unwrap().at, 10 * SECOND);
    }
}
