//! The pump: one loop that reads units, waits for the sink, takes a grant, sleeps until its time, and hands units over.

use super::contract::{Answer, Answers, Filled, Flow, FlowError, Passed, Price, ServerReport, State, Turn, Unpaid};
use super::meter::{Meter, Phase};
use std::cell::RefCell;
use thiserror::Error;
use throttle_limits::clock::{MILLISECOND, NanoClock, Nanos};
use throttle_limits::limits::{Grant, Refusal, Served, Take};
use throttle_limits::store::{Claim, Refused, StoreError, Supply, When};

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

/// The wait before the next request, in nanoseconds, while the job limit is reached and no event reports the end of a
/// command.
const BUSY_WAIT: Nanos = 5 * MILLISECOND;

/// Moves every unit of `flow` to its sink when the limits of `supply` allow, until the flow ends. Sleeps on `clock`,
/// which must show the time of the supply's clock.
///
/// # Errors
/// [`PumpError`]. Units that were read and not handed over remain in `flow`. A supply that has retired ends the pump
/// with [`StoreError::Stopped`].
pub fn run(flow: &mut impl Flow, supply: &Supply, clock: &dyn NanoClock, meter: &Meter) -> Result<(), PumpError> {
    let mut pump = Pump { flow, supply, clock, meter, answers: RefCell::default() };
    while pump.gather()? {
        let room = pump.wait_for_sink()?;
        pump.pass_on()?;
        pump.release_run(room)?;
    }
    Ok(())
}

struct Pump<'a, F> {
    flow: &'a mut F,
    supply: &'a Supply,
    clock: &'a dyn NanoClock,
    meter: &'a Meter,
    /// Reports of servers that were not yet passed on to the supply. Here, the `hold` of a report is a point in time,
    /// not a duration.
    answers: RefCell<Answers>,
}

