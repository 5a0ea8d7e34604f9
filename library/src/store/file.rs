//! Limits in a file, shared by any number of processes of one user on one machine.
//!
//! Every operation is one step under the file's lock: the process folds the operations that others appended to the log,
//! then appends its own. The answer is a time; the caller sleeps without holding the lock. Times are on the bucket's
//! own clock. It is the boot clock, which all processes share, plus the time before the last start of the machine.

use super::round_trip::RoundTrip;
use super::supply::{RETURN_TIMEOUT, lock_soon};
use super::{Store, StoreError, View, check};
use crate::clock::sync::unpoisoned;
use crate::clock::{MILLISECOND, NanoClock, Nanos, SECOND};
use crate::limits::{Grant, LOOK, Ledger, Operation, Owner, Policy, Record, Reply};
use rustix::fs::OFlags;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

mod error;
mod fuzzing;
mod handle;
mod machine;
mod network;
mod owner;
mod place;
mod reading;
mod slots;

pub use error::FileError;
use error::failed;
pub use fuzzing::bucket_file;
use handle::Handle;
pub use machine::Machine;
use place::Identity;
pub use place::Place;
use slots::Kept;

/// The least time that a lease covers, if enough units wait.
const SPAN: Nanos = 10 * MILLISECOND;

/// The time between two sweeps, for each process to check. A check takes about 10 µs, so all processes together use at
/// most 2 % of a core.
const SWEEP_INTERVAL_PER_PROCESS: Nanos = MILLISECOND / 2;

/// The place of a bucket, and its content or the reason why that cannot be read.
type Found = (Place, Result<View, FileError>);

/// Limits in a file.
#[derive(Debug)]
pub struct File {
    clock: FileClock,
    handle: Mutex<Handle>,
    /// How long operations take, with the wait for the lock.
    round_trip: Mutex<RoundTrip>,
}

/// The bucket's clock.
#[derive(Debug)]
struct FileClock {
    machine: Machine,
    ahead: AtomicI64,
}

impl FileClock {
    /// The time on the bucket's clock. While the machine was off, the clock went on with the wall clock. The time off
    /// counts as at least 0, and at most as the time until every limit is full.
    fn read(&self, kept: &mut Kept) -> Nanos {
        let now = self.machine.clock.now().saturating_add_signed(kept.ahead);
        // A boot clock goes back only together with the whole machine, for example when a snapshot of it is restored.
        if kept.boot != self.machine.boot || now.saturating_add(SECOND) < kept.at {
            let full = kept.ledger.rested_at().saturating_sub(kept.at);
            let off = self.machine.wall().saturating_sub(kept.wall).min(full);
            let resumed = kept.at.saturating_add(off);
            let ahead = i128::from(resumed) - i128::from(self.machine.clock.now());
            kept.ahead = i64::try_from(ahead).unwrap_or(i64::MAX);
            kept.boot = self.machine.boot;
        }
        self.ahead.store(kept.ahead, Ordering::Relaxed);
        self.now()
    }
}

impl NanoClock for FileClock {
    fn now(&self) -> Nanos {
        self.machine.clock.now().saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.machine.clock.sleep_unless(time.saturating_add_signed(ahead.saturating_neg()), is_over)
    }
}

impl File {
    /// The bucket at `place`. If it does not exist, it is made with `policy`.
    ///
    /// # Errors
    /// [`FileError`], which also explains how to fix it.
    pub fn open(place: Place, policy: Option<&Policy>) -> Result<Self, StoreError> {
        File::open_until(Machine::this(), place, policy, None)
    }

    /// Like [`open`](Self::open), on a given machine. If other processes keep the file locked, this and all later
    /// requests wait until `deadline` at most.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`FileError::Locked`].
    pub fn open_until(
        machine: Machine,
        place: Place,
        policy: Option<&Policy>,
        deadline: Option<Instant>,
    ) -> Result<Self, StoreError> {
        policy.map_or(Ok(()), check)?;
        let mut handle = Handle::open(machine.clone(), place, policy, deadline)?;
        let clock = FileClock { machine, ahead: AtomicI64::new(0) };
        clock.read(&mut handle.kept);
        Ok(File { clock, handle: Mutex::new(handle), round_trip: Mutex::default() })
    }

    /// The content of the bucket at `place`, which need not be writable. Waits until `deadline` at most if others keep
    /// it locked.
    ///
    /// # Errors
    /// [`FileError`], as [`open`](Self::open).
    pub fn look(machine: Machine, place: Place, deadline: Option<Instant>) -> Result<View, FileError> {
        let mut handle = Handle::open_to_look(machine.clone(), place, deadline)?;
        let now = FileClock { machine, ahead: AtomicI64::new(0) }.read(&mut handle.kept);
        let ledger = &mut handle.kept.ledger;
        ledger.pass(now);
        let gone: Vec<Owner> = ledger.owners().map(|(owner, _)| owner).filter(|owner| owner::is_gone(*owner)).collect();
        for owner in gone {
            let operation = Operation::Gone { owner, seen: Nanos::MAX };
            ledger.apply(&Record { time: now, owner: [0; 2], sequence: 0, operation });
        }
        Ok(View::of(ledger, now))
    }

