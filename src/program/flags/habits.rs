//! Habits from other tools: where someone types their spelling, the error shows ours.

use super::{command, offending_word};
use clap::error::ErrorKind;
use std::ffi::{OsStr, OsString};

/// What other tools call something, and what to write here. `{}` is the value given with it.
const HABITS: [(&str, &str); 13] = [
    ("-L", "a rate is -r 10MB/s or -r 10M/s, N lines for each command -n N"),
    ("-l", "lines are what is counted unless told otherwise; N for each command is -n N"),
    ("-i", "{} stands for the unit without it; another marker is -I R"),
    ("-s", "a size is not needed: commands get one unit each, or -n N"),
    ("-x", "leave it out: a command that would be too long fails by itself"),
    ("-p", "to see what would run write --dry-run, for progress --progress=always"),
    ("-R", "mbuffer's rate is -r here: -r 10MB/s"),
    ("--delay", "a delay is a rate: for one every 2 s write -r 1/2s"),
    ("--rate-limit", "write --rate, or -r: -r 10MB/s"),
    ("--limit-rate", "write --rate, or -r: -r 10MB/s"),
    ("--bwlimit", "write --rate, or -r: -r 10MB/s"),
    ("--line-mode", "lines are what is counted unless told otherwise: -r 1000/s"),
    (":::", "pass units on standard input, one a line: printf '%s\\n' A B | throttle -r 5/s COMMAND"),
];

const RATE_TAKES_A_LIMIT: &str = "-r takes a limit, like -r 5/s \
    (xargs' -r, --no-run-if-empty, is not needed: empty input does nothing)";

/// Replaces clap's error by one that knows the habit behind it.
pub(super) fn explain(error: clap::Error, args: &[OsString]) -> clap::Error {
    let with = |kind, message: &str| command().error(kind, message);
    match error.kind() {
        _ if has_bare_rate(args) => with(ErrorKind::InvalidValue, RATE_TAKES_A_LIMIT),
        ErrorKind::UnknownArgument => match offending_word(&error).and_then(|word| advice(word, args)) {
            Some(advice) => with(ErrorKind::UnknownArgument, &advice),
            None => error,
        },
        ErrorKind::MissingRequiredArgument => with(
            ErrorKind::MissingRequiredArgument,
            "--rate: how fast? write for example -r 5/s, -r 100/min or -r 10MiB/s",
        ),
        _ => error,
    }
}

pub(super) fn advice(word: &str, args: &[OsString]) -> Option<String> {
    let name = word.split('=').next().unwrap_or(word);
    let (name, words) = HABITS.into_iter().find(|(habit, _)| *habit == name)?;
    let value = value_of(name, args);
    let words = match (name, value.as_deref().and_then(as_delay)) {
        ("--delay", Some(delay)) => format!("a delay is a rate: for one every {delay} write -r 1/{delay}"),
        ("-L" | "-R" | "--rate-limit" | "--limit-rate" | "--bwlimit", _) => value.as_deref().map_or_else(
            || words.to_owned(),
            |value| {
                if is_bare(value) {
                    format!("write -r {value}B/s for bytes, -r {value}/s for lines")
                } else {
                    words.to_owned()
                }
            },
        ),
        _ => words.to_owned(),
    };
    Some(format!("{name} is not an option here: {words}"))
}

/// What stands behind the option `name`, attached or as the next word.
fn value_of(name: &str, args: &[OsString]) -> Option<String> {
    let place = args.iter().position(|arg| arg.to_str().is_some_and(|arg| arg.starts_with(name)))?;
    let attached = args[place].to_str()?.strip_prefix(name)?.trim_start_matches('=');
    if attached.is_empty() { args.get(place + 1)?.to_str().map(str::to_owned) } else { Some(attached.to_owned()) }
}

/// `2s`, or `2` as GNU parallel and sleep mean it.
fn as_delay(value: &str) -> Option<String> {
    let delay = if value.ends_with(|c: char| c.is_ascii_digit()) { format!("{value}s") } else { value.to_owned() };
    format!("1/{delay}").parse::<throttle::rate::Rate>().is_ok().then_some(delay)
}

/// `10M`: a number and a decimal suffix, no slash.
fn is_bare(value: &str) -> bool {
    let number = value.trim_end_matches(['k', 'M', 'G']);
    value.len() - number.len() == 1 && number.parse::<u64>().is_ok()
}

/// Whether a `-r` has nothing behind it, or another option.
fn has_bare_rate(args: &[OsString]) -> bool {
    let is_bare = |(place, _)| args.get(place + 1).is_none_or(|next: &OsString| in_place_of_limit(next).is_some());
    args.iter().enumerate().filter(|(_, arg)| *arg == "-r" || *arg == "--rate").any(is_bare)
}

/// The message for what stands after `-r` and cannot be meant as a limit: another option.
pub(super) fn in_place_of_limit(text: &OsStr) -> Option<String> {
    let option = text.to_str()?.strip_prefix('-')?;
    let is_number = option.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // `-0` is our own, and xargs' -r often stands before it; a rate of -0 is nobody's.
    (!is_number || option == "0").then(|| RATE_TAKES_A_LIMIT.to_owned())
}
