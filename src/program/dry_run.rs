//! `--dry-run`: what would run or leave, and when.

use super::args::{Limits, Stream};
use super::done::Done;
use super::exit::Exit;
use super::launch::{self, BUFFER};
use super::names::{Names, shown};
use super::task::{Commands, Launch, Pipe};
use super::unit_name::{UnitName, blank_skipped, counted, nonzero, size_at_least};
use super::{buckets, failure, input, records, say::say, signals};
use anyhow::{Result, anyhow};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::iter;
use std::sync::Arc;
use throttle::flow::framing::{Buffer, Framing, LARGEST};
use throttle::flow::meter::Meter;
use throttle::flow::pump::{self, PumpError};
use throttle::flow::{Copying, Descriptor, Flow, FlowError, Look, Sink, Sorted, Sorting, Source};
use throttle::launch::{Job, Known, Outcome, Preview, Shape, Template, quoted, room_for_words};
use throttle_limits::clock::{self, Clock, FakeClock, Nanos, SECOND, in_nanos};
use throttle_limits::limits::Policy;
use throttle_limits::line::NO_KEY;
use throttle_limits::store::{Memory, Store, StoreError, Supply, View};

/// Shows what would run, and when.
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
    let policy = buckets::policy(limits, |policy| launch.check(policy))?;
    // What commands really cost is not known, so each is shown at the price of its request.
    let sorting = sorted(limits, &policy, Stream { settles: false, ..launch.stream() })?;
    let until = flags.again.stop_after.map_or(Nanos::MAX, in_nanos);
    let plan = Plan { until, ..Plan::new(limits, policy, sorting) };
    ended(plan.commands(commands, opened.source, known.transpose()?), &opened.name)
}

/// Shows which units would leave, and when.
///
/// # Errors
/// throttle itself failed.
pub(super) fn of_units(pipe: &Pipe) -> Result<Exit> {
    let Pipe { limits, input: flags, reporting, .. } = pipe;
    let input = input::open(flags.file())?;
    let policy = buckets::policy(limits, |policy| pipe.framing(policy).map(drop))?;
    let framing = flags.framing(&policy).map_err(|error| anyhow!(error))?;
    input.remark(UnitName::of(framing).plural(), reporting).into_iter().for_each(say);
    let sorting = sorted(limits, &policy, pipe.stream())?;
    ended(Plan::new(limits, policy, sorting).units(framing, Descriptor(input.fd)), &input.name)
}

