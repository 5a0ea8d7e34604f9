//! Messages about a command line that clap refuses, in our words: the option, what is wrong, what to write.

use super::definition::{Args, command, instead_of};
use super::foreign_flags;
use super::limits::before_pattern;
use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::borrow::Cow;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use throttle::launch::quoted;
use throttle_limits::store::Address;

/// One line for `error`, caused by `args`.
pub(super) fn words(error: &Error, args: &[OsString]) -> String {
    let shown = context(error, ContextKind::InvalidArg).unwrap_or_default();
    let flag = name(&shown);
    let value = context(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::ValueValidation => {
            invalid(flag, &value, &error.source().map(ToString::to_string).unwrap_or_default())
        }
        ErrorKind::InvalidValue if value.is_empty() && flag == "--rate" => foreign_flags::RATE_TAKES_A_LIMIT.to_owned(),
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{flag} takes a value; write {}", shown.replace(['<', '>'], ""))
        }
        ErrorKind::InvalidValue => {
            let possible = strings(error, ContextKind::ValidValue);
            format!("{flag} '{value}': write {flag}={}", possible.join(&format!(" or {flag}=")))
        }
        ErrorKind::ArgumentConflict => conflict(error, flag, args),
        ErrorKind::UnknownArgument => {
            negative(flag, args).or_else(|| attached(flag, args)).unwrap_or_else(|| unknown(error, flag))
        }
        ErrorKind::TooManyValues => format!("{flag} takes no value; write {flag}"),
        ErrorKind::InvalidUtf8 => {
            "a value of an option is not text; what may be any bytes are files, units and commands".to_owned()
        }
        _ => plain(error),
    }
}

/// `text` without the passwords in `args`.
pub(crate) fn redacted(text: &str, args: &[OsString]) -> String {
    let is_limit = |word: &OsString| {
        let before = before_pattern(word.as_bytes());
        before.len() < word.len() && !Address::is_meant(before)
    };
    // An argument as a whole, or what is attached to an option.
    let repeated = |word: &OsString| longest_end_in(text, &word.to_string_lossy()).map(str::to_owned);
    let redacted = |text: String, part: String| match Address::redacted(part.as_ref()) {
        // Nothing is hidden of a scheme alone, which may also be in what to write instead.
        shown if shown.strip_suffix('…') == Some(part.trim_end_matches([':', '/'])) => text,
        shown => text.replace(&part, &shown),
    };
    let text = args.iter().filter(|word| !is_limit(word)).filter_map(repeated).fold(text.to_owned(), redacted);
    args.iter().map(|word| word.to_string_lossy()).filter(|word| word.len() > LONG).fold(text, |text, word| {
        let end = word.char_indices().map(|(place, _)| place).take_while(|place| *place <= LONG / 2).last();
        text.replace(&*word, &format!("{}…", &word[..end.unwrap_or(0)]))
    })
}

/// The command line of this process as one would type it, without passwords and without the rest of long words.
pub(crate) fn own_command_line() -> String {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    words.first_mut().into_iter().for_each(|program| *program = "throttle".into());
    let words: Vec<OsString> = words.iter().map(|word| redacted_word(word).into()).collect();
    let quoted = quoted(words.iter().map(|word| Cow::from(word.as_os_str())), false);
    String::from_utf8_lossy(&quoted).into_owned()
}

/// A word without a password, also in a value that is attached to its option. A long word is cut.
fn redacted_word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let value = word.find('=').filter(|_| word.starts_with("--")).map_or(0, |place| place + 1);
    let shown = format!("{}{}", &word[..value], redacted_value(&word[value..]));
    match shown.char_indices().nth(LONG) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// A value without a password: an address, or a script with addresses in it. An address on the web without a user is shown.
