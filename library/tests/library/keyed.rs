//! Limits for each key: each key is limited as a limiter of its own would limit it, whatever is forgotten.

use crate::limiters::{ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use throttle_limits::clock::{FakeClock, NanoClock, SECOND};
use throttle_limits::limiter::{
    AcquireError, BuildError, Builder, Granted, Keyed, Limiter, Oversize, Refill, Reservation,
};
use throttle_limits::limits::{Account, Policy, Refusal};

fn keyed(rate: u64, burst: u64) -> (Keyed<String>, FakeClock) {
    let clock = FakeClock::at(Duration::from_nanos(5));
    let builder = Limiter::builder().rate(rate, ms(1000)).burst(burst).clock(Arc::new(clock.clone()));
    (builder.keyed().unwrap(), clock)
}

/// All kinds of limits, also those whose new state is not a full bucket.
fn any_limits() -> impl Strategy<Value = Vec<&'static str>> {
    const LIMITS: [&[&str]; 7] = [
        &["3/s,burst=2"],
        &["7/s,burst=3,initial=1"],
        &["1000003/s,burst=5"],
        &["2000000007/s,burst=2"],
        &["5/s,burst=4,initial=0", "9/3s,window"],
        &["4/s,window"],
        &["11/2s,window,slack=100ms", "6/700ms,burst=6"],
    ];
    prop::sample::select(&LIMITS[..]).prop_map(<[&str]>::to_vec)
}

