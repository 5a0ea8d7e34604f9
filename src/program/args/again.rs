//! Further attempts, and what is kept of those that have ended.

use super::values::{duration, parsed, refuse_month};
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use throttle::launch::{Backoff, Failure, Later, RetryPolicy};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Launch")]
#[group(skip)]
pub(crate) struct AgainFlags {
    /// Run a unit up to N times, the first one included. Any failure is tried again, and a signal and a timeout, but
    /// not an exit of 126, 127 or 255, nor an HTTP status from 400 to 499 in the reply, other than 408, 425 and 429.
    /// Each attempt takes a grant, so the rate holds for all of them together. A unit that waits for another attempt
    /// holds no slot; once it is due it goes before newer ones. What a command writes to standard output is dropped if
    /// its unit is tried again; standard error is printed.
    ///
    /// A command may say that the server asked to wait: with an exit of 75, or in the file THROTTLE_REPLY, which takes
    /// HTTP header fields as curl -D writes them: a status of 429 or 503, a status of 403 with x-ratelimit-remaining: 0
    /// and x-ratelimit-reset, or retry-after and a failure. Then nothing starts until the time that the server named
    /// (retry-after in seconds, like 2m, or a date; else x-ratelimit-reset). If it named none, the pause is two
    /// intervals of the rate, at least 50 ms, and doubles until a unit succeeds, up to the longest wait of --backoff.
    /// With --bucket that holds for everyone who uses the bucket. The bucket is empty then, and the unit goes first; it
    /// has used up no attempt, so --attempts 1 tries nothing else again.
    ///
    /// If a server allows less than the rate, units start more slowly after such an answer: at nine tenths of the pace that
    /// was reached just before. They return to that one within 20 successes, stay there for 40 more, and then start a
    /// little faster with each success, never faster than the rate. Of a bucket all slow down together. See --no-learn.
    ///
    /// One unit that is always told to wait holds up nobody else. Units that are told so twice get one of nine turns, all
    /// of them together, and all turns when nothing else waits. If the server has served others since, and told none so
    /// for the first time, the answer pauses nobody; if it serves eight others for each such answer, it counts as a failed
    /// attempt (with --attempts 1 the second such answer does). A status from 400 to 499, other than 408, 425 and 429, shows
    /// that the server serves, as a success does. When only such units are left, it is enough that the server has served
    /// one other since, and then nothing for as long as the longest wait of --backoff.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = attempts)]
    #[arg(help = "Run a unit up to N times if it fails", long_help)]
    pub(crate) attempts: Option<NonZeroU32>,

    /// The first and the longest wait before another attempt: waits double. Before attempt k+1 a unit waits between
    /// half and all of FIRST * 2^(k-1), at most LONGEST. One time alone holds for all waits.
    #[arg(long, value_name = "FIRST..LONGEST", allow_negative_numbers = true, value_parser = backoff)]
    #[arg(help = "Waits between attempts [default: 1s..60s]", long_help)]
    pub(crate) backoff: Option<Backoff>,

    /// Try again only after these failures: exit codes, timeout, signal, separated by commas. An exit of 255 ends the run,
    /// unless it is named here or in --later-on: ssh exits 255 if it cannot connect.
    #[arg(long, value_name = "CODES", allow_negative_numbers = true, value_parser = retry_on)]
    #[arg(help = "Which failures are tried again: 6,7,28,timeout,signal", long_help)]
    pub(crate) retry_on: Option<Failures>,

    /// What else means that the server asked to wait: exit codes, and HTTP statuses of the reply as http:CODE, separated by
    /// commas. Some servers answer 403 to those who call too often.
    #[arg(long, value_name = "CODES", allow_negative_numbers = true, value_parser = later_on)]
    #[arg(help = "What also means that the server asked to wait: 254,http:403", long_help)]
    pub(crate) later_on: Option<Laters>,

    /// End the run with 75 if a server asks to wait for longer than TIME, counted from the first answer that asks to
    /// wait since the last success. A pause is never cut short.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration)]
    #[arg(help = "The longest pause that a server may ask for [default: 1h]", long_help)]
    pub(crate) max_pause: Option<Duration>,

    /// Keep to the rate, whatever the server allows: only pauses follow from an answer that asks to wait.
    #[arg(long, help = "Do not slow down if the server allows less than the rate", long_help)]
    pub(crate) no_learn: bool,

