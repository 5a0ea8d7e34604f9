//! `throttle`: lines, records, bytes and commands at exactly the rate you ask for.

mod program;

use std::process::ExitCode;

fn main() -> ExitCode {
    program::main().code().into()
}
