//! `--dry-run`: what would run, and when.

use super::exit::Exit;
use super::launch::{self, BUFFER, Opened};
use super::names::Names;
use super::task::{Commands, DryRun};
use super::unit_name::{UnitName, counted};
use super::{buckets, outcomes, signals};
use anyhow::{Result, anyhow};
use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use throttle::clock::{self, Clock, FakeClock, Nanos, SECOND};
use throttle::flow::framing::Buffer;
use throttle::flow::meter::Meter;
use throttle::flow::pump::{self, PumpError};
use throttle::flow::{FlowError, Source};
use throttle::launch::{Job, Outcome, Shape, Showing, Template, quoted, room_for_words};
use throttle::limits::Policy;
use throttle::store::{Memory, Supply};

/// Shows what would run, and when.
///
/// # Errors
/// What failed of our own.
pub(super) fn run(dry_run: &DryRun) -> Result<Exit> {
    launch::hint_at_unused_units(&dry_run.commands, dry_run.quiet);
    let opened = launch::source(&dry_run.commands, dry_run.quiet)?;
    let policy = buckets::policy(&dry_run.limits, Commands::check)?;
    let name = opened.name.clone();
    match show(&dry_run.commands, &policy, opened) {
        Ok(()) => Ok(Exit::Success),
        Err(PumpError::Flow(FlowError::Write(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(signals::die_of_broken_pipe())
        }
        Err(PumpError::Flow(FlowError::Write(error))) => Err(anyhow!(error).context("cannot write to standard output")),
        Err(error) => Err(launch::failed(error, &name)),
    }
}

/// The same pump on a clock that does not wait.
fn show(commands: &Commands, policy: &Policy, opened: Opened) -> Result<(), PumpError> {
    let clock = FakeClock::default();
    let supply = Supply::new(Box::new(Memory::new(policy, clock.clone())));
    let meter = Meter::new(0, policy.len());
    let out = RefCell::new(io::BufWriter::new(io::stdout()));
    let (mut shown, names) = (Shown::default(), Names::new(commands, false));
    let (Commands { template, shape, .. }, room) = (commands, room_for_words());
    let on_terminal = io::stdout().is_terminal();
    let show = |job: &Job| {
        let mut out = out.borrow_mut();
        shown.last = clock.now();
        if let Some(outcome) = cannot_run(template, job, room) {
            shown.failed += 1;
            let lines = names.each(job, &outcomes::unfit(job, &outcome));
            return lines.iter().try_for_each(|line| writeln!(out, "# {line}  # {}", clock::shown(shown.last)));
        }
        shown.count += 1;
        out.write_all(&quoted(template.fill(&job.units), on_terminal))?;
        write_rest(&mut *out, job, *shape, shown.last)
    };
    let source = AfterShowing { source: opened.source, out: &out };
    let mut flow = Showing::new(source, Buffer::new(commands.framing, BUFFER), *shape, template, show);
    pump::run(&mut flow, &supply, &meter)?;
    let skipped = flow.skipped();
    drop(flow);
    let mut out = out.into_inner();
    let written = write_total(&mut out, policy, &shown, skipped).and_then(|()| out.flush());
    written.map_err(|error| PumpError::Flow(FlowError::Write(error)))
}

/// A source that shows what is known before it waits for more.
struct AfterShowing<'a, S, W: Write> {
    source: S,
    out: &'a RefCell<W>,
}

impl<S: Source, W: Write> Source for AfterShowing<'_, S, W> {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        // If this fails, so does the next write.
        let _ = self.out.borrow_mut().flush();
        self.source.read(space, wait)
    }
}

#[derive(Debug, Default)]
struct Shown {
    count: u64,
    /// Those that cannot be run.
    failed: u64,
    last: Nanos,
}

/// Why it cannot be run, if that is known before it runs.
fn cannot_run(template: &Template, job: &Job, room: usize) -> Option<Outcome> {
    job.refused().or_else(|| (!template.fill(&job.units).fit(room)).then_some(Outcome::TooLong))
}

/// The time, after a `#`, so that the line can be pasted into a shell.
fn write_rest(out: &mut impl Write, job: &Job, shape: Shape, time: Nanos) -> io::Result<()> {
    let input = if shape.to_stdin { " < its unit" } else { "" };
    let name =
        if shape.to_stdin { String::from_utf8_lossy(job.name()).escape_debug().to_string() } else { String::new() };
    let space = if name.is_empty() { "" } else { " " };
    writeln!(out, "  # {}{input}{space}{name}", clock::shown(time))
}

fn write_total(out: &mut impl Write, policy: &Policy, shown: &Shown, skipped: u64) -> io::Result<()> {
    let failed = if shown.failed > 0 { format!(", {} that cannot be run", shown.failed) } else { String::new() };
    let blank = if skipped > 0 { format!(", {} skipped", counted(skipped, "blank line")) } else { String::new() };
    let time = clock::shown(shown.last);
    writeln!(out, "# {} in {time}{failed}{blank}", UnitName::Command.count(shown.count))?;
    for place in 0..policy.len() {
        let (most, period) = policy.most_in_its_period(place);
        writeln!(out, "# {}: at most {most} in any {}", policy.describe(place), period_name(period))?;
    }
    Ok(())
}

fn period_name(nanos: Nanos) -> String {
    match nanos {
        SECOND => "second".to_owned(),
        60_000_000_000 => "minute".to_owned(),
        3_600_000_000_000 => "hour".to_owned(),
        86_400_000_000_000 => "day".to_owned(),
        _ => clock::shown(nanos),
    }
}
