//! The definition of the command line. Each option is defined once, here; parsing, help, man page, completions and the
//! page of options come from it.
//!
//! The headings have a meaning: an option under "Launch" needs a command (but --dry-run does not), and options under "Input"
//! and "Launch" cannot be used with an option that is about a bucket by itself.

use super::again::{self, MaxFail};
use super::rule::Rule;
use super::text;
use super::values::{self, Format, OnStoreError, ProgressWhen, Repeat, Summary};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Id, Parser};
use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;
use throttle::launch::Backoff;
use throttle_limits::rate::Amount;

/// Pass units on, or run a command for each, at exactly the rate you ask for
#[derive(Clone, Debug, Parser)]
#[command(name = "throttle", version, long_about = text::LONG_ABOUT, after_help = text::after_help(), after_long_help = text::after_long_help(), override_usage = text::USAGE)]
#[allow(clippy::struct_excessive_bools, clippy::struct_field_names, reason = "each is an option")]
pub(crate) struct Args {
    /// At most this: 5/s, 100/min, 10MiB/s; repeat for several
    #[arg(short, long, value_name = "LIMIT", allow_hyphen_values = true, value_parser = values::rule(), long_help = text::RATE, help_heading = "Limit")]
    pub(crate) rate: Vec<Rule>,

    /// Most at once after a pause [default: 10 ms of rate]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| text.parse::<Amount>(), long_help = text::BURST, help_heading = "Limit")]
    pub(crate) burst: Option<Amount>,

    /// Drop units that would wait, instead of passing them on late
    #[arg(hide_short_help = true, long, conflicts_with_all = ["bucket", "command", "shell"], long_help = text::DROP, help_heading = "Limit")]
    pub(crate) drop: bool,

    /// Limits shared with all that name it: file or redis://
    #[arg(long, value_name = "BUCKET", value_hint = clap::ValueHint::FilePath, long_help = text::BUCKET, help_heading = "Shared")]
    pub(crate) bucket: Option<OsString>,

    /// Take one, then become COMMAND
    #[arg(hide_short_help = true, long, long_help = text::ONCE, help_heading = "Shared")]
    pub(crate) once: bool,

    /// Exit 75 instead of waiting longer; with --drop: drop
    #[arg(hide_short_help = true, long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::duration_or_zero, long_help = text::MAX_WAIT, help_heading = "Shared")]
    pub(crate) max_wait: Option<Duration>,

    /// Make the bucket, or change its limits for everyone
    #[arg(hide_short_help = true, long, long_help = text::SET, help_heading = "Shared")]
    pub(crate) set: bool,

    /// With --set: members of GROUP may use the bucket's file
    #[arg(hide_short_help = true, long, value_name = "GROUP", long_help = text::GROUP, help_heading = "Shared")]
    pub(crate) group: Option<String>,

    /// Show the bucket: text or json
    #[arg(hide_short_help = true, long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = values::format, long_help = text::SHOW, help_heading = "Shared")]
    pub(crate) show: Option<Format>,

    /// Empty the bucket's queue, and lift a pause
    #[arg(hide_short_help = true, long, long_help = text::CLEAR, help_heading = "Shared")]
    pub(crate) clear: bool,

    /// Grant nothing from the bucket for TIME; 0 lifts a pause
    #[arg(hide_short_help = true, long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::duration_or_zero, long_help = text::PAUSE, help_heading = "Shared")]
    pub(crate) pause: Option<Duration>,

    /// Name the buckets there are: text or json
    #[arg(hide_short_help = true, long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = values::format, long_help = text::LIST, help_heading = "Shared")]
    pub(crate) list: Option<Format>,

    /// Remove the bucket
    #[arg(hide_short_help = true, long, long_help = text::REMOVE, help_heading = "Shared")]
    pub(crate) remove: bool,

    /// While the bucket's server is away: wait, fail [default: wait]
    #[arg(hide_short_help = true, long, value_name = "WHAT", hide_possible_values = true, long_help = text::ON_STORE_ERROR, help_heading = "Shared")]
    pub(crate) on_store_error: Option<OnStoreError>,

    /// Units end with NUL instead of a newline
    #[arg(short = '0', long, conflicts_with_all = ["delimiter", "bytes"], long_help = text::NULL, help_heading = "Input")]
    pub(crate) null: bool,

