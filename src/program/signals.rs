//! Signals, and whatever else happens beside the pump: one thread waits for both, and the pump is not asked.

use super::exit::Exit;
use super::report::Report;
use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGUSR1};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::emulate_default_handler;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

type Delivery = SignalDelivery<UnixStream, SignalOnly>;

/// From now on signals are answered, and progress is shown.
///
/// # Errors
/// The system refuses a handler or a thread.
pub(crate) fn attend(report: Arc<Report>) -> Result<()> {
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGUSR1].into_iter().filter(|&signal| ignored & (1 << (signal - 1)) == 0);
    let (read, write) = UnixStream::pair()?;
    let delivery = Delivery::with_pipe(read, write, SignalOnly, wanted)?;
    thread::Builder::new().name("attendant".to_owned()).spawn(move || answer(delivery, &report))?;
    Ok(())
}

fn answer(mut delivery: Delivery, report: &Report) {
    loop {
        wait(&delivery, report.tick_every());
        for signal in delivery.pending() {
            match signal {
                SIGUSR1 => report.status(),
                _ => end_by(signal, report),
            }
        }
        report.tick();
    }
}

/// Returns when a signal has come, or after `at_most`.
fn wait(delivery: &Delivery, at_most: Option<Duration>) {
    let timeout = at_most.and_then(|limit| Timespec::try_from(limit).ok());
    // Interrupted or not, the signals are looked at next.
    let _ = poll(&mut [PollFd::new(delivery.get_read(), PollFlags::IN)], timeout.as_ref());
}

fn end_by(signal: i32, report: &Report) {
    if let Err(error) = report.close() {
        super::say(format_args!("{error:#}"));
    }
    die_of(signal);
}

/// Dies of SIGPIPE, as a program does whose reader is gone and that does not ignore it.
pub(crate) fn die_of_broken_pipe() -> Exit {
    die_of(SIGPIPE);
    Exit::Error
}

fn die_of(signal: i32) {
    // Fails only for signals that cannot be handled at all, which none of ours is.
    let _ = emulate_default_handler(signal);
}

/// The signals that were ignored when we were started, one bit each from signal 1 at bit 0; see `SigIgn` in proc(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// There is no way to ask without unsafe code.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn ignored_signals() -> u64 {
    0
}
