//! Several limits as one question: the least time at which all of them conform; and all are charged at that time.
//!
//! Every limit, once it conforms, goes on conforming until something is granted. So the least common time is simply the
//! latest of the limits' own least times.

use crate::clock::{MILLISECOND, Nanos, shown_wait};
use crate::rate::Rate;
use history::History;
use kinds::Kinds;
use state::State;
use std::num::NonZeroU64;
use terms::Terms;
use thiserror::Error;

pub mod bucket;
mod history;
pub mod interval;
mod kinds;
mod leasing;
mod policy;
mod saved;
mod state;
mod terms;
mod waiting;
pub mod window;

pub use leasing::Ask;
pub(crate) use leasing::Rest;
pub(crate) use policy::Resolved;
pub use policy::{Disagreement, Policy, PolicyError};
#[doc(no_inline)]
pub use policy::{Policy as Plan, PolicyError as PlanError};

/// Any number of limits that grant together or not at all; with none, everything is granted at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    terms: Vec<Terms>,
    states: Vec<State>,
    kinds: Kinds,
    quantum: u64,
    /// The latest time at which something was taken, given back or changed. Who reads less has read it out of order.
    asked: Nanos,
    /// The latest time given. Nothing is granted before it.
    at: Nanos,
    history: History,
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
    /// Takes limits as [`Policy`] filled them in, at `now`, in their initial state.
    #[must_use]
    pub fn new(policy: &Policy, now: Nanos) -> Self {
        let (terms, states): (Vec<Terms>, Vec<State>) =
            policy.limits().iter().map(|limit| Terms::start(limit, now)).unzip();
        Limits { quantum: quantum(&terms, policy), terms, states, ..Limits::none(now) }
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
        for (place, (terms, state)) in self.each().enumerate() {
            let cost = self.kinds.part(place, cost);
            if cost == 0 {
                continue;
            }
            let time = terms.conforms_at(state, now, cost).ok_or(Refusal::Never)?;
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
        self.take_within(now, cost, Nanos::MAX)
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
        Ok(self.grant(Nanos::MAX, now, [at; 2], cost, bound_by))
    }

    /// Grants a run of the `waiting` units: all that conform now, if those are all or at least a
    /// [quantum](Self::quantum); otherwise a quantum at its time.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take_run(&mut self, now: Nanos, waiting: u64) -> Result<Grant, Refusal> {
        let units = self.run(now, waiting);
        self.take(now, units)
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
        self.each().map(|(terms, state)| terms.available(state, now)).min().unwrap_or(u64::MAX)
    }

    /// Whole units that the limit at `place` would let through at `now`; less than nothing where more are owed. A window
    /// lets nothing through while a time given lies ahead.
    #[must_use]
    pub fn left(&self, now: Nanos, place: usize) -> Option<i128> {
        let now = self.in_order(now);
        let (terms, state) = (self.terms.get(place)?, self.states.get(place)?);
        let closed = now < self.at && matches!(terms, Terms::Window(_));
        Some(if closed { 0 } else { terms.left(state, now) })
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
        let mut times = self.each().map(|(terms, state)| terms.schedule(state, now, units));
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
        let is_last = self.history.last().is_some_and(|last| last.number == grant.number);
        if is_last && now < grant.at {
            let held = self.undo();
            self.hold(held);
        } else {
            self.credit_back(now, grant);
        }
    }

    /// Grants nothing before `until`, when the buckets are empty. Windows go on counting what they count; times given stay.
    ///
    /// Nothing happens if that is not later than `now`.
    pub fn hold_until(&mut self, now: Nanos, until: Nanos) {
        if until > self.in_order(now) {
            self.hold(Some(until));
        }
    }

    /// Changes the rate of the bucket at `place` from `now` on. A time given stays; what was saved stays.
    ///
    /// Nothing happens where there is no bucket.
    pub fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate) {
        self.asked = self.asked.max(now);
        if let (Some(terms), Some(state)) = (self.terms.get(place), self.states.get(place)) {
            self.change(place, terms.with_rate(state, self.asked, rate));
        }
    }

    /// Changes the size of the bucket at `place` from `now` on, without filling it.
    ///
    /// Nothing happens where there is no bucket.
    pub fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64) {
        self.asked = self.asked.max(now);
        if let Some(terms) = self.terms.get(place) {
            self.change(place, terms.with_burst(burst.get()));
            let (terms, asked) = (self.terms[place], self.asked);
            self.revise(place, |state| terms.spill(state, asked));
        }
    }

    /// Goes on by `to` at `place`.
    fn change(&mut self, place: usize, to: Terms) {
        let (from, asked) = (std::mem::replace(&mut self.terms[place], to), self.asked);
        self.revise(place, |state| from.change(state, asked, &to));
    }

    /// Does `act` to the bucket at `place`, as it is and as it may become when grants are taken back.
    fn revise(&mut self, place: usize, act: impl Fn(&mut State)) {
        let limits = self.terms.len();
        if !matches!(self.terms[place], Terms::Window(_)) {
            act(&mut self.states[place]);
            self.history.revise(place, limits, act);
        }
    }

    fn hold(&mut self, until: Option<Nanos>) {
        let Some(until) = until else { return };
        self.at = self.at.max(until);
        for (terms, state) in self.terms.iter().zip(&mut self.states) {
            terms.empty(state, until);
        }
        self.history.hold(until);
    }

    /// Takes back the latest record, as if it had never been. Says until when the limits were to be held since.
    fn undo(&mut self) -> Option<Nanos> {
        let record = self.history.undo(&mut self.states)?;
        self.at = record.before;
        record.held
    }

    /// Credits a grant, unless a time given lies ahead, be it later than the latest: then that grant was undone before.
    fn credit_back(&mut self, now: Nanos, grant: &Grant) {
        if now < self.at || now < grant.at {
            return;
        }
        (self.asked, self.at) = (now, now);
        for (place, (terms, state)) in self.terms.iter().zip(&mut self.states).enumerate() {
            terms.give_back(state, now, [grant.at, grant.counted], self.kinds.part(place, grant.units));
        }
        // The times of all that could be taken back have come.
        self.history.clear();
    }

    /// How many of the `waiting` units go in one run.
    fn run(&self, now: Nanos, waiting: u64) -> u64 {
        waiting.min(self.available(now).max(self.quantum))
    }

    /// Grants at the first of these times, so that it can be taken back; windows count it from the second on. What was granted
    /// by `horizon` cannot be taken back any more.
    fn grant(
        &mut self,
        horizon: Nanos,
        asked: Nanos,
        [at, counted]: [Nanos; 2],
        units: u64,
        bound_by: Option<usize>,
    ) -> Grant {
        if units > 0 {
            self.history.begin(horizon, self.at, &self.terms, &self.states);
            self.charge(asked, at, counted, units);
        }
        Grant { counted, ..Grant::told(at, units, bound_by, self.history.grants) }
    }

    /// Charges `units` at `at`, as a part of the latest record. Windows count them from `counted` on, which is not before it.
    fn charge(&mut self, asked: Nanos, at: Nanos, counted: Nanos, units: u64) {
        self.asked = self.in_order(asked);
        let (since, undos) = self.history.current(self.terms.len());
        let limits = self.terms.iter().zip(&mut self.states).zip(undos);
        for (place, ((terms, state), undo)) in limits.enumerate() {
            terms.charge(state, undo, [since, self.asked, at, counted], self.kinds.part(place, units));
        }
        self.history.count(at);
        self.at = at;
    }

    fn each(&self) -> impl Iterator<Item = (&Terms, &State)> {
        self.terms.iter().zip(&self.states)
    }

    /// Time that was read before, but comes after, is as good as what came before it.
    fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.asked)
    }
}

fn quantum(terms: &[Terms], policy: &Policy) -> u64 {
    let quanta = terms.iter().zip(policy.limits());
    quanta.map(|(terms, limit)| limit.rate().units_in(MILLISECOND).get().min(terms.most())).min().unwrap_or(u64::MAX)
}
