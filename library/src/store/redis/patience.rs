//! Retries and reports while the server is away.

use super::error::RedisError;
use crate::store::random;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The pause between two attempts to reach the server: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// How long to retry while the server is away, and where to report that. Each attempt waits three seconds for the
/// answer, even the last: a shorter wait could lose a grant that the server has made.
pub struct Patience {
    /// `None`: no end.
    until: Option<Instant>,
    is_over: AtomicBool,
    report: Box<dyn Fn(&Trouble<'_>) + Send + Sync>,
}

/// An event of the server; each is reported once.
#[derive(Debug)]
pub enum Trouble<'a> {
    /// The server cannot be reached; nothing is granted until it can.
    Away(&'a RedisError),
    /// The server can be reached again, after this long.
    Back(Duration),
}

impl Patience {
    /// No patience: the first error is returned.
    pub fn none() -> Self {
        Patience::new(Some(Instant::now()), |_| {})
    }

    /// Retries until `until`, or without end, with growing pauses, and reports to `report`.
    pub fn new(until: Option<Instant>, report: impl Fn(&Trouble<'_>) + Send + Sync + 'static) -> Self {
        Patience { until, is_over: AtomicBool::new(false), report: Box::new(report) }
    }

    /// Stops all retries: the process is about to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn remaining(&self) -> Duration {
        if self.is_over() {
            return Duration::ZERO;
        }
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Runs `act` until it succeeds or fails for good.
    pub(super) fn insist<T>(&self, mut act: impl FnMut() -> Result<T, RedisError>) -> Result<T, RedisError> {
        let (began, mut pause, mut reported) = (Instant::now(), PAUSES[0], false);
        loop {
            match act() {
                Err(error) if error.may_pass() && !self.remaining().is_zero() => {
                    if !reported {
                        (self.report)(&Trouble::Away(&error));
                    }
                    reported = true;
                    std::thread::sleep(jittered(pause).min(self.remaining()));
                    pause = (pause * 2).min(PAUSES[1]);
                }
                result => {
                    if reported && result.is_ok() {
                        (self.report)(&Trouble::Back(began.elapsed()));
                    }
                    return result;
                }
            }
        }
    }
}

/// A random time from half of the pause to the whole pause, so that clients of a failed server do not all return at
/// once.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause * u32::from(random().to_le_bytes()[0]) / 512
}
