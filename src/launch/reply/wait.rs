//! The one parser for a time in a field of a response: numbers, durations and dates, as servers write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest time: 136 years. Longer times are shortened to it. Added to any clock, it fits into 64 bits of
/// nanoseconds.
pub(super) const MAX_TIME: Duration = Duration::from_secs(u32::MAX as u64);

/// A number of at least this size is a time since 1970.
const EPOCH: u64 = 1_000_000_000;

/// The unit of a number below 10^9 without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

/// The longest wait that a value names, and whether all of the value can be read. A value is a wait or a list of waits,
/// separated by commas. A semicolon begins parameters, which are ignored.
pub(super) fn longest(value: &str, unit: Unit, now: SystemTime) -> (Option<Duration>, bool) {
    let read = |text: &str| wait(parts(text, ';').next().unwrap_or_default().trim(), unit, now);
    if let Some(wait) = read(value) {
        return (Some(wait), true);
    }
    let (mut longest, mut is_whole) = (None, true);
    // The comma of a date separates nothing: `Tue, 14 Nov 2023 22:14:20 GMT, 30`.
    let mut items = parts(value, ',').peekable();
    while let Some(item) = items.next() {
        let with_next = |next: &&str| date(&format!("{},{next}", item.trim_start()));
        let found = match items.peek().and_then(with_next) {
            Some(date) => {
                items.next();
                Some(until(date, now))
            }
            None => read(item),
        };
        is_whole &= found.is_some();
        longest = longest.max(found);
    }
    (longest, is_whole)
}

/// The parts of `text` between the separators that are outside quotes. In quotes, a backslash escapes a character.
pub(super) fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            '"' if !was_escaped => is_quoted = !is_quoted,
            _ => return c == separator && !is_quoted,
        }
        false
    })
}

/// Parses `30`, `1.5` or `2.5E0`. The result is in seconds; a larger number than a duration can be is the longest one.
pub(super) fn number(text: &str) -> Option<Duration> {
    Some(in_seconds(decimal(text)?))
}

fn decimal(text: &str) -> Option<f64> {
    let is_plain = text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && text.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    text.parse().ok().filter(|_| is_plain)
}

fn in_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Parses one time: the time from now that it names; 0 for a past time.
fn wait(text: &str, unit: Unit, now: SystemTime) -> Option<Duration> {
    let of_number = |number: Duration| match since_1970(number) {
        Some(time) => until(UNIX_EPOCH.checked_add(time.min(2 * MAX_TIME)).unwrap_or(UNIX_EPOCH), now),
        None if unit == Unit::Milliseconds => number / 1000,
        None => number,
    };
    let found = number(text).map(of_number).or_else(|| terms(text)).or_else(|| clock(text));
    Some(found.or_else(|| Some(until(date(text)?, now)))?.min(MAX_TIME))
}

/// A number from 10^9 on is a time since 1970: in seconds, milliseconds, microseconds or nanoseconds, by its size.
fn since_1970(number: Duration) -> Option<Duration> {
    const THOUSAND: u64 = 1000;
    let per_second = match number.as_secs() {
        0..EPOCH => return None,
        size if size / THOUSAND < EPOCH => 1,
        size if size / THOUSAND.pow(2) < EPOCH => 1000,
        size if size / THOUSAND.pow(3) < EPOCH => 1_000_000,
        _ => 1_000_000_000,
    };
    Some(number / per_second)
}

fn until(date: SystemTime, now: SystemTime) -> Duration {
    date.duration_since(now).unwrap_or_default()
}

