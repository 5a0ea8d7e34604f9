//! The keys and their states.
//!
//! The keys are spread over shards, each with a table behind a lock of its own. A key that somebody waits for is in use: it
//! has a whole [`Limiter`]. It gets back its thin state when nobody holds that limiter and the limiter has nothing left to
//! wait for. A key whose state equals that of an unseen key is forgotten.

use crate::clock::Nanos;
use crate::clock::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::limiter::handle::Limiter;
use crate::limiter::queue::{Denied, Effects, Queue};
use crate::limiter::rules::{Oversize, Rules};
use crate::limiter::shared::Shared;
use crate::limiter::time::Time;
use crate::limits::{AsKey, Each, KeyId, Keys, Limits, Refusal, Thin};
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::fence;

/// A shard does not look for keys to forget while it has fewer. It looks for limiters that nobody holds when it has twice as
/// many as after the latest search, and at least so many.
const FEW: usize = 32;

/// When there is no room for another key, all keys are looked through at most once in so much time for each key. That
/// takes a twentieth of the time.
const SEARCH: Nanos = 100;

/// So many shards for each thread that the machine runs at once, so that two of them seldom want the same.
const SHARDS: usize = 16;

const MOST_SHARDS: usize = 1024;

/// Takes something from the state of a key.
type Take<'a> = dyn FnMut(&mut Thin, Nanos) -> Result<(), Refusal> + 'a;

pub(super) struct Table<K> {
    /// As many as a power of two.
    shards: Box<[Shard<K>]>,
    /// Random: nobody can choose keys that collide.
    hasher: RandomState,
    each: Each,
    /// The most that is granted at one instant, and after any wait.
    most: (u64, u64),
    pub(super) time: Time,
    rules: Rules,
    place: Option<usize>,
    /// How many keys there are, those included that are being added.
    keys: AtomicU64,
    pub(super) most_keys: AtomicU64,
    /// No search for keys to forget before this time.
    search_at: AtomicU64,
}

/// Aligned so that no two shards share a cache line, or a pair of lines that are fetched together.
#[repr(align(128))]
struct Shard<K>(Mutex<Part<K>>);

/// The keys of a shard.
struct Part<K> {
    keys: Keys<K>,
    /// Those of the keys that are in use.
    limiters: HashMap<KeyId, Limiter>,
    /// With so many limiters, those that nobody holds are looked for.
    search_at: usize,
    /// The latest reading of the clock. A smaller one arrived out of order.
    latest: Nanos,
}

impl<K> Part<K> {
    /// Clamps clock readings that arrive out of order.
    fn in_order(&mut self, now: Nanos) -> Nanos {
        self.latest = self.latest.max(now);
        self.latest
    }
}

impl<K: Hash> Table<K> {
    pub(super) fn new(limits: Limits, time: Time, rules: Rules, place: Option<usize>, most_keys: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = (SHARDS * threads).next_power_of_two().min(MOST_SHARDS);
        let hasher = RandomState::new();
        let shard = |_| {
            let keys = Keys::with_hasher(FEW, hasher.clone());
            Shard(Mutex::new(Part { keys, limiters: HashMap::new(), search_at: FEW, latest: 0 }))
        };
        Table {
            shards: (0..shards).map(shard).collect(),
            hasher,
            most: limits.most(0),
            each: Each::of(limits),
            time,
            rules,
            place,
            keys: AtomicU64::new(0),
            most_keys: AtomicU64::new(most_keys),
            search_at: AtomicU64::new(0),
        }
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Takes `cost` now, or nothing. If the key has a limiter, that is returned, and nothing was taken. A key gets one if
    /// the caller `waits`, and cannot have it now.
    #[inline]
    pub(super) fn take<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
        waits: bool,
    ) -> Result<Option<Limiter>, Denied> {
        let (burst, largest) = self.most;
        if self.rules.oversize == Oversize::Reject && cost > burst {
            return Err(Denied::AboveBurst(0, burst));
        }
        if cost > largest {
            return Err(Denied::Never(0));
        }
        if cost == 0 {
            return Ok(None);
        }
        self.visit(key, waits, |state, now| self.each.take(state, now, &[cost]))
    }

    /// The limiter of the key, which others wait for, too.
    pub(super) fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, Denied> {
        self.visit(key, true, |_, _| Err(Refusal::Never))?.ok_or(Denied::Never(0))
    }

    /// A limiter that answers as the key's would. What is taken from it may not count.
    pub(super) fn look<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Limiter {
        let (hash, now) = (self.hasher.hash_one(key), self.time.now());
        let part = &mut *lock(&self.shard(hash).0);
        let now = part.in_order(now);
        let id = part.keys.find(hash, key);
        let own = id.and_then(|id| part.limiters.get(&id)).cloned();
        own.unwrap_or_else(|| match id {
            Some(id) => self.make_limiter(part.keys.state(id), now),
            None => self.make_limiter(&self.each.fresh(), now),
        })
    }

