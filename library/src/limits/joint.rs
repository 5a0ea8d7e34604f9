//! Any number of limits that grant together or not at all: their fixed numbers, and pure functions of their levels and
//! of time.
//!
//! A limit that conforms stays conforming until something is granted. So the earliest common time is the latest of the
//! limits' own earliest times.

use super::bucket::{self, Bucket};
use super::costs::CostList;
use super::grant::{Charged, Refusal};
use super::levels::{Form, Levels};
use super::policy::{Policy, Resolved};
use super::state::{Gaining, Level, State};
use super::terms::Terms;
use super::window;
use crate::clock::Nanos;
use crate::rate::{ParseError, Rate};
use std::num::NonZeroU64;

/// Any number of limits that grant together or not at all, with time as a parameter. Nothing waits here: the caller keeps
/// the [`Levels`] of each key, requests a time, sleeps, and charges. A [`Ledger`](crate::ledger::Ledger) does that for
/// many keys, and an [`Account`](super::Account) for requests in one order.
///
/// Limits may count several kinds of costs, for example requests and tokens. The `costs` of a request are one number
/// for each kind. Times are in nanoseconds, of one clock.
///
/// ```
/// use throttle_limits::limits::{Limits, Policy};
///
/// let (requests, tokens) = (Policy::new(&["2/s".parse()?], None)?, Policy::new(&["1000/min,window".parse()?], None)?);
/// let limits = Limits::new(&[(&requests, 0), (&tokens, 1)], 0);
/// let mut key = limits.fresh();
/// limits.charge(&mut key, [0; 4], &[1, 800]);
/// let (at, limit) = limits.conforms_at(&key, 0, &[1, 300]).ok_or("never")?;
/// assert_eq!((at, limit), (60_000_000_000, Some(1))); // the window has room again after a minute
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) terms: Vec<Terms>,
    /// The kind of cost that each limit counts: an index into the costs of a request.
    kinds: Vec<usize>,
    /// The levels of a new key, as they were made when the run began.
    fresh: Levels,
    /// From this time on, the levels of a new key no longer change: all its buckets are full.
    full_at: Nanos,
}

/// How limits are made.
impl Limits {
    /// The limits of these policies, in their initial state at `now`. The limits of a policy count the kind of cost at
    /// the given index.
    pub fn new(policies: &[(&Policy, usize)], now: Nanos) -> Self {
        let limits = policies.iter().flat_map(|(policy, kind)| policy.limits().iter().map(|limit| (limit, *kind)));
        Limits::start(limits, now)
    }

    /// The limits of a policy, in their initial state at `now`. Each counts a kind of cost of its own, from the index
    /// `first` on.
    pub(crate) fn counting(policy: &Policy, first: usize, now: Nanos) -> Self {
        Limits::start(policy.limits().iter().zip(first..), now)
    }

    /// The limits of a policy, which all count the same cost. Every unit of the policy counts as `parts` here, so that
    /// fractions can be taken.
    ///
    /// # Errors
    /// If a rate in parts does not fit 64 bits.
    pub(crate) fn in_parts(policy: &Policy, parts: NonZeroU64, now: Nanos) -> Result<Self, ParseError> {
        Ok(Limits::new(&[(&policy.in_parts(parts)?, 0)], now))
    }

