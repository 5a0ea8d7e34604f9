//! Changes while a limiter runs: settling, rates, bursts, places, pauses. None of them costs rate.

use crate::limiters::{FakeTimer, ms, poll_once};
use std::sync::Arc;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, SECOND};
use throttle_limits::limiter::{AcquireError, Limiter, Oversize, Refill};
use throttle_limits::semaphore::Semaphore;
use tokio::time::Instant;

/// How long `rounds` acquires take at 10 000/s, each followed by `change`, on a clock that wakes up to a millisecond
/// late.
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
    let changes: [fn(&Limiter); 3] = [
        |limiter| limiter.reconcile(1, 1).unwrap(),
        |limiter| limiter.set_rate(10_000, Duration::from_secs(1)).unwrap(),
        |limiter| limiter.set_burst(1).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let elapsed = ten_thousand_a_second(10_000, change).await;
        assert!(elapsed >= ms(999) && elapsed <= ms(1002), "change {number}: {elapsed:?}");
    }
}

/// Each gives back half of what it took, so twice as many fit in a second.
#[tokio::test(start_paused = true)]
async fn units_given_back_are_available_to_the_next_acquire() {
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
async fn handing_places_on_costs_no_rate() {
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
async fn a_place_held_for_long_causes_no_burst() {
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

/// Each call is estimated at 10 and uses 100. The rate holds for the units used.
#[tokio::test(start_paused = true)]
async fn use_beyond_the_estimate_delays_later_waiters() {
    let limiter = Limiter::new(1000, 10).unwrap();
    let start = Instant::now();
    for _ in 0..100 {
        limiter.acquire(10).await.unwrap();
        limiter.reconcile(100, 10).unwrap();
    }
    limiter.acquire(10).await.unwrap();
    assert_eq!(start.elapsed(), ms(10_000));
}

#[test]
fn a_debt_is_exact_and_units_given_back_pay_it_first() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(3, ms(1000)).burst(4).clock(timer.clone()).build().unwrap();
    limiter.reconcile(11, 0).unwrap(); // 4 there, 7 owed
    assert_eq!(limiter.time_until(1).unwrap(), Duration::from_nanos(2_666_666_667));
    let mut waiter = Box::pin(limiter.acquire(2));
    assert!(poll_once(&mut waiter).is_pending());
    limiter.reconcile(0, 5).unwrap();
    assert_eq!(timer.next(), Some(1_333_333_334), "2 owed and 2 asked for, 3 a second");
    limiter.set_rate(6, ms(1000)).unwrap();
    assert_eq!(timer.next(), Some(666_666_667));
    assert!(timer.to_next() && poll_once(&mut waiter).is_ready());
    timer.to(10_000_000_000);
    assert_eq!(limiter.available(), 4);
    limiter.reconcile(5, 0).unwrap();
    assert_eq!(
        limiter.try_acquire(1),
        Err(AcquireError::TooLong { cost: 1.into(), wait: Duration::from_nanos(333_333_334).into() })
    );
}

/// Without a lock or with it, the debt is the same.
#[test]
fn the_fast_path_respects_a_debt() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(5).clock(timer.clone()).build().unwrap();
    limiter.reconcile(8, 0).unwrap();
    for second in 1..4 {
        timer.to(second * 1_000_000_000);
        assert!(limiter.try_acquire(1).is_err(), "second {second}");
        assert_eq!(limiter.waiters(), 0); // takes the lock
    }
    timer.to(4_000_000_000);
    assert_eq!((limiter.available(), limiter.try_acquire(1).is_ok()), (1, true));
}

#[test]
fn a_debt_counts_in_a_window_and_in_whole_refills() {
    let timer = Arc::new(FakeTimer::default());
    let window = Limiter::builder().limit("5/1s,window".parse().unwrap()).clock(timer.clone()).build().unwrap();
    window.try_acquire(1).unwrap();
    timer.to(500_000_000);
    window.reconcile(21, 1).unwrap();
    assert_eq!(window.time_until(1).unwrap(), ms(1000), "all of it was used in this second");
    timer.to(1_500_000_000);
    assert_eq!(window.available(), 5);

    let timer = Arc::new(FakeTimer::default());
    let refills = Limiter::builder().rate(2, ms(100)).burst(2).refill(Refill::Grid);
    let refills = refills.clock(timer.clone()).build().unwrap();
    refills.reconcile(7, 0).unwrap(); // 2 there, 5 owed
    assert_eq!(refills.time_until(1).unwrap(), ms(300));
    assert_eq!(refills.time_until(2).unwrap(), ms(400));
}

#[test]
fn a_pause_grants_nothing_and_keeps_the_queue() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(10, ms(1000)).burst(5).clock(timer.clone()).build().unwrap();
    limiter.try_acquire(5).unwrap();
    let mut line: Vec<_> = (0..3).map(|_| Box::pin(limiter.acquire(1))).collect();
    assert!(line.iter_mut().all(|one| poll_once(one).is_pending()));
    let told = limiter.reserve(1).unwrap();
    limiter.pause_for(Duration::from_secs(2));
    limiter.pause_for(Duration::from_secs(1)); // does not end it
    assert_eq!(told.at(), ms(400), "a reservation is not moved");
    limiter.reconcile(0, 3).unwrap(); // nothing is saved up
    timer.to(1_999_999_999);
    assert!(line.iter_mut().all(|one| poll_once(one).is_pending()));
    assert_eq!((limiter.available(), limiter.waiters()), (0, 3));
    assert!(limiter.try_acquire(1).is_err());
    for (number, one) in line.iter_mut().enumerate() {
        assert_eq!(timer.next(), Some(2_000_000_000 + (number as u64 + 1) * 100_000_000));
        assert!(timer.to_next() && poll_once(one).is_ready());
    }
    timer.to(2_400_000_000);
    assert_eq!((limiter.waiters(), limiter.available()), (0, 0), "the reservation was charged behind them");
    timer.to(2_500_000_000);
    assert_eq!(limiter.available(), 1);
}

