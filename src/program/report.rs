//! What the user is told about the work: the status line, the bar and the summary, all from the meter.

use super::flags::{Flags, Format, Summary};
use super::progress::{Progress, Shown};
use super::say;
use super::tally::Tally;
use anyhow::{Context, Result};
use serde_json::json;
use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use throttle::clock::{Nanos, SECOND};
use throttle::framing::Framing;
use throttle::meter::{Meter, Reading};
use throttle::store::Store;

/// What a unit is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitName {
    Line,
    Record,
    Byte,
    Command,
}

impl UnitName {
    pub(crate) fn of(framing: Framing) -> Self {
        match framing {
            Framing::Bytes => UnitName::Byte,
            Framing::EndedBy(b'\n') => UnitName::Line,
            Framing::EndedBy(_) => UnitName::Record,
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            UnitName::Line => "lines",
            UnitName::Record => "records",
            UnitName::Byte => "bytes",
            UnitName::Command => "commands",
        }
    }

    fn count(self, units: u64) -> String {
        let plural = self.plural();
        format!("{units} {}", if units == 1 { plural.trim_end_matches('s') } else { plural })
    }
}

/// All there is to do, where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    Bytes(u64),
    Units(u64),
}

/// Where the limits live, whichever it is.
pub(crate) type AnyStore = dyn Store + Send + Sync;

/// The meter, the limits it is read against, and where it is told.
#[derive(Debug)]
pub(crate) struct Report {
    unit: UnitName,
    total: Option<Total>,
    /// In launch mode.
    tally: Option<Mutex<Tally>>,
    limits: Vec<String>,
    store: Box<AnyStore>,
    meter: Meter,
    tick_every: Option<Duration>,
    screen: Mutex<Screen>,
}

/// What may write to standard error while the pump runs.
#[derive(Debug)]
struct Screen {
    progress: Progress,
    recent: Recent,
    closed: bool,
    /// Until it is written.
    summary: Option<(Format, Target)>,
}

#[derive(Debug)]
enum Target {
    StandardError,
    File(File, String),
}

