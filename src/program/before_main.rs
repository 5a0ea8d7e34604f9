//! State from the start of the process that is lost once `main` runs. Rust's runtime ignores SIGPIPE, and opens
//! /dev/null in place of closed standard streams. Daemons are often started with /dev/null, so a closed stream cannot
//! be recognized later.

use nix::sys::signal::{self, SigSet, SigmaskHow};
use rustix::io::fcntl_getfd;
use signal_hook::consts::{SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IGNORED_SIGNALS: AtomicU64 = AtomicU64::new(0);
static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Records this state, and installs the first signal handlers. It runs before Rust's runtime starts, so it does as
/// little as possible. SIGUSR1 requests the status, and may come at any time. This is the first code that runs, and it
/// blocks the signal until the handler is installed.
#[ctor::ctor]
fn record_start() {
    // Best effort: without a handler, SIGUSR1 ends the program, as it does by default.
    let _ = with_blocked(&[SIGUSR1], || {
        STDOUT_IS_CLOSED.store(fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
        IGNORED_SIGNALS.store(ignored_now(), Ordering::Relaxed);
        handle_first_signals()
    });
}

/// Installs handlers for SIGUSR1 and SIGXFSZ. After that, SIGUSR1 does not end the program: it is answered once there
/// is something to report. A write beyond the largest file size (setrlimit(2)) fails with an error instead of a signal,
/// so that a message can name the file.
fn handle_first_signals() -> io::Result<()> {
    let mut handled = [SIGUSR1, SIGXFSZ].into_iter().filter(|signal| !is_ignored(*signal));
    handled.try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}

/// Runs `act`, which installs handlers, while these signals are blocked for this thread. They are delivered afterwards.
/// Without this, a signal would be lost if it arrives after the system has the handler, but before signal-hook has
/// stored its action.
///
/// # Errors
/// `act` fails, or the system refuses to block the signals.
pub(super) fn with_blocked<T>(wanted: &[i32], act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signals: SigSet = wanted.iter().filter_map(|signal| signal::Signal::try_from(*signal).ok()).collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let result = act();
    before.thread_set_mask()?;
    result
}

/// Whether the signal was ignored when the process started.
pub(crate) fn is_ignored(signal: i32) -> bool {
    IGNORED_SIGNALS.load(Ordering::Relaxed) & (1 << (signal - 1)) != 0
}

/// Whether standard output was closed when the process started.
pub(crate) fn stdout_is_closed() -> bool {
    STDOUT_IS_CLOSED.load(Ordering::Relaxed)
}

/// The ignored signals as bits: signal 1 is bit 0; see `SigIgn` in proc(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn ignored_now() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Other systems have no safe function that returns the ignored signals.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn ignored_now() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGUSR1;
    use signal_hook::low_level::raise;

    /// `main` does not run in this test. Without a handler the signal would end all tests.
    #[test]
    fn a_signal_that_asks_for_the_status_before_main_ends_nothing() {
        raise(SIGUSR1).unwrap();
    }
}
