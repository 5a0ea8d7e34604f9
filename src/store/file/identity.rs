//! Which file a path names.

use super::error::FileError;
use super::place::{errno, failed};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Tells a file from every other that exists at the same time: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    pub(super) fn of(path: &Path, file: &File) -> Result<Self, FileError> {
        let stat = file.metadata().map_err(|error| failed("look at", path, errno(&error)))?;
        Ok(Identity(stat.dev(), stat.ino()))
    }

    /// The file that the path names now; `None` if there is none.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, FileError> {
        match without_times(path).map_or_else(|| path.symlink_metadata().map(|it| Identity(it.dev(), it.ino())), Ok) {
            Ok(found) => Ok(Some(found)),
            Err(error) if matches!(errno(&error), Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(failed("look at", path, errno(&error))),
        }
    }
}

/// Asks for the inode alone. After a look at a file's times, Linux gives its next write a time of its own ("multigrain
/// timestamps"), and storing that takes longer than everything else in a step. `None` if the system cannot tell.
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
