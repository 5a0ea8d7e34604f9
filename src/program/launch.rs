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
use super::report::{self, Report, Total, Unread};
use super::say::{NoThread, say};
use super::task::{Commands, Launch};
use super::unit_name::UnitName;
use super::{advice, held, long_wait, names, pipe, signal_thread, signals};
use anyhow::{Context, Result, anyhow};
use signal_hook::consts::SIGPIPE;
use std::ffi::OsString;
use std::io::{self, Cursor, IsTerminal};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle::flow::framing::{Buffer, LARGEST};
use throttle::flow::pump::PumpError;
use throttle::flow::{Descriptor, FlowError, Grants, Look, Overview, Source, start_thread};
use throttle::launch::{
    Attempt, Batches, Known, Launching, Numbers, Options, PassedInput, RetryPolicy, Settling, Unused,
};
use throttle_limits::clock::in_nanos;
use throttle_limits::limits::Policy;

/// The time in seconds after which the bar names the keys on the keyboard that end the run. A shorter run ends before a
/// user wants to end it.
const SECONDS_BEFORE_KEYS: u32 = 10;

/// The bytes of a buffer: room for many units of the usual length. A longer unit need not fit.
pub(super) const BUFFER: usize = 192 * 1024;

const UNUSED_UNIT: &str = "hint: the script does not use its unit, \"$1\"; if it should, put the script in single quotes, \
    like -c 'echo \"$1\"'; if not, write -n 0";

/// Runs the commands.
///
/// # Errors
/// throttle itself failed.
pub(super) fn run(launch: &Launch) -> Result<Exit> {
    let Launch { commands, reporting, flags, .. } = launch;
    let hints = launch.call.is_none() && reporting.sums_up(io::stderr().is_terminal());
    if hints {
        hint_at_words(commands, flags);
    } else if !reporting.quiet && commands.template.unused_units() == Unused::Lost {
        // Without a terminal, hints are left out. This hint is printed anyway, because all units will certainly be
        // lost.
        say(UNUSED_UNIT);
    }
    let program = match find(commands) {
        Ok(path) => path,
        Err(missing) => {
            let limit =
                launch.limits.named.as_ref().and_then(|named| args::rest_of_limit(&named.rules, &commands.words));
            return Ok(advice::refuse(&missing, if commands.is_once { "sh -c" } else { "-c" }, limit));
        }
    };
    let stops = stop_after(launch)?;
    let mut source = source(commands, reporting)?;
    let records = Records::open(launch, source.source.fd(), second())?.map(Arc::new);
    let summary = report::open_summary(reporting, source.source.fd())?;
    let mut opened = buckets::open_stream(&launch.limits, launch.stream(), false, |policy| launch.check(policy))?;
    let policy = opened.policy.clone();
    if hints {
        pipe::hint_at_idle_limits(&launch.limits, &policy);
    }
    let mut settled = opened.sorting.look.costs.clone();
    if let Some(call) = &launch.call {
        settled = call.settled(&policy).map_err(|error| anyhow!(error))?;
        opened.sorting.look = call.look(&policy, opened.sorting.look).map_err(|error| anyhow!(error))?;
    }
    let options = Options { settling: settling(launch, settled, &policy), ..options(launch, program, &opened) };
    opened.sorting.pace = options.again.as_ref().map(|again| (in_nanos(again.interval), again.learns));
    let learns = options.again.as_ref().is_some_and(|again| again.learns);
    let grants = opened.grants(learns);
    let Opened { sorting, .. } = opened;
    throttle_limits::clock::sharpen_this_thread();
    let progress = Progress::new(reporting, commands.input.is_stdin(), Some(flags.output()));
    let written = launch.limits.written(&policy);
    if let Some(records) = &records {
        records.hint_at_emptied_output();
        records.begin(&begun(launch, &policy))?;
    }
    let mut outcomes = Outcomes::new(launch, &policy, &written, io::stderr().is_terminal());
    outcomes.retries.known = records.as_ref().map_or(0, |records| records.known_units());
    let overview = Arc::clone(&grants) as Arc<dyn Overview>;
    let limits = (&policy, written, sorting.has_keys);
    let mut report = Report::new(UnitName::Command, source.total, overview, limits, summary, progress);
    let known = records.as_ref().and_then(|records| records.known());
    report.unread = source.rest.take().map(|rest| unread(commands, rest, known));
    // A command in our process group also gets the signals of the terminal, so these keys may have another effect.
    let options = Options { is_signalled: Arc::clone(&report.is_signalled), ..options };
    let keys_end_it = !options.in_our_group && signals::come_from_the_usual_keys();
    report.names_keys_after = keys_end_it.then(|| in_nanos(second() * SECONDS_BEFORE_KEYS));
    let is_announced = launch.limits.bucket.is_some() && !reporting.quiet;
    if launch.call.is_none() {
        input::hint_at_unused_stdin(&commands.input, reporting);
    }
    drive(launch, source, options, (records, grants), (report, outcomes), (is_announced, sorting.look), &stops)
}

