//! The same limits for each of many keys: the part that all keys share, and the thin state of one key.
//!
//! The open grants of a key, which may be settled, are stored with its state.

use super::fixed::Fixed;
use super::grant::Refusal;
use super::policy::Policy;
use super::state::{Level, State};
use super::terms::Terms;
use super::together::Limits;
use super::window;
use crate::clock::Nanos;

/// The same limits for each of many keys, with time as a parameter. Nothing waits here: the caller keeps a [`Thin`] for
/// each key, requests a time, sleeps, and charges. [`Keyed`](crate::limiter::Keyed) does all that.
///
/// Limits may count several kinds of costs, for example requests and tokens. The `costs` of a request are one number
/// for each kind. Times are in nanoseconds, of one clock.
///
/// ```
/// use throttle_limits::limits::{Each, Policy};
///
/// let (requests, tokens) = (Policy::new(&["2/s".parse()?], None)?, Policy::new(&["1000/min,window".parse()?], None)?);
/// let each = Each::new(&[(&requests, 0), (&tokens, 1)], 0);
/// let mut key = each.fresh();
/// each.charge(&mut key, [0; 4], &[1, 800]);
/// let (at, limit) = each.conforms_at(&key, 0, &[1, 300]).ok_or("never")?;
/// assert_eq!((at, limit), (60_000_000_000, Some(1))); // the window has room again after a minute
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Each {
    fixed: Fixed,
    /// The state of a new key, as it was made when the run began.
    fresh: Thin,
    /// From this time on, the state of a new key no longer changes: all its buckets are full.
    full_at: Nanos,
}

/// The state of one key, in 32 bytes. A single bucket without open grants, the usual case, needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub struct Thin(pub(super) Form);

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Form {
    One(Level),
    Several(Box<[State]>),
}

/// When a unit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The earliest time at which all limits conformed, but not longer ago than the lag allowance.
    pub at: Nanos,
    /// Windows count the unit from this time: when it left.
    pub counted: Nanos,
    /// The number of the grant; numbers of grants that may be settled increase.
    pub number: u64,
}

impl Default for Thin {
    fn default() -> Self {
        Thin(Form::Several(Box::default()))
    }
}

impl Each {
    /// The limits of these policies, in their initial state at `now`. The limits of a policy count the kind of cost at
    /// the given index.
    #[must_use]
    pub fn new(policies: &[(&Policy, usize)], now: Nanos) -> Self {
        let (fixed, states) = Fixed::start(policies.iter().map(|(policy, kind)| (*policy, Some(*kind))), now);
        Each::start(fixed, states)
    }

    /// The limits of a policy, in their initial state at `now`. Each counts a kind of cost of its own, from the index
    /// `first` on.
    #[cfg(feature = "shared")]
    pub(crate) fn counting(policy: &Policy, first: usize, now: Nanos) -> Self {
        let (mut fixed, states) = Fixed::start([(policy, None)], now);
        fixed.kinds.iter_mut().for_each(|kind| *kind += first);
        Each::start(fixed, states)
    }

    /// The state with each limit that is at rest at `time` as in the state of a new key. It behaves the same.
    #[cfg(feature = "shared")]
    pub(crate) fn tidied(&self, thin: &Thin, time: Nanos) -> Thin {
        if time < self.full_at {
            return thin.clone();
        }
        let (old, new) = (thin.with(<[State]>::to_vec), self.fresh.with(<[State]>::to_vec));
        let tidied = |((terms, old), new): ((&Terms, State), State)| {
            let rests = old.level.at < time && terms.at_rest(&old, time) && old.open().is_none();
            if rests { new } else { old }
        };
        Thin::of(&self.fixed.terms, self.fixed.terms.iter().zip(old).zip(new).map(tidied).collect())
    }

