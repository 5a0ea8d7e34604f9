//! The limiter as a token bucket. The codes A1 to A14 are those of
//! `library/docs/requirements.md`.

use crate::limiters::{Count, FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;
use throttle_limits::Semaphore;
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::{AcquireError, BuildError, Limiter, Oversize, Units, UnitsError};
use tokio::task::JoinSet;
use tokio::time::Instant;

fn wait_of(error: AcquireError) -> Duration {
    match error {
        AcquireError::TooLong { wait, .. } => wait.duration(),
        error => panic!("expected a refusal with a wait, got {error}"),
    }
}

/// Spawns one task for each cost, in this order, and collects when each was granted.
async fn grants(limiter: &Limiter, costs: impl IntoIterator<Item = f64>) -> Vec<Duration> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, cost) in costs.into_iter().enumerate() {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            limiter.acquire(cost).await.unwrap();
            (number, start.elapsed())
        });
        tokio::task::yield_now().await;
    }
    let mut times = tasks.join_all().await;
    times.sort_unstable();
    times.into_iter().map(|(_, time)| time).collect()
}

#[test]
fn a1_rate_and_capacity_must_be_above_0_and_finite() {
    for (rate, capacity, expected) in [
        (0.0, 1.0, BuildError::ZeroRate),
        (-1.0, 1.0, UnitsError::Negative.into()),
        (f64::NAN, 1.0, UnitsError::NotFinite.into()),
        (f64::INFINITY, 1.0, UnitsError::NotFinite.into()),
        (1.0, 0.0, BuildError::ZeroBurst),
        (1.0, -1.0, UnitsError::Negative.into()),
        (1.0, f64::NAN, UnitsError::NotFinite.into()),
        (1.0, f64::NEG_INFINITY, UnitsError::NotFinite.into()),
        (1e30, 1.0, UnitsError::TooLarge.into()),
    ] {
        assert_eq!(Limiter::new(rate, capacity).unwrap_err(), expected, "{rate} {capacity}");
    }
}

#[tokio::test(start_paused = true)]
async fn a1_it_starts_full() {
    let limiter = Limiter::new(1, 7).unwrap();
    assert_eq!(limiter.available(), 7);
    assert_eq!(limiter.try_acquire(7), Ok(()));
    assert_eq!(limiter.available(), 0);
    let empty = Limiter::builder().rate(1, ms(1000)).burst(7).initial(0).build().unwrap();
    assert_eq!(empty.available(), 0);
}

#[tokio::test(start_paused = true)]
async fn a2_the_refill_is_continuous_and_capped() {
    let limiter = Limiter::new(4, 2).unwrap();
    limiter.try_acquire(2).unwrap();
    tokio::time::advance(ms(249)).await;
    assert_eq!(limiter.available(), 0);
    tokio::time::advance(ms(1)).await;
    assert_eq!(limiter.available(), 1);
    tokio::time::advance(Duration::from_secs(1_000_000)).await;
    assert_eq!(limiter.available(), 2);
}

fn on_fake_timer(rate: impl Into<Units>, capacity: u64) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    let builder = Limiter::builder().rate(rate, Duration::from_secs(1)).burst(capacity);
    (builder.clock(timer.clone()).build().unwrap(), timer)
}

#[test]
fn a2_ten_million_grants_are_exact_to_the_nanosecond() {
    let (limiter, timer) = on_fake_timer(3.0, 5);
    let n = if cfg!(debug_assertions) { rounds(200_000).into() } else { 10_000_000_u64 };
    for k in 1..=n {
        let mut acquire = Box::pin(limiter.acquire(1));
        while poll_once(&mut acquire).is_pending() {
            assert!(timer.to_next());
        }
        let exact = u128::from(k.saturating_sub(5)) * 1_000_000_000;
        assert_eq!(u128::from(timer.now()), exact.div_ceil(3), "grant {k}");
    }
}

#[tokio::test(start_paused = true)]
async fn a2_grants_are_exact_under_the_paused_clock_of_tokio() {
    let limiter = Limiter::new(3, 1).unwrap();
    let start = Instant::now();
    for k in 0..3000_u32 {
        limiter.acquire(1).await.unwrap();
        let exact = Duration::from_nanos((u64::from(k) * 1_000_000_000).div_ceil(3));
        assert_eq!(limiter.last_grant(), exact);
        assert!(start.elapsed() >= exact && start.elapsed() < exact + ms(1), "{k}: {:?}", start.elapsed());
    }
}

