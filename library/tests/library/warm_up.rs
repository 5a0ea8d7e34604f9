//! Limiters that are slow at first, and random waits after a grant.

use crate::limiters::{ms, poll_once};
use std::sync::Arc;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use throttle_limits::limiter::{AcquireError, BuildError, Builder, Limiter, Units, WarmUp};

fn on(clock: &FakeClock, units: u64) -> Builder {
    Limiter::builder().rate(units, ms(1000)).clock(Arc::new(clock.clone()))
}

/// How long each of `count` units waits, in nanoseconds.
fn waits(limiter: &WarmUp, clock: &FakeClock, count: usize) -> Vec<Nanos> {
    let wait = |_| {
        let before = clock.now();
        limiter.acquire().block().unwrap();
        clock.now() - before
    };
    (0..count).map(wait).collect()
}

/// In hundredths of a second, rounded half up, as Guava's tests print them.
fn hundredths(waits: &[Nanos]) -> Vec<Nanos> {
    waits.iter().map(|wait| (wait + 5 * MILLISECOND) / (10 * MILLISECOND)).collect()
}

/// `testWarmUp` of Guava's `RateLimiterTest`.
#[test]
fn warm_up_follows_the_table_of_guava() {
    let clock = FakeClock::default();
    let limiter = on(&clock, 2).warm_up(ms(4000)).unwrap();
    let cold = [0, 138, 113, 88, 63, 50, 50, 50];
    assert_eq!(hundredths(&waits(&limiter, &clock, 8)), cold);
    clock.advance(Duration::from_nanos(500 * MILLISECOND + 4 * SECOND));
    assert_eq!(hundredths(&waits(&limiter, &clock, 8)), cold, "cold again");
    clock.advance(Duration::from_nanos(500 * MILLISECOND + 2 * SECOND));
    assert_eq!(hundredths(&waits(&limiter, &clock, 8)), [0, 50, 50, 50, 50, 50, 50, 50], "still warm");
}

/// The last steps of `testWarmUpAndUpdate`.
#[test]
fn a_faster_rate_takes_as_long_to_warm_up() {
    let clock = FakeClock::default();
    let limiter = on(&clock, 4).warm_up(ms(4000)).unwrap();
    assert_eq!(hundredths(&waits(&limiter, &clock, 11)), [0, 72, 66, 59, 53, 47, 41, 34, 28, 25, 25]);
}

/// `testTimeToWarmUpIsHonouredEvenWithWeights`: half of the units that come in meanwhile take the warm-up time.
#[test]
fn the_dear_units_take_the_warm_up_time() {
    for (units, per, warm_up) in [(4, 1, 5), (2, 1, 10), (1, 1, 20), (1, 2, 40), (1, 10, 200), (7, 1, 20)] {
        let clock = FakeClock::default();
        let builder = Limiter::builder().rate(units, Duration::from_secs(per)).clock(Arc::new(clock.clone()));
        let limiter = builder.warm_up(Duration::from_secs(warm_up)).unwrap();
        let dear = usize::try_from(units * warm_up / per / 2).unwrap();
        let total: Nanos = waits(&limiter, &clock, dear + 1).iter().sum();
        // Each price is rounded up to a millionth of a unit, each time to a nanosecond.
        assert!((warm_up * SECOND..=warm_up * SECOND + SECOND / 10_000).contains(&total), "{units}/{per}: {total}");
    }
}

#[test]
fn a_warm_limiter_is_exact() {
    for units in [3, 7, 1_000_003, 700_000_001] {
        let clock = FakeClock::default();
        let limiter = on(&clock, units).warm_up(Duration::ZERO).unwrap();
        limiter.acquire().block().unwrap();
        for k in 1..=3000_u64 {
            limiter.acquire().block().unwrap();
            assert_eq!(clock.now(), (k * SECOND).div_ceil(units));
        }
    }
}

#[test]
fn idle_time_is_not_saved_up_for_a_burst() {
    let clock = FakeClock::default();
    let limiter = on(&clock, 10).warm_up(Duration::ZERO).unwrap();
    limiter.acquire().block().unwrap();
    clock.advance(Duration::from_secs(100));
    limiter.try_acquire().unwrap();
    let refused = AcquireError::TooLong { cost: Units::whole(1), wait: ms(100).into() };
    assert_eq!(limiter.try_acquire(), Err(refused));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_at_earlier_prices() {
    let limiter = Limiter::builder().rate(2, ms(1000)).warm_up(ms(4000)).unwrap();
    let start = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire().await.map(|()| start.elapsed()) })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.push(task.await.unwrap().unwrap());
    }
    assert_eq!(times, [0, 1375, 2500, 3375, 4000, 4500].map(ms));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_takes_nothing_of_a_warm_up() {
    let limiter = Limiter::builder().rate(2, ms(1000)).warm_up(ms(4000)).unwrap();
    limiter.acquire().await.unwrap();
    let start = tokio::time::Instant::now();
    let mut first = Box::pin(limiter.acquire());
    let mut second = Box::pin(limiter.acquire());
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    drop(first);
    second.await.unwrap();
    assert_eq!(start.elapsed(), ms(1375));
    limiter.close();
    assert_eq!(limiter.acquire().await, Err(AcquireError::Closed));
}

#[test]
fn a_limiter_that_warms_up_has_one_rate() {
    let two = Limiter::builder().rate(2, ms(1000)).limit("5/h,window".parse().unwrap());
    assert_eq!(two.warm_up(ms(1)).unwrap_err(), BuildError::WarmUp);
    assert_eq!(Limiter::builder().rate(0, ms(1000)).warm_up(ms(1)).unwrap_err(), BuildError::ZeroRate);
    let extreme = Limiter::builder().rate(1_000_000_000_000_u64, ms(1)).warm_up(Duration::MAX).unwrap();
    (0..10).for_each(|_| extreme.acquire().block().unwrap());
}

#[tokio::test(start_paused = true)]
async fn jitter_delays_its_request_and_nobody_behind_it() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.acquire(1).await.unwrap();
    let start = tokio::time::Instant::now();
    let (jittered, plain) =
        tokio::join!(async { limiter.acquire_with_jitter(1, || ms(5000)).await.map(|()| start.elapsed()) }, async {
            limiter.acquire(1).await.map(|()| start.elapsed())
        },);
    assert_eq!((jittered, plain), (Ok(ms(6000)), Ok(ms(2000))));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_has_no_jitter() {
    let limiter = Limiter::new(1, 1).unwrap();
    limiter.close();
    let never = || panic!("nothing was granted");
    assert_eq!(limiter.acquire_with_jitter(1, never).await, Err(AcquireError::Closed));
}

#[test]
fn jitter_waits_on_the_clock_of_the_limiter() {
    let clock = FakeClock::default();
    let limiter = on(&clock, 1).burst(1).build().unwrap();
    let mut acquire = Box::pin(limiter.acquire_with_jitter(1, || ms(300)));
    assert!(poll_once(&mut acquire).is_pending());
    clock.advance(Duration::from_nanos(300 * MILLISECOND - 1));
    assert!(poll_once(&mut acquire).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(poll_once(&mut acquire).is_ready());
}
