//! `--dry-run`: the commands that would run or the units that would leave, and when.

use super::buckets::{self, Opened};
use super::done::Done;
use super::exit::Exit;
use super::launch::{self, BUFFER};
use super::names::{Names, shown};
use super::task::{Commands, Launch, Pipe};
use super::unit_name::{UnitName, blank_skipped, counted, nonzero, size_at_least};
use super::{failure, input, records, say::say, signals};
use anyhow::{Result, anyhow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::iter;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use throttle::flow::framing::{Buffer, Framing, LARGEST};
use throttle::flow::meter::Meter;
use throttle::flow::pump::{self, PumpError};
use throttle::flow::{Copying, Descriptor, Flow, FlowError, Grants, Silent, Sink, Sorted, Sorting, Source};
use throttle::launch::{DryRun, Job, Known, Outcome, Shape, Template, quoted, room_for_words};
use throttle_limits::clock::{self, FakeClock, NanoClock, Nanos, SECOND, in_nanos};
use throttle_limits::limits::Policy;
use throttle_limits::line::NO_KEY;

/// Prints the commands that would run, and when.
///
/// # Errors
/// throttle itself failed.
pub(super) fn of_commands(launch: &Launch) -> Result<Exit> {
    let Launch { limits, commands, flags, reporting, call: _ } = launch;
    if !reporting.quiet {
        launch::hint_at_words(commands, flags);
    }
    let opened = launch::source(commands, reporting)?;
    let known = flags.again.done.as_ref().map(|path| {
        records::ensure_is_no_input(path, opened.source.fd())?;
        Done::read(path, records::delimiter(commands.framing)).map(|taken| taken.known(reporting.quiet))
    });
    // The real costs of commands are unknown, so each command is shown at its requested cost.
    let limits = buckets::open_stream(limits, launch.stream(), true, |policy| launch.check(policy))?;
    let until = flags.again.stop_after.map_or(Nanos::MAX, in_nanos);
    let plan = Plan { until, ..Plan::new(limits) };
    ended(plan.commands(commands, opened.source, known.transpose()?), &opened.name)
}

/// Prints the units that would leave, and when.
///
/// # Errors
/// throttle itself failed.
pub(super) fn of_units(pipe: &Pipe) -> Result<Exit> {
    let Pipe { limits, input: flags, reporting, .. } = pipe;
    let input = input::open(flags.file())?;
    let limits = buckets::open_stream(limits, pipe.stream(), true, |policy| pipe.framing(policy).map(drop))?;
    let framing = pipe.framing(&limits.policy).map_err(|error| anyhow!(error))?;
    input.remark(UnitName::of(framing).plural(), reporting).into_iter().for_each(say);
    ended(Plan::new(limits).units(framing, Descriptor(input.fd)), &input.name)
}

fn ended(result: Result<(), PumpError>, name: &str) -> Result<Exit> {
    match result {
        Ok(()) => Ok(Exit::Success),
        Err(PumpError::Flow(FlowError::Write(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(signals::die_of_broken_pipe())
        }
        Err(PumpError::Flow(FlowError::Write(error))) => Err(anyhow!(error).context("cannot write to standard output")),
        Err(error) => Err(launch::failed(error, name)),
    }
}

/// A run of the pump on a clock that does not wait.
struct Plan {
    policy: Policy,
    clock: FakeClock,
    /// The clock's time at the beginning.
    began: Nanos,
    /// The latest time of a start, counted from the beginning.
    until: Nanos,
    meter: Meter,
    sorting: Sorting,
    keys: RefCell<Keys>,
}

impl Plan {
    fn new(Opened { policy, sorting, .. }: Opened) -> Self {
        let meter = Meter::new(0, policy.len());
        let began = sorting.found.as_ref().map_or(0, |found| found.now);
        let (clock, keys) = (FakeClock::at(Duration::from_nanos(began)), RefCell::default());
        Plan { policy, clock, began, until: Nanos::MAX, meter, sorting, keys }
    }

    fn commands(&self, commands: &Commands, source: impl Source, known: Option<Known>) -> Result<(), PumpError> {
        let (Commands { template, shape, .. }, room) = (commands, room_for_words());
        let (names, on_terminal) = (Names::new(commands, u64::MAX), io::stdout().is_terminal());
        let (mut count, mut failed) = (0, 0);
        let show = |job: &Job, refused: Option<Outcome>| {
            let (mut out, time) = (io::stdout(), self.now());
            if time > self.until {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(outcome) = refused.or_else(|| cannot_run(template, job, room)) {
                failed += 1;
                let lines = names.each(job, &failure::unfit(job, &outcome));
                lines.iter().try_for_each(|line| writeln!(out, "# {line}  # {}", clock::shown(time)))?;
                return Ok(ControlFlow::Continue(()));
            }
            count += 1;
            if self.sorting.is_sorted {
                self.keys.borrow_mut().count(job.key.as_deref(), time);
            }
            out.write_all(&quoted(template.fill(&job.units), on_terminal))?;
            write_rest(&mut out, job, *shape, time).map(ControlFlow::Continue)
        };
        let batches = launch::batches(commands, source, known, self.sorting.look.clone());
        let mut flow = DryRun { batches, show, is_over: false, ahead: self.sorting.ahead };
        self.pump(&mut flow)?;
        if flow.is_over {
            // The run ends at the time of --stop-after.
            self.clock.set(Duration::from_nanos(self.began + self.until));
        }
        let (skipped, done_before) = (flow.batches.skipped(), flow.batches.done_before());
        drop(flow);
        let more = nonzero([
            (failed, "that cannot be run".to_owned()),
            (done_before, "done before".to_owned()),
            (skipped, blank_skipped(skipped)),
        ]);
        self.write_total(&UnitName::Command.count(count), &more)
    }

    fn units(&self, framing: Framing, source: impl Source) -> Result<(), PumpError> {
        let mut beginning = Vec::new();
        let sink = UnitLines { framing, beginning: &mut beginning, plan: self };
        let look = &self.sorting.look;
        if self.sorting.is_sorted {
            let clock = (&self.clock as &dyn NanoClock, true);
            let mut flow = Sorted::new(source, sink, framing, &self.sorting, clock, &self.meter, |_| ());
            self.pump(&mut flow)?;
        } else {
            let most = if look.looks_inside() { LARGEST } else { BUFFER };
            let buffer = Buffer::new(framing, BUFFER).growing(most);
            let mut flow = Copying::new(source, sink, buffer, look.clone(), &self.meter);
            self.pump(&mut flow)?;
        }
        if !beginning.is_empty() {
            self.write_unit(&mut beginning).map_err(FlowError::Write)?;
        }
        let reading = self.meter.read(0);
        let more = nonzero([(reading.dropped, "dropped")]);
        self.write_total(&UnitName::of(framing).count(reading.units), &more)
    }

    /// The time since the beginning.
    fn now(&self) -> Nanos {
        self.clock.now() - self.began
    }

    fn pump<F: Flow>(&self, flow: &mut F) -> Result<(), PumpError> {
        let line = self.sorting.begin(self.began);
        let grants = Grants::new(line, Arc::new(self.clock.clone()), None, self.sorting.has_keys);
        pump::run(flow, &grants, &Silent, &self.meter)
    }

    fn write_unit(&self, beginning: &mut Vec<u8>) -> io::Result<()> {
        let unit = shown(&std::mem::take(beginning));
        writeln!(io::stdout(), "{unit}  # {}", clock::shown(self.now()))
    }

    fn write_total(&self, count: &str, more: &str) -> Result<(), PumpError> {
        let out = &mut io::stdout();
        let mut write = || {
            writeln!(out, "# {count} in {}{more}", clock::shown(self.now()))?;
            self.write_limits(out)?;
            self.keys.borrow().write(out)?;
            out.flush()
        };
        write().map_err(|error| PumpError::Flow(FlowError::Write(error)))
    }

    /// Writes the most units that each limit lets through.
    fn write_limits(&self, out: &mut impl Write) -> io::Result<()> {
        let of_each = self.sorting.each.iter().map(|(policy, _)| policy);
        let per = self.sorting.look.per.as_ref();
        let each = per.map(|per| format!(" for each {per}")).unwrap_or_default();
        let named = !self.sorting.named.is_empty();
        let each = if named { format!("{each} without a rate of its own") } else { each };
        let mut policies = iter::once((&self.policy, "")).chain(of_each.map(|policy| (policy, &each[..])));
        policies
            .try_for_each(|(policy, each)| (0..policy.len()).try_for_each(|place| write_most(out, policy, place, each)))
    }

    /// Counts a unit that leaves now. If there are keys, `unit` is a whole unit.
    fn count_key(&self, unit: &[u8]) {
        if let Some(per) = &self.sorting.look.per {
            self.keys.borrow_mut().count(per.key(unit).as_deref(), self.now());
        }
    }
}

/// The most keys that are counted.
const MAX_KEYS: usize = 1_000_000;

/// For each key, the number of its units that run or leave, and the time of its last unit.
#[derive(Debug, Default)]
struct Keys(BTreeMap<Box<[u8]>, (u64, Nanos)>);

impl Keys {
    /// Counts a unit of `key` that leaves at `time`.
    fn count(&mut self, key: Option<&[u8]>, time: Nanos) {
        let key = key.unwrap_or(NO_KEY);
        if let Some((units, last)) = self.0.get_mut(key) {
            (*units, *last) = (*units + 1, time);
        } else if self.0.len() < MAX_KEYS {
            self.0.insert(key.into(), (1, time));
        }
    }

    /// `# 214 keys; longest: 'big.example', 5012 units, 1h 23m`
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Some((key, (units, last))) = self.0.iter().max_by_key(|(_, (_, last))| *last) else { return Ok(()) };
        let (keys, units) = (counted(self.0.len() as u64, "key"), counted(*units, "unit"));
        writeln!(out, "# {keys}; longest: '{}', {units}, {}", shown(key), clock::shown(*last))
    }
}

/// A sink that prints a line for each unit: the beginning of the unit, and its time. Units that are bytes are only
/// counted.
struct UnitLines<'a> {
    framing: Framing,
    /// The part of the current unit that is shown.
    beginning: &'a mut Vec<u8>,
    plan: &'a Plan,
}

impl Sink for UnitLines<'_> {
    fn ready(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Framing::EndedBy(end) = self.framing else { return Ok(bytes.len()) };
        for piece in bytes.split_inclusive(|byte| *byte == end) {
            let room = SHOWN_BYTES.saturating_sub(self.beginning.len());
            let unit = piece.strip_suffix(&[end]).unwrap_or(piece);
            self.beginning.extend(unit.iter().take(room));
            self.plan.count_key(unit);
            if piece.ends_with(&[end]) {
                self.plan.write_unit(self.beginning)?;
            }
        }
        Ok(bytes.len())
    }
}

/// The bytes kept of a unit: more than are ever shown.
const SHOWN_BYTES: usize = 512;

/// Why the job cannot run, if that is known before it starts.
fn cannot_run(template: &Template, job: &Job, room: usize) -> Option<Outcome> {
    job.refused().or_else(|| (!template.fits(&job.units, room)).then_some(Outcome::TooLong))
}

/// Writes the time after a `#`, so that the line can be pasted into a shell.
fn write_rest(out: &mut impl Write, job: &Job, shape: Shape, time: Nanos) -> io::Result<()> {
    let input = if shape.to_stdin { " < its unit" } else { "" };
    let name =
        if shape.to_stdin { String::from_utf8_lossy(job.name()).escape_debug().to_string() } else { String::new() };
    let space = if name.is_empty() { "" } else { " " };
    writeln!(out, "  # {}{input}{space}{name}", clock::shown(time))
}

/// `# 5/s,burst=5 for each host: at most 9 in any second`. A unit that costs more than the burst waits until the rate
/// has paid the part above the burst. So this part comes on top of the number.
fn write_most(out: &mut impl Write, policy: &Policy, place: usize, each: &str) -> io::Result<()> {
    let (most, period) = policy.most_in_its_period(place);
    let (limit, period) = (policy.describe(place), period_name(period));
    let most = if policy.counts_bytes() { size_at_least(most, policy.is_binary()) } else { most.to_string() };
    let more = if policy.cost(place).is_some() && policy.has_burst(place) {
        ", plus the part of one unit's cost above the burst"
    } else {
        ""
    };
    writeln!(out, "# {limit}{each}: at most {most} in any {period}{more}")
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
