//! The state of a queue.

use crate::clock::Nanos;
use crate::limiter::rules::Rules;
use crate::limiter::serve::{Denied, Key};
use crate::limiter::watch::Watch;
use crate::limits::{Account, Cost, Grant};
use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) account: Account,
    pub(super) rules: Rules,
    pub(super) places: Option<Places>,
    /// The waiters and the reservations, in order of arrival. Each entry has a box, because a leaf of the tree has room
    /// for eleven entries.
    pub(super) list: BTreeMap<Key, Box<QueueEntry>>,
    /// The entries that were granted or refused, until their waiters fetch the answer.
    pub(super) answered: BTreeMap<Key, Box<QueueEntry>>,
    /// The sum of all costs in the queue, if there is one kind of cost.
    pub(super) queued: u64,
    /// The number of entries of the queue that are reservations.
    pub(super) promises: usize,
    /// The latest reading of the clock. An earlier reading counts as this one.
    pub(crate) now: Nanos,
    /// A time on the schedule: the head's request counts as made at this time or later, because until then something
    /// else held it up.
    pub(super) floor: Nanos,
    /// The end of the latest pause: nothing but a reservation is granted before it.
    pub(super) pause: Nanos,
    /// The time at which the buckets are emptied, at the end of a pause.
    pub(super) empties_at: Option<Nanos>,
    pub(super) lag: Nanos,
    /// The shortest time in which a bucket fills.
    pub(super) fill_time: Nanos,
    /// See [`Account::allowance`].
    pub(super) allowance: Nanos,
    /// See [`Rules::most`].
    pub(super) most: Box<[(u64, u64)]>,
    /// When the head will be granted; `None` if the queue is empty, or the head waits for a place.
    pub(super) due: Option<Nanos>,
    pub(super) deadlines: BTreeSet<(Nanos, Key)>,
    pub(super) watch: Watch,
    pub(super) arrivals: Key,
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
pub(super) struct QueueEntry {
    pub(super) cost: Cost,
    /// The time of the request on the schedule.
    pub(super) asked: Nanos,
    /// The time of the request on the real clock.
    pub(super) since: Nanos,
    pub(super) deadline: Option<Nanos>,
    pub(super) status: Status,
    pub(super) waker: Option<Waker>,
    pub(super) is_thread: bool,
    /// Whether its grant is opened.
    pub(super) opens: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Status {
    Waiting,
    /// A reservation for this time.
    Promised(Nanos),
    Granted(Grant),
    /// It timed out, or will never be granted.
    Refused(Denied),
}

impl QueueEntry {
    pub(super) fn new(cost: &Cost, since: Nanos, status: Status) -> Self {
        let cost = cost.clone();
        QueueEntry { cost, asked: since, since, deadline: None, status, waker: None, is_thread: false, opens: false }
    }
}
