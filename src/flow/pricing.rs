//! What units cost each of several limits.

use super::contract::{Price, Unpaid};
use super::cost::Cost;
use std::sync::Arc;

/// What a unit costs each limit.
#[derive(Clone, Debug)]
pub struct Pricing {
    /// One for each limit; `None`: each unit, or each command, takes 1.
    costs: Arc<[Option<Cost>]>,
    /// The first limit with a cost of its own.
    first: usize,
}

impl Pricing {
    /// One cost for each limit, in their order; `None` for 1. If no limit has a cost, there is nothing to reckon.
    #[must_use]
    pub fn new(costs: Vec<Option<Cost>>) -> Option<Self> {
        let first = costs.iter().position(Option::is_some)?;
        Some(Pricing { costs: costs.into(), first })
    }

    /// What `unit` costs, which is given without its delimiter. `None`: it is too large to be looked into.
    #[must_use]
    pub fn of(&self, unit: Option<&[u8]>) -> Price {
        let mut found: Vec<u64> = Vec::with_capacity(self.costs.len());
        for cost in &*self.costs {
            let known = self.costs.iter().take(found.len()).position(|other| other == cost);
            let price = match (known, cost, unit) {
                (Some(known), ..) => Some(found[known]),
                (None, None, _) => Some(1),
                (None, Some(cost), Some(unit)) => cost.of(unit),
                (None, Some(cost), None) => cost.unread(),
            };
            let Some(price) = price else { return Price::Unknown };
            found.push(price);
        }
        Price::Costs(found.into())
    }

    /// Adds what another unit of the same command costs to the price of those before it.
    pub fn add(&self, sum: &mut Price, unit: Option<&[u8]>) {
        *sum = match (std::mem::take(sum), self.of(unit)) {
            (Price::Usual, price) => price,
            (Price::Costs(mut sum), Price::Costs(more)) => {
                let counted = sum.iter_mut().zip(&more).zip(&*self.costs).filter(|(_, cost)| cost.is_some());
                counted.for_each(|((sum, more), _)| *sum = sum.saturating_add(*more));
                Price::Costs(sum)
            }
            _ => Price::Unknown,
        };
    }

    /// What the first limit that has a cost is charged.
    #[must_use]
    pub fn charged(&self, price: &Price) -> u64 {
        match price {
            Price::Usual => 1,
            Price::Costs(costs) => costs.get(self.first).copied().unwrap_or(0),
            Price::Unknown => 0,
        }
    }

    /// What a command that was charged `costs` cost each limit, if it really cost `real`.
    #[must_use]
    pub fn settled(&self, costs: &[u64], real: u64) -> Box<[u64]> {
        costs.iter().zip(&*self.costs).map(|(charged, cost)| if cost.is_some() { real } else { *charged }).collect()
    }

    /// Why `unit` gets no grant, and what to do. It is `None` if it is larger than a buffer of `most` bytes.
    #[must_use]
    pub fn why(&self, unit: Option<&[u8]>, most: usize, why: Unpaid) -> String {
        let unreadable = |cost: &&Cost| unit.map_or(cost.unread(), |unit| cost.of(unit)).is_none();
        let mut costs = self.costs.iter().flatten();
        match (why, unit, costs.find(|cost| why == Unpaid::TooMuch || unreadable(cost))) {
            (Unpaid::Unread, None, Some(cost)) => cost.too_large(most).to_string(),
            (Unpaid::Unread, _, Some(cost)) => {
                format!("its cost cannot be read by cost={cost}; add what such a unit costs, like cost={cost},else=100")
            }
            (_, _, Some(cost)) => {
                let price = self.charged(&self.of(unit));
                format!("it costs {price} by cost={cost}, {TOO_MUCH}")
            }
            (_, _, None) => "it has no cost".to_owned(),
        }
    }
}

/// Why a cost is not granted.
pub const TOO_MUCH: &str =
    "more than a window ever grants; a limit with a burst, like 200k/min,burst=200k, takes its time for it";
