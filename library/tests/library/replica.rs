//! The ledger of a shared bucket: random logs of operations, read at random times, with snapshots anywhere.

use crate::rounds::rounds;
use crate::scheduler::{Limit, Random};
use std::collections::HashMap;
use throttle_limits::clock::{MILLISECOND as MS, Nanos, SECOND};
use throttle_limits::ledger::Replica;
use throttle_limits::ledger::operation::{Ask, Grant, Operation, Outcome, Owner, PLAIN, Record};
use throttle_limits::limits::{OfKeys, Policy};

const ALL: [&[Limit]; 6] = [
    &[Limit::Bucket(40, SECOND, 3)],
    &[Limit::Bucket(40, SECOND, 3), Limit::Window(100, 3 * SECOND)],
    &[Limit::Bucket(33, SECOND, 1), Limit::Bucket(20, SECOND, 20)],
    &[Limit::Bucket(1003, SECOND, 5)],
    &[Limit::Window(12, 325 * MS)],
    &[Limit::Bucket(3000, SECOND, 30)],
];
const EACH: [&[Limit]; 4] = [
    &[Limit::Bucket(9, SECOND, 2)],
    &[Limit::Bucket(9, SECOND, 2), Limit::Window(7, SECOND)],
    &[Limit::Bucket(15, SECOND, 1)],
    &[],
];

/// A policy of a shared bucket, and its limits as the model knows them.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    all: &'static [Limit],
    each: Option<&'static [Limit]>,
    pub(crate) policy: Policy,
}

