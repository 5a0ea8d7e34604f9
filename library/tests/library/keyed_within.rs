//! Keys within overall limits: each grant keeps to the limits of its key and of all, whatever is cancelled, settled or
//! paused, and the keys share the overall limits fairly.

use crate::limiters::{Count, FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use throttle_limits::clock::{NanoClock, SECOND};
use throttle_limits::limiter::{AcquireError, BuildError, Builder, Granted, Keyed, Limiter, OnFull, Oversize};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

fn built(limits: &[&str]) -> Builder {
    limits.iter().fold(Limiter::builder(), |builder, limit| builder.limit(limit.parse().unwrap()))
}

fn of(each: &[&str], all: &[&str], timer: &Arc<FakeTimer>) -> Keyed<String> {
    let wait = |limits| built(limits).oversize(Oversize::Wait);
    wait(each).clock(timer.clone()).keyed_within(&wait(all)).unwrap()
}

type Wait = Pin<Box<dyn Future<Output = Result<Granted, AcquireError>>>>;

/// A request, with the waker of its task.
struct Waiter {
    number: usize,
    key: &'static str,
    cost: u64,
    wait: Wait,
    woken: Arc<Count>,
    seen: usize,
}

/// The time of a grant, its key and its cost.
type Grants = Vec<(u64, &'static str, u64)>;

struct World {
    timer: Arc<FakeTimer>,
    keyed: Keyed<String>,
    waiters: Vec<Waiter>,
    granted: Grants,
    /// The numbers of the requests of each key, in the order of their grants.
    order: BTreeMap<&'static str, Vec<usize>>,
    open: Vec<Granted>,
    asked: usize,
}

impl World {
    fn new(each: &[&str], all: &[&str]) -> World {
        let timer = Arc::new(FakeTimer::default());
        timer.set(7);
        let keyed = of(each, all, &timer);
        World {
            timer,
            keyed,
            waiters: Vec::new(),
            granted: Vec::new(),
            order: BTreeMap::new(),
            open: Vec::new(),
            asked: 0,
        }
    }

    fn ask(&mut self, key: &'static str, cost: u64, limit: Option<u64>) {
        let keyed = self.keyed.clone();
        // An owned form of a future that is polled here for the first time, as every other.
        let wait: Wait = Box::pin(async move {
            let acquire = keyed.acquire_to_settle(key, cost);
            match limit {
                Some(limit) => acquire.timeout(ms(limit)).await,
                None => acquire.await,
            }
        });
        self.asked += 1;
        let woken = Arc::new(Count::default());
        woken.0.store(1, Ordering::SeqCst);
        self.waiters.push(Waiter { number: self.asked, key, cost, wait, woken, seen: 0 });
        self.poll();
    }

    /// Polls the woken requests, as an executor does.
    fn poll(&mut self) {
        let now = self.timer.now();
        let mut ended = true;
        while std::mem::take(&mut ended) {
            let World { waiters, granted, order, open, .. } = self;
            waiters.retain_mut(|waiter| {
                let woken = waiter.woken.0.load(Ordering::SeqCst);
                if woken == waiter.seen {
                    return true;
                }
                waiter.seen = woken;
                let waker = Waker::from(waiter.woken.clone());
                match waiter.wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => return true,
                    Poll::Ready(Ok(grant)) => {
                        granted.push((now, waiter.key, waiter.cost));
                        order.entry(waiter.key).or_default().push(waiter.number);
                        open.push(grant);
                    }
                    Poll::Ready(Err(_)) => {}
                }
                ended = true;
                false
            });
        }
    }

    /// Time goes by; each alarm fires at its time.
    fn pass(&mut self, time: u64) {
        let until = self.timer.now() + time;
        while self.timer.next().is_some_and(|next| next <= until) {
            self.timer.to_next();
            self.poll();
        }
        self.timer.to(until);
        self.poll();
    }

    fn cost_of(&self, key: &str) -> u64 {
        self.granted.iter().filter(|(_, own, _)| *own == key).map(|(.., cost)| cost).sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64, Option<u64>),
    Try(u64),
    Cancel(Index),
    Settle(Index, u64),
    Drop(Index),
    Pause(u64),
    PauseAll(u64),
    Forget,
    Pass(u64),
}

fn step() -> impl Strategy<Value = (&'static str, Step)> {
    let step = prop_oneof![
        6 => (1_u64..4).prop_map(|cost| Step::Ask(cost, None)),
        1 => (1_u64..4, 0_u64..2000).prop_map(|(cost, limit)| Step::Ask(cost, Some(limit))),
        2 => (1_u64..4).prop_map(Step::Try),
        2 => any::<Index>().prop_map(Step::Cancel),
        2 => (any::<Index>(), 0_u64..4).prop_map(|(index, real)| Step::Settle(index, real)),
        2 => any::<Index>().prop_map(Step::Drop),
        1 => (0_u64..1500).prop_map(Step::Pause),
        1 => (0_u64..1500).prop_map(Step::PauseAll),
        1 => Just(Step::Forget),
        6 => (0_u64..900_000).prop_map(Step::Pass),
    ];
    (prop::sample::select(&KEYS[..]), step)
}

impl World {
    fn take(&mut self, key: &'static str, step: &Step) {
        match *step {
            Step::Ask(cost, limit) => self.ask(key, cost, limit),
            Step::Try(cost) => {
                let waits = self.waiters.iter().any(|waiter| waiter.key == key);
                match self.keyed.try_acquire(key, cost) {
                    Ok(()) => {
                        assert!(!waits, "it overtook a request of its key");
                        self.granted.push((self.timer.now(), key, cost));
                    }
                    Err(AcquireError::OthersWait) => assert!(!self.waiters.is_empty()),
                    Err(AcquireError::TooLong { wait, .. }) => assert!(wait.duration() > Duration::ZERO && !waits),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Cancel(index) if !self.waiters.is_empty() => {
                drop(self.waiters.remove(index.index(self.waiters.len())));
            }
            Step::Settle(index, real) if !self.open.is_empty() => {
                self.open.remove(index.index(self.open.len())).settle(real).unwrap();
            }
            Step::Drop(index) if !self.open.is_empty() => drop(self.open.remove(index.index(self.open.len()))),
            Step::Pause(time) => self.keyed.pause_for(key, ms(time)).unwrap(),
            Step::PauseAll(time) => self.keyed.of_all().unwrap().pause_for(ms(time)),
            Step::Forget => self.keyed.forget_idle(),
            Step::Pass(micros) => self.pass(micros * 1000),
            Step::Cancel(_) | Step::Settle(..) | Step::Drop(_) => {}
        }
        self.poll();
    }
}

/// Law 2: in any time at most the burst, or the largest cost, and the rate; and in a window at most its count.
fn check(granted: &Grants, limits: &[&str]) -> Result<(), TestCaseError> {
    for limit in limits {
        let (rate, rest) = limit.split_once(',').unwrap();
        let (count, period) = rate.split_once('/').unwrap();
        let count: u64 = count.parse().unwrap();
        let period = if period == "s" { SECOND } else { period.trim_end_matches('s').parse::<u64>().unwrap() * SECOND };
        let burst = rest.strip_prefix("burst=").map(|burst| burst.parse::<u64>().unwrap());
        for (first, (begins, ..)) in granted.iter().enumerate() {
            let (mut sum, mut largest) = (0, 0);
            for (at, _, cost) in &granted[first..] {
                (sum, largest) = (sum + cost, largest.max(*cost));
                match burst {
                    Some(burst) => {
                        let gained = u128::from(count) * u128::from(at - begins + 1) / u128::from(period);
                        let most = u128::from(burst.max(largest)) + gained;
                        prop_assert!(u128::from(sum) <= most, "{} in {} ns, {}", sum, at - begins, limit);
                    }
                    None if at - begins < period => prop_assert!(sum <= count, "{} in a window, {}", sum, limit),
                    None => break,
                }
            }
        }
    }
    Ok(())
}

fn any_limits() -> impl Strategy<Value = Vec<&'static str>> {
    const LIMITS: [&[&str]; 5] =
        [&["3/s,burst=2"], &["7/s,burst=4"], &["5/2s,window"], &["1000003/s,burst=5"], &["6/s,burst=3", "9/4s,window"]];
    prop::sample::select(&LIMITS[..]).prop_map(<[&str]>::to_vec)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(400)))]

    #[test]
    fn grants_keep_to_both_limits_in_order_and_wake_all_waiters(
        each in any_limits(),
        all in any_limits(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(&each, &all);
        let settles = steps.iter().any(|(_, step)| matches!(step, Step::Settle(..)));
        for (key, step) in &steps {
            world.take(key, step);
        }
        world.pass(600 * SECOND);
        prop_assert!(world.waiters.is_empty(), "{} wait for ever", world.waiters.len());
        for numbers in world.order.values() {
            prop_assert!(numbers.is_sorted(), "first in, first out: {:?}", numbers);
        }
        // A grant that is settled may leave room for others, or owe some.
        if !settles {
            check(&world.granted, &all)?;
            for key in KEYS {
                let own: Grants = world.granted.iter().filter(|(_, of, _)| *of == key).copied().collect();
                check(&own, &each)?;
            }
        }
        world.open.clear();
        world.pass(3600 * SECOND);
        world.keyed.forget_idle();
        prop_assert_eq!(world.keyed.len(), 0, "an hour later all are like new");
    }

    /// Law 5.
    #[test]
    fn what_is_cancelled_before_its_grant_leaves_no_trace(
        each in any_limits(),
        all in any_limits(),
        steps in prop::collection::vec((step(), prop::option::of((prop::sample::select(&KEYS[..]), 1_u64..5))), 1..60),
    ) {
        let (mut without, mut with) = (World::new(&each, &all), World::new(&each, &all));
        for ((key, step), extra) in &steps {
            if let Some((key, cost)) = extra {
                let mut wait = Box::pin(with.keyed.acquire_to_settle(*key, *cost));
                if let Poll::Ready(Ok(granted)) = poll_once(&mut wait) {
                    granted.settle(0).unwrap();
                    let other = poll_once(&mut Box::pin(without.keyed.acquire_to_settle(*key, *cost)));
                    let Poll::Ready(Ok(other)) = other else { panic!("granted in one world only") };
                    other.settle(0).unwrap();
                }
            }
            // A pause that begins at rest may forget whose turn was next.
            let step = if let Step::PauseAll(time) = step { &Step::Pass(*time) } else { step };
            without.take(key, step);
            with.take(key, step);
            prop_assert_eq!(&without.granted, &with.granted);
        }
        without.pass(600 * SECOND);
        with.pass(600 * SECOND);
        prop_assert_eq!(&without.granted, &with.granted);
    }
}

