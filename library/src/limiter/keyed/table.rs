//! The keys and their states.
//!
//! The keys are spread over shards. Each shard has a table behind its own lock. A key with waiters is in use: it has a
//! whole [`Limiter`]. Any other key has only its levels, without a queue. The key gets its levels back when
//! nobody holds that limiter and the limiter has nothing to wait for. A key whose state equals the state of an unused
//! key is forgotten.

use crate::clock::Nanos;
use crate::clock::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::limiter::handle::Limiter;
use crate::limiter::panics::Panics;
use crate::limiter::queue::{Denied, Effects, Queue};
use crate::limiter::rules::Rules;
use crate::limiter::serve::Serve;
use crate::limiter::shared::{After, Shared};
use crate::limiter::time::Time;
use crate::limits::{Account, AsKey, Hashes, KeyId, Keys, Levels, Limits, Refusal};
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::fence;

/// The least number of keys in a shard before the shard searches for keys to forget. It is also the least number of
/// limiters before a shard searches for unused limiters. The next search for limiters comes when their number has
/// doubled.
const SEARCH_THRESHOLD: usize = 32;

/// The least time between two sweeps over all keys while there is no room for another key, in nanoseconds per key. At
/// this interval, the sweeps take a twentieth of the time.
const SEARCH_INTERVAL_PER_KEY: Nanos = 100;

/// The number of shards for each hardware thread. It is large, so that two threads seldom use the same shard.
const SHARDS_PER_THREAD: usize = 16;

const MAX_SHARDS: usize = 1024;

pub(super) struct Table<K> {
    /// Their number is a power of two.
    shards: Box<[Shard<K>]>,
    /// The hasher of all shards.
    hasher: Hashes,
    pub(super) time: Time,
    /// The number of keys, including keys that are being added.
    keys: AtomicU64,
    pub(super) most_keys: AtomicU64,
    /// The earliest time of the next search for keys to forget.
    search_at: AtomicU64,
    /// Serializes changes of all limits, so that all keys end with the limits of the last change.
    changing: Mutex<()>,
}

/// Aligned so that two shards never share a cache line, or a pair of lines that are fetched together.
#[repr(align(128))]
struct Shard<K>(Mutex<Part<K>>);

/// The keys of a shard.
struct Part<K> {
    keys: Keys<K>,
    /// The limiters of the keys in use.
    limiters: HashMap<KeyId, Limiter>,
    /// The number of limiters at which unused limiters are searched for.
    search_at: usize,
    /// The latest reading of the clock. A smaller reading arrived out of order.
    latest: Nanos,
    limits: KeyLimits,
    is_closed: bool,
}

/// The limits of each key.
#[derive(Clone)]
struct KeyLimits {
    each: Arc<Limits>,
    /// See [`Rules::most_of`].
    most: (u64, u64),
    rules: Rules,
}

impl KeyLimits {
    fn new(each: Limits, rules: Rules) -> Self {
        KeyLimits { most: rules.most_of(0, &each), each: Arc::new(each), rules }
    }
}

