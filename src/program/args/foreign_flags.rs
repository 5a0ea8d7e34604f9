//! Flags of other tools: the error shows what to write here.

use super::rule::Rule;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::{OsStr, OsString};
use throttle::rate::{Limit, ParseError, Rate};

/// Flags of other tools that mean the same, and what to write here.
const FOREIGN: [(&str, &str); 43] = [
    ("-L", "a rate is -r 10MB/s or -r 10M/s, N lines for each command -n N"),
    ("--max-lines", "N lines for each command are -n N"),
    ("-l", "lines are counted unless you say otherwise; N for each command is -n N"),
    ("-N", "N units for each command are -n N"),
    ("-i", "{} is replaced by the unit anyway; another placeholder is -I R"),
    ("-s --max-chars", "a size is not needed: commands get one unit each, or -n N"),
    ("-x --exit", "leave it out: a command that would be too long fails by itself"),
    ("-p", "to see what would run write --dry-run, for progress --progress=always"),
    ("--interactive", "to see what would run write --dry-run"),
    ("--verbose", "each command is written before it runs with -t"),
    ("--no-run-if-empty", "leave it out: empty input does nothing"),
    ("-R", "mbuffer's rate is -r here: -r 10MB/s"),
    ("--delay", "a delay is a rate: for one every 2 s write -r 1/2s"),
    ("--interval --every", "an interval is a rate: for one every 2 s write -r 1/2s"),
    ("--rps --qps", "a rate is -r 5/s"),
    ("--per", "it is a part of the limit; write -r 1/s,per=host"),
    ("--cost", "it is a part of the limit; write -r 500/min,cost=f3"),
    ("--parallel --concurrency --workers", "N commands at once are -j N"),
    ("--times", "to run a command N times write --repeat N"),
    ("--duration", "to end a run after 60 s write timeout -s INT 60 throttle -r 5/s"),
    ("--load", "it does not look at the machine's load; N commands at once are -j N"),
    ("--lock", "a limit that several scripts share is --bucket NAME; to run one at a time write flock FILE COMMAND"),
    ("--color", "leave it out: nothing is coloured"),
    ("--no-wait", "to drop what would wait write --drop; for one call write --bucket NAME --once --max-wait 0"),
    ("--fail-fast", "launch nothing more after the first failed unit with --max-fail 1"),
    ("-o", "the shell writes output to a file: > FILE"),
    ("-f", "units are read from FILE with -a FILE, or < FILE"),
    ("--rate-limit --limit-rate --bwlimit", "write --rate, or -r: -r 10MB/s"),
    ("--limit", "write --rate, or -r: -r 5/s"),
    ("--line-mode", "lines are counted unless you say otherwise: -r 1000/s"),
    ("--bar", "a bar is shown on a terminal anyway, unless the output is a pipe; then write --progress=always"),
    ("--eta", "the bar shows the time left; if there is no bar write --progress=always"),
    ("--ordered", "output in the order of the input is -k"),
    ("--joblog", "a line for each attempt is written to FILE with --log FILE"),
    (
        "--halt",
        "launch nothing more after N failed units with --max-fail N, or --max-fail 5%; a command that exits 255 stops the run",
    ),
    ("--retries --retry", "a failed unit is run up to N times in all with --attempts N"),
    ("--resume", "go on after the units of earlier runs with --done FILE"),
    ("--resume-failed", "go on after the units of earlier runs with --done FILE, which has those that succeeded"),
    (
        "--results",
        "a script can write files: -c 'COMMAND \"$1\" > \"out/$THROTTLE_SEQ\"'; what happened is written with --log FILE",
    ),
    ("--colsep", "a script can split the unit: -c 'echo \"${1%%,*}\" \"${1#*,}\"'"),
    ("--pipe --spreadstdin", "units go to a command's standard input with --stdin, N for each command with -n N"),
    ("--reset", "to start a bucket anew write --bucket NAME --clear --set -r 5/s"),
    ("--shell-quote", "a unit is one argument, whatever is in it; leave it out"),
];

pub(super) const PARALLEL_ARGUMENTS: &str = "::: is not an option here: \
    pass units on standard input, one a line: printf '%s\\n' A B | throttle -r 5/s COMMAND";

pub(super) const PARALLEL_FILES: &str =
    ":::: is not an option here: to read units from a file write throttle -r 5/s COMMAND < FILE";

pub(super) const RATE_TAKES_A_LIMIT: &str = "-r takes a limit, like -r 5/s \
    (xargs' -r, --no-run-if-empty, is not needed: empty input does nothing)";

/// Each flag of another tool, and what to write here.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    FOREIGN.iter().flat_map(|(names, words)| names.split(' ').map(|name| (name, *words)))
}

/// `command` that also knows the options of other tools, to refuse them.
pub(super) fn with_foreign_flags(command: clap::Command) -> clap::Command {
    command.args(FOREIGN.iter().flat_map(|(names, _)| names.split(' ')).map(|name| {
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
    let Some((name, words)) = all().find(|(name, _)| is_given(name)) else { return Ok(()) };
    let value = matches.get_one::<OsString>(name).and_then(|value| value.to_str());
    let own = value.and_then(|value| with_value(name, value));
    Err(format!("{name} is not an option here: {}", own.as_deref().unwrap_or(words)))
}

/// What to write for the value that was given, if that is known.
fn with_value(name: &str, value: &str) -> Option<String> {
    match name {
        "--delay" | "--interval" | "--every" => rate_of_delay(value)
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
        "-L" | "-R" | "--rate-limit" | "--limit-rate" | "--bwlimit" | "--limit" => match value.parse::<Limit>() {
            Err(ParseError::LinesOrBytes(_)) => Some(format!("write -r {value}B/s for bytes, -r {value}/s for lines")),
            // Of which unit a bare number is depends on the tool.
            Ok(_) if name.ends_with("limit") && name != "--bwlimit" || value.parse::<u64>().is_err() => {
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
        "--parallel" | "--concurrency" | "--workers" => ("-j", true),
        "--times" => ("--repeat", true),
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
