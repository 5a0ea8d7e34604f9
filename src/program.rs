//! The program: what the user typed becomes a plan, and the plan is run.
//!
//! Only this module and those below it know clap, anyhow, indicatif, the terminal and exit codes.

mod commands;
mod ending;
mod exit;
mod flags;
mod input;
mod lookup;
mod pipe;
mod progress;
mod report;
mod signals;
mod tally;

#[cfg(test)]
mod generated;

use exit::Exit;
use std::fmt::Display;

/// Runs the program and says how it ends.
pub(crate) fn main() -> Exit {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(exit) => return exit,
    };
    let ended = match flags.template() {
        Some(template) => commands::run(&flags, template),
        None => pipe::run(&flags),
    };
    ended.unwrap_or_else(|error| {
        say(format_args!("{error:#}"));
        Exit::Error
    })
}

/// A line on standard error. If that cannot be written, there is nobody to tell.
pub(crate) fn say(message: impl Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "throttle: {message}");
}
