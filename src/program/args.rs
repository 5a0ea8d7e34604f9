//! The command line as typed. This folder opens nothing and reads no environment variable. Outside this folder, only
//! the tests that generate the man page and the completions (`generated`) use clap.
//!
//! Each flag is one field in the file of its group: its names, its values, its line of help, and its long help. The
//! long help is the comment, at most 120 words; chapters have the rest. The same file has the parser of its value, its
//! effect on the task, and their tests. Two tables in `definition` list which flags exclude or need each other. A task
//! stores these groups unchanged.
#![allow(clippy::doc_markdown, reason = "the comment of a flag is its long help")]
#![allow(clippy::struct_excessive_bools, reason = "each is a flag")]

mod again;
mod bucket;
mod chapters;
mod definition;
mod foreign_flags;
mod grouped;
mod input;
mod launch;
mod limits;
mod mistakes;
mod own_rates;
mod report;
mod rule;
mod text;
mod values;

#[cfg(test)]
pub(crate) use chapters::{CHAPTERS, Part};
#[cfg(test)]
pub(crate) use definition::{VERBS, command};
#[cfg(test)]
pub(crate) use rule::Rule;
#[cfg(test)]
pub(crate) use text::{EXAMPLES, SIGNALS, environment};

pub(crate) use again::MaxFail;
pub(crate) use bucket::{Bucket, Environment, Kind, SharedFlags};
pub(crate) use definition::Args;
pub(crate) use foreign_flags::rest_of_limit;
pub(crate) use grouped::Grouped;
pub(crate) use input::{InputFlags, Repeat};
pub(crate) use launch::LaunchFlags;
pub(crate) use limits::{LimitFlags, Limits, Stream, interval, look, refuse_bytes};
pub(crate) use mistakes::{own_command_line, redacted};
pub(crate) use own_rates::OwnRates;
pub(crate) use report::{ProgressWhen, ReportFlags, Summary};
pub(crate) use values::Format;

use chapters::Chapter;
use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use throttle::launch::Separator;

/// The reasons not to run a command line.
#[derive(Debug)]
pub(crate) enum Refused {
    /// `-h`, or `--help` with a chapter: the help of this definition is printed.
    Help(Box<Command>),
    /// `--help` or `--version`.
    Answer(clap::Error),
    /// A message, and whether `--once` was given.
    Mistake(String, bool),
}

/// Reads the command line.
///
/// # Errors
/// The text to print instead of a run.
pub(crate) fn parse(words: &[OsString]) -> Result<Args, Refused> {
    let mistake = |message: String| {
        Refused::Mistake(
            redacted(&mistakes::long_with_one_dash(words).unwrap_or(message), words),
            mistakes::is_own_option(words, "--once"),
        )
    };
    let mut command = foreign_flags::with_foreign_flags(definition::command());
    let matches = command.try_get_matches_from_mut(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => help(error, words),
        ErrorKind::DisplayVersion => word_after(words, &["--version", "-V"]).map_or(Refused::Answer(error), |word| {
            mistake(format!("--version takes no value; leave '{}' out", word.display()))
        }),
        _ => mistake(mistakes::words(&error, words)),
    })?;
    foreign_flags::refuse(&matches).map_err(mistake)?;
    let args = Args::from_arg_matches(&matches).map_err(|error| mistake(mistakes::words(&error, words)))?;
    let refused = refuse_as_command(&args, words).or_else(|| definition::missing(&command, &matches));
    refused.map_or(Ok(args), |message| Err(mistake(message)))
}

/// The help that the user requested: short, long, or a chapter.
fn help(long: clap::Error, words: &[OsString]) -> Refused {
    if !mistakes::is_own_option(words, "--help") {
        return Refused::Help(Box::new(definition::short_help()));
    }
    let Some(name) = word_after(words, &["--help"]) else { return Refused::Answer(long) };
    match Chapter::named(name) {
        Some(chapter) => Refused::Help(Box::new(chapter.page())),
        None => Refused::Mistake(redacted(&chapters::no_chapter(name), words), false),
    }
}

/// The word after an option, unless it is an option.
fn word_after<'a>(words: &'a [OsString], names: &[&str]) -> Option<&'a OsStr> {
    let word = words.iter().skip_while(|word| !names.iter().any(|name| *word == name)).nth(1)?;
    Some(word.as_os_str()).filter(|word| !word.as_bytes().starts_with(b"-"))
}

/// The message if the first word of the command was probably meant as an option or a limit. After `--`, any word is a
/// command.
fn refuse_as_command(args: &Args, words: &[OsString]) -> Option<String> {
    let first = args.command.first()?;
    // With --once, the words after a script are its arguments.
    if words.iter().any(|word| word == "--") || args.shared.once && args.launch.shell.is_some() {
        return None;
    }
    match &args.report.summary {
        // `:::` of GNU parallel starts a list of units, not of arguments.
        _ if args.command.iter().any(|word| word == ":::") => Some(foreign_flags::PARALLEL_ARGUMENTS.to_owned()),
        _ if args.command.iter().any(|word| word == "::::") => Some(foreign_flags::PARALLEL_FILES.to_owned()),
        Some(Summary { format: Format::Text, file: None }) if first == "json" || first == "text" => {
            Some(format!("--summary takes its format after an equals sign; write --summary={}", first.display()))
        }
        _ if args.launch.columns == Some(Separator::Blanks) && is_separator(first) => {
            let needs_quotes = matches!(first.as_bytes(), b"\\t" | b"|" | b";" | b"&" | b"#" | b"~" | b"<" | b">");
            let quote = if needs_quotes { "'" } else { "" };
            let separator = format!("{quote}{}{quote}", first.display());
            Some(format!("--columns takes its separator after an equals sign; write --columns={separator}"))
        }
        _ => mistakes::typographic_dash(first).or_else(|| mistakes::no_command(args, first)),
    }
}

/// Whether a word is a separator of columns and cannot be the name of a command.
fn is_separator(word: &OsStr) -> bool {
    word == "\\t" || matches!(word.as_bytes(), [byte] if b",;:|&#~<>/%+=@^-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_with_the_options_of_other_tools_is_consistent() {
        foreign_flags::with_foreign_flags(command()).debug_assert();
    }
}
