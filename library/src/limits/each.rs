//! The same limits for each of many keys: what all keys share, and the thin state of one key.
//!
//! What is needed to settle grants is kept with the state of a key, but only while it has grants that may be settled.

use super::fixed::Fixed;
use super::grant::Refusal;
use super::policy::Policy;
use super::settling::Settling;
use super::state::{Level, State};
use super::terms::Terms;
use super::together::Limits;
use super::window;
use crate::clock::Nanos;

/// The same limits for each of many keys, with time as a parameter. Nothing waits here: the caller keeps a [`Thin`] for each
/// key, asks for a time, sleeps, and charges. [`Keyed`](crate::limiter::Keyed) does all that.
///
/// Limits may count several kinds of costs, for example requests and tokens. The `costs` of a request are one number for
/// each kind. Times are in nanoseconds, of one clock.
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
    /// The state of a key that was never seen: as it was made when the run began.
    fresh: Thin,
    /// The time from which on the state of a fresh key no longer changes: all its buckets are full.
    full_at: Nanos,
}

/// The state of one key, in 32 bytes. A single bucket, the usual case, needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub struct Thin(pub(super) Form);

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Form {
    One(Level),
    Several(Box<[State]>),
    /// Some grants may be settled.
    Open(Box<(Vec<State>, Settling)>),
}

/// When a unit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The earliest time at which all limits conformed, but not longer ago than the lag allowance.
    pub at: Nanos,
    /// Windows count it from this time: when it left.
    pub counted: Nanos,
    /// Grants that may be settled have increasing numbers.
    pub number: u64,
}

impl Default for Thin {
    fn default() -> Self {
        Thin(Form::Several(Box::default()))
    }
}

impl Each {
    /// The limits of these policies, in their initial state at `now`. The limits of a policy count the kind of cost with
    /// the index beside it.
    #[must_use]
    pub fn new(policies: &[(&Policy, usize)], now: Nanos) -> Self {
        let (fixed, states) = Fixed::start(policies.iter().map(|(policy, kind)| (*policy, Some(*kind))), now);
        Each::start(fixed, states)
    }

    /// The same limits for each key, in the state that these have.
    pub(crate) fn of(limits: Limits) -> Self {
        Each::start(limits.fixed, limits.states)
    }

    fn start(fixed: Fixed, states: Vec<State>) -> Self {
        let each = Each { fresh: Thin::of(&fixed.terms, states), fixed, full_at: 0 };
        Each { full_at: each.rests_at(&each.fresh), ..each }
    }

    /// The limits of a key in this state. Nothing of it is in the future at `now`.
    pub(crate) fn limits(&self, thin: &Thin, now: Nanos) -> Limits {
        Limits::of(self.fixed.clone(), thin.with(<[State]>::to_vec), now)
    }

    /// The state of a key with these limits, of which no grant is open. `None` if they are other limits.
    pub(crate) fn state_of(&self, limits: &Limits) -> Option<Thin> {
        (limits.fixed == self.fixed).then(|| Thin::of(&self.fixed.terms, limits.states.clone()))
    }

    /// The bytes that the state of a key may take at most where it is saved, with so many open grants.
    pub(crate) fn bytes_of_state(&self, open: usize) -> usize {
        let of = |terms: &Terms| match terms.as_window() {
            Some(window) => 24 + 12 * usize::try_from(window.count().min(window::EXACT + 1)).unwrap_or(0),
            None => 24,
        };
        let grants = open * (8 + 40 * self.fixed.terms.len());
        self.fixed.terms.iter().map(of).sum::<usize>() + grants
    }

    /// Whether a state that was read can be one of these limits.
    #[cfg(feature = "shared")]
    pub(crate) fn has_sense(&self, thin: &Thin) -> bool {
        let is_one = |states: &[State]| {
            states.len() == self.fixed.terms.len()
                && self.fixed.each(states).all(|(_, terms, state)| terms.has_sense(state))
        };
        let has_settling = if let Form::Open(open) = &thin.0 { open.1.has_sense(open.0.len()) } else { true };
        thin.with(is_one) && has_settling
    }

    /// The state of a key that was never seen.
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

    /// How far a grant may lie in the past when its unit leaves, in nanoseconds: a tenth of the time in which the quickest
    /// bucket fills, but at least 10 ms or that whole time, whichever is less. `None` without buckets.
    #[must_use]
    pub fn allowance(&self) -> Option<Nanos> {
        self.fixed.terms.iter().filter_map(Terms::allowance).min()
    }

