//! Pipe mode: units go from the input to standard output.

use super::args::{Limits, ReportFlags};
use super::buckets;
use super::exit::Exit;
use super::input;
use super::progress::Progress;
use super::report::{self, Report, Total};
use super::say::say;
use super::task::Pipe;
use super::unit_name::UnitName;
use super::{long_wait, names, signal_thread, signals};
use anyhow::{Context, Result, anyhow};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use throttle::flow::framing::{Buffer, Framing, LARGEST};
use throttle::flow::pump::PumpError;
use throttle::flow::{
    Copying, Descriptor, First, Flow, FlowError, Grants, Look, News, Overview, SORTED_BUFFER, Sink, Sorted, Sorting,
    Source, Splice, enlarge, tee,
};
use throttle_limits::clock::{MILLISECOND, SystemClock};
use throttle_limits::limits::Policy;
use throttle_limits::store::StoreError;

/// The bytes of the buffer: enough that copying costs little, and few enough for the cache of one core.
const BUFFER: usize = 96 * 1024;

/// The bytes of a pipe if data is moved between pipes without a copy.
const PIPE_BYTES: usize = 1024 * 1024;

/// Passes the input on until its end.
///
/// # Errors
/// Reading, writing or the limits failed.
pub(super) fn run(pipe: &Pipe) -> Result<Exit> {
    let Pipe { limits, reporting, .. } = pipe;
    let input = input::open(pipe.input.file())?;
    let summary = report::open_summary(reporting, Some(input.fd.as_fd()))?;
    let check = |policy: &Policy| refuse_jobs(policy).and_then(|()| pipe.framing(policy).map(drop));
    let mut opened = buckets::open_stream(limits, pipe.stream(), false, check)?;
    let framing = pipe.framing(&opened.policy).map_err(|error| anyhow!(error))?;
    let unit = UnitName::of(framing);
    if reporting.sums_up(io::stderr().is_terminal()) {
        hint_at_idle_limits(limits, &opened.policy);
    }
    input.remark(unit.plural(), reporting).into_iter().for_each(say);
    input::hint_at_unused_stdin(&pipe.input, reporting);
    throttle_limits::clock::sharpen_this_thread();
    let progress = Progress::new(reporting, pipe.input.is_stdin(), None);
    let total = Total::new(reporting, input.size, 1);
    let (policy, has_keys) = (opened.policy.clone(), opened.sorting.has_keys);
    let begin = |grants: Arc<dyn Overview>| {
        let written = limits.written(&policy);
        let report = Arc::new(Report::new(unit, total, grants, (&policy, written, has_keys), summary, progress));
        signal_thread::start(Arc::clone(&report), None).context("cannot handle signals").map(|()| report)
    };
    let is_announced = limits.bucket.is_some() && !reporting.quiet;
    let name = input.name;
    let (passed_on, report) = if opened.sorting.is_sorted {
        let grants = opened.grants(false);
        let report = begin(Arc::clone(&grants) as Arc<dyn Overview>)?;
        let run = Run { framing, grants: &grants, is_announced, input: name, report: &report };
        (run.sort(input.fd, &opened.sorting, reporting), report)
    } else {
        let grants = opened.grants(false);
        let report = begin(Arc::clone(&grants) as Arc<dyn Overview>)?;
        let run = Run { framing, grants: &grants, is_announced, input: name, report: &report };
        (run.pass_on(input.fd, is_fast(&policy), &opened.sorting.look), report)
    };
    match passed_on {
        Ok(exit) => report.close().map(|()| exit),
        Err(error) => {
            report.close_or_say();
            Err(error)
        }
    }
}

/// Refuses the policy of a bucket that counts commands, because a pipe runs none.
fn refuse_jobs(policy: &Policy) -> Result<(), String> {
    let counts = policy.counts_jobs() || policy.of_keys().is_some_and(|keys| keys.fails.is_some());
    if counts { Err("it counts commands (jobs= or fails=), but no COMMAND was given".to_owned()) } else { Ok(()) }
}

/// Hints at limits that can never bind because of other limits. A run leaves them out.
pub(super) fn hint_at_idle_limits(limits: &Limits, policy: &Policy) {
    for (idle, other) in limits.idle(policy) {
        say(format_args!("the limit {idle} has no effect together with {other}"));
    }
}

/// Whether the limits let through the usual 64 KiB of a pipe within about a millisecond. A larger pipe is then worth
/// it: each time a pipe is full, the processes at both ends wake.
fn is_fast(policy: &Policy) -> bool {
    let in_a_millisecond = policy.pace().map_or(u64::MAX, |rate| rate.units_in(MILLISECOND).get());
    in_a_millisecond >= if policy.counts_bytes() { 64 * 1024 } else { 1_000 }
}

