//! Law 11: settling a grant at its real cost leaves the limits as if it had cost that from the start.

use crate::limiters::{ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, SECOND};
use throttle_limits::limiter::{AcquireError, Granted, Limiter, Oversize, UnitsError};
use tokio::time::Instant;

/// So many units a second and at once.
fn limiter(rate: u64, clock: &FakeClock) -> Limiter {
    Limiter::builder().rate(rate, ms(1000)).clock(Arc::new(clock.clone())).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn units_not_used_are_there_for_the_waiters_at_once() {
    let limiter = Limiter::new(1000, 1000).unwrap();
    let granted = limiter.acquire_to_settle(1000).await.unwrap();
    let start = Instant::now();
    let mut next = Box::pin(limiter.acquire(600));
    assert!(poll_once(&mut next).is_pending());
    tokio::time::advance(ms(100)).await;
    granted.settle(400).unwrap();
    next.await.unwrap();
    assert_eq!(start.elapsed(), ms(100), "it would have been 600 ms");
    assert_eq!(limiter.available(), 100);
}

#[test]
fn units_used_beyond_the_grant_are_owed_by_those_behind() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let granted = limiter.try_acquire_to_settle(400).unwrap();
    granted.settle(3000).unwrap();
    assert_eq!(limiter.time_until(1), Ok(ms(2001)));
}

#[test]
fn what_would_have_overflowed_is_lost() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let granted = limiter.try_acquire_to_settle(1000).unwrap();
    clock.advance(Duration::from_millis(900));
    limiter.try_acquire(900).unwrap();
    granted.settle(0).unwrap();
    assert_eq!(limiter.available(), 100, "the bucket would have been full when 900 were taken");
    limiter.reconcile(0, 1000).unwrap();
    assert_eq!(limiter.available(), 1000, "reconcile does not know that");
}

/// What it cost more would have been paid by what overflowed.
#[test]
fn a_debt_that_what_overflowed_would_have_paid_is_not_owed() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let granted = limiter.try_acquire_to_settle(100).unwrap();
    clock.advance(Duration::from_secs(1));
    limiter.try_acquire(1000).unwrap();
    granted.settle(800).unwrap();
    assert_eq!(limiter.time_until(1), Ok(ms(1)));
}

#[test]
fn a_grant_that_is_dropped_cost_what_was_acquired() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let granted = limiter.try_acquire_to_settle(400).unwrap();
    assert_eq!(granted.costs().of(0), 400.into());
    drop(granted);
    assert_eq!(limiter.available(), 600);
    let granted = limiter.try_acquire_to_settle(100).unwrap();
    assert_eq!(granted.settle(-1), Err(UnitsError::Negative), "and so did this one");
    assert_eq!(limiter.available(), 500);
    limiter.try_acquire(500).unwrap();
}

#[tokio::test(start_paused = true)]
async fn futures_threads_and_those_who_only_try_settle_alike() {
    let limiter = Limiter::new(1000, 1000).unwrap();
    limiter.acquire_to_settle(500).block().unwrap().settle(100).unwrap();
    limiter.try_acquire_to_settle(900).unwrap().settle(200).unwrap();
    limiter.acquire_to_settle(700).await.unwrap().settle(300).unwrap();
    assert_eq!(limiter.available(), 400);
    assert!(matches!(limiter.try_acquire_to_settle(401), Err(AcquireError::TooLong { .. })));
    assert!(matches!(limiter.acquire_to_settle(1001).await, Err(AcquireError::AboveBurst { .. })));
    assert!(matches!(limiter.acquire_to_settle(f64::NAN).block(), Err(AcquireError::Units(_))));
    limiter.acquire_to_settle(0).await.unwrap().settle(300).unwrap();
    assert_eq!(limiter.available(), 100);
}

#[test]
fn a_future_that_has_ended_gives_no_second_grant() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let mut wait = Box::pin(limiter.acquire_to_settle(600));
    let Poll::Ready(Ok(granted)) = poll_once(&mut wait) else { panic!("it is free") };
    assert_eq!(Pin::into_inner(wait).block().map(drop), Err(AcquireError::Finished));
    granted.settle(100).unwrap();
    assert_eq!(limiter.available(), 900);
}

