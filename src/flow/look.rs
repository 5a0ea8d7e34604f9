//! What limits want to know of a unit: its key, and its costs; and how units are sorted by that.

use super::contract::Unpaid;
use super::cost::Cost;
use super::selector::Selector;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{OfKey, Policy, Take};
use throttle_limits::line::{Line, NamedKey, Rules};
use throttle_limits::store::View;

/// The longest key that is kept, in bytes. Linux passes a command no variable that is longer than 128 KiB.
const LONGEST_KEY: usize = 64 * 1024;

/// The longest name of a key in a bucket that others use, in bytes.
const LONGEST_SHARED: usize = 200;

/// What limits want to know of a unit.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Finds its key; `None`: no limits are kept for each key.
    pub per: Option<Selector>,
    /// What it costs limits of each kind, or each limit; `None`: one. If there are none, every limit counts units.
    pub costs: Vec<Option<Cost>>,
    /// What the limits that count these costs are called, and the most that they ever grant.
    pub limits: Vec<(String, u64)>,
}

impl Look {
    /// The key of `unit`, which is given without its delimiter; `None` if it has none. A long one is known by its hash.
    #[must_use]
    pub fn key<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self.per.as_ref().and_then(|per| per.key(unit)).map(bounded)
    }

    /// Puts the costs of `unit`, which is given without its delimiter, into `costs`.
    ///
    /// # Errors
    /// Which cannot be read, and what to do.
    pub fn costs(&self, unit: &[u8], costs: &mut Vec<u64>) -> Result<(), String> {
        costs.clear();
        for (kind, cost) in self.costs.iter().enumerate() {
            let unreadable = |cost| {
                let limit = self.limit(kind);
                format!("{limit}: the cost cannot be read; add what such a unit costs, like cost={cost},else=1")
            };
            costs.push(cost.as_ref().map_or(Ok(1), |cost| cost.of(unit).ok_or_else(|| unreadable(cost)))?);
        }
        Ok(())
    }

    /// Which of these costs is never granted, if that is known.
    #[must_use]
    pub fn too_much(&self, costs: &[u64]) -> Option<String> {
        let mut counted = self.costs.iter().zip(&self.limits).zip(costs).enumerate();
        counted.find_map(|(kind, ((cost, (_, most)), is))| {
            let limit = cost.as_ref().filter(|_| is > most).map(|_| self.limit(kind))?;
            Some(format!("{limit}: it costs {is}, more than the window ever lets through"))
        })
    }

    /// `limit 5/s,cost=f2`
    fn limit(&self, kind: usize) -> String {
        self.limits.get(kind).map(|(name, _)| format!("limit {name}")).unwrap_or_default()
    }

    /// Whether the bytes of units have to be read: it is not enough to know how long they are.
    #[must_use]
    pub fn looks_inside(&self) -> bool {
        self.per.is_some() || self.costs.iter().flatten().any(Cost::looks_inside)
    }

    /// What `unit` costs, which is given without its delimiter; `None` if that cannot be read.
    #[must_use]
    pub fn costs_of(&self, unit: &[u8]) -> Option<Box<[u64]>> {
        self.costs.iter().map(|cost| cost.as_ref().map_or(Some(1), |cost| cost.of(unit))).collect()
    }

    /// What a unit of so many bytes costs that no buffer holds; `None` if that is not known.
    #[must_use]
    pub fn costs_of_length(&self, bytes: u64) -> Option<Box<[u64]>> {
        self.costs.iter().map(|cost| cost.as_ref().map_or(Some(1), |cost| cost.of_length(bytes))).collect()
    }

    /// What such a unit is settled at: not more than limits ever grant.
    #[must_use]
    pub(crate) fn settled_by_length(&self, bytes: u64) -> Box<[u64]> {
        let costs = self.costs_of_length(bytes).unwrap_or_default();
        costs.iter().zip(&self.limits).map(|(cost, (_, most))| *cost.min(most)).collect()
    }

    /// What the first limit that has a cost counts of these.
    #[must_use]
    pub fn charged(&self, costs: &[u64]) -> u64 {
        let mut counted = self.costs.iter().zip(costs).filter(|(cost, _)| cost.is_some());
        counted.next().map_or(1, |(_, costs)| *costs)
    }

    /// Why `unit` gets no grant, and what to do; `None` if no buffer holds it.
    #[must_use]
    pub fn why(&self, unit: Option<&[u8]>, unpaid: Unpaid) -> String {
        let mut costs = Vec::new();
        let unread = unit.and_then(|unit| self.costs(unit, &mut costs).err());
        match unpaid {
            Unpaid::TooMuch => self.too_much(&costs).unwrap_or_else(|| TOO_MUCH.to_owned()),
            Unpaid::Unread => unread.or_else(|| self.too_large()).unwrap_or_default(),
        }
    }

    /// Why a unit that no buffer holds has no key or cost; `None` if its bytes need not be read.
    #[must_use]
    pub fn too_large(&self) -> Option<String> {
        let is_unknown = |cost: &&Cost| cost.of_length(0).is_none();
        let cost = || self.costs.iter().flatten().find(is_unknown).map(Cost::too_large);
        self.per.as_ref().map(Selector::too_large).or_else(cost).map(|error| error.to_string())
    }
}

