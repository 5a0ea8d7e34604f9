//! Limits in a file, for any number of processes of one user on one machine.
//!
//! Every question is one step under the file's lock: read the state, decide, write the next state into the other slot.
//! The answer is a time, and whoever got it sleeps without holding anything. Times are of the bucket's own clock: the boot
//! clock, which all processes share, and ahead of it by what passed before the machine was last started.

use super::lease::Lease;
use super::retiring::{Stoppable, lock_soon};
use super::{Shared, Store, StoreError, View};
use crate::clock::{Clock, Nanos, SECOND};
use crate::limits::{Grant, Limits, Plan, Refusal};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod error;
mod handle;
mod machine;
mod nameless;
mod network;
mod place;
mod slots;

pub use error::FileError;
use handle::Handle;
pub use machine::Machine;
pub use place::Place;
use slots::Kept;

/// Limits in a file.
#[derive(Debug)]
pub struct File {
    clock: Stoppable<FileClock>,
    handle: Mutex<Handle>,
    held: Mutex<Held>,
    /// The limits as they were when opened, or set by us: whoever asks counts what these count.
    meant: Mutex<Plan>,
}

/// The bucket's clock.
#[derive(Debug)]
struct FileClock {
    machine: Machine,
    ahead: AtomicI64,
}

impl FileClock {
    /// The time on the bucket's clock, which has gone on while the machine was off by as much as the wall clock says: not
    /// less than nothing, and not more than it takes to fill everything.
    fn read(&self, kept: &mut Kept) -> Nanos {
        let now = self.machine.clock.now().saturating_add_signed(kept.ahead);
        // A boot clock does not go back but with the whole machine, as when a snapshot of it is restored.
        if kept.boot != self.machine.boot || now.saturating_add(SECOND) < kept.at {
            let full = kept.limits.rested_at().saturating_sub(kept.at);
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

    fn sleep_until(&self, time: Nanos) {
        self.machine.clock.sleep_until(time.saturating_add_signed(self.ahead.load(Ordering::Relaxed).saturating_neg()));
    }
}

/// The lease being used, and how it was taken, so that the rest of it can be given back.
#[derive(Debug, Default)]
struct Held {
    lease: Lease,
    taken: Option<Taken>,
}

#[derive(Debug)]
struct Taken {
    before: Limits,
    asked: Nanos,
    /// Of the file, and of the state with the lease in it.
    state: (u64, Option<u64>),
}

impl File {
    /// Whether a file can keep these limits. None is opened.
    ///
    /// # Errors
    /// [`FileError::Limits`].
    pub fn check(plan: &Plan) -> Result<(), FileError> {
        if plan.is_empty() || plan.len() > slots::MOST_LIMITS { Err(FileError::Limits) } else { Ok(()) }
    }

    /// The bucket at `place`. Where there is none it is made with `plan`.
    ///
    /// # Errors
    /// [`FileError`] says what is wrong with it, and how to mend that.
    pub fn open(place: Place, plan: Option<&Plan>) -> Result<Self, FileError> {
        File::open_on(Machine::this(), place, plan)
    }

    /// The same, on a given machine.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(machine: Machine, place: Place, plan: Option<&Plan>) -> Result<Self, FileError> {
        let mut handle = Handle::open(machine.clone(), place, plan)?;
        let clock = Stoppable::new(FileClock { machine, ahead: AtomicI64::new(0) });
        clock.read(&mut handle.kept);
        let meant = Mutex::new(handle.kept.plan.clone());
        Ok(File { clock, handle: Mutex::new(handle), held: Mutex::default(), meant })
    }

    /// What is kept in the bucket at `place`, which need not be writable.
    ///
    /// # Errors
    /// [`FileError`], as [`open`](Self::open).
    pub fn look(place: Place) -> Result<View, FileError> {
        let machine = Machine::this();
        let mut handle = Handle::open_to_look(machine.clone(), place)?;
        Ok(seen(&mut handle.kept, &FileClock { machine, ahead: AtomicI64::new(0) }))
    }

    /// One step: nobody else sees or changes anything meanwhile, and it is kept as a whole or not at all.
    fn step<T>(&self, act: impl FnOnce(&mut Kept, Nanos) -> Result<T, Refusal>) -> Result<T, StoreError> {
        self.handle().locked(|handle| self.step_locked(handle, act))
    }

    fn step_locked<T>(
        &self,
        handle: &mut Handle,
        act: impl FnOnce(&mut Kept, Nanos) -> Result<T, Refusal>,
    ) -> Result<T, StoreError> {
        let now = self.clock.read(&mut handle.kept);
        let result = act(&mut handle.kept, now)?;
        (handle.kept.at, handle.kept.wall) = (now, self.clock.machine.wall());
        handle.publish()?;
        Ok(result)
    }

    /// Takes a lease for `waiting` units, or as many as leave soon.
    fn lease(&self, waiting: u64) -> Result<Held, StoreError> {
        self.handle().locked(|handle| {
            let place = || handle.place.path.display().to_string();
            super::check_kind(place, &self.meant(), &handle.kept.plan)?;
            let before = handle.kept.limits.clone();
            let (lease, asked) =
                self.step_locked(handle, |kept, now| Ok((Lease::take(&mut kept.limits, now, waiting)?, now)))?;
            Ok(Held { lease, taken: Some(Taken { before, asked, state: state_of(handle) }) })
        })
    }

    /// Takes back what is left of a lease, if nothing was given to anybody since: as if it had never been asked for.
    fn return_lease(&self, held: Held) -> Result<(), StoreError> {
        let Some(taken) = held.taken.filter(|_| !held.lease.is_empty()) else { return Ok(()) };
        self.handle().locked(|handle| {
            if state_of(handle) != taken.state {
                return Ok(());
            }
            let mut limits = taken.before;
            let mut spent = held.lease.spent();
            while spent > 0 {
                spent -= limits.take_run(taken.asked, spent)?.units;
            }
            self.step_locked(handle, |kept, _| {
                kept.limits = limits;
                Ok(())
            })
        })
    }

    fn handle(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meant(&self) -> MutexGuard<'_, Plan> {
        self.meant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seen(kept: &mut Kept, clock: &FileClock) -> View {
    let now = clock.read(kept);
    let limits = &kept.limits;
    View {
        plan: kept.plan.clone(),
        left: (0..kept.plan.len()).filter_map(|place| limits.left(now, place)).collect(),
        available: limits.available(now),
        wait: limits.conforms_at(now, 1).ok().map(|(at, _)| at.saturating_sub(now)),
    }
}

/// The file and the number of the state in it.
fn state_of(handle: &Handle) -> (u64, Option<u64>) {
    (handle.generation(), handle.number())
}

impl Store for File {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn quantum(&self) -> u64 {
        self.handle().kept.limits.quantum()
    }

    fn available(&self) -> u64 {
        match self.held().lease.units() {
            0 => self.handle().kept.limits.available(self.clock.now()),
            units => units,
        }
    }

    fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let mut held = self.held();
        self.clock.pass();
        let now = self.clock.now();
        if held.lease.is_stale(now) {
            self.return_lease(std::mem::take(&mut held))?;
        }
        if let Some(grant) = held.lease.next(waiting) {
            return Ok((grant, now));
        }
        *held = self.lease(waiting)?;
        held.lease.next(waiting).map(|grant| (grant, now)).ok_or(Refusal::Never.into())
    }

    fn take_available(&self, units: u64) -> u64 {
        let now = self.clock.now();
        let mut held = self.held();
        if held.lease.is_stale(now) { 0 } else { held.lease.due(now, units) }
    }

    fn schedule(&self, units: u64) -> Option<Nanos> {
        self.handle().kept.limits.schedule(self.clock.now(), units)
    }

    fn retire(&self) {
        if self.clock.stop() {
            return;
        }
        let Some(mut held) = lock_soon(&self.held).map(|mut held| std::mem::take(&mut *held)) else { return };
        held.lease.take_back(self.clock.now());
        self.handle().is_leaving = true;
        let _ = self.return_lease(held);
    }
}

impl Shared for File {
    fn place(&self) -> String {
        self.handle().place.path.display().to_string()
    }

    fn plan(&self) -> Plan {
        self.handle().kept.plan.clone()
    }

    fn set(&self, plan: &Plan, fresh: &[bool]) -> Result<(), StoreError> {
        File::check(plan)?;
        self.step(|kept, now| {
            kept.limits.set(now, plan, fresh);
            kept.plan = plan.clone();
            Ok(())
        })?;
        *self.meant() = plan.clone();
        Ok(())
    }

    fn view(&self) -> Result<View, StoreError> {
        self.handle().locked(|handle| Ok(seen(&mut handle.kept, &self.clock)))
    }

    fn take(&self, units: u64, max_wait: Option<Nanos>) -> Result<(Grant, Nanos), StoreError> {
        self.handle().locked(|handle| {
            let (grant, now) = self.step_locked(handle, |kept, now| {
                let grant = match max_wait {
                    Some(max_wait) => kept.limits.take_within(now, units, max_wait)?,
                    None => kept.limits.take(now, units)?,
                };
                Ok((grant, now))
            })?;
            Ok((grant.of(handle.generation()), now))
        })
    }

    fn give_back(&self, grant: &Grant) -> Result<(), StoreError> {
        self.handle().is_leaving = true;
        self.handle().locked(|handle| {
            if grant.generation() != handle.generation() {
                return Ok(());
            }
            self.step_locked(handle, |kept, now| {
                kept.limits.give_back(now, grant);
                Ok(())
            })
        })
    }
}

/// What was reserved for units that will not come after all is given back, as far as that can be.
impl Drop for File {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held());
        // Where it cannot be given back, at most a lease is lost, as when we are killed.
        let _ = self.return_lease(held);
    }
}
