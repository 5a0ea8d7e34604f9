//! Limits in a file, shared by any number of processes of one user on one machine.
//!
//! Every operation is one step under the file's lock: the process folds the operations that others appended to the log,
//! then appends its own. The answer is a time; the caller sleeps without holding the lock. Times are on the bucket's
//! own clock. It is the boot clock, which all processes share, plus the time before the last start of the machine.

use super::round_trip::RoundTrip;
use super::{RETURN_TIMEOUT, Store, StoreError, View, check};
use crate::clock::sync::unpoisoned;
use crate::clock::{MILLISECOND, NanoClock, Nanos, SECOND};
use crate::ledger::Replica;
use crate::ledger::operation::{Operation, Owner, Record};
use crate::limits::Policy;
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

/// The time between two sweeps, at most.
const LOOK: Nanos = SECOND;

/// The time between two sweeps, for each process to check. A check takes about 10 µs, so all processes together use at
/// most 2 % of a core.
const SWEEP_INTERVAL_PER_PROCESS: Nanos = MILLISECOND / 2;

/// The place of a bucket, and its content or the reason why that cannot be read.
type Found = (Place, Result<View, FileError>);

/// Limits in a file.
#[derive(Debug)]
pub struct File {
    clock: FileClock,
    owner: Owner,
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
        Ok(File { clock, owner: owner::next_user(), handle: Mutex::new(handle), round_trip: Mutex::default() })
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
        ledger.advance(now);
        let gone: Vec<Owner> = ledger.owners().map(|(owner, _)| owner).filter(|owner| owner::is_gone(*owner)).collect();
        for owner in gone {
            let operations = vec![Operation::Gone { owner, seen: Nanos::MAX }];
            ledger.apply(&Record { time: now, owner: [0; 2], sequence: 0, operations });
        }
        Ok(ledger.view(now))
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

    /// Applies operations and appends them to the log, under the file's lock. Returns the time.
    fn append(&self, handle: &mut Handle, operations: Vec<Operation>) -> Result<Nanos, FileError> {
        let time = self.clock.read(&mut handle.kept);
        let wall = self.clock.machine.wall();
        handle.append(&Record { time, owner: self.owner, sequence: 0, operations }, wall)?;
        Ok(time)
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
            self.append(handle, vec![Operation::Gone { owner, seen: Nanos::MAX }])?;
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

    fn owner(&self) -> Owner {
        self.owner
    }

    fn send(&self, operations: Vec<Operation>) -> Result<Nanos, StoreError> {
        let policies = operations.iter().filter_map(|operation| match operation {
            Operation::Set(policy, _) | Operation::Clear { anew: Some(policy), .. } => Some(policy.clone()),
            _ => None,
        });
        let policies: Vec<Policy> = policies.collect();
        policies.iter().try_for_each(check)?;
        let begun = self.clock.now();
        let time = self.handle().locked(|handle| {
            policies.iter().try_for_each(|policy| handle.record(policy))?;
            self.sweep(handle, if operations.is_empty() { LOOK } else { 0 })?;
            if operations.is_empty() {
                let now = self.clock.read(&mut handle.kept);
                handle.kept.ledger.advance(now);
                return Ok::<_, FileError>(now);
            }
            self.append(handle, operations)
        })?;
        unpoisoned(self.round_trip.lock()).took(self.clock.now().saturating_sub(begun));
        Ok(time)
    }

    fn see(&self, look: &mut dyn FnMut(&mut Replica)) {
        look(&mut self.handle().kept.ledger);
    }

    /// 0 unless the file system is slow, or other processes keep the file locked for long.
    fn round_trip(&self) -> Nanos {
        let usual = unpoisoned(self.round_trip.lock()).usual();
        if usual > 2 * MILLISECOND { usual } else { 0 }
    }

    /// 0 unless the file system is slow.
    fn least_round_trip(&self) -> Nanos {
        let least = unpoisoned(self.round_trip.lock()).least();
        if least > 2 * MILLISECOND { least } else { 0 }
    }

    fn owner_of(&self, pid: u32) -> Option<Owner> {
        owner::of(pid)
    }

    fn leave(&self) -> bool {
        // A sleeping thread may be waiting for a process that keeps the file locked.
        let Some(mut handle) = super::lock_soon(&self.handle) else { return false };
        let soon = Instant::now() + RETURN_TIMEOUT;
        handle.deadline = Some(handle.deadline.map_or(soon, |deadline| deadline.min(soon)));
        true
    }
}
