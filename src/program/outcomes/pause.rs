//! Long pauses, which are said wherever somebody may read it.

use super::super::names::shown;
use throttle_limits::clock::{self, Nanos, SECOND};

/// A shorter pause is not worth a line.
const LONG: Nanos = 60 * SECOND;

/// Says each pause of a minute or more once.
#[derive(Debug, Default)]
pub(super) struct LongPause {
    /// The end of the latest one that was said.
    said_until: Nanos,
}

impl LongPause {
    /// The line about a pause, now, of a key or of the whole run.
    pub(super) fn line(&mut self, now: Nanos, until: Nanos, key: Option<&[u8]>) -> Option<String> {
        if until < now.saturating_add(LONG) || self.said_until > now {
            return None;
        }
        self.said_until = until;
        let wait = clock::shown_wait(until - now);
        Some(match key {
            Some(key) => format!("'{}' asked to wait: nothing of it starts for {wait}", shown(key)),
            None => format!("a server asked to wait: nothing starts for {wait}"),
        })
    }
}
