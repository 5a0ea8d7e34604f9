//! Opens buckets, which are limits that processes share, and shows or changes them.

use super::answer::print;
use super::args::{self, Bucket, Format, Grouped, Kind, Limits, Stream};
use super::bucket_view::{self, name, whereabouts};
use super::exit::Exit;
use super::say::say;
use super::task::{NO_KEYS, Once, Set, Task, Verb};
use anyhow::{Result, anyhow};
use serde_json::json;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle::flow::{Bucket as BucketGrants, Grants, Sorting, short};
use throttle::launch::printable;
use throttle_limits::clock::{self, NanoClock, Nanos, SystemClock, in_nanos};
use throttle_limits::ledger::operation::{Ask, Operation};
use throttle_limits::limits::{Policy, Refusal};
use throttle_limits::store::{
    Client, File, FileError, Machine, Patience, Place, Redis, RedisError, Store, StoreError, Trouble, View,
};

/// A bucket in a file or on a server.
pub(crate) type AnyBucket = dyn Store + Send + Sync;

/// The message about `error`: first the variable that named the bucket, then `words`, then advice.
pub(super) fn explain(task: &Task, error: &StoreError, words: impl Display) -> String {
    match (error, task.bucket()) {
        (StoreError::Refused(Refusal::GivenUp(_)), _) => {
            format!("{words}; the key is tried again one hour after the last failure, or after --clear --key KEY")
        }
        (StoreError::Refused(_), _) | (_, None) => words.to_string(),
        (_, Some(bucket)) => format!("{}{words}{}", bucket.origin(), advice(bucket, error, task)),
    }
}

/// The advice about an error.
fn advice(bucket: &Bucket, error: &StoreError, task: &Task) -> &'static str {
    let is_unknown =
        matches!(error, StoreError::File(FileError::Unknown(_)) | StoreError::Redis(RedisError::Unknown(_)));
    match (error, task) {
        (StoreError::Disagrees(found, _), _) if found.is_other_kind => {
            "; leave -r out, or name another bucket with --bucket"
        }
        (StoreError::Disagrees(..), _) if bucket.is_default => "; leave -r out, or name another bucket with --bucket",
        (StoreError::Disagrees(..), _) => "; leave -r out, or change them for all processes with --set",
        _ if !is_unknown => "",
        (_, Task::Bucket(_, Verb::Remove { .. })) => "; to list the buckets write --list",
        _ if !bucket.is_default => "; make it with its limits, like --set -r 5/s",
        (_, Task::Once(_)) => "; make it with its limits, like --once -r 5/s",
        (_, Task::Bucket(..)) => "; name another bucket with --bucket",
        _ => "; for a limit of this run alone write -r 5/s",
    }
}

/// Opens the bucket. If it does not exist and the command line has limits, makes it. Limits on the command line must
/// agree with the bucket.
pub(super) fn open(
    bucket: &Bucket,
    named: Option<&Grouped>,
    max_wait: Option<Duration>,
) -> Result<Box<AnyBucket>, StoreError> {
    let policy = named.map(|named| &named.policy);
    let opened = open_with(bucket, policy, patience(bucket, max_wait), lock_deadline(max_wait))?;
    agree(named, &*opened)?;
    Ok(opened)
}

fn agree(named: Option<&Grouped>, opened: &AnyBucket) -> Result<(), StoreError> {
    let agrees = named.map_or(Ok(()), |named| named.places_in(&opened.policy()).map(drop));
    agrees.map_err(|disagreement| StoreError::Disagrees(disagreement, opened.place()))
}

/// A request for one unit, and the latest time of its grant.
pub(super) struct Asked {
    pub(super) client: Client,
    pub(super) ticket: u64,
    pub(super) latest: Nanos,
}