fn redacted_value(value: &str) -> String {
    const ENDS: [char; 5] = [' ', '\t', '\n', '"', '\''];
    let whole = Address::redacted(value.as_ref());
    let is_open = ["http://", "https://"].iter().any(|scheme| value.starts_with(scheme)) && !value.contains('@');
    if whole == "…" && value.contains(ENDS) {
        let redacted = |piece: &str| match piece.strip_suffix(ENDS) {
            Some(part) => redacted_value(part) + &piece[part.len()..],
            None => redacted_value(piece),
        };
        return value.split_inclusive(ENDS).map(redacted).collect();
    }
    if is_open { value.to_owned() } else { whole }
}

/// The longest end of `word` that `text` repeats. Of an end that is repeated each shorter one is, too: so a few of them are
/// looked for, however long the word is.
fn longest_end_in<'a>(text: &str, word: &'a str) -> Option<&'a str> {
    let places: Vec<usize> = word.char_indices().map(|(place, _)| place).collect();
    let first = places.partition_point(|place| !text.contains(&word[*place..]));
    places.get(first).map(|place| &word[*place..])
}

/// Longer words are not repeated as a whole.
const LONG: usize = 400;

fn invalid(flag: &str, value: &str, why: &str) -> String {
    match why {
        _ if why == foreign_flags::RATE_TAKES_A_LIMIT => why.to_owned(),
        _ if value.is_empty() || why.contains(&format!("'{value}'")) => format!("{flag}: {why}"),
        _ => format!("{flag} '{value}': {why}"),
    }
}

fn conflict(error: &Error, flag: &str, args: &[OsString]) -> String {
    let others = strings(error, ContextKind::PriorArg);
    let other = others.first().map(|other| name(other)).unwrap_or_default();
    let begins_units = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == ":::");
    match () {
        () if begins_units => foreign_flags::PARALLEL_ARGUMENTS.to_owned(),
        () if flag == other || other.is_empty() => format!("{flag} is given twice; write it once"),
        () => instead_of(flag, other)
            .map_or_else(|| format!("{flag} cannot be used with {other}; leave one of them out"), str::to_owned),
    }
}

/// What to say of `-rate`, whose letters clap reads as options of their own or as a value.
pub(super) fn long_with_one_dash(args: &[OsString]) -> Option<String> {
    let definition = command();
    let mut options = definition.get_arguments().filter_map(|arg| Some(format!("-{}", arg.get_long()?)));
    let option = options.find(|option| is_own_option(args, option))?;
    Some(format!("{option}: a long option begins with two dashes; write -{option}"))
}

/// What to say of `--timeout -1s`, which clap reads as an option.
fn negative(flag: &str, args: &[OsString]) -> Option<String> {
    flag.strip_prefix('-').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut pairs = args.windows(2).map(|pair| (pair[0].to_string_lossy(), pair[1].to_string_lossy()));
    let (option, value) = pairs.find(|(option, value)| option.starts_with("--") && value.starts_with(flag))?;
    Some(format!("{option} '{value}' is negative; write {option} {}", &value[1..]))
}

/// What to say of `-k4`: clap reads the 4 as an option.
fn attached(flag: &str, args: &[OsString]) -> Option<String> {
    let number = flag.strip_prefix('-').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))?;
    args.iter().map(|word| word.to_string_lossy()).find_map(|word| {
        let option = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let letters = option.strip_prefix('-').filter(|letters| !letters.is_empty())?;
        let is_it = letters.chars().all(char::is_alphabetic) && word[option.len()..].starts_with(number);
        is_it.then(|| format!("{word}: {option} takes no number; write {option}"))
    })
}

/// What to say of an option that was pasted from a text in which a dash has become another one.
pub(super) fn typographic_dash(word: &OsStr) -> Option<String> {
    let word = word.to_str()?;
    let name = word.trim_start_matches(['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}', '-']);
    let dashes = if name.find(['=', ' ']).unwrap_or(name.len()) > 1 { "--" } else { "-" };
    (name.len() < word.len() && name.starts_with(|c: char| c.is_ascii_alphabetic()))
        .then(|| format!("'{word}' begins with a dash that is none on the command line; write {dashes}{name}"))
}