    /// Start nothing more after TIME, as after a QUIT signal (Ctrl-\). What runs may finish. If units are left, the exit
    /// is 75, and the last lines say how many; with --done the same command goes on where this one stopped.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration)]
    #[arg(help = "Start nothing more after TIME, and let what runs finish", long_help)]
    pub(crate) stop_after: Option<Duration>,

    /// Launch nothing more once N units have failed for good, or N percent of those that have ended (from 20 on). What
    /// runs may finish; then the exit is 123.
    #[arg(long, value_name = "N|N%", allow_negative_numbers = true, value_parser = max_fail)]
    #[arg(help = "Launch nothing more once N units, or N%, have failed", long_help)]
    pub(crate) max_fail: Option<MaxFail>,

    /// Add each unit that succeeded, and whose output was written, to FILE, as it was read. Skip units that are in it,
    /// or that were read before in this run: so a run that was stopped can continue. What counts are a unit's
    /// bytes, not its place in the input. At least once is promised: what had succeeded in the moment of a crash may
    /// run again, at most one unit for each slot (--jobs), and with -k those whose output waits for its turn. One
    /// process at a time uses FILE.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = record())]
    #[arg(help = "Keep units that succeeded in FILE, and skip those in it", long_help)]
    pub(crate) done: Option<PathBuf>,

    /// Add a line of JSON to FILE for each attempt that has ended, with these fields: seq (of the command), unit (or
    /// unit_base64 if it is no UTF-8; units or units_base64 if there are several), cut (whether a unit for --stdin is
    /// cut to its beginning), key, try (from 1), start (seconds since 1970), waited and ran (seconds), exit, signal,
    /// timed_out, http (the reply's status), verdict (ok, again, later, failed, stopped), pace (units a second, if the
    /// server allows less than the rate), until (when the next attempt is due, in seconds since 1970), charged (by the limits; of several, by the first with cost=), cost (of the
    /// reply), slot, error, run (the id of the run). Fields without a value are null.
    ///
    /// The first and the last line of a run have no seq, and run is an object there. The first line has its id, start,
    /// utc_offset (of local time, in seconds), version, limits, jobs and command, without passwords in addresses. The last
    /// line has its id, end, units, attempts, ok, failed, stopped and refused. In jq, select(.seq) leaves both out.
    ///
    /// --plot makes a page with charts from it.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = record())]
    #[arg(help = "Add a line of JSON to FILE for each attempt", long_help)]
    pub(crate) log: Option<PathBuf>,
}

/// A value of one option; clap would take a `Vec` for several.
pub(crate) type Failures = Vec<Failure>;
pub(crate) type Laters = Vec<Later>;

/// How many failed units end a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxFail {
    /// So many.
    Units(NonZeroU64),
    /// So many of a hundred.
    Percent(u8),
}

impl AgainFlags {
    /// When units are tried again, if they are. `ahead`: how many may wait. `interval`: the time between two of one key.
    pub(crate) fn policy(&self, ahead: usize, interval: Duration) -> Option<RetryPolicy> {
        self.attempts.map(|attempts| RetryPolicy {
            attempts,
            backoff: self
                .backoff
                .unwrap_or(Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) }),
            retry_on: self.retry_on.clone(),
            later_on: self.later_on.clone().unwrap_or_default(),
            max_pause: self.max_pause(),
            ahead,
            interval,
            learns: !self.no_learn,
            is_once: false,
        })
    }

    pub(crate) fn max_pause(&self) -> Duration {
        self.max_pause.unwrap_or(Duration::from_secs(3600))
    }
}

fn attempts(text: &str) -> Result<NonZeroU32, String> {
    parsed(text, "write how often a unit is run at most, like --attempts 5; the first attempt counts")
}

fn max_fail(text: &str) -> Result<MaxFail, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(MaxFail::Percent),
        None => text.parse().ok().map(MaxFail::Units),
    };
    parsed.ok_or_else(|| "write a number of units or a share, like --max-fail 10 or --max-fail 5%".to_owned())
}

/// `1s..60s`, or one time for all waits.
fn backoff(text: &str) -> Result<Backoff, String> {
    let (first, longest) = text.split_once("..").unwrap_or((text, text));
    let time = |text: &str| -> Result<Duration, String> {
        refuse_month(text.trim())?;
        duration(text.trim()).map_err(|_| "write the first and the longest wait, like --backoff 1s..60s".to_owned())
    };
    let (first, longest) = (time(first)?, time(longest)?);
    if first > longest {
        return Err(format!("the first wait is longer than the longest; write --backoff {longest:?}..{first:?}"));
    }
    Ok(Backoff { first, longest })
}

