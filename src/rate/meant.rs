//! Guesses what a wrong rate was meant to be: numbers, units and times as people write them elsewhere.
//!
//! All rates and sizes that a message suggests are made here. Each can be parsed and has the magnitude of what was
//! typed.

use super::number::{Amount, SUFFIXES};
use super::{DAYS, Rate, TIME_UNITS, gcd};
use std::fmt;

/// How a text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rate,
    /// A burst, for example: without a time.
    Size,
}

impl Kind {
    pub(super) fn example(self) -> &'static str {
        match self {
            Kind::Rate => "5/s",
            Kind::Size => "10",
        }
    }

    fn parses(self, text: &str) -> bool {
        match self {
            Kind::Rate => text.parse::<Rate>().is_ok(),
            Kind::Size => text.parse::<Amount>().is_ok(),
        }
    }
}

/// The likeliest spelling of `text`, if there is one.
pub(super) fn likeliest(kind: Kind, text: &str) -> Option<String> {
    let read = Loose::read(text)?;
    let unit = *readings(&read.letters)?.first()?;
    read.spelled(kind, unit)
}

/// What to write instead of a count whose letters are not a unit.
pub(super) fn advice(kind: Kind, text: &str) -> Option<String> {
    let read = Loose::read(text)?;
    if kind == Kind::Rate
        && read.period.is_none()
        && let Some(unit) = time_named(&read.letters)
    {
        return read.as_duration(unit);
    }
    let units = readings(&read.letters)?.into_iter();
    let pieces: Option<Vec<String>> =
        units.map(|unit| Some(format!("{} {}", unit.words, read.spelled(kind, unit)?))).collect();
    Some(pieces?.concat())
}

/// One possible meaning of the letters after a number.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// The words before the suggestion.
    words: &'static str,
    /// One of our suffixes.
    suffix: &'static str,
    /// Whether bits were counted.
    is_bits: bool,
}

const fn unit(words: &'static str, suffix: &'static str) -> Unit {
    Unit { words, suffix, is_bits: false }
}

const fn bits(words: &'static str, suffix: &'static str) -> Unit {
    Unit { words, suffix, is_bits: true }
}

const DIVIDED: &str = "bits must be divided by 8: write";

/// What a number without a suffix counts.
const COUNTED: [&str; 26] = [
    "", "r", "req", "reqs", "request", "requests", "q", "query", "queries", "call", "calls", "line", "lines", "item",
    "items", "unit", "units", "record", "records", "msg", "msgs", "message", "messages", "op", "job", "jobs",
];

/// A count and its time in one word.
const COUNTED_PER: [(&str, &str); 9] = [
    ("rps", "s"),
    ("qps", "s"),
    ("tps", "s"),
    ("ops", "s"),
    ("rpm", "min"),
    ("qpm", "min"),
    ("tpm", "min"),
    ("rph", "h"),
    ("rpd", "d"),
];

const LONG_PREFIXES: [(&str, &str); 8] = [
    ("kilo", "k"),
    ("mega", "m"),
    ("giga", "g"),
    ("tera", "t"),
    ("kibi", "ki"),
    ("mebi", "mi"),
    ("gibi", "gi"),
    ("tebi", "ti"),
];

const BYTES: [&str; 9] = ["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"];

/// The meanings of `letters`, the likeliest first.
fn readings(letters: &str) -> Option<Vec<Unit>> {
    if let Some(known) = SUFFIXES.iter().find(|suffix| suffix.name == letters) {
        return Some(vec![unit("write", known.name)]);
    }
    let small = letters.to_lowercase();
    if COUNTED.contains(&small.as_str()) {
        return Some(vec![unit("write", "")]);
    }
    let short = LONG_PREFIXES.iter().find_map(|(long, short)| Some(format!("{short}{}", small.strip_prefix(long)?)));
    let small = short.unwrap_or(small);
    let rest = small.trim_start_matches(['k', 'm', 'g', 't', 'i']);
    let prefix = &small[..small.len() - rest.len()];
    let bytes = BYTES.into_iter().find(|name| name.to_lowercase() == format!("{prefix}b"))?;
    let is_large = letters.starts_with(char::is_uppercase);
    match (prefix, rest) {
        ("k", "") => Some(vec![unit("a thousand is", "k"), unit("; bytes are", "kB"), unit(" or", "KiB")]),
        ("m", "") => Some(vec![unit("a million is", "M")]),
        ("k", "b") if letters.ends_with('B') => Some(vec![unit("1000 bytes are", "kB"), unit(", 1024 are", "KiB")]),
        (_, "bit" | "bits") => Some(vec![bits(DIVIDED, bytes)]),
        (_, "b") if letters.ends_with('b') && is_large && !prefix.ends_with('i') => Some(vec![bits(DIVIDED, bytes)]),
        (_, "b") if letters.ends_with('b') => {
            Some(vec![unit("write", bytes), bits(", or where bits were meant", bytes)])
        }
        (_, "" | "b" | "byte" | "bytes") => Some(vec![unit("write", bytes)]),
        _ => None,
    }
}

