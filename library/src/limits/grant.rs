//! A grant, and the reasons for a refusal.

use crate::clock::{Nanos, shown_wait};
use std::num::NonZeroU32;

/// A grant: these units may leave at `at` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a grant is charged whether or not it is used"]
pub struct Grant {
    /// The time of the grant, in nanoseconds on the clock of its request.
    pub at: Nanos,
    /// The number of units. If the limits were charged different costs, this is the largest of them.
    pub units: u64,
    /// The index of the limit that caused the wait; `None` if there is no wait.
    pub bound_by: Option<usize>,
    /// Identifies the grant among the grants of its limits; 0 if nothing was charged.
    pub(super) number: u64,
    /// Windows count the grant from this time: `at`, or later if its unit left later.
    pub(crate) counted: Nanos,
}

/// When a unit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The earliest time at which all limits conformed, but not longer ago than the lag allowance.
    pub at: Nanos,
    /// Windows count the unit from this time: when it left.
    pub counted: Nanos,
    /// The number of the grant; numbers of grants that may be settled increase.
    pub number: u64,
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
    /// The job limit is reached.
    Busy,
    /// This many commands of the key have failed in a row, so its other units are not tried.
    GivenUp(NonZeroU32),
}

messages! {
    Refusal {
        Refusal::TooLong { wait } => ("would have to wait {}", shown_wait(*wait)),
        Refusal::Never => ("more than the limit will ever grant"),
        Refusal::Busy => ("the job limit is reached"),
        Refusal::GivenUp(failed) => ("{failed} commands of the key have failed in a row"),
    }
}

impl Grant {
    /// A grant with these values.
    pub(crate) fn computed(at: Nanos, units: u64, bound_by: Option<usize>, number: u64) -> Self {
        Grant { at, units, bound_by, number, counted: at }
    }

    /// The same grant, counted by windows from `now` on.
    pub(crate) fn counted_from(self, now: Nanos) -> Self {
        Grant { counted: now, ..self }
    }

    /// A grant of these units that a ledger has charged.
    pub(crate) fn charged_as(charged: Charged, units: u64) -> Self {
        Grant { counted: charged.counted, ..Grant::computed(charged.at, units, None, charged.number) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn charged(&self) -> Charged {
        Charged { at: self.at, counted: self.counted, number: self.number }
    }
}
