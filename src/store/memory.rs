//! Limits of this process alone.

use super::{Store, StoreError};
use crate::clock::{Clock, Nanos};
use crate::limits::{Grant, Limits, Plan};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits of this process alone, on a clock of its own.
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

    /// Limits are changed in one step or not at all, so a panic elsewhere does not spoil them.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + Debug> Store for Memory<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn quantum(&self) -> u64 {
        self.quantum
    }

    fn available(&self) -> u64 {
        self.limits().available(self.clock.now())
    }

    fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let mut limits = self.limits();
        let now = self.clock.now();
        Ok((limits.take_run(now, waiting)?, now))
    }

    fn take_available(&self, units: u64) -> u64 {
        let mut limits = self.limits();
        let now = self.clock.now();
        let units = limits.available(now).min(units);
        limits.take(now, units).map_or(0, |grant| grant.units)
    }

    fn handed_over(&self, grant: &Grant, units: u64) {
        let mut limits = self.limits();
        if limits.has_windows() {
            limits.hand_over(grant, units, self.clock.now());
        }
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        self.limits().schedule(self.clock.now(), units)
    }
}
