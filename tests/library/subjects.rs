//! The same arithmetic in three places: the core, the library with its fast path, and the script of the Redis store.
//! They must come to the same times.

use crate::crowd::cases;
use crate::laws::written;
use crate::limiters::FakeTimer;
use crate::model::{Costs, EXACT, Limit};
use crate::script::{BOUND, Granted, Refused, Script};
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::Arc;
use std::time::Duration;
use throttle::clock::{Clock, FakeClock, MILLISECOND};
use throttle::limiter::{AcquireError, Limiter, Oversize};
use throttle::limits::{Ask, Grant, Limits, Policy, Refusal};
use throttle::store::{Lease, Memory, Store, StoreError};

/// The library and the script next to the core. Each takes part as long as its numbers suffice.
pub(crate) struct Beside {
    library: Option<Library>,
    script: Option<Script>,
    limits: Vec<Limit>,
    /// The latest time of a request. The core clamps an earlier one; a server treats it as a clock that was set back.
    seen: u64,
}

struct Library {
    timer: Arc<FakeTimer>,
    limiter: Limiter,
}

impl Beside {
    pub(crate) fn new(limits: &[Limit], now: u64) -> Self {
        let (library, script) = (Library::new(limits, now), Script::new(limits, 1, now));
        Beside { library, script, limits: limits.to_vec(), seen: now }
    }

    /// They must grant or refuse what the core granted or refused.
    pub(crate) fn take(&mut self, now: u64, cost: u64, expected: Option<&Grant>) {
        let in_order = now >= self.seen;
        self.seen = self.seen.max(now);
        self.library = self.library.take().filter(|_| in_order && cost < 1 << 40);
        if let Some(library) = &self.library {
            library.take(now, cost, expected, &self.limits);
        }
        let at = expected.map_or(now, |grant| grant.at).max(now);
        self.script =
            self.script.take().filter(|_| in_order && at < BOUND && self.limits.iter().all(|l| fits(l, cost)));
        if let Some(script) = &self.script {
            let taken = script.take(now, cost, None).map(|granted| (granted.at, granted.bound_by));
            let expected = expected.map(|grant| (grant.at, grant.bound_by)).ok_or(Refused::Never);
            assert_eq!(taken, expected, "the script: {cost} at {now} by {:?}", self.limits);
        }
    }

    fn both(&self) -> bool {
        self.library.is_some() && self.script.is_some()
    }
}

/// Whether the script can count this much.
fn fits(limit: &Limit, cost: u64) -> bool {
    match limit {
        Limit::Bucket { period, .. } => cost.checked_mul(*period).is_some_and(|price| price < BOUND),
        Limit::Window { .. } => cost < BOUND,
    }
}

impl Library {
    /// `None` if the limits are too large for the library, which counts millionths of a unit.
    fn new(limits: &[Limit], now: u64) -> Option<Self> {
        let is_large = |limit: &Limit| match *limit {
            Limit::Bucket { units, burst, .. } => units >= 1 << 40 || burst >= 1 << 40,
            Limit::Window { count, .. } => count > EXACT,
        };
        if limits.iter().any(is_large) {
            return None;
        }
        let timer = Arc::new(FakeTimer::default());
        timer.set(now);
        let builder = Limiter::builder().timer(timer.clone()).oversize(Oversize::Wait);
        let limiter = limits.iter().map(written).fold(builder, throttle::limiter::Builder::limit).build().ok()?;
        Some(Library { timer, limiter })
    }

    /// Tries, by the fast path if possible; otherwise reserves.
    fn take(&self, now: u64, cost: u64, expected: Option<&Grant>, limits: &[Limit]) {
        self.timer.set(now);
        let what = format!("the library: {cost} at {now} by {limits:?}");
        match (self.limiter.try_acquire(cost), expected) {
            (Ok(()), Some(grant)) => assert!(cost == 0 || grant.at == now, "{what}: granted, not at {}", grant.at),
            (Err(AcquireError::TooLong { wait, .. }), Some(grant)) => {
                assert_eq!(wait, Duration::from_nanos(grant.at - now), "{what}");
                assert_eq!(self.limiter.reserve(cost).unwrap().at(), Duration::from_nanos(grant.at), "{what}");
            }
            (Err(AcquireError::Never { .. }), None) => {}
            (answer, expected) => panic!("{what}: {answer:?}, but {expected:?}"),
        }
    }
}