    fn start<'a>(limits: impl Iterator<Item = (&'a Resolved, usize)>, now: Nanos) -> Self {
        let (started, kinds): (Vec<_>, _) = limits.map(|(limit, kind)| (Terms::start(limit, now), kind)).unzip();
        let (terms, states) = started.into_iter().unzip();
        Limits::of(terms, kinds, states)
    }

    /// An empty set of limits.
    pub(crate) fn none() -> Self {
        Limits::of(Vec::new(), Vec::new(), Vec::new())
    }

    /// Inserts a bucket before the other limits.
    pub(crate) fn with_bucket(&self, bucket: Bucket) -> Self {
        let (mut terms, mut kinds, mut states) =
            (vec![Terms::Bucket(bucket.terms)], vec![0], vec![bucket.level.into()]);
        terms.extend(&self.terms);
        kinds.extend(&self.kinds);
        states.extend(self.fresh.to_vec());
        Limits::of(terms, kinds, states)
    }

    /// Joins these limits. Each entry counts one kind of cost.
    pub(crate) fn joined(each: &[Limits]) -> Self {
        let kinds = each.iter().enumerate().flat_map(|(kind, limits)| limits.terms.iter().map(move |_| kind));
        let terms = each.iter().flat_map(|limits| &limits.terms).copied().collect();
        Limits::of(terms, kinds.collect(), each.iter().flat_map(|limits| limits.fresh.to_vec()).collect())
    }

    /// These limits; a new key has these states.
    fn of(terms: Vec<Terms>, kinds: Vec<usize>, states: Vec<State>) -> Self {
        let limits = Limits { fresh: Levels::new(&terms, states), terms, kinds, full_at: 0 };
        Limits { full_at: limits.rests_at(&limits.fresh), ..limits }
    }

    /// These limits, with a bucket at another rate, for levels that exist: the levels of a new key are
    /// [changed](Self::begin_as) separately. A grid restarts at `start`. Does nothing if there is no bucket at this place.
    pub(crate) fn with_rate(&self, place: usize, rate: Rate, start: Nanos) -> Self {
        self.with_terms(place, |bucket| bucket.with_rate(rate, start))
    }

    /// These limits, with a bucket of another size. Does nothing if there is no bucket at this place.
    pub(crate) fn with_burst(&self, place: usize, burst: NonZeroU64) -> Self {
        self.with_terms(place, |bucket| bucket.with_burst(burst.get()))
    }

    fn with_terms(&self, place: usize, change: impl FnOnce(bucket::Terms) -> bucket::Terms) -> Self {
        let mut to = self.clone();
        if let Some(Terms::Bucket(bucket)) = to.terms.get_mut(place) {
            *bucket = change(*bucket);
        }
        to
    }

    /// The levels of a new key are those of a new key of the limits `from`, changed at `now`.
    pub(crate) fn begin_as(&mut self, from: &Limits, now: Nanos) {
        let mut fresh = from.fresh();
        from.change(&mut fresh, now, self, &[]);
        self.spill(&mut fresh, now, &[]);
        self.fresh = fresh;
        self.full_at = self.rests_at(&self.fresh);
    }

    /// The index of the fastest bucket of a policy, whose rate can be changed.
    pub(crate) fn pacing_place(policy: &Policy) -> Option<usize> {
        let rate = |limit: &Resolved| match limit {
            Resolved::Bucket { rate, .. } => Some(*rate),
            Resolved::Window { .. } => None,
        };
        let rates = policy.limits().iter().enumerate().filter_map(|(place, limit)| Some((rate(limit)?, place)));
        rates.max_by_key(|&(rate, place)| (rate, std::cmp::Reverse(place))).map(|(_, place)| place)
    }
}

/// Facts about limits.
impl Limits {
    /// The levels of a new key.
    pub fn fresh(&self) -> Levels {
        self.fresh.clone()
    }

    /// The number of limits.
    pub(crate) fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether one of the limits is a window.
    pub fn has_windows(&self) -> bool {
        self.terms.iter().any(|terms| terms.as_window().is_some())
    }

    /// Whether all limits are buckets without a grid.
    pub(crate) fn are_usual(&self) -> bool {
        self.terms.iter().all(|terms| terms.as_usual_bucket().is_some())
    }

    /// Whether a queue of costs is paid by the same time as a single cost of their sum. A single bucket does that,
    /// because the rest of a refill goes to the next cost.
    pub(crate) fn pays_steadily(&self) -> bool {
        matches!(*self.terms, [] | [Terms::Bucket(_)])
    }

    /// How far a grant may lie in the past when its unit leaves, in nanoseconds. It is a tenth of the time in which the
    /// quickest bucket fills, but at least 10 ms or that whole time, whichever is less. `None` without buckets.
    pub fn allowance(&self) -> Option<Nanos> {
        self.terms.iter().filter_map(Terms::allowance).min()
    }

    /// The time in which the quickest bucket fills. `None` without buckets.
    pub(crate) fn fill_time(&self) -> Option<Nanos> {
        self.terms.iter().filter_map(Terms::fill_time).min()
    }

    /// The time from the last grant until every limit is at rest again: buckets are full, and windows are empty.
    pub(crate) fn rest_time(&self) -> Nanos {
        self.terms.iter().map(Terms::rest_time).max().unwrap_or(0)
    }

    /// For each limit, the kind of cost that it counts, and the time that it needs for a cost of 1 at its rate. The
    /// time is in 2<sup>-`bits`</sup> nanoseconds.
    pub(crate) fn lengths(&self, bits: u32) -> Vec<(usize, u64)> {
        let length = |terms: &Terms| (u128::from(terms.rest_time()) << bits).div_ceil(terms.most().into());
        let of = |(terms, kind): (&Terms, &usize)| (*kind, u64::try_from(length(terms)).unwrap_or(u64::MAX));
        self.terms.iter().zip(&self.kinds).map(of).collect()
    }

