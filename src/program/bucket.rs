//! Buckets: where limits live that other processes use, too.

use super::flags::{Flags, Format, Task};
use super::say;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle::clock::{self, Nanos, SystemClock};
use throttle::launch::printable;
use throttle::limits::{Grant, Policy};
use throttle::store::{
    Address, AddressError, File, FileError, Machine, Memory, Patience, Place, Redis, RedisError, Store, StoreError,
    Supply, Trouble, View,
};

/// A bucket, wherever it is.
pub(crate) type AnyBucket = dyn Store + Send + Sync;

/// A bucket that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    kind: Kind,
    /// Whether it was not named here but by `THROTTLE_BUCKET`.
    is_default: bool,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    File(Place),
    Server(Address),
}

impl Bucket {
    /// What `word` names: a server's by its scheme, a path where it has a slash, otherwise a file in the folder for buckets.
    /// `is_default`: the environment says so.
    ///
    /// # Errors
    /// Words on what is wrong with it.
    pub(crate) fn named(word: &OsStr, is_default: bool) -> Result<Self, String> {
        let kind = if Address::is_meant(word.as_bytes()) {
            let address = word.to_str().unwrap_or_default().parse();
            address.map(Kind::Server).map_err(|error: AddressError| error.to_string())?
        } else {
            let folder = || folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
            place(word, folder).map(Kind::File)?
        };
        Ok(Bucket { kind, is_default })
    }

    /// Whether it can keep these limits: neither opens nor asks anything.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn check(&self, plan: &Policy) -> Result<(), StoreError> {
        match &self.kind {
            Kind::File(_) => File::check(plan).map_err(StoreError::from),
            Kind::Server(_) => Redis::check(plan).map_err(StoreError::from),
        }
    }

    /// Opens it; where it is not there yet it is made with `plan`.
    fn open(&self, plan: Option<&Policy>, flags: &Flags) -> Result<Box<AnyBucket>, StoreError> {
        Ok(match &self.kind {
            Kind::File(place) => {
                Box::new(File::open_until(Machine::this(), place.clone(), plan, lock_deadline(flags))?)
            }
            Kind::Server(address) => Box::new(Redis::open(address.clone(), plan, patience(flags, self))?),
        })
    }

    /// What an error begins with: the variable, if that is where the bucket was named.
    fn origin(&self) -> &'static str {
        if self.is_default { "THROTTLE_BUCKET: " } else { "" }
    }

    /// What to do about an error.
    fn advice(&self, error: &StoreError, task: &Task) -> &'static str {
        let is_unknown =
            matches!(error, StoreError::File(FileError::Unknown(_)) | StoreError::Redis(RedisError::Unknown(_)));
        match (error, task) {
            (StoreError::Disagrees { .. }, _) if self.is_default => "; leave -r out, or name another with --bucket",
            (StoreError::Disagrees { .. }, _) => "; leave -r out, or change it for everyone with --set",
            _ if !is_unknown => "",
            _ if !self.is_default => "; make it with its limits, like --set -r 5/s",
            (_, Task::Once(_)) => "; make it with its limits, like --once -r 5/s",
            (_, Task::Show(..) | Task::Set(_)) => "; name another with --bucket",
            _ => "; for a limit of this run alone write -r 5/s",
        }
    }

    fn name(&self) -> String {
        match &self.kind {
            Kind::File(place) => place.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Kind::Server(address) => address.name().to_owned(),
        }
    }

    /// Where it is, as one finds it from anywhere, and whether that is a path or a URL.
    fn whereabouts(&self) -> (&'static str, String) {
        match &self.kind {
            Kind::File(Place { path, .. }) => {
                let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                ("path", absolute.to_string_lossy().into_owned())
            }
            Kind::Server(address) => ("url", address.to_string()),
        }
    }
}

/// Tells what happens to a server.
fn tell(trouble: &Trouble<'_>, origin: &str) {
    match trouble {
        Trouble::Away(error) => {
            say(format_args!("{origin}{error}; waiting for it (to end instead: --on-store-error fail)"));
        }
        Trouble::Back(after) => {
            say(format_args!("the bucket is back after {}", shown_time(*after)));
        }
    }
}

fn shown_time(time: Duration) -> String {
    clock::shown(Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX))
}

