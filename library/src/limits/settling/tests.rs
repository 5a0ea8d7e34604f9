//! Compares settling with a slow model that recalculates the whole history.

use super::*;
use crate::limits::bucket::Bucket;
use crate::limits::each::{Charged, Each, Form, Thin};
use crate::limits::policy::Policy;
use crate::limits::state::Level;
use crate::limits::{Grant, Limits};
use crate::rate::Rate;
use crate::rounds::rounds;
use proptest::prelude::*;
use std::num::NonZeroU64;

fn number(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

/// The numbers of a bucket, with whole refills or not, and the count and period of a window, if there is one.
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
            return limits.with_bucket(Bucket::on_grid(units, period, self.burst, self.initial, 0));
        }
        limits.with_bucket(Bucket::new(Rate::new(units, period), number(self.burst), self.initial, 0))
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Time passes.
    Wait(u64),
    /// A grant of these units, at its time or this much later. The flag: whether it is open.
    Take(u64, u64, bool),
    /// A waiter wakes this late, and the time is lost.
    Late(u64, u64),
    Hold(u64),
    SetBurst(u64),
    Pay(u64),
    Credit(u64),
    /// The open grant at this index gets this real cost.
    Settle(usize, u64),
    /// The open grant at this index cost its charge.
    Forget(usize),
    /// Only this many grants stay open. The older ones cost their charges.
    Keep(usize),
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
        5 => (any::<usize>(), 0_u64..18).prop_map(|(place, real)| Op::Settle(place, real)),
        1 => any::<usize>().prop_map(Op::Forget),
        1 => (0_usize..5).prop_map(Op::Keep),
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

/// An event of the bucket, with the real cost if it is known.
#[derive(Clone, Copy, Debug)]
enum Event {
    Granted { number: u64, asked: Nanos, at: Nanos, charged: u64, real: u64, gathered: i128 },
    Delayed { asked: Nanos, by: Nanos },
    Emptied(Nanos),
    Resized(Nanos, u64),
    Paid(Nanos, u64),
    Credited(Nanos, u64),
}

/// The level of the bucket after these events.
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
                // It gathered until its time: up to a full bucket, or up to the amount that it really gathered.
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

/// The limits, and all their events.
struct Run {
    asked: Asked,
    limits: Limits,
    now: Nanos,
    events: Vec<Event>,
    open: Vec<Grant>,
    /// The entries of the window: the number of the grant, the time from which it counts, and its units.
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
                if until > self.clock() {
                    self.limits.hold(until);
                }
            }
            Op::SetBurst(burst) => {
                self.events.push(Event::Resized(self.clock(), burst));
                self.limits.set_burst(self.now, 0, number(burst));
            }
            // The strategy excludes these operations if there is a window, but shrinking may still produce them.
            Op::Pay(_) | Op::Credit(_) if self.limits.fixed.terms.len() > 1 => {}
            Op::Pay(units) => {
                self.events.push(Event::Paid(self.clock(), units));
                self.limits.pay(self.clock(), units);
            }
            // Above a full bucket nothing is credited: see the list in `settling.rs`.
            Op::Credit(_) if self.limits.states[0].level.amount > self.bucket().full() => {}
            Op::Credit(units) => {
                self.events.push(Event::Credited(self.clock(), units));
                self.limits.credit(self.clock(), units);
            }
            Op::Settle(place, real) => self.settle(place, real),
            Op::Forget(place) if !self.open.is_empty() => {
                let grant = self.open.remove(place % self.open.len());
                self.limits.forget(&grant);
            }
            Op::Forget(_) => {}
            Op::Keep(most) => {
                self.open.drain(..self.open.len().saturating_sub(most));
                self.limits.settling.keep(most);
            }
        }
    }

    fn clock(&self) -> Nanos {
        self.limits.in_order(self.now)
    }

    fn bucket(&self) -> bucket::Terms {
        let Terms::Bucket(bucket) = self.limits.fixed.terms[0] else { unreachable!() };
        bucket
    }

    fn take(&mut self, cost: u64, late: u64, open: bool) {
        let Ok((at, _)) = self.limits.conforms_at(self.now, cost) else { return };
        let asked = self.clock();
        let grant = self.limits.charge(asked, [at + late; 2], cost);
        self.granted(asked, grant, open);
    }

    fn granted(&mut self, asked: Nanos, grant: Grant, open: bool) {
        if grant.units == 0 {
            return;
        }
        let gathered = self.limits.states[0].level.amount + self.bucket().price(grant.units);
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
        let open = self.limits.settling.open.iter().map(|open| open.number);
        assert!(open.eq(self.open.iter().map(|grant| grant.number)), "{:#?}", self.open);
        let Level { amount, at } = self.limits.states[0].level;
        assert_eq!((amount, at), replayed(&self.asked, &self.events), "{:#?}", self.events);
        let Some(window) = self.limits.fixed.terms.get(1).and_then(Terms::as_window) else { return };
        // Nothing is granted before the end of a hold, so units that no longer count then may have been dropped.
        let time = self.clock().max(self.limits.states[1].level.at).max(self.limits.at);
        check_log(&self.limits.states[1], &self.counted, |at| at + window.period() > time);
    }
}

