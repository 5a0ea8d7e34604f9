//! The pump: one loop that reads units, waits for the sink, takes a grant, sleeps until its time, and hands over.

use super::contract::{Answers, Filled, Flow, FlowError, Passed, Price, State, Turn, Unpaid};
use super::meter::{Meter, Phase};
use std::cell::{Cell, RefCell};
use thiserror::Error;
use throttle_limits::clock::{Clock, Nanos};
use throttle_limits::limits::{Grant, Refusal, Served, Start};
use throttle_limits::store::{StoreError, Supply};

/// Why the pump stopped before the end of its input.
#[derive(Debug, Error)]
pub enum PumpError {
    /// The source or the sink failed.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The store does not grant the next unit.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves every unit of `flow` when the limits that `supply` draws from allow it, until its end.
///
/// # Errors
/// [`PumpError`]; units that were read and not handed over still wait in `flow`. A supply that has retired ends the pump
/// with [`StoreError::Stopped`].
pub fn run(flow: &mut impl Flow, supply: &Supply, meter: &Meter) -> Result<(), PumpError> {
    run_on(flow, supply, supply.clock(), meter)
}

/// As [`run`], but sleeps on `clock`, which must show the time of the supply's clock.
///
/// # Errors
/// As [`run`].
pub fn run_on(flow: &mut impl Flow, supply: &Supply, clock: &dyn Clock, meter: &Meter) -> Result<(), PumpError> {
    let mut pump = Pump { flow, supply, clock, meter, hold: Cell::new(None), refused: RefCell::default() };
    while pump.gather()? {
        let room = pump.wait_for_sink()?;
        pump.hold()?;
        pump.release_run(room)?;
    }
    Ok(())
}

struct Pump<'a, F> {
    flow: &'a mut F,
    supply: &'a Supply,
    clock: &'a dyn Clock,
    meter: &'a Meter,
    /// Until when nothing may be handed over, if that is news.
    hold: Cell<Option<Nanos>>,
    /// The starts of what a server refused, if that is news.
    refused: RefCell<Vec<Start>>,
}

