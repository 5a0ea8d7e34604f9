//! A supply: grants for a stream of units, from any store. The pump draws from it.
//!
//! A shared store is asked for leases: consecutive reservations in one step, for units that were read. The supply hands
//! them out one by one. From a remote store the next lease is requested while one is in use, so that a slow network
//! costs no rate.

use super::{Store, StoreError, seen};
use crate::clock::{Clock, Nanos, SECOND};
use crate::limits::{Ask, Grant, Ledger, Operation, Pace, Refusal, Served, Start, Take};
use std::sync::atomic::Ordering;
use std::thread;

mod ahead;
mod asked;
mod state;

pub use ahead::{Claim, Refused, When};
pub use state::Supply;
use state::{Leased, UNKNOWN, lock};
pub(super) use state::{RETURN_TIMEOUT, lock_soon};

/// As many units as may be reserved for one time ahead by a stream that is alone.
const FEW: u64 = 8;

/// Less than any time between two grants of different times; a server counts in microseconds.
const AT_ONCE: Nanos = 1_000;

impl Supply {
    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Whether what is granted to single units from now on will be settled: then shared limits are as if it had cost that
    /// from the start.
    pub fn settles(&self, settles: bool) {
        self.settles.store(settles, Ordering::Relaxed);
    }

    /// The clock of all grant times.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    /// Sleeps until `time`, the time of a grant, or until that has moved up in the line, on `clock`, which must show the
    /// same time as [`clock`](Self::clock). Returns false as soon as `is_over` is true, which is asked whenever another
    /// thread unparks this one, and false if it is [too late](Store::is_too_late) for that grant. At most one thread may
    /// sleep here.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] as soon as the supply has [retired](Self::retire): the grant must not be used.
    pub fn sleep_unless(&self, clock: &dyn Clock, time: Nanos, is_over: &dyn Fn() -> bool) -> Result<bool, StoreError> {
        *lock(&self.sleeper) = Some(thread::current());
        let is_retired = || self.is_retired.load(Ordering::SeqCst);
        let handed = self.leased().handed.clone().filter(|(run, _)| run.at == time);
        let mut handed = handed.map(|(run, take)| (run, take.unwrap_or_else(|| Take::of(&[run.units]))));
        let number = handed.as_ref().map_or(u64::MAX, |(run, _)| run.number());
        let sleep = |time, _| !self.knows_outdated(number) && clock.sleep_unless(time, &|| is_retired() || is_over());
        let has_come = match &mut handed {
            Some((run, take)) => wait_for(&*self.store, *run, take, sleep, |moved| {
                *run = *moved;
                self.leased().handed.iter_mut().for_each(|(grant, _)| *grant = *moved);
            }),
            None => sleep(time, time),
        };
        if is_retired() {
            return Err(StoreError::Stopped);
        }
        let is_lost = |(run, take): (Grant, Take)| self.store.is_too_late(&run, &take);
        Ok(!self.is_outdated()? && has_come && !handed.is_some_and(is_lost))
    }

    /// The caller has slept until the time of `grant`, the latest one, for units of these costs. Returns the grant to use: of
    /// limits of this process alone, one at a later time if the caller woke so late that its units would leave in a burst.
    pub fn woke(&self, grant: Grant, costs: &[u64]) -> Grant {
        let (mut used, late) = (grant, self.clock().now().saturating_sub(grant.at));
        let rules = self.leased().lease.rules();
        if rules.only_windows.is_some() && !rules.is_too_late(late) {
            return grant; // Windows count it from when it leaves, with the rest of its lease.
        }
        self.store.own(&mut |ledger, now| used = ledger.woke(now, grant, costs));
        used
    }

