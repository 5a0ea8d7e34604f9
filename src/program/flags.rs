//! The command line. Each option is defined once, here; parsing, help, man page, completions and the README's list of
//! options come from it. Nothing outside this file knows clap.

use super::bucket::Bucket;
use super::exit::Exit;
use super::{input, say};
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use shared::Mode;
pub(crate) use shared::Task;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use throttle::flow::framing::Framing;
use throttle::launch::{Output, Place, Reading, Shape, Template};
use throttle::limits::Policy;
use throttle::rate::{Amount, Limit};
use throttle::store::Address;

mod foreign_flags;
mod mistakes;
mod shared;
mod text;
mod values;

#[cfg(test)]
pub(crate) use text::{ENVIRONMENT, EXAMPLES, SIGNALS};

/// Pass units on, or run a command for each, at exactly the rate you ask for
#[derive(Clone, Debug, Parser)]
#[command(name = "throttle", version, long_about = text::LONG_ABOUT, after_help = text::after_help(), after_long_help = text::after_long_help(), override_usage = text::USAGE)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Raw {
    /// At most this: 5/s, 100/min, 10MiB/s; repeat for several
    #[arg(short, long, value_name = "LIMIT", allow_hyphen_values = true, value_parser = limit_parser(), long_help = text::RATE, help_heading = "Limit")]
    rate: Vec<Limit>,

    /// Most that go at once after rest [default: 10 ms of rate]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| text.parse::<Amount>(), long_help = text::BURST, help_heading = "Limit")]
    burst: Option<Amount>,

    /// Limits shared with all that name it: file or redis://
    #[arg(long, value_name = "BUCKET", value_hint = clap::ValueHint::FilePath, long_help = text::BUCKET, help_heading = "Shared")]
    bucket: Option<OsString>,

    /// Take one, then become COMMAND
    #[arg(long, conflicts_with_all = shared::ABOUT_STREAMS, conflicts_with_all = ["set", "show"], long_help = text::ONCE, help_heading = "Shared")]
    once: bool,

    /// Rather than wait longer, exit 75
    #[arg(hide_short_help = true, long, value_name = "TIME", requires = "once", allow_negative_numbers = true, value_parser = shared::max_wait, long_help = text::MAX_WAIT, help_heading = "Shared")]
    max_wait: Option<Duration>,

    /// Make the bucket, or change its limits for everyone
    #[arg(hide_short_help = true, long, conflicts_with_all = shared::ABOUT_STREAMS, conflicts_with = "show", long_help = text::SET, help_heading = "Shared")]
    set: bool,

    /// Show the bucket: text or json
    #[arg(long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = values::format, conflicts_with_all = shared::ABOUT_STREAMS, long_help = text::SHOW, help_heading = "Shared")]
    show: Option<Format>,

    /// While the bucket's server is away: wait, fail [default: wait]
    #[arg(hide_short_help = true, long, value_name = "WHAT", hide_possible_values = true, long_help = text::ON_STORE_ERROR, help_heading = "Shared")]
    on_store_error: Option<shared::OnStoreError>,

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

    /// Instead of input, the units 1 to N, or without end
    #[arg(hide_short_help = true, long, value_name = "N|inf", allow_negative_numbers = true, conflicts_with_all = ["arg_file", "null", "delimiter"], value_parser = values::repeat, long_help = text::REPEAT, help_heading = "Input")]
    repeat: Option<Repeat>,

    /// Most commands at once; 0: no cap [default: 16] (also -P)
    #[arg(short, long, short_alias = 'P', alias = "max-procs", value_name = "N", allow_negative_numbers = true, value_parser = values::jobs, long_help = text::JOBS, help_heading = "Launch")]
    jobs: Option<u32>,

    /// Units for each command, if they fit [default: 1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = values::max_args, long_help = text::MAX_ARGS, help_heading = "Launch")]
    max_args: Option<u64>,

    /// What stands for the unit in COMMAND [default: {}]
    #[arg(short = 'I', long, value_name = "R", allow_hyphen_values = true, conflicts_with = "shell", long_help = text::REPLACE, help_heading = "Launch")]
    replace: Option<OsString>,

    /// Run a shell script for each unit, which is "$1" there
    #[arg(short = 'c', long, value_name = "SCRIPT", allow_hyphen_values = true, conflicts_with = "command", long_help = text::SHELL, help_heading = "Launch")]
    shell: Option<OsString>,

    /// The unit goes to the command's standard input
    #[arg(hide_short_help = true, long, long_help = text::STDIN, help_heading = "Launch")]
    stdin: bool,

    /// Output in the order of the input
    #[arg(short, long, conflicts_with_all = ["line_buffer", "ungroup"], long_help = text::KEEP_ORDER, help_heading = "Launch")]
    keep_order: bool,

    /// Output line by line
    #[arg(hide_short_help = true, long, conflicts_with = "ungroup", long_help = text::LINE_BUFFER, help_heading = "Launch")]
    line_buffer: bool,

    /// Output directly, mixed
    #[arg(hide_short_help = true, short, long, conflicts_with = "tag", long_help = text::UNGROUP, help_heading = "Launch")]
    ungroup: bool,

    /// The unit and a tab before each line of output
    #[arg(hide_short_help = true, long, long_help = text::TAG, help_heading = "Launch")]
    tag: bool,

    /// End a command that takes longer
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration, long_help = text::TIMEOUT, help_heading = "Launch")]
    timeout: Option<Duration>,

    /// Write each command to standard error before it runs
    #[arg(hide_short_help = true, short, long, long_help = text::TRACE, help_heading = "Launch")]
    trace: bool,

    /// Show what would run and when; run nothing
    #[arg(long, long_help = text::DRY_RUN, help_heading = "Launch")]
    dry_run: bool,

    /// Show progress: auto, always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true, hide_possible_values = true, long_help = text::PROGRESS, help_heading = "Report")]
    progress: ProgressWhen,

    /// Say at the end what happened: text or json
    #[arg(long, value_name = "FMT[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_parser = summary_parser(), long_help = text::SUMMARY, help_heading = "Report")]
    summary: Option<Summary>,

    /// No hints, no word on failed commands
    #[arg(short, long, long_help = text::QUIET, help_heading = "Report")]
    quiet: bool,

    /// What to run for each unit; everything after its first word belongs to it
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments, hide = true)]
    command: Vec<OsString>,
}

