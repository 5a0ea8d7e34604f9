//! The laws of a shared bucket one by one: shares, jobs, holds, the horizon, owners, changed limits, and settled costs.

use crate::replica::{EVERYTHING, asked, at, drain, granted, log, owner, rules, shown};
use crate::rounds::rounds;
use crate::scheduler::Random;
use std::collections::HashMap;
use throttle_limits::clock::{MILLISECOND as MS, Nanos, SECOND};
use throttle_limits::ledger::Replica;
use throttle_limits::ledger::operation::{Ask, Grant, Operation, Outcome, Owner, PLAIN, Record, Refusal};
use throttle_limits::limits::{OfKeys, Policy};

/// A policy with these limits of all units.
fn policy(limits: &[&str]) -> Policy {
    if limits.is_empty() {
        return Policy::default();
    }
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

/// A policy with these limits of all units, and of each key.
fn keyed(all: &[&str], each: &[&str]) -> Policy {
    policy(all).with_keys(OfKeys { per: "f1".to_owned(), each: policy(each), jobs: None, fails: None })
}

fn with_fails(policy: Policy, fails: u32) -> Policy {
    let keys = policy.of_keys().unwrap().clone();
    policy.with_keys(OfKeys { fails: fails.try_into().ok(), ..keys })
}

fn with_jobs(policy: Policy, of_all: u32, of_key: u32) -> Policy {
    let policy = policy.with_jobs(of_all.try_into().ok());
    match policy.of_keys().cloned() {
        Some(keys) => policy.with_keys(OfKeys { jobs: of_key.try_into().ok(), ..keys }),
        None => policy,
    }
}

/// A request for a unit of this key.
fn unit(ticket: u64, key: &str, costs: &[u64]) -> Ask {
    Ask { ticket, key: Some(key.as_bytes().into()), costs: costs.into(), latest: Nanos::MAX, ..Ask::default() }
}

/// Requests for units of this key, of cost 1.
fn units(tickets: impl IntoIterator<Item = u64>, key: &str) -> Operation {
    Operation::Ask(tickets.into_iter().map(|ticket| unit(ticket, key, &[1])).collect())
}

fn hold(key: Option<&str>, until: Nanos) -> Operation {
    Operation::Hold { key: key.map(|key| key.as_bytes().into()), until, refused: Vec::new() }
}

fn settle(number: u64, real: &[u64]) -> Operation {
    Operation::Settle { number, real: real.into() }
}

fn gone(of: u64) -> Operation {
    Operation::Gone { owner: owner(of), seen: Nanos::MAX }
}

/// The outcomes since the last call.
fn outcomes(replica: &mut Replica) -> Vec<(Owner, Outcome)> {
    let mut outcomes = Vec::new();
    drain(replica, &mut outcomes);
    outcomes
}

/// The grants since the last call.
fn grants(replica: &mut Replica) -> Vec<Grant> {
    granted(&outcomes(replica)).into_iter().map(|(_, grant)| grant).collect()
}

/// The times of the grants since the last call, in milliseconds.
fn times(replica: &mut Replica) -> Vec<u64> {
    grants(replica).iter().map(|grant| grant.at / MS).collect()
}

fn refusals(replica: &mut Replica) -> Vec<(u64, Refusal)> {
    let refusal = |(_, outcome): (Owner, Outcome)| match outcome {
        Outcome::Refused(ticket, why) => Some((ticket, why)),
        Outcome::Granted(_) => None,
    };
    outcomes(replica).into_iter().filter_map(refusal).collect()
}

fn assert_same(is: &Replica, should: &Replica, why: &str) {
    if is != should {
        let [one, two] = [is, should].map(|replica| format!("{replica:#?}"));
        let differs = one.lines().zip(two.lines()).find(|(one, two)| one != two);
        panic!("{why}: states differ at {differs:?}");
    }
}

fn reloaded(replica: &Replica) -> Replica {
    Replica::load(&replica.save()).expect("a snapshot can be read")
}

/// Seven flows that always wait: five with costs of up to 1, 9, 18, 27 and 36, and two with plain units. Each flow is a
/// key or an owner.
fn check_shares(random: &mut Random, has_keys: bool, why: &str) {
    let horizon = random.one(&[1, 10, 250]) * MS;
    let limits = if has_keys { keyed(&["100/s,burst=1"], &[]) } else { policy(&["100/s,burst=1"]) };
    let mut replica = Replica::new(&limits, 0, 0, horizon);
    let mut costs = HashMap::new();
    for ticket in 1..=600 {
        for flow in 0..5 {
            let cost = if flow == 0 { 1 } else { 1 + random.below(9 * flow) };
            costs.insert((owner(flow), ticket), cost);
            replica.apply(&at(0, flow, Operation::Ask(vec![unit(ticket, &flow.to_string(), &[cost])])));
        }
    }
    // With keys, all units without a key are one flow.
    replica.apply(&at(0, 5, Operation::Want(2000)));
    let flows = if has_keys { 6 } else { 7 };
    if !has_keys {
        replica.apply(&at(0, 6, Operation::Want(2000)));
    }
    let mut served = [0_u64; 7];
    let largest = [1, 9, 18, 27, 36, 1, 1];
    while served[0] < 600 {
        replica.advance(replica.now() + SECOND);
        for (of, grant) in granted(&outcomes(&mut replica)) {
            let flow = usize::try_from(of[0]).unwrap();
            served[flow] += costs.get(&(of, grant.ticket)).copied().unwrap_or(grant.units);
            for (one, other) in (0..flows).flat_map(|one| (0..flows).map(move |other| (one, other))) {
                let most = served[other] + largest[one] + largest[other];
                assert!(served[one] <= most, "{why}: {one} and {other} of {served:?}");
            }
            if served[0] == 600 {
                return;
            }
        }
    }
}

#[test]
fn waiting_flows_get_equal_shares_within_a_largest_cost_of_each() {
    for seed in 0..rounds(60) {
        for has_keys in [false, true] {
            check_shares(&mut Random::new(seed.into()), has_keys, &format!("seed {seed}, keys: {has_keys}"));
        }
    }
}

#[test]
fn suspects_take_one_turn_of_nine_whichever_limit_binds() {
    for (all, each) in [("100/s,burst=1", "1000/s,burst=1"), ("1000/s,burst=1", "100/s,burst=1"), ("1000/s", "7/s")] {
        let mut replica = Replica::new(&keyed(&[all], &[each]), 0, 0, 10 * MS);
        for ticket in 1..=1000 {
            let suspect = Ask { weight: 8, ..unit(ticket, "k", &[1]) };
            replica.apply(&at(0, 1, Operation::Ask(vec![suspect])));
            replica.apply(&at(0, 2, units([ticket], "k")));
            for other in 3..8 {
                replica.apply(&at(0, other, units([ticket], &other.to_string())));
            }
        }
        let mut count = [0_u64; 8];
        while count[1] + count[2] < 900 {
            replica.advance(replica.now() + SECOND);
            for (of, _) in granted(&outcomes(&mut replica)) {
                if count[1] + count[2] < 900 {
                    count[usize::try_from(of[0]).unwrap()] += 1;
                }
            }
        }
        assert!(count[1].abs_diff(100) <= 1, "{count:?}");
    }
}

/// At most three units run, and at most two of a key.
fn three_jobs(horizon: Nanos) -> (Replica, Vec<Grant>) {
    let limits = with_jobs(keyed(&[], &["1000/s,burst=10"]), 3, 2);
    let mut replica = Replica::new(&limits, 0, 0, horizon);
    for ticket in 0..5 {
        replica.apply(&at(0, 0, units([2 * ticket], "a")));
        replica.apply(&at(0, 0, units([2 * ticket + 1], "b")));
    }
    let first = grants(&mut replica);
    assert_eq!(first.iter().map(|grant| grant.ticket).collect::<Vec<_>>(), [0, 1, 2]);
    (replica, first)
}

#[test]
fn a_granted_unit_takes_a_job_until_it_has_ended() {
    for horizon in [1, 20, 250] {
        let (mut replica, first) = three_jobs(horizon * MS);
        assert_eq!(replica.estimate(owner(0), 4), None, "a job has to end before");
        replica.apply(&at(5 * MS, 0, Operation::Ended(vec![first[0].number])));
        let next: Vec<_> = grants(&mut replica).iter().map(|grant| (grant.ticket, grant.at)).collect();
        assert_eq!(next, [(3, 5 * MS)]);
        // Two units of b run, and one of a: only a unit of a may follow one of b.
        replica.apply(&at(6 * MS, 0, Operation::Ended(vec![first[1].number])));
        let next: Vec<_> = grants(&mut replica).iter().map(|grant| (grant.ticket, grant.at)).collect();
        assert_eq!(next, [(4, 6 * MS)]);
        // Jobs are taken also by units that are settled.
        replica.apply(&at(7 * MS, 0, settle(first[2].number, &[0])));
        assert!(times(&mut replica).is_empty());
        // A unit that is not used has ended.
        replica.apply(&at(8 * MS, 0, Operation::Unused(vec![first[2].number])));
        assert_eq!(times(&mut replica), [8]);
    }
}

#[test]
fn an_end_counts_once() {
    for horizon in [1, 20, 250] {
        let (mut replica, first) = three_jobs(horizon * MS);
        replica.apply(&at(5 * MS, 0, Operation::Ended(vec![first[0].number; 2])));
        assert_eq!(times(&mut replica), [5]);
        replica.apply(&at(6 * MS, 0, Operation::Ended(vec![first[0].number, 77])));
        replica.apply(&at(6 * MS, 0, Operation::Unused(vec![first[0].number])));
        replica = reloaded(&replica);
        replica.apply(&at(SECOND, 0, Operation::Ended(vec![first[0].number, 0])));
        assert!(times(&mut replica).is_empty());
    }
}

#[test]
fn the_jobs_of_an_owner_that_is_gone_have_ended() {
    for horizon in [1, 20, 250] {
        let (mut replica, _) = three_jobs(horizon * MS);
        replica.apply(&at(5 * MS, 9, units(0..9, "a")));
        // It was heard of later than that.
        let early = Operation::Gone { owner: owner(0), seen: MS };
        replica.apply(&at(6 * MS, 0, Operation::Here));
        replica.apply(&at(6 * MS, 9, early));
        assert!(times(&mut replica).is_empty());
        replica.apply(&at(7 * MS, 9, gone(0)));
        assert_eq!(times(&mut replica), [7, 7], "two of a key");
        assert_eq!((replica.len(), replica.owners().count()), (7, 1), "its requests are gone");
    }
}

#[test]
fn a_hold_that_is_lifted_costs_nothing() {
    let mut compared = 0;
    for seed in 0..rounds(1000) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 50]) * MS;
        let rules = rules(&mut random);
        let is_simple = random.is(2);
        let simple = keyed(&["40/s,burst=8"], &["9/s,burst=4"]);
        let limits = if is_simple { simple } else { rules.policy.with_jobs(None) };
        if limits.counts_jobs() {
            continue;
        }
        let log = log(&mut random, 40, "wS");
        let end = log.last().map_or(0, |record| record.time);
        let mut plain = Replica::new(&limits, 0, 0, horizon);
        for record in &log {
            plain.apply(record);
        }
        let Some(next) = plain.next_event() else { continue };
        outcomes(&mut plain);
        let before = plain.clone();
        // Held and resumed before anything would have been committed: nothing differs.
        let soon = next.saturating_sub(1).max(end);
        plain.apply(&at(end, 0, Operation::Here));
        plain.apply(&at(soon, 0, Operation::Here));
        assert!(outcomes(&mut plain).is_empty());
        for of in [Some("b"), None] {
            let mut held = before.clone();
            held.apply(&at(end, 0, hold(of, end + 100 * SECOND)));
            held.apply(&at(soon, 0, Operation::Resume(of.map(|key| key.as_bytes().into()))));
            if !outcomes(&mut held).is_empty() {
                continue; // The key held up others, and they were granted meanwhile.
            }
            compared += 1;
            assert_eq!(held.limits(None), plain.limits(None), "seed {seed}");
            for name in b'a'..b'g' {
                assert_eq!(held.limits(Some(&[name])), plain.limits(Some(&[name])), "seed {seed}");
            }
            // With costs above the burst, a flow may have another place among those that are ready.
            if is_simple {
                if of.is_none() {
                    assert_same(&held, &plain, &format!("seed {seed}"));
                }
                let mut plain = plain.clone();
                held.advance(soon + 100 * SECOND);
                plain.advance(soon + 100 * SECOND);
                assert_eq!(shown(&outcomes(&mut held)), shown(&outcomes(&mut plain)), "seed {seed}, {of:?}");
            }
        }
        // Held for long: as many units are allowed as if nothing had been requested meanwhile.
        let mut held = before.clone();
        held.apply(&at(next, 0, hold(None, next + 100 * SECOND)));
        outcomes(&mut held);
        let state = held.limits(None).unwrap().1.clone();
        held.advance(next + 10 * SECOND);
        let (limits, later) = held.limits(None).unwrap();
        for cost in [1, 2, 5, 8] {
            let [is, should] = [later, &state].map(|state| limits.conforms_at(state, next + SECOND, &[cost, cost]));
            assert_eq!(is, should, "seed {seed}: a hold charges nothing");
        }
        assert!(outcomes(&mut held).is_empty());
        held.apply(&at(next + 10 * SECOND, 0, Operation::Resume(None)));
        let first = grants(&mut held).first().map(|grant| grant.at);
        assert!(first.is_none_or(|first| first >= next + 10 * SECOND), "seed {seed}");
    }
    assert!(compared > 80, "{compared}");
}

