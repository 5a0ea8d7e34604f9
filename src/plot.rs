//! `--plot`: draws the lines of `--log` as one HTML page with charts.
//!
//! This module is pure: it takes lines and returns a page. `history` stores each attempt in 32 bytes, and `axis` lays
//! out the time. `pictures` decides what a chart shows, and `chart` draws it with plotters. `page` fills in the
//! template, `page.html`.

mod axis;
mod chart;
mod entry;
mod history;
mod keys;
mod page;
mod pictures;
mod spans;
mod template;
mod words;

use history::{History, SECOND};
use std::io::{self, Read};

/// The contents of logs.
#[derive(Debug, Default)]
pub struct Plot(History);

impl Plot {
    /// Reads the lines of one log, which the page calls `name`.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn read(&mut self, name: &str, input: impl Read) -> io::Result<()> {
        self.0.read(name, input)
    }

    /// Whether the input had lines, but no line of a log.
    pub fn is_of_others(&self) -> bool {
        self.0.foreign.is_some() && self.0.runs.is_empty()
    }

    /// Returns the page. It shows local times, with the first valid offset from UTC in the logs. If the logs have none,
    /// `local` returns the offset: the seconds by which local time is ahead of UTC. Its argument is a time in seconds
    /// since 1970.
    pub fn page(mut self, local: impl Fn(i64) -> i64) -> String {
        let first = self.0.runs.iter().flat_map(|run| run.spans.iter().map(|span| span.0)).min().unwrap_or_default();
        // An offset of a day or more is not valid.
        let logged =
            self.0.runs.iter().find_map(|run| run.line.utc_offset).filter(|offset| (-86_400..86_400).contains(offset));
        let offset = logged.unwrap_or_else(|| local(first / SECOND));
        page::page(&mut self.0, offset)
    }
}

#[cfg(test)]
mod tests;
