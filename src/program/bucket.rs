//! Buckets: where limits live that other processes use, too.

use super::flags::{Flags, Format};
use super::say;
use anyhow::{Context, Result};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use throttle::clock::{self, Nanos, SystemClock};
use throttle::limits::Plan;
use throttle::store::{Address, File, Memory, Patience, Place, Redis, Store, StoreError, Supply, Trouble, View};

/// A bucket, wherever it is.
pub(crate) type AnyBucket = dyn Store + Send + Sync;

/// Where a bucket is that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bucket {
    File(Place),
    Server(Address),
}

impl Bucket {
    /// What `word` names: a server's by its scheme, a path where it has a slash, otherwise a file in the folder for buckets.
    ///
    /// # Errors
    /// Words on what is wrong with it.
    pub(crate) fn named(word: &OsStr) -> Result<Self, String> {
        if Address::is_meant(word.as_bytes()) {
            let address = word.to_str().unwrap_or_default().parse();
            return address.map(Bucket::Server).map_err(|error| error.to_string());
        }
        let folder = || folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
        place(word, folder).map(Bucket::File)
    }

    /// Opens it; where it is not there yet it is made with `plan`.
    pub(super) fn open(&self, plan: Option<&Plan>, patience: Patience) -> Result<Box<AnyBucket>, StoreError> {
        Ok(match self {
            Bucket::File(place) => Box::new(File::open(place.clone(), plan)?),
            Bucket::Server(address) => Box::new(Redis::open(address.clone(), plan, patience)?),
        })
    }

    fn name(&self) -> String {
        match self {
            Bucket::File(place) => place.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Bucket::Server(address) => address.name().to_owned(),
        }
    }

    /// Where it is, as one finds it from anywhere, and whether that is a path or a URL.
    fn whereabouts(&self) -> (&'static str, String) {
        match self {
            Bucket::File(Place { path, .. }) => {
                let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                ("path", absolute.to_string_lossy().into_owned())
            }
            Bucket::Server(address) => ("url", address.to_string()),
        }
    }
}

/// What `word` shows in a message: of an address that makes no sense no more than its scheme, as the rest may be a password.
pub(super) fn redacted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if !Address::is_meant(word.as_bytes()) {
        return word.into_owned();
    }
    format!("{}://…", word.split(':').next().unwrap_or_default())
}

/// Tells what happens to a server.
pub(super) fn tell(trouble: &Trouble<'_>) {
    match trouble {
        Trouble::Away(error) => say(format_args!("{error}; waiting for it (to end instead: --on-store-error fail)")),
        Trouble::Back(after) => {
            say(format_args!("the bucket is back after {}", shown_time(*after)));
        }
    }
}

fn shown_time(time: Duration) -> String {
    clock::shown(Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX))
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

/// Where the limits of the pipe and of commands live: in a bucket, or with us.
pub(super) fn supply(flags: &Flags) -> Result<Supply> {
    Ok(Supply::new(match flags.bucket() {
        Some(bucket) => open(flags, bucket)?,
        None => Box::new(Memory::new(flags.plan(), SystemClock)),
    }))
}

/// The bucket; where it is not there yet and limits were named, it is made. Those named must be those kept.
pub(super) fn open(flags: &Flags, bucket: &Bucket) -> Result<Box<AnyBucket>, StoreError> {
    if let Some(opened) = flags.opened() {
        return Ok(opened);
    }
    let opened = bucket.open(Some(flags.plan()), flags.patience())?;
    let (said, burst) = flags.said();
    opened.agrees_with(said, burst)?;
    Ok(opened)
}

/// Makes the bucket, or changes its limits for everyone.
pub(super) fn set(flags: &Flags, bucket: &Bucket) -> Result<()> {
    let opened = bucket.open(Some(flags.plan()), flags.patience())?;
    Ok(opened.set(flags.plan(), &flags.fresh())?)
}

/// Writes what is kept in the bucket.
pub(super) fn show(flags: &Flags, bucket: &Bucket, format: Format) -> Result<()> {
    let view = open(flags, bucket)?.view()?;
    let text = match format {
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
    fn what_may_be_a_password_is_not_shown() {
        let redacted = |word: &str| redacted(OsStr::new(word));
        for (word, shown) in [
            ("redis://me:secret@host/a b", "redis://…"),
            ("redis://me:sec@ret", "redis://…"),
            ("redis://:secret", "redis://…"),
            ("redis:secret", "redis://…"),
            ("reddis://me:secret@host/b", "reddis://…"),
            (" redis://:secret@host/b", " redis://…"),
        ] {
            assert_eq!(redacted(word), shown);
        }
        assert_eq!(redacted("a@b"), "a@b");
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
