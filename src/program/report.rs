//! Reports about the run: the status line, the bar and the summary, all from the meter.

mod recent;
mod state;

use super::args::{Format, ReportFlags};
use super::input::are_one_file;
use super::outcomes::Outcomes;
use super::progress::{Progress, Shown};
use super::records::ensure_is_no_stream;
use super::say::{say, write_message};
use super::unit_name::{UnitName, nonzero, rate, scaled, size};
use anyhow::{Context, Result};
use recent::{Recent, mean_rate};
use serde_json::json;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Debug, Display, Formatter};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use throttle::flow::meter::{Meter, Phase, Reading};
use throttle::flow::{Overview, unpoisoned};
use throttle::launch::quoted;
use throttle_limits::clock::{self, Nanos, SECOND};
use throttle_limits::limits::Policy;

/// The bar's hint about the keyboard, in a run of commands.
const KEYS_HINT: &str = "Ctrl-\\ lets commands finish, Ctrl-C ends them";

/// The size of the whole work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    Bytes(u64),
    Units(u64),
}

impl Total {
    /// The total of an input of `found` bytes. Each command is for at most `per` units.
    pub(super) fn new(reporting: &ReportFlags, found: Option<u64>, per: u64) -> Option<Self> {
        match reporting.size {
            Some(size) if size.is_bytes() => Some(Total::Bytes(size.value())),
            Some(size) => Some(Total::Units(size.value().div_ceil(per.max(1)))),
            None => found.map(Total::Bytes),
        }
    }
}

/// The meter, the limits, and where reports are written.
#[derive(Debug)]
pub(crate) struct Report {
    unit: UnitName,
    total: Option<Total>,
    /// The outcomes of the commands; `None` in pipe mode.
    pub(super) outcomes: Option<Arc<Mutex<Outcomes>>>,
    pub(super) unread: Option<Unread>,
    limits: Vec<String>,
    /// The limits as the user wrote them.
    written: String,
    /// Whether bytes are shown in binary units, as in the limits.
    is_binary: bool,
    /// Whether the reader of our output has left.
    reader_left: Mutex<bool>,
    /// Whether a signal that ends the program has arrived.
    pub(crate) is_signalled: Arc<AtomicBool>,
    /// Whether keys have limits of their own. If a server requests a wait, only one key waits then.
    has_keys: bool,
    pub(crate) grants: Arc<dyn Overview>,
    pub(crate) meter: Meter,
    /// The time between two calls of [`tick`](Self::tick).
    pub(crate) tick_every: Option<Duration>,
    /// Whether a bar is shown, now or later.
    pub(crate) has_bar: bool,
    /// The time after which the bar names the keys on the keyboard that end the run. `None` if these keys do not have
    /// that effect.
    pub(crate) names_keys_after: Option<Nanos>,
    screen: Mutex<Screen>,
}

/// Counts the units of a file after the given number of bytes. Returns `None` if the rest of the file is too long.
pub(super) struct Unread(pub(super) Box<dyn Fn(u64) -> Option<u64> + Send + Sync>);

impl Debug for Unread {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Unread")
    }
}

/// The reports that may write to standard error while the pump runs.
#[derive(Debug)]
struct Screen {
    progress: Progress,
    recent: Recent,
    closed: bool,
    /// `None` after it was written.
    summary: Option<(Format, Target)>,
}

/// The file of the summary, and the message if it cannot be written.
pub(crate) type Target = (File, String);

impl Report {
    /// Makes a report on units called `unit`. `total` is the whole work, if it is known. The limits are those of a
    /// policy, with the text that the user wrote, and whether keys have limits of their own: then the waits are counted as
    /// one sum.
    pub(crate) fn new(
        unit: UnitName,
        total: Option<Total>,
        grants: Arc<dyn Overview>,
        (policy, written, has_keys): (&Policy, String, bool),
        summary: Option<(Format, Target)>,
        progress: Progress,
    ) -> Self {
        let each = || (0..policy.len()).map(|place| policy.describe(place)).collect();
        let limits: Vec<String> = if has_keys { vec![written.clone()] } else { each() };
        let meter = Meter::new(grants.clock().now(), limits.len());
        let (tick_every, has_bar) = (progress.interval(), progress.is_a_bar());
        let screen = Mutex::new(Screen { progress, recent: Recent::default(), closed: false, summary });
        let reader_left = Mutex::default();
        Report {
            unit,
            total,
            outcomes: None,
            unread: None,
            limits,
            is_binary: policy.is_binary(),
            written,
            reader_left,
            is_signalled: Arc::default(),
            has_keys,
            grants,
            meter,
            tick_every,
            has_bar,
            names_keys_after: None,
            screen,
        }
    }

