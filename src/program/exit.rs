//! The exits of the program. One table serves the code, the help and the man page.

/// The exit of the program, unless a signal ended it. If several exits apply to a run of commands, the last variant in
/// this order decides. A test lists the priorities: 1 (an error of throttle itself), 127, 126, 125, 124, 75, 123.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Everything was passed on.
    #[default]
    Success,
    /// The command line has a mistake.
    Usage,
    /// A command failed or took too long.
    Failed,
    /// A server requested a longer wait than allowed.
    SentAway,
    /// A command exited 255.
    Stopped,
    /// A command was killed by a signal.
    Killed,
    /// A command cannot be run.
    CannotRun,
    /// A command is not found.
    NotFound,
    /// throttle itself failed to read, to write or to do something else.
    Error,
    /// The wait would have been longer than allowed.
    TooLong,
    /// An error of throttle itself with `--once`, where lower codes belong to the command.
    OnceError,
    /// A bucket cannot be reached for --show or --list.
    Away,
    /// The command of `--once` took too long.
    OnceTimedOut,
    /// The command of `--once` exited with this code.
    OnceExited(u8),
}

/// Each exit, its code, and its meaning.
pub(crate) const TABLE: [(Exit, u8, &str); 13] = [
    (Exit::Success, 0, "everything was read and passed on, and every command exited 0"),
    (Exit::Error, 1, "reading, writing or something else failed; standard error has the reason"),
    (Exit::Usage, 2, "the command line is wrong; nothing was read"),
    (Exit::TooLong, 75, "--max-wait: the wait would have been longer; nothing was taken"),
    (
        Exit::SentAway,
        75,
        "the wait for a server is longer than --max-pause (standard error has its end); or units are left after \
     --stop-after or Ctrl-\\",
    ),
    (Exit::Failed, 123, "a command failed or took longer than --timeout"),
    (Exit::Stopped, 124, "a command exited 255, which means stop, as in xargs"),
    (Exit::OnceTimedOut, 124, "with --once, the command took longer than --timeout, as timeout(1) reports it"),
    (Exit::Killed, 125, "a command was killed by a signal"),
    (Exit::OnceError, 125, "with --once, instead of 1 or 2; other codes are the codes of the command"),
    (Exit::Away, 125, "--show or --list: the bucket or its server cannot be reached within 5 s"),
    (Exit::CannotRun, 126, "a command cannot be run"),
    (Exit::NotFound, 127, "a command was not found"),
];

/// Each code once, with all its meanings.
pub(crate) fn codes() -> impl Iterator<Item = (u8, String)> {
    let meanings = |chunk: &[(Exit, u8, &str)]| chunk.iter().map(|row| row.2).collect::<Vec<_>>().join("; or ");
    TABLE.chunk_by(|one, next| one.1 == next.1).map(move |chunk| (chunk[0].1, meanings(chunk)))
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        if let Exit::OnceExited(code) = self {
            return code;
        }
        TABLE.iter().find(|row| row.0 == self).map_or(1, |row| row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The man page and scripts rely on this order. Moving a variant changes it.
    #[test]
    fn the_exit_with_the_highest_priority_decides() {
        use Exit::{CannotRun, Error, Failed, Killed, NotFound, SentAway, Stopped, Success};
        let from_highest = [Error, NotFound, CannotRun, Killed, Stopped, SentAway, Failed, Success];
        assert_eq!(from_highest.map(Exit::code), [1, 127, 126, 125, 124, 75, 123, 0]);
        for (place, exit) in from_highest.into_iter().enumerate() {
            assert!(from_highest[place..].iter().all(|lower| exit.max(*lower) == exit), "{exit:?}");
        }
    }
}