impl Report {
    /// A report on units called `unit`.
    ///
    /// # Errors
    /// The summary's file cannot be created.
    pub(crate) fn new(flags: &Flags, unit: UnitName, total: Option<Total>, store: Box<AnyStore>) -> Result<Self> {
        let plan = flags.plan();
        let meter = Meter::new(store.clock().now(), plan.len());
        let summary = flags.summary().map(open).transpose()?;
        let progress = Progress::new(flags, total);
        let tick_every = progress.interval();
        let screen = Mutex::new(Screen { progress, recent: Recent::default(), closed: false, summary });
        let limits = (0..plan.len()).map(|place| plan.describe(place)).collect();
        Ok(Report { unit, total, tally: None, limits, store, meter, tick_every, screen })
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn store(&self) -> &AnyStore {
        &*self.store
    }

    /// Units so far, in words.
    pub(crate) fn count(&self) -> String {
        self.unit.count(self.read().units)
    }

    /// How often [`tick`](Self::tick) wants to be called.
    pub(crate) fn tick_every(&self) -> Option<Duration> {
        self.tick_every
    }

    /// Brings the progress shown up to date, unless somebody is writing beside it, who may take long.
    pub(crate) fn tick(&self) {
        let Ok(mut screen) = self.screen.try_lock() else { return };
        if screen.progress.interval().is_some() {
            let reading = self.read();
            let now = screen.recent.rate(reading.elapsed, reading.units);
            let done = if self.unit == UnitName::Command { reading.units } else { reading.bytes };
            let shown = Shown { text: self.progress_text(&reading, now), done };
            screen.progress.show(&shown, reading.elapsed);
        }
    }

    /// Writes the status line.
    pub(crate) fn status(&self) {
        let reading = self.read();
        let text = format!("{}{}", self.status_text(&reading), self.left_text(&reading));
        self.screen().progress.aside(|| say(text));
    }

    /// Gives back what was not used, takes the bar away and writes the summary, the first time it is called.
    ///
    /// # Errors
    /// The summary cannot be written.
    pub(crate) fn close(&self) -> Result<()> {
        self.store.retire();
        let mut screen = self.screen();
        let lines = if screen.closed { Vec::new() } else { self.closing_lines() };
        if !lines.is_empty() {
            // That ends a line which a command has left open.
            screen.progress.aside(|| ());
        }
        screen.progress.close();
        if std::mem::replace(&mut screen.closed, true) {
            return Ok(());
        }
        lines.iter().for_each(say);
        let Some((format, target)) = screen.summary.take() else { return Ok(()) };
        let text = match format {
            Format::Text => self.summary_text(&self.read()),
            Format::Json => format!("{}\n", self.summary_json(&self.read())),
        };
        match target {
            Target::StandardError => std::io::stderr().write_all(text.as_bytes()).context("--summary: standard error"),
            Target::File(mut file, name) => {
                file.write_all(text.as_bytes()).with_context(|| format!("--summary: cannot write {name}"))
            }
        }
    }

    /// Closes on the way to an end that is already decided: what goes wrong is told and changes nothing.
    pub(crate) fn close_or_say(&self) {
        if let Err(error) = self.close() {
            say(format_args!("{error:#}"));
        }
    }

    pub(crate) fn read(&self) -> Reading {
        self.meter.read(self.now())
    }

    /// `12 lines, 340 B`
    fn count_text(&self, reading: &Reading) -> String {
        match self.unit {
            UnitName::Byte => size(reading.bytes),
            UnitName::Command => self.tally().map(|tally| tally.counts()).unwrap_or_default(),
            unit => format!("{}, {}", unit.count(reading.units), size(reading.bytes)),
        }
    }

    fn status_text(&self, reading: &Reading) -> String {
        format!("{} in {}, {}", self.count_text(reading), time(reading.elapsed), rate(self.unit, mean_rate(reading)))
    }

    /// The rate now, beside what is allowed. What matters least comes last: a narrow terminal cuts it off.
    fn progress_text(&self, reading: &Reading, per_second: f64) -> String {
        let limit =
            if self.limits.is_empty() { "no limit".to_owned() } else { format!("limit {}", self.limits.join(" and ")) };
        let (count, rate, left) = (self.count_text(reading), rate(self.unit, per_second), self.left_text(reading));
        format!("{count}, {rate} now{left}, {limit}")
    }

    /// `, 7 s left`
    fn left_text(&self, reading: &Reading) -> String {
        self.time_left(reading).map(|left| format!(", {} left", countdown(left))).unwrap_or_default()
    }

    /// By the schedule, where the number of units is known.
    fn time_left(&self, reading: &Reading) -> Option<Nanos> {
        let total = match (self.total?, self.unit) {
            (Total::Bytes(bytes), UnitName::Byte) => bytes,
            (Total::Units(units), _) => units,
            (Total::Bytes(_), _) => return None,
        };
        let left = total.checked_sub(reading.units).filter(|left| *left > 0)?;
        let end = self.store.schedule(left)?;
        Some(end.saturating_sub(self.now()))
    }

    fn summary_text(&self, reading: &Reading) -> String {
        let waits: Vec<String> =
            self.limits.iter().zip(&reading.limits).map(|(l, t)| format!("{} for {l}", time(*t))).collect();
        let limits = if waits.is_empty() { "no limit".to_owned() } else { waits.join(", ") };
        let late =
            reading.lateness.map(|(median, p99)| format!("; late by {} (median), {} (p99)", time(median), time(p99)));
        format!(
            "throttle: {}\n  waited {limits}, {} for input, {} for {}{}\n",
            self.status_text(reading),
            time(reading.source),
            time(reading.sink),
            if self.unit == UnitName::Command { "a free slot (--jobs)" } else { "the reader" },
            late.unwrap_or_default(),
        )
    }

    fn summary_json(&self, reading: &Reading) -> serde_json::Value {
        let limits = self.limits.iter().zip(&reading.limits);
        let limits: Vec<_> =
            limits.into_iter().map(|(limit, waited)| json!({"limit": limit, "waited_ns": waited})).collect();
        let mut summary = json!({
            "unit": self.unit.plural().trim_end_matches('s'),
            "units": reading.units,
            "bytes": reading.bytes,
            "elapsed_ns": reading.elapsed,
            "mean_rate_per_s": mean_rate(reading),
            "waited_for_limits_ns": reading.limits.iter().sum::<Nanos>(),
            "waited_for_source_ns": reading.source,
            "waited_for_sink_ns": reading.sink,
            "lateness_p50_ns": reading.lateness.map(|(median, _)| median),
            "lateness_p99_ns": reading.lateness.map(|(_, p99)| p99),
            "limits": limits,
        });
        if let (Some(tally), Some(fields)) = (self.tally(), summary.as_object_mut()) {
            fields.remove("bytes");
            fields.insert("commands".to_owned(), tally.json());
        }
        summary
    }

    /// A report on commands.
    pub(crate) fn with_tally(mut self, tally: Tally) -> Self {
        self.tally = Some(Mutex::new(tally));
        self
    }

    pub(crate) fn tally(&self) -> Option<MutexGuard<'_, Tally>> {
        self.tally.as_ref().map(|tally| tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn now(&self) -> Nanos {
        self.store.clock().now()
    }

    /// A line on standard error that does not tear the bar.
    pub(crate) fn aside(&self, line: impl Display) {
        self.screen().progress.aside(|| say(line));
    }

    /// Has `write` write where the bar, if there is one, stands. It says whether it has left a line open on the terminal.
    pub(crate) fn beside_bar(&self, write: impl FnOnce() -> bool) {
        let mut screen = self.screen();
        if screen.progress.is_a_bar() {
            screen.progress.beside(write);
        } else {
            drop(screen);
            write();
        }
    }

    /// The same, of bytes that may be no text.
    pub(crate) fn aside_bytes(&self, line: &[u8]) {
        let line = [line, b"\n"].concat();
        // If that cannot be written, there is nobody to tell.
        self.screen().progress.aside(|| drop(std::io::stderr().write_all(&line)));
    }

    /// In launch mode the sum, or what was interrupted.
    fn closing_lines(&self) -> Vec<String> {
        let elapsed = self.read().elapsed;
        self.tally().map(|tally| tally.closing(elapsed)).unwrap_or_default()
    }

    /// What is written here is only a picture; a panic elsewhere does not spoil it.
    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rate of the last seconds: pairs of time and units, oldest first.
#[derive(Debug, Default)]
struct Recent(VecDeque<(Nanos, u64)>);

impl Recent {
    const SPAN: Nanos = 2 * SECOND;

    /// Units per second since about [`SPAN`](Self::SPAN) ago.
    #[allow(clippy::cast_precision_loss, reason = "only shown")]
    fn rate(&mut self, now: Nanos, units: u64) -> f64 {
        while self.0.len() > 1 && self.0[1].0 + Self::SPAN <= now {
            self.0.pop_front();
        }
        let (since, before) = self.0.front().copied().unwrap_or((0, 0));
        self.0.push_back((now, units));
        let elapsed = now.saturating_sub(since).max(1);
        (units - before) as f64 * SECOND as f64 / elapsed as f64
    }
}

/// Opened before anything runs, so that a wrong name is told in time.
fn open(summary: &Summary) -> Result<(Format, Target)> {
    let Some(path) = &summary.file else { return Ok((summary.format, Target::StandardError)) };
    let name = path.display().to_string();
    let file = File::create(path).with_context(|| format!("--summary: cannot create {name}"))?;
    Ok((summary.format, Target::File(file, name)))
}

/// Units per second over the whole time.
#[allow(clippy::cast_precision_loss, reason = "only shown")]
fn mean_rate(reading: &Reading) -> f64 {
    if reading.elapsed == 0 { 0.0 } else { reading.units as f64 * SECOND as f64 / reading.elapsed as f64 }
}

/// `123/s`, `1.50 MB/s`.
fn rate(unit: UnitName, per_second: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only shown, and not negative")]
    let whole = per_second as u64;
    match (unit, whole) {
        (UnitName::Byte, _) => format!("{}/s", size(whole)),
        (_, 100..) => format!("{per_second:.0}/s"),
        (_, 10..) => format!("{per_second:.1}/s"),
        _ => format!("{per_second:.2}/s"),
    }
}

/// `1.50 MB`
fn size(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

/// To three digits, or to the second beyond a minute.
fn time(nanos: Nanos) -> String {
    #[allow(clippy::cast_precision_loss, reason = "only shown")]
    let value = nanos as f64;
    match nanos {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} µs", digits(value / 1e3)),
        1_000_000..SECOND => format!("{} ms", digits(value / 1e6)),
        SECOND..60_000_000_000 => format!("{} s", digits(value / 1e9)),
        _ => humantime::format_duration(Duration::from_secs(nanos / SECOND)).to_string(),
    }
}

/// Whole seconds, so that it does not flicker.
fn countdown(nanos: Nanos) -> String {
    match nanos.div_ceil(SECOND) {
        seconds @ ..60 => format!("{seconds} s"),
        seconds => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests;
