//! Servers that the tests start, and what they do if something is missing.

pub(crate) mod nginx;
pub(crate) mod redis;
pub(crate) mod server;
pub(crate) mod terminal;

use nginx::find;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Says that a test, or a part of it, is skipped: past the test harness, which shows no output of what passes.
pub(crate) fn skipped(why: impl Display) {
    _ = std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
}

/// The path of the program; `None`, with a message, if it is not installed. In CI it must be.
pub(crate) fn found(name: &str) -> Option<PathBuf> {
    let path = find(name);
    if path.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed, and CI must not skip this");
        skipped(format!("no {name} here"));
    }
    path
}
