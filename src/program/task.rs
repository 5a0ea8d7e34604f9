//! What is to be done, from the command line and the environment. Every mistake in them is found here: nothing is opened
//! and no server is contacted.

mod again;
mod bucket;
mod limits;
mod stream;

pub(crate) use again::MAX_PAUSE;
pub(crate) use bucket::{Bucket, Environment, Kind};
pub(crate) use limits::{Grouped, Limits, look};
pub(crate) use stream::{Commands, DryRun, JOBS, Launch, Pipe, Reporting, Units, Work};

use super::args::{Args, Format};
use std::ffi::OsString;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle_limits::clock::{Nanos, in_nanos};
use throttle_limits::limits::Policy;
use throttle_limits::rate::Limit;
use throttle_limits::store::Place;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Pipe(Pipe),
    Launch(Box<Launch>),
    DryRun(DryRun),
    Once(Once),
    Set(Set),
    Show(Show),
    /// Empty the queue of a bucket.
    Clear(Bucket),
    /// Grant nothing from a bucket for so long.
    /// Zero lifts a pause.
    Pause(Bucket, Duration),
    /// Name the buckets beside this one.
    List(Show),
    Remove(Remove),
}

/// Take one from a bucket, then become a command.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) bucket: Bucket,
    pub(crate) named: Option<Grouped>,
    /// What the call costs each limit that was named, if a number says so.
    pub(crate) numbers: Vec<Option<u64>>,
    pub(crate) max_wait: Option<Duration>,
    /// None: nothing is run.
    pub(crate) command: Vec<OsString>,
    pub(crate) quiet: bool,
}

/// Set the limits of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) bucket: Bucket,
    pub(crate) policy: Policy,
    /// Which limits name what they start with, and so start anew.
    pub(crate) fresh: Vec<bool>,
    /// Whether everything starts anew.
    pub(crate) anew: bool,
    /// The name or number of a group whose members may use its file.
    pub(crate) group: Option<String>,
}

/// Show a bucket, or name those beside it.
#[derive(Clone, Debug)]
pub(crate) struct Show {
    pub(crate) bucket: Bucket,
    pub(crate) format: Format,
}

/// Remove a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Remove {
    pub(crate) bucket: Bucket,
    pub(crate) quiet: bool,
}

impl Task {
    /// What `args` ask for.
    ///
    /// # Errors
    /// What is wrong with them, in words that name the option and show a right spelling.
    pub(crate) fn new(args: Args, environment: &Environment) -> Result<Self, String> {
        let bucket = |act: &str| {
            let bucket = Bucket::named(args.bucket.as_deref(), args.on_store_error, environment)?;
            bucket.ok_or_else(|| format!("{act}; name it: --bucket NAME, or THROTTLE_BUCKET=NAME"))
        };
        if args.max_wait.is_some() && !args.once && !args.drop {
            return Err(
                "--max-wait belongs to --once and to --drop; write for example --once --max-wait 30s".to_owned()
            );
        }
        if args.group.is_some() && !args.set {
            return Err("--group belongs to --set; write for example --bucket ./b --set --group devs -r 5/s".to_owned());
        }
        match &args {
            Args { once: true, .. } => Once::new(bucket("--once takes one from a bucket")?, args).map(Task::Once),
            Args { set: true, .. } => Set::new(bucket("--set sets the limits of a bucket")?, &args).map(Task::Set),
            Args { show: Some(format), .. } => {
                Show::new("--show", bucket("--show shows a bucket")?, *format, &args).map(Task::Show)
            }
            Args { list: Some(format), .. } => {
                let among = Bucket::among(args.bucket.as_deref(), args.on_store_error, environment)?;
                Show::new("--list", among, *format, &args).map(Task::List)
            }
            Args { clear: true, .. } => {
                alone("--clear", bucket("--clear empties the queue of a bucket")?, &args).map(Task::Clear)
            }
            Args { pause: Some(time), .. } => {
                alone("--pause", bucket("--pause pauses a bucket")?, &args).map(|bucket| Task::Pause(bucket, *time))
            }
            Args { remove: true, quiet, .. } => alone("--remove", bucket("--remove removes a bucket")?, &args)
                .map(|bucket| Task::Remove(Remove { bucket, quiet: *quiet })),
            _ => {
                let limits = Limits::of_stream(&args, environment)?;
                match &args {
                    Args { dry_run: true, .. } => DryRun::new(args, limits).map(Task::DryRun),
                    Args { shell: None, command, .. } if command.is_empty() => Pipe::new(args, limits).map(Task::Pipe),
                    _ => Launch::new(args, limits).map(|launch| Task::Launch(Box::new(launch))),
                }
            }
        }
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self {
            Task::Launch(launch) => launch.limits.bucket(),
            Task::Pipe(Pipe { limits, .. }) | Task::DryRun(DryRun { limits, .. }) => limits.bucket(),
            Task::Once(Once { bucket, .. })
            | Task::Set(Set { bucket, .. })
            | Task::Show(Show { bucket, .. })
            | Task::List(Show { bucket, .. })
            | Task::Remove(Remove { bucket, .. })
            | Task::Clear(bucket)
            | Task::Pause(bucket, _) => Some(bucket),
        }
    }
}