#[test]
fn a_hold_that_ends_by_itself_leaves_empty_buckets() {
    for horizon in [1, 10, 250] {
        for of in [None, Some("k")] {
            let limits = ["10/s,burst=5", "8/10s,window"];
            let limits = if of.is_none() { keyed(&limits, &[]) } else { keyed(&[], &limits) };
            let mut replica = Replica::new(&limits, 0, 0, horizon * MS);
            let ask = |tickets: std::ops::Range<u64>| {
                Operation::Ask(tickets.map(|ticket| Ask { settles: true, ..unit(ticket, "k", &[1, 1]) }).collect())
            };
            replica.apply(&at(0, 1, ask(0..3)));
            replica.apply(&at(0, 1, hold(of, 2 * SECOND)));
            // A settlement in the hold changes the buckets, but they are emptied nevertheless.
            replica.apply(&at(SECOND, 1, settle(1, &[0])));
            replica.apply(&at(SECOND, 1, ask(10..20)));
            (1000..2600).step_by(50).for_each(|now| replica.advance(now * MS));
            // A grant from before the hold no longer changes the bucket, because the hold has paid for it.
            replica.apply(&at(2600 * MS, 1, settle(2, &[20, 0])));
            replica.apply(&at(2600 * MS, 1, settle(3, &[0, 1])));
            (2600..4000).step_by(50).for_each(|now| replica.advance(now * MS));
            // The window allows 8 units: one of the first three was settled at 0, and one more later.
            let expected = [0, 0, 0, 2100, 2200, 2300, 2400, 2500, 2600, 2700];
            assert_eq!(times(&mut replica), expected, "{horizon} {of:?}");
        }
    }
}

