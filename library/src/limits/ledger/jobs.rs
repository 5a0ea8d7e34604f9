//! The running commands, if a bucket counts them: it limits their number for each key and overall.

use super::operation::Owner;
use crate::clock::Nanos;
use crate::limits::policy::Policy;
#[cfg(feature = "shared")]
use serde::{Deserialize, Serialize};

/// The commands that run or will run: each has a grant and has not ended.
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
    /// When its owner last sent an operation.
    last_seen: Nanos,
}

impl Jobs {
    /// The number of running commands of this key.
    pub(super) fn of_key(&self, key: &[u8]) -> usize {
        self.running.iter().filter(|job| *job.key == *key).count()
    }

    /// The number of all running commands.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether one more command of this key may run, if `more_of_key` further commands of the key and `more` further
    /// commands overall are also counted.
    pub(super) fn has_room(&self, policy: &Policy, key: &[u8], [more_of_key, more]: [usize; 2]) -> bool {
        let is_below = |running: usize, most: u32| (running as u64) < u64::from(most);
        let of_key = policy.of_keys().and_then(|keys| keys.jobs);
        policy.jobs().is_none_or(|most| is_below(self.len() + more, most.get()))
            && of_key.is_none_or(|most| is_below(self.of_key(key) + more_of_key, most.get()))
    }

    /// Records the start of a command of this key, if `policy` counts running commands.
    pub(super) fn begin(&mut self, policy: &Policy, key: &[u8], owner: Owner, number: u64, now: Nanos) {
        if policy.counts_jobs() {
            self.running.push(Job { key: key.into(), owner, number, last_seen: now });
        }
    }

    /// Records that the command with this grant has ended, or was never started.
    pub(super) fn end(&mut self, number: u64) {
        self.running.retain(|job| job.number != number);
    }

    /// Records that the command with this grant now belongs to a separate process, `process`.
    pub(super) fn hand_over(&mut self, number: u64, process: Owner) {
        self.running.iter_mut().filter(|job| job.number == number).for_each(|job| job.owner = process);
    }

    /// Removes all commands of `owner` unless it sent an operation after `last_seen`.
    pub(super) fn gone(&mut self, owner: Owner, last_seen: Nanos) {
        self.running.retain(|job| job.owner != owner || job.last_seen > last_seen);
    }

    /// Records an operation of the owner.
    pub(super) fn see(&mut self, owner: Owner, now: Nanos) {
        self.running.iter_mut().filter(|job| job.owner == owner).for_each(|job| job.last_seen = now);
    }

    /// The owners of running commands, and the time of the latest operation of each.
    pub(super) fn owners(&self) -> impl Iterator<Item = (Owner, Nanos)> {
        self.running.iter().map(|job| (job.owner, job.last_seen))
    }
}
