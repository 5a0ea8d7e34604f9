//! The order in which units of many keys leave: strict within a key; across keys the oldest whose limits all conform.
//!
//! This is pure: time is a parameter, and the caller waits, reads and writes. Clock readings that arrive out of order are
//! clamped.

mod heads;
mod keyed;
mod unit;

use heads::{Head, Heads};
pub use keyed::KeyId;
use keyed::Keyed;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Each, Thin};
pub use unit::{Charged, Crowd, NamedKey, Next, Rules, Unit};

/// The key of units that have none.
pub const NO_KEY: &[u8] = b"(none)";

/// The memory that units may take which wait, in bytes.
pub const MEMORY: usize = 64 << 20;

/// The most keys that are stored.
const MOST_KEYS: usize = 1_000_000;

/// Units that wait, by key, and the limits that they wait for.
///
/// A [`KeyId`] is valid while units of its key wait or run. After that, until the next call that may add a key:
/// [`add`](Self::add), [`pass`](Self::pass) or [`next`](Self::next).
#[derive(Debug)]
pub struct Order<T> {
    keys: Keyed,
    all: Each,
    thin: Thin,
    has_windows: bool,
    /// How far a grant may lie in the past when its unit leaves.
    allowance: Nanos,
    jobs: Option<u32>,
    max_wait: Option<Nanos>,
    /// Clock readings before this one arrived out of order.
    now: Nanos,
    /// Nothing is granted before this time: the caller had no room.
    ready_since: Nanos,
    /// The keys that are busy: units wait or run, or the key is held.
    busy: HashMap<KeyId, Busy<T>>,
    heads: Heads,
    /// Nothing that waits conforms before this time, as far as is known.
    quiet_until: Nanos,
    /// New keys that there is no room for, by the age of the first unit.
    outside: BTreeSet<(u64, KeyId)>,
    /// How many busy keys are outside.
    outsiders: usize,
    /// Busy keys for which nothing waits or runs, and when they are idle.
    idle_at: BTreeSet<(Nanos, KeyId)>,
    /// Units that arrive later, by that time and by age.
    later: BTreeMap<(Nanos, u64), (KeyId, Unit<T>)>,
    /// When units are dropped, and their ages.
    deadlines: BTreeSet<(Nanos, u64, KeyId)>,
    len: usize,
    waiting: usize,
    memory: usize,
    /// How many units have left that had waited.
    gone: u64,
}

#[derive(Debug)]
struct Busy<T> {
    /// The oldest first.
    units: VecDeque<Unit<T>>,
    running: u32,
    /// Units that arrive later.
    later: u32,
    /// Nothing is granted before this time: the key is held, all its jobs were running, or there was no room for it.
    since: Nanos,
    /// There was no room for the key yet.
    is_outside: bool,
    /// Its first unit is in `heads` or, if the key is outside, in `outside`.
    head: Option<Head>,
}

impl<T> Order<T> {
    /// Nothing waits. Keys that were not seen yet have buckets made at `now`.
    #[must_use]
    pub fn new(rules: &Rules<'_>, now: Nanos) -> Self {
        Order::with_most_keys(rules, now, MOST_KEYS)
    }

    /// As [`new`](Self::new), but stores at most `most` keys.
    #[must_use]
    pub fn with_most_keys(rules: &Rules<'_>, now: Nanos, most: usize) -> Self {
        let (each, all) = (Each::new(rules.each, now), Each::new(rules.all, now));
        let keys = Keyed::new(each, rules.named.iter().map(|named| named.limits(now)).collect(), most);
        let allowance = keys.limits().chain([&all]).filter_map(Each::allowance).min();
        let has_windows = keys.limits().chain([&all]).any(Each::has_windows);
        Order {
            keys,
            has_windows,
            thin: all.fresh(),
            all,
            allowance: allowance.unwrap_or(0),
            jobs: rules.jobs.map(NonZeroU32::get),
            max_wait: rules.max_wait,
            now,
            ready_since: 0,
            busy: HashMap::new(),
            heads: Heads::default(),
            quiet_until: 0,
            outside: BTreeSet::new(),
            outsiders: 0,
            idle_at: BTreeSet::new(),
            later: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            len: 0,
            waiting: 0,
            memory: 0,
            gone: 0,
        }
    }

