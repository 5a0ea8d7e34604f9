//! Errors of a bucket's file, and how to fix them.

use super::slots::VERSION;
use crate::store::Address;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a bucket's file cannot be used. Nothing is granted then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such bucket, and no limits were given to make it with.
    #[error("there is no bucket {}", Address::redacted(.0.as_os_str()))]
    Unknown(PathBuf),
    /// The file is not a bucket; the message includes advice.
    #[error("{} {}", .0.display(), .1)]
    Foreign(PathBuf, &'static str),
    /// A file of another version of throttle: its format.
    #[error(
        "the bucket {} was made by {} throttle (format {}, but this throttle reads format {VERSION}); use that \
         throttle, or remove the bucket to start again: rm {}",
        .0.display(),
        if *.1 < VERSION { "an older" } else { "a newer" },
        .1,
        word(.0)
    )]
    OtherFormat(PathBuf, u64),
    /// The file has no complete state. The number is its length, if it is too short.
    #[error(
        "the bucket {path} is {}; to start again with its initial burst, remove it: rm {word}",
        .1.map_or_else(|| "damaged".to_owned(), |length| format!("cut short ({length} bytes)")),
        path = .0.display(),
        word = word(.0)
    )]
    Damaged(PathBuf, Option<u64>),
    /// The file or its folder must not be used for a bucket: the whole message.
    #[error("{0}")]
    Unsuitable(String),
    /// Another program keeps the file locked.
    #[error("another program keeps the bucket {path} locked; to see the program: fuser -v {word}", path = .0.display(), word = word(.0))]
    Locked(PathBuf),
    /// The system returned an error for this action on this file or folder.
    #[error("cannot {} {}: {}", .0, Address::redacted(.1.as_os_str()), reason(.2))]
    System(&'static str, PathBuf, io::Error),
}

/// The system's `error` for the action `doing` on `path`.
pub(super) fn failed(doing: &'static str, path: &Path, error: impl Into<io::Error>) -> FileError {
    FileError::System(doing, path.to_owned(), error.into())
}

/// A path quoted as one shell word.
pub(super) fn word(path: &Path) -> String {
    let name = path.as_os_str().as_bytes();
    let quoted = shlex::bytes::try_quote(name).unwrap_or(name.into());
    String::from_utf8_lossy(&quoted).into_owned()
}

/// The system's message, with advice if there is any.
fn reason(error: &io::Error) -> String {
    let message = error.to_string();
    let message = message.split(" (os error").next().unwrap_or_default().to_lowercase();
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room and try again (nothing was taken)",
        ErrorKind::PermissionDenied => {
            "; each user has their own buckets (under sudo, root's); choose a place of your own"
        }
        ErrorKind::NotFound => "; make the folder first, or name another place",
        ErrorKind::FileTooLarge => "; ulimit -f allows larger files",
        ErrorKind::ReadOnlyFilesystem => "; name a place where you may write",
        _ => "",
    };
    format!("{message}{advice}")
}
