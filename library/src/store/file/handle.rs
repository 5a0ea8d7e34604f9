//! The open file of a bucket: locks it, folds its log, and writes operations and snapshots.

use super::error::{FileError, failed};
use super::machine::Machine;
use super::place::{self, Identity, Place};
use super::reading::{self, Newest, first, newest, prefix};
use super::slots::{self, Kept, LOG, PREFIX, Prefix};
use crate::clock::Nanos;
use crate::ledger::operation::Record;
use crate::limits::Policy;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The file, and its state as last read.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) place: Place,
    pub(super) kept: Kept,
    /// Until when to wait for other processes that have the file locked.
    pub(super) deadline: Option<Instant>,
    machine: Machine,
    file: File,
    identity: Identity,
    /// The prefix of the snapshot from which `kept` was folded; `None` if `kept` is not the state in the file.
    known: Option<Prefix>,
    /// The prefix in the other slot, which takes the next snapshot.
    other: Prefix,
    /// The offset of the end of the log.
    end: u64,
    /// The boot and the offset of the clock in the snapshot of the file.
    clock: (u128, i64),
    /// Whether damage was reported.
    is_reported: bool,
}

impl Handle {
    /// Opens the file. If it does not exist, it is made with `policy`.
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

    /// Opens the file for reading only.
    pub(super) fn open_to_look(machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        let file = place::open(&place, OFlags::RDONLY)?.ok_or_else(|| FileError::Unknown(place.path.clone()))?;
        Handle::of(file, machine, place, deadline)
    }

    fn of(file: File, machine: Machine, place: Place, deadline: Option<Instant>) -> Result<Self, FileError> {
        let place = place::as_found(place, &file)?;
        place::lock(&place.path, &file, deadline)?;
        let state = newest(&place, &file, &machine);
        unlock(&file);
        let identity = Identity::of(&place.path, &file)?;
        let Newest { known, other, kept, end, lost } = state?;
        let clock = (kept.boot, kept.ahead);
        let mut handle =
            Handle { place, kept, deadline, machine, file, identity, known, other, end, clock, is_reported: false };
        handle.report(lost.as_deref());
        Ok(handle)
    }

    /// Reports damage, once.
    fn report(&mut self, lost: Option<&str>) {
        if let Some(lost) = lost.filter(|_| !self.is_reported) {
            (self.machine.report)(&format!("the bucket {} was damaged: {lost}", self.place.path.display()));
        }
        self.is_reported = lost.is_some();
    }

