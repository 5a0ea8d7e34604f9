//! Amounts as callers give them.

use std::fmt;
use std::num::NonZeroU64;
use thiserror::Error;

/// Parts in a unit: amounts have up to six decimals and are held as integers.
pub(crate) const PARTS: NonZeroU64 = NonZeroU64::new(1_000_000).expect("a million is not 0");

/// An amount of units, whole or with up to six decimals. At most 2⁶⁴−1 millionths: eighteen million million units.
///
/// Integers and floats convert to it, so that `acquire(3)` and `acquire(0.25)` both do. A float counts as the shortest
/// decimal that prints it: `0.1` is one tenth. What is no amount — less than nothing, not a number, too fine — is
/// refused by the call that it is given to.
///
/// ```
/// use throttle::limiter::Units;
/// assert_eq!(Units::from(0.25).to_string(), "0.25");
/// assert_eq!(Units::from(3).to_string(), "3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units(Result<u64, UnitsError>);

/// Why something is no amount of units.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitsError {
    /// Less than nothing.
    #[error("an amount is negative; the least is 0")]
    Negative,
    /// NaN or infinite.
    #[error("an amount is not a finite number")]
    NotFinite,
    /// More than six decimals.
    #[error("an amount has more than six decimals; the finest is 0.000001")]
    TooFine,
    /// More than 2⁶⁴−1 millionths.
    #[error("an amount is above 18446744073709, the most there can be")]
    TooLarge,
}

impl Units {
    /// In millionths.
    pub(crate) fn parts(self) -> Result<u64, UnitsError> {
        self.0
    }

    pub(crate) fn from_parts(parts: u64) -> Self {
        Units(Ok(parts))
    }

    fn whole(units: u64) -> Self {
        Units(units.checked_mul(PARTS.get()).ok_or(UnitsError::TooLarge))
    }
}

macro_rules! from_unsigned {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Units {
            #[inline]
            fn from(units: $integer) -> Self {
                u64::try_from(units).map_or(Units(Err(UnitsError::TooLarge)), Units::whole)
            }
        }
    )*};
}

from_unsigned!(u8 u16 u32 u64 usize);

macro_rules! from_signed {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Units {
            #[inline]
            fn from(units: $integer) -> Self {
                u64::try_from(units).map_or(Units(Err(UnitsError::Negative)), Units::whole)
            }
        }
    )*};
}

from_signed!(i32 i64 isize);

macro_rules! from_float {
    ($($float:ty)*) => {$(
        impl From<$float> for Units {
            fn from(units: $float) -> Self {
                if !units.is_finite() {
                    return Units(Err(UnitsError::NotFinite));
                }
                // Rust prints the shortest decimal that reads back as the same float, without an exponent.
                Units(parse(&units.to_string()))
            }
        }
    )*};
}

from_float!(f32 f64);

/// Reads what a finite float prints as.
fn parse(text: &str) -> Result<u64, UnitsError> {
    let (integer, decimals) = text.split_once('.').unwrap_or((text, ""));
    if let Some(integer) = integer.strip_prefix('-') {
        let zero = integer.bytes().chain(decimals.bytes()).all(|digit| digit == b'0');
        return if zero { Ok(0) } else { Err(UnitsError::Negative) };
    }
    if decimals.len() > 6 {
        return Err(UnitsError::TooFine);
    }
    format!("{integer}{decimals:0<6}").parse().map_err(|_| UnitsError::TooLarge)
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = match self.0 {
            Ok(parts) => parts,
            Err(error) => return write!(f, "({error})"),
        };
        let (units, rest) = (parts / PARTS, parts % PARTS);
        match rest {
            0 => write!(f, "{units}"),
            _ => write!(f, "{units}.{}", format!("{rest:06}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_decimals() {
        for (units, expected) in [
            (Units::from(3), Ok(3_000_000)),
            (Units::from(0), Ok(0)),
            (Units::from(-0.0), Ok(0)),
            (Units::from(0.1 + 0.2), Err(UnitsError::TooFine)),
            (Units::from(0.3), Ok(300_000)),
            (Units::from(0.1_f32), Ok(100_000)),
            (Units::from(0.000_001), Ok(1)),
            (Units::from(0.000_000_1), Err(UnitsError::TooFine)),
            (Units::from(-1), Err(UnitsError::Negative)),
            (Units::from(-0.25), Err(UnitsError::Negative)),
            (Units::from(f64::NAN), Err(UnitsError::NotFinite)),
            (Units::from(f64::INFINITY), Err(UnitsError::NotFinite)),
            (Units::from(1e300), Err(UnitsError::TooLarge)),
            (Units::from(u64::MAX), Err(UnitsError::TooLarge)),
            (Units::from(18_446_744_073_709_u64), Ok(18_446_744_073_709_000_000)),
        ] {
            assert_eq!(units.parts(), expected, "{units}");
        }
    }

    #[test]
    fn amounts_print_as_short_decimals() {
        for (units, expected) in
            [(Units::from(12), "12"), (Units::from(0.25), "0.25"), (Units::from(1.000_001), "1.000001")]
        {
            assert_eq!(units.to_string(), expected);
        }
    }
}
