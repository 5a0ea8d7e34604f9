//! What waiters wait for: a queue or a ledger.

use super::fast_path::{FastPath, Seen};
use super::panics::contained;
use super::units::UnitsError;
use crate::clock::Nanos;
use crate::limits::{Cost, Grant, Refusal};
use std::fmt;
use std::task::{Poll, Waker};

/// The number of an entry, in order of arrival. No number is used twice.
pub(crate) type Key = u64;

/// Why nothing is granted. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    Units(UnitsError),
    /// The cost of the kind with this index is above the burst. The second number is the burst.
    AboveBurst(usize, u64),
    /// The cost of the kind with this index is never granted.
    Never(usize),
    TooLong {
        wait: Nanos,
    },
    TimedOut {
        after: Nanos,
    },
    OthersWait,
    NoPlace,
    Full,
    Closed,
    NoTimer,
    TooManyKeys,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLong { wait } => Denied::TooLong { wait },
            Refusal::Never | Refusal::Busy | Refusal::GivenUp(_) => Denied::Never(0),
        }
    }
}

/// The actions after the lock is released: some wakers are woken, others are dropped. Both may run the caller's code.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) wake: Vec<Waker>,
    pub(crate) dropped: Vec<Waker>,
    /// Set by the caller if its grant is to be [opened](crate::limits::Account::open), so that it can be settled.
    pub(crate) opens: bool,
    /// The number of the caller's entry, which changes if the waiter waits again.
    pub(crate) key: Option<Key>,
    /// The grant, once the caller has it.
    pub(crate) granted: Option<Grant>,
}

impl Effects {
    pub(crate) fn run(self) {
        for waker in self.wake {
            contained(|| waker.wake());
        }
        for waker in self.dropped {
            contained(|| drop(waker));
        }
    }
}

/// The state behind the lock of a [`Shared`](super::shared::Shared): the queue of a limiter, or the ledger of keys.
pub(crate) trait Serve: fmt::Debug {
    /// Grants what is due at `now`, and times out waiters whose deadline has passed.
    fn advance(&mut self, now: Nanos, effects: &mut Effects);

    /// The time at which it must advance next.
    fn alarm(&self) -> Option<Nanos>;

    /// The number of futures and threads that wait.
    fn waiters(&self) -> usize;

    /// Wakes every waiter, so that it sets its timer.
    fn wake_all(&mut self, effects: &mut Effects);

    /// Returns the result of a waiter that is done, and removes its entry. Otherwise `waker` replaces its waker.
    fn poll(&mut self, now: Nanos, key: Key, waker: &Waker, effects: &mut Effects) -> Poll<Result<(), Denied>>;

    /// The time until which a waiting thread may sleep if it is the timer. `None` for other threads, which are woken.
    fn watch(&mut self, key: Key) -> Option<Nanos>;

    /// Whether the thread of this waiter is still the timer, and sleeps until that time.
    fn is_watched(&self, key: Key, until: Nanos) -> bool;

    /// Removes a waiter that was dropped. A grant that the waiter has not seen is given back.
    fn leave(&mut self, now: Nanos, key: Key, effects: &mut Effects);

    /// Settles an open grant of these costs at its real costs.
    fn settle(&mut self, now: Nanos, grant: &Grant, costs: [&Cost; 2], effects: &mut Effects);

    /// Like [`settle`](Self::settle), if nobody waits. Otherwise returns `false`, and changes nothing.
    fn settle_quietly(&mut self, _now: Nanos, _grant: &Grant, _costs: [&Cost; 2]) -> bool {
        false
    }

    /// Closes an open grant that will not be settled: its charge was its real cost.
    fn close_grant(&mut self, now: Nanos, grant: &Grant);

    /// Corrects the cost of a request that was granted without a charge, and cannot be settled.
    fn correct(&mut self, _now: Nanos, _costs: [&Cost; 2], _effects: &mut Effects) {}

    /// Whether this is a semaphore.
    fn has_places(&self) -> bool {
        false
    }

    /// Takes over the level of the fast path at `now`. Returns `false` if the fast path has granted anything since it was
    /// `seen`.
    fn close_fast_path(&mut self, _fast_path: &FastPath, _seen: Seen, _now: Nanos) -> bool {
        true
    }

    /// Takes over the places of the fast path.
    fn close_places(&mut self, _fast_path: &FastPath) {}

    /// Opens the fast path if it may grant in place of this.
    fn open_fast_path(&self, _fast_path: &FastPath) {}
}
