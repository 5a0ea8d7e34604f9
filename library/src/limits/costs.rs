//! The costs of a request.

use std::sync::Arc;

/// Costs, one for each kind that the limits count. A kind beyond the end of the list has the last cost, so one number
/// is the cost of every kind.
pub trait CostList: Copy {
    /// The costs as a list.
    fn list(&self) -> &[u64];

    /// The cost of this kind.
    #[inline]
    fn of(&self, kind: usize) -> u64 {
        let list = self.list();
        list.get(kind).or(list.last()).copied().unwrap_or(0)
    }

    /// The largest cost; 0 if nothing is charged.
    fn largest(&self) -> u64 {
        self.list().iter().copied().max().unwrap_or(0)
    }
}

/// The cost of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    One(u64),
    Several(Arc<[u64]>),
}

impl Cost {
    /// The excess over `other`, in each kind.
    pub(crate) fn beyond(&self, other: &Cost) -> Cost {
        if let (Cost::One(cost), Cost::One(other)) = (self, other) {
            return Cost::One(cost.saturating_sub(*other));
        }
        let kinds = 0..self.list().len().max(other.list().len());
        Cost::Several(kinds.map(|kind| self.of(kind).saturating_sub(other.of(kind))).collect())
    }

    pub(crate) fn list(&self) -> &[u64] {
        match self {
            Cost::One(cost) => std::slice::from_ref(cost),
            Cost::Several(costs) => costs,
        }
    }

    pub(crate) fn of(&self, kind: usize) -> u64 {
        CostList::of(&self, kind)
    }

    pub(crate) fn largest(&self) -> u64 {
        CostList::largest(&self)
    }
}

impl CostList for u64 {
    #[inline]
    fn list(&self) -> &[u64] {
        std::slice::from_ref(self)
    }
}

impl CostList for &[u64] {
    fn list(&self) -> &[u64] {
        self
    }
}

impl CostList for &Box<[u64]> {
    fn list(&self) -> &[u64] {
        self
    }
}

impl CostList for &Cost {
    #[inline]
    fn list(&self) -> &[u64] {
        Cost::list(self)
    }
}
