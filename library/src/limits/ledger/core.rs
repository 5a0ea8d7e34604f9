//! The ledger itself, and all operations except requests.

use super::entry::{Charge, Entry};
use super::jobs::Jobs;
use super::keys::{KeyView, Keys};
use super::operation::{Counts, GiveBack, NO_KEY, OfKey, Operation, Owner, Recent, Record, Reply, Waiting};
use super::shares::Shares;
use crate::clock::Nanos;
use crate::limits::costs::CostList;
use crate::limits::grant::{Grant, LOOK, Refusal};
use crate::limits::pace::Pace;
use crate::limits::policy::Policy;
use crate::limits::together::Limits;
use std::collections::VecDeque;

/// The most entries. Beyond that, reservations for later times are charged together, and cannot be given back.
pub(super) const MAX_ENTRIES: usize = 1024;

/// The most runs of one lease.
pub(super) const MAX_RUNS: usize = 1024;

/// The most stored times of waiters whose time has come. A waiter reads its time once a second, or later on a busy
/// machine. After `MOVED_TTL` a stored time is no longer needed.
pub(super) const MAX_MOVED: usize = MAX_ENTRIES;
const MOVED_TTL: Nanos = 10 * LOOK;

/// The most applied operations that are kept to detect repeats.
pub(super) const MAX_RECENT: usize = 64;

/// The limits of a bucket, its waiters, and its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub(super) policy: Policy,
    /// The limits before the first entry.
    pub(super) base: Limits,
    /// The limits with all entries charged.
    pub(super) all: Limits,
    pub(super) entries: VecDeque<Entry>,
    /// The number of the latest grant. No number is used twice.
    pub(super) number: u64,
    /// Grants before this one can no longer be given back.
    pub(super) first: u64,
    /// Numbers and times of grants that moved up and whose time has come since. Their owners may not have read the new
    /// times.
    pub(super) moved: VecDeque<(u64, Nanos)>,
    /// The latest operation of each recent owner, and the grants that it led to; oldest first.
    pub(super) recent: VecDeque<Recent>,
    pub(super) counts: Counts,
    /// The learned pace of calls, if a server allows less than the limits.
    pub(super) pace: Pace,
    /// The highest number of the grants that were given before a server refused something.
    pub(super) outdated: u64,
    /// The keys, if each key has its own limits.
    pub(super) keys: Option<Keys>,
    /// The running commands, if they are counted.
    pub(super) jobs: Jobs,
    /// The leases of streams that compete for the limits.
    pub(super) shares: Shares,
    /// Whether a user replaced another bucket by this one. Waiters of the replaced bucket have no claim on this one.
    pub(super) replaces: bool,
}

impl Ledger {
    /// The limits of `policy` in their initial state at `now`. Grants get numbers after `number`, so a recreated bucket
    /// reuses no number.
    #[must_use]
    pub fn new(policy: &Policy, now: Nanos, number: u64) -> Self {
        Ledger {
            policy: policy.clone(),
            base: Limits::new(policy, now),
            all: Limits::new(policy, now),
            entries: VecDeque::new(),
            number,
            first: number.saturating_add(1),
            moved: VecDeque::new(),
            recent: VecDeque::new(),
            counts: Counts { since: now, ..Counts::default() },
            pace: Pace::new(policy.interval()),
            outdated: 0,
            keys: Keys::new(policy, now),
            jobs: Jobs::default(),
            shares: Shares::default(),
            replaces: false,
        }
    }

