//! The units of a run that wait for their grants. The pump's thread and the tasks of commands share them.

use super::lock::unpoisoned;
use super::next::Refusal;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::line::Line;

/// The units of a run.
pub(super) struct Units<T> {
    line: Mutex<Line<T>>,
    pub(super) clock: Arc<dyn NanoClock + Send + Sync>,
    refused: Mutex<VecDeque<(T, Refusal)>>,
}

impl<T> Units<T> {
    pub(super) fn new(line: Line<T>, clock: Arc<dyn NanoClock + Send + Sync>) -> Self {
        Units { line: Mutex::new(line), clock, refused: Mutex::default() }
    }

    /// The units that wait. A change of the line is one step, so a panic elsewhere does not leave it half changed.
    pub(super) fn line(&self) -> MutexGuard<'_, Line<T>> {
        unpoisoned(self.line.lock())
    }

    /// The time on the clock of the line.
    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The units that will never leave. The pump takes them out.
    pub(super) fn refused(&self) -> MutexGuard<'_, VecDeque<(T, Refusal)>> {
        unpoisoned(self.refused.lock())
    }
}
