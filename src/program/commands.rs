//! Launch mode: a command for each unit.

use super::args::Repeat;
use super::ending::{Beside, Enders};
use super::exit::Exit;
use super::input;
use super::lookup::{self, Missing};
use super::progress::Progress;
use super::report::{Report, Total, UnitName};
use super::tally::Tally;
use super::task::{Commands, Launch, Units};
use super::{NoThread, buckets, pipe, say, signals, turn};
use anyhow::{Context, Result, anyhow};
use signal_hook::consts::SIGPIPE;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::sync::{Arc, OnceLock};
use throttle::flow::framing::Buffer;
use throttle::flow::pump::PumpError;
use throttle::flow::{Descriptor, FlowError, Source};
use throttle::launch::{Launcher, Launching, Numbers, Options, Times, events};

/// Enough for many units of the usual size; a longer one does not have to fit.
pub(super) const BUFFER: usize = 192 * 1024;

/// Commands at once by default.
pub(super) const JOBS: u32 = 16;

/// Runs the commands.
///
/// # Errors
/// What failed of our own.
pub(super) fn run(launch: &Launch) -> Result<Exit> {
    let Launch { commands, reporting, .. } = launch;
    hint_at_unused_units(commands, reporting.quiet);
    let program = match find(commands) {
        Ok(path) => path,
        Err(missing) => {
            say(missing.with_advice("-c"));
            return Ok(missing.exit());
        }
    };
    let source = source(commands, reporting.quiet)?;
    let (supply, ()) = buckets::supply(&launch.limits, Commands::check)?;
    let policy = supply.store().policy();
    if !reporting.quiet {
        pipe::hint_at_idle_limit(&policy);
    }
    let options = Options {
        template: commands.template.clone(),
        program,
        jobs: launch.jobs.unwrap_or(JOBS),
        burst: policy.at_once(),
        output: launch.output,
        tag: launch.tag,
        timeout: launch.timeout,
        // Only there may it use the terminal; without one, a group of its own is ended as a whole.
        in_our_group: launch.jobs == Some(1) && launch.timeout.is_none() && signals::has_terminal(),
        ignore_sigpipe: signals::is_ignored(SIGPIPE),
        times: times(),
    };
    throttle::clock::sharpen_this_thread();
    let progress = Progress::new(reporting, commands.units.are_from_stdin(), Some(launch.output));
    let written = launch.limits.written(&policy);
    let tally = Tally::new(launch, &policy, &written, io::stderr().is_terminal());
    let report = Report::new(reporting, UnitName::Command, source.total, supply, written, progress)?;
    let is_told = launch.limits.bucket().is_some() && turn::is_told(reporting.quiet);
    drive(commands, source, options, report.with_tally(tally), is_told)
}

/// Tests do not wait for real seconds: this variable, which is for them alone, says how many times shorter all waits are.
fn times() -> Times {
    let divisor = std::env::var("THROTTLE_TEST_SHORTER_WAITS").ok().and_then(|divisor| divisor.parse().ok());
    Times::default().shortened(divisor.unwrap_or(1))
}

pub(super) fn hint_at_unused_units(commands: &Commands, quiet: bool) {
    if commands.template.leaves_units_unused() && !quiet {
        say("hint: the script does not use its unit, \"$1\"; if it should, put the script in single quotes");
    }
}

/// Where the command is, unless its name depends on the unit.
fn find(commands: &Commands) -> Result<Option<OsString>, Missing> {
    match (commands.template.name(), commands.words.first()) {
        (Some(name), _) => lookup::find(name).map(Some),
        // "curl -sS {}": there is no such file, whatever the unit is.
        (None, Some(word)) if lookup::is_command_line(word) => Err(Missing::NotFound(word.clone())),
        _ => Ok(None),
    }
}

/// Where units come from, opened.
pub(super) struct Opened {
    pub(super) source: Box<dyn Source>,
    /// What it is called in messages.
    pub(super) name: String,
    total: Option<Total>,
}

/// Opens the source of the units.
///
/// # Errors
/// What cannot be opened or read, and why.
pub(super) fn source(commands: &Commands, quiet: bool) -> Result<Opened> {
    match &commands.units {
        Units::Made(Repeat(last)) => {
            let total = last.map(|last| Total::Units(last.div_ceil(commands.shape.max_args.max(1))));
            Ok(Opened { source: Box::new(Numbers::to(*last)), name: "--repeat".to_owned(), total })
        }
        Units::Read(file) => {
            let input = input::open(file.as_deref())?;
            let remark = input.remark("units", "run (N times: --repeat N)");
            remark.into_iter().filter(|_| !quiet).for_each(say);
            let total = input.size.map(Total::Bytes);
            Ok(Opened { source: Box::new(Descriptor(input.fd)), name: input.name, total })
        }
    }
}

fn drive(commands: &Commands, opened: Opened, options: Options, report: Report, is_told: bool) -> Result<Exit> {
    let shape = commands.shape;
    let (enders, wanted) = Enders::new();
    let watch = Arc::new(Watch {
        enders,
        looks_for_cr: AtomicBool::new(
            !report.tally().is_some_and(|tally| tally.is_quiet()) && !shape.to_stdin && shape.skip_blank,
        ),
        report: Arc::new(report),
        launcher: OnceLock::new(),
        signal: AtomicI32::new(0),
        in_our_group: options.in_our_group,
        times: options.times,
    });
    signals::notice_ends().context("cannot handle signals")?;
    watch.start_enders(wanted).context(NoThread)?;
    let (sender, receiver) = events();
    watch.receive(receiver).context(NoThread)?;
    let screen = Arc::new(Beside(Arc::clone(&watch.report)));
    let launcher = Launcher::new(options, screen, sender).context(NoThread)?;
    // Set once, here.
    let _ = watch.launcher.set(launcher.clone());
    signals::attend(Arc::clone(&watch.report), Some(Arc::clone(&watch))).context("cannot handle signals")?;
    let mut flow = Launching::new(opened.source, Buffer::new(commands.framing, BUFFER), shape, launcher.clone());
    let result = turn::run(is_told, &mut flow, &watch.report);
    launcher.flush();
    if let Some(mut tally) = watch.report.tally() {
        tally.set_skipped(flow.skipped());
    }
    launcher.drain();
    launcher.flush();
    if !launcher.stop() {
        // Something else ends the program.
        loop {
            std::thread::park();
        }
    }
    if let Err(error) = result {
        watch.fail();
        watch.report.close_or_say();
        return Err(failed(error, &opened.name));
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
    pub(super) times: Times,
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

/// Why the pump ended, with the `name` of the input.
pub(super) fn failed(error: PumpError, name: &str) -> anyhow::Error {
    match error {
        PumpError::Flow(FlowError::Read(error)) => anyhow!(error).context(format!("cannot read {name}")),
        PumpError::Flow(FlowError::Hold(error)) => anyhow!(error).context("cannot hold units for --stdin"),
        PumpError::Store(error) => anyhow!(error),
        error @ PumpError::Flow(_) => anyhow!(error),
    }
}
