//! The scheduler: requests go in, and grants come out in fair order. Within a key the order is strict. Between keys it
//! is start-time fair queueing. The keys whose next request conforms to their own limits compete, and the request of
//! one of them is chosen. It is granted before all others, even if another request would conform to the overall limits
//! earlier.
//!
//! This is pure. Time is a parameter, and the caller waits, reads and writes. Clock readings that arrive out of order
//! are clamped. A [`Line`](crate::line::Line) stores the units of the requests.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program.

mod heap;
mod keys;
mod requests;
mod turns;

use crate::clock::Nanos;
use crate::limits::{Charged, Each, KeyId, NO_KEY, Policy, Thin};
use heap::{Heap, Item};
use keys::Table;
pub use requests::{Costs, Ticket};
use requests::{List, NONE, Requests};
use std::collections::HashMap;
use std::collections::TryReserveError;
use std::num::NonZeroU32;
use std::sync::Arc;
use turns::{Decision, FRACTION_BITS, Tag, Tags, Turns};

/// The most keys that are stored.
const MAX_KEYS: usize = 1_000_000;

/// The most finish tags of idle keys that are kept. Beyond that the virtual time moves on.
const MAX_TAGS: usize = 10_000;

/// The rules of a [`Ledger`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// The limits of each key. The number beside a policy is the index of the kind of cost that the policy counts.
    pub each: &'a [(&'a Policy, usize)],
    /// Keys with limits of their own, instead of the limits in `each`.
    pub named: &'a [NamedKey],
    /// The limits of all keys together.
    pub all: &'a [(&'a Policy, usize)],
    /// The most units of one key that may run at once. A unit runs from its grant until [`Ledger::ended`]. `None` if
    /// nothing runs, as in a pipe; [`NonZeroU32::MAX`] if any number may run.
    pub jobs: Option<NonZeroU32>,
    /// The longest wait of a request, in nanoseconds. After that it expires.
    pub max_wait: Option<Nanos>,
    /// Whether a shared bucket applies all limits. Then the ledger decides only the order of turns.
    pub is_shared: bool,
}

/// A key with its own limits.
#[derive(Clone, Debug)]
pub struct NamedKey {
    /// Its name.
    pub key: Box<[u8]>,
    /// The limits of the key, each with the index of the kind of cost that it counts. Keys with equal limits may share
    /// them.
    pub each: Arc<[(Policy, usize)]>,
}

impl NamedKey {
    /// The names of these keys, and their limits in their initial state at `now`. Keys that share limits share their
    /// initial state.
    fn limits(named: &[NamedKey], now: Nanos) -> HashMap<Box<[u8]>, Arc<Each>> {
        let mut made = HashMap::new();
        let each = |named: &NamedKey| {
            let start = || {
                let each: Vec<_> = named.each.iter().map(|(policy, kind)| (policy, *kind)).collect();
                Arc::new(Each::new(&each, now))
            };
            let each = made.entry(Arc::as_ptr(&named.each)).or_insert_with(start);
            (named.key.clone(), Arc::clone(each))
        };
        named.iter().map(each).collect()
    }
}

/// A request for one unit.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The age of the request. It is unique, and the oldest request has the least.
    pub age: u64,
    /// One cost of each kind.
    pub costs: &'a [u64],
    /// When the request begins to wait. If that is in the future, other requests of its key may be granted first.
    pub arrived: Nanos,
    /// 0 for a usual request. A request with a weight is a suspect: its unit was refused again and again. The suspects
    /// of a key get one turn for `weight` turns of its usual requests, and all turns while no usual request waits.
    pub weight: u32,
}

/// A request that was taken out of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its name while it waited.
    pub ticket: Ticket,
    /// Its key.
    pub key: KeyId,
    /// Its age.
    pub age: u64,
    /// Its costs.
    pub costs: Costs,
    /// When it began to wait.
    pub arrived: Nanos,
}

/// The next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This request is granted and charged.
    Granted(Taken, Charged),
    /// This request has reached the longest wait.
    Expired(Taken),
    /// Nothing happens before this time.
    At(Nanos),
    /// Nothing happens until a unit ends or a request is added. Either no request waits, or no waiting key may run
    /// another unit.
    Nothing,
}

