//! Requests that the limits of a key and those of all keys grant together.
//!
//! A request that both grant now needs no turn: if others wait, one of them says so. Others wait for their turn in their key,
//! then for the key, then for the limits of all. If these grant later than the key, it is charged only then: so the others of
//! the key wait until it leaves, and a request that is refused or dropped takes nothing.

use crate::clock::Nanos;
use crate::limiter::costs::IntoCosts;
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
    let early = Early(Some(own.try_acquire_to_settle(units)?));
    let of_all = within.all.try_acquire_to_settle(units)?;
    Ok(early.with(of_all))
}

/// The same for who would wait: `None` if one of them does not grant it now.
fn at_once(own: &Limiter, within: &Within, units: Units) -> Option<Granted> {
    let cost = units.into_costs().parts().ok()?;
    let early = Early(Some(own.take_now(&cost).ok()?));
    within.all.take_now(&cost).ok().map(|of_all| early.with(of_all))
}

/// Waits for `units`, at most until `deadline`.
pub(super) async fn wait(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).await };
    if let Some(granted) = at_once(own, within, units) {
        return Ok(granted);
    }
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).await, units)?;
    let early = Early(Some(own.acquire_to_settle(units).until(deadline).await?));
    if let Ok(of_all) = within.all.try_acquire_to_settle(units) {
        return Ok(early.with(of_all));
    }
    let of_all = within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).await?;
    Ok(early.together(of_all))
}

/// Like [`wait`], but blocks the thread.
pub(super) fn block(own: &Limiter, units: Units, deadline: Option<Nanos>) -> Result<Granted, AcquireError> {
    let Some(within) = &own.within else { return own.acquire_to_settle(units).until(deadline).block() };
    if let Some(granted) = at_once(own, within, units) {
        return Ok(granted);
    }
    let _turn = within.begin(within.turn.acquire(PLACE).until(deadline).block(), units)?;
    let early = Early(Some(own.acquire_to_settle(units).until(deadline).block()?));
    if let Ok(of_all) = within.all.try_acquire_to_settle(units) {
        return Ok(early.with(of_all));
    }
    let of_all = within.all.acquire_to_settle(units).until(within.deadline(own, deadline)).block()?;
    Ok(early.together(of_all))
}

impl Early {
    /// Keeps what the key has granted, now that the limits of all grant it, too.
    fn with(mut self, of_all: Granted) -> Granted {
        match self.0.take() {
            Some(own) => own.beside(of_all),
            None => of_all,
        }
    }

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
