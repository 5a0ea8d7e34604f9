//! The command line, as typed. Nothing is opened here, and no environment variable is read. Nothing outside this folder
//! knows clap, but for the tests that make the man page and the completions from it (`generated`).
//!
//! Each flag is one field in the file of its group: its names and values, its one line of help, its long help (the
//! comment), and beside it the parser of its value, what it means for the task, and their tests. Which flags exclude or need
//! each other is said in two tables of `definition`. A task keeps these groups as they are.
#![allow(clippy::doc_markdown, reason = "the comment of a flag is its long help")]
#![allow(clippy::struct_excessive_bools, reason = "each is a flag")]

mod again;
mod bucket;
mod definition;
mod foreign_flags;
mod grouped;
mod input;
mod launch;
mod limits;
mod mistakes;
mod report;
mod rule;
mod text;
mod values;

#[cfg(test)]
pub(crate) use definition::command;
#[cfg(test)]
pub(crate) use grouped::Group;
#[cfg(test)]
pub(crate) use rule::Rule;
#[cfg(test)]
pub(crate) use text::{EXAMPLES, SIGNALS, environment};

pub(crate) use again::MaxFail;
pub(crate) use bucket::{Bucket, Environment, Kind, SharedFlags};
pub(crate) use definition::{Args, short_help};
pub(crate) use grouped::Grouped;
pub(crate) use input::{InputFlags, Repeat};
pub(crate) use launch::LaunchFlags;
pub(crate) use limits::{LimitFlags, Limits, Stream, interval, look, refuse_bytes};
pub(crate) use mistakes::{own_command_line, redacted};
pub(crate) use report::{ProgressWhen, ReportFlags, Summary};
pub(crate) use values::Format;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use std::ffi::OsString;

/// Why a command line is not run.
#[derive(Debug)]
pub(crate) enum Refused {
    /// `-h` was asked for.
    ShortHelp,
    /// `--help` or `--version` was asked for.
    Answer(clap::Error),
    /// A message, and whether `--once` was given.
    Mistake(String, bool),
}

/// Reads the command line.
///
/// # Errors
/// What to show instead of running it.
pub(crate) fn parse(words: &[OsString]) -> Result<Args, Refused> {
    let mistake = |message: String| {
        Refused::Mistake(
            redacted(&mistakes::long_with_one_dash(words).unwrap_or(message), words),
            mistakes::is_own_option(words, "--once"),
        )
    };
    let mut command = foreign_flags::with_foreign_flags(definition::command());
    let matches = command.try_get_matches_from_mut(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp if !mistakes::is_own_option(words, "--help") => Refused::ShortHelp,
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Refused::Answer(error),
        _ => mistake(mistakes::words(&error, words)),
    })?;
    foreign_flags::refuse(&matches).map_err(mistake)?;
    let args = Args::from_arg_matches(&matches).map_err(|error| mistake(mistakes::words(&error, words)))?;
    let refused = refuse_as_command(&args, words).or_else(|| definition::missing(&command, &matches));
    refused.map_or(Ok(args), |message| Err(mistake(message)))
}

/// What is wrong if the first word of the command was meant as something else. After `--` any word is a command.
fn refuse_as_command(args: &Args, words: &[OsString]) -> Option<String> {
    let first = args.command.first()?;
    // With --once the words behind a script are its arguments.
    if words.iter().any(|word| word == "--") || args.shared.once && args.launch.shell.is_some() {
        return None;
    }
    match &args.report.summary {
        // GNU parallel's `:::` begins units, not arguments of the command.
        _ if args.command.iter().any(|word| word == ":::") => Some(foreign_flags::PARALLEL_ARGUMENTS.to_owned()),
        _ if args.command.iter().any(|word| word == "::::") => Some(foreign_flags::PARALLEL_FILES.to_owned()),
        Some(Summary { format: Format::Text, file: None }) if first == "json" || first == "text" => {
            Some(format!("--summary takes its format after an equals sign; write --summary={}", first.display()))
        }
        _ => mistakes::typographic_dash(first).or_else(|| mistakes::no_command(args, first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_with_the_options_of_other_tools_is_consistent() {
        foreign_flags::with_foreign_flags(command()).debug_assert();
    }
}
