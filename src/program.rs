//! The program: it reads the command line into a task, and runs the task.
//!
//! Only this module and its submodules use `clap`, `anyhow`, the terminal and exit codes.

mod advice;
mod answer;
mod append;
mod args;
mod before_main;
mod bucket_view;
mod buckets;
mod done;
mod dry_run;
mod exit;
mod failure;
mod held;
mod input;
mod launch;
mod launch_run;
mod log;
mod long_wait;
mod lookup;
mod names;
mod once;
mod outcomes;
mod pipe;
mod plot;
mod progress;
mod rates;
mod records;
mod report;
mod say;
mod signal_thread;
mod signals;
mod task;
mod time_of_day;
mod unit_name;

#[cfg(test)]
mod generated;

use answer::{expect_standard_output, print};
use anyhow::Context;
use args::{Environment, Refused};
use exit::Exit;
use say::{NoThread, say};
use std::ffi::OsString;
use std::io::ErrorKind;
use task::{Task, Verb};
use throttle_limits::store::StoreError;

/// Runs the program, and returns its exit.
pub(crate) fn main() -> Exit {
    let words: Vec<OsString> = std::env::args_os().collect();
    let args = match args::parse(&words) {
        Ok(args) => args,
        Err(Refused::Answer(text)) => return answer(|| text.print()),
        Err(Refused::Help(mut page)) => return answer(|| page.print_help()),
        Err(Refused::Mistake(message, once)) => return refuse(message, once),
    };
    let once = args.shared.once;
    let variable = std::env::var_os;
    let environment = Environment::new(variable("THROTTLE_BUCKET"), variable("XDG_STATE_HOME"), variable("HOME"));
    let mut task = match Task::new(args, &environment) {
        Ok(task) => task,
        Err(message) => return refuse(args::redacted(&message, &words), once),
    };
    // Nothing is opened before this: the open of a named pipe may take forever.
    let handled = end_by_signals(&task);
    if let (Ok(()), Err(message)) = (&handled, rates::read(&mut task)) {
        return refuse(args::redacted(&message, &words), once);
    }
    handled.and_then(|()| run(&task)).unwrap_or_else(|error| {
        say(explain(&task, &error));
        let is_away = error.downcast_ref().is_some_and(StoreError::may_pass);
        match task {
            Task::Once(_) => Exit::OnceError,
            Task::Launch(launch) if launch.call.is_some() => Exit::OnceError,
            Task::Bucket(_, Verb::Show(_) | Verb::List(_)) if is_away => Exit::Away,
            _ => Exit::Error,
        }
    })
}

fn answer(write: impl FnOnce() -> std::io::Result<()>) -> Exit {
    print(write).unwrap_or_else(|error| {
        say(format_args!("{error:#}"));
        Exit::Error
    })
}

/// Prints the message about a wrong command line, and returns the exit. With `--once` it is 125, because lower exit
/// codes belong to the command.
fn refuse(message: String, once: bool) -> Exit {
    say(message);
    if once { Exit::OnceError } else { Exit::Usage }
}

/// The message of an error, with advice if the error comes from a bucket or from a limit of the system.
fn explain(task: &Task, error: &anyhow::Error) -> String {
    if let Some(cause) = error.chain().find_map(|error| error.downcast_ref()) {
        return buckets::explain(task, cause, format_args!("{error:#}"));
    }
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    // If a thread could not start, `WouldBlock` (EAGAIN) means a limit that the user can raise. Any other `WouldBlock`
    // gets no advice.
    let cause = cause.filter(|cause| cause.kind() != ErrorKind::WouldBlock || error.is::<NoThread>());
    let advice = cause.map_or("", failure::advice);
    format!("{error:#}{advice}")
}

/// Lets signals end the program until the run has begun.
///
/// # Errors
/// The system refuses a handler.
fn end_by_signals(task: &Task) -> anyhow::Result<()> {
    let quits_with = match task {
        // QUIT lets nothing more start.
        Task::Launch(launch) if launch.call.is_none() && !launch.flags.dry_run => Some(Exit::SentAway.code()),
        _ => None,
    };
    signals::end_until_begun(quits_with).context("cannot handle signals")
}

fn run(task: &Task) -> anyhow::Result<Exit> {
    let writes = match task {
        Task::Bucket(..) => false,
        Task::Once(once) => !once.command.is_empty(),
        _ => true,
    };
    if writes {
        expect_standard_output()?;
    }
    let exit = match task {
        Task::Pipe(pipe) if pipe.dry_run => dry_run::of_units(pipe),
        Task::Pipe(pipe) => pipe::run(pipe),
        Task::Launch(launch) if launch.flags.dry_run => dry_run::of_commands(launch),
        Task::Launch(launch) => launch::run(launch),
        Task::Once(once) => once::run(once, |error| buckets::explain(task, error, error)),
        Task::Bucket(bucket, verb) => buckets::run(bucket, verb),
        Task::Plot(logs) => plot::run(logs),
    };
    // This check comes last, because the process that writes to standard input may start late.
    match task {
        Task::Pipe(pipe) if exit.is_ok() => input::hint_at_unused_stdin(&pipe.input, &pipe.reporting),
        Task::Launch(launch) if exit.is_ok() && launch.call.is_none() => {
            input::hint_at_unused_stdin(&launch.commands.input, &launch.reporting);
        }
        _ => {}
    }
    exit
}
