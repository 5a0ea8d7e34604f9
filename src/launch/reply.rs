//! What a command has told about the answer it got.

use std::time::Duration;

/// What a command has told about the answer it got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub status: Option<u16>,
    pub retry_after: Option<Option<Duration>>,
    pub reset: Option<Duration>,
    pub cost: Option<u64>,
    pub bad: Option<String>,
}

impl Reply {
    pub fn parse(_: &[u8], _: std::time::SystemTime) -> Self {
        Self::default()
    }
}