/// What to say of `error`, in which `words` tell more: who named the bucket, and what to do.
pub(super) fn told(flags: &Flags, error: &StoreError, words: impl Display) -> String {
    match (error, flags.bucket()) {
        (StoreError::Refused(_), _) | (_, None) => words.to_string(),
        (_, Some(bucket)) => format!("{}{words}{}", bucket.origin(), bucket.advice(error, flags.task())),
    }
}

/// Until when others who keep the bucket's file locked are waited for: a little longer than the bucket itself would be,
/// since the lock of a busy bucket is seldom free at once.
fn lock_deadline(flags: &Flags) -> Option<Instant> {
    flags.max_wait().and_then(|longest| Instant::now().checked_add(longest)?.checked_add(Duration::from_secs(1)))
}

/// How long the bucket's server is waited for, from now on: not longer than the bucket itself would be.
fn patience(flags: &Flags, bucket: &Bucket) -> Patience {
    if !flags.waits_for_store() {
        return Patience::none();
    }
    let origin = bucket.origin();
    // A time beyond what a clock can say is as good as for ever.
    let until = flags.max_wait().and_then(|longest| Instant::now().checked_add(longest));
    Patience::new(until, move |trouble| tell(trouble, origin))
}

fn place(word: &OsStr, folder: impl FnOnce() -> Option<PathBuf>) -> Result<Place, String> {
    let text = word.as_bytes();
    if text.contains(&b'/') {
        return Ok(Place { path: word.into(), own_folder: false });
    }
    let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(byte));
    if !is_plain || text.is_empty() || text[0] == b'.' {
        return Err("a name is of letters, digits and .-_ and begins with no dot; a path has a slash, like ./b; \
             a server's bucket is redis://host/NAME"
            .to_owned());
    }
    let folder = folder().ok_or("neither XDG_STATE_HOME nor HOME says where; name a path with a slash, like /tmp/b")?;
    Ok(Place { path: folder.join(word), own_folder: true })
}

/// See the XDG Base Directory Specification: a relative path does not count.
fn folder(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let state = state.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.map(PathBuf::from).filter(|path| path.is_absolute());
    Some(state.or_else(|| home.map(|home| home.join(".local/state")))?.join("throttle"))
}

/// Where the limits of the pipe and of commands live, in a bucket or with us; and the command line with those limits.
pub(super) fn supply(flags: &Flags) -> Result<(Supply, Flags)> {
    let Some(bucket) = flags.bucket() else {
        return Ok((Supply::new(Box::new(Memory::new(flags.plan(), SystemClock))), flags.clone()));
    };
    let opened = open(flags, bucket)?;
    let flags = with_limits_of(flags, &*opened)?;
    Ok((Supply::new(opened), flags))
}

/// The command line with the limits it would run by. A bucket is only opened where nothing else knows them, and not made.
pub(super) fn limits(flags: &Flags) -> Result<Flags> {
    match flags.bucket() {
        Some(bucket) if flags.named().is_none() => with_limits_of(flags, &*open(flags, bucket)?),
        _ => Ok(flags.clone()),
    }
}

/// The command line with the limits that its bucket keeps.
pub(super) fn with_limits_of(flags: &Flags, opened: &AnyBucket) -> Result<Flags> {
    let origin = flags.bucket().map_or("", Bucket::origin);
    let keeps = |error| anyhow!("{origin}{error}; the bucket {} keeps {}", opened.place(), opened.policy());
    flags.with_limits(opened.policy()).map_err(keeps)
}

/// The bucket; where it is not there yet and limits were named, it is made. Those named must be those kept.
pub(super) fn open(flags: &Flags, bucket: &Bucket) -> Result<Box<AnyBucket>, StoreError> {
    let opened = bucket.open(flags.named(), flags)?;
    agree(flags, &*opened)?;
    Ok(opened)
}

fn agree(flags: &Flags, opened: &AnyBucket) -> Result<(), StoreError> {
    let (said, burst) = flags.said();
    if flags.named().is_some() { opened.agrees_with(said, burst) } else { Ok(()) }
}

