//! The grants of a shared bucket, as the pump polls them. The bucket's ledger decides which unit of all processes goes
//! next. The line of the run only orders the units that the bucket does not know yet: a process has few requests there.

use super::lock::unpoisoned;
use super::look::{Sorting, short};
use super::next::{Charge, Granted, Next, Refusal};
use super::units::Units;
use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use throttle_limits::clock::{MILLISECOND, Nanos};
use throttle_limits::ledger::Replica;
use throttle_limits::ledger::operation::{self, Ask, Grant, Operation, PLAIN};
use throttle_limits::limits::{NO_KEY, Pace, Policy, Refusal as BucketRefusal, Served, Start};
use throttle_limits::line::{self, Charged, KeyId, Unit};
use throttle_limits::store::{AnyStore, Client, Next as Event, StoreError, check_kind, lock_soon, with_replica};

/// The most requests of this process in the bucket. Its other units wait here.
const MAX_ASKED: usize = 64;

/// While most of these places are taken, units are requested in intervals of at least this time.
const MIN_INTERVAL: Nanos = MILLISECOND;

/// The time for which plain units are requested: with others, at least, and alone, at most.
const MIN_WANTED: Nanos = 20 * MILLISECOND;
const MAX_WANTED: Nanos = 200 * MILLISECOND;

/// How many of these requests one key may have, at least, and while few keys wait.
const FEW: u32 = 4;
const MANY: u32 = 48;

/// Reports of servers about the units of one key, or about all units.
#[derive(Debug, Default)]
pub struct ServerReport {
    /// How long no further unit may leave, in nanoseconds from now.
    pub hold: Option<Nanos>,
    /// The starts of the units that servers refused.
    pub refused: Vec<Start>,
    /// The units that servers served.
    pub served: Served,
}

/// A shared bucket, and the units that have left the line for it.
pub struct Bucket<T> {
    store: Arc<AnyStore>,
    /// The limits at the start. They decide what the units count: units, bytes, or costs.
    meant: Policy,
    /// Whether the bucket learns a pace from refusals.
    learns: bool,
    /// The longest wait of a unit.
    max_wait: Option<Nanos>,
    state: Mutex<State<T>>,
    news: Mutex<News>,
    /// How many units the sink accepts soon, while it accepts any now.
    soon: AtomicU64,
}

/// What the pump passes on to the bucket.
#[derive(Default)]
struct News {
    operations: Vec<Operation>,
    /// Whether the bucket must know them at once.
    is_urgent: bool,
    /// Whether units that were granted and have not left are given back, because a server asked for a pause.
    gives_back: bool,
    /// The keys that this process has abandoned.
    abandoned: Vec<KeyId>,
}

struct State<T> {
    client: Client,
    /// The units with a request, by ticket.
    asked: BTreeMap<u64, (KeyId, Charged, Unit<T>)>,
    /// How many requests a key may have now.
    of_key: u32,
    /// When units were requested last, on the clock of the line.
    asked_at: Nanos,
    /// The most plain units to request, because grants came too late.
    most: u64,
    /// What a run in time adds to that.
    step: u64,
}

impl<T> State<T> {
    /// Takes back the requests of an abandoned key, and refuses its units.
    fn refuse_all_of(&mut self, key: KeyId, units: &Units<T>) {
        let asked = std::mem::take(&mut self.asked).into_iter();
        let (of_key, others) = asked.partition(|(_, (of, ..))| *of == key);
        self.asked = others;
        for (ticket, (_, charged, unit)) in of_key {
            self.client.cancel(ticket);
            units.line().ended(units.now(), charged.number);
            units.refused().push_back((unit.content, Refusal::SentAway));
        }
    }
}

impl<T> Debug for Bucket<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bucket").field(&self.store).finish()
    }
}

impl<T: Send> Bucket<T> {
    /// The bucket in `store`, for units that are sorted as in `sorting`. With `learns`, the bucket learns a pace from
    /// refusals.
    pub fn new(store: Arc<AnyStore>, sorting: &Sorting, learns: bool) -> Self {
        let client = Client::new(Arc::clone(&store));
        let state = State { client, asked: BTreeMap::new(), of_key: 0, asked_at: 0, most: u64::MAX, step: 1 };
        let (meant, max_wait) = (store.policy(), sorting.max_wait);
        Bucket {
            store,
            meant,
            learns,
            max_wait,
            state: Mutex::new(state),
            news: Mutex::default(),
            soon: AtomicU64::new(0),
        }
    }

    /// The place of the bucket.
    pub fn store(&self) -> &Arc<AnyStore> {
        &self.store
    }

    /// Sets how many units the sink accepts soon, although it accepts fewer at one time: they are requested together.
    pub fn accepts_soon(&self, units: u64) {
        self.soon.store(units, Ordering::Relaxed);
    }