/// The bucket is then as if the unit had cost that from the start: 28 units were owed at the end of the hold.
#[test]
fn a_debt_that_is_known_after_a_hold_was_paid_in_it() {
    for horizon in [1, 10, 250] {
        for of in [None, Some("k")] {
            let limits = if of.is_none() { keyed(&["10/s,burst=2"], &[]) } else { keyed(&[], &["10/s,burst=2"]) };
            let mut replica = Replica::new(&limits, 0, 0, horizon * MS);
            replica.apply(&at(0, 1, Operation::Ask(vec![Ask { settles: true, ..unit(1, "k", &[1]) }])));
            replica.apply(&at(0, 1, hold(of, 2 * SECOND)));
            replica.advance(3 * SECOND);
            replica.apply(&at(3 * SECOND, 1, settle(1, &[50])));
            replica.apply(&at(3 * SECOND, 1, units(2..4, "k")));
            replica.advance(8 * SECOND);
            assert_eq!(times(&mut replica), [0, 4900, 5000], "{horizon} {of:?}");
        }
    }
}

#[test]
fn a_debt_is_paid_in_a_hold_and_what_is_left_stays() {
    for horizon in [1, 10, 250] {
        for (until, first) in [(3, 3100), (1, 1600)] {
            let mut replica = Replica::new(&policy(&["10/s,burst=5"]), 0, 0, horizon * MS);
            replica.apply(&at(0, 1, Operation::Ask(vec![Ask { settles: true, ..unit(1, "k", &[1]) }])));
            replica.apply(&at(0, 1, settle(1, &[20])));
            replica.apply(&at(0, 1, hold(None, until * SECOND)));
            replica.apply(&at(0, 1, units([2], "k")));
            replica.advance(4 * SECOND);
            assert_eq!(times(&mut replica), [0, first]);
        }
    }
}

#[test]
fn the_horizon_follows_the_longest_trip_of_the_last_minute() {
    let mut replica = Replica::new(&policy(&["10/s"]), 0, 0, 10 * MS);
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let reports = [(0, 5), (1, 200), (10, 80), (20, 300), (30, 40), (100, 40)];
    for second in 0..170 {
        for (_, round_trip) in reports.iter().filter(|(at, _)| *at == second) {
            replica.apply(&at(second * SECOND, *round_trip, Operation::RoundTrip(round_trip * MS)));
        }
        replica.advance(second * SECOND);
        if second % 7 == 0 {
            replica = reloaded(&replica);
        }
        let horizon = replica.horizon() / MS;
        if seen.last().is_none_or(|(_, last)| *last != horizon) {
            seen.push((second, horizon));
        }
    }
    assert_eq!(seen, [(0, 10), (1, 200), (20, 250), (80, 40), (90, 10), (100, 40), (160, 10)]);
    // Grants are committed so long before their times.
    for (round_trip, expected) in [(5, 1), (100, 2), (250, 3), (900, 3)] {
        let mut replica = Replica::new(&policy(&["10/s,burst=1"]), 0, 0, 10 * MS);
        replica.apply(&at(0, 1, Operation::RoundTrip(round_trip * MS)));
        replica.apply(&at(0, 1, Operation::Want(10)));
        assert_eq!(grants(&mut replica).len(), expected);
    }
}

#[test]
fn a_job_handed_over_runs_until_its_new_owner_ends_it_or_goes() {
    for ends in [Operation::Ended(vec![1]), gone(2)] {
        let mut replica = Replica::new(&Policy::default().with_jobs(1.try_into().ok()), 0, 0, 10 * MS);
        replica.apply(&at(0, 1, units([7], "k")));
        replica.apply(&at(0, 3, units([1], "k")));
        replica.apply(&at(MS, 1, Operation::HandOver(1, owner(2))));
        assert!(replica.owners().any(|known| known == (owner(2), MS)), "it is found silent if it is never heard of");
        replica = reloaded(&replica);
        // The ticket is that of the first owner, who no longer has the job.
        replica.apply(&at(2 * MS, 2, Operation::Cancel(vec![7])));
        replica.apply(&at(2 * MS, 1, Operation::Cancel(vec![7])));
        replica.apply(&at(2 * MS, 3, gone(1)));
        replica.apply(&at(SECOND, 3, Operation::Here));
        assert!(outcomes(&mut replica).iter().all(|(of, _)| *of != owner(3)), "the job is taken");
        replica.apply(&at(2 * SECOND, 2, ends));
        assert_eq!(times(&mut replica), [2000]);
    }
}

#[test]
fn an_estimate_is_true_if_nothing_changes() {
    let mut checked = 0;
    for seed in 0..rounds(600) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 250]) * MS;
        let rules = rules(&mut random);
        if rules.policy.counts_jobs() {
            continue;
        }
        let log = log(&mut random, 30, "hnlwPSr");
        let mut replica = Replica::new(&rules.policy, 0, 0, horizon);
        for record in &log {
            replica.apply(record);
        }
        let end = replica.now();
        outcomes(&mut replica);
        let names = asked(&log).into_keys().chain((0..6).map(|of| (owner(of), PLAIN)));
        let estimates: HashMap<_, _> =
            names.filter_map(|name| Some((name, replica.estimate(name.0, name.1)?))).collect();
        // A new request, which a copy really gets.
        let new = unit(99_999, "b", &[2, 1]);
        let mut copy = replica.clone();
        let estimate = replica.estimate_new(end, &new);
        copy.apply(&at(end, 77, Operation::Ask(vec![new])));
        for (mut replica, is_copy) in [(replica, false), (copy, true)] {
            let mut seen = HashMap::new();
            loop {
                for (of, grant) in granted(&outcomes(&mut replica)) {
                    seen.entry((of, grant.ticket)).or_insert(grant.at);
                }
                if replica.is_empty() || replica.now() >= end + 1000 * SECOND {
                    break;
                }
                replica.advance(replica.now() + random.below(900) * MS);
            }
            if is_copy {
                assert_eq!(seen.get(&(owner(77), 99_999)).copied(), estimate, "seed {seed}");
                continue;
            }
            let differs = seen.iter().find(|(name, at)| estimates.get(*name) != Some(*at));
            let why = differs.map(|(name, at)| (name, at, estimates.get(name)));
            assert!(why.is_none(), "seed {seed}: a name, its grant, the estimate: {why:?}");
            assert_eq!(seen.len(), estimates.len(), "seed {seed}");
            checked += seen.len();
        }
    }
    assert!(checked > 300, "{checked}");
}

