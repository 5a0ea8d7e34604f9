//! Messages about a command line that clap refuses. They name the option, the mistake, and what to write.

use super::definition::{Args, command, instead_of};
use super::foreign_flags;
use super::limits::before_pattern;
use super::values::NotText;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Error};
use std::borrow::Cow;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use throttle::launch::quoted;
use throttle_limits::rate::{Limit, ParseError};
use throttle_limits::store::Address;

/// The message of `error` in one line. `args` is the command line that caused it.
pub(super) fn words(error: &Error, args: &[OsString]) -> String {
    let shown = context(error, ContextKind::InvalidArg).unwrap_or_default();
    let flag = name(&shown);
    let value = context(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::ValueValidation => {
            if let Some(NotText(clean)) = error.source().and_then(|why| why.downcast_ref()) {
                return not_text(flag, &value, clean.as_deref(), args);
            }
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            let of_commands = (flag == "--rate").then(|| rate_of_commands(&value, args)).flatten();
            of_commands.unwrap_or_else(|| invalid(flag, &value, &why))
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
        _ => plain(error),
    }
}

/// Hides the passwords of `args` wherever `text` repeats them, and cuts the long words of `args` in `text`.
pub(crate) fn redacted(text: &str, args: &[OsString]) -> String {
    let is_limit = |word: &OsString| {
        let before = before_pattern(word.as_bytes());
        before.len() < word.len() && !Address::is_meant(before)
    };
    // A message may repeat a whole argument, or only the value that is attached to an option.
    let repeated = |word: &OsString| longest_end_in(text, &word.to_string_lossy()).map(str::to_owned);
    let redacted = |text: String, part: String| match Address::redacted(part.as_ref()) {
        // A scheme alone has no password, and may also be part of the advice.
        shown if shown.strip_suffix('…') == Some(part.trim_end_matches([':', '/'])) => text,
        shown => replaced(&text, &part, &shown),
    };
    let text = args.iter().filter(|word| !is_limit(word)).filter_map(repeated).fold(text.to_owned(), redacted);
    args.iter().map(|word| word.to_string_lossy()).filter(|word| word.len() > MAX_WORD).fold(text, |text, word| {
        let end = word.char_indices().map(|(place, _)| place).take_while(|place| *place <= MAX_WORD / 2).last();
        text.replace(&*word, &format!("{}…", &word[..end.unwrap_or(0)]))
    })
}

/// The places at which `text` repeats `part` as a whole. A place at which a longer word or address goes on does not
/// count: the advice in `text` may have an example that begins with the same letters.
fn repeats<'a>(text: &'a str, part: &'a str) -> impl Iterator<Item = usize> + 'a {
    let goes_on = |rest: &str| rest.strip_prefix([':', '/']).unwrap_or(rest).starts_with(char::is_alphanumeric);
    text.match_indices(part).map(|(place, _)| place).filter(move |place| !goes_on(&text[place + part.len()..]))
}

/// Replaces `part` by `shown` wherever `text` repeats it.
fn replaced(text: &str, part: &str, shown: &str) -> String {
    let (mut result, mut end) = (String::new(), 0);
    for place in repeats(text, part).collect::<Vec<_>>() {
        result = result + &text[end..place] + shown;
        end = place + part.len();
    }
    result + &text[end..]
}

/// The command line of this process as a user would type it. Passwords are hidden, and long words are cut.
pub(crate) fn own_command_line() -> String {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    words.first_mut().into_iter().for_each(|program| *program = "throttle".into());
    let words: Vec<OsString> = words.iter().map(|word| redacted_word(word).into()).collect();
    let quoted = quoted(words.iter().map(|word| Cow::from(word.as_os_str())), false);
    String::from_utf8_lossy(&quoted).into_owned()
}

/// Hides the password in a word, even in a value that is attached to an option. A long word is cut.
fn redacted_word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let value = word.find('=').filter(|_| word.starts_with("--")).map_or(0, |place| place + 1);
    let shown = format!("{}{}", &word[..value], redacted_value(&word[value..]));
    match shown.char_indices().nth(MAX_WORD) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// Hides the password in a value: an address, or a script with addresses in it. A web address without a user stays
/// visible.
fn redacted_value(value: &str) -> String {
    const ENDS: [char; 5] = [' ', '\t', '\n', '"', '\''];
    let whole = Address::redacted(value.as_ref());
    if whole == "…" && value.contains(ENDS) {
        let redacted = |piece: &str| match piece.strip_suffix(ENDS) {
            Some(part) => redacted_value(part) + &piece[part.len()..],
            None => redacted_value(piece),
        };
        return value.split_inclusive(ENDS).map(redacted).collect();
    }
    whole
}

/// The longest end of `word` that `text` repeats. If `text` repeats an end, it also repeats each shorter end. So a
/// binary search finds it in a few steps, however long the word is.
fn longest_end_in<'a>(text: &str, word: &'a str) -> Option<&'a str> {
    let places: Vec<usize> = word.char_indices().map(|(place, _)| place).collect();
    let first = places.partition_point(|place| repeats(text, &word[*place..]).next().is_none());
    places.get(first).map(|place| &word[*place..])
}

