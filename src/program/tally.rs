//! What became of the commands: the counts, the line for each that failed, and the closing line.

use super::commands::JOBS;
use super::exit::Exit;
use super::flags::Flags;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use throttle::clock::{Nanos, SECOND};
use throttle::launch::{Job, Outcome, Template, steers_terminal};
use throttle::limits::Plan;
use throttle::rate::Rate;

/// Failed units that are named one by one.
const NAMED: u64 = 20;

/// Jobs that were the brake for so long are worth a hint.
const BRAKE: Nanos = 10 * SECOND;

/// How much of a unit is shown.
const SHOWN: usize = 60;

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "two are flags, two have happened or not")]
pub(crate) struct Tally {
    quiet: bool,
    trace: bool,
    /// What is run, for the messages.
    command: String,
    /// Where its name depends on the unit.
    template: Option<Template>,
    /// How it could have had the terminal.
    terminal: &'static str,
    /// As the user wrote them.
    limits: String,
    /// For the hint about jobs: the pace, unless the number of jobs was chosen.
    pace: Option<Rate>,
    hinted: bool,
    /// When the hint was last thought of.
    looked: Nanos,
    started_at: BTreeMap<u64, Nanos>,
    durations: Nanos,
    started: u64,
    ok: u64,
    failed: u64,
    timed_out: u64,
    killed: u64,
    /// Ended because all was to end.
    stopped: u64,
    skipped: u64,
    next: Option<(u64, String)>,
    /// Why commands are ended before their time.
    interrupted: Option<&'static str>,
    exit: Exit,
}

