//! The grants of a shared bucket, as the pump polls them. The line orders the units; a bucket applies the limits.
//!
//! This file goes once shared buckets use the ledger of the line. Until then, only this file handles the leases, the
//! requests ahead and the late units of a [`Supply`].

use super::lock::unpoisoned;
use super::look::Sorting;
use super::next::{Charge, Granted, Leaving, Next, Patience, Refusal, Waiting};
use super::units::Units;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use throttle_limits::clock::{MILLISECOND, NanoClock, Nanos};
use throttle_limits::limits::{Grant, Pace, Refusal as BucketRefusal, Served, Start, Take};
use throttle_limits::line::{self, Charged, KeyId, Unit};
use throttle_limits::store::{StoreError, Supply, When};

/// The wait before the next request, in nanoseconds, while the job limit is reached and no event reports the end of a
/// command.
const BUSY_WAIT: Nanos = 5 * MILLISECOND;

/// The most keys whose pace is known here.
const MAX_PACES: usize = 10_000;

/// Reports of servers about the units of one key, or about all units.
#[derive(Debug, Default)]
pub struct ServerReport {
    /// How long no further unit may leave, in nanoseconds from now.
    pub hold: Option<Nanos>,
    /// The starts of the units that servers refused.
    pub refused: Vec<Start>,
    /// The units that servers served.
    pub served: Served,
    /// Whether a unit has succeeded. Recorded only for a bucket that counts failures.
    pub succeeded: bool,
    /// The number of failed units since the last success.
    pub failed: u32,
}

/// Reports of servers: one for each key of a shared bucket, or a single report under `None` for all units.
pub type Reports = BTreeMap<Option<Box<[u8]>>, ServerReport>;

/// A shared bucket, and the units that have left the line for it.
pub struct Bucket<T> {
    supply: Arc<Supply>,
    /// How many of the costs of a unit belong to limits of all keys. The other costs belong to limits of each key.
    of_all: usize,
    /// Whether units have costs of their own.
    has_costs: bool,
    /// Whether the bucket learns a pace from refusals.
    learns: bool,
    /// Whether the bucket counts running commands.
    counts_jobs: bool,
    state: Mutex<State<T>>,
    /// Reports that were not passed on. Their `hold` is a time of the bucket.
    reports: Mutex<Reports>,
    /// The pace of each key at its latest start here, with the events since then.
    paces: Mutex<BTreeMap<Option<Box<[u8]>>, Pace>>,
    /// The number of further units that have been read, and may leave as soon as they are granted.
    foreseen: AtomicU64,
}

struct State<T> {
    /// The unit, or the plain units, that leave next. They have no grant yet, or wait for the time of their grant.
    chosen: Option<Chosen<T>>,
    /// The latest grant for units without costs of their own, and the number of its units that have not left.
    rest: Option<(Grant, u64)>,
    /// The units with a request at the bucket, by ticket, and the latest ticket.
    requested: BTreeMap<u64, (KeyId, Charged, Unit<T>)>,
    ticket: u64,
    refused: VecDeque<(T, Refusal)>,
}

enum Chosen<T> {
    Units(u64),
    Unit(KeyId, Charged, Unit<T>),
}

impl<T> Debug for Bucket<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bucket").field(&self.supply).finish()
    }
}

impl ServerReport {
    /// Appends a later report.
    pub fn add(&mut self, later: ServerReport) {
        self.hold = self.hold.max(later.hold);
        self.refused.extend(later.refused);
        self.served = self.served.and(later.served);
        self.tried(later.succeeded, later.failed);
    }

    /// Records a success if `succeeded`, and then `failed` failures.
    pub fn tried(&mut self, succeeded: bool, failed: u32) {
        self.failed = if succeeded { 0 } else { self.failed }.saturating_add(failed);
        self.succeeded |= succeeded;
    }

    /// Whether the report must be sent at once: otherwise other processes would keep sending units.
    fn is_urgent(&self) -> bool {
        self.hold.is_some() || self.failed > 0
    }
}

