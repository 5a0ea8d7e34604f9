//! The same limits for each of many keys.

use super::builder::{BuildError, Builder, rate};
use super::error::AcquireError;
use super::handle::Limiter;
use super::reservation::Reservation;
use super::settle::Granted;
use super::units::Units;
use crate::clock::Nanos;
use crate::limits::{AsKey, Cost, Limits};
use held::Held;
use std::borrow::Borrow;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use table::Table;
use tokio::task::coop;

mod held;
mod table;
mod together;

/// How many keys are kept if nothing else is set.
const MOST_KEYS: u64 = 1_000_000;

/// Limits for each key: each host, user or account has its own. Clones share one state.
///
/// Each key is limited as a [`Limiter`] with these settings, made when this was made, would limit it: exactly, first
/// in, first out within the key, and a waiter that is cancelled takes nothing. Keys do not wait for each other.
/// Deadlines count from the call, as those of a [`Limiter`] do.
///
/// ```
/// use throttle_limits::limiter::{Keyed, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hosts: Keyed<String> = Keyed::new(2, 1)?; // each host 2 a second, 1 at once
/// assert!(hosts.try_acquire("a.example", 1).is_ok());
/// assert!(hosts.try_acquire("a.example", 1).is_err());
/// assert!(hosts.try_acquire("b.example", 1).is_ok());
/// hosts.acquire("a.example", 1).await?; // half a second later
///
/// let users: Keyed<u64> = Limiter::builder().limit("5/s,burst=20".parse()?).limit("1000/h".parse()?).keyed()?;
/// users.acquire(&4711, 1).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Keys that are kept
///
/// A key is forgotten only if its state equals that of a key that was never used. So nobody gets more by coming back
/// later, or by using many keys. There is no background task: for each new key two others are looked at. To look at all
/// of them, call [`forget_idle`](Self::forget_idle).
///
/// A key takes less than 100 bytes beyond its own if the limits are a single bucket and its type has at most 24 bytes, as a
/// `String` has; a key of a larger type may take 20 bytes more. Each further limit takes 32 bytes, and a window the times of
/// its grants. A key that somebody waits for takes about a kilobyte.
///
/// There is room for a million keys, or [as many as allowed](Self::set_most_keys). If all of them are in use, a new key is
/// refused with [`AcquireError::TooManyKeys`], also by the calls that would wait. No other key is forgotten for it.
///
/// # Other limits
///
/// All keys have the same limits; [`limiter`](Self::limiter) gives a key another rate. For limits of all keys together see
/// [`Builder::keyed_within`].
pub struct Keyed<K> {
    table: Arc<Table<K>>,
}

impl Builder {
    /// Limits like these for each key.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn keyed<K: Hash>(self) -> Result<Keyed<K>, BuildError> {
        self.keyed_with(None)
    }

    /// Limits like these for each key, within the limits of `all`: a request is granted by its key and by `all` together, and
    /// one that either refuses takes nothing from both. For example 2 a second for each user, and 100 a second for all.
    ///
    /// Of each key only the first request waits for `all`, so a key with many requests does not crowd out the others. A
    /// request of this kind takes some microseconds.
    ///
    /// ```
    /// use throttle_limits::limiter::{Keyed, Limiter};
    ///
    /// let all = Limiter::new(100, 3)?;
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
        Ok(Keyed { table: Arc::new(Table::new(limits, time, rules, all, MOST_KEYS)) })
    }
}

impl<K: Hash> Keyed<K> {
    /// For each key `rate` units a second, at most `capacity` at once. The bucket of a key that was never used is full.
    /// For all other settings see [`Builder::keyed`].
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
    /// [within](Builder::keyed_within) other limits, also those of `all`.
    #[inline]
    pub fn try_acquire<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<(), AcquireError> {
        let units = units.into();
        if self.table.all.is_some() {
            return self.try_acquire_to_settle(key, units).map(drop);
        }
        let cost = units.millionths()?;
        match self.table.visit(key, Some(cost), false) {
            Ok(None) => Ok(()),
            Ok(Some(limiter)) => self.held(key, limiter).get().try_acquire(units),
            Err(denied) => AcquireError::refuse(denied, &Cost::One(cost)),
        }
    }

