//! Launch mode: a command for each unit.

use super::args::{self, LaunchFlags, Repeat, ReportFlags};
use super::buckets::{self, Opened};
use super::exit::Exit;
use super::input::{self, Rest};
use super::launch_run::LaunchRun;
use super::log::Begun;
use super::lookup::{self, Missing};
use super::outcomes::Outcomes;
use super::progress::Progress;
use super::records::{self, Records};
use super::report::{self, Kept, Report, Total, Unread};
use super::say::{NoThread, say};
use super::task::{Commands, Launch};
use super::unit_name::UnitName;
use super::{advice, held, long_wait, names, pipe, signal_thread, signals};
use anyhow::{Context, Result, anyhow};
use signal_hook::consts::SIGPIPE;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use throttle::flow::framing::{Buffer, LARGEST};
use throttle::flow::pump::PumpError;
use throttle::flow::{Descriptor, FlowError, Look, Sorting, Source, start_thread};
use throttle::launch::{Batches, Known, Launching, Numbers, One, Options, PassedInput, RetryPolicy, Settling, Unused};
use throttle_limits::clock::in_nanos;
use throttle_limits::limits::Policy;

/// After so many seconds the bar names the keys that end the run. Shorter runs end before one wants to end them.
const WORTH_KEYS: u32 = 10;

/// Room for many units of the usual size. A longer unit need not fit.
pub(super) const BUFFER: usize = 192 * 1024;

/// Runs the commands.
///
/// # Errors
/// throttle itself failed.
pub(super) fn run(launch: &Launch) -> Result<Exit> {
    let Launch { commands, reporting, flags, .. } = launch;
    let hints = launch.call.is_none() && reporting.sums_up(io::stderr().is_terminal());
    if hints {
        hint_at_words(commands, flags);
    }
    let program = match find(commands) {
        Ok(path) => path,
        Err(missing) => return Ok(advice::refuse(&missing, if commands.is_once { "sh -c" } else { "-c" })),
    };
    let mut source = source(commands, reporting)?;
    let records = Records::open(launch, source.source.fd(), second())?.map(Arc::new);
    let summary = report::open_summary(reporting, source.source.fd())?;
    let opened = buckets::open_stream(&launch.limits, launch.stream(), |policy| launch.check(policy))?;
    let Opened { supply, policy, sorting, look, .. } = opened;
    if hints {
        pipe::hint_at_idle_limits(&launch.limits, &policy);
    }
    let settling = settling(launch, &look, &policy);
    let look = match &launch.call {
        Some(call) => call.look(&policy, look).map_err(|error| anyhow!(error))?,
        None => look,
    };
    supply.settles(settling.is_any());
    let sorts = sorting.is_some();
    let has_keys = sorting.as_ref().is_some_and(Sorting::has_keys);
    let options = Options { by_key: sorting, settling, ..options(launch, program, &policy) };
    throttle_limits::clock::sharpen_this_thread();
    let progress = Progress::new(reporting, commands.input.is_stdin(), Some(flags.output()));
    let written = launch.limits.written(&policy);
    if let Some(records) = &records {
        records.begin(&begun(launch, &policy))?;
    }
    let mut outcomes = Outcomes::new(launch, &policy, &written, io::stderr().is_terminal());
    outcomes.retries.known = records.as_ref().map_or(0, |records| records.known_units());
    let mut report = Report::new(UnitName::Command, source.total, supply, written, sorts, summary, progress);
    let known = records.as_ref().and_then(|records| records.known());
    if sorts && !has_keys {
        report.kept = Kept::Line;
    }
    report.unread = source.rest.take().map(|rest| unread(commands, rest, known));
    // The terminal sends its signals to a command in our group, too.
    let keys_end_it = !options.in_our_group && signals::come_from_the_usual_keys();
    report.names_keys_after = keys_end_it.then(|| in_nanos(second() * WORTH_KEYS));
    let is_announced = launch.limits.bucket().is_some() && !reporting.quiet;
    if launch.call.is_none() {
        input::tell_of_unread(&commands.input, reporting);
    }
    drive(launch, source, options, records, (report, outcomes), (is_announced, look))
}

/// What the log says at the beginning of the run.
fn begun(launch: &Launch, policy: &Policy) -> Begun {
    Begun { limits: launch.limits.list(policy), jobs: launch.flags.jobs(), command: args::own_command_line() }
}

