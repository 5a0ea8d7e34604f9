//! Finds the file of a command, before any input is read.

use super::exit::Exit;
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use throttle::launch::quote;
use throttle_limits::store::Address;

/// Why a command will not run.
#[derive(Debug)]
pub(crate) enum Missing {
    NotFound(OsString),
    /// A file that is there, why it cannot be run, and the exit that follows.
    CannotRun(PathBuf, String, Exit),
}

impl Missing {
    pub(crate) fn exit(&self) -> Exit {
        if let Missing::CannotRun(.., exit) = self { *exit } else { Exit::NotFound }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It may be an address with a password, if --bucket was forgotten.
            Missing::NotFound(name) => {
                let place = if name.as_bytes().contains(&b'/') { "" } else { " in PATH" };
                write!(f, "'{}': no such command{place}", Address::redacted(name))
            }
            Missing::CannotRun(path, why, _) => write!(f, "'{}' cannot be run: {why}", path.display()),
        }
    }
}

/// The file that would run as `name`, found as execvp(3) does.
///
/// # Errors
/// There is no such file, or it may not be run.
pub(crate) fn find(name: &OsStr) -> Result<OsString, Missing> {
    let path = file_of(name)?;
    let Some(interpreter) = missing_interpreter(Path::new(&path)) else { return Ok(path) };
    let why = if interpreter.as_bytes().ends_with(b"\r") {
        format!("its lines end in CR; write sed -i 's/\\r$//' {}", quoted(&path))
    } else {
        format!("its first line names '{}', which is not there", interpreter.display())
    };
    Err(Missing::CannotRun(path.into(), why, Exit::NotFound))
}

fn file_of(name: &OsStr) -> Result<OsString, Missing> {
    if name.as_bytes().contains(&b'/') {
        return runs(Path::new(name)).map(PathBuf::into_os_string).ok_or_else(|| missing(name, [PathBuf::from(name)]));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let places: Vec<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join(name)).collect();
    let found = places.iter().find_map(|place| runs(place));
    found.map(PathBuf::into_os_string).ok_or_else(|| missing(name, places))
}

pub(super) fn runs(path: &Path) -> Option<PathBuf> {
    (path.is_file() && access(path, Access::EXEC_OK).is_ok()).then(|| path.to_owned())
}

fn missing(name: &OsStr, places: impl IntoIterator<Item = PathBuf>) -> Missing {
    let is_path = name.as_bytes().contains(&b'/');
    let reason = |place: PathBuf| match place.metadata() {
        _ if name.is_empty() => None,
        Ok(_) => Some(not_executable(place)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        // An entry of PATH may not be a folder, or one of somebody else, as root's after su. Shells pass over both.
        Err(error) if passed_over(error.kind()) && !is_path => None,
        Err(error) => Some(Missing::CannotRun(place, error.to_string(), Exit::CannotRun)),
    };
    places.into_iter().find_map(reason).unwrap_or_else(|| Missing::NotFound(name.to_owned()))
}

fn passed_over(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::NotADirectory | ErrorKind::PermissionDenied)
}

fn not_executable(path: PathBuf) -> Missing {
    let name = quoted(&path);
    let why = if path.is_dir() {
        "it is a folder; name the command in it".to_owned()
    } else {
        format!("it is not executable; to read it write < {name}, to run it chmod +x {name}")
    };
    Missing::CannotRun(path, why, Exit::CannotRun)
}

/// The interpreter in the first line of a script, if there is no such file: execve(2) says only that something is missing.
fn missing_interpreter(script: &Path) -> Option<OsString> {
    /// As much as Linux reads of it (`BINPRM_BUF_SIZE`).
    const FIRST_LINE: u64 = 256;
    let mut beginning = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE).read_to_end(&mut beginning).ok()?;
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
    let interpreter = OsStr::from_bytes(line.split(|byte| b" \t".contains(byte)).next()?);
    (!interpreter.is_empty() && !Path::new(interpreter).exists()).then(|| interpreter.to_owned())
}

/// `word` as it can be pasted into a shell, whatever is in it.
pub(super) fn quoted(word: impl AsRef<OsStr>) -> String {
    String::from_utf8_lossy(&quote(word.as_ref().as_bytes(), true)).into_owned()
}
