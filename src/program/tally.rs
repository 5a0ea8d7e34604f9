//! What became of the commands: the counts, the line for each that failed, and the closing line.

use super::commands::JOBS;
use super::exit::Exit;
use super::flags::{Flags, Format, Summary};
use super::naming::Naming;
use super::report::counted;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use throttle::clock::{self, Nanos, SECOND};
use throttle::launch::{Job, Outcome, Template, printable};
use throttle::limits::Plan;
use throttle::rate::Rate;

/// Jobs that were the brake for so long are worth a hint.
const BRAKE: Nanos = 10 * SECOND;

/// How much of a unit is shown.
const SHOWN: usize = 60;

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "three are flags, two have happened or not")]
pub(crate) struct Tally {
    quiet: bool,
    trace: bool,
    /// Whether the sum is told also where all went well: to somebody who looks on, or asked for it.
    sums_up: bool,
    naming: Naming,
    /// What is run, for the messages.
    command: String,
    /// Where its name depends on the unit.
    template: Option<Template>,
    /// How it could have had the terminal.
    terminal: &'static str,
    /// As the user wrote them, after the word for them.
    limits: String,
    /// Commands at once; 0: no cap.
    jobs: u32,
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
    /// What is said at the end of the next job.
    next: Option<String>,
    /// Why commands are ended before their time.
    interrupted: Option<&'static str>,
    starts_no_more: bool,
    exit: Exit,
}