/// The key, or its hash if it is very long.
pub(crate) fn bounded(key: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if key.len() <= LONGEST_KEY { key } else { hash_of(&key).into() }
}

/// One number, if every limit has the same cost.
fn once_if_equal(costs: &[u64]) -> &[u64] {
    match costs {
        [] => &[1],
        [first, rest @ ..] if rest.iter().all(|cost| cost == first) => &costs[..1],
        _ => costs,
    }
}

/// The name of a key in a bucket that others use: its hash, if it is long.
#[must_use]
pub fn short(key: &[u8]) -> Box<[u8]> {
    if key.len() <= LONGEST_SHARED { key.into() } else { hash_of(key).into() }
}

fn hash_of(key: &[u8]) -> Vec<u8> {
    Sha256::digest(key).iter().fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}")).into_bytes()
}

/// Notices if the first units have no key, which may be a mistake: they share one limit.
#[derive(Debug, Default)]
pub(crate) struct Keyless(u32);

/// So many units without a key, and none with one.
pub const FIRST_UNITS: u32 = 10;

impl Keyless {
    /// Whether this is the last of the first units, none of which has a key.
    pub(crate) fn note(&mut self, has_key: bool) -> bool {
        self.0 = if has_key { u32::MAX } else { self.0.saturating_add(1) };
        self.0 == FIRST_UNITS
    }
}

/// Why a cost is never granted.
pub const TOO_MUCH: &str = "it costs more than a window ever lets through";

/// How units are sorted.
#[derive(Clone, Debug, Default)]
pub struct Sorting {
    /// What their limits want to know of them.
    pub look: Look,
    /// The limits of each key, and which of the costs each counts.
    pub each: Vec<(Policy, usize)>,
    /// Keys that have other limits.
    pub named: Vec<NamedKey>,
    /// The limits of all together.
    pub all: Vec<(Policy, usize)>,
    /// The most commands of one key that run at once; `None`: nothing runs.
    pub jobs: Option<NonZeroU32>,
    /// After so many commands of one key have failed in a row, its other units are not tried.
    pub fails: Option<NonZeroU32>,
    /// Units that would wait longer are dropped, in nanoseconds.
    pub max_wait: Option<Nanos>,
    /// The most units that are read while others wait.
    pub ahead: usize,
    /// If a bucket that others use keeps the limits: how many of the costs are those of its limits of all. The others are
    /// those of each key.
    pub shared: Option<usize>,
    /// Whether that bucket counts the commands that run.
    pub counts_jobs: bool,
    /// The state of a bucket with the same limits: the order begins with that state, at its time.
    pub found: Option<Arc<View>>,
}

impl Sorting {
    /// Nothing waits; the buckets of all keys are made at `now`, or are as they were found.
    #[must_use]
    pub fn begin<T>(&self, now: Nanos) -> Line<T> {
        let each: Vec<_> = self.each.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let all: Vec<_> = self.all.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let is_shared = self.shared.is_some();
        let (named, jobs, max_wait) = (&self.named[..], self.jobs, self.max_wait);
        let rules = Rules { each: &each, named, all: &all, jobs, max_wait, is_shared };
        let Some(found) = &self.found else { return Line::new(&rules, now) };
        let mut line = Line::new(&rules, found.made);
        let keys = found.keys.iter().map(|key| (&*key.name, &key.state, key.paused_until));
        line.resume(found.now, &found.state, keys);
        line
    }

    /// Whether keys have limits of their own, here or in a bucket.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.look.per.is_some() || self.shared.is_some()
    }

    /// What a unit of this key costs a bucket that others use, which keeps so many limits of all.
    #[must_use]
    pub fn price(of_all: usize, key: &[u8], costs: &[u64]) -> Take {
        let (all, each) = costs.split_at(of_all.min(costs.len()));
        let key = OfKey { costs: once_if_equal(each).into(), ..OfKey::of(short(key)) };
        Take { key: Some(key), ..Take::of(once_if_equal(all)) }
    }
}
