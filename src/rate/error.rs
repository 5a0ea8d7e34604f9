//! What can be wrong with a limit, each mistake with its own words and a right spelling.

use super::{TIME_UNITS, gcd, time_unit_named};
use thiserror::Error;

/// Why a text is no limit. The message shows how to write it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum ParseError {
    #[error("the limit is empty; write for example 5/s, 100/min or 10MiB/s")]
    Empty,
    #[error("{0:?} is not text; write for example 5/s")]
    NotText(String),
    #[error("'{0}' has a space in it; write a limit without any, like 5/s")]
    Space(String),
    #[error("'{0}' is negative; a rate is more than nothing, like 5/s")]
    Negative(String),
    #[error("'{text}' has no number before the {before}; write for example {example}")]
    NoCount { text: String, before: String, example: String },
    #[error("a size is missing; write for example 10")]
    NoSize,
    #[error("'{0}' is not a number with digits on both sides of the point; write for example 0.5/s")]
    BadNumber(String),
    #[error("'{0}' has more than 18 decimals; write it over a longer time, like 1/365d")]
    TooManyDecimals(String),
    #[error("'{text}' has an exponent; write the number out or with k, M, G: {example}")]
    Exponent { text: String, example: String },
    #[error("'{0}': no commas inside numbers; write {1}")]
    Thousands(String, String),
    #[error("'{0}' lets nothing through; a rate is more than 0, like 0.5/s or 1/h")]
    Zero(String),
    #[error("'{0}' has a period of no length; write for example 5/s")]
    ZeroPeriod(String),
    #[error("'{0}' is more than 2^64-1 units, the most there can be; for no limit write unlimited")]
    TooLarge(String),
    #[error("'{0}' is slower than one unit in 100 years, or its period longer than 584; write for example 1/365d")]
    TooSlow(String),
    #[error("{}", lines_or_bytes(.0))]
    LinesOrBytes(String),
    #[error("'{text}': no unit '{suffix}' for a count; {advice}")]
    Suffix { text: String, suffix: String, advice: String },
    #[error("'{0}' has two slashes; write COUNT/TIME, like 5/s or 3/15s")]
    TwoSlashes(String),
    #[error("'{0}' has no unit of time after the slash; write for example {0}s or {0}min")]
    NoTimeUnit(String),
    #[error("'{text}': after the slash a unit of time is missing; write {text}s, {text}min or {text}h")]
    BareNumberPeriod { text: String },
    #[error("'{text}': no unit of time '{unit}'; {advice}")]
    TimeUnit { text: String, unit: String, advice: String },
    #[error("'{text}' has a fraction in its period; write the same ratio in whole numbers: {example}")]
    FractionalPeriod { text: String, example: String },
    #[error("'{0}': unlimited stands alone, it has no burst, window or period")]
    UnlimitedAlone(String),
    #[error("no key '{key}' in a limit; {advice}")]
    Key { key: String, advice: String },
    #[error("{0} stands twice in one limit; say it once, like 5/s,{0}=10")]
    Twice(&'static str),
    #[error("burst=0 would let nothing through; the least is burst=1")]
    ZeroBurst,
    #[error(
        "initial={initial} is more than burst={burst}, which is all the bucket holds; write at most initial={burst}"
    )]
    InitialAboveBurst { initial: String, burst: String },
    #[error(
        "a window has no burst or initial: it lets its whole count through at once; write {0},window or {0},burst=N"
    )]
    WindowWithBurst(String),
    #[error(
        "{key}={value} is in bytes beside '{rate}', which counts units; write {key}=N without a unit, or a rate like 10MiB/s"
    )]
    BytesBesideUnits { key: &'static str, value: String, rate: String },
    #[error("'{0}' is not a whole number")]
    NotWhole(String),
    #[error("{key}: {error}")]
    InKey { key: &'static str, error: Box<ParseError> },
}

/// `10M` is ambiguous; mind that it is kB but `KiB`.
fn lines_or_bytes(text: &str) -> String {
    let words = [("k", "thousand"), ("M", "million"), ("G", "billion")];
    let named = words.iter().find_map(|(suffix, word)| text.strip_suffix(suffix).map(|number| (number, *word)));
    let (number, word) = named.unwrap_or((text, ""));
    let number = if number == "10" { "ten" } else { number };
    let kibi = text.replace('k', "K");
    format!("lines or bytes? {text}/s is {number} {word} lines a second; for bytes {text}B/s or {kibi}iB/s")
}

/// Mistakes that show in the text as a whole.
pub(super) fn refuse_habits(text: &str) -> Result<(), ParseError> {
    if text.contains(char::is_whitespace) {
        return Err(ParseError::Space(text.to_owned()));
    }
    if text.starts_with(['-', '\u{2212}']) {
        return Err(ParseError::Negative(text.to_owned()));
    }
    if text.matches('/').count() > 1 {
        return Err(ParseError::TwoSlashes(text.to_owned()));
    }
    Ok(())
}

/// `1,000/s`: what stands behind the comma starts with a digit.
pub(super) fn refuse_thousands(text: &str, first: &str, keys: &[&str]) -> Result<(), ParseError> {
    let digit = |c: char| c.is_ascii_digit();
    if first.ends_with(digit) && keys.first().is_some_and(|key| key.starts_with(digit)) {
        return Err(ParseError::Thousands(text.to_owned(), text.replace(',', "")));
    }
    Ok(())
}

pub(super) fn no_count(name: &str, whole: &str) -> ParseError {
    let example = match (name.is_empty(), whole.contains('/')) {
        (true, _) => format!("5{whole}"),
        (false, true) => "5/s".to_owned(),
        (false, false) => "5k/s, 5kB/s or 5KiB/s".to_owned(),
    };
    let before = if name.is_empty() { "slash".to_owned() } else { format!("'{name}'") };
    ParseError::NoCount { text: whole.to_owned(), before, example }
}

/// A count's letters that mean nothing here but may mean something elsewhere.
pub(super) fn unknown_suffix(number: &str, suffix: &str, whole: &str) -> ParseError {
    if let Some(exponent) = suffix.strip_prefix(['e', 'E'])
        && exponent.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+')
    {
        return ParseError::Exponent { text: whole.to_owned(), example: written_out(number, exponent) };
    }
    let advice = match suffix {
        "m" => format!("a minute stands after the slash, {number}/min; a million is {number}M/s"),
        "s" | "sec" | "ms" | "h" | "d" | "min" => {
            format!(
                "for {number} in a time write {number}/{suffix}; for one every {number}{suffix} write 1/{number}{suffix}"
            )
        }
        "K" => format!("a thousand is {number}k/s; bytes are {number}kB/s or {number}KiB/s"),
        "KB" => format!("1000 bytes are {number}kB, 1024 are {number}KiB"),
        "g" | "t" | "T" => format!("write {number}G, {number}GB or {number}TB"),
        "b" => format!("bytes are {number}B, bits must be divided by 8"),
        _ if suffix.ends_with("bit") || suffix.ends_with('b') || suffix.ends_with("bps") => {
            format!("bits must be divided by 8: {}", bytes_of_bits(number, suffix))
        }
        _ => "use k, M, G (a thousand, million, billion) or B, kB, MB, GB, TB, KiB, MiB, GiB, TiB".to_owned(),
    };
    ParseError::Suffix { text: whole.to_owned(), suffix: suffix.to_owned(), advice }
}

/// `8Mb` is `1MB`: shown where the number is a whole one.
fn bytes_of_bits(number: &str, suffix: &str) -> String {
    let prefix = suffix.chars().next().filter(|c| "kKMGT".contains(*c)).map(|c| if c == 'K' { 'k' } else { c });
    let prefix = prefix.map(String::from).unwrap_or_default();
    match number.parse::<u64>() {
        Ok(bits) => {
            let (bytes, thousandths) = (bits / 8, bits % 8 * 125);
            let decimals = format!(".{thousandths:03}");
            format!("{number}{suffix}/s is {bytes}{}{prefix}B/s", decimals.trim_end_matches('0').trim_end_matches('.'))
        }
        Err(_) => "1MB/s is 8 megabits a second".to_owned(),
    }
}

/// `1` and `3/s` → `1000/s`, where that is short.
fn written_out(number: &str, exponent: &str) -> String {
    let (power, rest) = exponent.split_at(exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len()));
    match (number.parse::<u64>(), power.parse::<usize>()) {
        (Ok(number), Ok(power)) if power <= 15 && rest.is_empty() => format!("{number}{}/s", "0".repeat(power)),
        _ => "1000/s or 1k/s".to_owned(),
    }
}

