//! Any number of limits that grant together or not at all: their fixed numbers, and pure functions of their states and
//! of time. The states belong to one key, to one limiter, or to a shared bucket.
//!
//! A limit that conforms stays conforming until something is granted. So the earliest common time is the latest of the
//! limits' own earliest times.

use super::bucket::Gap;
use super::costs::CostList;
use super::policy::Policy;
use super::settling::{Settling, settle_forgotten};
use super::state::State;
use super::terms::Terms;
use super::window;
use crate::clock::Nanos;

/// The fixed numbers of limits, and the kind of cost that each counts: an index into the [`CostList`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) terms: Vec<Terms>,
    pub(super) kinds: Vec<usize>,
}

impl Fixed {
    /// The limits of these policies, and their initial states. The limits of a policy count the given kind; with
    /// `None`, each limit counts its own kind.
    pub(super) fn start<'a>(
        policies: impl IntoIterator<Item = (&'a Policy, Option<usize>)>,
        now: Nanos,
    ) -> (Self, Vec<State>) {
        let (mut fixed, mut states) = (Fixed::default(), Vec::new());
        for (policy, kind) in policies {
            for limit in policy.limits() {
                let (terms, state) = Terms::start(limit, now);
                fixed.kinds.push(kind.unwrap_or(fixed.terms.len()));
                fixed.terms.push(terms);
                states.push(state);
            }
        }
        (fixed, states)
    }

    /// The charge of the limit at `place`.
    #[inline]
    pub(super) fn cost(&self, place: usize, costs: impl CostList) -> u64 {
        costs.of(self.kinds[place])
    }

    pub(super) fn each<'a>(&'a self, states: &'a [State]) -> impl Iterator<Item = (usize, &'a Terms, &'a State)> {
        self.terms.iter().zip(states).enumerate().map(|(place, (terms, state))| (place, terms, state))
    }

    pub(super) fn windows<'a>(
        &'a self,
        states: &'a [State],
    ) -> impl Iterator<Item = (usize, &'a window::Terms, &'a State)> {
        self.each(states).filter_map(|(place, terms, state)| Some((place, terms.as_window()?, state)))
    }

    pub(super) fn windows_mut<'a>(
        &'a self,
        states: &'a mut [State],
    ) -> impl Iterator<Item = (usize, &'a window::Terms, &'a mut State)> {
        let each = self.terms.iter().zip(states).enumerate();
        each.filter_map(|(place, (terms, state))| Some((place, terms.as_window()?, state)))
    }

    pub(super) fn has_windows(&self) -> bool {
        self.terms.iter().any(|terms| terms.as_window().is_some())
    }

    /// The earliest time, not before `from`, at which every limit conforms. `start(state)` is the request time passed
    /// to each limit. Also returns the index of the limit that causes the wait, if there is a wait.
    ///
    /// Returns `None` if a cost is above a window's count, because it is never granted, or if the time is beyond the end
    /// of the clock.
    #[inline]
    pub(super) fn conforms_at(
        &self,
        states: &[State],
        from: Nanos,
        start: impl Fn(&State) -> Nanos,
        costs: impl CostList,
    ) -> Option<(Nanos, Option<usize>)> {
        let mut latest = (from, None);
        for (place, terms, state) in self.each(states) {
            let cost = self.cost(place, costs);
            if cost > 0 {
                let time = terms.conforms_at(state, start(state), cost)?;
                if time > latest.0 {
                    latest = (time, Some(place));
                }
            }
        }
        Some(latest)
    }

    /// The time, not before `now`, by which these further costs will have been granted if requests never pause: the latest
    /// of the times of the single limits. `None` beyond the end of the clock.
    pub(super) fn schedule(&self, states: &[State], now: Nanos, costs: impl CostList) -> Option<Nanos> {
        let mut times = self.each(states).map(|(place, terms, state)| match self.cost(place, costs) {
            0 => Some(now),
            units => terms.schedule(state, now, units),
        });
        times.try_fold(now, |latest, time| Some(latest.max(time?)))
    }

    /// Settles a grant at its real costs: `costs` are the charged costs and the real costs. The two `times` of the grant
    /// are its own, and the time from which windows count it. The limits are then as if the grant had cost its real
    /// costs from the start. If the grant is not open, or no longer, see [`settle_forgotten`]. Windows use the time
    /// `latest`, which is not before `now` nor the latest grant.
    pub(super) fn settle(
        &self,
        states: &mut [State],
        settling: &mut Settling,
        [now, latest]: [Nanos; 2],
        (number, times): (u64, [Nanos; 2]),
        costs: [impl CostList; 2],
    ) {
        let costs = |place| costs.map(|costs| self.cost(place, costs));
        if settling.settle(latest, number, (&self.terms, states), |place| costs(place)[1]) {
            return;
        }
        self.revise(states, settling, |place, terms, state| {
            let now = if terms.as_window().is_some() { latest } else { now };
            settle_forgotten(terms, state, now, times, costs(place))
        });
    }

    /// Changes each limit by `act`.
    pub(super) fn revise(
        &self,
        states: &mut [State],
        settling: &mut Settling,
        act: impl Fn(usize, &Terms, &mut State) -> Gap,
    ) {
        for (place, (terms, state)) in self.terms.iter().zip(states).enumerate() {
            settling.happened(place, act(place, terms, state));
        }
    }
}
