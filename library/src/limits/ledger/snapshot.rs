//! A ledger as bytes: a log that was folded, and is shorter so.

use super::entry::{Charge, Entry};
use super::operation::{Counts, Recent};
use super::{Ledger, MOST, MOVED, RECENT, RUNS};
use crate::clock::Nanos;
use crate::limits::bytes::{Reader, Writer};
use crate::limits::policy::Policy;
use crate::limits::settling::Settling;
use crate::limits::state::{Entry as Counted, State};
use crate::limits::together::Limits;

impl Ledger {
    /// Appends the ledger as bytes.
    pub(crate) fn save(&self, to: &mut Writer) {
        to.text(&self.policy.to_lines());
        to.numbers(&[self.number, self.first, self.all.asked]);
        let Counts { since, granted, refused, given_back, waited } = self.counts;
        to.numbers(&[since, granted, refused, given_back, waited]);
        save_limits(&self.base, to);
        to.number(self.entries.len() as u64);
        let mut last = 0;
        self.entries.iter().for_each(|entry| save_entry(entry, &mut last, to));
        to.number(self.moved.len() as u64);
        self.moved.iter().for_each(|(number, at)| to.numbers(&[*number, *at]));
        to.number(self.recent.len() as u64);
        for recent in &self.recent {
            to.numbers(&[recent.owner[0], recent.owner[1], recent.sequence, recent.number, recent.at]);
        }
    }

    /// Reads what [`save`](Self::save) wrote; `None` for anything that is no ledger.
    pub(crate) fn load(from: &mut Reader<'_>) -> Option<Self> {
        let policy = Policy::from_lines(&from.text()?)?;
        let (number, first, asked) = (from.number()?, from.number()?, from.number()?);
        let mut count = || from.number();
        let counts =
            Counts { since: count()?, granted: count()?, refused: count()?, given_back: count()?, waited: count()? };
        let base = load_limits(&policy, from)?;
        let (length, mut last) = (from.length().filter(|length| *length <= 2 * MOST)?, 0);
        let entries = (0..length).map(|_| load_entry(&mut last, from)).collect::<Option<_>>()?;
        let length = from.length().filter(|length| *length <= MOVED)?;
        let moved = (0..length).map(|_| Some((from.number()?, from.number()?))).collect::<Option<_>>()?;
        let length = from.length().filter(|length| *length <= RECENT)?;
        let recent = |from: &mut Reader<'_>| {
            let owner = [from.number()?, from.number()?];
            Some(Recent { owner, sequence: from.number()?, number: from.number()?, at: from.number()? })
        };
        let recent = (0..length).map(|_| recent(from)).collect::<Option<_>>()?;
        let all = base.clone();
        let mut ledger = Ledger { policy, base, all, entries, number, first, moved, recent, counts };
        ledger.recharge(asked, false);
        Some(ledger)
    }
}

fn save_limits(limits: &Limits, to: &mut Writer) {
    to.numbers(&[limits.asked, limits.at]);
    for state in &limits.states {
        to.signed(state.level.amount);
        to.number(state.level.at);
        to.number(state.log().len() as u64);
        let mut last = 0;
        for entry in state.log() {
            to.time_after(&mut last, entry.at);
            to.number(entry.units);
        }
    }
    limits.settling.save(to);
}

fn load_limits(policy: &Policy, from: &mut Reader<'_>) -> Option<Limits> {
    let mut limits = Limits::new(policy, 0);
    (limits.asked, limits.at) = (from.number()?, from.number()?);
    for (terms, state) in limits.fixed.terms.iter().zip(&mut limits.states) {
        *state = State::new(from.signed()?, from.number()?);
        let (length, mut last, mut sum) = (from.length()?, 0, 0_i128);
        for _ in 0..length {
            let entry = Counted { at: from.time_after(&mut last)?, units: from.number()? };
            sum = sum.saturating_add(entry.units.into());
            state.log_mut().push_back(entry);
        }
        // Only a window has a log, and its amount is what stands there.
        let makes_sense = if terms.as_window().is_some() { state.level.amount == sum } else { length == 0 };
        makes_sense.then_some(())?;
    }
    limits.settling = Settling::load(limits.states.len(), from)?;
    Some(limits)
}

const ONE: u64 = 0;
const RUNS_KIND: u64 = 1;
const HOLD: u64 = 2;

fn save_entry(entry: &Entry, last: &mut Nanos, to: &mut Writer) {
    to.numbers(&[entry.number, entry.owner[0], entry.owner[1], entry.seen, entry.asked]);
    to.time_after(last, entry.at);
    match &entry.charge {
        Charge::One { costs, is_open, moves } => {
            to.numbers(&[ONE, (*is_open).into(), (*moves).into()]);
            to.list(costs);
        }
        Charge::Runs { runs, past } => {
            to.numbers(&[RUNS_KIND, *past, runs.len() as u64]);
            let mut last = 0;
            for (at, units) in runs {
                to.time_after(&mut last, *at);
                to.number(*units);
            }
        }
        Charge::Hold => to.number(HOLD),
    }
}

fn load_entry(last: &mut Nanos, from: &mut Reader<'_>) -> Option<Entry> {
    let (number, owner) = (from.number()?, [from.number()?, from.number()?]);
    let (seen, asked, at) = (from.number()?, from.number()?, from.time_after(last)?);
    let charge = match from.number()? {
        ONE => {
            let (is_open, moves) = (from.number()? == 1, from.number()? == 1);
            Charge::One { costs: from.list()?, is_open, moves }
        }
        RUNS_KIND => {
            let (past, length, mut last) = (from.number()?, from.length().filter(|length| *length <= RUNS)?, 0);
            let runs = (0..length).map(|_| Some((from.time_after(&mut last)?, from.number()?)));
            let runs: Vec<_> = runs.collect::<Option<_>>()?;
            runs.last().filter(|(time, _)| *time == at)?;
            Charge::Runs { runs, past }
        }
        HOLD => Charge::Hold,
        _ => return None,
    };
    Some(Entry { number, owner, seen, asked, at, charge })
}
