//! A grant, or why there is none.

use crate::clock::{Nanos, SECOND, shown_wait};
use std::num::NonZeroU32;

/// A process that waits for a shared bucket looks this often whether its time is nearer. A wait of this length can move up; a
/// shorter one can too, while others wait.
pub(crate) const LOOK: Nanos = SECOND;

/// A grant: these units may leave at `at` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a grant is charged whether or not it is used"]
pub struct Grant {
    /// The time of the grant, in nanoseconds of the clock that the request was made on.
    pub at: Nanos,
    /// How many units. If the limits were charged different costs: the largest of them.
    pub units: u64,
    /// The index of the limit that caused the wait; `None` if there is no wait.
    pub bound_by: Option<usize>,
    pub(super) number: u64,
    /// Windows count the grant from this time: `at`, or later if it was handed over later.
    pub(crate) counted: Nanos,
    /// Whether it waits in a line, in which it can move up.
    pub(super) is_entry: bool,
}

/// Why a request is refused. A refusal charges nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The wait would be longer than allowed.
    TooLong {
        /// How long the wait would be, in nanoseconds.
        wait: Nanos,
    },
    /// It can never be granted: the cost is above a window's count, or the time is beyond the end of the clock.
    Never,
    /// As many commands run as may at once.
    Busy,
    /// So many commands of the key have failed in a row that the others are not tried.
    GivenUp(NonZeroU32),
}

messages! {
    Refusal {
        Refusal::TooLong { wait } => ("would have to wait {}", shown_wait(*wait)),
        Refusal::Never => ("more than the limit will ever grant"),
        Refusal::Busy => ("as many commands run as may at once"),
        Refusal::GivenUp(failed) => ("{failed} commands of the key have failed in a row"),
    }
}

impl Grant {
    /// A grant that was computed elsewhere.
    pub(crate) fn computed(at: Nanos, units: u64, bound_by: Option<usize>, number: u64) -> Self {
        Grant { at, units, bound_by, number, counted: at, is_entry: false }
    }

    /// The same grant under another number. No grant has the number 0.
    pub(crate) fn numbered(self, number: u64) -> Self {
        Grant { number, ..self }
    }

    /// The same grant, if it is an entry in a line.
    pub(crate) fn entry(self, is_entry: bool) -> Self {
        Grant { is_entry, ..self }
    }

    /// Whether its wait is so long that it can move up.
    #[must_use]
    pub fn is_entry(&self) -> bool {
        self.is_entry
    }

    /// The same grant at another time.
    pub(crate) fn moved_to(self, at: Nanos) -> Self {
        Grant { at, counted: at, ..self }
    }

    /// When to ask again whether the grant has moved up. `None` if its wait is short.
    pub(crate) fn next_look(&self, now: Nanos) -> Option<Nanos> {
        let look = now.saturating_add(LOOK);
        (self.is_entry && self.at > look).then_some(look)
    }

    /// The same grant, counted by windows from `now` on.
    pub(crate) fn counted_from(self, now: Nanos) -> Self {
        Grant { counted: now, ..self }
    }

    /// Identifies this grant among the grants of its limits.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}