/// The bucket, and one from it, with the time when it was asked for. A server is asked once, unless the bucket keeps other
/// limits than those that were named.
pub(super) fn take_one(flags: &Flags, bucket: &Bucket) -> Result<(Grant, Nanos, Arc<AnyBucket>)> {
    let opened: Arc<AnyBucket> = match &bucket.kind {
        Kind::File(_) => Arc::from(open(flags, bucket)?),
        Kind::Server(address) => Arc::new(Redis::unasked(address.clone(), flags.named(), patience(flags, bucket))?),
    };
    let max_wait = flags.max_wait().map(|time| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX));
    let take = || opened.take(1, max_wait.map_or(Nanos::MAX, |wait| opened.clock().now().saturating_add(wait)));
    let taken = match take() {
        Err(StoreError::Redis(RedisError::OtherLimits(_))) => {
            agree(flags, &*opened)?;
            take()
        }
        taken => taken,
    };
    let (grant, asked) = taken?;
    match with_limits_of(flags, &*opened) {
        Ok(_) => Ok((grant, asked, opened)),
        Err(error) => {
            opened.give_back(&grant)?;
            Err(error)
        }
    }
}

/// Makes the bucket, or changes its limits for everyone.
pub(super) fn set(flags: &Flags, bucket: &Bucket) -> Result<()> {
    let opened = bucket.open(flags.named(), flags)?;
    Ok(opened.set(flags.plan(), &flags.fresh())?)
}

/// Writes what is kept in the bucket.
pub(super) fn show(flags: &Flags, bucket: &Bucket, format: Format) -> Result<()> {
    let view = match &bucket.kind {
        Kind::File(place) => File::look(place.clone(), lock_deadline(flags)).map_err(StoreError::from)?,
        Kind::Server(_) => bucket.open(None, flags)?.view()?,
    };
    let on_terminal = std::io::stdout().is_terminal();
    let text = match format {
        Format::Text if on_terminal => shown(bucket, &view).lines().map(|line| printable(line) + "\n").collect(),
        Format::Text => shown(bucket, &view),
        Format::Json => format!("{}\n", shown_json(bucket, &view)),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

fn shown(bucket: &Bucket, view: &View) -> String {
    let left = |left: &i128| if *left < 0 { format!("{} owed", -left) } else { format!("{left} left") };
    let lines = view.left.iter().enumerate();
    let lines = lines.map(|(place, units)| format!("  {}: {}\n", view.policy.describe(place), left(units)));
    let lines: String = lines.collect();
    let next = match view.wait {
        None => "never".to_owned(),
        Some(0) => "now".to_owned(),
        Some(wait) => format!("in {}", clock::shown_wait(wait)),
    };
    let (_, place) = bucket.whereabouts();
    format!("bucket {} in {place}\n{lines}  who comes now may go: {next}\n", bucket.name())
}

fn shown_json(bucket: &Bucket, view: &View) -> serde_json::Value {
    let limits = view.left.iter().enumerate().map(|(place, left)| {
        json!({
            "limit": view.policy.describe(place),
            "left": i64::try_from(*left).unwrap_or(i64::MAX),
        })
    });
    let (kind, place) = bucket.whereabouts();
    json!({
        "bucket": bucket.name(),
        kind: place,
        "limits": limits.collect::<Vec<_>>(),
        "available": view.available,
        "wait_ns": view.wait,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_in_the_folder_for_buckets_and_a_path_where_it_says() {
        let place = |word: &str| place(OsStr::new(word), || Some("/state/throttle".into()));
        let named = |path: &str, own_folder| Ok(Place { path: path.into(), own_folder });
        assert_eq!(place("git-hub_2.x"), named("/state/throttle/git-hub_2.x", true));
        assert_eq!(place("./b"), named("./b", false));
        assert_eq!(place("/tmp/my bucket"), named("/tmp/my bucket", false));
        for wrong in ["", ".", "..", ".b", "a b", "a:b", "ü"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
        assert!(super::place(OsStr::new("b"), || None).unwrap_err().contains("HOME"));
    }

    #[test]
    fn the_folder_for_buckets_is_where_state_goes() {
        let folder = |state: Option<&str>, home: Option<&str>| folder(state.map(Into::into), home.map(Into::into));
        assert_eq!(folder(Some("/s"), Some("/h")), Some("/s/throttle".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, None), None);
    }
}
