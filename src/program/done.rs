//! `--done FILE`: the bytes of each unit that succeeded, each with the input's delimiter. The next run leaves them out.
//!
//! A unit is recorded only after it has succeeded. After a crash before that it runs again. Two units are never taken for the
//! same ([`Identity`]).

use super::append::append;
use super::names::shown;
use super::say::{NoThread, say};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use throttle::flow::{start_thread, unpoisoned};
use throttle::launch::{Before, Identity, Known};

/// Bytes read at once.
const READ: usize = 128 * 1024;

/// The units that succeeded, in this run and in earlier ones. The file is locked against other processes.
#[derive(Debug)]
pub(super) struct Done {
    file: File,
    path: PathBuf,
    delimiter: u8,
    taken: Arc<Taken>,
    state: Mutex<State>,
    change: Condvar,
    /// How many units this run has added.
    added: AtomicU64,
    /// The thread that syncs the file.
    syncer: Mutex<Option<JoinHandle<()>>>,
}

impl Done {
    /// Opens the file, or makes it, and reads which units are in it. A last record without its end is cut off: returns how many
    /// bytes. Units that are added are synced to the disk once a `second`.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or is no list of units that end with `delimiter`; or no thread can be started.
    pub(super) fn open(path: &Path, delimiter: u8, second: Duration) -> Result<(Arc<Self>, Option<u64>)> {
        let file = open(path)?;
        let (taken, torn) = load(path, &file, delimiter)?;
        let done = Arc::new(Done::new(file, path, delimiter, taken));
        let syncing = Arc::clone(&done);
        let sync = move || syncing.sync_each(second);
        let syncer = start_thread("done list", sync).context(NoThread)?;
        *lock(&done.syncer) = Some(syncer);
        Ok((done, torn))
    }

    fn new(file: File, path: &Path, delimiter: u8, taken: Arc<Taken>) -> Self {
        let (state, change, syncer) = (Mutex::default(), Condvar::new(), Mutex::default());
        Done { file, path: path.to_owned(), delimiter, taken, state, change, added: AtomicU64::new(0), syncer }
    }

    /// The units in a file that is only read; none if there is no such file.
    ///
    /// # Errors
    /// As of [`open`](Self::open), but it may be in use.
    pub(super) fn read(path: &Path, delimiter: u8) -> Result<Arc<Taken>> {
        if !path.exists() {
            return Ok(Arc::default());
        }
        ensure_is_file(path, std::fs::metadata(path))?;
        let file = File::open(path).with_context(|| format!("--done: cannot open {}", path.display()))?;
        Ok(read(path, &file, delimiter)?.into_taken())
    }

    /// The units that are done, or taken in this run.
    pub(super) fn taken(&self) -> Arc<Taken> {
        Arc::clone(&self.taken)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Records the units of one command, with one write.
    ///
    /// # Errors
    /// They cannot be written, as on a full disk, or earlier ones could not be written or synced. From then on nothing is
    /// written any more.
    pub(super) fn add<'a>(&self, units: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut count = 0;
        for unit in units {
            bytes.extend_from_slice(unit);
            bytes.push(self.delimiter);
            count += 1;
        }
        self.append(&bytes)?;
        self.added.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// How many units are in the file.
    pub(super) fn units(&self) -> u64 {
        self.taken.count() + self.added.load(Ordering::Relaxed)
    }

    /// Syncs what is not synced yet, and ends the thread that does.
    ///
    /// # Errors
    /// Units could not be written or synced, now or earlier.
    pub(super) fn finish(&self) -> io::Result<()> {
        lock(&self.state).is_finished = true;
        self.change.notify_all();
        // The system reports an error of the disk to one sync only, which may be the last one of the thread.
        let _ = lock(&self.syncer).take().map(JoinHandle::join);
        self.sync_if_needed();
        self.find_file();
        lock(&self.state).check()
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.check()?;
        state.failed = append(&self.file, bytes).err();
        state.is_unsynced |= !bytes.is_empty();
        self.change.notify_all();
        state.check()
    }

    fn sync_each(&self, second: Duration) {
        let is_idle = |state: &mut State| !state.is_unsynced && !state.is_finished;
        loop {
            let state = self.change.wait_while(lock(&self.state), is_idle);
            if state.is_ok_and(|state| state.is_finished) {
                return;
            }
            self.sync_if_needed();
            self.find_file();
            let _ = self.change.wait_timeout_while(lock(&self.state), second, |state| !state.is_finished);
        }
    }

    /// Fails if the file has lost its name: what is added to it would be lost.
    fn find_file(&self) {
        let number = |file: Metadata| (file.dev(), file.ino());
        let is_there = std::fs::metadata(&self.path).map(number).ok() == self.file.metadata().map(number).ok();
        if !is_there {
            let why = "it was removed, or another file took its place; units of this run may run again in the next one";
            lock(&self.state).failed.get_or_insert_with(|| io::Error::new(ErrorKind::NotFound, why));
        }
    }

    /// Other threads can add units while the disk works.
    fn sync_if_needed(&self) {
        if !std::mem::take(&mut lock(&self.state).is_unsynced) {
            return;
        }
        if let Err(error) = self.file.sync_data() {
            lock(&self.state).failed.get_or_insert(error);
        }
    }
}

/// The units that an earlier run has done, and those that this run has taken: of equal units only the first one runs.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// In order: 16 B each.
    before: Vec<Identity>,
    /// At most 32 B each, as a B-tree of random numbers; a table takes up to 39 B, and 58 B while it grows.
    now: Mutex<BTreeSet<Identity>>,
    /// Whether a record in the file ends in CR.
    has_cr: bool,
}

