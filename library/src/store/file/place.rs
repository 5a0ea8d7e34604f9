//! Opens and makes a bucket's file: only a file of this user, on this machine, and never half-made.

use super::error::{FileError, failed, word};
use super::{network, slots};
use rustix::fs::{FileType, FlockOperation, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The place of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Whether its folder is for buckets only: such a folder is made if it is missing, and must belong to this user
    /// alone.
    pub own_folder: bool,
    /// The number of a group whose members may use the file. The file is given to the group when it is made or when the
    /// group is named.
    pub group: Option<u32>,
}

/// Opens a file with the head of a bucket, to read and write (`OFlags::RDWR`) or only to read. `None` if it does not
/// exist.
pub(super) fn open(place: &Place, access: OFlags) -> Result<Option<File>, FileError> {
    let path = &place.path;
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::MLINK) => {
            return Err(FileError::Foreign(
                path.clone(),
                "is a symbolic link, which is not followed; name the file itself",
            ));
        }
        Err(Errno::ISDIR | Errno::NXIO) => return Err(not_plain(path)),
        Err(error) => return Err(why_not(path, error)),
    };
    let stat = rustix::fs::fstat(&file).map_err(|error| failed("inspect", path, error))?;
    check_owner(path, &stat)?;
    check_folder(folder_of(path), place.own_folder)?;
    network::refuse(path, &file)?;
    check_head(path, &file)?;
    Ok(Some(file))
}

/// The error of opening a file. If the file belongs to another user, the error names that user.
fn why_not(path: &Path, error: Errno) -> FileError {
    match rustix::fs::lstat(path) {
        Ok(stat) if error == Errno::ACCESS => check_owner(path, &stat).err(),
        _ => None,
    }
    .unwrap_or_else(|| failed("open the bucket", path, error))
}

fn not_plain(path: &Path) -> FileError {
    FileError::Foreign(path.to_owned(), "is not a plain file; choose another place for the bucket")
}

/// Checks that the file belongs to this user, or to a group of this user.
fn check_owner(path: &Path, stat: &Stat) -> Result<(), FileError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_plain(path));
    }
    let (group, owner) = (group_of(stat), stat.st_uid);
    if owner == rustix::process::geteuid().as_raw() && stat.st_mode & 0o002 != 0 {
        let (shown, word) = (path.display(), word(path));
        return Err(FileError::Unsuitable(format!(
            "everyone may write to the bucket {shown}; make it yours alone: chmod o-w {word}"
        )));
    }
    if owner == rustix::process::geteuid().as_raw() || group.is_some_and(is_ours) {
        return Ok(());
    }
    Err(not_ours(path, owner, group))
}

fn not_ours(path: &Path, owner: u32, group: Option<u32>) -> FileError {
    let advice = group.map_or_else(
        || "; each user has their own buckets, and under sudo you are root".to_owned(),
        |group| format!(" and group {group}, which you are not in; to see your groups: id"),
    );
    FileError::Unsuitable(format!("the bucket {} belongs to user {owner}{advice}", path.display()))
}

/// The group whose members may use a file, if nobody else may.
fn group_of(stat: &Stat) -> Option<u32> {
    (stat.st_mode & 0o067 == 0o060).then_some(stat.st_gid)
}

fn is_ours(group: u32) -> bool {
    let group = Gid::from_raw(group);
    rustix::process::getegid() == group || rustix::process::getgroups().is_ok_and(|groups| groups.contains(&group))
}

/// The same place, with the group of the existing `file`. A file that replaces it gets the same group.
pub(super) fn as_found(place: Place, file: &File) -> Result<Place, FileError> {
    let stat = rustix::fs::fstat(file).map_err(|error| failed("inspect", &place.path, error))?;
    Ok(Place { group: group_of(&stat), ..place })
}