fn policy_of(limits: &[Limit]) -> Policy {
    if limits.is_empty() {
        return Policy::default();
    }
    let limits: Vec<_> = limits.iter().map(|limit| limit.text().parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

pub(crate) fn rules(random: &mut Random) -> Rules {
    let (all, each) = (random.one(&ALL), random.one(&EACH));
    let jobs = random.one(&[None, None, Some(4)]).map(|jobs: u32| jobs.try_into().unwrap());
    let jobs_of_key = random.one(&[None, None, Some(2)]).map(|jobs: u32| jobs.try_into().unwrap());
    let fails = random.one(&[None, Some(3)]).map(|fails: u32| fails.try_into().unwrap());
    let mut policy = policy_of(all).with_jobs(jobs);
    let has_keys = !random.is(3);
    if has_keys {
        let each = policy_of(each);
        policy = policy.with_keys(OfKeys { per: "f1".to_owned(), each, jobs: jobs_of_key, fails });
    }
    Rules { all, each: has_keys.then_some(each), policy }
}

pub(crate) fn owner(number: u64) -> Owner {
    [number, 7]
}

/// A log of random operations. `kinds` has a letter for each kind beside requests: h(old), c(ancel), g(one), n(ot
/// before), l(atest), s(ettle), e(nded), p(olicy), w(ant), P(ace), S(uspects), r(etry), R(ound trips), H(and over),
/// t(ried).
pub(crate) fn log(random: &mut Random, operations: usize, kinds: &str) -> Vec<Record> {
    let has = |kind: char| kinds.contains(kind);
    let (mut at, mut log, mut tickets, mut asked) = (0, Vec::new(), [0_u64; 6], 0_u64);
    for _ in 0..operations {
        at += random.one(&[0, 1, 3, 20]) * MS * random.below(10) + random.below(3);
        if has('R') && random.is(40) {
            at += random.below(40) * SECOND;
        }
        let of = random.below(6);
        let operation = operation(random, (at, of), &mut tickets[usize::try_from(of).unwrap()], &mut asked, &has);
        log.push(Record { time: at, owner: owner(of), sequence: 0, operations: vec![operation] });
    }
    log
}

pub(crate) fn any_key(random: &mut Random) -> Box<[u8]> {
    [random.one(b"abcdef")].into()
}

fn some_key(random: &mut Random) -> Option<Box<[u8]>> {
    (!random.is(2)).then(|| any_key(random))
}

fn operation(
    random: &mut Random,
    (at, of): (Nanos, u64),
    tickets: &mut u64,
    asked: &mut u64,
    has: &dyn Fn(char) -> bool,
) -> Operation {
    let count = *asked;
    let numbers = |random: &mut Random| (0..=random.below(4)).map(|_| 1 + random.below(count + 1)).collect::<Vec<_>>();
    match random.below(30) {
        0 if has('h') => {
            let until = at + random.below(300) * MS;
            Operation::Hold { key: some_key(random), until, refused: Vec::new() }
        }
        1 if has('h') => Operation::Resume(some_key(random)),
        2..4 if has('c') => Operation::Cancel((0..4).map(|_| random.below(*tickets + 1)).collect()),
        4 if has('g') && random.is(3) => {
            Operation::Gone { owner: owner(random.below(6)), seen: random.one(&[at, Nanos::MAX, at / 2]) }
        }
        5..8 if has('e') => Operation::Ended(numbers(random)),
        8 if has('s') => Operation::Unused(numbers(random)),
        9..12 if has('s') => {
            Operation::Settle { number: 1 + random.below(count + 1), real: [random.below(9), random.below(3)].into() }
        }
        12 if has('p') && random.is(3) => Operation::Set(rules(random).policy, vec![random.is(4), random.is(4)]),
        13 if has('p') && random.is(9) => {
            let anew = random.is(2).then(|| rules(random).policy);
            let key = (anew.is_none() && random.is(2)).then(|| any_key(random));
            Operation::Clear { key, anew, is_empty: random.is(2), number: *asked + 1000 }
        }
        14 if has('P') => Operation::Served(some_key(random), throttle_limits::limits::Served::default()),
        15..18 if has('w') => Operation::Want(1 + random.below(30)),
        18 => Operation::Here,
        19 if has('R') => Operation::RoundTrip(random.below(300) * MS),
        20 if has('H') => Operation::HandOver(1 + random.below(count + 1), owner(random.below(7))),
        21 if has('t') => {
            let key = any_key(random);
            Operation::Tried { key, has_succeeded: random.is(4) }
        }
        22 if has('w') && random.is(4) => Operation::WantNothing,
        _ => {
            let asks = (0..=random.below(8)).map(|_| {
                *tickets += 1;
                *asked += 1;
                ask(random, (at, of), *tickets, has)
            });
            Operation::Ask(asks.collect())
        }
    }
}

fn ask(random: &mut Random, (at, of): (Nanos, u64), ticket: u64, has: &dyn Fn(char) -> bool) -> Ask {
    let costs = [random.one(&[1, 1, 1, 2, 5]), random.one(&[1, 1, 2])];
    Ask {
        ticket,
        key: (!random.is(8)).then(|| any_key(random)),
        weight: if has('S') && random.is(6) { 8 } else { 0 },
        costs: if random.is(3) { [1].into() } else { costs.into() },
        not_before: if has('n') && random.is(6) { at + random.below(200) * MS } else { 0 },
        latest: if has('l') && random.is(6) { at + random.below(900) * MS } else { Nanos::MAX },
        age: if has('r') && random.is(8) { 1 + random.below(20) } else { 0 },
        settles: has('s') && random.is(3),
        learns: has('P') && of < 3,
    }
}

fn saved(replica: &Replica) -> Vec<u8> {
    replica.save()
}

fn loaded(bytes: &[u8]) -> Option<Replica> {
    Replica::load(bytes).ok()
}

pub(crate) fn drain(replica: &mut Replica, outcomes: &mut Vec<(Owner, Outcome)>) {
    outcomes.extend(std::iter::from_fn(|| replica.take()));
}

/// Folds a log. Reads it at random times between the operations, and replaces the ledger by its snapshot now and then.
fn fold(
    mut replica: Replica,
    log: &[Record],
    until: Nanos,
    way: Option<(u64, bool)>,
) -> (Replica, Vec<(Owner, Outcome)>) {
    let (mut outcomes, mut last) = (Vec::new(), 0);
    let mut random = Random::new(way.map_or(0, |(seed, _)| seed));
    let mut read = |replica: &mut Replica, outcomes: &mut Vec<_>, last: Nanos, to: Nanos| {
        let Some((_, saves)) = way else { return };
        let mut times: Vec<_> = (0..random.below(4)).map(|_| last + random.below(to - last + 1)).collect();
        times.sort_unstable();
        for time in times {
            replica.advance(time);
            if saves && random.is(3) {
                drain(replica, outcomes);
                *replica = loaded(&saved(replica)).expect("a snapshot can be read");
            }
        }
    };
    for record in log {
        read(&mut replica, &mut outcomes, last, record.time);
        replica.apply(record);
        last = record.time;
    }
    read(&mut replica, &mut outcomes, last, until);
    replica.advance(until);
    drain(&mut replica, &mut outcomes);
    (replica, outcomes)
}

pub(crate) const EVERYTHING: &str = "hcgnlsepwPSrRHt";

#[test]
fn the_state_depends_on_the_log_and_time_not_on_its_readers() {
    let mut grants = 0;
    for seed in 0..rounds(1500) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 50, 250]) * MS;
        let rules = rules(&mut random);
        let log = log(&mut random, 120, EVERYTHING);
        let more = random.one(&[2000, 2000, 90_000]) * random.below(1000) * (MS / 1000);
        let until = log.last().map_or(0, |record| record.time) + more;
        let new = || Replica::new(&rules.policy, 0, 0, horizon);
        let (expected, outcomes) = fold(new(), &log, until, None);
        grants += outcomes.len();
        for (way, saves) in [(1, false), (2, true), (3, true)] {
            let (found, other) = fold(new(), &log, until, Some((u64::from(seed) + way, saves)));
            if let Some(place) = outcomes.iter().zip(&other).position(|(one, other)| one != other) {
                panic!("seed {seed}, way {way}: outcome {place} {:?}, not {:?}", other[place], outcomes[place]);
            }
            assert_eq!(other.len(), outcomes.len(), "seed {seed}, way {way}");
            if saved(&expected) != saved(&found) {
                let [one, two] = [&expected, &found].map(|replica| format!("{replica:#?}"));
                let differs = one.lines().zip(two.lines()).find(|(one, two)| one != two);
                panic!("seed {seed}, way {way}: states differ at {differs:?}");
            }
        }
    }
    assert!(grants > 10_000, "{grants}");
}

