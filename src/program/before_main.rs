//! What the program was started with, and what is lost once `main` runs: Rust's runtime ignores SIGPIPE and opens
//! /dev/null in place of standard streams that are closed. Daemons are often started with /dev/null as well, so the streams
//! cannot be told apart later.

use nix::sys::signal::{self, SigSet, SigmaskHow};
use rustix::io::fcntl_getfd;
use signal_hook::consts::{SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IGNORED_SIGNALS: AtomicU64 = AtomicU64::new(0);
static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime starts, so it does as little as possible. SIGUSR1, a question for the status, may come at any
/// time. This is the first code that runs, and it blocks the signal until the handler is set.
#[ctor::ctor]
fn look() {
    // Best effort: without a handler SIGUSR1 ends the program, as it would by default.
    let _ = held_back(&[SIGUSR1], || {
        STDOUT_IS_CLOSED.store(fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
        IGNORED_SIGNALS.store(ignored_now(), Ordering::Relaxed);
        survive_questions()
    });
}

/// From now on SIGUSR1 does not end the program; it is answered once there is something to report. With SIGXFSZ handled, a
/// write beyond the largest file size fails with an error (setrlimit(2)), which names the file.
fn survive_questions() -> io::Result<()> {
    let mut handled = [SIGUSR1, SIGXFSZ].into_iter().filter(|signal| !is_ignored(*signal));
    handled.try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}

/// Runs `act` while these signals are blocked for this thread; they arrive afterwards. For setting up their handlers: a signal
/// would get lost after the system knows a handler and before signal-hook knows it.
///
/// # Errors
/// What `act` fails with, or the system's refusal to hold signals back.
pub(super) fn held_back<T>(wanted: &[i32], act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signals: SigSet = wanted.iter().filter_map(|signal| signal::Signal::try_from(*signal).ok()).collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let result = act();
    before.thread_set_mask()?;
    result
}

/// Whether a signal was ignored when we were started.
pub(crate) fn is_ignored(signal: i32) -> bool {
    IGNORED_SIGNALS.load(Ordering::Relaxed) & (1 << (signal - 1)) != 0
}

/// Whether standard output was closed when we were started.
pub(crate) fn stdout_is_closed() -> bool {
    STDOUT_IS_CLOSED.load(Ordering::Relaxed)
}

/// The signals that are ignored, one bit each from signal 1 at bit 0; see `SigIgn` in proc(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn ignored_now() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// There is no way to ask without unsafe code.
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