    /// Whether the bucket counts running commands.
    pub fn counts_jobs(&self) -> bool {
        self.meant.counts_jobs()
    }

    /// The name of a key in the bucket; `None` if the bucket has no limits for each key.
    pub fn name(&self, key: Option<&[u8]>) -> Option<Box<[u8]>> {
        self.meant.of_keys().map(|_| short(key.unwrap_or(NO_KEY)))
    }

    /// Stores a report about a key, which the pump passes on. Returns whether the pump should be woken for it.
    pub fn report(&self, key: Option<&[u8]>, report: ServerReport) -> bool {
        let (key, mut news) = (self.name(key), unpoisoned(self.news.lock()));
        let refused = if self.learns { report.refused } else { Vec::new() };
        if report.served != Served::default() && self.learns {
            news.operations.push(Operation::Served(key.clone(), report.served));
        }
        if report.hold.is_some() || !refused.is_empty() {
            let until = report.hold.map_or(0, |time| self.store.clock().now().saturating_add(time));
            news.operations.push(Operation::Hold { key, until, refused });
            (news.is_urgent, news.gives_back) = (true, report.hold.is_some() || news.gives_back);
        }
        news.is_urgent
    }

    /// A unit of this key has succeeded or failed.
    pub fn tried(&self, key: Option<&[u8]>, has_succeeded: bool) -> bool {
        let Some(key) = self.name(key) else { return false };
        self.tell(Operation::Tried { key, has_succeeded }, !has_succeeded);
        !has_succeeded
    }

    /// Stores an operation, which the pump passes on.
    pub fn tell(&self, operation: Operation, is_urgent: bool) {
        let mut news = unpoisoned(self.news.lock());
        news.operations.push(operation);
        news.is_urgent |= is_urgent;
    }

    /// No unit of this key leaves any more. The pump has to be woken.
    pub fn abandon(&self, key: KeyId) {
        let mut news = unpoisoned(self.news.lock());
        news.abandoned.push(key);
        news.is_urgent = true;
    }

    /// The learned pace of a key.
    pub fn pace(&self, key: Option<&[u8]>) -> Pace {
        let key = self.name(key);
        with_replica(&*self.store, |replica| replica.pace(key.as_deref()))
    }

    /// The index of the limit for which the next unit waits.
    pub(super) fn bound_by(&self) -> Option<usize> {
        with_replica(&*self.store, Replica::bound_by)
    }

    /// Passes reports on to the bucket.
    pub(super) fn pass_on(&self, units: &Units<T>) {
        let news = {
            let mut news = unpoisoned(self.news.lock());
            if !news.is_urgent && news.operations.len() < MAX_ASKED {
                return;
            }
            std::mem::take(&mut *news)
        };
        let mut state = self.state();
        if news.gives_back {
            state.client.put_back();
        }
        news.abandoned.into_iter().for_each(|key| state.refuse_all_of(key, units));
        news.operations.into_iter().for_each(|operation| state.client.report(operation));
    }

    /// Passes all reports on, at the end of the run.
    pub(super) fn pass_all_on(&self, units: &Units<T>) -> Result<(), StoreError> {
        unpoisoned(self.news.lock()).is_urgent = true;
        self.pass_on(units);
        let client = &mut self.state().client;
        if client.has_outgoing() {
            // The run does not wait for a server that is away.
            self.store.leave();
            return client.exchange();
        }
        Ok(())
    }

    /// Converts a time of the bucket to the clock of the line.
    pub(super) fn here(&self, now: Nanos, time: Nanos) -> Nanos {
        let of_bucket = self.store.clock().now();
        now.saturating_add(time.saturating_sub(of_bucket)).saturating_sub(of_bucket.saturating_sub(time))
    }

    /// Converts a time of the line to the clock of the bucket.
    fn there(&self, now: Nanos, time: Nanos) -> Nanos {
        let of_bucket = self.store.clock().now();
        of_bucket.saturating_add(time.saturating_sub(now)).saturating_sub(now.saturating_sub(time))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        unpoisoned(self.state.lock())
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.asked.is_empty() && state.client.wanted() == 0
    }

    /// The number of units that have left the line and wait for the bucket.
    pub fn units(&self) -> usize {
        let state = self.state();
        let plain = usize::try_from(state.client.wanted()).unwrap_or(usize::MAX);
        plain.saturating_add(state.asked.len())
    }

    /// Calls `look` with each unit that has left the line and waits for the bucket.
    pub fn each_unit(&self, mut look: impl FnMut(&T)) {
        self.state().asked.values().for_each(|(.., unit)| look(&unit.content));
    }