impl<F: Flow> Pump<'_, F> {
    /// Waits until a unit was read. Returns `false` at the end of the input.
    fn gather(&mut self) -> Result<bool, PumpError> {
        self.pass_on()?;
        while self.flow.waiting() == 0 && self.until_event() > 0 {
            let (state, event) = (self.note_read_ahead(), self.until_event());
            let granted = (event < Nanos::MAX).then(|| self.clock.now().saturating_add(event));
            state.paused_until.into_iter().for_each(|until| self.meter.paused_until(until));
            match state.limited_until.into_iter().chain(granted).min() {
                Some(time) => {
                    self.enter(Phase::Limit(0));
                    self.meter.waits_until(time, 0);
                }
                None if state.waits_for_sink => self.enter(Phase::Sink),
                None => self.enter(if state.reads_no_more { Phase::Working } else { Phase::Source }),
            }
            if self.flow.fill(event)? == Filled::End && self.flow.waiting() == 0 {
                self.enter(Phase::Working);
                // Other processes that share the limits need the reports about the last units.
                let _ = self.pass_on();
                return Ok(false);
            }
            self.pass_on()?;
        }
        Ok(true)
    }

    /// The time until the supply's next event for units that were requested by key; `Nanos::MAX` if none is expected.
    fn until_event(&self) -> Nanos {
        let next = if self.supply.has_keys() { self.supply.next_event() } else { None };
        next.map_or(Nanos::MAX, |time| time.saturating_sub(self.supply.clock().now()))
    }

    /// Passes reports of servers on to the supply. For a pause, the supply gives its reserved grants back and holds the
    /// limits for that time.
    fn pass_on(&mut self) -> Result<(), StoreError> {
        self.has_urgent_report();
        for (key, report) in self.answers.take() {
            let (key, until) = (key.as_deref(), report.hold.unwrap_or(0));
            if report.served != Served::default() {
                self.supply.served(key, report.served);
            }
            if let Some(key) = key {
                self.supply.tried(key, report.succeeded, report.failed)?;
            } else if let Some(until) = report.hold {
                self.meter.paused_until(until);
            }
            if report.hold.is_some() || !report.refused.is_empty() {
                self.supply.hold(key, until, report.refused)?;
            }
        }
        Ok(())
    }

    fn wait_for_sink(&mut self) -> Result<u64, PumpError> {
        self.note_read_ahead();
        self.enter(Phase::Sink);
        let room = self.flow.ready()?;
        self.enter(Phase::Working);
        Ok(room)
    }

    /// Takes a grant for the waiting units that the sink accepts, sleeps until its time, and hands the units over.
    fn release_run(&mut self, room: u64) -> Result<(), PumpError> {
        if self.supply.has_keys() {
            return self.release_of_keys(room);
        }
        match self.flow.choose() {
            Price::Usual => {}
            Price::Nothing | Price::OfKey { .. } => return Ok(()),
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
        let (mut grant, requested) = self.supply.next_run(ready)?;
        self.supply.foresee(|| self.flow.state().foreseen.saturating_sub(grant.units));
        let (has_waited, units) = (grant.at > requested, grant.units);
        if has_waited && !self.sleep_until(&mut grant, units, &[units])? {
            return Ok(());
        }
        let more = if has_waited { self.supply.take_available(ready - units) } else { 0 };
        self.hand_over(&grant, Turn::Usual(units + more))
    }

    /// Takes a grant for one unit with these costs, and hands it over with the units behind it that may leave at the
    /// same time.
    fn release_one(&mut self, costs: &[u64]) -> Result<(), PumpError> {
        let (mut grant, requested) = match self.supply.take(costs) {
            Err(StoreError::Refused(Refusal::Never)) => return self.pass(Turn::Refused(Unpaid::TooMuch)),
            taken => taken?,
        };
        if grant.at > requested && !self.sleep_until(&mut grant, 1, costs)? {
            return Ok(());
        }
        let supply = self.supply;
        // Best effort: if settling fails, this unit stays charged with less than its real cost, and the units behind it
        // wait less.
        let settle = |real: &[u64]| drop(supply.settle(&grant, &Take::of(costs), real));
        self.hand_over(
            &grant,
            Turn::Costly { grant, costs, joins: &mut |costs| supply.take_now(costs), settle: &settle },
        )
    }

    /// Serves units with keys of a shared bucket: hands over the units whose grants are due, and requests grants for
    /// other units. A unit is requested only if the sink has a free place for it and the limits of its key conform
    /// soon.
    fn release_of_keys(&mut self, room: u64) -> Result<(), PumpError> {
        let refused = self.supply.answered()?;
        self.refuse(refused)?;
        let mut room = usize::try_from(room).unwrap_or(usize::MAX);
        while room > 0
            && let Some(claim) = self.supply.claim()?
        {
            room -= usize::from(self.use_claim(&claim)?);
        }
        let ((wanted, more_at), reserved) = (self.supply.wanted(), self.supply.reserved());
        if room == 0 && reserved == 0 {
            return Ok(()); // The sink reports when it has room again.
        }
        let most = wanted.min(room.saturating_sub(reserved));
        // When every place in the sink is reserved, no unit is requested until a place is free.
        let mut at = if wanted > 0 { Nanos::MAX } else { more_at };
        if most > 0 {
            let (takes, rest) = self.choose_several(most)?;
            if !takes.is_empty() {
                let refused = self.supply.ask_for(takes)?;
                return self.refuse(refused);
            }
            if rest == 0 && self.flow.waiting() == 0 {
                return Ok(());
            }
            at = self.supply.clock().now().saturating_add(rest.max(MILLISECOND));
        }
        let soon = || self.supply.clock().now().saturating_add(BUSY_WAIT);
        let next = self.supply.next_event().unwrap_or_else(soon).min(at);
        self.enter_limit(next, None, 0);
        self.supply.sleep_unless(self.clock, next, &|| self.has_urgent_report())?;
        Ok(())
    }

    /// Hands over a unit with its grant, if the grant is still valid. Returns whether it was.
    fn use_claim(&mut self, Claim { ticket, granted }: &Claim) -> Result<bool, PumpError> {
        match granted {
            Some((grant, take)) => {
                self.meter.late(1, self.clock.now().saturating_sub(grant.at));
                self.hand_over(grant, Turn::OfKey(*ticket, Answer::Granted(*grant, take)))?;
            }
            None => self.pass(Turn::OfKey(*ticket, Answer::NotYet(0)))?,
        }
        Ok(granted.is_some())
    }

    /// Chooses up to `most` units to request, in the order of their turns. Skips units if the limits of their key do
    /// not conform soon. Also returns for how many nanoseconds no other unit can leave.
    fn choose_several(&mut self, most: usize) -> Result<(Vec<(u64, Take)>, Nanos), PumpError> {
        let mut takes = Vec::new();
        while takes.len() < most {
            match self.flow.choose() {
                Price::OfKey { ticket, mut take, waited } => {
                    let since = self.supply.clock().now().saturating_sub(waited);
                    take.key.iter_mut().for_each(|of| of.since = since);
                    match self.supply.when(&take, &takes)? {
                        When::Now(latest) => {
                            take.key.iter_mut().for_each(|of| of.latest = latest);
                            takes.push((ticket, take));
                        }
                        When::After(wait) => self.pass(Turn::OfKey(ticket, Answer::NotYet(wait)))?,
                        When::NoneBefore(wait) => {
                            self.pass(Turn::OfKey(ticket, Answer::NotYet(0)))?;
                            return Ok((takes, wait));
                        }
                    }
                }
                Price::Nothing => break,
                _ => self.pass(Turn::Refused(Unpaid::Unread))?,
            }
        }
        Ok((takes, 0))
    }

    /// Returns the refused units to the flow.
    fn refuse(&mut self, refused: Refused) -> Result<(), PumpError> {
        for (ticket, refusal) in refused {
            let what = match refusal {
                Refusal::TooLong { wait } => Answer::NotYet(wait),
                Refusal::Busy => Answer::NotYet(BUSY_WAIT),
                refusal => Answer::Refused(refusal),
            };
            self.pass(Turn::OfKey(ticket, what))?;
        }
        Ok(())
    }

    fn hand_over(&mut self, grant: &Grant, turn: Turn<'_>) -> Result<(), PumpError> {
        if !matches!(turn, Turn::OfKey(..)) && self.has_urgent_report() {
            return Ok(());
        }
        let (units, costs) = match turn {
            Turn::Usual(units) => (units, None),
            Turn::Costly { costs, .. } => (1, Some(costs)),
            Turn::OfKey(_, Answer::Granted(_, take)) => (1, Some(&*take.costs)),
            _ => (1, None),
        };
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

    /// Collects reports of servers from the flow. Returns whether there is an urgent report, such as a pause.
    fn has_urgent_report(&self) -> bool {
        let mut answers = self.answers.borrow_mut();
        for (key, mut report) in self.flow.take_answers() {
            report.hold = report.hold.map(|time| self.clock.now().saturating_add(time));
            answers.entry(key).or_default().add(report);
        }
        answers.values().any(ServerReport::is_urgent)
    }

    /// Reads more available input if the limits will soon require a wait and less than a quantum waits: the smallest
    /// run that is worth a wake-up. Then one long run leaves, not a short run before the wait and another run after it.
    fn top_up(&mut self) -> Result<(), PumpError> {
        let quantum = self.supply.quantum();
        if self.flow.waiting() < quantum && self.supply.available() < quantum {
            while self.flow.fill(0)? == Filled::Some && self.flow.waiting() < quantum {}
        }
        Ok(())
    }

    /// Sleeps until the time of a grant of `units` units with these costs, or until a server reports a
    /// [hold](Flow::take_answers). Returns whether the grant may be used now. After a late wake-up, the grant has a
    /// later time.
    fn sleep_until(&mut self, grant: &mut Grant, units: u64, costs: &[u64]) -> Result<bool, StoreError> {
        self.enter_limit(grant.at, grant.bound_by, units);
        let has_come = self.supply.sleep_unless(self.clock, grant.at, &|| self.has_urgent_report())?;
        if has_come {
            self.meter.late(units, self.clock.now().saturating_sub(grant.at));
            *grant = self.supply.woke(*grant, costs);
        }
        Ok(has_come)
    }

    fn enter_limit(&self, at: Nanos, bound_by: Option<usize>, units: u64) {
        self.note_read_ahead();
        self.enter(Phase::Limit(bound_by.unwrap_or(usize::MAX)));
        self.meter.waits_until(at, units);
    }

    fn note_read_ahead(&self) -> State {
        let state = self.flow.state();
        self.meter.read_ahead(state.ahead.units, state.ahead.bytes, state.keys);
        state
    }

    fn enter(&self, phase: Phase) {
        self.meter.enter(phase, self.clock.now());
    }
}
