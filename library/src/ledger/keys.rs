//! The limits of many keys, each with its own state, in at most 100 bytes a key beyond the key's own bytes.

use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{AsKey, KeyId, Keys, Levels, Limits};
use hashbrown::HashTable;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// Up to this many keys are kept without a check whether they can be forgotten.
const UNCHECKED_KEYS: usize = 1 << 12;

/// Above [`UNCHECKED_KEYS`] keys, the table has room for this many more keys in advance. By default, this many units
/// may be read ahead, and each may have a new key.
const SPARE_KEYS: usize = 1 << 14;

/// The bytes of memory that must be left for other uses after the table of the keys has grown.
const SPARE_MEMORY: usize = 4 << 20;

/// The least time between two sweeps through all keys.
const MIN_SWEEP_INTERVAL: Nanos = 100 * MILLISECOND;

/// The states of all keys. A key has a flow while its requests wait or run.
#[derive(Clone, Debug)]
pub(super) struct Table<N> {
    each: Limits,
    /// Keys with their own limits. `named` has the keys that are not stored yet. `own` has the stored keys, which are
    /// never forgotten.
    named: HashTable<(N, Arc<Limits>)>,
    own: HashMap<KeyId, Arc<Limits>>,
    keys: Keys<N>,
    /// The largest number of keys that may be stored.
    most: usize,
    /// Whether memory for more keys is short.
    is_short: bool,
    swept: Nanos,
    /// Whether this is the table of a shared bucket: whether it has room must depend neither on memory nor on the time of
    /// a sweep.
    is_shared: bool,
    /// A sweep before this time would forget nothing. 0 while there is room. In the table of a shared bucket, this is 0 or
    /// the exact time at which a key can be forgotten, because whoever finds no room is told that time.
    fresh_from: Nanos,
}

/// The name of a key. A short one needs no allocation.
#[derive(Clone, Debug)]
pub struct Name(Bytes);

#[derive(Clone, Debug)]
enum Bytes {
    Short(u8, [u8; Name::SHORT]),
    Long(Box<[u8]>),
}

impl<N: Hash> Table<N> {
    /// A table in which each key has the limits `each`.
    pub(super) fn new(each: Limits, most: usize) -> Self {
        Table {
            each,
            named: HashTable::new(),
            own: HashMap::new(),
            keys: Keys::new(UNCHECKED_KEYS),
            most,
            is_short: false,
            swept: 0,
            is_shared: false,
            fresh_from: 0,
        }
    }

    /// The same table with these keys, which have limits of their own.
    pub(super) fn with_named<Q: AsKey<N> + ?Sized>(mut self, named: &[(&Q, Arc<Limits>)]) -> Self {
        for (name, each) in named {
            let entry = (name.to_key(), Arc::clone(each));
            let (hash, hasher) = (self.keys.hash(*name), self.keys.hasher());
            if let Ok(found) = self.named.find_entry(hash, |(own, _)| name.is(own)) {
                *found.into_mut() = entry;
            } else {
                self.named.insert_unique(hash, entry, |(own, _)| hasher.hash_one(own));
            }
        }
        self
    }

    /// The same table, for a shared bucket.
    pub(super) fn shared(self) -> Self {
        Table { is_shared: true, ..self }
    }

    /// The limits of keys without limits of their own.
    pub(super) fn each(&self) -> &Limits {
        &self.each
    }

    /// Continues with these limits of each key from `now` on. The state of a new key stays so, because such a key need not
    /// be stored. At most `most` keys may be stored, or those that are there.
    pub(super) fn change(&mut self, now: Nanos, each: Limits, fresh: &[bool], most: usize) {
        for levels in self.keys.states_mut() {
            if self.each.is_fresh(levels, now) {
                *levels = each.fresh();
            } else {
                self.each.continue_as(&each, levels, now, fresh, None);
            }
        }
        (self.each, self.fresh_from, self.most) = (each, 0, most);
    }

    /// All limits of keys.
    pub(super) fn limits(&self) -> impl Iterator<Item = &Limits> + Clone {
        [&self.each]
            .into_iter()
            .chain(self.named.iter().map(|(_, each)| each).chain(self.own.values()).map(Arc::as_ref))
    }

    /// The limits of the key with this name.
    pub(super) fn limits_of(&self, name: &(impl AsKey<N> + ?Sized)) -> &Limits {
        let own = || self.own.get(&self.find(name)?);
        let named = || self.named.find(self.keys.hash(name), |(own, _)| name.is(own)).map(|(_, each)| each);
        let own = if self.own.is_empty() { None } else { own() };
        own.or_else(|| if self.named.is_empty() { None } else { named() }).map_or(&self.each, Arc::as_ref)
    }