    /// The most units of a kind of cost at one instant, and in one grant after any wait: the count of the smallest
    /// window.
    pub(crate) fn most(&self, kind: usize) -> (u64, u64) {
        let of_kind = || self.terms.iter().zip(&self.kinds).filter(|(_, own)| **own == kind).map(|(terms, _)| terms);
        let least = |terms: &mut dyn Iterator<Item = &Terms>| terms.map(Terms::most).min().unwrap_or(u64::MAX);
        (least(&mut of_kind()), least(&mut of_kind().filter(|terms| terms.as_window().is_some())))
    }

    /// Whether no wait is long enough for these costs, because one is above a window's count.
    pub fn never_grants(&self, costs: &[u64]) -> bool {
        let is_above = |(place, terms): (usize, &Terms)| {
            terms.as_window().is_some_and(|window| self.cost(place, costs) > window.count())
        };
        self.terms.iter().enumerate().any(is_above)
    }

    /// The most bytes of the saved levels of a key with `open` open grants.
    pub(crate) fn bytes_of_levels(&self, open: usize) -> usize {
        let of = |terms: &Terms| match terms.as_window() {
            Some(window) => 24 + 12 * usize::try_from(window.count().min(window::MAX_EXACT_UNITS + 1)).unwrap_or(0),
            None => 24 + 48 * open,
        };
        self.terms.iter().map(of).sum::<usize>()
    }

    /// The cost that the limit at `place` charges.
    #[inline]
    fn cost(&self, place: usize, costs: &[u64]) -> u64 {
        costs.of(self.kinds[place])
    }
}

/// Questions about levels.
impl Limits {
    /// The earliest time, not before `now` nor before the last grant, at which every limit conforms. Also returns the
    /// index of the limit that causes the wait, if there is a wait.
    ///
    /// `None` if a cost is above a window's count and so is never granted, or if the time is beyond the end of the
    /// clock.
    pub fn conforms_at(&self, levels: &Levels, now: Nanos, costs: &[u64]) -> Option<(Nanos, Option<usize>)> {
        // A window alone may have room before the last grant.
        self.conforms_from(levels, now, |state| now.max(state.level.at), costs)
    }

    /// Like [`conforms_at`](Self::conforms_at), for a caller who keeps grants in their order: not before `from`. A window
    /// may have room before its latest unit was handed over.
    pub fn has_room_at(
        &self,
        levels: &Levels,
        [requested, from]: [Nanos; 2],
        costs: &[u64],
    ) -> Option<(Nanos, Option<usize>)> {
        self.conforms_from(levels, from, |_| requested, costs)
    }

    /// The earliest time, not before `from`, at which every limit conforms to a request from the time that `start` returns
    /// for its state.
    #[inline]
    fn conforms_from(
        &self,
        levels: &Levels,
        from: Nanos,
        start: impl Fn(&State) -> Nanos,
        costs: &[u64],
    ) -> Option<(Nanos, Option<usize>)> {
        levels.with(|states| {
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
        })
    }

    /// The number of requests in a row with these costs that conform at `now`.
    pub fn available(&self, levels: &Levels, now: Nanos, costs: &[u64]) -> u64 {
        let of = |(place, terms, state): (usize, &Terms, &State)| match self.cost(place, costs) {
            0 => u64::MAX,
            _ if state.level.at > now => 0,
            cost => terms.available(state, now) / cost,
        };
        levels.with(|states| self.each(states).map(of).min().unwrap_or(u64::MAX))
    }

    /// For each limit: the units that it allows at `now`; negative if units are owed.
    pub(crate) fn left(&self, levels: &Levels, now: Nanos) -> Vec<i128> {
        levels.with(|states| self.each(states).map(|(_, terms, state)| terms.left(state, now)).collect())
    }

    /// The units of a kind that are left at `now`, or after the latest grant if that is later: negative if units are owed.
    /// `None` if no limit counts the kind.
    pub(crate) fn left_of(&self, levels: &Levels, now: Nanos, kind: usize) -> Option<i128> {
        levels.with(|states| {
            let of_kind = self.each(states).filter(|(place, ..)| self.kinds[*place] == kind);
            of_kind.map(|(_, terms, state)| terms.left(state, now.max(state.level.at))).min()
        })
    }

    /// The time, not before `now`, by which these further costs will have been granted if requests never pause: the latest
    /// of the times of the single limits. `None` beyond the end of the clock.
    pub(crate) fn schedule(&self, levels: &Levels, now: Nanos, costs: &[u64]) -> Option<Nanos> {
        levels.with(|states| {
            let mut times = self.each(states).map(|(place, terms, state)| match self.cost(place, costs) {
                0 => Some(now),
                units => terms.schedule(state, now, units),
            });
            times.try_fold(now, |latest, time| Some(latest.max(time?)))
        })
    }

