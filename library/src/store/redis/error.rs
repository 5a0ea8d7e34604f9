//! Errors of a bucket on a server, and how to fix them.

use thiserror::Error;

/// Why a bucket on a server cannot be used. Nothing is granted then. No message shows a password.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// There is no such bucket, and no limits were given to make it with.
    #[error("there is no bucket {0}")]
    Unknown(String),
    /// The key of this bucket holds something else.
    #[error("{0} is not a bucket: the key '{1}' holds something else; choose another name")]
    Foreign(String, String),
    /// A bucket of another version of throttle: its place, its key, and the format there.
    #[error(
        "the bucket {0} has format {2}, but this throttle reads format 18; use the throttle that made it, or \
         remove the bucket to start again: redis-cli DEL '{1}'"
    )]
    Format(String, String, String),
    /// The state on the server is damaged: the bucket and its key.
    #[error("the bucket {0} is damaged; remove its key to start again with its initial burst: redis-cli DEL '{1}'")]
    Damaged(String, String),
    /// The password in this file cannot be read.
    #[error("cannot read the password in '{0}': {1}")]
    PasswordFile(String, String),
    /// The address requires encryption.
    #[error("this throttle was built without TLS, so {0} cannot be reached; build it with --features tls")]
    NoTls(String),
    /// The server of this bucket answers with this error, but may serve it later; and the advice.
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
    /// Whether a retry may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, RedisError::Away(..) | RedisError::NotReady(..))
    }
}

/// The bucket or server at `place`. The address of a server, without a bucket, ends with a slash.
fn named(place: &str) -> String {
    format!("the {} {place}", if place.ends_with('/') { "server" } else { "bucket" })
}

fn server(place: &str) -> String {
    format!("{}{}", if place.ends_with('/') { "" } else { "the server of " }, named(place))
}
