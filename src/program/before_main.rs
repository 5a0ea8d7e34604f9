//! What the program was started with, and what is lost once `main` runs: Rust's runtime ignores SIGPIPE and opens
//! /dev/null in place of standard streams that are closed. Daemons are often started with that very /dev/null, so what it
//! looks like later does not tell one from the other.

use rustix::io::fcntl_getfd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IGNORED_SIGNALS: AtomicU64 = AtomicU64::new(0);
static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime is there, and so does no more than it must.
#[ctor::ctor]
fn look() {
    STDOUT_IS_CLOSED.store(fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
    IGNORED_SIGNALS.store(ignored_now(), Ordering::Relaxed);
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
