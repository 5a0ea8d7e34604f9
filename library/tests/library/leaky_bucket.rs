//! The names and the behaviour of leaky-bucket 1.1.2. The codes D1 to D11 are those of
//! `library/docs/requirements.md`.

use crate::limiters::{Count, ms, poll_once};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;
use throttle_limits::leaky_bucket::{Acquire, AcquireOwned, Builder, RateLimiter};
use tokio::task::JoinSet;
use tokio::time::Instant;

const MOST: usize = isize::MAX.unsigned_abs();

fn limiter(refill: usize, interval: u64) -> RateLimiter {
    RateLimiter::builder().refill(refill).interval(ms(interval)).build()
}

#[test]
fn d1_defaults_and_clamps() {
    let limiter = Builder::default().build();
    assert_eq!((limiter.max(), limiter.refill(), limiter.interval()), (10, 1, ms(100)));
    assert!(limiter.is_fair());
    assert_eq!(limiter.balance(), 0);
    assert_eq!(RateLimiter::builder().refill(7).build().max(), 70);
    assert_eq!(RateLimiter::builder().refill(7).initial(9).build().max(), 90);
    assert_eq!(RateLimiter::builder().max(usize::MAX).build().max(), MOST);
    assert_eq!(RateLimiter::builder().refill(usize::MAX).build().max(), MOST);
    let mut builder = RateLimiter::builder();
    builder.max(3).initial(5);
    assert_eq!(builder.build().balance(), 3);
    assert_eq!(builder.build().balance(), 3, "a builder builds more than once");
    assert!(!builder.fair(false).build().is_fair());
}

#[test]
#[should_panic(expected = "refill amount cannot be zero")]
fn d1_a_refill_of_0_panics() {
    RateLimiter::builder().refill(0);
}

#[test]
#[should_panic(expected = "interval must be non-zero")]
fn d1_an_interval_of_0_panics() {
    RateLimiter::builder().interval(Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn d2_getters_and_debug_and_threads() {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<RateLimiter>();
    send_and_sync::<Acquire<'_>>();
    send_and_sync::<AcquireOwned>();
    let limiter = RateLimiter::builder().initial(5).max(8).build();
    assert!(format!("{limiter:?}").starts_with("RateLimiter {"));
    assert_eq!((limiter.refill(), limiter.max(), limiter.interval(), limiter.is_fair()), (1, 8, ms(100), true));
    let other = RateLimiter::builder().interval(Duration::from_micros(1900)).fair(false).build();
    assert_eq!((other.interval(), other.is_fair()), (Duration::from_micros(1900), false));
    limiter.acquire(2).await;
    assert_eq!(limiter.balance(), 3);
    tokio::time::advance(ms(100)).await;
    assert_eq!(limiter.balance(), 4);
}

#[tokio::test(start_paused = true)]
async fn d2_the_balance_is_what_can_be_taken_without_waiting() {
    for fair in [true, false] {
        let limiter = RateLimiter::builder().initial(5).fair(fair).build();
        assert_eq!(limiter.balance(), 5);
        let mut waiting = Box::pin(limiter.acquire(6));
        assert!(poll_once(&mut waiting).is_pending());
        assert_eq!((limiter.balance(), limiter.try_acquire(1)), (0, false), "a waiter accrues credit, fair or not");
        drop(waiting);
        assert_eq!((limiter.balance(), limiter.try_acquire(5)), (5, true));
    }
}

#[tokio::test(start_paused = true)]
async fn d3_a_cost_of_0_never_suspends_and_a_done_future_stays_ready() {
    let limiter = Arc::new(limiter(1, 100));
    let mut waiting = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiting).is_pending());
    let mut nothing = Box::pin(limiter.acquire(0));
    assert!(poll_once(&mut nothing).is_ready());
    assert!(poll_once(&mut nothing).is_ready());
    assert!(limiter.try_acquire(0));
    assert!(!limiter.try_acquire(1));
    let mut owned = Box::pin(Arc::clone(&limiter).acquire_owned(1));
    assert!(poll_once(&mut owned).is_pending());
    assert!(waiting.is_core() && !owned.is_core());
    waiting.as_mut().await;
    assert!(!waiting.is_core() && owned.is_core());
    owned.as_mut().await;
    assert!(!owned.is_core());
    assert!(poll_once(&mut owned).is_ready());
}

