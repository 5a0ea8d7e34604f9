//! The futures that acquire units of a key.

use super::handle::{Keyed, Of};
use super::within::Within;
use crate::clock::{Nanos, Unpark};
use crate::limiter::acquire::{Acquiring, Request};
use crate::limiter::error::AcquireError;
use crate::limiter::handle::Limiter;
use crate::limiter::queue::{Denied, Waiter};
use crate::limiter::serve::Serve;
use crate::limiter::settle::Granted;
use crate::limiter::shared::{Shared, Wait};
use crate::limiter::units::Units;
use crate::limits::{AsKey, Cost};
use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
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

/// A request that has joined the queue of its key, or the ledger of all keys.
struct Joined {
    wait: Wait,
    waitable: Arc<Shared<dyn Serve + Send>>,
}

enum Stage {
    Fresh,
    Waits(Box<Joined>),
    /// Granted, to be settled.
    Granted(Box<Granted>),
    Done(Result<(), AcquireError>),
}

impl Joined {
    /// The result of the wait: the grant, if it will be settled.
    fn granted(&mut self, waited: Result<(), Denied>, settles: bool) -> Result<Option<Granted>, AcquireError> {
        let cost = self.wait.cost().clone();
        match waited {
            Ok(()) if settles => Ok(Some(Granted::new(Arc::clone(&self.waitable), cost, self.wait.opened()))),
            Ok(()) => Ok(None),
            Err(denied) => Err(AcquireError::new(denied, &cost)),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.wait.leave(&self.waitable);
    }
}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> OfKey<T, P, K, Q> {
    pub(super) fn new(keyed: T, key: P, units: Units) -> Self {
        OfKey { keyed, key, units, deadline: None, settles: false, stage: Stage::Fresh, limiter: None, of: PhantomData }
    }

    fn keyed(&self) -> &Of<K> {
        &self.keyed.borrow().0
    }

    fn wait(&self, cost: u64) -> Wait {
        let cost = Cost::One(cost);
        let mut wait = if self.settles { Wait::to_settle(cost) } else { Wait::new(cost) };
        wait.set_deadline(self.deadline);
        wait
    }

    /// Joins the ledger of all keys. If the grant `yields`, it is handed over at the next poll.
    fn join(&self, within: &Within<K>, cost: u64, waker: &Waker, [is_thread, yields]: [bool; 2]) -> Joined {
        // It leaves again if setting the timer panics.
        let mut joined = Joined { wait: self.wait(cost), waitable: Arc::clone(within.waitable()) };
        let cost = Cost::One(cost);
        let waiter = Waiter { cost: &cost, deadline: self.deadline, waker, is_thread, yields };
        within.join(&mut joined.wait, self.key.borrow(), &waiter, self.settles);
        joined
    }

    fn block_on(&mut self) -> Result<(), AcquireError> {
        let granted = self.block_granted();
        self.finish(granted);
        self.result()
    }

    fn block_granted(&mut self) -> Result<Option<Granted>, AcquireError> {
        let cost = self.units.millionths()?;
        if let Of::Within(within) = self.keyed() {
            let waker = Unpark::this_thread();
            let mut joined = self.join(within, cost, &waker, [true, false]);
            let waited = joined.wait.block_joined(&joined.waitable, &waker);
            return joined.granted(waited, self.settles);
        }
        let Some(limiter) = self.take_or_wait(cost)? else { return Ok(None) };
        let mut joined = Joined { wait: self.wait(cost), waitable: limiter.shared.clone() };
        let waited = joined.wait.block(&limiter.shared);
        joined.granted(waited, self.settles)
    }

    /// Takes the units from the state of the key. If the request has to wait, or is to be settled, returns the limiter of
    /// the key, which is released when this future is dropped.
    fn take_or_wait(&mut self, cost: u64) -> Result<Option<Limiter>, AcquireError> {
        let Of::Alone(table) = self.keyed() else { return Ok(None) };
        let taken = (!self.settles).then_some(cost);
        let visited = table.visit(self.key.borrow(), taken, true);
        self.limiter = visited.map_err(|denied| AcquireError::new(denied, &Cost::One(cost)))?;
        Ok(self.limiter.clone())
    }

    /// Takes the units at once, or begins to wait. If the cooperative budget of a tokio task is used up, the future is not
    /// ready before its next poll.
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Granted>, AcquireError>> {
        let cost = self.units.millionths()?;
        if let Of::Within(within) = self.keyed() {
            let budget = coop::poll_proceed(context);
            let joined = self.join(within, cost, context.waker(), [false, budget.is_pending()]);
            let polled = self.poll_first(joined, |wait, waitable| wait.stand(waitable));
            if let (Poll::Ready(budget), Poll::Ready(_)) = (budget, &polled) {
                budget.made_progress();
            }
            return polled;
        }
        if let Poll::Ready(budget) = coop::poll_proceed(context) {
            let visited = self.take_or_wait(cost);
            if !matches!(visited, Ok(Some(_))) {
                budget.made_progress();
            }
            visited?;
        } else {
            self.limiter = Some(self.keyed.borrow().limiter(self.key.borrow())?);
        }
        let Some(limiter) = self.limiter.clone() else { return Poll::Ready(Ok(None)) };
        let joined = Joined { wait: self.wait(cost), waitable: limiter.shared.clone() };
        self.poll_first(joined, |wait, _| wait.poll(&limiter.shared, context))
    }

    fn poll_first(
        &mut self,
        mut joined: Joined,
        poll: impl FnOnce(&mut Wait, &Arc<Shared<dyn Serve + Send>>) -> Poll<Result<(), Denied>>,
    ) -> Poll<Result<Option<Granted>, AcquireError>> {
        match poll(&mut joined.wait, &joined.waitable) {
            Poll::Ready(waited) => Poll::Ready(joined.granted(waited, self.settles)),
            Poll::Pending => {
                self.stage = Stage::Waits(Box::new(joined));
                Poll::Pending
            }
        }
    }

    fn poll_stage(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let granted = match &mut self.stage {
            Stage::Fresh => ready!(self.begin(context)),
            Stage::Waits(joined) => {
                let waited = ready!(joined.wait.poll_joined(&joined.waitable, context));
                joined.granted(waited, self.settles)
            }
            Stage::Granted(_) | Stage::Done(_) => return Poll::Ready(()),
        };
        self.finish(granted);
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
        if let Of::Alone(table) = self.keyed() {
            table.let_go(self.key.borrow(), limiter);
        }
    }
}

/// Nothing inside is pinned.
impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> Unpin for OfKey<T, P, K, Q> {}

impl<T: Borrow<Keyed<K>>, P: Borrow<Q>, K: Hash, Q: AsKey<K> + ?Sized> Request for OfKey<T, P, K, Q> {
    type Grant = ();

    fn end_after(&mut self, limit: Duration) {
        if matches!(self.stage, Stage::Fresh) {
            self.deadline = Some(self.keyed.borrow().time().after(limit));
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
