//! The keys of a bucket: each has limits of its own, in a thin state. A key that is not here is as new as the bucket.

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

/// Of so many grants of each key it is remembered that they will be settled.
const OPEN: usize = 8;

/// A key's name.
pub(super) type Name = Box<[u8]>;

/// The most keys that are not as new. Beyond that, new ones wait.
const MOST: usize = 10_000;

/// All keys together take about so many bytes at most.
const MOST_BYTES: usize = 15 << 19;

/// A name takes about so many bytes at most, and what a server told of the key.
const LONGEST: usize = 216;
const LEARNED: usize = 120;

/// So many others are looked at for each key that is added, to forget those that are as new.
const LOOKED_AT: usize = 2;

/// A key is kept for so long after it is as new again, if there is room: what costs more than the burst may have waited since
/// then.
const KEPT: Nanos = 60 * SECOND;

/// What a server told of a key is known for so long, if there is room: how fast calls may start, and that they fail.
const TOLD: Nanos = 3_600 * SECOND;

/// While there is no room, all keys are looked at, but not more often than this.
const BETWEEN_SWEEPS: Nanos = 100 * MILLISECOND;

/// The keys that are not as new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    each: Each,
    /// The time between two calls of a key that the limits ask for.
    asked: Nanos,
    /// After so many failures in a row a key is given up.
    fails: Option<NonZeroU32>,
    most: usize,
    /// What is saved of them.
    pub(super) kept: Kept,
    /// The states with all entries charged, of keys that have some, and the time of the latest of these.
    ahead: BTreeMap<Name, (Thin, Nanos)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Kept {
    /// When the keys that are not here were made.
    made: Nanos,
    states: BTreeMap<Name, OneKey>,
    /// The key that was looked at last, and when all were.
    hand: Name,
    swept: Nanos,
    /// If there was no room then: when one of them is as new, if nothing more is granted to it.
    room_at: Nanos,
    /// Keys that were forgotten were as new by this time.
    forgotten: Nanos,
}

/// The state of a key before its first entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct OneKey {
    thin: Thin,
    /// Nothing is granted before this time, and the buckets are empty then. 0: it counts in the state already.
    hold: Nanos,
    /// Grants up to this number, for later times than that, were taken back when a server refused something.
    outdated: (u64, Nanos),
    /// How fast calls start, if those who make them learn that, and before when none does.
    pace: Option<Box<Pace>>,
    next: Nanos,
    /// How many calls have failed since one succeeded, and when the latest did.
    failed: (u32, Nanos),
}

impl Keys {
    /// The keys of `policy`, all as new as at `now`. `None` if it has none.
    pub(super) fn new(policy: &Policy, now: Nanos) -> Option<Self> {
        Keys::of(policy, Kept { made: now, ..Kept::default() })
    }

    /// The same with these states. If only commands are counted, all are of one key, which has no limits.
    pub(super) fn of(policy: &Policy, kept: Kept) -> Option<Self> {
        let none = Policy::default();
        let (limits, fails) = match policy.of_keys() {
            Some(OfKeys { each, fails, .. }) => (each, *fails),
            None if policy.counts_jobs() => (&none, None),
            None => return None,
        };
        let each = Each::of(Limits::new(limits, kept.made));
        let most = (MOST_BYTES / (LONGEST + LEARNED + each.bytes_of_state(OPEN))).clamp(1, MOST);
        let asked = limits.interval().max(policy.interval());
        Some(Keys { each, asked, fails, most, kept, ahead: BTreeMap::new() })
    }

    /// Whether what was saved is of these limits.
    #[cfg(feature = "shared")]
    pub(super) fn has_sense(&self) -> bool {
        self.kept.states.values().all(|key| self.each.has_sense(&key.thin))
    }

    /// The state of a key with all entries charged, and before when nothing is granted: in a pause, and after the latest call.
    fn state(&self, name: &[u8]) -> (Cow<'_, Thin>, [Nanos; 2]) {
        let base = self.kept.states.get(name);
        let hold = base.map_or(0, |key| key.hold);
        if let Some((thin, at)) = self.ahead.get(name) {
            // As the pace is now: it may have changed since that entry was added.
            return (Cow::Borrowed(thin), [hold, base.map_or(0, |key| key.next_after(*at))]);
        }
        match base {
            Some(key) if hold == 0 => (Cow::Borrowed(&key.thin), [0, key.next]),
            Some(key) => (Cow::Owned(key.held(&self.each)), [hold, key.next]),
            None => (Cow::Owned(self.each.fresh()), [0; 2]),
        }
    }

