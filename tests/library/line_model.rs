//! The model of the line of a shared bucket: who waits for how long, reckoned anew from the whole history at each event.
//!
//! It is slow, and simple enough to check by reading. What the design leaves open is a rule here, with a comment.

use crate::model::{Costs, Limit, Model};

const SECOND: u64 = 1_000_000_000;

/// Who waits looks this often.
pub(crate) const LOOK: u64 = 5 * SECOND;

/// Rule: who waits for as long as this is an entry. A shorter wait is one only behind others: whoever waits for less
/// than that is never moved, since nobody could leave before.
const LONG: u64 = SECOND;

/// Everything that happened, in the order of its effect.
#[derive(Clone, Debug)]
enum Event {
    Grant { id: u64, asked: u64, at: u64, cost: Costs },
    Hold { until: u64 },
    Set { now: u64, limits: Vec<Limit>, fresh: Vec<bool> },
    Credit { now: u64, at: u64, cost: Costs },
}

/// One that waits, or a hold that those behind it wait for.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: u64,
    asked: u64,
    /// The time at which it is charged.
    at: u64,
    /// The time that its owner knows.
    told: u64,
    /// `None` for a hold.
    cost: Option<Costs>,
}

#[derive(Clone, Debug)]
pub(crate) struct LineModel {
    limits: Vec<Limit>,
    made: u64,
    past: Vec<Event>,
    line: Vec<Waiter>,
    ids: u64,
    /// The last one given, if it is no entry. Rule: as its wait is over soon, it is final after another grant or a change,
    /// whatever becomes of that.
    last: Option<u64>,
}

impl LineModel {
    pub(crate) fn new(limits: &[Limit], made: u64) -> Self {
        LineModel { limits: limits.to_vec(), made, past: Vec::new(), line: Vec::new(), ids: 0, last: None }
    }

    /// The time of a new waiter and its name, or how long it would have to wait; `None` if for ever.
    pub(crate) fn take(&mut self, now: u64, cost: Costs, longest: Option<u64>) -> Option<Result<(u64, u64), u64>> {
        self.pass(now);
        let at = self.all().ask(now, cost)?.at;
        if longest.is_some_and(|longest| at - now > longest) {
            return Some(Err(at - now));
        }
        self.ids += 1;
        let id = self.ids;
        if at - now >= LONG || !self.line.is_empty() {
            self.last = None;
            self.line.push(Waiter { id, asked: now, at, told: at, cost: Some(cost) });
        } else {
            self.last = Some(id);
            self.past.push(Event::Grant { id, asked: now, at, cost });
        }
        Some(Ok((at, id)))
    }

    /// A waiter looks: it is told the time that it has now.
    pub(crate) fn look(&mut self, now: u64, id: u64) -> Option<u64> {
        self.pass(now);
        let waiter = self.line.iter_mut().find(|waiter| waiter.id == id)?;
        waiter.told = waiter.at;
        Some(waiter.at)
    }

    /// A waiter leaves or is found dead, or what was granted is not used.
    pub(crate) fn leave(&mut self, now: u64, id: u64) {
        self.pass(now);
        if let Some(place) = self.line.iter().position(|waiter| waiter.id == id) {
            // Its time may have come behind one that did not look: others wait, so it gives nothing back.
            if self.line[place].told > now {
                self.line.remove(place);
                self.move_up(now);
            }
            return;
        }
        // Law 5: the last one given is undone; another is credited if no time lies ahead.
        let place = self.past.iter().position(|event| matches!(event, Event::Grant { id: of, .. } if *of == id));
        let Some(place) = place else { return };
        let Event::Grant { at, cost, .. } = self.past[place] else { return };
        if at > now && self.last.take_if(|last| *last == id).is_some() {
            self.past.remove(place);
        } else if self.all().latest() <= now {
            self.past.push(Event::Credit { now, at, cost });
        }
    }

