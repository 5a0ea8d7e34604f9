//! Limits as the script computes with them: whole numbers in microseconds, small enough to be exact in its doubles.

use super::RedisError;
use crate::limits::{Limits, Policy, Resolved};
use crate::rate::gcd;

/// The script adds and multiplies numbers below this exactly. 2^52 would still be exact; one bit is left for sums.
const BOUND: u128 = 1 << 51;

/// The most limits of one bucket.
pub(super) const MOST_LIMITS: usize = 16;

/// A policy in the form that the script takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The limits as written, one per line.
    pub(super) text: String,
    /// The quantum. Then for each limit 0 and the numbers of a bucket, or 1 and those of a window.
    pub(super) numbers: String,
}

impl Terms {
    pub(super) fn of(policy: &Policy) -> Result<Self, RedisError> {
        if policy.is_empty() || policy.len() > MOST_LIMITS {
            return Err(RedisError::Limits);
        }
        let quantum = u128::from(Limits::new(policy, 0).quantum()).min(BOUND);
        let limits: Result<Vec<String>, _> = policy.limits().iter().map(terms).collect();
        Ok(Terms { text: policy.to_lines(), numbers: format!("{quantum} {}", limits?.join(" ")) })
    }
}

fn terms(limit: &Resolved) -> Result<String, RedisError> {
    let fits = |what, number: u128| match number {
        ..BOUND => Ok(number),
        _ => Err(RedisError::TooLarge { limit: limit.to_string(), what, number }),
    };
    match *limit {
        Resolved::Bucket { rate, burst, initial } => {
            let (units, period) = in_microseconds(rate.units(), rate.period());
            let units = fits("what a microsecond repays", units)?;
            let period = fits("what a unit costs", period)?;
            let full = fits("the burst times what a unit costs", u128::from(burst.get()) * period)?;
            Ok(format!("0 {units} {period} {full} {}", u128::from(initial) * period))
        }
        Resolved::Window { rate, slack } => {
            let (count, period) = rate.window();
            let period = fits("the period in microseconds", period.get().saturating_add(slack).div_ceil(1000).into())?;
            let count = fits("the count", count.get().into())?;
            Ok(format!("1 {period} {count} {}", count.div_ceil(crate::limits::window::EXACT.into())))
        }
    }
}

/// The credits per microsecond and per unit, in lowest terms, for a rate of `units` in `period` nanoseconds.
fn in_microseconds(units: u64, period: u64) -> (u128, u128) {
    let divisor = gcd(1000, period.into());
    (u128::from(units) * (1000 / divisor), u128::from(period) / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(limits: &[&str]) -> Result<String, String> {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let terms = Terms::of(&Policy::new(&limits, None).unwrap());
        terms.map(|terms| terms.numbers).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_whole_numbers_in_microseconds() {
        for (limits, expected) in [
            (&["1000003/s,burst=1"][..], "1 0 1000003 1000000 1000000 1000000"),
            (&["700/min,burst=7,initial=2"], "1 0 7 600000 4200000 1200000"),
            (&["1500000000/s,burst=1"], "1 0 1500 1 1 1"),
            (&["5000/h,window"], "1 1 3600000000 5000 5"),
            (&["5000/h,window,slack=250ms"], "1 1 3600250000 5000 5"),
            (&["5/s", "1000/h"], "1 0 1 200000 200000 200000 1 3600000000 1000 1"),
        ] {
            assert_eq!(numbers(limits).as_deref(), Ok(expected), "{limits:?}");
        }
    }

    #[test]
    fn a_limit_that_does_not_fit_is_refused_with_the_bound() {
        let error = numbers(&["1000003/s,burst=9000000000"]).unwrap_err();
        assert!(error.contains("9000000000000000") && error.contains("2^51"), "{error}");
        assert!(numbers(&["18446744073709551615/d,window"]).unwrap_err().contains("the count"));
        assert!(numbers(&["5/s"; 17]).unwrap_err().contains("1 to 16"));
    }
}
