//! The same limits for each of many keys.

use super::acquire::AcquireFrom;
use super::builder::{BuildError, Builder};
use super::costs::IntoCosts;
use super::error::AcquireError;
use super::handle::Limiter;
use super::queue::Denied;
use super::reservation::Reservation;
use super::settle::Granted;
use super::time::nanos;
use super::units::Units;
use crate::clock::Nanos;
use crate::limits::AsKey;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use table::Table;
use tokio::task::coop;

mod table;

/// How many keys are kept if nothing else is set.
const MOST_KEYS: u64 = 1_000_000;

/// Limits for each key: each host, user or account has its own. Clones share one state.
///
/// Each key is limited as a [`Limiter`] with these settings, made when this was made, would limit it: exactly, first in,
/// first out within the key, and a waiter that is cancelled takes nothing. Keys do not wait for each other.
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
/// # What it does not do
///
/// All keys have the same limits; [`limiter`](Self::limiter) gives a key another rate. There is no limit for all keys
/// together: put a [`Limiter`] of its own behind this one. What the key was charged is not given back if that refuses.
pub struct Keyed<K> {
    table: Arc<Table<K>>,
}

/// A limiter of a key, until the caller is done with it.
struct Held<'a, K: Hash, Q: AsKey<K> + ?Sized> {
    table: &'a Table<K>,
    key: &'a Q,
    limiter: Option<Limiter>,
}

impl Builder {
    /// Limits like these for each key.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn keyed<K: Hash>(self) -> Result<Keyed<K>, BuildError> {
        let (time, rules, place) = self.parts()?;
        let limits = self.limits(time.now())?;
        Ok(Keyed { table: Arc::new(Table::new(limits, time, rules, place, MOST_KEYS)) })
    }
}

