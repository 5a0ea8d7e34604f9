//! The laws that a user of the core can see: exact, never early, never over; lateness costs no rate and causes no
//! burst; a cancelled grant is gone; all or nothing; monotonic time.
//!
//! Random schedules run step by step next to a slow rational model ([`model`]). Every time must be equal to the
//! nanosecond. What equality with the model cannot show is checked by a bound or by a number computed by hand.

use crate::model::{EXACT, Limit, Model, excess};
use crate::rounds::rounds;
use crate::subjects::Beside;
use crate::window::Window;
use num_bigint::BigInt;
use proptest::prelude::*;
use proptest::sample::Index;
use std::num::NonZeroU64;
use std::time::Duration;
use throttle_limits::bucket::Bucket;
use throttle_limits::clock::{FakeClock, NanoClock, SECOND};
use throttle_limits::limits::{Account, Grant, Policy, Refusal};
use throttle_limits::line::{Line, Next, Rules};
use throttle_limits::rate::{Amount, Rate};

const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const YEAR: u64 = 365 * 24 * HOUR;

// ---------------------------------------------------------------------------------------------------------------------
// The core and the model, side by side

/// The core and the model after the same requests.
struct Pair {
    limits: Vec<Limit>,
    core: Account,
    model: Model,
    /// Whether the model gives the exact time: not for windows that the core keeps in groups.
    exact: bool,
    grants: Vec<(u64, u64)>,
    /// The library and the script, as long as their numbers suffice.
    beside: Beside,
}

impl Pair {
    fn new(limits: &[Limit], now: u64) -> Self {
        let in_groups = |limit: &Limit| matches!(limit, Limit::Window { count, .. } if *count > EXACT);
        Pair {
            limits: limits.to_vec(),
            core: core(limits, now),
            model: Model::new(limits, now),
            exact: !limits.iter().any(in_groups),
            grants: Vec::new(),
            beside: Beside::new(limits, now),
        }
    }

    /// Takes from both; `None` if the core refuses for ever.
    fn take(&mut self, now: u64, cost: u64) -> Option<Grant> {
        let untouched = self.core.clone();
        let before = self.core.latest();
        let grant = self.core.take(now, cost).ok();
        if self.exact {
            let expected = self.model.take(now, cost).map(|granted| (granted.at, granted.bound_by));
            assert_eq!(grant.map(|grant| (grant.at, grant.bound_by)), expected, "{cost} at {now} by {:?}", self.limits);
        }
        self.beside.take(now, cost, grant.as_ref());
        match grant {
            Some(grant) => {
                assert!(grant.at >= now.max(before), "a grant before its request or before the last");
                if cost > 0 {
                    self.grants.push((grant.at, cost));
                }
                self.same_available(grant.at.max(now));
            }
            None => assert_eq!(self.core, untouched, "a refusal changes nothing"),
        }
        grant
    }

    fn same_available(&self, now: u64) {
        if self.exact {
            assert_eq!(BigInt::from(self.core.available(now)), self.model.available(now), "at {now} {:?}", self.limits);
        }
    }

    fn never_over(&self) {
        for limit in &self.limits {
            assert_eq!(excess(limit, &self.grants), None, "{limit:?} {:?}", self.grants);
        }
    }
}

fn policy_of(limits: &[Limit]) -> Policy {
    let limits: Vec<_> = limits.iter().map(written).collect();
    Policy::new(&limits, None).unwrap()
}

fn core(limits: &[Limit], now: u64) -> Account {
    Account::new(&policy_of(limits), now)
}

/// A line of plain units under these limits.
fn line(limits: &[Limit]) -> Line<()> {
    let policy = Policy::new(&limits.iter().map(written).collect::<Vec<_>>(), None).unwrap();
    Line::new(&Rules { all: &[(&policy, 0)], ..Rules::default() }, 0)
}

pub(crate) fn written(limit: &Limit) -> throttle_limits::rate::Limit {
    match *limit {
        Limit::Bucket { units, period, burst, initial } => throttle_limits::rate::Limit::Bucket {
            rate: rate(units, period),
            burst: Some(Amount::plain(burst)),
            initial: Some(Amount::plain(initial)),
        },
        Limit::Window { count, period, slack } => throttle_limits::rate::Limit::Window {
            rate: rate(count, period),
            initial: None,
            slack: Some(Duration::from_nanos(slack)),
        },
    }
}

fn rate(units: u64, period: u64) -> Rate {
    Rate::new(positive(units), positive(period))
}

