//! Messages on standard error.

use std::fmt::{Display, Formatter, Result};
use std::io::{IsTerminal, Write};

/// Writes a line on standard error, in one write. On a terminal, control characters are shown escaped. A failure
/// to write is ignored: there is nowhere to report it.
pub(crate) fn say(message: impl Display) {
    let line = format!("throttle: {message}");
    let line = if std::io::stderr().is_terminal() { throttle::launch::printable(&line) } else { line };
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The error if the system refuses a thread that is needed from the start.
#[derive(Debug)]
pub(crate) struct NoThread;

impl Display for NoThread {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("cannot start the threads that are needed")
    }
}
