//! A bucket as the fold of a log.
//!
//! A ledger is the limits with everything granted, those who wait, and what is needed to change that: one function,
//! [`apply`](Ledger::apply), takes an operation at a time and answers it. It is deterministic: the same operations at the
//! same times give the same state on every machine. So all users of a bucket who read the same log agree.
//!
//! Grants whose time has not come are *entries*, in the order of their times. `base` is the limits before the first
//! entry, and nothing changes it but time; `all` is `base` with every entry charged. Whatever changes an entry that is not
//! the last one, charges all of them again from `base`. So a grant that is given back leaves no trace, those behind it
//! move up, and a new rate or a settlement counts for those who wait.
//!
//! Nobody is woken. A process that waits for more than a second reads the log every second, so an entry moves to no
//! earlier time than that from now. Then every owner knows the time that it is charged at.

use crate::clock::Nanos;
use entry::{Charge, Entry};
use std::collections::VecDeque;

use super::costs::CostList;
use super::grant::{Grant, LOOK, Refusal};
use super::pace::Pace;
use super::policy::Policy;
use super::together::Limits;
use learning::asked;
use operation::Recent;
pub use operation::{Ask, Counts, GiveBack, Operation, Owner, Record, Reply, Take, Waiting};

mod entry;
mod learning;
mod operation;
#[cfg(feature = "shared")]
mod snapshot;

/// The most entries. Beyond that, reservations for later times are charged together, and cannot be given back.
const MOST: usize = 1024;

/// The most runs of one lease.
const RUNS: usize = 1024;

/// Of so many that waited the ledger remembers their times after these have come.
const MOVED: usize = 64;

/// Of so many operations the ledger remembers that it has applied them.
const RECENT: usize = 64;

/// The limits of a bucket, those who wait for them, and what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "shared", serde(into = "snapshot::Saved", try_from = "snapshot::Saved"))]
pub struct Ledger {
    policy: Policy,
    /// The limits before the first entry.
    base: Limits,
    /// The limits with all entries charged.
    all: Limits,
    entries: VecDeque<Entry>,
    /// The number of the latest grant. No number is used twice.
    number: u64,
    /// Grants before this one can no longer be given back.
    first: u64,
    /// Numbers and times of those that moved up, and whose time has come since: their owners may not know yet.
    moved: VecDeque<(u64, Nanos)>,
    /// The latest operations of owners, and the grants they led to: oldest first.
    recent: VecDeque<Recent>,
    counts: Counts,
    /// How fast calls start, if a server allows less than the limits.
    pace: Pace,
    /// Grants up to this number were given before a server refused something.
    outdated: u64,
}

impl Ledger {
    /// The limits of `policy` in their initial state at `now`. Grants get numbers after `number`: a bucket that is made anew
    /// uses none of those before.
    #[must_use]
    pub fn new(policy: &Policy, now: Nanos, number: u64) -> Self {
        Ledger {
            policy: policy.clone(),
            base: Limits::new(policy, now),
            all: Limits::new(policy, now),
            entries: VecDeque::new(),
            number,
            first: number + 1,
            moved: VecDeque::new(),
            recent: VecDeque::new(),
            counts: Counts { since: now, ..Counts::default() },
            pace: Pace::new(asked(policy)),
            outdated: 0,
        }
    }

    /// Applies an operation. One that was applied before, and is sent again, has its answer repeated and changes nothing.
    pub(crate) fn apply(&mut self, record: &Record) -> Reply {
        let now = self.pass(record.time);
        let (owner, sequence) = (record.owner, record.sequence);
        self.entries
            .iter_mut()
            .filter(|entry| entry.owner == owner)
            .for_each(|entry| entry.seen_after = now.saturating_sub(entry.asked));
        let is_it = |recent: &&Recent| recent.owner == owner && recent.sequence >= sequence && sequence > 0;
        if let Some(before) = self.recent.iter().find(is_it) {
            return self.repeated(*before);
        }
        let reply = match &record.operation {
            Operation::Take(take) => {
                self.served(now, take.served);
                self.take(now, owner, take).map(|grant| vec![grant]).into()
            }
            Operation::Lease(lease) => {
                self.served(now, lease.served);
                self.lease(now, owner, lease).into()
            }
            operation => {
                self.change(now, operation);
                Reply::Done
            }
        };
        self.remember(record, &reply);
        reply
    }