impl<K: Hash> Keyed<K> {
    /// For each key `rate` units a second, at most `capacity` at once. The bucket of a key that was never used is full.
    /// For all other settings see [`Builder::keyed`].
    ///
    /// # Errors
    /// A rate or capacity that is not above 0, or not finite.
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
        match self.table.take(key, units.millionths()?, false) {
            Ok(None) => Ok(()),
            Ok(Some(limiter)) => self.held(key, limiter).get().try_acquire(units),
            Err(denied) => Err(error(denied, units)),
        }
    }

    /// Waits until all earlier waiters of the key have been served and `units` are available, and takes them.
    ///
    /// Nothing is taken before the future is polled. A future that is dropped unfinished takes nothing, and the waiters
    /// behind it move up.
    ///
    /// # Errors
    /// The future's: [`AcquireError`].
    pub fn acquire<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> impl Future<Output = Result<(), AcquireError>> {
        self.acquire_until(key, units.into(), None)
    }

    /// Like [`acquire`](Self::acquire), but at most `limit` from now, including the time in the queue. If the wait would
    /// be longer even though no waiter before it leaves, it is refused at once.
    ///
    /// # Errors
    /// The future's: as for [`Limiter::acquire_timeout`], and [`AcquireError::TooManyKeys`].
    pub fn acquire_timeout<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> impl Future<Output = Result<(), AcquireError>> {
        self.acquire_until(key, units.into(), Some(self.deadline(limit)))
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
        self.block(key, units.into(), Some(self.deadline(limit)))
    }

    /// Takes `units` at the earliest time behind the whole queue of the key, and returns that time; see
    /// [`Limiter::reserve`].
    ///
    /// # Errors
    /// As for [`Limiter::reserve`], and [`AcquireError::TooManyKeys`].
    pub fn reserve<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Reservation, AcquireError> {
        self.reserve_within(key, units, Duration::MAX)
    }

    /// Like [`reserve`](Self::reserve), but only if the wait is at most `limit`.
    ///
    /// # Errors
    /// As for [`Limiter::reserve_within`], and [`AcquireError::TooManyKeys`].
    pub fn reserve_within<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
        limit: Duration,
    ) -> Result<Reservation, AcquireError> {
        self.hold(key)?.get().reserve_within(units.into(), limit)
    }

    /// Waits for units of the key whose real cost becomes known later; see [`Limiter::acquire_to_settle`]. The key is kept
    /// until what was granted is settled or dropped.
    ///
    /// # Errors
    /// The future's: [`AcquireError`].
    pub fn acquire_to_settle<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: impl Into<Units>,
    ) -> impl Future<Output = Result<Granted, AcquireError>> {
        let units = units.into();
        async move {
            let held = self.hold(key)?;
            held.get().acquire_to_settle(units).await
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
        self.hold(key)?.get().blocking_acquire_to_settle(units.into())
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
        self.hold(key)?.get().try_acquire_to_settle(units.into())
    }

    /// Grants the key nothing for `time` from now; see [`Limiter::pause_for`].
    ///
    /// # Errors
    /// [`AcquireError::TooManyKeys`].
    pub fn pause_for<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: Duration) -> Result<(), AcquireError> {
        self.hold(key)?.get().pause_for(time);
        Ok(())
    }

    /// Like [`pause_for`](Self::pause_for), until `time`.
    ///
    /// # Errors
    /// [`AcquireError::TooManyKeys`].
    pub fn pause_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, time: tokio::time::Instant) -> Result<(), AcquireError> {
        self.pause_for(key, time.saturating_duration_since(tokio::time::Instant::now()))
    }

    /// Whole units of the key that could be taken now; 0 while others wait for it or a reservation lies in the future.
    #[must_use]
    pub fn available<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> u64 {
        self.table.look(key).available()
    }

    /// How long a request for `units` of the key would wait now, if no waiter leaves; see [`Limiter::time_until`].
    ///
    /// # Errors
    /// As for [`Limiter::time_until`].
    pub fn time_until<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: impl Into<Units>) -> Result<Duration, AcquireError> {
        self.table.look(key).time_until(units.into())
    }

    /// The limiter of one key, for whatever else a [`Limiter`] can do.
    ///
    /// The key is kept as long as a clone of the limiter is, or an unfinished future. It is also kept while the limiter is
    /// closed or has another rate or burst than those of the other keys, so this is how to give a key a rate of its own.
    ///
    /// # Errors
    /// [`AcquireError::TooManyKeys`].
    pub fn limiter<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Limiter, AcquireError> {
        self.table.limiter(key).map_err(|denied| error(denied, Units::ZERO))
    }

    /// How many keys are kept, those included that can be forgotten and were not yet looked at.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.table.keys()).unwrap_or(usize::MAX)
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

    /// The future asks for the limiter only if it has to wait. If the cooperative budget of a tokio task is used up, it
    /// waits for its next poll in the queue.
    async fn acquire_until<Q: AsKey<K> + ?Sized>(
        &self,
        key: &Q,
        units: Units,
        deadline: Option<Nanos>,
    ) -> Result<(), AcquireError> {
        let cost = units.millionths()?;
        let taken = poll_fn(|context| {
            let Poll::Ready(budget) = coop::poll_proceed(context) else {
                return Poll::Ready(self.table.limiter(key).map(Some));
            };
            let taken = self.table.take(key, cost, true);
            if !matches!(taken, Ok(Some(_))) {
                budget.made_progress();
            }
            Poll::Ready(taken)
        });
        let Some(limiter) = taken.await.map_err(|denied| error(denied, units))? else { return Ok(()) };
        let held = self.held(key, limiter);
        AcquireFrom::new(held.get(), units.into_costs(), deadline).await
    }

    fn block<Q: AsKey<K> + ?Sized>(&self, key: &Q, units: Units, deadline: Option<Nanos>) -> Result<(), AcquireError> {
        match self.table.take(key, units.millionths()?, true) {
            Ok(None) => Ok(()),
            Ok(Some(limiter)) => AcquireFrom::new(self.held(key, limiter).get(), units.into_costs(), deadline).block(),
            Err(denied) => Err(error(denied, units)),
        }
    }

    fn hold<'a, Q: AsKey<K> + ?Sized>(&'a self, key: &'a Q) -> Result<Held<'a, K, Q>, AcquireError> {
        Ok(self.held(key, self.limiter(key)?))
    }

    #[cold]
    fn held<'a, Q: AsKey<K> + ?Sized>(&'a self, key: &'a Q, limiter: Limiter) -> Held<'a, K, Q> {
        Held { table: &self.table, key, limiter: Some(limiter) }
    }

    fn deadline(&self, limit: Duration) -> Nanos {
        self.table.time.now().saturating_add(nanos(limit))
    }
}

#[cold]
fn error(denied: Denied, cost: Units) -> AcquireError {
    AcquireError::new(denied, &cost.into_costs())
}

impl<K: Hash, Q: AsKey<K> + ?Sized> Held<'_, K, Q> {
    fn get(&self) -> &Limiter {
        self.limiter.as_ref().expect("held until it is dropped")
    }
}

impl<K: Hash, Q: AsKey<K> + ?Sized> Drop for Held<'_, K, Q> {
    fn drop(&mut self) {
        self.limiter.take().into_iter().for_each(|limiter| self.table.let_go(self.key, limiter));
    }
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
