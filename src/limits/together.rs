//! Several limits used as one: finds the earliest time at which all of them conform, and charges all of them at that
//! time.
//!
//! A limit that conforms stays conforming until something is granted. So the earliest common time is the latest of the
//! limits' own earliest times.

use super::grant::{Grant, Refusal};
use super::history::History;
use super::kinds::Kinds;
use super::policy::Policy;
use super::settling::{Settling, settle_forgotten};
use super::state::State;
use super::terms::Terms;
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::Rate;
use std::num::NonZeroU64;

/// Any number of limits that grant together or not at all. With no limit, everything is granted at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) terms: Vec<Terms>,
    pub(super) states: Vec<State>,
    pub(super) kinds: Kinds,
    pub(super) quantum: u64,
    /// The latest time at which something was taken, given back or changed. An earlier clock reading arrived out of
    /// order.
    pub(super) asked: Nanos,
    /// The time of the latest grant. Nothing is granted before it.
    pub(super) at: Nanos,
    pub(super) history: History,
    pub(super) settling: Settling,
}

impl Limits {
    /// Creates the limits of a [`Policy`] at `now`, in their initial state.
    #[must_use]
    pub fn new(policy: &Policy, now: Nanos) -> Self {
        let (terms, states): (Vec<Terms>, Vec<State>) =
            policy.limits().iter().map(|limit| Terms::start(limit, now)).unzip();
        Limits { quantum: quantum(&terms, policy), terms, states, ..Limits::none(now) }
    }

    /// The earliest time, not before `now` nor before the last grant, at which every limit conforms to `cost` units.
    /// Also returns the index of the limit that causes the wait, if there is a wait.
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

