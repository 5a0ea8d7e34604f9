//! Parses a command's reply: the header fields of an HTTP response, or a part of them.

use super::template::printable;
use crate::flow::cost::Cost;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of a reply that are parsed.
pub(super) const MAX_REPLY_BYTES: usize = 64 * 1024;

/// The longest time: 136 years. Longer times are shortened to it. Added to any clock, it fits into 64 bits of
/// nanoseconds.
const MAX_TIME: Duration = Duration::from_secs(u32::MAX as u64);

/// A reset of at least this number is in seconds since 1970. A reset of at least a thousand times this number is in
/// milliseconds since 1970.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// The field with a real cost.
pub(super) const COST_FIELD: &str = "throttle-cost";

/// The most characters of a bad field in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// A command's reply. Times are at most 136 years.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The status of the last HTTP response.
    pub status: Option<u16>,
    /// The wait from now in `retry-after` or `retry-after-ms`. `Some(None)`: the field has no valid value.
    pub retry_after: Option<Option<Duration>>,
    /// The time until a quota with nothing remaining is renewed; the longest such time if several quotas have nothing
    /// remaining.
    pub reset: Option<Duration>,
    /// The real costs in `throttle-cost` fields, each with the kind of cost that the field names; `None`: it names
    /// none.
    pub costs: Vec<(Option<Cost>, u64)>,
    /// A field with an invalid value, for a message: `retry-after: soon`. It contains no characters that a terminal
    /// obeys.
    pub bad: Option<String>,
}

impl Reply {
    /// Whether the server has processed this request, even without success: for example, it reports that something does
    /// not exist.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.status, Some(200..=499)) && !matches!(self.status, Some(408 | 425 | 429))
    }

    /// Parses lines like `retry-after: 30`. The last field of each name counts, and only fields after the last status
    /// line: `curl -L` also writes the fields of redirects. Other lines are ignored: `wget -S` writes its messages
    /// between the fields.
    pub fn parse(bytes: &[u8], now: SystemTime) -> Self {
        let text = String::from_utf8_lossy(whole_lines(bytes));
        let (mut reply, mut fields) = (Reply::default(), BTreeMap::new());
        for line in text.lines().map(str::trim) {
            if let Some(version) = strip_prefix(line, "http/") {
                let status = version.split_whitespace().nth(1).and_then(|code| code.parse().ok());
                reply.status = status.filter(|code| (100..1000).contains(code));
                fields.clear();
            } else if let Some((name, value)) = line.split_once(':') {
                add(&mut fields, &name.trim_end().to_ascii_lowercase(), value.trim());
            }
        }
        reply.evaluate(&fields, now);
        reply
    }

    fn evaluate(&mut self, fields: &Fields<'_>, now: SystemTime) {
        // The server's clock may differ from ours.
        let now = fields.get("date").and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
        for (name, &value) in fields {
            let name = name.split_once(' ').filter(|(name, _)| *name == COST_FIELD).map_or(&**name, |(name, _)| name);
            let is_good = match name {
                "retry-after" => self.retry_after.insert(wait(value, now)).is_some(),
                // `retry-after-ms` comes after `retry-after` in the map, and is more precise. Azure and OpenAI send
                // both.
                "retry-after-ms" => {
                    let wait = number(value).map(|millis| (millis / 1000).min(MAX_TIME));
                    self.retry_after = wait.map(Some).or(self.retry_after).or(Some(None));
                    wait.is_some()
                }
                COST_FIELD => {
                    let found = cost(value);
                    let is_good = found.is_some();
                    self.costs.extend(found);
                    is_good
                }
                _ if is_reset_of_nothing(name, fields) => {
                    let wait = reset(value, now);
                    self.reset = self.reset.max(wait);
                    wait.is_some()
                }
                _ => true,
            };
            if !is_good && self.bad.is_none() {
                self.bad =
                    Some(printable(&format!("{name}: {value}").chars().take(MAX_SHOWN_CHARS).collect::<String>()));
            }
        }
    }
}

