//! Threads that wait. The first one acts as the timer.

use super::serve::Key;
use crate::clock::Nanos;
use std::collections::BTreeSet;

/// The waiting threads, in order of arrival. The first one acts as the timer while it waits.
#[derive(Debug, Default)]
pub(super) struct Watch {
    threads: BTreeSet<Key>,
    /// The time at which the first one will wake up.
    until: Option<Nanos>,
}

impl Watch {
    pub(super) fn add(&mut self, thread: Key) {
        self.threads.insert(thread);
    }

    pub(super) fn remove(&mut self, thread: Key) {
        if self.threads.first() == Some(&thread) {
            self.until = None;
        }
        self.threads.remove(&thread);
    }

    /// The time until which a thread may sleep if it is the timer, which must wake up at `alarm`. `None` for other
    /// threads, which are woken.
    pub(super) fn begin(&mut self, thread: Key, alarm: Option<Nanos>) -> Option<Nanos> {
        if self.threads.first() != Some(&thread) {
            return None;
        }
        self.until = alarm;
        self.until
    }

    /// Whether a thread is still the timer, and sleeps until that time.
    pub(super) fn is_until(&self, thread: Key, until: Nanos) -> bool {
        self.until == Some(until) && self.threads.first() == Some(&thread)
    }

    /// The thread that is the timer, if it would sleep too long for `alarm`. It must be woken.
    pub(super) fn oversleeps(&mut self, alarm: Option<Nanos>) -> Option<Key> {
        let (thread, alarm) = (*self.threads.first()?, alarm?);
        if self.until.is_some_and(|until| until <= alarm) {
            return None;
        }
        self.until = Some(alarm);
        Some(thread)
    }
}