/// The reservation could not be charged before the end of the pause, because the first limit was in debt.
#[test]
fn a_reservation_in_a_pause_leaves_no_bucket_full() {
    let waits = [false, true].map(|reserves| {
        let timer = Arc::new(FakeTimer::default());
        let builder = Limiter::builder().limit("1/s,burst=1".parse().unwrap());
        let builder = builder.limit("60/h,burst=60".parse().unwrap()).clock(timer.clone());
        let limiter = builder.build().unwrap();
        limiter.try_acquire(1).unwrap();
        let _reservation = reserves.then(|| limiter.reserve(1).unwrap());
        limiter.pause_for(Duration::from_secs(5));
        limiter.reconcile(10, 0).unwrap();
        timer.to(5 * SECOND);
        limiter.time_until(1).unwrap()
    });
    assert_eq!(waits[0], Duration::from_secs(60), "the second limit is empty");
    assert!(waits[1] >= waits[0], "{waits:?}");
}

/// Law 2. The grant was made under limits that a window has replaced since.
#[test]
fn what_is_given_back_to_a_new_window_is_no_unit_of_others() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(1).clock(timer.clone()).build().unwrap();
    let window = |limit: &str| limiter.set_limits(&Limiter::builder().limit(limit.parse().unwrap())).unwrap();
    limiter.try_acquire(1).unwrap();
    let mut granted = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut granted).is_pending());
    timer.to(SECOND);
    window("1/60s,window");
    timer.to(2 * SECOND);
    limiter.try_acquire(1).unwrap();
    timer.to(3 * SECOND);
    drop(granted);
    assert!(limiter.try_acquire(1).is_err(), "a unit left at 2 s");
    // A unit of a longer window than before counts again, until it is given back.
    window("1/10s,window");
    timer.to(100 * SECOND);
    let granted = limiter.try_acquire_to_settle(1).unwrap();
    timer.to(111 * SECOND);
    window("1/60s,window");
    assert!(limiter.try_acquire(1).is_err());
    granted.settle(0).unwrap();
    assert!(limiter.try_acquire(1).is_ok() && limiter.try_acquire(1).is_err());
}

#[test]
fn after_a_pause_the_bucket_is_empty_despite_cancelled_waiters() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(10, ms(1000)).burst(5).clock(timer.clone()).build().unwrap();
    limiter.try_acquire(5).unwrap();
    let reservation = limiter.reserve(5).unwrap();
    limiter.pause_for(Duration::from_secs(3));
    reservation.cancel();
    timer.to(2_900_000_000);
    assert!(limiter.try_acquire(1).is_err());
    timer.to(3_090_000_000);
    assert!(limiter.try_acquire(1).is_err());
    timer.to(3_101_000_000);
    assert_eq!((limiter.try_acquire(1).is_ok(), limiter.try_acquire(1).is_ok()), (true, false));
}

#[test]
fn without_a_bucket_a_pause_holds_too() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().limit("5/1s,window".parse().unwrap()).clock(timer.clone()).build().unwrap();
    limiter.pause_for(Duration::from_secs(3));
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    assert_eq!((limiter.available(), timer.next()), (0, Some(3_000_000_000)));
    assert!(timer.to_next() && poll_once(&mut waiter).is_ready());
}

