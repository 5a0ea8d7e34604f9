//! How the command of `--once` ended, and the exit of the program that follows from it.

use crate::program::exit::Exit;
use crate::program::signals;
use throttle::launch::{Ended, Outcome, Verdict};

/// How the last attempt of the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnceEnd {
    With(Exit),
    Killed(i32),
}

impl OnceEnd {
    /// `None` if the command is tried again.
    pub(super) fn new(ended: &Ended) -> Option<Self> {
        if ended.verdict.is_repeated() {
            return None;
        }
        Some(OnceEnd::With(match &ended.outcome {
            Outcome::Killed(signal) => return Some(OnceEnd::Killed(*signal)),
            Outcome::Ok if matches!(ended.verdict, Verdict::Ok) => Exit::Success,
            Outcome::Ok | Outcome::SentAway | Outcome::KeyFailed(_) => Exit::SentAway,
            Outcome::Exited(code) => u8::try_from(*code).map_or(Exit::OnceError, Exit::OnceExited),
            Outcome::TimedOut => Exit::OnceTimedOut,
            Outcome::NotFound(_) => Exit::NotFound,
            Outcome::CannotRun(_) | Outcome::TooLong | Outcome::HasNul | Outcome::WantedTerminal => Exit::CannotRun,
            Outcome::Unreadable(_) | Outcome::TooCostly | Outcome::InputLost(_) | Outcome::OutputLost(_) => {
                Exit::OnceError
            }
        }))
    }

    /// The same end for this program. If a signal killed the command, this program dies of it.
    pub(super) fn exit(self) -> Exit {
        match self {
            OnceEnd::With(exit) => exit,
            OnceEnd::Killed(signal) => {
                signals::die_of(signal);
                // A program cannot make itself die of some signals.
                Exit::OnceExited(u8::try_from(128 + signal).unwrap_or(u8::MAX))
            }
        }
    }
}