/// Requests one unit of the bucket. A server gets a single request, with one exception: if the bucket has other limits
/// than expected, the call may have another key and other costs. `begins` is called just before the first request.
pub(super) fn ask_one(once: &Once, begins: impl FnOnce(&Arc<AnyBucket>)) -> Result<Asked> {
    let Once { bucket, call, max_wait, .. } = once;
    let (named, max_wait) = (call.named.as_ref(), *max_wait);
    let opened: Arc<AnyBucket> = match &bucket.kind {
        Kind::File(_) => Arc::from(open(bucket, named, max_wait)?),
        Kind::Server(address) => {
            let policy = named.map(|named| &named.policy);
            Arc::new(Redis::unasked(address.clone(), policy, patience(bucket, max_wait))?)
        }
    };
    let due = || {
        agree(named, &*opened)?;
        check_kept(bucket, &*opened, |policy| call.ask(policy))
    };
    if max_wait.is_some_and(|wait| !wait.is_zero()) && opened.is_remote() {
        opened.sync()?;
    }
    let (mut ask, latest) = (due()?, once.latest(opened.clock().now()));
    let mut client = Client::new(Arc::clone(&opened));
    begins(&opened);
    loop {
        // The latest time is checked here, because a refusal says how long the wait would be.
        let ticket = client.ask(Ask { latest: Nanos::MAX, ..ask.clone() });
        client.exchange()?;
        // The limits on a server are known only from its answer.
        let found = due();
        if found.as_ref().is_ok_and(|due| *due == ask) {
            let mut asked = Asked { client, ticket, latest };
            return asked.refuse_if_late().map(|()| asked).map_err(anyhow::Error::from);
        }
        client.cancel(ticket);
        client.exchange()?;
        ask = found?;
    }
}

impl Asked {
    /// Refuses the request if it would be granted too late, as far as that is known now.
    pub(super) fn refuse_if_late(&mut self) -> Result<(), StoreError> {
        if self.latest == Nanos::MAX || !self.client.waits(self.ticket) {
            return Ok(());
        }
        let (now, at) = (self.client.store().clock().now(), self.client.estimate(self.ticket));
        match at {
            Some(at) if at <= self.latest => Ok(()),
            // A command may end until then.
            None if self.latest > now => Ok(()),
            _ => self.too_late(),
        }
    }

    /// Refuses the request, because it is not granted in time.
    pub(super) fn too_late(&mut self) -> Result<(), StoreError> {
        let (now, at) = (self.client.store().clock().now(), self.client.estimate(self.ticket));
        self.refuse(at.map_or(Refusal::Busy, |at| Refusal::TooLong { wait: at.saturating_sub(now) }))
    }

    /// Cancels the request.
    pub(super) fn refuse(&mut self, why: Refusal) -> Result<(), StoreError> {
        self.client.deny(self.ticket);
        self.client.store().leave();
        self.client.exchange()?;
        Err(why.into())
    }
}

/// Opens the bucket. `patience` limits the wait for its server, and `locked` the wait for the lock of its file.
fn open_with(
    bucket: &Bucket,
    policy: Option<&Policy>,
    patience: Patience,
    locked: Option<Instant>,
) -> Result<Box<AnyBucket>, StoreError> {
    Ok(match &bucket.kind {
        Kind::File(place) => Box::new(File::open_until(machine(), place.clone(), policy, locked)?),
        Kind::Server(address) => Box::new(Redis::open(address.clone(), policy, patience)?),
    })
}

/// This machine, with a function that prints messages about damaged files.
fn machine() -> Machine {
    Machine::this().telling(|damage| say(damage))
}

/// The end of the wait for the lock of the bucket's file. It is 1 s after the end of the wait for a grant, because the
/// lock of a busy bucket is seldom free at once.
fn lock_deadline(max_wait: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(max_wait?)?.checked_add(Duration::from_secs(1))
}

