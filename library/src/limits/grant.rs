//! A grant, and the reasons for a refusal.

use crate::clock::{Nanos, SECOND, shown_wait};
use std::num::NonZeroU32;

/// The time between two polls of a process that waits for a shared bucket: its grant may have an earlier time then. A
/// grant whose wait has at least this length can move up to an earlier time. While others wait, a grant with a shorter
/// wait can also move up.
pub(crate) const LOOK: Nanos = SECOND;

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
    /// Whether the grant is an entry of the ledger, which can move up to an earlier time.
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

/// The time until the next poll of a waiter whose grant is `wait` away. Without `open` it is the whole wait. See
/// [`next_look`](Grant::next_look).
pub(crate) fn between_looks(wait: Nanos, open: Option<Nanos>) -> Nanos {
    open.map_or(wait, |learns| wait.min((wait / 8).max(learns / 2)))
}

impl Grant {
    /// A grant with these values.
    pub(crate) fn computed(at: Nanos, units: u64, bound_by: Option<usize>, number: u64) -> Self {
        Grant { at, units, bound_by, number, counted: at, is_entry: false }
    }

    /// Whether the wait for this grant is long enough for the grant to move up to an earlier time.
    #[must_use]
    pub fn is_entry(&self) -> bool {
        self.is_entry
    }

    /// The same grant at another time.
    pub(crate) fn moved_to(self, at: Nanos) -> Self {
        Grant { at, counted: at, ..self }
    }

    /// When the owner polls for an earlier time; `None` if the wait is short. `open` comes from its
    /// [request](super::Take::open). A grant that will be settled may move up at any time, so its owner polls more
    /// often.
    pub(crate) fn next_look(&self, now: Nanos, open: Option<Nanos>) -> Option<Nanos> {
        let wait = self.at.saturating_sub(now);
        let between = if open.is_some() || self.is_entry { between_looks(LOOK.min(wait), open) } else { wait };
        (wait > between).then(|| now.saturating_add(between))
    }

    /// The same grant, counted by windows from `now` on.
    pub(crate) fn counted_from(self, now: Nanos) -> Self {
        Grant { counted: now, ..self }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MILLISECOND;

    /// What is settled may move others up at any time; without that only a long wait may end early.
    #[test]
    fn who_may_move_up_polls_now_and_then() {
        let between = |wait, open| between_looks(wait, open);
        assert_eq!(between(800, None), 800);
        assert_eq!([10, 1000, 9000].map(|learns| between(800, Some(learns))), [100, 500, 800]);
        let grant = Grant::computed(10 * SECOND, 1, None, 1);
        let entry = Grant { is_entry: true, ..grant };
        assert!(entry.is_entry() && !grant.is_entry());
        let looks = |grant: Grant, now| [None, Some(MILLISECOND)].map(|open| grant.next_look(now, open));
        assert_eq!(looks(grant, 2 * SECOND), [None, Some(2125 * MILLISECOND)]);
        assert_eq!(looks(entry, 2 * SECOND), [Some(3 * SECOND), Some(2125 * MILLISECOND)]);
        assert_eq!(looks(entry, 10 * SECOND), [None; 2]);
        assert_eq!(grant.moved_to(SECOND), Grant::computed(SECOND, 1, None, 1));
    }
}
