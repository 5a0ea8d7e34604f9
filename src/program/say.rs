//! Messages on standard error.

use super::before_main::with_blocked;
use signal_hook::consts::SIGTTOU;
use std::fmt::{Display, Formatter, Result};
use std::io::{self, IsTerminal, Write};

/// Writes a line to standard error in one write. On a terminal, control characters are escaped. An error of the write
/// is ignored, because it can be reported nowhere.
pub(crate) fn say(message: impl Display) {
    let line = format!("throttle: {message}");
    let line = if std::io::stderr().is_terminal() { throttle::launch::printable(&line) } else { line };
    let _ = write_message(&mut std::io::stderr(), format!("{line}\n").as_bytes());
}

/// Writes a message of throttle, with SIGTTOU blocked. After `stty tostop`, a terminal stops a background process that
/// writes to it, unless the process blocks this signal (termios(3)). Otherwise a message would stop the run, for
/// example at its end.
///
/// # Errors
/// The error of the write.
pub(crate) fn write_message(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    with_blocked(&[SIGTTOU], || to.write_all(message))
}

/// The error if the system refuses a thread that the program needs from the start.
#[derive(Debug)]
pub(crate) struct NoThread;

impl Display for NoThread {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("cannot start the threads that are needed")
    }
}