/// The units that another owner wants are not all granted for that.
#[test]
fn an_estimate_takes_no_longer_if_others_want_more() {
    for has_keys in [true, false] {
        let limits = if has_keys { keyed(&["1000/s,burst=1"], &[]) } else { policy(&["1000/s,burst=1"]) };
        let mut replica = Replica::new(&limits, 0, 0, 10 * MS);
        replica.apply(&at(0, 1, Operation::Want(u64::MAX)));
        replica.apply(&at(0, 2, units(0..100, "a")));
        let all: Vec<_> = (50..100).filter_map(|ticket| replica.estimate(owner(2), ticket)).collect();
        // The first eleven turns were committed before. Then every second one is taken.
        assert_eq!(all, (0..50).map(|place| (111 + 2 * place) * MS).collect::<Vec<_>>());
        let late = Ask { not_before: SECOND, ..unit(100, "b", &[1]) };
        assert_eq!(replica.estimate_new(0, &late), Some(SECOND + MS));
        let never = Ask { latest: 0, ..unit(100, "b", &[1]) };
        assert_eq!(replica.estimate_new(0, &never), None);
    }
    // The only job of a key is taken, or a cost is above the window.
    let limits = with_jobs(keyed(&["1000/1s,window"], &[]), 10_000_000, 1);
    let mut replica = Replica::new(&limits, 0, 0, 10 * MS);
    replica.apply(&at(0, 2, units(0..2, "a")));
    (3..2000).for_each(|of| replica.apply(&at(0, of, Operation::Ask(vec![unit(0, &of.to_string(), &[1])]))));
    assert_eq!(replica.estimate(owner(2), 1), None);
    assert_eq!(replica.estimate_new(0, &unit(2, "a", &[1])), None);
    assert_eq!(replica.estimate_new(0, &unit(2, "b", &[1001])), None);
}

#[test]
fn a_killed_owner_loses_at_most_one_horizon_of_grants() {
    for horizon in [10, 50, 250] {
        let mut replica = Replica::new(&policy(&["1000/s,burst=5"]), 0, 0, horizon * MS);
        replica.apply(&at(0, 1, Operation::Want(100_000)));
        replica.apply(&at(0, 2, Operation::Want(100_000)));
        replica.apply(&at(SECOND, 3, gone(1)));
        replica.advance(2 * SECOND);
        let (mut lost, mut other) = (0, 0);
        for (of, grant) in granted(&outcomes(&mut replica)) {
            lost += if of == owner(1) && grant.at > SECOND { grant.units } else { 0 };
            let is_alone = grant.at > SECOND + horizon * MS && grant.at <= 2 * SECOND;
            other += if of == owner(2) && is_alone { grant.units } else { 0 };
        }
        assert!(lost.abs_diff(horizon / 2) <= 1, "{lost}");
        assert!(other.abs_diff(1000 - horizon) <= 1, "the other owner gets the rest: {other}");
    }
}

#[test]
fn an_owner_that_always_wants_units_gets_the_exact_rate() {
    for (limit, units, period) in
        [("3/s,burst=5", 3, SECOND), ("700/min,burst=5", 700, 60 * SECOND), ("1000003/s,burst=5", 1_000_003, SECOND)]
    {
        for horizon in [1, 250] {
            let mut replica = Replica::new(&policy(&[limit]), 0, 0, horizon * MS);
            replica.apply(&at(0, 1, Operation::Want(u64::MAX / 2)));
            let mut random = Random::new(horizon);
            let mut sum = 0_u128;
            while replica.now() < 40 * period.min(SECOND / units * 100) {
                replica.advance(replica.now() + random.below(2 * period / units));
                for grant in grants(&mut replica) {
                    sum += u128::from(grant.units);
                    // They leave when the last of them conforms.
                    let needed = sum.saturating_sub(5) * u128::from(period);
                    assert_eq!(u128::from(grant.at), needed.div_ceil(units.into()), "{limit}: {sum}");
                    assert!(
                        u128::from(grant.units) <= (u128::from(units) * u128::from(MS)).div_ceil(period.into()).max(1)
                    );
                }
            }
            assert!(sum > 50, "{limit}: {sum}");
        }
    }
}

/// It may have other numbers, but it works.
fn use_damaged(mut replica: Replica, random: &mut Random) {
    let now = replica.now();
    for time in [now, now + SECOND] {
        replica.advance(time);
        let number = replica.grants_of(owner(1)).next().map_or(0, |grant| grant.number);
        let operations = [
            settle(number, &[1]),
            units([5000], "a"),
            Operation::Want(3),
            Operation::Ended(vec![number]),
            gone(2),
            hold(Some("b"), time + SECOND),
            Operation::Cancel((0..20).collect()),
            Operation::HandOver(number, owner(3)),
            Operation::RoundTrip(50 * MS),
            tried("c", false),
            Operation::Resume(None),
            Operation::Set(rules(random).policy, vec![]),
        ];
        for operation in operations {
            replica.apply(&at(time, random.below(6), operation));
        }
        let _ = replica.estimate(owner(4), PLAIN);
        let _ = replica.estimate_new(time, &unit(5001, "a", &[1, 1]));
        let _ = replica.next_event();
    }
    assert!(replica.save().len() > 50);
    replica.apply(&at(now, 1, Operation::Clear { key: None, anew: None, is_empty: false, number: 0 }));
    assert!(replica.is_empty());
}

#[test]
fn a_damaged_snapshot_is_an_error_and_never_a_panic() {
    let (mut snapshots, mut loaded) = (0, 0);
    for seed in 0..rounds(70) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 250]) * MS;
        let mut replica = Replica::new(&rules(&mut random).policy, 0, 0, horizon);
        for record in log(&mut random, 40, EVERYTHING) {
            replica.apply(&record);
            let bytes = replica.save();
            for _ in 0..10 {
                let mut bytes = bytes.clone();
                let mut place = || usize::try_from(random.below(bytes.len() as u64)).unwrap();
                match place() % 4 {
                    0 => bytes.truncate(place()),
                    1 => drop(bytes.remove(place())),
                    _ => {
                        let places = [place(), place(), place()];
                        for place in &places[..=random.one(&[0, 1, 2])] {
                            bytes[*place] ^= random.one(&[1, 2, 4, 8, 16, 32, 64, 128, 255]);
                        }
                    }
                }
                snapshots += 1;
                if let Ok(replica) = Replica::load(&bytes) {
                    loaded += 1;
                    use_damaged(replica, &mut random);
                }
            }
        }
    }
    assert!(snapshots >= 2000 && loaded > 100, "{snapshots} {loaded}");
}

