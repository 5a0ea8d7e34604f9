//! A ledger as bytes: a log that was folded, and is shorter so.

use super::entry::{Charge, Entry};
use super::operation::{Counts, Recent};
use super::{Ledger, MOST, MOVED, RECENT, RUNS};
use crate::clock::Nanos;
use crate::limits::bytes::{Format, Reader, Writer};
use crate::limits::policy::Policy;
use crate::limits::state::{Entry as Counted, State};
use crate::limits::terms::Terms;
use crate::limits::together::Limits;
use std::collections::VecDeque;

impl Ledger {
    /// Appends the ledger as bytes.
    pub(crate) fn save(&self, to: &mut Writer) {
        self.format(to);
    }

    /// Reads what [`save`](Self::save) wrote; `None` for anything that is no ledger.
    pub(crate) fn load(from: &mut Reader<'_>) -> Option<Self> {
        let mut ledger = Ledger::new(&Policy::default(), 0, 0).format(from)?;
        ledger.recharge(ledger.all.asked, false);
        Some(ledger)
    }

    /// Writes or reads all but the limits with the entries charged: of them, only when they were asked.
    fn format(&self, format: &mut impl Format) -> Option<Self> {
        let policy = self.policy.format(format)?;
        let [number, first, asked] = format.numbers([self.number, self.first, self.all.asked])?;
        let Counts { since, granted, refused, given_back, waited } = self.counts;
        let [since, granted, refused, given_back, waited] =
            format.numbers([since, granted, refused, given_back, waited])?;
        let blank = Limits::new(&policy, 0);
        let base = format_limits(if policy == self.policy { &self.base } else { &blank }, &blank, format)?;
        let (none, mut last) = (Entry { number: 0, owner: [0; 2], seen: 0, asked: 0, at: 0, charge: Charge::Hold }, 0);
        let entries: VecDeque<Entry> =
            format.each(&self.entries, &none, |format, entry| format_entry(entry, &mut last, format))?;
        let moved: VecDeque<_> = format
            .each(&self.moved, &(0, 0), |format, (number, at)| Some((format.number(*number)?, format.number(*at)?)))?;
        let none = Recent { owner: [0; 2], sequence: 0, number: 0, at: 0 };
        let recent: VecDeque<_> =
            format.each(&self.recent, &none, |format, Recent { owner, sequence, number, at }| {
                let [first, second, sequence, number, at] =
                    format.numbers([owner[0], owner[1], *sequence, *number, *at])?;
                Some(Recent { owner: [first, second], sequence, number, at })
            })?;
        let makes_sense =
            entries.len() <= 2 * MOST && moved.len() <= MOVED && recent.len() <= RECENT && !policy.is_empty();
        let mut all = base.clone();
        all.asked = asked;
        let counts = Counts { since, granted, refused, given_back, waited };
        makes_sense.then_some(Ledger { policy, base, all, entries, number, first, moved, recent, counts })
    }
}

/// Writes or reads limits. What is read takes the place of `blank`.
fn format_limits(limits: &Limits, blank: &Limits, format: &mut impl Format) -> Option<Limits> {
    let [asked, at] = format.numbers([limits.asked, limits.at])?;
    let states = blank.fixed.terms.iter().zip(&limits.states);
    let states = states.map(|(terms, state)| format_state(terms, state, format)).collect::<Option<Vec<_>>>()?;
    let settling = limits.settling.format(states.len(), format)?;
    let mut read = blank.clone();
    (read.asked, read.at, read.states, read.settling) = (asked, at, states, settling);
    Some(read)
}

fn format_state(terms: &Terms, state: &State, format: &mut impl Format) -> Option<State> {
    let mut read = State::new(format.signed(state.level.amount)?, format.number(state.level.at)?);
    let mut last = 0;
    let log: VecDeque<Counted> = format.each(state.log(), &Counted { at: 0, units: 0 }, |format, entry| {
        Some(Counted { at: format.time_after(&mut last, entry.at)?, units: format.number(entry.units)? })
    })?;
    let sum = log.iter().fold(0_i128, |sum, entry| sum.saturating_add(entry.units.into()));
    // Only a window has a log, and its amount is what stands there.
    let makes_sense = if terms.as_window().is_some() { read.level.amount == sum } else { log.is_empty() };
    if !log.is_empty() {
        *read.log_mut() = log;
    }
    makes_sense.then_some(read)
}

fn format_entry(entry: &Entry, last: &mut Nanos, format: &mut impl Format) -> Option<Entry> {
    let Entry { number, owner, seen, asked, at, charge } = entry;
    let [number, first, second, seen, asked] = format.numbers([*number, owner[0], owner[1], *seen, *asked])?;
    let at = format.time_after(last, *at)?;
    let charge = format_charge(charge, format)?;
    let makes_sense = match &charge {
        Charge::Runs { runs, .. } => runs.len() <= RUNS && runs.last().is_some_and(|(time, _)| *time == at),
        _ => true,
    };
    makes_sense.then_some(Entry { number, owner: [first, second], seen, asked, at, charge })
}

fn format_charge(charge: &Charge, format: &mut impl Format) -> Option<Charge> {
    let kinds = [
        Charge::One { costs: Box::default(), is_open: false, moves: false },
        Charge::Runs { runs: Vec::new(), past: 0 },
        Charge::Hold,
    ];
    let is_ours = |kind: &Charge| std::mem::discriminant(kind) == std::mem::discriminant(charge);
    let number = format.number(kinds.iter().position(is_ours)? as u64)?;
    let kind = kinds.get(usize::try_from(number).ok()?)?;
    Some(match if is_ours(kind) { charge } else { kind } {
        Charge::One { costs, is_open, moves } => {
            let (is_open, moves) = (format.flag(*is_open)?, format.flag(*moves)?);
            Charge::One { costs: format.list(costs)?, is_open, moves }
        }
        Charge::Runs { runs, past } => {
            let (past, mut last) = (format.number(*past)?, 0);
            let runs = format.each(runs, &(0, 0), |format, (at, units)| {
                Some((format.time_after(&mut last, *at)?, format.number(*units)?))
            });
            Charge::Runs { runs: runs?, past }
        }
        Charge::Hold => Charge::Hold,
    })
}