    /// Converts a state for the limits `to`, from `now` on. A limit at the same index and of the same kind keeps its
    /// credit or count, unless it is `fresh`.
    #[cfg(feature = "shared")]
    pub(crate) fn change(&self, thin: &mut Thin, now: Nanos, to: &Each, fresh: &[bool]) {
        let (old, mut new) = (thin.with(<[State]>::to_vec), to.fresh.with(<[State]>::to_vec));
        let each = self.fixed.terms.iter().zip(old).zip(to.fixed.terms.iter().zip(&mut new)).enumerate();
        for (_, ((from, mut old), (to, new))) in each.filter(|(place, _)| fresh.get(*place) != Some(&true)) {
            match (from, to) {
                (Terms::Bucket(from), Terms::Bucket(to)) => {
                    from.change(&mut old, now, to);
                    to.spill(&mut old, now, 0);
                    *new = old;
                }
                // Units that no longer count do not count again in a longer window.
                (Terms::Window(_), Terms::Window(_)) if from.at_rest(&old, now) => {
                    *new = State::from(Level { amount: 0, at: now });
                }
                (Terms::Window(_), Terms::Window(_)) => *new = old,
                _ => {}
            }
        }
        *thin = Thin::of(&to.fixed.terms, new);
    }

    /// Limits for each key, with the given limits and their state as the state of a new key.
    pub(crate) fn of(limits: Limits) -> Self {
        Each::start(limits.fixed, limits.states)
    }

    fn start(fixed: Fixed, states: Vec<State>) -> Self {
        let each = Each { fresh: Thin::of(&fixed.terms, states), fixed, full_at: 0 };
        Each { full_at: each.rests_at(&each.fresh), ..each }
    }

    /// The limits of a key with this state. No time in the state is after `now`.
    pub(crate) fn limits(&self, thin: &Thin, now: Nanos) -> Limits {
        Limits::of(self.fixed.clone(), thin.with(<[State]>::to_vec), now)
    }

    /// The state of a key with these limits. `None` if the limits differ from these.
    pub(crate) fn state_of(&self, limits: &Limits) -> Option<Thin> {
        (limits.fixed == self.fixed).then(|| Thin::of(&self.fixed.terms, limits.states.clone()))
    }

    /// The most bytes of a saved state of a key with `open` open grants.
    pub(crate) fn bytes_of_state(&self, open: usize) -> usize {
        let of = |terms: &Terms| match terms.as_window() {
            Some(window) => 24 + 12 * usize::try_from(window.count().min(window::MAX_EXACT_UNITS + 1)).unwrap_or(0),
            None => 24 + 48 * open,
        };
        self.fixed.terms.iter().map(of).sum::<usize>()
    }

    /// Whether a state that was read is possible for these limits.
    #[cfg(feature = "shared")]
    pub(crate) fn has_sense(&self, thin: &Thin) -> bool {
        thin.with(|states| {
            states.len() == self.fixed.terms.len()
                && self.fixed.each(states).all(|(_, terms, state)| terms.has_sense(state))
        })
    }

    /// The state of a new key.
    #[must_use]
    pub fn fresh(&self) -> Thin {
        self.fresh.clone()
    }

