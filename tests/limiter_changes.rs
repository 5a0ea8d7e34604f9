//! What is changed while a limiter runs: settling, rates, bursts, places, pauses. None of it costs rate.

mod limiters;

use limiters::{ms, poll_once};
use std::time::Duration;
use throttle::limiter::Limiter;
use throttle::semaphore::Semaphore;
use tokio::time::Instant;

/// How long `rounds` acquires take at 10 000/s, on a clock that wakes up to a millisecond late, when `change` follows each.
async fn ten_thousand_a_second(rounds: u32, change: impl Fn(&Limiter)) -> Duration {
    let limiter = Limiter::new(10_000, 1).unwrap();
    let start = Instant::now();
    for _ in 0..rounds {
        limiter.acquire(1).await.unwrap();
        change(&limiter);
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_change_that_changes_nothing_costs_no_rate() {
    let second = Duration::from_secs(1);
    let changes: [fn(&Limiter); 3] = [
        |limiter| limiter.reconcile(1, 1).unwrap(),
        |limiter| limiter.set_rate(10_000, Duration::from_secs(1)).unwrap(),
        |limiter| limiter.set_burst(1).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let elapsed = ten_thousand_a_second(10_000, change).await;
        assert!(elapsed >= second - ms(1) && elapsed <= second + ms(2), "change {number}: {elapsed:?}");
    }
}

/// Each gives back a half of what it took: twice as many fit in a second.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_at_every_step_is_there_for_the_next() {
    let limiter = Limiter::new(10_000, 2).unwrap();
    limiter.acquire(2).await.unwrap();
    let start = Instant::now();
    for _ in 0..10_000 {
        limiter.acquire(2).await.unwrap();
        limiter.reconcile(1, 2).unwrap();
    }
    let elapsed = start.elapsed();
    assert!(elapsed >= ms(999) && elapsed <= ms(1002), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_alternates_runs_at_its_mean() {
    let limiter = Limiter::new(10_000, 1).unwrap();
    let start = Instant::now();
    for round in 0..10_000_u64 {
        limiter.acquire(1).await.unwrap();
        limiter.set_rate(if round % 2 == 0 { 20_000 } else { 10_000 }, ms(1000)).unwrap();
    }
    let elapsed = start.elapsed();
    assert!(elapsed >= ms(740) && elapsed <= ms(760), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn places_that_are_handed_on_cost_no_rate() {
    for (tasks, capacity) in [(2, 1), (5, 1), (7, 3)] {
        let semaphore = Semaphore::new(capacity, 10_000).unwrap();
        let start = Instant::now();
        let mut set = tokio::task::JoinSet::new();
        for _ in 0..tasks {
            let semaphore = semaphore.clone();
            set.spawn(async move {
                for _ in 0..10_000 / tasks {
                    drop(semaphore.acquire().await.unwrap());
                }
            });
        }
        set.join_all().await;
        let elapsed = start.elapsed();
        assert!(elapsed >= ms(990) && elapsed <= ms(1005), "{tasks} tasks, {capacity} places: {elapsed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_was_held_for_long_leaves_no_burst_behind() {
    let semaphore = Semaphore::new(1, 10_000).unwrap();
    for _ in 0..50 {
        drop(semaphore.acquire().await.unwrap()); // late by up to a millisecond each time
    }
    let held = semaphore.acquire().await.unwrap();
    let mut line: Vec<_> = (0..9).map(|_| Box::pin(semaphore.acquire())).collect();
    assert!(line.iter_mut().all(|one| poll_once(one).is_pending()));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    drop(held);
    for one in line {
        drop(one.await.unwrap());
    }
    assert!(start.elapsed() >= Duration::from_micros(800), "{:?}", start.elapsed());
}
