//! The keys in use, and their units that wait: also those that arrive later, and those of new keys that there is no room for.

use super::heads::{Head, Tag};
use super::keyed::{KeyId, Keyed};
use super::unit::{Crowd, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use throttle_limits::clock::Nanos;

/// So many finish tags are kept of keys that are idle. If there are more, the virtual time moves on.
const MOST_TAGS: usize = 10_000;

/// The states of all keys, and what is known beside that of those in use.
#[derive(Debug)]
pub(super) struct InUse<T> {
    pub(super) table: Keyed,
    pub(super) busy: HashMap<KeyId, Busy<T>, BuildHasherDefault<Number>>,
    /// New keys that there is no room for, by the age of the first unit.
    pub(super) outside: BTreeSet<(u64, KeyId)>,
    /// How many busy keys are outside.
    outsiders: usize,
    /// Busy keys for which nothing waits or runs, and when they are idle.
    idle_at: BTreeSet<(Nanos, KeyId)>,
    /// Busy keys that are idle once the virtual time has passed their finish tags.
    ahead: BTreeSet<(Tag, KeyId)>,
    /// Units that arrive later, by that time and by age, and behind how many others.
    later: BTreeMap<(Nanos, u64), (KeyId, Unit<T>, usize)>,
    max_wait: Option<Nanos>,
    /// When units are dropped, and their ages.
    deadlines: BTreeSet<(Nanos, u64, KeyId)>,
    /// How many units wait, those that arrive later included, and the bytes that they take.
    pub(super) len: usize,
    pub(super) memory: usize,
    /// How many keys have units that have arrived.
    pub(super) waiting: usize,
    /// There is no memory for another key in use.
    pub(super) is_short: bool,
}

#[derive(Debug)]
pub(super) struct Busy<T> {
    /// The oldest first.
    pub(super) units: VecDeque<Unit<T>>,
    pub(super) running: u32,
    /// Units that arrive later.
    pub(super) later: u32,
    /// Nothing is granted before this time: the key is held, all its jobs were running, or there was no room for it.
    pub(super) since: Nanos,
    /// The finish tag of the unit that left last.
    pub(super) finish: Tag,
    /// There was no room for the key yet.
    pub(super) is_outside: bool,
    /// Its first unit is in the heads or, if the key is outside, in `outside`.
    pub(super) head: Option<Head>,
}

/// The hash of a key's number. The table gives the numbers, so nobody can choose some that collide.
#[derive(Default)]
pub(super) struct Number(u64);

impl Hasher for Number {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = number.into();
    }

    fn finish(&self) -> u64 {
        // All bits depend on the number: the high ones and the low ones count.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl<T> Busy<T> {
    /// How many units it has, those that arrive later included.
    pub(super) fn waiting(&self) -> usize {
        self.units.len() + self.later as usize
    }

    /// Nothing of it waits or runs.
    fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.running == 0
    }

    /// Whether a unit that arrives now would be its first, and may leave if the limits allow.
    pub(super) fn is_free(&self, now: Nanos, jobs: Option<u32>) -> bool {
        let has_job = jobs.is_none_or(|jobs| self.running < jobs);
        self.units.is_empty() && self.since <= now && has_job && !self.is_outside
    }
}

impl<T> InUse<T> {
    /// None is in use.
    pub(super) fn new(table: Keyed, max_wait: Option<Nanos>) -> Self {
        InUse {
            table,
            busy: HashMap::default(),
            outside: BTreeSet::new(),
            outsiders: 0,
            idle_at: BTreeSet::new(),
            ahead: BTreeSet::new(),
            later: BTreeMap::new(),
            max_wait,
            deadlines: BTreeSet::new(),
            len: 0,
            memory: 0,
            waiting: 0,
            is_short: false,
        }
    }

    pub(super) fn get(&self, key: KeyId) -> Option<&Busy<T>> {
        self.busy.get(&key)
    }

    /// The key is in use from now on.
    pub(super) fn busy(&mut self, key: KeyId) -> &mut Busy<T> {
        self.is_short = self.busy.try_reserve(2).is_err();
        self.busy.entry(key).or_insert_with(|| {
            self.table.set_busy(key);
            Busy { units: VecDeque::new(), running: 0, later: 0, since: 0, finish: 0, is_outside: false, head: None }
        })
    }

    /// A unit that is counted has arrived and waits, behind the older ones of its key.
    pub(super) fn push(&mut self, key: KeyId, unit: Unit<T>) {
        if let Some(longest) = self.max_wait {
            self.deadlines.insert((unit.arrived.saturating_add(longest), unit.age, key));
        }
        let units = &mut self.busy(key).units;
        let (place, is_only) = (units.partition_point(|other| other.age <= unit.age), units.is_empty());
        units.insert(place, unit);
        self.waiting += usize::from(is_only);
    }

    /// A unit that is counted arrives later, and then waits behind so many others.
    pub(super) fn push_later(&mut self, key: KeyId, unit: Unit<T>, others: usize) {
        self.busy(key).later += 1;
        self.later.insert((unit.arrived, unit.age), (key, unit, others));
    }

