//! Counts and sizes: `5`, `0.5`, `5k`, `1.5GB`, `64KiB`.

use std::fmt;

/// A number of units or bytes as written, exact. As text it must be a whole number after its suffix is applied: `5`,
/// `10k`, `1.5KiB`.
///
/// ```
/// let size: throttle_limits::rate::Amount = "1.5KiB".parse()?;
/// assert_eq!(size.value(), 1536);
/// # Ok::<(), throttle_limits::rate::ParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// All digits, without the point.
    pub(super) digits: u64,
    /// The number of digits after the point.
    pub(super) decimals: u8,
    pub(super) suffix: &'static str,
}

/// Decimal suffixes first, then bytes. Upper and lower case differ.
pub(super) const SUFFIXES: [&str; 13] = ["", "k", "M", "G", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"];

/// The suffixes for bytes.
pub(super) const BYTES: &[&str] = SUFFIXES.split_at(4).1;

/// The factor for a number before this suffix.
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
    #[doc(hidden)]
    #[must_use]
    pub fn is_bytes(&self) -> bool {
        self.suffix.ends_with('B')
    }

    /// Whether it was written in binary units of bytes, such as `KiB`.
    pub(super) fn is_binary(&self) -> bool {
        self.suffix.ends_with("iB")
    }

    /// Whether the suffix is ambiguous: `10M` could be ten million lines, or ten megabytes as in other tools.
    pub(super) fn is_ambiguous(&self) -> bool {
        !self.suffix.is_empty() && !self.is_bytes()
    }

    /// The number of units as a fraction in lowest terms.
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

/// The greatest common divisor.
pub(crate) const fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
