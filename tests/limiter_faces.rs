//! What callers give and see: rates, amounts, errors of the builder, owned acquires, clocks.

mod limiters;

use limiters::{FakeTimer, ms, poll_once};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use throttle::limiter::{AcquireError, BuildError, Limiter, OnFull, Refill};

/// `rate(1, 7 days / 11)` was refused with internal numbers.
#[test]
fn a_rate_of_any_count_in_any_period_is_kept_to_the_nanosecond() {
    for (units, period) in [(1, ms(7 * 86_400_000) / 11), (1_500_000_000, Duration::from_secs(1) / 3)] {
        let timer = Arc::new(FakeTimer::default());
        let limiter = Limiter::builder().rate(units, period).timer(timer.clone()).build().unwrap();
        limiter.try_acquire(units).unwrap();
        assert_eq!(limiter.time_until(units), Ok(period));
        timer.set(u64::try_from(period.as_nanos()).unwrap() - 1);
        assert!(limiter.try_acquire(units).is_err());
        timer.set(u64::try_from(period.as_nanos()).unwrap());
        assert_eq!(limiter.try_acquire(units), Ok(()));
    }
}

/// What was chosen for a bucket that is not there used to be passed over in silence.
#[test]
fn burst_initial_and_refill_need_a_rate_beside_written_limits() {
    let limits = || Limiter::builder().limit("5/s".parse().unwrap());
    for (builder, setting) in
        [(limits().burst(3), "burst"), (limits().initial(0), "initial"), (limits().refill(Refill::Grid), "refill")]
    {
        let error = builder.clone().build().unwrap_err();
        assert!(matches!(error, BuildError::WithoutRate(name) if name == setting), "{error}");
        assert!(error.to_string().starts_with(setting), "{error}");
        assert!(builder.rate(5, ms(1000)).build().is_ok());
    }
    assert!(limits().refill(Refill::Continuous).build().is_ok(), "that is how limits fill");
    assert!(Limiter::builder().burst(3).build().is_ok_and(|limiter| limiter.available() == 3), "of 10 a second");
}

#[test]
fn reservations_count_neither_as_waiters_nor_for_the_most_of_them() {
    let timer = Arc::new(FakeTimer::default());
    let builder = Limiter::builder().rate(1, ms(1000)).max_waiters(2, OnFull::Fail).timer(timer.clone());
    let limiter = builder.build().unwrap();
    limiter.try_acquire(1).unwrap();
    let mut first = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut first).is_pending());
    let reserved: Vec<_> = (0..5).map(|_| limiter.reserve(1).unwrap()).collect();
    assert_eq!(limiter.waiters(), 1);
    let mut second = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut second).is_pending(), "reservations do not fill the line");
    assert_eq!(limiter.waiters(), 2);
    assert_eq!(poll_once(&mut Box::pin(limiter.acquire(1))), Poll::Ready(Err(AcquireError::Full)));
    let more = limiter.reserve(1).unwrap();
    let seconds = [&reserved[4], &more].map(|reservation| reservation.at().as_secs());
    assert_eq!((limiter.waiters(), seconds), (2, [6, 8]), "nor does a full line refuse them");
    drop(first);
    assert_eq!(limiter.waiters(), 1);
}