/// Law 4. Requests in turn gave the costly ones all but a tenth.
#[test]
fn keys_share_the_overall_limits_by_cost_and_not_by_requests() {
    let mut world = World::new(&["1000/s,burst=100"], &["40/s,burst=1"]);
    for _ in 0..100 {
        world.ask("a", 9, None);
    }
    for _ in 0..900 {
        world.ask("b", 1, None);
        world.ask("c", 1, None);
    }
    world.pass(30 * SECOND);
    let [a, b, c] = ["a", "b", "c"].map(|key| world.cost_of(key));
    assert!([a, b, c].iter().all(|cost| (390..=410).contains(cost)), "{a} {b} {c}");
    assert!((1199..=1201).contains(&(a + b + c)), "all of the rate is used: {}", a + b + c);
}

/// A unit costs a millionth of a second there, or less.
#[test]
fn shares_are_fair_at_high_rates() {
    let mut world = World::new(&["10000000000/s,burst=1000000"], &["5000000/s,burst=1"]);
    for _ in 0..20 {
        world.ask("a", 900_000, None);
    }
    for _ in 0..180 {
        world.ask("b", 100_000, None);
    }
    world.pass(2 * SECOND);
    let [a, b] = ["a", "b"].map(|key| world.cost_of(key));
    assert!(a.abs_diff(b) <= 1_000_000, "{a} {b}");
}

