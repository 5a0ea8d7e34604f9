//! The bucket that the user names.

use crate::program::args::OnStoreError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use throttle_limits::store::{Address, AddressError, Place};

/// A bucket as the user asks for it. Nothing is opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) kind: Kind,
    /// Whether it was not named on the command line but by `THROTTLE_BUCKET`.
    pub(crate) is_default: bool,
    /// Whether its server is waited for while it is away.
    pub(crate) is_waited_for: bool,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File(Place),
    Server(Address),
}

/// What the environment says about buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// The value of `THROTTLE_BUCKET`, unless it is empty.
    pub(crate) bucket: Option<OsString>,
    /// The folder of buckets that are named without a path.
    folder: Option<PathBuf>,
}

impl Environment {
    /// The folder of buckets that are named without a path.
    ///
    /// # Errors
    /// Nothing says where it is.
    fn folder(&self) -> Result<&Path, String> {
        let why = "neither XDG_STATE_HOME nor HOME says where; name a path with a slash, like /tmp/b";
        self.folder.as_deref().ok_or_else(|| why.to_owned())
    }

    /// The values of `THROTTLE_BUCKET`, `XDG_STATE_HOME` and `HOME`. A relative path does not count, see the XDG Base
    /// Directory Specification.
    pub(crate) fn new(bucket: Option<OsString>, state: Option<OsString>, home: Option<OsString>) -> Self {
        let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")));
        Environment {
            bucket: bucket.filter(|word| !word.is_empty()),
            folder: state.map(|state| state.join("throttle")),
        }
    }
}

impl Bucket {
    /// The bucket that `word` names: on a server if it begins with a scheme, a path if it has a slash, otherwise a file in the
    /// folder of buckets. `None`: the environment names it, if it does.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn named(
        word: Option<&OsStr>,
        on_store_error: Option<OnStoreError>,
        environment: &Environment,
    ) -> Result<Option<Self>, String> {
        Bucket::with(word, on_store_error, environment, str::parse)
    }

    /// A bucket whose folder or server is meant: the name of one on a server may be missing. If nothing names it, the folder
    /// of buckets itself.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn among(
        word: Option<&OsStr>,
        on_store_error: Option<OnStoreError>,
        environment: &Environment,
    ) -> Result<Self, String> {
        let named = Bucket::with(word, on_store_error, environment, Address::of_server)?;
        let own = || {
            // With a slash at its end.
            let path = environment.folder().map_err(|error| format!("--list: {error}"))?.join("");
            Ok(Bucket {
                kind: Kind::File(Place { path, own_folder: true, group: None }),
                is_default: false,
                is_waited_for: false,
            })
        };
        named.map_or_else(own, Ok)
    }

    fn with(
        word: Option<&OsStr>,
        on_store_error: Option<OnStoreError>,
        environment: &Environment,
        address: impl FnOnce(&str) -> Result<Address, AddressError>,
    ) -> Result<Option<Self>, String> {
        let (flag, word) = match (word, &environment.bucket) {
            (Some(word), _) => ("--bucket", word),
            (None, Some(word)) => ("THROTTLE_BUCKET", word.as_os_str()),
            (None, None) => return Ok(None),
        };
        let kind = kind(word, environment, address)
            .map_err(|error| format!("{flag} '{}': {error}", Address::redacted(word)))?;
        let is_waited_for = on_store_error != Some(OnStoreError::Fail);
        Ok(Some(Bucket { kind, is_default: flag != "--bucket", is_waited_for }))
    }

    /// What an error begins with: the variable, if that names the bucket.
    pub(crate) fn origin(&self) -> &'static str {
        if self.is_default { "THROTTLE_BUCKET: " } else { "" }
    }
}

fn kind(
    word: &OsStr,
    environment: &Environment,
    address: impl FnOnce(&str) -> Result<Address, AddressError>,
) -> Result<Kind, String> {
    let text = word.as_bytes();
    if Address::is_meant(text) {
        let address = address(word.to_str().unwrap_or_default());
        return address.map(Kind::Server).map_err(|error| error.to_string());
    }
    if text.contains(&b'/') {
        return Ok(Kind::File(Place { path: word.into(), own_folder: false, group: None }));
    }
    let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || b".:-_".contains(byte));
    if !is_plain || text.is_empty() || b".:".contains(&text[0]) {
        return Err("a name is of letters, digits and .:-_ and begins with no . or :; a path has a slash, like ./b; \
             a server's bucket is redis://host/NAME"
            .to_owned());
    }
    Ok(Kind::File(Place { path: environment.folder()?.join(word), own_folder: true, group: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_in_the_folder_of_buckets_and_a_path_is_itself() {
        let environment = Environment::new(None, Some("/state".into()), None);
        let kind = |word: &str| kind(OsStr::new(word), &environment, str::parse);
        let file = |path: &str, own_folder| Ok(Kind::File(Place { path: path.into(), own_folder, group: None }));
        assert_eq!(kind("git-hub_2.x"), file("/state/throttle/git-hub_2.x", true));
        assert_eq!(kind("api:v1:me"), file("/state/throttle/api:v1:me", true));
        assert_eq!(kind("./b"), file("./b", false));
        assert_eq!(kind("/tmp/my bucket"), file("/tmp/my bucket", false));
        for wrong in ["", ".", "..", ".b", ":b", "a b", "a:b@c", "redis:b", "ü"] {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
        assert!(super::kind(OsStr::new("b"), &Environment::default(), str::parse).unwrap_err().contains("HOME"));
    }

    #[test]
    fn the_folder_of_buckets_is_in_the_folder_of_state() {
        let folder = |state: Option<&str>, home: Option<&str>| {
            Environment::new(None, state.map(Into::into), home.map(Into::into)).folder
        };
        assert_eq!(folder(Some("/s"), Some("/h")), Some("/s/throttle".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, None), None);
    }
}
