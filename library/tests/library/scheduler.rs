//! The laws of the design on a line with random requests, reports and polls, from random seeds.

use crate::rounds::rounds;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use throttle_limits::clock::{MILLISECOND as MS, Nanos, SECOND};
use throttle_limits::ledger::{self, Ledger, Request, Ticket};
use throttle_limits::limits::Policy;
use throttle_limits::line::{Charged, KeyId, Line, Next, Rules, Unit};

/// Random numbers: xorshift64*, by Marsaglia and Vigna.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `below`.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % below.max(1)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    pub(crate) fn is(&mut self, one_of: u64) -> bool {
        self.below(one_of) == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Units, nanoseconds, burst.
    Bucket(u64, Nanos, u64),
    Window(u64, Nanos),
}

impl Limit {
    pub(crate) fn text(self) -> String {
        match self {
            Limit::Bucket(units, period, burst) => format!("{units}/{}ms,burst={burst}", period / MS),
            Limit::Window(count, period) => format!("{count}/{}ms,window", period / MS),
        }
    }

    fn policy(self) -> Policy {
        Policy::new(&[self.text().parse().unwrap()], None).unwrap()
    }

    /// Checks that these grants keep the limit: time, cost, in order of time.
    pub(crate) fn check(self, grants: &[(Nanos, u64)], why: &str) {
        let largest = grants.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
        for (place, (from, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &grants[place..] {
                sum += u128::from(*cost);
                let time = to - from;
                let keeps = match self {
                    Limit::Bucket(units, period, burst) => {
                        let gain = u128::from(units) * u128::from(time + 1);
                        sum * u128::from(period) <= u128::from(burst.max(largest)) * u128::from(period) + gain
                    }
                    Limit::Window(count, period) => time >= period || sum <= count.into(),
                };
                assert!(keeps, "{why}: {sum} from {from} to {to}: more than {self:?}");
            }
        }
    }
}

const ALL: [&[Limit]; 6] = [
    &[Limit::Bucket(40, SECOND, 3)],
    &[Limit::Bucket(40, SECOND, 3), Limit::Window(100, 3 * SECOND)],
    &[Limit::Bucket(33, SECOND, 1), Limit::Bucket(20, SECOND, 20)],
    &[Limit::Bucket(1003, SECOND, 5)],
    &[Limit::Window(12, 325 * MS)],
    &[],
];
const EACH: [&[Limit]; 4] = [
    &[Limit::Bucket(9, SECOND, 2)],
    &[Limit::Bucket(9, SECOND, 2), Limit::Window(7, SECOND)],
    &[Limit::Bucket(15, SECOND, 1)],
    &[],
];

/// A ledger with these limits. The limits of all count the first cost, and those of each key the second one.
fn ledger(all: &[Limit], each: &[Limit]) -> Ledger {
    let policies = |limits: &[Limit]| limits.iter().map(|limit| limit.policy()).collect::<Vec<_>>();
    let (all, each) = (policies(all), policies(each));
    let all: Vec<_> = all.iter().map(|policy| (policy, 0)).collect();
    let each: Vec<_> = each.iter().map(|policy| (policy, 1)).collect();
    Ledger::new(&Rules { all: &all, each: &each, jobs: Some(NonZeroU32::MAX), ..Rules::default() }, 0)
}

fn unit(age: u64, costs: [u64; 2], arrived: Nanos) -> Unit<u64> {
    Unit { age, costs: costs.into(), size: 1, arrived, settles: false, content: age }
}

/// A unit that has left: its age, its key, its grant, and when it left.
type Left = (u64, KeyId, Charged, Nanos);

/// Takes all that may leave now.
fn drain(line: &mut Line<u64>, now: Nanos, left: &mut Vec<Left>) {
    while let Next::Go(key, unit, charged) = line.poll(now, u64::MAX) {
        left.push((unit.age, key, charged, now));
    }
}

/// Laws 1, 2 and 6, and first in, first out of law 4. The caller is early, late, or has no room. No cost changes.
#[test]
fn no_limit_is_exceeded_in_any_time_and_grants_are_in_order() {
    let mut checked = 0;
    for seed in 0..rounds(3000) {
        let mut random = Random::new(seed.into());
        let (all, each) = (random.one(&ALL), random.one(&EACH));
        let mut line = Line::from(ledger(all, each));
        let (mut now, mut left, mut asked) = (0, Vec::new(), BTreeMap::new());
        for age in 0..80 {
            now += random.one(&[0, 1, 7, 40]) * MS * random.below(9) + random.below(3);
            let (name, costs) = ([b'a' + u8::try_from(random.below(4)).unwrap()], [1 + random.below(3), 1]);
            let arrived = now + if random.is(6) { random.below(300) * MS } else { 0 };
            let weight = if random.is(7) { 8 } else { 0 };
            let key = line.add_suspect(now, Some(&name), unit(age, costs, arrived), weight).unwrap();
            asked.insert(age, (name, costs, arrived, weight));
            match random.below(12) {
                0 => line.hold_until(now, key, now + random.below(300) * MS),
                1 => line.hold_all_until(now, now + random.below(300) * MS),
                2 => line.lift(now, Some(key)),
                3 => line.lift(now, None),
                4 => drop(line.poll(now, 0)),
                5 => drop(line.ready_at(now)),
                _ => drain(&mut line, now, &mut left),
            }
        }
        while !line.is_empty() {
            drain(&mut line, now, &mut left);
            now = line.ready_at(now).map_or(now, |at| at.max(now)) + random.one(&[0, 0, 3 * MS]);
        }
        assert!(left.windows(2).all(|pair| pair[0].2.at <= pair[1].2.at), "seed {seed}: in order");
        assert!(left.iter().all(|(age, _, charged, _)| charged.at >= asked[age].2), "seed {seed}: not early");
        assert_eq!(left.len(), 80);
        let check = |limits: &[Limit], kind: usize, is_its: &dyn Fn(u64) -> bool| {
            let its = || left.iter().filter(|(age, ..)| is_its(*age));
            for limit in limits {
                let time = |charged: &Charged| if let Limit::Window(..) = limit { charged.counted } else { charged.at };
                let grants: Vec<_> = its().map(|(age, _, charged, _)| (time(charged), asked[age].1[kind])).collect();
                limit.check(&grants, &format!("seed {seed}"));
            }
        };
        check(all, 0, &|_| true);
        for name in b'a'..b'e' {
            check(each, 1, &|age| asked[&age].0 == [name]);
            // Those that join their key later, or are suspects, have another place.
            let usual = |age: &u64| asked[age].0 == [name] && asked[age].3 == 0;
            let ages: Vec<_> = left.iter().map(|(age, ..)| *age).filter(usual).collect();
            let waits = |age: &u64, other: &u64| other < age && asked[other].2 <= asked[age].2;
            let is_first = |place: usize| ages[place + 1..].iter().all(|other| !waits(&ages[place], other));
            assert!((0..ages.len()).all(is_first), "seed {seed}: first in, first out");
            checked += ages.len();
        }
    }
    assert!(checked > 1000);
}

/// A request, by its key, its costs, its arrival and its weight.
fn ask(ledger: &mut Ledger, now: Nanos, name: u8, age: u64, costs: [u64; 2], arrived: Nanos, weight: u32) -> Ticket {
    let request = Request { age, costs: &costs, arrived, weight, settles: age.is_multiple_of(3) };
    ledger.ask(now, Some(&[name]), &request).unwrap()
}

/// Takes all that may leave now: ages, grants, and their numbers.
fn take(ledger: &mut Ledger, now: Nanos, left: &mut Vec<(u64, Nanos, u64)>) {
    while let ledger::Next::Granted(taken, charged) = ledger.poll(now, u64::MAX) {
        left.push((taken.age, charged.at, charged.number));
    }
}

/// Law 5: two ledgers get the same requests, and one of them also gets requests that are cancelled before anything is
/// granted.
#[test]
fn a_cancelled_request_leaves_no_trace() {
    let mut cancelled = 0;
    for seed in 0..rounds(5000) {
        let mut random = Random::new(seed.into());
        let (all, each) = (random.one(&ALL), random.one(&EACH));
        let mut ledgers = [(); 2].map(|()| (ledger(all, each), Vec::new()));
        let mut now = 0;
        for age in 0..60 {
            now += random.one(&[0, 1, 7, 40]) * MS * random.below(9) + random.below(3);
            let (name, costs) = (b'a' + u8::try_from(random.below(4)).unwrap(), [1 + random.below(3), 1]);
            let settled = (random.below(9), random.below(3));
            for (ledger, left) in &mut ledgers {
                take(ledger, now, left);
                ask(ledger, now, name, age, costs, now, 0);
                take(ledger, now, left);
                if let Some((_, _, number)) = left.iter().rev().nth(usize::try_from(settled.0).unwrap()) {
                    ledger.settle(now, *number, &[settled.1, 1]);
                }
                take(ledger, now, left);
            }
            let [(plain, _), (haunted, _)] = &mut ledgers;
            let (name, costs) = (b'a' + u8::try_from(random.below(6)).unwrap(), [1 + random.below(9), 1]);
            let arrived = now + random.below(2) * random.below(100) * MS;
            let ticket = ask(haunted, now, name, 1000 + age, costs, arrived, random.one(&[0, 0, 8, 32]));
            let until = now + random.below(9) * MS;
            if [&mut *plain, &mut *haunted].map(|ledger| ledger.ready_at(now).is_none_or(|at| at > until)) == [true; 2]
            {
                now = until;
            }
            assert!(haunted.cancel(ticket).is_some());
            cancelled += 1;
        }
        for (ledger, left) in &mut ledgers {
            let mut now = now;
            while !ledger.is_empty() {
                take(ledger, now, left);
                now = ledger.ready_at(now).map_or(now, |at| at.max(now));
            }
        }
        let [(_, expected), (_, found)] = &ledgers;
        assert_eq!((found, expected.len()), (expected, 60), "seed {seed}");
    }
    assert!(cancelled > 5000, "{cancelled}");
}

/// Law 11, the turns: a key that was charged too much gets its turns back.
#[test]
fn settled_costs_count_for_the_turns_of_a_key() {
    for (real, order) in [(18, [1, 3, 5, 7, 2, 4, 6, 8]), (2, [1, 3, 2, 5, 4, 7, 6, 8])] {
        let mut ledger = ledger(&[Limit::Bucket(10, SECOND, 20)], &[]);
        let mut left = Vec::new();
        ask(&mut ledger, 0, b'a', 0, [20, 1], 0, 0);
        take(&mut ledger, 0, &mut left);
        for age in 1..9 {
            ask(&mut ledger, 0, if age % 2 == 0 { b'a' } else { b'b' }, age, [1, 1], 0, 0);
        }
        ledger.settle(0, left[0].2, &[real, 1]);
        // It counts once.
        ledger.settle(0, left[0].2, &[20 - real, 1]);
        take(&mut ledger, 10 * SECOND, &mut left);
        assert_eq!(left[1..].iter().map(|(age, ..)| *age).collect::<Vec<_>>(), order);
    }
}

#[test]
fn a_grant_that_is_not_used_costs_nothing() {
    let mut ledger = ledger(&[Limit::Bucket(10, SECOND, 20)], &[]);
    let mut left = Vec::new();
    ask(&mut ledger, 0, b'a', 0, [20, 1], 0, 0);
    ask(&mut ledger, 0, b'b', 3, [20, 1], 0, 0);
    take(&mut ledger, 0, &mut left);
    assert_eq!((left.len(), ledger.ready_at(0)), (1, Some(2 * SECOND)));
    ledger.unused(0, left[0].2);
    take(&mut ledger, 0, &mut left);
    assert_eq!((left.len(), ledger.left(0)), (2, vec![0]));
    // A grant that has ended cannot be settled.
    ledger.ended(0, left[1].2);
    ledger.settle(0, left[1].2, &[0, 0]);
    assert_eq!(ledger.left(0), [0]);
}

/// Plain units and requests are in one flow each, and share the limit by start-time fair queueing.
#[test]
fn plain_units_and_requests_get_equal_shares() {
    let mut ledger = ledger(&[Limit::Bucket(1000, SECOND, 1)], &[]);
    ledger.want(0, 1000);
    for age in 1..=1000 {
        ask(&mut ledger, 0, b'a', age, [1, 1], 0, 0);
    }
    let (mut now, mut plain, mut others) = (0, 0, 0);
    while now < SECOND {
        match ledger.poll(now, 7) {
            ledger::Next::Run(run) => plain += run.units,
            ledger::Next::Granted(..) => others += 1,
            ledger::Next::At(at) => now = at,
            next => panic!("{next:?}"),
        }
    }
    assert!((1000..=1001).contains(&(plain + others)), "{plain} {others}");
    assert!(plain.abs_diff(others) <= 7, "{plain} {others}");
}

/// Law 12: the server always refuses one unit, which comes back again and again as a suspect.
#[test]
fn a_unit_that_always_fails_takes_one_turn_of_nine() {
    let mut ledger = ledger(&[Limit::Bucket(100, SECOND, 1)], &[]);
    ask(&mut ledger, 0, b'a', 0, [1, 1], 0, 8);
    for age in 1..=900 {
        ask(&mut ledger, 0, b'a', age, [1, 1], 0, 0);
    }
    let (mut now, mut left) = (0, Vec::new());
    while left.len() < 900 {
        let before = left.len();
        take(&mut ledger, now, &mut left);
        if left[before..].iter().any(|(age, ..)| *age == 0) {
            ask(&mut ledger, now, b'a', 0, [1, 1], 0, 8);
        }
        now = ledger.ready_at(now).unwrap().max(now);
    }
    assert_eq!(left.iter().filter(|(age, ..)| *age == 0).count(), 100);
}
