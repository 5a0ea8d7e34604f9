//! The pump: one loop that reads units, requests their grants, waits for the next grant, and passes its units on.

use super::contract::{Flow, Passed, State};
use super::error::FlowError;
use super::grants::{Grants, Overview};
use super::meter::{Meter, Phase};
use super::next::{Next, Patience};
use thiserror::Error;
use throttle_limits::clock::Nanos;
use throttle_limits::store::StoreError;

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

/// Moves every unit of `flow` to its sink when `grants` allow, until the flow ends. Long waits go through `patience`.
///
/// # Errors
/// [`PumpError`]. Units that were read and not handed over remain in `flow` and `grants`. A run that has retired ends the
/// pump with [`StoreError::Stopped`].
pub fn run<F: Flow>(
    flow: &mut F,
    grants: &Grants<F::Unit>,
    patience: &dyn Patience,
    meter: &Meter,
) -> Result<(), PumpError> {
    grants.is_polled_here();
    let mut pump = Pump { flow, grants, patience, meter };
    // The room of the sink, if the pump has only slept since the sink reported it.
    let mut known = None;
    loop {
        pump.fill()?;
        let (due, now) = (grants.due_at(), grants.now());
        if pump.flow.has_new(grants) || due.is_some_and(|time| time <= now) {
            let room = match known.take() {
                Some(room) => room,
                None => pump.room()?,
            };
            // A server may have asked for a pause during the wait for room.
            grants.pass_on();
            pump.flow.ask(grants)?;
            if let Step::Wait(until) = pump.drain(room)? {
                known = pump.wait(until)?.then_some(room);
            }
        } else if due.is_none() && pump.flow.is_over(grants)? {
            pump.enter(Phase::Working);
            // Other processes that share the limits need the reports about the last units.
            let _ = grants.pass_all_on();
            return Ok(());
        } else {
            pump.wait(due)?;
        }
    }
}

/// The next step of the pump, once all units that may leave have left.
enum Step {
    /// The sink is asked for its room again.
    Again,
    /// Nothing has left: wait until this time, or for room in the sink.
    Wait(Option<Nanos>),
}

struct Pump<'a, F: Flow> {
    flow: &'a mut F,
    grants: &'a Grants<F::Unit>,
    patience: &'a dyn Patience,
    meter: &'a Meter,
}

impl<F: Flow> Pump<'_, F> {
    /// Reads input.
    fn fill(&mut self) -> Result<(), PumpError> {
        self.grants.pass_on();
        if self.grants.is_empty() && !self.flow.has_new(self.grants) {
            let state = self.note_read_ahead();
            self.enter(if state.reads_no_more { Phase::Working } else { Phase::Source });
        }
        self.flow.fill(self.grants)?;
        Ok(())
    }

    fn room(&mut self) -> Result<u64, PumpError> {
        self.note_read_ahead();
        self.enter(Phase::Sink);
        let room = self.flow.room(self.grants)?;
        self.enter(Phase::Working);
        Ok(room)
    }

    /// Passes on all units that may leave now, at most `room`.
    fn drain(&mut self, mut room: u64) -> Result<Step, PumpError> {
        let mut has_passed = false;
        loop {
            let mut passed = Passed::default();
            let result = match self.grants.poll(room)? {
                Next::Run(units, due, run) => {
                    self.note_lateness(units, due);
                    self.enter(Phase::Sink);
                    let result = self.flow.run(self.grants, units, &mut passed);
                    if let Some(run) = run {
                        self.grants.run_has_left(&run);
                    }
                    room = room.saturating_sub(units);
                    result
                }
                Next::Go(granted, unit) => {
                    self.note_lateness(1, (granted.due > granted.arrived).then_some(granted.due));
                    room = room.saturating_sub(1);
                    self.flow.go(self.grants, granted, unit, &mut passed)
                }
                Next::Refused(unit, why) => {
                    room = room.saturating_sub(1);
                    self.flow.refuse(self.grants, unit, why, &mut passed)
                }
                Next::At(time) => {
                    has_passed |= self.flush()?;
                    return Ok(if has_passed { Step::Again } else { Step::Wait(Some(time)) });
                }
                Next::Nothing => {
                    has_passed |= self.flush()?;
                    // Without room, the sink has to become ready.
                    return Ok(if room == 0 && !has_passed { Step::Wait(None) } else { Step::Again });
                }
            };
            self.pass(passed);
            result?;
            has_passed = true;
            if room == 0 || !self.flow.has_room() {
                self.flush()?;
                return Ok(Step::Again);
            }
        }
    }

    /// Writes what was passed on. Returns whether anything was written.
    fn flush(&mut self) -> Result<bool, PumpError> {
        let mut passed = Passed::default();
        if self.flow.has_output() {
            self.enter(Phase::Sink);
        }
        let result = self.flow.flush(self.grants, &mut passed);
        self.pass(passed);
        result?;
        Ok(passed != Passed::default())
    }

    fn pass(&self, passed: Passed) {
        if passed != Passed::default() {
            self.meter.passed(passed.units, passed.bytes, self.grants.now());
        }
    }

    /// Records how late units leave that had to wait until `due`.
    fn note_lateness(&self, units: u64, due: Option<Nanos>) {
        if let Some(due) = due {
            self.meter.late(units, self.grants.now().saturating_sub(due));
        }
    }

    /// Waits until this time, or until something happens. Returns whether it only slept: then the room of the sink is
    /// unchanged.
    fn wait(&mut self, until: Option<Nanos>) -> Result<bool, PumpError> {
        let state = self.note_read_ahead();
        self.grants.paused_until().into_iter().for_each(|until| self.meter.paused_until(until));
        match until.and_then(|until| self.grants.waits_for(until)) {
            _ if state.waits_for_sink => self.enter(Phase::Sink),
            Some((limit, next)) => {
                self.enter(Phase::Limit(limit));
                self.meter.waits_until(next);
            }
            None => self.enter(if state.reads_no_more { Phase::Working } else { Phase::Source }),
        }
        let Some(until) = until else {
            self.flow.wait(self.grants, None)?;
            return Ok(false);
        };
        let (mut result, mut has_slept) = (Ok(()), false);
        let (flow, grants) = (&mut *self.flow, self.grants);
        self.patience.wait(grants.now(), until, &mut |until| {
            match flow.wait(grants, Some(until)) {
                Ok(true) => {}
                Ok(false) => {
                    has_slept = true;
                    grants.sleep_until(until);
                }
                Err(error) => result = Err(error),
            }
            result.is_ok() && grants.now() >= until
        });
        result?;
        Ok(has_slept)
    }

    fn note_read_ahead(&self) -> State {
        let state = self.flow.state(self.grants);
        let line = self.grants.line();
        let keys = if self.grants.has_keys() { [line.keys_waiting() as u64, line.keys() as u64] } else { [0, 0] };
        drop(line);
        self.meter.read_ahead(state.ahead.units, state.ahead.bytes, keys);
        state
    }

    fn enter(&self, phase: Phase) {
        self.meter.enter(phase, self.grants.now());
    }
}
