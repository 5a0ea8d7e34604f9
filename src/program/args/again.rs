//! Further attempts, and the records of ended attempts.

use super::values::{duration, from_text, parsed, refuse_month};
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
    /// Run a unit up to N times, the first time included. Any failure is tried again, even a signal or a timeout, but
    /// not an exit of 126, 127 or 255, and not an HTTP status from 400 to 499 in the reply other than 408, 425 and 429.
    /// The rate holds for all attempts together.
    ///
    /// A command can report that the server requests a wait: with an exit of 75, or with the response header in the
    /// file THROTTLE_REPLY, as curl -D writes it. Then nothing starts before the time that the server gave, and the
    /// unit uses up no attempt.
    ///
    /// All rules: throttle --help attempts, ATTEMPTS in the manual, and docs/api.md.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_text(attempts))]
    #[arg(help = "Run a unit up to N times if it fails", long_help)]
    pub(crate) attempts: Option<NonZeroU32>,

    /// The first and the longest wait before another attempt. Waits double: before attempt k+1, a unit waits for a
    /// random part, at least half, of FIRST * 2^(k-1), at most LONGEST. A single time is the time of all waits.
    #[arg(long, value_name = "FIRST..LONGEST", allow_negative_numbers = true, value_parser = from_text(backoff))]
    #[arg(help = "Waits between attempts [default: 1s..60s]", long_help)]
    pub(crate) backoff: Option<Backoff>,

    /// Try again only after these failures: exit codes, timeout, signal, separated by commas. An exit of 255 ends the
    /// run, unless this option or --later-on names it: ssh exits 255 if it cannot connect.
    #[arg(long, value_name = "CODES", allow_negative_numbers = true, value_parser = from_text(retry_on))]
    #[arg(help = "Failures to try again: 6,7,28,timeout,signal", long_help)]
    pub(crate) retry_on: Option<Failures>,

    /// Further answers with which the server requests a wait: exit codes, and HTTP statuses of the reply as http:CODE,
    /// separated by commas. Some servers answer 403, 420, 509 or 529 to too many calls.
    #[arg(long, value_name = "CODES", allow_negative_numbers = true, value_parser = from_text(later_on))]
    #[arg(help = "Further answers that request a wait: 254,http:403", long_help)]
    pub(crate) later_on: Option<Laters>,

    /// End the run with 75 if a server requests a wait longer than TIME. TIME counts from the first such answer since
    /// the last success, so the sum of all waits counts, even if the server names no time. A pause is never cut short.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = from_text(duration))]
    #[arg(help = "The longest pause that a server may request [default: 1h]", long_help)]
    pub(crate) max_pause: Option<Duration>,

    /// Keep to the rate, even if the server allows less: a refusal pauses the run but does not lower the rate.
    #[arg(long, help_heading = "Advanced")]
    #[arg(help = "Do not slow down if the server allows less than the rate", long_help)]
    pub(crate) no_learn: bool,

    /// Start nothing more after TIME, as after a QUIT signal (Ctrl-\). Running commands may finish. If units are left,
    /// the exit code is 75, and the last lines report their number. With --done, the same command continues where this
    /// run stopped.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = from_text(duration))]
    #[arg(help = "Start nothing more after TIME; running commands finish", long_help)]
    pub(crate) stop_after: Option<Duration>,

    /// Launch nothing more once N units have failed for good, or N percent of the ended units (from 20 on). With -n, a
    /// failed command counts as all its units. Running commands may finish; then the exit code is 123.
    #[arg(long, value_name = "N|N%", allow_negative_numbers = true, value_parser = from_text(max_fail))]
    #[arg(help = "Launch nothing more once N units, or N%, have failed", long_help)]
    pub(crate) max_fail: Option<MaxFail>,

    /// Add each unit that succeeded, and whose output was written, to FILE, as it was read. Skip units that are in
    /// FILE, or that were read before in this run. So a run that was stopped can continue. Write its output with
    /// >> out: > out empties it first. Units are compared by their bytes, not by their place in the input.
    ///
    /// Each unit succeeds at least once. After a crash, units that had just succeeded may run again: at most one unit
    /// for each slot (--jobs), and with -k the units whose output waits for its turn. Only one process at a time may
    /// use FILE.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = record())]
    #[arg(help = "Add units that succeed to FILE; skip units in FILE", long_help)]
    pub(crate) done: Option<PathBuf>,

    /// Add a line of JSON to FILE for each attempt that has ended: its unit, key, start, times, exit code, HTTP status,
    /// verdict, cost and more. A line at the beginning of a run has its limits and its command, a line at the end has
    /// its totals. In jq, select(.seq) leaves both lines out.
    ///
    /// --plot makes a page with charts from FILE. All fields: throttle --help log, and LOG in the manual.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = record())]
    #[arg(help = "Add a line of JSON to FILE for each attempt", long_help)]
    pub(crate) log: Option<PathBuf>,
}

/// A list that is one value. A plain `Vec` would mean to clap that the option may be repeated.
pub(crate) type Failures = Vec<Failure>;
pub(crate) type Laters = Vec<Later>;

/// The number or share of failed units that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxFail {
    /// A number of units.
    Units(NonZeroU64),
    /// A share of the ended units.
    Percent(u8),
}

impl AgainFlags {
    /// The policy for retries, or `None` without `--attempts`. `interval` is the time between two starts of one key.
    pub(crate) fn policy(&self, interval: Duration) -> Option<RetryPolicy> {
        self.attempts.map(|attempts| RetryPolicy {
            attempts,
            backoff: self
                .backoff
                .unwrap_or(Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) }),
            retry_on: self.retry_on.clone(),
            later_on: self.later_on.clone().unwrap_or_default(),
            max_pause: self.max_pause(),
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
            "{word} is not an exit code; for a status that requests a wait write --later-on http:{word}, for exit \
             codes write for example --retry-on 6,7,28"
        )),
        (_, Err(_)) => Err("write exit codes, timeout or signal, like --retry-on 6,7,28,timeout".to_owned()),
    }
}

/// `254,http:403`
fn later_on(text: &str) -> Result<Laters, String> {
    text.split(',').map(|word| later(word.trim())).collect()
}

fn later(word: &str) -> Result<Later, String> {
    let status = |code: &str| code.parse().ok().filter(|code| (400..1000).contains(code)).map(Later::Http);
    let exit = |code: &str| code.parse().ok().filter(|code| !matches!(code, 0 | 126 | 127)).map(Later::Exit);
    let found = word.strip_prefix("http:").map_or_else(|| exit(word), status);
    found.ok_or_else(|| {
        "write exit codes of failures and HTTP statuses from 400 on, like --later-on 254,http:403".to_owned()
    })
}

/// The parser for a file to write, whose name may be any bytes. It refuses `-`, which means standard output for many
/// programs. Here, standard output has the units.
fn record() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match text.as_bytes() {
        b"" => Err("the name of the file is missing; write for example ./records"),
        b"-" => Err("- is not a file; for standard error write /dev/stderr, for a file of that name ./-"),
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
        for wrong in ["", "0", "126", "256", "http:", "http:200", "403", "http:1000", "timeout"] {
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
