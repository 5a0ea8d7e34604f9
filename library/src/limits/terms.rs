//! One limit of any kind: its fixed numbers, and functions of a state that the caller passes in.

use super::policy::Resolved;
use super::reflection::Opened;
use super::state::State;
use super::{bucket, window};
use crate::clock::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    Bucket(bucket::Terms),
    Window(window::Terms),
}

use Terms::{Bucket, Window};

impl Terms {
    /// A limit of a policy in its initial state.
    pub(super) fn start(limit: &Resolved, now: Nanos) -> (Terms, State) {
        match *limit {
            Resolved::Bucket { rate, burst, initial } => {
                let terms = bucket::Terms::new(rate, burst);
                (Bucket(terms), State::from(terms.start(initial, now)))
            }
            Resolved::Window { rate, used, slack } => {
                let terms = window::Terms::new(rate, slack);
                (Window(terms), terms.start(used, now))
            }
        }
    }

    /// The bucket, if this limit is a bucket without a grid.
    #[inline]
    pub(super) fn as_usual_bucket(&self) -> Option<&bucket::Terms> {
        if let Bucket(bucket) = self { Some(bucket).filter(|bucket| !bucket.is_on_grid) } else { None }
    }

    pub(super) fn conforms_at(&self, state: &State, now: Nanos, cost: u64) -> Option<Nanos> {
        match self {
            Bucket(bucket) => bucket.conforms_at(state.level, now, cost),
            Window(window) => window.room_at(state, now, cost),
        }
    }

    /// The time by which `units` more will have been granted if this were the only limit.
    pub(super) fn schedule(&self, state: &State, now: Nanos, units: u64) -> Option<Nanos> {
        match self {
            Bucket(bucket) => bucket.conforms_at(state.level, now, units),
            Window(window) => window.schedule(state, now, units),
        }
    }

    /// Charges at `grant`. Windows count the cost from `counted` on, and drop entries that no longer count at `since`.
    pub(super) fn charge(&self, state: &mut State, [since, requested, grant, counted]: [Nanos; 4], cost: u64) {
        match self {
            Bucket(bucket) => bucket.charge(state, requested, grant, cost),
            Window(window) => window.charge(state, since, counted, cost),
        }
    }

    pub(super) fn available(&self, state: &State, now: Nanos) -> u64 {
        u64::try_from(self.left(state, now).max(0)).unwrap_or(u64::MAX)
    }

    /// Whole units left; negative if units are owed.
    pub(super) fn left(&self, state: &State, now: Nanos) -> i128 {
        match self {
            Bucket(bucket) => bucket.balance(state.level, now),
            Window(window) => window.available(state, now).into(),
        }
    }

    /// The most units at one instant.
    pub(super) fn most(&self) -> u64 {
        match self {
            Bucket(bucket) => bucket.burst(),
            Window(window) => window.count(),
        }
    }

    /// The time in which an empty bucket fills. `None` for a window, which does not fill.
    pub(super) fn fill_time(&self) -> Option<Nanos> {
        if let Bucket(bucket) = self { Some(bucket.fill_time()) } else { None }
    }

    /// How late a grant may be used. `None` for a window, which counts a unit from its departure.
    pub(super) fn allowance(&self) -> Option<Nanos> {
        if let Bucket(bucket) = self { Some(bucket.allowance()) } else { None }
    }

    /// The time after which no past grant matters: the bucket is full, the window empty.
    pub(super) fn rest_time(&self) -> Nanos {
        match self {
            Bucket(bucket) => bucket.fill_time(),
            Window(window) => window.period(),
        }
    }

    pub(super) fn at_rest(&self, state: &State, time: Nanos) -> bool {
        match self {
            Bucket(bucket) => bucket.is_full(state.level, time),
            Window(window) => window.is_empty(state, time),
        }
    }

    pub(super) fn pay(&self, state: &mut State, now: Nanos, units: u64) {
        match self {
            Bucket(bucket) => bucket.pay(state, now, units),
            Window(window) => window.pay(state, now, units),
        }
    }

    pub(super) fn credit(&self, state: &mut State, now: Nanos, units: u64) {
        match self {
            Bucket(bucket) => bucket.credit(state, now, units),
            Window(window) => window.credit(state, now, units),
        }
    }

    /// Whether a state that was read is possible for this limit. Only a window has a log, and its amount is the sum of
    /// the log. Only a bucket has open grants.
    pub(super) fn has_sense(&self, state: &State) -> bool {
        let sum = state.log().iter().fold(0_i128, |sum, entry| sum.saturating_add(entry.units.into()));
        match self {
            Window(_) => {
                let is_sorted = state.log().iter().is_sorted_by_key(|entry| entry.at);
                state.open().is_none() && state.level.amount == sum && is_sorted
            }
            Bucket(_) => state.log().is_empty() && state.open().is_none_or(Opened::has_sense),
        }
    }

    pub(super) fn as_window(&self) -> Option<&window::Terms> {
        if let Window(window) = self { Some(window) } else { None }
    }
}