/// A request to a store.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// So many units, or so many for each limit, with a longest wait if given.
    Take(Costs, Option<u64>),
    /// A lease for so many units over so much time. Some are used before the rest is returned.
    Lease {
        waiting: u64,
        span: u64,
        /// Nothing is granted for so long.
        from: u64,
        used: Index,
        later: u64,
        between: Box<Step>,
    },
    GiveBack(Index),
    Hold(u64),
    /// Other limits, of the same kinds, from now on.
    Set(Vec<(u64, u64, u64)>, Vec<bool>),
    /// One of those that wait in the line looks where it is.
    Look(Index),
    /// Empties the line, or begins anew.
    Clear(bool),
}

fn any_step(limits: usize) -> impl Strategy<Value = Step> + Clone {
    let take = (any_costs(), prop::option::of(0..4_000_u64)).prop_map(|(costs, wait)| Step::Take(costs, wait));
    let hold = (0..5_000_u64).prop_map(Step::Hold);
    let between = prop_oneof![3 => Just(Step::Take(Costs::from(0), None)), 1 => take.clone(), 1 => hold.clone()];
    let soon = prop_oneof![Just(0), 0..3_000_u64];
    let lease = (1..=9_u64, 0..4_000_u64, soon.clone(), any::<Index>(), soon, between).prop_map(
        |(waiting, span, from, used, later, between)| Step::Lease {
            waiting,
            span,
            from,
            used,
            later,
            between: Box::new(between),
        },
    );
    let set = (prop::collection::vec(any_size(), limits), prop::collection::vec(any::<bool>(), limits))
        .prop_map(|(sizes, fresh)| Step::Set(sizes, fresh));
    let (back, look) = (any::<Index>().prop_map(Step::GiveBack), any::<Index>().prop_map(Step::Look));
    let clear = any::<bool>().prop_map(Step::Clear);
    prop_oneof![12 => take, 6 => lease, 6 => back, 6 => look, 2 => hold, 2 => set, 1 => clear]
}

/// The same for all limits, or not.
pub(crate) fn any_costs() -> impl Strategy<Value = Costs> + Clone {
    prop_oneof![2 => (0..=6_u64).prop_map(Costs::from), 1 => [0..=6_u64, 0..=6_u64, 0..=9_u64].prop_map(Costs)]
}

/// Units, the period, and the burst or the slack.
pub(crate) fn any_size() -> impl Strategy<Value = (u64, u64, u64)> + Clone {
    let period = prop_oneof![prop::sample::select(vec![500, 1_000, 2_000, 12_000]), 1..5_000_u64, 1..1_u64 << 30];
    (prop_oneof![1..=20_u64, 1..=2_000_u64], period, prop_oneof![1..=5_u64, 1..=3_000_u64])
}