#[test]
fn a_set_policy_acts_on_all_who_wait() {
    let mut replica = Replica::new(&keyed(&["1/s,burst=1"], &[]), 0, 0, 10 * MS);
    replica.apply(&at(0, 1, units(0..20, "a")));
    replica.advance(SECOND / 2);
    let fast = keyed(&["10/s,burst=1"], &[]);
    replica.apply(&at(SECOND / 2, 1, Operation::Set(fast.clone(), vec![])));
    assert_eq!(replica.policy(), &fast);
    replica.advance(SECOND);
    assert_eq!(times(&mut replica), [0, 550, 650, 750, 850, 950], "half a unit was there at 500 ms");
    replica.apply(&at(SECOND, 1, Operation::Ask(vec![unit(50, "a", &[2])])));
    replica.apply(&at(SECOND, 1, Operation::Set(keyed(&["1/s,window"], &[]), vec![])));
    assert_eq!(refusals(&mut replica), [(50, Refusal::Never)]);
    // A limit of each key, and jobs, also act on those who wait.
    replica.apply(&at(
        SECOND,
        1,
        Operation::Set(with_jobs(keyed(&["100/s,burst=9"], &["2/s,burst=1"]), 2, 2), vec![true]),
    ));
    replica.advance(5 * SECOND);
    assert_eq!(times(&mut replica), [1000, 1500]);
    // Without jobs, all goes on.
    replica.apply(&at(5 * SECOND, 1, Operation::Set(keyed(&["100/s,burst=9"], &["2/s,burst=1"]), vec![])));
    replica.advance(7 * SECOND);
    assert_eq!(times(&mut replica), [5000, 5500, 6000, 6500, 7000]);
}

/// A snapshot leaves out the units that no longer count. So they must not count again in a longer window.
#[test]
fn a_longer_window_counts_only_units_that_counted_before() {
    let limits = ["1/10s,burst=1", "4/500ms,window"];
    for reloads in [false, true] {
        let mut replica = Replica::new(&keyed(&[], &limits), 0, 0, 10 * MS);
        replica.apply(&at(0, 1, units([1], "a")));
        replica.apply(&at(4900 * MS, 1, units([2], "b")));
        assert_eq!(end_all(&mut replica, 5 * SECOND), 2);
        if reloads {
            replica = reloaded(&replica);
        }
        replica.apply(&at(5 * SECOND, 1, Operation::Set(keyed(&[], &[limits[0], "1/30s,window"]), vec![])));
        replica.apply(&at(5 * SECOND, 1, units([3], "a")));
        replica.apply(&at(5 * SECOND, 1, units([4], "b")));
        replica.advance(40 * SECOND);
        assert_eq!(times(&mut replica), [10_000, 34_900], "{reloads}");
    }
}

/// Law 3. What a usual round trip takes beyond the least one counts up to the time in which the bucket fills.
#[test]
fn a_grant_may_be_late_by_the_allowance_and_a_round_trip() {
    for (limit, usual, least, most) in [
        ("1000/s,burst=3", 0, 0, 3),
        ("1000/s,burst=50", 0, 0, 10),
        ("1000/s,burst=500", 0, 0, 50),
        ("1000/s,burst=500", 20, 0, 70),
        ("1000/s,burst=500", 1000, 0, 500),
        ("1000/s,burst=500", 1000, 900, 950),
        ("1000/s,burst=3", 100, 0, 3),
        ("1000/s,burst=3", 100, 100, 103),
        ("100/10s,window", 20, 20, 20),
    ] {
        let replica = Replica::new(&policy(&[limit]), 0, 0, 10 * MS);
        assert_eq!(replica.allowance(usual * MS, least * MS), most * MS, "{limit}, {usual}, {least}");
    }
}

#[test]
fn a_clear_refuses_all_who_wait() {
    let clear = |key: Option<&str>| Operation::Clear {
        key: key.map(|key| key.as_bytes().into()),
        anew: None,
        is_empty: false,
        number: 0,
    };
    let waiting = || {
        let mut replica = Replica::new(&keyed(&["10/s,burst=1"], &["5/s,burst=1"]), 0, 0, 10 * MS);
        replica.apply(&at(0, 1, hold(Some("a"), SECOND)));
        replica.apply(&at(0, 2, units([1, 2], "b")));
        replica.apply(&at(0, 1, units([4, 3], "a")));
        replica.apply(&at(0, 1, Operation::Want(5)));
        replica.apply(&at(0, 2, Operation::Ask(vec![Ask { not_before: SECOND, ..unit(9, "a", &[1]) }])));
        assert_eq!(times(&mut replica), [0]);
        replica
    };
    let mut replica = waiting();
    replica.apply(&at(MS, 3, clear(None)));
    let refused = [3, 4, PLAIN, 2, 9].map(|ticket| (ticket, Refusal::Cleared));
    assert_eq!((refusals(&mut replica), replica.len()), (refused.to_vec(), 0));
    // The hold is lifted, and the limits are as before.
    replica.apply(&at(2 * MS, 3, units([1], "a")));
    replica.advance(SECOND);
    assert_eq!(times(&mut replica), [100]);
    // Only a key.
    let mut replica = waiting();
    replica.apply(&at(MS, 3, clear(Some("a"))));
    let refused = [3, 4, 9].map(|ticket| (ticket, Refusal::Cleared));
    assert_eq!((refusals(&mut replica), replica.len()), (refused.to_vec(), 2));
    replica.apply(&at(MS, 3, units([1], "a")));
    replica.advance(290 * MS);
    let of: Vec<_> = granted(&outcomes(&mut replica)).iter().map(|(of, grant)| (of[0], grant.at / MS)).collect();
    assert_eq!(of, [(1, 100), (3, 200), (2, 300)]);
}