impl Tally {
    pub(crate) fn new(flags: &Flags, on_terminal: bool) -> Self {
        let said_here = |summary: &Summary| summary.format == Format::Text && summary.file.is_none();
        Tally {
            quiet: flags.is_quiet(),
            trace: flags.is_traced(),
            sums_up: on_terminal || flags.summary().is_some_and(said_here),
            naming: Naming::new(flags, on_terminal),
            command: flags.command_name(),
            template: flags.template().filter(|template| template.name().is_none()).cloned(),
            terminal: match (flags.jobs(), flags.timeout()) {
                (Some(1), Some(_)) => "without --timeout it may have it",
                (_, Some(_)) => "with -j 1 and without --timeout it may have it",
                _ => "with -j 1 it may have it",
            },
            limits: match flags.limits_as_written().as_str() {
                "unlimited" => "no limit".to_owned(),
                limits => format!("limit {limits}"),
            },
            jobs: flags.jobs().unwrap_or(JOBS),
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
            starts_no_more: false,
            exit: Exit::Success,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether somebody looks on whom a hint at how it goes may help; to others it would be mailed.
    pub(super) fn advises(&self) -> bool {
        self.sums_up && !self.quiet
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

    /// No more commands are started.
    pub(super) fn stop(&mut self) {
        self.starts_no_more = true;
    }

    /// What is waited for when no more are started: `waiting for 3 commands`.
    pub(super) fn waiting(&self) -> Option<String> {
        let running = self.started_at.len() as u64;
        self.starts_no_more.then(|| format!("waiting for {}", counted(running, "command")))
    }

    /// From now on, what ends badly was stopped.
    pub(super) fn interrupt(&mut self, why: &'static str) {
        self.interrupted.get_or_insert(why);
    }

    pub(super) fn start(&mut self, job: &Job, now: Nanos) {
        self.started += 1;
        self.started_at.insert(job.seq, now);
        self.next = None;
    }

    pub(super) fn set_next(&mut self, first: Option<(u64, &[u8])>, skipped: u64) {
        self.skipped = skipped;
        self.next = Some(self.naming.next(first));
    }

    /// Something of our own went wrong.
    pub(super) fn fail(&mut self) {
        self.exit = worse(self.exit, Exit::Error);
    }

    /// What a message calls the first unit of `job`.
    pub(super) fn name(&self, job: &Job) -> String {
        self.naming.first(job)
    }

    /// Counts an end; returns the lines that tell of it, if any do.
    pub(super) fn end(&mut self, job: &Job, outcome: &Outcome, now: Nanos) -> Vec<String> {
        let started = self.started_at.remove(&job.seq).unwrap_or(now);
        self.durations += now.saturating_sub(started);
        let (words, exit) = match outcome {
            Outcome::Ok => {
                self.ok += 1;
                return Vec::new();
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
            Outcome::TooLong | Outcome::HasNul => (unfit(job, outcome), Exit::CannotRun),
            Outcome::InputLost(error) => {
                (format!("not run, as its input cannot be held: {error}{}", advice(error)), Exit::Error)
            }
            Outcome::OutputLost(error) => (format!("its output is lost: {error}"), Exit::Error),
        };
        if self.interrupted.is_some() {
            self.stopped += 1;
            return if self.quiet { Vec::new() } else { self.naming.stopped(job) };
        }
        self.failed += 1;
        self.timed_out += u64::from(matches!(outcome, Outcome::TimedOut));
        self.killed += u64::from(matches!(outcome, Outcome::Killed(_)));
        self.exit = worse(self.exit, exit);
        if self.quiet { Vec::new() } else { self.naming.failed(job, &words) }
    }

    /// What a message calls the command that was run for `job`.
    fn command_for(&self, job: &Job) -> String {
        let name = self.template.as_ref().and_then(|template| template.fill(&job.units).iter().next());
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
        let ended = self.ended();
        let pace = self.pace.filter(|_| waited_for_jobs >= BRAKE && ended > 0 && !self.hinted && self.advises())?;
        let mean = u128::from(self.durations / ended);
        let jobs = (mean * u128::from(pace.units())).div_ceil(u128::from(pace.period())) + 1;
        // Otherwise it was starting them that took the time.
        self.hinted = jobs > JOBS.into();
        self.hinted.then(|| format!("16 jobs at once are the brake, not the rate; {pace} would take about -j {jobs}"))
    }

    pub(super) fn ended(&self) -> u64 {
        self.started.saturating_sub(self.started_at.len() as u64)
    }

    /// How long until all has ended, where `units` are to be started yet and the last of them could be in `last_start`.
    /// `None` where there is no telling: all slots are taken and no command has ended yet, or no more will be started.
    pub(super) fn time_left(&self, units: u64, last_start: Nanos, now: Nanos) -> Option<Nanos> {
        let (running, jobs) = (self.started_at.len() as u64, u64::from(self.jobs));
        let is_full = jobs > 0 && running >= jobs;
        if self.starts_no_more || (self.ended() == 0 && is_full) {
            return None;
        }
        let mean = self.durations / self.ended().max(1);
        let left_of = |started: &Nanos| mean.saturating_sub(now.saturating_sub(*started));
        let of_running: u64 = self.started_at.values().map(left_of).sum();
        let work = mean.saturating_mul(units).saturating_add(of_running);
        let by_jobs = work.checked_div(jobs).unwrap_or(0);
        let last_end = if units > 0 { last_start.saturating_add(mean) } else { 0 };
        let longest = self.started_at.values().map(left_of).max().unwrap_or(0);
        Some(last_end.max(by_jobs).max(longest))
    }

    /// `205 ok, 3 failed`
    pub(super) fn ends(&self) -> String {
        if self.failed > 0 { format!("{} ok, {} failed", self.ok, self.failed) } else { format!("{} ok", self.ok) }
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

    /// The last lines: how many failures were not named, and the sum. None where all went well and nobody looks on: what
    /// cron starts would otherwise mail them.
    pub(super) fn closing(&self, elapsed: Nanos) -> Vec<String> {
        let is_success = self.exit == Exit::Success && self.interrupted.is_none();
        if self.quiet || (is_success && !self.sums_up) {
            return Vec::new();
        }
        let mut lines: Vec<String> = self.naming.more().into_iter().collect();
        let line = self.interrupted.map_or_else(|| self.sum(elapsed), |why| self.interrupted_line(why));
        let separator = if self.interrupted.is_some() { ", " } else { "; " };
        let next = self.next.as_ref().map(|next| format!("{separator}{next}"));
        lines.push(line + &next.unwrap_or_default());
        lines
    }

    fn sum(&self, elapsed: Nanos) -> String {
        let mut failed = format!("{} failed", self.failed);
        if self.timed_out > 0 {
            failed = format!("{failed} ({} timed out)", self.timed_out);
        }
        let skipped = counted(self.skipped, "blank line");
        let skipped = if self.skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        format!("{} ok, {failed}{skipped}; {} ({})", self.ok, clock::shown(elapsed), self.limits)
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

/// Why a command cannot have its units as arguments. One of several is in the way of all.
pub(super) fn unfit(job: &Job, outcome: &Outcome) -> String {
    let words = match outcome {
        Outcome::HasNul => "has a NUL byte, which no argument can hold; use --stdin",
        _ => "is too long for an argument; --stdin has no bound",
    };
    let has_several = job.names.iter().nth(1).is_some();
    if has_several { format!("not run, as a unit of its command {words}") } else { words.to_owned() }
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

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// A unit in a message: its beginning, control characters escaped.
pub(super) fn shown(unit: &[u8]) -> String {
    let text = String::from_utf8_lossy(unit);
    let text = text.trim_end_matches('\n');
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(SHOWN).collect();
    let beginning = printable(&beginning);
    if chars.next().is_some() { format!("{beginning}…") } else { beginning }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::flags;

    fn tally(args: &[&str]) -> Tally {
        let args = [&["throttle"], args, &["curl"]].concat();
        Tally::new(&flags::parse(args.into_iter().map(Into::into)).unwrap(), true)
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
        let mut unseen = Tally { sums_up: false, ..after(100, &["-r", "50/s"]) };
        assert_eq!(unseen.hint(BRAKE), None, "nobody looks on");
    }

    /// Four jobs of a second each manage 4 a second, whatever the limit would let through.
    #[test]
    fn where_jobs_are_the_brake_the_time_left_is_theirs() {
        let args = ["-r", "9/s", "-j", "4"];
        let running = |seqs: std::ops::RangeInclusive<u64>| seqs.map(|seq| (seq, SECOND)).collect();
        let new = tally(&args);
        assert_eq!(new.time_left(36, 4 * SECOND, 0), Some(4 * SECOND), "nothing but the limit is known");
        let full = Tally { started: 4, started_at: running(1..=4), ..tally(&args) };
        assert_eq!(full.time_left(36, 4 * SECOND, 9 * SECOND), None, "nobody knows how long they take");
        let ended = after(4, &args);
        assert_eq!(ended.time_left(36, 4 * SECOND, SECOND), Some(9 * SECOND));
        assert_eq!(ended.time_left(36, 60 * SECOND, SECOND), Some(61 * SECOND), "also the last one runs");
        let last = Tally { started: 5, started_at: running(5..=5), ..after(4, &args) };
        assert_eq!(last.time_left(0, 0, SECOND + SECOND / 4), Some(3 * SECOND / 4), "what runs is waited for");
        let stopped = Tally { starts_no_more: true, ..after(4, &args) };
        assert_eq!(stopped.time_left(36, 4 * SECOND, SECOND), None);
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
        let expected = "498 ok, 2 failed (1 timed out), 3 blank lines skipped; 1m 40s (limit 5/s)";
        assert_eq!(sum.closing(100_150_000_000), [expected]);
        let next = Some("next line not started: 413 'https://…'".to_owned());
        let interrupted =
            Tally { ok: 409, stopped: 3, next, interrupted: Some("interrupted"), ..tally(&["-r", "5/s"]) };
        assert_eq!(interrupted.closing(0), ["interrupted: 409 ok, 3 stopped, next line not started: 413 'https://…'"]);
        let two = Tally { failed: 21, ..tally(&["-r", "5/s", "-b", "9", "-r", "60/min"]) };
        assert_eq!(two.closing(49_999_999), ["0 ok, 21 failed; 50 ms (limit 5/s and 60/min)"]);
        assert!(Tally { failed: 21, ..tally(&["-q", "-r", "5/s"]) }.closing(0).is_empty());
    }
}