/// Messages cut words that are longer than this.
const MAX_WORD: usize = 400;

fn invalid(flag: &str, value: &str, why: &str) -> String {
    match why {
        _ if why == foreign_flags::RATE_TAKES_A_LIMIT => why.to_owned(),
        _ if value.is_empty() || why.contains(&format!("'{value}'")) => format!("{flag}: {why}"),
        _ => format!("{flag} '{value}': {why}"),
    }
}

/// The message about `-r 10k curl`: for a pipe, 10k could be lines or bytes, but commands are not counted in bytes.
fn rate_of_commands(limit: &str, args: &[OsString]) -> Option<String> {
    let count = limit.split(',').next().unwrap_or_default();
    let is_unclear = matches!(count.parse::<Limit>(), Err(ParseError::LinesOrBytes(_)));
    (is_unclear && has_command(args)).then(|| {
        let spelling = limit.replacen(count, &format!("{count}/s"), 1);
        format!("--rate '{limit}': the unit of time is missing; write for example -r {spelling}")
    })
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

/// The message about `-rate`: clap reads its letters as short options or as a value.
pub(super) fn long_with_one_dash(args: &[OsString]) -> Option<String> {
    let (definition, given) = (command(), own_options(args));
    let mut options = definition.get_arguments().filter_map(|arg| Some(format!("-{}", arg.get_long()?)));
    let option = options.find(|option| given.iter().any(|word| is_option(word, option)))?;
    Some(format!("{option}: a long option begins with two dashes; write -{option}"))
}

/// The message about `--timeout -1s`: clap reads the time as an option.
fn negative(flag: &str, args: &[OsString]) -> Option<String> {
    flag.strip_prefix('-').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut pairs = args.windows(2).map(|pair| (pair[0].to_string_lossy(), pair[1].to_string_lossy()));
    let (option, value) = pairs.find(|(option, value)| option.starts_with("--") && value.starts_with(flag))?;
    Some(format!("{option} '{value}' is negative; write {option} {}", &value[1..]))
}

/// The message about `-k4`: clap reads the 4 as an option.
fn attached(flag: &str, args: &[OsString]) -> Option<String> {
    let number = flag.strip_prefix('-').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))?;
    args.iter().map(|word| word.to_string_lossy()).find_map(|word| {
        let option = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let letters = option.strip_prefix('-').filter(|letters| !letters.is_empty())?;
        let is_it = letters.chars().all(char::is_alphabetic) && word[option.len()..].starts_with(number);
        is_it.then(|| format!("{word}: {option} takes no number; write {option}"))
    })
}

/// The message about an option pasted from a text in which another character has replaced a dash.
pub(super) fn typographic_dash(word: &OsStr) -> Option<String> {
    let word = word.to_str()?;
    let name = word.trim_start_matches(['\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}', '-']);
    let dashes = if name.find(['=', ' ']).unwrap_or(name.len()) > 1 { "--" } else { "-" };
    (name.len() < word.len() && name.starts_with(|c: char| c.is_ascii_alphabetic()))
        .then(|| format!("'{word}' begins with a character that looks like a dash but is none; write {dashes}{name}"))
}

/// The message about a first word that is not a command, and what to write instead. The word may be a number after -t,
/// a URL, a verb of another tool, or a limit.
pub(super) fn no_command(args: &Args, word: &OsStr) -> Option<String> {
    let text = word.to_str()?;
    let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok();
    let has_limits = !args.limit.rate.is_empty() || args.shared.bucket.is_some();
    let meant = match text.split_once("://") {
        _ if args.launch.trace && is_number => Some(format!(
            "-t is --trace and takes no number; for {text} commands at once write -j {text}, for a time --timeout {text}"
        )),
        Some(_) if Address::redacted(word).ends_with("s…") => {
            Some(format!("'{text}' is a bucket, not a command; write --bucket before it"))
        }
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphabetic()) => Some(format!(
            "'{text}' is not a command; to fetch it write curl -sS '{text}', to fetch each line of the input curl \
             -sS {{}}"
        )),
        _ if has_limits => None,
        _ => verb(&args.command),
    };
    meant.or_else(|| foreign_flags::limit_as_command(&args.limit.rate, &args.command))
}

/// The message if `words` are a verb of other tools. It names the option with the same effect.
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