/// Also if it ended in the queue, and nothing keeps it from taking at once meanwhile.
#[test]
fn a_future_that_has_begun_takes_nothing_more_when_blocked_on() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let mut wait = Box::pin(limiter.acquire(600));
    assert!(poll_once(&mut wait).is_ready());
    assert_eq!(Pin::into_inner(wait).block(), Ok(()));
    assert_eq!(limiter.available(), 400);
    let mut wait = Box::pin(limiter.acquire(600));
    assert!(poll_once(&mut wait).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.available(), 800, "granted after 200 ms");
    assert_eq!(Pin::into_inner(wait).block(), Ok(()));
    assert_eq!(limiter.available(), 800);
}

#[test]
fn a_dropped_wait_for_a_grant_to_settle_takes_nothing() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    limiter.try_acquire(1000).unwrap();
    let mut waits = [0; 2].map(|_| Box::pin(limiter.acquire_to_settle(500)));
    assert!(waits.iter_mut().all(|wait| poll_once(wait).is_pending()));
    clock.advance(Duration::from_nanos(SECOND / 2)); // The first is granted now, and does not know it.
    drop(waits);
    assert_eq!(limiter.available(), 500);
    let Poll::Ready(Ok(granted)) = poll_once(&mut Box::pin(limiter.acquire_to_settle(500))) else { panic!() };
    granted.settle(0).unwrap();
    assert_eq!(limiter.available(), 500);
}

#[test]
fn windows_count_the_real_cost_from_the_time_of_the_grant() {
    let clock = FakeClock::default();
    let builder = Limiter::builder().limit("10/s,window".parse().unwrap()).clock(Arc::new(clock.clone()));
    let limiter = builder.build().unwrap();
    let [less, more] = [5, 3].map(|units| limiter.try_acquire_to_settle(units).unwrap());
    clock.advance(Duration::from_nanos(SECOND / 2));
    limiter.try_acquire(2).unwrap();
    less.settle(1).unwrap();
    assert_eq!(limiter.available(), 4);
    more.settle(6).unwrap();
    assert_eq!(limiter.available(), 1);
    clock.advance(Duration::from_nanos(SECOND / 2));
    assert_eq!(limiter.available(), 8);
}

#[test]
fn a_pause_leaves_nothing_of_what_is_settled_in_it() {
    let clock = FakeClock::default();
    let limiter = limiter(1000, &clock);
    let granted = limiter.try_acquire_to_settle(1000).unwrap();
    limiter.pause_for(Duration::from_secs(2));
    granted.settle(0).unwrap();
    assert_eq!(limiter.time_until(10), Ok(ms(2010)));
}

#[test]
fn requests_and_tokens_are_settled_together() {
    let left = |model: &Limiter| [0, 1].map(|kind| model.available_of(kind));
    let clock = FakeClock::default();
    let builder = |rate| Limiter::builder().rate(rate, ms(1000)).clock(Arc::new(clock.clone()));
    let model = Limiter::joint([builder(10), builder(1000)]).unwrap();
    model.try_acquire_to_settle([1, 400]).unwrap().settle([1, 100]).unwrap();
    assert_eq!(left(&model), [9, 900]);
    let Poll::Ready(Ok(granted)) = poll_once(&mut Box::pin(model.acquire_to_settle([1, 900]))) else { panic!() };
    assert_eq!([0, 1].map(|kind| granted.costs().of(kind)), [1.into(), 900.into()]);
    let waits = model.acquire_to_settle([0, 600]);
    let mut waits = Box::pin(waits);
    assert!(poll_once(&mut waits).is_pending());
    granted.settle([2, 250]).unwrap();
    let Poll::Ready(Ok(second)) = poll_once(&mut waits) else { panic!("there is room for it now") };
    assert!(matches!(poll_once(&mut waits), Poll::Ready(Err(_))), "it does not acquire again");
    assert_eq!(left(&model), [7, 50]);
    drop(second);
    model.acquire_to_settle([0, 0]).block().unwrap().settle([1, 20]).unwrap();
    assert_eq!(left(&model), [6, 30]);
}

