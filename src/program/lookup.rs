//! Where a command is found, before anything is read.

use super::exit::Exit;
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use throttle::store::Address;

/// Why a command will not run.
#[derive(Debug)]
pub(crate) enum Missing {
    NotFound(OsString),
    NotExecutable(PathBuf),
}

impl Missing {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Missing::NotFound(_) => Exit::NotFound,
            Missing::NotExecutable(_) => Exit::CannotRun,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It may be an address, and hold a password, whose --bucket was forgotten.
            Missing::NotFound(name) => {
                let place = if name.as_bytes().contains(&b'/') { "" } else { " in PATH" };
                write!(f, "'{}': no such command{place}", Address::redacted(name))
            }
            Missing::NotExecutable(path) => {
                write!(
                    f,
                    "'{}' cannot be run: it is not executable; try chmod +x, or name its interpreter",
                    path.display()
                )
            }
        }
    }
}

/// The file that would run as `name`, found as execvp(3) does.
///
/// # Errors
/// There is none, or only some that may not be run.
pub(crate) fn find(name: &OsStr) -> Result<OsString, Missing> {
    if name.as_bytes().contains(&b'/') {
        return runs(Path::new(name)).map(PathBuf::into_os_string).ok_or_else(|| missing(name, [PathBuf::from(name)]));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let places: Vec<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join(name)).collect();
    let found = places.iter().find_map(|place| runs(place));
    found.map(PathBuf::into_os_string).ok_or_else(|| missing(name, places))
}

fn runs(path: &Path) -> Option<PathBuf> {
    (path.is_file() && access(path, Access::EXEC_OK).is_ok()).then(|| path.to_owned())
}

fn missing(name: &OsStr, places: impl IntoIterator<Item = PathBuf>) -> Missing {
    match places.into_iter().find(|place| !name.is_empty() && place.exists()) {
        Some(place) => Missing::NotExecutable(place),
        None => Missing::NotFound(name.to_owned()),
    }
}