impl<K: Hash> Part<K> {
    /// Clamps clock readings that arrive out of order.
    fn in_order(&mut self, now: Nanos) -> Nanos {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn check(&self, cost: u64) -> Result<(), Denied> {
        let (at_once, ever) = self.limits.most;
        match cost {
            _ if self.is_closed => Err(Denied::Closed),
            _ if cost > at_once => Err(Denied::AboveBurst(0, at_once)),
            _ if cost > ever => Err(Denied::Never(0)),
            _ => Ok(()),
        }
    }

    /// Removes the limiters that nobody else holds and that wait for nothing.
    fn take_limiters(&mut self) {
        for id in self.limiters.keys().copied().collect::<Vec<_>>() {
            self.take_limiter(id);
        }
        self.search_at = SEARCH_THRESHOLD.max(2 * self.limiters.len());
    }

    /// Removes the limiter of a key and keeps its levels, if nobody else holds it and it waits for nothing.
    fn take_limiter(&mut self, id: KeyId) -> Option<Limiter> {
        let limiter = self.limiters.get(&id)?;
        if Arc::strong_count(&limiter.shared) > 1 {
            return None; // Somebody holds it. Or its timer is firing, and holds it for a moment.
        }
        // Nobody can clone the limiter meanwhile. All actions of other holders before their release happen before this
        // point.
        fence(Ordering::Acquire);
        let (state, now) = limiter.shared.with(|queue, now, effects| {
            let is_idle = queue.is_idle(now, effects) && queue.is_closed() == self.is_closed;
            let is_usual = queue.account.limits().are_like(&self.limits.each);
            (is_idle && is_usual).then(|| (queue.account.closed_levels(), queue.now))
        })?;
        self.in_order(now);
        *self.keys.state_mut(id) = state;
        self.keys.set_in_use(id, false);
        self.limiters.remove(&id)
    }
}

impl<K: Hash> Table<K> {
    pub(super) fn new(limits: Limits, time: Time, rules: Rules, most_keys: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = (SHARDS_PER_THREAD * threads).next_power_of_two().min(MAX_SHARDS);
        let hasher = Hashes::new();
        let limits = KeyLimits::new(limits, rules);
        let shard = |_| {
            let (keys, limits) = (Keys::with_hasher(SEARCH_THRESHOLD, hasher.clone()), limits.clone());
            let limiters = HashMap::new();
            Shard(Mutex::new(Part { keys, limiters, search_at: SEARCH_THRESHOLD, latest: 0, limits, is_closed: false }))
        };
        Table {
            shards: (0..shards).map(shard).collect(),
            hasher,
            time,
            keys: AtomicU64::new(0),
            most_keys: AtomicU64::new(most_keys),
            search_at: AtomicU64::new(0),
            changing: Mutex::new(()),
        }
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// The limiter of the key, shared with all its other users.
    pub(super) fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, Denied> {
        self.visit(key, None, true)?.ok_or(Denied::Never(0))
    }

    /// A limiter that answers like the limiter of the key. It may be a copy, so units that are taken from it may not
    /// count.
    pub(super) fn look<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Limiter {
        let (hash, now) = (self.hasher.hash_one(key), self.time.now());
        let part = &mut *lock(&self.shard(hash).0);
        let now = part.in_order(now);
        let id = part.keys.find(hash, key);
        let own = id.and_then(|id| part.limiters.get(&id)).cloned();
        own.unwrap_or_else(|| match id {
            Some(id) => self.make_limiter(part, part.keys.state(id), now),
            None => self.make_limiter(part, &part.limits.each.fresh(), now),
        })
    }

    /// Releases `limiter`, which belongs to the key. If it waits for nothing, it is not kept.
    pub(super) fn let_go<Q: AsKey<K> + ?Sized>(&self, key: &Q, limiter: Limiter) {
        let hash = self.hasher.hash_one(key);
        let mut guard = lock(&self.shard(hash).0);
        let part = &mut *guard;
        drop(limiter); // The shard also holds it, so this runs no other code.
        let id = part.keys.find(hash, key);
        let unused = id.and_then(|id| part.take_limiter(id));
        if let (Some(id), Some(_)) = (id, &unused)
            && part.limits.each.is_fresh(part.keys.state(id), part.latest)
        {
            part.keys.forget(id);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        drop(guard);
        drop(unused);
    }

    /// Forgets all keys whose state equals the state of an unused key.
    pub(super) fn sweep(&self) {
        for shard in &self.shards {
            let now = self.time.now();
            let part = &mut *lock(&shard.0);
            let now = part.in_order(now);
            part.take_limiters();
            let before = part.keys.len();
            part.keys.forget_fresh(&part.limits.each, now);
            part.keys.shrink();
            self.keys.fetch_sub((before - part.keys.len()) as u64, Ordering::Relaxed);
        }
    }

    /// Forgets a key, unless somebody holds its limiter or waits for it. Returns whether the key was stored and is now
    /// removed.
    pub(super) fn remove<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut guard = lock(&self.shard(hash).0);
        let part = &mut *guard;
        let Some(id) = part.keys.find(hash, key) else { return false };
        let is_held = |limiter: &Limiter| Arc::strong_count(&limiter.shared) > 1;
        if part.limiters.get(&id).is_some_and(is_held) {
            return false;
        }
        let unused = part.limiters.remove(&id);
        part.keys.forget(id);
        self.keys.fetch_sub(1, Ordering::Relaxed);
        drop(guard);
        drop(unused);
        true
    }

    /// All stored keys.
    pub(super) fn list(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.shards.iter().flat_map(|shard| lock(&shard.0).keys.all().cloned().collect::<Vec<_>>()).collect()
    }

    /// Changes all keys, including unused keys. A key with its own limits keeps them. `make` receives their limits
    /// and the index of the limit whose rate can be changed. It returns the new limits and the new index.
    pub(super) fn set_limits<E>(
        &self,
        make: impl Fn(&Limits, Option<usize>, Nanos) -> Result<(Limits, Option<usize>), E>,
    ) -> Result<(), E> {
        let mut follows = Vec::new();
        let changing = lock(&self.changing);
        let mut shards = self.shards.iter();
        let changed = shards.try_for_each(|shard| self.set_limits_of(shard, &make, &mut follows));
        drop(changing);
        let mut panics = Panics::default();
        for (limiter, after) in follows {
            panics.hold(|| limiter.shared.follow(after));
        }
        panics.resume();
        changed
    }

    fn set_limits_of<E>(
        &self,
        shard: &Shard<K>,
        make: impl Fn(&Limits, Option<usize>, Nanos) -> Result<(Limits, Option<usize>), E>,
        follows: &mut Vec<(Limiter, After)>,
    ) -> Result<(), E> {
        let mut guard = lock(&shard.0);
        let part = &mut *guard;
        let now = part.in_order(self.time.now());
        let old = part.limits.clone();
        let (mut to, place) = make(&old.each, old.rules.place, now)?;
        to.begin_as(&old.each, now);
        part.limits = KeyLimits::new(to, Rules { place, ..old.rules });
        let to = Arc::clone(&part.limits.each);
        for levels in part.keys.states_mut() {
            old.each.change(levels, now, &to, &[]);
            to.spill(levels, now, &[]);
        }
        let limiters: Vec<_> = part.limiters.values().cloned().collect();
        drop(guard);
        for limiter in limiters {
            let ((), after) = limiter.shared.change(|queue, now, effects| {
                if queue.account.limits().are_like(&old.each) {
                    let Ok(()) = queue.set_limits(now, |_| Ok::<_, Infallible>(Arc::clone(&to)), place, effects);
                }
            });
            follows.push((limiter, after));
        }
        Ok(())
    }

    /// Refuses every later request. All present waiters are still served.
    pub(super) fn close(&self) {
        for shard in &self.shards {
            let mut part = lock(&shard.0);
            part.is_closed = true;
            let limiters: Vec<_> = part.limiters.values().cloned().collect();
            drop(part);
            limiters.iter().for_each(Limiter::close);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shards.iter().any(|shard| lock(&shard.0).is_closed)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K> {
        // The tables in the shards use the bits at both ends of the hash, so the shard is chosen by bits between them.
        let place = usize::try_from(hash >> 32).unwrap_or_default();
        &self.shards[place & (self.shards.len() - 1)]
    }

    /// Takes `cost` from the state of a key that has no limiter. If that fails or there is no cost, and the caller
    /// `waits`, the key gets a limiter, which is returned. If the key already has a limiter, that limiter is returned,
    /// and nothing is taken. If there is no room for a new key, this searches for keys to forget and tries again.
    #[inline]
    pub(super) fn visit<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        cost: Option<u64>,
        waits: bool,
    ) -> Result<Option<Limiter>, Denied> {
        let (hash, now) = (self.hasher.hash_one(key), self.time.now());
        for tries in 0..2 {
            if tries > 0 && !self.search() {
                break;
            }
            let part = &mut *lock(&self.shard(hash).0);
            if let Some(cost) = cost {
                part.check(cost)?;
            }
            if cost == Some(0) {
                return Ok(None);
            }
            let now = part.in_order(now);
            let Some(id) = part.keys.find(hash, key) else {
                match self.visit_new(part, hash, key, cost, waits) {
                    Err(Denied::TooManyKeys) => continue,
                    visited => return visited,
                }
            };
            let Some(state) = part.keys.idle_mut(id) else { return Ok(part.limiters.get(&id).cloned()) };
            return match take(&part.limits.each, state, now, cost) {
                Ok(()) => Ok(None),
                Err(refusal) if !waits => Err(refusal.into()),
                Err(_) => Ok(Some(self.promote(part, id))),
            };
        }
        Err(Denied::TooManyKeys)
    }

    /// Like [`visit`](Self::visit), for a key that is not stored. If nothing is taken, the key is not stored.
    #[cold]
    fn visit_new<Q: AsKey<K> + ?Sized>(
        &self,
        part: &mut Part<K>,
        hash: u64,
        key: &Q,
        cost: Option<u64>,
        waits: bool,
    ) -> Result<Option<Limiter>, Denied> {
        if part.is_closed {
            return Err(Denied::Closed);
        }
        let mut state = part.limits.each.fresh();
        let taken = take(&part.limits.each, &mut state, part.latest, cost);
        if !waits {
            taken?;
        }
        let most = self.most_keys.load(Ordering::Relaxed);
        let add = |keys| (keys < most).then_some(keys + 1);
        #[allow(deprecated, reason = "its new name, try_update, takes Rust 1.95")]
        let added = self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| Denied::TooManyKeys)?;
        let before = part.keys.len();
        let id = part.keys.add(hash, key, &part.limits.each, part.latest);
        self.keys.fetch_sub((before + 1 - part.keys.len()) as u64, Ordering::Relaxed);
        *part.keys.state_mut(id) = state;
        Ok(taken.err().map(|_| self.promote(part, id)))
    }

    /// Searches for keys to forget, but not too often. Returns whether it searched.
    #[cold]
    fn search(&self) -> bool {
        let (now, next, pause) =
            (self.time.now(), self.search_at.load(Ordering::Relaxed), SEARCH_INTERVAL_PER_KEY * self.keys());
        // If the next search is further ahead than that, the clock was set back.
        let is_too_soon = (1..=pause).contains(&next.saturating_sub(now));
        if !is_too_soon {
            self.search_at.store(now.saturating_add(pause), Ordering::Relaxed);
            self.sweep();
        }
        !is_too_soon
    }

    /// Gives the key its own limiter.
    #[cold]
    fn promote(&self, part: &mut Part<K>, id: KeyId) -> Limiter {
        if part.limiters.len() >= part.search_at {
            part.take_limiters();
        }
        let limiter = self.make_limiter(part, part.keys.state(id), part.latest);
        part.keys.set_in_use(id, true);
        part.limiters.insert(id, limiter.clone());
        limiter
    }

    fn make_limiter(&self, part: &Part<K>, levels: &Levels, now: Nanos) -> Limiter {
        let account = Account::resumed(Arc::clone(&part.limits.each), levels.clone(), now);
        let mut queue = Queue::new(account, part.limits.rules.clone(), None);
        if part.is_closed {
            queue.close();
        }
        queue.advance(now, &mut Effects::default());
        Limiter { shared: Shared::new(self.time.clone(), queue) }
    }
}

/// Takes `cost` from the state of a key. A request without a cost is refused.
#[inline]
fn take(each: &Limits, state: &mut Levels, now: Nanos, cost: Option<u64>) -> Result<(), Refusal> {
    cost.map_or(Err(Refusal::Never), |cost| each.take(state, now, &[cost]))
}