    /// Applies an operation. A repeated operation changes nothing and gets the same reply again.
    pub(crate) fn apply(&mut self, record: &Record) -> Reply {
        let now = self.pass(record.time);
        let (owner, sequence) = (record.owner, record.sequence);
        self.entries
            .iter_mut()
            .filter(|entry| entry.owner == owner)
            .for_each(|entry| entry.seen_after = now.saturating_sub(entry.requested));
        self.jobs.see(owner, now);
        let is_it = |recent: &&Recent| recent.owner == owner && recent.sequence >= sequence && sequence > 0;
        if let Some(before) = self.recent.iter().find(is_it) {
            return self.repeated(*before);
        }
        let reply = match &record.operation {
            Operation::Take(take) => {
                self.served(now, take.served, take.key.as_ref());
                self.take(now, owner, take).map(|grant| vec![grant]).into()
            }
            Operation::Several { takes, span } => {
                for take in takes {
                    self.served(now, take.served, take.key.as_ref());
                }
                Reply::Each(self.several(now, owner, takes, *span))
            }
            Operation::Lease(lease) => {
                self.served(now, lease.served, None);
                self.lease(now, owner, lease).into()
            }
            Operation::Settle { number, at, charged, real, key, round_trip } => {
                let owner = (owner, now.saturating_add(*round_trip));
                self.settle(now, owner, (*number, *at), [charged, real], key.as_ref());
                Reply::Done
            }
            operation => {
                self.change(now, operation);
                Reply::Done
            }
        };
        self.remember(record, &reply);
        reply
    }

    pub(super) fn change(&mut self, now: Nanos, operation: &Operation) {
        let known = self.first..=self.number;
        let is_known = |number| known.contains(&number);
        match operation {
            // Grants with other numbers belong to a bucket that was lost or cleared.
            Operation::GiveBack(unused) => {
                unused.iter().filter(|back| is_known(back.number)).for_each(|back| self.give_back(now, back));
            }
            Operation::Late(unused) => {
                unused.iter().filter(|back| is_known(back.number)).for_each(|back| self.late(now, back));
            }
            Operation::Hold { until, refused, key: Some(key) } => {
                self.refused_of_key(now, key, refused, *until);
                self.hold_key(now, key, *until);
            }
            Operation::Hold { until, refused, key: None } => {
                self.refused(now, refused, *until);
                self.hold_until(now, *until);
            }
            Operation::Tried { key, succeeded, failed } => self.tried(now, key, *succeeded, *failed),
            // Grants for later times stay valid.
            Operation::Resume { key: Some(key) } => self.change_key(now, key, |keys| keys.hold(now, key, 0), |_| true),
            Operation::Resume { key: None } => self.resume(now),
            Operation::Set { policy, fresh } => self.set(now, policy, fresh),
            Operation::Clear { key: Some(key), .. } => {
                self.change_key(now, key, |keys| keys.clear(now, key), |entry| !entry.moves());
            }
            Operation::Clear { anew, is_empty, number, .. } => self.clear(now, anew.as_ref(), *is_empty, *number),
            Operation::End { number } => self.jobs.end(*number),
            Operation::Start { number, process } => self.jobs.hand_over(*number, *process),
            Operation::Gone { owner, seen } => self.gone(now, *owner, *seen),
            Operation::Take(_)
            | Operation::Several { .. }
            | Operation::Lease(_)
            | Operation::Settle { .. }
            | Operation::Here => {}
        }
    }