/// How many units come from nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Times(u64),
    Endless,
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

/// A command line that makes sense. To know that, nothing was opened and nobody asked.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    raw: Raw,
    task: Task,
    bucket: Option<Bucket>,
    plan: Policy,
    framing: Framing,
}

impl Flags {
    pub(crate) fn task(&self) -> &Task {
        &self.task
    }

    /// The limits. None, as long as only the bucket knows them: see [`with_limits`](Self::with_limits).
    pub(crate) fn plan(&self) -> &Policy {
        &self.plan
    }

    /// The same command line with the limits that its bucket keeps.
    ///
    /// # Errors
    /// What makes no sense with those.
    pub(crate) fn with_limits(&self, plan: Policy) -> Result<Self, String> {
        check_kind(&self.raw, &plan)?;
        let framing = framing(&self.raw, &plan)?;
        Ok(Flags { plan, framing, ..self.clone() })
    }

    /// The limits as the user wrote them; where he did not, those of the bucket.
    pub(crate) fn limits_as_written(&self) -> String {
        if self.raw.rate.is_empty() {
            return self.plan.to_string();
        }
        let limits: Vec<String> = self.raw.rate.iter().map(ToString::to_string).collect();
        limits.join(" and ")
    }

    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    pub(crate) fn arg_file(&self) -> Option<&Path> {
        self.raw.arg_file.as_deref().filter(|file| *file != "-")
    }

    /// What is run for each unit, in launch mode.
    pub(crate) fn template(&self) -> Option<&Template> {
        match &self.task {
            Task::Launch(template) | Task::DryRun(template) => Some(template),
            _ => None,
        }
    }

