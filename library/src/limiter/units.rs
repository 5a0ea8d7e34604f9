//! Amounts of units, as callers pass them.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

/// Parts in a unit: amounts have up to six decimals and are held as integers.
pub(crate) const PARTS: NonZeroU64 = NonZeroU64::new(1_000_000).expect("a million is not 0");

/// An amount of units, whole or with up to six decimals. The most is 2⁶⁴−1 millionths, about 18 million million units.
///
/// Integers and floats convert to it, so `acquire(3)` and `acquire(0.25)` both work. A float counts as the shortest
/// decimal that reads back as the same float: `0.1` is one tenth. A negative number, NaN, or a number with more than
/// six decimals is not a valid amount. The call that gets it returns the error.
///
/// A calculated float may have more than six decimals, like `0.1 + 0.2`. To round it, use [`nearest`](Self::nearest).
///
/// ```
/// use throttle_limits::limiter::Units;
/// assert_eq!(Units::from(0.25).to_string(), "0.25");
/// assert_eq!(Units::from(3).to_string(), "3");
/// assert!(Units::from(0.1 + 0.2).millionths().is_err());
/// assert_eq!(Units::nearest(0.1 + 0.2), Units::from(0.3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Units(Result<u64, UnitsError>);

/// Why a number is not a valid amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitsError {
    /// Below 0.
    #[doc(hidden)]
    Negative,
    /// NaN or infinite.
    #[doc(hidden)]
    NotFinite,
    /// More than six decimals.
    #[doc(hidden)]
    TooFine,
    /// More than 2⁶⁴−1 millionths.
    #[doc(hidden)]
    TooLarge,
    /// An amount that is not whole, for a bucket that processes share. Such a bucket counts whole units.
    #[doc(hidden)]
    NotWhole,
    /// The wrong number of costs. A limiter takes one cost, or one for each of the limiters that were
    /// [joined](super::Limiter::joint).
    #[doc(hidden)]
    WrongCount {
        /// The number of costs given.
        given: usize,
        /// The number of kinds.
        kinds: usize,
    },
}

messages! {
    UnitsError {
        UnitsError::Negative => ("an amount is negative; the least is 0"),
        UnitsError::NotFinite => ("an amount is not a finite number"),
        UnitsError::TooFine => (
            "an amount has more than six decimals; round it to six, for example with Units::nearest"
        ),
        UnitsError::TooLarge => ("an amount is too large; the most is 18446744073709"),
        UnitsError::NotWhole => ("an amount is not whole; a shared bucket counts whole units"),
        UnitsError::WrongCount { given, kinds } => (
            "the number of costs is {given}, but this limiter has {kinds} kinds of limits; give one cost for each kind"
        ),
    }
}

impl Units {
    /// Whole units. The most is 18446744073709; the call that gets more returns the error.
    #[must_use]
    pub const fn whole(units: u64) -> Self {
        match units.checked_mul(PARTS.get()) {
            Some(parts) => Units(Ok(parts)),
            None => Units(Err(UnitsError::TooLarge)),
        }
    }

    /// Millionths of a unit, which is how amounts are stored.
    #[must_use]
    pub const fn from_millionths(millionths: u64) -> Self {
        Units(Ok(millionths))
    }

    pub(super) const fn invalid(error: UnitsError) -> Self {
        Units(Err(error))
    }

    /// The nearest amount with six decimals. If two amounts are equally near, it is the larger one. A negative number
    /// is not rounded to 0: it is not valid.
    #[must_use]
    pub fn nearest(units: f64) -> Self {
        Units::of_float(units, true)
    }

    /// The amount in millionths of a unit, exact.
    ///
    /// # Errors
    /// [`UnitsError`] if it is not a valid amount.
    pub const fn millionths(self) -> Result<u64, UnitsError> {
        self.0
    }

    /// Rust prints the shortest decimal that reads back as the same float, without an exponent.
    fn of_float(units: impl Into<f64> + ToString, is_rounded: bool) -> Self {
        let text = units.to_string();
        if units.into().is_finite() { Units(parse(&text, is_rounded)) } else { Units(Err(UnitsError::NotFinite)) }
    }
}