/// `6,7,28,timeout,signal`
fn retry_on(text: &str) -> Result<Failures, String> {
    text.split(',').map(|word| failure(word.trim())).collect()
}

fn failure(word: &str) -> Result<Failure, String> {
    match (word, word.parse()) {
        ("timeout", _) => Ok(Failure::Timeout),
        ("signal", _) => Ok(Failure::Signal),
        (_, Ok(0)) => Err("an exit of 0 is a success; write codes of failures, like --retry-on 6,7,28".to_owned()),
        (_, Ok(code @ (126 | 127))) => {
            Err(format!("a command that exits {code} is never run again; write other codes, like --retry-on 6,7,28"))
        }
        (_, Ok(code)) => Ok(Failure::Exit(code)),
        ("429" | "503", _) => Err(format!(
            "a status of {word} in THROTTLE_REPLY is tried again anyway; write exit codes, like --retry-on 6,7,28"
        )),
        _ if word.parse().is_ok_and(|status: u16| (400..600).contains(&status)) => Err(format!(
            "{word} is no exit code; a status that means later is --later-on http:{word}, exit codes are like --retry-on 6,7,28"
        )),
        (_, Err(_)) => Err("write exit codes, timeout or signal, like --retry-on 6,7,28,timeout".to_owned()),
    }
}

/// `254,http:403`
fn later_on(text: &str) -> Result<Laters, String> {
    text.split(',').map(|word| later(word.trim())).collect()
}

fn later(word: &str) -> Result<Later, String> {
    let status = |code: &str| code.parse().ok().filter(|code| (400..600).contains(code)).map(Later::Http);
    let exit = |code: &str| code.parse().ok().filter(|code| !matches!(code, 0 | 126 | 127)).map(Later::Exit);
    let found = word.strip_prefix("http:").map_or_else(|| exit(word), status);
    found.ok_or_else(|| {
        "write exit codes of failures and HTTP statuses from 400 on, like --later-on 254,http:403".to_owned()
    })
}

/// A file that is written, whose name may be any bytes. Many programs take - for standard output, where units are.
fn record() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match text.as_bytes() {
        b"" => Err("the name of the file is missing; write for example ./records"),
        b"-" => Err("- is no file; for standard error write /dev/stderr, for a file of that name ./-"),
        _ => Ok(PathBuf::from(text)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_read_or_refused_with_a_right_spelling() {
        let second = Duration::from_secs(1);
        assert_eq!(backoff("1s..60s"), Ok(Backoff { first: second, longest: 60 * second }));
        assert_eq!(backoff("5m..1h"), Ok(Backoff { first: 300 * second, longest: 3600 * second }));
        assert_eq!(backoff("2"), Ok(Backoff { first: 2 * second, longest: 2 * second }));
        for wrong in ["", "..", "1s..", "60s..1s", "0..1s", "soon"] {
            let error = backoff(wrong).unwrap_err();
            let spelling = error.rsplit(' ').next().unwrap();
            assert!(backoff(spelling).is_ok(), "{wrong}: {error}");
        }
        assert_eq!(retry_on("6, 28,timeout,signal").map(|found| found.len()), Ok(4));
        assert_eq!(retry_on("255"), Ok(vec![Failure::Exit(255)]));
        assert_eq!(later_on("254, http:403"), Ok(vec![Later::Exit(254), Later::Http(403)]));
        for wrong in ["", "0", "126", "256", "http:", "http:200", "403", "http:600", "timeout"] {
            let error = later_on(wrong).unwrap_err();
            assert!(later_on(error.rsplit(' ').next().unwrap()).is_ok(), "{wrong}: {error}");
        }
        for wrong in ["", "0", "126", "256", "429", "500", "-1", "6,", "no"] {
            let error = retry_on(wrong).unwrap_err();
            assert!(retry_on(error.rsplit(' ').next().unwrap()).is_ok(), "{wrong}: {error}");
        }
        assert_eq!(max_fail("5%"), Ok(MaxFail::Percent(5)));
        assert!(["0", "0%", "101%", "x", "%"].into_iter().all(|wrong| max_fail(wrong).is_err()));
        assert!(attempts("0").is_err() && attempts("5").is_ok());
    }
}
