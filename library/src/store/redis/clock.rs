//! The server's clock, as known here.

use crate::clock::{BootClock, Clock, FakeClock, Nanos};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// How far two clocks may drift apart while awake: NTP slews by at most 500 ppm.
const DRIFT: Nanos = 2_000;

/// How far they may drift apart during a sleep: 50 ppm, which is much for a quartz. A wait of a day ends four seconds
/// late.
const DRIFT_ASLEEP: Nanos = 20_000;

/// The bucket's clock on the server. This estimate is never ahead of it.
///
/// A request is sent, answered and read, in this order, and the answer contains the server's time. So the server's
/// clock is ahead of ours by at least what it would be if the answer took no time, and by at most what it would be if
/// the request took none. The highest lower bound found so far is used. So nothing leaves early, and it leaves late by
/// at most the quickest answer's time.
#[derive(Debug)]
pub(super) enum ServerClock {
    /// Known from answers.
    Known {
        /// Our clock, which goes on while the machine is suspended.
        local: BootClock,
        /// The server's time minus ours.
        ahead: AtomicI64,
        /// When that was measured, on our clock.
        found: AtomicU64,
    },
    /// One clock for both sides, in tests.
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

    /// Learns from an answer that carries the server's time, rounded down to microseconds.
    pub(super) fn learn(&self, server: Nanos, asked: Nanos, read: Nanos) {
        let ServerClock::Known { ahead, found, .. } = self else { return };
        let now = estimate(ahead.load(Ordering::Relaxed), found.load(Ordering::Relaxed), server, asked, read);
        ahead.store(now, Ordering::Relaxed);
        found.store(read, Ordering::Relaxed);
    }
}

/// The least that the server's clock is ahead of ours. An older measurement is worth less as it ages. It is dropped if
/// it became impossible: the server's clock was set back, or another server answers.
fn estimate(before: i64, found: Nanos, server: Nanos, asked: Nanos, read: Nanos) -> i64 {
    let least = difference(server, read);
    let most = difference(server.saturating_add(1_000), asked);
    let aged = before.saturating_sub_unsigned(read.saturating_sub(found) / DRIFT);
    if aged > most { least } else { aged.max(least) }
}

fn difference(a: Nanos, b: Nanos) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

impl Clock for ServerClock {
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