#[test]
fn a_flood_of_one_key_delays_no_other() {
    let mut world = World::new(&["1/s,burst=1"], &["100/s,burst=1"]);
    for _ in 0..50 {
        world.ask("a", 1, None);
    }
    world.pass(SECOND / 2);
    for key in ["b", "c", "d"] {
        world.ask(key, 1, None);
    }
    world.pass(SECOND / 20);
    assert_eq!(["b", "c", "d"].map(|key| world.cost_of(key)), [1; 3]);
}

/// The window gave the room to another grant while the task of the first one was busy.
#[test]
fn a_grant_that_is_fetched_late_does_not_break_a_window() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1/2s,window"], &["100/s,burst=100"], &timer);
    keyed.try_acquire("k", 1).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(keyed.acquire("k", 1)));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    timer.to(2 * SECOND); // The first one is granted.
    timer.to(4 * SECOND); // The second one too: the window counts the first one from its grant on.
    assert_eq!(poll_once(&mut second), Poll::Ready(Ok(())));
    assert!(poll_once(&mut first).is_pending(), "two within two seconds");
    timer.to(6 * SECOND);
    assert_eq!(poll_once(&mut first), Poll::Ready(Ok(())));
}

#[test]
fn both_bounds_of_waiters_hold() {
    let timer = Arc::new(FakeTimer::default());
    let bound = |limits, most| built(limits).max_waiters(NonZeroUsize::new(most), OnFull::Fail);
    let keyed: Keyed<String> =
        bound(&["1/s,burst=1"], 2).clock(timer.clone()).keyed_within(&bound(&["9/s,burst=9"], 3)).unwrap();
    for key in ["a", "b"] {
        keyed.try_acquire(key, 1).unwrap();
    }
    let mut waits: Vec<_> = ["a", "a", "b"].map(|key| Box::pin(keyed.acquire(key, 1))).into();
    assert!(waits.iter_mut().all(|wait| poll_once(wait).is_pending()));
    assert_eq!(poll_once(&mut Box::pin(keyed.acquire("b", 1))), Poll::Ready(Err(AcquireError::Full)), "of all");
    drop(waits.pop());
    assert_eq!(poll_once(&mut Box::pin(keyed.acquire("a", 1))), Poll::Ready(Err(AcquireError::Full)), "of the key");
    assert!(poll_once(&mut Box::pin(keyed.acquire("b", 1))).is_pending());
    let unfair = built(&["1/s"]).fair(false).keyed_within::<String>(&built(&["1/s"]));
    assert!(matches!(unfair, Err(BuildError::JointIsFair)));
}

