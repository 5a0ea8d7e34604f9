//! How a command ended.

use std::io;

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// It exited 0.
    Ok,
    /// It exited with another code.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It was ended because it took too long.
    TimedOut,
    /// It was stopped because it wanted the terminal, and then ended.
    WantedTerminal,
    /// There is no such command.
    NotFound(io::Error),
    /// It could not be started.
    CannotRun(io::Error),
    /// A unit is too long to be an argument.
    TooLong,
    /// A unit has a NUL byte, which no argument can hold.
    HasNul,
    /// Its standard input could not be held until it started.
    InputLost(io::Error),
    /// It ran, but its output could not be held or passed on.
    OutputLost(io::Error),
}
