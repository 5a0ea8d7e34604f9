//! `--once`: one call, for which no unit is read.

use super::call::Call;
use super::stream::{Commands, Launch};
use crate::program::args::{Args, Bucket, Limits, ProgressWhen};
use std::ffi::OsString;
use std::time::Duration;
use throttle::flow::framing::Framing;
use throttle::launch::{Shape, Template};
use throttle_limits::clock::{Nanos, in_nanos};

/// The task to take one unit from a bucket, and then become a command.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) bucket: Bucket,
    pub(crate) call: Call,
    pub(crate) max_wait: Option<Duration>,
    /// The words of the command; empty if nothing runs.
    pub(crate) command: Vec<OsString>,
    pub(crate) quiet: bool,
}

impl Once {
    pub(super) fn new(bucket: Bucket, args: Args) -> Result<Self, String> {
        let command = words(&args);
        let call = Call::new(&args.limit, args.shared.key, !command.is_empty())?;
        Ok(Once { bucket, call, max_wait: args.shared.max_wait, command, quiet: args.report.quiet })
    }

    /// The latest time for a grant that was requested at `requested`.
    pub(crate) fn latest(&self, requested: Nanos) -> Nanos {
        self.max_wait.map_or(Nanos::MAX, |wait| requested.saturating_add(in_nanos(wait)))
    }
}

/// Whether the command runs as a child of this process. Otherwise this process becomes the command.
pub(super) fn is_watched(args: &Args) -> bool {
    args.launch.again.attempts.is_some() || args.launch.timeout.is_some()
}

impl Launch {
    /// Creates the task to run one command, without a unit from the input.
    ///
    /// # Errors
    /// The arguments have a mistake.
    pub(super) fn once(bucket: Option<Bucket>, args: Args) -> Result<Self, String> {
        let all = words(&args);
        let Args { limit, shared, input, command, mut launch, mut report } = args;
        if bucket.is_none() {
            Limits::ensure_none(&limit, &shared)?;
        }
        let call = Call::new(&limit, shared.key, true)?;
        let limits = Limits { bucket, named: call.named.clone() };
        // A single command has the terminal and the output for itself.
        launch.jobs = Some(1);
        if report.progress == ProgressWhen::Auto {
            report.progress = ProgressWhen::Never;
        }
        let shape = Shape { max_args: 0, keep: true, ..Shape::default() };
        let words = if launch.shell.is_some() { Vec::new() } else { command };
        let template = Template::plain(all);
        let commands = Commands { template, words, shape, input, framing: Framing::EndedBy(b'\n'), is_once: true };
        Ok(Launch { limits, commands, flags: launch, reporting: report, call: Some(call) })
    }
}

/// The words of the command. The words after a script are its arguments.
fn words(args: &Args) -> Vec<OsString> {
    let script = args.launch.shell.iter();
    let script = script.flat_map(|script| ["sh".into(), "-c".into(), script.clone(), "throttle -c".into()]);
    script.chain(args.command.iter().cloned()).collect()
}
