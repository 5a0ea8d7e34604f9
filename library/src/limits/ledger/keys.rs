//! The keys of a bucket. Each key has its own limits, in a thin state.
//!
//! A key is *fresh* if its state equals the state of an unused key. A key that is not stored here is fresh.
//!
//! A unit with a key is granted at the earliest time at which the limits of its key and the overall limits conform. The
//! unit may be granted before later grants of other keys, if those grants keep their times. A bucket with `jobs=` alone
//! has one key without limits. A key is kept for an hour after its last unit if a server slowed it down or its commands
//! failed.

use super::entry::{Charge, Entry};
use super::operation::OfKey;
use crate::clock::{MILLISECOND, Nanos, SECOND};
use crate::limits::each::{Charged, Each, Thin};
use crate::limits::grant::{Grant, Refusal};
use crate::limits::pace::{Pace, Served, Start};
use crate::limits::policy::{OfKeys, Policy};
use crate::limits::together::Limits;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Bound;

/// The most open grants of a key. They are fewer than `MAX_OPEN` because a snapshot has room for many keys with them.
const MAX_OPEN_OF_KEY: usize = 8;

/// A key's name.
pub(super) type Name = Box<[u8]>;

/// The most keys that are not fresh. Beyond that, new keys wait.
const MAX_KEYS: usize = 10_000;

/// The most bytes that all keys take, approximately.
const MAX_BYTES: usize = 15 << 19;

/// The approximate most bytes of the name of a key, and of the data learned about the key.
const MAX_NAME_BYTES: usize = 216;
const MAX_LEARNED_BYTES: usize = 120;

/// The number of stored keys that are checked when a new key is added. A fresh key is forgotten.
const CHECKS_PER_NEW_KEY: usize = 2;

/// How long a key is kept after it is fresh again, if there is room. A unit that costs more than the burst may have
/// waited since then: if the key is forgotten, part of that waiting time is lost.
const FRESH_TTL: Nanos = 60 * SECOND;

/// How long the learned data of a key is kept, if there is room: its pace and its failures.
const LEARNED_TTL: Nanos = 3_600 * SECOND;

/// The least time between two sweeps over all keys while there is no room.
const SWEEP_INTERVAL: Nanos = 100 * MILLISECOND;

/// The keys that are not fresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    each: Each,
    /// The time between two calls of a key at the rates of the limits.
    interval: Nanos,
    /// The number of consecutive failures after which a key is given up.
    fails: Option<NonZeroU32>,
    most: usize,
    /// The part that a snapshot saves.
    pub(super) kept: Kept,
    /// For each key with entries: its state with all entries charged, and the time of the latest entry.
    ahead: BTreeMap<Name, (Thin, Nanos)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Kept {
    /// The creation time of the keys that are not stored here.
    made: Nanos,
    states: BTreeMap<Name, OneKey>,
    /// The key that was checked last, and the time of the latest sweep over all keys.
    hand: Name,
    swept: Nanos,
    /// The time when the first of the stored keys becomes fresh if nothing more is granted, as of the latest sweep.
    room_at: Nanos,
    /// A time by which all forgotten keys were fresh.
    forgotten: Nanos,
}

/// The state of a key before its first entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct OneKey {
    thin: Thin,
    /// Nothing is granted before this time, and the buckets are empty then. 0 if the state already includes the hold.
    hold: Nanos,
    /// A grant number and a time. Grants with at most this number and a later time were taken back when a server
    /// refused a call.
    outdated: (u64, Nanos),
    /// The learned pace, if the callers learn it, and the time before which no call starts.
    pace: Option<Box<Pace>>,
    next: Nanos,
    /// The number of calls that failed since the latest success, and the time of the latest failure.
    failed: (u32, Nanos),
}

impl Keys {
    /// The keys of `policy`, all fresh at `now`. `None` if the policy has no keys.
    pub(super) fn new(policy: &Policy, now: Nanos) -> Option<Self> {
        Keys::of(policy, Kept { made: now, ..Kept::default() })
    }