    /// What a message calls the command.
    pub(crate) fn command_name(&self) -> String {
        let name = self.raw.command.first().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| "the script".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    pub(crate) fn repeat(&self) -> Option<Repeat> {
        self.raw.repeat
    }

    /// How many commands at once, where that was said.
    pub(crate) fn jobs(&self) -> Option<u32> {
        self.raw.jobs
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            max_args: self.raw.max_args.unwrap_or(1),
            to_stdin: self.raw.stdin,
            skip_blank: !self.raw.null && self.raw.delimiter.is_none(),
        }
    }

    /// One command at a time has our output for itself, unless something is to be done with it.
    pub(crate) fn output(&self) -> Output {
        match &self.raw {
            Raw { ungroup: true, .. } | Raw { jobs: Some(1), tag: false, .. } => Output::Direct,
            Raw { line_buffer: true, .. } | Raw { jobs: Some(1), .. } => Output::Lines,
            Raw { keep_order: true, .. } => Output::InOrder,
            _ => Output::Whole,
        }
    }

    pub(crate) fn is_tagged(&self) -> bool {
        self.raw.tag
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.raw.timeout
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.raw.trace
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
    let told = |error| tell(&error, &args);
    let raw = raw(&args).map_err(told)?;
    ripen(raw, std::env::var_os("THROTTLE_BUCKET").as_deref()).map_err(told)
}

fn tell(error: &clap::Error, args: &[OsString]) -> Exit {
    if !error.use_stderr() {
        return print(error).unwrap_or_else(|error| {
            say(format_args!("{error:#}"));
            Exit::Error
        });
    }
    say(mistakes::words(error, args));
    shared::own_error(mistakes::is_own_option(args, "--once"), Exit::Usage)
}

fn print(help: &clap::Error) -> anyhow::Result<Exit> {
    super::expect_standard_output()?;
    match help.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(super::signals::die_of_broken_pipe()),
        printed => printed.context("cannot write to standard output").map(|()| Exit::Success),
    }
}

fn raw(args: &[OsString]) -> Result<Raw, clap::Error> {
    let matches = foreign_flags::with_foreign_flags().try_get_matches_from(args)?;
    foreign_flags::refuse(&matches)?;
    let raw = Raw::from_arg_matches(&matches)?;
    refuse_as_command(&raw, args).map_or(Ok(raw), |message| Err(usage(&message)))
}

/// `default` is the bucket that the environment names.
fn ripen(raw: Raw, default: Option<&OsStr>) -> Result<Flags, clap::Error> {
    let mode = shared::mode(&raw);
    let bucket = shared::bucket(&raw, mode, default)?;
    let plan = match &bucket {
        // It knows them.
        Some(_) if raw.rate.is_empty() => Policy::default(),
        None if raw.rate.is_empty() => {
            return Err(usage(mistakes::without_rate(&raw.command)));
        }
        _ => Policy::with_slack(&raw.rate, raw.burst).map_err(|error| usage(&mistakes::in_limits(&error)))?,
    };
    if let Some(bucket) = bucket.as_ref().filter(|_| !raw.rate.is_empty()) {
        bucket.check(&plan).map_err(|error| usage(&format!("--rate: {error}")))?;
    }
    check_kind(&raw, &plan).map_err(|error| usage(&error))?;
    let framing = framing(&raw, &plan).map_err(|error| usage(&error))?;
    let task = match (mode, &bucket) {
        (Mode::Once, Some(bucket)) => Task::Once(bucket.clone()),
        (Mode::Set, Some(bucket)) => Task::Set(bucket.clone()),
        (Mode::Show(format), Some(bucket)) => Task::Show(bucket.clone(), format),
        _ => match template(&raw).map_err(|error| usage(&error))? {
            Some(template) if raw.dry_run => Task::DryRun(template),
            Some(template) => Task::Launch(template),
            None => Task::Pipe,
        },
    };
    Ok(Flags { raw, task, bucket, plan, framing })
}

/// The definition of the whole command line.
pub(crate) fn command() -> clap::Command {
    Raw::command().max_term_width(100)
}

fn usage(message: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ArgumentConflict, message)
}

