//! What to do while the server is away.

use super::error::RedisError;
use crate::store::random;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The pause between two tries to reach the server: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// How long to keep trying while the server is away, and how to report that. Each try waits three seconds for the
/// answer, also the last one: a shorter wait could lose a grant that the server has made.
pub struct Patience {
    /// `None`: without end.
    until: Option<Instant>,
    is_over: AtomicBool,
    tell: Box<dyn Fn(&Trouble<'_>) + Send + Sync>,
}

/// What happens to the server; reported once each.
#[derive(Debug)]
pub enum Trouble<'a> {
    /// It cannot be reached; nothing is granted until it can.
    Away(&'a RedisError),
    /// It can be reached again, after this long.
    Back(Duration),
}

impl Patience {
    /// No patience: the first error is returned.
    #[must_use]
    pub fn none() -> Self {
        Patience::new(Some(Instant::now()), |_| {})
    }

    /// Keeps trying until `until`, or without end, with growing pauses, and reports to `tell`.
    pub fn new(until: Option<Instant>, tell: impl Fn(&Trouble<'_>) + Send + Sync + 'static) -> Self {
        Patience { until, is_over: AtomicBool::new(false), tell: Box::new(tell) }
    }

    /// Tries no more: the process is about to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn left(&self) -> Duration {
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
                Err(error) if error.may_pass() && !self.left().is_zero() => {
                    if !reported {
                        (self.tell)(&Trouble::Away(&error));
                    }
                    reported = true;
                    std::thread::sleep(jittered(pause).min(self.left()));
                    pause = (pause * 2).min(PAUSES[1]);
                }
                result => {
                    if reported && result.is_ok() {
                        (self.tell)(&Trouble::Back(began.elapsed()));
                    }
                    return result;
                }
            }
        }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A random part between half and all, so that clients of a failed server do not all return at once.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause * u32::from(random().to_le_bytes()[0]) / 512
}
