//! Failures in words: what became of a unit, which exit code follows, and what the user can do.

use super::exit::Exit;
use std::io;
use throttle::flow::TOO_MUCH;
use throttle::launch::{Job, Outcome};

/// How the `command` of a failed job ended, and the exit that follows. `terminal` says what allows it to use the terminal.
pub(super) fn failure(
    job: &Job,
    outcome: &Outcome,
    command: impl FnOnce() -> String,
    terminal: &str,
) -> (String, Exit) {
    match outcome {
        Outcome::Ok => ("was sent away".to_owned(), Exit::Failed),
        Outcome::Exited(255) => {
            let command = command();
            (format!("{command} exited 255, which means stop; to go on: -c '… || exit 1'"), Exit::Stopped)
        }
        Outcome::Exited(code) => (format!("{} exited {code}", command()), Exit::Failed),
        Outcome::Killed(signal) => (format!("killed by {}", signal_name(*signal)), Exit::Killed),
        Outcome::TimedOut => ("timed out".to_owned(), Exit::Failed),
        Outcome::WantedTerminal => (format!("wanted the terminal; {terminal}"), Exit::Failed),
        Outcome::NotFound(error) => (format!("cannot be run: {error}"), Exit::NotFound),
        Outcome::CannotRun(error) => (format!("cannot be run: {error}{}", advice(error)), Exit::CannotRun),
        Outcome::TooLong | Outcome::HasNul => (unfit(job, outcome), Exit::CannotRun),
        Outcome::Unreadable(_) | Outcome::TooCostly => (unfit(job, outcome), Exit::Failed),
        Outcome::SentAway => ("not run, as its server asked to wait for too long".to_owned(), Exit::SentAway),
        Outcome::InputLost(error) => {
            (format!("not run, as its input cannot be held: {error}{}", advice(error)), Exit::Error)
        }
        Outcome::OutputLost(error) => (format!("its output is lost: {error}"), Exit::Error),
    }
}

/// Why a command cannot have its units as arguments, or gets no grant. One unit that does not fit keeps all from running.
pub(super) fn unfit(job: &Job, outcome: &Outcome) -> String {
    let words = match outcome {
        Outcome::Unreadable(why) => return format!("not run: {why}"),
        Outcome::TooCostly => return format!("not run: {TOO_MUCH}"),
        Outcome::HasNul => "has a NUL byte, which no argument can hold; use --stdin",
        _ => "is too long for an argument; --stdin has no bound",
    };
    let has_several = job.names.iter().nth(1).is_some();
    if has_several { format!("not run, as a unit of its command {words}") } else { words.to_owned() }
}

/// What to do if the system has no room or does not know how to run it; the error of a temporary file says it itself.
fn advice(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "; ulimit -n allows more open files",
        Some(Errno::AGAIN) => "; ulimit -u allows more processes",
        Some(Errno::NOEXEC) => "; a script needs a first line like #!/bin/sh, or run it with sh",
        _ => "",
    }
}

/// The first that holds of 127, 126, 125, 124, 123; an error of our own comes before them.
pub(super) fn worse(one: Exit, other: Exit) -> Exit {
    use Exit::{CannotRun, Error, Failed, Killed, NotFound, SentAway, Stopped, Success, Usage};
    let order = [Error, NotFound, CannotRun, Killed, Stopped, SentAway, Failed, Usage, Success];
    order.into_iter().find(|exit| *exit == one || *exit == other).unwrap_or(one)
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