    /// Whether a server has refused something of others who share the bucket since this process was granted what is about
    /// to leave. Then it is given back: it would leave in the pause, or too close to others.
    ///
    /// # Errors
    /// [`StoreError`]; it must not be used then.
    pub fn is_outdated(&self) -> Result<bool, StoreError> {
        if !self.store.is_shared() || !seen(&*self.store, Ledger::was_refused) {
            return Ok(false);
        }
        let (mut leased, now) = (self.leased(), self.clock().now());
        let Some(number) = leased.handed.as_ref().map(|(run, _)| run.number()) else { return Ok(false) };
        if now > leased.asked.saturating_add(self.store.span()) {
            // If the store does not answer, what is known is still good.
            let _ = self.store.sync();
        }
        let is_outdated = self.knows_outdated(number);
        if is_outdated {
            self.return_all(&mut leased)?;
        }
        Ok(is_outdated)
    }

    /// Grants nothing before `until`, to any caller, or nothing of one key; without a key, gives back what is reserved and has not
    /// left. What `refused` started was refused by a server, and slows down what starts.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is held then.
    pub fn hold(&self, key: Option<&[u8]>, until: Nanos, refused: Vec<Start>) -> Result<(), StoreError> {
        // Until the store knows of it, nothing is reserved anew.
        let mut leased = key.is_none().then(|| self.leased());
        if let Some(leased) = leased.as_mut().filter(|_| until > self.clock().now()) {
            self.return_all(leased)?;
        }
        self.store.apply(Operation::Hold { until, refused, key: key.map(Box::from) }).map(drop)
    }

    /// These have succeeded. The bucket learns of it with the next request, of the same key if it has one.
    pub fn served(&self, key: Option<&[u8]>, served: Served) {
        let mut leased = self.leased();
        let before = match key {
            Some(key) => leased.ahead.served.entry(key.into()).or_default(),
            None => &mut leased.served,
        };
        *before = before.and(served);
    }

    /// The learned pace, of one key or of all, and what starts now.
    #[must_use]
    pub fn pace(&self, key: Option<&[u8]>) -> (Pace, Start) {
        let now = self.clock().now();
        let pace = seen(&*self.store, |ledger| match key {
            Some(key) => ledger.pace_of(key, now),
            None => ledger.pace_at(now),
        });
        let start = pace.start(now);
        (pace, start)
    }

    /// Commands of this key have succeeded, or so many have failed since one did. After too many nothing of the key is granted.
    ///
    /// # Errors
    /// [`StoreError`]; the bucket does not know of it then.
    pub fn tried(&self, key: &[u8], succeeded: bool, failed: u32) -> Result<(), StoreError> {
        if failed == 0 && seen(&*self.store, |ledger| ledger.failed(key)) == 0 {
            return Ok(());
        }
        self.store.apply(Operation::Tried { key: key.into(), succeeded, failed }).map(drop)
    }

    /// The time of the run that was granted last; it may have moved up since.
    #[must_use]
    pub fn waits_until(&self) -> Nanos {
        let leased = self.leased();
        leased.ahead.next_at().or(leased.handed.as_ref().map(|(grant, _)| grant.at)).unwrap_or(0)
    }

    /// Gives back what was granted and has not left yet, since the process is about to end; see
    /// [`Limits::give_back`](crate::limits::Limits::give_back). The thread that sleeps until a grant is woken. It and
    /// all later requests get [`StoreError::Stopped`]: nothing leaves after this. Takes about a second at most. If giving
    /// back fails, at most one lease is lost, as when the process is killed.
    pub fn retire(&self) {
        if self.is_retired.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(sleeper) = &*lock(&self.sleeper) {
            sleeper.unpark();
        }
        let Some(mut leased) = lock_soon(&self.leased) else { return };
        // A sleeper looks whether we have retired after its time has come, so a run whose time lies ahead has not left.
        if self.store.leave() {
            let _ = self.return_all(&mut leased);
        }
    }