    /// Applies `act` to the newest state under the file's lock.
    pub(super) fn locked<T, E: From<FileError>>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        // If this fails, a file that replaced another may already be locked.
        self.lock().inspect_err(|_| unlock(&self.file))?;
        let (result, lost) = match self.refresh() {
            Ok(lost) => (act(self), lost),
            Err(error) => (Err(error.into()), None),
        };
        unlock(&self.file);
        // A report may take long, for example if nobody reads standard error. Other processes do not wait for that.
        self.report(lost.as_deref());
        result
    }

    /// Locks the file that the path names. If the user removed it or moved it away to start again, this continues with
    /// the file that replaced it: each path has one bucket.
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

    /// Folds the operations that others appended, and returns the damage. While both prefixes are unchanged, the snapshot
    /// is unchanged.
    fn refresh(&mut self) -> Result<Option<String>, FileError> {
        if let Some(known) = self.known
            && prefix(&self.place, &self.file, known.number.wrapping_add(1))? == self.other
            && prefix(&self.place, &self.file, known.number)? == known
        {
            let lost = reading::read_log(&self.place, &self.file, known, &mut self.end, &mut self.kept)?;
            if lost.is_some() {
                (self.known, self.other) = (None, known);
                reading::use_up(&self.place, &self.file, &self.machine, &mut self.kept)?;
            }
            return Ok(lost);
        }
        let Newest { known, other, kept, end, lost } = newest(&self.place, &self.file, &self.machine)?;
        (self.known, self.other, self.kept, self.end) = (known, other, kept, end);
        self.clock = (self.kept.boot, self.kept.ahead);
        Ok(lost)
    }

    /// The time of the last sweep by any process.
    pub(super) fn swept(&self) -> Result<Nanos, FileError> {
        let mut bytes = [0; 8];
        reading::read(&self.place, &self.file, &mut bytes, slots::SWEPT)?;
        Ok(Nanos::from_le_bytes(bytes))
    }

    /// Stores the time of a sweep by this process.
    pub(super) fn sweep_at(&self, now: Nanos) -> Result<(), FileError> {
        self.write(&now.to_le_bytes(), slots::SWEPT)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| failed("write the bucket", &self.place.path, error))
    }

    /// Writes and syncs the record of a policy, in case the state is lost when the machine stops.
    pub(super) fn record(&self, policy: &Policy) -> Result<(), FileError> {
        self.write(&slots::encode_policy(policy), slots::POLICY)?;
        self.file.sync_data().map_err(|error| failed("write the bucket", &self.place.path, error))
    }

    /// Applies a record and appends it to the log. If the write fails, the file is unchanged.
    pub(super) fn append(&mut self, record: &Record, wall: u64) -> Result<(), FileError> {
        self.kept.ledger.apply(record);
        (self.kept.at, self.kept.wall) = (record.time, wall);
        // Until the write succeeds, the state in the file is unknown.
        let Some(known) = self.known.take() else { return self.publish() };
        let mut bytes = slots::encode_record(known.number, self.end, wall, record);
        let length = bytes.len();
        // Other processes read a whole log at once: at most this length and one record of `LOG` bytes.
        let is_full = self.end - slots::log_of(&known) >= slots::longest_log(known.length().unwrap_or(0)) as u64;
        // After a restart, every process would calculate the offset of the clock from the wall clock, with different
        // results.
        let has_new_clock = (self.kept.boot, self.kept.ahead) != self.clock;
        if is_full || has_new_clock || length > LOG {
            self.known = Some(known);
            return self.publish();
        }
        bytes.extend(slots::END);
        // A record that was partly written must not become complete later. That could happen if only zeros are missing,
        // because a hole in the file reads as zeros.
        self.write(&bytes, self.end).inspect_err(|_| drop(self.write(&slots::END, self.end)))?;
        self.known = Some(known);
        self.end += length as u64;
        Ok(())
    }

    /// Writes `kept` as the next snapshot. If that fails, the file is unchanged.
    pub(super) fn publish(&mut self) -> Result<(), FileError> {
        let before = self.known.take();
        let number = before.map_or(self.other.number, |before| before.number).wrapping_add(1);
        let bytes = slots::encode(number, &self.kept);
        check_size(&self.place, &bytes)?;
        let (prefix, state) = bytes.split_at(PREFIX);
        let place = slots::place(number);
        // A process that is killed here leaves an unused slot.
        self.write(&[0; PREFIX], place)?;
        self.write(&[state, &slots::END].concat(), place + PREFIX as u64)?;
        self.write(prefix, place).inspect_err(|_| drop(self.write(&[0; PREFIX], place)))?;
        if before.is_none() {
            // The content of the other slot is damaged.
            self.write(&[0; PREFIX], slots::place(number.wrapping_add(1)))?;
        }
        let known = Prefix::read(&bytes);
        (self.known, self.other, self.end) = (Some(known), before.unwrap_or_default(), slots::log_of(&known));
        self.clock = (self.kept.boot, self.kept.ahead);
        Ok(())
    }
}

/// Checks the length of a snapshot, because a longer one would overwrite the other slot.
fn check_size(place: &Place, state: &[u8]) -> Result<(), FileError> {
    let (length, most) = (state.len() as u64, slots::MAX_SNAPSHOT_BYTES);
    let error = || io::Error::other(format!("its state is {length} bytes, but at most {most} fit; set fewer limits"));
    if length > most { Err(failed("write the bucket", &place.path, error())) } else { Ok(()) }
}

