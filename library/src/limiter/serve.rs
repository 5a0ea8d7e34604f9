//! What waiters wait for: a queue or a ledger behind its lock.

use super::fast_path::{FastPath, Seen};
use super::queue::{Denied, Effects, Key};
use super::shared::Shared;
use super::time::Time;
use crate::clock::Nanos;
use crate::limits::{Cost, Grant};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::task::{Poll, Waker};

/// The state behind the lock of a [`Shared`]: the queue of a limiter, or the ledger of keys.
pub(crate) trait Serve: fmt::Debug + Sized {
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
    fn settle(shared: &Shared<Self>, grant: &Grant, costs: [&Cost; 2]);

    /// Closes an open grant that will not be settled: its charge was its real cost.
    fn forget(shared: &Shared<Self>, grant: &Grant, kinds: usize);

    /// Corrects the cost of a request that was granted without a charge.
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

/// A [`Shared`] of any state, for those that wait for it or hold its grants.
pub(crate) trait Waitable: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    fn time(&self) -> &Time;

    /// Makes sure that a timer will wake the future that is being polled.
    ///
    /// # Errors
    /// [`Denied::NoTimer`]
    fn want_timer(&self) -> Result<(), Denied>;

    /// See [`Serve::poll`]. The result is passed on under the lock, because the timer is set after that and may panic.
    fn look(&self, key: Key, waker: &Waker, pass_on: &mut dyn FnMut(Looked));

    fn is_watched(&self, key: Key, until: Nanos) -> bool;

    fn leave(&self, key: Key);

    fn settle(&self, grant: &Grant, costs: [&Cost; 2]);

    fn forget(&self, grant: &Grant, kinds: usize);

    fn correct(&self, costs: [&Cost; 2]);
}

/// What a waiter finds.
pub(crate) struct Looked {
    pub(super) polled: Poll<Result<(), Denied>>,
    /// The number of its entry.
    pub(super) key: Key,
    pub(super) granted: Option<Grant>,
    /// The time until which its thread may sleep if it is the timer, and how long that is.
    pub(super) until: Option<(Nanos, Nanos)>,
}

impl<Q: Serve + Send> Waitable for Shared<Q> {
    fn time(&self) -> &Time {
        &self.time
    }

    fn want_timer(&self) -> Result<(), Denied> {
        Shared::want_timer(self)
    }

    fn look(&self, key: Key, waker: &Waker, pass_on: &mut dyn FnMut(Looked)) {
        self.with(|queue, now, effects| {
            let polled = queue.poll(now, key, waker, effects);
            let key = effects.key.unwrap_or(key);
            let until = queue.watch(key).map(|until| (until, until.saturating_sub(now)));
            pass_on(Looked { polled, key, granted: effects.granted.take(), until });
        });
    }

    fn is_watched(&self, key: Key, until: Nanos) -> bool {
        self.see(|queue| queue.is_watched(key, until))
    }

    fn leave(&self, key: Key) {
        self.with(|queue, now, effects| queue.leave(now, key, effects));
    }

    fn settle(&self, grant: &Grant, costs: [&Cost; 2]) {
        Q::settle(self, grant, costs);
    }

    fn forget(&self, grant: &Grant, kinds: usize) {
        Q::forget(self, grant, kinds);
    }

    fn correct(&self, costs: [&Cost; 2]) {
        self.with(|queue, now, effects| queue.correct(now, costs, effects));
    }
}
