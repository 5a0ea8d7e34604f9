//! Stores: where the state of the limits lives, and on which clock.

use crate::clock::{Clock, Nanos};
use crate::limits::{Grant, Limits, Plan, Refusal};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits of this process alone, on a clock of its own. Every question is answered atomically; nobody sleeps under the
/// lock.
#[derive(Debug)]
pub struct Memory<C> {
    limits: Mutex<Limits>,
    quantum: u64,
    clock: C,
}

impl<C: Clock> Memory<C> {
    /// The limits of `plan` in their initial state, from now on.
    pub fn new(plan: &Plan, clock: C) -> Self {
        let limits = Limits::new(plan, clock.now());
        Memory { quantum: limits.quantum(), limits: Mutex::new(limits), clock }
    }

    /// The clock that grants are times of.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// See [`Limits::quantum`].
    pub fn quantum(&self) -> u64 {
        self.quantum
    }

    /// Units that conform now.
    pub fn available(&self) -> u64 {
        self.limits().available(self.clock.now())
    }

    /// Grants a run of `waiting` units; see [`Limits::take_run`]. Also says when it was asked.
    ///
    /// # Errors
    /// [`Refusal::Never`].
    pub fn take_run(&self, waiting: u64) -> Result<(Grant, Nanos), Refusal> {
        let mut limits = self.limits();
        let now = self.clock.now();
        Ok((limits.take_run(now, waiting)?, now))
    }

    /// Grants what conforms now, at most `units`.
    pub fn take_available(&self, units: u64) -> u64 {
        let mut limits = self.limits();
        let now = self.clock.now();
        let units = limits.available(now).min(units);
        limits.take(now, units).map_or(0, |grant| grant.units)
    }

    /// The time by which `units` more will have been granted to someone who always asks; see [`Limits::schedule`].
    pub fn schedule(&self, units: u64) -> Option<Nanos> {
        self.limits().schedule(self.clock.now(), units)
    }

    /// Limits are changed in one step or not at all, so a panic elsewhere does not spoil them.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
