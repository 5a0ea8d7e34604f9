//! Faults seen in at least two limiter libraries, each test named after one. Other tests cover the rest: a retry time
//! rounded down in `a4`, a wake-up storm in `a8`, small costs served before big ones in `a9`, a cancelled waiter's slot
//! in `a10` and `c6`, a crash that leaks concurrency in `c9`, and a schedule that restarts after a late wake-up in
//! `wakeups`.

use crate::limiters::{FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use crate::window::Window;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::{AcquireError, Limiter, Units, UnitsError};

const HOUR: u64 = 3_600_000_000_000;

fn limiter(units: impl Into<Units>, period: Duration, burst: u64) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    let builder = Limiter::builder().rate(units, period).burst(burst).clock(timer.clone());
    (builder.build().unwrap(), timer)
}

#[test]
fn an_interval_is_not_truncated_to_nanoseconds() {
    let (limiter, timer) = limiter(1_000_003, ms(1000), 1);
    let grants = u64::from(rounds(100_000));
    for _ in 0..=grants {
        let mut acquire = Box::pin(limiter.acquire(1));
        while poll_once(&mut acquire).is_pending() {
            assert!(timer.to_next());
        }
    }
    assert_eq!(timer.now(), (grants * 1_000_000_000).div_ceil(1_000_003));
}

#[test]
fn reading_the_state_often_drops_no_remainder() {
    let (limiter, timer) = limiter(1, Duration::from_secs(3600), 1);
    limiter.try_acquire(1).unwrap();
    for time in (0..HOUR).step_by(500_000_000 / rounds(100) as usize) {
        timer.to(time);
        assert!(limiter.try_acquire(1).is_err());
        assert_eq!(limiter.available(), 0);
    }
    timer.to(HOUR);
    assert_eq!(limiter.try_acquire(1), Ok(()));
}

#[test]
fn a_refused_request_pays_nothing() {
    let (limiter, timer) = limiter(1, ms(1000), 1);
    limiter.try_acquire(1).unwrap();
    for _ in 0..1000 {
        assert!(limiter.try_acquire(1).is_err());
        assert!(limiter.reserve_within(1, ms(1)).is_err());
        assert!(limiter.acquire(1).timeout(ms(1)).block().is_err());
    }
    timer.to(1_000_000_000);
    assert_eq!(limiter.try_acquire(1), Ok(()));
}

#[test]
fn idle_time_saves_the_burst_and_not_one_more() {
    let (limiter, timer) = limiter(1_000_000, ms(1000), 5);
    for time in [HOUR, 100_000 * HOUR, u64::MAX - HOUR] {
        timer.to(time);
        let granted = (0..100).take_while(|_| limiter.try_acquire(1).is_ok()).count();
        assert_eq!(granted, 5, "at {time}");
    }
}

#[test]
fn nothing_overflows() {
    let (limiter, timer) = limiter(18_000_000_000_000_u64, ms(1), 18_000_000_000_000);
    timer.to(u64::MAX - 1);
    assert_eq!(limiter.try_acquire(u64::MAX), Err(UnitsError::TooLarge.into()));
    assert_eq!(limiter.try_acquire(18_000_000_000_000_u64), Ok(()));
    assert!(matches!(limiter.reserve(18_400_000_000_000_u64), Err(AcquireError::AboveBurst { .. })));
    let (slow, _) = self::limiter(0.000_001, Duration::from_secs(86_400), 1);
    slow.try_acquire(1).unwrap();
    // 2 738 years, and the clock ends after 584.
    assert!(matches!(slow.reserve(1), Err(AcquireError::Never { .. })));
}

#[test]
fn nothing_overflows_in_a_window_at_the_end_of_the_clock() {
    let mut window = Window::new(NonZeroU64::MAX, NonZeroU64::MAX, 0);
    for units in [u64::MAX, u64::MAX, 1] {
        window.charge(u64::MAX, units);
        assert_eq!((window.available(u64::MAX), window.conforms_at(u64::MAX, 1)), (0, None));
    }
    let timer = Arc::new(FakeTimer::default());
    let window = "18000000000000/d,window".parse().unwrap();
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(18_000_000_000_000_u64).limit(window);
    let limiter = limiter.clock(timer.clone()).build().unwrap();
    timer.to(u64::MAX);
    let mut acquire = Box::pin(limiter.acquire(1).timeout(Duration::ZERO));
    assert!(poll_once(&mut acquire).is_ready());
    for _ in 0..3 {
        let _ = limiter.try_acquire(17_000_000_000_000_u64);
        drop(limiter.reserve(17_000_000_000_000_u64));
        limiter.reconcile(17_000_000_000_000_u64, 0).unwrap();
        let _ = limiter.available();
    }
}

#[test]
fn a_deadline_that_had_passed_before_the_first_poll_is_refused() {
    let (limiter, timer) = limiter(1, ms(1000), 1);
    limiter.try_acquire(1).unwrap();
    let mut late = Box::pin(limiter.acquire(1).timeout(ms(1)));
    timer.to(500_000_000);
    let expected = AcquireError::TooLong { cost: Units::from(1), wait: ms(500).into() };
    assert_eq!(poll_once(&mut late), std::task::Poll::Ready(Err(expected)));
}

#[test]
fn time_read_before_the_lock_is_not_credited_twice() {
    let (limiter, timer) = limiter(1, ms(1000), 1);
    for (millis, granted) in [(10_000, true), (9_000, false), (10_000, false), (9_999, false), (11_000, true)] {
        timer.to(millis * 1_000_000);
        assert_eq!(limiter.try_acquire(1).is_ok(), granted, "{millis}");
    }
}

#[test]
fn a_clock_that_goes_back_takes_no_unit_that_was_there() {
    let (limiter, timer) = limiter(1, ms(1000), 1);
    limiter.try_acquire(1).unwrap();
    timer.to(1_000_000_000);
    assert_eq!(limiter.available(), 1);
    timer.to(500_000_000);
    assert_eq!(limiter.try_acquire(1), Ok(()));
}