    fn change(&mut self, now: Nanos, operation: &Operation) {
        let is_known = |number| (self.first..=self.number).contains(&number);
        match operation {
            // Of a bucket that was lost, or cleared.
            Operation::GiveBack(back) | Operation::Late(back) if !is_known(back.number) => {}
            Operation::GiveBack(back) => self.give_back(now, back),
            Operation::Late(back) => self.late(now, back),
            Operation::Settle { number, at, charged, real } => self.settle(now, *number, *at, [charged, real]),
            Operation::Hold { until, refused } => {
                self.refused(now, refused, *until);
                self.hold_until(now, *until);
            }
            Operation::Resume => self.resume(now),
            Operation::Set { policy, fresh } => self.set(now, policy, fresh),
            Operation::Clear { anew, is_empty, number } => self.clear(now, anew.as_ref(), *is_empty, *number),
            Operation::Gone { owner, seen } => self.gone(now, *owner, *seen),
            Operation::Take(_) | Operation::Lease(_) | Operation::Here => {}
        }
    }

    /// An operation without a number is never sent again.
    fn remember(&mut self, record: &Record, reply: &Reply) {
        if record.sequence == 0 {
            return;
        }
        let granted = if let Reply::Granted(grants) = reply { grants.first() } else { None };
        let (number, at) = granted.map_or((0, 0), |grant| (grant.number, grant.at));
        self.recent.retain(|recent| recent.owner != record.owner);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { owner: record.owner, sequence: record.sequence, number, at });
    }

    /// The answer to an operation that was applied before.
    fn repeated(&self, before: Recent) -> Reply {
        match (before.number, self.entry(before.number)) {
            (0, _) if before.at == 0 => Reply::Done,
            (_, Some(Entry { charge: Charge::Runs { runs }, .. })) => {
                let grant = |(at, units): &(Nanos, u64)| Grant::computed(*at, *units, None, before.number);
                Reply::Granted(runs.iter().map(grant).collect())
            }
            (number, Some(entry)) => Reply::Granted(vec![entry.granted(None).numbered(number)]),
            (number, None) => Reply::Granted(vec![Grant::computed(before.at, 0, None, number)]),
        }
    }

    /// Grants these costs at the least time at which all limits conform, if that is soon enough.
    pub(crate) fn take(&mut self, now: Nanos, owner: Owner, take: &Take) -> Result<Grant, Refusal> {
        let found = self.all.conforms_at(now, &take.costs).and_then(|(at, bound_by)| match at - now.min(at) {
            wait if wait > 0 && at > take.latest => Err(Refusal::TooLong { wait }),
            _ => Ok((at, bound_by)),
        });
        let (at, bound_by) = found.inspect_err(|_| self.counts.refused += 1)?;
        let units = (&take.costs).largest();
        if units == 0 {
            return Ok(Grant::computed(at, 0, bound_by, 0));
        }
        let is_full = self.entries.len() >= MOST;
        let moves = !is_full && (at - now >= LOOK || self.entries.iter().any(Entry::moves));
        let charge = Charge::One { costs: take.costs.clone(), is_open: take.is_open, moves };
        let entry = self.new_entry(owner, now, at, charge);
        let entry = if take.promised > now { self.promised(entry, take.promised) } else { self.add(now, entry) };
        Ok(Grant { bound_by, ..entry })
    }

    /// Grants runs for as many of the waiting units as leave within the span: each is what conforms at one time, or at
    /// least a quantum. A run that waits long is the only one, and can move up.
    pub(crate) fn lease(&mut self, now: Nanos, owner: Owner, lease: &Ask) -> Result<Vec<Grant>, Refusal> {
        let (mut left, mut runs, mut grants, mut end) = (lease.waiting, Vec::new(), Vec::new(), Nanos::MAX);
        let is_alone = !self.entries.iter().any(Entry::moves);
        if left == 0 {
            return Ok(vec![Grant::computed(now.max(self.all.at), 0, None, 0)]);
        }
        while left > 0 && runs.len() < RUNS {
            let units = self.all.run(now, left);
            let (at, bound_by) = match self.all.conforms_at(now, units) {
                Ok((at, bound_by)) => (at.max(lease.from), bound_by),
                Err(refusal) if runs.is_empty() => {
                    self.counts.refused += 1;
                    return Err(refusal);
                }
                Err(_) => break,
            };
            if runs.is_empty() && (at - now.min(at) >= LOOK || !is_alone) {
                let take = Take { costs: [units].into(), latest: Nanos::MAX, ..Take::default() };
                return Ok(vec![self.take(now, owner, &take)?]);
            }
            if !runs.is_empty() && (at >= end || at.saturating_sub(now) >= LOOK) {
                break;
            }
            end = end.min(at.saturating_add(lease.span.max(1)));
            let _ = self.all.charge(now, [at; 2], units);
            grants.push(Grant::computed(at, units, bound_by, self.number + 1));
            runs.push((at, units));
            left -= units;
        }
        if let Some((at, _)) = runs.last() {
            let entry = self.new_entry(owner, now, *at, Charge::Runs { runs });
            self.entries.push_back(entry);
        }
        Ok(grants)
    }

    fn new_entry(&mut self, owner: Owner, now: Nanos, at: Nanos, charge: Charge) -> Entry {
        self.number += 1;
        let entry = Entry { number: self.number, owner, asked: now, seen_after: 0, at, charge };
        let waited = match &entry.charge {
            Charge::Runs { runs } => runs.first().map_or(0, |(at, _)| at.saturating_sub(now)),
            _ => at.saturating_sub(now),
        };
        self.counts.granted = self.counts.granted.saturating_add(entry.cost());
        self.counts.waited = self.counts.waited.saturating_add(waited);
        entry
    }

    /// Charges an entry that conforms after all others.
    fn add(&mut self, now: Nanos, entry: Entry) -> Grant {
        let grant = entry.granted(None);
        entry.apply(&mut self.all);
        if self.entries.is_empty() && entry.at <= now {
            self.pass_entry(&entry);
        } else {
            self.join_or_push(entry);
        }
        grant
    }

    /// Beyond the most entries, one that cannot move is charged together with the one before it, at its time.
    fn join_or_push(&mut self, entry: Entry) {
        let is_full = self.entries.len() >= MOST;
        if let (true, Charge::One { costs, is_open: false, moves: false }) = (is_full, &entry.charge)
            && let Some(last) = self.entries.back_mut()
            && let Charge::One { costs: before, is_open: false, moves: false } = &mut last.charge
        {
            let sum = |place| (&*before).of(place).saturating_add(costs.of(place));
            *before = (0..before.len().max(costs.len())).map(sum).collect();
            (last.at, last.number) = (entry.at, entry.number);
            return;
        }
        self.entries.push_back(entry);
    }

    /// Adds an entry of a bucket that has lost its state, not before the time that was promised: before those with a
    /// later time, if there is room.
    fn promised(&mut self, mut entry: Entry, promised: Nanos) -> Grant {
        let Charge::One { costs, .. } = entry.charge.clone() else { return entry.granted(None) };
        let first = self.entries.partition_point(|other| other.at <= promised);
        for place in first..=self.entries.len() {
            let mut before = self.base.clone();
            self.entries.range(..place).for_each(|other| other.apply(&mut before));
            let Ok((at, _)) = before.conforms_at(promised, &costs) else { continue };
            entry.at = at;
            entry.apply(&mut before);
            let fits = self.entries.get(place).is_none_or(|next| at <= next.at);
            if fits && self.entries.range(place..).all(|other| other.conforms(&mut before)) {
                self.entries.insert(place, entry.clone());
                break;
            }
        }
        self.recharge(self.all.asked, false);
        entry.granted(None)
    }

    fn give_back(&mut self, now: Nanos, back: &GiveBack) {
        let Some(place) = self.entries.iter().position(|entry| entry.number == back.number) else {
            return self.credit(now, back);
        };
        let is_last = self.entries.range(place + 1..).all(Entry::is_hold);
        let entry = &mut self.entries[place];
        let returned = match &entry.charge {
            Charge::Runs { .. } if is_last => entry.cut(back.unused.iter().map(|(_, costs)| costs.largest()).sum()),
            Charge::One { moves, .. } if entry.at > now && (*moves || is_last) => entry.cost(),
            _ => return self.credit(now, back),
        };
        self.counts.given_back = self.counts.given_back.saturating_add(returned);
        let is_used = matches!(&entry.charge, Charge::Runs { runs } if !runs.is_empty());
        if !is_used {
            self.entries.remove(place);
        }
        self.recharge(now, true);
    }

    /// Credits what was granted before and not used, unless something lies ahead.
    fn credit(&mut self, now: Nanos, back: &GiveBack) {
        self.settle_past(now);
        if !self.entries.is_empty() {
            return;
        }
        for (at, costs) in back.unused.iter().filter(|(at, _)| *at <= now) {
            let grant = Grant::computed(*at, costs.largest(), None, back.number);
            self.counts.given_back = self.counts.given_back.saturating_add(grant.units);
            for limits in [&mut self.base, &mut self.all] {
                limits.give_back(now, &grant, costs);
            }
        }
    }

    /// What was granted for a time before now was not used. Buckets have lost that time.
    fn late(&mut self, now: Nanos, back: &GiveBack) {
        self.settle_past(now);
        for (at, costs) in back.unused.iter().filter(|(at, _)| *at <= now) {
            self.counts.given_back = self.counts.given_back.saturating_add(costs.largest());
            self.base.forget_in_windows(*at, costs);
        }
        self.base.settling.forget(back.number);
        self.recharge(now, true);
    }

    fn settle(&mut self, now: Nanos, number: u64, at: Nanos, [charged, real]: [&[u64]; 2]) {
        let place = self.entries.iter().position(|entry| entry.number == number && number > 0);
        if let Some(place) = place {
            match &mut self.entries[place].charge {
                Charge::One { costs, .. } if real.largest() > 0 => *costs = real.into(),
                Charge::One { .. } => drop(self.entries.remove(place)),
                Charge::Runs { .. } | Charge::Hold => {}
            }
        } else {
            self.base.settle(now, &Grant::computed(at, charged.largest(), None, number), [charged, real]);
        }
        self.recharge(now, true);
    }

    /// Grants nothing before `until`, also not to those who move up. A grant for an earlier time keeps it.
    fn hold_until(&mut self, now: Nanos, until: Nanos) {
        if until <= now {
            return;
        }
        let until = self.paused_until().unwrap_or(0).max(until);
        self.entries.retain(|entry| !entry.is_hold());
        let place = self.entries.partition_point(|entry| entry.at <= until);
        let hold = Entry { number: 0, owner: [0; 2], asked: now, seen_after: 0, at: until, charge: Charge::Hold };
        self.entries.insert(place, hold);
        self.recharge(now, true);
    }

    fn resume(&mut self, now: Nanos) {
        self.entries.retain(|entry| !entry.is_hold());
        self.recharge(now, true);
    }

    fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        self.settle_past(now);
        self.base.set(now, policy, fresh);
        self.policy = policy.clone();
        self.learn_anew(false);
        self.recharge(now, true);
    }

    fn clear(&mut self, now: Nanos, anew: Option<&Policy>, is_empty: bool, number: u64) {
        self.settle_past(now);
        self.entries.retain(|entry| !entry.is_hold() && !entry.moves());
        if let Some(policy) = anew {
            self.entries.clear();
            (self.policy, self.base) = (policy.clone(), Limits::new(policy, now));
            self.counts = Counts { since: now, ..Counts::default() };
            self.number = number;
        }
        if is_empty {
            self.base.empty(now);
        }
        self.learn_anew(true);
        self.first = self.number + 1;
        self.recharge(now, true);
    }

    fn gone(&mut self, now: Nanos, owner: Owner, seen: Nanos) {
        let before = self.entries.len();
        self.entries.retain(|entry| !(entry.moves() && entry.owner == owner && entry.seen() <= seen && entry.at > now));
        if self.entries.len() < before {
            self.recharge(now, true);
        }
    }

    /// Charges what can no longer change to `base`: grants whose time has come. The latest lease stays, so that it can be
    /// given back in part. Returns the time, if it is not before that of the latest operation.
    pub(crate) fn pass(&mut self, now: Nanos) -> Nanos {
        let now = self.all.in_order(now);
        while let Some(entry) = self.entries.front().filter(|entry| entry.at <= now) {
            if matches!(entry.charge, Charge::Runs { .. }) && self.entries.range(1..).all(Entry::is_hold) {
                break;
            }
            self.pop();
        }
        self.all.asked = now;
        now
    }

    /// Removes the first entry, and charges it to `base`.
    fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.pass_entry(&entry);
        if let Entry { number, at, charge: Charge::One { moves: true, .. }, .. } = entry {
            if self.moved.len() == MOVED {
                self.moved.pop_front();
            }
            self.moved.push_back((number, at));
        }
    }

    /// Charges all grants whose time has come to `base`, also parts of leases.
    fn settle_past(&mut self, now: Nanos) {
        while let Some(entry) = self.entries.front_mut() {
            if entry.at > now {
                if let Some(past) = entry.split_past(now) {
                    self.pass_entry(&past);
                }
                break;
            }
            self.pop();
        }
    }

    /// Charges all entries again. Those that `may_move` get the least time that their owners learn of before.
    fn recharge(&mut self, now: Nanos, may_move: bool) {
        let mut all = self.base.clone();
        let soon = now.saturating_add(LOOK);
        // Nobody moves into a hold.
        let fixed = self.entries.iter().rposition(Entry::is_hold).unwrap_or(0);
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if may_move && place >= fixed && entry.at > soon && entry.moves() {
                let Charge::One { costs, .. } = &entry.charge else { continue };
                let conforms = all.conforms_at(entry.asked, costs);
                entry.at = conforms.map_or(entry.at, |(at, _)| at.max(soon).min(entry.at));
            }
            entry.apply(&mut all);
        }
        all.asked = now.max(all.asked);
        self.all = all;
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.number == number && number > 0)
    }

    /// The time of a grant that could move up, if it is known.
    pub(crate) fn time_of(&self, number: u64) -> Option<Nanos> {
        let moved = || self.moved.iter().find(|(moved, _)| *moved == number).map(|(_, at)| *at);
        self.entry(number).map(|entry| entry.at).or_else(moved)
    }

    /// Clamps clock readings that arrive out of order.
    pub(crate) fn in_order(&self, now: Nanos) -> Nanos {
        self.all.in_order(now)
    }

    /// The limits with everything that was granted.
    pub(crate) fn limits(&self) -> &Limits {
        &self.all
    }

    /// Takes what conforms now, at most `units`.
    pub(crate) fn take_ready(&mut self, now: Nanos, units: u64) -> u64 {
        let units = self.all.available(now).min(units);
        let take = Take { costs: [units].into(), ..Take::default() };
        self.take(now, [0; 2], &take).map_or(0, |grant| grant.units)
    }

    /// The grant, the latest one, whose time has come, will be settled.
    pub(crate) fn open(&mut self, now: Nanos, grant: &Grant, costs: &[u64]) {
        self.settle_past(now);
        if self.entries.is_empty() && grant.number == self.number {
            for limits in [&mut self.base, &mut self.all] {
                limits.open(grant, costs);
            }
        }
    }

    /// Windows count what was granted from `now` on, when it leaves.
    pub(crate) fn hand_over(&mut self, now: Nanos, grant: &Grant, costs: &[u64]) {
        if self.all.has_windows() {
            self.settle_past(now);
            self.base.hand_over(grant, costs, now);
            self.recharge(now, false);
        }
    }

    /// Goes on as if everything that the limits allow had been taken at `now`.
    pub(crate) fn use_up(&mut self, now: Nanos) {
        self.base.use_up(now);
        self.recharge(now, false);
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Until when nothing is granted to newcomers, if there is a hold.
    pub(crate) fn paused_until(&self) -> Option<Nanos> {
        self.entries.iter().find(|entry| entry.is_hold()).map(|entry| entry.at)
    }

    /// Those who wait for long, in order.
    pub(crate) fn waiting(&self, now: Nanos) -> Vec<Waiting> {
        let ahead = self.entries.iter().filter(|entry| entry.at > now && entry.waits());
        ahead.map(|entry| Waiting { cost: entry.cost(), wait: entry.at - now }).collect()
    }

    /// Those who wait for long, and when each was last seen.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.entries.iter().filter(|entry| entry.moves()).map(|entry| (entry.owner, entry.seen()))
    }
}

impl From<Result<Vec<Grant>, Refusal>> for Reply {
    fn from(result: Result<Vec<Grant>, Refusal>) -> Self {
        result.map_or_else(Reply::Refused, Reply::Granted)
    }
}

#[cfg(all(test, feature = "shared"))]
mod tests;