#[test]
fn limits_of_keys_and_of_all_change_while_requests_wait() {
    let mut world = World::new(&["1/10s,burst=1"], &["1/100s,burst=1"]);
    for key in ["a", "a", "b"] {
        world.ask(key, 1, None);
    }
    assert_eq!(world.granted.len(), 1);
    world.pass(SECOND);
    world.keyed.of_all().unwrap().set_limits(&built(&["100/s,burst=100"]).oversize(Oversize::Wait)).unwrap();
    world.pass(SECOND / 10);
    assert_eq!(world.cost_of("b"), 1, "only all held it up");
    world.keyed.set_limits(&built(&["1/2s,burst=1"]).oversize(Oversize::Wait)).unwrap();
    world.pass(SECOND * 2);
    assert_eq!(world.cost_of("a"), 2);
    world.ask("a", 3, Some(60_000));
    world.keyed.set_limits(&built(&["2/h,window"])).unwrap();
    world.pass(SECOND);
    assert!(world.waiters.is_empty(), "a window of two never grants three");
}

#[test]
fn a_grant_of_nothing_is_settled_at_its_real_cost() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1/s,burst=2"], &["1/s,burst=200"], &timer);
    keyed.try_acquire_to_settle("k", 0).unwrap().settle(100).unwrap();
    assert_eq!(keyed.time_until("k", 1), Ok(ms(99_000)));
    assert_eq!(keyed.of_all().unwrap().available(), 100);
    let Poll::Ready(Ok(granted)) = poll_once(&mut Box::pin(keyed.acquire_to_settle("other", 0))) else { panic!() };
    granted.settle(50).unwrap();
    assert_eq!(keyed.of_all().unwrap().available(), 50);
}

/// Each key kept its turn until the overall limits were at rest, which a window in use never is.
#[test]
fn grants_to_settle_of_endless_new_keys_take_no_memory() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1000/s,burst=10"], &["100000/min,window"], &timer);
    for key in 0..40_000_u64 {
        timer.to(key * SECOND / 1000);
        drop(keyed.try_acquire_to_settle(&key.to_string()[..], 1).unwrap());
    }
    keyed.forget_idle();
    assert!(keyed.len() <= 10_100, "{} keys", keyed.len());
}

#[test]
fn a_refused_request_leaves_no_key_behind() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1/h,burst=1"], &["1/s,burst=1"], &timer);
    keyed.set_most_keys(2);
    keyed.try_acquire("a", 1).unwrap();
    for key in ["b", "c"] {
        assert!(matches!(keyed.try_acquire(key, 1), Err(AcquireError::TooLong { .. })), "{key}");
    }
    assert_eq!(keyed.len(), 1);
    timer.to(2 * SECOND);
    assert_eq!(keyed.try_acquire("d", 1), Ok(()));
    assert_eq!(keyed.try_acquire("e", 1), Err(AcquireError::TooManyKeys));
}