pub(crate) fn positive(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

fn bucket(units: u64, period: u64, burst: u64) -> Limit {
    Limit::Bucket { units, period, burst, initial: burst }
}

/// ⌈units · period / rate⌉: the nanoseconds in which `units` are earned.
fn time_of(count: u64, units: u64, period: u64) -> u64 {
    u64::try_from((u128::from(count) * u128::from(period)).div_ceil(units.into())).unwrap()
}

// ---------------------------------------------------------------------------------------------------------------------
// Random limits and schedules

/// Random numbers of up to `bits` bits, with as many small ones as large ones.
pub(crate) fn any_size(bits: u32) -> impl Strategy<Value = u64> + Clone {
    (0..=bits, any::<u64>()).prop_map(|(bits, number)| if bits == 0 { 0 } else { number >> (64 - bits) })
}

/// From 1 in 365 days to 10 in a nanosecond.
pub(crate) fn any_rate() -> impl Strategy<Value = (u64, u64)> + Clone {
    let usual = prop::sample::select(vec![
        (1, YEAR),
        (5_000, HOUR),
        (700, MINUTE),
        (3, SECOND),
        (5, SECOND),
        (1_000_003, SECOND),
        (1_500_000_000, SECOND),
        (10, 1),
    ]);
    let odd = (any_size(40), any_size(55)).prop_filter_map("from 1/365 d to 10 G/s", |(units, period)| {
        let (units, period) = (units.max(1), period.max(1));
        let in_range = units / period <= 9 && period / units < YEAR;
        in_range.then_some((units, period))
    });
    prop_oneof![usual, odd]
}

pub(crate) fn any_bucket() -> impl Strategy<Value = Limit> + Clone {
    let burst = prop_oneof![4 => 1..=20_u64, 3 => any_size(24), 1 => any_size(64)];
    (any_rate(), burst, prop_oneof![Just(1000), 0..=1000_u64]).prop_map(|((units, period), burst, filled)| {
        let burst = burst.max(1);
        Limit::Bucket { units, period, burst, initial: share(burst, filled) }
    })
}

pub(crate) fn any_window(counts: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Limit> + Clone {
    let periods = prop_oneof![prop::sample::select(vec![SECOND, MINUTE, HOUR]), any_size(55)];
    (counts, periods, prop_oneof![Just(0), 0..=1000_u64]).prop_map(|(count, period, slack)| {
        let period = period.max(1);
        Limit::Window { count, period, slack: share(period, slack) }
    })
}

/// One limit, or several that grant together; windows small enough to be exact.
pub(crate) fn any_limits() -> impl Strategy<Value = Vec<Limit>> + Clone {
    let limit = prop_oneof![3 => any_bucket(), 2 => any_window(1..=30), 1 => any_window(1..=EXACT)];
    prop::collection::vec(limit, 1..=3)
}

/// `permille` thousandths of `number`.
pub(crate) fn share(number: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}

/// The time of the next request.
#[derive(Clone, Debug)]
pub(crate) enum When {
    /// At the time of the request before it.
    Again,
    /// At the latest grant, as a saturating consumer does.
    AtGrant,
    /// Thousandths of the time in which some limit fills, or of the time of one unit, after the latest grant.
    Later(Index, u64),
    LaterByUnits(Index, u64),
    /// Nanoseconds after the latest grant, up to 36 years.
    AnyTimeLater(u64),
    /// Nanoseconds before the request before.
    Back(u64),
}

/// What the next request costs.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// Thousandths of what some limit lets through at once.
    Share(Index, u64),
}

fn any_when() -> impl Strategy<Value = When> {
    prop_oneof![
        2 => Just(When::Again),
        4 => Just(When::AtGrant),
        3 => (any::<Index>(), 0..2500_u64).prop_map(|(limit, permille)| When::Later(limit, permille)),
        3 => (any::<Index>(), 0..4000_u64).prop_map(|(limit, permille)| When::LaterByUnits(limit, permille)),
        1 => any_size(60).prop_map(When::AnyTimeLater),
        1 => any_size(60).prop_map(When::Back),
    ]
}

fn any_cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => Just(Cost::Units(1)),
        3 => (0..=5_u64).prop_map(Cost::Units),
        3 => (any::<Index>(), 0..=1000_u64).prop_map(|(limit, permille)| Cost::Share(limit, permille)),
        1 => (any::<Index>(), 1000..4000_u64).prop_map(|(limit, permille)| Cost::Share(limit, permille)),
    ]
}

pub(crate) type Schedule = Vec<(When, Cost)>;

pub(crate) fn any_schedule(most: usize) -> impl Strategy<Value = Schedule> {
    prop::collection::vec((any_when(), any_cost()), 1..=most)
}

