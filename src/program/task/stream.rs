//! Streams: units that are passed on, or for which commands run.

use crate::program::args::{Args, Grouped, InputFlags, LaunchFlags, Limits, ReportFlags};
use std::ffi::OsString;
use std::path::Path;
use throttle::flow::Sorting;
use throttle::flow::framing::Framing;
use throttle::launch::{Place, Reading, Shape, Template};
use throttle_limits::limits::Policy;

/// Pass units on, or show which would leave.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    pub(crate) limits: Limits,
    /// If limits are kept for each key, or units are dropped.
    pub(crate) sorting: Option<Sorting>,
    pub(crate) input: InputFlags,
    pub(crate) reporting: ReportFlags,
    pub(crate) dry_run: bool,
}

/// Run a command for each unit, or show what would run.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) limits: Limits,
    /// If limits are kept for each key.
    pub(crate) sorting: Option<Sorting>,
    pub(crate) commands: Commands,
    pub(crate) flags: LaunchFlags,
    pub(crate) reporting: ReportFlags,
}

/// Commands, and the units that they are for.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) template: Template,
    /// The command's words. Empty for a script.
    pub(crate) words: Vec<OsString>,
    pub(crate) shape: Shape,
    pub(crate) input: InputFlags,
    pub(crate) framing: Framing,
}

impl Pipe {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let named = limits.named();
        let framing = args.input.framing(&named.map(Grouped::policy).unwrap_or_default())?;
        if let Some(mistake) = named.and_then(Grouped::jobs_without_commands) {
            return Err(mistake);
        }
        let mut sorting = sorting(&args, &limits, false);
        if args.launch.keep_order {
            let has_keys = |sorting: &&mut Sorting| sorting.look.per.is_some() && args.input.ahead.is_none();
            let in_order = sorting.as_mut().filter(has_keys).ok_or(KEPT_ORDER)?;
            in_order.ahead = 1;
        }
        if args.input.ahead.is_some() && sorting.is_none() && limits.bucket().is_none() {
            return Err(
                "--ahead belongs to limits for each key; write for example -r 1/s,per=host --ahead 10000".to_owned()
            );
        }
        if args.limit.drop && limits.bucket().is_some() {
            return Err("--drop: a bucket's units are not dropped; write -r 5/s --drop".to_owned());
        }
        if args.limit.drop && framing == Framing::Bytes {
            return Err("--drop drops lines or records, not bytes; write for example -r 100/s --drop".to_owned());
        }
        Ok(Pipe { limits, sorting, input: args.input, reporting: args.report, dry_run: args.launch.dry_run })
    }
}

/// How units are sorted. `runs`: commands run for them.
fn sorting(args: &Args, limits: &Limits, runs: bool) -> Option<Sorting> {
    let drop_after = args.limit.drop.then(|| args.shared.max_wait.unwrap_or_default());
    let Limits::Own(named) = limits else { return None };
    named.sorting(drop_after, args.input.ahead(), runs)
}

impl Launch {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let sorting = sorting(&args, &limits, !args.launch.dry_run);
        let (flags, reporting) = (args.launch.clone(), args.report.clone());
        flags.refuse_unrepeatable_output()?;
        let has_order = sorting.is_some() || flags.again.attempts.is_some() || limits.bucket().is_some();
        if args.input.ahead.is_some() && !has_order {
            return Err("--ahead belongs to --attempts; write for example --attempts 5 --ahead 10000".to_owned());
        }
        Ok(Launch { commands: Commands::new(args, &limits)?, limits, sorting, flags, reporting })
    }
}

impl Commands {
    fn new(args: Args, limits: &Limits) -> Result<Self, String> {
        let Args { input, launch, command: words, .. } = args;
        let named = limits.named().map(Grouped::policy);
        Commands::check(&named.unwrap_or_default())?;
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
        let reading = Reading { replace: launch.replace, max_args, place };
        let template = match &launch.shell {
            Some(script) => Template::shell(script, &reading)?,
            None => Template::new(&words, &reading)?,
        };
        let shape = Shape { max_args, to_stdin: launch.stdin, skip_blank: input.is_default(), keep };
        Ok(Commands { template, words, shape, input, framing })
    }

    /// Whether they can run under these limits.
    ///
    /// # Errors
    /// Commands are not bytes.
    pub(crate) fn check(policy: &Policy) -> Result<(), String> {
        if policy.counts_bytes() { Err(NO_BYTES.to_owned()) } else { Ok(()) }
    }

    /// What a message calls the command.
    pub(crate) fn name(&self) -> String {
        let name = self.words.first().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| "the script".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

const KEPT_ORDER: &str = "--keep-order needs a command, or limits for each key without --ahead, like -r 1/s,per=host -k; \
    a pipe without such limits keeps the order";

const NO_BYTES: &str = "--rate: a command is a unit, not bytes; write -r 5/s \
    (for a command's own traffic use its option: rsync --bwlimit, curl --limit-rate)";
