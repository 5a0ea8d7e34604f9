//! Counts and sizes: `5`, `0.5`, `5k`, `1.5GB`, `64KiB`.

use super::error::{self, ParseError};
use super::meant::Kind;
use super::{Rate, gcd};
use std::fmt;

/// A number of units or bytes as written, exact.
///
/// ```
/// let size: throttle::rate::Amount = "1.5KiB".parse()?;
/// assert_eq!(size.value(), 1536);
/// # Ok::<(), throttle::rate::ParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// All digits, without the point.
    digits: u64,
    /// How many of them are after the point.
    decimals: u8,
    suffix: Suffix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suffix {
    pub(super) name: &'static str,
    times: u64,
}

const fn suffix(name: &'static str, times: u64) -> Suffix {
    Suffix { name, times }
}

const PLAIN: Suffix = suffix("", 1);

/// Decimal suffixes first, then bytes. Upper and lower case differ.
pub(super) const SUFFIXES: [Suffix; 13] = [
    PLAIN,
    suffix("k", 1_000),
    suffix("M", 1_000_000),
    suffix("G", 1_000_000_000),
    suffix("B", 1),
    suffix("kB", 1_000),
    suffix("MB", 1_000_000),
    suffix("GB", 1_000_000_000),
    suffix("TB", 1_000_000_000_000),
    suffix("KiB", 1 << 10),
    suffix("MiB", 1 << 20),
    suffix("GiB", 1 << 30),
    suffix("TiB", 1 << 40),
];

impl Amount {
    /// `units` without a suffix.
    #[must_use]
    pub fn plain(units: u64) -> Self {
        Amount { digits: units, decimals: 0, suffix: PLAIN }
    }

    /// Whole units or bytes, rounded down.
    #[must_use]
    pub fn value(&self) -> u64 {
        let (units, parts) = self.ratio();
        u64::try_from(units / u128::from(parts)).unwrap_or(u64::MAX)
    }

    /// Whether it was written in bytes.
    #[must_use]
    pub fn is_bytes(&self) -> bool {
        self.suffix.name.ends_with('B')
    }

    /// `10M` could be ten million lines, or ten megabytes as in other tools.
    pub(super) fn is_ambiguous(&self) -> bool {
        !self.suffix.name.is_empty() && !self.is_bytes()
    }

    /// Units over parts, in lowest terms.
    pub(super) fn ratio(&self) -> (u128, u64) {
        let units = u128::from(self.digits) * u128::from(self.suffix.times);
        let parts = 10_u128.pow(self.decimals.into());
        let divisor = gcd(units, parts);
        (units / divisor, u64::try_from(parts / divisor).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0width$}", self.digits, width = usize::from(self.decimals) + 1);
        let (whole, decimals) = digits.split_at(digits.len() - usize::from(self.decimals));
        let point = if decimals.is_empty() { "" } else { "." };
        f.pad(&format!("{whole}{point}{decimals}{}", self.suffix.name))
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amount({self})")
    }
}

impl std::str::FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::NoSize);
        }
        error::refuse_habits(Kind::Size, text)?;
        let amount = count(Kind::Size, text, text)?;
        let (units, parts) = amount.ratio();
        match (parts, u64::try_from(units)) {
            (1, Ok(_)) => Ok(amount),
            (1, Err(_)) => Err(ParseError::TooLarge(text.to_owned())),
            _ => Err(ParseError::NotWhole(text.to_owned())),
        }
    }
}

/// Parses a count: `whole`, or the part of it before the slash.
pub(super) fn count(kind: Kind, text: &str, whole: &str) -> Result<Amount, ParseError> {
    let (number, name) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    if number.is_empty() {
        return Err(error::no_count(kind, name, whole));
    }
    let (integer, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if integer.is_empty() || decimals.is_empty() || decimals.contains('.') {
        return Err(error::bad_number(kind, whole));
    }
    let suffix = SUFFIXES.into_iter().find(|suffix| suffix.name == name);
    let suffix = suffix.ok_or_else(|| error::unknown_suffix(kind, name, whole))?;
    if integer.len() > 1
        && integer.starts_with('0')
        && let Some(error) = error::leading_zero(kind, whole)
    {
        return Err(error);
    }
    let too_large = |_| ParseError::TooLarge(whole.to_owned());
    let (digits, decimals) = match number.split_once('.') {
        Some((integer, decimals)) => (format!("{integer}{decimals}"), decimals.len()),
        None => (number.to_owned(), 0),
    };
    // 64 bits hold at most 20 digits, so there are at most 20 decimals unless the number starts with zeros.
    let decimals = u8::try_from(decimals).ok().filter(|decimals| *decimals <= 18);
    let decimals = decimals.ok_or_else(|| ParseError::TooManyDecimals(whole.to_owned()))?;
    Ok(Amount { digits: digits.parse().map_err(too_large)?, decimals, suffix })
}

/// Parses the value of `burst` or `initial` for `rate`.
pub(super) fn size(key: &'static str, value: &str, rate: &Rate) -> Result<Amount, ParseError> {
    let amount: Amount = value.parse().map_err(|error| ParseError::InKey { key, error: Box::new(error) })?;
    if amount.is_bytes() && !rate.is_bytes() {
        return Err(ParseError::BytesBesideUnits { key, value: value.to_owned(), rate: rate.to_string() });
    }
    Ok(amount)
}