/// What a limit lets through at once, and the time in which it recovers from that.
fn size(limit: &Limit) -> (u64, u64) {
    match *limit {
        Limit::Window { count, period, .. } => (count, period),
        Limit::Bucket { units, period, burst, .. } => {
            let fill = u128::from(burst) * u128::from(period) / u128::from(units);
            (burst, u64::try_from(fill.min(1 << 60)).unwrap())
        }
    }
}

impl When {
    fn time(&self, limits: &[Limit], asked: u64, latest: u64) -> u64 {
        match self {
            When::Again => asked,
            When::AtGrant => latest,
            When::Later(limit, permille) => latest.saturating_add(share(size(limit.get(limits)).1, *permille)),
            When::LaterByUnits(limit, permille) => {
                let (at_once, recovers) = size(limit.get(limits));
                latest.saturating_add(share(recovers / at_once, *permille))
            }
            When::AnyTimeLater(nanos) => latest.saturating_add(*nanos),
            When::Back(nanos) => asked.saturating_sub(*nanos),
        }
    }
}

impl Cost {
    fn units(&self, limits: &[Limit]) -> u64 {
        match self {
            Cost::Units(units) => *units,
            Cost::Share(limit, permille) => share(size(limit.get(limits)).0, *permille),
        }
    }
}

/// Runs `schedule` through `step`, which gets the time and the cost and returns the latest grant.
pub(crate) fn run(limits: &[Limit], start: u64, schedule: &Schedule, mut step: impl FnMut(u64, u64) -> u64) {
    let (mut asked, mut latest) = (start, start);
    for (when, cost) in schedule {
        asked = when.time(limits, asked, latest);
        latest = step(asked, cost.units(limits));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Law 1: exact

#[test]
fn law1_the_nth_of_millions_of_grants_is_at_its_exact_time() {
    let many = u64::from(rounds(1_000_000));
    let is_exact = |(grants, units, period, burst, initial): (u64, u64, u64, u64, u64)| {
        let mut core = core(&[Limit::Bucket { units, period, burst, initial }], 0);
        let mut last = 0;
        for n in 1..=grants {
            // Half of the requests come at the grant before, as from a sleeper; the others reserve far ahead.
            let asked = if n % 2000 < 1000 { last } else { 0 };
            last = core.take(asked, 1).unwrap().at;
            let expected = time_of(n - initial.min(n), units, period);
            assert_eq!(last, expected, "unit {n} at {units} in {period} ns, burst {burst}, initial {initial}");
        }
    };
    let cases = [
        (10 * many, 3, SECOND, 1, 1),
        (many, 3, SECOND, 10, 10),
        (many, 3, SECOND, 10, 4),
        (10 * many, 1_000_003, SECOND, 1, 1),
        (many, 1_000_003, SECOND, 10_000, 10_000),
        (10 * many, 700, MINUTE, 1, 1),
        (many, 700, MINUTE, 7, 0),
        (10 * many, 3, 2, 1, 1),
        (many, 3, 2, 15_000_000, 0),
        (many, 10, 1, 1, 1),
    ];
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || is_exact(case));
        }
    });
}

#[test]
fn law1_late_runs_get_exactly_the_rate() {
    for (units, period, burst) in [(1_000_003, SECOND, 10_000), (3, 2, 15_000_000), (700, MINUTE, 7), (10, 1, 1000)] {
        let limits = [bucket(units, period, burst)];
        let (mut line, quantum) = (line(&limits), u128::from(policy_of(&limits).quantum()));
        line.want(0, u64::MAX);
        let by = |time: u64| u128::from(burst) + u128::from(units) * u128::from(time) / u128::from(period);
        // A run may leave up to one unit behind, so the bucket is full after one unit less.
        let (full_after, mut total, mut now) = (time_of(burst - 1, units, period), 0, 0);
        for n in 0..100_000 {
            match line.poll(now, u64::MAX) {
                Next::Run(run) => {
                    total += u128::from(run.units);
                    assert!(
                        (total..total + quantum).contains(&by(now)),
                        "all units available, but less than a quantum"
                    );
                }
                Next::At(at) => {
                    let next = total + quantum;
                    assert!(by(at - 1) < next && next <= by(at), "a quantum, at the earliest time");
                    now = at + share(full_after, n * 7919 % 1000);
                }
                next => panic!("{next:?}"),
            }
        }
    }
}

