//! Progress on standard error: a bar on a terminal, a plain line every 10 s elsewhere.
//!
//! The bar is one row, and each draw leaves the cursor at the start of the row. So the next draw overwrites characters
//! that the terminal has echoed there (`^C`). It also erases the rows below: a terminal that became narrower wraps the
//! bar into them. Each draw fits the bar to the width. A terminal may report a new width late, so wrapping is turned
//! off.

use super::args::{ProgressWhen, ReportFlags};
use super::say::{say, write_message};
use super::signals;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use rustix::fs::FileType;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use throttle::flow::unpoisoned;
use throttle::launch::Output;
use throttle_limits::clock::{Nanos, SECOND};

/// The time between two draws of the bar.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// The time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Work that takes less time gets no bar.
const MIN_TIME_FOR_BAR: Nanos = SECOND;
/// The columns of a terminal that does not report its width.
const DEFAULT_COLUMNS: usize = 80;

/// The content of one line of progress, in parts: a narrow terminal has no room for all parts. A part may be empty.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The finished part of the work, if the total is known.
    pub(super) percent: Option<u64>,
    pub(super) count: String,
    /// The count in fewer words.
    pub(super) short_count: String,
    pub(super) rate: String,
    pub(super) time_left: String,
    pub(super) limit: String,
    /// The hint about the keys on the keyboard that end the run.
    pub(super) keys: &'static str,
    /// Whether any input has arrived.
    pub(super) is_begun: bool,
}

impl Shown {
    pub(super) fn text(&self) -> String {
        joined(&[&self.count, &self.rate, &self.time_left, &self.limit])
    }

    /// The line in the first version below that fits into `columns`. Words stay whole, and the time left is the last
    /// part to be dropped.
    fn within(&self, columns: usize) -> String {
        let Shown { count, short_count, rate, time_left, limit, keys, .. } = self;
        let choices: [(usize, &[&str]); 10] = [
            (20, &[count, rate, time_left, limit, keys]),
            (20, &[count, rate, time_left, limit]),
            (20, &[count, rate, time_left]),
            (10, &[count, rate, time_left]),
            (0, &[count, rate, time_left]),
            (0, &[short_count, rate, time_left]),
            (10, &[short_count, time_left]),
            (0, &[short_count, time_left]),
            (10, &[time_left]),
            (0, &[time_left]),
        ];
        let lines = choices.into_iter().map(|(width, parts)| self.drawn(width, &joined(parts), columns));
        let words = [time_left, time_left.trim_end_matches(" left"), rate.trim_end_matches(" now")];
        let mut lines = lines.chain(words.map(str::to_owned)).chain([self.drawn(0, "", columns)]);
        lines.find(|line| !line.is_empty() && line.len() <= columns).unwrap_or_default()
    }

    /// `=====>                31% 5.00/s now`: the bar takes `width` columns.
    fn drawn(&self, width: usize, text: &str, columns: usize) -> String {
        let template = match (self.percent, width) {
            (None, _) => "{msg}".to_owned(),
            (Some(_), 0) => "{percent}% {msg}".to_owned(),
            (Some(_), width) => format!("{{bar:{width}}} {{percent}}% {{msg}}"),
        };
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let line = Line { text: Arc::default(), columns: u16::try_from(columns).unwrap_or(u16::MAX).max(1) };
        let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::term_like(Box::new(line.clone())))
            .with_style(style.progress_chars("=> "))
            .with_position(self.percent.unwrap_or(0).min(100))
            .with_message(text.to_owned());
        bar.force_draw();
        unpoisoned(line.text.lock()).trim_end().to_owned()
    }
}

/// A line in memory, in place of a terminal. The library draws the bar on it, and the line is later written in one
/// piece.
#[derive(Clone, Debug)]
struct Line {
    text: Arc<Mutex<String>>,
    columns: u16,
}

impl TermLike for Line {
    fn width(&self) -> u16 {
        self.columns
    }

