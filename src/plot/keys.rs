//! The keys of all attempts, in at most 60 MiB.

use super::entry::{Attempt, Verdict};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The most bytes of a key's JSON that are stored.
const MAX_NAME_BYTES: usize = 100;

/// The most keys in the tables. With more than 917 504 keys, the map would take twice the memory.
const MAX_KEYS: usize = 900_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// The end of its name in `names`. The name begins at the end of the name before.
    end: u32,
    pub(super) attempts: u32,
    pub(super) refused: u32,
    pub(super) failed: u32,
}

#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The indexes of keys, by hashes.
    places: HashMap<u64, u32>,
    hasher: RandomState,
    names: String,
    all: Vec<Key>,
    /// The number of attempts with a key beyond the first `MAX_KEYS` keys.
    pub(super) left_out: u64,
}

impl Keys {
    /// The index for an attempt without a key.
    pub(super) const NONE: u32 = u32::MAX;

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Counts an attempt of the key with this JSON, and returns the key's index.
    pub(super) fn count(&mut self, json: &str, attempt: &Attempt<'_>) -> u32 {
        let hash = self.hasher.hash_one(json);
        let place = self.places.get(&hash).copied().unwrap_or_else(|| {
            if self.all.len() >= MAX_KEYS {
                self.left_out += 1;
                return Self::NONE;
            }
            let end =
                (0..=MAX_NAME_BYTES.min(json.len())).rev().find(|end| json.is_char_boundary(*end)).unwrap_or_default();
            self.names.push_str(&json[..end]);
            let end = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
            self.all.push(Key { end, attempts: 0, refused: 0, failed: 0 });
            let place = u32::try_from(self.all.len() - 1).unwrap_or_default();
            self.places.insert(hash, place);
            place
        });
        if let Some(key) = self.all.get_mut(place as usize) {
            key.attempts += 1;
            key.refused += u32::from(attempt.verdict == Verdict::Later);
            key.failed += u32::from(attempt.verdict == Verdict::Failed);
        }
        place
    }

    /// The indexes of the `count` keys with the highest `value`, without keys whose value is 0.
    pub(super) fn top(&self, count: usize, value: impl Fn(&Key) -> u32) -> Vec<u32> {
        let mut top: Vec<(i64, i64)> = Vec::new();
        for (place, value) in (0..).zip(self.all.iter().map(value)).filter(|(_, value)| *value > 0) {
            top.push((-i64::from(value), place));
            if top.len() >= 100 * count {
                top.sort_unstable();
                top.truncate(count);
            }
        }
        top.sort_unstable();
        top.iter().take(count).filter_map(|(_, place)| (*place).try_into().ok()).collect()
    }

    /// The key at this index, and its name as JSON, which may lack its end.
    pub(super) fn get(&self, place: u32) -> Option<(&str, &Key)> {
        let key = self.all.get(place as usize)?;
        let start = place.checked_sub(1).map_or(0, |before| self.all[before as usize].end);
        Some((self.names.get(start as usize..key.end as usize)?, key))
    }
}
