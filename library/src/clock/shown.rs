//! Times for people: `1.5 ms`, `29 s`, `58m`, `3m 20s`, `1h 23m`, `2d 5h`.

use super::time::{MILLISECOND, Nanos, SECOND};

const MINUTE: Nanos = 60 * SECOND;
const HOUR: Nanos = 60 * MINUTE;
const DAY: Nanos = 24 * HOUR;

/// Shows a time with three digits; from a minute on, with its two largest units.
///
/// ```
/// use throttle_limits::clock::shown;
/// assert_eq!([0, 1_234_567, 29_000_000_000, 200_000_000_000].map(shown), ["0 s", "1.23 ms", "29 s", "3m 20s"]);
/// ```
#[must_use]
pub fn shown(nanos: Nanos) -> String {
    let step = step(nanos);
    in_units(nanos.saturating_add(step / 2) / step * step)
}

/// Shows a wait, rounded up, so that the real wait is never longer than shown.
#[must_use]
pub fn shown_wait(nanos: Nanos) -> String {
    in_units(nanos.checked_next_multiple_of(step(nanos)).unwrap_or(nanos))
}

/// The step to which a time is rounded when it is shown.
fn step(nanos: Nanos) -> Nanos {
    match nanos {
        ..MINUTE => 10_u64.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(2)),
        MINUTE..HOUR => SECOND,
        HOUR..DAY if nanos % HOUR < MINUTE => SECOND,
        HOUR..DAY => MINUTE,
        _ if nanos % DAY < HOUR => MINUTE,
        _ => HOUR,
    }
}

fn in_units(nanos: Nanos) -> String {
    match nanos {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        1_000..MILLISECOND => decimal(nanos, 1_000, "µs"),
        MILLISECOND..SECOND => decimal(nanos, MILLISECOND, "ms"),
        SECOND..MINUTE => decimal(nanos, SECOND, "s"),
        MINUTE..HOUR => two((nanos / MINUTE, "m"), (nanos % MINUTE / SECOND, "s")),
        HOUR..DAY if nanos % HOUR < MINUTE => two((nanos / HOUR, "h"), (nanos % HOUR / SECOND, "s")),
        HOUR..DAY => two((nanos / HOUR, "h"), (nanos % HOUR / MINUTE, "m")),
        _ if nanos % DAY < HOUR => two((nanos / DAY, "d"), (nanos % DAY / MINUTE, "m")),
        _ => two((nanos / DAY, "d"), (nanos % DAY / HOUR, "h")),
    }
}

/// The decimal number without trailing zeros.
fn decimal(nanos: Nanos, unit: Nanos, name: &str) -> String {
    let decimals = format!("{:03}", nanos % unit / (unit / 1_000));
    let decimals = decimals.trim_end_matches('0');
    let point = if decimals.is_empty() { "" } else { "." };
    format!("{}{point}{decimals} {name}", nanos / unit)
}

fn two((large, large_name): (Nanos, &str), (small, small_name): (Nanos, &str)) -> String {
    if small == 0 { format!("{large}{large_name}") } else { format!("{large}{large_name} {small}{small_name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_fitting_units() {
        for (nanos, nearest, at_least) in [
            (0, "0 s", "0 s"),
            (999, "999 ns", "999 ns"),
            (1_500, "1.5 µs", "1.5 µs"),
            (1_234_567, "1.23 ms", "1.24 ms"),
            (999_960_000, "1 s", "1 s"),
            (29_000_000_000, "29 s", "29 s"),
            (29_012_000_000, "29 s", "29.1 s"),
            (17_142_857_143, "17.1 s", "17.2 s"),
            (850 * MILLISECOND, "850 ms", "850 ms"),
            (59_999_000_000, "1m", "1m"),
            (12 * MINUTE, "12m", "12m"),
            (200 * SECOND, "3m 20s", "3m 20s"),
            (3_599_979_000_000, "1h", "1h"),
            (HOUR + 5 * MINUTE, "1h 5m", "1h 5m"),
            (HOUR + 23 * MINUTE + SECOND, "1h 23m", "1h 24m"),
            (DAY + HOUR + MINUTE, "1d 1h", "1d 2h"),
            (HOUR + 250 * MILLISECOND, "1h", "1h 1s"),
            (HOUR + MINUTE - SECOND / 4, "1h 1m", "1h 1m"),
            (DAY + SECOND, "1d", "1d 1m"),
            (2 * DAY - SECOND, "2d", "2d"),
            (2 * HOUR - SECOND, "2h", "2h"),
            (2 * DAY + 4 * HOUR, "2d 4h", "2d 4h"),
            (315_273_600 * SECOND, "3649d", "3649d"),
            (Nanos::MAX, "213503d 23h", "213503d 23h"),
        ] {
            assert_eq!((shown(nanos).as_str(), shown_wait(nanos).as_str()), (nearest, at_least), "{nanos}");
        }
    }
}
