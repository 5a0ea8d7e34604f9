//! One process at a shared bucket: its requests, and the grants that it has not used.

use super::{Store, StoreError, with_replica};
use crate::clock::{MILLISECOND, Nanos, SECOND};
use crate::ledger::Replica;
use crate::ledger::operation::{Ask, Grant, Operation, Outcome, PLAIN, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A bucket in any place.
pub type AnyStore = dyn Store + Send + Sync;

/// A process that waits reads the bucket at least this often: a change of the bucket concerns it within this time.
const MOST_BETWEEN_READS: Nanos = SECOND;

/// While the end or the real costs of a unit decide when another one goes, the time between two reads grows with the
/// number of processes.
const PROCESSES_PER_HORIZON: u64 = 16;

/// A new estimate takes at most one part in this many of the time between two estimates.
const SHARE_OF_ESTIMATES: Nanos = 50;

/// The next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The unit of this grant, or its plain units, may leave now.
    Go(Grant),
    /// The request with this ticket is never granted.
    Refused(u64, Refusal),
    /// Nothing happens before this time of the bucket.
    At(Nanos),
    /// Nothing happens before a report or a further request.
    Nothing,
}

/// The requests of one process. Its methods do not wait, except for the store.
#[derive(Debug)]
pub struct Client {
    store: Arc<AnyStore>,
    /// The requests without an answer.
    asked: BTreeMap<u64, Ask>,
    /// The requests that are made again at this time.
    later: BTreeSet<(Nanos, u64)>,
    /// The plain units without a grant.
    wanted: u64,
    ticket: u64,
    /// Committed grants that have not been used, in their order, each with its request; plain units have none.
    granted: VecDeque<(Grant, Option<Ask>)>,
    refused: VecDeque<(u64, Refusal)>,
    outgoing: Vec<Operation>,
    /// The number of the latest grant of the bucket, as last read.
    latest: u64,
    /// When the bucket is read next.
    reads_at: Nanos,
    /// When the answer to what was sent is expected.
    arrives_at: Option<Nanos>,
    /// Whether the latest grant came too late: another process had moved it up. It is read more often until one comes in
    /// time. Otherwise two processes could each give its grant back while the other sleeps, without end.
    was_late: bool,
    /// Whether a grant came too late since [`take_late`](Self::take_late) was called.
    came_late: bool,
    /// Whether what is to be sent waits for the next request.
    is_paused: bool,
    estimated: Option<Estimate>,
}

/// What a reading of the log has brought.
struct News {
    grants: Vec<Grant>,
    refusals: Vec<(u64, Refusal)>,
    /// The plain units that wait in the bucket.
    wanted: u64,
}

/// When the only request is granted if nothing changes.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    at: Option<Nanos>,
    moves: u64,
    /// When a new estimate may be made.
    again: Nanos,
}

impl Client {
    /// A process without requests.
    pub fn new(store: Arc<AnyStore>) -> Self {
        let latest = with_replica(&*store, |replica| replica.latest());
        Client {
            store,
            asked: BTreeMap::new(),
            later: BTreeSet::new(),
            wanted: 0,
            ticket: 0,
            granted: VecDeque::new(),
            refused: VecDeque::new(),
            outgoing: Vec::new(),
            latest,
            reads_at: Nanos::MAX,
            arrives_at: None,
            was_late: false,
            came_late: false,
            is_paused: false,
            estimated: None,
        }
    }

    /// The bucket.
    pub fn store(&self) -> &Arc<AnyStore> {
        &self.store
    }

    /// Requests a unit. Returns the ticket of the request, whatever its own says.
    pub fn ask(&mut self, ask: Ask) -> u64 {
        self.ticket += 1;
        self.is_paused = false;
        let ask = Ask { ticket: self.ticket, ..ask };
        self.asked.insert(ask.ticket, ask.clone());
        self.estimated = None;
        match self.outgoing.last_mut() {
            Some(Operation::Ask(asks)) => asks.push(ask),
            _ => self.outgoing.push(Operation::Ask(vec![ask])),
        }
        self.ticket
    }

    /// Requests plain units.
    pub fn want(&mut self, units: u64) {
        if units > 0 {
            self.wanted += units;
            self.outgoing.push(Operation::Want(units));
        }
    }

    /// Refuses a request, because it would wait too long.
    pub fn deny(&mut self, ticket: u64) {
        if self.waits(ticket) {
            self.outgoing.push(Operation::Deny(vec![ticket]));
            self.asked.remove(&ticket);
        }
        self.cancel(ticket);
    }

