//! The program: what the user typed becomes a plan, and the plan is run.
//!
//! Only this module and those below it know clap, anyhow, the terminal and exit codes.

mod bucket;
mod commands;
mod ending;
mod exit;
mod flags;
mod input;
mod lookup;
mod naming;
mod once;
mod pipe;
mod progress;
mod report;
mod signals;
mod tally;

#[cfg(test)]
mod generated;

use exit::Exit;
use flags::{Flags, Mode};
use std::fmt::Display;

/// Runs the program and says how it ends.
pub(crate) fn main() -> Exit {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(exit) => return exit,
    };
    run(&flags).unwrap_or_else(|error| {
        say(format_args!("{error:#}{}", advice(&error)));
        flags.own_error()
    })
}

/// What helps against a lack of open files, wherever it is felt.
fn advice(error: &anyhow::Error) -> &'static str {
    let code = error.root_cause().downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    if code == Some(rustix::io::Errno::MFILE.raw_os_error()) { "; ulimit -n allows more open files" } else { "" }
}

fn run(flags: &Flags) -> anyhow::Result<Exit> {
    match (flags.mode(), flags.bucket(), flags.template()) {
        (Mode::Once, Some(bucket), _) => once::run(flags, bucket, flags.command()),
        (Mode::Set, Some(bucket), _) => bucket::set(flags, bucket).map(|()| Exit::Success),
        (Mode::Show(format), Some(bucket), _) => bucket::show(flags, bucket, format).map(|()| Exit::Success),
        (_, _, Some(template)) => commands::run(flags, template),
        _ => pipe::run(flags),
    }
}

/// A line on standard error, in one write, so that no other process's line tears it. If that cannot be written, there is
/// nobody to tell.
pub(crate) fn say(message: impl Display) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("throttle: {message}\n").as_bytes());
}
