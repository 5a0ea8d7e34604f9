//! What waits in the order, and how much.

use super::{Crowd, MEMORY, Order};
use crate::store::KeyId;

impl<T> Order<T> {
    /// How many units wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
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

    /// The units that wait.
    #[must_use]
    pub fn crowd(&self) -> Crowd {
        let most = self.busy.iter().max_by_key(|(key, busy)| (busy.units.len(), **key));
        let most = most.map(|(key, _)| self.keys.name(*key).into()).unwrap_or_default();
        Crowd { units: self.len(), keys: self.keys_waiting() as u64, most }
    }

    /// The name of a key; `(none)` for units without one.
    #[must_use]
    pub fn name(&self, key: KeyId) -> &[u8] {
        self.keys.name(key)
    }
}
