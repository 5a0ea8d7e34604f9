//! The small state of one limit. This is everything that is stored for each bucket, or for each key.

use super::reflection::Opened;
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
    /// It is boxed because 8 bytes are less than 40 in every bucket, which usually has none.
    rest: Option<Box<Rest>>,
}

/// The part of a state that a bucket without open grants does not need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Rest {
    /// The grants that a window counts; empty for a bucket.
    log: VecDeque<LogEntry>,
    /// The open grants of a bucket, if there are any.
    open: Option<Box<Opened>>,
}

/// Grants in the log of a window, all counted at the time of the latest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct LogEntry {
    pub(crate) at: Nanos,
    pub(crate) units: u64,
}

static EMPTY: VecDeque<LogEntry> = VecDeque::new();

impl State {
    /// The log of a window: oldest first; times never decrease.
    pub(crate) fn log(&self) -> &VecDeque<LogEntry> {
        self.rest.as_ref().map_or(&EMPTY, |rest| &rest.log)
    }

    pub(crate) fn log_mut(&mut self) -> &mut VecDeque<LogEntry> {
        &mut self.rest.get_or_insert_default().log
    }

    /// Whether this is a level alone: neither a log nor open grants.
    #[inline]
    pub(super) fn is_level(&self) -> bool {
        self.rest.is_none()
    }

    /// The open grants of a bucket.
    pub(super) fn open(&self) -> Option<&Opened> {
        self.rest.as_ref()?.open.as_deref()
    }

    #[inline]
    pub(super) fn open_mut(&mut self) -> Option<&mut Opened> {
        self.rest.as_mut()?.open.as_deref_mut()
    }

    /// The open grants of a bucket, in which a grant is about to be opened.
    pub(super) fn open_or_new(&mut self) -> &mut Opened {
        self.rest.get_or_insert_default().open.get_or_insert_default()
    }

    /// Closes a grant of a bucket: its cost is final. Frees memory if no open grant is left.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(open) = self.open_mut() {
            open.close(number);
            if open.is_empty() {
                self.rest = None;
            }
        }
    }

    /// The same state without open grants: all costs are final.
    pub(super) fn closed(&self) -> Self {
        if self.open().is_some() { State::from(self.level) } else { self.clone() }
    }
}

impl From<Level> for State {
    fn from(level: Level) -> Self {
        State { level, rest: None }
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
