//! The program: what the user typed becomes a plan, and the plan is run.
//!
//! Only this module and those below it know clap, anyhow, the terminal and exit codes.

mod before_main;
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
    signals::survive_questions();
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(exit) => return exit,
    };
    run(&flags).unwrap_or_else(|error| {
        say(format_args!("{error:#}{}", advice(&error)));
        flags.own_error()
    })
}

/// A thread that is needed from the start cannot be had.
#[derive(Debug)]
pub(crate) struct NoThread;

impl Display for NoThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot start the threads that are needed")
    }
}

/// What helps against a lack of open files, wherever it is felt, and of threads.
fn advice(error: &anyhow::Error) -> &'static str {
    use rustix::io::Errno;
    let root = error.root_cause().downcast_ref::<std::io::Error>();
    match root.and_then(std::io::Error::raw_os_error).map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "; ulimit -n allows more open files",
        Some(Errno::AGAIN) if error.is::<NoThread>() => "; ulimit -u allows more processes and threads",
        _ => "",
    }
}

fn run(flags: &Flags) -> anyhow::Result<Exit> {
    let writes = match flags.mode() {
        Mode::Set => false,
        Mode::Once => !flags.command().is_empty(),
        _ => true,
    };
    anyhow::ensure!(!(writes && before_main::stdout_is_closed()), "cannot write to standard output: it is closed");
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