impl<T: Send> Bucket<T> {
    /// The bucket of `supply`, for units that are sorted as in `sorting`. With `learns`, the bucket learns a pace from
    /// refusals.
    pub fn new(supply: Supply, sorting: &Sorting, learns: bool) -> Self {
        let (of_all, has_costs) = (sorting.shared.unwrap_or(0), !sorting.look.costs.is_empty());
        let state = State { chosen: None, rest: None, requested: BTreeMap::new(), ticket: 0, refused: VecDeque::new() };
        Bucket {
            supply: Arc::new(supply),
            of_all,
            has_costs,
            learns,
            counts_jobs: sorting.counts_jobs,
            state: Mutex::new(state),
            reports: Mutex::default(),
            paces: Mutex::default(),
            foreseen: AtomicU64::new(0),
        }
    }

    /// The supply of grants.
    pub fn supply(&self) -> &Arc<Supply> {
        &self.supply
    }

    /// Whether the bucket counts running commands.
    pub fn counts_jobs(&self) -> bool {
        self.counts_jobs
    }

    /// Sets the number of units that have been read, are not in the line yet, and may leave as soon as they are
    /// granted.
    pub fn foresee(&self, units: u64) {
        self.foreseen.store(units, Ordering::Relaxed);
    }

    /// Stores a report, which the pump passes on. Returns whether the report is urgent: then the pump should be woken.
    pub fn report(&self, key: Option<Box<[u8]>>, mut report: ServerReport) -> bool {
        let now = self.supply.clock().now();
        report.hold = report.hold.map(|time| now.saturating_add(time));
        let is_urgent = report.is_urgent();
        if let Some(pace) = unpoisoned(self.paces.lock()).get_mut(&key) {
            pace.succeeded(report.served, now);
            for start in &report.refused {
                pace.refused(*start, report.hold.unwrap_or(now));
            }
        }
        if !self.learns {
            (report.served, report.refused) = (Served::default(), Vec::new());
        }
        unpoisoned(self.reports.lock()).entry(key).or_default().add(report);
        is_urgent
    }

    /// A unit of this key starts now. Returns its start, as the bucket counts it.
    pub fn started(&self, key: Option<Box<[u8]>>) -> Start {
        let (mut pace, mut start) = self.supply.pace(key.as_deref());
        let is_reported = unpoisoned(self.reports.lock()).get(&key).is_none_or(|report| report.refused.is_empty());
        let mut paces = unpoisoned(self.paces.lock());
        if !self.learns {
            let now = self.supply.clock().now();
            pace = paces.get(&key).cloned().unwrap_or(pace);
            pace.started(now, 1);
            start = pace.start(now);
        }
        if let Some(known) = paces.get_mut(&key) {
            if is_reported || !self.learns {
                *known = pace;
            }
        } else if paces.len() < MAX_PACES {
            paces.insert(key, pace);
        }
        start
    }

    /// The learned pace of a key.
    pub fn pace(&self, key: Option<&[u8]>) -> Pace {
        let known = unpoisoned(self.paces.lock()).get(&key.map(Box::from)).cloned();
        known.unwrap_or_else(|| self.supply.pace(key).0)
    }

    fn has_urgent_report(&self) -> bool {
        unpoisoned(self.reports.lock()).values().any(ServerReport::is_urgent)
    }

    /// Passes reports of servers on to the bucket. For a pause, the supply gives its reserved units back.
    pub(super) fn pass_on(&self) -> Result<(), StoreError> {
        let reports = std::mem::take(&mut *unpoisoned(self.reports.lock()));
        for (key, report) in reports {
            let (key, until) = (key.as_deref(), report.hold.unwrap_or(0));
            if report.served != Served::default() {
                self.supply.served(key, report.served);
            }
            if let Some(key) = key {
                self.supply.tried(key, report.succeeded, report.failed)?;
            }
            if report.hold.is_some() {
                // Its units would leave in the pause. The pause empties the bucket, so nothing is given back.
                unpoisoned(self.state.lock()).rest = None;
            }
            if report.hold.is_some() || !report.refused.is_empty() {
                self.supply.hold(key, until, report.refused)?;
            }
        }
        Ok(())
    }