impl Taken {
    /// Takes the unit, unless it was done or taken before.
    pub(super) fn take(&self, unit: &[u8]) -> Option<Before> {
        let identity = Identity::of(unit);
        if self.before.binary_search(&identity).is_ok() {
            return Some(Before::Done);
        }
        (!lock(&self.now).insert(identity)).then_some(Before::Taken)
    }

    /// How many an earlier run has done.
    pub(super) fn count(&self) -> u64 {
        self.before.len() as u64
    }

    fn contains(&self, unit: &[u8]) -> bool {
        let identity = Identity::of(unit);
        self.before.binary_search(&identity).is_ok() || lock(&self.now).contains(&identity)
    }

    /// If `unit` was not taken before, but would have been with or without a CR at its end: the place of the CR.
    fn misplaced_cr(&self, unit: &[u8]) -> Option<&'static str> {
        match unit.strip_suffix(b"\r") {
            Some(rest) => self.contains(rest).then_some("in the input, not in the list; tr -d '\\r' drops it"),
            None if !self.has_cr => None,
            None => self
                .contains(&[unit, b"\r"].concat())
                .then_some("in the list, not in the input; sed -i 's/\\r$//' LIST drops it"),
        }
    }

    /// Says which units are skipped. Unless `quiet`, hints once at a unit that is not skipped because of a CR.
    pub(super) fn known(self: Arc<Self>, quiet: bool) -> Known {
        let told = AtomicBool::new(quiet);
        Arc::new(move |unit| {
            let known = self.take(unit);
            if known.is_none()
                && !told.load(Ordering::Relaxed)
                && let Some(place) = self.misplaced_cr(unit)
            {
                told.store(true, Ordering::Relaxed);
                say(format_args!("hint: --done: '{}' is not found for a CR at its end {place}", shown(unit)));
            }
            known
        })
    }
}

#[derive(Debug, Default)]
struct State {
    /// Whether something was written that is not synced.
    is_unsynced: bool,
    is_finished: bool,
    /// The first error.
    failed: Option<io::Error>,
}

impl State {
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

fn open(path: &Path) -> Result<File> {
    let name = path.display();
    let file = match File::options().read(true).append(true).create(true).open(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            bail!("--done: {name} is a directory; name a file: --done {}", path.join("done").display())
        }
        file => file.with_context(|| {
            format!("--done: cannot open {name}; name a file that can be read and written, in a folder that exists")
        })?,
    };
    ensure_is_file(path, file.metadata())?;
    match take(&file) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let holder = holder(&file).map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
            bail!("--done: {name}: in use by {holder}; wait until that has ended, or name another file")
        }
        Err(error) => Err(error).with_context(|| format!("--done: cannot lock {name}; name a file on a local disk")),
    }
}

