//! The small state of one limit. This is everything that is stored for each bucket, or for each key.

use crate::clock::Nanos;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// An amount at a time: a bucket's credit, the units of a bucket on a grid, or the units in a window's log. A negative
/// amount is a debt: units used without a grant, or the part of a real cost above the charge.
///
/// The time is the time of the latest grant; it is in the future if the grant is a reservation. The struct is packed
/// because 16-byte alignment would cost each bucket 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
#[repr(Rust, packed(8))]
pub(crate) struct Level {
    pub(crate) amount: i128,
    pub(crate) at: Nanos,
}

/// The state of a bucket for its fast path, in credits: see `bucket.rs`. A credit of a bucket on a grid is a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaining {
    /// Credits gained at the end of each interval. The first interval begins at `start`.
    pub(crate) gain: u64,
    /// The interval, in nanoseconds.
    pub(crate) interval: u64,
    pub(crate) start: Nanos,
    /// Credits that a unit costs.
    pub(crate) price: u64,
    /// Credits in a full bucket.
    pub(crate) full: u128,
    /// Credits missing to a full bucket at `at`.
    pub(crate) missing: u128,
    pub(crate) at: Nanos,
}

/// The state of one limit of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct State {
    pub(crate) level: Level,
    /// The grants that a window counts; `None` for other limits.
    #[allow(clippy::box_collection, reason = "8 bytes instead of 32 in every bucket, which has none")]
    log: Option<Box<VecDeque<Entry>>>,
}

/// Grants in the log of a window, all counted at the time of the latest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct Entry {
    pub(crate) at: Nanos,
    pub(crate) units: u64,
}

static EMPTY: VecDeque<Entry> = VecDeque::new();

impl State {
    /// The log of a window: oldest first; times never decrease.
    pub(crate) fn log(&self) -> &VecDeque<Entry> {
        self.log.as_deref().unwrap_or(&EMPTY)
    }

    /// The times in the log.
    #[cfg(feature = "shared")]
    pub(super) fn times_mut(&mut self) -> impl Iterator<Item = &mut Nanos> {
        self.log.iter_mut().flat_map(|log| log.iter_mut()).map(|entry| &mut entry.at)
    }

    pub(crate) fn log_mut(&mut self) -> &mut VecDeque<Entry> {
        self.log.get_or_insert_default()
    }
}

impl From<Level> for State {
    fn from(level: Level) -> Self {
        State { level, log: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_takes_24_bytes_and_any_limit_32() {
        assert_eq!(size_of::<Level>(), 24);
        assert_eq!(size_of::<State>(), 32);
    }
}
