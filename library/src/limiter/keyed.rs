//! The same limits for each of many keys.

use super::acquire::Acquiring;
use super::builder::{BuildError, Builder, rate};
use super::error::AcquireError;
use super::handle::Limiter;
use super::reservation::Reservation;
use super::settle::Granted;
use super::time::Time;
use super::units::{PARTS, Units};
use crate::clock::Nanos;
use crate::limits::{AsKey, Cost, Limits};
pub use acquire::{AcquireKey, AcquireKeyOwned, AcquireKeyToSettle};
use acquire::{KeyToSettle, OfKey};
pub use handle::Keyed;
use handle::Of;
use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use table::Table;
pub use within::OfAll;
use within::Within;

mod acquire;
mod handle;
mod table;
mod within;

/// The default of the most keys that are kept.
const DEFAULT_MAX_KEYS: u32 = 1_000_000;

impl Builder {
    /// Builds these limits for each key.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn keyed<K: Hash>(self) -> Result<Keyed<K>, BuildError> {
        let (time, rules) = self.parts()?;
        let limits = self.limits(time.now())?;
        Ok(Keyed(Of::Alone(Arc::new(Table::new(limits, time, rules, DEFAULT_MAX_KEYS.into())))))
    }

    /// Builds these limits for each key, within the limits of `all`. The key and `all` grant a request together; if one
    /// of them refuses, nothing is taken from either. An example is 2 a second for each user, and 100 a second for all.
    ///
    /// The keys take turns: a key with many requests does not crowd out the others, and keys that use all they can get
    /// have equal shares of the overall limits, by cost. Within a key, requests are first in, first out.
    ///
    /// The clock is that of these limits. [`max_waiters`](Self::max_waiters) bounds the waiters of each key, and the
    /// bound of `all` the waiters of all keys together. [`of_all`](Keyed::of_all) changes the overall limits.
    ///
    /// ```
    /// use throttle_limits::limiter::{Keyed, Limiter};
    ///
    /// let all = Limiter::builder().limit("1/s,burst=3".parse()?); // all together 1 a second, 3 at once
    /// let users: Keyed<u64> = Limiter::builder().limit("2/s,burst=2".parse()?).keyed_within(&all)?;
    /// assert!([1, 1, 2].iter().all(|user| users.try_acquire(user, 1).is_ok()));
    /// assert!(users.try_acquire(&3, 1).is_err(), "all are above their limit");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`build`](Self::build), for both builders, which must be [fair](Self::fair).
    pub fn keyed_within<K: Hash + Send + 'static>(self, all: &Builder) -> Result<Keyed<K>, BuildError> {
        Ok(Keyed(Of::Within(Within::new(&self, all, DEFAULT_MAX_KEYS as usize)?)))
    }
}

impl<K: Hash> Keyed<K> {
    /// Grants each key `rate` units a second, and at most `capacity` at once. The bucket of an unused key is full. For
    /// all other settings see [`Builder::keyed`].
    ///
    /// # Errors
    /// As for [`Limiter::new`].
    pub fn new(rate: impl Into<Units>, capacity: impl Into<Units>) -> Result<Self, BuildError> {
        Limiter::builder().rate(rate, Duration::from_secs(1)).burst(capacity).keyed()
    }

    /// Takes `units` of the key now, or nothing.
    ///
    /// # Errors
    /// As for [`Limiter::try_acquire`], and [`AcquireError::TooManyKeys`].
    #[inline]
    pub fn try_acquire<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<(), AcquireError> {
        let units = units.into();
        let cost = units.millionths()?;
        let taken = match &self.0 {
            Of::Alone(table) => table.visit(key, Some(cost), false),
            Of::Within(within) => within.try_take(key, cost, false).map(|_| None),
        };
        match taken {
            Ok(None) => Ok(()),
            Ok(Some(limiter)) => self.using(key, limiter, |limiter| limiter.try_acquire(units)),
            Err(denied) => AcquireError::refuse(denied, &Cost::One(cost)),
        }
    }

    /// Waits until all earlier waiters of the key have been served and `units` are available, and takes them.
    ///
    /// Nothing is taken before the future is polled. A future that is dropped unfinished takes nothing, and the waiters
    /// behind it move up.
    ///
    /// # Errors
    /// The future returns them: as for [`Limiter::acquire`], and [`AcquireError::TooManyKeys`].
    pub fn acquire<'a, Q: AsKey<K> + ?Sized>(&'a self, key: &'a Q, units: impl Into<Units>) -> AcquireKey<'a, K, Q> {
        Acquiring(OfKey::new(self, key, units.into()))
    }

    /// Like [`acquire`](Self::acquire), but the future owns the key and a clone of this `Keyed`, so it can be spawned.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_owned(&self, key: K, units: impl Into<Units>) -> AcquireKeyOwned<K>
    where
        K: AsKey<K>,
    {
        Acquiring(OfKey::new(self.clone(), key, units.into()))
    }

