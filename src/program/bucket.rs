//! Buckets: where limits live that other processes use, too.

use super::flags::{Flags, Format};
use super::report::AnyStore;
use anyhow::Result;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use throttle::clock::{Nanos, SystemClock};
use throttle::limits::{Limits, Plan};
use throttle::store::{File, FileError, Memory, Place, View};

/// A bucket as the user names it, and where that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) name: OsString,
    pub(crate) place: Place,
}

impl Bucket {
    /// What `word` names: a path where it has a slash, otherwise a file in the folder for buckets.
    ///
    /// # Errors
    /// Words on what is wrong with it.
    pub(crate) fn named(word: &OsStr) -> Result<Self, String> {
        let folder = || folder(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
        Ok(Bucket { name: word.to_owned(), place: place(word, folder)? })
    }

    /// The limits that are kept there.
    pub(crate) fn plan(&self) -> Result<Plan, FileError> {
        File::open(self.place.clone(), None).map(|file| file.plan())
    }

    /// Opens it; where it is not there yet and limits were named, it is made. Those named must be those kept.
    pub(super) fn open(&self, flags: &Flags) -> Result<File, FileError> {
        let (said, burst) = flags.said();
        let file = File::open(self.place.clone(), (!said.is_empty()).then(|| flags.plan()))?;
        if !said.is_empty() {
            file.agrees_with(said, burst)?;
        }
        Ok(file)
    }
}

fn place(word: &OsStr, folder: impl FnOnce() -> Option<PathBuf>) -> Result<Place, String> {
    let text = word.as_bytes();
    if ["redis:", "rediss:", "valkey:", "valkeys:"].iter().any(|scheme| text.starts_with(scheme.as_bytes())) {
        return Err("there are no buckets on a server yet; name a file: --bucket NAME".to_owned());
    }
    if text.contains(&b'/') {
        return Ok(Place { path: word.into(), own_folder: false });
    }
    let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(byte));
    if !is_plain || text.is_empty() || text[0] == b'.' {
        return Err(
            "a name is of letters, digits and .-_ and begins with no dot; a path has a slash, like ./b".to_owned()
        );
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
pub(super) fn store(flags: &Flags) -> Result<Box<AnyStore>> {
    Ok(match flags.bucket() {
        Some(bucket) => Box::new(bucket.open(flags)?),
        None => Box::new(Memory::new(flags.plan(), SystemClock)),
    })
}

/// Makes the bucket, or changes its limits for everyone.
pub(super) fn set(flags: &Flags, bucket: &Bucket) -> Result<()> {
    let file = File::open(bucket.place.clone(), Some(flags.plan()))?;
    Ok(file.set(flags.plan(), &flags.fresh())?)
}

/// Writes what is kept in the bucket.
pub(super) fn show(bucket: &Bucket, format: Format) -> Result<()> {
    let view = File::open(bucket.place.clone(), None)?.view()?;
    let path = std::path::absolute(&bucket.place.path).unwrap_or_else(|_| bucket.place.path.clone());
    let text = match format {
        Format::Text => shown(bucket, &path, &view),
        Format::Json => format!("{}\n", shown_json(bucket, &path, &view)),
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| anyhow::anyhow!(error).context("cannot write to standard output"))
}

fn shown(bucket: &Bucket, path: &Path, view: &View) -> String {
    let left = |place| match view.limits.left(view.now, place).unwrap_or(0) {
        left @ ..0 => format!("{} owed", -left),
        left => format!("{left} left"),
    };
    let lines = (0..view.plan.len()).map(|place| format!("  {}: {}\n", view.plan.describe(place), left(place)));
    let lines: String = lines.collect();
    let next = match wait(&view.limits, view.now) {
        None => "never".to_owned(),
        Some(0) => "now".to_owned(),
        Some(wait) => format!("in {}", humantime::format_duration(rounded(wait))),
    };
    format!("bucket {} in {}\n{lines}  who comes now may go: {next}\n", bucket.name.display(), path.display())
}

/// To the millisecond above: a wait told must not be too short.
fn rounded(wait: Nanos) -> Duration {
    Duration::from_millis(wait.div_ceil(1_000_000))
}

fn shown_json(bucket: &Bucket, path: &Path, view: &View) -> serde_json::Value {
    let limits = (0..view.plan.len()).map(|place| {
        json!({
            "limit": view.plan.describe(place),
            "left": view.limits.left(view.now, place).map(|left| i64::try_from(left).unwrap_or(i64::MAX)),
        })
    });
    json!({
        "bucket": bucket.name.to_string_lossy(),
        "path": path.to_string_lossy(),
        "limits": limits.collect::<Vec<_>>(),
        "available": view.limits.available(view.now),
        "wait_ns": wait(&view.limits, view.now),
    })
}

/// How long a newcomer would wait.
fn wait(limits: &Limits, now: Nanos) -> Option<Nanos> {
    limits.conforms_at(now, 1).ok().map(|(at, _)| at.saturating_sub(now))
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
        for wrong in ["", ".", "..", ".b", "a b", "a:b", "ü", "redis://host/b"] {
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
