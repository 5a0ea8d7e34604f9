//! What is to be done, from the command line and the environment. Every mistake in them is found here: nothing is opened
//! and no server is contacted.

mod call;
mod once;
mod stream;

pub(crate) use call::NO_KEYS;
pub(crate) use once::Once;
pub(crate) use stream::{Commands, Launch, Pipe};

use super::args::{Args, Bucket, Environment, Format, Grouped, Kind, Limits, SharedFlags, refuse_bytes};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;
use throttle_limits::limits::Policy;
use throttle_limits::rate::Limit;
use throttle_limits::store::Place;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Pipe(Box<Pipe>),
    Launch(Box<Launch>),
    Once(Once),
    Bucket(Bucket, Verb),
    /// Write a page about these logs.
    Plot(Vec<PathBuf>),
}

/// What is asked of a bucket by itself.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Set(Set),
    Show(Format),
    /// Empty its queue, or that of one key.
    Clear(Option<Vec<u8>>),
    /// Grant nothing for so long, or nothing to one key. Zero lifts a pause.
    Pause(Duration, Option<Vec<u8>>),
    /// Name the buckets beside this one.
    List(Format),
    Remove {
        quiet: bool,
    },
}

/// Set the limits of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) policy: Policy,
    /// Which limits name their `initial`, and so start anew.
    pub(crate) fresh: Vec<bool>,
    /// Whether everything starts anew.
    pub(crate) anew: bool,
    /// The name or number of a group whose members may use its file.
    pub(crate) group: Option<String>,
}

impl Task {
    /// What `args` ask for.
    ///
    /// # Errors
    /// What is wrong with them, in words that name the option and show a right spelling.
    pub(crate) fn new(args: Args, environment: &Environment) -> Result<Self, String> {
        if !args.report.plot.is_empty() {
            let is_alone = args.limit.rate.is_empty() && args.command.is_empty();
            let wrong =
                "--plot reads logs of --log, without limits and commands; write throttle --plot tries.jsonl > run.html";
            return if is_alone { Ok(Task::Plot(args.report.plot)) } else { Err(wrong.to_owned()) };
        }
        let shared = &args.shared;
        let key = || shared.key.clone().map(OsStringExt::into_vec);
        let bucket = |act: &str| {
            let bucket = Bucket::named(shared, environment)?;
            bucket.ok_or_else(|| format!("{act}; name it: --bucket NAME, or THROTTLE_BUCKET=NAME"))
        };
        let alone = |act: &str, verb| {
            let found = bucket(act)?;
            ensure_alone(act.split(' ').next().unwrap_or(act), &args).map(|()| Task::Bucket(found, verb))
        };
        match *shared {
            SharedFlags { once: true, .. } => {
                let found = Bucket::named(shared, environment)?;
                if once::is_watched(&args) {
                    return Launch::once(found, args).map(|launch| Task::Launch(Box::new(launch)));
                }
                Once::new(bucket("--once takes one from a bucket")?, args).map(Task::Once)
            }
            SharedFlags { set: true, .. } => {
                let bucket = bucket("--set sets the limits of a bucket")?;
                Set::new(&bucket, &args).map(|set| Task::Bucket(bucket, Verb::Set(set)))
            }
            SharedFlags { show: Some(format), .. } => alone("--show shows a bucket", Verb::Show(format)),
            SharedFlags { list: Some(format), .. } => {
                let bucket = Bucket::among(shared, environment)?;
                ensure_alone("--list", &args).map(|()| Task::Bucket(bucket, Verb::List(format)))
            }
            SharedFlags { clear: true, .. } => alone("--clear empties the queue of a bucket", Verb::Clear(key())),
            SharedFlags { pause: Some(time), .. } => alone("--pause pauses a bucket", Verb::Pause(time, key())),
            SharedFlags { remove: true, .. } => {
                alone("--remove removes a bucket", Verb::Remove { quiet: args.report.quiet })
            }
            _ => Task::stream(args, environment),
        }
    }

    fn stream(args: Args, environment: &Environment) -> Result<Self, String> {
        let limits = Limits::of_stream(&args.limit, &args.shared, &args.command, &args.launch, environment)?;
        if args.input.bytes {
            refuse_bytes(&args.limit)?;
        }
        match &args {
            Args { launch, command, .. } if launch.shell.is_none() && command.is_empty() => {
                Pipe::new(args, limits).map(|pipe| Task::Pipe(Box::new(pipe)))
            }
            _ => Launch::new(args, limits).map(|launch| Task::Launch(Box::new(launch))),
        }
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self {
            Task::Launch(launch) => launch.limits.bucket(),
            Task::Pipe(pipe) => pipe.limits.bucket(),
            Task::Once(Once { bucket, .. }) | Task::Bucket(bucket, _) => Some(bucket),
            Task::Plot(_) => None,
        }
    }
}

impl Set {
    fn new(bucket: &Bucket, args: &Args) -> Result<Self, String> {
        let named = Grouped::for_bucket(&args.limit.rate, args.limit.burst)?
            .ok_or("--set: to what? write for example --set -r 5000/h")?;
        if !args.command.is_empty() {
            return Err("--set runs nothing; leave the command out".to_owned());
        }
        if args.shared.key.is_some() {
            return Err("--key: --set sets the limits of all keys; leave it out".to_owned());
        }
        if args.shared.group.is_some() && !matches!(&bucket.kind, Kind::File(Place { own_folder: false, .. })) {
            return Err(
                "--group is for a file that is named by its path; write for example --bucket ./b --set --group devs -r 5/s".to_owned()
            );
        }
        let names_initial =
            |limit| matches!(limit, Limit::Bucket { initial: Some(_), .. } | Limit::Window { initial: Some(_), .. });
        let fresh = named.written_all().map(names_initial).collect();
        Ok(Set { policy: named.kept(), fresh, anew: args.shared.clear, group: args.shared.group.clone() })
    }
}

/// # Errors
/// Limits or a command are given, and `verb` takes none.
fn ensure_alone(verb: &str, args: &Args) -> Result<(), String> {
    match Grouped::for_bucket(&args.limit.rate, args.limit.burst)? {
        Some(_) => Err(format!("{verb} sets no limits; leave -r out, or write --set")),
        None if !args.command.is_empty() => Err(format!("{verb} runs nothing; leave the command out")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
