//! Further attempts, and what is kept of those that have ended.

use crate::program::args::{Args, MaxFail};
use std::path::PathBuf;
use std::time::Duration;
use throttle::launch::{Backoff, RetryPolicy};

/// Waits between attempts by default.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// The least pause if the server names no time.
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause by default.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Units that wait for another attempt by default before no new ones start.
const AHEAD: usize = 10_000;

/// What happens to units that fail, and what is kept of those that have ended.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    pub(crate) policy: Option<RetryPolicy>,
    /// How many failed units end the run.
    pub(crate) max_fail: Option<MaxFail>,
    /// The units that succeeded, in this run or in earlier ones.
    pub(crate) done: Option<PathBuf>,
    /// A line for each attempt.
    pub(crate) log: Option<PathBuf>,
}

impl Again {
    /// `reads_ahead`: units are read while others wait, also without further attempts.
    pub(super) fn new(args: &Args, reads_ahead: bool) -> Result<Self, String> {
        let policy = match args.attempts {
            None => refuse_without_attempts(args, reads_ahead).map(|()| None),
            Some(_) if args.ungroup || args.line_buffer => {
                let flag = if args.ungroup { "-u" } else { "--line-buffer" };
                Err(format!(
                    "{flag}: the output of an attempt that is repeated must not be printed; with --attempts leave {flag} out"
                ))
            }
            Some(attempts) => Ok(Some(RetryPolicy {
                attempts,
                backoff: args.backoff.unwrap_or(BACKOFF),
                retry_on: args.retry_on.clone(),
                first_pause: SHORTEST_PAUSE,
                max_pause: args.max_pause.unwrap_or(MAX_PAUSE),
                ahead: ahead(args),
            })),
        };
        let (done, log) = (args.done.clone(), args.log.clone());
        Ok(Again { policy: policy?, max_fail: args.max_fail, done, log })
    }
}

/// The most units that are read while others wait.
pub(super) fn ahead(args: &Args) -> usize {
    args.ahead.map_or(AHEAD, std::num::NonZeroUsize::get)
}

/// # Errors
/// An option that means nothing without `--attempts`.
fn refuse_without_attempts(args: &Args, reads_ahead: bool) -> Result<(), String> {
    let options = [
        (args.backoff.is_some(), "--backoff 1s..60s"),
        (args.retry_on.is_some(), "--retry-on 6,7,28"),
        (args.max_pause.is_some(), "--max-pause 1h"),
        (args.ahead.is_some() && !reads_ahead, "--ahead 10000"),
    ];
    match options.into_iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, example)) => {
            let flag = example.split(' ').next().unwrap_or(example);
            Err(format!("{flag} belongs to --attempts; write for example --attempts 5 {example}"))
        }
    }
}