    /// The keys of `policy` with these states. If only commands are counted, all belong to one key without limits.
    pub(super) fn of(policy: &Policy, kept: Kept) -> Option<Self> {
        let none = Policy::default();
        let (limits, fails) = match policy.of_keys() {
            Some(OfKeys { each, fails, .. }) => (each, *fails),
            None if policy.counts_jobs() => (&none, None),
            None => return None,
        };
        let each = Each::of(Limits::new(limits, kept.made));
        let most = (MAX_BYTES / (MAX_NAME_BYTES + MAX_LEARNED_BYTES + each.bytes_of_state(MAX_OPEN_OF_KEY)))
            .clamp(1, MAX_KEYS);
        let interval = limits.interval().max(policy.interval());
        Some(Keys { each, interval, fails, most, kept, ahead: BTreeMap::new() })
    }

    /// Whether the saved states fit these limits.
    #[cfg(feature = "shared")]
    pub(super) fn has_sense(&self) -> bool {
        self.kept.states.values().all(|key| self.each.has_sense(&key.thin))
    }

    /// The state of a key with all entries charged, and two times before which nothing is granted: the end of a pause,
    /// and the start of the next call at the learned pace.
    fn state(&self, name: &[u8]) -> (Cow<'_, Thin>, [Nanos; 2]) {
        let base = self.kept.states.get(name);
        let hold = base.map_or(0, |key| key.hold);
        if let Some((thin, at)) = self.ahead.get(name) {
            // Uses the present pace, because the pace may have changed since the latest entry was added.
            return (Cow::Borrowed(thin), [hold, base.map_or(0, |key| key.next_after(*at))]);
        }
        match base {
            Some(key) if hold == 0 => (Cow::Borrowed(&key.thin), [0, key.next]),
            Some(key) => (Cow::Owned(key.held(&self.each)), [hold, key.next]),
            None => (Cow::Owned(self.each.fresh()), [0; 2]),
        }
    }

    /// The earliest time at which the limits of the key conform, and the index of the limit that causes the wait.
    pub(super) fn conforms_at(&self, now: Nanos, of: &OfKey) -> Result<(Nanos, Option<usize>), Refusal> {
        let (thin, [hold, next]) = self.state(&of.name);
        let since = self.since(now, of).max(hold);
        let (at, limit) = self.each.conforms_at(&thin, since, &of.costs).ok_or(Refusal::Never)?;
        Ok((at.max(now).max(next), limit))
    }

    /// The time since when the rate pays for a waiting unit. For a forgotten key it is not before the time when the key
    /// was fresh.
    pub(super) fn since(&self, now: Nanos, of: &OfKey) -> Nanos {
        let forgotten = if self.kept.states.contains_key(&of.name) { 0 } else { self.kept.forgotten };
        of.since.max(forgotten).min(now)
    }

    /// Makes room for a key that is not stored. Without room, the refusal holds the wait until there may be room.
    pub(super) fn make_room(&mut self, now: Nanos, name: &[u8]) -> Result<(), Refusal> {
        if self.is_known(name) {
            return Ok(());
        }
        for _ in 0..CHECKS_PER_NEW_KEY {
            let after = (Bound::Excluded(self.kept.hand.clone()), Bound::Unbounded);
            let next = self.kept.states.range::<Name, _>(after).next().map(|(name, _)| name.clone());
            self.kept.hand = next.unwrap_or_default();
            self.forget_if_new(now);
        }
        if self.is_full() && now >= self.kept.swept.saturating_add(SWEEP_INTERVAL) {
            self.kept.swept = now;
            let (each, ahead, forgotten) = (&self.each, &self.ahead, &mut self.kept.forgotten);
            self.kept.states.retain(|name, key| {
                let is_kept = ahead.contains_key(name) || !key.is_new(each, now);
                if !is_kept {
                    *forgotten = key.new_at(each).max(*forgotten);
                }
                is_kept
            });
            self.kept.room_at = self.first_new_at();
        }
        if self.is_full() { Err(Refusal::TooLong { wait: self.room_at(now) - now }) } else { Ok(()) }
    }

