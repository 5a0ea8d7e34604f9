//! Limits with their levels, for requests in one order: the queue of a limiter.

use super::costs::CostList;
use super::grant::{Grant, Refusal};
use super::joint::Limits;
use super::levels::Levels;
use super::policy::Policy;
use super::state::Gaining;
use crate::clock::{MILLISECOND, Nanos};
use crate::rate::Rate;
use std::num::NonZeroU64;
use std::sync::Arc;

/// A waiter may always wake this late, in nanoseconds, without a loss of rate: a timer of one millisecond may fire two
/// milliseconds late.
pub(crate) const MIN_ALLOWANCE: Nanos = 2 * MILLISECOND;

/// [`Limits`] with their levels, and the order of their grants: none is before an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub(super) limits: Arc<Limits>,
    pub(super) levels: Levels,
    /// The latest time of a request, return or change. Earlier clock readings arrived out of order, and are clamped to
    /// this time.
    asked: Nanos,
    /// The time of the latest grant. Nothing is granted before it.
    pub(super) at: Nanos,
    /// Counts the grants, so that each has its own number. No number is used twice.
    number: u64,
}

impl Account {
    /// The limits of a [`Policy`] at `now`, in their initial state.
    pub fn new(policy: &Policy, now: Nanos) -> Self {
        Account::of(Limits::counting(policy, 0, now), now)
    }

    /// These limits at `now`, with the levels of a new key.
    pub(crate) fn of(limits: Limits, now: Nanos) -> Self {
        let levels = limits.fresh();
        Account::resumed(Arc::new(limits), levels, now)
    }

    /// These limits with these levels, in which no time is after `now`.
    pub(crate) fn resumed(limits: Arc<Limits>, levels: Levels, now: Nanos) -> Self {
        Account { limits, levels, asked: now, at: now, number: 0 }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The levels, without open grants.
    pub(crate) fn closed_levels(&self) -> Levels {
        self.limits.closed(&self.levels)
    }

    /// The same account without open grants.
    pub(crate) fn without_open(&self) -> Self {
        let Account { asked, at, number, .. } = *self;
        Account { limits: Arc::clone(&self.limits), levels: self.closed_levels(), asked, at, number }
    }

    /// The time of the latest grant.
    pub fn latest(&self) -> Nanos {
        self.at
    }

    /// How late a grant may be used before the rest of the delay is lost. This is the least allowance of all buckets,
    /// but at least 2 ms.
    pub(crate) fn allowance(&self) -> Nanos {
        self.limits.allowance().unwrap_or(0).max(MIN_ALLOWANCE)
    }

    /// Whether no past grant matters at `time`: every bucket is full, every window empty.
    pub(crate) fn is_at_rest(&self, time: Nanos) -> bool {
        self.limits.is_at_rest(&self.levels, time)
    }

    /// The earliest time, not before `now` nor before the last grant, at which every limit conforms to these costs.
    /// Also returns the index of the limit that causes the wait, if there is a wait.
    ///
    /// # Errors
    /// [`Refusal::Never`].
    pub fn conforms_at(&self, now: Nanos, costs: impl CostList) -> Result<(Nanos, Option<usize>), Refusal> {
        let now = self.in_order(now);
        self.limits.has_room_at(&self.levels, [now, now.max(self.at)], costs.list()).ok_or(Refusal::Never)
    }

    /// Whole units that could be taken at `now`; 0 before the time of the latest grant.
    pub fn available(&self, now: Nanos) -> u64 {
        let now = self.in_order(now);
        if now < self.at { 0 } else { self.limits.available(&self.levels, now, &[1]) }
    }

    /// Units of a kind that could be taken at `now`; 0 before the time of the latest grant.
    pub(crate) fn available_of(&self, now: Nanos, kind: usize) -> u64 {
        let now = self.in_order(now);
        if now < self.at { 0 } else { self.limits.left_of(&self.levels, now, kind).map_or(u64::MAX, whole) }
    }

    /// Units of a kind that are owed at `now`, or after the latest grant if that is later.
    pub(crate) fn owed_of(&self, now: Nanos, kind: usize) -> i128 {
        -self.limits.left_of(&self.levels, now, kind).unwrap_or(0).min(0)
    }

    /// The time by which these further costs will have been granted if requests never pause: the latest of the times of
    /// the single limits. `None` beyond the end of the clock.
    pub fn schedule(&self, now: Nanos, costs: impl CostList) -> Option<Nanos> {
        self.limits.schedule(&self.levels, self.in_order(now).max(self.at), costs.list())
    }

    /// Grants these costs at the earliest time at which every limit conforms. If that time is in the future, the grant
    /// is a reservation.
    ///
    /// # Errors
    /// [`Refusal::Never`]; nothing is charged then.
    pub fn take(&mut self, now: Nanos, costs: impl CostList) -> Result<Grant, Refusal> {
        self.take_within(now, costs, Nanos::MAX)
    }

    /// Like [`take`](Self::take), but only if the wait is at most `max_wait` nanoseconds. 0 means: now or not at all.
    ///
    /// # Errors
    /// [`Refusal::TooLong`] with the wait that would be needed; nothing is charged then.
    pub fn take_within(&mut self, now: Nanos, costs: impl CostList, max_wait: Nanos) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(now, costs)?;
        let wait = at - self.in_order(now);
        if wait > max_wait {
            return Err(Refusal::TooLong { wait });
        }
        Ok(Grant { bound_by, ..self.charge(now, [at; 2], costs) })
    }