    /// Takes `units` at the earliest time behind the whole queue of the key, and returns that time; see
    /// [`Limiter::reserve`].
    ///
    /// # Errors
    /// As for [`Limiter::reserve`] and [`limiter`](Self::limiter).
    pub fn reserve<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Reservation, AcquireError> {
        self.reserve_within(key, units, Duration::MAX)
    }

    /// Like [`reserve`](Self::reserve), but only if the wait is at most `limit`.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve), and [`AcquireError::TooLong`] with the necessary wait.
    pub fn reserve_within<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> Result<Reservation, AcquireError> {
        self.using(key, self.limiter(key)?, |limiter| limiter.reserve_within(units.into(), limit))
    }

    /// Waits for units of the key whose real cost becomes known later; see [`Limiter::acquire_to_settle`]. The key is
    /// kept until the grant is settled or dropped. A future that is dropped unfinished takes nothing.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_to_settle<'a, Q: AsKey<K> + ?Sized>(
        &'a self,
        key: &'a Q,
        units: impl Into<Units>,
    ) -> AcquireKeyToSettle<'a, K, Q> {
        Acquiring(KeyToSettle::new(self, key, units.into()))
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but takes `units` now, or nothing.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_to_settle<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> Result<Granted, AcquireError> {
        let units = units.into();
        let Of::Within(within) = &self.0 else {
            return self.using(key, self.limiter(key)?, |limiter| limiter.try_acquire_to_settle(units));
        };
        let cost = Cost::One(units.millionths()?);
        match within.try_take(key, cost.of(0), true) {
            Ok(grant) => Ok(Granted::new(Arc::clone(within.waitable()), cost, grant)),
            Err(denied) => Err(AcquireError::new(denied, &cost)),
        }
    }

    /// Grants the key nothing for `time` from now; see [`Limiter::pause_for`]. The key is kept until the pause is over.
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn pause_for<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: Duration) -> Result<(), AcquireError> {
        if let Of::Within(within) = &self.0 {
            let until = within.time().after(time);
            let paused = within.change(|waiters, now| waiters.pause(now, key, until));
            return paused.or_else(|denied| AcquireError::refuse(denied, &Cost::One(0)));
        }
        self.using(key, self.limiter(key)?, |limiter| limiter.pause_for(time));
        Ok(())
    }

    /// Changes the rate of all keys to `units` per `period` from now on; see [`Limiter::set_rate`]. A key that has a
    /// rate of [its own](Self::limiter) keeps that rate.
    ///
    /// Each change for all keys takes about a third of a microsecond per key.
    ///
    /// # Errors
    /// As for [`Limiter::set_rate`].
    pub fn set_rate(&self, units: impl Into<Units>, period: Duration) -> Result<(), BuildError> {
        let rate = rate(units.into(), period)?;
        self.change(|limits, now, place| limits.with_rate(place, rate, now))
    }

    /// Changes the burst of all keys to `units` from now on; see [`Limiter::set_burst`].
    ///
    /// # Errors
    /// As for [`Limiter::set_burst`].
    pub fn set_burst(&self, units: impl Into<Units>) -> Result<(), BuildError> {
        let burst = NonZeroU64::new(units.into().millionths()?).ok_or(BuildError::ZeroBurst)?;
        self.change(|limits, _, place| limits.with_burst(place, burst))
    }

    /// Replaces the limits of all keys; see [`Limiter::set_limits`]. A key that has a rate of [its own](Self::limiter)
    /// keeps its limits.
    ///
    /// # Errors
    /// As for [`Builder::build`]. Nothing is changed then.
    pub fn set_limits(&self, to: &Builder) -> Result<(), BuildError> {
        let place = to.place()?;
        self.replace(|_, _, now| Ok((to.limits(now)?, place)))
    }

    fn change(&self, change: impl Fn(&Limits, Nanos, usize) -> Limits) -> Result<(), BuildError> {
        self.replace(|limits, place, now| Ok((change(limits, now, place.ok_or(BuildError::NoBucket)?), place)))
    }

    fn replace(
        &self,
        make: impl Fn(&Limits, Option<usize>, Nanos) -> Result<(Limits, Option<usize>), BuildError>,
    ) -> Result<(), BuildError> {
        match &self.0 {
            Of::Alone(table) => table.set_limits(make),
            Of::Within(within) => within.set_limits(make),
        }
    }

    /// Refuses every later request, for all keys, with [`AcquireError::Closed`]. All present waiters are still served.
    /// From now on no key is added; stored keys are still forgotten. A closed `Keyed` stays closed.
    pub fn close(&self) {
        match &self.0 {
            Of::Alone(table) => table.close(),
            Of::Within(within) => within.change(|waiters, _| waiters.close()),
        }
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.0 {
            Of::Alone(table) => table.is_closed(),
            Of::Within(within) => within.change(|waiters, _| waiters.is_closed()),
        }
    }

    /// The whole units of the key that could be taken now. It is 0 while others wait for the key or a reservation lies
    /// in the future. If the keys are [within](Builder::keyed_within) overall limits, it is at most the number available
    /// there. This call does not add the key.
    #[must_use]
    pub fn available<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> u64 {
        match &self.0 {
            Of::Alone(table) => table.look(key).available(),
            Of::Within(within) => within.change(|waiters, now| waiters.ledger.available_to(now, key) / PARTS),
        }
    }

    /// The time that a request for `units` of the key would wait now, if no waiter leaves; see [`Limiter::time_until`].
    /// This call does not add the key.
    ///
    /// If the keys are [within](Builder::keyed_within) overall limits, the requests of other keys do not count, so the real
    /// wait may be longer.
    ///
    /// # Errors
    /// As for [`Limiter::time_until`].
    pub fn time_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Duration, AcquireError> {
        let units = units.into();
        let within = match &self.0 {
            Of::Alone(table) => return table.look(key).time_until(units),
            Of::Within(within) => within,
        };
        let cost = units.millionths()?;
        let wait = within.change(|waiters, now| waiters.time_until(now, key, cost));
        wait.map_err(|denied| AcquireError::new(denied, &Cost::One(cost)))
    }

    /// The limiter of one key, for all other functions of [`Limiter`].
    ///
    /// The key is kept while a clone of the limiter or an unfinished future exists. It is also kept while the limiter
    /// is closed or has a rate or burst that differs from the other keys. So the limiter can give a key its own rate:
    /// see [`Limiter::set_rate`].
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`]. [`AcquireError::OfAll`] if the keys are
    /// [within](Builder::keyed_within) overall limits.
    pub fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, AcquireError> {
        match &self.0 {
            Of::Alone(table) => table.limiter(key).map_err(|denied| AcquireError::new(denied, &Cost::One(0))),
            Of::Within(_) => Err(AcquireError::OfAll),
        }
    }

    /// The overall limits, if the keys are [within](Builder::keyed_within) any.
    #[must_use]
    pub fn of_all(&self) -> Option<OfAll<'_, K>> {
        match &self.0 {
            Of::Alone(_) => None,
            Of::Within(within) => Some(OfAll(within)),
        }
    }

    fn time(&self) -> &Time {
        match &self.0 {
            Of::Alone(table) => &table.time,
            Of::Within(within) => within.time(),
        }
    }

    /// The number of stored keys, including keys that can be forgotten and have not been checked yet.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Of::Alone(table) => usize::try_from(table.keys()).unwrap_or(usize::MAX),
            Of::Within(within) => within.change(|waiters, _| waiters.ledger.keys()),
        }
    }

    /// The stored keys, in no order. It takes some time if there are many.
    #[must_use]
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        match &self.0 {
            Of::Alone(table) => table.list(),
            Of::Within(within) => within.change(|waiters, _| waiters.ledger.stored().cloned().collect()),
        }
    }

    /// Forgets a key with everything that it used, including a pause and a rate of [its own](Self::limiter). Its next
    /// request is treated as the first request of the key. Returns `false`, and changes nothing, if the key is not
    /// stored, if somebody waits for the key, or if somebody holds its limiter, a reservation or a grant.
    pub fn remove<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> bool {
        match &self.0 {
            Of::Alone(table) => table.remove(key),
            Of::Within(within) => within.change(|waiters, _| waiters.ledger.remove_key(key)),
        }
    }

    /// Whether no key is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the most keys that are stored. The default is a million. Keys that are already stored stay.
    pub fn set_most_keys(&self, most: usize) {
        match &self.0 {
            Of::Alone(table) => table.most_keys.store(most as u64, Ordering::Relaxed),
            Of::Within(within) => within.change(|waiters, _| waiters.ledger.set_most_keys(most)),
        }
    }

    /// Forgets all keys whose state equals the state of an unused key, and frees memory if few keys remain. This takes
    /// some nanoseconds per key. It is never necessary, because keys are also forgotten when others are added.
    pub fn forget_idle(&self) {
        match &self.0 {
            Of::Alone(table) => table.sweep(),
            Of::Within(within) => within.change(|waiters, now| waiters.ledger.forget_idle(now)),
        }
    }

    /// Uses the limiter of a key, and releases it. If `act` panics, the next sweep releases it.
    #[cold]
    fn using<Q: AsKey<K> + ?Sized, R>(&self, key: &Q, limiter: Limiter, act: impl FnOnce(&Limiter) -> R) -> R {
        let result = act(&limiter);
        if let Of::Alone(table) = &self.0 {
            table.let_go(key, limiter);
        }
        result
    }
}

impl<K: Hash> fmt::Debug for Keyed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("keys", &self.len()).finish_non_exhaustive()
    }
}
