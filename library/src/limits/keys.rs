//! The states of many keys, in at most 100 bytes for each key, without its name. A key is forgotten only if its state
//! equals the state of a new key.

use super::joint::Limits;
use super::levels::Levels;
use crate::clock::Nanos;
use hashbrown::HashTable;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

/// The hashes of std have random keys, so nobody can choose keys that collide.
pub(crate) type Hashes = RandomState;

/// The number of slots in the first allocation. Each further allocation is as large as all earlier ones together. The
/// earlier ones stay, so slots never move, and growth needs no second copy of them. The system provides the memory of
/// an allocation only as it is used.
const FIRST_CHUNK: usize = 1 << 5;

/// The number of slots checked for each new key, to forget keys that are fresh again.
const CHECKS_PER_ADD: usize = 2;

/// A table of many keys with the levels of their [`Limits`]. Time is a parameter, and nothing waits here.
///
/// A key that is not in the table counts as new, with buckets made at the beginning. So a key is forgotten only when
/// its state equals the state of a new key again, and it is not in use. When a key is added, the table checks two
/// others. Nothing else is ever evicted.
///
/// ```
/// use throttle_limits::limits::{Keys, Limits, Policy};
///
/// let each = Limits::new(&[(&Policy::new(&["1/s".parse()?], None)?, 0)], 0);
/// let mut keys: Keys<String> = Keys::new(0);
/// let hash = keys.hash("a.example");
/// let key = keys.find(hash, "a.example").unwrap_or_else(|| keys.add(hash, "a.example", &each, 0));
/// assert_eq!(each.take(keys.state_mut(key), 0, &[1]), Ok(()));
/// assert!(each.take(keys.state_mut(key), 0, &[1]).is_err());
/// keys.forget_fresh(&each, 999_999_999);
/// assert_eq!(keys.len(), 1);
/// keys.forget_fresh(&each, 1_000_000_000);
/// assert_eq!(keys.len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Keys<K> {
    hasher: Hashes,
    /// The numbers of the slots that have a key, by its hash.
    table: HashTable<u32>,
    chunks: Vec<Vec<Slot<K>>>,
    /// The number after the last slot.
    end: u32,
    first_free: u32,
    /// The slot that was checked last.
    hand: u32,
    /// Up to this many keys are kept without checks.
    few: usize,
}

/// The number of a key in a [table](Keys). Another key may get it once this one is forgotten. It is valid in no other
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u32);

/// A key as itself or in a borrowed form, for example a `str` for a `String`. A type has this trait if its `ToOwned`
/// gives the key.
pub trait AsKey<K>: Hash {
    /// Whether this is the same key as `key`. If it is, both have the same hash.
    fn is(&self, key: &K) -> bool;

    /// The key to store; this is called only for a new key.
    fn to_key(&self) -> K;
}

impl<K: Borrow<Q>, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized> AsKey<K> for Q {
    #[inline]
    fn is(&self, key: &K) -> bool {
        key.borrow() == self
    }

    fn to_key(&self) -> K {
        self.to_owned()
    }
}

/// One slot. It fits one cache line if the key takes at most 24 bytes.
#[derive(Clone)]
#[repr(align(64))]
struct Slot<K> {
    /// `None` if the slot is free.
    key: Option<K>,
    state: Levels,
    usage: Usage,
}

const NO_FLOW: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Idle,
    /// The number of its flow, or [`NO_FLOW`].
    InUse(u32),
    /// The slot has no key; this is the number of the next free slot.
    Free(u32),
}

impl<K: Hash> Keys<K> {
    /// An empty table. It checks for keys to forget only while it has more than `few` keys.
    pub fn new(few: usize) -> Self {
        Keys::with_hasher(few, Hashes::new())
    }

    /// An empty table with these hashes: several tables may share them.
    pub(crate) fn with_hasher(few: usize, hasher: Hashes) -> Self {
        Keys { hasher, table: HashTable::new(), chunks: Vec::new(), end: 0, first_free: u32::MAX, hand: 0, few }
    }

    pub(crate) fn hasher(&self) -> Hashes {
        self.hasher.clone()
    }

