//! What can be wrong with a bucket's file, and how to fix it.

use crate::store::Address;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a bucket's file cannot be used. Nothing is granted then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such bucket, and no limits were named to make it with.
    #[error("there is no bucket {}", Address::redacted(.0.as_os_str()))]
    Unknown(PathBuf),
    /// The file is empty or too short.
    #[error("the bucket {path} is cut short ({length} bytes); to start again, remove it: rm {word}", path = .path.display(), word = word(.path))]
    Truncated {
        /// Where the bucket is.
        path: PathBuf,
        /// Its length.
        length: u64,
    },
    /// Not a bucket file.
    #[error("{} is not a bucket; choose another name, or move that file away", .0.display())]
    Foreign(PathBuf),
    /// A file of another version of throttle.
    #[error(
        "the bucket {path} was made by {maker} throttle (format {version}, this one knows {known}); use that one, or begin \
         anew: rm {word}",
        path = .path.display(),
        maker = if *.version < super::slots::VERSION { "an older" } else { "a newer" },
        word = word(.path),
        known = super::slots::VERSION
    )]
    OtherFormat {
        /// Where the bucket is.
        path: PathBuf,
        /// The format of the file.
        version: u64,
    },
    /// No complete state is left in the file.
    #[error("the bucket {path} is damaged; remove it to start again with its initial burst: rm {word}", path = .0.display(), word = word(.0))]
    Damaged(PathBuf),
    /// A symbolic link.
    #[error("{} is a symbolic link, which is not followed; name the file itself", .0.display())]
    Link(PathBuf),
    /// A folder, a pipe, a device.
    #[error("{} is not a plain file; choose another place for the bucket", .0.display())]
    NotPlain(PathBuf),
    /// A file of another user.
    #[error(
        "the bucket {} belongs to user {owner}; each user has their own buckets, and under sudo you are root",
        path.display()
    )]
    NotOurs {
        /// Where the bucket is.
        path: PathBuf,
        /// The user it belongs to.
        owner: u32,
    },
    /// A folder in which other users could replace the file.
    #[error("others may write to the folder {path}; make it yours alone: chmod go-w {word}", path = .0.display(), word = word(.0))]
    OpenFolder(PathBuf),
    /// On a network file system, locks and clocks are not those of one machine.
    #[error(
        "{} is on a network file system ({kind}), where machines do not share a clock; choose a place on this machine",
        path.display()
    )]
    Network {
        /// Where the bucket is.
        path: PathBuf,
        /// The file system.
        kind: &'static str,
    },
    /// Another program keeps the file locked.
    #[error("another program keeps the bucket {path} locked; to see which: fuser -v {word}", path = .0.display(), word = word(.0))]
    Locked(PathBuf),
    /// The state is too large for the file.
    #[error(
        "the state of the bucket {} is {length} bytes, and the most is {most}; set fewer limits",
        path.display()
    )]
    TooLarge {
        /// Where the bucket is.
        path: PathBuf,
        /// The length of the state.
        length: u64,
        /// The most.
        most: u64,
    },
    /// No limit, or too many.
    #[error("a bucket keeps 1 to {} limits, and not 'unlimited'", super::slots::MOST_LIMITS)]
    Limits,
    /// The system says no.
    #[error("cannot {doing} {}: {}", Address::redacted(path.as_os_str()), super::error::reason(*.error))]
    System {
        /// What throttle was doing.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: Errno,
    },
}

/// A path quoted as one shell word.
fn word(path: &Path) -> String {
    let name = path.as_os_str().as_bytes();
    let quoted = shlex::bytes::try_quote(name).unwrap_or(name.into());
    String::from_utf8_lossy(&quoted).into_owned()
}

/// The system's message, with advice if there is any.
fn reason(error: Errno) -> String {
    let said = std::io::Error::from(error).to_string();
    let said = said.split(" (os error").next().unwrap_or_default().to_lowercase();
    let advice = match error {
        Errno::NOSPC | Errno::DQUOT => "; make room and try again, nothing was taken",
        Errno::ACCESS | Errno::PERM => {
            "; each user has their own buckets (under sudo, root's); choose a place of your own"
        }
        Errno::NOENT => "; make the folder first, or name another place",
        Errno::FBIG => "; ulimit -f allows larger files",
        Errno::ROFS => "; name a place that can be written",
        _ => "",
    };
    format!("{said}{advice}")
}
