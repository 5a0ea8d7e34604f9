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
mod turn;

#[cfg(test)]
mod generated;

use exit::Exit;
use flags::{Flags, Task};
use rustix::io::Errno;
use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// Runs the program and says how it ends.
pub(crate) fn main() -> Exit {
    let flags = match flags::parse(std::env::args_os()) {
        Ok(flags) => flags,
        Err(exit) => return exit,
    };
    run(&flags).unwrap_or_else(|error| {
        say(told(&flags, &error));
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

/// An error, and what helps against it: against one of a bucket, or a limit of the system, wherever it is felt.
fn told(flags: &Flags, error: &anyhow::Error) -> String {
    if let Some(cause) = error.chain().find_map(|error| error.downcast_ref()) {
        return bucket::told(flags, cause, format_args!("{error:#}"));
    }
    let code = error.root_cause().downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let advice = match code.map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "; ulimit -n allows more open files",
        Some(Errno::FBIG) => "; ulimit -f allows larger files",
        Some(Errno::AGAIN) if error.is::<NoThread>() => "; ulimit -u allows more processes and threads",
        _ => "",
    };
    format!("{error:#}{advice}")
}

fn run(flags: &Flags) -> anyhow::Result<Exit> {
    let writes = match flags.task() {
        Task::Set(_) => false,
        Task::Once(_) => !flags.command().is_empty(),
        _ => true,
    };
    if writes {
        expect_standard_output()?;
    }
    match flags.task() {
        Task::Pipe => pipe::run(flags),
        Task::Launch(template) => commands::run(flags, template),
        Task::DryRun(template) => commands::dry_run(flags, template),
        Task::Once(bucket) => once::run(flags, bucket, flags.command()),
        Task::Set(bucket) => bucket::set(flags, bucket).map(|()| Exit::Success),
        Task::Show(bucket, format) => bucket::show(flags, bucket, *format).map(|()| Exit::Success),
    }
}

fn expect_standard_output() -> anyhow::Result<()> {
    anyhow::ensure!(!before_main::stdout_is_closed(), "cannot write to standard output: it is closed");
    Ok(())
}

/// A line on standard error, in one write. What would steer a terminal is shown there. If it cannot be written, there is
/// nobody to tell.
pub(crate) fn say(message: impl Display) {
    let line = format!("throttle: {message}");
    let line = if std::io::stderr().is_terminal() { throttle::launch::printable(&line) } else { line };
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