macro_rules! from_integer {
    ($otherwise:ident: $($integer:ty)*) => {$(
        impl From<$integer> for Units {
            #[inline]
            fn from(units: $integer) -> Self {
                u64::try_from(units).map_or(Units(Err(UnitsError::$otherwise)), Units::whole)
            }
        }
    )*};
}

from_integer!(TooLarge: u8 u16 u32 u64 usize);
from_integer!(Negative: i32 i64 isize);

macro_rules! from_nonzero {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Units {
            #[inline]
            fn from(units: $integer) -> Self {
                Units::from(units.get())
            }
        }
    )*};
}

from_nonzero!(NonZeroU32 NonZeroU64 NonZeroUsize);

macro_rules! from_float {
    ($($float:ty)*) => {$(
        impl From<$float> for Units {
            fn from(units: $float) -> Self {
                Units::of_float(units, false)
            }
        }
    )*};
}

from_float!(f32 f64);

/// Parses the text that a finite float prints. Decimals after the sixth are refused, unless the amount `is_rounded`.
fn parse(text: &str, is_rounded: bool) -> Result<u64, UnitsError> {
    let (integer, decimals) = text.split_once('.').unwrap_or((text, ""));
    if let Some(integer) = integer.strip_prefix('-') {
        let zero = integer.bytes().chain(decimals.bytes()).all(|digit| digit == b'0');
        return if zero { Ok(0) } else { Err(UnitsError::Negative) };
    }
    let (decimals, finer) = decimals.split_at(decimals.len().min(6));
    let parts: u64 = format!("{integer}{decimals:0<6}").parse().map_err(|_| UnitsError::TooLarge)?;
    // The shortest decimal does not end with a 0, so the digits after the sixth are not all 0.
    if !finer.is_empty() && !is_rounded {
        return Err(UnitsError::TooFine);
    }
    parts.checked_add(u64::from(finer >= "5")).ok_or(UnitsError::TooLarge)
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Units({self})")
    }
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
            assert_eq!(units.millionths(), expected, "{units}");
        }
    }

    #[test]
    fn amounts_are_rounded_on_request_only() {
        for (units, nearest) in [
            (0.1 + 0.2, 300_000),
            (0.3, 300_000),
            (0.000_000_5, 1),
            (0.000_000_499, 0),
            (1.0 / 3.0, 333_333),
            (2.0 / 3.0, 666_667),
            (0.999_999_9, 1_000_000),
            (5e-324, 0),
            (7.0, 7_000_000),
            (-0.0, 0),
        ] {
            assert_eq!(Units::nearest(units).millionths(), Ok(nearest), "{units}");
        }
        for (units, error) in [
            (-0.000_000_1, UnitsError::Negative),
            (f64::NAN, UnitsError::NotFinite),
            (f64::NEG_INFINITY, UnitsError::NotFinite),
            (1e300, UnitsError::TooLarge),
        ] {
            assert_eq!(Units::nearest(units).millionths(), Err(error), "{units}");
        }
        assert_eq!(parse("18446744073709.5516154", true), Ok(u64::MAX));
        assert_eq!(parse("18446744073709.5516155", true), Err(UnitsError::TooLarge));
    }

    #[test]
    fn amounts_convert_to_units_millionths_and_floats() {
        const COST: Units = Units::whole(3);
        assert_eq!(COST, Units::from(3));
        let units = Units::from_millionths(2_750_000);
        assert_eq!((units, units.millionths()), (2.75.into(), Ok(2_750_000)));
        assert_eq!([Units::from(12), Units::from(1.000_001)].map(|units| units.to_string()), ["12", "1.000001"]);
        assert_eq!(Units::whole(u64::MAX).millionths(), Err(UnitsError::TooLarge));
        assert_eq!(
            format!("{units:?} {:?}", Units::from(-1)),
            "Units(2.75) Units((an amount is negative; the least is 0))"
        );
    }
}
