//! Requests that the limits of a key and the overall limits grant together.
//!
//! If both grant at once, nothing else is needed. Otherwise a request waits in this order:
//!
//! - for the turn of its key, which only one request has at a time;
//! - for the limits of its key;
//! - for the overall limits.
//!
//! If the request had to wait for the overall limits, its first charge of the key is undone, and the key is charged
//! again at the time of the overall grant. So other requests of the key wait until the unit leaves, and a request that
//! is refused or dropped takes nothing. If the key no longer holds the units, for example because of a pause, the
//! request gives the overall grant back and waits for both again.

use crate::clock::Nanos;
use crate::limiter::acquire::{Acquire, Request};
use crate::limiter::error::AcquireError;
use crate::limiter::handle::{Limiter, Within};
use crate::limiter::queue::{Places, Queue};
use crate::limiter::rules::Rules;
use crate::limiter::settle::Granted;
use crate::limiter::shared::Shared;
use crate::limiter::time::Time;
use crate::limiter::units::Units;
use crate::limits::{Account, Cost, Limits};
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::coop;

/// The cost of a turn. The queue for the turn has one place, and counts places in parts of a unit.
const PLACE: Units = Units::from_millionths(1);

/// The turn of a request, or the wait for it. Dropping it starts the next request of the key.
struct Turn<'a>(Acquire<'a>);

/// A grant by the key's limits; the overall limits have not granted yet. Dropping it gives everything back.
struct Early(Option<Granted>);

impl Within {
    pub(super) fn new(all: Limiter, time: &Time, of_key: &Rules) -> Self {
        let rules = Rules { most_waiters: of_key.most_waiters, ..Rules::default() };
        let places = Some(Places { capacity: 1, held: 0 });
        let shared = Shared::new(time.clone(), Queue::new(Account::of(Limits::none(), time.now()), rules, places));
        Within { turn: Limiter { shared, within: None }, all, unfair: of_key.unfair }
    }

    /// Refuses a request that is never granted, before it waits.
    fn check(&self, own: &Limiter, units: Units) -> Result<(), AcquireError> {
        let cost = Cost::One(units.millionths()?);
        [own, &self.all]
            .into_iter()
            .try_for_each(|limiter| limiter.shared.with(|queue, _, _| queue.check(&cost)))
            .map_err(|denied| AcquireError::new(denied, &cost))
    }

    /// Takes `units` now, or nothing. This needs no turn. A request has the turn only if it could not be granted at
    /// once, and such a request goes first.
    fn take(&self, own: &Limiter, units: Units) -> Result<Granted, AcquireError> {
        if units != Units::ZERO && !self.unfair && self.has_turn() {
            return Err(AcquireError::OthersWait);
        }
        let early = Early(Some(own.try_acquire_to_settle(units)?));
        let of_all = self.all.try_acquire_to_settle(units)?;
        early.with(of_all).ok_or(AcquireError::OthersWait)
    }

    /// Like [`take`](Self::take), within the cooperative budget of a tokio task. If that is used up, the grant stays in
    /// `early` until the next poll, so that other tasks run. `None` if the request has to wait.
    fn poll_take(
        &self,
        own: &Limiter,
        units: Units,
        early: &mut Early,
        context: &mut Context<'_>,
    ) -> Poll<Option<Granted>> {
        if let Some(granted) = early.0.take() {
            return Poll::Ready(Some(granted));
        }
        let budget = coop::poll_proceed(context);
        let taken = self.take(own, units).ok();
        match (budget, taken) {
            (_, None) => Poll::Ready(None),
            (Poll::Ready(budget), taken) => {
                budget.made_progress();
                Poll::Ready(taken)
            }
            (Poll::Pending, taken) => {
                early.0 = taken;
                Poll::Pending
            }
        }
    }

    /// Whether a request has the turn.
    fn has_turn(&self) -> bool {
        self.turn.shared.with(|queue, _, _| queue.places().is_some_and(|places| places.held > 0))
    }

    /// Converts `deadline` to the clock of the overall limits.
    fn deadline(&self, own: &Limiter, deadline: Option<Nanos>) -> Option<Nanos> {
        let remaining = deadline?.saturating_sub(own.shared.time.now());
        Some(self.all.shared.time.after(Duration::from_nanos(remaining)))
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
    let mut early = Early(None);
    if let Some(granted) = poll_fn(|context| within.poll_take(own, units, &mut early, context)).await {
        return Ok(granted);
    }
    let mut turn = Turn(within.turn.acquire(PLACE).until(deadline));
    (&mut turn.0).await.map_err(|error| of_units(error, units))?;
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
    let mut turn = Turn(within.turn.acquire(PLACE).until(deadline));
    turn.0.0.block().map_err(|error| of_units(error, units))?;
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

/// The error of a wait for the turn. If it timed out, the error names `units` as the cost.
fn of_units(error: AcquireError, units: Units) -> AcquireError {
    match error {
        AcquireError::TimedOut { after, .. } => AcquireError::TimedOut { cost: units, after },
        error => error,
    }
}

impl Early {
    /// Combines this grant with a grant that the overall limits gave at once.
    fn with(mut self, of_all: Granted) -> Option<Granted> {
        self.0.take().map(|own| own.with(of_all))
    }

    /// Takes the units from the key again, after the overall limits have granted them with a wait.
    fn again(mut self, of_all: Granted) -> Option<Granted> {
        self.0.take().and_then(|own| own.taken_again(of_all))
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        // Cannot fail: 0 is a valid amount.
        let _ = self.0.take().map(|granted| granted.settle(0));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.0.0.wait.is_granted() {
            self.0.0.limiter().shared.release(1);
        }
    }
}