    /// The number of rows is not limited. A line that is too long may be drawn here, but `within` does not choose it.
    fn height(&self) -> u16 {
        u16::MAX
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        unpoisoned(self.text.lock()).push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        unpoisoned(self.text.lock()).clear();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Nothing,
    /// A plain line at regular intervals.
    Lines,
    Bar,
    /// A bar that was not requested. It is shown after [`MIN_TIME_FOR_BAR`].
    AutomaticBar,
}

/// Shows progress, and stores what is on the terminal.
#[derive(Debug, Default)]
pub(super) struct Progress {
    kind: Kind,
    /// The content of the next line.
    shown: Option<Shown>,
    /// `shown`, fitted to `columns`.
    line: String,
    columns: usize,
    /// Whether the line is on the terminal.
    is_on_terminal: bool,
    /// Whether the cursor is inside a line that a command has left open.
    within_line: bool,
}

impl Progress {
    /// Chooses how to show progress, from the flags and the kinds of standard input, output and error. `reads_stdin`
    /// means that units are read from standard input. `commands` is how the output of commands is printed, in launch
    /// mode.
    pub(super) fn new(reporting: &ReportFlags, reads_stdin: bool, commands: Option<Output>) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let terminal = std::io::stderr().is_terminal() && !is_dumb;
        let spoils = || reporting.quiet || spoils_something(reads_stdin, commands, reporting.size.is_some());
        let kind = match (reporting.progress, terminal) {
            (ProgressWhen::Always, true) => Kind::Bar,
            (ProgressWhen::Always, false) => Kind::Lines,
            (ProgressWhen::Auto, true) if !spoils() => Kind::AutomaticBar,
            _ => Kind::Nothing,
        };
        Progress { kind, ..Progress::default() }
    }

    /// The time between two calls of [`show`](Self::show).
    pub(super) fn interval(&self) -> Option<Duration> {
        match self.kind {
            Kind::Nothing => None,
            Kind::Lines => Some(LINE_INTERVAL),
            Kind::Bar | Kind::AutomaticBar => Some(FRAME_INTERVAL),
        }
    }

    pub(super) fn show(&mut self, shown: Shown, elapsed: Nanos) {
        match self.kind {
            Kind::Nothing => {}
            Kind::Lines => say(shown.text()),
            Kind::AutomaticBar if elapsed < MIN_TIME_FOR_BAR || !shown.is_begun => {}
            Kind::Bar | Kind::AutomaticBar => {
                (self.shown, self.columns) = (Some(shown), 0);
                self.draw();
            }
        }
    }

    /// Whether a bar is shown, now or later.
    pub(super) fn is_a_bar(&self) -> bool {
        matches!(self.kind, Kind::Bar | Kind::AutomaticBar)
    }

    /// Writes a message without breaking the bar.
    pub(super) fn aside(&mut self, write: impl FnOnce()) {
        self.erase();
        self.end_line();
        write();
        self.draw();
    }

    /// Writes the output of commands without breaking the bar. `write` returns whether it has left a line open.
    pub(super) fn beside(&mut self, write: impl FnOnce() -> bool) {
        self.erase();
        self.within_line = write();
        self.draw();
    }

    /// Hides the bar until [`show`](Self::show) is called again.
    pub(super) fn hide(&mut self) {
        self.erase();
        self.shown = None;
    }

    /// Hides the bar, and shows nothing more.
    pub(super) fn close(&mut self) {
        self.hide();
        *self = Progress::default();
    }

    /// Draws the bar over the old content of the row in one write, so that no other output comes in between.
    fn draw(&mut self) {
        let Some(shown) = &self.shown else { return };
        let columns = columns();
        if columns != self.columns {
            (self.line, self.columns) = (shown.within(columns - 1), columns);
        }
        // This check comes last, because a prompt that is written between it and the bar would be lost.
        if user() != User::Us {
            return self.hide();
        }
        if self.line.is_empty() {
            return self.erase();
        }
        self.end_line();
        self.is_on_terminal = true;
        put(&self.line);
    }

    fn erase(&mut self) {
        if !self.is_on_terminal {
            return;
        }
        let user = user();
        match user {
            User::Us => put(""),
            // A prompt may have begun in the same row, and the cursor is after it.
            User::Program if !self.line.is_empty() => {
                write("\x1b[K");
                self.line.clear();
            }
            User::Program | User::Shell => {}
        }
        // The bar may still be on the terminal: when a pager ends, the terminal shows the covered rows again.
        self.is_on_terminal = user == User::Program;
    }

    /// Ends an open line, so that a bar or a message does not overwrite it.
    fn end_line(&mut self) {
        if std::mem::take(&mut self.within_line) {
            write("\n");
        }
    }
}

/// Replaces the row and erases all rows below it (EL and ED, ECMA-48). A line that is too long is cut off at the edge
/// (DECAWM, VT100). The row is erased first, because tmux saves the content of a screen that is cleared in one step.
fn put(line: &str) {
    write(&format!("\r\x1b[K\x1b[?7l{line}\x1b[?7h\x1b[J\r"));
}

