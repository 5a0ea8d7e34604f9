//! What signals do to this process.

pub(super) use super::before_main::{held_back, is_ignored};
use super::exit::Exit;
use super::say::say;
use rustix::termios::{SpecialCodeIndex, tcgetattr};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGPIPE, SIGQUIT, SIGTSTP};
use signal_hook::flag;
use signal_hook::low_level::{self, emulate_default_handler};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Whether this process has a controlling terminal.
pub(super) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the terminal sends us its signals.
pub(super) fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok();
    let group = terminal.and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// Whether Ctrl-C and Ctrl-\ on the terminal are the signals INT and QUIT, and these are not ignored.
pub(super) fn come_from_the_usual_keys() -> bool {
    let keys = tcgetattr(std::io::stderr()).map(|modes| modes.special_codes);
    keys.is_ok_and(|keys| (keys[SpecialCodeIndex::VINTR], keys[SpecialCodeIndex::VQUIT]) == (0x03, 0x1c))
        && ![SIGINT, SIGQUIT].into_iter().any(is_ignored)
}

/// Whether INT and QUIT were ignored at the start, as a shell without job control has them ignored for what it runs in the
/// background (POSIX, Shell Command Language, 2.12 Signals and Error Handling).
pub(super) fn are_those_of_a_background_job() -> bool {
    [SIGINT, SIGQUIT].into_iter().all(is_ignored)
}

/// Dies of SIGPIPE, as other programs do when nothing reads their output. If SIGPIPE was ignored at the start, reports an
/// error.
pub(crate) fn die_of_broken_pipe() -> Exit {
    if is_ignored(SIGPIPE) {
        say("cannot write to standard output: nobody reads it any more");
    } else {
        die_of(SIGPIPE);
    }
    Exit::Error
}

/// Ends the program as the signal does by default. The kernel does not let process 1 die of a signal whose action is the
/// default (`pid_namespaces(7)`), as in a container. Then the exit code is the one that a shell reports for the signal.
pub(super) fn die_of(signal: i32) {
    if is_process_1() {
        low_level::exit(exit_code(signal));
    }
    // Fails only for signals that no program can handle, such as SIGKILL.
    let _ = emulate_default_handler(signal);
}

/// Stops this process until it is continued, as SIGTSTP does by default. Process 1 is not stopped.
pub(super) fn stop() {
    let _ = emulate_default_handler(SIGTSTP);
}

/// From now on the signal ends the program while the flag is set, as [`die_of`] does.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn die_of_if(signal: i32, flag: &Arc<AtomicBool>) -> io::Result<()> {
    let flag = Arc::clone(flag);
    if is_process_1() {
        flag::register_conditional_shutdown(signal, exit_code(signal), flag).map(drop)
    } else {
        flag::register_conditional_default(signal, flag).map(drop)
    }
}

fn is_process_1() -> bool {
    std::process::id() == 1
}

/// What a shell reports for a process that died of this signal.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}

/// Waits until another thread ends the program.
pub(super) fn wait_for_end() -> ! {
    loop {
        thread::park();
    }
}

/// If SIGCHLD is ignored, the system waits for our children itself, and we never learn how they ended (wait(2)). A handler
/// changes that. Otherwise there is no handler: each end of a command would interrupt a system call.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn notice_ends() -> io::Result<()> {
    if is_ignored(SIGCHLD) { flag::register(SIGCHLD, Arc::default()).map(drop) } else { Ok(()) }
}