impl Tally {
    pub(crate) fn new(flags: &Flags) -> Self {
        Tally {
            quiet: flags.is_quiet(),
            trace: flags.is_traced(),
            command: flags.command_name(),
            template: flags.template().filter(|template| template.name().is_none()).cloned(),
            terminal: match (flags.jobs(), flags.timeout()) {
                (Some(1), Some(_)) => "without --timeout it may have it",
                (_, Some(_)) => "with -j 1 and without --timeout it may have it",
                _ => "with -j 1 it may have it",
            },
            limits: flags.limits_as_written(),
            pace: flags.jobs().is_none().then(|| Plan::fastest(flags.plan())).flatten(),
            hinted: false,
            looked: 0,
            started_at: BTreeMap::new(),
            durations: 0,
            started: 0,
            ok: 0,
            failed: 0,
            timed_out: 0,
            killed: 0,
            stopped: 0,
            skipped: 0,
            next: None,
            interrupted: None,
            exit: Exit::Success,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(super) fn is_traced(&self) -> bool {
        self.trace
    }

    pub(super) fn exit(&self) -> Exit {
        self.exit
    }

    pub(super) fn set_skipped(&mut self, skipped: u64) {
        self.skipped = skipped;
    }

    /// From now on, what ends badly was stopped.
    pub(super) fn interrupt(&mut self, why: &'static str) {
        self.interrupted.get_or_insert(why);
    }

    pub(super) fn start(&mut self, job: &Job, now: Nanos) {
        self.started += 1;
        self.started_at.insert(job.seq(), now);
        self.next = None;
    }

    pub(super) fn set_next(&mut self, job: &Job, skipped: u64) {
        self.skipped = skipped;
        if self.next.as_ref().is_none_or(|(seq, _)| *seq != job.seq()) {
            self.next = Some((job.seq(), shown(job.name())));
        }
    }

    /// Counts an end; returns the line that tells of it, if one does.
    pub(super) fn end(&mut self, job: &Job, outcome: &Outcome, now: Nanos) -> Option<String> {
        let started = self.started_at.remove(&job.seq()).unwrap_or(now);
        self.durations += now.saturating_sub(started);
        let (words, exit) = match outcome {
            Outcome::Ok => {
                self.ok += 1;
                return None;
            }
            Outcome::Exited(255) => {
                let command = self.command_for(job);
                (format!("{command} exited 255, which means stop; to go on: -c '… || exit 1'"), Exit::Stopped)
            }
            Outcome::Exited(code) => (format!("{} exited {code}", self.command_for(job)), Exit::Failed),
            Outcome::Killed(signal) => (format!("killed by {}", signal_name(*signal)), Exit::Killed),
            Outcome::TimedOut => ("timed out".to_owned(), Exit::Failed),
            Outcome::WantedTerminal => (format!("wanted the terminal; {}", self.terminal), Exit::Failed),
            Outcome::NotFound(error) => (format!("cannot be run: {error}"), Exit::NotFound),
            Outcome::CannotRun(error) => (format!("cannot be run: {error}{}", advice(error)), Exit::CannotRun),
            Outcome::TooLong | Outcome::HasNul => (unfit(outcome).to_owned(), Exit::CannotRun),
            Outcome::InputLost(error) => {
                (format!("not run, as its input cannot be held: {error}{}", advice(error)), Exit::Error)
            }
            Outcome::OutputLost(error) => (format!("its output is lost: {error}"), Exit::Error),
        };
        if self.interrupted.is_some() {
            self.stopped += 1;
            return None;
        }
        self.failed += 1;
        self.timed_out += u64::from(matches!(outcome, Outcome::TimedOut));
        self.killed += u64::from(matches!(outcome, Outcome::Killed(_)));
        self.exit = worse(self.exit, exit);
        (self.failed <= NAMED && !self.quiet).then(|| named(job, &words))
    }

    /// What a message calls the command that was run for `job`.
    fn command_for(&self, job: &Job) -> String {
        let name = self.template.as_ref().and_then(|template| template.fill(job.units()).iter().next());
        let name = name.as_deref().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| self.command.clone(), |name| shown(name.as_bytes()))
    }

    /// Whether it is worth asking for [`hint`](Self::hint): once a second.
    pub(super) fn may_hint(&mut self, now: Nanos) -> bool {
        let due = self.pace.is_some() && !self.hinted && now >= self.looked + SECOND;
        if due {
            self.looked = now;
        }
        due
    }

    /// What `-j` it would take, once, when jobs were the brake for long.
    pub(super) fn hint(&mut self, waited_for_jobs: Nanos) -> Option<String> {
        let ended = self.started.saturating_sub(self.started_at.len() as u64);
        let pace = self.pace.filter(|_| waited_for_jobs >= BRAKE && ended > 0 && !self.hinted && !self.quiet)?;
        let mean = u128::from(self.durations / ended);
        let jobs = (mean * u128::from(pace.units())).div_ceil(u128::from(pace.period())) + 1;
        // Otherwise it was starting them that took the time.
        self.hinted = jobs > JOBS.into();
        self.hinted.then(|| format!("16 jobs at once are the brake, not the rate; {pace} would take about -j {jobs}"))
    }

    /// `213 started, 5 running, 205 ok, 3 failed`
    pub(super) fn counts(&self) -> String {
        let running = self.started_at.len();
        let mut parts =
            vec![format!("{} started", self.started), format!("{running} running"), format!("{} ok", self.ok)];
        let more = [
            (self.failed, "failed"),
            (self.timed_out, "timed out"),
            (self.killed, "killed"),
            (self.skipped, "blank skipped"),
        ];
        parts.extend(more.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        parts.join(", ")
    }

    /// The last lines: how many failures were not named, and the sum.
    pub(super) fn closing(&self, elapsed: Nanos) -> Vec<String> {
        let mut lines = Vec::new();
        if self.quiet {
            return lines;
        }
        if self.failed > NAMED {
            lines.push(format!("{} more failed", self.failed - NAMED));
        }
        let line = self.interrupted.map_or_else(|| self.sum(elapsed), |why| self.interrupted_line(why));
        let separator = if self.interrupted.is_some() { ", " } else { "; " };
        let next = self.next.as_ref().map(|(seq, name)| format!("{separator}next unit not started: {seq} '{name}'"));
        lines.push(line + &next.unwrap_or_default());
        lines
    }

    fn sum(&self, elapsed: Nanos) -> String {
        let mut failed = format!("{} failed", self.failed);
        if self.timed_out > 0 {
            failed = format!("{failed} ({} timed out)", self.timed_out);
        }
        let plural = if self.skipped == 1 { "" } else { "s" };
        let skipped =
            if self.skipped > 0 { format!(", {} blank line{plural} skipped", self.skipped) } else { String::new() };
        format!("{} ok, {failed}{skipped}; {} at {}", self.ok, in_tenths(elapsed), self.limits)
    }

    fn interrupted_line(&self, why: &str) -> String {
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        format!("{why}: {} ok{failed}, {} stopped", self.ok, self.stopped)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "started": self.started,
            "running": self.started_at.len(),
            "ok": self.ok,
            "failed": self.failed,
            "timed_out": self.timed_out,
            "killed": self.killed,
            "stopped": self.stopped,
            "blank_skipped": self.skipped,
        })
    }
}

/// A unit, and what became of it.
fn named(job: &Job, what: &str) -> String {
    format!("unit {} '{}': {what}", job.seq(), shown(job.name()))
}

/// A unit that cannot be an argument, and why.
pub(super) fn named_as_unfit(job: &Job, outcome: &Outcome) -> String {
    named(job, unfit(outcome))
}

fn unfit(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::HasNul => "has a NUL byte, which no argument can hold; use --stdin",
        _ => "too long for an argument; --stdin has no bound",
    }
}

