//! Guesses the rate that a mistyped text means: numbers, units and times as people write them elsewhere.
//!
//! All rates and sizes that a message suggests are made here. Each can be parsed and has the magnitude of the text.

use super::number::{Amount, BYTES, SUFFIXES, gcd, with_point};
use super::{Rate, time_unit_named};
use std::fmt;

/// The kind of value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rate,
    /// A size without a time, for example a burst.
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

/// The advice for a count whose letters are not a unit.
pub(super) fn advice(kind: Kind, text: &str) -> Option<String> {
    let read = Loose::read(text)?;
    if kind == Kind::Rate
        && read.period.is_none()
        && let Some(unit) = time_named(&read.letters)
    {
        return read.as_duration(unit);
    }
    let spelled = |unit: Unit| Some(format!("{} {}", unit.0, read.spelled(kind, unit)?));
    readings(&read.letters)?.into_iter().map(spelled).collect()
}

/// One possible meaning of the letters after a number: the words before the suggestion, one of our suffixes, and
/// whether the number was in bits.
type Unit = (&'static str, &'static str, bool);

const fn unit(words: &'static str, suffix: &'static str) -> Unit {
    (words, suffix, false)
}

const DIVIDED: &str = "bits must be divided by 8: write";

/// Names of units that are counted one by one.
const COUNTED: &str = "r req reqs request requests q query queries call calls line lines item items unit units \
                       record records msg msgs message messages op job jobs";

/// Words that name both a count and its time.
const COUNTED_PER: [(&str, &str); 4] = [("rps qps tps ops", "s"), ("rpm qpm tpm", "min"), ("rph", "h"), ("rpd", "d")];

const LONG_PREFIXES: [&str; 8] = ["kilo", "mega", "giga", "tera", "kibi", "mebi", "gibi", "tebi"];

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// Shortens a long prefix: `megabyte` to `mbyte`, `kibibyte` to `kibyte`.
fn with_short_prefix(letters: &str) -> Option<String> {
    let long = LONG_PREFIXES.into_iter().find(|long| letters.starts_with(long))?;
    let binary = if long.ends_with("bi") { "i" } else { "" };
    Some(format!("{}{binary}{}", &long[..1], &letters[long.len()..]))
}

/// The meanings of `letters`, the likeliest first.
fn readings(letters: &str) -> Option<Vec<Unit>> {
    if let Some(known) = SUFFIXES.into_iter().find(|suffix| *suffix == letters) {
        return Some(vec![unit("write", known)]);
    }
    let small = letters.to_lowercase();
    if is_among(COUNTED, &small) {
        return Some(vec![unit("write", "")]);
    }
    let small = with_short_prefix(&small).unwrap_or(small);
    let rest = small.trim_start_matches(['k', 'm', 'g', 't', 'i']);
    let prefix = &small[..small.len() - rest.len()];
    let bytes = *BYTES.iter().find(|name| name.to_lowercase() == format!("{prefix}b"))?;
    let is_large = letters.starts_with(char::is_uppercase);
    match (prefix, rest) {
        ("k", "") => Some(vec![unit("a thousand is", "k"), unit("; bytes are", "kB"), unit(" or", "KiB")]),
        ("m", "") => Some(vec![unit("a million is", "M")]),
        ("k", "b") if letters.ends_with('B') => Some(vec![unit("1000 bytes are", "kB"), unit(", 1024 are", "KiB")]),
        (_, "bit" | "bits") => Some(vec![(DIVIDED, bytes, true)]),
        (_, "b") if letters.ends_with('b') && is_large && !prefix.ends_with('i') => Some(vec![(DIVIDED, bytes, true)]),
        (_, "b") if letters.ends_with('b') => {
            Some(vec![unit("write", bytes), (", or if bits were meant", bytes, true)])
        }
        (_, "" | "b" | "byte" | "bytes") => Some(vec![unit("write", bytes)]),
        _ => None,
    }
}

/// Other names of times, and their length in one of our units.
const OTHER_TIMES: [(&str, u64, &str); 8] = [
    ("milli millis msec msecs millisecond milliseconds", 1, "ms"),
    ("secs", 1, "s"),
    ("mins", 1, "min"),
    ("hrs", 1, "h"),
    ("w wk week weeks", 7, "d"),
    ("mo month months", 30, "d"),
    ("y yr year years", 365, "d"),
    ("usec usecs microsecond microseconds", 1, "us"),
];

