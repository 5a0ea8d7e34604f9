//! What is to be done, from the command line and the environment. Every mistake in them is found here: nothing is opened
//! and no server is contacted.

mod stream;

pub(crate) use stream::{Commands, Launch, Pipe};

use super::args::{Args, Bucket, Environment, Format, Grouped, Kind, Limits, SharedFlags, look, refuse_bytes};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle::flow::{Sorting, short};
use throttle_limits::clock::{Nanos, in_nanos};
use throttle_limits::limits::{Policy, Take};
use throttle_limits::rate::Limit;
use throttle_limits::store::Place;

/// What is wrong if a key is named, and none has limits.
pub(crate) const NO_KEYS: &str = "--key: there are no limits for each key; leave it out";

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Pipe(Box<Pipe>),
    Launch(Box<Launch>),
    Once(Once),
    Bucket(Bucket, Verb),
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

/// Take one from a bucket, then become a command.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    pub(crate) bucket: Bucket,
    pub(crate) named: Option<Grouped>,
    /// What the call costs each limit that was named, if a number says so.
    pub(crate) numbers: Vec<Option<u64>>,
    /// The key that it is for.
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) max_wait: Option<Duration>,
    /// None: nothing is run.
    pub(crate) command: Vec<OsString>,
    pub(crate) quiet: bool,
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
        }
    }
}

impl Once {
    fn new(bucket: Bucket, args: Args) -> Result<Self, String> {
        let mut named = Grouped::for_bucket(&args.limit.rate, args.limit.burst)?;
        let numbers = named.as_mut().map(Grouped::take_numbers).unwrap_or_default();
        let (max_wait, quiet) = (args.shared.max_wait, args.report.quiet);
        let key = args.shared.key.map(OsStringExt::into_vec);
        let once = Once { bucket, named, numbers, key, max_wait, command: args.command, quiet };
        if let Some(named) = &once.named {
            once.take(&named.kept())?;
        }
        Ok(once)
    }

    /// What the call asks of a bucket that keeps `policy`: of each limit the number that was named, or else the cost of a unit
    /// that cannot be read (`else=`), since no unit is read.
    ///
    /// # Errors
    /// A number or the key is missing, or one cannot be taken under these limits.
    pub(crate) fn take(&self, policy: &Policy) -> Result<Take, String> {
        if policy.counts_bytes() {
            return Err("--once: the limit counts bytes, and a call is a unit; write for example -r 5/s".to_owned());
        }
        if policy.counts_jobs() && self.command.is_empty() {
            return Err("--once: the bucket counts commands that run; write --once COMMAND".to_owned());
        }
        let key = match (&self.key, policy.of_keys()) {
            (Some(key), Some(_)) => short(key),
            // Nothing is known of a bucket on a server before it has answered.
            (Some(key), None) if policy.is_empty() => return Ok(Sorting::price(0, key, &[])),
            (None, Some(keys)) => {
                let per = &keys.per;
                return Err(format!(
                    "--once: the limits are those of one key each (per={per}); name it: --key a.example"
                ));
            }
            (Some(_), None) => return Err(NO_KEYS.to_owned()),
            (None, None) => return Ok(Take { key: None, ..Sorting::price(policy.len(), &[], &self.costs(policy)?) }),
        };
        Ok(Sorting::price(policy.len(), &key, &self.costs(policy)?))
    }

    /// What the call costs each limit: those of all, then those of each key.
    fn costs(&self, policy: &Policy) -> Result<Box<[u64]>, String> {
        let places = self.named.as_ref().and_then(|named| named.places_in(policy).ok()).unwrap_or_default();
        let number = |place| self.numbers[places.iter().position(|known| *known == place)?];
        let costs = look(policy)?.costs;
        let count = costs.len();
        let unread = |place| costs.get(place).and_then(Option::as_ref).map_or(Some(1), Cost::unread);
        let cost = |place| number(place).or_else(|| unread(place)).ok_or(place);
        let all: Result<_, usize> = (0..count).map(cost).collect();
        all.map_err(|place| {
            let limits = (0..count).map(|place| format!(" -r {}", with_number(policy, place)));
            let (limit, right) = (described(policy, place), limits.collect::<String>());
            format!("--once: no unit is read, so the limit {limit} has no cost; write what the call costs:{right}")
        })
    }

    /// The latest time for a grant that was asked for at this time.
    pub(crate) fn latest(&self, asked: Nanos) -> Nanos {
        self.max_wait.map_or(Nanos::MAX, |wait| asked.saturating_add(in_nanos(wait)))
    }
}

/// The limit at this place, those of each key behind those of all.
fn described(policy: &Policy, place: usize) -> String {
    match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => keys.describe(place),
        _ => policy.describe(place),
    }
}

/// The same with a number for a cost that it counts.
fn with_number(policy: &Policy, place: usize) -> String {
    let (of, limit, per) = match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => (&keys.each, place, format!(",per={}", keys.per)),
        _ => (policy, place, String::new()),
    };
    let cost = if of.cost(limit).is_some() { ",cost=800" } else { "" };
    format!("{}{cost}{per}", of.without_costs().describe(limit))
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
