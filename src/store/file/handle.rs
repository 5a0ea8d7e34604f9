//! The open file of a bucket: locks it, reads the newest state, writes the next.

use super::error::FileError;
use super::identity::Identity;
use super::machine::Machine;
use super::place::{self, First, Place, errno, failed};
use super::slots::{self, Kept, PREFIX, Prefix};
use crate::limits::{Limits, Policy};
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The file, and its state as last seen.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) place: Place,
    pub(super) kept: Kept,
    /// Until when to wait for others who have the file locked.
    pub(super) deadline: Option<Instant>,
    machine: Machine,
    file: File,
    identity: Identity,
    /// How many files were at this path before. A grant of an earlier file cannot be given back to this one.
    generation: u64,
    /// The prefix of the state in `kept`; `None` if `kept` is not the state in the file.
    known: Option<Prefix>,
    /// The prefix in the other slot, which takes the next state.
    other: Prefix,
    words: Vec<u64>,
    bytes: Vec<u8>,
}

impl Handle {
    /// Opens the file. If there is none, it is made with `policy`.
    pub(super) fn open(
        machine: Machine,
        place: Place,
        policy: Option<&Policy>,
        deadline: Option<Instant>,
    ) -> Result<Self, FileError> {
        let file = open_or_make(&machine, &place, policy)?;
        Handle::of(file, machine, place, deadline)
    }

    /// Opens the file only to look at it: one that may only be read will do.
    pub(super) fn open_to_look(machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        let file = place::open(&place, OFlags::RDONLY)?.ok_or_else(|| FileError::Unknown(place.path.clone()))?;
        Handle::of(file, machine, place, deadline)
    }

    fn of(file: File, machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        place::lock(&place.path, &file, deadline)?;
        let state = newest(&place, &file, &machine, None);
        unlock(&file);
        let Newest { known, other, kept } = state?;
        let identity = Identity::of(&place.path, &file)?;
        let (words, bytes) = (Vec::new(), Vec::new());
        Ok(Handle { place, kept, deadline, machine, file, identity, generation: 0, known, other, words, bytes })
    }

    /// Applies `act` to the newest state under the file's lock.
    pub(super) fn locked<T, E: From<FileError>>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock()?;
        let result = self.refresh().map_err(E::from).and_then(|()| act(self));
        unlock(&self.file);
        result
    }

    /// The number of the newest state.
    pub(super) fn number(&self) -> Option<u64> {
        self.known.map(|prefix| prefix.number)
    }

    /// Identifies the file among those that were at this path, while it is locked.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Locks the file that the path names. If the user removed it or moved it away to start again, this continues with
    /// the file that replaced it: of one path there is one bucket.
    fn lock(&mut self) -> Result<(), FileError> {
        loop {
            place::lock(&self.place.path, &self.file, self.deadline)?;
            if Identity::at(&self.place.path)? == Some(self.identity) {
                return Ok(());
            }
            self.file = open_or_make(&self.machine, &self.place, Some(&self.kept.policy))?;
            self.identity = Identity::of(&self.place.path, &self.file)?;
            self.generation += 1;
            self.known = None;
        }
    }

    /// Every writer puts its first new state into the older slot. As long as that slot is unchanged, the state is, too.
    fn refresh(&mut self) -> Result<(), FileError> {
        if let Some(known) = self.known
            && prefix(&self.place, &self.file, known.number + 1)? == self.other
        {
            return Ok(());
        }
        let newest = newest(&self.place, &self.file, &self.machine, Some(&self.kept))?;
        (self.known, self.other, self.kept) = (newest.known, newest.other, newest.kept);
        Ok(())
    }

    /// Writes and syncs the record of a policy, for the case that the state is lost when the machine stops.
    pub(super) fn record(&self, policy: &Policy) -> Result<(), FileError> {
        let written = self.file.write_all_at(&slots::encode_policy(policy), slots::POLICY);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(|error| failed("write the bucket", &self.place.path, errno(&error)))
    }

    /// Writes `kept` as the next state. If that fails, the file is unchanged.
    pub(super) fn publish(&mut self) -> Result<(), FileError> {
        let number = self.number().map_or(1, |number| number + 1);
        // Until the write succeeds, the state in the file is unknown.
        let before = self.known.take();
        slots::encode(number, &self.kept, &mut self.words, &mut self.bytes);
        check_size(&self.place, &self.bytes)?;
        let written = self.file.write_all_at(&self.bytes, slots::place(number)).inspect_err(|_| {
            // The part that was written is complete if only zeros are missing, which a hole in the file reads as.
            let _ = self.file.write_all_at(&[0; PREFIX], slots::place(number));
        });
        written.map_err(|error| failed("write the bucket", &self.place.path, errno(&error)))?;
        (self.known, self.other) = (Some(Prefix::read(&self.bytes)), before.unwrap_or_default());
        Ok(())
    }
}

/// A state longer than its slot would overwrite the other slot.
fn check_size(place: &Place, state: &[u8]) -> Result<(), FileError> {
    let (length, most) = (state.len() as u64, slots::SLOT);
    if length > most { Err(FileError::TooLarge { path: place.path.clone(), length, most }) } else { Ok(()) }
}

