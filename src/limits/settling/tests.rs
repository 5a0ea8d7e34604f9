//! Settling, beside a slow model that computes the whole history anew.

use super::*;
use crate::limits::bucket::Bucket;
use crate::limits::interval::Grid;
use crate::limits::policy::Policy;
use crate::limits::{Grant, Limits};
use crate::rate::Rate;
use proptest::prelude::*;
use std::num::NonZeroU64;

fn number(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

/// What is asked for: the numbers of a bucket, of whole refills or not, and those of a window beside it, if any.
#[derive(Clone, Copy, Debug)]
struct Asked {
    refills: bool,
    units: u64,
    period: u64,
    burst: u64,
    initial: u64,
    window: Option<(u64, u64)>,
}

impl Asked {
    fn limits(&self) -> Limits {
        let [units, period] = [self.units, self.period].map(number);
        let limits = match self.window {
            Some((count, period)) => {
                let limit = format!("{count}/{period}ns,window").parse().unwrap();
                Limits::new(&Policy::new(&[limit], None).unwrap(), 0)
            }
            None => Limits::none(0),
        };
        if self.refills {
            return limits.with_grid(Grid::new(units, period, self.burst, self.initial, 0));
        }
        limits.with_bucket(Bucket::new(Rate::new(units, period), number(self.burst), self.initial, 0))
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Time passes.
    Wait(u64),
    /// A grant of so many units, at its time or this much later; the last: whether it is open.
    Take(u64, u64, bool),
    /// A waiter wakes this late, and the time is lost.
    Late(u64, u64),
    Hold(u64),
    SetBurst(u64),
    Pay(u64),
    Credit(u64),
    /// A grant of so many units that is undone at once, if it lies ahead.
    Undone(u64),
    /// The open grant of this place cost that.
    Settle(usize, u64),
    /// The open grant of this place cost what it was charged.
    Forget(usize),
}

fn ops(with_window: bool) -> impl Strategy<Value = Vec<Op>> {
    let paid = u32::from(!with_window);
    let op = prop_oneof![
        4 => (0_u64..20).prop_map(Op::Wait),
        6 => (0_u64..16, 0_u64..3, any::<bool>()).prop_map(|(cost, late, open)| Op::Take(cost, late, open)),
        1 => (1_u64..12, 0_u64..9).prop_map(|(cost, late)| Op::Late(cost, late)),
        1 => (0_u64..9).prop_map(Op::Hold),
        1 => (1_u64..14).prop_map(Op::SetBurst),
        paid => (0_u64..6).prop_map(Op::Pay),
        paid => (0_u64..6).prop_map(Op::Credit),
        2 => (1_u64..16).prop_map(Op::Undone),
        5 => (any::<usize>(), 0_u64..18).prop_map(|(place, real)| Op::Settle(place, real)),
        1 => any::<usize>().prop_map(Op::Forget),
    ];
    prop::collection::vec(op, 1..40)
}

fn case() -> impl Strategy<Value = (Asked, Vec<Op>)> {
    let window = prop::option::weighted(0.3, (15_u64..40, 1_u64..60));
    let numbers = (any::<bool>(), 1_u64..6, 1_u64..8, 1_u64..14, 0_u64..14, window);
    let asked = numbers.prop_map(|(refills, units, period, burst, initial, window)| Asked {
        refills,
        units,
        period,
        burst,
        initial,
        window,
    });
    asked.prop_flat_map(|asked| (Just(asked), ops(asked.window.is_some())))
}

/// What happened to the bucket, with the real costs as far as they are known.
#[derive(Clone, Copy, Debug)]
enum Event {
    Granted { number: u64, asked: Nanos, at: Nanos, charged: u64, real: u64, gathered: i128 },
    Delayed { asked: Nanos, by: Nanos },
    Emptied(Nanos),
    Resized(Nanos, u64),
    Paid(Nanos, u64),
    Credited(Nanos, u64),
}

/// The level of the bucket after all that.
fn replayed(asked: &Asked, events: &[Event]) -> (i128, Nanos) {
    let price = |units: u64| if asked.refills { i128::from(units) } else { i128::from(units * price_of(asked)) };
    let gained = |from: Nanos, to: Nanos| {
        let ticks = to / asked.period - from / asked.period;
        i128::from(if asked.refills { ticks * asked.units } else { (to - from) * rate_of(asked).units() })
    };
    let mut full = price(asked.burst);
    let (mut level, mut time) = (price(asked.initial.min(asked.burst)), 0);
    for event in events {
        let until = match *event {
            Event::Granted { asked, .. } | Event::Delayed { asked, .. } => asked,
            Event::Emptied(now) | Event::Resized(now, _) | Event::Paid(now, _) | Event::Credited(now, _) => now,
        };
        if until > time {
            (level, time) = ((level + gained(time, until)).min(full), until);
        }
        match *event {
            Event::Granted { at, charged, real, gathered, .. } => {
                // It gathered until its time: up to a full bucket, or to what it did gather.
                level = (level + gained(time, at.max(time))).min(full.max(gathered));
                if real < charged {
                    level = level.min(full.max(price(real)));
                }
                (level, time) = (level - price(real), at.max(time));
            }
            Event::Delayed { by, .. } => time += by,
            Event::Emptied(until) if time <= until => level = level.min(0),
            Event::Emptied(_) => {}
            Event::Resized(_, burst) => {
                full = price(burst);
                level = level.min(full);
            }
            Event::Paid(_, units) => level -= price(units),
            Event::Credited(_, units) => level = level.max((level + price(units)).min(full)),
        }
    }
    (level, time)
}

fn rate_of(asked: &Asked) -> Rate {
    Rate::new(number(asked.units), number(asked.period))
}

fn price_of(asked: &Asked) -> u64 {
    rate_of(asked).period()
}

/// The limits, and all that happened to them.
struct Run {
    asked: Asked,
    limits: Limits,
    now: Nanos,
    events: Vec<Event>,
    open: Vec<Grant>,
    /// What the window counts: the number of the grant, from when, and how many units.
    counted: Vec<(u64, Nanos, u64)>,
}

impl Run {
    fn new(asked: Asked) -> Self {
        Run { limits: asked.limits(), asked, now: 0, events: vec![], open: vec![], counted: vec![] }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Wait(time) => self.now += time,
            Op::Take(cost, late, open) => self.take(cost, late, open),
            Op::Late(cost, late) => {
                let Ok((at, bound)) = self.limits.conforms_at(self.now, cost) else { return };
                if bound == Some(0) && !self.asked.refills {
                    self.events.push(Event::Delayed { asked: self.clock(), by: late });
                }
                let asked = self.clock();
                self.now = self.now.max(at + late);
                let grant = self.limits.take_not_before(self.now, asked, cost, at + late).unwrap();
                self.granted(asked, grant, false);
            }
            Op::Hold(time) => {
                let until = self.clock() + time;
                if time > 0 {
                    self.events.push(Event::Emptied(until));
                }
                self.limits.hold_until(self.now, until);
            }
            Op::SetBurst(burst) => {
                self.events.push(Event::Resized(self.clock(), burst));
                self.limits.set_burst(self.now, 0, number(burst));
            }
            // Shrinking may come to what was left out.
            Op::Pay(_) | Op::Credit(_) if self.limits.terms.len() > 1 => {}
            Op::Pay(units) => {
                self.events.push(Event::Paid(self.clock(), units));
                self.limits.pay(self.clock(), units);
            }
            // Above a full bucket nothing is credited: see the list in `settling.rs`.
            Op::Credit(_) if self.limits.states[0].level.amount > self.limits.terms[0].kind().unwrap().full() => {}
            Op::Credit(units) => {
                self.events.push(Event::Credited(self.clock(), units));
                self.limits.credit(self.clock(), units);
            }
            Op::Undone(cost) => {
                let Ok((at, _)) = self.limits.conforms_at(self.now, cost) else { return };
                if at > self.clock() {
                    let grant = self.limits.take(self.now, cost).unwrap();
                    self.limits.give_back(self.now, &grant);
                }
            }
            Op::Settle(place, real) => self.settle(place, real),
            Op::Forget(place) if !self.open.is_empty() => {
                let grant = self.open.remove(place % self.open.len());
                self.limits.forget(&grant);
            }
            Op::Forget(_) => {}
        }
    }

    fn clock(&self) -> Nanos {
        self.limits.in_order(self.now)
    }

    fn take(&mut self, cost: u64, late: u64, open: bool) {
        let Ok((at, _)) = self.limits.conforms_at(self.now, cost) else { return };
        let asked = self.clock();
        let grant = self.limits.promise_at(self.now, asked, at + late, cost);
        self.granted(asked, grant, open);
    }

    fn granted(&mut self, asked: Nanos, grant: Grant, open: bool) {
        if grant.units == 0 {
            return;
        }
        let gathered = self.limits.states[0].level.amount + self.limits.terms[0].kind().unwrap().price(grant.units);
        let (number, at, charged) = (grant.number, grant.at, grant.units);
        self.events.push(Event::Granted { number, asked, at, charged, real: charged, gathered });
        self.counted.push((number, grant.counted, charged));
        if open {
            self.limits.open(&grant, grant.units);
            self.open.push(grant);
        }
    }

    fn settle(&mut self, place: usize, cost: u64) {
        if self.open.is_empty() {
            return;
        }
        let grant = self.open.remove(place % self.open.len());
        for event in &mut self.events {
            match event {
                Event::Granted { number, real, .. } if *number == grant.number => *real = cost,
                _ => {}
            }
        }
        if let Some(entry) = self.counted.iter_mut().find(|entry| entry.0 == grant.number) {
            entry.2 = cost;
        }
        self.limits.settle(self.now, &grant, [grant.units, cost]);
    }

    fn check(&self) {
        let Level { amount, at } = self.limits.states[0].level;
        assert_eq!((amount, at), replayed(&self.asked, &self.events), "{:#?}", self.events);
        let Some(window) = self.limits.terms.get(1).and_then(Terms::as_window) else { return };
        // Nothing is granted before the end of a hold, so what no longer counts then may have been forgotten.
        let time = self.clock().max(self.limits.states[1].level.at).max(self.limits.at);
        let live = |at: Nanos| at + window.period() > time;
        let mut expected: Vec<(Nanos, u64)> = vec![];
        for &(_, at, units) in self.counted.iter().filter(|(_, at, units)| live(*at) && *units > 0) {
            match expected.last_mut().filter(|last| last.0 == at) {
                Some(last) => last.1 += units,
                None => expected.push((at, units)),
            }
        }
        let log = self.limits.states[1].log().iter().filter(|entry| live(entry.at));
        assert_eq!(log.map(|entry| (entry.at, entry.units)).collect::<Vec<_>>(), expected);
    }
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases.unwrap_or(2000)) }
}

proptest! {
    #![proptest_config(cases())]

    /// Law 11.
    #[test]
    fn settled_grants_leave_the_limits_as_if_they_had_cost_that_from_the_start((asked, ops) in case()) {
        let mut run = Run::new(asked);
        for op in ops {
            run.apply(op);
            run.check();
        }
        for grant in std::mem::take(&mut run.open) {
            run.limits.forget(&grant);
        }
        prop_assert!(run.limits.settling.is_empty());
    }
}