fn limit(is_window: bool, (units, period, burst): (u64, u64, u64), initial: u64) -> Limit {
    if is_window {
        // As much slack as the period is the most.
        Limit::Window { count: units, period, slack: if burst > 3 { burst % (period + 1) } else { 0 } }
    } else {
        Limit::Bucket { units, period, burst, initial: initial.min(burst) }
    }
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> + Clone {
    let any = (any::<bool>(), any_size(), prop_oneof![Just(u64::MAX), 0..5_u64]);
    prop::collection::vec(any.prop_map(|(window, size, initial)| limit(window, size, initial)), 1..=3)
}

/// A few units in some seconds.
pub(crate) fn any_slow_limits() -> impl Strategy<Value = Vec<Limit>> + Clone {
    let size = (1..=5_u64, prop::sample::select(vec![500, 1_000, 2_000, 12_000]), 1..=5_u64);
    let any = (any::<bool>(), size, prop_oneof![Just(u64::MAX), 0..5_u64]);
    prop::collection::vec(any.prop_map(|(window, size, initial)| limit(window, size, initial)), 1..=3)
}

/// The same limit, with its period in units of so many nanoseconds.
fn in_units(limit: Limit, unit: u64) -> Limit {
    match limit {
        Limit::Window { count, period, slack } => Limit::Window { count, period: period * unit, slack },
        Limit::Bucket { units, period, burst, initial } => {
            Limit::Bucket { units, period: period * unit, burst, initial }
        }
    }
}

/// The core, as the store in memory has it, and the script.
pub(crate) struct Both {
    pub(crate) limits: Vec<Limit>,
    pub(crate) clock: FakeClock,
    pub(crate) core: Memory<FakeClock>,
    pub(crate) script: Script,
    pub(crate) held: Vec<(Grant, Granted, Costs)>,
    /// Those who waited have entered again, behind those who came first: they may have to wait longer.
    is_cleared: bool,
    /// In nanoseconds: the unit of times in steps.
    unit: u64,
}

impl Both {
    pub(crate) fn new(limits: Vec<Limit>, unit: u64) -> Self {
        let limits: Vec<Limit> = limits.into_iter().map(|limit| in_units(limit, unit)).collect();
        let clock = FakeClock::at(0);
        let core = Memory::new(&policy(&limits), clock.clone());
        let script = Script::new(&limits, core.quantum(), 0).unwrap();
        Both { limits, clock, core, script, held: Vec::new(), is_cleared: false, unit }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        let now = self.clock.now();
        match step {
            Step::Take(costs, wait) => {
                let (wait, of_each) = (wait.map(|wait| wait * self.unit), &costs.0[..self.limits.len()]);
                let taken = self.core.take(of_each, wait.map_or(u64::MAX, |wait| now + wait));
                let taken = taken.map(|(grant, _)| grant).map_err(refused);
                let by_script = self.script.take_costs(now, of_each, wait);
                assert_eq!(taken.as_ref().map(outcome), by_script.as_ref().map(Granted::outcome), "{step:?}");
                self.held.extend(taken.ok().zip(by_script.ok()).map(|(ours, theirs)| (ours, theirs, *costs)));
            }
            Step::Lease { waiting, span, from, used, later, between } => {
                let from = if *from == 0 { 0 } else { now + *from * self.unit };
                let ask = Ask { waiting: *waiting, span: *span * self.unit, from };
                self.lease(ask, *used, *later * self.unit, between);
            }
            Step::GiveBack(_) if self.held.is_empty() => {}
            Step::GiveBack(index) => {
                self.give_back(index.index(self.held.len()));
            }
            Step::Look(index) => {
                let entries: Vec<usize> = (0..self.held.len())
                    .filter(|place| self.held[*place].1.is_entry && self.held[*place].1.at > now)
                    .collect();
                let Some(place) = entries.get(index.index(entries.len().max(1))) else { return };
                self.look(*place);
            }
            Step::Clear(anew) => {
                self.is_cleared = true;
                self.core.clear(anew.then(|| policy(&self.limits)).as_ref()).unwrap();
                self.script.clear(now, *anew);
            }
            Step::Hold(wait) => {
                let wait = wait * self.unit;
                self.core.hold_until(now + wait).unwrap();
                self.script.hold_until(now, now + wait);
            }
            Step::Set(sizes, fresh) => {
                let kinds = self.limits.iter().map(|limit| matches!(limit, Limit::Window { .. }));
                let sizes = kinds.zip(sizes);
                self.set(
                    sizes.map(|(window, size)| in_units(limit(window, *size, u64::MAX), self.unit)).collect(),
                    fresh,
                );
            }
        }
    }

    /// Other limits, of the same kinds.
    pub(crate) fn set(&mut self, limits: Vec<Limit>, fresh: &[bool]) {
        self.limits = limits;
        self.core.set(&policy(&self.limits), fresh).unwrap();
        self.script.set(self.clock.now(), &self.limits, self.core.quantum(), fresh);
    }

    /// One of those held is given back.
    pub(crate) fn give_back(&mut self, place: usize) {
        let (ours, theirs, costs) = self.held.swap_remove(place);
        let costs = &costs.0[..self.limits.len()];
        self.core.give_back(&ours, costs).unwrap();
        self.script.give_back_costs(self.clock.now(), &theirs, costs);
    }

    /// One of those held looks where it is.
    pub(crate) fn look(&mut self, place: usize) {
        let (now, (ours, theirs, costs)) = (self.clock.now(), self.held[place]);
        let of_each = &costs.0[..self.limits.len()];
        let found = (self.core.look(&ours, of_each).unwrap(), self.script.stay_costs(now, &theirs, of_each), costs);
        assert_eq!(found.0.at, found.1.at, "{ours:?} at {now} by {:?}", self.limits);
        assert!(self.is_cleared || found.0.at <= ours.at, "later than told: {ours:?}, now {found:?}");
        self.held[place] = found;
    }

    /// A lease, something in between, and the return of the rest.
    fn lease(&mut self, ask: Ask, used: Index, later: u64, between: &Step) {
        let mut lease = Lease::default();
        let leased = self.core.lease(&ask, &mut lease).map_err(refused);
        let by_script = self.script.lease(self.clock.now(), &ask);
        let theirs = by_script.as_ref().map(|runs| runs.iter().map(Granted::outcome).collect::<Vec<_>>());
        assert_eq!(leased.as_ref().map(|_| lease.runs().map(outcome).collect()), theirs, "{ask:?}");
        let Ok(by_script) = by_script else { return };
        self.step(between);
        self.clock.advance(later);
        let used = used.index(by_script.len());
        let spent = (0..used).map(|_| lease.next(u64::MAX).unwrap().units).sum();
        self.core.return_lease(&mut lease).unwrap();
        self.script.return_lease(self.clock.now(), spent, &by_script[used..]);
    }

    /// What each limit has left, what all have, and how long a new request waits must be the same.
    pub(crate) fn look_alike(&self) {
        let (view, now) = (self.core.view().unwrap(), self.clock.now());
        let wait = view.wait.map_or(-1, i128::from);
        let line = view.line.iter().flat_map(|one| [one.cost, one.wait].map(i128::from));
        let ours: Vec<i128> = view.left.into_iter().chain([view.available.into(), wait]).chain(line).collect();
        let theirs: Vec<i128> = self.script.look(now).into_iter().map(i128::from).collect();
        assert_eq!(theirs, ours, "at {now} by {:?}", self.limits);
    }
}

fn policy(limits: &[Limit]) -> Policy {
    Policy::new(&limits.iter().map(written).collect::<Vec<_>>(), None).unwrap()
}

fn outcome(grant: &Grant) -> (u64, u64, Option<usize>) {
    (grant.at, grant.units, grant.bound_by)
}

fn refused(error: StoreError) -> Refused {
    match error {
        StoreError::Refused(Refusal::Never) => Refused::Never,
        StoreError::Refused(Refusal::TooLong { wait }) => Refused::TooLong(wait),
        error => panic!("{error}"),
    }
}

/// A window that becomes longer counts what was used of a lease, also what had left the shorter period by the last run.
#[test]
fn a_longer_window_counts_all_that_was_used_of_a_lease_whose_rest_came_back() {
    let mut both = Both::new(vec![Limit::Window { count: 1, period: 500, slack: 0 }], 1);
    let ask = Ask { waiting: 4, span: 1_501, from: 0 };
    let mut lease = Lease::default();
    both.core.lease(&ask, &mut lease).unwrap();
    let runs = both.script.lease(0, &ask).unwrap();
    assert_eq!(runs.iter().map(|run| run.at).collect::<Vec<_>>(), [0, 500, 1_000, 1_500]);
    for run in &runs[..3] {
        assert_eq!(lease.next(u64::MAX).unwrap().at, run.at);
    }
    both.core.return_lease(&mut lease).unwrap();
    both.script.return_lease(0, 3, &runs[3..]);
    both.clock.advance(1_000);
    both.step(&Step::Set(vec![(3, 1_001, 1)], vec![false]));
    both.look_alike();
    // The first of three runs counts until 1001.
    assert_eq!(both.script.look(1_000), [0, 0, 1]);
}

proptest! {
    // Of cases of chance, very few differ: after a hold and what was given back in it, the script can count for longer.
    #![proptest_config(cases())]

    #[test]
    fn core_library_and_script_grant_at_the_same_times(
        limits in any_limits(), steps in prop::collection::vec((0..3_000_u64, 0..=6_u64), 1..60)
    ) {
        let mut core = Limits::new(&policy(&limits), 0);
        let mut beside = Beside::new(&limits, 0);
        let mut now = 0;
        for (later, cost) in steps {
            // As many at once, and when it was granted.
            now = match later % 3 { 0 => now, 1 => core.latest().max(now), _ => now + later };
            let grant = core.take(now, cost).ok();
            beside.take(now, cost, grant.as_ref());
        }
        let is_large = |limit: &Limit| matches!(limit, Limit::Window { count, .. } if *count > EXACT);
        prop_assert!(beside.both() || limits.iter().any(is_large), "{limits:?} do not fit");
    }

    #[test]
    fn core_and_script_agree_on_take_give_back_hold_and_set(
        (limits, steps) in any_limits().prop_flat_map(|limits| {
            let steps = prop::collection::vec((0..2_500_u64, any_step(limits.len())), 1..60);
            (Just(limits), steps)
        })
    ) {
        let mut both = Both::new(limits, 1);
        for (later, step) in steps {
            both.clock.advance(if later < 500 { 0 } else { later });
            both.step(&step);
            both.look_alike();
        }
    }

    #[test]
    fn core_and_script_agree_on_those_who_wait(
        (limits, steps) in any_slow_limits().prop_flat_map(|limits| {
            let steps = prop::collection::vec((0..2_500_u64, any_step(limits.len())), 1..60);
            (Just(limits), steps)
        })
    ) {
        let mut both = Both::new(limits, MILLISECOND);
        for (later, step) in steps {
            // One who looks late is the exception.
            both.clock.advance(if later < 500 { 0 } else { later * MILLISECOND });
            if let Step::Set(sizes, _) = &step && sizes.iter().any(|(units, period, _)| *units > EXACT || *period > 60_000) {
                continue;
            }
            both.step(&step);
            both.look_alike();
        }
    }
}
