//! The order in which units of many keys leave: strict within a key, and start-time fair queueing between keys. Of the keys
//! whose next unit conforms to their own limits, one is served next, and no other unit leaves before its unit.
//!
//! This is pure: time is a parameter, and the caller waits, reads and writes. Clock readings that arrive out of order are
//! clamped.

mod heads;
mod in_use;
mod keyed;
mod turns;
mod unit;

use heads::Heads;
use in_use::InUse;
pub use keyed::KeyId;
use keyed::Keyed;
use std::num::NonZeroU32;
use throttle_limits::clock::Nanos;
pub use throttle_limits::limits::NO_KEY;
use throttle_limits::limits::{Each, Thin};
use throttle_limits::store::View;
pub use turns::Order;
pub use unit::{Charged, Crowd, NamedKey, Next, Rules, Unit};

/// The memory that units may take which wait, in bytes.
pub const MEMORY: usize = 64 << 20;

/// The most keys that are stored.
const MOST_KEYS: usize = 1_000_000;

impl<T> Order<T> {
    /// Nothing waits. Keys that were not seen yet have buckets made at `now`.
    #[must_use]
    pub fn new(rules: &Rules<'_>, now: Nanos) -> Self {
        Order::with_most_keys(rules, now, MOST_KEYS)
    }

    /// Nothing waits, and the limits are as they were found in a bucket that keeps the same ones.
    #[must_use]
    pub fn from(rules: &Rules<'_>, found: &View) -> Self {
        let mut order = Order::new(rules, found.made);
        order.advance(found.now);
        order.thin.clone_from(&found.state);
        for key in &found.keys {
            let id = order.keys.table.add(&key.name, found.now);
            order.keys.table.state_mut(id).1.clone_from(&key.state);
            order.not_before(found.now, id, key.paused_until.unwrap_or(0));
        }
        order
    }

    /// As [`new`](Self::new), but stores at most `most` keys.
    #[must_use]
    pub fn with_most_keys(rules: &Rules<'_>, now: Nanos, most: usize) -> Self {
        let lengths = Each::new(rules.all, now);
        let all = if rules.is_shared { Each::new(&[], now) } else { lengths.clone() };
        let each = Each::new(if rules.is_shared { &[] } else { rules.each }, now);
        let keys = Keyed::new(each, rules.named.iter().map(|named| named.limits(now)).collect(), most);
        let allowance = keys.limits().chain([&all]).filter_map(Each::allowance).min();
        let has_windows = keys.limits().chain([&all]).any(Each::has_windows);
        Order {
            keys: InUse::new(keys, rules.max_wait),
            has_windows,
            thin: all.fresh(),
            all,
            lengths,
            allowance: allowance.unwrap_or(0),
            jobs: rules.jobs.map(NonZeroU32::get),
            now,
            heads: Heads::default(),
            gone: 0,
            away: 0,
            is_shared: rules.is_shared,
            latest: None,
        }
    }

    /// Adds a unit behind the older ones of its key.
    ///
    /// # Errors
    /// Returns the unit if it is never granted: one of its costs is above a window's count.
    pub fn add(&mut self, now: Nanos, key: Option<&[u8]>, unit: Unit<T>) -> Result<KeyId, Unit<T>> {
        self.add_behind(now, key, unit, 0)
    }

