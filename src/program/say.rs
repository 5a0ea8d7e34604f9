//! Messages on standard error.

use super::before_main::held_back;
use signal_hook::consts::SIGTTOU;
use std::fmt::{Display, Formatter, Result};
use std::io::{self, IsTerminal, Write};

/// Writes a line on standard error, in one write. On a terminal, control characters are shown escaped. A failure
/// to write is ignored: there is nowhere to report it.
pub(crate) fn say(message: impl Display) {
    let line = format!("throttle: {message}");
    let line = if std::io::stderr().is_terminal() { throttle::launch::printable(&line) } else { line };
    let _ = write_message(&mut std::io::stderr(), format!("{line}\n").as_bytes());
}

/// Writes a message of ours. After stty tostop a terminal stops a background process that writes to it, unless the process
/// blocks SIGTTOU (termios(3)): a run would stop for a message, for example at its end.
///
/// # Errors
/// The error of the write.
pub(crate) fn write_message(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    held_back(&[SIGTTOU], || to.write_all(message))
}

/// The error if the system refuses a thread that is needed from the start.
#[derive(Debug)]
pub(crate) struct NoThread;

impl Display for NoThread {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("cannot start the threads that are needed")
    }
}
