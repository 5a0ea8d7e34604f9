//! Launch mode: a command for each unit.

use super::ending::{Beside, Enders};
use super::exit::Exit;
use super::flags::{Flags, Repeat};
use super::input::{self, Input};
use super::lookup::{self, Missing};
use super::naming::Naming;
use super::report::{Report, Total, UnitName, counted};
use super::tally::{self, Tally};
use super::{NoThread, bucket, pipe, say, signals, turn};
use anyhow::{Context, Result, anyhow};
use signal_hook::consts::SIGPIPE;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use throttle::clock::{self, FakeClock, Nanos, SECOND};
use throttle::flow::framing::Buffer;
use throttle::flow::meter::Meter;
use throttle::flow::pump::{self, PumpError};
use throttle::flow::{Descriptor, FlowError, Source};
use throttle::launch::{
    Events, Job, Launcher, Launching, Numbers, Options, Outcome, Shape, Showing, Template, quoted, room_for_words,
};
use throttle::store::{Memory, Supply};

/// Enough for many units of the usual size; a longer one does not have to fit.
const BUFFER: usize = 192 * 1024;

/// Commands at once where nothing was said.
pub(super) const JOBS: u32 = 16;

/// Runs `template` for every unit.
///
/// # Errors
/// What failed of our own.
pub(crate) fn run(flags: &Flags, template: &Template) -> Result<Exit> {
    hint_at_unused_units(flags, template);
    let program = match find(flags, template) {
        Ok(path) => path,
        Err(missing) => {
            say(missing.with_advice("-c"));
            return Ok(missing.exit());
        }
    };
    // Only there may it use the terminal; where there is none, a group of its own is ended as a whole.
    let in_our_group = flags.jobs() == Some(1) && flags.timeout().is_none() && has_terminal();
    let options = |flags: &Flags| Options {
        template: template.clone(),
        program,
        jobs: flags.jobs().unwrap_or(JOBS),
        burst: flags.plan().at_once(),
        output: flags.output(),
        tag: flags.is_tagged(),
        timeout: flags.timeout(),
        in_our_group,
        ignore_sigpipe: signals::is_ignored(SIGPIPE),
        second: second(),
    };
    with_source(flags, |source, name, total| launch(flags, options, source, name, total))
}

/// Tests do not wait for real seconds: this variable, which is for them alone, says how many times shorter all waits are.
fn second() -> Duration {
    let divisor = std::env::var("THROTTLE_TEST_SHORTER_WAITS").ok().and_then(|divisor| divisor.parse().ok());
    Duration::from_secs(1) / divisor.unwrap_or(1).max(1)
}

fn hint_at_unused_units(flags: &Flags, template: &Template) {
    if template.leaves_units_unused() && !flags.is_quiet() {
        say("hint: the script does not use its unit, \"$1\"; if it should, put the script in single quotes");
    }
}

/// Where the command is, unless its name depends on the unit.
fn find(flags: &Flags, template: &Template) -> Result<Option<OsString>, Missing> {
    match (template.name(), flags.command().first()) {
        (Some(name), _) => lookup::find(name).map(Some),
        // "curl -sS {}": there is no such file, whatever the unit is.
        (None, Some(word)) if lookup::is_command_line(word) => Err(Missing::NotFound(word.clone())),
        _ => Ok(None),
    }
}

/// Whether this process has a terminal that controls it.
pub(super) fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// A source of units, whichever it is.
type AnySource = Box<dyn Source>;

fn with_source(flags: &Flags, act: impl FnOnce(AnySource, &str, Option<Total>) -> Result<Exit>) -> Result<Exit> {
    if let Some(repeat) = flags.repeat() {
        let commands = last(repeat).map(|times| times.div_ceil(flags.shape().max_args.max(1)));
        return act(Box::new(Numbers::to(last(repeat))), "--repeat", commands.map(Total::Units));
    }
    let Input { fd, name, size } = input::open(flags.arg_file())?;
    if flags.arg_file().is_none()
        && !flags.is_quiet()
        && let Some(remark) = input::remark(&fd, "units", "run (N times: --repeat N)")
    {
        say(remark);
    }
    act(Box::new(Descriptor(fd)), &name, size.map(Total::Bytes))
}

