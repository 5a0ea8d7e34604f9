//! What callers give and see: rates, amounts, errors of the builder, owned acquires, clocks.

mod limiters;

use limiters::{FakeTimer, ms};
use std::sync::Arc;
use std::time::Duration;
use throttle::limiter::Limiter;

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