/// The log of a window has all units that still count: the number of each grant, the time from which it counts, and its
/// units.
fn check_log(state: &State, counted: &[(u64, Nanos, u64)], counts: impl Fn(Nanos) -> bool) {
    let mut expected: Vec<(Nanos, u64)> = vec![];
    for &(_, at, units) in counted.iter().filter(|(_, at, units)| counts(*at) && *units > 0) {
        match expected.last_mut().filter(|last| last.0 == at) {
            Some(last) => last.1 += units,
            None => expected.push((at, units)),
        }
    }
    let log = state.log().iter().filter(|entry| counts(entry.at));
    assert_eq!(log.map(|entry| (entry.at, entry.units)).collect::<Vec<_>>(), expected);
}

#[derive(Clone, Copy, Debug)]
enum KeyOp {
    Wait(u64),
    /// A unit with these costs that has waited for the first time, and leaves later than possible by the second. The
    /// flag: whether its grant is open.
    Take([u64; 2], u64, u64, bool),
    /// The latest unit that left is handed over.
    HandOver,
    Hold(u64),
    /// The open grant at this index gets this real cost.
    Settle(usize, [u64; 2]),
    /// The open grant at this index cost its charge.
    Forget(usize),
}

fn key_ops() -> impl Strategy<Value = Vec<KeyOp>> {
    let costs = |most: u64| prop_oneof![3 => (0..most, 0..most).prop_map(<[u64; 2]>::from), 1 => (0..most).prop_map(|cost| [0, cost])];
    let op = prop_oneof![
        4 => (0_u64..20).prop_map(KeyOp::Wait),
        6 => (costs(16), 0_u64..6, 0_u64..3, any::<bool>())
            .prop_map(|(costs, waited, late, opens)| KeyOp::Take(costs, waited, late, opens)),
        2 => Just(KeyOp::HandOver),
        1 => (1_u64..9).prop_map(KeyOp::Hold),
        5 => (any::<usize>(), costs(18)).prop_map(|(place, real)| KeyOp::Settle(place, real)),
        1 => any::<usize>().prop_map(KeyOp::Forget),
    ];
    prop::collection::vec(op, 1..40)
}

/// The limits of a key, and all their events. The bucket counts the first kind of cost, the window the second.
struct KeyRun {
    asked: Asked,
    each: Each,
    thin: Thin,
    now: Nanos,
    events: Vec<Event>,
    left: Option<(Charged, [u64; 2])>,
    open: Vec<(Charged, [u64; 2])>,
    counted: Vec<(u64, Nanos, u64)>,
    grants: u64,
}

impl KeyRun {
    fn new(asked: Asked) -> Self {
        let Asked { units, period, burst, initial, window, .. } = asked;
        let policy = |limit: String| Policy::new(&[limit.parse().unwrap()], None).unwrap();
        let bucket = policy(format!("{units}/{period}ns,burst={burst},initial={}", initial.min(burst)));
        let window = window.map(|(count, period)| policy(format!("{count}/{period}ns,window")));
        let policies: Vec<_> = [&bucket].into_iter().chain(&window).zip(0..).collect();
        let each = Each::new(&policies, 0);
        let (events, open, counted) = (vec![], vec![], vec![]);
        KeyRun { asked, thin: each.fresh(), each, now: 0, events, left: None, open, counted, grants: 0 }
    }

