//! The limiter as a leaky bucket with a queue. The codes B1 to B11 are those of
//! `library/docs/requirements.md`.

use crate::limiters::{ms, poll_once};
use std::num::NonZeroUsize;
use std::time::Duration;
use throttle_limits::limiter::{AcquireError, BuildError, CapacityInfo, Limiter, OnFull, Units, UnitsError};
use tokio::task::JoinSet;
use tokio::time::Instant;

fn info(limiter: &Limiter, units: f64) -> (bool, f64) {
    let CapacityInfo { has_capacity, needed, .. } = limiter.capacity_info(units).unwrap();
    (has_capacity, needed)
}

/// How long each task waited, one after another in the queue.
async fn times(limiter: &Limiter, costs: &[u32]) -> Vec<Duration> {
    let start = Instant::now();
    let mut times = Vec::new();
    for &cost in costs {
        limiter.acquire(cost).await.unwrap();
        times.push(start.elapsed());
    }
    times
}

#[tokio::test(start_paused = true)]
async fn b1_a_burst_of_the_capacity_at_once() {
    let limiter = Limiter::leaky(10, 1).unwrap();
    let times = times(&limiter, &[1; 20]).await;
    let exact: Vec<_> = (0..20_u64).map(|k| ms(k.saturating_sub(9) * 100)).collect();
    assert_eq!(times, exact);
}

#[test]
fn b1_nonsense_is_refused() {
    assert_eq!(Limiter::leaky(10, 0).unwrap_err(), BuildError::ZeroPeriod);
    assert_eq!(Limiter::leaky(10, -1.0).unwrap_err(), UnitsError::Negative.into());
    assert_eq!(Limiter::leaky(0.5, 1).unwrap_err(), BuildError::CapacityBelowOne);
    assert_eq!(Limiter::leaky(0, 1).unwrap_err(), BuildError::CapacityBelowOne);
    assert!(Limiter::leaky(1, 0.001).is_ok());
}

#[tokio::test(start_paused = true)]
async fn b2_capacity_info_says_how_much_is_missing_or_to_spare() {
    let limiter = Limiter::leaky(2, 1).unwrap();
    assert_eq!(info(&limiter, 3.0), (false, 1.0));
    assert_eq!(info(&limiter, 2.0), (true, 0.0));
    assert_eq!(info(&limiter, 1.0), (true, -1.0));
    limiter.acquire(2).await.unwrap();
    assert_eq!(info(&limiter, 1.0), (false, 1.0));
    tokio::time::advance(ms(250)).await;
    assert_eq!(info(&limiter, 1.0), (false, 0.5));
}

#[tokio::test(start_paused = true)]
async fn capacity_info_counts_debt_as_missing() {
    let limiter = Limiter::new(1000, 1000).unwrap();
    limiter.reconcile(3000, 0).unwrap();
    assert_eq!(info(&limiter, 1.0), (false, 2001.0));
    tokio::time::advance(ms(500)).await;
    assert_eq!(info(&limiter, 1.0), (false, 1501.0));
    limiter.pause_for(ms(1000));
    assert_eq!(info(&limiter, 1.0), (false, 501.0), "what is owed after the pause");
    tokio::time::advance(ms(2000)).await;
    assert_eq!(info(&limiter, 1.0), (true, -499.0));
}

