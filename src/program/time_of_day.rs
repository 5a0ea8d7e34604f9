//! Times of the wall clock, for people.

use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tz::{DateTime, TimeZone, TimeZoneRef};

/// A local time: `14:05`, or `2026-11-23 14:05` if it is on another day than `now`. If the system does not report the
/// local time, it is in UTC, as for date(1).
pub(super) fn local(time: SystemTime, now: SystemTime) -> String {
    shown(time, now, zone().as_ref())
}

fn zone() -> TimeZone {
    let named = std::env::var("TZ").ok().filter(|name| !name.is_empty());
    let zone = named.map_or_else(TimeZone::local, |name| TimeZone::from_posix_tz(&name));
    zone.unwrap_or_else(|_| TimeZone::utc())
}

/// The seconds by which local time is ahead of UTC. `seconds` is the time, in seconds since 1970.
pub(super) fn utc_offset(seconds: i64) -> i64 {
    zone().find_local_time_type(seconds).map_or(0, |kind| kind.ut_offset().into())
}

/// `until 14:05`: the end of a wait of `wait` nanoseconds.
pub(super) fn until_text(wait: u64) -> String {
    let now = SystemTime::now();
    let end = now.checked_add(Duration::from_nanos(wait)).unwrap_or(now);
    format!("until {}", local(end, now))
}

/// `, until 14:05` after a wait, unless standard error is a terminal: a file or a mail is read later.
pub(super) fn until_if_read_later(wait: u64) -> String {
    if std::io::stderr().is_terminal() { String::new() } else { format!(", {}", until_text(wait)) }
}

fn shown(time: SystemTime, now: SystemTime, zone: TimeZoneRef<'_>) -> String {
    let read = |time: SystemTime| {
        let seconds = i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
        DateTime::from_timespec(seconds, 0, zone)
    };
    let (Ok(time), Ok(now)) = (read(time), read(now)) else { return "an unknown time".to_owned() };
    let minutes = format!("{:02}:{:02}", time.hour(), time.minute());
    if (time.year(), time.year_day()) == (now.year(), now.year_day()) {
        return minutes;
    }
    format!("{:04}-{:02}-{:02} {minutes}", time.year(), time.month(), time.month_day())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_today_has_no_date() {
        // 2026-11-22 23:30 UTC
        let at = |minutes: u64| UNIX_EPOCH + Duration::from_secs(1_795_390_200 + 60 * minutes);
        let berlin = TimeZone::from_posix_tz("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (zone, minutes, words) in [
            (TimeZoneRef::utc(), 0, "23:30"),
            (TimeZoneRef::utc(), 29, "23:59"),
            (TimeZoneRef::utc(), 30, "2026-11-23 00:00"),
            (berlin.as_ref(), 30, "01:00"),
            (berlin.as_ref(), 60 * 24 * 180, "2027-05-22 01:30"),
        ] {
            assert_eq!(shown(at(minutes), at(0), zone), words);
        }
    }
}