fn last(repeat: Repeat) -> Option<u64> {
    match repeat {
        Repeat::Times(times) => Some(times),
        Repeat::Endless => None,
    }
}

fn launch(
    flags: &Flags,
    options: impl FnOnce(&Flags) -> Options,
    source: AnySource,
    name: &str,
    total: Option<Total>,
) -> Result<Exit> {
    let (supply, flags) = bucket::supply(flags)?;
    let (flags, options) = (&flags, options(&flags));
    pipe::hint_at_idle_limit(flags);
    throttle::clock::sharpen_this_thread();
    let report =
        Report::new(flags, UnitName::Command, total, supply)?.with_tally(Tally::new(flags, io::stderr().is_terminal()));
    let (enders, wanted) = Enders::new();
    let watch = Arc::new(Watch {
        enders,
        report: Arc::new(report),
        launcher: OnceLock::new(),
        signal: AtomicI32::new(0),
        in_our_group: options.in_our_group,
        second: options.second,
        looks_for_cr: AtomicBool::new(!flags.is_quiet() && !flags.shape().to_stdin && flags.shape().skip_blank),
    });
    signals::notice_ends().context("cannot handle signals")?;
    watch.start_enders(wanted).context(NoThread)?;
    let events = Events::default();
    watch.receive(events.clone()).context(NoThread)?;
    let screen = Arc::new(Beside(Arc::clone(&watch.report)));
    let launcher = Launcher::new(options, screen, events).context(NoThread)?;
    // Set once, here.
    let _ = watch.launcher.set(launcher.clone());
    signals::attend(Arc::clone(&watch.report), Some(Arc::clone(&watch))).context("cannot handle signals")?;
    launcher.expect_room_for_a_command().context("cannot open the files that a command needs")?;
    let mut flow = Launching::new(source, Buffer::new(flags.framing(), BUFFER), flags.shape(), launcher.clone());
    let result = turn::run(flags, &mut flow, &watch.report);
    launcher.flush();
    if let Some(mut tally) = watch.report.tally() {
        tally.set_skipped(flow.skipped());
    }
    launcher.slots().drain();
    launcher.flush();
    if !launcher.slots().stop() {
        signals::wait_for_end();
    }
    if let Err(error) = result {
        watch.fail();
        watch.report.close_or_say();
        return Err(told(error, name));
    }
    watch.report.close()?;
    Ok(watch.exit())
}

/// What the receiver and the signal thread need to know of.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) enders: Enders,
    pub(super) report: Arc<Report>,
    launcher: OnceLock<Launcher>,
    /// The first that came to end us; 0 for none.
    pub(super) signal: AtomicI32,
    pub(super) in_our_group: bool,
    /// See [`Options`].
    pub(super) second: Duration,
    /// Whether a unit that ends in CR is worth a hint.
    pub(super) looks_for_cr: AtomicBool,
}

impl Watch {
    /// `None` before the first command.
    pub(super) fn launcher(&self) -> Option<Launcher> {
        self.launcher.get().cloned()
    }

    /// Something of our own went wrong, which comes before whatever commands do.
    pub(super) fn fail(&self) {
        if let Some(mut tally) = self.report.tally() {
            tally.fail();
        }
    }

    pub(super) fn exit(&self) -> Exit {
        self.report.tally().map_or(Exit::Success, |tally| tally.exit())
    }
}

fn told(error: PumpError, name: &str) -> anyhow::Error {
    match error {
        PumpError::Flow(FlowError::Read(error)) => anyhow!(error).context(format!("cannot read {name}")),
        PumpError::Flow(FlowError::Hold(error)) => anyhow!(error).context("cannot hold units for --stdin"),
        PumpError::Store(error) => anyhow!(error),
        error @ PumpError::Flow(_) => anyhow!(error),
    }
}

/// Shows what [`run`] would do, and when.
///
/// # Errors
/// What failed of our own.
pub(crate) fn dry_run(flags: &Flags, template: &Template) -> Result<Exit> {
    hint_at_unused_units(flags, template);
    with_source(flags, |source, name, _| show_run(&bucket::limits(flags)?, template, source, name))
}