    fn is_known(&self, name: &[u8]) -> bool {
        self.kept.states.contains_key(name) || self.ahead.contains_key(name)
    }

    /// If too many calls of this key have failed in a row: the limit of failures, and the time until which the key is
    /// granted nothing.
    pub(super) fn given_up(&self, now: Nanos, name: &[u8]) -> Option<(NonZeroU32, Nanos)> {
        let (failed, at) = self.kept.states.get(name)?.failed;
        let until = at.saturating_add(LEARNED_TTL);
        self.fails.filter(|most| failed >= most.get() && now < until).map(|most| (most, until))
    }

    fn is_full(&self) -> bool {
        self.kept.states.len() >= self.most
    }

    /// The time at which a request for a new key should be repeated while the table is full. Only a request sweeps the
    /// table. This time depends on the latest sweep and not on `now`, so it is always reached.
    fn room_at(&self, now: Nanos) -> Nanos {
        self.kept.room_at.max(self.kept.swept.saturating_add(SWEEP_INTERVAL)).max(now)
    }

    /// The time when the first of the stored keys becomes fresh, if nothing more is granted.
    fn first_new_at(&self) -> Nanos {
        let new_at = |(name, key): (&Name, &OneKey)| match self.ahead.get(name) {
            Some((thin, at)) => self.each.fresh_at(thin).max(*at).max(key.hold),
            None => key.new_at(&self.each),
        };
        self.kept.states.iter().map(new_at).min().unwrap_or(0)
    }

    /// The earliest time at which the table has room for a new key.
    pub(super) fn has_room_from(&self, now: Nanos) -> Nanos {
        if self.is_full() { self.first_new_at().max(now) } else { now }
    }

    /// The earliest time of a grant for this key by the limits of the key and by the room for keys; `None`: never.
    pub(super) fn own_time(&self, now: Nanos, of: &OfKey) -> Option<Nanos> {
        let (conforms, _) = self.conforms_at(now, of).ok()?;
        let has_room = !self.is_full() || self.is_known(&of.name);
        Some(if has_room { conforms } else { self.room_at(now).max(conforms) })
    }

    /// Forgets the key that was checked last, if it has been fresh for longer than its TTL.
    fn forget_if_new(&mut self, now: Nanos) {
        let name = &self.kept.hand;
        let Some(key) = self.kept.states.get(name).filter(|_| !self.ahead.contains_key(name)) else { return };
        let new_at = key.new_at(&self.each);
        let kept = if self.is_full() { 0 } else { key.kept() };
        if new_at.saturating_add(kept) <= now {
            self.kept.states.remove(name);
            self.kept.forgotten = self.kept.forgotten.max(new_at);
        }
    }

    /// Charges an entry to the state with all entries.
    pub(super) fn charge_ahead(&mut self, entry: &Entry) {
        let Charge::One { key: Some(of), .. } = &entry.charge else { return };
        let mut thin = self.state(&of.name).0.into_owned();
        charge(&self.each, &mut thin, entry, of);
        self.ahead.insert(of.name.clone(), (thin, entry.at));
    }

    /// Charges an entry to the saved state. The time of the entry has come. `has_more`: whether another entry of its key
    /// follows.
    pub(super) fn pass(&mut self, entry: &Entry, of: &OfKey, has_more: bool) {
        let (each, interval) = (&self.each, self.interval);
        let key = self.kept.states.entry(of.name.clone()).or_insert_with(|| OneKey::new(each.fresh()));
        key.catch_up(each, entry.at);
        charge(each, &mut key.thin, entry, of);
        if of.learns {
            key.pace.get_or_insert_with(|| Box::new(Pace::new(interval)));
        }
        key.pace.iter_mut().for_each(|pace| pace.started(entry.at, 1));
        key.next = key.next_after(entry.at);
        if !has_more {
            self.ahead.remove(&of.name);
        }
    }