    /// Whether there is no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fixed.terms.is_empty()
    }

    /// Whether one of the limits is a window.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.fixed.has_windows()
    }

    /// How far a grant may lie in the past when its unit leaves, in nanoseconds. It is a tenth of the time in which the
    /// quickest bucket fills, but at least 10 ms or that whole time, whichever is less. `None` without buckets.
    #[must_use]
    pub fn allowance(&self) -> Option<Nanos> {
        self.fixed.terms.iter().filter_map(Terms::allowance).min()
    }

    /// The time in which the quickest bucket fills. `None` without buckets.
    #[cfg(feature = "shared")]
    pub(crate) fn fill_time(&self) -> Option<Nanos> {
        self.fixed.terms.iter().filter_map(Terms::fill_time).min()
    }

    /// The time from the last grant until every limit is at rest again: buckets are full, and windows are empty.
    pub(crate) fn rest_time(&self) -> Nanos {
        self.fixed.terms.iter().map(Terms::rest_time).max().unwrap_or(0)
    }

    /// For each limit, the kind of cost that it counts, and the time that it needs for a cost of 1 at its rate. The
    /// time is in 2<sup>-`bits`</sup> nanoseconds.
    pub(crate) fn lengths(&self, bits: u32) -> Vec<(usize, u64)> {
        let length = |terms: &Terms| (u128::from(terms.rest_time()) << bits).div_ceil(terms.most().into());
        let of = |(terms, kind): (&Terms, &usize)| (*kind, u64::try_from(length(terms)).unwrap_or(u64::MAX));
        self.fixed.terms.iter().zip(&self.fixed.kinds).map(of).collect()
    }

    /// Whether no wait is long enough for these costs, because one is above a window's count.
    #[must_use]
    pub fn never_grants(&self, costs: &[u64]) -> bool {
        let is_above = |(place, terms): (usize, &Terms)| {
            terms.as_window().is_some_and(|window| self.fixed.cost(place, costs) > window.count())
        };
        self.fixed.terms.iter().enumerate().any(is_above)
    }

    /// The earliest time, not before `now` nor before the last grant, at which every limit conforms. Also returns the
    /// index of the limit that causes the wait, if there is a wait.
    ///
    /// `None` if a cost is above a window's count and so is never granted, or if the time is beyond the end of the
    /// clock.
    #[must_use]
    pub fn conforms_at(&self, thin: &Thin, now: Nanos, costs: &[u64]) -> Option<(Nanos, Option<usize>)> {
        // A window alone may have room before the last grant.
        let start = |state: &State| now.max(state.level.at);
        thin.with(|states| self.fixed.conforms_at(states, now, start, costs))
    }

    /// The earliest time, not before `requested`, at which all limits conform, for a caller who keeps grants in their
    /// order. A window may have room before its latest unit was handed over. `None` if that is never.
    #[must_use]
    pub fn has_room_at(&self, thin: &Thin, requested: Nanos, costs: &[u64]) -> Option<Nanos> {
        thin.with(|states| self.fixed.conforms_at(states, requested, |_| requested, costs)).map(|(at, _)| at)
    }

    /// Takes these costs now, or nothing.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is taken then.
    #[inline]
    pub fn take(&self, thin: &mut Thin, now: Nanos, costs: &[u64]) -> Result<(), Refusal> {
        // The usual case, without a copy of the state: a bucket that holds at most its burst.
        if let (Form::One(level), [Terms::Bucket(terms)], [cost]) = (&mut thin.0, &*self.fixed.terms, costs)
            && level.at <= now
        {
            let (there, price) = (terms.amount_at(*level, now), terms.price(*cost));
            if price <= there && there <= terms.full() {
                *level = Level { amount: there - price, at: now };
                return Ok(());
            }
        }
        match self.conforms_at(thin, now, costs) {
            Some((at, _)) if at > now => Err(Refusal::TooLong { wait: at - now }),
            Some(_) => {
                self.charge(thin, [now; 4], costs);
                Ok(())
            }
            None => Err(Refusal::Never),
        }
    }

    /// The number of requests in a row with these costs that conform at `now`.
    #[must_use]
    pub fn available(&self, thin: &Thin, now: Nanos, costs: &[u64]) -> u64 {
        let of = |(place, terms, state): (usize, &Terms, &State)| match self.fixed.cost(place, costs) {
            0 => u64::MAX,
            _ if state.level.at > now => 0,
            cost => terms.available(state, now) / cost,
        };
        thin.with(|states| self.fixed.each(states).map(of).min().unwrap_or(u64::MAX))
    }

    /// For each limit: the units that it allows at `now`; negative if units are owed.
    pub(crate) fn left(&self, thin: &Thin, now: Nanos) -> Vec<i128> {
        thin.with(|states| self.fixed.each(states).map(|(_, terms, state)| terms.left(state, now)).collect())
    }

    /// The latest time by which a limit for itself will have granted these further costs if requests never pause. `None`
    /// beyond the end of the clock.
    pub(crate) fn schedule(&self, thin: &Thin, now: Nanos, costs: &[u64]) -> Option<Nanos> {
        thin.with(|states| self.fixed.schedule(states, now, costs))
    }

    /// Charges a request that was made at `requested` and is granted at `grant`, which is not before
    /// [`conforms_at`](Self::conforms_at) of `requested`. Windows count the request from `counted`, which is not before
    /// `grant`, and forget entries that no longer count at `since`. For a request that is made and granted now, all
    /// four times are now.
    pub fn charge(&self, thin: &mut Thin, [since, requested, grant, counted]: [Nanos; 4], costs: &[u64]) {
        let times = [since, requested, grant, counted];
        thin.with_mut(|states| {
            self.fixed.revise(states, |place, terms, state| match self.fixed.cost(place, costs) {
                0 => {} // A unit of cost 0 does not change a limit: keys do not wait for each other.
                cost => terms.charge(state, times, cost),
            });
        });
    }

    /// Opens the latest charge, which has these costs, so that it can be [settled](Self::settle). It takes memory until
    /// it is settled.
    pub fn open(&self, thin: &mut Thin, grant: Charged, costs: &[u64]) {
        if let Form::One(level) = thin.0 {
            thin.0 = Form::Several([State::from(level)].into());
        }
        thin.with_mut(|states| self.fixed.open(states, grant.number, grant.at, costs));
    }

    /// Windows count the grant from `now`, when its unit was handed over, and no longer from `grant.counted`. Returns
    /// the grant as it counts now: unchanged if a window has given its room to other grants meanwhile.
    #[must_use]
    pub fn hand_over(&self, thin: &mut Thin, grant: Charged, costs: &[u64], now: Nanos) -> Charged {
        let mut counted = now;
        thin.with_mut(|states| {
            for (place, window, state) in self.fixed.windows_mut(states) {
                let cost = self.fixed.cost(place, costs);
                if cost > 0 && !window.hand_over(state, grant.counted, cost, now) {
                    counted = grant.counted;
                }
            }
        });
        Charged { counted, ..grant }
    }

    /// Settles a grant at its real costs: `costs` are the charged costs and the real costs. The limits are then as if
    /// the grant had cost its real costs from the start.
    ///
    /// With too many open grants, this one may no longer be [open](Self::open). Then a higher cost is owed, and a lower
    /// one is credited less the gain of the limits since.
    pub fn settle(&self, thin: &mut Thin, now: Nanos, grant: Charged, costs: [&[u64]; 2]) {
        let known = (grant.number, [grant.at, grant.counted]);
        thin.with_mut(|states| self.fixed.settle(states, [now; 2], known, costs));
        thin.narrow(&self.fixed.terms);
    }

    /// Takes everything that the limits allow at `now`, and more than that: buckets are empty, and windows are full.
    #[cfg(feature = "shared")]
    pub(crate) fn use_up(&self, thin: &mut Thin, now: Nanos) {
        thin.with_mut(|states| {
            self.fixed.revise(states, |_, terms, state| match terms {
                Terms::Bucket(bucket) => bucket.empty(state, now),
                Terms::Window(window) => window.charge(state, now, now, window.available(state, now)),
            });
        });
    }

    /// Empties the buckets at `until`. Windows do not change, so the caller itself must grant nothing before that time.
    pub fn empty(&self, thin: &mut Thin, until: Nanos) {
        thin.with_mut(|states| self.fixed.revise(states, |_, terms, state| terms.empty(state, until)));
    }

    /// Whether the state equals a new key's, at `now` and ever after.
    #[must_use]
    pub fn is_fresh(&self, thin: &Thin, now: Nanos) -> bool {
        // At the time of its last grant a bucket may hold more than its burst.
        let rests = |(terms, state): (&Terms, &State)| state.level.at < now && terms.at_rest(state, now);
        (now >= self.full_at && thin.with(|states| self.fixed.terms.iter().zip(states).all(rests)))
            || *thin == self.fresh
    }

    /// Whether all buckets are full and all windows are empty at `time`, which is not before the latest charge.
    #[inline]
    pub(crate) fn is_at_rest(&self, thin: &Thin, time: Nanos) -> bool {
        thin.with(|states| self.fixed.terms.iter().zip(states).all(|(terms, state)| terms.at_rest(state, time)))
    }

    /// The time from which on the state [is fresh](Self::is_fresh) if nothing more is granted.
    #[must_use]
    pub fn fresh_at(&self, thin: &Thin) -> Nanos {
        if *thin == self.fresh { 0 } else { self.rests_at(thin).max(self.full_at) }
    }

    fn rests_at(&self, thin: &Thin) -> Nanos {
        let rests = |(terms, state): (&Terms, &State)| {
            let after = state.level.at.saturating_add(1);
            terms.conforms_at(state, 0, terms.most()).map_or(Nanos::MAX, |time| time.max(after))
        };
        thin.with(|states| self.fixed.terms.iter().zip(states).map(rests).max().unwrap_or(0))
    }
}