/// Waiting requests, and the limits that they wait for.
///
/// A [`KeyId`] is valid while requests of its key wait or run. After that it is valid until the next call that may add
/// a key: [`ask`](Self::ask), [`pass`](Self::pass) or [`next`](Self::next).
#[derive(Debug)]
pub struct Ledger {
    keys: Table,
    all: Each,
    thin: Thin,
    /// For each overall limit: the index of the kind of cost that it counts, and the length of a request of cost 1. A
    /// length is the time that the limit needs for a cost, in the units of a [`Tag`].
    lengths: Vec<(usize, Tag)>,
    has_windows: bool,
    /// How far a grant may lie in the past when its unit leaves.
    allowance: Nanos,
    jobs: Option<u32>,
    max_wait: Option<Nanos>,
    /// The latest clock reading.
    now: Nanos,
    flows: Vec<Flow>,
    free_flows: Vec<u32>,
    requests: Requests,
    turns: Turns,
    /// Requests that will arrive later, by their time of arrival.
    arrivals: Heap,
    /// Requests that have arrived, by the time at which they expire.
    deadlines: Heap,
    /// Flows of new keys that have no room in the table of keys yet, by the age of their first request. These flows are
    /// *outside*.
    outside: Heap,
    /// The number of flows outside, including flows without a request.
    outsiders: usize,
    /// Flows without requests or running units that are still stored, until a time before which nothing may be granted
    /// to them.
    idle: Heap,
    /// Flows without requests or running units whose finish tags are above the virtual time. Each keeps its tag, so
    /// that a key gains nothing from being idle for a moment.
    ahead: Heap,
    /// The number of flows with requests that have arrived.
    waiting: usize,
    /// The number of usual requests that have arrived.
    usual: usize,
    /// The number of granted requests that had waited.
    granted: u64,
    /// Whether memory for more requests is short.
    is_short: bool,
    /// The latest grant: its key, its age, and the tags before it.
    latest: Option<(KeyId, u64, Tags)>,
}

/// The requests and jobs of one key.
#[derive(Debug)]
struct Flow {
    key: KeyId,
    /// The list of usual requests that have arrived, and the list of suspects.
    usual: List,
    suspects: List,
    /// The total length of the usual requests that are granted before the next suspect.
    debt: Tag,
    /// The number of requests that have arrived.
    waiting: usize,
    /// The number of requests that will arrive later.
    later: usize,
    running: u32,
    /// Nothing is granted before this time, because the key is held, because all its jobs were running until then, or
    /// because there was no room for it until then.
    since: Nanos,
    finish: Tag,
    /// Whether the table of keys still has no room for this key.
    is_outside: bool,
}

impl Flow {
    /// The next request to be granted, or [`NONE`].
    #[inline]
    fn first(&self) -> u32 {
        let is_suspect = self.usual.first == NONE || self.debt == 0 && self.suspects.first != NONE;
        if is_suspect { self.suspects.first } else { self.usual.first }
    }

    fn list(&mut self, weight: u32) -> &mut List {
        if weight == 0 { &mut self.usual } else { &mut self.suspects }
    }

    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.later == 0 && self.running == 0
    }

    /// Whether a request that arrives now would be its first, and may be granted if the limits allow it.
    fn is_free(&self, now: Nanos, jobs: Option<u32>) -> bool {
        let has_job = jobs.is_none_or(|jobs| self.running < jobs);
        self.waiting == 0 && self.since <= now && has_job && !self.is_outside
    }
}

impl Ledger {
    /// A ledger without requests. New keys have buckets made at `now`.
    #[must_use]
    pub fn new(rules: &Rules<'_>, now: Nanos) -> Self {
        Ledger::with_max_keys(rules, now, MAX_KEYS)
    }

    /// Like [`new`](Self::new), but stores at most `most` keys.
    #[must_use]
    pub fn with_max_keys(rules: &Rules<'_>, now: Nanos, most: usize) -> Self {
        let lengths = Each::new(rules.all, now).lengths(FRACTION_BITS);
        let all = Each::new(if rules.is_shared { &[] } else { rules.all }, now);
        let each = Each::new(if rules.is_shared { &[] } else { rules.each }, now);
        let keys = Table::new(each, NamedKey::limits(rules.named, now), most);
        let allowance = keys.limits().chain([&all]).filter_map(Each::allowance).min().unwrap_or(0);
        let has_windows = keys.limits().chain([&all]).any(Each::has_windows);
        Ledger {
            has_windows,
            keys,
            thin: all.fresh(),
            all,
            lengths,
            allowance,
            jobs: rules.jobs.map(NonZeroU32::get),
            max_wait: rules.max_wait,
            now,
            flows: Vec::new(),
            free_flows: Vec::new(),
            requests: Requests::default(),
            turns: Turns::default(),
            arrivals: Heap::default(),
            deadlines: Heap::default(),
            outside: Heap::default(),
            outsiders: 0,
            idle: Heap::default(),
            ahead: Heap::default(),
            waiting: 0,
            usual: 0,
            granted: 0,
            is_short: false,
            latest: None,
        }
    }

