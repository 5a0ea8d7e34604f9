//! Flags of other tools: the error shows what to write here.

use super::rule::Rule;
use super::values::duration;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::{OsStr, OsString};
use throttle_limits::rate::{Limit, ParseError, Rate};

pub(super) const PARALLEL_ARGUMENTS: &str = "::: is not an option here: \
    pass units on standard input, one a line: printf '%s\\n' A B | throttle -r 5/s COMMAND";

pub(super) const PARALLEL_FILES: &str =
    ":::: is not an option here: to read units from a file write throttle -r 5/s COMMAND < FILE";

pub(super) const RATE_TAKES_A_LIMIT: &str = "-r takes a limit, like -r 5/s \
    (xargs' -r, --no-run-if-empty, is not needed: empty input does nothing)";

const SIZE: &str = "-s is not an option here: \
    the size of a pipe is --size, like --size 10GiB; that of a file is known: throttle -r 10MB/s < FILE";

/// Each flag of another tool, and what to write here. Flags that mean the same share a line.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("foreign_flags.txt").lines().filter_map(|line| line.split_once(": "));
    lines.flat_map(|(names, words)| names.split(' ').map(move |name| (name, words)))
}

/// `command` that also knows the options of other tools, to refuse them.
pub(super) fn with_foreign_flags(command: clap::Command) -> clap::Command {
    command.args(all().map(|(name, _)| {
        let arg = Arg::new(name).hide(true).action(ArgAction::Append).num_args(0..=1);
        let arg = arg.allow_negative_numbers(true).value_parser(clap::value_parser!(OsString));
        match name.strip_prefix("--") {
            Some(long) => arg.long(long),
            None => arg.short(name.chars().nth(1)),
        }
    }))
}

/// Refuses the first option that is another tool's.
///
/// # Errors
/// What to write here.
pub(super) fn refuse(matches: &ArgMatches) -> Result<(), String> {
    let is_given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    // Behind an option of another tool may stand its arguments, like those of wc in --pipe wc -l.
    let place = |name: &str| matches.index_of(name).unwrap_or(usize::MAX);
    let given = all().filter(|(name, _)| is_given(name)).min_by_key(|(name, _)| place(name));
    let Some((name, words)) = given else { return Ok(()) };
    let value = matches.get_one::<OsString>(name).and_then(|value| value.to_str());
    let is_bytes = |rule: &Rule| rule.limit.rate().is_some_and(|rate| rate.is_bytes());
    let counts_bytes = || matches.get_many::<Rule>("rate").is_some_and(|mut rules| rules.any(is_bytes));
    if name == "-s" && (value.is_some_and(|size| size.ends_with(char::is_alphabetic)) || counts_bytes()) {
        return Err(SIZE.to_owned());
    }
    let own = value.and_then(|value| with_value(name, value));
    Err(format!("{name} is not an option here: {}", own.as_deref().unwrap_or(words)))
}