    /// Units end with the byte C
    #[arg(hide_short_help = true, short, long, value_name = "C", conflicts_with = "bytes", value_parser = values::delimiter(), long_help = text::DELIMITER, help_heading = "Input")]
    pub(crate) delimiter: Option<u8>,

    /// Every byte is a unit (implied by a rate in bytes)
    #[arg(hide_short_help = true, long, long_help = text::BYTES, help_heading = "Input")]
    pub(crate) bytes: bool,

    /// Read FILE instead of standard input
    #[arg(hide_short_help = true, short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, long_help = text::ARG_FILE, help_heading = "Input")]
    pub(crate) arg_file: Option<PathBuf>,

    /// Instead of input, the units 1 to N, or without end
    #[arg(hide_short_help = true, long, value_name = "N|inf", allow_negative_numbers = true, conflicts_with_all = ["arg_file", "null", "delimiter"], value_parser = values::repeat, long_help = text::REPEAT, help_heading = "Input")]
    pub(crate) repeat: Option<Repeat>,

    /// Most units read while others wait [default: 10000]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, value_parser = again::ahead, long_help = text::AHEAD, help_heading = "Input")]
    pub(crate) ahead: Option<NonZeroUsize>,

    /// Commands at once; 0: no cap [default: 16] (also -P)
    #[arg(short, long, short_alias = 'P', alias = "max-procs", value_name = "N", allow_negative_numbers = true, value_parser = values::jobs, long_help = text::JOBS, help_heading = "Launch")]
    pub(crate) jobs: Option<u32>,

    /// Units for each command, if they fit [default: 1]
    #[arg(hide_short_help = true, short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = values::max_args, long_help = text::MAX_ARGS, help_heading = "Launch")]
    pub(crate) max_args: Option<u64>,

    /// What stands for the unit in COMMAND [default: {}]
    #[arg(hide_short_help = true, short = 'I', long, value_name = "R", allow_hyphen_values = true, conflicts_with = "shell", long_help = text::REPLACE, help_heading = "Launch")]
    pub(crate) replace: Option<OsString>,

    /// Run a shell script for each unit, which is "$1" there
    #[arg(short = 'c', long, value_name = "SCRIPT", allow_hyphen_values = true, conflicts_with = "command", long_help = text::SHELL, help_heading = "Launch")]
    pub(crate) shell: Option<OsString>,

    /// The unit goes to the command's standard input
    #[arg(hide_short_help = true, long, long_help = text::STDIN, help_heading = "Launch")]
    pub(crate) stdin: bool,

    /// Print output in input order
    #[arg(hide_short_help = true, short, long, conflicts_with_all = ["line_buffer", "ungroup"], long_help = text::KEEP_ORDER, help_heading = "Launch")]
    pub(crate) keep_order: bool,

    /// Print output line by line
    #[arg(hide_short_help = true, long, conflicts_with = "ungroup", long_help = text::LINE_BUFFER, help_heading = "Launch")]
    pub(crate) line_buffer: bool,

    /// Let commands write directly, mixed
    #[arg(hide_short_help = true, short, long, conflicts_with = "tag", long_help = text::UNGROUP, help_heading = "Launch")]
    pub(crate) ungroup: bool,

    /// The unit and a tab before each line of output
    #[arg(hide_short_help = true, long, long_help = text::TAG, help_heading = "Launch")]
    pub(crate) tag: bool,

    /// End a command that takes longer
    #[arg(hide_short_help = true, long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::duration, long_help = text::TIMEOUT, help_heading = "Launch")]
    pub(crate) timeout: Option<Duration>,