    /// Continues with the state of a bucket that has the same limits, and with the states of these keys. For each key
    /// the iterator returns the name, the state, and the end of its pause.
    pub fn resume<'a>(
        &mut self,
        now: Nanos,
        all: &Thin,
        keys: impl IntoIterator<Item = (&'a [u8], &'a Thin, Option<Nanos>)>,
    ) {
        let now = self.advance(now);
        self.thin.clone_from(all);
        self.turns.changed();
        for (name, state, paused_until) in keys {
            let key = self.keys.find(name).unwrap_or_else(|| self.keys.add(name, now));
            self.keys.state_mut(key).1.clone_from(state);
            self.not_before(now, key, paused_until.unwrap_or(0));
        }
    }

    /// Adds a request behind the older requests of its key.
    ///
    /// `None` if the request can never be granted, because one of its costs is above a window's count.
    pub fn ask(&mut self, now: Nanos, key: Option<&[u8]>, request: &Request<'_>) -> Option<Ticket> {
        let now = self.advance(now);
        let name = key.unwrap_or(NO_KEY);
        let never = |each: &Each| each.has_windows() && each.never_grants(request.costs);
        if never(self.keys.limits_of(name)) || never(&self.all) {
            return None;
        }
        self.release_idle();
        let key = self.find_or_add(name, now);
        let flow = self.flow(key);
        let ticket = self.requests.add(request.age, request.arrived, request.costs, flow, request.weight);
        if request.arrived > now {
            self.flows[flow as usize].later += 1;
            self.arrivals.push(Item { at: request.arrived, age: request.age, id: ticket.slot });
        } else {
            self.arrive(ticket.slot);
        }
        self.is_short = self.try_reserve().is_err();
        Some(ticket)
    }

    /// Makes room for one more request with a new key.
    fn try_reserve(&mut self) -> Result<(), TryReserveError> {
        let slot = self.requests.try_reserve()?;
        let flow = self.flows.len();
        self.flows.try_reserve(1)?;
        self.free_flows.try_reserve((flow + 1).saturating_sub(self.free_flows.len()))?;
        self.turns.try_reserve(flow)?;
        self.arrivals.try_reserve(slot)?;
        if self.max_wait.is_some() {
            self.deadlines.try_reserve(slot)?;
        }
        for flows in [&mut self.outside, &mut self.idle, &mut self.ahead] {
            flows.try_reserve(flow)?;
        }
        Ok(())
    }

    /// Charges a request that has just arrived and is younger than all waiting requests. It must conform now, and no
    /// other request may go first. Otherwise returns `None`: the request has to [wait](Self::ask).
    pub fn pass(&mut self, now: Nanos, key: Option<&[u8]>, costs: &[u64]) -> Option<KeyId> {
        let now = self.advance(now);
        let key = self.find_free(key.unwrap_or(NO_KEY), now)?;
        if !self.all.is_empty() && self.all.conforms_at(&self.thin, now, costs)?.0 > now {
            return None;
        }
        let (each, thin) = self.keys.state_mut(key);
        each.take(thin, now, costs).ok()?;
        if !self.all.is_empty() {
            self.all.charge(&mut self.thin, [now; 4], costs);
        }
        self.turns.grant_at_once(now);
        if self.jobs.is_some() {
            let flow = self.flow(key);
            self.flows[flow as usize].running += 1;
        }
        Some(key)
    }

    /// A request of this key has just [passed](Self::pass). Returns the number of further requests with these costs
    /// that may be granted at once. 0 if that number is unknown.
    #[must_use]
    pub fn more(&self, key: KeyId, costs: &[u64]) -> u64 {
        if self.jobs.is_some() || self.has_windows() {
            return 0;
        }
        let (each, thin) = self.keys.state(key);
        each.available(thin, self.now, costs).min(self.all.available(&self.thin, self.now, costs))
    }

    /// Charges `units` further requests with these costs, which have left: at most the number that [`more`](Self::more)
    /// returned.
    pub fn pass_more(&mut self, key: KeyId, costs: &[u64], units: u64) {
        let costs: Box<[u64]> = costs.iter().map(|cost| cost.saturating_mul(units)).collect();
        let times = [self.now; 4];
        let (each, thin) = self.keys.state_mut(key);
        each.charge(thin, times, &costs);
        self.all.charge(&mut self.thin, times, &costs);
        self.turns.changed();
    }

    /// Grants the next request if it conforms now, or returns the time of the next call.
    ///
    /// A late call returns the grants that an earlier call would have returned, but with times not longer ago than the
    /// [allowance](Each::allowance).
    pub fn next(&mut self, now: Nanos) -> Next {
        let now = self.advance(now);
        let mut decision = self.decide();
        let is_before = |deadline: Item| decision.is_none_or(|decision| deadline.at < decision.at);
        if self.deadlines.first().is_some_and(is_before)
            && let Some(expired) = self.take_expired(now)
        {
            return Next::Expired(expired);
        }
        // Nothing is granted at a time before the lag allowance: the rate of that time is lost.
        let oldest = now.saturating_sub(self.allowance);
        if decision.is_some_and(|decision| decision.at < oldest) {
            self.close(oldest);
            decision = self.decide();
        }
        match decision {
            Some(decision) if decision.at <= now => self.grant(decision),
            _ => self.changes_at(decision).map_or(Next::Nothing, Next::At),
        }
    }

    /// When [`next`](Self::next) grants or expires a request, if nothing else happens first. `None` if no such time is
    /// known. If it is already due, the returned time is at most `now`.
    pub fn ready_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.advance(now);
        let decision = self.decide();
        self.changes_at(decision)
    }

    /// Reports the end of a running unit of this key: see [`Rules::jobs`].
    pub fn ended(&mut self, now: Nanos, key: KeyId) {
        let (now, jobs) = (self.advance(now), self.jobs);
        self.change(key, |flow| {
            if Some(flow.running) == jobs {
                flow.since = flow.since.max(now);
            }
            flow.running = flow.running.saturating_sub(1);
        });
    }

    /// Sets the number of granted requests that wait for the answer of a shared bucket, or for their time. Turns depend
    /// on which keys are ready when the units leave, not on which keys were ready when the bucket received the
    /// requests.
    pub fn set_away(&mut self, now: Nanos, units: usize) {
        let now = self.advance(now);
        if units < self.turns.pending {
            self.close(now);
        }
        self.turns.pending = units;
    }

    /// Puts back a request that was just granted and not used. It waits again, and nothing of its key is granted before
    /// `until`. Call this only if a shared bucket applies the limits: this ledger does not credit the charge.
    ///
    /// `None` as for [`ask`](Self::ask).
    pub fn put_back(&mut self, now: Nanos, key: KeyId, request: &Request<'_>, until: Nanos) -> Option<Ticket> {
        if let Some((.., tags)) = self.latest.filter(|(latest, age, _)| (*latest, *age) == (key, request.age)) {
            self.turns.restore(tags);
        }
        let length = self.length(request.costs);
        let flow = self.flow(key);
        let finish = &mut self.flows[flow as usize].finish;
        *finish = finish.saturating_sub(length);
        let name: Box<[u8]> = self.name(key).into();
        let ticket = self.ask(now, Some(&name), request);
        self.not_before(now, key, until);
        self.ended(now, key);
        ticket
    }

    /// Grants nothing to this key before `until`. The buckets of the key are empty at that time.
    pub fn hold_until(&mut self, now: Nanos, key: KeyId, until: Nanos) {
        if until > self.advance(now) {
            let (each, thin) = self.keys.state_mut(key);
            each.empty(thin, until);
            self.not_before(now, key, until);
        }
    }

    /// Grants nothing before `until`. The buckets of the overall limits are empty at that time.
    pub fn hold_all_until(&mut self, now: Nanos, until: Nanos) {
        if until > self.advance(now) {
            self.all.empty(&mut self.thin, until);
            self.turns.changed();
            self.close(until);
        }
    }

    /// Grants nothing to this key before `time`. Unlike [`hold_until`](Self::hold_until), this does not empty its
    /// buckets.
    pub fn not_before(&mut self, now: Nanos, key: KeyId, time: Nanos) {
        if time > self.advance(now) {
            self.change(key, |flow| flow.since = flow.since.max(time));
        }
    }

    /// The caller had no room for a grant until `time`, so later grants get no earlier time.
    pub fn ready_since(&mut self, time: Nanos) {
        self.close(time.min(self.now));
    }

    /// Reports that a granted unit was handed over just now: windows count it from `now` on. Returns the charge as it
    /// counts now, which [`settle`](Self::settle) needs.
    pub fn handed_over(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: &[u64]) -> Charged {
        if !self.has_windows() {
            return charged;
        }
        let now = self.advance(now);
        let mut counted = now;
        self.revise(key, |limits, thin| {
            counted = counted.min(limits.hand_over(thin, charged, costs, now).counted);
        });
        Charged { counted, ..charged }
    }

    /// Opens the latest grant, which will be [settled](Self::settle) before its unit has [ended](Self::ended).
    pub fn open(&mut self, key: KeyId, charged: Charged, costs: &[u64]) {
        let (each, thin) = self.keys.state_mut(key);
        each.open(thin, charged, costs);
        self.all.open(&mut self.thin, charged, costs);
    }

    /// Settles a unit at its real cost: `costs` are the charged costs and the real costs. The limits are then as if the
    /// unit had cost its real costs from the start. A credit is lost if it would have overflowed the bucket meanwhile.
    /// Later units owe the excess of a higher cost. The grant must be [open](Self::open).
    pub fn settle(&mut self, now: Nanos, key: KeyId, charged: Charged, costs: [&[u64]; 2]) {
        let now = self.advance(now);
        // The waiting requests may be granted now, but not as of an earlier time.
        self.decide();
        self.revise(key, |limits, thin| limits.settle(thin, now, charged, costs));
    }

    /// Whether units must be reported as [handed over](Self::handed_over).
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// The number of waiting requests, including later arrivals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of waiting requests that have arrived.
    pub fn arrived(&mut self, now: Nanos) -> usize {
        self.advance(now);
        self.len() - self.arrivals.len()
    }

    /// Whether requests have arrived and all of them are suspects.
    #[must_use]
    pub fn has_only_suspects(&self) -> bool {
        self.usual == 0 && self.waiting > 0
    }

    /// The number of keys with waiting requests.
    #[must_use]
    pub fn keys_waiting(&self) -> usize {
        self.waiting
    }

    /// The number of stored keys: the keys in use, and the keys whose state differs from a new key's.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The most keys that can be stored, if there is no memory for more keys. Otherwise `None`.
    #[must_use]
    pub fn max_keys_in_memory(&self) -> Option<u64> {
        self.keys.most_in_memory()
    }

    /// Whether there is too little memory for more requests.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// The number of keys with waiting requests, including requests that arrive later, and the key with the most of
    /// them.
    #[must_use]
    pub fn busiest(&self) -> (usize, Option<KeyId>) {
        let waiting = || self.flows.iter().filter(|flow| flow.waiting + flow.later > 0);
        let most = waiting().max_by_key(|flow| (flow.waiting + flow.later, flow.key));
        (waiting().count(), most.map(|flow| flow.key))
    }

    /// The next request that has reached the longest wait, even if it may be granted now: for a caller that has no room
    /// for it.
    pub fn take_expired(&mut self, now: Nanos) -> Option<Taken> {
        let now = self.advance(now);
        let Item { id, .. } = self.deadlines.first().filter(|deadline| deadline.at <= now)?;
        Some(self.remove(id))
    }

    /// When the next request reaches the longest wait.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|deadline| deadline.at)
    }

    /// The key with this name, if it is stored. `None` stands for units without a key.
    #[must_use]
    pub fn find(&self, key: Option<&[u8]>) -> Option<KeyId> {
        self.keys.find(key.unwrap_or(NO_KEY))
    }

    /// The limits of a key with their state; without a key, the overall limits.
    #[must_use]
    pub fn limits(&self, key: Option<KeyId>) -> (&Each, &Thin) {
        key.map_or((&self.all, &self.thin), |key| self.keys.state(key))
    }

    /// The name of a key; `(none)` for units without one.
    #[must_use]
    pub fn name(&self, key: KeyId) -> &[u8] {
        self.keys.name(key)
    }

    /// The waiting requests of one key: first the requests that have arrived, in their order.
    pub fn waiting_of(&self, key: KeyId) -> impl Iterator<Item = Ticket> {
        let flow = self.keys.flow(key);
        let lists = flow.map_or([List::EMPTY; 2], |flow| {
            let Flow { usual, suspects, .. } = self.flows[flow as usize];
            [usual, suspects]
        });
        let later = flow.is_some_and(|flow| self.flows[flow as usize].later > 0);
        let arrivals = self.arrivals.iter().filter(move |item| later && Some(self.requests.get(item.id).flow) == flow);
        let arrived = lists.into_iter().flat_map(|list| self.requests.of(list));
        arrived.chain(arrivals.map(|item| item.id)).map(|slot| self.requests.ticket(slot))
    }

    /// The key of a waiting request.
    #[must_use]
    pub fn key_of(&self, ticket: Ticket) -> KeyId {
        self.flows[self.requests.get(ticket.slot).flow as usize].key
    }

    /// All waiting requests, in no order.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.flows.iter().filter(|flow| !flow.is_idle()).flat_map(|flow| self.waiting_of(flow.key))
    }

    /// Cancels a request. `None` if it no longer waits.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Taken> {
        self.requests.has(ticket).then(|| self.remove(ticket.slot))
    }
}