#[test]
fn law1_5_per_s_with_5000_per_h_keeps_and_uses_both() {
    let limits = [bucket(5, SECOND, 1), Limit::Window { count: 5000, period: HOUR, slack: 0 }];
    let (mut core, mut grants) = (core(&limits, 0), vec![0_u64; 0]);
    for _ in 0..400_000 {
        let now = grants.last().copied().unwrap_or(0);
        grants.push(core.take(now, 1).unwrap().at);
    }
    for (n, at) in (0..5000).zip(&grants) {
        assert_eq!(*at, n * SECOND / 5, "the first 5000 take 1000 s");
    }
    for (n, at) in grants.iter().enumerate().skip(5000) {
        assert!(at - grants[n - 5000] >= HOUR, "5001 in an hour");
    }
    for hours in 1..80 {
        let granted = grants.partition_point(|at| *at < hours * HOUR);
        let allowed = usize::try_from(5000 * hours).unwrap();
        assert!(granted * 1000 >= allowed * 999, "only {granted} of {allowed} after {hours} h");
    }
}

#[test]
fn law1_a_saturated_window_grants_its_count_each_period() {
    for (count, period) in [(1, SECOND), (5, SECOND), (1024, MINUTE), (1025, SECOND), (5000, HOUR), (100_000, SECOND)] {
        let mut core = core(&[Limit::Window { count, period, slack: 0 }], 0);
        let mut last = 0;
        for n in 0..(3 * count).max(100) {
            last = core.take(last, 1).unwrap().at;
            assert_eq!(last, n / count * period, "unit {n} of {count} in {period} ns");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(128)))]

    #[test]
    fn law1_nothing_is_lost_under_saturation_at_any_rate(
        limit in any_bucket(), start in any_size(55), ahead in any::<bool>()
    ) {
        let Limit::Bucket { units, period, initial, .. } = limit else { unreachable!() };
        let mut pair = Pair::new(&[limit], start);
        // The initial units go in one piece, so that the exact schedule begins.
        let mut last = if initial > 0 { pair.take(start, initial).unwrap().at } else { start };
        prop_assert_eq!(last, start);
        for n in 1..=200_u64 {
            let expected = u128::from(start) + (u128::from(n) * u128::from(period)).div_ceil(units.into());
            let grant = pair.take(if ahead { start } else { last }, 1);
            prop_assert_eq!(grant.map(|grant| u128::from(grant.at)), u64::try_from(expected).ok().map(u128::from));
            let Some(grant) = grant else { break };
            last = grant.at;
        }
    }

    #[test]
    fn law1_the_schedule_is_the_time_of_the_last_unit(
        limit in prop_oneof![any_bucket(), any_window(1..=30)], schedule in any_schedule(10), more in 1..100_u64
    ) {
        let limits = [limit];
        let mut core = core(&limits, 0);
        run(&limits, 0, &schedule, |now, cost| {
            let _ = core.take(now, cost);
            core.latest()
        });
        let told = core.schedule(core.latest(), more);
        let mut last = Some(core.latest());
        for _ in 0..more {
            last = last.and_then(|now| core.take(now, 1).ok()).map(|grant| grant.at);
        }
        prop_assert_eq!(told, last);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Law 2: never early, never over

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(512)))]

    #[test]
    fn law2_grants_come_when_the_model_says_and_are_never_over(
        limits in any_limits(), start in any_size(60), schedule in any_schedule(50)
    ) {
        let mut pair = Pair::new(&limits, start);
        run(&limits, start, &schedule, |now, cost| {
            pair.same_available(now);
            pair.take(now, cost);
            pair.core.latest()
        });
        pair.never_over();
    }

    #[test]
    fn law2_saturated_limits_grant_when_the_model_says(
        limits in any_limits(), costs in prop::collection::vec(any_cost(), 1..60)
    ) {
        let mut pair = Pair::new(&limits, 0);
        for cost in costs {
            pair.take(pair.core.latest(), cost.units(&limits));
        }
        pair.never_over();
    }

    #[test]
    fn law2_windows_kept_in_groups_are_never_over(
        window in any_window(EXACT + 1..=20_000), pace in any_bucket(), paced in any::<bool>(), schedule in any_schedule(80)
    ) {
        let limits = if paced { vec![window, pace] } else { vec![window] };
        let mut pair = Pair::new(&limits, 0);
        run(&limits, 0, &schedule, |now, cost| {
            pair.take(now, cost);
            let _ = (pair.core.available(now), pair.core.schedule(now, cost));
            pair.core.latest()
        });
        pair.never_over();
    }

    #[test]
    fn law2_a_bucket_charged_at_any_time_matches_the_model(
        limit in any_bucket(), schedule in any_schedule(30)
    ) {
        let Limit::Bucket { units, period, burst, initial } = limit else { unreachable!() };
        let mut bucket = Bucket::new(rate(units, period), positive(burst), initial, 0);
        let mut model = Model::new(&[limit], 0);
        run(&[limit], 0, &schedule, |now, cost| {
            let cost = cost.max(1);
            let at = bucket.conforms_at(now, cost);
            assert_eq!(at, model.take(now, cost).map(|granted| granted.at));
            let Some(at) = at else { return now };
            bucket.charge(now, at, cost);
            assert_eq!(BigInt::from(bucket.balance(at)), model.available(at));
            at
        });
    }
}