fn built(limits: &[&str]) -> Builder {
    limits.iter().fold(Limiter::builder(), |builder, limit| builder.limit(limit.parse().unwrap()))
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Step {
    Try(u64),
    Acquire(u64),
    Timeout(u64, u64),
    Cancel(Index),
    Reserve(u64),
    CancelReservation(Index),
    Pause(u64),
    Reconcile(u64, u64),
    TryToSettle(u64),
    Settle(Index, u64),
    Forget,
    /// So many microseconds.
    Pass(u64),
}

fn step() -> impl Strategy<Value = (Index, Step)> {
    let step = prop_oneof![
        4 => (0_u64..5).prop_map(Step::Try),
        3 => (0_u64..5).prop_map(Step::Acquire),
        1 => (0_u64..5, 0_u64..2000).prop_map(|(cost, limit)| Step::Timeout(cost, limit)),
        2 => any::<Index>().prop_map(Step::Cancel),
        1 => (0_u64..5).prop_map(Step::Reserve),
        1 => any::<Index>().prop_map(Step::CancelReservation),
        1 => (0_u64..2_000).prop_map(Step::Pause),
        1 => (0_u64..5, 0_u64..5).prop_map(|(used, granted)| Step::Reconcile(used, granted)),
        2 => (0_u64..5).prop_map(Step::TryToSettle),
        2 => (any::<Index>(), 0_u64..7).prop_map(|(index, real)| Step::Settle(index, real)),
        2 => Just(Step::Forget),
        5 => (0_u64..1_500_000).prop_map(Step::Pass),
    ];
    (any::<Index>(), step)
}

type Waiter<'a> = Pin<Box<dyn Future<Output = Result<(), AcquireError>> + 'a>>;

/// The keyed limiter, and beside it a limiter for each key that never forgets.
struct Beside<'a> {
    clock: &'a FakeClock,
    keyed: &'a Keyed<String>,
    limiters: &'a BTreeMap<&'static str, Limiter>,
    waiters: Vec<[Waiter<'a>; 2]>,
    reservations: Vec<[Reservation; 2]>,
    to_settle: Vec<[Granted; 2]>,
}

impl<'a> Beside<'a> {
    fn take(&mut self, key: &'static str, step: &Step) {
        let (keyed, own) = (self.keyed, &self.limiters[key]);
        match *step {
            Step::Try(cost) => assert_eq!(keyed.try_acquire(key, cost), own.try_acquire(cost), "{key}"),
            Step::Acquire(cost) => self.wait([Box::pin(keyed.acquire(key, cost)), Box::pin(own.acquire(cost))]),
            Step::Timeout(cost, limit) => self.wait([
                Box::pin(keyed.acquire(key, cost).timeout(ms(limit))),
                Box::pin(own.acquire(cost).timeout(ms(limit))),
            ]),
            Step::Cancel(index) if !self.waiters.is_empty() => {
                drop(self.waiters.remove(index.index(self.waiters.len())));
            }
            Step::Reserve(cost) => match (keyed.reserve(key, cost), own.reserve(cost)) {
                (Ok(one), Ok(other)) => {
                    assert_eq!(one.wait(), other.wait(), "{key}");
                    self.reservations.push([one, other]);
                }
                (one, other) => assert_eq!(one.err(), other.err(), "{key}"),
            },
            Step::CancelReservation(index) if !self.reservations.is_empty() => {
                let index = index.index(self.reservations.len());
                self.reservations.remove(index).into_iter().for_each(Reservation::cancel);
            }
            Step::Pause(time) => {
                keyed.pause_for(key, ms(time)).unwrap();
                own.pause_for(ms(time));
            }
            Step::Reconcile(used, granted) => {
                keyed.limiter(key).unwrap().reconcile(used, granted).unwrap();
                own.reconcile(used, granted).unwrap();
            }
            Step::TryToSettle(cost) => {
                match (keyed.try_acquire_to_settle(key, cost), own.try_acquire_to_settle(cost)) {
                    (Ok(one), Ok(other)) => self.to_settle.push([one, other]),
                    (one, other) => assert_eq!(one.err(), other.err(), "{key}"),
                }
            }
            Step::Settle(index, real) if !self.to_settle.is_empty() => {
                let index = index.index(self.to_settle.len());
                self.to_settle.remove(index).into_iter().for_each(|granted| granted.settle(real).unwrap());
            }
            Step::Forget => keyed.forget_idle(),
            Step::Pass(micros) => self.clock.advance(Duration::from_nanos(micros * 1000)),
            Step::Cancel(_) | Step::CancelReservation(_) | Step::Settle(..) => {}
        }
        self.poll();
    }

    fn wait(&mut self, waiters: [Waiter<'a>; 2]) {
        self.waiters.push(waiters);
        self.poll();
    }

    fn poll(&mut self) {
        self.waiters.retain_mut(|pair| {
            let [one, other] =
                pair.each_mut().map(|waiter| waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())));
            assert_eq!(one, other);
            one.is_pending()
        });
        for key in KEYS {
            let own = &self.limiters[key];
            assert_eq!(self.keyed.available(key), own.available(), "{key}");
            assert_eq!(self.keyed.time_until(key, 1), own.time_until(1), "{key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(300)))]

    /// A key whose limiter comes and goes, and that is forgotten at any time, answers as one that never forgets.
    #[test]
    fn each_key_is_limited_as_if_nothing_was_forgotten(
        limits in any_limits(),
        oversize in prop::sample::select(vec![Oversize::Reject, Oversize::Wait]),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let clock = FakeClock::at(Duration::from_nanos(7));
        let builder = || built(&limits).oversize(oversize).clock(Arc::new(clock.clone()));
        let keyed: Keyed<String> = builder().keyed().unwrap();
        let limiters: BTreeMap<_, _> = KEYS.map(|key| (key, builder().build().unwrap())).into();
        let (waiters, reservations, to_settle) = (Vec::new(), Vec::new(), Vec::new());
        let mut beside = Beside { clock: &clock, keyed: &keyed, limiters: &limiters, waiters, reservations, to_settle };
        for (key, step) in steps {
            beside.take(KEYS[key.index(KEYS.len())], &step);
        }
        let Beside { waiters, reservations, to_settle, .. } = beside;
        drop((waiters, reservations, to_settle));
        clock.advance(Duration::from_secs(3600));
        keyed.forget_idle();
        prop_assert_eq!(keyed.len(), 0, "an hour later all are like new");
    }

    /// Law 7, for keys: earlier readings of the clock are clamped, also for keys that were forgotten.
    #[test]
    fn a_clock_that_goes_back_credits_nothing_to_any_key(
        limits in any_limits(),
        steps in prop::collection::vec((any::<Index>(), 0_u64..4, -900_000_000_i64..1_500_000_000, any::<bool>()), 1..80),
    ) {
        let clock = FakeClock::at(Duration::from_secs(3600));
        let keyed: Keyed<String> = built(&limits).clock(Arc::new(clock.clone())).keyed().unwrap();
        let policy: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(&policy, None).unwrap();
        let mut limiters = KEYS.map(|key| (key, Account::new(&policy, clock.now())));
        let mut latest = clock.now();
        for (key, cost, passes, forgets) in steps {
            if passes < 0 || forgets {
                keyed.forget_idle(); // So that each key has seen the latest time.
            }
            clock.set(Duration::from_nanos(clock.now().saturating_add_signed(passes)));
            latest = latest.max(clock.now());
            let (key, limits) = &mut limiters[key.index(KEYS.len())];
            let waits = match keyed.try_acquire(*key, cost) {
                Ok(()) => Some(0),
                Err(AcquireError::TooLong { wait, .. }) => Some(u64::try_from(wait.duration().as_nanos()).unwrap()),
                Err(AcquireError::Never { .. } | AcquireError::AboveBurst { .. }) => None,
                Err(error) => panic!("{error}"),
            };
            let expected = match limits.take_within(latest, cost, 0) {
                Ok(_) => Some(0),
                Err(Refusal::TooLong { wait }) => Some(wait),
                Err(_) => None,
            };
            prop_assert!(waits.is_none() || waits == expected, "{}: {:?} {:?}", key, waits, expected);
            prop_assert!(waits.is_some() || expected != Some(0));
        }
    }
}

#[test]
fn waiters_of_a_key_are_served_in_order_and_delay_no_other() {
    let (keyed, clock) = keyed(1, 2);
    keyed.try_acquire("a", 2).unwrap();
    let mut first = Box::pin(keyed.acquire("a", 2));
    let mut second = Box::pin(keyed.acquire("a", 1));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    assert_eq!(keyed.try_acquire("a", 1), Err(AcquireError::OthersWait));
    assert_eq!(keyed.try_acquire("b", 1), Ok(()));
    clock.advance(Duration::from_secs(1));
    assert!(poll_once(&mut second).is_pending(), "a unit is there, but the first one is before it");
    clock.advance(Duration::from_secs(1));
    assert!(poll_once(&mut first).is_ready() && poll_once(&mut second).is_pending());
    clock.advance(Duration::from_secs(1));
    assert!(poll_once(&mut second).is_ready());
}

#[test]
fn a_cancelled_waiter_takes_nothing_and_those_behind_it_move_up() {
    let (keyed, clock) = keyed(1, 5);
    keyed.try_acquire("a", 5).unwrap();
    let (mut large, mut small) = (Box::pin(keyed.acquire("a", 5)), Box::pin(keyed.acquire("a", 1)));
    assert!(poll_once(&mut large).is_pending() && poll_once(&mut small).is_pending());
    clock.advance(Duration::from_secs(1));
    assert!(poll_once(&mut small).is_pending());
    drop(large);
    assert!(poll_once(&mut small).is_ready());
    drop(small);
    assert_eq!(keyed.available("a"), 0);
    clock.advance(Duration::from_secs(5));
    assert_eq!((keyed.available("a"), keyed.len()), (5, 1));
    keyed.forget_idle();
    assert!(keyed.is_empty());
}

#[test]
fn a_future_that_is_not_polled_takes_nothing_and_knows_no_key() {
    let (keyed, _) = keyed(1, 1);
    drop(keyed.acquire("a", 1));
    assert_eq!((keyed.len(), keyed.try_acquire("a", 1)), (0, Ok(())));
}

#[test]
fn an_unused_key_is_as_if_made_at_the_beginning() {
    let clock = FakeClock::at(Duration::from_secs(100));
    let builder = built(&["2/s,burst=10,initial=0"]).clock(Arc::new(clock.clone()));
    let keyed: Keyed<u64> = builder.keyed().unwrap();
    assert!(keyed.try_acquire(&1, 1).is_err());
    clock.advance(Duration::from_secs(3));
    assert_eq!([1, 2].map(|key| keyed.available(&key)), [6, 6]);
    keyed.try_acquire(&1, 6).unwrap();
    keyed.forget_idle();
    assert_eq!([1, 2].map(|key| keyed.available(&key)), [0, 6]);
    clock.advance(Duration::from_nanos(5 * SECOND - 1));
    keyed.forget_idle();
    assert_eq!((keyed.len(), keyed.available(&1)), (1, 9), "a nanosecond is missing until both are full");
    clock.advance(Duration::from_nanos(1));
    keyed.forget_idle();
    assert_eq!((keyed.len(), keyed.available(&1)), (0, 10));
}

/// Units given back can fill a bucket sooner than one that was never used fills.
#[test]
fn a_key_that_holds_more_than_an_unused_one_is_not_forgotten() {
    let clock = FakeClock::at(Duration::from_nanos(7));
    let builder = built(&["1/s,burst=4,initial=0"]).clock(Arc::new(clock.clone()));
    let keyed: Keyed<String> = builder.keyed().unwrap();
    keyed.limiter("a").unwrap().reconcile(0, 4).unwrap();
    keyed.forget_idle();
    assert_eq!(["a", "b"].map(|key| keyed.available(key)), [4, 0]);
    clock.advance(Duration::from_secs(4));
    keyed.forget_idle();
    assert!(keyed.is_empty());
}

#[test]
fn a_new_key_without_room_is_refused_and_no_other_gains() {
    let (keyed, clock) = keyed(1, 2);
    keyed.set_most_keys(2);
    keyed.try_acquire("a", 2).unwrap();
    clock.advance(Duration::from_secs(1));
    keyed.try_acquire("b", 2).unwrap();
    assert_eq!(keyed.try_acquire("c", 1), Err(AcquireError::TooManyKeys));
    assert_eq!(keyed.acquire("c", 1).block(), Err(AcquireError::TooManyKeys));
    assert_eq!(keyed.reserve("c", 1).err(), Some(AcquireError::TooManyKeys));
    assert_eq!((keyed.len(), keyed.available("a"), keyed.available("b"), keyed.available("c")), (2, 1, 0, 2));
    clock.advance(Duration::from_secs(1));
    assert_eq!(keyed.try_acquire("c", 1), Ok(()), "one of the keys is like new");
    assert_eq!((keyed.len(), keyed.available("a"), keyed.available("b")), (2, 2, 1));
    assert_eq!(keyed.try_acquire("a", 1), Err(AcquireError::TooManyKeys));
}

#[test]
fn keys_that_are_as_new_again_are_forgotten_as_others_come() {
    let (keyed, clock) = keyed(1, 2);
    for key in 0..200_000 {
        keyed.try_acquire(&key.to_string(), 1).unwrap();
        clock.advance(Duration::from_nanos(SECOND / 10));
    }
    assert!(keyed.len() < 100_000, "{} keys, of which 10 are not as new", keyed.len());
    assert!(keyed.try_acquire("199999", 2).is_err(), "a tenth of a second later");
}

/// A refusal changes nothing, so it needs no room.
#[test]
fn what_is_refused_or_costs_nothing_leaves_no_key_behind() {
    let clock = FakeClock::at(Duration::from_nanos(7));
    let builder = built(&["1/s,burst=5,initial=0", "9/min,window"]).clock(Arc::new(clock.clone()));
    let keyed: Keyed<u64> = builder.keyed().unwrap();
    assert_eq!(keyed.try_acquire(&1, 0), Ok(()));
    let second = Duration::from_secs(1);
    assert_eq!(keyed.try_acquire(&1, 1), Err(AcquireError::TooLong { cost: 1.into(), wait: second.into() }));
    assert_eq!(keyed.try_acquire(&1, 6), Err(AcquireError::AboveBurst { cost: 6.into(), burst: 5.into() }));
    assert!(matches!(keyed.try_acquire(&1, -1), Err(AcquireError::Units(_))));
    assert!(keyed.acquire(&1, 2).timeout(second).block().is_err());
    assert_eq!((keyed.available(&1), keyed.time_until(&1, 2), keyed.len()), (0, Ok(2 * second), 0));
}

#[test]
fn a_pause_holds_one_key_even_if_idle_keys_are_forgotten() {
    let (keyed, clock) = keyed(1, 2);
    keyed.pause_for("a", ms(3000)).unwrap();
    keyed.forget_idle();
    assert_eq!(["a", "b"].map(|key| keyed.available(key)), [0, 2]);
    assert_eq!(keyed.time_until("a", 1), Ok(ms(4000)), "the bucket is empty at its end");
    clock.advance(Duration::from_secs(4));
    assert_eq!(keyed.available("a"), 1);
    clock.advance(Duration::from_secs(1));
    keyed.forget_idle();
    assert!(keyed.is_empty());
}

#[test]
fn a_key_with_a_rate_of_its_own_keeps_it() {
    for limits in [&["1/s,burst=2"][..], &["1/s,burst=2", "100/min,window"]] {
        let clock = FakeClock::at(Duration::from_nanos(7));
        let keyed: Keyed<String> = built(limits).clock(Arc::new(clock.clone())).keyed().unwrap();
        keyed.limiter("premium").unwrap().set_rate(10, ms(1000)).unwrap();
        for _ in 0..3 {
            for key in ["premium", "usual"] {
                keyed.try_acquire(key, 2).unwrap();
            }
            clock.advance(Duration::from_nanos(SECOND / 5));
            assert_eq!(["premium", "usual"].map(|key| keyed.available(key)), [2, 0]);
            clock.advance(Duration::from_secs(70));
            keyed.forget_idle();
            assert_eq!(keyed.len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_a_key_is_settled_and_then_the_key_is_forgotten() {
    let keyed: Keyed<String> = Keyed::new(10, 100).unwrap();
    let granted = keyed.acquire_to_settle("a", 100).await.unwrap();
    keyed.forget_idle();
    assert_eq!((keyed.available("a"), keyed.available("b"), keyed.len()), (0, 100, 1));
    granted.settle(30).unwrap();
    assert_eq!(keyed.available("a"), 70);
    assert!(keyed.try_acquire("a", 71).is_err() && keyed.try_acquire("a", 70).is_ok());
    tokio::time::sleep(Duration::from_secs(10)).await;
    keyed.forget_idle();
    assert!(keyed.is_empty());
}

#[test]
fn whole_refills_come_to_all_keys_at_the_same_times() {
    let clock = FakeClock::at(Duration::from_nanos(7));
    let builder = Limiter::builder().rate(2, ms(1000)).burst(3).refill(Refill::Grid).clock(Arc::new(clock.clone()));
    let keyed: Keyed<u64> = builder.keyed().unwrap();
    clock.advance(Duration::from_nanos(SECOND / 2));
    keyed.try_acquire(&1, 3).unwrap();
    clock.advance(Duration::from_nanos(SECOND / 2 - 1));
    assert_eq!(keyed.available(&1), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(keyed.available(&1), 2);
}

#[test]
fn wrong_settings_are_refused() {
    assert_eq!(Keyed::<u64>::new(0, 1).err(), Some(BuildError::ZeroRate));
    assert_eq!(Keyed::<u64>::new(1, 0).err(), Some(BuildError::ZeroBurst));
    assert!(built(&["5/s"]).burst(2).keyed::<u64>().is_err());
}

/// What each of two keys was granted while threads wait, give up, try, forget and cancel. Law 2 must hold for each.
#[test]
fn threads_that_come_and_go_keep_the_limit_and_never_hang() {
    const RATE: u64 = 2000;
    let keyed: Keyed<String> = Keyed::new(RATE, 3).unwrap();
    let granted = [const { AtomicU64::new(0) }; 2];
    let start = Instant::now();
    let run = Duration::from_millis(300);
    thread::scope(|scope| {
        for thread in 0..6_usize {
            let (keyed, granted) = (&keyed, &granted);
            scope.spawn(move || {
                for call in thread.. {
                    let (place, key) = [(0, "a"), (1, "b")][call % 2];
                    let taken = match call % 7 {
                        0 | 1 => keyed.try_acquire(key, 1),
                        2 => keyed.acquire(key, 1).timeout(Duration::from_micros(700)).block(),
                        3 => keyed.acquire(key, 1).block(),
                        4 => {
                            let polled = poll_once(&mut Box::pin(keyed.acquire(key, 1)));
                            granted[place].fetch_add(polled.is_ready().into(), Ordering::SeqCst);
                            continue;
                        }
                        5 => keyed.reserve_within(key, 1, Duration::ZERO).map(drop),
                        _ => {
                            keyed.forget_idle();
                            continue;
                        }
                    };
                    granted[place].fetch_add(taken.is_ok().into(), Ordering::SeqCst);
                    if start.elapsed() > run {
                        break;
                    }
                }
            });
        }
    });
    let most = 3 + RATE * u64::try_from(start.elapsed().as_micros()).unwrap() / 1_000_000;
    for granted in &granted {
        let granted = granted.load(Ordering::SeqCst);
        assert!(granted <= most, "{granted} granted, at most {most}");
    }
    thread::sleep(ms(5));
    keyed.forget_idle();
    assert!(keyed.is_empty(), "{keyed:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_tasks_lose_no_rate_while_others_are_cancelled() {
    let keyed: Keyed<u64> = Keyed::new(100, 1).unwrap();
    let start = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..600_u64)
        .map(|task| {
            let keyed = keyed.clone();
            tokio::spawn(async move {
                let key = task % 2;
                let acquire = keyed.acquire(&key, 1);
                // Every third one gives up.
                let limit = if task % 3 == 0 { ms(task) } else { Duration::from_secs(3600) };
                tokio::time::timeout(limit, acquire).await.is_ok()
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += u64::from(task.await.unwrap());
    }
    assert!((400..600).contains(&granted), "{granted}");
    // For each of the two keys, one is granted at once, and one every 10 ms.
    let most = granted.div_ceil(2) + 50;
    assert!(start.elapsed() <= ms(10 * most), "{:?} for {granted}", start.elapsed());
    tokio::time::sleep(ms(100)).await;
    keyed.forget_idle();
    assert!(keyed.is_empty());
}

/// A task that always gets its units at once must let others run.
#[tokio::test]
async fn a_task_that_never_waits_lets_others_run() {
    let keyed: Keyed<u64> = Keyed::new(1_000_000_000, 1_000_000_000).unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let other = tokio::spawn({
        let ran = Arc::clone(&ran);
        async move { ran.store(1, Ordering::SeqCst) }
    });
    let mut calls = 0;
    while ran.load(Ordering::SeqCst) == 0 && calls < 100_000 {
        keyed.acquire(&calls, 1).await.unwrap();
        calls += 1;
    }
    assert!(calls < 100_000, "the other task never ran");
    other.await.unwrap();
}

#[test]
fn its_futures_and_itself_can_be_sent() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    let keyed: Keyed<String> = Keyed::new(1, 1).unwrap();
    shared(&keyed);
    drop(sent(keyed.acquire("a", 1)));
    drop(sent(keyed.acquire("a", 1).timeout(ms(1))));
}

/// Keys with these limits within these of all, and the waiters' clock.
fn keyed_within(of_key: &str, of_all: &str, oversize: Oversize) -> (Keyed<String>, FakeClock) {
    let clock = FakeClock::default();
    let built = |limit| built(&[limit]).oversize(oversize).clock(Arc::new(clock.clone()));
    (built(of_key).keyed_within(&built(of_all)).unwrap(), clock)
}

type Waits = Vec<(u64, Pin<Box<dyn Future<Output = Result<(), AcquireError>>>>)>;

fn asks(keyed: &Keyed<String>, waits: &mut Waits, number: u64, units: u64) {
    let mut wait: Pin<Box<dyn Future<Output = _>>> = Box::pin(keyed.acquire_owned("k".to_owned(), units));
    assert!(poll_once(&mut wait).is_pending(), "{number} waits");
    waits.push((number, wait));
}

/// In steps of 100 ms, each of which polls all that wait: the number and tenth of each grant.
fn pass(clock: &FakeClock, waits: &mut Waits, tenths: std::ops::RangeInclusive<u64>) -> Vec<(u64, u64)> {
    let mut granted = Vec::new();
    for tenth in tenths {
        clock.set(Duration::from_nanos(tenth * SECOND / 10));
        waits.retain_mut(|(number, wait)| match poll_once(wait) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                assert_eq!(result, Ok(()), "{number}");
                granted.push((*number, tenth));
                false
            }
        });
    }
    granted
}

#[test]
fn concurrent_tries_within_the_limits_of_all_succeed() {
    let (keyed, ..) = keyed_within("9/s,burst=100000", "9/s,burst=100000", Oversize::Reject);
    let tries = || (0..3000).try_for_each(|_| keyed.try_acquire("k", 1));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(tries)).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(results, vec![Ok(()); 4], "units are free all the time");
    });
}

/// As the key alone would grant it.
#[test]
fn a_cost_above_the_burst_within_limits_of_all_is_charged_once() {
    let (keyed, clock) = keyed_within("1/s,burst=2", "1000/s", Oversize::Wait);
    let mut waits = Waits::new();
    asks(&keyed, &mut waits, 1, 5);
    asks(&keyed, &mut waits, 2, 1);
    assert_eq!(pass(&clock, &mut waits, 1..=60), [(1, 30), (2, 40)]);
    let (keyed, clock) = keyed_within("1/s,burst=2", "1000/s", Oversize::Wait);
    keyed.of_all().unwrap().pause_for(ms(4000));
    asks(&keyed, &mut waits, 1, 5);
    asks(&keyed, &mut waits, 2, 1);
    let expected = [(1, 41), (2, 51)]; // All gain the five units in 5 ms after the pause.
    assert_eq!(pass(&clock, &mut waits, 1..=60), expected, "a full bucket when it left, no debt");
}

#[test]
fn late_wake_ups_within_limits_of_all_do_not_lower_the_rate() {
    let (keyed, clock) = keyed_within("1/s,burst=1", "1000/s", Oversize::Reject);
    keyed.try_acquire("k", 1).unwrap();
    let mut waits = Waits::new();
    (0..5).for_each(|number| asks(&keyed, &mut waits, number, 1));
    // The allowance was the second that fills the bucket of a key, and is 100 ms now.
    for number in 0..5 {
        let late = 11 + 10 * number;
        assert_eq!(pass(&clock, &mut waits, late..=late), [(number, late)], "due at a whole second");
        assert_eq!(pass(&clock, &mut waits, late + 8..=late + 8), [], "not before the next");
    }
}

#[test]
fn a_request_that_waits_for_all_keeps_a_pause_of_its_key() {
    let (keyed, clock) = keyed_within("1/s,burst=2", "1/s", Oversize::Reject);
    keyed.try_acquire("other", 1).unwrap();
    let mut waits = Waits::new();
    asks(&keyed, &mut waits, 1, 1);
    keyed.pause_for("k", ms(3000)).unwrap();
    assert_eq!(pass(&clock, &mut waits, 1..=80), [(1, 40)], "empty at the end of the pause, and no debt");
    keyed.of_all().unwrap().set_limits(&built(&["1000/s,burst=1000"])).unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(keyed.available("k"), 2, "full again four seconds later");
}

#[test]
fn a_window_of_a_key_holds_whoever_waits_for_the_limits_of_all() {
    let (keyed, clock) = keyed_within("2/10s,window", "1/s", Oversize::Reject);
    keyed.try_acquire("k", 1).unwrap();
    keyed.of_all().unwrap().pause_for(ms(5000));
    let mut waits = Waits::new();
    (1..=3).for_each(|number| asks(&keyed, &mut waits, number, 1));
    let expected = [(1, 60), (2, 100), (3, 160)];
    assert_eq!(pass(&clock, &mut waits, 0..=200), expected, "never three within ten seconds");
}

#[test]
fn closing_serves_waiters_and_refuses_others_at_once() {
    let (keyed, clock) = keyed_within("1/s,burst=1", "1/s", Oversize::Reject);
    keyed.try_acquire("k", 1).unwrap();
    let mut waits = Waits::new();
    (1..=3).for_each(|number| asks(&keyed, &mut waits, number, 1));
    let refused = |units: u64| poll_once(&mut Box::pin(keyed.acquire("k", units)));
    assert_eq!(refused(0), Poll::Ready(Ok(())), "nothing is free at any time");
    assert!(matches!(refused(2), Poll::Ready(Err(AcquireError::AboveBurst { .. }))));
    keyed.close();
    assert_eq!(refused(1), Poll::Ready(Err(AcquireError::Closed)));
    assert_eq!(pass(&clock, &mut waits, 1..=40), [(1, 10), (2, 20), (3, 30)]);
}

#[test]
fn a_closed_table_forgets_its_keys_and_adds_none() {
    for within in [false, true] {
        let clock = FakeClock::default();
        let builder = || built(&["1/s,burst=1"]).clock(Arc::new(clock.clone()));
        let all = built(&["1000/s,burst=1000"]);
        let keyed: Keyed<String> = if within { builder().keyed_within(&all) } else { builder().keyed() }.unwrap();
        keyed.try_acquire("k", 1).unwrap();
        let mut waits = Waits::new();
        asks(&keyed, &mut waits, 1, 1);
        keyed.close();
        let closed = Err(AcquireError::Closed);
        assert_eq!(poll_once(&mut Box::pin(keyed.acquire("new", 1))), Poll::Ready(closed.clone()));
        assert_eq!(keyed.acquire("new", 1).block(), closed);
        assert_eq!(keyed.try_acquire_to_settle("new", 1).map(drop), closed);
        assert_eq!(keyed.pause_for("new", ms(1)), closed);
        assert_eq!(keyed.len(), 1);
        assert_eq!(pass(&clock, &mut waits, 1..=20), [(1, 10)]);
        clock.advance(Duration::from_secs(10));
        keyed.forget_idle();
        assert!(keyed.is_empty(), "within: {within}");
    }
}

/// Each third reading of it takes a while, so that others come in between.
#[derive(Default)]
struct SlowClock(AtomicU64);

impl throttle_limits::clock::Clock for SlowClock {
    fn now(&self) -> Duration {
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            thread::sleep(Duration::from_micros(20));
        }
        Duration::ZERO
    }

    fn wake_at(&self, _: Duration, _: &Waker) {}
}

#[test]
fn changes_at_the_same_time_leave_all_keys_with_the_same_limits() {
    let keyed: Keyed<String> = built(&["1/s,burst=1"]).clock(Arc::new(SlowClock::default())).keyed().unwrap();
    let keys: Vec<_> = (0..300).map(|key| key.to_string()).collect();
    keys.iter().try_for_each(|key| keyed.try_acquire(key, 1)).unwrap();
    let _held: Vec<_> = keys.iter().take(200).map(|key| keyed.limiter(key.as_str()).unwrap()).collect();
    for round in 1..20 {
        let together = Barrier::new(2);
        thread::scope(|scope| {
            for rate in [2 * round, 2 * round + 1] {
                let (keyed, together) = (&keyed, &together);
                scope.spawn(move || {
                    together.wait();
                    keyed.set_rate(rate, ms(1000)).unwrap();
                });
            }
        });
        let times: BTreeSet<_> = keys.iter().map(|key| keyed.time_until(key.as_str(), 1).unwrap()).collect();
        assert_eq!(times.len(), 1, "round {round}: {times:?}");
    }
}

/// A waker is code of the caller, which may do anything.
#[test]
fn a_waker_can_change_the_limits_of_all_keys() {
    struct Changes(Keyed<String>, AtomicBool);
    impl Wake for Changes {
        fn wake(self: Arc<Self>) {
            if !self.1.swap(true, Ordering::Relaxed) {
                self.0.set_limits(&built(&["8/s,window"])).unwrap();
            }
        }
    }
    let (keyed, _clock) = keyed(1, 1);
    let keys: Vec<_> = (0..300).map(|key| key.to_string()).collect();
    keys.iter().try_for_each(|key| keyed.try_acquire(key, 1)).unwrap();
    let waker = Waker::from(Arc::new(Changes(keyed.clone(), AtomicBool::new(false))));
    let mut waits: Vec<_> = keys.iter().map(|key| Box::pin(keyed.acquire(key.as_str(), 1))).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    keyed.set_limits(&built(&["9/s,window"])).unwrap(); // A window knows nothing of what a bucket has granted.
    assert!(waits.iter_mut().all(|wait| poll_once(wait) == Poll::Ready(Ok(()))));
    assert!(keys.iter().all(|key| keyed.available(key.as_str()) == 7), "the last change allows 8");
}

#[test]
fn a_key_keeps_the_latest_time_of_its_limiter() {
    let clock = FakeClock::default();
    let builder = built(&["1/s,burst=2", "100/s,burst=100"]).clock(Arc::new(clock.clone()));
    let keyed: Keyed<String> = builder.keyed().unwrap();
    let limiter = keyed.limiter("k").unwrap();
    clock.set(ms(3000));
    limiter.try_acquire(1).unwrap();
    clock.set(ms(2000));
    drop(limiter);
    keyed.forget_idle();
    assert_eq!(keyed.try_acquire("k", 1), Ok(()), "a time before the latest one counts as the latest one");
}

/// A clock without alarms. The next attempt to set one panics, if the test wants that.
#[derive(Default)]
struct Fails(FakeClock, AtomicBool);

impl throttle_limits::clock::Clock for Fails {
    fn now(&self) -> Duration {
        throttle_limits::clock::Clock::now(&self.0)
    }

    fn wake_at(&self, _: Duration, _: &Waker) {
        if self.1.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

/// Polls a request that is granted at this poll, while the clock panics.
fn poll_while_the_clock_panics<F: Future>(clock: &Fails, granted: &mut Pin<Box<F>>) {
    clock.1.store(true, Ordering::SeqCst);
    let polled = catch_unwind(AssertUnwindSafe(|| poll_once(granted).is_ready()));
    assert!(polled.is_err(), "{polled:?}");
}

#[test]
fn a_panic_of_the_clock_does_not_block_a_key_for_ever() {
    let clock = Arc::new(Fails::default());
    let all = built(&["1/s,burst=1"]);
    let keyed: Keyed<String> = built(&["100/s,burst=100"]).clock(clock.clone()).keyed_within(&all).unwrap();
    keyed.try_acquire("other", 1).unwrap();
    let mut first = Box::pin(keyed.acquire("k", 1));
    let mut second = Box::pin(keyed.acquire("k", 1));
    let mut fourth = Box::pin(keyed.acquire("k", 1).timeout(ms(9000)));
    assert!(poll_once(&mut first).is_pending());
    let late = poll_once(&mut Box::pin(keyed.acquire("k", 1).timeout(ms(1500))));
    let wait = ms(2000).into();
    assert_eq!(late, Poll::Ready(Err(AcquireError::TooLong { cost: 1.into(), wait })), "behind the first one");
    for waits in [&mut second, &mut fourth] {
        assert!(poll_once(waits).is_pending());
    }
    clock.0.set(ms(1000));
    assert_eq!(poll_once(&mut first), Poll::Ready(Ok(())));
    clock.0.set(ms(2000));
    // It is granted. So the alarm is set for the next one.
    poll_while_the_clock_panics(&clock, &mut second);
    drop(second);
    clock.0.set(ms(3000));
    assert_eq!(poll_once(&mut fourth), Poll::Ready(Ok(())));
}

#[test]
fn a_panic_of_the_clock_leaves_no_grant_to_settle() {
    let clock = Arc::new(Fails::default());
    let keyed: Keyed<String> = built(&["1/s,burst=1"]).clock(clock.clone()).keyed().unwrap();
    keyed.try_acquire("k", 1).unwrap();
    let mut first = Box::pin(keyed.acquire_to_settle("k", 1));
    let mut second = Box::pin(keyed.acquire("k", 1).timeout(ms(3000)));
    let mut third = Box::pin(keyed.acquire("k", 1).timeout(ms(9000)));
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending() && poll_once(&mut third).is_pending());
    clock.0.set(ms(4000));
    poll_while_the_clock_panics(&clock, &mut first);
    drop((first, second, third));
    clock.0.set(ms(20_000));
    keyed.forget_idle();
    assert!(keyed.is_empty());
}