/// During the pause the bucket pays its debt at the rate of that time.
#[tokio::test(start_paused = true)]
async fn a_debt_is_paid_at_the_new_rate_during_a_pause() {
    for (owed, changes, wait) in [
        (1000, &[(0, 1)][..], 1000),
        (500, &[(0, 1)], 500),
        (500, &[(400, 1)], 101),
        (500, &[(600, 1)], 1),
        (500, &[(200, 100), (500, 1)], 271),
    ] {
        let limiter = Limiter::new(1000, 1).unwrap();
        limiter.reconcile(owed + 1, 0).unwrap();
        limiter.pause_for(ms(1000));
        let start = Instant::now();
        for (at, rate) in changes {
            tokio::time::advance((start + ms(*at)).duration_since(Instant::now())).await;
            limiter.set_rate(*rate, ms(1000)).unwrap();
        }
        tokio::time::advance((start + ms(1000)).duration_since(Instant::now())).await;
        let left = limiter.time_until(1).unwrap();
        assert_eq!(left.as_millis().div_ceil(1000), wait, "{owed} {changes:?}: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b3_amounts_may_be_fractions_and_must_be_amounts() {
    let limiter = Limiter::leaky(2, 1).unwrap();
    let start = Instant::now();
    for _ in 0..10 {
        limiter.acquire(0.25).await.unwrap();
    }
    assert_eq!(start.elapsed(), ms(250));
    limiter.acquire(0).await.unwrap();
    assert_eq!(limiter.acquire(-0.5).await, Err(UnitsError::Negative.into()));
    assert_eq!(limiter.acquire(f64::NAN).await, Err(UnitsError::NotFinite.into()));
    let error = limiter.acquire(2.5).await.unwrap_err();
    assert_eq!(error, AcquireError::AboveBurst { cost: Units::from(2.5), burst: Units::from(2) });
    assert!(error.to_string().contains("capacity of 2"));
    assert_eq!(start.elapsed(), ms(250));
}

#[test]
fn b4_a_thread_that_would_wait_too_long_is_refused_at_once() {
    let limiter = Limiter::leaky(1, 10).unwrap();
    limiter.acquire(1).timeout(Duration::ZERO).block().unwrap();
    for limit in [Duration::ZERO, ms(5000)] {
        let refused = limiter.acquire(1).timeout(limit).block();
        assert!(matches!(refused, Err(AcquireError::TooLong { wait, .. }) if wait > ms(5000)), "{refused:?}");
    }
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn b4_a_threads_timeout_covers_the_time_in_the_queue() {
    // A thread that is held up for long may find its unit there, and does not wait. That shows nothing.
    for _ in 0..100 {
        let limiter = Limiter::leaky(1, 0.1).unwrap();
        limiter.try_acquire(1).unwrap();
        let result = std::thread::scope(|scope| {
            let waits = scope.spawn(|| limiter.acquire(1).timeout(ms(200)).block());
            while limiter.waiters() == 0 && !waits.is_finished() {
                std::thread::yield_now();
            }
            // The rate is slower now than at the request, so the deadline will pass.
            limiter.set_rate(1, Duration::from_secs(1000)).unwrap();
            waits.join().unwrap()
        });
        if let Err(error) = result {
            assert!(matches!(error, AcquireError::TimedOut { after, .. } if after <= ms(200)), "{error:?}");
            return;
        }
    }
    panic!("it never waited, or its deadline never passed");
}

#[tokio::test(start_paused = true)]
async fn b4_a_timeout_covers_the_time_in_the_queue_and_takes_nothing() {
    let limiter = Limiter::leaky(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut first = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut first).is_pending());
    let mut second = Box::pin(limiter.acquire(1).timeout(ms(2500)));
    assert!(poll_once(&mut second).is_pending());
    // The rate is slower now than at the request, so the deadline will pass.
    limiter.set_rate(1, ms(2000)).unwrap();
    let error = second.await.unwrap_err();
    assert_eq!(error, AcquireError::TimedOut { cost: Units::from(1), after: ms(2500) });
    assert_eq!(error.to_string(), "timed out after 2.5s waiting for 1");
    assert_eq!(start.elapsed(), ms(2500));
    first.await.unwrap();
    limiter.acquire(1).await.unwrap();
    assert_eq!(start.elapsed(), ms(4000), "the waiter that timed out took nothing");
    // It is still behind another waiter when its time is over.
    let mut first = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut first).is_pending());
    let second = limiter.acquire(1).timeout(ms(5000));
    let start = Instant::now();
    let mut second = Box::pin(second);
    assert!(poll_once(&mut second).is_pending());
    limiter.set_rate(1, ms(3_600_000)).unwrap();
    assert_eq!(second.await, Err(AcquireError::TimedOut { cost: Units::from(1), after: ms(5000) }));
    assert_eq!(start.elapsed(), ms(5000));
    assert!(poll_once(&mut first).is_pending());
}

#[tokio::test(start_paused = true)]
async fn b5_a_large_request_holds_up_those_behind_it() {
    let limiter = Limiter::leaky(10, 10).unwrap();
    limiter.acquire(9).await.unwrap();
    let start = Instant::now();
    let mut large = Box::pin(limiter.acquire(10));
    assert!(poll_once(&mut large).is_pending());
    limiter.acquire(1).await.unwrap();
    assert_eq!(start.elapsed(), ms(10_000));
    assert!(poll_once(&mut large).is_ready());
}