    /// A fast path: grants these costs at `now`, as [`take_within`](Self::take_within) without a wait does. It serves
    /// only the usual case, in which all limits are buckets that hold enough and at most their bursts. Otherwise
    /// returns `None`.
    #[inline]
    pub(crate) fn take_usual(&mut self, now: Nanos, costs: impl CostList) -> Option<Grant> {
        let units = costs.largest();
        if units == 0 || now < self.asked.max(self.at) || !self.limits.take_usual(&mut self.levels, now, costs.list()) {
            return None;
        }
        (self.asked, self.at, self.number) = (now, now, self.number + 1);
        Some(Grant::computed(now, units, None, self.number))
    }

    /// Like [`take_usual`](Self::take_usual); the grant is [open](Self::open).
    pub(crate) fn open_usual(&mut self, now: Nanos, costs: impl CostList) -> Option<Grant> {
        let grant = self.take_usual(now, costs)?;
        self.open(&grant, costs);
        Some(grant)
    }

    /// Like [`take`](Self::take), but the grant is at `earliest` or later, and is handed over at `now`. If the limits
    /// conform before `earliest`, their schedule is delayed until then: the binding limit gains nothing in between.
    pub(crate) fn take_not_before(
        &mut self,
        now: Nanos,
        requested: Nanos,
        costs: impl CostList,
        earliest: Nanos,
    ) -> Result<Grant, Refusal> {
        let (at, bound_by) = self.conforms_at(requested, costs)?;
        let by = earliest.saturating_sub(at);
        if let Some(place) = bound_by.filter(|_| by > 0) {
            self.limits.delay(&mut self.levels, place, requested, by);
        }
        let at = at.max(earliest);
        Ok(self.charge(requested, [at, at.max(now)], costs))
    }

    /// Charges a request that was made at `requested` and is granted at `at`, which may be in the future. Windows count
    /// it from `counted`, which is not before `at`.
    pub(crate) fn charge(&mut self, requested: Nanos, [at, counted]: [Nanos; 2], costs: impl CostList) -> Grant {
        let units = costs.largest();
        if units == 0 {
            return Grant::computed(at, 0, None, 0);
        }
        self.asked = self.in_order(requested);
        self.limits.charge_in_order(&mut self.levels, [self.at, self.asked, at, counted], costs.list());
        (self.at, self.number) = (at, self.number + 1);
        Grant { counted, ..Grant::computed(at, units, None, self.number) }
    }

    /// Opens the latest grant, which has these costs, so that it can be [settled](Self::settle). Until it is settled,
    /// every further grant takes slightly longer. If it will not be settled, [close](Self::close) it. The number of open
    /// grants is limited. Above that number, the oldest is closed.
    pub(crate) fn open(&mut self, grant: &Grant, costs: impl CostList) {
        if costs.largest() > 0 {
            self.limits.open(&mut self.levels, grant.charged(), costs.list());
        }
    }

