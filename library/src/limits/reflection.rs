//! The real cost of a grant becomes known later. It is *settled* then: a bucket is as if the grant had cost that from
//! the start. Grants in between keep their times.
//!
//! Let X be the credit that a bucket would hold if nothing were ever cut off. At certain times, the bucket cuts off the
//! credit above a bound: its burst, the cost of a waiter that gathers more, or 0 at the end of a pause. The level is
//! X − L, where L = max(0, sup (X − bound)) is the credit that was cut off so far: X is *reflected* at the bound. If a
//! grant turns out to cost d more, X falls by d from that grant on, and L becomes max(M0, M1 − d). M0 is the supremum
//! before the grant, and M1 the supremum since. [`Opened`] stores these suprema for each span between two open grants.
//! A window needs none of this, because the entry of the grant in its log is changed.
//!
//! The bounds depend on times and costs, not on the level, with three exceptions. There the bucket keeps the bound that
//! it had, so it may have less than after a complete recalculation, never more:
//! - A request above the burst, or a request that takes the rest of a refill, gathered exactly what it cost.
//! - A grant was charged before its limits conformed, which can happen to a reservation after the rate was lowered. It
//!   left its bucket empty instead of in debt. Credits of earlier grants end there.
//! - Units were credited while the bucket held more than a full bucket does. They were lost.
//!
//! A new rate converts the suprema to its credits. That rounds a later settlement by less than a credit for each grant.

#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most open grants of one bucket. Beyond that the oldest is closed. It is then settled like a grant that was never
/// opened.
pub(crate) const MAX_OPEN: usize = 1024;

/// The data for settling, while a bucket has open grants: grants whose cost may change. X is the amount of the level
/// and `lost` together.
///
/// Invariant: `lost` is the maximum of `before` and of all peaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(crate) struct Opened {
    /// The credit that was cut off since the first grant was opened, plus `before` at that time, which is 0.
    lost: i128,
    /// The supremum of X − bound before the first open grant.
    before: i128,
    /// The open grants in the order of their charges.
    blocks: VecDeque<Block>,
}

/// The time from one open grant to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Block {
    /// The number of the grant.
    number: u64,
    /// The supremum of X − bound in this time.
    peak: i128,
    /// X just before the grant was charged, minus a full bucket; `NOTHING` if another cost would have cut off nothing.
    excess: i128,
    /// The burst at that time, in units.
    burst: u64,
}

/// The supremum of no differences.
pub(super) const NOTHING: i128 = i128::MIN;

impl Opened {
    /// The credit that was cut off.
    pub(super) fn lost(&self) -> i128 {
        self.lost
    }

    /// Whether no grant is open.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Records that a bound left `amount`, and cut off `lost`.
    pub(super) fn note(&mut self, amount: i128, bound: i128, lost: i128) {
        self.lost = self.lost.saturating_add(lost);
        let peak = amount.saturating_add(self.lost).saturating_sub(bound);
        let latest = self.peak_before(self.blocks.len());
        *latest = peak.max(*latest);
    }

    /// Opens the latest charge; see [`Block`].
    pub(super) fn open(&mut self, number: u64, excess: i128, burst: u64) {
        self.blocks.push_back(Block { number, peak: NOTHING, excess, burst });
        if self.blocks.len() > MAX_OPEN {
            self.close_at(0);
        }
    }

    /// Closes the grant with this number: its cost is final.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(place) = self.find(number) {
            self.close_at(place);
        }
    }

    fn close_at(&mut self, place: usize) {
        if let Some(block) = self.blocks.remove(place) {
            let before = self.peak_before(place);
            *before = block.peak.max(*before);
        }
    }

    /// Settles an open grant that cost `more` credits more than it was charged. Returns how far the level falls. `None`
    /// if the grant is not open.
    ///
    /// If the charge was too high or 0, `gathers` returns what the request could have gathered above a full bucket of a
    /// burst with the real cost. The rest would have been cut off.
    pub(super) fn settle(
        &mut self,
        number: u64,
        more: i128,
        gathers: Option<impl FnOnce(u64) -> i128>,
    ) -> Option<i128> {
        let place = self.find(number)?;
        if let (Some(gathers), Block { excess, burst, .. }) = (gathers, self.blocks[place]) {
            let before = self.peak_before(place);
            *before = excess.saturating_sub(gathers(burst)).max(*before);
        }
        for (further, block) in self.blocks.range_mut(place..).enumerate() {
            block.peak = block.peak.saturating_sub(more);
            block.excess = block.excess.saturating_sub(if further > 0 { more } else { 0 });
        }
        let before = self.lost;
        self.lost = self.greatest();
        Some(more.saturating_add(self.lost).saturating_sub(before))
    }

    /// Converts all credits, for a new rate.
    pub(super) fn convert(&mut self, scaled: impl Fn(i128) -> i128) {
        (self.lost, self.before) = (scaled(self.lost), scaled(self.before));
        for block in &mut self.blocks {
            (block.peak, block.excess) = (scaled(block.peak), scaled(block.excess));
        }
    }

    /// Whether the invariant holds, for data that was read.
    pub(super) fn has_sense(&self) -> bool {
        (1..=MAX_OPEN).contains(&self.blocks.len()) && self.lost == self.greatest()
    }

    fn greatest(&self) -> i128 {
        self.blocks.iter().map(|block| block.peak).fold(self.before, i128::max)
    }

    fn peak_before(&mut self, place: usize) -> &mut i128 {
        match place.checked_sub(1) {
            Some(before) => &mut self.blocks[before].peak,
            None => &mut self.before,
        }
    }

    /// Numbers increase, except where a bucket of many keys has granted something ahead of time.
    fn find(&self, number: u64) -> Option<usize> {
        let in_order = self.blocks.binary_search_by_key(&number, |block| block.number).ok();
        in_order.or_else(|| self.blocks.iter().position(|block| block.number == number))
    }
}

#[cfg(test)]
mod tests;
