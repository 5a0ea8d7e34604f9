//! Equal shares for the streams that take leases from a bucket at the same time.
//!
//! A stream far from a server has to lease more at once than a near stream, since it sends fewer requests. Without a
//! record of each stream's units, the distant stream would get most of the bucket. So the ledger keeps a virtual time
//! for each stream, in units, as start-time fair queueing does (Goyal, Vin and Cheng, 1996). A stream whose virtual
//! time is behind the others leases the difference. Beyond that it leases its part of the requested time.

use super::operation::Owner;
use crate::clock::{MILLISECOND, Nanos};
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How long a stream competes after the latest grant for which it had to wait.
const COMPETING_TTL: Nanos = 100 * MILLISECOND;

/// The most streams that are counted. The stream with the oldest latest grant is forgotten first.
pub(super) const MAX_SHARES: usize = 16;

/// The streams with recent leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Shares(VecDeque<Share>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Share {
    owner: Owner,
    /// The virtual time of the stream: the units that it was granted, and the units that it missed while it did not
    /// compete.
    time: u64,
    /// The time of its latest grant.
    latest: Nanos,
}

/// The share of a stream while others compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Its virtual time.
    time: u64,
    /// The units by which it is behind the other streams.
    pub(super) behind: u64,
    /// The number of other streams that compete.
    pub(super) others: usize,
}

impl Shares {
    /// The turn of this stream at `now`.
    pub(super) fn turn(&mut self, now: Nanos, owner: Owner) -> Turn {
        self.0.retain(|share| share.latest.saturating_add(COMPETING_TTL) >= now);
        let others = || self.0.iter().filter(|share| share.owner != owner).map(|share| share.time);
        let first = others().min().unwrap_or(0);
        let own = self.0.iter().find(|share| share.owner == owner).map_or(first, |share| share.time);
        Turn { time: own, behind: others().max().unwrap_or(0).saturating_sub(own), others: others().count() }
    }

    /// Records that the stream leased `units` in its turn, the last of them at the time `latest`. `latest` is `None` if
    /// the stream did not have to wait: then it does not compete.
    pub(super) fn leased(&mut self, owner: Owner, turn: Turn, units: u64, latest: Option<Nanos>) {
        self.0.retain(|share| share.owner != owner);
        let Some(latest) = latest else { return };
        if self.0.len() == MAX_SHARES {
            self.0.pop_front();
        }
        let place = self.0.partition_point(|share| share.latest <= latest);
        self.0.insert(place, Share { owner, time: turn.time.saturating_add(units), latest });
    }

    #[cfg(feature = "shared")]
    pub(super) fn has_sense(&self) -> bool {
        self.0.len() <= MAX_SHARES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_has_had_less_may_lease_what_it_lacks() {
        let (mut shares, [far, near, new, one]) = (Shares::default(), [1, 2, 3, 4].map(|number| [number; 2]));
        let lease = |shares: &mut Shares, now: Nanos, owner, units, latest| {
            let turn = shares.turn(now, owner);
            shares.leased(owner, turn, units, latest);
            (turn.behind, turn.others)
        };
        assert_eq!(lease(&mut shares, 0, far, 5, Some(40 * MILLISECOND)), (0, 0), "it is alone");
        assert_eq!(lease(&mut shares, 0, near, 1, Some(45 * MILLISECOND)), (0, 1), "it has missed nothing");
        assert_eq!(lease(&mut shares, 45 * MILLISECOND, far, 5, Some(70 * MILLISECOND)), (1, 1));
        assert_eq!(lease(&mut shares, 46 * MILLISECOND, near, 4, Some(95 * MILLISECOND)), (4, 1));
        assert_eq!(lease(&mut shares, 60 * MILLISECOND, one, 9, None), (0, 2), "it does not have to wait");
        assert_eq!(lease(&mut shares, 90 * MILLISECOND, new, 1, Some(100 * MILLISECOND)), (0, 2));
        let ended = "the far one has ended";
        assert_eq!(lease(&mut shares, 171 * MILLISECOND, near, 1, Some(180 * MILLISECOND)), (1, 1), "{ended}");
        assert_eq!(lease(&mut shares, 201 * MILLISECOND, near, 1, None), (0, 0));
        #[cfg(feature = "shared")]
        {
            let of =
                |count| Shares((0..count).map(|number| Share { owner: [number; 2], time: 0, latest: 0 }).collect());
            assert!(of(MAX_SHARES as u64).has_sense() && !of(MAX_SHARES as u64 + 1).has_sense());
        }
    }
}