    /// Takes out all units that have left the line.
    pub fn drain(&self) -> Vec<T> {
        std::mem::take(&mut self.state().asked).into_values().map(|(.., unit)| unit.content).collect()
    }

    /// When the bucket has news, on the clock of the line.
    pub(super) fn next_event(&self, now: Nanos) -> Option<Nanos> {
        self.state().client.next_event().map(|time| self.here(now, time))
    }

    /// When the next unit leaves, on the clock of the line, as far as it is known.
    pub(super) fn leaves_at(&self, now: Nanos) -> Option<Nanos> {
        self.state().client.leaves_at().map(|time| self.here(now, time))
    }

    /// How many more units without a key are requested now: as many as the sink accepts soon and the limits allow until
    /// the answers are here. More would only wait in front of units that are tried again.
    pub fn places(&self) -> usize {
        let (now, round_trip) = (self.store.clock().now(), self.store.round_trip());
        let soon = self.soon.load(Ordering::Relaxed).min(MAX_ASKED as u64);
        let allowed = with_replica(&*self.store, |replica| {
            let within = 2 * round_trip + replica.horizon();
            replica.available_within(now, within).saturating_add(1)
        });
        let soon = soon.min(allowed);
        usize::try_from(soon).unwrap_or(MAX_ASKED).max(1).saturating_sub(self.units())
    }

    pub(super) fn wants_more(&self, wanted: u64) -> bool {
        let now = self.store.clock().now();
        let (quantum, available) = with_replica(&*self.store, |replica| (replica.quantum(), replica.available(now)));
        wanted.saturating_add(self.state().client.wanted()) < quantum && available < quantum
    }

    /// Gives back what was granted and has not left, cancels what waits, and passes all reports on.
    pub(super) fn retire(&self) {
        self.store.leave();
        // The pump's thread may wait for a process that keeps the bucket locked.
        if let Some(mut state) = lock_soon(&self.state) {
            let news = std::mem::take(&mut *unpoisoned(self.news.lock()));
            news.operations.into_iter().for_each(|operation| state.client.report(operation));
            let _ = state.client.withdraw();
        }
    }

    /// The next event; see [`Grants::poll`](super::Grants::poll).
    pub(super) fn poll(&self, units: &Units<T>, room: u64) -> Result<Next<T>, StoreError> {
        let mut state = self.state();
        loop {
            let at = self.request(units, room, &mut state);
            if let Some((unit, why)) = units.refused().pop_front() {
                return Ok(Next::Refused(unit, why));
            }
            let event = state.client.poll(room)?;
            self.back_off(units, &mut state);
            self.check_policy()?;
            match event {
                Event::Go(grant) if grant.ticket == PLAIN => {
                    state.most = state.most.saturating_add(state.step);
                    let since = grant.has_waited.then(|| self.here(units.now(), grant.at));
                    return Ok(Next::Run(grant.units, since, None));
                }
                Event::Go(grant) => {
                    if let Some(unit) = state.asked.remove(&grant.ticket) {
                        return Ok(self.go(units, unit, grant));
                    }
                }
                Event::Refused(ticket, why) => {
                    if let Some(unit) = state.asked.remove(&ticket) {
                        return Ok(Self::refused(units, unit, why));
                    }
                    return Err(BucketRefusal::Never.into());
                }
                Event::At(time) => {
                    let time = self.here(units.now(), time);
                    return Ok(Next::At(at.map_or(time, |at| at.min(time))));
                }
                Event::Nothing => return Ok(at.map_or(Next::Nothing, Next::At)),
            }
        }
    }

    /// Requests units in the order of the line, as many as the sink accepts and the bucket takes from one process.
    /// Returns when the line has more.
    fn request(&self, units: &Units<T>, room: u64, state: &mut State<T>) -> Option<Nanos> {
        let (mut line, now) = (units.line(), units.now());
        if room == 0 {
            // Units that would be granted now would only be late.
            let unwanted = state.client.want_nothing();
            line.want(now, unwanted);
            return None;
        }
        self.share(&mut line, now, state);
        let soon = room.max(self.soon.load(Ordering::Relaxed));
        let places = usize::try_from(soon).unwrap_or(usize::MAX).min(MAX_ASKED);
        let next = state.asked_at.saturating_add(MIN_INTERVAL.max(self.store.round_trip() / 2));
        if !state.asked.is_empty() && state.asked.len() * 4 > places * 3 && now < next {
            // Several requests share an operation.
            return line.ready_at(now).map(|ready| ready.max(next));
        }
        let ahead = self.ahead().min(state.most);
        if state.client.wanted() > ahead / 2 {
            return None;
        }
        loop {
            let free = places.saturating_sub(state.asked.len());
            let plain = room.min(ahead).saturating_sub(state.client.wanted());
            if free == 0 || plain == 0 {
                return None;
            }
            match line.poll(now, plain) {
                line::Next::Run(run) => state.client.want(run.units),
                line::Next::Go(key, unit, charged) => {
                    let ask = self.ask_for(line.name(key), &unit, now);
                    let ticket = state.client.ask(ask);
                    state.asked_at = now;
                    state.asked.insert(ticket, (key, charged, unit));
                }
                line::Next::Refused(_, unit, why) => units.refused().push_back((unit.content, why.into())),
                line::Next::At(time) => return Some(time),
                line::Next::Nothing => return None,
            }
        }
    }

