//! Limits for each key: which attempt is made next, and when. The pump's thread and the commands' tasks share this.

use super::attempt::{Attempt, Granted};
use super::job::{Key, Outcome};
use crate::flow::Sorting;
use crate::flow::order::{Crowd, Next, Order, Unit};
use crate::flow::unpoisoned;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use throttle_limits::clock::{Clock, Nanos, SystemClock};

/// Attempts that wait for the limits of their keys.
#[derive(Debug)]
pub(super) struct ByKey {
    state: Mutex<State>,
    /// Most units that are read ahead.
    ahead: usize,
    /// Whether replies may tell what a command really cost.
    settles: bool,
}

#[derive(Debug)]
struct State {
    order: Order<Attempt>,
    /// Keys that were sent away for too long: no unit of theirs is tried any more.
    gone: BTreeSet<Key>,
}

impl ByKey {
    pub(super) fn new(sorting: &Sorting, settles: bool) -> Self {
        let order = sorting.begin(SystemClock.now());
        ByKey { state: Mutex::new(State { order, gone: BTreeSet::new() }), ahead: sorting.ahead, settles }
    }

    /// Adds an attempt.
    ///
    /// # Errors
    /// Returns it if it can never be made: its key was sent away, or its cost is never granted.
    pub(super) fn add(&self, attempt: Attempt) -> Result<(), (Attempt, Outcome)> {
        let mut state = self.lock();
        if state.gone.contains(&attempt.job.key) {
            return Err((attempt, Outcome::SentAway));
        }
        let job = &attempt.job;
        let size = attempt.size();
        let (age, key, now) = (job.seq, job.key.clone(), SystemClock.now());
        let unit = Unit { age, costs: job.costs.clone(), size, arrived: now, content: attempt };
        state.order.add(now, key.as_deref(), unit).map(drop).map_err(|unit| (unit.content, Outcome::TooCostly))
    }

    /// The attempt to be made now. It is charged.
    pub(super) fn next(&self) -> Option<(Attempt, Granted)> {
        let mut state = self.lock();
        let Next::Go(key, unit, charged) = state.order.next(SystemClock.now()) else { return None };
        if self.settles {
            state.order.open(key, charged, &unit.costs);
        }
        Some((unit.content, Granted { key, charged, costs: unit.costs }))
    }

    /// There was no room for another command until now.
    pub(super) fn has_room_now(&self) {
        self.lock().order.ready_since(SystemClock.now());
    }

    /// How long until one may be made; zero: now. `None` if none is known that waits for a time.
    pub(super) fn wait(&self) -> Option<Duration> {
        let now = SystemClock.now();
        self.ready_at().map(|at| Duration::from_nanos(at.saturating_sub(now)))
    }

    /// When one may be made, on the system's clock.
    pub(super) fn ready_at(&self) -> Option<Nanos> {
        self.lock().order.ready_at(SystemClock.now())
    }

    /// How many keys have attempts that wait, and how many keys there are.
    pub(super) fn keys(&self) -> [u64; 2] {
        let order = &self.lock().order;
        [order.keys_waiting() as u64, order.keys() as u64]
    }

    /// The command with this grant has started.
    pub(super) fn started(&self, granted: &Granted) {
        self.lock().order.handed_over(SystemClock.now(), granted.key, granted.charged, &granted.costs);
    }

    /// The command with this grant has ended, and really cost so much of each kind.
    pub(super) fn ended(&self, granted: &Granted, real: &[u64]) {
        let (now, mut state) = (SystemClock.now(), self.lock());
        let Granted { key, charged, costs } = granted;
        if self.settles {
            state.order.settle(now, *key, *charged, [costs, real]);
        }
        state.order.ended(now, *key);
    }

    /// No unit of its key starts for `time`.
    pub(super) fn hold(&self, granted: &Granted, time: Nanos) {
        let now = SystemClock.now();
        self.lock().order.hold_until(now, granted.key, now.saturating_add(time));
    }

    /// The key is not tried any more. Returns the attempts that wait.
    pub(super) fn give_up(&self, key: &Key, granted: &Granted) -> Vec<Attempt> {
        let mut state = self.lock();
        state.gone.insert(key.clone());
        state.order.drain_key(granted.key).into_iter().map(|unit| unit.content).collect()
    }

    /// Takes out all attempts, the oldest first.
    pub(super) fn drain(&self) -> Vec<Attempt> {
        self.lock().order.drain().into_iter().map(|(_, unit)| unit.content).collect()
    }

    /// Whether so many wait that no more are read.
    pub(super) fn is_full(&self, others: usize) -> bool {
        self.lock().order.is_full(self.ahead.saturating_sub(others))
    }

    /// How many attempts wait.
    pub(super) fn len(&self) -> u64 {
        self.lock().order.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().order.is_empty()
    }

    /// The attempts that wait.
    pub(super) fn crowd(&self) -> Crowd {
        self.lock().order.crowd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}
