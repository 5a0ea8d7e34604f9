//! Several limits as one question: the least time at which all of them conform; and all are charged at that time.
//!
//! Every limit, once it conforms, goes on conforming until something is granted. So the least common time is simply the
//! latest of the limits' own least times.

use crate::bucket::Bucket;
use crate::clock::{MILLISECOND, Nanos, shown_wait, shrink};
use crate::grid::Grid;
use crate::rate::Rate;
use crate::window::Window;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use thiserror::Error;

mod agree;
mod kinds;
mod plan;
mod saved;
mod waiting;

pub use agree::Disagreement;
use kinds::Kinds;
pub(crate) use plan::Resolved;
pub use plan::{Plan, PlanError};

/// The state of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Bucket(Bucket),
    Window(Window),
    Grid(Grid),
}

/// Any number of limits that grant together or not at all; with none, everything is granted at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    states: Vec<State>,
    kinds: Kinds,
    quantum: u64,
    /// The latest time at which something was taken, given back or changed. Who reads less has read it out of order.
    asked: Nanos,
    /// The latest time given. Nothing is granted before it.
    at: Nanos,
    /// The latest time given before that, to take the last grant back.
    before: Nanos,
    /// Counts the grants, so that the last one can be told.
    grants: u64,
    /// The grant that can be taken back: the last, or the one before it when that was.
    last: u64,
    /// Those before it that can be taken back after it. `None` where the state is saved, which has no place for them.
    earlier: Option<VecDeque<Earlier>>,
}

/// A grant before the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Earlier {
    number: u64,
    at: Nanos,
    /// The latest time given before it.
    before: Nanos,
}

/// A time that was given: units that may leave at `at` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a grant is charged whether or not it is used"]
pub struct Grant {
    /// When, in nanoseconds of the clock that the request was made on.
    pub at: Nanos,
    /// How many units.
    pub units: u64,
    /// The limit that made it wait, by its place; `None` if none did.
    pub bound_by: Option<usize>,
    number: u64,
    /// Tells the limits that it was charged to from those that took their place; 0 where none can.
    generation: u64,
    /// Windows count it from here on: `at`, or later where it was handed over later.
    counted: Nanos,
}

/// Why something is not granted. A refusal charges nothing.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// It would have to wait longer than was allowed.
    #[error("would have to wait {}", shown_wait(*.wait))]
    TooLong {
        /// How long it would take, in nanoseconds.
        wait: Nanos,
    },
    /// No time will ever do: the cost is above a window's count, or the clock ends before.
    #[error("more than the limit will ever grant")]
    Never,
}

impl Grant {
    /// A grant that was reckoned elsewhere.
    pub(crate) fn told(at: Nanos, units: u64, bound_by: Option<usize>, number: u64) -> Self {
        Grant { at, units, bound_by, number, generation: 0, counted: at }
    }

    /// The same, charged to limits of that generation.
    pub(crate) fn of(self, generation: u64) -> Self {
        Grant { generation, ..self }
    }

    /// The same, counted by windows from `now` on.
    pub(crate) fn counted_from(self, now: Nanos) -> Self {
        Grant { counted: now, ..self }
    }

    /// See [`of`](Self::of).
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Tells this grant among those of its limits.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Limits {
    /// Takes limits as [`Plan`] resolved them, at `now`, in their initial state.
    #[must_use]
    pub fn new(plan: &Plan, now: Nanos) -> Self {
        let states: Vec<State> = plan.limits().iter().map(|limit| State::new(limit, now)).collect();
        let quantum = states.iter().zip(plan.limits()).map(|(state, limit)| quantum(state, limit.rate())).min();
        Limits { states, quantum: quantum.unwrap_or(u64::MAX), earlier: None, ..Limits::none(now) }
    }

    /// The least time, not before `now` nor before the last grant, at which every limit conforms to `cost` units, and the
    /// place of the limit that decided, if one did.
    ///
    /// # Errors
    /// [`Refusal::Never`].
    pub fn conforms_at(&self, now: Nanos, cost: u64) -> Result<(Nanos, Option<usize>), Refusal> {
        let now = self.in_order(now);
        let mut latest = (now.max(self.at), None);
        if cost == 0 {
            return Ok(latest);
        }
        for (place, state) in self.states.iter().enumerate() {
            let cost = self.kinds.part(place, cost);
            if cost == 0 {
                continue;
            }
            let time = state.conforms_at(now, cost).ok_or(Refusal::Never)?;
            if time > latest.0 {
                latest = (time, Some(place));
            }
        }
        Ok(latest)
    }

    /// Grants `cost` units at the least time at which every limit conforms: a reservation, where that lies ahead.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take(&mut self, now: Nanos, cost: u64) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(now, cost)?;
        Ok(self.charge(now, at, cost, bound_by))
    }