    /// Whether a bucket has an open grant.
    pub(crate) fn has_open(&self) -> bool {
        self.levels.has_open()
    }

    /// Closes a grant that will not be settled: its charge was its real cost.
    pub(crate) fn close(&mut self, number: u64) {
        self.levels.close(number);
    }

    /// Settles a grant at its real costs: see [`Limits::settle`]. A credit is lost if it would have overflowed the bucket
    /// meanwhile. Later requests owe the excess of a higher cost. All other grants keep their times.
    ///
    /// A grant may be settled only once, and not given back as well.
    pub(crate) fn settle(&mut self, now: Nanos, grant: &Grant, costs: [impl CostList; 2]) {
        let now = self.in_order(now);
        let [charged, real] = &costs;
        let times = [now, now.max(self.at)];
        self.limits.settle(&mut self.levels, times, grant.charged(), [charged.list(), real.list()]);
    }

    /// Gives back an unused grant of these costs: it cost nothing. If the time of a grant is in the future, nothing is
    /// given back, because later grants are never moved.
    ///
    /// A grant may be given back only once. The caller must ensure that: grants are not stored.
    pub fn give_back(&mut self, now: Nanos, grant: &Grant, costs: impl CostList) {
        let now = self.in_order(now);
        if costs.largest() > 0 && now >= self.at.max(grant.at) {
            (self.asked, self.at) = (now, now);
            self.limits.give_back(&mut self.levels, now, grant.charged(), costs.list());
        }
        self.close(grant.number());
    }

    /// Makes windows count `grant`, which has these costs, from `now`, when it is handed over. Returns the grant as it
    /// counts now: while a later grant is in the future, windows go on counting it from its own time. `None` if other
    /// grants got its room in the meantime, or if it no longer counts and its room `is_promised`; then nothing has changed.
    pub(crate) fn hand_over(
        &mut self,
        grant: Grant,
        costs: impl CostList,
        now: Nanos,
        is_promised: bool,
    ) -> Option<Grant> {
        if costs.largest() == 0 || !self.limits.has_windows() {
            return Some(grant);
        }
        if !self.limits.keeps_room(&self.levels, grant.charged(), costs.list(), now, is_promised) {
            return None;
        }
        let _ = self.limits.hand_over(&mut self.levels, grant.charged(), costs.list(), now);
        Some(if self.at <= now { grant.counted_from(now) } else { grant })
    }

    /// Changes the rate of the bucket at `place` from `now` on. Grants keep their times; saved credit is kept.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_rate(&mut self, now: Nanos, place: usize, rate: Rate) {
        let now = self.in_order(now);
        self.replace(now, self.limits.with_rate(place, rate, now.max(self.at)));
    }

    /// Changes the size of the bucket at `place` from `now` on, without filling it.
    ///
    /// Does nothing if there is no bucket at `place`.
    pub fn set_burst(&mut self, now: Nanos, place: usize, burst: NonZeroU64) {
        self.replace(now, self.limits.with_burst(place, burst));
        self.spill(self.asked, 0_u64);
    }

    /// Replaces the limits by `limits` from `now` on; see [`Limits::change`]. Grants keep their times.
    pub(crate) fn replace(&mut self, now: Nanos, limits: impl Into<Arc<Limits>>) {
        let limits = limits.into();
        self.asked = self.in_order(now);
        self.limits.change(&mut self.levels, self.asked, &limits, &[]);
        self.limits = limits;
    }

    /// Charges units that were used at `now` without a grant. Missing units become a debt.
    pub(crate) fn pay(&mut self, now: Nanos, costs: impl CostList) {
        self.limits.pay(&mut self.levels, now, costs.list());
    }

    /// Credits granted units that were not used, up to the burst.
    pub(crate) fn credit(&mut self, now: Nanos, costs: impl CostList) {
        self.limits.credit(&mut self.levels, now, costs.list());
    }

    /// Empties the buckets at `time`; they gain from then on.
    pub(crate) fn empty(&mut self, time: Nanos) {
        self.limits.empty(&mut self.levels, time);
    }

    /// Drops credit above the burst at `now`, except what a waiter of these costs has gathered.
    pub(crate) fn spill(&mut self, now: Nanos, costs: impl CostList) {
        self.limits.spill(&mut self.levels, now, costs.list());
    }

    /// No waiter remains: see [`Limits::overflow`].
    pub(crate) fn overflow(&mut self) {
        self.limits.overflow(&mut self.levels);
    }

    /// Brings the levels up to `now` for a waiter of these costs, whose request was made at `requested`.
    pub(crate) fn gather(&mut self, now: Nanos, requested: Nanos, costs: impl CostList) {
        self.limits.gather(&mut self.levels, [now, requested], costs.list());
    }

    /// The level of the only limit, if it is a bucket that holds at most its burst.
    pub(crate) fn fast_path(&self) -> Option<Gaining> {
        self.limits.fast_path(&self.levels)
    }

    /// Takes over the level of the only bucket from the fast path: `missing` credits at `at`.
    pub(crate) fn resume(&mut self, missing: u128, at: Nanos) {
        self.limits.resume(&mut self.levels, missing, at);
        (self.asked, self.at) = (at, at);
    }

    /// Clamps clock readings that arrive out of order.
    pub(super) fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.asked)
    }
}