/// Names of times that are not ours: our unit, and how many of it; 0 if the time is shorter than all of ours.
const OTHER_TIMES: [(&str, &str, u64); 25] = [
    ("milli", "ms", 1),
    ("millis", "ms", 1),
    ("msec", "ms", 1),
    ("msecs", "ms", 1),
    ("millisecond", "ms", 1),
    ("milliseconds", "ms", 1),
    ("secs", "s", 1),
    ("mins", "min", 1),
    ("hrs", "h", 1),
    ("w", "d", 7),
    ("wk", "d", 7),
    ("week", "d", 7),
    ("weeks", "d", 7),
    ("mo", "d", 30),
    ("month", "d", 30),
    ("months", "d", 30),
    ("y", "d", 365),
    ("yr", "d", 365),
    ("year", "d", 365),
    ("years", "d", 365),
    ("us", "ms", 0),
    ("usec", "ms", 0),
    ("µs", "ms", 0),
    ("μs", "ms", 0),
    ("ns", "ms", 0),
];

/// A time in our units: `times` over `parts` of `name`.
#[derive(Clone, Copy, Debug)]
struct Time {
    name: &'static str,
    times: u64,
    parts: u64,
}

fn time_named(text: &str) -> Option<Time> {
    let name = text.to_lowercase();
    if let Some(ours) = TIME_UNITS.iter().chain([&DAYS]).find(|unit| unit.name == name) {
        return Some(Time { name: ours.name, times: 1, parts: 1 });
    }
    let (_, ours, times) = OTHER_TIMES.into_iter().find(|(other, ..)| *other == name)?;
    let parts = match (times, name.as_str()) {
        (0, "ns") => 1_000_000,
        (0, _) => 1_000,
        _ => 1,
    };
    Some(Time { name: ours, times: times.max(1), parts })
}

/// A rate or size, parsed as leniently as possible.
#[derive(Debug)]
struct Loose {
    number: Decimal,
    /// The text between the number and the time.
    letters: String,
    /// The number and the unit of the time.
    period: Option<(Decimal, Time)>,
}

impl Loose {
    fn read(text: &str) -> Option<Self> {
        let text = text.replace(" per ", "/").replace(char::is_whitespace, "");
        let (number, rest) = Decimal::read(&text)?;
        let (letters, per) = rest.split_once('/').unwrap_or((rest, ""));
        let (letters, time) = without_time(letters);
        let per = per.trim_start_matches('/');
        Some(Loose { number, letters, period: read_period(if per.is_empty() { time } else { per })? })
    }

    fn spelled(&self, kind: Kind, unit: Unit) -> Option<String> {
        let number = if unit.is_bits { self.number.eighth()? } else { self.number };
        let spelling = match (kind, self.period) {
            (Kind::Size, _) => format!("{number}{}", unit.suffix),
            (Kind::Rate, None) => format!("{number}{}/s", unit.suffix),
            (Kind::Rate, Some((times, time))) => number.over(times, time, unit.suffix)?,
        };
        kind.parses(&spelling).then_some(spelling)
    }

    /// What `2s` may mean. The letters are `time`.
    fn as_duration(&self, time: Time) -> Option<String> {
        let one = Decimal::ONE;
        let parsed = |rate: Option<String>| rate.filter(|rate| Kind::Rate.parses(rate));
        let each = parsed(self.number.over(one, time, ""));
        if self.letters == "m" {
            let million = self.spelled(Kind::Rate, unit("", "M"))?;
            let minute = parsed(self.number.over(one, Time { name: "min", ..time }, ""))?;
            return Some(format!("a minute stands after the slash, {minute}; a million is {million}"));
        }
        let every = parsed(one.over(self.number, time, ""))?;
        let every = format!("for one every {}{} write {every}", self.number, self.letters);
        match each.filter(|_| time.name != "ms") {
            Some(each) => Some(format!("for {} in a time write {each}; {every}", self.number)),
            None => Some(every),
        }
    }
}