    /// Records that a server refused the calls with these starts.
    pub(super) fn refused(&mut self, name: &[u8], refused: &[Start], until: Nanos) {
        let Some(pace) = self.pace(name) else { return };
        for start in refused {
            let _ = pace.refused(*start, until);
        }
    }

    /// Records that calls of this key have succeeded.
    pub(super) fn served(&mut self, now: Nanos, name: &[u8], served: Served) {
        if let Some(pace) = self.pace(name).filter(|pace| pace.listens()) {
            pace.succeeded(served, now);
        }
    }

    fn pace(&mut self, name: &[u8]) -> Option<&mut Pace> {
        self.kept.states.get_mut(name)?.pace.as_deref_mut()
    }

    /// The learned pace of this key after these entries.
    pub(super) fn pace_with<'a>(&self, name: &[u8], entries: impl Iterator<Item = &'a Entry>) -> Pace {
        let known = self.kept.states.get(name).and_then(|key| key.pace.as_deref().cloned());
        let mut pace = known.unwrap_or_else(|| Pace::new(self.interval));
        entries.for_each(|entry| pace.started(entry.at, 1));
        pace
    }

    /// Records that calls of this key have succeeded, or that `failed` calls have failed since the latest success.
    /// Returns whether the key is given up because of that.
    pub(super) fn tried(&mut self, now: Nanos, name: &[u8], succeeded: bool, failed: u32) -> bool {
        let was_given_up = self.given_up(now, name).is_some();
        let key = self.key(name);
        if succeeded {
            key.failed.0 = 0;
        }
        if failed > 0 {
            key.failed = (key.failed.0.saturating_add(failed), now);
        }
        !was_given_up && self.given_up(now, name).is_some()
    }

    /// The number of consecutive failed calls of this key.
    pub(super) fn failed(&self, name: &[u8]) -> u32 {
        self.kept.states.get(name).map_or(0, |key| key.failed.0)
    }

    /// Removes the charges of all entries, before they are charged again.
    pub(super) fn clear_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Changes the state of a stored key, brought up to `now`.
    fn change(&mut self, now: Nanos, name: &[u8], act: impl FnOnce(&Each, &mut Thin)) {
        if let Some(key) = self.kept.states.get_mut(name) {
            key.catch_up(&self.each, now);
            act(&self.each, &mut key.thin);
        }
    }

    /// Credits the key with an unused grant.
    pub(super) fn give_back(&mut self, now: Nanos, grant: &Grant, of: &OfKey) {
        let charged = Charged { at: grant.at, counted: grant.counted, number: grant.number };
        self.change(now, &of.name, |each, thin| each.give_back(thin, now, charged, &of.costs));
    }

    /// Removes an unused grant from the windows.
    pub(super) fn late(&mut self, now: Nanos, (number, at): (u64, Nanos), of: &OfKey) {
        let charged = Charged { at, counted: at, number };
        self.change(now, &of.name, |each, thin| each.forget(thin, charged, &of.costs));
    }

    /// Corrects the charge of the grant with this number and time from the costs in `of` to the costs `real`.
    pub(super) fn settle(&mut self, now: Nanos, (number, at): (u64, Nanos), of: &OfKey, real: &[u64]) {
        // If the key was forgotten, it is stored again and owes the excess of the real cost.
        let _ = self.key(&of.name);
        let charged = Charged { at, counted: at, number };
        self.change(now, &of.name, |each, thin| each.settle(thin, now, charged, [&of.costs, real]));
    }

    /// The key of this name, which is stored from now on.
    fn key(&mut self, name: &[u8]) -> &mut OneKey {
        self.kept.states.entry(name.into()).or_insert_with(|| OneKey::new(self.each.fresh()))
    }

    /// Grants nothing to the key before `until`; 0 lifts the hold.
    pub(super) fn hold(&mut self, now: Nanos, name: &[u8], until: Nanos) {
        self.change(now, name, |_, _| ());
        let key = self.key(name);
        key.hold = if until == 0 { 0 } else { key.hold.max(until) };
    }

    /// Takes back the grants of the key up to `number` whose times are after `now`.
    pub(super) fn take_back(&mut self, now: Nanos, name: &[u8], number: u64) {
        self.key(name).outdated = (number, now);
    }

    /// Forgets the pause, the pace and the failures of this key.
    pub(super) fn clear(&mut self, now: Nanos, name: &[u8]) {
        self.hold(now, name, 0);
        self.key(name).forget_learned();
    }

    /// Forgets the pauses, the paces and the failures of all keys.
    pub(super) fn clear_all(&mut self, now: Nanos) {
        self.resume(now);
        self.kept.states.values_mut().for_each(OneKey::forget_learned);
    }

    /// Lifts all holds.
    pub(super) fn resume(&mut self, now: Nanos) {
        for key in self.kept.states.values_mut() {
            key.catch_up(&self.each, now);
            key.hold = 0;
        }
    }

    /// The creation time of the keys that are not stored here.
    pub(super) fn made(&self) -> Nanos {
        self.kept.made
    }

    /// A time by which all keys are fresh if nothing is granted after `latest`.
    pub(super) fn rested_at(&self, latest: Nanos) -> Nanos {
        let held = self.kept.states.values().map(|key| key.hold).max();
        latest.max(held.unwrap_or(0)).saturating_add(self.each.rest_time())
    }

    /// Whether a grant was taken back when a server refused something.
    pub(super) fn is_outdated(&self, name: &[u8], number: u64, at: Nanos) -> bool {
        // A grant without a cost has the number 0.
        self.kept.states.get(name).is_some_and(|key| (1..=key.outdated.0).contains(&number) && at > key.outdated.1)
    }

    /// These keys under the limits of `policy`. Each key keeps its credit and its counts, as in [`Limits::set`]. It
    /// keeps its learned pace if the time between two calls at the rates of the limits has not changed.
    pub(super) fn set(&self, now: Nanos, policy: &Policy, fresh: &[bool]) -> Option<Self> {
        let mut keys = Keys::new(policy, now)?;
        let none = Policy::default();
        let each = policy.of_keys().map_or(&none, |keys| &keys.each);
        for (name, key) in &self.kept.states {
            let mut limits = self.each.limits(&key.thin, now);
            limits.set(now, each, fresh);
            let thin = keys.each.state_of(&limits).unwrap_or_else(|| keys.each.fresh());
            let mut key = OneKey { thin, ..key.clone() };
            if keys.interval != self.interval {
                (key.pace, key.next) = (None, 0);
            }
            keys.kept.states.insert(name.clone(), key);
        }
        Some(keys)
    }

    /// The end of the pause of this key, and the learned time between two calls if a server allows less than the
    /// limits.
    pub(super) fn pause_and_pace(&self, name: &[u8]) -> [Option<Nanos>; 2] {
        let key = self.kept.states.get(name);
        [key.map(|key| key.hold).filter(|hold| *hold > 0), key.and_then(OneKey::learned)]
    }

    /// The keys that are not fresh, by name. `count` returns the numbers of waiters and of running commands of a key.
    pub(super) fn views(&self, now: Nanos, count: impl Fn(&[u8]) -> [usize; 2]) -> Vec<KeyView> {
        let new = self.ahead.keys().filter(|name| !self.kept.states.contains_key(*name));
        let view = |name: &Name| {
            let ((thin, [hold, next]), [waiting, running]) = (self.state(name), count(name));
            let (limits, [paused, learned]) = (self.each.limits(&thin, now), self.pause_and_pace(name));
            KeyView {
                name: name.clone(),
                state: Thin::of_limits(&limits),
                // During a pause nothing is available.
                left: (0..limits.len()).filter_map(|place| limits.left(now.max(hold), place)).collect(),
                wait: limits.conforms_at(now.max(hold), 1).ok().map(|(at, _)| at.max(next) - now),
                paused_until: paused.filter(|until| *until > now),
                learned,
                given_up_until: self.given_up(now, name).map(|(_, until)| until),
                waiting,
                running,
            }
        };
        let is_used = |(name, key): &(&Name, &OneKey)| {
            let is_new = key.is_new(&self.each, now) && !key.has_learned();
            !is_new || self.ahead.contains_key(*name) || count(name) != [0; 2]
        };
        let used = self.kept.states.iter().filter(is_used).map(|(name, _)| name);
        let mut views: Vec<KeyView> = used.chain(new).map(view).collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views
    }
}

