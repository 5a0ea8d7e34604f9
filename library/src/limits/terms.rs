//! One limit of any kind: its fixed numbers, and its answers for a state that the caller passes in.

use super::fill::Fill;
use super::policy::Resolved;
use super::state::State;
use super::{bucket, interval, window};
use crate::clock::Nanos;
use crate::rate::Rate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    Bucket(bucket::Terms),
    Window(window::Terms),
    Interval(interval::Terms),
}

use Terms::{Bucket, Interval, Window};

impl Terms {
    /// A limit of a policy in its initial state.
    pub(super) fn start(limit: &Resolved, now: Nanos) -> (Terms, State) {
        match *limit {
            Resolved::Bucket { rate, burst, initial } => {
                let terms = bucket::Terms::new(rate, burst);
                (Bucket(terms), State::from(terms.start(initial, now)))
            }
            Resolved::Window { rate, slack } => (Window(window::Terms::of(rate, slack)), State::new(0, now)),
        }
    }

    pub(super) fn conforms_at(&self, state: &State, now: Nanos, cost: u64) -> Option<Nanos> {
        match self {
            Bucket(terms) => terms.conforms_at(state.level, now, cost),
            Window(terms) => terms.room_at(state, now, cost),
            Interval(terms) => terms.conforms_at(state.level, now, cost),
        }
    }

    /// The time by which `units` more will have been granted if this were the only limit.
    pub(super) fn schedule(&self, state: &State, now: Nanos, units: u64) -> Option<Nanos> {
        match self {
            Window(terms) => terms.schedule(state, now, units),
            _ => self.conforms_at(state, now, units),
        }
    }

    /// Charges at `grant`. Windows count the cost from `counted` on, and drop entries that no longer count at `since`.
    pub(super) fn charge(&self, state: &mut State, [since, asked, grant, counted]: [Nanos; 4], cost: u64) {
        match self {
            Bucket(terms) => terms.charge(&mut state.level, asked, grant, cost),
            Interval(terms) => terms.charge(&mut state.level, asked, grant, cost),
            Window(terms) => terms.charge(state, since, counted, cost),
        }
    }

    pub(super) fn available(&self, state: &State, now: Nanos) -> u64 {
        match self {
            Bucket(terms) => u64::try_from(terms.balance(state.level, now).max(0)).unwrap_or(u64::MAX),
            Window(terms) => terms.available(state, now),
            Interval(terms) => terms.available(state.level, now),
        }
    }

    /// Whole units left; negative if units are owed.
    pub(super) fn left(&self, state: &State, now: Nanos) -> i128 {
        match self {
            Bucket(terms) => terms.balance(state.level, now),
            _ => self.available(state, now).into(),
        }
    }

    /// The most units at one instant.
    pub(super) fn most(&self) -> u64 {
        match self {
            Bucket(terms) => terms.burst(),
            Window(terms) => terms.count(),
            Interval(terms) => terms.max(),
        }
    }

    /// `None` for a window, which does not fill.
    pub(super) fn fill_time(&self) -> Option<Nanos> {
        Some(self.kind().ok()?.fill_time())
    }

    /// The time after which no past grant matters: the bucket is full, the window empty.
    pub(super) fn rest_time(&self) -> Nanos {
        match self {
            Window(terms) => terms.period(),
            _ => self.fill_time().unwrap_or(0),
        }
    }

    pub(super) fn at_rest(&self, state: &State, time: Nanos) -> bool {
        match self.kind() {
            Ok(bucket) => bucket.is_full(state.level, time),
            Err(window) => window.is_empty(state, time),
        }
    }

    pub(super) fn give_back(&self, state: &mut State, now: Nanos, [grant, counted]: [Nanos; 2], units: u64) {
        match self {
            // A cost above the burst left the bucket empty, not in debt, so at most the burst is credited.
            Bucket(terms) => terms.give_back(&mut state.level, now, grant, units.min(terms.burst())),
            Window(_) => window::Terms::give_back(state, counted, units),
            Interval(terms) => terms.give_back(&mut state.level, now, grant, units),
        }
    }

    /// Brings a bucket up to `now`.
    pub(super) fn settle(&self, state: &mut State, now: Nanos) {
        if let Ok(bucket) = self.kind() {
            bucket.settle(&mut state.level, now);
        }
    }

    /// Empties a bucket at `time`.
    pub(super) fn empty(&self, state: &mut State, time: Nanos) {
        if let Ok(bucket) = self.kind() {
            bucket.empty(&mut state.level, time);
        }
    }

    /// Drops what a bucket holds above its size at `now`.
    pub(super) fn spill(&self, state: &mut State, now: Nanos) {
        if let Ok(bucket) = self.kind() {
            bucket.spill(&mut state.level, now);
        }
    }

    /// No waiter is left for the rest of a refill.
    pub(super) fn overflow(&self, state: &mut State) {
        if let Interval(terms) = self {
            terms.spill(&mut state.level, 0); // At the time of the level.
        }
    }

    pub(super) fn pay(&self, state: &mut State, now: Nanos, units: u64) {
        match self.kind() {
            Ok(bucket) => bucket.pay(&mut state.level, now, units),
            Err(window) => window.pay(state, now, units),
        }
    }

    pub(super) fn credit(&self, state: &mut State, now: Nanos, units: u64) {
        match self.kind() {
            Ok(bucket) => bucket.credit(&mut state.level, now, units),
            Err(window) => window.credit(state, now, units),
        }
    }

    /// Either a bucket of any kind, or else a window.
    pub(super) fn kind(&self) -> Result<&dyn Fill, &window::Terms> {
        match self {
            Bucket(terms) => Ok(terms),
            Interval(terms) => Ok(terms),
            Window(terms) => Err(terms),
        }
    }

    pub(super) fn as_window(&self) -> Option<&window::Terms> {
        self.kind().err()
    }

    /// The same limit at another rate. Refills in intervals get a new grid, which begins at `now`, or at the last grant
    /// if that is later. The rate of a window cannot be changed.
    pub(super) fn with_rate(&self, state: &State, now: Nanos, rate: Rate) -> Terms {
        match *self {
            Bucket(terms) => Bucket(terms.with_rate(rate)),
            Window(_) => *self,
            Interval(terms) => Interval(terms.with_rate(rate.window().0, rate.window().1, now.max(state.level.at))),
        }
    }

    pub(super) fn with_burst(&self, burst: u64) -> Terms {
        match *self {
            Bucket(terms) => Bucket(terms.with_burst(burst)),
            Window(_) => *self,
            Interval(terms) => Interval(terms.with_max(burst)),
        }
    }

    /// Continues as `to`, a limit of the same kind, from `now`. Saved credit and counts are kept.
    pub(super) fn change(&self, state: &mut State, now: Nanos, to: &Terms) {
        match (self, to) {
            (Bucket(from), Bucket(to)) => from.change(&mut state.level, now, to),
            (Interval(from), Interval(_)) => from.settle(&mut state.level, now),
            _ => {}
        }
    }

    pub(super) fn is_like(&self, other: &Terms) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}