#[test]
fn grants_of_a_bucket_anew_have_numbers_after_the_given_one() {
    let clear =
        |limits: &Policy, is_empty| Operation::Clear { key: None, anew: Some(limits.clone()), is_empty, number: 1000 };
    for (is_empty, first) in [(false, 1000), (true, 1500)] {
        let mut replica = Replica::new(&policy(&["1/s"]), 0, 0, 10 * MS);
        replica.apply(&at(0, 1, Operation::Want(3)));
        replica.apply(&at(0, 2, Operation::RoundTrip(100 * MS)));
        let limits = keyed(&["2/s,burst=1"], &[]);
        let record = Record { sequence: 4, ..at(SECOND, 1, clear(&limits, is_empty)) };
        replica.apply(&record);
        assert_eq!(refusals(&mut replica), [(PLAIN, Refusal::Cleared)]);
        replica.apply(&at(SECOND, 1, units([1], "a")));
        // A repeated record does not clear it again, and the horizon is as before.
        replica.apply(&record);
        replica.advance(2 * SECOND);
        let [grant] = grants(&mut replica)[..] else { panic!("one grant") };
        assert_eq!((grant.number, grant.at / MS, replica.horizon() / MS), (1001, first, 100));
        assert_eq!(replica.policy(), &limits);
    }
}

/// Whether the limits of all, and those of each key, allow the same in these ledgers at these times.
fn assert_same_limits(is: &Replica, should: &Replica, times: &[Nanos], why: &str) {
    for name in [None, Some(b"a"), Some(b"b"), Some(b"c")] {
        let name = name.map(|name| &name[..]);
        let (is, should) = match (is.limits(name), should.limits(name)) {
            (None, None) => continue,
            // A key that is not stored is as new.
            (is, should) => {
                let each = is.or(should).unwrap().0;
                let state = |of: Option<(_, &throttle_limits::limits::Levels)>| {
                    of.map_or(each.fresh(), |(_, state)| state.clone())
                };
                ((each, state(is)), state(should))
            }
        };
        for (time, cost) in times.iter().flat_map(|time| [1, 2, 3, 5, 7].map(|cost| (*time, cost))) {
            let [is, should] = [&is.1, &should].map(|state| is.0.conforms_at(state, time, &[cost; 4]));
            assert_eq!(is, should, "{why}, {name:?}: {cost} at {time}");
        }
    }
}

/// A ledger whose grants are settled, and one whose requests have the real costs from the start.
struct Twins {
    settled: Replica,
    exact: Replica,
    /// The real costs by ticket.
    real: HashMap<u64, [u64; 4]>,
    /// The grants that are not settled yet.
    open: Vec<Grant>,
    outcomes: Vec<(Owner, Outcome)>,
    /// The number of grants that were not used, and of those that cost less or more.
    counts: [u64; 2],
}

impl Twins {
    fn new(limits: &Policy, horizon: Nanos) -> Twins {
        let [settled, exact] = [(); 2].map(|()| Replica::new(limits, 0, 0, horizon));
        Twins { settled, exact, real: HashMap::new(), open: vec![], outcomes: vec![], counts: [0; 2] }
    }

    fn ask(&mut self, now: Nanos, ticket: u64, random: &mut Random) {
        let key = random.one(&["a", "b", "c"]);
        let charged = [(); 4].map(|()| 1 + random.below(8));
        let is_used = !random.is(5);
        let real = [(); 4].map(|()| if is_used { random.one(&[0, 1, 2, 9]) } else { 0 });
        let ask = |costs: &[u64]| Operation::Ask(vec![Ask { settles: true, ..unit(ticket, key, costs) }]);
        self.settled.apply(&at(now, 1, ask(&charged)));
        self.exact.apply(&at(now, 1, ask(&real)));
        self.real.insert(ticket, real);
        self.note();
    }

    fn note(&mut self) {
        let new = outcomes(&mut self.settled);
        self.open.extend(granted(&new).iter().map(|(_, grant)| *grant));
        self.outcomes.extend(new);
    }

    /// Settles any grant.
    fn settle(&mut self, now: Nanos, random: &mut Random) {
        if !self.open.is_empty() {
            let grant = self.open.remove(usize::try_from(random.below(self.open.len() as u64)).unwrap());
            let real = self.real[&grant.ticket];
            let is_used = real != [0; 4];
            self.counts[usize::from(is_used)] += 1;
            let operation = if is_used { settle(grant.number, &real) } else { Operation::Unused(vec![grant.number]) };
            self.settled.apply(&at(now, 1, operation));
        }
        self.advance(now);
    }

    fn advance(&mut self, now: Nanos) {
        self.settled.advance(now);
        self.exact.advance(now);
        self.note();
    }
}

#[test]
fn settled_grants_leave_the_limits_as_if_they_had_cost_that() {
    const ALL: [&[&str]; 5] = [
        &["40/s,burst=30"],
        &["40/s,burst=3"],
        &["40/s,burst=30", "100/3s,window"],
        &["60/325ms,window"],
        &["40/s,burst=90", "20/s,burst=50"],
    ];
    const EACH: [&[&str]; 4] = [&[], &["30/s,burst=20"], &["30/s,burst=20", "50/s,window"], &["15/s,burst=2"]];
    let (mut compared, mut counts) = (0, [0; 2]);
    for seed in 0..rounds(5000) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 250]) * MS;
        let (all, each) = (random.one(&ALL), random.one(&EACH));
        let limits = if random.is(3) { policy(all) } else { keyed(all, each) };
        let (mut twins, mut now) = (Twins::new(&limits, horizon), 0);
        for ticket in 1..=12 {
            now += random.one(&[0, 1, 30, 200, 900]) * MS * random.below(3);
            twins.ask(now, ticket, &mut random);
            if random.is(2) {
                twins.settle(now, &mut random);
            }
        }
        // The rest is settled late.
        while !twins.open.is_empty() || !twins.settled.is_empty() || !twins.exact.is_empty() {
            now += random.one(&[0, 1, 300]) * MS;
            twins.settle(now, &mut random);
        }
        let Twins { mut settled, mut exact, outcomes: is, counts: of_seed, .. } = twins;
        let should = outcomes(&mut exact);
        if shown(&is) != shown(&should) {
            continue; // The charged costs have delayed a grant, or the real ones.
        }
        compared += 1;
        counts = [counts[0] + of_seed[0], counts[1] + of_seed[1]];
        let why = format!("seed {seed}, horizon {horizon}, {limits}");
        assert_same_limits(&settled, &exact, &[now, now + 1, now + 77 * MS, now + SECOND], &why);
        // And they grant the same from then on.
        for replica in [&mut settled, &mut exact] {
            replica.apply(&at(now, 2, units(100..120, "a")));
            replica.advance(now + 60 * SECOND);
        }
        assert_eq!(shown(&outcomes(&mut settled)), shown(&outcomes(&mut exact)), "{why}");
    }
    assert!(compared > 100 && counts.iter().min() > Some(&200), "{compared} {counts:?}");
}