/// Gives the file to the group of `place`, if there is one.
pub(super) fn give_to_group(place: &Place, file: &File) -> Result<(), FileError> {
    let path = &place.path;
    let stat = rustix::fs::fstat(file).map_err(|error| failed("inspect", path, error))?;
    let Some(group) = place.group.filter(|group| group_of(&stat) != Some(*group)) else { return Ok(()) };
    let given = rustix::fs::fchown(file, None, Some(Gid::from_raw(group)));
    match given.and_then(|()| rustix::fs::fchmod(file, Mode::from_raw_mode(0o660))) {
        Err(Errno::PERM) => Err(FileError::Unsuitable(format!(
            "cannot give the bucket {} to group {group}: only its owner can do that, and only for a group of the \
             owner; to see your groups: id",
            path.display()
        ))),
        result => result.map_err(|error| failed("change the group of", path, error)),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that not everyone can replace the file. A folder for buckets only must belong to this user alone. Another
/// folder may belong to a group. In a folder with the sticky bit, like /tmp, only the owner can replace a file.
fn check_folder(folder: &Path, own_folder: bool) -> Result<(), FileError> {
    let stat = match rustix::fs::stat(folder) {
        // The missing folder is reported when the file is made.
        Err(Errno::NOENT) if !own_folder => return Ok(()),
        stat => stat.map_err(|error| failed("inspect the folder", folder, error))?,
    };
    if own_folder && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(not_ours(folder, stat.st_uid, None));
    }
    let is_open = match (own_folder, stat.st_mode & 0o1000) {
        (true, _) => stat.st_mode & 0o022 != 0,
        (false, sticky) => sticky == 0 && stat.st_mode & 0o002 != 0,
    };
    if !is_open {
        return Ok(());
    }
    let (shown, word) = (folder.display(), word(folder));
    Err(FileError::Unsuitable(format!(
        "others may write to the folder {shown}; make it yours alone: chmod go-w {word}"
    )))
}

fn check_head(path: &Path, file: &File) -> Result<(), FileError> {
    let mut head = [0; slots::HEAD];
    let length = rustix::io::pread(file, &mut head, 0).map_err(|error| failed("read the bucket", path, error))?;
    match slots::version(&head[..length]) {
        Some(slots::VERSION) if length == slots::HEAD => Ok(()),
        Some(version) if version != slots::VERSION => Err(FileError::OtherFormat(path.to_owned(), version)),
        None if length > 0 && !slots::head().starts_with(&head[..length]) => {
            Err(FileError::Foreign(path.to_owned(), "is not a bucket; choose another name, or move that file away"))
        }
        _ => Err(FileError::Damaged(path.to_owned(), Some(length as u64))),
    }
}

/// Makes the file with the record of its policy and its first state, unless another process makes it first. Either way
/// a complete file exists afterwards. The state may grow to a length of `room` without more room on the disk.
pub(super) fn create(place: &Place, policy: &[u8], state: Vec<u8>, room: usize) -> Result<(), FileError> {
    let path = &place.path;
    let folder = folder_of(path);
    if place.own_folder {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| failed("make the folder", folder, error))?;
    }
    check_folder(folder, place.own_folder)?;
    let failed_to_make = |error| failed("make the bucket", path, error);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(UNFINISHED).permissions(Permissions::from_mode(0o600));
    // If the process is killed here, this file stays behind.
    let mut file = builder.tempfile_in(folder).map_err(failed_to_make)?;
    network::refuse(path, file.as_file())?;
    give_to_group(place, file.as_file())?;
    fill(file.as_file_mut(), policy, state, room).map_err(failed_to_make)?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != ErrorKind::AlreadyExists => Err(failed_to_make(error.error)),
        _ => Ok(()),
    }
}

/// The prefix of the names of unfinished files.
const UNFINISHED: &str = ".throttle-";

/// Writes both slots at their whole length, so that the disk has room for both and a later write changes only their
/// content. Syncs the file before it gets its name.
fn fill(file: &mut File, policy: &[u8], mut slot: Vec<u8>, room: usize) -> std::io::Result<()> {
    file.write_all(&slots::head())?;
    file.write_all(policy)?;
    slot.resize(room.max(slot.len()), 0);
    file.write_all_at(&slot, slots::place(0))?;
    file.write_all_at(&vec![0; slot.len()], slots::place(1))?;
    file.sync_all()
}

/// The plain files of a folder, sorted by name. A folder for buckets only may be missing.
pub(super) fn files(folder: &Path, own_folder: bool) -> Result<Vec<Place>, FileError> {
    let failed = |error| failed("read the folder", folder, error);
    let entries = match folder.read_dir() {
        Err(error) if own_folder && error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    check_folder(folder, own_folder)?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_unfinished = entry.file_name().as_bytes().starts_with(UNFINISHED.as_bytes());
        if !is_unfinished && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            files.push(Place { path: entry.path(), own_folder, group: None });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Waits until nobody else has the file locked, at most until `deadline`. flock(2) has no timeout, so a wait with a
/// deadline tries again every millisecond.
pub(super) fn lock(path: &Path, file: &File, deadline: Option<Instant>) -> Result<(), FileError> {
    let how = match deadline {
        Some(_) => FlockOperation::NonBlockingLockExclusive,
        None => FlockOperation::LockExclusive,
    };
    loop {
        match rustix::fs::flock(file, how) {
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::WOULDBLOCK) => return Err(FileError::Locked(path.to_owned())),
            result => return result.map_err(|error| failed("lock the bucket", path, error)),
        }
    }
}

/// Identifies a file among all files that exist at the same time: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    pub(super) fn of(path: &Path, file: &File) -> Result<Self, FileError> {
        let stat = file.metadata().map_err(|error| failed("inspect", path, error))?;
        Ok(Identity(stat.dev(), stat.ino()))
    }

    /// The identity of the file that the path names now; `None` if it does not exist.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, FileError> {
        match without_times(path).map_or_else(|| path.symlink_metadata().map(|it| Identity(it.dev(), it.ino())), Ok) {
            Ok(found) => Ok(Some(found)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("inspect", path, error)),
        }
    }
}

/// Requests the inode alone. After a request for a file's times, Linux gives its next write a distinct time
/// ("multigrain timestamps"). Storing that takes longer than everything else in a step. `None` if the system does not
/// support this.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn without_times(path: &Path) -> Option<Identity> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO).ok()?;
    Some(Identity(makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn without_times(_: &Path) -> Option<Identity> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_private_and_an_existing_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b");
        let place = Place { path: path.clone(), own_folder: false, group: None };
        let make = |state: &[u8]| create(&place, b"a policy", state.to_vec(), 4096).unwrap();
        make(b"a state");
        let content = std::fs::read(&path).unwrap();
        make(b"another");
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