    /// Takes out a unit that has arrived.
    pub(super) fn take(&mut self, key: KeyId, age: u64) -> Option<Unit<T>> {
        let units = &mut self.busy(key).units;
        let unit = units.remove(units.partition_point(|unit| unit.age < age))?;
        self.waiting -= usize::from(units.is_empty());
        (self.len, self.memory) = (self.len - 1, self.memory.saturating_sub(unit.size));
        if let Some(longest) = self.max_wait {
            self.deadlines.remove(&(unit.arrived.saturating_add(longest), unit.age, key));
        }
        Some(unit)
    }

    /// Takes out those units of these keys that arrive by `time`.
    pub(super) fn take_due(&mut self, time: Nanos, is_one: impl Fn(KeyId) -> bool) -> Vec<(KeyId, Unit<T>, usize)> {
        let due = self.later.range(..=(time, u64::MAX)).filter(|(_, (key, ..))| is_one(*key)).map(|(at, _)| *at);
        let units: Vec<_> = due.collect::<Vec<_>>().iter().filter_map(|at| self.later.remove(at)).collect();
        for (key, ..) in &units {
            self.busy(*key).later -= 1;
        }
        units
    }

    /// How many units arrive later.
    pub(super) fn len_later(&self) -> usize {
        self.later.len()
    }

    /// The units of one key, those that arrive later last.
    pub(super) fn units_of(&self, key: KeyId) -> impl Iterator<Item = &Unit<T>> {
        let later = self.later.values().filter(move |(of, ..)| *of == key).map(|(_, unit, _)| unit);
        self.get(key).into_iter().flat_map(|busy| &busy.units).chain(later)
    }

    /// The unit that is dropped first, and when.
    pub(super) fn deadline(&self) -> Option<(Nanos, u64, KeyId)> {
        self.deadlines.first().copied()
    }

    /// When a unit is dropped, or arrives, or there may be room for a key.
    pub(super) fn changes_at(&self) -> Option<Nanos> {
        let deadline = self.deadline().map(|(deadline, ..)| deadline);
        let later = self.later.first_key_value().map(|((arrives, _), _)| *arrives);
        let room = (!self.outside.is_empty()).then(|| self.table.room_at()).filter(|time| *time < Nanos::MAX);
        [deadline, later, room].into_iter().flatten().min()
    }

    pub(super) fn crowd(&self) -> Crowd {
        let most = self.busy.iter().max_by_key(|(key, busy)| (busy.waiting(), **key));
        let most = most.map(|(key, _)| self.table.name(*key).into()).unwrap_or_default();
        let keys = self.busy.values().filter(|busy| busy.waiting() > 0).count();
        Crowd { units: self.len, keys: keys as u64, most, most_in_memory: self.table.most_in_memory() }
    }

    /// A key that is not stored yet is outside if there is no room for it.
    pub(super) fn find_or_add(&mut self, name: &[u8], now: Nanos) -> KeyId {
        if let Some(key) = self.table.find(name) {
            return key;
        }
        let is_outside = !self.has_room(now);
        let key = self.table.add(name, now);
        if is_outside {
            self.busy(key).is_outside = true;
            self.outsiders += 1;
        }
        key
    }

    /// Whether there is room for a new key that comes now.
    pub(super) fn has_room(&mut self, now: Nanos) -> bool {
        self.outside.is_empty() && self.table.has_room(self.outsiders, now)
    }

    /// A new key that there is room for now, the oldest first. It is not outside any more.
    pub(super) fn admit(&mut self, now: Nanos) -> Option<KeyId> {
        let &(_, key) = self.outside.first().filter(|_| self.table.has_room(self.outsiders, now))?;
        self.outsiders -= 1;
        Some(key)
    }

    /// If nothing of a key waits or runs, it is idle, now or later.
    pub(super) fn release(&mut self, key: KeyId, now: Nanos, time: Tag) {
        let Some(busy) = self.busy.get(&key).filter(|busy| busy.is_idle()) else { return };
        // The name of a key that is outside is still needed.
        if busy.since > now || busy.is_outside {
            self.idle_at.insert((busy.since, key));
        } else if busy.finish > time {
            // So a key that has nothing waiting for an instant gains nothing from that.
            self.ahead.insert((busy.finish, key));
        } else {
            self.busy.remove(&key);
            self.table.set_idle(key);
        }
    }

    /// If finish tags of too many idle keys are kept: a virtual time that has to have passed.
    pub(super) fn least_time(&self) -> Tag {
        self.ahead.first().filter(|_| self.ahead.len() > MOST_TAGS).map_or(0, |(finish, _)| *finish)
    }

    /// Keys that nothing happened to are idle by now.
    pub(super) fn release_idle(&mut self, now: Nanos, time: Tag) {
        while let Some(&(finish, key)) = self.ahead.first()
            && finish <= time
        {
            self.ahead.pop_first();
            self.release(key, now, time);
        }
        while let Some(&(idle_at, key)) = self.idle_at.first()
            && idle_at <= now
        {
            self.idle_at.pop_first();
            let Some(busy) = self.busy.get_mut(&key).filter(|busy| busy.is_idle()) else { continue };
            if std::mem::take(&mut busy.is_outside) {
                self.outsiders -= 1;
                self.busy.remove(&key);
                self.table.forget(key);
            } else {
                self.release(key, now, time);
            }
        }
    }
}
