//! Habits from other tools: where someone types their spelling, the error shows ours.

use super::command;
use super::mistakes::offending_word;
use clap::error::ErrorKind;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use throttle::rate::Rate;

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
        ErrorKind::ArgumentConflict if args.get(own_words(args)).is_some_and(|word| word == ":::") => {
            advice(":::", args).map_or(error, |advice| with(ErrorKind::ArgumentConflict, &advice))
        }
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
    let words = match (name, value.as_deref().and_then(delay_as_rate)) {
        ("--delay", Some((delay, rate))) => format!("a delay is a rate: for one every {delay} write -r {rate}"),
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
    let own = &args[..own_words(args)];
    let place = own.iter().position(|arg| arg.to_str().is_some_and(|arg| arg.starts_with(name)))?;
    let attached = args[place].to_str()?.strip_prefix(name)?.trim_start_matches('=');
    if attached.is_empty() { args.get(place + 1)?.to_str().map(str::to_owned) } else { Some(attached.to_owned()) }
}

/// `2s`, or `2` and `0.02` as GNU parallel and sleep mean them, and the rate that goes with it.
fn delay_as_rate(value: &str) -> Option<(String, String)> {
    let seconds = value.strip_suffix('s').unwrap_or(value);
    let (delay, rate) = match seconds.parse().map(Duration::try_from_secs_f64) {
        Ok(period) => (format!("{seconds}s"), rate_of(period.ok()?)?),
        Err(_) => (value.to_owned(), format!("1/{value}")),
    };
    rate.parse::<Rate>().is_ok().then_some((delay, rate))
}

/// One in each `period`, with the fewest digits: 50/s, 1/2s, 1/1500ms.
fn rate_of(period: Duration) -> Option<String> {
    let nanos = period.as_nanos();
    match nanos {
        0 => None,
        nanos if 1_000_000_000 % nanos == 0 => Some(format!("{}/s", 1_000_000_000 / nanos)),
        nanos if nanos % 1_000_000_000 == 0 => Some(format!("1/{}s", nanos / 1_000_000_000)),
        nanos => {
            let common = common_divisor(nanos, 1_000_000);
            Some(format!("{}/{}ms", 1_000_000 / common, nanos / common))
        }
    }
}

fn common_divisor(one: u128, other: u128) -> u128 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// `10M`: a number and a decimal suffix, no slash.
fn is_bare(value: &str) -> bool {
    let number = value.trim_end_matches(['k', 'M', 'G']);
    value.len() - number.len() == 1 && number.parse::<u64>().is_ok()
}

/// Whether a `-r` of ours has nothing behind it, or another option.
fn has_bare_rate(args: &[OsString]) -> bool {
    let own = &args[..own_words(args)];
    let is_bare = |(place, _)| args.get(place + 1).is_none_or(|next: &OsString| in_place_of_limit(next).is_some());
    own.iter().enumerate().filter(|(_, arg)| *arg == "-r" || *arg == "--rate").any(is_bare)
}

/// How many words stand before the command, or the dashes that announce it. An option that nobody knows takes no value.
pub(super) fn own_words(args: &[OsString]) -> usize {
    let definition = command();
    let mut place = 1;
    while let Some(word) = args.get(place).map(|word| word.as_bytes()).filter(|word| is_option(word)) {
        place += if takes_next_word(&definition, word) { 2 } else { 1 };
    }
    place.min(args.len())
}

fn is_option(word: &[u8]) -> bool {
    word.len() > 1 && word.starts_with(b"-") && word != b"--"
}

/// Whether the value of the option, or of the last of several letters, is the next word.
fn takes_next_word(definition: &clap::Command, word: &[u8]) -> bool {
    let takes_value = |option: &&clap::Arg| option.get_action().takes_values() && !option.is_require_equals_set();
    let mut options = definition.get_arguments().filter(takes_value);
    if let Some(name) = word.strip_prefix(b"--") {
        return options.any(|option| option.get_long().is_some_and(|long| long.as_bytes() == name));
    }
    let letters: Vec<char> = options.flat_map(letters_of).collect();
    // What stands behind such a letter is its value.
    word.iter().position(|byte| letters.contains(&char::from(*byte))).is_some_and(|first| first + 1 == word.len())
}

fn letters_of(option: &clap::Arg) -> Vec<char> {
    option.get_short().into_iter().chain(option.get_all_short_aliases().unwrap_or_default()).collect()
}

/// The message for what stands after `-r` and cannot be meant as a limit: another option.
pub(super) fn in_place_of_limit(text: &OsStr) -> Option<String> {
    let option = text.to_str()?.strip_prefix('-')?;
    let is_number = option.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // `-0` is our own, and xargs' -r often stands before it; a rate of -0 is nobody's.
    (!is_number || option == "0").then(|| RATE_TAKES_A_LIMIT.to_owned())
}
