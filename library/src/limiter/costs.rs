//! The costs of a request, as callers pass them.

use super::units::{Units, UnitsError};
use crate::limits::Cost;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

/// The cost of a request: one amount, or one for each kind of cost that a [joint](super::Limiter::joint) limiter
/// counts. Any other number of amounts is an error, a [`UnitsError`].
#[derive(Clone, PartialEq, Eq)]
pub struct Costs(Result<Cost, UnitsError>);

/// Values that can be passed as costs: `acquire(3)`, `acquire(0.25)`, and `acquire([1, 4000])` for several kinds.
pub trait IntoCosts {
    /// Converts the value. A number that is not a valid amount is an error of the call that receives it.
    fn into_costs(self) -> Costs;
}

impl Costs {
    /// One amount for each kind of cost, for a number of kinds that is known only at run time.
    ///
    /// ```
    /// use throttle_limits::limiter::{Costs, Limiter};
    /// # use std::time::Duration;
    /// let each = |rate: u32| Limiter::builder().rate(rate, Duration::from_secs(1));
    /// let limiter = Limiter::joint([each(5), each(1000)])?;
    /// limiter.try_acquire(Costs::from_slice(&[1, 200]))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn from_slice<U: Into<Units> + Copy>(amounts: &[U]) -> Self {
        let parts: Result<Vec<u64>, _> = amounts.iter().map(|units| (*units).into().millionths()).collect();
        Costs(parts.map(|parts| match parts[..] {
            [cost] => Cost::One(cost),
            _ => Cost::Several(parts.into()),
        }))
    }

    /// The cost of a kind; the first kind is 0. If an amount was not valid, the returned amount is not valid either.
    #[must_use]
    pub fn of(&self, kind: usize) -> Units {
        match &self.0 {
            Ok(cost) => Units::from_millionths(cost.of(kind)),
            Err(error) => Units::invalid(*error),
        }
    }

    /// The costs in parts of units.
    ///
    /// # Errors
    /// If an amount is not valid.
    #[inline]
    pub(crate) fn parts(self) -> Result<Cost, UnitsError> {
        self.0
    }

    pub(super) fn invalid(error: UnitsError) -> Self {
        Costs(Err(error))
    }

    pub(super) fn of_parts(cost: Cost) -> Self {
        Costs(Ok(cost))
    }
}

impl IntoCosts for Costs {
    fn into_costs(self) -> Costs {
        self
    }
}

impl<U: Into<Units>, const KINDS: usize> IntoCosts for [U; KINDS] {
    fn into_costs(self) -> Costs {
        Costs::from_slice(&self.map(Into::into))
    }
}

macro_rules! one_cost {
    ($($amount:ty)*) => {$(
        impl IntoCosts for $amount {
            #[inline]
            fn into_costs(self) -> Costs {
                Costs(Units::from(self).millionths().map(Cost::One))
            }
        }
    )*};
}

one_cost!(Units u8 u16 u32 u64 usize i32 i64 isize f32 f64 NonZeroU32 NonZeroU64 NonZeroUsize);

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(Cost::Several(costs)) => {
                f.debug_list().entries(costs.iter().map(|cost| Units::from_millionths(*cost))).finish()
            }
            _ => self.of(0).fmt(f),
        }
    }
}