    /// Converts a time of the bucket to the clock of the line.
    pub(super) fn here(&self, now: Nanos, time: Nanos) -> Nanos {
        let of_bucket = self.supply.clock().now();
        now.saturating_add(time.saturating_sub(of_bucket)).saturating_sub(of_bucket.saturating_sub(time))
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = unpoisoned(self.state.lock());
        state.chosen.is_none() && state.requested.is_empty() && state.refused.is_empty()
    }

    /// The number of units that have left the line and wait for the bucket.
    pub fn units(&self) -> usize {
        let state = unpoisoned(self.state.lock());
        let chosen = match &state.chosen {
            Some(Chosen::Units(units)) => usize::try_from(*units).unwrap_or(usize::MAX),
            Some(Chosen::Unit(..)) => 1,
            None => 0,
        };
        chosen + state.requested.len() + state.refused.len()
    }

    /// Calls `look` with each unit that has left the line and waits for the bucket.
    pub fn each_unit(&self, mut look: impl FnMut(&T)) {
        let state = unpoisoned(self.state.lock());
        if let Some(Chosen::Unit(.., unit)) = &state.chosen {
            look(&unit.content);
        }
        state.requested.values().for_each(|(.., unit)| look(&unit.content));
    }

    /// Takes out all units that have left the line.
    pub fn drain(&self) -> Vec<T> {
        let mut state = unpoisoned(self.state.lock());
        let chosen = state.chosen.take().and_then(|chosen| match chosen {
            Chosen::Units(_) => None,
            Chosen::Unit(.., unit) => Some(unit.content),
        });
        let requested = std::mem::take(&mut state.requested).into_values().map(|(.., unit)| unit.content);
        let refused = std::mem::take(&mut state.refused).into_iter().map(|(unit, _)| unit);
        chosen.into_iter().chain(requested).chain(refused).collect()
    }

    /// When the bucket has news, on the clock of the line.
    pub(super) fn next_event(&self, now: Nanos) -> Option<Nanos> {
        let state = unpoisoned(self.state.lock());
        if state.chosen.is_some() || !state.refused.is_empty() {
            return Some(now);
        }
        let next = if self.supply.has_keys() { self.supply.next_event() } else { None };
        next.map(|time| self.here(now, time))
    }

    pub(super) fn wants_more(&self, wanted: u64) -> bool {
        let quantum = self.supply.quantum();
        wanted < quantum && self.supply.available() < quantum
    }

    pub(super) fn has_left(&self) {
        self.supply.handed_over();
    }

    /// Settles a unit. Best effort: if that fails, the units behind it leave at the times that the charge requires.
    pub(super) fn settle(&self, charge: &Charge, real: &[u64]) {
        let _ = self.supply.settle(&charge.grant, &charge.take, real);
    }

    /// The next event; see [`Grants::poll`](super::Grants::poll).
    pub(super) fn poll(&self, units: &Units<T>, room: u64, waiting: &Waiting<'_>) -> Result<Next<T>, StoreError> {
        let refused = unpoisoned(self.state.lock()).refused.pop_front();
        match refused {
            Some((unit, why)) => Ok(Next::Refused(unit, why)),
            None if self.supply.has_keys() => self.poll_keys(units, room),
            None if room == 0 => Ok(Next::Nothing),
            None => self.poll_one(units, room, waiting),
        }
    }

