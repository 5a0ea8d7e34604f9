//! Parses a line of a log: an attempt, or the beginning or the end of a run.

use crate::flow::without_mark;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::str::from_utf8;

/// The verdict on an attempt. Bars are stacked in this order.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Again,
    Later,
    Failed,
    Stopped,
}

impl Verdict {
    pub(super) const ALL: [Verdict; 5] =
        [Verdict::Ok, Verdict::Again, Verdict::Later, Verdict::Failed, Verdict::Stopped];

    /// The name of the verdict on the page.
    pub(super) fn name(self) -> &'static str {
        ["ok", "to be tried again", "refused", "failed", "stopped"][self as usize]
    }
}

/// An attempt that has ended. Times are in seconds; `start` and `until` since 1970. Texts that are rarely needed remain
/// unparsed.
#[derive(Debug, Deserialize)]
pub(super) struct Attempt<'a> {
    /// The id of its run.
    #[serde(borrow)]
    pub(super) run: Option<&'a RawValue>,
    pub(super) seq: u64,
    /// Its unit, or a list of units.
    #[serde(borrow, alias = "unit_base64", alias = "units", alias = "units_base64")]
    pub(super) unit: &'a RawValue,
    #[serde(borrow)]
    pub(super) key: Option<&'a RawValue>,
    #[serde(rename = "try")]
    pub(super) number: u64,
    pub(super) start: f64,
    pub(super) ran: f64,
    pub(super) exit: Option<i64>,
    pub(super) signal: Option<i64>,
    #[serde(default)]
    pub(super) timed_out: bool,
    pub(super) http: Option<u64>,
    pub(super) verdict: Verdict,
    pub(super) pace: Option<f64>,
    pub(super) until: Option<f64>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

impl Attempt<'_> {
    /// The number of its units: the length of the list, or 1.
    pub(super) fn units(&self) -> u64 {
        let unit = self.unit.get();
        if !unit.starts_with('[') {
            return 1;
        }
        serde_json::from_str::<Vec<IgnoredAny>>(unit).map_or(1, |units| units.len().max(1) as u64)
    }
}

/// The first or the last line of a run.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RunLine {
    pub(super) id: String,
    pub(super) start: Option<f64>,
    pub(super) end: Option<f64>,
    #[serde(default)]
    pub(super) limits: Vec<String>,
    pub(super) jobs: Option<u64>,
    pub(super) command: Option<String>,
    pub(super) version: Option<String>,
    /// The offset of local time, in seconds.
    pub(super) utc_offset: Option<i64>,
}

#[derive(Debug)]
pub(super) enum Entry<'a> {
    Attempt(Attempt<'a>),
    Run(RunLine),
}

/// The latest time that is accepted, in seconds since 1970. Times before 1970 are not logged.
const MAX_TIME: f64 = 1e11;

/// The longest run time that is accepted, in seconds.
const MAX_RAN: f64 = 1e9;

/// Parses a line. Returns `None` if it is not a line of a log.
pub(super) fn parse(line: &[u8]) -> Option<Entry<'_>> {
    // Checking the whole line for UTF-8 at once is faster than checking each text in it.
    let line = from_utf8(without_mark(line)).ok()?;
    let Ok(mut attempt) = serde_json::from_str::<Attempt<'_>>(line) else { return run_line(line).map(Entry::Run) };
    attempt.pace = attempt.pace.filter(|pace| pace.is_finite() && *pace > 0.0);
    attempt.until = attempt.until.and_then(time);
    time(attempt.start).filter(|_| (0.0..=MAX_RAN).contains(&attempt.ran))?;
    Some(Entry::Attempt(attempt))
}

fn time(seconds: f64) -> Option<f64> {
    (0.0..=MAX_TIME).contains(&seconds).then_some(seconds)
}

/// Parses a line about a run, which has the single field `run`. Returns `None` for any other line.
fn run_line(line: &str) -> Option<RunLine> {
    #[derive(Deserialize)]
    struct Line {
        run: RunLine,
    }
    let Line { run } = serde_json::from_str(line).ok()?;
    Some(RunLine { start: run.start.and_then(time), end: run.end.and_then(time), ..run })
}
