//! Errors of temporary files, which name the folder and what to do.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a temporary file cannot be used.
#[derive(Debug, Error)]
#[error("a temporary file in {} cannot be used: {error}; {}", folder.display(), self.advice())]
pub(super) struct TemporaryError {
    folder: PathBuf,
    /// Part of the message, and therefore not repeated as its source.
    error: io::Error,
}

impl TemporaryError {
    /// The underlying error, if `error` is the error of a temporary file.
    pub(super) fn within(error: &io::Error) -> Option<&io::Error> {
        error.get_ref()?.downcast_ref().map(|found: &Self| &found.error)
    }

    fn advice(&self) -> &'static str {
        if is_shortage(&self.error) {
            "ulimit -n allows more open files, and a smaller -j needs fewer"
        } else {
            "TMPDIR may name another folder"
        }
    }
}

/// Whether the system lacks processes or open files. The lack is transient: it ends when another process exits.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let error = TemporaryError::within(error).unwrap_or(error);
    let shortages = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    shortages.into_iter().any(|shortage| error.raw_os_error() == Some(shortage.raw_os_error()))
}

/// The system's error behind this error.
pub(super) fn of_the_system(error: &io::Error) -> io::Error {
    let cause = TemporaryError::within(error).unwrap_or(error);
    cause.raw_os_error().map_or_else(|| cause.kind().into(), io::Error::from_raw_os_error)
}

pub(super) fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), TemporaryError { folder: std::env::temp_dir(), error })
}
