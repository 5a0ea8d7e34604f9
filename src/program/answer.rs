//! What is written to standard output, other than units.

use super::exit::Exit;
use super::{before_main, signals};
use anyhow::{Context, Result, ensure};
use std::io::{self, Write};

/// Writes an answer such as `--help` to standard output. If its reader has left, the program dies of SIGPIPE.
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
