//! An estimate of the server's clock.

use crate::clock::{BootClock, FakeClock, NanoClock, Nanos};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// While awake, two clocks may drift apart by one nanosecond in this many: NTP slews by at most 500 ppm.
const DRIFT: Nanos = 2_000;

/// During a sleep, two clocks may drift apart by one nanosecond in this many: 50 ppm, a large drift for a quartz. So a
/// wait of a day ends four seconds late.
const DRIFT_ASLEEP: Nanos = 20_000;

/// The bucket's clock on the server. This estimate is never ahead of it.
///
/// Each answer contains the server's time, and gives two bounds for the server's time minus ours. For the lower bound,
/// the answer is assumed to have taken no time: our time is the time when the answer was read. For the upper bound, the
/// request is assumed to have taken no time: our time is the time when the request was sent. The estimate is the
/// highest lower bound of all answers. So no unit leaves early, and a unit leaves late by at most the time of the
/// quickest answer.
#[derive(Debug)]
pub(super) enum ServerClock {
    /// Estimated from answers.
    Known {
        /// Our clock, which goes on while the machine is suspended.
        local: BootClock,
        /// The server's time minus ours.
        ahead: AtomicI64,
        /// The time, on our clock, at which `ahead` was measured.
        found: AtomicU64,
    },
    /// One fake clock for both sides, in tests.
    Shared(FakeClock),
}

impl ServerClock {
    pub(super) fn new() -> Self {
        ServerClock::Known { local: BootClock::new(), ahead: AtomicI64::new(i64::MIN), found: AtomicU64::new(0) }
    }

    /// The time on our clock.
    pub(super) fn local(&self) -> Nanos {
        match self {
            ServerClock::Known { local, .. } => local.now(),
            ServerClock::Shared(clock) => clock.now(),
        }
    }

    /// Updates the estimate from an answer that contains the server's time, rounded down to microseconds.
    pub(super) fn learn(&self, server: Nanos, sent: Nanos, read: Nanos) {
        let ServerClock::Known { ahead, found, .. } = self else { return };
        let now = estimate(ahead.load(Ordering::Relaxed), found.load(Ordering::Relaxed), server, sent, read);
        ahead.store(now, Ordering::Relaxed);
        found.store(read, Ordering::Relaxed);
    }
}

/// The lower bound of the server's time minus ours. An older bound decreases as it ages. It is dropped if it became
/// impossible: then the server's clock was set back, or another server answers.
fn estimate(before: i64, found: Nanos, server: Nanos, sent: Nanos, read: Nanos) -> i64 {
    let least = difference(server, read);
    let most = difference(server.saturating_add(1_000), sent);
    let aged = before.saturating_sub_unsigned(read.saturating_sub(found) / DRIFT);
    if aged > most { least } else { aged.max(least) }
}

fn difference(a: Nanos, b: Nanos) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

impl NanoClock for ServerClock {
    fn now(&self) -> Nanos {
        match self {
            ServerClock::Known { local, ahead, .. } => local.now().saturating_add_signed(ahead.load(Ordering::Relaxed)),
            ServerClock::Shared(clock) => clock.now(),
        }
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        match self {
            ServerClock::Known { local, ahead, .. } => {
                let end = time.saturating_add_signed(ahead.load(Ordering::Relaxed).saturating_neg());
                let drifted = end.saturating_sub(local.now()) / DRIFT_ASLEEP;
                local.sleep_unless(end.saturating_add(drifted), is_over)
            }
            ServerClock::Shared(clock) => clock.sleep_unless(time, is_over),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_quickest_answer_tells_best_how_far_ahead_the_server_is() {
        // The server is 100 ms ahead.
        let slow = estimate(i64::MIN, 0, 115 * MS, 10 * MS, 30 * MS);
        assert_eq!(slow, 85_000_000, "the answer took 15 ms of the 20");
        let quick = estimate(slow, 30 * MS, 141 * MS, 40 * MS, 42 * MS);
        assert_eq!(quick, 99_000_000);
        let late = estimate(quick, 42 * MS, 151 * MS, 50 * MS, 90 * MS);
        assert_eq!(late, quick - 24_000, "it ages by 48 ms at 500 ppm");
    }

    #[test]
    fn a_clock_that_was_set_back_is_believed() {
        let before = estimate(i64::MIN, 0, 1_000 * MS, 10 * MS, 12 * MS);
        assert_eq!(estimate(before, 12 * MS, 500 * MS, 20 * MS, 22 * MS), 478_000_000);
    }
}