/// The last value of each field that may matter.
type Fields<'a> = BTreeMap<String, &'a str>;

/// The bytes to parse, without an incomplete last line.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let counting = &bytes[..bytes.len().min(MAX_REPLY_BYTES)];
    if counting.len() < MAX_REPLY_BYTES {
        return counting;
    }
    let end = counting.iter().rposition(|&byte| byte == b'\n').unwrap_or_default();
    &counting[..end]
}

fn strip_prefix<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = line.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn add<'a>(fields: &mut Fields<'a>, name: &str, value: &'a str) {
    let name = name.replace("rate-limit", "ratelimit");
    if name == "ratelimit" {
        add_policies(fields, value);
    } else if name == COST_FIELD {
        let kind = value.split_once(char::is_whitespace).map_or("", |(_, kind)| kind.trim());
        fields.insert(format!("{COST_FIELD} {kind}"), value);
    } else if ["retry-after", "retry-after-ms", "date"].contains(&&*name) || name.contains("ratelimit") {
        fields.insert(name, value);
    }
}

/// Adds the field of draft-ietf-httpapi-ratelimit-headers: `"hour";r=0;t=1800, "day";r=9;t=3600`, one pair for each
/// policy. Before version 8 of the draft it was `limit=100, remaining=0, reset=30`.
fn add_policies<'a>(fields: &mut Fields<'a>, value: &'a str) {
    let mut policy = "";
    for part in value.split([',', ';']).map(str::trim) {
        match part.split_once('=') {
            Some(("r" | "remaining", value)) => fields.insert(format!("ratelimit-remaining {policy}"), value),
            Some(("t" | "reset", value)) => fields.insert(format!("ratelimit-reset {policy}"), value),
            Some(_) => None,
            None => {
                policy = part;
                None
            }
        };
    }
}

/// Whether the field is a reset whose related field reports that nothing remains. `x-ratelimit-reset-tokens` belongs to
/// `x-ratelimit-remaining-tokens`, and Discord's `x-ratelimit-reset-after` to `x-ratelimit-remaining`.
fn is_reset_of_nothing(name: &str, fields: &Fields<'_>) -> bool {
    let beside = |reset: &str, other: &str| fields.get(&name.replacen(reset, other, 1));
    let remaining = match () {
        () if name.contains("reset-after") => beside("reset-after", "remaining"),
        // `reset-after` counts instead: a time from now does not depend on a clock.
        () if !name.contains("reset") || beside("reset", "reset-after").is_some() => None,
        () => beside("reset", "remaining"),
    };
    remaining.and_then(|count| number(count)) == Some(Duration::ZERO)
}

/// Parses `30`, or `30 KIND` with a kind as in `cost=KIND`.
fn cost(value: &str) -> Option<(Option<Cost>, u64)> {
    let (number, kind) =
        value.split_once(char::is_whitespace).map_or((value, None), |(n, kind)| (n, Some(kind.trim())));
    Some((kind.map(str::parse).transpose().ok()?, number.parse().ok()?))
}

/// The time until a reset.
fn reset(value: &str, now: SystemTime) -> Option<Duration> {
    let since_1970 = number(value).map(|time| if time >= 1000 * EPOCH { time / 1000 } else { time });
    match since_1970 {
        Some(time) if time >= EPOCH => {
            Some(time.saturating_sub(now.duration_since(UNIX_EPOCH).unwrap_or_default()).min(MAX_TIME))
        }
        _ => wait(value, now),
    }
}

/// Parses seconds, a duration, or a date as the time until then; 0 for a past date.
fn wait(value: &str, now: SystemTime) -> Option<Duration> {
    let date = || httpdate::parse_http_date(value).ok().or_else(|| rfc3339(value));
    number(value)
        .or_else(|| humantime::parse_duration(value).ok())
        .or_else(|| date().map(|date| date.duration_since(now).unwrap_or_default()))
        .map(|wait| wait.min(MAX_TIME))
}

