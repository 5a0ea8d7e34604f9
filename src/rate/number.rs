//! Counts and sizes: `5`, `0.5`, `5k`, `1.5GB`, `64KiB`.

use super::error::{self, ParseError};
use super::gcd;
use super::meant::Kind;
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
    /// How many of them stand after the point.
    decimals: u8,
    suffix: &'static str,
}

/// Decimal suffixes first, then bytes. Upper and lower case differ.
pub(super) const SUFFIXES: [&str; 13] = ["", "k", "M", "G", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"];

/// Those for bytes.
pub(super) const BYTES: &[&str] = SUFFIXES.split_at(4).1;

/// What a number before this suffix is multiplied by.
fn factor(suffix: &str) -> u128 {
    let power = match suffix.as_bytes() {
        [b'k' | b'K', ..] => 1,
        [b'M', ..] => 2,
        [b'G', ..] => 3,
        [b'T', ..] => 4,
        _ => 0,
    };
    if suffix.contains('i') { 1 << (10 * power) } else { 1000_u128.pow(power) }
}

/// `digits` with a point before the last `decimals` of them.
pub(super) fn with_point(digits: u128, decimals: usize) -> String {
    let mut text = format!("{digits:0width$}", width = decimals + 1);
    if decimals > 0 {
        text.insert(text.len() - decimals, '.');
    }
    text
}

impl Amount {
    /// `units` without a suffix.
    #[must_use]
    pub fn plain(units: u64) -> Self {
        Amount { digits: units, decimals: 0, suffix: "" }
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
        self.suffix.ends_with('B')
    }

    /// `10M` could be ten million lines, or ten megabytes as in other tools.
    pub(super) fn is_ambiguous(&self) -> bool {
        !self.suffix.is_empty() && !self.is_bytes()
    }

    /// Units over parts, in lowest terms.
    pub(super) fn ratio(&self) -> (u128, u64) {
        let units = u128::from(self.digits) * factor(self.suffix);
        let parts = 10_u128.pow(self.decimals.into());
        let divisor = gcd(units, parts);
        (units / divisor, u64::try_from(parts / divisor).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&(with_point(self.digits.into(), self.decimals.into()) + self.suffix))
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
    let (integer, decimals) = number.split_once('.').unwrap_or((number, ""));
    if integer.is_empty() || number.ends_with('.') || decimals.contains('.') {
        return Err(error::bad_number(kind, whole));
    }
    let suffix = SUFFIXES.into_iter().find(|suffix| *suffix == name);
    let suffix = suffix.ok_or_else(|| error::unknown_suffix(kind, name, whole))?;
    if integer.len() > 1
        && integer.starts_with('0')
        && let Some(error) = error::leading_zero(kind, whole)
    {
        return Err(error);
    }
    // 64 bits hold at most 20 digits, so there are at most 20 decimals unless the number starts with zeros.
    let places = u8::try_from(decimals.len()).ok().filter(|places| *places <= 18);
    let places = places.ok_or_else(|| ParseError::TooManyDecimals(whole.to_owned()))?;
    let digits = format!("{integer}{decimals}").parse().map_err(|_| ParseError::TooLarge(whole.to_owned()))?;
    Ok(Amount { digits, decimals: places, suffix })
}