    /// Gives back what is reserved and has not left.
    fn return_all(&self, leased: &mut Leased) -> Result<(), StoreError> {
        let now = self.clock().now();
        match leased.handed.take().filter(|(grant, _)| grant.at > now) {
            Some((grant, Some(take))) => self.store.give_back(&grant, &take)?,
            Some((run, None)) => leased.lease.put_back(run),
            None => {}
        }
        self.receive(leased);
        self.return_ahead(leased)?;
        self.store.return_lease(&mut leased.lease)
    }

    /// The smallest run that is worth a wake-up; see [`Limits::quantum`](crate::limits::Limits::quantum).
    #[must_use]
    pub fn quantum(&self) -> u64 {
        seen(&*self.store, |ledger| ledger.limits().quantum())
    }

    /// Units that may leave now or that are reserved, as far as is known without asking the store.
    #[must_use]
    pub fn available(&self) -> u64 {
        match self.leased().lease.units() {
            0 => self.store.available(),
            units => units,
        }
    }

    /// The time by which `units` more will have been granted, as far as is known without asking the store. Units with costs
    /// of their own are expected to cost as much as those so far.
    #[must_use]
    pub fn schedule(&self, units: u64) -> Option<Nanos> {
        let (charged, count) = self.leased().charged.clone();
        let mean = |sum: &u64| {
            let all = u128::from(*sum) * u128::from(units);
            u64::try_from(all.checked_div(count.into()).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let costs: Vec<u64> = if count == 0 { vec![units] } else { charged.iter().map(mean).collect() };
        let (by_limits, now) = (self.store.schedule(&costs)?, self.clock().now());
        Some(seen(&*self.store, |ledger| by_limits.max(ledger.limits().spaced(now, units))))
    }

    /// Grants one unit of these costs, which are one for each limit, or one for all. Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    pub fn take(&self, costs: &[u64]) -> Result<(Grant, Nanos), StoreError> {
        let mut leased = self.serving()?;
        let is_open = self.store.is_shared() && self.settles.load(Ordering::Relaxed);
        let take = Take { is_open, served: std::mem::take(&mut leased.served), ..Take::of(costs) };
        let (grant, asked) = self.store.take_as(take.clone()).map_err(|error| self.explained(error))?;
        leased.asked = asked;
        if self.store.is_shared()
            && let Err(error) = self.check_policy(&self.store.policy())
        {
            self.store.give_back(&grant, &take)?;
            return Err(error);
        }
        leased.count(&take.costs);
        leased.handed = Some((grant, Some(take)));
        Ok((grant, asked))
    }

    /// Grants one more unit of these costs if it may leave now, with the one before it. Not if that needs a request to another
    /// process, or if windows count the unit from when it leaves.
    #[must_use]
    pub fn take_now(&self, costs: &[u64]) -> bool {
        let mut leased = self.leased();
        let mut taken = false;
        self.store.own(&mut |ledger, now| {
            let take = Take { costs: costs.into(), ..Take::default() };
            taken = !ledger.limits().has_windows() && ledger.take(now, [0; 2], &take).is_ok();
        });
        if taken {
            leased.count(costs);
        }
        taken
    }

    /// Grants a run of the `waiting` units, which must all have been read; see
    /// [`Limits::take_run`](crate::limits::Limits::take_run). Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    pub fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let mut leased = self.serving()?;
        if let Some(run) = self.next_held(&mut leased, waiting)? {
            return Ok(run);
        }
        if self.receive(&mut leased)
            && let Some(run) = self.next_held(&mut leased, waiting)?
        {
            return Ok(run);
        }
        let ask = self.ask(&mut leased, waiting);
        let asked = self.store.lease(&ask, &mut leased.lease).map_err(|error| self.explained(error))?;
        leased.look_for_others();
        leased.asked = asked;
        self.check_kind(&leased)?;
        leased.next(waiting).map(|run| (run, asked)).ok_or(Refusal::Never.into())
    }