/// How long to wait for the bucket's server, from now on: at most `max_wait`.
fn patience(bucket: &Bucket, max_wait: Option<Duration>) -> Patience {
    if !bucket.is_waited_for {
        return Patience::none();
    }
    let origin = bucket.origin();
    // A time beyond the range of the clock means that the wait has no end.
    let until = max_wait.and_then(|longest| Instant::now().checked_add(longest));
    Patience::new(until, move |trouble| match trouble {
        Trouble::Away(error) => {
            say(format_args!("{origin}{error}; waiting for it (to end instead: --on-store-error fail)"));
        }
        Trouble::Back(after) => {
            let after = clock::shown(in_nanos(*after));
            say(format_args!("the bucket is back after {after}"));
        }
    })
}

/// The limits of a stream after opening.
pub(super) struct Opened {
    /// The shared bucket. `None`: the run itself applies the limits.
    bucket: Option<Box<AnyBucket>>,
    /// The policy in force.
    pub(super) policy: Policy,
    /// How units are sorted.
    pub(super) sorting: Sorting,
}

impl Opened {
    /// The grants of the run, for units of the type `T`. `learns`: a bucket learns a pace from refusals.
    pub(super) fn grants<T: Send>(&mut self, learns: bool) -> Arc<Grants<T>> {
        let sorting = &self.sorting;
        let bucket = self.bucket.take().map(|bucket| BucketGrants::new(Arc::from(bucket), sorting, learns));
        Arc::new(Grants::new(sorting.begin(SystemClock.now()), Arc::new(SystemClock), bucket, sorting.has_keys))
    }
}

/// Opens the limits of a stream, and checks whether the command line fits the policy in force. A dry run opens a bucket
/// only if the command line has no limits, and makes none.
pub(super) fn open_stream(
    limits: &Limits,
    stream: Stream,
    is_dry: bool,
    check: impl FnOnce(&Policy) -> Result<(), String>,
) -> Result<Opened> {
    let (named, bucket) = (limits.named.as_ref(), limits.bucket.as_ref());
    let (mut opened, policy) = if let Some(bucket) = bucket.filter(|_| !is_dry || named.is_none()) {
        let opened = open(bucket, named, None)?;
        check_kept(bucket, &*opened, check)?;
        let policy = opened.policy();
        (Some(opened), policy)
    } else {
        let policy = limits.policy();
        check(&policy).map_err(|error| anyhow!(error))?;
        (None, policy)
    };
    let mut sorting = limits.sorting(&policy, stream).map_err(|error| anyhow!(error))?;
    if is_dry {
        // The run begins with the state and at the time of the bucket, and applies the limits of its keys itself. No
        // command runs, so `jobs` does not apply.
        let view = bucket.and_then(|bucket| view_of(bucket).ok()).filter(|view| view.policy == policy);
        (sorting.found, sorting.is_shared, sorting.jobs) = (view.map(Arc::new), false, None);
        opened = None;
    }
    Ok(Opened { bucket: opened, policy, sorting })
}

/// Checks whether the command line fits the policy of the bucket.
pub(super) fn check_kept<T>(
    bucket: &Bucket,
    opened: &AnyBucket,
    check: impl FnOnce(&Policy) -> Result<T, String>,
) -> Result<T> {
    let (origin, policy) = (bucket.origin(), opened.policy());
    let checked = args::look(&policy).and_then(|_| check(&policy));
    checked.map_err(|error| anyhow!("{origin}{error}; the bucket {} has the limits {policy}", opened.place()))
}

/// Shows a bucket, or changes it, without a stream.
///
/// # Errors
/// The action failed.
pub(super) fn run(bucket: &Bucket, verb: &Verb) -> Result<Exit> {
    match verb {
        Verb::Show(format) => return show(bucket, *format),
        Verb::List(format) => return list(bucket, *format),
        Verb::Set(what) => set(bucket, what)?,
        Verb::Clear(key) => clear(bucket, key.as_deref())?,
        Verb::Pause(time, key) => pause(bucket, *time, key.as_deref())?,
        Verb::Remove { quiet } => remove(bucket, *quiet)?,
    }
    Ok(Exit::Success)
}

