//! The effects of signals on this process.

pub(super) use super::before_main::{is_ignored, with_blocked};
use super::exit::Exit;
use super::say::say;
use rustix::termios::{SpecialCodeIndex, tcgetattr};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::flag;
use signal_hook::low_level::{self, emulate_default_handler};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

/// Whether the run has not begun. Until then, nothing has to be given back.
static IS_STARTING: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Lets signals end the program until the run has [begun](has_begun). Before that, it may read a long done list, or wait
/// for a server. QUIT exits with the code `quits_with`, if there is one. As process 1, a program does not die of a
/// default action, so there each of these signals gets a handler.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn end_until_begun(quits_with: Option<u8>) -> io::Result<()> {
    let code = |signal| match quits_with {
        Some(code) if signal == SIGQUIT => Some(code.into()),
        _ => is_process_1().then(|| exit_code(signal)),
    };
    let wanted = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];
    with_blocked(&wanted, || {
        let handled = wanted.into_iter().filter(|signal| !is_ignored(*signal));
        handled.filter_map(|signal| Some((signal, code(signal)?))).try_for_each(|(signal, code)| {
            flag::register_conditional_shutdown(signal, code, Arc::clone(&IS_STARTING)).map(drop)
        })
    })
}

/// From now on, the handlers of the run answer signals.
pub(super) fn has_begun() {
    IS_STARTING.store(false, Ordering::SeqCst);
}

/// Whether this process has a controlling terminal.
pub(super) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the terminal sends its signals to this process.
pub(super) fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok();
    let group = terminal.and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// Whether Ctrl-C and Ctrl-\ on the terminal send the signals INT and QUIT, and neither signal is ignored.
pub(super) fn come_from_the_usual_keys() -> bool {
    let keys = tcgetattr(std::io::stderr()).map(|modes| modes.special_codes);
    keys.is_ok_and(|keys| (keys[SpecialCodeIndex::VINTR], keys[SpecialCodeIndex::VQUIT]) == (0x03, 0x1c))
        && ![SIGINT, SIGQUIT].into_iter().any(is_ignored)
}

/// Whether INT and QUIT were ignored at the start. A shell without job control starts background commands with both
/// signals ignored (POSIX, Shell Command Language, 2.12 Signals and Error Handling).
pub(super) fn are_those_of_a_background_job() -> bool {
    [SIGINT, SIGQUIT].into_iter().all(is_ignored)
}

/// Dies of SIGPIPE, as other programs do when nothing reads their output. If SIGPIPE was ignored at the start, prints
/// an error instead.
pub(crate) fn die_of_broken_pipe() -> Exit {
    if is_ignored(SIGPIPE) {
        say("cannot write to standard output: nobody reads it any more");
    } else {
        die_of(SIGPIPE);
    }
    Exit::Error
}

/// Ends the program with the default action of the signal. As process 1, for example in a container, a program does not
/// die of a default action (`pid_namespaces(7)`). Then the exit code is the code that a shell reports for the signal.
pub(super) fn die_of(signal: i32) {
    if is_process_1() {
        low_level::exit(exit_code(signal));
    }
    // This fails only for signals that no program can handle, such as SIGKILL.
    let _ = emulate_default_handler(signal);
}

/// Stops this process until it is continued, as SIGTSTP does by default. Process 1 does not stop.
pub(super) fn stop() {
    let _ = emulate_default_handler(SIGTSTP);
}

/// From now on, the signal ends the program while the flag is set, as [`die_of`] does.
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

/// The exit code that a shell reports for a process that died of this signal.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}

/// Waits until another thread ends the program.
pub(super) fn wait_for_end() -> ! {
    loop {
        thread::park();
    }
}

/// Installs a handler for SIGCHLD if that is ignored. Otherwise the system would collect our children itself, and the
/// way they ended would be lost (wait(2)). If SIGCHLD is not ignored, there is no handler, because each end of a
/// command would interrupt a system call.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn notice_ends() -> io::Result<()> {
    if is_ignored(SIGCHLD) { flag::register(SIGCHLD, Arc::default()).map(drop) } else { Ok(()) }
}
