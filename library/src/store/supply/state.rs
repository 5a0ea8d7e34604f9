//! The state of a supply.

use super::requested::Requested;
use crate::clock::sync::unpoisoned;
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{Grant, Policy, Served, Take};
use crate::store::lease::Lease;
use crate::store::{Store, StoreError, with_ledger};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long an ending process waits for a lock before it ends without giving back unused grants.
pub(in crate::store) const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

/// A new stream cannot see whether earlier users of its bucket still take from it. It assumes so for this time.
pub(super) const ASSUMED_SHARING_TIME: Nanos = 100 * MILLISECOND;

/// Grants for one stream of units. Unused reservations are given back on drop.
#[derive(Debug)]
pub struct Supply {
    pub(super) store: Box<dyn Store + Send + Sync>,
    /// The limits at the start. They decide what the stream counts: units, bytes, or costs.
    pub(super) meant: Policy,
    pub(super) leased: Mutex<Leased>,
    pub(super) is_retired: AtomicBool,
    /// Whether units with their own costs will be settled.
    pub(super) settles: AtomicBool,
    /// Counts settlements: each may have moved up the grants of this process.
    pub(super) settled: AtomicU64,
    /// The thread that sleeps until a grant, or the last thread that did.
    pub(super) sleeper: Mutex<Option<Thread>>,
    /// The random part of the times at which units with keys are requested.
    pub(super) chance: RandomState,
}

#[derive(Debug, Default)]
pub(super) struct Leased {
    pub(super) lease: Lease,
    /// Whether another lease was requested and has not arrived.
    pub(super) is_sent_for: bool,
    /// The number of the latest known grant, to any process.
    pub(super) number: Option<u64>,
    /// The time of the first request.
    pub(super) began: Nanos,
    /// Until when other processes are expected to take from the bucket.
    pub(super) shared_until: Nanos,
    /// The latest grant: a run, or a unit with its own costs and its request.
    pub(super) handed: Option<(Grant, Option<Take>)>,
    /// The sum of each cost of the units with their own costs, and the number of these units.
    pub(super) charged: (Vec<u64>, u64),
    /// Successes since the last request to the bucket.
    pub(super) served: Served,
    /// The time of the last request to the bucket.
    pub(super) requested_at: Nanos,
    /// The count of settlements before grant times were last requested or updated.
    pub(super) settled: u64,
    /// Units with keys that were requested.
    pub(super) ahead: Requested,
}

impl Leased {
    /// The next run, or `most` units of it.
    pub(super) fn next(&mut self, most: u64) -> Option<Grant> {
        let run = self.lease.next(most)?;
        self.handed = Some((run, None));
        Some(run)
    }

    /// Counts a charged unit of these costs.
    pub(super) fn count(&mut self, costs: &[u64]) {
        let (charged, count) = &mut self.charged;
        charged.resize(costs.len(), 0);
        charged.iter_mut().zip(costs).for_each(|(sum, cost)| *sum = sum.saturating_add(*cost));
        *count += 1;
    }

    /// Uses the number of the latest lease to detect whether other processes take from the bucket.
    pub(super) fn detect_others(&mut self) {
        let Some(last) = self.lease.number() else { return };
        match self.number.replace(last) {
            Some(before) if before + 1 != last => {
                let longest = self.lease.rules().only_windows.map_or(0, |windows| windows.longest);
                self.shared_until = self.lease.latest().saturating_add(longest);
            }
            // The next lease decides; it may be requested only when the window opens.
            None if self.shared_until > 0 => {
                self.shared_until = self.lease.latest().saturating_add(ASSUMED_SHARING_TIME);
            }
            _ => {}
        }
    }
}

impl Supply {
    /// A supply from `store`.
    #[must_use]
    pub fn new(store: Box<dyn Store + Send + Sync>) -> Self {
        let (meant, is_retired) = (store.policy(), AtomicBool::new(false));
        let leased = Mutex::new(Leased { lease: Lease::none(&meant), ..Leased::default() });
        Supply {
            store,
            meant,
            leased,
            is_retired,
            settles: AtomicBool::new(false),
            settled: AtomicU64::new(0),
            sleeper: Mutex::default(),
            chance: RandomState::new(),
        }
    }

    pub(super) fn knows_outdated(&self, number: u64) -> bool {
        with_ledger(&*self.store, |ledger| ledger.is_outdated(number))
    }

    /// New limits may take over only if they count the same: units, bytes, or the same costs.
    pub(super) fn check_policy(&self) -> Result<(), StoreError> {
        if with_ledger(&*self.store, |ledger| ledger.policy().counts_like(&self.meant)) {
            return Ok(());
        }
        let now = self.store.policy();
        let what = match (self.meant.counts_bytes(), now.counts_bytes()) {
            (false, true) => "it counts bytes now, no longer units",
            (true, false) => "it counts units now, no longer bytes",
            _ if !self.meant.counts_jobs() && now.counts_jobs() => "it counts commands now",
            _ if self.meant.counts_jobs() && !now.counts_jobs() => "it no longer counts commands",
            _ => match (self.meant.of_keys(), now.of_keys()) {
                (None, Some(_)) => "each key now has its own limits",
                (Some(_), None) => "keys no longer have their own limits",
                (Some(keys), Some(others)) if keys.per != others.per => "its per= selector changed",
                _ => "the costs of a unit changed",
            },
        };
        let (before, now) = (self.meant.to_string(), now.to_string());
        Err(StoreError::OtherKind(self.store.place(), before, now, what))
    }

    /// If the limits of the bucket now count another kind, this explains the refusal of requests made under the old
    /// limits.
    pub(super) fn explained(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Refused(_) => self.check_policy().err().unwrap_or(error),
            error => error,
        }
    }

    pub(super) fn leased(&self) -> MutexGuard<'_, Leased> {
        unpoisoned(self.leased.lock())
    }

    /// The state, or an error if the supply has retired.
    pub(super) fn serving(&self) -> Result<MutexGuard<'_, Leased>, StoreError> {
        let leased = self.leased();
        if self.is_retired.load(Ordering::SeqCst) { Err(StoreError::Stopped) } else { Ok(leased) }
    }
}

/// The lock. `None` if another thread holds it for long, for example while it waits for a server.
pub(in crate::store) fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let begun = Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if begun.elapsed() >= RETURN_TIMEOUT => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
