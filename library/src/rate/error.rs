//! Mistakes in a limit. Each has its own message with a right spelling.

use super::Rate;
use super::meant::{self, Kind};
use super::number::Amount;

/// The reason why a text is not a limit. Its message is for people, and shows how to write the limit. The variants are
/// hidden, and any release may change them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum ParseError {
    /// A rate or limit without any text.
    #[doc(hidden)]
    Empty,
    /// Bytes that are not UTF-8.
    #[doc(hidden)]
    NotText(String),
    /// A size without any text.
    #[doc(hidden)]
    NoSize,
    /// Another misspelling. The message is its three parts, one after the other.
    #[doc(hidden)]
    Spelling {
        /// The text.
        text: String,
        /// The problem.
        problem: &'static str,
        /// The advice, with a right spelling.
        instead: String,
    },
    /// More than 18 decimals.
    #[doc(hidden)]
    TooManyDecimals(String),
    /// A count of 0.
    #[doc(hidden)]
    Zero(String),
    /// More than 2⁶⁴−1 units.
    #[doc(hidden)]
    TooLarge(String),
    /// Slower than one unit in 100 years, or a period of more than 584 years.
    #[doc(hidden)]
    TooSlow(String),
    /// A count with `k`, `M` or `G` and no time, like `10M`: it could mean bytes.
    #[doc(hidden)]
    LinesOrBytes(String),
    /// Another word for `unlimited`, like `inf`.
    #[doc(hidden)]
    NoLimit(String),
    /// `unlimited` with something behind it.
    #[doc(hidden)]
    UnlimitedAlone(String),
    /// A size that is not a whole number.
    #[doc(hidden)]
    NotWhole(String),
    /// A mistake in the keys after the rate: the whole message.
    #[doc(hidden)]
    Key(String),
}

messages! {
    ParseError {
        ParseError::Empty => ("the limit is empty; write for example 5/s, 100/min or 10MiB/s"),
        ParseError::NotText(text) => ("{text:?} is not text; write for example 5/s"),
        ParseError::NoSize => ("a size is missing; write for example 10"),
        ParseError::Spelling { text, problem, instead } => ("'{text}'{problem}{instead}"),
        ParseError::TooManyDecimals(text) => (
            "'{text}' has more than 18 decimals; write it over a longer time, like 1/365d"
        ),
        ParseError::Zero(text) => (
            "'{text}' lets nothing through; a rate is more than 0, like 0.5/s or 1/h; for no limit write unlimited"
        ),
        ParseError::TooLarge(text) => (
            "'{text}' is more than the largest number of units, 2^64-1; for no limit write unlimited"
        ),
        ParseError::TooSlow(text) => (
            "'{text}' is slower than one unit in 100 years, or has a period longer than 584 years; write for \
             example 1/365d"
        ),
        ParseError::LinesOrBytes(text) => ("{}", lines_or_bytes(text)),
        ParseError::NoLimit(text) => ("'{text}' is not a rate; for no limit write unlimited"),
        ParseError::UnlimitedAlone(text) => ("'{text}': unlimited cannot have a burst, window or period"),
        ParseError::NotWhole(text) => ("'{text}' is not a whole number; write for example 10"),
        ParseError::Key(text) => ("{text}"),
    }
}

fn misspelled(text: &str, problem: &'static str, instead: impl Into<String>) -> ParseError {
    ParseError::Spelling { text: text.to_owned(), problem, instead: instead.into() }
}

/// The message for an ambiguous count like `10M`. The prefix is small in `kB` but large in `KiB`.
fn lines_or_bytes(text: &str) -> String {
    let words = [("k", "thousand"), ("M", "million"), ("G", "billion")];
    let named = words.iter().find_map(|(suffix, word)| text.strip_suffix(suffix).map(|number| (number, *word)));
    let (number, word) = named.unwrap_or((text, ""));
    let number = if number == "10" { "ten" } else { number };
    let kibi = text.replace('k', "K");
    format!(
        "'{text}' could be lines or bytes; write {text}/s for {number} {word} lines a second, or {text}B/s or \
         {kibi}iB/s for bytes"
    )
}

/// The likeliest spelling of `text`, or `otherwise`, which explains how to write one.
pub(super) fn instead(kind: Kind, text: &str, otherwise: &str) -> String {
    meant::likeliest(kind, text).unwrap_or_else(|| otherwise.to_owned())
}