/// `5/1.5s` is `10/3s`.
pub(super) fn fractional_period(per: &str, count: &str) -> ParseError {
    let text = format!("{count}/{per}");
    let example = whole_ratio(per, count).unwrap_or_else(|| "10/3s instead of 5/1.5s".to_owned());
    ParseError::FractionalPeriod { text, example }
}

fn whole_ratio(per: &str, count: &str) -> Option<String> {
    let end = per.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = per.split_at(end);
    let unit = time_unit_named(unit)?;
    let (whole, decimals) = number.split_once('.')?;
    let times: u128 = format!("{whole}{decimals}").parse().ok()?;
    let count: u128 = count.parse::<u64>().ok()?.into();
    let count = count.checked_mul(10_u128.checked_pow(u32::try_from(decimals.len()).ok()?)?)?;
    let divisor = gcd(count, times);
    (divisor > 0).then(|| format!("{}/{}{}", count / divisor, times / divisor, unit.name))
}

pub(super) fn unknown_time_unit(per: &str, times: &str, name: &str, count: &str) -> ParseError {
    let text = format!("{count}/{per}");
    let thousands = |per: &str| format!("the finest is ms; {count}/{per} is {count}");
    let advice = match name {
        "" if times.is_empty() => return ParseError::NoTimeUnit(text),
        "" => return ParseError::BareNumberPeriod { text },
        "us" | "µs" if times.is_empty() => format!("{}M/s", thousands(name)),
        "ns" if times.is_empty() => format!("{}G/s", thousands(name)),
        "us" | "µs" | "ns" => "the finest is ms, like 2/500ms".to_owned(),
        "w" | "week" | "weeks" => format!("a week is 7d: {count}/7d"),
        "month" | "mo" | "months" => format!("months differ; 30 days are {count}/30d"),
        "y" | "yr" | "year" | "years" => format!("a year is {count}/365d"),
        _ => match TIME_UNITS.iter().find(|unit| unit.name.eq_ignore_ascii_case(name)) {
            Some(unit) => format!("write it small: {count}/{times}{}", unit.name),
            None => "use ms, s, min, h or d, like 5/s or 3/15s".to_owned(),
        },
    };
    ParseError::TimeUnit { text, unit: name.to_owned(), advice }
}

pub(super) fn unknown_key(key: &str) -> ParseError {
    let (name, value) = key.split_once('=').unwrap_or((key, "N"));
    let advice = match name {
        "burst" | "initial" => format!("write {name}=10"),
        "window" => "window has no value and stands once: 5000/h,window".to_owned(),
        "" => "a comma must be followed by burst=N, initial=N or window".to_owned(),
        _ if name.starts_with('b') => format!("did you mean burst={value}?"),
        _ if name.starts_with('i') => format!("did you mean initial={value}?"),
        _ if name.starts_with('w') => "did you mean window?".to_owned(),
        _ => "use burst=N, initial=N or window, like 5/s,burst=10; a second limit is a second --rate".to_owned(),
    };
    ParseError::Key { key: key.to_owned(), advice }
}
