//! The rates that are shown: over the last seconds, and over the whole time.

use std::collections::VecDeque;
use throttle::flow::meter::Reading;
use throttle_limits::clock::{Nanos, SECOND};

/// The rate of the last seconds: pairs of time and units, oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<(Nanos, u64)>);

impl Recent {
    pub(super) const SPAN: Nanos = 2 * SECOND;

    /// Units per second since about [`SPAN`](Self::SPAN) ago.
    #[allow(clippy::cast_precision_loss, reason = "only shown")]
    pub(super) fn rate(&mut self, now: Nanos, units: u64) -> f64 {
        while self.0.len() > 1 && self.0[1].0 + Self::SPAN <= now {
            self.0.pop_front();
        }
        let (since, before) = self.0.front().copied().unwrap_or((0, 0));
        self.0.push_back((now, units));
        let elapsed = now.saturating_sub(since).max(1);
        (units - before) as f64 * SECOND as f64 / elapsed as f64
    }
}

/// Units per second over the whole time.
#[allow(clippy::cast_precision_loss, reason = "only shown")]
pub(super) fn mean_rate(reading: &Reading) -> f64 {
    if reading.elapsed == 0 { 0.0 } else { reading.units as f64 * SECOND as f64 / reading.elapsed as f64 }
}