    /// The most keys that may be stored.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// The number of stored keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn find(&self, name: &(impl AsKey<N> + ?Sized)) -> Option<KeyId> {
        self.keys.find(self.keys.hash(name), name)
    }

    /// Adds a key that is not stored, in its fresh state, and forgets some keys that are fresh again.
    pub(super) fn add(&mut self, name: &(impl AsKey<N> + ?Sized), now: Nanos) -> KeyId {
        let hash = self.keys.hash(name);
        let key = self.keys.add(hash, name, &self.each, now);
        if let Ok(named) = self.named.find_entry(hash, |(own, _)| name.is(own)) {
            let ((_, each), _) = named.remove();
            *self.keys.state_mut(key) = each.fresh();
            self.keys.set_in_use(key, true);
            self.own.insert(key, each);
        }
        key
    }

    /// The stored keys.
    pub(super) fn stored(&self) -> impl Iterator<Item = &N> {
        self.keys.all()
    }

    /// The flow of a key with waiting requests or running units.
    #[inline]
    pub(super) fn flow(&self, key: KeyId) -> Option<u32> {
        self.keys.flow(key)
    }

    /// Sets the flow of the key, so that the key is not forgotten.
    pub(super) fn set_flow(&mut self, key: KeyId, flow: u32) {
        if self.is_shared && self.fresh_from > 0 && self.each.fresh_at(self.keys.state(key)) <= self.fresh_from {
            // The next key that can be forgotten is another one.
            self.fresh_from = 0;
        }
        self.keys.set_flow(key, flow);
    }

    /// Removes the flow of the key.
    pub(super) fn set_idle(&mut self, key: KeyId) {
        let has_own_limits = self.own.contains_key(&key);
        self.keys.set_in_use(key, has_own_limits);
        self.note(key);
    }

    pub(super) fn forget(&mut self, key: KeyId) {
        if !self.own.contains_key(&key) {
            self.keys.forget(key);
        }
    }

    /// Records that the state of the key may be fresh earlier than before.
    pub(super) fn note(&mut self, key: KeyId) {
        if self.fresh_from > 0 && !self.keys.is_in_use(key) {
            self.fresh_from = self.fresh_from.min(self.each.fresh_at(self.keys.state(key)));
        }
    }

    /// The limits of a key, and its state.
    pub(super) fn state(&self, key: KeyId) -> (&Limits, &Levels) {
        (self.own.get(&key).map_or(&self.each, Arc::as_ref), self.keys.state(key))
    }

    pub(super) fn state_mut(&mut self, key: KeyId) -> (&Limits, &mut Levels) {
        (self.own.get(&key).map_or(&self.each, Arc::as_ref), self.keys.state_mut(key))
    }

    /// Whether there is room for one more stored key; `outside` is the number of stored keys that do not count, because
    /// they wait for room. Without room, all keys that are fresh again are forgotten, but at most every 100 ms.
    pub(super) fn has_room(&mut self, outside: usize, now: Nanos) -> bool {
        if self.len() - outside < self.most {
            if self.is_short || self.has_memory() {
                self.fresh_from = 0;
                return true;
            }
            (self.most, self.is_short) = (self.len() - outside, true);
        }
        if now >= self.room_at() {
            self.keys.forget_fresh(&self.each, now);
            self.swept = now.saturating_add(if self.is_shared { 0 } else { MIN_SWEEP_INTERVAL });
            self.fresh_from = self.keys.fresh_at(&self.each).unwrap_or(Nanos::MAX);
        }
        self.len() - outside < self.most
    }

    /// Forgets all keys whose state equals the state of a new key.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.keys.forget_fresh(&self.each, now);
        self.keys.shrink();
    }

    /// Whether more keys are stored than may be, because the limits have changed.
    pub(super) fn has_too_many(&self) -> bool {
        self.len() > self.most
    }

    /// Whether there is memory for more keys. If there are many keys, memory for more is reserved in advance.
    fn has_memory(&mut self) -> bool {
        self.is_shared || self.len() < UNCHECKED_KEYS || self.keys.try_reserve(SPARE_KEYS, SPARE_MEMORY)
    }

    /// The most keys in the available memory, if memory is short.
    pub(super) fn most_in_memory(&self) -> Option<u64> {
        self.is_short.then_some(self.most as u64)
    }

    /// The earliest time at which a key can be forgotten, if there is no room and nothing else happens.
    pub(super) fn room_at(&self) -> Nanos {
        self.fresh_from.max(self.swept)
    }
}

/// A table whose keys have names.
impl Table<Name> {
    /// All stored keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], KeyId)> {
        self.stored().filter_map(|name| Some((name.bytes(), self.find(name.bytes())?)))
    }

    /// Adds a key of a snapshot with its state.
    pub(super) fn restore(&mut self, name: &[u8], state: Levels) {
        self.keys.restore(self.keys.hash(name), name, state);
    }

    pub(super) fn name(&self, key: KeyId) -> &[u8] {
        self.keys.key(key).map_or(&[], Name::bytes)
    }
}

impl Name {
    const SHORT: usize = 22;

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short(length, short) => &short[..usize::from(*length)],
            Bytes::Long(name) => name,
        }
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl AsKey<Name> for [u8] {
    fn is(&self, name: &Name) -> bool {
        name.bytes() == self
    }

    fn to_key(&self) -> Name {
        Name(match u8::try_from(self.len()) {
            Ok(length) if self.len() <= Name::SHORT => {
                let mut short = [0; Name::SHORT];
                short[..self.len()].copy_from_slice(self);
                Bytes::Short(length, short)
            }
            _ => Bytes::Long(self.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_24_bytes() {
        assert_eq!(size_of::<Option<Name>>(), 24);
    }
}
