//! The content of a bucket at one moment.

use super::state::Replica;
use crate::clock::Nanos;
use crate::ledger::operation::{Ask, Counts};
use crate::ledger::state::Refusal;
use crate::limits::{KeyId, Levels, Pace, Policy};

/// The limits and their state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The limits as they were set.
    pub policy: Policy,
    /// The state of the limits: see [`Limits`](crate::limits::Limits).
    pub state: Levels,
    /// Whole units that each limit would admit; negative if units are owed.
    pub left: Vec<i128>,
    /// Whole units that all limits together would admit.
    pub available: u64,
    /// The wait of the next unit, in nanoseconds, if nothing changes. If there are limits for each key, the next unit is a
    /// unit of a new key. `None` if it is never granted, or not before a command ends.
    pub wait: Option<Nanos>,
    /// The waiters, in order.
    pub line: Vec<Waiting>,
    /// If the bucket is paused, nothing is granted before this time.
    pub paused_until: Option<Nanos>,
    /// The learned time between two starts, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// The number of running commands, if the bucket counts them.
    pub running: usize,
    /// The keys whose state differs from a new key's, by name.
    pub keys: Vec<KeyView>,
    /// The time at which the buckets of new keys are made.
    pub made: Nanos,
    /// Event counts since the bucket was made.
    pub counts: Counts,
    /// The time of this view, on the bucket's clock.
    pub now: Nanos,
}

/// A waiter of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The cost that it waits for.
    pub cost: u64,
    /// The remaining wait, in nanoseconds, if nothing changes.
    pub wait: Nanos,
}

/// A key of a bucket at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// The name of the key.
    pub name: Box<[u8]>,
    /// The state of the key's limits: see [`Limits`](crate::limits::Limits).
    pub state: Levels,
    /// The whole units that each limit of the key would grant now; negative if units are owed.
    pub left: Vec<i128>,
    /// The wait of a unit for the limits of the key alone, in nanoseconds; `None` if it is never granted.
    pub wait: Option<Nanos>,
    /// The end of the pause, if the key is paused.
    pub paused_until: Option<Nanos>,
    /// The learned time between two calls, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// The time until which the key is granted nothing because too many calls have failed in a row.
    pub given_up_until: Option<Nanos>,
    /// The number of waiters of the key.
    pub waiting: usize,
    /// The number of its running commands, if the bucket counts them.
    pub running: usize,
}

impl Replica {
    /// The content of the bucket at `now`.
    pub(crate) fn view(&self, now: Nanos) -> View {
        let now = now.max(self.now());
        let waiting = |(cost, at): (u64, Nanos)| Waiting { cost, wait: at.saturating_sub(now) };
        let (all, held) = self.held_limits();
        // A unit of a new key, if keys have limits.
        let new = Ask { key: Some([0xff, 0].into()), costs: [1].into(), latest: Nanos::MAX, ..Ask::default() };
        View {
            policy: self.policy.clone(),
            state: self.ledger.levels.clone(),
            left: all.left(&held, now),
            available: self.available(now),
            wait: self.estimate_new(self.ledger.now, &new).map(|at| at.saturating_sub(now)),
            line: self.waiting().into_iter().map(waiting).collect(),
            paused_until: self.paused_until().filter(|until| *until > now),
            learned: self.learned(),
            running: self.running(),
            keys: self.keys().into_iter().map(|(name, key)| self.view_of(now, name, key)).collect(),
            made: self.made,
            counts: self.counts,
            now,
        }
    }

    fn view_of(&self, now: Nanos, name: &[u8], key: KeyId) -> KeyView {
        let (each, state) = self.ledger.limits(Some(key));
        let flow = self.ledger.keys.flow(key).map(|id| &self.ledger.flows[id]);
        KeyView {
            name: name.into(),
            left: each.left(state, now),
            wait: each.conforms_at(state, now, &[1]).map(|(at, _)| at.saturating_sub(now)),
            state: state.clone(),
            paused_until: flow.map(|flow| flow.hold.until).filter(|until| *until > self.ledger.now),
            learned: self.ledger.pace_of(key).and_then(Pace::learned),
            given_up_until: self.given_up_until(name),
            waiting: flow.map_or(0, |flow| flow.waiting + flow.later),
            running: flow.map_or(0, |flow| flow.running as usize),
        }
    }

    /// If too many units of a key have failed in a row: until when its requests are refused.
    fn given_up_until(&self, name: &[u8]) -> Option<Nanos> {
        match self.ledger.failures.given_up.get(name) {
            Some((Refusal::GivenUp(Some(_)), until)) if *until > self.ledger.now => Some(*until),
            _ => None,
        }
    }
}
