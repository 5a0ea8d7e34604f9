//! Any number of limits that grant together or not at all: what is fixed of them, and pure functions of their states and
//! of time. The states are those of one key, of one limiter, or of a bucket that many share.
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
    /// The limits of these policies, and their states at the start. The limits of a policy count the kind beside it;
    /// without that, each counts a kind of its own.
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

    /// What the limit at `place` is charged.
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

    pub(super) fn has_windows(&self) -> bool {
        self.terms.iter().any(|terms| terms.as_window().is_some())
    }

    /// The earliest time, not before `from`, at which every limit conforms. Each is asked from `start` of its state on.
    /// Also returns the index of the limit that causes the wait, if there is a wait.
    ///
    /// `None` for a cost above a window's count, which is never granted, and beyond the end of the clock.
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

    /// Charges a request to each limit whose cost is one that `is_charged`; see [`Terms::charge`] for the times.
    pub(super) fn charge(
        &self,
        states: &mut [State],
        settling: &mut Settling,
        times: [Nanos; 4],
        costs: impl CostList,
        is_charged: impl Fn(u64) -> bool,
    ) {
        for (place, (terms, state)) in self.terms.iter().zip(states).enumerate() {
            let cost = self.cost(place, costs);
            if is_charged(cost) {
                settling.happened(place, terms.charge(state, times, cost));
            }
        }
    }

    /// The latest charge, of these costs, may be [settled](Self::settle) later. The times are when it was granted, and from when
    /// windows count it.
    pub(super) fn open(
        &self,
        states: &[State],
        settling: &mut Settling,
        (number, times): (u64, [Nanos; 2]),
        costs: impl CostList,
    ) {
        settling.open(number, times, (&self.terms, states), |place| self.cost(place, costs));
    }

    /// Settles a grant that was charged the first costs at its real costs, the second: the limits are as if it had cost that
    /// from the start. If it is not open (any more), see [`settle_forgotten`]. Windows are asked at `latest`, which is not
    /// before `now` nor the latest grant.
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

    /// Changes each limit by `act`, otherwise than by a charge.
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