#[test]
fn law2_all_limits_are_charged_when_all_of_them_conform() {
    let limits = [bucket(10, SECOND, 5), Limit::Window { count: 12, period: 10 * SECOND, slack: 0 }];
    let mut pair = Pair::new(&limits, 0);
    let at = |grant: Option<Grant>| grant.map(|grant| (grant.at, grant.bound_by));
    assert_eq!(at(pair.take(0, 5)), Some((0, None)));
    assert_eq!(at(pair.take(0, 5)), Some((SECOND / 2, Some(0))));
    assert_eq!(at(pair.take(SECOND / 2, 3)), Some((10 * SECOND, Some(1))));
    // The bucket was full at 10 s and paid then, so 2 are left. If it were charged at the request, it would be full
    // again.
    assert_eq!(at(pair.take(10 * SECOND, 4)), Some((10 * SECOND + SECOND / 5, Some(0))));
    pair.never_over();
}

#[test]
fn law2_a_cost_above_the_burst_leaves_the_bucket_empty() {
    let mut pair = Pair::new(&[bucket(10, SECOND, 2)], 0);
    let tenth = SECOND / 10;
    for (asked, cost, granted) in [
        (0, 5, 3),          // 2 were there
        (3, 1, 4),          // empty, not in debt
        (100, 5, 103),      // since its request: idle time counts only up to the burst
        (103, 4, 107),      // since the previous grant
        (104, 6, 113),      // asked in the middle, still computed from the previous grant
        (113, 100, 213),    // far above
        (1_000, 2, 1_000),  // a full bucket again
        (1_000, 12, 1_012), // all of it from the rate
    ] {
        let grant = pair.take(asked * tenth, cost).unwrap();
        assert_eq!(grant.at, granted * tenth, "{cost} asked for at {asked}");
    }
}

#[test]
fn law2_a_late_cost_above_the_burst_leaves_it_empty_too() {
    let limits = [bucket(10, SECOND, 2), Limit::Window { count: 8, period: 10 * SECOND, slack: 0 }];
    let mut pair = Pair::new(&limits, 0);
    assert_eq!(pair.take(0, 8).unwrap().at, SECOND * 6 / 10);
    assert_eq!(pair.take(SECOND * 6 / 10, 5).unwrap().at, SECOND * 106 / 10, "the window");
    assert_eq!(pair.core.available(SECOND * 106 / 10), 0);
    assert_eq!(pair.take(SECOND * 106 / 10, 1).unwrap().at, SECOND * 107 / 10);
}

#[test]
fn law2_a_unit_makes_room_in_a_window_exactly_one_period_later() {
    let mut core = core(&[Limit::Window { count: 2, period: SECOND, slack: 0 }], 0);
    assert_eq!(core.take(5, 1).unwrap().at, 5);
    assert_eq!(core.take(9, 1).unwrap().at, 9);
    assert_eq!(core.available(SECOND + 4), 0);
    assert_eq!(core.available(SECOND + 5), 1);
    assert_eq!(core.take_within(SECOND + 4, 1, 0), Err(Refusal::TooLong { wait: 1 }));
    assert_eq!(core.take(10, 1).unwrap().at, SECOND + 5);
    assert_eq!(core.take(10, 1).unwrap().at, SECOND + 9);
    assert_eq!(core.take(10, 3), Err(Refusal::Never));
}

#[test]
fn law2_even_a_cost_of_0_is_not_before_the_previous_grant() {
    let mut core = core(&[bucket(1, SECOND, 1)], 0);
    assert_eq!(core.take(0, 2).unwrap().at, SECOND);
    assert_eq!(core.take(0, 0).unwrap().at, SECOND);
    assert_eq!(core.take(3 * SECOND, 0).unwrap().at, 3 * SECOND);
}