#[tokio::test(start_paused = true)]
async fn d4_no_task_runs_behind_it() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let limiter = limiter(1, 100);
    limiter.acquire_one().await;
    let mut waiting = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiting).is_pending());
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn d4_a_dropped_future_releases_at_most_max() {
    let limiter = RateLimiter::builder().refill(10).max(30).interval(ms(100)).build();
    let start = Instant::now();
    let mut giant = Box::pin(limiter.acquire(100));
    assert!(poll_once(&mut giant).is_pending());
    tokio::time::sleep(ms(750)).await;
    assert_eq!(limiter.balance(), 0);
    drop(giant);
    assert_eq!(limiter.balance(), 30);
    limiter.acquire(100).await;
    assert_eq!(start.elapsed(), ms(1400), "30 at once and seven refills");
}

#[tokio::test(start_paused = true)]
async fn d5_the_grid_begins_at_the_build_and_try_is_capped() {
    let limiter = RateLimiter::builder().refill(3).max(5).interval(ms(100)).build();
    tokio::time::advance(ms(99)).await;
    assert!(!limiter.try_acquire(1));
    tokio::time::advance(ms(1)).await;
    assert!(limiter.try_acquire(3));
    tokio::time::advance(Duration::from_secs(60).checked_sub(ms(1)).unwrap()).await;
    assert_eq!(limiter.balance(), 5);
    assert!(!limiter.try_acquire(6));
    assert!(limiter.try_acquire(5));
    let start = Instant::now();
    limiter.acquire(1).await;
    assert_eq!(start.elapsed(), ms(1));
}

#[tokio::test(start_paused = true)]
async fn d5_a_bucket_of_max_0_still_serves_waiters() {
    let limiter = RateLimiter::builder().refill(3).max(0).interval(ms(100)).build();
    let start = Instant::now();
    limiter.acquire(1).await;
    assert_eq!(start.elapsed(), ms(100));
    limiter.acquire(7).await;
    assert_eq!(start.elapsed(), ms(400));
}

/// In any time t at most max + refill · (⌊t / interval⌋ + 1).
#[tokio::test(start_paused = true)]
async fn d5_the_rest_of_a_refill_is_kept_up_to_max() {
    let limiter = RateLimiter::builder().refill(100).max(5).interval(ms(100)).build();
    limiter.acquire(1).await;
    assert_eq!(limiter.balance(), 5);
    limiter.acquire(98).await;
    assert_eq!(limiter.balance(), 5);
}

#[tokio::test(start_paused = true)]
async fn d6_whole_schedules() {
    let start = Instant::now();
    let ten = limiter(1, 100);
    for k in 1..=10 {
        ten.acquire_one().await;
        assert_eq!(start.elapsed(), ms(k * 100));
    }
    let start = Instant::now();
    let two = limiter(1, 2000);
    for k in 1..=2 {
        two.acquire_one().await;
        assert_eq!(start.elapsed(), ms(k * 2000));
    }
}

#[tokio::test(start_paused = true)]
async fn d6_the_largest_numbers() {
    let limiter = limiter(usize::MAX, 100);
    let start = Instant::now();
    limiter.acquire(usize::MAX).await;
    limiter.acquire(MOST - 1).await;
    assert_eq!(start.elapsed(), ms(300));
    limiter.acquire(1).await;
    assert_eq!(start.elapsed(), ms(400));
}

#[tokio::test(start_paused = true)]
async fn d7_idle_time_saves_up_and_the_grid_stays() {
    let build = || RateLimiter::builder().refill(1).interval(ms(2000)).max(5).initial(5).build();
    let limiter = build();
    tokio::time::sleep(ms(10_000)).await;
    let start = Instant::now();
    for _ in 0..5 {
        limiter.acquire_one().await;
    }
    assert_eq!(start.elapsed(), ms(0));
    for _ in 0..5 {
        limiter.acquire_one().await;
    }
    assert_eq!(start.elapsed(), ms(10_000));
    let limiter = build();
    limiter.acquire_one().await;
    tokio::time::sleep(ms(3900)).await;
    limiter.acquire_one().await;
    let start = Instant::now();
    for _ in 0..5 {
        limiter.acquire_one().await;
    }
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn d7_five_at_once_then_one_each_interval() {
    for together in [false, true] {
        let limiter = RateLimiter::builder().initial(5).max(5).interval(ms(100)).build();
        let start = Instant::now();
        for _ in 0..if together { 1 } else { 10 } {
            limiter.acquire(if together { 10 } else { 1 }).await;
        }
        assert_eq!(start.elapsed(), ms(500));
    }
}

#[tokio::test(start_paused = true)]
async fn d8_a_hundred_tasks_share_it() {
    let limiter = Arc::new(limiter(100, 200));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            for _ in 0..10 {
                limiter.acquire_one().await;
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(start.elapsed(), ms(2000));
}

#[tokio::test(start_paused = true)]
async fn d8_ten_tasks_of_ten_tens_all_complete() {
    let limiter = Arc::new(limiter(100, 50));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            for _ in 0..10 {
                Arc::clone(&limiter).acquire_owned(10).await;
            }
        });
    }
    assert_eq!(tasks.join_all().await.len(), 10);
    assert_eq!(start.elapsed(), ms(500));
}

