//! Limits of this process alone.

use super::lease::{Lease, Rules};
use super::{Store, StoreError, View};
use crate::clock::{Clock, Nanos};
use crate::limits::{Ask, Grant, Limits, Policy};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limits of this process alone, on its own clock.
#[derive(Debug)]
pub struct Memory<C> {
    kept: Mutex<Kept>,
    quantum: AtomicU64,
    clock: C,
}

#[derive(Debug)]
struct Kept {
    policy: Policy,
    limits: Limits,
    rules: Rules,
}

impl<C: Clock> Memory<C> {
    /// The limits of `policy` in their initial state, from now on.
    pub fn new(policy: &Policy, clock: C) -> Self {
        let limits = Limits::new(policy, clock.now());
        let (quantum, rules) = (limits.quantum().into(), Rules::of(policy, &limits));
        Memory { kept: Mutex::new(Kept { policy: policy.clone(), limits, rules }), quantum, clock }
    }

    /// A change of the limits is one step, so a panic elsewhere does not leave them half changed.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + Debug> Store for Memory<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn place(&self) -> String {
        "this process".to_owned()
    }

    fn policy(&self) -> Policy {
        self.kept().policy.clone()
    }

    fn take(&self, cost: u64, latest: Nanos) -> Result<(Grant, Nanos), StoreError> {
        let mut kept = self.kept();
        let now = self.clock.now();
        Ok((kept.limits.take_within(now, cost, latest.saturating_sub(now))?, now))
    }

    fn give_back(&self, grant: &Grant) -> Result<(), StoreError> {
        let mut kept = self.kept();
        kept.limits.give_back(self.clock.now(), grant);
        Ok(())
    }

    fn hold_until(&self, time: Nanos) -> Result<(), StoreError> {
        let mut kept = self.kept();
        kept.limits.hold_until(self.clock.now(), time);
        Ok(())
    }

    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        let mut kept = self.kept();
        kept.limits.set(self.clock.now(), policy, fresh);
        (kept.policy, kept.rules) = (policy.clone(), Rules::of(policy, &kept.limits));
        self.quantum.store(kept.limits.quantum(), Ordering::Relaxed);
        Ok(())
    }

    fn view(&self) -> Result<View, StoreError> {
        let kept = self.kept();
        Ok(View::of(&kept.policy, &kept.limits, self.clock.now()))
    }

    fn available(&self) -> u64 {
        self.kept().limits.available(self.clock.now())
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        self.kept().limits.schedule(self.clock.now(), units)
    }

    fn quantum(&self) -> u64 {
        self.quantum.load(Ordering::Relaxed)
    }

    fn span(&self) -> Nanos {
        0
    }

    fn lease(&self, ask: &Ask, lease: &mut Lease) -> Result<Nanos, StoreError> {
        let mut kept = self.kept();
        let now = self.clock.now();
        lease.begin(kept.rules);
        kept.limits.lease(now, ask, |run| lease.push(run))?;
        Ok(now)
    }

    fn return_lease(&self, lease: &mut Lease) -> Result<(), StoreError> {
        if let Some(rest) = lease.take_rest() {
            let mut kept = self.kept();
            kept.limits.return_lease(self.clock.now(), &rest);
        }
        Ok(())
    }

    fn take_ready(&self, units: u64) -> u64 {
        let mut kept = self.kept();
        let now = self.clock.now();
        let units = kept.limits.available(now).min(units);
        kept.limits.take(now, units).map_or(0, |grant| grant.units)
    }

    fn handed_over(&self, grant: &Grant, units: u64) {
        let mut kept = self.kept();
        if kept.limits.has_windows() {
            kept.limits.hand_over(grant, units, self.clock.now());
        }
    }
}