#[test]
fn law2_an_expired_group_of_a_large_window_takes_no_new_units() {
    // Groups of two: the first holds one unit and is a thousand periods old at the next grant.
    let large = [Limit::Window { count: 2048, period: SECOND, slack: 0 }];
    let mut with_room = core(&large, 0);
    assert_eq!(with_room.take(0, 1).unwrap().at, 0);
    assert_eq!(with_room.take(1000 * SECOND, 2047).unwrap().at, 1000 * SECOND);
    assert_eq!(with_room.available(1000 * SECOND), 1, "the old unit must not count again");
    assert_eq!(with_room.take(1000 * SECOND, 1).unwrap().at, 1000 * SECOND);
    let mut core = core(&large, 0);
    assert_eq!(core.take(0, 1).unwrap().at, 0);
    assert_eq!(core.take(1000 * SECOND, 2048).unwrap().at, 1000 * SECOND);
    assert_eq!(core.available(1000 * SECOND), 0);
    assert_eq!(core.schedule(1000 * SECOND, 1), Some(1001 * SECOND));
    assert_eq!(core.take(1000 * SECOND, 2048).unwrap().at, 1001 * SECOND);
}

#[test]
fn law2_a_group_leaves_a_large_window_with_its_latest_unit() {
    // Groups of two: the first two units share a group.
    let mut core = core(&[Limit::Window { count: 2048, period: 10 * SECOND, slack: 0 }], 0);
    for (now, cost) in [(0, 1), (9, 1), (9, 2046)] {
        assert_eq!(core.take(now * SECOND, cost).unwrap().at, now * SECOND);
    }
    assert_eq!(core.available(10 * SECOND), 0);
    assert_eq!(core.take(10 * SECOND, 2).unwrap().at, 19 * SECOND);
}

#[test]
fn law2_the_largest_costs_and_bursts_never_overflow() {
    let huge = u64::MAX;
    let rates = [(1, YEAR), (3, SECOND), (10, 1), (huge, SECOND), (huge - 2, 1_000_000), (1, 1)];
    for (units, period) in rates {
        for burst in [1, 1 << 32, huge - 1, huge] {
            for other in [
                bucket(1, YEAR, huge),
                bucket(huge, SECOND, 1),
                Limit::Window { count: huge, period: SECOND, slack: 0 },
            ] {
                let mut pair = Pair::new(&[bucket(units, period, burst), other], 0);
                for (now, cost) in [(0, huge), (1, huge), (YEAR, 1), (0, huge), (huge - 1, huge), (huge, huge), (0, 1)]
                {
                    pair.take(now, cost);
                    for time in [0, now, huge] {
                        let core = &pair.core;
                        let _ = (core.available(time), core.schedule(time, cost), core.conforms_at(time, cost));
                    }
                }
                pair.never_over();
            }
        }
    }
}

#[test]
fn law2_the_largest_window_never_overflows() {
    let mut window = Window::new(NonZeroU64::MAX, positive(SECOND), 0);
    for second in 0..10 {
        assert_eq!(window.conforms_at(0, u64::MAX), Some(second * SECOND));
        window.charge(second * SECOND, u64::MAX);
        assert_eq!(window.available(second * SECOND), 0);
        assert_eq!(window.available((second + 1) * SECOND), u64::MAX);
    }
    let core = core(&[Limit::Window { count: u64::MAX, period: SECOND, slack: 0 }], 0);
    assert_eq!(core.schedule(0, u64::MAX), Some(0));
}

#[test]
fn law2_a_bucket_300_years_ahead_reports_its_debt() {
    let bucket = Bucket::new(rate(u64::MAX - 2, 1_000_000), NonZeroU64::MIN, 0, u64::MAX);
    let ahead = (u128::from(u64::MAX) * u128::from(u64::MAX - 2)).div_ceil(1_000_000);
    assert_eq!(bucket.balance(0), -i128::try_from(ahead).unwrap());
    let slow = Bucket::new(rate(1, YEAR), NonZeroU64::MIN, 0, u64::MAX);
    assert_eq!(slow.balance(u64::MAX - YEAR), -1);
    assert_eq!(slow.balance(u64::MAX - YEAR - 1), -2);
}

// ---------------------------------------------------------------------------------------------------------------------
// Law 3: lateness costs no rate, and makes no burst

