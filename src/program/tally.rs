//! What became of the commands: the counts, the line for each that failed, and the closing line.

use super::exit::Exit;
use super::flags::Flags;
use std::collections::BTreeMap;
use throttle::clock::{Nanos, SECOND};
use throttle::launch::{Job, Outcome};
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
    /// For the hint about jobs: the pace, unless the number of jobs was chosen.
    pace: Option<Rate>,
    hinted: bool,
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
    interrupted: bool,
    exit: Exit,
}

impl Tally {
    pub(crate) fn new(flags: &Flags) -> Self {
        Tally {
            quiet: flags.is_quiet(),
            trace: flags.is_traced(),
            command: flags.command_name(),
            pace: flags.jobs().is_none().then(|| Plan::fastest(flags.plan())).flatten(),
            hinted: false,
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
            interrupted: false,
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
    pub(super) fn interrupt(&mut self) {
        self.interrupted = true;
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
                ("exited 255: stopping, as xargs does; to go on: -c '… || exit 1'".to_owned(), Exit::Stopped)
            }
            Outcome::Exited(code) => (format!("{} exited {code}", self.command), Exit::Failed),
            Outcome::Killed(signal) => (format!("killed by {}", signal_name(*signal)), Exit::Killed),
            Outcome::TimedOut => ("timed out".to_owned(), Exit::Failed),
            Outcome::WantedTerminal => ("wanted the terminal; with -j 1 it may have it".to_owned(), Exit::Failed),
            Outcome::NotFound(error) => (format!("cannot be run: {error}"), Exit::NotFound),
            Outcome::CannotRun(error) => (format!("cannot be run: {error}"), Exit::CannotRun),
            Outcome::TooLong => ("too long for an argument; --stdin has no bound".to_owned(), Exit::CannotRun),
            Outcome::HasNul => ("has a NUL byte, which no argument can hold; use --stdin".to_owned(), Exit::CannotRun),
            Outcome::OutputLost(error) => (format!("its output is lost: {error}"), Exit::Error),
        };
        if self.interrupted {
            self.stopped += 1;
            return None;
        }
        self.failed += 1;
        self.timed_out += u64::from(matches!(outcome, Outcome::TimedOut));
        self.killed += u64::from(matches!(outcome, Outcome::Killed(_)));
        self.exit = worse(self.exit, exit);
        (self.failed <= NAMED && !self.quiet).then(|| format!("unit {} '{}': {words}", job.seq(), shown(job.name())))
    }

    /// Whether it is worth asking for [`hint`](Self::hint): no more often than every 64 commands.
    pub(super) fn may_hint(&self) -> bool {
        self.pace.is_some() && !self.hinted && self.started.is_multiple_of(64) && self.started > 0
    }

    /// What `-j` it would take, once, when jobs were the brake for long.
    pub(super) fn hint(&mut self, waited_for_jobs: Nanos) -> Option<String> {
        let ended = self.started.saturating_sub(self.started_at.len() as u64);
        let pace = self.pace.filter(|_| waited_for_jobs >= BRAKE && ended > 0 && !self.hinted && !self.quiet)?;
        self.hinted = true;
        let mean = u128::from(self.durations / ended);
        let jobs = (mean * u128::from(pace.units())).div_ceil(u128::from(pace.period())) + 1;
        Some(format!("16 jobs at once are the brake, not the rate; {pace} would take about -j {jobs}"))
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
    pub(super) fn closing(&self, elapsed: &str, pace: &str) -> Vec<String> {
        let mut lines = Vec::new();
        if self.quiet {
            return lines;
        }
        if self.failed > NAMED {
            lines.push(format!("{} more failed", self.failed - NAMED));
        }
        lines.push(if self.interrupted { self.interrupted_line() } else { self.sum(elapsed, pace) });
        lines
    }

    fn sum(&self, elapsed: &str, pace: &str) -> String {
        let mut failed = format!("{} failed", self.failed);
        if self.timed_out > 0 {
            failed = format!("{failed} ({} timed out)", self.timed_out);
        }
        let plural = if self.skipped == 1 { "" } else { "s" };
        let skipped =
            if self.skipped > 0 { format!(", {} blank line{plural} skipped", self.skipped) } else { String::new() };
        format!("{} ok, {failed}{skipped}; {elapsed} at {pace}", self.ok)
    }

    fn interrupted_line(&self) -> String {
        let next = self.next.as_ref().map(|(seq, name)| format!(", next unit not started: {seq} '{name}'"));
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        format!("interrupted: {} ok{failed}, {} stopped{}", self.ok, self.stopped, next.unwrap_or_default())
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

/// The first that holds of 127, 126, 125, 124, 123; an error of our own comes before them.
fn worse(one: Exit, other: Exit) -> Exit {
    use Exit::{CannotRun, Error, Failed, Killed, NotFound, Stopped, Success, Usage};
    let order = [Error, NotFound, CannotRun, Killed, Stopped, Failed, Usage, Success];
    order.into_iter().find(|exit| *exit == one || *exit == other).unwrap_or(one)
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

/// Only control characters are changed: quotes and backslashes stay as they are.
fn escaped(c: char) -> Vec<char> {
    if c.is_control() { c.escape_default().collect() } else { vec![c] }
}
