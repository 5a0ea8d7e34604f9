//! Requests that the limits of a key and those of all keys grant together.
//!
//! A request first waits for its turn in its key, then for its key, then for the limits of all. Only then is the key charged
//! for good: so the others of the key wait until it leaves, and a request that is refused or dropped takes nothing.

use crate::clock::Nanos;
use crate::limiter::error::AcquireError;
use crate::limiter::handle::{Limiter, Within};
use crate::limiter::queue::{Places, Queue};
use crate::limiter::rules::Rules;
use crate::limiter::settle::Granted;
use crate::limiter::shared::Shared;
use crate::limiter::time::Time;
use crate::limiter::units::Units;
use crate::limits::Limits;
use std::convert::Infallible;
use std::time::Duration;

/// There is one place in a turn. Places are counted in millionths.
const PLACE: Units = Units::from_millionths(1);

/// The turn of a request. Dropping it lets the next one of the key begin.
struct Turn<'a>(&'a Limiter);

/// Taken from the key alone, for a while. Dropping it gives everything back.
struct Early(Option<Granted>);

impl Within {
    pub(super) fn new(all: Limiter, time: &Time, most_waiters: Option<usize>) -> Self {
        let rules = Rules { most_waiters, ..Rules::default() };
        let places = Some(Places { capacity: 1, held: 0 });
        let queue = |now| Ok::<_, Infallible>(Queue::new(Limits::none(now), rules, places));
        let Ok(shared) = Shared::new(time.clone(), queue);
        Within { turn: Limiter { shared, within: None }, all }
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
    let _turn = within.begin(within.turn.try_acquire(PLACE).map_err(|_| AcquireError::OthersWait), units)?;
    let early = Early(Some(own.try_acquire_to_settle(units)?));
    let of_all = within.all.try_acquire_to_settle(units)?;
    Ok(early.together(of_all))
}

/// Waits for `units`, at most until `deadline`.
pub(super) async fn wait(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).await };
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).await, units)?;
    let early = Early(Some(own.acquire_to_settle(units).until(deadline).await?));
    let of_all = within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).await?;
    Ok(early.together(of_all))
}

/// Like [`wait`], but blocks the thread.
pub(super) fn block(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).block() };
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).block(), units)?;
    let early = Early(Some(own.acquire_to_settle(units).until(deadline).block()?));
    let of_all = within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).block()?;
    Ok(early.together(of_all))
}

impl Early {
    /// Takes the units from the key again, now that the limits of all have granted them.
    fn together(mut self, of_all: Granted) -> Granted {
        match self.0.take() {
            Some(own) => own.taken_again(of_all),
            None => of_all,
        }
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
