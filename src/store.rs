//! Stores: where the state of the limits lives, and on which clock.

use crate::clock::{Clock, Nanos};
use crate::limits::{Disagreement, Grant, Plan, Refusal};
use crate::rate::{Amount, Limit};
use std::fmt::Debug;
use thiserror::Error;

mod file;
mod lease;
mod memory;
mod redis;
mod retiring;

pub use file::{File, FileError, Machine, Place};
pub use memory::Memory;
pub use redis::{Address, AddressError, Patience, Redis, RedisError, Trouble};

/// What the pump needs of the place where limits live. Every question is answered atomically, and nobody sleeps while
/// others wait for an answer.
///
/// A store that others use, too, may take a *lease*: consecutive reservations in one go, for units that were read, each
/// to leave at its own time. [`next_run`](Self::next_run) then tells them one after the other.
pub trait Store: Debug {
    /// The clock that grants are times of.
    fn clock(&self) -> &dyn Clock;

    /// The run below which it is not worth waking up; see [`Limits::quantum`](crate::limits::Limits::quantum).
    fn quantum(&self) -> u64;

    /// Units that conform now, as far as is known without asking others.
    fn available(&self) -> u64;

    /// Grants a run of the `waiting` units, which must all have been read; see
    /// [`Limits::take_run`](crate::limits::Limits::take_run). Also says when it was asked.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError>;

    /// Grants what conforms now without further ado, at most `units`, which must have been read.
    fn take_available(&self, units: u64) -> u64;

    /// Says that `units` of the run of `grant`, and what was granted with it, have left now. Limits of this process alone
    /// count them in windows from now on; those that others use, too, count the time that was granted.
    fn handed_over(&self, _grant: &Grant, _units: u64) {}

    /// Says that so many units beyond the last run were read and may leave as soon as the limits allow. A store that is far
    /// away asks for them ahead.
    fn foresee(&self, _units: u64) {}

    /// The time by which `units` more will have been granted to someone who always asks, as far as is known without asking
    /// others; see [`Limits::schedule`](crate::limits::Limits::schedule).
    fn schedule(&self, units: u64) -> Option<Nanos>;

    /// The process ends: what it was granted and has not used is given back, as far as it can be; see
    /// [`Limits::give_back`](crate::limits::Limits::give_back). Whoever sleeps on the [`clock`](Self::clock) until a grant,
    /// or asks for another, does not come back. Takes about a second at most; nobody is told of a failure.
    fn retire(&self) {}
}

/// What is asked of limits that others use, too.
pub trait Shared: Store {
    /// Where they are, for messages.
    fn place(&self) -> String;

    /// The limits as they were set when last looked at.
    fn plan(&self) -> Plan;

    /// Changes the limits for everyone, at their next question. What has been saved or counted is kept in limits that stand
    /// in the same place and are of the same kind, but for the places in `fresh`, which begin anew.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn set(&self, plan: &Plan, fresh: &[bool]) -> Result<(), StoreError>;

    /// Everything, as it is now.
    ///
    /// # Errors
    /// [`StoreError`].
    fn view(&self) -> Result<View, StoreError>;

    /// Reserves `units`, if that means waiting no longer than `max_wait`, where one is given. Also says when it was asked.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn take(&self, units: u64, max_wait: Option<Nanos>) -> Result<(Grant, Nanos), StoreError>;

    /// Gives back a grant that is not used; see [`Limits::give_back`](crate::limits::Limits::give_back).
    ///
    /// # Errors
    /// [`StoreError`]; nothing is given back then.
    fn give_back(&self, grant: &Grant) -> Result<(), StoreError>;

    /// Whether the limits are those that somebody names; see [`Plan::agrees_with`].
    ///
    /// # Errors
    /// [`StoreError::Disagrees`].
    fn agrees_with(&self, said: &[Limit], burst: Option<Amount>) -> Result<(), StoreError> {
        let agrees = self.plan().agrees_with(said, burst);
        agrees.map_err(|disagreement| StoreError::Disagrees { place: self.place(), disagreement })
    }
}

/// What shared limits are at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The limits as they were set.
    pub plan: Plan,
    /// Whole units that each of them would let through; less than nothing where more are owed.
    pub left: Vec<i128>,
    /// Whole units that all of them would let through.
    pub available: u64,
    /// How long a newcomer would wait, in nanoseconds; `None`: no time will do.
    pub wait: Option<Nanos>,
}

impl StoreError {
    /// Whether the same may work later, without anybody doing anything about it here.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, StoreError::Redis(error) if error.may_pass())
    }
}

/// Why a store grants nothing.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The limits refuse.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The file they are in cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The server they are on cannot be used.
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

/// Whoever counts by `before` may go on by `now`: units stay units, and bytes bytes.
fn check_kind(place: impl FnOnce() -> String, before: &Plan, now: &Plan) -> Result<(), StoreError> {
    if before.counts_bytes() == now.counts_bytes() {
        return Ok(());
    }
    let (before, now_bytes, now) = (before.to_string(), now.counts_bytes(), now.to_string());
    Err(StoreError::OtherKind { place: place(), before, now, now_bytes })
}