    /// Records that the reader of our output has left. Nothing is written after this.
    pub(crate) fn reader_left(&self) {
        let mut has_left = unpoisoned(self.reader_left.lock());
        *has_left = true;
        // This wakes the pump, so the lock is still held here. The pump must not end the program before all grants are
        // given back.
        self.grants.retire();
    }

    pub(crate) fn has_no_reader(&self) -> bool {
        *unpoisoned(self.reader_left.lock())
    }

    /// The number of units up to now, with their name.
    pub(crate) fn count(&self) -> String {
        self.unit.count(self.read().units)
    }

    /// Updates the progress. Does nothing while another thread writes to the screen, because that may take long.
    pub(crate) fn tick(&self) {
        let Ok(mut screen) = self.screen.try_lock() else { return };
        if screen.progress.interval().is_some() {
            let reading = self.read();
            let now = screen.recent.rate(reading.elapsed, reading.units);
            screen.progress.show(self.shown(&reading, now), reading.elapsed);
        }
    }

    /// Hides the bar until the next [`tick`](Self::tick).
    pub(crate) fn hide(&self) {
        self.screen().progress.hide();
    }

    /// Writes the status line.
    pub(crate) fn status(&self) {
        let reading = self.read();
        let time_left = self.left_text(&reading);
        let separator = if time_left.is_empty() { "" } else { ", " };
        let text = format!("{}{separator}{time_left}{}", self.status_text(&reading), self.state_text(&reading));
        self.screen().progress.aside(|| say(text));
    }

    /// Gives unused grants back, removes the bar, and writes the summary on the first call.
    ///
    /// # Errors
    /// The summary cannot be written.
    pub(crate) fn close(&self) -> Result<()> {
        self.grants.retire();
        let mut screen = self.screen();
        self.outcomes().iter_mut().for_each(|outcomes| outcomes.retries.close(self.now()));
        let lines = if screen.closed { Vec::new() } else { self.closing_lines() };
        if !lines.is_empty() {
            // This ends a line that a command has left open.
            screen.progress.aside(|| ());
        }
        screen.progress.close();
        if std::mem::replace(&mut screen.closed, true) {
            return Ok(());
        }
        lines.iter().for_each(say);
        let Some((format, (mut target, cannot))) = screen.summary.take() else { return Ok(()) };
        let text = match format {
            Format::Text => self.summary_text(&self.read()),
            Format::Json => format!("{}\n", self.summary_json(&self.read())),
        };
        let written = empty(&target).and_then(|()| write_message(&mut target, text.as_bytes()));
        written.with_context(|| format!("--summary: {cannot}"))
    }

    /// Closes when the exit code is already decided. An error is printed and changes nothing.
    pub(crate) fn close_or_say(&self) {
        if let Err(error) = self.close() {
            say(format_args!("{error:#}"));
        }
    }

    /// Closes after a signal, like [`close_or_say`](Self::close_or_say). Without a summary, reports how many units were
    /// read and not passed on.
    pub(crate) fn interrupt(&self) {
        self.grants.retire();
        let (reading, sums_up) = (self.read(), self.screen().summary.is_some());
        if !sums_up && reading.units_ahead + reading.dropped > 0 {
            self.aside(format_args!("interrupted: {}{}", self.count_text(&reading), self.lost_text(&reading)));
        }
        self.close_or_say();
    }

    /// In pipe mode: `, 44 read and not passed on`. While the pump writes, some of these units may have left.
    fn lost_text(&self, reading: &Reading) -> String {
        let up_to = if matches!(reading.phase, Phase::Sink | Phase::Working) { "up to " } else { "" };
        match reading.units_ahead {
            units @ 1.. if self.unit != UnitName::Command => format!(", {up_to}{units} read and not passed on"),
            _ => String::new(),
        }
    }

    pub(crate) fn read(&self) -> Reading {
        self.meter.read(self.now())
    }

    /// `12 lines, 340 B`
    fn count_text(&self, reading: &Reading) -> String {
        match self.unit {
            UnitName::Byte => size(reading.bytes, self.is_binary),
            UnitName::Command => {
                let counts = self.outcomes().map(|outcomes| outcomes.counts()).unwrap_or_default();
                counts + &state::keys_waiting(reading)
            }
            unit => {
                let dropped = nonzero([(reading.dropped, "dropped")]);
                let keys = state::keys_waiting(reading);
                format!("{}, {}{dropped}{keys}", unit.count(reading.units), size(reading.bytes, self.is_binary))
            }
        }
    }

