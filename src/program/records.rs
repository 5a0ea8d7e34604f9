//! Records of attempts that have ended: the list of done units, and the log.

use super::answer;
use super::done::Done;
use super::input::are_one_file;
use super::log::{Begun, Log};
use super::say::say;
use super::task::Launch;
use anyhow::{Result, ensure};
use rustix::fs::Stat;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use throttle::flow::framing::Framing;
use throttle::launch::{Ended, Job, Known, Ledger, Torn};

/// The files of `--done` and `--log`.
#[derive(Debug)]
pub(super) struct Records {
    done: Option<Arc<Done>>,
    log: Option<Log>,
    /// Whether a message was already printed that a unit is too long to be recorded.
    warned_of_long: AtomicBool,
    quiet: bool,
}

impl Records {
    /// Opens the files. Returns `None` if neither option is given. `input` is the input, if units are read.
    ///
    /// # Errors
    /// A file cannot be opened. Or one file has two uses, for example as the done list and as the input.
    pub(super) fn open(launch: &Launch, input: Option<BorrowedFd<'_>>, second: Duration) -> Result<Option<Self>> {
        let (again, reporting) = (&launch.flags.again, &launch.reporting);
        if again.done.is_none() && again.log.is_none() {
            return Ok(None);
        }
        let delimiter = delimiter(launch.commands.framing);
        let open_log = |path: &PathBuf| {
            ensure_differs("--log", path, stat(input), "the input, and its lines would be read as units")?;
            Log::open(path)
        };
        let log = again.log.as_ref().map(open_log).transpose()?;
        let open_done = |path: &PathBuf| {
            ensure_is_no_input(path, input)?;
            let printed = "the output of the commands, and their lines would count as done";
            ensure_differs("--done", path, rustix::fs::fstat(io::stdout()).ok(), printed)?;
            ensure_differs("--done", path, rustix::fs::fstat(io::stderr()).ok(), printed)?;
            let logged = again.log.as_ref().and_then(|log| rustix::fs::stat(log).ok());
            ensure_differs("--done", path, logged, "the file of --log")?;
            open_done(path, delimiter, second)
        };
        let done = again.done.as_ref().map(open_done).transpose()?;
        let summary = reporting.summary.as_ref().and_then(|summary| summary.file.as_ref());
        for file in [&again.done, &again.log].into_iter().flatten() {
            let kept = rustix::fs::stat(file).ok();
            summary
                .map_or(Ok(()), |summary| ensure_differs("--summary", summary, kept, "a file of --done or --log"))?;
        }
        Ok(Some(Records { done, log, warned_of_long: AtomicBool::new(false), quiet: reporting.quiet }))
    }

    /// Writes the first line of the run to the log.
    ///
    /// # Errors
    /// The line cannot be written.
    pub(super) fn begin(&self, begun: &Begun) -> io::Result<()> {
        self.in_log(|log| log.begin(begun))
    }

    /// The function that decides which units are skipped.
    pub(super) fn known(&self) -> Option<Known> {
        Some(self.done.as_ref()?.taken().known(self.quiet))
    }

    /// The number of units in the done list when it was opened.
    pub(super) fn known_units(&self) -> u64 {
        self.done.as_ref().map_or(0, |done| done.taken().count())
    }

    /// Prints a hint if this run continues another one, but the shell has emptied the file of the output.
    pub(super) fn hint_at_emptied_output(&self) {
        if !self.quiet && self.known_units() > 0 && answer::was_output_emptied() {
            say("hint: --done continues an earlier run, but > has emptied the file of the output; to keep the output \
                 of earlier runs write >> FILE");
        }
    }

    /// The number of units in the done list now, if there is one.
    pub(super) fn done_units(&self) -> Option<u64> {
        self.done.as_ref().map(|done| done.units())
    }

