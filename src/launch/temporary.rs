//! Temporary files without a name. Their errors say which file is meant and what to do.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use thiserror::Error;

/// Bytes copied at once.
const COPY: u64 = 8 * 1024;

/// Why a temporary file is of no use.
#[derive(Debug, Error)]
#[error("a temporary file in {} cannot be used: {error}; {}", folder.display(), self.advice())]
pub(super) struct TemporaryError {
    folder: PathBuf,
    /// Part of the message, and so not told once more as its source.
    error: io::Error,
}

impl TemporaryError {
    /// The underlying error, if `error` is that of a temporary file.
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

pub(super) fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), TemporaryError { folder: std::env::temp_dir(), error })
}

/// A file without a name. Bytes are only added at its end.
#[derive(Debug)]
pub(super) struct Temporary {
    /// Its position stays at the beginning: a command that gets the file reads all of it.
    pub(super) file: File,
    pub(super) length: u64,
}

impl Temporary {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Temporary { file: tempfile::tempfile().map_err(explained)?, length: 0 })
    }

    /// Writes these bytes of the file to `to`.
    pub(super) fn copy(&self, mut bytes: Range<u64>, to: &mut impl Write) -> io::Result<()> {
        let mut buffer = Vec::new();
        while !bytes.is_empty() {
            let length = COPY.min(bytes.end - bytes.start);
            buffer.resize(usize::try_from(length).unwrap_or_default(), 0);
            self.file.read_exact_at(&mut buffer, bytes.start).map_err(explained)?;
            to.write_all(&buffer)?;
            bytes.start += length;
        }
        Ok(())
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.length = 0;
        self.file.set_len(0).map_err(explained)
    }

    /// Frees the room of these bytes, which are not read any more (`FALLOC_FL_PUNCH_HOLE`, fallocate(2)). Blocks that
    /// lie only partly within keep theirs.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn free(&self, bytes: Range<u64>) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, bytes.start, bytes.end - bytes.start).map_err(Into::into)
    }

    /// There is no way to do that.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn free(&self, _bytes: Range<u64>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Adds all bytes or, on an error, none.
impl Write for Temporary {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.length).map_err(explained)?;
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