    fn status_text(&self, reading: &Reading) -> String {
        let learned = self.outcomes().and_then(|outcomes| outcomes.retries.allowed());
        format!(
            "{} in {}, {}{}",
            self.count_text(reading),
            clock::shown(reading.elapsed),
            rate(self.unit, mean_rate(reading), self.is_binary),
            learned.map_or_else(String::new, |learned| format!(", {learned}"))
        )
    }

    /// The rest of the state; see [`state::text`]. A shared bucket is left out, because its state needs a request, as
    /// for `--show`.
    fn state_text(&self, reading: &Reading) -> String {
        let left = self.grants.left().map(|left| self.limits.iter().zip(left).collect::<Vec<_>>());
        let slots = self.outcomes().and_then(|outcomes| outcomes.slots_text());
        let paused = self.paused_until().max(self.grants.paused_until());
        state::text(reading, self.now(), slots, &left.unwrap_or_default(), paused)
    }

    /// The parts of the progress line.
    fn shown(&self, reading: &Reading, per_second: f64) -> Shown {
        let count = self.count_text(reading);
        let short_count = match self.unit {
            UnitName::Byte => count.clone(),
            UnitName::Command => self.outcomes().map(|outcomes| outcomes.ends()).unwrap_or_default(),
            unit => unit.count(reading.units),
        };
        let learned = self.outcomes().and_then(|outcomes| outcomes.retries.allowed());
        let limit = || match learned {
            Some(learned) => learned,
            None if self.limits.is_empty() => "no limit".to_owned(),
            None => format!("limit {}", self.written),
        };
        let keys = self.names_keys_after.filter(|after| reading.elapsed >= *after).map_or("", |_| KEYS_HINT);
        let (rate, time_left, limit, keys) = match self.outcomes().and_then(|outcomes| outcomes.waiting()) {
            Some(waiting) => (String::new(), waiting, String::new(), ""),
            None => (self.rate_text(reading, per_second), self.left_text(reading), limit(), keys),
        };
        Shown {
            percent: self.percent(reading),
            count,
            short_count,
            rate,
            time_left,
            limit,
            keys,
            is_begun: reading.bytes > 0 || reading.units > 0 || reading.wait.is_some(),
        }
    }

    /// The end of the pause that a server requested from this run, if it is in the future. With limits for each key the
    /// result is `None`, because a pause holds up only one key.
    pub(crate) fn paused_until(&self) -> Option<Nanos> {
        self.outcomes().filter(|_| !self.has_keys)?.paused_until(self.now())
    }

    /// The current rate. If the wait for the next unit is longer than the time over which the rate is measured, it is
    /// the time to that unit.
    fn rate_text(&self, reading: &Reading, per_second: f64) -> String {
        let now = self.now();
        if let Some(until) = self.paused_until() {
            let next = reading.wait.map_or(until, |wait| wait.until.max(until));
            return format!("told to wait, next in {}", countdown(next - now));
        }
        match reading.wait {
            Some(wait) if wait.until.saturating_sub(wait.since) > Recent::SPAN => {
                format!("next in {}", countdown(wait.until.saturating_sub(now)))
            }
            _ => format!("{} now", rate(self.unit, per_second, self.is_binary)),
        }
    }

    /// `7 s left`
    fn left_text(&self, reading: &Reading) -> String {
        self.time_left(reading).map(|time| format!("{} left", countdown(time))).unwrap_or_default()
    }

    /// The finished part of the work in percent. A unit is finished when its last command has ended.
    fn percent(&self, reading: &Reading) -> Option<u64> {
        let (all, begun) = match self.total? {
            Total::Bytes(all) => (all, reading.bytes),
            Total::Units(all) => (all, reading.units),
        };
        let (finished, started) = self.outcomes().map_or((1, 1), |outcomes| (outcomes.finished(), reading.units));
        let done = u128::from(begun) * u128::from(finished.min(started)) * 100;
        let percent = done.checked_div(u128::from(all) * u128::from(started.max(1)))?;
        u64::try_from(percent.min(100)).ok()
    }

    /// The time left. The estimate depends on the bottleneck: the limits, the source, the reader, or the running
    /// commands.
    fn time_left(&self, reading: &Reading) -> Option<Nanos> {
        let again = self.outcomes().map_or(0, |outcomes| outcomes.retries.waiting);
        let (units, now) = (self.units_left(reading)? + again, self.now());
        // Units that wait for their time already have a grant.
        let until = reading.wait.map_or(0, |wait| wait.until);
        let last_grant = if units > 0 { self.grants.schedule(units)?.max(until) } else { until };
        let by_limits = last_grant.saturating_sub(now);
        let wait = until.saturating_sub(now);
        let by_pace = if self.has_keys {
            // The mean time of a unit includes the current wait, because a unit leaves at its end.
            wait + scaled(reading.elapsed + wait, units.saturating_sub(1), reading.units)
        } else if reading.sink + reading.source > reading.limits.iter().sum() {
            scaled(reading.elapsed, units, reading.units)
        } else {
            0
        };
        let last_start = by_limits.max(by_pace);
        let time = self.outcomes().map_or(Some(last_start), |outcomes| outcomes.time_left(units, last_start, now))?;
        Some(time).filter(|time| *time > 0)
    }

