//! The thin state of one limit: all that is kept of it for each bucket, or for each key.

use crate::clock::Nanos;
use std::collections::VecDeque;

/// An amount at a time: a bucket's credit, the units of a bucket that fills in intervals, or what a window has logged. Less
/// than nothing is a debt: what was used without a grant and is not paid yet. Only a queue, which is never saved, has debts.
///
/// The time is the latest grant's; it lies ahead if that was reserved ahead. Packed, as 16-byte alignment would cost
/// each bucket 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub(crate) struct Level {
    pub(crate) amount: i128,
    pub(crate) at: Nanos,
}

/// The state of one limit of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) level: Level,
    /// The grants that a window counts. No other limit has one.
    #[allow(clippy::box_collection, reason = "8 bytes instead of 32 in every bucket, which has none")]
    log: Option<Box<VecDeque<Entry>>>,
}

/// Grants in the log of a window, counted at the time of the latest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: Nanos,
    pub(crate) units: u64,
}

static EMPTY: VecDeque<Entry> = VecDeque::new();

impl State {
    pub(crate) fn new(amount: i128, at: Nanos) -> Self {
        State { level: Level { amount, at }, log: None }
    }

    /// The log of a window: oldest first; times never fall.
    pub(crate) fn log(&self) -> &VecDeque<Entry> {
        self.log.as_deref().unwrap_or(&EMPTY)
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