/// Private functions shared by the calls.
impl Ledger {
    /// Clamps a clock reading that arrives out of order, and lets requests arrive.
    #[inline]
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        while let Some(arrival) = self.arrivals.first().filter(|arrival| arrival.at <= self.now) {
            self.arrivals.remove(arrival.id);
            let flow = self.requests.get(arrival.id).flow;
            self.flows[flow as usize].later -= 1;
            self.arrive(arrival.id);
        }
        self.now
    }

    /// Adds a request to its flow. The request waits from now on.
    fn arrive(&mut self, slot: u32) {
        let (id, weight) = (self.requests.get(slot).flow, self.requests.get(slot).weight);
        let first = self.flows[id as usize].first();
        if weight > 0 && self.flows[id as usize].suspects.first == NONE {
            let debt = self.length(&self.requests.get(slot).costs).saturating_mul(weight.into());
            self.flows[id as usize].debt = self.flows[id as usize].debt.max(debt);
        }
        let flow = &mut self.flows[id as usize];
        if weight == 0 {
            self.requests.link(&mut flow.usual, slot);
        } else {
            // A suspect that is refused again lets the other suspects go first, even younger ones.
            self.requests.append(&mut flow.suspects, slot);
        }
        self.waiting += usize::from(flow.waiting == 0);
        self.usual += usize::from(weight == 0);
        flow.waiting += 1;
        let is_first = flow.first() != first;
        let request = self.requests.get(slot);
        if let Some(longest) = self.max_wait {
            self.deadlines.push(Item { at: request.arrived.saturating_add(longest), age: request.age, id: slot });
        }
        if is_first {
            self.leave(id);
            self.enter(id);
        }
    }

    /// The flow of a key, which may be idle or new.
    fn flow(&mut self, key: KeyId) -> u32 {
        if let Some(flow) = self.keys.flow(key) {
            if self.flows[flow as usize].is_idle() {
                self.idle.remove(flow);
                self.ahead.remove(flow);
            }
            return flow;
        }
        let new = Flow {
            key,
            usual: List::EMPTY,
            suspects: List::EMPTY,
            debt: 0,
            waiting: 0,
            later: 0,
            running: 0,
            since: 0,
            finish: 0,
            is_outside: false,
        };
        let flow = if let Some(flow) = self.free_flows.pop() {
            self.flows[flow as usize] = new;
            flow
        } else {
            self.flows.push(new);
            u32::try_from(self.flows.len() - 1).unwrap_or(NONE)
        };
        self.keys.set_flow(key, flow);
        flow
    }

    /// The key with this name. If the key is new and the table has no room for it, its flow is outside.
    fn find_or_add(&mut self, name: &[u8], now: Nanos) -> KeyId {
        if let Some(key) = self.keys.find(name) {
            return key;
        }
        let has_room = self.has_room(now);
        let key = self.keys.add(name, now);
        if !has_room {
            let flow = self.flow(key);
            self.flows[flow as usize].is_outside = true;
            self.outsiders += 1;
        }
        key
    }

    /// Whether there is room for a key that is new now.
    fn has_room(&mut self, now: Nanos) -> bool {
        self.outside.is_empty() && self.keys.has_room(self.outsiders, now)
    }

    /// The key with this name, if a request of it that arrives now need not wait for another request, for the end of a
    /// hold, for a job, or for room in the table.
    #[inline]
    fn find_free(&mut self, name: &[u8], now: Nanos) -> Option<KeyId> {
        if self.turns.waits_at(now) {
            return None;
        }
        if let Some(key) = self.keys.find(name) {
            let is_free = |flow: u32| self.flows[flow as usize].is_free(now, self.jobs);
            return self.keys.flow(key).is_none_or(is_free).then_some(key);
        }
        self.release_idle();
        self.has_room(now).then(|| self.keys.add(name, now))
    }

    /// Decides which flow is granted next, and when. After this call, nothing is granted before that time, or before now
    /// if now is earlier.
    fn decide(&mut self) -> Option<Decision> {
        self.release_idle();
        while let Some(first) = self.outside.first()
            && self.keys.has_room(self.outsiders, self.now)
        {
            let flow = first.id;
            self.outside.remove(flow);
            self.outsiders -= 1;
            (self.flows[flow as usize].is_outside, self.flows[flow as usize].since) = (false, self.now);
            self.enter(flow);
        }
        let Ledger { turns, flows, requests, all, thin, .. } = self;
        let conforms_at = |flow: u32| {
            let first = requests.get(flows[flow as usize].first());
            if all.is_empty() { Some(first.arrived) } else { all.has_room_at(thin, first.arrived, &first.costs) }
        };
        let decision = turns.decide(conforms_at, |flow| flows[flow as usize].finish);
        self.close(decision.map_or(self.now, |decision| decision.at.min(self.now)));
        decision
    }

    /// From now on, grants nothing before this time.
    fn close(&mut self, time: Nanos) {
        let Ledger { turns, flows, .. } = self;
        turns.close(time, |flow| flows[flow as usize].finish);
    }

    fn grant(&mut self, decision: Decision) -> Next {
        let Decision { at, flow, .. } = decision;
        let tags = self.turns.tags();
        let (key, slot) = (self.flows[flow as usize].key, self.flows[flow as usize].first());
        let (length, weight) = (self.length(&self.requests.get(slot).costs), self.requests.get(slot).weight);
        let finish = self.turns.grant(decision, length);
        let taken = self.unlink(slot);
        self.latest = Some((key, taken.age, tags));
        let times = [at, taken.arrived, at, self.now];
        let (each, thin) = self.keys.state_mut(key);
        each.charge(thin, times, &taken.costs);
        self.all.charge(&mut self.thin, times, &taken.costs);
        let flow = &mut self.flows[flow as usize];
        flow.running += u32::from(self.jobs.is_some());
        flow.finish = finish;
        flow.debt = match weight {
            0 => flow.debt.saturating_sub(length),
            // If debt is left here, no usual request waited, and the suspect took none of their turns. So its own debt
            // is not added to the earlier one.
            _ => flow.debt.max(length.saturating_mul(weight.into())),
        };
        self.turns.changed();
        self.enter_or_release(key);
        self.granted += 1;
        Next::Granted(taken, Charged { at, counted: self.now, number: self.granted })
    }

    fn changes_at(&self, decision: Option<Decision>) -> Option<Nanos> {
        let arrival = self.arrivals.first().map(|arrival| arrival.at);
        let room = (!self.outside.is_empty()).then(|| self.keys.room_at()).filter(|time| *time < Nanos::MAX);
        [decision.map(|decision| decision.at), self.deadline(), arrival, room].into_iter().flatten().min()
    }

    /// The length of a request: the longest time that an overall limit needs for its costs.
    fn length(&self, costs: &[u64]) -> Tag {
        let of =
            |(kind, one): &(usize, Tag)| costs.get(*kind).or(costs.last()).map_or(0, |cost| cost.saturating_mul(*one));
        self.lengths.iter().map(of).max().unwrap_or(0).max(1)
    }

    /// Removes a request that has not been granted.
    fn remove(&mut self, slot: u32) -> Taken {
        let (flow, is_linked) = (self.requests.get(slot).flow, self.requests.get(slot).is_linked);
        if is_linked {
            self.leave(flow);
            let taken = self.unlink(slot);
            self.enter_or_release(taken.key);
            return taken;
        }
        self.arrivals.remove(slot);
        self.flows[flow as usize].later -= 1;
        let taken = self.free(slot);
        self.release(flow);
        taken
    }

    /// Takes a request that has arrived out of the list of its flow. The flow must have left the turns.
    fn unlink(&mut self, slot: u32) -> Taken {
        let (flow, weight) = (self.requests.get(slot).flow, self.requests.get(slot).weight);
        let flow = &mut self.flows[flow as usize];
        self.requests.unlink(flow.list(weight), slot);
        self.usual -= usize::from(weight == 0);
        flow.waiting -= 1;
        self.waiting -= usize::from(flow.waiting == 0);
        self.deadlines.remove(slot);
        self.free(slot)
    }

    fn free(&mut self, slot: u32) -> Taken {
        let (ticket, key) = (self.requests.ticket(slot), self.flows[self.requests.get(slot).flow as usize].key);
        let gone = self.requests.free(slot);
        Taken { ticket, key, age: gone.age, costs: gone.costs, arrived: gone.arrived }
    }

    /// Corrects the limits of a key, and the overall limits, for a unit that has left.
    fn revise(&mut self, key: KeyId, mut act: impl FnMut(&Each, &mut Thin)) {
        act(&self.all, &mut self.thin);
        let (each, thin) = self.keys.state_mut(key);
        act(each, thin);
        self.turns.changed();
        if let Some(flow) = self.keys.flow(key) {
            self.leave(flow);
            self.enter(flow);
        }
        self.keys.note(key);
    }

    /// Applies `act` to the flow of a key. This may change when its first request conforms.
    fn change(&mut self, key: KeyId, act: impl FnOnce(&mut Flow)) {
        let flow = self.flow(key);
        self.leave(flow);
        act(&mut self.flows[flow as usize]);
        self.enter_or_release(key);
    }

    fn enter_or_release(&mut self, key: KeyId) {
        if let Some(flow) = self.keys.flow(key) {
            self.enter(flow);
            self.release(flow);
        }
    }

    /// The first request of a flow stops competing.
    fn leave(&mut self, flow: u32) {
        if self.flows[flow as usize].is_outside {
            self.outside.remove(flow);
        } else {
            self.turns.leave(flow);
        }
    }

    /// The first request of a flow begins to wait for its limits, or for room.
    fn enter(&mut self, flow: u32) {
        let Flow { key, running, since, finish, is_outside, .. } = self.flows[flow as usize];
        let first = self.flows[flow as usize].first();
        if first == NONE || self.jobs.is_some_and(|jobs| running >= jobs) {
            return;
        }
        let first = self.requests.get(first);
        if is_outside {
            return self.outside.push(Item { at: first.age, age: first.age, id: flow });
        }
        let (each, thin) = self.keys.state(key);
        let own = each.has_room_at(thin, first.arrived, &first.costs).unwrap_or(Nanos::MAX);
        self.turns.enter(flow, own.max(since), finish, first.age);
    }

    /// Frees a flow that has no waiting requests and no running units, or stores it in `idle` or `ahead` to free it
    /// later.
    fn release(&mut self, flow: u32) {
        let Flow { key, since, finish, is_outside, .. } = self.flows[flow as usize];
        if !self.flows[flow as usize].is_idle() {
            return;
        }
        self.idle.remove(flow);
        self.ahead.remove(flow);
        // A key that is outside is forgotten only later, because its name is still needed.
        if since > self.now || is_outside {
            self.idle.push(Item { at: since, age: 0, id: flow });
        } else if finish > self.turns.virtual_time() {
            self.ahead.push(Item { at: finish, age: 0, id: flow });
        } else {
            self.free_flows.push(flow);
            self.keys.set_idle(key);
        }
    }

    /// Frees flows that have been idle for long enough.
    #[inline]
    fn release_idle(&mut self) {
        if let Some(first) = self.ahead.first() {
            if self.ahead.len() > MAX_TAGS {
                self.turns.pass_time(first.at);
            }
            while let Some(first) = self.ahead.first().filter(|first| first.at <= self.turns.virtual_time()) {
                self.release(first.id);
            }
        }
        while let Some(first) = self.idle.first().filter(|first| first.at <= self.now) {
            self.idle.remove(first.id);
            let Flow { key, is_outside, .. } = self.flows[first.id as usize];
            if is_outside {
                self.outsiders -= 1;
                self.free_flows.push(first.id);
                self.keys.set_idle(key);
                self.keys.forget(key);
            } else {
                self.release(first.id);
            }
        }
    }
}