    /// The earliest time at which the limits of the key conform, and the index of the one that causes the wait.
    pub(super) fn conforms_at(&self, now: Nanos, of: &OfKey) -> Result<(Nanos, Option<usize>), Refusal> {
        let (thin, [hold, next]) = self.state(&of.name);
        let since = self.since(now, of).max(hold);
        let (at, limit) = self.each.conforms_at(&thin, since, &of.costs).ok_or(Refusal::Never)?;
        Ok((at.max(now).max(next), limit))
    }

    /// Since when the rate has paid for a unit that waits: not from before its key was as new, if that was forgotten.
    pub(super) fn since(&self, now: Nanos, of: &OfKey) -> Nanos {
        let forgotten = if self.kept.states.contains_key(&of.name) { 0 } else { self.kept.forgotten };
        of.since.max(forgotten).min(now)
    }

    /// Makes room for a key that is not here. If there is none: when there may be.
    pub(super) fn make_room(&mut self, now: Nanos, name: &[u8]) -> Result<(), Refusal> {
        if self.is_known(name) {
            return Ok(());
        }
        for _ in 0..LOOKED_AT {
            let after = (Bound::Excluded(self.kept.hand.clone()), Bound::Unbounded);
            let next = self.kept.states.range::<Name, _>(after).next().map(|(name, _)| name.clone());
            self.kept.hand = next.unwrap_or_default();
            self.forget_if_new(now);
        }
        if self.is_full() && now >= self.kept.swept.saturating_add(BETWEEN_SWEEPS) {
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

    /// If too many of this key have failed in a row: how many may, and until when nothing of it is granted.
    pub(super) fn given_up(&self, now: Nanos, name: &[u8]) -> Option<(NonZeroU32, Nanos)> {
        let (failed, at) = self.kept.states.get(name)?.failed;
        let until = at.saturating_add(TOLD);
        self.fails.filter(|most| failed >= most.get() && now < until).map(|most| (most, until))
    }

    fn is_full(&self) -> bool {
        self.kept.states.len() >= self.most
    }

    /// When a new key is worth another request, while the table is full. Only a request sweeps the table: the time must come,
    /// so it depends on the last sweep and not on `now`.
    fn room_at(&self, now: Nanos) -> Nanos {
        self.kept.room_at.max(self.kept.swept.saturating_add(BETWEEN_SWEEPS)).max(now)
    }

    /// When the first of the stored keys is as new, if nothing more is granted.
    fn first_new_at(&self) -> Nanos {
        let new_at = |(name, key): (&Name, &OneKey)| match self.ahead.get(name) {
            Some((thin, at)) => self.each.fresh_at(thin).max(*at).max(key.hold),
            None => key.new_at(&self.each),
        };
        self.kept.states.iter().map(new_at).min().unwrap_or(0)
    }

    /// From when on the table has room for a new key.
    pub(super) fn has_room_from(&self, now: Nanos) -> Nanos {
        if self.is_full() { self.first_new_at().max(now) } else { now }
    }

    /// When a unit of this key may be granted, as far as the limits of the key and the room for keys say; `None`: never.
    pub(super) fn own_time(&self, now: Nanos, of: &OfKey) -> Option<Nanos> {
        let (conforms, _) = self.conforms_at(now, of).ok()?;
        let has_room = !self.is_full() || self.is_known(&of.name);
        Some(if has_room { conforms } else { self.room_at(now).max(conforms) })
    }

    /// Forgets the key that was looked at last, if it has been as new for long.
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

    /// The time of an entry has come. `has_more`: another entry of its key follows.
    pub(super) fn pass(&mut self, entry: &Entry, of: &OfKey, has_more: bool) {
        let (each, asked) = (&self.each, self.asked);
        let key = self.kept.states.entry(of.name.clone()).or_insert_with(|| OneKey::new(each.fresh()));
        key.catch_up(each, entry.at);
        charge(each, &mut key.thin, entry, of);
        if of.learns {
            key.pace.get_or_insert_with(|| Box::new(Pace::new(asked)));
        }
        key.pace.iter_mut().for_each(|pace| pace.started(entry.at, 1));
        key.next = key.next_after(entry.at);
        if !has_more {
            self.ahead.remove(&of.name);
        }
    }

    /// A server refused what started then.
    pub(super) fn refused(&mut self, now: Nanos, name: &[u8], refused: &[Start], until: Nanos) {
        let Some(pace) = self.pace(name) else { return };
        for start in refused {
            let _ = pace.refused(*start, now, until);
        }
    }

    /// Calls of this key have succeeded.
    pub(super) fn served(&mut self, now: Nanos, name: &[u8], served: Served) {
        if let Some(pace) = self.pace(name).filter(|pace| pace.listens()) {
            pace.succeeded(served, now);
        }
    }

    fn pace(&mut self, name: &[u8]) -> Option<&mut Pace> {
        self.kept.states.get_mut(name)?.pace.as_deref_mut()
    }

    /// The learned pace of this key, with these entries of it.
    pub(super) fn pace_with<'a>(&self, name: &[u8], entries: impl Iterator<Item = &'a Entry>) -> Pace {
        let known = self.kept.states.get(name).and_then(|key| key.pace.as_deref().cloned());
        let mut pace = known.unwrap_or_else(|| Pace::new(self.asked));
        entries.for_each(|entry| pace.started(entry.at, 1));
        pace
    }

    /// Calls of this key have succeeded, or so many have failed since one did. Returns whether it is given up for that.
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

    /// How many calls of this key have failed in a row.
    pub(super) fn failed(&self, name: &[u8]) -> u32 {
        self.kept.states.get(name).map_or(0, |key| key.failed.0)
    }

    /// All entries are charged again.
    pub(super) fn clear_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Changes the state of a key that is here, as it is at `now`.
    fn change(&mut self, now: Nanos, name: &[u8], act: impl FnOnce(&Each, &mut Thin)) {
        if let Some(key) = self.kept.states.get_mut(name) {
            key.catch_up(&self.each, now);
            act(&self.each, &mut key.thin);
        }
    }

    /// Credits the key with a grant that was not used.
    pub(super) fn give_back(&mut self, now: Nanos, grant: &Grant, of: &OfKey) {
        let charged = Charged { at: grant.at, counted: grant.counted, number: grant.number };
        self.change(now, &of.name, |each, thin| each.give_back(thin, now, charged, &of.costs));
    }

    /// Windows do not count what was not used.
    pub(super) fn late(&mut self, now: Nanos, (number, at): (u64, Nanos), of: &OfKey) {
        let charged = Charged { at, counted: at, number };
        self.change(now, &of.name, |each, thin| each.forget(thin, charged, &of.costs));
    }

    /// A grant of this number and time, which was charged `of`, has really cost `real`.
    pub(super) fn settle(&mut self, now: Nanos, (number, at): (u64, Nanos), of: &OfKey, real: &[u64]) {
        // One that was forgotten meanwhile owes what it cost more.
        let _ = self.key(&of.name);
        let charged = Charged { at, counted: at, number };
        self.change(now, &of.name, |each, thin| each.settle(thin, now, charged, [&of.costs, real]));
    }

    /// The key of this name, which is here from now on.
    fn key(&mut self, name: &[u8]) -> &mut OneKey {
        self.kept.states.entry(name.into()).or_insert_with(|| OneKey::new(self.each.fresh()))
    }

    /// Nothing of the key is granted before `until`; 0 lifts that.
    pub(super) fn hold(&mut self, now: Nanos, name: &[u8], until: Nanos) {
        self.change(now, name, |_, _| ());
        let key = self.key(name);
        key.hold = if until == 0 { 0 } else { key.hold.max(until) };
    }

    /// Grants of the key up to `number`, for times after now, are taken back.
    pub(super) fn take_back(&mut self, now: Nanos, name: &[u8], number: u64) {
        self.key(name).outdated = (number, now);
    }

    /// Forgets what was told of this key: a pause, the pace, failures.
    pub(super) fn clear(&mut self, now: Nanos, name: &[u8]) {
        self.hold(now, name, 0);
        self.key(name).learn_anew();
    }

    /// Forgets that of all keys.
    pub(super) fn clear_all(&mut self, now: Nanos) {
        self.resume(now);
        self.kept.states.values_mut().for_each(OneKey::learn_anew);
    }

    /// Lifts all holds.
    pub(super) fn resume(&mut self, now: Nanos) {
        for key in self.kept.states.values_mut() {
            key.catch_up(&self.each, now);
            key.hold = 0;
        }
    }

    /// When the keys that are not here were made.
    pub(super) fn made(&self) -> Nanos {
        self.kept.made
    }

    /// A time by which all keys are as new if nothing more is granted, and the latest grant was at this time.
    pub(super) fn rested_at(&self, latest: Nanos) -> Nanos {
        let held = self.kept.states.values().map(|key| key.hold).max();
        latest.max(held.unwrap_or(0)).saturating_add(self.each.rest_time())
    }

    /// Whether a grant was taken back when a server refused something.
    pub(super) fn is_outdated(&self, name: &[u8], number: u64, at: Nanos) -> bool {
        // What costs nothing has no number.
        self.kept.states.get(name).is_some_and(|key| (1..=key.outdated.0).contains(&number) && at > key.outdated.1)
    }

    /// The same keys under the limits of `policy`: each keeps what it has saved or counted, as [`Limits::set`] does, and what it has
    /// learned if as much is asked for as before.
    pub(super) fn set(&self, now: Nanos, policy: &Policy, fresh: &[bool]) -> Option<Self> {
        let mut keys = Keys::new(policy, now)?;
        let none = Policy::default();
        let each = policy.of_keys().map_or(&none, |keys| &keys.each);
        for (name, key) in &self.kept.states {
            let mut limits = self.each.limits(&key.thin, now);
            limits.set(now, each, fresh);
            let thin = keys.each.state_of(&limits).unwrap_or_else(|| keys.each.fresh());
            let mut key = OneKey { thin, ..key.clone() };
            if keys.asked != self.asked {
                (key.pace, key.next) = (None, 0);
            }
            keys.kept.states.insert(name.clone(), key);
        }
        Some(keys)
    }

    /// Until when nothing of this key is granted, if it is paused, and the time between two calls, if a server allows less than the
    /// limits.
    pub(super) fn told(&self, name: &[u8]) -> [Option<Nanos>; 2] {
        let key = self.kept.states.get(name);
        [key.map(|key| key.hold).filter(|hold| *hold > 0), key.and_then(OneKey::learned)]
    }

    /// The keys that are not as new, by name. `count` says how many of a key wait, and how many run.
    pub(super) fn views(&self, now: Nanos, count: impl Fn(&[u8]) -> [usize; 2]) -> Vec<KeyView> {
        let new = self.ahead.keys().filter(|name| !self.kept.states.contains_key(*name));
        let view = |name: &Name| {
            let ((thin, [hold, next]), [waiting, running]) = (self.state(name), count(name));
            let (limits, [paused, learned]) = (self.each.limits(&thin, now), self.told(name));
            KeyView {
                name: name.clone(),
                state: Thin::of_limits(&limits),
                // During a pause there is nothing.
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
            let is_new = key.is_new(&self.each, now) && !key.was_told();
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

    /// The time between two calls, if a server allows less than the limits.
    fn learned(&self) -> Option<Nanos> {
        self.pace.as_ref().and_then(|pace| pace.learned())
    }

    /// Before when nothing starts after a call at this time.
    fn next_after(&self, at: Nanos) -> Nanos {
        self.learned().map_or(0, |every| at.saturating_add(every))
    }

    /// Whether a server told anything of it that is still known.
    fn was_told(&self) -> bool {
        self.learned().is_some() || self.failed.0 > 0
    }

    /// For how long it is kept once it is as new, if there is room.
    fn kept(&self) -> Nanos {
        if self.was_told() { TOLD } else { KEPT }
    }

    fn learn_anew(&mut self) {
        (self.pace, self.next, self.failed) = (None, 0, (0, 0));
    }

    /// A hold that has ended counts in the state. What comes after it then cannot undo it.
    fn catch_up(&mut self, each: &Each, now: Nanos) {
        if (1..=now).contains(&self.hold) {
            (self.thin, self.hold) = (self.held(each), 0);
        }
    }

    /// Its state, if it is held.
    fn held(&self, each: &Each) -> Thin {
        let mut thin = self.thin.clone();
        if self.hold > 0 {
            each.empty(&mut thin, self.hold);
        }
        thin
    }

    /// When it is as new, if nothing more is granted.
    fn new_at(&self, each: &Each) -> Nanos {
        each.fresh_at(&self.held(each)).max(self.hold)
    }

    fn is_new(&self, each: &Each, now: Nanos) -> bool {
        self.hold <= now && each.is_fresh(&self.held(each), now)
    }
}

fn charge(each: &Each, thin: &mut Thin, entry: &Entry, of: &OfKey) {
    let Entry { asked, at, number, .. } = *entry;
    let asked = asked.min(of.since);
    each.charge(thin, [asked, asked, at, at], &of.costs);
    if let Charge::One { is_open: true, .. } = entry.charge {
        each.open(thin, Charged { at, counted: at, number }, &of.costs);
        thin.keep_open(OPEN);
    }
}

/// A key of a bucket at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// Its name.
    pub name: Box<[u8]>,
    /// The state of its limits: see [`Each`].
    pub state: Thin,
    /// Whole units that each of its limits would let through; negative if units are owed.
    pub left: Vec<i128>,
    /// How long its next unit would wait for its limits, in nanoseconds; `None` if it is never granted.
    pub wait: Option<Nanos>,
    /// Nothing of it is granted before this time, if it is paused.
    pub paused_until: Option<Nanos>,
    /// The time between two calls, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// If so many calls have failed in a row that nothing of it is granted: until when.
    pub given_up_until: Option<Nanos>,
    /// How many wait for it.
    pub waiting: usize,
    /// How many run, if the bucket counts that.
    pub running: usize,
}
