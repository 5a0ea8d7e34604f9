//! A command that counts as running in a bucket on a server. This process stays as its parent: it tells the server that the
//! command still runs, and when it has ended. (On one machine the process becomes the command, and a file needs no telling.)

use super::buckets::AnyBucket;
use super::exit::Exit;
use super::say::say;
use super::signals;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use throttle::flow::start_thread;
use throttle_limits::clock::with_usual_slack;
use throttle_limits::limits::Grant;
use throttle_limits::store::Store;

/// A bucket on a server forgets a command whose process was not heard of for 12 s.
const BETWEEN: Duration = Duration::from_secs(2);

/// Whether this bucket must be told that a command still runs.
pub(super) fn is_needed(bucket: &dyn Store) -> bool {
    bucket.is_remote() && bucket.policy().counts_jobs()
}

/// Tells the bucket again and again that this process is still there, as `tell_once` does.
///
/// # Errors
/// The system refuses a thread.
pub(super) fn tell_of_it(tell_once: impl Fn() + Send + 'static) -> io::Result<()> {
    let tell = move || {
        loop {
            thread::sleep(BETWEEN);
            tell_once();
        }
    };
    start_thread("here", tell).map(drop)
}

/// Says why the command that is at `path` cannot be run.
pub(super) fn cannot_run(path: &OsStr, error: &io::Error) -> Exit {
    say(format_args!("'{}' cannot be run: {error}", path.display()));
    if error.kind() == ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun }
}

/// Runs the command that is at `path`, passes signals on to it, and ends as it ends. `is_over`: signals end the program. Returns only if it cannot be started.
///
/// # Errors
/// The system refuses a thread or handlers of signals.
pub(super) fn run(
    (bucket, grant): (&Arc<AnyBucket>, &Grant),
    (path, command): (&OsStr, &mut Command),
    is_over: &AtomicBool,
) -> Result<Exit> {
    let wanted: Vec<i32> = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]
        .into_iter()
        .filter(|signal| !signals::is_ignored(*signal))
        .collect();
    signals::notice_ends().context("cannot handle signals")?;
    let mut came = Signals::new(&wanted).context("cannot handle signals")?;
    // Only now: each signal before ends the program.
    is_over.store(false, Ordering::SeqCst);
    let mut child = match with_usual_slack(|| command.spawn()) {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(path, &error)),
    };
    let told = Arc::clone(bucket);
    // If the server is away, the next time will do.
    tell_of_it(move || drop(told.sync())).context("cannot start a thread")?;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
    let pass_on = move || {
        for signal in came.forever() {
            // The terminal sends these to the command as well.
            let is_from_keys = [SIGINT, SIGQUIT].contains(&signal) && signals::is_in_foreground();
            if let (Ok(signal), false) = (Signal::try_from(signal), is_from_keys) {
                let _ = kill(pid, signal);
            }
        }
    };
    start_thread("signals", pass_on).context("cannot start a thread")?;
    let status = child.wait().context("cannot wait for the command")?;
    bucket.leave();
    // If it is not told, it notices within 15 s.
    let _ = bucket.ended(grant);
    if let Some(signal) = status.signal() {
        signals::die_of(signal);
    }
    std::process::exit(status.code().unwrap_or(1))
}
