//! Progress on standard error: a bar on a terminal, a plain line now and then elsewhere.

use super::flags::{Flags, ProgressWhen};
use super::report::Total;
use super::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use throttle::clock::{Nanos, SECOND};
use throttle::launch::Output;

/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(100);
/// How often a plain line is written.
const LINE: Duration = Duration::from_secs(10);
/// Work that takes less needs no bar.
const WORTH_A_BAR: Nanos = SECOND;

/// What is shown at one moment.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) text: String,
    /// Bytes or units, as the total is counted.
    pub(super) done: u64,
}

/// What is done about progress.
#[derive(Debug)]
pub(super) enum Progress {
    Nothing,
    Lines,
    Bar {
        bar: ProgressBar,
        from: Nanos,
        /// Whether the terminal stands within a line that somebody else has written.
        within_line: bool,
    },
}

impl Progress {
    /// Decides by what was asked for and what standard error and output are.
    pub(super) fn new(flags: &Flags, total: Option<Total>) -> Self {
        let length = total.map(|(Total::Bytes(all) | Total::Units(all))| all);
        let terminal = std::io::stderr().is_terminal();
        let spoils = match flags.template() {
            Some(_) => flags.output() == Output::Direct,
            None => std::io::stdout().is_terminal(),
        };
        match (flags.progress(), terminal) {
            (ProgressWhen::Never, _) | (ProgressWhen::Auto, false) => Progress::Nothing,
            (ProgressWhen::Auto, true) if spoils || flags.is_quiet() => Progress::Nothing,
            (ProgressWhen::Always, false) => Progress::Lines,
            (ProgressWhen::Auto, true) => Progress::bar(length, WORTH_A_BAR),
            (ProgressWhen::Always, true) => Progress::bar(length, 0),
        }
    }

    fn bar(length: Option<u64>, from: Nanos) -> Self {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let template = if length.is_some() { "{bar:20} {percent:>3}% {wide_msg}" } else { "{spinner} {wide_msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress::Bar { bar, from, within_line: false }
    }

    /// How often [`show`](Self::show) is to be called.
    pub(super) fn interval(&self) -> Option<Duration> {
        match self {
            Progress::Nothing => None,
            Progress::Lines => Some(LINE),
            Progress::Bar { .. } => Some(FRAME),
        }
    }

    pub(super) fn show(&mut self, shown: &Shown, elapsed: Nanos) {
        match self {
            Progress::Nothing => {}
            Progress::Lines => say(&shown.text),
            Progress::Bar { from, .. } if elapsed < *from || is_in_background() => {}
            Progress::Bar { bar, within_line, .. } => {
                end_line(within_line);
                if bar.is_hidden() {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                bar.set_position(shown.done);
                bar.set_message(shown.text.clone());
                bar.tick();
            }
        }
    }

    /// Whether there is a bar to be torn, now or soon.
    pub(super) fn is_a_bar(&self) -> bool {
        matches!(self, Progress::Bar { .. })
    }

    /// Writes a message without tearing the bar.
    pub(super) fn aside(&mut self, write: impl FnOnce()) {
        match self {
            Progress::Bar { bar, within_line, .. } => bar.suspend(|| {
                end_line(within_line);
                write();
            }),
            _ => write(),
        }
    }

    /// Writes what others have to say, without tearing the bar; it says whether it has left a line open.
    pub(super) fn beside(&mut self, write: impl FnOnce() -> bool) {
        match self {
            Progress::Bar { bar, within_line, .. } => {
                let is_shown = !bar.is_hidden();
                bar.suspend(|| {
                    *within_line = write();
                    if is_shown {
                        end_line(within_line);
                    }
                });
            }
            _ => drop(write()),
        }
    }

    /// Nothing is shown any more.
    pub(super) fn close(&mut self) {
        if let Progress::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
        *self = Progress::Nothing;
    }
}

/// A bar, or a message, begins at the left: what stands there is not wiped out.
fn end_line(within_line: &mut bool) {
    if std::mem::take(within_line) {
        // If that cannot be written, there is nobody to see it.
        let _ = std::io::stderr().write_all(b"\n");
    }
}

/// Whether the terminal belongs to somebody else now, to a shell for example, whose prompt a bar would spoil.
fn is_in_background() -> bool {
    rustix::termios::tcgetpgrp(std::io::stderr()).is_ok_and(|foreground| foreground != rustix::process::getpgrp())
}
