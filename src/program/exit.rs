//! How the program can end. One table serves the code, the help and the man page.

use std::process::ExitCode;

/// An end of the program other than by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was passed on.
    Success,
    /// Reading, writing or something else of ours failed.
    Error,
    /// The command line makes no sense.
    Usage,
}

/// Code and meaning.
pub(crate) const TABLE: [(Exit, u8, &str); 3] = [
    (Exit::Success, 0, "everything was read and passed on"),
    (Exit::Error, 1, "reading, writing or something else failed; standard error says what"),
    (Exit::Usage, 2, "the command line is wrong; nothing was read"),
];

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        let row = TABLE.iter().find(|row| row.0 == exit);
        ExitCode::from(row.map_or(1, |row| row.1))
    }
}
