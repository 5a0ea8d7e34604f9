//! The rules of a ledger: its limits, and the facts that decide beside them when a request is granted.

use crate::clock::Nanos;
use crate::limits::{Limits, Policy};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The rules of a [`Ledger`](super::Ledger).
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// The limits of each key. The number beside a policy is the index of the kind of cost that the policy counts.
    pub each: &'a [(&'a Policy, usize)],
    /// Keys with limits of their own, instead of the limits in `each`.
    pub named: &'a [NamedKey],
    /// The limits of all keys together.
    pub all: &'a [(&'a Policy, usize)],
    /// The most units of one key that may run at once. A unit runs from its grant until
    /// [`Ledger::ended`](super::Ledger::ended). `None` if nothing runs, as in a pipe; [`NonZeroU32::MAX`] if any number
    /// may run.
    pub jobs: Option<NonZeroU32>,
    /// The longest wait of a request, in nanoseconds. After that it is refused.
    pub max_wait: Option<Nanos>,
    /// Whether the pace of each key is learned from the answers of servers, and then the time between two starts that the
    /// limits require; 0 without limits.
    pub paced: Option<Nanos>,
    /// Whether a learned pace slows no start, and only counts the starts between pauses.
    pub only_observes: bool,
    /// The number of failures of a key in a row after which it is given up: see [`Ledger::tried`](super::Ledger::tried).
    pub fails: Option<NonZeroU32>,
    /// Whether a shared bucket applies all limits. Then the ledger decides only the order of turns.
    pub is_shared: bool,
}

/// A key with its own limits.
#[derive(Clone, Debug)]
pub struct NamedKey {
    /// Its name.
    pub key: Box<[u8]>,
    /// The limits of the key, each with the index of the kind of cost that it counts. Keys with equal limits may share
    /// them.
    pub each: Arc<[(Policy, usize)]>,
}

impl NamedKey {
    /// The names of these keys, and their limits in their initial state at `now`. Keys that share limits share their
    /// initial state.
    pub(super) fn limits(named: &[NamedKey], now: Nanos) -> Vec<(&[u8], Arc<Limits>)> {
        let mut made = HashMap::new();
        let mut start = |of: &Arc<[(Policy, usize)]>| {
            let each: Vec<_> = of.iter().map(|(policy, kind)| (policy, *kind)).collect();
            Arc::clone(made.entry(Arc::as_ptr(of)).or_insert_with(|| Arc::new(Limits::new(&each, now))))
        };
        named.iter().map(|named| (&*named.key, start(&named.each))).collect()
    }
}
