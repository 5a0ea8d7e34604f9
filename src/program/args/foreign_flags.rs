//! Flags of other tools. The error message shows what to write here.

use super::rule::Rule;
use super::values::{duration, duration_or_zero};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::{OsStr, OsString};
use std::time::Duration;
use throttle_limits::rate::{Limit, ParseError, Rate};

pub(super) const PARALLEL_ARGUMENTS: &str = "::: is not an option here: \
    pass units on standard input, one a line: printf '%s\\n' A B | throttle -r 5/s COMMAND";

pub(super) const PARALLEL_FILES: &str =
    ":::: is not an option here: to read units from a file write throttle -r 5/s COMMAND < FILE";

pub(super) const RATE_TAKES_A_LIMIT: &str = "-r takes a limit, like -r 5/s \
    (xargs' -r, --no-run-if-empty, is not needed: empty input does nothing)";

const SIZE: &str = "-s is not an option here: \
    for the size of a pipe write --size, like --size 10GiB; the size of a file is known: throttle -r 10MB/s < FILE";

/// Each flag of another tool, and what to write here. In the file, flags with the same meaning share a line.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("foreign_flags.txt").lines().filter_map(|line| line.split_once(": "));
    lines.flat_map(|(names, words)| names.split(' ').map(move |name| (name, words)))
}

/// Adds the options of other tools to `command`, so that they can be refused.
pub(super) fn with_foreign_flags(command: clap::Command) -> clap::Command {
    command.args(all().map(|(name, _)| {
        // An option that is given without a value gets an empty value, so that it has an index.
        let arg = Arg::new(name).hide(true).action(ArgAction::Append).num_args(0..=1).default_missing_value("");
        let arg = arg.allow_negative_numbers(true).value_parser(clap::value_parser!(OsString));
        match name.strip_prefix("--") {
            Some(long) => arg.long(long),
            None => arg.short(name.chars().nth(1)),
        }
    }))
}

/// Refuses the first option that belongs to another tool.
///
/// # Errors
/// The message shows what to write here.
pub(super) fn refuse(matches: &ArgMatches) -> Result<(), String> {
    let is_given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    // The first option counts. Arguments for the other tool may follow it, like the arguments of wc in --pipe wc -l.
    let place = |name: &str| matches.index_of(name).unwrap_or(usize::MAX);
    let given = all().filter(|(name, _)| is_given(name)).min_by_key(|(name, _)| place(name));
    let Some((name, words)) = given else { return Ok(()) };
    let value = matches.get_one::<OsString>(name).and_then(|value| value.to_str()).filter(|value| !value.is_empty());
    let is_bytes = |rule: &Rule| rule.limit.rate().is_some_and(|rate| rate.is_bytes());
    let counts_bytes = || matches.get_many::<Rule>("rate").is_some_and(|mut rules| rules.any(is_bytes));
    if name == "-s" && (value.is_some_and(|size| size.ends_with(char::is_alphabetic)) || counts_bytes()) {
        return Err(SIZE.to_owned());
    }
    let own = value.and_then(|value| with_value(name, value));
    Err(format!("{name} is not an option here: {}", own.as_deref().unwrap_or(words)))
}

/// The advice for this value of the option, if there is a special one.
fn with_value(name: &str, value: &str) -> Option<String> {
    match name {
        "--delay" | "--interval" | "--every" | "--sleep" if duration_or_zero(value) == Ok(Duration::ZERO) => {
            Some("for no delay write -r unlimited".to_owned())
        }
        "--delay" | "--interval" | "--every" | "--sleep" => rate_of_delay(value)
            .map(|(delay, rate)| format!("a delay is a rate: for one every {delay} write -r {rate}")),
        // curl does not count the first attempt; GNU parallel does.
        "--retries" | "--retry" => {
            let all = value.parse::<u32>().ok().filter(|all| *all > 0)?;
            let more = all.checked_add(1)?;
            Some(format!(
                "write --attempts {more} for {all} more after the first, or --attempts {all} for {all} in all"
            ))
        }
        "--rps" | "--qps" | "--tpslimit" | "--rpm" | "--per-second" | "--per-minute" | "--per-hour" => {
            let time = if name == "--rpm" { "min" } else { name.strip_prefix("--per-").unwrap_or("s") };
            let rate = format!("{value}/{time}");
            rate.parse::<Rate>().is_ok().then(|| write_rate(&rate))
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
                format!(
                    "to start no commands after this time write --stop-after {value}; to end a pipe write \
                     timeout -s INT {value} throttle -r 5/s"
                )
            })
        }
        "--max-time" => {
            duration(value).is_ok().then(|| format!("for the longest time of a command write --timeout {value}"))
        }
        "--retry-delay" => duration(value).is_ok().then(|| format!("write --attempts 5 --backoff {value}")),
        "-L" | "-R" | "--rate-limit" | "--limit-rate" | "--bandwidth" | "--bwlimit" | "--limit" | "--max-rate" => {
            rate_without_time(name, value)
        }
        _ => renamed(name, value),
    }
}