/// Refuses mistakes that concern the text as a whole.
pub(super) fn refuse_habits(kind: Kind, text: &str) -> Result<(), ParseError> {
    const NO_LIMIT: [&str; 10] =
        ["inf", "infinite", "infinity", "max", "none", "no", "off", "nolimit", "no-limit", "unlimited"];
    if kind == Kind::Rate && text != "unlimited" && NO_LIMIT.contains(&text.to_lowercase().as_str()) {
        return Err(ParseError::NoLimit(text.to_owned()));
    }
    if text.contains(char::is_whitespace) {
        let otherwise = format!("it without any, like {}", kind.example());
        return Err(misspelled(text, SPACE, instead(kind, text, &otherwise)));
    }
    if text.starts_with(['-', '\u{2212}']) {
        return Err(misspelled(text, " is negative; write for example ", kind.example()));
    }
    if text.matches('/').count() > 1 {
        let instead = instead(kind, text, "COUNT/TIME, like 5/s or 3/15s");
        return Err(misspelled(text, " has two slashes; write ", instead));
    }
    Ok(())
}

const SPACE: &str = " has a space in it; write ";

/// Refuses spaces as in `5/s, burst=10`.
pub(super) fn refuse_spaces_between_keys(text: &str) -> Result<(), ParseError> {
    let instead = text.replace(char::is_whitespace, "");
    if instead.len() == text.len() || instead.parse::<super::Limit>().is_err() {
        return Ok(());
    }
    Err(misspelled(text, SPACE, instead))
}

const COMMA: &str = ": no commas inside numbers; write ";