    /// After grants that came too late, half as many plain units are requested at once: a machine that is too busy for its
    /// grants would only give them back, which makes it busier still. Each run that comes in time adds a millisecond's
    /// worth (additive increase, multiplicative decrease: Chiu and Jain, 1989).
    fn back_off(&self, units: &Units<T>, state: &mut State<T>) {
        if !state.client.take_late() {
            return;
        }
        state.step = with_replica(&*self.store, |replica| replica.quantum());
        state.most = (state.client.wanted() / 2).max(1);
        if state.client.wanted() > state.most {
            let unwanted = state.client.want_nothing();
            units.line().want(units.now(), unwanted);
        }
    }

    /// The most plain units that are requested at once: so many as this process gets in a short time. They would be lost if
    /// it were killed.
    fn ahead(&self) -> u64 {
        let (now, least) = (self.store.clock().now(), 2 * self.store.round_trip() + MIN_WANTED);
        let units = with_replica(&*self.store, |replica| {
            let processes = replica.owners().count().max(1) as u64;
            let share = replica.available_within(now, MAX_WANTED) / processes;
            share.max(replica.available_within(now, least.saturating_add(replica.horizon())))
        });
        units.saturating_add(1)
    }

    /// Shares the places of this process among its keys: a key that is slow leaves places to the others.
    fn share(&self, line: &mut line::Line<T>, now: Nanos, state: &mut State<T>) {
        if self.meant.of_keys().is_none() {
            return;
        }
        let keys = u32::try_from(line.keys_waiting()).unwrap_or(u32::MAX).max(1);
        let of_key = if keys == 1 { MANY } else { (MANY / keys).max(FEW).next_power_of_two() };
        if of_key != state.of_key {
            state.of_key = of_key;
            line.set_jobs(now, of_key);
        }
    }

    fn ask_for(&self, key: &[u8], unit: &Unit<T>, now: Nanos) -> Ask {
        let latest = self.max_wait.map(|longest| self.there(now, unit.arrived.saturating_add(longest)));
        Ask {
            key: self.meant.of_keys().map(|_| short(key)),
            costs: once_if_equal(&unit.costs).into(),
            latest: latest.unwrap_or(Nanos::MAX),
            settles: unit.settles || self.counts_jobs(),
            learns: self.learns,
            ..Ask::default()
        }
    }

    /// The unit leaves now.
    fn go(&self, units: &Units<T>, (key, charged, unit): (KeyId, Charged, Unit<T>), grant: Grant) -> Next<T> {
        let now = units.now();
        units.line().ended(now, charged.number);
        // The sink has one place less until it is asked again.
        let _ = self.soon.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |soon| Some(soon.saturating_sub(1)));
        let due = self.here(now, grant.at);
        let charge = Charge { number: grant.number, start: grant.start, is_kept: unit.settles || self.counts_jobs() };
        Next::Go(Granted::new(key, charged, &unit).charged(due, charge), unit.content)
    }

    /// The bucket never grants this unit.
    fn refused(units: &Units<T>, (key, charged, unit): (KeyId, Charged, Unit<T>), why: operation::Refusal) -> Next<T> {
        let (mut line, now) = (units.line(), units.now());
        line.ended(now, charged.number);
        let why = match why {
            operation::Refusal::TooLate => Refusal::TooLate,
            operation::Refusal::GivenUp(failed) => {
                // The bucket refuses later units itself, as long as it remembers the failures.
                line.refuse_all_of(now, key, Some(failed));
                Refusal::KeyFailed(failed)
            }
            _ => Refusal::TooMuch,
        };
        Next::Refused(unit.content, why)
    }

    /// Checks whether the limits still count what the units count.
    fn check_policy(&self) -> Result<(), StoreError> {
        check_kind(&*self.store, &self.meant)
    }
}

/// Shortens the costs to one number if they are equal.
#[must_use]
pub fn once_if_equal(costs: &[u64]) -> &[u64] {
    match costs {
        [] => &[1],
        [first, rest @ ..] if rest.iter().all(|cost| cost == first) => &costs[..1],
        _ => costs,
    }
}