#[test]
fn a_repeated_record_has_no_effect() {
    let mut repeated = 0;
    for seed in 0..rounds(200) {
        let mut random = Random::new(seed.into());
        let rules = rules(&mut random);
        let mut log = log(&mut random, 60, EVERYTHING);
        let mut sequences = [0; 6];
        for record in &mut log {
            let of = usize::try_from(record.owner[0]).unwrap();
            // Numbers may be left out, and an owner may have none.
            sequences[of] += 1 + random.below(2);
            record.sequence = if of == 5 { 0 } else { sequences[of] };
        }
        let [mut once, mut often] = [(); 2].map(|()| Replica::new(&rules.policy, 0, 0, 10 * MS));
        for (place, record) in log.iter().enumerate() {
            once.apply(record);
            often.apply(record);
            let earlier = &log[usize::try_from(random.below(place as u64 + 1)).unwrap()];
            if earlier.sequence > 0 {
                often.apply(&Record { time: record.time, ..earlier.clone() });
                repeated += 1;
            }
            if random.is(5) {
                let mut outcomes = [Vec::new(), Vec::new()];
                drain(&mut once, &mut outcomes[0]);
                drain(&mut often, &mut outcomes[1]);
                assert_eq!(outcomes[0], outcomes[1], "seed {seed}");
                often = reloaded(&often);
            }
        }
        assert_same(&often, &once, &format!("seed {seed}"));
    }
    assert!(repeated > 500, "{repeated}");
    // Without a number, it is applied again. The numbers of each owner are its own.
    let mut replica = Replica::new(&policy(&["10/s,burst=9"]), 0, 0, 10 * MS);
    for (of, sequence) in [(1, 0), (1, 0), (1, 2), (1, 2), (1, 1), (2, 1), (2, 2), (1, 3)] {
        replica.apply(&Record { sequence, ..at(0, of, Operation::Want(1)) });
    }
    assert_eq!(grants(&mut replica).len(), 6);
}

/// Windows take so much memory that only about 30 of these keys fit. A key is as new 2 s after its latest unit.
fn large_keys() -> Policy {
    keyed(&[], &["2000/2s,window"; 20])
}

/// Twice as many of these keys fit.
fn smaller_keys() -> Policy {
    keyed(&[], &["2000/2s,window"; 10])
}

/// Ends the grants since the last call.
fn end_all(replica: &mut Replica, now: Nanos) -> usize {
    let numbers: Vec<u64> = grants(replica).iter().map(|grant| grant.number).collect();
    let count = numbers.len();
    replica.apply(&at(now, 1, Operation::Ended(numbers)));
    count
}

#[test]
fn a_key_without_room_gets_it_once_another_is_as_new_again() {
    let mut replica = Replica::new(&large_keys(), 0, 0, 10 * MS);
    let (mut keys, mut now) = (0, 0);
    let until = loop {
        replica.apply(&at(now, 1, units([keys], &format!("key {keys}"))));
        match outcomes(&mut replica)[..] {
            [(_, Outcome::Granted(grant))] => replica.apply(&at(now, 1, Operation::Ended(vec![grant.number]))),
            [(_, Outcome::Refused(_, Refusal::NoRoom(until)))] => break until,
            ref outcomes => panic!("{outcomes:?}"),
        }
        (keys, now) = (keys + 1, now + MS);
    };
    assert!((20..50).contains(&keys), "{keys}");
    assert_eq!(until, 2 * SECOND, "then the first key is as new");
    assert!(!replica.waits(owner(1), keys));
    // A key that is known has room.
    replica.apply(&at(now, 1, units([100], "key 7")));
    assert_eq!(end_all(&mut replica, now), 1);
    replica.apply(&at(until - 1, 1, units([101], "new")));
    assert_eq!(refusals(&mut replica), [(101, Refusal::NoRoom(until))]);
    let mut other = reloaded(&replica);
    for replica in [&mut replica, &mut other] {
        // One key is as new, so there is room for one.
        replica.apply(&at(until, 1, units([102], "new")));
        assert_eq!(end_all(replica, until), 1);
        replica.apply(&at(until, 1, units([103], "newer")));
        assert_eq!(refusals(replica), [(103, Refusal::NoRoom(until + MS))]);
    }
}

/// Grants that can be given back need their keys for 10 s. It is not known for how long a unit runs or waits.
#[test]
fn a_key_without_room_is_told_a_time_even_if_all_are_used() {
    for (kind, retries) in [("given back", 12), ("runs", 12), ("waits", 20)] {
        let limits = if kind == "runs" { with_jobs(large_keys(), 1000, 1000) } else { large_keys() };
        let mut replica = Replica::new(&limits, 0, 0, 10 * MS);
        if kind == "waits" {
            replica.apply(&at(0, 1, hold(None, 5 * SECOND)));
        }
        let (mut now, mut key, mut refused) = (0, 0, 0);
        loop {
            replica.apply(&at(now, 1, units([key], &format!("key {key}"))));
            match refusals(&mut replica)[..] {
                [(_, Refusal::NoRoom(until))] => {
                    assert!(until > now && until <= now + 11 * SECOND, "{kind}: {until} at {now}");
                    (now, refused) = (until, refused + 1);
                }
                _ if refused > 0 => break,
                _ => key += 1,
            }
            if refused == 2 && kind == "runs" {
                replica.apply(&at(now, 2, gone(1)));
            }
            assert!(refused < retries, "{kind}");
        }
    }
}

/// A table with more than 4096 keys forgets keys that are as new, but none that is in use.
#[test]
fn a_snapshot_with_many_waiting_keys_can_be_read() {
    let mut replica = Replica::new(&keyed(&["1/s,burst=1"], &[]), 0, 0, 10 * MS);
    replica.apply(&at(0, 1, Operation::Ask((0..6000).map(|key| unit(key, &key.to_string(), &[1])).collect())));
    let mut other = reloaded(&replica);
    for replica in [&mut replica, &mut other] {
        replica.apply(&at(SECOND, 1, Operation::Cancel((10..6000).collect())));
        replica.advance(20 * SECOND);
    }
    assert_eq!(grants(&mut other), grants(&mut replica)[1..]);
}

#[test]
fn the_room_for_keys_depends_on_the_log_not_on_its_readers() {
    for seed in 0..rounds(80) {
        let mut random = Random::new(seed.into());
        let [limits, smaller] = [large_keys(), smaller_keys()].map(|limits| with_fails(limits, 2));
        let limits = if random.is(3) { with_jobs(limits, 50, 50) } else { limits };
        let [mut replica, mut other] = [(); 2].map(|()| Replica::new(&limits, 0, 0, 10 * MS));
        let (mut now, mut numbers) = (0, Vec::new());
        for ticket in 0..120 {
            now += random.one(&[0, 1, 10, 100]) * MS * random.below(5);
            let name = format!("key {}", random.below(60));
            let operation = match random.below(12) {
                0..2 => Operation::Ended(std::mem::take(&mut numbers)),
                2 => {
                    if random.is(3) {
                        Operation::WantNothing
                    } else {
                        Operation::Want(3)
                    }
                }
                3 => hold(Some(&name), now + random.below(3) * SECOND),
                4 => tried(&name, random.is(3)),
                5 if random.is(6) => Operation::Set(random.one(&[&limits, &smaller]).clone(), vec![]),
                5 => Operation::Cancel((0..5).map(|_| random.below(10 * ticket + 1)).collect()),
                _ => {
                    let ask = |more: u64| {
                        let name = format!("key {}", random.below(60));
                        Ask { not_before: now + random.below(2) * SECOND, ..unit(10 * ticket + more, &name, &[1]) }
                    };
                    Operation::Ask((0..5).map(ask).collect())
                }
            };
            for replica in [&mut replica, &mut other] {
                replica.apply(&at(now, 1, operation.clone()));
            }
            let outcomes = [&mut replica, &mut other].map(outcomes);
            assert_eq!(outcomes[1], outcomes[0], "seed {seed}, ticket {ticket} at {now}");
            numbers.extend(granted(&outcomes[0]).iter().map(|(_, grant)| grant.number));
            if random.is(4) {
                other = reloaded(&other);
                assert_same(&other, &replica, &format!("seed {seed}, ticket {ticket} at {now}"));
            }
        }
    }
}