fn stdout() -> Result<OwnedFd> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
    input::ensure_open_for("writing", OFlags::RDONLY, &stdout, "standard output")?;
    Ok(stdout)
}

/// The parts of a run.
struct Run<'a, T> {
    framing: Framing,
    grants: &'a Grants<T>,
    /// Whether long waits are announced.
    is_announced: bool,
    /// The name of the input in messages.
    input: String,
    report: &'a Report,
}

impl Run<'_, First> {
    fn pass_on(&self, input: OwnedFd, fast: bool, look: &Look) -> Result<Exit> {
        let stdout = stdout()?;
        if fast {
            let width = if self.framing == Framing::Bytes { PIPE_BYTES } else { 2 * BUFFER };
            enlarge(&input, width);
            enlarge(&stdout, width);
        }
        let (source, sink) = match self.framing {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Framing::Bytes => match Splice::new(input, stdout) {
                Ok(mut splice) => return self.drive(&mut splice),
                Err(ends) => ends,
            },
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Framing::EndedBy(_) if fast => match tee(input, stdout) {
                Ok((source, sink)) => return self.copy(source, sink, look),
                Err(ends) => ends,
            },
            _ => (input, stdout),
        };
        self.copy(Descriptor(source), Descriptor(sink), look)
    }

    fn copy(&self, source: impl Source, sink: impl Sink, look: &Look) -> Result<Exit> {
        let size = if look.costs.is_empty() { BUFFER } else { SORTED_BUFFER };
        let most = if look.looks_inside() { LARGEST } else { size };
        let buffer = Buffer::new(self.framing, size).growing(most);
        let mut flow = Copying::new(source, sink, buffer, look.clone(), &self.report.meter);
        self.drive(&mut flow)
    }
}

impl Run<'_, Box<[u8]>> {
    /// Passes on the units that the limits of each key allow.
    fn sort(&self, input: OwnedFd, sorting: &Sorting, reporting: &ReportFlags) -> Result<Exit> {
        let stdout = stdout()?;
        enlarge(&input, SORTED_BUFFER);
        enlarge(&stdout, SORTED_BUFFER);
        let (quiet, hints) = (reporting.quiet, reporting.sums_up(io::stderr().is_terminal()));
        let show_news = |news: News| {
            if !quiet && (hints || !matches!(news, News::NoKeys(_))) {
                self.report.aside(names::news_text(&news));
            }
        };
        let clock = &SystemClock;
        let (source, sink) = (Descriptor(input), Descriptor(stdout));
        let mut flow = Sorted::new(source, sink, self.framing, sorting, (clock, false), &self.report.meter, show_news);
        let result = self.drive(&mut flow);
        if let Some(dropped) = flow.unreported().filter(|_| !quiet) {
            self.report.aside(names::news_text(&News::Dropped(dropped.clone())));
        }
        result
    }
}

impl<T: Send> Run<'_, T> {
    fn drive(&self, flow: &mut impl Flow<Unit = T>) -> Result<Exit> {
        let Err(error) = long_wait::run(self.is_announced, flow, self.grants, self.report) else {
            return Ok(Exit::Success);
        };
        let (what, error) = match error {
            PumpError::Flow(FlowError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {
                return Ok(self.end_without_reader());
            }
            PumpError::Store(StoreError::Stopped) if self.report.has_no_reader() => {
                return Ok(self.end_without_reader());
            }
            PumpError::Flow(FlowError::Write(error)) => ("cannot write to standard output".to_owned(), error.into()),
            PumpError::Flow(FlowError::Read(error)) => (format!("cannot read {}", self.input), error.into()),
            PumpError::Flow(FlowError::Hold(error)) => {
                ("there is no memory for a unit of this length; make the units shorter".to_owned(), error.into())
            }
            PumpError::Flow(FlowError::Refused(number, unit, why)) => {
                let unit = names::one(UnitName::of(self.framing).singular(), number, &unit);
                (format!("cannot pass on {unit}"), anyhow!(why))
            }
            PumpError::Store(StoreError::Stopped) => signals::wait_for_end(),
            PumpError::Store(error) => ("cannot request a grant".to_owned(), anyhow::Error::from(error)),
        };
        let (passed, waiting) = (self.report.count(), flow.state(self.grants).ahead.units);
        let lost = if waiting > 0 { format!("; {waiting} more had been read") } else { String::new() };
        Err(error.context(format!("{what}, after {passed}{lost}")))
    }

    fn end_without_reader(&self) -> Exit {
        // Another thread has noticed that the reader is gone, and may still give grants back. This call waits for it.
        self.report.has_no_reader();
        if self.report.is_signalled.load(Ordering::SeqCst) {
            // Ctrl-C also ends the reader, often before throttle. The loop of a shell must see that Ctrl-C was the
            // reason.
            signals::wait_for_end();
        }
        self.report.close_or_say();
        signals::die_of_broken_pipe()
    }
}