    /// The longest time in which a limit is at rest again after a grant: a bucket full, a window empty.
    pub(crate) fn rest_time(&self) -> Nanos {
        self.fixed.terms.iter().map(Terms::rest_time).max().unwrap_or(0)
    }

    /// The kind of cost that each limit counts, and the time that the limit needs for a cost of 1 at its rate, in
    /// 2<sup>-`bits`</sup> nanoseconds.
    pub(crate) fn lengths(&self, bits: u32) -> Vec<(usize, u64)> {
        let length = |terms: &Terms| (u128::from(terms.rest_time()) << bits).div_ceil(terms.most().into());
        let of = |(terms, kind): (&Terms, &usize)| (*kind, u64::try_from(length(terms)).unwrap_or(u64::MAX));
        self.fixed.terms.iter().zip(&self.fixed.kinds).map(of).collect()
    }

    /// Whether no wait is long enough for these costs: one is above a window's count.
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
    /// `None` for a cost above a window's count, which is never granted, and beyond the end of the clock.
    #[must_use]
    pub fn conforms_at(&self, thin: &Thin, now: Nanos, costs: &[u64]) -> Option<(Nanos, Option<usize>)> {
        // A window alone may have room before the last grant.
        let start = |state: &State| now.max(state.level.at);
        thin.with(|states| self.fixed.conforms_at(states, now, start, costs))
    }

    /// The earliest time, not before `asked`, at which all limits conform, for a caller who keeps grants in their order: a
    /// window may have room before its latest unit was handed over. `None` if that is never.
    #[must_use]
    pub fn has_room_at(&self, thin: &Thin, asked: Nanos, costs: &[u64]) -> Option<Nanos> {
        thin.with(|states| self.fixed.conforms_at(states, asked, |_| asked, costs)).map(|(at, _)| at)
    }

