//! The command line as a whole: its groups of flags, and the rules between flags. Parsing, help, man page, completions and
//! the page of options come from it.
//!
//! Headings have a meaning: a flag under "Launch" needs a command (but --dry-run and --keep-order do not), and flags under "Input" and
//! "Launch" cannot be used with a flag that is about a bucket by itself.

use super::bucket::SharedFlags;
use super::input::InputFlags;
use super::launch::LaunchFlags;
use super::limits::LimitFlags;
use super::report::ReportFlags;
use super::text;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Id, Parser};
use std::ffi::OsString;

/// Pass lines, records or bytes from standard input to standard output, or run a command for each, at exactly the rate
/// you ask for.
///
/// Each unit is read as it comes, waits until every limit allows it, and leaves whole and unchanged. Standard output
/// also gets blank lines, NUL bytes, invalid UTF-8 and a last line without its newline. For commands, blank lines are
/// skipped and counted, except with -0 or -d; a line of spaces or tabs is not blank. After a slow reader or writer,
/// lost time is never made up with a burst beyond the limits.
///
/// A command's standard input is /dev/null, also with -a; --stdin gives it the unit. A command that fails, that is
/// killed by a signal or that cannot be run does not stop the others; one that exits 255 does. A script cannot be run
/// (126) if its first line does not name its interpreter, like #!/bin/sh. A command that moves to the background has
/// ended for throttle: setsid CMD returns at once, setsid --wait CMD does not.
#[derive(Clone, Debug, Parser)]
#[command(name = "throttle", version, override_usage = text::USAGE)]
#[command(about = "Pass units on, or run a command for each, at exactly the rate you ask for", long_about)]
#[command(after_help = text::after_help(), after_long_help = text::after_long_help())]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) limit: LimitFlags,
    #[command(flatten)]
    pub(crate) shared: SharedFlags,
    #[command(flatten)]
    pub(crate) input: InputFlags,
    #[command(flatten)]
    pub(crate) launch: LaunchFlags,
    #[command(flatten)]
    pub(crate) report: ReportFlags,

    /// What to run for each unit; everything after its first word belongs to it
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments, hide = true)]
    pub(crate) command: Vec<OsString>,
}

/// The flags that `-h` shows, on one screen: those that are used most.
const SHORT_HELP: [&str; 9] = ["rate", "burst", "bucket", "null", "jobs", "shell", "attempts", "done", "dry_run"];

/// Flags about a bucket by itself, or about logs. Each excludes the others, and the flags of streams.
const VERBS: [&str; 8] = ["once", "set", "show", "clear", "pause", "list", "remove", "plot"];

/// But these go together: the first two start the bucket anew, and of the verbs only --once waits for a turn.
const TOGETHER: [[&str; 2]; 2] = [["set", "clear"], ["once", "max_wait"]];

/// Flags of commands that the one command of --once may have.
const WITH_ONCE: [&str; 8] =
    ["attempts", "backoff", "retry_on", "later_on", "max_pause", "no_learn", "timeout", "shell"];

/// Other flags that exclude each other, and what to write instead, if there is a way.
const APART: [(&str, &[&str], &str); 13] = [
    ("bucket", &["plot"], "--plot reads logs of --log, and no bucket; write throttle --plot tries.jsonl > run.html"),
    ("drop", &["bucket", "keep_order"], ""),
    (
        "drop",
        &["command", "shell"],
        "--drop is for a pipe, and commands are not dropped; write it before them: \
         throttle -r 5/s --drop | throttle -r unlimited COMMAND",
    ),
    (
        "max_wait",
        &["attempts", "timeout"],
        "--max-wait is for a call that is not tried again; leave it out, or --attempts and --timeout",
    ),
    ("replace", &["shell"], ""),
    ("columns", &["max_args", "stdin"], ""),
    ("null", &["delimiter", "bytes"], ""),
    ("delimiter", &["bytes"], ""),
    ("repeat", &["arg_file", "null", "delimiter"], ""),
    ("size", &["repeat"], ""),
    ("keep_order", &["line_buffer", "ungroup"], ""),
    ("line_buffer", &["ungroup"], ""),
    ("ungroup", &["tag"], ""),
];

/// A script is the command; only with --once it has arguments.
const TWO_COMMANDS: &str =
    "--shell cannot be used with a command; the script is one word in single quotes: -c 'echo \"$1\"'";

