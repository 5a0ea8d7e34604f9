//! The open file of a bucket: locks it, reads the newest state, writes the next.

use super::error::{FileError, failed};
use super::machine::Machine;
use super::place::{self, Identity, Place};
use super::slots::{self, Kept, LOG, PREFIX, Prefix};
use crate::clock::Nanos;
use crate::limits::{Ledger, Policy, Record, Reply};
use crate::store::random;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The file, and its state as last seen.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) place: Place,
    pub(super) kept: Kept,
    /// Until when to wait for others who have the file locked.
    pub(super) deadline: Option<Instant>,
    /// When it was last looked for processes that wait and have ended.
    pub(super) swept: Nanos,
    machine: Machine,
    file: File,
    identity: Identity,
    /// The prefix of the snapshot that `kept` goes on from; `None` if `kept` is not the state in the file.
    known: Option<Prefix>,
    /// The prefix in the other slot, which takes the next snapshot.
    other: Prefix,
    /// Where the log ends in the file.
    end: u64,
    /// The boot and the offset of the clock, as the snapshot in the file has them.
    clock: (u128, i64),
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
        place::give_to_group(&place, &file)?;
        Handle::of(file, machine, place, deadline)
    }

    /// Opens the file only to look at it: one that may only be read will do.
    pub(super) fn open_to_look(machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        let file = place::open(&place, OFlags::RDONLY)?.ok_or_else(|| FileError::Unknown(place.path.clone()))?;
        Handle::of(file, machine, place, deadline)
    }

    fn of(file: File, machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        let place = place::as_found(place, &file)?;
        place::lock(&place.path, &file, deadline)?;
        let state = newest(&place, &file, &machine);
        unlock(&file);
        let Newest { known, other, kept, end } = state?;
        let (identity, clock) = (Identity::of(&place.path, &file)?, (kept.boot, kept.ahead));
        Ok(Handle { place, kept, deadline, swept: 0, machine, file, identity, known, other, end, clock })
    }

    /// Applies `act` to the newest state under the file's lock.
    pub(super) fn locked<T, E: From<FileError>>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        // One that was replaced may be locked already.
        self.lock().inspect_err(|_| unlock(&self.file))?;
        let result = self.refresh().map_err(E::from).and_then(|()| act(self));
        unlock(&self.file);
        result
    }

    /// Locks the file that the path names. If the user removed it or moved it away to start again, this continues with
    /// the file that replaced it: of one path there is one bucket.
    fn lock(&mut self) -> Result<(), FileError> {
        loop {
            place::lock(&self.place.path, &self.file, self.deadline)?;
            if Identity::at(&self.place.path)? == Some(self.identity) {
                return Ok(());
            }
            self.file = open_or_make(&self.machine, &self.place, Some(self.kept.ledger.policy()))?;
            self.identity = Identity::of(&self.place.path, &self.file)?;
            self.known = None;
        }
    }

    /// Folds what others appended. As long as both prefixes are unchanged, the snapshot is, too.
    fn refresh(&mut self) -> Result<(), FileError> {
        if let Some(known) = self.known
            && prefix(&self.place, &self.file, known.number + 1)? == self.other
            && prefix(&self.place, &self.file, known.number)? == known
        {
            return read_log(&self.place, &self.file, known, &mut self.end, &mut self.kept);
        }
        let Newest { known, other, kept, end } = newest(&self.place, &self.file, &self.machine)?;
        (self.known, self.other, self.kept, self.end) = (known, other, kept, end);
        self.clock = (self.kept.boot, self.kept.ahead);
        Ok(())
    }

    /// Whether the machine was restarted, and the file does not say yet how the clock went on: everybody would work that out
    /// from the wall clock, and come to another time.
    pub(super) fn has_new_clock(&self) -> bool {
        (self.kept.boot, self.kept.ahead) != self.clock
    }

    /// Writes and syncs the record of a policy, for the case that the state is lost when the machine stops.
    pub(super) fn record(&self, policy: &Policy) -> Result<(), FileError> {
        let written = self.file.write_all_at(&slots::encode_policy(policy), slots::POLICY);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(|error| failed("write the bucket", &self.place.path, error))
    }

    /// Applies an operation and appends it to the log. If that cannot be written, the file is unchanged.
    pub(super) fn append(&mut self, record: &Record, wall: u64) -> Result<Reply, FileError> {
        let reply = self.kept.ledger.apply(record);
        (self.kept.at, self.kept.wall) = (record.time, wall);
        // Until the write succeeds, the state in the file is unknown.
        let Some(known) = self.known.take() else { return self.publish().map(|()| reply) };
        let bytes = slots::encode_record(known.number, self.end, wall, record);
        // Others read a whole log at once, of at most this length and one record of `LOG` bytes.
        let is_full = self.end - slots::log_of(&known) >= slots::longest_log(known.length().unwrap_or(0)) as u64;
        if is_full || bytes.len() > LOG {
            self.known = Some(known);
            return self.publish().map(|()| reply);
        }
        let written = self.file.write_all_at(&bytes, self.end).inspect_err(|_| {
            // As below: the record must not become complete.
            let _ = self.file.write_all_at(&[0; slots::RECORD], self.end);
        });
        written.map_err(|error| failed("write the bucket", &self.place.path, error))?;
        self.known = Some(known);
        self.end += bytes.len() as u64;
        Ok(reply)
    }

    /// Writes `kept` as the next snapshot. If that fails, the file is unchanged.
    pub(super) fn publish(&mut self) -> Result<(), FileError> {
        let before = self.known.take();
        let number = before.map_or(self.other.number, |before| before.number) + 1;
        let bytes = slots::encode(number, &self.kept);
        check_size(&self.place, &bytes)?;
        let written = self.file.write_all_at(&bytes, slots::place(number)).inspect_err(|_| {
            // The part that was written is complete if only zeros are missing, which a hole in the file reads as.
            let _ = self.file.write_all_at(&[0; PREFIX], slots::place(number));
        });
        written.map_err(|error| failed("write the bucket", &self.place.path, error))?;
        let known = Prefix::read(&bytes);
        (self.known, self.other, self.end) = (Some(known), before.unwrap_or_default(), slots::log_of(&known));
        self.clock = (self.kept.boot, self.kept.ahead);
        Ok(())
    }
}

