//! Finds the key and the costs of a unit, and defines how units are sorted by key.

use super::cost::Cost;
use super::next::Refusal;
use super::selector::Selector;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Policy;
use throttle_limits::line::{Line, NamedKey, Rules};
use throttle_limits::store::View;

/// The longest key that is stored, in bytes. Linux passes a command no variable longer than 128 KiB.
const MAX_KEY_BYTES: usize = 64 * 1024;

/// The longest name of a key in a shared bucket, in bytes.
const MAX_SHARED_NAME_BYTES: usize = 200;

/// Finds the key and the costs of a unit.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Finds the key; `None`: no limits are kept per key.
    pub per: Option<Selector>,
    /// The cost for each limit, or for each kind of limit; `None`: every unit costs one. Empty if every limit counts
    /// units.
    pub costs: Vec<Option<Cost>>,
    /// The names of the limits that count these costs, and the highest cost that each limit ever grants.
    pub limits: Vec<(String, u64)>,
}

impl Look {
    /// Returns the key of `unit`, or `None` if it has no key. A key above 64 KiB is replaced by its hash. `unit` has no
    /// delimiter.
    pub fn key<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self.per.as_ref().and_then(|per| per.key(unit)).map(bounded)
    }

    /// Stores the costs of `unit` in `costs`. `unit` has no delimiter.
    ///
    /// # Errors
    /// A cost cannot be read. The message has the cost's limit, and what to do.
    pub fn costs(&self, unit: &[u8], costs: &mut Vec<u64>) -> Result<(), String> {
        costs.clear();
        for (kind, cost) in self.costs.iter().enumerate() {
            let unreadable = |cost| {
                let limit = self.limit(kind);
                format!("{limit}: the cost cannot be read; add the cost of such a unit, like cost={cost},else=1")
            };
            costs.push(cost.as_ref().map_or(Ok(1), |cost| cost.of(unit).ok_or_else(|| unreadable(cost)))?);
        }
        Ok(())
    }

    /// Reports the first of these costs that is above the most that its limit grants.
    pub fn too_much(&self, costs: &[u64]) -> Option<String> {
        let mut counted = self.costs.iter().zip(&self.limits).zip(costs).enumerate();
        counted.find_map(|(kind, ((cost, (_, most)), is))| {
            let limit = cost.as_ref().filter(|_| is > most).map(|_| self.limit(kind))?;
            Some(format!("{limit}: it costs {is}, more than the {most} that the window ever allows"))
        })
    }

    /// The text `limit 5/s,cost=f2`.
    fn limit(&self, kind: usize) -> String {
        self.limits.get(kind).map(|(name, _)| format!("limit {name}")).unwrap_or_default()
    }

    /// Whether the bytes of units must be read: their lengths are not enough.
    pub fn looks_inside(&self) -> bool {
        self.per.is_some() || self.costs.iter().flatten().any(Cost::looks_inside)
    }

    /// Returns the costs of `unit`, or `None` if one cannot be read. `unit` has no delimiter.
    pub fn costs_of(&self, unit: &[u8]) -> Option<Box<[u64]>> {
        self.costs.iter().map(|cost| cost.as_ref().map_or(Some(1), |cost| cost.of(unit))).collect()
    }

    /// Returns the costs of a unit of this length that does not fit into the buffer; `None` if they depend on its
    /// bytes.
    pub fn costs_of_length(&self, bytes: u64) -> Option<Box<[u64]>> {
        self.costs.iter().map(|cost| cost.as_ref().map_or(Some(1), |cost| cost.of_length(bytes))).collect()
    }

    /// The settled costs of a unit that did not fit into the buffer. Each is at most the highest cost that its limit
    /// ever grants.
    pub(crate) fn settled_by_length(&self, bytes: u64) -> Box<[u64]> {
        let costs = self.costs_of_length(bytes).unwrap_or_default();
        costs.iter().zip(&self.limits).map(|(cost, (_, most))| *cost.min(most)).collect()
    }

    /// The charge of the first limit that has a cost of its own; 1 if there is none.
    pub fn charged(&self, costs: &[u64]) -> u64 {
        let mut counted = self.costs.iter().zip(costs).filter(|(cost, _)| cost.is_some());
        counted.next().map_or(1, |(_, costs)| *costs)
    }

    /// Why `unit` gets no grant, and what to do. `unit` is `None` if it does not fit into the buffer.
    pub fn why(&self, unit: Option<&[u8]>, why: &Refusal) -> String {
        let mut costs = Vec::new();
        let unread = unit.and_then(|unit| self.costs(unit, &mut costs).err());
        match why {
            Refusal::Unread => unread.or_else(|| self.too_large()).unwrap_or_default(),
            _ => self.too_much(&costs).unwrap_or_else(|| TOO_MUCH.to_owned()),
        }
    }

    /// Why a unit that does not fit into the buffer has no key or cost; `None` if its bytes need not be read.
    pub fn too_large(&self) -> Option<String> {
        let is_unknown = |cost: &&Cost| cost.of_length(0).is_none();
        let cost = || self.costs.iter().flatten().find(is_unknown).map(Cost::too_large);
        self.per.as_ref().map(Selector::too_large).or_else(cost)
    }
}