#[test]
fn a_change_of_limits_keeps_what_a_large_request_has_gathered() {
    for of_all in [false, true] {
        let timer = Arc::new(FakeTimer::default());
        let (small, large) = (["1/s,burst=2"], ["1000/s,burst=1000"]);
        let keyed = if of_all { of(&large, &small, &timer) } else { of(&small, &large, &timer) };
        let mut wait = Box::pin(keyed.acquire("k", 5));
        assert!(poll_once(&mut wait).is_pending());
        for tenth in 1..30 {
            timer.to(tenth * SECOND / 10);
            if of_all {
                keyed.of_all().unwrap().set_limits(&built(&small).oversize(Oversize::Wait)).unwrap();
            } else {
                keyed.set_rate(1, ms(1000)).unwrap();
            }
            assert!(poll_once(&mut wait).is_pending());
        }
        timer.to(3 * SECOND);
        assert_eq!(poll_once(&mut wait), Poll::Ready(Ok(())), "of all: {of_all}");
    }
}

#[test]
fn a_change_of_limits_keeps_the_open_grants_of_a_full_bucket() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1/s,burst=5"], &["1000/s,burst=1000"], &timer);
    let granted = keyed.try_acquire_to_settle("k", 1).unwrap();
    timer.to(10 * SECOND);
    keyed.set_rate(1, ms(1000)).unwrap();
    granted.settle(4).unwrap();
    assert_eq!(keyed.available("k"), 5, "it would be full either way");
}

#[test]
fn a_request_that_is_due_by_its_deadline_is_granted_late() {
    for (each, due, late) in [("1/2s,window", 2_000, 2_001), ("1/s,burst=1", 1_050, 2_000)] {
        let timer = Arc::new(FakeTimer::default());
        let keyed = of(&[each], &["1000/s,burst=1000"], &timer);
        keyed.try_acquire("k", 1).unwrap();
        let mut wait = Box::pin(keyed.acquire("k", 1).timeout(ms(due)));
        assert!(poll_once(&mut wait).is_pending());
        timer.to(late * SECOND / 1000);
        assert_eq!(poll_once(&mut wait), Poll::Ready(Ok(())), "{each}");
    }
}

#[test]
fn an_estimate_counts_the_requests_of_its_key() {
    let mut world = World::new(&["1/s,burst=2"], &["1000/s,burst=1000"]);
    world.ask("k", 5, None);
    world.pass(5 * SECOND / 2);
    assert_eq!(world.keyed.time_until("k", 1), Ok(ms(1500)), "the fifth unit comes after half a second");
    let mut world = World::new(&["100/s,burst=100"], &["1/s,burst=1"]);
    for _ in 0..10 {
        world.ask("k", 1, None);
    }
    assert_eq!(world.keyed.time_until("k", 1), Ok(ms(10_000)));
}

#[test]
fn a_wait_without_end_waits_and_may_become_shorter() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["1/s,burst=1"], &["1000/s,burst=1000"], &timer);
    keyed.pause_for("k", Duration::MAX).unwrap();
    assert!(poll_once(&mut Box::pin(keyed.acquire("k", 1))).is_pending());
    keyed.set_rate(1, Duration::from_secs(1 << 34)).unwrap();
    let mut wait = Box::pin(keyed.acquire("other", 5));
    assert!(poll_once(&mut wait).is_pending(), "beyond the end of the clock");
    keyed.set_rate(1000, ms(1000)).unwrap();
    timer.to(SECOND);
    assert_eq!(poll_once(&mut wait), Poll::Ready(Ok(())));
}

/// Law 3: a timer of a millisecond may fire two milliseconds late.
#[test]
fn late_timers_take_no_rate_from_fast_limits_with_a_small_burst() {
    let mut world = World::new(&["1000000/s,burst=1000"], &["10000/s,burst=1"]);
    for _ in 0..1000 {
        world.ask("a", 1, None);
    }
    for step in 1..=100 {
        world.timer.to(step * SECOND / 1000);
        world.poll();
    }
    assert!(world.granted.len() >= 999, "{} of 1000 in 100 ms", world.granted.len());
}

/// The window is full of other grants.
#[test]
fn a_grant_that_nobody_fetched_takes_nothing_from_a_new_window() {
    let timer = Arc::new(FakeTimer::default());
    let keyed = of(&["100/s,burst=100"], &["1/s,burst=1"], &timer);
    keyed.try_acquire("a", 1).unwrap();
    let mut wait = Box::pin(keyed.acquire("a", 1));
    assert!(poll_once(&mut wait).is_pending());
    timer.to(SECOND);
    keyed.of_all().unwrap().set_limits(&built(&["2/10s,window"])).unwrap();
    timer.to(2 * SECOND);
    assert_eq!(["x", "y"].map(|key| keyed.try_acquire(key, 1)), [Ok(()), Ok(())]);
    drop(wait);
    assert!(keyed.try_acquire("z", 1).is_err(), "three in ten seconds");
}
