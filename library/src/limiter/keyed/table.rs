//! The keys and their states.
//!
//! The keys are spread over shards, each behind a lock of its own. A key that nobody waits for has a thin state. A key
//! that somebody waits for has a whole [`Limiter`]. It gets its thin state back when nobody holds that limiter and the
//! limiter has nothing left to wait for. A key whose state equals that of an unseen key is forgotten.

use super::thin::{Common, ShardClock, Thin};
use crate::clock::Nanos;
use crate::clock::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::limiter::handle::Limiter;
use crate::limiter::queue::{Denied, Effects, Queue};
use crate::limiter::rules::{Oversize, Rules};
use crate::limiter::shared::Shared;
use crate::limiter::time::Time;
use crate::limits::{Limits, Refusal};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::fence;

/// A map is swept when it has twice as many keys as after its latest sweep, and at least so many.
const LEAST_KEYS: usize = 32;

/// When there is no room for another key, all keys are looked through at most once in so much time for each key. That
/// takes a twentieth of the time.
const SEARCH: Nanos = 100;

/// So many shards for each thread that the machine runs at once, so that two of them seldom want the same.
const SHARDS: usize = 16;

const MOST_SHARDS: usize = 1024;

/// Takes something from the state of a key.
type Take<'a> = dyn FnMut(&mut Thin, &mut ShardClock) -> Result<(), Refusal> + 'a;

pub(super) struct Table<K> {
    /// As many as a power of two.
    shards: Box<[Shard<K>]>,
    /// Chooses the shard of a key.
    seed: u64,
    common: Common,
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
struct Shard<K> {
    keys: Mutex<Keys<K>>,
    /// 1 if the tick of the clock should be tried first.
    by_tick: AtomicU64,
}

/// The keys of a shard.
struct Keys<K> {
    /// Hashed with a random state of its own: nobody can choose keys that collide.
    thin: HashMap<K, Thin>,
    /// The keys with a limiter of their own. No key is in both maps.
    limiters: HashMap<K, Limiter>,
    /// How many keys each map may have until the shard is swept.
    sweep_at: [usize; 2],
    clock: ShardClock,
}

impl<K> Shard<K> {
    fn new() -> Self {
        let (thin, limiters, clock) = (HashMap::new(), HashMap::new(), ShardClock::default());
        Shard {
            keys: Mutex::new(Keys { thin, limiters, sweep_at: [LEAST_KEYS; 2], clock }),
            by_tick: AtomicU64::new(0),
        }
    }
}

impl<K: Hash + Eq> Table<K> {
    pub(super) fn new(limits: Limits, time: Time, rules: Rules, place: Option<usize>, most_keys: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = (SHARDS * threads).next_power_of_two().min(MOST_SHARDS);
        Table {
            shards: (0..shards).map(|_| Shard::new()).collect(),
            seed: RandomState::new().hash_one(0),
            common: Common::new(limits, time),
            rules,
            place,
            keys: AtomicU64::new(0),
            most_keys: AtomicU64::new(most_keys),
            search_at: AtomicU64::new(0),
        }
    }

    pub(super) fn time(&self) -> &Time {
        &self.common.time
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Takes `cost` now, or nothing. If the key has a limiter, that is returned, and nothing was taken. A key gets one if
    /// the caller `waits`, and cannot have it now.
    #[inline]
    pub(super) fn take<Q>(&self, key: &Q, cost: u64, waits: bool) -> Result<Option<Limiter>, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if self.rules.oversize == Oversize::Reject && cost > self.common.burst {
            return Err(Denied::AboveBurst(0, self.common.burst));
        }
        if cost > self.common.largest_cost {
            return Err(Denied::Never(0));
        }
        if cost == 0 {
            return Ok(None);
        }
        let shard = self.shard(key);
        let by_tick = shard.by_tick.load(Ordering::Relaxed);
        let reading = self.common.read(by_tick == 1);
        let mut may_tick = by_tick == 1;
        let taken = self.visit(key, shard, waits, |thin, clock| {
            let taken = self.common.take(thin, clock, reading, cost);
            may_tick = self.common.may_tick(clock);
            taken
        });
        if u64::from(may_tick) != by_tick {
            shard.by_tick.store(may_tick.into(), Ordering::Relaxed);
        }
        taken
    }