/// Makes the bucket, or changes its limits for everyone.
fn set(bucket: &Bucket, Set { policy, fresh, anew, group }: &Set) -> Result<()> {
    let mut bucket = bucket.clone();
    if let (Kind::File(place), Some(group)) = (&mut bucket.kind, group) {
        place.group = Some(number_of(group)?);
    }
    let opened = open_briefly(&bucket, Some(policy))?;
    if *anew {
        opened.clear(None, Some(policy))?;
        return Ok(());
    }
    let old = opened.policy();
    let policy = if policy.is_unlimited() && old.counts_bytes() { &Policy::unlimited(true) } else { policy };
    if policy.counts_bytes() != old.counts_bytes() {
        return Err(other_kind(&*opened, &old, policy));
    }
    // The limits of the bucket keep their order, and with it their saved and counted units.
    let (policy, places) = policy.ordered_like(&old);
    let fresh: Vec<bool> = places.iter().map(|place| fresh.get(*place) == Some(&true)).collect();
    opened.set(&policy, &fresh)?;
    Ok(())
}

/// The error if a bucket of bytes would count units, or the other way round. The pipes that use the bucket would end.
fn other_kind(bucket: &AnyBucket, old: &Policy, new: &Policy) -> anyhow::Error {
    let (counts, example) = if old.counts_bytes() { ("bytes", "10MiB/s") } else { ("units", "5/s") };
    anyhow!(
        "--set: the bucket {} counts {counts} ({old}), and {new} would end the pipes that use it; write for example \
         --set -r {example}, or to start again --clear --set",
        bucket.place()
    )
}

/// Opens the bucket for a request that waits only briefly.
fn open_briefly(bucket: &Bucket, policy: Option<&Policy>) -> Result<Box<AnyBucket>, StoreError> {
    open_with(bucket, policy, brief_patience(bucket), None)
}

/// The number of a group, which is given by its number or its name.
fn number_of(group: &str) -> Result<u32> {
    let named = || nix::unistd::Group::from_name(group).ok().flatten().map(|found| found.gid.as_raw());
    let number = group.parse().ok().or_else(named);
    number.ok_or_else(|| anyhow!("--group '{group}': there is no such group; to see yours: id"))
}

/// Opens the bucket. If a key is given, the bucket must have limits for each key.
fn open_with_key(bucket: &Bucket, key: Option<&[u8]>) -> Result<Box<AnyBucket>> {
    let opened = open_briefly(bucket, None)?;
    let has_key = |policy: &Policy| key.is_none() || policy.of_keys().is_some();
    check_kept(bucket, &*opened, |policy| has_key(policy).then_some(()).ok_or_else(|| NO_KEYS.to_owned()))?;
    Ok(opened)
}

/// Empties the queue of the bucket, or of one key.
fn clear(bucket: &Bucket, key: Option<&[u8]>) -> Result<()> {
    let opened = open_with_key(bucket, key)?;
    Ok(opened.clear(key.map(short).as_deref(), None)?)
}

/// Grants nothing from the bucket, or nothing to one key, for `time` from now on. A time of 0 lifts the pause.
fn pause(bucket: &Bucket, time: Duration, key: Option<&[u8]>) -> Result<()> {
    let opened = open_with_key(bucket, key)?;
    let (key, until) = (key.map(short), opened.clock().now().saturating_add(in_nanos(time)));
    let operation =
        if time.is_zero() { Operation::Resume(key) } else { Operation::Hold { until, key, refused: Vec::new() } };
    opened.send(vec![operation])?;
    Ok(())
}

/// The longest wait for the lock of a bucket's file that is only shown. For a server, `brief_patience` allows the same
/// time.
const VIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a view or a change waits for the bucket's server: 2 s, and up to 3 s more for the last attempt.
fn brief_patience(bucket: &Bucket) -> Patience {
    let until = Instant::now().checked_add(Duration::from_secs(2));
    if bucket.is_waited_for { Patience::new(until, |_| {}) } else { Patience::none() }
}

