//! Limits for each key: each key is limited as a limiter of its own would limit it, whatever is forgotten.

use crate::limiters::{ms, poll_once};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use throttle::clock::{Clock, FakeClock, MILLISECOND, SECOND};
use throttle::limiter::{AcquireError, BuildError, Builder, Keyed, Limiter, Oversize, Refill, Reservation};
use throttle::limits::{Limits, Policy, Refusal};

fn keyed(rate: u64, burst: u64) -> (Keyed<String>, FakeClock) {
    let clock = FakeClock::at(5);
    let builder = Limiter::builder().rate(rate, ms(1000)).burst(burst).timer(Arc::new(clock.clone()));
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
}

impl<'a> Beside<'a> {
    fn take(&mut self, key: &'static str, step: &Step) {
        let (keyed, own) = (self.keyed, &self.limiters[key]);
        match *step {
            Step::Try(cost) => assert_eq!(keyed.try_acquire(key, cost), own.try_acquire(cost), "{key}"),
            Step::Acquire(cost) => self.wait([Box::pin(keyed.acquire(key, cost)), Box::pin(own.acquire(cost))]),
            Step::Timeout(cost, limit) => self.wait([
                Box::pin(keyed.acquire_timeout(key, cost, ms(limit))),
                Box::pin(own.acquire_timeout(cost, ms(limit))),
            ]),
            Step::Cancel(index) if !self.waiters.is_empty() => {
                drop(self.waiters.remove(index.index(self.waiters.len())))
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
            Step::Forget => keyed.forget_idle(),
            Step::Pass(micros) => self.clock.advance(micros * 1000),
            Step::Cancel(_) | Step::CancelReservation(_) => {}
        }
        self.poll();
    }

    fn wait(&mut self, waiters: [Waiter<'a>; 2]) {
        self.waiters.push(waiters);
        self.poll();
    }

    fn poll(&mut self) {
        self.waiters.retain_mut(|pair| {
            let [one, other] = pair.each_mut().map(poll_once);
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
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A key whose limiter comes and goes, and that is forgotten at any time, answers as one that never forgets.
    #[test]
    fn each_key_is_limited_as_a_limiter_that_never_forgets_would_limit_it(
        limits in any_limits(),
        oversize in prop::sample::select(vec![Oversize::Reject, Oversize::Wait]),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let clock = FakeClock::at(7);
        let builder = || built(&limits).oversize(oversize).timer(Arc::new(clock.clone()));
        let keyed: Keyed<String> = builder().keyed().unwrap();
        let limiters: BTreeMap<_, _> = KEYS.map(|key| (key, builder().build().unwrap())).into();
        let (waiters, reservations) = (Vec::new(), Vec::new());
        let mut beside = Beside { clock: &clock, keyed: &keyed, limiters: &limiters, waiters, reservations };
        for (key, step) in steps {
            beside.take(KEYS[key.index(KEYS.len())], &step);
        }
        let Beside { waiters, reservations, .. } = beside;
        drop((waiters, reservations));
        clock.advance(3600 * SECOND);
        keyed.forget_idle();
        prop_assert_eq!(keyed.len(), 0, "an hour later all are like new");
    }

    /// Law 7, for keys: earlier readings of the clock are clamped, also for keys that were forgotten.
    #[test]
    fn a_clock_that_goes_back_credits_nothing_to_any_key(
        limits in any_limits(),
        steps in prop::collection::vec((any::<Index>(), 0_u64..4, -900_000_000_i64..1_500_000_000, any::<bool>()), 1..80),
    ) {
        let clock = FakeClock::at(3600 * SECOND);
        let keyed: Keyed<String> = built(&limits).timer(Arc::new(clock.clone())).keyed().unwrap();
        let policy: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(&policy, None).unwrap();
        let mut limiters = KEYS.map(|key| (key, Limits::new(&policy, clock.now())));
        let mut latest = clock.now();
        for (key, cost, passes, forgets) in steps {
            if passes < 0 || forgets {
                keyed.forget_idle(); // So that each key has seen the latest time.
            }
            clock.set(clock.now().saturating_add_signed(passes));
            latest = latest.max(clock.now());
            let (key, limits) = &mut limiters[key.index(KEYS.len())];
            let waits = match keyed.try_acquire(*key, cost) {
                Ok(()) => Some(0),
                Err(AcquireError::TooLong { wait, .. }) => Some(u64::try_from(wait.as_nanos()).unwrap()),
                Err(AcquireError::Never { .. } | AcquireError::AboveBurst { .. }) => None,
                Err(error) => panic!("{error}"),
            };
            let expected = match limits.take_within(latest, cost, 0) {
                Ok(_) => Some(0),
                Err(Refusal::TooLong { wait }) => Some(wait),
                Err(Refusal::Never) => None,
            };
            prop_assert!(waits.is_none() || waits == expected, "{}: {:?} {:?}", key, waits, expected);
            prop_assert!(waits.is_some() || expected != Some(0));
        }
    }
}