/// Even if units are always available, other tasks get their turns.
#[tokio::test]
async fn a_loop_of_ready_acquires_yields_to_other_tasks() {
    let limiter = Limiter::new(1_000_000_000, 1_000_000_000).unwrap();
    let semaphore = Semaphore::new(10, 1_000_000_000).unwrap();
    let refills = throttle_limits::leaky_bucket::RateLimiter::builder().max(100_000).initial(100_000).build();
    let turns = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let other = tokio::spawn({
        let turns = turns.clone();
        async move {
            loop {
                turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }
    });
    for kind in 0..3 {
        let before = turns.load(std::sync::atomic::Ordering::SeqCst);
        for _ in 0..10_000 {
            match kind {
                0 => limiter.acquire(1).await.unwrap(),
                1 => drop(semaphore.acquire().await.unwrap()),
                _ => refills.acquire_one().await,
            }
        }
        let turns = turns.load(std::sync::atomic::Ordering::SeqCst) - before;
        assert!(turns >= 50, "kind {kind}: the other task had {turns} turns");
    }
    other.abort();
}

#[tokio::test(start_paused = true)]
async fn yielding_keeps_the_place_and_costs_no_rate() {
    let limiter = Limiter::new(10_000, 100).unwrap();
    let start = Instant::now();
    for _ in 0..10_100 {
        limiter.acquire(1).await.unwrap();
    }
    assert!(start.elapsed() >= ms(999) && start.elapsed() <= ms(1002), "{:?}", start.elapsed());
}

/// Law 2: it waits until the rate has paid the excess, and the bucket is empty then. Half of it is there when limits change.
#[test]
fn a_waiter_above_the_burst_keeps_its_credit_at_a_change() {
    type Change = fn(&Limiter);
    let changes: [(Change, u64); 7] = [
        (|_| (), 90),
        (|limiter| limiter.set_burst(5).unwrap(), 90),
        (|limiter| limiter.set_burst(200).unwrap(), 90),
        (|limiter| limiter.set_rate(2, ms(1000)).unwrap(), 70),
        (|limiter| limiter.set_limits(&Limiter::builder().rate(1, ms(1000)).burst(5)).unwrap(), 90),
        (|limiter| limiter.set_limits(&Limiter::builder().rate(4, ms(1000)).burst(20)).unwrap(), 60),
        (|limiter| limiter.set_limits(&Limiter::builder().rate(1, ms(1000)).burst(200)).unwrap(), 90),
    ];
    for (number, (change, granted)) in changes.into_iter().enumerate() {
        let clock = FakeClock::default();
        let builder = Limiter::builder().rate(1, ms(1000)).burst(10).oversize(Oversize::Wait);
        let limiter = builder.clock(Arc::new(clock.clone())).build().unwrap();
        let mut waiter = Box::pin(limiter.acquire(100));
        assert!(poll_once(&mut waiter).is_pending());
        clock.advance(Duration::from_secs(50));
        change(&limiter);
        clock.set(Duration::from_nanos(granted * SECOND - 1));
        assert!(poll_once(&mut waiter).is_pending(), "change {number}");
        clock.advance(Duration::from_nanos(1));
        assert!(poll_once(&mut waiter).is_ready(), "change {number}");
        assert_eq!(limiter.available(), 0, "change {number}");
        assert!(limiter.time_until(1).unwrap() > ms(0), "change {number}: empty, not in debt");
    }
}

/// What it has gathered is for it alone: if it leaves, no more than a full bucket is there.
#[test]
fn a_waiter_above_the_burst_that_leaves_loses_its_credit() {
    let clock = FakeClock::default();
    let builder = Limiter::builder().rate(1, ms(1000)).burst(10).oversize(Oversize::Wait);
    let limiter = builder.clock(Arc::new(clock.clone())).build().unwrap();
    let mut waiter = Box::pin(limiter.acquire(100));
    assert!(poll_once(&mut waiter).is_pending());
    clock.advance(Duration::from_secs(50));
    limiter.set_burst(5).unwrap();
    drop(waiter);
    assert_eq!(limiter.available(), 5);
}

/// It waited for ever, and all behind it with it.
#[tokio::test(start_paused = true)]
async fn a_waiter_for_more_than_a_new_window_is_refused() {
    let limiter = Limiter::builder().limit("5/1s,window".parse().unwrap()).build().unwrap();
    limiter.try_acquire(5).unwrap();
    let (large, behind) = (limiter.clone(), limiter.clone());
    let large = tokio::spawn(async move { large.acquire(4).await });
    tokio::task::yield_now().await;
    let behind = tokio::spawn(async move { behind.acquire(1).await });
    tokio::task::yield_now().await;
    limiter.set_limits(&Limiter::builder().limit("3/1s,window".parse().unwrap())).unwrap();
    assert!(matches!(large.await.unwrap(), Err(AcquireError::Never { .. })));
    behind.await.unwrap().unwrap();
}

/// It was the time of the whole queue, though such a request passes it.
#[tokio::test(start_paused = true)]
async fn a_cost_of_nothing_waits_for_nobody() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    let waits = limiter.clone();
    let waits = tokio::spawn(async move { waits.acquire(1).await });
    tokio::task::yield_now().await;
    assert_eq!(limiter.time_until(0), Ok(Duration::ZERO));
    limiter.try_acquire(0).unwrap();
    waits.await.unwrap().unwrap();
}