/// A consumer that asks, sleeps until its grant, is late, leaves, and asks again. Returns the times at which it left.
fn consume(core: &mut Account, clock: &FakeClock, costs: &[u64], late: impl Fn(usize, bool) -> u64) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    for (n, &cost) in costs.iter().enumerate() {
        let asked = clock.now();
        // Slow rates reach the end of the clock.
        let Ok(grant) = core.take(asked, cost) else { break };
        clock.sleep_until(grant.at);
        clock.set(Duration::from_nanos(clock.now().saturating_add(late(n, grant.at > asked))));
        left.push((clock.now(), cost));
    }
    left
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(256)))]

    #[test]
    fn law3_lateness_below_the_fill_time_costs_no_rate(
        (units, period) in any_rate(), burst in 1..50_u64, late in prop::collection::vec(0..=1000_u64, 300)
    ) {
        let mut core = core(&[bucket(units, period, burst)], 0);
        let fill = time_of(burst, units, period);
        let clock = FakeClock::default();
        // Two nanoseconds less, because the grant and the fill time are rounded.
        let late = |n: usize, waited: bool| if waited { share(fill.saturating_sub(2), late[n]) } else { 0 };
        let mut asked = 0;
        for n in 0..300_u64 {
            let grant = core.take(clock.now(), 1).unwrap();
            // On the ideal schedule, or at once if the consumer was behind it.
            let ideal = time_of((n + 1).saturating_sub(burst), units, period);
            prop_assert_eq!(grant.at, ideal.max(asked), "unit {}", n);
            let waited = grant.at > clock.now();
            clock.sleep_until(grant.at);
            clock.advance(Duration::from_nanos(late(usize::try_from(n).unwrap(), waited)));
            asked = clock.now();
        }
    }

    #[test]
    fn law3_what_leaves_is_bounded_by_burst_rate_and_allowance(
        (units, period) in any_rate(), burst in 1..50_u64,
        steps in prop::collection::vec((1..=1000_u64, 0..=4_u64, 0..=3000_u64), 1..80)
    ) {
        let mut core = core(&[bucket(units, period, burst)], 0);
        let fill = time_of(burst, units, period);
        let costs: Vec<u64> = steps.iter().map(|step| share(burst, step.0).max(1)).collect();
        // Mostly on time, sometimes up to three fill times late, sometimes a thousand times as late.
        let late = |n: usize, _| match steps[n] {
            (_, 0, permille) => share(fill, permille),
            (_, 1, permille) => share(fill, permille).saturating_mul(1000).min(YEAR),
            _ => 0,
        };
        let left = consume(&mut core, &FakeClock::default(), &costs, late);
        // Law 3 is law 2 for what leaves, with a burst that is larger by one fill of the bucket.
        let allowed = Limit::Bucket { units, period, burst: 2 * burst, initial: 0 };
        prop_assert_eq!(excess(&allowed, &left), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(128)))]

    #[test]
    fn law3_late_runs_are_bounded_by_burst_rate_and_allowance(
        (units, period) in any_rate(), burst in prop_oneof![1..50_u64, any_size(30).prop_map(|burst| burst.max(1))],
        steps in prop::collection::vec((any_size(32), 0..=4_u64, 0..=3000_u64), 1..80)
    ) {
        let mut line = line(&[bucket(units, period, burst)]);
        let (mut now, mut left) = (0_u64, Vec::new());
        let fill = size(&bucket(units, period, burst)).1;
        for (waiting, kind, permille) in steps {
            line.want(now, waiting.max(1));
            let late = if kind < 2 { share(fill, permille).saturating_mul(1 + 999 * kind) } else { 0 };
            match line.poll(now, u64::MAX) {
                Next::Run(run) => left.push((now, run.units)),
                Next::At(at) => match at.checked_add(late) {
                    Some(time) if time < u64::MAX => now = time,
                    _ => break,
                },
                next => panic!("{next:?}"),
            }
        }
        // The allowance is at most the time that fills the bucket, rounded up to a nanosecond.
        let most = 2 * burst + units.div_ceil(period);
        let allowed = Limit::Bucket { units, period, burst: most, initial: 0 };
        prop_assert_eq!(excess(&allowed, &left), None);
    }
}

#[test]
fn law3_after_an_hour_asleep_one_bucket_leaves_then_the_rate() {
    let mut core = core(&[bucket(10, SECOND, 5)], 0);
    let clock = FakeClock::default();
    let costs = [1; 60];
    let left = consume(&mut core, &clock, &costs, |n, _| if n == 20 { HOUR } else { 0 });
    let woke = left[20].0;
    let times: Vec<u64> = left[20..].iter().map(|(at, _)| at - woke).collect();
    assert_eq!(times[..7], [0, 0, 0, 0, 0, 0, SECOND / 10], "the one it slept on, then a bucket, then the rate");
    assert_eq!(times[39] - times[6], 33 * SECOND / 10);
}