    /// Grants what may leave now, at most `units`, which must have been read, if that needs no request to another
    /// process.
    #[must_use]
    pub fn take_available(&self, units: u64) -> u64 {
        let mut leased = self.leased();
        if leased.lease.is_empty() {
            let mut taken = 0;
            self.store.own(&mut |ledger, now| taken = ledger.take_ready(now, units));
            return taken;
        }
        let now = self.clock().now();
        if leased.lease.is_stale(now) { 0 } else { leased.lease.due(now, units) }
    }

    /// Reports that this many units beyond the last run were read and wait for the limits. A remote store is asked for
    /// the next lease if the rest of this one will not last until that arrives.
    pub fn foresee(&self, units: impl FnOnce() -> u64) {
        if !self.store.is_remote() {
            return;
        }
        let mut leased = self.leased();
        if leased.lease.rules().only_windows.is_some() {
            return; // They grant all at once, or long after.
        }
        let left = leased.lease.latest().saturating_sub(self.clock().now());
        let more = units().saturating_sub(leased.lease.units());
        if more > 0 && !leased.is_sent_for && left <= self.store.span() / 4 * 3 {
            // If there is no answer, it is asked again when it is needed.
            let ask = self.ask(&mut leased, more);
            leased.is_sent_for = self.store.send(Operation::Lease(ask));
        }
    }

    /// A unit of these costs is about to leave with its grant, which may be settled later; see
    /// [`settle`](Self::settle). If it will not be, settle it at the same costs. Does nothing unless the supply
    /// [settles](Self::settles).
    pub fn open(&self, grant: &Grant, costs: &[u64]) {
        if !self.settles.load(Ordering::Relaxed) {
            return;
        }
        self.leased().leaving = Some((grant.number(), None));
        self.store.own(&mut |ledger, now| ledger.open(now, grant, costs));
    }

    /// Settles a grant for what was taken at its real costs; see [`Store::settle`].
    ///
    /// # Errors
    /// [`StoreError`]; nothing is settled then.
    pub fn settle(&self, grant: &Grant, take: &Take, real: &[u64]) -> Result<(), StoreError> {
        let leaving = |leased: &mut Leased| {
            let leaving = leased.leaving.as_mut().filter(|(number, _)| *number == grant.number() && take.key.is_none());
            leaving.map(|(_, settled)| *settled = Some(real.into()))
        };
        // Its lock is not held while a server answers.
        let is_leaving = leaving(&mut self.leased()).is_some();
        if is_leaving { Ok(()) } else { self.store.settle(grant, take, real) }
    }

    /// Reports that units of these costs, of the run of `grant` and what was taken with it, have left now. Only then it is
    /// settled, if it was meanwhile. Limits of this process alone count them in windows from now on; shared limits count them from
    /// the time of the grant.
    pub fn handed_over(&self, grant: &Grant, costs: &[u64]) {
        self.store.own(&mut |ledger, now| ledger.hand_over(now, grant, costs));
        let leaving = self.leased().leaving.take();
        if let Some((_, Some(real))) = leaving {
            // Best effort: those behind wait longer then.
            let _ = self.store.settle(grant, &Take::of(costs), &real);
        }
    }

    /// Waits for the lease that was requested, if one was. If it does not arrive, it is asked for again when it is needed.
    fn receive(&self, leased: &mut Leased) -> bool {
        let is_sent_for = std::mem::take(&mut leased.is_sent_for);
        if is_sent_for && let Some(reply) = self.store.receive() {
            let _ = self.store.add(reply, &mut leased.lease);
        }
        is_sent_for
    }

    /// The next reserved run, unless it is late.
    fn next_held(&self, leased: &mut Leased, waiting: u64) -> Result<Option<(Grant, Nanos)>, StoreError> {
        if leased.lease.is_empty() {
            return Ok(None);
        }
        let mut now = self.clock().now();
        while let Some(late) = leased.lease.drop_late(now) {
            // If this fails, the next request reports why. It may take a while.
            let _ = self.store.late(vec![late]);
            now = self.clock().now();
        }
        self.check_kind(leased)?;
        Ok(leased.next(waiting).map(|run| (run, now)))
    }