    /// Stores an operation to detect repeats. An operation without a sequence number is never repeated.
    pub(super) fn remember(&mut self, record: &Record, reply: &Reply) {
        if record.sequence == 0 {
            return;
        }
        let ((number, at), granted) = reply.summary();
        self.recent.retain(|recent| recent.owner != record.owner);
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { owner: record.owner, sequence: record.sequence, number, granted, at });
    }

    /// The reply to an operation that was applied before.
    pub(super) fn repeated(&self, before: Recent) -> Reply {
        if before.granted > 0 {
            // A grant that is no longer an entry has passed its time.
            let passed = |number| Grant::computed(self.all.asked, 0, None, number);
            let granted = |number| self.entry(number).map_or(passed(number), Entry::granted);
            let each = (0..u64::BITS - before.granted.leading_zeros()).map(|place| {
                let is_granted = before.granted >> place & 1 == 1;
                let earlier = (before.granted & !(u64::MAX << place)).count_ones();
                let number = before.number.saturating_add(earlier.into());
                is_granted.then(|| granted(number)).ok_or(Refusal::TooLong { wait: 0 })
            });
            return Reply::Each(each.collect());
        }
        match (before.number, self.entry(before.number)) {
            (0, _) if before.at == 0 => Reply::Done,
            (_, Some(Entry { charge: Charge::Runs { runs }, .. })) => {
                let grant = |(at, units): &(Nanos, u64)| Grant::computed(*at, *units, None, before.number);
                Reply::Granted(runs.iter().map(grant).collect())
            }
            (_, Some(entry)) => Reply::Granted(vec![entry.granted()]),
            (number, None) => Reply::Granted(vec![Grant::computed(before.at, 0, None, number)]),
        }
    }

    pub(super) fn give_back(&mut self, now: Nanos, back: &GiveBack) {
        let Some(place) = self.entries.iter().position(|entry| entry.number == back.number) else {
            return self.credit(now, back);
        };
        let is_last = self.entries.range(place + 1..).all(Entry::is_hold);
        // Requests that are charged together cannot be given back. Their entry has the sum of their costs.
        let is_alone = |costs: &[u64]| back.unused.iter().any(|(_, unused)| **unused == *costs);
        let entry = &mut self.entries[place];
        let waited = entry.waited();
        let returned = match &entry.charge {
            Charge::Runs { .. } if is_last => {
                entry.cut(back.unused.iter().fold(0, |sum, (_, costs)| sum.saturating_add(costs.largest())))
            }
            Charge::One { costs, moves, key, .. }
                if entry.at > now && (*moves || key.is_some() || is_last && is_alone(costs)) =>
            {
                entry.cost()
            }
            _ => return self.credit(now, back),
        };
        self.jobs.end(back.number);
        self.counts.given_back = self.counts.given_back.saturating_add(returned);
        match &entry.charge {
            Charge::Runs { runs } if !runs.is_empty() => {}
            Charge::Runs { .. } => {
                self.counts.waited = self.counts.waited.saturating_sub(waited);
                self.entries.remove(place);
            }
            Charge::One { .. } | Charge::Hold => drop(self.entries.remove(place)),
        }
        self.recharge(now, true);
    }

    /// Credits unused grants whose time has come. If there are entries, only the keys are credited.
    pub(super) fn credit(&mut self, now: Nanos, back: &GiveBack) {
        self.settle_past(now);
        self.jobs.end(back.number);
        let has_entries = !self.entries.is_empty();
        for (at, costs) in back.unused.iter().filter(|(at, _)| *at <= now) {
            let grant = Grant::computed(*at, costs.largest(), None, back.number);
            if let (Some(keys), Some(of)) = (&mut self.keys, &back.key) {
                keys.give_back(now, &grant, of);
            }
            if has_entries {
                // Charges the waiting entries of the key again, after the credit.
                self.recharge(now, false);
                continue;
            }
            self.counts.given_back = self.counts.given_back.saturating_add(grant.units);
            for limits in [&mut self.base, &mut self.all] {
                limits.give_back(now, &grant, costs);
            }
        }
    }

    /// Records grants that were not used because their owner woke too late. Buckets get no credit for them: their time
    /// is lost.
    pub(super) fn late(&mut self, now: Nanos, back: &GiveBack) {
        self.settle_past(now);
        let has_open = self.base.has_open();
        for (at, costs) in back.unused.iter().filter(|(at, _)| *at <= now) {
            self.counts.given_back = self.counts.given_back.saturating_add(costs.largest());
            self.base.forget_in_windows(*at, costs);
            if let (Some(keys), Some(of)) = (&mut self.keys, &back.key) {
                keys.late(now, (back.number, *at), of);
            }
        }
        self.jobs.end(back.number);
        self.base.close(back.number);
        // Without windows, keys and open grants, the limits have not changed. Many late grants then cost little time.
        if has_open || self.base.has_windows() || self.keys.is_some() {
            self.recharge(now, true);
        }
    }

    /// Settles a grant at its real cost; waiters move up. The owner learns of the new times at `learned_at`, all other
    /// owners when they next read the log.
    pub(super) fn settle(
        &mut self,
        now: Nanos,
        (owner, learned_at): (Owner, Nanos),
        (number, at): (u64, Nanos),
        [charged, real]: [&[u64]; 2],
        of_key: Option<&(OfKey, Box<[u64]>)>,
    ) {
        let place = self.entries.iter().position(|entry| entry.number == number && number > 0);
        let largest = real.largest().max(of_key.map_or(0, |(_, real)| (&**real).largest()));
        if let Some(place) = place {
            match &mut self.entries[place].charge {
                Charge::One { costs, .. } if **costs != *charged => {} // Several requests, charged together.
                Charge::One { costs, key, .. } if largest > 0 => {
                    *costs = real.into();
                    key.iter_mut().zip(of_key).for_each(|(of, (_, real))| of.costs.clone_from(real));
                }
                Charge::One { .. } => drop(self.entries.remove(place)),
                Charge::Runs { .. } | Charge::Hold => {}
            }
        } else {
            self.base.settle(now, &Grant::computed(at, charged.largest(), None, number), [charged, real]);
            if let (Some(keys), Some((of, real))) = (&mut self.keys, of_key) {
                keys.settle(now, (number, at), of, real);
            }
        }
        self.recharge_from(now, |entry| match entry.moves_from(now) {
            Some(soon) if entry.owner == owner && entry.is_open() => Some(learned_at.min(soon)),
            soon => soon,
        });
    }

    /// Grants nothing to this key before `until`. Takes back the grants of the key for times after now.
    fn hold_key(&mut self, now: Nanos, name: &[u8], until: Nanos) {
        if until > now {
            let number = self.number;
            let hold = |keys: &mut Keys| {
                keys.hold(now, name, until);
                keys.take_back(now, name, number);
            };
            self.change_key(now, name, hold, |_| false);
        }
    }

    /// Records that commands of this key have succeeded or failed. If the key is given up, its grants for times after
    /// now are taken back.
    fn tried(&mut self, now: Nanos, name: &[u8], succeeded: bool, failed: u32) {
        let number = self.number;
        if self.keys.as_mut().is_some_and(|keys| keys.tried(now, name, succeeded, failed)) {
            self.change_key(now, name, |keys| keys.take_back(now, name, number), |_| false);
        }
    }

    /// Changes the stored data of a key, and keeps only some of its entries.
    fn change_key(&mut self, now: Nanos, name: &[u8], change: impl FnOnce(&mut Keys), keeps: impl Fn(&Entry) -> bool) {
        let Some(keys) = &mut self.keys else { return };
        change(keys);
        self.keep(|entry| entry.at <= now || entry.of_key().is_none_or(|of| *of.name != *name) || keeps(entry));
        self.recharge(now, true);
    }

    /// Keeps only some of the entries. The commands of the removed entries count as ended.
    fn keep(&mut self, keeps: impl Fn(&Entry) -> bool) {
        let jobs = &mut self.jobs;
        self.entries.retain(|entry| {
            let is_kept = keeps(entry);
            if !is_kept {
                jobs.end(entry.number);
            }
            is_kept
        });
    }

    /// Grants nothing before `until`, not even to entries that move up. A grant for an earlier time keeps its time.
    pub(super) fn hold_until(&mut self, now: Nanos, until: Nanos) {
        if until <= now {
            return;
        }
        let until = self.held_until().unwrap_or(0).max(until);
        self.entries.retain(|entry| !entry.is_hold());
        let place = self.entries.partition_point(|entry| entry.at <= until);
        let hold = Entry { number: 0, owner: [0; 2], requested: now, seen_after: 0, at: until, charge: Charge::Hold };
        self.entries.insert(place, hold);
        self.recharge(now, true);
    }

    pub(super) fn resume(&mut self, now: Nanos) {
        self.keys.iter_mut().for_each(|keys| keys.resume(now));
        self.entries.retain(|entry| !entry.is_hold());
        self.recharge(now, true);
    }

    pub(super) fn set(&mut self, now: Nanos, policy: &Policy, fresh: &[bool]) {
        self.settle_past(now);
        self.base.set(now, policy, fresh);
        let fresh_keys = fresh.get(policy.len()..).unwrap_or(&[]);
        let per = |policy: &Policy| policy.of_keys().map(|keys| keys.per.clone());
        let is_same = per(&self.policy) == per(policy);
        let before = self.keys.take().filter(|_| is_same);
        self.keys = before.map_or_else(|| Keys::new(policy, now), |keys| keys.set(now, policy, fresh_keys));
        if !policy.counts_jobs() {
            self.jobs = Jobs::default(); // The ends of commands are no longer reported.
        }
        self.policy = policy.clone();
        self.learn_anew(false);
        self.recharge(now, true);
    }

    pub(super) fn clear(&mut self, now: Nanos, anew: Option<&Policy>, is_empty: bool, number: u64) {
        self.settle_past(now);
        self.keep(|entry| !entry.is_hold() && !entry.moves());
        if let Some(policy) = anew {
            // A new bucket on a server also begins with this operation, on an empty ledger: then no user has replaced a
            // bucket.
            self.replaces = !self.policy.is_empty() && !is_empty;
            self.entries.clear();
            self.moved.clear();
            (self.policy, self.base) = (policy.clone(), Limits::new(policy, now));
            (self.keys, self.jobs) = (Keys::new(policy, now), Jobs::default());
            self.counts = Counts { since: now, ..Counts::default() };
            self.number = number;
        }
        if is_empty {
            self.base.empty(now);
        }
        self.keys.iter_mut().for_each(|keys| keys.clear_all(now));
        self.learn_anew(true);
        self.first = self.number.saturating_add(1);
        self.recharge(now, true);
    }

    pub(super) fn gone(&mut self, now: Nanos, owner: Owner, seen: Nanos) {
        let before = self.entries.len();
        self.jobs.gone(owner, seen);
        let waits = |entry: &Entry| (entry.moves() || entry.of_key().is_some()) && entry.at > now;
        self.entries.retain(|entry| !(waits(entry) && entry.owner == owner && entry.last_seen() <= seen));
        if self.entries.len() < before {
            self.recharge(now, true);
        }
    }

    /// Charges the grants whose time has come to `base`: they can no longer change. The latest lease stays an entry, so
    /// that it can be given back in part. Returns `now`, or the time of the latest operation if that is later.
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
    pub(super) fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.pass_entry(&entry);
        if entry.moves() || entry.is_open() {
            let Entry { number, at, .. } = entry;
            let is_old = |(_, before): &(u64, Nanos)| before.saturating_add(MOVED_TTL) < at;
            while self.moved.len() == MAX_MOVED || self.moved.front().is_some_and(is_old) {
                self.moved.pop_front();
            }
            self.moved.push_back((number, at));
        }
    }

    /// Charges all grants whose time has come to `base`, including parts of leases.
    pub(super) fn settle_past(&mut self, now: Nanos) {
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

    /// Charges all entries again. With `may_move`, entries move up, but not to a time before their owners can learn of
    /// it.
    pub(super) fn recharge(&mut self, now: Nanos, may_move: bool) {
        self.recharge_from(now, |entry| if may_move { entry.moves_from(now) } else { None });
    }

    /// Charges all entries again. `soon` returns the earliest time to which an entry may move up, or `None` if the
    /// entry keeps its time.
    fn recharge_from(&mut self, now: Nanos, soon: impl Fn(&Entry) -> Option<Nanos>) {
        self.sort();
        let mut all = self.base.clone();
        self.keys.iter_mut().for_each(Keys::clear_ahead);
        // Entries before the last hold keep their times.
        let fixed = self.entries.iter().rposition(Entry::is_hold).unwrap_or(0);
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if place >= fixed
                && let Some(soon) = soon(entry).filter(|soon| entry.at > *soon)
            {
                let Charge::One { costs, key, .. } = &entry.charge else { continue };
                let of_key =
                    self.keys.as_ref().zip(key.as_ref()).map(|(keys, of)| keys.conforms_at(entry.requested, of));
                let own = of_key.transpose().ok().flatten().map_or(soon, |(at, _)| at.max(soon));
                let conforms = all.conforms_at(entry.requested, costs);
                entry.at = conforms.map_or(entry.at, |(at, _)| at.max(own).min(entry.at));
            }
            entry.apply(&mut all);
            self.keys.iter_mut().for_each(|keys| keys.charge_ahead(entry));
        }
        all.asked = now.max(all.asked);
        self.all = all;
        if self.sort() {
            self.recharge(now, false);
        }
    }

    /// Sorts the entries by their times. An entry that moved up, or a lease that was cut, may now be earlier than
    /// entries before it. Every process that folds the log charges the entries in this order. Returns whether the order
    /// has changed.
    fn sort(&mut self) -> bool {
        let is_unsorted = !self.entries.iter().is_sorted_by_key(|entry| entry.at);
        if is_unsorted {
            self.entries.make_contiguous().sort_by_key(|entry| entry.at);
        }
        is_unsorted
    }

    pub(super) fn entry(&self, number: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.number == number && number > 0)
    }

    /// The time of a grant that could move up, if it is stored.
    pub(crate) fn time_of(&self, number: u64) -> Option<Nanos> {
        let moved = || self.moved.iter().find(|(moved, _)| *moved == number).map(|(_, at)| *at);
        self.entry(number).map(|entry| entry.at).or_else(moved)
    }

    /// The earliest time for a waiter that requests again because its grant is no longer stored. It is 0 if the time of
    /// the grant has passed or a user replaced the bucket: the waiter then requests like a newcomer. If the bucket was
    /// lost or emptied, the waiter keeps its time.
    pub(crate) fn again_from(&self, grant: &Grant) -> Nanos {
        let has_passed = (self.first..=self.number).contains(&grant.number);
        if has_passed || self.replaces { 0 } else { grant.at }
    }

    /// Clamps clock readings that arrive out of order.
    pub(crate) fn in_order(&self, now: Nanos) -> Nanos {
        self.all.in_order(now)
    }

    /// A time by which all limits, including those of keys, are at rest if nothing more is granted.
    pub(crate) fn rested_at(&self) -> Nanos {
        let latest = self.entries.back().map_or(0, |entry| entry.at).max(self.all.asked);
        self.keys.as_ref().map_or(0, |keys| keys.rested_at(latest)).max(self.all.rested_at())
    }

    /// The limits with all grants charged.
    pub(crate) fn limits(&self) -> &Limits {
        &self.all
    }

    /// Continues as if everything that the overall limits and the limits of each key allow had been taken at `now`.
    /// Waiters have to request again, and keep their times. New grants get numbers after `number`, because some earlier
    /// grants are not known here.
    #[cfg(feature = "shared")]
    pub(crate) fn use_up(&mut self, now: Nanos, number: u64) {
        self.settle_past(now);
        self.keep(Entry::is_hold);
        self.base.use_up(now);
        if let Some(keys) = &self.keys {
            self.base.hold(keys.rested_at(now));
        }
        (self.number, self.first) = (number, number.saturating_add(1));
        self.recharge(now, false);
    }

    /// The time at which the next unit would be granted; `None`: never. If each key has its own limits, it is a unit of
    /// a new key.
    pub(crate) fn next_time(&self, now: Nanos) -> Option<Nanos> {
        let has_room = self.keys.as_ref().filter(|_| self.policy.of_keys().is_some());
        let has_room = has_room.map_or(now, |keys| keys.has_room_from(now));
        self.all.conforms_at(now, 1).ok().map(|(at, _)| at.max(has_room))
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The counts as of `now`.
    pub(crate) fn counts_at(&self, now: Nanos) -> Counts {
        let due = self.entries.iter().take_while(|entry| entry.at <= now);
        let waited = due.filter(|entry| matches!(entry.charge, Charge::One { .. })).map(Entry::waited);
        Counts { waited: waited.fold(self.counts.waited, Nanos::saturating_add), ..self.counts }
    }

    /// The keys that are not fresh, by name.
    pub(crate) fn keys_at(&self, now: Nanos) -> Vec<KeyView> {
        let waits = |name: &[u8]| {
            let ahead = self.entries.iter().filter(|entry| entry.at > now);
            ahead.filter(|entry| entry.of_key().is_some_and(|of| *of.name == *name)).count()
        };
        let count = |name: &[u8]| [waits(name), self.jobs.of_key(name)];
        let keys = self.keys.as_ref().filter(|_| self.policy.of_keys().is_some());
        keys.map_or_else(Vec::new, |keys| keys.views(now, count))
    }

    /// The pause and the learned pace of all commands, if the bucket only counts commands: they share one key.
    fn pause_and_pace_of_jobs(&self) -> [Option<Nanos>; 2] {
        let keys = self.keys.as_ref().filter(|_| self.policy.of_keys().is_none());
        keys.map_or([None; 2], |keys| keys.pause_and_pace(NO_KEY))
    }

    /// The number of commands of this key that have failed since the latest success.
    pub(crate) fn failed(&self, name: &[u8]) -> u32 {
        self.keys.as_ref().map_or(0, |keys| keys.failed(name))
    }

    /// The creation time of the fresh keys; 0 if keys have no limits.
    pub(crate) fn keys_made(&self) -> Nanos {
        self.keys.as_ref().map_or(0, Keys::made)
    }

    /// The time at which a unit of this key would conform to the limits of its key alone; `None`: never.
    pub(crate) fn own_time(&self, now: Nanos, of: &OfKey) -> Option<Nanos> {
        self.keys.as_ref().map_or(Some(now), |keys| keys.own_time(now, of))
    }

    /// Whether the job limit of this key or the overall job limit is reached. `with` is the number of commands to count
    /// in addition: of the key, and overall.
    pub(crate) fn is_busy(&self, name: &[u8], with: [usize; 2]) -> bool {
        !self.jobs.has_room(&self.policy, name, with)
    }

    /// The number of the latest grant.
    pub(crate) fn latest(&self) -> u64 {
        self.number
    }

    /// The number of the latest grant, if that grant is older than a second or there is none.
    pub(crate) fn latest_of_old(&self, now: Nanos) -> Option<u64> {
        let is_old = self.counts.granted == 0 || self.all.at.saturating_add(LOOK) < now;
        Some(self.number).filter(|_| is_old)
    }

    /// Whether a grant of this key was taken back when a server refused something.
    pub(crate) fn is_outdated_of_key(&self, name: &[u8], number: u64, at: Nanos) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.is_outdated(name, number, at))
    }

    /// The number of running commands, if they are counted.
    pub(crate) fn running(&self) -> usize {
        self.jobs.len()
    }

    /// The end of the hold for new requests, if there is a hold.
    pub(crate) fn paused_until(&self) -> Option<Nanos> {
        let held = self.held_until().max(self.pause_and_pace_of_jobs()[0]);
        held.filter(|until| *until > self.all.asked)
    }

    fn held_until(&self) -> Option<Nanos> {
        self.entries.iter().find(|entry| entry.is_hold()).map(|entry| entry.at)
    }

    /// The learned time between two calls, if a server allows less than the limits.
    pub(crate) fn learned(&self) -> Option<Nanos> {
        self.pace.learned().max(self.pause_and_pace_of_jobs()[1])
    }

    /// The waiters with long waits, in order.
    pub(crate) fn waiting(&self, now: Nanos) -> Vec<Waiting> {
        let ahead = self.entries.iter().filter(|entry| entry.at > now && entry.waits());
        ahead.map(|entry| Waiting { cost: entry.cost(), wait: entry.at - now }).collect()
    }

    /// Whether the owner waits for a grant.
    #[cfg(feature = "shared")]
    pub(crate) fn waits(&self, owner: Owner, now: Nanos) -> bool {
        self.entries.iter().any(|entry| entry.owner == owner && entry.moves() && entry.at > now)
    }

    /// The owners that wait or whose commands are counted, and the time of the latest operation of each.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        let waiting = self.entries.iter().filter(|entry| entry.moves() || entry.of_key().is_some());
        waiting.map(|entry| (entry.owner, entry.last_seen())).chain(self.jobs.owners())
    }
}