impl Once {
    fn new(bucket: Bucket, args: Args) -> Result<Self, String> {
        let mut named = Grouped::for_bucket(&args)?;
        let numbers = named.as_mut().map(Grouped::take_numbers).unwrap_or_default();
        let once = Once { bucket, named, numbers, max_wait: args.max_wait, command: args.command, quiet: args.quiet };
        if let Some(named) = &once.named {
            Once::check(&named.policy())?;
            once.costs(&named.policy())?;
        }
        Ok(once)
    }

    /// What the call costs each limit of `policy`, which the bucket keeps, or all: the number that was named, or else what a
    /// unit costs that cannot be read, since none is.
    ///
    /// # Errors
    /// A number is missing.
    pub(crate) fn costs(&self, policy: &Policy) -> Result<Box<[u64]>, String> {
        let places = self.named.as_ref().and_then(|named| named.places_in(policy).ok()).unwrap_or_default();
        let number = |place| self.numbers[places.iter().position(|known| *known == place)?];
        let costs = look(policy)?.costs;
        if costs.is_empty() && self.numbers.iter().all(Option::is_none) {
            return Ok([1].into());
        }
        let unread = |place| costs.get(place).and_then(Option::as_ref).map_or(Some(1), Cost::unread);
        let cost = |place| number(place).or_else(|| unread(place)).ok_or(place);
        let all: Result<_, usize> = (0..policy.len()).map(cost).collect();
        all.map_err(|place| {
            let limits = (0..policy.len()).map(|place| match policy.cost(place) {
                Some(_) => format!(" -r {},cost=800", policy.without_costs().describe(place)),
                None => format!(" -r {}", policy.describe(place)),
            });
            let (limit, right) = (policy.describe(place), limits.collect::<String>());
            format!("--once: no unit is read, so the limit {limit} has no cost; write what the call costs:{right}")
        })
    }

    /// The latest time for a grant that was asked for at this time.
    pub(crate) fn latest(&self, asked: Nanos) -> Nanos {
        self.max_wait.map_or(Nanos::MAX, |wait| asked.saturating_add(in_nanos(wait)))
    }

    /// Whether one can be taken under these limits.
    ///
    /// # Errors
    /// The limits count bytes.
    pub(crate) fn check(policy: &Policy) -> Result<(), String> {
        if policy.counts_bytes() {
            return Err("--once: the limit counts bytes, and a call is a unit; write for example -r 5/s".to_owned());
        }
        Ok(())
    }
}

impl Set {
    fn new(bucket: Bucket, args: &Args) -> Result<Self, String> {
        let named = Grouped::for_bucket(args)?.ok_or("--set: to what? write for example --set -r 5000/h")?;
        if !args.command.is_empty() {
            return Err("--set runs nothing; leave the command out".to_owned());
        }
        if args.group.is_some() && !matches!(&bucket.kind, Kind::File(Place { own_folder: false, .. })) {
            return Err(
                "--group is for a file that is named by its path; write for example --bucket ./b --set --group devs -r 5/s".to_owned()
            );
        }
        let names_initial = |limit: &Limit| matches!(limit, Limit::Bucket { initial: Some(_), .. });
        let fresh = named.written().iter().map(names_initial).collect();
        Ok(Set { bucket, policy: named.policy(), fresh, anew: args.clear, group: args.group.clone() })
    }
}

impl Show {
    fn new(verb: &str, bucket: Bucket, format: Format, args: &Args) -> Result<Self, String> {
        alone(verb, bucket, args).map(|bucket| Show { bucket, format })
    }
}

/// The bucket, for `verb`, which takes neither limits nor a command.
fn alone(verb: &str, bucket: Bucket, args: &Args) -> Result<Bucket, String> {
    match Grouped::for_bucket(args)? {
        Some(_) => Err(format!("{verb} sets no limits; leave -r out, or write --set")),
        None if !args.command.is_empty() => Err(format!("{verb} runs nothing; leave the command out")),
        None => Ok(bucket),
    }
}

#[cfg(test)]
mod tests;
