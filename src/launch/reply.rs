//! Parses a command's reply: the header fields of HTTP responses, or a part of them.

mod quotas;
mod wait;

use super::template::printable;
use crate::flow::cost::Cost;
use quotas::{Fields, Remaining, has_any_rest, has_rest, resets, unit};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use wait::{Unit, longest};

/// The most bytes of a reply that are parsed.
pub(super) const MAX_REPLY_BYTES: usize = 64 * 1024;

/// The field with a real cost.
pub(super) const COST_FIELD: &str = "throttle-cost";

/// The most characters of a bad field in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// A wait that a response requests, at most 136 years; `None`: its field has no valid value.
pub(super) type Wait = Option<Duration>;

/// The waits and quotas in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status of the HTTP response.
    pub status: Option<u16>,
    /// The wait from now in `retry-after`, `retry-after-ms` and the like.
    pub retry_after: Option<Wait>,
    /// The time until a quota with nothing remaining is renewed; the longest such time if several quotas have nothing
    /// remaining.
    pub reset: Option<Wait>,
    /// The longest time until a quota is renewed of which the response does not report what remains.
    pub unpaired_reset: Option<Wait>,
    /// Whether more than nothing remains of a quota.
    pub has_rest: bool,
}

impl Answer {
    /// Whether the status is a request to wait, whatever else the response reports.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.status, Some(429 | 503))
    }

    /// Whether the status reports a failure.
    pub(super) fn is_error(&self) -> bool {
        self.status.is_some_and(|status| status >= 400)
    }
}

/// A command's reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The last HTTP response, or the fields of a reply without a status.
    pub last: Answer,
    /// The earlier responses with a status of an error.
    pub earlier: Vec<Answer>,
    /// The number of responses after which the command has repeated the request, if it makes a request for each unit.
    /// `None`: there are fewer responses than units.
    pub repeated: Option<usize>,
    /// The real costs in `throttle-cost` fields, each with the kind of cost that the field names; `None`: it names
    /// none.
    pub costs: Vec<(Option<Cost>, u64)>,
    /// A field with an invalid value, for a message: `retry-after: soon`. It contains no characters that a terminal
    /// obeys.
    pub bad: Option<String>,
}

impl From<Answer> for Reply {
    fn from(last: Answer) -> Self {
        Reply { last, ..Reply::default() }
    }
}