fn options(launch: &Launch, program: Option<OsString>, policy: &Policy) -> Options {
    let Launch { commands, flags, call, .. } = launch;
    let is_once = call.is_some();
    let again = flags.again.policy(commands.input.ahead(), args::interval(policy));
    let again = again.map(|again| RetryPolicy { is_once, ..again });
    Options {
        template: commands.template.clone(),
        program,
        jobs: flags.jobs(),
        burst: policy.at_once(),
        output: flags.output(),
        tag: flags.tag,
        timeout: flags.timeout,
        passed_input: is_once.then(|| PassedInput::new(again.is_some())),
        again,
        // In our group a command may use the terminal. Without a terminal, a group of its own can be ended as a whole.
        in_our_group: flags.jobs == Some(1) && flags.timeout.is_none() && signals::has_terminal(),
        settling: Settling::default(),
        by_key: None,
        ignore_sigpipe: signals::is_ignored(SIGPIPE),
        second: second(),
    }
}

/// Which limits replies settle: those of all, then those of each key.
fn settling(launch: &Launch, look: &Look, policy: &Policy) -> Settling {
    let longest = in_nanos(launch.flags.again.max_pause());
    let policies = [policy].into_iter().chain(policy.of_keys().map(|keys| &keys.each));
    let most_more = policies.flat_map(|policy| (0..policy.len()).map(|place| policy.lets_through(place, longest)));
    Settling::new(look.costs.iter().cloned().zip(most_more))
}

/// A second, or less in tests: a variable that only tests set divides all waits.
fn second() -> Duration {
    let divisor = std::env::var("THROTTLE_TEST_SHORTER_WAITS").ok().and_then(|divisor| divisor.parse().ok());
    Duration::from_secs(1) / divisor.unwrap_or(1).max(1)
}

/// Hints at words of the command that are unlikely to be what was meant.
pub(super) fn hint_at_words(commands: &Commands, flags: &LaunchFlags) {
    if let Some(word) = flags.shell.as_ref().and_then(|script| advice::word_of_bash(script)) {
        say(format_args!("hint: {word} is known to bash, and sh runs the script of -c; write bash -c '…' _ {{}}"));
    }
    match commands.template.unused_units() {
        Unused::None => {}
        Unused::All => {
            say("hint: the script does not use its unit, \"$1\"; if it should, put the script in single quotes");
        }
        Unused::AllButFirst => say("hint: of its units the script uses only the first, \"$1\"; all of them are \"$@\""),
    }
    if commands.template.gives_unit_to_ssh() {
        say(
            "hint: ssh has a shell read its words on the other machine, where a unit with blanks, quotes or ; is code; \
             --stdin passes it as data",
        );
    }
    let units = throttle::launch::Units::default();
    let words: Vec<_> = commands.template.fill(&units).collect();
    let has = |text: &str| words.iter().any(|word| word.to_string_lossy().contains(text));
    // Retries by curl take no grant.
    if flags.again.attempts.is_some() && has("curl") && has("--retry") {
        say("hint: what curl tries again by itself (--retry) is not counted by the rate; --attempts does both");
    }
}

/// Where the command is, unless its name depends on the unit.
fn find(commands: &Commands) -> Result<Option<OsString>, Missing> {
    match (commands.template.name(), commands.words.first()) {
        (Some(name), _) => lookup::find(name).map(Some),
        // "curl -sS {}": there is no such file, whatever the unit is.
        (None, Some(word)) if advice::is_command_line(word) => Err(Missing::NotFound(word.clone())),
        _ => Ok(None),
    }
}

/// An opened source of units.
pub(super) struct OpenedSource {
    pub(super) source: Box<dyn Source>,
    /// What it is called in messages.
    pub(super) name: String,
    total: Option<Total>,
    rest: Option<Rest>,
}

/// Opens the source of the units.
///
/// # Errors
/// What cannot be opened or read, and why.
pub(super) fn source(commands: &Commands, reporting: &ReportFlags) -> Result<OpenedSource> {
    if commands.is_once {
        return Ok(OpenedSource {
            source: Box::new(One::default()),
            name: "--once".to_owned(),
            total: None,
            rest: None,
        });
    }
    if let Some(Repeat(last)) = commands.input.repeat {
        let total = last.map(|last| Total::Units(last.div_ceil(commands.shape.max_args.max(1))));
        let source = Box::new(Numbers::to(last));
        return Ok(OpenedSource { source, name: "--repeat".to_owned(), total, rest: None });
    }
    let input = input::open(commands.input.file())?;
    input.remark("units", reporting).into_iter().for_each(say);
    let total = Total::new(reporting, input.size, commands.shape.max_args);
    let rest = input.rest();
    Ok(OpenedSource { source: Box::new(Descriptor(input.fd)), name: input.name, total, rest })
}

