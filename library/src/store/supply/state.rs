//! What a supply knows.

use super::asked::Asked;
use crate::clock::sync::unpoisoned;
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{Grant, Policy, Served, Take};
use crate::store::lease::Lease;
use crate::store::{Store, StoreError, seen};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A process that ends waits this long for others when it gives back what it did not use.
pub(in crate::store) const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream that has just begun does not know whether those who used its bucket before still take from it.
pub(super) const UNKNOWN: Nanos = 100 * MILLISECOND;

/// Grants for one stream of units. Unused reservations are given back on drop.
#[derive(Debug)]
pub struct Supply {
    pub(in crate::store) store: Box<dyn Store + Send + Sync>,
    /// The limits at the start. They decide what the stream counts: units, bytes, or costs.
    pub(in crate::store) meant: Policy,
    pub(in crate::store) leased: Mutex<Leased>,
    pub(in crate::store) is_retired: AtomicBool,
    /// Units of costs of their own will be settled.
    pub(in crate::store) settles: AtomicBool,
    /// The thread that sleeps until a grant, or was the last to.
    pub(in crate::store) sleeper: Mutex<Option<Thread>>,
    /// When units with keys are asked for.
    pub(in crate::store) chance: RandomState,
}

#[derive(Debug, Default)]
pub(in crate::store) struct Leased {
    pub(in crate::store) lease: Lease,
    /// Another lease is on its way.
    pub(in crate::store) is_sent_for: bool,
    /// The number of the latest known grant, to anybody.
    pub(in crate::store) number: Option<u64>,
    /// When the stream asked for the first time.
    pub(in crate::store) began: Nanos,
    /// Until this time others are expected to take from the bucket, too.
    pub(in crate::store) shared_until: Nanos,
    /// What was granted last: a run, or a unit with costs of its own, and how it was asked for.
    pub(in crate::store) handed: Option<(Grant, Option<Take>)>,
    /// The number of a grant that is about to leave, and the costs at which it was settled meanwhile.
    pub(in crate::store) leaving: Option<(u64, Option<Box<[u64]>>)>,
    /// What all such units cost together, and how many they were.
    pub(in crate::store) charged: (Vec<u64>, u64),
    /// What has succeeded since the bucket was told.
    pub(in crate::store) served: Served,
    /// When the bucket was asked last.
    pub(in crate::store) asked: Nanos,
    /// Units with keys that were asked for.
    pub(in crate::store) ahead: Asked,
}

impl Leased {
    /// The next run, or `most` units of it.
    pub(in crate::store) fn next(&mut self, most: u64) -> Option<Grant> {
        let run = self.lease.next(most)?;
        self.handed = Some((run, None));
        Some(run)
    }

    /// A unit of these costs was charged.
    pub(in crate::store) fn count(&mut self, costs: &[u64]) {
        let (charged, count) = &mut self.charged;
        charged.resize(costs.len(), 0);
        charged.iter_mut().zip(costs).for_each(|(sum, cost)| *sum = sum.saturating_add(*cost));
        *count += 1;
    }

    /// Learns from the latest lease whether others take from the bucket, too.
    pub(in crate::store) fn look_for_others(&mut self) {
        let Some(last) = self.lease.number() else { return };
        match self.number.replace(last) {
            Some(before) if before + 1 != last => {
                let longest = self.lease.rules().only_windows.map_or(0, |windows| windows.longest);
                self.shared_until = self.lease.latest().saturating_add(longest);
            }
            // It is known with the next lease, which may be asked for only when the window opens.
            None if self.shared_until > 0 => self.shared_until = self.lease.latest().saturating_add(UNKNOWN),
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
            sleeper: Mutex::default(),
            chance: RandomState::new(),
        }
    }

    pub(in crate::store) fn knows_outdated(&self, number: u64) -> bool {
        self.store.is_shared() && seen(&*self.store, |ledger| ledger.is_outdated(number))
    }

    pub(in crate::store) fn check_policy(&self, now: &Policy) -> Result<(), StoreError> {
        if now.counts_like(&self.meant) {
            return Ok(());
        }
        let what = match (self.meant.counts_bytes(), now.counts_bytes()) {
            (false, true) => "it counts bytes now, no longer units",
            (true, false) => "it counts units now, no longer bytes",
            _ if !self.meant.counts_jobs() && now.counts_jobs() => "it counts commands now",
            _ if self.meant.counts_jobs() && !now.counts_jobs() => "it counts commands no longer",
            _ => match (self.meant.of_keys(), now.of_keys()) {
                (None, Some(_)) => "each key has limits of its own now",
                (Some(_), None) => "keys have no limits of their own any more",
                (Some(keys), Some(others)) if keys.per != others.per => "its keys are other ones now",
                _ => "a unit has other costs now",
            },
        };
        let (before, now) = (self.meant.to_string(), now.to_string());
        Err(StoreError::OtherKind(self.store.place(), before, now, what))
    }

    /// A bucket whose limits count another kind now refuses what was asked for under the old ones: that is what to tell.
    pub(in crate::store) fn explained(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Refused(_) => self.check_policy(&self.store.policy()).err().unwrap_or(error),
            error => error,
        }
    }

    pub(in crate::store) fn leased(&self) -> MutexGuard<'_, Leased> {
        lock(&self.leased)
    }

    /// The same, unless the supply has retired.
    pub(in crate::store) fn serving(&self) -> Result<MutexGuard<'_, Leased>, StoreError> {
        let leased = self.leased();
        if self.is_retired.load(Ordering::SeqCst) { Err(StoreError::Stopped) } else { Ok(leased) }
    }
}

/// A poisoned lock is as good as any: nothing here is left half done.
pub(in crate::store) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// The lock, unless another thread holds it for long, as one does that waits for a server.
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