/// Flags that mean nothing without one of others, and a right spelling.
const NEEDS: [(&str, &[&str], &str); 8] = [
    ("max_wait", &["once", "drop"], "--once --max-wait 30s"),
    ("key", &["once", "clear", "pause"], "--once --key a.example COMMAND"),
    ("group", &["set"], "--bucket ./b --set --group devs -r 5/s"),
    ("backoff", &["attempts"], "--attempts 5 --backoff 1s..60s"),
    ("retry_on", &["attempts"], "--attempts 5 --retry-on 6,7,28"),
    ("later_on", &["attempts"], "--attempts 5 --later-on 254,http:403"),
    ("max_pause", &["attempts"], "--attempts 5 --max-pause 1h"),
    ("no_learn", &["attempts"], "--attempts 5 --no-learn"),
];

/// The definition of the whole command line.
pub(crate) fn command() -> Command {
    let command = Args::command().max_term_width(100);
    let is_excluded = |arg: &&Arg| {
        let is_of_streams = matches!(arg.get_help_heading(), Some("Input" | "Launch"));
        is_of_streams || VERBS.iter().chain(&["summary", "size", "max_wait"]).any(|id| arg.get_id() == id)
    };
    let excluded: Vec<Id> = command.get_arguments().filter(is_excluded).map(|arg| arg.get_id().clone()).collect();
    command.mut_args(|arg| {
        let own = arg.get_id().clone();
        let own = own.as_str();
        let go_together = |other: &Id| {
            TOGETHER.iter().any(|pair| pair.contains(&other.as_str()) && pair.contains(&own))
                || own == "once" && WITH_ONCE.contains(&other.as_str())
        };
        let of_verb = excluded.iter().filter(|other| VERBS.contains(&own) && *other != own && !go_together(other));
        let apart = APART
            .iter()
            .filter(|(flag, ..)| *flag == own && !VERBS.contains(flag))
            .flat_map(|(_, others, _)| others.iter().copied());
        let others: Vec<Id> = of_verb.cloned().chain(apart.map(Id::from)).collect();
        arg.conflicts_with_all(others).hide_short_help(!SHORT_HELP.contains(&own))
    })
}

/// A flag in messages.
fn shown(id: &str) -> String {
    if id == "command" { "COMMAND".to_owned() } else { format!("--{}", id.replace('_', "-")) }
}

/// What to write instead of two flags that exclude each other.
pub(super) fn instead_of(one: &str, other: &str) -> Option<&'static str> {
    let is_pair = |flag: &str, others: &[&str]| {
        let flag = shown(flag);
        others.iter().map(|id| shown(id)).any(|id| (one == flag && other == id) || (one == id && other == flag))
    };
    let (.., instead) = APART.iter().find(|(flag, others, _)| is_pair(flag, others))?;
    Some(*instead).filter(|instead| !instead.is_empty())
}

/// What is missing if a flag means nothing by itself.
pub(super) fn missing(command: &Command, matches: &ArgMatches) -> Option<String> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let is_alone = |(flag, others, _): &&(&str, &[&str], &str)| is_given(flag) && !others.iter().any(|id| is_given(id));
    if let Some((flag, others, example)) = NEEDS.iter().find(is_alone) {
        let others: Vec<String> = others.iter().map(|id| format!("to {}", shown(id))).collect();
        return Some(format!("{} belongs {}; write for example {example}", shown(flag), others.join(" and ")));
    }
    if is_given("shell") && is_given("command") && !is_given("once") {
        return Some(TWO_COMMANDS.to_owned());
    }
    if is_given("command") || is_given("shell") {
        return None;
    }
    let needs_command = |arg: &&Arg| {
        let is_of_pipes_too = ["dry_run", "keep_order"].iter().any(|id| arg.get_id() == id);
        let is_of_launch = arg.get_help_heading() == Some("Launch") && !is_of_pipes_too;
        (arg.get_id() == "repeat" || is_of_launch) && is_given(arg.get_id().as_str())
    };
    let flag = shown(command.get_arguments().find(needs_command)?.get_id().as_str());
    Some(format!("{flag} needs a command; write throttle -r 5/s {flag} … COMMAND, or -c SCRIPT"))
}

/// The definition for the short help.
pub(crate) fn short_help() -> Command {
    let command = command().disable_version_flag(true).mut_args(|arg| arg.help_heading(None::<&str>));
    command.help_template("{about}\n\n{usage-heading} {usage}{after-help}\n\n{options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }
}