    /// All buckets in `folder`, sorted by name, each as returned by [`look`](Self::look). Waits until `deadline` at
    /// most if others keep a bucket locked. Files that are not buckets are left out. A file that is empty or cannot be
    /// read counts as a bucket if the folder is for buckets only.
    ///
    /// # Errors
    /// The folder cannot be read. Or it is for buckets only, and other users could replace its files.
    pub fn list(
        machine: &Machine,
        folder: &Path,
        own_folder: bool,
        deadline: Instant,
    ) -> Result<Vec<Found>, FileError> {
        let files = place::files(folder, own_folder)?.into_iter();
        let views = files.map(|place| (place.clone(), File::look(machine.clone(), place, Some(deadline))));
        let is_none = |error: &FileError| match error {
            FileError::Unknown(_) | FileError::Foreign(..) => true,
            FileError::Damaged(_, Some(0)) | FileError::Unsuitable(_) | FileError::System(..) => !own_folder,
            _ => false,
        };
        Ok(views.filter(|(_, view)| !view.as_ref().is_err_and(is_none)).collect())
    }

    /// Removes the bucket at `place`, even a damaged one. Processes that use it make it again with the limits that they
    /// know.
    ///
    /// # Errors
    /// [`FileError`], as [`open`](Self::open); nothing is removed then. A file that is not a bucket is never removed.
    pub fn remove(place: &Place) -> Result<(), FileError> {
        let path = &place.path;
        loop {
            let file = place::open(place, OFlags::RDONLY)?.ok_or_else(|| FileError::Unknown(path.clone()))?;
            // No step of another process is cut off.
            place::lock(path, &file, None)?;
            if Identity::at(path)? == Some(Identity::of(path, &file)?) {
                return rustix::fs::unlink(path).map_err(|error| failed("remove the bucket", path, error));
            }
        }
    }

    /// Applies an operation and appends it to the log, under the file's lock.
    fn append(&self, handle: &mut Handle, operation: Operation) -> Result<(Reply, Nanos), FileError> {
        let time = self.clock.read(&mut handle.kept);
        let (owner, wall) = (owner::this_process(), self.clock.machine.wall());
        let record = Record { time, owner, sequence: 0, operation };
        Ok((handle.append(&record, wall)?, time))
    }

    /// Removes waiters whose processes have ended. One process does that for all: if each did, the cost would grow with
    /// the square of their number. `least`: the least time since the previous sweep.
    fn sweep(&self, handle: &mut Handle, least: Nanos) -> Result<(), FileError> {
        let now = self.clock.read(&mut handle.kept);
        // The job slot of a command that has ended is needed at once.
        let least = if handle.kept.ledger.running() > 0 { least.min(LOOK / 50) } else { least };
        let of_all = SWEEP_INTERVAL_PER_PROCESS.saturating_mul(handle.kept.ledger.owners().count() as u64);
        if of_all == 0 || now.checked_sub(handle.swept()?).is_some_and(|ago| ago < least.max(of_all).min(LOOK)) {
            return Ok(());
        }
        handle.sweep_at(now)?;
        let mut owners: Vec<(Owner, Nanos)> = handle.kept.ledger.owners().collect();
        owners.sort_unstable();
        owners.dedup_by_key(|(owner, _)| *owner);
        for (owner, _) in owners.into_iter().filter(|(owner, _)| owner::is_gone(*owner)) {
            self.append(handle, Operation::Gone { owner, seen: Nanos::MAX })?;
        }
        Ok(())
    }

    fn handle(&self) -> MutexGuard<'_, Handle> {
        unpoisoned(self.handle.lock())
    }
}

impl Store for File {
    fn clock(&self) -> &dyn NanoClock {
        &self.clock
    }

    fn place(&self) -> String {
        self.handle().place.path.display().to_string()
    }

    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError> {
        let policy = match &operation {
            Operation::Set { policy, .. } | Operation::Clear { anew: Some(policy), .. } => Some(policy.clone()),
            _ => None,
        };
        policy.as_ref().map_or(Ok(()), check)?;
        let begun = self.clock.now();
        let applied = self.handle().locked(|handle| {
            policy.map_or(Ok(()), |policy| handle.record(&policy))?;
            self.sweep(handle, 0)?;
            self.append(handle, operation)
        });
        unpoisoned(self.round_trip.lock()).took(self.clock.now().saturating_sub(begun));
        Ok(applied?)
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(self.handle().locked(|handle| self.sweep(handle, LOOK))?)
    }

    fn see(&self, look: &mut dyn FnMut(&Ledger)) {
        look(&self.handle().kept.ledger);
    }

    fn span(&self) -> Nanos {
        SPAN
    }

    /// 0 unless the file system is slow, or other processes keep the file locked for long.
    fn one_way(&self) -> Nanos {
        let one_way = unpoisoned(self.round_trip.lock()).usual() / 2;
        if one_way > MILLISECOND { one_way } else { 0 }
    }

    fn started(&self, grant: &Grant, pid: u32) -> Result<(), StoreError> {
        let process = owner::of(pid).filter(|_| self.policy().counts_jobs());
        let start = |process| Operation::Start { number: grant.number(), process };
        process.map_or(Ok(()), |process| self.apply(start(process)).map(drop))
    }

    fn leave(&self) -> bool {
        // A sleeping thread may be waiting for a process that keeps the file locked.
        let Some(mut handle) = lock_soon(&self.handle) else { return false };
        let soon = Instant::now() + RETURN_TIMEOUT;
        handle.deadline = Some(handle.deadline.map_or(soon, |deadline| deadline.min(soon)));
        true
    }
}