/// A time in our units: `times` of `name`.
#[derive(Clone, Copy, Debug)]
struct Time {
    name: &'static str,
    times: u64,
}

fn time_named(text: &str) -> Option<Time> {
    let name = text.to_lowercase();
    if let Some(ours) = time_unit_named(&name) {
        return Some(Time { name: ours.name, times: 1 });
    }
    let (_, times, name) = OTHER_TIMES.into_iter().find(|(names, ..)| is_among(names, &name))?;
    Some(Time { name, times })
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
        // No suggestion has more than 40 decimals, and a text is formatted with at most 65535.
        let (number, rest) = Decimal::read(&text).filter(|(number, _)| number.places <= 40)?;
        let (letters, per) = rest.split_once('/').unwrap_or((rest, ""));
        let (letters, time) = without_time(letters);
        let per = per.trim_start_matches('/');
        let per = if per.is_empty() { time } else { per };
        let (times, name) = Decimal::read(per).unwrap_or((Decimal::ONE, per));
        let period = if per.is_empty() { None } else { Some((times, time_named(name)?)) };
        Some(Loose { number, letters, period })
    }

    fn spelled(&self, kind: Kind, (_, suffix, is_bits): Unit) -> Option<String> {
        let number = if is_bits { self.number.eighth()? } else { self.number };
        let spelling = match (kind, self.period) {
            (Kind::Size, _) => format!("{number}{suffix}"),
            (Kind::Rate, None) => format!("{number}{suffix}/s"),
            (Kind::Rate, Some((times, time))) => number.over(times, time, suffix)?,
        };
        kind.parses(&spelling).then_some(spelling)
    }

    /// The possible meanings of a duration such as `2s`. The letters after the number mean `time`.
    fn as_duration(&self, time: Time) -> Option<String> {
        let one = Decimal::ONE;
        let parsed = |rate: Option<String>| rate.filter(|rate| Kind::Rate.parses(rate));
        let each = parsed(self.number.over(one, time, ""));
        if self.letters == "m" {
            let million = self.spelled(Kind::Rate, unit("", "M"))?;
            let minute = parsed(self.number.over(one, Time { name: "min", ..time }, ""))?;
            return Some(format!("a minute is written after the slash, {minute}; a million is {million}"));
        }
        let every = parsed(one.over(self.number, time, ""))?;
        let every = format!("for one every {}{} write {every}", self.number, self.letters);
        match each.filter(|_| !["ms", "us", "ns"].contains(&time.name)) {
            Some(each) => Some(format!("for {} per {} write {each}; {every}", self.number, time.name)),
            None => Some(every),
        }
    }
}

/// Splits `rps` or `MBps` into the letters of the count and the time; the time is empty if the letters contain none.
fn without_time(letters: &str) -> (String, &'static str) {
    let small = letters.to_lowercase();
    if let Some((_, time)) = COUNTED_PER.into_iter().find(|(words, _)| is_among(words, &small)) {
        return (String::new(), time);
    }
    match letters.get(..letters.len().saturating_sub(2)).filter(|_| small.ends_with("bps")) {
        // In `bps`, a small b always means bits.
        Some(before) if before.ends_with('b') => (format!("{before}it"), "s"),
        Some(before) => (before.to_owned(), "s"),
        None => (letters.to_owned(), ""),
    }
}

/// The number `digits` / 10^`places`.
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

    /// The rate of this number of `suffix` in `times` of `time`, with a whole count.
    fn over(self, times: Decimal, time: Time, suffix: &str) -> Option<String> {
        let raised = self.times_ten_to(i32::try_from(times.places).ok()?)?;
        let mut count = raised;
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
        let text = with_point(self.digits, self.places as usize);
        let is_whole = self.places == 0;
        f.write_str(if is_whole { &text } else { text.trim_end_matches('0').trim_end_matches('.') })
    }
}

/// Removes separators from a number. The last `,` or `.` is the decimal point, unless it separates groups of three
/// digits like the others.
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