    /// The number of units left. For a file, it is estimated from the number of unread bytes, as if unread units were
    /// as long as read units.
    fn units_left(&self, reading: &Reading) -> Option<u64> {
        match (self.total?, self.unit) {
            (Total::Units(all), _) => all.checked_sub(reading.units),
            (Total::Bytes(all), UnitName::Byte) => all.checked_sub(reading.bytes),
            (Total::Bytes(all), _) => {
                let (units, bytes) = (reading.units + reading.units_ahead, reading.bytes + reading.bytes_ahead);
                let unread = all.saturating_sub(bytes);
                let rest = self.outcomes().map_or_else(
                    || scaled(units, unread, bytes),
                    |outcomes| outcomes.commands_unread(units, bytes, unread),
                );
                (units > 0).then_some(reading.units_ahead + rest)
            }
        }
    }

    fn summary_text(&self, reading: &Reading) -> String {
        let waits: Vec<String> =
            self.limits.iter().zip(&reading.limits).map(|(l, t)| format!("{} for {l}", clock::shown(*t))).collect();
        let limits = if waits.is_empty() { "no limit".to_owned() } else { waits.join(", ") };
        let late = reading
            .lateness
            .map(|(median, p99)| format!("; late by {} (median), {} (p99)", clock::shown(median), clock::shown(p99)));
        let lines = self
            .outcomes()
            .map(|outcomes| [outcomes.not_reached(reading.sink).map(|(words, _)| words), outcomes.ran.text()]);
        let lines = lines.into_iter().flatten().flatten().map(|line| format!("  {line}\n"));
        format!(
            "throttle: {}{}\n  waited {limits}, {} for input, {} for {}{}\n{}",
            self.status_text(reading),
            self.lost_text(reading),
            clock::shown(reading.source),
            clock::shown(reading.sink),
            self.sink_name(),
            late.unwrap_or_default(),
            lines.collect::<String>(),
        )
    }

    /// The name of the resource for which units with a grant wait.
    fn sink_name(&self) -> &'static str {
        match self.outcomes() {
            None => "the reader",
            Some(outcomes) if outcomes.waits_for_room => "room for more commands (ulimit -n, -u)",
            Some(_) => "a free slot (--jobs)",
        }
    }

    fn summary_json(&self, reading: &Reading) -> serde_json::Value {
        let limits = self.limits.iter().zip(&reading.limits);
        let limits: Vec<_> =
            limits.into_iter().map(|(limit, waited)| json!({"limit": limit, "waited_ns": waited})).collect();
        let mut summary = json!({
            "unit": self.unit.singular(),
            "units": reading.units,
            "bytes": reading.bytes,
            "keys": reading.keys,
            "dropped": reading.dropped,
            "read_and_not_passed_on": reading.units_ahead,
            "elapsed_ns": reading.elapsed,
            "mean_rate_per_s": mean_rate(reading),
            "waited_for_limits_ns": reading.limits.iter().sum::<Nanos>(),
            "waited_for_source_ns": reading.source,
            "waited_for_sink_ns": reading.sink,
            "lateness_p50_ns": reading.lateness.map(|(median, _)| median),
            "lateness_p99_ns": reading.lateness.map(|(_, p99)| p99),
            "limits": limits,
        });
        let keys = self.meter.dropped_by_key();
        if !keys.is_empty() {
            let names = keys.iter().map(|(key, units)| (String::from_utf8_lossy(key), *units));
            summary["dropped_by_key"] = names.collect();
        }
        if let (Some(outcomes), Some(fields)) = (self.outcomes(), summary.as_object_mut()) {
            fields.remove("bytes");
            fields.remove("read_and_not_passed_on");
            fields.insert("commands".to_owned(), outcomes.json(reading.sink));
            fields.insert("ran_ns".to_owned(), outcomes.ran.json());
        }
        summary
    }

    pub(crate) fn outcomes(&self) -> Option<MutexGuard<'_, Outcomes>> {
        self.outcomes.as_ref().map(|outcomes| unpoisoned(outcomes.lock()))
    }

    pub(crate) fn now(&self) -> Nanos {
        self.grants.clock().now()
    }

    /// Writes a line on standard error without breaking the bar.
    pub(crate) fn aside(&self, line: impl Display) {
        self.asides(&[line]);
    }

    /// Writes several lines without other output in between.
    pub(crate) fn asides(&self, lines: &[impl Display]) {
        if !lines.is_empty() {
            self.screen().progress.aside(|| lines.iter().for_each(say));
        }
    }

    /// In launch mode: the totals, or the reason for an early end.
    fn closing_lines(&self) -> Vec<String> {
        let reading = self.read();
        let unread = self.unread(&reading);
        let Some(outcomes) = self.outcomes() else { return Vec::new() };
        let mut lines = outcomes.closing(reading.elapsed, reading.keys, unread);
        if let Some((last, (words, _))) = lines.last_mut().zip(outcomes.not_reached(reading.sink)) {
            last.extend(["; ", &words]);
        }
        lines
    }

    /// The number of commands that were not started, after a text that reports how exact the number is: `about `, for
    /// example.
    fn unread(&self, reading: &Reading) -> (&'static str, u64) {
        let unread = self.outcomes().filter(|outcomes| outcomes.unfinished.is_any()).and(self.unread.as_ref());
        let units = unread.and_then(|Unread(count)| count(reading.bytes + reading.bytes_ahead));
        if let Some((units, outcomes)) = units.zip(self.outcomes()) {
            return ("", reading.units_ahead + outcomes.commands_for(units));
        }
        match (self.units_left(reading), self.total) {
            (None, _) => ("at least ", reading.units_ahead),
            (Some(units), Some(Total::Bytes(_))) if units > reading.units_ahead => ("about ", units),
            (Some(units), _) => ("", units),
        }
    }

    /// The lock is usable after a panic in another thread, because nothing here is half done then.
    fn screen(&self) -> MutexGuard<'_, Screen> {
        unpoisoned(self.screen.lock())
    }
}

