//! What can be wrong with a limit. Each mistake has its own message and a right spelling.

use super::meant::{self, Kind};
use super::{Amount, Rate};
use thiserror::Error;

/// Why a text is not a limit. The message shows how to write it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum ParseError {
    #[error("the limit is empty; write for example 5/s, 100/min or 10MiB/s")]
    Empty,
    #[error("{0:?} is not text; write for example 5/s")]
    NotText(String),
    #[error("'{text}' has a space in it; write {instead}")]
    Space { text: String, instead: String },
    #[error("'{text}' begins with a zero; write {instead}")]
    LeadingZero { text: String, instead: String },
    #[error("'{text}' is negative; write for example {example}")]
    Negative { text: String, example: &'static str },
    #[error("'{text}' has no number before the {before}; write for example {example}")]
    NoCount { text: String, before: String, example: String },
    #[error("a size is missing; write for example 10")]
    NoSize,
    #[error("'{text}' is not a number with digits on both sides of the point; write {instead}")]
    BadNumber { text: String, instead: String },
    #[error("'{0}' has more than 18 decimals; write it over a longer time, like 1/365d")]
    TooManyDecimals(String),
    #[error("'{text}' has an exponent; write the number out or with k, M, G: {example}")]
    Exponent { text: String, example: String },
    #[error("'{text}': no commas inside numbers; write {instead}")]
    Comma { text: String, instead: String },
    #[error("'{0}' lets nothing through; a rate is more than 0, like 0.5/s or 1/h; for no limit write unlimited")]
    Zero(String),
    #[error("'{text}' has a period of no length; write for example {example}")]
    ZeroPeriod { text: String, example: String },
    #[error("'{0}' is more than 2^64-1 units, the most there can be; for no limit write unlimited")]
    TooLarge(String),
    #[error("'{0}' is slower than one unit in 100 years, or its period longer than 584; write for example 1/365d")]
    TooSlow(String),
    #[error("{}", lines_or_bytes(.0))]
    LinesOrBytes(String),
    #[error("'{text}': no unit '{suffix}' for a count; {advice}")]
    Suffix { text: String, suffix: String, advice: String },
    #[error("'{text}' has two slashes; write {instead}")]
    TwoSlashes { text: String, instead: String },
    #[error("'{0}' has no unit of time after the slash; write for example {0}s or {0}min")]
    NoTimeUnit(String),
    #[error("'{text}': after the slash a unit of time is missing; write {text}s, {text}min or {text}h")]
    BareNumberPeriod { text: String },
    #[error("'{text}': no unit of time '{unit}'; {advice}")]
    TimeUnit { text: String, unit: String, advice: String },
    #[error("'{text}' has a fraction in its period; write the same ratio in whole numbers: {example}")]
    FractionalPeriod { text: String, example: String },
    #[error("'{0}': for no limit write unlimited")]
    NoLimit(String),
    #[error("'{0}': unlimited stands alone, it has no burst, window or period")]
    UnlimitedAlone(String),
    #[error("no key '{key}' in a limit; {advice}")]
    Key { key: String, advice: String },
    #[error("{} stands twice in one limit; say it once, like 5/s,{}", .0, once(.0))]
    Twice(&'static str),
    #[error("slack is for windows: it is how much longer than the period a unit counts; write {0},window,slack=TIME")]
    SlackWithoutWindow(String),
    #[error(
        "slack={value} is not a time in whole numbers; write for example {rate},window,slack=50ms, or slack=0 for none"
    )]
    Slack { value: String, rate: String },
    #[error("slack={slack} is more than the period; write at most slack={period}")]
    SlackAbovePeriod { slack: String, period: String },
    #[error("burst=0 would let nothing through; the least is burst=1")]
    ZeroBurst,
    #[error(
        "initial={initial} is more than burst={burst}, which is all the bucket holds; write at most initial={burst}"
    )]
    InitialAboveBurst { initial: String, burst: String },
    #[error(
        "a window has no burst or initial: it lets its whole count through at once; write {rate},window or {rate},burst={burst}"
    )]
    WindowWithBurst { rate: String, burst: String },
    #[error(
        "{key}={value} is in bytes beside '{rate}', which counts units; write {key}=N without a unit, or a rate like 10MiB/s"
    )]
    BytesBesideUnits { key: &'static str, value: String, rate: String },
    #[error("'{0}' is not a whole number")]
    NotWhole(String),
    #[error("{key}: {error}")]
    InKey { key: &'static str, error: Box<ParseError> },
}

fn once(key: &str) -> String {
    if key == "slack" { "window,slack=50ms".to_owned() } else { format!("{key}=10") }
}

/// `10M` is ambiguous. Note that it is kB but `KiB`.
fn lines_or_bytes(text: &str) -> String {
    let words = [("k", "thousand"), ("M", "million"), ("G", "billion")];
    let named = words.iter().find_map(|(suffix, word)| text.strip_suffix(suffix).map(|number| (number, *word)));
    let (number, word) = named.unwrap_or((text, ""));
    let number = if number == "10" { "ten" } else { number };
    let kibi = text.replace('k', "K");
    format!("lines or bytes? {text}/s is {number} {word} lines a second; for bytes {text}B/s or {kibi}iB/s")
}

/// The likeliest spelling of `text`, or `otherwise`, which explains how to write one.
fn instead(kind: Kind, text: &str, otherwise: &str) -> String {
    meant::likeliest(kind, text).unwrap_or_else(|| otherwise.to_owned())
}

/// Mistakes that show in the text as a whole.
pub(super) fn refuse_habits(kind: Kind, text: &str) -> Result<(), ParseError> {
    const NO_LIMIT: [&str; 10] =
        ["inf", "infinite", "infinity", "max", "none", "no", "off", "nolimit", "no-limit", "unlimited"];
    let example = kind.example();
    let text = text.to_owned();
    if kind == Kind::Rate && text != "unlimited" && NO_LIMIT.contains(&text.to_lowercase().as_str()) {
        return Err(ParseError::NoLimit(text));
    }
    if text.contains(char::is_whitespace) {
        let otherwise = format!("it without any, like {example}");
        return Err(ParseError::Space { instead: instead(kind, &text, &otherwise), text });
    }
    if text.starts_with(['-', '\u{2212}']) {
        return Err(ParseError::Negative { text, example });
    }
    if text.matches('/').count() > 1 {
        return Err(ParseError::TwoSlashes { instead: instead(kind, &text, "COUNT/TIME, like 5/s or 3/15s"), text });
    }
    Ok(())
}

/// `5/s, burst=10`
pub(super) fn refuse_spaces_between_keys(text: &str) -> Result<(), ParseError> {
    let instead = text.replace(char::is_whitespace, "");
    if instead.len() == text.len() || instead.parse::<super::Limit>().is_err() {
        return Ok(());
    }
    Err(ParseError::Space { text: text.to_owned(), instead })
}

/// `1,000/s` and `0,5/s`: a comma between digits does not separate keys.
pub(super) fn refuse_commas_in_numbers(text: &str) -> Result<(), ParseError> {
    let pieces: Vec<&str> = text.split(',').collect();
    let is_in_number = |pair: &[&str]| pair[0].ends_with(is_digit) && pair[1].starts_with(is_digit);
    let Some(first) = pieces.windows(2).position(is_in_number) else { return Ok(()) };
    let last = first + pieces[first..].windows(2).take_while(|pair| is_in_number(pair)).count();
    // The number begins after the key, if there is one.
    let key = pieces[first].find('=').map_or("", |end| &pieces[first][..=end]);
    let kind = if key.is_empty() { Kind::Rate } else { Kind::Size };
    let joined = pieces[first..=last].join(",");
    let number = &joined[key.len()..];
    let meant = meant::likeliest(kind, number).map(|number| format!("{key}{number}"));
    let all = |meant: String| [&pieces[..first], &[meant.as_str()], &pieces[last + 1..]].concat().join(",");
    let instead = meant.map(all).filter(|all| all.parse::<super::Limit>().is_ok());
    let otherwise = || "only digits and a point, like 1000/s or 0.5/s".to_owned();
    Err(ParseError::Comma { text: text.to_owned(), instead: instead.unwrap_or_else(otherwise) })
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
    let before = if name.is_empty() { "slash".to_owned() } else { format!("'{name}'") };
    ParseError::NoCount { text: whole.to_owned(), before, example }
}

/// Something that is not a number, or has needless leading zeros.
pub(super) fn bad_number(kind: Kind, whole: &str) -> ParseError {
    let otherwise = format!("for example {}", if kind == Kind::Rate { "0.5/s" } else { "10" });
    ParseError::BadNumber { text: whole.to_owned(), instead: instead(kind, whole, &otherwise) }
}

pub(super) fn leading_zero(kind: Kind, whole: &str) -> Option<ParseError> {
    let instead = meant::likeliest(kind, whole)?;
    Some(ParseError::LeadingZero { text: whole.to_owned(), instead })
}

/// Letters after a count that are not a unit here but may be one elsewhere.
pub(super) fn unknown_suffix(kind: Kind, suffix: &str, whole: &str) -> ParseError {
    let text = whole.to_owned();
    if suffix.starts_with(['e', 'E']) && suffix[1..].starts_with(|c: char| is_digit(c) || c == '-' || c == '+') {
        let otherwise = if kind == Kind::Rate { "for example 1000/s or 1k/s" } else { "for example 1000 or 1k" };
        return ParseError::Exponent { example: instead(kind, whole, otherwise), text };
    }
    if let Some(instead) = meant::likeliest(kind, whole).filter(|_| suffix.starts_with(',')) {
        return ParseError::Comma { text, instead };
    }
    let advice = meant::advice(kind, whole).unwrap_or_else(|| {
        "use k, M, G (a thousand, million, billion) or B, kB, MB, GB, TB, KiB, MiB, GiB, TiB".to_owned()
    });
    ParseError::Suffix { text, suffix: suffix.to_owned(), advice }
}

/// `5/1.5s` is `10/3s`.
pub(super) fn fractional_period(whole: &str) -> ParseError {
    let example = instead(Kind::Rate, whole, "for example 10/3s");
    ParseError::FractionalPeriod { text: whole.to_owned(), example }
}

pub(super) fn zero_period(whole: &str, count: &str, unit: &str) -> ParseError {
    ParseError::ZeroPeriod { text: whole.to_owned(), example: instead(Kind::Rate, &format!("{count}/{unit}"), "5/s") }
}

pub(super) fn unknown_time_unit(whole: &str, times: &str, name: &str) -> ParseError {
    let text = whole.to_owned();
    match name {
        "" if times.is_empty() => return ParseError::NoTimeUnit(text),
        "" if format!("{text}h").parse::<Rate>().is_ok() => return ParseError::BareNumberPeriod { text },
        "" => return ParseError::TooSlow(text),
        _ => {}
    }
    let small = name.to_lowercase();
    let why = match small.as_str() {
        "us" | "µs" | "μs" | "usec" | "ns" => "the finest is ms; write ",
        _ if small.starts_with('w') => "a week is 7d: ",
        _ if small.starts_with("mo") => "months differ; 30 days are ",
        _ if small.starts_with('y') => "a year is 365d: ",
        _ if small != name => "write it small: ",
        _ => "write ",
    };
    let advice = meant::likeliest(Kind::Rate, whole).map(|rate| format!("{why}{rate}"));
    let advice = advice.unwrap_or_else(|| "use ms, s, min, h or d, like 5/s or 3/15s".to_owned());
    ParseError::TimeUnit { text, unit: name.to_owned(), advice }
}

pub(super) fn unknown_key(rate: &Rate, key: &str) -> ParseError {
    let (name, value) = key.split_once('=').unwrap_or((key, ""));
    let value = if value.parse::<Amount>().is_ok() { value } else { "10" };
    let advice = match name.to_lowercase().as_str() {
        "burst" | "initial" => format!("write {}={value}", name.to_lowercase()),
        "window" => "window has no value and stands once: 5000/h,window".to_owned(),
        "slack" => "write slack=50ms behind window".to_owned(),
        "" => "a comma must be followed by burst=N, initial=N, window or slack=TIME".to_owned(),
        _ if key.parse::<Rate>().is_ok() => format!("a second limit is a second --rate: -r {rate} -r {key}"),
        name if name.starts_with('b') => format!("did you mean burst={value}?"),
        name if name.starts_with('i') => format!("did you mean initial={value}?"),
        name if name.starts_with('w') => "did you mean window?".to_owned(),
        name if name.starts_with('s') => "did you mean slack=50ms, behind window?".to_owned(),
        _ => "use burst=N, initial=N, window or slack=TIME, like 5/s,burst=10; a second limit is a second --rate"
            .to_owned(),
    };
    ParseError::Key { key: key.to_owned(), advice }
}