fn write(text: &str) {
    // Best effort: a bar that cannot be written does not stop the run.
    let _ = write_message(&mut std::io::stderr(), text.as_bytes());
}

fn columns() -> usize {
    let size = tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
}

/// Whether something else may use the terminal: the reader of our output, a user who types our input, a command, or a
/// script that runs us in the background.
fn spoils_something(reads_stdin: bool, commands: Option<Output>, has_size: bool) -> bool {
    let is_typed = reads_stdin && std::io::stdin().is_terminal();
    let output_spoils = match (commands.is_some(), std::io::stdout().is_terminal()) {
        // The bar makes room for output to the terminal.
        (true, true) => false,
        (false, true) => true,
        // With --size, the user has considered the reader of the output.
        (_, false) => !has_size && !has_no_reader_here(std::io::stdout()),
    };
    is_typed || output_spoils || commands == Some(Output::Direct) || signals::are_those_of_a_background_job()
}

/// Whether this is a file or a device. The reader of a pipe or a socket may print to the terminal.
fn has_no_reader_here(fd: impl rustix::fd::AsFd) -> bool {
    let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind.is_ok_and(|kind| matches!(kind, FileType::RegularFile | FileType::CharacterDevice | FileType::BlockDevice))
}

/// The program that uses the terminal now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Us,
    /// A program that requests a password, or a pager. The terminal does not show what is typed.
    Program,
    /// Another process group, for example a shell, whose prompt a bar would spoil.
    Shell,
}

fn user() -> User {
    let terminal = std::io::stderr();
    if tcgetpgrp(&terminal).is_ok_and(|foreground| foreground != rustix::process::getpgrp()) {
        User::Shell
    } else if tcgetattr(&terminal).is_ok_and(|modes| !modes.local_modes.contains(LocalModes::ECHO)) {
        User::Program
    } else {
        User::Us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        Shown {
            percent: Some(42),
            count: "213 started, 5 running, 205 ok, 3 failed".to_owned(),
            short_count: "205 ok, 3 failed".to_owned(),
            rate: "5.00/s now".to_owned(),
            time_left: "57 s left".to_owned(),
            limit: "limit 5/s".to_owned(),
            keys: "",
            is_begun: true,
        }
    }

    #[test]
    fn a_narrow_terminal_drops_the_limit_and_then_the_rate() {
        let line =
            "========>            42% 213 started, 5 running, 205 ok, 3 failed, 5.00/s now, 57 s left, limit 5/s";
        assert_eq!(shown().within(160), line);
        for (columns, expected) in [
            (98, "========>            42% 213 started, 5 running, 205 ok, 3 failed, 5.00/s now, 57 s left"),
            (79, "====>      42% 213 started, 5 running, 205 ok, 3 failed, 5.00/s now, 57 s left"),
            (70, "42% 213 started, 5 running, 205 ok, 3 failed, 5.00/s now, 57 s left"),
            (60, "42% 205 ok, 3 failed, 5.00/s now, 57 s left"),
            (39, "42% 205 ok, 3 failed, 57 s left"),
            (20, "42% 57 s left"),
            (12, "57 s left"),
            (8, "57 s"),
            (3, "42%"),
            (2, ""),
        ] {
            assert_eq!(shown().within(columns), expected, "{columns}");
        }
    }

    #[test]
    fn a_narrow_terminal_drops_the_keys_first() {
        let with_keys = Shown { keys: "Ctrl-C ends it", ..shown() };
        assert!(with_keys.within(160).ends_with("57 s left, limit 5/s, Ctrl-C ends it"));
        assert_eq!(with_keys.within(100), shown().within(100));
    }

    #[test]
    fn unknown_parts_are_not_shown() {
        let unknown = Shown { percent: None, time_left: String::new(), ..shown() };
        assert_eq!(unknown.within(30), "205 ok, 3 failed, 5.00/s now");
        assert_eq!(Shown { percent: None, ..shown() }.within(9), "57 s left");
        assert_eq!(Shown { percent: None, time_left: String::new(), ..shown() }.within(9), "5.00/s");
        assert_eq!(Shown { time_left: String::new(), ..shown() }.within(5), "42%");
    }

    #[test]
    fn the_bar_is_full_at_the_end() {
        for (percent, expected) in [(0, "           0% x"), (99, "=========> 99% x"), (100, "========== 100% x")] {
            assert_eq!(Shown { percent: Some(percent), ..shown() }.drawn(10, "x", 80), expected);
        }
        assert_eq!(Shown { percent: Some(101), ..shown() }.drawn(0, "x", 1), "100% x");
    }
}