/// What to write for the value that was given, if that is known.
fn with_value(name: &str, value: &str) -> Option<String> {
    match name {
        "--delay" | "--interval" | "--every" | "--sleep" => rate_of_delay(value)
            .map(|(delay, rate)| format!("a delay is a rate: for one every {delay} write -r {rate}")),
        // curl does not count the first attempt, GNU parallel does.
        "--retries" | "--retry" => {
            let all = value.parse::<u32>().ok().filter(|all| *all > 0)?;
            let more = all.checked_add(1)?;
            Some(format!(
                "write --attempts {more} for {all} more after the first, or --attempts {all} for {all} in all"
            ))
        }
        "--rps" | "--qps" => {
            Some(format!("{value}/s")).filter(|rate| rate.parse::<Rate>().is_ok()).map(|rate| write_rate(&rate))
        }
        "--per" | "--cost" => {
            let limit = format!("5/s,{}={value}", &name[2..]);
            limit.parse::<Rule>().is_ok().then(|| write_rate(&limit))
        }
        "--halt" => {
            let failed = value.split_once("fail=").map(|(_, failed)| failed)?;
            let number: u8 = failed.trim_end_matches('%').parse().ok()?;
            (1..=100).contains(&number).then(|| format!("write --max-fail {failed}"))
        }
        "--duration" => {
            let is_time = duration(value).is_ok();
            is_time.then(|| {
                format!("commands start for so long with --stop-after {value}; a pipe ends with timeout -s INT {value} throttle -r 5/s")
            })
        }
        "--retry-delay" => duration(value).is_ok().then(|| format!("write --attempts 5 --backoff {value}")),
        "-L" | "-R" | "--rate-limit" | "--limit-rate" | "--bwlimit" | "--limit" | "--max-rate" => match value
            .parse::<Limit>()
        {
            Err(ParseError::LinesOrBytes(_)) => Some(format!("write -r {value}B/s for bytes, -r {value}/s for lines")),
            // Of which unit a bare number is depends on the tool.
            Ok(_)
                if (name.ends_with("limit") || name == "--max-rate") && name != "--bwlimit"
                    || value.parse::<u64>().is_err() =>
            {
                Some(format!("write -r {value}"))
            }
            _ => None,
        },
        _ => renamed(name, value),
    }
}

/// What to write for an option that has another name here.
fn renamed(name: &str, value: &str) -> Option<String> {
    let (own, is_number) = match name {
        "--parallel" | "--concurrency" | "--workers" | "--threads" | "--vus" => ("-j", true),
        "--times" | "--count" => ("--repeat", true),
        "-N" | "--max-lines" => ("-n", true),
        "-f" => ("-a", false),
        "--joblog" => ("--log", false),
        _ => return None,
    };
    (!is_number || value.parse::<u64>().is_ok()).then(|| format!("write {own} {value}"))
}

fn write_rate(rate: &str) -> String {
    format!("write -r {rate}")
}

/// `2s`, or `2` and `0.02` as GNU parallel and sleep mean them, and the rate that goes with it.
fn rate_of_delay(value: &str) -> Option<(String, String)> {
    let unit = if value.ends_with(|c: char| c.is_ascii_digit()) { "s" } else { "" };
    let delay = format!("{value}{unit}");
    let rate = format!("1/{delay}");
    let rate = match rate.parse::<Rate>() {
        Err(ParseError::Spelling { instead, .. }) => instead,
        _ => rate,
    };
    rate.parse::<Rate>().is_ok().then_some((delay, rate))
}

/// The message if `-r` is followed by another option instead of a limit.
pub(super) fn in_place_of_limit(text: &OsStr) -> Option<String> {
    let option = text.to_str()?.strip_prefix('-')?;
    let is_number = option.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // `-0` is our own option, which often follows xargs' -r. No rate is -0.
    (!is_number || option == "0").then(|| RATE_TAKES_A_LIMIT.to_owned())
}

/// What the first word of the command was meant to be, if it was meant as a limit or a part of one.
pub(super) fn limit_as_command(rules: &[Rule], word: &OsStr) -> Option<String> {
    let word = word.to_str()?;
    let is_limit = |text: &str| text.parse::<Rule>().is_ok();
    let Some(last) = rules.last().map(ToString::to_string) else {
        return is_limit(word).then(|| format!("--rate: a limit follows its option; write -r {word}"));
    };
    let joined = format!("{last}{word}");
    let with_key = format!("{last},{word}");
    match word {
        _ if word.starts_with('/') && is_limit(&joined) => Some(format!("--rate: write it as one word: -r {joined}")),
        _ if word.contains('=') && is_limit(&with_key) => Some(format!("--rate: write it as one word: -r {with_key}")),
        _ if word.contains('/') && is_limit(word) => {
            Some(format!("--rate: each limit follows its own option; write -r {last} -r {word}"))
        }
        _ => None,
    }
}
