//! Random operations have the same results in every kind of store.

use super::{Ask, Bucket, Duration, Grant, NanoClock, Nanos, Operation, Process, START, ask, policy, rounds};
use std::fmt::Write;
use std::sync::Mutex;
use throttle_limits::limits::{Levels, OfKeys, Policy};
use throttle_limits::store::{Next, View};

/// The limits, and limits that replace them. Each has half the rate of the limit before, so that fractions of a unit stay
/// whole microseconds: a server counts these.
const LIMITS: [[&[&str]; 2]; 6] = [
    [&["8/s,burst=3"], &["4/s,burst=5"]],
    [&["5/min,window"], &["4/min,window"]],
    [&["2000/s,burst=5", "40/s,window"], &["1000/s,burst=2", "30/s,window"]],
    [&["50/s,burst=1", "3000/min,window"], &["25/s,burst=3", "2000/min,window"]],
    [
        &["1000/s,burst=7,initial=0", "100/s,burst=20", "10000/h,window"],
        &["500/s,burst=7,initial=0", "50/s,burst=9", "9000/h,window"],
    ],
    [&["500000/s,burst=2"], &["250000/s,burst=2"]],
];

/// What happened, and the bucket afterwards.
type Step = (String, View);

#[test]
fn random_operations_have_the_same_results_in_every_store() {
    for limits in LIMITS {
        assert_alike(&limits.map(policy));
    }
}

#[test]
fn random_operations_with_keys_have_the_same_results_everywhere() {
    let keys = ["8/s,burst=3", "4/s,burst=2"];
    for limits in LIMITS {
        let policies = [0, 1].map(|place| {
            let each = OfKeys { per: "f1".to_owned(), each: policy(&keys[place..=place]), jobs: None, fails: None };
            policy(limits[place]).with_keys(each)
        });
        assert_alike(&policies);
    }
}

fn assert_alike(limits: &[Policy; 2]) {
    let found = Mutex::new(Vec::new());
    super::on_every_store_with(&limits[0], |bucket| {
        let steps = steps(bucket, limits);
        found.lock().unwrap().push((bucket.name, steps));
    });
    let found = found.into_inner().unwrap();
    let (first, expected) = &found[0];
    for (name, steps) in &found[1..] {
        for (place, (step, expected)) in steps.iter().zip(expected).enumerate() {
            assert_eq!(step, expected, "{limits:?}, step {place}: {name} and {first}");
        }
        assert_eq!(steps.len(), expected.len(), "{limits:?}");
    }
}

fn steps(bucket: &Bucket, limits: &[Policy; 2]) -> Vec<Step> {
    let mut random = Random(7);
    let mut processes = [bucket.process(), bucket.process()];
    let (mut held, mut is_slow) = (Vec::new(), false);
    let has_keys = limits[0].of_keys().is_some();
    let key = |random: &mut Random| has_keys.then(|| [random.one_of(b"abc")].into());
    let count = rounds(3_000).max(300);
    let mut steps = Vec::new();
    for _ in 0..count {
        let micros = random.below(4) * random.below(300) * random.below(300);
        bucket.clock.advance(Duration::from_micros(micros));
        let place = usize::try_from(random.below(2)).unwrap();
        let process = &mut processes[place];
        let mut what = match random.below(16) {
            0 => {
                is_slow = !is_slow;
                let fresh = [random.below(3) == 0, random.below(2) == 0, false].map(|fresh| fresh || !is_slow);
                process.store().set(&limits[usize::from(is_slow)], &fresh).unwrap();
                format!("set {is_slow} {fresh:?}")
            }
            1 => {
                let until = bucket.clock.now() + random.below(3) * random.below(2_000) * 1_000_000;
                let key = Some(key(&mut random)).filter(|_| random.below(2) == 0).flatten();
                process.send(Operation::Hold { key: key.clone(), until, refused: Vec::new() });
                format!("hold {until} {key:?}")
            }
            2 => {
                process.send(Operation::Resume(None));
                "resume".to_owned()
            }
            3 if random.below(9) == 0 => {
                process.store().clear(None, None).unwrap();
                "clear".to_owned()
            }
            4..6 if !held.is_empty() => {
                let grant = one_of(&mut random, &mut held);
                let real = [random.below(9)];
                process.settle(&grant, &real);
                format!("settle at {} as {real:?}", grant.at)
            }
            6 if !held.is_empty() => {
                let grant = one_of(&mut random, &mut held);
                process.give_back(&grant);
                format!("give back {}", grant.at)
            }
            7 if !has_keys => {
                let units = random.below(4);
                process.client.want(units);
                format!("want {units}")
            }
            8 => format!("want nothing, not {}", process.client.want_nothing()),
            9 => {
                let ticket = 1 + random.below(100);
                process.client.cancel(ticket);
                format!("cancel {ticket}")
            }
            _ => {
                let is_bounded = random.below(3) == 0;
                let latest = if is_bounded { bucket.clock.now() + random.below(500) * 1_000_000 } else { Nanos::MAX };
                let ticket = process.request(Ask { latest, key: key(&mut random), ..ask(&[1 + random.below(2)]) });
                format!("ask {ticket}, granted at {:?}", process.client.estimate(ticket))
            }
        };
        for process in &mut processes {
            what += &events(process, &mut held);
        }
        steps.push((what, without_numbers(processes[place].view())));
    }
    steps
}

/// A bucket counts its grants from a random number, which its state contains.
fn without_numbers(mut view: View) -> View {
    view.state = Levels::default();
    view.keys.iter_mut().for_each(|key| key.state = Levels::default());
    view
}

/// The events of a process until now. A process that finds refusals in a snapshot does not find their order.
fn events(process: &mut Process, held: &mut Vec<Grant>) -> String {
    let (mut events, mut refused) = (String::new(), Vec::new());
    process.client.exchange().unwrap();
    loop {
        match process.poll() {
            Next::Go(grant) => {
                assert!(grant.at <= process.now() && grant.at >= START, "{grant:?}");
                assert!(!process.store().is_late(grant.at), "{grant:?}");
                held.push(grant);
                let _ = write!(events, ", {} {} at {}", grant.ticket, grant.units, grant.at);
            }
            Next::Refused(ticket, why) => refused.push(format!(", {ticket} {why:?}")),
            Next::At(_) | Next::Nothing => {
                refused.sort_unstable();
                return events + &refused.concat();
            }
        }
    }
}

fn one_of(random: &mut Random, held: &mut Vec<Grant>) -> Grant {
    held.swap_remove(usize::try_from(random.below(held.len() as u64)).unwrap())
}

struct Random(u64);

impl Random {
    /// Marsaglia's xorshift.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_of(&mut self, letters: &[u8]) -> u8 {
        letters[usize::try_from(self.below(letters.len() as u64)).unwrap()]
    }
}
