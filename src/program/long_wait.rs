//! Announces long waits for a shared bucket. A long pause of the bucket is announced everywhere, any other long wait
//! only on a terminal.

use super::report::{Report, countdown};
use super::time_of_day::until_if_read_later;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use throttle::flow::Flow;
use throttle::flow::pump::{self, PumpError};
use throttle_limits::clock::{NanoClock, Nanos, SECOND};
use throttle_limits::store::Store;

/// A wait is announced once it has lasted for this time, if at least the same time is left.
const ANNOUNCED_AFTER: Nanos = SECOND;

/// A pause of at least this length is announced everywhere.
const LONG_PAUSE: Nanos = 60 * SECOND;

/// The announcement of a wait for the bucket. A long pause of the bucket has its own text, which is printed everywhere.
/// For any other wait it is `line`, and only on a terminal.
pub(super) fn announced(bucket: &dyn Store, line: String) -> Option<String> {
    let paused = bucket.paused_until().unwrap_or(0).saturating_sub(bucket.clock().now());
    if paused >= LONG_PAUSE {
        let (time, until) = (countdown(paused), until_if_read_later(paused));
        return Some(format!("the bucket is paused: nothing is granted for {time}{until}"));
    }
    std::io::stderr().is_terminal().then_some(line)
}

/// Sleeps until `time`, like [`NanoClock::sleep_unless`]. `turn` is the time of the grant. If that is still far away,
/// calls `say` with an announcement after `ANNOUNCED_AFTER`.
pub(super) fn sleep_unless(
    clock: &dyn NanoClock,
    [time, turn]: [Nanos; 2],
    is_over: &dyn Fn() -> bool,
    say: impl FnOnce(String),
) -> bool {
    let begin = clock.now().saturating_add(ANNOUNCED_AFTER);
    if turn >= begin.saturating_add(ANNOUNCED_AFTER) {
        if !clock.sleep_unless(begin, is_over) {
            return false;
        }
        say(format!("waiting for its turn: {} (Ctrl-C gives it back)", countdown(turn.saturating_sub(clock.now()))));
    }
    clock.sleep_unless(time, is_over)
}

/// Runs the pump. `is_announced` means that long waits are announced.
///
/// # Errors
/// The errors of [`pump::run`].
pub(super) fn run(is_announced: bool, flow: &mut impl Flow, report: &Report) -> Result<(), PumpError> {
    let announcing = Announcing { report, longest: AtomicU64::new(0) };
    let clock: &dyn NanoClock = if is_announced { &announcing } else { report.supply.clock() };
    pump::run(flow, &report.supply, clock, &report.meter)
}

/// The clock of a stream. It announces a long wait only if the wait is at least twice as long as each earlier announced
/// wait.
#[derive(Debug)]
struct Announcing<'a> {
    report: &'a Report,
    longest: AtomicU64,
}

impl NanoClock for Announcing<'_> {
    fn now(&self) -> Nanos {
        self.report.now()
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        let clock = self.report.supply.clock();
        let turn = self.report.supply.waits_until().max(time);
        let wait = turn.saturating_sub(clock.now());
        if wait / 2 < self.longest.load(Ordering::Relaxed) {
            return clock.sleep_unless(time, is_over);
        }
        sleep_unless(clock, [time, turn], is_over, |line| {
            self.longest.store(wait, Ordering::Relaxed);
            // A pause that a server requested from this run was announced already.
            let line = announced(self.report.supply.store(), line).filter(|_| self.report.paused_until().is_none());
            if let Some(line) = line {
                self.report.aside(line);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use throttle_limits::clock::FakeClock;

    #[test]
    fn only_a_long_wait_is_announced_and_after_a_second() {
        for (wait, announcement) in
            [(2 * SECOND - 1, None), (2 * SECOND, Some((SECOND, "1 s"))), (61 * SECOND, Some((SECOND, "1m")))]
        {
            let (clock, message) = (FakeClock::default(), RefCell::new(None));
            sleep_unless(&clock, [wait; 2], &|| false, |line| *message.borrow_mut() = Some((clock.now(), line)));
            let expected =
                announcement.map(|(at, time)| (at, format!("waiting for its turn: {time} (Ctrl-C gives it back)")));
            assert_eq!((clock.now(), message.into_inner()), (wait, expected));
        }
    }
}