    /// New limits may take over only if they count the same: units, bytes, or the same costs.
    fn check_kind(&self, leased: &Leased) -> Result<(), StoreError> {
        let rules = leased.lease.rules();
        let is_meant = rules.counts_bytes == self.meant.counts_bytes()
            && rules.has_costs == self.meant.has_costs()
            && rules.counts_jobs == self.meant.counts_jobs();
        if leased.lease.is_empty() || is_meant {
            return Ok(());
        }
        self.check_policy(&self.store.policy())
    }

    /// From windows all that may leave now is asked for, or the next that may. Several are reserved for the same time if
    /// they are few: whoever starts commands asks too late for the rest, and would lose a little of each period.
    ///
    /// When a window opens, the stream that asks first could take all of it. So while others take from it, too, time is
    /// cut into turns. A stream takes a small share in each, and reserves that in the turn before. Then all others get
    /// theirs in the same turn, even if they need time to ask again, as a loop of commands does.
    fn ask(&self, leased: &mut Leased, waiting: u64) -> Ask {
        let (span, served) = (self.store.span(), std::mem::take(&mut leased.served));
        let Some(windows) = leased.lease.rules().only_windows else { return Ask { waiting, span, from: 0, served } };
        let at_once = |waiting: u64| Ask { waiting, span: if waiting <= FEW { AT_ONCE } else { 0 }, from: 0, served };
        // Other spans are of a store that is not shared, or whose clock is not the real one.
        if !(2..=SECOND).contains(&span) {
            return at_once(waiting);
        }
        let (turn, now) = (windows.turn(span / 2), self.clock().now());
        let share = windows.share(turn);
        if leased.asked.saturating_add(turn) < now {
            // If the store does not answer, the request itself says so.
            let _ = self.store.sync();
        }
        let (latest, available) = seen(&*self.store, |ledger| (ledger.latest(), ledger.limits().available(now)));
        match leased.number {
            None => {
                leased.began = now;
                leased.shared_until = if windows.are_used(available) { now.saturating_add(UNKNOWN) } else { 0 };
            }
            Some(ours) if latest > ours => leased.shared_until = now.saturating_add(windows.longest),
            Some(_) => {}
        }
        if now < leased.shared_until {
            let next = (leased.lease.latest() / turn + 1).saturating_mul(turn);
            let from = leased.number.map_or(0, |_| next);
            return Ask { waiting: waiting.min(share), span: AT_ONCE, from, served };
        }
        // It is used up for the first time: others may come before it opens.
        let is_new = now < leased.began.saturating_add(windows.longest);
        at_once(if is_new && available == 0 { waiting.min(share.max(FEW)) } else { waiting })
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        // A server that does not answer holds up nobody who is done with it.
        self.store.leave();
        let mut leased = self.leased();
        self.receive(&mut leased);
        // If giving back fails, at most one lease is lost, as when the process is killed.
        let _ = self.return_ahead(&mut leased);
        let _ = self.store.return_lease(&mut leased.lease);
    }
}

/// Sleeps until the time of `grant`, which was asked for with `take`, with `sleep`, which is passed a time to sleep until and the time of the grant, and
/// returns whether to go on. Who waits for long looks on the way whether the grant has another time, and passes it to
/// `moved` then. Returns whether the time has come.
pub fn wait_for(
    store: &dyn Store,
    mut grant: Grant,
    take: &Take,
    mut sleep: impl FnMut(Nanos, Nanos) -> bool,
    mut moved: impl FnMut(&Grant),
) -> bool {
    while let Some(time) = grant.next_look(store.clock().now()).filter(|_| store.is_shared()) {
        if !sleep(time, grant.at) {
            return false;
        }
        // If the store does not answer, the time told before is still good.
        if let Ok(found) = store.look(&grant, take) {
            grant = found;
            moved(&grant);
        }
    }
    sleep(grant.at, grant.at)
}