    /// Requests a grant for the next unit or plain units, and sleeps until its time. Meanwhile they stay in the state: if
    /// the run ends, another thread takes them out.
    fn poll_one(&self, units: &Units<T>, room: u64, waiting: &Waiting<'_>) -> Result<Next<T>, StoreError> {
        let chosen = unpoisoned(self.state.lock()).chosen.take();
        let next = if chosen.is_none() { units.line().poll(units.now(), room) } else { line::Next::Nothing };
        let chosen = match (chosen, next) {
            (Some(chosen), _) => chosen,
            (None, line::Next::Run(run)) => Chosen::Units(run.units),
            (None, line::Next::Go(key, unit, charged)) => Chosen::Unit(key, charged, unit),
            (None, line::Next::Refused(_, unit, why)) => return Ok(Next::Refused(unit.content, why.into())),
            (None, line::Next::At(time)) => return Ok(Next::At(time)),
            (None, line::Next::Nothing) => return Ok(Next::Nothing),
        };
        let (costs, wanted) = (chosen.costs().filter(|_| self.has_costs), chosen.units());
        self.supply.settles(matches!(&chosen, Chosen::Unit(.., unit) if unit.settles));
        self.put(chosen);
        let (mut grant, requested) = match self.request(units, wanted, costs.as_deref(), room) {
            Err(StoreError::Refused(BucketRefusal::Never)) => return self.refused(units),
            taken => taken?,
        };
        let has_waited = grant.at > requested;
        if has_waited {
            (waiting.begins)(self.here(units.now(), grant.at), grant.bound_by, grant.units);
            let clock = Sleeps { units, bucket: self, patience: waiting.patience };
            if !self.supply.sleep_unless(&clock, grant.at, &|| self.has_urgent_report())? {
                return Ok(Next::At(0));
            }
            grant = self.supply.moved(grant);
        }
        if self.has_urgent_report() {
            return Ok(Next::At(0));
        }
        self.leave(units, grant, costs, has_waited)
    }

    /// Requests a grant, unless plain units are left of the latest one. Also returns when it was requested.
    fn request(
        &self,
        units: &Units<T>,
        wanted: u64,
        costs: Option<&[u64]>,
        room: u64,
    ) -> Result<(Grant, Nanos), StoreError> {
        let rest = unpoisoned(self.state.lock()).rest.take();
        if let Some(costs) = costs {
            return self.supply.take(costs);
        }
        if let Some((mut grant, units)) = rest.filter(|(grant, _)| !self.supply.store().is_late(grant)) {
            grant.units = units;
            return Ok((grant, grant.at));
        }
        let foreseen = self.foreseen.load(Ordering::Relaxed);
        let (grant, requested) = self.supply.next_run(wanted.saturating_add(foreseen).min(room))?;
        let further = units.line().wanted().saturating_add(foreseen);
        self.supply.foresee(|| wanted.saturating_add(further).saturating_sub(grant.units));
        Ok((grant, requested))
    }

    /// The chosen unit, or the plain units, leave with this grant.
    fn leave(
        &self,
        units: &Units<T>,
        grant: Grant,
        costs: Option<Vec<u64>>,
        has_waited: bool,
    ) -> Result<Next<T>, StoreError> {
        let since = has_waited.then(|| self.here(units.now(), grant.at));
        match self.take_chosen()? {
            Chosen::Units(wanted) => {
                let more = if has_waited { self.supply.take_available(wanted.saturating_sub(grant.units)) } else { 0 };
                let leave = grant.units.saturating_add(more).min(wanted);
                if leave < wanted {
                    units.line().want(units.now(), wanted - leave);
                }
                Ok(Next::Run(leave, since, Leaving::OfBucket))
            }
            Chosen::Unit(key, charged, unit) => {
                if costs.is_none() {
                    let rest = grant.units - 1;
                    unpoisoned(self.state.lock()).rest = (rest > 0).then_some((grant, rest));
                }
                let take = Take::of(&costs.unwrap_or_else(|| vec![1]));
                Ok(self.go(units, (key, charged, unit), Charge { grant, take }))
            }
        }
    }

    /// The unit leaves now.
    fn go(&self, units: &Units<T>, (key, charged, unit): (KeyId, Charged, Unit<T>), charge: Charge) -> Next<T> {
        let now = units.now();
        if !units.terms.runs {
            units.line().ended(now, charged.number);
        }
        let due = self.here(now, charge.grant.at);
        Next::Go(Granted::new(key, charged, &unit).charged(due, charge), unit.content)
    }

