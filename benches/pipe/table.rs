//! The table, in Markdown.

use crate::tool;
use anyhow::Result;
use std::fmt;
use std::fs;
use std::process::Command;

/// One comparison: cells of text.
pub(crate) struct Row {
    pub(crate) work: String,
    pub(crate) ours: String,
    pub(crate) others: String,
    pub(crate) result: String,
    /// The target, and whether it was met; rows without one are for comparison.
    pub(crate) bar: Option<(String, bool)>,
}

/// Rows in order of measurement.
#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    /// Adds a row, and prints it while the rest is still being measured.
    pub(crate) fn add(&mut self, row: Row) {
        eprintln!("bench: {row}");
        self.0.push(row);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bar, met) = match &self.bar {
            Some((bar, true)) => (bar.as_str(), "met"),
            Some((bar, false)) => (bar.as_str(), "**missed**"),
            None => ("", ""),
        };
        write!(f, "| {} | {} | {} | {} | {bar} | {met} |", self.work, self.ours, self.others, self.result)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| work | throttle | compared with | result | at most | |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        self.0.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

/// What the table was measured on, and the load of the machine.
pub(crate) fn machine() -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel: String = kernel.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let date = String::from_utf8(Command::new("date").arg("+%F").output()?.stdout)?;
    let tools: Vec<String> =
        ["pv", "cat", "mbuffer", "cstream", "parallel"].into_iter().filter_map(tool::version).collect();
    let (date, tools) = (date.trim(), tools.join(", "));
    Ok(format!(
        "{date}, {cores} cores, Linux {kernel}, load at the end {load} (the bench itself makes about 1.5); {tools}.\n"
    ))
}