/// Returns the key, or its hash if the key is longer than `MAX_KEY_BYTES`.
pub(crate) fn bounded(key: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if key.len() <= MAX_KEY_BYTES { key } else { hash_of(&key).into() }
}

/// Returns the name of a key in a shared bucket: the key, or its hash if the key is long.
pub fn short(key: &[u8]) -> Box<[u8]> {
    if key.len() <= MAX_SHARED_NAME_BYTES { key.into() } else { hash_of(key).into() }
}

fn hash_of(key: &[u8]) -> Vec<u8> {
    Sha256::digest(key).iter().fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}")).into_bytes()
}

/// Detects that none of the first units has a key. That may be a mistake, because all units without a key share the
/// limits of one key.
#[derive(Debug, Default)]
pub(crate) struct Keyless(u32);

/// The number of first units that must all lack a key before the user is warned.
pub const FIRST_UNITS: u32 = 10;

impl Keyless {
    /// Records a unit. Returns true for the last of the first units if none of them has a key.
    pub(crate) fn note(&mut self, has_key: bool) -> bool {
        self.0 = if has_key { u32::MAX } else { self.0.saturating_add(1) };
        self.0 == FIRST_UNITS
    }
}

/// The reason for refusing a cost that no limit can grant.
pub const TOO_MUCH: &str = "it costs more than a window allows";

/// How units are sorted.
#[derive(Clone, Debug, Default)]
pub struct Sorting {
    /// Finds their keys and costs.
    pub look: Look,
    /// The limits of each key. The number is the index of the cost that the limit counts.
    pub each: Vec<(Policy, usize)>,
    /// Keys with limits that differ from `each`.
    pub named: Vec<NamedKey>,
    /// The limits of all keys together.
    pub all: Vec<(Policy, usize)>,
    /// The most commands of one key that run at once; `None`: the run has no commands.
    pub jobs: Option<NonZeroU32>,
    /// The number of consecutive failures of a key after which its other units are not tried.
    pub fails: Option<NonZeroU32>,
    /// If servers may refuse commands: the time between two starts that the limits require, in nanoseconds, and whether
    /// the pace is learned.
    pub pace: Option<(Nanos, bool)>,
    /// The longest wait in nanoseconds. Units that would wait longer are dropped.
    pub max_wait: Option<Nanos>,
    /// The most units in the queue before reading stops.
    pub ahead: usize,
    /// Whether keys have limits of their own, in this process or in a shared bucket.
    pub has_keys: bool,
    /// Whether units need not leave in the order of the input, or may be dropped.
    pub is_sorted: bool,
    /// Whether a shared bucket keeps the limits.
    pub is_shared: bool,
    /// The stored state of a bucket with the same limits. The line begins with this state, at its time.
    pub found: Option<Arc<View>>,
}

impl Sorting {
    /// Makes an empty line. Its limits begin as new at `now`, or in the state of `found`.
    pub fn begin<T>(&self, now: Nanos) -> Line<T> {
        let each: Vec<_> = self.each.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let all: Vec<_> = self.all.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let is_shared = self.is_shared;
        let (named, jobs, max_wait) = (&self.named[..], self.jobs, self.max_wait);
        // A shared bucket counts the failures of all processes.
        let fails = self.fails.filter(|_| !is_shared);
        // It learns the pace, too.
        let pace = self.pace.filter(|_| !is_shared);
        let (paced, only_observes) = (pace.map(|(interval, _)| interval), pace.is_some_and(|(_, learns)| !learns));
        let rules = Rules { each: &each, named, all: &all, jobs, max_wait, paced, only_observes, fails, is_shared };
        let Some(found) = &self.found else { return Line::new(&rules, now) };
        let mut line = Line::new(&rules, found.made);
        let keys = found.keys.iter().map(|key| (&*key.name, &key.state, key.paused_until));
        line.resume(found.now, &found.state, keys);
        line.hold_all_until(found.now, found.paused_until.unwrap_or(0));
        line
    }
}