    /// Adds a unit behind the older ones of its key.
    ///
    /// # Errors
    /// Returns the unit if it is never granted: one of its costs is above a window's count.
    pub fn add(&mut self, now: Nanos, key: Option<&[u8]>, unit: Unit<T>) -> Result<KeyId, Unit<T>> {
        let now = self.advance(now);
        let name = key.unwrap_or(NO_KEY);
        if self.keys.limits_of(name).never_grants(&unit.costs) || self.all.never_grants(&unit.costs) {
            return Err(unit);
        }
        let key = self.find_or_add(name, now);
        self.insert(key, unit);
        Ok(key)
    }

    fn insert(&mut self, key: KeyId, unit: Unit<T>) {
        (self.len, self.memory) = (self.len + 1, self.memory.saturating_add(unit.size));
        if unit.arrived > self.now {
            self.busy(key).later += 1;
            self.later.insert((unit.arrived, unit.age), (key, unit));
        } else {
            self.arrive(key, unit);
        }
    }

    /// A unit waits from now on, behind the older ones of its key.
    fn arrive(&mut self, key: KeyId, unit: Unit<T>) {
        if let Some(longest) = self.max_wait {
            self.deadlines.insert((unit.arrived.saturating_add(longest), unit.age, key));
        }
        let units = &mut self.busy(key).units;
        let (place, is_only) = (units.partition_point(|other| other.age < unit.age), units.is_empty());
        self.waiting += usize::from(is_only);
        if place > 0 {
            self.busy(key).units.insert(place, unit);
        } else {
            self.change(key, |order| order.busy(key).units.push_front(unit));
        }
    }

    /// Takes a unit that has just arrived, and is younger than all that wait, if it may leave now and no other should leave
    /// before. It is charged at `now`. `None` if it has to be [added](Self::add).
    pub fn pass(&mut self, now: Nanos, key: Option<&[u8]>, costs: &[u64]) -> Option<KeyId> {
        let now = self.advance(now);
        let key = self.find_free(key.unwrap_or(NO_KEY), now)?;
        let (each, thin) = self.keys.state_mut(key);
        let own = each.conforms_at(thin, now, costs)?.0;
        if own > now || self.all.conforms_at(&self.thin, now, costs)?.0 > now {
            return None;
        }
        each.charge(thin, [now; 4], costs);
        self.all.charge(&mut self.thin, [now; 4], costs);
        self.heads.passed(now);
        if self.jobs.is_some() {
            self.busy(key).running += 1;
        }
        Some(key)
    }

    /// How many more units with these costs may leave at once after one of this key that has just [passed](Self::pass). 0 if
    /// that is not known.
    #[must_use]
    pub fn more(&self, key: KeyId, costs: &[u64]) -> u64 {
        if self.jobs.is_some() || self.has_windows() {
            return 0;
        }
        let (each, thin) = self.keys.state(key);
        each.available(thin, self.now, costs).min(self.all.available(&self.thin, self.now, costs))
    }

    /// Charges `units` of those [more](Self::more), which have left.
    pub fn pass_more(&mut self, key: KeyId, costs: &[u64], units: u64) {
        let costs: Box<[u64]> = costs.iter().map(|cost| cost.saturating_mul(units)).collect();
        let times = [self.now; 4];
        let (each, thin) = self.keys.state_mut(key);
        each.charge(thin, times, &costs);
        self.all.charge(&mut self.thin, times, &costs);
    }

    /// The oldest unit whose limits all conform and whose key has a job free, already charged; or when to ask again.
    ///
    /// If the caller asks late, the grants are those that it would have had in time, but not earlier than the lag
    /// allowance: the time in which the quickest bucket fills.
    pub fn next(&mut self, now: Nanos) -> Next<T> {
        let now = self.advance(now);
        self.release_idle();
        self.admit();
        let earliest = self.earliest();
        if let Some(&(deadline, age, key)) = self.deadlines.first()
            && deadline <= now
            && earliest.is_none_or(|time| time > deadline)
            && let Some(unit) = self.take_out(key, age, |_, _| ())
        {
            return Next::Drop(key, unit);
        }
        match earliest {
            // Longer ago than the lag allowance, the rate is lost.
            Some(time) if time <= now => self.go(time.max(now.saturating_sub(self.allowance)).max(self.ready_since)),
            _ => self.wait(earliest),
        }
    }

