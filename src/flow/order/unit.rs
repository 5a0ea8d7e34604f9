//! The input and the output of the order of units with keys.

use super::keyed::KeyId;
use std::num::NonZeroU32;
use throttle_limits::clock::Nanos;
pub use throttle_limits::limits::Charged;
use throttle_limits::limits::{Each, Policy};

/// What an [`Order`](super::Order) keeps to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// The limits of each key. Each policy counts the cost of a unit that has the index beside it.
    pub each: &'a [(&'a Policy, usize)],
    /// Keys that have other limits than these.
    pub named: &'a [NamedKey],
    /// The limits of all keys together.
    pub all: &'a [(&'a Policy, usize)],
    /// The most units of one key that may run at once. Something runs from when it leaves until [`Order::ended`](super::Order::ended). `None`
    /// if nothing runs, as in a pipe; [`NonZeroU32::MAX`] if any number may.
    pub jobs: Option<NonZeroU32>,
    /// Units that would wait longer are dropped, in nanoseconds.
    pub max_wait: Option<Nanos>,
    /// A bucket that others use keeps all limits. The order only says whose turn it is.
    pub is_shared: bool,
}

/// A key with limits of its own.
#[derive(Clone, Debug)]
pub struct NamedKey {
    /// Its name.
    pub key: Box<[u8]>,
    /// Its limits. Each counts the cost of a unit that has the index beside it.
    pub each: Vec<(Policy, usize)>,
}

impl NamedKey {
    /// Its name, and its limits as they are made at `now`.
    pub(super) fn limits(&self, now: Nanos) -> (Box<[u8]>, Each) {
        let each: Vec<_> = self.each.iter().map(|(policy, kind)| (policy, *kind)).collect();
        (self.key.clone(), Each::new(&each, now))
    }
}

/// A unit that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit<T> {
    /// No other unit has the same age; the oldest has the least.
    pub age: u64,
    /// One cost of each kind.
    pub costs: Box<[u64]>,
    /// The bytes that it takes.
    pub size: usize,
    /// Since when it waits. If that is later than now, as for a command that is to be run again, it waits for that time
    /// first. Others of its key may leave meanwhile.
    pub arrived: Nanos,
    /// The unit itself.
    pub content: T,
}

/// The units that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// How many units.
    pub units: usize,
    /// How many keys they have.
    pub keys: u64,
    /// The key of most of them.
    pub most: Box<[u8]>,
    /// The most keys that are stored, if there is no memory for more.
    pub most_in_memory: Option<u64>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// This unit may leave now.
    Go(KeyId, Unit<T>, Charged),
    /// This unit would wait longer than the longest wait.
    Drop(KeyId, Unit<T>),
    /// Nothing before this time.
    At(Nanos),
    /// Nothing before something ends or is added: nothing waits, or only keys whose jobs are all running, or for which there is
    /// no room.
    Nothing,
}