impl throttle::launch::Screen for Report {
    fn beside(&self, print: &mut dyn FnMut() -> bool) {
        if self.has_bar {
            self.screen().progress.beside(print);
        } else {
            print();
        }
    }

    fn trace(&self, words: &mut dyn Iterator<Item = Cow<'_, OsStr>>) {
        if self.outcomes().is_some_and(|outcomes| outcomes.trace) {
            let mut line = quoted(words, std::io::stderr().is_terminal());
            line.push(b'\n');
            // Best effort: an error of standard error cannot be reported.
            self.screen().progress.aside(|| drop(write_message(&mut std::io::stderr(), &line)));
        }
    }
}

/// Opens the file of the summary. This is called before anything runs, so that a wrong name is reported in time.
/// `input` is the input, if units are read.
///
/// # Errors
/// The file cannot be created, or is also the input or the output.
pub(crate) fn open_summary(reporting: &ReportFlags, input: Option<BorrowedFd<'_>>) -> Result<Option<(Format, Target)>> {
    let Some(summary) = &reporting.summary else { return Ok(None) };
    let target: Target = match &summary.file {
        None => {
            let stderr =
                std::io::stderr().as_fd().try_clone_to_owned().context("--summary: cannot duplicate standard error")?;
            (File::from(stderr), "cannot write standard error".to_owned())
        }
        Some(path) => {
            ensure_is_no_stream(path, input)?;
            let name = path.display();
            // The last report stays until this run has its own: a run that is refused writes none.
            let file = File::options().write(true).create(true).truncate(false).open(path);
            let file = file.with_context(|| format!("--summary: cannot create {name}"))?;
            (file, format!("cannot write {name}"))
        }
    };
    Ok(Some((summary.format, target)))
}

/// Empties a regular file of `--summary`. Standard error may be a regular file that has other lines.
///
/// # Errors
/// The file cannot be changed.
fn empty(target: &File) -> std::io::Result<()> {
    let is_stderr = || {
        let stats = [rustix::fs::fstat(target), rustix::fs::fstat(std::io::stderr())];
        matches!(stats, [Ok(one), Ok(other)] if are_one_file(&one, &other))
    };
    if target.metadata()?.is_file() && !is_stderr() { target.set_len(0) } else { Ok(()) }
}

/// A time in whole seconds, and from ten minutes on in whole minutes (`58m`), so that it does not flicker.
pub(super) fn countdown(nanos: Nanos) -> String {
    let step = if nanos <= 600 * SECOND { SECOND } else { 60 * SECOND };
    clock::shown_wait(nanos.div_ceil(step).saturating_mul(step))
}

#[cfg(test)]
mod tests;