/// Refuses commas as in `1,000/s` and `0,5/s`: a comma between digits does not separate keys.
pub(super) fn refuse_commas_in_numbers(text: &str) -> Result<(), ParseError> {
    let pieces: Vec<&str> = text.split(',').collect();
    let is_in_number = |pair: &[&str]| pair[0].ends_with(is_digit) && pair[1].starts_with(is_digit);
    let Some(first) = pieces.windows(2).position(is_in_number) else { return Ok(()) };
    let last = first + pieces[first..].windows(2).take_while(|pair| is_in_number(pair)).count();
    // If another such number follows, no suggestion can be parsed.
    let is_only = !pieces[last..].windows(2).any(is_in_number);
    // The number begins after the key, if there is one.
    let key = pieces[first].find('=').map_or("", |end| &pieces[first][..=end]);
    let kind = if key.is_empty() { Kind::Rate } else { Kind::Size };
    let joined = pieces[first..=last].join(",");
    let meant = meant::likeliest(kind, &joined[key.len()..]).map(|number| format!("{key}{number}"));
    let all = |meant: String| [&pieces[..first], &[meant.as_str()], &pieces[last + 1..]].concat().join(",");
    let instead = meant.filter(|_| is_only).map(all).filter(|all| all.parse::<super::Limit>().is_ok());
    let otherwise = || "only digits and a point, like 1000/s or 0.5/s".to_owned();
    Err(misspelled(text, COMMA, instead.unwrap_or_else(otherwise)))
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

pub(super) fn no_count(kind: Kind, name: &str, whole: &str) -> ParseError {
    let example = match (name.is_empty(), kind, whole.contains('/')) {
        (true, ..) => instead(kind, &format!("5{whole}"), kind.example()),
        (false, Kind::Rate, false) if name.chars().all(char::is_alphabetic) => "5k/s, 5kB/s or 5KiB/s".to_owned(),
        _ => kind.example().to_owned(),
    };
    let before = match name {
        "" => " before the slash".to_owned(),
        _ if name == whole => String::new(),
        _ => format!(" before the '{name}'"),
    };
    misspelled(whole, " has no number", format!("{before}; write for example {example}"))
}

/// The error for text that is not a number, or that has needless leading zeros.
pub(super) fn bad_number(kind: Kind, whole: &str) -> ParseError {
    let otherwise = format!("for example {}", if kind == Kind::Rate { "0.5/s" } else { "10" });
    let instead = instead(kind, whole, &otherwise);
    misspelled(whole, " is not a number with digits on both sides of the point; write ", instead)
}

pub(super) fn leading_zero(kind: Kind, whole: &str) -> Option<ParseError> {
    meant::likeliest(kind, whole).map(|instead| misspelled(whole, " begins with a zero; write ", instead))
}

/// The error for letters after a count that are not a unit here but may be one elsewhere.
pub(super) fn unknown_suffix(kind: Kind, suffix: &str, whole: &str) -> ParseError {
    if suffix.starts_with(['e', 'E']) && suffix[1..].starts_with(|c: char| is_digit(c) || c == '-' || c == '+') {
        let otherwise = if kind == Kind::Rate { "for example 1000/s or 1k/s" } else { "for example 1000 or 1k" };
        let instead = instead(kind, whole, otherwise);
        return misspelled(whole, " has an exponent; write the number out or with k, M, G: ", instead);
    }
    if let Some(instead) = meant::likeliest(kind, whole).filter(|_| suffix.starts_with(',')) {
        return misspelled(whole, COMMA, instead);
    }
    let advice = meant::advice(kind, whole).unwrap_or_else(|| {
        "use k, M, G (a thousand, million, billion) or B, kB, MB, GB, TB, KiB, MiB, GiB, TiB".to_owned()
    });
    misspelled(whole, ": no unit ", format!("'{suffix}' for a count; {advice}"))
}

/// The error for a fraction in a period: `5/1.5s` is `10/3s`.
pub(super) fn fractional_period(whole: &str) -> ParseError {
    let example = instead(Kind::Rate, whole, "for example 10/3s");
    misspelled(whole, " has a fraction in its period; write the same ratio in whole numbers: ", example)
}

pub(super) fn zero_period(whole: &str, example: &str) -> ParseError {
    misspelled(whole, " has a period of 0; write ", format!("for example {example}"))
}

pub(super) fn unknown_time_unit(whole: &str, times: &str, name: &str) -> ParseError {
    match name {
        "" if times.is_empty() => {
            let problem = " has no unit of time after the slash; write for example ";
            return misspelled(whole, problem, format!("{whole}s or {whole}min"));
        }
        "" if format!("{whole}h").parse::<Rate>().is_ok() => {
            let problem = ": the unit of time after the slash is missing; write ";
            return misspelled(whole, problem, format!("{whole}s, {whole}min or {whole}h"));
        }
        "" => return ParseError::TooSlow(whole.to_owned()),
        _ => {}
    }
    let small = name.to_lowercase();
    let why = match small.as_str() {
        _ if small.starts_with('w') => "a week is 7d: ",
        _ if small.starts_with("mo") => "months differ; 30 days are ",
        _ if small.starts_with('y') => "a year is 365d: ",
        _ if small != name => "write it in small letters: ",
        _ => "write ",
    };
    let advice = meant::likeliest(Kind::Rate, whole).map(|rate| format!("{why}{rate}"));
    let advice = advice.unwrap_or_else(|| "use ms, s, min, h or d, like 5/s or 3/15s".to_owned());
    misspelled(whole, ": no unit of time ", format!("'{name}'; {advice}"))
}

pub(super) fn unknown_key(rate: &Rate, key: &str) -> ParseError {
    let (name, value) = key.split_once('=').unwrap_or((key, ""));
    let value = if value.parse::<Amount>().is_ok() { value } else { "10" };
    let advice = match name.to_lowercase().as_str() {
        "burst" | "initial" => format!("write {}={value}", name.to_lowercase()),
        "window" => "window takes no value and is written once: 5000/h,window".to_owned(),
        "slack" => "write slack=50ms after window".to_owned(),
        "" => "a comma must be followed by burst=N, initial=N, window or slack=TIME".to_owned(),
        _ if key.parse::<Rate>().is_ok() => format!("a second limit is a second --rate: -r {rate} -r {key}"),
        name if name.starts_with('b') => format!("did you mean burst={value}?"),
        name if name.starts_with('i') => format!("did you mean initial={value}?"),
        name if name.starts_with('w') => "did you mean window?".to_owned(),
        name if name.starts_with('s') => "did you mean slack=50ms, after window?".to_owned(),
        _ => "use burst=N, initial=N, window or slack=TIME, like 5/s,burst=10; a second limit is a second --rate"
            .to_owned(),
    };
    ParseError::Key(format!("no key '{key}' in a limit; {advice}"))
}
