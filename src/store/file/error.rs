//! What can be wrong with a bucket's file, and how to mend it.

use crate::store::Address;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a bucket's file is not used. Nothing is granted then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such bucket, and no limits were named to make it with.
    #[error("there is no bucket {}", Address::redacted(.0.as_os_str()))]
    Unknown(PathBuf),
    /// The file is empty or too short.
    #[error("the bucket {path} is cut short ({length} bytes); to begin anew remove it: rm {word}", path = .path.display(), word = word(.path))]
    Truncated {
        /// Where the bucket is.
        path: PathBuf,
        /// What there is of it.
        length: u64,
    },
    /// Not a file of ours.
    #[error("{} is not a bucket but something else; name another one, or move that away", .0.display())]
    Foreign(PathBuf),
    /// A file of a later version of this program.
    #[error(
        "the bucket {path} was made by a newer throttle (format {version}, this one knows {known}); use that one, or begin \
         anew: rm {word}",
        path = .path.display(),
        word = word(.path),
        known = super::slots::VERSION
    )]
    Newer {
        /// Where the bucket is.
        path: PathBuf,
        /// The format of the file.
        version: u64,
    },
    /// Neither state in the file is whole.
    #[error("the bucket {path} is damaged; to begin anew, with what it allows at the start, remove it: rm {word}", path = .0.display(), word = word(.0))]
    Damaged(PathBuf),
    /// A symbolic link.
    #[error("{} is a symbolic link, which is not followed; name the file itself", .0.display())]
    Link(PathBuf),
    /// A folder, a pipe, a device.
    #[error("{} is no plain file; name another place for the bucket", .0.display())]
    NotPlain(PathBuf),
    /// A file of another user.
    #[error(
        "the bucket {} belongs to user {owner}; a bucket is of one user, and sudo makes you another",
        path.display()
    )]
    NotOurs {
        /// Where the bucket is.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// A folder in which others may put something in the place of the file.
    #[error("others may write to the folder {path}; make it yours alone: chmod go-w {word}", path = .0.display(), word = word(.0))]
    OpenFolder(PathBuf),
    /// A file system on which neither lock nor clock is that of one machine.
    #[error(
        "{} is on a network file system ({kind}), where machines do not share a clock; name a place on this machine",
        path.display()
    )]
    Network {
        /// Where the bucket is.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// More than there is room for in the file.
    #[error(
        "what is to be kept of the bucket {} is {length} bytes, and there is room for {most}; set fewer limits",
        path.display()
    )]
    TooLarge {
        /// Where the bucket is.
        path: PathBuf,
        /// The length of the state.
        length: u64,
        /// Of the longest.
        most: u64,
    },
    /// No limit to keep, or too many.
    #[error("a bucket keeps 1 to {} limits, and not 'unlimited'", super::slots::MOST_LIMITS)]
    Limits,
    /// The system says no.
    #[error("cannot {doing} {}: {}", Address::redacted(path.as_os_str()), super::error::reason(*.error))]
    System {
        /// What was being done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system says.
        error: Errno,
    },
}

/// A path as a shell takes it for one word.
fn word(path: &Path) -> String {
    let name = path.as_os_str().as_bytes();
    let quoted = shlex::bytes::try_quote(name).unwrap_or(name.into());
    String::from_utf8_lossy(&quoted).into_owned()
}

/// What the system says, and what to do about it where that is known.
fn reason(error: Errno) -> String {
    let said = std::io::Error::from(error).to_string();
    let said = said.split(" (os error").next().unwrap_or_default().to_lowercase();
    let advice = match error {
        Errno::NOSPC | Errno::DQUOT => "; make room and try again, nothing was taken",
        Errno::ACCESS | Errno::PERM => "; a bucket is of one user (sudo is another), name a place that is yours",
        Errno::NOENT => "; make the folder first, or name another place",
        Errno::FBIG => "; ulimit -f allows larger files",
        Errno::ROFS => "; name a place that can be written",
        _ => "",
    };
    format!("{said}{advice}")
}