/// The requests of a log, by owner and ticket, with the time of each.
pub(crate) fn asked(log: &[Record]) -> HashMap<(Owner, u64), (Nanos, Ask)> {
    let mut asked = HashMap::new();
    for record in log {
        if let [Operation::Ask(asks)] = &record.operations[..] {
            asked.extend(asks.iter().map(|ask| ((record.owner, ask.ticket), (record.time, ask.clone()))));
        }
    }
    asked
}

pub(crate) fn granted(outcomes: &[(Owner, Outcome)]) -> Vec<(Owner, Grant)> {
    let grant = |(owner, outcome): &(Owner, Outcome)| match outcome {
        Outcome::Granted(grant) => Some((*owner, *grant)),
        Outcome::Refused(..) => None,
    };
    outcomes.iter().filter_map(grant).collect()
}

/// Laws 2 and 6, and first in, first out of law 4, for any horizon.
#[test]
fn no_shared_limit_is_exceeded_and_its_grants_are_in_order() {
    let mut checked = 0;
    for seed in 0..rounds(3000) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 250]) * MS;
        let rules = rules(&mut random);
        // No cost changes, because a cost that grows after its grant exceeds a limit by definition.
        let log = log(&mut random, 80, "hgnlewPSt");
        let mut replica = Replica::new(&rules.policy, 0, 0, horizon);
        for record in &log {
            replica.apply(record);
        }
        let until = replica.now() + 20 * SECOND;
        while replica.now() < until {
            let next = replica.now() + random.below(50) * MS + 1;
            replica.advance(next);
        }
        let mut outcomes = Vec::new();
        drain(&mut replica, &mut outcomes);
        let (asked, grants) = (asked(&log), granted(&outcomes));
        assert!(grants.windows(2).all(|pair| pair[0].1.at <= pair[1].1.at), "seed {seed}: in order");
        for (owner, grant) in grants.iter().filter(|(_, grant)| grant.ticket != PLAIN) {
            let (at, ask) = &asked[&(*owner, grant.ticket)];
            assert!(grant.at >= *at && grant.at >= ask.not_before && grant.at <= ask.latest, "seed {seed}");
        }
        let of = |costs: &[u64], kind: usize| costs.get(kind).or(costs.last()).copied().unwrap_or(1);
        let cost = |owner: &Owner, grant: &Grant, kind: usize| {
            asked.get(&(*owner, grant.ticket)).map_or(grant.units, |(_, ask)| of(&ask.costs, kind))
        };
        let why = format!("seed {seed}, horizon {horizon}");
        for (kind, limit) in rules.all.iter().enumerate() {
            let all: Vec<_> = grants.iter().map(|(owner, grant)| (grant.at, cost(owner, grant, kind))).collect();
            limit.check(&all, &why);
            checked += 1;
        }
        for name in b'a'..b'g' {
            let is_its = |(owner, grant): &&(Owner, Grant)| {
                let ask = asked.get(&(*owner, grant.ticket)).map(|(_, ask)| ask);
                ask.is_some_and(|ask| ask.key.as_deref() == Some(&[name]))
            };
            let of_key: Vec<_> = grants.iter().filter(is_its).collect();
            for (place, limit) in rules.each.unwrap_or_default().iter().enumerate() {
                let kind = rules.all.len() + place;
                let all: Vec<_> = of_key.iter().map(|(owner, grant)| (grant.at, cost(owner, grant, kind))).collect();
                limit.check(&all, &format!("{why}, key {name}"));
            }
            if rules.each.is_some() {
                let is_usual = |(owner, grant): &&&(Owner, Grant)| {
                    let ask = &asked[&(*owner, grant.ticket)].1;
                    ask.weight == 0 && ask.not_before == 0
                };
                let ages = of_key.iter().filter(is_usual).map(|(_, grant)| grant.age);
                assert!(ages.is_sorted(), "{why}: first in, first out");
            }
        }
    }
    assert!(checked > 100);
}