    /// Waits until all earlier waiters of the key have been served and `units` are available, and takes them.
    ///
    /// Nothing is taken before the future is polled. A future that is dropped unfinished takes nothing, and the waiters
    /// behind it move up.
    ///
    /// # Errors
    /// The future's: as for [`Limiter::acquire`], and [`AcquireError::TooManyKeys`]. If the keys are
    /// [within](Builder::keyed_within) other limits, also those of `all`.
    pub fn acquire<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> impl Future<Output = Result<(), AcquireError>> {
        acquire_until::<K, Q, _, _>(self, key, units.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but at most `limit` from now, including the time in the queue. If the wait
    /// would be longer even though no waiter before it leaves, it is refused at once. If the keys are
    /// [within](Builder::keyed_within) other limits and others of its key wait, that is known only when its turn has
    /// come.
    ///
    /// # Errors
    /// The future's: as for [`Limiter::acquire_timeout`], and [`AcquireError::TooManyKeys`].
    pub fn acquire_timeout<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> impl Future<Output = Result<(), AcquireError>> {
        acquire_until::<K, Q, _, _>(self, key, units.into(), Some(self.table.time.after(limit)))
    }

    /// Like [`acquire_timeout`](Self::acquire_timeout), with a deadline instead of a duration.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout).
    pub fn acquire_by<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        deadline: impl Into<Instant>,
    ) -> impl Future<Output = Result<(), AcquireError>> {
        acquire_until::<K, Q, _, _>(self, key, units.into(), Some(self.table.time.at(deadline)))
    }

    /// Like [`acquire`](Self::acquire), but the future owns all that it needs, so it can be spawned. With a deadline:
    /// `async move { keyed.acquire_by(&key, 1, deadline).await }`, with a clone of this.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_owned<U: Into<Units>>(
        &self,
        key: K,
        units: U,
    ) -> impl Future<Output = Result<(), AcquireError>> + use<K, U>
    where
        K: AsKey<K>,
    {
        acquire_until::<K, K, _, _>(self.clone(), key, units.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<(), AcquireError> {
        self.block(key, units.into(), None)
    }

    /// Like [`acquire_timeout`](Self::acquire_timeout), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire_timeout`](Self::acquire_timeout), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire_timeout<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> Result<(), AcquireError> {
        self.block(key, units.into(), Some(self.table.time.after(limit)))
    }

    /// Like [`acquire_by`](Self::acquire_by), but blocks the thread.
    ///
    /// # Errors
    /// As for [`acquire_by`](Self::acquire_by), except [`AcquireError::NoTimer`].
    pub fn blocking_acquire_by<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        deadline: impl Into<Instant>,
    ) -> Result<(), AcquireError> {
        self.block(key, units.into(), Some(self.table.time.at(deadline)))
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
    /// As for [`reserve`](Self::reserve), and [`AcquireError::TooLong`] with the wait that would be needed.
    pub fn reserve_within<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> Result<Reservation, AcquireError> {
        if self.table.all.is_some() {
            return Err(AcquireError::OfAll);
        }
        self.hold(key)?.get().reserve_within(units.into(), limit)
    }

    /// Waits for units of the key whose real cost becomes known later; see [`Limiter::acquire_to_settle`]. The key is
    /// kept until what was granted is settled or dropped. A future that is dropped unfinished takes nothing.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_to_settle<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> impl Future<Output = Result<Granted, AcquireError>> {
        let units = units.into();
        async move {
            let held = self.hold(key)?;
            together::wait(held.get(), units, None).await
        }
    }

    /// Like [`acquire_to_settle`](Self::acquire_to_settle), but blocks the thread.
    ///
    /// # Errors
    /// As for [`blocking_acquire`](Self::blocking_acquire).
    pub fn blocking_acquire_to_settle<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> Result<Granted, AcquireError> {
        together::block(self.hold(key)?.get(), units.into(), None)
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
        together::take(self.hold(key)?.get(), units.into())
    }