impl<F: Flow> Pump<'_, F> {
    /// Waits until a unit was read; `false` at the end of the input.
    fn gather(&mut self) -> Result<bool, PumpError> {
        self.hold()?;
        if self.flow.waiting() > 0 {
            return Ok(true);
        }
        while self.flow.waiting() == 0 {
            let state = self.note_read_ahead();
            match state.limited_until {
                Some(time) => {
                    self.enter(Phase::Limit(0));
                    self.meter.waits_until(time, 0);
                }
                None if state.waits_for_sink => self.enter(Phase::Sink),
                None => self.enter(if state.reads_no_more { Phase::Working } else { Phase::Source }),
            }
            if self.flow.fill(true)? == Filled::End && self.flow.waiting() == 0 {
                self.enter(Phase::Working);
                return Ok(false);
            }
            self.hold()?;
        }
        Ok(true)
    }

    /// If nothing may be handed over for some time, gives back what is reserved, and holds the limits for that long.
    fn hold(&mut self) -> Result<(), StoreError> {
        self.has_hold();
        let (hold, refused) = (self.hold.take(), self.refused.take());
        if let Some(until) = hold {
            self.meter.paused_until(until);
        }
        if hold.is_none() && refused.is_empty() { Ok(()) } else { self.supply.hold_until(hold.unwrap_or(0), refused) }
    }

    /// Waits until the sink can accept a unit, and returns how many it can accept.
    fn wait_for_sink(&mut self) -> Result<u64, PumpError> {
        self.note_read_ahead();
        self.enter(Phase::Sink);
        let room = self.flow.ready()?;
        self.enter(Phase::Working);
        Ok(room)
    }

    /// Takes a grant for waiting units that the sink has room for, sleeps until its time, and hands them over.
    fn release_run(&mut self, room: u64) -> Result<(), PumpError> {
        match self.flow.choose() {
            Price::Usual => {}
            Price::Nothing => return Ok(()),
            Price::Costs(costs) => return self.release_one(&costs),
            Price::AtLeast(costs) => {
                self.supply.settles(true);
                let released = self.release_one(&costs);
                self.supply.settles(false);
                return released;
            }
            Price::Unknown => return self.pass(Turn::Refused(Unpaid::Unread)),
        }
        self.top_up()?;
        let ready = self.flow.waiting().min(room);
        let (grant, asked) = self.supply.next_run(ready)?;
        self.supply.foresee(|| self.flow.state().foreseen.saturating_sub(grant.units));
        let has_waited = grant.at > asked;
        if has_waited && !self.sleep_until(&grant, grant.units)? {
            return Ok(());
        }
        let more = if has_waited { self.supply.take_available(ready - grant.units) } else { 0 };
        let units = grant.units + more;
        self.hand_over(&grant, Turn::Usual(units))
    }

    /// The same for one unit of these costs, and for those behind it that may leave at the same time.
    fn release_one(&mut self, costs: &[u64]) -> Result<(), PumpError> {
        let (grant, asked) = match self.supply.take(costs) {
            Err(StoreError::Refused(Refusal::Never)) => return self.pass(Turn::Refused(Unpaid::TooMuch)),
            taken => taken?,
        };
        if grant.at > asked && !self.sleep_until(&grant, 1)? {
            return Ok(());
        }
        let supply = self.supply;
        // Best effort: if it fails, those behind wait for less than it cost.
        let settle = |real: &[u64]| drop(supply.settle(&grant, [costs, real]));
        self.hand_over(
            &grant,
            Turn::Costly { grant, costs, joins: &mut |costs| supply.take_now(costs), settle: &settle },
        )
    }

    fn hand_over(&mut self, grant: &Grant, turn: Turn<'_>) -> Result<(), PumpError> {
        if self.has_hold() {
            return Ok(());
        }
        let (units, costs) = (turn.units(), if let Turn::Costly { costs, .. } = turn { Some(costs) } else { None });
        if let Some(costs) = costs {
            self.supply.open(grant, costs);
        }
        self.enter(Phase::Sink);
        let result = self.pass(turn);
        self.supply.handed_over(grant, costs.unwrap_or(&[units]));
        result
    }

    fn pass(&mut self, turn: Turn<'_>) -> Result<(), PumpError> {
        let mut passed = Passed::default();
        let result = self.flow.pass(turn, &mut passed);
        self.meter.passed(passed.units, passed.bytes, self.clock.now());
        Ok(result?)
    }

    /// Whether there is news of a time for which nothing may be handed over.
    fn has_hold(&self) -> bool {
        let Answers { hold, mut refused, served } = self.flow.take_answers();
        let until = hold.map(|time| self.clock.now().saturating_add(time));
        self.hold.set(self.hold.take().max(until));
        self.refused.borrow_mut().append(&mut refused);
        if served != Served::default() {
            self.supply.served(served);
        }
        self.hold.get().is_some()
    }

    /// Reads what else is available if less than a quantum waits and the limits will soon cause a wait: then one long run
    /// leaves, instead of a short one and another after the wait.
    fn top_up(&mut self) -> Result<(), PumpError> {
        let quantum = self.supply.quantum();
        if self.flow.waiting() < quantum && self.supply.available() < quantum {
            while self.flow.fill(false)? == Filled::Some && self.flow.waiting() < quantum {}
        }
        Ok(())
    }

    /// Sleeps until the grant of so many units, or until there is news of a [hold](Flow::take_answers). Returns whether the grant
    /// may be used now.
    fn sleep_until(&mut self, grant: &Grant, units: u64) -> Result<bool, StoreError> {
        self.note_read_ahead();
        self.enter(Phase::Limit(grant.bound_by.unwrap_or(usize::MAX)));
        self.meter.waits_until(grant.at, units);
        let has_come = self.supply.sleep_unless(self.clock, grant.at, &|| self.has_hold())?;
        if has_come {
            self.meter.late(units, self.clock.now().saturating_sub(grant.at));
        }
        Ok(has_come)
    }

    fn note_read_ahead(&self) -> State {
        let state = self.flow.state();
        self.meter.read_ahead(state.ahead.units, state.ahead.bytes, state.keys, state.dropped);
        state
    }

    fn enter(&self, phase: Phase) {
        self.meter.enter(phase, self.clock.now());
    }
}