/// Prints the state of the bucket.
fn show(bucket: &Bucket, format: Format) -> Result<Exit> {
    let view = view_of(bucket)?;
    match format {
        Format::Text => write_lines(bucket_view::text(&bucket.kind, &view).lines()),
        Format::Json => write_lines([bucket_view::json(&bucket.kind, &view).to_string()]),
    }
}

/// A bucket of a list, and its state, or why the state cannot be read.
type Found = (Kind, Result<View, StoreError>);

fn view_of(bucket: &Bucket) -> Result<View, StoreError> {
    match &bucket.kind {
        Kind::File(place) => Ok(File::look(machine(), place.clone(), Instant::now().checked_add(VIEW_TIMEOUT))?),
        Kind::Server(address) => Redis::unasked(address.clone(), None, brief_patience(bucket))?.view(),
    }
}

/// Prints a line for each bucket in the same folder or on the same server.
fn list(bucket: &Bucket, format: Format) -> Result<Exit> {
    let line = |(kind, view): Found| match (format, view) {
        (Format::Text, Ok(view)) => {
            let line = if view.line.is_empty() { String::new() } else { format!(", {} waiting", view.line.len()) };
            format!("{}: {}{line}", name(&kind), view.policy)
        }
        (Format::Text, Err(error)) => format!("{}: {error}", name(&kind)),
        (Format::Json, Ok(view)) => bucket_view::json(&kind, &view).to_string(),
        (Format::Json, Err(error)) => {
            let (key, place) = whereabouts(&kind);
            json!({ "bucket": name(&kind), key: place, "error": error.to_string() }).to_string()
        }
    };
    write_lines(listed(bucket)?.into_iter().map(line))
}

fn listed(among: &Bucket) -> Result<Vec<Found>, StoreError> {
    Ok(match &among.kind {
        Kind::File(Place { path, own_folder, .. }) => {
            let is_folder = path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir();
            let folder = path.parent().filter(|_| !is_folder).unwrap_or(path);
            let deadline = Instant::now() + Duration::from_secs(1);
            let files = File::list(&machine(), folder, *own_folder, deadline)?.into_iter();
            files.map(|(place, view)| (Kind::File(place), view.map_err(StoreError::from))).collect()
        }
        Kind::Server(address) => {
            let found = Redis::list(address.clone(), brief_patience(among))?.into_iter();
            found.map(|(address, view)| (Kind::Server(address), view)).collect()
        }
    })
}

/// Removes the bucket, and reports how many processes waited for it.
fn remove(bucket: &Bucket, quiet: bool) -> Result<()> {
    let view = view_of(bucket);
    // The number of waiters of a damaged bucket is unknown.
    let waiting = view.as_ref().map_or(0, |view| view.line.len());
    match (&bucket.kind, view) {
        (Kind::File(place), _) => File::remove(place).map_err(StoreError::from)?,
        (Kind::Server(_), Err(error)) if error.may_pass() => return Err(error.into()),
        (Kind::Server(address), _) => Redis::unasked(address.clone(), None, brief_patience(bucket))?.remove()?,
    }
    if waiting > 0 && !quiet {
        let (_, place) = whereabouts(&bucket.kind);
        say(format_args!(
            "{waiting} waited for the bucket {place}; those that still wait make it again, with its limits, within a second"
        ));
    }
    Ok(())
}

/// Prints lines to standard output. On a terminal, control characters are escaped.
fn write_lines(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Exit> {
    let on_terminal = std::io::stdout().is_terminal();
    let ended = |line: &str| if on_terminal { printable(line) } else { line.to_owned() } + "\n";
    let text: String = lines.into_iter().map(|line| ended(line.as_ref())).collect();
    print(|| std::io::stdout().write_all(text.as_bytes()))
}
