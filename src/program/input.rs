//! The input, and a hint if it is unlikely to be what was meant.

use anyhow::{Context, Result, bail, ensure};
use rustix::fd::AsFd;
use rustix::fs::{FileType, OFlags, Stat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An open input and what it is called in messages.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) fd: OwnedFd,
    pub(crate) name: String,
    /// What is left of a regular file, in bytes.
    pub(crate) size: Option<u64>,
    is_stdin: bool,
}

/// Opens `file`, or standard input.
///
/// # Errors
/// What cannot be opened or read, and why.
pub(crate) fn open(file: Option<&Path>) -> Result<Input> {
    let (fd, name) = if let Some(path) = file {
        let file = File::open(path).with_context(|| format!("--arg-file: cannot open {}", path.display()))?;
        (OwnedFd::from(file), path.display().to_string())
    } else {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
        (stdin, "standard input".to_owned())
    };
    let stat = rustix::fs::fstat(&fd).with_context(|| name.clone())?;
    ensure_open_for("reading", OFlags::WRONLY, &fd, &name)?;
    let is_output = file_position(&fd) < output_position(&stat);
    ensure!(!is_output, "{name} is also the output, and would never end; write to another file");
    let size = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => bail!("{name} is a directory; name a file: throttle -a FILE, or throttle < FILE"),
        FileType::RegularFile => u64::try_from(stat.st_size).ok().zip(rustix::fs::tell(&fd).ok()),
        _ => None,
    };
    Ok(Input { fd, name, is_stdin: file.is_none(), size: size.map(|(size, offset)| size.saturating_sub(offset)) })
}

fn file_position(fd: impl AsFd) -> Option<u64> {
    rustix::fs::tell(fd).ok()
}

/// The next position of standard output, if it writes to the regular file of `input`. Output behind the position of the input
/// would be read again; cat(1) has the same rule.
fn output_position(input: &Stat) -> Option<u64> {
    let (stdout, stat) = (std::io::stdout(), rustix::fs::fstat(std::io::stdout()).ok()?);
    if !are_one_file(&stat, input) {
        return None;
    }
    let appends = rustix::fs::fcntl_getfl(&stdout).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    if appends { u64::try_from(stat.st_size).ok() } else { file_position(stdout) }
}

/// Whether both are the same regular file.
pub(super) fn are_one_file(one: &Stat, other: &Stat) -> bool {
    FileType::from_raw_mode(one.st_mode) == FileType::RegularFile
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Refuses a descriptor that can only do the `opposite`: poll(2) would wait for it forever.
///
/// # Errors
/// Names the descriptor, and what it cannot do.
pub(crate) fn ensure_open_for(what: &str, opposite: OFlags, fd: impl AsFd, name: &str) -> Result<()> {
    let mode = rustix::fs::fcntl_getfl(fd).with_context(|| name.to_owned())? & OFlags::RWMODE;
    ensure!(mode != opposite, "{name} is not open for {what}");
    Ok(())
}

impl Input {
    /// A hint if standard input is a terminal or /dev/null.
    pub(crate) fn remark(&self, unit: &str, act: &str) -> Option<String> {
        if !self.is_stdin {
            return None;
        }
        if rustix::termios::isatty(&self.fd) {
            return Some(format!("reading {unit} from the terminal; Ctrl-D ends"));
        }
        let ours = rustix::fs::fstat(&self.fd).ok()?;
        let null = rustix::fs::stat("/dev/null").ok()?;
        let is_device = FileType::from_raw_mode(ours.st_mode) == FileType::CharacterDevice;
        (is_device && ours.st_rdev == null.st_rdev).then(|| format!("stdin is /dev/null: nothing to {act}"))
    }
}
