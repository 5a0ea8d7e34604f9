//! `--plot`: the lines of `--log` as one HTML page with charts.
//!
//! Pure: lines go in, a page comes out. `history` keeps 32 bytes of each attempt; `axis` lays out the time; `pictures` says what is
//! drawn where, and `chart` has plotters draw it; `page` fills in the template, `page.html`.

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

/// What was read of logs.
#[derive(Debug, Default)]
pub struct Plot(History);

impl Plot {
    /// Reads the lines of one log, which the page calls `name`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&mut self, name: &str, input: impl Read) -> io::Result<()> {
        self.0.read(name, input)
    }

    /// Whether there were lines, and none of a log.
    pub fn is_of_others(&self) -> bool {
        self.0.foreign.is_some() && self.0.runs.is_empty()
    }

    /// The page. Times are the local ones of the first run; for a log that does not say which, `local` is asked how many seconds
    /// local time was ahead of UTC at a time, in seconds since 1970.
    pub fn page(mut self, local: impl Fn(i64) -> i64) -> String {
        let first = self.0.runs.iter().flat_map(|run| run.spans.iter().map(|span| span.0)).min().unwrap_or_default();
        // Zones are less than a day apart.
        let said =
            self.0.runs.iter().find_map(|run| run.line.utc_offset).filter(|offset| (-86_400..86_400).contains(offset));
        let offset = said.unwrap_or_else(|| local(first / SECOND));
        page::page(&mut self.0, offset)
    }
}

#[cfg(test)]
mod tests;
