//! Semaphores: several places at once, and a burst of starts that is not the capacity.

use crate::limiters::{FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use throttle_limits::limiter::{AcquireError, BuildError};
use throttle_limits::semaphore::{Permit, Semaphore};
use tokio::time::Instant;

/// Moves the clock, and fires the alarm at each time it was set to.
fn at(timer: &FakeTimer, millis: u64) {
    while timer.next().is_some_and(|next| next <= millis * 1_000_000) {
        timer.to_next();
    }
    timer.to(millis * 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn the_burst_of_starts_is_apart_from_the_capacity() {
    let semaphore = Semaphore::builder(10, 2, ms(1000)).burst(1).build().unwrap();
    let start = Instant::now();
    let mut permits = Vec::new();
    for number in 0..10 {
        permits.push(semaphore.acquire().await.unwrap());
        assert_eq!(start.elapsed(), ms(500 * number), "one at a time, though places are free");
    }
    let full = semaphore.acquire().timeout(ms(5000)).await;
    assert!(matches!(full, Err(AcquireError::TimedOut { .. })), "the capacity holds, too: {full:?}");

    semaphore.set_capacity(20);
    tokio::time::sleep(ms(60_000)).await;
    assert!(semaphore.try_acquire().is_ok_and(|permit| permit.places() == 1));
    let none = semaphore.try_acquire().unwrap_err();
    assert_eq!(
        none,
        AcquireError::TooLong { cost: 1.into(), wait: ms(500).into() },
        "a larger capacity is no larger burst"
    );

    let wide = Semaphore::builder(2, 1, ms(1000)).burst(3).build().unwrap();
    let times: Vec<_> = (0..5).map(|_| wide.try_acquire().is_ok()).collect();
    assert_eq!(times, [true, true, true, false, false], "a burst above the capacity counts starts");
}

#[test]
fn a_semaphore_refuses_0_and_keeps_slow_rates_exactly() {
    let build = |starts, period, burst| Semaphore::builder(2, starts, period).burst(burst).build();
    assert_eq!(build(1, ms(1000), 0).unwrap_err(), BuildError::ZeroBurst);
    assert_eq!(build(0, ms(1000), 1).unwrap_err(), BuildError::ZeroRate);
    assert_eq!(build(1, ms(0), 1).unwrap_err(), BuildError::ZeroPeriod);
    let timer = Arc::new(FakeTimer::default());
    let week = Duration::from_secs(7 * 86_400);
    let slow = Semaphore::builder(2, 11, week).burst(1).clock(timer.clone()).build().unwrap();
    drop(slow.try_acquire().unwrap());
    let wait = u64::try_from(week.as_nanos().div_ceil(11)).unwrap();
    timer.set(wait - 1);
    assert!(slow.try_acquire().is_err());
    timer.set(wait);
    assert!(slow.try_acquire().is_ok());
}

#[test]
fn several_places_are_taken_and_freed_together() {
    let timer = Arc::new(FakeTimer::default());
    let semaphore = Semaphore::builder(4, 1000, Duration::from_secs(1)).clock(timer.clone()).build().unwrap();
    let three = semaphore.try_acquire_many(3).unwrap();
    assert_eq!((three.places(), semaphore.available()), (3, 1));
    assert_eq!(semaphore.try_acquire_many(2).unwrap_err(), AcquireError::NoPlace);
    let mut two = Box::pin(semaphore.acquire_many(2));
    assert!(poll_once(&mut two).is_pending());
    let mut one = Box::pin(semaphore.acquire());
    at(&timer, 1000);
    assert!(poll_once(&mut one).is_pending(), "a place is free, but the waiter for two came first");
    assert_eq!((semaphore.waiters(), semaphore.available()), (2, 0));
    drop(two);
    let Poll::Ready(Ok(one)) = poll_once(&mut one) else { panic!("the waiter behind moves up at once") };
    let mut four = Box::pin(semaphore.acquire_many(4));
    assert!(poll_once(&mut four).is_pending());
    drop(one);
    assert!(poll_once(&mut four).is_pending());
    drop(three);
    at(&timer, 2000);
    let Poll::Ready(Ok(four)) = poll_once(&mut four) else { panic!("all places are free") };
    assert_eq!((semaphore.available(), format!("{four:?}")), (0, "Permit { places: 4, .. }".to_owned()));
    drop(four);
    assert_eq!(format!("{semaphore:?}"), "Semaphore { available: 4, waiters: 0 }");
}

#[tokio::test(start_paused = true)]
async fn several_places_cost_as_many_tokens() {
    let semaphore = Semaphore::builder(100, 10, ms(1000)).burst(4).build().unwrap();
    let start = Instant::now();
    let four = semaphore.acquire_many(4).await.unwrap();
    let three = semaphore.acquire_many(3).await.unwrap();
    assert_eq!(start.elapsed(), ms(300));
    let six = semaphore.acquire_many(6).await.unwrap();
    assert_eq!(start.elapsed(), ms(900), "more than the burst are gathered");
    let none = semaphore.acquire_many(0).await.unwrap();
    assert_eq!((start.elapsed(), semaphore.available(), none.places()), (ms(900), 87, 0));
    six.forget();
    drop((four, three, none));
    assert_eq!(semaphore.available(), 94);
    let blocking = std::thread::spawn(move || semaphore.acquire_many(0).block().map(|permit| permit.places()));
    assert_eq!(blocking.join().unwrap(), Ok(0));
}

#[test]
fn more_places_than_there_are_wait_until_the_capacity_is_raised() {
    let timer = Arc::new(FakeTimer::default());
    let semaphore = Semaphore::builder(2, 1000, Duration::from_secs(1)).clock(timer.clone()).build().unwrap();
    let mut three = Box::pin(semaphore.acquire_many(3));
    at(&timer, 1_000_000);
    assert!(poll_once(&mut three).is_pending());
    semaphore.set_capacity(3);
    at(&timer, 1_000_001);
    assert!(poll_once(&mut three).is_ready());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(200)))]

    /// C6, C9: served in order of arrival, and never more places held than there are, whoever leaves when.
    #[test]
    fn never_more_places_are_held_than_there_are(
        capacity in 1_usize..8,
        steps in prop::collection::vec((0_u8..4, 0_usize..6, any::<prop::sample::Index>()), 1..80),
    ) {
        let timer = Arc::new(FakeTimer::default());
        let semaphore = Semaphore::builder(capacity, 1_000_000, Duration::from_secs(1)).clock(timer.clone()).build().unwrap();
        let (mut line, mut held, mut model, mut now) = (Vec::new(), Vec::<Permit>::new(), VecDeque::new(), 0);
        for (number, (step, places, index)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    line.push((number, Box::pin(semaphore.acquire_many(places))));
                    model.push_back((number, places));
                }
                2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                3 if !line.is_empty() => {
                    let (gone, _) = line.remove(index.index(line.len()));
                    model.retain(|&(number, _)| number != gone);
                }
                _ => {}
            }
            // Tokens are there after 8 µs: only places are scarce.
            for _ in 0..3 {
                now += 1;
                at(&timer, now);
                let done: Vec<_> = line
                    .extract_if(.., |(_, waiter)| match poll_once(waiter) {
                        Poll::Ready(permit) => { held.push(permit.unwrap()); true }
                        Poll::Pending => false,
                    })
                    .map(|(number, _)| number)
                    .collect();
                for number in done {
                    prop_assert_eq!(model.pop_front().map(|(first, _)| first), Some(number));
                }
                let used: usize = held.iter().map(Permit::places).sum();
                prop_assert!(used <= capacity, "{used} of {capacity}");
                let next = model.front().map_or(usize::MAX, |&(_, places)| places);
                prop_assert!(next > capacity - used, "who is first and has room is served");
            }
        }
        drop((line, held));
        at(&timer, now + 1);
        prop_assert_eq!((semaphore.waiters(), semaphore.available()), (0, capacity));
    }
}