/// The advice for a rate that another tool writes with or without its time: `5/s`, `10M`, `500K`, `1000`.
fn rate_without_time(name: &str, value: &str) -> Option<String> {
    // Other tools do not tell K from k, nor m from M.
    let size = match value.split_at_checked(value.len() - 1) {
        Some((number, "K")) => format!("{number}k"),
        Some((number, letter @ ("m" | "g"))) => format!("{number}{}", letter.to_uppercase()),
        _ => value.to_owned(),
    };
    let is_number = value.parse::<u64>().is_ok();
    match size.parse::<Limit>() {
        Err(ParseError::LinesOrBytes(_)) => Some(format!("write -r {size}B/s for bytes, -r {size}/s for lines")),
        // curl counts bytes a second. Elsewhere the unit of a bare number depends on the tool.
        Ok(_) if name == "--limit-rate" && is_number => Some(write_rate(&format!("{size}B/s"))),
        Ok(_) if ["--rate-limit", "--limit", "--max-rate"].contains(&name) || !is_number => Some(write_rate(&size)),
        _ => None,
    }
}

/// The advice for an option that has another name here.
fn renamed(name: &str, value: &str) -> Option<String> {
    // With the least number that is allowed here, if the value is a number.
    let (own, least) = match name {
        "--parallel" | "--concurrency" | "--connections" | "--max-connections" | "--workers" | "--threads"
        | "--vus" => ("-j", Some(0)),
        "--burst-size" => ("-b", Some(1)),
        "--tries" | "--max-attempts" => ("--attempts", Some(1)),
        "--times" | "--count" | "--loop" => ("--repeat", Some(0)),
        "-N" | "--max-lines" => ("-n", Some(0)),
        "-f" => ("-a", None),
        "--joblog" => ("--log", None),
        _ => return None,
    };
    let is_allowed = least.is_none_or(|least| value.parse::<u64>().is_ok_and(|number| number >= least));
    is_allowed.then(|| format!("write {own} {value}"))
}

fn write_rate(rate: &str) -> String {
    format!("write -r {rate}")
}

/// Reads a delay (`2s`), and returns it with the rate that it means. Numbers without a unit (`2`, `0.02`) are seconds,
/// as for GNU parallel and sleep.
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

/// The message if another option follows `-r` instead of a limit.
pub(super) fn in_place_of_limit(text: &OsStr) -> Option<String> {
    let option = text.to_str()?.strip_prefix('-')?;
    let is_number = option.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    // `-0` is an option of throttle that often follows xargs' -r. No rate is -0.
    (!is_number || option == "0").then(|| RATE_TAKES_A_LIMIT.to_owned())
}

/// The message if the first word of the command was certainly meant as a limit or as a part of one. No command has such
/// a name.
pub(super) fn limit_as_command(rules: &[Rule], words: &[OsString]) -> Option<String> {
    let word = words.first()?.to_str()?;
    let Some(last) = rules.last().map(ToString::to_string) else {
        return is_limit(word).then(|| format!("--rate is missing before the limit; write -r {word}"));
    };
    let with_key = format!("{last},{word}");
    match word {
        _ if word.contains('=') && is_limit(&with_key) => Some(as_one_word(&with_key)),
        _ if word.contains('/') && is_limit(word) => {
            Some(format!("--rate: each limit follows its own option; write -r {last} -r {word}"))
        }
        _ if word.contains('/') || word == "per" => rest_of_limit(rules, words),
        _ => None,
    }
}

/// The message if the command begins with the rest of the last limit, like `-r 5 / s`, `-r 10 MB/s` or `-r 5 per
/// second`.
pub(crate) fn rest_of_limit(rules: &[Rule], words: &[OsString]) -> Option<String> {
    let last = rules.last()?.to_string();
    let joined = |count: usize| {
        let words = words.get(..count)?.iter().map(|word| word.to_str());
        let words = words.map(|word| word.map(|word| if word == "per" { "/" } else { word }));
        let rest = words.collect::<Option<String>>()?;
        [format!("{last}{rest}"), format!("{last}/{rest}")].into_iter().find(|limit| is_limit(limit))
    };
    [3, 2, 1].into_iter().find_map(joined).map(|limit| as_one_word(&limit))
}

fn as_one_word(limit: &str) -> String {
    format!("--rate: write it as one word: -r {limit}")
}

fn is_limit(text: &str) -> bool {
    text.parse::<Rule>().is_ok()
}