/// Beyond the number of grants that are remembered, the oldest gets back what it did not use less what came in since.
#[test]
fn a_forgotten_grant_gets_back_less_what_came_in_since() {
    let clock = FakeClock::default();
    let limiter = limiter(100_000, &clock);
    let mut open: Vec<_> = (0..1025).map(|_| limiter.try_acquire_to_settle(3).unwrap()).collect();
    assert_eq!(limiter.available(), 100_000 - 3 * 1025);
    let (last, first) = (open.pop().unwrap(), open.swap_remove(0));
    clock.advance(Duration::from_micros(10)); // One unit came in.
    first.settle(0).unwrap();
    assert_eq!(limiter.available(), 100_000 - 3 * 1025 + 1 + 2);
    last.settle(0).unwrap();
    assert_eq!(limiter.available(), 100_000 - 3 * 1024 + 1 + 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(300)))]

    /// A limiter that is charged estimates and settled equals one that knew the real costs.
    #[test]
    fn settled_limiters_are_like_those_that_knew(
        (burst, steps) in (5_u64..20, prop::collection::vec((0_u64..12, 0_u64..12, 0_u64..4000, 0_usize..3), 1..60)),
    ) {
        let clock = FakeClock::default();
        let build = || {
            let builder = Limiter::builder().rate(3, ms(1000)).burst(burst).limit("40/9s,window".parse().unwrap());
            builder.oversize(Oversize::Wait).clock(Arc::new(clock.clone())).build().unwrap()
        };
        let (estimates, knows) = (build(), build());
        let mut open = Vec::new();
        for (one, other, pause, settled) in steps {
            clock.advance(Duration::from_millis(pause));
            let (estimate, real) = (one.max(other), one.min(other));
            if let Ok(granted) = estimates.try_acquire_to_settle(estimate) {
                knows.try_acquire(real).unwrap();
                open.push((granted, real));
            }
            for _ in 0..settled.min(open.len()) {
                let (granted, real) = open.swap_remove(settled % open.len());
                granted.settle(real).unwrap();
            }
        }
        for (granted, real) in open {
            granted.settle(real).unwrap();
        }
        prop_assert_eq!(estimates.available(), knows.available());
        for units in [1, burst, burst + 7, 40] {
            prop_assert_eq!(estimates.time_until(units), knows.time_until(units));
        }
    }
}

/// Calls of 20 s, 64 at once, at 500 requests and 200 000 tokens a minute: 4000 are charged, about 1000 used. Returns the
/// tokens used by the calls of each minute.
fn tokens_used(settles: bool) -> Vec<u64> {
    let clock = FakeClock::default();
    let builder = |rate: u64| Limiter::builder().rate(rate, Duration::from_secs(60)).clock(Arc::new(clock.clone()));
    let model = Limiter::joint([builder(500), builder(200_000)]).unwrap();
    let mut calls: Vec<(u64, Granted, u64)> = Vec::new();
    let (mut number, mut used, mut waits) = (0, vec![0; 6], Box::pin(model.acquire_to_settle([1, 4000])));
    for now in (0..360 * SECOND).step_by(10_000_000) {
        clock.set(Duration::from_nanos(now));
        while calls.first().is_some_and(|(ends, ..)| *ends <= now) {
            let (_, granted, real) = calls.remove(0);
            if settles {
                granted.settle([1, real]).unwrap();
            }
        }
        while calls.len() < 64
            && let Poll::Ready(granted) = poll_once(&mut waits)
        {
            let real = 500 + number * 7919 % 1001;
            number += 1;
            calls.push((now + 20 * SECOND, granted.unwrap(), real));
            used[usize::try_from(now / (60 * SECOND)).unwrap()] += real;
            waits = Box::pin(model.acquire_to_settle([1, 4000]));
        }
    }
    used
}

#[test]
fn overcharged_calls_use_most_of_the_limit() {
    let used = tokens_used(true);
    // 64 calls at once, of 20 s and about 1000 each, use about 192 000 a minute at most.
    assert!(used.iter().all(|used| (160_000..=200_000).contains(used)), "{used:?}");
    assert!(used.iter().sum::<u64>() <= 200_000 * 7, "{used:?}");
    let used = tokens_used(false);
    assert!(used[1..].iter().all(|used| *used <= 60_000), "without settling: {used:?}");
}
