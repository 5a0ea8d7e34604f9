//! The order of units with keys, compared with a slow model of the same rules, which inspects every unit each time and never
//! forgets a key. The laws are checked on the units that left.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU32, NonZeroU64};
use throttle_limits::bucket::Bucket;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::Policy;
use throttle_limits::line::{Charged, KeyId, Line, Next, Rules, Unit};
use window::Window;

#[path = "../../../library/tests/library/window.rs"]
mod window;

const MS: Nanos = 1_000_000;

/// A limit, and the kind of cost that it counts.
#[derive(Clone, Copy, Debug)]
enum Spec {
    Bucket { count: u64, period: Nanos, burst: u64, initial: u64, kind: usize },
    Window { count: u64, period: Nanos, kind: usize },
}

impl Spec {
    fn kind(&self) -> usize {
        match *self {
            Spec::Bucket { kind, .. } | Spec::Window { kind, .. } => kind,
        }
    }

    fn text(&self) -> String {
        match *self {
            Spec::Bucket { count, period, burst, initial, .. } => {
                format!("{count}/{}ms,burst={burst},initial={initial}", period / MS)
            }
            Spec::Window { count, period, .. } => format!("{count}/{}ms,window", period / MS),
        }
    }

    /// How long the limit needs for this cost, in 1/256 ns.
    fn length(&self, cost: u64) -> u64 {
        match *self {
            Spec::Bucket { count, period, burst, .. } => {
                cost * (256 * (burst * period).div_ceil(count)).div_ceil(burst)
            }
            Spec::Window { count, period, .. } => cost * (256 * period).div_ceil(count),
        }
    }

    fn policy(&self) -> (Policy, usize) {
        (Policy::new(&[self.text().parse().unwrap()], None).unwrap(), self.kind())
    }

    fn start(&self, now: Nanos) -> State {
        match *self {
            Spec::Bucket { burst, initial, .. } => {
                let rate = self.text().split(',').next().unwrap().parse().unwrap();
                State::Bucket(Bucket::new(rate, NonZeroU64::new(burst).unwrap(), initial, now))
            }
            Spec::Window { count, period, .. } => {
                State::Window(Window::new(NonZeroU64::new(count).unwrap(), NonZeroU64::new(period).unwrap(), now))
            }
        }
    }

