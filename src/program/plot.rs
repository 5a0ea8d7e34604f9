//! `--plot LOG…`: a page about runs, from their logs.

use super::answer::print;
use super::exit::Exit;
use super::input::are_one_file;
use super::time_of_day::utc_offset;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use throttle::launch::quoted;
use throttle::plot::Plot;

/// Reads the logs, and writes the page to standard output.
///
/// # Errors
/// A log cannot be read, or is not a log. Or standard output is a terminal or one of the logs.
pub(super) fn run(logs: &[PathBuf]) -> Result<Exit> {
    if io::stdout().is_terminal() {
        let words = quoted(logs.iter().map(|log| log.as_os_str().into()), true);
        let words = String::from_utf8_lossy(&words);
        anyhow::bail!("--plot writes a page for a browser; write throttle --plot {words} > run.html");
    }
    let mut plot = Plot::default();
    for log in logs {
        read(log, &mut plot)?;
    }
    let names = || logs.iter().map(|log| log.display().to_string()).collect::<Vec<_>>().join(" and ");
    ensure!(
        !plot.is_of_others(),
        "--plot: {} has no line of a log; name a file that --log wrote: --plot tries.jsonl",
        names()
    );
    let page = plot.page(utc_offset);
    print(|| io::stdout().write_all(page.as_bytes()))
}

fn read(log: &Path, plot: &mut Plot) -> Result<()> {
    let name = if log == OsStr::new("-") { "standard input".to_owned() } else { log.display().to_string() };
    let cannot = |what: &str| format!("--plot: cannot {what} {name}; name a file that --log wrote: --plot tries.jsonl");
    if log == OsStr::new("-") {
        return plot.read(&name, io::stdin().lock()).with_context(|| cannot("read"));
    }
    let file = File::open(log).with_context(|| cannot("open"))?;
    let is_output = rustix::fs::fstat(&file).ok().zip(rustix::fs::fstat(io::stdout()).ok());
    let is_output = is_output.is_some_and(|(log, output)| are_one_file(&log, &output));
    ensure!(!is_output, "--plot: {name} is also the output; write the page to another file: > run.html");
    plot.read(&name, file).with_context(|| cannot("read"))
}