/// Parses `2023-11-14T22:14:20Z`. Atlassian leaves out the seconds.
fn rfc3339(value: &str) -> Option<SystemTime> {
    let without_seconds = || humantime::parse_rfc3339(&format!("{}:00Z", value.strip_suffix('Z')?)).ok();
    humantime::parse_rfc3339(value).ok().or_else(without_seconds)
}

/// Parses `30` or `1.5` as seconds.
fn number(value: &str) -> Option<Duration> {
    let is_decimal = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds: f64 = value.parse().ok().filter(|_| is_decimal)?;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tue, 14 Nov 2023 22:13:20 GMT.
    const NOW: u64 = 1_700_000_000;

    fn parsed(text: &[u8]) -> Reply {
        Reply::parse(text, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_duration_or_a_date() {
        for (value, wait) in [
            ("30", Some(seconds(30))),
            ("0", Some(seconds(0))),
            ("1.5", Some(Duration::from_millis(1500))),
            (".5", Some(Duration::from_millis(500))),
            ("2m", Some(seconds(120))),
            ("1h30m", Some(seconds(5400))),
            ("1m 30s", Some(seconds(90))),
            ("20ms", Some(Duration::from_millis(20))),
            ("Tue, 14 Nov 2023 22:14:20 GMT", Some(seconds(60))),
            ("Tuesday, 14-Nov-23 22:14:20 GMT", Some(seconds(60))),
            ("Tue Nov 14 22:14:20 2023", Some(seconds(60))),
            ("Sun Nov  6 08:50:37 1994", Some(seconds(0))),
            ("Tue, 14 Nov 2023 22:13:19 GMT", Some(seconds(0))),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(seconds(0))),
            ("2023-11-14T22:14:20Z", Some(seconds(60))),
            ("9223372036854775808", Some(MAX_TIME)),
            ("99999999999999999999", Some(MAX_TIME)),
            (&"9".repeat(400), Some(MAX_TIME)),
            ("500years", Some(MAX_TIME)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(MAX_TIME)),
        ] {
            let reply = parsed(format!("retry-after: {value}\n").as_bytes());
            assert_eq!(reply, Reply { retry_after: Some(wait), ..Reply::default() }, "{value}");
        }
    }

    #[test]
    fn a_value_without_sense_is_told_and_still_means_later() {
        for value in
            ["soon", "-5", "-0.5", "", ".", "1.2.3", "inf", "nan", "1e3", "+ 5", "30 apples", "Sun, 6 Nov", "٣"]
        {
            let reply = parsed(format!("Retry-After: {value}\n").as_bytes());
            let bad = Some(format!("retry-after: {value}"));
            assert_eq!(reply, Reply { retry_after: Some(None), bad, ..Reply::default() }, "{value}");
        }
        for value in ["-1", "0.5", "x", "99999999999999999999", "5 tokens", "x f2", "5 f2 f3"] {
            let bad = Some(format!("throttle-cost: {value}"));
            let reply = parsed(format!("throttle-cost: {value}").as_bytes());
            assert_eq!(reply, Reply { bad, ..Reply::default() }, "{value}");
        }
        assert_eq!(parsed(b"retry-after: \x1b[31m\xff").bad.unwrap(), "retry-after: \\u{1b}[31m\u{fffd}");
        assert_eq!(parsed(&[b"retry-after: ", [b'x'; 9999].as_slice()].concat()).bad.unwrap().len(), MAX_SHOWN_CHARS);
    }

    #[test]
    fn lines_are_fields_in_any_case_and_the_last_of_a_name_counts() {
        let reply = Reply { retry_after: Some(Some(seconds(30))), costs: vec![(None, 7)], ..Reply::default() };
        for text in [
            "retry-after: 30\nthrottle-cost: 7\n",
            "throttle-cost:7\r\nRETRY-AFTER:30",
            "  Throttle-Cost : 7 \r\n\t Retry-After:\t30\t\r\n\r\n",
            "retry-after: soon\nthrottle-cost: 9\nthrottle-cost: 7\nretry-after: 30\n",
            "x: y\n\nretry after: 5\n: 5\nretry-after-s: 5\n:\nthrottle-cost: 7\nretry-after: 30\nnonsense\n",
        ] {
            assert_eq!(parsed(text.as_bytes()), reply, "{text}");
        }
    }

    #[test]
    fn a_status_line_starts_over() {
        for (text, status, wait) in [
            ("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\n\r\n", Some(429), Some(Some(seconds(3)))),
            ("HTTP/1.0 503\n", Some(503), None),
            ("HTTP/2 429 \r\nretry-after: 3\r\n", Some(429), Some(Some(seconds(3)))),
            ("http/3 200\n", Some(200), None),
            ("HTTP/1.1 302 Found\r\nRetry-After: 9\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Some(200), None),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 x\r\nretry-after: 3\r\n", Some(429), Some(Some(seconds(3)))),
            ("retry-after: 9\nHTTP/1.1 abc\n", None, None),
            ("HTTP/1.1 200 OK\nHTTP/1.1\n", None, None),
            ("HTTP/1.1 42 x\n", None, None),
            ("HTTP/1.1 4290 x\n", None, None),
        ] {
            let reply = parsed(text.as_bytes());
            assert_eq!((reply.status, reply.retry_after, reply.bad), (status, wait, None), "{text}");
        }
    }

    #[test]
    fn fields_among_the_messages_of_wget_are_found() {
        let text = "--1994-11-06 08:49:37--  http://127.0.0.1:8000/\nConnecting to 127.0.0.1:8000... connected.\n\
                    HTTP request sent, awaiting response... \n  HTTP/1.0 302 Found\n  Location: /b\n  Retry-After: 9\n\
                    Location: /b [following]\n  HTTP/1.0 429 Too Many Requests\n  Retry-After: 30\n\
                    1994-11-06 08:49:37 ERROR 429: Too Many Requests.\n\n";
        let reply = Reply { status: Some(429), retry_after: Some(Some(seconds(30))), ..Reply::default() };
        assert_eq!(parsed(text.as_bytes()), reply);
    }

    #[test]
    fn a_reset_counts_if_its_related_field_has_nothing_remaining() {
        for (text, reset) in [
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 30", Some(seconds(30))),
            ("X-RateLimit-Reset: 30\r\nX-RateLimit-Remaining: 0", Some(seconds(30))),
            ("ratelimit-remaining: 0\nratelimit-reset: 30", Some(seconds(30))),
            ("x-rate-limit-remaining: 0\nx-rate-limit-reset: 1700000030", Some(seconds(30))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000030.5", Some(Duration::from_millis(30_500))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 1699999999", Some(seconds(0))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 1000000000", Some(seconds(0))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 999999999", Some(seconds(999_999_999))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 99999999999999999999", Some(MAX_TIME)),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000030500", Some(Duration::from_millis(30_500))),
            ("x-ratelimit-remaining: 0.0\nx-ratelimit-reset: 234", Some(seconds(234))),
            ("x-ratelimit-remaining: 1\nx-ratelimit-reset: 30", None),
            ("x-ratelimit-remaining: 1\nx-ratelimit-reset: soon", None),
            ("x-ratelimit-remaining: \nx-ratelimit-reset: 30", None),
            ("x-ratelimit-reset: 30", None),
            ("x-ratelimit-remaining: 0", None),
            ("ratelimit-remaining: 0\nx-ratelimit-reset: 30", None),
            ("x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-requests: 30", None),
            ("x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 6m0s", Some(seconds(360))),
            (
                "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 1s\n\
                 x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 20ms",
                Some(seconds(1)),
            ),
            (
                "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 1s\n\
                 x-ratelimit-remaining-tokens: 9\nx-ratelimit-reset-tokens: 6m0s",
                Some(seconds(1)),
            ),
            ("a-ratelimit-requests-remaining: 0\na-ratelimit-requests-reset: 2023-11-14T22:14:20Z", Some(seconds(60))),
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset-after: 2.0", Some(seconds(2))),
            ("x-ratelimit-remaining: 1\nx-ratelimit-reset-after: 2.0", None),
            // Our clock may be wrong, and a time from now on does not depend on it.
            ("x-ratelimit-remaining: 0\nx-ratelimit-reset: 1700003600\nx-ratelimit-reset-after: 2", Some(seconds(2))),
            ("ratelimit: limit=100, remaining=0, reset=30", Some(seconds(30))),
            ("ratelimit: limit=100, remaining=1, reset=30", None),
            ("RateLimit: \"default\";r=0;t=30", Some(seconds(30))),
            ("RateLimit: \"default\";r=1;t=30", None),
            ("RateLimit: \"hour\"; r=0; t=30, \"day\"; r=1; t=60", Some(seconds(30))),
            ("RateLimit: \"hour\";t=30;r=0,\"day\";t=60;r=0", Some(seconds(60))),
            ("RateLimit: \"hour\";r=0;t=30\nRateLimit: \"day\";r=1;t=60", Some(seconds(30))),
            ("ratelimit-policy: \"default\";q=0;w=30", None),
        ] {
            let reply = parsed(text.as_bytes());
            assert_eq!((reply.reset, reply.bad), (reset, None), "{text}");
        }
        let reply = parsed(b"x-ratelimit-remaining: 0\nx-ratelimit-reset: soon");
        assert_eq!((reply.reset, reply.bad.as_deref()), (None, Some("x-ratelimit-reset: soon")));
    }

    /// The responses of these services when they refuse a call, from their documentation.
    #[test]
    fn the_answers_of_well_known_servers_are_understood() {
        for (server, fields, wait) in [
            ("GitHub", "HTTP/2 403\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000090", 90_000),
            ("GitHub, secondary limit", "HTTP/2 403\nretry-after: 60\nx-ratelimit-remaining: 4999", 60_000),
            (
                "GitLab",
                "HTTP/2 429\nRateLimit-Limit: 600\nRateLimit-Remaining: 0\nRateLimit-Reset: 1700000060\nRetry-After: 60",
                60_000,
            ),
            (
                "OpenAI",
                "HTTP/2 429\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 6m0s\n\
                 x-ratelimit-remaining-tokens: 149984\nx-ratelimit-reset-tokens: 6ms",
                360_000,
            ),
            ("OpenAI, Azure", "HTTP/2 429\nretry-after: 2\nretry-after-ms: 1234", 1234),
            (
                "Anthropic",
                "HTTP/2 429\nanthropic-ratelimit-requests-remaining: 0\n\
                 anthropic-ratelimit-requests-reset: 2023-11-14T22:13:50Z\nanthropic-ratelimit-tokens-remaining: 9000\n\
                 anthropic-ratelimit-tokens-reset: 2023-11-14T22:14:20Z",
                30_000,
            ),
            (
                "Discord",
                "HTTP/2 429\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000000.25\nx-ratelimit-reset-after: 0.25\n\
                 retry-after: 0.25\nx-ratelimit-scope: user",
                250,
            ),
            ("Shopify", "HTTP/2 429\nx-shopify-shop-api-call-limit: 40/40\nretry-after: 2.0", 2000),
            ("Slack", "HTTP/2 429\nretry-after: 30", 30_000),
            ("Atlassian", "HTTP/2 429\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 2023-11-14T22:14Z", 40_000),
            (
                "Cloudflare",
                "HTTP/2 429\nratelimit: \"default\";r=0;t=30\nratelimit-policy: \"default\";q=1200;w=300",
                30_000,
            ),
            ("draft-ietf-httpapi-ratelimit-headers-07", "HTTP/2 429\nratelimit: limit=10, remaining=0, reset=5", 5000),
            ("draft-ietf-httpapi-ratelimit-headers-10", "HTTP/2 429\nratelimit: \"a\";r=0;t=5, \"b\";r=7;t=60", 5000),
        ] {
            let reply = parsed(fields.as_bytes());
            let parsed_wait = reply.retry_after.flatten().or(reply.reset);
            assert_eq!((parsed_wait, reply.bad), (Some(Duration::from_millis(wait)), None), "{server}");
        }
        // Stripe names no time.
        let reply = parsed(b"HTTP/2 429\nstripe-should-retry: true\nstripe-rate-limited-reason: global-rate");
        assert_eq!(reply, Reply { status: Some(429), ..Reply::default() });
    }

    #[test]
    fn milliseconds_count_before_seconds_if_they_make_sense() {
        let parts = |text: &str| (parsed(text.as_bytes()).retry_after, parsed(text.as_bytes()).bad.is_some());
        assert_eq!(parts("retry-after-ms: 5"), (Some(Some(Duration::from_millis(5))), false));
        assert_eq!(parts("retry-after-ms: 5\nretry-after: 1"), (Some(Some(Duration::from_millis(5))), false));
        assert_eq!(parts("retry-after-ms: soon\nretry-after: 1"), (Some(Some(seconds(1))), true));
        assert_eq!(parts("retry-after-ms: soon"), (Some(None), true));
    }

    /// An hour behind, and an hour ahead.
    #[test]
    fn times_of_a_server_count_from_its_own_clock() {
        for (date, ahead, epoch) in [
            ("Tue, 14 Nov 2023 21:13:20 GMT", "Tue, 14 Nov 2023 21:14:20 GMT", NOW - 3540),
            ("Tue, 14 Nov 2023 23:13:20 GMT", "Tue, 14 Nov 2023 23:14:20 GMT", NOW + 3660),
        ] {
            let reply = parsed(format!("HTTP/1.1 429 x\r\nRetry-After: {ahead}\r\nDate: {date}\r\n").as_bytes());
            assert_eq!(reply.retry_after, Some(Some(seconds(60))), "{date}");
            for reset in [ahead.to_owned(), epoch.to_string(), format!("{epoch}000")] {
                let text = format!("date: {date}\nx-ratelimit-remaining: 0\nx-ratelimit-reset: {reset}");
                assert_eq!(parsed(text.as_bytes()).reset, Some(seconds(60)), "{text}");
            }
        }
        let reply = parsed(b"date: today\nretry-after: Tue, 14 Nov 2023 22:14:20 GMT");
        assert_eq!((reply.retry_after, reply.bad), (Some(Some(seconds(60))), None), "else from ours");
    }

    #[test]
    fn only_whole_lines_in_the_first_64_kib_count() {
        let with = |before: usize, after: &str| {
            let text = [b"retry-after: 30\n", vec![b'x'; before].as_slice(), b"\n", after.as_bytes()].concat();
            parsed(&text).retry_after.flatten()
        };
        let before = MAX_REPLY_BYTES - "retry-after: 30\n\nretry-after: 45".len();
        assert_eq!(with(before - 1, "retry-after: 45\n"), Some(seconds(45)));
        assert_eq!(with(before, "retry-after: 456\n"), Some(seconds(30)));
        assert_eq!(with(9 * MAX_REPLY_BYTES, "retry-after: 45\n"), Some(seconds(30)));
        assert_eq!(parsed(&vec![b'x'; 2 * MAX_REPLY_BYTES]), Reply::default());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            crate::fuzzing::reply_file(&bytes);
        }

        #[test]
        fn any_values_of_known_fields_are_read(
            lines in proptest::collection::vec(
                "(HTTP/|retry-after:|throttle-cost:|ratelimit:|x-ratelimit-(reset|remaining):)\
                 ([0-9.:smhTZ,; -]|0|[rt]=|(Mon|Sun)(day)?, |Nov |GMT|\\PC){0,30}\r?\n",
                0..8,
            ),
        ) {
            crate::fuzzing::reply_file(lines.concat().as_bytes());
        }
    }
}