    /// The number of stored keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no key is stored.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The hash of a key, for [`find`](Self::find) and [`add`](Self::add).
    #[inline]
    pub fn hash(&self, key: &(impl AsKey<K> + ?Sized)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The number of a key, which has this hash. `None` if it is not stored.
    #[inline]
    pub fn find(&self, hash: u64, key: &(impl AsKey<K> + ?Sized)) -> Option<KeyId> {
        let is_it = |id: &u32| slot(&self.chunks, *id).key.as_ref().is_some_and(|own| key.is(own));
        self.table.find(hash, is_it).map(|id| KeyId(*id))
    }

    /// Adds a key, which has this hash and is not stored, in the state of a new key. Forgets some keys in that state.
    pub fn add(&mut self, hash: u64, key: &(impl AsKey<K> + ?Sized), each: &Limits, now: Nanos) -> KeyId {
        for _ in 0..if self.len() > self.few { CHECKS_PER_ADD } else { 0 } {
            self.hand = if self.hand + 1 < self.end { self.hand + 1 } else { 0 };
            self.forget_if_fresh(self.hand, each, now);
        }
        self.store(hash, Slot { key: Some(key.to_key()), state: each.fresh(), usage: Usage::Idle })
    }

    /// Adds a key with this state, which has this hash and is not stored. Forgets nothing.
    pub(crate) fn restore(&mut self, hash: u64, key: &(impl AsKey<K> + ?Sized), state: Levels) {
        self.store(hash, Slot { key: Some(key.to_key()), state, usage: Usage::Idle });
    }

    /// Makes room for `more` keys beyond the stored ones, so that [`add`](Self::add) allocates no memory for them
    /// except for their names. `spare` bytes of memory must still be available afterwards. Returns whether there is
    /// enough memory; if not, the table keeps its room.
    #[must_use]
    pub fn try_reserve(&mut self, more: usize, spare: usize) -> bool {
        let (hasher, chunks) = (&self.hasher, &self.chunks);
        let Some(wanted) = self.table.len().checked_add(more) else { return false };
        if self.table.try_reserve(more, |id| hash_of(hasher, chunks, *id)).is_err() {
            return false;
        }
        let mut new = Vec::new();
        while (FIRST_CHUNK << (self.chunks.len() + new.len())) - FIRST_CHUNK < wanted {
            let mut chunk = Vec::new();
            if chunk.try_reserve_exact(FIRST_CHUNK << (self.chunks.len() + new.len())).is_err() {
                return false;
            }
            new.push(chunk);
        }
        let has_spare = new.is_empty() || Vec::<u8>::new().try_reserve_exact(spare).is_ok();
        if has_spare {
            self.chunks.append(&mut new);
        }
        has_spare
    }

    fn store(&mut self, hash: u64, slot: Slot<K>) -> KeyId {
        let mut id = self.first_free;
        if id == u32::MAX {
            id = self.end;
            self.end += 1;
            let (chunk, _) = place(id);
            if chunk == self.chunks.len() {
                self.chunks.push(Vec::with_capacity(FIRST_CHUNK << chunk));
            }
            self.chunks[chunk].push(slot);
        } else if let Usage::Free(next) = std::mem::replace(self.slot_mut(id), slot).usage {
            self.first_free = next;
        }
        let (hasher, chunks) = (&self.hasher, &self.chunks);
        self.table.insert_unique(hash, id, |id| hash_of(hasher, chunks, *id));
        KeyId(id)
    }

    /// The key with this number. `None` if it was forgotten.
    pub fn key(&self, id: KeyId) -> Option<&K> {
        slot(&self.chunks, id.0).key.as_ref()
    }

    /// The state of the key with this number.
    pub fn state(&self, id: KeyId) -> &Levels {
        &slot(&self.chunks, id.0).state
    }

    /// Mutable access to the state of the key with this number.
    #[inline]
    pub fn state_mut(&mut self, id: KeyId) -> &mut Levels {
        &mut self.slot_mut(id.0).state
    }

    /// Mutable access to the state of the key with this number; `None` if it is [in use](Self::set_in_use).
    #[inline]
    pub fn idle_mut(&mut self, id: KeyId) -> Option<&mut Levels> {
        let slot = self.slot_mut(id.0);
        (slot.usage == Usage::Idle).then_some(&mut slot.state)
    }

    /// Whether the key with this number is in use.
    pub fn is_in_use(&self, id: KeyId) -> bool {
        matches!(slot(&self.chunks, id.0).usage, Usage::InUse(_))
    }

    /// Sets whether the key is in use. A key in use is not forgotten, even if its state equals the state of a new key.
    pub fn set_in_use(&mut self, id: KeyId, in_use: bool) {
        self.slot_mut(id.0).usage = if in_use { Usage::InUse(NO_FLOW) } else { Usage::Idle };
    }

    /// The flow of a key in use, if it has one.
    #[inline]
    pub(crate) fn flow(&self, id: KeyId) -> Option<u32> {
        match slot(&self.chunks, id.0).usage {
            Usage::InUse(flow) if flow != NO_FLOW => Some(flow),
            _ => None,
        }
    }

    /// Sets the flow of a key, which is in use from now on.
    pub(crate) fn set_flow(&mut self, id: KeyId, flow: u32) {
        self.slot_mut(id.0).usage = Usage::InUse(flow);
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = &K> {
        self.chunks.iter().flatten().filter_map(|slot| slot.key.as_ref())
    }

    /// Mutable access to the states of all keys.
    pub fn states_mut(&mut self) -> impl Iterator<Item = &mut Levels> {
        let slots = self.chunks.iter_mut().flatten();
        slots.filter(|slot| slot.key.is_some()).map(|slot| &mut slot.state)
    }

    /// Forgets all keys that are not in use and whose state equals the state of a new key.
    pub fn forget_fresh(&mut self, each: &Limits, now: Nanos) {
        (0..self.end).for_each(|id| self.forget_if_fresh(id, each, now));
    }

    /// The earliest time at which the state of an unused key equals the state of a new key, if nothing more is granted.
    pub fn fresh_at(&self, each: &Limits) -> Option<Nanos> {
        let idle = self.chunks.iter().flatten().filter(|slot| slot.usage == Usage::Idle);
        idle.map(|slot| each.fresh_at(&slot.state)).min()
    }

    fn forget_if_fresh(&mut self, id: u32, each: &Limits, now: Nanos) {
        let slot = slot(&self.chunks, id);
        if slot.usage == Usage::Idle && each.is_fresh(&slot.state, now) {
            self.forget(KeyId(id));
        }
    }

    /// Forgets a key, whose state equals the state of a new key.
    pub fn forget(&mut self, id: KeyId) {
        let hash = hash_of(&self.hasher, &self.chunks, id.0);
        if let Ok(found) = self.table.find_entry(hash, |own| *own == id.0) {
            found.remove();
            let usage = Usage::Free(self.first_free);
            *self.slot_mut(id.0) = Slot { key: None, state: Levels::default(), usage };
            self.first_free = id.0;
        }
    }

    /// Frees memory if there is room for many more keys than are stored. All keys get new numbers. Does nothing if a
    /// key is in use.
    pub fn shrink(&mut self) {
        if self.len() < self.end as usize / 4
            && self.chunks.iter().flatten().all(|slot| !matches!(slot.usage, Usage::InUse(_)))
        {
            let old = std::mem::replace(self, Keys::with_hasher(self.few, self.hasher.clone()));
            for slot in old.chunks.into_iter().flatten() {
                if let Some(key) = &slot.key {
                    self.store(self.hasher.hash_one(key), slot);
                }
            }
        }
    }

    #[inline]
    fn slot_mut(&mut self, id: u32) -> &mut Slot<K> {
        let (chunk, place) = place(id);
        &mut self.chunks[chunk][place]
    }
}

/// The chunk of a slot, and its place there.
#[inline]
fn place(id: u32) -> (usize, usize) {
    let place = id as usize + FIRST_CHUNK;
    let chunk = (place / FIRST_CHUNK).ilog2();
    (chunk as usize, place - (FIRST_CHUNK << chunk))
}

#[inline]
fn slot<K>(chunks: &[Vec<Slot<K>>], id: u32) -> &Slot<K> {
    let (chunk, place) = place(id);
    &chunks[chunk][place]
}

fn hash_of<K: Hash>(hasher: &Hashes, chunks: &[Vec<Slot<K>>], id: u32) -> u64 {
    slot(chunks, id).key.as_ref().map_or(0, |key| hasher.hash_one(key))
}

impl<K> fmt::Debug for Keys<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("keys", &self.table.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_with_a_small_key_takes_64_bytes() {
        assert_eq!([size_of::<Slot<u64>>(), size_of::<Slot<String>>()], [64, 64]);
    }

    #[test]
    fn entries_have_their_own_places_and_chunks_fill_in_order() {
        let places: Vec<_> = (0..900).map(place).collect();
        let expected = (0..5).flat_map(|chunk| (0..FIRST_CHUNK << chunk).map(move |place| (chunk, place)));
        assert!(places.iter().copied().eq(expected.take(900)));
    }

    #[test]
    fn keys_take_no_memory_that_was_reserved_before() {
        let policy = super::super::policy::Policy::new(&["1/s".parse().unwrap()], None).unwrap();
        let (each, mut keys) = (Limits::new(&[(&policy, 0)], 0), Keys::new(1000));
        for (more, chunks) in [(0, 0), (32, 1), (33, 2), (96, 2), (97, 3), (5, 3)] {
            assert!(keys.try_reserve(more, 1000));
            assert_eq!(keys.chunks.len(), chunks, "{more}");
        }
        assert!(keys.try_reserve(98, usize::MAX / 2), "nothing is reserved");
        assert!(!keys.try_reserve(1000, usize::MAX / 2) && !keys.try_reserve(usize::MAX / 2, 0));
        let room: Vec<_> = keys.chunks.iter().map(Vec::capacity).collect();
        assert_eq!(room, [0, 1, 2].map(|chunk| FIRST_CHUNK << chunk));
        for key in 0..300_u64 {
            keys.add(keys.hash(&key), &key, &each, 0);
        }
        assert_eq!((keys.len(), keys.chunks.len()), (300, 4));
        assert!((0..300_u64).all(|key| keys.find(keys.hash(&key), &key).is_some()));
    }

    #[test]
    fn new_keys_take_the_places_of_fresh_ones_wherever_they_are() {
        let policy = super::super::policy::Policy::new(&["1/s".parse().unwrap()], None).unwrap();
        let (each, mut keys) = (Limits::new(&[(&policy, 0)], 0), Keys::new(0));
        for key in 0..1000_u64 {
            let now = key / 100 * 1_000_000_000;
            let id = keys.add(keys.hash(&key), &key, &each, now);
            each.charge(keys.state_mut(id), [now; 4], &[1]);
        }
        assert!((100..300).contains(&keys.len()), "{} keys, of which 100 are not fresh", keys.len());
        let id = keys.find(keys.hash(&999), &999).unwrap();
        keys.set_in_use(id, true);
        assert_eq!((keys.is_empty(), keys.flow(id)), (false, None));
        keys.set_flow(id, 7);
        assert_eq!(keys.flow(id), Some(7));
        keys.states_mut().for_each(|state| *state = each.fresh());
        keys.forget_fresh(&each, 0);
        assert_eq!(keys.len(), 1, "one is in use");
    }

    #[test]
    fn used_keys_keep_their_states_when_fresh_keys_are_freed() {
        let policy = super::super::policy::Policy::new(&["1/s".parse().unwrap()], None).unwrap();
        let (each, mut keys) = (Limits::new(&[(&policy, 0)], 0), Keys::new(0));
        let charged_at = |key: u64| if key.is_multiple_of(100) { 10 } else { 0 };
        for key in 0..1000_u64 {
            let id = keys.add(keys.hash(&key), &key, &each, 0);
            each.charge(keys.state_mut(id), [charged_at(key); 4], &[1]);
        }
        let first = keys.find(keys.hash(&0), &0).unwrap();
        keys.set_in_use(first, true);
        assert_eq!(keys.fresh_at(&each), Some(1_000_000_000));
        keys.forget_fresh(&each, 1_000_000_000);
        keys.shrink();
        assert_eq!((keys.len(), keys.end, keys.key(first)), (10, 1000, Some(&0)), "one is in use");
        keys.set_in_use(first, false);
        keys.shrink();
        assert_eq!((keys.len(), keys.end), (10, 10));
        for key in 0..1000_u64 {
            let found = keys.find(keys.hash(&key), &key);
            assert_eq!(found.is_some(), charged_at(key) > 0, "{key}");
            let at = found.and_then(|id| each.conforms_at(keys.state(id), 0, &[1]));
            assert_eq!(at.map(|(at, _)| at), found.map(|_| 1_000_000_010));
        }
        keys.forget_fresh(&each, 1_000_000_010);
        assert!(keys.is_empty());
        let again = keys.add(keys.hash(&7), &7, &each, 0);
        assert_eq!((keys.len(), keys.end, keys.find(keys.hash(&7), &7)), (1, 10, Some(again)));
    }
}