    /// As [`take`](Self::take), if that means waiting no longer than `max_wait` nanoseconds; 0 is to try.
    ///
    /// # Errors
    /// [`Refusal::TooLong`] says how long it would take; nothing is charged then.
    pub fn take_within(&mut self, now: Nanos, cost: u64, max_wait: Nanos) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(now, cost)?;
        let wait = at - self.in_order(now);
        if wait > max_wait {
            return Err(Refusal::TooLong { wait });
        }
        Ok(self.charge(now, at, cost, bound_by))
    }

    /// Grants a run of the `waiting` units: all that conform now, if those are all or at least a
    /// [quantum](Self::quantum); otherwise a quantum at its time.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take_run(&mut self, now: Nanos, waiting: u64) -> Result<Grant, Refusal> {
        let least = waiting.min(self.quantum);
        let ready = self.available(now).min(waiting);
        self.take(now, ready.max(least))
    }

    /// The run below which it is not worth waking up: the smallest burst or window, and at most 1 ms of the slowest rate.
    #[must_use]
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// Whole units that could be taken at `now`; none while a time given lies ahead.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        let now = self.in_order(now);
        if now < self.at {
            return 0;
        }
        self.states.iter().map(|state| state.available(now)).min().unwrap_or(u64::MAX)
    }

    /// The latest time given.
    #[must_use]
    pub fn latest(&self) -> Nanos {
        self.at
    }

    /// The time by which `units` more will have been granted to someone who always asks: the latest of what each limit
    /// alone would need. `None` beyond the end of the clock.
    #[must_use]
    pub fn schedule(&self, now: Nanos, units: u64) -> Option<Nanos> {
        let now = self.in_order(now).max(self.at);
        let mut times = self.states.iter().map(|state| match state {
            State::Bucket(bucket) => bucket.conforms_at(now, units),
            State::Window(window) => window.schedule(now, units),
            State::Grid(grid) => grid.conforms_at(now, units),
        });
        times.try_fold(now, |latest, time| Some(latest.max(time?)))
    }

    /// Gives back a grant that is not used.
    ///
    /// The last one is undone while its time still lies ahead; after it, in the queue of a limiter, the one before it, and
    /// so on. Otherwise nothing is given back while a time given to another lies ahead: nobody is moved.
    /// Once none does, the units are credited, less what the limits gained since.
    ///
    /// A grant is given back once, which is for its holder to see to: credited grants are not remembered.
    pub fn give_back(&mut self, now: Nanos, grant: &Grant) {
        let now = self.in_order(now);
        if grant.units == 0 {
            return; // It has no number of its own, but the last one's.
        }
        if grant.number == self.last && now < grant.at {
            self.undo();
        } else if now >= self.at && now >= grant.at {
            // A time given that lies ahead, though it is later than the latest: that grant was undone before.
            (self.asked, self.at) = (now, now);
            for (place, state) in self.states.iter_mut().enumerate() {
                state.give_back(now, grant, self.kinds.part(place, grant.units));
            }
        }
    }

    /// Changes the rate of the bucket at `place` from `now` on. A time given stays; what was saved stays.
    ///
    /// Nothing happens where there is no bucket.
    pub fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate) {
        self.asked = self.asked.max(now);
        match self.states.get_mut(place) {
            Some(State::Bucket(bucket)) => bucket.set_rate(self.asked, rate),
            Some(State::Grid(grid)) => grid.set_rate(self.asked, rate.window().0, rate.window().1),
            _ => {}
        }
    }

    /// Changes the size of the bucket at `place` from `now` on, without filling it.
    ///
    /// Nothing happens where there is no bucket.
    pub fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64) {
        self.asked = self.asked.max(now);
        match self.states.get_mut(place) {
            Some(State::Bucket(bucket)) => bucket.set_burst(self.asked, burst),
            Some(State::Grid(grid)) => grid.set_max(self.asked, burst.get()),
            _ => {}
        }
    }

    /// Takes back the last grant, as if it had never been.
    fn undo(&mut self) {
        self.grants += 1; // No grant has this number: an undone grant is undone once.
        self.at = self.before;
        self.states.iter_mut().for_each(State::undo);
        let next = self.earlier.as_mut().and_then(VecDeque::pop_back);
        self.earlier.iter_mut().for_each(shrink);
        (self.last, self.before) = next.map_or((self.grants, self.before), |next| (next.number, next.before));
    }

    fn charge(&mut self, asked: Nanos, at: Nanos, units: u64, bound_by: Option<usize>) -> Grant {
        self.charge_and_count(asked, at, at, units, bound_by)
    }

    /// As [`charge`](Self::charge), but windows count it from `counted` on, which is not before `at`.
    fn charge_and_count(
        &mut self,
        asked: Nanos,
        at: Nanos,
        counted: Nanos,
        units: u64,
        bound_by: Option<usize>,
    ) -> Grant {
        if units > 0 {
            self.asked = self.in_order(asked);
            for (place, state) in self.states.iter_mut().enumerate() {
                state.charge(self.asked, at, counted, self.kinds.part(place, units));
            }
            self.grants += 1;
            (self.last, self.before, self.at) = (self.grants, self.at, at);
        }
        Grant { counted, ..Grant::told(at, units, bound_by, self.grants) }
    }

    /// Time that was read before, but comes after, is as good as what came before it.
    fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.asked)
    }
}