    pub(crate) fn hold_until(&mut self, now: u64, until: u64) {
        self.pass(now);
        if until <= now {
            return;
        }
        // Rule: those who have an earlier time than the end of the hold keep it; nobody else moves before that end.
        if self.line.is_empty() {
            return self.past.push(Event::Hold { until });
        }
        let place = self.line.iter().position(|waiter| waiter.at > until).unwrap_or(self.line.len());
        self.line.insert(place, Waiter { id: 0, asked: now, at: until, told: until, cost: None });
        self.move_up(now);
    }

    pub(crate) fn set(&mut self, now: u64, limits: &[Limit], fresh: &[bool]) {
        self.pass_all(now);
        self.last = None;
        self.past.push(Event::Set { now, limits: limits.to_vec(), fresh: fresh.to_vec() });
        self.move_up(now);
    }

    /// Nobody waits any more; a hold stays, and so does whose time has come.
    pub(crate) fn clear(&mut self, now: u64) {
        self.pass(now);
        self.line.retain(|waiter| waiter.cost.is_none() || waiter.told <= now);
        self.pass(now);
    }

    /// Costs and waits of those who wait, in order.
    pub(crate) fn waiting(&self, now: u64) -> Vec<(u64, u64)> {
        let ahead = self.line.iter().filter(|waiter| waiter.told > now);
        let cost = |waiter: &Waiter| Some(waiter.cost?.largest(self.limits.len()));
        ahead.filter_map(|waiter| Some((cost(waiter)?, waiter.at.saturating_sub(now)))).collect()
    }

    /// How long a newcomer would wait for one unit.
    pub(crate) fn wait(&self, now: u64) -> Option<u64> {
        self.all().ask(now, 1).map(|granted| granted.at.saturating_sub(now))
    }

    /// Whose time has come is part of the past: the time that its owner knows, since it does not leave before. Rule: a
    /// hold that was set while others waited is one of those who wait until it ends.
    fn pass(&mut self, now: u64) {
        while let Some(first) = self.line.first().copied().filter(|first| first.told <= now) {
            self.line.remove(0);
            let Waiter { id, asked, at, cost, .. } = first;
            self.past.push(cost.map_or(Event::Hold { until: at }, |cost| Event::Grant { id, asked, at, cost }));
        }
    }

    /// Who should have looked since it moved, and did not, is behind those whose time has come.
    fn pass_all(&mut self, now: u64) {
        self.line.sort_by_key(|waiter| waiter.told > now);
        self.pass(now);
    }

    /// Law 5: each is charged as if those who left had never come, and never later than it was told. Rule: it finds that
    /// out within the time of a look, so it moves to no earlier time, and to no earlier time than it has if that is
    /// nearer.
    fn move_up(&mut self, now: u64) {
        self.pass_all(now);
        let mut limits = self.before_the_line();
        let held = self.line.iter().rposition(|waiter| waiter.cost.is_none()).unwrap_or(0);
        for (place, waiter) in self.line.iter_mut().enumerate() {
            let Some(cost) = waiter.cost else {
                limits.hold_until(waiter.at);
                continue;
            };
            // Rule: a cost that new limits never grant keeps its time.
            if place >= held
                && let Some(least) = limits.ask(waiter.asked, cost)
            {
                waiter.at = least.at.max(waiter.at.min(now + LOOK)).min(waiter.told);
            }
            limits.charge(waiter.asked, waiter.at, cost);
        }
        self.pass(now);
    }

    fn before_the_line(&self) -> Model {
        let mut limits = Model::new(&self.limits, self.made);
        for event in &self.past {
            match event {
                Event::Grant { asked, at, cost, .. } => limits.charge(*asked, *at, *cost),
                Event::Hold { until } => limits.hold_until(*until),
                Event::Set { now, limits: new, fresh } => limits.set(*now, new, fresh),
                Event::Credit { now, at, cost } => limits.credit(*now, *at, *cost),
            }
        }
        limits
    }

    fn all(&self) -> Model {
        let mut limits = self.before_the_line();
        for waiter in &self.line {
            match waiter.cost {
                None => limits.hold_until(waiter.at),
                Some(cost) => limits.charge(waiter.asked, waiter.at, cost),
            }
        }
        limits
    }
}
