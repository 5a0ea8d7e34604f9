//! `--done FILE`: the bytes of each unit that succeeded, with the delimiter of the input. The next run skips these
//! units.
//!
//! A unit is recorded only after it has succeeded. If a crash comes before that, the unit runs again. Two different
//! units never count as equal ([`Identity`]).

use super::append::append;
use super::names::shown;
use super::say::{NoThread, say};
use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
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
use throttle::launch::{Before, DoneList, DoneUnits, Identity, Known, Torn};

/// Bytes read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// The units that succeeded in this run and in earlier runs. The file is locked against other processes.
#[derive(Debug)]
pub(super) struct Done {
    file: File,
    path: PathBuf,
    delimiter: u8,
    taken: Arc<Taken>,
    state: Mutex<State>,
    change: Condvar,
    /// The number of units that this run has added.
    added: AtomicU64,
    /// The thread that syncs the file.
    syncer: Mutex<Option<JoinHandle<()>>>,
}

impl Done {
    /// Opens or makes the file, and reads its units. A damaged end is cut off and returned. Units that are added later are synced to the disk once in every interval of `second`.
    ///
    /// # Errors
    /// The file cannot be opened, is in use, or is not a list of units that end with `delimiter`. Or the thread cannot
    /// start.
    pub(super) fn open(path: &Path, delimiter: u8, second: Duration) -> Result<(Arc<Self>, Option<Torn>)> {
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

    /// The units in a file that is only read. If there is no such file, there are no units.
    ///
    /// # Errors
    /// The file cannot be read, or is not a list of units that end with `delimiter`. It may be in use.
    pub(super) fn read(path: &Path, delimiter: u8) -> Result<Arc<Taken>> {
        if !path.exists() {
            return Ok(Arc::default());
        }
        ensure_is_file(path, std::fs::metadata(path))?;
        let file = File::open(path).with_context(|| format!("--done: cannot open {}", path.display()))?;
        Ok(Taken::before(read(path, &file, delimiter)?))
    }

    /// The units that are done, and the units that this run has taken.
    pub(super) fn taken(&self) -> Arc<Taken> {
        Arc::clone(&self.taken)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Records the units of one command in one write.
    ///
    /// # Errors
    /// The units cannot be written, for example on a full disk. Or earlier units could not be written or synced: after
    /// such an error nothing more is written.
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

    /// The number of units in the file.
    pub(super) fn units(&self) -> u64 {
        self.taken.count() + self.added.load(Ordering::Relaxed)
    }

    /// Syncs the units that are not synced yet, and ends the thread.
    ///
    /// # Errors
    /// Units could not be written or synced, now or earlier.
    pub(super) fn finish(&self) -> io::Result<()> {
        lock(&self.state).is_finished = true;
        self.change.notify_all();
        // The thread ends first. The system reports an error of the disk to one sync only, which may be the last sync
        // of the thread.
        let _ = lock(&self.syncer).take().map(JoinHandle::join);
        self.sync_if_needed();
        self.check_path();
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
            self.check_path();
            let _ = self.change.wait_timeout_while(lock(&self.state), second, |state| !state.is_finished);
        }
    }

    /// Sets the error if the path does not name this file any more, because units added to the file would be lost.
    fn check_path(&self) {
        let number = |file: Metadata| (file.dev(), file.ino());
        let is_there = std::fs::metadata(&self.path).map(number).ok() == self.file.metadata().map(number).ok();
        if !is_there {
            let why = "it was removed, or another file took its place; units of this run may run again in the next run";
            lock(&self.state).failed.get_or_insert_with(|| io::Error::new(ErrorKind::NotFound, why));
        }
    }

    /// Syncs the file without holding the lock, so that other threads can add units while the disk works.
    fn sync_if_needed(&self) {
        if !std::mem::take(&mut lock(&self.state).is_unsynced) {
            return;
        }
        if let Err(error) = self.file.sync_data() {
            lock(&self.state).failed.get_or_insert(error);
        }
    }
}

/// The units that an earlier run has done, and the units that this run has taken. Only the first of equal units runs.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The units of earlier runs, sorted: 16 B each.
    before: Vec<Identity>,
    /// The units of this run: at most 32 B each, as a B-tree of random numbers. A hash table would take up to 39 B
    /// each, and 58 B while it grows.
    now: Mutex<BTreeSet<Identity>>,
    /// The first unit of the file, without a byte-order mark that an editor has put before it.
    without_mark: Option<Identity>,
    /// Whether a record in the file ends with CR.
    has_cr: bool,
}