fn tried(key: &str, has_succeeded: bool) -> Operation {
    Operation::Tried { key: key.as_bytes().into(), has_succeeded }
}

#[test]
fn three_failures_in_a_row_give_up_a_key_for_an_hour() {
    let limits = with_fails(keyed(&["10/s,burst=1"], &[]), 3);
    let mut replica = Replica::new(&limits, 0, 0, 10 * MS);
    let given_up = Refusal::GivenUp(3.try_into().unwrap());
    let hour = 3600 * SECOND;
    replica.apply(&at(0, 1, units([1], "b")));
    replica.apply(&at(0, 1, units([3], "a")));
    replica.apply(&at(0, 2, units([2], "a")));
    replica.apply(&at(0, 2, Operation::Ask(vec![Ask { not_before: SECOND, ..unit(4, "a", &[1]) }])));
    // Failures before a success do not count, nor do those of another key.
    let before = [("a", false), ("a", false), ("a", true), ("b", false), ("b", false), ("a", false), ("a", false)];
    for (key, has_succeeded) in before {
        replica.apply(&at(MS, 1, tried(key, has_succeeded)));
    }
    assert_eq!(outcomes(&mut replica).len(), 1);
    replica = reloaded(&replica);
    replica.apply(&at(2 * MS, 1, tried("a", false)));
    assert_eq!(refusals(&mut replica), [3, 2, 4].map(|ticket| (ticket, given_up)));
    for now in [3 * MS, hour, hour + 2 * MS - 1] {
        replica = reloaded(&replica);
        replica.apply(&at(now, 1, units([5], "a")));
        assert_eq!(refusals(&mut replica), [(5, given_up)]);
    }
    replica.apply(&at(hour + 2 * MS, 1, units([6], "a")));
    assert_eq!(times(&mut replica), [3_600_002]);
    // It is tried again, so another failure alone counts for little.
    (0..2).for_each(|_| replica.apply(&at(hour + SECOND, 1, tried("a", false))));
    replica.apply(&at(hour + SECOND, 1, units([7], "a")));
    assert_eq!(times(&mut replica), [3_601_000]);
    // A failure counts for an hour after the latest one.
    (0..2).for_each(|_| replica.apply(&at(2 * hour + SECOND, 1, tried("a", false))));
    replica.apply(&at(2 * hour + SECOND, 1, units([8], "a")));
    assert_eq!(times(&mut replica), [7_201_000]);
    replica.apply(&at(2 * hour + 2 * SECOND, 1, tried("a", false)));
    replica.apply(&at(2 * hour + 2 * SECOND, 1, units([9], "a")));
    assert_eq!(refusals(&mut replica), [(9, given_up)]);
    // That is forgotten with a clear of the key.
    let clear = Operation::Clear { key: Some(b"a"[..].into()), anew: None, is_empty: false, number: 0 };
    replica.apply(&at(2 * hour + 3 * SECOND, 1, clear));
    replica.apply(&at(2 * hour + 3 * SECOND, 1, units([10], "a")));
    assert_eq!(times(&mut replica), [7_203_000]);
}

/// The times from each of the grants since the last call to the next.
fn gaps(grants: &[Grant]) -> Vec<Nanos> {
    grants.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

/// Requests of these keys whose owners report the answers of a server.
fn learning(replica: &mut Replica, now: Nanos, tickets: std::ops::Range<u64>, key: &str) {
    let asks = tickets.map(|ticket| Ask { learns: true, ..unit(ticket, key, &[1]) }).collect();
    replica.apply(&at(now, 1, Operation::Ask(asks)));
}

#[test]
fn refusals_slow_later_grants_of_a_key_or_of_all_units() {
    for has_keys in [true, false] {
        let limits = if has_keys { keyed(&[], &["100/s,burst=1"]) } else { policy(&["100/s,burst=1"]) };
        let mut replica = Replica::new(&limits, 0, 0, MS);
        let now = 100 * SECOND;
        learning(&mut replica, now, 0..20, "a");
        replica.advance(now + 195 * MS);
        let first = grants(&mut replica);
        assert_eq!(gaps(&first), [10 * MS; 19]);
        // The last one is refused, and the server asks for a pause.
        let until = now + 300 * MS;
        let key: Option<Box<[u8]>> = has_keys.then(|| b"a"[..].into());
        let refused = vec![first[19].start.unwrap()];
        replica.apply(&at(now + 200 * MS, 1, Operation::Hold { key: key.clone(), until, refused }));
        replica = reloaded(&replica);
        learning(&mut replica, now + 200 * MS, 20..40, "a");
        replica.apply(&at(until, 2, units(0..20, "b")));
        replica.advance(until + 10 * SECOND);
        let later = granted(&outcomes(&mut replica));
        let of = |which: u64| -> Vec<Grant> {
            later.iter().filter(|(of, _)| *of == owner(which)).map(|(_, grant)| *grant).collect()
        };
        let (slow, other) = (of(1), of(2));
        assert!(slow[0].at >= until && slow.len() == 20);
        let slowed = gaps(&slow);
        // Up to a tenth of the first gap is made up for.
        assert!(slowed[1..].iter().all(|gap| *gap > 10 * MS), "{slowed:?}");
        // Of another key, units are not slowed. Without keys, all units are.
        let is_slowed = gaps(&other)[1..].iter().all(|gap| *gap > 10 * MS);
        assert_eq!(is_slowed, !has_keys, "{:?}", gaps(&other));
        // Successes bring the pace back.
        let now = until + 10 * SECOND;
        for grant in &slow {
            let served = grant.start.unwrap().succeeded(false);
            replica.apply(&at(now, 1, Operation::Served(key.clone(), served)));
        }
        learning(&mut replica, now, 40..60, "a");
        replica.advance(now + 10 * SECOND);
        let sooner = gaps(&grants(&mut replica));
        assert!(sooner[10] < slowed[10], "{} {}", sooner[10], slowed[10]);
        // A clear forgets it.
        let now = now + 10 * SECOND;
        replica.apply(&at(now, 1, Operation::Clear { key: None, anew: None, is_empty: false, number: 0 }));
        learning(&mut replica, now, 60..70, "a");
        replica.advance(now + SECOND);
        assert_eq!(gaps(&grants(&mut replica)), [10 * MS; 9]);
    }
}
