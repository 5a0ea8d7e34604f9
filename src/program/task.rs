//! The task, from the command line and the environment. All mistakes in them are found here. Nothing is opened, and no
//! server is contacted.

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
use throttle_limits::limits::{Policy, Said};
use throttle_limits::rate::Limit;
use throttle_limits::store::Place;

/// The task of the program.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Pipe(Box<Pipe>),
    Launch(Box<Launch>),
    Once(Once),
    Bucket(Bucket, Verb),
    /// Write a page about these logs.
    Plot(Vec<PathBuf>),
}

/// An action on a bucket, without a stream.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Set(Set),
    Show(Format),
    /// Empty the queue of the bucket, or of one key.
    Clear(Option<Vec<u8>>),
    /// Grant nothing, or nothing to one key, for this time. Zero lifts a pause.
    Pause(Duration, Option<Vec<u8>>),
    /// List the buckets in the same folder or on the same server.
    List(Format),
    Remove {
        quiet: bool,
    },
}

/// Set the limits of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    /// The limits. Plain `unlimited` counts what the bucket counts.
    pub(crate) policy: Policy,
    /// For each limit, whether it has an `initial` amount, with which it starts again.
    pub(crate) fresh: Vec<bool>,
    /// Whether the whole bucket starts again (`--clear`). Saved and counted units are dropped.
    pub(crate) anew: bool,
    /// The name or number of a group whose members may use the bucket's file.
    pub(crate) group: Option<String>,
}

impl Task {
    /// The task that `args` describe.
    ///
    /// # Errors
    /// The arguments have a mistake. The message names the option and shows a right spelling.
    pub(crate) fn new(args: Args, environment: &Environment) -> Result<Self, String> {
        if !args.report.plot.is_empty() {
            let is_alone = args.limit.rate.is_empty() && args.command.is_empty();
            let wrong = "--plot reads logs of --log and takes no limits or commands; write throttle --plot \
                 tries.jsonl > run.html";
            return if is_alone { Ok(Task::Plot(args.report.plot)) } else { Err(wrong.to_owned()) };
        }
        let shared = &args.shared;
        let key = || shared.key.clone().map(OsStringExt::into_vec);
        let bucket = |act: &str| {
            let bucket = Bucket::named(shared, environment)?;
            bucket.ok_or_else(|| format!("{act}; name the bucket: --bucket NAME, or THROTTLE_BUCKET=NAME"))
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
                Once::new(bucket("--once takes a unit from a bucket")?, args).map(Task::Once)
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
            Task::Launch(launch) => launch.limits.bucket.as_ref(),
            Task::Pipe(pipe) => pipe.limits.bucket.as_ref(),
            Task::Once(Once { bucket, .. }) | Task::Bucket(bucket, _) => Some(bucket),
            Task::Plot(_) => None,
        }
    }
}

impl Set {
    fn new(bucket: &Bucket, args: &Args) -> Result<Self, String> {
        let named = Grouped::for_bucket(&args.limit.rate, args.limit.burst, false)?
            .ok_or("--set needs a limit; write for example --set -r 5000/h, --set -r 10MiB/s or --set -r unlimited")?;
        if !args.command.is_empty() {
            return Err("--set runs nothing; leave the command out".to_owned());
        }
        if args.shared.key.is_some() {
            return Err(
                "--key cannot be used with --set, which sets the limits of all keys; leave --key out".to_owned()
            );
        }
        if args.shared.group.is_some() && !matches!(&bucket.kind, Kind::File(Place { own_folder: false, .. })) {
            return Err("--group needs the path of a bucket; write for example --bucket ./b --set --group devs -r 5/s"
                .to_owned());
        }
        let names_initial = |said: &Said| {
            matches!(said.limit, Limit::Bucket { initial: Some(_), .. } | Limit::Window { initial: Some(_), .. })
        };
        let fresh = named.said.iter().flatten().map(names_initial).collect();
        Ok(Set { policy: named.policy, fresh, anew: args.shared.clear, group: args.shared.group.clone() })
    }
}

/// Refuses limits and a command with `verb`.
///
/// # Errors
/// Limits or a command are given.
fn ensure_alone(verb: &str, args: &Args) -> Result<(), String> {
    match Grouped::for_bucket(&args.limit.rate, args.limit.burst, false)? {
        Some(_) => Err(format!("{verb} sets no limits; leave -r out, or write --set")),
        None if !args.command.is_empty() => Err(format!("{verb} runs nothing; leave the command out")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