/// What to write instead of a first word of the command that is none: a number after -t, an URL, a verb of another tool, or a
/// limit.
pub(super) fn no_command(args: &Args, word: &OsStr) -> Option<String> {
    let text = word.to_str()?;
    let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok();
    let has_limits = !args.limit.rate.is_empty() || args.shared.bucket.is_some();
    let meant = match text.split_once("://") {
        _ if args.launch.trace && is_number => Some(format!(
            "-t is --trace and takes no number; for {text} commands at once write -j {text}, for a time --timeout {text}"
        )),
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphabetic()) => Some(format!(
            "'{text}' is no command; to fetch it write curl -sS '{text}', to fetch each line of the input curl -sS {{}}"
        )),
        _ if has_limits => None,
        _ => verb(&args.command),
    };
    meant.or_else(|| foreign_flags::limit_as_command(&args.limit.rate, word))
}

/// The option that does what this command line of other tools does.
fn verb(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    let (verb, name) = (words.next()?, words.next());
    let option = match &*verb {
        "help" => "--help",
        "version" => "--version",
        "list" | "ls" => "--list",
        "show" | "set" | "clear" | "pause" | "remove" if words.next().is_none() => {
            let name = name.as_deref().unwrap_or("NAME");
            let value = match &*verb {
                "set" => " -r 5/s",
                "pause" => " 10min",
                _ => "",
            };
            return Some(format!("'{verb}' is an option here; write --bucket {name} --{verb}{value}"));
        }
        _ => return None,
    };
    Some(format!("'{verb}' is an option here; write {option}"))
}

/// Of what clap finds similar, only what may be a typing mistake is suggested.
fn unknown(error: &Error, flag: &str) -> String {
    let is_slip = |known: &&String| {
        let (known, typed) = (known.trim_start_matches('-'), flag.trim_start_matches('-'));
        let is_ours = command().get_arguments().any(|arg| arg.get_long() == Some(known));
        is_ours && known.chars().next() == typed.chars().next() && known.len().abs_diff(typed.len()) <= 2
    };
    if flag.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return format!("'{flag}' is negative; write a number or a time without the minus");
    }
    let known = strings(error, ContextKind::SuggestedArg);
    let definition = command();
    let begins = |long: &&str| flag.strip_prefix("--").is_some_and(|typed| typed.len() > 1 && long.starts_with(typed));
    let mut longer = definition.get_arguments().filter_map(|arg| arg.get_long()).filter(begins);
    match (known.iter().find(is_slip), longer.next()) {
        (Some(known), _) => format!("there is no option '{flag}'; did you mean {}?", name(known)),
        (None, Some(long)) => format!("there is no option '{flag}'; did you mean --{long}?"),
        (None, None) => format!("there is no option '{flag}'; throttle --help lists them all"),
    }
}

/// Whether `option` comes before the command, and is not the value of another option.
pub(super) fn is_own_option(args: &[OsString], option: &str) -> bool {
    let definition = foreign_flags::with_foreign_flags(command());
    let takes_next_word = |word: &str| {
        let mut takers = definition.get_arguments().filter(|arg| arg.get_action().takes_values());
        takers.any(|arg| match word.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long) && !arg.is_require_equals_set(),
            None => word.chars().next_back().is_some_and(|letter| {
                arg.get_short() == Some(letter) || arg.get_all_short_aliases().unwrap_or_default().contains(&letter)
            }),
        })
    };
    let mut words = args.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next().filter(|word| word.starts_with('-') && word != "--") {
        if word == option || word.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')) {
            return true;
        }
        if takes_next_word(&word) {
            words.next();
        }
    }
    false
}

/// `--rate` of `--rate <LIMIT>`, and `COMMAND` of `[COMMAND]...`.
fn name(shown: &str) -> &str {
    let name = shown.split([' ', '=']).next().unwrap_or_default();
    name.trim_end_matches('.').trim_matches(['[', ']', '<', '>'])
}

fn context(error: &Error, kind: ContextKind) -> Option<String> {
    strings(error, kind).into_iter().next()
}

fn strings(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// clap's own words without what it adds to them.
fn plain(error: &Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.split("\n\n").next().unwrap_or_default().trim_end().to_owned()
}
