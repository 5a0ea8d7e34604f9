//! The model of the line of a shared bucket: who waits for how long, reckoned anew from the whole history at each event.
//!
//! It is slow, and simple enough to check by reading. What the design leaves open is a rule here, with a comment.

use crate::model::{Costs, Limit, Model};

const SECOND: u64 = 1_000_000_000;

/// Who waits looks this often.
pub(crate) const LOOK: u64 = SECOND;

/// Rule: one that waits for as long as this may move up. A shorter wait may only behind others: otherwise nobody could leave
/// before.
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
    /// Whether it may move up. Rule: one that waits for long may; a shorter wait only behind others.
    moves: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct LineModel {
    limits: Vec<Limit>,
    made: u64,
    past: Vec<Event>,
    line: Vec<Waiter>,
    ids: u64,
}

impl LineModel {
    pub(crate) fn new(limits: &[Limit], made: u64) -> Self {
        LineModel { limits: limits.to_vec(), made, past: Vec::new(), line: Vec::new(), ids: 0 }
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
        let moves = at - now >= LONG || self.line.iter().any(|waiter| waiter.moves);
        if at > now || !self.line.is_empty() {
            self.line.push(Waiter { id, asked: now, at, told: at, cost: Some(cost), moves });
        } else {
            self.past.push(Event::Grant { id, asked: now, at, cost });
        }
        Some(Ok((at, id)))
    }

    /// A waiter looks for its time.
    pub(crate) fn look(&mut self, now: u64, id: u64) -> Option<u64> {
        self.pass(now);
        let waits = self.line.iter().find(|waiter| waiter.id == id).map(|waiter| waiter.at);
        waits.or_else(|| {
            self.past.iter().find_map(|event| match event {
                Event::Grant { id: of, at, .. } if *of == id => Some(*at),
                _ => None,
            })
        })
    }

    /// A waiter leaves or is found dead, or what was granted is not used.
    pub(crate) fn leave(&mut self, now: u64, id: u64) {
        self.pass(now);
        if let Some(place) = self.line.iter().position(|waiter| waiter.id == id) {
            // Its time may have come behind one that did not look: others wait, so it gives nothing back. Law 5: one that
            // cannot move is undone only if it was the last one given.
            let is_last = self.line[place + 1..].iter().all(|waiter| waiter.cost.is_none());
            if self.line[place].told > now && (self.line[place].moves || is_last) {
                self.line.remove(place);
                self.move_up(now);
            }
            return;
        }
        // Law 5: another is credited if no time lies ahead.
        let granted = self.past.iter().find_map(|event| match event {
            Event::Grant { id: of, at, cost, .. } if *of == id => Some((*at, *cost)),
            _ => None,
        });
        let Some((at, cost)) = granted else { return };
        if self.line.is_empty() {
            self.past.push(Event::Credit { now, at, cost });
        }
    }

    pub(crate) fn hold_until(&mut self, now: u64, until: u64) {
        self.pass(now);
        if until <= now {
            return;
        }
        // Rule: those who have an earlier time than the end of the hold keep it; nobody else moves before that end.
        let before = self.line.extract_if(.., |waiter| waiter.cost.is_none());
        let until = before.fold(until, |until, hold| until.max(hold.at));
        let place = self.line.iter().position(|waiter| waiter.at > until).unwrap_or(self.line.len());
        self.line.insert(place, Waiter { id: 0, asked: now, at: until, told: until, cost: None, moves: false });
        self.move_up(now);
    }

    pub(crate) fn set(&mut self, now: u64, limits: &[Limit], fresh: &[bool]) {
        self.pass_all(now);
        self.past.push(Event::Set { now, limits: limits.to_vec(), fresh: fresh.to_vec() });
        self.move_up(now);
    }

    /// Nobody waits any more, and no hold is left.
    pub(crate) fn clear(&mut self, now: u64) {
        self.pass_all(now);
        self.line.retain(|waiter| !waiter.moves && waiter.cost.is_some());
    }

    /// Costs and waits of those who wait, in order.
    pub(crate) fn waiting(&self, now: u64) -> Vec<(u64, u64)> {
        let ahead = self.line.iter().filter(|waiter| waiter.told > now && waiter.moves);
        let cost = |waiter: &Waiter| Some(waiter.cost?.largest(self.limits.len()));
        ahead.filter_map(|waiter| Some((cost(waiter)?, waiter.at.saturating_sub(now)))).collect()
    }

    /// How long a newcomer would wait for one unit.
    pub(crate) fn wait(&self, now: u64) -> Option<u64> {
        self.all().ask(now, 1).map(|granted| granted.at.saturating_sub(now))
    }

    /// Whose time has come is part of the past: the time that its owner knows, since it does not leave before. A
    /// hold is one of those who wait until it ends.
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
                && waiter.moves
                && let Some(least) = limits.ask(waiter.asked, cost)
            {
                waiter.at = least.at.max(waiter.at.min(now + LOOK)).min(waiter.told);
                waiter.told = waiter.at;
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
