//! The input, and a hint if it is unlikely to be the intended input.

use super::args::{InputFlags, ReportFlags};
use super::say::say;
use anyhow::{Context, Result, bail, ensure};
use rustix::fd::AsFd;
use rustix::fs::{FileType, OFlags, Stat};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use throttle::flow::framing::trimmed;

/// An open input, and its name in messages.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) fd: OwnedFd,
    pub(crate) name: String,
    /// The unread bytes of a regular file.
    pub(crate) size: Option<u64>,
    /// The position in a regular file at which the input begins.
    start: u64,
    is_stdin: bool,
}

/// Opens `file`, or standard input.
///
/// # Errors
/// The input cannot be opened or read.
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
    let before = size.map_or(0, |(_, before)| before);
    let size = size.map(|(size, before)| size.saturating_sub(before));
    Ok(Input { fd, name, is_stdin: file.is_none(), size, start: before })
}

fn file_position(fd: impl AsFd) -> Option<u64> {
    rustix::fs::tell(fd).ok()
}

/// The position of the next write to standard output, if that is the same regular file as `input`. If it is beyond the
/// next read of the input, the program would read its own output. cat(1) has the same rule.
fn output_position(input: &Stat) -> Option<u64> {
    let (stdout, stat) = (std::io::stdout(), rustix::fs::fstat(std::io::stdout()).ok()?);
    if !are_one_file(&stat, input) {
        return None;
    }
    let appends = rustix::fs::fcntl_getfl(&stdout).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    if appends { u64::try_from(stat.st_size).ok() } else { file_position(stdout) }
}

/// Whether both describe the same regular file.
pub(super) fn are_one_file(one: &Stat, other: &Stat) -> bool {
    FileType::from_raw_mode(one.st_mode) == FileType::RegularFile
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Refuses a descriptor that is open only for the `opposite` of `what`, because poll(2) would wait for it forever.
///
/// # Errors
/// The descriptor is not open for `what`.
pub(crate) fn ensure_open_for(what: &str, opposite: OFlags, fd: impl AsFd, name: &str) -> Result<()> {
    let mode = rustix::fs::fcntl_getfl(fd).with_context(|| name.to_owned())? & OFlags::RWMODE;
    ensure!(mode != opposite, "{name} is not open for {what}");
    Ok(())
}

/// The rest of a regular file, to count the units that were not read.
pub(crate) struct Rest {
    file: File,
    size: u64,
    start: u64,
}

/// The most bytes that are read to count the units in them.
const MAX_COUNTED_BYTES: u64 = 64 << 20;

impl Rest {
    /// The number of units after the first `read` bytes. It leaves out units for which `counts` returns false. `None`
    /// means that the number is not known.
    pub(crate) fn units(&self, read: u64, delimiter: u8, counts: impl Fn(&[u8]) -> bool) -> Option<u64> {
        let unread = self.size.checked_sub(read).filter(|bytes| *bytes <= MAX_COUNTED_BYTES)?;
        let mut rest = BufReader::new(At { file: &self.file, place: self.start + read }).take(unread);
        let (mut units, mut unit) = (0, Vec::new());
        while rest.read_until(delimiter, &mut unit).ok()? > 0 {
            units += u64::from(counts(trimmed(&unit, Some(delimiter))));
            unit.clear();
        }
        Some(units)
    }
}

/// Reads a file from a position, without moving the offset that other descriptors share.
struct At<'a> {
    file: &'a File,
    place: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.place)?;
        self.place += length as u64;
        Ok(length)
    }
}

impl Input {
    /// The rest of the input, if it is a regular file.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let (size, start) = (self.size?, self.start);
        Some(Rest { file: self.fd.try_clone().ok()?.into(), size, start })
    }

    /// A hint if standard input is a terminal, or if it is /dev/null, for example in a loop over single commands or
    /// under cron.
    pub(crate) fn remark(&self, unit: &str, reporting: &ReportFlags) -> Option<String> {
        if !self.is_stdin {
            return None;
        }
        if rustix::termios::isatty(&self.fd) {
            let is_shown = reporting.sums_up(std::io::stderr().is_terminal());
            return is_shown.then(|| format!("reading {unit} from the terminal; Ctrl-D ends"));
        }
        let ours = rustix::fs::fstat(&self.fd).ok()?;
        let null = rustix::fs::stat("/dev/null").ok()?;
        let is_device = FileType::from_raw_mode(ours.st_mode) == FileType::CharacterDevice;
        (is_device && ours.st_rdev == null.st_rdev && !reporting.quiet).then(|| NOTHING.to_owned())
    }
}

const NOTHING: &str = "standard input is /dev/null, so no unit was read; to pace single commands: --bucket NAME --once";

/// Prints one hint if standard input is not used.
pub(crate) fn hint_at_unused_stdin(input: &InputFlags, reporting: &ReportFlags) {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !reporting.quiet && is_stdin_unused(input) && !IS_DONE.swap(true, Ordering::Relaxed) {
        let flag = if input.repeat.is_some() { "--repeat" } else { "-a" };
        say(format_args!(
            "standard input is not used, because {flag} is given; to pass it to a command write it to a file: -c \
             'COMMAND \"$1\" < FILE'"
        ));
    }
}

/// Whether units are not read from standard input, although it is a file or a pipe with data. The user may have meant
/// that data for the commands.
fn is_stdin_unused(input: &InputFlags) -> bool {
    let stdin = std::io::stdin();
    let kind = rustix::fs::fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let may_be_meant = kind.is_ok_and(|kind| matches!(kind, FileType::RegularFile | FileType::Fifo));
    !input.is_stdin() && may_be_meant && rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)
}
