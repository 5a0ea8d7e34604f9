//! The command line as a whole: its groups of flags, and the rules between flags. Parsing, help, man page, completions
//! and the page of options come from it.
//!
//! Headings have a meaning. A flag under "Launch" or "Advanced" needs a command, except --dry-run and --keep-order.
//! Flags under "Input", "Launch" and "Advanced" exclude a flag that only acts on a bucket.

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
/// A command's standard input is /dev/null, even with -a; --stdin gives it the unit. A command that fails, that is
/// killed by a signal or that cannot be run does not stop the others; an exit of 255 does. A script cannot be run
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

    /// The command for each unit; every word after its first word is a part of it
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments, hide = true)]
    pub(crate) command: Vec<OsString>,
}

/// The most used flags: `-h` shows them on one screen.
const SHORT_HELP: [&str; 9] = ["rate", "burst", "bucket", "null", "jobs", "shell", "attempts", "done", "dry_run"];

/// Flags that act on a bucket alone, or on logs. Each excludes the others, and the flags of streams.
pub(crate) const VERBS: [&str; 8] = ["once", "set", "show", "clear", "pause", "list", "remove", "plot"];

/// Exceptions: pairs of flags that go together. --set --clear makes a bucket start empty. --once goes together with
/// --max-wait, because it is the only verb that waits for a grant.
const COMPATIBLE: [[&str; 2]; 2] = [["set", "clear"], ["once", "max_wait"]];

/// Flags of commands that are allowed for the one command of --once.
const WITH_ONCE: [&str; 8] =
    ["attempts", "backoff", "retry_on", "later_on", "max_pause", "no_learn", "timeout", "shell"];