/// `rps`, `MBps`: the count's letters and the time; no time if the letters contain none.
fn without_time(letters: &str) -> (String, &'static str) {
    let small = letters.to_lowercase();
    if let Some((_, time)) = COUNTED_PER.into_iter().find(|(word, _)| *word == small) {
        return (String::new(), time);
    }
    match letters.get(..letters.len().saturating_sub(2)).filter(|_| small.ends_with("bps")) {
        // In `bps`, a small b always means bits.
        Some(before) if before.ends_with('b') => (format!("{before}it"), "s"),
        Some(before) => (before.to_owned(), "s"),
        None => (letters.to_owned(), ""),
    }
}

/// The part after the slash; nothing, if it is empty. `None` if it cannot be parsed.
#[allow(clippy::option_option, reason = "no time is not the same as one that cannot be read")]
fn read_period(text: &str) -> Option<Option<(Decimal, Time)>> {
    if text.is_empty() {
        return Some(None);
    }
    let (times, name) = Decimal::read(text).unwrap_or((Decimal::ONE, text));
    time_named(name).map(|time| Some((times, time)))
}

/// `digits` over ten to the power of `places`.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    digits: u128,
    places: u32,
}

impl Decimal {
    const ONE: Decimal = Decimal { digits: 1, places: 0 };

    /// Parses a number at the beginning of `text` and returns the rest.
    fn read(text: &str) -> Option<(Self, &str)> {
        let is_number = |c: char| c.is_ascii_digit() || ".,_'".contains(c);
        let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
        let number = without_separators(&number.replace(['_', '\''], ""))?;
        let (whole, decimals) = number.split_once('.').unwrap_or((&number, ""));
        let decimals = decimals.trim_end_matches('0');
        let value =
            Decimal { digits: format!("{whole}{decimals}").parse().ok()?, places: u32::try_from(decimals.len()).ok()? };
        let Some(exponent) = rest.strip_prefix(['e', 'E']) else { return Some((value, rest)) };
        let end = exponent.find(|c: char| !c.is_ascii_digit() && c != '-' && c != '+').unwrap_or(exponent.len());
        Some((value.times_ten_to(exponent[..end].parse().ok()?)?, &exponent[end..]))
    }

    fn times_ten_to(self, power: i32) -> Option<Self> {
        let places = i32::try_from(self.places).ok()?.checked_sub(power)?;
        let digits =
            self.digits.checked_mul(10_u128.checked_pow(u32::try_from(places.min(0).checked_neg()?).ok()?)?)?;
        Some(Decimal { digits, places: u32::try_from(places.max(0)).ok()? })
    }

    fn eighth(self) -> Option<Self> {
        Some(Decimal { digits: self.digits.checked_mul(125)?, places: self.places + 3 })
    }

    /// As a rate: so many `suffix` in `times` of `time`, with a whole count.
    fn over(self, times: Decimal, time: Time, suffix: &str) -> Option<String> {
        let raised = self.times_ten_to(i32::try_from(times.places).ok()?)?;
        let mut count = Decimal { digits: raised.digits.checked_mul(time.parts.into())?, ..raised };
        let mut times = times.digits.checked_mul(time.times.into())?;
        if count.places == 0 && (count.digits != self.digits || self.places > 0) {
            let divisor = gcd(count.digits, times).max(1);
            (count.digits, times) = (count.digits / divisor, times / divisor);
        }
        let times = if times == 1 { String::new() } else { times.to_string() };
        Some(format!("{count}{suffix}/{times}{}", time.name))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.places as usize;
        let digits = format!("{:0width$}", self.digits, width = places + 1);
        let (whole, decimals) = digits.split_at(digits.len() - places);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "{whole}{}{decimals}", if decimals.is_empty() { "" } else { "." })
    }
}

/// Of `,` and `.` the last one is the decimal point, unless it separates groups of three digits like the others.
fn without_separators(number: &str) -> Option<String> {
    let groups: Vec<&str> = number.split([',', '.']).collect();
    let (first, last) = (groups[0], groups[groups.len() - 1]);
    if first.is_empty() && last.is_empty() {
        return None;
    }
    let is_grouped = |groups: &[&str]| groups.iter().all(|group| group.len() == 3);
    let has_one_kind = !(number.contains(',') && number.contains('.'));
    let starts_groups = (1..=3).contains(&first.len()) && first != "0";
    let is_point_alone = groups.len() == 2 && number.contains('.');
    match groups.len() {
        1 => Some(first.to_owned()),
        _ if has_one_kind && !is_point_alone && starts_groups && is_grouped(&groups[1..]) => Some(groups.concat()),
        2 => Some(format!("{}.{last}", if first.is_empty() { "0" } else { first })),
        _ if !has_one_kind && starts_groups && is_grouped(&groups[1..groups.len() - 1]) => {
            Some(format!("{}.{last}", groups[..groups.len() - 1].concat()))
        }
        _ => None,
    }
}