    /// Run a unit up to N times if it fails
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = again::attempts, long_help = text::ATTEMPTS, help_heading = "Launch")]
    pub(crate) attempts: Option<NonZeroU32>,

    /// Waits between attempts [default: 1s..60s]
    #[arg(hide_short_help = true, long, value_name = "FIRST..LONGEST", allow_negative_numbers = true, value_parser = again::backoff, long_help = text::BACKOFF, help_heading = "Launch")]
    pub(crate) backoff: Option<Backoff>,

    /// Which failures are tried again: 6,7,28,timeout,signal
    #[arg(hide_short_help = true, long, value_name = "CODES", allow_negative_numbers = true, value_parser = again::retry_on, long_help = text::RETRY_ON, help_heading = "Launch")]
    pub(crate) retry_on: Option<again::Failures>,

    /// The longest pause that a server may ask for [default: 1h]
    #[arg(hide_short_help = true, long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::duration, long_help = text::MAX_PAUSE, help_heading = "Launch")]
    pub(crate) max_pause: Option<Duration>,

    /// Launch nothing more once N units, or N%, have failed
    #[arg(hide_short_help = true, long, value_name = "N|N%", allow_negative_numbers = true, value_parser = again::max_fail, long_help = text::MAX_FAIL, help_heading = "Launch")]
    pub(crate) max_fail: Option<MaxFail>,

    /// Keep units that succeeded in FILE, and skip those in it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = values::record(), long_help = text::DONE, help_heading = "Launch")]
    pub(crate) done: Option<PathBuf>,

    /// Add a line of JSON to FILE for each attempt
    #[arg(hide_short_help = true, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = values::record(), long_help = text::LOG, help_heading = "Launch")]
    pub(crate) log: Option<PathBuf>,

    /// Write each command to standard error before it runs
    #[arg(hide_short_help = true, short, long, long_help = text::TRACE, help_heading = "Launch")]
    pub(crate) trace: bool,

    /// Show what would run or leave, and when; do neither
    #[arg(long, long_help = text::DRY_RUN, help_heading = "Launch")]
    pub(crate) dry_run: bool,

    /// Show progress: auto, always, never
    #[arg(hide_short_help = true, long, value_name = "WHEN", default_value = "auto", hide_default_value = true, hide_possible_values = true, long_help = text::PROGRESS, help_heading = "Report")]
    pub(crate) progress: ProgressWhen,

    /// Say at the end what happened: text or json
    #[arg(hide_short_help = true, long, value_name = "FMT[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_parser = values::summary(), long_help = text::SUMMARY, help_heading = "Report")]
    pub(crate) summary: Option<Summary>,

    /// No hints, no messages about failed commands
    #[arg(hide_short_help = true, short, long, long_help = text::QUIET, help_heading = "Report")]
    pub(crate) quiet: bool,

    /// What to run for each unit; everything after its first word belongs to it
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments, hide = true)]
    pub(crate) command: Vec<OsString>,

    /// The first option given that means nothing without a command.
    #[arg(skip)]
    pub(crate) launch_option: Option<String>,
}

/// Options about a bucket by itself.
const VERBS: [&str; 7] = ["once", "set", "show", "clear", "pause", "list", "remove"];

/// Only these go together: the first two start the bucket anew, and of the verbs only --once waits for a turn.
const TOGETHER: [[&str; 2]; 2] = [["set", "clear"], ["once", "max_wait"]];

/// The definition of the whole command line.
pub(crate) fn command() -> Command {
    let command = Args::command().max_term_width(100);
    let is_of_others = |arg: &Arg| {
        let is_of_streams = matches!(arg.get_help_heading(), Some("Input" | "Launch"));
        is_of_streams || arg.get_id() == "summary" || arg.get_id() == "max_wait"
    };
    let is_verb = |id: &Id| VERBS.contains(&id.as_str());
    let excluded = command.get_arguments().filter(|arg| is_of_others(arg) || is_verb(arg.get_id()));
    let excluded: Vec<Id> = excluded.map(|arg| arg.get_id().clone()).collect();
    command.mut_args(|arg| {
        let own = arg.get_id();
        let goes_with =
            |id: &Id| TOGETHER.iter().any(|pair| pair.contains(&id.as_str()) && pair.contains(&own.as_str()));
        let others: Vec<&Id> = excluded.iter().filter(|id| is_verb(own) && *id != own && !goes_with(id)).collect();
        arg.conflicts_with_all(others)
    })
}

/// What `-h` shows, on one screen: what is wished for most.
pub(crate) fn short_help() -> Command {
    let command = command().disable_version_flag(true).mut_args(|arg| arg.help_heading(None::<&str>));
    command.help_template("{about}\n\n{usage-heading} {usage}{after-help}\n\n{options}")
}

/// The first option given that means nothing without a command.
pub(super) fn launch_option(command: &Command, matches: &ArgMatches) -> Option<String> {
    let needs_command = |arg: &&Arg| {
        let is_of_launch = arg.get_help_heading() == Some("Launch");
        arg.get_id() == "repeat" || is_of_launch && !["shell", "dry_run"].contains(&arg.get_id().as_str())
    };
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let given = command.get_arguments().filter(needs_command).find(is_given);
    given.and_then(Arg::get_long).map(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }
}
