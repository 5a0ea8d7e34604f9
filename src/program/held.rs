//! Runs the command of `--once` if a bucket on a server counts running commands. This process stays the parent of the
//! command. It reports to the server that the command still runs, and later that it has ended. With a bucket in a file,
//! this process becomes the command instead, and sends no reports.

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
use throttle_limits::ledger::operation::Operation;
use throttle_limits::store::Store;

/// The time between two reports. A bucket on a server forgets a command if its process sends nothing for 12 s.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Whether this bucket needs reports that a command still runs.
pub(super) fn is_needed(bucket: &dyn Store) -> bool {
    bucket.is_remote() && bucket.policy().counts_jobs()
}

/// Starts a thread that calls `report` at regular intervals.
///
/// # Errors
/// The system refuses a thread.
pub(super) fn report_regularly(report: impl Fn() + Send + 'static) -> io::Result<()> {
    let run = move || {
        loop {
            thread::sleep(REPORT_INTERVAL);
            report();
        }
    };
    start_thread("here", run).map(drop)
}

/// Prints why the command at `path` cannot run.
pub(super) fn cannot_run(path: &OsStr, error: &io::Error) -> Exit {
    say(format_args!("'{}' cannot be run: {error}", path.display()));
    if error.kind() == ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun }
}

/// Runs the command at `path`, passes signals on to it, and ends as the command ends. While `is_over` is true, a signal
/// ends the program. Returns only if the command cannot start.
///
/// # Errors
/// The system refuses a thread or handlers of signals.
pub(super) fn run(
    (bucket, grant): (&Arc<AnyBucket>, u64),
    (path, command): (&OsStr, &mut Command),
    is_over: &AtomicBool,
) -> Result<Exit> {
    let wanted: Vec<i32> = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]
        .into_iter()
        .filter(|signal| !signals::is_ignored(*signal))
        .collect();
    signals::notice_ends().context("cannot handle signals")?;
    let mut came = Signals::new(&wanted).context("cannot handle signals")?;
    // The handlers are installed. Before this point, a signal ends the program.
    is_over.store(false, Ordering::SeqCst);
    signals::has_begun();
    let mut child = match with_usual_slack(|| command.spawn()) {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(path, &error)),
    };
    let reported = Arc::clone(bucket);
    // An error is ignored: if the server cannot be reached now, the next report suffices.
    report_regularly(move || drop(reported.sync())).context("cannot start a thread")?;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
    let pass_on = move || {
        for signal in came.forever() {
            // The terminal sends these signals to the command itself.
            let is_from_keys = [SIGINT, SIGQUIT].contains(&signal) && signals::is_in_foreground();
            if let (Ok(signal), false) = (Signal::try_from(signal), is_from_keys) {
                let _ = kill(pid, signal);
            }
        }
    };
    start_thread("signals", pass_on).context("cannot start a thread")?;
    let status = child.wait().context("cannot wait for the command")?;
    bucket.leave();
    // Without this report, the server notices the end within 15 s.
    let _ = bucket.send(vec![Operation::Ended(vec![grant])]);
    if let Some(signal) = status.signal() {
        signals::die_of(signal);
    }
    std::process::exit(status.code().unwrap_or(1))
}
