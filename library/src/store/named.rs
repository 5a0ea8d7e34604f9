//! Buckets by the names that users write.

use super::file::Place;
use super::redis::{Address, AddressError};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// In a file.
    File(Place),
    /// On a server.
    Server(Address),
}

impl Named {
    /// The bucket named by `word`. It is on a server if the word begins with a scheme; `address` parses such a word. It
    /// is at a path if the word has a slash. Otherwise it is a file in the [folder of buckets](folder_of_buckets).
    ///
    /// # Errors
    /// A message that explains what is wrong with the word.
    pub fn new(
        word: &OsStr,
        folder: Option<&Path>,
        address: impl FnOnce(&str) -> Result<Address, AddressError>,
    ) -> Result<Self, String> {
        let text = word.as_bytes();
        if Address::is_meant(text) {
            let address = address(word.to_str().unwrap_or_default());
            return address.map(Named::Server).map_err(|error| error.to_string());
        }
        if text.contains(&b'/') {
            return Ok(Named::File(Place { path: word.into(), own_folder: false, group: None }));
        }
        let is_plain = text.iter().all(|byte| byte.is_ascii_alphanumeric() || b".:-_".contains(byte));
        if !is_plain || text.is_empty() || b".:".contains(&text[0]) {
            return Err(
                "a bucket name has only letters, digits and .:-_ and does not begin with . or :; a path has a slash, like ./b; \
                 a server's bucket is redis://host/NAME"
                    .to_owned(),
            );
        }
        let why = "neither XDG_STATE_HOME nor HOME is an absolute path; name a path with a slash, like /tmp/b";
        Ok(Named::File(Place { path: folder.ok_or(why)?.join(word), own_folder: true, group: None }))
    }
}

/// The folder of buckets that are named without a path, from the values of `XDG_STATE_HOME` and `HOME`. A relative path
/// is ignored, as in the XDG Base Directory Specification.
pub fn folder_of_buckets(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(state).or_else(|| Some(absolute(home)?.join(".local/state")));
    state.map(|state| state.join("throttle"))
}