/// Whole units that are left: none if units are owed.
fn whole(left: i128) -> u64 {
    u64::try_from(left.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::limits::bucket::Bucket;
    use crate::limits::state::State;

    #[test]
    fn a_grant_that_is_given_back_is_not_open_any_more() {
        let mut limits = Account::new(&Policy::new(&["1/s,burst=1".parse().unwrap()], None).unwrap(), 0);
        let grant = limits.take(0, 1_u64).unwrap();
        limits.open(&grant, 1_u64);
        let _ = limits.take(0, 1_u64).unwrap();
        limits.give_back(0, &grant, 1_u64);
        assert!(!limits.has_open(), "though a later grant lies ahead");
        // After a change of the limits, grants still get new numbers.
        let mut limits = limits_of(&["1/s,burst=5"]);
        let first = limits.take(0, 1_u64).unwrap();
        limits.replace(0, limits_of(&["9/s"]).limits);
        let next = limits.charge(0, [SECOND, SECOND + 5], 1_u64);
        assert_eq!((next.number(), next.at, next.counted), (first.number() + 1, SECOND, SECOND + 5));
    }

    fn limits_of(limits: &[&str]) -> Account {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Account::new(&Policy::new(&limits, None).unwrap(), 0)
    }

    #[test]
    fn a_grant_without_a_cost_or_a_later_one_gives_nothing_back() {
        let mut limits = limits_of(&["1/s,burst=5,initial=0"]);
        let free = limits.take(0, 0_u64).unwrap();
        let before = limits.clone();
        limits.give_back(SECOND, &free, 0_u64);
        assert_eq!(limits, before, "a waiter goes on to gather");
        let [first, _] = [0; 2].map(|now| limits.take(now, 1_u64).unwrap());
        let before = limits.clone();
        limits.give_back(SECOND, &first, 1_u64);
        assert_eq!(limits, before, "a later grant lies ahead");
    }

    #[test]
    fn the_fast_path_grants_nothing_earlier_or_above_the_burst() {
        assert_eq!(Account::of(Limits::none(), 5).take_usual(4, 1_u64), None);
        let mut limits = limits_of(&["1/s,burst=5,initial=0"]);
        limits.gather(9 * SECOND, 0, 9_u64);
        assert_eq!(limits.take_usual(9 * SECOND, 1_u64), None);
        let _ = limits.take(9 * SECOND, 1_u64).unwrap();
        assert_eq!(limits.available(9 * SECOND), 4, "a waiter had gathered more than the burst");
    }

    /// Law 11. A waiter that also waits for another limit has gathered its 9 units, and loses 3 further ones.
    #[test]
    fn a_higher_cost_is_paid_by_what_a_waiter_loses() {
        let mut limits = limits_of(&["1/s,burst=5"]);
        let grant = limits.take(0, 5_u64).unwrap();
        limits.open(&grant, 5_u64);
        limits.gather(12 * SECOND, 0, 9_u64);
        limits.settle(12 * SECOND, &grant, [5_u64, 8]);
        assert_eq!(limits.available(12 * SECOND), 9);
        // A nanosecond's gain is more than this burst. The higher cost takes it from what the charge left.
        let mut limits =
            Account::of(Limits::none().with_bucket(Bucket::new("5/2ns".parse().unwrap(), NonZeroU64::MIN, 1, 0)), 0);
        let [_, grant] = [0; 2].map(|now| limits.take(now, 1_u64).unwrap());
        limits.open(&grant, 1_u64);
        assert_eq!((grant.at, amount(&limits)), (1, 3));
        limits.settle(1, &grant, [1_u64, 2]);
        assert_eq!(amount(&limits), 1);
    }

    fn amount(limits: &Account) -> i128 {
        limits.levels.with(|states| states[0].level.amount)
    }

    fn logs(limits: &Account) -> Vec<Vec<(Nanos, u64)>> {
        let log = |state: &State| state.log().iter().map(|entry| (entry.at, entry.units)).collect();
        limits.levels.with(|states| states.iter().map(log).collect())
    }

    #[test]
    fn all_windows_count_a_unit_from_when_it_is_handed_over_or_none() {
        let mut limits = limits_of(&["2/10ns,window", "3/20ns,window"]);
        let grant = limits.take(0, 1_u64).unwrap();
        limits.open(&grant, 1_u64);
        let mut with_later = limits.clone();
        let grant_at =
            |limits: &mut Account, grant, now| limits.hand_over(grant, 1_u64, now, false).map(|grant| grant.counted);
        let handed = limits.hand_over(grant, 1_u64, 5, false).unwrap();
        assert_eq!((handed.counted, logs(&limits)), (5, [[(5, 1)]; 2].map(Vec::from).to_vec()));
        limits.settle(6, &handed, [1_u64, 2]);
        assert_eq!(logs(&limits), [[(5, 2)]; 2]);
        // With a grant in the future, the unit counts from its own time.
        let _ = with_later.charge(0, [8; 2], 1_u64);
        assert_eq!(grant_at(&mut with_later, grant, 5), Some(0));
        with_later.settle(5, &grant, [1_u64, 2]);
        assert_eq!(logs(&with_later), [[(0, 2), (8, 1)]; 2]);
        // The second window has given its room to another unit.
        let mut limits = limits_of(&["2/10ns,window", "1/10ns,window"]);
        let late = limits.take(0, 1_u64).unwrap();
        let _ = limits.take(10, 1_u64).unwrap();
        let before = limits.clone();
        assert_eq!(grant_at(&mut limits, late, 10), None);
        assert_eq!(limits, before);
        // A window in which the unit costs nothing does not change.
        let mut limits = limits_of(&["5/10ns,window", "5/20ns,window"]);
        let _ = limits.charge(0, [0; 2], 1_u64);
        let other = limits.charge(0, [0; 2], &[1, 0][..]);
        assert!(limits.hand_over(other, &[1, 0][..], 4, false).is_some());
        assert_eq!(logs(&limits), [vec![(0, 1), (4, 1)], vec![(0, 1)]]);
    }

    /// Law 10: the log of a window is freed once its entries no longer count.
    #[test]
    fn memory_of_past_grants_is_freed() {
        let limits: Vec<_> = ["1/s,burst=1", "6/5s,window"].map(|limit| limit.parse().unwrap()).into();
        let mut limits = Account::new(&Policy::new(&limits, None).unwrap(), 0);
        let memory = |limits: &Account| {
            limits.levels.with(|states| states.iter().map(|state| state.log().capacity()).sum::<usize>())
        };
        let charge = |limits: &mut Account, at: Nanos| {
            let _: Grant = limits.charge(at, [at; 2], 1_u64);
        };
        (0..3000).for_each(|nanos| charge(&mut limits, nanos));
        assert!(memory(&limits) >= 3000);
        (2..5).for_each(|times| charge(&mut limits, times * 100_000 * SECOND));
        assert!(memory(&limits) < 400, "room for {} entries", memory(&limits));
    }
}