impl OneKey {
    fn new(thin: Thin) -> Self {
        OneKey { thin, hold: 0, outdated: (0, 0), pace: None, next: 0, failed: (0, 0) }
    }

    /// The learned time between two calls, if a server allows less than the limits.
    fn learned(&self) -> Option<Nanos> {
        self.pace.as_ref().and_then(|pace| pace.learned())
    }

    /// The time before which no call starts after a call at `at`.
    fn next_after(&self, at: Nanos) -> Nanos {
        self.learned().map_or(0, |every| at.saturating_add(every))
    }

    /// Whether a pace or failures are stored.
    fn has_learned(&self) -> bool {
        self.learned().is_some() || self.failed.0 > 0
    }

    /// How long the key is kept once it is fresh, if there is room.
    fn kept(&self) -> Nanos {
        if self.has_learned() { LEARNED_TTL } else { FRESH_TTL }
    }

    fn forget_learned(&mut self) {
        (self.pace, self.next, self.failed) = (None, 0, (0, 0));
    }

    /// Includes a hold that has ended in the state. Later changes then cannot undo it.
    fn catch_up(&mut self, each: &Each, now: Nanos) {
        if (1..=now).contains(&self.hold) {
            (self.thin, self.hold) = (self.held(each), 0);
        }
    }

