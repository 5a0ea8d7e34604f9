//! Streams: units that are passed on, or for which commands run.

use super::again::Again;
use super::limits::{Grouped, Limits};
use crate::program::args::{Args, Format, ProgressWhen, Repeat, Summary};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use throttle::flow::Sorting;
use throttle::flow::framing::Framing;
use throttle::launch::{Output, Place, Reading, Shape, Template};
use throttle_limits::limits::Policy;

/// Commands at once by default.
pub(crate) const JOBS: u32 = 16;

/// Pass units on.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    pub(crate) limits: Limits,
    /// If limits are kept for each key, or units are dropped.
    pub(crate) sorting: Option<Sorting>,
    /// `None`: standard input.
    pub(crate) file: Option<PathBuf>,
    pub(crate) delimiter: Delimiter,
    pub(crate) reporting: Reporting,
}

/// Run a command for each unit.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) limits: Limits,
    /// If limits are kept for each key.
    pub(crate) sorting: Option<Sorting>,
    pub(crate) commands: Commands,
    /// `None`: the default number.
    pub(crate) jobs: Option<u32>,
    pub(crate) output: Output,
    pub(crate) tag: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) again: Again,
    pub(crate) trace: bool,
    pub(crate) reporting: Reporting,
}

/// Show what would run or leave.
#[derive(Clone, Debug)]
pub(crate) struct DryRun {
    pub(crate) limits: Limits,
    /// If limits are kept for each key, or units are dropped.
    pub(crate) sorting: Option<Sorting>,
    pub(crate) work: Work,
    /// Commands for the units in this file are not shown.
    pub(crate) done: Option<PathBuf>,
    pub(crate) quiet: bool,
}

/// What a dry run shows.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Commands(Commands),
    /// Units that are passed on: their file, see [`Pipe`], and what ends them.
    Units(Option<PathBuf>, Delimiter),
}

/// Commands, and the units that they are for.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) template: Template,
    /// The command's words; none of a script.
    pub(crate) words: Vec<OsString>,
    pub(crate) shape: Shape,
    pub(crate) units: Units,
    pub(crate) framing: Framing,
}

/// Where units come from.
#[derive(Clone, Debug)]
pub(crate) enum Units {
    /// From a file; `None`: standard input.
    Read(Option<PathBuf>),
    /// They are numbers.
    Made(Repeat),
}

/// What ends a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimiter {
    Newline,
    /// This byte, and the option that says so.
    Byte(u8, &'static str),
    /// Each byte is a unit.
    Nothing,
}

/// How a stream is reported on.
#[derive(Clone, Debug)]
pub(crate) struct Reporting {
    pub(crate) progress: ProgressWhen,
    pub(crate) summary: Option<Summary>,
    pub(crate) quiet: bool,
}

impl Pipe {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let delimiter = Delimiter::of(&args);
        if let Some(named) = limits.named() {
            delimiter.framing(&named.policy())?;
            if let Some(mistake) = named.jobs_without_commands() {
                return Err(mistake);
            }
        }
        if let Some(flag) = &args.launch_option {
            return Err(format!("{flag} needs a command; write throttle -r 5/s {flag} … COMMAND, or -c SCRIPT"));
        }
        let sorting = limits.named().and_then(|named| named.sorting(&args, false));
        if args.ahead.is_some() && sorting.is_none() {
            return Err(
                "--ahead belongs to limits for each key; write for example -r 1/s,per=host --ahead 10000".to_owned()
            );
        }
        if args.drop && delimiter.framing(&limits.named().map(Grouped::policy).unwrap_or_default())? == Framing::Bytes {
            return Err("--drop drops lines or records, not bytes; write for example -r 100/s --drop".to_owned());
        }
        Ok(Pipe { limits, sorting, delimiter, reporting: Reporting::of(&args), file: file(args) })
    }
}

impl Launch {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let sorting = limits.named().and_then(|named| named.sorting(&args, true));
        let again = Again::new(&args, sorting.is_some())?;
        Ok(Launch {
            // One command at a time has our output for itself, unless something is to be done with it.
            output: match &args {
                Args { attempts: Some(_), keep_order: false, .. } => Output::Whole,
                Args { attempts: Some(_), .. } => Output::InOrder,
                Args { ungroup: true, .. } | Args { jobs: Some(1), tag: false, .. } => Output::Direct,
                Args { line_buffer: true, .. } | Args { jobs: Some(1), .. } => Output::Lines,
                Args { keep_order: true, .. } => Output::InOrder,
                _ => Output::Whole,
            },
            jobs: args.jobs,
            tag: args.tag,
            timeout: args.timeout,
            again,
            trace: args.trace,
            reporting: Reporting::of(&args),
            commands: Commands::new(args, &limits)?,
            sorting,
            limits,
        })
    }
}

