//! How long commands ran: the median, the 99th percentile, and the longest time.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use throttle::launch::Outcome;
use throttle_limits::clock::{Nanos, shown};

/// A longer run is recorded with this time.
const MAX_RECORDED: Nanos = 1 << 50;

/// The run times of commands to two digits, and the longest time exactly.
#[derive(Debug)]
pub(crate) struct Ran {
    times: Histogram<u64>,
    max: Nanos,
}

impl Default for Ran {
    fn default() -> Self {
        let times = Histogram::new_with_bounds(1, MAX_RECORDED, 2).expect("constant bounds");
        Ran { times, max: 0 }
    }
}

impl Ran {
    /// Counts a command that ran for `time`. An attempt for which no command ran is not counted.
    pub(super) fn note(&mut self, outcome: &Outcome, time: Nanos) {
        use Outcome::{Exited, Killed, Ok, OutputLost, TimedOut, WantedTerminal};
        if matches!(outcome, Ok | Exited(_) | Killed(_) | TimedOut | WantedTerminal | OutputLost(_)) {
            self.times.saturating_record(time);
            self.max = self.max.max(time);
        }
    }

    /// The time within which `share` of the commands ended.
    fn at(&self, share: f64) -> Nanos {
        self.times.value_at_quantile(share).min(self.max)
    }

    /// `took 120 ms (half), 480 ms (99 of 100), 2.1 s at most`
    pub(crate) fn text(&self) -> Option<String> {
        match self.times.len() {
            0 => None,
            1 => Some(format!("took {}", shown(self.max))),
            _ => {
                let [half, most] = [0.5, 0.99].map(|share| shown(self.at(share)));
                Some(format!("took {half} (half), {most} (99 of 100), {} at most", shown(self.max)))
            }
        }
    }

    pub(crate) fn json(&self) -> Value {
        let at = |share| (!self.times.is_empty()).then(|| self.at(share));
        json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0).map(|_| self.max)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throttle_limits::clock::SECOND;

    #[test]
    fn run_times_show_the_median_the_percentile_and_the_maximum() {
        let mut ran = Ran::default();
        assert_eq!((ran.text(), ran.json()["max"].clone()), (None, Value::Null));
        ran.note(&Outcome::TooLong, SECOND);
        assert_eq!(ran.text(), None, "nothing ran");
        ran.note(&Outcome::TimedOut, 1_234_567_890);
        assert_eq!(ran.text().as_deref(), Some("took 1.23 s"));
        (0..98).for_each(|_| ran.note(&Outcome::Ok, 100_000_000));
        ran.note(&Outcome::Exited(1), 30 * SECOND);
        let text = ran.text().unwrap();
        assert!(text.starts_with("took 100 ms (half), 1.2") && text.ends_with(" (99 of 100), 30 s at most"), "{text}");
        let json = ran.json();
        let number = |name: &str| json[name].as_u64().unwrap();
        assert!((99_000_000..=101_000_000).contains(&number("p50")), "{json}");
        assert!((99_000_000..=101_000_000).contains(&number("p90")), "{json}");
        assert_eq!(number("max"), 30 * SECOND);
    }
}
