//! The commands that run, if a bucket counts them: at most so many at once, of each key or of all.

use super::operation::Owner;
use crate::clock::Nanos;
use crate::limits::policy::Policy;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// Those that run, and those that will: each has a grant, and has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
pub(super) struct Jobs {
    running: Vec<Job>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(Serialize, Deserialize))]
struct Job {
    key: Box<[u8]>,
    owner: Owner,
    /// The number of its grant.
    number: u64,
    /// When its owner was last seen.
    seen: Nanos,
}

impl Jobs {
    /// How many of this key run.
    pub(super) fn of_key(&self, key: &[u8]) -> usize {
        self.running.iter().filter(|job| *job.key == *key).count()
    }

    /// How many run in all.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether one more of this key may run, beside so many more of it, and in all.
    pub(super) fn has_room(&self, policy: &Policy, key: &[u8], [more_of_key, more]: [usize; 2]) -> bool {
        let is_below = |running: usize, most: u32| (running as u64) < u64::from(most);
        let of_key = policy.of_keys().and_then(|keys| keys.jobs);
        policy.jobs().is_none_or(|most| is_below(self.len() + more, most.get()))
            && of_key.is_none_or(|most| is_below(self.of_key(key) + more_of_key, most.get()))
    }

    /// A command of this key runs, if `policy` counts that.
    pub(super) fn begin(&mut self, policy: &Policy, key: &[u8], owner: Owner, number: u64, now: Nanos) {
        if policy.counts_jobs() {
            self.running.push(Job { key: key.into(), owner, number, seen: now });
        }
    }

    /// The command with this grant has ended, or was never started.
    pub(super) fn end(&mut self, number: u64) {
        self.running.retain(|job| job.number != number);
    }

    /// The command with this grant is a process of its own.
    pub(super) fn hand_over(&mut self, number: u64, process: Owner) {
        self.running.iter_mut().filter(|job| job.number == number).for_each(|job| job.owner = process);
    }

    /// All ended whose owner was not seen after `seen`.
    pub(super) fn gone(&mut self, owner: Owner, seen: Nanos) {
        self.running.retain(|job| job.owner != owner || job.seen > seen);
    }

    /// The owner was seen.
    pub(super) fn see(&mut self, owner: Owner, now: Nanos) {
        self.running.iter_mut().filter(|job| job.owner == owner).for_each(|job| job.seen = now);
    }

    /// Whose commands run, and when each was last seen.
    pub(super) fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.running.iter().map(|job| (job.owner, job.seen))
    }
}
