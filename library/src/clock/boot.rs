//! The time since the machine started, the same for every process on it.

use super::contract::{NanoClock, park_until};
use super::time::{Nanos, SECOND};
use rustix::time::Timespec;
use std::time::Duration;

/// The most time between two readings of the clock by a parked thread, which does not notice that the machine was
/// suspended.
const MAX_PARK: Duration = Duration::from_secs(5);

/// `CLOCK_BOOTTIME`: changes of the wall clock do not move it, and it continues while the machine is suspended. In a
/// time namespace this reads the clock outside the namespace, so that processes inside and outside agree.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    /// The nanoseconds by which the clock inside the namespace is ahead.
    ahead: i64,
}

impl BootClock {
    /// Creates the clock, with the offset of this process's time namespace.
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

impl NanoClock for BootClock {
    fn now(&self) -> Nanos {
        // An offset of up to 292 years is enough.
        system::now().saturating_add_signed(self.ahead.saturating_neg())
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        park_until(self, time, is_over, MAX_PARK)
    }
}

/// Nanoseconds in `time`, which is not negative.
pub(super) fn nanos(time: &Timespec) -> Nanos {
    let seconds = Nanos::try_from(time.tv_sec).unwrap_or(0);
    let nanos = Nanos::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(nanos)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use crate::clock::boot::nanos;
    use crate::clock::time::{Nanos, SECOND};
    use rustix::time::{ClockId, clock_gettime};
    use std::fs;

    pub(super) fn now() -> Nanos {
        nanos(&clock_gettime(ClockId::Boottime))
    }

    /// The offset from `time_namespaces(7)`: a line `boottime SECONDS NANOSECONDS`, if the file exists.
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

/// Systems without this clock use the monotonic clock. After a restart of the machine, the times in a bucket may then
/// lie in the future.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use crate::clock::boot::nanos;
    use crate::clock::time::Nanos;
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