#[tokio::test(start_paused = true)]
async fn b6_a_full_queue_refuses_or_lets_wait_as_chosen() {
    for (on_full, refused) in [(OnFull::Fail, 3), (OnFull::Wait, 0)] {
        let limiter = Limiter::builder().rate(1, ms(1000)).max_waiters(NonZeroUsize::new(2), on_full).build().unwrap();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..6 {
            let limiter = limiter.clone();
            tasks.spawn(async move { (number, limiter.acquire(1).await, start.elapsed()) });
        }
        let mut results = tasks.join_all().await;
        results.sort_by_key(|(number, ..)| *number);
        assert_eq!(results.iter().filter(|(_, result, _)| *result == Err(AcquireError::Full)).count(), refused);
        for (number, result, time) in results {
            let expected = if result.is_ok() { ms(1000 * number) } else { ms(0) };
            assert_eq!(time, expected, "{number}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b6_without_a_bound_any_number_may_wait() {
    let limiter = Limiter::builder().rate(1, ms(1000)).max_waiters(None, OnFull::Fail).build().unwrap();
    limiter.acquire(1).await.unwrap();
    let mut line: Vec<_> = (0..100).map(|_| Box::pin(limiter.acquire(1))).collect();
    assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_pending()));
}

#[tokio::test(start_paused = true)]
async fn b7_closing_serves_waiters_and_refuses_new_requests() {
    let limiter = Limiter::leaky(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    let mut unpolled = Box::pin(limiter.acquire(1));
    limiter.close();
    limiter.close();
    assert!(limiter.is_closed());
    assert!(poll_once(&mut unpolled).is_ready());
    assert_eq!(limiter.try_acquire(1), Err(AcquireError::Closed));
    assert_eq!(limiter.acquire(1).block(), Err(AcquireError::Closed));
    assert_eq!(limiter.reserve(1).unwrap_err(), AcquireError::Closed);
    waiter.await.unwrap();
    assert_eq!(start.elapsed(), ms(1000));
    assert_eq!(limiter.acquire(1).await, Err(AcquireError::Closed));
    let unused = Limiter::leaky(1, 1).unwrap();
    unused.close();
    assert_eq!(unused.acquire(1).await, Err(AcquireError::Closed));
}

/// Threads of this process.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[cfg(target_os = "linux")]
#[test]
fn b7_no_thread_runs_behind_a_limiter() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // Other tests start and end threads at the same time, so this compares with their number.
    let most = std::thread::available_parallelism().map_or(64, usize::from).max(64) + 2;
    runtime.block_on(async {
        let limiters: Vec<_> = (0..500).map(|_| Limiter::leaky(1, 1).unwrap()).collect();
        for limiter in &limiters {
            limiter.acquire(1).await.unwrap();
            let mut waiter = Box::pin(limiter.acquire(1));
            assert!(poll_once(&mut waiter).is_pending());
            assert!(threads() <= most, "{} threads", threads());
            waiter.await.unwrap();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn b8_cancelling_one_waiter_affects_no_other() {
    let limiter = Limiter::leaky(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut line: Vec<_> = (0..5).map(|_| Some(Box::pin(limiter.acquire(1)))).collect();
    for waiter in line.iter_mut().flatten() {
        assert!(poll_once(waiter).is_pending());
    }
    drop(line[2].take());
    drop(line[0].take());
    let mut done = Vec::new();
    for waiter in line.into_iter().flatten() {
        waiter.await.unwrap();
        done.push(start.elapsed());
    }
    assert_eq!(done, [ms(1000), ms(2000), ms(3000)]);
}

#[tokio::test(start_paused = true)]
async fn b9_reconcile_pays_and_owes_or_gives_back_up_to_full() {
    let limiter = Limiter::leaky(10, 10).unwrap();
    limiter.acquire(4).await.unwrap();
    limiter.reconcile(6, 4).unwrap();
    assert_eq!(limiter.available(), 4);
    limiter.reconcile(1, 4).unwrap();
    assert_eq!(limiter.available(), 7);
    limiter.reconcile(100, 1).unwrap();
    assert_eq!(limiter.available(), 0, "92 are owed");
    tokio::time::advance(ms(1000)).await;
    assert_eq!(limiter.available(), 0, "91 are owed");
    limiter.reconcile(0, 100).unwrap();
    assert_eq!(limiter.available(), 9);
    limiter.reconcile(0, 100).unwrap();
    assert_eq!(limiter.available(), 10, "never above full");
    limiter.acquire(10).await.unwrap();
    let start = Instant::now();
    let mut waiter = Box::pin(limiter.acquire(5));
    assert!(poll_once(&mut waiter).is_pending());
    limiter.reconcile(0, 3).unwrap();
    waiter.await.unwrap();
    assert_eq!(start.elapsed(), ms(2000), "waiters are re-timed");
}

#[tokio::test(start_paused = true)]
async fn b9_reconcile_settles_windows_and_several_limits() {
    let window = Limiter::builder().limit("10/10s,window".parse().unwrap()).build().unwrap();
    let start = Instant::now();
    window.acquire(4).await.unwrap();
    window.reconcile(6, 4).unwrap();
    assert_eq!(window.available(), 4, "paid");
    window.reconcile(1, 4).unwrap();
    assert_eq!(window.available(), 7, "given back");
    window.reconcile(100, 1).unwrap();
    assert_eq!(window.available(), 0, "102 count");
    assert_eq!(window.time_until(1), Ok(ms(10_000)), "what was paid counts for a whole period");
    let mut waiter = Box::pin(window.acquire(2));
    assert!(poll_once(&mut waiter).is_pending());
    window.reconcile(0, 200).unwrap();
    waiter.await.unwrap();
    assert_eq!((start.elapsed(), window.available()), (ms(0), 8), "never above full");
    tokio::time::advance(ms(10_000)).await;
    window.acquire(5).await.unwrap();
    tokio::time::advance(ms(9000)).await;
    window.acquire(5).await.unwrap();
    window.reconcile(1, 5).unwrap();
    assert_eq!(window.available(), 4, "of the first, or of the second: it cannot be told");
    tokio::time::advance(ms(1000)).await;
    assert_eq!(window.available(), 5, "so the second counts whole, or more than ten went within ten seconds");
    let both = || Limiter::builder().rate(1, ms(1000)).burst(5).limit("8/10s".parse().unwrap()).build().unwrap();
    let limiter = both();
    limiter.acquire(3).await.unwrap();
    limiter.reconcile(5, 3).unwrap();
    assert_eq!(limiter.available(), 0, "five of the bucket");
    tokio::time::advance(ms(5000)).await;
    assert_eq!(limiter.available(), 3, "five of the window's eight");
    let limiter = both();
    limiter.acquire(5).await.unwrap();
    limiter.reconcile(1, 5).unwrap();
    assert_eq!(limiter.available(), 4, "of the bucket");
    tokio::time::advance(ms(1000)).await;
    limiter.acquire(5).await.unwrap();
    tokio::time::advance(ms(5000)).await;
    assert_eq!(limiter.available(), 2, "two of the window's eight: one was used, and five");
}

#[tokio::test(start_paused = true)]
async fn b10_two_per_fifth_of_a_second() {
    let limiter = || Limiter::leaky(2, 0.2).unwrap();
    let at = |tenths: &[u64]| tenths.iter().map(|tenths| ms(tenths * 100)).collect::<Vec<_>>();
    assert_eq!(times(&limiter(), &[1; 3]).await, at(&[0, 0, 1]));
    assert_eq!(times(&limiter(), &[1; 6]).await, at(&[0, 0, 1, 2, 3, 4]));
    assert_eq!(times(&limiter(), &[1, 2, 1, 2, 1, 2]).await, at(&[0, 1, 2, 4, 5, 7]));
    let limiter = limiter();
    times(&limiter, &[1, 1]).await;
    assert!(limiter.acquire(1).timeout(ms(1)).await.is_err());
    assert_eq!(limiter.acquire(1).timeout(ms(200)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn b11_two_per_two_seconds_with_timeouts() {
    let limiter = Limiter::leaky(2, 2).unwrap();
    for (amount, timeout, ok) in
        [(2, 1000, true), (2, 1000, false), (1, 1500, true), (2, 2000, true), (2, 500, false), (1, 2000, true)]
    {
        assert_eq!(limiter.acquire(amount).timeout(ms(timeout)).await.is_ok(), ok, "{amount} {timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn refills_on_a_grid_arrive_whole() {
    use throttle_limits::limiter::{Oversize, Refill};
    let builder = Limiter::builder().rate(2, ms(100)).burst(4).initial(0).refill(Refill::Grid);
    let limiter = builder.oversize(Oversize::Wait).build().unwrap();
    tokio::time::advance(ms(30)).await;
    let start = Instant::now();
    let mut times = Vec::new();
    for cost in [1, 1, 1, 5] {
        limiter.acquire(cost).await.unwrap();
        times.push(start.elapsed());
    }
    assert_eq!(times, [ms(70), ms(70), ms(170), ms(370)]);
}

#[tokio::test(start_paused = true)]
async fn several_limits_and_windows_are_kept_at_once() {
    let builder = Limiter::builder().rate(5, ms(1000)).burst(1).limit("7/4s,window".parse().unwrap());
    let limiter = builder.build().unwrap();
    let exact = [0, 200, 400, 600, 800, 1000, 1200, 4000, 4200].map(ms);
    assert_eq!(times(&limiter, &[1; 9]).await, exact);
    assert_eq!(
        limiter.acquire(8).await.unwrap_err().to_string().split(';').next(),
        Some("8 is more than the capacity of 1")
    );
    let written = Limiter::builder().limit("5/s".parse().unwrap()).limit("7/4s".parse().unwrap()).build().unwrap();
    assert_eq!(times(&written, &[1; 9]).await, exact, "as the program reads them");
}
