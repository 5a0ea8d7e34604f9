//! Standard output: prints answers such as `--help`, and inspects the file to which standard output writes.

use super::exit::Exit;
use super::{before_main, signals};
use anyhow::{Context, Result, ensure};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::fs::{File, Metadata};
use std::io::{self, Write};

/// Writes an answer such as `--help` to standard output. If its reader has closed the pipe, the program dies of
/// SIGPIPE.
pub(super) fn print(write: impl FnOnce() -> io::Result<()>) -> Result<Exit> {
    expect_standard_output()?;
    match write().and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(signals::die_of_broken_pipe()),
        printed => printed.context("cannot write to standard output").map(|()| Exit::Success),
    }
}

pub(super) fn expect_standard_output() -> Result<()> {
    ensure!(!before_main::stdout_is_closed(), "cannot write to standard output: it is closed");
    Ok(())
}

/// The regular file to which standard output writes, unless it appends.
fn overwritten_file() -> Option<Metadata> {
    let output = io::stdout().as_fd().try_clone_to_owned().ok()?;
    let appends = rustix::fs::fcntl_getfl(&output).ok()?.contains(OFlags::APPEND);
    File::from(output).metadata().ok().filter(|file| file.is_file() && !appends)
}

/// Whether `> FILE` of a shell has emptied a file that existed before. If the shell has just made the file, its times
/// of creation and of the last change are equal.
pub(super) fn was_output_emptied() -> bool {
    let is_older =
        |file: &Metadata| file.created().ok().zip(file.modified().ok()).is_some_and(|(made, changed)| made < changed);
    overwritten_file().is_some_and(|file| file.len() == 0 && is_older(&file))
}

/// Whether the same command, run again by a shell, would lose the output of this run.
pub(super) fn would_be_emptied() -> bool {
    overwritten_file().is_some_and(|file| file.len() > 0)
}
