//! Stores: where the state of the limits lives, and on which clock.

use crate::clock::{Clock, Nanos};
use crate::limits::{Ask, Disagreement, Grant, Limits, Policy, Refusal};
use crate::rate::{Amount, Limit};
use std::fmt::Debug;
use thiserror::Error;

#[cfg(feature = "cli")]
mod file;
mod lease;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod supply;

#[cfg(feature = "cli")]
pub use file::{File, FileError, Machine, Place};
pub use lease::Lease;
pub use memory::Memory;
#[cfg(feature = "redis")]
pub use redis::{Address, AddressError, Patience, Redis, RedisError, Trouble};
pub use supply::Supply;

/// A place where limits live. Every question is answered atomically, and nobody sleeps while others wait for an answer.
///
/// Times are of the store's own [clock](Self::clock). Whoever is granted something sleeps by themselves. A stream of units
/// draws from a [`Supply`], which takes leases.
pub trait Store: Debug {
    /// The clock that grants are times of.
    fn clock(&self) -> &dyn Clock;

    /// Where the limits are, for messages.
    fn place(&self) -> String;

    /// What was asked for, as it was when last looked at.
    fn policy(&self) -> Policy;

    /// Reserves `cost` units, if they are granted by `latest` or without a wait. Also says when it was asked.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn take(&self, cost: u64, latest: Nanos) -> Result<(Grant, Nanos), StoreError>;

    /// Gives back a grant that is not used; see [`Limits::give_back`].
    ///
    /// # Errors
    /// [`StoreError`]; nothing is given back then.
    fn give_back(&self, grant: &Grant) -> Result<(), StoreError>;

    /// Grants nothing to anybody before `time`; see [`Limits::hold_until`].
    ///
    /// # Errors
    /// [`StoreError`]; nothing is held then.
    fn hold_until(&self, time: Nanos) -> Result<(), StoreError>;

    /// Changes the limits for everyone, at their next question. What has been saved or counted is kept in limits that stand
    /// in the same place and are of the same kind, but for the places in `fresh`, which begin anew.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError>;

    /// Everything, as it is now.
    ///
    /// # Errors
    /// [`StoreError`].
    fn view(&self) -> Result<View, StoreError>;

    /// Units that conform now, as far as is known without asking others.
    fn available(&self) -> u64;

    /// The time by which `units` more will have been granted to someone who always asks, as far as is known without asking
    /// others; see [`Limits::schedule`].
    fn schedule(&self, units: u64) -> Option<Nanos>;

    /// The run below which it is not worth waking up; see [`Limits::quantum`].
    fn quantum(&self) -> u64;

    /// What a lease covers, in nanoseconds. 0 is one run: a store that is nobody else's is asked again at once.
    fn span(&self) -> Nanos;

    /// Adds a lease to `lease`: consecutive reservations, each to leave at its own time. Also says when it was asked.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn lease(&self, ask: &Ask, lease: &mut Lease) -> Result<Nanos, StoreError>;

    /// Gives back what is left in `lease`, and what is still on its way; see [`Limits::give_back`]. If nobody was granted
    /// anything since, it is as if nothing but what was used had been asked for.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is given back then.
    fn return_lease(&self, lease: &mut Lease) -> Result<(), StoreError>;

    /// Takes what conforms now, at most `units`, if nobody else has to be asked.
    fn take_ready(&self, _units: u64) -> u64 {
        0
    }

    /// Says that `units` of the run of `grant`, and what was granted with it, have left now. Limits of this process alone
    /// count them in windows from now on; those that others use, too, count the time that was granted.
    fn handed_over(&self, _grant: &Grant, _units: u64) {}

    /// Whether questions are long on their way, so that the next lease should be asked for while one is being used.
    fn is_remote(&self) -> bool {
        false
    }

    /// Asks for a lease and does not wait for it. `false` if that was not possible.
    fn send_for_lease(&self, _ask: &Ask) -> bool {
        false
    }

    /// The process is about to end: later questions wait for others a second at most.
    fn leave(&self) {}

    /// Waits for the lease that was sent for, and adds it to `lease`; nothing, if it does not come.
    fn receive_lease(&self, _lease: &mut Lease) {}

    /// Whether the limits are those that somebody names; see [`Policy::agrees_with`].
    ///
    /// # Errors
    /// [`StoreError::Disagrees`].
    fn agrees_with(&self, said: &[Limit], burst: Option<Amount>) -> Result<(), StoreError> {
        let agrees = self.policy().agrees_with(said, burst);
        agrees.map_err(|disagreement| StoreError::Disagrees { place: self.place(), disagreement })
    }
}

/// What shared limits are at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The limits as they were set.
    pub policy: Policy,
    /// Whole units that each of them would let through; less than nothing where more are owed.
    pub left: Vec<i128>,
    /// Whole units that all of them would let through.
    pub available: u64,
    /// How long a newcomer would wait, in nanoseconds; `None`: no time will do.
    pub wait: Option<Nanos>,
}

impl View {
    fn of(policy: &Policy, limits: &Limits, now: Nanos) -> Self {
        View {
            policy: policy.clone(),
            left: (0..policy.len()).filter_map(|place| limits.left(now, place)).collect(),
            available: limits.available(now),
            wait: limits.conforms_at(now, 1).ok().map(|(at, _)| at.saturating_sub(now)),
        }
    }
}

impl StoreError {
    /// Whether the same may work later, without anybody doing anything about it here.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        #[cfg(feature = "redis")]
        if let StoreError::Redis(error) = self {
            return error.may_pass();
        }
        false
    }
}

/// Why a store grants nothing.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The limits refuse.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The file they are in cannot be used.
    #[cfg(feature = "cli")]
    #[error(transparent)]
    File(#[from] FileError),
    /// The server they are on cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// The limits named are not those of the bucket.
    #[error("{disagreement}, in the bucket {place}")]
    Disagrees {
        /// Where the bucket is.
        place: String,
        /// Both.
        disagreement: Disagreement,
    },
    /// The limits were set to count something else than what is being passed on.
    #[error(
        "the bucket {place} was changed from {before} to {now}: {}; start again, with what that counts",
        kinds(*now_bytes)
    )]
    OtherKind {
        /// Where the bucket is.
        place: String,
        /// The limits that were gone by.
        before: String,
        /// Those that are kept there now.
        now: String,
        /// Whether those count bytes.
        now_bytes: bool,
    },
}

fn kinds(now_bytes: bool) -> &'static str {
    if now_bytes { "it counts bytes now, no longer units" } else { "it counts units now, no longer bytes" }
}