/// What to do where the system has no room or knows no way to run it; a temporary file's error says it itself.
fn advice(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "; ulimit -n allows more open files",
        Some(Errno::AGAIN) => "; ulimit -u allows more processes",
        Some(Errno::NOEXEC) => "; a script needs a first line like #!/bin/sh, or run it with sh",
        _ => "",
    }
}

/// The first that holds of 127, 126, 125, 124, 123; an error of our own comes before them.
fn worse(one: Exit, other: Exit) -> Exit {
    use Exit::{CannotRun, Error, Failed, Killed, NotFound, Stopped, Success, Usage};
    let order = [Error, NotFound, CannotRun, Killed, Stopped, Failed, Usage, Success];
    order.into_iter().find(|exit| *exit == one || *exit == other).unwrap_or(one)
}

/// `100.2 s`
fn in_tenths(nanos: Nanos) -> String {
    let tenths = (nanos + SECOND / 20) / (SECOND / 10);
    format!("{}.{} s", tenths / 10, tenths % 10)
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// A unit in a message: its beginning, control characters escaped.
pub(super) fn shown(unit: &[u8]) -> String {
    let text = String::from_utf8_lossy(unit);
    let text = text.trim_end_matches('\n');
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(SHOWN).flat_map(escaped).collect();
    if chars.next().is_some() { format!("{beginning}…") } else { beginning }
}

/// All of a unit as a terminal can show it: control characters escaped, but for the end of its last line.
pub(super) fn printable(unit: &[u8]) -> String {
    printable_text(String::from_utf8_lossy(unit).trim_end_matches('\n'))
}

/// The same of a text.
pub(super) fn printable_text(text: &str) -> String {
    text.chars().flat_map(escaped).collect()
}

/// Only what steers a terminal is changed: quotes and backslashes stay as they are.
fn escaped(c: char) -> Vec<char> {
    if steers_terminal(c) { c.escape_default().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::flags;

    fn tally(args: &[&str]) -> Tally {
        let args = [&["throttle"], args, &["curl"]].concat();
        Tally::new(&flags::parse(args.into_iter().map(Into::into)).unwrap())
    }

    /// A tally of `ended` commands of a second each.
    fn after(ended: u64, args: &[&str]) -> Tally {
        Tally { started: ended, durations: ended * SECOND, ..tally(args) }
    }

    #[test]
    fn the_hint_tells_once_how_many_jobs_it_would_take() {
        let mut slow = after(100, &["-r", "50/s"]);
        assert_eq!(slow.hint(BRAKE - 1), None, "not yet");
        let hint = "16 jobs at once are the brake, not the rate; 50/s would take about -j 51";
        assert_eq!((slow.hint(BRAKE).as_deref(), slow.hint(BRAKE)), (Some(hint), None));
        for args in [&["-r", "50/s", "-j", "16"][..], &["-r", "50/s", "-q"], &["-r", "unlimited"], &["-r", "5/s"]] {
            assert_eq!(after(100, args).hint(BRAKE), None, "{args:?}: it was chosen, unwanted, meaningless or no help");
        }
        assert_eq!(after(0, &["-r", "50/s"]).hint(BRAKE), None, "no command has ended");
    }

    #[test]
    fn the_hint_is_thought_of_once_a_second() {
        let mut tally = tally(&["-r", "50/s"]);
        let times = [SECOND, SECOND + 1, 2 * SECOND - 1, 2 * SECOND];
        assert_eq!(times.map(|time| tally.may_hint(time)), [true, false, false, true]);
    }

    #[test]
    fn the_closing_lines_read_as_in_the_manual() {
        let sum = Tally { ok: 498, failed: 2, timed_out: 1, skipped: 3, ..tally(&["-r", "5/s"]) };
        let expected = "498 ok, 2 failed (1 timed out), 3 blank lines skipped; 100.2 s at 5/s";
        assert_eq!(sum.closing(100_150_000_000), [expected]);
        let next = Some((413, "https://…".to_owned()));
        let interrupted =
            Tally { ok: 409, stopped: 3, next, interrupted: Some("interrupted"), ..tally(&["-r", "5/s"]) };
        assert_eq!(interrupted.closing(0), ["interrupted: 409 ok, 3 stopped, next unit not started: 413 'https://…'"]);
        let many = Tally { failed: 21, ..tally(&["-r", "5/s", "-b", "9", "-r", "60/min"]) };
        assert_eq!(many.closing(49_999_999), ["1 more failed", "0 ok, 21 failed; 0.0 s at 5/s and 60/min"]);
        assert!(Tally { failed: 21, ..tally(&["-q", "-r", "5/s"]) }.closing(0).is_empty());
    }
}
