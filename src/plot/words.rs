//! Numbers and times as text.

use super::history::{Micros, SECOND};
use tz::UtcDateTime;

/// A number with three significant digits: `18.9`, `0.25`, `1200`.
pub(super) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        9.995.. => usize::from(value.abs() < 99.95),
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number with thin spaces between groups of three digits.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let blank = |place: usize| place > 0 && (digits.len() - place).is_multiple_of(3);
    let grouped = |(place, digit): (usize, char)| [blank(place).then_some('\u{202f}'), Some(digit)];
    digits.chars().enumerate().flat_map(grouped).flatten().collect()
}

/// `1 unit`, `2 units`.
pub(super) fn counted(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// `99 ms`, `1.25 s`, `2 min 5 s`, `3 h 12 min`, `2 d 4 h`.
pub(super) fn duration(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let whole = seconds.round() as u64;
    let two = |size: u64, name: &str, less: u64, lesser: &str| match whole % size / less {
        0 => format!("{} {name}", whole / size),
        rest => format!("{} {name} {rest} {lesser}", whole / size),
    };
    match whole {
        _ if seconds < 0.9995 => format!("{} ms", number(seconds * 1000.0)),
        _ if seconds < 59.95 => format!("{} s", number(seconds)),
        0..3600 => two(60, "min", 1, "s"),
        3600..86_400 => two(3600, "h", 60, "min"),
        _ => two(86_400, "d", 3600, "h"),
    }
}

/// The format of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Day,
    Minute,
    Second,
    Tenth,
    DayAndMinute,
    DayAndSecond,
}

/// A time on a clock that is `offset` seconds ahead of UTC.
pub(super) fn time(at: Micros, offset: i64, shown: Shown) -> String {
    let seconds = at.div_euclid(SECOND).saturating_add(offset);
    let Ok(time) = UtcDateTime::from_timespec(seconds, 0) else { return "an unknown time".to_owned() };
    let day = format!("{:04}-{:02}-{:02}", time.year(), time.month(), time.month_day());
    let minute = format!("{:02}:{:02}", time.hour(), time.minute());
    let second = format!("{minute}:{:02}", time.second());
    match shown {
        Shown::Day => day,
        Shown::Minute => minute,
        Shown::Second => second,
        Shown::Tenth => format!("{second}.{}", at.rem_euclid(SECOND) / (SECOND / 10)),
        Shown::DayAndMinute => format!("{day} {minute}"),
        Shown::DayAndSecond => format!("{day} {second}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_times_two_units() {
        let numbers = [0.0, 0.004, 0.25, 9.994, 18.94, 99.96, 1234.4, 1e9].map(number);
        assert_eq!(numbers, ["0", "0", "0.25", "9.99", "18.9", "100", "1234", "1000000000"]);
        let durations = [0.0, 0.0123, 0.9, 1.0, 12.3, 59.96, 125.0, 3600.0, 11_520.0, 200_000.0].map(duration);
        let words =
            ["0 ms", "12.3 ms", "900 ms", "1 s", "12.3 s", "1 min", "2 min 5 s", "1 h", "3 h 12 min", "2 d 7 h"];
        assert_eq!(durations, words);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
    }

    #[test]
    fn times_are_those_of_the_offset_and_any_is_text() {
        let at = 1_795_727_053_602_381;
        let shown = |shown| time(at, 3600, shown);
        assert_eq!(shown(Shown::DayAndSecond), "2026-11-26 22:04:13");
        assert_eq!([Shown::Tenth, Shown::Minute, Shown::Day].map(shown), ["22:04:13.6", "22:04", "2026-11-26"]);
        assert_eq!(time(Micros::MAX, i64::MAX, Shown::Day), "an unknown time");
        assert_eq!(time(-1, 0, Shown::DayAndSecond), "1969-12-31 23:59:59");
    }
}