fn ensure_is_file(path: &Path, metadata: io::Result<Metadata>) -> Result<()> {
    let name = path.display();
    let is_file = metadata.with_context(|| format!("--done: {name}"))?.is_file();
    ensure!(is_file, "--done: {name} is no regular file, and could not be read again; name one, such as --done seen");
    Ok(())
}

/// Locks the file. After a process with the lock was killed, its child may hold the lock until it becomes its command.
fn take(file: &File) -> rustix::io::Result<()> {
    let try_lock = || flock(file, FlockOperation::NonBlockingLockExclusive);
    for _ in 0..50 {
        match try_lock() {
            Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    try_lock()
}

/// The process that has the file locked; see `proc_locks(5)`. `None` on systems without that, for processes that this one
/// cannot see, and on file systems that call the file by another number there.
fn holder(file: &File) -> Option<u32> {
    let stat = file.metadata().ok()?;
    let device = stat.dev();
    let place = format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), stat.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        [_, "FLOCK", _, _, id, found, ..] if found == place => id.parse().ok().filter(|id| *id > 0),
        _ => None,
    })
}

/// What the records in a file are, and where the last one ends.
#[derive(Default)]
struct Reading {
    known: Vec<Identity>,
    /// Whether a record ends in CR.
    has_cr: bool,
    /// Of the record that has not ended yet.
    hash: Sha256,
    /// The bytes of all records that have ended, with their ends, and of the one that has not.
    ended: u64,
    open: u64,
    last: u8,
    /// Whether the one that has not ended holds a NUL.
    has_nul: bool,
}

impl Reading {
    fn add(&mut self, mut bytes: &[u8], delimiter: u8) {
        self.last = bytes.last().copied().unwrap_or(self.last);
        while let Some(end) = memchr::memchr(delimiter, bytes) {
            self.has_cr |= bytes[..end].ends_with(b"\r");
            self.hash.update(&bytes[..end]);
            self.known.push(std::mem::take(&mut self.hash).into());
            self.ended += self.open + end as u64 + 1;
            (self.open, self.has_nul) = (0, false);
            bytes = &bytes[end + 1..];
        }
        self.has_nul |= memchr::memchr(0, bytes).is_some();
        self.hash.update(bytes);
        self.open += bytes.len() as u64;
    }

    fn into_taken(mut self) -> Arc<Taken> {
        self.known.sort_unstable();
        self.known.dedup();
        self.known.shrink_to_fit();
        Arc::new(Taken { before: self.known, now: Mutex::default(), has_cr: self.has_cr })
    }

    /// If the last record has no end: why a crash did not cause that. Only what a crash has torn is cut off. No line has a
    /// NUL; many other records have newlines.
    fn fault(&self, delimiter: u8) -> Option<&'static str> {
        match (self.last, delimiter) {
            _ if self.open == 0 => None,
            (0, _) => Some("its records end with NUL: add -0"),
            (b'\n', 0) if self.ended > 0 => None,
            (b'\n', 0) => Some("its records end with newline: leave out -0"),
            (b'\n', _) => Some("its records end with newline: leave out -d"),
            _ if self.has_nul => Some("its end holds NUL bytes: it is no list of done units"),
            _ if self.ended > 0 => None,
            _ => Some("no record in it has an end: it is no list of done units, or has another delimiter (-0, -d)"),
        }
    }
}

/// Reads all records, and cuts off a torn one.
fn load(path: &Path, file: &File, delimiter: u8) -> Result<(Arc<Taken>, Option<u64>)> {
    let reading = read(path, file, delimiter)?;
    if reading.open > 0 {
        let cannot = || format!("--done: cannot cut off the torn end of {}", path.display());
        file.set_len(reading.ended).with_context(cannot)?;
    }
    let torn = Some(reading.open).filter(|bytes| *bytes > 0);
    Ok((reading.into_taken(), torn))
}

fn read(path: &Path, mut file: &File, delimiter: u8) -> Result<Reading> {
    let name = path.display();
    let (mut reading, mut buffer) = (Reading::default(), vec![0; READ]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => reading.add(&buffer[..length], delimiter),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("--done: cannot read {name}")),
        }
    }
    if let Some(fault) = reading.fault(delimiter) {
        bail!("--done: {name}: {fault}; or name another file");
    }
    Ok(reading)
}

#[cfg(test)]
mod tests;