    /// Cancels a request.
    pub fn cancel(&mut self, ticket: u64) {
        self.later.retain(|(_, other)| *other != ticket);
        if self.asked.remove(&ticket).is_some() {
            self.outgoing.push(Operation::Cancel(vec![ticket]));
        }
        self.drop_granted(|grant| grant.ticket == ticket);
    }

    /// Cancels the plain units that wait, and gives back those that were granted and have not left. Returns their number.
    pub fn want_nothing(&mut self) -> u64 {
        let waited = std::mem::take(&mut self.wanted);
        if waited > 0 {
            self.outgoing.push(Operation::WantNothing);
        }
        let plain = self.drop_granted(|grant| grant.ticket == PLAIN);
        waited + plain.iter().map(|(grant, _)| grant.units).sum::<u64>()
    }

    /// Reports these grants as unused. Returns them.
    fn drop_granted(&mut self, is_unused: impl Fn(&Grant) -> bool) -> Vec<(Grant, Option<Ask>)> {
        let (unused, rest): (Vec<_>, Vec<_>) = self.granted.drain(..).partition(|(grant, _)| is_unused(grant));
        self.granted.extend(rest);
        if !unused.is_empty() {
            self.outgoing.push(Operation::Unused(unused.iter().map(|(grant, _)| grant.number).collect()));
        }
        unused
    }

    /// Sends an operation with the next exchange.
    pub fn report(&mut self, operation: Operation) {
        match (self.outgoing.last_mut(), operation) {
            (Some(Operation::Ended(numbers)), Operation::Ended(more)) => numbers.extend(more),
            (_, operation) => self.outgoing.push(operation),
        }
    }

