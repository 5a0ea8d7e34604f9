//! What signals do to this process.

pub(super) use super::before_main::is_ignored;
use super::exit::Exit;
use super::say::say;
use nix::sys::signal::{self, SigSet, SigmaskHow};
use signal_hook::consts::{SIGCHLD, SIGPIPE, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::Arc;

/// Whether this process has a terminal that controls it.
pub(super) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the terminal sends us its signals.
pub(super) fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok();
    let group = terminal.and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// Dies of SIGPIPE, as a program does whose reader is gone. If that was ignored at the start, it is an error.
pub(crate) fn die_of_broken_pipe() -> Exit {
    if is_ignored(SIGPIPE) {
        say("cannot write to standard output: nobody reads it any more");
    } else {
        die_of(SIGPIPE);
    }
    Exit::Error
}

/// Does what the signal does by default.
pub(super) fn die_of(signal: i32) {
    // Fails only for signals that cannot be handled at all, which none of ours is.
    let _ = emulate_default_handler(signal);
}

/// Runs `act` while these signals do not reach this thread; they come afterwards. For what sets up their handlers: between
/// the system's and signal-hook's own list of what to do then, a signal would get lost.
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

/// If SIGCHLD is ignored, the system waits for our children itself, and we never learn how they ended (wait(2)). A handler
/// changes that. Without need there is none: each end of a command would interrupt a system call.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn notice_ends() -> io::Result<()> {
    if is_ignored(SIGCHLD) { flag::register(SIGCHLD, Arc::default()).map(drop) } else { Ok(()) }
}

/// From now on SIGUSR1 does not end the program; it is answered once there is something to report. SIGXFSZ becomes an error of the
/// write that went too far (setrlimit(2)), which says what it was about.
pub(super) fn survive_questions() {
    for signal in [SIGUSR1, SIGXFSZ] {
        if !is_ignored(signal) {
            // Without a handler it is as it was before.
            let _ = flag::register(signal, Arc::default());
        }
    }
}