impl Thin {
    /// The state of these limits, without open grants.
    pub(crate) fn of_limits(limits: &Limits) -> Self {
        Thin::of(&limits.fixed.terms, limits.states.iter().map(State::closed).collect())
    }

    fn of(terms: &[Terms], states: Vec<State>) -> Self {
        let mut thin = Thin(Form::Several(states.into()));
        thin.narrow(terms);
        thin
    }

    /// Frees memory if this is a single bucket without open grants.
    fn narrow(&mut self, terms: &[Terms]) {
        if let (Form::Several(states), [Terms::Bucket(_)]) = (&self.0, terms)
            && let [state] = &**states
            && state.is_level()
        {
            self.0 = Form::One(state.level);
        }
    }

    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&[State]) -> R) -> R {
        match &self.0 {
            Form::One(level) => act(&[State::from(*level)]),
            Form::Several(states) => act(states),
        }
    }

    #[inline]
    fn with_mut<R>(&mut self, act: impl FnOnce(&mut [State]) -> R) -> R {
        match &mut self.0 {
            Form::One(level) => {
                let mut state = [State::from(*level)];
                let result = act(&mut state);
                *level = state[0].level;
                result
            }
            Form::Several(states) => act(states),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::together::Limits;
    use super::*;
    use crate::clock::SECOND;
    use proptest::prelude::*;

    fn policy(limits: &[&str]) -> Policy {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Policy::new(&limits, None).unwrap()
    }

    #[test]
    fn the_state_of_a_key_takes_32_bytes() {
        assert_eq!(size_of::<Thin>(), 32);
    }

    #[test]
    fn each_limit_counts_its_kind() {
        let (requests, tokens) = (policy(&["2/s,burst=2"]), policy(&["100/s,burst=100", "500/min,window"]));
        let each = Each::new(&[(&requests, 0), (&tokens, 1)], 0);
        let mut thin = each.fresh();
        assert_eq!(each.conforms_at(&thin, 0, &[1, 100]), Some((0, None)));
        each.charge(&mut thin, [0; 4], &[1, 100]);
        assert_eq!(each.conforms_at(&thin, 0, &[1, 10]), Some((100_000_000, Some(1))));
        assert_eq!(each.conforms_at(&thin, 0, &[1, 0]), Some((0, None)));
        assert_eq!(each.conforms_at(&thin, 0, &[2, 10]), Some((500_000_000, Some(0))));
        assert_eq!(each.conforms_at(&thin, 0, &[1, 501]), None);
        assert_eq!(each.fresh_at(&thin), 60_000_000_000);
        // The quickest bucket has the least allowance, and each limit a length.
        let (slow, quick) = (policy(&["1/s,burst=30", "7/3s,window,slack=0"]), policy(&["10/s,burst=10"]));
        let each = Each::new(&[(&slow, 2), (&quick, 0)], 0);
        assert_eq!(
            (each.allowance(), each.lengths(8)),
            (Some(SECOND / 10), vec![(2, SECOND << 8), (2, ((3 * SECOND) << 8) / 7 + 1), (0, (SECOND << 8) / 10)])
        );
        assert_eq!(Each::new(&[(&policy(&["7/3s,window"]), 0)], 0).allowance(), None);
    }

    #[test]
    fn requests_in_a_row_are_counted_from_the_latest_grant_on() {
        let (bucket, window) = (policy(&["1/s,burst=9"]), policy(&["5/s,window"]));
        let each = Each::new(&[(&bucket, 0), (&window, 1)], 0);
        assert!(each.has_windows() && !Each::new(&[(&bucket, 0)], 0).has_windows());
        let mut thin = each.fresh();
        let of = |thin: &Thin, now, costs: &[u64]| each.available(thin, now, costs);
        let costs = [[1, 0], [2, 1], [9, 1], [1, 2], [0, 0]];
        assert_eq!(costs.map(|costs| of(&thin, 0, &costs)), [9, 4, 1, 2, u64::MAX]);
        each.charge(&mut thin, [0; 4], &[3, 1]);
        assert_eq!(of(&thin, 0, &[2, 1]), 3, "at the time of the grant");
        let each = Each::new(&[(&bucket, 0)], 0);
        let mut thin = each.fresh();
        each.charge(&mut thin, [0, 0, 2 * SECOND, 2 * SECOND], &[1]);
        assert_eq!([1, 2].map(|second| each.available(&thin, second * SECOND, &[1])), [0, 8]);
        let refused = Err(Refusal::TooLong { wait: SECOND });
        assert_eq!([1, 2].map(|second| each.take(&mut thin, second * SECOND, &[1])), [refused, Ok(())]);
    }

    /// A nanosecond's gain of this rate is more than the burst. What a grant leaves of it is kept, and is lost only
    /// later.
    #[test]
    fn a_key_that_holds_more_than_a_new_key_is_not_fresh() {
        let each = Each::new(&[(&policy(&["2500000000/s,burst=1"]), 0)], 0);
        let mut thin = each.fresh();
        each.charge(&mut thin, [0; 4], &[1]);
        assert_eq!(each.conforms_at(&thin, 0, &[1]), Some((1, Some(0))));
        each.charge(&mut thin, [0, 0, 1, 1], &[1]);
        assert_eq!([1, 2].map(|now| each.is_fresh(&thin, now)), [false, true]);
        // A key that had other limits before may be full while new keys are not.
        let of = |limit| Each::new(&[(&policy(&[limit]), 0)], 0);
        let (each, full) = (of("1/s,burst=5,initial=0"), of("1/s,burst=5").fresh());
        assert_eq!(each.fresh_at(&full), 5 * SECOND);
        assert_eq!([5 * SECOND - 1, 5 * SECOND].map(|now| each.is_fresh(&full, now)), [false, true]);
    }

    #[test]
    fn the_most_bytes_of_a_state_depend_on_windows_and_open_grants() {
        for (limits, open, bytes) in [
            (&["5/s"][..], 0, 24),
            (&["5/s,window"], 0, 24 + 12 * 5),
            (&["5000/h,window"], 0, 24 + 12 * 1025),
            (&["5/s,burst=1", "9/s,window"], 3, 24 + (24 + 12 * 9) + 3 * 48),
        ] {
            assert_eq!(Each::new(&[(&policy(limits), 0)], 0).bytes_of_state(open), bytes, "{limits:?}");
        }
    }

    #[cfg(feature = "shared")]
    #[test]
    fn a_state_of_other_limits_has_no_sense() {
        let of = |limits| Each::new(&[(&policy(limits), 0)], 0);
        let each = [of(&["5/s,burst=2"]), of(&["5/s,window"]), of(&["5/s,burst=1", "9/s,window"])];
        let used = |each: &Each| {
            let mut thin = each.fresh();
            each.charge(&mut thin, [0; 4], &[1]);
            each.open(&mut thin, Charged { at: 0, counted: 0, number: 1 }, &[1]);
            thin
        };
        for (place, thin) in each.iter().map(used).enumerate() {
            let found: Vec<_> = each.iter().map(|each| each.has_sense(&thin)).collect();
            assert_eq!(found, [0, 1, 2].map(|other| other == place), "{thin:?}");
        }
    }

    fn any_limits() -> impl Strategy<Value = Vec<&'static str>> {
        prop::sample::select(vec![
            vec!["3/s"],
            vec!["7/min,burst=4"],
            vec!["7/min,burst=4,initial=1"],
            vec!["2000000007/s,burst=5"],
            vec!["9/s,window"],
            vec!["5/s", "40/min"],
            vec!["9/s,burst=3,initial=0", "11/5s,window,slack=1s", "20/min,burst=30"],
            vec![],
        ])
    }

    fn any_requests() -> impl Strategy<Value = Vec<(Nanos, Nanos, u64)>> {
        prop::collection::vec((0_u64..3_000_000_000, 0_u64..2_000_000_000, 0_u64..6), 0..60)
    }

    proptest! {
        #[test]
        fn a_key_is_granted_what_its_own_limits_grant(limits in any_limits(), requests in any_requests()) {
            let policy = if limits.is_empty() { Policy::default() } else { policy(&limits) };
            let (each, mut expected) = (Each::new(&[(&policy, 0)], 7), Limits::new(&policy, 7));
            let (mut thin, mut now) = (each.fresh(), 7);
            for (step, wait, cost) in requests {
                now += step;
                let found = each.conforms_at(&thin, now, &[cost]).map(|(at, _)| at);
                if cost == 0 || policy.is_empty() {
                    prop_assert_eq!(found, Some(now));
                    continue;
                }
                prop_assert_eq!(found, expected.conforms_at(now, cost).ok().map(|(at, _)| at));
                let Some(at) = found else { continue };
                if at - now <= wait {
                    each.charge(&mut thin, [now, now, at, at], &[cost]);
                    prop_assert_eq!(expected.take(now, cost).unwrap().at, at);
                }
            }
        }

        #[test]
        fn a_usual_request_is_granted_as_any_other(limits in any_limits(), requests in any_requests()) {
            let policy = if limits.is_empty() { Policy::default() } else { policy(&limits) };
            let (mut usual, mut exact, mut now) = (Limits::new(&policy, 7), Limits::new(&policy, 7), 7);
            let mut open = None;
            for (step, wait, cost) in requests {
                now += step;
                // A waiter that gave up brought the buckets up to its time. The next clock reading may be older.
                if wait.is_multiple_of(3) {
                    usual.gather(now, now - step, cost);
                    exact.gather(now, now - step, cost);
                }
                let latest = now;
                let now = if wait.is_multiple_of(6) { now - step.min(wait) } else { now };
                let other = usual.clone();
                if let Some(grant) = usual.take_usual(now, cost) {
                    prop_assert_eq!(exact.take_within(now, cost, 0), Ok(grant));
                    // Further requests are charged while a grant is open.
                    if wait.is_multiple_of(2) && open.is_none() {
                        usual.open(&grant, cost);
                        exact.open(&grant, cost);
                        open = Some((grant, cost));
                    }
                } else {
                    prop_assert_eq!(&usual, &other, "nothing is changed");
                    let most = if wait.is_multiple_of(3) { wait } else { 0 };
                    prop_assert_eq!(usual.take_within(now, cost, most), exact.take_within(now, cost, most));
                }
                if let Some((grant, cost)) = open.take_if(|_| wait.is_multiple_of(5)) {
                    usual.settle(latest, &grant, [cost, wait % 7]);
                    exact.settle(latest, &grant, [cost, wait % 7]);
                }
                prop_assert_eq!(&usual, &exact);
            }
        }

        #[test]
        fn a_state_is_fresh_if_and_only_if_it_grants_like_a_new_one(limits in any_limits(), requests in any_requests()) {
            let policy = if limits.is_empty() { Policy::default() } else { policy(&limits) };
            let each = Each::new(&[(&policy, 0)], 7);
            let (mut thin, mut now) = (each.fresh(), 7);
            for (step, later, cost) in requests {
                now += step;
                let fresh_at = each.fresh_at(&thin);
                for time in [now, now + later, fresh_at.saturating_sub(1), fresh_at, fresh_at.saturating_add(1)] {
                    prop_assert_eq!(each.is_fresh(&thin, time), time >= fresh_at);
                }
                let start = now.max(fresh_at);
                for most in 1..50 {
                    let same = each.conforms_at(&thin, start + later, &[most]);
                    prop_assert_eq!(same, each.conforms_at(&each.fresh(), start + later, &[most]));
                }
                if let Some((at, _)) = each.conforms_at(&thin, now, &[cost]).filter(|(at, _)| *at == now) {
                    each.charge(&mut thin, [now, now, at, at], &[cost]);
                    // Until then it grants less. With several limits, a stricter one may hide that.
                    let fresh_at = each.fresh_at(&thin);
                    if cost > 0 && limits.len() == 1 && fresh_at > each.full_at {
                        let before = fresh_at - 1;
                        let differs = (1..50).any(|cost| {
                            each.conforms_at(&thin, before, &[cost]) != each.conforms_at(&each.fresh(), before, &[cost])
                        });
                        prop_assert!(differs || before == now, "fresh already at {before}");
                    }
                }
            }
        }
    }
}
