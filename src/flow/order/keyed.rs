//! The limits of many keys, each with a state of its own, in at most 100 bytes a key beyond the key's own bytes.
//!
//! A key that was never seen has a bucket made when the run began. So a key may be forgotten, but only when its state
//! equals that of a fresh key again, and nothing of it waits or runs. Nothing else is ever evicted.
//!
//! Names are hashed with random keys, so nobody can choose names that collide.

use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher, RandomState};
use throttle_limits::clock::{MILLISECOND, Nanos};
use throttle_limits::limits::{Each, Thin};

/// Entries in one allocation. The entries never move, so growing needs no second copy of them.
const CHUNK: usize = 1 << 12;

/// How many entries are looked at for each new key, to forget those that are fresh again. The first chunk is kept.
const LOOKED_AT: u32 = 2;

/// Two sweeps through all keys are at least so far apart.
const BETWEEN_SWEEPS: Nanos = 100 * MILLISECOND;

/// A key. Its number is used again for another key once this one is forgotten: see [`Order`](crate::flow::order::Order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(u32);

/// The states of all keys.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) each: Each,
    hasher: RandomState,
    /// The numbers of the entries in use, by the hashes of their names.
    table: HashTable<u32>,
    chunks: Vec<Vec<Entry>>,
    first_free: u32,
    /// The entry that was looked at last.
    hand: u32,
    /// The most keys that are stored.
    most: usize,
    swept: Nanos,
    /// A sweep before this time would forget nothing.
    fresh_from: Nanos,
}

#[derive(Debug)]
struct Entry {
    name: Name,
    thin: Thin,
    state: Use,
}

/// What an entry is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Idle,
    /// Something of the key waits or runs.
    Busy,
    /// No key; the number of the next free entry.
    Free(u32),
}

/// A short name needs no allocation.
#[derive(Debug)]
enum Name {
    Short(u8, [u8; Name::SHORT]),
    Long(Box<[u8]>),
}

impl Keyed {
    pub(crate) fn new(each: Each, most: usize) -> Self {
        Keyed {
            each,
            hasher: RandomState::new(),
            table: HashTable::new(),
            chunks: Vec::new(),
            first_free: u32::MAX,
            hand: 0,
            most,
            swept: 0,
            fresh_from: 0,
        }
    }