    /// Grants `cost` units at the earliest time at which every limit conforms. If that time is in the future, the grant
    /// is a reservation.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take(&mut self, now: Nanos, cost: u64) -> Result<Grant, Refusal> {
        self.take_within(now, cost, Nanos::MAX)
    }

    /// Like [`take`](Self::take), but only if the wait is at most `max_wait` nanoseconds. 0 means: now or not at all.
    ///
    /// # Errors
    /// [`Refusal::TooLong`] with the wait that would be needed; nothing is charged then.
    pub fn take_within(&mut self, now: Nanos, cost: u64, max_wait: Nanos) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(now, cost)?;
        let wait = at - self.in_order(now);
        if wait > max_wait {
            return Err(Refusal::TooLong { wait });
        }
        Ok(self.grant(Nanos::MAX, now, [at; 2], cost, bound_by))
    }

    /// Grants a run of the `waiting` units. If all of them conform now, or at least a [quantum](Self::quantum), the run
    /// is what conforms now. Otherwise it is one quantum, at the time when it conforms.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take_run(&mut self, now: Nanos, waiting: u64) -> Result<Grant, Refusal> {
        let units = self.run(now, waiting);
        self.take(now, units)
    }

    /// The smallest run that is worth a wake-up: 1 ms' worth of the slowest rate, and at most the smallest burst or
    /// window.
    #[must_use]
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// Whole units that could be taken at `now`; 0 before the time of the latest grant.
    #[must_use]
    pub fn available(&self, now: Nanos) -> u64 {
        let now = self.in_order(now);
        if now < self.at {
            return 0;
        }
        self.each().map(|(terms, state)| terms.available(state, now)).min().unwrap_or(u64::MAX)
    }

    /// Whole units that the limit at `place` would let through at `now`; negative if units are owed. A window lets
    /// nothing through before the time of the latest grant.
    #[must_use]
    pub fn left(&self, now: Nanos, place: usize) -> Option<i128> {
        let now = self.in_order(now);
        let (terms, state) = (self.terms.get(place)?, self.states.get(place)?);
        let closed = now < self.at && matches!(terms, Terms::Window(_));
        Some(if closed { 0 } else { terms.left(state, now) })
    }

    /// The time of the latest grant.
    #[must_use]
    pub fn latest(&self) -> Nanos {
        self.at
    }

    /// The time by which `units` more will have been granted if requests never pause: the latest of the times that the
    /// single limits need. `None` beyond the end of the clock.
    #[must_use]
    pub fn schedule(&self, now: Nanos, units: u64) -> Option<Nanos> {
        let now = self.in_order(now).max(self.at);
        let mut times = self.each().enumerate().map(|(place, (terms, state))| {
            let units = self.kinds.part(place, units);
            if units == 0 { Some(now) } else { terms.schedule(state, now, units) }
        });
        times.try_fold(now, |latest, time| Some(latest.max(time?)))
    }

    /// Gives back a grant that was not used.
    ///
    /// If the grant is the last one and its time is in the future, it is undone as if it had never been made. After
    /// that, the grant before it can be undone, and so on. If the time of another grant is in the future, nothing is
    /// given back, because later grants are never moved. Otherwise the units are credited, less what the limits gained
    /// since.
    ///
    /// A grant may be given back only once. The caller must see to that: credited grants are not remembered.
    pub fn give_back(&mut self, now: Nanos, grant: &Grant) {
        let now = self.in_order(now);
        if grant.units == 0 {
            return; // A grant of 0 units has the number of the grant before it.
        }
        let is_last = self.history.last().is_some_and(|last| last.number == grant.number);
        if is_last && now < grant.at {
            let held = self.undo(now.saturating_add(1));
            self.hold(held);
        } else {
            self.credit_back(now, grant);
        }
        self.settling.forget(grant.number);
    }

    /// The latest grant, of this cost, may be [settled](Self::settle) later. Until then it costs a little with each other
    /// grant; say [`forget`](Self::forget) if it will not be settled. Only so many can be open: beyond that the oldest is
    /// forgotten.
    pub(crate) fn open(&mut self, grant: &Grant, cost: u64) {
        if grant.units > 0 {
            let part = |place| self.kinds.part(place, cost);
            self.settling.open(grant.number, grant.counted, (&self.terms, &self.states), part);
        }
    }

    /// Whether a grant is open.
    pub(crate) fn has_open(&self) -> bool {
        !self.settling.is_empty()
    }

    /// A grant will not be settled: it cost what it was charged.
    pub(crate) fn forget(&mut self, grant: &Grant) {
        if grant.units > 0 {
            self.settling.forget(grant.number);
        }
    }

    /// Settles a grant, which was charged the first cost, at its real cost, the second. If it is [open](Self::open), the
    /// limits are as if it had cost that from the start: what would have overflowed since is lost, and what it cost more is
    /// owed by those behind. All other grants keep their times. If it was forgotten, what it cost less is given back as by
    /// [`give_back`](Self::give_back).
    ///
    /// A grant may be settled only once, and not given back as well.
    pub(crate) fn settle(&mut self, now: Nanos, grant: &Grant, [charged, real]: [u64; 2]) {
        let (now, limits) = (self.in_order(now), self.terms.len());
        // Windows may have dropped what no longer counts at these times. An open grant is corrected exactly.
        let (since, latest) = (now.max(self.history.since().unwrap_or(self.at)), now.max(self.at));
        let (kinds, history) = (&self.kinds, &mut self.history);
        let part = |place| kinds.part(place, real);
        let differed = |place, by: i128| {
            history.revise(place, limits, |state| state.level.amount = state.level.amount.saturating_add(by));
        };
        let states = (self.terms.as_slice(), self.states.as_mut_slice());
        if grant.units > 0 && self.settling.settle(since, grant.number, states, part, differed) {
            return;
        }
        self.revise_all(|kinds, place, terms, state| {
            let costs = [charged, real].map(|cost| kinds.part(place, cost));
            let now = if terms.as_window().is_some() { latest } else { now };
            settle_forgotten(terms, state, now, [grant.at, grant.counted], costs);
        });
    }

    /// Grants nothing before `until`. The buckets are empty then. Windows keep their counts; earlier grants keep their
    /// times.
    ///
    /// Does nothing if `until` is not later than `now`.
    pub fn hold_until(&mut self, now: Nanos, until: Nanos) {
        if until > self.in_order(now) {
            self.hold(Some(until));
        }
    }

    /// Changes the rate of the bucket at `place` from `now` on. Grants keep their times; saved credit is kept.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate) {
        self.asked = self.asked.max(now);
        if let (Some(terms), Some(state)) = (self.terms.get(place), self.states.get(place)) {
            self.change(place, terms.with_rate(state, self.asked, rate));
        }
    }

    /// Changes the size of the bucket at `place` from `now` on, without filling it.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64) {
        self.asked = self.asked.max(now);
        if let Some(terms) = self.terms.get(place) {
            self.change(place, terms.with_burst(burst.get()));
            let (terms, asked) = (self.terms[place], self.asked);
            if let Ok(bucket) = terms.kind() {
                self.revise(place, |state| bucket.spill(&mut state.level, asked));
            }
        }
    }

    /// Replaces the limit at `place` by `to`.
    fn change(&mut self, place: usize, to: Terms) {
        let (from, asked) = (self.terms[place], self.asked);
        self.revise(place, |state| from.settle(state, asked));
        self.settling.rate_changed(place, &from, &to);
        self.terms[place] = to;
        self.apply(place, |state| from.change(state, asked, &to));
    }

    /// Applies `act` to the bucket at `place`, and to the saved states that an undo would restore.
    pub(super) fn revise(&mut self, place: usize, act: impl Fn(&mut State)) {
        let at_place = |at, _: &Terms, state: &mut State| {
            if at == place {
                act(state);
            }
        };
        self.settling.changing((&self.terms, &self.states), at_place);
        self.apply(place, act);
    }

    fn apply(&mut self, place: usize, act: impl Fn(&mut State)) {
        let limits = self.terms.len();
        if !matches!(self.terms[place], Terms::Window(_)) {
            act(&mut self.states[place]);
            self.history.revise(place, limits, act);
        }
    }

    pub(super) fn hold(&mut self, until: Option<Nanos>) {
        let Some(until) = until else { return };
        self.at = self.at.max(until);
        let act = |_, terms: &Terms, state: &mut State| terms.empty(state, until);
        self.settling.changing((&self.terms, &self.states), act);
        for (terms, state) in self.terms.iter().zip(&mut self.states) {
            terms.empty(state, until);
        }
        self.history.hold(until);
    }

    /// Undoes the latest record completely. If other changes were made since, its grants are at `from` or later. Returns
    /// the time of a hold that was set after it.
    pub(super) fn undo(&mut self, from: Nanos) -> Option<Nanos> {
        let record = self.history.undo(&mut self.states, from)?;
        self.settling.undone(record.number);
        self.at = record.before;
        record.held
    }

    /// Credits a grant, unless a grant is in the future. A grant that is later than the latest one was undone before.
    pub(super) fn credit_back(&mut self, now: Nanos, grant: &Grant) {
        if now < self.at || now < grant.at {
            return;
        }
        (self.asked, self.at) = (now, now);
        let kinds = &self.kinds;
        let act = |place, terms: &Terms, state: &mut State| {
            terms.give_back(state, now, [grant.at, grant.counted], kinds.part(place, grant.units));
        };
        self.settling.changing((&self.terms, &self.states), act);
        for (place, (terms, state)) in self.terms.iter().zip(&mut self.states).enumerate() {
            act(place, terms, state);
        }
        // None of the earlier grants is in the future any more, so none can be undone.
        self.history.clear();
    }

    /// How many of the `waiting` units form the next run.
    pub(super) fn run(&self, now: Nanos, waiting: u64) -> u64 {
        waiting.min(self.available(now).max(self.quantum))
    }

    /// Grants at the first of these times and records how to undo it. Windows count it from the second time. Grants up
    /// to `horizon` can no longer be undone.
    pub(super) fn grant(
        &mut self,
        horizon: Nanos,
        asked: Nanos,
        [at, counted]: [Nanos; 2],
        units: u64,
        bound_by: Option<usize>,
    ) -> Grant {
        if units > 0 {
            self.history.begin(horizon, self.at, &self.terms, &self.states);
            self.settling.begin();
            self.charge(asked, at, counted, units);
        }
        Grant { counted, ..Grant::computed(at, units, bound_by, self.history.grants) }
    }

    /// Charges `units` at `at`, as part of the latest record. Windows count them from `counted`, which is not before
    /// `at`.
    pub(super) fn charge(&mut self, asked: Nanos, at: Nanos, counted: Nanos, units: u64) {
        self.asked = self.in_order(asked);
        let (since, undos) = self.history.current(self.terms.len());
        let limits = self.terms.iter().zip(&mut self.states).zip(undos);
        for (place, ((terms, state), undo)) in limits.enumerate() {
            let cost = self.kinds.part(place, units);
            self.settling.charging(place, terms, state, [self.asked, at], cost);
            terms.charge(state, undo, [since, self.asked, at, counted], cost);
        }
        self.history.count(at);
        self.at = at;
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&Terms, &State)> {
        self.terms.iter().zip(&self.states)
    }

    /// Clamps clock readings that arrive out of order.
    pub(super) fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.asked)
    }
}

fn quantum(terms: &[Terms], policy: &Policy) -> u64 {
    let quanta = terms.iter().zip(policy.limits());
    quanta.map(|(terms, limit)| limit.rate().units_in(MILLISECOND).get().min(terms.most())).min().unwrap_or(u64::MAX)
}