/// Parses numbers with units: `1h30m`, `1m 30s`, `880.092µs`, `0.30000000000000004s`, `PT1M30S`. The crate humantime
/// has the units, but it refuses a fraction that is not a whole number of nanoseconds.
fn terms(text: &str) -> Option<Duration> {
    let lower = text.to_lowercase();
    let mut rest = lower.strip_prefix("pt").unwrap_or(&lower);
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let (number_text, after) = rest.split_at(end_of_number(rest));
        let (unit, next) = after.trim_start().split_at(end_of_word(after.trim_start()));
        // The Greek letter, and the sign for micro, which humantime knows.
        let unit = unit.replace('\u{3bc}', "\u{b5}");
        let unit = humantime::parse_duration(&format!("1{unit}")).ok()?;
        sum = sum.saturating_add(in_seconds(decimal(number_text)? * unit.as_secs_f64()));
        rest = next.trim_start();
    }
    Some(sum).filter(|_| !text.is_empty())
}

/// The length of the number at the start of `text`: digits, a fraction, and an exponent.
fn end_of_number(text: &str) -> usize {
    let digits_from = |start: usize| {
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        text[start..].find(|c| !is_part(c)).map_or(text.len(), |more| start + more)
    };
    let end = digits_from(0);
    let exponent = text[end..].strip_prefix('e').map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    match exponent {
        Some(exponent) if exponent.starts_with(|c: char| c.is_ascii_digit()) => {
            digits_from(text.len() - exponent.len())
        }
        _ => end,
    }
}

fn end_of_word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len())
}

/// Parses `0:00:30`, `1 day, 2:00:00` and `0:00:00.250000`, as Python prints a `timedelta`.
fn clock(text: &str) -> Option<Duration> {
    let (days, time) = match text.split_once(" day") {
        Some((days, rest)) => (number(days)?, rest.strip_prefix('s').unwrap_or(rest).strip_prefix(',')?.trim_start()),
        None => (Duration::ZERO, text),
    };
    let mut parts = time.split(':').map(number);
    let (Some(hours), Some(minutes), Some(seconds), None) = (parts.next()?, parts.next()?, parts.next()?, parts.next())
    else {
        return None;
    };
    let terms = [(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)];
    Some(terms.into_iter().fold(Duration::ZERO, |sum, (count, each)| sum.saturating_add(count.saturating_mul(each))))
}

/// Parses a date of HTTP, `Tue, 14 Nov 2023 23:14:20 +0100` of mail, or a date of RFC 3339.
pub(super) fn date(text: &str) -> Option<SystemTime> {
    let of_mail = || {
        let (date, zone) = text.rsplit_once(' ')?;
        let date = httpdate::parse_http_date(&format!("{date} GMT")).ok()?;
        if zone.eq_ignore_ascii_case("UTC") { Some(date) } else { shifted(date, zone) }
    };
    httpdate::parse_http_date(text).ok().or_else(of_mail).or_else(|| rfc3339(text))
}

/// Parses `2023-11-14T23:14:20.5+01:00`. Atlassian leaves out the seconds.
fn rfc3339(text: &str) -> Option<SystemTime> {
    const DAY: usize = "2023-11-14T".len();
    let time = text.get(DAY..)?;
    let zone = DAY + time.rfind(['Z', 'z', '+', '-'])?;
    let (local, zone) = (text[..zone].replace('t', "T"), &text[zone..]);
    let local = if local[DAY..].contains(':') && local.len() == "2023-11-14T22:14".len() {
        format!("{local}:00")
    } else {
        local
    };
    shifted(humantime::parse_rfc3339_weak(&local).ok()?, zone)
}

