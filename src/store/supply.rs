//! A supply: grants for a stream of units, from any store. The pump draws from it.
//!
//! A shared store is asked for leases: consecutive reservations in one step, for units that were read. The supply hands
//! them out one by one. From a remote store the next lease is requested while one is in use, so that a slow network
//! costs no rate.

use super::lease::Lease;
use super::{Store, StoreError};
use crate::clock::{Clock, Nanos};
use crate::limits::{Ask, Grant, Policy, Refusal};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Grants for one stream of units. Unused reservations are given back on drop.
#[derive(Debug)]
pub struct Supply {
    store: Box<dyn Store + Send + Sync>,
    /// The limits at the start. They decide whether the stream counts units or bytes.
    meant: Policy,
    leased: Mutex<Leased>,
}

#[derive(Debug, Default)]
struct Leased {
    lease: Lease,
    /// Another lease is on its way.
    is_sent_for: bool,
}

impl Supply {
    /// A supply from `store`.
    #[must_use]
    pub fn new(store: Box<dyn Store + Send + Sync>) -> Self {
        Supply { meant: store.policy(), store, leased: Mutex::default() }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The clock of all grant times.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    /// The smallest run that is worth a wake-up; see [`Limits::quantum`](crate::limits::Limits::quantum).
    #[must_use]
    pub fn quantum(&self) -> u64 {
        self.store.quantum()
    }

    /// Units that may leave now or that are reserved, as far as is known without asking the store.
    #[must_use]
    pub fn available(&self) -> u64 {
        match self.leased().lease.units() {
            0 => self.store.available(),
            units => units,
        }
    }

    /// The time by which `units` more will have been granted, as far as is known without asking the store.
    #[must_use]
    pub fn schedule(&self, units: u64) -> Option<Nanos> {
        self.store.schedule(units)
    }

    /// Grants a run of the `waiting` units, which must all have been read; see
    /// [`Limits::take_run`](crate::limits::Limits::take_run). Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    pub fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let mut leased = self.leased();
        if let Some(run) = self.next_held(&mut leased, waiting)? {
            return Ok(run);
        }
        if std::mem::take(&mut leased.is_sent_for) {
            self.store.receive_lease(&mut leased.lease);
            if let Some(run) = self.next_held(&mut leased, waiting)? {
                return Ok(run);
            }
        }
        let asked = self.store.lease(&self.ask(&leased, waiting), &mut leased.lease)?;
        self.check_kind(&leased)?;
        leased.lease.next(waiting).map(|run| (run, asked)).ok_or(Refusal::Never.into())
    }

    /// Grants what may leave now, at most `units`, which must have been read, if that needs no request to another
    /// process.
    #[must_use]
    pub fn take_available(&self, units: u64) -> u64 {
        let mut leased = self.leased();
        if leased.lease.is_empty() {
            return self.store.take_ready(units);
        }
        let now = self.clock().now();
        if leased.lease.is_stale(now) { 0 } else { leased.lease.due(now, units) }
    }

    /// Reports that this many units beyond the last run were read and wait for the limits. A remote store is asked for
    /// the next lease if the rest of this one will not last until that arrives.
    pub fn foresee(&self, units: u64) {
        if !self.store.is_remote() {
            return;
        }
        let mut leased = self.leased();
        let left = leased.lease.end().saturating_sub(self.clock().now());
        let more = units.saturating_sub(leased.lease.units());
        if more > 0 && !leased.is_sent_for && left <= self.store.span() / 4 * 3 {
            // If there is no answer, the lease is requested again when it is needed.
            leased.is_sent_for = self.store.send_for_lease(&self.ask(&leased, more));
        }
    }

    /// Reports that `units` of the run of `grant`, and what was taken with it, have left now.
    pub fn handed_over(&self, grant: &Grant, units: u64) {
        self.store.handed_over(grant, units);
    }

    /// The next reserved run, unless it is late.
    fn next_held(&self, leased: &mut Leased, waiting: u64) -> Result<Option<(Grant, Nanos)>, StoreError> {
        if leased.lease.is_empty() {
            return Ok(None);
        }
        let now = self.clock().now();
        if leased.lease.drop_late(now) {
            leased.is_sent_for = false;
            // If this fails, the next request reports why.
            let _ = self.store.return_lease(&mut leased.lease);
        }
        self.check_kind(leased)?;
        Ok(leased.lease.next(waiting).map(|run| (run, now)))
    }

    /// New limits may take over only if they count the same kind: units or bytes.
    fn check_kind(&self, leased: &Leased) -> Result<(), StoreError> {
        let now_bytes = leased.lease.rules().counts_bytes;
        if leased.lease.is_empty() || now_bytes == self.meant.counts_bytes() {
            return Ok(());
        }
        let (before, now) = (self.meant.to_string(), self.store.policy().to_string());
        Err(StoreError::OtherKind { place: self.store.place(), before, now, now_bytes })
    }

    fn ask(&self, leased: &Leased, waiting: u64) -> Ask {
        Ask { waiting, span: self.store.span(), latest: leased.lease.latest() }
    }

    fn leased(&self) -> MutexGuard<'_, Leased> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        let mut leased = self.leased();
        // If giving back fails, at most one lease is lost, as when the process is killed.
        let _ = self.store.return_lease(&mut leased.lease);
    }
}