impl DryRun {
    pub(super) fn new(args: Args, limits: Limits) -> Result<Self, String> {
        let (quiet, done) = (args.quiet, args.done.clone());
        let sorting = limits.named().and_then(|named| named.sorting(&args, false));
        let work = if args.shell.is_none() && args.command.is_empty() {
            let Pipe { file, delimiter, .. } = Pipe::new(args, limits.clone())?;
            Work::Units(file, delimiter)
        } else {
            Work::Commands(Commands::new(args, &limits)?)
        };
        Ok(DryRun { limits, sorting, work, done, quiet })
    }
}

impl Commands {
    fn new(args: Args, limits: &Limits) -> Result<Self, String> {
        let delimiter = Delimiter::of(&args);
        let named = limits.named().map(Grouped::policy);
        Commands::check(&named.unwrap_or_default())?;
        let framing = delimiter.framing(&Policy::default())?;
        if framing == Framing::Bytes {
            return Err(NO_BYTES.to_owned());
        }
        let place = match &args {
            Args { stdin: true, .. } => Place::StandardInput,
            Args { repeat: Some(_), .. } => Place::Nowhere,
            _ => Place::Arguments,
        };
        let max_args = args.max_args.unwrap_or(1);
        let keep = args.attempts.is_some() || args.done.is_some() || args.log.is_some();
        let reading = Reading { replace: args.replace.clone(), max_args, place };
        let template = match &args.shell {
            Some(script) => Template::shell(script, &reading),
            None => Template::new(&args.command, &reading),
        };
        Ok(Commands {
            template: template.map_err(|error| error.to_string())?,
            words: args.command.clone(),
            shape: Shape { max_args, to_stdin: args.stdin, skip_blank: delimiter == Delimiter::Newline, keep },
            framing,
            units: args.repeat.map_or_else(|| Units::Read(file(args)), Units::Made),
        })
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

const NO_BYTES: &str = "--rate: a command is a unit, not bytes; write -r 5/s \
    (for a command's own traffic use its option: rsync --bwlimit, curl --limit-rate)";

impl Units {
    /// Whether they are read from standard input.
    pub(crate) fn are_from_stdin(&self) -> bool {
        matches!(self, Units::Read(None))
    }
}

impl Reporting {
    fn of(args: &Args) -> Self {
        Reporting { progress: args.progress, summary: args.summary.clone(), quiet: args.quiet }
    }

    /// Whether totals and hints are told after a success, too: on a terminal, or if the user asked for them. cron would mail
    /// them.
    pub(crate) fn sums_up(&self, on_terminal: bool) -> bool {
        let said_here = |summary: &Summary| summary.format == Format::Text && summary.file.is_none();
        !self.quiet && (on_terminal || self.summary.as_ref().is_some_and(said_here))
    }
}

/// `-` is standard input.
fn file(args: Args) -> Option<PathBuf> {
    args.arg_file.filter(|file| file != Path::new("-"))
}

impl Delimiter {
    fn of(args: &Args) -> Self {
        match args.delimiter {
            _ if args.null => Delimiter::Byte(0, "-0"),
            Some(byte) => Delimiter::Byte(byte, "-d"),
            None if args.bytes => Delimiter::Nothing,
            None => Delimiter::Newline,
        }
    }

    /// How the input is cut under these limits.
    ///
    /// # Errors
    /// Records are not bytes.
    pub(crate) fn framing(self, policy: &Policy) -> Result<Framing, String> {
        match self {
            Delimiter::Byte(_, flag) if policy.counts_bytes() => Err(format!(
                "{flag}: the rate counts bytes, and {flag} cuts records; for records a second write -r 100/s {flag}, for bytes leave {flag} out"
            )),
            Delimiter::Byte(byte, _) => Ok(Framing::EndedBy(byte)),
            Delimiter::Newline if !policy.counts_bytes() => Ok(Framing::EndedBy(b'\n')),
            Delimiter::Newline | Delimiter::Nothing => Ok(Framing::Bytes),
        }
    }
}