    /// Whether a grant came too late since the previous call, and was given back.
    #[must_use]
    pub fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.came_late)
    }

    /// Whether something is to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.arrives_at.is_some()
    }

    /// Gives back what was granted and has not left. It waits again, at its place.
    pub fn put_back(&mut self) {
        self.give_back(|_| true);
    }

    /// The number of requests and of plain units without an answer, and of grants that have not been used.
    pub fn len(&self) -> u64 {
        self.wanted
            + (self.asked.len() + self.refused.len()) as u64
            + self.granted.iter().map(|(grant, _)| grant.units).sum::<u64>()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The plain units that wait for a grant, or for its time.
    pub fn wanted(&self) -> u64 {
        let plain = self.granted.iter().filter(|(grant, _)| grant.ticket == PLAIN);
        self.wanted + plain.map(|(grant, _)| grant.units).sum::<u64>()
    }

    /// The next event, for a sink that accepts at most `room` units.
    ///
    /// # Errors
    /// The bucket cannot be reached. What was to be sent is sent with the next call.
    pub fn poll(&mut self, room: u64) -> Result<Next, StoreError> {
        loop {
            let now = self.store.clock().now();
            while let Some((_, ticket)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
                self.later.pop_first();
                if ticket == PLAIN {
                    self.reads_at = 0;
                } else {
                    self.ask_again(ticket, 0);
                }
            }
            // The answers may lead to further operations, which the bucket should receive at once.
            for _ in 0..2 {
                self.talk(now)?;
            }
            if let Some((ticket, why)) = self.refused.pop_front() {
                return Ok(Next::Refused(ticket, why));
            }
            let now = self.store.clock().now();
            match self.first_granted() {
                Some(grant) if grant.at <= now && self.store.is_late(grant.at) => self.give_back_from(grant),
                Some(grant) if grant.at <= now && room > 0 => {
                    self.was_late = false;
                    self.granted.pop_front();
                    return Ok(Next::Go(self.up_to(grant, room)));
                }
                next => {
                    let due = next.map(|grant| grant.at).filter(|_| room > 0);
                    return Ok(self.turns_at(due).map_or(Next::Nothing, Next::At));
                }
            }
        }
    }

    /// When [`poll`](Self::poll) has news, on the bucket's clock.
    pub fn next_event(&self) -> Option<Nanos> {
        let sends = !self.outgoing.is_empty() && !self.is_paused && self.arrives_at.is_none();
        if sends || !self.refused.is_empty() {
            return Some(0);
        }
        self.turns_at(self.first_granted().map(|grant| grant.at))
    }

    /// When something happens, beside the next grant, which is `due` then.
    fn turns_at(&self, due: Option<Nanos>) -> Option<Nanos> {
        let reads = Some(self.reads_at).filter(|at| *at < Nanos::MAX);
        let answer = self.arrives_at.filter(|_| !self.is_paused).or(reads);
        let later = self.later.first().map(|(at, _)| *at);
        [due, answer, later].into_iter().flatten().min()
    }

    /// Receives an answer that is expected by now, and sends what is to be sent.
    fn talk(&mut self, now: Nanos) -> Result<(), StoreError> {
        match self.arrives_at {
            Some(_) if self.is_paused => return Ok(()),
            Some(time) if now < time => return Ok(()),
            Some(_) => {
                let now = self.store.collect()?;
                self.arrives_at = None;
                self.learn();
                self.plan(now);
            }
            None => {}
        }
        if (self.outgoing.is_empty() || self.is_paused) && now < self.reads_at {
            return Ok(());
        }
        self.arrives_at = self.store.post(&self.outgoing);
        if self.arrives_at.is_none() {
            return self.exchange();
        }
        self.outgoing.clear();
        Ok(())
    }

    /// When the next unit leaves, as far as it is known. An estimate, if nothing is committed.
    pub fn leaves_at(&self) -> Option<Nanos> {
        let known = self.first_granted().map(|grant| grant.at);
        known.or_else(|| self.estimated.and_then(|estimate| estimate.at)).or_else(|| {
            let horizon = |replica: &mut Replica| Some(replica.next_event()?.saturating_add(replica.horizon()));
            with_replica(&*self.store, horizon).filter(|_| !self.is_empty())
        })
    }

    /// When a request is granted if nothing changes; without room for it, when there may be room. `None`: never, or not
    /// before a unit ends.
    pub fn estimate(&self, ticket: u64) -> Option<Nanos> {
        if let Some((grant, _)) = self.granted.iter().find(|(grant, _)| grant.ticket == ticket) {
            return Some(grant.at);
        }
        if let Some((until, _)) = self.later.iter().find(|(_, later)| *later == ticket) {
            return Some(*until);
        }
        with_replica(&*self.store, |replica| replica.estimate(self.store.owner(), ticket))
    }

    /// Whether a request has no answer yet.
    pub fn waits(&self, ticket: u64) -> bool {
        self.asked.contains_key(&ticket)
    }

    /// Sends what is to be sent, and reads the log.
    ///
    /// # Errors
    /// The bucket cannot be reached. What was to be sent is sent with the next call.
    pub fn exchange(&mut self) -> Result<(), StoreError> {
        let outgoing = self.outgoing.clone();
        let now = self.store.send(outgoing)?;
        self.outgoing.clear();
        (self.arrives_at, self.is_paused) = (None, false);
        self.learn();
        self.plan(now);
        Ok(())
    }

    /// Takes the outcomes of the ledger.
    fn learn(&mut self) {
        let News { grants, refusals, wanted } = self.news();
        for grant in grants {
            self.granted(grant);
        }
        for (ticket, why) in refusals {
            self.refused(ticket, why);
        }
        let is_changed = self.outgoing.iter().any(|one| matches!(one, Operation::Want(_) | Operation::WantNothing));
        if is_changed || self.is_later(PLAIN) {
            // The bucket receives what is wanted next, or there is no room yet.
            return;
        }
        if wanted > self.wanted {
            // The bucket had granted units before it received that they are no longer wanted.
            self.outgoing.push(Operation::WantNothing);
        }
        let wanted = if wanted > self.wanted { 0 } else { wanted };
        if wanted < self.wanted {
            self.outgoing.push(Operation::Want(self.wanted - wanted));
        }
    }

    /// What is new in the ledger.
    fn news(&mut self) -> News {
        let (owner, before) = (self.store.owner(), self.latest);
        let store = Arc::clone(&self.store);
        with_replica(&*store, |replica| {
            let (mut grants, mut refusals) = (Vec::new(), Vec::new());
            if replica.take_is_loaded() {
                // The changes up to the snapshot were not counted.
                self.estimated = None;
                grants.extend(replica.grants_of(owner));
            }
            replica.listen(owner);
            while let Some((_, outcome)) = replica.take() {
                match outcome {
                    Outcome::Granted(grant) => grants.push(grant),
                    Outcome::Refused(ticket, why) => refusals.push((ticket, why)),
                }
            }
            // A bucket that was made again begins at a random number, which may be lower.
            let latest = replica.latest();
            grants.retain(|grant: &Grant| grant.number > before || latest < before && grant.number <= latest);
            // Grants of the bucket before come first.
            grants.sort_unstable_by_key(|grant| (grant.number <= latest, grant.number));
            grants.dedup_by_key(|grant| grant.number);
            let answered: BTreeSet<u64> =
                grants.iter().map(|grant| grant.ticket).chain(refusals.iter().map(|(ticket, _)| *ticket)).collect();
            let is_lost = |ticket: &&u64| !replica.waits(owner, **ticket) && !answered.contains(*ticket);
            let lost =
                self.asked.keys().filter(is_lost).filter(|ticket| !self.is_later(**ticket) && self.is_sent(**ticket));
            // The refusal is in a snapshot. Or the bucket was lost.
            let why = |ticket: u64| replica.refusal_of(owner, ticket).unwrap_or(Refusal::Cleared);
            refusals.extend(lost.map(|ticket| (*ticket, why(*ticket))));
            self.latest = latest;
            News { grants, refusals, wanted: replica.wanted(owner) }
        })
    }

    fn is_later(&self, ticket: u64) -> bool {
        self.later.iter().any(|(_, later)| *later == ticket)
    }

    fn is_sent(&self, ticket: u64) -> bool {
        let has_it =
            |one: &Operation| matches!(one, Operation::Ask(asks) if asks.iter().any(|ask| ask.ticket == ticket));
        !self.outgoing.iter().any(has_it)
    }

    fn granted(&mut self, grant: Grant) {
        if grant.ticket == PLAIN && grant.units <= self.wanted {
            self.wanted -= grant.units;
            self.granted.push_back((grant, None));
        } else if let Some(ask) = self.asked.remove(&grant.ticket) {
            self.estimated = None;
            // It is asked for again at its place, if it comes too late.
            self.granted.push_back((grant, Some(Ask { age: grant.age, ..ask })));
        } else {
            // It is no longer wanted. A part of it could not be given back later: plain units are requested anew.
            self.outgoing.push(Operation::Unused(vec![grant.number]));
        }
    }

    fn refused(&mut self, ticket: u64, why: Refusal) {
        match why {
            Refusal::Cleared => self.ask_again(ticket, 0),
            Refusal::NoRoom(until) => _ = self.later.insert((until, ticket)),
            _ if ticket == PLAIN => self.wanted = 0,
            _ => {
                if self.asked.remove(&ticket).is_some() {
                    self.refused.push_back((ticket, why));
                }
            }
        }
    }

    /// Requests a unit again, with this age.
    fn ask_again(&mut self, ticket: u64, age: u64) {
        if let Some(ask) = self.asked.get_mut(&ticket) {
            ask.age = age;
            self.outgoing.push(Operation::Ask(vec![ask.clone()]));
        }
    }

    fn first_granted(&self) -> Option<Grant> {
        self.granted.front().map(|(grant, _)| *grant)
    }

    /// A grant comes too late. It is given back with the later grants of its flow, so that no unit overtakes another. Of
    /// plain units only the late ones are given back.
    fn give_back_from(&mut self, late: Grant) {
        (self.was_late, self.came_late) = (true, true);
        let (store, now) = (Arc::clone(&self.store), self.store.clock().now());
        if late.ticket == PLAIN {
            return self.give_back(|grant| grant.ticket == PLAIN && grant.at <= now && store.is_late(grant.at));
        }
        let has_keys = with_replica(&*self.store, |replica| replica.policy().of_keys().is_some());
        let key = |ask: &Option<Ask>| ask.as_ref().and_then(|ask| ask.key.clone()).filter(|_| has_keys);
        let of_late = self.granted.front().and_then(|(_, ask)| key(ask));
        let of_flow = self.granted.iter().filter(|(grant, ask)| grant.ticket != PLAIN && key(ask) == of_late);
        let of_flow: BTreeSet<u64> = of_flow.map(|(grant, _)| grant.number).collect();
        self.give_back(|grant| of_flow.contains(&grant.number));
    }

    /// Gives grants back, together: whoever is late has no time to lose. Their units wait again, each at its place.
    fn give_back(&mut self, is_unused: impl Fn(&Grant) -> bool) {
        let unused = self.drop_granted(is_unused);
        self.want(unused.iter().filter(|(grant, _)| grant.ticket == PLAIN).map(|(grant, _)| grant.units).sum());
        for ask in unused.into_iter().filter_map(|(_, ask)| ask) {
            let (ticket, age) = (ask.ticket, ask.age);
            self.asked.insert(ticket, ask);
            self.ask_again(ticket, age);
        }
    }

    /// The grant for at most `room` units. The rest waits again.
    fn up_to(&mut self, grant: Grant, room: u64) -> Grant {
        if grant.units <= room {
            return grant;
        }
        self.outgoing.push(Operation::Settle { number: grant.number, real: [room].into() });
        self.want(grant.units - room);
        Grant { units: room, ..grant }
    }

    /// Plans the next reading.
    fn plan(&mut self, now: Nanos) {
        if self.asked.is_empty() && self.wanted == 0 {
            self.reads_at = Nanos::MAX;
            return;
        }
        let only = self.asked.keys().next().copied().filter(|_| self.wanted == 0 && self.asked.len() == 1);
        self.estimated = only.and_then(|ticket| self.estimate_again(now, ticket));
        let latest = now.saturating_add(MOST_BETWEEN_READS);
        self.reads_at = self.next_reading(now).min(latest);
        if self.reads_at == latest && self.granted.is_empty() {
            self.store.rest();
        }
    }

    /// The estimate of the only request, if others wait before it.
    fn estimate_again(&self, now: Nanos, ticket: u64) -> Option<Estimate> {
        let (owner, clock) = (self.store.owner(), self.store.clock());
        with_replica(&*self.store, |replica| {
            // A grant of another process whose real costs will be reported may move up this one.
            if replica.len() <= 2 || replica.has_requests_that_settle(owner) {
                return None;
            }
            let (horizon, moves) = (replica.horizon(), replica.moves());
            // A pause or an earlier request may have made it later.
            let is_ahead = |estimate: &Estimate| estimate.at.is_none_or(|at| at.saturating_sub(horizon) > now);
            let is_known = |estimate: &Estimate| now < estimate.again || estimate.moves == moves && is_ahead(estimate);
            self.estimated.filter(is_known).or_else(|| {
                let begun = clock.now();
                let at = replica.estimate(owner, ticket);
                let took = clock.now().saturating_sub(begun);
                Some(Estimate { at, moves, again: now.saturating_add(took * SHARE_OF_ESTIMATES) })
            })
        })
    }

    /// When the log is to be read next, but not after [`MOST_BETWEEN_READS`].
    fn next_reading(&self, now: Nanos) -> Nanos {
        let (owner, round_trip) = (self.store.owner(), self.store.round_trip());
        let key = self.asked.values().next().and_then(|ask| ask.key.as_deref());
        let (next, horizon, soon) = with_replica(&*self.store, |replica| {
            let horizon = replica.horizon();
            let next = match self.estimated {
                Some(estimate) => estimate.at.map(|at| at.saturating_sub(horizon)),
                None => replica.next_event(),
            };
            // A pause moves up nobody.
            let was_late = self.was_late && !replica.is_held(key);
            let may_move = next.is_none() || was_late || replica.may_be_settled_by_others(owner);
            let often = horizon * (1 + replica.owners().count() as u64 / PROCESSES_PER_HORIZON);
            (next, horizon, may_move.then(|| now.saturating_add(often)))
        });
        let next = next.map(|next| next.saturating_sub(round_trip / 2));
        let next = [next, soon].into_iter().flatten().min().unwrap_or(now);
        next.max(now.saturating_add((horizon / 4).max(round_trip / 16).max(MILLISECOND)))
    }

    /// Reads nothing before the next request: the bucket cannot be reached.
    pub fn pause(&mut self) {
        self.reads_at = Nanos::MAX;
        self.is_paused = true;
    }

    /// Cancels everything, and gives back what was granted and has not left.
    ///
    /// # Errors
    /// The bucket cannot be reached.
    pub fn withdraw(&mut self) -> Result<(), StoreError> {
        self.want_nothing();
        let tickets: Vec<u64> = std::mem::take(&mut self.asked).into_keys().collect();
        if !tickets.is_empty() {
            self.outgoing.push(Operation::Cancel(tickets));
        }
        self.drop_granted(|_| true);
        self.later.clear();
        self.refused.clear();
        self.reads_at = Nanos::MAX;
        let mut is_open = self.arrives_at.take().is_some();
        while std::mem::take(&mut is_open) || !self.outgoing.is_empty() {
            self.store.send(std::mem::take(&mut self.outgoing))?;
            // Plain units may have been granted before the bucket received that they are no longer wanted.
            self.learn();
        }
        Ok(())
    }
}
