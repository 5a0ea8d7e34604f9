//! What can be wrong with a bucket on a server, and what to do about it.

use thiserror::Error;

/// Why a bucket on a server is not used. Nothing is granted then. No message tells a password.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedisError {
    /// There is no such bucket, and no limits were named to make it with.
    #[error("there is no bucket {0}")]
    Unknown(String),
    /// The key holds something else.
    #[error("{place} is not a bucket but something else, at the key '{key}'; name another one")]
    Foreign {
        /// Where the bucket is.
        place: String,
        /// Its key.
        key: String,
    },
    /// A bucket of a later version of this program.
    #[error("the bucket {place} was made by a newer throttle (format {version}, this one knows 1); use that one")]
    Newer {
        /// Where the bucket is.
        place: String,
        /// The format there.
        version: String,
    },
    /// What is kept there makes no sense.
    #[error(
        "the bucket {place} is damaged; to begin anew, with what it allows at the start, remove its key: redis-cli DEL '{key}'"
    )]
    Damaged {
        /// Where the bucket is.
        place: String,
        /// Its key.
        key: String,
    },
    /// No limit to keep, or too many.
    #[error("a bucket keeps 1 to {} limits, and not 'unlimited'", super::terms::MOST_LIMITS)]
    Limits,
    /// A limit that cannot be reckoned exactly on a server.
    #[error(
        "the limit {limit} does not fit a bucket on a server: {what} would be {number}, and 2^51 is the most that is \
         reckoned exactly there; take a smaller burst, or a rate of rounder numbers"
    )]
    TooLarge {
        /// The limit.
        limit: String,
        /// Which of its numbers.
        what: &'static str,
        /// How large that is.
        number: u128,
    },
    /// The address asks for encryption.
    #[error("this throttle was built without TLS, so {0} cannot be reached; build it with --features tls")]
    NoTls(String),
    /// The server is not there, or not ready: it may be again.
    #[error("cannot reach the bucket {place}: {reason}")]
    Away {
        /// Where the bucket is.
        place: String,
        /// What the system or the server says.
        reason: String,
    },
    /// The server says no.
    #[error("the server of the bucket {place} refuses: {reason}")]
    Refused {
        /// Where the bucket is.
        place: String,
        /// What it says.
        reason: String,
    },
    /// Something else answers there.
    #[error("what answers for the bucket {0} is no Redis server; check host and port")]
    NotRedis(String),
}

impl RedisError {
    /// Whether trying again may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, RedisError::Away { .. })
    }
}