/// The same pump on a clock that does not wait.
fn show_run(flags: &Flags, template: &Template, source: AnySource, name: &str) -> Result<Exit> {
    let clock = FakeClock::default();
    let supply = Supply::new(Box::new(Memory::new(flags.plan(), clock.clone())));
    let meter = Meter::new(0, flags.plan().len());
    let buffer = Buffer::new(flags.framing(), BUFFER);
    let out = RefCell::new(io::BufWriter::new(io::stdout()));
    let (mut shown, naming) = (Shown::default(), Naming::new(flags, false));
    let (shape, room) = (flags.shape(), room_for_words());
    let on_terminal = io::stdout().is_terminal();
    let show = |job: &Job| {
        use throttle::clock::Clock;
        let mut out = out.borrow_mut();
        shown.last = clock.now();
        if let Some(outcome) = cannot_run(template, job, room) {
            shown.failed += 1;
            let lines = naming.each(job, &tally::unfit(job, &outcome));
            return lines.iter().try_for_each(|line| writeln!(out, "# {line}  # {}", clock::shown(shown.last)));
        }
        shown.count += 1;
        out.write_all(&quoted(template.fill(&job.units), on_terminal))?;
        write_rest(&mut *out, job, shape, shown.last)
    };
    let source = AfterShowing { source, out: &out };
    let mut flow = Showing::new(source, buffer, shape, template, show);
    let result = pump::run(&mut flow, &supply, &meter).map(|()| flow.skipped());
    drop(flow);
    let mut out = out.into_inner();
    let written = result.map(|skipped| {
        write_total(&mut out, flags, &shown, skipped).and_then(|()| out.flush()).map_err(FlowError::Write)
    });
    match written {
        Ok(Ok(())) => Ok(Exit::Success),
        Ok(Err(error)) => end_of_dry_run(PumpError::Flow(error), name),
        Err(error) => end_of_dry_run(error, name),
    }
}

/// Before more is waited for, what is known is shown.
struct AfterShowing<'a, S, W: Write> {
    source: S,
    out: &'a RefCell<W>,
}

impl<S: Source, W: Write> Source for AfterShowing<'_, S, W> {
    fn read(&mut self, space: &mut [u8], wait: bool) -> io::Result<Option<usize>> {
        // What it says is found again when the next is written.
        let _ = self.out.borrow_mut().flush();
        self.source.read(space, wait)
    }
}

fn end_of_dry_run(error: PumpError, name: &str) -> Result<Exit> {
    match error {
        PumpError::Flow(FlowError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(signals::die_of_broken_pipe())
        }
        PumpError::Flow(FlowError::Write(error)) => Err(anyhow!(error).context("cannot write to standard output")),
        error => Err(told(error, name)),
    }
}

#[derive(Debug, Default)]
struct Shown {
    count: u64,
    /// Those that cannot be run.
    failed: u64,
    last: Nanos,
}

/// Why it could not be run, where that can be seen beforehand.
fn cannot_run(template: &Template, job: &Job, room: usize) -> Option<Outcome> {
    job.refused().or_else(|| (!template.fill(&job.units).fit(room)).then_some(Outcome::TooLong))
}

/// Behind the command, and a `#`, its time: so the line can be pasted into a shell.
fn write_rest(out: &mut impl Write, job: &Job, shape: Shape, time: Nanos) -> io::Result<()> {
    let input = if shape.to_stdin { " < its unit" } else { "" };
    let name =
        if shape.to_stdin { String::from_utf8_lossy(job.name()).escape_debug().to_string() } else { String::new() };
    let space = if name.is_empty() { "" } else { " " };
    writeln!(out, "  # {}{input}{space}{name}", clock::shown(time))
}

fn write_total(out: &mut impl Write, flags: &Flags, shown: &Shown, skipped: u64) -> io::Result<()> {
    let failed = if shown.failed > 0 { format!(", {} that cannot be run", shown.failed) } else { String::new() };
    let blank = if skipped > 0 { format!(", {} skipped", counted(skipped, "blank line")) } else { String::new() };
    let time = clock::shown(shown.last);
    writeln!(out, "# {} in {time}{failed}{blank}", UnitName::Command.count(shown.count))?;
    for place in 0..flags.plan().len() {
        let (most, period) = flags.plan().most_in_its_period(place);
        writeln!(out, "# {}: at most {most} in any {}", flags.plan().describe(place), period_name(period))?;
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
