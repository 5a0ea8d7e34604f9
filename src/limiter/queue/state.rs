//! The state of a queue.

use crate::clock::Nanos;
use crate::limiter::list::{Key, List};
use crate::limiter::panics::Panics;
use crate::limiter::rules::Rules;
use crate::limits::{Grant, Limits};
use std::collections::BTreeSet;
use std::task::Waker;

/// What to do after the lock is released: wake these wakers, and drop those. Both may run the caller's code.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(super) wake: Vec<Waker>,
    pub(super) dropped: Vec<Waker>,
    /// Asked for by the caller: its grant is [opened](Limits::open).
    pub(crate) opens: bool,
    /// The grant that was opened, once the caller has it.
    pub(crate) opened: Option<Grant>,
}

impl Effects {
    pub(crate) fn run(self) {
        let mut panics = Panics::default();
        for waker in self.wake {
            panics.hold(|| waker.wake());
        }
        panics.resume();
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) limits: Limits,
    pub(super) rules: Rules,
    pub(super) places: Option<Places>,
    pub(super) list: List<Entry>,
    /// The sum of all costs in the queue.
    pub(super) queued: u64,
    /// How many entries of the queue are reservations.
    pub(super) promises: usize,
    /// The latest reading of the clock. An earlier one counts as this.
    pub(super) now: Nanos,
    /// A time on the schedule: the head's request counts as made at this time or later, because until then something
    /// else held it up. During a pause, the end of the pause.
    pub(super) floor: Nanos,
    pub(super) lag: Nanos,
    /// See [`Limits::fill_time`].
    pub(super) fill_time: Nanos,
    /// See [`Limits::allowance`].
    pub(super) allowance: Nanos,
    /// See [`Limits::burst`].
    pub(super) burst: u64,
    /// See [`Limits::largest_cost`].
    pub(super) largest_cost: u64,
    /// When the head will be granted; `None` if there are no waiters, or the head waits for a place.
    pub(super) due: Option<Nanos>,
    pub(super) deadlines: BTreeSet<(Nanos, Key)>,
    /// Waiting threads in order of arrival. The first one acts as the queue's timer while it waits.
    pub(super) threads: BTreeSet<(u64, Key)>,
    pub(super) arrivals: u64,
    /// When the first thread will wake up.
    pub(super) watched: Option<Nanos>,
    pub(super) closed: bool,
}

/// The places of a semaphore. A grant holds as many places as it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) capacity: u64,
    pub(crate) held: u64,
}

impl Places {
    pub(crate) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.held)
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) cost: u64,
    /// The time of the request on the schedule.
    pub(super) asked: Nanos,
    /// The time of the request on the real clock.
    pub(super) since: Nanos,
    pub(super) deadline: Option<Nanos>,
    pub(super) turn: Turn,
    pub(super) waker: Option<Waker>,
    pub(super) arrival: u64,
    pub(super) is_thread: bool,
    /// Whether its holder was dropped.
    pub(super) abandoned: bool,
    /// Whether its grant is opened.
    pub(super) opens: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Waiting,
    /// A reservation for this time.
    Promised(Nanos),
    /// Granted, but fetched so late that a window had given its room to others. It now waits only for room in the window.
    Late(Grant),
    Granted(Grant),
    TimedOut(Nanos),
}

impl Entry {
    pub(super) fn new(cost: u64, since: Nanos, turn: Turn) -> Self {
        let (deadline, waker, is_thread, abandoned, opens) = (None, None, false, false, false);
        Entry { cost, asked: since, since, deadline, turn, waker, arrival: 0, is_thread, abandoned, opens }
    }
}