/// What a limit counts is what there is to count.
fn check_kind(raw: &Raw, plan: &Policy) -> Result<(), String> {
    if plan.counts_bytes() && raw.once {
        return Err("--once: the limit counts bytes, and a call is a unit; write for example -r 5/s".to_owned());
    }
    if is_launch(raw) && (plan.counts_bytes() || raw.bytes) {
        return Err("--rate: a command is a unit, not bytes; write -r 5/s \
             (for a command's own traffic use its option: rsync --bwlimit, curl --limit-rate)"
            .to_owned());
    }
    Ok(())
}

fn is_launch(raw: &Raw) -> bool {
    raw.shell.is_some() || !raw.command.is_empty()
}

fn framing(raw: &Raw, plan: &Policy) -> Result<Framing, String> {
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

/// What stands where the command should, but is something else. Behind `--` all is taken as it is.
fn refuse_as_command(raw: &Raw, args: &[OsString]) -> Option<String> {
    let first = raw.command.first()?;
    if args.iter().any(|arg| arg == "--") {
        return None;
    }
    match &raw.summary {
        // GNU parallel's `:::` begins units, not arguments of the command.
        _ if raw.command.iter().any(|word| word == ":::") => Some(foreign_flags::PARALLEL_ARGUMENTS.to_owned()),
        Some(Summary { format: Format::Text, file: None }) if first == "json" || first == "text" => {
            Some(format!("--summary takes its format behind an equals sign; write --summary={}", first.display()))
        }
        _ => foreign_flags::limit_as_command(&raw.rate, first),
    }
}

fn template(raw: &Raw) -> Result<Option<Template>, String> {
    if !is_launch(raw) {
        return launch_flag(raw).map_or(Ok(None), |flag| {
            Err(format!("{flag} needs a command; write throttle -r 5/s {flag} … COMMAND, or -c SCRIPT"))
        });
    }
    let place = match raw {
        Raw { stdin: true, .. } => Place::StandardInput,
        Raw { repeat: Some(_), .. } => Place::Nowhere,
        _ => Place::Arguments,
    };
    let reading = Reading { replace: raw.replace.clone(), max_args: raw.max_args.unwrap_or(1), place };
    match &raw.shell {
        Some(script) => Template::shell(script, &reading),
        None => Template::new(&raw.command, &reading),
    }
    .map(Some)
    .map_err(|error| error.to_string())
}

/// The first option given that means nothing without a command.
fn launch_flag(raw: &Raw) -> Option<&'static str> {
    let given = [
        (raw.repeat.is_some(), "--repeat"),
        (raw.jobs.is_some(), "--jobs"),
        (raw.max_args.is_some(), "--max-args"),
        (raw.replace.is_some(), "--replace"),
        (raw.stdin, "--stdin"),
        (raw.keep_order, "--keep-order"),
        (raw.line_buffer, "--line-buffer"),
        (raw.ungroup, "--ungroup"),
        (raw.tag, "--tag"),
        (raw.timeout.is_some(), "--timeout"),
        (raw.trace, "--trace"),
        (raw.dry_run, "--dry-run"),
    ];
    given.into_iter().find_map(|(given, flag)| given.then_some(flag))
}

/// `30s`, `1m 30s`; a bare number is seconds, as for timeout(1).
fn duration(text: &str) -> Result<Duration, String> {
    let bare = text.parse::<u64>().map(Duration::from_secs).ok();
    let time = bare.or_else(|| humantime::parse_duration(text).ok()).ok_or("write for example 30s, 500ms or 2min")?;
    if time.is_zero() { Err("it must be longer than nothing; write for example 30s".to_owned()) } else { Ok(time) }
}

fn limit_parser() -> impl TypedValueParser<Value = Limit> {
    OsStringValueParser::new().try_map(|text| {
        if Address::is_meant(text.as_bytes()) {
            return Err("a bucket is named with --bucket, a limit is like 5/s".to_owned());
        }
        foreign_flags::in_place_of_limit(&text)
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

#[cfg(test)]
mod tests;
