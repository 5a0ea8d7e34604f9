//! Announces long waits for a shared bucket, on a terminal, and long pauses of the bucket, everywhere.

use super::report::{Report, countdown};
use super::time_of_day::until_unless_seen;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use throttle::flow::Flow;
use throttle::flow::pump::{self, PumpError};
use throttle_limits::clock::{Clock, Nanos, SECOND};
use throttle_limits::store::Store;

/// A wait is announced after this time, if it then lasts at least as long again.
const SILENT: Nanos = SECOND;

/// A pause that lasts this long is announced everywhere.
const LONG_PAUSE: Nanos = 60 * SECOND;

/// The announcement of a wait for the bucket. On a terminal it is `line`, elsewhere nothing, unless the bucket is paused.
pub(super) fn announced(bucket: &dyn Store, line: String) -> Option<String> {
    let paused = bucket.paused_until().unwrap_or(0).saturating_sub(bucket.clock().now());
    if paused >= LONG_PAUSE {
        let (time, until) = (countdown(paused), until_unless_seen(paused));
        return Some(format!("the bucket is paused: nothing is granted for {time}{until}"));
    }
    std::io::stderr().is_terminal().then_some(line)
}

/// [`Clock::sleep_unless`]. Calls `say` after a while if there is much time until `turn`.
pub(super) fn sleep_unless(
    clock: &dyn Clock,
    [time, turn]: [Nanos; 2],
    is_over: &dyn Fn() -> bool,
    say: impl FnOnce(String),
) -> bool {
    let begin = clock.now().saturating_add(SILENT);
    if turn >= begin.saturating_add(SILENT) {
        if !clock.sleep_unless(begin, is_over) {
            return false;
        }
        say(format!("waiting for its turn: {} (Ctrl-C gives it back)", countdown(turn.saturating_sub(clock.now()))));
    }
    clock.sleep_unless(time, is_over)
}

/// Runs the pump. `is_announced`: long waits are.
///
/// # Errors
/// As [`pump::run`].
pub(super) fn run(is_announced: bool, flow: &mut impl Flow, report: &Report) -> Result<(), PumpError> {
    let announcing = Announcing { report, longest: AtomicU64::new(0) };
    let clock: &dyn Clock = if is_announced { &announcing } else { report.supply.clock() };
    pump::run_on(flow, &report.supply, clock, &report.meter)
}

/// The clock of a stream that announces a long wait: not each time, but if it is much longer than any before.
#[derive(Debug)]
struct Announcing<'a> {
    report: &'a Report,
    longest: AtomicU64,
}

impl Clock for Announcing<'_> {
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
            // A pause that a server asked this run for was announced already.
            let line = announced(self.report.supply.store(), line).filter(|_| self.report.told_until().is_none());
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
        for (wait, told) in
            [(2 * SECOND - 1, None), (2 * SECOND, Some((SECOND, "1 s"))), (61 * SECOND, Some((SECOND, "1m")))]
        {
            let (clock, seen) = (FakeClock::default(), RefCell::new(None));
            sleep_unless(&clock, [wait; 2], &|| false, |line| *seen.borrow_mut() = Some((clock.now(), line)));
            let expected = told.map(|(at, time)| (at, format!("waiting for its turn: {time} (Ctrl-C gives it back)")));
            assert_eq!((clock.now(), seen.into_inner()), (wait, expected));
        }
    }
}
