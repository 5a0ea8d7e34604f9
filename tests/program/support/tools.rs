//! Programs that may not be installed.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

/// Where a program is, in `PATH` or where Debian keeps servers.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Says that a test, or a part of it, is skipped, for each reason once: past the test harness, which shows no output of what
/// passes.
pub(crate) fn skipped(why: impl Display) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("SKIPPED: {why}\n");
    if SAID.lock().unwrap().insert(line.clone()) {
        _ = std::io::stderr().write_all(line.as_bytes());
    }
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