fn unlock(file: &File) {
    // Closing the file would unlock it, too. Nothing can be done if this fails.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

fn open_or_make(machine: &Machine, place: &Place, policy: Option<&Policy>) -> Result<File, FileError> {
    loop {
        if let Some(file) = place::open(place, OFlags::RDWR)? {
            return Ok(file);
        }
        let policy = policy.ok_or_else(|| FileError::Unknown(place.path.clone()))?;
        let state = first_state(machine, policy)?;
        check_size(place, &state)?;
        place::create(place, &First { policy: slots::encode_policy(policy), state, room: slots::room(policy) })?;
    }
}

fn first_state(machine: &Machine, policy: &Policy) -> Result<Vec<u8>, FileError> {
    super::File::check(policy)?;
    let mut bytes = Vec::new();
    slots::encode(0, &first(machine, policy), &mut Vec::new(), &mut bytes);
    Ok(bytes)
}

fn first(machine: &Machine, policy: &Policy) -> Kept {
    let now = machine.clock.now();
    let (policy, line) = (policy.clone(), Limits::new(policy, now).into());
    Kept { boot: machine.boot, ahead: 0, at: now, wall: machine.wall(), policy, line }
}

/// The prefix of the state in a slot.
fn prefix(place: &Place, file: &File, slot: u64) -> Result<Prefix, FileError> {
    let mut bytes = [0; PREFIX];
    let read = rustix::io::pread(file, &mut bytes, slots::place(slot));
    let length = read.map_err(|error| failed("read the bucket", &place.path, error))?;
    Ok(Prefix::read(&bytes[..length]))
}

/// The newest complete state, and the prefix in the other slot.
struct Newest {
    known: Option<Prefix>,
    other: Prefix,
    kept: Kept,
}

fn newest(place: &Place, file: &File, machine: &Machine, before: Option<&Kept>) -> Result<Newest, FileError> {
    let mut both = [prefix(place, file, 0)?, prefix(place, file, 1)?];
    both.sort_by_key(|prefix| std::cmp::Reverse(prefix.number));
    for (known, other) in [(both[0], both[1]), (both[1], both[0])] {
        if let Some(kept) = read_state(place, file, known, before)? {
            return Ok(Newest { known: Some(known), other, kept });
        }
    }
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let path = || place.path.clone();
    // In every complete file, at least the start of the second slot is written.
    if length <= slots::place(1) {
        return Err(FileError::Truncated { path: path(), length });
    }
    let kept = recover(place, file, machine)?.ok_or_else(|| FileError::Damaged(path()))?;
    Ok(Newest { known: None, other: Prefix::default(), kept })
}

/// What to go on with if neither slot is complete, as after a power cut in the middle of writing both: the policy as
/// recorded, with everything used up that may have been used.
fn recover(place: &Place, file: &File, machine: &Machine) -> Result<Option<Kept>, FileError> {
    let mut bytes = [0; slots::POLICY_SIZE];
    let read = rustix::io::pread(file, &mut bytes, slots::POLICY);
    let length = read.map_err(|error| failed("read the bucket", &place.path, error))?;
    Ok(slots::decode_policy(&bytes[..length]).map(|policy| {
        let mut kept = first(machine, &policy);
        kept.line.limits.use_up(kept.at);
        kept
    }))
}

fn read_state(place: &Place, file: &File, prefix: Prefix, before: Option<&Kept>) -> Result<Option<Kept>, FileError> {
    let Some(length) = prefix.length() else { return Ok(None) };
    let mut bytes = vec![0; PREFIX + length];
    let read = rustix::io::pread(file, &mut bytes, slots::place(prefix.number));
    let length = read.map_err(|error| failed("read the bucket", &place.path, error))?;
    Ok(slots::decode(&bytes[..length], before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;

    fn policy(limit: &str, times: usize) -> Policy {
        Policy::new(&vec![limit.parse().unwrap(); times], None).unwrap()
    }

    /// It would overwrite the state before it, which has to survive if the writer is killed.
    #[test]
    fn a_state_that_is_longer_than_its_slot_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false };
        let machine = Machine::fake(&FakeClock::at(0), 1, 0);
        let mut handle = Handle::open(machine, place, Some(&policy("5/s", 1)), None).unwrap();
        let before = std::fs::read(&handle.place.path).unwrap();
        handle.kept.policy = policy("1024/h,window", 70);
        handle.kept.line = Limits::new(&handle.kept.policy, 0).into();
        for grant in 0..1024 {
            let _ = handle.kept.line.limits.take(grant, 1).unwrap();
        }
        let error = handle.locked(Handle::publish).unwrap_err();
        assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
        assert_eq!(std::fs::read(&handle.place.path).unwrap(), before);
        let limits = handle.locked(|handle| Ok::<_, FileError>(handle.kept.policy.to_string())).unwrap();
        assert_eq!(limits, "5/s,burst=1");
    }
}