impl Taken {
    fn before(found: DoneUnits) -> Arc<Self> {
        let DoneUnits { units, without_mark, has_cr, .. } = found;
        Arc::new(Taken { before: units, now: Mutex::default(), without_mark, has_cr })
    }

    /// Whether an earlier run has done the unit.
    fn is_done(&self, unit: Identity) -> bool {
        self.before.binary_search(&unit).is_ok() || self.without_mark == Some(unit)
    }

    /// Takes the unit, unless it was done or taken before. Returns which of the two, or `None` if this run takes the
    /// unit now.
    pub(super) fn take(&self, unit: &[u8]) -> Option<Before> {
        let identity = Identity::of(unit);
        if self.is_done(identity) {
            return Some(Before::Done);
        }
        (!lock(&self.now).insert(identity)).then_some(Before::Taken)
    }

    /// The number of units that earlier runs have done.
    pub(super) fn count(&self) -> u64 {
        self.before.len() as u64
    }

    fn contains(&self, unit: &[u8]) -> bool {
        let identity = Identity::of(unit);
        self.is_done(identity) || lock(&self.now).contains(&identity)
    }

    /// If `unit` differs from a known unit only by a CR at its end: where the CR is, and how to remove it.
    fn misplaced_cr(&self, unit: &[u8]) -> Option<&'static str> {
        match unit.strip_suffix(b"\r") {
            Some(rest) => self.contains(rest).then_some("in the input, not in the list; tr -d '\\r' removes it"),
            None if !self.has_cr => None,
            None => self
                .contains(&[unit, b"\r"].concat())
                .then_some("in the list, not in the input; sed -i 's/\\r$//' LIST removes it"),
        }
    }

    /// Returns the function that decides which units are skipped. Unless `quiet`, that function prints one hint if only
    /// a CR at the end of a unit keeps it from being skipped.
    pub(super) fn known(self: Arc<Self>, quiet: bool) -> Known {
        let needs_no_hint = AtomicBool::new(quiet);
        Arc::new(move |unit| {
            let known = self.take(unit);
            if known.is_none()
                && !needs_no_hint.load(Ordering::Relaxed)
                && let Some(place) = self.misplaced_cr(unit)
            {
                needs_no_hint.store(true, Ordering::Relaxed);
                say(format_args!("hint: --done: '{}' is not found because of a CR at its end {place}", shown(unit)));
            }
            known
        })
    }
}

#[derive(Debug, Default)]
struct State {
    /// Whether some written bytes are not synced.
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
            bail!("--done: {name}: in use by {holder}; wait until it has ended, or name another file")
        }
        Err(error) => Err(error).with_context(|| format!("--done: cannot lock {name}; name a file on a local disk")),
    }
}

fn ensure_is_file(path: &Path, metadata: io::Result<Metadata>) -> Result<()> {
    let name = path.display();
    let is_file = metadata.with_context(|| format!("--done: {name}"))?.is_file();
    ensure!(
        is_file,
        "--done: {name} is not a regular file, so it could not be read again; name a regular file, such as --done seen"
    );
    Ok(())
}

/// Locks the file. If a process with the lock was killed, its forked child may hold the lock until the child runs its
/// command. So this function waits up to half a second.
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

/// The id of the process that holds the lock of the file, from /proc/locks (`proc_locks(5)`). `None` if the system has
/// no /proc/locks, or if this process cannot see the other process. It is also `None` on file systems that show another
/// inode number there.
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

/// Reads all records, and cuts off a damaged end.
fn load(path: &Path, file: &File, delimiter: u8) -> Result<(Arc<Taken>, Option<Torn>)> {
    let found = read(path, file, delimiter)?;
    let torn = found.torn;
    if torn.is_some() {
        let cannot = || format!("--done: cannot cut off the damaged end of {}", path.display());
        file.set_len(found.whole).with_context(cannot)?;
    }
    Ok((Taken::before(found), torn))
}

fn read(path: &Path, mut file: &File, delimiter: u8) -> Result<DoneUnits> {
    let name = path.display();
    let (mut list, mut buffer) = (DoneList::default(), vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => list.add(&buffer[..length], delimiter),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("--done: cannot read {name}")),
        }
    }
    list.finish(delimiter).map_err(|fault| anyhow!("--done: {name}: {fault}; or name another file"))
}

#[cfg(test)]
mod tests;
