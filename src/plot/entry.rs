//! A line of a log: an attempt, or the beginning or the end of a run.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::str::from_utf8;

/// How an attempt ended, in the order in which bars are stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

    /// What the page calls it.
    pub(super) fn name(self) -> &'static str {
        ["ok", "to be tried again", "refused", "failed", "stopped"][self as usize]
    }

    fn of_log(name: &str) -> Option<Self> {
        let names = ["ok", "again", "later", "failed", "stopped"];
        names.iter().position(|known| *known == name).map(|place| Verdict::ALL[place])
    }
}

/// The fields of both kinds of lines. Texts that are seldom needed stay as they are in the line.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    run: Option<&'a RawValue>,
    seq: Option<u64>,
    #[serde(borrow)]
    unit: Option<&'a RawValue>,
    #[serde(borrow)]
    unit_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    units: Option<&'a RawValue>,
    #[serde(borrow)]
    units_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    r#try: Option<u64>,
    start: Option<f64>,
    ran: Option<f64>,
    exit: Option<i64>,
    signal: Option<i64>,
    timed_out: Option<bool>,
    http: Option<u64>,
    verdict: Option<&'a str>,
    pace: Option<f64>,
    until: Option<f64>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// An attempt that has ended. Times are in seconds; `start` and `until` since 1970.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    /// The id of its run, as JSON.
    pub(super) run: Option<&'a str>,
    pub(super) seq: u64,
    /// Its unit, or a list of units, as JSON.
    pub(super) unit: &'a str,
    /// Its key, as JSON.
    pub(super) key: Option<&'a str>,
    pub(super) number: u64,
    pub(super) start: f64,
    pub(super) ran: f64,
    pub(super) exit: Option<i64>,
    pub(super) signal: Option<i64>,
    pub(super) timed_out: bool,
    pub(super) http: Option<u64>,
    pub(super) verdict: Verdict,
    pub(super) pace: Option<f64>,
    pub(super) until: Option<f64>,
    /// As JSON.
    pub(super) error: Option<&'a str>,
}

/// What the first and the last line of a run say.
#[derive(Debug, Default)]
pub(super) struct RunLine {
    pub(super) id: String,
    pub(super) start: Option<f64>,
    pub(super) end: Option<f64>,
    pub(super) limits: Vec<String>,
    pub(super) jobs: Option<u64>,
    pub(super) command: Option<String>,
    pub(super) version: Option<String>,
    /// Of local time, in seconds.
    pub(super) utc_offset: Option<i64>,
}

#[derive(Debug)]
pub(super) enum Entry<'a> {
    Attempt(Attempt<'a>),
    Run(RunLine),
}

/// Later than any clock says; earlier times than 1970 are not logged.
const LATEST: f64 = 1e11;

/// Longer than any command runs.
const LONGEST: f64 = 1e9;

/// Reads a line. `None`: it is not one of a log.
pub(super) fn parse(line: &[u8]) -> Option<Entry<'_>> {
    // One look for all of a line is quicker than one for each text in it.
    let fields: Fields<'_> = serde_json::from_str(from_utf8(line).ok()?).ok()?;
    let Some(seq) = fields.seq else { return run_line(fields.run?.get()).map(Entry::Run) };
    let units = [fields.unit, fields.unit_base64, fields.units, fields.units_base64];
    let time = |time: f64, most| (0.0..=most).contains(&time).then_some(time);
    let attempt = Attempt {
        run: fields.run.map(RawValue::get),
        seq,
        unit: units.into_iter().flatten().next().map(RawValue::get)?,
        key: fields.key.map(RawValue::get),
        number: fields.r#try?,
        start: time(fields.start?, LATEST)?,
        ran: time(fields.ran?, LONGEST)?,
        exit: fields.exit,
        signal: fields.signal,
        timed_out: fields.timed_out.unwrap_or_default(),
        http: fields.http,
        verdict: Verdict::of_log(fields.verdict?)?,
        pace: fields.pace.filter(|pace| pace.is_finite() && *pace > 0.0),
        until: fields.until.and_then(|until| time(until, LATEST)),
        error: fields.error.map(RawValue::get),
    };
    Some(Entry::Attempt(attempt))
}

/// The line about a run, from its only field. `None`: it is not one.
fn run_line(json: &str) -> Option<RunLine> {
    let run: Value = serde_json::from_str(json).ok()?;
    let time = |name| run[name].as_f64().filter(|time| (0.0..=LATEST).contains(time));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(RunLine {
        id: text(&run["id"])?,
        start: time("start"),
        end: time("end"),
        limits: run["limits"].as_array().into_iter().flatten().filter_map(text).collect(),
        jobs: run["jobs"].as_u64(),
        command: text(&run["command"]),
        version: text(&run["version"]),
        utc_offset: run["utc_offset"].as_i64(),
    })
}