    /// Writes all records to the disk.
    ///
    /// # Errors
    /// The records cannot be written.
    pub(super) fn finish(&self) -> io::Result<()> {
        let done = self.in_done(Done::finish);
        self.in_log(Log::finish).and(done)
    }

    fn in_log(&self, write: impl FnOnce(&Log) -> io::Result<()>) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        write(log).map_err(|error| cannot_write("--log", log.path(), &error))
    }

    fn in_done(&self, write: impl FnOnce(&Done) -> io::Result<()>) -> io::Result<()> {
        let Some(done) = &self.done else { return Ok(()) };
        write(done).map_err(|error| cannot_write("--done", done.path(), &error))
    }

    fn add_done(&self, done: &Done, job: &Job) -> io::Result<()> {
        if job.is_whole() {
            return done.add(job.units.iter());
        }
        if !self.quiet && !self.warned_of_long.swap(true, Ordering::Relaxed) {
            say(
                "--done: a unit is too long to be recorded (192 KiB, or 4 MiB for all of a command); the next run repeats it",
            );
        }
        Ok(())
    }
}

/// The byte that ends a record of the done list.
pub(super) fn delimiter(framing: Framing) -> u8 {
    if let Framing::EndedBy(byte) = framing { byte } else { b'\n' }
}

/// Refuses a done list that is also the input.
///
/// # Errors
/// The done list is the input.
pub(super) fn ensure_is_no_input(done: &Path, input: Option<BorrowedFd<'_>>) -> Result<()> {
    ensure_differs("--done", done, stat(input), "the input, and all of its units would count as done")
}

fn stat(fd: Option<BorrowedFd<'_>>) -> Option<Stat> {
    rustix::fs::fstat(fd?).ok()
}

/// Refuses a summary that would overwrite the input or the output.
///
/// # Errors
/// The summary is the input or the output.
pub(super) fn ensure_is_no_stream(summary: &Path, input: Option<BorrowedFd<'_>>) -> Result<()> {
    ensure_differs("--summary", summary, stat(input), "the input, and would be emptied before it is read")?;
    for output in [rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())] {
        ensure_differs("--summary", summary, output.ok(), "the output, and would be written over it")?;
    }
    Ok(())
}

/// Refuses a file that is also another regular file.
///
/// # Errors
/// Both are the same file.
fn ensure_differs(option: &str, path: &Path, other: Option<Stat>, what: &str) -> Result<()> {
    let are_one = rustix::fs::stat(path).ok().zip(other).is_some_and(|(one, other)| are_one_file(&one, &other));
    ensure!(!are_one, "{option}: {} is also {what}; name another file", path.display());
    Ok(())
}

/// Opens the done list. If bytes were cut off its end, this is reported even with --quiet, because the file may not
/// have been a done list.
fn open_done(path: &Path, delimiter: u8, second: Duration) -> Result<Arc<Done>> {
    let (done, torn) = Done::open(path, delimiter, second)?;
    if let Some(Torn { bytes, nuls }) = torn {
        let (name, is_alone) = (path.display(), nuls == bytes);
        let what = match nuls {
            0 => "a record without its end; its unit runs again".to_owned(),
            _ if is_alone => "NUL bytes, as after a power cut; units that were recorded there run again".to_owned(),
            _ => format!(
                "a record that may be incomplete and {nuls} NUL bytes, as after a power cut; units that were recorded \
                 there run again"
            ),
        };
        say(format_args!("--done: cut {bytes} bytes off the end of {name}: {what}"));
    }
    Ok(done)
}

fn cannot_write(option: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{option}: cannot write {}: {error}", path.display()))
}

impl Ledger for Records {
    fn record(&self, ended: &Ended) -> io::Result<()> {
        self.in_log(|log| log.write(ended))
    }

    fn record_done(&self, job: &Job) -> io::Result<()> {
        self.in_done(|done| self.add_done(done, job))
    }

    fn may_block(&self) -> bool {
        self.log.as_ref().is_some_and(|log| !log.is_regular())
    }
}