/// The content of the first line of the log.
fn begun(launch: &Launch, policy: &Policy) -> Begun {
    Begun { limits: launch.limits.list(policy), jobs: launch.flags.jobs(), command: args::own_command_line() }
}

fn options(launch: &Launch, program: Option<OsString>, opened: &Opened) -> Options {
    let (policy, sorting) = (&opened.policy, &opened.sorting);
    let Launch { commands, flags, call, .. } = launch;
    let is_once = call.is_some();
    let again = flags.again.policy(args::interval(policy));
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
        // A command in our process group may use the terminal. Without a terminal, the command gets a group of its own,
        // which can be ended as a whole.
        in_our_group: flags.jobs == Some(1) && flags.timeout.is_none() && signals::has_terminal(),
        is_signalled: Arc::default(),
        settling: Settling::default(),
        per: sorting.look.per.clone(),
        fails: sorting.fails,
        ahead: sorting.ahead,
        ignore_sigpipe: signals::is_ignored(SIGPIPE),
        second: second(),
    }
}

/// The limits that the cost in a reply settles: first the limits of all units, then the limits of each key.
fn settling(launch: &Launch, costs: Vec<Option<Cost>>, policy: &Policy) -> Settling {
    let longest = in_nanos(launch.flags.again.max_pause());
    let policies = [policy].into_iter().chain(policy.of_keys().map(|keys| &keys.each));
    let most_more = policies.flat_map(|policy| (0..policy.len()).map(|place| policy.lets_through(place, longest)));
    Settling::new(costs.into_iter().zip(most_more))
}

/// One second. Tests set `THROTTLE_TEST_SHORTER_WAITS` to divide it, which shortens all waits. A release ignores this
/// variable.
fn second() -> Duration {
    shortened(std::env::var("THROTTLE_TEST_SHORTER_WAITS").ok().and_then(|text| divisor_of(&text)))
}

fn divisor_of(text: &str) -> Option<u32> {
    if cfg!(debug_assertions) { text.parse().ok() } else { None }
}

fn shortened(divisor: Option<u32>) -> Duration {
    Duration::from_secs(1) / divisor.unwrap_or(1).max(1)
}

/// Hints at words of the command that are probably a mistake.
pub(super) fn hint_at_words(commands: &Commands, flags: &LaunchFlags) {
    if let Some(word) = flags.shell.as_ref().and_then(|script| advice::word_of_bash(script)) {
        say(format_args!("hint: {word} needs bash, but sh runs the script of -c; write bash -c '…' _ {{}}"));
    }
    match commands.template.unused_units() {
        Unused::None => {}
        Unused::All | Unused::Lost => say(UNUSED_UNIT),
        Unused::AllButFirst => {
            say("hint: the script uses only the first of its units, \"$1\"; all its units are \"$@\"");
        }
    }
    if commands.template.gives_unit_to_ssh() {
        say("hint: ssh gives its command to a shell on the other machine, so blanks, quotes and ';' in a unit are \
             code there; --stdin passes the unit as data");
    }
    let units = throttle::launch::Units::default();
    let words: Vec<_> = commands.template.fill(&units).collect();
    let has = |text: &str| words.iter().any(|word| word.to_string_lossy().contains(text));
    // Retries by curl take no grant.
    if flags.again.attempts.is_some() && has("curl") && has("--retry") {
        say(
            "hint: the rate does not count the retries of curl itself (--retry); use --attempts for retries that count",
        );
    }
}

/// The path of the command, unless its name depends on the unit.
fn find(commands: &Commands) -> Result<Option<OsString>, Missing> {
    match (commands.template.name(), commands.words.first()) {
        (Some(name), _) => lookup::find(name).map(Some),
        // No file has the name "curl -sS {}", whatever the unit is.
        (None, Some(word)) if advice::is_command_line(word) => Err(Missing::NotFound(word.clone())),
        _ => Ok(None),
    }
}

/// An open source of units.
pub(super) struct OpenedSource {
    pub(super) source: Box<dyn Source>,
    /// Its name in messages.
    pub(super) name: String,
    total: Option<Total>,
    rest: Option<Rest>,
}

