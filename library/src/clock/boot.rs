//! The time since the machine started, the same for every process on it.

use super::contract::{Clock, park_until};
use super::time::Nanos;
use std::time::Duration;

/// A parked thread does not notice that the machine was suspended: it looks at the clock so often.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// `CLOCK_BOOTTIME`: changes of the wall clock do not move it, and it goes on while the machine is suspended. In a time
/// namespace this reads the clock of the world outside, so that processes inside and outside agree.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    /// How far the clock inside the namespace is ahead.
    ahead: i64,
}

impl BootClock {
    /// The clock, read in this process's time namespace.
    #[must_use]
    pub fn new() -> Self {
        BootClock { ahead: system::ahead() }
    }

    /// Identifies the last start of the machine. After another start the clock has another origin. `None` if unknown.
    #[must_use]
    pub fn boot(&self) -> Option<u128> {
        system::boot()
    }
}

impl Default for BootClock {
    fn default() -> Self {
        BootClock::new()
    }
}

impl Clock for BootClock {
    fn now(&self) -> Nanos {
        // 292 years are enough for an offset.
        system::now().saturating_add_signed(self.ahead.saturating_neg())
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        park_until(self, time, is_over, LOOK_AGAIN)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use crate::clock::time::{Nanos, SECOND, nanos};
    use rustix::time::{ClockId, clock_gettime};
    use std::fs;

    pub(super) fn now() -> Nanos {
        nanos(&clock_gettime(ClockId::Boottime))
    }

    /// See `time_namespaces(7)`: a line `boottime SECONDS NANOSECONDS`, or no such file.
    pub(super) fn ahead() -> i64 {
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        offset(&offsets).unwrap_or(0)
    }

    pub(super) fn offset(offsets: &str) -> Option<i64> {
        let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<i64>);
        let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        seconds.checked_mul(i64::try_from(SECOND).ok()?)?.checked_add(nanos)
    }

    /// See random(4).
    pub(super) fn boot() -> Option<u128> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()
    }
}

/// Systems without this clock use the monotonic one. After a restart a bucket may then seem to be ahead.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use crate::clock::time::{Nanos, nanos};
    use rustix::time::{ClockId, clock_gettime};

    pub(super) fn now() -> Nanos {
        nanos(&clock_gettime(ClockId::Monotonic))
    }

    pub(super) fn ahead() -> i64 {
        0
    }

    pub(super) fn boot() -> Option<u128> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_never_ends_early() {
        let clock = BootClock::new();
        let end = clock.now() + 3_000_000;
        clock.sleep_until(end);
        assert!(clock.now() >= end);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offset = |text| system::offset(text);
        assert_eq!(
            offset("monotonic           1         2\nboottime           -3         500000000\n"),
            Some(-2_500_000_000)
        );
        assert_eq!(offset("boottime 1000000 0\n"), Some(1_000_000_000_000_000));
        assert_eq!((offset(""), offset("boottime x 0"), offset("boottime 99999999999999 0")), (None, None, None));
    }

    #[test]
    fn the_boot_id_does_not_change() {
        let clock = BootClock::default();
        assert_eq!(clock.boot(), BootClock::new().boot());
    }
}
