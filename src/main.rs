//! `throttle`: lines, records, bytes and commands at exactly the rate you ask for.

mod program;
#[cfg(test)]
#[path = "../library/tests/library/rounds.rs"]
mod rounds;

use std::process::ExitCode;

fn main() -> ExitCode {
    program::main().code().into()
}
