//! Any number of limits that grant together or not at all: their fixed numbers, and pure functions of their states and
//! of time. The states belong to one key, to one limiter, or to a shared bucket.
//!
//! A limit that conforms stays conforming until something is granted. So the earliest common time is the latest of the
//! limits' own earliest times.

use super::costs::CostList;
use super::policy::Policy;
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

    /// Opens the latest charge, of a grant at `at` with this number: its costs may change.
    pub(super) fn open(&self, states: &mut [State], number: u64, at: Nanos, costs: impl CostList) {
        self.revise(states, |place, terms, state| {
            if let Terms::Bucket(bucket) = terms {
                bucket.open(state, number, at, self.cost(place, costs));
            }
        });
    }

    /// Settles a grant at its real costs: `costs` are the charged costs and the real costs. The limits are then as if
    /// the grant had cost its real costs from the start. It was granted at `at`, and windows count it from `counted` on.
    /// They use the time `latest`, which is not before `now` nor the latest grant. For a grant that is not open, see
    /// `bucket::Terms::settle`.
    pub(super) fn settle(
        &self,
        states: &mut [State],
        [now, latest]: [Nanos; 2],
        (number, [at, counted]): (u64, [Nanos; 2]),
        costs: [impl CostList; 2],
    ) {
        self.revise(states, |place, terms, state| {
            let costs = costs.map(|costs| self.cost(place, costs));
            match terms {
                Terms::Bucket(bucket) => bucket.settle(state, now, (number, at), costs),
                Terms::Window(window) => window.correct(state, latest, counted, costs),
            }
        });
    }

    /// Changes each limit by `act`.
    #[inline]
    pub(super) fn revise(&self, states: &mut [State], act: impl Fn(usize, &Terms, &mut State)) {
        for (place, (terms, state)) in self.terms.iter().zip(states).enumerate() {
            act(place, terms, state);
        }
    }
}