    /// The bucket never grants what was chosen. Plain units wait on.
    fn refused(&self, units: &Units<T>) -> Result<Next<T>, StoreError> {
        match self.take_chosen()? {
            Chosen::Unit(_, charged, unit) => {
                units.line().ended(units.now(), charged.number);
                Ok(Next::Refused(unit.content, Refusal::TooMuch))
            }
            chosen @ Chosen::Units(_) => {
                self.put(chosen);
                Err(BucketRefusal::Never.into())
            }
        }
    }

    /// Takes out what was chosen. Fails if another thread has taken it out because the run ends.
    fn take_chosen(&self) -> Result<Chosen<T>, StoreError> {
        unpoisoned(self.state.lock()).chosen.take().ok_or(StoreError::Stopped)
    }

    fn put(&self, chosen: Chosen<T>) {
        unpoisoned(self.state.lock()).chosen = Some(chosen);
    }

    /// Serves units with keys: returns a unit whose grant is due, and requests grants for other units. A grant is
    /// requested only if the sink has a free place for the unit and the limits of its key conform soon.
    fn poll_keys(&self, units: &Units<T>, room: u64) -> Result<Next<T>, StoreError> {
        let refused = self.supply.answered()?;
        self.take_back(units, refused);
        loop {
            if let Some((unit, why)) = unpoisoned(self.state.lock()).refused.pop_front() {
                return Ok(Next::Refused(unit, why));
            }
            if room > 0
                && let Some(claim) = self.supply.claim()?
            {
                match claim.granted {
                    None => self.put_back(units, claim.ticket, 0),
                    Some((grant, take)) => {
                        let requested = self.answered(units, claim.ticket);
                        let Some(unit) = requested else { continue };
                        return Ok(self.go(units, unit, Charge { grant, take }));
                    }
                }
                continue;
            }
            let ((wanted, more_at), reserved) = (self.supply.wanted(), self.supply.reserved());
            if room == 0 && reserved == 0 {
                return Ok(Next::Nothing); // The sink reports when it has room again.
            }
            let free = usize::try_from(room).unwrap_or(usize::MAX).saturating_sub(reserved);
            let most = wanted.min(free);
            // When every place in the sink is reserved, no unit is requested until a place is free.
            let mut at = if wanted > 0 { Nanos::MAX } else { more_at };
            if most > 0 {
                let (takes, rest) = self.choose_several(units, most)?;
                if !takes.is_empty() {
                    let refused = self.supply.ask_for(takes)?;
                    self.take_back(units, refused);
                    continue;
                }
                let now = units.now();
                let in_line = units.line().ready_at(now);
                if rest == 0 && self.supply.next_event().is_none() {
                    return Ok(in_line.map_or(Next::Nothing, Next::At));
                }
                at = self.supply.clock().now().saturating_add(rest.max(MILLISECOND));
            }
            let soon = || self.supply.clock().now().saturating_add(BUSY_WAIT);
            let next = self.supply.next_event().unwrap_or_else(soon).min(at);
            return Ok(Next::At(self.here(units.now(), next)));
        }
    }

    /// Chooses up to `most` units to request, in the order of their turns. Skips units if the limits of their key do
    /// not conform soon. Also returns for how many nanoseconds no other unit can leave.
    fn choose_several(&self, units: &Units<T>, most: usize) -> Result<(Vec<(u64, Take)>, Nanos), StoreError> {
        let mut takes = Vec::new();
        while takes.len() < most {
            let (ticket, take) = {
                let (mut line, mut state) = (units.line(), unpoisoned(self.state.lock()));
                let now = units.now();
                let (key, unit, charged) = match line.poll(now, 1) {
                    line::Next::Go(key, unit, charged) => (key, unit, charged),
                    line::Next::Refused(_, unit, why) => {
                        state.refused.push_back((unit.content, why.into()));
                        continue;
                    }
                    _ => break,
                };
                self.supply.settles(unit.settles);
                let mut take = Sorting::price(self.of_all, line.name(key), &unit.costs);
                let waited = now.saturating_sub(unit.arrived);
                let since = self.supply.clock().now().saturating_sub(waited);
                if let Some(of) = &mut take.key {
                    (of.learns, of.since) = (self.learns, since);
                }
                state.ticket += 1;
                let ticket = state.ticket;
                state.requested.insert(ticket, (key, charged, unit));
                line.set_away(now, state.requested.len());
                (ticket, take)
            };
            match self.supply.when(&take, &takes)? {
                When::Now(latest) => {
                    let mut take = take;
                    take.key.iter_mut().for_each(|of| of.latest = latest);
                    takes.push((ticket, take));
                }
                When::After(wait) => self.put_back(units, ticket, wait),
                When::NoneBefore(wait) => {
                    self.put_back(units, ticket, 0);
                    return Ok((takes, wait));
                }
            }
        }
        Ok((takes, 0))
    }