/// Opens the source of the units.
///
/// # Errors
/// The input cannot be opened or read.
pub(super) fn source(commands: &Commands, reporting: &ReportFlags) -> Result<OpenedSource> {
    if commands.is_once {
        // A unit that differs from the units of all other runs.
        let source = Box::new(Cursor::new(format!("{:032x}\n", fastrand::u128(..)).into_bytes()));
        return Ok(OpenedSource { source, name: "--once".to_owned(), total: None, rest: None });
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

/// Counts the units of `rest` for which commands would run.
fn unread(commands: &Commands, rest: Rest, known: Option<Known>) -> Unread {
    let (delimiter, skips_blank) = (records::delimiter(commands.framing), commands.shape.skip_blank);
    let is_known = move |unit: &[u8]| known.as_ref().is_some_and(|known| known(unit).is_some());
    let counts = move |unit: &[u8]| !(is_known(unit) || skips_blank && unit.is_empty());
    Unread(Box::new(move |read| rest.units(read, delimiter, &counts)))
}

/// Groups the units of `source` into jobs. Units that `known` finds are left out.
pub(super) fn batches<R: Source>(commands: &Commands, source: R, known: Option<Known>, look: Look) -> Batches<R> {
    // A unit that becomes an argument is shorter than this buffer.
    let most = if commands.shape.to_stdin && look.looks_inside() { LARGEST } else { BUFFER };
    let buffer = Buffer::new(commands.framing, BUFFER).growing(most);
    Batches::new(source, buffer, commands.shape, &commands.template, known, look)
}

fn drive(
    launch: &Launch,
    opened: OpenedSource,
    options: Options,
    (records, grants): (Option<Arc<Records>>, Arc<Grants<Attempt>>),
    (report, outcomes): (Report, Outcomes),
    (is_announced, look): (bool, Look),
    stops: &OnceLock<Arc<LaunchRun>>,
) -> Result<Exit> {
    signals::notice_ends().context("cannot handle signals")?;
    let known = records.as_ref().and_then(|records| records.known());
    let run = LaunchRun::start(report, outcomes, options, (records, Arc::clone(&grants))).context(NoThread)?;
    let launcher = &run.launcher;
    signal_thread::start(Arc::clone(&run.report), Some(Arc::clone(&run))).context("cannot handle signals")?;
    launcher.expect_room_for_a_command().context("cannot open the files that a command needs")?;
    keep_jobs(&run)?;
    let _ = stops.set(Arc::clone(&run));
    let mut flow = Launching::new(batches(&launch.commands, opened.source, known, look), Arc::clone(launcher));
    let result = long_wait::run(is_announced, &mut flow, &grants, &run.report);
    launcher.flush();
    run.outcomes().set_skipped(flow.batches().skipped(), flow.batches().done_before());
    launcher.slots.drain();
    launcher.flush();
    if !launcher.slots.stop() {
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

/// Reports to a bucket on a server that this run is alive, while the bucket counts its commands or awaits their costs.
fn keep_jobs(run: &LaunchRun) -> Result<()> {
    let report = Arc::clone(&run.report);
    if let Some(bucket) = report.grants.bucket().cloned().filter(|bucket| bucket.is_remote()) {
        let report = move || {
            if bucket.is_counted() {
                let _ = bucket.sync();
            }
        };
        held::report_regularly(report).context(NoThread)?;
    }
    Ok(())
}

/// Starts nothing more once the time of `--stop-after` has passed. The run is set when it begins; until then, the
/// program ends at that time, for example while the server of the bucket is away.
fn stop_after(launch: &Launch) -> Result<Arc<OnceLock<Arc<LaunchRun>>>> {
    let run: Arc<OnceLock<Arc<LaunchRun>>> = Arc::default();
    let Some(time) = launch.flags.again.stop_after else { return Ok(run) };
    let (begun, quiet) = (Arc::clone(&run), launch.reporting.quiet);
    let stop = move || {
        thread::sleep(time);
        let how = format!("--stop-after {}", humantime::format_duration(time));
        if let Some(run) = begun.get() {
            return run.start_nothing_more(&how);
        }
        if !quiet {
            say(format_args!("stopped by {how}: nothing was started; run the same command again"));
        }
        std::process::exit(Exit::SentAway.code().into())
    };
    start_thread("stop-after", stop).context(NoThread)?;
    Ok(run)
}

/// The error with which the pump ended. `name` is the name of the input.
pub(super) fn failed(error: PumpError, name: &str) -> anyhow::Error {
    match error {
        PumpError::Flow(FlowError::Read(error)) => anyhow!(error).context(format!("cannot read {name}")),
        PumpError::Flow(FlowError::Hold(error)) => anyhow!(error).context("cannot store units for --stdin"),
        PumpError::Flow(FlowError::Refused(number, unit, why)) => {
            anyhow!(why).context(names::one("unit", number, &unit))
        }
        PumpError::Store(error) => anyhow!(error),
        error @ PumpError::Flow(_) => anyhow!(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable had an effect in releases.
    #[test]
    fn only_builds_for_tests_shorten_waits() {
        let expected = if cfg!(debug_assertions) { 50 } else { 1000 };
        assert_eq!(shortened(divisor_of("20")), Duration::from_millis(expected));
        assert_eq!(["x", "0", ""].map(|text| shortened(divisor_of(text))), [Duration::from_secs(1); 3]);
    }
}