/// The time that is `local` in a zone: `Z`, `+01:00` or `-0530`.
fn shifted(local: SystemTime, zone: &str) -> Option<SystemTime> {
    if zone.eq_ignore_ascii_case("Z") {
        return Some(local);
    }
    let digits = zone.get(1..)?.replacen(':', "", 1);
    let minutes: u64 =
        digits.parse().ok().filter(|_| digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()))?;
    let (hours, minutes) = (minutes / 100, minutes % 100);
    let offset = Duration::from_secs(3600 * hours + 60 * minutes);
    match zone.as_bytes().first()? {
        _ if hours > 23 || minutes > 59 => None,
        b'+' => local.checked_sub(offset),
        b'-' => local.checked_add(offset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tue, 14 Nov 2023 22:13:20 GMT.
    const NOW: u64 = 1_700_000_000;

    fn read(value: &str) -> (Option<Duration>, bool) {
        longest(value, Unit::Seconds, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    #[test]
    fn durations_are_read_as_go_python_and_javascript_print() {
        for (value, seconds) in [
            ("880.092µs", 0.000_880_092),
            ("880.092μs", 0.000_880_092),
            ("880.092us", 0.000_880_092),
            ("0.30000000000000004s", 0.3),
            ("0.30000000000000004", 0.3),
            ("2.5E0", 2.5),
            ("1e-07", 1e-7),
            ("2.5e+0s", 2.5),
            ("1.5e3ms", 1.5),
            ("1h0m0.5s", 3600.5),
            ("1.0000000001h", 3_600.000_000_36),
            ("30 Seconds", 30.0),
            ("PT1M30.5S", 90.5),
            ("0:00:30", 30.0),
            ("0:00:00.250000", 0.25),
            ("1 day, 2:00:01", 93_601.0),
            ("2 days, 0:00:00", 172_800.0),
        ] {
            assert_eq!(read(value), (Some(Duration::from_secs_f64(seconds)), true), "{value}");
        }
    }

    #[test]
    fn dates_are_read_with_any_offset() {
        for value in [
            "2023-11-14T22:14:20Z",
            "2023-11-14t22:14:20z",
            "2023-11-14T22:14:20.000000+00:00",
            "2023-11-14T23:14:20+01:00",
            "2023-11-15T03:44:20+05:30",
            "2023-11-14T17:14:20-05:00",
            "2023-11-14 17:14:20-0500",
            "Tue, 14 Nov 2023 22:14:20 GMT",
            "Tue, 14 Nov 2023 23:14:20 +0100",
            "Tue, 14 Nov 2023 22:14:20 -0000",
            "Tue, 14 Nov 2023 22:14:20 UTC",
        ] {
            assert_eq!(read(value), (Some(Duration::from_secs(60)), true), "{value}");
        }
        assert_eq!(read("2023-11-14T23:14+01:00"), (Some(Duration::from_secs(40)), true));
        for value in ["2023-11-14T22:14:20", "2023-11-14T22:14:20+24:00", "2023-11-14T22:14:20+1", "2023-11-14T", "T+"]
        {
            assert_eq!(read(value), (None, false), "{value}");
        }
    }

    #[test]
    fn a_number_from_a_billion_on_is_a_time_since_1970() {
        for unit in [Unit::Seconds, Unit::Milliseconds] {
            for value in ["1700000030", "1700000030000", "1700000030000000", "1700000030000000000", "1.70000003e9"] {
                let (wait, _) = longest(value, unit, UNIX_EPOCH + Duration::from_secs(NOW));
                let wait = wait.unwrap().as_secs_f64();
                assert!((wait - 30.0).abs() < 1e-6, "{value}: {wait}");
            }
        }
        assert_eq!(read("999999999").0, Some(Duration::from_secs(999_999_999)));
        assert_eq!(read("1000000000").0, Some(Duration::ZERO));
    }

    #[test]
    fn the_longest_item_of_a_list_counts() {
        let minute = Some(Duration::from_secs(60));
        for (value, is_whole) in [
            ("30, 60, 5", true),
            ("60;w=90, 30", true),
            ("Tue, 14 Nov 2023 22:14:20 GMT, 30", true),
            ("30, Tue, 14 Nov 2023 22:14:20 GMT", true),
            ("2023-11-14T22:14:20Z,soon", false),
            ("soon, 60", false),
        ] {
            assert_eq!(read(value), (minute, is_whole), "{value}");
        }
    }

    #[test]
    fn separators_in_quotes_separate_nothing() {
        let found: Vec<&str> = parts(r#""a,\"b", c,"d"#, ',').collect();
        assert_eq!(found, [r#""a,\"b""#, " c", r#""d"#]);
    }
}
