//! The futures that acquire units of a key.

use super::handle::Keyed;
use super::together;
use crate::clock::Nanos;
use crate::limiter::acquire::{Acquiring, Request};
use crate::limiter::error::AcquireError;
use crate::limiter::handle::Limiter;
use crate::limiter::settle::Granted;
use crate::limiter::units::Units;
use crate::limits::{AsKey, Cost};
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::coop;

/// Waits for units of a key, see [`Keyed::acquire`]. If the future is polled again after it finished, it returns the
/// same result and takes nothing more.
pub type AcquireKey<'a, K, Q> = Acquiring<OfKey<&'a Keyed<K>, &'a Q, K, Q>>;

/// Like [`AcquireKey`], but owns the key and a clone of the limits, so it can be spawned; see [`Keyed::acquire_owned`].
pub type AcquireKeyOwned<K> = Acquiring<OfKey<Keyed<K>, K, K, K>>;

/// Waits for units of a key whose real cost becomes known later, see [`Keyed::acquire_to_settle`]. If the future is
/// polled again after it returned a grant, it fails with [`AcquireError::Finished`].
pub type AcquireKeyToSettle<'a, K, Q> = Acquiring<KeyToSettle<'a, K, Q>>;

/// A request for units of a key whose grant will be settled.
pub struct KeyToSettle<'a, K: Hash, Q: AsKey<K> + ?Sized>(OfKey<&'a Keyed<K>, &'a Q, K, Q>);

/// A request for units of a key.
pub struct OfKey<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> {
    keyed: T,
    key: P,
    units: Units,
    deadline: Option<Nanos>,
    /// Whether the grant will be settled.
    settles: bool,
    stage: Stage,
    /// The limiter of the key, while the future waits for it.
    limiter: Option<Limiter>,
    of: PhantomData<fn(&Q) -> K>,
}

/// Returns a grant only if it [is together](OfKey::is_together).
type Waits = Pin<Box<dyn Future<Output = Result<Option<Granted>, AcquireError>> + Send>>;

enum Stage {
    Fresh,
    Waits(Waits),
    /// Granted, to be settled.
    Granted(Box<Granted>),
    Done(Result<(), AcquireError>),
}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> OfKey<T, P, K, Q> {
    pub(super) fn new(keyed: T, key: P, units: Units) -> Self {
        OfKey { keyed, key, units, deadline: None, settles: false, stage: Stage::Fresh, limiter: None, of: PhantomData }
    }

    /// Whether the grant needs more than the state or the queue of the key.
    fn is_together(&self) -> bool {
        self.settles || self.keyed.borrow().table.all.is_some()
    }

    fn block_on(&mut self) -> Result<(), AcquireError> {
        let (units, deadline) = (self.units, self.deadline);
        let granted = if self.is_together() {
            together::block(self.hold()?, units, deadline).map(Some)
        } else if let Some(limiter) = self.visit(units.millionths()?)? {
            self.limiter.insert(limiter).acquire(units).until(deadline).block().map(|()| None)
        } else {
            Ok(None)
        };
        self.finish(granted);
        self.result()
    }

    /// Takes the units from the state of the key. If the request has to wait, returns the limiter of the key.
    fn visit(&self, cost: u64) -> Result<Option<Limiter>, AcquireError> {
        let visited = self.keyed.borrow().table.visit(self.key.borrow(), Some(cost), true);
        visited.map_err(|denied| AcquireError::new(denied, &Cost::One(cost)))
    }

    /// The limiter of the key, which is released when this future is dropped.
    fn hold(&mut self) -> Result<&Limiter, AcquireError> {
        let limiter = self.keyed.borrow().limiter(self.key.borrow())?;
        Ok(self.limiter.insert(limiter))
    }

    /// Takes the units at once, or begins to wait. If the cooperative budget of a tokio task is used up, the limiter of the
    /// key decides, and the future is not ready before its next poll.
    fn begin(&mut self, context: &mut Context<'_>) -> Result<Stage, AcquireError> {
        let (units, deadline) = (self.units, self.deadline);
        let cost = units.millionths()?;
        if self.is_together() {
            let limiter = self.hold()?.clone();
            let wait = async move { together::wait(&limiter, units, deadline).await.map(Some) };
            return Ok(Stage::Waits(Box::pin(wait)));
        }
        if let Poll::Ready(budget) = coop::poll_proceed(context) {
            let visited = self.visit(cost);
            if !matches!(visited, Ok(Some(_))) {
                budget.made_progress();
            }
            self.limiter = visited?;
        } else {
            self.hold()?;
        }
        let Some(limiter) = &self.limiter else { return Ok(Stage::Done(Ok(()))) };
        let acquire = limiter.acquire_owned(units).until(deadline);
        Ok(Stage::Waits(Box::pin(async move { acquire.await.map(|()| None) })))
    }

    fn poll_stage(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if matches!(self.stage, Stage::Fresh) {
            self.stage = self.begin(context).unwrap_or_else(|error| Stage::Done(Err(error)));
        }
        if let Stage::Waits(wait) = &mut self.stage {
            let granted = ready!(wait.as_mut().poll(context));
            self.finish(granted);
        }
        Poll::Ready(())
    }

    fn finish(&mut self, granted: Result<Option<Granted>, AcquireError>) {
        self.let_go();
        self.stage = match granted {
            Ok(Some(granted)) if self.settles => Stage::Granted(Box::new(granted)),
            granted => Stage::Done(granted.map(drop)),
        };
    }

    fn result(&self) -> Result<(), AcquireError> {
        match &self.stage {
            Stage::Done(done) => done.clone(),
            _ => Ok(()),
        }
    }

    /// Ends the wait. If nothing else waits for the key, its limiter is not kept.
    fn let_go(&mut self) {
        let Some(limiter) = self.limiter.take() else { return };
        self.stage = Stage::Done(Ok(())); // A request in the queue leaves it.
        self.keyed.borrow().table.let_go(self.key.borrow(), limiter);
    }
}

