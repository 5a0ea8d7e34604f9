//! Limits in a file, shared by any number of processes of one user on one machine.
//!
//! Every operation is one step under the file's lock: fold what others appended to the log, and append it.
//! The answer is a time; the caller sleeps without holding the lock. Times are of the bucket's own clock. It is the
//! boot clock, which all processes share, plus the time before the last start of the machine.

use super::supply::{RETURN_TIMEOUT, lock_soon};
use super::{Store, StoreError, View, check};
use crate::clock::sync::unpoisoned;
use crate::clock::{Clock, MILLISECOND, Nanos, SECOND};
use crate::limits::{Grant, LOOK, Ledger, Operation, Owner, Policy, Record, Reply};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

mod error;
mod handle;
mod machine;
mod network;
mod owner;
mod place;
mod reading;
mod slots;

pub use error::FileError;
use handle::Handle;
pub use machine::Machine;
pub use place::Place;
use slots::Kept;

/// The least time that a lease covers, if enough units wait.
const SPAN: Nanos = 10 * MILLISECOND;

/// The time between two sweeps for each process that is looked at, which takes about 10 µs: so all together take 2 % of a
/// core at most.
const SWEEP: Nanos = MILLISECOND / 2;

/// A bucket that was found, and what it keeps, or why that cannot be read.
type Found = (Place, Result<View, FileError>);

/// Limits in a file.
#[derive(Debug)]
pub struct File {
    clock: FileClock,
    handle: Mutex<Handle>,
}

/// The bucket's clock.
#[derive(Debug)]
struct FileClock {
    machine: Machine,
    ahead: AtomicI64,
}

impl FileClock {
    /// The time on the bucket's clock. While the machine was off, the clock went on as far as the wall clock says: at
    /// least by nothing, and at most until every limit is full.
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

impl Clock for FileClock {
    fn now(&self) -> Nanos {
        self.machine.clock.now().saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.machine.clock.sleep_unless(time.saturating_add_signed(ahead.saturating_neg()), is_over)
    }
}

impl File {
    /// The bucket at `place`. Where there is none it is made with `policy`.
    ///
    /// # Errors
    /// [`FileError`] says what is wrong and how to fix it.
    pub fn open(place: Place, policy: Option<&Policy>) -> Result<Self, StoreError> {
        File::open_until(Machine::this(), place, policy, None)
    }

    /// Like [`open`](Self::open), on a given machine. If others keep the file locked, it is waited for until `deadline` at
    /// most, in later requests, too.
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
        Ok(File { clock, handle: Mutex::new(handle) })
    }

    /// What is kept in the bucket at `place`, which need not be writable. Waits until `deadline` at most if others
    /// keep it locked.
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

    /// All buckets in `folder`, by name, each as [`look`](Self::look) finds it. Waits until `deadline` at most for others who keep one locked. Files that are no
    /// bucket are left out. A file that is empty or cannot be read counts as a bucket if the folder is for buckets only.
    ///
    /// # Errors
    /// The folder cannot be read, or others could replace the files in one for buckets only.
    pub fn list(
        machine: &Machine,
        folder: &Path,
        own_folder: bool,
        deadline: Instant,
    ) -> Result<Vec<Found>, FileError> {
        let files = place::files(folder, own_folder)?.into_iter();
        let looked = files.map(|place| (place.clone(), File::look(machine.clone(), place, Some(deadline))));
        let is_none = |error: &FileError| match error {
            FileError::Unknown(_) | FileError::Foreign(..) => true,
            FileError::Damaged(_, Some(0)) | FileError::Unsuitable(_) | FileError::System(..) => !own_folder,
            _ => false,
        };
        Ok(looked.filter(|(_, view)| !view.as_ref().is_err_and(is_none)).collect())
    }

    /// Removes the bucket at `place`, also one that is damaged. Processes that use it make it again, with the limits that
    /// they know.
    ///
    /// # Errors
    /// [`FileError`], as [`open`](Self::open); nothing is removed then, and never a file that is no bucket.
    pub fn remove(place: &Place) -> Result<(), FileError> {
        place::remove(place)
    }

    /// Applies an operation and appends it to the log, under the file's lock.
    fn append(&self, handle: &mut Handle, operation: Operation) -> Result<(Reply, Nanos), FileError> {
        let time = self.clock.read(&mut handle.kept);
        let (owner, wall) = (owner::this_process(), self.clock.machine.wall());
        let record = Record { time, owner, sequence: 0, operation };
        if handle.has_new_clock() {
            handle.publish()?;
        }
        Ok((handle.append(&record, wall)?, time))
    }

    /// Removes those who wait and have ended. One process does that for all: if each did, it would cost the square of their
    /// number. `least`: how long ago it was done at least.
    fn sweep(&self, handle: &mut Handle, least: Nanos) -> Result<(), FileError> {
        let now = self.clock.read(&mut handle.kept);
        // A place that a command has left is taken at once.
        let least = if handle.kept.ledger.running() > 0 { least.min(LOOK / 50) } else { least };
        let of_all = SWEEP.saturating_mul(handle.kept.ledger.owners().count() as u64);
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
    fn clock(&self) -> &dyn Clock {
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
        let applied = self.handle().locked(|handle| {
            policy.map_or(Ok(()), |policy| handle.record(&policy))?;
            self.sweep(handle, 0)?;
            self.append(handle, operation)
        });
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

    fn started(&self, grant: &Grant, pid: u32) -> Result<(), StoreError> {
        let process = owner::of(pid).filter(|_| self.policy().counts_jobs());
        let start = |process| Operation::Start { number: grant.number(), process };
        process.map_or(Ok(()), |process| self.apply(start(process)).map(drop))
    }

    fn leave(&self) -> bool {
        // One that sleeps may wait for somebody who keeps the file locked.
        let Some(mut handle) = lock_soon(&self.handle) else { return false };
        let soon = Instant::now() + RETURN_TIMEOUT;
        handle.deadline = Some(handle.deadline.map_or(soon, |deadline| deadline.min(soon)));
        true
    }
}
