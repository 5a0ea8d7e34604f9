//! The units with keys that a supply has requested.

use crate::clock::Nanos;
use crate::limits::{Grant, LOOK, Served, Take};
use std::collections::BTreeMap;

/// Requested units. Each has a number chosen by the caller.
#[derive(Debug, Default)]
pub(super) struct Requested {
    /// Granted units that have not left, by time.
    pub(super) granted: BTreeMap<(Nanos, u64), (Grant, Take)>,
    /// Units whose answers are under way; `back_at` is when the answers are expected.
    pub(super) sent: Vec<(u64, Take)>,
    pub(super) back_at: Nanos,
    /// Units whose grants are void, because this process woke too late or the bucket took them back.
    pub(super) lost: Vec<u64>,
    /// Successes of each key since the last request for it.
    pub(super) served: BTreeMap<Box<[u8]>, Served>,
    /// When grant times were last updated.
    pub(super) updated_at: Nanos,
    /// The number of the latest known grant, to any process. Until `others_until`, other processes are expected to take
    /// from the bucket.
    pub(super) latest: Option<u64>,
    pub(super) others_until: Nanos,
}

impl Requested {
    /// When to poll for an earlier time of the next grant, if its wait is long.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        let (grant, take) = self.granted.values().next()?;
        grant.next_look(self.updated_at, take.open)
    }

    /// The time of the next grant.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.granted.keys().next().map(|(at, _)| *at)
    }

    /// The time of the last grant that waits for the overall limits. `of_all` is the number of these limits.
    pub(super) fn waits_for_all_until(&self, of_all: usize) -> Nanos {
        let waits = |grant: &Grant| grant.bound_by.is_some_and(|limit| limit < of_all);
        let times = self.granted.iter().rev().filter(|(_, (grant, _))| waits(grant));
        times.map(|((at, _), _)| *at).next().unwrap_or(0)
    }

    /// Detects other processes by the number `latest` of the bucket's latest grant. Since the previous call, `ours`
    /// grants were made to this process.
    pub(super) fn detect_others(&mut self, now: Nanos, latest: u64, ours: u64) {
        if self.latest.replace(latest).is_none_or(|before| before + ours != latest) {
            self.others_until = now.saturating_add(LOOK);
        }
    }
}