    /// Whether the levels equal a new key's, at `now` and ever after.
    pub fn is_fresh(&self, levels: &Levels, now: Nanos) -> bool {
        // At the time of its last grant a bucket may hold more than its burst.
        let rests = |(_, terms, state): (usize, &Terms, &State)| state.level.at < now && terms.at_rest(state, now);
        (now >= self.full_at && levels.with(|states| self.each(states).all(rests))) || *levels == self.fresh
    }

    /// Whether all buckets are full and all windows are empty at `time`, which is not before the latest charge.
    #[inline]
    pub(crate) fn is_at_rest(&self, levels: &Levels, time: Nanos) -> bool {
        levels.with(|states| self.each(states).all(|(_, terms, state)| terms.at_rest(state, time)))
    }

    /// The time from which on the levels [are fresh](Self::is_fresh) if nothing more is granted.
    pub fn fresh_at(&self, levels: &Levels) -> Nanos {
        if *levels == self.fresh { 0 } else { self.rests_at(levels).max(self.full_at) }
    }

    fn rests_at(&self, levels: &Levels) -> Nanos {
        let rests = |(_, terms, state): (usize, &Terms, &State)| {
            let after = state.level.at.saturating_add(1);
            terms.conforms_at(state, 0, terms.most()).map_or(Nanos::MAX, |time| time.max(after))
        };
        levels.with(|states| self.each(states).map(rests).max().unwrap_or(0))
    }

    /// Whether levels that were read are possible for these limits.
    pub(crate) fn has_sense(&self, levels: &Levels) -> bool {
        levels.with(|states| {
            states.len() == self.len() && self.each(states).all(|(_, terms, state)| terms.has_sense(state))
        })
    }

    /// Whether other limits have the same numbers.
    pub(crate) fn are_like(&self, other: &Limits) -> bool {
        self.terms == other.terms && self.kinds == other.kinds
    }

    /// The levels without open grants: all costs are final.
    pub(crate) fn closed(&self, levels: &Levels) -> Levels {
        Levels::new(&self.terms, levels.with(|states| states.iter().map(State::closed).collect()))
    }

    /// The level of the only limit, if it is a bucket that holds at most its burst.
    pub(crate) fn fast_path(&self, levels: &Levels) -> Option<Gaining> {
        let [Terms::Bucket(bucket)] = &*self.terms else { return None };
        levels.with(|states| bucket.fast_path(states[0].level))
    }

    fn each<'a>(&'a self, states: &'a [State]) -> impl Iterator<Item = (usize, &'a Terms, &'a State)> {
        self.terms.iter().zip(states).enumerate().map(|(place, (terms, state))| (place, terms, state))
    }
}

/// Changes of levels.
impl Limits {
    /// Takes these costs now, or nothing.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is taken then.
    #[inline]
    pub fn take(&self, levels: &mut Levels, now: Nanos, costs: &[u64]) -> Result<(), Refusal> {
        // The usual case, without a copy of the state.
        if let (Form::One(level), [Terms::Bucket(terms)], [cost]) = (&mut levels.0, &*self.terms, costs)
            && let Some(left) = terms.after_usual(*level, now, *cost)
        {
            *level = Level { amount: left, at: now };
            return Ok(());
        }
        match self.conforms_at(levels, now, costs) {
            Some((at, _)) if at > now => Err(Refusal::TooLong { wait: at - now }),
            Some(_) => {
                self.charge(levels, [now; 4], costs);
                Ok(())
            }
            None => Err(Refusal::Never),
        }
    }

    /// A fast path: takes these costs at `now`, which is not before the latest grant, if all limits are buckets without a
    /// grid that hold enough and at most their bursts. Returns whether they were taken.
    #[inline]
    pub(crate) fn take_usual(&self, levels: &mut Levels, now: Nanos, costs: &[u64]) -> bool {
        let left = |place: usize, state: &State| {
            self.terms[place].as_usual_bucket()?.after_usual(state.level, now, self.cost(place, costs))
        };
        levels.with_mut(|states| {
            if states.iter().enumerate().any(|(place, state)| left(place, state).is_none()) {
                return false;
            }
            for (place, state) in states.iter_mut().enumerate() {
                match left(place, state) {
                    Some(left) if state.is_level() => state.level = Level { amount: left, at: now },
                    _ => self.terms[place].charge(state, [now; 4], self.cost(place, costs)),
                }
            }
            true
        })
    }

