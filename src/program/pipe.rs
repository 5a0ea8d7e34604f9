//! Pipe mode: units go from the input to standard output.

use super::bucket;
use super::exit::Exit;
use super::flags::Flags;
use super::input::{self, Input};
use super::report::{Report, Total, UnitName};
use super::{say, signals, turn};
use anyhow::{Context, Result};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::io::ErrorKind;
use std::sync::Arc;
use throttle::clock::MILLISECOND;
use throttle::flow::framing::{Buffer, Framing};
use throttle::flow::pump::PumpError;
use throttle::flow::{Copying, Descriptor, Flow, FlowError, Sink, Source, Splice, enlarge, tee};
use throttle::limits::Plan;
use throttle::store::StoreError;

/// Large enough that a copy is not felt, small enough to stay in the cache of one core.
const BUFFER: usize = 96 * 1024;

/// How wide pipes are made between which bytes are moved; what is copied should stay in the cache instead.
const WIDE: usize = 1024 * 1024;

/// Passes the input on until its end.
///
/// # Errors
/// What failed, with what.
pub(crate) fn run(flags: &Flags) -> Result<Exit> {
    let input = input::open(flags.arg_file())?;
    let (supply, flags) = bucket::supply(flags)?;
    let flags = &flags;
    hints(flags, &input);
    throttle::clock::sharpen_this_thread();
    let report = Arc::new(Report::new(flags, UnitName::of(flags.framing()), input.size.map(Total::Bytes), supply)?);
    signals::attend(Arc::clone(&report), None).context("cannot handle signals")?;
    match pass_on(flags, input, &report) {
        Ok(exit) => report.close().map(|()| exit),
        Err(error) => {
            report.close_or_say();
            Err(error)
        }
    }
}

/// What the user should know before anything happens.
fn hints(flags: &Flags, input: &Input) {
    hint_at_idle_limit(flags);
    let unit = UnitName::of(flags.framing());
    if flags.arg_file().is_none()
        && !flags.is_quiet()
        && let Some(remark) = input::remark(&input.fd, unit.plural(), "pass on")
    {
        say(remark);
    }
}

/// Names the limit that can never bind beside the others, if there is one.
pub(super) fn hint_at_idle_limit(flags: &Flags) {
    if let Some((idle, other)) = flags.plan().never_binds().filter(|_| !flags.is_quiet()) {
        let (idle, other) = (flags.plan().describe(idle), flags.plan().describe(other));
        say(format_args!("the limit {idle} can never bind beside {other}"));
    }
}

fn pass_on(flags: &Flags, input: Input, report: &Report) -> Result<Exit> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
    input::ensure_open_for("writing", OFlags::RDONLY, &stdout, "standard output")?;
    let name = input.name;
    let (framing, fast) = (flags.framing(), is_fast(flags.plan()));
    if fast {
        let width = if framing == Framing::Bytes { WIDE } else { 2 * BUFFER };
        enlarge(&input.fd, width);
        enlarge(&stdout, width);
    }
    let (source, sink) = match framing {
        Framing::Bytes => match Splice::new(input.fd, stdout) {
            Ok(mut splice) => return drive(flags, &mut splice, &name, report),
            Err(ends) => ends,
        },
        Framing::EndedBy(_) if fast => match tee(input.fd, stdout) {
            Ok((source, sink)) => return copy(flags, source, sink, &name, report),
            Err(ends) => ends,
        },
        Framing::EndedBy(_) => (input.fd, stdout),
    };
    copy(flags, Descriptor(source), Descriptor(sink), &name, report)
}

/// Whether a pipe of the usual 64 KiB would be filled within a millisecond or so, and its two ends woken each time.
fn is_fast(plan: &Plan) -> bool {
    let in_a_millisecond = plan.fastest().map_or(u64::MAX, |rate| rate.units_in(MILLISECOND).get());
    in_a_millisecond >= if plan.counts_bytes() { 64 * 1024 } else { 1_000 }
}

fn copy(flags: &Flags, source: impl Source, sink: impl Sink, name: &str, report: &Report) -> Result<Exit> {
    let mut flow = Copying::new(source, sink, Buffer::new(flags.framing(), BUFFER), report.meter());
    drive(flags, &mut flow, name, report)
}

fn drive(flags: &Flags, flow: &mut impl Flow, name: &str, report: &Report) -> Result<Exit> {
    let failed = |what: String, error: anyhow::Error, waiting: u64| {
        let passed = report.count();
        let lost = if waiting > 0 { format!("; {waiting} more had been read") } else { String::new() };
        error.context(format!("{what}, after {passed}{lost}"))
    };
    match turn::run(flags, flow, report) {
        Ok(()) => Ok(Exit::Success),
        Err(PumpError::Flow(FlowError::Write(error))) if error.kind() == ErrorKind::BrokenPipe => {
            report.close_or_say();
            Ok(signals::die_of_broken_pipe())
        }
        Err(PumpError::Flow(FlowError::Write(error))) => {
            Err(failed("cannot write to standard output".to_owned(), error.into(), flow.waiting()))
        }
        Err(PumpError::Flow(FlowError::Read(error) | FlowError::Hold(error))) => {
            Err(failed(format!("cannot read {name}"), error.into(), flow.waiting()))
        }
        Err(PumpError::Store(StoreError::Stopped)) => signals::wait_for_end(),
        Err(PumpError::Store(error)) => Err(failed("cannot ask the limits".to_owned(), error.into(), flow.waiting())),
    }
}