#[tokio::test(start_paused = true)]
async fn d9_a_cancelled_large_waiter_frees_those_behind_it() {
    let limiter = RateLimiter::builder().refill(10).max(100).interval(ms(100)).build();
    let mut giant = Box::pin(limiter.acquire(10_000));
    assert!(poll_once(&mut giant).is_pending());
    let mut behind: Vec<_> = (0..10).map(|_| Box::pin(limiter.acquire(10))).collect();
    for waiter in &mut behind {
        assert!(poll_once(waiter).is_pending());
    }
    tokio::time::sleep(ms(1000)).await;
    for waiter in &mut behind {
        assert!(poll_once(waiter).is_pending());
    }
    let start = Instant::now();
    drop(giant);
    for waiter in behind {
        waiter.await;
    }
    assert!(start.elapsed() <= ms(10));
}

#[tokio::test(start_paused = true)]
async fn d10_only_polled_waiters_come_before_a_try() {
    let limiter = RateLimiter::builder().initial(5).max(10).build();
    let unpolled = limiter.acquire(2);
    let mut waiting = Box::pin(limiter.acquire(6));
    assert_eq!(limiter.balance(), 5);
    assert!(limiter.try_acquire(1));
    drop(unpolled);
    assert!(poll_once(&mut waiting).is_pending());
    assert!(!limiter.try_acquire(1));
    drop(waiting);
    assert!(limiter.try_acquire(4));
}

/// The same calls on the crate and here: fair or not, tries do not starve a waiter.
#[tokio::test(start_paused = true)]
async fn d10_tries_do_not_starve_an_unfair_waiter() {
    macro_rules! tried_every_10_ms {
        ($limiter:expr) => {{
            let limiter = Arc::new($limiter.initial(2).fair(false).build());
            let start = Instant::now();
            let waiter = tokio::spawn(Arc::clone(&limiter).acquire_owned(5));
            tokio::task::yield_now().await;
            let mut stolen = 0;
            while !waiter.is_finished() && start.elapsed() < ms(5000) {
                stolen += usize::from(limiter.try_acquire(1));
                tokio::time::sleep(ms(10)).await;
            }
            (start.elapsed(), stolen)
        }};
    }
    let theirs = tried_every_10_ms!(leaky_bucket::RateLimiter::builder());
    let (elapsed, stolen) = tried_every_10_ms!(RateLimiter::builder());
    assert_eq!((theirs.1, stolen), (0, 0));
    // Polled every 10 ms; the crate's task is woken once more before it is done.
    assert!(theirs.0 <= ms(310) && elapsed <= ms(310), "{theirs:?} {elapsed:?}");
}

/// Spawns one task for each of `costs` and collects when each is done, in milliseconds.
macro_rules! done_at {
    ($limiter:expr, $costs:expr) => {{
        let limiter = Arc::new($limiter);
        let start = Instant::now();
        let mut tasks = Vec::new();
        for cost in $costs {
            let limiter = Arc::clone(&limiter);
            tasks.push(tokio::spawn(async move {
                limiter.acquire_owned(cost).await;
                start.elapsed().as_millis()
            }));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.unwrap());
        }
        times
    }};
}

/// The one deliberate difference with `fair(false)`. The crate serves the task that holds its timer (here the cost of
/// 3) after all others, so it waits for ever if new ones keep coming. Here all are served in order of arrival, as law 4
/// requires. At every refill the same number of units has been granted, or waits with the first waiter, in both.
#[tokio::test(start_paused = true)]
async fn d8_unfair_waiters_are_served_in_order_with_the_same_total() {
    let costs = [1, 3, 2, 5, 1, 0, 7];
    let theirs = leaky_bucket::RateLimiter::builder().refill(2).initial(3).fair(false).build();
    assert_eq!(done_at!(theirs, costs), [0, 800, 100, 400, 400, 0, 800]);
    for fair in [false, true] {
        let ours = RateLimiter::builder().refill(2).initial(3).fair(fair).build();
        assert_eq!(done_at!(ours, costs), [0, 100, 200, 400, 500, 0, 800], "fair: {fair}");
    }
    let theirs = leaky_bucket::RateLimiter::builder().refill(2).initial(3).build();
    assert_eq!(
        done_at!(theirs, costs),
        [0, 100, 200, 400, 500, 0, 800],
        "which is what the crate does, too, where fair"
    );
}

