//! Compares settling with a slow model that recalculates the whole history.

use super::*;
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::bucket::{self, Bucket};
use crate::limits::levels::{Form, Levels};
use crate::limits::policy::Policy;
use crate::limits::state::{Level, State};
use crate::limits::terms::Terms;
use crate::limits::{Account, Charged, Grant, Limits};
use crate::rate::Rate;
use crate::rounds::rounds;
use proptest::prelude::*;
use std::num::NonZeroU64;

fn state(account: &Account, place: usize) -> State {
    account.levels.to_vec().swap_remove(place)
}

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
    fn account(&self) -> Account {
        let [units, period] = [self.units, self.period].map(number);
        let limits = match self.window {
            Some((count, period)) => {
                let limit = format!("{count}/{period}ns,window").parse().unwrap();
                Limits::new(&[(&Policy::new(&[limit], None).unwrap(), 0)], 0)
            }
            None => Limits::none(),
        };
        let bucket = if self.refills {
            Bucket::on_grid(units, period, self.burst, self.initial, 0)
        } else {
            Bucket::new(Rate::new(units, period), number(self.burst), self.initial, 0)
        };
        Account::of(limits.with_bucket(bucket), 0)
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
    /// Another rate: these units in the same period.
    SetRate(u64),
    /// A reservation of these units is used this much before the limits conform.
    Early(u64, u64),
    /// A waiter for these units gathers credit, for this long before now.
    Gather(u64, u64),
    /// No waiter remains.
    Spill,
    Pay(u64),
    Credit(u64),
    /// The open grant at this index gets this real cost.
    Settle(usize, u64),
    /// The open grant at this index cost its charge.
    Forget(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0_u64..20).prop_map(Op::Wait),
        6 => (0_u64..16, 0_u64..3, any::<bool>()).prop_map(|(cost, late, open)| Op::Take(cost, late, open)),
        1 => (1_u64..12, 0_u64..9).prop_map(|(cost, late)| Op::Late(cost, late)),
        1 => (0_u64..9).prop_map(Op::Hold),
        1 => (1_u64..14).prop_map(Op::SetBurst),
        1 => (1_u64..40).prop_map(Op::SetRate),
        1 => (1_u64..16, 1_u64..9).prop_map(|(cost, early)| Op::Early(cost, early)),
        2 => (0_u64..30, 0_u64..20).prop_map(|(cost, waited)| Op::Gather(cost, waited)),
        1 => Just(Op::Spill),
        1 => (0_u64..6).prop_map(Op::Pay),
        1 => (0_u64..6).prop_map(Op::Credit),
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
    asked.prop_flat_map(|asked| (Just(asked), ops()))
}

/// An event of the bucket, with the real cost if it is known.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request gathered up to `gathered` if that is above a full bucket. A reservation that was used too early left
    /// `least`, which is `given` more than it would have left.
    Granted {
        number: u64,
        asked: Nanos,
        at: Nanos,
        charged: u64,
        real: u64,
        gathered: i128,
        early: Option<(i128, i128)>,
    },
    Delayed {
        asked: Nanos,
        by: Nanos,
    },
    Emptied(Nanos),
    Resized(Nanos, u64),
    Paid(Nanos, u64),
    /// Units are credited to a bucket that holds the amount.
    Credited(Nanos, u64, i128),
    /// The units of another rate, from this time on.
    Rated(Nanos, u64),
    Gathered(Nanos, Nanos, u64),
    Spilled(Nanos),
}