    /// Takes these costs now, or nothing.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is taken then.
    #[inline]
    pub fn take(&self, thin: &mut Thin, now: Nanos, costs: &[u64]) -> Result<(), Refusal> {
        // The usual case, without a copy of the state: a bucket that holds no more than its burst.
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

    /// How many requests in a row with these costs conform at `now`.
    #[must_use]
    pub fn available(&self, thin: &Thin, now: Nanos, costs: &[u64]) -> u64 {
        let of = |(place, terms, state): (usize, &Terms, &State)| match self.fixed.cost(place, costs) {
            0 => u64::MAX,
            _ if state.level.at > now => 0,
            cost => terms.available(state, now) / cost,
        };
        thin.with(|states| self.fixed.each(states).map(of).min().unwrap_or(u64::MAX))
    }

    /// Charges a request at `grant`, a time not before [`conforms_at`](Self::conforms_at)`(asked)`, if it was made at `asked`.
    /// Windows count it from `counted`, which is not before `grant`, and forget what no longer counts at `since`. For a
    /// request that is made and granted now, all four times are now.
    pub fn charge(&self, thin: &mut Thin, [since, asked, grant, counted]: [Nanos; 4], costs: &[u64]) {
        let times = [since, asked, grant, counted];
        // Keys do not wait for each other, so a limit that a unit of one key passes free knows nothing of it.
        thin.with_mut(|states, settling| self.fixed.charge(states, settling, times, costs, |cost| cost > 0));
    }

    /// The latest charge, of these costs, may be [settled](Self::settle) later. Until then it takes memory.
    pub fn open(&self, thin: &mut Thin, grant: Charged, costs: &[u64]) {
        if self.is_empty() {
            return;
        }
        if !matches!(thin.0, Form::Open(_)) {
            let states = thin.with(<[State]>::to_vec);
            thin.0 = Form::Open(Box::new((states, Settling::default())));
        }
        thin.with_mut(|states, settling| {
            self.fixed.open(states, settling, (grant.number, [grant.at, grant.counted]), costs);
        });
    }

    /// Windows count from `now` on what they counted from its time until now: it was handed over.
    pub fn hand_over(&self, thin: &mut Thin, grant: Charged, costs: &[u64], now: Nanos) {
        thin.with_mut(|states, settling| {
            for (place, (terms, state)) in self.fixed.terms.iter().zip(states).enumerate() {
                let cost = self.fixed.cost(place, costs);
                if let Some(window) = terms.as_window()
                    && (cost == 0 || window.hand_over(state, grant.counted, cost, now))
                {
                    settling.counted_from(grant.number, place, now);
                }
            }
        });
    }

    /// Settles a grant that was charged the first costs at its real costs, the second: the limits are as if it had cost that
    /// from the start. If it is not [open](Self::open) any more, because there are too many of them, what it cost less is
    /// given back as for a grant that was not used, and what it cost more is owed.
    pub fn settle(&self, thin: &mut Thin, now: Nanos, grant: Charged, costs: [&[u64]; 2]) {
        let known = (grant.number, [grant.at, grant.counted]);
        thin.with_mut(|states, settling| self.fixed.settle(states, settling, [now; 2], known, costs));
        self.close_if_settled(thin);
    }

    /// Without open grants it takes less memory.
    fn close_if_settled(&self, thin: &mut Thin) {
        if let Form::Open(open) = &mut thin.0
            && open.1.is_empty()
        {
            *thin = Thin::of(&self.fixed.terms, std::mem::take(&mut open.0));
        }
    }

    /// Credits a grant that was not used.
    pub(crate) fn give_back(&self, thin: &mut Thin, now: Nanos, grant: Charged, costs: &[u64]) {
        thin.with_mut(|states, settling| {
            if now >= grant.at {
                let times = [grant.at, grant.counted];
                self.fixed.revise(states, settling, |place, terms, state| {
                    terms.give_back(state, now, times, self.fixed.cost(place, costs))
                });
            }
            settling.forget(grant.number);
        });
        self.close_if_settled(thin);
    }

    /// A grant was not used, and its time is lost to buckets. Windows do not count it.
    pub(crate) fn forget(&self, thin: &mut Thin, grant: Charged, costs: &[u64]) {
        thin.with_mut(|states, settling| {
            for (place, (terms, state)) in self.fixed.terms.iter().zip(states).enumerate() {
                if let Some(window) = terms.as_window() {
                    window.forget(state, grant.counted, self.fixed.cost(place, costs));
                }
            }
            settling.forget(grant.number);
        });
        self.close_if_settled(thin);
    }

    /// The buckets are empty at `until`. The caller sees to it that nothing is granted before: windows know nothing of it.
    pub fn empty(&self, thin: &mut Thin, until: Nanos) {
        thin.with_mut(|states, settling| {
            self.fixed.revise(states, settling, |_, terms, state| terms.empty(state, until));
        });
    }

    /// Whether the state equals that of a key that was never seen, at `now` and ever after.
    #[must_use]
    pub fn is_fresh(&self, thin: &Thin, now: Nanos) -> bool {
        // At the time of its last grant a bucket may hold more than its burst.
        let rests = |(terms, state): (&Terms, &State)| state.level.at < now && terms.at_rest(state, now);
        (now >= self.full_at && thin.with(|states| self.fixed.terms.iter().zip(states).all(rests)))
            || *thin == self.fresh
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
    /// Only so many grants, the latest, may still be settled.
    pub(crate) fn keep_open(&mut self, most: usize) {
        if let Form::Open(open) = &mut self.0 {
            open.1.keep(most);
        }
    }

    /// The state of these limits, of which no grant is open.
    pub(crate) fn of_limits(limits: &Limits) -> Self {
        Thin::of(&limits.fixed.terms, limits.states.clone())
    }

    /// No grant is open.
    fn of(terms: &[Terms], states: Vec<State>) -> Self {
        Thin(match (terms, &states[..]) {
            ([terms], [state]) if terms.as_window().is_none() => Form::One(state.level),
            _ => Form::Several(states.into()),
        })
    }

    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&[State]) -> R) -> R {
        match &self.0 {
            Form::One(level) => act(&[State::from(*level)]),
            Form::Several(states) => act(states),
            Form::Open(open) => act(&open.0),
        }
    }

    #[inline]
    fn with_mut<R>(&mut self, act: impl FnOnce(&mut [State], &mut Settling) -> R) -> R {
        match &mut self.0 {
            Form::One(level) => {
                let mut state = [State::from(*level)];
                let result = act(&mut state, &mut Settling::default());
                *level = state[0].level;
                result
            }
            Form::Several(states) => act(states, &mut Settling::default()),
            Form::Open(open) => act(&mut open.0, &mut open.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::together::Limits;
    use super::*;
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
                    // Until then it grants less. Of several limits, a stricter one may hide that.
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