    /// The caller no longer holds `limiter`, which is that of the key. If nothing waits for it, it is not kept.
    pub(super) fn let_go<Q: AsKey<K> + ?Sized>(&self, key: &Q, limiter: Limiter) {
        let hash = self.hasher.hash_one(key);
        let mut guard = lock(&self.shard(hash).0);
        let part = &mut *guard;
        drop(limiter); // The shard holds it, too, so this runs no other code.
        let id = part.keys.find(hash, key);
        let unused = id.and_then(|id| self.take_limiter(part, id));
        if let (Some(id), Some(_)) = (id, &unused)
            && self.each.is_fresh(part.keys.state(id), part.latest)
        {
            part.keys.forget(id);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        drop(guard);
        drop(unused);
    }

    /// Forgets all keys that are like unseen ones.
    pub(super) fn sweep(&self) {
        for shard in &self.shards {
            let now = self.time.now();
            let part = &mut *lock(&shard.0);
            let now = part.in_order(now);
            self.take_limiters(part);
            let before = part.keys.len();
            part.keys.forget_fresh(&self.each, now);
            part.keys.shrink();
            self.keys.fetch_sub((before - part.keys.len()) as u64, Ordering::Relaxed);
        }
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K> {
        // The tables use the bits at both ends.
        let place = usize::try_from(hash >> 32).unwrap_or_default();
        &self.shards[place & (self.shards.len() - 1)]
    }

    /// Applies `take` to the state of a key that has no limiter. If that fails and the caller `waits`, the key gets one. If
    /// there is no room for a new key, it looks for keys to forget, and tries again.
    #[inline]
    fn visit<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        waits: bool,
        mut take: impl FnMut(&mut Thin, Nanos) -> Result<(), Refusal>,
    ) -> Result<Option<Limiter>, Denied> {
        let (hash, now) = (self.hasher.hash_one(key), self.time.now());
        for tries in 0..2 {
            if tries > 0 && !self.search() {
                break;
            }
            let part = &mut *lock(&self.shard(hash).0);
            let now = part.in_order(now);
            let Some(id) = part.keys.find(hash, key) else {
                match self.visit_new(part, hash, key, waits, &mut take) {
                    Err(Denied::TooManyKeys) => continue,
                    visited => return visited,
                }
            };
            let Some(state) = part.keys.idle_mut(id) else { return Ok(part.limiters.get(&id).cloned()) };
            return match take(state, now) {
                Ok(()) => Ok(None),
                Err(refusal) if !waits => Err(refusal.into()),
                Err(_) => Ok(Some(self.promote(part, id))),
            };
        }
        Err(Denied::TooManyKeys)
    }

    /// Like [`visit`](Self::visit), for a key that is not known. If nothing is taken, it stays unknown.
    #[cold]
    fn visit_new<Q: AsKey<K> + ?Sized>(
        &self,
        part: &mut Part<K>,
        hash: u64,
        key: &Q,
        waits: bool,
        take: &mut Take<'_>,
    ) -> Result<Option<Limiter>, Denied> {
        let mut state = self.each.fresh();
        let taken = take(&mut state, part.latest);
        if !waits {
            taken?;
        }
        let most = self.most_keys.load(Ordering::Relaxed);
        let add = |keys| (keys < most).then_some(keys + 1);
        #[allow(deprecated, reason = "its new name, try_update, takes Rust 1.95")]
        let added = self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| Denied::TooManyKeys)?;
        let before = part.keys.len();
        let id = part.keys.add(hash, key, &self.each, part.latest);
        self.keys.fetch_sub((before + 1 - part.keys.len()) as u64, Ordering::Relaxed);
        *part.keys.state_mut(id) = state;
        Ok(taken.err().map(|_| self.promote(part, id)))
    }

    /// Looks for keys to forget, but not too often. Returns whether it did.
    #[cold]
    fn search(&self) -> bool {
        let (now, next, pause) = (self.time.now(), self.search_at.load(Ordering::Relaxed), SEARCH * self.keys());
        // If it is further ahead than this, the clock was set back.
        let is_too_soon = (1..=pause).contains(&next.saturating_sub(now));
        if !is_too_soon {
            self.search_at.store(now.saturating_add(pause), Ordering::Relaxed);
            self.sweep();
        }
        !is_too_soon
    }

    /// The key gets a limiter of its own.
    #[cold]
    fn promote(&self, part: &mut Part<K>, id: KeyId) -> Limiter {
        if part.limiters.len() >= part.search_at {
            self.take_limiters(part);
        }
        let limiter = self.make_limiter(part.keys.state(id), part.latest);
        part.keys.set_in_use(id, true);
        part.limiters.insert(id, limiter.clone());
        limiter
    }

    fn make_limiter(&self, state: &Thin, now: Nanos) -> Limiter {
        let limits = self.each.limits(state, now);
        let queue = |_| {
            let mut queue = Queue::new(limits, self.rules.clone(), None);
            queue.advance(now, &mut Effects::default());
            Ok::<_, Infallible>(queue)
        };
        let Ok(shared) = Shared::new(self.time.clone(), queue);
        Limiter { shared, place: self.place }
    }

    /// Takes out the limiters that nobody else holds and nothing waits for.
    fn take_limiters(&self, part: &mut Part<K>) {
        for id in part.limiters.keys().copied().collect::<Vec<_>>() {
            self.take_limiter(part, id);
        }
        part.search_at = FEW.max(2 * part.limiters.len());
    }

    /// Takes out the limiter of a key, and keeps its thin state, if nobody else holds it and nothing waits for it.
    fn take_limiter(&self, part: &mut Part<K>, id: KeyId) -> Option<Limiter> {
        let limiter = part.limiters.get(&id)?;
        if Arc::strong_count(&limiter.shared) > 1 {
            return None; // Or its timer fires, which changes nothing if nothing waits.
        }
        // Nobody can clone it meanwhile. What others did before they let go of it happened before this.
        fence(Ordering::Acquire);
        let (state, now) = limiter.shared.with(|queue, now, effects| {
            let is_idle = queue.is_idle(now, effects);
            Some((self.each.state_of(&queue.limits).filter(|_| is_idle)?, now))
        })?;
        part.in_order(now);
        *part.keys.state_mut(id) = state;
        part.keys.set_in_use(id, false);
        part.limiters.remove(&id)
    }
}