    /// The state with the hold included.
    fn held(&self, each: &Each) -> Thin {
        let mut thin = self.thin.clone();
        if self.hold > 0 {
            each.empty(&mut thin, self.hold);
        }
        thin
    }

    /// The time when the key becomes fresh, if nothing more is granted.
    fn new_at(&self, each: &Each) -> Nanos {
        each.fresh_at(&self.held(each)).max(self.hold)
    }

    fn is_new(&self, each: &Each, now: Nanos) -> bool {
        self.hold <= now && each.is_fresh(&self.held(each), now)
    }
}

fn charge(each: &Each, thin: &mut Thin, entry: &Entry, of: &OfKey) {
    let Entry { requested, at, number, .. } = *entry;
    let requested = requested.min(of.since);
    each.charge(thin, [requested, requested, at, at], &of.costs);
    if let Charge::One { open: Some(_), .. } = entry.charge {
        each.open(thin, Charged { at, counted: at, number }, &of.costs);
        thin.keep_open(MAX_OPEN_OF_KEY);
    }
}

/// A key of a bucket at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// The name of the key.
    pub name: Box<[u8]>,
    /// The state of the key's limits: see [`Each`].
    pub state: Thin,
    /// The whole units that each limit of the key would grant now; negative if units are owed.
    pub left: Vec<i128>,
    /// The wait of the key's next unit for its limits, in nanoseconds; `None` if it is never granted.
    pub wait: Option<Nanos>,
    /// The end of the pause, if the key is paused.
    pub paused_until: Option<Nanos>,
    /// The learned time between two calls, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// The time until which the key is granted nothing because too many calls have failed in a row.
    pub given_up_until: Option<Nanos>,
    /// The number of waiters of the key.
    pub waiting: usize,
    /// The number of its running commands, if the bucket counts them.
    pub running: usize,
}