    /// When [`next`](Self::next) has something to tell, if nothing else happens before: a unit may leave, or is dropped.
    /// `None` if no such time is known. A time that has come is not later than `now`.
    pub fn ready_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.advance(now);
        self.release_idle();
        self.admit();
        let earliest = self.earliest();
        match self.wait(earliest) {
            Next::At(time) => Some(time),
            _ => None,
        }
    }

    fn go(&mut self, at: Nanos) -> Next<T> {
        let (counted, counts_jobs) = (self.now, self.jobs.is_some());
        let gone = self.heads.oldest(at, (&self.all, &self.thin)).and_then(|(head, since)| {
            let unit = self.take_out(head.key, head.age, |order, unit| {
                let (each, thin) = order.keys.state_mut(head.key);
                each.charge(thin, [at, unit.arrived, at, counted], &unit.costs);
                // If its own wait is enough, it gains nothing from the wait of others that cost the same.
                let alone = order.all.conforms_at(&order.thin, unit.arrived, &unit.costs);
                let since = if alone.is_some_and(|(time, _)| time <= at) { unit.arrived } else { since };
                order.all.charge(&mut order.thin, [at, since, at, counted], &unit.costs);
                order.busy(head.key).running += u32::from(counts_jobs);
            });
            self.gone += 1;
            Some(Next::Go(head.key, unit?, Charged { at, counted, number: self.gone }))
        });
        gone.unwrap_or_else(|| self.wait(None))
    }

    fn wait(&self, earliest: Option<Nanos>) -> Next<T> {
        let deadline = self.deadlines.first().map(|(deadline, ..)| *deadline);
        let room = (!self.outside.is_empty()).then(|| self.keys.room_at()).filter(|time| *time < Nanos::MAX);
        let later = self.later.first_key_value().map(|((arrives, _), _)| *arrives);
        match [earliest, deadline, room, later].into_iter().flatten().min() {
            Some(time) => Next::At(time),
            None if self.len > 0 => Next::Blocked,
            None => Next::Empty,
        }
    }

    /// A unit of this key that ran has ended: see [`Rules::jobs`].
    pub fn ended(&mut self, now: Nanos, key: KeyId) {
        let (now, jobs) = (self.advance(now), self.jobs);
        self.change(key, |order| {
            let busy = order.busy(key);
            if Some(busy.running) == jobs {
                busy.since = busy.since.max(now);
            }
            busy.running = busy.running.saturating_sub(1);
        });
    }

    /// Nothing of this key leaves before `until`, and its buckets are empty then.
    pub fn hold_until(&mut self, now: Nanos, key: KeyId, until: Nanos) {
        if until > self.advance(now) {
            self.change(key, |order| {
                let (each, thin) = order.keys.state_mut(key);
                each.empty(thin, until);
                let busy = order.busy(key);
                busy.since = busy.since.max(until);
            });
        }
    }

    /// Nothing of this key, of which something runs, leaves before `time`.
    pub fn not_before(&mut self, now: Nanos, key: KeyId, time: Nanos) {
        if time > self.advance(now) {
            self.change(key, |order| {
                let busy = order.busy(key);
                busy.since = busy.since.max(time);
            });
        }
    }

    /// Nothing is granted as of a time before `time`: until then the caller had no room for it.
    pub fn ready_since(&mut self, time: Nanos) {
        self.ready_since = self.ready_since.max(time).min(self.now);
    }

    /// A unit that left was handed over just now: windows count it from `now` on.
    pub fn handed_over(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: &[u64]) {
        if self.has_windows() {
            let now = self.advance(now);
            self.revise(key, |limits, thin| limits.hand_over(thin, charged, costs, now));
        }
    }

    /// The unit that has just left, as the latest one, is [settled](Self::settle) before it has [ended](Self::ended).
    pub fn open(&mut self, key: KeyId, charged: Charged, costs: &[u64]) {
        let (each, thin) = self.keys.state_mut(key);
        each.open(thin, charged, costs);
        self.all.open(&mut self.thin, charged, costs);
    }

    /// A unit that was charged the first of these costs has really cost the second: the limits are as if it had cost that
    /// from the start. What would have overflowed since is lost, and what it cost more is owed by those behind. It must be
    /// [open](Self::open).
    pub fn settle(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: [&[u64]; 2]) {
        let now = self.advance(now);
        if self.earliest().is_none_or(|time| time > now) {
            self.ready_since(now); // What waits may leave now, not as of an earlier time.
        }
        self.revise(key, |limits, thin| limits.settle(thin, now, charged, costs));
    }

    /// Whether units have to be reported as [handed over](Self::handed_over).
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// How many units wait, those that arrive later included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many units wait that have arrived.
    pub fn arrived(&mut self, now: Nanos) -> usize {
        self.advance(now);
        self.len - self.later.len()
    }

    /// Whether no unit waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that all waiting units take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// How many keys have units that wait.
    #[must_use]
    pub fn keys_waiting(&self) -> usize {
        self.waiting
    }

    /// How many keys are stored: those in use, and those whose state differs from that of a new key.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Whether so many units wait that no more should be added, if at most `ahead` may.
    #[must_use]
    pub fn is_full(&self, ahead: usize) -> bool {
        self.len() >= ahead || self.memory() >= MEMORY
    }

    /// The next unit that has waited for as long as it may, also if it may leave now: for a caller who has no room for it.
    pub fn take_overdue(&mut self, now: Nanos) -> Option<(KeyId, Unit<T>)> {
        let now = self.advance(now);
        let &(_, age, key) = self.deadlines.first().filter(|(deadline, ..)| *deadline <= now)?;
        Some((key, self.take_out(key, age, |_, _| ())?))
    }

    /// When a unit has waited for as long as it may.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(deadline, ..)| *deadline)
    }

    /// The key of this name, if it is stored.
    #[must_use]
    pub fn find(&self, name: Option<&[u8]>) -> Option<KeyId> {
        self.keys.find(name.unwrap_or(NO_KEY))
    }

    /// The limits of each key with the state of this one, or those of all.
    #[must_use]
    pub fn limits(&self, key: Option<KeyId>) -> (&Each, &Thin) {
        key.map_or((&self.all, &self.thin), |key| self.keys.state(key))
    }

    /// The units that wait.
    #[must_use]
    pub fn crowd(&self) -> Crowd {
        let most = self.busy.iter().max_by_key(|(key, busy)| (busy.waiting(), **key));
        let most = most.map(|(key, _)| self.keys.name(*key).into()).unwrap_or_default();
        let keys = self.busy.values().filter(|busy| busy.waiting() > 0).count();
        Crowd { units: self.len(), keys: keys as u64, most }
    }

    /// The name of a key; `(none)` for units without one.
    #[must_use]
    pub fn name(&self, key: KeyId) -> &[u8] {
        self.keys.name(key)
    }

    /// The units of one key that wait.
    pub fn waiting_of(&self, key: KeyId) -> impl Iterator<Item = &T> {
        let later = self.later.values().filter(move |(of, _)| *of == key).map(|(_, unit)| unit);
        let arrived = self.busy.get(&key).into_iter().flat_map(|busy| &busy.units);
        arrived.chain(later).map(|unit| &unit.content)
    }

    /// Takes out all waiting units of one key, the oldest first.
    pub fn drain_key(&mut self, key: KeyId) -> Vec<Unit<T>> {
        self.arrive_by(Nanos::MAX, |of| of == key);
        let ages: Vec<u64> =
            self.busy.get(&key).into_iter().flat_map(|busy| &busy.units).map(|unit| unit.age).collect();
        ages.into_iter().filter_map(|age| self.take_out(key, age, |_, _| ())).collect()
    }

    /// Has the waiting units of one key, of which something runs, arrive no earlier than at these times.
    pub fn put_off(&mut self, now: Nanos, key: KeyId, not_before: impl Fn(&T) -> Nanos) {
        self.advance(now);
        let is_early = |unit: &Unit<T>| not_before(&unit.content) > unit.arrived;
        let of_key = |(of, unit): &(KeyId, Unit<T>)| *of == key && is_early(unit);
        let has_early = self.busy.get(&key).is_some_and(|busy| busy.units.iter().any(is_early));
        if !has_early && !self.later.values().any(of_key) {
            return;
        }
        for unit in self.drain_key(key) {
            let arrived = unit.arrived.max(not_before(&unit.content));
            self.insert(key, Unit { arrived, ..unit });
        }
    }

    /// Takes out all waiting units, the oldest first, with their keys.
    pub fn drain(&mut self) -> Vec<(KeyId, Unit<T>)> {
        self.arrive_by(Nanos::MAX, |_| true);
        let keys: Vec<KeyId> = self.busy.keys().copied().collect();
        let mut units = Vec::with_capacity(self.len);
        for key in keys {
            self.change(key, |order| units.extend(order.busy(key).units.drain(..).map(|unit| (key, unit))));
        }
        self.deadlines.clear();
        (self.len, self.waiting, self.memory) = (0, 0, 0);
        units.sort_unstable_by_key(|(_, unit)| unit.age);
        units
    }
}