pub(crate) fn at(time: Nanos, of: u64, operation: Operation) -> Record {
    Record { time, owner: owner(of), sequence: 0, operations: vec![operation] }
}

pub(crate) fn shown(outcomes: &[(Owner, Outcome)]) -> Vec<(Owner, u64, Nanos, u64)> {
    // Ages count all requests, so they differ.
    let one = |(owner, outcome): &(Owner, Outcome)| match outcome {
        Outcome::Granted(grant) => (*owner, grant.ticket, grant.at, grant.units),
        Outcome::Refused(ticket, _) => (*owner, *ticket, Nanos::MAX, 0),
    };
    outcomes.iter().map(one).collect()
}

/// Law 5. A request is cancelled before anything is committed.
#[test]
fn a_cancelled_request_of_a_shared_bucket_leaves_no_trace() {
    let mut cancelled = 0;
    for seed in 0..rounds(6000) {
        let mut random = Random::new(seed.into());
        let horizon = random.one(&[1, 10, 250]) * MS;
        let rules = rules(&mut random);
        let log = log(&mut random, 60, "hnlewPS");
        let [mut plain, mut haunted] = [(); 2].map(|()| Replica::new(&rules.policy, 0, 0, horizon));
        let [mut expected, mut outcomes] = [(); 2].map(|()| Vec::new());
        let ghost = 1_000_000;
        for (place, record) in log.iter().enumerate() {
            plain.apply(record);
            haunted.apply(record);
            let next = log.get(place + 1).map_or(record.time, |next| next.time);
            if !random.is(3) {
                continue;
            }
            let until = record.time + random.below(next - record.time + 1);
            let ask = Ask {
                ticket: place as u64 + 1,
                key: random.one(&[Some(()), None]).map(|()| any_key(&mut random)),
                weight: random.one(&[0, 32]),
                costs: [1 + random.below(60), 1 + random.below(2)].into(),
                not_before: if random.is(3) { record.time + random.below(100) * MS } else { 0 },
                latest: Nanos::MAX,
                ..Ask::default()
            };
            drain(&mut haunted, &mut outcomes);
            drain(&mut plain, &mut expected);
            let (mut copy, mut without) = (haunted.clone(), plain.clone());
            copy.apply(&at(record.time, ghost, Operation::Ask(vec![ask.clone()])));
            copy.apply(&at(until, ghost, Operation::Here));
            without.advance(until);
            if copy.take().is_some() || without.take().is_some() {
                continue;
            }
            haunted.apply(&at(record.time, ghost, Operation::Ask(vec![ask.clone()])));
            haunted.apply(&at(until, ghost, Operation::Cancel(vec![ask.ticket])));
            cancelled += 1;
        }
        let end = log.last().map_or(0, |record| record.time) + 100 * SECOND;
        plain.advance(end);
        haunted.advance(end);
        drain(&mut haunted, &mut outcomes);
        drain(&mut plain, &mut expected);
        let (is, should) = (shown(&outcomes), shown(&expected));
        if let Some(place) = is.iter().zip(&should).position(|(is, should)| is != should) {
            panic!("seed {seed}: {place}: {:?}, not {:?}", &is[place], &should[place]);
        }
        assert_eq!(is.len(), should.len(), "seed {seed}");
    }
    assert!(cancelled > 500, "{cancelled}");
}