/// How units are sorted. The plan keeps the limits of a bucket's keys itself, and nothing runs.
fn sorted(limits: &Limits, policy: &Policy, stream: Stream) -> Result<Option<Sorting>> {
    let sorting = limits.sorting(policy, stream).map_err(|error| anyhow!(error))?;
    Ok(sorting.map(|sorting| Sorting { shared: None, jobs: None, ..sorting }))
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

/// The same pump as in a run, on a clock that does not wait.
struct Plan {
    policy: Policy,
    /// What the bucket holds now, if there is one.
    found: Option<Arc<View>>,
    look: Look,
    clock: FakeClock,
    /// The time on the clock at the beginning.
    began: Cell<Nanos>,
    /// Nothing starts later than this after the beginning.
    until: Nanos,
    meter: Meter,
    sorting: Option<Sorting>,
    keys: RefCell<Keys>,
}

impl Plan {
    fn new(limits: &Limits, policy: Policy, mut sorting: Option<Sorting>) -> Self {
        let look = buckets::look_of(&policy, sorting.as_ref());
        let meter = Meter::new(0, policy.len());
        let found = buckets::found(limits).filter(|view| view.policy == policy).map(Arc::new);
        // The order of units begins with the state that was found, at its time.
        let began = sorting.as_ref().and(found.as_ref()).map_or(0, |found| found.now);
        if let Some(sorting) = &mut sorting {
            sorting.found.clone_from(&found);
        }
        let (clock, began, keys) = (FakeClock::at(began), Cell::new(began), RefCell::default());
        Plan { policy, found, look, clock, began, until: Nanos::MAX, meter, sorting, keys }
    }

    fn commands(&self, commands: &Commands, source: impl Source, known: Option<Known>) -> Result<(), PumpError> {
        let (Commands { template, shape, .. }, room) = (commands, room_for_words());
        let (names, on_terminal) = (Names::new(commands, u64::MAX), io::stdout().is_terminal());
        let (mut count, mut failed, is_stopped) = (0, 0, Cell::new(false));
        let show = |job: &Job, refused: Option<Outcome>| {
            let (mut out, time) = (io::stdout(), self.now());
            if time > self.until {
                is_stopped.set(true);
                return Err(io::Error::other("--stop-after"));
            }
            if let Some(outcome) = refused.or_else(|| cannot_run(template, job, room)) {
                failed += 1;
                let lines = names.each(job, &failure::unfit(job, &outcome));
                return lines.iter().try_for_each(|line| writeln!(out, "# {line}  # {}", clock::shown(time)));
            }
            count += 1;
            if self.sorting.is_some() {
                self.keys.borrow_mut().count(job.key.as_deref(), time);
            }
            out.write_all(&quoted(template.fill(&job.units), on_terminal))?;
            write_rest(&mut out, job, *shape, time)
        };
        let by_key = self.sorting.as_ref().map(|sorting| {
            let clock: &dyn Clock = &self.clock;
            (RefCell::new(sorting.begin(clock.now())), clock, sorting.ahead)
        });
        let mut flow = Preview { batches: launch::batches(commands, source, known, self.look.clone()), show, by_key };
        self.pump_until_stopped(&mut flow, &is_stopped)?;
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
        if let Some(sorting) = &self.sorting {
            let clock = (&self.clock as &dyn Clock, true);
            let mut flow = Sorted::new(source, sink, framing, sorting, clock, &self.meter, |_| ());
            self.pump(&mut flow)?;
        } else {
            let most = if self.look.looks_inside() { LARGEST } else { BUFFER };
            let buffer = Buffer::new(framing, BUFFER).growing(most);
            let flow = Copying::new(source, sink, buffer, &self.meter);
            self.pump(&mut flow.looked_into(self.look.clone()))?;
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
        self.clock.now() - self.began.get()
    }

    /// If it was stopped, that was at the time after which nothing starts.
    fn pump_until_stopped(&self, flow: &mut impl Flow, is_stopped: &Cell<bool>) -> Result<(), PumpError> {
        match self.pump(flow) {
            Err(PumpError::Flow(FlowError::Write(_))) if is_stopped.get() => {
                self.clock.set(self.began.get() + self.until);
                Ok(())
            }
            result => result,
        }
    }

    fn pump(&self, flow: &mut impl Flow) -> Result<(), PumpError> {
        // The order of units keeps their limits.
        let policy = if self.sorting.is_some() { Policy::default() } else { self.policy.clone() };
        let store = Memory::new(&policy, self.clock.clone());
        match &self.found {
            Some(found) if self.sorting.is_some() => store.hold_until(found.paused_until.unwrap_or(0))?,
            Some(found) => self.began.set(begin_as(found, &store, &self.clock)?),
            None => {}
        }
        let supply = Supply::new(Box::new(store));
        pump::run(flow, &supply, &self.meter)
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

    /// The most that each limit lets through.
    fn write_limits(&self, out: &mut impl Write) -> io::Result<()> {
        let of_each = self.sorting.iter().flat_map(|sorting| sorting.each.iter().map(|(policy, _)| policy));
        let per = self.sorting.as_ref().and_then(|sorting| sorting.look.per.as_ref());
        let each = per.map(|per| format!(" for each {per}")).unwrap_or_default();
        let named = self.sorting.as_ref().is_some_and(|sorting| !sorting.named.is_empty());
        let each = if named { format!("{each} without a rate of its own") } else { each };
        let mut policies = iter::once((&self.policy, "")).chain(of_each.map(|policy| (policy, &each[..])));
        policies
            .try_for_each(|(policy, each)| (0..policy.len()).try_for_each(|place| write_most(out, policy, place, each)))
    }

    /// Counts a unit that leaves now. Where there are keys, each is there as a whole.
    fn count_key(&self, unit: &[u8]) {
        if let Some(per) = self.sorting.as_ref().and_then(|sorting| sorting.look.per.as_ref()) {
            self.keys.borrow_mut().count(per.key(unit).as_deref(), self.now());
        }
    }
}

/// The most keys that are counted.
const MOST_KEYS: usize = 1_000_000;

/// How many units of each key run or leave, and when the last of them does.
#[derive(Debug, Default)]
struct Keys(BTreeMap<Box<[u8]>, (u64, Nanos)>);

impl Keys {
    /// A unit of `key` leaves at `time`.
    fn count(&mut self, key: Option<&[u8]>, time: Nanos) {
        let key = key.unwrap_or(NO_KEY);
        if let Some((units, last)) = self.0.get_mut(key) {
            (*units, *last) = (*units + 1, time);
        } else if self.0.len() < MOST_KEYS {
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

/// A sink that shows a line for each unit, with its beginning and its time; none for bytes, which are only counted.
struct UnitLines<'a> {
    framing: Framing,
    /// As much of the current unit as is shown.
    beginning: &'a mut Vec<u8>,
    plan: &'a Plan,
}

impl Sink for UnitLines<'_> {
    fn ready(&mut self) -> io::Result<()> {
        Ok(())
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

/// More bytes of a unit than are ever shown.
const SHOWN_BYTES: usize = 512;

/// Why it cannot be run, if that is known before it runs.
fn cannot_run(template: &Template, job: &Job, room: usize) -> Option<Outcome> {
    job.refused().or_else(|| (!template.fits(&job.units, room)).then_some(Outcome::TooLong))
}

/// The time, after a `#`, so that the line can be pasted into a shell.
fn write_rest(out: &mut impl Write, job: &Job, shape: Shape, time: Nanos) -> io::Result<()> {
    let input = if shape.to_stdin { " < its unit" } else { "" };
    let name =
        if shape.to_stdin { String::from_utf8_lossy(job.name()).escape_debug().to_string() } else { String::new() };
    let space = if name.is_empty() { "" } else { " " };
    writeln!(out, "  # {}{input}{space}{name}", clock::shown(time))
}

/// Gives a new `store` the state that was found. A window then counts all its units from one time. Returns the time that its
/// `clock` shows after that.
fn begin_as(found: &View, store: &Memory<FakeClock>, clock: &FakeClock) -> Result<Nanos, StoreError> {
    let used = |(full, left): (i128, &i128)| u64::try_from(full - left.max(&0)).unwrap_or(0);
    let used: Vec<u64> = store.view()?.left.into_iter().zip(&found.left).map(used).collect();
    let _ = store.take(&used, Nanos::MAX)?;
    let (Some(wait), Some(own)) = (found.wait, store.view()?.wait) else { return Ok(0) };
    if own < wait {
        // A pause: the buckets are empty when it ends, so the first unit leaves some time after it.
        let paused = Memory::new(&found.policy, FakeClock::default());
        paused.hold_until(wait)?;
        let refill = paused.view()?.wait.map_or(0, |first| first.saturating_sub(wait));
        store.hold_until(wait.saturating_sub(refill))?;
    }
    clock.advance(own.saturating_sub(wait));
    Ok(clock.now())
}

/// `# 5/s,burst=5 for each host: at most 9 in any second`. A unit that costs more than the burst waits until its cost is paid,
/// so the other units of that second are as many as without it.
fn write_most(out: &mut impl Write, policy: &Policy, place: usize, each: &str) -> io::Result<()> {
    let (most, period) = policy.most_in_its_period(place);
    let (limit, period) = (policy.describe(place), period_name(period));
    let most = if policy.counts_bytes() { size_at_least(most, limit.contains("iB")) } else { most.to_string() };
    let is_bucket = limit.contains("burst=");
    let more =
        if policy.cost(place).is_some() && is_bucket { ", and what one unit costs beyond the burst" } else { "" };
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
