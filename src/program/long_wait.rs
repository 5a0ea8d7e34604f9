//! Announces long waits for a shared bucket. A long pause of the bucket is announced everywhere, any other long wait
//! only on a terminal.

use super::report::{Report, countdown};
use super::time_of_day::until_if_read_later;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use throttle::flow::pump::{self, PumpError};
use throttle::flow::{Flow, Grants, Patience, Silent, unpoisoned};
use throttle_limits::clock::{NanoClock, Nanos, SECOND};
use throttle_limits::store::{Store, with_replica};

/// A wait is announced once it has lasted for this time, if at least the same time is left.
const ANNOUNCED_AFTER: Nanos = SECOND;

/// A pause of at least this length is announced everywhere.
const LONG_PAUSE: Nanos = 60 * SECOND;

/// The announcement of a wait for the bucket. A long pause of the bucket has its own text, which is printed everywhere.
/// For any other wait it is `line`, and only on a terminal.
pub(super) fn announced(bucket: &dyn Store, line: String) -> Option<String> {
    let until = with_replica(bucket, |replica| replica.paused_until()).unwrap_or(0);
    let paused = until.saturating_sub(bucket.clock().now());
    if paused >= LONG_PAUSE {
        let (time, until) = (countdown(paused), until_if_read_later(paused));
        return Some(format!("the bucket is paused: nothing is granted for {time}{until}"));
    }
    std::io::stderr().is_terminal().then_some(line)
}

/// Runs the pump. `is_announced` means that long waits are announced.
///
/// # Errors
/// The errors of [`pump::run`].
pub(super) fn run<F: Flow>(
    is_announced: bool,
    flow: &mut F,
    grants: &Grants<F::Unit>,
    report: &Report,
) -> Result<(), PumpError> {
    let announcing = Announcing { report, longest: AtomicU64::new(0), current: Mutex::default() };
    let patience: &dyn Patience = if is_announced { &announcing } else { &Silent };
    pump::run(flow, grants, patience, &report.meter)
}

/// Announces a long wait of a stream, if the wait is at least twice as long as each earlier announced wait.
struct Announcing<'a> {
    report: &'a Report,
    longest: AtomicU64,
    /// The end of the current wait, and when it began.
    current: Mutex<(Nanos, Nanos)>,
}

impl Patience for Announcing<'_> {
    fn wait(&self, now: Nanos, until: Nanos, wait: &mut dyn FnMut(Nanos) -> bool) -> bool {
        let turn = self.report.grants.waits_until().max(until);
        let begun = {
            let mut current = unpoisoned(self.current.lock());
            // The same wait goes on after other events.
            let is_same = turn.abs_diff(current.0) < SECOND / 10;
            *current = (turn, if is_same { current.1 } else { now });
            current.1
        };
        let whole = turn.saturating_sub(begun);
        if whole / 2 < self.longest.load(Ordering::Relaxed) {
            return wait(until);
        }
        wait_for([now, begun], [until, turn], wait, |line| {
            self.longest.store(whole, Ordering::Relaxed);
            // A pause that a server requested from this run was announced already.
            let bucket = self.report.grants.bucket();
            let line = bucket.and_then(|bucket| announced(&**bucket, line));
            if let Some(line) = line.filter(|_| self.report.paused_until().is_none()) {
                self.report.aside(line);
            }
        })
    }
}

/// Whether a wait from the first time to the second is announced.
fn is_long([begun, turn]: [Nanos; 2]) -> bool {
    turn >= begun.saturating_add(2 * ANNOUNCED_AFTER)
}

/// Waits from now until a time, by calls of `wait`. `turn` is the time of the grant. If that is far away from the
/// beginning of the wait, calls `say` with an announcement after `ANNOUNCED_AFTER`.
fn wait_for(
    [now, begun]: [Nanos; 2],
    [until, turn]: [Nanos; 2],
    wait: &mut dyn FnMut(Nanos) -> bool,
    say: impl FnOnce(String),
) -> bool {
    let speaks = begun.saturating_add(ANNOUNCED_AFTER);
    if is_long([begun, turn]) && until >= speaks {
        if now < speaks && !wait(speaks) {
            return false;
        }
        say(format!(
            "waiting for its turn: {} (Ctrl-C gives it back)",
            countdown(turn.saturating_sub(speaks.max(now)))
        ));
    }
    wait(until)
}

/// Sleeps until `time`, like [`NanoClock::sleep_unless`], in a wait that began at `begun`. `turn` is the expected time of
/// the grant. If that is far away from the beginning, calls `say` with an announcement after `ANNOUNCED_AFTER`.
pub(super) fn sleep_from(
    clock: &dyn NanoClock,
    begun: Nanos,
    [time, turn]: [Nanos; 2],
    is_over: &dyn Fn() -> bool,
    say: impl FnOnce(String),
) -> bool {
    wait_for([clock.now(), begun], [time, turn], &mut |time| clock.sleep_unless(time, is_over), say)
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
            sleep_from(&clock, 0, [wait; 2], &|| false, |line| *message.borrow_mut() = Some((clock.now(), line)));
            let expected =
                announcement.map(|(at, time)| (at, format!("waiting for its turn: {time} (Ctrl-C gives it back)")));
            assert_eq!((clock.now(), message.into_inner()), (wait, expected));
        }
    }
}