    /// Takes out the unit with this ticket, because the bucket has answered.
    fn answered(&self, units: &Units<T>, ticket: u64) -> Option<(KeyId, Charged, Unit<T>)> {
        let (mut line, mut state) = (units.line(), unpoisoned(self.state.lock()));
        let requested = state.requested.remove(&ticket);
        line.set_away(units.now(), state.requested.len());
        requested
    }

    /// Returns the unit with this ticket to the line. No unit of its key leaves for `wait` nanoseconds.
    fn put_back(&self, units: &Units<T>, ticket: u64, wait: Nanos) {
        let Some((_, charged, unit)) = self.answered(units, ticket) else { return };
        let now = units.now();
        let returned = units.line().put_back(now, charged.number, unit, now.saturating_add(wait));
        if let Err(unit) = returned {
            units.refuse(unit.content, Refusal::TooMuch);
        }
    }

    /// Returns the refused units to the line, or gives them up.
    fn take_back(&self, units: &Units<T>, refused: throttle_limits::store::Refused) {
        for (ticket, refusal) in refused {
            match refusal {
                BucketRefusal::TooLong { wait } => self.put_back(units, ticket, wait),
                BucketRefusal::Busy => self.put_back(units, ticket, BUSY_WAIT),
                BucketRefusal::GivenUp(failed) => {
                    if let Some((key, charged, unit)) = self.answered(units, ticket) {
                        let mut line = units.line();
                        line.ended(units.now(), charged.number);
                        line.give_up(units.now(), key, Some(failed));
                        unpoisoned(self.state.lock()).refused.push_back((unit.content, Refusal::KeyFailed(failed)));
                    }
                }
                _ => {
                    if let Some((_, charged, unit)) = self.answered(units, ticket) {
                        units.line().ended(units.now(), charged.number);
                        unpoisoned(self.state.lock()).refused.push_back((unit.content, Refusal::TooMuch));
                    }
                }
            }
        }
    }
}

impl<T> Chosen<T> {
    fn units(&self) -> u64 {
        if let Chosen::Units(units) = self { *units } else { 1 }
    }

    /// The costs of a unit.
    fn costs(&self) -> Option<Vec<u64>> {
        match self {
            Chosen::Unit(.., unit) => Some(unit.costs.to_vec()),
            Chosen::Units(_) => None,
        }
    }
}

/// The clock of the bucket, on which the pump's thread sleeps. A sleep also ends once the run has retired.
struct Sleeps<'a, T> {
    units: &'a Units<T>,
    bucket: &'a Bucket<T>,
    patience: &'a dyn Patience,
}

impl<T: Send> NanoClock for Sleeps<'_, T> {
    fn now(&self) -> Nanos {
        self.bucket.supply.clock().now()
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        let (clock, now) = (self.bucket.supply.clock(), self.units.now());
        let until = self.bucket.here(now, time);
        self.patience.wait(self.units.now(), until, &mut |first| {
            // The time of the grant itself is exact on the clock of the bucket.
            let time = time.saturating_sub(until.saturating_sub(first));
            clock.sleep_unless(time, &|| self.units.is_retired() || is_over())
        })
    }
}
