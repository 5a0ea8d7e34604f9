//! What is kept of attempts that have ended: the list of units that are done, and the log.

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
use throttle::launch::{Ended, Job, Known, Ledger};

/// The files of `--done` and `--log`.
#[derive(Debug)]
pub(super) struct Records {
    done: Option<Arc<Done>>,
    log: Option<Log>,
    /// Whether a message about a unit that is too long to be recorded was written.
    told_of_long: AtomicBool,
    quiet: bool,
}

impl Records {
    /// Opens the files; `None` if there are none. Units come from `commands`, and `input` if that is read.
    ///
    /// # Errors
    /// What cannot be opened, and why; or two of them, the input and the summary are the same.
    pub(super) fn open(launch: &Launch, input: Option<BorrowedFd<'_>>, second: Duration) -> Result<Option<Self>> {
        let (again, reporting) = (&launch.flags.again, &launch.reporting);
        if again.done.is_none() && again.log.is_none() {
            return Ok(None);
        }
        let delimiter = delimiter(launch.commands.framing);
        let open_log = |path: &PathBuf| {
            ensure_apart("--log", path, stat(input), "the input, and its lines would be read as units")?;
            Log::open(path)
        };
        let log = again.log.as_ref().map(open_log).transpose()?;
        let open_done = |path: &PathBuf| {
            ensure_is_no_input(path, input)?;
            let printed = "the output of the commands, and their lines would count as done";
            ensure_apart("--done", path, rustix::fs::fstat(io::stdout()).ok(), printed)?;
            ensure_apart("--done", path, rustix::fs::fstat(io::stderr()).ok(), printed)?;
            let logged = again.log.as_ref().and_then(|log| rustix::fs::stat(log).ok());
            ensure_apart("--done", path, logged, "the file of --log")?;
            open_done(path, delimiter, second)
        };
        let done = again.done.as_ref().map(open_done).transpose()?;
        let summary = reporting.summary.as_ref().and_then(|summary| summary.file.as_ref());
        for file in [&again.done, &again.log].into_iter().flatten() {
            let kept = rustix::fs::stat(file).ok();
            summary.map_or(Ok(()), |summary| ensure_apart("--summary", summary, kept, "a file of --done or --log"))?;
        }
        Ok(Some(Records { done, log, told_of_long: AtomicBool::new(false), quiet: reporting.quiet }))
    }

    /// Begins the run in the log.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin(&self, begun: &Begun) -> io::Result<()> {
        self.log
            .as_ref()
            .map_or(Ok(()), |log| log.begin(begun).map_err(|error| cannot_write("--log", log.path(), &error)))
    }

    /// Says which units are done.
    pub(super) fn known(&self) -> Option<Known> {
        Some(self.done.as_ref()?.taken().known(self.quiet))
    }

    /// How many units the done list held when it was opened.
    pub(super) fn known_units(&self) -> u64 {
        self.done.as_ref().map_or(0, |done| done.taken().count())
    }

    /// How many units the done list holds now, if there is one.
    pub(super) fn done_units(&self) -> Option<u64> {
        self.done.as_ref().map(|done| done.units())
    }

    /// Writes all that was recorded to the disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(&self) -> io::Result<()> {
        let done = self
            .done
            .as_ref()
            .map_or(Ok(()), |done| done.finish().map_err(|error| cannot_write("--done", done.path(), &error)));
        let log = |log: &Log| log.finish().map_err(|error| cannot_write("--log", log.path(), &error));
        self.log.as_ref().map_or(Ok(()), log).and(done)
    }

    fn add_done(&self, done: &Done, job: &Job) -> io::Result<()> {
        if job.is_whole() {
            return done.add(job.units.iter());
        }
        if !self.quiet && !self.told_of_long.swap(true, Ordering::Relaxed) {
            say(
                "--done: a unit is too long to be recorded (192 KiB, or 4 MiB for all of a command); the next run repeats it",
            );
        }
        Ok(())
    }
}

/// What ends a record of the done list.
pub(super) fn delimiter(framing: Framing) -> u8 {
    if let Framing::EndedBy(byte) = framing { byte } else { b'\n' }
}

/// # Errors
/// The done list is the input.
pub(super) fn ensure_is_no_input(done: &Path, input: Option<BorrowedFd<'_>>) -> Result<()> {
    ensure_apart("--done", done, stat(input), "the input, and all of its units would count as done")
}

fn stat(fd: Option<BorrowedFd<'_>>) -> Option<Stat> {
    rustix::fs::fstat(fd?).ok()
}

/// # Errors
/// The summary would be written over the input or the output.
pub(super) fn ensure_is_no_stream(summary: &Path, input: Option<BorrowedFd<'_>>) -> Result<()> {
    ensure_apart("--summary", summary, stat(input), "the input, and would be emptied before it is read")?;
    for output in [rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())] {
        ensure_apart("--summary", summary, output.ok(), "the output, and would be written over it")?;
    }
    Ok(())
}

/// # Errors
/// Two regular files are one.
fn ensure_apart(option: &str, path: &Path, other: Option<Stat>, what: &str) -> Result<()> {
    let are_one = rustix::fs::stat(path).ok().zip(other).is_some_and(|(one, other)| are_one_file(&one, &other));
    ensure!(!are_one, "{option}: {} is also {what}; name another file", path.display());
    Ok(())
}

/// What was cut off is said in any case: if the file was no done list, it says what has happened to it.
fn open_done(path: &Path, delimiter: u8, second: Duration) -> Result<Arc<Done>> {
    let (done, torn) = Done::open(path, delimiter, second)?;
    if let Some(bytes) = torn {
        let name = path.display();
        say(format_args!(
            "--done: cut {bytes} bytes off the end of {name}: a record without its end; its unit runs again"
        ));
    }
    Ok(done)
}

fn cannot_write(option: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{option}: cannot write {}: {error}", path.display()))
}

impl Ledger for Records {
    fn record(&self, ended: &Ended) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        log.write(ended).map_err(|error| cannot_write("--log", log.path(), &error))
    }

    fn record_done(&self, job: &Job) -> io::Result<()> {
        let Some(done) = &self.done else { return Ok(()) };
        self.add_done(done, job).map_err(|error| cannot_write("--done", done.path(), &error))
    }

    fn may_block(&self) -> bool {
        self.log.as_ref().is_some_and(|log| !log.is_regular())
    }
}