/// Only the boxed future inside is pinned.
impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> Unpin for OfKey<T, P, K, Q> {}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> Request for OfKey<T, P, K, Q> {
    type Grant = ();

    fn end_after(&mut self, limit: Duration) {
        if matches!(self.stage, Stage::Fresh) {
            self.deadline = Some(self.keyed.borrow().table.time.after(limit));
        }
    }

    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        self.poll_stage(context).map(|()| self.result())
    }

    fn block(&mut self) -> Result<(), AcquireError> {
        self.block_on()
    }
}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> Drop for OfKey<T, P, K, Q> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> fmt::Debug for OfKey<T, P, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireKey").field("units", &self.units).finish_non_exhaustive()
    }
}

impl<'a, K: Hash, Q: AsKey<K> + ?Sized> KeyToSettle<'a, K, Q> {
    pub(super) fn new(keyed: &'a Keyed<K>, key: &'a Q, units: Units) -> Self {
        let mut acquire = OfKey::new(keyed, key, units);
        acquire.settles = true;
        KeyToSettle(acquire)
    }

    /// Takes the grant out. A second call fails.
    fn take(&mut self) -> Result<Granted, AcquireError> {
        let stage = std::mem::replace(&mut self.0.stage, Stage::Done(Err(AcquireError::Finished)));
        match stage {
            Stage::Granted(granted) => Ok(*granted),
            Stage::Done(Err(error)) => {
                self.0.stage = Stage::Done(Err(error.clone()));
                Err(error)
            }
            _ => Err(AcquireError::Finished),
        }
    }
}

impl<K: Hash, Q: AsKey<K> + ?Sized> Request for KeyToSettle<'_, K, Q> {
    type Grant = Granted;

    fn end_after(&mut self, limit: Duration) {
        self.0.end_after(limit);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Granted, AcquireError>> {
        self.0.poll_stage(context).map(|()| self.take())
    }

    fn block(&mut self) -> Result<Granted, AcquireError> {
        self.0.block_on()?;
        self.take()
    }
}

impl<K: Hash, Q: AsKey<K> + ?Sized> fmt::Debug for KeyToSettle<'_, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireKeyToSettle").field("units", &self.0.units).finish_non_exhaustive()
    }
}
