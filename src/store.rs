//! Stores: where the state of the limits lives, and on which clock.

use crate::clock::{Clock, Nanos};
use crate::limits::{Grant, Refusal};
use std::fmt::Debug;
use thiserror::Error;

mod file;
mod lease;
mod memory;

pub use file::{File, FileError, Machine, Place, View};
pub use memory::Memory;

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

    /// The time by which `units` more will have been granted to someone who always asks, as far as is known without asking
    /// others; see [`Limits::schedule`](crate::limits::Limits::schedule).
    fn schedule(&self, units: u64) -> Option<Nanos>;
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
}
