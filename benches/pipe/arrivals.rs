//! When units arrive at the reader, and what that shows about their limit.

use crate::flow::{self, Feed};
use crate::tool::Tool;
use anyhow::Result;
use throttle_limits::clock::{NanoClock, Nanos, SECOND, SystemClock};

/// What each read returned: when, and how many units. Times count from the start of the tool.
pub(crate) struct Arrivals(pub(crate) Vec<(Nanos, u64)>);

impl Arrivals {
    /// Runs `tool` and records when lines come out.
    pub(crate) fn of_lines(tool: Tool, feed: &Feed) -> Result<Self> {
        Arrivals::of(tool, feed, |piece| memchr::memchr_iter(b'\n', piece).count() as u64)
    }

    /// Runs `tool` and records when bytes come out.
    pub(crate) fn of_bytes(tool: Tool, feed: &Feed) -> Result<Self> {
        Arrivals::of(tool, feed, |piece| piece.len() as u64)
    }

    fn of(tool: Tool, feed: &Feed, count: impl Fn(&[u8]) -> u64) -> Result<Self> {
        let mut seen = Vec::new();
        let start = SystemClock.now();
        let mut running = flow::start(tool, feed, false)?;
        running.read(|piece| seen.push((SystemClock.now() - start, count(piece))))?;
        running.end()?;
        Ok(Arrivals(seen))
    }

    /// The relative error of the mean rate against `per_second`. Time starts with the first arrival.
    pub(crate) fn off(&self, per_second: f64) -> f64 {
        let (Some((first, _)), Some((last, _))) = (self.0.first(), self.0.last()) else { return f64::NAN };
        let units: u64 = self.0.iter().skip(1).map(|(_, units)| units).sum();
        (units as f64 / seconds(last - first) / per_second - 1.0).abs()
    }

    /// The most units in any interval beyond `burst` and what `per_second` allows in it.
    pub(crate) fn most_over(&self, per_second: f64, burst: f64) -> f64 {
        // An interval from one read to a later one holds the rate's share and the growth of the lead.
        let (mut lead, mut least, mut most, mut before) = (0.0, f64::INFINITY, f64::NEG_INFINITY, 0);
        for &(at, units) in &self.0 {
            lead -= per_second * seconds(at - before);
            least = f64::min(least, lead);
            lead += units as f64;
            most = f64::max(most, lead - least);
            before = at;
        }
        most - burst
    }

    /// How late each unit after the first `skipped` is, in seconds, sorted. The schedule is that of the earliest unit.
    pub(crate) fn lateness(&self, per_second: f64, skipped: usize) -> Vec<f64> {
        let units = self.0.iter().flat_map(|&(at, units)| (0..units).map(move |_| at));
        let times = units.enumerate().skip(skipped).map(|(k, at)| seconds(at) - k as f64 / per_second);
        above_least(times.collect())
    }
}

/// The differences to the least, sorted.
pub(crate) fn above_least(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let least = values.first().copied().unwrap_or(f64::NAN);
    values.iter().map(|value| value - least).collect()
}

/// In seconds.
pub(crate) fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / SECOND as f64
}

/// The percentile `percent` of `sorted`.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or(f64::NAN)
}

/// The median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    percentile(&values, 50)
}
