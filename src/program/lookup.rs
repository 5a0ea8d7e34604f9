//! Finds the file of a command before any input is read.

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

/// Why a command cannot run.
#[derive(Debug)]
pub(crate) enum Missing {
    NotFound(OsString),
    /// A file that exists, the reason why it cannot run, and the exit.
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
            // The name may be an address with a password, if --bucket was forgotten.
            Missing::NotFound(name) => {
                let place = if name.as_bytes().contains(&b'/') { "" } else { " in PATH" };
                write!(f, "'{}': no such command{place}", Address::redacted(name))
            }
            Missing::CannotRun(path, why, _) => write!(f, "'{}' cannot be run: {why}", path.display()),
        }
    }
}

/// The file that execvp(3) would run as `name`.
///
/// # Errors
/// There is no such file, or it may not be run.
pub(crate) fn find(name: &OsStr) -> Result<OsString, Missing> {
    let path = file_of(name)?;
    let Some(interpreter) = missing_interpreter(Path::new(&path)) else { return Ok(path) };
    let why = if interpreter.as_bytes().ends_with(b"\r") {
        format!("its lines end in CR; write sed -i 's/\\r$//' {}", quoted(&path))
    } else {
        format!("its first line names '{}', which does not exist", interpreter.display())
    };
    Err(Missing::CannotRun(path.into(), why, Exit::NotFound))
}

fn file_of(name: &OsStr) -> Result<OsString, Missing> {
    let is_path = name.as_bytes().contains(&b'/');
    let places: Vec<PathBuf> = if is_path {
        vec![name.into()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        std::env::split_paths(&path).map(|folder| folder.join(name)).collect()
    };
    if let Some(found) = places.iter().find(|place| runs(place)) {
        return Ok(found.clone().into());
    }
    let reason = |place: PathBuf| match place.metadata() {
        _ if name.is_empty() => None,
        Ok(_) => Some(not_executable(place)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => None,
            // An entry of PATH may be no folder, or a folder of another user, for example of root after su. Shells skip
            // such entries.
            ErrorKind::NotADirectory | ErrorKind::PermissionDenied if !is_path => None,
            _ => Some(Missing::CannotRun(place, error.to_string(), Exit::CannotRun)),
        },
    };
    Err(places.into_iter().find_map(reason).unwrap_or_else(|| Missing::NotFound(name.to_owned())))
}

pub(super) fn runs(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
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

/// The interpreter in the first line of a script, if the interpreter does not exist. The error of execve(2) does not
/// report which file is missing.
fn missing_interpreter(script: &Path) -> Option<OsString> {
    /// The bytes of the first line that Linux reads (`BINPRM_BUF_SIZE`).
    const FIRST_LINE_BYTES: u64 = 256;
    let mut beginning = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE_BYTES).read_to_end(&mut beginning).ok()?;
    let line = beginning.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
    let interpreter = OsStr::from_bytes(line.split(|byte| b" \t".contains(byte)).next()?);
    (!interpreter.is_empty() && !Path::new(interpreter).exists()).then(|| interpreter.to_owned())
}

/// Quotes `word`, whatever is in it, so that it can be pasted into a shell.
pub(super) fn quoted(word: impl AsRef<OsStr>) -> String {
    String::from_utf8_lossy(&quote(word.as_ref().as_bytes(), true)).into_owned()
}