    /// Grants the key nothing for `time` from now; see [`Limiter::pause_for`]. The key is kept until the pause is over.
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn pause_for<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: Duration) -> Result<(), AcquireError> {
        self.hold(key)?.get().pause_for(time);
        Ok(())
    }

    /// Like [`pause_for`](Self::pause_for), until `time`. If that has passed, nothing happens.
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn pause_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: impl Into<Instant>) -> Result<(), AcquireError> {
        self.hold(key)?.get().pause_until(time);
        Ok(())
    }

    /// Changes the rate of all keys to `units` per `period` from now on; see [`Limiter::set_rate`]. A key that has a rate of
    /// [its own](Self::limiter) keeps that.
    ///
    /// This and the other changes for all keys take about a third of a microsecond for each key.
    ///
    /// # Errors
    /// As for [`Limiter::set_rate`].
    pub fn set_rate(&self, units: impl Into<Units>, period: Duration) -> Result<(), BuildError> {
        let rate = rate(units.into(), period)?;
        self.change(|limits, now, place| limits.set_rate(now, place, rate))
    }

    /// Changes the burst of all keys to `units` from now on; see [`Limiter::set_burst`].
    ///
    /// # Errors
    /// As for [`Limiter::set_burst`].
    pub fn set_burst(&self, units: impl Into<Units>) -> Result<(), BuildError> {
        let burst = NonZeroU64::new(units.into().millionths()?).ok_or(BuildError::ZeroBurst)?;
        self.change(|limits, now, place| limits.set_burst(now, place, burst))
    }

    /// Replaces the limits of all keys; see [`Limiter::set_limits`]. A key that has a rate of [its own](Self::limiter) keeps
    /// its limits.
    ///
    /// # Errors
    /// As for [`Builder::build`]. Nothing is changed then.
    pub fn set_limits(&self, to: &Builder) -> Result<(), BuildError> {
        let place = to.place()?;
        self.table.set_limits(|_, _, now| Ok((to.limits(now)?, place)))
    }

    fn change(&self, change: impl Fn(&mut Limits, Nanos, usize)) -> Result<(), BuildError> {
        self.table.set_limits(|mut limits, place, now| {
            change(&mut limits, now, place.ok_or(BuildError::NoBucket)?);
            Ok((limits, place))
        })
    }

    /// Refuses every later request, of all keys, with [`AcquireError::Closed`]. All that wait are still served. From
    /// now on no key is added, and keys are forgotten as before. Limits of all keys that these are
    /// [within](Builder::keyed_within) stay open. This cannot be undone.
    pub fn close(&self) {
        self.table.close();
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.table.is_closed()
    }

    /// Whole units of the key that could be taken now; 0 while others wait for it or a reservation lies in the future.
    /// If the keys are [within](Builder::keyed_within) other limits: at most what is available there. A key that is not
    /// kept is not added by this.
    #[must_use]
    pub fn available<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> u64 {
        let own = self.table.look(key).available();
        self.table.all.as_ref().map_or(own, |all| own.min(all.available()))
    }

    /// How long a request for `units` of the key would wait now, if no waiter leaves; see [`Limiter::time_until`]. A
    /// key that is not kept is not added by this.
    ///
    /// If the keys are [within](Builder::keyed_within) other limits, it is the longer of the waits for both. The real
    /// one may be longer, because others of the key that wait for their turn do not count.
    ///
    /// # Errors
    /// As for [`Limiter::time_until`].
    pub fn time_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Duration, AcquireError> {
        let (own, units) = (self.table.look(key), units.into());
        let of_all = self.table.all.as_ref().map_or(Ok(Duration::ZERO), |all| all.time_until(units))?;
        Ok(own.time_until(units)?.max(of_all))
    }

    /// The limiter of one key, for whatever else a [`Limiter`] can do. It knows the limits of this key only, also if
    /// the keys are [within](Builder::keyed_within) others.
    ///
    /// The key is kept as long as a clone of the limiter is, or an unfinished future. It is also kept while the limiter is
    /// closed or has another rate or burst than those of the other keys, so this is how to give a key a rate of its own.
    ///
    /// # Errors
    /// For a new key [`AcquireError::TooManyKeys`], or [`AcquireError::Closed`].
    pub fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, AcquireError> {
        self.table.limiter(key).map_err(|denied| AcquireError::new(denied, &Cost::One(0)))
    }

    /// How many keys are kept, those included that can be forgotten and were not yet looked at.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.table.keys()).unwrap_or(usize::MAX)
    }

    /// The keys that are kept, in no order. It takes some time if there are many.
    #[must_use]
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.table.list()
    }

    /// Forgets a key and what it used, a pause and a rate of [its own](Self::limiter) included: its next request is
    /// that of a key never seen. Returns `false`, and changes nothing, if the key is not kept, or while somebody waits
    /// for it or holds its limiter, a reservation or a grant of it.
    pub fn remove<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> bool {
        self.table.remove(key)
    }

    /// Whether no key is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets how many keys are kept at most. The default is a million. Keys that are kept already stay.
    pub fn set_most_keys(&self, most: usize) {
        self.table.most_keys.store(most as u64, Ordering::Relaxed);
    }

    /// Forgets all keys whose state equals that of a key that was never used, and frees memory if few are left. This takes
    /// some nanoseconds for each key. It is never necessary: keys are also forgotten as others come.
    pub fn forget_idle(&self) {
        self.table.sweep();
    }

    fn block<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: Units, deadline: Option<Nanos>) -> Result<(), AcquireError> {
        if self.table.all.is_some() {
            return together::block(self.hold(key)?.get(), units, deadline).map(drop);
        }
        let cost = units.millionths()?;
        match self.table.visit(key, Some(cost), true) {
            Ok(None) => Ok(()),
            Ok(Some(limiter)) => self.held(key, limiter).get().acquire(units).until(deadline).block(),
            Err(denied) => AcquireError::refuse(denied, &Cost::One(cost)),
        }
    }

    fn hold<'a, Q: AsKey<K> + ?Sized>(&'a self, key: &'a Q) -> Result<Held<'a, K, Q>, AcquireError> {
        Ok(self.held(key, self.limiter(key)?))
    }

    #[cold]
    fn held<'a, Q: AsKey<K> + ?Sized>(&'a self, key: &'a Q, limiter: Limiter) -> Held<'a, K, Q> {
        Held::new(&self.table, key, limiter)
    }
}