#[test]
fn a3_an_older_reading_of_the_clock_changes_nothing() {
    let (limiter, timer) = on_fake_timer(1.0, 1);
    timer.to(10_000_000_000);
    limiter.try_acquire(1).unwrap();
    timer.to(0);
    assert_eq!(limiter.available(), 0);
    assert_eq!(wait_of(limiter.try_acquire(1).unwrap_err()), ms(1000), "as from the latest reading");
    timer.to(10_999_999_999);
    assert_eq!(wait_of(limiter.try_acquire(1).unwrap_err()), Duration::from_nanos(1));
    timer.to(11_000_000_000);
    assert_eq!(limiter.try_acquire(1), Ok(()));
}

#[test]
fn a3_an_older_reading_changes_nothing_while_others_wait() {
    let (limiter, timer) = on_fake_timer(1.0, 1);
    limiter.try_acquire(1).unwrap();
    timer.to(500_000_000);
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    timer.to(0);
    assert!(limiter.reserve_within(1, ms(1499)).is_err());
    assert!(limiter.reserve_within(1, ms(1500)).is_ok(), "as from the latest reading");
}

/// Only the wall clock, and the real one, goes on while tokio's is paused.
#[tokio::test(start_paused = true)]
async fn a3_the_wall_clock_neither_fills_nor_stalls_it() {
    let limiter = Limiter::new(1000, 10).unwrap();
    limiter.try_acquire(10).unwrap();
    std::thread::sleep(ms(20));
    assert_eq!(limiter.available(), 0);
    tokio::time::advance(ms(10)).await;
    assert_eq!(limiter.available(), 10);
}

#[test]
fn a4_the_returned_wait_suffices_and_1_ns_less_does_not() {
    for (rate, first) in [(3.0, 333_333_334), (7.0, 142_857_143), (0.3, 3_333_333_334), (1_000_003.0, 1000), (1e9, 1)] {
        let (limiter, timer) = on_fake_timer(rate, 1);
        limiter.try_acquire(1).unwrap();
        assert_eq!(wait_of(limiter.try_acquire(1).unwrap_err()), Duration::from_nanos(first));
        timer.to(first);
        for _ in 0..100 {
            limiter.try_acquire(1).unwrap();
            let wait = u64::try_from(wait_of(limiter.try_acquire(1).unwrap_err()).as_nanos()).unwrap();
            timer.to(timer.now() + wait - 1);
            assert!(limiter.try_acquire(1).is_err(), "{rate}");
            timer.to(timer.now() + 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a5_acquire_takes_exactly_n_and_nothing_at_once() {
    let limiter = Limiter::new(10, 10).unwrap();
    limiter.acquire(10).await.unwrap();
    let start = Instant::now();
    limiter.acquire(0).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    limiter.acquire(4).await.unwrap();
    assert_eq!((start.elapsed(), limiter.available()), (ms(400), 0));
    let error = limiter.acquire(11).await.unwrap_err();
    assert_eq!(error, AcquireError::AboveBurst { cost: Units::from(11), burst: Units::from(10) });
    assert!(error.to_string().starts_with("11 is more than the capacity of 10"));
    assert_eq!(start.elapsed(), ms(400));
}

#[tokio::test(start_paused = true)]
async fn a5_a_cost_of_0_is_granted_at_once_even_behind_waiters() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    assert_eq!(poll_once(&mut Box::pin(limiter.acquire(0))), std::task::Poll::Ready(Ok(())));
}

#[test]
fn a5_a_cost_of_0_is_granted_at_once_despite_concurrent_takers() {
    // One thread reads the time before another is granted the units.
    let (limiter, timer) = on_fake_timer(1, 1);
    timer.set(2_000_000_000);
    drop(limiter.reserve(1).unwrap());
    timer.set(1_000_000_000);
    assert_eq!(limiter.try_acquire(0), Ok(()));
    assert!(limiter.try_acquire(1).is_err());
    let limiter = Limiter::new(5_000_000, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..300_000).for_each(|_| drop(limiter.try_acquire(1))));
        scope.spawn(|| (0..300_000).for_each(|_| assert_eq!(limiter.try_acquire(0), Ok(()))));
    });
}

