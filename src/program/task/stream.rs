//! Streams: units that are passed on, or for which commands run.

use super::call::{BUCKET_OF_UNITS, Call};
use crate::program::args::{Args, Grouped, InputFlags, LaunchFlags, Limits, ReportFlags, Stream};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use throttle::flow::framing::Framing;
use throttle::launch::{Place, Reading, Shape, Template};
use throttle_limits::limits::Policy;

/// The task to pass units on, or to show which units would leave.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    pub(crate) limits: Limits,
    /// The longest wait of a unit. Units that would wait longer are dropped.
    drop_after: Option<Duration>,
    pub(crate) input: InputFlags,
    pub(crate) reporting: ReportFlags,
    /// Whether units leave in input order, even if they have keys.
    pub(crate) keep_order: bool,
    pub(crate) dry_run: bool,
}

/// The task to run a command for each unit, or to show which commands would run.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) limits: Limits,
    pub(crate) commands: Commands,
    pub(crate) flags: LaunchFlags,
    pub(crate) reporting: ReportFlags,
    /// With --once, the call. The single unit represents it.
    pub(crate) call: Option<Call>,
}

/// Commands and their units.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) template: Template,
    /// The words of the command; empty for a script.
    pub(crate) words: Vec<OsString>,
    pub(crate) shape: Shape,
    pub(crate) input: InputFlags,
    pub(crate) framing: Framing,
    /// Whether there is a single command (`--once`), for which no unit is read.
    pub(crate) is_once: bool,
}

impl Pipe {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let named = limits.named.as_ref();
        let framing = args.input.framing(&limits.policy())?;
        if let Some(mistake) = named.and_then(Grouped::jobs_without_commands) {
            return Err(mistake);
        }
        let drop_after = args.limit.drop.then(|| args.shared.max_wait.unwrap_or_default());
        let keep_order = args.launch.keep_order;
        // The limits of a bucket are known only after it is opened.
        let has_keys = named.is_none_or(|named| named.policy.of_keys().is_some());
        if keep_order && (!has_keys || args.input.ahead.is_some()) {
            return Err(KEPT_ORDER.to_owned());
        }
        if args.input.ahead.is_some() && !has_keys && drop_after.is_none() {
            return Err(AHEAD_OF_KEYS.to_owned());
        }
        if args.limit.drop && limits.bucket.is_some() {
            return Err("--drop cannot be used with a bucket; write for example -r 5/s --drop".to_owned());
        }
        if args.limit.drop && framing == Framing::Bytes {
            return Err("--drop drops lines or records, not bytes; write for example -r 100/s --drop".to_owned());
        }
        let (input, reporting, dry_run) = (args.input, args.report, args.launch.dry_run);
        Ok(Pipe { limits, drop_after, input, reporting, keep_order, dry_run })
    }

    /// The framing of the units under `policy`, which is the policy of the run or of a bucket.
    ///
    /// # Errors
    /// Units cannot be passed on under `policy`, or not as the flags require.
    pub(crate) fn framing(&self, policy: &Policy) -> Result<Framing, String> {
        let has_no_keys = self.limits.bucket.is_some() && policy.of_keys().is_none();
        if has_no_keys && self.keep_order {
            return Err(KEPT_ORDER.to_owned());
        }
        if has_no_keys && self.input.ahead.is_some() {
            return Err(AHEAD_OF_KEYS.to_owned());
        }
        let framing = self.input.framing(&Policy::default())?;
        if policy.counts_bytes()
            && self.limits.bucket.is_some()
            && let Framing::EndedBy(_) = framing
            && !self.input.is_default()
        {
            let flag = if self.input.null { "-0" } else { "-d" };
            return Err(format!(
                "{flag}: the bucket counts bytes, but {flag} cuts records; leave {flag} out, or {BUCKET_OF_UNITS}"
            ));
        }
        self.input.framing(policy)
    }

    pub(crate) fn stream(&self) -> Stream {
        let ahead = if self.keep_order { 1 } else { self.input.ahead() };
        Stream { ahead, runs: false, drop_after: self.drop_after }
    }
}

impl Launch {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let (flags, reporting) = (args.launch.clone(), args.report.clone());
        flags.refuse_unrepeatable_output()?;
        let launch = Launch { commands: Commands::new(args, &limits)?, limits, flags, reporting, call: None };
        // The limits of a bucket are known only after it is opened.
        if let Some(named) = &launch.limits.named {
            launch.check(&named.policy)?;
        }
        Ok(launch)
    }

    /// Checks that commands can run under `policy`, which is the policy of the run or of a bucket.
    ///
    /// # Errors
    /// Commands cannot run under `policy`, or not as the flags require.
    pub(crate) fn check(&self, policy: &Policy) -> Result<(), String> {
        let has_order = policy.of_keys().is_some() || policy.counts_jobs() || self.flags.again.attempts.is_some();
        if self.commands.input.ahead.is_some() && !has_order {
            return Err(
                "--ahead needs --attempts or limits for each key; write for example --attempts 5 --ahead 10000"
                    .to_owned(),
            );
        }
        if policy.counts_bytes() && self.limits.bucket.is_some() {
            return Err(format!("commands are not counted in bytes; {BUCKET_OF_UNITS}"));
        }
        Commands::check(policy)?;
        self.call.as_ref().map_or(Ok(()), |call| call.ask(policy).map(drop))
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream { ahead: self.commands.input.ahead(), runs: true, drop_after: None }
    }
}

impl Commands {
    fn new(args: Args, limits: &Limits) -> Result<Self, String> {
        let Args { input, launch, command: words, .. } = args;
        Commands::check(&limits.policy())?;
        let framing = input.framing(&Policy::default())?;
        if framing == Framing::Bytes {
            return Err(NO_BYTES.to_owned());
        }
        let place = match (launch.stdin, input.repeat) {
            (true, _) => Place::StandardInput,
            (false, Some(_)) => Place::Nowhere,
            (false, None) => Place::Arguments,
        };
        let max_args = launch.max_args.unwrap_or(1);
        let keep = launch.again.attempts.is_some() || launch.again.done.is_some() || launch.again.log.is_some();
        let reading = Reading { replace: launch.replace, max_args, place, columns: launch.columns };
        let template = match &launch.shell {
            Some(script) => Template::shell(script, &reading)?,
            None => Template::new(&words, &reading)?,
        };
        let shape = Shape { max_args, to_stdin: launch.stdin, skip_blank: input.is_default(), keep };
        Ok(Commands { template, words, shape, input, framing, is_once: false })
    }

    /// Checks that commands can run under `policy`.
    ///
    /// # Errors
    /// `policy` counts bytes, but commands are not bytes.
    pub(crate) fn check(policy: &Policy) -> Result<(), String> {
        if policy.counts_bytes() { Err(NO_BYTES.to_owned()) } else { Ok(()) }
    }

    /// The name of the command in messages.
    pub(crate) fn name(&self) -> String {
        let name = self.words.first().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| "the script".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

const KEPT_ORDER: &str = "--keep-order needs a command, or limits for each key without --ahead, like -r 1/s,per=host -k; \
    a pipe without such limits keeps the order anyway";

const AHEAD_OF_KEYS: &str = "--ahead needs limits for each key; write for example -r 1/s,per=host --ahead 10000";

const NO_BYTES: &str = "--rate: commands are not counted in bytes; write -r 5/s \
    (to limit the traffic of a command use its own option: rsync --bwlimit, curl --limit-rate)";
