//! What a request costs, as callers pass it.

use super::units::{Units, UnitsError};
use crate::limits::Cost;
use std::fmt;

/// What a request costs: an amount, or several, one for each kind of cost that a [joint](super::Limiter::joint) limiter
/// counts. A kind beyond them costs what the last of them says.
#[derive(Clone, PartialEq, Eq)]
pub struct Costs(Result<Cost, UnitsError>);

/// What can be passed as costs: `acquire(3)`, `acquire(0.25)`, and `acquire([1, 4000])` for several kinds.
pub trait IntoCosts {
    /// The costs. A number that is not a valid amount is an error of the call that gets it.
    fn into_costs(self) -> Costs;
}

impl Costs {
    /// The cost of a kind, the first one 0. If an amount was not valid, each cost is that.
    #[must_use]
    pub fn of(&self, kind: usize) -> Units {
        match &self.0 {
            Ok(cost) => Units::from_millionths(cost.of(kind)),
            Err(error) => Units::invalid(*error),
        }
    }

    /// In parts of units.
    ///
    /// # Errors
    /// If an amount is not valid.
    #[inline]
    pub(super) fn parts(self) -> Result<Cost, UnitsError> {
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
        let parts: Result<Vec<u64>, _> = self.into_iter().map(|units| units.into().millionths()).collect();
        Costs(parts.map(|parts| Cost::Several(parts.into())))
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

one_cost!(Units u8 u16 u32 u64 usize i32 i64 isize f32 f64);

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