#[tokio::test(start_paused = true)]
async fn a5_it_takes_once_however_often_it_is_polled() {
    let limiter = Limiter::new(10, 3).unwrap();
    let mut acquire = Box::pin(limiter.acquire(2));
    for _ in 0..3 {
        assert_eq!(acquire.as_mut().await, Ok(()));
        assert_eq!(limiter.available(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a14_a_refusal_polled_again_stays_a_refusal() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let mut too_long = Box::pin(limiter.acquire(1).timeout(ms(1)));
    let expected = Err(AcquireError::TooLong { cost: Units::from(1), wait: ms(1000).into() });
    for _ in 0..2 {
        assert_eq!(too_long.as_mut().await, expected);
        tokio::time::sleep(ms(2000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a5_a_cost_above_the_burst_waits_if_so_configured() {
    let builder = Limiter::builder().rate(10, ms(1000)).burst(5).oversize(Oversize::Wait);
    let limiter = builder.build().unwrap();
    let start = Instant::now();
    limiter.acquire(25).await.unwrap();
    assert_eq!(start.elapsed(), ms(2000));
    limiter.acquire(1).await.unwrap();
    assert_eq!(start.elapsed(), ms(2100), "it left the bucket empty, not in debt");
}

#[tokio::test(start_paused = true)]
async fn a6_an_unpolled_future_takes_and_a_finished_one_gives_nothing() {
    let limiter = Limiter::new(1, 3).unwrap();
    drop(limiter.acquire(2));
    assert_eq!(limiter.available(), 3);
    {
        let acquire = limiter.acquire(2);
        acquire.await.unwrap();
    }
    assert_eq!(limiter.available(), 1);
}

/// If `limiter.acquire(1);` is not awaited, the compiler must warn.
#[test]
fn a6_every_future_must_be_used() {
    let mut futures = 0;
    for file in ["limiter/acquire.rs", "leaky_bucket.rs"] {
        let text = std::fs::read_to_string(format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for name in text.split(" Future for ").skip(1) {
            let name = name.split(['<', ' ']).next().unwrap();
            let (before, _) = text.split_once(&format!("pub struct {name}")).unwrap();
            let attributes = before.rsplit("\n\n").next().unwrap();
            assert!(attributes.contains("#[must_use"), "{file}: {name}");
            futures += 1;
        }
    }
    assert_eq!(futures, 2);
}

#[test]
fn a7_two_threads_never_get_more_than_the_capacity_and_the_rate() {
    let made = std::time::Instant::now();
    let limiter = Limiter::new(100_000, 50).unwrap();
    let tries = |limiter: &Limiter| (0..1_000_000).filter(|_| limiter.try_acquire(1).is_ok()).count();
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| tries(&limiter))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let most = made.elapsed().as_nanos() / 10_000 + 50;
    assert!(granted as u128 <= most, "{granted} of {most}");
    assert!(granted >= 50, "{granted}");
    // Most requests are granted here, so that the two threads meet all the time.
    let (limiter, _) = on_fake_timer(1, 1_000_000);
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| tries(&limiter))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(granted, 1_000_000);
}

/// A thread that was held up after it had read the clock was refused, although there was enough for all.
#[test]
fn a_thread_that_is_held_up_is_refused_nothing() {
    let limiter = Limiter::new(1_000_000_000, 500_000).unwrap();
    let semaphore = Semaphore::new(500_000, 1_000_000_000).unwrap();
    let tries = || {
        let refused = (0..rounds(1_000_000)).filter(|_| limiter.try_acquire(1).is_err()).count();
        refused + (0..rounds(300_000)).filter(|_| semaphore.try_acquire().is_err()).count()
    };
    let refused: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(tries)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(refused, 0);
}

#[tokio::test(start_paused = true)]
async fn a7_saturated_by_tasks_it_grants_exactly_the_rate() {
    let limiter = Limiter::new(700, 7).unwrap();
    let times = grants(&limiter, std::iter::repeat_n(1.0, 2107)).await;
    let last = times.last().unwrap();
    assert_eq!(*last, ms(3000));
    for (k, time) in times.iter().enumerate() {
        let exact = Duration::from_nanos((k.saturating_sub(6) as u64 * 1_000_000_000).div_ceil(700));
        assert!(*time >= exact && *time < exact + ms(1), "{k}: {time:?} {exact:?}");
    }
}

#[test]
fn a8_100_000_waiters_are_served_with_one_wake_up_each() {
    for waiters in [1_000, 100_000_usize] {
        let (limiter, timer) = on_fake_timer(1e6, 1);
        limiter.try_acquire(1).unwrap();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut line: Vec<_> = (0..waiters).map(|_| Box::pin(limiter.acquire(1))).collect();
        for waiter in &mut line {
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        for served in 1..=waiters {
            timer.to_next();
            assert_eq!(count.0.load(Ordering::SeqCst), served, "one wake-up a grant");
        }
        assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_ready()));
        assert_eq!(timer.now(), waiters as u64 * 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn a9_a_small_request_does_not_overtake_a_large_waiter() {
    let limiter = Limiter::new(1, 10).unwrap();
    limiter.acquire(8).await.unwrap();
    let times = grants(&limiter, [5.0, 1.0, 2.0]).await;
    assert_eq!(times, [ms(3000), ms(4000), ms(6000)]);
    assert_eq!(limiter.try_acquire(0), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a9_trying_while_others_wait_is_refused_unless_unfair() {
    for fair in [true, false] {
        let limiter = Limiter::builder().rate(1, ms(1000)).burst(10).initial(2).fair(fair).build().unwrap();
        let mut large = Box::pin(limiter.acquire(5));
        assert!(poll_once(&mut large).is_pending());
        let expected = if fair { Err(AcquireError::OthersWait) } else { Ok(()) };
        assert_eq!(limiter.try_acquire(1), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a10_those_behind_a_cancelled_waiter_move_up() {
    let limiter = Limiter::new(1, 10).unwrap();
    limiter.acquire(10).await.unwrap();
    let start = Instant::now();
    let mut large = Box::pin(limiter.acquire(8));
    let mut small = Box::pin(limiter.acquire(2));
    assert!(poll_once(&mut large).is_pending());
    assert!(poll_once(&mut small).is_pending());
    tokio::time::advance(ms(1000)).await;
    drop(large);
    small.await.unwrap();
    assert_eq!((start.elapsed(), limiter.available()), (ms(2000), 0));
}

#[tokio::test(start_paused = true)]
async fn a10_a_granted_waiter_dropped_before_its_poll_gives_back() {
    let limiter = Limiter::new(1, 10).unwrap();
    limiter.acquire(10).await.unwrap();
    let mut waiter = Box::pin(limiter.acquire(5));
    assert!(poll_once(&mut waiter).is_pending());
    tokio::time::sleep(ms(5000)).await;
    assert_eq!(limiter.available(), 0, "it was granted");
    drop(waiter);
    assert_eq!(limiter.available(), 5);
}

/// The fastest of a few tries, by the time that the processor spends on it, because other tests run at the same time.
#[test]
fn a10_100_000_waiters_leave_in_any_order_within_a_second() {
    assert!((0..20).any(|_| leave_without_order() < Duration::from_secs(1)));
}

/// The time that this thread has had.
fn on_the_processor() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

fn leave_without_order() -> Duration {
    let (limiter, timer) = on_fake_timer(1.0, 1);
    limiter.try_acquire(1).unwrap();
    let mut line: Vec<_> = (0..100_000_u64).map(|_| Some(Box::pin(limiter.acquire(1)))).collect();
    for waiter in line.iter_mut().flatten() {
        assert!(poll_once(waiter).is_pending());
    }
    let start = on_the_processor();
    let spent = || on_the_processor().saturating_sub(start);
    // A step that is prime to the number visits everybody once, in an order without pattern.
    for k in 0..line.len() {
        drop(line[k * 61_803 % 100_000].take());
        if spent() > Duration::from_secs(2) {
            std::mem::forget(line); // They would take as long again.
            break;
        }
    }
    let elapsed = spent();
    if elapsed < Duration::from_secs(2) {
        assert_eq!(limiter.waiters(), 0);
        timer.to(1_000_000_000);
        assert_eq!(limiter.available(), 1);
    }
    elapsed
}

#[tokio::test(start_paused = true)]
async fn a11_a_sleeping_waiter_holds_no_lock() {
    let limiter = Limiter::new(1, 2).unwrap();
    limiter.acquire(2).await.unwrap();
    let sleeper = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(2).await }
    });
    tokio::time::sleep(ms(1500)).await;
    assert_eq!((limiter.waiters(), limiter.available()), (1, 0));
    assert_eq!(limiter.try_acquire(1), Err(AcquireError::OthersWait));
    assert_eq!(limiter.time_until(1), Ok(ms(1500)));
    sleeper.abort();
    assert!(sleeper.await.is_err());
    assert_eq!((limiter.waiters(), limiter.available()), (0, 1));
}

#[test]
fn a11_the_state_can_be_read_while_a_thread_sleeps() {
    let limiter = Limiter::new(0.2, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    std::thread::scope(|scope| {
        let start = std::time::Instant::now();
        let sleeper = scope.spawn(|| limiter.acquire(1).block());
        while limiter.waiters() == 0 {
            assert!(start.elapsed() < ms(4500), "nobody could look until the other was awake");
            std::thread::yield_now();
        }
        std::thread::sleep(ms(100)); // so that it does sleep
        let start = std::time::Instant::now();
        assert_eq!((limiter.available(), limiter.try_acquire(1)), (0, Err(AcquireError::OthersWait)));
        assert!(limiter.time_until(1).unwrap() > ms(5000));
        limiter.set_rate(1_000_000, ms(1000)).unwrap();
        assert!(start.elapsed() < ms(2500), "it took until the other was awake: {:?}", start.elapsed());
        assert_eq!(sleeper.join().unwrap(), Ok(()));
    });
}

#[tokio::test(start_paused = true)]
async fn a12_twenty_tasks_at_five_a_second() {
    let times = grants(&Limiter::new(5, 5).unwrap(), [1.0; 20]).await;
    let exact: Vec<_> = (0..20_u64).map(|k| ms(k.saturating_sub(4) * 200)).collect();
    assert_eq!(times, exact);
}

#[tokio::test(start_paused = true)]
async fn a13_a_reservation_has_a_time_and_gives_back_if_cancelled() {
    let limiter = Limiter::new(10, 2).unwrap();
    let first = limiter.reserve(2).unwrap();
    let second = limiter.reserve(2).unwrap();
    assert_eq!((first.wait(), second.wait()), (ms(0), ms(200)));
    tokio::time::advance(ms(100)).await;
    second.cancel();
    assert_eq!(limiter.reserve(2).unwrap().wait(), ms(100));
    let error = limiter.reserve_within(2, ms(299)).unwrap_err();
    assert_eq!(wait_of(error), ms(300));
    assert_eq!(limiter.reserve_within(2, ms(300)).unwrap().wait(), ms(300));
}

#[tokio::test(start_paused = true)]
async fn a13_a_reservation_stands_behind_waiters_and_is_not_moved() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let (mut first, mut second) = (Box::pin(limiter.acquire(1)), Box::pin(limiter.acquire(1)));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    let reservation = limiter.reserve(1).unwrap();
    assert_eq!(reservation.wait(), ms(3000), "the waiters come first");
    let mut behind = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut behind).is_pending());
    drop(second);
    assert_eq!(reservation.wait(), ms(3000), "a reservation stays even if the queue moves up");
    first.await.unwrap();
    assert_eq!(start.elapsed(), ms(1000), "earlier waiters do not wait for it");
    behind.await.unwrap();
    assert_eq!(start.elapsed(), ms(4000));
}

#[tokio::test(start_paused = true)]
async fn a13_a_cancelled_reservation_moves_those_behind_it_up() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    let reservation = limiter.reserve(1).unwrap();
    let mut behind = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut behind).is_pending());
    reservation.cancel();
    behind.await.unwrap();
    assert_eq!(start.elapsed(), ms(2000));
}

#[tokio::test(start_paused = true)]
async fn a13_a_reservation_behind_waiters_that_is_dropped_is_kept() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    drop(limiter.reserve(1).unwrap());
    limiter.acquire(1).await.unwrap();
    assert_eq!(start.elapsed(), ms(3000));
}

#[tokio::test(start_paused = true)]
async fn a13_a_reservation_whose_time_has_come_is_used() {
    let limiter = Limiter::new(1, 2).unwrap();
    let now = limiter.reserve(2).unwrap();
    now.cancel();
    assert_eq!(limiter.available(), 0);
    let ahead = limiter.reserve(1).unwrap();
    tokio::time::advance(ms(1000)).await;
    ahead.cancel();
    assert_eq!(limiter.available(), 0);
}

#[tokio::test(start_paused = true)]
async fn a13_nothing_is_available_while_others_wait() {
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(10).initial(4).build().unwrap();
    assert_eq!(limiter.available(), 4);
    let mut waiter = Box::pin(limiter.acquire(5));
    assert!(poll_once(&mut waiter).is_pending());
    assert_eq!(limiter.available(), 0);
    drop(waiter);
    assert_eq!(limiter.available(), 4);
}

#[tokio::test(start_paused = true)]
async fn a13_a_changed_rate_re_times_waiters_and_keeps_their_credit() {
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(1).oversize(Oversize::Wait).build().unwrap();
    limiter.acquire(1).await.unwrap();
    let start = Instant::now();
    let mut waiter = Box::pin(limiter.acquire(10));
    assert!(poll_once(&mut waiter).is_pending());
    tokio::time::advance(ms(4000)).await;
    limiter.set_rate(2, ms(1000)).unwrap();
    waiter.await.unwrap();
    assert_eq!(start.elapsed(), ms(7000), "four gathered at 1 a second, six at 2");
    assert_eq!(limiter.set_rate(0, ms(1000)), Err(BuildError::ZeroRate));
    assert_eq!(limiter.set_rate(1, ms(0)), Err(BuildError::ZeroPeriod));
}

#[tokio::test(start_paused = true)]
async fn a13_a_changed_burst_spills_or_leaves_room() {
    let limiter = Limiter::new(1, 10).unwrap();
    limiter.set_burst(4).unwrap();
    assert_eq!(limiter.available(), 4);
    limiter.set_burst(6).unwrap();
    assert_eq!((limiter.available(), limiter.time_until(6)), (4, Ok(ms(2000))));
    assert_eq!(limiter.set_burst(0), Err(BuildError::ZeroBurst));
    let windows = Limiter::builder().limit("5/s,window".parse().unwrap()).build().unwrap();
    assert_eq!(windows.set_rate(1, ms(1000)), Err(BuildError::NoBucket), "not silently ignored");
    assert_eq!(windows.set_burst(1), Err(BuildError::NoBucket));
}

#[tokio::test(start_paused = true)]
async fn a14_a_deadline_that_cannot_be_met_fails_at_once() {
    let limiter = Limiter::new(1, 5).unwrap();
    limiter.acquire(5).await.unwrap();
    let start = Instant::now();
    let error = limiter.acquire(3).timeout(ms(2999)).await.unwrap_err();
    assert_eq!((wait_of(error), start.elapsed()), (ms(3000), ms(0)));
    limiter.acquire(3).timeout(ms(3000)).await.unwrap();
    assert_eq!(start.elapsed(), ms(3000));
    let mut waiter = Box::pin(limiter.acquire(2));
    assert!(poll_once(&mut waiter).is_pending());
    let error = limiter.acquire(2).by(Instant::now() + ms(3999)).await.unwrap_err();
    assert_eq!(wait_of(error), ms(4000), "waiters before it are counted");
}

#[test]
fn a_thread_waits_in_the_same_queue() {
    let limiter = Limiter::new(1000, 1).unwrap();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|_| limiter.acquire(1).block().unwrap()));
        }
    });
    assert!(start.elapsed() >= ms(98), "{:?}", start.elapsed());
    let slow = Limiter::new(0.001, 1).unwrap();
    slow.acquire(1).block().unwrap();
    assert!(slow.acquire(1).timeout(Duration::ZERO).block().is_err());
}

proptest! {
    /// All waiters are served by the time when the rate has paid for them.
    #[test]
    fn a7_random_queues_lose_nothing(
        rate in 1_u64..2000, burst in 1_u64..20, costs in prop::collection::vec((1_u64..20, 0_u64..3_000_000), 1..60),
    ) {
        let (limiter, timer) = on_fake_timer(rate, burst);
        let mut line = Vec::new();
        let mut total = 0;
        for (cost, pause) in costs {
            timer.to(timer.now() + pause);
            total += cost.min(burst);
            line.push(Box::pin(limiter.acquire(cost.min(burst))));
            let _ = line.last_mut().map(poll_once);
        }
        let start = timer.now();
        while limiter.waiters() > 0 {
            prop_assert!(timer.to_next());
        }
        let paid = u128::from(total) * 1_000_000_000 / u128::from(rate) + 1;
        prop_assert!(u128::from(timer.now() - start) <= paid);
    }
}