/// The level of the bucket after these events.
fn replayed(asked: &Asked, events: &[Event]) -> (i128, Nanos) {
    let price = |units: u64| if asked.refills { i128::from(units) } else { i128::from(units * price_of(asked)) };
    let (mut units, mut start) = (asked.units, 0);
    let gained_at = |units: u64, start: Nanos, from: Nanos, to: Nanos| {
        let ticks = |time: Nanos| time.saturating_sub(start) / asked.period;
        let rate = Rate::new(number(units), number(asked.period));
        i128::from(if asked.refills { (ticks(to) - ticks(from)) * units } else { (to - from) * rate.units() })
    };
    let mut full = price(asked.burst);
    let (mut level, mut time) = (price(asked.initial.min(asked.burst)), 0);
    for event in events {
        let until = match *event {
            Event::Granted { asked, .. } | Event::Delayed { asked, .. } => asked,
            Event::Emptied(now)
            | Event::Resized(now, _)
            | Event::Rated(now, _)
            | Event::Spilled(now)
            | Event::Paid(now, _)
            | Event::Credited(now, ..) => now,
            Event::Gathered(now, requested, _) => {
                if now > requested.max(time) {
                    requested
                } else {
                    0
                }
            }
        };
        let gained = |from, to| gained_at(units, start, from, to);
        if until > time {
            (level, time) = ((level + gained(time, until)).min(full), until);
        }
        match *event {
            Event::Granted { at, charged, real, gathered, early, .. } => {
                // It gathered until its time: up to a full bucket, or up to the amount that it really gathered.
                level = (level + gained(time, at.max(time))).min(full.max(gathered));
                if let Some((least, given)) = early {
                    level = (level + given).min(least + price(charged));
                }
                if real < charged {
                    level = level.min(full.max(price(real)));
                }
                (level, time) = (level - price(real), at.max(time));
            }
            Event::Delayed { by, .. } => time += by,
            Event::Emptied(until) if time <= until => level = level.min(0),
            Event::Resized(_, burst) => {
                full = price(burst);
                level = level.min(full);
            }
            Event::Paid(_, units) => level -= price(units),
            Event::Credited(_, units, before) if units > 0 => level = (level + price(units)).min(full.max(before)),
            Event::Rated(now, other) => (units, start) = (other, now.max(time)),
            Event::Gathered(now, requested, cost) if now > requested.max(time) => {
                (level, time) = ((level + gained(time, now)).min(full.max(price(cost))), now);
            }
            Event::Emptied(_) | Event::Credited(..) | Event::Gathered(..) => {}
            Event::Spilled(_) => level = level.min(full),
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
    account: Account,
    now: Nanos,
    events: Vec<Event>,
    open: Vec<Grant>,
    /// The entries of the window: the number of the grant, the time from which it counts, and its units.
    counted: Vec<(u64, Nanos, u64)>,
}

impl Run {
    fn new(asked: Asked) -> Self {
        Run { account: asked.account(), asked, now: 0, events: vec![], open: vec![], counted: vec![] }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Wait(time) => self.now += time,
            Op::Take(cost, late, open) => self.take(cost, late, open),
            Op::Late(cost, late) => {
                let Ok((at, bound)) = self.account.conforms_at(self.now, cost) else { return };
                if bound == Some(0) && !self.asked.refills {
                    self.events.push(Event::Delayed { asked: self.clock(), by: late });
                }
                let (asked, level) = (self.clock(), self.state(0).level);
                self.now = self.now.max(at + late);
                let grant = self.account.take_not_before(self.now, asked, cost, at + late).unwrap();
                let mut before = State::from(level);
                if bound == Some(0) && late > 0 {
                    self.bucket().delay(&mut before, asked, late);
                }
                self.granted(asked, before.level, grant, false);
            }
            Op::Hold(time) => {
                let until = self.clock() + time;
                if time > 0 {
                    self.events.push(Event::Emptied(until));
                }
                if until > self.clock() {
                    self.account.at = self.account.at.max(until);
                    self.account.empty(until);
                }
            }
            Op::SetBurst(burst) => {
                self.events.push(Event::Resized(self.clock(), burst));
                self.account.set_burst(self.now, 0, number(burst));
            }
            // Beside a window, the model does not know from when these units count.
            Op::Pay(_) | Op::Credit(_) if self.account.limits.terms.len() > 1 => {}
            Op::Pay(units) => {
                self.events.push(Event::Paid(self.clock(), units));
                let now = self.clock();
                self.account.pay(now, units);
            }
            Op::Credit(units) => {
                let mut before = State::from(self.state(0).level);
                self.bucket().advance(&mut before, self.clock());
                self.events.push(Event::Credited(self.clock(), units, before.level.amount));
                let now = self.clock();
                self.account.credit(now, units);
            }
            Op::SetRate(units) => {
                let rate = Rate::new(number(units), number(self.asked.period));
                // A grid counts in units. Otherwise the price of a unit stays, so nothing is rounded.
                if self.asked.refills || rate.period() == price_of(&self.asked) {
                    self.events.push(Event::Rated(self.clock(), units));
                    self.account.set_rate(self.now, 0, rate);
                }
            }
            Op::Early(cost, early) => {
                let Ok((at, _)) = self.account.conforms_at(self.now, cost) else { return };
                let (asked, level) = (self.clock(), self.state(0).level);
                let at = at.saturating_sub(early).max(asked).max(self.account.at);
                let grant = self.account.charge(asked, [at; 2], cost);
                self.granted(asked, level, grant, true);
            }
            Op::Gather(cost, waited) => {
                let requested = self.clock().saturating_sub(waited);
                self.events.push(Event::Gathered(self.clock(), requested, cost));
                self.account.gather(self.clock(), requested, cost);
            }
            Op::Spill => {
                self.events.push(Event::Spilled(self.clock()));
                self.account.spill(self.clock(), 0_u64);
            }
            Op::Settle(place, real) => self.settle(place, real),
            Op::Forget(place) if !self.open.is_empty() => {
                let grant = self.open.remove(place % self.open.len());
                self.account.close(grant.number);
            }
            Op::Forget(_) => {}
        }
    }

    fn state(&self, place: usize) -> State {
        state(&self.account, place)
    }

    fn clock(&self) -> Nanos {
        self.account.in_order(self.now)
    }

    fn bucket(&self) -> bucket::Terms {
        let Terms::Bucket(bucket) = self.account.limits.terms[0] else { unreachable!() };
        bucket
    }

    fn take(&mut self, cost: u64, late: u64, open: bool) {
        let Ok((at, _)) = self.account.conforms_at(self.now, cost) else { return };
        let (asked, level) = (self.clock(), self.state(0).level);
        let grant = self.account.charge(asked, [at + late; 2], cost);
        self.granted(asked, level, grant, open);
    }

    /// Notes a grant. The bucket had this level before.
    fn granted(&mut self, asked: Nanos, level: Level, grant: Grant, open: bool) {
        if grant.units == 0 {
            return;
        }
        let (number, at, charged) = (grant.number, grant.at, grant.units);
        let (least, price) = (self.state(0).level.amount, self.bucket().price(charged));
        let mut before = State::from(level);
        self.bucket().advance(&mut before, asked);
        let latest = before.level.at;
        let given = least + price - before.level.amount - self.bucket().gained(latest, at.max(latest));
        let (early, gathered) = if given > 0 { (Some((least, given)), 0) } else { (None, least + price) };
        let gathered = if early.is_some() { least + price - given } else { gathered };
        self.events.push(Event::Granted { number, asked, at, charged, real: charged, gathered, early });
        self.counted.push((number, grant.counted, charged));
        if open {
            self.account.open(&grant, grant.units);
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
        self.account.settle(self.now, &grant, [grant.units, cost]);
    }

    fn check(&self) {
        let bucket = self.state(0);
        let open = bucket.open().into_iter().flat_map(|open| &open.blocks).map(|block| block.number);
        assert!(open.eq(self.open.iter().map(|grant| grant.number)), "{:#?}", self.open);
        assert!(self.state(0).open().is_none_or(Opened::has_sense));
        let Level { amount, at } = self.state(0).level;
        assert_eq!((amount, at), replayed(&self.asked, &self.events), "{:#?}", self.events);
        let Some(window) = self.account.limits.terms.get(1).and_then(Terms::as_window) else { return };
        // Nothing is granted before the end of a hold, so units that no longer count then may have been dropped.
        let time = self.clock().max(self.state(1).level.at).max(self.account.at);
        check_log(&self.state(1), &self.counted, |at| at + window.period() > time);
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
    each: Limits,
    levels: Levels,
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
        let each = Limits::new(&policies, 0);
        let (events, open, counted) = (vec![], vec![], vec![]);
        KeyRun { asked, levels: each.fresh(), each, now: 0, events, left: None, open, counted, grants: 0 }
    }

    fn apply(&mut self, op: KeyOp) {
        match op {
            KeyOp::Wait(time) => self.now += time,
            KeyOp::Take(costs, waited, late, opens) => self.take(costs, self.now.saturating_sub(waited), late, opens),
            KeyOp::HandOver => self.hand_over(),
            KeyOp::Hold(time) => {
                self.events.push(Event::Emptied(self.now + time));
                self.each.empty(&mut self.levels, self.now + time);
            }
            KeyOp::Settle(..) | KeyOp::Forget(_) if self.open.is_empty() => {}
            KeyOp::Settle(place, real) => self.settle(place, |_| real),
            KeyOp::Forget(place) => self.settle(place, |charged| charged),
        }
    }

    fn take(&mut self, costs: [u64; 2], asked: Nanos, late: u64, opens: bool) {
        let Some((at, _)) = self.each.conforms_at(&self.levels, asked, &costs) else { return };
        let at = at + late;
        self.now = self.now.max(at);
        self.grants += 1;
        let grant = Charged { at, counted: self.now, number: self.grants };
        self.each.charge(&mut self.levels, [at, asked, at, grant.counted], &costs);
        self.left = Some((grant, costs));
        self.counted.push((grant.number, grant.counted, costs[1]));
        if opens {
            self.each.open(&mut self.levels, grant, &costs);
            self.open.push((grant, costs));
        }
        if opens || costs[0] > 0 {
            let gathered = self.level().amount + i128::from(costs[0] * price_of(&self.asked));
            let (number, charged) = (grant.number, costs[0]);
            let asked = if charged > 0 { asked } else { at };
            self.events.push(Event::Granted { number, asked, at, charged, real: charged, gathered, early: None });
        }
    }

    fn hand_over(&mut self) {
        let Some((grant, costs)) = self.left.take() else { return };
        let counted = self.each.hand_over(&mut self.levels, grant, &costs, self.now);
        self.open.iter_mut().filter(|open| open.0 == grant).for_each(|open| open.0 = counted);
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
        self.each.settle(&mut self.levels, [self.now; 2], grant, [&costs, &settled]);
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
        self.levels.with(|states| states[0].level)
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
            self.levels.with(|states| check_log(&states[1], &self.counted, |at| at + period > self.now));
        }
        let has_open = self.levels.with(|states| states[0].open().is_some());
        let is_wide = self.asked.window.is_some() || has_open;
        assert_eq!((has_open, matches!(self.levels, Levels(Form::Several(_)))), (!self.open.is_empty(), is_wide));
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
            run.account.close(grant.number);
        }
        prop_assert!(!run.account.has_open());
    }

    /// Law 11, across a change of the rate: the credit that was cut off is then rounded, by less than a nanosecond's worth.
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
        let set = |account: &mut Account| account.set_rate(run.now, 0, Rate::new(number(units), number(period)));
        let settle = |account: &mut Account| {
            for grant in &run.open {
                account.settle(run.now, grant, [grant.units, real]);
            }
        };
        let mut limits = [run.account.clone(), run.account.clone()];
        settle(&mut limits[0]);
        set(&mut limits[0]);
        set(&mut limits[1]);
        settle(&mut limits[1]);
        let [before, after] = limits.map(|account| state(&account, 0).level);
        let (amount, at) = (after.amount, after.at);
        let rounded = 2 * run.open.len() as i128;
        prop_assert_eq!({ before.at }, at);
        prop_assert!(
            (before.amount - rounded..=before.amount + rounded).contains(&amount),
            "{:?} and {:?}, rounded by {}", before, after, rounded
        );
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

proptest! {
    #![proptest_config(cases())]

    /// Law 11, for several limits: each is settled as if it were the only one.
    #[test]
    fn several_limits_are_settled_like_single_ones(
        ops in prop::collection::vec((0_u64..3000, [1_u64..9, 1_u64..9, 1_u64..9], [0_u64..12, 0_u64..12, 0_u64..12], 0_usize..6), 1..40),
    ) {
        let policy = |limits: &[&str]| {
            Policy::new(&limits.iter().map(|limit| limit.parse().unwrap()).collect::<Vec<_>>(), None).unwrap()
        };
        let all = ["3/s,burst=5", "7/2s,burst=2", "30/5s,window"];
        let mut joint = Account::new(&policy(&all), 0);
        let mut singles = all.map(|limit| Account::new(&policy(&[limit]), 0));
        let (mut now, mut open) = (0, vec![]);
        for (wait, costs, real, kind) in ops {
            now += wait * 1_000_000;
            let (at, _) = joint.conforms_at(now, &costs[..]).unwrap();
            let grant = joint.charge(now, [at; 2], &costs[..]);
            joint.open(&grant, &costs[..]);
            for (single, cost) in singles.iter_mut().zip(costs) {
                let grant = single.charge(now, [at; 2], cost);
                single.open(&grant, cost);
            }
            now = now.max(at);
            open.push((grant, costs));
            if kind == 0 {
                joint.empty(now + wait);
                for single in &mut singles {
                    single.empty(now + wait);
                }
            } else if kind < 5 {
                let (grant, costs) = open.swap_remove(kind % open.len());
                joint.settle(now, &grant, [&costs[..], &real[..]]);
                for ((single, cost), real) in singles.iter_mut().zip(costs).zip(real) {
                    single.settle(now, &grant, [cost, real]);
                }
            }
            let expected: Vec<State> = singles.iter().map(|single| state(single, 0)).collect();
            prop_assert_eq!(joint.levels.to_vec(), expected);
        }
    }
}

#[test]
fn beyond_the_most_open_grants_the_oldest_is_closed() {
    let mut limits = Account::new(&Policy::new(&["1/ms,burst=5000".parse().unwrap()], None).unwrap(), 0);
    let grants: Vec<Grant> = (0..=MAX_OPEN).map(|_| limits.take(0, 1_u64).unwrap()).collect();
    let left =
        |account: &Account| account.limits.terms[0].left(&state(account, 0), MILLISECOND) - 5000 + grants.len() as i128;
    for grant in &grants {
        limits.open(grant, 1_u64);
    }
    limits.settle(MILLISECOND, &grants[0], [1_u64, 0]);
    assert_eq!(left(&limits), 1, "no more than the gain since");
    limits.settle(MILLISECOND, &grants[1], [1_u64, 0]);
    assert_eq!(left(&limits), 2);
    limits.settle(MILLISECOND, &grants[0], [1_u64, 4]);
    assert_eq!(left(&limits), -1, "the higher cost is owed");
}

/// Open grants as read from a file or a server.
#[cfg(feature = "shared")]
#[test]
fn open_grants_have_sense_if_they_keep_the_invariant() {
    let of = |count: usize, lost: i128| {
        let block = |number| Block { number, peak: 7, excess: 0, burst: 1 };
        Opened { lost, before: 0, blocks: (0..count as u64).map(block).collect() }.has_sense()
    };
    assert_eq!([of(1, 7), of(MAX_OPEN, 7), of(0, 0), of(1, 6), of(MAX_OPEN + 1, 7)], [true, true, false, false, false]);
}