/// The future asks for the limiter only if it has to wait. If the cooperative budget of a tokio task is used up, it waits for
/// its next poll in the queue.
async fn acquire_until<K: Hash, Q: AsKey<K> + ?Sized, T: Borrow<Keyed<K>>, P: Borrow<Q>>(
    keyed: T,
    key: P,
    units: Units,
    deadline: Option<Nanos>,
) -> Result<(), AcquireError> {
    let (keyed, key, cost) = (keyed.borrow(), key.borrow(), units.millionths()?);
    if keyed.table.all.is_some() {
        let held = keyed.hold(key)?;
        return together::wait(held.get(), units, deadline).await.map(drop);
    }
    let taken = poll_fn(|context| {
        let Poll::Ready(budget) = coop::poll_proceed(context) else {
            return Poll::Ready(keyed.table.limiter(key).map(Some));
        };
        let taken = keyed.table.visit(key, Some(cost), true);
        if !matches!(taken, Ok(Some(_))) {
            budget.made_progress();
        }
        Poll::Ready(taken)
    });
    let taken = taken.await.map_err(|denied| AcquireError::new(denied, &Cost::One(cost)));
    let Some(limiter) = taken? else { return Ok(()) };
    let held = keyed.held(key, limiter);
    held.get().acquire(units).until(deadline).await
}

impl<K> Clone for Keyed<K> {
    fn clone(&self) -> Self {
        Keyed { table: Arc::clone(&self.table) }
    }
}

impl<K: Hash> fmt::Debug for Keyed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("keys", &self.len()).finish_non_exhaustive()
    }
}
