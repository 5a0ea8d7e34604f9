//! The units with keys that a supply has asked for.

use crate::clock::Nanos;
use crate::limits::{Grant, LOOK, Served, Take};
use std::collections::BTreeMap;

/// Units that were asked for. Each has a number of the caller's.
#[derive(Debug, Default)]
pub(in crate::store) struct Asked {
    /// Those that were granted and have not left, by time.
    pub(in crate::store) granted: BTreeMap<(Nanos, u64), (Grant, Take)>,
    /// Those for which the answer is on its way, and when it is expected.
    pub(in crate::store) sent: Vec<(u64, Take)>,
    pub(in crate::store) back_at: Nanos,
    /// Those whose grants are void, because they woke too late.
    pub(in crate::store) lost: Vec<u64>,
    /// What has succeeded of each key since the bucket was told.
    pub(in crate::store) served: BTreeMap<Box<[u8]>, Served>,
    /// When it was last seen whether grants have moved up.
    pub(in crate::store) looked: Nanos,
    /// The number of the latest known grant, to anybody, and until when others are expected to take from the bucket, too.
    pub(in crate::store) latest: Option<u64>,
    pub(in crate::store) others_until: Nanos,
}

impl Asked {
    /// The time of the next grant.
    pub(in crate::store) fn next_at(&self) -> Option<Nanos> {
        self.granted.keys().next().map(|(at, _)| *at)
    }

    /// The time of the last grant that waits for the limits of all, of which there are `of_all`.
    pub(in crate::store) fn waits_for_all_until(&self, of_all: usize) -> Nanos {
        let waits = |grant: &Grant| grant.bound_by.is_some_and(|limit| limit < of_all);
        let times = self.granted.iter().rev().filter(|(_, (grant, _))| waits(grant));
        times.map(|((at, _), _)| *at).next().unwrap_or(0)
    }

    /// The latest grant of the bucket has this number, and so many since the one before are ours.
    pub(in crate::store) fn look_for_others(&mut self, now: Nanos, latest: u64, ours: u64) {
        if self.latest.replace(latest).is_none_or(|before| before + ours != latest) {
            self.others_until = now.saturating_add(LOOK);
        }
    }
}