    /// The limiter of the key, which others wait for, too.
    pub(super) fn limiter<Q>(&self, key: &Q) -> Result<Limiter, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.visit(key, self.shard(key), true, |_, _| Err(Refusal::Never))?.ok_or(Denied::Never(0))
    }

    /// A limiter that answers as the key's would. What is taken from it may not count.
    pub(super) fn look<Q>(&self, key: &Q) -> Limiter
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let keys = &mut *lock(&self.shard(key).keys);
        let of_thin = || keys.thin.get(key).cloned().unwrap_or_else(|| self.common.unused());
        keys.limiters.get(key).cloned().unwrap_or_else(|| self.make_limiter(of_thin(), &mut keys.clock))
    }

    /// The caller no longer holds `limiter`, which is that of the key. If nothing waits for it, it is not kept.
    pub(super) fn let_go<Q>(&self, key: &Q, limiter: Limiter)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut guard = lock(&self.shard(key).keys);
        let keys = &mut *guard;
        drop(limiter); // The map holds it, too, so this runs no other code.
        let Some((thin, now)) = keys.limiters.get(key).and_then(|limiter| self.thin_state(limiter)) else { return };
        keys.clock.saw(now);
        let Some((key, limiter)) = keys.limiters.remove_entry(key) else { return };
        if self.common.is_unused(&thin, now) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.insert(keys, key, thin);
        }
        drop(guard);
        drop(limiter);
    }

    /// Forgets all keys that are like unseen ones.
    pub(super) fn sweep_all(&self) {
        self.shards.iter().for_each(|shard| self.sweep(&mut lock(&shard.keys)));
    }

    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &Shard<K> {
        let mut fold = Fold(self.seed);
        key.hash(&mut fold);
        // The lower bits of a product depend on few of the key's.
        let place = usize::try_from(fold.finish() >> 40).unwrap_or_default();
        &self.shards[place & (self.shards.len() - 1)]
    }

    /// Applies `take` to the state of a key that has no limiter. If that fails and the caller `waits`, the key gets one.
    #[inline]
    fn visit<Q>(
        &self,
        key: &Q,
        shard: &Shard<K>,
        waits: bool,
        mut take: impl FnMut(&mut Thin, &mut ShardClock) -> Result<(), Refusal>,
    ) -> Result<Option<Limiter>, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(done) = self.visit_known(&mut lock(&shard.keys), key, waits, &mut take) {
            return done;
        }
        self.visit_new(key, shard, waits, &mut take)
    }

    /// Like [`visit`](Self::visit), for a key that was not known when it was looked up.
    #[cold]
    fn visit_new<Q>(
        &self,
        key: &Q,
        shard: &Shard<K>,
        waits: bool,
        mut take: &mut Take<'_>,
    ) -> Result<Option<Limiter>, Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.add_key()?;
        let keys = &mut *lock(&shard.keys);
        if let Some(done) = self.visit_known(keys, key, waits, &mut take) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            return done;
        }
        let mut thin = self.common.unused();
        match take(&mut thin, &mut keys.clock) {
            Ok(()) => {
                self.insert(keys, key.to_owned(), thin);
                Ok(None)
            }
            Err(_) if waits => Ok(Some(self.promote(keys, key.to_owned(), thin))),
            Err(refusal) => {
                self.keys.fetch_sub(1, Ordering::Relaxed);
                Err(refusal.into())
            }
        }
    }

    /// `None` if the key is not known.
    #[inline]
    fn visit_known<Q>(
        &self,
        keys: &mut Keys<K>,
        key: &Q,
        waits: bool,
        mut take: impl FnMut(&mut Thin, &mut ShardClock) -> Result<(), Refusal>,
    ) -> Option<Result<Option<Limiter>, Denied>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(thin) = keys.thin.get_mut(key) else {
            return keys.limiters.get(key).cloned().map(|own| Ok(Some(own)));
        };
        match take(thin, &mut keys.clock) {
            Ok(()) => Some(Ok(None)),
            Err(refusal) if !waits => Some(Err(refusal.into())),
            Err(_) => {
                let (key, thin) = keys.thin.remove_entry(key)?;
                Some(Ok(Some(self.promote(keys, key, thin))))
            }
        }
    }

    /// Counts one key more, if there is room or if some key can be forgotten.
    fn add_key(&self) -> Result<(), Denied> {
        let most = self.most_keys.load(Ordering::Relaxed);
        let add = |keys| (keys < most).then_some(keys + 1);
        #[allow(deprecated, reason = "its new name, try_update, takes Rust 1.95")]
        let added = || self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map(drop);
        added().or_else(|keys| {
            let (now, next, pause) = (self.time().now(), self.search_at.load(Ordering::Relaxed), SEARCH * keys);
            // If it is further ahead than this, the clock was set back.
            if (1..=pause).contains(&next.saturating_sub(now)) {
                return Err(Denied::TooManyKeys);
            }
            self.search_at.store(now.saturating_add(pause), Ordering::Relaxed);
            self.sweep_all();
            added().map_err(|_| Denied::TooManyKeys)
        })
    }

    fn insert(&self, keys: &mut Keys<K>, key: K, thin: Thin) {
        if keys.thin.len() >= keys.sweep_at[0] {
            self.sweep(keys);
        }
        keys.thin.insert(key, thin);
    }

    /// The key gets a limiter of its own.
    #[cold]
    fn promote(&self, keys: &mut Keys<K>, key: K, thin: Thin) -> Limiter {
        if keys.limiters.len() >= keys.sweep_at[1] {
            self.sweep(keys);
        }
        let limiter = self.make_limiter(thin, &mut keys.clock);
        keys.limiters.insert(key, limiter.clone());
        limiter
    }

    fn make_limiter(&self, thin: Thin, clock: &mut ShardClock) -> Limiter {
        let now = self.common.now(clock);
        let limits = self.common.limits_of(thin, now);
        let queue = |_| {
            let mut queue = Queue::new(limits, self.rules.clone(), None);
            queue.advance(now, &mut Effects::default());
            Ok::<_, Infallible>(queue)
        };
        let Ok(shared) = Shared::new(self.time().clone(), queue);
        Limiter { shared, place: self.place }
    }

    /// The state of a key whose limiter nobody else holds, if nothing waits for it; and the time now.
    fn thin_state(&self, limiter: &Limiter) -> Option<(Thin, Nanos)> {
        if Arc::strong_count(&limiter.shared) > 1 {
            return None; // Or its timer fires, which changes nothing if nothing waits.
        }
        // Nobody can clone it meanwhile. What others did before they let go of it happened before this.
        fence(Ordering::Acquire);
        limiter.shared.with(|queue, now, effects| {
            let thin = queue.is_idle(now, effects).then(|| self.common.state_of(&queue.limits))?;
            Some((thin?, now))
        })
    }

    /// Forgets the keys of the shard that are like unseen ones. Limiters that nothing waits for are not kept.
    fn sweep(&self, keys: &mut Keys<K>) {
        let (mut states, before) = (Vec::new(), keys.thin.len() + keys.limiters.len());
        let idle = keys.limiters.extract_if(|_, limiter| {
            let found = states.len();
            states.extend(self.thin_state(limiter));
            states.len() > found
        });
        let idle: Vec<_> = idle.collect();
        for ((key, _), (thin, now)) in idle.into_iter().zip(states) {
            keys.clock.saw(now);
            keys.thin.insert(key, thin);
        }
        let now = self.common.now(&mut keys.clock);
        keys.thin.retain(|_, thin| !self.common.is_unused(thin, now));
        let (thin, limiters) = (keys.thin.len(), keys.limiters.len());
        if thin < keys.thin.capacity() / 4 {
            keys.thin.shrink_to(2 * thin);
        }
        keys.sweep_at = [thin, limiters].map(|count| LEAST_KEYS.max(2 * count));
        self.keys.fetch_sub((before - thin - limiters) as u64, Ordering::Relaxed);
    }
}

/// A hash that spreads keys over the shards, and that is quick. Keys chosen to collide share a lock, no more.
struct Fold(u64);

impl Hasher for Fold {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_ne_bytes(*word));
        }
        for byte in rest {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The golden ratio: its multiples are spread evenly.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