impl Reply {
    /// Whether the server has processed this request, even without success: for example, it reports that something does
    /// not exist.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.last.status, Some(200..=499)) && !matches!(self.last.status, Some(408 | 425 | 429))
    }

    /// The status that decided about an attempt. If the attempt was refused (`is_later`), an earlier response may have
    /// decided.
    pub fn status(&self, is_later: bool) -> Option<u16> {
        let refused = || self.earlier.iter().rev().find(|answer| answer.is_refusal()).or(self.earlier.last());
        let decided = if is_later && !self.last.is_refusal() { refused() } else { None };
        decided.unwrap_or(&self.last).status
    }

    /// Parses lines like `retry-after: 30`, of a command for this number of units. A status line begins a response:
    /// `curl -L` writes the fields of redirects, and curl writes one response for each address. Lines that are no
    /// fields are ignored: `wget -S` writes its messages between the fields.
    pub fn parse(bytes: &[u8], units: u64, now: SystemTime) -> Self {
        let text = String::from_utf8_lossy(whole_lines(bytes));
        let mut responses = vec![Response::default()];
        for line in text.lines().map(str::trim) {
            if let Some(version) = strip_prefix(line, "http/") {
                responses.push(Response::starting(version));
            } else if let (Some((name, value)), Some(response)) = (line.split_once(':'), responses.last_mut()) {
                response.add(&name.trim_end().to_ascii_lowercase(), value.trim());
            }
        }
        let units = usize::try_from(units.max(1)).unwrap_or(usize::MAX);
        let mut reply = Reply { repeated: count(&responses).checked_sub(units), ..Reply::default() };
        let response = responses.pop().unwrap_or_default();
        for earlier in responses.iter().filter(|earlier| earlier.is_error()) {
            let answer = reply.read(earlier, now);
            reply.earlier.push(answer);
        }
        // A bad field of the last response is the one to report.
        let earlier = reply.bad.take();
        reply.last = reply.read(&response, now);
        reply.read_costs(&response);
        reply.bad = reply.bad.take().or(earlier);
        reply
    }

    fn read(&mut self, response: &Response<'_>, now: SystemTime) -> Answer {
        let (fields, status) = (&response.fields[..], response.status);
        let mut answer = Answer { status, has_rest: has_any_rest(fields), ..Answer::default() };
        // The server's clock may differ from ours.
        let dates = fields.iter().filter(|(name, _)| name == "date");
        let now = dates.filter_map(|(_, date)| wait::date(date)).next_back().unwrap_or(now);
        let (mut seconds, mut milliseconds) = (None, None);
        for (name, value) in fields {
            let Some(unit) = unit_of_retry_after(name, fields) else { continue };
            let found = if unit == Unit::Seconds { &mut seconds } else { &mut milliseconds };
            *found = (*found).max(Some(self.wait(name, value, (unit, now), true)));
        }
        // A field in milliseconds is more precise. Azure and OpenAI send both.
        answer.retry_after = milliseconds.filter(Option::is_some).or(seconds).or(milliseconds);
        for reset in resets(fields) {
            let (found, counts) = match reset.remaining {
                Remaining::Some => continue,
                Remaining::Nothing => (&mut answer.reset, true),
                Remaining::Unknown => (&mut answer.unpaired_reset, matches!(status, Some(429 | 503))),
            };
            *found = (*found).max(Some(self.wait(&reset.name, reset.value, (reset.unit, now), counts)));
        }
        answer
    }

    /// The wait that a field names. If it `counts`, a value that cannot be read is reported.
    fn wait(&mut self, name: &str, value: &str, (unit, now): (Unit, SystemTime), counts: bool) -> Wait {
        let (wait, is_whole) = longest(value, unit, now);
        if !is_whole && counts {
            self.note_bad(name, value);
        }
        wait
    }

    /// Reads the costs of the response. The last field of each kind of cost counts.
    fn read_costs(&mut self, response: &Response<'_>) {
        let mut kinds = BTreeMap::new();
        for (_, value) in response.fields.iter().filter(|(name, _)| name == COST_FIELD) {
            kinds.insert(value.split_once(char::is_whitespace).map_or("", |(_, kind)| kind.trim()), *value);
        }
        for value in kinds.into_values() {
            match cost(value) {
                Some(cost) => self.costs.push(cost),
                None => self.note_bad(COST_FIELD, value),
            }
        }
    }

    /// Stores the first bad field.
    fn note_bad(&mut self, name: &str, value: &str) {
        let shown = || printable(&format!("{name}: {value}").chars().take(MAX_SHOWN_CHARS).collect::<String>());
        self.bad.get_or_insert_with(shown);
    }
}

/// A response, or the fields of a reply without a status.
#[derive(Debug, Default)]
struct Response<'a> {
    status: Option<u16>,
    /// Whether it is the answer of a proxy to CONNECT.
    is_connected: bool,
    /// The fields that may matter.
    fields: Vec<(String, &'a str)>,
}

