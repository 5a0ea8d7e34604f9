//! Messages about failures: how an attempt ended, its exit code, and advice.

use super::exit::Exit;
use rustix::io::Errno;
use std::io;
use throttle::flow::TOO_MUCH;
use throttle::launch::{Job, Outcome};

/// The message about a failed job, and its exit. `command` returns the name of the command. `terminal` is the advice on
/// using the terminal. `goes_on` means that an exit of 255 does not end the run.
pub(super) fn failure(
    job: &Job,
    outcome: &Outcome,
    command: impl FnOnce() -> String,
    terminal: &str,
    goes_on: bool,
) -> (String, Exit) {
    let words = match outcome {
        Outcome::Exited(255) if !goes_on => {
            format!(
                "{} exited 255, which means stop; to continue after it: --attempts 2 --retry-on 255, or -c '… || \
                 exit 1'",
                command()
            )
        }
        Outcome::Exited(code) => format!("{} exited {code}", command()),
        Outcome::WantedTerminal => format!("{}; {terminal}", ending(outcome)),
        _ => unfit(job, outcome),
    };
    let exit = match outcome {
        Outcome::Exited(255) if !goes_on => Exit::Stopped,
        Outcome::Killed(_) => Exit::Killed,
        Outcome::NotFound(_) => Exit::NotFound,
        Outcome::CannotRun(_) | Outcome::TooLong | Outcome::HasNul => Exit::CannotRun,
        Outcome::SentAway => Exit::SentAway,
        Outcome::InputLost(_) | Outcome::OutputLost(_) => Exit::Error,
        _ => Exit::Failed,
    };
    (words, exit)
}

/// How a job ended. If one unit does not fit into an argument, the command of the job does not run. So the text must
/// fit the other units of the command.
pub(super) fn unfit(job: &Job, outcome: &Outcome) -> String {
    let is_of_unit = matches!(outcome, Outcome::TooLong | Outcome::HasNul);
    let has_several = job.names.iter().nth(1).is_some();
    let of_several = if is_of_unit && has_several { "not run, because a unit of its command " } else { "" };
    format!("{of_several}{}", ending(outcome))
}

/// The text in the log about an attempt that did not end by an exit, a signal or a timeout.
pub(super) fn error(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Ok | Outcome::Exited(_) | Outcome::Killed(_) | Outcome::TimedOut => None,
        Outcome::TooLong | Outcome::HasNul => Some(format!("a unit {}", ending(outcome))),
        _ => Some(ending(outcome)),
    }
}

/// How an attempt ended, in words that follow the name of its unit.
fn ending(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ok => "was sent away".to_owned(),
        Outcome::Exited(code) => format!("exited {code}"),
        Outcome::Killed(signal) => format!("killed by {}", signal_name(*signal)),
        Outcome::TimedOut => "timed out".to_owned(),
        Outcome::WantedTerminal => "wanted the terminal".to_owned(),
        Outcome::NotFound(error) | Outcome::CannotRun(error) => format!("cannot be run: {error}{}", advice(error)),
        Outcome::TooLong => "is too long for an argument; use --stdin, which has no limit".to_owned(),
        Outcome::HasNul => "has a NUL byte, which no argument can hold; use --stdin".to_owned(),
        Outcome::Unreadable(why) => format!("not run: {why}"),
        Outcome::TooCostly => format!("not run: {TOO_MUCH}"),
        Outcome::SentAway => "not run: the wait for its server is longer than --max-pause".to_owned(),
        Outcome::KeyFailed(most) => format!("not tried, because other commands of its key have failed (fails={most})"),
        Outcome::InputLost(error) => format!("not run, because its input cannot be stored: {error}{}", advice(error)),
        Outcome::OutputLost(error) => format!("its output is lost: {error}"),
    }
}

/// Advice about an error of the system: a limit of the system was reached, or the system cannot run a command. Errors
/// of temporary files have their own advice.
pub(super) fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "; ulimit -n allows more open files",
        Some(Errno::FBIG) => "; ulimit -f allows larger files",
        Some(Errno::AGAIN) => "; ulimit -u allows more processes and threads",
        Some(Errno::NOEXEC) => "; a script needs a first line like #!/bin/sh, or run it with sh",
        _ => "",
    }
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
