//! The same limits for each of many keys.

use super::acquire::Acquiring;
use super::builder::{BuildError, Builder, rate};
use super::error::AcquireError;
use super::handle::Limiter;
use super::reservation::Reservation;
use super::settle::Granted;
use super::units::Units;
use crate::clock::Nanos;
use crate::limits::{AsKey, Cost, Limits};
pub use acquire::{AcquireKey, AcquireKeyOwned, AcquireKeyToSettle};
use acquire::{KeyToSettle, OfKey};
pub use handle::Keyed;
use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use table::Table;

mod acquire;
mod handle;
mod table;
mod together;

/// The default of the most keys that are kept.
const DEFAULT_MAX_KEYS: u64 = 1_000_000;

impl Builder {
    /// Builds these limits for each key.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn keyed<K: Hash>(self) -> Result<Keyed<K>, BuildError> {
        self.keyed_with(None)
    }

    /// Builds these limits for each key, within the limits of `all`. The key and `all` grant a request together; if one
    /// of them refuses, nothing is taken from either. An example is 2 a second for each user, and 100 a second for all.
    ///
    /// Only the first request of each key waits for `all`, so a key with many requests does not crowd out the others. A
    /// request to such a `Keyed` takes some microseconds.
    ///
    /// ```
    /// use throttle_limits::limiter::{Keyed, Limiter};
    ///
    /// let all = Limiter::new(1, 3)?; // all together 1 a second, 3 at once
    /// let users: Keyed<u64> = Limiter::builder().limit("2/s,burst=2".parse()?).keyed_within(&all)?;
    /// assert!([1, 1, 2].iter().all(|user| users.try_acquire(user, 1).is_ok()));
    /// assert!(users.try_acquire(&3, 1).is_err(), "all are above their limit");
    /// assert_eq!((users.limiter(&3)?.available(), users.available(&3)), (2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn keyed_within<K: Hash>(self, all: &Limiter) -> Result<Keyed<K>, BuildError> {
        self.keyed_with(Some(all.clone()))
    }

    fn keyed_with<K: Hash>(self, all: Option<Limiter>) -> Result<Keyed<K>, BuildError> {
        let (time, rules) = self.parts()?;
        let limits = self.limits(time.now())?;
        Ok(Keyed { table: Arc::new(Table::new(limits, time, rules, all, DEFAULT_MAX_KEYS)) })
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
    /// As for [`Limiter::try_acquire`], and [`AcquireError::TooManyKeys`]. If the keys are
    /// [within](Builder::keyed_within) other limits, the errors of those limits as well.
    #[inline]
    pub fn try_acquire<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<(), AcquireError> {
        let units = units.into();
        if self.table.all.is_some() {
            return self.try_acquire_to_settle(key, units).map(drop);
        }
        let cost = units.millionths()?;
        match self.table.visit(key, Some(cost), false) {
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
    /// The future returns them: as for [`Limiter::acquire`], and [`AcquireError::TooManyKeys`]. If the keys are
    /// [within](Builder::keyed_within) other limits, the errors of those limits as well.
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
    /// As for [`Limiter::reserve`], and [`AcquireError::TooManyKeys`]. [`AcquireError::OfAll`] if the keys are
    /// [within](Builder::keyed_within) other limits.
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
        if self.table.all.is_some() {
            return Err(AcquireError::OfAll);
        }
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
        self.using(key, self.limiter(key)?, |limiter| together::take(limiter, units.into()))
    }

    /// Grants the key nothing for `time` from now; see [`Limiter::pause_for`]. The key is kept until the pause is over.
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn pause_for<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: Duration) -> Result<(), AcquireError> {
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
        self.table.set_limits(|_, _, now| Ok((to.limits(now)?, place)))
    }

    fn change(&self, change: impl Fn(&Limits, Nanos, usize) -> Limits) -> Result<(), BuildError> {
        self.table.set_limits(|limits, place, now| Ok((change(limits, now, place.ok_or(BuildError::NoBucket)?), place)))
    }

    /// Refuses every later request, for all keys, with [`AcquireError::Closed`]. All present waiters are still served.
    /// From now on no key is added; stored keys are still forgotten. The overall limits of
    /// [`keyed_within`](Builder::keyed_within) stay open. A closed `Keyed` stays closed.
    pub fn close(&self) {
        self.table.close();
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.table.is_closed()
    }

    /// The whole units of the key that could be taken now. It is 0 while others wait for the key or a reservation lies
    /// in the future. If the keys are [within](Builder::keyed_within) other limits, it is at most the number available
    /// there. This call does not add the key.
    #[must_use]
    pub fn available<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> u64 {
        let own = self.table.look(key).available();
        self.table.all.as_ref().map_or(own, |all| own.min(all.available()))
    }

    /// The time that a request for `units` of the key would wait now, if no waiter leaves; see [`Limiter::time_until`].
    /// This call does not add the key.
    ///
    /// If the keys are [within](Builder::keyed_within) other limits, the result is the longer of the two waits. The
    /// real wait may be longer, because other requests of the key that wait for their turn do not count.
    ///
    /// # Errors
    /// As for [`Limiter::time_until`].
    pub fn time_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Duration, AcquireError> {
        let (own, units) = (self.table.look(key), units.into());
        let of_all = self.table.all.as_ref().map_or(Ok(Duration::ZERO), |all| all.time_until(units))?;
        Ok(own.time_until(units)?.max(of_all))
    }

    /// The limiter of one key, for all other functions of [`Limiter`]. It has the limits of this key only, even if the
    /// keys are [within](Builder::keyed_within) other limits.
    ///
    /// The key is kept while a clone of the limiter or an unfinished future exists. It is also kept while the limiter
    /// is closed or has a rate or burst that differs from the other keys. So the limiter can give a key its own rate:
    /// see [`Limiter::set_rate`].
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, AcquireError> {
        self.table.limiter(key).map_err(|denied| AcquireError::new(denied, &Cost::One(0)))
    }

    /// The number of stored keys, including keys that can be forgotten and have not been checked yet.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.table.keys()).unwrap_or(usize::MAX)
    }

    /// The stored keys, in no order. It takes some time if there are many.
    #[must_use]
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.table.list()
    }

    /// Forgets a key with everything that it used, including a pause and a rate of [its own](Self::limiter). Its next
    /// request is treated as the first request of the key. Returns `false`, and changes nothing, if the key is not
    /// stored, if somebody waits for the key, or if somebody holds its limiter, a reservation or a grant.
    pub fn remove<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> bool {
        self.table.remove(key)
    }

    /// Whether no key is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the most keys that are stored. The default is a million. Keys that are already stored stay.
    pub fn set_most_keys(&self, most: usize) {
        self.table.most_keys.store(most as u64, Ordering::Relaxed);
    }

    /// Forgets all keys whose state equals the state of an unused key, and frees memory if few keys remain. This takes
    /// some nanoseconds per key. It is never necessary, because keys are also forgotten when others are added.
    pub fn forget_idle(&self) {
        self.table.sweep();
    }

    /// Uses the limiter of a key, and releases it. If `act` panics, the next sweep releases it.
    #[cold]
    fn using<Q: AsKey<K> + ?Sized, R>(&self, key: &Q, limiter: Limiter, act: impl FnOnce(&Limiter) -> R) -> R {
        let result = act(&limiter);
        self.table.let_go(key, limiter);
        result
    }
}

impl<K: Hash> fmt::Debug for Keyed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("keys", &self.len()).finish_non_exhaustive()
    }
}
