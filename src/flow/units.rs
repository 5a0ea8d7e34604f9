//! The units of a run that wait for their grants. The pump's thread and the tasks of commands share them.

use super::lock::unpoisoned;
use super::next::Refusal;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::line::Line;

/// The units of a run.
pub(super) struct Units<T> {
    line: Mutex<Line<T>>,
    pub(super) clock: Arc<dyn NanoClock + Send + Sync>,
    /// Units that will never be granted.
    refused: Mutex<VecDeque<(T, Refusal)>>,
    /// Whether keys have limits of their own.
    pub(super) has_keys: bool,
    is_retired: AtomicBool,
}

impl<T> Units<T> {
    pub(super) fn new(line: Line<T>, clock: Arc<dyn NanoClock + Send + Sync>, has_keys: bool) -> Self {
        let (refused, is_retired) = (Mutex::default(), AtomicBool::new(false));
        Units { line: Mutex::new(line), clock, refused, has_keys, is_retired }
    }

    /// The units that wait. A change of the line is one step, so a panic elsewhere does not leave it half changed.
    pub(super) fn line(&self) -> MutexGuard<'_, Line<T>> {
        unpoisoned(self.line.lock())
    }

    /// The time on the clock of the line.
    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Adds a unit that will never leave.
    pub(super) fn refuse(&self, unit: T, why: Refusal) {
        self.refused().push_back((unit, why));
    }

    pub(super) fn refused(&self) -> MutexGuard<'_, VecDeque<(T, Refusal)>> {
        unpoisoned(self.refused.lock())
    }

    /// Whether the run is over: nothing leaves any more.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// Ends the run. Returns whether it had ended before.
    pub(super) fn retire(&self) -> bool {
        self.is_retired.swap(true, Ordering::SeqCst)
    }
}
