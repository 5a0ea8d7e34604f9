//! What can be wrong with a bucket on a server, and how to fix it.

use thiserror::Error;

/// Why a bucket on a server cannot be used. Nothing is granted then. No message shows a password.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// There is no such bucket, and no limits were named to make it with.
    #[error("there is no bucket {0}")]
    Unknown(String),
    /// The key holds something else.
    #[error("{place} is not a bucket: the key '{key}' holds something else; choose another name")]
    Foreign {
        /// Where the bucket is.
        place: String,
        /// Its key.
        key: String,
    },
    /// A bucket of another version of throttle.
    #[error(
        "the bucket {place} has format {version}, and this throttle knows format 3; use the throttle that made it, or begin \
         anew: redis-cli DEL '{key}'"
    )]
    Format {
        /// Where the bucket is.
        place: String,
        /// Its key.
        key: String,
        /// The format there.
        version: String,
    },
    /// The state on the server makes no sense.
    #[error(
        "the bucket {place} is damaged; remove its key to start again with its initial burst: redis-cli DEL '{key}'"
    )]
    Damaged {
        /// Where the bucket is.
        place: String,
        /// Its key.
        key: String,
    },
    /// No limit, or too many.
    #[error("a bucket keeps 1 to {} limits, and not 'unlimited'", super::MOST_LIMITS)]
    Limits,
    /// The password cannot be read.
    #[error("cannot read the password in '{path}': {reason}")]
    PasswordFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address asks for encryption.
    #[error("this throttle was built without TLS, so {0} cannot be reached; build it with --features tls")]
    NoTls(String),
    /// The server is away or not ready; it may come back.
    #[error("cannot reach {}: {reason}", named(place))]
    Away {
        /// Where the bucket is.
        place: String,
        /// What the system or the server says.
        reason: String,
    },
    /// The server refuses.
    #[error("{} refuses: {reason}", server(place))]
    Refused {
        /// Where the bucket is.
        place: String,
        /// The reason it gives.
        reason: String,
    },
    /// The other side is not a Redis server.
    #[error("{} is not a Redis server; check host and port", server(.0))]
    NotRedis(String),
}

impl RedisError {
    /// Whether it says what is wrong with a bucket, on a server that can be used.
    pub(super) fn is_of_one_bucket(&self) -> bool {
        matches!(self, RedisError::Damaged { .. } | RedisError::Format { .. })
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, RedisError::Away { .. })
    }
}

/// An address that names no bucket ends with a slash.
fn named(place: &str) -> String {
    format!("the {} {place}", if place.ends_with('/') { "server" } else { "bucket" })
}

fn server(place: &str) -> String {
    format!("{}{}", if place.ends_with('/') { "" } else { "the server of " }, named(place))
}