    /// How many keys are stored.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<KeyId> {
        let found = self.table.find(self.hash(name), |index| self.entry(KeyId(*index)).name.bytes() == name);
        found.map(|index| KeyId(*index))
    }

    /// Adds a key that is not yet there, in its fresh state, and forgets some that are fresh again.
    pub(crate) fn add(&mut self, name: &[u8], now: Nanos) -> KeyId {
        let looked_at = if self.len() < CHUNK { 0 } else { LOOKED_AT };
        for _ in 0..looked_at {
            self.hand = if self.hand + 1 < self.end() { self.hand + 1 } else { 0 };
            self.forget_if_fresh(KeyId(self.hand), now);
        }
        let entry = Entry { name: Name::new(name), thin: self.each.fresh(), state: Use::Idle };
        let key = self.store(entry);
        let (hash, hasher, chunks) = (self.hash(name), &self.hasher, &self.chunks);
        self.table.insert_unique(hash, key.0, |index| hash_of(hasher, entry_of(chunks, *index).name.bytes()));
        key
    }

    pub(crate) fn name(&self, key: KeyId) -> &[u8] {
        self.entry(key).name.bytes()
    }

    pub(crate) fn is_idle(&self, key: KeyId) -> bool {
        self.entry(key).state == Use::Idle
    }

    /// Something of the key waits or runs from now on: it is not forgotten.
    pub(crate) fn set_busy(&mut self, key: KeyId) {
        self.entry_mut(key).state = Use::Busy;
    }

    /// Nothing of the key waits or runs any more.
    pub(crate) fn set_idle(&mut self, key: KeyId) {
        self.entry_mut(key).state = Use::Idle;
        self.note(key);
    }

    /// The state of the key may be fresh earlier than before.
    pub(crate) fn note(&mut self, key: KeyId) {
        if self.fresh_from > 0 && self.is_idle(key) {
            self.fresh_from = self.fresh_from.min(self.each.fresh_at(&self.entry(key).thin));
        }
    }

    /// The state of a key, and the limits that it is a state of.
    pub(crate) fn state(&self, key: KeyId) -> (&Each, &Thin) {
        (&self.each, &self.entry(key).thin)
    }

    pub(crate) fn state_mut(&mut self, key: KeyId) -> (&Each, &mut Thin) {
        (&self.each, &mut entry_mut_of(&mut self.chunks, key.0).thin)
    }

    /// Whether there is room for one more key beside those stored, not counting `outside` of them. If there is not, all
    /// keys that are fresh again are forgotten, but not more often than every 100 ms.
    pub(crate) fn has_room(&mut self, outside: usize, now: Nanos) -> bool {
        if self.len() - outside < self.most {
            self.fresh_from = 0; // This is noted only while there is no room.
            return true;
        }
        if now >= self.room_at() {
            self.sweep(now);
        }
        self.len() - outside < self.most
    }

    /// No key is forgotten before this time, while there is no room and nothing else happens.
    pub(crate) fn room_at(&self) -> Nanos {
        self.fresh_from.max(self.swept)
    }

    fn sweep(&mut self, now: Nanos) {
        self.swept = now.saturating_add(BETWEEN_SWEEPS);
        self.fresh_from = Nanos::MAX;
        for index in 0..self.end() {
            let key = KeyId(index);
            if !self.forget_if_fresh(key, now) {
                self.note(key);
            }
        }
    }

    fn forget_if_fresh(&mut self, key: KeyId, now: Nanos) -> bool {
        let forgets = key.0 < self.end() && self.is_idle(key) && self.each.is_fresh(&self.entry(key).thin, now);
        if forgets {
            self.forget(key);
        }
        forgets
    }

    /// Forgets a key, whose state is fresh.
    pub(crate) fn forget(&mut self, key: KeyId) {
        if let Ok(found) = self.table.find_entry(self.hash(self.name(key)), |index| *index == key.0) {
            found.remove();
        }
        let free = Entry { name: Name::new(&[]), thin: Thin::default(), state: Use::Free(self.first_free) };
        *self.entry_mut(key) = free;
        self.first_free = key.0;
    }

    fn store(&mut self, entry: Entry) -> KeyId {
        if self.first_free == u32::MAX {
            if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                self.chunks.push(Vec::with_capacity(CHUNK));
            }
            let key = KeyId(self.end());
            self.chunks.last_mut().expect("one was added").push(entry);
            return key;
        }
        let key = KeyId(self.first_free);
        let place = self.entry_mut(key);
        if let Use::Free(next) = std::mem::replace(place, entry).state {
            self.first_free = next;
        }
        key
    }

    /// The number after the last entry.
    fn end(&self) -> u32 {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        u32::try_from(full + self.chunks.last().map_or(0, Vec::len)).unwrap_or(u32::MAX)
    }

    fn entry(&self, key: KeyId) -> &Entry {
        entry_of(&self.chunks, key.0)
    }

    fn entry_mut(&mut self, key: KeyId) -> &mut Entry {
        entry_mut_of(&mut self.chunks, key.0)
    }

    fn hash(&self, name: &[u8]) -> u64 {
        hash_of(&self.hasher, name)
    }
}

fn entry_of(chunks: &[Vec<Entry>], index: u32) -> &Entry {
    &chunks[index as usize / CHUNK][index as usize % CHUNK]
}

fn entry_mut_of(chunks: &mut [Vec<Entry>], index: u32) -> &mut Entry {
    &mut chunks[index as usize / CHUNK][index as usize % CHUNK]
}

fn hash_of(hasher: &RandomState, name: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name);
    hasher.finish()
}

impl Name {
    const SHORT: usize = 22;

    fn new(name: &[u8]) -> Self {
        match u8::try_from(name.len()) {
            Ok(length) if name.len() <= Name::SHORT => {
                let mut short = [0; Name::SHORT];
                short[..name.len()].copy_from_slice(name);
                Name::Short(length, short)
            }
            _ => Name::Long(name.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Name::Short(length, short) => &short[..usize::from(*length)],
            Name::Long(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_64_bytes() {
        assert_eq!(size_of::<Name>(), 24);
        assert_eq!(size_of::<Entry>(), 64);
    }
}