    /// Charges a request that was made at `requested` and is granted at `grant`, which is not before
    /// [`conforms_at`](Self::conforms_at) of `requested`. Windows count the request from `counted`, which is not before
    /// `grant`, and forget entries that no longer count at `since`. For a request that is made and granted now, all
    /// four times are now.
    pub fn charge(&self, levels: &mut Levels, [since, requested, grant, counted]: [Nanos; 4], costs: &[u64]) {
        let times = [since, requested, grant, counted];
        self.revise(levels, |place, terms, state| match self.cost(place, costs) {
            0 => {} // A unit of cost 0 does not change a limit: keys do not wait for each other.
            cost => terms.charge(state, times, cost),
        });
    }

    /// Like [`charge`](Self::charge), for requests in one order: later ones begin to gather after this one, also in limits
    /// that this one costs nothing.
    pub(crate) fn charge_in_order(&self, levels: &mut Levels, times: [Nanos; 4], costs: &[u64]) {
        self.revise(levels, |place, terms, state| terms.charge(state, times, self.cost(place, costs)));
    }

    /// Opens the latest charge, which has these costs, so that it can be [settled](Self::settle). It takes memory until
    /// it is settled.
    pub fn open(&self, levels: &mut Levels, grant: Charged, costs: &[u64]) {
        levels.widen();
        self.revise(levels, |place, terms, state| {
            if let Terms::Bucket(bucket) = terms {
                bucket.open(state, grant.number, grant.at, self.cost(place, costs));
            }
        });
    }

    /// Whether no window has given the room of this grant to others by `now`, when its unit is handed over. If the grant
    /// no longer counts and the room `is_promised`, it is not kept.
    pub(crate) fn keeps_room(
        &self,
        levels: &Levels,
        grant: Charged,
        costs: &[u64],
        now: Nanos,
        is_promised: bool,
    ) -> bool {
        levels.with(|states| {
            self.each(states).all(|(place, terms, state)| match (self.cost(place, costs), terms.as_window()) {
                (0, _) | (_, None) => true,
                (_, Some(window)) if is_promised => window.counts(grant.counted, now),
                (cost, Some(window)) => window.keeps_room(state, grant.counted, cost, now),
            })
        })
    }

    /// Windows count the grant from `now`, when its unit was handed over, and no longer from `grant.counted`. Returns
    /// the grant as it counts now: unchanged if a window has given its room to other grants meanwhile.
    #[must_use]
    pub fn hand_over(&self, levels: &mut Levels, grant: Charged, costs: &[u64], now: Nanos) -> Charged {
        let mut counted = now;
        levels.with_mut(|states| {
            for (place, (terms, state)) in self.terms.iter().zip(states).enumerate() {
                let (cost, Some(window)) = (self.cost(place, costs), terms.as_window()) else { continue };
                if cost > 0 && !window.hand_over(state, grant.counted, cost, now) {
                    counted = grant.counted;
                }
            }
        });
        Charged { counted, ..grant }
    }

    /// Settles a grant at its real costs: `costs` are the charged costs and the real costs. The limits are then as if
    /// the grant had cost its real costs from the start. Windows use the time `latest`, which is not before `now` nor the
    /// latest grant.
    ///
    /// With too many open grants, this one may no longer be [open](Self::open). Then a higher cost is owed, and a lower
    /// one is credited less the gain of the limits since.
    pub fn settle(&self, levels: &mut Levels, [now, latest]: [Nanos; 2], grant: Charged, costs: [&[u64]; 2]) {
        self.revise(levels, |place, terms, state| {
            let costs = costs.map(|costs| self.cost(place, costs));
            match terms {
                Terms::Bucket(bucket) => bucket.settle(state, now, (grant.number, grant.at), costs),
                Terms::Window(window) => window.correct(state, latest, grant.counted, costs),
            }
        });
        levels.narrow(&self.terms);
    }

    /// Gives back a grant that was not used. Windows may have been replaced since, and then do not know it.
    pub(crate) fn give_back(&self, levels: &mut Levels, now: Nanos, grant: Charged, costs: &[u64]) {
        self.revise(levels, |place, terms, state| match (terms, self.cost(place, costs)) {
            (Terms::Bucket(bucket), cost) => bucket.settle(state, now, (grant.number, grant.at), [cost, 0]),
            (Terms::Window(_), cost) => window::Terms::give_back(state, grant.counted, cost),
        });
    }

    /// Forgets the units in windows in which none counts any more at `now`: they do not count again in a longer window.
    pub(crate) fn expire(&self, levels: &mut Levels, now: Nanos) {
        self.revise(levels, |_, terms, state| {
            if terms.as_window().is_some() && terms.at_rest(state, now) {
                *state = State::from(Level { amount: 0, at: now });
            }
        });
    }