impl<'a> Response<'a> {
    /// A response with this status line after `HTTP/`.
    fn starting(version: &str) -> Self {
        let status = version.split_whitespace().nth(1).and_then(|code| code.parse().ok());
        Response {
            status: status.filter(|code| (100..1000).contains(code)),
            is_connected: version.to_ascii_lowercase().ends_with("connection established"),
            fields: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, value: &'a str) {
        let name = name.replace("rate-limit", "ratelimit");
        if ["date", COST_FIELD].contains(&&*name) || name.contains("ratelimit") || name.contains("retry-after") {
            self.fields.push((name, value));
        }
    }

    fn is_error(&self) -> bool {
        self.status.is_some_and(|status| status >= 400)
    }

    fn is_redirect(&self) -> bool {
        matches!(self.status, Some(301..=303 | 307 | 308))
    }

    /// Whether it is an answer to the command's own request, and not an interim one.
    fn is_final(&self) -> bool {
        self.status.is_some_and(|status| status >= 200) && !self.is_connected
    }
}

/// The number of responses that are no redirects, without interim responses. If the last response is a redirect, the
/// command does not follow redirects, so they count as well.
fn count(responses: &[Response<'_>]) -> usize {
    let follows = !responses.last().is_some_and(Response::is_redirect);
    responses.iter().filter(|response| if response.is_redirect() { !follows } else { response.is_final() }).count()
}

/// The unit of a small number in the field `name`, if it is `retry-after` or a relative of it. Symfony sends
/// `x-ratelimit-retry-after` in all responses: it counts only if nothing remains.
fn unit_of_retry_after(name: &str, fields: &Fields<'_>) -> Option<Unit> {
    const PREFIXES: [&str; 5] = ["", "x-", "x-ms-", "ratelimit-", "x-ratelimit-"];
    let prefix = name.strip_suffix("-seconds").or_else(|| name.strip_suffix("-milliseconds"));
    let prefix = prefix.or_else(|| name.strip_suffix("-ms")).unwrap_or(name).strip_suffix("retry-after")?;
    let is_known =
        PREFIXES.contains(&prefix) && !(prefix.contains("ratelimit") && has_rest(name, "retry-after", fields));
    is_known.then(|| unit(name))
}

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

/// Parses `30`, or `30 KIND` with a kind as in `cost=KIND`.
fn cost(value: &str) -> Option<(Option<Cost>, u64)> {
    let (number, kind) =
        value.split_once(char::is_whitespace).map_or((value, None), |(n, kind)| (n, Some(kind.trim())));
    Some((kind.map(str::parse).transpose().ok()?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::wait::MAX_TIME;
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    /// Tue, 14 Nov 2023 22:13:20 GMT.
    const NOW: u64 = 1_700_000_000;

    fn parsed(text: &[u8]) -> Reply {
        Reply::parse(text, 1, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    fn of_answer(retry_after: Wait) -> Reply {
        Answer { retry_after: Some(retry_after), ..Answer::default() }.into()
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
            assert_eq!(reply, of_answer(wait), "{value}");
        }
    }

    #[test]
    fn a_value_without_sense_is_told_and_still_means_later() {
        for value in ["soon", "-5", "-0.5", "", ".", "1.2.3", "inf", "nan", "1e", "+ 5", "30 apples", "Sun, 6 Nov", "٣"]
        {
            let reply = parsed(format!("Retry-After: {value}\n").as_bytes());
            let bad = Some(format!("retry-after: {value}"));
            assert_eq!(reply, Reply { bad, ..of_answer(None) }, "{value}");
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
    fn lines_are_fields_in_any_case_and_the_longest_wait_counts() {
        let reply = Reply { costs: vec![(None, 7)], ..of_answer(Some(seconds(30))) };
        for text in [
            "retry-after: 30\nthrottle-cost: 7\n",
            "throttle-cost:7\r\nRETRY-AFTER:30",
            "  Throttle-Cost : 7 \r\n\t Retry-After:\t30\t\r\n\r\n",
            "retry-after: 30\nthrottle-cost: 9\nthrottle-cost: 7\nretry-after: 5, 6\n",
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
            assert_eq!((reply.last.status, reply.last.retry_after, reply.bad), (status, wait, None), "{text}");
        }
    }

    #[test]
    fn fields_among_the_messages_of_wget_are_found() {
        let text = "--1994-11-06 08:49:37--  http://127.0.0.1:8000/\nConnecting to 127.0.0.1:8000... connected.\n\
                    HTTP request sent, awaiting response... \n  HTTP/1.0 302 Found\n  Location: /b\n  Retry-After: 9\n\
                    Location: /b [following]\n  HTTP/1.0 429 Too Many Requests\n  Retry-After: 30\n\
                    1994-11-06 08:49:37 ERROR 429: Too Many Requests.\n\n";
        let last = Answer { status: Some(429), retry_after: Some(Some(seconds(30))), ..Answer::default() };
        assert_eq!(parsed(text.as_bytes()).last, last);
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
            assert_eq!((reply.last.reset, reply.bad), (reset.map(Some), None), "{text}");
        }
        let reply = parsed(b"x-ratelimit-remaining: 0\nx-ratelimit-reset: soon");
        assert_eq!((reply.last.reset, reply.bad.as_deref()), (Some(None), Some("x-ratelimit-reset: soon")));
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
            ("Symfony", "HTTP/2 429\nx-ratelimit-remaining: 0\nx-ratelimit-retry-after: 1700000030", 30_000),
            ("Azure", "HTTP/2 429\nx-ms-retry-after-ms: 1234", 1234),
            ("Bucket4j", "HTTP/2 429\nx-rate-limit-retry-after-seconds: 7", 7000),
            ("Vimeo", "HTTP/2 429\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 2023-11-14T22:13:50+00:00", 30_000),
            ("draft-ietf-httpapi-ratelimit-headers-07", "HTTP/2 429\nratelimit: limit=10, remaining=0, reset=5", 5000),
            ("draft-ietf-httpapi-ratelimit-headers-10", "HTTP/2 429\nratelimit: \"a\";r=0;t=5, \"b\";r=7;t=60", 5000),
        ] {
            let reply = parsed(fields.as_bytes());
            let parsed_wait = reply.last.retry_after.or(reply.last.reset).flatten();
            assert_eq!((parsed_wait, reply.bad), (Some(Duration::from_millis(wait)), None), "{server}");
        }
        // Stripe names no time.
        let reply = parsed(b"HTTP/2 429\nstripe-should-retry: true\nstripe-rate-limited-reason: global-rate");
        assert_eq!(reply.last, Answer { status: Some(429), ..Answer::default() });
    }

    #[test]
    fn milliseconds_count_before_seconds_if_they_make_sense() {
        let parts = |text: &str| (parsed(text.as_bytes()).last.retry_after, parsed(text.as_bytes()).bad.is_some());
        assert_eq!(parts("retry-after-ms: 5"), (Some(Some(Duration::from_millis(5))), false));
        assert_eq!(parts("retry-after-ms: 5\nretry-after: 1"), (Some(Some(Duration::from_millis(5))), false));
        assert_eq!(parts("retry-after-ms: soon\nretry-after: 1"), (Some(Some(seconds(1))), true));
        assert_eq!(parts("retry-after-ms: soon"), (Some(None), true));
    }

    #[test]
    fn relatives_of_retry_after_are_read() {
        for (field, millis) in [
            ("x-retry-after: 2", 2000),
            ("X-Rate-Limit-Retry-After: 2", 2000),
            ("x-ratelimit-retry-after: 1700000002", 2000),
            ("x-ms-retry-after-ms: 250", 250),
            ("x-retry-after-ms: 250", 250),
            ("x-retry-after-ms: 1700000002000", 2000),
            ("x-ratelimit-retry-after-milliseconds: 250", 250),
            ("x-retry-after: 2\nretry-after: 3", 3000),
        ] {
            assert_eq!(parsed(field.as_bytes()), of_answer(Some(Duration::from_millis(millis))), "{field}");
        }
        // Symfony sends the field in all responses.
        let reply = parsed(b"HTTP/1.1 404 x\nx-ratelimit-remaining: 57\nx-ratelimit-retry-after: 1700000000");
        assert_eq!(reply.last, Answer { status: Some(404), has_rest: true, ..Answer::default() });
    }

    #[test]
    fn a_reset_without_its_remaining_is_kept_apart() {
        for (text, reset, unpaired, is_bad) in [
            ("x-ratelimit-reset: 1700000030", None, Some(Some(seconds(30))), false),
            ("ratelimit-reset: 30", None, Some(Some(seconds(30))), false),
            ("RateLimit: \"d\";t=30", None, Some(Some(seconds(30))), false),
            ("x-ratelimit-reset-after: 30\nx-ratelimit-reset: 90", None, Some(Some(seconds(30))), false),
            ("x-ratelimit-reset-ms: 500", None, Some(Some(Duration::from_millis(500))), false),
            ("x-ratelimit-remaining: many\nx-ratelimit-reset: 30", None, Some(Some(seconds(30))), false),
            (
                "x-ratelimit-remaining: 0\nx-ratelimit-reset: 5\nratelimit-reset: 9",
                Some(5),
                Some(Some(seconds(9))),
                false,
            ),
            ("x-ratelimit-remaining: 1\nx-ratelimit-reset: 30", None, None, false),
            ("x-ratelimit-remaining: 1\nx-ratelimit-reset: soon", None, None, false),
            ("x-ratelimit-reset: soon", None, Some(None), true),
            // Requests per minute: what remains is above 0.
            ("x-ratelimit-remaining: 1;w=60\nx-ratelimit-reset-at: 30", None, None, false),
        ] {
            let reply = parsed(format!("HTTP/1.1 429 x\n{text}").as_bytes());
            let found = (reply.last.reset, reply.last.unpaired_reset, reply.bad.is_some());
            assert_eq!(found, (reset.map(|reset| Some(seconds(reset))), unpaired, is_bad), "{text}");
        }
        assert_eq!(parsed(b"HTTP/1.1 200 x\nx-ratelimit-reset: never").bad, None, "it does not matter");
    }

    #[test]
    fn of_several_values_of_a_name_the_longest_wait_counts() {
        for (text, wait) in [
            ("RateLimit: \"d\";r=0;t=3, \"d\";r=9;t=9", 3),
            ("RateLimit: \"d\";r=0;t=3;pk=:YT1i:, \"d\";r=0;t=9;pk=:Yz1k:", 9),
            ("RateLimit: \"d\";r=0;t=9\nRateLimit: \"d\";r=0;t=3", 9),
            ("RateLimit: \"burst;1s\";r=0;t=3", 3),
            ("RateLimit: \"a, b\";r=0;t=3, \"c\\\";r=1\";r=0;t=4", 4),
            ("RateLimit: default;r=0;t=3", 3),
            ("RateLimit: limit=9, remaining=0, reset=3, limit=9, remaining=4, reset=9", 3),
            ("ratelimit-remaining: 0\nratelimit-reset: 3\nratelimit-remaining: 4\nratelimit-reset: 9", 3),
            ("ratelimit-remaining: 0\nratelimit-reset: 3\nratelimit-reset: 9", 9),
            ("ratelimit-remaining: 4, 0\nratelimit-reset: 3, 9", 9),
        ] {
            let reply = parsed(text.as_bytes());
            assert_eq!((reply.last.reset, reply.bad), (Some(Some(seconds(wait))), None), "{text}");
        }
        for text in ["retry-after: 3\nretry-after: 9\nretry-after: 5", "retry-after: 3, 9, 5"] {
            assert_eq!(parsed(text.as_bytes()), of_answer(Some(seconds(9))), "{text}");
        }
        let reply = parsed(b"retry-after: soon\nretry-after: 9");
        assert_eq!(reply, Reply { bad: Some("retry-after: soon".to_owned()), ..of_answer(Some(seconds(9))) });
    }

    /// The numbers of refusals before the last response, and of responses to repeated requests.
    #[test]
    fn the_responses_of_several_units_are_counted() {
        for (statuses, units, expected) in [
            (&["429", "200", "200"][..], 3, (1, Some(0))),
            // One request for three units, which curl has repeated.
            (&["429", "200"], 3, (1, None)),
            // curl --retry, curl -L, a proxy, and an interim response.
            (&["429", "200", "200", "200"], 3, (1, Some(1))),
            (&["302", "200", "429", "200"], 3, (1, Some(0))),
            (&["200 Connection established", "429", "200", "200"], 3, (1, Some(0))),
            (&["100", "429", "100", "200", "103", "200"], 3, (1, Some(0))),
            (&["429", "302", "302", "302"], 3, (1, Some(1))),
            (&["429", "200"], 1, (1, Some(1))),
            (&["429"], 0, (0, Some(0))),
        ] {
            let text = statuses.iter().flat_map(|status| ["HTTP/1.1 ", status, "\r\n\r\n"]).collect::<String>();
            let reply = Reply::parse(text.as_bytes(), units, UNIX_EPOCH);
            assert_eq!((reply.earlier.len(), reply.repeated), expected, "{statuses:?} {units}");
        }
    }

    /// An hour behind, and an hour ahead.
    #[test]
    fn times_of_a_server_count_from_its_own_clock() {
        for (date, ahead, epoch) in [
            ("Tue, 14 Nov 2023 21:13:20 GMT", "Tue, 14 Nov 2023 21:14:20 GMT", NOW - 3540),
            ("Tue, 14 Nov 2023 23:13:20 GMT", "Tue, 14 Nov 2023 23:14:20 GMT", NOW + 3660),
        ] {
            let reply = parsed(format!("HTTP/1.1 429 x\r\nRetry-After: {ahead}\r\nDate: {date}\r\n").as_bytes());
            assert_eq!(reply.last.retry_after, Some(Some(seconds(60))), "{date}");
            for reset in [ahead.to_owned(), epoch.to_string(), format!("{epoch}000")] {
                let text = format!("date: {date}\nx-ratelimit-remaining: 0\nx-ratelimit-reset: {reset}");
                assert_eq!(parsed(text.as_bytes()).last.reset, Some(Some(seconds(60))), "{text}");
            }
        }
        let reply = parsed(b"date: today\nretry-after: Tue, 14 Nov 2023 22:14:20 GMT");
        assert_eq!((reply.last.retry_after, reply.bad), (Some(Some(seconds(60))), None), "else from ours");
    }

    #[test]
    fn only_whole_lines_in_the_first_64_kib_count() {
        let with = |before: usize, after: &str| {
            let text = [b"retry-after: 30\n", vec![b'x'; before].as_slice(), b"\n", after.as_bytes()].concat();
            parsed(&text).last.retry_after.flatten()
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
                "(HTTP/|(x-)?retry-after(-ms)?:|throttle-cost:|ratelimit:|x-ratelimit-(reset|remaining|retry-after):)\
                 ([0-9.:smhTZ,; \"eE+-]|0|[rt]=|µ|μ| day, |(Mon|Sun)(day)?, |Nov |GMT|\\PC){0,30}\r?\n",
                0..8,
            ),
        ) {
            crate::fuzzing::reply_file(lines.concat().as_bytes());
        }
    }
}