/// The message about an unknown option. It suggests an option that clap finds similar, but only if the difference may
/// be a typing mistake.
fn unknown(error: &Error, flag: &str) -> String {
    let definition = command();
    let is_slip = |known: &&String| {
        let (known, typed) = (known.trim_start_matches('-'), flag.trim_start_matches('-'));
        let is_ours = definition.get_arguments().any(|arg| arg.get_long() == Some(known));
        let most = if known.len() > 5 { 2 } else { 1 };
        let is_close = || strsim::osa_distance(known, typed) <= most;
        is_ours && known.chars().next() == typed.chars().next() && is_close()
    };
    if flag.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return format!("'{flag}' is negative; write a number or a time without the minus");
    }
    let known = strings(error, ContextKind::SuggestedArg);
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
    own_options(args).iter().any(|word| is_option(word, option))
}

/// Whether `word` is `option`, alone or with a value after an equals sign.
fn is_option(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// The options before the command. Values that are words of their own are left out.
fn own_options(args: &[OsString]) -> Vec<Cow<'_, str>> {
    before_command(args).0
}

/// Whether a command or a script is given.
fn has_command(args: &[OsString]) -> bool {
    let (options, has_command) = before_command(args);
    has_command || options.iter().any(|word| word.starts_with("-c") || is_option(word, "--shell"))
}

/// The options before the command, and whether there is a command.
fn before_command(args: &[OsString]) -> (Vec<Cow<'_, str>>, bool) {
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
    let (mut words, mut options) = (args.iter().skip(1).map(|word| word.to_string_lossy()), Vec::new());
    while let Some(word) = words.next() {
        if word == "--" || !word.starts_with('-') {
            let has_command = word != "--" || words.next().is_some();
            return (options, has_command);
        }
        if takes_next_word(&word) {
            words.next();
        }
        options.push(word);
    }
    (options, false)
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

/// A right spelling for each name of a value that has a form.
const EXAMPLES: [(&str, &str); 13] = [
    ("C", ","),
    ("CODES", "75"),
    ("FIRST..LONGEST", "1s..60s"),
    ("FMT", "json"),
    ("FMT[:FILE]", "json"),
    ("LIMIT", "5/s"),
    ("N", "10"),
    ("N|N%", "10"),
    ("N|inf", "10"),
    ("SEP", ","),
    ("TIME", "30s"),
    ("WHAT", "fail"),
    ("WHEN", "auto"),
];

/// The message about a value that is not UTF-8 text. `clean` is the value without the wrong bytes, if that is valid.
fn not_text(flag: &str, value: &str, clean: Option<&str>, args: &[OsString]) -> String {
    let definition = command();
    let option = definition.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"));
    let right = clean.or(option.map(example)).unwrap_or("VALUE");
    let right = quoted([Cow::from(OsStr::new(right))].into_iter(), false);
    let equals = if option.is_some_and(Arg::is_require_equals_set) { "=" } else { " " };
    // The value may be attached to its option.
    let is_option = |before: &str| match before.strip_prefix("--") {
        Some(_) => before.strip_suffix('=') == Some(flag),
        None => before.is_empty() || before.starts_with('-'),
    };
    let has_value = |word: &Cow<'_, str>| word.strip_suffix(value).is_some_and(is_option);
    let word = args.iter().map(|word| word.to_string_lossy()).find(has_value);
    let (word, right) = (word.as_deref().unwrap_or(value), String::from_utf8_lossy(&right));
    format!("{flag} '{word}' is not UTF-8 text; write for example {flag}{equals}{right}")
}

/// A value of the option: its name, if any text is one.
fn example(option: &Arg) -> &str {
    let name = option.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
    EXAMPLES.iter().find(|(named, _)| *named == name).map_or(name, |(_, example)| example)
}

/// The message of clap, without its prefix and its hints.
fn plain(error: &Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.split("\n\n").next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn the_example_of_each_option_is_a_value_of_it() {
        let definition = command();
        let options = definition.get_arguments().filter(|option| option.get_action().takes_values());
        let options: Vec<&Arg> = options.filter(|option| option.get_long().is_some()).collect();
        assert!(options.len() > 20, "{}", options.len());
        for option in options {
            let word = format!("--{}={}", option.get_long().unwrap(), example(option));
            let error = definition.clone().try_get_matches_from(["throttle", &word]).err();
            let kind = error.as_ref().map(Error::kind);
            assert!(!matches!(kind, Some(ErrorKind::ValueValidation | ErrorKind::InvalidValue)), "{word}: {error:?}");
        }
    }

    #[test]
    fn a_value_that_is_not_text_is_valid_or_shown_with_its_option() {
        let definition = command();
        for option in definition.get_arguments().filter_map(Arg::get_long) {
            let words =
                [OsString::from("throttle"), OsString::from_vec([format!("--{option}=").as_bytes(), b"\xff"].concat())];
            let error = definition.clone().try_get_matches_from(words).err();
            assert_ne!(error.as_ref().map(Error::kind), Some(ErrorKind::InvalidUtf8), "{option}: {error:?}");
        }
    }
}