/// This once panicked, because the time is more than 584 years ahead. The crate waits.
#[tokio::test(start_paused = true)]
async fn d4_the_largest_cost_waits_like_any_other() {
    for fair in [true, false] {
        let limiter = RateLimiter::builder().fair(fair).build();
        let mut giant = Box::pin(limiter.acquire(usize::MAX));
        assert!(tokio::time::timeout(ms(10_050), &mut giant).await.is_err());
        let mut behind = Box::pin(limiter.acquire(11));
        assert!(poll_once(&mut behind).is_pending());
        assert_eq!((limiter.balance(), limiter.try_acquire(1)), (0, false));
        let start = Instant::now();
        drop(giant);
        behind.await;
        assert_eq!(start.elapsed(), ms(50), "ten it left, and one at the next refill");
    }
}

#[test]
fn d11_unfair_trying_never_wedges() {
    let limiter = RateLimiter::builder().refill(1000).interval(ms(1)).max(100_000).fair(false).build();
    let granted: usize = std::thread::scope(|scope| {
        let tries = || (0..1_000_000).filter(|_| limiter.try_acquire(1)).count();
        let threads = [scope.spawn(tries), scope.spawn(tries)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(granted > 0);
    std::thread::sleep(ms(20));
    assert!(limiter.try_acquire(1));
}

#[tokio::test(start_paused = true)]
async fn d11_acquires_in_one_task_do_not_freeze_each_other() {
    let limiter = limiter(1, 100);
    let start = Instant::now();
    // The first is polled once and never again; the others must still be served.
    let mut left_alone = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut left_alone).is_pending());
    tokio::join!(limiter.acquire(1), limiter.acquire(1), limiter.acquire(1));
    assert_eq!(start.elapsed(), ms(400));
    assert!(poll_once(&mut left_alone).is_ready());
}

#[tokio::test(start_paused = true)]
async fn d11_a_core_that_is_no_longer_polled_wakes_the_next() {
    let limiter = limiter(1, 100);
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut first = Box::pin(limiter.acquire(1));
    let mut second = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut first).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    tokio::time::sleep(ms(250)).await;
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll_once(&mut second).is_ready());
}

#[tokio::test(start_paused = true)]
async fn d11_fractions_of_a_millisecond_count() {
    let limiter = RateLimiter::builder().interval(Duration::from_micros(1900)).build();
    let start = Instant::now();
    for _ in 0..1000 {
        limiter.acquire_one().await;
    }
    assert_eq!(start.elapsed(), ms(1900));
}

#[tokio::test(start_paused = true)]
async fn d11_late_wake_ups_lose_no_refill() {
    let limiter = Arc::new(RateLimiter::builder().interval(ms(1)).max(1).build());
    let start = Instant::now();
    let consumer = tokio::spawn(async move {
        for _ in 0..1000 {
            limiter.acquire_one().await;
        }
    });
    while !consumer.is_finished() {
        // Waiters are polled only every 2.7 ms.
        tokio::time::advance(Duration::from_micros(2700)).await;
        tokio::task::yield_now().await;
    }
    assert!(start.elapsed() >= ms(1000) && start.elapsed() < ms(1010), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn d11_the_balance_is_current() {
    let limiter = RateLimiter::builder().refill(2).interval(ms(10)).build();
    tokio::time::advance(ms(35)).await;
    assert_eq!(limiter.balance(), 6);
}

/// The rest of a refill goes to the next waiter even if the bucket keeps nothing: 20 units are 4 refills of 5.
#[tokio::test(start_paused = true)]
async fn d5_waiters_share_a_refill_whatever_max_is() {
    let limiter = RateLimiter::builder().max(0).initial(0).refill(5).build();
    let start = Instant::now();
    let (a, b, c) = (limiter.acquire(7), limiter.acquire(3), limiter.acquire(10));
    tokio::join!(a, b, c);
    assert_eq!(start.elapsed(), ms(400));
    let waits = limiter.acquire(3);
    waits.await;
    assert!(!limiter.try_acquire(1), "without a waiter the rest is lost");
    assert_eq!(start.elapsed(), ms(500));
}
