//! The command line. Each option is defined once, here; parsing, help, man page, completions and the README's list of
//! options come from it. Nothing outside this file knows clap.

use super::exit::Exit;
use super::input;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use throttle::framing::Framing;
use throttle::limits::{Plan, PlanError};
use throttle::rate::{Amount, Limit};

mod habits;
mod text;

#[cfg(test)]
pub(crate) use text::{EXAMPLES, SIGNALS};

/// Pass lines, records or bytes on at exactly the rate you ask for
#[derive(Debug, Parser)]
#[command(name = "throttle", version, long_about = text::LONG_ABOUT, after_help = text::examples(), after_long_help = text::after_long_help(), override_usage = "throttle [OPTIONS] --rate LIMIT < input")]
struct Raw {
    /// At most this: 5/s, 100/min, 10MiB/s; repeat for several
    #[arg(short, long, value_name = "LIMIT", required = true, allow_hyphen_values = true, value_parser = limit_parser(), long_help = text::RATE, help_heading = "Limit")]
    rate: Vec<Limit>,

    /// Most that go at once after rest [default: 10 ms of rate]
    #[arg(short, long, value_name = "N", value_parser = |text: &str| text.parse::<Amount>(), long_help = text::BURST, help_heading = "Limit")]
    burst: Option<Amount>,

    /// Units end with NUL instead of a newline
    #[arg(short = '0', long, conflicts_with_all = ["delimiter", "bytes"], long_help = text::NULL, help_heading = "Input")]
    null: bool,

    /// Units end with the byte C
    #[arg(short, long, value_name = "C", conflicts_with = "bytes", value_parser = delimiter_parser(), long_help = text::DELIMITER, help_heading = "Input")]
    delimiter: Option<u8>,

    /// Every byte is a unit (implied by a rate in bytes)
    #[arg(long, long_help = text::BYTES, help_heading = "Input")]
    bytes: bool,

    /// Read FILE instead of standard input
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, long_help = text::ARG_FILE, help_heading = "Input")]
    arg_file: Option<PathBuf>,

    /// Show progress: auto, always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true, hide_possible_values = true, long_help = text::PROGRESS, help_heading = "Report")]
    progress: ProgressWhen,

    /// Say at the end what happened: text or json
    #[arg(long, value_name = "FMT[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_parser = summary_parser(), long_help = text::SUMMARY, help_heading = "Report")]
    summary: Option<Summary>,

    /// No hints
    #[arg(short, long, long_help = text::QUIET, help_heading = "Report")]
    quiet: bool,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// On a terminal, where it spoils nothing, once the work has lasted a second
    Auto,
    /// Always; without a terminal a plain line every 10 s
    Always,
    /// Never
    Never,
}

/// How and where the summary is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) format: Format,
    pub(crate) file: Option<PathBuf>,
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// A command line that makes sense.
#[derive(Debug)]
pub(crate) struct Flags {
    raw: Raw,
    plan: Plan,
    framing: Framing,
}

impl Flags {
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    pub(crate) fn arg_file(&self) -> Option<&Path> {
        self.raw.arg_file.as_deref()
    }

    pub(crate) fn progress(&self) -> ProgressWhen {
        self.raw.progress
    }

    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.raw.summary.as_ref()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.raw.quiet
    }
}

/// Reads the command line; a mistake, or `--help` and the like, is printed and how to exit returned.
///
/// # Errors
/// How to exit.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, Exit> {
    let args: Vec<OsString> = args.into_iter().collect();
    read(&args).map_err(|error| {
        let error = habits::explain(error, &args);
        // Where this cannot be printed, there is nobody to tell.
        let _ = error.print();
        if error.use_stderr() { Exit::Usage } else { Exit::Success }
    })
}

fn read(args: &[OsString]) -> Result<Flags, clap::Error> {
    let raw = Raw::from_arg_matches(&command().try_get_matches_from(args)?)?;
    let plan = Plan::new(&raw.rate, raw.burst).map_err(|error| usage(&plan_error(&error)))?;
    let framing = framing(&raw, &plan).map_err(|error| usage(&error))?;
    Ok(Flags { raw, plan, framing })
}

/// The definition of the whole command line.
pub(crate) fn command() -> clap::Command {
    Raw::command().max_term_width(100)
}

fn usage(message: &str) -> clap::Error {
    command().error(ErrorKind::ArgumentConflict, message)
}

/// What is wrong between the options, with their names.
fn plan_error(error: &PlanError) -> String {
    match error {
        PlanError::None | PlanError::UnlimitedAlone | PlanError::InitialAboveBurst { .. } => format!("--rate: {error}"),
        PlanError::BytesBesideUnits { .. } => {
            format!("--rate: {error}; run two throttles one after the other for both")
        }
        PlanError::BurstTwice(limit) => {
            format!("--burst: the limit '{limit}' already names its burst; leave one of them out, like -r 5/s -b 10")
        }
        PlanError::BurstOnWindow(limit) => {
            format!(
                "--burst: the fastest limit '{limit},window' is a window, which has no burst; write -r {limit} -b N"
            )
        }
        _ => format!("--burst: {error}"),
    }
}

fn framing(raw: &Raw, plan: &Plan) -> Result<Framing, String> {
    let cut = match (raw.null, raw.delimiter) {
        (true, _) => Some(("-0", 0)),
        (false, Some(byte)) => Some(("-d", byte)),
        (false, None) => None,
    };
    match cut {
        Some((flag, _)) if plan.counts_bytes() => Err(format!(
            "{flag}: the rate counts bytes, and {flag} cuts records; for records a second write -r 100/s {flag}, for bytes leave {flag} out"
        )),
        Some((_, byte)) => Ok(Framing::EndedBy(byte)),
        None if raw.bytes || plan.counts_bytes() => Ok(Framing::Bytes),
        None => Ok(Framing::EndedBy(b'\n')),
    }
}

fn limit_parser() -> impl TypedValueParser<Value = Limit> {
    OsStringValueParser::new().try_map(|text| {
        habits::in_place_of_limit(&text)
            .map_or_else(|| Limit::from_bytes(text.as_bytes()).map_err(|e| e.to_string()), Err)
    })
}

fn delimiter_parser() -> impl TypedValueParser<Value = u8> {
    OsStringValueParser::new().try_map(|text| input::delimiter(&text))
}

fn summary_parser() -> impl TypedValueParser<Value = Summary> {
    OsStringValueParser::new().try_map(|text| summary(text.as_bytes()))
}

fn summary(text: &[u8]) -> Result<Summary, String> {
    let (format, file) = match text.iter().position(|&byte| byte == b':') {
        Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
        None => (text, None),
    };
    let format = match format {
        b"text" | b"" => Format::Text,
        b"json" => Format::Json,
        _ => return Err("write --summary, --summary=json, --summary=text:FILE or --summary=json:FILE".to_owned()),
    };
    match file {
        Some([]) => Err("a file name is missing after the colon; write --summary=json:FILE".to_owned()),
        _ => Ok(Summary { format, file: file.map(|file| OsString::from_vec(file.to_vec()).into()) }),
    }
}

/// The word that clap did not understand.
fn offending_word(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