    fn apply(&mut self, op: KeyOp) {
        match op {
            KeyOp::Wait(time) => self.now += time,
            KeyOp::Take(costs, waited, late, opens) => self.take(costs, self.now.saturating_sub(waited), late, opens),
            KeyOp::HandOver => self.hand_over(),
            KeyOp::Hold(time) => {
                self.events.push(Event::Emptied(self.now + time));
                self.each.empty(&mut self.thin, self.now + time);
            }
            KeyOp::Settle(..) | KeyOp::Forget(_) if self.open.is_empty() => {}
            KeyOp::Settle(place, real) => self.settle(place, |_| real),
            KeyOp::Forget(place) => self.settle(place, |charged| charged),
        }
    }

    fn take(&mut self, costs: [u64; 2], asked: Nanos, late: u64, opens: bool) {
        let Some((at, _)) = self.each.conforms_at(&self.thin, asked, &costs) else { return };
        let at = at + late;
        self.now = self.now.max(at);
        self.grants += 1;
        let grant = Charged { at, counted: self.now, number: self.grants };
        self.each.charge(&mut self.thin, [at, asked, at, grant.counted], &costs);
        self.left = Some((grant, costs));
        self.counted.push((grant.number, grant.counted, costs[1]));
        if opens {
            self.each.open(&mut self.thin, grant, &costs);
            self.open.push((grant, costs));
        }
        if opens || costs[0] > 0 {
            let gathered = self.level().amount + i128::from(costs[0] * price_of(&self.asked));
            let (number, charged) = (grant.number, costs[0]);
            let asked = if charged > 0 { asked } else { at };
            self.events.push(Event::Granted { number, asked, at, charged, real: charged, gathered });
        }
    }

    fn hand_over(&mut self) {
        let Some((grant, costs)) = self.left.take() else { return };
        self.each.hand_over(&mut self.thin, grant, &costs, self.now);
        let Some((count, period)) = self.asked.window else { return };
        let counts = |at: Nanos| self.now - at < period;
        let held: u64 = self.counted.iter().filter(|entry| counts(entry.1)).map(|entry| entry.2).sum();
        let place = self.counted.iter().position(|entry| entry.0 == grant.number).unwrap();
        if counts(grant.counted) || costs[1] == 0 || held + costs[1] <= count {
            let entry = self.counted.remove(place);
            self.counted.push((entry.0, self.now, entry.2));
        }
    }

    fn settle(&mut self, place: usize, real: impl Fn([u64; 2]) -> [u64; 2]) {
        let (grant, costs) = self.open.remove(place % self.open.len());
        let settled = real(costs);
        self.each.settle(&mut self.thin, self.now, grant, [&costs, &settled]);
        self.left = self.left.filter(|left| left.0 != grant);
        for event in &mut self.events {
            match event {
                Event::Granted { number, real, .. } if *number == grant.number => *real = settled[0],
                _ => {}
            }
        }
        self.counted.iter_mut().filter(|entry| entry.0 == grant.number).for_each(|entry| entry.2 = settled[1]);
    }

    fn level(&self) -> Level {
        self.thin.with(|states| states[0].level)
    }

    fn check(&self) {
        let Level { amount, at } = self.level();
        // A unit of cost 0 does not change a limit, unless it is settled at more.
        let is_free = |event: &Event| matches!(event, Event::Granted { charged: 0, real: 0, .. });
        let events: Vec<_> = self.events.iter().filter(|event| !is_free(event)).copied().collect();
        let (expected, time) = replayed(&self.asked, &events);
        let burst = i128::from(self.asked.burst * price_of(&self.asked));
        let forward = |level: i128, from: Nanos| {
            let gained = i128::from((at.max(time) - from) * rate_of(&self.asked).units());
            if gained > 0 { (level + gained).min(burst) } else { level }
        };
        assert_eq!(forward(amount, at), forward(expected, time), "at {at} and {time}: {events:#?}");
        if let Some((_, period)) = self.asked.window {
            self.thin.with(|states| check_log(&states[1], &self.counted, |at| at + period > self.now));
        }
        assert_eq!(matches!(self.thin, Thin(Form::Open(_))), !self.open.is_empty());
    }
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(rounds(2000)) }
}

