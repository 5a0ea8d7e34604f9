//! A file that has no name before it is whole: who is killed while he makes it leaves nothing behind.

use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// A new file on the file system of `folder`; `None` where that knows none without a name.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn open(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
}

/// Gives it a name that is not taken. See `O_TMPFILE` in `open(2)`: by its descriptor alone only root may.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn publish(file: &File, path: &Path) -> Result<(), Errno> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// No other system has them.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn open(_: &Path) -> Option<File> {
    None
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn publish(_: &File, _: &Path) -> Result<(), Errno> {
    Err(Errno::NOTSUP)
}