fn unlock(file: &File) {
    // Closing the file would unlock it anyway. Nothing can be done if this fails.
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
        place::create(place, &slots::encode_policy(policy), state, slots::room(policy))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::ledger::Replica;
    use crate::ledger::operation::{Ask, Operation};

    fn policy(limit: &str, times: usize) -> Policy {
        Policy::new(&vec![limit.parse().unwrap(); times], None).unwrap()
    }

    /// A request at this time, which is its ticket, too.
    fn record(time: Nanos, cost: u64) -> Record {
        let ask = Ask { ticket: time, costs: [cost].into(), latest: Nanos::MAX, ..Ask::default() };
        Record { time, owner: [0; 2], sequence: 0, operations: vec![Operation::Ask(vec![ask])] }
    }

    /// It would overwrite the previous state, which must survive if the writer is killed.
    #[test]
    #[ignore = "slow: 12 s"]
    fn a_state_that_is_longer_than_its_slot_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let machine = Machine::fake(&FakeClock::default(), 1, 0);
        let mut handle = Handle::open(machine, place, Some(&policy("5/s", 1)), None).unwrap();
        let before = std::fs::read(&handle.place.path).unwrap();
        handle.kept.ledger = Replica::new(&policy("1024/h,window", 10_000), 0, 0, 10);
        for time in 0..1024 {
            handle.kept.ledger.apply(&record(time, 1));
        }
        let error = handle.locked(Handle::publish).unwrap_err();
        assert!(error.to_string().contains("but at most"), "{error}");
        assert_eq!(std::fs::read(&handle.place.path).unwrap(), before);
        let limits = handle.locked(|handle| Ok::<_, FileError>(handle.kept.ledger.policy().to_string())).unwrap();
        assert_eq!(limits, "5/s,burst=1");
    }

    #[test]
    fn a_snapshot_after_the_highest_number_is_the_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let machine = Machine::fake(&FakeClock::default(), 1, 0).telling(|damage| panic!("{damage}"));
        let open = || Handle::open(machine.clone(), place.clone(), Some(&policy("9/h,window", 1)), None).unwrap();
        let first = open();
        let bytes = slots::encode(u64::MAX, &first.kept);
        first.file.write_all_at(&bytes, slots::place(1)).unwrap();
        first.file.write_all_at(&[0; PREFIX], slots::place(0)).unwrap();
        for number in [0, 1] {
            let mut handle = open();
            handle.locked(Handle::publish).unwrap();
            assert_eq!(open().known.map(|known| known.number), Some(number));
        }
    }

    /// A process that is killed while it writes a snapshot loses nothing. A complete snapshot that was damaged later is
    /// reported as lost.
    #[test]
    fn a_snapshot_is_lost_only_if_it_was_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let reports = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let reported = std::sync::Arc::clone(&reports);
        let report = move |damage: &str| reported.lock().unwrap().push(damage.to_owned());
        let machine = Machine::fake(&FakeClock::default(), 1, 0).telling(report);
        let open = || Handle::open(machine.clone(), place.clone(), Some(&policy("9/h,window", 1)), None).unwrap();
        let available = |handle: &Handle| handle.kept.ledger.available(0);
        let mut ticket = 0;
        let mut take = |handle: &mut Handle| {
            ticket += 1;
            handle.append(&record(ticket, 2), 0)
        };
        let mut first = open();
        first.locked(&mut take).unwrap();
        first.locked(Handle::publish).unwrap();
        first.locked(&mut take).unwrap();
        let older = slots::place(0);
        // The next snapshot, cut off before its prefix was written.
        first.file.write_all_at(&[0; PREFIX], older).unwrap();
        first.file.write_all_at(b"part of a state", older + PREFIX as u64).unwrap();
        assert_eq!((available(&open()), reports.lock().unwrap().len()), (5, 0));
        let prefix = [2, 900, 7].map(u64::to_le_bytes);
        first.file.write_all_at(prefix.as_flattened(), older).unwrap();
        let mut damaged = open();
        assert_eq!((available(&damaged), reports.lock().unwrap().len()), (0, 1));
        assert!(reports.lock().unwrap()[0].contains("the newer of its snapshots is lost"));
        damaged.locked(&mut take).unwrap();
        assert_eq!((available(&open()), reports.lock().unwrap().len()), (0, 1), "it is repaired");
    }

    /// A report may block. Then every process that used the bucket waited for it.
    #[test]
    fn damage_is_reported_when_the_file_is_unlocked() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let (reports, path) = (std::sync::Arc::new(std::sync::Mutex::new(Vec::new())), place.path.clone());
        let reported = std::sync::Arc::clone(&reports);
        let is_free = move || place::lock(&path, &File::open(&path).unwrap(), Some(Instant::now())).is_ok();
        let report = move |_: &str| reported.lock().unwrap().push(is_free());
        let machine = Machine::fake(&FakeClock::default(), 1, 0).telling(report);
        let mut handle = Handle::open(machine, place, Some(&policy("5/s", 1)), None).unwrap();
        let damaged = [2, 900, 7].map(u64::to_le_bytes);
        handle.file.write_all_at(damaged.as_flattened(), slots::place(0)).unwrap();
        handle.locked(Handle::publish).unwrap();
        assert_eq!(*reports.lock().unwrap(), [true]);
    }
}