/// Other flags that exclude each other, and what to write instead (empty if there is no way).
const EXCLUSIVE: [(&str, &[&str], &str); 13] = [
    ("bucket", &["plot"], "--plot reads logs of --log, not a bucket; write throttle --plot tries.jsonl > run.html"),
    ("drop", &["bucket", "keep_order"], ""),
    (
        "drop",
        &["command", "shell"],
        "--drop is for a pipe; commands are not dropped; write a pipe before the commands: throttle -r 5/s --drop \
         | throttle -r unlimited COMMAND",
    ),
    (
        "max_wait",
        &["attempts", "timeout"],
        "--max-wait cannot be used with --attempts or --timeout; leave one of them out",
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

/// A script is the command. It has arguments only with --once.
const TWO_COMMANDS: &str =
    "--shell cannot be used with a command; the script is one word in single quotes: -c 'echo \"$1\"'";

/// Flags that need one of several other flags, and a right spelling.
const NEEDS: [(&str, &[&str], &str); 8] = [
    (
        "max_wait",
        &["once", "drop"],
        "-r 5/s --drop --max-wait 30s in a pipe, or --bucket NAME --once --max-wait 30s COMMAND",
    ),
    ("key", &["once", "clear", "pause"], "--bucket NAME -r 1/s,per=host --once --key a.example COMMAND"),
    ("group", &["set"], "--bucket ./b --set --group devs -r 5/s"),
    ("backoff", &["attempts"], "--attempts 5 --backoff 1s..60s COMMAND"),
    ("retry_on", &["attempts"], "--attempts 5 --retry-on 6,7,28 COMMAND"),
    ("later_on", &["attempts"], "--attempts 5 --later-on 254,http:403 COMMAND"),
    ("max_pause", &["attempts"], "--attempts 5 --max-pause 1h COMMAND"),
    ("no_learn", &["attempts"], "--attempts 5 --no-learn COMMAND"),
];

/// The definition of the whole command line.
pub(crate) fn command() -> Command {
    let command = Args::command().max_term_width(100);
    let is_excluded = |arg: &&Arg| {
        let is_of_streams = matches!(arg.get_help_heading(), Some("Input" | "Launch" | "Advanced"));
        is_of_streams || VERBS.iter().chain(&["summary", "size", "max_wait"]).any(|id| arg.get_id() == id)
    };
    let excluded: Vec<Id> = command.get_arguments().filter(is_excluded).map(|arg| arg.get_id().clone()).collect();
    command.mut_args(|arg| {
        let own = arg.get_id().clone();
        let own = own.as_str();
        let go_together = |other: &Id| {
            COMPATIBLE.iter().any(|pair| pair.contains(&other.as_str()) && pair.contains(&own))
                || own == "once" && WITH_ONCE.contains(&other.as_str())
        };
        let of_verb = excluded.iter().filter(|other| VERBS.contains(&own) && *other != own && !go_together(other));
        let exclusive = EXCLUSIVE
            .iter()
            .filter(|(flag, ..)| *flag == own && !VERBS.contains(flag))
            .flat_map(|(_, others, _)| others.iter().copied());
        let others: Vec<Id> = of_verb.cloned().chain(exclusive.map(Id::from)).collect();
        arg.conflicts_with_all(others).hide_short_help(!SHORT_HELP.contains(&own))
    })
}

/// The name of a flag in messages.
fn shown(id: &str) -> String {
    if id == "command" { "COMMAND".to_owned() } else { format!("--{}", id.replace('_', "-")) }
}

/// The advice if two flags exclude each other, if there is any.
pub(super) fn instead_of(one: &str, other: &str) -> Option<&'static str> {
    let is_pair = |flag: &str, others: &[&str]| {
        let flag = shown(flag);
        others.iter().map(|id| shown(id)).any(|id| (one == flag && other == id) || (one == id && other == flag))
    };
    let (.., instead) = EXCLUSIVE.iter().find(|(flag, others, _)| is_pair(flag, others))?;
    Some(*instead).filter(|instead| !instead.is_empty())
}

/// The message if a flag is given without another flag or the command that it needs.
pub(super) fn missing(command: &Command, matches: &ArgMatches) -> Option<String> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let is_alone = |(flag, others, _): &&(&str, &[&str], &str)| is_given(flag) && !others.iter().any(|id| is_given(id));
    if let Some((flag, others, example)) = NEEDS.iter().find(is_alone) {
        let others: Vec<String> = others.iter().map(|id| shown(id)).collect();
        return Some(format!("{} needs {}; write for example {example}", shown(flag), others.join(" or ")));
    }
    if is_given("shell") && is_given("command") && !is_given("once") {
        // Load generators use -c for the number of connections.
        let script = matches.get_one::<OsString>("shell").and_then(|script| script.to_str());
        let jobs = script.and_then(|script| script.parse::<u32>().ok());
        return Some(jobs.map_or_else(
            || TWO_COMMANDS.to_owned(),
            |jobs| format!("--shell {jobs}: -c takes a script; for {jobs} commands at once write -j {jobs}"),
        ));
    }
    if is_given("command") || is_given("shell") {
        return None;
    }
    let needs_command = |arg: &&Arg| {
        let is_of_pipes_too = ["dry_run", "keep_order"].iter().any(|id| arg.get_id() == id);
        let is_of_launch = matches!(arg.get_help_heading(), Some("Launch" | "Advanced")) && !is_of_pipes_too;
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

    /// The most words of the help of a flag; the rest is in a chapter.
    const HELP_WORDS: usize = 120;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_of_a_flag_is_short() {
        for arg in command().get_arguments() {
            let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
            let words = help.split_whitespace().count();
            assert!(words <= HELP_WORDS, "--{} has {words} words of help; at most {HELP_WORDS}", arg.get_id());
        }
    }

    /// A line break inside of its quotes would break a copied example. The man page has 64 columns for it.
    #[test]
    fn an_example_in_the_help_of_a_flag_fits_on_a_line() {
        let mut examples = 0;
        for arg in command().get_arguments() {
            let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
            let is_example = |part: &&str| part.contains("throttle -") && !part.ends_with(['.', ':']);
            for example in help.split("\n\n").filter(is_example) {
                examples += 1;
                assert!(example.chars().count() <= 64, "--{}: {example}", arg.get_id());
            }
        }
        assert!(examples > 4, "{examples}");
    }
}
