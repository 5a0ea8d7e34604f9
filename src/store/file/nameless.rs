//! A file that gets its name only when it is complete: a process killed before that leaves nothing behind.

use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// A new file without a name on the file system of `folder`; `None` if that file system has none.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn open(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
}

/// Gives the file a name that is free. See `O_TMPFILE` in `open(2)`: only root may link it by its descriptor alone.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn publish(file: &File, path: &Path) -> Result<(), Errno> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Other systems have no files without a name.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn open(_: &Path) -> Option<File> {
    None
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn publish(_: &File, _: &Path) -> Result<(), Errno> {
    Err(Errno::NOTSUP)
}