/// A snapshot that is too long would overwrite the other slot.
fn check_size(place: &Place, state: &[u8]) -> Result<(), FileError> {
    let (length, most) = (state.len() as u64, slots::MOST);
    let error = || io::Error::other(format!("its state is {length} bytes, and the most is {most}; set fewer limits"));
    if length > most { Err(failed("write the bucket", &place.path, error())) } else { Ok(()) }
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
        let state = slots::encode(0, &first(machine, policy));
        check_size(place, &state)?;
        place::create(place, (&slots::encode_policy(policy), &state, slots::room(policy)))?;
    }
}

fn first(machine: &Machine, policy: &Policy) -> Kept {
    let (now, wall) = (machine.clock.now(), machine.wall());
    Kept { boot: machine.boot, ahead: 0, at: now, wall, ledger: Ledger::new(policy, now, random()) }
}

/// The prefix of the state in a slot.
fn prefix(place: &Place, file: &File, slot: u64) -> Result<Prefix, FileError> {
    let mut bytes = [0; PREFIX];
    let length = read(place, file, &mut bytes, slots::place(slot))?;
    Ok(Prefix::read(&bytes[..length]))
}

/// The newest complete snapshot with its log folded, the prefix in the other slot, and where the log ends.
struct Newest {
    known: Option<Prefix>,
    other: Prefix,
    kept: Kept,
    end: u64,
}

