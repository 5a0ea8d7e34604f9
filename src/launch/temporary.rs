//! A file without a name, for what memory does not hold; its errors say what it is and what can be done.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use thiserror::Error;

/// Why a temporary file is of no use.
#[derive(Debug, Error)]
#[error("a temporary file in {} cannot be used: {error}; {}", folder.display(), self.advice())]
pub(super) struct TemporaryError {
    folder: PathBuf,
    /// Part of the message, and so not told once more as its source.
    error: io::Error,
}

impl TemporaryError {
    /// The temporary file's own error, where `error` is of one.
    pub(super) fn within(error: &io::Error) -> Option<&io::Error> {
        error.get_ref()?.downcast_ref().map(|found: &Self| &found.error)
    }

    fn advice(&self) -> &'static str {
        if is_shortage(&self.error) {
            "ulimit -n allows more open files, and a smaller -j takes fewer"
        } else {
            "TMPDIR may name another folder"
        }
    }
}

/// Too few processes or open files: transient, as it clears when another process exits.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let error = TemporaryError::within(error).unwrap_or(error);
    let shortages = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    shortages.into_iter().any(|shortage| error.raw_os_error() == Some(shortage.raw_os_error()))
}

fn told(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), TemporaryError { folder: std::env::temp_dir(), error })
}

/// A file without a name.
#[derive(Debug)]
pub(super) struct Temporary(File);

impl Temporary {
    pub(super) fn new() -> io::Result<Self> {
        tempfile::tempfile().map(Temporary).map_err(told)
    }

    /// The file, from its beginning.
    pub(super) fn into_file(mut self) -> io::Result<File> {
        self.seek(SeekFrom::Start(0))?;
        Ok(self.0)
    }

    /// Gives all the room back.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.0.set_len(0).map_err(told)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Temporary {
    /// Gives the room of `length` bytes from `start` on back; they are not read any more (`FALLOC_FL_PUNCH_HOLE`,
    /// fallocate(2)). Blocks that lie only partly within keep theirs.
    pub(super) fn free(&self, start: u64, length: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        fallocate(&self.0, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length).map_err(Into::into)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Temporary {
    /// There is no way to do that.
    pub(super) fn free(&self, _start: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Read for Temporary {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.0.read(space).map_err(told)
    }
}

impl Write for Temporary {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(told)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Temporary {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to).map_err(told)
    }
}