    /// Continues with the limits `to` from `now` on: units that no longer count are forgotten, and credit above the new
    /// bursts is lost. A request that waits keeps what it has gathered: `waits` is when it began to wait, and its costs.
    pub(crate) fn continue_as(
        &self,
        to: &Limits,
        levels: &mut Levels,
        now: Nanos,
        fresh: &[bool],
        waits: Option<(Nanos, &[u64])>,
    ) {
        let costs = waits.map_or(&[][..], |(_, costs)| costs);
        if let Some((arrived, costs)) = waits {
            self.gather(levels, [now, arrived], costs);
        }
        self.expire(levels, now);
        self.change(levels, now, to, fresh);
        to.spill(levels, now, costs);
    }

    /// Continues with the limits `to` from `now` on. A limit at the same index and of the same kind keeps its credit or
    /// count, unless it is `fresh`.
    pub(crate) fn change(&self, levels: &mut Levels, now: Nanos, to: &Limits, fresh: &[bool]) {
        let (old, mut new) = (levels.to_vec(), to.fresh.to_vec());
        let each = self.terms.iter().zip(old).zip(to.terms.iter().zip(&mut new)).enumerate();
        for (place, ((from, old), (terms, new))) in each {
            match (from, terms) {
                _ if fresh.get(place) == Some(&true) => {}
                (Terms::Bucket(from), Terms::Bucket(bucket)) => {
                    *new = old;
                    from.change(new, now, bucket);
                }
                (Terms::Window(_), Terms::Window(_)) => *new = old,
                _ => {}
            }
        }
        *levels = Levels::new(&to.terms, new);
    }

    /// The levels with each limit that is at rest at `time` as in the levels of a new key. They behave the same.
    pub(crate) fn tidied(&self, levels: &Levels, time: Nanos) -> Levels {
        if time < self.full_at {
            return levels.clone();
        }
        let tidied = |((terms, old), new): ((&Terms, State), State)| {
            let rests = old.level.at < time && terms.at_rest(&old, time) && old.open().is_none();
            if rests { new } else { old }
        };
        let each = self.terms.iter().zip(levels.to_vec()).zip(self.fresh.to_vec());
        Levels::new(&self.terms, each.map(tidied).collect())
    }

    /// Takes everything that the limits allow at `now`, and more than that: buckets are empty, and windows are full.
    pub(crate) fn use_up(&self, levels: &mut Levels, now: Nanos) {
        self.revise(levels, |_, terms, state| match terms {
            Terms::Bucket(bucket) => bucket.empty(state, now),
            Terms::Window(window) => window.charge(state, now, now, window.available(state, now)),
        });
    }

    /// Empties the buckets at `until`. Windows do not change, so the caller itself must grant nothing before that time.
    pub fn empty(&self, levels: &mut Levels, until: Nanos) {
        self.revise_buckets(levels, |_, bucket, state| bucket.empty(state, until));
    }

    /// Brings the buckets up to `now` for a waiter of these costs, whose request was made at `requested`.
    pub(crate) fn gather(&self, levels: &mut Levels, [now, requested]: [Nanos; 2], costs: &[u64]) {
        self.revise_buckets(levels, |place, bucket, state| {
            bucket.gather(state, now, requested, self.cost(place, costs));
        });
    }

    /// Drops credit above the burst at `now`, except what a waiter of these costs has gathered.
    pub(crate) fn spill(&self, levels: &mut Levels, now: Nanos, costs: &[u64]) {
        self.revise_buckets(levels, |place, bucket, state| bucket.spill(state, now, self.cost(place, costs)));
    }

    /// No waiter remains: the rest of a refill is kept up to the size of the bucket.
    pub(crate) fn overflow(&self, levels: &mut Levels) {
        self.revise_buckets(levels, |_, bucket, state| {
            if bucket.is_on_grid {
                bucket.spill(state, 0, 0); // At the time of the level.
            }
        });
    }

    /// The schedule of a request made at `requested` is later by `by` nanoseconds, in which the bucket at `place` gains
    /// nothing.
    pub(crate) fn delay(&self, levels: &mut Levels, place: usize, requested: Nanos, by: Nanos) {
        self.revise_buckets(levels, |own, bucket, state| {
            if own == place {
                bucket.delay(state, requested, by);
            }
        });
    }

    /// Charges units that were used without a grant. Missing units become a debt.
    pub(crate) fn pay(&self, levels: &mut Levels, now: Nanos, costs: &[u64]) {
        self.revise(levels, |place, terms, state| terms.pay(state, now, self.cost(place, costs)));
    }

    /// Credits granted units that were not used, up to the burst.
    pub(crate) fn credit(&self, levels: &mut Levels, now: Nanos, costs: &[u64]) {
        self.revise(levels, |place, terms, state| terms.credit(state, now, self.cost(place, costs)));
    }