/// Counts the units of `rest` that commands would run for.
fn unread(commands: &Commands, rest: Rest, known: Option<Known>) -> Unread {
    let (delimiter, skips_blank) = (records::delimiter(commands.framing), commands.shape.skip_blank);
    let is_known = move |unit: &[u8]| known.as_ref().is_some_and(|known| known(unit).is_some());
    let counts = move |unit: &[u8]| !(is_known(unit) || skips_blank && unit.is_empty());
    Unread(Box::new(move |read| rest.units(read, delimiter, &counts)))
}

/// The units of `source` as jobs, without those that are known.
pub(super) fn batches<R: Source>(commands: &Commands, source: R, known: Option<Known>, look: Look) -> Batches<R> {
    // A unit that is an argument cannot be as long as this buffer.
    let most = if commands.shape.to_stdin && look.looks_inside() { LARGEST } else { BUFFER };
    let buffer = Buffer::new(commands.framing, BUFFER).growing(most);
    Batches::new(source, buffer, commands.shape, &commands.template, known, look)
}

fn drive(
    launch: &Launch,
    opened: OpenedSource,
    options: Options,
    records: Option<Arc<Records>>,
    (report, outcomes): (Report, Outcomes),
    (is_announced, look): (bool, Look),
) -> Result<Exit> {
    signals::notice_ends().context("cannot handle signals")?;
    let known = records.as_ref().and_then(|records| records.known());
    let run = LaunchRun::start(report, outcomes, options, records).context(NoThread)?;
    let launcher = &run.launcher;
    signal_thread::start(Arc::clone(&run.report), Some(Arc::clone(&run))).context("cannot handle signals")?;
    launcher.expect_room_for_a_command().context("cannot open the files that a command needs")?;
    keep_jobs(&run)?;
    if let Some(time) = launch.flags.again.stop_after {
        stop_after(time, Arc::clone(&run))?;
    }
    let mut flow = Launching::new(batches(&launch.commands, opened.source, known, look), launcher.clone());
    let result = long_wait::run(is_announced, &mut flow, &run.report);
    launcher.flush();
    run.outcomes().set_skipped(flow.batches().skipped(), flow.batches().done_before());
    launcher.slots().drain();
    launcher.flush();
    if !launcher.slots().stop() {
        signals::wait_for_end();
    }
    run.close_ledger();
    if let Err(error) = result {
        run.outcomes().fail();
        run.report.close_or_say();
        return Err(failed(error, &opened.name));
    }
    run.report.close()?;
    let exit = run.outcomes().exit();
    Ok(exit)
}

/// Tells a bucket on a server that commands still run, if it counts those.
fn keep_jobs(run: &LaunchRun) -> Result<()> {
    let report = Arc::clone(&run.report);
    if held::is_needed(report.supply.store()) {
        held::tell_of_it(move || drop(report.supply.store().sync())).context(NoThread)?;
    }
    Ok(())
}

/// Starts nothing more once this time has passed.
fn stop_after(time: Duration, run: Arc<LaunchRun>) -> Result<()> {
    let stop = move || {
        thread::sleep(time);
        run.start_nothing_more(&format!("--stop-after {}", humantime::format_duration(time)));
    };
    start_thread("stop-after", stop).context(NoThread)?;
    Ok(())
}

/// Why the pump ended, with the `name` of the input.
pub(super) fn failed(error: PumpError, name: &str) -> anyhow::Error {
    match error {
        PumpError::Flow(FlowError::Read(error)) => anyhow!(error).context(format!("cannot read {name}")),
        PumpError::Flow(FlowError::Hold(error)) => anyhow!(error).context("cannot hold units for --stdin"),
        PumpError::Flow(FlowError::Refused(number, unit, why)) => {
            anyhow!(why).context(names::one("unit", number, &unit))
        }
        PumpError::Store(error) => anyhow!(error),
        error @ PumpError::Flow(_) => anyhow!(error),
    }
}