proptest! {
    #![proptest_config(cases())]

    /// Law 11: settled means as if.
    #[test]
    fn settled_grants_equal_charges_of_the_real_costs((asked, ops) in case()) {
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

    /// Law 11, across a change of the rate: rooms are then rounded down, by less than a nanosecond's worth each.
    #[test]
    fn settling_before_or_after_a_new_rate_is_the_same(
        (asked, ops) in case(),
        (units, period) in (1_u64..40, 1_u64..40),
        real in 0_u64..18,
    ) {
        let mut run = Run::new(Asked { window: None, refills: false, ..asked });
        for op in ops {
            run.apply(op);
        }
        let set = |limits: &mut Limits| limits.set_rate(run.now, 0, Rate::new(number(units), number(period)));
        let settle = |limits: &mut Limits| {
            for grant in &run.open {
                limits.settle(run.now, grant, [grant.units, real]);
            }
        };
        let mut limits = [run.limits.clone(), run.limits.clone()];
        settle(&mut limits[0]);
        set(&mut limits[0]);
        set(&mut limits[1]);
        settle(&mut limits[1]);
        let [before, after] = limits.map(|limits| limits.states[0].level);
        let (amount, at) = (after.amount, after.at);
        let rounded = 2 * run.open.len() as i128;
        prop_assert_eq!({ before.at }, at);
        prop_assert!(
            (before.amount - rounded..=before.amount).contains(&amount),
            "{:?} and {:?}, rounded by {}", before, after, rounded
        );
    }

    /// Settlings as read from a file or a server.
    #[cfg(feature = "shared")]
    #[test]
    fn open_grants_have_sense_if_they_are_of_all_limits(
        grants in prop::collection::vec((0_u64..6, 1_usize..3), 0..5),
        limits in 1_usize..3,
    ) {
        let open = |(number, parts)| {
            let part = || Part { charged: 1, counted: 0, gathered: 0, full: 0, since: Gap::NONE };
            Open { number, parts: (0..parts).map(|_| part()).collect() }
        };
        let expected = grants.iter().filter(|grant| grant.1 == limits).count() == grants.len();
        let settling = Settling { open: grants.into_iter().map(open).collect() };
        prop_assert_eq!(settling.has_sense(limits), expected);
    }

    /// Law 11, for the limits of a key, and for the overall limits.
    #[test]
    fn settled_grants_of_a_key_equal_charges_of_the_real_costs(
        (asked, _) in case(),
        ops in key_ops(),
    ) {
        let mut run = KeyRun::new(Asked { refills: false, ..asked });
        for op in ops {
            run.apply(op);
            run.check();
        }
    }
}

#[test]
fn a_forgotten_grant_is_credited_unless_a_later_one_lies_ahead() {
    let terms = Terms::Bucket(Bucket::new(Rate::new(number(1), number(1)), number(9), 0, 0).terms);
    for (latest, granted, now, expected) in [(5, 5, 7, (5, 7)), (10, 5, 7, (0, 10)), (5, 10, 7, (0, 5))] {
        let mut state = State::from(Level { amount: 0, at: latest });
        settle_forgotten(&terms, &mut state, now, [granted; 2], [6, 1]);
        assert_eq!(({ state.level.amount }, { state.level.at }), expected);
    }
}

#[cfg(feature = "shared")]
#[test]
fn more_open_grants_than_are_kept_have_no_sense() {
    let open = |number| Open { number, parts: Box::default() };
    let of = |count: u64| Settling { open: (0..count).map(open).collect() };
    assert!(of(MAX_OPEN as u64).has_sense(0) && !of(MAX_OPEN as u64 + 1).has_sense(0));
}