    /// Checks that this limit was kept: these units were charged and handed over at these times.
    fn check(&self, gone: &[Gone], allowance: Nanos) {
        for (first, start) in gone.iter().enumerate() {
            let (mut sum, mut largest) = (0, 0);
            for last in &gone[first..] {
                let cost = last.costs[self.kind()];
                (sum, largest) = (sum + u128::from(cost), largest.max(cost));
                match *self {
                    Spec::Bucket { count, period, burst, .. } => {
                        let most = |time: Nanos| {
                            u128::from(burst.max(largest)) * u128::from(period) + u128::from(count) * u128::from(time)
                        };
                        // Times are rounded up, and what is left of that nanosecond is kept.
                        let charged = last.charged.at - start.charged.at + 1;
                        assert!(sum * u128::from(period) <= most(charged), "{self:?} is over in {charged}: {sum}");
                        let left = last.left - start.left + allowance + 1;
                        assert!(sum * u128::from(period) <= most(left), "{sum} left in {left}");
                    }
                    Spec::Window { count, period, .. } => {
                        let within = last.left - start.left < period;
                        assert!(!within || sum <= count.into(), "{self:?} is over: {sum} from {}", start.left);
                    }
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    Bucket(Bucket),
    Window(Window),
}

impl State {
    /// The state after a hold that ended at `time`: a bucket is empty, and what it owed was paid meanwhile.
    fn emptied(&self, time: Nanos) -> State {
        let mut emptied = self.clone();
        if let State::Bucket(bucket) = &mut emptied {
            let rest = u64::try_from(bucket.balance(time)).unwrap_or(0);
            let until = bucket.conforms_at(time, rest).unwrap();
            bucket.charge(until, until, rest + bucket.burst());
        }
        emptied
    }

    fn conforms_at(&self, asked: Nanos, cost: u64) -> Nanos {
        match self {
            _ if cost == 0 => asked,
            State::Bucket(bucket) => bucket.conforms_at(asked, cost).unwrap(),
            State::Window(window) => window.has_room_at(asked, cost).unwrap(),
        }
    }

    fn charge(&mut self, asked: Nanos, charged: Charged, cost: u64) {
        match self {
            _ if cost == 0 => {}
            State::Bucket(bucket) => bucket.charge(asked, charged.at, cost),
            State::Window(window) => window.charge(charged.counted, cost),
        }
    }
}

#[derive(Clone, Debug)]
struct Gone {
    costs: Vec<u64>,
    charged: Charged,
    left: Nanos,
}

/// Answers of the model.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Go(u64, Nanos),
    Drop(u64),
    At(Nanos),
    Nothing,
}

#[derive(Clone, Debug)]
struct Key {
    states: Vec<State>,
    units: BTreeMap<u64, Unit<()>>,
    running: u32,
    since: Nanos,
    /// The end of its hold, until its buckets are emptied.
    hold: Option<Nanos>,
    /// The finish tag of the unit that left last.
    finish: u64,
    /// If the limits of the key conform to its first unit: the age of that unit, and its start tag.
    ready: Option<(u64, u64)>,
}

/// The rules, as slow as can be.
struct Model {
    each: Vec<Spec>,
    all: Vec<(Spec, State)>,
    jobs: u32,
    max_wait: Option<Nanos>,
    allowance: Nanos,
    now: Nanos,
    /// The front: nothing is granted for a time before it.
    at: Nanos,
    /// The virtual time, and the greatest finish tag, in 1/256 ns.
    time: u64,
    last_finish: u64,
    /// The time of the latest grant.
    last: Nanos,
    start: Nanos,
    keys: BTreeMap<u8, Key>,
    /// The units that join their key later.
    later: BTreeSet<u64>,
    is_blocked: bool,
}

impl Model {
    fn key(&mut self, name: u8) -> &mut Key {
        let (each, start) = (&self.each, self.start);
        self.keys.entry(name).or_insert_with(|| Key {
            states: each.iter().map(|spec| spec.start(start)).collect(),
            units: BTreeMap::new(),
            running: 0,
            since: 0,
            hold: None,
            finish: 0,
            ready: None,
        })
    }

    /// The times at which a unit of a key that asked then conforms to its own limits, and to those of all.
    fn conforms_at(&self, key: &Key, asked: Nanos, costs: &[u64]) -> [Nanos; 2] {
        let held = key.hold.unwrap_or(0);
        let states = key.states.iter().map(|state| if held > 0 { state.emptied(held) } else { state.clone() });
        let own = self.each.iter().zip(states).map(|(spec, state)| state.conforms_at(asked, costs[spec.kind()]));
        let all = self.all.iter().map(|(spec, state)| state.conforms_at(asked, costs[spec.kind()]));
        [own.max().unwrap_or(asked).max(asked).max(key.since).max(held), all.max().unwrap_or(asked)]
    }

    /// The length of a unit: the longest time that a limit of all needs for its cost; 1 if there is none.
    fn length(&self, costs: &[u64]) -> u64 {
        self.all.iter().map(|(spec, _)| spec.length(costs[spec.kind()])).max().unwrap_or(0).max(1)
    }

    /// Empties the buckets of keys whose holds are over by now.
    fn end_holds(&mut self) {
        let now = self.now;
        for key in self.keys.values_mut() {
            if let Some(until) = key.hold.take_if(|until| *until <= now) {
                key.states.iter_mut().for_each(|state| *state = state.emptied(until));
                key.since = key.since.max(until);
            }
        }
    }

    fn charge(&mut self, name: u8, asked: Nanos, charged: Charged, costs: &[u64]) {
        let each = self.each.clone();
        for (spec, state) in each.iter().zip(&mut self.key(name).states) {
            state.charge(asked, charged, costs[spec.kind()]);
        }
        for (spec, state) in &mut self.all {
            state.charge(asked, charged, costs[spec.kind()]);
        }
    }

    /// The unit of this decision leaves: its start tag is the virtual time.
    fn go(&mut self, Decision { name, unit, at, tag, .. }: &Decision) {
        self.close(*at, false);
        let length = self.length(&unit.costs);
        let charged = Charged { at: *at, counted: self.now, number: 0 };
        self.charge(*name, unit.arrived, charged, &unit.costs);
        self.time = self.time.max(*tag);
        self.last_finish = self.last_finish.max(tag + length);
        self.last = *at;
        let has_jobs = self.jobs < u32::MAX;
        let key = self.key(*name);
        key.finish = tag + length;
        key.units.remove(&unit.age);
        key.running += u32::from(has_jobs);
        key.ready = None;
        self.close(*at, true);
        self.enter();
    }

    /// Whether all limits of all are at rest. Without any they are once time has gone by.
    fn is_at_rest(&self, time: Nanos) -> bool {
        let is_one = |(spec, state): &(Spec, State)| match (spec, state) {
            (Spec::Bucket { burst, .. }, State::Bucket(bucket)) => bucket.balance(time) >= (*burst).into(),
            (Spec::Window { count, .. }, State::Window(window)) => window.available(time) == *count,
            _ => false,
        };
        if self.all.is_empty() { time > self.last } else { self.all.iter().all(is_one) }
    }

    /// The virtual time, which is a function of time until the next unit leaves.
    fn virtual_time(&self, time: Nanos) -> u64 {
        if self.is_at_rest(time.max(self.last)) { self.time.max(self.last_finish) } else { self.time }
    }

    /// The first unit of a key, among those that have joined it, if a job is free.
    fn first(&self, name: u8) -> Option<&Unit<()>> {
        let key = &self.keys[&name];
        key.units.values().find(|unit| !self.later.contains(&unit.age)).filter(|_| key.running < self.jobs)
    }

    /// When the limits of a key conform to its first unit.
    fn own(&self, name: u8, unit: &Unit<()>) -> Nanos {
        self.conforms_at(&self.keys[&name], unit.arrived, &unit.costs)[0]
    }

    /// Keys whose first unit is another one now: if their limits conform by the front, they are ready.
    fn enter(&mut self) {
        for name in self.keys.keys().copied().collect::<Vec<_>>() {
            let first = self.first(name).cloned();
            let ready = self.keys[&name].ready;
            if first.as_ref().map(|unit| unit.age) != ready.map(|(age, _)| age) || first.is_none() {
                let own = first.as_ref().map(|unit| self.own(name, unit));
                let tag = |own| self.virtual_time(own).max(self.keys[&name].finish);
                let ready = own.filter(|own| *own <= self.at).map(tag).zip(first).map(|(tag, unit)| (unit.age, tag));
                self.key(name).ready = ready;
            }
        }
    }

    /// A change of a key: its first unit enters again.
    fn enter_again(&mut self, name: u8) {
        self.key(name).ready = None;
        self.enter();
    }

    /// The keys that are not ready, in the order in which they will be.
    fn coming(&self) -> Vec<(Nanos, u64, u8)> {
        let names = self.keys.iter().filter(|(_, key)| key.ready.is_none()).map(|(name, _)| *name);
        let coming = names.filter_map(|name| self.first(name).map(|unit| (self.own(name, unit), unit.age, name)));
        let mut coming: Vec<_> = coming.collect();
        coming.sort_unstable();
        coming
    }

    /// Nothing is granted for a time before `time`. Keys that are ready before it, or by it, have their tags from then.
    fn close(&mut self, time: Nanos, is_inclusive: bool) {
        for (own, age, name) in self.coming() {
            if own < time || is_inclusive && own == time {
                let tag = self.virtual_time(own).max(self.keys[&name].finish);
                self.key(name).ready = Some((age, tag));
            }
        }
        self.at = self.at.max(time);
    }

    /// The unit that goes next: it has the least tag of the keys that are ready before it goes.
    fn decide(&self) -> Option<Decision> {
        let decision = |name: u8, own: Nanos, tag| {
            let unit = self.first(name).unwrap().clone();
            let [_, all] = self.conforms_at(&self.keys[&name], unit.arrived, &unit.costs);
            Decision { at: all.max(own), name, tag, unit }
        };
        let ready = self.keys.iter().filter_map(|(name, key)| key.ready.map(|(age, tag)| (tag, age, *name)));
        let mut best = ready.min().map(|(tag, _, name)| decision(name, self.at, tag));
        for (own, age, name) in self.coming() {
            let tag = self.virtual_time(own).max(self.keys[&name].finish);
            if best.as_ref().is_some_and(|best| own >= best.at) {
                break;
            }
            if best.as_ref().is_none_or(|best| (tag, age) < (best.tag, best.unit.age)) {
                best = Some(decision(name, own, tag));
            }
        }
        best
    }

    /// The next time at which a unit joins its key or is dropped, and its age.
    fn timer(&self) -> Option<(Nanos, u64)> {
        let units = self.keys.values().flat_map(|key| key.units.values());
        let time = |unit: &Unit<()>| {
            if self.later.contains(&unit.age) {
                return Some(unit.arrived);
            }
            self.max_wait.map(|longest| unit.arrived.saturating_add(longest))
        };
        units.filter_map(|unit| Some((time(unit)?, unit.age))).min()
    }

    fn next(&mut self, has_room: bool) -> Answer {
        if has_room && std::mem::take(&mut self.is_blocked) {
            self.close(self.now, true);
        }
        self.is_blocked = !has_room;
        loop {
            let decision = self.decide().filter(|_| has_room);
            let before = decision.as_ref().map_or(Nanos::MAX, |decision| decision.at);
            if let Some((time, age)) = self.timer().filter(|(time, _)| *time <= self.now && *time < before) {
                self.close(time, true);
                if !self.later.remove(&age) {
                    self.keys.values_mut().for_each(|key| drop(key.units.remove(&age)));
                    self.enter();
                    return Answer::Drop(age);
                }
                self.enter();
                continue;
            }
            let oldest = self.now.saturating_sub(self.allowance);
            match decision {
                Some(decision) if decision.at < oldest => self.close(oldest, true),
                Some(decision) if decision.at <= self.now => {
                    self.go(&decision);
                    return Answer::Go(decision.unit.age, decision.at);
                }
                decision => {
                    if has_room {
                        self.close(self.now, true);
                    }
                    let times =
                        decision.map(|decision| decision.at).into_iter().chain(self.timer().map(|(time, _)| time));
                    return times.min().map_or(Answer::Nothing, Answer::At);
                }
            }
        }
    }
}

/// The unit that goes next: when, of which key, with which start tag.
#[derive(Clone, Debug)]
struct Decision {
    at: Nanos,
    name: u8,
    tag: u64,
    unit: Unit<()>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A unit of this key arrived this time ago.
    Add(u8, Nanos, u64, u64),
    /// A unit of this key arrives after this time.
    Later(u8, Nanos, u64, u64),
    Pass(u8, u64, u64),
    Next,
    /// The sink has no room.
    Blocked,
    /// All that may leave.
    Drain,
    /// The oldest job ends.
    End,
    /// The key of the oldest job is held for this time.
    Hold(Nanos),
    /// The hold of the oldest job's key is lifted.
    Lift,
    /// The oldest job is sent back, and may go again after this time.
    Again(Nanos),
    Wait(Nanos),
    /// The clock reads an earlier time.
    Back(Nanos),
}

fn any_step() -> impl Strategy<Value = Step> {
    let (key, cost) = (0..6_u8, prop::sample::select(vec![0, 1, 1, 1, 2, 3]));
    prop_oneof![
        8 => (key.clone(), 0..3 * MS, cost.clone(), 0..9_u64).prop_map(|(key, ago, one, two)| Step::Add(key, ago, one, two)),
        1 => (key.clone(), 0..3000 * MS, cost.clone(), 0..9_u64).prop_map(|(key, time, one, two)| Step::Later(key, time, one, two)),
        4 => (key, cost, 0..9_u64).prop_map(|(key, one, two)| Step::Pass(key, one, two)),
        4 => Just(Step::Next),
        1 => Just(Step::Blocked),
        6 => Just(Step::Drain),
        4 => Just(Step::End),
        1 => (0..900 * MS).prop_map(Step::Hold),
        1 => Just(Step::Lift),
        2 => prop_oneof![Just(0), 0..3000 * MS].prop_map(Step::Again),
        4 => (0..50 * MS).prop_map(Step::Wait),
        4 => (0..5000 * MS).prop_map(Step::Wait),
        1 => (0..2000 * MS).prop_map(Step::Back),
    ]
}

fn any_spec() -> impl Strategy<Value = Spec> {
    let bucket = (1..9_u64, 1..3000_u64, 1..4_u64, 0..4_u64).prop_map(|(count, period, burst, initial)| {
        let burst = burst + 2;
        Spec::Bucket { count, period: period * MS, burst, initial: initial.min(burst), kind: 0 }
    });
    let tokens = (1..90_u64, 1..3000_u64, 0..20_u64).prop_map(|(count, period, burst)| {
        let burst = burst + 8;
        Spec::Bucket { count, period: period * MS, burst, initial: burst, kind: 1 }
    });
    let window =
        (3..9_u64, 1..3000_u64).prop_map(|(count, period)| Spec::Window { count, period: period * MS, kind: 0 });
    prop_oneof![3 => bucket, 1 => tokens, 1 => window]
}

struct Run {
    order: Line<()>,
    model: Model,
    ids: BTreeMap<u64, KeyId>,
    names: BTreeMap<u64, u8>,
    gone: BTreeMap<u8, Vec<Gone>>,
    running: Vec<(u8, (KeyId, u64), Unit<()>)>,
    time: Nanos,
    age: u64,
    counts: [usize; 2],
}

impl Run {
    fn new(each: &[Spec], all: &[Spec], jobs: Option<NonZeroU32>, max_wait: Option<Nanos>) -> Self {
        let policies = |specs: &[Spec]| specs.iter().map(Spec::policy).collect::<Vec<_>>();
        let (own, common, start) = (policies(each), policies(all), 1000 * MS);
        let of = |policies: &'static [(Policy, usize)]| policies.iter().map(|(policy, kind)| (policy, *kind)).collect();
        let (own, common): (Vec<_>, Vec<_>) = (of(own.leak()), of(common.leak()));
        let order = Line::new(&Rules { each: &own, all: &common, jobs, max_wait, ..Rules::default() }, start);
        let allowances = each.iter().chain(all).filter_map(|spec| match spec.start(start) {
            State::Bucket(bucket) => Some((bucket.fill_time() / 10).max(bucket.fill_time().min(10 * MS))),
            State::Window(_) => None,
        });
        let model = Model {
            each: each.to_vec(),
            allowance: allowances.min().unwrap_or(0),
            all: all.iter().map(|spec| (*spec, spec.start(start))).collect(),
            jobs: jobs.map_or(u32::MAX, NonZeroU32::get),
            max_wait,
            now: start,
            at: 0,
            time: 0,
            last_finish: 0,
            last: 0,
            start,
            keys: BTreeMap::new(),
            later: BTreeSet::new(),
            is_blocked: false,
        };
        let (ids, names, gone) = Default::default();
        Run { order, model, ids, names, gone, running: Vec::new(), time: start, age: 0, counts: [0; 2] }
    }

    fn advance(&mut self) {
        self.model.now = self.model.now.max(self.time);
        self.model.end_holds();
    }

    /// One call of `poll`.
    fn poll(&mut self, has_room: bool) -> Answer {
        self.advance();
        let expected = self.model.next(has_room);
        let found = match self.order.poll(self.time, u64::from(has_room)) {
            Next::Go(id, unit, charged) => {
                let name = self.names[&unit.age];
                assert_eq!((self.order.name(id), charged.counted), (&[name][..], self.model.now));
                self.note(name, charged, &unit.costs);
                self.order.handed_over(self.time, id, charged, &unit.costs);
                let found = Answer::Go(unit.age, charged.at);
                self.running.push((name, (id, charged.number), unit));
                found
            }
            Next::Refused(id, unit, _) => {
                assert_eq!(self.order.name(id), [self.names[&unit.age]]);
                Answer::Drop(unit.age)
            }
            Next::Run(run) => panic!("{run:?}"),
            Next::At(time) => Answer::At(time),
            Next::Nothing => Answer::Nothing,
        };
        assert_eq!(found, expected, "at {}", self.model.now);
        found
    }

    fn next(&mut self) -> Answer {
        self.poll(true)
    }

    fn note(&mut self, name: u8, charged: Charged, costs: &[u64]) {
        let gone = Gone { costs: costs.into(), charged, left: self.model.now };
        self.gone.entry(name).or_default().push(gone);
        self.counts[0] += 1;
    }

    fn add(&mut self, name: u8, unit: &Unit<()>) {
        self.names.insert(unit.age, name);
        let unit = Unit { arrived: unit.arrived.max(self.model.now), ..unit.clone() };
        if unit.arrived > self.model.now {
            self.model.later.insert(unit.age);
        }
        self.model.key(name).units.insert(unit.age, unit.clone());
        self.model.enter();
        let id = self.order.add(self.time, Some(&[name]), unit.clone()).unwrap();
        self.ids.insert(unit.age, id);
    }

    /// A unit passes exactly if the model would let it go first, and it arrives now.
    fn pass(&mut self, name: u8, costs: [u64; 2]) {
        self.advance();
        let (now, age) = (self.model.now, self.age);
        let unit = Unit { age, costs: costs.into(), size: 1, arrived: now, settles: false, content: () };
        let _ = self.model.key(name);
        let model = &self.model;
        let no_other = model.at <= now
            && model.keys.values().all(|key| key.ready.is_none())
            && model.coming().iter().all(|(own, ..)| *own > now)
            && model.timer().is_none_or(|(time, _)| time > now);
        let key = &model.keys[&name];
        let conforms = model.conforms_at(key, now, &costs).iter().all(|time| *time <= now);
        let is_first = key.units.values().all(|unit| model.later.contains(&unit.age));
        let passes = is_first && model.jobs == u32::MAX && no_other && conforms;
        let key = key.clone();
        let id = self.order.pass(self.time, Some(&[name]), &costs);
        assert_eq!(id.is_some(), passes, "{key:?} {costs:?} at {now}");
        if let Some(id) = id {
            let charged = Charged { at: now, counted: now, number: 0 };
            self.names.insert(age, name);
            self.model.time = self.model.virtual_time(now);
            (self.model.at, self.model.last) = (now, now);
            self.model.charge(name, now, charged, &costs);
            self.note(name, charged, &costs);
            self.running.push((name, (id, 0), unit));
        } else {
            self.add(name, &unit);
        }
    }

    fn end(&mut self, hold: Nanos, again: Option<Nanos>) {
        if self.running.is_empty() {
            return;
        }
        let (name, (id, number), unit) = self.running.remove(0);
        if self.model.jobs == u32::MAX {
            return; // In a pipe nothing ends, and the key may be forgotten.
        }
        self.advance();
        let (now, jobs) = (self.model.now, self.model.jobs);
        if hold > 0 {
            self.order.hold_until(self.time, id, now + hold);
            let key = self.model.key(name);
            if key.hold.is_none_or(|until| until < now + hold) {
                key.hold = Some(now + hold);
                self.model.enter_again(name);
            }
        }
        if let Some(time) = again {
            self.add(name, &Unit { arrived: now + time, ..unit });
        }
        self.order.ended(self.time, number);
        let key = self.model.key(name);
        let was_full = key.running == jobs;
        key.running -= 1;
        if was_full {
            key.since = key.since.max(now);
            self.model.enter_again(name);
        }
    }

    fn lift(&mut self) {
        let Some((name, (id, _), _)) = self.running.first().cloned().filter(|_| self.model.jobs < u32::MAX) else {
            return;
        };
        self.advance();
        self.order.lift(self.time, Some(id));
        let now = self.model.now;
        let key = self.model.key(name);
        if key.hold.take().is_some() {
            key.since = key.since.max(now);
            self.model.enter_again(name);
        }
    }

    fn step(&mut self, step: &Step) {
        self.age += 1;
        match *step {
            Step::Add(name, ago, one, two) => {
                self.advance();
                let arrived = self.model.now - ago;
                self.add(
                    name,
                    &Unit { age: self.age, costs: [one, two].into(), size: 1, arrived, settles: false, content: () },
                );
            }
            Step::Later(name, time, one, two) => {
                self.advance();
                let arrived = self.model.now + time;
                self.add(
                    name,
                    &Unit { age: self.age, costs: [one, two].into(), size: 1, arrived, settles: false, content: () },
                );
            }
            Step::Pass(name, one, two) => self.pass(name, [one, two]),
            Step::Next => drop(self.next()),
            Step::Blocked => drop(self.poll(false)),
            Step::Drain => while matches!(self.next(), Answer::Go(..) | Answer::Drop(_)) {},
            Step::End => self.end(0, None),
            Step::Hold(time) => self.end(time, None),
            Step::Lift => self.lift(),
            Step::Again(time) => self.end(0, Some(time)),
            Step::Wait(time) => self.time += time,
            Step::Back(time) => self.time = self.time.saturating_sub(time),
        }
        self.counts[1] = self.counts[1].max(self.model.keys.len() - self.order.keys().min(self.model.keys.len()));
    }

    /// Lets everything leave, then checks each limit on all that left.
    fn finish(mut self, all: &[Spec]) -> [usize; 2] {
        while !self.order.is_empty() {
            match self.next() {
                Answer::Go(..) | Answer::Drop(_) => {}
                Answer::At(time) => self.time = self.time.max(time),
                Answer::Nothing => self.end(0, None),
            }
        }
        let mut together: Vec<Gone> = self.gone.values().flatten().cloned().collect();
        together.sort_by_key(|gone| (gone.left, gone.charged.at));
        for gone in self.gone.values() {
            self.model.each.iter().for_each(|spec| spec.check(gone, self.model.allowance));
        }
        for spec in all {
            spec.check(&together, self.model.allowance);
        }
        self.counts
    }
}

proptest! {
    #[test]
    fn the_order_is_that_of_a_slow_model_that_never_forgets(
        each in prop::collection::vec(any_spec(), 0..3),
        all in prop::collection::vec(any_spec(), 0..3),
        jobs in prop::option::of(1..4_u32),
        max_wait in prop::option::of(0..2000 * MS),
        steps in prop::collection::vec(any_step(), 1..150),
    ) {
        let max_wait = if jobs.is_some() { None } else { max_wait };
        let mut run = Run::new(&each, &all, jobs.and_then(NonZeroU32::new), max_wait);
        for step in &steps {
            run.step(step);
        }
        run.finish(&all);
    }
}

/// Before, the tag of key 0 was forgotten because the limits of all were at rest at the front. Unit 7 joined its key for
/// a time before the front, when they were not.
#[test]
fn a_unit_that_joins_before_the_front_changes_no_order() {
    use Step::{Add, Drain, Later, Next, Wait};
    let all = [
        Spec::Bucket { count: 5, period: 58 * MS, burst: 5, initial: 0, kind: 0 },
        Spec::Window { count: 6, period: 2081 * MS, kind: 0 },
    ];
    let mut run = Run::new(&[], &all, None, Some(154_628_265));
    let first = [Wait(45_638_434), Add(0, 0, 1, 0), Next, Later(1, 2_080_462_912, 1, 0), Add(0, 0, 0, 0)];
    let second = [Wait(2_091_000_000), Add(4, 0, 0, 0), Drain, Add(4, 0, 0, 0), Add(0, 0, 0, 0), Add(0, 0, 0, 0)];
    first.iter().chain(&second).for_each(|step| run.step(step));
    run.finish(&all);
}

/// The limits of all were charged as if each unit had waited since the oldest that costs the same: a bucket that was full
/// when it came kept a part of a nanosecond beyond that.
#[test]
fn a_unit_gains_nothing_from_the_wait_of_another() {
    use Step::{Add, Drain, Next, Pass, Wait};
    let each = [Spec::Window { count: 4, period: MS, kind: 0 }];
    let all = [Spec::Bucket { count: 7, period: 1326 * MS, burst: 3, initial: 0, kind: 0 }];
    let mut run = Run::new(&each, &all, NonZeroU32::new(3), None);
    let first = [Add(2, 0, 0, 0), Add(0, 0, 0, 0), Add(0, 0, 0, 0), Pass(1, 1, 0), Add(1, 0, 2, 0), Add(1, 0, 1, 0)];
    let second = [Next, Wait(757_714_286), Add(2, 1, 1, 0), Next, Pass(2, 2, 0), Drain, Add(1, 0, 0, 0)];
    let third = [Wait(1_136_571_429), Pass(0, 3, 0), Add(3, 1, 3, 0), Add(0, 0, 0, 0), Pass(0, 0, 0)];
    first.iter().chain(&second).chain(&third).for_each(|step| run.step(step));
    run.finish(&all);
}

/// A unit that passes at the very time when the last waiting unit expired reset the virtual time: the next key was no longer
/// ahead of the key that had used more.
#[test]
fn a_unit_that_passes_resets_no_tags_before_time_goes_by() {
    use Step::{Add, Drain, Next, Pass, Wait};
    let all = [Spec::Bucket { count: 1, period: 999 * MS, burst: 3, initial: 0, kind: 0 }];
    let mut run = Run::new(&[], &all, None, Some(180_724_900));
    let first = [Wait(1_819_323_035), Add(0, 0, 2, 0), Wait(1_343_561_354), Add(1, 0, 1, 0), Drain, Add(0, 0, 3, 0)];
    let second = [Wait(2_652_273_286), Next, Pass(0, 0, 0), Add(0, 0, 0, 0), Pass(1, 0, 0)];
    first.iter().chain(&second).for_each(|step| run.step(step));
    run.finish(&all);
}