impl<T> Busy<T> {
    /// How many units it has, those that arrive later included.
    fn waiting(&self) -> usize {
        self.units.len() + self.later as usize
    }

    /// Nothing of it waits or runs.
    fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.running == 0
    }
}

/// What the calls above have in common.
impl<T> Order<T> {
    /// Clamps clock readings that arrive out of order.
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.arrive_by(self.now, |_| true);
        self.now
    }

    /// The units of these keys arrive whose time is not after this one.
    fn arrive_by(&mut self, time: Nanos, is_one: impl Fn(KeyId) -> bool) {
        let due = self.later.range(..=(time, u64::MAX)).filter(|(_, (key, _))| is_one(*key));
        for at in due.map(|(at, _)| *at).collect::<Vec<_>>() {
            let Some((key, unit)) = self.later.remove(&at) else { continue };
            self.busy(key).later -= 1;
            self.arrive(key, unit);
        }
    }

    /// The earliest time at which a unit conforms.
    fn earliest(&self) -> Option<Nanos> {
        self.heads.earliest((&self.all, &self.thin))
    }

    /// The key, if a unit that arrives now would be its first, and no unit that waits should leave before.
    fn find_free(&mut self, name: &[u8], now: Nanos) -> Option<KeyId> {
        if !self.heads.is_empty() && now >= self.quiet_until {
            self.quiet_until = self.earliest().unwrap_or(Nanos::MAX);
        }
        if !self.heads.is_empty() && now >= self.quiet_until {
            return None;
        }
        let Some(key) = self.keys.find(name) else { return self.has_room().then(|| self.keys.add(name, now)) };
        let is_free = |busy: &Busy<T>| {
            let has_job = self.jobs.is_none_or(|jobs| busy.running < jobs);
            busy.units.is_empty() && busy.since <= now && has_job && !busy.is_outside
        };
        (self.keys.is_idle(key) || self.busy.get(&key).is_none_or(is_free)).then_some(key)
    }

    fn find_or_add(&mut self, name: &[u8], now: Nanos) -> KeyId {
        if let Some(key) = self.keys.find(name) {
            return key;
        }
        let is_outside = !self.has_room();
        let key = self.keys.add(name, now);
        if is_outside {
            self.busy(key).is_outside = true;
            self.outsiders += 1;
        }
        key
    }

    /// Whether there is room for a new key that comes now.
    fn has_room(&mut self) -> bool {
        self.release_idle();
        self.outside.is_empty() && self.keys.has_room(self.outsiders, self.now)
    }

    /// Lets in new keys that there is room for now, the oldest first.
    fn admit(&mut self) {
        while let Some(&(_, key)) = self.outside.first()
            && self.keys.has_room(self.outsiders, self.now)
        {
            let now = self.now;
            self.outsiders -= 1;
            self.change(key, |order| {
                let busy = order.busy(key);
                (busy.is_outside, busy.since) = (false, now);
            });
        }
    }

    /// Takes a unit out of its queue, and applies `act` to it before the next unit of its key is looked at.
    fn take_out(&mut self, key: KeyId, age: u64, act: impl FnOnce(&mut Self, &Unit<T>)) -> Option<Unit<T>> {
        self.change(key, |order| {
            let units = &mut order.busy(key).units;
            let unit = units.remove(units.partition_point(|unit| unit.age < age))?;
            let is_last = units.is_empty();
            order.waiting -= usize::from(is_last);
            (order.len, order.memory) = (order.len - 1, order.memory.saturating_sub(unit.size));
            if let Some(longest) = order.max_wait {
                order.deadlines.remove(&(unit.arrived.saturating_add(longest), unit.age, key));
            }
            act(order, &unit);
            Some(unit)
        })
    }

    /// Corrects the limits of a key, and those of all, for a unit that has left.
    fn revise(&mut self, key: KeyId, act: impl Fn(&Each, &mut Thin)) {
        act(&self.all, &mut self.thin);
        self.quiet_until = 0;
        let (each, thin) = self.keys.state_mut(key);
        act(each, thin);
        self.change(key, |_| ());
        self.keys.note(key);
    }

    /// Applies `act` to a key, which may change what its first unit is and when it conforms.
    fn change<R>(&mut self, key: KeyId, act: impl FnOnce(&mut Self) -> R) -> R {
        self.leave(key);
        let result = act(self);
        self.enter(key);
        self.release(key);
        result
    }

    /// Takes the first unit of a key out of those that wait for a time.
    fn leave(&mut self, key: KeyId) {
        let Some(busy) = self.busy.get_mut(&key) else { return };
        let (Some(head), Some(unit)) = (busy.head.take(), busy.units.front()) else { return };
        if busy.is_outside {
            self.outside.remove(&(head.age, key));
        } else {
            self.heads.remove(&counted(&self.all, &unit.costs), head);
        }
    }

    /// The first unit of a key waits for its limits, or for room.
    fn enter(&mut self, key: KeyId) {
        let Some(busy) = self.busy.get_mut(&key) else { return };
        let Some(unit) = busy.units.front() else { return };
        if self.jobs.is_some_and(|jobs| busy.running >= jobs) {
            return;
        }
        let (each, thin) = self.keys.state(key);
        let own = each.conforms_at(thin, unit.arrived, &unit.costs).map_or(Nanos::MAX, |(time, _)| time);
        let head = Head { at: own.max(busy.since), age: unit.age, key };
        busy.head = Some(head);
        if busy.is_outside {
            self.outside.insert((head.age, key));
        } else {
            self.heads.add(&counted(&self.all, &unit.costs), unit.arrived, head);
            self.quiet_until = self.quiet_until.min(head.at);
        }
    }

    fn busy(&mut self, key: KeyId) -> &mut Busy<T> {
        self.busy.entry(key).or_insert_with(|| {
            self.keys.set_busy(key);
            Busy { units: VecDeque::new(), running: 0, later: 0, since: 0, is_outside: false, head: None }
        })
    }

    /// If nothing of a key waits or runs, it is idle, now or later.
    fn release(&mut self, key: KeyId) {
        let Some(busy) = self.busy.get(&key).filter(|busy| busy.is_idle()) else { return };
        // The name of a key that is outside is still needed.
        if busy.since > self.now || busy.is_outside {
            self.idle_at.insert((busy.since, key));
        } else {
            self.busy.remove(&key);
            self.keys.set_idle(key);
        }
    }

    fn release_idle(&mut self) {
        while let Some(&(time, key)) = self.idle_at.first()
            && time <= self.now
        {
            self.idle_at.pop_first();
            let Some(busy) = self.busy.get_mut(&key).filter(|busy| busy.is_idle()) else { continue };
            if std::mem::take(&mut busy.is_outside) {
                self.outsiders -= 1;
                self.busy.remove(&key);
                self.keys.forget(key);
            } else {
                self.release(key);
            }
        }
    }
}

/// The part of a unit's costs that the limits of all keys count.
fn counted<'a>(all: &Each, costs: &'a [u64]) -> Cow<'a, [u64]> {
    let counts = |kind| all.kinds().contains(&kind);
    match (0..costs.len()).all(counts) {
        true => Cow::Borrowed(costs),
        false if all.is_empty() => Cow::Borrowed(&[]),
        false => costs.iter().enumerate().map(|(kind, cost)| if counts(kind) { *cost } else { 0 }).collect(),
    }
}