// ---------------------------------------------------------------------------------------------------------------------
// Law 6: all or nothing

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(256)))]

    #[test]
    fn law6_a_refusal_charges_nothing_and_its_wait_is_exact(
        limits in any_limits(), start in any_size(60), schedule in any_schedule(40),
        waits in prop::collection::vec(prop_oneof![Just(0), any_size(64)], 40)
    ) {
        let mut pair = Pair::new(&limits, start);
        let mut waits = waits.into_iter();
        // A time read out of order counts as the time before it.
        let mut read = start;
        run(&limits, start, &schedule, |now, cost| {
            let untouched = pair.core.clone();
            let max_wait = waits.next().unwrap();
            let expected = pair.model.ask(now, cost);
            match (pair.core.take_within(now, cost, max_wait), expected) {
                (Err(Refusal::Never), None) => assert_eq!(pair.core, untouched),
                (Err(Refusal::TooLong { wait }), Some(granted)) => {
                    assert_eq!(wait, granted.at - now.max(read));
                    assert!(wait > max_wait);
                    assert_eq!(pair.core, untouched);
                    // Exactly that wait is enough.
                    assert_eq!(pair.core.clone().take_within(now, cost, wait).map(|grant| grant.at), Ok(granted.at));
                }
                (Ok(grant), Some(granted)) => {
                    assert_eq!(grant.at, granted.at);
                    assert!(grant.at - now.max(read) <= max_wait);
                    pair.model.take(now, cost);
                    read = if cost > 0 { now.max(read) } else { read };
                }
                (core, model) => panic!("{core:?}, but {model:?}"),
            }
            pair.core.latest()
        });
    }
}

#[test]
fn law6_a_cost_above_one_windows_count_is_refused_by_all() {
    let limits = [bucket(10, SECOND, 100), Limit::Window { count: 5, period: SECOND, slack: 0 }];
    let mut core = core(&limits, 0);
    let untouched = core.clone();
    assert_eq!(core.take(0, 6), Err(Refusal::Never));
    assert_eq!(core.take_within(0, 6, u64::MAX), Err(Refusal::Never));
    assert_eq!(core, untouched);
}

// ---------------------------------------------------------------------------------------------------------------------
// Law 7: monotonic time

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(256)))]

    #[test]
    fn law7_times_read_out_of_order_are_clamped(
        limits in any_limits(), requests in prop::collection::vec((any_size(45), any_cost()), 1..50)
    ) {
        let (mut raw, mut clamped) = (core(&limits, 0), Pair::new(&limits, 0));
        let mut latest = 0;
        for (now, cost) in requests {
            let cost = cost.units(&limits);
            // A request that is refused for ever, or costs 0, leaves no trace, not even of its time.
            if cost == 0 || raw.conforms_at(now, cost).is_err() {
                continue;
            }
            latest = now.max(latest);
            let granted = clamped.take(latest, cost).map(|grant| grant.at);
            prop_assert_eq!(raw.take(now, cost).ok().map(|grant| grant.at), granted);
        }
        clamped.never_over();
    }
}

#[test]
fn law7_time_that_goes_back_credits_nothing() {
    let mut core = core(&[bucket(10, SECOND, 3)], 5 * SECOND);
    assert_eq!(core.take(5 * SECOND, 3).unwrap().at, 5 * SECOND);
    for back in [4 * SECOND, 0, 5 * SECOND - 1] {
        assert_eq!(core.available(back), 0);
        assert_eq!(core.take_within(back, 1, 0).map_err(|_| ()), Err(()));
    }
    assert_eq!(core.take(0, 1).unwrap().at, 5 * SECOND + SECOND / 10);
}

#[test]
fn law7_an_older_clock_reading_is_not_refused_available_units() {
    let mut core = core(&[bucket(10, SECOND, 3)], 0);
    assert_eq!(core.take_within(SECOND, 1, 0).map(|grant| grant.at), Ok(SECOND));
    assert_eq!(core.available(SECOND - 1), 2);
    assert_eq!(core.take_within(SECOND - 1, 1, 0).map(|grant| grant.at), Ok(SECOND));
    assert_eq!(core.take_within(0, 1, 0).map(|grant| grant.at), Ok(SECOND));
    assert_eq!(core.take_within(SECOND - 1, 1, 0), Err(Refusal::TooLong { wait: SECOND / 10 }));
}

#[test]
fn law7_years_of_idle_time_fill_the_bucket_and_no_more() {
    for (units, period) in [(3, SECOND), (10, 1), (1, YEAR), (1_000_003, SECOND), (700, MINUTE)] {
        let limits = [bucket(units, period, 7), Limit::Window { count: 9, period: SECOND, slack: 0 }];
        let mut pair = Pair::new(&limits, 0);
        for years in [0, 1, 30, 99, 250] {
            let now = pair.core.latest() / YEAR * YEAR + years * YEAR;
            for _ in 0..20 {
                pair.take(now, 1);
            }
        }
        pair.never_over();
        let now = pair.core.latest() + 50 * YEAR;
        assert_eq!(pair.core.available(now), 7);
    }
}
