//! Requests that the limits of a key and those of all keys grant together.
//!
//! If both grant at once, that is all. Otherwise a request first waits for its turn in its key, then for its key, then for the
//! limits of all. If it waited for those, the key is charged again, at the time of their grant: so the others of the key wait
//! until it leaves, and a request that is refused or dropped takes nothing. If the key no longer holds the units, for example
//! because of a pause, it gives back what it has, and waits for both again.

use crate::clock::Nanos;
use crate::limiter::error::AcquireError;
use crate::limiter::handle::{Limiter, Within};
use crate::limiter::queue::{Places, Queue};
use crate::limiter::rules::Rules;
use crate::limiter::settle::Granted;
use crate::limiter::shared::Shared;
use crate::limiter::time::Time;
use crate::limiter::units::Units;
use crate::limits::{Cost, Limits};
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::coop;

/// There is one place in a turn. Places are counted in millionths.
const PLACE: Units = Units::from_millionths(1);

/// The turn of a request. Dropping it lets the next one of the key begin.
struct Turn<'a>(&'a Limiter);

/// Taken from the key alone, for a while. Dropping it gives everything back.
struct Early(Option<Granted>);

impl Within {
    pub(super) fn new(all: Limiter, time: &Time, of_key: &Rules) -> Self {
        let rules = Rules { most_waiters: of_key.most_waiters, ..Rules::default() };
        let places = Some(Places { capacity: 1, held: 0 });
        let shared = Shared::new(time.clone(), Queue::new(Limits::none(time.now()), rules, places));
        Within { turn: Limiter { shared, within: None }, all, unfair: of_key.unfair }
    }

    /// Refuses what is never granted, before it waits for anything.
    fn check(&self, own: &Limiter, units: Units) -> Result<(), AcquireError> {
        let cost = Cost::One(units.millionths()?);
        [own, &self.all]
            .into_iter()
            .try_for_each(|limiter| limiter.shared.with(|queue, _, _| queue.check(&cost)))
            .map_err(|denied| AcquireError::new(denied, &cost))
    }

    /// Takes `units` now, or nothing. This needs no turn: only who could not have them at once has one, and goes first.
    fn take(&self, own: &Limiter, units: Units) -> Result<Granted, AcquireError> {
        if units != Units::ZERO && !self.unfair && self.has_turn() {
            return Err(AcquireError::OthersWait);
        }
        let early = Early(Some(own.try_acquire_to_settle(units)?));
        let of_all = self.all.try_acquire_to_settle(units)?;
        early.with(of_all).ok_or(AcquireError::OthersWait)
    }

    /// Like [`take`](Self::take), within the cooperative budget of a tokio task. `None` if it has to wait.
    fn poll_take(&self, own: &Limiter, units: Units, context: &mut Context<'_>) -> Poll<Option<Granted>> {
        let Poll::Ready(budget) = coop::poll_proceed(context) else {
            // Nothing is free at any time; all else waits for its next poll in the turn.
            return if units == Units::ZERO { Poll::Pending } else { Poll::Ready(None) };
        };
        let taken = self.take(own, units).ok();
        if taken.is_some() {
            budget.made_progress();
        }
        Poll::Ready(taken)
    }

    /// Whether a request has the turn.
    fn has_turn(&self) -> bool {
        self.turn.shared.with(|queue, _, _| queue.places().is_some_and(|places| places.held > 0))
    }

    /// The turn, once it was waited for.
    fn begin(&self, waited: Result<(), AcquireError>, units: Units) -> Result<Turn<'_>, AcquireError> {
        waited.map(|()| Turn(&self.turn)).map_err(|error| match error {
            AcquireError::TimedOut { after, .. } => AcquireError::TimedOut { cost: units, after },
            error => error,
        })
    }

    /// The same deadline on the clock of the limits of all.
    fn deadline(&self, own: &Limiter, deadline: Option<Nanos>) -> Option<Nanos> {
        let left = deadline?.saturating_sub(own.shared.time.now());
        Some(self.all.shared.time.after(Duration::from_nanos(left)))
    }
}

/// Takes `units` now, or nothing.
pub(super) fn take(own: &Limiter, units: Units) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.try_acquire_to_settle(units) };
    within.check(own, units)?;
    within.take(own, units)
}

/// Waits for `units`, at most until `deadline`.
pub(super) async fn wait(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).await };
    within.check(own, units)?;
    if let Some(granted) = poll_fn(|context| within.poll_take(own, units, context)).await {
        return Ok(granted);
    }
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).await, units)?;
    loop {
        let early = Early(Some(own.acquire_to_settle(units).admitted().until(deadline).await?));
        let granted = if let Ok(of_all) = within.all.try_acquire_to_settle(units) {
            early.with(of_all)
        } else {
            early.again(within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).await?)
        };
        if let Some(granted) = granted {
            return Ok(granted);
        }
    }
}

/// Like [`wait`], but blocks the thread.
pub(super) fn block(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).block() };
    within.check(own, units)?;
    if let Ok(granted) = within.take(own, units) {
        return Ok(granted);
    }
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).block(), units)?;
    loop {
        let early = Early(Some(own.acquire_to_settle(units).admitted().until(deadline).block()?));
        let granted = if let Ok(of_all) = within.all.try_acquire_to_settle(units) {
            early.with(of_all)
        } else {
            early.again(within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).block()?)
        };
        if let Some(granted) = granted {
            return Ok(granted);
        }
    }
}

impl Early {
    /// The limits of all granted them at once.
    fn with(mut self, of_all: Granted) -> Option<Granted> {
        self.0.take().map(|own| own.with(of_all))
    }

    /// Takes the units from the key again, now that the limits of all have granted them after a wait.
    fn again(mut self, of_all: Granted) -> Option<Granted> {
        self.0.take().and_then(|own| own.taken_again(of_all))
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        // 0 is a valid amount.
        let _ = self.0.take().map(|granted| granted.settle(0));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.shared.with(|queue, now, effects| queue.release(now, 1, effects));
    }
}
