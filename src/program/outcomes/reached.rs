//! A rate that a run did not reach, because all slots were taken.

use throttle_limits::clock::{Nanos, SECOND};
use throttle_limits::rate::Rate;

/// A shorter wait for slots is not worth a line. Starts within a shorter time show no rate.
const MIN_TIME: Nanos = SECOND;

/// The number of starts, and the times of the first and the last start.
#[derive(Debug, Default)]
pub(super) struct Starts {
    count: u64,
    first: Nanos,
    last: Nanos,
}

impl Starts {
    pub(super) fn note(&mut self, now: Nanos) {
        if self.count == 0 {
            self.first = now;
        }
        self.count += 1;
        self.last = self.last.max(now);
    }

    /// `23 starts a second, although 100 are allowed: 16 jobs were busy all the time`. `None`, unless starts waited for
    /// a slot for at least half of the time, and the actual rate is below nine tenths of `allowed`.
    pub(super) fn short_of(&self, allowed: Rate, waited_for_jobs: Nanos, jobs: u32) -> Option<String> {
        let time = self.last.saturating_sub(self.first);
        if waited_for_jobs < MIN_TIME.max(time / 2) || time < MIN_TIME {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "only shown")]
        let per_second = |units: u64, time: Nanos| units as f64 * SECOND as f64 / time as f64;
        let is = per_second(self.count.saturating_sub(1), time);
        let allowed = per_second(allowed.units(), allowed.period());
        let units = [("second", 1.0), ("minute", 60.0), ("hour", 3600.0), ("day", 86_400.0)];
        let (unit, seconds) = units.into_iter().find(|(_, seconds)| allowed * seconds >= 1.0).unwrap_or(units[3]);
        let (are, s) = if jobs == 1 { ("was", "") } else { ("were", "s") };
        let how_long = if waited_for_jobs / 9 >= time / 10 { "all the" } else { "most of the" };
        let [is_shown, allowed_shown] = [is, allowed].map(|rate| shown(rate * seconds));
        (is < 0.9 * allowed).then(|| {
            format!(
                "{is_shown} starts a {unit}, although {allowed_shown} are allowed: {jobs} job{s} {are} busy \
                 {how_long} time"
            )
        })
    }
}

/// `23`, `5.4`, `5`
fn shown(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.1}").trim_end_matches(".0").to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(count: u64, each: Nanos) -> Starts {
        let mut starts = Starts::default();
        (0..count).for_each(|number| starts.note(SECOND + number * each));
        starts
    }

    #[test]
    fn a_rate_that_the_jobs_do_not_reach_is_shown_in_its_own_unit() {
        for (rate, count, each, busy, expected) in [
            (
                "100/s",
                47,
                SECOND / 23,
                2,
                "23 starts a second, although 100 are allowed: 16 jobs were busy all the time",
            ),
            (
                "5/s",
                11,
                2 * SECOND,
                12,
                "0.5 starts a second, although 5 are allowed: 16 jobs were busy most of the time",
            ),
            (
                "5/min",
                11,
                30 * SECOND,
                300,
                "2 starts a minute, although 5 are allowed: 16 jobs were busy all the time",
            ),
        ] {
            let text = starts(count, each).short_of(rate.parse().unwrap(), busy * SECOND, 16);
            assert_eq!(text.as_deref(), Some(expected), "{rate}");
        }
    }

    #[test]
    fn a_rate_that_is_reached_or_lacks_input_is_not_shown() {
        let rate: Rate = "10/s".parse().unwrap();
        for (count, each, busy) in [
            (100, SECOND / 10, 9 * SECOND),
            (100, SECOND, 10 * SECOND),
            (1, 0, SECOND),
            (5, SECOND / 8, SECOND / 2),
            (2, SECOND / 50, 3 * SECOND),
        ] {
            assert_eq!(starts(count, each).short_of(rate, busy, 16), None, "{count} {each}");
        }
    }
}
