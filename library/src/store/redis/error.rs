//! What can be wrong with a bucket on a server, and how to fix it.

use thiserror::Error;

/// Why a bucket on a server cannot be used. Nothing is granted then. No message shows a password.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// There is no such bucket, and no limits were named to make it with.
    #[error("there is no bucket {0}")]
    Unknown(String),
    /// The key of this bucket holds something else.
    #[error("{0} is not a bucket: the key '{1}' holds something else; choose another name")]
    Foreign(String, String),
    /// A bucket of another version of throttle: its place, its key, and the format there.
    #[error(
        "the bucket {0} has format {2}, and this throttle knows format 13; use the throttle that made it, or begin anew: \
         redis-cli DEL '{1}'"
    )]
    Format(String, String, String),
    /// The state on the server makes no sense: of this bucket with this key.
    #[error("the bucket {0} is damaged; remove its key to start again with its initial burst: redis-cli DEL '{1}'")]
    Damaged(String, String),
    /// The password in this file cannot be read.
    #[error("cannot read the password in '{0}': {1}")]
    PasswordFile(String, String),
    /// The address asks for encryption.
    #[error("this throttle was built without TLS, so {0} cannot be reached; build it with --features tls")]
    NoTls(String),
    /// The server of this bucket answers this, and may serve it later; and what to do.
    #[error("{} answers: {}; {}", server(.0), .1, .2)]
    NotReady(String, String, &'static str),
    /// The server of this bucket is away, for this reason; it may come back.
    #[error("cannot reach {}: {}", named(.0), .1)]
    Away(String, String),
    /// The server of this bucket refuses, for this reason.
    #[error("{} refuses: {}", server(.0), .1)]
    Refused(String, String),
    /// The other side is not a Redis server.
    #[error("{} is not a Redis server; check host and port", server(.0))]
    NotRedis(String),
}

impl RedisError {
    /// Whether it says what is wrong with a bucket, on a server that can be used.
    pub(super) fn is_of_one_bucket(&self) -> bool {
        matches!(self, RedisError::Damaged(..) | RedisError::Format(..))
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, RedisError::Away(..) | RedisError::NotReady(..))
    }
}

/// An address that names no bucket ends with a slash.
fn named(place: &str) -> String {
    format!("the {} {place}", if place.ends_with('/') { "server" } else { "bucket" })
}

fn server(place: &str) -> String {
    format!("{}{}", if place.ends_with('/') { "" } else { "the server of " }, named(place))
}