    /// As [`add`](Self::add). `others`: when it arrives, it waits behind so many of its key if as many wait then, older or not.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_behind(
        &mut self,
        now: Nanos,
        key: Option<&[u8]>,
        unit: Unit<T>,
        others: usize,
    ) -> Result<KeyId, Unit<T>> {
        let now = self.advance(now);
        let name = key.unwrap_or(NO_KEY);
        if self.keys.table.limits_of(name).never_grants(&unit.costs) || self.all.never_grants(&unit.costs) {
            return Err(unit);
        }
        self.release_idle();
        let key = self.keys.find_or_add(name, now);
        (self.keys.len, self.keys.memory) = (self.keys.len + 1, self.keys.memory.saturating_add(unit.size));
        if unit.arrived > self.now {
            self.keys.push_later(key, unit, others);
        } else {
            self.arrive(key, unit, others);
        }
        Ok(key)
    }

    /// Takes a unit that has just arrived, and is younger than all that wait, if it may leave now and no other should leave
    /// before. It is charged at `now`. `None` if it has to be [added](Self::add).
    pub fn pass(&mut self, now: Nanos, key: Option<&[u8]>, costs: &[u64]) -> Option<KeyId> {
        let now = self.advance(now);
        let key = self.find_free(key.unwrap_or(NO_KEY), now)?;
        let (each, thin) = self.keys.table.state_mut(key);
        let own = each.conforms_at(thin, now, costs)?.0;
        if own > now || self.all.conforms_at(&self.thin, now, costs)?.0 > now {
            return None;
        }
        each.charge(thin, [now; 4], costs);
        self.all.charge(&mut self.thin, [now; 4], costs);
        self.heads.close(now);
        if self.jobs.is_some() {
            self.keys.busy(key).running += 1;
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
        let (each, thin) = self.keys.table.state(key);
        each.available(thin, self.now, costs).min(self.all.available(&self.thin, self.now, costs))
    }

    /// Charges `units` of those [more](Self::more), which have left.
    pub fn pass_more(&mut self, key: KeyId, costs: &[u64], units: u64) {
        let costs: Box<[u64]> = costs.iter().map(|cost| cost.saturating_mul(units)).collect();
        let times = [self.now; 4];
        let (each, thin) = self.keys.table.state_mut(key);
        each.charge(thin, times, &costs);
        self.all.charge(&mut self.thin, times, &costs);
    }

    /// The unit that leaves next, already charged, if it conforms to the limits of all keys together; or when to ask again.
    ///
    /// If the caller asks late, the grants are those that it would have had in time, but not longer ago than the
    /// [allowance](Each::allowance).
    pub fn next(&mut self, now: Nanos) -> Next<T> {
        let now = self.advance(now);
        let mut earliest = self.earliest();
        let is_late = |time| self.deadline().is_some_and(|deadline| deadline < time);
        if earliest.is_none_or(is_late)
            && let Some((key, unit)) = self.take_overdue(now)
        {
            return Next::Drop(key, unit);
        }
        // Longer ago than the lag allowance, the rate is lost.
        let oldest = now.saturating_sub(self.allowance);
        if earliest.is_some_and(|time| time < oldest) {
            self.close(oldest);
            earliest = self.earliest();
        }
        match earliest {
            Some(time) if time <= now => self.go(time),
            _ => self.changes_at(earliest).map_or(Next::Nothing, Next::At),
        }
    }

    /// When [`next`](Self::next) has something to tell, if nothing else happens before: a unit may leave, or is dropped.
    /// `None` if no such time is known. A time that has come is not later than `now`.
    pub fn ready_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.advance(now);
        let earliest = self.earliest();
        self.changes_at(earliest)
    }

    fn go(&mut self, at: Nanos) -> Next<T> {
        let (counted, counts_jobs) = (self.now, self.jobs.is_some());
        self.away += usize::from(self.is_shared);
        let gone = self.heads.first().and_then(|(start, age, key)| {
            self.latest = Some((key, age, self.heads.tags()));
            let unit = self.take_out(key, age, |order, unit| {
                let times = [at, unit.arrived, at, counted];
                let (each, thin) = order.keys.table.state_mut(key);
                each.charge(thin, times, &unit.costs);
                order.all.charge(&mut order.thin, times, &unit.costs);
                let busy = order.keys.busy(key);
                busy.running += u32::from(counts_jobs);
                busy.finish = order.heads.go(start, order.lengths.time_for(&unit.costs).max(1));
                if busy.units.is_empty() {
                    order.rest();
                }
            });
            self.rest();
            self.gone += 1;
            Some(Next::Go(key, unit?, Charged { at, counted, number: self.gone }))
        });
        gone.unwrap_or_else(|| self.changes_at(None).map_or(Next::Nothing, Next::At))
    }

    fn changes_at(&self, earliest: Option<Nanos>) -> Option<Nanos> {
        earliest.into_iter().chain(self.keys.changes_at()).min()
    }

    /// A unit of this key that ran has ended: see [`Rules::jobs`].
    pub fn ended(&mut self, now: Nanos, key: KeyId) {
        let (now, jobs) = (self.advance(now), self.jobs);
        self.change(key, |order| {
            let busy = order.keys.busy(key);
            if Some(busy.running) == jobs {
                busy.since = busy.since.max(now);
            }
            busy.running = busy.running.saturating_sub(1);
        });
    }

    /// So many that have left wait for the answer of a shared bucket, or for their time. Which units are ready when they really
    /// leave decides about turns, not which were when the bucket was asked.
    pub fn set_away(&mut self, now: Nanos, units: usize) {
        self.advance(now);
        if units < self.away {
            self.close(self.now);
        }
        self.away = units;
    }

    /// A unit that has just left did not start: it waits again, and nothing of its key leaves before `until`. The limits count
    /// what it was charged: only where others keep them.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn put_back(&mut self, now: Nanos, key: KeyId, unit: Unit<T>, until: Nanos) -> Result<(), Unit<T>> {
        if let Some((.., tags)) = self.latest.filter(|(latest, age, _)| (*latest, *age) == (key, unit.age)) {
            self.heads.restore(tags);
        }
        let length = self.lengths.time_for(&unit.costs).max(1);
        let busy = self.keys.busy(key);
        busy.finish = busy.finish.saturating_sub(length);
        let name: Box<[u8]> = self.name(key).into();
        let added = self.add(now, Some(&name), unit);
        self.not_before(now, key, until);
        self.ended(now, key);
        added.map(drop)
    }

    /// Nothing of this key leaves before `until`, and its buckets are empty then.
    pub fn hold_until(&mut self, now: Nanos, key: KeyId, until: Nanos) {
        if until > self.advance(now) {
            let (each, thin) = self.keys.table.state_mut(key);
            each.empty(thin, until);
            self.not_before(now, key, until);
        }
    }

    /// Nothing of this key, of which something runs, leaves before `time`.
    pub fn not_before(&mut self, now: Nanos, key: KeyId, time: Nanos) {
        if time > self.advance(now) {
            self.change(key, |order| {
                let busy = order.keys.busy(key);
                busy.since = busy.since.max(time);
            });
        }
    }

    /// Nothing is granted as of a time before `time`: until then the caller had no room for it.
    pub fn ready_since(&mut self, time: Nanos) {
        self.close(time.min(self.now));
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
        let (each, thin) = self.keys.table.state_mut(key);
        each.open(thin, charged, costs);
        self.all.open(&mut self.thin, charged, costs);
    }

    /// A unit that was charged the first of these costs has really cost the second: the limits are as if it had cost that
    /// from the start. What would have overflowed since is lost, and what it cost more is owed by those behind. It must be
    /// [open](Self::open).
    pub fn settle(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: [&[u64]; 2]) {
        let now = self.advance(now);
        self.earliest(); // What waits may leave now, not as of an earlier time.
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
        self.keys.len
    }

    /// How many units wait that have arrived.
    pub fn arrived(&mut self, now: Nanos) -> usize {
        self.advance(now);
        self.keys.len - self.keys.len_later()
    }

    /// Whether no unit waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that all waiting units take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.keys.memory
    }

    /// How many keys have units that wait.
    #[must_use]
    pub fn keys_waiting(&self) -> usize {
        self.keys.waiting
    }

    /// How many keys are stored: those in use, and those whose state differs from that of a new key.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.table.len()
    }

    /// Whether so many units wait that no more should be added, if at most `ahead` may.
    #[must_use]
    pub fn is_full(&self, ahead: usize) -> bool {
        self.len() >= ahead || self.memory() >= MEMORY || self.keys.is_short && !self.is_empty()
    }

    /// The next unit that has waited for as long as it may, also if it may leave now: for a caller that has no room for it.
    pub fn take_overdue(&mut self, now: Nanos) -> Option<(KeyId, Unit<T>)> {
        let now = self.advance(now);
        let (_, age, key) = self.keys.deadline().filter(|(deadline, ..)| *deadline <= now)?;
        Some((key, self.take_out(key, age, |_, _| ())?))
    }

    /// When a unit has waited for as long as it may.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.keys.deadline().map(|(deadline, ..)| deadline)
    }

    /// The key of this name, if it is stored.
    #[must_use]
    pub fn find(&self, name: Option<&[u8]>) -> Option<KeyId> {
        self.keys.table.find(name.unwrap_or(NO_KEY))
    }

    /// The limits of each key with the state of this one, or those of all.
    #[must_use]
    pub fn limits(&self, key: Option<KeyId>) -> (&Each, &Thin) {
        key.map_or((&self.all, &self.thin), |key| self.keys.table.state(key))
    }

    /// The units that wait.
    #[must_use]
    pub fn crowd(&self) -> Crowd {
        self.keys.crowd()
    }

    /// The name of a key; `(none)` for units without one.
    #[must_use]
    pub fn name(&self, key: KeyId) -> &[u8] {
        self.keys.table.name(key)
    }

    /// The units of one key that wait.
    pub fn waiting_of(&self, key: KeyId) -> impl Iterator<Item = &T> {
        self.keys.units_of(key).map(|unit| &unit.content)
    }

    /// Takes out all waiting units of one key, the oldest first.
    pub fn drain_key(&mut self, key: KeyId) -> Vec<Unit<T>> {
        self.arrive_by(Nanos::MAX, |of| of == key);
        let ages: Vec<u64> = self.keys.units_of(key).map(|unit| unit.age).collect();
        ages.into_iter().filter_map(|age| self.take_out(key, age, |_, _| ())).collect()
    }

    /// Takes out all waiting units, the oldest first, with their keys.
    pub fn drain(&mut self) -> Vec<Unit<T>> {
        self.arrive_by(Nanos::MAX, |_| true);
        let keys: Vec<KeyId> = self.keys.busy.keys().copied().collect();
        let mut units: Vec<_> = keys.into_iter().flat_map(|key| self.drain_key(key)).collect();
        units.sort_unstable_by_key(|unit| unit.age);
        units
    }
}