    /// Takes over the level of the only bucket from the fast path: `missing` credits at `at`.
    pub(crate) fn resume(&self, levels: &mut Levels, missing: u128, at: Nanos) {
        self.revise_buckets(levels, |_, bucket, state| state.level = bucket.resume(missing, at));
    }

    /// Changes each limit by `act`, which also gets its index.
    #[inline]
    fn revise(&self, levels: &mut Levels, act: impl Fn(usize, &Terms, &mut State)) {
        levels.with_mut(|states| {
            for (place, (terms, state)) in self.terms.iter().zip(states).enumerate() {
                act(place, terms, state);
            }
        });
    }

    fn revise_buckets(&self, levels: &mut Levels, act: impl Fn(usize, &bucket::Terms, &mut State)) {
        self.revise(levels, |place, terms, state| {
            if let Terms::Bucket(bucket) = terms {
                act(place, bucket, state);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::limits::Account;
    use proptest::prelude::*;

    fn policy(limits: &[&str]) -> Policy {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Policy::new(&limits, None).unwrap()
    }

    #[test]
    fn each_limit_counts_its_kind() {
        let (requests, tokens) = (policy(&["2/s,burst=2"]), policy(&["100/s,burst=100", "500/min,window"]));
        let limits = Limits::new(&[(&requests, 0), (&tokens, 1)], 0);
        let mut levels = limits.fresh();
        assert_eq!(limits.conforms_at(&levels, 0, &[1, 100]), Some((0, None)));
        limits.charge(&mut levels, [0; 4], &[1, 100]);
        assert_eq!(limits.conforms_at(&levels, 0, &[1, 10]), Some((100_000_000, Some(1))));
        assert_eq!(limits.conforms_at(&levels, 0, &[1, 0]), Some((0, None)));
        assert_eq!(limits.conforms_at(&levels, 0, &[2, 10]), Some((500_000_000, Some(0))));
        assert_eq!(limits.conforms_at(&levels, 0, &[1, 501]), None);
        assert_eq!(limits.fresh_at(&levels), 60_000_000_000);
        // The quickest bucket has the least allowance, and each limit a length.
        let (slow, quick) = (policy(&["1/s,burst=30", "7/3s,window,slack=0"]), policy(&["10/s,burst=10"]));
        let limits = Limits::new(&[(&slow, 2), (&quick, 0)], 0);
        assert_eq!(
            (limits.allowance(), limits.lengths(8)),
            (Some(SECOND / 10), vec![(2, SECOND << 8), (2, ((3 * SECOND) << 8) / 7 + 1), (0, (SECOND << 8) / 10)])
        );
        assert_eq!(Limits::new(&[(&policy(&["7/3s,window"]), 0)], 0).allowance(), None);
    }

    #[test]
    fn requests_in_a_row_are_counted_from_the_latest_grant_on() {
        let (bucket, window) = (policy(&["1/s,burst=9"]), policy(&["5/s,window"]));
        let limits = Limits::new(&[(&bucket, 0), (&window, 1)], 0);
        assert!(limits.has_windows() && !Limits::new(&[(&bucket, 0)], 0).has_windows());
        let mut levels = limits.fresh();
        let of = |levels: &Levels, now, costs: &[u64]| limits.available(levels, now, costs);
        let costs = [[1, 0], [2, 1], [9, 1], [1, 2], [0, 0]];
        assert_eq!(costs.map(|costs| of(&levels, 0, &costs)), [9, 4, 1, 2, u64::MAX]);
        limits.charge(&mut levels, [0; 4], &[3, 1]);
        assert_eq!(of(&levels, 0, &[2, 1]), 3, "at the time of the grant");
        let limits = Limits::new(&[(&bucket, 0)], 0);
        let mut levels = limits.fresh();
        limits.charge(&mut levels, [0, 0, 2 * SECOND, 2 * SECOND], &[1]);
        assert_eq!([1, 2].map(|second| limits.available(&levels, second * SECOND, &[1])), [0, 8]);
        let refused = Err(Refusal::TooLong { wait: SECOND });
        assert_eq!([1, 2].map(|second| limits.take(&mut levels, second * SECOND, &[1])), [refused, Ok(())]);
    }

    /// A nanosecond's gain of this rate is more than the burst. What a grant leaves of it is kept, and is lost only
    /// later.
    #[test]
    fn a_key_that_holds_more_than_a_new_key_is_not_fresh() {
        let limits = Limits::new(&[(&policy(&["2500000000/s,burst=1"]), 0)], 0);
        let mut levels = limits.fresh();
        limits.charge(&mut levels, [0; 4], &[1]);
        assert_eq!(limits.conforms_at(&levels, 0, &[1]), Some((1, Some(0))));
        limits.charge(&mut levels, [0, 0, 1, 1], &[1]);
        assert_eq!([1, 2].map(|now| limits.is_fresh(&levels, now)), [false, true]);
        // A key that had other limits before may be full while new keys are not.
        let of = |limit| Limits::new(&[(&policy(&[limit]), 0)], 0);
        let (limits, full) = (of("1/s,burst=5,initial=0"), of("1/s,burst=5").fresh());
        assert_eq!(limits.fresh_at(&full), 5 * SECOND);
        assert_eq!([5 * SECOND - 1, 5 * SECOND].map(|now| limits.is_fresh(&full, now)), [false, true]);
    }

    #[test]
    fn the_most_bytes_of_a_state_depend_on_windows_and_open_grants() {
        for (limits, open, bytes) in [
            (&["5/s"][..], 0, 24),
            (&["5/s,window"], 0, 24 + 12 * 5),
            (&["5000/h,window"], 0, 24 + 12 * 1025),
            (&["5/s,burst=1", "9/s,window"], 3, 24 + (24 + 12 * 9) + 3 * 48),
        ] {
            assert_eq!(Limits::new(&[(&policy(limits), 0)], 0).bytes_of_levels(open), bytes, "{limits:?}");
        }
    }

    #[test]
    fn a_state_of_other_limits_has_no_sense() {
        let of = |limits| Limits::new(&[(&policy(limits), 0)], 0);
        let limits = [of(&["5/s,burst=2"]), of(&["5/s,window"]), of(&["5/s,burst=1", "9/s,window"])];
        let used = |limits: &Limits| {
            let mut levels = limits.fresh();
            limits.charge(&mut levels, [0; 4], &[1]);
            limits.open(&mut levels, Charged { at: 0, counted: 0, number: 1 }, &[1]);
            levels
        };
        for (place, levels) in limits.iter().map(used).enumerate() {
            let found: Vec<_> = limits.iter().map(|limits| limits.has_sense(&levels)).collect();
            assert_eq!(found, [0, 1, 2].map(|other| other == place), "{levels:?}");
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
            let (limits, mut expected) = (Limits::new(&[(&policy, 0)], 7), Account::new(&policy, 7));
            let (mut levels, mut now) = (limits.fresh(), 7);
            for (step, wait, cost) in requests {
                now += step;
                let found = limits.conforms_at(&levels, now, &[cost]).map(|(at, _)| at);
                if cost == 0 || policy.is_empty() {
                    prop_assert_eq!(found, Some(now));
                    continue;
                }
                prop_assert_eq!(found, expected.conforms_at(now, cost).ok().map(|(at, _)| at));
                let Some(at) = found else { continue };
                if at - now <= wait {
                    limits.charge(&mut levels, [now, now, at, at], &[cost]);
                    prop_assert_eq!(expected.take(now, cost).unwrap().at, at);
                }
            }
        }

        #[test]
        fn a_usual_request_is_granted_as_any_other(limits in any_limits(), requests in any_requests()) {
            let policy = if limits.is_empty() { Policy::default() } else { policy(&limits) };
            let (mut usual, mut exact, mut now) = (Account::new(&policy, 7), Account::new(&policy, 7), 7);
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
            let limits = Limits::new(&[(&policy, 0)], 7);
            let (mut levels, mut now) = (limits.fresh(), 7);
            for (step, later, cost) in requests {
                now += step;
                let fresh_at = limits.fresh_at(&levels);
                for time in [now, now + later, fresh_at.saturating_sub(1), fresh_at, fresh_at.saturating_add(1)] {
                    prop_assert_eq!(limits.is_fresh(&levels, time), time >= fresh_at);
                }
                let start = now.max(fresh_at);
                for most in 1..50 {
                    let same = limits.conforms_at(&levels, start + later, &[most]);
                    prop_assert_eq!(same, limits.conforms_at(&limits.fresh(), start + later, &[most]));
                }
                if let Some((at, _)) = limits.conforms_at(&levels, now, &[cost]).filter(|(at, _)| *at == now) {
                    limits.charge(&mut levels, [now, now, at, at], &[cost]);
                    // Until then it grants less. With several limits, a stricter one may hide that.
                    let fresh_at = limits.fresh_at(&levels);
                    if cost > 0 && limits.len() == 1 && fresh_at > limits.full_at {
                        let before = fresh_at - 1;
                        let differs = (1..50).any(|cost| {
                            limits.conforms_at(&levels, before, &[cost]) != limits.conforms_at(&limits.fresh(), before, &[cost])
                        });
                        prop_assert!(differs || before == now, "fresh already at {before}");
                    }
                }
            }
        }
    }
}
