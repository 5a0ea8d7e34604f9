//! The programs that are compared.

use std::fmt;
use std::process::{Command, Stdio};

/// A command line without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool(pub(crate) &'static str);

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        self.0.split(' ').next().unwrap_or(self.0)
    }

    /// The command, with standard error discarded.
    pub(crate) fn command(self) -> Command {
        let mut command = Command::new(if self.name() == "throttle" { THROTTLE } else { self.name() });
        command.args(self.0.split(' ').skip(1)).stderr(Stdio::null());
        command
    }

    /// Whether it is installed; if not, prints a note.
    pub(crate) fn is_there(self) -> bool {
        let there = self.name() == "throttle" || version(self.name()).is_some();
        if !there {
            eprintln!("bench: {} is not installed: no row for {self}", self.name());
        }
        there
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

const THROTTLE: &str = env!("CARGO_BIN_EXE_throttle");

/// The version as the program states it, in a few words.
pub(crate) fn version(name: &str) -> Option<String> {
    let option = if name == "cstream" { "-V" } else { "--version" };
    let said = Command::new(name).arg(option).stdin(Stdio::null()).output().ok()?;
    let said = if said.stdout.is_empty() { said.stderr } else { said.stdout };
    let line = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
    let number =
        line.split(' ').rev().find(|word| word.contains(|c: char| c.is_ascii_digit()) && word.contains(['.', 'R']));
    Some(format!("{name} {}", number.or(line.split(' ').next_back()).unwrap_or_default()))
}