impl State {
    fn new(limit: &plan::Resolved, now: Nanos) -> Self {
        match *limit {
            plan::Resolved::Bucket { rate, burst, initial } => State::Bucket(Bucket::new(rate, burst, initial, now)),
            plan::Resolved::Window(rate) => {
                let (count, period) = rate.window();
                State::Window(Window::new(count, period, now))
            }
        }
    }

    fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        match self {
            State::Bucket(bucket) => bucket.conforms_at(now, cost),
            State::Window(window) => window.room_at(now, cost),
            State::Grid(grid) => grid.conforms_at(now, cost),
        }
    }

    fn charge(&mut self, asked: Nanos, grant: Nanos, counted: Nanos, cost: u64) {
        match self {
            State::Bucket(bucket) => bucket.charge(asked, grant, cost),
            State::Window(window) => window.charge(counted, cost),
            State::Grid(grid) => grid.charge(asked, grant, cost),
        }
    }

    fn available(&self, now: Nanos) -> u64 {
        match self {
            State::Bucket(bucket) => u64::try_from(bucket.balance(now).max(0)).unwrap_or(u64::MAX),
            State::Window(window) => window.available(now),
            State::Grid(grid) => grid.available(now),
        }
    }

    /// The most units at one instant.
    fn most(&self) -> u64 {
        match self {
            State::Bucket(bucket) => bucket.burst(),
            State::Window(window) => window.count(),
            State::Grid(grid) => grid.max(),
        }
    }

    fn undo(&mut self) {
        match self {
            State::Bucket(bucket) => bucket.undo(),
            State::Window(window) => window.undo(),
            State::Grid(grid) => grid.undo(),
        }
    }

    fn keep(&mut self) {
        match self {
            State::Bucket(bucket) => bucket.keep(),
            State::Window(window) => window.keep(),
            State::Grid(grid) => grid.keep(),
        }
    }

    fn release(&mut self) {
        match self {
            State::Bucket(bucket) => bucket.release(),
            State::Window(window) => window.release(),
            State::Grid(grid) => grid.release(),
        }
    }

    fn give_back(&mut self, now: Nanos, grant: &Grant, units: u64) {
        match self {
            State::Bucket(bucket) => bucket.give_back(now, grant.at, units),
            State::Window(window) => window.give_back(grant.counted, units),
            State::Grid(grid) => grid.give_back(now, grant.at, units),
        }
    }
}

fn quantum(state: &State, rate: Rate) -> u64 {
    rate.units_in(MILLISECOND).get().min(state.most())
}
