//! The state of a queue.

use crate::clock::Nanos;
use crate::limiter::panics::contained;
use crate::limiter::rules::Rules;
use crate::limits::{Cost, Grant, Limits, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

/// Why a queue grants nothing. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The cost of this kind is above the burst, which is this.
    AboveBurst(usize, u64),
    /// The cost of this kind is never granted.
    Never(usize),
    TooLong {
        wait: Nanos,
    },
    TimedOut {
        after: Nanos,
    },
    OthersWait,
    Full,
    Closed,
    NoTimer,
    TooManyKeys,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLong { wait } => Denied::TooLong { wait },
            Refusal::Never | Refusal::Busy | Refusal::GivenUp(_) => Denied::Never(0),
        }
    }
}

/// What to do after the lock is released: wake these wakers, and drop those. Both may run the caller's code.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(super) wake: Vec<Waker>,
    pub(super) dropped: Vec<Waker>,
    /// Asked for by the caller: its grant is [opened](Limits::open).
    pub(crate) opens: bool,
    /// The caller was let in before the queue was closed.
    pub(crate) is_admitted: bool,
    /// The grant that was opened, once the caller has it.
    pub(crate) opened: Option<Grant>,
}

impl Effects {
    pub(crate) fn run(self) {
        for waker in self.wake {
            contained(|| waker.wake());
        }
        for waker in self.dropped {
            contained(|| drop(waker));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) limits: Limits,
    pub(super) rules: Rules,
    pub(super) places: Option<Places>,
    /// Those that wait, and reservations, in order of arrival.
    pub(super) list: BTreeMap<Key, Entry>,
    /// Those that have left the queue, and do not know yet.
    pub(super) gone: BTreeMap<Key, Entry>,
    /// What was found for the end of the queue, if nothing has changed since.
    pub(super) tail: Option<Tail>,
    /// The sum of all costs in the queue, if there is one kind of cost.
    pub(super) queued: u64,
    /// How many entries of the queue are reservations.
    pub(super) promises: usize,
    /// The latest reading of the clock. An earlier one counts as this.
    pub(super) now: Nanos,
    /// A time on the schedule: the head's request counts as made at this time or later, because until then something
    /// else held it up. During a pause, the end of the pause.
    pub(super) floor: Nanos,
    /// The end of the latest pause.
    pub(super) pause: Nanos,
    pub(super) lag: Nanos,
    /// See [`Limits::fill_time`].
    pub(super) fill_time: Nanos,
    /// See [`Limits::allowance`].
    pub(super) allowance: Nanos,
    /// See [`Rules::most`].
    pub(super) most: Box<[(u64, u64)]>,
    /// When the head will be granted; `None` if the queue is empty, or the head waits for a place.
    pub(super) due: Option<Nanos>,
    pub(super) deadlines: BTreeSet<(Nanos, Key)>,
    /// Waiting threads in order of arrival. The first one acts as the queue's timer while it waits.
    pub(super) threads: BTreeSet<Key>,
    pub(super) arrivals: Key,
    /// When the first thread will wake up.
    pub(super) watched: Option<Nanos>,
    pub(super) closed: bool,
}

/// The limits after all in the queue have been served.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) limits: Limits,
    /// Reservations are granted so many nanoseconds after their times.
    pub(super) late: Nanos,
    /// Windows may count grants later by so many nanoseconds in all, and each time that was found stays the same.
    pub(super) slack: Nanos,
    /// The latest time at which something was found. What would have been granted before counts from then.
    pub(super) found: Nanos,
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

/// Counts what joins the queue. No number is used twice.
pub(crate) type Key = u64;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) cost: Cost,
    /// The time of the request on the schedule.
    pub(super) asked: Nanos,
    /// The time of the request on the real clock.
    pub(super) since: Nanos,
    pub(super) deadline: Option<Nanos>,
    pub(super) turn: Turn,
    pub(super) waker: Option<Waker>,
    pub(super) is_thread: bool,
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
    /// It timed out, or will never be granted.
    Refused(Denied),
}

impl Entry {
    pub(super) fn new(cost: &Cost, since: Nanos, turn: Turn) -> Self {
        let cost = cost.clone();
        Entry { cost, asked: since, since, deadline: None, turn, waker: None, is_thread: false, opens: false }
    }
}