fn newest(place: &Place, file: &File, machine: &Machine) -> Result<Newest, FileError> {
    let mut both = [prefix(place, file, 0)?, prefix(place, file, 1)?];
    both.sort_by_key(|prefix| std::cmp::Reverse(prefix.number));
    for (known, other) in [(both[0], both[1]), (both[1], both[0])] {
        if let Some(mut kept) = read_snapshot(place, file, known)? {
            let mut end = slots::log_of(&known);
            read_log(place, file, known, &mut end, &mut kept)?;
            return Ok(Newest { known: Some(known), other, kept, end });
        }
    }
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let path = || place.path.clone();
    // In every complete file, at least the start of the second slot is written.
    if length <= slots::place(1) {
        return Err(FileError::Damaged(path(), Some(length)));
    }
    let kept = recover(place, file, machine)?.ok_or_else(|| FileError::Damaged(path(), None))?;
    Ok(Newest { known: None, other: Prefix::default(), kept, end: 0 })
}

/// What to go on with if neither slot is complete, as after a power cut in the middle of writing both: the policy as
/// recorded, with everything used up that may have been used.
fn recover(place: &Place, file: &File, machine: &Machine) -> Result<Option<Kept>, FileError> {
    let mut bytes = [0; slots::POLICY_SIZE];
    let length = read(place, file, &mut bytes, slots::POLICY)?;
    Ok(slots::decode_policy(&bytes[..length]).map(|policy| {
        let mut kept = first(machine, &policy);
        kept.ledger.use_up(kept.at);
        kept
    }))
}

fn read_snapshot(place: &Place, file: &File, prefix: Prefix) -> Result<Option<Kept>, FileError> {
    let Some(length) = prefix.length() else { return Ok(None) };
    let mut bytes = vec![0; PREFIX + length];
    let length = read(place, file, &mut bytes, slots::place(prefix.number))?;
    Ok(slots::decode(&bytes[..length]))
}

/// Folds the complete records from `end` on: mostly few, at most a whole log.
fn read_log(place: &Place, file: &File, known: Prefix, end: &mut u64, kept: &mut Kept) -> Result<(), FileError> {
    let number = known.number;
    for size in [1_000, slots::longest_log(known.length().unwrap_or(0)) + LOG] {
        let mut bytes = vec![0; size];
        let length = read(place, file, &mut bytes, *end)?;
        let mut rest = &bytes[..length];
        while let Some((record, wall, length)) = slots::decode_record(number, *end, rest) {
            kept.ledger.apply(&record);
            (kept.at, kept.wall) = (record.time, wall);
            *end += length as u64;
            rest = &rest[length..];
        }
        if length < size || slots::record_length(rest) <= rest.len() {
            break;
        }
    }
    Ok(())
}

/// Reads at an offset, as much as there is.
fn read(place: &Place, file: &File, into: &mut [u8], offset: u64) -> Result<usize, FileError> {
    rustix::io::pread(file, into, offset).map_err(|error| failed("read the bucket", &place.path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::limits::{Operation, Take};

    fn policy(limit: &str, times: usize) -> Policy {
        Policy::new(&vec![limit.parse().unwrap(); times], None).unwrap()
    }

    /// It would overwrite the state before it, which has to survive if the writer is killed.
    #[test]
    fn a_state_that_is_longer_than_its_slot_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let machine = Machine::fake(&FakeClock::at(0), 1, 0);
        let mut handle = Handle::open(machine, place, Some(&policy("5/s", 1)), None).unwrap();
        let before = std::fs::read(&handle.place.path).unwrap();
        handle.kept.ledger = Ledger::new(&policy("1024/h,window", 10_000), 0, 0);
        for time in 0..1024 {
            let operation = Operation::Take(Take { costs: [1].into(), ..Take::default() });
            handle.kept.ledger.apply(&Record { time, owner: [0; 2], sequence: 0, operation });
        }
        let error = handle.locked(Handle::publish).unwrap_err();
        assert!(error.to_string().contains("the most is"), "{error}");
        assert_eq!(std::fs::read(&handle.place.path).unwrap(), before);
        let limits = handle.locked(|handle| Ok::<_, FileError>(handle.kept.ledger.policy().to_string())).unwrap();
        assert_eq!(limits, "5/s,burst=1");
    }
}
